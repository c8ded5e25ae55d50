"""Moments, charges, spin populations and polarizabilities, against PySCF's functions and finite
fields."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pyscf import gto, scf
from scipy.linalg import sqrtm

import dfmp2
from dfmp2.gradients.density import in_fields
from dfmp2.gradients.gradient import mp2_gradient, mp2_properties
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.properties import DENSITIES
from dfmp2.options import make_options
from dfmp2.progress import Silent
from dfmp2.units import BOHR_PER_ANGSTROM, DEBYE
from tests.conftest import Heard, succeed
from tests.test_gradients import EXACT, FOUR_CENTRE, SHORT, SMALL, WATER
from tests.test_progress import Clock

DEF2 = {"basis": "def2-svp", "scf_auxbasis": None, "auxbasis": None}
CASES = {
    "rhf, core and virtuals frozen, scaled": (
        WATER, {"frozen_core": "1", "frozen_virtual": 2, "os_scale": 1.2, "ss_scale": 0.3},
    ),
    "uhf, frozen core": (WATER.with_state(1, 2), {"frozen_core": "1"}),
    "ghost": (replace(WATER, symbols=("H", "F", "H"), ghost=(False, False, True)), {}),
    "charges, four-centre": (WATER.in_field([[0, 0.3, 4.2, 0.5], [1, -5, 0, -0.8]]), FOUR_CENTRE),
    "core potential": (Molecule(("H", "I"), [[0.1, 0, 0.2], [0, 0.3, 3.2]]), DEF2),
}  # fmt: skip


def test_relaxed_densities_are_as_symmetric_as_those_of_the_reference() -> None:
    """ClO has one electron less in one of two degenerate orbitals. Both its densities have the
    planes of that orbital, and no orbital holds more than two electrons."""
    molecule = Molecule(("Cl", "O"), [[0.54, -1.08, -0.45], [-0.72, 1.44, 0.6]]).with_state(0, 2)
    result = mp2_properties(molecule, make_options(basis="def2-svp", threads=1), listener=Heard())
    reference, _, relaxed = result.properties.quadrupole
    values, axes = np.linalg.eigh(reference)
    assert np.diff(values).min() > 0.05
    turned = axes.T @ relaxed @ axes
    assert np.abs(turned - np.diag(np.diag(turned))).max() < 1e-4
    occupations = result.properties.relaxed_occupations
    assert occupations[-1] > -1e-3 and occupations[0] < 2.001


def test_moments_of_a_broken_symmetry_do_not_depend_on_the_convergence_of_the_scf() -> None:
    """CH, whose UHF solution has a dipole moment across the axis, turned in any direction."""
    molecule = Molecule(("C", "H"), [[0, 0, 0], [0.6, 0, 2.1]]).with_state(0, 2)
    axis = molecule.coordinates[1] / np.linalg.norm(molecule.coordinates[1])
    across = []
    for tolerance in (1e-9, 1e-13):
        options = make_options(basis="6-31g", threads=1, precision="fp64", scf_conv_tol=tolerance)
        own = mp2_properties(molecule, options, listener=Silent()).properties
        assert np.linalg.norm(np.cross(own.scf_dipole, axis)) > 0.03
        across.append(np.linalg.norm(np.cross(own.relaxed_dipole, axis)))
    assert across[0] == pytest.approx(across[1], abs=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_densities_are_those_of_the_gradient_and_give_what_pyscf_makes_of_them(name):
    molecule, special = CASES[name]
    options = make_options(**SMALL | EXACT | special)
    result = mp2_properties(molecule, options, listener=Silent())
    own, proof = result.properties, result.gradient_certificate
    assert result.gradient is None and proof.translation is None
    assert proof.passed, proof.failures
    expected = mp2_gradient(molecule, options, listener=Silent())
    np.testing.assert_allclose(own.relaxed_density, expected.properties.relaxed_density, atol=1e-8)
    assert proof.three_center_difference == pytest.approx(
        expected.certificate.three_center_difference, abs=1e-11
    )

    mole = gto.Mole.loads(result.mole_json)
    c, n = result.reference.mo_coeff, result.reference.mo_occ
    reference = np.einsum("smi,si,sni->smn", c, n > 0, c)
    root = sqrtm(mole.intor("int1e_ovlp"))
    owners = np.array([atom for atom, *_ in mole.ao_labels(fmt=None)])

    def populations(density):
        return np.bincount(owners, np.diag(root @ density @ root), minlength=mole.natm)

    assert np.isclose(own.lowdin_charges.sum(axis=1), molecule.charge, atol=1e-9).all()
    for row, density in enumerate([reference, own.unrelaxed_density, own.relaxed_density]):
        given = 2 * density[0] if len(c) == 1 else density
        total = np.atleast_3d(given.T).sum(axis=2)
        dipole = scf.hf.dip_moment(mole, total, unit="au", verbose=0)
        traceless = 1.5 * own.quadrupole[row] - 0.5 * np.trace(own.quadrupole[row]) * np.eye(3)
        theirs = {
            "dipole": (own.dipole, dipole),
            "mulliken": (own.mulliken_charges, scf.hf.mulliken_pop(mole, total, verbose=0)[1]),
            "lowdin": (own.lowdin_charges, mole.atom_charges() - populations(total)),
        }
        if len(c) == 2:
            spin = scf.uhf.mulliken_spin_pop(mole, given, verbose=0)[1]
            theirs["spin"] = own.mulliken_spin_populations, spin
            theirs["lowdin spin"] = own.lowdin_spin_populations, populations(given[0] - given[1])
        for what, (ours, numbers) in theirs.items():
            np.testing.assert_allclose(
                ours[row], numbers, atol=1e-9, err_msg=f"{what}, {DENSITIES[row]}"
            )
        quadrupole = scf.hf.quad_moment(mole, total, unit="AU", origin=np.zeros(3), verbose=0)
        np.testing.assert_allclose(traceless, quadrupole, atol=1e-9)
        # Its trace, from the integrals of r^2.
        squares = np.einsum("a,ax,ax", mole.atom_charges(), mole.atom_coords(), mole.atom_coords())
        trace = squares - np.vdot(mole.intor("int1e_r2"), total)
        assert np.trace(own.quadrupole[row]) == pytest.approx(trace, abs=1e-9)


def test_psi4_prints_the_same_numbers():
    """Psi4 1.3.2: properties("mp2") with opdm_relax, DF-MP2/cc-pVDZ, SCF to 1e-11 Eh; to all digits
    it prints."""
    own = dfmp2.run(WATER, "cc-pvdz", properties=True, listener=Silent(), **EXACT).properties
    angstrom = 1 / BOHR_PER_ANGSTROM
    assert own.relaxed_dipole == pytest.approx([0.0354, -0.0231, -0.7514], abs=6e-5)
    assert np.diag(own.quadrupole[2]) * DEBYE * angstrom == pytest.approx(
        [-7.0787, -4.1176, -6.0818], abs=1e-4
    )
    off_diagonal = own.quadrupole[2][[0, 0, 1], [1, 2, 2]] * DEBYE * angstrom
    assert off_diagonal == pytest.approx([-0.1033, -0.0548, -0.0443], abs=1e-4)
    assert own.mulliken_charges[2] == pytest.approx([-0.29340, 0.14522, 0.14818], abs=6e-6)
    assert own.lowdin_charges[2] == pytest.approx([-0.08378, 0.03944, 0.04434], abs=6e-6)
    assert own.relaxed_occupations[2:9] == pytest.approx(
        [1.974, 1.971, 1.969, 0.023, 0.021, 0.017, 0.011], abs=6e-4
    )


@pytest.mark.slow
def test_the_polarizability_is_that_of_pyscf_in_fields():
    """PySCF's relaxed UHF densities, with the field added to its Hamiltonian here. RHF: `dfmp2
    validate`."""
    from pyscf.mp import dfump2_native

    from dfmp2.molecule.mole import fitting_data
    from dfmp2.planning.system import resolve, set_up_run

    molecule, field = WATER.with_state(1, 2), 0.001
    options = make_options(**SMALL | EXACT | FOUR_CENTRE, frozen_core="1", polarizability=True)
    result = mp2_properties(molecule, options, listener=Silent())
    found, system = result.polarizability, resolve(molecule, set_up_run(options, "test"), Silent())
    mole, fitting = system.mole, fitting_data(molecule, system.mp2_fitting)
    occupied = result.reference.mo_coeff * result.reference.mo_occ[:, None]

    def dipoles(strength):
        mf = scf.UHF(mole).set(verbose=0, conv_tol=1e-13, conv_tol_grad=1e-8)
        hcore = mf.get_hcore() + strength * mole.intor("int1e_r")[2]
        mf.get_hcore = lambda *_: hcore
        mf.kernel(occupied @ result.reference.mo_coeff.transpose(0, 2, 1))
        with dfump2_native.DFUMP2(mf, frozen=1, auxbasis=fitting) as theirs:
            theirs.verbose, theirs.cphf_tol = 0, 1e-12
            theirs.kernel()
            relaxed = np.asarray(theirs.make_rdm1(relaxed=True, ao_repr=True))
        return np.stack(
            [mf.dip_moment(mole, d, unit="au", verbose=0) for d in (relaxed, mf.make_rdm1())]
        )

    relaxed, reference = (dipoles(field) - dipoles(-field)) / (2 * field)
    # PySCF's relaxed UHF densities are 2e-7 off, multiplied by 1 / 2F.
    np.testing.assert_allclose(found.relaxed[:, 2], relaxed, atol=6e-4)
    np.testing.assert_allclose(found.scf[:, 2], reference, atol=1e-5)
    assert (
        found.passed
        and found.asymmetry < 1e-4
        and found.step_error < 1e-3
        and found.dipole_difference < 1e-6
    )


def test_a_polarizability_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs whose energies and dipole moments are polynomials of the field; a run takes 2 s."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    dipole, slopes = np.array([0.4, -0.7, 0.2]), np.arange(27.0).reshape(3, 3, 3) ** 2 / 7
    curvatures = np.array([3.0, 5.0, 11.0])

    def run(field: np.ndarray) -> SimpleNamespace:
        clock.wait(2.0)
        energy = -1.0 - dipole @ field - (curvatures * field**2).sum() / 2
        moments = dipole + slopes @ field
        return SimpleNamespace(total_energy=energy, properties=SimpleNamespace(dipole=moments))

    found = in_fields(dipole + [0, 3e-4, 0], lambda: run(np.zeros(3)), run, Silent())
    np.testing.assert_allclose(found.scf, slopes[0], rtol=1e-9)
    np.testing.assert_allclose(found.relaxed, slopes[2], rtol=1e-9)
    np.testing.assert_allclose(found.from_energies, curvatures, rtol=1e-6)
    assert found.dipole_difference == pytest.approx(2e-4, rel=1e-6)  # four sixths of the error
    assert (found.field, found.allowed, found.seconds) == (0.001, 0.001, 14.0)


def test_a_polarizability_that_fails_ends_with_8(call, monkeypatch):
    monkeypatch.setattr("dfmp2.gradients.density.ALLOWED", 1e-12)
    done = call("run", "h2.xyz", *SHORT[1:], "--polarizability", "--json")
    assert done.code == 8 and "asymmetric" in done.message  # by rounding
    stored = dfmp2.read("h2.dfmp2.h5").polarizability
    assert not stored.passed and done.json["polarizability"]["relaxed"] == stored.relaxed.tolist()


# --- natural orbitals and cubes -------------------------------------------------------------------


@pytest.fixture(scope="module")
def densities(tmp_path_factory):
    """Result files with densities: a closed shell with a core potential and a ghost, and a
    radical."""
    folder = tmp_path_factory.mktemp("densities")
    iodine = Molecule(
        ("H", "I", "H"), [[0.1, 0, 0.2], [0, 0.3, 3.2], [0, 3, 1]], ghost=(False, False, True)
    )
    radical = Molecule(
        ("H", "H", "H"), [[0, 0, 0.1], [0, 1.5, 1.2], [0.1, -1.9, 1.3]], multiplicity=2
    )
    for name, molecule, special in (("closed", iodine, DEF2), ("radical", radical, {})):
        result = dfmp2.run(molecule, **SMALL | EXACT | special, properties=True, listener=Silent())
        dfmp2.write(result, folder / f"{name}.h5")
    return folder


def stored(path):
    """PySCF's molecule, and the total and spin density at points for three densities, from the
    stored matrices."""
    result = dfmp2.read(path)
    mole, own = gto.Mole.loads(result.mole_json), result.properties
    c = result.reference.mo_coeff * (result.reference.mo_occ > 0)[:, None]
    matrices = zip(
        DENSITIES,
        (c @ c.transpose(0, 2, 1), own.unrelaxed_density, own.relaxed_density),
        strict=True,
    )

    def at(points, matrix):
        ao = mole.eval_gto("GTOval", points)
        return np.einsum("gm,mn,gn->g", ao, matrix, ao)

    return result, mole, dict(matrices), at


@pytest.mark.parametrize(
    ("name", "of"), [("closed", "relaxed"), ("radical", "unrelaxed"), ("radical", "relaxed")]
)
def test_natural_orbitals_of_a_molden_file_give_the_density_back(name, of, densities, call, folder):
    from pyscf.tools import molden

    natural = ("--to", "molden", "--orbitals", "natural", "--of", of, "-o", "x.molden")
    succeed(call("export", str(densities / f"{name}.h5"), *natural))
    # PySCF cannot handle a ghost's atomic number 0
    text = (folder / "x.molden").read_text().replace("\nH 3 0 ", "\nX-H 3 1 ")
    (folder / "read.molden").write_text(text)
    read, _, coeff, occupations, *_ = molden.load("read.molden")
    result, _, matrices, at = stored(densities / f"{name}.h5")
    points = np.random.default_rng(3).normal(0, 2, (200, 3))
    ao = read.eval_gto("GTOval", points)
    matrix = matrices[of].sum(axis=0) * (3 - len(matrices[of]))
    np.testing.assert_allclose(
        ((ao @ coeff) ** 2) @ occupations, at(points, matrix), atol=1e-9, rtol=1e-8
    )
    np.testing.assert_allclose(
        occupations, getattr(result.properties, f"{of}_occupations"), atol=1e-9
    )


CUBES = {  # options of a cube of the radical, and its integral or that of its square
    "density": (("--density",), 3),
    "density of the reference": (("--density", "--of", "scf"), 3),
    "spin": (("--spin",), 1),
    "beta orbital": (("--orbital", "2b"), 1),
    "natural orbital": (("--orbital", "2", "--orbitals", "natural"), 1),
}


@pytest.mark.parametrize("what", CUBES)
def test_cubes_hold_what_is_asked_for(what, densities, call):
    """As ASE reads them."""
    reader = pytest.importorskip("ase.io.cube")
    options, integral = CUBES[what]
    file = str(densities / "radical.h5")
    succeed(
        call(
            "export",
            file,
            "--to",
            "cube",
            *options,
            "--spacing",
            "0.3",
            "--margin",
            "6",
            "-o",
            "x.cube",
        )
    )
    with open("x.cube") as handle:
        found = reader.read_cube(handle)
    values, steps = found["data"], np.diag(found["spacing"]) * BOHR_PER_ANGSTROM
    assert found["atoms"].get_chemical_symbols() == ["H", "H", "H"]
    origin = np.array(found["origin"][:3], dtype=float) * BOHR_PER_ANGSTROM
    places = np.random.default_rng(5).integers(0, values.shape, (400, 3))
    points, given = origin + places * steps, values[tuple(places.T)]
    result, mole, matrices, at = stored(densities / "radical.h5")
    ao, total = mole.eval_gto("GTOval", points), values.sum() * steps.prod()
    if "orbital" in what:
        total = (values**2).sum() * steps.prod()
    expected = {
        "density": lambda: at(points, matrices["relaxed"].sum(axis=0)),
        "density of the reference": lambda: at(points, matrices["scf"].sum(axis=0)),
        "spin": lambda: at(points, matrices["relaxed"][0] - matrices["relaxed"][1]),
        "beta orbital": lambda: ao @ result.reference.mo_coeff[1][:, 1],
        "natural orbital": lambda: given,  # the tests of Molden files
    }[what]()
    np.testing.assert_allclose(given, expected, atol=2e-5)
    assert total == pytest.approx(integral, abs=3e-3)
    extent = np.ptp(result.molecule.coordinates, axis=0) + 2 * 6  # bohr
    assert values.shape == tuple(np.ceil(extent / 0.3).astype(int) + 1)
