"""Optimisations and frequencies: against other starts, second differences, PySCF's analysis, and wrong requests."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyscf import gto, scf
from pyscf.hessian import thermo

from dfmp2.errors import Dfmp2Error
from dfmp2.gradients.gradient import mp2_gradient
from dfmp2.molecule.elements import internal_coordinate, mass
from dfmp2.molecule.files import read_frames
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.xyz import read_xyz
from dfmp2.mp2.energy import mp2_energy
from dfmp2.options import make_options
from dfmp2.output.study import read_study
from dfmp2.progress import Silent
from dfmp2.studies.frequencies import Conditions, harmonic_frequencies
from dfmp2.studies.optimize import Constraints, Search, optimize_geometry
from dfmp2.studies.runs import Keeper
from dfmp2.studies.vibrations import masses, symmetry_number, thermochemistry, vibrations
from tests.conftest import Runner, listing, succeed
from tests.faults import EACH, Stopping

SETS = {"basis": "6-31g", "scf_auxbasis": "def2-universal-jkfit", "auxbasis": "def2-svp-ri"}
EXACT = make_options(**SETS, precision="fp64", stability="off", threads=1)
WATER = Molecule(("O", "H", "H"), [[0, 0, 0.22], [0, 1.43, -0.88], [0.1, -1.5, -0.8]])
OTHER = Molecule(("O", "H", "H"), [[0, 0.3, 0], [0.2, 1.9, -0.7], [-0.9, -0.9, 1.2]])
FLUORIDE = Molecule(("F", "H"), [[0, 0, 0], [0.4, 0.9, 1.5]])
COMMAND = (
    "--basis",
    "6-31g",
    "--scf-auxbasis",
    "def2-universal-jkfit",
    "--auxbasis",
    "def2-svp-ri",
)
COMMAND += ("--stability", "off", "--threads", "1")


def optimized(molecule, search, options=EXACT):
    return optimize_geometry(molecule, options, search, listener=Silent())


def coordinate(study, *atoms):
    return internal_coordinate(study.arrays["final_geometry"].value[[atom - 1 for atom in atoms]])


# --- optimisations -----------------------------------------------------------------------------------------


def test_two_starts_come_to_the_same_minimum():
    first, second = (optimized(start, Search(convergence="gau_tight")) for start in (WATER, OTHER))
    assert first.complete and first.settings["steps"] == len(first.runs) - 1
    energies = [study.values["optimized_total_energy"].value for study in (first, second)]
    assert energies[0] == pytest.approx(energies[1], abs=1e-7)
    assert energies[0] < min(run.mp2_total_energy for run in first.runs.values()) + 1e-8
    for atoms in ((1, 2), (1, 3), (2, 1, 3)):
        assert coordinate(first, *atoms) == pytest.approx(coordinate(second, *atoms), abs=1e-4)
    runs = list(first.runs.values())
    assert np.abs(runs[-1].gradient.mp2_total_gradient).max() < 1.5e-5
    assert (
        runs[-1].reference.cycles < runs[0].reference.cycles
    )  # from the orbitals of the step before


def test_what_is_left_of_passed_steps(folder: Path) -> None:
    """Densities of the last geometry alone, in memory and in the file; a start that is converged takes no step."""
    study = optimize_geometry(FLUORIDE, EXACT, keeper=Keeper(folder / "x.h5"), listener=Silent())
    for found in (study, read_study(folder / "x.h5")):
        *passed, last = (run.properties.relaxed_density.shape for run in found.runs.values())
        assert set(passed) == {(1, 0, 0)} and last == (1, 11, 11)
        assert all(abs(run.properties.relaxed_dipole).max() > 0.5 for run in found.runs.values())
    again = optimized(study.last, Search())
    assert "the next step would move no atom by more than" in " ".join(again.notes)
    assert again.complete and again.settings["steps"] == 0
    assert again.values["optimized_total_energy"].value == pytest.approx(
        study.values["optimized_total_energy"].value, abs=3e-8
    )


def test_torsions_are_soft():
    """Methylamine takes 9 steps with the force constants of torsions that geomeTRIC has."""
    atoms = "C .15 1.48 .1; N 0 -1.51 .14; H -1.97 2.34 .11; H -.88 -2.15 1.45; H -.96 -2.1 -1.53; H 1.14 2.18 1.77"
    rows = [row.split() for row in f"{atoms}; H 1.17 2.18 -1.77".split(";")]
    start = Molecule([row[0] for row in rows], [[float(x) for x in row[1:]] for row in rows])
    assert optimized(start, Search(), replace(EXACT, basis="sto-3g")).settings["steps"] <= 6


def test_the_scaled_energy_is_minimised():
    options = replace(EXACT, os_scale=0.5, ss_scale=2.0)
    study = optimized(FLUORIDE, Search(), options)
    length = coordinate(study, 1, 2)

    def energy(bond):
        run = mp2_energy(
            Molecule(("F", "H"), [[0, 0, 0], [0, 0, bond]]), options, listener=Silent()
        )
        return run.scf_total_energy + run.scaled_mp2_correlation_energy

    assert energy(length) == pytest.approx(study.values["optimized_total_energy"].value, abs=1e-8)
    assert energy(length) < min(energy(length - 0.01), energy(length + 0.01))


def test_constrained_water_as_in_psi4():
    """Psi4 (tests/pytests/test_geometric.py, commit 886caaab): DF-MP2/cc-pVDZ with geomeTRIC, angle of 90 degrees."""
    start = Molecule(("O", "H", "H"), np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]]) / 0.52917721092)
    search = Search(Constraints(fixed=[("angle", "2,1,3", "90")]))
    study = optimized(start, search, make_options(basis="cc-pvdz", threads=1))
    assert study.values["optimized_total_energy"].value == pytest.approx(
        -76.22711819393223, abs=1e-6
    )
    assert np.degrees(coordinate(study, 2, 1, 3)) == pytest.approx(90, abs=1e-4)
    assert "angle 2-1-3 = 90.0000 degrees" in " ".join(study.notes)
    assert (
        study.table["max_gradient"].values[-1]
        < 4.5e-4
        < list(study.runs.values())[-1].gradient.largest
    )


def test_a_frozen_bond():
    study = optimized(WATER, Search(Constraints([("bond", "1,3")])))
    assert coordinate(study, 1, 3) == pytest.approx(
        internal_coordinate(WATER.coordinates[[0, 2]]), abs=1e-5
    )
    assert abs(coordinate(study, 1, 2) - coordinate(study, 1, 3)) > 1e-3


@pytest.mark.parametrize(
    ("constraints", "bond"),
    [
        (Constraints(fixed=[("bond", "1,2", "1.8")], units="bohr"), 1.8),
        (
            Constraints(text="$set\ndistance 1 2 0.95 # angstrom\n", units="bohr"),
            0.95 / 0.52917721092,
        ),
    ],
)
def test_lengths_of_options_and_of_a_file(constraints, bond):
    """An option is in the unit of the molecule's file, geomeTRIC's file in angstrom."""
    assert coordinate(optimized(FLUORIDE, Search(constraints)), 1, 2) == pytest.approx(
        bond, abs=1e-5
    )


def test_stopped_again_and_again(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same way through the stored steps, to the minimum of one that was never stopped; also with more steps."""
    (folder / "h.xyz").write_text("2\n\nH 0 0 0\nH 0.2 0.3 0.6\n")
    command = ("optimize", "h.xyz", *COMMAND, "--precision", "fp64", "--json")
    whole = succeed(call(*command)).json
    check_files_of(whole)
    monkeypatch.setenv(EACH, "1000")
    stops = 0
    with Stopping(every=9):
        while (done := call(*command, "--output", "x.h5", "--resume")).code == 75:
            stops += 1
            assert stops < 20
    found = succeed(done).json
    assert stops >= 2 and "step 1: finished before" in done.err
    assert found["optimized_total_energy"] == pytest.approx(
        whole["optimized_total_energy"], abs=1e-7
    )
    assert found["status"] == "complete" and list(found["runs"]) == list(whole["runs"])
    assert not (folder / "x.h5.checkpoint").exists()

    short = call(*command, "--max-steps", "1", "--output", "y.h5")
    assert (
        short.code == 4 and "no minimum after 1 step: allow more with --max-steps" in short.message
    )
    assert short.json["status"] == "incomplete" and len(read_frames("y.trajectory.xyz")) == 2
    (folder / "z.h5").write_bytes((folder / "y.h5").read_bytes())
    longer = succeed(call(*command, "--output", "y.h5", "--resume")).json
    assert longer["final_geometry"] == whole["final_geometry"]
    looser = call(
        *command, "--precision", "mixed", "--scf-conv-tol", "1e-9", "--output", "z.h5", "--resume"
    )
    assert "step 1: finished before" in looser.err  # what an error half way advises to change
    assert succeed(looser).json["optimized_total_energy"] == pytest.approx(
        whole["optimized_total_energy"], abs=1e-7
    )
    done = call(*command, "--precision", "mixed", "--output", "y.h5", "--resume")
    assert (
        done.code == 3
        and "run step-000 in y.h5 is another calculation (different precision" in done.message
    )
    other = call(*command, "--frozen-virtual", "1", "--output", "y.h5", "--resume")
    assert (
        other.code == 3
        and "run step-000 in y.h5 is another calculation (different frozen_virtual" in other.message
    )

    assert succeed(call("show", "h.optimization.h5", "--json")).json == whole
    assert "content hashes verified" in succeed(call("show", "h.optimization.h5", "--verify")).out
    succeed(call("report", "h.optimization.h5", "-o", "page.html"))
    assert "Convergence of the geometry" in (folder / "page.html").read_text()
    again = call(*command)
    assert again.code == 3 and "h.optimization.h5 already exists" in again.message


