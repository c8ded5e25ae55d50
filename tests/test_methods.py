"""Methods of `--method`, with and without pair energies, and the ROHF reference, against explicit
sums and other programs.

Published energies are entries of `dfmp2 validate`, which test_physics.py runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyscf import df, gto, scf
from pyscf.gw import urpa as pyscf_urpa

import dfmp2
from dfmp2.backends import registry
from dfmp2.errors import InputError
from dfmp2.molecule.mole import fitting_data
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2 import laplace
from dfmp2.mp2.pairs import pair_energies
from dfmp2.options import make_options
from dfmp2.options.methods import METHODS

EXACT = {"basis": "6-31g", "auxbasis": "cc-pvdz-ri", "precision": "fp64", "scf_conv_tol": 1e-12}
WATER = Molecule(
    ("O", "H", "H"), np.array([[0.0, 0.0, 0.22], [0.0, 1.43, -0.89], [0.0, -1.43, -0.89]])
)
RADICAL = WATER.with_state(1, 2)
FACTORS = {  # as published
    "mp2": (1.0, 1.0),
    "scs-mp2": (1.2, 1 / 3),
    "sos-mp2": (1.3, 0.0),
    "scs-vdw-mp2": (1.28, 0.5),
    "scsn-mp2": (0.0, 1.76),
    "kappa-mp2": (1.0, 1.0),
}


def spin_orbital_sum(
    b: list[Any], occupied: list[Any], virtual: list[Any], kappa: float | None
) -> tuple[float, float]:
    """Same-spin and opposite-spin energies summed over spin orbitals, Eh: every term with its own
    factor."""
    found = [0.0, 0.0]
    for one in (0, 1):
        for other in (0, 1):
            g = np.einsum("iap,jbp->iajb", b[one], b[other])
            d = occupied[one][:, None, None, None] + occupied[other][:, None] - virtual[other]
            d = d - virtual[one][:, None, None]
            factor = 1.0 if kappa is None else (1 - np.exp(kappa * d)) ** 2
            t = g * factor / d
            if one == other:
                found[0] += 0.5 * float(np.vdot(t, g - g.transpose(0, 3, 2, 1)))
            else:
                found[1] += 0.5 * float(np.vdot(t, g))
    return found[0], found[1]


@pytest.mark.parametrize("precision", ["fp64", "mixed"])
def test_regularised_terms_of_two_spins_are_the_sums_written_out(precision: str) -> None:
    """Spins of different sizes, several tiles, and one vanishing gap, where plain MP2 diverges."""
    rng, kappa = np.random.default_rng(3), 1.1
    b = [0.3 * rng.standard_normal((n, v, 21)) for n, v in ((5, 70), (3, 72))]
    occupied = [np.sort(-rng.random(len(x)) - 0.2) for x in b]
    virtual = [np.sort(rng.random(x.shape[1]) - 0.2 + 1e-6) for x in b]
    backend = registry.select_backend("cpu", precision, 2)[0].regularised(kappa)
    put = [backend.put(x, e, v, precision) for x, e, v in zip(b, occupied, virtual, strict=True)]
    pairs = pair_energies(put, backend)
    found = pairs.same_spin_energy, pairs.opposite_spin_energy
    rounding = 1e-11 if precision == "fp64" else 1e-5
    assert found == pytest.approx(spin_orbital_sum(b, occupied, virtual, kappa), rel=rounding)


def test_every_method_has_its_published_factors_and_a_run_uses_them() -> None:
    pairs = {one.name: one for one in METHODS.values() if one.kind == "pairs"}
    assert {name: (one.opposite_spin, one.same_spin) for name, one in pairs.items()} == FACTORS
    for name, (opposite, same) in FACTORS.items():
        found = dfmp2.run(WATER, **{**EXACT, "basis": "sto-3g", "method": name})
        assert found.method == name
        expected = opposite * found.components[1] + same * found.components[0]
        assert found.correlation_energy == pytest.approx(expected, abs=1e-14)
        assert found.total_energy == found.scf_total_energy + found.correlation_energy


ASKED: dict[str, Any] = {
    "check": True,
    "certify_fit": True,
    "properties": True,
    "polarizability": True,
    "precision": "mixed",
    "transform": "device",
    "backend": "torch",
    "frozen_core": "auto",
    "frozen_virtual": 1,
    "auxbasis": "cc-pvdz-ri",
    "stability": "full",
    "os_scale": 1.1,
    "dispersion": "d3bj",
    "kappa": 1.2,
    "reference": "rohf",
    "xc": "pbe",
    "grid": "3",
    "scf": "conventional",
    "relativity": "x2c",
    "tolerance": 1e-8,
}
WITHOUT_PAIRS = "check certify_fit precision transform backend"
HARTREE_FOCK = "dispersion kappa xc grid"  # options that MP2 cannot use
COMBINATIONS: dict[str, tuple[dict[str, Any], str]] = {  # options, and which are refused with them
    "MP2": ({}, HARTREE_FOCK),
    "SCS-MP2": ({"method": "scs-mp2"}, f"os_scale {HARTREE_FOCK}"),
    "kappa-MP2": (
        {"method": "kappa-mp2"},
        "check certify_fit os_scale dispersion xc grid",
    ),
    "Laplace": (
        {"method": "sos-laplace"},
        f"{WITHOUT_PAIRS} properties polarizability os_scale {HARTREE_FOCK}",
    ),
    "dRPA": (
        {"method": "drpa"},
        f"{WITHOUT_PAIRS} properties polarizability os_scale dispersion kappa reference grid",
    ),
    "dRPA of a functional": (
        {"method": "drpa", "xc": "pbe0"},
        f"{WITHOUT_PAIRS} properties polarizability os_scale dispersion kappa reference",
    ),
    "functional alone": (
        {"method": "ks", "xc": "pbe0"},
        "certify_fit precision transform backend frozen_core frozen_virtual auxbasis os_scale dispersion kappa reference",
    ),
    "double hybrid": ({"method": "b2plyp"}, "kappa reference xc"),
    "double hybrid by Laplace": (
        {"method": "xygj-os", "laplace": True},
        f"{WITHOUT_PAIRS} properties polarizability dispersion kappa reference xc",
    ),
    "double hybrid of one's own": (
        {"method": "custom-dh", "xc": "pbe0", "os_scale": 0.5, "ss_scale": 0.2},
        "dispersion kappa reference",
    ),
    "ROHF": ({"reference": "rohf"}, f"certify_fit stability {HARTREE_FOCK}"),
    "solvent": (
        {"solvent": "water"},
        f"certify_fit properties polarizability stability {HARTREE_FOCK}",
    ),
    "conventional SCF": ({"scf": "conventional"}, HARTREE_FOCK),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_which_options_go_together(name: str) -> None:
    """Each option with each kind of calculation: accepted, or refused under its own name or the
    other's."""
    base, expected = COMBINATIONS[name]
    refused: dict[str, set[str]] = {}
    for option, value in ASKED.items():
        try:
            options = make_options(**{"basis": "sto-3g", **base, option: value})
        except InputError as error:
            refused[option] = {one.name for one in error.message.options}
        else:
            assert getattr(options, option) == value
    assert sorted(refused) == sorted(expected.split())
    for option, named in refused.items():
        assert named & {option, *base}, option


