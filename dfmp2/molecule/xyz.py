"""Strict reader and writer of xyz and extended xyz files: anything not understood is rejected.

    3                                   number of atoms
    charge=0 multiplicity=1             comment; charge and spin in it are used or rejected
    O   0.000000  0.000000  0.117300    symbol (or atomic number), x, y, z; @O, Gh(O), O:, O-Bq: ghost
    H   0.000000  0.757200 -0.469200
    H   0.000000 -0.757200 -0.469200    numeric columns after the fourth are ignored

In extended xyz, Properties=species:S:1:pos:R:3:... in the comment says which columns to read; if
initial_charges and initial_magmoms are among them, their sums give the charge and the unpaired
electrons; masses of other isotopes are rejected. Text is never evaluated; size, number of atoms and
line lengths are bounded before parsing.

Trajectories and scans contain several frames, one after another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, Option
from dfmp2.molecule.atom_words import read_symbol, without_ghost_mark
from dfmp2.molecule.comment import (
    Statement,
    charges_of_formulas,
    numbers_alone,
    require_electrons,
    settle,
    statements,
)
from dfmp2.molecule.elements import SYMBOLS, require_usual_mass
from dfmp2.molecule.molecule import MAX_COORDINATE, Molecule
from dfmp2.molecule.text import name_of_file, printable, read_text, shown
from dfmp2.units import ANGSTROM_PER_BOHR, BOHR_PER_ANGSTROM, counted_text

MAX_BYTES = 64 * 10**6
MORE = f"more than {MAX_BYTES // 10**6} MB"
TOO_LARGE = f"{MORE}: expected the xyz file of one molecule; extract it first"
MAX_ATOMS = 100_000
MOST_FRAMES = 10_000
MAX_COMMENT = 100_000  # characters; extended xyz puts whole arrays there
MAX_LINE = 4096  # characters of an atom line
UNITS = {"angstrom": BOHR_PER_ANGSTROM, "bohr": 1.0}

_UNIT = re.compile(  # units=bohr; coordinates in a.u.
    r"(?<![\w-])(?<!energy )(?:units?|coord(?:inate)?s?|geometry|positions?)\s*[:=]?\s*"
    r"(?:(?:are|is|given|in)\s+)*[\"'(\[]*(?:(?P<bohr>bohrs?|a\.u\.|(?<=units[=:])au|(?<=units[=:][ ])au"
    r"|atomic[ _]units)|(?P<angstrom>angstroms?|ang))(?![\w/])[\"')\]]?",
    re.ASCII | re.IGNORECASE,
)

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eEdD][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_LOOKALIKES = {
    "\u2010": "hyphen",
    "\u2011": "hyphen",
    "\u2012": "dash",
    "\u2013": "dash",
    "\u2212": "minus",
}
_COLUMN = re.compile(r"(\w+):([SRIL]):([1-9][0-9]?)", re.ASCII)
_QUOTED_NUMBER = re.compile(r"""["'{]\s*[+-]?[0-9./]{1,20}[+-]?\s*["'}]""")
# Keys whose quoted values are read as charge and spin, also those that are words.
STATE_KEYS = {
    "charge",
    "chg",
    "chrg",
    "total_charge",
    "net_charge",
    "molecular_charge",
    "multiplicity",
    "mult",
    "spin_multiplicity",
    "molecular_multiplicity",
    "spin",
    "unpaired",
    "magmom",
}
# Columns of atoms -> what they add up to, and whether the user sets them (or they are results).
SUMS = {
    "initial_charges": ("charge", True),
    "initial_magmoms": ("multiplicity", True),
    "charges": ("charge", False),
    "magmoms": ("multiplicity", False),
}
_COLUMNS = re.compile(rf"{_COLUMN.pattern}(?::{_COLUMN.pattern})*", re.ASCII)
# key=value at the beginning of a word. Quoted and braced values may contain anything, even
# "charge="; the bound on the latter keeps the search linear.
_PAIR = re.compile(
    r"""(?<![^\s,;])["']?([A-Za-z_][\w-]*)["']?[ \t]*=[ \t]*("[^"]*"|'[^']*'|\{[^}]{0,1000}\}|[^\s,;]*)""",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class XyzFile:
    """A molecule and where its charge and multiplicity came from.

    Attributes
    ----------
    molecule : the molecule, coordinates in bohr
    charge_from, multiplicity_from : "option", "comment line" or "default" (charge 0, multiplicity
        1)
    """

    molecule: Molecule
    charge_from: str
    multiplicity_from: str

    def in_field(self, charges: NDArray[np.float64] | None) -> XyzFile:
        """The same with point charges around the molecule (`dfmp2.molecule.point_charges`)."""
        return replace(self, molecule=self.molecule.in_field(charges))


def read_xyz(
    path: str | Path,
    *,
    units: str = "angstrom",
    charge: int | None = None,
    multiplicity: int | None = None,
) -> XyzFile:
    """Read one molecule from an xyz file, or from standard input for the path "-".

    Parameters
    ----------
    units : "angstrom" or "bohr", the unit of the coordinates in the file
    charge, multiplicity : override the comment line if given

    Raises
    ------
    InputError : the file cannot be read, or is not an xyz file of one molecule
    """
    file, text = read_text(path, MAX_BYTES, TOO_LARGE)
    return parse_xyz(text, file=file, units=units, charge=charge, multiplicity=multiplicity)


def parse_xyz(
    text: str,
    *,
    file: str,
    units: str = "angstrom",
    charge: int | None = None,
    multiplicity: int | None = None,
) -> XyzFile:
    """Molecule from the text of an xyz file; `file` names it in errors, other parameters as in
    `read_xyz`."""
    if not isinstance(units, str) or units not in UNITS:
        raise InputError(f"units {units!r}: expected angstrom or bohr")
    try:
        lines = _split_frame(text)
        _require_units(lines[1], units)
        pairs = _read_pairs(lines[1])
        columns = _read_columns(pairs)
        listed, states = _read_states(lines, pairs, charge, multiplicity)
        (charge, charge_from), (multiplicity, multiplicity_from) = states
        atoms = [
            _read_atom(line, number, columns, UNITS[units])
            for number, line in enumerate(lines[2:], start=3)
        ]
        _require_usual_masses(pairs, lines[2:])
        symbols, ghost, points = zip(*atoms, strict=True)
        molecule = Molecule(
            symbols=symbols,
            coordinates=np.array(points),
            ghost=ghost,
            charge=charge,
            multiplicity=multiplicity,
            name=name_of_file(file),
            source=printable(file),
            text=text,
        )
        if charge_from != "option":
            require_electrons(listed, molecule.nuclear_charge, molecule.charge)
    except InputError as error:
        raise error.placed(file=file, line=error.line) from error
    return XyzFile(molecule, charge_from, multiplicity_from)


def parse_text(
    text: str,
    *,
    units: str,
    charge: int | None,
    multiplicity: int | None,
) -> Molecule:
    """Molecule from a text: an xyz file, or just atoms separated by line ends or semicolons.

    Parameters as in `read_xyz`.

    Raises
    ------
    InputError : names the line; without the header, lines of atoms count from 1
    """
    given: dict[str, Any] = {
        "file": "text",
        "units": units,
        "charge": charge,
        "multiplicity": multiplicity,
    }
    if not isinstance(text, str):
        raise InputError(
            f"the molecule is a {type(text).__name__}: expected text, as in 'O 0 0 0; H 0 0 0.96'"
        )
    atoms = [line for line in re.split("[;\n]", unix_lines(text)) if line.strip()]
    if not atoms or len(atoms[0].split()) < 2:
        return replace(parse_xyz(text, **given).molecule, name="molecule", source="python")
    try:
        found = parse_xyz("\n".join([str(len(atoms)), "", *atoms]), **given).molecule
    except InputError as error:
        if error.line is None:
            raise
        raise InputError(error.reason, file="text", line=max(1, error.line - 2)) from error
    return replace(found, name="molecule", source="python", text=text)


def write_xyz(molecule: Molecule) -> str:
    """Text of an xyz file, coordinates in angstrom with 12 decimals; `parse_xyz` reads it back to
    within 1e-11 bohr."""
    rows = (
        f"{label:<4s}{x:20.12f}{y:20.12f}{z:20.12f}"
        for label, (x, y, z) in zip(
            molecule.labels, molecule.coordinates * ANGSTROM_PER_BOHR, strict=True
        )
    )
    comment = f"charge={molecule.charge} multiplicity={molecule.multiplicity}"
    return "\n".join([str(molecule.natom), comment, *rows]) + "\n"


def unix_lines(text: str) -> str:
    """The text with Unix line ends, and no blank lines at its end."""
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip()


def _split_frame(text: str) -> list[str]:
    """Count, comment and exactly the announced number of atom lines; nothing is split until the
    counts agree."""
    body = unix_lines(text)
    if not body:
        raise InputError("empty: expected the number of atoms, a comment line and the atoms")
    natom = _read_count(body.partition("\n")[0])
    present = body.count("\n") - 1
    if present < 0:
        raise InputError(
            "ends too early: expected a comment line (may be blank) and the atoms", line=1
        )
    begin = body.index("\n") + 1
    second = body[begin : begin + MAX_LINE].partition("\n")[0]
    if _is_atom(second):
        raise InputError(
            f"{shown(second)} is an atom, where the comment line belongs: insert a line after the "
            "number of atoms (may be blank)",
            line=2,
        )
    if natom > present:
        raise InputError(
            f"announces {natom} atoms, but {counted_text(present, 'atom line')} "
            f"follow{'s' * (present == 1)} the comment: correct the count or add the missing atoms",
            line=1,
        )
    lines = body.split("\n", natom + 2)
    if present > natom:
        raise _too_many_lines(lines[-1], natom)
    if len(lines[1]) > MAX_COMMENT:
        raise InputError(f"comment longer than {MAX_COMMENT} characters: shorten it", line=2)
    return lines


def _too_many_lines(rest: str, natom: int) -> InputError:
    """The error for text behind the announced number of atoms; names its first line that is not
    blank."""
    extra = rest.lstrip()
    number = natom + 3 + rest[: len(rest) - len(extra)].count("\n")
    extra = extra.partition("\n")[0]
    if _INTEGER.fullmatch(extra[:MAX_LINE].strip()):
        return InputError(
            "a second frame: multi-frame files are not accepted; keep one frame per file",
            line=number,
        )
    return InputError(
        f"{shown(extra)} follows the {natom} atoms announced on line 1: correct the count or "
        "remove it",
        line=number,
    )


def _read_count(header: str) -> int:
    token = header[:MAX_LINE].strip()
    if len(header) > MAX_LINE or not _INTEGER.fullmatch(token):
        raise InputError(
            "not an xyz file: expected the number of atoms alone on line 1, found "
            f"{shown(header)}; convert other formats first (for example with Open Babel)",
            line=1,
        )
    natom = abs(int(token))
    if token.startswith("-") or natom == 0:
        raise InputError(f"{shown(token)} atoms: expected 1 or more", line=1)
    if natom > MAX_ATOMS:
        raise InputError(
            f"announces {shown(token)} atoms: at most {MAX_ATOMS} are accepted", line=1
        )
    return natom


def _read_pairs(comment: str) -> dict[str, list[str]]:
    """The key=value words of the comment line, keys in lower case; periodic structures are
    rejected."""
    pairs: dict[str, list[str]] = {}
    for key, value in _PAIR.findall(comment):
        pairs.setdefault(key.lower(), []).append(value.strip("\"'{} \t"))
    if "lattice" in pairs or any(
        re.search("[t1]", value, re.IGNORECASE) for value in pairs.get("pbc", [])
    ):
        raise InputError(
            "periodic structure (Lattice= or pbc=): only molecules are handled; remove these keys "
            "if it is one",
            line=2,
        )
    return pairs


def _require_units(comment: str, units: str) -> None:
    """Raise for a comment such as `units=bohr` that names another unit of the coordinates."""
    for match in _UNIT.finditer(comment[:MAX_COMMENT]):
        stated = "bohr" if match["bohr"] else "angstrom"
        if stated != units:
            raise InputError(
                f"{shown(match[0])} contradicts coordinates in {units}: pass ",
                Option("units", stated),
                ", or correct the comment",
                line=2,
            )


def _read_states(
    lines: list[str], pairs: dict[str, list[str]], charge: int | None, multiplicity: int | None
) -> tuple[list[Statement], tuple[tuple[int, str], tuple[int, str]]]:
    """All statements of the file about charge and spin, and the values used, each with its origin.

    Parameters
    ----------
    lines : lines of the file
    pairs : key=value words of the comment line
    charge, multiplicity : options, which take precedence if not None
    """
    try:
        symbols = _real_symbols(lines[2:], _column_places(pairs).get("species", (0, 1))[0])
        listed = [
            *_read_state(lines[1]),
            *_read_sums(pairs, lines[2:]),
            *charges_of_formulas(lines[1], symbols),
        ]
        charged = settle("charge", listed, charge, default=0)
        coupled = settle("multiplicity", listed, multiplicity, default=1)
        if "default" in (charged[1], coupled[1]):
            _require_no_other_state(lines[1], charged[0], coupled[0])
    except InputError as error:
        raise error.placed(line=2) from error
    return listed, (charged, coupled)


def _real_symbols(rows: list[str], place: int) -> list[str]:
    """The symbols in a column, from 0, without ghosts; wrong ones, which are refused later, are left
    out."""
    symbols = []
    for row in rows:
        for word in row.split()[place : place + 1]:
            with suppress(InputError):
                symbol, ghost = read_symbol(word)
                if not ghost:
                    symbols.append(symbol)
    return symbols


def _read_state(comment: str) -> list[Statement]:
    """Statements of the comment line about charge and spin; quoted texts are read separately."""
    hidden = []

    def set_apart(match: re.Match[str]) -> str:
        key, value = match[1].lower(), match[2]
        if key in ("properties", "pbc"):
            return ""
        quoted = value[:1] in ("'", '"', "{")
        if not quoted or key in STATE_KEYS or _QUOTED_NUMBER.fullmatch(value):
            return match[0]
        hidden.append(value[1:-1])
        return ""

    return statements(_PAIR.sub(set_apart, comment), hidden)


def _read_sums(pairs: dict[str, list[str]], rows: list[str]) -> list[Statement]:
    """Sums of the columns of atomic charges and magnetic moments that are not zero; of moments that
    are vectors, the length of their sum."""
    listed = []
    for name, (place, width) in _column_places(pairs).items():
        if name not in SUMS:
            continue
        sums = [_sum_of_column(rows, place + k) for k in range(width)]
        total = sums[0] if width == 1 else math.hypot(*sums)
        if not abs(total) < 1e-6:  # also for NaN
            listed.append(_of_a_sum(name, total))
    return listed


def _sum_of_column(rows: list[str], place: int) -> float:
    """Sum of the numbers in a column, from 0; rows without it and words are left out."""
    words = [row.split()[place : place + 1] for row in rows]
    return sum(read_number(word[0]) for word in words if word and _NUMBER.fullmatch(word[0]))


def _of_a_sum(name: str, total: float) -> Statement:
    """What the sum of a column states."""
    quantity, set_by_user = SUMS[name]
    words = f"column {name}, which adds up to {total:.6g},"
    if not math.isfinite(total):
        return Statement(quantity, words, certain=False, why="is not a whole number")
    whole = round(total)
    distance = abs(total - whole)
    meanings = frozenset({abs(whole) + 1 if quantity == "multiplicity" else whole})
    if distance <= 1e-6 and set_by_user:
        return Statement(quantity, words, meanings)
    why = f"does not match the {quantity} used"
    if distance >= 0.1:
        meanings, why = frozenset(), "is not a whole number"
    return Statement(quantity, words, meanings, certain=False, why=why)


def _require_usual_masses(pairs: dict[str, list[str]], rows: list[str]) -> None:
    """Raise for a column of masses with another isotope, because no run uses it."""
    places = _column_places(pairs)
    for name in ("mass", "masses"):
        if name not in places:
            continue
        for number, row in enumerate(rows, start=3):
            words = row.split()
            symbol, _ = read_symbol(words[places["species"][0]])
            try:
                require_usual_mass(symbol, read_number(words[places[name][0]]))
            except InputError as error:
                raise error.placed(line=number) from error


def _require_no_other_state(comment: str, charge: int, multiplicity: int) -> None:
    """Raise for a comment such as `-1 1` that other programs read as a different charge and
    multiplicity."""
    numbers = numbers_alone(comment)
    if numbers is not None and numbers != (charge, multiplicity):
        raise InputError(
            f"{shown(comment.strip())} looks like charge and multiplicity, which are read by name "
            f"only: write charge={numbers[0]} multiplicity={numbers[1]}, or pass both as options",
            line=2,
        )


def _column_places(pairs: dict[str, list[str]]) -> dict[str, tuple[int, int]]:
    """First column and width of each name in Properties=, {} in plain xyz."""
    places: dict[str, tuple[int, int]] = {}
    total = 0
    for name, _, width in _COLUMN.findall(":".join(pairs.get("properties", []))):
        places[name] = (total, int(width))
        total += int(width)
    return places


def _read_columns(pairs: dict[str, list[str]]) -> tuple[int, int, int] | None:
    """(symbol column, first coordinate column, number of columns) from Properties=, None in plain
    xyz."""
    if "properties" not in pairs:
        return None
    text = ":".join(pairs["properties"])
    fields = _COLUMN.findall(text)
    start, total = {}, 0
    for name, kind, width in fields:
        start[f"{name}:{kind}:{width}"] = total
        total += int(width)
    if not (
        _COLUMNS.fullmatch(text)
        and len(start) == len(fields)
        and {"species:S:1", "pos:R:3"} <= start.keys()
    ):
        raise InputError(
            f"Properties={shown(text)}: expected species:S:1 and pos:R:3, and name:type:width for "
            "other columns",
            line=2,
        )
    return start["species:S:1"], start["pos:R:3"], total


def _read_atom(
    line: str, number: int, columns: tuple[int, int, int] | None, scale: float
) -> tuple[str, bool, tuple[float, ...]]:
    """Symbol, ghost flag and coordinates in bohr of one atom line."""
    try:
        words = _words_of_atom(line)
        if columns is not None and len(words) != columns[2]:
            raise InputError(
                f"{len(words)} columns, but Properties= on line 2 announces {columns[2]}"
            )
        if len(words) < 4:
            raise InputError(
                f"{shown(line) if words else 'blank line'}: expected a symbol and x, y, z"
            )
        species, first, _ = columns or (0, 1, 4)
        symbol, ghost = read_symbol(words[species])
        point = tuple(read_number(word) * scale for word in words[first : first + 3])
        if max(map(abs, point)) >= MAX_COORDINATE:
            raise InputError(
                f"{shown(line)}: a coordinate of {MAX_COORDINATE:g} bohr or more; check number and "
                "units"
            )
        if columns is None:
            for word in words[4:]:
                read_number(word)  # text here means that the columns are shifted
    except InputError as error:
        raise error.placed(line=number) from error
    return symbol, ghost, point


def _words_of_atom(line: str) -> list[str]:
    """The words of an atom line, which must be short and ASCII."""
    if len(line) <= MAX_LINE and line.isascii():
        return line.split()
    strange = next((letter for letter in line[:MAX_LINE] if not letter.isascii()), "")
    advice = ""
    if strange in _LOOKALIKES:
        advice = f"; {shown(strange)} is a {_LOOKALIKES[strange]}, write -"
    raise InputError(
        f"{shown(line)}: expected at most {MAX_LINE} ASCII characters, a symbol and x, y, z{advice}"
    )


def _is_atom(line: str) -> bool:
    """Whether a line is a symbol and three numbers, possibly followed by more numbers."""
    words = line.replace("\u2212", "-").replace(",", ".").split()
    if len(words) < 4 or not all(map(_NUMBER.fullmatch, words[1:])):
        return False
    symbol, _ = without_ghost_mark(words[0])
    return symbol.capitalize() in SYMBOLS


def read_number(word: str) -> float:
    """A decimal number, also with Fortran's D exponent.

    Raises
    ------
    InputError : it is not a number
    """
    if not _NUMBER.fullmatch(word):
        if "," in word and _NUMBER.fullmatch(word.replace(",", ".", 1)):
            raise InputError(
                f"{shown(word)} has a decimal comma: write {word.replace(',', '.', 1)}"
            )
        raise InputError(f"{shown(word)}: expected a decimal number such as 0.7572 or 7.572D-1")
    return float(word.replace("D", "e").replace("d", "e"))


def frames_of(text: str) -> Iterator[tuple[int, str]]:
    """Number of the first line, from 1, and text of each frame of an xyz file."""
    lines = unix_lines(text).split("\n")
    place = 0
    while place < len(lines):
        word = lines[place].strip()
        if not word:
            place += 1  # blank lines between frames
            continue
        # 0: the reader will say what is wrong
        count = int(word) if re.fullmatch("[0-9]{1,9}", word) else 0
        yield place + 1, "\n".join(lines[place : place + count + 2])
        place += count + 2
