"""The sections of one result: molecule, method and bases, energies, pairs, reference, trust, cost, provenance."""

from __future__ import annotations

import math

from dfmp2.basis import BasisSet
from dfmp2.io.report import CITATION, LONGEST_GEOMETRY, fitting_errors
from dfmp2.mp2 import scaling
from dfmp2.report.cost import Speed, cost_blocks
from dfmp2.report.drawing import draw
from dfmp2.report.numbers import energy, energy_cell
from dfmp2.report.page import Block, Cell, Facts, Figure, Note, Section, Table, Text, cells, columns
from dfmp2.report.pairs import pair_blocks
from dfmp2.report.plot import stacked
from dfmp2.report.trust import environment_blocks, reference_blocks, trust_blocks
from dfmp2.result import MP2Result
from dfmp2.summary import say_field
from dfmp2.units import ANGSTROM_PER_BOHR, KJ_PER_MOL_PER_HARTREE


def sections(result: MP2Result, prefix: str, level: int, speed: Speed, verified: str) -> tuple[Section, ...]:
    """All sections of a result.

    Parameters
    ----------
    prefix : start of the sections' anchors, unique on the page
    level : level of their headings
    speed : what is known of the speed of the run's machine
    verified : content hash of the file, which was compared with the stored one
    """
    parts: tuple[tuple[str, str, tuple[Block, ...]], ...] = (
        ("molecule", "Molecule", _molecule(result)),
        ("method", "Method and basis sets", _method(result)),
        ("energies", "Energies", _energies(result)),
        ("pairs", "Pair energies", pair_blocks(result)),
        ("reference", "Hartree-Fock reference and SCF convergence", reference_blocks(result)),
        ("trust", "Precision, backend and checks", trust_blocks(result)),
        ("cost", "Time and memory", cost_blocks(result, speed)),
        ("provenance", "Command and environment", environment_blocks(result, verified)),
    )
    return tuple(Section(f"{prefix}{name}", title, blocks, level) for name, title, blocks in parts)


def headline(result: MP2Result) -> tuple[tuple[str, str], ...]:
    """The numbers a reader looks for first."""
    return (
        ("E(MP2, total) / Eh", energy(result.mp2_total_energy)),
        ("E(MP2, correlation) / Eh", energy(result.mp2_correlation_energy)),
        ("orbital basis", result.orbital_basis.name),
        ("backend, precision", f"{result.backend}, {result.precision}"),
        ("checks", verdict(result)),
        ("wall time", f"{result.timings.total:.2f} s"),
    )


def verdict(result: MP2Result) -> str:
    """What the result says about itself, in a few words."""
    failed = []
    if result.check is not None and not result.check.passed:
        failed.append("PySCF check failed")
    if result.certificate is not None and not result.certificate.accepted and not result.certificate.repeated_in_fp64:
        failed.append("certificate above tolerance")
    count = len(result.diagnostics.warnings)
    warnings = f"{count} warning{'s' * (count != 1)}" if count else "no warnings"
    names = [("PySCF check", result.check), ("certificate", result.certificate)]
    done = " and ".join(name for name, found in names if found is not None)
    passed = f"{done} passed, " if done else ""
    return f"✗ {', '.join(failed)}, {warnings}" if failed else f"{'!' if count else '✓'} {passed}{warnings}"


def method_name(result: MP2Result) -> str:
    """The method as it is written in a paper, e.g. "DF-MP2/cc-pvdz on DF-RHF, 1 frozen core orbital"."""
    fitted = "DF-" if result.reference.scf_type == "df" else ""
    core, virtual = result.sizes.frozen_core, result.sizes.frozen_virtual
    frozen = f"{core} frozen core orbital{'s' * (core != 1)}" if core else "all electrons correlated"
    more = f", {virtual} frozen virtual orbital{'s' * (virtual != 1)}" if virtual else ""
    relativistic = "X2C-" if result.options.relativity == "x2c" else ""
    return (
        f"DF-MP2/{result.orbital_basis.name} on {relativistic}{fitted}{result.reference.kind.upper()}, {frozen}{more}"
    )


def level_name(result: MP2Result) -> str:
    """What was asked for, which for another molecule may give RHF or UHF and another number of frozen orbitals."""
    options, fitted = result.options, "DF-" if result.reference.scf_type == "df" else ""
    virtual = f", {options.frozen_virtual} frozen virtual" if options.frozen_virtual else ""
    relativistic = "X2C-" if options.relativity == "x2c" else ""
    return (
        f"DF-MP2/{result.orbital_basis.name} on {relativistic}{fitted}HF, reference {options.reference}, frozen core "
        f"{options.frozen_core}{virtual}, precision {options.precision}"
    )


def _molecule(result: MP2Result) -> tuple[Block, ...]:
    molecule = result.molecule
    drawing, caption = draw(molecule)
    positions = molecule.coordinates * ANGSTROM_PER_BOHR
    rows = tuple(
        cells(Cell(f"{k} {label}", k), *(Cell(f"{x:.8f}", float(x)) for x in position))
        for k, (label, position) in enumerate(zip(molecule.labels[:LONGEST_GEOMETRY], positions, strict=False), start=1)
    )
    left_out = molecule.natom - len(rows)
    caption_table = f"Geometry, angstrom{f'; {left_out} more atoms are in the result file' if left_out else ''}"
    geometry = Table(caption_table, columns("atom", "#x", "#y", "#z"), rows, folded=len(rows) > 12)
    field = say_field(molecule, result.orbital_basis)
    facts = Facts(
        (
            ("name", molecule.name),
            ("formula", molecule.formula),
            ("charge", f"{molecule.charge}"),
            ("multiplicity", f"{molecule.multiplicity}"),
            ("explicit electrons", f"{result.sizes.nelectron}"),
            ("read from", molecule.source or "python"),
            *((("surroundings", field),) if field else ()),
        )
    )
    return Figure(drawing, caption), facts, geometry


