"""Chemical elements: symbols and atomic numbers of hydrogen (1) to oganesson (118)."""

from __future__ import annotations

import difflib

from dfmp2.errors import InputError

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
    InputError : no such element; the message offers similar symbols
    """
    if not isinstance(symbol, str):
        raise InputError(f"element {symbol!r}: expected a symbol such as H or Cl")
    key = symbol.strip().lower()
    if key in _NUMBERS:
        return SYMBOLS[_NUMBERS[key] - 1]
    if key in _ISOTOPES:
        raise InputError(f"{symbol.strip()!r} is {_ISOTOPES[key]}: write H, isotopes have the same electronic energy")
    close = difflib.get_close_matches(key, _NUMBERS, n=3, cutoff=0.6) if len(key) <= 4 else []
    names = " or ".join(SYMBOLS[_NUMBERS[match] - 1] for match in close)
    advice = f"did you mean {names}?" if close else "expected a symbol such as H or Cl"
    raise InputError(f"unknown element {symbol[:20]!r}: {advice}")


def atomic_number(symbol: str) -> int:
    """Atomic number Z of a symbol in any case.

    Raises
    ------
    InputError : no such element
    """
    return _NUMBERS[normalise_symbol(symbol).lower()]


def element_symbol(number: int) -> str:
    """Symbol of atomic number `number`.

    Raises
    ------
    InputError : not between 1 and 118
    """
    if not 1 <= number <= len(SYMBOLS):
        raise InputError(f"no element has atomic number {number}: expected 1 to {len(SYMBOLS)}")
    return SYMBOLS[number - 1]