def test_an_scf_that_fails_half_way(call: Runner, folder: Path) -> None:
    """Its step is named, the steps before are kept, and with more cycles they are not computed again."""
    succeed(call("run", "h2o.xyz", *COMMAND, "--output", "start.h5"))
    command = (
        "optimize",
        "h2o.xyz",
        *COMMAND,
        "--scf-from",
        "start.h5",
        "--max-steps",
        "1",
        "--output",
        "x.h5",
    )
    failed = call(*command, "--scf-max-cycles", "5")
    assert failed.code == 4 and "step 1: the SCF did not converge in 5 cycles" in failed.message
    assert "(finished runs are in x.h5; the same command goes on)" in failed.message
    assert list(read_study(folder / "x.h5").runs) == ["step-000"]
    going_on = call(*command, "--resume")
    assert going_on.code == 4 and "step 0: finished before" in going_on.err
    assert list(read_study(folder / "x.h5").runs) == ["step-000", "step-001"]


def check_files_of(found):
    """Final geometry and trajectory; the geometry is stationary for the same method alone."""
    last, frames = (
        read_xyz("h.optimization.xyz").molecule,
        read_frames("h.optimization.trajectory.xyz"),
    )
    assert last.coordinates == pytest.approx(np.array(found["final_geometry"]), abs=1e-10)
    assert [frame.natom for frame in frames] == [2] * (found["steps"] + 1)
    assert frames[0].coordinates == pytest.approx(read_xyz("h.xyz").molecule.coordinates, abs=1e-10)
    alone = mp2_gradient(last, EXACT, listener=Silent()).gradient
    first, *_, converged = found["table"]["max_gradient"]
    assert np.abs(alone).max() < 4.5e-4 and converged < 4.5e-4 < first


