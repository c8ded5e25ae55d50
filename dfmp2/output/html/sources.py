"""The page of files: a result, several results, or a study; `dfmp2.output.html.batch` has that of a batch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.errors import InputError
from dfmp2.mp2.error_budget import ErrorBudget
from dfmp2.mp2.result import MP2Result
from dfmp2.output import hdf5
from dfmp2.output.document import (
    ABSENT,
    Block,
    Code,
    Facts,
    Figure,
    Note,
    Section,
    Table,
    Tile,
    counted,
    difference,
    energy,
    fixed,
    size,
    without_folders,
)
from dfmp2.output.html.batch import batch_page, is_batch
from dfmp2.output.html.page import render
from dfmp2.output.html.svg import Curve, curves
from dfmp2.output.report import STAGES, asked_for, energies, in_full, method_name
from dfmp2.output.series import (
    Entry,
    Group,
    Groups,
    basis_limit,
    cardinal,
    find_coordinate,
    find_groups,
)
from dfmp2.output.study import Study, is_study, read_study, verify_study
from dfmp2.output.study_report import cell, of_study, overview, series_figure
from dfmp2.units import KJ_PER_MOL_PER_HARTREE

MOST_RESULTS = 2000  # compared on one page
MOST_IN_FULL = 8  # results that get sections of their own: a page of 100 stays below 2 MB
Part = tuple[Tile, Section]
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
        runs = [
            Entry(name, _slim(result), f"{content} (table)") for name, result in study.runs.items()
        ]
        return study_page(study, runs, title, sources[0].name)
    entries = read_entries(sources)
    if len(entries) == 1:
        return result_page(entries[0], title)
    return comparison_page(entries, title)


def read_entries(paths: Sequence[Path]) -> list[Entry]:
    """Results with their names on the page.

    Raises
    ------
    InputError, ResultFileError : a file is missing, damaged, of another version, or given twice
    """
    if len(paths) > MOST_RESULTS:
        raise InputError(
            f"{len(paths)} results were given, at most {MOST_RESULTS} fit on a page: name fewer"
        )
    seen: dict[tuple[int, int], Path] = {}
    entries = []
    common = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    names = [path.name for path in paths]
    for path in paths:
        if len(paths) > 1 and is_study(path):
            raise InputError(
                f"{path} is a study with runs of its own, which is shown alone: name it alone"
            )
        content = hdf5.verify(path)
        status = path.stat()
        other = seen.setdefault((status.st_dev, status.st_ino), path)
        if other is not path:
            raise InputError(f"{path} is the same file as {other}: name every result once")
        if names.count(path.name) == 1:
            name = path.name
        else:
            name = str(path.absolute().relative_to(common))
        entries.append(Entry(name, _slim(hdf5.read(path)), content))
    return entries


def result_page(entry: Entry, title: str | None) -> str:
    """The page of one result."""
    r = entry.result
    name, level = r.options.correlation.title, method_name(r)
    tiles = [
        Tile(f"E({name}, total) / Eh", energy(r.total_energy)),
        Tile(f"E({name}, correlation) / Eh", energy(r.correlation_energy)),
        *(
            []
            if r.gradient is None
            else [Tile("|gradient| / Eh/bohr", f"{r.gradient.norm:.8f}", r.gradient.scaling)]
        ),
        *_errors(r),
        Tile("method", *level.split(" on ", 1)),
        _stability(r),
        _checks(r),
        Tile(
            "backend, precision",
            f"{r.backend}, {r.precision}",
            f"wall time {fixed(r.timings.total)} s",
        ),
    ]
    title = title or f"{r.molecule.name}: {r.level}"
    spin = f"charge {r.molecule.charge}, multiplicity {r.molecule.multiplicity}"
    subtitle = f"{r.molecule.formula}, {spin}; computed {r.provenance.created} by dfmp2 {r.provenance.version}"
    return render(
        title, subtitle, tiles, in_full(r, entry.content), entry.name, r.diagnostics.warnings
    )


def _errors(r: MP2Result) -> list[Tile]:
    """How many digits are good, and what density fitting is expected to change."""
    budget = r.error_budget
    fits = [
        source for key in ("scf_fitting", "mp2_fitting") if (source := budget.sources[key]).shares
    ]
    known = all(share.value is not None for source in fits for share in source.shares)
    kinds = ", ".join(dict.fromkeys(source.kinds for source in fits))
    parts = "; ".join(f"{source.name} {size(source.total)}" for source in fits)
    if known:
        total = size(sum(source.total for source in fits))
    else:
        total = ABSENT
    if budget.decimals is None:
        good = ("not known", "")
    else:
        good = (counted(budget.decimals, "decimal"), _about(budget))
    return [Tile("good to", *good), Tile("fitting error / Eh", total, f"{kinds}: {parts}")]


def _about(budget: ErrorBudget) -> str:
    if budget.total is None:
        return ""
    return f"±{size(budget.total)} Eh"


def _stability(r: MP2Result) -> Tile:
    """The reference, and whether a lower SCF solution exists."""
    kind, found = r.reference.title, r.reference.stability
    if found is None:
        return Tile("reference", kind, "its stability was not examined")
    unstable = found.verdict.startswith("unstable")
    if found.energy_gain:
        gain = f", at least {size(found.energy_gain)} Eh below"
    else:
        gain = ""
    if unstable:
        remark = f"a lower solution exists{gain}"
    else:
        remark = found.method
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
        if certificate.repeated_in_fp64:
            found = "repeated in float64"
        else:
            found = bound
        said.append(f"certificate, {certificate.sampled} of {certificate.pairs} pairs: {found}")
    failed = [f"{name} failed" for name, good in passed.items() if not good]
    words = failed or ([f"{' and '.join(passed)} passed"] if passed else [])
    words.append(counted(count, "warning") if count else "no warnings")
    return Tile(
        "checks",
        ", ".join(words),
        "; ".join(said),
        "failure" if failed else "warning" if count else "",
    )


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
    return render(
        title, names, tiles, [*sections, *each_in_full(entries)], names, _warnings(entries)
    )


def _common(entries: Sequence[Entry]) -> list[Tile]:
    """The method asked for, and how many warnings there are."""
    methods = list(dict.fromkeys(asked_for(entry.result) for entry in entries))
    levels = first(list(dict.fromkeys(level for level, _ in methods)), 2)
    counts = [len(entry.result.diagnostics.warnings) for entry in entries]
    of = f"{len(entries) - counts.count(0)} of {counted(len(entries), 'run')}"
    return [
        Tile(
            "method",
            levels,
            methods[0][1] if len(methods) == 1 else counted(len(methods), "method"),
        ),
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
            if item.units in ("angstrom", "degree"):
                value = f"{item.value:.6g}"
            else:
                value = cell(item.value, item.units)
            tiles.append(
                Tile(f"{said} / {item.units.replace('hartree', 'Eh')}", value, item.description)
            )
    if "wavenumber" in study.table:
        found = study.table["wavenumber"].values
        imaginary = sum(wavenumber < 0 for wavenumber in found)
        if found:
            lowest = f"lowest {cell(min(found), 'cm^-1')} cm^-1"
        else:
            lowest = ""
        tiles.insert(0, Tile("imaginary modes", imaginary, f"of {len(found)}, {lowest}"))
    if "stationary_point" in study.settings:
        tiles.insert(0, _kind_of_point(study))
    bends = study.arrays.get("extrema_curvature")
    if study.kind == "scan" and bends is not None:
        minima = int((bends.value > 0).sum())
        maxima = len(bends.value) - minima
        words = f"{counted(minima, 'minimum', 'minima')}, {counted(maxima, 'maximum', 'maxima')}"
        tiles.append(Tile("between the points", words, ""))
    elif study.kind == "scan" and not tiles:
        coordinate, above = list(study.table.values())[:2]
        points = [
            (gap, x)
            for x, gap in zip(coordinate.values, above.values, strict=True)
            if math.isfinite(gap)
        ]
        if points:
            if coordinate.units:
                said = f"lowest point / {coordinate.units}"
            else:
                said = "lowest point"
            tiles.append(
                Tile(
                    said, f"{min(points)[1]:.6g}", "of those computed: no minimum inside was found"
                )
            )
    return tiles


def _kind_of_point(study: Study) -> Tile:
    """What an optimisation has come to, and whether its Hessian says so."""
    imaginary = study.settings["imaginary_modes"]
    if imaginary is None:
        return Tile("geometry", "stationary point", "its Hessian was not computed: --verify")
    wanted = int(study.settings["transition_state"])
    if imaginary == wanted:
        mood = ""
    else:
        mood = "failure"
    modes = counted(imaginary, "imaginary mode")
    return Tile("geometry", study.settings["stationary_point"], f"{modes}, by its Hessian", mood)


def study_page(study: Study, runs: Sequence[Entry], title: str | None, file: str) -> str:
    """The page of a study: what it found, as stored, then its runs."""
    tiles = [*_answers(study), *_common(runs)]
    if not study.complete:
        tiles.append(
            Tile(
                "status", study.status, "not everything that was asked for has been run", "failure"
            )
        )
    budget = study.error_budget
    if budget is not None and budget.total is not None:
        tiles.append(Tile("good to", _about(budget), f"{budget.energy}, from {budget.exact}"))
    shown = runs
    if study.kind == "optimization":  # the last step is what was looked for
        steps = [entry for entry in runs if entry.name in study.path]
        shown = [*steps[-1:], *steps[:-1]]
    elif study.kind == "frequencies":  # the displaced ones are all alike
        shown = runs[:1]
    # The energies of a scan differ by its geometries, of which the lowest is drawn; the other studies have one.
    if study.kind == "scan":
        drawn = min(shown, key=lambda entry: entry.result.total_energy)
    else:
        drawn = shown[0]
    results, listed = of_study(study, anchors(shown))
    settings = json.dumps(dict(study.settings), indent=1, ensure_ascii=False)
    given = (
        Code("Command", without_folders(study.command)),
        Code("Settings", without_folders(settings), folded=True),
    )
    molecule = in_full(drawn.result, drawn.content)[0]
    sections = [
        results._replace(blocks=[*results.blocks, *given]),
        molecule._replace(title=f"Molecule ({drawn.name})"),
        listed,
        *each_in_full(shown),
    ]
    subtitle = f"{study.kind} of {counted(len(runs), 'run')}; computed {study.created} by dfmp2 {study.version}"
    return render(title or study.title, subtitle, tiles, sections, file, _warnings(runs))


def _slim(result: MP2Result) -> MP2Result:
    """Without the orbital coefficients, which no page shows and many of which would not fit into memory."""
    none = np.empty((result.reference.nspin, 0, 0))
    return replace(result, reference=replace(result.reference, mo_coeff=none), mole_json="")


# --- what several results have to do with each other ---------------------------------------------------


def compared(entries: Sequence[Entry], groups: Groups) -> tuple[list[Tile], list[Section]]:
    """What was found in these results: an answer for each group, and its sections."""
    kinds = (
        ("lanes", _lanes, groups.lanes),
        ("series", _series, groups.series),
        ("scan", _scan, groups.scans),
    )
    parts = [
        make(f"{kind}-{k}", group)
        for kind, make, members in kinds
        for k, group in enumerate(members, start=1)
    ]
    found = [
        *(f"the same calculation {len(group)} times" for group in groups.lanes),
        *(f"a series of {len(group)} basis sets" for group in groups.series),
        *(f"a scan of {len(group)} geometries" for group in groups.scans),
    ]
    blocks: list[Block] = (
        [f"Found in these {len(entries)} results: {', '.join(found)}."] if found else []
    )
    if groups.alone:
        alone = (
            f"In no series with the others: {first([entry.name for entry in groups.alone], 10)}."
        )
        apart = "energies of different calculations must not be subtracted from each other, so they are only listed."
        who = alone if found else "These results form no series."
        blocks.append(
            Note("warning", f"{who} They differ in {', '.join(groups.differing)}; {apart}")
        )
    results = {entry.name: entry.result for entry in entries}
    listed = Section("overview", "Comparison", [*blocks, overview(results, anchors(entries))])
    return [tile for tile, _ in parts], [listed, *(section for _, section in parts)]


def anchors(entries: Sequence[Entry]) -> dict[str, str]:
    """Where the results that are shown in full begin."""
    return {entry.name: f"r{place}" for place, entry in enumerate(entries[:MOST_IN_FULL], start=1)}


def each_in_full(entries: Sequence[Entry]) -> Iterator[Section]:
    """The sections of the first results, one result after the other."""
    for entry in entries[:MOST_IN_FULL]:
        start = anchors(entries)[entry.name]
        yield Section(start, entry.name, [])
        for section in in_full(entry.result, entry.content):
            yield section._replace(anchor=f"{start}-{section.anchor}", level=3)
    if len(entries) > MOST_IN_FULL:
        shown = f"The first {MOST_IN_FULL} of {len(entries)} results are shown in full"
        note = Note(
            "info", f"{shown}; dfmp2 report shows any of the others when it is named alone."
        )
        yield Section("rest", "Not shown in full", [note])


def first(names: Sequence[str], most: int) -> str:
    """The first of many names."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _lanes(anchor: str, group: Group) -> Part:
    """The same calculation by several backends or precisions: differences to the most exact one."""
    base, largest = group[0], 0.0
    names = ("scf_total", "same_spin_correlation", "opposite_spin_correlation", "correlation")
    rows = []
    for entry in group:
        r, certificate = entry.result, entry.result.certificate
        shown = ["reference", "", "", "", ""]
        if entry is not base:
            gaps = [
                getattr(r, f"{name}_energy") - getattr(base.result, f"{name}_energy")
                for name in names
            ]
            largest = max(largest, abs(gaps[-1]))
            theirs = base.result.pairs.channels()
            pairs = [
                float(np.abs(m - theirs[k]).max(initial=0.0)) for k, m in r.pairs.channels().items()
            ]
            shown = [*map(difference, gaps), size(max(pairs)) if pairs else ABSENT]
        if certificate is None or r.precision == "fp64":
            said = ""
        else:
            said = size(certificate.correlation_error)
        rows.append(
            (entry.name, f"{r.backend}, {r.precision}", energy(r.correlation_energy), *shown, said)
        )
    changes = (
        f"#{name} / Eh"
        for name in ("Δ E(HF)", "Δ E(SS)", "Δ E(OS)", "Δ E(corr)", "largest Δ pair", "bound")
    )
    times = [
        (
            entry.name,
            *(fixed(getattr(entry.result.timings, stage)) for stage in (*STAGES, "total")),
            *(entry.result.provenance.threads, entry.result.provenance.host),
        )
        for entry in group
    ]
    blocks: list[Block] = [
        Table(
            f"Differences to {base.name}; bound: on the error of E(corr), from the run's own certificate",
            ("result", "backend", "#E(corr) / Eh", *changes),
            rows,
            sortable=True,
        ),
        Table(
            "Wall time per stage, s",
            ("result", *(f"#{stage}" for stage in STAGES.values()), "#total", "#threads", "host"),
            times,
            sortable=True,
        ),
    ]
    answer = Tile(
        "largest difference of E(corr) / Eh",
        size(largest),
        f"{len(group)} times the same; to {base.name}",
    )
    return answer, Section(anchor, "The same calculation, compared", blocks)


