"""Reports on a result, the same for the text that a command prints and for the page: which sections
it has, and those on its derivatives, its errors, its cost and its origin."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from dfmp2.arrays import Array
from dfmp2.mp2.error_budget import ErrorBudget, Share
from dfmp2.mp2.properties import (
    DENSITIES,
    Gradient,
    GradientCertificate,
    Polarizability,
    Properties,
)
from dfmp2.mp2.result import Calculated, Certificate, Check, FittingCertificate, MP2Result
from dfmp2.output.document import (
    ABSENT,
    Block,
    Code,
    Facts,
    Figure,
    Note,
    Section,
    Table,
    difference,
    fixed,
    size,
    without_folders,
)
from dfmp2.output.drawings.plots import Bar, bars
from dfmp2.output.reports import OF_CERTIFICATE, SCF_OF_CHECK, record_facts
from dfmp2.output.reports.energies import energies_section, pairs_section
from dfmp2.output.reports.method import method_section, molecule_section, reference_section
from dfmp2.planning.sizes import Spin, Workload
from dfmp2.units import DEBYE, counted_text

LONGEST_INPUT = 8_000  # characters


def summary_blocks(result: MP2Result) -> list[Section]:
    """The sections that a run prints."""
    first = [part(result) for part in (molecule_section, method_section, energies_section)]
    return [
        *first,
        *derivative_sections(result),
        *(part(result) for part in (reference_section, trust_section, cost_section)),
    ]


def input_sections(prepared: Calculated) -> list[Section]:
    """Sections on everything known before the pair energies."""
    return [part(prepared) for part in (molecule_section, method_section, reference_section)]


def in_full(result: MP2Result, content: str) -> list[Section]:
    """All sections on a result; `content` is the verified hash of its file."""
    parts = summary_blocks(result)
    pairs = []
    if result.options.correlation.kind == "pairs" and not result.pairs.summed:
        pairs = [pairs_section(result)]
    return [*parts[:3], *pairs, *parts[3:], _provenance(result, content)]


def _provenance(result: MP2Result, content: str) -> Section:
    run, text = result.provenance, result.molecule.text
    facts = [
        *record_facts(run, leave=("command",)),
        ("content of the file", f"SHA-256 {content}, verified"),
    ]
    given = asdict(result.options).items()
    options = [(f"--{name.replace('_', '-')}", value) for name, value in given if value is not None]
    blocks: list[Block] = [
        Code("Command", without_folders(run.command)),
        Facts(facts),
        Table(
            "Options in force (those not listed were left to their default)",
            ("option", "value"),
            options,
            folded=True,
            verbatim=True,
        ),
    ]
    if text:
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        if len(text) > LONGEST_INPUT:
            cut = f"; the first {LONGEST_INPUT} of {len(text)} characters"
        else:
            cut = ""
        blocks.append(
            Code(
                f"Input, SHA-256 {digest}{cut}", text[:LONGEST_INPUT], folded=text.count("\n") > 12
            )
        )
    else:
        blocks.append("The molecule was given as numbers: there is no input text.")
    return Section("provenance", "Command and environment", blocks)


# --- derivatives ----------------------------------------------------------------------------------


def derivative_sections(result: MP2Result) -> list[Section]:
    """Sections on gradient, properties and polarizability, if computed, with their certificate."""
    sections = []
    proof = result.gradient_certificate
    if result.gradient is not None:
        blocks = _gradient(result, result.gradient)
        if proof is not None:
            blocks += _certified(proof)
        sections.append(Section("gradient", "Gradient", blocks))
    if result.properties is not None:
        blocks = _properties(result, result.properties)
        if result.gradient is None and proof is not None:
            blocks += _certified(proof)
        sections.append(Section("properties", "Properties", blocks))
    if result.polarizability is not None:
        sections.append(_polarizability(result.polarizability))
    return sections


def _gradient(result: MP2Result, found: Gradient) -> list[Block]:
    """The gradient of each atom and point charge, and its size."""
    labels = [f"{k} {label}" for k, label in enumerate(result.molecule.labels, start=1)]
    title = f"Gradient of E({found.scaling}), Eh/bohr"
    blocks: list[Block] = [
        _vectors(title, ("atom", "#x", "#y", "#z"), labels, found.total_gradient)
    ]
    if found.point_charge_gradient is not None:
        numbers = [str(k) for k in range(1, 1 + len(found.point_charge_gradient))]
        heads = ("charge", "#x", "#y", "#z")
        title = "On the point charges, Eh/bohr"
        blocks.append(_vectors(title, heads, numbers, found.point_charge_gradient))
    facts = [
        ("norm", f"{found.norm:.10f} Eh/bohr"),
        ("largest component", f"{found.largest:.10f} Eh/bohr"),
        *record_facts(found, leave=("scaling",)),
    ]
    return [*blocks, Facts(facts)]


def _properties(result: MP2Result, own: Properties) -> list[Block]:
    """Dipole moments, charges and natural occupations."""
    kinds = {
        "reference": own.scf_dipole,
        "unrelaxed": own.unrelaxed_dipole,
        "relaxed": own.relaxed_dipole,
    }
    rows = [
        (name, *(f"{x:z.6f}" for x in dipole), f"{DEBYE * float(np.linalg.norm(dipole)):.4f}")
        for name, dipole in kinds.items()
    ]
    caption = "Dipole moment, e bohr, origin of the coordinates"
    if result.molecule.charge:
        caption = f"{caption}, on which that of a charged molecule depends"
    occupied = own.relaxed_occupations
    facts = [
        (
            "natural occupations, relaxed",
            f"largest {occupied.max():.6f}, smallest {occupied.min():.6f}",
        ),
        (
            "electrons outside the reference",
            f"{_excited(result, occupied):.6f} (relaxed natural occupations)",
        ),
    ]
    columns = ("density", "#x", "#y", "#z", "#debye")
    return [Table(caption, columns, rows), *_charges(result, own), Facts(facts)]


def _certified(proof: GradientCertificate) -> list[Block]:
    """Facts from the certificate of a gradient or of densities."""
    passed = Note("ok", f"{proof.owner.capitalize()} certificate is in order.")
    failed = Note(
        "failure", f"The certificate fails: {', '.join(proof.failures).replace('_', ' ')}."
    )
    return [passed if proof.passed else failed, Facts(record_facts(proof))]


def _charges(result: MP2Result, own: Properties) -> list[Block]:
    """Quadrupole moment, charges and spin populations, which are absent in files of earlier
    versions."""
    blocks: list[Block] = []
    names = ("reference", *DENSITIES[1:])
    if own.quadrupole is not None:
        places = {
            "xx": (0, 0),
            "yy": (1, 1),
            "zz": (2, 2),
            "xy": (0, 1),
            "xz": (0, 2),
            "yz": (1, 2),
        }
        rows = [
            (name, *(f"{q[place]:z.6f}" for place in places.values()))
            for name, q in zip(names, own.quadrupole, strict=True)
        ]
        caption = (
            "Quadrupole moment sum q x y, e bohr^2, trace not removed, origin of the coordinates"
        )
        blocks.append(Table(caption, ("density", *(f"#{name}" for name in places)), rows))
    for what, mulliken, lowdin in (
        ("Charges of the atoms, e", own.mulliken_charges, own.lowdin_charges),
        (
            "Spin populations of the atoms, alpha less beta",
            own.mulliken_spin_populations,
            own.lowdin_spin_populations,
        ),
    ):
        if mulliken is not None and lowdin is not None:
            labels = [f"{k} {label}" for k, label in enumerate(result.molecule.labels, start=1)]
            columns = np.concatenate([mulliken, lowdin]).T
            rows = [
                (name, *(f"{x:z.5f}" for x in row))
                for name, row in zip(labels, columns, strict=True)
            ]
            heads = [f"#{kind}, {name}" for kind in ("Mulliken", "Loewdin") for name in names]
            blocks.append(Table(what, ("atom", *heads), rows))
    return blocks


def _polarizability(found: Polarizability) -> Section:
    rows = [
        (axis, *(f"{x:z.5f}" for x in row)) for axis, row in zip("xyz", found.relaxed, strict=True)
    ]
    facts = [
        ("isotropic", f"{found.isotropic:.5f} bohr^3"),
        ("anisotropy", f"{found.anisotropy:.5f} bohr^3"),
        ("isotropic, reference", f"{float(np.trace(found.scf)) / 3:.5f} bohr^3"),
        ("asymmetry", f"{size(found.asymmetry)} bohr^3"),
        ("error of the step", f"{size(found.step_error)} bohr^3, from energies in the same fields"),
        (
            "dipole moments less slopes of energies",
            f"{size(found.dipole_difference)} e bohr at most",
        ),
        ("field", f"{found.field:g} Eh/(e bohr)"),
        ("seconds", fixed(found.seconds)),
    ]
    agreed = "is symmetric; it and the dipole moment agree"
    failed = "is not symmetric, or it or the dipole moment does not agree"
    said = f"The polarizability {agreed if found.passed else failed} with the energies."
    note = Note("ok" if found.passed else "failure", said)
    table = Table(
        "Polarizability, bohr^3, from relaxed dipole moments", ("moment", "#x", "#y", "#z"), rows
    )
    return Section("polarizability", "Polarizability", [table, note, Facts(facts)])


def _vectors(caption: str, heads: Sequence[str], names: Sequence[str], vectors: Array) -> Table:
    """A table of vectors, (n, 3)."""
    return Table(
        caption,
        heads,
        [(name, *(f"{x:z.10f}" for x in row)) for name, row in zip(names, vectors, strict=True)],
    )


def _excited(result: MP2Result, occupations: Array) -> float:
    """Sum of the natural occupations beyond the number of orbitals occupied in the reference."""
    return float(occupations[int((result.reference.mo_occ > 0).sum(axis=1).max()) :].sum())


# --- errors ---------------------------------------------------------------------------------------


def budget_blocks(budget: ErrorBudget) -> list[Block]:
    """The number of reliable digits, and the sources of error with their contributions, Eh.

    A functional without MP2 has no column for E(corr), and no rows for errors in it.
    """
    sources = [source for source in budget.sources.values() if source.shares]
    energies = {"scf": "#in E(SCF) / Eh", "correlation": "#in E(corr) / Eh"}
    if all(source.correlation is None for source in sources):
        del energies["correlation"]
    rows = [
        (
            source.name,
            *(_share(getattr(source, energy)) for energy in energies),
            source.kinds,
            source.how,
        )
        for source in sources
    ]
    sums = []
    for energy in energies:
        value = getattr(budget, energy)
        sums.append(ABSENT if value is None else size(value))
    how = "magnitudes added"
    shares = [share for source in sources for share in source.shares]
    if any(share.error is not None for share in shares):
        how = "magnitudes added; the total takes measured errors with their signs"
    heads = ("source of error", *energies.values(), "kind", "~how it is known")
    return [budget.summary, Table("", heads, [*rows, ("sum", *sums, "", how)])]


def _share(share: Share | None) -> str:
    """Magnitude of an error; "" if the energy is not affected, ABSENT if unknown."""
    if share is None:
        return ""
    if share.value is None:
        return ABSENT
    return size(share.value)


def trust_section(result: MP2Result) -> Section:
    facts = [
        ("backend", f"{result.backend}: {result.backend_reason}"),
        ("device and libraries", ", ".join(result.provenance.backend_details) or "not recorded"),
        ("precision", f"{result.precision} (asked for: {result.options.precision})"),
    ]
    blocks: list[Block] = [Note("warning", text) for text in result.diagnostics.warnings] or [
        Note("ok", "The run gave no warning.")
    ]
    blocks += [*budget_blocks(result.error_budget), Facts(facts)]
    if result.certificate is not None:
        blocks += _certified_precision(result.certificate)
    elif result.precision == "fp64":
        blocks.append("Precision certificate: none; nothing is computed in reduced precision.")
    else:
        blocks.append("Precision certificate: none; not recorded.")
    if result.fitting_certificate is not None:
        blocks.append(Facts(certified_fit(result.fitting_certificate)))
    if result.check is None:
        blocks.append(_not_checked(result))
    else:
        blocks += _checked(result.check)
    return Section("trust", "Errors, precision and backend", blocks)


def _certified_precision(certificate: Certificate) -> list[Block]:
    """The verdict of the certificate of the precision, and its numbers."""
    left_out: tuple[str, ...] = OF_CERTIFICATE
    if certificate.repeated_in_fp64:
        note = Note(
            "info",
            "The bound exceeded the tolerance, so the pair energies were repeated in float64.",
        )
    else:
        left_out = (*OF_CERTIFICATE, "correlation_error")
        note = Note("failure", "The bound on the precision error of E(corr) exceeds the tolerance.")
        if certificate.accepted:
            note = Note(
                "ok", "The bound on the precision error of E(corr) is within the tolerance."
            )
    pairs = counted_text(certificate.pairs, "pair")
    facts = [
        ("certificate", f"{certificate.sampled} of {pairs} redone in float64"),
        *record_facts(certificate, leave=left_out),
    ]
    if certificate.seed is None:  # estimates from versions that did not sample at random
        facts = [
            (name.replace("95 % bound on the error", "estimated error"), value)
            for name, value in facts
        ]
    return [note, Facts(facts)]


def _checked(check: Check) -> list[Block]:
    """The verdict of PySCF's check, and its numbers."""
    mood, verdict, outcome = "ok", "agrees", "passed"
    if not check.passed:
        mood, verdict, outcome = "failure", "differs", "FAILED"
    facts = [
        ("check, same orbitals and fitting set (whose errors it cannot see)", outcome),
        *record_facts(check, leave=SCF_OF_CHECK),
        ("correlation difference", f"{difference(check.correlation_difference)} Eh"),
    ]
    largest = f"largest difference {size(check.largest_difference)} Eh"
    return [Note(mood, f"{check.program} {verdict}: {largest}"), Facts(facts)]


