"""A study as text, JSON and CSV. What is printed after the last run is what `dfmp2 show` prints of the file."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from dfmp2.io.study import Column, Study, plain
from dfmp2.io.text import printable
from dfmp2.result import MP2Result
from dfmp2.summary import describe_field

WIDTH = 78
DIGITS = {"hartree": "{:.10f}", "kJ/mol": "{:.4f}", "kcal/mol": "{:.4f}", "": "{:.8g}"}
HEADINGS = {  # of table columns whose name is long
    "scf_total_energy": "E(SCF)",
    "mp2_same_spin_correlation_energy": "E(SS)",
    "mp2_opposite_spin_correlation_energy": "E(OS)",
    "mp2_correlation_energy": "E(corr)",
    "mp2_total_energy": "E(MP2)",
    "relative_energy": "E - lowest",
    "homo_lumo_gap": "gap",
    "scf_iterations": "cycles",
    "exit_code": "code",
}
RUN_KEYS = (
    "scf_total_energy",
    "mp2_same_spin_correlation_energy",
    "mp2_opposite_spin_correlation_energy",
    "mp2_correlation_energy",
    "mp2_total_energy",
    "scs_mp2_correlation_energy",
    "sos_mp2_correlation_energy",
)


def report(study: Study, figure: str = "") -> str:
    """The whole report, one string ending in a newline; `figure` is a plot in characters, put behind the table."""
    sections = [
        [f"dfmp2 {study.version}: {study.title}", *(["INCOMPLETE: runs are missing"] if not study.complete else [])],
        [*_heading("Runs (groups /runs/NAME of the file)"), *_runs(study)],
        *([[*_heading("Table"), *_table(study.table)]] if study.table else []),
        *([figure.splitlines()] if figure else []),
        *([[*_heading("Results"), *_values(study)]] if study.values else []),
        *([[*_heading("Notes"), *study.notes]] if study.notes else []),
    ]
    return "\n".join(printable(line) for section in sections for line in (*section, "")) + "\n"


def to_json(study: Study) -> str:
    """The object `--json` prints: settings and values flat, the table by column, the runs by name; energies in Eh."""
    payload: dict[str, Any] = {
        "study": study.kind,
        "title": study.title,
        "status": study.status,
        **study.settings,
        **{name: plain(value.value) for name, value in study.values.items()},
        "notes": list(study.notes),
        "table": {
            name: [plain(x) if isinstance(x, float) else x for x in column.values]
            for name, column in study.table.items()
        },
        "runs": {name: _run(result) for name, result in study.runs.items()},
        "provenance": {"version": study.version, "command": study.command, "created": study.created},
    }
    return json.dumps(payload, indent=2, allow_nan=False) + "\n"


def to_csv(study: Study) -> str:
    """The table as comma-separated values: headings `name [unit]`, all digits, nothing where a number is missing."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([f"{name} [{column.units}]" if column.units else name for name, column in study.table.items()])
    for row in zip(*(column.values for column in study.table.values()), strict=True):
        writer.writerow([x if isinstance(x, str) else repr(_whole(x)) if math.isfinite(x) else "" for x in row])
    return text.getvalue()


def _whole(x: float) -> float | int:
    return int(x) if x.is_integer() and abs(x) < 1e9 else x


def _run(result: MP2Result) -> dict[str, Any]:
    molecule, certificate = result.molecule, result.certificate
    return {
        "formula": molecule.formula,
        "charge": molecule.charge,
        "multiplicity": molecule.multiplicity,
        "point_charges": describe_field(molecule, result.orbital_basis),
        "relativity": result.options.relativity,
        "basis": result.orbital_basis.name,
        **{name: getattr(result, name) for name in RUN_KEYS},
        "frozen_core_orbitals": result.sizes.frozen_core,
        "nao": result.sizes.nao,
        "backend": result.backend,
        "precision": result.precision,
        "precision_error": None if certificate is None else plain(certificate.correlation_error),
        "scf_iterations": result.reference.cycles,
        "seconds": result.timings.total,
    }


def _runs(study: Study) -> list[str]:
    width = max([4, *(len(name) for name in study.runs)])
    lines = [
        f"{'name':<{width}}  {'E(SCF) / Eh':>18}{'E(corr) / Eh':>16}{'core':>6}{'AO':>6}{'cycles':>8}{'s':>8}  molecule"
    ]
    for name, result in study.runs.items():
        basis = result.orbital_basis.name
        lines.append(
            f"{name:<{width}}  {result.scf_total_energy:>18.10f}{result.mp2_correlation_energy:>16.10f}"
            f"{result.sizes.frozen_core:>6}{result.sizes.nao:>6}{result.reference.cycles:>8}"
            f"{result.timings.total:>8.2f}  {result.molecule.formula}, {basis}"
        )
    return lines


def _table(table: dict[str, Column] | Any) -> list[str]:
    columns = []
    for name, column in table.items():
        heading = HEADINGS.get(name, name.replace("_", " ")) + (
            f" / {'Eh' if column.units == 'hartree' else column.units}" if column.units else ""
        )
        cells = [_cell(x, column.units) for x in column.values]
        columns.append((heading, cells, all(isinstance(x, str) for x in column.values)))
    widths = [
        max(len(heading), *(len(cell) for cell in cells)) if cells else len(heading) for heading, cells, _ in columns
    ]

    def line(texts: list[str]) -> str:
        parts = [
            f"{text:<{width}}" if left else f"{text:>{width}}"
            for text, width, (_, _, left) in zip(texts, widths, columns, strict=True)
        ]
        return "  ".join(parts).rstrip()

    rows = zip(*(cells for _, cells, _ in columns), strict=True)
    return [line([heading for heading, _, _ in columns]), *(line(list(row)) for row in rows)]


def _cell(value: Any, units: str) -> str:
    if isinstance(value, str):
        return value
    if 0 < abs(value) < 1e-6:
        return f"{value:.1e}"
    return DIGITS.get(units, "{:.8g}").format(value) if math.isfinite(value) else "-"


def _values(study: Study) -> list[str]:
    """Numbers in hartree with the same in other units on one line, the others as they are."""
    width = max(len(name) for name in study.values)
    lines = []
    for name, value in study.values.items():
        if name.endswith(("_kj_per_mol", "_kcal_per_mol")):
            continue
        units = "Eh" if value.units == "hartree" else value.units
        text = f"{name:<{width}} {_cell(value.value, value.units):>18} {units}"
        for suffix, unit in (("kj_per_mol", "kJ/mol"), ("kcal_per_mol", "kcal/mol")):
            other = study.values.get(f"{name}_{suffix}")
            text += "" if other is None else f" {other.value:>12.4f} {unit}"
        lines.append(text.rstrip())
    return lines


def _heading(text: str) -> list[str]:
    return [text, "-" * WIDTH]
