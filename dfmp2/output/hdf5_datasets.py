"""Datasets in HDF5 files: written with unit and description, read by group, hashed.

A file of unknown origin can neither run code, nor lead to another file, nor take more memory than
its size. Rejected before any number is read: links, external storage, virtual datasets, every data
type but numbers, booleans and UTF-8 text, and datasets that claim more bytes than the file has.

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
import stat
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, ResultFileError
from dfmp2.mp2.pairs import PairEnergies
from dfmp2.mp2.result import MP2Result
from dfmp2.options import ALL, KEPT

Groups = Mapping[str, Mapping[str, Any]]  # datasets by path of the group, then by name


class Dataset(NamedTuple):
    """A dataset: its value, unit and description."""

    value: Any
    units: str
    description: str


# --- files in memory -----------------------------------------------------------------------------


def file_bytes(
    fill: Callable[[h5py.File], object], version: tuple[str, str] | None = None
) -> bytes:
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


def stored_hash(group: h5py.Group) -> str:
    """The content hash that a group claims to have; "None" if it has none."""
    return str(read_attribute(group, "content_sha256"))


def hash_of(values: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over names, types, shapes and bytes of datasets, in the order of their names."""
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


# --- reading a file of unknown origin ------------------------------------------------------------

MOST_OBJECTS = 10_000
DEEPEST = 8  # levels of groups
NO_HEAPS = "iufbS"  # NumPy's kinds for numbers, booleans and fixed-length text
NUMBERS_AND_TEXT = f"{NO_HEAPS}O"
MOST_TYPES = 1000  # data types kept in the cache
# Exceptions that h5py, NumPy, json and our own constructors raise on damaged or malformed content.
FOREIGN_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@contextmanager
def open_checked(path: str | Path) -> Iterator[h5py.File]:
    """Open a file of unknown origin for reading; failures in the block are reported as a damaged
    file.

    The block reads with `read_attribute` and `read_contents`, which check what they read, or after
    `require_harmless`.

    Raises
    ------
    InputError : there is no such file, or it cannot be read
    ResultFileError : the file is not HDF5, or is damaged
    """
    path = Path(path)
    _require_regular(path)
    try:
        handle = h5py.File(path, "r")
    except (OSError, ValueError) as error:
        raise ResultFileError(
            f"{path}: not a readable HDF5 file ({_first_line(error)}): name one that "
            "dfmp2 has written"
        ) from error
    try:
        with handle:
            yield handle
    except FOREIGN_ERRORS as error:
        raise ResultFileError(
            f"{path}: damaged file ({type(error).__name__}: {_first_line(error)}): compute it again"
        ) from error


def attributes_of(path: str | Path) -> set[str]:
    """Names of a file's attributes; empty if it is not an HDF5 file, so that its reader reports the
    error."""
    try:
        if not Path(path).is_file():  # opening a pipe would block
            return set()
        with h5py.File(path, "r") as handle:
            return set(handle.attrs)
    except (OSError, RuntimeError, ValueError):
        return set()


def read_attribute(handle: h5py.File, name: str) -> Any:
    """An attribute of the file, None if it is absent.

    Text must have a fixed length: for variable length, the library allocates whatever the file
    claims, up to 4 GB.

    Raises
    ------
    ValueError : text of variable length, or not UTF-8
    """
    if name not in handle.attrs:
        return None
    if handle.attrs.get_id(name).dtype.kind == "O":
        raise ValueError(f"attribute {name} is text of variable length")
    value = handle.attrs[name]
    return value.decode() if isinstance(value, bytes) else value


def _require_regular(path: Path) -> None:
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError as error:
        raise InputError("no such file", file=str(path)) from error
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot be read ({reason}): check the name and the permissions", file=str(path)
        ) from error
    if not regular:
        raise ResultFileError(f"{path}: not a regular file: name a result file (.h5)")


def read_contents(
    group: h5py.Group,
    *,
    leave_out: Collection[str] = (),
    kinds: str = NUMBERS_AND_TEXT,
    most_objects: int = MOST_OBJECTS,
) -> dict[str, NDArray[Any]]:
    """Every dataset below a group by path, each checked before it is read; text as bytes.

    Parameters
    ----------
    group : h5py.Group
        The root of a file, or a group in it.
    leave_out : Collection[str]
        Datasets that are checked but not read.
    kinds : str
        NumPy's kinds of the data types that are allowed.
    most_objects : int
        Most groups and datasets that the group may have.

    Raises
    ------
    ResultFileError : the group holds something a result never holds
    """
    values = {}
    left = group.file.id.get_filesize()
    for path, dataset, kind in _checked(group, kinds, most_objects):
        if path in leave_out:
            continue
        value = np.empty(dataset.shape, kind.dtype)
        left -= value.nbytes
        if left < 0:  # one dataset under many names
            raise _refusal(group, path, "claims, with what is beside it, more than the file")
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, value, kind.in_memory)
        values[path] = value
    return values


