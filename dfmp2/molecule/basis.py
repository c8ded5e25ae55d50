"""Basis sets as explicit numbers with their origin and hash, and the names of sets.

Each name has one comparison key, which also tells what the set is for:

    "cc-pVDZ-RIFIT", "cc-pvdz_ri", "CC-PVDZ MP2FIT"  ->  "ccpvdzri"
    "6-31G(d,p)", "6-31gss"                          ->  "631g**"

A name is only ever compared with names from the libraries' own tables; it never becomes a path.

A name such as ``cc-pvdz`` is resolved once (`dfmp2.molecule.basis_library`). From then on the
numbers are passed on, so that a result can be reproduced even if a library redefines the name.

Shells are ((l, (exponent, c1, c2, ...), ...), ...) with exponents in bohr^-2. A potential is
(core electrons, ((l, (terms of r^0, terms of r^1, ...)), ...)) with terms (exponent, coefficient);
l = -1 is the local part.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dfmp2.errors import Command, InputError, Option

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
