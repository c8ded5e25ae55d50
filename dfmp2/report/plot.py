"""Plots: horizontal bars, and curves that differ in dash and marker, not only in colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dfmp2.report import svg
from dfmp2.report.numbers import ticks

WIDTH = 500.0
MOST_SERIES = 4  # dash patterns and markers there are


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: its name, its length, what is printed at its end, and a mark to compare with (None for none)."""

    name: str
    value: float
    text: str
    mark: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve: its name and its points (x, y)."""

    name: str
    points: tuple[tuple[float, float], ...]


def bars(label: str, items: Sequence[Bar], mark_name: str = "") -> str:
    """Horizontal bars from zero, longest to the full width; marks are vertical strokes explained by `mark_name`."""
    left, row, top = 106.0, 30.0, 8.0
    lengths = [_drawable(item.value) for item in items]
    marks = [_drawable(item.mark or 0.0) for item in items]
    longest = max([*lengths, *marks], default=0.0) or 1.0
    room = WIDTH - left - 112.0
    parts = []
    for place, item in enumerate(items):
        y = top + row * place
        length = room * lengths[place] / longest
        parts.append(svg.text(left - 8, y + 18, item.name, "end"))
        parts.append(svg.element("rect", x=left, y=y + 5, width=max(length, 1.0), height=row - 12, rx=2.0, cls="bar"))
        end = left + length
        if item.mark is not None:
            x = left + room * marks[place] / longest
            parts.append(svg.line(x, y + 1, x, y + row - 3, "mark"))
            end = max(end, x + 1)
        parts.append(svg.text(end + 7, y + 18, item.text))
    parts.append(svg.line(left, top, left, top + row * len(items), "axis"))
    height = top + row * len(items) + 8
    if mark_name:
        parts += [
            svg.line(left + 2, height + 2, left + 2, height + 16, "mark"),
            svg.text(left + 10, height + 14, mark_name, "small"),
        ]
        height += 24
    return svg.drawing(WIDTH, height, label, parts)


def stacked(label: str, names: Sequence[str], rows: Sequence[tuple[str, tuple[float, ...], str]]) -> str:
    """Rows of adjoining parts (at most two), each row with a text at its end; parts are all of one sign."""
    left, row, top = 82.0, 30.0, 30.0
    longest = max((sum(_drawable(abs(part)) for part in parts) for _, parts, _ in rows), default=0.0) or 1.0
    room = WIDTH - left - 112.0
    drawn, x = [], left
    for cls, name in zip(("bar", "bar2"), names, strict=False):
        drawn += [svg.element("rect", x=x, y=8.0, width=14.0, height=12.0, cls=cls), svg.text(x + 20, 18, name)]
        x += 40 + 7 * len(name)
    for place, (name, parts, text) in enumerate(rows):
        y, x = top + row * place, left
        drawn.append(svg.text(left - 8, y + 18, name, "end"))
        for cls, part in zip(("bar", "bar2"), parts, strict=False):
            length = room * _drawable(abs(part)) / longest
            if length > 0:
                drawn.append(svg.element("rect", x=x, y=y + 4, width=length, height=row - 11, cls=cls))
            x += length
        drawn.append(svg.text(x + 7, y + 18, text))
    drawn.append(svg.line(left, top, left, top + row * len(rows), "axis"))
    return svg.drawing(WIDTH, top + row * len(rows) + 8, label, drawn)


def curves(
    label: str,
    items: Sequence[Curve],
    x_name: str,
    y_name: str,
    x_labels: Sequence[tuple[float, str]] = (),
) -> str:
    """Curves over one axis; `x_labels` replaces the numbers on the x axis."""
    items = [Curve(item.name, tuple(p for p in item.points if all(map(math.isfinite, p)))) for item in items]
    items = [item for item in items if item.points] or [Curve("no finite energy", ((0.0, 0.0),))]
    height, left, right, top, bottom = 330.0, 64.0, WIDTH - 16.0, 30.0 + 20.0 * len(items), 278.0 + 20 * len(items)
    height += 20.0 * len(items)
    xs = [x for item in items for x, _ in item.points]
    ys = [y for item in items for _, y in item.points]
    x_ticks = [] if x_labels else ticks(min(xs), max(xs), 7)
    y_ticks = ticks(min(ys), max(ys), 6)
    pad = 0.08 * (max(xs) - min(xs)) or 0.5
    low, high = (min(xs) - pad, max(xs) + pad) if x_labels else (min(x_ticks), max(x_ticks))
    to_x = _scale(low, high, left, right)
    to_y = _scale(min(y_ticks), max(y_ticks), bottom, top)
    parts = [svg.text(14, top - 12, y_name, "small")]
    for tick in y_ticks:
        parts.append(svg.line(left, to_y(tick), right, to_y(tick), "grid"))
        parts.append(svg.text(left - 7, to_y(tick) + 4, f"{tick:g}", "small end"))
    for x, name in x_labels or [(tick, f"{tick:g}") for tick in x_ticks]:
        parts.append(svg.line(to_x(x), bottom, to_x(x), bottom + 5, "axis"))
        parts.append(svg.text(to_x(x), bottom + 18, name, "small middle"))
    parts.append(svg.line(left, bottom, right, bottom, "axis"))
    parts.append(svg.text((left + right) / 2, bottom + 38, x_name, "small middle"))
    for place, item in enumerate(items[:MOST_SERIES], start=1):
        y = 16.0 + 20 * (place - 1)
        parts += [svg.line(left, y, left + 34, y, f"s{place}"), _marker(place, left + 17, y)]
        parts.append(svg.text(left + 42, y + 4, item.name))
        path = " ".join(f"{to_x(x):.2f},{to_y(y):.2f}" for x, y in item.points)
        parts.append(svg.element("polyline", points=path, cls=f"s{place}"))
        parts += [_marker(place, to_x(x), to_y(y), f"{item.name}: {x:g}, {y:.6g}") for x, y in item.points]
    return svg.drawing(WIDTH, height, label, parts)


def magnitudes(label: str, items: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], x_name: str) -> str:
    """Absolute values on a logarithmic axis, one row per name of `items`, one marker per entry of `names`.

    A zero lies on the left edge, which says so.
    """
    left, row, top = 190.0, 30.0, 22.0 + 20.0 * len(names)
    right, bottom = WIDTH - 24.0, top + row * len(items)
    sizes = [abs(v) for _, values in items for v in values if v and math.isfinite(v)]
    low = math.floor(math.log10(min(sizes))) if sizes else -10
    high = max(low + 1, math.ceil(math.log10(max(sizes))) if sizes else -9)
    to_x = _scale(low - 1, high, left, right)
    parts = []
    step = max(1, (high - low) // 7)
    for tick in range(low, high + 1, step):
        parts.append(svg.line(to_x(tick), top - 4, to_x(tick), bottom, "grid"))
        parts.append(svg.text(to_x(tick), bottom + 16, f"1e{tick:+d}", "small middle"))
    parts += [svg.line(left, top - 4, left, bottom, "axis"), svg.text(left, bottom + 16, "0", "small middle")]
    parts.append(svg.text((left + right) / 2, bottom + 36, x_name, "small middle"))
    for place, name in enumerate(names[:MOST_SERIES], start=1):
        y = 14.0 + 20 * (place - 1)
        parts += [_marker(place, left + 7, y), svg.text(left + 20, y + 4, name)]
    for place, (name, values) in enumerate(items):
        y = top + row * (place + 0.5)
        parts.append(svg.line(left, y, right, y, "grid"))
        parts.append(svg.text(left - 10, y + 4, name if len(name) < 28 else name[:26] + "…", "end"))
        for series, value in enumerate(values[:MOST_SERIES], start=1):
            if math.isfinite(value):
                x = to_x(math.log10(abs(value))) if value else left
                shift = 9.0 * (series - (len(names) + 1) / 2)  # equal values lie above each other, not upon each other
                parts.append(_marker(series, x, y + shift, f"{name}, {names[series - 1]}: {value:.2e}"))
    return svg.drawing(WIDTH, bottom + 44, label, parts)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (end - start) * (value - low) / span


def _drawable(value: float) -> float:
    """A length that can be drawn, whatever a damaged file says."""
    return value if 0.0 < value < 1e300 else 0.0


def _marker(series: int, x: float, y: float, title: str = "") -> str:
    """Circle, square, triangle or diamond."""
    r = 4.5
    shapes = {
        2: f"M{x - r:.2f} {y - r:.2f}h{2 * r}v{2 * r}h{-2 * r}z",
        3: f"M{x:.2f} {y - 1.2 * r:.2f}l{1.15 * r:.2f} {2 * r:.2f}h{-2.3 * r:.2f}z",
        4: f"M{x:.2f} {y - 1.3 * r:.2f}l{1.3 * r:.2f} {1.3 * r:.2f} {-1.3 * r:.2f} {1.3 * r:.2f} {-1.3 * r:.2f} "
        f"{-1.3 * r:.2f}z",
    }
    given: dict[str, str | float] = {"cx": x, "cy": y, "r": r} if series == 1 else {"d": shapes[series]}
    tag = "circle" if series == 1 else "path"
    return svg.titled(tag, title, cls=f"m{series}", **given) if title else svg.element(tag, cls=f"m{series}", **given)
