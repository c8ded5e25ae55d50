"""Conversion factors, readable sizes and counts, and record fields with a unit.

Lengths inside dfmp2 are in bohr, energies in hartree (Eh), memory in bytes.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

# PySCF's value, because the integrals come from PySCF: one file then gives the same geometry in
# both. Other programs differ: Psi4 0.52917721067, CODATA 2018 0.529177210903, NWChem 0.529177249.
# For a comparison beyond 1e-8 Eh, give every program the same coordinates in bohr.
ANGSTROM_PER_BOHR = 0.52917721092

# Multiply by this instead of dividing by the constant above: PySCF multiplies, and the two differ
# in the last bit.
BOHR_PER_ANGSTROM = 1.0 / ANGSTROM_PER_BOHR

# CODATA 2018: Eh = 4.3597447222071e-18 J, N_A = 6.02214076e23 per mol (exact), 1 cal = 4.184 J.
KJ_PER_MOL_PER_HARTREE = 2625.4996394799
KJ_PER_KCAL = 4.184
KCAL_PER_MOL_PER_HARTREE = KJ_PER_MOL_PER_HARTREE / KJ_PER_KCAL
EV_PER_HARTREE = 27.211386245988
WAVENUMBER_PER_HARTREE = 219474.63136320  # cm^-1

# Per e bohr: CODATA 2018, e a0 = 8.4783536255e-30 C m; 1 D = 1e-21 / 299792458 C m.
DEBYE = 2.541746473


MOST_DECIMALS = 17  # in float64; enough for the last bit of numbers of order 1


def format_bytes(size: float, decimals: int = 2) -> str:
    """Byte count in readable form, with decimal units: 8000000000 becomes "8.00 GB"; `parse_bytes`
    reads it back."""
    if abs(size) < 1000:
        return f"{int(size)} B"
    value = float(size)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if abs(value) < 999.995:  # values that are printed as less than 1000.00
            return f"{value:.{decimals}f} {unit}"
    return f"{value / 1000:.{decimals}f} TB"


def told_apart(form: str, *numbers: float) -> tuple[str, ...]:
    """Numbers that a message compares, as text in which different ones differ.

    Parameters
    ----------
    form : a format with the least number of decimals, such as ".1e" or ".4f", or "bytes"
    """
    texts: tuple[str, ...] = ()
    least = 2 if form == "bytes" else int(form[1:-1])
    for decimals in range(least, MOST_DECIMALS + 1):
        if form == "bytes":
            texts = tuple(format_bytes(number, decimals) for number in numbers)
        else:
            texts = tuple(f"{number:.{decimals}{form[-1]}}" for number in numbers)
        if len(set(texts)) == len(set(numbers)):
            break
    return texts


def counted_text(count: int, name: str, plural: str = "") -> str:
    """A number of things, e.g. "1 warning"; give `plural` if it does not just add an s."""
    return f"1 {name}" if count == 1 else f"{count} {plural or name + 's'}"


def quantity(units: str, description: str, default: Any = ...) -> Any:
    """A dataclass field with a unit and a description."""
    metadata = {"units": units, "description": description}
    if default is ...:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)
