"""Shapes by name or as NOCC,NVIR,NAUX."""

from __future__ import annotations

from typing import NamedTuple

from dfmp2.errors import InputError

LARGEST = 100_000  # of any dimension: what goes beyond is a typing error, not a molecule


class Shape(NamedTuple):
    """Correlated occupied and virtual orbitals, and fitting functions."""

    nocc: int
    nvir: int
    naux: int

    @property
    def pairs(self) -> int:
        """Pairs i <= j."""
        return self.nocc * (self.nocc + 1) // 2

    @property
    def nao(self) -> int:
        """Orbital basis functions, if nothing is frozen."""
        return self.nocc + self.nvir


SHAPES = {  # the synthetic shapes the public trn1 figures were measured with
    "small": Shape(16, 112, 384),
    "medium": Shape(64, 448, 1536),
    "large": Shape(96, 672, 2304),
}


def parse_shape(text: str) -> Shape:
    """A shape from its name or its three numbers.

    Raises
    ------
    InputError : neither
    """
    if text in SHAPES:
        return SHAPES[text]
    parts = text.split(",")
    expected = f"{', '.join(SHAPES)} or three numbers NOCC,NVIR,NAUX such as 16,112,384"
    if len(parts) != 3 or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise InputError(f"--shape {text}: not understood: expected {expected}")
    shape = Shape(*(int(part) for part in parts))
    if min(shape) < 1 or max(shape) > LARGEST:
        raise InputError(f"--shape {text}: every number must lie between 1 and {LARGEST}: expected {expected}")
    return shape


def spin_shapes(text: str, beta: str | None) -> tuple[Shape, ...]:
    """Shapes of one spin, or of two where `beta` ("NOCC,NVIR") is given.

    Raises
    ------
    InputError : either text is not understood
    """
    alpha = parse_shape(text)
    if beta is None:
        return (alpha,)
    if beta.count(",") != 1:
        raise InputError(f"--beta {beta}: expected two numbers NOCC,NVIR such as 15,113")
    try:
        return alpha, parse_shape(f"{beta},{alpha.naux}")
    except InputError as error:
        raise InputError(f"--beta {beta}: expected two numbers from 1 to {LARGEST}, such as 15,113") from error
