"""Optimisations and frequencies against other starts, second differences and PySCF's analysis;
wrong requests."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ase import Atoms
from pyscf import gto, scf
from pyscf.hessian import thermo
from scipy.spatial.transform import Rotation

import dfmp2
from dfmp2.cli import geometry
from dfmp2.errors import Dfmp2Error, InputError, Interrupted, NumericalError
from dfmp2.gradients.gradient import mp2_gradient
from dfmp2.molecule.elements import internal_coordinate, mass
from dfmp2.molecule.files import read_frames
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import structure
from dfmp2.molecule.xyz import read_xyz
from dfmp2.mp2.energy import mp2_energy
from dfmp2.options import make_options
from dfmp2.output.reports.study import remarks
from dfmp2.output.study import MOST_RUNS, Study, read_study
from dfmp2.progress import Silent
from dfmp2.studies.composite import at_level
from dfmp2.studies.coordinate import Constraints
from dfmp2.studies.degeneracy import DEGENERATE
from dfmp2.studies.frequencies import StoredHessian, harmonic_frequencies, hessian_of
from dfmp2.studies.geometric_search import GeomeTRIC, Point, Search, quiet
from dfmp2.studies.ideal_gas import GasConditions, thermochemistry
from dfmp2.studies.internal_coordinates import torsional_constant
from dfmp2.studies.keeper import Keeper
from dfmp2.studies.optimize import Course, optimize_geometry
from dfmp2.studies.rank import read_candidate
from dfmp2.studies.task import Step, Unfinished
from dfmp2.studies.thermochemistry import make_thermochemistry
from dfmp2.studies.vibrations import (
    StationaryPoint,
    masses,
    stationary_point,
    symmetry_kept,
    symmetry_number,
    vibrations,
)
from tests.conftest import Runner, succeed
from tests.faults import EACH, finished_in_stops
from tests.ideal_gas import ideal_gas
from tests.recorded import recorded_error, recorded_failure
from tests.springs import (
    ANGLE,
    BOND,
    CHARGES,
    ON_SPRINGS,
    on_springs,
    pyramid,
    pyramids,
    second_derivatives,
    springs,
)

SETS = {"basis": "6-31g", "scf_auxbasis": "def2-universal-jkfit", "auxbasis": "def2-svp-ri"}
EXACT = make_options(**SETS, precision="fp64", stability="off", threads=1)
WATER = Molecule(("O", "H", "H"), [[0, 0, 0.22], [0, 1.43, -0.88], [0.1, -1.5, -0.8]])


def _in_angstrom(text, **state):
    rows = [row.split() for row in text.split(";")]
    places = np.array([[float(x) for x in row[1:]] for row in rows]) / 0.52917721092
    return Molecule([row[0] for row in rows], places, **state)


FLUORIDE_AND_WATER = _in_angstrom("F 0 0 0; O 2.7 0.1 0; H 1.75 0.2 0.05; H 3 0.9 0.3", charge=-1)
AMMONIA = _in_angstrom("N 0 0 .1; H .95 0 -.25; H -.5 .83 -.2; H -.45 -.82 -.25")
METHYLAMINE_CATION = _in_angstrom(
    "C 0 0 0; N 1.43 0 0; H -.4 1.02 0; H -.4 -.5 .88; H -.4 -.52 -.9; H 1.95 .85 .1; "
    "H 1.95 -.83 .2",
    charge=1,
    multiplicity=2,
)
CYCLOPROPENE = _in_angstrom(
    "C 0 .8 0; C .65 -.6 0; C -.65 -.6 0; H 0 1.4 .92; H 0 1.4 -.9; H 1.6 -1.1 0; H -1.6 -1.15 .1"
)
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


# --- optimisations --------------------------------------------------------------------------------


def test_what_is_left_of_passed_steps(folder: Path) -> None:
    """Only densities of the last geometry, in memory and in the file; a converged start takes no
    step."""
    study = optimize_geometry(FLUORIDE, EXACT, keeper=Keeper(folder / "x.h5"), listener=Silent())
    for found in (study, read_study(folder / "x.h5")):
        *passed, last = (run.properties.relaxed_density.shape for run in found.runs.values())
        assert set(passed) == {(1, 0, 0)} and last == (1, 11, 11)
        assert all(abs(run.properties.relaxed_dipole).max() > 0.5 for run in found.runs.values())
    ranked = read_candidate(folder / "x.h5").result
    assert ranked.total_energy == study.values["optimized_total_energy"].value
    again = optimized(study.last, Search())
    assert "the next step would move no atom by more than" in " ".join(again.notes)
    assert again.complete and again.settings["steps"] == 0
    assert again.values["optimized_total_energy"].value == pytest.approx(
        study.values["optimized_total_energy"].value, abs=3e-8
    )


@pytest.mark.parametrize(("longer", "constant"), [(-0.3, 0.0233), (-0.1, 0.0093), (0.2, 0.0023)])
def test_a_torsion_is_stiffer_about_a_short_bond(longer, constant):
    """0.0023 - 0.07 (r - r_cov), r_cov of C and N 0.76 and 0.71 angstrom, 0.0023 at least."""
    length = (0.76 + 0.71) / 0.529177210903 + longer
    along = np.array([0.36, 0.48, 0.8])
    first = np.array([0.1, 0.2, 0.3])
    places = np.array([first, [5.0, 0, 0], first + length * along])
    molecule = Molecule(("C", "H", "N"), places)
    assert torsional_constant(molecule, places, 0, 2) == pytest.approx(constant, abs=1e-6)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("held", ["", "$freeze\ndihedral 3 1 2 4\ndistance 1 2\n"])
def test_the_model_hessian_by_kind_of_coordinate(alone, held):
    """Peroxide, alone or beside HCN and CH2O: 0.02 Eh/bohr^2 between fragments, the softest 1e-5;
    the same second derivatives of Cartesian coordinates, with and without constraints."""
    atoms = (
        "O 0 1.32 -.11; O 0 -1.32 -.11; H 1.47 1.7 .9; H -1.4 -1.7 1.1; "
        "N 0 0 11.2; C 0 0 9; H 0 0 7; C 9 0 0; O 11.3 0 0; H 8 1.7 0; H 8 -1.7 0"
    )
    rows = [row.split() for row in atoms.split(";")[: 4 if alone else 11]]
    softer = {"Distance": 0.5, "Angle": 0.3, "Dihedral": 0.2}
    if not alone:
        softer |= {"LinearAngle": 0.1, "OutOfPlane": 0.2}
    start = Molecule([row[0] for row in rows], [[float(x) for x in row[1:]] for row in rows])
    inner, place = GeomeTRIC(start, Search(), held)._optimizer.IC, start.coordinates.ravel()
    kinds = [type(primitive).__name__ for primitive in inner.Prims.Internals]
    assert set(softer) < set(kinds)
    model, softest = [], []
    for kind, plain in zip(kinds, inner.Prims.guess_hessian(place).diagonal(), strict=True):
        if kind.startswith(("Translation", "Rotation")) and not alone:
            model.append(0.02)
            softest.append(1e-5)
            continue
        if kind == "Dihedral":
            plain = torsional_constant(start, start.coordinates, 0, 1)
        model.append(plain)
        softest.append(plain * softer.get(kind, 1.0))
    slopes, primitive = inner.wilsonB(place), inner.Prims.wilsonB(place)
    for found, expected in (
        (inner.guess_hessian(place), model),
        (inner.softest_hessian(place, 1e-5), softest),
    ):
        cartesian = primitive.T @ np.diag(expected) @ primitive
        assert slopes.T @ found @ slopes == pytest.approx(cartesian, abs=1e-9)


def test_the_scaled_energy_is_minimised():
    options = replace(EXACT, os_scale=0.5, ss_scale=2.0)
    study = optimized(FLUORIDE, Search(), options)
    names, runs = zip(*study.runs.items(), strict=True)
    starts = [run.reference.start for run in runs[1:]]
    assert starts == [f"orbitals of {name}" for name in names[:-1]]
    length = coordinate(study, 1, 2)

    def energy(bond):
        run = mp2_energy(
            Molecule(("F", "H"), [[0, 0, 0], [0, 0, bond]]), options, listener=Silent()
        )
        return run.scf_total_energy + run.scaled_mp2_correlation_energy

    assert energy(length) == pytest.approx(study.values["optimized_total_energy"].value, abs=1e-8)
    assert energy(length) < min(energy(length - 0.01), energy(length + 0.01))
    assert any(note.startswith("energy and gradient of ") for note in study.notes), study.notes


def test_constrained_water_as_in_psi4():
    """Psi4 (tests/pytests/test_geometric.py, commit 886caaab): DF-MP2/cc-pVDZ with geomeTRIC, angle
    of 90 degrees, reached from another one."""
    start = [[0, 0, 0], [1, 0, 0], [-0.05, 1, 0]]
    start = Molecule(("O", "H", "H"), np.array(start) / 0.52917721092)
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
    length = coordinate(study, 1, 3) * 0.529177210903
    constrained = [note for note in study.notes if note.startswith("constraint: ")]
    assert constrained == [f"constraint: bond 1-3 = {length:.6f} angstrom"]


def test_a_geometry_that_is_held_whole_has_no_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    on_springs(monkeypatch, FLUORIDE)
    held = Search(Constraints([("bond", "1,2")]), verify=True)
    study = optimized(FLUORIDE, held, ON_SPRINGS)
    assert study.settings["imaginary_modes"] == 0 and study.arrays["wavenumbers"].value.size == 0
    assert any(note.endswith("minimum: 0 imaginary modes of 0") for note in study.notes)


def _value(molecule, atoms):
    """A distance (bohr), angle or dihedral (degree) by ASE, or a position (bohr)."""
    if len(atoms) == 1:
        return molecule.coordinates[atoms[0]]
    place = Atoms(molecule.symbols, molecule.coordinates)
    return getattr(place, {2: "get_distance", 3: "get_angle", 4: "get_dihedral"}[len(atoms)])(
        *atoms
    )


@pytest.mark.parametrize(
    ("start", "constraints", "held"),
    [
        (FLUORIDE_AND_WATER, Constraints([("bond", "1,2")]), [(0, 1)]),
        (AMMONIA, Constraints([("xyz", "2"), ("angle", "3,1,4")]), [(1,), (2, 0, 3)]),
        pytest.param(
            METHYLAMINE_CATION,
            Constraints(fixed=[("dihedral", "3,1,2,6", "20"), ("bond", "1,2", "1.5")]),
            [(2, 0, 1, 5), (0, 1)],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            CYCLOPROPENE,
            Constraints(fixed=[("bond", "1,2", "1.6")]),
            [(0, 1)],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["two fragments", "frozen atom", "two constraints", "ring"],
)
def test_the_free_gradient_vanishes(start, constraints, held):
    """What is left of the gradient in a least-squares fit by the derivatives of the constraints."""
    study = optimized(start, Search(constraints), replace(EXACT, basis="sto-3g"))
    last = list(study.path.values())[-1]
    derivatives = np.zeros(
        (last.molecule.coordinates.size, sum(3 if len(a) == 1 else 1 for a in held))
    )
    for row, index in zip(derivatives, np.ndindex(last.molecule.coordinates.shape), strict=True):
        ends = []
        for sign in (1, -1):
            moved = last.molecule.coordinates.copy()
            moved[index] += sign * 1e-4
            ends.append([_value(replace(last.molecule, coordinates=moved), a) for a in held])
        row[:] = np.hstack(ends[0]) - np.hstack(ends[1])
    gradient = last.gradient.total_gradient.ravel()
    free = gradient - derivatives @ np.linalg.lstsq(derivatives, gradient, rcond=None)[0]
    largest = np.linalg.norm(free.reshape(-1, 3), axis=1).max()
    assert study.table["max_gradient"].values[-1] == pytest.approx(largest, abs=1e-6)
    assert largest < 4.5e-4


def test_a_frozen_atom_among_charges():
    """Water turns about its oxygen to a minimum: no small turn lowers the energy."""
    angstrom = 1 / 0.52917721092
    charges = np.array([[2.9, 0.4, 0.3, -0.7], [-1.5, -2.6, 1, 0.5], [0.3, 3.4, -1.2, 0.4]])
    charges[:, :3] *= angstrom
    places = np.array([[0, 0, 0], [0.96, 0.1, 0], [-0.3, 0.92, 0.1]]) * angstrom
    start = Molecule(("O", "H", "H"), places).in_field(charges)
    options = replace(EXACT, basis="sto-3g")
    search = Search(Constraints([("xyz", "1")]), convergence="gau_tight", max_steps=40)
    study = optimized(start, search, options)
    last = list(study.path.values())[-1]
    found = last.molecule.coordinates
    first = study.runs["step-001"].molecule.coordinates
    turned = np.linalg.norm(first - start.coordinates, axis=1).max() / angstrom
    assert study.table["max_displacement"].values[1] == pytest.approx(turned, rel=1e-5)
    assert found[0] == pytest.approx(places[0], abs=1e-6)
    assert np.abs(last.gradient.total_gradient[1:]).max() < 2e-5
    for axis in np.eye(3):
        for angle in (0.02, -0.02):
            turn = Rotation.from_rotvec(angle * axis)
            turned = Molecule(start.symbols, turn.apply(found.copy())).in_field(charges)
            energy = mp2_energy(turned, options, listener=Silent()).total_energy
            assert energy > last.total_energy + 1e-7


def test_a_turn_among_charges_is_a_displacement(monkeypatch):
    """geomeTRIC superposes both geometries, and would end at the first turn, however long it is."""
    start = Molecule(("F", "H"), [[0, 0, 0], [0, 0, 1.8]]).in_field([[0, 0, 30, 0.1]])
    template = mp2_gradient(start, ON_SPRINGS, listener=Silent()).result
    pull = 2e-5  # Eh/bohr, on the hydrogen
    held = np.diag([0.5, 0.5, 0.5, 1e-3, 1e-3, 0.5])  # Eh/bohr^2

    def run(molecule):
        slopes = np.array([[0, 0, 0], [pull, 0, 0]])
        energy = pull * molecule.coordinates[1, 0]
        return replace(
            template,
            molecule=molecule,
            reference=replace(template.reference, scf_total_energy=energy),
            gradient=replace(template.gradient, mp2_total_gradient=slopes),
        )

    with quiet():
        method = GeomeTRIC(start, Search(), "")
    method.judge(run(start), held)
    place = method.next_geometry()
    point = method.judge(run(replace(start, coordinates=place)))
    assert point.max_displacement > 5 * method.limits["max_displacement"]
    assert point.max_gradient < method.limits["max_gradient"]
    assert method.next_geometry() is not None and not method.converged


def test_two_molecules_turn_about_their_frozen_fluorines():
    angstrom = 1 / 0.52917721092
    places = [[0, 0, 0], [0.17, -0.73, -0.63], [0.4, -2.7, 0.3], [0.03, -3.45, -0.21]]
    start = Molecule(("F", "H") * 2, np.array(places) * angstrom)
    search = Search(Constraints([("xyz", "1+3")]), max_steps=60)
    study = optimized(start, search, replace(EXACT, basis="sto-3g"))
    last = list(study.path.values())[-1]
    assert last.molecule.coordinates[[0, 2]] == pytest.approx(start.coordinates[[0, 2]], abs=1e-6)
    free = last.gradient.total_gradient[[1, 3]]
    assert np.linalg.norm(free, axis=1).max() < 4.5e-4


@pytest.mark.parametrize(
    ("constraints", "length"),
    [
        (Constraints(fixed=[("bond", "1,2", "1.8")], units="bohr"), 1.8 * 0.529177210903),
        (Constraints(fixed=[("distance", "1,2", "1.8")], units="bohr"), 1.8 * 0.529177210903),
        (Constraints(text="$set\ndistance 1 2 0.95 # angstrom\n", units="bohr"), 0.95),
    ],
)
def test_lengths_of_options_and_of_a_file(constraints, length):
    """An option is in the unit of the molecule's file, geomeTRIC's file in angstrom."""
    (line,) = re.findall(r"distance 1 2 (\S+)", constraints.for_geometric(FLUORIDE))
    assert float(line) == pytest.approx(length, abs=1e-7)


def test_stopped_again_and_again(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeats the stored steps and reaches the minimum of an uninterrupted run; also with more
    steps."""
    (folder / "h.xyz").write_text("2\n\nH 0 0 0\nH 0.2 0.3 0.6\n")
    command = ("optimize", "h.xyz", *COMMAND, "--precision", "fp64", "--json")
    whole = succeed(call(*command)).json
    check_files_of(whole)
    monkeypatch.setenv(EACH, "1000")
    done, stops = finished_in_stops(call, *command, "--output", "x.h5", "--resume", every=9)
    found = succeed(done).json
    assert stops >= 2 and "step 1: finished before" in done.err
    assert found["optimized_total_energy"] == pytest.approx(
        whole["optimized_total_energy"], abs=1e-7
    )
    assert found["status"] == "complete" and list(found["runs"]) == list(whole["runs"])
    assert not (folder / "x.h5.checkpoint").exists()

    short = call(*command, "--max-steps", "1", "--output", "y.h5")
    recorded_failure(short, 4)
    assert short.json["status"] == "incomplete" and len(read_frames("y.trajectory.xyz")) == 2
    (folder / "z.h5").write_bytes((folder / "y.h5").read_bytes())
    longer = succeed(call(*command, "--output", "y.h5", "--resume")).json
    assert longer["final_geometry"] == whole["final_geometry"]
    looser = call(
        *command, "--precision", "mixed", "--scf-conv-tol", "1e-9", "--output", "z.h5", "--resume"
    )
    assert "step 1: finished before" in looser.err  # the change that the error half way advises
    assert succeed(looser).json["optimized_total_energy"] == pytest.approx(
        whole["optimized_total_energy"], abs=1e-7
    )
    done = call(*command, "--precision", "mixed", "--output", "y.h5", "--resume")
    recorded_failure(done, 3)
    other = call(*command, "--frozen-virtual", "1", "--output", "y.h5", "--resume")
    recorded_failure(other, 3)


