"""Open an HDF5 file of unknown origin without letting it read other files or run anything.

Refused before any number is read: links to other files, external storage, virtual datasets, every
data type but numbers, booleans and UTF-8 strings, and datasets larger than the file itself.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dfmp2.errors import InputError, ResultFileError
from dfmp2.io.global_heap import has_broken_heap

MOST_OBJECTS = 10_000
DEEPEST = 8
TEXT = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])  # one text of variable length in the file
# What h5py, NumPy, json and our own constructors raise on content that is damaged or not what it claims to be.
FOREIGN_ERRORS = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


@contextmanager
def open_checked(path: str | Path, *, most_objects: int = MOST_OBJECTS, heaps: bool = True) -> Iterator[h5py.File]:
    """Open for reading after checking every object in the file; whatever fails in the block means a damaged file.

    A file of more than `most_objects` groups and datasets is refused; without `heaps` so is text of variable length,
    and the file, which may be large, is not searched for the heaps that such text lies in.

    Raises
    ------
    InputError : there is no such file, or it may not be read
    ResultFileError : it is not HDF5, is damaged, or holds something a result never holds
    """
    path = Path(path)
    _require_regular(path)
    try:
        broken = heaps and has_broken_heap(path)
        handle = h5py.File(path, "r")
    except (OSError, ValueError) as error:
        raise ResultFileError(f"{path}: not a readable HDF5 file ({_first_line(error)})") from error
    try:
        with handle:
            if broken or handle.id.get_create_plist().get_sizes() != (8, 8):
                raise ValueError("its text is not stored as h5py stores it")
            _check_group(handle, path, [most_objects], 0, "iufbSO" if heaps else "iufbS")
            yield handle
    except FOREIGN_ERRORS as error:
        raise ResultFileError(
            f"{path}: damaged file ({type(error).__name__}: {_first_line(error)}): compute it again"
        ) from error


def read_attribute(handle: h5py.File, name: str) -> Any:
    """An attribute of the file, None if there is none.

    Text must have a fixed length: of a variable one the library reserves what it claims, up to 4 GB.

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
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read ({reason}): check the name and the permissions", file=str(path)) from error
    if not regular:
        raise ResultFileError(f"{path}: not a regular file: name a result file (.h5)")


def _check_group(group: h5py.Group, path: Path, left: list[int], depth: int, kinds: str) -> None:
    """Check everything in the group; `left` holds how many more objects the file may have, `kinds` their data types."""
    if depth > DEEPEST:
        raise ResultFileError(f"{path}: groups are nested deeper than {DEEPEST}: not a result file")
    _check_attributes(group, path, kinds)
    for name in group:
        left[0] -= 1
        if left[0] < 0:
            raise ResultFileError(f"{path}: more objects (groups and datasets) than any result has: not a result file")
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise ResultFileError(f"{path}: {group.name}/{name} is a link to elsewhere, which is refused")
        item = group[name]
        if isinstance(item, h5py.Group):
            _check_group(item, path, left, depth + 1, kinds)
        elif isinstance(item, h5py.Dataset):
            _check_dataset(item, path, kinds)
        else:
            raise ResultFileError(f"{path}: {item.name} is neither a group nor a dataset, which is refused")


def _check_dataset(dataset: h5py.Dataset, path: Path, kinds: str) -> None:
    if dataset.is_virtual or dataset.external:
        raise ResultFileError(f"{path}: {dataset.name} takes its data from another file, which is refused")
    if not _allowed(dataset.dtype, kinds):
        raise ResultFileError(f"{path}: {dataset.name} has data type {dataset.dtype}, which is refused")
    # Our files and PySCF's are not compressed, so a larger dataset is a trap for the reader's memory.
    if dataset.size is None or dataset.size * dataset.dtype.itemsize > path.stat().st_size:
        raise ResultFileError(f"{path}: {dataset.name} claims to be empty or larger than the file, which is refused")
    if dataset.dtype.kind == "O":
        _check_text(dataset, path)
    _check_attributes(dataset, path, kinds)


def _check_text(dataset: h5py.Dataset, path: Path) -> None:
    """Compare the lengths that texts claim with the size of the file: the HDF5 library reserves them first."""
    offset = dataset.id.get_offset()
    if dataset.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
        raise ResultFileError(f"{path}: {dataset.name} is text in pieces, which is refused")
    if offset is None:  # nothing was written
        return
    with open(path, "rb") as file:
        file.seek(offset)
        stored = np.frombuffer(file.read(TEXT.itemsize * dataset.size), TEXT)
    if stored["length"].max(initial=0) > path.stat().st_size:
        raise ResultFileError(f"{path}: {dataset.name} claims to be longer than the file, which is refused")


def _check_attributes(item: h5py.Group | h5py.Dataset, path: Path, kinds: str) -> None:
    for name in item.attrs:
        attribute = item.attrs.get_id(name)
        if not _allowed(attribute.dtype, kinds):
            raise ResultFileError(f"{path}: attribute {name} of {item.name} has a data type that is refused")


def _allowed(dtype: np.dtype[np.generic], kinds: str) -> bool:
    if dtype.kind == "O" and dtype.kind in kinds:
        text = h5py.check_string_dtype(dtype)
        return text is not None and text.encoding in ("utf-8", "ascii")
    return dtype.kind in kinds and dtype.fields is None


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
