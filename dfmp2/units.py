"""Conversion factors, byte counts, and record fields with a unit.

Lengths inside dfmp2 are in bohr, energies in hartree (Eh), memory in bytes.
"""

from __future__ import annotations

import re
from dataclasses import field
from decimal import Decimal
from typing import Any

from dfmp2.errors import InputError

# PySCF's value (the integrals come from PySCF), so that one file gives the same geometry here and
# there. Other programs differ: Psi4 0.52917721067, CODATA 2018 0.529177210903, NWChem 0.529177249.
# For a comparison beyond 1e-8 Eh give every program the same coordinates in bohr.
ANGSTROM_PER_BOHR = 0.52917721092

# Multiply by this, do not divide by the constant above: PySCF multiplies, and the two differ in the
# last bit.
BOHR_PER_ANGSTROM = 1.0 / ANGSTROM_PER_BOHR

# CODATA 2018: Eh = 4.3597447222071e-18 J, N_A = 6.02214076e23 per mol (exact), 1 cal = 4.184 J.
KJ_PER_MOL_PER_HARTREE = 2625.4996394799
KCAL_PER_MOL_PER_HARTREE = KJ_PER_MOL_PER_HARTREE / 4.184
EV_PER_HARTREE = 27.211386245988

BYTE_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
BYTE_UNITS |= {unit.removesuffix("b"): size for unit, size in BYTE_UNITS.items() if unit != "b"}  # 4G is 4GB, 4Gi 4GiB

_BYTES = re.compile(r"([+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))\s*([A-Za-z]{0,8})")
_LARGEST = 2**63 - 1  # what a signed 64-bit size can hold; no machine has more


def parse_bytes(text: str) -> int:
    """Number of bytes named by a text such as "8GB" or "8G" (10^9), "8 GiB" or "8Gi" (2^30); units in any case.

    Where other programs take G for 2^30, 10^9 is the smaller one and keeps within what was meant. A number without a
    unit is refused: 8 could mean 8 bytes, 8 MB (PySCF) or 8 GB.

    Raises
    ------
    InputError : not a number with a unit, unknown unit, zero, negative or absurdly large
    """
    shown = repr(text[:40])
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise InputError(f"memory {shown}: expected a number with a unit, such as 8GB or 7.5GiB")
    number, unit = Decimal(match[1]), match[2].lower()
    if number <= 0:
        raise InputError(f"memory {shown}: expected more than zero bytes, such as 8GB")
    if not unit:
        raise InputError(f"memory {shown} has no unit: write for example {match[1]}GB or {match[1]}GiB")
    if unit not in BYTE_UNITS:
        raise InputError(f"memory {shown}: unknown unit {match[2]!r}; use B, kB, MB, GB, TB, KiB, MiB, GiB or TiB")
    size = int(number * BYTE_UNITS[unit])
    if not 1 <= size <= _LARGEST:
        raise InputError(f"memory {shown}: expected 1 byte to 9 million TB, such as 8GB")
    return size


def format_bytes(size: float) -> str:
    """Byte count for reading, in decimal units: 8000000000 becomes "8.00 GB"; `parse_bytes` reads it back."""
    if abs(size) < 1000:
        return f"{int(size)} B"
    value = float(size)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if abs(value) < 999.995:  # what still prints below 1000.00
            return f"{value:.2f} {unit}"
    return f"{value / 1000:.2f} TB"


def quantity(units: str, description: str, default: Any = ...) -> Any:
    """A dataclass field with a unit and a description."""
    metadata = {"units": units, "description": description}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)
