"""Molecules from files: xyz, and .mol, .sdf and .pdb through ASE; what ASE silently ignores is read
or rejected here.

ASE provides symbols and positions. Charges (`M  CHG`, columns 79-80 of a PDB atom) are added up,
and the valences of a mol block must be filled (`dfmp2.molecule.mol_block`). Two-dimensional
drawings, V3000, alternate locations and PDB atoms of uncertain element are rejected, as are several
molecules or models if one is expected.

Below: single frames of files with several molecules: xyz, .sdf and .pdb files, and ASE databases.

Frames count from 1. Those of a database (`ase.db`, .db) are its rows by their `id`. The charge of a
row is a key or data of a name such as `charge` or `total_charge`, the multiplicity one such as
`multiplicity`, as in the comment of an xyz file; else the initial charges and magnetic moments of
the atoms add up to both. A row may have a `name`, or its data.

A file of point charges has one line for each:

    # water 2 of the cluster          a comment, also after numbers; blank lines are skipped
    2.9117  0.0000  0.0592  -0.834    x, y, z, charge in e
"""

from __future__ import annotations

import io
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import BackendUnavailable, InputError, Option
from dfmp2.molecule.elements import SYMBOLS
from dfmp2.molecule.foreign import keys_of
from dfmp2.molecule.mol_block import read_mol_block, require_hydrogens, require_space, state
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.point_charges import checked
from dfmp2.molecule.text import name_of_file, printable, read_text, shown
from dfmp2.molecule.xyz import (
    MAX_BYTES,
    MAX_LINE,
    MORE,
    MOST_FRAMES,
    TOO_LARGE,
    UNITS,
    XyzFile,
    frames_of,
    parse_xyz,
    read_number,
    unix_lines,
)
from dfmp2.units import BOHR_PER_ANGSTROM

FORMATS = {".mol": "mol", ".sdf": "sdf", ".pdb": "proteindatabank"}  # file ending -> ASE's name
MOST_CHARGES = 1_000_000
CHARGES = "a file of point charges"
ENDS = {".sdf": r"^\$\$\$\$.*\n?", ".pdb": r"^ENDMDL.*\n?"}  # end of a molecule or model


def read_file(
    path: str | Path,
    *,
    units: str = "angstrom",
    charge: int | None = None,
    multiplicity: int | None = None,
    called: str | None = None,
) -> XyzFile:
    """Read one molecule from a file, whose format follows from its ending: .mol, .sdf, .pdb, else
    xyz.

    Parameters
    ----------
    path : "-" is an xyz file on standard input
    units, charge, multiplicity : as in `dfmp2.molecule.xyz.read_xyz`; only xyz files may be in bohr
    called : its name in errors and in the result, None for the path

    Raises
    ------
    InputError : it cannot be read, or does not contain exactly one molecule in three dimensions
    BackendUnavailable : ASE is not installed
    """
    end, file, text = _read(path, TOO_LARGE)
    return parse_block(
        text, called or file, end, {"units": units, "charge": charge, "multiplicity": multiplicity}
    )


def read_frames(
    path: str | Path,
    *,
    units: str = "angstrom",
    charge: int | None = None,
    multiplicity: int | None = None,
) -> list[Molecule]:
    """Every frame of an xyz file, molecule of an .sdf file or model of a .pdb file; parameters as
    in `read_file`.

    Raises
    ------
    InputError : the file cannot be read, or a frame is not a molecule; names the frame and its
        first line
    BackendUnavailable : ASE is not installed
    """
    end, file, text = _read(path, f"{MORE}: split it")
    if end in FORMATS:
        blocks = _blocks(text, end)
    else:
        blocks = frames_of(text)
    frames: list[Molecule] = []
    for line, block in blocks:
        if len(frames) == MOST_FRAMES:
            raise InputError(f"more than {MOST_FRAMES} frames: split it", file=file)
        name = f"{file}, frame {len(frames) + 1} (line {line} on)"
        of_the_user: dict[str, Any] = {
            "units": units,
            "charge": charge,
            "multiplicity": multiplicity,
        }
        frames.append(parse_block(block, name, end, of_the_user).molecule)
    if not frames:
        raise InputError(f"empty: expected the frames of {_kind_of(end)}", file=file)
    return frames


