"""Drawings of a scan and of a reaction path."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.polynomial import Polynomial

from dfmp2.output.drawings.elements import of_its_own
from dfmp2.output.drawings.maps import energy_map
from dfmp2.output.drawings.plots import Curve, curves
from dfmp2.output.study import Study
from dfmp2.units import KJ_PER_MOL_PER_HARTREE

FITS = {3: "fitted parabola", 5: "fitted quartic"}


def scan_drawing(study: Study) -> str:
    """The curves of a scan, relative to their lowest points, and a line at the estimated minimum; a
    map for two coordinates.

    Failed points are left out; a drawing without any point says so.
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


def scan_curve(study: Study) -> str:
    """The drawing of a scan as an SVG file."""
    return of_its_own(scan_drawing(study))


def path_drawing(study: Study) -> str:
    """The energies along a reaction path, with a line at the transition state."""
    places = study.table["s"]
    energies = study.table["relative_energy"].values
    drawn = [Curve("energy", list(zip(places.values, energies, strict=True)))]
    above = "energy above the lowest / kJ/mol"
    mark = (0.0, "transition state")
    return curves(study.title, drawn, f"path / {places.units}", above, mark=mark)
