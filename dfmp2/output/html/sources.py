"""The page of files: a result, several results, or a study; `dfmp2.output.html.batch` has that of a batch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dfmp2.errors import InputError
from dfmp2.mp2.error_budget import ErrorBudget
from dfmp2.mp2.result import MP2Result
from dfmp2.output import hdf5
from dfmp2.output.document import ABSENT, Code, Tile, counted, energy, fixed, size, without_folders
from dfmp2.output.html.batch import batch_page, is_batch
from dfmp2.output.html.page import render
from dfmp2.output.html.several import anchors, compared, each_in_full, first
from dfmp2.output.report import asked_for, in_full, method_name
from dfmp2.output.series import Entry, find_groups
from dfmp2.output.study import Study, is_study, read_study, verify_study
from dfmp2.output.study_report import cell, of_study

MOST_RESULTS = 2000  # compared on one page
MOST_ANSWERS = 3  # of a comparison in its headline
FOUND = {  # by the kind of a study: what a tile is called, and the names of its value, of which the first one counts
    "interaction": {
        "interaction energy, counterpoise-corrected": "cp_corrected_interaction_energy_kcal_per_mol",
        "interaction energy, uncorrected": "uncorrected_interaction_energy_kcal_per_mol",
    },
    "cbs": {
        "total energy, limit": "cbs_total_energy cbs_mp2_total_energy",
        "correlation energy, limit": "cbs_correlation_energy cbs_mp2_correlation_energy",
    },
    "scan": {
        "minimum at": "minimum_quartic minimum_parabola",
        "energy there": "minimum_quartic_energy minimum_parabola_energy",
    },
    "optimization": {
        "total energy, optimised": "optimized_total_energy",
        "change since the start": "energy_change",
        "largest gradient": "max_gradient",
    },
    "frequencies": {"zero-point energy": "zero_point_energy", "Gibbs energy": "gibbs_energy"},
}


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
    common = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    names = [path.name for path in paths]
    for path in paths:
        if len(paths) > 1 and is_study(path):
            raise InputError(f"{path} is a study with runs of its own, which is shown alone: name it alone")
        content = hdf5.verify(path)
        status = path.stat()
        other = seen.setdefault((status.st_dev, status.st_ino), path)
        if other is not path:
            raise InputError(f"{path} is the same file as {other}: name every result once")
        name = path.name if names.count(path.name) == 1 else str(path.absolute().relative_to(common))
        entries.append(Entry(name, _slim(hdf5.read(path)), content))
    return entries


def result_page(entry: Entry, title: str | None) -> str:
    """The page of one result."""
    r = entry.result
    name, level = r.options.correlation.title, method_name(r)
    tiles = [
        Tile(f"E({name}, total) / Eh", energy(r.total_energy)),
        Tile(f"E({name}, correlation) / Eh", energy(r.correlation_energy)),
        *([] if r.gradient is None else [Tile("|gradient| / Eh/bohr", f"{r.gradient.norm:.8f}", r.gradient.scaling)]),
        *_errors(r),
        Tile("method", *level.split(" on ", 1)),
        _stability(r),
        _checks(r),
        Tile("backend, precision", f"{r.backend}, {r.precision}", f"wall time {fixed(r.timings.total)} s"),
    ]
    title = title or f"{r.molecule.name}: DF-{name}/{r.orbital_basis.name}"
    spin = f"charge {r.molecule.charge}, multiplicity {r.molecule.multiplicity}"
    subtitle = f"{r.molecule.formula}, {spin}; computed {r.provenance.created} by dfmp2 {r.provenance.version}"
    return render(title, subtitle, tiles, in_full(r, entry.content), entry.name, r.diagnostics.warnings)


def _errors(r: MP2Result) -> list[Tile]:
    """How many digits are good, and what density fitting is expected to change."""
    budget = r.error_budget
    fits = [source for key in ("scf_fitting", "mp2_fitting") if (source := budget.sources[key]).shares]
    known = all(share.value is not None for source in fits for share in source.shares)
    kinds = ", ".join(dict.fromkeys(source.kinds for source in fits))
    parts = "; ".join(f"{source.name} {size(source.total)}" for source in fits)
    total = size(sum(source.total for source in fits)) if known else ABSENT
    good = ("not known", "") if budget.decimals is None else (counted(budget.decimals, "decimal"), _about(budget))
    return [Tile("good to", *good), Tile("fitting error / Eh", total, f"{kinds}: {parts}")]


def _about(budget: ErrorBudget) -> str:
    return "" if budget.total is None else f"±{size(budget.total)} Eh"


def _stability(r: MP2Result) -> Tile:
    """The reference, and whether a lower SCF solution exists."""
    kind, found = r.reference.title, r.reference.stability
    if found is None:
        return Tile("reference", kind, "its stability was not examined")
    unstable = found.verdict.startswith("unstable")
    gain = f", at least {size(found.energy_gain)} Eh below" if found.energy_gain else ""
    remark = f"a lower solution exists{gain}" if unstable else found.method
    return Tile("reference", f"{kind}, {found.verdict}", remark, "warning" if unstable else "")


def _checks(r: MP2Result) -> Tile:
    """What the run checked of itself, by what, and how many warnings it gave."""
    certificate, check, count = r.certificate, r.check, len(r.diagnostics.warnings)
    passed, said = {}, []
    if check is not None:
        passed["PySCF check"] = check.passed
        said.append(f"{check.program} differs by {size(check.largest_difference)} Eh at most")
    if certificate is not None:
        passed["certificate"] = certificate.accepted or certificate.repeated_in_fp64
        bound = f"error of the precision {size(certificate.correlation_error)} Eh at most"
        found = "repeated in float64" if certificate.repeated_in_fp64 else bound
        said.append(f"certificate, {certificate.sampled} of {certificate.pairs} pairs: {found}")
    failed = [f"{name} failed" for name, good in passed.items() if not good]
    words = failed or ([f"{' and '.join(passed)} passed"] if passed else [])
    words.append(counted(count, "warning") if count else "no warnings")
    return Tile("checks", ", ".join(words), "; ".join(said), "failure" if failed else "warning" if count else "")


def comparison_page(entries: Sequence[Entry], title: str | None) -> str:
    """The page of several results: what belongs together, then the first of them in full."""
    groups = find_groups(entries)
    formulas = list(dict.fromkeys(entry.result.molecule.formula for entry in entries))
    answers, sections = compared(entries, groups)
    count, differing = counted(len(formulas), "molecule"), ", ".join(groups.differing) or "nothing"
    results = Tile("results", len(entries), f"{count}; differ in {differing}")
    tiles = [*answers[:MOST_ANSWERS], results, *_common(entries)]
    title = title or f"{len(entries)} DF-MP2 results: {first(formulas, 4)}"
    names = first([entry.name for entry in entries], 6)
    return render(title, names, tiles, [*sections, *each_in_full(entries)], names, _warnings(entries))


def _common(entries: Sequence[Entry]) -> list[Tile]:
    """The method asked for, and how many warnings there are."""
    methods = list(dict.fromkeys(asked_for(entry.result) for entry in entries))
    levels = first(list(dict.fromkeys(level for level, _ in methods)), 2)
    counts = [len(entry.result.diagnostics.warnings) for entry in entries]
    of = f"{len(entries) - counts.count(0)} of {counted(len(entries), 'run')}"
    return [
        Tile("method", levels, methods[0][1] if len(methods) == 1 else counted(len(methods), "method")),
        Tile("warnings", sum(counts), f"in {of}", "warning" if any(counts) else ""),
    ]


def _warnings(entries: Sequence[Entry]) -> list[str]:
    """Every warning once, with the names of those that gave it."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        for text in entry.result.diagnostics.warnings:
            found.setdefault(text, []).append(entry.name)
    return [f"{first(names, 3)}: {text}" for text, names in found.items()]


