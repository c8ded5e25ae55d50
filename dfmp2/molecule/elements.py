"""Chemical elements, hydrogen (1) to oganesson (118): symbols, atomic numbers, covalent radii,
masses; and masses of single atoms that are not the most abundant isotope:

    1=2H        atom 1 is deuterium           H=2H      every hydrogen is
    3=13C       masses of QCElemental         3=13.5    a mass, u

QCElemental (from the extra `qc`) has the masses of the Atomic Mass Evaluation; a mass given as a
number needs no table.

Two atoms count as bonded if they are closer than BOND times the sum of their radii. Drawings, names
of coordinates and a warning depend on this, but no energy does.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import BackendUnavailable, Command, InputError, Message, Option
from dfmp2.units import BOHR_PER_ANGSTROM

if TYPE_CHECKING:
    from dfmp2.molecule.molecule import Molecule

PERIODIC_TABLE = """
    H He
    Li Be B C N O F Ne
    Na Mg Al Si P S Cl Ar
    K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr
    Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe
    Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn
    Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og
"""
SYMBOLS: tuple[str, ...] = tuple(PERIODIC_TABLE.split())  # SYMBOLS[Z - 1]

_NUMBERS = {symbol.lower(): number for number, symbol in enumerate(SYMBOLS, start=1)}
_ISOTOPES = {"d": "deuterium", "t": "tritium"}


def normalise_symbol(symbol: str) -> str:
    """Element symbol in its usual spelling: "CL" becomes "Cl".

    Raises
    ------
    InputError : unknown element; the message suggests similar symbols
    """
    if not isinstance(symbol, str):
        raise InputError(f"element {symbol!r}: expected a symbol such as H or Cl")
    key = symbol.strip().lower()
    if key in _NUMBERS:
        return SYMBOLS[_NUMBERS[key] - 1]
    if key in _ISOTOPES:
        raise InputError(
            f"{symbol.strip()!r} is {_ISOTOPES[key]}: write H, isotopes have the same electronic "
            "energy"
        )
    if len(key) <= 4:
        close = difflib.get_close_matches(key, _NUMBERS, n=3, cutoff=0.6)
    else:
        close = []
    names = " or ".join(SYMBOLS[_NUMBERS[match] - 1] for match in close)
    if close:
        advice = f"did you mean {names}?"
    else:
        advice = "expected a symbol such as H or Cl"
    raise InputError(f"unknown element {symbol[:20]!r}: {advice}")


def atomic_number(symbol: str) -> int:
    """Atomic number Z of a symbol in upper or lower case.

    Raises
    ------
    InputError : unknown element
    """
    return _NUMBERS[normalise_symbol(symbol).lower()]


def element_symbol(number: int) -> str:
    """Symbol of the element with atomic number `number`.

    Raises
    ------
    InputError : not between 1 and 118
    """
    if not 1 <= number <= len(SYMBOLS):
        raise InputError(f"no element has atomic number {number}: expected 1 to {len(SYMBOLS)}")
    return SYMBOLS[number - 1]


# Angstrom, hydrogen to curium: Cordero et al., Dalton Trans. 2832 (2008), table 2 (low spin, sp3
# carbon).
COVALENT = (
    0.31,
    0.28,
    1.28,
    0.96,
    0.84,
    0.76,
    0.71,
    0.66,
    0.57,
    0.58,
    1.66,
    1.41,
    1.21,
    1.11,
    1.07,
    1.05,
    1.02,
    1.06,
    2.03,
    1.76,
    1.70,
    1.60,
    1.53,
    1.39,
    1.39,
    1.32,
    1.26,
    1.24,
    1.32,
    1.22,
    1.22,
    1.20,
    1.19,
    1.20,
    1.20,
    1.16,
    2.20,
    1.95,
    1.90,
    1.75,
    1.64,
    1.54,
    1.47,
    1.46,
    1.42,
    1.39,
    1.45,
    1.44,
    1.42,
    1.39,
    1.39,
    1.38,
    1.39,
    1.40,
    2.44,
    2.15,
    2.07,
    2.04,
    2.03,
    2.01,
    1.99,
    1.98,
    1.98,
    1.96,
    1.94,
    1.92,
    1.92,
    1.89,
    1.90,
    1.87,
    1.87,
    1.75,
    1.70,
    1.62,
    1.51,
    1.44,
    1.41,
    1.36,
    1.36,
    1.32,
    1.45,
    1.46,
    1.48,
    1.40,
    1.50,
    1.50,
    2.60,
    2.21,
    2.15,
    2.06,
    2.00,
    1.96,
    1.90,
    1.87,
    1.80,
    1.69,
)
# u, hydrogen to tennessine: the most abundant isotope, or the longest-lived one of a radioactive
# element (NIST, Atomic Weights and Isotopic Compositions, SRD 144, as in QCElemental 0.50).
MASSES = (
    1.007825,
    4.0026033,
    7.0160034,
    9.0121831,
    11.0093054,
    12,
    14.003074,
    15.9949146,
    18.9984032,
    19.9924402,
    22.9897693,
    23.9850417,
    26.9815385,
    27.9769265,
    30.973762,
    31.9720712,
    34.9688527,
    39.9623831,
    38.9637065,
    39.9625909,
    44.9559083,
    47.947942,
    50.943957,
    51.9405062,
    54.9380439,
    55.9349363,
    58.9331943,
    57.9353424,
    62.9295977,
    63.929142,
    68.9255735,
    73.9211778,
    74.9215946,
    79.9165218,
    78.9183376,
    83.9114977,
    84.9117897,
    87.9056125,
    88.9058403,
    89.9046977,
    92.906373,
    97.9054048,
    97.9072124,
    101.904344,
    102.905498,
    105.90348,
    106.905092,
    113.903365,
    114.903879,
    119.902202,
    120.903812,
    129.906223,
    126.904472,
    131.904155,
    132.905452,
    137.905247,
    138.906356,
    139.905443,
    140.907658,
    141.907729,
    144.912756,
    151.91974,
    152.921238,
    157.924112,
    158.925355,
    163.929182,
    164.930329,
    165.930299,
    168.934218,
    173.938866,
    174.940775,
    179.946557,
    180.947996,
    183.950931,
    186.95575,
    191.961477,
    192.962922,
    194.964792,
    196.966569,
    201.970643,
    204.974428,
    207.976653,
    208.980399,
    208.982431,
    209.987148,
    222.017578,
    223.019736,
    226.02541,
    227.027752,
    232.038056,
    231.035884,
    238.050788,
    237.048174,
    244.064205,
    243.061381,
    247.070354,
    247.070307,
    251.079589,
    252.08298,
    257.095106,
    258.098432,
    259.10103,
    266.11983,
    267.12179,
    268.12567,
    271.13393,
    270.13336,
    269.13375,
    278.15631,
    281.16451,
    282.16912,
    285.17712,
    286.18221,
    289.19042,
    289.19363,
    293.20449,
    294.21046,
)
HEAVIEST = 1.69  # angstrom, for heavier elements, for which none was measured
BOND = 1.25
PAULING = 0.71  # angstrom, by which a bond of a tenth of the order is longer
LEAST_ORDER = 0.02  # smallest bond order that counts
SHORTEST, LONGEST = 0.6, 1.42  # bonds, in sums of the radii; N2 has 0.77 and H3+ 1.41
PM_PER_ANGSTROM = 100.0
UNBOUND = ("He", "Ne", "Ar", "Kr", "Xe", "Rn")  # need no neighbour
ROWS = 256  # of the distance matrix in memory at once


def radius(symbol: str) -> float:
    """Covalent radius of an element, angstrom."""
    place = SYMBOLS.index(symbol)
    return COVALENT[place] if place < len(COVALENT) else HEAVIEST


def fills_inner_shell(symbol: str) -> bool:
    """Whether a d or f shell is being filled: transition metals, lanthanides and actinides."""
    number = atomic_number(symbol)
    return 21 <= number <= 30 or 39 <= number <= 48 or 57 <= number <= 80 or number >= 89


def mass(symbol: str) -> float:
    """Mass of the most abundant isotope of an element, u.

    Raises
    ------
    InputError : no mass has been measured (oganesson)
    """
    place = SYMBOLS.index(symbol)
    if place >= len(MASSES):
        raise InputError(
            f"{symbol} has no measured mass, so no frequencies can be computed with it"
        )
    return MASSES[place]


def bonds(
    symbols: tuple[str, ...], positions: NDArray[np.float64], ghost: tuple[bool, ...]
) -> list[tuple[int, int]]:
    """Pairs i < j of real atoms that are bonded.

    Parameters
    ----------
    positions : (natom, 3) float64, angstrom
    """
    reach = np.array([radius(symbol) for symbol in symbols])
    found = []
    for i in range(len(symbols)):
        gaps = np.linalg.norm(positions[i + 1 :] - positions[i], axis=1)
        for j in np.flatnonzero(gaps < BOND * (reach[i] + reach[i + 1 :])) + i + 1:
            if not (ghost[i] or ghost[j]):
                found.append((i, int(j)))
    return found


def bond_orders(
    symbols: tuple[str, ...], positions: NDArray[np.float64], ghost: tuple[bool, ...]
) -> dict[tuple[str, str], float]:
    """Orders of all bonds between real atoms, summed for each pair of elements.

    A bond of order n is shorter than the sum of the radii by PAULING log10(n) (Pauling, The Nature
    of the Chemical Bond, 3rd ed. (1960), chapter 7). Pairs are in alphabetical order.

    Parameters
    ----------
    symbols : element symbols of the atoms, (natom,)
    positions : (natom, 3) float64, angstrom
    ghost : whether an atom is a ghost, (natom,)
    """
    real = [atom for atom in range(len(symbols)) if not ghost[atom]]
    reach = np.array([radius(symbols[atom]) for atom in real])
    places = positions[real]
    orders: dict[tuple[str, str], float] = {}
    for i, atom in enumerate(real):
        lengths = np.linalg.norm(places[i + 1 :] - places[i], axis=1)
        found = 10.0 ** ((reach[i] + reach[i + 1 :] - lengths) / PAULING)
        for j in np.flatnonzero(found > LEAST_ORDER):
            first, second = sorted((symbols[atom], symbols[real[i + 1 + int(j)]]))
            orders[first, second] = orders.get((first, second), 0.0) + float(found[j])
    return orders


def unit_doubt(
    symbols: tuple[str, ...], positions: NDArray[np.float64], ghost: tuple[bool, ...]
) -> str:
    """Evidence that coordinates were read in the wrong unit, as text; "" if there is none.

    Either two atoms are too close for any bond, or no atom is close enough to another one but in
    bohr or pm some would be. Larger distances, separate atoms, and noble gases are assumed
    to be intended.

    Parameters
    ----------
    positions : (natom, 3) float64, angstrom
    """
    real = np.flatnonzero(~np.array(ghost))
    if real.size < 2:
        return ""
    near, length = _nearest(positions[real], np.array([radius(symbols[atom]) for atom in real]))
    bound = np.flatnonzero([symbols[atom] not in UNBOUND for atom in real])
    first = int(length.argmin())
    advice = None
    if length[first] < SHORTEST:
        advice = Message(
            "if the file was read in bohr and is in angstrom, leave out ",
            Option("units", "bohr"),
        )
    elif bound.size:
        first = int(bound[length[bound].argmin()])
        if LONGEST < length[first] < LONGEST * BOHR_PER_ANGSTROM:
            advice = Message(
                "no atom is bonded; if the file was read in angstrom and is in bohr, give ",
                Option("units", "bohr"),
            )
        elif SHORTEST < length[first] / PM_PER_ANGSTROM < LONGEST:
            advice = Message(
                "no atom is bonded; if the file is in pm, divide its coordinates by 100"
            )
    if advice is None:
        return ""
    i, j = sorted((int(real[first]), int(real[near[first]])))
    return Message(
        f"atoms {i + 1} {symbols[i]} and {j + 1} {symbols[j]} are "
        f"{np.linalg.norm(positions[i] - positions[j]):.3f} angstrom apart, {length[first]:.2f} "
        "times the sum of their covalent radii: ",
        advice,
    )


def _nearest(
    points: NDArray[np.float64], radii: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The nearest other atom of each one, and its distance, both in sums of covalent radii."""
    near = np.empty(len(points), dtype=np.intp)
    length = np.empty(len(points))
    for start in range(0, len(points), ROWS):
        rows = slice(start, start + ROWS)
        ratio = np.linalg.norm(points[rows, None] - points, axis=2) / (radii[rows, None] + radii)
        ratio[np.arange(len(ratio)), np.arange(len(ratio)) + start] = np.inf
        near[rows] = ratio.argmin(axis=1)
        length[rows] = ratio.min(axis=1)
    return near, length