def test_what_is_said_of_a_geometry() -> None:
    """The largest gradient and displacement, which the lines name without `rms`."""
    point = Point(-76.1, 1e-2, 2e-2, 3e-2, 4e-2)
    assert point.said == "E = -76.1000000000 Eh, gradient 2.0e-02 Eh/bohr, moved 4.0e-02 A"
    first = Point(-76.1, 1e-2, 2e-2, math.nan, math.nan)
    assert first.said == "E = -76.1000000000 Eh, gradient 2.0e-02 Eh/bohr"


def test_a_file_of_constraints_may_have_a_megabyte(folder: Path) -> None:
    file = folder / "c.txt"
    options = geometry.ConstraintOptions((), (), str(file))
    lines = "$freeze\nxyz 1\n"
    text = lines + "#" * (10**6 - len(lines))
    file.write_text(text)
    assert options.read("angstrom") == Constraints(text=text)
    file.write_text(f"{text}#")
    with recorded_error(InputError):
        options.read("angstrom")


def test_an_scf_that_fails_half_way(call: Runner, folder: Path) -> None:
    """Its step is named, earlier steps are kept, and with more cycles they are not recomputed."""
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
    recorded_failure(failed, 4)
    assert list(read_study(folder / "x.h5").runs) == ["step-000"]
    going_on = call(*command, "--resume")
    assert going_on.code == 4 and going_on.kept_runs == 1
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


