"""Bars, curves and spectra."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dfmp2.arrays import Array
from dfmp2.output.drawings import (
    LEFT,
    MOST_SERIES,
    RIGHT,
    WIDTH,
    axis_length,
    axis_scale,
    drawing,
    element,
    line_element,
    marker_element,
    shortened_name,
    text_element,
    ticks,
)

BROADENING = 20.0  # 1/cm, full width at half maximum of a spectral line
SAMPLES = 401  # points of a broadened spectrum, in addition to its lines
MOST_LABELS = 6  # of peaks
WEAKEST_LABELLED = 0.03  # of the strongest
LABEL_WIDTH = 34.0
LONGEST_OF_BAR = 23  # characters; longer names are shortened
WIDTH_OF_LETTER = 8.2  # of a name beside a bar, on a small screen too


class Bar(NamedTuple):
    """A bar: its name, the lengths of its parts (at most two), the text at its end."""

    name: str
    parts: tuple[float, ...]
    text: str


class Curve(NamedTuple):
    """A curve: its name and its points (x, y); a fitted curve has no markers."""

    name: str
    points: Sequence[tuple[float, float]]
    fitted: bool = False


class Limit(NamedTuple):
    """A convergence threshold: the name of its curve, and the value."""

    name: str
    value: float


def bars(label: str, items: Sequence[Bar], names: Sequence[str] = ()) -> str:
    """Horizontal bars from zero, the longest over the full width; `names` are those of the parts of
    a bar."""
    called = [shortened_name(item.name, LONGEST_OF_BAR) for item in items]
    left = 24.0 + WIDTH_OF_LETTER * max(map(len, called), default=0)
    row, top = 30.0, 30.0 if names else 8.0
    lengths = [[axis_length(part) for part in item.parts] for item in items]
    to_x = axis_scale(0.0, max(map(sum, lengths), default=0.0), left, WIDTH - 132.0)
    drawn, x = [], left
    for cls, name in zip(("bar", "bar2"), names, strict=False):
        drawn += [
            element("rect", x=x, y=8.0, width=14.0, height=12.0, cls=cls),
            text_element(x + 20, 18, name),
        ]
        x += 40 + 7 * len(name)
    for place, (item, parts) in enumerate(zip(items, lengths, strict=True)):
        y, end = top + row * place, left
        drawn.append(text_element(left - 8, y + 18, called[place], "end"))
        for cls, part in zip(("bar", "bar2"), parts, strict=False):
            wide = to_x(part) - left
            drawn.append(
                element(
                    "rect", x=end, y=y + 5, width=max(wide, 0.5), height=row - 12, rx=2.0, cls=cls
                )
            )
            end += wide
        drawn.append(text_element(end + 7, y + 18, item.text))
    height = top + row * len(items)
    drawn.append(line_element(left, top, left, height, "axis"))
    return drawing(WIDTH, height + 8, label, drawn)


def curves(
    label: str,
    items: Sequence[Curve],
    x_name: str,
    y_name: str,
    x_labels: Sequence[tuple[float, str]] = (),
    mark: tuple[float, str] | None = None,
) -> str:
    """Curves over one axis.

    Parameters
    ----------
    x_labels : (x, text) in place of the numbers of the x axis
    mark : (x, text) of a vertical line
    """
    items = [
        item._replace(points=[p for p in item.points if all(map(math.isfinite, p))])
        for item in items
    ]
    items = [item for item in items if item.points] or [
        Curve("no point has an energy", [(0.0, 0.0)])
    ]
    legend = 20.0 * len(items)
    top, bottom = 30.0 + legend, 278.0 + legend
    xs, ys = zip(*(point for item in items for point in item.points), strict=True)
    ys = _without_overshoot(items) or ys
    pad = 0.08 * (max(xs) - min(xs)) or 0.5
    if x_labels:
        span = (min(xs) - pad, max(xs) + pad)
        named = x_labels
    else:
        x_ticks = ticks(min(xs), max(xs), 7)
        span = (x_ticks[0], x_ticks[-1])
        named = [(tick, f"{tick:g}") for tick in x_ticks]
    parts, to_x, to_y, data = _axes(
        (x_name, span, named), (y_name, ticks(min(ys), max(ys))), top, bottom
    )
    if mark is not None and span[0] <= mark[0] <= span[1]:
        _, height = min(items[0].points, key=lambda point: abs(point[0] - mark[0]))
        label_y = top + 14
        if to_y(height) < (top + bottom) / 2:  # keep clear of the curve
            label_y = bottom - 8
        parts += [
            line_element(to_x(mark[0]), top, to_x(mark[0]), bottom, "mark"),
            text_element(to_x(mark[0]) + 5, label_y, mark[1]),
        ]
    measured = [item for item in items if not item.fitted][:MOST_SERIES]
    for place, item in enumerate(measured, start=1):
        parts += _series(place, item, to_x, to_y)
    fitted = [item for item in items if item.fitted]
    names = list(dict.fromkeys(item.name for item in fitted))
    for place, name in enumerate(names, start=1 + len(measured)):
        y = 16.0 + 20 * (place - 1)
        parts += [line_element(LEFT, y, LEFT + 34, y, "fit"), text_element(LEFT + 42, y + 4, name)]
    parts += [
        element("polyline", points=_path(item.points, to_x, to_y), cls="fit") for item in fitted
    ]
    return drawing(WIDTH, 330.0 + legend, label, parts, **data)


def _without_overshoot(items: Sequence[Curve]) -> tuple[float, ...]:
    """The y values that the axis must span; a fitted curve that overshoots the points by less than
    a twentieth of their range needs no extra tick."""
    measured = [y for item in items if not item.fitted for _, y in item.points]
    if not measured:
        return ()
    room = 0.05 * (max(measured) - min(measured))
    low, high = min(measured) - room, max(measured) + room
    beyond = [y for item in items if item.fitted for _, y in item.points if not low < y < high]
    return (*measured, *beyond)


def _series(
    place: int, item: Curve, to_x: Callable[[float], float], to_y: Callable[[float], float]
) -> list[str]:
    """Legend, line and markers of one of at most MOST_SERIES curves."""
    y = 16.0 + 20 * (place - 1)
    parts = [
        line_element(LEFT, y, LEFT + 34, y, f"s{place}"),
        marker_element(place, LEFT + 17, y),
        text_element(LEFT + 42, y + 4, item.name),
    ]
    parts.append(element("polyline", points=_path(item.points, to_x, to_y), cls=f"s{place}"))
    for x, height in item.points:
        parts.append(
            marker_element(place, to_x(x), to_y(height), f"{item.name}: {x:.8g}, {height:.6g}")
        )
    return parts


def _path(
    points: Sequence[tuple[float, float]],
    to_x: Callable[[float], float],
    to_y: Callable[[float], float],
) -> str:
    return " ".join(f"{to_x(x):.2f},{to_y(y):.2f}" for x, y in points)


def broadened(wavenumber: float, lines: Sequence[tuple[float, float]]) -> float:
    """The sum of the Lorentzians of all lines, km/mol; each is as high as its line, with full width
    BROADENING at half maximum.

    Parameters
    ----------
    wavenumber : float
        Where, 1/cm.
    lines : sequence of (float, float)
        Wavenumber, 1/cm, and intensity, km/mol, of each.
    """
    half = 0.5 * BROADENING
    return math.fsum(
        height * half**2 / ((wavenumber - centre) ** 2 + half**2) for centre, height in lines
    )


def spectrum(label: str, lines: Sequence[tuple[float, float]], x_name: str, y_name: str) -> str:
    """A spectrum: a stick for every line, their broadened sum, and the wavenumbers of the strongest
    peaks; wavenumbers decrease to the right, as in the literature.

    Parameters
    ----------
    lines : sequence of (float, float)
        Wavenumber and intensity, both non-negative.
    """
    top, bottom = 46.0, 254.0
    lines = [(x, axis_length(y)) for x, y in lines if 0.0 < x < math.inf]
    x_ticks = ticks(0.0, max((x for x, _ in lines), default=1.0) + BROADENING, 7)
    steps = np.linspace(x_ticks[0], x_ticks[-1], SAMPLES).tolist()
    curve = [(x, broadened(x, lines)) for x in sorted({*steps, *(x for x, _ in lines)})]
    y_ticks = ticks(0.0, max(y for _, y in curve))
    along = x_name, (x_ticks[-1], x_ticks[0]), [(tick, f"{tick:g}") for tick in x_ticks]
    parts, to_x, to_y, _ = _axes(along, (y_name, y_ticks), top, bottom)
    parts += [
        line_element(to_x(x), bottom, to_x(x), to_y(y), "mark", title=f"{x:.1f}, {y:.4g}")
        for x, y in lines
    ]
    parts.append(element("polyline", points=_path(curve, to_x, to_y), cls="s1"))
    for x in _labelled_peaks(lines, to_x):
        peak = to_y(broadened(x, lines))
        parts.append(text_element(to_x(x), peak - 6, f"{x:.0f}", "small middle peak"))
    return drawing(WIDTH, bottom + 52, label, parts)


def _labelled_peaks(
    lines: Sequence[tuple[float, float]], to_x: Callable[[float], float]
) -> list[float]:
    """Wavenumbers of the strongest lines whose labels do not overlap, the strongest first."""
    strongest = sorted(lines, key=lambda line: -line[1])[: 3 * MOST_LABELS]
    chosen: list[float] = []
    for x, height in strongest:
        visible = height >= WEAKEST_LABELLED * strongest[0][1] > 0
        apart = all(abs(to_x(x) - to_x(other)) >= LABEL_WIDTH for other in chosen)
        if visible and apart and len(chosen) < MOST_LABELS:
            chosen.append(x)
    return chosen


def convergence(
    label: str, energies: Curve, gradients: Sequence[Curve], limits: Sequence[Limit]
) -> str:
    """Energies on the left axis, gradients with their thresholds on the logarithmic right axis.

    Parameters
    ----------
    label : str
        What the drawing shows.
    energies : Curve
        (step, kJ/mol).
    gradients : sequence of Curve
        (step, Eh/bohr), two at most.
    limits : sequence of Limit
        In Eh/bohr, by the name of the curve they apply to.
    """
    legend = 20.0 * (1 + len(gradients))
    top = 30.0 + legend
    bottom = 278.0 + legend
    right = RIGHT - 44.0
    last = max([x for x, _ in energies.points], default=0.0)
    finite = [(x, y) for x, y in energies.points if math.isfinite(y)] or [(0.0, 0.0)]
    heights = [y for _, y in finite]
    every = max(1, math.ceil((last + 1) / 12))
    steps = [(float(k), str(k)) for k in range(0, int(last) + 1, every)]
    parts, to_x, to_y, data = _axes(
        ("step", (-0.3, last + 0.3), steps),
        ("energy above the lowest / kJ/mol", ticks(min(heights), max(heights))),
        top,
        bottom,
        right,
    )
    logarithms = [
        Curve(one.name, [(x, math.log10(y)) for x, y in one.points if 0.0 < y < math.inf])
        for one in gradients
    ]
    powers = [y for one in logarithms for _, y in one.points]
    powers += [math.log10(limit.value) for limit in limits]
    low = math.floor(min(powers, default=-4.0))
    high = max(math.ceil(max(powers, default=-1.0)), low + 1)
    up = axis_scale(low, high, bottom, top)
    parts.append(line_element(right, top, right, bottom, "axis"))
    for power in range(low, high + 1):
        parts.append(line_element(right, up(power), right + 5, up(power), "axis"))
        sign = f"10^{power}".translate(str.maketrans("", "", "+"))
        parts.append(text_element(right + 9, up(power) + 4, sign, "small"))
    parts.append(text_element(WIDTH, top - 12, "gradient / Eh/bohr", "small end"))
    parts += _series(1, energies._replace(points=finite), to_x, to_y)
    names = [one.name for one in gradients]
    for place, one in enumerate(logarithms, start=2):
        parts += _series(place, one, to_x, up)
    for number, limit in enumerate(sorted(limits, key=lambda one: -one.value)):
        place = 2 + names.index(limit.name)
        y = up(math.log10(limit.value))
        title = f"{limit.name}: below {limit.value:.1e} Eh/bohr"
        parts.append(line_element(LEFT, y, right, y, f"limit t{place}", title=title))
        below = 13.0 if number else -4.0
        parts.append(text_element(LEFT + 4, y + below, f"limit {limit.value:.1e}", "small"))
    return drawing(WIDTH, 330.0 + legend, label, parts, **data)


def _axes(
    along: tuple[str, tuple[float, float], Iterable[tuple[float, str]]],
    up: tuple[str, Sequence[float]],
    top: float,
    bottom: float,
    right: float = RIGHT,
) -> tuple[list[str], Callable[[float], float], Callable[[float], float], dict[str, str]]:
    """Both axes, their scales, and the data `page.js` needs to draw the vertical one in another
    unit.

    Parameters
    ----------
    along : name of the horizontal axis, its ends, and the position and text of its labels
    up : name and ticks of the vertical one
    """
    (x_name, span, x_labels), (y_name, y_ticks) = along, up
    to_x = axis_scale(*span, LEFT, right)
    to_y = axis_scale(y_ticks[0], y_ticks[-1], bottom, top)
    lines = [line_element(LEFT, to_y(tick), right, to_y(tick), "grid") for tick in y_ticks]
    numbers = [text_element(LEFT - 7, to_y(tick) + 4, f"{tick:g}", "small end") for tick in y_ticks]
    parts = [
        text_element(14, top - 12, y_name, "small up"),
        element("g", *lines, *numbers, cls="ticks"),
    ]
    for x, name in x_labels:
        parts += [
            line_element(to_x(x), bottom, to_x(x), bottom + 5, "axis"),
            text_element(to_x(x), bottom + 18, name, "small middle"),
        ]
    parts += [
        line_element(LEFT, bottom, right, bottom, "axis"),
        text_element((LEFT + right) / 2, bottom + 38, x_name, "small middle"),
    ]
    ends = f"{y_ticks[0]:g} {y_ticks[-1]:g} {bottom:g} {top:g} {LEFT:g} {right:g}"
    return parts, to_x, to_y, {"data_axis": ends}


LEVELS = 10  # shades of the pair map
DECADES = 4.0  # spanned by its scale


def pair_map(
    label: str, values: Array, rows: Sequence[str], columns: Sequence[str], largest: float
) -> str:
    """A matrix as squares whose side scales with the logarithm of the magnitude, readable without
    colour.

    Parameters
    ----------
    values : (rows, columns), Eh; positive ones are drawn as outlines
    rows, columns : names of rows and columns, e.g. "3" or "6 to 10"
    largest : largest magnitude among all maps that share a scale, Eh
    """
    count = max(values.shape)
    left, top, room = 46.0, 26.0, 414.0
    cell = min(34.0, room / count)
    right = left + cell * len(columns)
    bottom = top + cell * len(rows)
    parts = [element("rect", x=left, y=top, width=right - left, height=bottom - top, cls="grid")]
    for (i, j), energy in np.ndenumerate(values):
        title = f"{rows[i]}, {columns[j]}: {energy:z.10f} Eh"
        parts.append(_square(left + cell * j, top + cell * i, cell, float(energy), largest, title))
    every = max(1, math.ceil(count * 15 / room))
    for i in range(0, len(rows), every):
        parts.append(
            text_element(left - 6, top + cell * (i + 0.5) + 4, rows[i].split()[0], "small end")
        )
    for j in range(0, len(columns), max(every, math.ceil(24 / cell))):
        parts.append(
            text_element(left + cell * (j + 0.5), top - 7, columns[j].split()[0], "small middle")
        )
    for decade in range(int(DECADES) + 1):
        x, value = left + 82 * decade, -largest * 10.0**-decade
        parts += [
            _square(x, bottom + 14, 20.0, value, largest, ""),
            text_element(x + 10, bottom + 50, f"{value:.1e}", "small middle"),
        ]
    parts.append(text_element(left + 82 * DECADES + 42, bottom + 50, "Eh", "small"))
    return drawing(max(right + 8, 440.0), bottom + 62, label, parts)


def _square(x: float, y: float, cell: float, value: float, largest: float, title: str) -> str:
    if value:
        share = min(1.0, max(0.0, 1.0 + math.log10(abs(value) / largest) / DECADES))
    else:
        share = 0.0
    side = max(1.0, (cell - 1.5) * (0.15 + 0.85 * share))
    x, y = x + (cell - side) / 2, y + (cell - side) / 2
    if value > 0 and share > 0:
        cls = "positive"
    else:
        cls = f"l{round(share * (LEVELS - 1))}"
    return element("rect", title=title, cls=cls, x=x, y=y, width=side, height=side)
