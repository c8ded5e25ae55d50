"""Energies along one or two coordinates, or of the frames of a file.

A rigid scan moves the atoms of one side and leaves everything else unchanged; every SCF starts from
the orbitals of the previous point. A relaxed scan holds the coordinates and optimises all others
(`dfmp2.studies.relaxed`). Two coordinates make a map, with one row for each value of the first.

A failed point is recorded with the exit code of its error, without affecting others. Along one
coordinate, all minima, maxima and barriers between the points are found (`dfmp2.studies.extrema`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Unpack

import numpy as np

from dfmp2.errors import Command, InputError, Option
from dfmp2.gradients.gradient import require_gradient
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.error_of_difference import relative_errors
from dfmp2.mp2.identity import point_charges_digest
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.methods import MP2
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import MOST_RUNS, Column, Study
from dfmp2.studies.composite import CompositeOptions, columns_of_bases, energy_columns
from dfmp2.studies.coordinate import Constraints, Coordinate, make_coordinate, show_atoms
from dfmp2.studies.extrema import make_curve, numbers_of_curve
from dfmp2.studies.geometric_search import Search
from dfmp2.studies.optimize import CITATION, relaxed_point, require_no_ghosts
from dfmp2.studies.relaxed import PASSES, Outcome, Relaxation, disagreements, run_name
from dfmp2.studies.runs import CarryOutKeywords, carry_out
from dfmp2.studies.task import Failures, Numbers, Results, Step, Task, certified, examine_steps
from dfmp2.units import KJ_PER_MOL_PER_HARTREE

NUMBERS: dict[
    str, tuple[str, str, Callable[[MP2Result], float]]
] = {  # column -> (unit, description, of a run)
    "scf_total_energy": ("hartree", "total energy of the SCF", lambda r: r.scf_total_energy),
    "mp2_same_spin_correlation_energy": (
        "hartree",
        "E_SS",
        lambda r: r.mp2_same_spin_correlation_energy,
    ),
    "mp2_opposite_spin_correlation_energy": (
        "hartree",
        "E_OS",
        lambda r: r.mp2_opposite_spin_correlation_energy,
    ),
    "mp2_correlation_energy": (
        "hartree",
        "E_SS + E_OS, and the singles of ROHF",
        lambda r: r.mp2_correlation_energy,
    ),
    "mp2_total_energy": ("hartree", "E(HF) + E(correlation)", lambda r: r.mp2_total_energy),
    "homo_lumo_gap": ("hartree", "smallest gap of one spin", lambda r: r.diagnostics.homo_lumo_gap),
    "scf_iterations": ("", "SCF iterations", lambda r: float(r.reference.cycles)),
}
MOST_COORDINATES = 2
AT_ITS_VALUE = 1e-6  # bohr or radian


@dataclass(frozen=True, slots=True)
class Scan:
    """What to compute: geometries with the values of the coordinates, and options.

    Attributes
    ----------
    molecules : tuple of Molecule
        One for each point; for a relaxed scan, the given geometry.
    values : tuple of tuple of float
        All of the same length: one number for each coordinate, or the number of the frame.
    coordinates : tuple of Coordinate
        One or two; none for the frames of a file.
    options : Options
    chained : bool
        Whether every SCF starts from the orbitals of the previous point.
    relaxed : Relaxation or None
        None for a rigid scan.
    """

    molecules: tuple[Molecule, ...]
    values: tuple[tuple[float, ...], ...]
    coordinates: tuple[Coordinate, ...]
    options: Options
    chained: bool
    relaxed: Relaxation | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the first columns."""
        if not self.coordinates:
            return ("frame",)
        return tuple(coordinate.name for coordinate in self.coordinates)

    @property
    def units(self) -> tuple[str, ...]:
        """Units of the first columns."""
        if not self.coordinates:
            return ("",)
        return tuple(coordinate.units for coordinate in self.coordinates)

    @property
    def what(self) -> str:
        """A short description."""
        molecule = self.molecules[0]
        if self.relaxed is not None:
            kind = "relaxed scan"
        elif self.coordinates:
            kind = "rigid scan"
        else:
            kind = "scan"
        along_what = " and ".join(name.replace("_", " ") for name in self.names)
        return f"{kind} of {molecule.described}, {along_what}"

    def point(self, number: int) -> str:
        """A description of a point, counted from 0."""
        if not self.coordinates:
            return f"frame {number + 1}"
        each = zip(self.names, self.values[number], self.units, strict=True)
        return ", ".join(
            f"{name.replace('_', ' ')} = {value:g} {units}" for name, value, units in each
        )