@pytest.mark.parametrize(
    ("options", "name", "opposite", "same"),
    [
        ({}, "mp2", 1.0, 1.0),
        ({"os_scale": 1.3}, "custom-scs-mp2", 1.3, 1.0),
        ({"ss_scale": 0.0}, "custom-scs-mp2", 1.0, 0.0),
        ({"method": "scs-mp2"}, "scs-mp2", 1.2, 1 / 3),
        ({"method": "b2plyp"}, "b2plyp", 0.27, 0.27),
        ({"method": "b2plyp", "os_scale": 0.4}, "custom-dh", 0.4, 0.27),
        ({"method": "b2plyp", "ss_scale": 0.0}, "custom-dh", 0.27, 0.0),
        (
            {"method": "custom-dh", "xc": "pbe", "os_scale": 0.4, "ss_scale": 0.1},
            "custom-dh",
            0.4,
            0.1,
        ),
        ({"method": "ks", "xc": "pbe"}, "ks", 0.0, 0.0),
    ],
)
def test_factors_of_the_correlation_energy(
    options: dict[str, Any], name: str, opposite: float, same: float
) -> None:
    """The published ones unless given; giving one leaves the other unchanged."""
    method = make_options(**{"basis": "sto-3g", **options}).correlation
    assert (method.name, method.opposite_spin, method.same_spin) == (
        name,
        pytest.approx(opposite),
        pytest.approx(same),
    )


