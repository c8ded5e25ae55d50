"""Reports on the errors of the energies and the checks that were made."""

from __future__ import annotations

from dfmp2.mp2.error_budget import ErrorBudget, Share
from dfmp2.mp2.result import Certificate, Check, FittingCertificate, MP2Result
from dfmp2.output.document import (
    ABSENT,
    Block,
    Facts,
    Note,
    Section,
    Table,
    difference,
    size,
)
from dfmp2.output.reports.records import OF_CERTIFICATE, SCF_OF_CHECK, record_facts
from dfmp2.units import counted_text


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
    if found.sampled_orbitals < found.orbitals:
        drawn = f", drawn at random (seed {found.seed})"
    else:
        drawn = ""
    rest = (
        f"four-centre integrals of {found.sampled_orbitals} of {found.orbitals} occupied "
        f"orbitals{drawn}"
    )
    return [*facts, ("", rest)]
