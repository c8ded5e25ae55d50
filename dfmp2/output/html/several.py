"""What a page shows of several results: their comparison, a study, a batch."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dfmp2.mp2.result import MP2Result
from dfmp2.output.html.page import ABSENT, difference, energy, fixed, render, size
from dfmp2.output.html.result import STAGES, describe, energies, method_name, verdict
from dfmp2.output.html.svg import Bar, Curve, bars, curves, magnitudes, shortened
from dfmp2.output.series import Entry, Group, basis_limit, cardinal, differences, find_coordinate, find_groups
from dfmp2.output.text import CONVERTED

if TYPE_CHECKING:
    from dfmp2.output.study import Column, Study

MOST_IN_FULL = 12  # results that get sections of their own; more would make a page nobody reads to its end
MOST_LANES = 24  # rows of the plot of differences


def result_page(entry: Entry, title: str | None) -> str:
    """The page of one result."""
    result = entry.result
    title = title or f"{result.molecule.name}: DF-MP2/{result.orbital_basis.name}"
    return render("one.j2", title, entry.name, d=describe(entry), verdict=verdict(result))


def comparison_page(entries: Sequence[Entry], title: str | None) -> str:
    """The page of several results: what belongs together, then the first of them in full."""
    entries = _anchored(entries)
    groups = find_groups(entries)
    formulas = list(dict.fromkeys(entry.result.molecule.formula for entry in entries))
    return render(
        "comparison.j2",
        title or f"{len(entries)} DF-MP2 results: {_first(formulas, 4)}",
        _first([entry.name for entry in entries], 6),
        methods=list(dict.fromkeys(method_name(entry.result) for entry in entries))[:3],
        formulas=formulas,
        warnings=sum(len(entry.result.diagnostics.warnings) for entry in entries),
        differing=", ".join(groups.differing),
        groups=groups,
        alone=_first([entry.name for entry in groups.alone], 10),
        lanes=_sections("lanes", groups.lanes, _lanes),
        series=_sections("series", groups.series, _series),
        scans=_sections("scan", groups.scans, _scan),
        **_overview(entries),
    )


def study_page(study: Study, entries: Sequence[Entry], title: str | None, file: str) -> str:
    """The page of a study: what it found, as stored, then its runs."""
    entries = _anchored(entries)
    # Only the plot of a scan is added: what follows from the runs of another study stands in the study itself.
    scans = find_groups(entries).scans if study.kind == "scan" else ()
    values = study.values
    found = {name: item for name, item in values.items() if item.units == "hartree"}
    converted = {f"{name}{end}" for name in found for end in CONVERTED}
    ends = [end for end in CONVERTED if any(f"{name}{end}" in values for name in found)]
    shown = {name: [values.get(f"{name}{end}") for end in ends] for name in found}
    return render(
        "study.j2",
        title or study.title,
        file,
        study=study,
        settings=json.dumps(dict(study.settings), indent=1, ensure_ascii=False) if study.settings else "",
        units=[CONVERTED[end] for end in ends],
        energies=[
            (_words(name), energy(item.value), *(fixed(one and one.value, 4) for one in shown[name]), item.description)
            for name, item in found.items()
        ],
        others=[
            (_words(name), _printed(item.value, item.units), item.units, item.description)
            for name, item in values.items()
            if name not in converted and name not in found
        ],
        columns=[_heading(name, column) for name, column in study.table.items()],
        rows=list(zip(*([_printed(x, c.units) for x in c.values] for c in study.table.values()), strict=True)),
        scans=_sections("scan", scans, _scan),
        **_overview(entries),
    )


# --- results side by side -----------------------------------------------------------------------------


def _anchored(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, the first of them with the anchors of their sections."""
    return [entry._replace(anchor=f"r{k}-" if k <= MOST_IN_FULL else "") for k, entry in enumerate(entries, start=1)]


def _overview(entries: Sequence[Entry]) -> dict[str, Any]:
    """A row for each result, and the first of them in full."""
    rows = []
    for entry in entries:
        r = entry.result
        name = (entry.name, entry.anchor and f"{entry.anchor}molecule")
        backend = f"{r.backend}, {r.precision}"
        rows.append((name, r.molecule.formula, method_name(r), backend, *energies(r), fixed(r.timings.total)))
    return {"overview": rows, "in_full": [describe(entry) for entry in entries[:MOST_IN_FULL]]}


