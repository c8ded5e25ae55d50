"""Energies along a coordinate, or of the frames of a file; every SCF starts from the orbitals of
the point before.

A point that fails is recorded with the exit code of its error; the others stay. Every point that is
lower or higher than both its neighbours has a minimum or a maximum beside it, that of the quartic
or of the parabola through the points around. A dihedral that is scanned once round has no ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Unpack

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.error_of_difference import combined
from dfmp2.mp2.result import MP2Result
from dfmp2.options import MP2, Options
from dfmp2.output.hdf5 import Dataset
from dfmp2.output.study import MOST_RUNS, Column, Study
from dfmp2.studies.coordinate import Coordinate, show_atoms
from dfmp2.studies.runs import (
    CarryOutKeywords,
    Failures,
    Numbers,
    Results,
    Step,
    Task,
    carry_out,
    certified,
    examine_steps,
)
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
    "mp2_correlation_energy": ("hartree", "E_SS + E_OS", lambda r: r.mp2_correlation_energy),
    "mp2_total_energy": ("hartree", "E(HF) + E(correlation)", lambda r: r.mp2_total_energy),
    "homo_lumo_gap": ("hartree", "smallest gap of one spin", lambda r: r.diagnostics.homo_lumo_gap),
    "scf_iterations": ("", "SCF iterations", lambda r: float(r.reference.cycles)),
}
METHOD_NUMBERS: dict[
    str, tuple[str, str, Callable[[MP2Result], float]]
] = {  # where it is not plain MP2
    "correlation_energy": (
        "hartree",
        "correlation energy of the method",
        lambda r: r.correlation_energy,
    ),
    "total_energy": (
        "hartree",
        "E(HF) + correlation energy of the method",
        lambda r: r.total_energy,
    ),
}
FITS = {"parabola": 3, "quartic": 5}
SAME_PLACE = 1e-6  # of a period, in the unit of the coordinate: what rounding leaves


@dataclass(frozen=True, slots=True)
class Scan:
    """What is to be computed: geometries with the value of the coordinate, and how.

    Attributes
    ----------
    molecules, values : of equal length
    coordinate : None for the frames of a file
    """

    molecules: tuple[Molecule, ...]
    values: tuple[float, ...]
    coordinate: Coordinate | None
    options: Options
    chained: bool

    @property
    def name(self) -> str:
        """Of the first column."""
        if self.coordinate is None:
            return "frame"
        return self.coordinate.name

    @property
    def units(self) -> str:
        """Of the first column."""
        if self.coordinate is None:
            return ""
        return self.coordinate.units


def along(
    molecule: Molecule, coordinate: Coordinate, options: Options, *, chained: bool = True
) -> Scan:
    """A scan along a coordinate."""
    points = tuple(coordinate.at(molecule, value) for value in coordinate.values)
    return Scan(points, coordinate.values, coordinate, options, chained)


def over_frames(frames: Sequence[Molecule], options: Options, *, chained: bool = True) -> Scan:
    """A scan over geometries of one molecule.

    Raises
    ------
    InputError : one frame only, or frames of different molecules
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
    return Scan(
        tuple(frames), tuple(float(n) for n in range(1, len(frames) + 1)), None, options, chained
    )


def scan_energies(scan: Scan, **how: Unpack[CarryOutKeywords]) -> Study:
    """Energies of all points.

    Parameters
    ----------
    scan : made with `along` or `over_frames`
    how : as of `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study; its table has one row per point tried, NaN and an exit code for one that failed; its
    values hold the minimum

    Raises
    ------
    Dfmp2Error : the calculation would be refused for the first point already
    """
    steps = []
    for number, (molecule, value) in enumerate(
        zip(scan.molecules, scan.values, strict=True), start=1
    ):
        kind, who = "point", f"{scan.name} = {value:g} {scan.units}"
        if scan.coordinate is None:
            kind, who = "frame", f"frame {number}"
        steps.append(Step(f"{kind}-{number:03d}", who, molecule, scan.options))
    examine_steps(steps)
    steps, note, chosen = certified(steps)
    examine_steps(steps)

    def evaluate(results: Results, failures: Failures, complete: bool) -> Numbers:
        numbers = _numbers(scan, steps, results, failures, complete=complete)
        return replace(numbers, notes=[*numbers.notes, note])

    first = scan.molecules[0]
    what = f"scan of {first.name} ({first.formula}), {scan.name.replace('_', ' ')}"
    task = Task(
        "scan",
        what,
        first,
        scan.options,
        steps,
        evaluate,
        chained=scan.chained,
        tolerant=True,
        chosen=chosen,
    )
    return carry_out(task, **how)


