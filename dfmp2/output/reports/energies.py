"""The energies of a result as rows for text, notebooks and pages; those of its pairs, the strongest
and maps of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dfmp2.arrays import Array
from dfmp2.double_hybrids import DISPERSIONS
from dfmp2.mp2.result import MP2Result
from dfmp2.options.methods import MP2, SCS, SOS, Method
from dfmp2.output.document import (
    Block,
    Facts,
    Figure,
    Note,
    Section,
    Table,
    energy_text,
    fixed,
)
from dfmp2.output.drawings.plots import Bar, bars, pair_map
from dfmp2.output.reports import record_facts
from dfmp2.output.reports.method import core_orbitals, damping_name, reference_title
from dfmp2.scf.reference import Reference
from dfmp2.units import KJ_PER_MOL_PER_HARTREE

DISPERSION = "#E(disp) / Eh"


def energies(result: MP2Result) -> tuple[str, str, str, str]:
    """Energy of the mean field, and correlation, dispersion and total energy of the method, Eh; ""
    without a dispersion correction."""
    dispersion = ""
    if result.dispersion is not None:
        dispersion = energy_text(result.dispersion.energy)
    return (
        energy_text(result.mean_field_energy),
        energy_text(result.correlation_energy),
        dispersion,
        energy_text(result.total_energy),
    )


def energy_headings(signs: Iterable[str]) -> list[str]:
    """Headings of `energies`; `signs` as of `mean_field_heading`."""
    return [mean_field_heading(signs), "#E(corr) / Eh", DISPERSION, "#E(total) / Eh"]


def without_empty_dispersion(table: Table) -> Table:
    """The table without the column of dispersion energies if no row has one."""
    place = list(table.heads).index(DISPERSION)
    if any(row[place] for row in table.rows):
        return table
    heads = [*table.heads[:place], *table.heads[place + 1 :]]
    rows = [[*row[:place], *row[place + 1 :]] for row in table.rows]
    return table._replace(heads=heads, rows=rows)


def _solvent_rows(reference: Reference) -> list[EnergyRow]:
    """The energies that a solvent adds to that of the SCF, Eh; none in the gas phase."""
    rows = []
    if reference.solvent_energy is not None:
        contained = "of the reaction field, contained in the reference energy"
        rows.append(EnergyRow("solvent energy", reference.solvent_energy, contained))
    if reference.smd_cds_energy is not None:
        contained = "cavitation, dispersion, solvent structure; contained likewise"
        rows.append(EnergyRow("SMD-CDS energy", reference.smd_cds_energy, contained))
    return rows


class EnergyRow(NamedTuple):
    """An energy that is printed, Eh.

    Attributes
    ----------
    name : str
    energy : float
    meaning : str
        What it is the sum of, or which energy contains it.
    quoted : bool
        Whether people quote it; the screen of a run shows no others.
    alone : str
        Its meaning if the row above is not shown, where different.
    summand : bool
        Whether it is the total energy of the method or a term of it, not a spin component or the
        energy of another scaling.
    """

    name: str
    energy: float
    meaning: str
    quoted: bool = True
    alone: str = ""
    summand: bool = True


def energy_rows(result: MP2Result) -> list[EnergyRow]:
    """All energies of a result in the order in which they are printed."""
    method, reference = result.options.correlation, result.reference
    sign = mean_field_sign(result)
    repulsion = EnergyRow(
        "nuclear repulsion",
        reference.nuclear_repulsion_energy,
        f"contained in {sign}",
        quoted=False,
    )
    rows = [repulsion, *_solvent_rows(reference)]
    if method.kind == "none":
        total = f"{method.title} total"
        rows.append(EnergyRow(total, result.total_energy, f"{sign}, {reference_title(result)}"))
        return rows
    scf = "E(KS)" if reference.xc is not None else "E(HF)"
    rows.append(
        EnergyRow("reference energy", result.scf_total_energy, f"{scf}, {reference_title(result)}")
    )
    if result.functional_energy is not None:
        meaning = f"E(DFT): {method.title} with these orbitals"
        rows.append(EnergyRow("functional energy", result.mean_field_energy, meaning))
    elif sign == "E(EXX)":
        meaning = "E(EXX): HF of these orbitals"
        rows.append(EnergyRow("exact-exchange energy", result.mean_field_energy, meaning))
    rows += _correlation_rows(result, sign)
    for kind in _scalings(result):
        rows += _scaled_rows(result, kind, sign)
    return rows


def mean_field_sign(result: MP2Result) -> str:
    """Symbol of the energy that the correlation energy is added to, e.g. "E(HF)"."""
    method = result.options.correlation
    if result.functional_energy is not None:
        return "E(DFT)"
    if method.double_hybrid or method.kind == "none":
        return "E(KS)"
    if result.reference.xc is None:
        return "E(HF)"
    return "E(EXX)"


def mean_field_heading(signs: Iterable[str]) -> str:
    """Heading of the mean-field energies of several results, whose symbols are given."""
    different = set(signs)
    if len(different) == 1:
        return f"#{different.pop()} / Eh"
    return "#mean field / Eh"


def _correlation_rows(result: MP2Result, sign: str) -> list[EnergyRow]:
    """The spin components, the correlation energy composed of them, and the total energy."""
    method = result.options.correlation
    same, opposite = result.components
    rows = []
    if result.quadrature is None or math.isfinite(same):
        rows.append(EnergyRow("same-spin correlation", same, "E(SS)", summand=False))
    if result.quadrature is None or math.isfinite(opposite):
        rows.append(EnergyRow("opposite-spin correlation", opposite, "E(OS)", summand=False))
    singles = result.mp2_singles_energy
    if singles:
        rows.append(EnergyRow("singles", singles, "E(S), ROHF reference"))
    correlation = result.correlation_energy
    title = method.title
    if method.double_hybrid:
        formula = f"{method.opposite_spin:.6g} OS + {method.same_spin:.6g} SS"
        total = f"{sign} + correlation"
    elif result.quadrature is None:
        if method.plain:
            title = MP2.title
        correlation = same + opposite + singles
        formula = f"E(SS) + E(OS){_singles_term(result)}"
        total = f"{sign} + {formula}"
    else:
        formula = f"{method.formula}{_singles_term(result)}"
        total = f"{sign} + the line above"
    rows.append(EnergyRow(f"{title} correlation", correlation, formula))
    dispersion = result.dispersion
    if dispersion is not None:
        meaning = f"{DISPERSIONS[dispersion.correction]}, {dispersion.program}"
        rows.append(EnergyRow("dispersion", dispersion.energy, meaning))
        total += " + dispersion"
    energy = result.mean_field_energy + correlation + (result.dispersion_energy or 0.0)
    rows.append(EnergyRow(f"{title} total", energy, total))
    return rows


def _singles_term(result: MP2Result) -> str:
    """The last term of a formula if the reference is ROHF."""
    return " + E(S)" if result.mp2_singles_energy else ""


def _scalings(result: MP2Result) -> list[Method]:
    """The scaled methods shown beside MP2; none for a double hybrid."""
    method = result.options.correlation
    if not method.scaled_mp2:
        return []
    return [kind for kind in dict.fromkeys((SCS, SOS, method)) if kind is not MP2]


def _scaled_rows(result: MP2Result, kind: Method, sign: str) -> list[EnergyRow]:
    """Correlation and total energy of a scaling; the correlation energy is quoted only for the
    requested method."""
    same, opposite = result.components
    scaled = kind.apply(opposite, same) + result.mp2_singles_energy
    formula = f"{kind.opposite_spin:.6g} OS + {kind.same_spin:.6g} SS{_singles_term(result)}"
    of_run = kind == result.options.correlation
    alone = f"{sign} + {formula}" if not of_run else ""
    return [
        EnergyRow(f"{kind.title} correlation", scaled, formula, quoted=of_run),
        EnergyRow(
            f"{kind.title} total",
            result.mean_field_energy + scaled,
            f"{sign} + the line above",
            alone=alone,
            summand=of_run,
        ),
    ]


def quoted_energies(result: MP2Result, *, summands_alone: bool = False) -> Table:
    """The energies that people quote, Eh; with `summands_alone` without spin components and other
    scalings."""
    rows = [
        (row.name, energy_text(row.energy), row.alone or row.meaning)
        for row in energy_rows(result)
        if row.quoted and (row.summand or not summands_alone)
    ]
    return Table("", ("energy", "#Eh", "meaning"), rows)


def energies_section(result: MP2Result) -> Section:
    method, quadrature = result.options.correlation, result.quadrature
    sources = [
        f"{kind.title}: {kind.source}"
        for kind in _scalings(result) or (method,)
        if kind.source != "user"
    ]
    if method.regularised:
        sources.append(f"kappa {result.options.regulariser:g} per Eh")
    rows = [
        (
            row.name,
            energy_text(row.energy),
            fixed(KJ_PER_MOL_PER_HARTREE * row.energy),
            row.meaning,
        )
        for row in energy_rows(result)
    ]
    blocks: list[Block] = [Table("; ".join(sources), ("energy", "#Eh", "#kJ/mol", "meaning"), rows)]
    if method.kind == "none":
        return Section("energies", "Energies", blocks)
    if quadrature is None:
        blocks.append(_component_bars(result))
    else:
        blocks.append(Facts(record_facts(quadrature, "quadrature: ", leave=("energy",))))
    if result.dispersion is not None:
        blocks.append(Facts([("dispersion", damping_name(result.dispersion))]))
    if result.correlation_energy == 0:
        none = "There is no pair of electrons to correlate: the correlation energy is zero."
        blocks.insert(0, Note("info", none))
    return Section("energies", "Energies", blocks)


def _component_bars(result: MP2Result) -> Figure:
    """The correlation energy by spin component, of MP2 and of the scalings shown beside it."""
    method = result.options.correlation
    same, opposite = result.components
    if method.double_hybrid:
        parts = (method.opposite_spin * opposite, method.same_spin * same)
        drawn = [Bar(method.title, parts, energy_text(result.correlation_energy))]
    else:
        title = MP2.title if method.plain else method.title
        unscaled = same + opposite + result.mp2_singles_energy
        drawn = [Bar(title, (opposite, same), energy_text(unscaled))]
    for kind in _scalings(result):
        scaled = kind.apply(opposite, same) + result.mp2_singles_energy
        parts = (kind.opposite_spin * opposite, kind.same_spin * same)
        drawn.append(Bar(kind.title, parts, energy_text(scaled)))
    heading = "Correlation energy by spin component"
    draw = partial(bars, heading, drawn, ("opposite spin", "same spin"))
    return Figure(draw, "Magnitude of the correlation energy, Eh, by spin component after scaling.")


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
    E(OS) + E(SS), before scaling."""
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


def frozen_before_pairs(result: MP2Result) -> dict[str, tuple[int, int]]:
    """Frozen orbitals before the first one of the rows and of the columns of each channel."""
    alpha, beta = core_orbitals(result)
    return {
        "opposite_spin": (alpha, beta),
        "same_spin": (alpha, alpha),
        "same_spin_alpha": (alpha, alpha),
        "same_spin_beta": (beta, beta),
    }


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
        f"Strongest pairs ({len(rows)} of {len(pairs)}), with their share of the sum of all pairs, "
        "before scaling; both orders (ij, ji) are counted; orbitals are numbered from "
        f"1{frozen}. dfmp2 show --pairs prints all of them"
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
    frozen_of = frozen_before_pairs(result)
    channels = {
        name.replace("_", " "): matrix
        for name, matrix in result.pairs.channels().items()
        if matrix.size
    }
    largest = max([float(np.abs(_blocks(matrix)).max()) for matrix in channels.values()], default=0)
    maps = [
        _pair_map(name, matrix, frozen_of[name.replace(" ", "_")], largest)
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
