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
from dfmp2.host.threads import each
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
        Z of each spin, and S.
    inverse : InverseMetric
        Inverse of (P|Q).
    packed_bytes : int
        Bytes of packed integrals per block, from which the blocks of Z follow.
    threads : int
    with_gradient : bool
        Whether derivatives of integrals are computed.
    """
    z = amplitudes.z
    weight = 2.0 if len(spaces) == 1 else 1.0
    g = inverse.unfit(np.ascontiguousarray(inverse.unfit(amplitudes.products).T))
    ndropped = inverse.dropped.shape[1]
    unfitted = [np.zeros((s.nocc, s.nvir, ndropped)) for s in spaces]
    occupied = [np.zeros(s.c_occ.shape) for s in spaces]
    virtual = [np.zeros(s.c_vir.shape) for s in spaces]

    energy = 0.0

    def densities() -> Iterator[derivatives.Block]:
        nonlocal energy
        for p0, p1, integrals in derivatives.unpacked_blocks(mole, auxmole, packed_bytes):
            total = np.zeros_like(integrals) if with_gradient else None
            for s, space in enumerate(spaces):
                energy += _add(
                    space,
                    z[s].block(p0, p1),
                    integrals,
                    weight,
                    total,
                    (occupied[s], virtual[s]),
                    threads,
                )
                if ndropped and with_gradient:
                    raw = np.einsum(
                        "qmn,mi,na->iaq", integrals, space.c_occ, space.c_vir, optimize=True
                    )
                    unfitted[s] += raw @ inverse.dropped[p0:p1]
            del integrals
            if total is not None:
                yield p0, p1, total

    two_center = float(np.vdot(g, inverse.metric))
    gradient = None
    if with_gradient:
        gradient = derivatives.three_center(mole, auxmole, densities(), threads)
        factors = -g
        if ndropped:
            mixed = np.zeros((len(inverse.metric), ndropped))
            for z_of_spin, raw in zip(z, unfitted, strict=True):
                for i, row in enumerate(raw):
                    mixed += 2 * weight * (z_of_spin.rows(i).T @ row)
            factors += inverse.mixing(mixed)
        gradient += derivatives.two_center(auxmole, factors)
    else:
        for _ in densities():
            pass
    return CorrelationPart(
        gradient=gradient,
        occupied=occupied,
        virtual=virtual,
        three_center=energy / 4,
        two_center=two_center / 2,
    )


def _add(
    space: ActiveSpace,
    z: Array,
    integrals: Array,
    weight: float,
    total: Array | None,
    driving: tuple[Array, Array],
    threads: int,
) -> float:
    """Add the contribution of a block of Q to its G and to T of a spin; returns its sum_Q,mn G_Q,mn
    (mn|Q), Eh.

    Parameters
    ----------
    z, integrals, total : (nocc, nvir, q), (q, nao, nao) and G (q, nao, nao), None if it is not
        needed
    driving : T, (nao, nocc) and (nao, nvir)
    """
    bounds = np.linspace(0, len(integrals), threads + 1).round().astype(int)
    found: list[Any] = [None] * threads

    def share(worker: int) -> None:
        cut = slice(*bounds[worker : worker + 2])
        part = np.ascontiguousarray(z[:, :, cut].transpose(2, 0, 1))  # (Q, i, a)
        nvir, nao = part.shape[2], len(space.c_occ)
        half = (part.reshape(-1, nvir) @ space.c_vir.T).reshape(*part.shape[:2], nao)  # (Q, i, n)
        transformed = np.matmul(space.c_occ.T, integrals[cut])  # (Q, i, n)
        occupied = 2 * np.matmul(integrals[cut], half.transpose(0, 2, 1)).sum(axis=0)
        virtual = 2 * (transformed.reshape(-1, nao).T @ part.reshape(-1, nvir))
        if total is not None:
            add_product(total[cut], weight * space.c_occ, half)
        found[worker] = occupied, virtual, 2 * weight * float(np.vdot(half, transformed))

    each(threads, share, threads)
    for occupied, virtual, _ in found:
        driving[0][:] += occupied
        driving[1][:] += virtual
    return float(sum(energy for _, _, energy in found))


def add_product(total: Array, left: Array, right: Array) -> None:
    """Add A + A^T to each matrix of `total` (q, nao, nao), A being the product of left (nao, n) and
    right (q, n, nao)."""
    for matrix, rows in zip(total, right, strict=True):
        one = left @ rows
        matrix += one
        matrix += one.T
