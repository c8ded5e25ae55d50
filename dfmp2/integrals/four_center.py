"""Selected four-centre integrals: (mn|mn) of pairs of basis functions, and (ia|jb) of a few
orbitals i.

(ia|jb) with all other orbitals j are computed from integrals that are not stored:

    (ia|ls) = sum_mn C_mi C_na (mn|ls)        l >= s, a range of pairs at a time
    H_i(j,a,s) = sum_l C_lj (ia|ls)           l and s in both orders
    (ia|jb) = sum_s C_sb H_i(j,a,s)

No (mn|ls) is stored, only H, for at least one orbital i: with less memory fewer orbitals go through
a pass, and there are more passes. Integrals below PySCF's Schwarz bounds (1e-14 Eh) and negligible
pairs l, s (`dfmp2.integrals.screening`) are skipped. Everything is float64 on the host. Source of
direct transformations: Head-Gordon, Pople, Frisch, Chem. Phys. Lett. 153, 503 (1988).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.host.threads import each
from dfmp2.integrals.screening import significant
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.integrals.three_center import Transformation
from dfmp2.molecule.pyscf_shield import shielded

Index = NDArray[np.intp]

BLOCK_BYTES = 32 * 10**6  # of (mn|ls) at a time
WORK_BYTES = 16 * 10**6  # of products that are added to H, per worker


def pair_diagonals(mole: Any, wanted: NDArray[np.bool_]) -> Array:
    """(mn|mn) of some pairs of shells, (nao, nao), 0 for the others, Eh.

    PySCF has no loop over them, and calling it for each pair takes ten times as long as the
    integrals, so libcint is called directly.

    Parameters
    ----------
    wanted : array
        (nshell, nshell) mask of the pairs.
    """
    with shielded():
        from pyscf.gto import moleintor

        ends = mole.ao_loc_nr()
        evaluate = moleintor.libcgto.int2e_sph
        tables = [np.ascontiguousarray(x) for x in (mole._atm, mole._bas, mole._env)]
        atm, bas, env = (ctypes.c_void_p(x.ctypes.data) for x in tables)
        optimizer = moleintor.make_cintopt(*tables, "int2e_sph")
        given = (atm, ctypes.c_int(mole.natm), bas, ctypes.c_int(mole.nbas), env, optimizer)
        shells = np.zeros(4, np.int32)  # m, n, m, n
        place = ctypes.c_void_p(shells.ctypes.data)
        needed = 0
        for shell in range(mole.nbas):
            shells[:] = shell
            needed = max(needed, evaluate(None, None, place, *given, None))
        values = np.empty(int(np.diff(ends).max()) ** 4)
        room = np.empty(needed)
        target = ctypes.c_void_p(values.ctypes.data)
        cache = ctypes.c_void_p(room.ctypes.data)
        found = np.zeros((mole.nao, mole.nao))
        for m, n in np.argwhere(wanted):
            shells[0::2], shells[1::2] = m, n
            evaluate(target, None, place, *given, cache)
            rows, columns = ends[m + 1] - ends[m], ends[n + 1] - ends[n]
            size = rows * columns
            diagonal = values[: size * size : size + 1]
            found[ends[m] : ends[m + 1], ends[n] : ends[n + 1]] = diagonal.reshape(columns, rows).T
    return found


def exact_rows(
    mole: Any,
    space: ActiveSpace,
    chosen: Sequence[int],
    others: Sequence[ActiveSpace],
    threads: int,
    at_once: int,
) -> Iterator[tuple[int, list[Array]]]:
    """(ia|jb) of the chosen orbitals, one after another.

    Parameters
    ----------
    mole : PySCF molecule
    space : orbitals i and a
    chosen : indices of its occupied orbitals, from 0
    others : orbitals j and b of each spin
    threads : number of workers
    at_once : number of orbitals i in one pass over the integrals

    Yields
    ------
    i, [(nvir, nocc of the other, nvir of the other) float64 per spin, Eh]
    """
    edges = np.cumsum([other.nocc for other in others])[:-1]
    for first in range(0, len(chosen), at_once):
        some = list(chosen[first : first + at_once])
        halves = _half_transformed(mole, space, some, others, threads)
        of_spins = np.split(halves, edges, axis=1)
        for place, i in enumerate(some):
            yield (
                i,
                [
                    _transformed(half[:, :, place], other)
                    for half, other in zip(of_spins, others, strict=True)
                ],
            )


def _transformed(half: Array, other: ActiveSpace) -> Array:
    """(ia|jb) of one i, (nvir, nocc, nvir), from (ia|j nu), (nao, nocc, nvir)."""
    rows = np.empty((half.shape[2], other.nocc, other.nvir))
    for j in range(other.nocc):
        np.matmul(half[:, j].T, other.c_vir, out=rows[:, j])
    return rows


def _half_transformed(
    mole: Any,
    space: ActiveSpace,
    chosen: list[int],
    others: Sequence[ActiveSpace],
    threads: int,
) -> Array:
    """H, (nao, nocc of all others, len(chosen), nvir)."""
    c_occ = np.ascontiguousarray(space.c_occ[:, chosen])
    part = ActiveSpace(
        c_occ=c_occ, c_vir=space.c_vir, eps_occ=space.eps_occ[chosen], eps_vir=space.eps_vir
    )
    transform = Transformation([part], threads)
    c_others = np.hstack([other.c_occ for other in others])
    nao, width = len(c_occ), len(chosen) * space.nvir
    h = np.zeros((nao, c_others.shape[1], width))
    ends = [int(end) for end in mole.ao_loc_nr()]
    for shell, rows in _shells(mole, BLOCK_BYTES):
        l0, l1 = ends[shell], ends[shell + 1]
        x = np.zeros((l1 - l0, l1, width))  # (ia|ls), l in the shell, s up to its end
        for lam, sig, packed in rows:
            values = transform(packed)[0].reshape(len(lam), width)
            x[lam - l0, sig] = values
            inside = sig >= l0
            x[sig[inside] - l0, lam[inside]] = values[inside]
        _add(h, x, c_others, l0, l1, threads)
        del x  # before the next one is allocated
    return h.reshape(nao, c_others.shape[1], len(chosen), space.nvir)


def _add(h: Array, x: Array, c_others: Array, l0: int, l1: int, threads: int) -> None:
    """Add the contribution of the pairs l, s of a shell, l in l0:l1 and s in 0:l1; s < l0 counts in
    both orders."""
    step = max(1, WORK_BYTES // h[0].nbytes)
    left = np.ascontiguousarray(c_others[l0:l1].T)

    def straight(number: int) -> None:
        s0, s1 = number * step, min((number + 1) * step, l1)
        h[s0:s1] += np.matmul(left, x[:, s0:s1].transpose(1, 0, 2))

    each(-(-l1 // step), straight, threads)
    if l0:
        mirrored = np.ascontiguousarray(c_others[:l0].T)
        each(l1 - l0, lambda k: np.add(h[l0 + k], mirrored @ x[k, :l0], out=h[l0 + k]), threads)


def _shells(
    mole: Any, block_bytes: int
) -> Iterator[tuple[int, Iterator[tuple[Index, Index, Array]]]]:
    """Each shell with the integrals of its functions l and all s <= l that are not negligible, in
    blocks of l, s and (mn|ls), (count, npair) float64, valid until the next is requested."""
    with shielded():
        from pyscf.ao2mo import _ao2mo

        screen = _ao2mo.AO2MOpt(mole, "int2e_sph", "CVHFnr_schwarz_cond", "CVHFsetnr_direct_scf")
        ends = mole.ao_loc_nr().astype(np.intp)
        nao = int(ends[-1])
        npair = nao * (nao + 1) // 2
        most = max(int(np.diff(ends).max()) ** 2, block_bytes // (8 * npair))
        work = np.empty(min(most, nao * int(np.diff(ends).max())) * npair)
        kept = np.zeros((nao, nao), dtype=bool)
        kept[np.tril_indices(nao)] = significant(mole)

        def blocks(shell: int) -> Iterator[tuple[Index, Index, Array]]:
            for first, last in _runs(kept[ends[shell], ends[: shell + 1]], ends, shell, most):
                places = [_pairs(ends, shell, other) for other in range(first, last)]
                lam, sig = (np.concatenate(part) for part in zip(*places, strict=True))
                start = shell * (shell + 1) // 2
                with shielded():
                    packed = _ao2mo.nr_e1fill(
                        "int2e_sph",
                        (start + first, start + last, len(lam)),
                        mole._atm,
                        mole._bas,
                        mole._env,
                        "s4",
                        1,
                        screen,
                        work,
                    )[0]
                yield lam, sig, packed

        for shell in range(mole.nbas):
            yield shell, blocks(shell)


def _runs(kept: NDArray[np.bool_], ends: Index, shell: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of kept shells s <= l with at most `most` pairs of functions (or a single pair of
    shells)."""
    pairs = np.diff(ends) * (ends[shell + 1] - ends[shell])
    first = held = 0
    for other, wanted in enumerate(kept):
        if held and (not wanted or held + pairs[other] > most):
            yield first, other
            held = 0
        if wanted:
            if not held:
                first = other
            held += int(pairs[other])
    if held:
        yield first, len(kept)


def _pairs(ends: Index, shell: int, other: int) -> tuple[Index, Index]:
    """Functions l and s of the pairs of two shells in PySCF's order; within one shell l >= s."""
    lam, sig = np.meshgrid(
        np.arange(ends[shell], ends[shell + 1]),
        np.arange(ends[other], ends[other + 1]),
        indexing="ij",
    )
    lower = lam >= sig
    return lam[lower], sig[lower]
