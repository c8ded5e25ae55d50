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
from numpy.typing import NDArray

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
    "relativity",
    "scf",
    "scf_auxbasis",
    "auxbasis",
    "frozen_core",
    "frozen_virtual",
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
        most = Counter({value: len(names) for value, names in different[field].items()}).most_common(3)
        values = ", ".join(f"{value} ({count}, e.g. {different[field][value][0]})" for value, count in most)
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
    anchor : start of the anchors of its sections, "" when it is not shown in full
    """

    name: str
    result: MP2Result
    content: str
    anchor: str = ""


Group = tuple[Entry, ...]


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

    lanes: tuple[Group, ...]
    series: tuple[Group, ...]
    scans: tuple[Group, ...]
    alone: Group
    differing: tuple[str, ...]


def find_groups(entries: Sequence[Entry]) -> Groups:
    """What belongs together."""
    same = _grouped(entries, lambda r: (r.molecule.fingerprint, _kind(r), _bases(r)))
    lanes = tuple(tuple(sorted(group, key=_exactness)) for group in same if len(group) > 1)
    first = [min(group, key=_exactness) for group in same]  # one entry stands for all that computed the same thing
    series = []
    for group in _grouped(first, lambda r: (r.molecule.fingerprint, _kind(r))):
        distinct = {_numbers(entry.result.orbital_basis): entry for entry in reversed(group)}
        if len(distinct) > 1:
            series.append(tuple(sorted(distinct.values(), key=lambda entry: (entry.result.sizes.nao, entry.name))))
    scans = tuple(
        tuple(group) for group in _grouped(first, lambda r: (_atoms(r), _field(r), _kind(r), _bases(r))) if group[1:]
    )
    related = {id(entry) for group in (*lanes, *series, *scans) for entry in group}
    return Groups(lanes, tuple(series), scans, tuple(e for e in entries if id(e) not in related), _differing(entries))


def _atoms(result: MP2Result) -> Hashable:
    """The molecule without its geometry."""
    return result.molecule.labels, result.molecule.charge, result.molecule.multiplicity


def _field(result: MP2Result) -> Hashable:
    """The bits of the point charges around it."""
    charges = result.molecule.point_charges
    return None if charges is None else charges.tobytes()


def _kind(result: MP2Result) -> Hashable:
    """What decides an energy besides molecule and basis sets."""
    reference, sizes = result.reference, result.sizes
    return reference.kind, result.options.relativity, reference.scf_type, sizes.frozen_core, sizes.frozen_virtual


def _numbers(basis: BasisSet | None) -> Hashable:
    """The numbers in a basis, by their hashes; names and origins do not count."""
    return None if basis is None else frozenset((symbol, e.sha256) for symbol, e in basis.elements.items())


def _bases(result: MP2Result) -> tuple[Hashable, ...]:
    return _numbers(result.orbital_basis), _numbers(result.scf_fitting), _numbers(result.mp2_fitting)


def _differing(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Which choices are not the same in all entries."""
    fields: dict[str, Callable[[MP2Result], Hashable]] = {
        "atoms, charge or multiplicity": _atoms,
        "point charges": _field,
        "geometry": lambda r: (r.molecule.labels, r.molecule.coordinates.tobytes()),
        "reference": lambda r: r.reference.kind,
        "relativity": lambda r: r.options.relativity,
        "kind of SCF": lambda r: r.reference.scf_type,
        "orbital basis": lambda r: _numbers(r.orbital_basis),
        "fitting sets": lambda r: _bases(r)[1:],
        "frozen core": lambda r: r.sizes.frozen_core,
        "frozen virtuals": lambda r: r.sizes.frozen_virtual,
        "backend": lambda r: r.backend,
        "precision": lambda r: r.precision,
    }
    found = [name for name, value in fields.items() if len({value(entry.result) for entry in entries}) > 1]
    implied = {"atoms, charge or multiplicity": "geometry", "orbital basis": "fitting sets"}
    return tuple(name for name in found if name not in {implied.get(other) for other in found})