def _series(anchor: str, group: Group) -> Part:
    """One molecule and method in several bases, with the two-point limit where it is defined."""
    limit, rows = basis_limit(group), list[tuple[Any, ...]]()
    names = [entry.result.orbital_basis.name for entry in group]
    correlation = [entry.result.correlation_energy for entry in group]
    hartree_fock = [entry.result.hf_total_energy for entry in group]
    for name, entry in zip(names, group, strict=True):
        number = cardinal(name)
        x, functions = number.number if number else "", entry.result.sizes.nao
        rows.append((name, x, functions, *energies(entry.result), entry.name))
    note: Block = Note(
        "info",
        "No basis-set limit is given: that takes two sets of one correlation-consistent family (such as cc-pVTZ and "
        "cc-pVQZ) with neighbouring cardinal numbers, and nothing but that family in the series.",
    )
    title = group[-1].result.options.correlation.title
    answer = Tile(
        f"E({title}, total) / Eh",
        rows[-1][-2],
        f"in {names[-1]}, the largest of {len(group)} basis sets",
    )
    if limit is not None:
        scf, lower, upper = limit.largest.hf_total_energy, limit.smaller, limit.larger
        found = tuple(map(energy, (scf, limit.correlation, scf + limit.correlation)))
        rows.append((f"limit from {lower}, {upper}", "∞", "", *found, "extrapolated"))
        missing = f"{1000 * (limit.correlation - correlation[-1]):.3f} mEh"
        note = Facts(
            [
                (
                    "formula",
                    f"(X³ E(X) - Y³ E(Y)) / (X³ - Y³), X = {upper}, Y = {lower}; {limit.formula.source}",
                ),
                ("missing in the largest basis", missing),
                *(
                    [("beware", "the pair 2, 3 is too small for more than trends")]
                    if lower == 2
                    else []
                ),
            ]
        )
        answer = Tile(
            f"E({title}, limit) / Eh",
            found[-1],
            f"from X = {lower}, {upper}; {names[-1]} lacks {missing}",
        )
        names, correlation, hartree_fock = (
            [*names, "limit"],
            [*correlation, limit.correlation],
            [*hartree_fock, scf],
        )
    blocks: list[Block] = [
        series_figure(names, correlation, hartree_fock),
        note,
        Table(
            "Basis series, smallest first",
            (
                "basis",
                "#cardinal number",
                "#functions",
                "#E(HF) / Eh",
                "#E(corr) / Eh",
                "#E(total) / Eh",
                "result",
            ),
            rows,
            folded=True,
        ),
    ]
    return answer, Section(anchor, "Basis series", blocks)


