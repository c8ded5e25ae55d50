"""Open an HDF5 file of unknown origin safely: it can neither run code, nor lead to another file,
nor take more memory than the file's size.

Rejected before any number is read: links, external storage, virtual datasets, every data type but
numbers, booleans and UTF-8 text, and datasets that claim more bytes than the file has.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, ResultFileError

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
def open_checked(
    path: str | Path,
    *,
    most_objects: int = MOST_OBJECTS,
    heaps: bool = True,
    walk: bool = True,
) -> Iterator[h5py.File]:
    """Open for reading after checking every object in the file; failures in the block are reported
    as a damaged file.

    A file with more than `most_objects` groups and datasets is rejected; without `heaps`, so is
    text of variable length. Without `walk` nothing is checked here; the block must then read only
    with `read_contents`, which does its own checks.

    Raises
    ------
    InputError : there is no such file, or it cannot be read
    ResultFileError : the file is not HDF5, is damaged, or holds something a result never holds
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
            if walk:
                _require_harmless(handle, most_objects, NUMBERS_AND_TEXT if heaps else NO_HEAPS)
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
    group: h5py.Group, *, leave_out: Collection[str] = (), most_objects: int = MOST_OBJECTS
) -> dict[str, NDArray[Any]]:
    """Every dataset below a group by path, each checked before it is read; text as bytes.

    Parameters
    ----------
    group : h5py.Group
        The root of a file opened without `walk`, or a group in it.
    leave_out : Collection[str]
        Datasets that are checked but not read.
    most_objects : int
        Most groups and datasets that the group may have.

    Raises
    ------
    ResultFileError : the group holds something a result never holds
    """
    values = {}
    left = group.file.id.get_filesize()
    for path, dataset, kind in _checked(group, most_objects, NUMBERS_AND_TEXT):
        if path in leave_out:
            continue
        value = np.empty(dataset.shape, kind.dtype)
        left -= value.nbytes
        if left < 0:  # one dataset under many names
            raise _refusal(group, path, "claims, with what is beside it, more than the file")
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, value, kind.in_memory)
        values[path] = value
    return values


def _require_harmless(handle: h5py.File, most_objects: int, kinds: str) -> None:
    """Raise if a file holds something a result never holds; `kinds` are the permitted NumPy kinds
    of data types."""
    for _ in _checked(handle, most_objects, kinds):
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
    group: h5py.Group, most_objects: int, kinds: str
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


def datasets(group: h5py.Group) -> Iterator[tuple[str, h5py.h5d.DatasetID]]:
    """All datasets below a group with their paths, as low-level HDF5 objects; h5py's own take three
    times as long."""
    for name, item in _objects(group, MOST_OBJECTS):
        if isinstance(item, h5py.h5d.DatasetID):
            yield name, item


def content(dataset: h5py.h5d.DatasetID) -> NDArray[Any]:
    """The content of a dataset, with text as bytes."""
    value = np.empty(dataset.shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, value)
    return value


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
