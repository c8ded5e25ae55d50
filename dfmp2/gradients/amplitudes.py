"""First-order amplitudes, made from B one occupied orbital at a time and contracted at once to densities.

    t_iajb = (ia|jb) / D          D = e_i + e_j - e_a - e_b        (ia|jb) = sum_P B_iaP B_jbP
    u_iajb = c_SS (t_iajb - t_ibja) + c_OS t_iajb                  RHF
    u_iajb = c_SS (t_iajb - t_ibja)  or  c_OS t_iajb               UHF: i and j of one spin, or of two

    Y_jbP = sum_ia u_iajb B_iaP
    P_ik = -sum_jab t_iajb u_kajb          P_ac = sum_ijb t_iajb u_icjb

Sums run over both spins of j. Y is what the energy gains with a change of B, dE = 2 sum Y dB in each spin; P is what
it gains with a change of the Fock matrix between active orbitals. With c_OS = c_SS = 1 this is MP2. For one j and as
many b as fit into a block all t_iajb are held, never more. Sources: Weigend and Haeser, Theor. Chem. Acc. 97, 331
(1997) for RHF; the spin cases follow from the energies of `dfmp2.mp2.pairs` by differentiation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.host.threads import each
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.result import Scaling

Array = NDArray[np.float64]

BLOCK_BYTES = 64 * 10**6  # of the amplitudes of one worker; there are up to four arrays of that size


@dataclass(frozen=True, slots=True, eq=False)
class AmplitudeDensities:
    """What the energy depends on in one spin.

    Attributes
    ----------
    y : (nocc, nvir, naux) float64, Eh^1/2
    occupied : P_ik, (nocc, nocc) float64; virtual : P_ac, (nvir, nvir) float64
    """

    y: Array
    occupied: Array
    virtual: Array


def amplitude_densities(
    b: Sequence[Array], spaces: Sequence[ActiveSpace], scaling: Scaling, threads: int
) -> list[AmplitudeDensities]:
    """Y and P of one (restricted) or two (alpha, beta) spins.

    Parameters
    ----------
    b : (nocc, nvir, naux) float64 per spin, Eh^1/2
    spaces : active space per spin
    scaling : of the energy that is differentiated
    threads : workers
    """
    found = [
        AmplitudeDensities(np.zeros(x.shape), np.zeros((s.nocc, s.nocc)), np.zeros((s.nvir, s.nvir)))
        for x, s in zip(b, spaces, strict=True)
    ]
    for right in range(len(b)):  # the spin of j
        for left in range(len(b)):  # the spin of i
            same, opposite = scaling.same_spin, scaling.opposite_spin
            if len(b) == 2:
                same, opposite = (same, 0.0) if left == right else (0.0, opposite)
            if (same or opposite) and b[left].size and b[right].size:
                spins = b[left], b[right], spaces[left], spaces[right]
                _add(*spins, same, opposite, found[left], found[right].y, threads)
    return found


def _add(
    left: Array,
    right: Array,
    of_i: ActiveSpace,
    of_j: ActiveSpace,
    same: float,
    opposite: float,
    densities: AmplitudeDensities,
    y: Array,
    threads: int,
) -> None:
    """Add the amplitudes of one spin of i and one of j: to P of the spin of i and to Y of that of j."""
    nocc, nvir, naux = left.shape
    rows = left.reshape(-1, naux)
    step = min(of_j.nvir, max(1, BLOCK_BYTES // (8 * nocc * nvir)))
    above = of_i.eps_occ[:, None, None] - of_i.eps_vir[:, None]
    bounds = np.linspace(0, of_j.nocc, threads + 1).round().astype(int)
    parts: list[Any] = [None] * threads

    def share(worker: int) -> None:
        occupied, virtual = np.zeros_like(densities.occupied), np.zeros_like(densities.virtual)
        for j in range(bounds[worker], bounds[worker + 1]):
            for b0 in range(0, of_j.nvir, step):
                b1 = min(b0 + step, of_j.nvir)
                denominators = above + (of_j.eps_occ[j] - of_j.eps_vir[b0:b1])
                t = (rows @ right[j, b0:b1].T).reshape(nocc, nvir, b1 - b0)
                if not same:
                    t /= denominators
                    u = opposite * t
                else:
                    if step == of_j.nvir:
                        turned = t.transpose(0, 2, 1)
                    else:  # (ib|ja) of all a
                        turned = (left[:, b0:b1].reshape(-1, naux) @ right[j].T).reshape(nocc, b1 - b0, nvir)
                        turned = turned.transpose(0, 2, 1)
                    u = (same + opposite) * t
                    u -= same * turned
                    u /= denominators
                    t /= denominators
                y[j, b0:b1] += u.reshape(-1, b1 - b0).T @ rows
                occupied -= t.reshape(nocc, -1) @ u.reshape(nocc, -1).T
                for first, second in zip(t, u, strict=True):
                    virtual += first @ second.T
        parts[worker] = occupied, virtual

    each(threads, share, threads)
    for occupied, virtual in parts:
        densities.occupied[:] += (occupied + occupied.T) / 2  # symmetric but for rounding
        densities.virtual[:] += (virtual + virtual.T) / 2
