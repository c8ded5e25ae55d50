"""The page of files: a result, several results, or a study; `dfmp2.output.html.batch` has that of a batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dfmp2.errors import InputError
from dfmp2.mp2.result import MP2Result
from dfmp2.output import hdf5
from dfmp2.output.document import Code, Section, energy, fixed
from dfmp2.output.html.batch import batch_page, is_batch
from dfmp2.output.html.page import render
from dfmp2.output.html.several import anchors, compared, each_in_full, first, scan_section
from dfmp2.output.report import decimals, in_full, method_name, of_study, verdict
from dfmp2.output.series import Entry, find_groups
from dfmp2.output.study import Study, is_study, read_study, verify_study

MOST_RESULTS = 2000  # compared on one page
MOST_ENERGIES = 3  # of a study in its headline; more would be broken in two


def page(sources: Sequence[Path], title: str | None) -> str:
    """The page of result files, of one study, or of one batch.

    Raises
    ------
    InputError, ResultFileError, ResourceError : one of them cannot be read
    """
    if is_batch(sources[0]):
        return batch_page(sources[0], title)
    if len(sources) == 1 and is_study(sources[0]):
        content, study = verify_study(sources[0]), read_study(sources[0])
        runs = [Entry(name, _slim(result), f"{content} (table)") for name, result in study.runs.items()]
        return study_page(study, runs, title, sources[0].name)
    entries = read_entries(sources)
    return result_page(entries[0], title) if len(entries) == 1 else comparison_page(entries, title)


def read_entries(paths: Sequence[Path]) -> list[Entry]:
    """Results with their names on the page.

    Raises
    ------
    InputError, ResultFileError : a file is missing, damaged, of another version, or given twice
    """
    if len(paths) > MOST_RESULTS:
        raise InputError(f"{len(paths)} results were given, at most {MOST_RESULTS} fit on a page: name fewer")
    seen: dict[tuple[int, int], Path] = {}
    entries = []
    names = [path.name for path in paths]
    for path in paths:
        if len(paths) > 1 and is_study(path):
            raise InputError(f"{path} is a study with runs of its own, which is shown alone: name it alone")
        content = hdf5.verify(path)
        status = path.stat()
        other = seen.setdefault((status.st_dev, status.st_ino), path)
        if other is not path:
            raise InputError(f"{path} is the same file as {other}: name every result once")
        name = path.name if names.count(path.name) == 1 else str(path)
        entries.append(Entry(name, _slim(hdf5.read(path)), content))
    return entries


def result_page(entry: Entry, title: str | None) -> str:
    """The page of one result."""
    r = entry.result
    headline = [
        (f"E({r.options.correlation.title}, total) / Eh", energy(r.total_energy)),
        (f"E({r.options.correlation.title}, correlation) / Eh", energy(r.correlation_energy)),
        ("good to", decimals(r.error_budget)),
        ("backend, precision", f"{r.backend}, {r.precision}"),
        ("checks", verdict(r)),
        ("wall time", f"{fixed(r.timings.total)} s"),
    ]
    title = title or f"{r.molecule.name}: DF-{r.options.correlation.title}/{r.orbital_basis.name}"
    subtitle = f"{r.molecule.formula}, {method_name(r)}; computed {r.provenance.created}"
    return render(title, subtitle, headline, in_full(r, entry.content), entry.name)


def comparison_page(entries: Sequence[Entry], title: str | None) -> str:
    """The page of several results: what belongs together, then the first of them in full."""
    groups = find_groups(entries)
    formulas = list(dict.fromkeys(entry.result.molecule.formula for entry in entries))
    methods = list(dict.fromkeys(method_name(entry.result) for entry in entries))
    headline = [
        ("results", len(entries)),
        ("molecules", len(formulas)),
        ("differ in", ", ".join(groups.differing) or "nothing"),
        ("warnings", sum(len(entry.result.diagnostics.warnings) for entry in entries)),
    ]
    title = title or f"{len(entries)} DF-MP2 results: {first(formulas, 4)}"
    sections = [*compared(entries, groups), *each_in_full(entries)]
    return render(title, "; ".join(methods[:3]), headline, sections, first([entry.name for entry in entries], 6))


def study_page(study: Study, runs: Sequence[Entry], title: str | None, file: str) -> str:
    """The page of a study: what it found, as stored, then its runs."""
    chosen = [name for name in study.values if name != "total_energy_at_0_kelvin"]
    found = [(name.replace("_", " "), study.values[name]) for name in chosen if study.values[name].units == "hartree"]
    headline = [
        *((f"{name} / Eh", energy(item.value)) for name, item in found[:MOST_ENERGIES]),
        ("runs", len(runs)),
        ("status", study.status),
    ]
    if study.kind == "optimization":  # the last step is what was looked for
        runs = [*runs[-1:], *runs[:-1]]
    shown = runs[:1] if study.kind == "frequencies" else runs  # the displaced ones are all alike
    results, overview = of_study(study, anchors(shown))
    given = Code("Settings", json.dumps(dict(study.settings), indent=1, ensure_ascii=False), folded=True)
    # Only the plot of a scan is added: what follows from the runs of another study stands in the study itself.
    scans = find_groups(runs).scans if study.kind == "scan" else ()
    sections: list[Section] = [
        results._replace(blocks=[*results.blocks, Code("Command", study.command), given]),
        *(scan_section(f"scan-{place}", group) for place, group in enumerate(scans, start=1)),
        overview,
        *each_in_full(shown),
    ]
    subtitle = f"{study.kind} of {len(runs)} runs; computed {study.created} by dfmp2 {study.version}"
    return render(title or study.title, subtitle, headline, sections, file)


def _slim(result: MP2Result) -> MP2Result:
    """Without the orbital coefficients, which no page shows and many of which would not fit into memory."""
    none = np.empty((result.reference.nspin, 0, 0))
    return replace(result, reference=replace(result.reference, mo_coeff=none), mole_json="")
