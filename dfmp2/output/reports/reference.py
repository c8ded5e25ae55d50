"""Reports on the mean field."""

from __future__ import annotations

import math
from functools import partial

from dfmp2.mp2.error_estimates import kohn_sham_grid_error
from dfmp2.mp2.result import Calculated, MP2Result
from dfmp2.output.document import (
    Block,
    Facts,
    Figure,
    Note,
    Section,
    Table,
    difference,
    energy_text,
    fixed,
    size,
)
from dfmp2.output.drawings.plots import Curve, curves
from dfmp2.output.reports.method import RELATIVITY, signed_energy
from dfmp2.output.reports.records import FITTING, LABELS, OF_CORRELATION, record_facts
from dfmp2.scf.reference import GIVEN, Reference, Solutions, Stability

ITERATION = ("#iteration", "#E(SCF) / Eh", "#change / Eh", "#orbital gradient / Eh")


def reference_section(result: Calculated) -> Section:
    reference, stability = result.reference, result.reference.stability
    facts = dict(record_facts(reference, leave=("grid_level", *_among_energies(result)))) | {
        LABELS["kind"]: reference.name,
        "relativity": RELATIVITY[result.options.relativity],
    }
    name, spin = spin_fact(result)
    facts[name] = spin
    facts |= _grid_facts(result)
    if stability is None:
        examined = [("orbital stability", "not examined")]
    else:
        examined = record_facts(stability)
    left_out: tuple[str, ...] = FITTING
    if result.options.correlation.kind == "none":
        left_out = (*FITTING, *OF_CORRELATION)
    blocks: list[Block] = [
        Facts([*facts.items(), *examined, *record_facts(result.diagnostics, leave=left_out)])
    ]
    if stability is not None and stability.unstable:
        blocks.insert(0, Note("warning", _lower_solutions(stability)))
    blocks.append(_iterations(reference))
    if reference.solutions is not None and len(reference.solutions.energy) > 1:
        blocks.append(_solutions(reference.solutions))
    name = "Hartree-Fock" if reference.xc is None else "Kohn-Sham"
    return Section("reference", f"{name} reference", blocks)


def spin_fact(result: Calculated) -> tuple[str, str]:
    """<S^2> of the reference, with the value of a pure spin state."""
    spin = (result.molecule.multiplicity - 1) / 2
    (name, value) = next(
        fact for fact in record_facts(result.reference) if fact[0] == LABELS["spin_square"]
    )
    return name, f"{value} (pure spin state: {spin * (spin + 1):.2f})"


def _among_energies(result: Calculated) -> list[str]:
    """The fields of the reference that `energy_rows` already shows."""
    if not isinstance(result, MP2Result):
        return []
    names = [
        "scf_total_energy",
        "nuclear_repulsion_energy",
        "functional_energy",
        "solvent_energy",
        "smd_cds_energy",
    ]
    if result.mean_field_name == "hf_total_energy":
        names.append("exx_total_energy")
    return names


def _lower_solutions(stability: Stability) -> str:
    """Kinds of instability, and by how much at least the lower solutions lie below."""
    parts = []
    for kind, gain in stability.gains.items():
        if gain:
            parts.append(f"{kind}: at least {size(gain)} Eh below this one")
        else:
            parts.append(kind)
    return f"A lower SCF solution exists ({'; '.join(parts)})."


def _grid_facts(result: Calculated) -> dict[str, str]:
    """Measured grid error of E(KS), which is not among the energies of the error budget."""
    found = result.reference.grid_error
    error = kohn_sham_grid_error(result.reference, len(result.molecule.real_symbols))
    if found is None or error is None or error.value is None:
        return {}
    return {
        "finer grid": f"{found.finer}, {found.finer_points} points",
        "grid error of "
        "E(KS)": f"{signed_energy(found.scf_error)} Eh, at most about {size(error.value)} Eh",
    }


def _solutions(found: Solutions) -> Table:
    rows = [
        (
            row["start"],
            row["origin"],
            energy_text(row["energy"]) if math.isfinite(row["energy"]) else "not converged",
            *(fixed(row[name], 4) for name in ("spin_square", "lowest_eigenvalue")),
            row["kind"],
            "<- used" if number == found.chosen else "",
        )
        for number, row in enumerate(found.rows(), start=1)
    ]
    heads = (
        "#start",
        "start orbitals",
        "#E(SCF)",
        "#<S^2>",
        "#lowest eigenvalue",
        "kind",
        "chosen",
    )
    return Table("SCF solutions in the order in which they were found, Eh", heads, rows)


def _iterations(reference: Reference) -> Block:
    """Table of energy and gradient by SCF iteration."""
    if reference.history is None or not len(reference.history) or reference.ladder == GIVEN:
        return Note(
            "info",
            "The iterations of this SCF are not recorded: it was done elsewhere, or needed none.",
        )
    found = [(n, *row) for n, row in enumerate(reference.history.tolist(), start=1)]
    drawn = [
        Curve("orbital gradient", [(n, math.log10(g)) for n, _, _, g in found if g > 0]),
        Curve("change of the energy", [(n, math.log10(abs(c))) for n, _, c, _ in found if c]),
    ]
    rows = [
        (n, energy_text(e), difference(change), difference(gradient))
        for n, e, change, gradient in found
    ]
    return Figure(
        partial(curves, "Convergence of the SCF", drawn, "iteration", "log10 of the value in Eh"),
        "Orbital gradient and change of the energy in each SCF iteration, powers of ten of Eh.",
        Table("SCF iterations", ITERATION, rows, details=True),
    )
