"""Studies drawn with matplotlib, where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dfmp2.errors import InputError

if TYPE_CHECKING:
    from dfmp2.output.study import Study

DRAWN = ("scan", "frequencies", "optimization")
GRADIENTS = (
    ("max_gradient", "largest of an atom"),
    ("rms_gradient", "root mean square"),
)


def study_plot(study: Study, axes: Any = None) -> Any:
    """The Axes with a scan, an infrared spectrum, or the course of an optimisation.

    Parameters
    ----------
    study : Study
        Of one of the kinds in DRAWN.
    axes : matplotlib Axes, optional
        Where it is drawn; None for a new figure.

    Raises
    ------
    ImportError : matplotlib is not installed
    InputError : a study of another kind, or one that has nothing to draw yet
    """
    if study.kind not in DRAWN:
        raise InputError(
            f"a study of kind {study.kind} has no curve: plot() draws scans, frequencies and "
            "optimisations; to_dataframe() has the numbers of every study"
        )
    if not study.table:
        raise InputError(f"{study.title}: nothing is computed yet that could be drawn")
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


def _scan(study: Study, axes: Any) -> None:
    """Energy above the lowest point, with its minima and maxima."""
    name, units = study.settings["coordinate"], study.settings["units"]
    energies = study.table["relative_energy"]
    axes.plot(study.table[name].values, energies.values, "o-")
    axes.set_xlabel(_labelled(name.replace("_", " "), units))
    axes.set_ylabel(_labelled("E - lowest", energies.units))


def _spectrum(study: Study, axes: Any) -> None:
    """Infrared intensities at the wavenumbers; imaginary modes are left out."""
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