def _exactness(entry: Entry) -> tuple[bool, float, str]:
    """Float64 first, then the tightest SCF, then by name."""
    return entry.result.precision != "fp64", entry.result.options.scf_conv_tol, entry.name


def _grouped(entries: Sequence[Entry], key: Callable[[MP2Result], Hashable]) -> list[list[Entry]]:
    groups: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry.result), []).append(entry)
    return list(groups.values())


# --- the limit of a basis series ----------------------------------------------------------------------

LETTERS = {"d": 2, "t": 3, "q": 4, "5": 5, "6": 6, "7": 7, "8": 8}
CONSISTENT = re.compile(r"(?P<before>.*cc-pw?c?v)(?P<core>\(?)(?P<x>[dtq5678])(?P<after>(?:\+d\))?z.*)")


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
    energies = lower.mp2_correlation_energy, upper.mp2_correlation_energy
    return Limit(formula.limit(*energies, small.number, large.number), small.number, large.number, upper, formula)


# --- the coordinate of a scan -------------------------------------------------------------------------

MOVED = 2e-3  # angstrom; a bond that changes less is taken as rigid
TURNED = 0.2  # degree
MOST_ATOMS = 150  # in larger molecules the geometries are only counted
Array = NDArray[np.float64]


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
    """The coordinate that changes most, bonds before angles before torsions before distances of fragments.

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
    neighbours: dict[int, list[int]] = {k: [] for k in range(first.natom)}
    for i, j in joined:
        neighbours[i].append(j)
        neighbours[j].append(i)
    angles = [(i, k, j) for k, around in neighbours.items() for i, j in combinations(sorted(around), 2)]
    torsions = [(a, i, j, b) for i, j in joined for a in neighbours[i] for b in neighbours[j] if len({a, i, j, b}) == 4]
    kinds: tuple[tuple[str, str, float, Sequence[tuple[int, ...]]], ...] = (
        ("distance", "angstrom", MOVED, joined),
        ("angle", "degree", TURNED, angles),
        ("torsion", "degree", TURNED, torsions),
    )
    for kind, unit, least, places in kinds:
        values = {place: _along(frames, place) for place in places}
        if unit == "degree":  # without jumps of 360 degrees from one geometry to the next
            values = {place: np.degrees(np.unwrap(turns)).tolist() for place, turns in values.items()}
        moving = {place: found for place, found in values.items() if max(found) - min(found) > least}
        if moving:
            place, found = max(moving.items(), key=lambda one: round(max(one[1]) - min(one[1]), 6))
            return _coordinate(kind, unit, first, place, found, others=len(moving) > 1)
    return _between_fragments(frames, joined, first)


def _between_fragments(frames: list[Array], joined: list[tuple[int, int]], molecule: Molecule) -> Coordinate | None:
    """The distance between the nearest atoms (in the first geometry) of two fragments."""
    fragment = list(range(molecule.natom))
    for i, j in joined:
        fragment = [min(fragment[i], fragment[j]) if f in (fragment[i], fragment[j]) else f for f in fragment]
    apart = [(i, j) for i, j in combinations(range(molecule.natom), 2) if fragment[i] != fragment[j]]
    values = {pair: _along(frames, pair) for pair in apart}
    moving = [pair for pair in apart if np.ptp(values[pair]) > MOVED]
    if not moving:
        return None
    pair = min(moving, key=lambda one: values[one][0])
    return _coordinate("distance", "angstrom", molecule, pair, values[pair], others=False)


def _coordinate(
    kind: str, unit: str, molecule: Molecule, place: tuple[int, ...], values: Sequence[float], *, others: bool
) -> Coordinate | None:
    if len({round(value, 5) for value in values}) < len(values):
        return None
    return Coordinate(f"{kind} {'-'.join(f'{molecule.labels[k]}{k + 1}' for k in place)}", unit, tuple(values), others)


def _along(frames: list[Array], place: tuple[int, ...]) -> list[float]:
    """A distance or an angle in every geometry, angstrom or radians."""
    return [internal_coordinate(frame[list(place)]) for frame in frames]
