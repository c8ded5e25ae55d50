"""The points of a relaxed scan, in which the coordinates are held and everything else is optimised.

Two passes cover the points from opposite ends. A point starts from the geometry and orbitals of its
neighbour in the same pass, with the coordinates set to their new values: if possible, the side of
the last atom moves as a whole; in rings, all atoms move as little as possible. Since one pass can
stay in a minimum that the other leaves, both energies are kept and the lower counts.

On a map a point has up to two finished neighbours, and starts from the lower one. In both passes,
points at the same distance from the corner are independent (`Relaxation.fronts`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dfmp2.errors import InputError, NumericalError, Option
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.study import MOST_RUNS
from dfmp2.studies.coordinate import Constraints, Coordinate
from dfmp2.studies.geometric_search import Search, geometric_library
from dfmp2.studies.task import CannotBegin, Results, Step
from dfmp2.units import KJ_PER_MOL_PER_HARTREE, counted_text

PASSES = ("forward", "backward")
LARGEST_ANGLE = 175.0  # degrees; beyond this, internal coordinates are undefined
EXACT = 1e-8  # bohr or radian; allowed deviation of a coordinate from its value
MOST_CORRECTIONS = 50
LONGEST = 0.3  # bohr; largest correction in one step
DISAGREE = 1e-5  # Eh; passes that differ by more have reached different minima
SHIFT = 1e-4  # bohr; displacement for numerical derivatives


@dataclass(frozen=True, slots=True)
class Relaxation:
    """How the points of a relaxed scan depend on each other.

    Attributes
    ----------
    molecule : Molecule
        The given geometry, from which both passes begin.
    coordinates : tuple of Coordinate
        One or two.
    options : Options
    chained : bool
        Whether every SCF starts from the orbitals of the neighbour.
    convergence : str
        Convergence of the geometries, as in `dfmp2.studies.geometric_search.Search`.
    """

    molecule: Molecule
    coordinates: tuple[Coordinate, ...]
    options: Options
    chained: bool
    convergence: str

    def __post_init__(self) -> None:
        Search(convergence=self.convergence)
        object.__setattr__(self, "convergence", self.convergence.upper())
        count = int(np.prod(self.shape))
        if 2 * count > MOST_RUNS:
            raise InputError(
                f"{count} points in two passes: at most {MOST_RUNS} runs go into one study; take "
                f"up to {MOST_RUNS // 2} points"
            )
        for coordinate in self.coordinates:
            largest = max(coordinate.values)
            if coordinate.kind == "angle" and largest > LARGEST_ANGLE:
                raise InputError(
                    f"{coordinate.said} up to {largest:g} degrees: a relaxed scan goes up to "
                    f"{LARGEST_ANGLE:g}; leave ",
                    Option("relaxed", True),
                    " out, or end before",
                )
        self.constraints()

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each coordinate."""
        return tuple(len(coordinate.values) for coordinate in self.coordinates)

    def constraints(self) -> str:
        """The constraints that hold the coordinates, in geomeTRIC's format."""
        held = [
            (coordinate.kind, ",".join(str(atom + 1) for atom in coordinate.atoms))
            for coordinate in self.coordinates
        ]
        return Constraints(frozen=held).for_geometric(self.molecule)

    def notes(self) -> list[str]:
        """How the geometries were made, for the report."""
        held = " and ".join(coordinate.said for coordinate in self.coordinates)
        return [
            f"relaxed: {held} fixed, everything else optimised by geomeTRIC "
            f"{geometric_library().__version__}, convergence {self.convergence}",
            "two passes from opposite ends, each point from its neighbour; the lower energy counts",
        ]

    def question(self) -> dict[str, Any]:
        """Settings that determine the geometries, apart from the options of the runs."""
        return {
            "relaxed": True,
            "convergence": self.convergence,
            "coordinates": [coordinate.name for coordinate in self.coordinates],
            "grid": [list(coordinate.values) for coordinate in self.coordinates],
            "start_geometry": self.molecule.coordinates.tolist(),
        }

    def fronts(self) -> list[list[tuple[str, int]]]:
        """Groups of runs of both passes, each run as direction and point number.

        Runs depend only on those of earlier groups.
        """
        places = list(product(*(range(count) for count in self.shape)))
        last = sum(self.shape) - len(self.shape)
        fronts = []
        for distance in range(last + 1):
            front = []
            for direction, steps_away in zip(PASSES, (distance, last - distance), strict=True):
                front += [
                    (direction, number)
                    for number, place in enumerate(places)
                    if sum(place) == steps_away
                ]
            fronts.append(front)
        return fronts

    def step(self, direction: str, number: int, results: Results, who: str) -> Step:
        """The run of a point, starting from the lower of its neighbours in the same pass; it fails
        where the coordinates cannot be set to their values."""
        values = np.unravel_index(number, self.shape)
        wanted = [
            coordinate.values[int(k)]
            for coordinate, k in zip(self.coordinates, values, strict=True)
        ]
        start = self._neighbour(direction, number, results)
        geometry = results[start].molecule if start else self.molecule
        step = Step(
            name=run_name(direction, number),
            who=f"{who}, {direction}",
            molecule=geometry,
            options=self.options,
            start=start if self.chained else "",
            optimised=True,
        )
        try:
            return replace(step, molecule=bring(geometry, self.coordinates, wanted))
        except (InputError, NumericalError) as error:
            return replace(step, compute=CannotBegin(error))

    def _neighbour(self, direction: str, number: int, results: Results) -> str:
        """Name of the run that a point starts from, "" for the given geometry."""
        back = -1 if direction == PASSES[0] else 1
        place = np.array(np.unravel_index(number, self.shape))
        names = []
        for axis in np.eye(len(self.shape), dtype=int):
            beside = place + back * axis
            if ((beside < 0) | (beside >= self.shape)).any():
                continue
            name = run_name(direction, int(np.ravel_multi_index(tuple(beside), self.shape)))
            if name in results:
                names.append(name)
        if not names:
            return ""
        return min(names, key=lambda name: round(results[name].total_energy, 8))


