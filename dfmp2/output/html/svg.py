"""Drawings as SVG text: bars, curves, the map of pair energies, a molecule.

Every text is escaped here; coordinates get two decimals. Series differ in dash and marker, not only
in colour. The classes are those of `page.css`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfmp2.molecule.elements import bonds, radius
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.text import printable
from dfmp2.output.html.notation import written
from dfmp2.units import ANGSTROM_PER_BOHR, KJ_PER_MOL_PER_HARTREE

if TYPE_CHECKING:
    from dfmp2.output.study import Study

WIDTH = 500.0
LEFT, RIGHT = 64.0, WIDTH - 16.0  # of the area of a plot
MOST_SERIES = 3  # dash patterns and markers there are
LEVELS = 10  # shades of the pair map
DECADES = 4.0  # that its scale spans
Array = NDArray[np.float64]


class Bar(NamedTuple):
    """A bar: its name, the lengths of its parts (at most two), the text at its end."""

    name: str
    parts: tuple[float, ...]
    text: str


class Curve(NamedTuple):
    """A curve: its name and its points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


# --- elements -------------------------------------------------------------------------------------


def element(tag: str, *children: str, title: str = "", **attributes: str | float) -> str:
    """An element; `cls` is the attribute class, `title` is shown when it is pointed at, numbers are
    rounded."""
    names = {"cls": "class"}
    listed = "".join(
        f' {names.get(k, k.replace("_", "-"))}="{_value(v)}"'
        for k, v in attributes.items()
        if v != ""
    )
    inside = (f"<title>{_escape(written(title))}</title>" if title else "") + "".join(children)
    if inside:
        return f"<{tag}{listed}>{inside}</{tag}>"
    return f"<{tag}{listed}/>"


def drawing(
    width: float, height: float, label: str, parts: Iterable[str], **attributes: str
) -> str:
    """The whole drawing; `label` says in words what it shows."""
    box = f"0 0 {width:g} {height:g}"
    return element(
        "svg",
        *parts,
        viewBox=box,
        width=width,
        height=height,
        role="img",
        aria_label=label,
        title="",
        **attributes,
    )


def _escape(text: str) -> str:
    return html.escape(printable(text), quote=True)


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return _escape(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _shortened(name: str, most: int) -> str:
    if len(name) < most:
        return name
    return name[: most - 2] + "…"


def _text(x: float, y: float, content: str, cls: str = "") -> str:
    return element("text", _escape(written(content)), x=x, y=y, cls=cls)


def _line(x1: float, y1: float, x2: float, y2: float, cls: str, **attributes: Any) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, cls=cls, **attributes)


def _marker(series: int, x: float, y: float, title: str = "") -> str:
    """Circle, square or triangle."""
    r = 4.5
    if series == 1:
        return element("circle", title=title, cls="m1", cx=x, cy=y, r=r)
    square, triangle = f"M{x - r:.2f} {y - r:.2f}h9v9h-9z", f"M{x:.2f} {y - 5.4:.2f}l5.2 9h-10.4z"
    return element("path", title=title, cls=f"m{series}", d=square if series == 2 else triangle)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (end - start) * (value - low) / span


