"""A curve in characters, for a terminal: the energy of a study's points against its first numerical column."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dfmp2.io.study import Study

WIDTH, HEIGHT = 64, 14


def figure(study: Study) -> str:
    """The plot of a scan; "" for another study or with fewer than two points."""
    points = scan_points(study)
    if len(points) < 2:
        return ""
    name, column = next(iter(study.table.items()))
    label = f"{name.replace('_', ' ')}{f' / {column.units}' if column.units else ''}"
    return plot(points, label, "E(MP2 total) - lowest / kJ/mol")


def scan_points(study: Study) -> list[tuple[float, float]]:
    """(coordinate, energy above the lowest in kJ/mol) of every point that has one; nothing for other studies."""
    if study.kind != "scan":
        return []
    x, y = next(iter(study.table.values())).values, study.table["relative_energy"].values
    return [(float(a), float(b)) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]


def plot(points: Sequence[tuple[float, float]], x_label: str, y_label: str) -> str:
    """Points as `o` in a frame; both axes from the smallest to the largest value."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    rows = [[" "] * WIDTH for _ in range(HEIGHT)]
    for x, y in points:
        across = round((x - min(xs)) / ((max(xs) - min(xs)) or 1.0) * (WIDTH - 1))
        down = round((high - y) / ((high - low) or 1.0) * (HEIGHT - 1))
        rows[down][across] = "o"
    lines = [y_label]
    for number, row in enumerate(rows):
        mark = f"{high:10.3f}" if number == 0 else f"{low:10.3f}" if number == HEIGHT - 1 else " " * 10
        lines.append(f"{mark} |{''.join(row).rstrip()}")
    left, right = f"{min(xs):.6g}", f"{max(xs):.6g}"
    gap = max(1, WIDTH - len(left) - len(right))
    return (
        "\n".join([*lines, f"{'':10} +{'-' * WIDTH}", f"{'':12}{left}{' ' * gap}{right}", f"{'':12}{x_label}"]) + "\n"
    )
