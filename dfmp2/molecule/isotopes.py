"""Masses of single atoms that are not the most abundant isotope.

    1=2H        atom 1 is deuterium           H=2H      every hydrogen is
    3=13C       masses of QCElemental         3=13.5    a mass, u

QCElemental (from the extra `qc`) has the masses of the Atomic Mass Evaluation; a mass given as a
number needs no table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import BackendUnavailable, Command, InputError, Option
from dfmp2.molecule.elements import mass
from dfmp2.molecule.molecule import Molecule

EXPECTED = "expected ATOM=ISOTOPE, as in 1=2H, H=2H or 1=2.0141"
ISOTOPE = re.compile(r"(\d{1,3})([A-Za-z]{1,2})")
NUCLEAR_NUMBER = re.compile(r"[0-9]{1,3}\.?[0-9]*")
HEAVIEST = 400.0  # u
NO_ISOTOPES = (  # end of the message about a file with isotopes
    ": isotopes have the same electronic energy: remove it, and give masses to ",
    Command("thermo"),
)
SAME_MASS = 0.1  # u; tables of average masses differ by 0.02


def isotope_masses(
    molecule: Molecule, isotopes: Sequence[str]
) -> tuple[NDArray[np.float64], list[str]]:
    """Masses (natom,) in u, and a description of each atom that is an unusual isotope.

    Parameters
    ----------
    isotopes : sequence of str
        As "1=2H"; the last one that names an atom counts.

    Raises
    ------
    InputError : the atom or isotope does not exist, or belongs to another element
    BackendUnavailable : QCElemental is missing
    """
    weights = np.array([mass(symbol) for symbol in molecule.symbols])
    named: dict[int, str] = {}
    for text in isotopes:
        who, sign, what = text.replace(" ", "").partition("=")
        option = Option("isotope", text[:40])
        if not sign or not who or not what:
            raise InputError(option, f": {EXPECTED}")
        for atom in _atoms(molecule, who, option):
            weights[atom] = _mass(molecule.symbols[atom], what, option)
            named[atom] = what
    notes = [
        f"atom {atom + 1} {molecule.symbols[atom]} is {what}: {weights[atom]:.9g} u"
        for atom, what in sorted(named.items())
    ]
    return weights, notes


def _atoms(molecule: Molecule, who: str, option: Option) -> list[int]:
    """Indices, from 0, of an atom given by number, or of all atoms of an element."""
    if who.isdigit():
        if not 1 <= int(who) <= molecule.natom:
            raise InputError(option, f": expected an atom from 1 to {molecule.natom}")
        return [int(who) - 1]
    atoms = [at for at, symbol in enumerate(molecule.symbols) if symbol.lower() == who.lower()]
    if not atoms:
        raise InputError(option, f": there is no {who[:4]} in {molecule.formula}; {EXPECTED}")
    return atoms


def _mass(symbol: str, what: str, option: Option) -> float:
    """Mass of an isotope of this element, u."""
    match = ISOTOPE.fullmatch(what)
    if match is None and NUCLEAR_NUMBER.fullmatch(what):
        given = float(what)
        if not 0.5 < given < HEAVIEST:
            raise InputError(option, f": expected a mass above 0.5 and below {HEAVIEST:g} u")
        return given
    if what.upper() in ("D", "T"):
        match = ISOTOPE.fullmatch({"D": "2H", "T": "3H"}[what.upper()])
    if match is None:
        raise InputError(option, f": {EXPECTED}")
    number, element = int(match[1]), match[2].capitalize()
    if element != symbol:
        raise InputError(option, f": the atom is {symbol}, not {element}")
    try:
        from qcelemental import periodictable
        from qcelemental.exceptions import NotAnElementError
    except ImportError as absent:
        raise BackendUnavailable(
            f"QCElemental, which has the masses of isotopes, is not installed ({absent}): pip "
            "install 'dfmp2[qc]', or give the mass in u, as in 1=2.01410178"
        ) from absent
    try:
        return float(periodictable.to_mass(f"{element}{number}"))
    except NotAnElementError:
        raise InputError(
            option, f": there is no isotope {number} of {symbol} in QCElemental; {EXPECTED}"
        ) from None


def require_usual_mass(symbol: str, given: float) -> None:
    """Raise for a mass in u that is neither that of the most abundant isotope nor the average of an
    element.

    Raises
    ------
    InputError : it is that of another isotope
    """
    from pyscf.data.elements import MASSES, charge

    usual = (mass(symbol), MASSES[charge(symbol)])
    if min(abs(given - value) for value in usual) > SAME_MASS:
        raise InputError(f"mass {given:.6g} of {symbol}", *NO_ISOTOPES)
