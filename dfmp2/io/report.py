"""The report of a result as text: what was computed, with what, how far to trust it, how long it took."""

from __future__ import annotations

import math
from typing import Any

from dfmp2.basis import BasisSet
from dfmp2.io.text import printable
from dfmp2.molecule import Molecule
from dfmp2.mp2 import scaling
from dfmp2.result import MP2Result
from dfmp2.solutions import Solutions
from dfmp2.summary import say_field
from dfmp2.units import ANGSTROM_PER_BOHR, format_bytes

CITATION = (
    "Feyereisen, Fitzgerald, Komornicki, Chem. Phys. Lett. 208, 359 (1993); PySCF: J. Chem. Phys. 153, 024109 (2020)"
)
LONGEST_GEOMETRY = 200  # atoms printed
WIDTH = 78
RELATIVITY = {"none": "", "x2c": " (spin-free one-electron X2C)"}


def report(result: MP2Result) -> str:
    """The whole report, one string ending in a newline."""
    sections = (
        _title(result),
        _geometry(result),
        _bases(result),
        _classes(result),
        _reference(result),
        _energies(result),
        _trust(result),
        _cost(result),
    )
    return "\n".join(printable(line) for section in sections for line in (*section, "")) + "\n"


def last_line(result: MP2Result, output: str) -> str:
    """One unmistakable line for the end of a finished run."""
    return (
        f"dfmp2 finished: E(MP2, total) = {result.mp2_total_energy:.10f} Eh, "
        f"E(corr) = {result.mp2_correlation_energy:.10f} Eh -> {printable(output)}"
    )


def pair_table(result: MP2Result) -> str:
    """All stored pair energies, one line per pair, indices from 1 over the correlated orbitals."""
    lines = [f"{'channel':<18}{'i':>5}{'j':>5}{'energy / Eh':>22}"]
    for name, matrix in result.pairs.channels().items():
        mirrored = name != "opposite_spin" or result.reference.nspin == 1
        for i, row in enumerate(matrix):
            for j, energy in enumerate(row):
                if not mirrored or i <= j:
                    lines.append(f"{name:<18}{i + 1:>5}{j + 1:>5}{energy:>22.14f}")
    return "\n".join(lines) + "\n"


def _title(result: MP2Result) -> list[str]:
    return [f"dfmp2 {result.provenance.version}: density-fitted MP2", f"cite: {CITATION}"]


def _geometry(result: MP2Result) -> list[str]:
    molecule = result.molecule
    lines = [
        *_heading(f"Molecule: {molecule.name} ({molecule.formula})"),
        f"charge {molecule.charge}, multiplicity {molecule.multiplicity}; from {molecule.source or 'python'}",
        f"{'':6}{'x / angstrom':>16}{'y / angstrom':>16}{'z / angstrom':>16}",
    ]
    positions = molecule.coordinates * ANGSTROM_PER_BOHR
    for label, (x, y, z) in zip(molecule.labels[:LONGEST_GEOMETRY], positions, strict=False):
        lines.append(f"{label:<6}{x:>16.8f}{y:>16.8f}{z:>16.8f}")
    if molecule.natom > LONGEST_GEOMETRY:
        lines.append(f"... and {molecule.natom - LONGEST_GEOMETRY} more atoms")
    field = say_field(molecule, result.orbital_basis)
    return [*lines, field] if field else lines


def _bases(result: MP2Result) -> list[str]:
    sizes = result.sizes
    lines = _heading("Basis sets (spherical functions)")
    lines += _basis("orbital", result.orbital_basis, sizes.nao)
    if result.scf_fitting is None:
        lines.append(f"{'SCF fitting':<13}none: conventional four-centre integrals")
    else:
        lines += _basis("SCF fitting", result.scf_fitting, sizes.naux_scf)
    lines += _basis("MP2 fitting", result.mp2_fitting, sizes.naux)
    return lines + fitting_errors(result.molecule, result.scf_fitting, result.mp2_fitting)


def fitting_errors(molecule: Molecule, scf_fitting: BasisSet | None, mp2_fitting: BasisSet) -> list[str]:
    """A line for each fitting set whose error was measured on the atoms."""
    lines = []
    for name, basis in (("SCF", scf_fitting), ("MP2", mp2_fitting)):
        total = None if basis is None else basis.error_of(molecule.real_symbols)
        if basis is not None and total is not None:
            each = ", ".join(f"{symbol} {error:+.1e}" for symbol, error in basis.errors.items())
            lines.append(f"{name} fitting error of the atoms {total:+.1e} Eh (each {each})")
    return lines


