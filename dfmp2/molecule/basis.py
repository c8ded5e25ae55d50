"""Basis sets as explicit numbers with their origin and hash, the names of sets, and files of sets.

Each name has one comparison key, which also tells what the set is for:

    "cc-pVDZ-RIFIT", "cc-pvdz_ri", "CC-PVDZ MP2FIT"  ->  "ccpvdzri"
    "6-31G(d,p)", "6-31gss"                          ->  "631g**"

A name is only ever compared with names from the libraries' own tables; it never becomes a path.

A name such as ``cc-pvdz`` is resolved once (`dfmp2.molecule.basis_library`). From then on the
numbers are passed on, so that a result can be reproduced even if a library redefines the name.

Shells are ((l, (exponent, c1, c2, ...), ...), ...) with exponents in bohr^-2. A potential is
(core electrons, ((l, (terms of r^0, terms of r^1, ...)), ...)) with terms (exponent, coefficient);
l = -1 is the local part.

Files of basis sets and core potentials are in the formats of NWChem and Gaussian94:

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
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from dfmp2.errors import Command, InputError, Option
from dfmp2.molecule.elements import normalise_symbol

if TYPE_CHECKING:
    from dfmp2.molecule.molecule import Molecule

GENERATED = "auto"  # the even-tempered set generated from the orbital basis

_ALLOWED = re.compile(r"[A-Za-z0-9+*(),_ -]{1,80}")
_POPLE = re.compile(r"(\d{3,4}\+{0,2}g)(s|ss|\(d\)|\(d,p\))")
_STARS = {"s": "*", "(d)": "*", "ss": "**", "(d,p)": "**"}
_MP2_SUFFIX = re.compile(r"(rifit|mp2fit)$")
_SPELLINGS = {  # PySCF's spelling of cc-pV(D+d)Z
    "ccpvdpdz": "ccpv(d+d)z",
    "augccpvdpdz": "augccpv(d+d)z",
}

# Purpose of a set that is no orbital basis; the first pattern that matches the key counts.
_KINDS: tuple[tuple[str, str, str], ...] = (
    (r".*optri\+?", "optri", "a complementary set for explicitly correlated methods"),
    (r".*ri", "ri", "an MP2 fitting set"),
    (r".*jkfit", "jk", "a Coulomb-exchange fitting set"),
    (r".*xfit", "xfit", "a fitting set for density functionals"),
    (r".*(fit|fituniversal|rij)|weigend.*|demon|ahlrichs", "j", "a Coulomb fitting set"),
    (r"(aug)?admm\d", "admm", "a set of the auxiliary density matrix method"),
    (r"sap(grasp|helfem).*", "guess", "a table of potentials for start orbitals"),
)
FITTING_KINDS = frozenset({"ri", "jk", "j"})  # kinds that can expand orbital products


def normalise(name: str) -> str:
    """Comparison key of a name: case, spaces, underscores and dashes are ignored.

    `-ri`, `-rifit` and `-mp2fit` are equivalent, as are `*`, `s` and `(d)` of the Pople sets.

    Raises
    ------
    InputError : empty, too long, or with characters that no basis set name contains
    """
    if re.search(r"\[\w{2}\]", name):
        raise InputError(
            Option("basis", name[:60]),
            " is a pair of basis sets, whose limit takes several runs: use ",
            Command("cbs"),
            " (",
            Command("interaction"),
            ", ",
            Command("scan"),
            " and ",
            Command("optimize"),
            " take it too), or name one basis",
        )
    if not _ALLOWED.fullmatch(name) or not (key := squash(name)):
        raise InputError(
            f"basis set name {name[:60]!r}: expected a name such as cc-pvdz or 6-31G(d,p), made of "
            "letters, digits and + * ( ) , - _; a file has an ending such as .gbs, or a folder"
        )
    return key


def squash(name: str) -> str:
    """`normalise` without its check, for names from a library."""
    key = re.sub(r"[\s_-]", "", name.lower().replace("_st_", "*").replace("_sl_", "/"))
    key = _MP2_SUFFIX.sub("ri", key)
    if pople := _POPLE.fullmatch(key):
        key = pople[1] + _STARS[pople[2]]
    return _SPELLINGS.get(key, key)


def readable(key: str) -> str:
    """A key in readable form, for sets whose library gives no better spelling: "631g*" becomes
    "6-31g*"."""
    return re.sub(r"^(\d)(\d{2,3}\+{0,2}g)", r"\1-\2", key)


def kind(name: str) -> str | None:
    """What a set is for: "ri", "jk", "j", "xfit", "optri", "admm", "guess", or None for
    orbitals."""
    key = squash(name)
    return next((kind for pattern, kind, _ in _KINDS if re.fullmatch(pattern, key)), None)


def purpose(name: str) -> str:
    """`kind` in words, with an article."""
    return {kind: words for _, kind, words in _KINDS}.get(kind(name) or "", "an orbital basis")


def is_mp2_fitting_set(name: str) -> bool:
    """Whether a set is made for MP2 fitting, like a generated set; others work, but less well."""
    return squash(name) == GENERATED or kind(name) == "ri"


@dataclass(frozen=True, slots=True)
class ElementBasis:
    """Basis functions (and effective core potential) of one element.

    Attributes
    ----------
    symbol : element symbol, e.g. "O"
    name : name of the set the functions come from, e.g. "cc-pvdz-jkfit"
    source : library, version and file or entry, e.g. "PySCF 2.14.0: cc-pvdz-jkfit.dat"
    shells : PySCF's internal format as nested tuples: (l, (exponent, c1, c2, ...), ...) per shell;
        exponents in bohr^-2
    ecp : PySCF's internal format as nested tuples (ncore, ((l, terms), ...)), or None
    ecp_source : origin of `ecp`, or None
    """

    symbol: str
    name: str
    source: str
    shells: tuple[Any, ...]
    ecp: tuple[Any, ...] | None = None
    ecp_source: str | None = None

    @property
    def ecp_electrons(self) -> int:
        """Number of electrons replaced by the effective core potential."""
        return int(self.ecp[0]) if self.ecp else 0

    @property
    def sha256(self) -> str:
        """Hash of the numbers alone (17 significant digits), independent of name and source."""
        return hashlib.sha256(json.dumps([self.shells, self.ecp]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class BasisSet:
    """One basis for a molecule, element by element.

    Attributes
    ----------
    role : "orbital", "jk" (SCF fitting set) or "ri" (MP2 fitting set)
    name : the requested name, or "default" if the set was chosen from the orbital basis
    elements : ElementBasis by symbol, or by symbol and number, as in O3, for an atom with its own
        set
    errors : by the same keys, the error of a fitting set for one atom, Eh
        (`dfmp2.fitting.sets`); {} if unknown
    """

    role: str
    name: str
    elements: Mapping[str, ElementBasis]
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def names(self) -> str:
        """Names of its sets, e.g. "cc-pvdz-ri" or "cc-pvdz-jkfit, def2-universal-jkfit"."""
        return ", ".join(dict.fromkeys(element.name for element in self.elements.values()))

    @property
    def ecp_electrons(self) -> dict[str, int]:
        """Electrons replaced by the effective core potential, per element."""
        return {element.symbol: element.ecp_electrons for element in self.elements.values()}

    @property
    def by_atom(self) -> bool:
        """Whether any atom has its own set."""
        return any(key != element.symbol for key, element in self.elements.items())

    def keys(self, molecule: Molecule) -> tuple[str, ...]:
        """Key in `elements` for every centre of a molecule."""
        found = []
        for number, symbol in enumerate(molecule.symbols, start=1):
            numbered = f"{symbol}{number}"
            found.append(numbered if numbered in self.elements else symbol)
        return tuple(found)

    def real_keys(self, molecule: Molecule) -> tuple[str, ...]:
        """Keys of the atoms that are not ghosts."""
        centres = zip(self.keys(molecule), molecule.ghost, strict=True)
        return tuple(key for key, ghost in centres if not ghost)

    def error_of(self, keys: Iterable[str]) -> float | None:
        """Sum of the errors of a fitting set for these atoms taken singly, Eh; None if one was not
        measured."""
        found = [self.errors.get(key) for key in keys]
        known = [error for error in found if error is not None]
        if known and len(known) == len(found):
            return math.fsum(known)
        return None

    def describe(self) -> list[str]:
        """One line per distinct (set, source): name, elements, origin, for the report."""
        groups: dict[tuple[str, str], list[str]] = {}
        for symbol, element in self.elements.items():
            groups.setdefault((element.name, element.source), []).append(symbol)
        return [
            f"{name} for {' '.join(symbols)} ({source})"
            for (name, source), symbols in groups.items()
        ]


NO_FUNCTIONS = BasisSet("ri", "none", {})  # MP2 fitting set of a method without a second-order term


def tidy_shells(shells: Iterable[Any]) -> tuple[Any, ...]:
    """Shells from PySCF's form, sorted by l, without primitives that no function uses.

    The order of functions of the same l is kept. A spinor set (kappa other than 0) gives ().
    """
    tidy = []
    for momentum, *rows in shells:
        # kappa; 0 stands for both spinors of l, the usual functions
        if rows and isinstance(rows[0], int):
            if rows[0] != 0:
                return ()
            rows = rows[1:]
        kept = tuple(tuple(float(x) for x in row) for row in rows if any(row[1:]))
        if kept:
            tidy.append((int(momentum), *kept))
    return tuple(sorted(tidy, key=lambda shell: shell[0]))


def nested_tuples(nested: Any) -> Any:
    """Nested lists as nested tuples."""
    if isinstance(nested, list | tuple):
        return tuple(nested_tuples(item) for item in nested)
    return nested


def to_pyscf(element: ElementBasis) -> list[Any]:
    """Shells in the form of PySCF's `Mole.basis`: [[l, [exponent, c1, ...], ...], ...]."""
    return [[shell[0], *(list(row) for row in shell[1:])] for shell in element.shells]


