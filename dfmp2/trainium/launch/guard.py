"""Pairs recomputed in float64 on the host while the device works: a device that answers wrong
numbers is caught.

    |found - redone| <= RELATIVE |direct| + 2 g |B_i| |B_j| sqrt(|direct| / D_min)        g = 2^-23

The second term bounds what float32 products do to far pairs, whose integrals are differences of
large terms: an error g |B_ia| |B_jb| of each integral, by Cauchy's inequality. B is what the device
was given, rounded to float32. The certificate of the whole run comes besides
(`dfmp2.mp2.certificate`) and sees the rounding too; this finds out at once, and before everything
else has been computed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Backend, Operand, PairTerms, Prediction, Shape, Tile
from dfmp2.backends.tensors import Tensors
from dfmp2.backends.untransformed import UntransformedTensor
from dfmp2.errors import NumericalError
from dfmp2.errors.messages import Option

EVERY = 16  # tiles; the first is always looked at
RELATIVE = 1e-5  # float32 kernels are right to 2e-6 in a pair
UNIT = 2.0**-23

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class GuardedOperand:
    """An operand on the device, and the B it was made of."""

    operand: Operand
    b: Array | UntransformedTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(nocc, nvir, naux)."""
        return self.b.shape


class GuardedBackend(Backend):
    """A backend, one pair of every sixteenth tile of which is recomputed.

    Parameters
    ----------
    inner : evaluates the tiles
    every : tiles per recomputed pair
    """

    def __init__(self, inner: Backend, every: int = EVERY) -> None:
        self.name = inner.name
        self.limits = inner.limits
        self._inner, self._every = inner, every
        self._tiles, self._canaries, self._worst = 0, 0, 0.0
        self._lock = threading.Lock()

    def put(self, b: Array, eps_occ: Array, eps_vir: Array, precision: str) -> Operand:
        """Make B resident, and remember where it came from."""
        return Operand(
            GuardedOperand(self._inner.put(b, eps_occ, eps_vir, precision), b),
            eps_occ,
            eps_vir,
            precision,
        )

    def put_untransformed(
        self, tensors: Sequence[UntransformedTensor], energies: Sequence[tuple[Array, Array]]
    ) -> list[Operand]:
        """Have B made on the device; pairs are recomputed from what it is made of."""
        made = self._inner.put_untransformed(tensors, energies)
        return [
            replace(one, b=GuardedOperand(one, tensor))
            for one, tensor in zip(made, tensors, strict=True)
        ]

    def prepare(self, spins: Sequence[Shape], nao: int = 0) -> None:
        """Have the programs compiled that these shapes need; `nao` basis functions where the device
        transforms."""
        self._inner.prepare(spins, nao)

    def predict(self, spins: Sequence[Shape]) -> tuple[Prediction, ...] | None:
        """What the backend predicts."""
        return self._inner.predict(spins)

    def transform_seconds(self, spins: Sequence[Shape], nao: int) -> float:
        """What the backend predicts."""
        return self._inner.transform_seconds(spins, nao)

    def pair_terms(self, left: Operand, right: Operand, tile: Tile) -> PairTerms:
        """Direct and exchange terms of a tile.

        Raises
        ------
        NumericalError : a recomputed pair differs by more than float32 explains
        """
        terms = self._inner.pair_terms(left.b.operand, right.b.operand, tile)
        with self._lock:
            number, self._tiles = self._tiles, self._tiles + 1
        if number % self._every == 0 and left.eps_vir.size and right.eps_vir.size:
            self._check(left, right, tile, terms, number // self._every)
        return terms

    def tensors(self) -> Tensors:
        """Those of the backend; nothing of them is recomputed."""
        return self._inner.tensors()

    def describe(self) -> dict[str, str]:
        """What the backend says, and what was recomputed."""
        if self._canaries:
            redone = f"{self._canaries}, largest relative difference {self._worst:.1e}"
        else:
            redone = "none"
        return {**self._inner.describe(), "pairs redone in float64 meanwhile": redone}

    def _check(
        self, left: Operand, right: Operand, tile: Tile, terms: PairTerms, turn: int
    ) -> None:
        rows, columns = tile.i1 - tile.i0, tile.j1 - tile.j0
        row = turn % rows
        if tile.diagonal:
            column = row + turn % (columns - row)
        else:
            column = turn % columns
        i, j = tile.i0 + row, tile.j0 + column
        direct, exchange, limit = redo(left, right, i, j)
        found = [float(terms.direct[row, column])]
        expected = [direct]
        if terms.exchange is not None:
            found.append(float(terms.exchange[row, column]))
            expected.append(exchange)
        difference = float(np.max(np.abs(np.array(found) - expected)))
        if not difference <= limit:  # NaN is no number to accept
            raise NumericalError(
                Option("backend", self.name),
                (
                    f": pair ({i + 1}, {j + 1}) came back as {found[0]:.9e} Eh and is {direct:.9e} "
                    f"Eh in float64 (allowed difference {limit:.1e}): the device computes wrong "
                    "numbers and there is no result; run dfmp2 kernels check, or use "
                ),
                Option("backend", "cpu"),
            )
        with self._lock:
            self._canaries += 1
            self._worst = max(self._worst, difference / abs(direct) if direct else 0.0)


def redo(left: Operand, right: Operand, i: int, j: int) -> tuple[float, float, float]:
    """Direct and exchange term of a pair in float64, and the largest difference that float32
    explains, Eh."""
    b_i, b_j = (np.asarray(b, dtype=np.float64) for b in (left.b.b[i], right.b.b[j]))
    t = b_i @ b_j.T
    d = left.eps_occ[i] + right.eps_occ[j] - left.eps_vir[:, None] - right.eps_vir[None, :]
    weighted = t / d
    direct = float(np.sum(weighted * t))
    if left is right:
        exchange = float(np.sum(weighted * t.T))
    else:
        exchange = 0.0
    size = float(np.linalg.norm(b_i) * np.linalg.norm(b_j))
    limit = RELATIVE * abs(direct) + 2 * UNIT * size * float(
        np.sqrt(abs(direct) / np.min(np.abs(d)))
    )
    return direct, exchange, limit
