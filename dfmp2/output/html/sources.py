"""The page of a result or a study; for a batch see `dfmp2.output.html.batch`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape

from dfmp2.molecule.text import printable
from dfmp2.mp2.error_budget import ErrorBudget
from dfmp2.mp2.result import MP2Result
from dfmp2.output import hdf5
from dfmp2.output.document import (
    ABSENT,
    DOUBTS,
    Block,
    Code,
    Facts,
    Figure,
    Note,
    Section,
    SummaryTile,
    Table,
    energy_text,
    fixed,
    size,
    without_folders,
)
from dfmp2.output.html.batch import batch_page, is_batch
from dfmp2.output.html.notation import WORDS, formula, quantity, with_formulas, written
from dfmp2.output.html.page import Summary, render, verbatim
from dfmp2.output.reports.energies import quoted_energies
from dfmp2.output.reports.method import asked_for, method_name
from dfmp2.output.reports.result import in_full
from dfmp2.output.reports.study import of_study, study_warnings
from dfmp2.output.reports.study_tables import cell
from dfmp2.output.study import Study, is_study, read_verified_study
from dfmp2.units import DEBYE, counted_text, format_bytes

LONGEST_NAME = 60  # characters of a molecule's name in the summary
LONGEST_COMMAND = 240  # characters in the summary; its section has the full command
FIRST_OF_INTERACTION = [
    f"{part}, {scheme}"
    for part in ("total", "SCF", "correlation")
    for scheme in ("CP", "without CP")
]
MOST_VALUES = 8  # values of a study in the summary
MOST_IN_FULL = 8  # results with their own sections; keeps a page of 100 below 2 MB
# kind of study -> title of the tile, and the names of its value, of which the first found is used
FOUND = {
    "interaction": {
        "interaction energy, "
        "counterpoise-corrected": "cp_corrected_interaction_energy_kcal_per_mol",
        "interaction energy, uncorrected": "uncorrected_interaction_energy_kcal_per_mol",
    },
    "cbs": {
        "total energy, limit": "composite_total_energy cbs_total_energy cbs_mp2_total_energy",
        "correlation energy, limit": "cbs_correlation_energy cbs_mp2_correlation_energy",
    },
    "scan": {
        "minimum at": "minimum_quartic minimum_parabola",
        "energy there": "minimum_quartic_energy minimum_parabola_energy",
    },
    "optimization": {
        "total energy, optimised": "optimized_total_energy",
        "change since the start": "energy_change",
        "largest gradient": "max_gradient",
    },
    "irc": {
        "barrier forwards": "barrier_forward_kj_per_mol",
        "barrier backwards": "barrier_backward_kj_per_mol",
        "reaction energy": "reaction_energy_kj_per_mol",
    },
    "frequencies": {"zero-point energy": "zero_point_energy", "Gibbs energy": "gibbs_energy"},
    "thermochemistry": {
        "zero-point energy": "zero_point_energy",
        "Gibbs energy": "gibbs_energy",
        "entropy": "entropy",
    },
    "reaction": {
        "reaction energy": "reaction_energy_kj_per_mol",
        "reaction enthalpy": "reaction_enthalpy_kj_per_mol",
        "reaction Gibbs energy": "reaction_gibbs_energy_kj_per_mol",
    },
}


class Entry(NamedTuple):
    """A result on a page.

    Attributes
    ----------
    name : str
        Short name, unique on the page.
    result : MP2Result
        The result.
    content : str
        Verified content hash of its file.
    """

    name: str
    result: MP2Result
    content: str


class Origin(NamedTuple):
    """A file that a page is made from: its name, and its verified content hash."""

    name: str
    content: str


def page(source: Path, title: str | None) -> str:
    """The page of a result, a study or a batch.

    Raises
    ------
    InputError, ResultFileError, ResourceError : it cannot be read
    """
    if is_batch(source):
        return batch_page(source, title)
    if is_study(source):
        study, content = read_verified_study(source)
        runs = [
            Entry(name, _slim(result), f"{content} (table)") for name, result in study.runs.items()
        ]
        return study_page(study, runs, title, Origin(source.name, f"{content} (table)"))
    result, content = hdf5.read_verified(source)
    return result_page(Entry(source.name, _slim(result), content), title)


def result_page(entry: Entry, title: str | None) -> str:
    """The page of one result."""
    r = entry.result
    name, level = r.options.correlation.title, method_name(r)
    tiles = [
        SummaryTile(f"E({name}, total) / Eh", energy_text(r.total_energy)),
    ]
    if r.options.correlation.kind != "none":
        tiles.append(SummaryTile(f"E({name}, correlation) / Eh", energy_text(r.correlation_energy)))
    if r.gradient is not None:
        tiles.append(
            SummaryTile("|gradient| / Eh/bohr", f"{r.gradient.norm:.8f}", r.gradient.scaling)
        )
    tiles += [
        *_errors(r),
        SummaryTile("method", *level.split(" on ", 1)),
        _stability(r),
        _checks(r),
        SummaryTile(
            "backend, precision",
            f"{r.backend}, {r.precision}",
            f"wall time {fixed(r.timings.total)} s",
        ),
    ]
    heading = verbatim(title or r.molecule.name)
    if not title:
        heading += f": {written(r.level)}"
    spin = f"charge {r.molecule.charge}, multiplicity {r.molecule.multiplicity}"
    subtitle = (
        f"{formula(r.molecule.formula, r.molecule.charge)}, {spin}; computed "
        f"{r.provenance.created} by dfmp2 {r.provenance.version}"
    )
    sections = in_full(r, entry.content)
    drawing, sections[0] = _taken_out(sections[0])
    blocks = [
        r.error_budget.summary,
        *drawing,
        _quoted(r),
        Facts(_in_brief(r)),
        Facts(_origin(Origin(entry.name, entry.content), r.provenance.command)),
    ]
    summary = Summary(heading, subtitle, tiles, blocks, r.diagnostics.warnings)
    return render(summary, sections, entry.name)


def _taken_out(section: Section) -> tuple[list[Block], Section]:
    """The figures of a section, and the section without them."""
    figures: list[Block] = [block for block in section.blocks if isinstance(block, Figure)]
    rest = [block for block in section.blocks if not isinstance(block, Figure)]
    return figures, section._replace(blocks=rest)


def _in_brief(r: MP2Result) -> list[tuple[str, str]]:
    """Molecule, basis sets, gap and dipole moment, a line each."""
    molecule = r.molecule
    facts = [
        ("molecule", shorten(molecule.name, LONGEST_NAME)),
        ("formula", formula(molecule.formula, molecule.charge)),
        ("atoms", f"{len(molecule.real_symbols)}, {counted_text(r.sizes.nelectron, 'electron')}"),
    ]
    if len(molecule.real_symbols) < molecule.natom:
        facts.append(("ghost centres", str(molecule.natom - len(molecule.real_symbols))))
    if molecule.point_charges is not None:
        facts.append(("point charges", str(len(molecule.point_charges))))
    if r.options.solvent is not None:
        facts.append(("solvent", r.options.solvent_title))
    facts.append(("basis", f"{r.orbital_basis.names}, {r.sizes.nao} functions"))
    for kind, basis, count in (
        ("SCF fitting", r.scf_fitting, r.sizes.naux_scf),
        ("MP2 fitting", r.mp2_fitting, r.sizes.naux),
    ):
        if basis is not None and basis.elements:
            facts.append((kind, f"{basis.names}, {count} functions"))
    if r.reference.nspin > 1:
        facts.append(("<S^2>", f"{r.reference.spin_square:.4f}"))
    facts.append(("HOMO-LUMO gap", f"{r.diagnostics.homo_lumo_gap:.4f} Eh"))
    if r.properties is not None:
        dipole = DEBYE * float(np.linalg.norm(r.properties.relaxed_dipole))
        facts.append(("dipole moment", f"{dipole:.4f} D"))
    spent = f"{fixed(r.timings.total)} s on {counted_text(r.provenance.threads, 'thread')}"
    facts.append(("time, memory", f"{spent}, {format_bytes(r.memory.measured_peak)}"))
    return facts


def _quoted(result: MP2Result) -> Table:
    """The energies that people quote, without their components."""
    table = quoted_energies(result)
    return Table("Energies", table.heads[:2], [row[:2] for row in table.rows])


def _origin(file: Origin, command: str) -> list[tuple[str, str]]:
    """The file, its hash and the command, shortened."""
    return [
        ("file", file.name),
        ("content", f"SHA-256 {file.content}"),
        ("command", shorten(without_folders(command), LONGEST_COMMAND)),
    ]


def _errors(r: MP2Result) -> list[SummaryTile]:
    """The number of reliable digits, and the expected density-fitting error."""
    budget = r.error_budget
    fits = [
        source for key in ("scf_fitting", "mp2_fitting") if (source := budget.sources[key]).shares
    ]
    known = all(share.value is not None for source in fits for share in source.shares)
    kinds = ", ".join(dict.fromkeys(source.kinds for source in fits))
    parts = "; ".join(f"{source.name} {size(source.total)}" for source in fits)
    if known:
        total = size(sum(source.total for source in fits))
    else:
        total = ABSENT
    if budget.decimals is None:
        good = ("not known", "")
    else:
        good = (counted_text(budget.decimals, "decimal"), _about(budget))
    return [
        SummaryTile("good to", *good),
        SummaryTile("fitting error / Eh", total, f"{kinds}: {parts}"),
    ]


def _about(budget: ErrorBudget) -> str:
    if budget.total is None:
        return ""
    if budget.reaction is None:
        return f"±{size(budget.total)} Eh"
    return f"±{size(budget.total)} Eh; in a reaction energy ±{size(budget.reaction)} Eh"


def _stability(r: MP2Result) -> SummaryTile:
    """The reference, and whether a lower SCF solution exists."""
    kind, found = r.reference.title, r.reference.stability
    if found is None:
        return SummaryTile("reference", kind, "its stability was not examined")
    if not found.unstable:
        return SummaryTile("reference", f"{kind}, {found.verdict}", found.method)
    remarks = []
    for instability, gain in found.gains.items():
        remark = f"a lower {instability.split(' to ')[1]} solution exists"
        if gain:
            remark += f", at least {size(gain)} Eh below"
        remarks.append(remark)
    return SummaryTile("reference", f"{kind}, {found.verdict}", "; ".join(remarks), "warning")


def _checks(r: MP2Result) -> SummaryTile:
    """The checks that the run made, their methods, and the number of its warnings."""
    certificate = r.certificate
    check = r.check
    count = len(r.diagnostics.warnings)
    passed, said = {}, []
    if check is not None:
        passed["PySCF check"] = check.passed
        said.append(f"{check.program} differs by {size(check.largest_difference)} Eh at most")
    if certificate is not None:
        passed["certificate"] = certificate.accepted or certificate.repeated_in_fp64
        outcome = f"error of the precision {size(certificate.correlation_error)} Eh at most"
        if certificate.repeated_in_fp64:
            outcome = "repeated in float64"
        pairs = counted_text(certificate.pairs, "pair")
        said.append(f"certificate, {certificate.sampled} of {pairs}: {outcome}")
    failed = [f"{name} failed" for name, good in passed.items() if not good]
    words = failed or ([f"{' and '.join(passed)} passed"] if passed else [])
    mood = ""
    if count:
        words.append(counted_text(count, "warning"))
        mood = "warning"
    else:
        words.append("no warnings")
    if failed:
        mood = "failure"
    return SummaryTile("checks", ", ".join(words), "; ".join(said), mood)


def _common(study: Study, entries: Sequence[Entry]) -> list[SummaryTile]:
    """The requested method, and the number of warnings, of which several runs may give the same;
    empty without runs."""
    if not entries:
        return []
    methods = list(dict.fromkeys(asked_for(entry.result) for entry in entries))
    levels = first(list(dict.fromkeys(level for level, _ in methods)), 2)
    count = len(study.all_warnings)
    warned = sum(bool(entry.result.diagnostics.warnings) for entry in entries)
    of = f"in {warned} of {counted_text(len(entries), 'run')}"
    if count and not warned:
        of = "not of its runs"
    return [
        SummaryTile(
            "method",
            levels,
            methods[0][1] if len(methods) == 1 else counted_text(len(methods), "method"),
        ),
        SummaryTile("warnings", count, of, "warning" if count else ""),
    ]


def _answers(study: Study) -> list[SummaryTile]:
    """The main results of a study."""
    tiles = []
    if "stationary_point" in study.settings:
        tiles.append(_kind_of_point(study))
    if "wavenumber" in study.table:
        tiles.append(_imaginary_modes(study.table["wavenumber"].values))
    for words, names in FOUND[study.kind].items():
        item = next((study.values[name] for name in names.split() if name in study.values), None)
        if item is not None:
            value = cell(item.value, item.units)
            if item.units in ("angstrom", "degree"):
                value = f"{item.value:.6g}"
            units = item.units.replace("hartree", "Eh")
            tiles.append(SummaryTile(f"{words} / {units}", value, item.description))
    if study.kind == "scan":
        tiles += _turns_of_scan(study, found_minimum=bool(tiles))
    return tiles


def _imaginary_modes(wavenumbers: Sequence[float]) -> SummaryTile:
    """The number of imaginary modes, of all modes."""
    lowest = ""
    if wavenumbers:
        lowest = f"lowest {cell(min(wavenumbers), 'cm^-1')} cm^-1"
    imaginary = sum(wavenumber < 0 for wavenumber in wavenumbers)
    return SummaryTile("imaginary modes", imaginary, f"of {len(wavenumbers)}, {lowest}")


def _turns_of_scan(study: Study, *, found_minimum: bool) -> list[SummaryTile]:
    """The minima and maxima between the points of a scan, else its lowest point."""
    bends = study.arrays.get("extrema_curvature")
    if bends is not None:
        minima = int((bends.value > 0).sum())
        maxima = len(bends.value) - minima
        words = (
            f"{counted_text(minima, 'minimum', 'minima')}, "
            f"{counted_text(maxima, 'maximum', 'maxima')}"
        )
        return [SummaryTile("between the points", words, "")]
    if found_minimum:
        return []
    energies = study.table["relative_energy"].values
    points = [number for number, energy in enumerate(energies) if math.isfinite(energy)]
    if not points:
        return []
    lowest = min(points, key=energies.__getitem__)
    names = study.settings.get("coordinates", list(study.table)[:1])
    coordinates = [study.table[name] for name in names]
    place = ", ".join(f"{column.values[lowest]:.6g}" for column in coordinates)
    name = "lowest point"
    if coordinates[0].units:
        name = f"lowest point / {', '.join(column.units for column in coordinates)}"
    about = "of those computed"
    if len(coordinates) == 1 and coordinates[0].units:
        about = "of those computed: no minimum inside was found"
    return [SummaryTile(name, place, about)]


def _kind_of_point(study: Study) -> SummaryTile:
    """The kind of stationary point an optimisation found, and whether a Hessian confirms it."""
    imaginary = study.settings["imaginary_modes"]
    if imaginary is None:
        return SummaryTile("geometry", "stationary point", "its Hessian was not computed: --verify")
    mood = "failure"
    if imaginary == int(study.settings["transition_state"]):
        mood = ""
    modes = counted_text(imaginary, "imaginary mode")
    return SummaryTile(
        "geometry", study.settings["stationary_point"], f"{modes}, by its Hessian", mood
    )


def study_page(study: Study, runs: Sequence[Entry], title: str | None, file: Origin) -> str:
    """The page of a study: its stored results, then its runs, of which there may be none."""
    tiles = [*_answers(study), *_common(study, runs)]
    if not study.complete:
        tiles.append(
            SummaryTile(
                "status", study.status, "not everything that was asked for has been run", "failure"
            )
        )
    failed = study.settings.get("failed", 0)
    if failed:
        about = f"of {study.settings['points']}"
        tiles.append(SummaryTile("failed points", failed, about, "failure"))
    budget = study.error_budget
    if budget is not None and budget.total is not None:
        tiles.append(
            SummaryTile("good to", _about(budget), f"{budget.energy}, from {budget.exact}")
        )
    shown = _shown_in_full(study, runs)
    results, listed = of_study(study, anchors(shown))
    settings = json.dumps(dict(study.settings), indent=1, ensure_ascii=False)
    given = (
        Code("Command", without_folders(study.command)),
        Code("Settings", without_folders(settings), folded=True),
    )
    figures, results = _taken_out(results)
    molecules = []
    if shown and study.kind != "reaction":  # where no molecule represents the others
        # The energies of a scan belong to different geometries, of which the lowest is drawn; other
        # studies have a single one.
        drawn = shown[0]
        if study.kind == "scan":
            drawn = min(shown, key=lambda entry: entry.result.total_energy)
        molecule = in_full(drawn.result, drawn.content)[0]
        if not figures:
            figures, molecule = _taken_out(molecule)
        molecules.append(molecule._replace(title=f"Molecule ({drawn.name})"))
    formulas = [entry.result.molecule.formula.partition(" + ghost ")[0] for entry in runs]
    doubts = [note for note in study.notes if any(doubt in note for doubt in DOUBTS)]
    worded: list[Block] = []
    for block in results.blocks:
        if block in doubts:
            worded.append(Note("warning", str(block)))
        elif isinstance(block, str):
            worded.append(with_formulas(block, formulas))
        else:
            worded.append(block)
    sections = [
        results._replace(blocks=[*worded, *given]),
        *molecules,
        listed,
        *each_in_full(shown),
    ]
    subtitle = (
        f"{study.kind} of {counted_text(len(runs), 'run')}; computed {study.created} by "
        f"dfmp2 {study.version}"
    )
    blocks: list[Block] = []
    if budget is not None:
        blocks.append(budget.summary)
    blocks += [
        *figures,
        *_main_values(results, study.kind),
        Facts(_origin(file, study.command)),
    ]
    warnings = [*doubts, *study_warnings(study)]
    heading = _page_title(study, formulas)
    if title:
        heading = verbatim(title)
    return render(Summary(heading, subtitle, tiles, blocks, warnings), sections, file.name)


def _page_title(study: Study, formulas: Iterable[str]) -> Markup:
    """The title of a study with formulas and names as people write them, but for the name of its
    molecule, or its equation, which the user wrote."""
    said = study.settings.get("equation", study.settings.get("name", ""))
    before, found, after = study.title, "", ""
    if said:
        before, found, after = study.title.partition(said)
    program = [written(with_formulas(_of_title(text), formulas)) for text in (before, after)]
    if "equation" in study.settings:
        found = found.replace("->", WORDS["->"])
    return escape(program[0]) + verbatim(found) + escape(program[1])


def _of_title(text: str) -> str:
    return printable(without_folders(text))


def _shown_in_full(study: Study, runs: Sequence[Entry]) -> Sequence[Entry]:
    """The runs of a study that are worth a section each, the most important one first."""
    if study.kind == "optimization":  # the last step is the answer
        steps = [entry for entry in runs if entry.name in study.path]
        return [*steps[-1:], *steps[:-1]]
    if study.kind in ("frequencies", "irc"):  # the displaced geometries all look alike
        return runs[:1]
    if study.kind == "reaction":  # skip intermediate steps and displaced geometries
        final = [one["run"] for one in study.settings["species"]]
        return [entry for entry in runs if entry.name in final] or runs[:1]
    return runs


def _main_values(results: Section, kind: str) -> list[Block]:
    """The first numbers of a study, as many as fit into the summary, without descriptions.

    For an interaction energy, those with and without counterpoise correction come first.
    """
    for block in results.blocks:
        if isinstance(block, Table) and block.heads[0] == "quantity":
            rows = sorted(block.rows, key=lambda row: quantity(row[0]) not in FIRST_OF_INTERACTION)
            columns = 3  # name, value, unit
            if kind in ("interaction", "reaction"):
                columns = len(block.heads) - 1
            brief = [row[:columns] for row in rows[:MOST_VALUES]]
            return [Table("Main values", block.heads[:columns], brief)]
    return []


def _slim(result: MP2Result) -> MP2Result:
    """The result without its orbital coefficients, which no page shows and which might not fit into
    memory for many results."""
    none = np.empty((result.reference.nspin, 0, 0))
    return replace(result, reference=replace(result.reference, mo_coeff=none), mole_json="")


def anchors(entries: Sequence[Entry]) -> dict[str, str]:
    """Anchors of the results that are shown in full."""
    return {entry.name: f"r{place}" for place, entry in enumerate(entries[:MOST_IN_FULL], start=1)}


def each_in_full(entries: Sequence[Entry]) -> Iterator[Section]:
    """The sections of the first results, one result after the other."""
    for entry in entries[:MOST_IN_FULL]:
        start = anchors(entries)[entry.name]
        yield Section(start, entry.name, [])
        for section in in_full(entry.result, entry.content):
            yield section._replace(anchor=f"{start}-{section.anchor}", level=3)
    if len(entries) > MOST_IN_FULL:
        shown = f"The first {MOST_IN_FULL} of {len(entries)} results are shown in full"
        note = Note(
            "info", f"{shown}; dfmp2 report shows any of the others when it is named alone."
        )
        yield Section("rest", "Not shown in full", [note])


def first(names: Sequence[str], most: int) -> str:
    """The first `most` names, with an ellipsis if there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
