"""Molecules: nuclei, ghost centres, charge and multiplicity, validated when built.

Nuclear repulsion is E_nuc = sum_{A<B} Z_A Z_B / R_AB over real atoms, with Z the nuclear charge
minus the electrons that an effective core potential replaces. Ghost atoms carry only basis
functions. Point charges around the molecule are part of the Hamiltonian: they act on electrons and
nuclei, not on each other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import operator
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, Option
from dfmp2.molecule.elements import atomic_number, internal_coordinate, normalise_symbol
from dfmp2.molecule.point_charges import LEAST_DISTANCE, checked, nuclear_energy, too_near
from dfmp2.units import ANGSTROM_PER_BOHR, BOHR_PER_ANGSTROM, counted_text, told_apart

MAX_COORDINATE = 1e4  # bohr; beyond half a micrometre, the unit is wrong or the file is broken
MAX_CHARGE = 10_000  # e; beyond the nuclei of a hundred heavy atoms, it is no charge
MIN_DISTANCE = 0.2 * BOHR_PER_ANGSTROM  # bohr; the shortest bond, H2, is 0.74 angstrom
LINE = np.array([0.41, 0.57, 0.71])  # slightly shorter than 1, along no crystal axis or plane
ROWS_PER_BLOCK = 256  # rows of the distance matrix in memory at once: 20 MB at 10 000 atoms


@dataclass(frozen=True, slots=True, eq=False)
class Molecule:
    """One molecule; lengths in bohr. Molecules are equal if atoms, coordinates, point charges (to
    the last bit), charge and multiplicity are.

    Attributes
    ----------
    symbols : element symbol of each centre
    coordinates : (natom, 3) float64, bohr, read-only
    ghost : whether each centre is a ghost (basis functions, no nucleus, no electrons); () for none
    charge : total charge, e
    multiplicity : 2S + 1
    name : short name for reports and output files
    source : file name, "stdin" or "python"
    text : input text verbatim, "" if there was none
    point_charges : (n, 4) float64, read-only: x, y, z in bohr, charge in e; None if there are none
    """

    symbols: tuple[str, ...]
    coordinates: NDArray[np.float64] = field(repr=False)
    ghost: tuple[bool, ...] = ()
    charge: int = 0
    multiplicity: int = 1
    name: str = "molecule"
    source: str = ""
    text: str = field(default="", repr=False)
    point_charges: NDArray[np.float64] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("name", "source", "text"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise InputError(f"{name} of a molecule is a {type(value).__name__}: expected text")
        symbols = tuple(normalise_symbol(symbol) for symbol in self.symbols)
        ghost = tuple(bool(flag) for flag in self.ghost) or (False,) * len(symbols)
        object.__setattr__(self, "symbols", symbols)
        object.__setattr__(self, "ghost", ghost)
        object.__setattr__(self, "charge", _whole("charge", self.charge))
        object.__setattr__(self, "multiplicity", _whole("multiplicity", self.multiplicity))
        if abs(self.charge) > MAX_CHARGE:
            charge = "of more than 20 digits"
            if abs(self.charge) < 10**20:
                charge = str(self.charge)
            raise InputError(f"charge {charge}: expected at most {MAX_CHARGE} e of either sign")
        if self.multiplicity < 1:
            raise InputError(
                f"multiplicity {self.multiplicity}: expected 2S + 1, so 1 (singlet) or more"
            )
        if len(ghost) != len(symbols):
            raise InputError(
                f"{len(ghost)} ghost flags for {len(symbols)} atoms: give one for each atom, or "
                "none"
            )
        if all(ghost):
            raise InputError("the molecule has no real atom: give at least one that is not a ghost")
        object.__setattr__(self, "coordinates", _checked_coordinates(self.coordinates, self.labels))
        if self.point_charges is not None:
            object.__setattr__(self, "point_charges", checked(self.point_charges))
            clash = too_near(
                self.coordinates, self.symbols, ghost, self.point_charges, LEAST_DISTANCE
            )
            if clash:
                raise InputError(
                    f"{clash}, less than 0.1: leave out the charges of its own atoms, or check "
                    "their units"
                )

    def __reduce__(self) -> tuple[type[Molecule], tuple[Any, ...]]:
        # Built anew, so that the arrays of a copy are read-only, too.
        return Molecule, tuple(getattr(self, one.name) for one in dataclasses.fields(self))

    def __repr__(self) -> str:
        if self.point_charges is None:
            charges = ""
        else:
            charges = f", {len(self.point_charges)} point charges"
        return (
            f"Molecule({self.name}: {self.formula}, charge {self.charge}, multiplicity "
            f"{self.multiplicity}{charges})"
        )

    # The readers build on this module, so they are loaded by name.

    @classmethod
    def from_xyz(
        cls,
        path: str | os.PathLike[str],
        *,
        units: str = "angstrom",
        charge: int | None = None,
        multiplicity: int | None = None,
    ) -> Molecule:
        """The molecule of an xyz file (`dfmp2.molecule.xyz.read_xyz`).

        Parameters
        ----------
        units : unit of the coordinates in the file, "angstrom" or "bohr"
        charge, multiplicity : override the comment line if given

        Raises
        ------
        InputError : the file cannot be read, or is not an xyz file of one molecule; names file and
            line
        """
        found: Molecule = (
            _reader("xyz")
            .read_xyz(path, units=units, charge=charge, multiplicity=multiplicity)
            .molecule
        )
        return found

    @classmethod
    def from_string(
        cls,
        text: str,
        *,
        units: str = "angstrom",
        charge: int | None = None,
        multiplicity: int | None = None,
    ) -> Molecule:
        """The molecule in a text: an xyz file, or just the atoms, as in "O 0 0 0; H 0 0 0.96; H
        0.93 0 -0.24".

        Parameters as in `from_xyz`.

        Raises
        ------
        InputError : names the line
        """
        found: Molecule = _reader("xyz").parse_text(
            text, units=units, charge=charge, multiplicity=multiplicity
        )
        return found

    @classmethod
    def from_ase(
        cls, atoms: Any, *, charge: int | None = None, multiplicity: int | None = None
    ) -> Molecule:
        """The molecule of an `ase.Atoms` object.

        Parameters
        ----------
        charge, multiplicity : None for the sum of the initial charges, and 1 plus the sum of the
            initial magnetic moments

        Raises
        ------
        InputError : the atoms are periodic, or the sums are not whole numbers or not what
            `atoms.info` states
        """
        found: Molecule = _reader("foreign").from_ase(atoms, charge, multiplicity)
        return found

    @classmethod
    def from_pyscf(cls, mole: Any) -> Molecule:
        """The molecule of a built PySCF Mole: atoms, ghosts, charge and spin; its basis is ignored.

        Raises
        ------
        InputError : another object, a cell, a Mole that is not built, or nuclei of finite size
        """
        found: Molecule = _reader("foreign").from_pyscf(mole)
        return found

    @classmethod
    def from_qcschema(cls, document: Any) -> Molecule:
        """The molecule of a QCSchema document (molecule version 2 or 3), or of a QCElemental
        molecule, in bohr.

        Raises
        ------
        InputError : a field is missing, unknown, of another type, or contradicts another one
        """
        found: Molecule = _reader("foreign").from_qcschema(document)
        return found

    def to_xyz(self) -> str:
        """The text of an xyz file: angstrom, with charge and multiplicity in the comment line, but
        without the point charges, which `point_charges` holds."""
        return str(_reader("xyz").write_xyz(self))

    def to_ase(self) -> Any:
        """The molecule as `ase.Atoms`, positions in angstrom.

        Charge and unpaired electrons become the initial charge and magnetic moment of the first
        atom; `from_ase` reads their sums.

        Raises
        ------
        InputError : ASE is not installed, or cannot represent ghosts or point charges
        """
        return _reader("foreign").to_ase(self)

    def distance(self, i: int, j: int) -> float:
        """Distance of two atoms, counted from 1, in angstrom."""
        return self._coordinate(i, j) * ANGSTROM_PER_BOHR

    def angle(self, i: int, j: int, k: int) -> float:
        """Angle of three atoms at the second, counted from 1, in degrees, 0 to 180."""
        return math.degrees(self._coordinate(i, j, k))

    def dihedral(self, i: int, j: int, k: int, l: int) -> float:  # noqa: E741 - atoms i, j, k, l
        """Dihedral angle of four atoms, counted from 1, in degrees, -180 to 180.

        It is positive if the fourth atom is clockwise of the first, viewed from the second to the
        third.
        """
        return math.degrees(self._coordinate(i, j, k, l))

    def bonds(self) -> dict[tuple[int, int], float]:
        """Bond lengths in angstrom, by atoms counted from 1; real atoms close to each other are
        bonded."""
        found = _reader("structure").structure(self).bonds
        return {(i + 1, j + 1): length for (i, j), length in found}

    def angles(self) -> dict[tuple[int, int, int], float]:
        """Angles between bonds that share an atom, in degrees, by atoms counted from 1, with the
        shared one second."""
        found = _reader("structure").structure(self).angles
        return {(i + 1, j + 1, k + 1): angle for (i, j, k), angle in found}

    def _coordinate(self, *atoms: int) -> float:
        """An internal coordinate, bohr or radians.

        Raises
        ------
        InputError : an atom does not exist, or is named twice
        """
        numbers = [_whole("atom", atom) for atom in atoms]
        if len(set(numbers)) < len(numbers) or not all(1 <= n <= self.natom for n in numbers):
            listed = ", ".join(map(str, numbers))
            raise InputError(
                f"atoms {listed}: expected {len(numbers)} different numbers from 1 to {self.natom}"
            )
        return internal_coordinate(self.coordinates[[number - 1 for number in numbers]])

    @property
    def natom(self) -> int:
        """Number of centres, ghosts included."""
        return len(self.symbols)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """(natom,) atomic numbers; a ghost has the number of its element."""
        return np.array([atomic_number(symbol) for symbol in self.symbols])

    @property
    def nuclear_charge(self) -> int:
        """Sum of the atomic numbers of the real atoms, e."""
        return int(self.numbers[~np.array(self.ghost)].sum())

    @property
    def labels(self) -> tuple[str, ...]:
        """Symbol of each centre, "@O" for a ghost."""
        return tuple(
            f"@{s}" if flag else s for s, flag in zip(self.symbols, self.ghost, strict=True)
        )

    @property
    def real_symbols(self) -> tuple[str, ...]:
        """Symbol of each atom that is not a ghost."""
        return tuple(
            symbol for symbol, flag in zip(self.symbols, self.ghost, strict=True) if not flag
        )

    @property
    def elements(self) -> tuple[str, ...]:
        """Distinct symbols in order of appearance, ghosts included."""
        return tuple(dict.fromkeys(self.symbols))

    @property
    def formula(self) -> str:
        """Formula in Hill order (C, H, then by letter), then ghosts, as in "H2O + ghost HO"."""
        real = hill_formula(self.real_symbols)
        ghosts = hill_formula(s for s, flag in zip(self.symbols, self.ghost, strict=True) if flag)
        return f"{real} + ghost {ghosts}" if ghosts else real

    @property
    def described(self) -> str:
        """Name and formula, as in "water (H2O)"; of ions and open shells also charge and
        multiplicity."""
        state = state_in_words(self.charge, [self.multiplicity])
        if state:
            return f"{self.name} ({self.formula}, {state})"
        return f"{self.name} ({self.formula})"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of labels, coordinates and point charges (their bits), charge and multiplicity,
        but not of texts."""
        digest = hashlib.sha256(
            f"{' '.join(self.labels)}|{self.charge}|{self.multiplicity}|".encode()
        )
        digest.update(self.coordinates.astype("<f8").tobytes())
        if self.point_charges is not None:
            digest.update(b"|" + self.point_charges.astype("<f8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Molecule):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def with_state(self, charge: int | None, multiplicity: int | None) -> Molecule:
        """The same geometry with another charge and multiplicity; None keeps that of this one."""
        if charge is None:
            charge = self.charge
        if multiplicity is None:
            multiplicity = self.multiplicity
        return dataclasses.replace(self, charge=charge, multiplicity=multiplicity)

    def in_field(self, point_charges: Any) -> Molecule:
        """The same molecule with point charges, (n, 4) in bohr and e; None for none.

        Raises
        ------
        InputError : the numbers are invalid, or a charge is on top of a nucleus
        """
        return dataclasses.replace(self, point_charges=point_charges)

    def electrons(self, ecp_electrons: Mapping[str, int]) -> int:
        """Number of explicit electrons: the sum over real atoms of Z minus the core-potential
        electrons, minus the charge.

        Parameters
        ----------
        ecp_electrons : symbol -> electrons replaced by its core potential; a missing one means none
        """
        return self.nuclear_charge - self.charge - _replaced_electrons(self, ecp_electrons)

    def check_electrons(self, ecp_electrons: Mapping[str, int]) -> tuple[int, int]:
        """Numbers of alpha and beta electrons.

        Raises
        ------
        InputError : charge and multiplicity do not fit the number of electrons
        """
        electrons = self.electrons(ecp_electrons)
        unpaired = self.multiplicity - 1
        state = f" with charge {self.charge}" if self.charge else ""
        if _replaced_electrons(self, ecp_electrons):
            ecp = " besides those of the core potential"
        else:
            ecp = ""
        has = f"{self.formula}{state} has {counted_text(electrons, 'electron')}{ecp}"
        if electrons < 1:
            raise InputError(f"{has}: expected at least one; pass a smaller ", Option("charge"))
        if unpaired > electrons:
            raise InputError(
                f"{has}, too few for multiplicity {self.multiplicity}: pass ",
                Option("multiplicity", electrons + 1),
                " or less",
            )
        if (electrons - unpaired) % 2:
            parity = "an odd" if unpaired % 2 else "an even"
            nearest = self.multiplicity - 1 if unpaired else 2
            raise InputError(
                f"{has}; multiplicity {self.multiplicity} needs {parity} number: pass ",
                Option("multiplicity", nearest),
                " (or a ",
                Option("charge"),
                ")",
            )
        return (electrons + unpaired) // 2, (electrons - unpaired) // 2


def nuclear_repulsion(molecule: Molecule, ecp_electrons: Mapping[str, int]) -> float:
    """Nuclear repulsion energy E_nuc = sum_{A<B} Z_A Z_B / R_AB, Eh, without ghosts and point
    charges.

    Parameters
    ----------
    ecp_electrons : symbol -> electrons replaced by its core potential, subtracted from Z
    """
    points, charges = _nuclei(molecule, ecp_electrons)
    energy = 0.0
    for start in range(0, len(points), ROWS_PER_BLOCK):
        rows = points[start : start + ROWS_PER_BLOCK]
        others = points[start:]
        distance = np.sqrt(((rows[:, None, :] - others[None, :, :]) ** 2).sum(axis=2))
        products = charges[start : start + ROWS_PER_BLOCK, None] * charges[None, start:]
        later = np.triu(np.ones(distance.shape, dtype=bool), k=1)
        energy += float((products[later] / distance[later]).sum())
    return energy


def field_energy(molecule: Molecule, ecp_electrons: Mapping[str, int]) -> float:
    """Energy of the nuclei in the potential of the point charges, Eh; parameters as in
    `nuclear_repulsion`."""
    if molecule.point_charges is None:
        return 0.0
    return nuclear_energy(*_nuclei(molecule, ecp_electrons), molecule.point_charges)


def _nuclei(
    molecule: Molecule, ecp_electrons: Mapping[str, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions in bohr and charges of the real atoms."""
    real = ~np.array(molecule.ghost)
    replaced = np.array([ecp_electrons.get(symbol, 0) for symbol in molecule.symbols])
    return molecule.coordinates[real], (molecule.numbers - replaced)[real].astype(np.float64)


def _reader(module: str) -> Any:
    return import_module(f"dfmp2.molecule.{module}")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        raise InputError(f"{name} {value!r}: expected a whole number")
    try:
        return operator.index(value)
    except TypeError as error:
        raise InputError(f"{name} {value!r}: expected a whole number") from error


def _replaced_electrons(molecule: Molecule, ecp_electrons: Mapping[str, int]) -> int:
    return sum(ecp_electrons.get(symbol, 0) for symbol in molecule.real_symbols)


def state_in_words(charge: int, multiplicities: Iterable[int]) -> str:
    """Charge and multiplicities of molecules, as in "charge +1, multiplicity 2"; "" for neutral
    singlets."""
    different = sorted(set(multiplicities))
    if charge == 0 and different == [1]:
        return ""
    sign = f"{charge:+d}" if charge else "0"
    noun = "multiplicity" if len(different) == 1 else "multiplicities"
    return f"charge {sign}, {noun} {' and '.join(map(str, different))}"


def hill_formula(symbols: Iterable[str]) -> str:
    """A formula in Hill order: C, H, then alphabetically."""
    counts = Counter(symbols)
    if "C" in counts:
        first = [symbol for symbol in ("C", "H") if symbol in counts]
    else:
        first = []
    order = first + sorted(set(counts) - set(first))
    return "".join(symbol + (str(counts[symbol]) if counts[symbol] > 1 else "") for symbol in order)


def _checked_coordinates(given: Any, labels: tuple[str, ...]) -> NDArray[np.float64]:
    """A read-only copy in bohr, or an InputError that names the atom."""
    try:
        points = np.array(given, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"coordinates are not numbers ({error}): expected natom rows of x, y, z in bohr"
        ) from error
    if points.shape != (len(labels), 3):
        raise InputError(
            f"coordinates have shape {points.shape}: expected ({len(labels)}, 3) for {len(labels)} "
            "atoms"
        )
    # This comparison is false for NaN, so one test finds NaN, infinity and values too large.
    wrong = np.flatnonzero(~(np.abs(points) < MAX_COORDINATE).all(axis=1))
    if wrong.size:
        atom = int(wrong[0])
        x, y, z = points[atom]
        raise InputError(
            f"atom {atom + 1} {labels[atom]} is at ({x:g}, {y:g}, {z:g}) bohr: expected finite "
            f"coordinates below {MAX_COORDINATE:g} bohr; check the number and the units"
        )
    points += 0.0  # turns -0.0 into 0.0, so that equal geometries have equal bits
    pair = _pair_too_close(points)
    if pair is not None:
        i, j = pair
        distance = float(np.linalg.norm(points[i] - points[j]))
        apart, _ = told_apart(".4f", distance * ANGSTROM_PER_BOHR, MIN_DISTANCE * ANGSTROM_PER_BOHR)
        raise InputError(
            f"atoms {i + 1} {labels[i]} and {j + 1} {labels[j]} are {apart} angstrom apart, "
            "less than 0.2: remove one of them or check the units"
        )
    points.setflags(write=False)
    return points


def _pair_too_close(points: NDArray[np.float64]) -> tuple[int, int] | None:
    """Two atoms closer than MIN_DISTANCE, or None. Such atoms are also close when projected
    on a line, where only neighbours need to be checked."""
    along = points @ LINE
    order = np.argsort(along, kind="stable")
    for step in range(1, len(points)):
        first, second = order[:-step], order[step:]
        here = np.flatnonzero(along[second] - along[first] < MIN_DISTANCE)
        if not here.size:
            break
        first, second = first[here], second[here]
        near = np.flatnonzero(((points[first] - points[second]) ** 2).sum(axis=1) < MIN_DISTANCE**2)
        if near.size:
            pairs = np.sort(np.stack([first[near], second[near]], axis=1), axis=1)
            i, j = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))[0]]
            return int(i), int(j)
    return None