def along(
    molecule: Molecule,
    coordinates: Sequence[Coordinate],
    options: Options,
    *,
    chained: bool = True,
    convergence: str | None = None,
) -> Scan:
    """A scan along one coordinate, or over the grid of two.

    Parameters
    ----------
    molecule : Molecule
    coordinates : sequence of Coordinate
    options : Options
    chained : bool, optional
        Whether every SCF starts from the orbitals of the previous point.
    convergence : str, optional
        Convergence of the geometries of a relaxed scan, as in
        `dfmp2.studies.geometric_search.Search`; None for a rigid scan.

    Raises
    ------
    InputError : more than two coordinates, a repeated one, or one that moves the other
    """
    chosen = tuple(coordinates)
    if len(chosen) > MOST_COORDINATES:
        raise InputError(
            f"{len(chosen)} coordinates: expected one, or two for a map: leave some out"
        )
    if len(chosen) == 2 and chosen[0].same_place(chosen[1]):
        raise InputError(f"{chosen[0].said} is given twice: name two different coordinates")
    values = tuple(product(*(coordinate.values for coordinate in chosen)))
    if len(values) > MOST_RUNS:
        raise InputError(f"{len(values)} points: at most {MOST_RUNS} go into one study: take fewer")
    if convergence is not None:
        relaxed = Relaxation(
            molecule=molecule,
            coordinates=chosen,
            options=options,
            chained=chained,
            convergence=convergence,
        )
        return Scan(
            molecules=(molecule,) * len(values),
            values=values,
            coordinates=chosen,
            options=options,
            chained=chained,
            relaxed=relaxed,
        )
    points = tuple(_moved(molecule, chosen, place) for place in values)
    return Scan(
        molecules=points, values=values, coordinates=chosen, options=options, chained=chained
    )


def along_written(
    molecule: Molecule,
    written: Sequence[tuple[str, str, str | Sequence[float]]],
    options: Options,
    *,
    units: str,
    moving: str | None = None,
    chained: bool = True,
    convergence: str | None = None,
) -> Scan:
    """A scan along coordinates as the user wrote them.

    Parameters
    ----------
    written : sequence of (str, str, str or sequence of float)
        Kind, atoms and values, as in `dfmp2.studies.coordinate.make_coordinate`.
    units : str
        Unit of lengths, "angstrom" or "bohr".
    moving : str, optional
        Atoms that move, if there is a single coordinate.
    chained, convergence : optional
        As in `along`.

    Raises
    ------
    InputError : impossible coordinates, or moving atoms with two coordinates
    """
    if moving is not None and len(written) > 1:
        raise InputError(
            Option("moving"),
            " belongs to one coordinate: of two, the sides follow from the bonds",
        )
    coordinates = [
        make_coordinate(
            kind,
            atoms,
            values,
            molecule,
            units=units,
            moving=moving,
            rigid=convergence is None,
        )
        for kind, atoms, values in written
    ]
    return along(molecule, coordinates, options, chained=chained, convergence=convergence)


def _moved(
    molecule: Molecule, coordinates: Sequence[Coordinate], values: Sequence[float]
) -> Molecule:
    """The molecule with all coordinates set to the given values."""
    moved = molecule
    for coordinate, value in zip(coordinates, values, strict=True):
        moved = coordinate.at(moved, value)
    if abs(coordinates[0].deviation(moved, values[0])) > AT_ITS_VALUE:
        raise InputError(
            f"{coordinates[1].said} moves atoms of {coordinates[0].said}: scan it with ",
            Option("relaxed", True),
            ", or another coordinate",
        )
    return moved


def over_frames(frames: Sequence[Molecule], options: Options, *, chained: bool = True) -> Scan:
    """A scan over geometries of one molecule.

    Raises
    ------
    InputError : a single frame, or frames of different molecules or among different point charges
    """
    if len(frames) < 2:
        raise InputError(
            "one frame and no coordinate: name one (",
            Option("coordinate", flag="bond"),
            ", ",
            Option("coordinate", flag="angle"),
            " or ",
            Option("coordinate", flag="dihedral"),
            "), or give a file with several frames",
        )
    if len(frames) > MOST_RUNS:
        raise InputError(
            f"{len(frames)} frames: at most {MOST_RUNS} go into one study; split the file"
        )
    first = frames[0]
    for number, frame in enumerate(frames[1:], start=2):
        same = (frame.labels, frame.charge, frame.multiplicity) == (
            first.labels,
            first.charge,
            first.multiplicity,
        )
        if not same:
            raise InputError(
                f"frame {number} is {frame.formula} (charge {frame.charge}, multiplicity "
                f"{frame.multiplicity}) or has its atoms in another order than frame 1, "
                f"{first.formula}: a scan needs geometries of one molecule"
            )
        if point_charges_digest(frame) != point_charges_digest(first):
            raise InputError(
                f"frame {number} is among other point charges than frame 1: compute it with ",
                Command("run"),
            )
    values = tuple((float(n),) for n in range(1, len(frames) + 1))
    return Scan(
        molecules=tuple(frames), values=values, coordinates=(), options=options, chained=chained
    )


