"""Datasets in a group of an HDF5 file: made with unit and description, read by group, hashed.

`dfmp2.output.safe_hdf5` opens files that others may have written, and checks what they claim.

Below: how much of a result its file keeps: `all`; `properties`, every number but no orbitals and no
densities; `energies`, with forces and dipole moments alone. Each has what it takes to repeat the
calculation.

Files of a batch are packed (schema 2), because a dataset of its own costs 600 bytes and 50
microseconds: numbers and texts stand together as JSON, compressed by zlib, in `dfmp2/records`.
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
from dfmp2.mp2.result import MP2Result, PairEnergies
from dfmp2.options import ALL, KEPT
from dfmp2.output.safe_hdf5 import content, datasets

Groups = Mapping[str, Mapping[str, Any]]  # datasets by the path of their group, and their name


class Dataset(NamedTuple):
    """A dataset: its value, unit and description."""

    value: Any
    units: str
    description: str


# --- files in memory -----------------------------------------------------------------------------


def file_bytes(fill: Callable[[h5py.File], None], version: tuple[str, str] | None = None) -> bytes:
    """An HDF5 file that `fill` puts something into, as bytes; `version` is h5py's `libver`."""
    # HDF5 takes a name for a file even in memory, and refuses one that is open.
    with h5py.File(
        f"{uuid.uuid4().hex}.h5", "w", driver="core", backing_store=False, libver=version
    ) as handle:
        fill(handle)
        return image(handle)


def image(handle: h5py.File) -> bytes:
    """A file in memory as bytes."""
    handle.flush()
    return bytes(handle.id.get_file_image())


# --- hashes --------------------------------------------------------------------------------------


def check_hash(group: h5py.Group, path: str | Path, expected: object) -> str:
    """Check the hash that a group should have and return it; `path` names the group in the error.

    Raises
    ------
    ResultFileError : the content was changed since it was written
    """
    return require_hash({name: content(item) for name, item in datasets(group)}, path, expected)


def require_hash(contents: Mapping[str, NDArray[Any]], path: str | Path, expected: object) -> str:
    """Hash of the contents of a group; as `check_hash` for contents that were read already."""
    found = hash_of(contents)
    if expected != found:
        raise ResultFileError(
            f"{path}: the content does not have its stored hash ({str(expected)[:12]}..., found "
            f"{found[:12]}...): compute it again"
        )
    return found


def content_hash(group: h5py.Group, leave_out: Collection[str] = ()) -> str:
    """SHA-256 over names, types, shapes and bytes of all datasets but some, in the order of their
    names."""
    return hash_of({name: content(item) for name, item in datasets(group) if name not in leave_out})


