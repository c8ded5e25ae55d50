"""The orbital basis of a molecule whose elements or atoms have sets of their own, or sets of files.

An atom with a set of its own is called by its symbol and number in a `BasisSet`, such as O3; all
others by their symbol.
"""

from __future__ import annotations

from functools import cache

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option
from dfmp2.molecule.basis import BasisSet, ElementBasis
from dfmp2.molecule.basis_files import parse_basis_file
from dfmp2.molecule.basis_library import resolve_orbital
from dfmp2.molecule.elements import normalise_symbol
from dfmp2.molecule.molecule import Molecule
from dfmp2.options.basis_parts import (
    BasisParts,
    is_file,
    parse_parts,
    path_of,
    read_basis_file,
    title_of,
)


def orbital_basis(text: str, molecule: Molecule) -> BasisSet:
    """Orbital basis of a molecule, with the core potentials that belong to it.

    Parameters
    ----------
    text : str
        As `dfmp2.options.basis_parts` has it.
    molecule : Molecule

    Raises
    ------
    InputError : no such set or file, an element or atom that is not in the molecule or has no set,
        or atoms of an element with core potentials of different size
    """
    parts = parse_parts(text)
    if not parts.mixed:
        return resolve_orbital(text, molecule.elements)
    of_elements, of_atoms = _assigned(text, parts, molecule)
    elements: dict[str, ElementBasis] = {}
    for number, symbol in enumerate(molecule.symbols, start=1):
        if number in of_atoms:
            elements[f"{symbol}{number}"] = _element(of_atoms[number], symbol)
            continue
        value = of_elements.get(symbol, parts.default)
        if not value:
            raise InputError(
                Option("basis", title_of(text)),
                f" has no set for atom {number} {symbol}: add one for all others in front, as in "
                f"cc-pvdz,{title_of(text)}",
            )
        if symbol not in elements:
            elements[symbol] = _element(value, symbol)
    _require_same_cores(text, elements)
    return BasisSet(role="orbital", name=title_of(text), elements=elements)


def _assigned(
    text: str, parts: BasisParts, molecule: Molecule
) -> tuple[dict[str, str], dict[int, str]]:
    """The sets by element, and by the number of an atom."""
    of_elements: dict[str, str] = {}
    of_atoms: dict[int, str] = {}
    given = Option("basis", title_of(text))
    for key, value in parts.special.items():
        if key.isdigit():
            if not 1 <= int(key) <= molecule.natom:
                raise InputError(
                    given, f": there is no atom {key}, the molecule has {molecule.natom}"
                )
            of_atoms[int(key)] = value
            continue
        symbol = normalise_symbol(key)
        if symbol not in molecule.elements:
            raise InputError(
                given,
                f": there is no {symbol} in {molecule.formula}: leave out {key}=, or correct it",
            )
        of_elements[symbol] = value
    return of_elements, of_atoms


def _element(value: str, symbol: str) -> ElementBasis:
    """The functions of an element in a set or a file."""
    if not is_file(value):
        return resolve_orbital(value, [symbol]).elements[symbol]
    elements = _file_elements(value)
    if symbol not in elements:
        raise InputError(
            Option("basis"),
            f": {path_of(value)} has no functions for {symbol}, but for {' '.join(elements)}",
        )
    return elements[symbol]


@cache
def _file_elements(value: str) -> dict[str, ElementBasis]:
    return parse_basis_file(*read_basis_file(value))


def _require_same_cores(text: str, elements: dict[str, ElementBasis]) -> None:
    """Raise where core potentials replace different electrons of atoms of one element."""
    cores: dict[str, int] = {}
    for element in elements.values():
        core = cores.setdefault(element.symbol, element.ecp_electrons)
        if core != element.ecp_electrons:
            raise InputError(
                Option("basis", title_of(text)),
                f": atoms of {element.symbol} have core potentials for {core} and for "
                f"{element.ecp_electrons} electrons, which is not available: take sets of one kind",
            )
