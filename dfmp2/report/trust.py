"""How far a result can be trusted and how it came about: reference, certificate, backend, command, environment."""

from __future__ import annotations

import hashlib
import math
from dataclasses import fields

from dfmp2.record import Certificate, Check, Preparation, Provenance, Reference
from dfmp2.report.numbers import ABSENT, difference_cell, energy_cell, size
from dfmp2.report.page import Block, Cell, Code, Facts, Figure, Note, Table, Text, cells, columns
from dfmp2.report.plot import Curve, curves
from dfmp2.result import MP2Result

RELATIVITY = {"none": "none", "x2c": "spin-free one-electron X2C"}
LONGEST_INPUT = 8_000  # characters of the input text that are shown


def reference_blocks(result: MP2Result) -> tuple[Block, ...]:
    """The SCF: how it converged and whether the reference is a sound start for MP2."""
    reference, options, diagnostics = result.reference, result.options, result.diagnostics
    spin = (result.molecule.multiplicity - 1) / 2
    facts = [
        ("reference", f"{reference.kind.upper()}, {_scf_type(reference.scf_type)}"),
        ("relativity", RELATIVITY[options.relativity]),
        ("SCF iterations", f"{reference.cycles}, at most {options.scf_max_cycles} in each SCF"),
        ("convergence methods", ", ".join(reference.ladder) or ABSENT),
        ("start orbitals", reference.start),
        (
            "converged to",
            f"energy change {size(options.scf_conv_tol)} Eh, orbital gradient {size(options.scf_gradient_tol)} Eh",
        ),
        ("HOMO-LUMO gap", f"{diagnostics.homo_lumo_gap:.4f} Eh"),
        ("smallest MP2 denominator", f"{diagnostics.smallest_denominator:.4f} Eh"),
        ("<S²>", f"{reference.spin_square:.6f} (pure spin state: {spin * (spin + 1):.2f})"),
    ]
    notes: list[Block] = []
    if reference.stability is None:
        facts.append(("orbital stability", "not examined"))
    else:
        lowest = reference.stability.lowest_eigenvalue
        value = f", lowest eigenvalue {lowest:.4f} Eh" if math.isfinite(lowest) else ""
        facts.append(("orbital stability", f"{reference.stability.verdict} ({reference.stability.method}{value})"))
        if reference.stability.verdict.startswith("unstable"):
            gain = reference.stability.energy_gain
            least = "" if gain is None else f", at least {size(gain)} Eh below this one"
            notes.append(Note("warning", f"A lower SCF solution exists{least}."))
    return (*notes, Facts(tuple(facts)), *_solutions(reference), *_convergence(reference))


def _solutions(reference: Reference) -> tuple[Block, ...]:
    """Every SCF solution, when there was more than one."""
    found = reference.solutions
    if found is None or len(found.energy) == 1:
        return ()
    rows = tuple(
        (
            Cell(str(row["start"]), float(row["start"])),
            Cell(row["origin"]),
            energy_cell(row["energy"]) if math.isfinite(row["energy"]) else Cell("not converged"),
            _finite_cell(row["spin_square"], ".6f"),
            _finite_cell(row["lowest_eigenvalue"], ".4f"),
            Cell(row["kind"]),
            Cell("used" if number == found.chosen else ""),
        )
        for number, row in enumerate(found.rows(), start=1)
    )
    heads = columns("#start", "start orbitals", "#E(SCF)", "#<S²>", "#lowest eigenvalue", "kind", "")
    return (Table("SCF solutions in the order in which they were found, Eh", heads, rows),)


def _finite_cell(value: float, form: str) -> Cell:
    return Cell(format(value, form), value) if math.isfinite(value) else Cell(ABSENT)


def _convergence(reference: Reference) -> tuple[Block, ...]:
    """How energy and gradient fell from one SCF iteration to the next."""
    history = reference.history
    if history is None or not len(history):
        return (Note("info", "The iterations of this SCF are not recorded: it was done elsewhere, or needed none."),)
    rows = [(n, *map(float, row)) for n, row in enumerate(history, start=1)]
    drawn = [
        Curve("orbital gradient", tuple((float(n), math.log10(g)) for n, _, _, g in rows if g > 0)),
        Curve("change of the energy", tuple((float(n), math.log10(abs(c))) for n, _, c, _ in rows[1:] if c)),
    ]
    values = Table(
        "SCF iterations, Eh",
        columns("#iteration", "#E(SCF)", "#change", "#orbital gradient"),
        tuple((Cell(str(n), float(n)), energy_cell(e), difference_cell(c), difference_cell(g)) for n, e, c, g in rows),
        folded=True,
    )
    picture = curves("Convergence of the SCF", drawn, "iteration", "log10 of the value in Eh")
    caption = "Orbital gradient and change of the energy in each SCF iteration, powers of ten of Eh."
    return (Figure(picture, caption, values),)


