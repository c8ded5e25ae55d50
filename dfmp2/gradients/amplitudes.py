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
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.host.arrays_on_disk import ScratchTensor, StoredTensor
from dfmp2.host.threads import each_share
from dfmp2.integrals.metric import InverseMetric
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.pairs import rounded, summation_order
from dfmp2.options.methods import Method
from dfmp2.planning.gradient import AMPLITUDE_BYTES, STREAM_BYTES, TILE_ELEMENTS

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
    order = summation_order(b) if single else np.arange(naux)
    amplitudes = _Amplitudes(
        b=b,
        rows=[_Rows(tensor, order, threads, single=single) for tensor in b],
        spaces=spaces,
        scaling=scaling,
        inverse=inverse,
        z=z,
    )
    occupied = [np.zeros((s.nocc, s.nocc)) for s in spaces]
    virtual = [np.zeros((s.nvir, s.nvir)) for s in spaces]
    products = np.zeros((naux, naux))
    for spin, space in enumerate(spaces):  # of j
        for part in each_share(space.nocc, partial(amplitudes.contracted, spin), threads):
            products += weight * part.products
            for other, (p_occ, p_vir) in part.densities.items():
                occupied[other] += (p_occ + p_occ.T) / 2  # symmetric up to rounding
                virtual[other] += (p_vir + p_vir.T) / 2
    return AmplitudeDensities(z=z, products=products, occupied=occupied, virtual=virtual)


class _Part(NamedTuple):
    """What the amplitudes of some j contribute.

    Attributes
    ----------
    products : S, (naux, naux)
    densities : P_ik and P_ac by spin of i
    """

    products: Array
    densities: dict[int, tuple[Array, Array]]


@dataclass(frozen=True, slots=True, eq=False)
class _Amplitudes:
    """Amplitudes of all pairs of spins.

    Attributes
    ----------
    rows : B of each spin in the precision of the amplitudes
    b, spaces, scaling, inverse, z : as in `amplitude_densities`
    """

    b: Sequence[Array | StoredTensor]
    rows: Sequence[_Rows]
    spaces: Sequence[ActiveSpace]
    scaling: Method
    inverse: InverseMetric
    z: Sequence[ScratchTensor]

    def factors(self, spin: int, other: int) -> tuple[float, float]:
        """c_SS and c_OS for j of one spin and i of the same or another one."""
        if len(self.b) == 1:
            return self.scaling.same_spin, self.scaling.opposite_spin
        if spin == other:
            return self.scaling.same_spin, 0.0
        return 0.0, self.scaling.opposite_spin

    def contracted(self, spin: int, first: int, last: int) -> _Part:
        """Densities of the amplitudes with j in first..last of a spin; stores their Z."""
        space, rows = self.spaces[spin], self.rows[spin]
        naux = self.b[spin].shape[2]
        products = np.zeros((naux, naux))
        densities = {
            other: (np.zeros((s.nocc, s.nocc)), np.zeros((s.nvir, s.nvir)))
            for other, s in enumerate(self.spaces)
            if s.nocc and any(self.factors(spin, other))
        }
        for j in range(first, last):
            b_of_j = np.asarray(self.b[spin][j])
            rounded_b = rows.rounded(b_of_j)
            y = np.zeros((space.nvir, naux))
            for other, (occupied, virtual) in densities.items():
                _add(
                    left=self.rows[other],
                    b_of_j=rounded_b,
                    space=self.spaces[other],
                    energies=(space.eps_occ[j], space.eps_vir),
                    factors=self.factors(spin, other),
                    y=y,
                    occupied=occupied,
                    virtual=virtual,
                )
            y = rows.reordered(y)
            products += y.T @ b_of_j
            self.z[spin].put_rows(j, self.inverse.unfit(y))
        return _Part(products, densities)


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
        self._in_memory: Any = None
        if isinstance(b, StoredTensor):
            self._stored = b
        elif single:
            self._in_memory = rounded(b, order, threads)
        else:
            self._in_memory = b

    def rounded(self, rows: Array) -> NDArray[Any]:
        """Rows of B, (..., naux) float64, in this precision and order."""
        if self.dtype == np.float32:
            return np.take(rows.astype(np.float32), self._order, axis=-1)
        return rows

    def reordered(self, rows: Array) -> Array:
        """Rows (..., naux) in the order of `rounded`, in the order of B."""
        if self.dtype == np.float32:
            return np.take(rows, np.argsort(self._order), axis=-1)
        return rows

    def groups(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """B in groups of occupied orbitals (i0, i1, rows), whose amplitudes with one j stay in
        cache."""
        nvir = self.shape[1]
        step = max(1, AMPLITUDE_BYTES // (8 * nvir * nvir))
        for first, part in self._read(step):
            for i0 in range(0, len(part), step):
                rows = part[i0 : i0 + step]
                yield first + i0, first + i0 + len(rows), rows

    def _read(self, step: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """The first orbital and the rows of each part that is in memory at a time: all, or from
        disk a multiple of `step` orbitals."""
        if self._stored is None:
            yield 0, self._in_memory
            return
        nocc, nvir, naux = self.shape
        count = max(1, STREAM_BYTES // (8 * nvir * naux) // step) * step
        buffer = np.empty((min(count, nocc), nvir, naux))
        for first in range(0, nocc, count):
            last = min(first + count, nocc)
            self._stored.read(first, last, buffer[: last - first])
            yield first, self.rounded(buffer[: last - first])


def _add(
    left: _Rows,
    b_of_j: NDArray[Any],
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
    b_of_j, energies : B of j, (nvir, naux), its energy and those of b, Eh
    factors : c_SS and c_OS
    """
    nocc, nvir, naux = left.shape
    same, opposite = factors
    step = min(len(b_of_j), max(1, TILE_ELEMENTS // (nocc * nvir)))
    of_ia = (space.eps_occ[:, None, None] - space.eps_vir[:, None]).astype(left.dtype)
    of_jb = (energies[0] - energies[1]).astype(left.dtype)
    for b0 in range(0, len(b_of_j), step):
        b1 = min(b0 + step, len(b_of_j))
        t, u = (np.empty((nocc, nvir, b1 - b0), left.dtype) for _ in range(2))
        for i0, i1, rows in left.groups():
            denominators = of_ia[i0:i1] + of_jb[b0:b1]
            flat = rows.reshape(-1, naux)
            np.matmul(flat, b_of_j[b0:b1].T, out=t[i0:i1].reshape(-1, b1 - b0))
            t[i0:i1] /= denominators
            np.multiply(t[i0:i1], same + opposite, out=u[i0:i1])
            if same and b1 - b0 == len(b_of_j):
                u[i0:i1] -= same * t[i0:i1].transpose(0, 2, 1)
            elif same:  # t_ibja for all a and these b
                exchanged = rows[:, b0:b1].reshape(-1, naux) @ b_of_j.T
                exchanged = exchanged.reshape(-1, b1 - b0, nvir).transpose(0, 2, 1)
                u[i0:i1] -= same * (exchanged / denominators)
            y[b0:b1] += u[i0:i1].reshape(-1, b1 - b0).T @ flat
            for t_of_i, u_of_i in zip(t[i0:i1], u[i0:i1], strict=True):
                virtual += t_of_i @ u_of_i.T
        t, u = t.reshape(nocc, -1), u.reshape(nocc, -1)
        for start in range(0, t.shape[1], RUN):
            occupied -= t[:, start : start + RUN] @ u[:, start : start + RUN].T