# --- what a stationary point is -------------------------------------------------------------------

NEON = Molecule(("Ne", "Ne"), [[0, 0, 0], [0, 0, 3.0 / 0.529177210903]])
FLAT_AMMONIA = Molecule(
    ("N", "H", "H", "H"),
    [
        [0, 0, 0],
        *([1.9 * np.cos(a), 1.9 * np.sin(a), 0] for a in (0, 2 * np.pi / 3, 4 * np.pi / 3)),
    ],
)
STRAIGHT_WATER = Molecule(("O", "H", "H"), [[0, 0, 0], [0, 0, 1.78], [0, 0, -1.78]])


def test_neon_goes_to_the_minimum_of_psi4():
    """Psi4 1.3.2, DF-MP2/cc-pVDZ, GAU: -257.3528736 Eh at 2.7501 angstrom.

    At 3.0 angstrom the gradient counts as converged, and the model's next step is short. A measured
    curvature counts as no step.
    """
    study = optimized(NEON, Search(max_steps=6), make_options(basis="cc-pvdz", threads=1))
    assert study.settings["steps"] == 6 and study.settings["stationary_point"] == "stationary point"
    found = study.values["optimized_total_energy"].value
    assert found == pytest.approx(-257.3528736, abs=1e-7)
    assert coordinate(study, 1, 2) * 0.529177210903 == pytest.approx(2.7493, abs=2e-3)
    (measured,) = (note for note in study.notes if note.startswith("curvature along"))
    assert float(re.search(r"measured: (\S+)", measured)[1]) < 0  # beyond the inflection
    assert study.title.startswith("stationary point of")


def test_a_run_without_steps_has_measured_the_curvature():
    """From one displaced gradient; it equals that from energy differences."""
    tight = optimized(FLUORIDE, Search(convergence="gau_tight"))
    assert tight.settings["limits"] == {  # as Gaussian's opt=tight, its namesake
        "max_gradient": 1.5e-5,
        "rms_gradient": 1.0e-5,
        "max_displacement": 6.0e-5,
        "rms_displacement": 4.0e-5,
    }
    molecule = tight.last
    study = optimized(molecule, Search())
    assert study.settings["steps"] == 0 and list(study.runs) == ["step-000", "curvature-001"]
    (measured,) = (note for note in study.notes if note.startswith("curvature along"))
    assert measured not in remarks(study)  # on the screen, which has other things to show
    said = float(re.search(r"measured: (\S+)", measured)[1])
    move = study.runs["curvature-001"].molecule.coordinates - molecule.coordinates

    def slope(part: float) -> float:
        low, high = (
            mp2_energy(
                replace(molecule, coordinates=molecule.coordinates + (part + d) * move),
                EXACT,
                listener=Silent(),
            ).total_energy
            for d in (-0.2, 0.2)
        )
        return (high - low) / 0.4

    assert said == pytest.approx((slope(1) - slope(0)) / (move**2).sum(), rel=0.02)