def _numbers(
    scan: Scan, steps: Sequence[Step], results: Results, failures: Failures, *, complete: bool
) -> Numbers:
    tried = [step.name in results or step.name in failures for step in steps]
    points = [step for step, done in zip(steps, tried, strict=True) if done]
    values = tuple(value for value, done in zip(scan.values, tried, strict=True) if done)
    runs = [results.get(step.name) for step in points]
    lowest = min((run.total_energy for run in runs if run is not None), default=math.nan)
    table = {scan.name: Column(values, scan.units, "value of the coordinate")}
    relative = [
        math.nan if run is None else (run.total_energy - lowest) * KJ_PER_MOL_PER_HARTREE
        for run in runs
    ]
    table["relative_energy"] = Column(
        tuple(relative), "kJ/mol", "total energy above the lowest point"
    )
    if scan.options.correlation is MP2:
        numbers = NUMBERS
    else:
        numbers = {**NUMBERS, **METHOD_NUMBERS}
    for name, (units, description, number) in numbers.items():
        table[name] = Column(
            tuple(math.nan if run is None else number(run) for run in runs), units, description
        )
    if complete:
        table["relative_energy_error"] = Column(
            relative_errors(runs), "kJ/mol", "expected error of the relative energy"
        )
    codes = [
        float(failures[step.name].exit_code) if step.name in failures else 0.0 for step in points
    ]
    table["exit_code"] = Column(tuple(codes), "", "0, or the exit code of the error")
    if scan.chained:
        chain = "the converged orbitals of the point before"
    else:
        chain = "atomic densities"
    notes = [f"start orbitals: {chain}"]
    if scan.coordinate is not None:
        notes.append(f"atoms that move: {show_atoms(scan.coordinate.moving)}")
    for step in points:
        if step.name in failures:
            notes.append(
                f"{step.who}: failed with code {failures[step.name].exit_code}: "
                f"{failures[step.name]}"
            )
    minima: dict[str, Dataset] = {}
    arrays: dict[str, Dataset] = {}
    if complete and scan.coordinate is not None:
        energies = table.get("total_energy", table["mp2_total_energy"]).values
        curve = make_curve(values, energies, _period(scan.coordinate))
        minima = _minima(curve, scan.units)
        extrema = find_extrema(curve)
        arrays = _of_extrema(extrema, scan.units) | _of_barriers(curve, extrema, scan.units)
        notes += _without_minimum(minima, extrema)
    settings = {
        "coordinate": scan.name,
        "units": scan.units,
        "points": len(scan.values),
        "chained": scan.chained,
        "failed": len(failures),
    }
    return Numbers(settings, notes, minima, table, arrays)


def relative_errors(runs: Sequence[MP2Result | None]) -> tuple[float, ...]:
    """Expected errors of the energies above the lowest one, kJ/mol; NaN where none is known."""
    finished = [run for run in runs if run is not None]
    if not finished:
        return (math.nan,) * len(runs)
    lowest = min(finished, key=lambda run: run.total_energy)
    errors = []
    for run in runs:
        error: float | None = None
        if run is lowest:
            error = 0.0
        elif run is not None:
            parts = [((1.0, 1.0), run), ((-1.0, -1.0), lowest)]
            error = combined(parts, "the relative energy").total
        if error is None:
            errors.append(math.nan)
        else:
            errors.append(error * KJ_PER_MOL_PER_HARTREE)
    return tuple(errors)


def _minima(curve: Sampled, units: str) -> dict[str, Dataset]:
    """Position, energy and curvature of the lowest minimum by parabola and quartic, where they can
    be had.

    None across a failed point, whose energy is NaN.
    """
    values: dict[str, Dataset] = {}
    if np.isnan(curve.energies).all():
        return values
    lowest = int(np.nanargmin(curve.energies))
    for name, count in FITS.items():
        window = curve.window(lowest, count)
        if window is None:
            continue
        found = find_minimum(window[0], window[1], count)
        if found is None:
            continue
        how = f"{name} through {count} points"
        values[f"minimum_{name}"] = Dataset(curve.inside(found.position), units, how)
        values[f"minimum_{name}_energy"] = Dataset(found.energy, "hartree", f"{how}, E(MP2 total)")
        values[f"minimum_{name}_curvature"] = Dataset(
            found.curvature, f"hartree/{units}^2", f"{how}, second derivative"
        )
    return values