def run_name(direction: str, number: int) -> str:
    """Name of the run of a point, counted from 0, in one of PASSES."""
    return f"{direction}-{number + 1:03d}"


def bring(
    molecule: Molecule, coordinates: Sequence[Coordinate], values: Sequence[float]
) -> Molecule:
    """The molecule with all coordinates set to the given values.

    Where possible, sides first move as a whole; the remaining deviation is distributed over the
    atoms of the coordinates, which move as little as possible.

    Raises
    ------
    InputError : two atoms come too close
    NumericalError : the values are incompatible
    """
    moved = molecule
    for coordinate, value in zip(coordinates, values, strict=True):
        if coordinate.moving:
            moved = coordinate.at(moved, value)
    for _ in range(MOST_CORRECTIONS):
        missing = _deviations(moved, coordinates, values)
        if abs(missing).max() < EXACT:
            return moved
        correction = np.linalg.lstsq(_slopes(moved, coordinates, values), missing, rcond=None)[0]
        correction *= min(1.0, LONGEST / abs(correction).max())
        moved = replace(moved, coordinates=moved.coordinates + correction.reshape(-1, 3))
    said = ", ".join(
        f"{coordinate.said} = {value:g}"
        for coordinate, value in zip(coordinates, values, strict=True)
    )
    raise NumericalError(f"no geometry has {said}: scan another range, or another coordinate")


def _deviations(
    molecule: Molecule, coordinates: Sequence[Coordinate], values: Sequence[float]
) -> np.ndarray:
    """Deviations (n,) from the values, bohr or radian."""
    return np.array(
        [
            coordinate.deviation(molecule, value)
            for coordinate, value in zip(coordinates, values, strict=True)
        ]
    )


def _slopes(
    molecule: Molecule, coordinates: Sequence[Coordinate], values: Sequence[float]
) -> np.ndarray:
    """Derivatives (n, 3 natom) of the coordinates, by central differences."""
    columns = []
    for index in np.ndindex(molecule.coordinates.shape):
        ends = []
        for sign in (1, -1):
            places = np.array(molecule.coordinates)
            places[index] += sign * SHIFT
            ends.append(_deviations(replace(molecule, coordinates=places), coordinates, values))
        columns.append((ends[1] - ends[0]) / (2 * SHIFT))
    return np.array(columns).T


class Outcome(NamedTuple):
    """The outcome of a point.

    Attributes
    ----------
    number : int
        Number of the point, from 0.
    runs : dict of str to MP2Result
        Results by name of the run: one, or those of both passes.
    codes : dict of str to int
        Exit codes of the failed runs, by name.
    """

    number: int
    runs: Mapping[str, MP2Result]
    codes: Mapping[str, int]

    @property
    def name(self) -> str:
        """Name of the run with the lowest energy, "" if all failed."""
        if not self.runs:
            return ""
        return min(self.runs, key=lambda name: self.runs[name].total_energy)

    @property
    def run(self) -> MP2Result | None:
        """The run with the lowest energy."""
        return self.runs.get(self.name)

    @property
    def exit_code(self) -> float:
        """0, or the code of the first error if all runs failed."""
        if self.runs:
            return 0.0
        return float(next(iter(self.codes.values())))

    def energy(self, direction: str) -> float:
        """Total energy in one pass, Eh; NaN if it failed or is still to come."""
        run = self.runs.get(run_name(direction, self.number))
        return math.nan if run is None else run.total_energy


def disagreements(outcomes: Sequence[Outcome], point: Callable[[int], str]) -> list[str]:
    """A line for each point at which the passes reached different minima, or that there is none.

    Parameters
    ----------
    outcomes : sequence of Outcome
        The points so far.
    point : callable
        Describes the point of a number.
    """
    lines = []
    for outcome in outcomes:
        forward, backward = (outcome.energy(direction) for direction in PASSES)
        difference = backward - forward
        if not abs(difference) > DISAGREE:
            continue
        kept = outcome.name.partition("-")[0]
        lines.append(
            f"{point(outcome.number)}: the passes disagree by "
            f"{abs(difference) * KJ_PER_MOL_PER_HARTREE:.2f} kJ/mol; the {kept} one is lower and "
            "kept"
        )
    both = sum(len(outcome.runs) == len(PASSES) for outcome in outcomes)
    if both and not lines:
        lines.append(
            f"both passes agree within {DISAGREE:g} Eh at all {counted_text(both, 'point')}"
        )
    return lines
