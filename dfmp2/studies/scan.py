"""Energies along a coordinate, or of the frames of a file; every SCF starts from the orbitals of the point before.

A point that fails is recorded with the exit code of its error; the others stay. When the lowest point is not at an end,
the minimum is that of the parabola and of the quartic through the points around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Unpack

import numpy as np
from numpy.polynomial import Polynomial

from dfmp2.errors import InputError
from dfmp2.messages import Option
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.error_budget import combined
from dfmp2.mp2.result import MP2Result
from dfmp2.options import MP2, Options
from dfmp2.output.hdf5 import Item
from dfmp2.output.study import MOST_RUNS, Column, Study
from dfmp2.studies.coordinate import Coordinate, show_atoms
from dfmp2.studies.runs import (
    Failures,
    How,
    Numbers,
    Results,
    Step,
    Task,
    carry_out,
    certified,
    examine,
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
        return "" if self.coordinate is None else self.coordinate.units


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
                f"frame {number} is {frame.formula} (charge {frame.charge}, multiplicity {frame.multiplicity}) or has "
                f"its atoms in another order than frame 1, {first.formula}: a scan needs geometries of one molecule"
            )
    return Scan(
        tuple(frames), tuple(float(n) for n in range(1, len(frames) + 1)), None, options, chained
    )


def scan_energies(scan: Scan, **how: Unpack[How]) -> Study:
    """Energies of all points.

    Parameters
    ----------
    scan : made with `along` or `over_frames`
    how : as of `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study; its table has one row per point tried, NaN and an exit code for one that failed; its values hold the minimum

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
    examine(steps)
    steps, note, chosen = certified(steps)
    examine(steps)

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
                f"{step.who}: failed with code {failures[step.name].exit_code}: {failures[step.name]}"
            )
    minima = {}
    if complete and scan.coordinate is not None:
        minima = _minima(
            values,
            table["total_energy" if "total_energy" in table else "mp2_total_energy"].values,
            scan.units,
        )
        if not minima:
            notes.append(
                "no minimum inside: the lowest point is at an end, next to a failed one, or there are fewer than three"
            )
    settings = {
        "coordinate": scan.name,
        "units": scan.units,
        "points": len(scan.values),
        "chained": scan.chained,
        "failed": len(failures),
    }
    return Numbers(settings, notes, minima, table)


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


def _minima(x: Sequence[float], energies: Sequence[float], units: str) -> dict[str, Item]:
    """Position, energy and curvature of the minimum by parabola and quartic, where they can be had.

    None across a failed point, whose energy is NaN.
    """
    failed = [value for value, energy in zip(x, energies, strict=True) if math.isnan(energy)]
    good = [
        (value, energy) for value, energy in zip(x, energies, strict=True) if not math.isnan(energy)
    ]
    values: dict[str, Item] = {}
    for name, count in FITS.items():
        found = find_minimum([value for value, _ in good], [energy for _, energy in good], count)
        if found is None:
            continue
        used = sorted((value for value, _ in good), key=lambda value: abs(value - found.position))[
            :count
        ]
        if any(min(used) < value < max(used) for value in failed):
            continue
        how = f"{name} through {count} points"
        values[f"minimum_{name}"] = Item(found.position, units, how)
        values[f"minimum_{name}_energy"] = Item(found.energy, "hartree", f"{how}, E(MP2 total)")
        values[f"minimum_{name}_curvature"] = Item(
            found.curvature, f"hartree/{units}^2", f"{how}, second derivative"
        )
    return values


class Minimum(NamedTuple):
    """A minimum by interpolation: position in the unit of the coordinate, energy in Eh, second derivative there."""

    position: float
    energy: float
    curvature: float


def find_minimum(x: Sequence[float], energy: Sequence[float], points: int) -> Minimum | None:
    """The minimum of the polynomial through `points` neighbours centred on the lowest point.

    Returns None when the lowest point lies too near an end, or the polynomial has no minimum between its outer points.

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
