"""Walk the tiles, collect the pair terms, and turn them into pair energies.

Restricted:    e_OS(i,j) = direct_ij                 e_SS(i,j) = direct_ij - exchange_ij
Unrestricted:  e_OS(i,j) = direct_ij over alpha i, beta j
               e_SS(i,j) = (direct_ij - exchange_ij) / 2 within alpha and within beta

e_SS(i,i) is 0 by symmetry, and stored as that in every precision.
Each energy component is the sum over the whole matrix; the half loop i <= j is mirrored.
Source: Szabo and Ostlund, Modern Quantum Chemistry (1996), section 6.5; DF form: Weigend et al.,
Chem. Phys. Lett. 294, 143 (1998).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Backend, PairTerms, Tile
from dfmp2.checkpoint.encoding import Section
from dfmp2.checkpoint.journal import Journal
from dfmp2.checkpoint.tiles import Progress as Known
from dfmp2.checkpoint.tiles import Tiles
from dfmp2.errors import Interrupted, NumericalError
from dfmp2.mp2 import tiling
from dfmp2.mp2.evaluation import AnyOperand, evaluate
from dfmp2.ranks.team import ALONE, Team
from dfmp2.record import PairEnergies

Progress = Callable[[int, int], None]


def pair_energies(
    operands: Sequence[AnyOperand],
    backend: Backend,
    progress: Progress = lambda done, total: None,
    course: Tiles | None = None,
    team: Team = ALONE,
) -> PairEnergies:
    """Same-spin and opposite-spin pair energies of one (restricted) or two (alpha, beta) spin spaces.

    Parameters
    ----------
    operands : one or two spin spaces, resident in `backend`, on disk or untransformed
    progress : called with (pairs done, all pairs) after every tile
    course : saves finished tiles, and may hold those of a run that was stopped
    team : ranks that share the tiles

    Returns
    -------
    PairEnergies, float64, Eh, on every rank

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
    done = 0
    course = course or Tiles(Journal(), 0)

    def walk(channel: tuple[int, int]) -> PairTerms:
        nonlocal done
        left, right = (operands[s] for s in channel)
        listed, shape = tiles[channel], (left.eps_occ.size, right.eps_occ.size)
        place = {tile: number for number, tile in enumerate(listed)}
        known = course.channel(channel, shape, len(listed), exchange=left is right)
        known.done[:] = team.told(lambda: Section({}, {"done": known.done})).arrays["done"]
        done += sum(tiling.pairs_in(tile) for tile in listed if known.done[place[tile]])
        missing = [tile for tile in listed if not known.done[place[tile]]]
        with course.journal.loop():
            for tile, terms in evaluate(backend, left, right, missing, team, lambda: course.journal.stop_asked):
                _place(known.direct, terms.direct, tile, mirrored=left is right)
                if known.exchange is not None and terms.exchange is not None:
                    _place(known.exchange, terms.exchange, tile, mirrored=True)
                known.done[place[tile]] = True
                done += tiling.pairs_in(tile)
                progress(done, total)
                if not course.journal.stop_asked:  # else what others have begun is waited for
                    course.journal.safe_point()
            course.journal.safe_point()
        _tell(known, team)
        return PairTerms(known.direct, known.exchange)

    if len(operands) == 1:
        closed = walk((0, 0))
        return _checked(PairEnergies(_unsigned(closed.direct), (_same_spin(closed, 1.0),)))
    same = tuple(_same_spin(walk((s, s)), 0.5) for s in (0, 1))
    return _checked(PairEnergies(_unsigned(walk((0, 1)).direct), same))


def _tell(known: Known, team: Team) -> None:
    """Give the matrices of a channel to all ranks.

    Raises
    ------
    Interrupted : a rank has ended, and tiles are missing
    """

    def make() -> Section:
        if not known.done.all():
            raise Interrupted("a rank has ended before all pair energies were there")
        return Section({}, {name: array for name, array in named.items() if array is not None})

    named = {"direct": known.direct, "exchange": known.exchange}
    told = team.told(make).arrays
    for name, array in named.items():
        if array is not None:
            array[:] = told[name]


def _place(matrix: NDArray[np.float64], values: NDArray[np.float64], tile: Tile, *, mirrored: bool) -> None:
    """Put a tile's values where they belong, and below the diagonal when i <= j stands for both."""
    i0, i1, j0, j1, diagonal = tile
    if diagonal:
        values = values + np.triu(values, 1).T
    elif mirrored:
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
