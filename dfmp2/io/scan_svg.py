"""The curve of a scan as an SVG file: no script, no font or image from elsewhere, light and dark."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from dfmp2.io.study import Study
from dfmp2.io.text import printable
from dfmp2.io.text_plot import scan_points

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 44, 58
STYLE = (
    "text{font:13px sans-serif;fill:#222}.title{font-size:15px}.axis{stroke:#444;fill:none}.grid{stroke:#ddd}"
    ".curve{stroke:#1a5fb4;fill:none;stroke-width:1.5}.point{fill:#1a5fb4}.mark{stroke:#c01c28;stroke-dasharray:5 4}"
    ".page{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#ddd}.axis{stroke:#aaa}.grid{stroke:#444}"
    ".curve{stroke:#78aeed}.point{fill:#78aeed}.mark{stroke:#f66151}.page{fill:#1e1e1e}}"
)


def scan_svg(study: Study) -> str:
    """Energy above the lowest point against the coordinate; a dashed line at the estimated minimum.

    Points that failed are missing. With no point at all the drawing says so.
    """
    points = sorted(scan_points(study))
    name, column = next(iter(study.table.items()))
    x_label = f"{name.replace('_', ' ')}{f' / {column.units}' if column.units else ''}"
    parts = [
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        _text(WIDTH / 2, 24, study.title, "middle", "title"),
    ]
    if points:
        minimum = study.values.get("minimum_quartic") or study.values.get("minimum_parabola")
        parts += _drawing(points, None if minimum is None else minimum.value)
    else:
        parts.append(_text(WIDTH / 2, HEIGHT / 2, "no point has an energy", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_label, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = _text(0, 0, "E(MP2 total) - lowest / kJ/mol", "middle")
    parts.append(f'<g transform="translate(18 {middle:.1f}) rotate(-90)">{turned}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img">'
        f"<title>{_escape(study.title)}</title><style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )


def _drawing(points: Sequence[tuple[float, float]], minimum: float | None) -> list[str]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_ticks, y_ticks = _ticks(min(xs), max(xs)), _ticks(0.0, max(ys))
    x_low, x_high = min(xs[0], x_ticks[0]), max(xs[-1], x_ticks[-1])
    y_high = max(max(ys), y_ticks[-1])

    def across(x: float) -> float:
        return LEFT + (x - x_low) / ((x_high - x_low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - y / (y_high or 1.0) * (HEIGHT - TOP - BOTTOM)

    floor = HEIGHT - BOTTOM
    parts = []
    for x in x_ticks:
        parts += [_line(across(x), TOP, across(x), floor, "grid"), _text(across(x), floor + 18, f"{x:.6g}", "middle")]
    for y in y_ticks:
        parts += [_line(LEFT, down(y), WIDTH - RIGHT, down(y), "grid"), _text(LEFT - 8, down(y) + 4, f"{y:.6g}", "end")]
    parts.append(f'<rect class="axis" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{floor - TOP}"/>')
    if minimum is not None:
        parts += [
            _line(across(minimum), TOP, across(minimum), floor, "mark"),
            _text(across(minimum) + 5, TOP + 16, f"minimum {minimum:.5g}", "start"),
        ]
    way = " ".join(f"{across(x):.2f},{down(y):.2f}" for x, y in points)
    parts.append(f'<polyline class="curve" points="{way}"/>')
    for x, y in points:
        said = _escape(f"{x:.8g}: {y:.6f} kJ/mol")
        parts.append(
            f'<circle class="point" cx="{across(x):.2f}" cy="{down(y):.2f}" r="4"><title>{said}</title></circle>'
        )
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers from `low` to `high`."""
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 8)
    return [step * n for n in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"/>'


def _text(x: float, y: float, content: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_escape(content)}</text>'


def _escape(text: str) -> str:
    return html.escape(printable(text))