def test_numbers_of_an_optimisation_are_those_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the atoms, and moves of the atoms since the geometry before after a turn."""
    places = [[0.1, 0, 0.2401], [0, 1.6, -0.9605], [0, -1.2, -1.2]]
    start = Molecule(("O", "H", "H"), places, name="water")
    on_springs(monkeypatch, start)
    study = dfmp2.optimize(start, "sto-3g", threads=1, listener=dfmp2.Listener())
    runs = list(study.path.values())
    assert len(runs) > 3 and list(study.path) == list(study.runs)
    rows: dict[str, list[float]] = {name: [] for name in study.table}
    for number, run in enumerate(runs):
        lengths = np.linalg.norm(run.gradient.total_gradient, axis=1)
        moved = np.full(3, np.nan)
        if number:
            centred = [
                one.molecule.coordinates - one.molecule.coordinates.mean(axis=0)
                for one in (runs[number - 1], run)
            ]
            turn, _ = Rotation.align_vectors(centred[1], centred[0])
            moved = np.linalg.norm(centred[1] - turn.apply(centred[0]), axis=1) * 0.529177210903
        rows["step"].append(number)
        rows["total_energy"].append(run.total_energy)
        rows["max_gradient"].append(lengths.max())
        rows["rms_gradient"].append(np.sqrt((lengths**2).mean()))
        rows["max_displacement"].append(moved.max())
        rows["rms_displacement"].append(np.sqrt((moved**2).mean()))
    for name, expected in rows.items():
        found = study.table[name].values
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12, err_msg=name)
    values = {name: item.value for name, item in study.values.items()}
    assert values == pytest.approx(
        {
            "optimized_total_energy": rows["total_energy"][-1],
            "energy_change": rows["total_energy"][-1] - rows["total_energy"][0],
            "max_gradient": rows["max_gradient"][-1],
        },
        rel=1e-6,
    )
    np.testing.assert_array_equal(
        study.arrays["final_geometry"].value, runs[-1].molecule.coordinates
    )
    assert study.settings["steps"] == len(runs) - 1


def test_a_planar_start_is_said_and_no_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planar ammonia stays planar, and the end is called a stationary point."""
    on_springs(monkeypatch, FLAT_AMMONIA)
    study = optimized(FLAT_AMMONIA, Search(), ON_SPRINGS)
    assert study.title.startswith("stationary point of") and "minimum" not in study.title
    assert study.settings["imaginary_modes"] is None
    assert any("the start is planar" in note for note in study.notes)
    assert any(note.startswith("not verified as a minimum") for note in study.notes)


@pytest.mark.parametrize(("asked", "displaced"), [(1e-8, 1e-11), (1e-13, 1e-13)])
def test_displaced_runs_are_at_least_as_tight_as_asked(
    monkeypatch: pytest.MonkeyPatch, asked: float, displaced: float
) -> None:
    """Those of the steps are as tight as asked."""
    on_springs(monkeypatch, FLUORIDE)
    study = optimized(FLUORIDE, Search(verify=True), replace(ON_SPRINGS, scf_conv_tol=asked))
    assert len(study.runs) == len(study.path) + 12
    for name, run in study.runs.items():
        expected = asked if name in study.path else displaced
        assert run.options.scf_conv_tol == expected, name


def test_a_saddle_point_is_left_along_its_imaginary_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to the known minimum, in the same study."""
    on_springs(monkeypatch, STRAIGHT_WATER)
    study = optimized(STRAIGHT_WATER, Search(verify=True), ON_SPRINGS)
    assert hessian_of(study, "it").molecule == study.last != STRAIGHT_WATER
    assert study.complete and study.title.startswith("minimum of")
    assert study.settings["stationary_point"] == "minimum" and study.settings["restarts"] == 1
    assert any("saddle point of order 2: 2 imaginary modes of 4" in note for note in study.notes)
    assert study.values["optimized_total_energy"].value == pytest.approx(0.0, abs=1e-6)
    assert coordinate(study, 1, 2) == pytest.approx(BOND, abs=2e-3)
    assert coordinate(study, 2, 1, 3) == pytest.approx(ANGLE, abs=5e-3)
    assert len(study.table["step"].values) == len(study.path) == study.settings["steps"] + 1
    sides = [name for name in study.runs if name.endswith(("-plus", "-minus"))]
    assert len(sides) == 2 and len(set(study.path) & set(sides)) == 1
    steps = study.settings["steps"]  # counted from the first geometry
    assert optimized(STRAIGHT_WATER, Search(max_steps=steps, verify=True), ON_SPRINGS).complete
    with pytest.raises(Unfinished) as caught:
        optimized(STRAIGHT_WATER, Search(max_steps=steps - 1, verify=True), ON_SPRINGS)
    stopped = caught.value.study  # beyond the geometry of the Hessian
    assert stopped.settings["imaginary_modes"] is None and stopped.title.startswith("stationary")
    with recorded_error(InputError):
        hessian_of(stopped, "it")
    # What is held has the value of the start, not that of the side from which it goes on.
    held = Search(Constraints([("bond", "1,2")]), verify=True)
    bent = optimized(STRAIGHT_WATER, held, ON_SPRINGS)
    assert bent.settings["restarts"] == 1 and bent.settings["stationary_point"] == "minimum"
    assert coordinate(bent, 1, 2) == pytest.approx(1.78, abs=1e-5)
    assert coordinate(bent, 1, 3) == pytest.approx(BOND, abs=2e-3)
    assert coordinate(bent, 2, 1, 3) == pytest.approx(ANGLE, abs=5e-3)
    assert hessian_of(bent, "it").constrained and not hessian_of(study, "it").constrained


def test_a_saddle_point_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pyramids, from a geometry without symmetry: its energy on springs by a formula.
    Only a Hessian at the end makes it a transition state, or what is left of it a minimum."""
    tilts, energies = pyramids()
    moved = np.array([[0, 0, 0.1], [0.05, 0, 0], [0, -0.06, 0.1], [0.02, 0.1, -0.1]])
    start = Molecule(("N", "H", "H", "H"), pyramid(tilts[1]) + moved)
    on_springs(monkeypatch, start)
    titles = []
    for place, transition_state in ((0, False), (1, True)):
        for verify in (False, True):
            search = Search(transition_state=transition_state, verify=verify)
            study = optimized(start, search, ON_SPRINGS)
            titles.append(study.title.removesuffix(", DF-MP2/sto-3g"))
            found = study.values["optimized_total_energy"].value
            assert found == pytest.approx(energies[place], abs=1e-6)
            assert study.settings["imaginary_modes"] == (place if verify else None)
            assert len(study.table["step"].values) == len(study.path) == study.settings["steps"] + 1
            kind = "transition state" if transition_state else "minimum"
            assert verify != any(f"not verified as a {kind}" in note for note in study.notes)
            displaced = [name for name in study.runs if name.startswith(("plus-", "minus-"))]
            assert len(displaced) == (24 if transition_state else 0)
            assert {study.runs[name].options.scf_conv_tol for name in displaced} <= {1e-11}
            assert ("hessian-1-plus-004-z" in study.runs) is verify
            if verify:  # of six modes the lowest three are named
                (line,) = (note for note in study.notes if "imaginary mode" in note)
                lowest = study.arrays["wavenumbers"].value[:3]
                named = ", ".join(f"{abs(x):.1f}{'i' if x < 0 else ''}" for x in lowest)
                assert line.endswith(f" of 6; lowest: {named} cm^-1")
    assert titles == [
        "stationary point of molecule (H3N)",
        "minimum of molecule (H3N)",
        "stationary point of molecule (H3N), sought as a transition state",
        "transition state of molecule (H3N)",
    ]


