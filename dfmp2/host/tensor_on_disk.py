"""B(i,a,P) on disk: written raw by blocks of fitting functions, fitted in place by groups of orbitals.

A group of occupied orbitals i0:i1 owns a range of the file. Raw integrals arrive as pieces
(i1-i0, nvir, p1-p0) one after another in it; the fit reads the pieces of a group, solves, and writes
the group back as (i1-i0, nvir, naux). Afterwards the file holds (nocc, nvir, naux) in C order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dfmp2.host.disk_region import Numbers
from dfmp2.host.resources import return_memory
from dfmp2.host.workers import each

Array = NDArray[np.float64]


class Home(Protocol):
    """Where tensors live: scratch space, or a file that is being made."""

    def array(self, name: str, size: int, *, existing: bool = False) -> Numbers:
        """A flat array of `size` numbers, new or there already."""


class StoredTensor:
    """Fitted integrals of one spin on disk.

    Parameters
    ----------
    space : scratch space of the run, or another home
    name : of the file
    shape : (nocc, nvir, naux)
    groups : [(i0, i1)], covering all occupied orbitals in order
    existing : whether it lies there, fitted, in an adopted folder

    Attributes
    ----------
    digests : SHA-256 of each fitted group, in order; empty unless `signed`
    signed : whether they are made
    """

    def __init__(
        self,
        space: Home,
        name: str,
        shape: tuple[int, int, int],
        groups: list[tuple[int, int]],
        *,
        existing: bool = False,
        signed: bool = False,
    ) -> None:
        self.shape = shape
        self.signed = signed
        self._groups = groups
        self._digests: dict[int, str] = {}
        self._pieces: list[tuple[int, int]] = []
        self._array = space.array(name, int(np.prod(shape)), existing=existing)

    @property
    def digests(self) -> tuple[str, ...]:
        """SHA-256 of each fitted group, in order."""
        return tuple(self._digests[i0] for i0, _ in self._groups if i0 in self._digests)

    def agrees(self, digests: Sequence[str]) -> bool:
        """Whether the numbers on disk are those that were fitted; reads them once."""
        if len(digests) != len(self._groups):
            return False
        for (i0, i1), digest in zip(self._groups, digests, strict=True):
            rows = np.empty((i1 - i0, *self.shape[1:]))
            self.read(i0, i1, rows)
            if numbers_hash(rows) != digest:
                return False
            self._digests[i0] = digest
        return True

    def add(self, p0: int, p1: int, part: Array) -> None:
        """Store raw integrals of fitting functions p0:p1, (p1-p0, nocc, nvir)."""
        _, nvir, naux = self.shape
        for i0, i1 in self._groups:
            piece = np.ascontiguousarray(part[:, i0:i1].transpose(1, 2, 0))
            self._array.write(i0 * nvir * naux + p0 * (i1 - i0) * nvir, piece)
        self._pieces.append((p0, p1))

    def fit(
        self,
        solve: Callable[[Array], Array],
        workers: int,
        *,
        shrinks: bool,
    ) -> StoredTensor:
        """Replace the raw integrals of each group with solve(rows), rows (count, naux) C-ordered.

        Parameters
        ----------
        workers : groups in memory at a time
        shrinks : rows may come back shorter; groups are then done in order, so that none is overwritten unread
        """
        return_memory()  # the integrals are done
        if not shrinks:
            each(len(self._groups), lambda number: self._fit(solve, *self._groups[number]), workers)
            return self
        lengths = {self._fit(solve, *group) for group in self._groups}
        self.shape = (*self.shape[:2], lengths.pop()) if lengths else self.shape
        return self

    def read(self, i0: int, i1: int, out: Array) -> None:
        """Fill `out`, (i1-i0, nvir, naux) float64 in C order, with orbitals i0:i1."""
        if out.dtype != np.float64:
            raise TypeError(f"expected float64, got {out.dtype}")
        self._array.read(i0 * self.shape[1] * self.shape[2], out)

    def orbital(self, i: int) -> Array:
        """B of one occupied orbital, (nvir, naux)."""
        out = np.empty(self.shape[1:])
        self.read(i, i + 1, out)
        return out

    def whole(self) -> Array:
        """All of it, in memory."""
        out = np.empty(self.shape)
        self.read(0, self.shape[0], out)
        return out

    def _fit(self, solve: Callable[[Array], Array], i0: int, i1: int) -> int:
        _, nvir, naux = self.shape
        count = (i1 - i0) * nvir
        rows = np.empty((count, naux))
        for p0, p1 in self._pieces:
            piece = np.empty((count, p1 - p0))
            self._array.read(i0 * nvir * naux + p0 * count, piece)
            rows[:, p0:p1] = piece
        fitted = solve(rows)
        self._array.write(i0 * nvir * fitted.shape[1], fitted)
        if self.signed:
            self._digests[i0] = numbers_hash(fitted)
        return int(fitted.shape[1])


def numbers_hash(rows: Array) -> str:
    """SHA-256 of the bytes of an array in C order."""
    return hashlib.sha256(np.ascontiguousarray(rows).data).hexdigest()