FLUORIDE = Molecule(("F", "H"), np.array([[0.1, 0.0, 0.2], [0.3, 0.6, 1.9]]))
STRETCHED = Molecule(("Li", "Li"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 9.0]]))  # gap 0.15 Eh


SOS = {"method": "sos-mp2"}
OWN = {"method": "custom-dh", "os_scale": -0.4, "ss_scale": 0.0}
OF_TRANSFORM: list[tuple[Molecule, dict[str, Any]]] = [
    (WATER, {**SOS, "frozen_core": "1", "frozen_virtual": 2}),
    (RADICAL, {**SOS, "tolerance": 1e-9}),
    (RADICAL, {**SOS, "reference": "rohf"}),
    (STRETCHED, {**SOS, "auxbasis": "Auto"}),
    (FLUORIDE, {**SOS, "basis": "aug-cc-pvdz", "auxbasis": None, "threads": 2}),
    (RADICAL, {"method": "xygj-os", "frozen_core": 1, "basis": "sto-3g"}),
    (RADICAL, {**OWN, "xc": "camb3lyp", "basis": "sto-3g"}),
]


@pytest.mark.usefixtures("coarse_grid_error")
@pytest.mark.parametrize(("molecule", "options"), OF_TRANSFORM, ids=str)
def test_laplace_is_the_sum_over_pairs(molecule: Molecule, options: dict[str, Any]) -> None:
    """SOS-MP2, and double hybrids of opposite spin."""
    settings = EXACT | options
    transformed = {"method": "sos-laplace"}
    if options["method"] != "sos-mp2":
        settings |= {"grid": "0", "tolerance": 1e-8}
        transformed = {"laplace": True}
    tolerance = settings.get("tolerance", 1e-7)
    tiles = dfmp2.run(molecule, **settings)
    found = dfmp2.run(molecule, **settings | transformed)
    assert found.quadrature is not None and found.grid_certificate is None
    assert found.mean_field_energy == pytest.approx(tiles.mean_field_energy, abs=1e-10)
    assert abs(found.correlation_energy - tiles.correlation_energy) <= (
        found.quadrature.error + 1e-11
    )
    assert 0.005 * tolerance < found.quadrature.error <= tolerance  # one less is too few
    assert abs(found.total_energy - tiles.total_energy) <= tolerance
    assert np.isnan(found.components[0]) and found.same_spin_correlation_energy == 0.0
    with pytest.raises(InputError, match="which has no pair energies"):
        dfmp2.derive(found, frozen_core=2)


def test_a_misjudged_size_of_the_energy_is_made_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplace, "_size", lambda *given: 1e-6)
    found = dfmp2.run(WATER, method="sos-laplace", **EXACT)
    assert found.quadrature is not None and 2e-9 < found.quadrature.error <= 1e-7


@pytest.mark.parametrize(("molecule", "core"), [(WATER, 0), (RADICAL, 1)], ids=str)
def test_rpa_is_that_of_pyscf_on_the_same_orbitals(molecule: Molecule, core: int) -> None:
    ours = dfmp2.run(molecule, method="drpa", frozen_core=core, tolerance=1e-10, **EXACT)
    reference = ours.reference
    mole = gto.loads(ours.mole_json)
    mf = scf.UHF(mole)
    arrays = reference.mo_coeff, reference.mo_energy, 1.0 * (reference.mo_occ > 0)
    mf.mo_coeff, mf.mo_energy, mf.mo_occ = (np.concatenate([x[:1], x[-1:]]) for x in arrays)
    mf.e_tot, mf.converged = ours.scf_total_energy, True
    theirs = pyscf_urpa.URPA(mf, frozen=([0] * core, [0] * core))
    theirs.with_df = df.DF(mole, auxbasis=fitting_data(ours.molecule, ours.mp2_fitting))
    theirs.verbose = 0
    theirs.kernel(nw=120)
    assert ours.quadrature is not None and ours.quadrature.error <= 1e-10
    assert ours.rpa_correlation_energy == pytest.approx(theirs.e_corr, abs=1e-9)


def test_one_electron_has_no_pair_of_opposite_spins() -> None:
    atom = Molecule(("H",), np.zeros((1, 3)), multiplicity=2)
    assert dfmp2.run(atom, "cc-pvdz", method="sos-laplace").correlation_energy == 0.0
