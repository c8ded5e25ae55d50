"""Datasets in a group of an HDF5 file: written with unit and description, read by group, hashed.

`dfmp2.output.safe_hdf5` opens and checks files of unknown origin.

A file keeps `all` of a result, its `properties` (every number, but no orbitals or densities), or
its `energies` (with only forces and dipole moments in addition). Each is enough to repeat the
calculation.

Files of a batch are packed (schema 2), because each dataset costs 600 bytes and 50 microseconds:
numbers and texts are stored together in `dfmp2/records` as JSON compressed by zlib.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import ResultFileError
from dfmp2.mp2.pairs import PairEnergies
from dfmp2.mp2.result import MP2Result
from dfmp2.options import ALL, KEPT
from dfmp2.output.safe_hdf5 import content, datasets

Groups = Mapping[str, Mapping[str, Any]]  # datasets by path of the group, then by name


class Dataset(NamedTuple):
    """A dataset: its value, unit and description."""

    value: Any
    units: str
    description: str


# --- files in memory -----------------------------------------------------------------------------


def file_bytes(fill: Callable[[h5py.File], None], version: tuple[str, str] | None = None) -> bytes:
    """An HDF5 file written by `fill`, as bytes; `version` is h5py's `libver`."""
    # HDF5 needs a file name even in memory, and rejects one that is already open.
    with h5py.File(
        f"{uuid.uuid4().hex}.h5", "w", driver="core", backing_store=False, libver=version
    ) as handle:
        fill(handle)
        return image(handle)


def image(handle: h5py.File) -> bytes:
    """The bytes of a file in memory."""
    handle.flush()
    return bytes(handle.id.get_file_image())


# --- hashes --------------------------------------------------------------------------------------


def require_hash(contents: Mapping[str, NDArray[Any]], path: str | Path, expected: object) -> str:
    """Compare the hash of a group's contents with the expected one and return it; `path` names the
    group in the error.

    Raises
    ------
    ResultFileError : the content has changed since it was written
    """
    found = hash_of(contents)
    if expected != found:
        raise ResultFileError(
            f"{path}: the content does not have its stored hash ({str(expected)[:12]}..., found "
            f"{found[:12]}...): compute it again"
        )
    return found


def content_hash(group: h5py.Group, leave_out: Collection[str] = ()) -> str:
    """SHA-256 over names, types, shapes and bytes of all datasets except `leave_out`, in the order
    of their names."""
    return hash_of({name: content(item) for name, item in datasets(group) if name not in leave_out})


def hash_of(values: Mapping[str, NDArray[Any]]) -> str:
    """As `content_hash`, for datasets that have already been read."""
    digest = hashlib.sha256()
    for name in sorted(values):
        value = values[name]
        if value.dtype.kind == "O":
            held = b"\0".join(
                text if isinstance(text, bytes) else str(text).encode() for text in value.flat
            )
        else:
            held = value.tobytes()
        digest.update(f"{name}|{value.dtype.str}|{value.shape}|".encode() + held)
    return digest.hexdigest()


# --- writing -------------------------------------------------------------------------------------


