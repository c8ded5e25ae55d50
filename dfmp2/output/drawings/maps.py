"""Maps: pair energies, and the energies of a scan over two coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dfmp2.arrays import Array
from dfmp2.output.drawings.elements import drawing, element, text_element
from dfmp2.output.study import Study
from dfmp2.units import KJ_PER_MOL_PER_HARTREE

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


def energy_map(study: Study) -> str:
    """The energies of a map, relative to the lowest, as boxes; larger and darker is lower.

    The first coordinate runs upwards, the second to the right. Sizes and shades fall with the
    logarithm of 1 + E / (kJ/mol), so that wells stay visible beside walls. The lowest box is
    framed; a failed point has no box.
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
        parts.append(_box(*middle, (width, height), share, f"{place}: {energy:.2f} kJ/mol"))
        if energy == 0:
            x, y = middle[0] - width / 2, middle[1] - height / 2
            frame = element("rect", cls="positive", x=x, y=y, width=width, height=height)
    parts.append(frame)
    for i in range(0, rows, max(1, math.ceil(15 / height))):
        y = bottom - height * (i + 0.5) + 4
        parts.append(text_element(left - 6, y, f"{first.value[i]:g}", "small end"))
    for j in range(0, columns, max(1, math.ceil(34 / width))):
        x = left + width * (j + 0.5)
        parts.append(text_element(x, bottom + 16, f"{second.value[j]:g}", "small middle"))
    parts.append(text_element(14, top - 14, f"{names[0]} / {first.units}", "small up"))
    x_name = f"{names[1]} / {second.units}"
    parts.append(text_element((left + right) / 2, bottom + 36, x_name, "small middle"))
    for level in range(LEVELS):
        share = level / (LEVELS - 1)
        x = left + 40.0 * level + 20.0
        value = math.expm1((1.0 - share) * steepest)
        parts += [
            _box(x, bottom + 56, (39.0, 16.0), share, ""),
            text_element(x, bottom + 77, f"{value:.3g}", "small middle"),
        ]
    parts.append(text_element(left + 40.0 * LEVELS + 6, bottom + 60, "kJ/mol", "small"))
    wide = max(right + 8, left + 40.0 * LEVELS + 60)
    return drawing(wide, bottom + 86, f"Map of energies: {study.title}", parts)


def _box(x: float, y: float, cell: tuple[float, float], share: float, title: str) -> str:
    """A box around (x, y), which fills its cell and is darkest when the share is 1."""
    width, height = ((side - 1.5) * (0.25 + 0.75 * share) for side in cell)
    shade = f"l{round(share * (LEVELS - 1))}"
    place = {"x": x - width / 2, "y": y - height / 2, "width": width, "height": height}
    return element("rect", title=title, cls=shade, **place)
