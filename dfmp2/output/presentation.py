"""Presentation of results, studies and plans: functions that their methods call through
`dfmp2.host.deferred.presentation`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dfmp2.errors import InputError
from dfmp2.output.json import frame, result_dict, result_frame, study_frame
from dfmp2.output.plan import plan_dict, plan_text
from dfmp2.output.study import Study
from dfmp2.output.text import report, result_html, study_html, study_report

__all__ = [
    "frame",
    "plan_dict",
    "plan_text",
    "report",
    "result_dict",
    "result_frame",
    "result_html",
    "study_frame",
    "study_html",
    "study_plot",
    "study_report",
]


# --- drawings by matplotlib -----------------------------------------------------------------------

LEVELS = 20  # contour levels of a map
DRAWN = ("scan", "frequencies", "optimization")
GRADIENTS = (
    ("max_gradient", "largest of an atom"),
    ("rms_gradient", "root mean square"),
)


def study_plot(study: Study, axes: Any) -> Any:
    """The Axes with a scan, an infrared spectrum, or the course of an optimisation.

    Parameters
    ----------
    study : Study
        A study of one of the kinds in DRAWN.
    axes : matplotlib Axes, optional
        The Axes to draw on; None for a new figure.

    Raises
    ------
    ImportError : matplotlib is not installed
    InputError : the study is of another kind, or has nothing to draw yet
    """
    if study.kind not in DRAWN:
        raise InputError(
            f"a study of kind {study.kind} has no curve: plot() draws scans, frequencies and "
            "optimisations; to_dataframe() has the numbers of every study"
        )
    if not study.table:
        raise _nothing_to_draw(study)
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            f"plot() needs matplotlib ({error}): pip install 'dfmp2[plot]'"
        ) from error
    if axes is None:
        axes = pyplot.figure(layout="constrained").subplots()
    draw = {"scan": _scan, "frequencies": _spectrum, "optimization": _course}[study.kind]
    draw(study, axes)
    axes.set_title(study.title, fontsize="small", wrap=True)
    return axes


def _nothing_to_draw(study: Study) -> InputError:
    return InputError(f"{study.title}: nothing that could be drawn has been computed yet")


def _scan(study: Study, axes: Any) -> None:
    """Energy above the lowest point, along one coordinate or as a map of two: levels between the
    finished points or, while they are on one line, the points."""
    names = study.coordinates
    energies = study.table["relative_energy"]
    finished = [k for k, energy in enumerate(energies.values) if math.isfinite(energy)]
    if not finished:
        raise _nothing_to_draw(study)
    places = [study.table[name] for name in names]
    labels = [
        _labelled(name.replace("_", " "), place.units)
        for name, place in zip(names, places, strict=True)
    ]
    axes.set_xlabel(labels[0])
    if len(places) == 1:
        axes.plot(places[0].values, energies.values, "o-")
        axes.set_ylabel(_labelled("E - lowest", energies.units))
        return
    x, y, z = ([column.values[k] for k in finished] for column in (*places, energies))
    if np.linalg.matrix_rank(np.stack([x, y, np.ones_like(x)])) < 3:
        filled = axes.scatter(x, y, c=z)  # on one line, which has no area between them
    else:
        filled = axes.tricontourf(x, y, z, levels=LEVELS)
    axes.set_ylabel(labels[1])
    axes.figure.colorbar(filled, ax=axes, label=_labelled("E - lowest", energies.units))


def _spectrum(study: Study, axes: Any) -> None:
    """Infrared intensities against wavenumbers, without imaginary modes."""
    wavenumbers, intensities = study.table["wavenumber"], study.table["ir_intensity"]
    lines = [
        (wavenumber, intensity)
        for wavenumber, intensity in zip(wavenumbers.values, intensities.values, strict=True)
        if wavenumber > 0
    ]
    axes.vlines([line[0] for line in lines], 0.0, [line[1] for line in lines])
    axes.set_ylim(bottom=0.0)
    axes.invert_xaxis()
    axes.set_xlabel(_labelled("wavenumber", wavenumbers.units))
    axes.set_ylabel(_labelled("IR intensity", intensities.units))


def _course(study: Study, axes: Any) -> None:
    """Gradients at each step, on a logarithmic scale."""
    for name, words in GRADIENTS:
        axes.semilogy(study.table["step"].values, study.table[name].values, "o-", label=words)
    axes.set_xlabel("step")
    axes.set_ylabel(_labelled("gradient", study.table[GRADIENTS[0][0]].units))
    axes.legend()


def _labelled(what: str, units: str) -> str:
    if units:
        return f"{what} / {units.replace('hartree', 'Eh')}"
    return what