def scan_energies(scan: Scan, **how: Unpack[CarryOutKeywords]) -> Study:
    """Energies of all points.

    Parameters
    ----------
    scan : made by `along` or `over_frames`
    how : as in `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study with one table row per attempted point, with NaN and an exit code if it failed; its values
    hold the minimum

    Raises
    ------
    Dfmp2Error : the calculation is already invalid for the first point
    """
    if scan.relaxed is not None:
        return _relaxed(scan, scan.relaxed, **how)
    steps = [
        Step(
            name=_rigid_name(scan, number),
            who=scan.point(number),
            molecule=molecule,
            options=scan.options,
        )
        for number, molecule in enumerate(scan.molecules)
    ]
    steps, note, chosen = certified(steps)

    def evaluate(results: Results, failures: Failures, complete: bool) -> Numbers:
        names = [(step.name,) for step in steps]
        numbers = _numbers(scan, names, results, failures, complete=complete)
        return replace(numbers, notes=[*numbers.notes, note])

    task = Task(
        kind="scan",
        what=scan.what,
        molecule=scan.molecules[0],
        options=scan.options,
        steps=_there_and_back(scan, steps),
        evaluate=evaluate,
        chained=scan.chained,
        tolerant=True,
        chosen=chosen,
        question={"relaxed": False},
    )
    return carry_out(task, **how)


def _rigid_name(scan: Scan, number: int) -> str:
    """Name of the run of a point, counted from 0."""
    if not scan.coordinates:
        return f"frame-{number + 1:03d}"
    return f"point-{number + 1:03d}"


def _there_and_back(scan: Scan, steps: Sequence[Step]) -> list[Step]:
    """The steps ordered so that each is next to the previous one: every second row of a map is
    reversed."""
    if len(scan.coordinates) < 2:
        return list(steps)
    width = len(scan.coordinates[1].values)
    ordered: list[Step] = []
    for row, first in enumerate(range(0, len(steps), width)):
        in_row = steps[first : first + width]
        if row % 2 == 1:
            in_row = in_row[::-1]
        ordered += in_row
    return ordered


def _relaxed(scan: Scan, relaxed: Relaxation, **how: Unpack[CarryOutKeywords]) -> Study:
    """The energies of a relaxed scan."""
    molecule = scan.molecules[0]
    if isinstance(scan.options, CompositeOptions):
        raise InputError(
            Option("relaxed", True),
            " optimises each geometry in one basis, without a correction: name one basis, and scan "
            "the geometries that are found with ",
            Option("basis", scan.options.basis),
        )
    require_no_ghosts(molecule)
    require_gradient(molecule, scan.options)
    examine_steps([Step(name="", who=scan.point(0), molecule=molecule, options=scan.options)])
    names = [
        tuple(run_name(direction, number) for direction in PASSES)
        for number in range(len(scan.values))
    ]

    def evaluate(results: Results, failures: Failures, complete: bool) -> Numbers:
        return _numbers(scan, names, results, failures, complete=complete)

    def then(results: Results) -> Iterator[Sequence[Step]]:
        for front in relaxed.fronts():
            yield [
                relaxed.step(direction, number, results, scan.point(number))
                for direction, number in front
            ]

    task = Task(
        kind="scan",
        what=scan.what,
        molecule=molecule,
        options=scan.options,
        steps=[],
        evaluate=evaluate,
        tolerant=True,
        then=then,
        compute=partial(
            relaxed_point,
            search=Search(Constraints(text=relaxed.constraints()), relaxed.convergence),
        ),
        question=relaxed.question(),
    )
    return carry_out(task, **how)


# --- numbers --------------------------------------------------------------------------------------