def _scan(anchor: str, group: Group) -> Part:
    """The same atoms and method at several geometries, by the coordinate that changes, or in the order given."""
    found = find_coordinate([entry.result.molecule for entry in group])
    if found is None:
        values = [float(k) for k in range(1, len(group) + 1)]
    else:
        values = list(found.values)
    if found is None:
        digits = 0
    elif found.unit == "angstrom":
        digits = 4
    else:
        digits = 2
    if found is None:
        axis = "geometry, in the order given"
    else:
        axis = f"{found.name} / {found.unit}"
    ordered = sorted(zip(values, group, strict=True), key=lambda one: one[0])
    xs, results = [f"{x:.{digits}f}" for x, _ in ordered], [entry.result for _, entry in ordered]
    title = results[0].options.correlation.title
    kinds: dict[str, list[float]] = {
        title: [r.total_energy for r in results],
        "HF": [r.hf_total_energy for r in results],
    }
    if title == "MP2":
        kinds["SCS-MP2"] = [r.scf_total_energy + r.scs_mp2_correlation_energy for r in results]
    above = {
        kind: [KJ_PER_MOL_PER_HARTREE * (e - min(es)) for e in es] for kind, es in kinds.items()
    }
    rows = [
        (x, *energies(r), f"{gap:.4f}", len(r.diagnostics.warnings), entry.name)
        for x, r, gap, (_, entry) in zip(xs, results, above[title], ordered, strict=True)
    ]
    drawn = [
        Curve(kind, list(zip(map(float, xs), gaps, strict=True))) for kind, gaps in above.items()
    ]
    notes = []
    if found is None:
        notes.append(
            "No single bond, angle, torsion or distance tells these geometries apart: they are counted."
        )
    elif found.others:
        notes.append(
            f"Other coordinates of this kind change as well; the {found.name} changes most."
        )
    blocks: list[Block] = [
        Figure(
            partial(
                curves,
                f"Energies along the {axis}",
                drawn,
                axis,
                "energy above the lowest of its curve / kJ/mol",
            ),
            "Total energies above the lowest point of each method; lines join computed points.",
            alone=True,
        ),
        *(Note("info", text) for text in notes),
        Table(
            f"Scan of {len(group)} geometries",
            (
                *(
                    f"#{axis}",
                    "#E(HF) / Eh",
                    "#E(corr) / Eh",
                    f"#E({title}) / Eh",
                    "#above lowest / kJ/mol",
                ),
                *("#warnings", "result"),
            ),
            rows,
            sortable=True,
            folded=True,
        ),
    ]
    best = above[title].index(min(above[title]))
    answer = Tile(
        f"lowest at {axis}", xs[best], f"E({title}) {rows[best][3]} Eh; {len(group)} geometries"
    )
    return answer, Section(anchor, "Scan", blocks)
