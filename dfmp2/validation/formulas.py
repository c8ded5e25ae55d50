"""Correlation energies as explicit sums over (ia|jb) from PySCF, independent of our fit,
transformation, pair terms and quadratures.

With D = e_a + e_b - e_i - e_j > 0, s and t spins, and r = 1, or 1 - exp(-kappa D) with kappa-MP2

    E_OS = - sum_ijab (ia|jb)^2 r^2 / D                             i, a of alpha, j, b of beta            (1)
    E_SS = - 1/2 sum_s sum_ijab (ia|jb) [(ia|jb) - (ib|ja)] r^2 / D                                        (2)
    E_S  = - sum_s sum_ia f_ia^2 / (e_a - e_i)                      ROHF, semicanonical orbitals           (3)

and the direct random-phase approximation from zero-point energies of plasmons,

    E_c = 1/2 sum_n W_n - 1/2 tr A,    W_n^2 = eigenvalues of d^1/2 (d + 2 K) d^1/2,    A = d + K          (4)

over all ia of both spins, d_ia = e_a - e_i, K_ia,jb = (ia|jb); for RHF, to which triplets do not
contribute, 2 K replaces K over the ia of one spin. Sources: Szabo and Ostlund, Modern Quantum
Chemistry (1996), section 6.5; Lee and Head-Gordon, J. Chem. Theory Comput. 14, 5203 (2018); Furche,
J. Chem. Phys. 129, 114105 (2008).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from dfmp2.arrays import Array
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.planning.sizes import FLOAT64

# s, i, t -> (ia|jb) for all a, j, b: (nvir_s, nocc_t, nvir_t)
Rows = Callable[[int, int, int], Array]


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceOrbitals:
    """Correlated orbitals of one spin.

    Attributes
    ----------
    occupied, virtual : ndarray
        (nao, nocc) and (nao, nvir).
    occupied_energies, virtual_energies : ndarray
        (nocc,) and (nvir,), Eh.
    coupling : ndarray
        (nocc, nvir) Fock matrix between them, Eh; zero except for ROHF.
    """

    occupied: Array
    virtual: Array
    occupied_energies: Array
    virtual_energies: Array
    coupling: Array

    @property
    def differences(self) -> Array:
        """e_a - e_i, (nocc, nvir), Eh."""
        return self.virtual_energies - self.occupied_energies[:, None]


def correlated_orbitals(
    mf: Any, kind: str, frozen_core: int, frozen_virtual: int
) -> list[ReferenceOrbitals]:
    """Orbitals of each spin of a PySCF mean field; those of ROHF are made semicanonical.

    Parameters
    ----------
    mf : PySCF mean field
        A converged mean field.
    kind : str
        "rhf", "uhf" or "rohf".
    frozen_core, frozen_virtual : int
        Numbers of lowest occupied and highest virtual orbitals left out per spin.
    """
    with shielded():
        fock = mf.get_fock()
    coeff = np.asarray(mf.mo_coeff)
    occ = np.asarray(mf.mo_occ)
    if kind == "rhf":
        spins = [(coeff, occ > 0, np.asarray(fock))]
    elif kind == "uhf":
        spins = [(coeff[0], occ[0] > 0, fock[0]), (coeff[1], occ[1] > 0, fock[1])]
    else:
        spins = [(coeff, occ > 0, fock.focka), (coeff, occ > 1, fock.fockb)]
    orbitals = []
    for coefficients, occupied, matrix in spins:
        matrix = coefficients.T @ np.asarray(matrix) @ coefficients
        e_occ, turn_occ = np.linalg.eigh(matrix[np.ix_(occupied, occupied)])
        e_vir, turn_vir = np.linalg.eigh(matrix[np.ix_(~occupied, ~occupied)])
        last = len(e_vir) - frozen_virtual
        coupling = turn_occ.T @ matrix[np.ix_(occupied, ~occupied)] @ turn_vir
        orbitals.append(
            ReferenceOrbitals(
                occupied=(coefficients[:, occupied] @ turn_occ)[:, frozen_core:],
                virtual=(coefficients[:, ~occupied] @ turn_vir)[:, :last],
                occupied_energies=e_occ[frozen_core:],
                virtual_energies=e_vir[:last],
                coupling=coupling[frozen_core:, :last],
            )
        )
    return orbitals


def fitted_rows(mole: Any, fitting: dict[str, Any], spins: Sequence[ReferenceOrbitals]) -> Rows:
    """(ia|jb) with a fitting set, from PySCF's three-centre integrals and its factor of the metric.

    Parameters
    ----------
    mole : PySCF Mole
    fitting : dict
        Functions of each kind of atom, in PySCF's format.
    spins : sequence of Orbitals
        Alpha and beta, or one for both.
    """
    with shielded():
        from pyscf import df, lib

        three_center = df.DF(mole, auxbasis=fitting)
        three_center.verbose = 0
        parts: list[list[Array]] = [[] for _ in spins]
        for block in three_center.loop():
            whole = lib.unpack_tril(block)
            for part, orbitals in zip(parts, spins, strict=True):
                half = np.einsum("Pmn,mi->Pin", whole, orbitals.occupied, optimize=True)
                part.append(np.einsum("Pin,na->Pia", half, orbitals.virtual, optimize=True))
    tensors = [np.ascontiguousarray(np.concatenate(part).transpose(1, 2, 0)) for part in parts]

    def rows(s: int, i: int, t: int) -> Array:
        nocc, nvir, naux = tensors[t].shape
        product = tensors[s][i] @ tensors[t].reshape(nocc * nvir, naux).T
        return np.asarray(product.reshape(tensors[s].shape[1], nocc, nvir))

    return rows


def four_center_integrals(mf: Any, spins: Sequence[ReferenceOrbitals]) -> Rows:
    """(ia|jb) without a fitting set, all in memory.

    Parameters
    ----------
    mf : PySCF mean field
        Its `_eri` are used if present.
    spins : sequence of Orbitals
        Alpha and beta, or one for both.
    """
    with shielded():
        from pyscf import ao2mo

        if mf._eri is None:
            mf._eri = mf.mol.intor("int2e", aosym="s8")
        matrices = {
            (s, t): ao2mo.general(
                mf._eri,
                (left.occupied, left.virtual, right.occupied, right.virtual),
                compact=False,
            )
            for s, left in enumerate(spins)
            for t, right in enumerate(spins)
        }

    def rows(s: int, i: int, t: int) -> Array:
        nvir = len(spins[s].virtual_energies)
        nocc, others = spins[t].differences.shape
        return np.asarray(matrices[s, t][i * nvir : (i + 1) * nvir].reshape(nvir, nocc, others))

    return rows


def spin_components(
    spins: Sequence[ReferenceOrbitals], rows: Rows, kappa: float | None
) -> tuple[float, float]:
    """E_SS and E_OS, Eqs. 1 and 2, Eh."""

    def weights(s: int, i: int, t: int) -> Array:
        """- r^2 / D of i for all a, j, b."""
        left, right = spins[s], spins[t]
        above = left.virtual_energies - left.occupied_energies[i]
        d = above[:, None, None] + right.differences
        if kappa is None:
            return np.asarray(-1.0 / d)
        return np.asarray(-((1.0 - np.exp(-kappa * d)) ** 2) / d)

    same, opposite = 0.0, 0.0
    for s, orbitals in enumerate(spins):
        for i in range(len(orbitals.occupied_energies)):
            integrals = rows(s, i, s)
            weighted = integrals * weights(s, i, s)
            exchanged = integrals.transpose(2, 1, 0)  # (ib|ja)
            same += float(np.vdot(weighted, integrals - exchanged)) / 2
            if len(spins) == 1:
                opposite += float(np.vdot(weighted, integrals))
            elif s == 0:
                mixed = rows(0, i, 1)
                opposite += float(np.vdot(mixed * weights(0, i, 1), mixed))
    if len(spins) == 1:
        same *= 2  # beta is alpha
    return same, opposite


def singles_energy(spins: Sequence[ReferenceOrbitals]) -> float:
    """E_S, Eq. 3, Eh."""
    return -sum(float((orbitals.coupling**2 / orbitals.differences).sum()) for orbitals in spins)


def plasmon_energy(spins: Sequence[ReferenceOrbitals], rows: Rows) -> float:
    """E_c of the direct random-phase approximation, Eq. 4, Eh."""
    sizes = [orbitals.differences.size for orbitals in spins]
    if not sum(sizes):
        return 0.0
    edges = np.cumsum([0, *sizes])
    d = np.concatenate([orbitals.differences.ravel() for orbitals in spins])
    matrix = np.empty((edges[-1], edges[-1]))
    for s, orbitals in enumerate(spins):
        nocc, nvir = orbitals.differences.shape
        for t in range(len(spins)):
            columns = slice(edges[t], edges[t + 1])
            for i in range(nocc):
                first = edges[s] + i * nvir
                matrix[first : first + nvir, columns] = rows(s, i, t).reshape(nvir, sizes[t])
    if len(spins) == 1:
        matrix *= 2
    trace = float(d.sum() + matrix.trace())
    root = np.sqrt(d)
    matrix *= 2 * root
    matrix *= root[:, None]
    matrix[np.diag_indices_from(matrix)] += d**2
    squares = scipy.linalg.eigvalsh(matrix, overwrite_a=True, check_finite=False)
    return (float(np.sqrt(squares).sum()) - trace) / 2


def fitted_bytes(spins: Sequence[tuple[int, int]], nao: int, naux: int, *, plasmons: bool) -> int:
    """Bytes of the fitted integrals and arrays derived from them.

    Parameters
    ----------
    spins : sequence of tuple of int
        Numbers of occupied and virtual orbitals of each spin.
    plasmons : bool
        Whether the matrix of Eq. 4 is built.
    """
    tensors = 2 * sum(nocc * nvir * naux for nocc, nvir in spins)
    three_center = naux * nao * (nao + 1) // 2
    row = max(nvir for _, nvir in spins) * sum(nocc * nvir for nocc, nvir in spins)
    if plasmons:
        matrix = sum(nocc * nvir for nocc, nvir in spins) ** 2
    else:
        matrix = 0
    return FLOAT64 * (tensors + three_center + 4 * row + 2 * matrix)