def blocks_of(path: str | Path) -> list[str]:
    """The text of each frame, molecule or model of a file; errors as in `read_frames`."""
    end, _, text = _read(path, f"{MORE}: split it")
    if end in FORMATS:
        return [block for _, block in _blocks(text, end)]
    return [block for _, block in frames_of(text)]


def _read(path: str | Path, too_large: str) -> tuple[str, str, str]:
    """File ending in lower case, name for errors, text."""
    end = Path(path).suffix.lower()
    return end, *read_text(path, MAX_BYTES, too_large, _kind_of(end))


def _kind_of(end: str) -> str:
    """The kind of a file, with an article."""
    if end in FORMATS:
        return f"a {end} file"
    return "an xyz file"


def _blocks(text: str, end: str) -> Iterator[tuple[int, str]]:
    """Number of the first line, from 1, and text of each molecule or model."""
    text = unix_lines(text)
    if end in ENDS:
        ends = [found.end() for found in re.finditer(ENDS[end], text, re.MULTILINE)]
    else:
        ends = []
    for begin, stop in pairwise([0, *ends, len(text)]):
        if re.search(r"^(ATOM|HETATM)" if end == ".pdb" else r"\S", text[begin:stop], re.MULTILINE):
            yield text.count("\n", 0, begin) + 1, text[begin:stop]


def parse_block(text: str, file: str, end: str, of_the_user: dict[str, Any]) -> XyzFile:
    """The one molecule in a text, in the format of a file ending; `file` names it in errors."""
    kind = FORMATS.get(end)
    if kind is None:
        return parse_xyz(text, file=file, **of_the_user)
    charge, multiplicity = of_the_user["charge"], of_the_user["multiplicity"]
    plain = unix_lines(text)
    try:
        if of_the_user["units"] != "angstrom":
            raise InputError(
                Option("units", of_the_user["units"]),
                f": {end} files are in angstrom: leave it out",
            )
        if kind == "proteindatabank":
            _require_elements(plain)
            charged = _state_of_pdb(plain, charge)
            coupled = (1, "default") if multiplicity is None else (multiplicity, "option")
            atoms = _atoms(plain, kind)
            _require_some_hydrogens(atoms.get_chemical_symbols())
        else:
            block = read_mol_block(plain)
            charged, coupled = state(block, charge, multiplicity)
            require_hydrogens(block, charge, multiplicity)
            atoms = _atoms(plain, kind)
            require_space(block, atoms.get_positions()[:, 2])
        molecule = Molecule(
            symbols=tuple(atoms.get_chemical_symbols()),
            coordinates=atoms.get_positions() * BOHR_PER_ANGSTROM,
            ghost=(),
            charge=charged[0],
            multiplicity=coupled[0],
            name=name_of_file(file),
            source=printable(file),
            text=text,
        )
    except InputError as error:
        raise error.placed(file=file, line=error.line) from error
    return XyzFile(molecule, charged[1], coupled[1])


def _state_of_pdb(text: str, charge: int | None) -> tuple[int, str]:
    """Charge, and its origin: "option", "file" or "default"."""
    written = _charge_of_pdb(text)
    if charge is not None:
        return charge, "option"
    return written, "file" if written else "default"


def _atoms(text: str, kind: str) -> Any:
    """The single set of atoms that ASE finds."""
    try:
        from ase.io import read
    except ImportError as absent:
        raise BackendUnavailable(
            f"ASE, which reads {kind} files, is not installed ({absent}): pip install "
            "'dfmp2[ase]', or give an xyz file"
        ) from absent
    if kind == "proteindatabank":
        text = f"{text}\nEND\n"  # ASE would silently ignore atoms after the last END
    try:
        found = [atoms for atoms in read(io.StringIO(text), index=":", format=kind) if len(atoms)]
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OSError,
    ) as error:  # from a damaged file
        raise InputError(
            f"ASE cannot read it as {kind} ({type(error).__name__}: {error}): give an xyz file"
        ) from error
    if len(found) != 1:
        raise InputError(f"{len(found)} molecules or models: give one per file")
    return found[0]


