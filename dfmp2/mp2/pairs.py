"""Pair energies: walk the tiles on a backend, collect the pair terms, and turn them into energies.

Restricted:    e_OS(i,j) = direct_ij                 e_SS(i,j) = direct_ij - exchange_ij
Unrestricted:  e_OS(i,j) = direct_ij over alpha i, beta j
               e_SS(i,j) = (direct_ij - exchange_ij) / 2 within alpha and within beta

e_SS(i,i) is 0 by symmetry, and stored as that in every precision.
Each energy component is the sum over the whole matrix; the half loop i <= j is mirrored.
Source: Szabo and Ostlund, Modern Quantum Chemistry (1996), section 6.5; DF form: Weigend et al.,
Chem. Phys. Lett. 294, 143 (1998).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends import tiling
from dfmp2.backends.base import Backend, Operand, PairTerms, Source, Tile
from dfmp2.errors import NumericalError
from dfmp2.mp2.result import PairEnergies


def evaluate(
    backend: Backend, left: Source, right: Source, tiles: list[Tile]
) -> Generator[tuple[Tile, PairTerms], None, None]:
    """Tiles with their terms as they finish; every entry has its own place, so the order is free.

    Close it (`contextlib.closing`) where it may be left early: nothing is begun after that.
    """
    for near, far, local in left.batches(backend, right, tiles) if tiles else ():
        with closing(_resident(backend, near, far, list(local))) as results:
            for tile, terms in results:
                yield local[tile], terms


def _resident(
    backend: Backend, left: Operand, right: Operand, tiles: list[Tile]
) -> Generator[tuple[Tile, PairTerms], None, None]:
    """Every worker takes the next tile when it is idle, or the next of those whose part of the operands it holds."""
    workers, divided = backend.limits.workers, backend.limits.divided
    if workers == 1:
        for tile in tiles:
            yield tile, backend.pair_terms(left, right, tile)
        return
    owners = backend.owners(left, right, tiles) if divided else [0] * len(tiles)
    pools = [ThreadPoolExecutor(1) for _ in range(workers)] if divided else [ThreadPoolExecutor(workers)]
    try:
        futures = {
            pools[owner].submit(backend.pair_terms, left, right, tile): tile
            for tile, owner in zip(tiles, owners, strict=True)
        }
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)  # an error or Ctrl-C does not wait for the rest


Progress = Callable[[int, int], None]
TileKey = tuple[int, int, int, Tile]  # pass (1 repeats all in float64), spins of i and j, tile
OnTile = Callable[[TileKey, PairTerms], None]


def pair_energies(
    operands: Sequence[Source],
    backend: Backend,
    progress: Progress = lambda done, total: None,
    number: int = 0,
    done: Mapping[TileKey, PairTerms] | None = None,
    on_tile: OnTile = lambda key, terms: None,
) -> PairEnergies:
    """Same-spin and opposite-spin pair energies of one (restricted) or two (alpha, beta) spin spaces.

    Parameters
    ----------
    operands : one or two spin spaces, resident in `backend` or to be made so
    progress : called with (pairs done, all pairs) after every tile
    number : of the pass over all pairs, part of the keys of tiles
    done : finished tiles, which are not computed again
    on_tile : called with every other tile when it is finished; what it raises ends the work

    Returns
    -------
    PairEnergies, float64, Eh

    Raises
    ------
    NumericalError : a pair term is NaN or infinite; the pair is named
    """
    sizes = [operand.eps_occ.size for operand in operands]
    rows = [operand.b.shape[1] * operand.b.shape[2] for operand in operands]
    tiles = {(s, s): tiling.triangle(size, backend.limits, rows[s]) for s, size in enumerate(sizes)}
    if len(operands) == 2:
        tiles[0, 1] = tiling.rectangle(sizes[0], sizes[1], backend.limits, max(rows))
    total = sum(tiling.pairs_in(tile) for channel in tiles.values() for tile in channel)
    reached, finished = 0, done or {}

    def walk(left_spin: int, right_spin: int) -> PairTerms:
        nonlocal reached
        left, right = operands[left_spin], operands[right_spin]
        same, shape = left is right, (left.eps_occ.size, right.eps_occ.size)
        found = PairTerms(np.zeros(shape), np.zeros(shape) if same else None)
        missing = []
        for tile in tiles[left_spin, right_spin]:
            terms = finished.get((number, left_spin, right_spin, tile))
            if terms is None:
                missing.append(tile)
            else:
                _place(found, terms, tile)
                reached += tiling.pairs_in(tile)
        with closing(evaluate(backend, left, right, missing)) as results:
            for tile, terms in results:
                _place(found, terms, tile)
                reached += tiling.pairs_in(tile)
                progress(reached, total)
                on_tile((number, left_spin, right_spin, tile), terms)
        return found

    if len(operands) == 1:
        closed = walk(0, 0)
        return _checked(PairEnergies(_unsigned(closed.direct), (_same_spin(closed, 1.0),)))
    same = tuple(_same_spin(walk(s, s), 0.5) for s in (0, 1))
    return _checked(PairEnergies(_unsigned(walk(0, 1).direct), same))


def _place(matrices: PairTerms, terms: PairTerms, tile: Tile) -> None:
    """Put a tile's values where they belong; within one spin, i <= j stands for both."""
    i0, i1, j0, j1, diagonal = tile
    for matrix, values in zip(matrices, terms, strict=True):
        if matrix is None or values is None:
            continue
        if diagonal:
            values = values + np.triu(values, 1).T
        elif matrices.exchange is not None:
            matrix[j0:j1, i0:i1] = values.T
        matrix[i0:i1, j0:j1] = values


def _checked(pairs: PairEnergies) -> PairEnergies:
    for label, matrix in pairs.channels().items():
        bad = np.argwhere(~np.isfinite(matrix))
        if bad.size:
            i, j = bad[0] + 1
            raise NumericalError(
                f"the {label} energy of active occupied pair ({i}, {j}) is {matrix[i - 1, j - 1]}: the orbitals or "
                "integrals hold NaN or infinite numbers; check the geometry and the basis, then report this"
            )
    return pairs


def _same_spin(terms: PairTerms, factor: float) -> NDArray[np.float64]:
    if terms.exchange is None:
        raise TypeError("same-spin energies need the exchange terms of one spin space")
    energies = factor * (terms.direct - terms.exchange)
    np.einsum("ii->i", energies)[:] *= 0.0  # direct_ii = exchange_ii; NaN and infinity stay, to be found
    return _unsigned(energies)


def _unsigned(energies: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same with 0 for -0, which a vanishing integral over a negative denominator gives."""
    return energies + 0.0
