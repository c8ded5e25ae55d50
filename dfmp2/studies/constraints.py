"""What an optimisation keeps as it is, or brings to a value: constraints in geomeTRIC's format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dfmp2.errors import InputError
from dfmp2.errors.messages import Command, Message, Option
from dfmp2.molecule.elements import internal_coordinate
from dfmp2.molecule.molecule import Molecule
from dfmp2.studies.coordinate import ATOMS, parse_atoms, parse_place
from dfmp2.units import ANGSTROM_PER_BOHR

KINDS = {
    "bond": "distance",
    "distance": "distance",
    "angle": "angle",
    "dihedral": "dihedral",
    "xyz": "xyz",
}
FREEZE, SET = Option("freeze"), Option("fixed", flag="set")
EXPECTED = "expected bond I,J, angle I,J,K, dihedral I,J,K,L or xyz RANGES, atoms counted from 1"


@dataclass(frozen=True, slots=True)
class Constraints:
    """What stays as it is, or is brought to a value.

    Attributes
    ----------
    frozen : (kind, atoms) as ("bond", "1,2"), ("xyz", "1-3+7")
    fixed : (kind, atoms, value) as ("angle", "2,1,3", "90"); degrees, and lengths in `units`
    text : a constraints file of geomeTRIC, "" for none
    units : "angstrom" or "bohr"
    """

    frozen: Sequence[tuple[str, str]] = ()
    fixed: Sequence[tuple[str, str, str]] = ()
    text: str = ""
    units: str = "angstrom"

    def for_geometric(self, molecule: Molecule) -> str:
        """All of them in geomeTRIC's format, lengths in angstrom; "" for none.

        Raises
        ------
        InputError
            Atoms that do not exist or are named twice, a value that no such coordinate has, a
            coordinate that is constrained twice or whose atoms are all held, a file with more
            than constraints.
        """
        lines = [f"$freeze\n{_line(FREEZE, kind, atoms, molecule)}" for kind, atoms in self.frozen]
        lines += [
            f"$set\n{_line(SET, kind, atoms, molecule)} {self._value(kind, atoms, value)!r}"
            for kind, atoms, value in self.fixed
        ]
        for line in self.text.splitlines():
            word = line.partition("#")[0].strip().lower()
            if word.startswith("$scan"):
                raise InputError(
                    Option("constraints"),
                    ": $scan asks for several optimisations: use ",
                    Command("scan"),
                    ", or one $set each",
                )
            if word.startswith("$options"):
                raise InputError(
                    Option("constraints"),
                    ": $options are those of geomeTRIC's command: use the options of dfmp2",
                )
        text = "\n".join([*lines, *([self.text] if self.text.strip() else [])])
        _require_once(text)
        return text

    def _value(self, kind: str, atoms: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        least, most, what = {
            "angle": (0.0, 180.0, "degrees above 0 and below 180"),
            "dihedral": (-360.0, 360.0, "degrees between -360 and 360"),
        }.get(kind, (0.0, 1e3, f"a length above 0 in {self.units}"))
        if kind == "xyz" or not least < value < most:
            expected = Message(what)
            if kind == "xyz":
                expected = Message("positions as they are: ", FREEZE.of("xyz"))
            raise InputError(SET, f" {kind} {atoms} {text[:40]}: expected ", expected)
        if KINDS[kind] == "distance" and self.units == "bohr":
            return value * ANGSTROM_PER_BOHR
        return value


def _line(option: Option, kind: str, atoms: str, molecule: Molecule) -> str:
    if kind not in KINDS:
        raise InputError(option, f" {kind[:40]!r}: {EXPECTED}")
    if kind == "xyz":
        chosen = parse_atoms(atoms, molecule.natom, option)
        return "xyz " + ",".join(str(atom + 1) for atom in chosen)
    of_kind = replace(option, flag=f"{option.flag or option.name} {kind}")
    place = parse_place(of_kind, kind.replace("distance", "bond"), atoms, molecule.natom)
    return " ".join([KINDS[kind], *(str(atom + 1) for atom in place)])


def _require_once(text: str) -> None:
    """Refuse constraints that can contradict each other."""
    rows = [line.partition("#")[0].lower().split() for line in text.splitlines()]
    held = {
        atom for row in rows if row[:1] == ["xyz"] and len(row) > 1 for atom in _atoms_of(row[1])
    }
    seen = set()
    for kind, *words in filter(None, rows):
        count = ATOMS.get(kind.replace("distance", "bond"))
        if count is None:
            continue
        place = tuple(words[:count])
        coordinate = KINDS[kind], min(place, place[::-1])
        said = f"{kind.replace('distance', 'bond')} {','.join(place)}"
        if coordinate in seen:
            raise InputError(
                f"{said} is constrained twice: keep one of ",
                FREEZE,
                ", ",
                SET,
                " and the lines of ",
                Option("constraints"),
            )
        if held.issuperset(place):
            raise InputError(
                f"{said} is constrained, and all its atoms are held by xyz: leave one of them out"
            )
        seen.add(coordinate)


def _atoms_of(ranges: str) -> Iterator[str]:
    """The atoms of "1-3,7"."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            yield from map(str, range(int(first), int(last or first) + 1))


def constraint_lines(text: str, molecule: Molecule) -> list[str]:
    """The bonds, angles and dihedrals that are constrained, with their values in a geometry; and
    other constraints."""
    lines = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words or words[0].startswith("$"):
            continue
        kind = words[0].lower().replace("distance", "bond")
        if len(words) <= 2 or kind not in ATOMS:
            lines.append(" ".join(words))
            continue
        place = [int(word) - 1 for word in words[1 : 1 + ATOMS[kind]]]
        value = internal_coordinate(molecule.coordinates[place])
        if kind == "bond":
            shown = f"{value * ANGSTROM_PER_BOHR:.6f} angstrom"
        else:
            shown = f"{math.degrees(value):.4f} degrees"
        lines.append(f"{kind} {'-'.join(str(atom + 1) for atom in place)} = {shown}")
    return lines
