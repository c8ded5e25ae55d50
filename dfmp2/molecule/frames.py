"""Single frames of files that hold several molecules: xyz, .sdf and .pdb files, and databases of
ASE.

Frames count from 1. Those of a database (`ase.db`, .db) are its rows by their `id`. The charge of a
row is its key `total_charge` or the `charge` of its data (ASE fills a key `charge` with the sum of
the initial charges), the multiplicity its key or data of that name; else the initial charges and
magnetic moments of the atoms add up to both. A row may have a `name`.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from dfmp2.errors import BackendUnavailable, InputError
from dfmp2.errors.messages import Option
from dfmp2.molecule.files import blocks_of, parse_block
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.text import printable
from dfmp2.molecule.xyz import MOST_FRAMES

DATABASE = ".db"  # end of the name
COUNT = re.compile(r"\s*[0-9]{1,9}\s*")
KEPT_FILES = 8  # whose texts are held


class Frame(NamedTuple):
    """A frame by its number, and its own name, "" where it has none."""

    number: int
    name: str


def frames_in(path: Path) -> list[Frame]:
    """The frames of a file of several molecules; none where it is a file of one.

    A file that cannot be read, or is no file of molecules, counts as one: reading its molecule says
    what is wrong.

    Raises
    ------
    InputError : a database without rows, or too many frames
    BackendUnavailable : ASE, which reads databases, is missing
    """
    if path.suffix.lower() == DATABASE:
        frames = [Frame(row.id, str(row.get("name", ""))) for row in _rows(path)]
        if not frames:
            raise InputError("empty: expected a database of ASE with rows", file=str(path))
    else:
        frames = [Frame(number, "") for number in range(1, _count(path) + 1)]
    if len(frames) > MOST_FRAMES:
        raise InputError(f"more than {MOST_FRAMES} frames: split it", file=str(path))
    return frames


def read_frame(
    path: Path,
    number: int,
    *,
    units: str = "angstrom",
    charge: int | None = None,
    multiplicity: int | None = None,
    called: str | None = None,
) -> Molecule:
    """One frame of a file.

    Parameters
    ----------
    number : int
        From 1; of a database the `id` of a row.
    units, charge, multiplicity, called : as of `dfmp2.molecule.files.read_file`

    Raises
    ------
    InputError : there is no such frame, or it is no molecule
    BackendUnavailable : ASE is missing
    """
    file = f"{called or path}, frame {number}"
    if path.suffix.lower() == DATABASE:
        if units != "angstrom":
            raise InputError(
                Option("units", units), ": databases of ASE are in angstrom: leave it out"
            ).placed(file=file)
        return _of_database(path, number, file, charge, multiplicity)
    blocks = _blocks(path, _state(path))
    if not 1 <= number <= len(blocks):
        raise InputError(f"there is no such frame: it has {len(blocks)}", file=file)
    state = {"units": units, "charge": charge, "multiplicity": multiplicity}
    return parse_block(blocks[number - 1], file, path.suffix.lower(), state).molecule


@lru_cache(maxsize=KEPT_FILES)
def _blocks(path: Path, _changed: tuple[int, int]) -> list[str]:
    """The texts of all frames; `_changed` tells one state of the file from another."""
    return blocks_of(path)


def _state(path: Path) -> tuple[int, int]:
    """Size and time of the last change, ns; 0 and 0 of a file that is not there."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _count(path: Path) -> int:
    """How many frames there are where there are several, else 0."""
    try:
        blocks = _blocks(path, _state(path))
    except InputError:
        return 0
    if len(blocks) < 2:
        return 0
    of_xyz = path.suffix.lower() not in (".sdf", ".pdb", ".mol")
    if of_xyz and not COUNT.fullmatch(blocks[1].partition("\n")[0]):
        return 0  # what follows the first frame is no frame
    return len(blocks)


def _rows(path: Path, number: int | None = None) -> list[Any]:
    """The rows of a database, or the one with this `id`.

    Raises
    ------
    InputError : it cannot be read
    BackendUnavailable : ASE is missing
    """
    if not path.is_file():
        raise InputError("no such file: check the name and the directory", file=str(path))
    try:
        from ase.db import connect
    except ImportError as absent:
        raise BackendUnavailable(
            f"ASE, which reads {path}, is not installed ({absent}): pip install 'dfmp2[ase]', or "
            "give an xyz file"
        ) from absent
    try:
        return list(connect(str(path), type="db", append=True).select(number))
    except (sqlite3.Error, OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise InputError(
            f"ASE cannot read it as a database ({type(error).__name__}: {error})", file=str(path)
        ) from error


def _of_database(
    path: Path, number: int, file: str, charge: int | None, multiplicity: int | None
) -> Molecule:
    """The molecule of the row with this `id`."""
    rows = _rows(path, number)
    if not rows:
        raise InputError("there is no row with this id", file=file)
    row = rows[0]
    if charge is None:
        charge = _whole(row, "total_charge", "charge", file)
    if multiplicity is None:
        multiplicity = _whole(row, "multiplicity", "multiplicity", file)
    try:
        molecule = Molecule.from_ase(row.toatoms(), charge=charge, multiplicity=multiplicity)
    except InputError as error:
        raise error.placed(file=file) from error
    name = str(row.get("name", "")) or f"{path.stem}-{number}"
    return replace(molecule, name=name, source=printable(file))


def _whole(row: Any, key: str, in_data: str, file: str) -> int | None:
    """A whole number among the keys of a row or in its data; None where neither has it."""
    value = row.key_value_pairs.get(key)
    if value is None:
        value = row.data.get(in_data)
    if value is None:
        return None
    if isinstance(value, bool | str) or value != int(value):
        raise InputError(f"{key} is {value!r}: expected a whole number", file=file)
    return int(value)