def _not_checked(result: MP2Result) -> str:
    """Comparisons that this run did not make, and the command that makes them."""
    method = result.options.correlation
    if method.kind == "none":
        return "Not checked against PySCF's own Kohn-Sham (now: dfmp2 compare)."
    if result.quadrature is not None:
        return (
            "Not checked against PySCF (now: dfmp2 compare). The error of the quadrature is in the "
            "table above."
        )
    if method.kind != "pairs" or method.regularised:
        return "Not checked against PySCF (now: dfmp2 compare)."
    if method.double_hybrid:
        return (
            "Not checked against PySCF's own Kohn-Sham and DF-MP2 (now: dfmp2 compare; run --check "
            "for DF-MP2 alone)."
        )
    return "Not checked against PySCF's own DF-MP2 (now: dfmp2 compare; in a new run: --check)."


def certified_fit(found: FittingCertificate) -> list[tuple[str, str]]:
    """The fitting errors measured in the molecule, and how they were measured."""
    errors = {
        "E(SCF)": (found.scf_error, found.scf_uncertainty),
        "E(corr)": (found.correlation_error, found.correlation_uncertainty),
    }
    facts = [
        (
            f"fitting error of {name}, measured",
            f"{difference(error)} Eh, sure to {size(uncertainty or 0.0)} Eh",
        )
        for name, (error, uncertainty) in errors.items()
        if error is not None
    ]
    if found.correlation_error is None:
        return [*facts, ("", "measured before pairs were left out")]
    if found.sampled_orbitals < found.orbitals:
        drawn = f", drawn at random (seed {found.seed})"
    else:
        drawn = ""
    rest = (
        f"four-centre integrals of {found.sampled_orbitals} of {found.orbitals} occupied "
        f"orbitals{drawn}"
    )
    return [*facts, ("", rest)]


