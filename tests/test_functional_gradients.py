"""Gradients and densities with functionals, against energy differences, PySCF and published
numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyscf import dft

import dfmp2
from dfmp2.gradients.certificate import check_direction
from dfmp2.gradients.functional import Functionals
from dfmp2.gradients.gradient import mp2_gradient
from dfmp2.gradients.result import GradientResult
from dfmp2.integrals.grid import count_points, make_grid
from dfmp2.interop.pyscf import DFMP2, gradient_from_mean_field
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2 import dispersion
from dfmp2.options import make_options
from dfmp2.progress import Silent
from dfmp2.scf.kohn_sham import exact_exchange
from tests.awkward import mole_of, slope

pytestmark = pytest.mark.usefixtures("coarse_grid_error")
# No molecule here has any symmetry.
WATER = Molecule(
    ("O", "H", "H"), np.array([[0.02, 0.0, 0.22], [0.1, 1.51, -0.89], [0.0, -1.38, -0.97]])
)
CATION = WATER.with_state(1, 2)
HOCL = Molecule(
    ("O", "Cl", "H"), np.array([[0.02, 0.0, 0.22], [0.1, 3.11, -0.89], [0.9, -1.38, -0.97]])
)
HOI = Molecule(
    ("O", "I", "H"), np.array([[0.02, 0.0, 0.22], [0.1, 3.61, -0.89], [0.9, -1.38, -0.97]])
)
AMINE = Molecule(
    ("N", "H", "H", "O", "H"),
    np.array(
        [[0.1, 0.2, 0.3], [0.9, -0.5, 1.9], [-1.7, 0.8, 0.9], [0.3, 2.2, -1.6], [1.5, 2.9, -2.5]]
    ),
)
METHYL = Molecule(
    ("C", "H", "H", "H"),
    np.array([[0.1, 0.0, 0.2], [1.9, 0.3, -0.2], [-0.9, 1.8, 0.1], [-1.1, -1.6, 0.5]]),
    multiplicity=2,
)
FLUORIDE = Molecule(("F", "H"), np.array([[0.1, 0.0, 0.2], [0.3, 0.6, 1.9]]))
IN_FIELD = WATER.in_field([[0, 0.3, 4.2, 0.5], [1, -5, 0, -0.8]])
BORANE = Molecule(
    ("B", "H"), np.array([[0.1, 0.0, 0.2], [1.1, 0.9, 1.9]]), charge=1, multiplicity=2
)
LONE = Molecule(("H", "H"), np.array([[0.0, 0, 0], [0.3, 0.1, 2.1]]), charge=1, multiplicity=2)
EXACT: dict[str, Any] = {"precision": "fp64", "scf_conv_tol": 1e-12, "threads": 1}
SMALL: dict[str, Any] = {"basis": "6-31g", "auxbasis": "cc-pvdz-ri", "grid": "1", **EXACT}
FOUR_CENTRE: dict[str, Any] = {"scf": "conventional"}
R2SCAN: dict[str, Any] = {"method": "custom-dh", "xc": "r2scan0", "os_scale": 0.5, "ss_scale": 0.2}


def slopes(molecule: Molecule, **given: Any) -> tuple[float, float, GradientResult]:
    """Along a direction of all atoms, from five-point differences and analytic, Eh/bohr; and the
    gradient."""
    found = mp2_gradient(molecule, make_options(**given), listener=Silent())
    direction = check_direction(molecule)
    return slope(found.result, direction), float(np.vdot(direction, found.gradient)), found


# --- the kernel -----------------------------------------------------------------------------------


def test_a_quick_kernel_is_that_of_a_coarse_grid() -> None:
    """Beside that of the grid of the SCF, both against PySCF's; of a coarse grid there is one."""
    xc = "b3lyp"
    mole = mole_of(CATION, "sto-3g")
    fine, coarse = (make_grid(mole, name).build() for name in ("3", "1"))
    mf = dft.UKS(mole, xc="lda,vwn").run(grids=coarse)
    occupied = [mf.mo_coeff[0][:, :5], mf.mo_coeff[1][:, :4]]
    density = np.stack([c @ c.T for c in occupied])
    changes = np.random.default_rng(7).standard_normal((2, mole.nao, mole.nao))
    changes += changes.transpose(0, 2, 1)
    exact = exact_exchange(xc)
    functionals = Functionals(xc, "pbe", exact, exact, fine)
    assert not functionals.stationary and replace(functionals, energy=xc).stationary
    room = 8 * fine.weights.size * mole.nao
    integrator = dft.numint.NumInt()
    kernels = functionals.kernels(mole, occupied, 2, room)
    for kernel, grid, error in zip(kernels, (fine, coarse), (1e-8, 1e-4), strict=True):
        expected = integrator.nr_uks_fxc(mole, grid, xc, density, changes, hermi=1)
        np.testing.assert_allclose(kernel(changes), expected, atol=error * np.abs(expected).max())
    kernel, quick = replace(functionals, grid=coarse).kernels(mole, occupied, 1, room)
    assert kernel is quick
    np.testing.assert_allclose(kernel(changes), expected, atol=1e-8 * np.abs(expected).max())


