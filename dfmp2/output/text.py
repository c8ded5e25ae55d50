"""Text that commands print: reports of a result, study or prepared file, pair energies, and closing
lines."""

from __future__ import annotations

import html
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.text import printable
from dfmp2.mp2.result import MP2Result
from dfmp2.output.document import (
    WIDEST,
    Block,
    Facts,
    Note,
    Section,
    Table,
    block_lines,
    displayed_width,
    document_text,
    size,
    wrap_text,
)
from dfmp2.output.reports.energies import frozen_before_pairs, list_pairs, quoted_energies
from dfmp2.output.reports.method import heading, method_name, point_charge_line, spin_fact
from dfmp2.output.reports.result import input_sections, summary_blocks
from dfmp2.output.reports.study import (
    cost_of_runs,
    main_tables,
    of_study,
    remarks,
    study_warnings,
)
from dfmp2.output.reports.study_tables import cell
from dfmp2.output.study import Study
from dfmp2.units import DEBYE, EV_PER_HARTREE, counted_text, format_bytes

if TYPE_CHECKING:
    from dfmp2.mp2.prepared import Prepared

# Shorter forms of quantity names, which are long keys in JSON: pattern -> printed form.
NAMES = (
    (r"^cp corrected interaction energy$", "interaction energy, CP-corrected"),
    (r"^uncorrected interaction energy$", "interaction energy, uncorrected"),
    (r"^counterpoise correction$", "CP correction"),
    (r" cp corrected interaction energy$", ", CP-corrected"),
    (r" uncorrected interaction energy$", ", uncorrected"),
    (r" counterpoise correction$", ", CP correction"),
    (r" reaction energy$", " part"),
    (r"^cbs (.+)$", r"\1 at the limit"),
    (r"^optimized total energy$", "energy of the last geometry"),
    (r"^max gradient$", "largest gradient"),
    (r"^lowest (first|second)$", r"\1 coordinate of the lowest point"),
    (r"^lowest energy$", "energy of the lowest point"),
    (r"\bmp2 (same|opposite) spin correlation( energy)?\b", r"\1 spin"),
    (r"\bscs mp2\b", "SCS-MP2"),
    (r"\bsos mp2\b", "SOS-MP2"),
    (r"\bscf\b", "SCF"),
    (r"\bexx\b", "EXX"),
    (r"\bmp2\b", "MP2"),
    (r"\bgibbs\b", "Gibbs"),
)
NEAR = 3  # orbitals below and above the gap
STRONGEST = 5  # pairs
MAIN_FACTS = (  # of a density and a polarizability
    "natural occupations, relaxed",
    "isotropic",
    "anisotropy",
)
NO_DIPOLE = 1e-8  # e bohr; smaller components are rounding errors


def report(result: MP2Result) -> str:
    """The report of a result, one string ending in a newline."""
    parts = summary_blocks(result)
    orbitals = [*_dipole(result), *_frontier(result), *_strongest(result)]
    title = "Orbitals and pairs"
    if result.options.correlation.kind != "pairs":
        title = "Orbitals"
    parts.insert(3, Section("orbitals", title, orbitals))  # after the energies
    return document_text([f"dfmp2 {result.provenance.version}: {heading(result)}"], parts)


def brief_report(result: MP2Result, path: str | None) -> str:
    """A one-screen summary of a result: what was computed, energies and derivatives, and their
    accuracy.

    Parameters
    ----------
    path : str or None
        File of the result, of which `dfmp2 show` prints the rest; None if it is not stored.
    """
    sections = {part.anchor: part for part in summary_blocks(result)}
    of_gradient = result.gradient is not None
    tables: list[Block] = [quoted_energies(result, summands_alone=of_gradient)]
    if result.reference.nspin > 1:
        tables.append(Facts([spin_fact(result)]))
    tables += _dipole(result)
    derivatives = ["gradient", "properties", "polarizability"]
    if of_gradient and result.properties is not None:
        tables.append(
            _dipole_fact("relaxed dipole moment", result.properties.relaxed_dipole, result.molecule)
        )
        derivatives.remove("properties")
    for anchor in derivatives:
        if anchor in sections:
            tables += _main_blocks(sections[anchor])
    texts: list[Block] = [
        block
        for anchor in ("reference", "trust")
        for block in sections[anchor].blocks
        if isinstance(block, Note) and block.mood in ("warning", "failure")
    ]
    cost = f"{result.timings.total:.1f} s on {counted_text(result.provenance.threads, 'thread')}"
    cost += f", peak memory {format_bytes(result.memory.measured_peak)}"
    texts += [result.error_budget.summary, *_checked(result)]
    return _screen(_subject(result), tables, texts, cost, path)