def _method(result: MP2Result) -> tuple[Block, ...]:
    sizes = result.sizes
    rows = [*_basis_rows("orbital", result.orbital_basis, sizes.nao)]
    if result.scf_fitting is None:
        rows.append(cells("SCF fitting", "none", "", "conventional four-centre integrals", "", ""))
    else:
        rows += _basis_rows("SCF fitting", result.scf_fitting, sizes.naux_scf)
    rows += _basis_rows("MP2 fitting", result.mp2_fitting, sizes.naux)
    fits = tuple(Text(f"{line}.") for line in fitting_errors(result.molecule, result.scf_fitting, result.mp2_fitting))
    spins = ("all",) if result.reference.nspin == 1 else ("alpha", "beta")
    classes = tuple(
        cells(spin, *(str(n) for n in (sizes.nmo - nocc - nvir - sizes.frozen_virtual, nocc, nvir)))
        + cells(str(sizes.frozen_virtual), str(sizes.nmo))
        for spin, nocc, nvir in zip(spins, sizes.nocc, sizes.nvir, strict=False)
    )
    note = (Text(result.frozen_core_note),) if result.frozen_core_note else ()
    return (
        Text(f"{method_name(result)}. Cite: {CITATION}."),
        Table(
            "Basis sets, spherical functions; the hash is that of exponents and coefficients",
            columns("role", "set", "elements", "origin", "#functions", "SHA-256, first digits"),
            tuple(rows),
        ),
        *fits,
        *note,
        Table(
            f"Orbitals per class; frozen core asked for: {result.options.frozen_core}",
            columns("spin", "#frozen core", "#correlated occupied", "#correlated virtual", "#frozen virtual", "#all"),
            classes,
        ),
    )


def _basis_rows(role: str, basis: BasisSet, functions: int) -> list[tuple[Cell, ...]]:
    """One row per set and origin: elements, number of functions of the whole basis, hash per element."""
    groups: dict[tuple[str, str], list[str]] = {}
    for symbol, element in basis.elements.items():
        core = f"; core potential for {element.ecp_electrons} electrons ({element.ecp_source})" if element.ecp else ""
        groups.setdefault((element.name, f"{element.source}{core}"), []).append(symbol)
    rows = []
    for place, ((name, origin), symbols) in enumerate(groups.items()):
        count = Cell(str(functions), functions) if place == 0 else Cell("")
        hashes = ", ".join(f"{symbol} {basis.elements[symbol].sha256[:10]}" for symbol in symbols)
        rows.append(cells(role if place == 0 else "", name, " ".join(symbols), origin, count, hashes))
    return rows


def _energies(result: MP2Result) -> tuple[Block, ...]:
    own = scaling.custom(result.options.os_scale, result.options.ss_scale)
    kinds = (scaling.SCS, scaling.SOS, *(() if own is None else (own,)))
    same, opposite = result.mp2_same_spin_correlation_energy, result.mp2_opposite_spin_correlation_energy
    values: list[tuple[str, float, str]] = [
        ("nuclear repulsion", result.reference.nuclear_repulsion_energy, "contained in E(HF)"),
        ("reference energy", result.scf_total_energy, f"E(HF), {result.reference.kind.upper()}"),
        ("same-spin correlation", same, "E(SS), unscaled"),
        ("opposite-spin correlation", opposite, "E(OS), unscaled"),
        ("MP2 correlation", result.mp2_correlation_energy, "E(SS) + E(OS)"),
        ("MP2 total", result.mp2_total_energy, "E(HF) + E(SS) + E(OS)"),
    ]
    bars = [("MP2", (opposite, same), energy(result.mp2_correlation_energy))]
    for kind in kinds:
        correlation = kind.apply(opposite, same)
        formula = f"{kind.opposite_spin:.6g} E(OS) + {kind.same_spin:.6g} E(SS)"
        values += [
            (f"{kind.name} correlation", correlation, formula),
            (f"{kind.name} total", result.scf_total_energy + correlation, "E(HF) + the line above"),
        ]
        bars.append((kind.name, (kind.opposite_spin * opposite, kind.same_spin * same), energy(correlation)))
    rows = tuple(
        cells(
            name,
            energy_cell(value),
            Cell(f"{value * KJ_PER_MOL_PER_HARTREE:.2f}", value) if math.isfinite(value) else Cell(""),
            what,
        )
        for name, value, what in values
    )
    drawing = stacked("Correlation energy by spin component", ("opposite spin", "same spin"), bars)
    caption = (
        "Magnitude of the correlation energy, Eh, by spin component after scaling: opposite spin first, then same spin "
        "in an outline. The numbers are those of the table of energies."
    )
    sources = "; ".join(f"{kind.name}: {kind.source}" for kind in kinds if kind is not own)
    table = Table(f"All energies. {sources}", columns("energy", "#Eh", "#kJ/mol", "meaning"), rows)
    notes: tuple[Note, ...] = ()
    if result.mp2_correlation_energy == 0.0:
        notes = (Note("info", "There is no pair of electrons to correlate: the correlation energy is zero."),)
    return (*notes, table, Figure(drawing, caption))