# --- gradients ------------------------------------------------------------------------------------

FAST: dict[str, tuple[Molecule, dict[str, Any]]] = {
    "GGA, restricted": (WATER, {"method": "b2plyp"}),
    "meta-GGA, unrestricted, frozen, point charges": (
        IN_FIELD.with_state(1, 2),
        {"method": "ptpss", "basis": "sto-3g", "frozen_core": "1", "frozen_virtual": 1},
    ),
    "range-separated, four-centre": (
        CATION, {"method": "wb97x-2", "basis": "sto-3g", **FOUR_CENTRE},
    ),
    "another functional of the energy, dispersion": (
        HOCL, {"method": "xdh-pbe0", "frozen_core": "auto", "basis": "def2-svp",
               "auxbasis": "def2-svp-ri", "grid": "0"},
    ),
    "another functional of the energy, unrestricted": (
        BORANE, {"method": "xyg3", "basis": "sto-3g"},
    ),
    "no beta electron": (LONE, {"method": "b2plyp"}),
    "LDA": (WATER, {**R2SCAN, "xc": "lda,vwn", "basis": "sto-3g"}),
}  # fmt: skip


SECONDS = ("GGA, restricted", "another functional of the energy, dispersion")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SECONDS)) for name in FAST],
)
def test_gradients_are_slopes_of_the_energy(name: str) -> None:
    molecule, given = FAST[name]
    numerical, analytic, found = slopes(molecule, **{**SMALL, "grid": "0", **given})
    assert analytic == pytest.approx(numerical, abs=2e-7)
    assert found.certificate.passed, found.certificate.failures
    assert abs(found.certificate.rotation or 0.0) < 2e-7  # with the torque on the spheres


