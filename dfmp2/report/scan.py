"""A scan: the same atoms and method at several geometries, energies along the coordinate that changes."""

from __future__ import annotations

from collections.abc import Sequence

from dfmp2.report.coordinate import find_coordinate
from dfmp2.report.kinship import Entry
from dfmp2.report.numbers import energy, energy_cell
from dfmp2.report.page import Block, Cell, Facts, Figure, Note, Section, Table, cells, columns
from dfmp2.report.plot import Curve, curves


def scan_section(group: Sequence[Entry], anchor: str) -> Section:
    """Table and plot of a scan, in the order of its coordinate, or of the files when there is none."""
    coordinate = find_coordinate([entry.result.molecule for entry in group])
    blocks: list[Block] = []
    if coordinate is None:
        name, axis, values = "#geometry", "geometry, in the order given", [float(k) for k in range(1, len(group) + 1)]
        digits = 0
        blocks.append(
            Note("info", "No single bond, angle, torsion or distance tells these geometries apart: they are counted.")
        )
    else:
        name = axis = f"{coordinate.name} / {coordinate.unit}"
        name, values, digits = f"#{name}", list(coordinate.values), 4 if coordinate.unit == "angstrom" else 2
        if coordinate.others:
            blocks.append(
                Note("info", f"Other coordinates of this kind change as well; the {coordinate.name} changes most.")
            )
    ordered = sorted(zip(values, group, strict=True), key=lambda one: one[0])
    kinds = {
        "HF": [entry.result.scf_total_energy for _, entry in ordered],
        "MP2": [entry.result.mp2_total_energy for _, entry in ordered],
        "SCS-MP2": [e.result.scf_total_energy + e.result.scs_mp2_correlation_energy for _, e in ordered],
    }
    lowest = min(kinds["MP2"])
    rows = tuple(
        cells(
            Cell(f"{value:.{digits}f}", value),
            energy_cell(entry.result.scf_total_energy),
            energy_cell(entry.result.mp2_correlation_energy),
            energy_cell(entry.result.mp2_total_energy),
            Cell(f"{1000 * (entry.result.mp2_total_energy - lowest):.4f}", entry.result.mp2_total_energy - lowest),
            Cell(f"{len(entry.result.diagnostics.warnings)}"),
            entry.name,
        )
        for value, entry in ordered
    )
    head = (name, "#E(HF) / Eh", "#E(corr) / Eh", "#E(MP2) / Eh", "#above lowest / mEh", "#warnings", "result")
    blocks.append(Table(f"Scan of {len(group)} geometries", columns(*head), rows, sortable=True))
    drawn = [
        Curve(kind, tuple((x, 1000 * (e - min(energies))) for (x, _), e in zip(ordered, energies, strict=True)))
        for kind, energies in kinds.items()
    ]
    drawing = curves(f"Energies along the {axis}", drawn, axis, "energy above the lowest of its curve / mEh")
    caption = "Total energies above the lowest point of each method, mEh; lines join computed points."
    blocks.append(Figure(drawing, caption))
    at, best = min(ordered, key=lambda one: one[1].result.mp2_total_energy)
    unit = "" if coordinate is None else f" {coordinate.unit}"
    facts = (
        ("coordinate", axis if coordinate is None else coordinate.name),
        ("range", f"{ordered[0][0]:.{digits}f} to {ordered[-1][0]:.{digits}f}{unit}"),
        ("lowest computed E(MP2)", f"{energy(best.result.mp2_total_energy)} Eh at {at:.{digits}f}{unit}"),
    )
    blocks.append(Facts(facts))
    warned = sum(bool(entry.result.diagnostics.warnings) for entry in group)
    if warned:
        blocks.insert(0, Note("warning", f"{warned} of these runs gave warnings: see the sections of the results."))
    return Section(anchor, "Scan", tuple(blocks))