# --- time and memory ------------------------------------------------------------------------------

STAGES = {
    "scf": "SCF",
    "integrals": "integrals",
    "transform": "transformation",
    "fit": "metric and fit",
    "pair_energies": "pair energies",
}
# In runs that have them
AFTER = {"fitting_certificate": "fitting certificate", "gradient": "gradient and densities"}
SHORTEST = 0.01  # s; over less time, rates are dominated by the clock's resolution


def cost_section(result: MP2Result) -> Section:
    spent = asdict(result.timings)
    predicted = asdict(result.predicted)
    # A derived result keeps the times of its original run
    derived = "derived from" in result.frozen_core_note
    work = {} if derived else operations(result)
    rows: list[tuple[str, ...]] = []
    stages = STAGES
    if result.options.correlation.kind == "none":
        stages = {"scf": STAGES["scf"]}
    stages = stages | {name: title for name, title in AFTER.items() if spent[name]}
    for name, title in stages.items():
        count, seconds = work.get(name, 0), spent[name]
        if not count or not seconds >= SHORTEST:
            rate = None
        else:
            rate = count / seconds / 1e9
        done = f"{count / 1e9:.3g}" if count else ""
        speed = fixed(rate, 3 if name == "integrals" else 1)
        rows.append((title, fixed(seconds), fixed(predicted[name]), done, speed))
    other = max(0.0, spent["total"] - sum(spent[name] for name in stages))
    rows += [("everything else", fixed(other), *[""] * 3)]
    rows += [("total", fixed(spent["total"]), fixed(predicted["total"]), *[""] * 2)]
    times = [*(spent[name] for name in stages), other]
    drawn = [
        Bar(row[0], (seconds,), f"{row[1]} s") for row, seconds in zip(rows, times, strict=False)
    ]
    heads = ("stage", "#time / s", "#predicted", "#10^9 ops", "#10^9/s")
    facts = [("threads", str(result.provenance.threads)), *record_facts(result.memory)]
    left_out: tuple[str, ...] = ()
    if result.options.correlation.kind == "none":
        left_out = ("fitted_tensor",)
    for record, start in (
        (result.storage, "storage: "),
        (result.ranks, "ranks: "),
        (result.preparation, "prepared: "),
    ):
        facts += [] if record is None else record_facts(record, start, leave=left_out)
    blocks: list[Block] = [
        Figure(partial(bars, "Wall time per stage", drawn), "Wall time per stage."),
        Facts(facts),
        Table(
            "Wall time; operations of products, number of integrals, and their rates",
            heads,
            rows,
        ),
    ]
    return Section("cost", "Time and memory", blocks)