def brief_study(study: Study, path: str | None) -> str:
    """One screen about a study; parameters as of `brief_report`."""
    tables = [_with_names(table) for table in main_tables(study)]
    texts: list[Block] = [*remarks(study), *_warnings(study)]
    budget = study.error_budget
    if budget is not None:
        texts.append(budget.summary)
    subject = wrap(f"dfmp2 {study.version}: {study.title}", WIDEST, break_on_hyphens=False)
    return _screen(subject, tables, texts, cost_of_runs(study), path)


def _screen(
    subject: Sequence[str],
    tables: Sequence[Block],
    texts: Sequence[Block],
    cost: str,
    path: str | None,
) -> str:
    """What was computed, what came out, what to know of it and how good it is, what it cost, and
    the command that prints the rest."""
    ending = wrap_text(cost, WIDEST)
    if path is not None:
        ending.append(f"details: {shlex.join(['dfmp2', 'show', path])}")
    if len(ending) == 2 and displayed_width("; ".join(ending)) <= WIDEST:
        ending = ["; ".join(ending)]
    lines = [*subject, *block_lines(tables), "", *block_lines(texts), *ending]
    return "".join(f"{printable(line)}\n" for line in lines)


def _subject(result: MP2Result) -> list[str]:
    """Molecule, method, basis sets and point charges, one line each."""
    molecule, sizes = result.molecule, result.sizes
    charge = f"{molecule.charge:+d}" if molecule.charge else "0"
    subject = (
        f"dfmp2 {result.provenance.version}: {molecule.name} ({molecule.formula}), charge {charge}, "
        f"multiplicity {molecule.multiplicity}, {counted_text(sizes.nelectron, 'electron')}"
    )
    functions = counted_text(sizes.nao, "function")
    fitting = [
        f"{basis.names} ({count}, {use})"
        for use, basis, count in (
            ("SCF", result.scf_fitting, sizes.naux_scf),
            ("MP2", result.mp2_fitting, sizes.naux),
        )
        if basis is not None and basis.elements
    ]
    if fitting:
        functions += f"; fitted with {', '.join(fitting)}"
    charges = point_charge_line(molecule, result.orbital_basis)
    return [
        line
        for text in (subject, method_name(result), functions, charges)
        for line in wrap(text, WIDEST, break_long_words=False, break_on_hyphens=False)
    ]


def _main_blocks(section: Section) -> list[Block]:
    """Tables, main facts and failures of a section on derivatives."""
    blocks: list[Block] = []
    for block in section.blocks:
        if isinstance(block, Facts):
            blocks.append(Facts([row for row in block.rows if row[0] in MAIN_FACTS]))
        elif not isinstance(block, Note) or block.mood != "ok":
            blocks.append(block)
    return blocks


def _checked(result: MP2Result) -> list[str]:
    """The verdict of --check, if requested."""
    check = result.check
    if check is None or not check.passed:
        return []  # a failed check is among the warnings
    return [f"{check.program} agrees to {size(check.largest_difference)} Eh."]


