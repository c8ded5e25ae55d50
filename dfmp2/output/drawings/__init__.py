"""Drawings as SVG text, and the elements they are made of.

All text is escaped here and coordinates get two decimals. Series differ in dash and marker, not
only in colour. Classes are defined in `page.css`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dfmp2.molecule.text import printable
from dfmp2.output.html.notation import written

WIDTH = 500.0
LEFT, RIGHT = 64.0, WIDTH - 16.0  # edges of the plot area
MOST_SERIES = 3  # number of dash patterns and markers


def element(tag: str, *children: str, title: str = "", **attributes: str | float) -> str:
    """An element; `cls` is the class attribute, `title` is the tooltip, numbers are rounded."""
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
    """The whole drawing; `label` describes it in words."""
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
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


def shortened_name(name: str, most: int) -> str:
    if len(name) < most:
        return name
    return name[: most - 2] + "…"


def text_element(x: float, y: float, content: str, cls: str = "") -> str:
    return element("text", _escape(written(content)), x=x, y=y, cls=cls)


def line_element(x1: float, y1: float, x2: float, y2: float, cls: str, **attributes: Any) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, cls=cls, **attributes)


def marker_element(series: int, x: float, y: float, title: str = "") -> str:
    """Circle, square or triangle."""
    r = 4.5
    if series == 1:
        return element("circle", title=title, cls="m1", cx=x, cy=y, r=r)
    square = f"M{x - r:.2f} {y - r:.2f}h9v9h-9z"
    triangle = f"M{x:.2f} {y - 5.4:.2f}l5.2 9h-10.4z"
    return element("path", title=title, cls=f"m{series}", d=square if series == 2 else triangle)


def axis_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (end - start) * (value - low) / span


def axis_length(value: float) -> float:
    """A magnitude that can be drawn, even from a damaged file."""
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
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, max(last, first + 1) + 1)]


def of_its_own(svg: str) -> str:
    """A drawing as a stand-alone SVG file, with the styles of the page."""
    start, rest = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).split(">", 1)
    style = element(
        "style", (Path(__file__).parents[1] / "html" / "page.css").read_text(encoding="utf-8")
    )
    return f'{start}>{style}<rect class="under" width="100%" height="100%"/>{rest}\n'
