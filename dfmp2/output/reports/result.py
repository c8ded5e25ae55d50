"""Reports on a result, the same for the text that a command prints and for the page."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import partial

import numpy as np

from dfmp2.mp2.result import Calculated, MP2Result
from dfmp2.output.document import (
    Block,
    Code,
    Facts,
    Figure,
    Section,
    Table,
    fixed,
    without_folders,
)
from dfmp2.output.drawings.plots import Bar, bars
from dfmp2.output.reports.derivatives import derivative_sections
from dfmp2.output.reports.energies import energies_section, pairs_section
from dfmp2.output.reports.errors import trust_section
from dfmp2.output.reports.method import method_section, molecule_section, reference_section
from dfmp2.output.reports.records import record_facts
from dfmp2.planning.sizes import Spin, Workload

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
