"""A study on a page: an interaction energy, a basis-set limit or a scan, with the runs it was made of.

The numbers are those stored in the study's file (`dfmp2.io.study`); nothing is computed again.
"""

from __future__ import annotations

import json
import math
from typing import Any

from dfmp2.io.study import Column as Stored
from dfmp2.io.study import Study
from dfmp2.report.numbers import ABSENT, energy
from dfmp2.report.page import Block, Cell, Code, Column, Note, Section, Table, Text, cells, columns

CONVERSIONS = {"_kj_per_mol": "kJ/mol", "_kcal_per_mol": "kcal/mol"}  # end of a name -> unit of the converted value
HEADINGS = {"interaction": "Interaction energy", "cbs": "Basis-set limit", "scan": "Scan, as stored"}


def study_section(study: Study) -> Section:
    """What the study found."""
    blocks: list[Block] = [Text(note) for note in study.notes]
    if not study.complete:
        blocks.insert(0, Note("warning", "The study is incomplete: not everything that was asked for has been run."))
    blocks += _values(study)
    if study.table:
        names = tuple(_heading(name, column) for name, column in study.table.items())
        count = max(len(column.values) for column in study.table.values())
        table = tuple(tuple(_cell(column, k) for column in study.table.values()) for k in range(count))
        blocks.append(Table("Table of the study", names, table, sortable=True))
    blocks.append(Code("Command", study.command))
    if study.settings:
        blocks.append(Code("Settings", json.dumps(dict(study.settings), indent=1, ensure_ascii=False), folded=True))
    return Section("study", HEADINGS[study.kind], tuple(blocks))


def _values(study: Study) -> tuple[Table, ...]:
    """Energies with what they are in other units, and everything else."""
    converted = {f"{name}{end}" for name in study.values for end in CONVERSIONS if f"{name}{end}" in study.values}
    energies = {name: item for name, item in study.values.items() if item.units == "hartree"}
    others = {name: item for name, item in study.values.items() if name not in converted and name not in energies}
    ends = [end for end in CONVERSIONS if any(f"{name}{end}" in study.values for name in energies)]
    tables = []
    if energies:
        rows = []
        for name, item in energies.items():
            more = [study.values.get(f"{name}{end}") for end in ends]
            shown = [Cell("") if one is None else Cell(f"{one.value:.4f}", one.value) for one in more]
            rows.append(cells(_words(name), Cell(energy(item.value), item.value), *shown, item.description))
        head = columns("energy", "#Eh", *(f"#{CONVERSIONS[end]}" for end in ends), "meaning")
        tables.append(Table("Energies of the study", head, tuple(rows)))
    if others:
        found = tuple(
            cells(_words(name), Cell(_printed(item.value, item.units), item.value), item.units, item.description)
            for name, item in others.items()
        )
        tables.append(Table("Other results", columns("quantity", "#value", "unit", "meaning"), found))
    return tuple(tables)


def _words(name: str) -> str:
    return name.replace("_", " ")


def study_headline(study: Study) -> tuple[tuple[str, str], ...]:
    """The first numbers of the study, in hartree."""
    found = [(name, item) for name, item in study.values.items() if item.units == "hartree"][:4]
    return (
        *((f"{_words(name)} / Eh", energy(item.value)) for name, item in found),
        ("runs", str(len(study.runs))),
        ("status", study.status),
    )


def _heading(name: str, column: Stored) -> Column:
    unit = f" / {'Eh' if column.units == 'hartree' else column.units}" if column.units else ""
    return Column(f"{_words(name)}{unit}", not _texts(column))


def _cell(column: Stored, place: int) -> Cell:
    value: Any = column.values[place] if place < len(column.values) else math.nan
    return Cell(value) if isinstance(value, str) else Cell(_printed(value, column.units), value)


def _texts(column: Stored) -> bool:
    return all(isinstance(value, str) for value in column.values)


def _printed(value: float, units: str) -> str:
    if not math.isfinite(value):
        return ABSENT
    return energy(value) if units == "hartree" else f"{value:.10g}"