def _answers(study: Study) -> list[Tile]:
    """What a study was made for."""
    tiles = []
    for said, names in FOUND[study.kind].items():
        item = next((study.values[name] for name in names.split() if name in study.values), None)
        if item is not None:
            value = f"{item.value:.6g}" if item.units in ("angstrom", "degree") else cell(item.value, item.units)
            tiles.append(Tile(f"{said} / {item.units.replace('hartree', 'Eh')}", value, item.description))
    if "wavenumber" in study.table:
        found = study.table["wavenumber"].values
        imaginary = sum(wavenumber < 0 for wavenumber in found)
        lowest = f"lowest {cell(min(found), 'cm^-1')} cm^-1" if found else ""
        tiles.insert(0, Tile("imaginary modes", imaginary, f"of {len(found)}, {lowest}"))
    if study.kind == "scan" and not tiles:
        coordinate, above = list(study.table.values())[:2]
        points = [(gap, x) for x, gap in zip(coordinate.values, above.values, strict=True) if math.isfinite(gap)]
        if points:
            said = f"lowest point / {coordinate.units}" if coordinate.units else "lowest point"
            tiles.append(Tile(said, f"{min(points)[1]:.6g}", "of those computed: no minimum inside was found"))
    return tiles


def study_page(study: Study, runs: Sequence[Entry], title: str | None, file: str) -> str:
    """The page of a study: what it found, as stored, then its runs."""
    tiles = [*_answers(study), *_common(runs)]
    if not study.complete:
        tiles.append(Tile("status", study.status, "not everything that was asked for has been run", "failure"))
    budget = study.error_budget
    if budget is not None and budget.total is not None:
        tiles.append(Tile("good to", _about(budget), f"{budget.energy}, from {budget.exact}"))
    if study.kind == "optimization":  # the last step is what was looked for
        runs = [*runs[-1:], *runs[:-1]]
    shown = runs[:1] if study.kind == "frequencies" else runs  # the displaced ones are all alike
    # The energies of a scan differ by its geometries, of which the lowest is drawn; the other studies have one.
    drawn = min(shown, key=lambda entry: entry.result.total_energy) if study.kind == "scan" else shown[0]
    results, overview = of_study(study, anchors(shown))
    settings = json.dumps(dict(study.settings), indent=1, ensure_ascii=False)
    given = (Code("Command", without_folders(study.command)), Code("Settings", without_folders(settings), folded=True))
    molecule = in_full(drawn.result, drawn.content)[0]
    sections = [
        results._replace(blocks=[*results.blocks, *given]),
        molecule._replace(title=f"Molecule ({drawn.name})"),
        overview,
        *each_in_full(shown),
    ]
    subtitle = f"{study.kind} of {counted(len(runs), 'run')}; computed {study.created} by dfmp2 {study.version}"
    return render(title or study.title, subtitle, tiles, sections, file, _warnings(runs))


def _slim(result: MP2Result) -> MP2Result:
    """Without the orbital coefficients, which no page shows and many of which would not fit into memory."""
    none = np.empty((result.reference.nspin, 0, 0))
    return replace(result, reference=replace(result.reference, mo_coeff=none), mole_json="")
