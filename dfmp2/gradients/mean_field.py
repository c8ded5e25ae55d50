"""Coulomb energy of the SCF density D with X, and exchange energy of D with Y: derivatives of their
fitted integrals.

    E = sum_mnls X^T_mn (mn|ls) D^T_ls - sum_s sum_mnls Y^s_mn (ml|ns) D^s_ls         T: sum over the spins s

With X = Y = D/2 this is the energy of Hartree-Fock; with P it is the term P f of the correlation
energy. For a functional, Y contains c D/2 and c P, c being its exact exchange; a range-separated
one also needs integrals of the long-range operator, without Coulomb. In the Coulomb-exchange
fitting set, with V = (P|Q), c = V^-1 (Q|, and i occupied orbitals of a spin,

    dE = sum_Q [ X^T_mn c_Q(D^T) + D^T_mn c_Q(X^T) ] d(mn|Q) - sum_PQ c_P(X^T) c_Q(D^T) dV_PQ
         - sum_s [ 2 sum_i C_mi t_iQ,n d(mn|Q) - sum_iPQ c_iP,n t_iQ,n dV_PQ ]         t_iQ,m = sum_n Y^s_mn c_iQ,n

The half-transformed (in|Q) of all occupied orbitals are kept, (nocc, nao, naux), in memory or on
disk, and overwritten by t. Source: Weigend, Phys. Chem. Chem. Phys. 4, 4285 (2002), for the fitted
matrices; the derivative follows from the expression above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.gradients import derivatives
from dfmp2.gradients.correlation import add_product
from dfmp2.host.arrays_on_disk import ScratchTensor
from dfmp2.host.scratch import Space
from dfmp2.host.threads import each
from dfmp2.integrals.metric import InverseMetric
from dfmp2.integrals.three_center import coulomb_metric


def mean_field_part(
    mole: Any,
    auxmole: Any,
    occupied: Sequence[Array],
    others: Sequence[Array],
    exchanged: Sequence[Array],
    packed_bytes: int,
    space: Space | None,
    threads: int,
) -> Array:
    """Gradient of the fitted Coulomb energy of D with X and exchange energy of D with Y, (natom, 3)
    Eh/bohr.

    Parameters
    ----------
    mole, auxmole : pyscf.gto.Mole
        PySCF molecules with the orbital and the Coulomb-exchange fitting functions; for integrals
        of a long-range operator, ones with the operator set.
    occupied : sequence of array
        Occupied orbitals per spin (nao, nocc), with D = C C^T; a single entry stands for both.
    others, exchanged : sequence of array
        X and Y per spin, (nao, nao) symmetric; empty if that part is not wanted.
    packed_bytes : int
        Bytes of packed integrals per block.
    space : Space, optional
        Scratch space for the half-transformed integrals, None to keep them in memory.
    threads : int
        Number of workers.
    """
    weight = 2.0 if len(occupied) == 1 else 1.0
    nao, naux = mole.nao, auxmole.nao
    density = weight * np.sum([c @ c.T for c in occupied], axis=0)
    other = np.zeros_like(density)
    if others:
        other = weight * np.sum(others, axis=0)
    half_of: list[Array] = []
    if exchanged:
        half_of = list(occupied)
    raw = np.empty((2, naux))  # (Q|D), (Q|X)
    ranges = derivatives.blocks(mole, auxmole, packed_bytes)
    half = [  # (in|Q), then t
        ScratchTensor((c.shape[1], nao, naux), ranges, space, f"half-{s}")
        for s, c in enumerate(half_of)
    ]
    for p0, p1, integrals in derivatives.unpacked_blocks(mole, auxmole, packed_bytes):
        flat = integrals.reshape(p1 - p0, -1)
        raw[0, p0:p1], raw[1, p0:p1] = flat @ density.ravel(), flat @ other.ravel()
        for c, target in zip(half_of, half, strict=True):
            target.put_block(p0, p1, _half_transformed(integrals, c, threads))
    if not others:
        raw[:] = 0.0
    inverse = InverseMetric(coulomb_metric(auxmole), threads)
    unfitted = raw @ inverse.dropped
    coulomb = inverse.apply(raw.copy())
    factors = -np.outer(coulomb[1], coulomb[0])
    mixed = np.outer(coulomb[0], unfitted[1]) + np.outer(coulomb[1], unfitted[0])
    for y, tensor in zip(exchanged, half, strict=True):
        bounds = np.linspace(0, tensor.shape[0], threads + 1).round().astype(int)
        found: list[Any] = [None] * threads

        def share(
            worker: int,
            y: Array = y,
            tensor: ScratchTensor = tensor,
            bounds: NDArray[np.int_] = bounds,
            found: list[Any] = found,
        ) -> None:
            gained = np.zeros((naux, naux))
            left = np.zeros((naux, inverse.dropped.shape[1]))
            for i in range(bounds[worker], bounds[worker + 1]):
                rows = tensor.rows(i)
                left_out = rows @ inverse.dropped
                own = inverse.apply(rows)
                turned = y @ own
                gained += own.T @ turned
                left += turned.T @ left_out
                tensor.put_rows(i, turned)
            found[worker] = gained, left

        each(threads, share, threads)
        for gained, left in found:
            factors += weight * gained
            mixed -= 2 * weight * left

    def densities() -> Iterator[derivatives.Block]:
        for p0, p1 in ranges:
            total = coulomb[0, p0:p1, None, None] * other + coulomb[1, p0:p1, None, None] * density
            for c, tensor in zip(half_of, half, strict=True):
                _subtract(total, weight * c, tensor.block(p0, p1), threads)
            yield p0, p1, total

    gradient = derivatives.three_center(mole, auxmole, densities(), threads)
    for tensor in half:
        tensor.discard()
    return gradient + derivatives.two_center(auxmole, factors + inverse.mixing(mixed))


def _half_transformed(integrals: Array, c: Array, threads: int) -> Array:
    """(in|Q), (nocc, nao, q), from (q, nao, nao)."""
    (count, nao), nocc = integrals.shape[:2], c.shape[1]
    made = np.empty((nocc, nao, count))
    bounds = np.linspace(0, count, threads + 1).round().astype(int)

    def share(worker: int) -> None:
        cut = slice(*bounds[worker : worker + 2])
        made[:, :, cut] = np.matmul(c.T, integrals[cut]).transpose(1, 2, 0)

    each(threads, share, threads)
    return made


def _subtract(total: Array, c: Array, t: Array, threads: int) -> None:
    """Subtract C t and its transpose from G of a block; t is (nocc, nao, q)."""
    bounds = np.linspace(0, len(total), threads + 1).round().astype(int)

    def share(worker: int) -> None:
        cut = slice(*bounds[worker : worker + 2])
        add_product(total[cut], -c, np.ascontiguousarray(t[:, :, cut].transpose(2, 0, 1)))

    each(threads, share, threads)
