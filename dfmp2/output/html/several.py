"""Sections of a page of several results: what belongs together side by side, then each of them in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from dfmp2.output.document import (
    ABSENT,
    Block,
    Facts,
    Figure,
    Note,
    Section,
    Table,
    Tile,
    difference,
    energy,
    fixed,
    size,
)
from dfmp2.output.html.svg import Curve, curves
from dfmp2.output.report import STAGES, energies, in_full
from dfmp2.output.series import Entry, Group, Groups, basis_limit, cardinal, find_coordinate
from dfmp2.output.study_report import overview, series_figure
from dfmp2.units import KJ_PER_MOL_PER_HARTREE

MOST_IN_FULL = 8  # results that get sections of their own: a page of 100 stays below 2 MB


Part = tuple[Tile, Section]


def compared(entries: Sequence[Entry], groups: Groups) -> tuple[list[Tile], list[Section]]:
    """What was found in these results: an answer for each group, and its sections."""
    kinds = (("lanes", _lanes, groups.lanes), ("series", _series, groups.series), ("scan", _scan, groups.scans))
    parts = [make(f"{kind}-{k}", group) for kind, make, members in kinds for k, group in enumerate(members, start=1)]
    found = [
        *(f"the same calculation {len(group)} times" for group in groups.lanes),
        *(f"a series of {len(group)} basis sets" for group in groups.series),
        *(f"a scan of {len(group)} geometries" for group in groups.scans),
    ]
    blocks: list[Block] = [f"Found in these {len(entries)} results: {', '.join(found)}."] if found else []
    if groups.alone:
        alone = f"In no series with the others: {first([entry.name for entry in groups.alone], 10)}."
        apart = "energies of different calculations must not be subtracted from each other, so they are only listed."
        who = alone if found else "These results form no series."
        blocks.append(Note("warning", f"{who} They differ in {', '.join(groups.differing)}; {apart}"))
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
        note = Note("info", f"{shown}; dfmp2 report shows any of the others when it is named alone.")
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
            gaps = [getattr(r, f"{name}_energy") - getattr(base.result, f"{name}_energy") for name in names]
            largest = max(largest, abs(gaps[-1]))
            theirs = base.result.pairs.channels()
            pairs = [float(np.abs(m - theirs[k]).max(initial=0.0)) for k, m in r.pairs.channels().items()]
            shown = [*map(difference, gaps), size(max(pairs)) if pairs else ABSENT]
        said = "" if certificate is None or r.precision == "fp64" else size(certificate.correlation_error)
        rows.append((entry.name, f"{r.backend}, {r.precision}", energy(r.correlation_energy), *shown, said))
    changes = (f"#{name} / Eh" for name in ("Δ E(HF)", "Δ E(SS)", "Δ E(OS)", "Δ E(corr)", "largest Δ pair", "bound"))
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
    answer = Tile("largest difference of E(corr) / Eh", size(largest), f"{len(group)} times the same; to {base.name}")
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
    answer = Tile(f"E({title}, total) / Eh", rows[-1][-2], f"in {names[-1]}, the largest of {len(group)} basis sets")
    if limit is not None:
        scf, lower, upper = limit.largest.hf_total_energy, limit.smaller, limit.larger
        found = tuple(map(energy, (scf, limit.correlation, scf + limit.correlation)))
        rows.append((f"limit from {lower}, {upper}", "∞", "", *found, "extrapolated"))
        missing = f"{1000 * (limit.correlation - correlation[-1]):.3f} mEh"
        note = Facts(
            [
                ("formula", f"(X³ E(X) - Y³ E(Y)) / (X³ - Y³), X = {upper}, Y = {lower}; {limit.formula.source}"),
                ("missing in the largest basis", missing),
                *([("beware", "the pair 2, 3 is too small for more than trends")] if lower == 2 else []),
            ]
        )
        answer = Tile(f"E({title}, limit) / Eh", found[-1], f"from X = {lower}, {upper}; {names[-1]} lacks {missing}")
        names, correlation, hartree_fock = [*names, "limit"], [*correlation, limit.correlation], [*hartree_fock, scf]
    blocks: list[Block] = [
        series_figure(names, correlation, hartree_fock),
        note,
        Table(
            "Basis series, smallest first",
            ("basis", "#cardinal number", "#functions", "#E(HF) / Eh", "#E(corr) / Eh", "#E(total) / Eh", "result"),
            rows,
            folded=True,
        ),
    ]
    return answer, Section(anchor, "Basis series", blocks)


def _scan(anchor: str, group: Group) -> Part:
    """The same atoms and method at several geometries, by the coordinate that changes, or in the order given."""
    found = find_coordinate([entry.result.molecule for entry in group])
    values = [float(k) for k in range(1, len(group) + 1)] if found is None else list(found.values)
    digits = 0 if found is None else 4 if found.unit == "angstrom" else 2
    axis = "geometry, in the order given" if found is None else f"{found.name} / {found.unit}"
    ordered = sorted(zip(values, group, strict=True), key=lambda one: one[0])
    xs, results = [f"{x:.{digits}f}" for x, _ in ordered], [entry.result for _, entry in ordered]
    title = results[0].options.correlation.title
    kinds: dict[str, list[float]] = {
        title: [r.total_energy for r in results],
        "HF": [r.hf_total_energy for r in results],
    }
    if title == "MP2":
        kinds["SCS-MP2"] = [r.scf_total_energy + r.scs_mp2_correlation_energy for r in results]
    above = {kind: [KJ_PER_MOL_PER_HARTREE * (e - min(es)) for e in es] for kind, es in kinds.items()}
    rows = [
        (x, *energies(r), f"{gap:.4f}", len(r.diagnostics.warnings), entry.name)
        for x, r, gap, (_, entry) in zip(xs, results, above[title], ordered, strict=True)
    ]
    drawn = [Curve(kind, list(zip(map(float, xs), gaps, strict=True))) for kind, gaps in above.items()]
    notes = []
    if found is None:
        notes.append("No single bond, angle, torsion or distance tells these geometries apart: they are counted.")
    elif found.others:
        notes.append(f"Other coordinates of this kind change as well; the {found.name} changes most.")
    blocks: list[Block] = [
        Figure(
            partial(curves, f"Energies along the {axis}", drawn, axis, "energy above the lowest of its curve / kJ/mol"),
            "Total energies above the lowest point of each method; lines join computed points.",
            alone=True,
        ),
        *(Note("info", text) for text in notes),
        Table(
            f"Scan of {len(group)} geometries",
            (
                *(f"#{axis}", "#E(HF) / Eh", "#E(corr) / Eh", f"#E({title}) / Eh", "#above lowest / kJ/mol"),
                *("#warnings", "result"),
            ),
            rows,
            sortable=True,
            folded=True,
        ),
    ]
    best = above[title].index(min(above[title]))
    answer = Tile(f"lowest at {axis}", xs[best], f"E({title}) {rows[best][3]} Eh; {len(group)} geometries")
    return answer, Section(anchor, "Scan", blocks)