def _basis(role: str, basis: BasisSet, functions: int) -> list[str]:
    lines = [f"{role:<13}{line}" for line in basis.describe()]
    lines[0] += f", {functions} functions"
    for symbol, element in basis.elements.items():
        if element.ecp is not None:
            lines.append(
                f"{'':13}{symbol}: core potential for {element.ecp_electrons} electrons ({element.ecp_source})"
            )
        if "even-tempered" in element.source:
            lines += [f"{'':13}{symbol} l={shell[0]} exponent {shell[1][0]:.10g} bohr^-2" for shell in element.shells]
    return lines


def _classes(result: MP2Result) -> list[str]:
    sizes = result.sizes
    spins = ("all",) if result.reference.nspin == 1 else ("alpha", "beta")
    lines = [
        *_heading("Orbital classes"),
        f"{'spin':<8}{'frozen core':>13}{'active occ':>13}{'active vir':>13}{'frozen vir':>13}{'total':>8}",
    ]
    for spin, nocc, nvir in zip(spins, sizes.nocc, sizes.nvir, strict=False):
        # A spin with fewer electrons than frozen orbitals freezes all it has.
        core = sizes.nmo - nocc - nvir - sizes.frozen_virtual
        lines.append(f"{spin:<8}{core:>13}{nocc:>13}{nvir:>13}{sizes.frozen_virtual:>13}{sizes.nmo:>8}")
    lines.append(f"frozen core: {sizes.frozen_core} orbitals per spin (--frozen-core {result.options.frozen_core})")
    if result.frozen_core_note:
        lines.append(result.frozen_core_note)
    return lines


def _reference(result: MP2Result) -> list[str]:
    reference = result.reference
    lines = [
        *_heading("Reference"),
        f"{reference.kind.upper()}{RELATIVITY[result.options.relativity]}, {reference.scf_type}, "
        f"{reference.cycles} cycles ({', '.join(reference.ladder)}), "
        f"start: {reference.start}",
        f"nuclear repulsion energy {reference.nuclear_repulsion_energy:.10f} Eh",
        f"HOMO-LUMO gap {result.diagnostics.homo_lumo_gap:.4f} Eh, "
        f"smallest MP2 denominator {result.diagnostics.smallest_denominator:.4f} Eh",
    ]
    if reference.kind == "uhf":
        spin = (result.molecule.multiplicity - 1) / 2
        lines.append(f"<S^2> = {reference.spin_square:.6f} (pure spin state: {spin * (spin + 1):.2f})")
    if reference.stability is not None:
        found = reference.stability
        value = f", lowest {found.lowest_eigenvalue:.4f} Eh" if math.isfinite(found.lowest_eigenvalue) else ""
        lines.append(f"orbital stability: {found.verdict} ({found.method}{value})")
    return [*lines, *_solutions(reference.solutions)]


def _solutions(found: Solutions | None) -> list[str]:
    """Every SCF solution, when there was more than one."""
    if found is None or len(found.energy) == 1:
        return []
    lines = [f"{'start':>7}{'E(SCF) / Eh':>20}{'<S^2>':>10}{'lowest eigenvalue':>20}  kind"]
    for number, row in enumerate(found.rows(), start=1):
        energy, spin, lowest = row["energy"], row["spin_square"], row["lowest_eigenvalue"]
        values = f"{energy:>20.10f}{spin:>10.4f}" if math.isfinite(energy) else f"{'not converged':>20}{'':>10}"
        examined = f"{lowest:>20.4f}  {row['kind']}" if math.isfinite(lowest) else ""
        lines.append(f"{row['start']:>7}{values}{examined}{'  <- used' if number == found.chosen else ''}")
    return lines


