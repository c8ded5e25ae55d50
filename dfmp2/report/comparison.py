"""Several results side by side: the table of all, and what each group of them shows (`dfmp2.report.kinship`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfmp2.extrapolation import correlation_formula
from dfmp2.report.cardinal import cardinal
from dfmp2.report.cost import STAGES
from dfmp2.report.kinship import Entry, Kinship
from dfmp2.report.numbers import difference_cell, energy, energy_cell, seconds_cell, size
from dfmp2.report.page import Block, Cell, Facts, Figure, Note, Section, Table, Text, cells, columns
from dfmp2.report.plot import Curve, curves, magnitudes
from dfmp2.report.scan import scan_section
from dfmp2.report.single import method_name

MOST_LANES = 24  # rows of the plot of differences


def comparison_sections(entries: Sequence[Entry], kin: Kinship) -> tuple[Section, ...]:
    """The overview and one section for every group."""
    return (
        Section("overview", "Comparison", (*_verdict(entries, kin), overview(entries))),
        *group_sections(kin),
    )


def group_sections(kin: Kinship) -> tuple[Section, ...]:
    """One section for every group of results that belong together."""
    return (
        *(_lanes(lane, _number("lanes", k, len(kin.lanes))) for k, lane in enumerate(kin.lanes, start=1)),
        *(_series(group, _number("series", k, len(kin.series))) for k, group in enumerate(kin.series, start=1)),
        *(scan_section(group, _number("scan", k, len(kin.scans))) for k, group in enumerate(kin.scans, start=1)),
    )


def overview(entries: Sequence[Entry]) -> Table:
    """One row per result."""
    rows = []
    for entry in entries:
        result = entry.result
        rows.append(
            cells(
                Cell(entry.name, target=f"{entry.anchor}molecule" if entry.anchor else ""),
                result.molecule.formula,
                method_name(result),
                f"{result.backend}, {result.precision}",
                energy_cell(result.scf_total_energy),
                energy_cell(result.mp2_correlation_energy),
                energy_cell(result.mp2_total_energy),
                seconds_cell(result.timings.total),
            )
        )
    head = columns(
        "result", "formula", "method", "backend", "#E(HF) / Eh", "#E(corr) / Eh", "#E(MP2) / Eh", "#time / s"
    )
    return Table(f"{len(entries)} results", head, tuple(rows), sortable=True)


def _number(name: str, k: int, count: int) -> str:
    return name if count == 1 else f"{name}-{k}"


def _verdict(entries: Sequence[Entry], kin: Kinship) -> tuple[Block, ...]:
    """What the results are to each other, and a warning when they are nothing."""
    found = [
        *(f"the same calculation {len(lane)} times" for lane in kin.lanes),
        *(f"a series of {len(group)} basis sets" for group in kin.series),
        *(f"a scan of {len(group)} geometries" for group in kin.scans),
    ]
    blocks: list[Block] = []
    if found:
        blocks.append(Text(f"Found in these {len(entries)} results: {', '.join(found)}."))
    if kin.alone:
        names = ", ".join(entry.name for entry in kin.alone[:10]) + (", ..." if len(kin.alone) > 10 else "")
        which = "These results form no series" if not found else f"In no series with the others: {names}"
        differing = ", ".join(kin.differing)
        blocks.append(
            Note(
                "warning",
                f"{which}. They differ in {differing}; energies of different calculations must not be subtracted from "
                "each other, so they are only listed.",
            )
        )
    return tuple(blocks)


def _lanes(lane: tuple[Entry, ...], anchor: str) -> Section:
    """The same calculation by several backends or precisions: differences to the most exact one."""
    base, *others = lane
    rows = []
    for entry in lane:
        r, b = entry.result, base.result
        estimate = "" if r.certificate is None or r.precision == "fp64" else size(r.certificate.correlation_error)
        gaps: list[str | Cell] = ["reference", "", "", "", ""]
        if entry is not base:
            gaps = [
                difference_cell(r.scf_total_energy - b.scf_total_energy),
                difference_cell(r.mp2_same_spin_correlation_energy - b.mp2_same_spin_correlation_energy),
                difference_cell(r.mp2_opposite_spin_correlation_energy - b.mp2_opposite_spin_correlation_energy),
                difference_cell(r.mp2_correlation_energy - b.mp2_correlation_energy),
                Cell(size(_largest_pair_gap(entry, base)), _largest_pair_gap(entry, base)),
            ]
        rows.append(
            cells(entry.name, f"{r.backend}, {r.precision}", energy_cell(r.mp2_correlation_energy), *gaps, estimate)
        )
    head = ("result", "backend", "#E(corr) / Eh", "#Δ E(HF)", "#Δ E(SS)", "#Δ E(OS)", "#Δ E(corr)", "#largest Δ pair")
    caption = f"Differences to {base.name}, Eh; estimate: the error of E(corr) found by the run's own certificate"
    table = Table(caption, columns(*head, "#estimate"), tuple(rows), sortable=True)
    points = [
        (
            entry.name,
            (
                entry.result.mp2_correlation_energy - base.result.mp2_correlation_energy,
                _estimate(entry),
            ),
        )
        for entry in others[:MOST_LANES]
    ]
    drawing = magnitudes(
        f"Differences of E(corr) to {base.name}",
        points,
        ("difference of E(corr)", "certificate's estimate"),
        "magnitude / Eh, logarithmic",
    )
    said = f"Magnitude of the difference of E(corr) to {base.name}, and what the run itself estimated."
    if len(others) > MOST_LANES:
        said += f" The first {MOST_LANES} of {len(others)} are drawn."
    gaps_corr = [abs(e.result.mp2_correlation_energy - base.result.mp2_correlation_energy) for e in others]
    fastest = min(lane, key=lambda entry: entry.result.timings.total)
    facts = Facts(
        (
            ("compared with", f"{base.name} ({base.result.backend}, {base.result.precision})"),
            ("largest difference of E(corr)", f"{size(max(gaps_corr))} Eh"),
            ("shortest wall time", f"{fastest.result.timings.total:.2f} s, {fastest.name}"),
        )
    )
    blocks = (table, Figure(drawing, said), facts, _stage_times(lane))
    return Section(anchor, "The same calculation, compared", blocks)


def _estimate(entry: Entry) -> float:
    certificate = entry.result.certificate
    return float("nan") if certificate is None or entry.result.precision == "fp64" else certificate.correlation_error


def _largest_pair_gap(entry: Entry, base: Entry) -> float:
    """Largest difference of one pair energy, Eh."""
    theirs = base.result.pairs.channels()
    return max(
        float(np.abs(matrix - theirs[name]).max(initial=0.0)) for name, matrix in entry.result.pairs.channels().items()
    )


def _stage_times(lane: Sequence[Entry]) -> Table:
    rows = tuple(
        cells(
            entry.name,
            *(seconds_cell(getattr(entry.result.timings, stage)) for stage in (*STAGES, "total")),
            Cell(str(entry.result.provenance.threads)),
            entry.result.provenance.host,
        )
        for entry in lane
    )
    head = columns("result", *(f"#{name}" for name in STAGES.values()), "#total", "#threads", "host")
    return Table("Wall time per stage, s", head, rows, sortable=True)


def _series(group: tuple[Entry, ...], anchor: str) -> Section:
    """One molecule and method in several bases, with the two-point limit where it is defined."""
    known = [cardinal(entry.result.orbital_basis.name) for entry in group]
    rows = []
    for entry, found in zip(group, known, strict=True):
        r = entry.result
        place = Cell(str(found.number), found.number) if found else Cell("")
        rows.append(
            cells(r.orbital_basis.name, place, str(r.sizes.nao), energy_cell(r.scf_total_energy))
            + cells(energy_cell(r.mp2_correlation_energy), energy_cell(r.mp2_total_energy), entry.name)
        )
    blocks: list[Block] = []
    rest, limit = _limit(group)
    if limit is not None:
        correlation, total, scf, name = limit
        rows.append(
            cells(name, "∞", "", energy_cell(scf), energy_cell(correlation), energy_cell(total), "extrapolated")
        )
    head = columns("basis", "#cardinal number", "#functions", "#E(HF) / Eh", "#E(corr) / Eh", "#E(MP2) / Eh", "result")
    blocks.append(Table("Basis series, smallest first", head, tuple(rows)))
    drawn = [
        Curve("E(corr)", tuple((float(k), e.result.mp2_correlation_energy) for k, e in enumerate(group))),
        Curve("E(HF) - E(HF, largest basis)", tuple((float(k), _above(e, group)) for k, e in enumerate(group))),
    ]
    labels = [(float(k), e.result.orbital_basis.name) for k, e in enumerate(group)]
    if limit is not None:
        drawn[0] = Curve("E(corr), extrapolated at the right end", (*drawn[0].points, (float(len(group)), limit[0])))
        labels.append((float(len(group)), "limit"))
    drawing = curves("Energies along the basis series", drawn, "orbital basis", "energy / Eh", labels)
    blocks.append(Figure(drawing, "Correlation energy, and Hartree-Fock energy above that of the largest basis, Eh."))
    return Section(anchor, "Basis series", (*blocks, *rest))


def _above(entry: Entry, group: Sequence[Entry]) -> float:
    return entry.result.scf_total_energy - group[-1].result.scf_total_energy


def _limit(group: Sequence[Entry]) -> tuple[tuple[Block, ...], tuple[float, float, float, str] | None]:
    """Remarks, and E(corr), E(MP2), E(HF) and name of the two-point limit of the two largest sets, or None."""
    known = [(cardinal(entry.result.orbital_basis.name), entry.result) for entry in group]
    ranked = sorted(((c, r) for c, r in known if c is not None), key=lambda one: one[0].number)
    families = {c.family for c, _ in ranked}
    if len(ranked) < len(known) or len(families) > 1 or ranked[-1][0].number - ranked[-2][0].number != 1:
        said = (
            "No basis-set limit is given: that takes two sets of one correlation-consistent family (such as cc-pVTZ "
            "and cc-pVQZ) with neighbouring cardinal numbers, and nothing but that family in the series."
        )
        return (Note("info", said),), None
    (small, lower), (large, upper) = ranked[-2:]
    formula = correlation_formula("helgaker", large.family, small.number, large.number)
    correlation = formula.limit(lower.mp2_correlation_energy, upper.mp2_correlation_energy, small.number, large.number)
    total, name = upper.scf_total_energy + correlation, f"limit from {small.number}, {large.number}"
    facts = (
        ("E(corr) at the basis-set limit", f"{energy(correlation)} Eh"),
        ("E(HF), largest basis", f"{energy(upper.scf_total_energy)} Eh"),
        ("E(MP2) at the limit", f"{energy(total)} Eh"),
        ("formula", f"(X³ E(X) - Y³ E(Y)) / (X³ - Y³) with X = {large.number}, Y = {small.number}; {formula.source}"),
        ("still missing in the largest basis", f"{1000 * (correlation - upper.mp2_correlation_energy):.3f} mEh"),
    )
    warn: tuple[Block, ...] = ()
    if small.number == 2:
        warn = (Note("warning", "The pair 2, 3 is too small for a reliable limit: use it for trends only."),)
    return (*warn, Facts(facts)), (correlation, total, upper.scf_total_energy, name)