def _frontier(result: MP2Result) -> list[Block]:
    """Orbital energies around the gap of each spin."""
    reference = result.reference
    spins = ["alpha", "beta"]
    if reference.nspin == 1:
        spins = [""]
    rows = []
    for spin, levels, occupied in zip(spins, reference.mo_energy, reference.mo_occ, strict=True):
        nocc = int((occupied > 0).sum())
        for k in range(max(0, nocc - NEAR), min(len(levels), nocc + NEAR)):
            below = k - nocc + 1
            if below <= 0:
                name = f"HOMO{below or ''}"
            else:
                name = f"LUMO{f'+{below - 1}' if below > 1 else ''}"
            rows.append(
                (name, k + 1, spin, f"{levels[k]:z.6f}", f"{EV_PER_HARTREE * levels[k]:z.3f}")
            )
    heads = ("orbital", "#number", "spin" if spins[0] else "~spin", "#Eh", "#eV")
    return [Table("Orbital energies around the gap", heads, rows)]


def _dipole(result: MP2Result) -> list[Facts]:
    """The dipole moment of the reference, unless it is among the properties or missing in a file of
    an earlier version."""
    dipole = result.reference.dipole
    if dipole is None or result.properties is not None:
        return []
    return [_dipole_fact("SCF dipole moment", dipole, result.molecule)]


def _dipole_fact(name: str, dipole: NDArray[np.float64], molecule: Molecule) -> Facts:
    numbers = ", ".join(f"{x if abs(x) > NO_DIPOLE else 0.0:z.5f}" for x in dipole)
    size = DEBYE * float(dipole @ dipole) ** 0.5
    origin = ", origin of the coordinates" if molecule.charge else ""
    return Facts([(name, f"({numbers}) e bohr, {size:.4f} debye{origin}")])


def _strongest(result: MP2Result) -> list[Block]:
    """The pairs that contribute most to E(OS) + E(SS), if there are pair energies."""
    total = result.pairs.correlation_energy
    if not total:
        return []
    rows = [
        (
            f"{pair.i}, {pair.j}",
            pair.spins or "both",
            f"{pair.total:z.6f}",
            f"{100 * pair.total / total:z.1f}",
        )
        for pair in list_pairs(result)[:STRONGEST]
    ]
    caption = "Strongest pairs, both orders counted; dfmp2 show --pairs prints all"
    return [Table(caption, ("i, j", "spins", "#Eh", "#% of all pairs"), rows)] if rows else []


def study_report(study: Study) -> str:
    """The report of a study, one string ending in a newline."""
    parts = [
        part._replace(blocks=[_with_names(block) for block in part.blocks])
        for part in of_study(study)
    ]
    parts.append(Section("warnings", "Warnings", _warnings(study)))
    return document_text([f"dfmp2 {study.version}: {study.title}"], parts)


def _warnings(study: Study) -> list[Note]:
    return [Note("warning", text) for text in study_warnings(study)]


def _with_names(block: Block) -> Block:
    """The block with readable names, if it is a table of quantities."""
    if not isinstance(block, Table) or block.heads[0] != "quantity":
        return block
    rows = [(_quantity(name), *rest) for name, *rest in block.rows]
    return block._replace(rows=rows)


def _quantity(name: str) -> str:
    """The readable name of a quantity."""
    for pattern, words in NAMES:
        name = re.sub(pattern, words, name)
    return name


def last_line(result: MP2Result, output: str) -> str:
    """The closing line of a finished run."""
    method = result.options.correlation
    line = f"dfmp2 finished: E({method.title}, total) = {result.total_energy:.10f} Eh"
    if method.kind != "none":
        line += f", E(corr) = {result.correlation_energy:.10f} Eh"
    gradient = result.gradient
    if gradient is not None:
        line += f", |gradient| = {gradient.norm:.8f} Eh/bohr ({gradient.scaling})"
    line += f" -> {printable(output)}"
    if result.diagnostics.warnings:
        line += f"; {counted_text(len(result.diagnostics.warnings), 'warning')}"
    return line