def _length(value: float) -> float:
    """A magnitude that can be drawn, whatever a damaged file says."""
    if 0.0 < abs(value) < 1e300:
        return abs(value)
    return 0.0


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from the first one below `low` to the
    first above `high`."""
    span = high - low or abs(high) or 1.0
    raw = span / max(1, most - 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(
        factor * unit for factor in (1.0, 2.0, 5.0, 10.0) if factor * unit >= raw * (1 - 1e-9)
    )
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, max(last, first + 1) + 1)]


# --- plots ----------------------------------------------------------------------------------------


def bars(label: str, items: Sequence[Bar], names: Sequence[str] = ()) -> str:
    """Horizontal bars from zero, the longest to the full width; `names` are those of the parts of a
    bar."""
    left, row, top = 106.0, 30.0, 30.0 if names else 8.0
    lengths = [[_length(part) for part in item.parts] for item in items]
    to_x = _scale(0.0, max(map(sum, lengths), default=0.0), left, WIDTH - 112.0)
    drawn, x = [], left
    for cls, name in zip(("bar", "bar2"), names, strict=False):
        drawn += [
            element("rect", x=x, y=8.0, width=14.0, height=12.0, cls=cls),
            _text(x + 20, 18, name),
        ]
        x += 40 + 7 * len(name)
    for place, (item, parts) in enumerate(zip(items, lengths, strict=True)):
        y, end = top + row * place, left
        drawn.append(_text(left - 8, y + 18, _shortened(item.name, 17), "end"))
        for cls, part in zip(("bar", "bar2"), parts, strict=False):
            wide = to_x(part) - left
            drawn.append(
                element(
                    "rect", x=end, y=y + 5, width=max(wide, 0.5), height=row - 12, rx=2.0, cls=cls
                )
            )
            end += wide
        drawn.append(_text(end + 7, y + 18, item.text))
    height = top + row * len(items)
    drawn.append(_line(left, top, left, height, "axis"))
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
    mark : (x, text) of a vertical stroke
    """
    items = [
        Curve(item.name, [p for p in item.points if all(map(math.isfinite, p))]) for item in items
    ]
    items = [item for item in items if item.points] or [
        Curve("no point has an energy", [(0.0, 0.0)])
    ]
    legend = 20.0 * len(items)
    top, bottom = 30.0 + legend, 278.0 + legend
    xs, ys = zip(*(point for item in items for point in item.points), strict=True)
    pad = 0.08 * (max(xs) - min(xs)) or 0.5
    if x_labels:
        x_ticks = []
    else:
        x_ticks = ticks(min(xs), max(xs), 7)
    if x_labels:
        span = (min(xs) - pad, max(xs) + pad)
    else:
        span = (x_ticks[0], x_ticks[-1])
    named = x_labels or [(tick, f"{tick:g}") for tick in x_ticks]
    parts, to_x, to_y, data = _axes(
        (x_name, span, named), (y_name, ticks(min(ys), max(ys))), top, bottom
    )
    if mark is not None and span[0] <= mark[0] <= span[1]:
        parts += [
            _line(to_x(mark[0]), top, to_x(mark[0]), bottom, "mark"),
            _text(to_x(mark[0]) + 5, top + 14, mark[1]),
        ]
    for place, item in enumerate(items[:MOST_SERIES], start=1):
        y = 16.0 + 20 * (place - 1)
        parts += [_line(LEFT, y, LEFT + 34, y, f"s{place}"), _marker(place, LEFT + 17, y)]
        parts.append(_text(LEFT + 42, y + 4, item.name))
        path = " ".join(f"{to_x(x):.2f},{to_y(y):.2f}" for x, y in item.points)
        parts.append(element("polyline", points=path, cls=f"s{place}"))
        parts += [
            _marker(place, to_x(x), to_y(y), f"{item.name}: {x:.8g}, {y:.6g}")
            for x, y in item.points
        ]
    return drawing(WIDTH, 330.0 + legend, label, parts, **data)


def sticks(label: str, lines: Sequence[tuple[float, float]], x_name: str, y_name: str) -> str:
    """A spectrum: a stroke of height y at every x, none of them negative."""
    top, bottom = 30.0, 238.0
    x_ticks = ticks(0.0, max((x for x, _ in lines), default=1.0), 7)
    y_ticks = ticks(0.0, max((_length(y) for _, y in lines), default=1.0))
    along = x_name, (x_ticks[0], x_ticks[-1]), [(tick, f"{tick:g}") for tick in x_ticks]
    parts, to_x, to_y, _ = _axes(along, (y_name, y_ticks), top, bottom)
    parts += [
        _line(to_x(x), bottom, to_x(x), to_y(y), "mark", title=f"{x:.1f}, {y:.4g}")
        for x, y in lines
    ]
    return drawing(WIDTH, bottom + 52, label, parts)


def _axes(
    along: tuple[str, tuple[float, float], Iterable[tuple[float, str]]],
    up: tuple[str, Sequence[float]],
    top: float,
    bottom: float,
) -> tuple[list[str], Callable[[float], float], Callable[[float], float], dict[str, str]]:
    """Both axes, the scales along them, and what `page.js` needs to draw the vertical one in
    another unit.

    Parameters
    ----------
    along : name of the horizontal axis, its ends, and what stands where below it
    up : name and ticks of the vertical one
    """
    (x_name, span, x_labels), (y_name, y_ticks) = along, up
    to_x, to_y = _scale(*span, LEFT, RIGHT), _scale(y_ticks[0], y_ticks[-1], bottom, top)
    lines = [_line(LEFT, to_y(tick), RIGHT, to_y(tick), "grid") for tick in y_ticks]
    numbers = [_text(LEFT - 7, to_y(tick) + 4, f"{tick:g}", "small end") for tick in y_ticks]
    parts = [_text(14, top - 12, y_name, "small up"), element("g", *lines, *numbers, cls="ticks")]
    for x, name in x_labels:
        parts.append(_line(to_x(x), bottom, to_x(x), bottom + 5, "axis"))
        parts.append(_text(to_x(x), bottom + 18, name, "small middle"))
    parts.append(_line(LEFT, bottom, RIGHT, bottom, "axis"))
    parts.append(_text((LEFT + RIGHT) / 2, bottom + 38, x_name, "small middle"))
    ends = f"{y_ticks[0]:g} {y_ticks[-1]:g} {bottom:g} {top:g} {LEFT:g} {RIGHT:g}"
    return parts, to_x, to_y, {"data_axis": ends}


