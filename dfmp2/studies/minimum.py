"""Where a scanned curve has its minimum: the parabola and the quartic through the points around the lowest one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import Polynomial


@dataclass(frozen=True, slots=True)
class Minimum:
    """A minimum by interpolation.

    Attributes
    ----------
    points : how many were used, 3 (parabola) or 5 (quartic)
    position : in the unit of the coordinate
    energy : Eh
    curvature : second derivative there, Eh per unit squared
    """

    points: int
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
    curve = Polynomial.fit(near - xs[lowest], ys[lowest - half : lowest + half + 1] - low, points - 1).convert()
    slope, bend = curve.deriv(), curve.deriv(2)
    roots = [root.real for root in np.atleast_1d(slope.roots()) if abs(root.imag) < 1e-9]
    inside = [r for r in roots if near[0] - xs[lowest] < r < near[-1] - xs[lowest] and bend(r) > 0]
    if not inside:
        return None
    best = min(inside, key=lambda r: float(curve(r)))
    return Minimum(points, float(xs[lowest] + best), float(low + curve(best)), float(bend(best)))
