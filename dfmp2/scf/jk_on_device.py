"""The builder of J and K with the products on a device; integrals and their fit stay on the
host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.integrals.screening import PairList
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.scf.exchange_products import ExchangeProducts
from dfmp2.scf.jk import JKFitting

import_pyscf()

from pyscf import lib  # noqa: E402 - through the shield


class DeviceIntegrals(JKFitting):
    """JKFitting with the products on a device.

    Parameters
    ----------
    backend : backend of the device that computes J and K, with limits.fits
    """

    def __init__(
        self,
        mole: Any,
        auxmole: Any,
        threads: int,
        backend: Any,
        progress: Callable[[int, int], None],
        pairs: PairList | None = None,
    ) -> None:
        super().__init__(mole, auxmole, threads, progress, pairs)
        self.backend = backend
        self.fields: Any = None

    def _like(self, mole: Any, auxmole: Any) -> JKFitting:
        return DeviceIntegrals(
            mole, auxmole, self.threads, self.backend, self._progress, self.pairs
        )

    def build(self) -> JKFitting:
        """Compute B on the host, and copy it to the device if there is room for it."""
        super().build()
        if self.fields is None:
            nao, kept = self.pairs.nao, np.asarray(self.pairs.columns)
            of_packed = np.full(nao * (nao + 1) // 2, len(kept))
            of_packed[kept] = np.arange(len(kept))
            self.fields = self.backend.fields(self._cderi, of_packed)
        return self

    def matrices(
        self, occupied: list[Array], *, exchange: bool = True, rows: bool = False
    ) -> tuple[Array, Array]:
        """As in JKFitting, but always all of K; in float64 if that costs the device nothing."""
        self.build()
        how = self._products(exchange, rows=False)
        self._count(occupied, how)
        density = [c @ c.T for c in occupied]
        folded = np.stack([lib.pack_tril(d + d.T - np.diag(d.diagonal())) for d in density])
        j, k = self.fields.matrices(
            folded[:, self.pairs.columns], occupied, single=how.single, exchange=exchange
        )
        return np.stack([lib.unpack_tril(row) for row in self.pairs.expand(j)]), k

    def _products(self, exchange: bool, rows: bool) -> ExchangeProducts:
        """How K is computed, in a single precision throughout."""
        single = self.single and self.backend.limits.auto != "fp64"
        return ExchangeProducts(wanted=exchange, single=single)

    def discard(self) -> None:
        """Free B, also on the device."""
        self.fields = None
        super().discard()