def write_items(
    group: h5py.Group,
    items: Mapping[str, Dataset],
    convert: Callable[[Any], Any],
    label: Callable[[str], Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """Store datasets with their units and descriptions, and return the stored values by name.

    Parameters
    ----------
    convert : turns a value into one that h5py accepts
    label : the same for units and descriptions, if different
    """
    made, label = dict[str, NDArray[Any]](), label or convert
    for name, item in items.items():
        value = convert(item.value)
        made[name] = value = np.asarray(value, TEXT if isinstance(value, str) else None, order="C")
        space = h5py.h5s.create_simple(value.shape) if value.shape else SCALAR
        stored_as, held_as = _types(value.dtype, str(value.dtype.metadata))
        dataset = h5py.h5d.create(group.id, name.encode(), stored_as, space, PLAIN, WITH_GROUPS)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, value, held_as)
        texts = {"units": label(item.units)}
        if item.description:
            texts["description"] = label(item.description)
        set_texts(dataset, texts)
    return made


# A result has 150 datasets and 300 attributes. `group.create_dataset` and `dataset.attrs` rebuild
# these objects for each, which takes two thirds of their time; here they are built once.
TEXT = h5py.string_dtype()
SCALAR = h5py.h5s.create(h5py.h5s.SCALAR)
PLAIN = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
WITH_GROUPS = h5py.h5p.create(h5py.h5p.LINK_CREATE)
PLAIN.set_obj_track_times(False)
WITH_GROUPS.set_create_intermediate_group(True)


@cache
def _types(kind: np.dtype[Any], metadata: str) -> tuple[h5py.h5t.TypeID, h5py.h5t.TypeID]:
    """The type in the file and in memory. NumPy takes types to be equal if they differ only in
    `metadata`, which holds the encoding of text."""
    return h5py.h5t.py_create(kind, logical=True), h5py.h5t.py_create(kind)


@lru_cache(1000)
def _words(text: str) -> NDArray[Any]:
    return np.array(text, TEXT)


def set_texts(holder: h5py.h5g.GroupID | h5py.h5d.DatasetID, texts: Mapping[str, Any]) -> None:
    """Add new attributes to a group or dataset, of variable length unless the text is an array."""
    for name, text in texts.items():
        words = _words(text) if isinstance(text, str) else np.asarray(text)
        stored_as, held_as = _types(words.dtype, str(words.dtype.metadata))
        h5py.h5a.create(holder, name.encode(), stored_as, SCALAR).write(words, held_as)


def storable(value: Any) -> Any:
    """The value as h5py stores it without pickling: number, array, or variable-length UTF-8
    text."""
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return np.array([printed(item) for item in value], dtype=h5py.string_dtype())
    if isinstance(value, str):
        return printed(value).decode()
    return value


def without_heap(value: Any) -> Any:
    """As `storable`, but with fixed-length text."""
    if isinstance(value, str):
        return np.bytes_(printed(value))
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return np.array([printed(item) for item in value])
    return value


def printed(text: str) -> bytes:
    """Text as UTF-8; a file name need not be UTF-8, and its other bytes are written as \\udcNN."""
    return text.encode("utf-8", "backslashreplace")


# --- reading -------------------------------------------------------------------------------------


def by_group(contents: Mapping[str, NDArray[Any]]) -> Groups:
    """Datasets, including those in the records of a packed file, by path of the group ("" for the
    root) and by name."""
    values: dict[str, Any] = dict(contents)
    if RECORDS_PATH in values:
        values |= unpack(values.pop(RECORDS_PATH))
    groups: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        group, _, name = path.rpartition("/")
        groups.setdefault(group, {})[name] = value
    return groups


def stored(groups: Groups, name: str) -> dict[str, Any]:
    """The datasets directly in a group, with text decoded."""
    return {
        key: _value(value) if isinstance(value, np.ndarray) else value
        for key, value in groups[name].items()
    }


def _value(found: NDArray[Any]) -> Any:
    """An array; a number or text if it has no axes."""
    if found.dtype.kind in "OS":
        texts = [text.decode() for text in found.flat]
        if found.ndim:
            return np.array(texts, dtype=object).reshape(found.shape)
        return texts[0]
    return found[()]


def numbers(groups: Groups, group: str, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A float64 dataset of a group, checked to have the expected shape and finite numbers."""
    values = np.asarray(groups[group][name])
    if values.shape != shape or values.dtype != np.float64:
        where = f"{group}/{name}"
        raise ValueError(f"{where} is {values.dtype} {values.shape}, expected float64 {shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{group}/{name} holds NaN or infinite numbers")
    return values


# --- what a file keeps of its result --------------------------------------------------------------

RECORDS_PATH = "dfmp2/records"
LARGEST_RECORDS = 100 * 10**6  # bytes of JSON
# Always separate datasets: those that PySCF and other readers look for.
APART = (
    "mol",
    "scf/",
    "dfmp2/energies/",
    "dfmp2/input/symbols",
    "dfmp2/input/charge",
    "dfmp2/input/multiplicity",
)
# Separate datasets of a result that does not keep everything.
SOUGHT = (
    "dfmp2/energies/scf_total_energy",
    "dfmp2/energies/correlation_energy",
    "dfmp2/energies/total_energy",
    "dfmp2/energies/mp2_total_energy",
    "dfmp2/input/symbols",
    "dfmp2/input/coordinates",
    "dfmp2/gradient/mp2_total_gradient",
    "dfmp2/properties/relaxed_dipole",
    "dfmp2/properties/mulliken_charges",
    "dfmp2/properties/lowdin_charges",
    "dfmp2/polarizability/relaxed",
    "dfmp2/pairs/",
)
OF_PROPERTIES = (
    "quadrupole",
    "mulliken_charges",
    "lowdin_charges",
    "mulliken_spin_populations",
    "lowdin_spin_populations",
)


def reduced(result: MP2Result, keep: str) -> MP2Result:
    """The result reduced to what `keep`, one of KEPT, retains; every energy keeps all its bits."""
    if keep == ALL or KEPT.index(result.kept) <= KEPT.index(keep):
        return result
    spins = result.reference.nspin
    none = np.empty((spins, 0))
    reference = replace(result.reference, mo_coeff=np.empty((spins, 0, 0)))
    properties = result.properties
    if properties is not None:
        properties = replace(properties, unrelaxed_density=none, relaxed_density=none)
    pairs = result.pairs
    if keep == "energies":
        if properties is not None:
            nothing: dict[str, Any] = dict.fromkeys(OF_PROPERTIES)
            properties = replace(properties, **nothing)
        if result.options.correlation.kind == "pairs":
            pairs = pair_sums(pairs.opposite_spin_energy, pairs.same_spin_energy)
    return replace(
        result,
        reference=reference,
        properties=properties,
        pairs=pairs,
        mole_json="",
        kept=keep,
    )


def pair_sums(opposite_spin: float, same_spin: float) -> PairEnergies:
    """Pair energies of which only the sums are known, Eh."""
    return PairEnergies(np.array([[opposite_spin]]), (np.array([[same_spin]]),), summed=True)


def pack_records(values: Mapping[str, Any], kept: str) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Values by path that stay separate datasets, and the records that hold the others.

    Parameters
    ----------
    values : numbers, texts, tuples of them, and arrays by path of the dataset
    kept : what is kept of the result, one of KEPT
    """
    apart, records = dict[str, Any](), dict[str, Any]()
    for path, value in values.items():
        plain = value.item() if isinstance(value, np.generic) else value
        if kept == ALL:
            alone = isinstance(value, np.ndarray) or path.startswith(APART)
        else:
            alone = path.startswith(SOUGHT)
            if isinstance(value, np.ndarray):
                plain = value.tolist()
        if alone or not _finite(plain):
            apart[path] = value
        else:
            records[path] = plain
    text = json.dumps(records, allow_nan=False, separators=(",", ":"))
    return apart, np.frombuffer(zlib.compress(text.encode(), 9), np.uint8)


def _finite(value: Any) -> bool:
    """Whether all numbers of a value are finite, as JSON requires."""
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def unpack(records: NDArray[Any]) -> dict[str, Any]:
    """The values in the records made by `pack_records`, by path; tuples and arrays become lists.

    Raises
    ------
    ValueError : the data are not records, or claim more than LARGEST_RECORDS bytes
    """
    opened = zlib.decompressobj()
    try:
        text = opened.decompress(records.tobytes(), LARGEST_RECORDS)
    except zlib.error as error:
        raise ValueError(f"its records cannot be unpacked ({error})") from error
    if not opened.eof:
        raise ValueError("its records are cut off, or larger than those of any result")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("its records are no JSON object")
    return value