def scan_drawing(study: Study) -> str:
    """The curves of a scan, each above its lowest point, and a stroke at the estimated minimum; of
    two coordinates a map.

    Points that failed are missing. With no point at all the drawing says so.
    """
    if "map_energy" in study.arrays:
        return energy_map(study)
    name, column = next(iter(study.table.items()))
    method = next((run.options.correlation.title for run in study.runs.values()), study.title)
    above = {method: study.table["relative_energy"].values}
    if "scf_total_energy" in study.table:
        energies = study.table["scf_total_energy"].values
        lowest = min(filter(math.isfinite, energies), default=0.0)
        xc = any(run.reference.xc for run in study.runs.values())
        above["Kohn-Sham" if xc else "HF"] = [
            (energy - lowest) * KJ_PER_MOL_PER_HARTREE for energy in energies
        ]
    found = study.values.get("minimum_quartic") or study.values.get("minimum_parabola")
    if found is None:
        mark = None
    else:
        mark = (found.value, f"minimum {found.value:.5g}")
    x_name = name.replace("_", " ") + (f" / {column.units}" if column.units else "")
    drawn = [
        Curve(kind, sorted(zip(column.values, values, strict=True)))
        for kind, values in above.items()
    ]
    return curves(
        study.title, drawn, x_name, "energy above the lowest of its curve / kJ/mol", mark=mark
    )


def scan_curve(study: Study) -> str:
    """The drawing of a scan as an SVG file."""
    return of_its_own(scan_drawing(study))


def path_drawing(study: Study) -> str:
    """The energies along a reaction path, with a stroke at the transition state."""
    places = study.table["s"]
    energies = study.table["relative_energy"].values
    drawn = [Curve("energy", list(zip(places.values, energies, strict=True)))]
    above = "energy above the lowest / kJ/mol"
    mark = (0.0, "transition state")
    return curves(study.title, drawn, f"path / {places.units}", above, mark=mark)


def of_its_own(svg: str) -> str:
    """A drawing as the text of a file, with the styles of the page."""
    start, rest = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).split(">", 1)
    style = element("style", Path(__file__).with_name("page.css").read_text(encoding="utf-8"))
    return f'{start}>{style}<rect class="under" width="100%" height="100%"/>{rest}\n'


# --- pair energies --------------------------------------------------------------------------------


def pair_map(label: str, values: Array, rows: Sequence[str], columns: Sequence[str]) -> str:
    """A matrix as squares whose side falls with the logarithm of the magnitude, so that it reads
    without colour.

    Parameters
    ----------
    values : (rows, columns), Eh; positive ones are outlined
    rows, columns : names of rows and columns, e.g. "3" or "6 to 10"
    """
    largest = float(np.abs(values).max())
    count = max(values.shape)
    left, top, room = 46.0, 26.0, 414.0
    cell = min(34.0, room / count)
    right, bottom = left + cell * len(columns), top + cell * len(rows)
    parts = [element("rect", x=left, y=top, width=right - left, height=bottom - top, cls="grid")]
    for (i, j), energy in np.ndenumerate(values):
        title = f"{rows[i]}, {columns[j]}: {energy:z.10f} Eh"
        parts.append(_square(left + cell * j, top + cell * i, cell, float(energy), largest, title))
    every = max(1, math.ceil(count * 15 / room))
    for i in range(0, len(rows), every):
        parts.append(_text(left - 6, top + cell * (i + 0.5) + 4, rows[i].split()[0], "small end"))
    for j in range(0, len(columns), max(every, math.ceil(24 / cell))):
        parts.append(_text(left + cell * (j + 0.5), top - 7, columns[j].split()[0], "small middle"))
    for decade in range(int(DECADES) + 1):
        x, value = left + 82 * decade, -largest * 10.0**-decade
        parts += [
            _square(x, bottom + 14, 20.0, value, largest, ""),
            _text(x + 10, bottom + 50, f"{value:.1e}", "small middle"),
        ]
    parts.append(_text(left + 82 * DECADES + 42, bottom + 50, "Eh", "small"))
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


