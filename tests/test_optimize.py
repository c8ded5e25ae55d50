"""Optimisations and frequencies against other starts, second differences and PySCF's analysis;
wrong requests."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ase import Atoms
from pyscf import gto
from pyscf.hessian import thermo
from scipy.spatial.transform import Rotation

from dfmp2.errors import Dfmp2Error, InputError, Interrupted
from dfmp2.molecule.elements import internal_coordinate, mass
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import structure
from dfmp2.mp2.energy import mp2_energy
from dfmp2.options import make_options
from dfmp2.output.reports.study import remarks
from dfmp2.output.study import Study, read_study
from dfmp2.progress import Silent
from dfmp2.studies.composite import at_level
from dfmp2.studies.coordinate import Constraints
from dfmp2.studies.degeneracy import DEGENERATE
from dfmp2.studies.frequencies import StoredHessian, harmonic_frequencies, hessian_of
from dfmp2.studies.geometric_search import MINIMUM, GeomeTRIC, Search, quiet
from dfmp2.studies.ideal_gas import GasConditions
from dfmp2.studies.keeper import Keeper
from dfmp2.studies.optimize import Course, optimize_geometry
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
from tests.conftest import Heard, Runner, succeed
from tests.ideal_gas import ideal_gas
from tests.recorded import recorded_error, recorded_failure
from tests.springs import (
    ANGLE,
    BOND,
    CHARGES,
    HANDED,
    ON_SPRINGS,
    network,
    on_springs,
    pyramid,
    pyramids,
    run_of,
    second_derivatives,
    slopes,
    springs,
)

ANGSTROM = 1 / 0.529177210903
WATER = Molecule(("O", "H", "H"), [[0, 0, 0.22], [0, 1.43, -0.88], [0.1, -1.5, -0.8]])


FLUORIDE_AND_WATER = Molecule.from_string(
    "F 0 0 0; O 2.7 0.1 0; H 1.75 0.2 0.05; H 3 0.9 0.3", charge=-1
)
AMMONIA = Molecule.from_string("N 0 0 .1; H .95 0 -.25; H -.5 .83 -.2; H -.45 -.82 -.25")
PEROXIDE = Molecule.from_string("O 0 .7 0; O 0 -.7 0; H .9 .9 .1; H -.3 -.9 .8")
TRIAZIRINE = Molecule.from_string("N 0 .8 0; N .65 -.6 0; N -.65 -.6 .05; H 0 1.4 .92")
FLUORIDE = Molecule(("F", "H"), [[0, 0, 0], [0.4, 0.9, 1.5]])


def optimized(molecule, search=MINIMUM, options=ON_SPRINGS, **how):
    return optimize_geometry(molecule, options, search, **{"listener": Silent(), **how})


def optimized_on_springs(patch, molecule, search=MINIMUM, energy=springs):
    on_springs(patch, molecule, energy)
    return optimized(molecule, search)


def coordinate(study, *atoms):
    return internal_coordinate(study.arrays["final_geometry"].value[[atom - 1 for atom in atoms]])


# --- optimisations --------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("held", ["", "$freeze\ndihedral 3 1 2 4\ndistance 1 2\n"])
def test_the_model_hessian_by_kind_of_coordinate(alone, held):
    """HSOH, alone or beside HCN and CH2O: 0.02 Eh/bohr^2 between fragments, the softest 1e-5; the
    same second derivatives of Cartesian coordinates, with and without constraints. Of a torsion
    0.0023 - 0.07 (r - r_cov), r_cov of S and O 1.05 and 0.66 angstrom, 0.0023 at least."""
    length = 3.0 if alone else 3.4
    atoms = (
        f"O 0 {length - 1.6} -.11; S 0 -1.6 -.11; H 1.47 1.7 .9; H -1.4 -1.7 1.1; "
        "N 0 0 11.2; C 0 0 9; H 0 0 7; C 9 0 0; O 11.3 0 0; H 8 1.7 0; H 8 -1.7 0"
    )
    rows = atoms.split(";")[: 4 if alone else 11]
    softer = {"Distance": 0.5, "Angle": 0.3, "Dihedral": 0.2}
    if not alone:
        softer |= {"LinearAngle": 0.1, "OutOfPlane": 0.2}
    start = Molecule.from_string(";".join(rows), units="bohr")
    inner, place = GeomeTRIC(start, MINIMUM, held)._optimizer.IC, start.coordinates.ravel()
    kinds = [type(primitive).__name__ for primitive in inner.Prims.Internals]
    assert set(softer) < set(kinds)
    model, softest = [], []
    for kind, plain in zip(kinds, inner.Prims.guess_hessian(place).diagonal(), strict=True):
        if kind.startswith(("Translation", "Rotation")) and not alone:
            model.append(0.02)
            softest.append(1e-5)
            continue
        if kind == "Dihedral":
            plain = 0.0023 - 0.07 * min(0.0, length - (1.05 + 0.66) * ANGSTROM)
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
    options = replace(ON_SPRINGS, os_scale=0.5, ss_scale=2.0)
    study = optimized(FLUORIDE, MINIMUM, options)
    names, runs = zip(*study.runs.items(), strict=True)
    starts = [run.reference.start for run in runs[1:]]
    assert starts == [f"orbitals of {name}" for name in names[:-1]]
    length = coordinate(study, 1, 2)

    def energy(bond):
        stretched = Molecule(("F", "H"), [[0, 0, 0], [0, 0, bond]])
        run = mp2_energy(stretched, options, listener=Silent())
        return run.scf_total_energy + run.scaled_mp2_correlation_energy

    assert energy(length) == pytest.approx(study.values["optimized_total_energy"].value, abs=1e-8)
    assert energy(length) < min(energy(length - 0.01), energy(length + 0.01))


def test_the_gradient_at_a_limit_is_the_slope_of_its_energy():
    """Between the two geometries of a search for H2; the third derivative adds 1.6 %."""
    start = Molecule(("H", "H"), [[0, 0, 0], [0, 0, 1.36]])
    level = at_level(make_options(basis="cc-pv[dt]z", stability="off", threads=1))
    first, last = optimized(start, Search(convergence="gau_loose"), level).results.values()
    moved = last.molecule.coordinates - first.molecule.coordinates
    mean = (first.gradient.total_gradient + last.gradient.total_gradient) / 2
    assert last.total_energy - first.total_energy == pytest.approx(np.vdot(mean, moved), rel=0.02)


def test_constrained_water_as_in_psi4():
    """Psi4 (tests/pytests/test_geometric.py, commit 886caaab): DF-MP2/cc-pVDZ with geomeTRIC, angle
    of 90 degrees, reached from another one."""
    start = Molecule.from_string("O 0 0 0; H 1 0 0; H -0.05 1 0")
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


def test_a_geometry_that_is_held_whole_has_no_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(Constraints([("bond", "1,2")]), convergence="gau_tight", verify=True)
    study = optimized_on_springs(monkeypatch, FLUORIDE, search)
    assert study.settings["limits"] == {  # as Gaussian's opt=tight, its namesake
        "max_gradient": 1.5e-5,
        "rms_gradient": 1.0e-5,
        "max_displacement": 6.0e-5,
        "rms_displacement": 4.0e-5,
    }
    assert study.settings["imaginary_modes"] == 0 and study.arrays["wavenumbers"].value.size == 0
    assert any(note.endswith("minimum: 0 imaginary modes of 0") for note in study.notes)


def _value(molecule, atoms):
    """A distance (bohr), angle or dihedral (degree) by ASE, or a position (bohr)."""
    place = Atoms(molecule.symbols, molecule.coordinates)
    if len(atoms) == 1:
        return place.positions[atoms[0]]
    if len(atoms) == 2:
        return place.get_distance(*atoms)
    if len(atoms) == 3:
        return place.get_angle(*atoms)
    return place.get_dihedral(*atoms)


@pytest.mark.parametrize(
    ("start", "constraints", "held"),
    [
        (FLUORIDE_AND_WATER, Constraints([("bond", "1,2")]), {(0, 1): None}),
        (
            AMMONIA,
            Constraints([("xyz", "2+4"), ("bond", "1,3")]),
            {(1,): None, (3,): None, (0, 2): None},
        ),
        (
            PEROXIDE,
            Constraints(fixed=[("dihedral", "3,1,2,4", "100"), ("bond", "1,2", "1.5")]),
            {(2, 0, 1, 3): 100.0, (0, 1): 1.5 * ANGSTROM},
        ),
        (TRIAZIRINE, Constraints(fixed=[("bond", "1,2", "1.6")]), {(0, 1): 1.6 * ANGSTROM}),
    ],
    ids=["two fragments", "frozen atoms", "two constraints", "ring"],
)
def test_the_free_gradient_vanishes(start, constraints, held, monkeypatch):
    """What is left of the gradient in a least-squares fit by the derivatives of the constraints,
    where springs pull all atoms elsewhere."""
    energy = partial(network, start.coordinates * [1.06, 0.96, 1.12])
    search = Search(constraints, max_steps=60)
    study = optimized_on_springs(monkeypatch, start, search, energy)
    last = study.last
    for atoms, value in held.items():
        expected = _value(start, atoms) if value is None else value
        assert _value(last, atoms) == pytest.approx(expected, abs=1e-4)
    derivatives = []
    for index in np.ndindex(last.coordinates.shape):
        ends = []
        for sign in (1, -1):
            moved = last.coordinates.copy()
            moved[index] += sign * 1e-4
            ends.append([_value(replace(last, coordinates=moved), atoms) for atoms in held])
        derivatives.append(np.hstack(ends[0]) - np.hstack(ends[1]))
    gradient = slopes(last.coordinates, energy).ravel()
    free = gradient - derivatives @ np.linalg.lstsq(derivatives, gradient, rcond=None)[0]
    largest = np.linalg.norm(free.reshape(-1, 3), axis=1).max()
    assert study.table["max_gradient"].values[-1] == pytest.approx(largest, abs=1e-6)
    assert largest < 4.5e-4 < abs(gradient).max()


def test_a_frozen_atom_among_charges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Water turns about its oxygen until no force is left on the others."""
    charges = np.array([[2.9, 0.4, 0.3, -0.7], [-1.5, -2.6, 1, 0.5], [0.3, 3.4, -1.2, 0.4]])
    charges[:, :3] *= ANGSTROM
    places = np.array([[0, 0, 0], [0.96, 0.1, 0], [-0.3, 0.92, 0.1]]) * ANGSTROM
    start = Molecule(("O", "H", "H"), places).in_field(charges)

    def energy(place):
        apart = np.linalg.norm(place[:, None] - charges[:, :3], axis=2)
        return springs(place) + (np.outer(CHARGES[:3], charges[:, 3]) / apart).sum()

    search = Search(Constraints([("xyz", "1")]), convergence="gau_tight", max_steps=40)
    found = optimized_on_springs(monkeypatch, start, search, energy).last.coordinates
    assert found[0] == pytest.approx(places[0], abs=1e-6)
    assert np.abs(slopes(found, energy)[1:]).max() < 2e-5


