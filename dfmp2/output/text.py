"""What commands print: the reports of a result, of a study and of a prepared file, pair energies, last lines."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

from dfmp2.molecule.text import printable
from dfmp2.mp2.result import MP2Result
from dfmp2.output.document import Facts, Section, to_text
from dfmp2.output.report import input_sections, summary
from dfmp2.output.study_report import of_study
from dfmp2.units import format_bytes

if TYPE_CHECKING:
    from dfmp2.output.prepared import Prepared
    from dfmp2.output.study import Study


def report(result: MP2Result) -> str:
    """The report of a result, one string ending in a newline."""
    return to_text([f"dfmp2 {result.provenance.version}: density-fitted MP2"], summary(result))


def study_report(study: Study) -> str:
    """The report of a study, one string ending in a newline."""
    return to_text([f"dfmp2 {study.version}: {study.title}"], of_study(study))


def last_line(result: MP2Result, output: str) -> str:
    """One unmistakable line for the end of a finished run."""
    found = result.gradient
    slope = "" if found is None else f", |gradient| = {found.norm:.8f} Eh/bohr ({found.scaling})"
    return (
        f"dfmp2 finished: E({result.options.correlation.title}, total) = {result.total_energy:.10f} Eh, "
        f"E(corr) = {result.correlation_energy:.10f} Eh{slope} -> {printable(output)}"
    )


def pair_table(result: MP2Result) -> str:
    """All stored pair energies, one line per pair, indices from 1 over the correlated orbitals."""
    if result.quadrature is not None:
        return f"{result.method} has no pair energies\n"
    lines = [f"{'channel':<18}{'i':>5}{'j':>5}{'energy / Eh':>22}"]
    for name, matrix in result.pairs.channels().items():
        mirrored = name != "opposite_spin" or result.reference.nspin == 1
        for i, row in enumerate(matrix):
            for j, energy in enumerate(row):
                if not mirrored or i <= j:
                    lines.append(f"{name:<18}{i + 1:>5}{j + 1:>5}{energy:>22.14f}")
    return "\n".join(lines) + "\n"


def prepared_report(prepared: Prepared, path: str) -> str:
    """What a prepared file holds, ending in a newline."""
    made, memory = prepared.provenance, format_bytes(prepared.memory.measured_peak)
    shapes = " and ".join(" x ".join(map(str, shape)) for shape in prepared.shapes)
    spent = ", ".join(f"{name} {value:.2f} s" for name, value in asdict(prepared.timings).items() if value)
    facts = [
        ("reference energy", f"{prepared.reference.scf_total_energy:.10f} Eh"),
        ("", f"B {shapes} (occupied, virtual, fitting functions), float64: {format_bytes(prepared.tensor_bytes)}"),
        ("SCF made with", f"--precision {prepared.options.precision}"),
        ("wall time", f"{spent}; peak memory {memory}"),
        ("made", f"{made.created} on {made.host}, {made.threads} threads: {made.command}"),
        *(("warning", text) for text in prepared.diagnostics.warnings),
        ("go on", _go_on(path)),
    ]
    head = f"{path}: prepared by dfmp2 {made.version}, no pair energies yet"
    return to_text([head], [*input_sections(prepared), Section("prepared", "Prepared", [Facts(facts)])])


def prepared_last_line(prepared: Prepared, path: str) -> str:
    """One line for the end of a finished preparation."""
    return printable(
        f"dfmp2 prepared: E(SCF) = {prepared.reference.scf_total_energy:.10f} Eh, B "
        f"{format_bytes(prepared.tensor_bytes)} -> {path}; go on: {_go_on(path)}"
    )


def _go_on(path: str) -> str:
    """The command that computes the pair energies."""
    return shlex.join(["dfmp2", "energy", "--from", os.fspath(path)])