def energy_map(study: Study) -> str:
    """The energies of a map as boxes, above the lowest one; larger and darker is lower.

    The first coordinate goes up, the second to the right. Sizes and shades fall with the logarithm
    of 1 + E / (kJ/mol), so that a well is seen beside a wall. The lowest box has a frame, and a
    point that failed has none.
    """
    energies = study.arrays["map_energy"].value
    above = (energies - np.nanmin(energies)) * KJ_PER_MOL_PER_HARTREE
    steepest = math.log1p(float(np.nanmax(above)))
    rows, columns = above.shape
    left, top, room = 64.0, 34.0, 416.0
    width = min(52.0, room / columns)
    height = min(40.0, room / rows)
    right, bottom = left + width * columns, top + height * rows
    parts = [element("rect", x=left, y=top, width=right - left, height=bottom - top, cls="grid")]
    names = [name.replace("_", " ") for name in study.settings["coordinates"]]
    first, second = study.arrays["map_first"], study.arrays["map_second"]
    frame = ""
    for (i, j), energy in np.ndenumerate(above):
        if math.isnan(energy):
            continue
        share = 1.0
        if steepest > 0:
            share = 1.0 - math.log1p(float(energy)) / steepest
        middle = left + width * (j + 0.5), bottom - height * (i + 0.5)
        place = f"{names[0]} = {first.value[i]:g}, {names[1]} = {second.value[j]:g}"
        title = f"{place}: {energy:.2f} kJ/mol"
        parts.append(_box(*middle, (width, height), share, title))
        if energy == 0:
            x, y = middle[0] - width / 2, middle[1] - height / 2
            frame = element("rect", cls="positive", x=x, y=y, width=width, height=height)
    parts.append(frame)
    for i in range(0, rows, max(1, math.ceil(15 / height))):
        y = bottom - height * (i + 0.5) + 4
        parts.append(_text(left - 6, y, f"{first.value[i]:g}", "small end"))
    for j in range(0, columns, max(1, math.ceil(34 / width))):
        x = left + width * (j + 0.5)
        parts.append(_text(x, bottom + 16, f"{second.value[j]:g}", "small middle"))
    parts.append(_text(14, top - 14, f"{names[0]} / {first.units}", "small up"))
    x_name = f"{names[1]} / {second.units}"
    parts.append(_text((left + right) / 2, bottom + 36, x_name, "small middle"))
    for level in range(LEVELS):
        share = level / (LEVELS - 1)
        x = left + 40.0 * level + 20.0
        value = math.expm1((1.0 - share) * steepest)
        parts.append(_box(x, bottom + 56, (39.0, 16.0), share, ""))
        parts.append(_text(x, bottom + 77, f"{value:.3g}", "small middle"))
    parts.append(_text(left + 40.0 * LEVELS + 6, bottom + 60, "kJ/mol", "small"))
    wide = max(right + 8, left + 40.0 * LEVELS + 60)
    return drawing(wide, bottom + 86, f"Map of energies: {study.title}", parts)


def _box(x: float, y: float, cell: tuple[float, float], share: float, title: str) -> str:
    """A box around (x, y), which fills its cell and is darkest where the share is 1."""
    width, height = ((side - 1.5) * (0.25 + 0.75 * share) for side in cell)
    shade = f"l{round(share * (LEVELS - 1))}"
    place = {"x": x - width / 2, "y": y - height / 2, "width": width, "height": height}
    return element("rect", title=title, cls=shade, **place)


# --- molecule -------------------------------------------------------------------------------------

MOST_DRAWN = 300  # atoms; beyond, a drawing of this size is a blot
SMALLEST_LABELLED = 6.0  # radius of a ball that a letter fits into
TILT = np.radians((12.0, -10.0))  # about x and y, so that atoms behind each other are all seen
FLAT = 0.5  # angstrom; a molecule that is not thicker is seen face on
# Pale fills, so that one dark ink is readable on all of them; the label says which element it is.
FILLS = {
    "H": "#f2f4f5",
    "C": "#b4bcc2",
    "N": "#a9c0f2",
    "O": "#f3a9a0",
    "F": "#b8e6a8",
    "P": "#f5c48d",
    "S": "#f1df7d",
    "Cl": "#a4dda0",
    "Br": "#d6a48f",
    "I": "#cfaee6",
    "B": "#f3c9bd",
    "Si": "#e3d1b2",
}
OTHER_FILL = "#cdd8c9"