def test_single_steps_and_groups_of_runs_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step, whose outcome the search reports, is a part of it; runs of a group are counted."""
    heard: list[str] = []

    class Stages(Silent):
        def stage(self, text: str) -> None:
            heard.append(text)

        def substage(self, text: str) -> None:
            heard.append(f"within: {text}")

    on_springs(monkeypatch, FLUORIDE)
    study = optimize_geometry(FLUORIDE, ON_SPRINGS, Search(verify=True), listener=Stages())
    steps, total = len(study.path), len(study.runs)
    assert total == steps + 12
    single = [f"within: [{number + 1}] step {number}" for number in range(steps)]
    assert [text for text in heard if text.startswith("within: ")] == single
    counted = [text.partition(" ")[0] for text in heard if text.startswith("[")]
    assert counted == [f"[{number}/{total}]" for number in range(steps + 1, total + 1)]


def test_a_verification_that_was_stopped_asks_for_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the Hessian; the study equals an uninterrupted one."""

    def search(keeper: Keeper) -> Study:
        return optimize_geometry(
            FLUORIDE, ON_SPRINGS, Search(verify=True), keeper=keeper, listener=Silent()
        )

    every = on_springs(monkeypatch, FLUORIDE)
    whole = search(Keeper())
    before = on_springs(monkeypatch, FLUORIDE, stop=len(every) - 4)
    with pytest.raises(Interrupted):
        search(Keeper(tmp_path / "x.h5"))
    after = on_springs(monkeypatch, FLUORIDE)
    study = search(Keeper(tmp_path / "x.h5"))
    assert len(after) == 5 and len(before) + len(after) == len(every)
    assert list(study.runs) == list(whole.runs) and list(study.path) == list(whole.path)
    assert np.array_equal(study.arrays["wavenumbers"].value, whole.arrays["wavenumbers"].value)
    assert study.settings == whole.settings


def test_a_planar_minimum_stays(monkeypatch):
    """Borane: no new start, and only the densities of the last step are left."""
    monkeypatch.setattr(StationaryPoint, "flat", 2)  # it has none
    ring = [[2.2 * np.cos(a), 2.2 * np.sin(a), 0] for a in (0, 2 * np.pi / 3, 4 * np.pi / 3)]
    borane = Molecule(("B", "H", "H", "H"), [[0, 0, 0], *ring])
    options = make_options(basis="sto-3g", stability="off", threads=1)
    study = optimized(borane, Search(verify=True), options)
    assert (study.settings["stationary_point"], study.settings["restarts"]) == ("minimum", 0)
    assert any("2 modes with a curvature below 1e-05 Eh" in note for note in study.notes)
    whole = [name for name, run in study.runs.items() if run.properties.relaxed_density.size]
    assert whole == [list(study.path)[-1]]