def to_pyscf_ecp(element: ElementBasis) -> list[Any]:
    """Core potential in the form of PySCF's `Mole.ecp`; [] if the element has none."""
    potential: list[Any] = _nested_lists(element.ecp or ())
    return potential


def _nested_lists(nested: Any) -> Any:
    if isinstance(nested, tuple):
        return [_nested_lists(item) for item in nested]
    return nested


# --- files of basis sets --------------------------------------------------------------------------

LETTERS = "SPDFGHIKLMNO"  # of angular momenta; J is skipped
MOST_SHOWN = 60  # characters of a line in a message
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([EeDd][+-]?\d+)?")
KINDS = ("spherical", "cartesian")  # words in a file for its kind of functions
NWCHEM, GAUSSIAN = "NWChem", "Gaussian94"
# Published exponents are from 1e-5 to 1e11 bohr^-2; integrals overflow long before the largest double.
SMALLEST_EXPONENT, LARGEST_EXPONENT = 1e-8, 1e14
LARGEST_COEFFICIENT = 1e12


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
        values = [float(word.upper().replace("D", "E")) for word in words]
        if not all(map(math.isfinite, values)):
            self.refuse(expected)
        return values

    def row(self, words: list[str], expected: str) -> list[float]:
        """The words of the last line as an exponent and its coefficients."""
        row = self.numbers(words, expected)
        self.require_usable(row[0], row[1:])
        return row

    def require_usable(self, exponent: float, coefficients: Iterable[float]) -> None:
        """Raise for numbers of the last line that no basis set has."""
        if not SMALLEST_EXPONENT <= exponent <= LARGEST_EXPONENT:
            self.refuse(f"an exponent from {SMALLEST_EXPONENT:g} to {LARGEST_EXPONENT:g} bohr^-2")
        if any(abs(value) > LARGEST_COEFFICIENT for value in coefficients):
            self.refuse(f"coefficients up to {LARGEST_COEFFICIENT:g}")

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
        shells = tidy_shells(one.shells)
        if not shells:
            raise InputError(Option("basis"), f": {name} has no functions for {symbol}")
        if len(set(shells)) < len(shells):
            raise InputError(Option("basis"), f": {name} has a shell of {symbol} twice")
        ecp = None
        if one.core is not None and not one.channels:
            raise InputError(
                Option("basis"), f": {name} has no terms in the core potential of {symbol}"
            )
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
            shells=shells,
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
        if first.lower() in KINDS:  # as Psi4's files begin
            continue
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
        row = lines.row(words, "numbers: an exponent and its coefficients")
        if len(row) < least or (rows and len(row) != len(rows[0])):
            lines.refuse(f"an exponent and {least - 1} coefficients or more, as many in each row")
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
        if len(words) != 3 or not words[2].isdecimal():
            lines.refuse("the number of electrons that the potential replaces")
        _require_first(lines, element.core is None)
        element.core = int(words[2])
        return
    if element.core is None:
        lines.refuse("nelec of this element first")
    momentum = lines.momentum(kind) if kind != "UL" else -1
    _require_first(lines, momentum not in element.channels)
    terms: list[list[float]] = []
    for row in lines:
        if not NUMBER.fullmatch(row[0]):
            lines.back()
            break
        terms.append(_term(lines, row))
    element.channels[momentum] = _by_power(lines, terms)


