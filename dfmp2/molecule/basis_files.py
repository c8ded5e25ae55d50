"""Basis sets and core potentials from files in the formats of NWChem and Gaussian94.

    NWChem                          Gaussian94
    BASIS "ao basis" SPHERICAL      ****
    C    S                          C  0
      3047.5  0.0018347  0.2        S  3  1.00
    END                               3047.5  0.0018347
    ECP                             ****
    I nelec 28                      I  0
    I ul                            I-ECP  3  28
    2  1.0  0.0                     f potential
    I S                               1
    0  ...                          2  1.0  0.0

All functions are spherical, as in a set used by name, whatever the file says: the Basis Set
Exchange calls Pople's sets Cartesian. SP shells share their exponents. In an NWChem shell, each
additional column is another contraction. A term of a core potential is r^(n-2) coefficient
exp(-exponent r^2) in both formats, written as n, exponent, coefficient. A line in neither format is
an error that quotes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dfmp2.errors import InputError, Option
from dfmp2.molecule.basis import ElementBasis, nested_tuples, tidy_shells
from dfmp2.molecule.elements import normalise_symbol

LETTERS = "SPDFGHIKLMNO"  # of angular momenta; J is skipped
MOST_SHOWN = 60  # characters of a line in a message
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([EeDd][+-]?\d+)?")
KINDS = ("spherical", "cartesian")  # words in a file for its kind of functions
NWCHEM, GAUSSIAN = "NWChem", "Gaussian94"


@dataclass
class _Element:
    """Data read for an element: shells and core potential in PySCF's form."""

    shells: list[Any] = field(default_factory=list)
    core: int | None = None
    channels: dict[int, list[list[tuple[float, float]]]] = field(default_factory=dict)


class _Lines:
    """The lines of a file with their numbers, without comments and blank lines."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.lines = []
        for number, line in enumerate(text.splitlines(), start=1):
            words = re.split(r"[#!]", line, maxsplit=1)[0].split()
            if words:
                self.lines.append((number, line.strip(), words))
        self.at = 0

    def __iter__(self) -> Iterator[list[str]]:
        while self.at < len(self.lines):
            self.at += 1
            yield self.lines[self.at - 1][2]

    def next(self, expected: str) -> list[str]:
        """The words of the next line."""
        if self.at >= len(self.lines):
            raise InputError(Option("basis"), f": {self.name} ends where {expected} was expected")
        self.at += 1
        return self.lines[self.at - 1][2]

    def back(self) -> None:
        """Read the last line again."""
        self.at -= 1

    def refuse(self, expected: str) -> NoReturn:
        """Raise for the last line."""
        number, line, _ = self.lines[self.at - 1]
        raise InputError(
            Option("basis"),
            f": {self.name}, line {number}: {line[:MOST_SHOWN]!r}: expected {expected}",
        )

    def numbers(self, words: list[str], expected: str) -> list[float]:
        """The words of the last line as numbers, in which D may mark the exponent."""
        if not words or not all(NUMBER.fullmatch(word) for word in words):
            self.refuse(expected)
        return [float(word.upper().replace("D", "E")) for word in words]

    def momentum(self, letter: str) -> int:
        """The angular momentum for a letter of the last line."""
        found = LETTERS.find(letter.upper())
        if len(letter) != 1 or found < 0:
            self.refuse("a shell such as S, P, SP or D")
        return found

    def symbol(self, word: str) -> str:
        """The element named by a word of the last line."""
        try:
            return normalise_symbol(word)
        except InputError:
            self.refuse("the symbol of an element")


def parse_basis_file(name: str, text: str) -> dict[str, ElementBasis]:
    """The elements in a file.

    Parameters
    ----------
    name : str
        Name of the file, without its folder.
    text : str

    Raises
    ------
    InputError : it is in neither format; names the offending line
    """
    lines = _Lines(name, text)
    if not lines.lines:
        raise InputError(Option("basis"), f": {name} is empty: expected {NWCHEM} or {GAUSSIAN}")
    found: dict[str, _Element] = {}
    if _is_nwchem(lines):
        style = NWCHEM
        _read_nwchem(lines, found)
    else:
        style = GAUSSIAN
        _read_gaussian(lines, found)
    digest = hashlib.sha256(text.encode()).hexdigest()
    source = f"file {name} ({style}), sha256 {digest[:16]}"
    elements = {}
    for symbol, one in found.items():
        if not one.shells:
            raise InputError(
                Option("basis"), f": {name} has a core potential for {symbol} and no functions"
            )
        ecp = None
        if one.core is not None:
            channels = sorted(one.channels.items())
            ecp = (
                one.core,
                tuple((momentum, nested_tuples(terms)) for momentum, terms in channels),
            )
        elements[symbol] = ElementBasis(
            symbol=symbol,
            name=name,
            source=source,
            shells=tidy_shells(one.shells),
            ecp=ecp,
            ecp_source=source if ecp else None,
        )
    return elements


def _is_nwchem(lines: _Lines) -> bool:
    """Whether a file is in NWChem's format, by the first line that belongs to either format."""
    for words in lines:
        first = words[0].upper()
        if first in ("BASIS", "ECP"):
            lines.back()
            return True
        if set(first) == {"*"}:
            break
        ends = len(words) == 2 and words[1] == "0"
        if ends and first.lstrip("-").isalpha():
            lines.back()
            return False
        letters = len(words) == 2 and words[1].isalpha()
        if letters and first.isalpha():
            lines.back()
            return True
        lines.refuse(f"the start of a basis set in the format of {NWCHEM} or {GAUSSIAN}")
    return False


