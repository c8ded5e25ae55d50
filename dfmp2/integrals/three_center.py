"""Three-centre integrals (mu nu|P) in shell blocks, and their transformation to (ia|P).

The integrals of a block of fitting functions are evaluated with mu >= nu only, transformed
immediately and discarded: (mu nu|P) is never in memory as a whole. Both steps are float64 on the
host. Blocks depend on sizes alone, so the memory budget never changes a number.

Below: AO to MO transformation of three-centre integrals, one fitting function after another.

    X_Pi,m = sum_n (P|mn) C_ni from packed triangles, m >= n        (ia|P) = sum_m X_Pi,m C_ma

Each implementation reuses its own work space, so that a worker touches fresh memory only once. If
all pairs are kept, in float64, a triangle is unpacked with LAPACK's `tpttr` and multiplied with
BLAS `symm`, which reads only that triangle, so that the mirrored half is never built. In float32,
and if negligible pairs were dropped, each cluster of functions is multiplied with its partners: a
rectangle that is gathered from the kept pairs before each product, or once for all of them
(`ClusterRectangles`). Workers are our own single-threaded ones, each with its own share of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.host.blas import SymmetricProducts
from dfmp2.host.threads import each, each_share, shares
from dfmp2.integrals.screening import PairList
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.molecule.pyscf_shield import shielded

Single = NDArray[np.float32]

BLOCK_BYTES = 64 * 10**6  # of packed AO integrals per block, unless memory is too short for that
EXPONENT_CUT = 33.0  # primitive pairs below e^-33 are skipped: errors of 2e-15 (libcint's own: 60)
ROWS = 8  # half-transformed integrals in a product are a multiple of this
HALF_BYTES = 12 * 10**6  # of half-transformed integrals per product; stays in the shared cache


def coulomb_metric(auxmole: Any) -> Array:
    """(P|Q), shape (naux, naux) float64, of the fitting functions."""
    with shielded():
        return np.asarray(auxmole.intor("int2c2e", hermi=1))


def smallest_overlap(mole: Any) -> float:
    """Smallest eigenvalue of the overlap of the basis functions; small if they are nearly linearly
    dependent."""
    with shielded():
        return float(np.linalg.eigvalsh(mole.intor("int1e_ovlp", hermi=1))[0])


def transformed_blocks(
    blocks: Iterable[tuple[int, int, Array]], spaces: list[ActiveSpace], threads: int
) -> Iterator[tuple[int, int, list[Array]]]:
    """(ia|P) for blocks of fitting functions.

    Parameters
    ----------
    blocks : iterable of tuple[int, int, array]
        As from `packed_blocks`.
    spaces : list of ActiveSpace
        Active space of each spin; all spins share one evaluation of the integrals.
    threads : int
        Number of workers.

    Yields
    ------
    (p0, p1, [(p1-p0, nocc, nvir) float64 per spin]), valid until the next is requested
    """
    transform = Transformation(spaces, threads)
    for p0, p1, packed in blocks:
        yield p0, p1, transform(packed)


def packed_blocks(
    mole: Any, auxmole: Any, out: Array | None = None, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, int, Array]]:
    """Stream (P|mu nu), mu >= nu, in blocks of fitting functions.

    Parameters
    ----------
    out : array, optional
        (naux, nao (nao + 1) / 2) float64, C order, to which the blocks are written; None for work
        space that the next block overwrites.
    block_bytes : int
        Size of a block; it changes no number.

    Yields
    ------
    (p0, p1, (p1-p0, nao (nao + 1) / 2) float64)
    """
    with shielded():
        from pyscf.gto import moleintor

        atm, bas, env = _joined(mole, auxmole)
        ao_loc = moleintor.make_loc(bas, "int3c2e_sph")
        optimiser = moleintor.make_cintopt(atm, bas[: mole.nbas], env, "int3c2e_sph")
        offset = ao_loc[mole.nbas]
        work = np.empty(
            (
                block_functions(auxmole, mole.nao, block_bytes) if out is None else 0,
                mole.nao * (mole.nao + 1) // 2,
            )
        )
        for first, last in shell_blocks(np.diff(ao_loc[mole.nbas :]), mole.nao, block_bytes):
            slices = (0, mole.nbas, 0, mole.nbas, mole.nbas + first, mole.nbas + last)
            p0 = int(ao_loc[slices[4]] - offset)
            p1 = int(ao_loc[slices[5]] - offset)
            packed = moleintor.getints3c(
                "int3c2e_sph",
                atm,
                bas,
                env,
                slices,
                aosym="s2ij",
                ao_loc=ao_loc,
                cintopt=optimiser,
                out=work[: p1 - p0] if out is None else out[p0:p1],
            ).T  # the memory order is (P, mu >= nu) already
            yield p0, p1, packed


def pair_integrals(mole: Any, auxmole: Any, first: int, last: int) -> Array:
    """(P|mu nu) of all fitting functions, mu in the shells first:last, nu <= mu: (naux, npair)
    float64, C order."""
    with shielded():
        from pyscf.gto import moleintor

        atm, bas, env = _joined(mole, auxmole)
        slices = (first, last, 0, mole.nbas, mole.nbas, mole.nbas + auxmole.nbas)
        values = moleintor.getints3c("int3c2e_sph", atm, bas, env, slices, aosym="s2ij")
    return np.asarray(values.T)


def shell_blocks(functions: NDArray[np.int32], nao: int, block_bytes: int) -> list[tuple[int, int]]:
    """Cut fitting shells into blocks of at most `block_bytes` of packed integrals (at least one
    shell).

    Parameters
    ----------
    functions : array
        Number of functions of each shell.
    nao : int
        Number of orbital basis functions.
    """
    most = max(1, block_bytes // (8 * nao * (nao + 1) // 2))
    blocks, first, held = [], 0, 0
    for shell, count in enumerate(functions):
        if held and held + count > most:
            blocks.append((first, shell))
            first, held = shell, 0
        held += int(count)
    blocks.append((first, len(functions)))
    return blocks


def block_functions(auxmole: Any, nao: int, block_bytes: int = BLOCK_BYTES) -> int:
    """Fitting functions in the largest block, for the memory plan; 0 for an empty set."""
    functions = np.diff(auxmole.ao_loc_nr())
    blocks = shell_blocks(functions, nao, block_bytes)
    return max((int(functions[first:last].sum()) for first, last in blocks), default=0)


def _joined(mole: Any, auxmole: Any) -> Any:
    from pyscf import gto

    atm, bas, env = gto.conc_env(
        mole._atm, mole._bas, mole._env, auxmole._atm, auxmole._bas, auxmole._env
    )
    env[gto.mole.PTR_EXPCUTOFF] = EXPONENT_CUT
    return atm, bas, env


# --- transformation -------------------------------------------------------------------------------


class HalfTransform:
    """One worker's transformation of a block of fitting functions to several sets of orbitals."""

    _work: list[NDArray[Any]]  # X of each set, (functions of the largest block, n, nao)

    def put(self, place: int, rows: Array, number: int) -> None:
        """Transform rows of B, (count, ncolumn) float64, C order, as functions `place` and
        following of the block; the first has index `number` in the worker's share."""
        raise NotImplementedError

    def halves(self, count: int) -> list[NDArray[Any]]:
        """X of each set, (count, n, nao), for the first `count` fitting functions; valid until the
        next `put`."""
        return [work[:count] for work in self._work]