def draw_molecule(molecule: Molecule) -> str:
    """Sticks and labelled balls, seen about along the shortest principal axis; `molecule.js` turns
    them.

    For it each ball has its number and its place, each stick its two balls, and the drawing its
    scale.
    """
    width, height, margin = 520.0, 340.0, 30.0
    shown = min(molecule.natom, MOST_DRAWN)
    positions = orient(molecule.coordinates[:shown] * ANGSTROM_PER_BOHR)
    low, high = positions.min(axis=0), positions.max(axis=0)
    span = np.maximum(high - low, 1e-9)
    scale = float(
        min((width - 2 * margin) / span[0], (height - 2 * margin) / span[1], 95.0)
    )  # units per angstrom
    below = max(span[1] * scale + 2 * margin, 0.5 * height)  # room to turn a flat one
    places = (positions - (low + high) / 2) * scale * (1.0, -1.0, 1.0)
    points = places[:, :2] + (width / 2, below / 2)
    order = np.argsort(
        positions[:, 2], kind="stable"
    ).tolist()  # the farthest first, so that nearer balls cover it
    sticks: dict[int, list[str]] = {k: [] for k in order}
    for i, j in bonds(molecule.symbols[:shown], positions, molecule.ghost[:shown]):
        (x1, y1), (x2, y2), thick = (
            points[i].tolist(),
            points[j].tolist(),
            max(2.0, min(5.0, scale / 5)),
        )
        stick = _line(x1, y1, x2, y2, "bond", stroke_width=thick, data_ends=f"{i} {j}")
        sticks[min(i, j, key=order.index)].append(stick)
    parts = [
        part
        for k in order
        for part in (*sticks[k], _ball(molecule, k, points[k], places[k], scale))
    ]
    label = f"Drawing of {molecule.formula}, {shown} of {molecule.natom} centres"
    return drawing(width, below, label, parts, cls="molecule", data_scale=f"{scale:.6g}")


def orient(positions: Array) -> Array:
    """Positions about their centre, longest principal axis along x, shortest towards the reader,
    then tilted a little.

    Parameters
    ----------
    positions : (natom, 3) float64, angstrom

    Returns
    -------
    (natom, 3) float64, angstrom; a right-handed rotation of the input
    """
    centred = positions - positions.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=True)
    for k in range(2):  # the sign of an axis is arbitrary: its largest component is positive
        axes[k] *= math.copysign(1.0, axes[k, np.argmax(np.abs(axes[k]))])
    axes[2] = np.cross(axes[0], axes[1])
    view = centred @ axes.T
    if np.ptp(view[:, 2]) > FLAT:
        tilt = TILT
    else:
        tilt = 0.0 * TILT
    (ca, cb), (sa, sb) = np.cos(tilt), np.sin(tilt)
    about_x = np.array([[1.0, 0.0, 0.0], [0.0, ca, -sa], [0.0, sa, ca]])
    about_y = np.array([[cb, 0.0, sb], [0.0, 1.0, 0.0], [-sb, 0.0, cb]])
    return np.asarray(view @ (about_x @ about_y).T)


def _ball(molecule: Molecule, k: int, point: Array, place: Array, scale: float) -> str:
    symbol, ghost = molecule.symbols[k], molecule.ghost[k]
    size = min(23.0, max(4.0, scale * (0.22 + 0.26 * radius(symbol))))
    if ghost:
        kind = {"cls": "atom ghost"}
    else:
        kind = {"cls": "atom", "fill": FILLS.get(symbol, OTHER_FILL)}
    parts = [element("circle", r=size, **kind)]
    if size >= SMALLEST_LABELLED:
        if size >= 13:
            small, drop = ("", 5.0)
        else:
            small, drop = (" mid", 4.0)
        parts.append(
            _text(0, drop, molecule.labels[k], f"symbol{small}{' ghostly' if ghost else ''}")
        )
    where = {
        "transform": f"translate({point[0]:.2f} {point[1]:.2f})",
        "data_at": " ".join(f"{x:.4f}" for x in place),
    }
    return element(
        "g", *parts, title=f"{k + 1} {'ghost ' if ghost else ''}{symbol}", data_atom=str(k), **where
    )
