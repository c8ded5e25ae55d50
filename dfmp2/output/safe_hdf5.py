"""Open an HDF5 file of unknown origin: nothing in it is run, leads to another file, or takes more
than the file's size.

Refused before any number is read: links, external storage, virtual datasets, every data type but
numbers, booleans and UTF-8 text, and datasets that claim more bytes than the file has.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, ResultFileError

MOST_OBJECTS = 10_000
DEEPEST = 8  # of the groups
# What h5py, NumPy, json and our own constructors raise on content that is damaged or not what it
# claims to be.
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
    path: str | Path, *, most_objects: int = MOST_OBJECTS, heaps: bool = True
) -> Iterator[h5py.File]:
    """Open for reading after checking every object in the file; whatever fails in the block means a
    damaged file.

    A file of more than `most_objects` groups and datasets is refused; without `heaps`, so is text
    of variable length.

    Raises
    ------
    InputError : there is no such file, or it may not be read
    ResultFileError : it is not HDF5, is damaged, or holds something a result never holds
    """
    path = Path(path)
    _require_regular(path)
    try:
        handle = h5py.File(path, "r")
    except (OSError, ValueError) as error:
        raise ResultFileError(f"{path}: not a readable HDF5 file ({_first_line(error)})") from error
    try:
        with handle:
            _require_harmless(
                handle, path.stat().st_size, most_objects, "iufbSO" if heaps else "iufbS"
            )
            yield handle
    except FOREIGN_ERRORS as error:
        raise ResultFileError(
            f"{path}: damaged file ({type(error).__name__}: {_first_line(error)}): compute it again"
        ) from error


def attributes_of(path: str | Path) -> set[str]:
    """Names of a file's attributes, none where it is no HDF5 file: its reader says what is wrong
    with it."""
    try:
        if not Path(path).is_file():  # opening a pipe would wait for ever
            return set()
        with h5py.File(path, "r") as handle:
            return set(handle.attrs)
    except (OSError, RuntimeError, ValueError):
        return set()


def read_attribute(handle: h5py.File, name: str) -> Any:
    """An attribute of the file, None if there is none.

    Text must have a fixed length: of a variable one the library reserves what it claims, up to 4
    GB.

    Raises
    ------
    ValueError : text of variable length, or not UTF-8
    """
    if name not in handle.attrs:
        return None
    if handle.attrs.get_id(name).dtype.kind == "O":
        raise ValueError(f"attribute {name} is text of variable length")
    value = handle.attrs[name]
    if isinstance(value, bytes):
        return value.decode()
    return value


def _require_regular(path: Path) -> None:
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError as error:
        raise InputError("no such file", file=str(path)) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot be read ({reason}): check the name and the permissions", file=str(path)
        ) from error
    if not regular:
        raise ResultFileError(f"{path}: not a regular file: name a result file (.h5)")


def _require_harmless(handle: h5py.File, size: int, most_objects: int, kinds: str) -> None:
    """Refuse a file that holds what a result never holds; `kinds` are the NumPy kinds of the data
    types it may have."""
    for number, (name, item) in enumerate(_objects(handle)):
        if number >= most_objects:
            raise _refusal(handle, "", "has more objects (groups and datasets) than any result")
        if isinstance(item, h5py.h5g.GroupID):
            continue
        if not isinstance(item, h5py.h5d.DatasetID):
            raise _refusal(handle, name, "is neither a group nor a dataset")
        made = item.get_create_plist()
        if made.get_layout() == h5py.h5d.VIRTUAL or made.get_external_count():
            raise _refusal(handle, name, "takes its data from another file")
        kind, space = item.dtype, item.get_space()
        text = kind.kind != "O" or h5py.check_string_dtype(kind) is not None
        if kind.kind not in kinds or kind.fields or not text:
            raise _refusal(handle, name, f"has data type {kind}")
        # Our files and PySCF's are not compressed, so a larger dataset is a trap for the reader's
        # memory.
        nothing = space.get_simple_extent_type() == h5py.h5s.NULL
        if nothing or space.get_simple_extent_npoints() * kind.itemsize > size:
            raise _refusal(handle, name, "claims to be empty or larger than the file")


def datasets(group: h5py.Group) -> Iterator[tuple[str, h5py.h5d.DatasetID]]:
    """All datasets below a group with their paths, as HDF5 has them: h5py's own objects take three
    times as long."""
    for name, item in _objects(group):
        if isinstance(item, h5py.h5d.DatasetID):
            yield name, item


def content(dataset: h5py.h5d.DatasetID) -> NDArray[Any]:
    """What a dataset holds, texts as bytes."""
    value = np.empty(dataset.shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, value)
    return value


def _objects(group: h5py.Group) -> Iterator[tuple[str, Any]]:
    """Everything below a group, by hard links only, with its path in the group."""
    folders = [("", group.id, 0)]
    while folders:
        path, folder, depth = folders.pop()
        for name in folder:
            place = path + name.decode("utf-8", "replace")
            if folder.links.get_info(name).type != h5py.h5l.TYPE_HARD:
                raise _refusal(
                    group, path, f"holds {place[len(path) :]}, which is a link to elsewhere"
                )
            if depth > DEEPEST:
                raise _refusal(group, path, "is nested deeper than any group of a result")
            item = h5py.h5o.open(folder, name)
            yield place, item
            if isinstance(item, h5py.h5g.GroupID):
                folders.append((f"{place}/", item, depth + 1))


def _refusal(group: h5py.Group, name: str, reason: str) -> ResultFileError:
    where = f"{group.name.rstrip('/')}/{name}"
    return ResultFileError(
        f"{group.file.filename}: {where.rstrip('/') or '/'} {reason}, which is refused"
    )


def _first_line(error: BaseException) -> str:
    if str(error):
        return str(error).splitlines()[0][:200]
    return type(error).__name__
