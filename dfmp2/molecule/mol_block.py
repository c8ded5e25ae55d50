"""Charge, spin and valences of a mol block (V2000), which ASE does not read.

    counts line    atoms, bonds
    atom lines     x, y, z, symbol, mass difference, charge code, ..., valence
    bond lines     two atoms, order (1 to 3; 4 aromatic; others do not determine valences)
    M  CHG         charges of atoms; M  RAD their radical centres: these replace the charge codes
    > <NAME>       after M  END of an .sdf: a value, possibly a charge or multiplicity

A block is a formula as well as a geometry: an atom with fewer bonds than its valence has hydrogens
that are not listed, and without them another molecule would be computed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dfmp2.errors import InputError, Option
from dfmp2.molecule.comment import Statement, settle, statements
from dfmp2.molecule.elements import NO_ISOTOPES, SYMBOLS, atomic_number

CHARGE_CODES = {1: 3, 2: 2, 3: 1, 5: -1, 6: -2, 7: -3}  # 4 is a doublet radical
DOUBLET_CODE = 4
RADICAL_ELECTRONS = {1: 2, 2: 1, 3: 2}  # M  RAD: singlet carbene, doublet, triplet
RADICAL_MULTIPLICITY = {1: 1, 2: 2, 3: 3}
AROMATIC = 4
ORDERS = (1, 2, 3)
NO_VALENCE = 15  # in the valence field, where 0 means unspecified
# Valences of main-group elements; an ion has those of the isoelectronic element.
VALENCES = {
    "H": (1,),
    **dict.fromkeys(("He", "Ne", "Ar"), (0,)),
    "B": (3,),
    "C": (4,),
    "N": (3, 5),
    "O": (2,),
    "F": (1,),
    "Si": (4,),
    "P": (3, 5),
    "S": (2, 4, 6),
    "Cl": (1, 3, 5, 7),
    "Ge": (4,),
    "As": (3, 5),
    "Se": (2, 4, 6),
    "Br": (1, 3, 5, 7),
    "Kr": (0, 2, 4),
    "Te": (2, 4, 6),
    "I": (1, 3, 5, 7),
    "Xe": (0, 2, 4, 6, 8),
}
TETRAHEDRAL = ("B", "C", "N", "Si", "P", "Ge")  # with four neighbours
PERIOD_2 = ("B", "C", "N", "O", "F")  # have no more bonds than the first of their valences
DATA_OF_STATE = re.compile(
    r"(?:.*[\s_-])?(?:charge|multiplicity|mult|spin|unpaired[\s_-]?electrons|uhf)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Atom:
    """One atom line: symbol, charge, kind of radical (0 for none), valence field (0 for none)."""

    symbol: str
    charge: int
    radical: int
    valence: int


@dataclass(frozen=True, slots=True)
class MolBlock:
    """A V2000 block.

    Attributes
    ----------
    atoms : in the order of the file
    bonds : two atoms, from 0, and the order as written
    written_by : the program named on the second line
    listed : statements of title, comment and data about charge and spin
    charged : whether any atomic charges are stated
    """

    atoms: tuple[Atom, ...]
    bonds: tuple[tuple[int, int, int], ...]
    written_by: str
    listed: tuple[Statement, ...]
    charged: bool

    @property
    def charge(self) -> int:
        """Sum of the charges of the atoms, e."""
        return sum(atom.charge for atom in self.atoms)


def read_mol_block(text: str) -> MolBlock:
    """The block in a text with Unix line ends, which must be one molecule in three dimensions.

    Raises
    ------
    InputError : V3000, a drawing, several molecules, or a damaged block
    """
    lines = text.split("\n")
    molecules = max(text.count("$$$$"), len(re.findall("^M  END", text, re.MULTILINE)))
    if molecules > 1:
        raise InputError(f"{molecules} molecules: give one per file")
    if len(lines) < 4:
        raise InputError("ends too early: expected three lines of text and one of counts")
    if "V3000" in lines[3]:
        raise InputError("V3000: only V2000 is read: save it as V2000, or as xyz")
    if lines[1][20:22] == "2D":
        raise InputError("a two-dimensional drawing: generate a three-dimensional geometry first")
    natom = _whole(lines[3][0:3], "number of atoms", 4)
    nbond = _whole(lines[3][3:6] or "0", "number of bonds", 4)
    if len(lines) < 4 + natom + nbond:
        raise InputError(
            f"announces {natom} atoms and {nbond} bonds, but {len(lines) - 4} lines follow: "
            "correct the counts",
            line=4,
        )
    atoms = [_read_atom(line, number) for number, line in enumerate(lines[4 : 4 + natom], 5)]
    bonds = [
        _read_bond(line, number, natom)
        for number, line in enumerate(lines[4 + natom : 4 + natom + nbond], 5 + natom)
    ]
    rest = lines[4 + natom + nbond :]
    if _read_property(rest, "ISO", natom):
        raise InputError("M  ISO", *NO_ISOTOPES)
    charges = _read_property(rest, "CHG", natom)
    radicals = _read_property(rest, "RAD", natom)
    if charges or radicals:
        atoms = [
            Atom(
                symbol=atom.symbol,
                charge=charges.get(place, 0),
                radical=radicals.get(place, 0),
                valence=atom.valence,
            )
            for place, atom in enumerate(atoms)
        ]
    for place, kind in radicals.items():
        if kind not in (0, *RADICAL_ELECTRONS):
            raise InputError(
                f"M  RAD: atom {place + 1} is of kind {kind}: expected 1 (singlet), 2 (doublet) "
                "or 3 (triplet)"
            )
    return MolBlock(
        atoms=tuple(atoms),
        bonds=tuple(bonds),
        written_by=lines[1][2:10].strip(),
        listed=(*statements(lines[0]), *statements(lines[2]), *_read_data(rest)),
        charged=bool(charges) or any(atom.charge for atom in atoms),
    )


def state(
    block: MolBlock, charge: int | None, multiplicity: int | None
) -> tuple[tuple[int, str], tuple[int, str]]:
    """Charge and multiplicity, each with its origin: "option", "file" or "default".

    Parameters
    ----------
    charge, multiplicity : options, which take precedence if not None

    Raises
    ------
    InputError : the file is contradictory or ambiguous
    """
    listed = list(block.listed)
    if block.charged:
        said = f"M  CHG, which adds up to {block.charge},"
        listed.append(Statement("charge", said, frozenset({block.charge})))
    centres = [atom.radical for atom in block.atoms if atom.radical]
    if len(centres) == 1:
        meaning = RADICAL_MULTIPLICITY[centres[0]]
        listed.append(Statement("multiplicity", "M  RAD", frozenset({meaning})))
    elif centres:
        said = f"M  RAD of {len(centres)} atoms"
        why = "couples in several ways"
        listed.append(
            Statement(
                quantity="multiplicity", words=said, meanings=frozenset(), certain=False, why=why
            )
        )
    states = (
        settle("charge", listed, charge, default=0),
        settle("multiplicity", listed, multiplicity, default=1),
    )
    charged, coupled = (
        (value, "file" if origin == "comment line" else origin) for value, origin in states
    )
    return charged, coupled


def require_hydrogens(block: MolBlock, charge: int | None, multiplicity: int | None) -> None:
    """Raise for a block with unfilled valences, unless the given charge or spin explains them.

    Parameters
    ----------
    charge, multiplicity : options; None if they were not given
    """
    missing = unfilled(block)
    total = sum(missing.values())
    if total <= 0 or total in _explained(block, charge, multiplicity):
        return
    named = [f"{place + 1} {block.atoms[place].symbol}" for place in missing]
    if len(named) > 6:
        named = [*named[:6], "..."]
    if total == 1:
        counted = "a hydrogen atom is missing"
    else:
        counted = f"{total} hydrogen atoms are missing"
    raise InputError(
        f"{counted}, because the valences of {', '.join(named)} are not filled: add them in three "
        "dimensions (for example with obabel -h), state radicals by M  RAD and charges by "
        "M  CHG, or give an xyz file if these are all atoms"
    )


def require_space(block: MolBlock, heights: Sequence[float]) -> None:
    """Raise for a drawing, which shows an atom with four neighbours as if all were in one plane.

    Parameters
    ----------
    heights : z of each atom
    """
    if any(heights):
        return
    neighbours = Counter(atom for first, second, _ in block.bonds for atom in (first, second))
    for place, atom in enumerate(block.atoms):
        if neighbours[place] == 4 and atom.symbol in TETRAHEDRAL:
            raise InputError(
                f"a two-dimensional drawing: all z are 0, and atom {place + 1} {atom.symbol} has "
                "four neighbours: generate a three-dimensional geometry first"
            )


def _explained(block: MolBlock, charge: int | None, multiplicity: int | None) -> set[int]:
    """Numbers of unfilled valences that the given charge and multiplicity explain."""
    if charge is None and multiplicity is None:
        return set()
    if charge is None or block.charged:
        ionic = 0
    else:
        ionic = abs(charge)
    if multiplicity is None:
        return {ionic}
    unpaired = multiplicity - 1
    if multiplicity == 1:
        return {ionic, ionic + 2}  # a carbene
    return {ionic + unpaired}


def unfilled(block: MolBlock) -> dict[int, int]:
    """Atoms, from 0, and the hydrogens that each of them lacks; empty if bonds are not informative.

    Metals, their neighbours, and atoms with bonds of unknown order are skipped. An atom of the
    second period with a bond too many, as in C#O or N(=O)O without charges, fills a valence of a
    neighbour.
    """
    if (len(block.atoms) > 1 and not block.bonds) or block.written_by == "ASE":
        return {}  # ASE writes every bond as a single bond
    bonds_of: list[list[tuple[int, int]]] = [[] for _ in block.atoms]
    for first, second, order in block.bonds:
        bonds_of[first].append((second, order))
        bonds_of[second].append((first, order))
    lacks = [
        _lack(atom, [order for _, order in bonds]) if _is_informative(block, bonds) else 0
        for atom, bonds in zip(block.atoms, bonds_of, strict=True)
    ]
    missing = {place: lack for place, lack in enumerate(lacks) if lack > 0}
    for place, lack in enumerate(lacks):
        if lack < 0 and block.atoms[place].symbol in PERIOD_2:
            other = next((other for other, _ in bonds_of[place] if missing.get(other)), None)
            if other is not None:
                missing[other] -= 1
    return {place: lack for place, lack in missing.items() if lack}


def _is_informative(block: MolBlock, bonds: list[tuple[int, int]]) -> bool:
    """Whether the orders of an atom's bonds, (neighbour, order), are known and none is to a
    metal."""
    return all(
        order in (*ORDERS, AROMATIC) and _valences(block.atoms[other]) is not None
        for other, order in bonds
    )


def _lack(atom: Atom, orders: list[int]) -> int:
    """Hydrogens that an atom lacks, negative for excess bonds, 0 if unknown."""
    aromatic = orders.count(AROMATIC)
    least = sum(order for order in orders if order in ORDERS) + aromatic
    most = least + (aromatic > 0)  # one of them may be double
    electrons = RADICAL_ELECTRONS.get(atom.radical, 0)
    if atom.valence:
        wanted = atom.valence % NO_VALENCE
        return max(0, wanted - most)
    valences = _valences(atom)
    if valences is None:
        return 0
    least, most = least + electrons, most + electrons
    if any(least <= valence <= most for valence in valences):
        return 0
    if atom.symbol in PERIOD_2 and least > valences[0]:
        return valences[0] - least
    larger = [valence for valence in valences if valence > most]
    return valences[-1] - least if not larger else larger[0] - most


def _valences(atom: Atom) -> tuple[int, ...] | None:
    """Valences of an atom with its charge, None for metals."""
    if atom.symbol not in VALENCES:
        return None
    number = atomic_number(atom.symbol) - atom.charge
    if number < 1:
        return (0,)  # a proton
    if number > len(SYMBOLS):
        return None
    same_electrons = VALENCES.get(SYMBOLS[number - 1])
    if same_electrons is None and atom.charge > 0:
        return None
    return same_electrons or (0,)


def _read_atom(line: str, number: int) -> Atom:
    words = line.split()
    if len(words) < 4:
        raise InputError(f"{line[:40]!a}: expected x, y, z and a symbol", line=number)
    if len(words) > 4 and _whole(words[4], "mass difference", number):
        raise InputError(f"mass difference {words[4]}", *NO_ISOTOPES, line=number)
    if len(words) > 5:
        code = _whole(words[5], "charge code", number)
    else:
        code = 0
    if len(words) > 9:
        valence = _whole(words[9], "valence", number)
    else:
        valence = 0
    if code not in (0, DOUBLET_CODE, *CHARGE_CODES):
        raise InputError(
            f"charge code {code}: expected 0 to 7, as in the format of mol files", line=number
        )
    radical = 2 if code == DOUBLET_CODE else 0
    return Atom(symbol=words[3], charge=CHARGE_CODES.get(code, 0), radical=radical, valence=valence)


def _read_bond(line: str, number: int, natom: int) -> tuple[int, int, int]:
    first = _whole(line[0:3], "atom of a bond", number)
    second = _whole(line[3:6], "atom of a bond", number)
    order = _whole(line[6:9], "order of a bond", number)
    if not (1 <= first <= natom and 1 <= second <= natom) or first == second:
        raise InputError(
            f"a bond of atoms {first} and {second}: expected two of the {natom} atoms", line=number
        )
    return first - 1, second - 1, order


def _read_property(lines: list[str], name: str, natom: int) -> dict[int, int]:
    """Atoms, from 0, and their values on the lines `M  NAME`."""
    values: dict[int, int] = {}
    for line in lines:
        if not line.startswith(f"M  {name}"):
            continue
        words = line[6:].split()
        try:
            numbers = [int(word) for word in words]
        except ValueError as error:
            raise InputError(
                f"M  {name} is damaged ({error}): correct the line, or remove it and give ",
                Option("charge"),
                " and ",
                Option("multiplicity"),
            ) from error
        pairs = list(zip(numbers[1::2], numbers[2::2], strict=False))
        if not numbers or len(numbers) != 1 + 2 * numbers[0]:
            raise InputError(
                f"M  {name} is damaged ({line.strip()[:40]!a}): expected the number of atoms and "
                "an atom and a value for each"
            )
        for atom, value in pairs:
            if not 1 <= atom <= natom:
                raise InputError(f"M  {name}: there is no atom {atom}: the file has {natom}")
            values[atom - 1] = value
    return values


def _read_data(lines: list[str]) -> list[Statement]:
    """Statements about charge and spin in the data of an .sdf file, such as PubChem's."""
    listed: list[Statement] = []
    for place, line in enumerate(lines[:-1]):
        name = re.match(r">.*<([^>]{1,200})>", line)
        if name and DATA_OF_STATE.fullmatch(name[1].strip()):
            words = name[1].strip().removeprefix("PUBCHEM_").removeprefix("pubchem_")
            listed += statements(f"{words}={lines[place + 1].strip() or 'empty'}")
    return listed


def _whole(text: str, what: str, line: int) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"{what} {text.strip()[:20]!a}: expected a number", line=line) from error