TIGHT: dict[str, Any] = {"basis": "cc-pvdz", "grid": "75,302", **EXACT, "scf_conv_tol": 1e-13}
# Energies of 400 Eh and more are rounded to 1e-13 Eh: no SCF converges below that.
DEF2: dict[str, Any] = {**TIGHT, "basis": "def2-svp", "scf_conv_tol": 1e-12}
CASES: dict[str, tuple[Molecule, dict[str, Any]]] = {
    "1 GGA, RKS": (HOCL, {**TIGHT, "method": "b2plyp"}),
    "2 GGA, UKS, frozen core": (METHYL, {**TIGHT, "method": "b2plyp", "frozen_core": "auto"}),
    "3 GGA, RKS, D3(BJ), core and virtuals frozen": (
        AMINE,
        {**TIGHT, "method": "b2gp-plyp-d3bj", "frozen_core": "auto", "frozen_virtual": 3},
    ),
    "4 GGA, UKS, D3(BJ)": (METHYL, {**TIGHT, "method": "dsd-pbepbe-d3bj"}),
    "5 meta-GGA, RKS, D3(BJ)": (AMINE, {**TIGHT, "method": "pwpb95", "dispersion": "d3bj"}),
    "6 meta-GGA, UKS, frozen core": (
        AMINE.with_state(1, 2),
        {**TIGHT, "method": "ptpss", "frozen_core": "auto"},
    ),
    "7 meta-GGA of one's own, UKS, point charges": (IN_FIELD.with_state(1, 2), {**TIGHT, **R2SCAN}),
    "8 range-separated, RKS": (HOCL, {**TIGHT, "method": "wb97x-2"}),
    "9 range-separated, UKS, frozen core": (
        METHYL,
        {**TIGHT, "method": "wb2plyp", "frozen_core": "auto"},
    ),
    "10 range-separated, RKS, four-centre": (AMINE, {**TIGHT, "method": "rsx-qidh", **FOUR_CENTRE}),
    "11 XYG3 type, RKS, frozen core": (AMINE, {**TIGHT, "method": "xyg3", "frozen_core": "auto"}),
    "12 XYG3 type, UKS": (CATION, {**TIGHT, "method": "xygj-os"}),
    "13 core potential, RKS, D4, frozen core": (
        HOI,
        {**DEF2, "method": "b2plyp-d4", "frozen_core": "auto"},
    ),
    "14 core potential, XYG3 type, UKS": (HOI.with_state(1, 2), {**DEF2, "method": "xdh-pbe0"}),
    "15 X2C, UKS": (
        HOCL.with_state(-1, 2),
        {**TIGHT, "method": "b2plyp", "relativity": "x2c", "scf_conv_tol": 1e-12},
    ),
    "16 Kohn-Sham, meta-GGA, UKS": (METHYL, {**TIGHT, "method": "ks", "xc": "r2scan"}),
    "17 Kohn-Sham, range-separated, core potential": (
        HOI,
        {**DEF2, "method": "ks", "xc": "camb3lyp"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_slopes_on_fine_grids(name: str) -> None:
    molecule, given = CASES[name]
    numerical, analytic, found = slopes(molecule, **given)
    print(f"{name}: {numerical:+.8f} {analytic:+.8f} {analytic - numerical:+.1e}")
    assert analytic == pytest.approx(numerical, abs=2e-6)
    assert found.certificate.passed, found.certificate.failures


@pytest.mark.parametrize(("molecule", "xc"), [(FLUORIDE, "camb3lyp"), (BORANE, "tpss")], ids=str)
def test_kohn_sham_alone_has_energy_and_gradient_of_pyscf(molecule: Molecule, xc: str) -> None:
    mole = mole_of(molecule, "sto-3g")
    mf = dft.KS(mole, xc=xc)
    mf.grids.level, mf.conv_tol = 0, 1e-12
    mf.run()
    given = {"basis": "sto-3g", "method": "ks", "xc": xc, "grid": 0, **FOUR_CENTRE, **EXACT}
    found = dfmp2.gradient(molecule, check=True, **given)
    assert found.result.total_energy == pytest.approx(mf.e_tot, abs=1e-9)
    assert found.result.correlation_energy == 0.0
    of_pyscf = mf.nuc_grad_method().set(grid_response=True).kernel()
    np.testing.assert_allclose(found.gradient, of_pyscf, atol=1e-6)
    assert found.certificate.passed and found.result.check is None
    expected = np.vdot(of_pyscf, check_direction(molecule))
    assert found.certificate.numerical_slope == pytest.approx(expected, abs=2e-6)
    on_theirs = gradient_from_mean_field(mf, method="ks")
    np.testing.assert_allclose(on_theirs.gradient, found.gradient, atol=1e-6)


# --- densities ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("molecule", "given"),
    [
        pytest.param(
            CATION,
            {"method": "b2plyp", "frozen_core": "1", "basis": "sto-3g"},
            marks=pytest.mark.slow,
        ),
        pytest.param(WATER, {"method": "xyg3"}, marks=pytest.mark.slow),
        pytest.param(CATION, {"method": "wb97x-2", **FOUR_CENTRE}, marks=pytest.mark.slow),
        (
            WATER,
            {"method": "ks", "xc": "pbe0", "basis": "sto-3g", "auxbasis": None, "grid": "0"},
        ),
    ],
    ids=lambda value: str(value.get("method") if isinstance(value, dict) else value.charge),
)
def test_relaxed_dipoles_are_slopes_of_the_energy_in_fields(
    molecule: Molecule, given: dict[str, Any]
) -> None:
    found = dfmp2.run(molecule, polarizability=True, **{**SMALL, **given})
    assert found.polarizability.dipole_difference < 2e-6
    np.testing.assert_allclose(
        np.diagonal(found.polarizability.relaxed), found.polarizability.from_energies, atol=2e-3
    )
    np.testing.assert_allclose(
        found.polarizability.relaxed, found.polarizability.relaxed.T, atol=2e-4
    )


# --- every part of the program --------------------------------------------------------------------


def test_a_mean_field_of_pyscf_has_the_same_gradient() -> None:
    """That of a double hybrid without dispersion, whose gradient is added."""
    given = {**SMALL, "basis": "sto-3g", "grid": "0", "scf_auxbasis": "cc-pvdz-jkfit"}
    mf = dft.UKS(mole_of(BORANE, "sto-3g"), xc="0.53*HF+0.47*B88,0.73*LYP")
    mf = mf.density_fit(auxbasis="cc-pvdz-jkfit")
    mf.grids.level, mf.conv_tol = 0, 1e-12
    mf.run()
    second_order = DFMP2(mf, auxbasis="cc-pvdz-ri", method="b2plyp", precision="fp64").run()
    bare = second_order.nuc_grad_method().kernel()
    expected = bare + dispersion.dispersion_gradient(BORANE, "d3bj", "b2plyp")
    found = dfmp2.gradient(BORANE, method="b2plyp-d3bj", **given)
    np.testing.assert_allclose(found.gradient, expected, atol=2e-7)


def test_the_plan_counts_the_kernel_at_every_point() -> None:
    radical = Molecule.from_string("N 0 0 0.1; H 0 0.8 -0.5; H 0.1 -0.7 -0.6", multiplicity=2)
    mole = mole_of(radical)

    def growth(**asked: bool) -> int:
        """More bytes at the peak with 150,590 points than with 75,302."""
        plans = [
            dfmp2.plan(radical, "6-31g", method="ptpss", grid=grid, **asked).plan.memory
            for grid in ("75,302", "150,590")
        ]
        return int(plans[1].predicted_peak - plans[0].predicted_peak)

    more = count_points(make_grid(mole, "150,590")) - count_points(make_grid(mole, "75,302"))
    kernel = (2 * 5) ** 2 * 8  # bytes at a point: two spins, density, its gradient, tau
    assert growth(gradient=True) > kernel * more > growth()
