"""Write and read result files (layout: `dfmp2.io.schema`). `read(path)` gives back what was written.

A file is made in memory, then written beside the target, flushed and renamed: there is never half a
result. It carries a hash of its content, and is a valid PySCF checkpoint at the same time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dfmp2.errors import InputError, ResultFileError
from dfmp2.io.content import (
    calculation_items,
    content_hash,
    numbers,
    printed,
    read_calculation,
    read_records,
    stored,
    write_items,
)
from dfmp2.io.files import write_atomically
from dfmp2.io.safe_hdf5 import open_checked, read_attribute
from dfmp2.io.schema import ENERGIES, OF_REFERENCE, PREPARED, RECORDS, SCHEMA_VERSION, Item, record_items
from dfmp2.record import PairEnergies
from dfmp2.result import MP2Result

RUN_FIELDS = {
    "backend": "backend that evaluated the pair energies",
    "backend_reason": "why it was chosen",
    "precision": "fp64 or mixed, as it really ran",
    "frozen_core_note": "how the frozen core was counted",
}


def write(result: MP2Result, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a result, all or nothing.

    Parameters
    ----------
    overwrite : replace a file that is there, at once and as a whole

    Raises
    ------
    ResultExists : the file exists and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """
    write_atomically(Path(path), to_bytes(result), overwrite=overwrite)


def to_bytes(result: MP2Result) -> bytes:
    """The result file as bytes."""
    with h5py.File("result.h5", "w", driver="core", backing_store=False) as handle:
        store(handle, result)
        handle.flush()
        return bytes(handle.id.get_file_image())


def store(group: h5py.Group, result: MP2Result) -> None:
    """Put a result into an empty group: the root of a file of its own, or one of several in a study."""
    group.attrs["creator"] = "dfmp2"
    group.attrs["creator_version"] = result.provenance.version
    group.attrs["file_time"] = result.provenance.created
    group.attrs["HDF5_Version"] = h5py.version.hdf5_version
    group.attrs["h5py_version"] = h5py.version.version
    group.attrs["default"] = "dfmp2"
    group.attrs["dfmp2_schema_version"] = SCHEMA_VERSION
    write_items(group, _items(result), _storable)
    # Of fixed length, unlike the texts above: `safe_hdf5.read_attribute` says why.
    group.attrs["content_sha256"] = np.bytes_(content_hash(group))
    group.attrs["status"] = np.bytes_("complete")


def read(path: str | Path) -> MP2Result:
    """Read a result file back.

    Raises
    ------
    InputError : no such file
    ResultFileError : foreign, damaged, incomplete, or of an unknown version
    """
    with open_checked(path) as handle:
        return load(handle, path)


def load(group: h5py.Group, path: str | Path) -> MP2Result:
    """The result in a group that `store` filled; `path` names it in errors, which are those of `read`."""
    _require_known(group, path)
    try:
        return _result(group)
    except InputError as error:  # a molecule or options that could not have been run
        raise ResultFileError(f"{path}: damaged file ({error}): compute it again") from error


def verify(path: str | Path) -> str:
    """Check the stored hash against the content and return it.

    Raises
    ------
    ResultFileError : they differ
    """
    with open_checked(path) as handle:
        _require_known(handle, path)
        expected, found = str(read_attribute(handle, "content_sha256")), content_hash(handle)
    if expected != found:
        raise ResultFileError(
            f"{path}: the content does not have its stored hash ({expected[:12]}..., found {found[:12]}...)"
        )
    return found


def _items(result: MP2Result) -> dict[str, Item]:
    """Every dataset of a result file."""
    items = calculation_items(result)
    for name, description in RUN_FIELDS.items():
        items[f"dfmp2/run/{name}"] = Item(getattr(result, name), "", description)
    for name in RECORDS:
        record = None if name in ("reference", *OF_REFERENCE) else getattr(result, name)
        if record is not None:
            items |= record_items(name, record)
    for name, matrix in result.pairs.channels().items():
        items[f"dfmp2/pairs/{name}"] = Item(matrix, "hartree", "unscaled pair energies; their sum is the component")
    for name in ENERGIES:
        value = getattr(result, name)
        if value is not None:
            items[f"dfmp2/energies/{name}"] = Item(value, "hartree", name.replace("_", " "))
    return items


def _storable(value: Any) -> Any:
    """What h5py stores without pickling: numbers, arrays, UTF-8 text."""
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return np.array([_storable(item) for item in value], dtype=h5py.string_dtype())
    return printed(value).decode() if isinstance(value, str) else value


def _require_known(handle: h5py.File, path: str | Path) -> None:
    version, status = read_attribute(handle, "dfmp2_schema_version"), read_attribute(handle, "status")
    if "dfmp2_study_version" in handle.attrs:
        raise ResultFileError(f"{path}: a study with several results: dfmp2 show prints it, and with --run NAME one")
    if PREPARED in handle.attrs:
        raise ResultFileError(f"{path}: prepared, without energies yet: dfmp2 energy --from {path} computes them")
    if version is None:
        raise ResultFileError(f"{path}: not a dfmp2 result (no dfmp2_schema_version)")
    if not isinstance(version, int | np.integer) or int(version) != SCHEMA_VERSION:
        raise ResultFileError(
            f"{path}: schema version {version}, this dfmp2 reads version {SCHEMA_VERSION}: use the dfmp2 that wrote it"
        )
    if status != "complete":
        raise ResultFileError(f"{path}: status {status!r}, not 'complete': compute it again")


def _result(handle: h5py.File) -> MP2Result:
    records = read_records(handle, RECORDS)
    calculation = read_calculation(handle, records)
    nspin = calculation["reference"].nspin
    alpha, beta = records["sizes"].nocc
    same = {"same_spin": alpha} if nspin == 1 else {"same_spin_alpha": alpha, "same_spin_beta": beta}
    pairs = PairEnergies(
        numbers(handle, "dfmp2/pairs/opposite_spin", (alpha, beta)),
        tuple(numbers(handle, f"dfmp2/pairs/{name}", (n, n)) for name, n in same.items()),
    )
    run = stored(handle, "dfmp2/run")
    choices: dict[str, Any] = {name: str(run[name]) for name in RUN_FIELDS}
    return MP2Result(pairs=pairs, **calculation, **records, **choices)
