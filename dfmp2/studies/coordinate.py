"""A bond, angle or dihedral of a molecule, and the atoms that move when it changes.

    bond I,J         the side of J moves along the line from I to J
    angle I,J,K      the side of K rotates about the normal of the plane through J
    dihedral I,J,K,L the side of K rotates about the line from J to K

The side of an atom is everything bonded to it, directly or through others, once the bond I-J (for
an angle or dihedral, J-K) is cut. Atoms are bonded if closer than 1.25 times the sum of their
covalent radii; ghosts are bonded only to ghosts. In a ring there is no such side, and the atoms
that move must be given.

Atoms are given as ranges joined by plus signs, 1-3+7; they count from 1, and ranges include both
ends.

Constraints hold coordinates in an optimisation or set them to values, in geomeTRIC's format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import Command, InputError, Message, Option
from dfmp2.molecule.elements import bonds, internal_coordinate
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import connected
from dfmp2.units import ANGSTROM_PER_BOHR, BOHR_PER_ANGSTROM, counted_text

Vector = NDArray[np.float64]

ATOMS = {"bond": 2, "angle": 3, "dihedral": 4}
FEWEST, MOST = 2, 500  # points
_NUMBER = r"\s*([+-]?(?:[0-9]{1,9}(?:\.[0-9]{0,15})?|\.[0-9]{1,15}))\s*"
_POINTS = re.compile(rf"{_NUMBER}:{_NUMBER}:\s*([0-9]{{1,4}})\s*")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
LINEAR = 1e-4  # rad; distance from 0 or 180 degrees


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A coordinate and the values it takes.

    Attributes
    ----------
    kind : "bond", "angle" or "dihedral"
    atoms : counted from 0
    moving : atoms that move, counted from 0
    values : in `units`, in the order of the scan
    units : "angstrom", "bohr" or "degree"
    """

    kind: str
    atoms: tuple[int, ...]
    moving: tuple[int, ...]
    values: tuple[float, ...]
    units: str

    @property
    def name(self) -> str:
        """bond_1_2, angle_2_1_3, ..."""
        return "_".join([self.kind, *(str(atom + 1) for atom in self.atoms)])

    @property
    def said(self) -> str:
        """A readable name, e.g. "bond 1-2"."""
        return f"{self.kind} {'-'.join(str(atom + 1) for atom in self.atoms)}"

    @property
    def period(self) -> float | None:
        """Its period, in its unit; None if it has none."""
        return 360.0 if self.kind == "dihedral" else None

    def same_place(self, other: Coordinate) -> bool:
        """Whether it is the same coordinate, regardless of its values."""
        return self.kind == other.kind and self.atoms in (other.atoms, other.atoms[::-1])

    def deviation(self, molecule: Molecule, value: float) -> float:
        """Difference between a value and that of a geometry, bohr or radian; the shorter way
        round."""
        present = internal_coordinate(molecule.coordinates[list(self.atoms)])
        if self.kind == "bond":
            if self.units == "angstrom":
                return value * BOHR_PER_ANGSTROM - present
            return value - present
        return math.remainder(math.radians(value) - present, 2 * math.pi)

    def at(self, molecule: Molecule, value: float) -> Molecule:
        """The molecule with the coordinate set to `value` and other bonds and angles unchanged.

        Raises
        ------
        InputError : two atoms come too close, or the coordinate is undefined at this geometry
        """
        from scipy.spatial.transform import Rotation  # 0.2 s, which most studies do not need

        points = np.array(molecule.coordinates)
        place = list(self.atoms)
        moving = list(self.moving)
        if self.kind == "bond":
            scale = BOHR_PER_ANGSTROM if self.units == "angstrom" else 1.0
            line = points[place[1]] - points[place[0]]
            length = float(np.linalg.norm(line))
            points[moving] += line / length * (value * scale - length)
        else:
            pivot, axis = _axis(self.kind, points[place])
            change = math.radians(value) - internal_coordinate(points[place])
            turn = Rotation.from_rotvec(change * axis / np.linalg.norm(axis))
            points[moving] = pivot + turn.apply(points[moving] - pivot)
        try:
            return replace(molecule, coordinates=points)
        except InputError as error:
            raise error.prefixed(f"{self.kind} at {value:g} {self.units}") from error


