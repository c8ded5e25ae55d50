"""Minima and maxima between the points of a curve, and the barriers between them.

Every point that is lower or higher than both its neighbours has an extremum nearby, found from the
quartic or parabola through the surrounding points. A periodic coordinate sampled over a full period
has no ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.units import KJ_PER_MOL_PER_HARTREE

FITS = {"parabola": 3, "quartic": 5}  # points through which a polynomial goes
SAME_PLACE = 1e-6  # rounding error of a period, in the unit of the coordinate


class Extremum(NamedTuple):
    """An interpolated minimum or maximum.

    Attributes
    ----------
    position : float
        In the unit of the coordinate.
    energy : float
        Eh.
    curvature : float
        Second derivative, Eh per unit squared: positive at a minimum, negative at a maximum.
    points : int
        Number of points that the polynomial passes through, 3 or 5.
    """

    position: float
    energy: float
    curvature: float
    points: int


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Energies at increasing values of a coordinate, Eh; NaN for failed points.

    Attributes
    ----------
    places, energies : (n,) arrays
    period : float or None
        Period after which the first point follows the last; None for an open curve.
    """

    places: NDArray[np.float64]
    energies: NDArray[np.float64]
    period: float | None

    def window(
        self, middle: int, points: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Values and energies of a point and its neighbours; None beyond an end or across a failed
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
        """The equivalent value within the period that begins at the first point."""
        if self.period is None:
            return place
        turned = (place - self.places[0]) % self.period
        if self.period - turned < SAME_PLACE:  # rounding put the value just below the first
            turned = 0.0
        return float(self.places[0] + turned)

    def failed_between(self, first: float, last: float) -> bool:
        """Whether a point failed between two values; the second may lie beyond the period."""
        failed = self.places[np.isnan(self.energies)]
        if self.period is not None:
            failed = np.concatenate([failed - self.period, failed, failed + self.period])
        return bool(((first < failed) & (failed < last)).any())


def make_curve(
    x: Sequence[float], energies: Sequence[float], period: float | None = None
) -> Sampled:
    """The points of a scan in increasing order; closed if they cover a full period.

    Parameters
    ----------
    x : sequence of float
        Values in any order.
    energies : sequence of float
        Eh, NaN for failed points.
    period : float, optional
        Period of the coordinate.
    """
    order = np.argsort(x, kind="stable")
    places = np.array(x, dtype=np.float64)[order]
    heights = np.array(energies, dtype=np.float64)[order]
    if period is None or len(places) < 3:
        return Sampled(places, heights, None)
    span = float(places[-1] - places[0])
    if abs(span - period) < SAME_PLACE:  # both ends are one geometry, whose lower energy counts
        heights[0] = np.fmin(heights[0], heights[-1])
        return Sampled(places[:-1], heights[:-1], period)
    widest = float(np.diff(places).max())
    if span < period <= span + widest + SAME_PLACE:
        return Sampled(places, heights, period)
    return Sampled(places, heights, None)


def find_extrema(curve: Sampled) -> list[Extremum]:
    """Every minimum and maximum between the points of a scan, by increasing position.

    A point that is lower or higher than its neighbours is the centre of a polynomial through five
    points, or through three if there are not five, one of the five failed, or the extremum of their
    polynomial lies elsewhere.
    """
    found = []
    for middle in range(len(curve.places)):
        extremum = _extremum(curve, middle)
        if extremum is not None:
            found.append(extremum._replace(position=curve.inside(extremum.position)))
    return sorted(found, key=lambda one: one.position)


def _extremum(curve: Sampled, middle: int) -> Extremum | None:
    """The extremum near a point that is lower or higher than its two neighbours; None otherwise."""
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
            return Extremum(
                position=found.position,
                energy=sign * found.energy,
                curvature=sign * found.curvature,
                points=points,
            )
    return None


def barriers(
    curve: Sampled, extrema: Sequence[Extremum]
) -> list[tuple[Extremum, Extremum, Extremum]]:
    """Each maximum with the minima before and after it, if no point between them failed."""
    found = []
    count = len(extrema)
    for number, top in enumerate(extrema):
        if curve.period is None and number in (0, count - 1):
            continue
        before = extrema[number - 1]
        after = extrema[(number + 1) % count]
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
    """An interpolated minimum: position in the unit of the coordinate, energy in Eh, second
    derivative."""

    position: float
    energy: float
    curvature: float


def find_minimum(
    x: Sequence[float] | NDArray[np.float64],
    energy: Sequence[float] | NDArray[np.float64],
    points: int,
) -> Minimum | None:
    """The minimum of the polynomial through `points` neighbours centred on the lowest point.

    Returns None if the lowest point is too near an end, or the polynomial has no minimum between
    its outer points.

    Parameters
    ----------
    x : distinct values, in any order
    energy : Eh
    points : 3 or 5
    """
    order = np.argsort(x)
    xs = np.array(x, dtype=np.float64)[order]
    ys = np.array(energy, dtype=np.float64)[order]
    if xs.size < points:
        return None
    lowest, half = int(np.argmin(ys)), points // 2
    if lowest < half or lowest + half >= xs.size:
        return None
    near = xs[lowest - half : lowest + half + 1]
    low = ys[lowest]
    # Shifted to the lowest point, because energies of 1e2 Eh would cost significant digits.
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


def numbers_of_curve(
    curve: Sampled, units: str
) -> tuple[dict[str, Dataset], dict[str, Dataset], list[str]]:
    """The values, arrays and remarks of a study of a curve whose places are in `units`."""
    values = _minima(curve, units)
    extrema = find_extrema(curve)
    arrays = _of_extrema(extrema, units) | _of_barriers(curve, extrema, units)
    return values, arrays, _without_minimum(values, extrema)


def _minima(curve: Sampled, units: str) -> dict[str, Dataset]:
    """Position, energy and curvature of the lowest minimum by parabola and quartic, if available.

    Not available across a failed point, whose energy is NaN.
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
        values[f"minimum_{name}_energy"] = Dataset(found.energy, "hartree", f"{how}, total energy")
        values[f"minimum_{name}_curvature"] = Dataset(
            found.curvature, f"hartree/{units}^2", f"{how}, second derivative"
        )
    return values


def _without_minimum(minima: dict[str, Dataset], extrema: Sequence[Extremum]) -> list[str]:
    """Remarks if the lowest point is not a minimum."""
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


def _of_extrema(extrema: Sequence[Extremum], units: str) -> dict[str, Dataset]:
    """Arrays with one element per extremum; empty if there are none."""
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
    """Arrays with one element per maximum between two minima; empty if there are none."""
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
