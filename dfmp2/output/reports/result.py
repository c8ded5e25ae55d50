"""Reports on a result, the same for the text that a command prints and for the page."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

from dfmp2.mp2.result import Calculated, MP2Result
from dfmp2.output.document import (
    Block,
    Code,
    Facts,
    Section,
    Table,
    without_folders,
)
from dfmp2.output.reports.cost import cost_section
from dfmp2.output.reports.derivatives import derivative_sections
from dfmp2.output.reports.energies import energies_section
from dfmp2.output.reports.errors import trust_section
from dfmp2.output.reports.method import method_section
from dfmp2.output.reports.molecule import molecule_section
from dfmp2.output.reports.pairs import pairs_section
from dfmp2.output.reports.records import record_facts
from dfmp2.output.reports.reference import reference_section

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
