"""What commands print: the reports of a result, of a study and of a prepared file, pair energies, last lines."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

from dfmp2.molecule.text import printable
from dfmp2.mp2.result import MP2Result, describe, say_field
from dfmp2.output.document import to_text
from dfmp2.output.report import fitting_errors, of_study, summary
from dfmp2.units import format_bytes

if TYPE_CHECKING:
    from dfmp2.mp2.prepared import Prepared
    from dfmp2.output.study import Study


def report(result: MP2Result) -> str:
    """The report of a result, one string ending in a newline."""
    return to_text([f"dfmp2 {result.provenance.version}: density-fitted MP2"], summary(result))


def study_report(study: Study) -> str:
    """The report of a study, one string ending in a newline."""
    return to_text([f"dfmp2 {study.version}: {study.title}"], of_study(study))


def last_line(result: MP2Result, output: str) -> str:
    """One unmistakable line for the end of a finished run."""
    return (
        f"dfmp2 finished: E(MP2, total) = {result.mp2_total_energy:.10f} Eh, "
        f"E(corr) = {result.mp2_correlation_energy:.10f} Eh -> {printable(output)}"
    )


def pair_table(result: MP2Result) -> str:
    """All stored pair energies, one line per pair, indices from 1 over the correlated orbitals."""
    lines = [f"{'channel':<18}{'i':>5}{'j':>5}{'energy / Eh':>22}"]
    for name, matrix in result.pairs.channels().items():
        mirrored = name != "opposite_spin" or result.reference.nspin == 1
        for i, row in enumerate(matrix):
            for j, energy in enumerate(row):
                if not mirrored or i <= j:
                    lines.append(f"{name:<18}{i + 1:>5}{j + 1:>5}{energy:>22.14f}")
    return "\n".join(lines) + "\n"


# --- a prepared file ----------------------------------------------------------------------------------

PREPARED_STAGES = ("scf", "integrals", "transform", "fit", "total")


def prepared_report(prepared: Prepared, path: str) -> str:
    """What a prepared file holds, ending in a newline."""
    reference, molecule, sizes = prepared.reference, prepared.molecule, prepared.sizes
    made, timings = prepared.provenance, asdict(prepared.timings)
    shapes = " and ".join(" x ".join(str(n) for n in shape) for shape in prepared.shapes)
    scf = "conventional" if prepared.scf_fitting is None else f"fitted with {describe(prepared.scf_fitting)}"
    relativistic = "X2C-" if prepared.options.relativity == "x2c" else ""
    lines = [
        f"{path}: prepared by dfmp2 {made.version}, no pair energies yet",
        f"{molecule.name}: {molecule.formula}, charge {molecule.charge}, multiplicity {molecule.multiplicity}; "
        f"{relativistic}{reference.kind.upper()}/{prepared.orbital_basis.name}, {scf}; MP2 fitting set "
        f"{describe(prepared.mp2_fitting)}",
        *fitting_errors(molecule, prepared.scf_fitting, prepared.mp2_fitting),
        *filter(None, [say_field(molecule, prepared.orbital_basis)]),
        f"frozen core {sizes.frozen_core} (--frozen-core {prepared.options.frozen_core}), frozen virtual "
        f"{sizes.frozen_virtual}; SCF made with --precision {prepared.options.precision}",
        f"reference energy {reference.scf_total_energy:.10f} Eh, {reference.cycles} cycles",
        *([] if reference.stability is None else [f"orbital stability: {reference.stability.verdict}"]),
        f"B {shapes} (occupied, virtual, fitting functions), float64: {format_bytes(prepared.tensor_bytes)}",
        "   ".join(f"{name} {timings[name]:.2f} s" for name in PREPARED_STAGES)
        + f"; peak memory {format_bytes(prepared.memory.measured_peak)}",
        f"made {made.created} on {made.host}, {made.threads} threads: {made.command}",
        *(f"warning: {text}" for text in prepared.diagnostics.warnings),
        f"go on: {_go_on(path)}",
    ]
    return "\n".join(map(printable, lines)) + "\n"


def prepared_last_line(prepared: Prepared, path: str) -> str:
    """One line for the end of a finished preparation."""
    return printable(
        f"dfmp2 prepared: E(SCF) = {prepared.reference.scf_total_energy:.10f} Eh, B "
        f"{format_bytes(prepared.tensor_bytes)} -> {path}; go on: {_go_on(path)}"
    )


def _go_on(path: str) -> str:
    """The command that computes the pair energies."""
    return shlex.join(["dfmp2", "energy", "--from", os.fspath(path)])