def _sections(name: str, groups: Sequence[Group], values: Callable[[Group], dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups of a kind, with the anchors of their sections."""
    anchors = [name if len(groups) == 1 else f"{name}-{k}" for k in range(1, len(groups) + 1)]
    return [{"anchor": anchor, **values(group)} for anchor, group in zip(anchors, groups, strict=True)]


def _first(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _lanes(lane: Group) -> dict[str, Any]:
    """The same calculation by several backends or precisions: differences to the most exact one."""
    base, *others = lane
    names = ("scf_total", "mp2_same_spin_correlation", "mp2_opposite_spin_correlation", "mp2_correlation")
    estimates = {entry.name: _estimate(entry.result) for entry in lane}
    gaps = {
        entry.name: [getattr(entry.result, f"{n}_energy") - getattr(base.result, f"{n}_energy") for n in names]
        for entry in others
    }
    rows, times = [], []
    for entry in lane:
        r, estimate = entry.result, estimates[entry.name]
        shown = ["reference", "", "", "", ""]
        if entry is not base:
            theirs = base.result.pairs.channels()
            worst = max(float(np.abs(m - theirs[k]).max(initial=0.0)) for k, m in r.pairs.channels().items())
            shown = [*map(difference, gaps[entry.name]), size(worst)]
        said = "" if math.isnan(estimate) else size(estimate)
        rows.append((entry.name, f"{r.backend}, {r.precision}", energy(r.mp2_correlation_energy), *shown, said))
        spent = (fixed(getattr(r.timings, stage)) for stage in (*STAGES, "total"))
        times.append((entry.name, *spent, str(r.provenance.threads), r.provenance.host))
    fastest = min(lane, key=lambda entry: entry.result.timings.total)
    return {
        "base": base,
        "rows": rows,
        "times": times,
        "stages": list(STAGES.values()),
        "left_out": len(others) - MOST_LANES,
        "largest": max(abs(found[-1]) for found in gaps.values()),
        "fastest": fastest,
        "svg": magnitudes(
            f"Differences of E(corr) to {base.name}",
            [(entry.name, (gaps[entry.name][-1], estimates[entry.name])) for entry in others[:MOST_LANES]],
            ("difference of E(corr)", "certificate's estimate"),
            "magnitude / Eh, logarithmic",
        ),
    }


def _estimate(result: MP2Result) -> float:
    """The error of E(corr), Eh, that the certificate of a run in reduced precision found, NaN without one."""
    found = result.certificate
    return math.nan if found is None or result.precision == "fp64" else found.correlation_error


def _series(group: Group) -> dict[str, Any]:
    """One molecule and method in several bases, with the two-point limit where it is defined."""
    limit, rows = basis_limit(group), list[tuple[str, ...]]()
    names = [entry.result.orbital_basis.name for entry in group]
    correlation = [entry.result.mp2_correlation_energy for entry in group]
    above = [entry.result.scf_total_energy - group[-1].result.scf_total_energy for entry in group]
    for name, entry in zip(names, group, strict=True):
        number = cardinal(name)
        shown = (name, str(number.number) if number else "", str(entry.result.sizes.nao))
        rows.append((*shown, *energies(entry.result), entry.name))
    if limit is not None:
        scf = limit.largest.scf_total_energy
        shown = (f"limit from {limit.smaller}, {limit.larger}", "∞", "")
        rows.append((*shown, *map(energy, (scf, limit.correlation, scf + limit.correlation)), "extrapolated"))
        names.append("limit")
        correlation.append(limit.correlation)
    drawn = [
        Curve("E(corr)" + (", extrapolated at the right end" if limit else ""), list(enumerate(correlation))),
        Curve("E(HF) - E(HF, largest basis)", list(enumerate(above))),
    ]
    svg = curves("Energies along the basis series", drawn, "orbital basis", "energy / Eh", list(enumerate(names)))
    return {"rows": rows, "limit": limit, "svg": svg}


def _scan(group: Group) -> dict[str, Any]:
    """The same atoms and method at several geometries, by the coordinate that changes, or in the order given."""
    coordinate = find_coordinate([entry.result.molecule for entry in group])
    values = [float(k) for k in range(1, len(group) + 1)] if coordinate is None else list(coordinate.values)
    digits = 0 if coordinate is None else 4 if coordinate.unit == "angstrom" else 2
    axis = "geometry, in the order given" if coordinate is None else f"{coordinate.name} / {coordinate.unit}"
    ordered = sorted(zip(values, group, strict=True), key=lambda one: one[0])
    xs, results = [x for x, _ in ordered], [entry.result for _, entry in ordered]
    kinds = {
        "HF": [r.scf_total_energy for r in results],
        "MP2": [r.mp2_total_energy for r in results],
        "SCS-MP2": [r.scf_total_energy + r.scs_mp2_correlation_energy for r in results],
    }
    at, lowest = min(zip(xs, kinds["MP2"], strict=True), key=lambda one: one[1])
    rows = []
    for x, entry in ordered:
        above = f"{1000 * (entry.result.mp2_total_energy - lowest):.4f}"
        warnings = str(len(entry.result.diagnostics.warnings))
        rows.append((f"{x:.{digits}f}", *energies(entry.result), above, warnings, entry.name))
    drawn = [
        Curve(kind, [(x, 1000 * (e - min(found))) for x, e in zip(xs, found, strict=True)])
        for kind, found in kinds.items()
    ]
    unit = "" if coordinate is None else f" {coordinate.unit}"
    return {
        "coordinate": coordinate,
        "axis": axis,
        "rows": rows,
        "warned": sum(bool(r.diagnostics.warnings) for r in results),
        "range": f"{xs[0]:.{digits}f} to {xs[-1]:.{digits}f}{unit}",
        "lowest": f"{energy(lowest)} Eh at {at:.{digits}f}{unit}",
        "svg": curves(f"Energies along the {axis}", drawn, axis, "energy above the lowest of its curve / mEh"),
    }


# --- a study ------------------------------------------------------------------------------------------


def _words(name: str) -> str:
    return name.replace("_", " ")


def _heading(name: str, column: Column) -> str:
    """Heading of a column, "#" before it where it holds numbers."""
    unit = f" / {'Eh' if column.units == 'hartree' else column.units}" if column.units else ""
    return f"{'' if all(isinstance(value, str) for value in column.values) else '#'}{_words(name)}{unit}"


def _printed(value: Any, units: str) -> str:
    if isinstance(value, str):
        return value
    return ABSENT if not math.isfinite(value) else energy(value) if units == "hartree" else f"{value:.10g}"


# --- a batch ------------------------------------------------------------------------------------------

# What the exit codes of the command line mean (`dfmp2.errors`).
MEANING = {
    1: "fault in dfmp2",
    2: "command line",
    3: "input or result file",
    4: "SCF did not converge",
    5: "numerical guard",
    6: "backend",
    7: "memory, disk or permissions",
    8: "comparison failed",
    75: "interrupted, can be resumed",
    130: "stopped by Ctrl-C",
}
STATES = ("complete", "failed", "damaged", "running", "pending")
LONGEST_TRACEBACK = 4000  # characters, from its end
MOST_FAILURES = 100  # shown one by one


class Item(NamedTuple):
    """One molecule of a batch; what is not known is None or "".

    Attributes
    ----------
    name, state : item and one of STATES
    seconds : wall time, s
    cells : formula, basis functions, E(HF), E(corr), E(MP2), backend, number of warnings of a complete result, as text
    method : what makes its energies comparable, by name; level : the same for people
    code, message, traceback : exit code and error of a failed item
    """

    name: str
    state: str
    seconds: float | None = None
    cells: tuple[str, ...] = ("",) * 7
    method: Mapping[str, str] = {}
    level: str = ""
    code: int | None = None
    message: str = ""
    traceback: str = ""


def batch_page(items: Sequence[Item], remarks: Sequence[str], folder: str, title: str | None) -> str:
    """The overview of a batch.

    Parameters
    ----------
    remarks : what could not be read
    folder : the name of its folder
    """
    counts = Counter(item.state for item in items)
    done = [item for item in items if item.state == "complete"]
    failed = [item for item in items if item.state in ("failed", "damaged")]
    anchors = {item.name: f"failure-{place}" for place, item in enumerate(failed[:MOST_FAILURES], start=1)}
    rows = []
    for item in items:
        state = item.state if item.code is None else f"{item.state} ({item.code})"
        name = (item.name, anchors.get(item.name, ""))
        rows.append((name, state, *item.cells[:5], fixed(item.seconds), *item.cells[5:]))
    states = [(state, counts[state]) for state in STATES if counts[state]]
    codes = sorted(Counter(item.code for item in failed).items(), key=lambda one: (-one[1], one[0] or 0))
    slowest = sorted(done, key=lambda item: -(item.seconds or 0.0))[:12]
    times = [Bar(shortened(i.name, 15), (i.seconds or 0.0,), f"{i.seconds or 0.0:.2f} s") for i in slowest]
    return render(
        "batch.j2",
        title or f"Batch: {folder}",
        f"the folder {folder}",
        folder=folder,
        items=items,
        rows=rows,
        remarks=remarks,
        states=states,
        state_bars=bars("Items by state", [Bar(state, (float(count),), str(count)) for state, count in states]),
        different=differences({item.name: item.method for item in done}),
        level=done[0].level if done else "",
        complete=len(done),
        spent=sum(item.seconds or 0.0 for item in done),
        failed=[(anchors[item.name], item) for item in failed[:MOST_FAILURES]],
        failures=len(failed),
        codes=[("none" if c is None else str(c), MEANING.get(c or 0, "unknown"), str(n)) for c, n in codes],
        meaning=MEANING,
        longest=LONGEST_TRACEBACK,
        slowest=len(slowest),
        time_bars=bars("Longest items", times),
    )