def test_a_turn_among_charges_is_a_displacement():
    """geomeTRIC superposes both geometries, and would end at the first turn, however long it is."""
    start = Molecule(("F", "H"), [[0, 0, 0], [0, 0, 1.8]]).in_field([[0, 0, 30, 0.1]])
    held = np.diag([0.5, 0.5, 0.5, 1e-3, 1e-3, 0.5])  # Eh/bohr^2

    def pulled(place):
        return 2e-5 * place[1, 0]

    with quiet():
        method = GeomeTRIC(start, MINIMUM, "")
    method.judge(run_of(start, energy=pulled), held)
    place = method.next_geometry()
    point = method.judge(run_of(replace(start, coordinates=place), energy=pulled))
    assert point.max_displacement > 5 * method.limits["max_displacement"]
    assert point.max_gradient < method.limits["max_gradient"]
    assert method.next_geometry() is not None and not method.converged


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


# --- what a stationary point is -------------------------------------------------------------------

BORANE = Molecule(("B", "H", "H", "H"), pyramid(np.pi / 2))
STRAIGHT_WATER = Molecule(("O", "H", "H"), [[0, 0, 0], [0, 0, 1.78], [0, 0, -1.78]])


def test_two_atoms_attract_each_other_from_afar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lennard-Jones atoms, beyond the inflection: the gradient counts as converged, and the model's
    next step is short. A measured curvature, which is negative, counts as no step."""

    def energy(place):
        sixth = (5.0 / np.linalg.norm(place[1] - place[0])) ** 6
        return 1.2e-4 * (sixth**2 - 2 * sixth)

    apart = Molecule(("He", "H"), [[0, 0, 0], [0, 0, 3.0 * ANGSTROM]], charge=1)
    study = optimized_on_springs(monkeypatch, apart, Search(max_steps=5), energy)
    assert study.settings["steps"] == 5 and list(study.runs)[1] == "curvature-001"
    assert coordinate(study, 1, 2) == pytest.approx(5.0, abs=0.02)
    measured = next(note for note in study.notes if note.startswith("curvature along"))
    assert float(re.search(r"measured: (\S+)", measured)[1]) < 0


def test_gradients_and_moves_of_an_optimisation_are_those_of_its_atoms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moves are those since the geometry before, after a turn."""
    start = Molecule(("O", "H", "H"), [[0.1, 0, 0.2401], [0, 1.6, -0.9605], [0, -1.2, -1.2]])
    study = optimized_on_springs(monkeypatch, start)
    runs = list(study.path.values())
    assert runs[1].reference.start == "orbitals of step-000"
    lengths = [np.linalg.norm(run.gradient.total_gradient, axis=1) for run in runs]
    moves = [np.full(3, np.nan)]
    for before, after in pairwise(runs):
        ends = [run.molecule.coordinates for run in (before, after)]
        first, second = (place - place.mean(axis=0) for place in ends)
        turn, _ = Rotation.align_vectors(second, first)
        moves.append(0.529177210903 * np.linalg.norm(second - turn.apply(first), axis=1))
    assert len(runs) > 3
    for kind, rows in (("gradient", lengths), ("displacement", moves)):
        largest, mean = (study.table[f"{what}_{kind}"].values for what in ("max", "rms"))
        np.testing.assert_allclose(largest, np.max(rows, axis=1), rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(
            mean, np.sqrt(np.mean(np.square(rows), axis=1)), rtol=1e-6, atol=1e-12
        )


def test_a_saddle_point_is_left_along_its_imaginary_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to the known minimum, in the same study."""
    study = optimized_on_springs(monkeypatch, STRAIGHT_WATER, Search(verify=True))
    assert hessian_of(study, "it").molecule == study.last != STRAIGHT_WATER
    assert study.complete and study.title.startswith("minimum of")
    assert study.settings["stationary_point"] == "minimum" and study.settings["restarts"] == 1
    assert any("saddle point of order 2: 2 imaginary modes of 4" in note for note in study.notes)
    assert study.values["optimized_total_energy"].value == pytest.approx(0.0, abs=1e-6)
    assert len(study.table["step"].values) == len(study.path) == study.settings["steps"] + 1
    sides = [name for name in study.runs if name.endswith(("-plus", "-minus"))]
    assert len(sides) == 2 and len(set(study.path) & set(sides)) == 1
    steps = study.settings["steps"]  # counted from the first geometry
    assert optimized(STRAIGHT_WATER, Search(max_steps=steps, verify=True)).complete
    with pytest.raises(Unfinished) as caught:
        optimized(STRAIGHT_WATER, Search(max_steps=steps - 1, verify=True))
    stopped = caught.value.study  # beyond the geometry of the Hessian
    assert stopped.settings["imaginary_modes"] is None and stopped.title.startswith("stationary")
    with recorded_error(InputError):
        hessian_of(stopped, "it")
    # What is held has the value of the start, not that of the side from which it goes on.
    bent = optimized(STRAIGHT_WATER, Search(Constraints([("bond", "1,2")]), verify=True))
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
            study = optimized(start, Search(transition_state=transition_state, verify=verify))
            titles.append(study.title.removesuffix(", DF-MP2/sto-3g"))
            found = study.values["optimized_total_energy"].value
            assert found == pytest.approx(energies[place], abs=1e-6)
            assert study.settings["imaginary_modes"] == (place if verify else None)
            kind = "transition state" if transition_state else "minimum"
            assert verify != any(f"not verified as a {kind}" in note for note in study.notes)
            displaced = [name for name in study.runs if "plus-" in name or "minus-" in name]
            assert len(displaced) == 24 * (transition_state + verify)
            assert {study.runs[name].options.scf_conv_tol for name in displaced} <= {1e-11}
            if verify:  # of six modes the lowest three are named
                (line,) = (note for note in study.notes if "imaginary mode" in note)
                lowest = study.arrays["wavenumbers"].value[:3]
                named = ", ".join(f"{abs(x):.1f}{'i' if x < 0 else ''}" for x in lowest)
                assert line.endswith(f" of 6; lowest: {named} cm^-1")
            elif transition_state:
                stored = hessian_of(study, "it")
                second = second_derivatives(start.coordinates)
                assert stored.at_start and stored.hessian == pytest.approx(second, abs=2e-5)
                del study.runs["minus-004-z"]
                with recorded_error(InputError):
                    hessian_of(study, "it")
    assert titles == [
        "stationary point of molecule (H3N)",
        "minimum of molecule (H3N)",
        "stationary point of molecule (H3N), sought as a transition state",
        "transition state of molecule (H3N)",
    ]


def test_a_planar_minimum_stays(monkeypatch):
    """Borane: no new start, and only the densities of the last step are left."""

    def energy(place):
        directions = (place[1:] - place[0]) / BOND
        return network(BORANE.coordinates, place) + 0.05 * np.linalg.det(directions) ** 2

    on_springs(monkeypatch, BORANE, energy)
    monkeypatch.setattr(StationaryPoint, "flat", 2)  # it has none
    stretched = replace(BORANE, coordinates=1.1 * BORANE.coordinates)
    for verify in (False, True):
        heard = Heard()
        study = optimized(stretched, Search(verify=verify), listener=heard)
        for texts in (heard.stages, study.notes):
            assert any("the start is planar" in text for text in texts) is not verify
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
    level = ("--basis", "sto-3g", "--stability", "off", "--threads", "1")
    done = call("optimize", "w.xyz", *level, "--verify")
    recorded_failure(done, 4)
    assert "NOT FINISHED: saddle point of order 2 after" in done.out
    found = read_study("w.optimization.h5")
    assert found.settings["imaginary_modes"] == 2 and found.arrays["wavenumbers"].value.size == 4


@pytest.mark.parametrize(
    ("most", "saddle", "steps", "restarts", "basis", "fits"),
    [
        (500 - 50 - 2 * 18, False, 3, 0, "sto-3g", True),
        (501 - 50 - 2 * 18, False, 3, 0, "sto-3g", False),
        (500 - 50 - 5 * 18, True, 3, 2, "sto-3g", True),
        (501 - 50 - 5 * 18, True, 3, 2, "sto-3g", False),
        (250 - 50 - 2 * 18, False, 3, 0, "cc-pv[dt]z", True),
        (251 - 50 - 2 * 18, False, 3, 0, "cc-pv[dt]z", False),
        (10, False, 8, 2, "sto-3g", True),
        (10, False, 9, 2, "sto-3g", False),
        (10, False, 8, 3, "sto-3g", False),
    ],
)
def test_a_new_start_fits_into_the_runs_of_a_study(most, saddle, steps, restarts, basis, fits):
    """Those before and the next one: Hessians of water, 18 runs each, beside the steps and 50 more.
    One step at least is left for it, and there are three new starts."""
    course = SimpleNamespace(
        _search=SimpleNamespace(max_steps=most, transition_state=saddle),
        _molecule=WATER,
        _first=Step("a", "a", WATER, at_level(make_options(basis=basis))),
        _restarts=restarts,
        _steps=lambda: steps,
    )
    assert Course._may_restart(course) is fits


def from_hessian(patch, start, second, **search):
    """A loose search on springs with the Hessian of its start, as from a file."""
    on_springs(patch, start)
    stored = StoredHessian("x.h5", SimpleNamespace(molecule=start, level="springs"), second)
    search = Search(convergence="gau_loose", **search)
    return optimize_geometry(start, ON_SPRINGS, search, start_hessian=stored, listener=Silent())


@pytest.mark.parametrize(("longer", "steps"), [(1.8e-3, 0), (2.8e-3, 1)])
def test_an_energy_that_would_still_fall_is_not_converged(
    longer: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bond too long by x is 0.25 x^2 Eh too high: 0.8 and 2.0 uEh, where the other measures are
    within their bounds and 1 uEh is the bound of the energy."""
    start = Molecule(("F", "H"), [[0, 0, 0], [0, 0, BOND + longer]])
    second = np.kron([[1, -1], [-1, 1]], np.diag([0.0, 0.0, 0.5]))
    study = from_hessian(monkeypatch, start, second)
    assert study.settings["steps"] == steps
    assert list(study.runs) == list(study.path)  # the curvature is known
    assert "by geomeTRIC" in study.notes[0]


@pytest.mark.parametrize(("tilt", "needless"), [(2e-3, True), (6e-3, False)])
def test_an_energy_that_would_still_rise_is_not_converged(
    tilt: float, needless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the saddle point between two pyramids, where the other measures are within bounds."""
    tilts, (_, top, _) = pyramids()
    start = Molecule(("N", "H", "H", "H"), pyramid(tilts[1] + tilt))
    second = second_derivatives(start.coordinates)
    study = from_hessian(monkeypatch, start, second, transition_state=True, max_steps=490)
    assert (study.settings["steps"] == 0) is needless
    rise = top - springs(start.coordinates)
    assert (rise < 1e-6) is needless and rise > 1e-8


def bent(degrees, length):
    """Water with two equal bonds."""
    half = np.radians(degrees / 2)
    arm = length * np.array([np.sin(half), np.cos(half)])
    return Molecule(("O", "H", "H"), [[0, 0, 0], [0, *arm], [0, -arm[0], arm[1]]])


def test_a_constrained_minimum_is_one_along_its_constraints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Water on springs, held at 140 degrees: the Hessian of the energy falls along the angle, which
    is fixed; two modes are left, the stretches, whose force constant is 0.5 Eh/bohr^2."""
    search = Search(Constraints(fixed=[("angle", "2,1,3", "140")]), verify=True)
    study = optimized_on_springs(monkeypatch, bent(139.9, 1.81), search)
    modes = study.arrays["wavenumbers"].value
    assert len(modes) == 2 and study.settings["stationary_point"] == "minimum"
    cosine = np.cos(np.radians(140))
    expected = []
    for sign in (1, -1):  # G matrix of symmetric and antisymmetric stretch at a fixed angle
        inverse = 1 / mass("H") + (1 + sign * cosine) / mass("O")
        expected.append(219474.6313632 * np.sqrt(0.5 * inverse / 1822.888486209))
    assert sorted(modes) == pytest.approx(sorted(expected), rel=2e-3)


def test_a_curvature_is_measured_along_the_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Water on springs, held at 140 degrees, with bonds 5e-4 bohr too long: only they change. One
    displaced gradient shows their 0.5 Eh/bohr^2, along which all atoms move."""
    held = Search(Constraints([("angle", "2,1,3")]))
    study = optimized_on_springs(monkeypatch, bent(140, BOND + 5e-4), held)
    assert list(study.runs) == ["step-000", "curvature-001"]
    probe = study.runs["curvature-001"].molecule
    assert probe.angle(2, 1, 3) == pytest.approx(140, abs=1e-3)
    moved = [internal_coordinate(probe.coordinates[[0, k]]) - BOND - 5e-4 for k in (1, 2)]
    assert moved[0] == pytest.approx(moved[1], abs=1e-6) and moved[0] < -1e-3
    (measured,) = (note for note in study.notes if note.startswith("curvature along"))
    assert measured not in remarks(study)  # on the screen, which has other things to show
    path = ((probe.coordinates - study.last.coordinates) ** 2).sum()
    said = float(re.search(r"measured: (\S+)", measured)[1])
    assert said == pytest.approx(0.5 * np.square(moved).sum() / path, rel=0.01)
    slope = float(re.search(r"slope of (\S+)", measured)[1])
    assert slope == pytest.approx(0.5 * 5e-4 * abs(sum(moved)) / np.sqrt(path), rel=0.05)


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


# --- frequencies ----------------------------------------------------------------------------------


def test_modes_of_a_saddle_point_and_of_a_molecule_among_charges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pyramid turned inside out, against second differences of the springs: the imaginary mode is
    left out of the gas. Among charges all motions are modes, and there is no gas."""
    tilts, energies = pyramids()
    top = Molecule(("N", "H", "H", "H"), pyramid(tilts[1]))
    asked = on_springs(monkeypatch, top)
    conditions = GasConditions((350.0,), (2e5,), symmetry=6)
    study = harmonic_frequencies(top, ON_SPRINGS, conditions, displacement=3e-3, listener=Silent())
    moves = [one.coordinates - top.coordinates for one in asked[1:]]
    assert [abs(move).max() for move in moves] == pytest.approx([3e-3] * 24)
    second = second_derivatives(top.coordinates)
    assert study.arrays["hessian"].value == pytest.approx(second, abs=2e-5)
    modes = study.table["wavenumber"].values
    assert modes[0] < -900 and min(modes[1:]) > 0
    assert "imaginary modes are left out of the thermochemistry" in study.notes
    gas = ideal_gas(
        masses=masses(top),
        places=top.coordinates,
        wavenumbers=modes,
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
    assert among.table["wavenumber"].values[-5:] == pytest.approx(modes[1:], rel=1e-3)
    assert "symmetry_number" not in among.settings
    assert any("all its motions are listed" in note for note in among.notes)
    no_gas = hessian_of(among, "f.h5")
    free = hessian_of(study, "f.h5")
    held = replace(free, constrained=True)
    for stored in (no_gas, replace(free, at_start=True), held):
        with recorded_error(InputError):
            stored.require_gas()
    for stored, molecule in ((no_gas, field), (free, field), (no_gas, top), (held, top)):
        with recorded_error(InputError):
            stored.turned_to(molecule)


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


@pytest.mark.slow
def test_hydrogen_fluoride_as_in_cfour():
    """Conventional MP2/cc-pVDZ with frozen core (QCEngine, standard_suite_ref.py, commit a97b4695);
    density fitting changes the Hessian by 1e-4."""
    molecule = Molecule(("H", "F"), [[0, 0, -1.64558411], [0, 0, 0.08729475]])
    options = make_options(basis="cc-pvdz", frozen_core="auto", scf="conventional", threads=1)
    study = harmonic_frequencies(molecule, options, allow_gradient=True, listener=Silent())
    signs = np.array([[1, -1], [-1, 1]])
    expected = np.kron(signs, np.diag([-0.00183193, -0.00183193, 0.64212587]))
    assert study.arrays["hessian"].value == pytest.approx(expected, abs=2e-4)


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


@pytest.mark.parametrize(
    "atoms",
    [
        "O 0 0 0.12; H 0 0.76 -0.47; H 0 -0.66 -0.57",
        "C 0 0 0; O 0.6 0.7 0.7; S -0.8 -0.7 -0.6",
        "N 0 0.7 0; F 0 -0.7 0; H 0.9 0.9 0.1; H -0.3 1.9 0.8",
    ],
    ids=["bent", "linear", "without symmetry"],
)
def test_modes_as_in_pyscf(atoms):
    """For the Hessian of springs with the same masses, in any position and orientation."""
    mole = gto.M(atom=atoms, basis={}, verbose=0, spin=None)
    places = mole.atom_coords()
    flat = second_derivatives(places)
    hessian = flat.reshape(mole.natm, 3, mole.natm, 3).transpose(0, 2, 1, 3)
    molecule = Molecule([mole.atom_symbol(k) for k in range(mole.natm)], places)
    found = vibrations(molecule, flat, np.zeros((3 * mole.natm, 3)))
    weights = masses(molecule)
    expected = thermo.harmonic_analysis(mole, hessian, mass=weights, imaginary_freq=False)
    assert found.wavenumber == pytest.approx(expected["freq_wavenumber"], abs=0.01)
    held = vibrations(molecule.in_field([[0, 0, 40, 0.1]]), flat, np.zeros((3 * mole.natm, 3)))
    free = thermo.harmonic_analysis(mole, hessian, False, False, mass=weights, imaginary_freq=False)
    assert held.removed == 0 and held.wavenumber == pytest.approx(free["freq_wavenumber"], abs=0.01)
    along = np.eye(3 * mole.natm)[:1]
    fixed, twice = (
        vibrations(molecule, flat, flat[:, :3], rows).wavenumber
        for rows in (along, np.vstack([along, 2 * along]))
    )
    assert len(twice) == len(found.wavenumber) and twice == pytest.approx(fixed)


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
def test_symmetry_of_a_molecule(name):
    """Its number, also with the noise that an optimisation leaves; and whether its forces keep it
    on a line or in a plane, if that is not just because it has two or three atoms. Point charges
    push it out."""
    atoms, expected = BODIES[name]
    molecule = Molecule.from_string(atoms)
    noise = np.random.default_rng(3).uniform(-2e-3, 2e-3, (molecule.natom, 3))
    moved = replace(molecule, coordinates=molecule.coordinates + noise)
    assert symmetry_number(moved) == expected
    kept = {"carbon dioxide": "linear", "formaldehyde": "planar"}
    assert symmetry_kept(molecule) == kept.get(name, "")
    assert symmetry_kept(molecule.in_field([[0, 0, 9, 0.1]])) == ""


def test_small_runs_are_shared_by_processes(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One per core, with one thread each; the wavenumber is that of two of their gradients."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    level = ("--basis", "sto-3g", "--stability", "off", "--allow-gradient", "--output", "y.h5")
    shared = succeed(call("frequencies", "h2.xyz", *level, "--json"))
    runs = read_study(folder / "y.h5").runs
    assert [run.provenance.threads for run in runs.values()] == [2] + [1] * 12
    plus, minus = (runs[f"{sign}-002-z"].gradient.total_gradient for sign in ("plus", "minus"))
    constant = (plus - minus)[1, 2] / 0.01
    expected = 219474.6313632 * np.sqrt(2 * constant / mass("H") / 1822.888486209)
    assert shared.json["table"]["wavenumber"] == pytest.approx([expected], rel=1e-6)


# --- wrong requests -------------------------------------------------------------------------------


def test_without_geometric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geometric", None)
    with recorded_error(Dfmp2Error) as refused:
        optimized(WATER, MINIMUM)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(("handed", "lower"), [(-0.02, "plus"), (0.02, "minus")])
def test_a_saddle_point_is_left_on_its_lower_side(
    handed: float, lower: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of planar ammonia, whose pyramids differ in the third order of the tilt."""

    def energy(place: np.ndarray) -> float:
        arms = place[1:] - place[0]
        volume = np.linalg.det(arms / np.linalg.norm(arms, axis=1)[:, None])
        return springs(place) - HANDED * volume + handed * volume**3

    study = optimized_on_springs(monkeypatch, BORANE, Search(verify=True), energy)
    sides = {side: study.runs[f"step-001-{side}"].total_energy for side in ("plus", "minus")}
    assert min(sides, key=sides.get) == lower and np.ptp(list(sides.values())) > 1e-7
    assert list(study.path)[1] == f"step-001-{lower}"
