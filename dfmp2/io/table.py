"""A table as an HDF5 file: one dataset per column with its unit and description, written all or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from dfmp2.io.files import write_atomically

TABLE_VERSION = 1


class Column(NamedTuple):
    """A column: texts, or numbers (None is stored as NaN), with their unit and what they are."""

    values: Sequence[str] | Sequence[float | None]
    units: str
    description: str


def write_table(
    path: Path, name: str, columns: Mapping[str, Column], attributes: Mapping[str, str], *, overwrite: bool
) -> None:
    """Write `columns` as the group `name`; rows have the same place in every column.

    Parameters
    ----------
    attributes : texts that hold for the whole table

    Raises
    ------
    ResultFileError : the file exists and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """
    with h5py.File("table.h5", "w", driver="core", backing_store=False) as handle:
        handle.attrs["creator"] = "dfmp2"
        handle.attrs["file_time"] = datetime.now(UTC).isoformat(timespec="seconds")
        handle.attrs["default"] = name
        handle.attrs["dfmp2_table_version"] = TABLE_VERSION
        group = handle.create_group(name)
        for key, text in attributes.items():
            group.attrs[key] = text
        for key, column in columns.items():
            dataset = group.create_dataset(key, data=_storable(column.values))
            dataset.attrs["units"] = column.units
            dataset.attrs["description"] = column.description
        handle.attrs["status"] = "complete"
        handle.flush()
        content = bytes(handle.id.get_file_image())
    write_atomically(path, content, overwrite=overwrite)


def _storable(values: Sequence[str] | Sequence[float | None]) -> np.ndarray:
    if values and all(isinstance(value, str) for value in values):
        return np.array(list(values), dtype=h5py.string_dtype())
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