def _require_elements(text: str) -> None:
    """Raise for atoms of a PDB file whose element is uncertain.

    It is in columns 77 and 78. Without them, the name of the atom is ambiguous: CA is an alpha
    carbon or calcium. A name of one letter, with or without digits, is unique.

    Raises
    ------
    InputError : columns 77 and 78 contain no element, and the name has several letters
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.startswith(("ATOM", "HETATM")):
            continue
        element = line[76:78].strip()
        if element.capitalize() in SYMBOLS:
            continue
        if element in ("D", "T"):
            raise InputError(f"{element} is an isotope of hydrogen: write H", line=number)
        name = line[12:16].strip()
        letters = re.sub("[0-9]", "", name)
        if len(letters) != 1 or letters.upper() not in SYMBOLS:
            raise InputError(
                f"atom {name!a} without its element in columns 77 and 78, whose name alone may mean "
                "another one (CA: carbon or calcium): add the columns, or give an xyz file",
                line=number,
            )


def _require_some_hydrogens(symbols: Sequence[str]) -> None:
    """Raise for a PDB file of several atoms with carbon, but with neither hydrogen nor halogens.

    Crystal structures usually lack hydrogens, and without bonds their number is unknown.
    """
    found = set(symbols)
    if len(symbols) > 1 and "C" in found and not found & {"H", "F", "Cl", "Br", "I"}:
        raise InputError(
            "no hydrogen atoms, which files of crystal structures leave out: add them (for example "
            "with obabel -h), or give an xyz file if these are all atoms"
        )


def _charge_of_pdb(text: str) -> int:
    """Sum of the charges in columns 79 and 80, such as 2+ or 1-, with sign and digit in either
    order.

    Raises
    ------
    InputError : the columns contain something else, or atoms have alternate locations
    """
    total = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.startswith(("ATOM", "HETATM")):
            continue
        if line[16:17].strip():
            raise InputError("alternate locations of atoms (column 17): keep one of each")
        word = line[78:80].strip()
        if not word or word.strip("+-") == "0":
            continue
        match = re.fullmatch(r"(?:([1-9])([+-])|([+-])([1-9]))", word)
        if match is None:
            raise InputError(
                f"charge {word!a} in columns 79 and 80: expected a number and a sign, such as 1-",
                line=number,
            )
        total += int((match[2] or match[3]) + (match[1] or match[4]))
    return total


# --- single frames --------------------------------------------------------------------------------

DATABASE = ".db"  # file ending
COUNT = re.compile(r"\s*[0-9]{1,9}\s*")
KEPT_FILES = 8  # whose texts are kept in memory


class Frame(NamedTuple):
    """A frame by number, and its own name, "" if it has none."""

    number: int
    name: str


def frames_in(path: Path) -> list[Frame]:
    """The frames of a file of several molecules; empty for a file of one molecule.

    A file that cannot be read, or contains no molecules, counts as a file of one: the error appears
    when its molecule is read.

    Raises
    ------
    InputError : a database without rows, or too many frames
    BackendUnavailable : ASE, which reads databases, is missing
    """
    if path.suffix.lower() == DATABASE:
        frames = [Frame(row.id, _name_of(row)) for row in _rows(path)]
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
        From 1; in a database the `id` of a row.
    units, charge, multiplicity, called : as in `dfmp2.molecule.files.read_file`

    Raises
    ------
    InputError : the frame does not exist, or is not a molecule
    BackendUnavailable : ASE is missing
    """
    file = f"{called or path}, frame {number}"
    if path.suffix.lower() == DATABASE:
        if units != "angstrom":
            raise InputError(
                Option("units", units), ": databases of ASE are in angstrom: leave it out"
            ).placed(file=file)
        return _of_database(path, number, file, charge, multiplicity)
    blocks = _kept_blocks(path, _state_of_file(path))
    if not 1 <= number <= len(blocks):
        raise InputError(f"there is no such frame: it has {len(blocks)}", file=file)
    state = {"units": units, "charge": charge, "multiplicity": multiplicity}
    return parse_block(blocks[number - 1], file, path.suffix.lower(), state).molecule


@lru_cache(maxsize=KEPT_FILES)
def _kept_blocks(path: Path, _changed: tuple[int, int]) -> list[str]:
    """The texts of all frames; `_changed` distinguishes versions of the file in the cache."""
    return blocks_of(path)