def test_what_is_not_a_minimum_in_the_end(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 4 and the number of imaginary modes if no new start is left; the same command does
    not go on."""
    monkeypatch.setattr("dfmp2.studies.optimize.MOST_RESTARTS", 0)
    on_springs(monkeypatch, STRAIGHT_WATER)
    (folder / "w.xyz").write_text("3\n\nO 0 0 0\nH 0 0 0.94\nH 0 0 -0.94\n")
    command = ("optimize", "w.xyz", "--basis", "sto-3g", "--stability", "off", "--threads", "1")
    done = call(*command, "--verify")
    recorded_failure(done, 4)
    assert "NOT FINISHED: saddle point of order 2 after" in done.out
    found = call("show", "w.optimization.h5", "--json").json
    assert found["stationary_point"] == "saddle point of order 2"
    assert found["imaginary_modes"] == 2 and len(found["wavenumbers"]) == 4
    assert found["title"].startswith("saddle point of order 2 of w")


@pytest.mark.parametrize(
    ("restarts", "saddle", "hessians"), [(0, False, 2), (0, True, 3), (2, False, 4), (2, True, 5)]
)
def test_a_new_start_fits_into_the_runs_of_a_study(restarts, saddle, hessians):
    """Those before and the next one: Hessians of water, 18 runs each, beside the steps and 50 more.
    One step at least is left for it, and there are three new starts."""

    first = Step("step-000", "step 0", WATER, EXACT)

    def may_restart(most_steps, steps=3, before=restarts):
        search = SimpleNamespace(max_steps=most_steps, transition_state=saddle)
        course = SimpleNamespace(_search=search, _molecule=WATER, _first=first)
        course._restarts, course._steps = before, lambda: steps
        return Course._may_restart(course)

    most = MOST_RUNS - 50 - 18 * hessians
    assert may_restart(most) and not may_restart(most + 1)
    assert may_restart(10, steps=8) and not may_restart(10, steps=9)
    assert not may_restart(10, before=3)
    first = replace(first, options=at_level(make_options(basis="cc-pv[dt]z")))
    most = MOST_RUNS // 2 - 50 - 18 * hessians
    assert may_restart(most) and not may_restart(most + 1)


def test_a_step_onto_another_atom_ends_the_search() -> None:
    course = SimpleNamespace(_molecule=WATER, _options=EXACT)
    with recorded_error(NumericalError):
        Course._step(course, "step-007", "step 7", [[0, 0, 0.22], [0, 1.5, -0.8], [0, 1.5, -0.8]])


@pytest.mark.parametrize(("longer", "steps"), [(1.8e-3, 0), (2.8e-3, 1)])
def test_an_energy_that_would_still_fall_is_not_converged(
    longer: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bond too long by x is 0.25 x^2 Eh too high: 0.8 and 2.0 uEh, where the other measures are
    within their bounds and 1 uEh is the bound of the energy."""
    start = Molecule(("F", "H"), [[0, 0, 0], [0, 0, BOND + longer]])
    on_springs(monkeypatch, start)
    tight = np.diag([0.0, 0.0, 0.5])
    second = np.block([[tight, -tight], [-tight, tight]])
    stored = StoredHessian("x.h5", SimpleNamespace(molecule=start, level="springs"), second)
    loose = Search(convergence="gau_loose")
    study = optimize_geometry(start, ON_SPRINGS, loose, start_hessian=stored, listener=Silent())
    assert study.settings["steps"] == steps
    if not steps:
        (foreseen,) = (note for note in study.notes if note.startswith("the next step would"))
        falls = float(re.search(r"the energy by (\S+) Eh", foreseen)[1])
        assert falls == pytest.approx(-0.25 * longer**2, rel=0.1)


@pytest.mark.parametrize(("tilt", "needless"), [(2e-3, True), (6e-3, False)])
def test_an_energy_that_would_still_rise_is_not_converged(
    tilt: float, needless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the saddle point between two pyramids, where the other measures are within bounds."""
    tilts, (_, top, _) = pyramids()
    start = Molecule(("N", "H", "H", "H"), pyramid(tilts[1] + tilt))
    on_springs(monkeypatch, start)
    second = second_derivatives(start.coordinates)
    stored = StoredHessian("x.h5", SimpleNamespace(molecule=start, level="springs"), second)
    search = Search(convergence="gau_loose", transition_state=True)
    study = optimize_geometry(start, ON_SPRINGS, search, start_hessian=stored, listener=Silent())
    assert (study.settings["steps"] == 0) is needless
    rise = top - springs(start.coordinates)
    assert (rise < 1e-6) is needless and rise > 1e-8


def test_a_constrained_minimum_is_one_along_its_constraints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Water on springs, held at 140 degrees: the Hessian of the energy falls along the angle, which
    is fixed; two modes are left, the stretches, whose force constant is 0.5 Eh/bohr^2."""
    start = Molecule(("O", "H", "H"), [[0, 0, 0], [0, 1.7, -0.62], [0, -1.7, -0.62]])
    on_springs(monkeypatch, start)
    search = Search(Constraints(fixed=[("angle", "2,1,3", "140")]), verify=True)
    study = optimized(start, search, ON_SPRINGS)
    modes = study.arrays["wavenumbers"].value
    assert len(modes) == 2 and study.settings["stationary_point"] == "minimum"
    cosine = np.cos(np.radians(140))
    expected = []
    for sign in (1, -1):  # G matrix of symmetric and antisymmetric stretch at a fixed angle
        inverse = 1 / mass("H") + (1 + sign * cosine) / mass("O")
        expected.append(219474.6313632 * np.sqrt(0.5 * inverse / 1822.888486209))
    assert sorted(modes) == pytest.approx(sorted(expected), rel=2e-3)


def test_a_curvature_is_measured_along_the_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Water on springs, held at 140 degrees, with bonds 5e-4 bohr too long: only they change."""
    half = np.radians(70)
    arm = (BOND + 5e-4) * np.array([np.sin(half), np.cos(half)])
    start = Molecule(("O", "H", "H"), [[0, 0, 0], [0, *arm], [0, -arm[0], arm[1]]])
    on_springs(monkeypatch, start)
    study = optimized(start, Search(Constraints([("angle", "2,1,3")])), ON_SPRINGS)
    assert list(study.runs) == ["step-000", "curvature-001"]
    probe = study.runs["curvature-001"].molecule
    assert probe.angle(2, 1, 3) == pytest.approx(140, abs=1e-3)
    moved = [internal_coordinate(probe.coordinates[[0, k]]) - BOND - 5e-4 for k in (1, 2)]
    assert moved[0] == pytest.approx(moved[1], abs=1e-6) and moved[0] < -1e-3


def test_the_rounding_of_a_gradient_needs_no_curvature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Water on springs at its minimum."""
    arm = BOND * np.array([np.sin(ANGLE / 2), np.cos(ANGLE / 2)])
    start = Molecule(("O", "H", "H"), [[0, 0, 0], [0, *arm], [0, -arm[0], arm[1]]])
    on_springs(monkeypatch, start)
    study = optimized(start, Search(), ON_SPRINGS)
    assert study.complete and list(study.runs) == ["step-000"]


def test_no_curvature_is_measured_after_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Molecule(("O", "H", "H"), [[0, 0, 0], [0, 1.7, -0.62], [0, -1.7, -0.62]])
    on_springs(monkeypatch, STRAIGHT_WATER)
    with pytest.raises(Unfinished) as caught:
        optimized(start, Search(max_steps=1), ON_SPRINGS)
    unfinished = caught.value.study
    assert list(unfinished.runs) == ["step-000", "step-001"]
    assert "NOT CONVERGED: the last geometry is only the last" in unfinished.notes


# --- frequencies ----------------------------------------------------------------------------------


def test_modes_of_a_saddle_point_and_of_a_molecule_among_charges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pyramid turned inside out, against second differences of the springs: the imaginary mode is
    named and left out of the gas. Among charges all motions are modes, and there is no gas."""
    tilts, energies = pyramids()
    top = Molecule(("N", "H", "H", "H"), pyramid(tilts[1]))
    asked = on_springs(monkeypatch, top)
    conditions = GasConditions((350.0,), (2e5,), symmetry=6)
    study = harmonic_frequencies(top, ON_SPRINGS, conditions, displacement=3e-3, listener=Silent())
    moves = [one.coordinates - top.coordinates for one in asked[1:]]
    assert [abs(move).max() for move in moves] == pytest.approx([3e-3] * 24)
    assert study.settings["displacement"] == 3e-3
    second = second_derivatives(top.coordinates)
    weights = np.repeat([mass("N"), *[mass("H")] * 3], 3) * 1822.888486209
    squares = np.linalg.eigvalsh(second / np.sqrt(np.outer(weights, weights)))
    squares = np.sort(squares[np.argsort(abs(squares))[6:]])
    expected = 219474.6313632 * np.sign(squares) * np.sqrt(abs(squares))
    assert expected[0] < -900 and (expected[1:] > 0).all()
    found = study.arrays["hessian"].value
    assert found == pytest.approx(second, abs=2e-5) and (found == found.T).all()
    slopes = np.kron(CHARGES[:, None], np.eye(3))
    assert study.arrays["dipole_derivatives"].value == pytest.approx(slopes, abs=1e-9)
    assert study.table["wavenumber"].values == pytest.approx(expected, rel=1e-4)
    (imaginary,) = (note for note in study.notes if note.startswith("IMAGINARY"))
    number, _, atoms = imaginary.removeprefix("IMAGINARY mode 1: ").partition("i cm^-1, mostly of ")
    assert float(number) == pytest.approx(-expected[0], rel=1e-3)
    assert sorted(atoms.split(", ")) == ["H2", "H3", "H4"]
    assert "imaginary modes are left out of the thermochemistry" in study.notes
    gas = ideal_gas(
        masses=masses(top),
        places=top.coordinates,
        wavenumbers=expected,
        energy=energies[1],
        multiplicity=1,
        kelvin=350.0,
        pascal=2e5,
        symmetry=6,
    )
    for name in ("gibbs_energy", "entropy", "zero_point_energy"):
        assert study.values[name].value == pytest.approx(gas[name], rel=1e-4), name

    field = top.in_field([[5.0, 1.0, -4.0, 0.1]])
    among = harmonic_frequencies(field, ON_SPRINGS, allow_gradient=True, listener=Silent())
    assert len(among.table["wavenumber"].values) == 12 and set(among.values) == {"total_energy"}
    assert among.table["wavenumber"].values[-5:] == pytest.approx(expected[1:], rel=1e-3)
    assert "symmetry_number" not in among.settings
    assert any("all its motions are listed" in note for note in among.notes)
    no_gas = hessian_of(among, "f.h5")
    free = hessian_of(study, "f.h5")
    for stored in (no_gas, replace(free, at_start=True), replace(free, constrained=True)):
        with recorded_error(InputError):
            stored.require_gas()
    for stored, molecule in ((no_gas, field), (free, field), (no_gas, top)):
        with recorded_error(InputError):
            stored.turned_to(molecule)
    with recorded_error(InputError):
        replace(free, constrained=True).turned_to(top)


def test_what_is_wrong_with_the_gas_of_a_radical_is_said(monkeypatch):
    """OH at 5 K, away from its minimum: where its Hessian is computed and where that is used."""
    radical = Molecule(("O", "H"), [[0, 0, 0], [0, 0, 1.9]], multiplicity=2)
    on_springs(monkeypatch, radical)
    cold = GasConditions(temperatures=(5.0,))
    study = harmonic_frequencies(radical, ON_SPRINGS, cold, allow_gradient=True, listener=Silent())
    for found in (study, make_thermochemistry(hessian_of(study, "f.h5"), cold)):
        assert DEGENERATE in found.notes
        assert {"TOO COLD", "NO STATIONARY POINT"} < {
            note.partition(":")[0] for note in found.notes
        }


def test_hydrogen_fluoride_as_in_cfour():
    """Conventional MP2/cc-pVDZ with frozen core (QCEngine, standard_suite_ref.py, commit a97b4695).

    Density fitting changes the Hessian by 1e-4. A = 974.88 (d mu / d r)^2 / m.
    """
    molecule = Molecule(("H", "F"), [[0, 0, -1.64558411], [0, 0, 0.08729475]])
    options = make_options(basis="cc-pvdz", frozen_core="auto", scf="conventional", threads=1)
    study = harmonic_frequencies(molecule, options, allow_gradient=True, listener=Silent())
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
    """Published DF-MP2 frequencies (psi4/psi4: tests/dfmp2-freq1 and dfmp2-freq2, commit 27e1b15f),
    to one decimal."""
    bond, angle = 0.958 / 0.52917721067, np.radians(104.4776)
    ends = [[0, 0, 0], [bond, 0, 0], [bond * np.cos(angle), bond * np.sin(angle), 0]]
    options = make_options(basis="cc-pvdz", frozen_core="auto", threads=1)
    study = harmonic_frequencies(
        Molecule(("O", "H", "H"), ends), options, allow_gradient=True, listener=Silent()
    )
    assert study.table["wavenumber"].values == pytest.approx([1635.3, 3933.1, 4071.9], abs=0.2)


@pytest.mark.parametrize(
    ("molecule", "numbers", "symmetry"),
    [
        (WATER, [1663.0, 3657.0, 3833.0], 2),
        (Molecule(("O", "H"), [[0, 0, 0], [0, 0, 1.84]], multiplicity=2), [3700.0], 1),
        (FLAT_AMMONIA, [-500.0, 1704.0, 1704.0, 3664.0, 3889.0, 3889.0], 6),
    ],
    ids=["water", "hydroxyl", "flat ammonia"],
)
def test_shares_of_the_thermochemistry(molecule, numbers, symmetry):
    """Formulas of a rigid rotor and harmonic oscillators, written out; CODATA 2018."""
    kelvin, pascal, energy = 350.0, 2.0e5, -76.0
    found = thermochemistry(molecule, energy, np.array(numbers), kelvin, pascal, symmetry)
    expected = ideal_gas(
        masses=masses(molecule),
        places=molecule.coordinates,
        wavenumbers=numbers,
        energy=energy,
        multiplicity=molecule.multiplicity,
        kelvin=kelvin,
        pascal=pascal,
        symmetry=symmetry,
    )
    values = {name: item.value for name, item in found.items()}
    assert values == pytest.approx(expected, rel=1e-9)


def test_bonds_angles_and_contacts_of_a_geometry() -> None:
    """Ammonia beside a water, against ASE."""
    atoms = Atoms(
        "OH2NH3",
        [
            [0, 0, 0],
            [0.95, 0.05, 0],
            [-0.3, 0.9, 0],
            [2.9, 0.3, 0.2],
            [3.3, 1.1, -0.3],
            [3.3, -0.6, -0.2],
            [3.2, 0.4, 1.2],
        ],
    )
    shape = structure(Molecule.from_ase(atoms))
    lengths = {pair: atoms.get_distance(*pair) for pair, _ in shape.bonds}
    assert list(lengths) == [(0, 1), (0, 2), (3, 4), (3, 5), (3, 6)]
    assert dict(shape.bonds) == pytest.approx(lengths)
    assert len(shape.angles) == 4
    assert dict(shape.angles) == pytest.approx(
        {place: atoms.get_angle(*place) for place, _ in shape.angles}
    )
    ((pair, distance),) = shape.contacts
    assert pair == (1, 3) and distance == pytest.approx(atoms.get_distance(1, 3))


@pytest.mark.parametrize(
    ("curvatures", "kind", "flat"),
    [
        ((0.3, 0.2, 1.1e-5), "minimum", 0),
        ((0.3, 9e-6, -9e-6), "minimum", 2),
        ((0.3, 9e-6, -1.1e-5), "transition state", 1),
        ((0.3, -0.2, -1.1e-5), "saddle point of order 2", 0),
    ],
)
def test_curvatures_within_the_noise_have_no_sign(curvatures, kind, flat):
    """A Hessian made of modes: H = sum of k_i / mu_i M^1/2 l_i l_i^T M^1/2."""
    x = WATER.coordinates - masses(WATER) @ WATER.coordinates / masses(WATER).sum()
    weights = np.sqrt(np.repeat(masses(WATER), 3))
    axes = np.eye(3)
    rigid = [np.tile(axis, (3, 1)) for axis in axes] + [np.cross(axis, x) for axis in axes]
    rigid = np.array([weights * motion.ravel() for motion in rigid])
    modes = np.linalg.svd(rigid)[2][6:]
    constants = np.array(curvatures) * ((modes / weights) ** 2).sum(axis=1)
    hessian = weights[:, None] * (modes.T * constants @ modes) * weights
    point = stationary_point(WATER, hessian, np.zeros((3, 3)))
    assert np.sort(point.curvatures) == pytest.approx(np.sort(curvatures), abs=1e-9)
    assert (point.kind, point.flat) == (kind, flat)
    assert [f"{flat} mode" in line for line in point.lines[1:]] == [True] * (flat > 0)
    if point.imaginary == 2:  # away from here along both, or along the second one alone
        for kept, expected in ((0, [1.0, 1.0]), (1, [0.0, 1.0])):
            move, back = (side - WATER.coordinates for side in point.sides(kept))
            assert move == pytest.approx(-back)
            assert np.linalg.norm(move, axis=1).max() == pytest.approx(0.1 / 0.529177210903)
            followed = point.modes.displacements[:2].reshape(2, -1).T
            shares, left_over, *_ = np.linalg.lstsq(followed, move.ravel(), rcond=None)
            assert left_over == pytest.approx(0.0, abs=1e-12)
            assert shares / shares[1] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["water", "carbon dioxide", "hydrogen peroxide"])
def test_modes_as_in_pyscf(name):
    """For a Hartree-Fock Hessian with the same masses: bent, linear, asymmetric; any position and
    orientation."""
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
    along = np.eye(3 * mole.natm)[:1]
    fixed, twice = (
        vibrations(molecule, flat, flat[:, :3], rows).wavenumber
        for rows in (along, np.vstack([along, 2 * along]))
    )
    assert len(twice) == len(found.wavenumber) and twice == pytest.approx(fixed)
    assert held.removed == 0 and held.wavenumber == pytest.approx(free["freq_wavenumber"], abs=0.01)


@pytest.mark.parametrize(("name", "degrees"), [("HCN", 1.0), ("OCO", 2.0)])
def test_a_nearly_straight_molecule_has_the_modes_of_a_straight_one(name, degrees):
    """The gas and the symmetry number, too; but its forces can bend it."""
    lengths = {"HCN": (1.07, 1.153), "OCO": (1.188, 1.188)}[name]
    found = []
    for bend in (0.0, np.radians(degrees)):
        first = np.array([np.sin(bend), 0, -np.cos(bend)]) * lengths[0]
        atoms = list(zip(name, [first, [0, 0, 0], [0, 0, lengths[1]]], strict=True))
        mole = gto.M(atom=atoms, basis="sto-3g", verbose=0)
        hessian = scf.RHF(mole).run(conv_tol=1e-11).Hessian().kernel()
        molecule = Molecule(list(name), mole.atom_coords())
        modes = vibrations(molecule, hessian.transpose(0, 2, 1, 3).reshape(9, 9), np.zeros((9, 3)))
        number = symmetry_number(molecule)
        assert number == {"HCN": 1, "OCO": 2}[name]
        assert symmetry_kept(molecule) == ("" if bend else "linear")
        gas = thermochemistry(molecule, 0.0, modes.wavenumber, 298.15, 101325.0, number)
        found.append((modes, gas))
    (straight, its), (bent, gas) = found
    assert bent.removed == straight.removed == 5
    assert bent.wavenumber == pytest.approx(straight.wavenumber, abs=1.0)
    for quantity in ("entropy", "zero_point_energy", "heat_capacity"):
        assert gas[quantity].value == pytest.approx(its[quantity].value, rel=1e-3)


BODIES = {
    "water": ("O 0 0 0.12; H 0 0.76 -0.47; H 0 -0.76 -0.47", 2),
    "ammonia": ("N 0 0 0.1; H 0.94 0 -0.27; H -0.47 0.814 -0.27; H -0.47 -0.814 -0.27", 3),
    "methane": ("C 0 0 0; H .63 .63 .63; H -.63 -.63 .63; H -.63 .63 -.63; H .63 -.63 -.63", 12),
    "hydrogen fluoride": ("F 0 0 0; H 0.9 0 0", 1),
    "carbon dioxide": ("C 0 0 0; O 0.6 0.7 0.7; O -0.6 -0.7 -0.7", 2),
    "hypofluorous acid": ("O 0 0 0; F 1.44 0 0; H -0.13 0.96 0", 1),
    "formaldehyde": ("C 0 0 0; O 0 0.1 1.2; H 0 0.94 -0.6; H 0 -0.9 -0.68", 1),
    "octahedron": (
        "S 0 0 0; F 1.6 0 0; F -1.6 0 0; F 0 1.6 0; F 0 -1.6 0; F 0 0 1.6; F 0 0 -1.6",
        24,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_symmetry_numbers(name):
    """Also with the noise that an optimisation leaves."""
    atoms, expected = BODIES[name]
    mole = gto.M(atom=atoms, basis="sto-3g", verbose=0, spin=None)
    noise = np.random.default_rng(3).uniform(-2e-3, 2e-3, (mole.natm, 3))
    molecule = Molecule([mole.atom_symbol(k) for k in range(mole.natm)], mole.atom_coords() + noise)
    assert symmetry_number(molecule) == expected


def test_an_isotope_in_a_ring_breaks_its_symmetry():
    turns = np.arange(6) * np.pi / 3
    ring = np.column_stack([np.cos(turns), np.sin(turns), np.zeros(6)])
    benzene = Molecule(("C",) * 6 + ("H",) * 6, np.vstack([2.63 * ring, 4.68 * ring]))
    weights = masses(benzene)
    weights[0] = 13.003355
    assert (symmetry_number(benzene), symmetry_number(benzene, weights)) == (12, 2)


@pytest.mark.parametrize("name", BODIES)
def test_forces_keep_a_molecule_on_a_line_or_in_a_plane(name):
    """If that is not just because it has two or three atoms; point charges push it out."""
    kept = {"carbon dioxide": "linear", "formaldehyde": "planar"}
    molecule = Molecule.from_string(BODIES[name][0])
    assert symmetry_kept(molecule) == kept.get(name, "")
    assert symmetry_kept(molecule.in_field([[0, 0, 9, 0.1]])) == ""


@pytest.mark.parametrize(
    "atoms", ["F 0 0 0; F 0 0 1.41", "P 0 0 0.5; F 1.4 0 0; F -0.7 1.2124 0; F -0.7 -1.2124 0"]
)
def test_thermochemistry_as_in_pyscf(atoms):
    """Elements with one isotope, since PySCF uses average masses, and its symmetry number; its
    constants are of CODATA 2014, up to 6e-7 from those of 2018."""
    mole = gto.M(atom=atoms, basis="sto-3g", verbose=0)
    molecule = Molecule([mole.atom_symbol(k) for k in range(mole.natm)], mole.atom_coords())
    wavenumbers = np.array([-300.0, 340.0, 480.0, 1200.0])

    class Field:
        mol, e_tot = mole, -10.0

    roots = wavenumbers / 219474.6313632 * np.sqrt(1822.888486209)
    expected = thermo.thermo(Field, roots, 400.0, 2e5)
    found = thermochemistry(molecule, -10.0, wavenumbers, 400.0, 2e5, expected["sym_number"][0])
    for name, theirs in (
        ("zero_point_energy", "ZPE"),
        ("total_energy_at_0_kelvin", "E_0K"),
        ("internal_energy", "E_tot"),
        ("enthalpy", "H_tot"),
        ("gibbs_energy", "G_tot"),
        ("entropy", "S_tot"),
        ("heat_capacity", "Cp_tot"),
    ):
        unit = 2625499.64 if "K)" in found[name][1] else 1.0
        assert found[name][0] == pytest.approx(expected[theirs][0] * unit, rel=1e-6, abs=1e-8)


def test_small_runs_are_shared_by_processes(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One per core, with one thread each."""
    (folder / "hf.xyz").write_text("2\n\nF 0 0 0\nH 0 0 0.94\n")
    level = ("--basis", "sto-3g", "--stability", "off")
    command = ("frequencies", "hf.xyz", *level, "--allow-gradient", "--json")
    alone = succeed(call(*command, "--output", "x.h5", "--threads", "1"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    shared = succeed(call(*command, "--output", "y.h5"))
    assert shared.err.count(": done") == 12 and alone.err.count(": done") == 0
    runs = read_study(folder / "y.h5").runs
    assert [run.provenance.threads for run in runs.values()] == [2] + [1] * 12
    found, expected = (done.json["table"]["wavenumber"] for done in (shared, alone))
    assert found == pytest.approx(expected, rel=1e-7)


# --- wrong requests -------------------------------------------------------------------------------


VALUES = {
    "angle": ("2,1,3", ("0.001", "179.999"), ("0", "180", "-1", "nan")),
    "dihedral": ("1,2,3,4", ("-359.999", "359.999"), ("-360", "360", "inf")),
    "bond": ("1,2", ("0.001", "999.9"), ("0", "1000", "-1", "nan")),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_constraints_end_at_their_limits(kind: str) -> None:
    atoms, inside, outside = VALUES[kind]
    places = [[0, 0, 0], [0, 1.4, -0.9], [0.1, -1.5, -0.8], [1.9, 0.3, 0.4]]
    molecule = Molecule(("N", "H", "H", "H"), places)
    for value in inside:
        written = Constraints(fixed=[(kind, atoms, value)]).for_geometric(molecule)
        assert float(written.split()[-1]) == float(value)
    for value in outside:
        with recorded_error(InputError):
            Constraints(fixed=[(kind, atoms, value)]).for_geometric(molecule)


def test_without_geometric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geometric", None)
    with recorded_error(Dfmp2Error) as refused:
        optimized(WATER, Search())
    assert refused.value.exit_code == 3
