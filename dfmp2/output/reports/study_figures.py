"""The drawings of a study."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dfmp2.output.document import (
    Block,
    Figure,
    Table,
)
from dfmp2.output.drawings.plots import BROADENING, Curve, Limit, convergence, curves, spectrum
from dfmp2.output.drawings.studies import path_drawing, scan_drawing
from dfmp2.output.reports.study_tables import HEADINGS, cell, kind_cells, kind_heads
from dfmp2.output.study import Study
from dfmp2.units import (
    KJ_PER_MOL_PER_HARTREE,
)


def vibration_blocks(study: Study) -> list[Block]:
    """The infrared spectrum and the table of vibrations of a thermochemistry study; empty for an
    atom."""
    columns = [
        ("wavenumber", "cm^-1"),
        ("scaled_wavenumber", "cm^-1"),
        ("ir_intensity", "km/mol"),
        ("reduced_mass", "u"),
        ("force_constant", "mdyn/A"),
    ]
    columns = [(name, unit) for name, unit in columns if name in study.arrays]
    if study.settings["scale_factor"] == 1.0:
        columns.remove(("scaled_wavenumber", "cm^-1"))
    heads, cells = ["#mode"], []
    for name, unit in columns:
        array = study.arrays[name]
        heads.append(f"#{HEADINGS.get(name, name.replace('_', ' '))} / {unit}")
        cells.append([cell(float(value), array.units, name) for value in array.value])
    numbers = range(1, len(cells[0]) + 1)
    if not cells[0]:
        return []
    heads += kind_heads(study.arrays["wavenumber"].value)
    cells += kind_cells(study.arrays["wavenumber"].value)
    table = Table("Vibrations", heads, list(zip(numbers, *cells, strict=True)), sortable=True)
    if "ir_intensity" not in study.arrays:
        return [table]
    spectra = (study.arrays[name].value.tolist() for name in ("wavenumber", "ir_intensity"))
    return [_infrared(*spectra), table]


def study_figures(study: Study) -> list[Figure]:
    """The figures of a study: curve of a scan, energies of both basis sets, convergence of an
    optimisation, infrared spectrum."""
    table = {name: column.values for name, column in study.table.items()}
    if study.kind == "scan":
        said = "Energies along the scan; straight lines join computed points."
        if "extrema_position" in study.arrays:
            said += " Curves are the polynomials that minima and maxima are taken from."
        if len(study.settings.get("grid", ())) == 2:
            said = "Energies over the map, above the lowest point; cells are computed points."
        return [Figure(partial(scan_drawing, study), said, alone=True)]
    if study.kind == "cbs":
        correlation = table.get("correlation_energy", table.get("mp2_correlation_energy", ()))
        return [
            series_figure(
                table["basis"],
                correlation,
                next(
                    table[name]
                    for name in ("hf_total_energy", "functional_energy", "scf_total_energy")
                    if name in table
                ),
            )
        ]
    if study.kind == "optimization":
        return [_course(study)]
    if study.kind == "irc":
        said = "Energies along the path, transition state at 0; lines join computed points."
        return [Figure(partial(path_drawing, study), said, alone=True)]
    if study.kind == "frequencies":
        return [_infrared(table["wavenumber"], table["ir_intensity"])]
    return []


def _infrared(wavenumbers: Sequence[float], intensities: Sequence[float]) -> Figure:
    """The infrared spectrum, without imaginary modes."""
    found = zip(wavenumbers, intensities, strict=True)
    lines = [(wavenumber, intensity) for wavenumber, intensity in found if wavenumber > 0]
    draw = partial(spectrum, "Infrared spectrum", lines, "wavenumber / cm^-1", "intensity / km/mol")
    said = (
        f"Harmonic infrared spectrum: strokes are the lines, the curve is their sum as Lorentzians "
        f"of {BROADENING:g} cm^-1 (full width at half maximum), each as high as its line. Imaginary "
        "modes are left out."
    )
    return Figure(draw, said, alone=True)


def _course(study: Study) -> Figure:
    """Energy and gradients at each step of an optimisation, with the thresholds of the
    gradients."""
    table = {name: column.values for name, column in study.table.items()}
    energies = table["total_energy"]
    lowest = min(energies)
    above = [(k, (e - lowest) * KJ_PER_MOL_PER_HARTREE) for k, e in enumerate(energies)]
    names = {"max_gradient": "largest gradient of an atom", "rms_gradient": "rms of the gradients"}
    drawn = [Curve(said, list(enumerate(table[name]))) for name, said in names.items()]
    stored = study.settings.get("limits", {})
    limits = [Limit(said, stored[name]) for name, said in names.items() if name in stored]
    said = "Energy (left axis) and gradients (right axis, logarithmic) at each step"
    if limits:
        said += f"; dashed lines are the limits of {study.settings['convergence']}."
    else:
        said += "; this file does not hold the limits that they have to fall below."
    label = "Convergence of the geometry"
    draw = partial(convergence, label, Curve("energy", above), drawn, limits)
    return Figure(draw, said, alone=True)


def series_figure(
    names: Sequence[str], correlation: Sequence[float], hartree_fock: Sequence[float]
) -> Figure:
    """E(corr) and E(HF), Eh, for a series of basis sets, with the limit, if there is one, at the
    right."""
    drawn = [
        Curve("E(corr)", list(enumerate(correlation))),
        Curve(
            "E(HF) - E(HF) at the right end",
            [(k, e - hartree_fock[-1]) for k, e in enumerate(hartree_fock)],
        ),
    ]
    draw = partial(
        curves,
        "Energies along the basis series",
        drawn,
        "orbital basis",
        "energy / Eh",
        list(enumerate(names)),
    )
    return Figure(
        draw,
        "Correlation energy, and Hartree-Fock energy above the one at the right end.",
        alone=True,
    )
