"""The significant pairs of basis functions: products too small to matter are neither stored nor
fitted.

    |(mn|P)| <= Q_mn (P|P)^1/2        sum_P B_P,mn^2 <= Q_mn^2        Q_mn = (mn|mn)^1/2

so a pair with Q_mn below NEGLIGIBLE changes no element of J or K by more than a few times that. In
an extended molecule most pairs are negligible. In a compact one few are, and all are kept, because
the bookkeeping would cost more than it saves. For the exchange, functions are grouped into compact
clusters, each with the list of functions it overlaps with; if all pairs are kept, into ranges of
WIDTH functions. Source: Häser and Ahlrichs, J. Comput. Chem. 10, 104 (1989).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.molecule.pyscf_shield import shielded

Index = NDArray[np.intp]

NEGLIGIBLE = 1e-12  # Eh^1/2
WORTH_DROPPING = 0.7  # of all pairs: if more are significant, all are kept
CLUSTER = 48  # basis functions in the largest cluster (at least one atom)
# Basis functions per cluster if all pairs are kept: BLAS multiplies narrow rectangles without
# copying them first
WIDTH = 32


@dataclass(frozen=True, slots=True)
class Cluster:
    """Neighbouring basis functions, and the location of their integrals.

    Attributes
    ----------
    functions : (n,) the functions of the cluster
    partners : (m,) all functions that form a pair with any of them
    source : (m, n) column of B for each pair, or the number of columns if the pair is negligible
    """

    functions: Index
    partners: Index
    source: Index


@dataclass(frozen=True, slots=True)
class PairList:
    """Columns of B: positions in the packed lower triangle, row by row, ascending.

    Attributes
    ----------
    nao : number of basis functions
    columns : (ncolumn,) positions
    clusters : in the order of the functions if all pairs are kept
    """

    nao: int
    columns: Index
    clusters: tuple[Cluster, ...]

    @property
    def complete(self) -> bool:
        """Whether all pairs are kept."""
        return len(self.columns) == self.nao * (self.nao + 1) // 2

    @property
    def rectangles(self) -> int:
        """Elements per fitting function in the rectangles of all clusters with their partners."""
        return sum(cluster.source.size for cluster in self.clusters)

    def compress(self, packed: Array, out: Array) -> None:
        """Keep the columns of packed triangles (n, npair), writing them to `out` (n, ncolumn)."""
        np.take(packed, self.columns, axis=1, out=out, mode="clip")

    def expand(self, block: Array) -> Array:
        """Packed triangles (n, npair) of a block (n, ncolumn) of B, zero where negligible."""
        if self.complete:
            return block
        packed = np.zeros((len(block), self.nao * (self.nao + 1) // 2))
        packed[:, self.columns] = block
        return packed


def every_pair(nao: int) -> PairList:
    """All pairs of nao functions."""
    columns = np.arange(nao * (nao + 1) // 2)
    ranges = [np.arange(first, min(first + WIDTH, nao)) for first in range(0, nao, WIDTH)]
    return PairList(nao, columns, _with_partners(nao, columns, ranges))


def pair_list(mole: Any) -> PairList:
    """The pairs of a PySCF molecule that are not negligible, or all pairs if most are not."""
    nao = mole.nao
    kept = significant(mole)
    if not 0 < np.count_nonzero(kept) < WORTH_DROPPING * len(kept):
        return every_pair(nao)
    columns = np.flatnonzero(kept)
    return PairList(nao, columns, _with_partners(nao, columns, _clusters(mole)))


def _with_partners(nao: int, columns: Index, groups: list[Index]) -> tuple[Cluster, ...]:
    """The clusters for groups of functions, over the pairs that are kept."""
    column = np.full((nao, nao), len(columns), dtype=np.intp)
    lower = np.tril_indices(nao)
    mu, nu = lower[0][columns], lower[1][columns]
    column[mu, nu] = column[nu, mu] = np.arange(len(columns))
    clusters = []
    for functions in groups:
        part = column[functions]
        partners = np.flatnonzero((part < len(columns)).any(axis=0))
        clusters.append(Cluster(functions, partners, np.ascontiguousarray(part[:, partners].T)))
    return tuple(clusters)


def significant(mole: Any) -> NDArray[np.bool_]:
    """Whether Q_mn >= NEGLIGIBLE, (npair,) in packed order; the largest Q_mn of a pair of shells
    decides for all its functions."""
    shell = np.repeat(np.arange(mole.nbas), np.diff(mole.ao_loc_nr()))
    kept = _significant_shells(mole)[np.ix_(shell, shell)]
    return np.asarray(kept[np.tril_indices(mole.nao)])


def _significant_shells(mole: Any) -> NDArray[np.bool_]:
    """Whether Q_mn >= NEGLIGIBLE for any functions of two shells, (nshell, nshell)."""
    return np.asarray(schwarz_bounds(mole) >= NEGLIGIBLE)


def pair_count(mole: Any) -> tuple[int, int]:
    """Number of columns and `rectangles` of `pair_list`, counted by shells, without an array of all
    pairs of functions."""
    nao = mole.nao
    widths = np.diff(mole.ao_loc_nr())
    kept = _significant_shells(mole)
    columns = int((widths @ (kept @ widths) + widths @ np.diag(kept)) // 2)
    if not 0 < columns < WORTH_DROPPING * (nao * (nao + 1) // 2):
        return nao * (nao + 1) // 2, nao * nao
    shell = np.repeat(np.arange(mole.nbas), widths)
    rectangles = 0
    for functions in _clusters(mole):
        partners = kept[np.unique(shell[functions])].any(axis=0)
        rectangles += len(functions) * int(widths[partners].sum())
    return columns, rectangles


_last_bounds: dict[bytes, Array] = {}  # of the last molecule, by its numbers


def schwarz_bounds(mole: Any) -> Array:
    """Largest Q_mn of each pair of shells, (nshell, nshell), Eh^1/2, as in PySCF's direct SCF; the
    plan, the SCF and its fitting error use the same."""
    key = b"".join(table.tobytes() for table in (mole._atm, mole._bas, mole._env))
    bounds = _last_bounds.get(key)
    if bounds is None:
        with shielded():
            from pyscf.scf import _vhf

            found = _vhf._VHFOpt(mole, "int2e", "CVHFnrs8_prescreen", "CVHFnr_int2e_q_cond")
        bounds = np.asarray(found.q_cond)
        bounds.flags.writeable = False
        _last_bounds.clear()  # another thread may do so, too
        _last_bounds[key] = bounds
    return bounds


def _clusters(mole: Any) -> list[Index]:
    """Functions of compact groups of atoms, halved along the longest axis down to CLUSTER."""
    slices = mole.aoslice_by_atom()[:, 2:]
    sizes = slices[:, 1] - slices[:, 0]
    places = mole.atom_coords()
    waiting = [np.arange(mole.natm)]
    groups = []
    while waiting:
        atoms = waiting.pop()
        functions = sizes[atoms].sum()
        if len(atoms) > 1 and functions > CLUSTER:
            first, second = _halves(atoms, places[atoms], sizes[atoms])
            waiting += [second, first]
        elif functions:
            groups.append(np.concatenate([np.arange(*slices[atom]) for atom in np.sort(atoms)]))
    return groups


def _halves(atoms: Index, places: Array, sizes: Index) -> tuple[Index, Index]:
    """The atoms on both sides of a plane across the longest axis of the group, with half of the
    functions each.

    Parameters
    ----------
    atoms, places, sizes : numbers of the atoms, (n, 3) positions, and functions of each
    """
    centred = places - places.mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    order = np.argsort(centred @ axis, kind="stable")
    half = int(np.searchsorted(np.cumsum(sizes[order]), sizes.sum() / 2))
    half = min(max(half, 1), len(order) - 1)
    return atoms[order[:half]], atoms[order[half:]]


# --- blocks of pairs ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairBlock:
    """Columns c0:c1 of B, from shells first:last, which span the packed pairs t0:t1."""

    first: int
    last: int
    c0: int
    c1: int
    t0: int
    t1: int


def pair_groups(mole: Any, pairs: PairList, most: int = 0) -> list[PairBlock]:
    """Cut the rows m of the packed triangle, at shell boundaries, into blocks of at most `most`
    pairs.

    A block has at least as many pairs as a row of the widest shell. With `most` 0 the blocks are
    the groups in which B is fitted; otherwise they consist of whole such groups.
    """
    edges = mole.ao_loc_nr().astype(np.intp)
    packed = edges * (edges + 1) // 2  # pairs before each shell
    columns = np.searchsorted(pairs.columns, packed)
    widest_row = int(np.diff(edges).max(initial=1)) * pairs.nao
    shells = [(shell, shell + 1) for shell in range(mole.nbas)]
    groups = _joined(shells, packed, widest_row)
    return [
        PairBlock(
            first=first,
            last=last,
            c0=int(columns[first]),
            c1=int(columns[last]),
            t0=int(packed[first]),
            t1=int(packed[last]),
        )
        for first, last in _joined(groups, packed, most)
    ]


def _joined(ranges: list[tuple[int, int]], packed: Index, most: int) -> list[tuple[int, int]]:
    """Neighbouring ranges of shells, joined as long as they have at most `most` pairs; `packed` has
    the number of pairs before each shell."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and packed[last] - packed[joined[-1][0]] <= most:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined


def ends_of(groups: list[PairBlock]) -> list[int]:
    """The end of each of several neighbouring groups, counted in their columns."""
    return [group.c1 - groups[0].c0 for group in groups]