def trust_blocks(result: MP2Result) -> tuple[Block, ...]:
    """Backend, certificate, check against PySCF, fitting metric, warnings."""
    diagnostics = result.diagnostics
    method = "eigenvalue cut" if diagnostics.metric_threshold else "Cholesky"
    facts = (
        ("backend", result.backend),
        ("chosen because", result.backend_reason),
        *(_named(detail) for detail in result.provenance.backend_details),
        ("precision", f"{result.precision} (asked for: {result.options.precision})"),
        (
            "fitting metric",
            f"{method}, condition number {size(diagnostics.metric_condition)}, {diagnostics.metric_dropped} of "
            f"{result.sizes.naux} functions dropped",
        ),
    )
    warnings = tuple(Note("warning", text) for text in diagnostics.warnings)
    return (
        *(warnings or (Note("ok", "The run gave no warning."),)),
        Facts(facts),
        *_certificate(result.certificate, result.precision),
        *_check(result.check),
    )


def environment_blocks(result: MP2Result, verified: str) -> tuple[Block, ...]:
    """Exact command, versions, options and input."""
    provenance = result.provenance
    units = {"threads": "threads given to the run"}
    environment = tuple(
        (units.get(field.name, field.name), str(getattr(provenance, field.name)))
        for field in fields(Provenance)
        if field.name not in ("command", "backend_details")
    )
    prepared = (
        ()
        if result.preparation is None
        else tuple(
            (f"prepared: {field.name}", str(getattr(result.preparation, field.name)))
            for field in fields(Preparation)
            if field.name != "backend_details"
        )
    )
    options = tuple(
        cells(f"--{field.name.replace('_', '-')}", str(getattr(result.options, field.name)))
        for field in fields(result.options)
        if getattr(result.options, field.name) is not None
    )
    text = result.molecule.text
    left_out = len(text) - LONGEST_INPUT
    more = f"; the first {LONGEST_INPUT} of {len(text)} characters" if left_out > 0 else ""
    given: tuple[Block, ...] = (Text("The molecule was given as numbers: there is no input text."),)
    if text:
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        given = (Code(f"Input, SHA-256 {digest}{more}", text[:LONGEST_INPUT], folded=text.count("\n") > 12),)
    return (
        Code("Command", provenance.command),
        Facts(
            (*environment, *prepared, ("content of the file", f"SHA-256 {verified}, verified against the stored hash"))
        ),
        Table("Options in force (those not listed were left to their default)", columns("option", "value"), options),
        *given,
    )


def _scf_type(kind: str) -> str:
    return "density fitted" if kind == "df" else kind


def _named(detail: str) -> tuple[str, str]:
    """Name and value of a backend's remark about itself."""
    name, found, value = detail.partition(": ")
    return (f"backend {name}", value) if found else ("backend", detail)


def _certificate(certificate: Certificate | None, precision: str) -> tuple[Block, ...]:
    if certificate is None:
        why = "nothing is computed in reduced precision" if precision == "fp64" else ABSENT
        return (Text(f"Precision certificate: none; {why}."),)
    share = 100 * certificate.sampled / certificate.pairs if certificate.pairs else 0.0
    rows = (
        cells("pairs evaluated", str(certificate.pairs)),
        cells("pairs recomputed in float64 (sample)", f"{certificate.sampled} ({share:.0f} %)"),
        cells("estimated error of E(corr)", f"{size(certificate.correlation_error)} Eh"),
        cells("estimated error of E(SS)", f"{size(certificate.same_spin_error)} Eh"),
        cells("estimated error of E(OS)", f"{size(certificate.opposite_spin_error)} Eh"),
        cells("largest difference of one pair", f"{size(certificate.largest_pair_error)} Eh"),
        cells("accepted up to", f"{size(certificate.tolerance)} Eh"),
    )
    if certificate.repeated_in_fp64:
        note = Note("info", "The estimate exceeded the tolerance, so the pair energies were repeated in float64.")
    elif certificate.accepted:
        note = Note("ok", "The estimated precision error of E(corr) is within the tolerance.")
    else:
        note = Note("failure", "The estimated precision error of E(corr) exceeds the tolerance.")
    caption = "Precision certificate: a sample of pairs, redone in float64 (which ones is not recorded)"
    return note, Table(caption, columns("quantity", "#value"), rows)


def _check(check: Check | None) -> tuple[Block, ...]:
    if check is None:
        return (
            Text("Not checked against PySCF's own DF-MP2 in this run (--check does it, dfmp2 compare does it now)."),
        )
    theirs, ours = check.same_spin + check.opposite_spin, check.correlation_difference
    values = (
        ("same-spin correlation", check.same_spin, check.same_spin_difference),
        ("opposite-spin correlation", check.opposite_spin, check.opposite_spin_difference),
        ("MP2 correlation", theirs, ours),
    )
    rows = tuple(cells(name, energy_cell(value), difference_cell(gap)) for name, value, gap in values)
    kind, word = ("ok", "agrees") if check.passed else ("failure", "differs")
    note = Note(
        kind,
        f"{check.program} on the same orbitals and fitting set {word}: largest difference "
        f"{size(check.largest_difference)} Eh, allowed {size(check.allowed)} Eh. Errors of the SCF and of a fitting "
        "set are not seen; dfmp2 compare --exact sees them.",
    )
    head = columns("energy", "#reference / Eh", "#dfmp2 - reference / Eh")
    return note, Table(f"Check against {check.program}, same orbitals and fitting set", head, rows)