def make_coordinate(
    kind: str,
    atoms: str,
    values: str | Sequence[float],
    molecule: Molecule,
    *,
    units: str = "angstrom",
    moving: str | None = None,
    rigid: bool = True,
) -> Coordinate:
    """A coordinate from command-line options.

    Parameters
    ----------
    kind : "bond", "angle" or "dihedral"
    atoms : comma-separated numbers from 1
    values : FROM:TO:POINTS, both ends included, or a list
    units : unit of a bond length
    moving : ranges of atoms that move, such as 4-6+8; None for the side of the last atom
    rigid : whether a side must be able to move alone; otherwise no atom moves in a ring

    Raises
    ------
    InputError : atoms that do not exist or are repeated, an invalid range, a ring, a linear angle
    """
    if kind not in ATOMS:
        raise InputError(f"coordinate {kind!r}: expected one of {', '.join(ATOMS)}")
    option = Option("coordinate", flag=kind)
    place = parse_place(option, kind, atoms, molecule.natom)
    steps = _values(option, kind, values)
    if kind == "dihedral":
        first, middle, last = np.diff(molecule.coordinates[list(place)], axis=0)
        if _straight(first, middle) or _straight(middle, last):
            raise InputError(
                option.of(atoms),
                ": three of the atoms are on a line, so the dihedral is not defined",
            )
    if moving is None:
        chosen = _side(kind, place, molecule)
    else:
        chosen = _named_side(kind, place, moving, molecule)
    found = Coordinate(
        kind=kind,
        atoms=place,
        moving=chosen,
        values=steps,
        units="degree" if kind != "bond" else units,
    )
    if not rigid:
        return found
    if not chosen:
        raise InputError(
            Option("coordinate", ",".join(str(atom + 1) for atom in place), flag=kind),
            (
                ": the atoms are in a ring or not bonded in this order, so no side can move alone: "
                "name the atoms that move, e.g. "
            ),
            Option("moving", show_atoms([place[-1]])),
        )
    for value in steps:
        found.at(molecule, value)
    return found