@pytest.mark.slow
def test_a_transition_state():
    """Ammonia from a nearly planar start: the planar saddle point of its inversion, with one imaginary mode."""
    ring = [[1.9 * np.cos(a), 1.9 * np.sin(a), 0.15] for a in (0, 2 * np.pi / 3, 4 * np.pi / 3)]
    start = Molecule(("N", "H", "H", "H"), [[0, 0, 0], *ring])
    study = optimized(start, Search(transition_state=True, convergence="gau_tight"))
    place = study.arrays["final_geometry"].value
    normal = np.cross(place[2] - place[1], place[3] - place[1])
    assert abs((place[0] - place[1]) @ normal) / np.linalg.norm(normal) < 1e-3
    modes = harmonic_frequencies(replace(start, coordinates=place), EXACT, listener=Silent())
    assert [value < 0 for value in modes.table["wavenumber"].values] == [True] + [False] * 5
    (named,) = (note for note in modes.notes if "IMAGINARY" in note)
    assert named.startswith("IMAGINARY mode 1: ") and named.partition("mostly of ")[2][:1] in "NH"


# --- frequencies -------------------------------------------------------------------------------------------


def test_hydrogen_fluoride_as_in_cfour():
    """Conventional MP2/cc-pVDZ with frozen core (QCEngine, standard_suite_ref.py, commit a97b4695).

    Density fitting changes the Hessian by 1e-4. A = 974.88 (d mu / d r)^2 / m.
    """
    molecule = Molecule(("H", "F"), [[0, 0, -1.64558411], [0, 0, 0.08729475]])
    options = make_options(basis="cc-pvdz", frozen_core="auto", scf="conventional", threads=1)
    study = harmonic_frequencies(
        molecule, options, Conditions(allow_gradient=True), listener=Silent()
    )
    signs = np.array([[1, -1], [-1, 1]])
    expected = np.kron(signs, np.diag([-0.00183193, -0.00183193, 0.64212587]))
    assert study.arrays["hessian"].value == pytest.approx(expected, abs=2e-4)
    reduced = mass("F") * mass("H") / (mass("F") + mass("H"))
    table = {name: column.values for name, column in study.table.items()}
    wavenumber = 219474.6313632 * np.sqrt(0.64212587 / reduced / 1822.888486209)
    assert len(study.runs) == 13 and table["wavenumber"] == pytest.approx([wavenumber], abs=1.0)
    moving = mass("F") * mass("H") * (mass("F") + mass("H")) / (mass("F") ** 2 + mass("H") ** 2)
    assert table["reduced_mass"] == pytest.approx([moving], rel=1e-6)
    stretched = [
        replace(molecule, coordinates=[[0, 0, -1.64558411], [0, 0, 0.08729475 + d]])
        for d in (-0.01, 0.01)
    ]
    dipoles = [
        mp2_gradient(one, options, listener=Silent()).properties.relaxed_dipole for one in stretched
    ]
    slope = (dipoles[1] - dipoles[0])[2] / 0.02
    assert table["ir_intensity"] == pytest.approx([974.88 * slope**2 / reduced], rel=2e-3)
    assert study.settings["rigid_motions_removed"] == 5 and study.settings["symmetry_number"] == 1
    zero_point = study.values["zero_point_energy"].value
    assert zero_point == pytest.approx(table["wavenumber"][0] / 2 / 219474.6313632, rel=1e-8)
    assert "NO STATIONARY POINT" in " ".join(study.notes)


