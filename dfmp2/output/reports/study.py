"""Reports on a study, and the table of several results, as text and on the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from dfmp2.mp2.result import MP2Result
from dfmp2.output.document import (
    Block,
    Figure,
    Note,
    Section,
    Table,
    fixed,
)
from dfmp2.output.drawings.plots import BROADENING, Curve, Limit, convergence, curves, spectrum
from dfmp2.output.drawings.studies import path_drawing, scan_drawing
from dfmp2.output.reports.energies import (
    energies,
    energy_headings,
    mean_field_sign,
    without_empty_dispersion,
)
from dfmp2.output.reports.method import method_on_reference, references_of
from dfmp2.output.reports.result import budget_blocks
from dfmp2.output.reports.study_tables import (
    basis_set_table,
    bonds_and_angles,
    columns_that_fit,
    extrema_tables,
    has_other_wavenumbers,
    motion_shares,
    positions_table,
    scan_points,
    species_table,
    study_table,
    values_on_a_screen,
    values_table,
)
from dfmp2.output.run_names import is_displaced
from dfmp2.output.study import Column, Study, Warned
from dfmp2.units import (
    KJ_PER_MOL_PER_HARTREE,
    counted_text,
)

# Notes on how something is computed, and where that is published
BACKGROUND = re.compile(
    r"geometries by geomeTRIC|geomeTRIC: |intrinsic reaction coordinate|minima optimised with"
    r"|steps of 0\.1 angstrom|curvature along the gradient|(?:start )?Hessian: |start orbitals: "
    r"|atoms that move: |relaxed: |two passes from"
    r"|fitting errors: |central differences|masses of the most abundant"
    r"|wavenumbers are harmonic and not scaled|negative: the complex|counterpoise: "
    r"|products minus reactants|geometries optimised to|CCSD\(T\): "
)
OF_A_VIBRATION = {  # array of a thermochemistry -> its unit
    "wavenumber": "cm^-1",
    "scaled_wavenumber": "cm^-1",
    "ir_intensity": "km/mol",
    "reduced_mass": "u",
    "force_constant": "mdyn/A",
}
MOST_COORDINATES = 12  # bonds and angles on a screen
MOST_NAMES = 3  # of runs that gave a warning


def overview(results: Mapping[str, MP2Result], anchors: Mapping[str, str]) -> Table:
    """A table with a row for each result; `anchors` are those of the results that are shown in
    full.

    Anything that all of them share is given above the table.
    """
    rows = []
    for name, r in results.items():
        method, core = method_on_reference(r), r.sizes.frozen_core
        ended = r.reference.cycles, fixed(r.timings.total), f"{r.backend}, {r.precision}"
        rows.append(
            ((name, anchors.get(name, "")), r.molecule.formula, method, core, *energies(r), *ended)
        )
    heads = [
        "result",
        "formula",
        "method",
        "#core",
        *energy_headings(map(mean_field_sign, results.values())),
    ]
    alike = {
        k: str(rows[0][k])
        for k in (1, 2, 3)
        if len(rows) > 1 and len({row[k] for row in rows}) == 1
    }
    heads += ["#cycles", "#time / s", "~backend"]
    differ = [k for k in range(len(heads)) if k not in alike]
    if 3 in alike:
        alike[3] = counted_text(int(alike[3]), "frozen core orbital")
    table = Table(
        ", ".join(alike.values()),
        [heads[k] for k in differ],
        [[row[k] for k in differ] for row in rows],
        sortable=True,
    )
    return without_empty_dispersion(table)


def of_study(study: Study, anchors: Mapping[str, str] = MappingProxyType({})) -> list[Section]:
    """What a study found, as stored, and its runs; `anchors` as of `overview`."""
    blocks: list[Block] = [*_incomplete(study), *(study_figures(study) if study.table else [])]
    if study.values:
        blocks.append(values_table(study.values))
    blocks += motion_shares(study)
    if study.kind == "optimization" and study.runs:
        blocks += [positions_table(study), bonds_and_angles(study)]
    blocks += extrema_tables(study)
    if study.kind == "thermochemistry":
        blocks += vibration_blocks(study)
    blocks += study.notes
    if study.table:
        folded = study.kind in ("scan", "cbs", "optimization", "irc")
        blocks.append(study_table(study.table, folded=folded))
    budget = study.error_budget
    if budget is not None:
        blocks += budget_blocks(budget)
    uncorrected = study.uncorrected_error_budget
    if uncorrected is not None:
        blocks.append(uncorrected.summary)
    shown = _listed_runs(study)
    runs, said = overview(shown, anchors), []
    if len(shown) < len(study.runs):
        said = [f"{len(study.runs)} runs, of which displaced geometries are not listed."]
    if study.kind == "frequencies":
        said = [
            f"{counted_text(len(study.runs), 'run')}: reference, and plus and minus for each "
            "coordinate of each atom."
        ]
        runs = runs._replace(details=True, caption=runs.caption or "Runs")
    of_runs = Section("overview", "Runs (groups runs/NAME of the file)", [*said, runs])
    return [Section("study", "Results", blocks), of_runs]


def _incomplete(study: Study) -> list[Block]:
    if study.complete:
        return []
    return [Note("warning", "INCOMPLETE: not everything that was asked for has been run")]


def remarks(study: Study) -> list[Block]:
    """What has to be known of the numbers of a study; how they were computed, with citations, is
    left to `dfmp2 show`."""
    return [*_incomplete(study), *(note for note in study.notes if not BACKGROUND.match(note))]


def main_tables(study: Study) -> list[Block]:
    """The tables that a study is made for, without spin components and runs.

    Steps of an optimisation and points of a path have been printed while it ran.
    """
    table = study.table
    blocks: list[Block] = []
    if study.kind == "frequencies" and table:
        blocks.append(study_table(table, folded=False))
    if study.kind == "thermochemistry" and has_other_wavenumbers(study):
        blocks += vibration_blocks(study)
    blocks += [*values_on_a_screen(study), *extrema_tables(study)]
    if study.kind == "optimization" and study.runs:
        geometry = bonds_and_angles(study)._replace(caption="")
        if 0 < len(geometry.rows) <= MOST_COORDINATES:
            blocks.append(geometry)
    if not table:
        return blocks
    if study.kind == "scan":
        blocks.append(scan_points(study))
    if study.kind == "interaction":
        blocks.append(columns_that_fit(table, ["basis"], list(table)[1:]))
    if study.kind == "cbs":
        blocks.append(basis_set_table(study))
    if study.kind == "reaction":
        blocks.append(species_table(study))
    return blocks


def cost_of_runs(study: Study) -> str:
    """How many runs a study has, at which level, and their time; "" where it computed none."""
    if not study.runs or study.kind == "thermochemistry":
        return ""
    runs = study.runs.values()
    seconds = sum(run.timings.total for run in runs)
    return f"{counted_text(len(runs), 'run')} on {references_of(runs)}; {seconds:.1f} s"


def _listed_runs(study: Study) -> dict[str, MP2Result]:
    """The runs that are worth a row; in a reaction, those of Hessians are not."""
    if study.kind != "reaction":
        return dict(study.runs)
    return {name: run for name, run in study.runs.items() if not is_displaced(name)}


def study_warnings(study: Study) -> list[str]:
    """The warnings of a study and its runs, each with the runs that gave it."""
    return [warning_text(warned, of=len(study.runs)) for warned in study.all_warnings]


def warning_text(warned: Warned, of: int, runs: str = "runs") -> str:
    """A warning with the runs that gave it.

    Parameters
    ----------
    warned : Warned
    of : int
        Number of all runs.
    runs : str
        What they are called.
    """
    count = len(warned.runs)
    if count == 0:
        return warned.text
    names = ", ".join(warned.runs[:MOST_NAMES])
    if count > MOST_NAMES:
        names += ", ..."
    if count > 1 and warned.differs:
        names += "; figures of the first"
    if count > 1:
        names = f"{count} of {of} {runs} ({names})"
    return f"{names}: {warned.text}"


def vibration_blocks(study: Study) -> list[Block]:
    """The infrared spectrum and the table of vibrations of a thermochemistry study; empty for an
    atom."""
    wavenumbers = study.arrays["wavenumber"].value.tolist()
    if not wavenumbers:
        return []
    columns = {"mode": Column(range(1, len(wavenumbers) + 1), "", "")}
    for name, unit in OF_A_VIBRATION.items():
        if name in study.arrays:
            columns[name] = Column(study.arrays[name].value.tolist(), unit, "")
    if study.settings["scale_factor"] == 1.0:
        del columns["scaled_wavenumber"]
    table = study_table(columns, folded=False)._replace(caption="Vibrations")
    if "ir_intensity" not in columns:
        return [table]
    return [_infrared(wavenumbers, columns["ir_intensity"].values), table]


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
        return [Figure(partial(scan_drawing, study), said)]
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
                mean_field_sign(next(iter(study.runs.values()))),
            )
        ]
    if study.kind == "optimization":
        return [_course(study)]
    if study.kind == "irc":
        said = "Energies along the path, transition state at 0; lines join computed points."
        return [Figure(partial(path_drawing, study), said)]
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
    return Figure(draw, said)


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
    return Figure(draw, said)


def series_figure(
    names: Sequence[str], correlation: Sequence[float], mean_field: Sequence[float], sign: str
) -> Figure:
    """E(corr) and the mean-field energy, whose symbol is `sign`, Eh, for a series of basis sets, with
    the limit, if there is one, at the right."""
    drawn = [
        Curve("E(corr)", list(enumerate(correlation))),
        Curve(
            f"{sign} - {sign} at the right end",
            [(k, e - mean_field[-1]) for k, e in enumerate(mean_field)],
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
    return Figure(draw, f"Correlation energy, and {sign} above the one at the right end.")