def parse_atoms(text: str, natom: int, option: Option) -> tuple[int, ...]:
    """Atoms of a selection such as 1-3+7, counted from 0 in increasing order; `option` names it in
    errors.

    Raises
    ------
    InputError : not a list of ranges, a reversed range, no such atom, a repeated atom
    """
    chosen: list[int] = []
    for word in text.split("+"):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise InputError(
                option.of(text[:60]),
                f": {word.strip()[:30]!r} is no range: expected ranges such as 1-3+7",
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first < 1:
            raise InputError(option.of(text[:60]), ": there is no atom 0: atoms count from 1")
        if last < first:
            raise InputError(
                option.of(text[:60]), f": {word.strip()} runs backwards: write {last}-{first}"
            )
        if last > natom:
            raise InputError(
                option.of(text[:60]), f": there is no atom {last}: the file has {natom}"
            )
        chosen += range(first - 1, last)
        if len(set(chosen)) < len(chosen):
            twice = next(atom for atom in chosen if chosen.count(atom) > 1)
            raise InputError(
                option.of(text[:60]), f": atom {twice + 1} is named twice: leave one out"
            )
    return tuple(sorted(chosen))


def show_atoms(atoms: Sequence[int]) -> str:
    """Atoms counted from 0 as ranges counted from 1: (0, 1, 2, 6) is "1-3+7"."""
    ranges: list[list[int]] = []
    for atom in sorted(atoms):
        if ranges and atom == ranges[-1][1] + 1:
            ranges[-1][1] = atom
        else:
            ranges.append([atom, atom])
    return "+".join(f"{a + 1}" if a == b else f"{a + 1}-{b + 1}" for a, b in ranges)


def parse_place(option: Option, kind: str, atoms: str, natom: int) -> tuple[int, ...]:
    """The atoms of a coordinate, counted from 0, from comma-separated numbers; `option` names it in
    errors.

    Raises
    ------
    InputError : too few or too many atoms, no such atom, a repeated atom
    """
    words = [word.strip() for word in atoms.split(",")]
    count = ATOMS[kind]
    if len(words) != count or not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise InputError(
            option.of(atoms[:60]),
            f": expected {count} atom numbers, such as {','.join('1234'[:count])}",
        )
    place = tuple(parse_atoms(word, natom, option)[0] for word in words)
    if len(set(place)) < count:
        raise InputError(option.of(atoms), f": an atom is named twice: name {count} different ones")
    return place


def _values(option: Option, kind: str, given: str | Sequence[float]) -> tuple[float, ...]:
    text = ""
    if isinstance(given, str):
        text = given
    else:
        given = tuple(given)
    match = _POINTS.fullmatch(text)
    if match:
        count = int(match[3])
    elif text:
        count = 0
    else:
        count = len(given)
    if not FEWEST <= count <= MOST:
        if text:
            named = Message(option.of(text[:60]))
        else:
            named = Message(option, f" of {counted_text(count, 'value')}")
        raise InputError(
            named,
            f": expected FROM:TO:POINTS with {FEWEST} to {MOST} points, such as 0.8:1.2:9",
        )
    if match:
        start, end = float(match[1]), float(match[2])
        # Keep as many digits as were typed, so that steps of 0.1 are printed as such.
        values = tuple(
            round(start + (end - start) * step / (count - 1), 12) for step in range(count)
        )
    else:
        values = _listed(option, given)
        start, end = min(values), max(values)
    low, high = sorted((start, end))
    sound, expected = {
        "bond": (low > 0, "lengths above zero"),
        "angle": (0 < low < high <= 180, "angles above zero and up to 180 degrees"),
        "dihedral": (-720 <= low < high <= 720, "angles between -720 and 720 degrees"),
    }[kind]
    if low == high or not sound:
        if low == high:
            why = "there is nothing to scan: give two different values"
        else:
            why = f"expected {expected}"
        said = option.of(text) if text else option
        raise InputError(said, f": from {start:g} to {end:g}: {why}")
    for value in values:
        if values.count(value) > 1:
            raise InputError(option, f": {value:g} is given twice: leave one out")
    return values


def _listed(option: Option, given: Sequence[Any]) -> tuple[float, ...]:
    """The given values as floats.

    Raises
    ------
    InputError : one of them is no finite number
    """
    try:
        values = tuple(float(value) for value in given)
    except (TypeError, ValueError):
        values = (math.nan,)
    if not all(math.isfinite(value) for value in values):
        raise InputError(option, ": expected numbers, such as [0.8, 0.9, 1.0]")
    return values


def _side(kind: str, place: tuple[int, ...], molecule: Molecule) -> tuple[int, ...]:
    """The atoms that move, by connectivity; empty if no side can move alone."""
    if kind == "bond":
        still, first = (place[0], place[1])
    else:
        still, first = (place[1], place[2])
    uncut = [pair for pair in _bonded(molecule) if set(pair) != {still, first}]
    parts = connected(range(molecule.natom), uncut)
    moving = next(part for part in parts if first in part)
    if {place[0], still} & set(moving) or set(place[2:]) - set(moving):
        return ()
    return moving


def _named_side(
    kind: str, place: tuple[int, ...], moving: str, molecule: Molecule
) -> tuple[int, ...]:
    chosen = parse_atoms(moving, molecule.natom, Option("moving"))
    if kind == "bond":
        still = place[:1]
    else:
        still = place[:2]
    if place[-1] not in chosen or set(still) & set(chosen):
        raise InputError(
            Option("moving", moving),
            f": atom {place[-1] + 1} must be among the atoms that move, and {show_atoms(still)} "
            "not",
        )
    return chosen


def _bonded(molecule: Molecule) -> list[tuple[int, int]]:
    """Pairs of bonded atoms; ghosts are bonded only to ghosts."""
    places = molecule.coordinates * ANGSTROM_PER_BOHR
    real = tuple(not ghost for ghost in molecule.ghost)
    return [
        *bonds(molecule.symbols, places, molecule.ghost),
        *bonds(molecule.symbols, places, real),
    ]


def _axis(kind: str, points: Vector) -> tuple[Vector, Vector]:
    """A point on the axis and its direction; rotation about it by a positive angle increases the
    coordinate."""
    if kind == "dihedral":
        return points[1], points[2] - points[1]
    a, b = points[0] - points[1], points[2] - points[1]
    normal = np.cross(a, b)
    if _straight(a, b):  # any normal will do
        normal = np.cross(a, np.eye(3)[int(np.argmin(np.abs(a)))])
    return points[1], normal


def _straight(a: Vector, b: Vector) -> bool:
    return bool(np.linalg.norm(np.cross(a, b)) < LINEAR * np.linalg.norm(a) * np.linalg.norm(b))


# --- constraints ----------------------------------------------------------------------------------

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
    """Coordinates to be held as they are, or set to values.

    Attributes
    ----------
    frozen : (kind, atoms), e.g. ("bond", "1,2") or ("xyz", "1-3+7")
    fixed : (kind, atoms, value), e.g. ("angle", "2,1,3", "90"); degrees, and lengths in `units`
    text : a constraints file of geomeTRIC, "" for none
    units : "angstrom" or "bohr"
    """

    frozen: Sequence[tuple[str, str]] = ()
    fixed: Sequence[tuple[str, str, str]] = ()
    text: str = ""
    units: str = "angstrom"

    def for_geometric(self, molecule: Molecule) -> str:
        """All constraints in geomeTRIC's format, lengths in angstrom; "" for none.

        Raises
        ------
        InputError
            Atoms that do not exist or are repeated, a value that is out of range, a coordinate that
            is constrained twice or whose atoms are all held, a file with anything but constraints.
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
    """Raise for constraints that may contradict each other."""
    rows = [line.partition("#")[0].lower().split() for line in text.splitlines()]
    held: list[range] = []
    for row in rows:
        if row[:1] == ["xyz"] and len(row) > 1:
            held += _ranges_of(row[1])
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
        if all(_is_held(atom, held) for atom in place):
            raise InputError(
                f"{said} is constrained, and all its atoms are held by xyz: leave one of them out"
            )
        seen.add(coordinate)


def _ranges_of(text: str) -> Iterator[range]:
    """The ranges of atoms in "1-3,7"; parts that name no atoms are left to geomeTRIC."""
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is not None:
            first = int(match[1])
            last = int(match[2] or first)
            yield range(first, last + 1)


def _is_held(atom: str, held: list[range]) -> bool:
    """Whether a word is the number of an atom in one of the ranges."""
    return _RANGE.fullmatch(atom) is not None and any(int(atom) in one for one in held)


def constraint_lines(text: str, molecule: Molecule) -> list[str]:
    """The constrained bonds, angles and dihedrals with their values in a geometry, and other
    constraints."""
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
