"""A result as a plain dictionary (what `--json` prints) and as a small HTML table (for notebooks)."""

from __future__ import annotations

import hashlib
import html
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dfmp2.basis import BasisSet
from dfmp2.molecule import Molecule, field_energy
from dfmp2.record import Check, Reference

if TYPE_CHECKING:
    from dfmp2.result import MP2Result


def to_dict(result: MP2Result) -> dict[str, Any]:
    """Every quantity of interest under a flat, documented name; energies in hartree, times in s.

    The keys are those of README, section "JSON". Non-finite numbers become None, which JSON can hold.
    """
    reference, molecule, certificate, check = result.reference, result.molecule, result.certificate, result.check
    payload = {
        "name": molecule.name,
        "formula": molecule.formula,
        "charge": molecule.charge,
        "multiplicity": molecule.multiplicity,
        "point_charges": describe_field(molecule, result.orbital_basis),
        "reference": reference.kind,
        "relativity": result.options.relativity,
        "scf_type": reference.scf_type,
        "basis": result.orbital_basis.name,
        "scf_auxbasis": None if result.scf_fitting is None else describe(result.scf_fitting),
        "auxbasis": describe(result.mp2_fitting),
        "nuclear_repulsion_energy": reference.nuclear_repulsion_energy,
        "scf_total_energy": result.scf_total_energy,
        "scf_iterations": reference.cycles,
        "mp2_same_spin_correlation_energy": result.mp2_same_spin_correlation_energy,
        "mp2_opposite_spin_correlation_energy": result.mp2_opposite_spin_correlation_energy,
        "mp2_correlation_energy": result.mp2_correlation_energy,
        "mp2_total_energy": result.mp2_total_energy,
        "scs_mp2_correlation_energy": result.scs_mp2_correlation_energy,
        "sos_mp2_correlation_energy": result.sos_mp2_correlation_energy,
        "scf_fitting_error": fitting_error(result.scf_fitting, molecule),
        "mp2_fitting_error": fitting_error(result.mp2_fitting, molecule),
        "backend": result.backend,
        "backend_reason": result.backend_reason,
        "precision": result.precision,
        "precision_certificate": None if certificate is None else asdict(certificate),
        "frozen_core_orbitals": result.sizes.frozen_core,
        "spin_square": reference.spin_square,
        **scf_solution(reference),
        "sizes": asdict(result.sizes),
        "diagnostics": asdict(result.diagnostics),
        "timings": asdict(result.timings),
        "predicted_timings": asdict(result.predicted),
        "memory": asdict(result.memory),
        "storage": None if result.storage is None else asdict(result.storage),
        "check": None if check is None else _check(check),
        "provenance": asdict(result.provenance) | {"input_sha256": hashlib.sha256(molecule.text.encode()).hexdigest()},
    }
    if result.preparation is not None:
        payload["preparation"] = asdict(result.preparation)
    if result.ranks is not None:
        payload["ranks"] = asdict(result.ranks)
    if result.scaled_mp2_correlation_energy is not None:
        payload["scaled_mp2_correlation_energy"] = result.scaled_mp2_correlation_energy
    return {key: plain(value) for key, value in payload.items()}


def scf_solution(reference: Reference) -> dict[str, Any]:
    """Stability of the SCF solution, and the others that were found, None where none was looked for."""
    found = reference.solutions
    return {
        "scf_start": reference.start,
        "stability": None if reference.stability is None else asdict(reference.stability),
        "scf_solutions": None if found is None else {"chosen": found.chosen, "found": found.rows()},
    }


def describe_field(molecule: Molecule, basis: BasisSet) -> dict[str, float] | None:
    """Number of point charges, their sum (e) and their energy with the nuclei (Eh); None where there are none."""
    if molecule.point_charges is None:
        return None
    return {
        "count": len(molecule.point_charges),
        "total_charge": math.fsum(molecule.point_charges[:, 3]),
        "nuclear_energy": field_energy(molecule, basis.ecp_electrons),
    }


def say_field(molecule: Molecule, basis: BasisSet) -> str:
    """The point charges around a molecule in one line, "" where there are none."""
    found = describe_field(molecule, basis)
    if found is None:
        return ""
    count, energy = int(found["count"]), found["nuclear_energy"]
    return (
        f"{count} point charge{'s' * (count != 1)}, {found['total_charge']:+.6f} e in all; {energy:.10f} Eh with the "
        "nuclei, contained in their repulsion; their energy among themselves is left out"
    )


def describe(basis: BasisSet) -> str:
    """Names of the sets in a basis, e.g. "cc-pvdz-ri" or "cc-pvdz-jkfit, def2-universal-jkfit"."""
    return ", ".join(dict.fromkeys(element.name for element in basis.elements.values()))


def fitting_error(basis: BasisSet | None, molecule: Molecule) -> dict[str, Any] | None:
    """Error of a fitting set, Eh: its sum over the atoms and that of each element; None where it was not measured."""
    if basis is None or not basis.errors:
        return None
    return {"sum": basis.error_of(molecule.real_symbols), "elements": dict(basis.errors)}


def to_html(result: MP2Result) -> str:
    """A table of the energies, for notebooks."""
    rows = [
        ("E(SCF)", result.scf_total_energy),
        ("E(SS)", result.mp2_same_spin_correlation_energy),
        ("E(OS)", result.mp2_opposite_spin_correlation_energy),
        ("E(MP2 correlation)", result.mp2_correlation_energy),
        ("E(MP2 total)", result.mp2_total_energy),
    ]
    title = f"{result.molecule.formula}: DF-MP2/{result.orbital_basis.name} on {result.backend}, {result.precision}"
    body = "".join(
        f"<tr><td>{name}</td><td style='text-align:right'>{value:.10f}</td><td>E<sub>h</sub></td></tr>"
        for name, value in rows
    )
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"


def _check(check: Check) -> dict[str, Any]:
    """A check; its SCF energy is None, for --check has no SCF of its own but takes that of the run."""
    compared = {name: None if name.startswith("scf_") else value for name, value in asdict(check).items()}
    return {**compared, "correlation_difference": check.correlation_difference, "passed": check.passed}


def plain(value: Any) -> Any:
    """The value as JSON can hold it: lists for tuples, None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