def operations(result: MP2Result) -> dict[str, int]:
    """Operations of the stages made of matrix products, and the number of three-centre integrals.

    A multiplication and an addition count as two operations. Those of the SCF are its fit, J and K;
    0 if unknown.
    """
    sizes, certificate = result.sizes, result.certificate
    # A mixed-precision pass that was not accepted was repeated in float64; count both.
    passes = [] if certificate is None else ["mixed"]
    if certificate is None or certificate.repeated_in_fp64:
        passes.append("fp64")
    occupied = np.count_nonzero(result.reference.mo_occ, axis=1).tolist()
    spins = tuple(Spin(*numbers) for numbers in zip(occupied, sizes.nocc, sizes.nvir, strict=False))
    done = [
        Workload(sizes.nao, sizes.naux_scf, sizes.naux, spins, precision, 0).flops()
        for precision in passes
    ]
    pairs = sum(flops["pairs_fp64"] + flops["pairs_mixed"] for flops in done)
    if result.quadrature is not None:
        rows = sum(spin.nocc * spin.nvir for spin in spins)
        pairs = result.quadrature.points * rows * sizes.naux**2
    if result.reference.xc is None:
        made = result.reference.operations
    else:
        made = None
    return {
        "scf": 0 if made is None else int(made.sum()),
        "integrals": sizes.naux * sizes.nao * (sizes.nao + 1) // 2,
        "transform": done[0]["transform"],
        "fit": done[0]["fit"],
        "pair_energies": pairs,
    }
