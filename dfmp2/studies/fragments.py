"""Fragments of a complex: which atoms, which charge and multiplicity each, and their molecules with and without ghosts.

1-5,6-10          two fragments: a comma ends one; atoms count from 1, ranges include both ends
1-3+7-9,4-6       the first has two ranges: a plus joins them
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dfmp2.errors import InputError
from dfmp2.molecule.molecule import Molecule

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")
EXPECTED = "expected ranges such as 1-5,6-10 (a comma ends a fragment, + joins ranges of one, atoms count from 1)"


@dataclass(frozen=True, slots=True)
class Fragment:
    """Part of a complex; `atoms` count from 0, in rising order."""

    atoms: tuple[int, ...]
    charge: int
    multiplicity: int

    @property
    def label(self) -> str:
        """Its atoms as they are written on the command line."""
        return show_atoms(self.atoms)


def parse_atoms(text: str, natom: int, option: str) -> tuple[int, ...]:
    """Atoms of one selection such as 1-3+7, from 0, in rising order; `option` names it in errors.

    Raises
    ------
    InputError : not a list of ranges, a range that runs backwards, no such atom, an atom named twice
    """
    chosen: list[int] = []
    for word in text.split("+"):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise InputError(f"{option} {text[:60]!r}: {word.strip()[:30]!r} is no range: {EXPECTED}")
        first, last = int(match[1]), int(match[2] or match[1])
        if first < 1:
            raise InputError(f"{option} {text[:60]!r}: there is no atom 0: atoms count from 1")
        if last < first:
            raise InputError(f"{option} {text[:60]!r}: {word.strip()} runs backwards: write {last}-{first}")
        if last > natom:
            raise InputError(f"{option} {text[:60]!r}: there is no atom {last}: the file has {natom}")
        chosen += range(first - 1, last)
        if len(set(chosen)) < len(chosen):
            twice = next(atom for atom in chosen if chosen.count(atom) > 1)
            raise InputError(f"{option} {text[:60]!r}: atom {twice + 1} is named twice: leave one out")
    return tuple(sorted(chosen))


def make_fragments(
    text: str, molecule: Molecule, charges: str | None, multiplicities: str | None
) -> tuple[Fragment, ...]:
    """Fragments from the options of the command line.

    Parameters
    ----------
    text : ranges of atoms, see above; every real atom belongs to exactly one fragment. A ghost may be left out: it
        then carries its functions wherever the basis of the whole complex is used
    charges, multiplicities : whole numbers with commas between them, one for each fragment; None for 0 and 1, which is
        possible only when the complex is neutral and a singlet

    Raises
    ------
    InputError : atoms overlap, are missing or do not exist, or charge and spin do not add up to those of the complex
    """
    parts = [parse_atoms(part, molecule.natom, "--fragments") for part in text.split(",")]
    if len(parts) < 2:
        raise InputError(
            f"--fragments {text[:60]!r} is one fragment: give two or more with a comma between them, as in 1-5,6-10"
        )
    _require_partition(parts, molecule)
    charge = _whole_numbers("--charges", charges, len(parts), molecule.charge, "which fragment carries it", 0)
    if sum(charge) != molecule.charge:
        raise InputError(
            f"--charges {charges} add up to {sum(charge)}, but the complex has charge {molecule.charge}: "
            "correct them, or pass --charge"
        )
    open_shell = "which fragment is open-shell"
    spins = _whole_numbers("--multiplicities", multiplicities, len(parts), molecule.multiplicity, open_shell, 1)
    _require_coupling(spins, molecule.multiplicity)
    return tuple(Fragment(*fragment) for fragment in zip(parts, charge, spins, strict=True))


def alone(molecule: Molecule, fragment: Fragment) -> Molecule:
    """The fragment with its own basis functions only, where it stands in the complex."""
    atoms = list(fragment.atoms)
    return replace(
        molecule,
        symbols=tuple(molecule.symbols[atom] for atom in atoms),
        coordinates=molecule.coordinates[atoms],
        ghost=tuple(molecule.ghost[atom] for atom in atoms),
        charge=fragment.charge,
        multiplicity=fragment.multiplicity,
    )


def in_complex(molecule: Molecule, fragment: Fragment) -> Molecule:
    """The fragment with the basis functions of the whole complex: every other atom becomes a ghost."""
    own = np.zeros(molecule.natom, dtype=bool)
    own[list(fragment.atoms)] = True
    return replace(
        molecule,
        ghost=tuple(bool(flag) for flag in np.array(molecule.ghost) | ~own),
        charge=fragment.charge,
        multiplicity=fragment.multiplicity,
    )


def show_atoms(atoms: Sequence[int]) -> str:
    """Atoms counted from 0 as ranges counted from 1: (0, 1, 2, 6) is "1-3+7"."""
    ranges: list[list[int]] = []
    for atom in sorted(atoms):
        if ranges and atom == ranges[-1][1] + 1:
            ranges[-1][1] = atom
        else:
            ranges.append([atom, atom])
    return "+".join(f"{a + 1}" if a == b else f"{a + 1}-{b + 1}" for a, b in ranges)


def _require_partition(parts: list[tuple[int, ...]], molecule: Molecule) -> None:
    owner: dict[int, int] = {}
    for number, part in enumerate(parts, start=1):
        for atom in part:
            if atom in owner:
                raise InputError(
                    f"--fragments: atom {atom + 1} {molecule.labels[atom]} is in fragments {owner[atom]} and {number}: "
                    "every atom belongs to one"
                )
            owner[atom] = number
        if all(molecule.ghost[atom] for atom in part):
            raise InputError(
                f"--fragments: fragment {number} ({show_atoms(part)}) has only ghost atoms: nothing interacts"
            )
    missing = [atom for atom in range(molecule.natom) if atom not in owner and not molecule.ghost[atom]]
    if missing:
        raise InputError(
            f"--fragments: atom{'s' * (len(missing) > 1)} {show_atoms(missing)} of {molecule.natom} "
            f"belong{'s' * (len(missing) == 1)} to no fragment: add them to one"
        )


def _whole_numbers(option: str, text: str | None, count: int, whole: int, which: str, plain: int) -> list[int]:
    """One number for each fragment: `plain` where none were given and the complex has it too."""
    if text is None:
        if whole != plain:
            example = ",".join(map(str, [whole, *[plain] * (count - 1)]))
            name = "charge" if plain == 0 else "multiplicity"
            raise InputError(f"the complex has {name} {whole}: say {which}, e.g. {option} {example}")
        return [plain] * count
    words = [word.strip() for word in text.split(",")]
    if len(words) != count or not all(_WHOLE.fullmatch(word) for word in words):
        raise InputError(
            f"{option} {text[:60]!r}: expected {count} whole numbers with commas between them, one for each fragment"
        )
    return [int(word) for word in words]


def _require_coupling(multiplicities: list[int], total: int) -> None:
    """Refuse a total spin that the spins of the fragments cannot couple to."""
    if min(multiplicities) < 1:
        raise InputError(f"--multiplicities {min(multiplicities)}: expected 2S + 1, so 1 (singlet) or more")
    spins = [m - 1 for m in multiplicities]  # unpaired electrons
    most, least = sum(spins), max(2 * max(spins) - sum(spins), sum(spins) % 2)
    if not least <= total - 1 <= most or (total - 1 - most) % 2:
        listed = ",".join(map(str, multiplicities))
        possible = ", ".join(str(unpaired + 1) for unpaired in range(least, most + 1, 2))
        raise InputError(
            f"fragments with multiplicities {listed} cannot make a complex of multiplicity {total} "
            f"(possible: {possible}): correct --multiplicities or --multiplicity"
        )
