"""First-order amplitudes, computed from B one occupied orbital at a time and contracted immediately
to densities.

    t_iajb = (ia|jb) / D          D = e_i + e_j - e_a - e_b        (ia|jb) = sum_P B_iaP B_jbP
    u_iajb = c_SS (t_iajb - t_ibja) + c_OS t_iajb                  RHF
    u_iajb = c_SS (t_iajb - t_ibja)  or  c_OS t_iajb               UHF: i and j of one spin, or of two

    Y_jbP = sum_ia u_iajb B_iaP
    P_ik = -sum_jab t_iajb u_kajb          P_ac = sum_ijb t_iajb u_icjb

    Z_jbQ = sum_P Y_jbP L^-1_PQ                 S_PQ = sum_jb Y_jbP B_jbQ

Sums run over both spins of j. A change of B changes the energy by 2 sum Y dB in each spin, a change
of the Fock matrix between correlated orbitals by sum P df; Z relates to (Q|jb) as Y does to B. With
c_OS = c_SS = 1 this is MP2. Only t_iajb of one j and a block of b, and Y of one j, are in memory at
a time. Blocks depend on sizes alone, so the memory budget changes no bit. In single precision B, t,
u and the products of a group of i are float32, with the fitting functions in the order of
`dfmp2.mp2.certificate`; sums over groups, over j, and everything computed from Y are float64.
Sources: Weigend and Haeser, Theor. Chem. Acc. 97, 331 (1997) for RHF; the spin cases follow by
differentiating the energies of `dfmp2.mp2.pairs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.host.arrays_on_disk import ScratchTensor, StoredTensor
from dfmp2.host.threads import each
from dfmp2.integrals.metric import InverseMetric
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.operands import rounded, summation_order
from dfmp2.options.methods import Method
from dfmp2.planning.gradient_memory import AMPLITUDE_BYTES, STREAM_BYTES, TILE_ELEMENTS

RUN = 1 << 9  # amplitudes accumulated in float32 before float64 takes over


@dataclass(frozen=True, slots=True, eq=False)
class AmplitudeDensities:
    """Densities that the energy depends on.

    Attributes
    ----------
    z : Z per spin, (nocc, nvir, naux)
    products : S, (naux, naux) or as many functions as B has, summed over spins, Eh
    occupied, virtual : P_ik (nocc, nocc) and P_ac (nvir, nvir) per spin
    """

    z: list[ScratchTensor]
    products: Array
    occupied: list[Array]
    virtual: list[Array]


def amplitude_densities(
    b: Sequence[Array | StoredTensor],
    spaces: Sequence[ActiveSpace],
    scaling: Method,
    inverse: InverseMetric,
    z: list[ScratchTensor],
    threads: int,
    *,
    single: bool,
) -> AmplitudeDensities:
    """Z, S and P of one (restricted) or two (alpha, beta) spins.

    Parameters
    ----------
    b : sequence of array or StoredTensor
        (nocc, nvir, naux) float64 per spin, Eh^1/2, in memory or on disk.
    spaces : sequence of ActiveSpace
        Active space per spin.
    scaling : Method
        Method of the energy that is differentiated.
    inverse : InverseMetric
        Inverse of the metric in which B was fitted.
    z : list of ScratchTensor
        Receives Z of each spin.
    threads : int
        Number of workers.
    single : bool
        Amplitudes and their products in float32.
    """
    weight = 2.0 if len(b) == 1 else 1.0
    naux = b[0].shape[2]
    occupied = [np.zeros((s.nocc, s.nocc)) for s in spaces]
    virtual = [np.zeros((s.nvir, s.nvir)) for s in spaces]
    products = np.zeros((naux, naux))
    order = summation_order(b) if single else np.arange(naux)
    others = [_Rows(tensor, order, threads, single=single) for tensor in b]
    for right, space in enumerate(spaces):  # the spin of j
        lefts = []
        for left in range(len(b)):  # the spin of i
            same, opposite = scaling.same_spin, scaling.opposite_spin
            if len(b) == 2:
                if left == right:
                    same, opposite = (same, 0.0)
                else:
                    same, opposite = (0.0, opposite)
            if (same or opposite) and spaces[left].nocc:
                lefts.append((left, same, opposite))
        bounds = np.linspace(0, space.nocc, threads + 1).round().astype(int)
        parts: list[Any] = [None] * threads

        def share(
            worker: int,
            right: int = right,
            space: ActiveSpace = space,
            lefts: Sequence[tuple[int, float, float]] = lefts,
            bounds: NDArray[np.int_] = bounds,
            parts: list[Any] = parts,
        ) -> None:
            found = [
                (np.zeros_like(occupied[left]), np.zeros_like(virtual[left]))
                for left, _, _ in lefts
            ]
            gained = np.zeros((naux, naux))
            for j in range(bounds[worker], bounds[worker + 1]):
                own = np.asarray(b[right][j])
                y = np.zeros((space.nvir, naux))
                mine = others[right].rounded(own)
                for (left, *factors), densities in zip(lefts, found, strict=True):
                    energies = space.eps_occ[j], space.eps_vir
                    _add(
                        others[left],
                        mine,
                        spaces[left],
                        energies,
                        (factors[0], factors[1]),
                        y,
                        *densities,
                    )
                if single:
                    y = np.take(y, np.argsort(order), axis=1)
                gained += y.T @ own
                z[right].put_rows(j, inverse.unfit(y))
            parts[worker] = found, gained

        each(threads, share, threads)
        for found, gained in parts:
            products += weight * gained
            for (left, _, _), (first, second) in zip(lefts, found, strict=True):
                occupied[left] += (first + first.T) / 2  # symmetric up to rounding
                virtual[left] += (second + second.T) / 2
    return AmplitudeDensities(z=z, products=products, occupied=occupied, virtual=virtual)


class _Rows:
    """B of a spin in the precision of the amplitudes, float32 or float64.

    Parameters
    ----------
    b : (nocc, nvir, naux) float64, Eh^1/2, in memory or on disk
    order : order of the fitting functions in float32
    """

    def __init__(
        self, b: Array | StoredTensor, order: NDArray[np.intp], threads: int, *, single: bool
    ) -> None:
        self.shape, self._order = b.shape, order
        self.dtype = np.dtype(np.float32 if single else np.float64)
        self._stored: StoredTensor | None = None
        if isinstance(b, StoredTensor):
            self._stored = b
        self._held: Any = None
        if not isinstance(b, StoredTensor):
            if single:
                self._held = rounded(b, order, threads)
            else:
                self._held = b

    def rounded(self, rows: Array) -> NDArray[Any]:
        """Rows of B, (..., naux) float64, in this precision and order."""
        if self.dtype == np.float32:
            return np.take(rows.astype(np.float32), self._order, axis=-1)
        return rows

    def groups(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """B in groups of occupied orbitals (i0, i1, rows), whose amplitudes with one j stay in
        cache."""
        nocc, nvir, naux = self.shape
        step = max(1, AMPLITUDE_BYTES // (8 * nvir * nvir))
        if self._stored is None:
            held = nocc
        else:
            held = max(1, STREAM_BYTES // (8 * nvir * naux) // step) * step
        buffer = np.empty((min(held, nocc) if self._stored is not None else 0, nvir, naux))
        for first in range(0, nocc, held):
            last = min(first + held, nocc)
            part = self._held
            if self._stored is not None:
                self._stored.read(first, last, buffer[: last - first])
                part = self.rounded(buffer[: last - first])
            for i0 in range(first, last, step):
                i1 = min(i0 + step, last)
                yield i0, i1, part[i0 - first : i1 - first]


def _add(
    left: _Rows,
    own: NDArray[Any],
    space: ActiveSpace,
    energies: tuple[float, Array],
    factors: tuple[float, float],
    y: Array,
    occupied: Array,
    virtual: Array,
) -> None:
    """Add the amplitudes of one j with all i of a spin to Y of j and to P of the spin of i.

    Parameters
    ----------
    left, space : B and orbitals of i
    own, energies : B of j, (nvir, naux), its energy and those of b, Eh
    factors : tuple[float, float]
        c_SS and c_OS.
    """
    (nocc, nvir, naux), (same, opposite) = left.shape, factors
    step = min(len(own), max(1, TILE_ELEMENTS // (nocc * nvir)))
    above = (space.eps_occ[:, None, None] - space.eps_vir[:, None]).astype(left.dtype)
    below = (energies[0] - energies[1]).astype(left.dtype)
    for b0 in range(0, len(own), step):
        b1 = min(b0 + step, len(own))
        t, u = (np.empty((nocc, nvir, b1 - b0), left.dtype) for _ in range(2))
        for i0, i1, rows in left.groups():
            denominators = above[i0:i1] + below[b0:b1]
            first = t[i0:i1]
            second = u[i0:i1]
            flat = rows.reshape(-1, naux)
            np.matmul(flat, own[b0:b1].T, out=first.reshape(-1, b1 - b0))
            first /= denominators
            np.multiply(first, same + opposite, out=second)
            if same and b1 - b0 == len(own):
                second -= same * first.transpose(0, 2, 1)
            elif same:  # t_ibja for all a and these b
                turned = (
                    (rows[:, b0:b1].reshape(-1, naux) @ own.T)
                    .reshape(-1, b1 - b0, nvir)
                    .transpose(0, 2, 1)
                )
                second -= same * (turned / denominators)
            y[b0:b1] += second.reshape(-1, b1 - b0).T @ flat
            for one, other in zip(first, second, strict=True):
                virtual += one @ other.T
        t, u = t.reshape(nocc, -1), u.reshape(nocc, -1)
        for start in range(0, t.shape[1], RUN):
            occupied -= t[:, start : start + RUN] @ u[:, start : start + RUN].T
