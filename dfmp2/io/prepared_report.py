"""What a prepared file holds, as text and as JSON."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict
from typing import Any

from dfmp2.io.report import fitting_errors
from dfmp2.io.text import printable
from dfmp2.prepared import Prepared
from dfmp2.summary import describe, describe_field, fitting_error, plain, say_field, scf_solution
from dfmp2.units import format_bytes

STAGES = ("scf", "integrals", "transform", "fit", "total")


def to_dict(prepared: Prepared) -> dict[str, Any]:
    """The object that `dfmp2 prepare --json` prints; energies in hartree, times in s."""
    reference, molecule = prepared.reference, prepared.molecule
    return {
        "name": molecule.name,
        "formula": molecule.formula,
        "charge": molecule.charge,
        "multiplicity": molecule.multiplicity,
        "point_charges": describe_field(molecule, prepared.orbital_basis),
        "reference": reference.kind,
        "relativity": prepared.options.relativity,
        "scf_type": reference.scf_type,
        "basis": prepared.orbital_basis.name,
        "scf_auxbasis": None if prepared.scf_fitting is None else describe(prepared.scf_fitting),
        "auxbasis": describe(prepared.mp2_fitting),
        "scf_fitting_error": fitting_error(prepared.scf_fitting, molecule),
        "mp2_fitting_error": fitting_error(prepared.mp2_fitting, molecule),
        "scf_total_energy": reference.scf_total_energy,
        "scf_iterations": reference.cycles,
        **plain(scf_solution(reference)),
        "sizes": asdict(prepared.sizes),
        "fitted_tensor": {"shapes": [list(shape) for shape in prepared.shapes], "bytes": prepared.tensor_bytes},
        "diagnostics": plain(asdict(prepared.diagnostics)),
        "timings": {k: v for k, v in asdict(prepared.timings).items() if k in STAGES},
        "memory": asdict(prepared.memory),
        "storage": asdict(prepared.storage),
        "provenance": asdict(prepared.provenance),
    }


def to_json(prepared: Prepared) -> str:
    """JSON text with a newline."""
    return json.dumps(to_dict(prepared), indent=2) + "\n"


def report(prepared: Prepared, path: str) -> str:
    """The file for reading, ending in a newline."""
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
        "   ".join(f"{name} {timings[name]:.2f} s" for name in STAGES)
        + f"; peak memory {format_bytes(prepared.memory.measured_peak)}",
        f"made {made.created} on {made.host}, {made.threads} threads: {made.command}",
        *(f"warning: {text}" for text in prepared.diagnostics.warnings),
        f"go on: {go_on(path)}",
    ]
    return "\n".join(printable(line) for line in lines) + "\n"


def last_line(prepared: Prepared, path: str) -> str:
    """One line for the end of a finished preparation."""
    return printable(
        f"dfmp2 prepared: E(SCF) = {prepared.reference.scf_total_energy:.10f} Eh, B "
        f"{format_bytes(prepared.tensor_bytes)} -> {path}; go on: {go_on(path)}"
    )


def go_on(path: str) -> str:
    """The command that computes the pair energies."""
    return shlex.join(["dfmp2", "energy", "--from", os.fspath(path)])