class ClusterRectangles:
    """B in float32, gathered once for each cluster of functions and its partners.

    Parameters
    ----------
    b : (naux, ncolumn) float64
        Fitted integrals, Eh^1/2.
    pairs : PairList
        Meaning of the columns of `b`.
    threads : int
        Number of workers.
    """

    def __init__(self, b: Array, pairs: PairList, threads: int) -> None:
        self._clusters = pairs.clusters
        self._rectangles: list[Single] = [
            np.empty((len(b), *cluster.source.shape), dtype=np.float32)
            for cluster in pairs.clusters
        ]

        def gather(first: int, last: int) -> None:
            columns = np.zeros(b.shape[1] + 1, dtype=np.float32)  # the last is for negligible pairs
            for number in range(first, last):
                columns[:-1] = b[number]
                for cluster, rectangles in zip(self._clusters, self._rectangles, strict=True):
                    np.take(columns, cluster.source, out=rectangles[number], mode="clip")

        each_share(len(b), gather, threads)

    def share(self, start: int, stop: int) -> list[Single]:
        """Rectangles of some fitting functions, (stop - start, partners, functions) per cluster."""
        return [rectangles[start:stop] for rectangles in self._rectangles]


def half_transform(
    orbitals: list[Array],
    most: int,
    pairs: PairList,
    *,
    single: bool,
    rectangles: list[Single] | None,
    whole: bool = False,
) -> HalfTransform:
    """The implementation for these pairs and this precision.

    Parameters
    ----------
    orbitals : list of array
        Sets of orbitals, (nao, n) float64 each.
    most : int
        Number of fitting functions in the largest block.
    single : bool
        Whether to use float32.
    rectangles : list of Single, optional
        Rectangles of the worker's fitting functions, from `ClusterRectangles`; None to gather them
        each time.
    whole : bool
        Whether every fitting function is transformed, one block after another.
    """
    dtype: np.dtype[np.floating[Any]] = np.dtype(np.float32) if single else np.dtype(np.float64)
    if pairs.complete and not single:
        return TriangleTransform(orbitals, most)
    if rectangles is not None:
        return GatheredTransform(orbitals, most, pairs, rectangles, whole=whole)
    return ClusterTransform(orbitals, most, pairs, dtype)


