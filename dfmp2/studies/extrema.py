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
    if abs(span - period) < SAME_PLACE:  # both ends are one geometry
        if np.isnan(heights[0]):
            heights[0] = heights[-1]
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
