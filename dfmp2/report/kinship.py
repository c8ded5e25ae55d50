"""What several results have to do with each other: which lanes, basis series and scans they hold.

A lane is the same calculation done by another backend, precision, machine or version. Results of one molecule and
method with several orbital bases are a basis series; results of the same atoms, method and bases at several geometries
are a scan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from dfmp2.basis import BasisSet
from dfmp2.checkpoint.fingerprint import geometry, point_charges
from dfmp2.result import MP2Result


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
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


@dataclass(frozen=True, slots=True, eq=False)
class Kinship:
    """Groups of entries that belong together; an entry may be in several, or in `alone`.

    Attributes
    ----------
    lanes : the same calculation more than once; the first of each is the most exact
    series : one molecule and method in several orbital bases, smallest first
    scans : the same atoms and method at several geometries
    alone : entries that belong to none of them
    differing : what differs among the entries, in words
    """

    lanes: tuple[tuple[Entry, ...], ...]
    series: tuple[tuple[Entry, ...], ...]
    scans: tuple[tuple[Entry, ...], ...]
    alone: tuple[Entry, ...]
    differing: tuple[str, ...]


def kinship(entries: Sequence[Entry]) -> Kinship:
    """Find out what belongs together."""
    cells = _grouped(entries, lambda result: (result.molecule.fingerprint, method(result), bases(result)))
    lanes = tuple(tuple(sorted(cell, key=_exactness)) for cell in cells if len(cell) > 1)
    # One entry stands for all that computed the same thing.
    first = [min(cell, key=_exactness) for cell in cells]
    series = []
    for group in _grouped(first, lambda result: (result.molecule.fingerprint, method(result))):
        distinct = {numbers(entry.result.orbital_basis): entry for entry in reversed(group)}
        if len(distinct) > 1:
            ordered = sorted(distinct.values(), key=lambda entry: (entry.result.sizes.nao, entry.name))
            series.append(tuple(ordered))
    scans = tuple(
        tuple(group)
        for group in _grouped(first, lambda result: (*atoms(result), method(result), bases(result)))
        if len(group) > 1
    )
    related = {id(entry) for group in (*lanes, *series, *scans) for entry in group}
    return Kinship(lanes, tuple(series), scans, tuple(e for e in entries if id(e) not in related), differences(entries))


def atoms(result: MP2Result) -> tuple[Hashable, ...]:
    """The molecule without its geometry, and its surroundings."""
    molecule = result.molecule
    return molecule.labels, molecule.charge, molecule.multiplicity, point_charges(molecule)


def method(result: MP2Result) -> tuple[Hashable, ...]:
    """What decides an energy besides molecule and basis sets."""
    reference, sizes = result.reference, result.sizes
    return reference.kind, result.options.relativity, reference.scf_type, sizes.frozen_core, sizes.frozen_virtual


def numbers(basis: BasisSet) -> str:
    """Hash of the numbers in a basis; names and origins do not count."""
    parts = sorted(f"{symbol} {element.sha256}" for symbol, element in basis.elements.items())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def bases(result: MP2Result) -> tuple[Hashable, ...]:
    """The numbers of all basis sets."""
    fitting = None if result.scf_fitting is None else numbers(result.scf_fitting)
    return numbers(result.orbital_basis), fitting, numbers(result.mp2_fitting)


def differences(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Which choices are not the same in all entries."""
    fields: tuple[tuple[str, Callable[[MP2Result], Hashable]], ...] = (
        ("atoms, charge or multiplicity", lambda result: atoms(result)[:-1]),
        ("point charges", lambda result: point_charges(result.molecule)),
        ("geometry", lambda result: geometry(result.molecule)),
        ("reference", lambda result: result.reference.kind),
        ("relativity", lambda result: result.options.relativity),
        ("kind of SCF", lambda result: result.reference.scf_type),
        ("orbital basis", lambda result: numbers(result.orbital_basis)),
        ("fitting sets", lambda result: bases(result)[1:]),
        ("frozen core", lambda result: result.sizes.frozen_core),
        ("frozen virtuals", lambda result: result.sizes.frozen_virtual),
        ("backend", lambda result: result.backend),
        ("precision", lambda result: result.precision),
    )
    found = [name for name, value in fields if len({value(entry.result) for entry in entries}) > 1]
    if "atoms, charge or multiplicity" in found:
        found.remove("geometry")
    if "orbital basis" in found and "fitting sets" in found:
        found.remove("fitting sets")
    return tuple(found)


def _exactness(entry: Entry) -> tuple[bool, float, str]:
    """Float64 first, then the tightest SCF, then by name."""
    return entry.result.precision != "fp64", entry.result.options.scf_conv_tol, entry.name


def _grouped(entries: Sequence[Entry], key: Callable[[MP2Result], Hashable]) -> list[list[Entry]]:
    groups: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry.result), []).append(entry)
    return list(groups.values())
