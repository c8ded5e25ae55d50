"""Drawings of a scan and of a reaction path."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.polynomial import Polynomial

from dfmp2.arrays import Array
from dfmp2.output.drawings import drawing, element, of_its_own, text_element
from dfmp2.output.drawings.plots import LEVELS, Curve, curves
from dfmp2.output.study import Study
from dfmp2.units import KJ_PER_MOL_PER_HARTREE

FITS = {3: "fitted parabola", 5: "fitted quartic"}


def scan_drawing(study: Study) -> str:
    """The curves of a scan, relative to their lowest points, and a line at the estimated minimum; a
    map for two coordinates.

    Failed points are left out; a drawing without any point says so.
    """
    any_energy = any(map(math.isfinite, study.table["relative_energy"].values))
    if len(study.settings.get("coordinates", ())) == 2 and any_energy:
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
    drawn += _fitted(study, drawn[0].points)
    return curves(
        study.title, drawn, x_name, "energy above the lowest of its curve / kJ/mol", mark=mark
    )


def _fitted(study: Study, points: Sequence[tuple[float, float]]) -> list[Curve]:
    """The polynomials around the stored minima and maxima of a scan, each over the points it was
    fitted to.

    Parameters
    ----------
    points : sequence of (float, float)
        In order of increasing coordinate; energies in kJ/mol, NaN for failed points.
    """
    if "extrema_position" not in study.arrays:
        return []
    places = np.array([x for x, _ in points])
    heights = np.array([y for _, y in points])
    first, last = float(places[0]), float(places[-1])
    if study.settings["units"] == "degree" and abs(last - first - 360.0) < 1e-6:
        places = np.concatenate([places[:-1] - 360.0, places, places[1:] + 360.0])
        heights = np.concatenate([heights[:-1], heights, heights[1:]])
    found = []
    stored = (study.arrays[f"extrema_{name}"].value for name in ("position", "curvature", "points"))
    for position, bend, count in zip(*stored, strict=True):
        sign = math.copysign(1.0, bend)
        inner = range(1, len(places) - 1)
        middles = [
            k for k in inner if sign * heights[k - 1] >= sign * heights[k] <= sign * heights[k + 1]
        ]
        half = int(count) // 2
        middle = min(middles, key=lambda k: abs(places[k] - position), default=None)
        if middle is None or middle < half or middle + half >= len(places):
            continue
        window = slice(middle - half, middle + half + 1)
        polynomial = Polynomial.fit(places[window], heights[window], int(count) - 1)
        along = np.linspace(places[window][0], places[window][-1], 41)
        curve = [(float(x), float(polynomial(x))) for x in along if first <= x <= last]
        found.append(Curve(FITS[int(count)], curve, fitted=True))
    return found


def curve_file(study: Study) -> str:
    """The drawing of a scan or a reaction path as an SVG file."""
    if study.kind == "irc":
        return of_its_own(path_drawing(study))
    return of_its_own(scan_drawing(study))


def path_drawing(study: Study) -> str:
    """The energies along a reaction path, with a line at the transition state."""
    places = study.table["s"]
    energies = study.table["relative_energy"].values
    drawn = [Curve("energy", list(zip(places.values, energies, strict=True)))]
    above = "energy above the lowest / kJ/mol"
    mark = (0.0, "transition state")
    return curves(study.title, drawn, f"path / {places.units}", above, mark=mark)


def energy_map(study: Study) -> str:
    """The energies of a map, relative to the lowest, as boxes; larger and darker is lower.

    The first coordinate runs upwards, the second to the right. Sizes and shades fall with the
    logarithm of 1 + E / (kJ/mol), so that wells stay visible beside walls. The lowest box is
    framed; a point that failed, or has not been computed yet, has no box.
    """
    first, second = study.settings["grid"]
    above = _energies_on_a_grid(study)
    steepest = math.log1p(float(np.nanmax(above)))
    rows, columns = above.shape
    left, top, room = 64.0, 34.0, 416.0
    width = min(52.0, room / columns)
    height = min(40.0, room / rows)
    right, bottom = left + width * columns, top + height * rows
    parts = [element("rect", x=left, y=top, width=right - left, height=bottom - top, cls="grid")]
    names = [name.replace("_", " ") for name in study.coordinates]
    units = [study.table[name].units for name in study.coordinates]
    frame = ""
    for (i, j), energy in np.ndenumerate(above):
        if math.isnan(energy):
            continue
        share = 1.0
        if steepest > 0:
            share = 1.0 - math.log1p(float(energy)) / steepest
        middle = left + width * (j + 0.5), bottom - height * (i + 0.5)
        place = f"{names[0]} = {first[i]:g}, {names[1]} = {second[j]:g}"
        parts.append(_box(*middle, (width, height), share, f"{place}: {energy:.2f} kJ/mol"))
        if energy == 0:
            x, y = middle[0] - width / 2, middle[1] - height / 2
            frame = element("rect", cls="positive", x=x, y=y, width=width, height=height)
    parts.append(frame)
    for i in range(0, rows, max(1, math.ceil(15 / height))):
        y = bottom - height * (i + 0.5) + 4
        parts.append(text_element(left - 6, y, f"{first[i]:g}", "small end"))
    for j in range(0, columns, max(1, math.ceil(34 / width))):
        x = left + width * (j + 0.5)
        parts.append(text_element(x, bottom + 16, f"{second[j]:g}", "small middle"))
    parts.append(text_element(14, top - 14, f"{names[0]} / {units[0]}", "small up"))
    x_name = f"{names[1]} / {units[1]}"
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


def _energies_on_a_grid(study: Study) -> Array:
    """(first, second) energies of a map above its lowest point, kJ/mol; NaN for points without."""
    first, second = study.settings["grid"]
    above = np.full((len(first), len(second)), math.nan)
    points = zip(*(study.table[name].values for name in study.coordinates), strict=True)
    for (x, y), energy in zip(points, study.table["relative_energy"].values, strict=True):
        above[first.index(x), second.index(y)] = energy
    return above


def _box(x: float, y: float, cell: tuple[float, float], share: float, title: str) -> str:
    """A box around (x, y), which fills its cell and is darkest when the share is 1."""
    width, height = ((side - 1.5) * (0.25 + 0.75 * share) for side in cell)
    shade = f"l{round(share * (LEVELS - 1))}"
    place = {"x": x - width / 2, "y": y - height / 2, "width": width, "height": height}
    return element("rect", title=title, cls=shade, **place)
