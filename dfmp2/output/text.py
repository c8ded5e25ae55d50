"""The reports of a result, of a study and of a prepared file as text; a run and `dfmp2 show` print the same."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.text import printable
from dfmp2.mp2.result import SCS, SOS, MP2Result, custom_scaling, describe, say_field
from dfmp2.scf.reference import Reference
from dfmp2.units import ANGSTROM_PER_BOHR, format_bytes

if TYPE_CHECKING:
    from dfmp2.mp2.prepared import Prepared
    from dfmp2.output.study import Column, Study

CITATION = (
    "Feyereisen, Fitzgerald, Komornicki, Chem. Phys. Lett. 208, 359 (1993); PySCF: J. Chem. Phys. 153, 024109 (2020)"
)
LONGEST_GEOMETRY = 200  # atoms printed
WIDTH = 78
RELATIVITY = {"none": "", "x2c": " (spin-free one-electron X2C)"}
# Headings of table columns whose name is long, and digits by unit.
HEADINGS = {
    "scf_total_energy": "E(SCF)",
    "mp2_same_spin_correlation_energy": "E(SS)",
    "mp2_opposite_spin_correlation_energy": "E(OS)",
    "mp2_correlation_energy": "E(corr)",
    "mp2_total_energy": "E(MP2)",
    "relative_energy": "E - lowest",
    "homo_lumo_gap": "gap",
    "scf_iterations": "cycles",
    "exit_code": "code",
}
DIGITS = {"hartree": "{:.10f}", "kJ/mol": "{:.4f}", "kcal/mol": "{:.4f}"}
CONVERTED = {"_kj_per_mol": "kJ/mol", "_kcal_per_mol": "kcal/mol"}  # end of a name -> unit of the same energy

# --- a result -----------------------------------------------------------------------------------------


def report(result: MP2Result) -> str:
    """The report of a result, one string ending in a newline."""
    molecule = result.molecule
    return _text(
        [f"dfmp2 {result.provenance.version}: density-fitted MP2", f"cite: {CITATION}"],
        [*_heading(f"Molecule: {molecule.name} ({molecule.formula})"), *_geometry(result)],
        [*_heading("Basis sets (spherical functions)"), *_bases(result)],
        [*_heading("Orbital classes"), *_classes(result)],
        [*_heading("Reference"), *_reference(result)],
        [*_heading("Energies / Eh"), *_energies(result)],
        [*_heading("Precision and backend"), *_trust(result)],
        [*_heading("Cost"), *_cost(result)],
    )


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


def _geometry(result: MP2Result) -> list[str]:
    molecule = result.molecule
    lines = [
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
    lines = _basis("orbital", result.orbital_basis, sizes.nao)
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


def orbital_classes(result: MP2Result) -> list[tuple[str, int, int, int, int, int]]:
    """Spin, frozen core, active occupied, active virtual, frozen virtual, all orbitals: a row for each spin."""
    sizes, spins = result.sizes, ("all",) if result.reference.nspin == 1 else ("alpha", "beta")
    # A spin with fewer electrons than frozen orbitals freezes all it has.
    return [
        (spin, sizes.nmo - nocc - nvir - sizes.frozen_virtual, nocc, nvir, sizes.frozen_virtual, sizes.nmo)
        for spin, nocc, nvir in zip(spins, sizes.nocc, sizes.nvir, strict=False)
    ]


def _classes(result: MP2Result) -> list[str]:
    heads = ("spin", "frozen core", "active occ", "active vir", "frozen vir", "total")
    return [
        *(f"{s:<8}{c:>13}{o:>13}{v:>13}{f:>13}{n:>8}" for s, c, o, v, f, n in (heads, *orbital_classes(result))),
        f"frozen core: {result.sizes.frozen_core} orbitals per spin (--frozen-core {result.options.frozen_core})",
        *filter(None, [result.frozen_core_note]),
    ]


def _reference(result: MP2Result) -> list[str]:
    reference = result.reference
    lines = [
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
    return [*lines, *_solutions(reference)]


def _solutions(reference: Reference) -> list[str]:
    """Every SCF solution, when there was more than one."""
    found = reference.solutions
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
        _energy("reference energy", result.scf_total_energy),
        _energy("same-spin correlation", result.mp2_same_spin_correlation_energy),
        _energy("opposite-spin correlation", result.mp2_opposite_spin_correlation_energy),
        _energy("MP2 correlation", result.mp2_correlation_energy),
        _energy("MP2 total", result.mp2_total_energy),
    ]
    own = custom_scaling(result.options.os_scale, result.options.ss_scale)
    same, opposite = result.mp2_same_spin_correlation_energy, result.mp2_opposite_spin_correlation_energy
    for factors in filter(None, (SCS, SOS, own)):
        correlation = factors.apply(opposite, same)
        note = f"  OS x {factors.opposite_spin:.6g}, SS x {factors.same_spin:.6g}"
        lines.append(_energy(f"{factors.name} correlation", correlation) + note)
        lines.append(_energy(f"{factors.name} total", result.scf_total_energy + correlation))
    return lines


def _energy(name: str, value: float) -> str:
    return f"{name:<32}{value:>20.10f}"


def _trust(result: MP2Result) -> list[str]:
    lines = [
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
    if result.backend.startswith("nki"):  # what ran, in the words of the device's library
        lines += result.provenance.backend_details
    check = result.check
    if check is not None:
        lines += [
            f"check against {check.program}, same orbitals and fitting set (whose errors it cannot see): "
            f"{'passed' if check.passed else 'FAILED'} (allowed {check.allowed:.1e} Eh)",
            f"             same-spin {check.same_spin_difference:+.2e}, opposite-spin "
            f"{check.opposite_spin_difference:+.2e}, correlation {check.correlation_difference:+.2e} Eh",
        ]
    return lines


def _cost(result: MP2Result) -> list[str]:
    timings, predicted, memory = asdict(result.timings), result.predicted, result.memory
    names = ("scf", "integrals", "transform", "fit", "pair_energies", "total")
    lines = [
        "   ".join(f"{name.replace('_', ' ')} {timings[name]:.2f} s" for name in names),
        f"predicted: scf {predicted.scf:.2f} s, pair energies {predicted.pair_energies:.2f} s, "
        f"total {predicted.total:.2f} s",
        f"threads {result.provenance.threads}; peak memory {format_bytes(memory.measured_peak)} "
        f"(predicted {format_bytes(memory.predicted_peak)}, allowed {format_bytes(memory.budget)})",
    ]
    ranks, storage, made = result.ranks, result.storage, result.preparation
    if ranks is not None:
        hosts = ", ".join(f"{ranks.hosts.count(host)} on {host}" for host in dict.fromkeys(ranks.hosts))
        lines.append(
            f"ranks {ranks.count}: {hosts}; threads and memory are those of each; largest peak of one "
            f"{format_bytes(max(ranks.measured_peaks))}, B counted in each"
        )
    if storage is not None and storage.written:
        lines.append(
            f"SCF integrals: {storage.scf_integrals}, B: {storage.fitted_tensor}; scratch in {storage.folder}: "
            f"{format_bytes(storage.written)} written, {format_bytes(storage.read)} read"
        )
    if made is not None:
        lines += [
            f"all but the pair energies: {made.seconds:.2f} s on {made.host} ({made.platform}), {made.threads} "
            f"threads, peak memory {format_bytes(made.measured_peak)}, {made.created}: {made.command}",
            f"prepared file: {made.file}, SHA-256 {made.sha256}",
        ]
    return lines


# --- a study ------------------------------------------------------------------------------------------


def study_report(study: Study) -> str:
    """The report of a study, one string ending in a newline."""
    return _text(
        [f"dfmp2 {study.version}: {study.title}", *(["INCOMPLETE: runs are missing"] if not study.complete else [])],
        [*_heading("Runs (groups /runs/NAME of the file)"), *_runs(study)],
        [*_heading("Table"), *_table(study.table)] if study.table else [],
        [*_heading("Results"), *_values(study)] if study.values else [],
        [*_heading("Notes"), *study.notes] if study.notes else [],
    )


def _runs(study: Study) -> list[str]:
    width = max([4, *map(len, study.runs)])
    lines = [
        f"{'name':<{width}}  {'E(SCF) / Eh':>18}{'E(corr) / Eh':>16}{'core':>6}{'AO':>6}{'cycles':>8}{'s':>8}  molecule"
    ]
    for name, result in study.runs.items():
        lines.append(
            f"{name:<{width}}  {result.scf_total_energy:>18.10f}{result.mp2_correlation_energy:>16.10f}"
            f"{result.sizes.frozen_core:>6}{result.sizes.nao:>6}{result.reference.cycles:>8}"
            f"{result.timings.total:>8.2f}  {result.molecule.formula}, {result.orbital_basis.name}"
        )
    return lines


def _table(table: Mapping[str, Column]) -> list[str]:
    """Columns as wide as their longest cell: texts flush left, numbers flush right."""
    columns = []
    for name, column in table.items():
        unit = "Eh" if column.units == "hartree" else column.units
        cells = [HEADINGS.get(name, name.replace("_", " ")) + (f" / {unit}" if unit else "")]
        cells += [_cell(value, column.units) for value in column.values]
        side, width = "<" if all(isinstance(x, str) for x in column.values) else ">", max(map(len, cells))
        columns.append([f"{cell:{side}{width}}" for cell in cells])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _cell(value: Any, units: str) -> str:
    if isinstance(value, str):
        return value
    if 0 < abs(value) < 1e-6:
        return f"{value:.1e}"
    return DIGITS.get(units, "{:.8g}").format(value) if math.isfinite(value) else "-"


def _values(study: Study) -> list[str]:
    """Numbers in hartree with the same in other units on one line, the others as they are."""
    width = max(map(len, study.values))
    lines = []
    for name, value in study.values.items():
        if name.endswith(tuple(CONVERTED)):
            continue
        units = "Eh" if value.units == "hartree" else value.units
        others = {unit: study.values.get(f"{name}{end}") for end, unit in CONVERTED.items()}
        more = "".join(f" {other.value:>12.4f} {unit}" for unit, other in others.items() if other is not None)
        lines.append(f"{name:<{width}} {_cell(value.value, value.units):>18} {units}{more}".rstrip())
    return lines


# --- a prepared file ----------------------------------------------------------------------------------

PREPARED_STAGES = ("scf", "integrals", "transform", "fit", "total")


def prepared_report(prepared: Prepared, path: str) -> str:
    """What a prepared file holds, ending in a newline."""
    reference, molecule, sizes = prepared.reference, prepared.molecule, prepared.sizes
    made, timings = prepared.provenance, asdict(prepared.timings)
    shapes = " and ".join(" x ".join(str(n) for n in shape) for shape in prepared.shapes)
    scf = "conventional" if prepared.scf_fitting is None else f"fitted with {describe(prepared.scf_fitting)}"
    relativistic = "X2C-" if prepared.options.relativity == "x2c" else ""
    lines = [
        f"{path}: prepared by dfmp2 {made.version}, no pair energies yet",
        f"{molecule.name}: {molecule.formula}, charge {molecule.charge}, multiplicity {molecule.multiplicity}; "
        f"{relativistic}{reference.kind.upper()}/{prepared.orbital_basis.name}, {scf}; MP2 fitting set "
        f"{describe(prepared.mp2_fitting)}",
        *fitting_errors(molecule, prepared.scf_fitting, prepared.mp2_fitting),
        *filter(None, [say_field(molecule, prepared.orbital_basis)]),
        f"frozen core {sizes.frozen_core} (--frozen-core {prepared.options.frozen_core}), frozen virtual "
        f"{sizes.frozen_virtual}; SCF made with --precision {prepared.options.precision}",
        f"reference energy {reference.scf_total_energy:.10f} Eh, {reference.cycles} cycles",
        *([] if reference.stability is None else [f"orbital stability: {reference.stability.verdict}"]),
        f"B {shapes} (occupied, virtual, fitting functions), float64: {format_bytes(prepared.tensor_bytes)}",
        "   ".join(f"{name} {timings[name]:.2f} s" for name in PREPARED_STAGES)
        + f"; peak memory {format_bytes(prepared.memory.measured_peak)}",
        f"made {made.created} on {made.host}, {made.threads} threads: {made.command}",
        *(f"warning: {text}" for text in prepared.diagnostics.warnings),
        f"go on: {_go_on(path)}",
    ]
    return "\n".join(map(printable, lines)) + "\n"


def prepared_last_line(prepared: Prepared, path: str) -> str:
    """One line for the end of a finished preparation."""
    return printable(
        f"dfmp2 prepared: E(SCF) = {prepared.reference.scf_total_energy:.10f} Eh, B "
        f"{format_bytes(prepared.tensor_bytes)} -> {path}; go on: {_go_on(path)}"
    )


def _go_on(path: str) -> str:
    """The command that computes the pair energies."""
    return shlex.join(["dfmp2", "energy", "--from", os.fspath(path)])


# --- layout -------------------------------------------------------------------------------------------


def _heading(text: str) -> list[str]:
    return [text, "-" * WIDTH]


def _text(*sections: Iterable[str]) -> str:
    """Sections with an empty line behind each, control characters made visible."""
    return "".join("\n".join([*map(printable, section), "", ""]) for section in map(list, sections) if section)