def _without_minimum(minima: dict[str, Dataset], extrema: Sequence[Extremum]) -> list[str]:
    """What is to be said where the lowest point is no minimum."""
    if minima:
        return []
    if any(one.curvature > 0 for one in extrema):
        return [
            "the lowest point is at an end, or next to a failed one: there are minima inside, and "
            "lower energies outside of them"
        ]
    return [
        "no minimum inside: the lowest point is at an end, next to a failed one, or there are "
        "fewer than three"
    ]


class Extremum(NamedTuple):
    """A minimum or a maximum by interpolation.

    Attributes
    ----------
    position : float
        In the unit of the coordinate.
    energy : float
        Eh.
    curvature : float
        Second derivative there, Eh per unit squared: positive at a minimum, negative at a maximum.
    points : int
        Through which the polynomial goes, 3 or 5.
    """

    position: float
    energy: float
    curvature: float
    points: int


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Energies at rising values of a coordinate, Eh, NaN where a point failed.

    Attributes
    ----------
    places, energies : (n,) arrays
    period : float or None
        The last point is followed by the first, a period later.
    """

    places: NDArray[np.float64]
    energies: NDArray[np.float64]
    period: float | None

    def window(
        self, middle: int, points: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Values and energies of neighbours around a point; None beyond an end, or across a failed
        point."""
        count = len(self.places)
        chosen = np.arange(middle - points // 2, middle + points // 2 + 1)
        turns = chosen // count
        if points > count or (self.period is None and turns.any()):
            return None
        energies = self.energies[chosen % count]
        if np.isnan(energies).any():
            return None
        return self.places[chosen % count] + turns * (self.period or 0.0), energies

    def inside(self, place: float) -> float:
        """A value within the period that begins at the first point."""
        if self.period is None:
            return place
        turned = (place - self.places[0]) % self.period
        if self.period - turned < SAME_PLACE:  # of a place that rounding put below the first
            turned = 0.0
        return float(self.places[0] + turned)

    def failed_between(self, first: float, last: float) -> bool:
        """Whether a point failed between two values of which the second may be a period later."""
        failed = self.places[np.isnan(self.energies)]
        if self.period is not None:
            failed = np.concatenate([failed - self.period, failed, failed + self.period])
        return bool(((first < failed) & (failed < last)).any())


def _period(coordinate: Coordinate) -> float | None:
    """After which a coordinate has the same geometries again, in its unit; None where it has
    not."""
    if coordinate.kind == "dihedral":
        return 360.0
    return None


def make_curve(
    x: Sequence[float], energies: Sequence[float], period: float | None = None
) -> Sampled:
    """The points of a scan by rising value; one that goes once round is closed.

    Parameters
    ----------
    x : sequence of float
        In any order.
    energies : sequence of float
        Eh, NaN where a point failed.
    period : float, optional
        Of the coordinate.
    """
    order = np.argsort(x, kind="stable")
    places = np.array(x, dtype=np.float64)[order]
    heights = np.array(energies, dtype=np.float64)[order]
    if period is None or len(places) < 3:
        return Sampled(places, heights, None)
    span = float(places[-1] - places[0])
    if abs(span - period) < SAME_PLACE:  # both ends are one geometry
        if np.isnan(heights[0]):
            heights[0] = heights[-1]
        return Sampled(places[:-1], heights[:-1], period)
    widest = float(np.diff(places).max())
    if span < period <= span + widest + SAME_PLACE:
        return Sampled(places, heights, period)
    return Sampled(places, heights, None)


def find_extrema(curve: Sampled) -> list[Extremum]:
    """Every minimum and maximum between the points of a scan, by rising position.

    A point that is lower, or higher, than its neighbours is the middle of the polynomial through
    five points around it, or through three where there are no five, one of the five failed, or
    their polynomial turns elsewhere.
    """
    found = []
    for middle in range(len(curve.places)):
        extremum = _extremum(curve, middle)
        if extremum is not None:
            found.append(extremum._replace(position=curve.inside(extremum.position)))
    return sorted(found, key=lambda one: one.position)


def _extremum(curve: Sampled, middle: int) -> Extremum | None:
    """The extremum around a point that is lower or higher than its two neighbours; None
    elsewhere."""
    neighbours = curve.window(middle, 3)
    if neighbours is None:
        return None
    before, here, after = neighbours[1]
    if before > here <= after:
        sign = 1.0
    elif before < here >= after:
        sign = -1.0
    else:
        return None
    for points in (5, 3):
        window = curve.window(middle, points)
        if window is None:
            continue
        places, energies = window
        found = find_minimum(places, sign * energies, points)
        half = points // 2
        if found is not None and places[half - 1] <= found.position <= places[half + 1]:
            return Extremum(found.position, sign * found.energy, sign * found.curvature, points)
    return None


def _of_extrema(extrema: Sequence[Extremum], units: str) -> dict[str, Dataset]:
    """Arrays with an element for each of them; nothing where there are none."""
    if not extrema:
        return {}
    about = "of every minimum and maximum between the points, by rising position"
    return {
        "extrema_position": Dataset(np.array([one.position for one in extrema]), units, about),
        "extrema_energy": Dataset(np.array([one.energy for one in extrema]), "hartree", about),
        "extrema_curvature": Dataset(
            np.array([one.curvature for one in extrema]),
            f"hartree/{units}^2",
            f"second derivative {about}: positive at a minimum, negative at a maximum",
        ),
        "extrema_points": Dataset(
            np.array([float(one.points) for one in extrema]),
            "",
            "of the polynomial: 3, a parabola, or 5, a quartic",
        ),
    }


def _of_barriers(curve: Sampled, extrema: Sequence[Extremum], units: str) -> dict[str, Dataset]:
    """Arrays with an element for each maximum between two minima; nothing where there are none."""
    found = barriers(curve, extrema)
    if not found:
        return {}
    rows = [
        (
            before.position,
            top.position,
            after.position,
            (top.energy - before.energy) * KJ_PER_MOL_PER_HARTREE,
            (top.energy - after.energy) * KJ_PER_MOL_PER_HARTREE,
        )
        for before, top, after in found
    ]
    columns = np.array(rows).T
    return {
        "barrier_from": Dataset(columns[0], units, "position of the minimum before"),
        "barrier_position": Dataset(columns[1], units, "position of the maximum"),
        "barrier_to": Dataset(columns[2], units, "position of the minimum after"),
        "barrier_forward": Dataset(columns[3], "kJ/mol", "maximum above the minimum before"),
        "barrier_backward": Dataset(columns[4], "kJ/mol", "maximum above the minimum after"),
    }


def barriers(
    curve: Sampled, extrema: Sequence[Extremum]
) -> list[tuple[Extremum, Extremum, Extremum]]:
    """Each maximum with the minima before and after it, where no point between them failed."""
    found = []
    count = len(extrema)
    for number, top in enumerate(extrema):
        if curve.period is None and number in (0, count - 1):
            continue
        before, after = extrema[number - 1], extrema[(number + 1) % count]
        if not before.curvature > 0 > top.curvature or not after.curvature > 0:
            continue
        first, last = before.position, after.position
        if curve.period is not None:
            first = top.position - (top.position - first) % curve.period
            last = top.position + (last - top.position) % curve.period
        if not curve.failed_between(first, last):
            found.append((before, top, after))
    return found


class Minimum(NamedTuple):
    """A minimum by interpolation: position in the unit of the coordinate, energy in Eh, second
    derivative there."""

    position: float
    energy: float
    curvature: float


def find_minimum(
    x: Sequence[float] | NDArray[np.float64],
    energy: Sequence[float] | NDArray[np.float64],
    points: int,
) -> Minimum | None:
    """The minimum of the polynomial through `points` neighbours centred on the lowest point.

    Returns None when the lowest point lies too near an end, or the polynomial has no minimum
    between its outer points.

    Parameters
    ----------
    x : different values, in any order
    energy : Eh
    points : 3 or 5
    """
    order = np.argsort(x)
    xs, ys = np.array(x, dtype=np.float64)[order], np.array(energy, dtype=np.float64)[order]
    if xs.size < points:
        return None
    lowest, half = int(np.argmin(ys)), points // 2
    if lowest < half or lowest + half >= xs.size:
        return None
    near, low = xs[lowest - half : lowest + half + 1], ys[lowest]
    # Shifted to the lowest point: energies of 1e2 Eh would cost the digits that matter.
    curve = Polynomial.fit(
        near - xs[lowest], ys[lowest - half : lowest + half + 1] - low, points - 1
    ).convert()
    slope, bend = curve.deriv(), curve.deriv(2)
    roots = [root.real for root in np.atleast_1d(slope.roots()) if abs(root.imag) < 1e-9]
    inside = [r for r in roots if near[0] - xs[lowest] < r < near[-1] - xs[lowest] and bend(r) > 0]
    if not inside:
        return None
    best = min(inside, key=lambda r: float(curve(r)))
    return Minimum(float(xs[lowest] + best), float(low + curve(best)), float(bend(best)))