def _numbers(
    scan: Scan,
    names: Sequence[Sequence[str]],
    results: Results,
    failures: Failures,
    *,
    complete: bool,
) -> Numbers:
    """The numbers of the points attempted so far.

    Parameters
    ----------
    names : sequence of sequences of str
        The runs of each point.
    """
    outcomes = []
    for number, of_point in enumerate(names):
        runs = {name: results[name] for name in of_point if name in results}
        codes = {name: failures[name].exit_code for name in of_point if name in failures}
        if runs or codes:
            outcomes.append(Outcome(number, runs, codes))
    table = _table(scan, outcomes, complete=complete)
    settings = {
        "coordinate": ", ".join(scan.names),
        "units": ", ".join(scan.units),
        "points": len(scan.values),
        "chained": scan.chained,
        "failed": sum(not outcome.runs for outcome in outcomes),
        "relaxed": scan.relaxed is not None,
        "coordinates": list(scan.names),
        "grid": [list(coordinate.values) for coordinate in scan.coordinates],
    }
    if scan.relaxed is not None:
        settings |= scan.relaxed.question()
        settings["path"] = [outcome.name for outcome in outcomes if outcome.runs]
    notes = _notes(scan, outcomes, failures)
    values: dict[str, Dataset] = {}
    arrays: dict[str, Dataset] = {}
    energies = table.get("total_energy", table["mp2_total_energy"]).values
    if complete and len(scan.coordinates) == 1:
        places = [scan.values[outcome.number][0] for outcome in outcomes]
        curve = make_curve(places, energies, scan.coordinates[0].period)
        values, arrays, remarks = numbers_of_curve(curve, scan.units[0])
        notes += remarks
    elif complete and len(scan.coordinates) == 2:
        values, arrays = _map(scan, np.array(energies))
    return Numbers(settings=settings, notes=notes, values=values, table=table, arrays=arrays)


def _notes(scan: Scan, outcomes: Sequence[Outcome], failures: Failures) -> list[str]:
    """How the points were computed, and which of them failed."""
    start = "the converged orbitals of the point before" if scan.chained else "atomic densities"
    notes = [f"start orbitals: {start}"]
    if scan.relaxed is None:
        for one in scan.coordinates:
            moves = f"atoms that move: {show_atoms(one.moving)}"
            if len(scan.coordinates) > 1:
                moves += f" ({one.said})"
            notes.append(moves)
    else:
        notes += [*scan.relaxed.notes(), CITATION, *disagreements(outcomes, scan.point)]
    for outcome in outcomes:
        for name, code in outcome.codes.items():
            where = scan.point(outcome.number)
            if scan.relaxed is not None:
                where = f"{where}, {name.partition('-')[0]}"
            notes.append(f"{where}: failed with code {code}: {failures[name]}")
    return notes


def _table(scan: Scan, outcomes: Sequence[Outcome], *, complete: bool) -> dict[str, Column]:
    """A row for each point attempted so far."""
    runs = [outcome.run for outcome in outcomes]
    lowest = min((run.total_energy for run in runs if run is not None), default=math.nan)
    table = {}
    for k, (name, units) in enumerate(zip(scan.names, scan.units, strict=True)):
        places = tuple(scan.values[outcome.number][k] for outcome in outcomes)
        table[name] = Column(places, units, "value of the coordinate")
    relative = [
        math.nan if run is None else (run.total_energy - lowest) * KJ_PER_MOL_PER_HARTREE
        for run in runs
    ]
    table["relative_energy"] = Column(
        tuple(relative), "kJ/mol", "total energy above the lowest point"
    )
    for name, (units, description, number) in NUMBERS.items():
        table[name] = Column(
            tuple(math.nan if run is None else number(run) for run in runs), units, description
        )
    if scan.options.correlation is not MP2 or isinstance(scan.options, CompositeOptions):
        table |= energy_columns(runs)
    table |= columns_of_bases(runs)
    if complete:
        table["relative_energy_error"] = Column(
            relative_errors(runs), "kJ/mol", "expected error of the relative energy"
        )
    if scan.relaxed is not None:
        for direction in PASSES:
            energies = tuple(outcome.energy(direction) for outcome in outcomes)
            table[f"{direction}_energy"] = Column(
                energies, "hartree", f"total energy of the {direction} pass"
            )
    table["exit_code"] = Column(
        tuple(outcome.exit_code for outcome in outcomes), "", "0, or the exit code of the error"
    )
    return table


def _map(scan: Scan, energies: Any) -> tuple[dict[str, Dataset], dict[str, Dataset]]:
    """The lowest point of a map, and its energies as a grid; NaN for failed points."""
    if np.isnan(energies).all():
        return {}, {}
    rows, columns = scan.coordinates
    lowest = int(np.nanargmin(energies))
    values = {
        "lowest_first": Dataset(
            scan.values[lowest][0], rows.units, f"{rows.name} at the lowest point"
        ),
        "lowest_second": Dataset(
            scan.values[lowest][1], columns.units, f"{columns.name} at the lowest point"
        ),
        "lowest_energy": Dataset(
            float(energies[lowest]), "hartree", "total energy of the lowest point"
        ),
    }
    shape = len(rows.values), len(columns.values)
    arrays = {
        "map_energy": Dataset(
            energies.reshape(shape),
            "hartree",
            f"total energy, a row for each {rows.name}, a column for each {columns.name}",
        ),
        "map_first": Dataset(np.array(rows.values), rows.units, f"{rows.name} of the rows"),
        "map_second": Dataset(
            np.array(columns.values), columns.units, f"{columns.name} of the columns"
        ),
    }
    return values, arrays