class TriangleTransform(HalfTransform):
    """All pairs in float64; parameters as in `half_transform`."""

    def __init__(self, orbitals: list[Array], most: int) -> None:
        # (n, nao) in C order is (nao, n) in Fortran order, as symm reads and writes it.
        rows = [np.ascontiguousarray(c.T) for c in orbitals]
        self._work = [np.empty((most, *c.shape)) for c in rows]
        self._products = SymmetricProducts(rows)

    def put(self, place: int, rows: Array, number: int) -> None:
        """As in HalfTransform; a triangle is unpacked once for all sets."""
        self._products(rows, [work[place : place + len(rows)] for work in self._work])


class ClusterTransform(HalfTransform):
    """Kept pairs, or all in float32; the columns of X are ordered by cluster."""

    def __init__(
        self, orbitals: list[Array], most: int, pairs: PairList, dtype: np.dtype[np.floating[Any]]
    ) -> None:
        self._clusters = pairs.clusters
        self._orbitals = [
            [np.ascontiguousarray(c[part.partners].T, dtype=dtype) for part in pairs.clusters]
            for c in orbitals
        ]
        # The last column is for negligible pairs
        self._columns = np.zeros(len(pairs.columns) + 1, dtype=dtype)
        self._parts = [np.empty(part.source.shape, dtype=dtype) for part in pairs.clusters]
        self._work = [np.empty((most, c.shape[1], len(c)), dtype=dtype) for c in orbitals]

    def put(self, place: int, rows: Array, number: int) -> None:
        """As in HalfTransform."""
        for position, values in enumerate(rows, place):
            self._columns[:-1] = values
            stop = 0
            for index, part in enumerate(self._clusters):
                start, stop = stop, stop + len(part.functions)
                np.take(self._columns, part.source, out=self._parts[index], mode="clip")
                for orbitals, work in zip(self._orbitals, self._work, strict=True):
                    np.matmul(
                        orbitals[index], self._parts[index], out=work[position, :, start:stop]
                    )


class GatheredTransform(HalfTransform):
    """The same in float32 with gathered rectangles of the clusters; bit for bit equal to
    `ClusterTransform`.

    With `whole`, all functions of a block are transformed when the first ones come: workers execute
    Python code one at a time, and would wait for each other between small products.
    """

    def __init__(
        self,
        orbitals: list[Array],
        most: int,
        pairs: PairList,
        rectangles: list[Single],
        *,
        whole: bool = False,
    ) -> None:
        self._clusters = pairs.clusters
        self._rectangles = rectangles
        self._whole = whole
        self._orbitals = [
            [np.ascontiguousarray(c[part.partners].T, dtype=np.float32) for part in pairs.clusters]
            for c in orbitals
        ]
        self._work = [np.empty((most, c.shape[1], len(c)), dtype=np.float32) for c in orbitals]

    def put(self, place: int, rows: Array, number: int) -> None:
        """As in HalfTransform; of `rows` only the length is used."""
        count = len(rows)
        if self._whole:
            if place:
                return
            count = min(len(self._work[0]), len(self._rectangles[0]) - number)
        stop = 0
        for index, part in enumerate(self._clusters):
            start = stop
            stop += len(part.functions)
            integrals = self._rectangles[index][number : number + count]
            for orbitals, work in zip(self._orbitals, self._work, strict=True):
                half = work[place : place + count, :, start:stop]
                np.matmul(orbitals[index], integrals, out=half)


