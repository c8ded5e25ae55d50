"""What several results have to do with each other: which may be compared, and which form lanes, series and scans.

A lane is the same calculation done by another backend, precision, machine or version. Results of one molecule and
method with several orbital bases are a basis series; results of the same atoms, method and bases at several geometries
are a scan.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.elements import bonds, internal_coordinate
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.extrapolation import Formula, correlation_formula
from dfmp2.mp2.result import MP2Result
from dfmp2.units import ANGSTROM_PER_BOHR

# --- which energies belong beside each other ----------------------------------------------------------

# Options that make the method. What `auto` chose per molecule (RHF or UHF, frozen orbitals) is one method.
METHOD = (
    "basis",
    "reference",
    "xc",
    "grid",
    "relativity",
    "scf",
    "scf_auxbasis",
    "auxbasis",
    "frozen_core",
    "frozen_virtual",
    "method",
    "kappa",
    "os_scale",
    "ss_scale",
    "precision",
)
MOST_NAMED = 3


def method(result: MP2Result) -> dict[str, str]:
    """What makes two energies comparable: the options of METHOD, and the numbers behind the names of the bases."""
    given = {name: getattr(result.options, name) for name in METHOD}
    found = {name: "default" if value is None else str(value) for name, value in given.items()}
    for basis in filter(None, (result.orbital_basis, result.scf_fitting, result.mp2_fitting)):
        for symbol, element in basis.elements.items():
            found[f"{basis.role} functions of {symbol}"] = f"{element.name} ({element.sha256[:8]})"
    return found


def differences(methods: Mapping[str, Mapping[str, str]]) -> str:
    """The fields in which the methods of items (by their names) differ, "" for one method.

    The options come first; bases only where no option explains them.
    """
    named: dict[str, dict[str, list[str]]] = {}  # field -> value -> names of items
    for item, found in methods.items():
        for field, value in found.items():
            named.setdefault(field, {}).setdefault(value, []).append(item)
    different = {field: values for field, values in named.items() if len(values) > 1}
    fields = [field for field in different if field in METHOD] or list(different)
    parts = []
    for field in fields[:MOST_NAMED]:
        most = Counter(
            {value: len(names) for value, names in different[field].items()}
        ).most_common(3)
        values = ", ".join(
            f"{value} ({count}, e.g. {different[field][value][0]})" for value, count in most
        )
        parts.append(f"{field.replace('_', '-')}: {values}")
    more = len(fields) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


# --- groups of results --------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A result on a page.

    Attributes
    ----------
    name : short name, unique on the page
    result : the result
    content : content hash of its file, verified
    """

    name: str
    result: MP2Result
    content: str


Group = Sequence[Entry]


class Groups(NamedTuple):
    """Entries that belong together; an entry may be in several groups, or in `alone`.

    Attributes
    ----------
    lanes : the same calculation more than once; the first of each is the most exact
    series : one molecule and method in several orbital bases, smallest first
    scans : the same atoms and method at several geometries
    alone : entries that belong to none of them
    differing : what differs among the entries, in words
    """

    lanes: Sequence[Group]
    series: Sequence[Group]
    scans: Sequence[Group]
    alone: Group
    differing: Sequence[str]


def _numbers(*bases: BasisSet | None) -> Hashable:
    """The numbers in basis sets, by their hashes; names and origins do not count."""
    return tuple(
        basis and frozenset((s, e.sha256) for s, e in basis.elements.items()) for basis in bases
    )


# What decides an energy; results that agree in all of it computed the same thing.
CHOICES: dict[str, Callable[[MP2Result], Hashable]] = {
    "atoms, charge or multiplicity": lambda r: (
        r.molecule.labels,
        r.molecule.charge,
        r.molecule.multiplicity,
    ),
    "point charges": lambda r: (
        None if r.molecule.point_charges is None else r.molecule.point_charges.tobytes()
    ),
    "geometry": lambda r: r.molecule.coordinates.tobytes(),
    "reference": lambda r: r.reference.title,
    "relativity": lambda r: r.options.relativity,
    "kind of SCF": lambda r: r.reference.scf_type,
    "orbital basis": lambda r: _numbers(r.orbital_basis),
    "fitting sets": lambda r: _numbers(r.scf_fitting, r.mp2_fitting),
    "frozen core": lambda r: r.sizes.frozen_core,
    "frozen virtuals": lambda r: r.sizes.frozen_virtual,
    "kind of energy": lambda r: r.options.correlation.kind,
}
HOW: dict[str, Callable[[MP2Result], Hashable]] = {
    "backend": lambda r: r.backend,
    "precision": lambda r: r.precision,
}
IMPLIED = {"atoms, charge or multiplicity": "geometry", "orbital basis": "fitting sets"}


def find_groups(entries: Sequence[Entry]) -> Groups:
    """What belongs together."""
    same = [sorted(group, key=_exactness) for group in _grouped(entries)]
    first = [group[0] for group in same]  # one entry stands for all that computed the same thing
    series = []
    for group in _grouped(first, "orbital basis", "fitting sets"):
        distinct = {_numbers(entry.result.orbital_basis): entry for entry in reversed(group)}
        series.append(
            sorted(distinct.values(), key=lambda entry: (entry.result.sizes.nao, entry.name))
        )
    scans = _grouped(first, "geometry")
    lanes, series, scans = ([g for g in groups if len(g) > 1] for groups in (same, series, scans))
    related = {id(entry) for group in (*lanes, *series, *scans) for entry in group}
    alone = [entry for entry in entries if id(entry) not in related]
    found = {**CHOICES, **HOW}.items()
    differing = [
        name for name, value in found if len({value(entry.result) for entry in entries}) > 1
    ]
    implied = {IMPLIED.get(name) for name in differing}
    return Groups(lanes, series, scans, alone, [name for name in differing if name not in implied])


