"""Results for other programs: the objects that `--json` prints, the table of a study as CSV;
energies in hartree."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dfmp2.mp2.result import (
    OF_MP2,
    OF_SCALED_MP2,
    OF_THE_METHOD,
    MP2Result,
    calculation,
    fitting_error_of_atoms,
    plain,
    scf_solution,
)

if TYPE_CHECKING:
    from dfmp2.mp2.prepared import Prepared
    from dfmp2.output.study import Study

RUN_KEYS = (  # of a result that are also those of a run of a study
    "formula",
    "charge",
    "multiplicity",
    "symbols",
    "real",
    "geometry",
    "point_charges",
    "relativity",
    "basis",
    "scf_total_energy",
    "method",
    *OF_THE_METHOD,
    *OF_MP2,
    *OF_SCALED_MP2,
    "scs_mp2_total_energy",
    "sos_mp2_total_energy",
    "scf_dipole_moment",
    "frozen_core_orbitals",
    "backend",
    "precision",
    "scf_iterations",
)
OF_A_GRADIENT = (  # where the run has one
    "total_gradient",
    "mp2_total_gradient",
    "gradient_method",
    "gradient_norm",
)


def to_json(result: MP2Result, output: str | None) -> str:
    """A result and its file: one object, 17 significant digits where they are needed, with a
    newline."""
    return _json({**result.to_dict(), "output": output})


def study_json(study: Study, output: str) -> str:
    """A study and its file: settings and values flat, the table by column, the runs by name."""
    budgets = {"error_budget": study.error_budget}
    if study.uncorrected_error_budget is not None:
        budgets["uncorrected_error_budget"] = study.uncorrected_error_budget
    stated = {
        name: None if budget is None else plain(budget.to_dict())
        for name, budget in budgets.items()
    }
    return _json(
        {
            "study": study.kind,
            "title": study.title,
            "status": study.status,
            **study.settings,
            **{name: plain(value.value) for name, value in study.values.items()},
            **{name: array.value.tolist() for name, array in study.arrays.items()},
            **stated,
            "notes": list(study.notes),
            "warnings": [
                {"text": warned.text, "runs": list(warned.runs)} for warned in study.all_warnings
            ],
            "table": {name: plain(list(column.values)) for name, column in study.table.items()},
            "runs": {name: _run(result) for name, result in study.runs.items()},
            "value_units": {
                name: value.units
                for kind in (study.values, study.arrays)
                for name, value in kind.items()
            },
            "table_units": {name: column.units for name, column in study.table.items()},
            "output": output,
            "provenance": {
                "version": study.version,
                "command": study.command,
                "created": study.created,
            },
        }
    )


def study_csv(study: Study) -> str:
    """The table as comma-separated values: headings `name [unit]`, all digits, nothing where a
    number is missing."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            f"{name} [{column.units}]" if column.units else name
            for name, column in study.table.items()
        ]
    )
    for row in zip(*(column.values for column in study.table.values()), strict=True):
        writer.writerow(
            [x if isinstance(x, str) else repr(_whole(x)) if math.isfinite(x) else "" for x in row]
        )
    return text.getvalue()


def prepared_json(prepared: Prepared, output: str) -> str:
    """What a prepared file holds."""
    reference, molecule = prepared.reference, prepared.molecule
    return _json(
        {
            **calculation(prepared),
            "scf_fitting_error": fitting_error_of_atoms(prepared.scf_fitting, molecule),
            "mp2_fitting_error": fitting_error_of_atoms(prepared.mp2_fitting, molecule),
            "scf_total_energy": reference.scf_total_energy,
            "hf_total_energy": reference.hf_total_energy,
            "scf_iterations": reference.cycles,
            **plain(scf_solution(reference)),
            "sizes": asdict(prepared.sizes),
            "fitted_tensor": {
                "shapes": [list(shape) for shape in prepared.shapes],
                "bytes": prepared.tensor_bytes,
            },
            "diagnostics": plain(asdict(prepared.diagnostics)),
            "timings": {k: v for k, v in asdict(prepared.timings).items() if k != "pair_energies"},
            "memory": asdict(prepared.memory),
            "storage": asdict(prepared.storage),
            "provenance": asdict(prepared.provenance),
            "output": output,
        }
    )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _whole(x: float) -> float | int:
    if x.is_integer() and abs(x) < 1e9:
        return int(x)
    return x


def _run(result: MP2Result) -> dict[str, Any]:
    found, certificate = result.to_dict(), result.certificate
    return {
        **{key: found[key] for key in (*RUN_KEYS, *OF_A_GRADIENT) if key in found},
        "nao": result.sizes.nao,
        "precision_error": None if certificate is None else plain(certificate.correlation_error),
        "seconds": result.timings.total,
    }