def require_harmless(handle: h5py.File) -> None:
    """Raise if a file holds something a result never holds, without reading its datasets.

    Raises
    ------
    ResultFileError
    """
    for _ in _checked(handle, NUMBERS_AND_TEXT, MOST_OBJECTS):
        pass


class DataType(NamedTuple):
    """A data type in a file: its NumPy type, the type to read it with, and whether a result may
    have it (no compounds, no references)."""

    dtype: np.dtype[Any]
    in_memory: h5py.h5t.TypeID
    plain: bool


# Keyed by HDF5's encoding of a type. Having h5py build the type for each dataset takes longer than
# reading the dataset.
_known_types: dict[bytes, DataType] = {}


def _data_type(dataset: h5py.h5d.DatasetID) -> DataType:
    written = dataset.get_type().encode()
    known = _known_types.get(written)
    if known is None:
        dtype = dataset.dtype
        plain = not dtype.fields
        if dtype.kind == "O":
            plain = h5py.check_string_dtype(dtype) is not None
        known = DataType(dtype, h5py.h5t.py_create(dtype) if plain else None, plain)
        if len(_known_types) < MOST_TYPES:
            _known_types[written] = known
    return known


def _checked(
    group: h5py.Group, kinds: str, most_objects: int
) -> Iterator[tuple[str, h5py.h5d.DatasetID, DataType]]:
    """Datasets below a group with their paths and types, each of which a result may hold."""
    size = group.file.id.get_filesize()
    for path, item in _objects(group, most_objects):
        if isinstance(item, h5py.h5g.GroupID):
            continue
        if not isinstance(item, h5py.h5d.DatasetID):
            raise _refusal(group, path, "is neither a group nor a dataset")
        kind, shape = _data_type(item), item.shape
        if kind.dtype.kind not in kinds or not kind.plain:
            raise _refusal(group, path, f"has data type {kind.dtype}")
        # Our files and PySCF's are not compressed, so a larger dataset could exhaust memory.
        if shape is None or math.prod(shape) * kind.dtype.itemsize > size:
            raise _refusal(group, path, "claims to be empty or larger than the file")
        if item.get_offset() is None:  # not contiguous in this file
            made = item.get_create_plist()
            if made.get_layout() == h5py.h5d.VIRTUAL or made.get_external_count():
                raise _refusal(group, path, "takes its data from another file")
        yield path, item, kind


def _objects(group: h5py.Group, most_objects: int) -> Iterator[tuple[str, Any]]:
    """All datasets and empty groups below a group, with their paths in it; follows hard links
    only."""
    links: list[tuple[bytes, int]] = []

    def visit(name: bytes, link: h5py.h5l.LinkInfo) -> bool | None:
        links.append((name, link.type))
        return True if len(links) > most_objects else None

    group.id.links.visit(visit, info=True)
    if len(links) > most_objects:
        raise _refusal(group, "", "has more objects (groups and datasets) than any result")
    parents = {name.rpartition(b"/")[0] for name, _ in links}
    for name, kind in links:
        path = name.decode("utf-8", "replace")
        if kind != h5py.h5l.TYPE_HARD:
            raise _refusal(group, path, "is a link to elsewhere")
        if name.count(b"/") > DEEPEST:
            raise _refusal(group, path, "is nested deeper than any group of a result")
        if name in parents:
            continue
        item = h5py.h5o.open(group.id, name)
        if isinstance(item, h5py.h5g.GroupID) and item.get_num_objs():
            raise _refusal(group, path, "is a second name of a group")
        yield path, item


def _refusal(group: h5py.Group, name: str, reason: str) -> ResultFileError:
    where = f"{group.name.rstrip('/')}/{name}"
    return ResultFileError(
        f"{group.file.filename}: {where.rstrip('/') or '/'} {reason}, which is refused"
    )


def _first_line(error: BaseException) -> str:
    if str(error):
        return str(error).splitlines()[0][:200]
    return type(error).__name__


# --- datasets by group ---------------------------------------------------------------------------


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