@pytest.mark.slow
def test_water_as_in_psi4():
    """Published frequencies of DF-MP2 (psi4/psi4: tests/dfmp2-freq1 and dfmp2-freq2, commit 27e1b15f), one decimal."""
    bond, angle = 0.958 / 0.52917721067, np.radians(104.4776)
    ends = [[0, 0, 0], [bond, 0, 0], [bond * np.cos(angle), bond * np.sin(angle), 0]]
    options = make_options(basis="cc-pvdz", frozen_core="auto", threads=1)
    conditions = Conditions(allow_gradient=True)
    study = harmonic_frequencies(
        Molecule(("O", "H", "H"), ends), options, conditions, listener=Silent()
    )
    assert study.table["wavenumber"].values == pytest.approx([1635.3, 3933.1, 4071.9], abs=0.2)


@pytest.mark.parametrize("name", ["water", "carbon dioxide", "hydrogen peroxide"])
def test_modes_as_in_pyscf(name):
    """Of a Hartree-Fock Hessian with the same masses: bent, linear, without symmetry; any place and direction."""
    atoms = {
        "water": "O 0 0 0.12; H 0 0.76 -0.47; H 0 -0.76 -0.47",
        "carbon dioxide": "C 0 0 0; O 0.6 0.7 0.7; O -0.6 -0.7 -0.7",
        "hydrogen peroxide": "O 0 0.7 0; O 0 -0.7 0; H 0.9 0.9 0.1; H -0.3 -0.9 0.8",
    }[name]
    mole = gto.M(atom=atoms, basis="sto-3g", verbose=0)
    hessian = scf.RHF(mole).run(conv_tol=1e-11).Hessian().kernel()
    molecule = Molecule([mole.atom_symbol(k) for k in range(mole.natm)], mole.atom_coords())
    flat = hessian.transpose(0, 2, 1, 3).reshape(3 * mole.natm, -1)
    found = vibrations(molecule, flat, np.zeros((3 * mole.natm, 3)))
    expected = thermo.harmonic_analysis(mole, hessian, mass=masses(molecule), imaginary_freq=False)
    assert found.wavenumber == pytest.approx(expected["freq_wavenumber"], abs=0.01)
    assert found.reduced_mass == pytest.approx(expected["reduced_mass"], rel=1e-5)
    assert found.force_constant == pytest.approx(expected["force_const_dyne"], rel=1e-5, abs=1e-4)
    assert np.linalg.norm(found.displacements, axis=(1, 2)) == pytest.approx(1)
    held = vibrations(molecule.in_field([[0, 0, 40, 0.1]]), flat, np.zeros((3 * mole.natm, 3)))
    free = thermo.harmonic_analysis(
        mole, hessian, False, False, mass=masses(molecule), imaginary_freq=False
    )
    assert held.removed == 0 and held.wavenumber == pytest.approx(free["freq_wavenumber"], abs=0.01)


