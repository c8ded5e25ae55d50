"""The points of a relaxed scan: the coordinates are held and everything else is optimised.

Two passes go over the points from opposite ends. A point starts from the geometry and the orbitals
of its neighbour in the same pass, with the coordinates brought to their new values: the side of the
last atom moves as a whole where there is one, and in rings all atoms move as little as they can.
A pass can stay in a minimum that another one leaves, so both energies are kept and the lower counts.

On a map a point has up to two neighbours that are done, and starts from the lower one. The points at
the same distance from the corner do not need each other (`Relaxation.fronts`), in both passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from dfmp2.errors import InputError, NumericalError
from dfmp2.errors.messages import Option
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.output.study import MOST_RUNS
from dfmp2.studies.coordinate import Constraints, Coordinate
from dfmp2.studies.geometric_search import Search, geometric_library
from dfmp2.studies.task import Results, Step

PASSES = ("forward", "backward")
LARGEST_ANGLE = 175.0  # degrees; beyond, the coordinates of an optimisation are not defined
EXACT = 1e-8  # bohr or radian; what a coordinate may be off its value
MOST_CORRECTIONS = 50
LONGEST = 0.3  # bohr; of one correction
SHIFT = 1e-4  # bohr, of the differences that a derivative is made of


@dataclass(frozen=True, slots=True)
class Relaxation:
    """How the points of a relaxed scan follow from each other.

    Attributes
    ----------
    molecule : Molecule
        The geometry that was given, from which both passes begin.
    coordinates : tuple of Coordinate
        One or two.
    options : Options
    chained : bool
        Start every SCF from the orbitals of the neighbour.
    convergence : str
        Of the geometries, as of `dfmp2.studies.geometric_search.Search`.
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
        """Numbers of values of the coordinates."""
        return tuple(len(coordinate.values) for coordinate in self.coordinates)

    def constraints(self) -> str:
        """The coordinates, held as they are, in geomeTRIC's format."""
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

    def fronts(self) -> list[list[tuple[str, int]]]:
        """The runs of both passes, as direction and number of the point, in groups.

        Those of a group need runs of groups before it alone.
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
        """The run of a point, from the lower of its neighbours in the same pass.

        Raises
        ------
        InputError, NumericalError : the coordinates cannot be brought to their values
        """
        values = np.unravel_index(number, self.shape)
        wanted = [
            coordinate.values[int(k)]
            for coordinate, k in zip(self.coordinates, values, strict=True)
        ]
        start = self._neighbour(direction, number, results)
        geometry = self.molecule
        if start:
            geometry = results[start].molecule
        return Step(
            name=run_name(direction, number),
            who=f"{who}, {direction}",
            molecule=bring(geometry, self.coordinates, wanted),
            options=self.options,
            start=start if self.chained else "",
            optimised=True,
        )

    def _neighbour(self, direction: str, number: int, results: Results) -> str:
        """Name of the run that a point starts from, "" for the geometry that was given."""
        if direction == PASSES[0]:
            back = -1
        else:
            back = 1
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
    """Of a point, from 0, in one of PASSES."""
    return f"{direction}-{number + 1:03d}"


def bring(
    molecule: Molecule, coordinates: Sequence[Coordinate], values: Sequence[float]
) -> Molecule:
    """The molecule with all coordinates at their values.

    Sides move as wholes first, where they can; what is missing then is shared by the atoms of the
    coordinates, which move as little as possible.

    Raises
    ------
    InputError : two atoms come too close
    NumericalError : the values exclude each other
    """
    moved = molecule
    for coordinate, value in zip(coordinates, values, strict=True):
        if coordinate.moving:
            moved = coordinate.at(moved, value)
    for _ in range(MOST_CORRECTIONS):
        missing = _deviations(moved, coordinates, values)
        if abs(missing).max() < EXACT:
            return moved
        slopes = _slopes(moved, coordinates, values)
        correction = np.linalg.lstsq(slopes, missing, rcond=None)[0]
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
    """(n,) what is missing to the values, bohr or radian."""
    return np.array(
        [
            coordinate.deviation(molecule, value)
            for coordinate, value in zip(coordinates, values, strict=True)
        ]
    )


def _slopes(
    molecule: Molecule, coordinates: Sequence[Coordinate], values: Sequence[float]
) -> np.ndarray:
    """(n, 3 natom) derivatives of the coordinates, by central differences."""
    columns = []
    for index in np.ndindex(molecule.coordinates.shape):
        ends = []
        for sign in (1, -1):
            places = np.array(molecule.coordinates)
            places[index] += sign * SHIFT
            ends.append(_deviations(replace(molecule, coordinates=places), coordinates, values))
        columns.append((ends[1] - ends[0]) / (2 * SHIFT))
    return np.array(columns).T