def _exactness(entry: Entry) -> tuple[bool, float, str]:
    """Float64 first, then the tightest SCF, then by name."""
    return entry.result.precision != "fp64", entry.result.options.scf_conv_tol, entry.name


def _grouped(entries: Sequence[Entry], *free: str) -> list[list[Entry]]:
    """Entries that agree in all choices but those that are free."""
    groups: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        key = tuple(value(entry.result) for name, value in CHOICES.items() if name not in free)
        groups.setdefault(key, []).append(entry)
    return list(groups.values())


# --- the limit of a basis series ----------------------------------------------------------------------

LETTERS = {"d": 2, "t": 3, "q": 4, "5": 5, "6": 6, "7": 7, "8": 8}
CONSISTENT = re.compile(
    r"(?P<before>.*cc-pw?c?v)(?P<core>\(?)(?P<x>[dtq5678])(?P<after>(?:\+d\))?z.*)"
)


class Cardinal(NamedTuple):
    """A correlation-consistent set: its family, e.g. "aug-cc-pvXz", and its cardinal number."""

    family: str
    number: int


def cardinal(name: str) -> Cardinal | None:
    """Family and cardinal number of a basis name, None when it is not correlation consistent."""
    found = CONSISTENT.fullmatch(name.strip().lower())
    if found is None:
        return None
    return Cardinal(f"{found['before']}{found['core']}X{found['after']}", LETTERS[found["x"]])


class Limit(NamedTuple):
    """The two-point limit of a basis series: E(corr), Eh, from the results of two cardinal numbers."""

    correlation: float
    smaller: int
    larger: int
    largest: MP2Result
    formula: Formula


def basis_limit(group: Group) -> Limit | None:
    """The limit from the two largest sets, None unless the series is one family and those are neighbours."""
    known = [(cardinal(entry.result.orbital_basis.name), entry.result) for entry in group]
    ranked = sorted(((c, r) for c, r in known if c is not None), key=lambda one: one[0].number)
    if len(ranked) < len(known) or len({c.family for c, _ in ranked}) > 1:
        return None
    (small, lower), (large, upper) = ranked[-2:]
    if large.number - small.number != 1:
        return None
    formula = correlation_formula("helgaker", large.family, small.number, large.number)
    energies = lower.correlation_energy, upper.correlation_energy
    return Limit(
        formula.limit(*energies, small.number, large.number),
        small.number,
        large.number,
        upper,
        formula,
    )


# --- the coordinate of a scan -------------------------------------------------------------------------

MOVED = 2e-3  # angstrom; a bond that changes less is taken as rigid
TURNED = 0.2  # degree
MOST_ATOMS = 150  # in larger molecules the geometries are only counted


class Coordinate(NamedTuple):
    """Values of a coordinate, one per geometry, all distinct.

    Attributes
    ----------
    name : e.g. "distance H1-H2"
    unit : "angstrom" or "degree"
    values : one per geometry
    others : other coordinates of the same kind change as well
    """

    name: str
    unit: str
    values: tuple[float, ...]
    others: bool


def find_coordinate(molecules: Sequence[Molecule]) -> Coordinate | None:
    """The coordinate that changes most, bonds before angles before torsions; or the distance of two fragments.

    Parameters
    ----------
    molecules : the same atoms in the same order

    Returns
    -------
    None when no coordinate takes another value at every geometry
    """
    first = molecules[0]
    if first.natom > MOST_ATOMS:
        return None
    frames = [molecule.coordinates * ANGSTROM_PER_BOHR for molecule in molecules]
    # A bond that breaks in the course of the scan is one all the same.
    joined = sorted({pair for frame in frames for pair in bonds(first.symbols, frame, first.ghost)})
    neighbours = {
        k: sorted(i + j - k for i, j in joined if k in (i, j)) for k in range(first.natom)
    }
    angles = [(i, k, j) for k, found in neighbours.items() for i, j in combinations(found, 2)]
    torsions = [
        (a, i, j, b)
        for i, j in joined
        for a in neighbours[i]
        for b in neighbours[j]
        if len({a, i, j, b}) == 4
    ]
    apart = list(
        combinations(range(first.natom), 2)
    )  # where bonds, angles and torsions are rigid: of fragments
    for kind, places in (
        ("distance", joined),
        ("angle", angles),
        ("torsion", torsions),
        ("distance", apart),
    ):
        moving = {}
        for place in places:
            values = [internal_coordinate(frame[list(place)]) for frame in frames]
            if kind != "distance":  # without jumps of 360 degrees from one geometry to the next
                values = np.degrees(np.unwrap(values)).tolist()
            if np.ptp(values) > (MOVED if kind == "distance" else TURNED):
                moving[place] = values
        if moving and places is not apart:
            place, values = max(moving.items(), key=lambda one: round(float(np.ptp(one[1])), 6))
        elif moving:
            place, values = min(moving.items(), key=lambda one: one[1][0])  # the nearest atoms
        else:
            continue
        if len({round(value, 5) for value in values}) < len(values):
            return None
        name = f"{kind} {'-'.join(f'{first.labels[k]}{k + 1}' for k in place)}"
        unit = "angstrom" if kind == "distance" else "degree"
        return Coordinate(name, unit, tuple(values), len(moving) > 1 and places is not apart)
    return None