BODIES = {
    "water": ("O 0 0 0.12; H 0 0.76 -0.47; H 0 -0.76 -0.47", 2),
    "ammonia": ("N 0 0 0.1; H 0.94 0 -0.27; H -0.47 0.814 -0.27; H -0.47 -0.814 -0.27", 3),
    "methane": ("C 0 0 0; H .63 .63 .63; H -.63 -.63 .63; H -.63 .63 -.63; H .63 -.63 -.63", 12),
    "hydrogen fluoride": ("F 0 0 0; H 0.9 0 0", 1),
    "carbon dioxide": ("C 0 0 0; O 0.6 0.7 0.7; O -0.6 -0.7 -0.7", 2),
    "hypofluorous acid": ("O 0 0 0; F 1.44 0 0; H -0.13 0.96 0", 1),
    "octahedron": (
        "S 0 0 0; F 1.6 0 0; F -1.6 0 0; F 0 1.6 0; F 0 -1.6 0; F 0 0 1.6; F 0 0 -1.6",
        24,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_symmetry_numbers(name):
    """Also where an optimisation has left some noise."""
    atoms, expected = BODIES[name]
    mole = gto.M(atom=atoms, basis="sto-3g", verbose=0, spin=None)
    noise = np.random.default_rng(3).uniform(-2e-3, 2e-3, (mole.natm, 3))
    molecule = Molecule([mole.atom_symbol(k) for k in range(mole.natm)], mole.atom_coords() + noise)
    assert symmetry_number(molecule) == expected


@pytest.mark.parametrize(
    "atoms", ["F 0 0 0; F 0 0 1.41", "P 0 0 0.5; F 1.4 0 0; F -0.7 1.2124 0; F -0.7 -1.2124 0"]
)
def test_thermochemistry_as_in_pyscf(atoms):
    """Of elements with one isotope, whose average mass PySCF has as well, and with its symmetry number."""
    mole = gto.M(atom=atoms, basis="sto-3g", verbose=0)
    molecule = Molecule([mole.atom_symbol(k) for k in range(mole.natm)], mole.atom_coords())
    wavenumbers = np.array([-300.0, 340.0, 480.0, 1200.0])

    class Field:
        mol, e_tot = mole, -10.0

    roots = wavenumbers / 219474.6313632 * np.sqrt(1822.888486209)
    expected = thermo.thermo(Field, roots, 400.0, 2e5)
    found = thermochemistry(molecule, -10.0, wavenumbers, 400.0, 2e5, expected["sym_number"][0])
    for name, theirs in (
        *(
            ("zero_point_energy", "ZPE"),
            ("total_energy_at_0_kelvin", "E_0K"),
            ("internal_energy", "E_tot"),
        ),
        *(
            ("enthalpy", "H_tot"),
            ("gibbs_energy", "G_tot"),
            ("entropy", "S_tot"),
            ("heat_capacity", "Cp_tot"),
        ),
    ):
        unit = 2625499.64 if "K)" in found[name][1] else 1.0
        assert found[name][0] == pytest.approx(expected[theirs][0] * unit, rel=1e-7, abs=1e-9)


def test_frequencies_that_go_on_and_modes_for_viewers(call: Runner, folder: Path) -> None:
    """Finished gradients are not computed again; the Molden file has sections, units and order of its format."""
    command = ("frequencies", "h2.xyz", *COMMAND, "--allow-gradient", "--json", "--output", "x.h5")
    with Stopping(every=40):
        assert call(*command).code == 75
    done = call(*command, "--resume")
    whole = succeed(done).json
    assert 2 <= done.err.count("finished before") < 13 == len(whole["runs"])

    pieces = re.split(r"^\[(.+?)\](.*)$", (folder / "x.molden").read_text(), flags=re.MULTILINE)[1:]
    sections = zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)
    found = {name: (unit.strip(), text.split("\n")[1:-1]) for name, unit, text in sections}
    places = read_xyz("h2.xyz").molecule.coordinates
    unit, atoms = found["Atoms"]
    assert unit == "AU" and [row.split()[:3] for row in atoms] == [["H", "1", "1"], ["H", "2", "1"]]
    for rows, first in ((atoms, 3), (found["FR-COORD"][1], 1)):
        assert np.array([row.split()[first:] for row in rows], float) == pytest.approx(
            places, abs=1e-9
        )
    assert [float(row) for row in found["FREQ"][1]] == pytest.approx(
        whole["table"]["wavenumber"], abs=1e-5
    )
    assert [float(row) for row in found["INT"][1]] == pytest.approx(
        whole["table"]["ir_intensity"], abs=1e-5
    )
    title, *mode = found["FR-NORM-COORD"][1]
    mode = np.array([row.split() for row in mode], float)
    bond = (places[1] - places[0]) / np.linalg.norm(places[1] - places[0])
    assert title == "vibration 1" and np.abs(mode @ bond) == pytest.approx(
        np.sqrt([0.5, 0.5]), abs=1e-6
    )
    assert mode.sum(axis=0) == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
def test_workers_give_the_same_bits(call: Runner, folder: Path) -> None:
    (folder / "hf.xyz").write_text("2\n\nF 0 0 0\nH 0 0 0.94\n")
    command = ("frequencies", "hf.xyz", *COMMAND, "--allow-gradient", "--json")
    alone = succeed(call(*command, "--output", "x.h5")).json
    shared = succeed(call(*command, "--output", "y.h5", "--workers", "2")).json
    assert shared["hessian"] == alone["hessian"] and shared["table"] == alone["table"]
    assert list(shared["runs"]) == list(alone["runs"])


# --- wrong requests ----------------------------------------------------------------------------------------

WRONG = {
    "no such atom": (
        ("optimize", "h2.xyz", "--freeze", "bond", "1,3"),
        3,
        "there is no atom 3: the file has 2",
    ),
    "twice": (
        ("optimize", "h2.xyz", "--freeze", "bond", "1,1"),
        3,
        "an atom is named twice: name 2 different ones",
    ),
    "too few": (
        ("optimize", "h2o.xyz", "--set", "angle", "1,2", "90"),
        3,
        "expected 3 atom numbers",
    ),
    "kind": (
        ("optimize", "h2o.xyz", "--freeze", "length", "1,2"),
        3,
        "--freeze 'length': expected bond I,J",
    ),
    "angle": (
        ("optimize", "h2o.xyz", "--set", "angle", "2,1,3", "190"),
        3,
        "degrees above 0 and below 180",
    ),
    "number": (
        ("optimize", "h2o.xyz", "--set", "bond", "1,2", "long"),
        3,
        "a length above 0 in angstrom",
    ),
    "twice constrained": (
        ("optimize", "h2o.xyz", "--set", "angle", "2,1,3", "90", "--freeze", "angle", "3,1,2"),
        *(3, "angle 2,1,3 is constrained twice"),
    ),
    "in the file as well": (
        ("optimize", "h2o.xyz", "--set", "bond", "1,2", "1", "--constraints", "bond.txt"),
        *(3, "bond 1,2 is constrained twice"),
    ),
    "held": (
        ("optimize", "h2o.xyz", "--freeze", "xyz", "1-2", "--set", "bond", "1,2", "1.2"),
        *(3, "bond 1,2 is constrained, and all its atoms are held by xyz"),
    ),
    "scan": (
        ("optimize", "h2o.xyz", "--constraints", "scan.txt"),
        3,
        "$scan asks for several optimisations",
    ),
    "format": (
        ("optimize", "h2o.xyz", "--constraints", "wrong.txt"),
        3,
        "geomeTRIC cannot take the constraints",
    ),
    "one atom": (("optimize", "he.xyz"), 3, "He is one atom: there is nothing to optimise"),
    "ghosts": (("optimize", "crowd.xyz"), 3, "ghost atoms"),
    "steps": (
        ("optimize", "h2.xyz", "--max-steps", "0"),
        3,
        "--max-steps 0: expected a whole number from 1 to 499",
    ),
    "fewer": (
        ("optimize", "h2.xyz", "--max-steps", "-1"),
        3,
        "--max-steps -1: expected a whole number",
    ),
    "preset": (("optimize", "h2.xyz", "--convergence", "tight"), 2, "'tight' is not one of"),
    "folder": (("optimize", "h2.xyz", "--output", "nowhere/x.h5"), 3, "nowhere"),
    "over its input": (("optimize", "h2.xyz", "--xyz", "h2.xyz"), 3, "h2.xyz"),
    "no vibrations": (("frequencies", "he.xyz"), 3, "He is one atom and has no vibrations"),
    "temperature": (
        ("frequencies", "h2.xyz", "--temperature", "0"),
        3,
        "--temperature 0.0: expected a number above 0",
    ),
    "displacement": (("frequencies", "h2.xyz", "--displacement", "0.5"), 3, "up to 0.1 bohr"),
    "symmetry": (
        ("frequencies", "h2.xyz", "--symmetry-number", "0"),
        3,
        "a whole number from 1 to 60",
    ),
    "not stationary": (("frequencies", "stretched.xyz"), 5, "the gradient of an atom is"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests(name, call: Runner, folder: Path) -> None:
    """Named before anything is computed, and nothing is left; but for the gradient, which has to be computed."""
    command, code, said = WRONG[name]
    (folder / "he.xyz").write_text("1\n\nHe 0 0 0\n")
    (folder / "stretched.xyz").write_text("2\n\nH 0 0 0\nH 0 0 0.9\n")
    (folder / "scan.txt").write_text("$scan\ndistance 1 2 0.9 1.0 3\n")
    (folder / "wrong.txt").write_text("$freeze\nbend 1 2\n")
    (folder / "bond.txt").write_text("$set\ndistance 1 2 0.95\n")
    before = listing(folder)
    done = call(*command, *COMMAND)
    assert done.code == code and said in done.message, done.err
    if code == 3:
        assert listing(folder) == before and "SCF" not in done.err


def test_without_geometric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geometric", None)
    with pytest.raises(
        Dfmp2Error, match=r"needs geomeTRIC .*pip install 'dfmp2\[opt\]'"
    ) as refused:
        optimized(WATER, Search())
    assert refused.value.exit_code == 3
