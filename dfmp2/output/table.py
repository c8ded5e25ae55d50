"""Tables of several results, one row of key numbers each, as HDF5, CSV, JSON or pandas
DataFrames."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from dfmp2.errors import InputError
from dfmp2.host.files import write_atomically
from dfmp2.mp2.result import MP2Result
from dfmp2.output.hdf5_datasets import Dataset, printed
from dfmp2.output.study import Column, Study, write_table

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
UNITS = {"exit_code": "", "seconds": "s"} | {
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
        {name: [value] for name, value in numbers_of(result).items()}, UNITS, [result.molecule.name]
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
    if name in UNITS:
        return Column(
            [None if value is None else float(value) for value in values], UNITS[name], described
        )
    return Column([printed(str(value)).decode() for value in values], "", described)
