"""Fitted integrals of the correlation energy: their derivatives, and what drives the response of the orbitals.

    dE = 2 sum_iaQ Z_iaQ d(ia|Q) - sum_PQ g_PQ d(P|Q)                   Z = Y L^-1,  in each spin
    g = L^-T S L^-1

    T_pi = 2 sum_aQ (pa|Q) Z_iaQ         T_pa = 2 sum_iQ (pi|Q) Z_iaQ

Z and S come from the amplitudes (`dfmp2.gradients.amplitudes`). One pass over blocks of Q makes the
densities G_Q,mn = sum_ia (C_mi C_na + C_na C_mi) Z_iaQ, contracts them with the derivatives of (mn|Q), and makes T.

Both ways of writing the energy,

    E = 1/4 sum_Q,mn G_Q,mn (mn|Q) = 1/2 sum_PQ g_PQ (P|Q)              sum over spins
    sum_mn G_Q,mn (mn|Q) summed over Q = sum_mi C_mi T_mi = sum_na C_na T_na

are kept as a check on Z, g and the integrals. Source: Weigend and Haeser, Theor. Chem. Acc. 97, 331 (1997).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.gradients import derivatives
from dfmp2.gradients.inverse_metric import InverseMetric
from dfmp2.gradients.tensor import Tensor
from dfmp2.integrals.spaces import ActiveSpace

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CorrelationPart:
    """What comes of the fitted integrals.

    Attributes
    ----------
    gradient : (natom, 3) Eh/bohr, None where no derivatives were asked for
    occupied, virtual : T of each spin, (nao, nocc) and (nao, nvir) Eh, p being basis functions
    three_center, two_center : the energy in its two other forms, Eh
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
    z: Sequence[Tensor],
    products: Array,
    metric: Array,
    inverse: InverseMetric,
    packed_bytes: int,
    threads: int,
    *,
    with_gradient: bool = True,
) -> CorrelationPart:
    """T of the fitted integrals, and their gradient.

    Parameters
    ----------
    mole, auxmole : PySCF molecules carrying the orbital and the MP2 fitting functions
    spaces : active space per spin
    z, products : Z per spin and S, as of `dfmp2.gradients.amplitudes`
    metric, inverse : (P|Q), and its inverse
    packed_bytes : of packed integrals per block, with which the blocks of Z were cut
    threads : workers
    with_gradient : whether derivatives of integrals are made
    """
    weight = 2.0 if len(spaces) == 1 else 1.0
    g = inverse.unfit(np.ascontiguousarray(inverse.unfit(products).T))
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
                part = np.ascontiguousarray(z[s].block(p0, p1).transpose(2, 0, 1))  # (Q, i, a)
                half = part @ space.c_vir.T  # (Q, i, n)
                transformed = integrals @ space.c_occ  # (Q, n, i)
                occupied[s] += 2 * np.einsum("qmn,qin->mi", integrals, half, optimize=True)
                virtual[s] += 2 * np.einsum("qni,qia->na", transformed, part, optimize=True)
                if total is None:
                    continue
                if ndropped:
                    raw = np.einsum("qni,na->iaq", transformed, space.c_vir, optimize=True)
                    unfitted[s] += raw @ inverse.dropped[p0:p1]
                one = weight * (space.c_occ @ half)
                total += one
                total += one.transpose(0, 2, 1)
                del half, transformed, one
            if total is not None:
                energy += float(np.vdot(total, integrals))
                del integrals
                yield p0, p1, total

    two_center = float(np.vdot(g, metric))
    if not with_gradient:
        for _ in densities():
            pass
        for s, space in enumerate(spaces):
            energy += weight * float(np.vdot(space.c_occ, occupied[s]) + np.vdot(space.c_vir, virtual[s])) / 2
        return CorrelationPart(None, occupied, virtual, energy / 4, two_center / 2)
    gradient = derivatives.three_center(mole, auxmole, densities(), threads)
    factors = -g
    if ndropped:
        mixed = np.zeros((len(metric), ndropped))
        for own, raw in zip(z, unfitted, strict=True):
            for i, row in enumerate(raw):
                mixed += 2 * weight * (own.rows(i).T @ row)
        factors += inverse.mixing(mixed)
    gradient += derivatives.two_center(auxmole, factors)
    return CorrelationPart(gradient, occupied, virtual, energy / 4, two_center / 2)