def _require_first(lines: _Lines, is_first: bool) -> None:
    if not is_first:
        lines.refuse("each part of a core potential once")


def _term(lines: _Lines, words: list[str]) -> list[float]:
    """n, exponent and coefficient of a term."""
    values = lines.numbers(words, "a power, an exponent and a coefficient")
    if len(values) != 3 or values[0] not in range(5):
        lines.refuse("a power from 0 to 4, an exponent and a coefficient (no spin-orbit terms)")
    lines.require_usable(values[1], values[2:])
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
        if len(words) not in (2, 3) or not words[1].isdecimal():
            lines.refuse("a shell, the number of its primitives and a scale factor, as in S 3 1.00")
        momenta = [lines.momentum(letter) for letter in words[0]]
        if len(words) == 3 and lines.numbers(words[2:], "a scale factor") != [1.0]:
            lines.refuse("a scale factor of 1.00")
        rows = []
        for _ in range(int(words[1])):
            row = lines.row(lines.next("a primitive"), "an exponent and its coefficients")
            if len(row) != 1 + len(momenta):
                lines.refuse(f"an exponent and {len(momenta)} coefficients")
            rows.append(row)
        if rows:
            _add_shells(element, momenta, rows)


def _read_gaussian_potential(lines: _Lines, element: _Element, words: list[str]) -> None:
    if len(words) != 3 or not (words[1].isdecimal() and words[2].isdecimal()):
        lines.refuse(
            "the highest angular momentum and the electrons of a potential, as in I-ECP 3 28"
        )
    _require_first(lines, element.core is None)
    highest = int(words[1])
    element.core = int(words[2])
    for momentum in (-1, *range(highest)):
        lines.next("the name of a potential, such as s-f potential")
        count = lines.next("a number of terms")
        if len(count) != 1 or not count[0].isdecimal():
            lines.refuse("a number of terms")
        terms = [_term(lines, lines.next("a term")) for _ in range(int(count[0]))]
        element.channels[momentum] = _by_power(lines, terms)
