"""The map of pair energies and the strongest pairs.

e_ij is the contribution of the occupied pair ij to E(corr); E_OS and E_SS are the sums of their matrices. In the map
the side of a square falls with the logarithm of |e_ij|, so that it can be read without colour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dfmp2.record import Array
from dfmp2.report import svg
from dfmp2.report.numbers import ABSENT, energy
from dfmp2.report.page import Block, Cell, Column, Figure, Table, Text, cells, columns
from dfmp2.report.style import LEVELS
from dfmp2.result import MP2Result

MOST_ROWS = 20  # of a map; more orbitals are put together in blocks
STRONGEST = 15
DECADES = 4.0  # that the scale spans
SIDE = 460.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of occupied orbitals, numbered from 1 over all orbitals; energies in Eh, both orders counted."""

    channel: str
    i: int
    j: int
    opposite: float
    same: float

    @property
    def total(self) -> float:
        """Contribution to E(corr), Eh."""
        return self.opposite + self.same


class Map(NamedTuple):
    """A map to draw: its title, the sums over blocks, the size of the matrix and of a block, the numbers of the frozen
    orbitals of rows and columns, and what it shows."""

    title: str
    shown: Array
    shape: tuple[int, ...]
    block: int
    first: tuple[int, int]
    said: str


def pair_blocks(result: MP2Result) -> tuple[Block, ...]:
    """Maps of all channels and the table of the strongest pairs."""
    return (*map(_map, _maps(result)), _strongest(result))


def list_pairs(result: MP2Result) -> list[Pair]:
    """All distinct pairs, most negative first."""
    opposite, *same = (*result.pairs.channels().values(),)
    core = _cores(result)
    found = []
    if result.reference.nspin == 1:
        for i in range(len(opposite)):
            for j in range(i + 1):
                both = 1.0 if i == j else 2.0
                found.append(
                    Pair("", j + 1 + core[0], i + 1 + core[0], both * opposite[i, j], both * float(same[0][i, j]))
                )
    else:
        found += [
            Pair("alpha beta", i + 1 + core[0], j + 1 + core[1], float(value), 0.0)
            for (i, j), value in np.ndenumerate(opposite)
        ]
        for name, matrix, frozen in zip(("alpha alpha", "beta beta"), same, core, strict=True):
            found += [
                Pair(name, j + 1 + frozen, i + 1 + frozen, 0.0, 2.0 * float(matrix[i, j]))
                for i in range(len(matrix))
                for j in range(i)
            ]
    return sorted(found, key=lambda pair: (pair.total, pair.channel, pair.i, pair.j))


def _cores(result: MP2Result) -> tuple[int, int]:
    """Frozen core orbitals of each spin; one with fewer electrons than the core freezes all it has."""
    sizes = result.sizes
    alpha, beta = (
        sizes.nmo - nocc - nvir - sizes.frozen_virtual for nocc, nvir in zip(sizes.nocc, sizes.nvir, strict=True)
    )
    return alpha, beta


def _strongest(result: MP2Result) -> Table:
    pairs, total = list_pairs(result), result.mp2_correlation_energy
    eps, core = result.reference.mo_energy, _cores(result)
    open_shell = result.reference.nspin == 2
    rows = []
    for pair in pairs[:STRONGEST]:
        spins = {"": (0, 0), "alpha beta": (0, 1), "alpha alpha": (0, 0), "beta beta": (1, 1)}[pair.channel]
        levels = ", ".join(f"{eps[spin][k - 1]:.3f}" for spin, k in zip(spins, (pair.i, pair.j), strict=True))
        share = Cell(f"{100 * pair.total / total:.2f}", pair.total / total) if total else Cell(ABSENT)
        energies = [Cell(f"{value:z.8f}", value) for value in (pair.opposite, pair.same, pair.total)]
        names = (Cell(f"{pair.i}, {pair.j}", pair.i + pair.j / 1e6), *([Cell(pair.channel)] if open_shell else []))
        rows.append(cells(*names, levels, *energies, share))
    head = ("i, j", *(["spins"] if open_shell else []), "#e(i), e(j) / Eh", "#E(OS) / Eh")
    numbering = (
        f"orbitals are numbered from 1, the first {core[0]} of which are frozen"
        if core[0]
        else ("orbitals are numbered from 1")
    )
    caption = (
        f"The {len(rows)} strongest of {len(pairs)} pairs, with their share of E(corr); both orders (ij, ji) "
        f"are counted; {numbering}. "
        "dfmp2 show --pairs prints all of them"
    )
    return Table(caption, columns(*head, "#E(SS) / Eh", "#sum / Eh", "#share / %"), tuple(rows), sortable=True)


