"""A planned run as JSON and as text."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from dfmp2.planning import Outlook
from dfmp2.units import format_bytes

FILE_OVERHEAD = 300_000  # bytes of a result file besides orbitals and pair energies


def to_dict(outlook: Outlook) -> dict[str, Any]:
    """The object `dfmp2 plan --json` prints: bytes, operations, seconds."""
    plan, setup, system = outlook.plan, outlook.setup, outlook.system
    work, memory, limits = plan.work, plan.memory, setup.backend.limits
    spins = len(work.spins)
    numbers = spins * work.nao * (work.nao + 2) + 4 * sum(s.nocc**2 for s in work.spins)
    return {
        "sizes": {
            "natom": system.molecule.natom,
            "nelectron": int(sum(system.mole.nelec)),
            "nao": work.nao,
            "naux_scf": work.naux_scf,
            "naux": work.naux,
            "frozen_core": outlook.core.orbitals,
            "nocc": [s.nocc for s in work.spins],
            "nvir": [s.nvir for s in work.spins],
            "tiles": plan.tiles,
        },
        "memory_bytes": {
            "program": memory.program,
            "scf": memory.scf_in_core if memory.scf_fits_in_core else memory.scf_least,
            "mp2": memory.mp2,
            "peak": memory.predicted_peak,
            "budget": memory.budget,
            "device": memory.mp2 if limits.memory is not None else 0,
            "disk": FILE_OVERHEAD + 8 * numbers,
        },
        "flops": work.flops(),
        "seconds": asdict(plan.timings),
        "rates": "measured on this host" if plan.measured else "built-in",
        "threads": setup.threads,
        "backend": setup.backend.name,
        "reason": setup.backend_reason,
        "fits": memory.fits,
        "change": outlook.change,
    }


def to_json(outlook: Outlook) -> str:
    """JSON text with a newline."""
    return json.dumps(to_dict(outlook), indent=2) + "\n"


def to_text(outlook: Outlook) -> str:
    """The plan for reading."""
    facts = to_dict(outlook)
    sizes, memory, flops = facts["sizes"], facts["memory_bytes"], facts["flops"]
    molecule = outlook.system.molecule
    operations = {
        "scf": flops["exchange"] + flops["scf_fit"] + flops["eigen"],
        "fit": flops["fit"],
        "transform": flops["transform"],
        "pair_energies": flops["pairs_fp64"] + flops["pairs_mixed"],
    }
    lines = [
        f"{molecule.name}: {molecule.formula}, {sizes['nelectron']} electrons, {sizes['nao']} functions, "
        f"fitting sets of {sizes['naux_scf']} (SCF) and {sizes['naux']} (MP2)",
        f"correlated: {sizes['nocc']} occupied, {sizes['nvir']} virtual; frozen core {sizes['frozen_core']}; "
        f"{sizes['tiles']} tiles of pairs",
        f"backend {facts['backend']}: {facts['reason']}; {facts['threads']} threads; rates {facts['rates']}",
        "",
        f"{'stage':<16}{'predicted / s':>14}{'operations':>14}",
    ]
    for name, value in facts["seconds"].items():
        count = f"{operations[name]:14.2e}" if name in operations else ""
        lines.append(f"{name.replace('_', ' '):<16}{value:>14.2f}{count}")
    lines.append("")
    labels = {
        "scf": "SCF",
        "mp2": "MP2",
        "peak": "peak",
        "budget": "allowed",
        "device": "device",
        "disk": "result file",
    }
    for name, label in labels.items():
        lines.append(f"memory, {label:<12}{format_bytes(memory[name]):>14}")
    verdict = "fits" if facts["fits"] else f"does not fit: use {facts['change']}"
    return "\n".join([*lines, "", f"verdict: {verdict}"]) + "\n"
