"""Fitted integrals of the correlation energy: their derivatives, and the driving terms of the
orbital response.

    dE = 2 sum_iaQ Z_iaQ d(ia|Q) - sum_PQ g_PQ d(P|Q)                   Z = Y L^-1,  in each spin
    g = L^-T S L^-1

    T_pi = 2 sum_aQ (pa|Q) Z_iaQ         T_pa = 2 sum_iQ (pi|Q) Z_iaQ

Z and S come from the amplitudes (`dfmp2.gradients.amplitudes`). One pass over blocks of Q builds
the densities G_Q,mn = sum_ia (C_mi C_na + C_na C_mi) Z_iaQ, contracts them with the derivatives of
(mn|Q), and builds T.

Both expressions for the energy,

    E = 1/4 sum_Q,mn G_Q,mn (mn|Q) = 1/2 sum_PQ g_PQ (P|Q)              sum over spins

are evaluated to check Z, g and the integrals. Source: Weigend and Haeser, Theor. Chem. Acc. 97, 331
(1997).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.gradients import derivatives
from dfmp2.gradients.amplitudes import AmplitudeDensities
from dfmp2.host.arrays_on_disk import ScratchTensor
from dfmp2.host.threads import each_share
from dfmp2.integrals.metric import InverseMetric
from dfmp2.integrals.spaces import ActiveSpace


@dataclass(frozen=True, slots=True, eq=False)
class CorrelationPart:
    """Contributions of the fitted integrals.

    Attributes
    ----------
    gradient : (natom, 3) Eh/bohr, None if no derivatives were requested
    occupied, virtual : T of each spin, (nao, nocc) and (nao, nvir) Eh, p being basis functions
    three_center, two_center : the energy from both expressions, Eh
    """

    gradient: Array | None
    occupied: list[Array]
    virtual: list[Array]
    three_center: float
    two_center: float


def correlation_part(
    mole: Any,
    auxmole: Any,
    spaces: Sequence[ActiveSpace],
    amplitudes: AmplitudeDensities,
    inverse: InverseMetric,
    packed_bytes: int,
    threads: int,
    *,
    with_gradient: bool,
) -> CorrelationPart:
    """T of the fitted integrals, and their gradient.

    Parameters
    ----------
    mole, auxmole : pyscf.gto.Mole
        Molecules with the orbital and the MP2 fitting functions.
    spaces : sequence of ActiveSpace
        One per spin.
    amplitudes : AmplitudeDensities
        Z of each spin, and S, which is overwritten.
    inverse : InverseMetric
        Inverse of (P|Q).
    packed_bytes : int
        Bytes of packed integrals per block, from which the blocks of Z follow.
    threads : int
    with_gradient : bool
        Whether derivatives of integrals are computed.
    """
    weight = 2.0 if len(spaces) == 1 else 1.0
    g = inverse.unfit(np.ascontiguousarray(inverse.unfit(amplitudes.products).T))
    spins = [
        _SpinPart(space, z, weight, inverse) for space, z in zip(spaces, amplitudes.z, strict=True)
    ]
    energies: list[float] = []

    def densities() -> Iterator[derivatives.Block]:
        for p0, p1, integrals in derivatives.unpacked_blocks(mole, auxmole, packed_bytes):
            total = np.zeros_like(integrals) if with_gradient else None
            energies.extend(spin.add(p0, p1, integrals, total, threads) for spin in spins)
            del integrals
            if total is not None:
                yield p0, p1, total

    gradient = None
    if with_gradient:
        gradient = derivatives.three_center(mole, auxmole, densities(), threads)
        factors = -g
        if inverse.dropped.size:
            products = np.zeros(inverse.dropped.shape)
            for spin in spins:
                spin.add_dropped(products)
            factors += inverse.mixing(products)
        gradient += derivatives.two_center(auxmole, factors)
    else:
        for _ in densities():
            pass
    return CorrelationPart(
        gradient=gradient,
        occupied=[spin.occupied for spin in spins],
        virtual=[spin.virtual for spin in spins],
        three_center=sum(energies) / 4,
        two_center=float(np.vdot(g, inverse.metric)) / 2,
    )


class _SpinPart:
    """T of one spin, summed over blocks of Q.

    Attributes
    ----------
    occupied, virtual : T, (nao, nocc) and (nao, nvir) Eh

    Parameters
    ----------
    space : ActiveSpace
    z : (nocc, nvir, naux)
    weight : 2 if the spin stands for both
    inverse : of (P|Q)
    """

    def __init__(
        self, space: ActiveSpace, z: ScratchTensor, weight: float, inverse: InverseMetric
    ) -> None:
        self._space, self._z, self._weight = space, z, weight
        self._dropped = inverse.dropped
        self._unfitted = np.zeros((space.nocc, space.nvir, inverse.dropped.shape[1]))
        self.occupied = np.zeros(space.c_occ.shape)
        self.virtual = np.zeros(space.c_vir.shape)

    def add(self, p0: int, p1: int, integrals: Array, total: Array | None, threads: int) -> float:
        """Add a block of Q to T and to G; returns its sum_Q,mn G_Q,mn (mn|Q), Eh.

        Parameters
        ----------
        integrals : (q, nao, nao)
        total : G, (q, nao, nao), None if no derivatives are requested
        """
        c_occ, c_vir, z = self._space.c_occ, self._space.c_vir, self._z.block(p0, p1)

        def share(first: int, last: int) -> tuple[Array, Array, float]:
            rows = np.ascontiguousarray(z[:, :, first:last].transpose(2, 0, 1))  # (Q, i, a)
            count, nocc, nvir = rows.shape
            nao = len(c_occ)
            half = (rows.reshape(-1, nvir) @ c_vir.T).reshape(count, nocc, nao)  # (Q, i, n)
            transformed = np.matmul(c_occ.T, integrals[first:last])  # (Q, i, n)
            occupied = 2 * np.matmul(integrals[first:last], half.transpose(0, 2, 1)).sum(axis=0)
            virtual = 2 * (transformed.reshape(-1, nao).T @ rows.reshape(-1, nvir))
            if total is not None:
                add_product(total[first:last], self._weight * c_occ, half)
            return occupied, virtual, 2 * self._weight * float(np.vdot(half, transformed))

        parts = each_share(len(integrals), share, threads)
        for occupied, virtual, _ in parts:
            self.occupied += occupied
            self.virtual += virtual
        if total is not None and self._dropped.size:
            raw = np.einsum("qmn,mi,na->iaq", integrals, c_occ, c_vir, optimize=True)
            self._unfitted += raw @ self._dropped[p0:p1]
        return float(sum(energy for _, _, energy in parts))

    def add_dropped(self, products: Array) -> None:
        """Add 2 sum_ia Z_iaP (ia|R) along dropped eigenvectors R, times the weight, to (naux,
        ndropped)."""
        for i, row in enumerate(self._unfitted):
            products += 2 * self._weight * (self._z.rows(i).T @ row)


def add_product(total: Array, left: Array, right: Array) -> None:
    """Add A + A^T to each matrix of `total` (q, nao, nao), A being the product of left (nao, n) and
    right (q, n, nao)."""
    for matrix, rows in zip(total, right, strict=True):
        one = left @ rows
        matrix += one
        matrix += one.T
