"""Rows of a validation as lines, Markdown, JSON and columns of a file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from dfmp2.output.document import size
from dfmp2.output.study import Column
from dfmp2.units import counted_text
from dfmp2.validation.entries import Published

PASS, FAIL, SKIPPED, SHOWN = "pass", "fail", "skipped", "shown"
HEADER = f"  {'status':<8}{'quantity':<26}{'dfmp2':>17} {'unit':<8}{'difference':>10}{'allowed':>8}"
ENERGIES = {  # quantity -> its name on a screen
    "nuclear_repulsion_energy": "nuclear repulsion",
    "scf_total_energy": "E(SCF)",
    "hf_total_energy": "E(HF)",
    "functional_energy": "E(functional)",
    "mp2_same_spin_correlation_energy": "same spin",
    "mp2_opposite_spin_correlation_energy": "opposite spin",
    "mp2_correlation_energy": "E(corr)",
    "mp2_doubles_energy": "doubles",
    "mp2_singles_energy": "singles",
    "mp2_total_energy": "E(MP2)",
    "same_spin_correlation_energy": "same spin",
    "opposite_spin_correlation_energy": "opposite spin",
    "correlation_energy": "E(corr)",
    "total_energy": "E",
    "rpa_correlation_energy": "E(RPA)",
    "scs_mp2_correlation_energy": "SCS-MP2 corr",
    "scs_mp2_total_energy": "E(SCS-MP2)",
    "sos_mp2_total_energy": "E(SOS-MP2)",
}
UNITS = {  # word in the name of a quantity -> unit
    "debye": "debye",
    "gradient": "Eh/bohr",
    "occupation": "",
    "polarizability": "bohr^3",
    "dipole": "e bohr",
}
COLUMNS = {  # key of a row as JSON and column of a file -> description
    "id": "name of the entry",
    "program": "program that produced the reference",
    "quantity": "what is compared",
    "unit": "of the four numbers that follow",
    "reference": "reference value",
    "value": "value of dfmp2, NaN where there is none",
    "difference": "value - reference",
    "tolerance": "largest absolute difference that passes, NaN where there is no verdict",
    "status": "pass, fail, skipped, or shown: no verdict",
    "reason": "why this tolerance; of a failure or a skip, what happened",
    "source": "where the reference is published",
}
NUMBERS = ("reference", "value", "difference", "tolerance")  # of COLUMNS


@dataclass(frozen=True, slots=True)
class QuantityRow:
    """The outcome for one quantity, in its `unit`; None for missing numbers.

    Attributes
    ----------
    id, quantity : identify the number
    maker, version : program that produced the reference
    reference, value : theirs, ours
    tolerance : largest |difference| accepted, including that of the certificate; None without a
        verdict
    status : "pass", "fail", "skipped" or "shown"
    reason : reason for the tolerance, or for a failure or skip
    source : where the reference is published
    published : a program's published agreement with the reference, or None
    """

    id: str
    maker: str
    version: str
    quantity: str
    reference: float | None
    value: float | None
    tolerance: float | None
    status: str
    reason: str
    source: str
    published: Published | None = None

    @property
    def program(self) -> str:
        """The program with its version."""
        return f"{self.maker} {self.version}".strip()

    @property
    def unit(self) -> str:
        """Unit of the quantity, "" for a dimensionless number."""
        words = self.quantity.split()
        for word, unit in UNITS.items():
            if word in words:
                return unit
        return "Eh"

    @property
    def short_name(self) -> str:
        """The name of the quantity on a screen."""
        *before, name = self.quantity.split()
        words = [*before, ENERGIES.get(name, name)]
        return " ".join(words).replace("correlation", "corr").removesuffix(" / debye")

    @property
    def difference(self) -> float | None:
        """Ours - theirs."""
        if self.value is None or self.reference is None:
            return None
        return self.value - self.reference


Tally = dict[str, int]  # number of values by outcome, a key of COUNTED
COUNTED = {"passed": PASS, "failed": FAIL, "skipped": SKIPPED, "shown": SHOWN}


def tally(rows: Iterable[QuantityRow]) -> Tally:
    """Numbers of rows by outcome."""
    found = Counter(row.status for row in rows)
    return {name: found[status] for name, status in COUNTED.items()}


def by_program(rows: Sequence[QuantityRow]) -> dict[str, Sequence[QuantityRow]]:
    """The rows by program that produced the references, in order of appearance, and under "all"."""
    names = dict.fromkeys(row.maker for row in rows)
    return {**{name: [row for row in rows if row.maker == name] for name in names}, "all": rows}


def largest(rows: Iterable[QuantityRow]) -> str:
    """The largest difference with a verdict and its unit, whatever the units of others; "" if there
    is none."""
    judged = [
        (abs(d), row.unit)
        for row in rows
        if (d := row.difference) is not None and row.status != SHOWN
    ]
    if not judged:
        return ""
    difference, unit = max(judged, key=lambda pair: (math.isnan(pair[0]), pair))
    return f"{size(difference)} {unit}".rstrip()


def lines_of(rows: Sequence[QuantityRow]) -> list[str]:
    """The rows of one entry as text under its name, no wider than a terminal; the reference is
    implied as value - difference."""
    lines: list[str] = []
    for row in rows:
        head = f"{row.id}: {row.program}"
        if head not in lines:
            lines.append(head)
        lines.append(_line_of_value(row))
        remarks = []
        if row.published:
            remarks.append(f"published: {_published(row)}, {row.published.by}")
        if row.difference is None or row.status == FAIL:
            remarks.append(row.reason)
        lines += [f"          {line}" for text in remarks for line in wrap(text, 70)]
    return lines


def _line_of_value(row: QuantityRow) -> str:
    """The outcome of one quantity, with its numbers if there are any."""
    start = f"  {row.status:<8}{row.short_name:<26}"
    if row.difference is None:
        return start.rstrip()
    allowed = "-" if row.tolerance is None else f"{row.tolerance:.1e}"
    difference = f"{row.difference:.1e}" if row.difference else "0"
    return f"{start}{row.value:>17.10f} {row.unit:<8}{difference:>10}{allowed:>8}"


def line_of_entry(rows: Sequence[QuantityRow]) -> str:
    """The value of an entry closest to its limit, in one line; all failed or skipped ones, as in
    `lines_of`."""
    wrong = [row for row in rows if row.status in (FAIL, SKIPPED)]
    if wrong:
        return "\n".join(lines_of(wrong))
    worst = _closest_to_limit(rows)
    allowed = _allowed(worst, 1)
    return f"{worst.status:<6}{worst.id:<54} {_difference(worst):>7} of {allowed}"


def validation_summary(rows: Sequence[QuantityRow]) -> str:
    """One line per program, the total, and what both sides have in common."""
    lines = [
        f"{'program':<20}{'passed':>8}{'failed':>8}{'skipped':>9}{'shown':>8}{'largest difference':>26}"
    ]
    for name, own in by_program(rows).items():
        numbers = "{passed:>8}{failed:>8}{skipped:>9}{shown:>8}".format(**tally(own))
        lines.append(f"{name:<20}{numbers}{largest(own):>26}")
    lines.append("both sides use fitting sets of the same names: errors of a set are not seen")
    counts = tally(rows)
    judged = counts["passed"] + counts["failed"]
    verdict = f"dfmp2 validate: {counts['passed']} of {counted_text(judged, 'value')} agree"
    if counts["failed"]:
        verdict += f", {counts['failed']} failed"
    lines.append(verdict)
    return "\n".join(lines)


def rows_to_dict(rows: Sequence[QuantityRow], backend: str, precision: str) -> dict[str, Any]:
    """The object that `--json` prints; rows with published agreement have three more keys."""
    counted = {name: tally(own) for name, own in by_program(rows).items()}
    total = counted.pop("all")
    return {
        "entries": [_row_dict(row) for row in rows],
        "summary": {**total, "programs": counted},
        "backend": backend,
        "precision": precision,
    }


def columns(rows: Sequence[QuantityRow]) -> dict[str, Column]:
    """The rows as columns of a file; numbers have a unit only if all rows share it."""
    units = {row.unit.replace("Eh", "hartree") for row in rows}
    shared = units.pop() if len(units) == 1 else ""
    found = {}
    for name, description in COLUMNS.items():
        unit = shared if name in NUMBERS else ""
        found[name] = Column([getattr(row, name) for row in rows], unit, description)
    return found


def markdown(rows: Sequence[QuantityRow], table: str) -> str:
    """The tables of the documentation: per program and per entry, or, for trnsci, one row per
    published number."""
    if table == "trnsci":
        header = (
            "entry|dfmp2 / Eh|reference / Eh|by|our difference|published difference|published by"
        )
        return _table(header, map(_published_cells, rows))
    programs = [
        (name, len(own), *tally(own).values(), largest(own))
        for name, own in by_program(rows).items()
    ]
    entries = []
    for name in dict.fromkeys(row.id for row in rows):
        own = [row for row in rows if row.id == name]
        worst = _closest_to_limit(own)
        cells = name, worst.program, len(own), worst.quantity, _difference(worst)
        entries.append((*cells, _allowed(worst, 0), worst.unit))
    first = _table("reference|values|passed|failed|skipped|shown|largest difference", programs)
    return f"{first}\n\n" + _table(
        "entry|reference|values|closest to its limit|difference|allowed|unit", entries
    )


def _published_cells(row: QuantityRow) -> tuple[str, ...]:
    """The cells of a published number of trnsci."""
    return (
        row.id.removeprefix("trnsci-"),
        _energy(row.value),
        _energy(row.reference),
        row.program,
        _difference(row),
        _published(row),
        row.published.by if row.published else "",
    )


def _closest_to_limit(rows: Sequence[QuantityRow]) -> QuantityRow:
    """The row with the largest difference in units of its limit; one that is no number comes
    first."""

    def in_limits(row: QuantityRow) -> float:
        off = abs(row.difference or 0.0) / (row.tolerance or 1.0)
        return math.inf if math.isnan(off) else off

    return max(rows, key=in_limits)


def _allowed(row: QuantityRow, digits: int) -> str:
    """The largest difference that passes."""
    if row.tolerance is None:
        return "no verdict"
    return f"{row.tolerance:.{digits}e}"


def _row_dict(row: QuantityRow) -> dict[str, Any]:
    cells = {name: getattr(row, name) for name in COLUMNS}
    item = {
        name: None if isinstance(x, float) and not math.isfinite(x) else x
        for name, x in cells.items()
    }
    if row.published is not None:
        item["published_difference"] = row.published.difference
        item["published_bound"] = row.published.bound
        item["published_by"] = row.published.by
    return item


def _table(header: str, rows: Iterable[Sequence[object]]) -> str:
    names = header.split("|")
    return "\n".join(
        "| " + " | ".join(map(str, cells)) + " |" for cells in (names, ["---"] * len(names), *rows)
    )


def _energy(value: float | None) -> str:
    return "" if value is None else f"{value:.10f}"


def _difference(row: QuantityRow) -> str:
    """The difference, or the outcome if there is none."""
    failed = " (fail)" if row.status == FAIL else ""
    if row.difference is None:
        return row.status
    return f"{abs(row.difference):.1e}{failed}"


def _published(row: QuantityRow) -> str:
    if row.published is None:
        return ""
    known = row.published.difference
    if known is None:
        return f"< {row.published.bound:.0e}"
    return f"{known:.2e}"