def _maps(result: MP2Result) -> list[Map]:
    """The maps of a result, none for a spin without correlated orbitals."""
    core = _cores(result)
    opposite, *same = result.pairs.channels().values()
    if result.reference.nspin == 1:
        # Both matrices are symmetric: one map shows one above, the other below the diagonal.
        block = _block(opposite)
        both = np.triu(_summed(opposite, block)) + np.tril(_summed(same[0], block), -1)
        missing = "its own diagonal is zero" if block == 1 else "its diagonal blocks are left out"
        said = f"opposite spin on and above the diagonal, same spin below it ({missing})"
        found = [Map("Pair energies", both, opposite.shape, block, (core[0], core[0]), said)]
    else:
        parts = [("opposite spin", opposite, core, "rows are alpha, columns beta orbitals")] + [
            (f"same spin, {spin}", matrix, (first, first), "both orders of a pair are shown")
            for spin, matrix, first in zip(("alpha", "beta"), same, core, strict=True)
        ]
        found = [
            Map(f"Pair energies, {name}", _summed(m, _block(m)), m.shape, _block(m), first, said)
            for name, m, first, said in parts
            if m.size
        ]
    return [one for one in found if one.shown.size]


def _map(given: Map) -> Figure | Text:
    title, shown, shape, block, first, said = given
    if not np.any(shown):
        return Text(f"{title}: all are zero.")
    largest = float(np.abs(shown).max())
    rows, cols = shown.shape
    left, top = 46.0, 26.0
    cell = min(34.0, (SIDE - left) / max(rows, cols))
    width, bottom = left + cell * cols, top + cell * rows
    parts = [svg.element("rect", x=left, y=top, width=cell * cols, height=cell * rows, cls="grid")]
    for (i, j), value in np.ndenumerate(shown):
        name = f"{_range(i, block, shape[0], first[0])}, {_range(j, block, shape[1], first[1])}"
        parts.append(_square(left + cell * j, top + cell * i, cell, float(value), largest, name))
    every = max(1, math.ceil(max(rows, cols) * 15 / (SIDE - left)))
    for i in range(0, rows, every):
        parts.append(svg.text(left - 6, top + cell * (i + 0.5) + 4, str(first[0] + i * block + 1), "small end"))
    for j in range(0, cols, max(every, math.ceil(24 / cell))):
        parts.append(svg.text(left + cell * (j + 0.5), top - 7, str(first[1] + j * block + 1), "small middle"))
    parts += _legend(left, bottom + 14, largest)
    drawing = svg.drawing(max(width + 8, 440.0), bottom + 62, f"{title}, orbital by orbital", parts)
    grouped = (
        f" {shape[0]} by {shape[1]} values are too many to show: each square is the sum over a block of "
        f"{block} by {block} orbitals."
        if block > 1
        else ""
    )
    caption = (
        f"{title}: {said}.{grouped} The side of a square falls with the logarithm of the magnitude; smaller than "
        f"{10**-DECADES:g} of the largest is a dot. Point at a square for its value, or open the table. Outlined "
        "squares are positive."
    )
    return Figure(drawing, caption, _values(title, shown, shape, block, first))


def _values(title: str, shown: Array, shape: tuple[int, ...], block: int, first: tuple[int, int]) -> Table:
    """The numbers of a map."""
    heads = (Column(_range(j, block, shape[1], first[1]), numeric=True) for j in range(shown.shape[1]))
    rows = (cells(_range(i, block, shape[0], first[0]), *map(energy, row)) for i, row in enumerate(shown.tolist()))
    return Table(
        f"Values of the map: {title[0].lower()}{title[1:]}, Eh", (Column("i \\ j"), *heads), tuple(rows), folded=True
    )


def _block(matrix: Array) -> int:
    """Orbitals put together, so that a map has at most MOST_ROWS rows and columns."""
    return max(1, math.ceil(max(len(matrix), len(matrix.T)) / MOST_ROWS))


def _summed(matrix: Array, block: int) -> Array:
    """Sums over blocks of `block` by `block` elements."""
    if not matrix.size:
        return matrix
    starts = [np.arange(0, n, block) for n in matrix.shape]
    return np.asarray(np.add.reduceat(np.add.reduceat(matrix, starts[0], axis=0), starts[1], axis=1))


def _range(place: int, block: int, count: int, first: int) -> str:
    low, high = place * block + 1, min((place + 1) * block, count)
    return str(first + low) if low == high else f"{first + low} to {first + high}"


def _square(x: float, y: float, cell: float, value: float, largest: float, name: str) -> str:
    share = _share(value, largest)
    side = max(1.0, (cell - 1.5) * (0.15 + 0.85 * share))
    at = {"x": x + (cell - side) / 2, "y": y + (cell - side) / 2, "width": side, "height": side}
    cls = "positive" if value > 0 and share > 0 else f"l{round(share * (LEVELS - 1))}"
    if not name:
        return svg.element("rect", cls=cls, **at)
    return svg.titled("rect", f"{name}: {energy(value)} Eh", cls=cls, **at)


def _share(value: float, largest: float) -> float:
    """1 for the largest magnitude, 0 for DECADES below it and less."""
    if value == 0.0:
        return 0.0
    return min(1.0, max(0.0, 1.0 + math.log10(abs(value) / largest) / DECADES))


def _legend(x: float, y: float, largest: float) -> list[str]:
    parts = []
    for decade in range(int(DECADES) + 1):
        value = -largest * 10.0**-decade
        parts.append(_square(x + 82 * decade, y, 20.0, value, largest, ""))
        parts.append(svg.text(x + 82 * decade + 10, y + 36, f"{value:.1e}", "small middle"))
    return [*parts, svg.text(x + 82 * DECADES + 42, y + 36, "Eh", "small")]
