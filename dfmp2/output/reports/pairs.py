"""Pair energies: the strongest, and maps of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dfmp2.arrays import Array
from dfmp2.mp2.result import MP2Result
from dfmp2.output.document import (
    Block,
    Figure,
    Section,
    Table,
    energy_text,
    fixed,
)
from dfmp2.output.drawings.maps import pair_map
from dfmp2.output.reports.method import core_orbitals

MOST_ROWS = 20  # rows of a pair map; more orbitals are grouped in blocks
STRONGEST = 15  # pairs listed


class Pair(NamedTuple):
    """A pair of occupied orbitals, numbered from 1 over all orbitals; energies in Eh, ij and ji
    combined."""

    total: float
    spins: str
    i: int
    j: int
    opposite: float
    same: float


# Spins of a pair -> spins of i and j
SPINS = {"": (0, 0), "alpha beta": (0, 1), "alpha alpha": (0, 0), "beta beta": (1, 1)}


def list_pairs(result: MP2Result) -> list[Pair]:
    """All distinct pairs, most negative first; e_ij is the contribution of the pair ij to
    E(corr)."""
    if result.pairs.summed:
        return []
    opposite, *same = result.pairs.channels().values()
    if result.reference.nspin == 1:
        both = 2.0 - np.eye(len(opposite))
        places = zip(*np.triu_indices(len(opposite)), strict=True)
        found = [
            ("", i, j, both[i, j] * opposite[i, j], both[i, j] * same[0][i, j]) for i, j in places
        ]
    else:
        found = [("alpha beta", i, j, value, 0.0) for (i, j), value in np.ndenumerate(opposite)]
        for spins, matrix in zip(("alpha alpha", "beta beta"), same, strict=True):
            places = zip(*np.triu_indices(len(matrix), 1), strict=True)
            found += [(spins, i, j, 0.0, 2.0 * matrix[i, j]) for i, j in places]
    core = core_orbitals(result)
    return sorted(
        Pair(
            float(os + ss),
            spins,
            int(i) + 1 + core[SPINS[spins][0]],
            int(j) + 1 + core[SPINS[spins][1]],
            os,
            ss,
        )
        for spins, i, j, os, ss in found
    )


def pairs_section(result: MP2Result) -> Section:
    core = core_orbitals(result)
    total = result.pairs.correlation_energy
    eps = result.reference.mo_energy
    pairs = list_pairs(result)
    rows = []
    for pair in pairs[:STRONGEST]:
        levels = ", ".join(
            f"{eps[spin][k - 1]:.3f}" for spin, k in zip(SPINS[pair.spins], pair[2:4], strict=True)
        )
        values = (f"{value:z.8f}" for value in (pair.opposite, pair.same, pair.total))
        share = fixed(100 * pair.total / total if total else math.nan)
        rows.append((f"{pair.i}, {pair.j}", pair.spins or "both", levels, *values, share))
    if core[0]:
        frozen = f", the first {core[0]} of which are frozen"
    else:
        frozen = ""
    caption = (
        f"Strongest pairs ({len(rows)} of {len(pairs)}), with their share of E(corr); both orders "
        f"(ij, ji) are counted; orbitals are numbered from 1{frozen}. dfmp2 show --pairs prints "
        "all of them"
    )
    heads = (
        "i, j",
        "spins",
        "#e(i), e(j) / Eh",
        "#E(OS) / Eh",
        "#E(SS) / Eh",
        "#sum / Eh",
        "#share / %",
    )
    firsts = {"opposite_spin": core, "same_spin_beta": (core[1], core[1])}
    channels = {
        name.replace("_", " "): matrix
        for name, matrix in result.pairs.channels().items()
        if matrix.size
    }
    largest = max([float(np.abs(_blocks(matrix)).max()) for matrix in channels.values()], default=0)
    maps = [
        _pair_map(name, matrix, firsts.get(name.replace(" ", "_"), (core[0], core[0])), largest)
        for name, matrix in channels.items()
    ]
    return Section("pairs", "Pair energies", [*maps, Table(caption, heads, rows, sortable=True)])


def _block_size(matrix: Array) -> int:
    """Number of orbitals per square of the map."""
    largest: int = max(matrix.shape)
    return max(1, math.ceil(largest / MOST_ROWS))


def _blocks(matrix: Array) -> Array:
    """Sums over the blocks of orbitals that form the squares of a map, Eh."""
    starts = [np.arange(0, n, _block_size(matrix)) for n in matrix.shape]
    return np.asarray(
        np.add.reduceat(np.add.reduceat(matrix, starts[0], axis=0), starts[1], axis=1)
    )


def _pair_map(name: str, matrix: Array, first: Sequence[int], largest: float) -> Block:
    """The matrix of a channel as a figure; a large matrix is shown as sums over blocks of orbitals.

    Parameters
    ----------
    largest : float
        Largest magnitude over all channels, whose maps share one scale, Eh.
    """
    if not np.any(matrix):
        return f"Pair energies, {name}: all are zero."
    block = _block_size(matrix)
    starts = [np.arange(0, n, block) for n in matrix.shape]
    sums = _blocks(matrix)
    names = [
        [
            f"{core + k + 1} to {core + min(k + block, n)}" if block > 1 else f"{core + k + 1}"
            for k in found.tolist()
        ]
        for found, n, core in zip(starts, matrix.shape, first, strict=True)
    ]
    grouped = (
        f" {matrix.shape[0]} by {matrix.shape[1]} values are too many to show: each square is the "
        f"sum over a block of {block} by {block} orbitals."
    )
    caption = (
        f"Pair energies, {name}.{grouped if block > 1 else ''} The side of a square falls with the "
        "logarithm of the magnitude, in one scale for all maps; smaller than 0.0001 of the largest "
        "is a dot. Outlined squares are positive."
    )
    rows = [
        (name, *map(energy_text, row)) for name, row in zip(names[0], sums.tolist(), strict=True)
    ]
    table = Table(
        f"Values of the map: {name}, Eh",
        ["i \\ j", *(f"#{n}" for n in names[1])],
        rows,
        details=True,
    )
    return Figure(
        partial(
            pair_map,
            f"Pair energies, {name}, orbital by orbital",
            sums,
            names[0],
            names[1],
            largest,
        ),
        caption,
        table,
    )
