"""The energies of a result as rows for text, notebooks and pages."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

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
from dfmp2.output.drawings.plots import Bar, bars
from dfmp2.output.reports.method import damping_name, reference_title
from dfmp2.output.reports.records import record_facts
from dfmp2.scf.reference import Reference
from dfmp2.units import KJ_PER_MOL_PER_HARTREE


def energies(result: MP2Result) -> tuple[str, str, str]:
    """Energy of the mean field, and correlation and total energy of the method, Eh."""
    return (
        energy_text(result.mean_field_energy),
        energy_text(result.correlation_energy),
        energy_text(result.total_energy),
    )


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