def _state_of_file(path: Path) -> tuple[int, int]:
    """Size and time of the last change, ns; 0 and 0 if the file does not exist."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _count(path: Path) -> int:
    """Number of frames if there are several, else 0."""
    try:
        blocks = _kept_blocks(path, _state_of_file(path))
    except InputError:
        return 0
    if len(blocks) < 2:
        return 0
    of_xyz = path.suffix.lower() not in (".sdf", ".pdb", ".mol")
    if of_xyz and not COUNT.fullmatch(blocks[1].partition("\n")[0]):
        return 0  # the text after the first frame is not a frame
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
        charge = _stated(row, "charge", file)
    if multiplicity is None:
        multiplicity = _stated(row, "multiplicity", file)
    try:
        molecule = Molecule.from_ase(row.toatoms(), charge=charge, multiplicity=multiplicity)
    except InputError as error:
        raise error.placed(file=file) from error
    name = _name_of(row) or f"{path.stem}-{number}"
    return replace(molecule, name=name, source=printable(file))


def _name_of(row: Any) -> str:
    """The name of a row, by its key or in its data, where data sets have it; "" if it has none."""
    return str(row.get("name") or row.data.get("name") or "")


def _stated(row: Any, quantity: str, file: str) -> int | None:
    """The charge or multiplicity among the keys of a row and in its data; None where neither has
    it.

    ASE's rows have an attribute `charge`, the sum of the initial charges, which hides a key of that
    name from `key_value_pairs`: `vars` has what was written.

    Raises
    ------
    InputError : it is no whole number, or two of them differ
    """
    stated = {key: vars(row)[key] for key in keys_of(quantity, row.key_value_pairs)}
    for key in keys_of(quantity, row.data):
        if row.data[key] is not None:
            stated[f"{key} of its data"] = row.data[key]
    for key, value in stated.items():
        if not _is_whole(value):
            raise InputError(f"{key} is {value!r}: expected a whole number", file=file)
    if len({int(value) for value in stated.values()}) > 1:
        said = ", ".join(f"{key} = {value}" for key, value in stated.items())
        raise InputError(f"{said} contradict each other: correct one", file=file)
    if not stated:
        return None
    return int(next(iter(stated.values())))


def _is_whole(value: Any) -> bool:
    """Whether a value of a database is a whole number."""
    if isinstance(value, bool | np.bool_ | str):
        return False
    try:
        return bool(value == int(value))
    except (TypeError, ValueError, OverflowError):  # a list or an array; NaN; an infinity
        return False


def units_alone(units: str) -> InputError:
    """The error of a unit of point charges where there are none."""
    return InputError(
        Option("point_charge_units", units),
        " belongs to ",
        Option("point_charges"),
        ": add it, or leave this out",
    )


def read_point_charges(given: Any, units: str) -> NDArray[np.float64] | None:
    """Point charges (n, 4), x, y, z in bohr and charge in e, from a file or from numbers; None if
    `given` is None.

    Parameters
    ----------
    given : path of a file with lines of x, y, z and charge, or rows of these numbers
    units : unit of x, y, z: "angstrom" or "bohr"

    Raises
    ------
    InputError : the file cannot be read or has another content; names file and line; or a unit
        other than the default without point charges
    """
    if not isinstance(units, str) or units not in UNITS:
        raise InputError(Option("point_charge_units", units), ": expected angstrom or bohr")
    if given is None:
        if units != "angstrom":
            raise units_alone(units)
        return None
    file = None
    try:
        if isinstance(given, str | os.PathLike):
            too_large = f"{MORE}: expected the point charges around one molecule"
            file, text = read_text(Path(given), MAX_BYTES, too_large, CHARGES)
            given = _charges(unix_lines(text))
        return checked(given, UNITS[units])
    except InputError as error:
        if file is None:  # numbers, or a file already named by `read_text`
            raise
        raise error.placed(file=file, line=error.line) from error


def _charges(text: str) -> list[tuple[float, ...]]:
    rows: list[tuple[float, ...]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            if len(words) != 4 or len(line) > MAX_LINE:
                raise InputError(
                    f"{shown(line.strip())}: expected x, y, z and charge, four numbers with spaces "
                    "between them, and # before a comment"
                )
            rows.append(tuple(map(read_number, words)))
        except InputError as error:
            raise error.placed(line=number) from error
    if not rows:
        raise InputError("no point charge: expected lines of x, y, z and charge")
    if len(rows) > MOST_CHARGES:
        raise InputError(f"more than {MOST_CHARGES} charges: leave out those far away")
    return rows