def _energies(result: MP2Result) -> list[str]:
    lines = [
        *_heading("Energies / Eh"),
        _energy("reference energy", result.scf_total_energy),
        _energy("same-spin correlation", result.mp2_same_spin_correlation_energy),
        _energy("opposite-spin correlation", result.mp2_opposite_spin_correlation_energy),
        _energy("MP2 correlation", result.mp2_correlation_energy),
        _energy("MP2 total", result.mp2_total_energy),
    ]
    own = scaling.custom(result.options.os_scale, result.options.ss_scale)
    for factors in (scaling.SCS, scaling.SOS, *(() if own is None else (own,))):
        correlation = factors.apply(
            result.mp2_opposite_spin_correlation_energy, result.mp2_same_spin_correlation_energy
        )
        note = f"  OS x {factors.opposite_spin:.6g}, SS x {factors.same_spin:.6g}"
        lines.append(_energy(f"{factors.name} correlation", correlation) + note)
        lines.append(_energy(f"{factors.name} total", result.scf_total_energy + correlation))
    return lines


def _trust(result: MP2Result) -> list[str]:
    lines = [
        *_heading("Precision and backend"),
        f"backend {result.backend}: {result.backend_reason}",
        f"precision {result.precision} (asked for: {result.options.precision})",
    ]
    certificate = result.certificate
    if certificate is not None:
        lines.append(
            f"certificate: {certificate.sampled} of {certificate.pairs} pairs redone in float64, estimated error of "
            f"E(corr) {certificate.correlation_error:.1e} Eh (accepted up to {certificate.tolerance:.1e})"
        )
        if certificate.repeated_in_fp64:
            lines.append("             above the tolerance, so the pair energies were repeated in float64")
    lines += _proof(result)
    check = result.check
    if check is not None:
        lines += [
            f"check against {check.program}, same orbitals and fitting set (whose errors it cannot see): "
            f"{'passed' if check.passed else 'FAILED'} (allowed {check.allowed:.1e} Eh)",
            f"             same-spin {check.same_spin_difference:+.2e}, opposite-spin "
            f"{check.opposite_spin_difference:+.2e}, correlation {check.correlation_difference:+.2e} Eh",
        ]
    return lines


def _proof(result: MP2Result) -> list[str]:
    """What a device lane says of what ran."""
    return list(result.provenance.backend_details) if result.backend.startswith("nki") else []


def _cost(result: MP2Result) -> list[str]:
    timings: Any = result.timings
    names = ("scf", "integrals", "transform", "fit", "pair_energies", "total")
    memory = result.memory
    return [
        *_heading("Cost"),
        "   ".join(f"{name.replace('_', ' ')} {getattr(timings, name):.2f} s" for name in names),
        f"predicted: scf {result.predicted.scf:.2f} s, pair energies {result.predicted.pair_energies:.2f} s, "
        f"total {result.predicted.total:.2f} s",
        f"threads {result.provenance.threads}; peak memory {format_bytes(memory.measured_peak)} "
        f"(predicted {format_bytes(memory.predicted_peak)}, allowed {format_bytes(memory.budget)})",
        *_ranks(result),
        *_scratch(result),
        *_preparation(result),
    ]


def _ranks(result: MP2Result) -> list[str]:
    """How the run was spread, when it was."""
    ranks = result.ranks
    if ranks is None:
        return []
    hosts = ", ".join(f"{ranks.hosts.count(host)} on {host}" for host in dict.fromkeys(ranks.hosts))
    return [
        f"ranks {ranks.count}: {hosts}; threads and memory are those of each; largest peak of one "
        f"{format_bytes(max(ranks.measured_peaks))}, B counted in each"
    ]


def _scratch(result: MP2Result) -> list[str]:
    """Where large arrays lived, when not all of them were in memory."""
    storage = result.storage
    if storage is None or not storage.written:
        return []
    return [
        f"SCF integrals: {storage.scf_integrals}, B: {storage.fitted_tensor}; scratch in {storage.folder}: "
        f"{format_bytes(storage.written)} written, {format_bytes(storage.read)} read"
    ]


def _preparation(result: MP2Result) -> list[str]:
    """Who made B, when that was another process."""
    made = result.preparation
    if made is None:
        return []
    return [
        f"all but the pair energies: {made.seconds:.2f} s on {made.host} ({made.platform}), {made.threads} threads, "
        f"peak memory {format_bytes(made.measured_peak)}, {made.created}: {made.command}",
        f"prepared file: {made.file}, SHA-256 {made.sha256}",
    ]


def _heading(text: str) -> list[str]:
    return [text, "-" * WIDTH]


def _energy(name: str, value: float) -> str:
    return f"{name:<32}{value:>20.10f}"
