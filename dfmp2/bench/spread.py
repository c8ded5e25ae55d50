"""Repeated measurements: median and range, ratios pair by pair, the exponent of a power law."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float

    def show(self, digits: int = 2) -> str:
        """Median and range, e.g. "1.26 (1.20-1.31)"; the median alone when they are the same."""
        middle, low, high = (f"{value:.{digits}f}" for value in (self.median, self.low, self.high))
        return middle if low == high else f"{middle} ({low}-{high})"


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest of one or more values."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Spread of ours/theirs, measurement k with measurement k: what slows both at the same time cancels."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """p of the least-squares fit log(value) = p log(size) + c; None for fewer than two different sizes.

    Every size counts once, however long it took: the fit is one of relative errors.
    """
    points = [(math.log(size), math.log(value)) for size, value in zip(sizes, values, strict=True) if value > 0]
    if len({x for x, _ in points}) < 2:
        return None
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