def _read_nwchem(lines: _Lines, found: dict[str, _Element]) -> None:
    potentials = False
    for words in lines:
        first = words[0].upper()
        if first == "BASIS":
            potentials = False
        elif first == "ECP":
            potentials = True
        elif first == "END":
            continue
        elif len(words) < 2 or not first.isalpha():
            lines.refuse("an element and a shell, such as C S")
        elif potentials:
            _read_nwchem_potential(lines, found, words)
        else:
            symbol, letters = lines.symbol(words[0]), words[1]
            momenta = [lines.momentum(letter) for letter in letters]
            rows = _rows(lines, 1 + len(momenta))
            _add_shells(found.setdefault(symbol, _Element()), momenta, rows)


def _rows(lines: _Lines, least: int) -> list[list[float]]:
    """Rows of numbers, up to a line that is not one."""
    rows: list[list[float]] = []
    for words in lines:
        if not NUMBER.fullmatch(words[0]):
            lines.back()
            break
        row = lines.numbers(words, "numbers: an exponent and its coefficients")
        if len(row) < least or (rows and len(row) != len(rows[0])):
            lines.refuse(f"an exponent and {least - 1} coefficients or more, as many in each row")
        if row[0] <= 0.0:
            lines.refuse("an exponent above zero")
        rows.append(row)
    if not rows:
        lines.next("a row of numbers")
        lines.refuse("an exponent and its coefficients")
    return rows


def _add_shells(element: _Element, momenta: list[int], rows: list[list[float]]) -> None:
    """Add a shell of one angular momentum with all columns, or one shell per angular momentum."""
    if len(momenta) == 1:
        element.shells.append([momenta[0], *rows])
        return
    for column, momentum in enumerate(momenta, start=1):
        element.shells.append([momentum, *([row[0], row[column]] for row in rows)])


def _read_nwchem_potential(lines: _Lines, found: dict[str, _Element], words: list[str]) -> None:
    element = found.setdefault(lines.symbol(words[0]), _Element())
    kind = words[1].upper()
    if kind == "NELEC":
        if len(words) != 3 or not words[2].isdigit():
            lines.refuse("the number of electrons that the potential replaces")
        element.core = int(words[2])
        return
    if element.core is None:
        lines.refuse("nelec of this element first")
    momentum = lines.momentum(kind) if kind != "UL" else -1
    terms: list[list[float]] = []
    for row in lines:
        if not NUMBER.fullmatch(row[0]):
            lines.back()
            break
        terms.append(_term(lines, row))
    element.channels[momentum] = _by_power(lines, terms)


def _term(lines: _Lines, words: list[str]) -> list[float]:
    """n, exponent and coefficient of a term."""
    values = lines.numbers(words, "a power, an exponent and a coefficient")
    if len(values) != 3 or values[0] not in range(5):
        lines.refuse("a power from 0 to 4, an exponent and a coefficient (no spin-orbit terms)")
    return values


def _by_power(lines: _Lines, terms: list[list[float]]) -> list[list[tuple[float, float]]]:
    """The terms of a channel by power of r, in PySCF's form."""
    if not terms:
        lines.refuse("a power, an exponent and a coefficient after it")
    powers: list[list[tuple[float, float]]] = [
        [] for _ in range(1 + int(max(term[0] for term in terms)))
    ]
    for power, exponent, coefficient in terms:
        powers[int(power)].append((exponent, coefficient))
    return powers


def _read_gaussian(lines: _Lines, found: dict[str, _Element]) -> None:
    for words in lines:
        if set(words[0]) == {"*"} or words[0].lower() in KINDS:
            continue
        if len(words) != 2 or words[1] != "0":
            lines.refuse("an element and 0, such as C 0")
        _read_gaussian_element(
            lines, found.setdefault(lines.symbol(words[0].lstrip("-")), _Element())
        )


def _read_gaussian_element(lines: _Lines, element: _Element) -> None:
    """Read shells up to ****, or the core potential of an element."""
    for words in lines:
        if set(words[0]) == {"*"}:
            return
        if words[0].upper().endswith("-ECP"):
            _read_gaussian_potential(lines, element, words)
            return
        if len(words) not in (2, 3) or not words[1].isdigit():
            lines.refuse("a shell, the number of its primitives and a scale factor, as in S 3 1.00")
        momenta = [lines.momentum(letter) for letter in words[0]]
        if len(words) == 3 and lines.numbers(words[2:], "a scale factor") != [1.0]:
            lines.refuse("a scale factor of 1.00")
        rows = []
        for _ in range(int(words[1])):
            row = lines.numbers(lines.next("a primitive"), "an exponent and its coefficients")
            if len(row) != 1 + len(momenta) or row[0] <= 0.0:
                lines.refuse(f"an exponent above zero and {len(momenta)} coefficients")
            rows.append(row)
        if rows:
            _add_shells(element, momenta, rows)


def _read_gaussian_potential(lines: _Lines, element: _Element, words: list[str]) -> None:
    if len(words) != 3 or not (words[1].isdigit() and words[2].isdigit()):
        lines.refuse(
            "the highest angular momentum and the electrons of a potential, as in I-ECP 3 28"
        )
    highest = int(words[1])
    element.core = int(words[2])
    for momentum in (-1, *range(highest)):
        lines.next("the name of a potential, such as s-f potential")
        count = lines.next("a number of terms")
        if len(count) != 1 or not count[0].isdigit():
            lines.refuse("a number of terms")
        terms = [_term(lines, lines.next("a term")) for _ in range(int(count[0]))]
        element.channels[momentum] = _by_power(lines, terms)
