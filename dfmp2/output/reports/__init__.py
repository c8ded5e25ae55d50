"""Reports on results and studies: sections made of facts, tables and figures.

Here: records of a result as facts, each a readable name, and a number with its unit.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from dfmp2.output.document import (
    ABSENT,
)
from dfmp2.units import format_bytes

LABELS = {  # labels of fields that do not use the name
    "kind": "reference",
    "xc": "functional",
    "grid": "integration grid",
    "grid_points": "points of the grid",
    "exx_total_energy": "exact-exchange energy",
    "energy_xc": "functional of the energy",
    "functional_energy": "energy of that functional",
    "scf_type": "integrals of the SCF",
    "scf_total_energy": "reference energy",
    "cycles": "SCF iterations",
    "ladder": "convergence methods",
    "start": "start orbitals",
    "spin_square": "<S^2>",
    "verdict": "orbital stability",
    "method": "rotations examined",
    "homo_lumo_gap": "HOMO-LUMO gap",
    "smallest_denominator": "smallest MP2 denominator",
    "correlation_error": "95 % bound on the error of E(corr)",
    "same_spin_error": "95 % bound on the error of E(SS)",
    "opposite_spin_error": "95 % bound on the error of E(OS)",
    "largest_pair_error": "largest difference of one pair",
    "seed": "seed of the sample",
    "tolerance": "accepted up to",
    "budget": "memory allowed",
    "measured_peak": "peak memory",
    "fitted_tensor": "B",
    "smd_cds_energy": "SMD-CDS energy",
}
FORMS = {  # suffix of a field's name -> format of its number; energies have ten decimals
    **dict.fromkeys(("error", "tolerance", "allowed", "gain", "condition", "threshold"), ".1e"),
    **dict.fromkeys(("gap", "denominator", "eigenvalue"), ".4f"),
    "constant": ".6g",
    "difference": "+.2e",
    "spin_square": ".6f",
    "seconds": ".2f",
    **dict.fromkeys(
        ("translation", "rotation", "residual", "allowed_energy", "allowed_sum", "allowed_slope"),
        ".1e",
    ),
}
UNITS = {"hartree": " Eh", "hartree/bohr": " Eh/bohr", "s": " s"}
FITTING = ("scf_fitting_error", "mp2_fitting_error")  # of the diagnostics; reported with the bases
OF_CORRELATION = (  # of the diagnostics
    "smallest_denominator",
    "metric_condition",
    "metric_dropped",
    "metric_threshold",
)
OF_CERTIFICATE = ("sampled", "pairs", "repeated_in_fp64")  # reported elsewhere
SCF_OF_CHECK = ("scf_total_energy", "scf_difference")  # --check reuses the SCF of the run


def record_facts(
    record: Any, start: str = "", leave: Collection[str] = ()
) -> list[tuple[str, str]]:
    """The fields of a record except arrays, nested records and warnings, under the names they have
    in its file."""
    facts = []
    for field in fields(record):
        name = field.name
        value = getattr(record, field.name)
        unit = field.metadata["units"]
        if (unit == "byte" and not value) or name in ("warnings", *leave):
            continue
        if isinstance(value, str | int | float | tuple) and value not in ("", ()):
            facts.append(
                (f"{start}{LABELS.get(name, name.replace('_', ' '))}", _said(name, value, unit))
            )
    return facts


def _said(name: str, value: Any, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(_said(name, part, unit) for part in value)
    if unit == "byte":
        return format_bytes(value)
    if not isinstance(value, float):
        return str(value)
    if not value:
        return f"0{UNITS.get(unit, '')}"
    form = next((form for end, form in FORMS.items() if name.endswith(end)), ".10f")
    if math.isfinite(value):
        return f"{value:{form}}{UNITS.get(unit, '')}"
    return ABSENT