def pair_table(result: MP2Result) -> str:
    """All stored pair energies, one line per pair, numbered from 1 over all orbitals."""
    if result.options.correlation.kind != "pairs":
        return f"{result.method} has no pair energies\n"
    if result.pairs.summed:
        return "the file keeps energies alone, without those of pairs\n"
    lines = [f"{'channel':<18}{'i':>5}{'j':>5}{'energy / Eh':>22}"]
    frozen = frozen_before_pairs(result)
    for name, matrix in result.pairs.channels().items():
        mirrored = name != "opposite_spin" or result.reference.nspin == 1
        rows, columns = frozen[name]
        for (i, j), energy in np.ndenumerate(matrix):
            if not mirrored or i <= j:
                lines.append(f"{name:<18}{i + 1 + rows:>5}{j + 1 + columns:>5}{energy:>22.14f}")
    return "\n".join(lines) + "\n"


def prepared_report(prepared: Prepared, path: str, *, brief: bool = False) -> str:
    """The report of a prepared file, ending in a newline; `brief` omits molecule, method, reference
    and anything in the closing line of the command."""
    made = prepared.provenance
    memory = format_bytes(prepared.memory.measured_peak)
    shapes = " and ".join(" x ".join(map(str, shape)) for shape in prepared.shapes)
    spent = ", ".join(
        f"{name} {value:.2f} s" for name, value in asdict(prepared.timings).items() if value
    )
    facts = [
        (
            "",
            f"B {shapes} (occupied, virtual, fitting functions), float64: "
            f"{format_bytes(prepared.tensor_bytes)}",
        ),
        ("SCF made with", f"--precision {prepared.options.precision}"),
        ("wall time", f"{spent}; peak memory {memory}"),
        (
            "made",
            f"{made.created} on {made.host}, {counted_text(made.threads, 'thread')}: {made.command}",
        ),
        *(("warning", text) for text in prepared.diagnostics.warnings),
    ]
    if not brief:
        facts.append(("go on", _go_on(path)))
    head = f"{path}: prepared by dfmp2 {made.version}, no pair energies yet"
    sections = [Section("prepared", "Prepared", [Facts(facts)])]
    if not brief:
        sections = [*input_sections(prepared), *sections]
    return document_text([head], sections)


def prepared_last_line(prepared: Prepared, path: str) -> str:
    """The closing line of a finished preparation."""
    return printable(
        f"dfmp2 prepared: E(SCF) = {prepared.reference.scf_total_energy:.10f} Eh -> {path}; "
        f"go on: {_go_on(path)}"
    )


def _go_on(path: str) -> str:
    """The command that computes the pair energies."""
    return shlex.join(["dfmp2", "energy", "--from", os.fspath(path)])


def result_html(result: MP2Result) -> str:
    """An HTML table of the energies that people quote, for notebooks."""
    caption = f"{result.molecule.formula}: {result.level} on {result.backend}, {result.precision}"
    body = "".join(
        f"<tr><td>{name}</td><td style='text-align:right'>{energy}</td>"
        f"<td>E<sub>h</sub></td><td>{html.escape(meaning)}</td></tr>"
        for name, energy, meaning in quoted_energies(result).rows
    )
    return f"<table><caption>{html.escape(caption)}</caption>{body}</table>"


def study_html(study: Study) -> str:
    """HTML tables of the values and the table of a study, for notebooks."""
    caption = f"{study.title}: {study.status}, {counted_text(len(study.runs), 'run')}"
    values = "".join(
        f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>"
        f"{cell(item.value, item.units)}</td><td>{html.escape(item.units)}</td></tr>"
        for name, item in study.values.items()
    )
    text = f"<table><caption>{html.escape(caption)}</caption>{values}</table>"
    if not study.table:
        return text
    heads = "".join(
        f"<th>{html.escape(f'{name} / {column.units}' if column.units else name)}</th>"
        for name, column in study.table.items()
    )
    rows = []
    for row in range(len(next(iter(study.table.values())).values)):
        cells = [
            f"<td style='text-align:right'>{html.escape(cell(column.values[row], column.units, name))}</td>"
            for name, column in study.table.items()
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"{text}<table><tr>{heads}</tr>{''.join(rows)}</table>"