def internal_coordinate(points: NDArray[np.float64]) -> float:
    """Distance of two points, in their unit; angle of three points at the second, or dihedral of
    four, in radians.

    A dihedral is positive if the fourth point is clockwise of the first, viewed from the second to
    the third.
    """
    if len(points) == 2:
        return float(np.linalg.norm(points[1] - points[0]))
    if len(points) == 3:
        a, b = points[0] - points[1], points[2] - points[1]
        return math.atan2(float(np.linalg.norm(np.cross(a, b))), float(a @ b))
    first, middle, last = (points[i + 1] - points[i] for i in range(3))
    one, two = np.cross(first, middle), np.cross(middle, last)
    return math.atan2(float(np.linalg.norm(middle) * (first @ two)), float(one @ two))


EXPECTED = "expected ATOM=ISOTOPE, as in 1=2H, H=2H or 1=2.0141"
ISOTOPE = re.compile(r"(\d{1,3})([A-Za-z]{1,2})")
NUCLEAR_NUMBER = re.compile(r"[0-9]{1,3}\.?[0-9]*")
LARGEST_MASS = 400.0  # u
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
    if who.isdecimal():
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
        if not 0.5 < given < LARGEST_MASS:
            raise InputError(option, f": expected a mass above 0.5 and below {LARGEST_MASS:g} u")
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
    from dfmp2.molecule.pyscf_shield import shielded

    with shielded():
        from pyscf.data.elements import MASSES as AVERAGES
    usual = (mass(symbol), AVERAGES[atomic_number(symbol)])
    if min(abs(given - value) for value in usual) > SAME_MASS:
        raise InputError(f"mass {given:.6g} of {symbol}", *NO_ISOTOPES)