def hash_of(values: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over names, types, shapes and bytes of datasets that were read, in the order of their
    names."""
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
    """Store datasets with their units and descriptions, and return what was stored by name.

    Parameters
    ----------
    convert : turns a value into what h5py takes
    label : the same for units and descriptions, where it differs
    """
    made, label = dict[str, NDArray[Any]](), label or convert
    for name, item in items.items():
        value = convert(item.value)
        made[name] = value = np.asarray(value, TEXT if isinstance(value, str) else None, order="C")
        if value.shape:
            space = h5py.h5s.create_simple(value.shape)
        else:
            space = SCALAR
        stored_as, held_as = _types(value.dtype, str(value.dtype.metadata))
        dataset = h5py.h5d.create(group.id, name.encode(), stored_as, space, PLAIN, WITH_GROUPS)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, value, held_as)
        texts = {"units": label(item.units)}
        if item.description:
            texts["description"] = label(item.description)
        set_texts(dataset, texts)
    return made


# A result has 150 datasets and 300 attributes. What `group.create_dataset` and `dataset.attrs` make
# anew for each is made once here: it takes two thirds of their time.
TEXT = h5py.string_dtype()
SCALAR = h5py.h5s.create(h5py.h5s.SCALAR)
PLAIN = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
WITH_GROUPS = h5py.h5p.create(h5py.h5p.LINK_CREATE)
PLAIN.set_obj_track_times(False)
WITH_GROUPS.set_create_intermediate_group(True)


@cache
def _types(kind: np.dtype[Any], metadata: str) -> tuple[h5py.h5t.TypeID, h5py.h5t.TypeID]:
    """In the file and in memory; types that differ in their `metadata` alone, the encoding of text,
    equal for NumPy."""
    return h5py.h5t.py_create(kind, logical=True), h5py.h5t.py_create(kind)


@lru_cache(1000)
def _words(text: str) -> NDArray[Any]:
    return np.array(text, TEXT)


def set_texts(holder: h5py.h5g.GroupID | h5py.h5d.DatasetID, texts: Mapping[str, Any]) -> None:
    """Give a group or dataset attributes that it does not have yet, of variable length but where a
    text is an array."""
    for name, text in texts.items():
        if isinstance(text, str):
            words = _words(text)
        else:
            words = np.asarray(text)
        stored_as, held_as = _types(words.dtype, str(words.dtype.metadata))
        h5py.h5a.create(holder, name.encode(), stored_as, SCALAR).write(words, held_as)


def storable(value: Any) -> Any:
    """What h5py stores without pickling: numbers, arrays, UTF-8 text of variable length."""
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return np.array([printed(item) for item in value], dtype=h5py.string_dtype())
    if isinstance(value, str):
        return printed(value).decode()
    return value


def without_heap(value: Any) -> Any:
    """The same as `storable`, with texts of fixed length."""
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
    """Datasets, and what the records of a packed file hold, by the path of their group, "" for the
    root, and their names in it."""
    values: dict[str, Any] = dict(contents)
    if RECORDS_PATH in values:
        values |= unpack(values.pop(RECORDS_PATH))
    groups: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        group, _, name = path.rpartition("/")
        groups.setdefault(group, {})[name] = value
    return groups


def stored(groups: Groups, name: str) -> dict[str, Any]:
    """The datasets directly in a group, text decoded."""
    return {
        key: _value(value) if isinstance(value, np.ndarray) else value
        for key, value in groups[name].items()
    }


def _value(found: NDArray[Any]) -> Any:
    """An array, or a number or text where it has no axes."""
    if found.dtype.kind in "OS":
        texts = [text.decode() for text in found.flat]
        if found.ndim:
            return np.array(texts, dtype=object).reshape(found.shape)
        return texts[0]
    return found[()]


def numbers(groups: Groups, group: str, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A float64 dataset of a group that has the expected shape and holds finite numbers."""
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
# What stays a dataset of its own: what other readers look for, and PySCF.
APART = (
    "mol",
    "scf/",
    "dfmp2/energies/",
    "dfmp2/input/symbols",
    "dfmp2/input/charge",
    "dfmp2/input/multiplicity",
)
# What stays a dataset where not everything is kept.
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
    """The result with what `keep`, one of KEPT, leaves of it; every energy stays to the last bit."""
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
    """Pair energies of which the sums alone are known, Eh."""
    return PairEnergies(np.array([[opposite_spin]]), (np.array([[same_spin]]),), summed=True)


def pack_records(values: Mapping[str, Any], kept: str) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Values by path that stay datasets of their own, and the records that hold the others.

    Parameters
    ----------
    values : numbers, texts, tuples of them and arrays by the path of their dataset
    kept : what is kept of the result, one of KEPT
    """
    apart, records = dict[str, Any](), dict[str, Any]()
    for path, value in values.items():
        plain = value
        if isinstance(value, np.generic):
            plain = value.item()
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
    """Whether JSON can hold all numbers of a value."""
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def unpack(records: NDArray[Any]) -> dict[str, Any]:
    """The values that `pack` put into records, by path; lists for tuples and arrays.

    Raises
    ------
    ValueError : they are no records, or claim more than LARGEST_RECORDS bytes
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
