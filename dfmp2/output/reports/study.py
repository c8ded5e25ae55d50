"""Reports on a study, and the table of several results, as text and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from dfmp2.mp2.result import MP2Result
from dfmp2.output.document import (
    WIDEST,
    Block,
    Facts,
    Note,
    Section,
    Table,
    fitted_width,
    fixed,
)
from dfmp2.output.reports.energies import energies, mean_field_sign
from dfmp2.output.reports.errors import budget_blocks
from dfmp2.output.reports.method import method_on_reference
from dfmp2.output.reports.study_figures import study_figures, vibration_blocks
from dfmp2.output.reports.study_tables import (
    basis_set_table,
    extrema_tables,
    geometry_tables,
    motion_shares,
    scan_points,
    study_table,
    values_on_a_screen,
    values_table,
)
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.output.study import Study

# Studies whose table already has the energies of their runs, or does not need them.
WITH_ENERGIES = (
    "scan",
    "cbs",
    "optimization",
    "irc",
    "frequencies",
    "thermochemistry",
    "reaction",
)
MOST_NAMES = 3  # names of runs that gave a warning


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
    signs = {mean_field_sign(r) for r in results.values()}
    mean_field = "mean field"
    if len(signs) == 1:
        mean_field = signs.pop()
    heads = [
        "result",
        "formula",
        "method",
        "#core",
        f"#{mean_field} / Eh",
        "#E(corr) / Eh",
        "#E(total) / Eh",
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
    return Table(
        ", ".join(alike.values()),
        [heads[k] for k in differ],
        [[row[k] for k in differ] for row in rows],
        sortable=True,
    )


def of_study(
    study: Study, anchors: Mapping[str, str] = MappingProxyType({}), *, brief: bool = False
) -> list[Section]:
    """The stored results of a study, and its runs.

    Parameters
    ----------
    study : Study
    anchors : mapping
        As in `overview`.
    brief : bool, optional
        For a screen: the requested results and how accurate they are. A scan is one table that
        fits; steps of an optimisation, points of a path, sources of error and runs are left to
        `dfmp2 show`.
    """
    missing = [Note("warning", "INCOMPLETE: not everything that was asked for has been run")]
    drawn = study_figures(study) if study.table else []
    blocks: list[Block] = [*([] if study.complete else missing), *drawn]
    if brief and study.kind == "frequencies":
        blocks.append(study_table(study.table, folded=False))
    if brief:
        blocks += values_on_a_screen(study)
    elif study.values:
        blocks.append(values_table(study.values))
    if study.kind == "thermochemistry" or not brief:
        blocks += motion_shares(study)
    if study.kind == "optimization":
        blocks += geometry_tables(study, brief=brief)
    blocks += extrema_tables(study)
    if study.kind == "thermochemistry":
        blocks += vibration_blocks(study)
    blocks += study.notes
    if brief:
        blocks += _brief_table(study)
    elif study.table:
        folded = study.kind in ("scan", "cbs", "optimization", "irc")
        blocks.append(study_table(study.table, folded=folded))
    budget = study.error_budget
    if budget is not None and brief:
        blocks.append(budget.summary)
    elif budget is not None:
        blocks += budget_blocks(budget)
    uncorrected = study.uncorrected_error_budget
    if uncorrected is not None:
        blocks.append(uncorrected.summary)
    if brief:
        listed = _runs_on_a_screen(study)
        return [Section("study", "Results", [*blocks, *listed])]
    shown = _listed_runs(study)
    runs, said = overview(shown, anchors), []
    if len(shown) < len(study.runs):
        said = [f"{len(study.runs)} runs, of which displaced geometries are not listed."]
    if study.kind == "frequencies":
        said = [
            f"{counted_text(len(study.runs), 'run')}: reference, and plus and minus for each "
            "coordinate of each atom."
        ]
        runs = runs._replace(details=True)
    of_runs = Section("overview", "Runs (groups runs/NAME of the file)", [*said, runs])
    return [Section("study", "Results", blocks), of_runs]


def _brief_table(study: Study) -> list[Block]:
    """The part of a study's table that a screen shows.

    Steps of an optimisation and points of a path were printed during the run, and vibrations come
    first.
    """
    if not study.table or study.kind in ("optimization", "irc", "frequencies"):
        return []
    if study.kind == "scan":
        return scan_points(study)
    if study.kind == "cbs":
        return [basis_set_table(study)]
    columns = {
        name: column
        for name, column in study.table.items()
        if name != "imaginary_modes" or any(column.values)
    }
    return [study_table(columns, folded=False)]


def _runs_on_a_screen(study: Study) -> list[Block]:
    """A table of the runs if their energies are not shown elsewhere; their number, names and
    time."""
    names = list(study.runs)
    if not names:
        return []
    tables: list[Block] = []
    if study.kind not in WITH_ENERGIES:
        tables.append(_energies_of_runs(_listed_runs(study)))
    called = ", ".join(names)
    if len(names) > MOST_NAMES:
        called = f"{names[0]} to {names[-1]}"
    levels = {method_on_reference(run) for run in study.runs.values()}
    at_level = ""
    if len(levels) == 1:
        at_level = f", {levels.pop()}"
    seconds = sum(run.timings.total for run in study.runs.values())
    said = f"{counted_text(len(names), 'run')}{at_level}: {called}; {seconds:.1f} s in all"
    return [*tables, Facts([("", said)])]


def _energies_of_runs(results: Mapping[str, MP2Result]) -> Table:
    """The table of `overview` without the columns for which a terminal has no room."""
    table = overview(results, {})
    heads = list(table.heads)
    for head in ("formula", "method", "#core", "#cycles", "#time / s"):
        if head in heads and fitted_width(table._replace(heads=heads)) > WIDEST:
            heads[heads.index(head)] = f"~{head.lstrip('#')}"
    return table._replace(heads=heads)


def _listed_runs(study: Study) -> dict[str, MP2Result]:
    """The runs that are worth a row; in a reaction, those of Hessians are not."""
    if study.kind != "reaction":
        return dict(study.runs)
    return {
        name: run
        for name, run in study.runs.items()
        if not name.partition(":")[2].startswith(("plus-", "minus-"))
    }


def study_warnings(study: Study) -> list[str]:
    """The warnings of a study and its runs, each with the runs that gave it."""
    said = []
    for warned in study.all_warnings:
        count = len(warned.runs)
        if count == 0:
            said.append(warned.text)
            continue
        names = ", ".join(warned.runs[:MOST_NAMES])
        if count > MOST_NAMES:
            names += ", ..."
        if count > 1 and warned.differs:
            names += "; figures of the first"
        if count > 1:
            names = f"{count} of {len(study.runs)} runs ({names})"
        said.append(f"{names}: {warned.text}")
    return said
