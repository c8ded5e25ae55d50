"""The basis set of each element and each atom, from one text.

    cc-pvdz                                   one set for all
    cc-pvdz,I=def2-tzvp,3=aug-cc-pvdz         another one for an element, and for atom 3 (from 1)
    cc-pvdz,C=sets/mine.gbs                   numbers from a file

A part is a file if it contains a folder or has one of the endings of FILE_ENDINGS; anything else is
a name, which is never looked up in the working directory. Once a file has been read, its hash is
appended, `/folder/mine.gbs#0123456789abcdef`: files are compared by hash, not by path.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dfmp2.errors import InputError, Option

FILE_ENDINGS = (".gbs", ".gbf", ".g94", ".nw", ".nwchem", ".bas", ".basis", ".dat", ".txt")
LONGEST = 400  # characters of a text that a message shows
LARGEST_FILE = 50 * 10**6  # bytes; all elements of the largest published set take 2 MB
BETWEEN_PARTS = re.compile(r",(?![^()]*\))")  # a comma outside parentheses, unlike in 6-31G(d,p)
NUMBER = re.compile("[0-9]{1,9}")  # of an atom; Unicode has other digits
DIGEST = re.compile(r"(.+)#([0-9a-f]{16})")
EXAMPLE = "cc-pvdz,I=def2-tzvp,3=aug-cc-pvdz"


@dataclass(frozen=True, slots=True)
class BasisParts:
    """The parts of a basis.

    Attributes
    ----------
    default : str
        Set for every atom that no other part names, "" for none.
    special : mapping of str to str
        Set by element symbol, as written, or by number of an atom, from 1.
    """

    default: str
    special: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_atoms(self) -> dict[int, str]:
        """The sets in `special` by number of an atom."""
        return {int(key): value for key, value in self.special.items() if key.isdigit()}

    @property
    def of_symbols(self) -> dict[str, str]:
        """The sets in `special` by element symbol, as written."""
        return {key: value for key, value in self.special.items() if not key.isdigit()}

    @property
    def text(self) -> str:
        """The parts as one text."""
        default = [self.default] if self.default else []
        return ",".join([*default, *(f"{key}={value}" for key, value in self.special.items())])

    def of_elements(self, elements: Iterable[str]) -> dict[str, str]:
        """The sets in `special` for atoms by number, and for those elements that are present."""
        present = {symbol.lower() for symbol in elements}
        absent = {key for key in self.of_symbols if key.lower() not in present}
        return {key: value for key, value in self.special.items() if key not in absent}

    @property
    def files(self) -> list[str]:
        """The values that are files."""
        return [value for value in (self.default, *self.special.values()) if is_file(value)]

    @property
    def mixed(self) -> bool:
        """Whether it is more than the name of one set."""
        return bool(self.special) or is_file(self.default)


def parse_parts(text: str) -> BasisParts:
    """The parts of a text.

    Raises
    ------
    InputError : a part is empty, two parts are for all atoms, or for the same ones, or a number is
        no atom's
    """
    default, special = "", dict[str, str]()
    option = Option("basis", _shortened(text))
    for piece in [piece.strip() for piece in BETWEEN_PARTS.split(text)]:
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not piece or (equals and not (key and value)):
            raise InputError(
                option,
                f": part {_shortened(piece)!r} is empty: expected parts as in {EXAMPLE}",
            )
        if equals:
            if key.isdigit() and not NUMBER.fullmatch(key):
                raise InputError(
                    option,
                    f": {key[:20]} is no number of an atom: expected parts as in {EXAMPLE}",
                )
            if key.isdigit():
                key = str(int(key))
            if key.lower() in (known.lower() for known in special):
                raise InputError(option, f": {_shortened(key)} is given twice: leave one out")
            special[key] = value
            continue
        if default:
            raise InputError(
                option,
                f": {_shortened(default)} and {_shortened(piece)} are both for all atoms: say which "
                f"element or atom one of them is for, as in {EXAMPLE}",
            )
        default = piece
    return BasisParts(default, special)


def _shortened(text: str) -> str:
    """The beginning of a text that is too long for a message."""
    if len(text) > LONGEST:
        return f"{text[:LONGEST]}..."
    return text


def is_file(value: str) -> bool:
    """Whether a part is a file, not the name of a set."""
    path = path_of(value)
    return "/" in path or os.sep in path or path.lower().endswith(FILE_ENDINGS)


def path_of(value: str) -> str:
    """The path of a part that is a file, without its hash."""
    match = DIGEST.fullmatch(value)
    return match[1] if match else value


def change_files(text: str, change: Callable[[str], str]) -> str:
    """The text with a function applied to its files; unchanged if there are none."""
    parts = parse_parts(text)
    if not parts.files:
        return text
    default = parts.default
    if is_file(default):
        default = change(default)
    special = {
        key: change(value) if is_file(value) else value for key, value in parts.special.items()
    }
    return BasisParts(default, special).text


def with_hashes(text: str) -> str:
    """The text with absolute paths and hashes of its files; files without a hash are read.

    Raises
    ------
    InputError : a file cannot be read, or the text is not a list of parts
    """

    def signed(value: str) -> str:
        if DIGEST.fullmatch(value):
            return value
        digest = hashlib.sha256(_content(value)).hexdigest()[:16]
        return f"{Path(value).expanduser().absolute()}#{digest}"

    return change_files(text, signed)


def title_of(text: str) -> str:
    """The text in readable form: files without folders and hashes."""
    return change_files(text, lambda value: Path(path_of(value)).name)


def with_contents(text: str) -> str:
    """The text with the hash of each file in its place, so that equal files compare equal."""

    def content(value: str) -> str:
        match = DIGEST.fullmatch(value)
        return f"file {match[2]}" if match else value

    return change_files(text, content)


def read_basis_file(value: str) -> tuple[str, str]:
    """Name of a file without its folder, and its text.

    Raises
    ------
    InputError : it cannot be read, is not text, or has changed since its hash was taken
    """
    path = Path(path_of(value))
    content = _content(str(path))
    match = DIGEST.fullmatch(value)
    if match and hashlib.sha256(content).hexdigest()[:16] != match[2]:
        raise InputError(
            Option("basis"),
            f": {path} is not the file that this calculation began with: restore that file, or "
            "start again",
        )
    try:
        return path.name, content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            Option("basis"), f": {path} is not a text file ({error.reason})"
        ) from error


def _content(file: str) -> bytes:
    """The bytes of a file.

    Raises
    ------
    InputError : it cannot be read, or is too large to be a basis set
    """
    try:
        path = Path(file).expanduser()
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(Option("basis"), f": {file} is too large for a file of basis sets")
        return path.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, an unknown ~user
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            Option("basis"),
            f": {file} cannot be read ({reason}); a part with a folder, or one of the "
            f"endings {' '.join(FILE_ENDINGS)}, is a file",
        ) from error


def for_part(text: str, symbols: Sequence[str], atoms: Sequence[int]) -> str:
    """The basis of a part of a molecule, in which atoms are numbered differently.

    Parameters
    ----------
    text : str
        Basis of the whole molecule.
    symbols : sequence of str
        Elements of its atoms.
    atoms : sequence of int
        Atoms of the part, from 0.
    """
    parts = parse_parts(text)
    if not parts.special:
        return text
    place = {atom + 1: number for number, atom in enumerate(atoms, start=1)}
    special = {}
    for key, value in parts.of_elements(symbols[atom] for atom in atoms).items():
        if not key.isdigit():
            special[key] = value
        elif int(key) in place:
            special[str(place[int(key)])] = value
    return BasisParts(parts.default, special).text


def for_elements(text: str, elements: Sequence[str]) -> str:
    """The basis of one of several molecules, without sets of elements that it does not contain.

    Parameters
    ----------
    text : str
        Basis of all molecules.
    elements : sequence of str
        Element symbols of the molecule.

    Raises
    ------
    InputError : nothing is left
    """
    parts = parse_parts(text)
    special = parts.of_elements(elements)
    if len(special) == len(parts.special):
        return text
    if not parts.default and not special:
        raise InputError(
            Option("basis", title_of(text)),
            f" has no set for {', '.join(elements)}: add one for all others in front, as in "
            f"cc-pvdz,{title_of(text)}",
        )
    return BasisParts(parts.default, special).text


def require_elements(text: str, elements: Iterable[str]) -> None:
    """Raise for a set of an element that none of several molecules contains.

    Parameters
    ----------
    text : str
        Basis of all molecules.
    elements : iterable of str
        Element symbols of all molecules.

    Raises
    ------
    InputError : names the element
    """
    parts = parse_parts(text)
    present = parts.of_elements(elements)
    for key in parts.special:
        if key not in present:
            raise InputError(
                Option("basis", title_of(text)),
                f": there is no {key} in any of the molecules: leave out {key}=, or correct it",
            )


def common_basis(texts: Iterable[str]) -> str | None:
    """The common basis of several molecules, each of which has its part of it; None if they have
    different bases.

    Two sets for the same element, for the same atom, or for all other atoms are different bases.
    """
    different = list(dict.fromkeys(texts))
    if len(different) == 1:
        return different[0]
    bases = [parse_parts(text) for text in different]
    sets = {(key, value) for basis in bases for key, value in basis.special.items()}
    special = dict(item for basis in bases for item in basis.special.items())
    if len({basis.default for basis in bases}) != 1 or len(special) != len(sets):
        return None
    if any(basis.of_atoms for basis in bases):
        return None
    return BasisParts(bases[0].default, special).text
