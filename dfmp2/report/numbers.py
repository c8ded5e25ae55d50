"""Numbers as they are printed: the same digits in every table, title and figure of a report."""

from __future__ import annotations

import math

from dfmp2.report.page import Cell

ABSENT = "not recorded"


def energy(value: float) -> str:
    """An energy, Eh, to the last digit `dfmp2 show` prints; zero has no sign."""
    return f"{value:z.10f}" if math.isfinite(value) else ABSENT


def difference(value: float) -> str:
    """A signed difference, Eh."""
    return f"{value:+.2e}" if math.isfinite(value) else ABSENT


def size(value: float) -> str:
    """A number whose magnitude is what matters."""
    return f"{value:.1e}" if math.isfinite(value) else ABSENT


def seconds(value: float) -> str:
    """A duration, s."""
    return f"{value:.2f} s" if math.isfinite(value) else ABSENT


def energy_cell(value: float | None) -> Cell:
    """An energy as a cell sorted by value; empty without one."""
    return Cell("") if value is None else Cell(energy(value), value)


def difference_cell(value: float) -> Cell:
    """A difference as a cell sorted by value."""
    return Cell(difference(value), value)


def seconds_cell(value: float | None) -> Cell:
    """A duration as a cell sorted by value; empty without one."""
    return Cell("") if value is None else Cell(f"{value:.2f}", value)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from the first one below `low` to the first above `high`."""
    span = high - low or abs(high) or 1.0
    raw = span / max(1, most - 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1.0, 2.0, 5.0, 10.0) if factor * unit >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, max(last, first + 1) + 1)]
