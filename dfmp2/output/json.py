"""Results for other programs: the objects that `--json` prints; tables of a study, or of several
results with a row of key numbers each, as CSV, JSON, HDF5 or pandas DataFrames. Energies are in
hartree."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError
from dfmp2.host.files import write_atomically
from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.molecule import Molecule, field_energy
from dfmp2.mp2.error_estimates import kohn_sham_grid_error
from dfmp2.mp2.properties import GradientCertificate
from dfmp2.mp2.result import OF_MP2, OF_SCALED_MP2, OF_THE_METHOD, Calculated, Check, MP2Result
from dfmp2.output.hdf5_datasets import Dataset, printed
from dfmp2.output.study import Column, Study, write_table
from dfmp2.scf.reference import Reference

if TYPE_CHECKING:
    from dfmp2.mp2.prepared import Prepared

UNITS = {
    "energy": "hartree",
    "length": "bohr",
    "dipole": "elementary charge * bohr",
    "time": "s",
    "memory": "byte",
}
RUN_KEYS = (  # keys of a result that a run of a study has as well
    "formula",
    "charge",
    "multiplicity",
    "symbols",
    "real",
    "geometry",
    "point_charges",
    "relativity",
    "solvent",
    "solvent_model",
    "solvent_energy",
    "smd_cds_energy",
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
OF_A_GRADIENT = (  # present if the run has a gradient
    "total_gradient",
    "mp2_total_gradient",
    "gradient_method",
    "gradient_norm",
)


def to_json(result: MP2Result, output: str | None) -> str:
    """A result and its file as one JSON object and a newline; up to 17 significant digits."""
    return _json({**result_dict(result), "output": output})


def study_json(study: Study, output: str | None) -> str:
    """A study and its file as JSON: settings and values flat, the table by column, the runs by
    name."""
    budgets = {"error_budget": study.error_budget}
    if study.uncorrected_error_budget is not None:
        budgets["uncorrected_error_budget"] = study.uncorrected_error_budget
    stated = {
        name: None if budget is None else budget.to_dict() for name, budget in budgets.items()
    }
    return _json(
        {
            "study": study.kind,
            "title": study.title,
            "status": study.status,
            **study.settings,
            **{name: value.value for name, value in study.values.items()},
            **{name: array.value.tolist() for name, array in study.arrays.items()},
            **stated,
            "notes": list(study.notes),
            "warnings": [
                {"text": warned.text, "runs": list(warned.runs)} for warned in study.all_warnings
            ],
            "table": {name: list(column.values) for name, column in study.table.items()},
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
    """The table as CSV: headings `name [unit]`, all digits, empty cells for missing numbers; of a
    study without a table its values, one in a row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not study.table:
        writer.writerow(["name", "value", "units", "description"])
        for name, item in study.values.items():
            writer.writerow([name, _cell(item.value), item.units, item.description])
        return text.getvalue()
    writer.writerow(
        f"{name} [{column.units}]" if column.units else name for name, column in study.table.items()
    )
    for row in zip(*(column.values for column in study.table.values()), strict=True):
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: str | float) -> str:
    """A value of the table in CSV: integers without a decimal point, "" for NaN."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return ""
    if value.is_integer() and abs(value) < 1e9:
        return str(int(value))
    return repr(value)


def prepared_json(prepared: Prepared, output: str) -> str:
    """The contents of a prepared file as JSON."""
    reference, molecule = prepared.reference, prepared.molecule
    return _json(
        {
            **calculation_keys(prepared),
            "scf_fitting_error": fitting_error_of_atoms(prepared.scf_fitting, molecule),
            "mp2_fitting_error": fitting_error_of_atoms(prepared.mp2_fitting, molecule),
            "scf_total_energy": reference.scf_total_energy,
            "hf_total_energy": reference.hf_total_energy,
            "scf_iterations": reference.cycles,
            **scf_solution(reference),
            "sizes": asdict(prepared.sizes),
            "fitted_tensor": {
                "shapes": [list(shape) for shape in prepared.shapes],
                "bytes": prepared.tensor_bytes,
            },
            "diagnostics": asdict(prepared.diagnostics),
            "timings": {k: v for k, v in asdict(prepared.timings).items() if k != "pair_energies"},
            "memory": asdict(prepared.memory),
            "storage": asdict(prepared.storage),
            "provenance": asdict(prepared.provenance),
            "output": output,
        }
    )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(json_value(value), indent=2, allow_nan=False) + "\n"


def _run(result: MP2Result) -> dict[str, Any]:
    values = result_dict(result)
    precision_error = None
    if result.certificate is not None:
        precision_error = json_value(result.certificate.correlation_error)
    return {
        **{key: values[key] for key in (*RUN_KEYS, *OF_A_GRADIENT) if key in values},
        "nao": result.sizes.nao,
        "precision_error": precision_error,
        "seconds": result.timings.total,
        **coupled_cluster(result),
    }


def coupled_cluster(result: MP2Result) -> dict[str, Any]:
    """The key that CCSD(T) adds; empty without CCSD(T)."""
    found = result.coupled_cluster
    if found is None:
        return {}
    own = {**asdict(found), "correction": found.correction}
    return {"coupled_cluster": {name: json_value(value) for name, value in own.items()}}


# --- the object of a result ---------------------------------------------------------------------


def result_dict(result: MP2Result) -> dict[str, Any]:
    """A result as a flat dictionary of documented keys; energies in hartree, times in s.

    The keys are listed in docs/reference/json.md. Non-finite numbers become None, since JSON cannot
    hold them.
    """
    reference = result.reference
    molecule = result.molecule
    input_sha256 = hashlib.sha256(molecule.text.encode()).hexdigest()
    values = {
        **calculation_keys(result),
        "nuclear_repulsion_energy": reference.nuclear_repulsion_energy,
        "scf_total_energy": result.scf_total_energy,
        "hf_total_energy": result.hf_total_energy,
        "functional_energy": result.functional_energy,
        "dispersion_energy": result.dispersion_energy,
        "dispersion": _fields(result.dispersion),
        "scf_iterations": reference.cycles,
        "method": result.method,
        **{name: getattr(result, name) for name in OF_THE_METHOD},
        "mp2_singles_energy": result.mp2_singles_energy,
        "rpa_correlation_energy": result.rpa_correlation_energy,
        **{name: getattr(result, name) for name in (*OF_MP2, *OF_SCALED_MP2)},
        "scs_mp2_total_energy": result.scf_total_energy + result.scs_mp2_correlation_energy,
        "sos_mp2_total_energy": result.scf_total_energy + result.sos_mp2_correlation_energy,
        "scf_dipole_moment": _listed(reference.dipole),
        "scf_fitting_error": fitting_error_of_atoms(result.scf_fitting, molecule),
        "mp2_fitting_error": fitting_error_of_atoms(result.mp2_fitting, molecule),
        "scf_fitting_estimate": result.scf_fitting_estimate,
        "error_budget": result.error_budget.to_dict(),
        "backend": result.backend,
        "backend_reason": result.backend_reason,
        "precision": result.precision,
        "precision_certificate": _fields(result.certificate),
        "frozen_core_orbitals": result.sizes.frozen_core,
        "spin_square": reference.spin_square,
        **scf_solution(reference),
        "sizes": asdict(result.sizes),
        "diagnostics": asdict(result.diagnostics),
        "timings": asdict(result.timings),
        "predicted_timings": asdict(result.predicted),
        "memory": asdict(result.memory),
        "storage": _fields(result.storage),
        "check": _check(result.check),
        "fitting_certificate": _fields(result.fitting_certificate),
        "grid_error": grid_error(result),
        "provenance": asdict(result.provenance) | {"input_sha256": input_sha256},
    }
    if result.preparation is not None:
        values["preparation"] = asdict(result.preparation)
    if result.ranks is not None:
        values["ranks"] = asdict(result.ranks)
    if result.quadrature is not None:
        values[result.options.correlation.kind] = asdict(result.quadrature)
    if result.scaled_mp2_correlation_energy is not None:
        values["scaled_mp2_correlation_energy"] = result.scaled_mp2_correlation_energy
    values |= coupled_cluster(result) | _derivatives(result)
    return {key: json_value(value) for key, value in values.items()}


def _fields(part: Any) -> dict[str, Any] | None:
    """The fields of a part of a result by name; None if there is no such part."""
    return None if part is None else asdict(part)


def _listed(values: NDArray[np.float64] | None) -> Any:
    """An array as nested lists; None for None."""
    return None if values is None else values.tolist()


def grid_error(result: MP2Result) -> dict[str, Any] | None:
    """Measured errors of the integration grid, Eh; None if not measured."""
    measured = result.reference.grid_error
    largest = kohn_sham_grid_error(result.reference, len(result.molecule.real_symbols))
    if measured is None or largest is None:
        return None
    correlation = None
    if result.grid_certificate is not None:
        correlation = result.grid_certificate.correlation_error
    return {
        "finer_grid": measured.finer,
        "finer_grid_points": measured.finer_points,
        "scf_total_energy": measured.scf_error,
        "hf_total_energy": measured.exx_error,
        "correlation_energy": correlation,
        "largest_scf_total_energy": largest.value,
        "largest_total_energy": result.grid_error_total,
    }


def _derivatives(result: MP2Result) -> dict[str, Any]:
    """The keys that a gradient or properties add; empty if there is neither."""
    values: dict[str, Any] = {}
    properties = result.properties
    if properties is not None:
        # <S^2> of the correlated wave function would need two-electron densities.
        spin_square = {"scf": result.reference.spin_square, "unrelaxed": None, "relaxed": None}
        values["properties"] = {
            "method": result.options.correlation.title,
            "spin_square": spin_square,
            **properties.to_dict(),
        }
        values["gradient_certificate"] = _certificate(result.gradient_certificate)
    if result.polarizability is not None:
        values["polarizability"] = result.polarizability.to_dict()
    gradient = result.gradient
    if gradient is not None:
        mp2_total_gradient = None
        if not result.options.correlation.double_hybrid:  # nor are its energies those of MP2
            mp2_total_gradient = gradient.total_gradient.tolist()
        values |= {
            "total_gradient": gradient.total_gradient.tolist(),
            "mp2_total_gradient": mp2_total_gradient,
            "point_charge_gradient": _listed(gradient.point_charge_gradient),
            "gradient_method": gradient.scaling,
            "gradient_norm": gradient.norm,
            "gradient_seconds": gradient.seconds,
        }
    return values


def _certificate(certificate: GradientCertificate | None) -> dict[str, Any] | None:
    if certificate is None:
        return None
    return {
        **asdict(certificate),
        "slope_difference": certificate.slope_difference,
        "passed": certificate.passed,
    }


def _check(check: Check | None) -> dict[str, Any] | None:
    """A check; its SCF energies are None, because --check reuses the SCF of the run."""
    if check is None:
        return None
    return {
        **asdict(check),
        "scf_total_energy": None,
        "scf_difference": None,
        "correlation_difference": check.correlation_difference,
        "passed": check.passed,
    }


def calculation_keys(calculated: Calculated) -> dict[str, Any]:
    """Molecule, method and bases: the first keys of both a result and a prepared file."""
    molecule = calculated.molecule
    reference = calculated.reference
    scf_auxbasis = None
    if calculated.scf_fitting is not None:
        scf_auxbasis = calculated.scf_fitting.names
    solvent_model = None
    if calculated.options.solvent is not None:
        solvent_model = calculated.options.solvent_model
    return {
        "name": molecule.name,
        "formula": molecule.formula,
        "charge": molecule.charge,
        "multiplicity": molecule.multiplicity,
        "symbols": list(molecule.symbols),
        "real": [not ghost for ghost in molecule.ghost],
        "geometry": molecule.coordinates.tolist(),
        "units": UNITS,
        "point_charges": describe_field(molecule, calculated.orbital_basis),
        "reference": reference.name,
        "xc": reference.xc,
        "grid": reference.grid_name,
        "grid_points": reference.grid_points,
        "relativity": calculated.options.relativity,
        "solvent": calculated.options.solvent,
        "solvent_model": solvent_model,
        "dielectric_constant": reference.dielectric_constant,
        "solvent_energy": reference.solvent_energy,
        "smd_cds_energy": reference.smd_cds_energy,
        "scf_type": reference.scf_type,
        "basis": calculated.orbital_basis.name,
        "scf_auxbasis": scf_auxbasis,
        "auxbasis": calculated.mp2_fitting.names or None,
    }


def scf_solution(reference: Reference) -> dict[str, Any]:
    """Start, stability and the solutions found; None for whatever was not sought."""
    solutions = None
    if reference.solutions is not None:
        solutions = {"chosen": reference.solutions.chosen, "found": reference.solutions.rows()}
    return {
        "scf_start": reference.start,
        "stability": _fields(reference.stability),
        "scf_solutions": solutions,
    }


def describe_field(molecule: Molecule, basis: BasisSet) -> dict[str, float] | None:
    """Number of point charges, their sum (e) and their energy with the nuclei (Eh); None without
    point charges."""
    if molecule.point_charges is None:
        return None
    return {
        "count": len(molecule.point_charges),
        "total_charge": math.fsum(molecule.point_charges[:, 3]),
        "nuclear_energy": field_energy(molecule, basis.ecp_electrons),
    }


def fitting_error_of_atoms(basis: BasisSet | None, molecule: Molecule) -> dict[str, Any] | None:
    """Error of a fitting set, Eh: sum over the real atoms, and value for each of their elements;
    None if not measured."""
    if basis is None or not basis.errors:
        return None
    real = basis.real_keys(molecule)
    elements = {key: error for key, error in basis.errors.items() if key in real}
    return {"sum": basis.error_of(real), "elements": elements}


def json_value(value: Any) -> Any:
    """The value as JSON can represent it: lists for tuples, None for non-finite numbers."""
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# --- tables of several results --------------------------------------------------------------------

NUMBERS: dict[str, tuple[str, str | None]] = {  # attribute of a result, unit (None for text)
    "formula": ("molecule.formula", None),
    "charge": ("molecule.charge", "elementary charge"),
    "multiplicity": ("molecule.multiplicity", ""),
    "reference": ("reference.name", None),
    "xc": ("reference.xc", None),
    "basis": ("orbital_basis.name", None),
    "method": ("method", None),
    "scf_total_energy": ("scf_total_energy", "hartree"),
    "mean_field_energy": ("mean_field_energy", "hartree"),
    "correlation_energy": ("correlation_energy", "hartree"),
    "dispersion_energy": ("dispersion_energy", "hartree"),
    "total_energy": ("total_energy", "hartree"),
    "mp2_same_spin_correlation_energy": ("mp2_same_spin_correlation_energy", "hartree"),
    "mp2_opposite_spin_correlation_energy": ("mp2_opposite_spin_correlation_energy", "hartree"),
    "mp2_correlation_energy": ("mp2_correlation_energy", "hartree"),
    "mp2_total_energy": ("mp2_total_energy", "hartree"),
    "mp2_total_energy_error": ("error_budget.total", "hartree"),
    "grid": ("reference.grid_name", None),
    "grid_error": ("grid_error_total", "hartree"),
    "scs_mp2_correlation_energy": ("scs_mp2_correlation_energy", "hartree"),
    "nao": ("sizes.nao", ""),
    "homo_lumo_gap": ("diagnostics.homo_lumo_gap", "hartree"),
    "backend": ("backend", None),
    "precision": ("precision", None),
    "warnings": ("diagnostics.warnings", ""),  # how many
}
UNITS_OF_NUMBERS = {"exit_code": "", "seconds": "s"} | {
    name: unit for name, (_, unit) in NUMBERS.items() if unit is not None
}


def numbers_of(result: MP2Result) -> dict[str, Any]:
    """The table row of a result; None for numbers that JSON cannot hold."""
    found = {name: attrgetter(attribute)(result) for name, (attribute, _) in NUMBERS.items()}
    found["warnings"] = len(found["warnings"])
    return {
        name: None if isinstance(x, float) and not math.isfinite(x) else x
        for name, x in found.items()
    }


def result_frame(result: MP2Result) -> Any:
    """The key numbers of a result as a one-row pandas DataFrame, indexed by the name of the
    molecule.

    Raises
    ------
    InputError : pandas is not installed
    """
    return frame(
        {name: [value] for name, value in numbers_of(result).items()},
        UNITS_OF_NUMBERS,
        [result.molecule.name],
    )


def study_frame(study: Study) -> Any:
    """The table of a study, or its values if it has no table, as a pandas DataFrame; units in
    `attrs["units"]`.

    Raises
    ------
    InputError : pandas is not installed
    """
    if study.table:
        units = {name: column.units for name, column in study.table.items()}
        return frame({name: list(column.values) for name, column in study.table.items()}, units)
    columns = {
        part: [getattr(item, part) for item in study.values.values()] for part in Dataset._fields
    }
    return frame(columns, {}, list(study.values))


def frame(
    columns: Mapping[str, Sequence[Any]],
    units: Mapping[str, str],
    index: Sequence[str] | None = None,
) -> Any:
    """A pandas DataFrame; the units of its columns, if any, are in `attrs["units"]`.

    Raises
    ------
    InputError : pandas is not installed
    """
    try:
        import pandas
    except ImportError as absent:
        raise InputError(
            f"a DataFrame needs pandas, which is not installed ({absent}): pip install pandas"
        ) from absent
    found = pandas.DataFrame(dict(columns), index=index)
    found.attrs["units"] = {name: units[name] for name in columns if units.get(name)}
    return found


def rows_json(value: Any) -> str:
    """JSON text with a newline."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as CSV, with the keys of the first row as header and all digits of the numbers."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return printed(text.getvalue())


def write_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], notes: Mapping[str, str], *, overwrite: bool
) -> None:
    """Write rows, and `notes` that apply to all of them, as HDF5, CSV or JSON, depending on the
    file suffix.

    Raises
    ------
    ResultFileError : the file exists and `overwrite` is false
    ResourceError : it cannot be written
    """
    if path.suffix == ".csv":
        write_atomically(path, to_csv(rows), overwrite=overwrite)
    elif path.suffix == ".json":
        write_atomically(
            path, rows_json({**notes, "items": list(rows)}).encode(), overwrite=overwrite
        )
    else:
        columns = {name: _column(name, [row[name] for row in rows]) for name in rows[0]}
        write_table(path, "batch", columns, notes, overwrite=overwrite)


def _column(name: str, values: list[Any]) -> Column:
    described = name.replace("_", " ")
    if name in UNITS_OF_NUMBERS:
        return Column(
            [None if value is None else float(value) for value in values],
            UNITS_OF_NUMBERS[name],
            described,
        )
    texts = ["" if value is None else printed(str(value)).decode() for value in values]
    return Column(texts, "", described)