class Transformation:
    """Transforms blocks of packed (P|mn), float64.

    Parameters
    ----------
    spaces : pairs of orbital ranges, such as the active space of a spin; a first range that is part
        of a wider one is not transformed again
    threads : number of workers
    """

    def __init__(self, spaces: list[ActiveSpace], threads: int) -> None:
        ranges, self._halves = _shared_ranges([space.c_occ for space in spaces])
        width = sum(c.shape[1] for c in ranges)
        self._step = max(1, HALF_BYTES // (8 * max(1, len(ranges[0]) * width)))
        self._threads = threads
        # Reused, so that fresh memory is touched only once
        self._parts = [np.empty((0, space.nocc, space.nvir)) for space in spaces]
        self._virtual = [np.ascontiguousarray(space.c_vir) for space in spaces]
        self._transforms = [TriangleTransform(ranges, self._step) for _ in range(threads)]

    def __call__(self, packed: Array) -> list[Array]:
        """(ia|P) of each space, (count, nocc, nvir), from packed (P|mn), (count, npair) float64, C
        order.

        Valid until the next call.
        """
        if len(packed) > len(self._parts[0]):
            self._parts = [np.empty((len(packed), *part.shape[1:])) for part in self._parts]
        parts = [part[: len(packed)] for part in self._parts]
        ranges = shares(len(packed), self._threads)

        def share(worker: int) -> None:
            first, last = ranges[worker]
            for start in range(first, last, self._step):
                rows = slice(start, min(start + self._step, last))
                some = [part[rows] for part in parts]
                self._transform(self._transforms[worker], packed[rows], some)

        each(self._threads, share, self._threads)
        return parts

    def _transform(self, transform: TriangleTransform, packed: Array, parts: list[Array]) -> None:
        """Write (ia|P) of a few fitting functions to the part of each space."""
        transform.put(0, packed, 0)
        halves = transform.halves(len(packed))
        for (number, columns), virtual, part in zip(
            self._halves, self._virtual, parts, strict=True
        ):
            x = halves[number][:, columns]
            if x.flags.c_contiguous:
                flat = part.reshape(-1, virtual.shape[1])
                _multiply(x.reshape(-1, x.shape[2]), virtual, flat)
            else:
                np.matmul(x, virtual, out=part)


def _multiply(x: Array, virtual: Array, out: Array) -> None:
    """out = x virtual, with the same bits for a row however many rows there are: BLAS uses other
    kernels for the last few."""
    left = len(x) % ROWS
    whole = len(x) - left
    np.matmul(x[:whole], virtual, out=out[:whole])
    if left:
        padded = np.zeros((ROWS, x.shape[1]))
        padded[:left] = x[whole:]
        out[whole:] = (padded @ virtual)[:left]


def _shared_ranges(
    orbitals: list[Array],
) -> tuple[list[Array], list[tuple[int, slice]]]:
    """Ranges of orbitals to transform, and the location of each given set in their columns.

    Frontier orbitals are part of the occupied ones of their spin, copied bit for bit: a set that is
    part of a wider range is not transformed again.

    Parameters
    ----------
    orbitals : list of (nao, n) float64
        Sets of orbitals.

    Returns
    -------
    ranges : list of (nao, n) float64
        Sets none of which is part of another one.
    places : list of (number, columns)
        For each set, the number of its range and its columns there.
    """
    ranges: list[Array] = []
    for widest_first in sorted(orbitals, key=lambda coeff: -coeff.shape[1]):
        if _place(widest_first, ranges) is None:
            ranges.append(widest_first)
    places = [_place(coeff, ranges) for coeff in orbitals]
    return ranges, [place for place in places if place is not None]


def _place(orbitals: Array, ranges: list[Array]) -> tuple[int, slice] | None:
    """Number of the range that contains these orbitals, (nao, n), and their columns; None if there
    is none."""
    count = orbitals.shape[1]
    for number, wider in enumerate(ranges):
        for first in range(wider.shape[1] - count + 1):
            columns = slice(first, first + count)
            if np.array_equal(wider[:, columns], orbitals):
                return number, columns
    return None
