"""A planned run as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import Any

from dfmp2.backends.base import Prediction
from dfmp2.errors import Message, Option
from dfmp2.host.resources import free_disk
from dfmp2.host.scratch import RESERVE
from dfmp2.output.document import WIDTH, Table, aligned
from dfmp2.output.json import fitting_error_of_atoms
from dfmp2.output.reports.method import fitting_errors
from dfmp2.output.reports.result import AFTER
from dfmp2.planning.devices import card_bytes
from dfmp2.planning.memory import MemoryPlan
from dfmp2.planning.plan import Outlook
from dfmp2.planning.rates import BUILT_IN, Rates
from dfmp2.planning.sizes import FLOAT64, Workload
from dfmp2.units import counted_text, format_bytes

# Bytes of the small datasets and texts in a result file, of those that relaxed densities add, and of
# those in a prepared file; for 20 files of 3 to 62 atoms the sum is 0.91 to 1.04 of the size.
FILE_OVERHEAD, DENSITIES_OVERHEAD, PREPARED_OVERHEAD = 100_000, 16_000, 75_000


def plan_dict(outlook: Outlook) -> dict[str, Any]:
    """The object `dfmp2 plan --json` prints: bytes, operations, seconds."""
    plan, setup, system = outlook.plan, outlook.setup, outlook.system
    work, memory, limits = plan.work, plan.memory, setup.backend.limits
    orbitals = len(work.spins) * work.nao * (work.nao + 2)
    prepared = 0
    if setup.options.correlation.kind != "none":
        prepared = PREPARED_OVERHEAD + FLOAT64 * orbitals + work.b_bytes
    change = outlook.change
    if not change and not _has_space(outlook):
        space = format_bytes(memory.scratch + RESERVE)
        change = Message(Option("scratch"), f" on a disk with {space} free")
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
        "scf_fitting_error": fitting_error_of_atoms(system.scf_fitting, system.molecule),
        "mp2_fitting_error": fitting_error_of_atoms(system.mp2_fitting, system.molecule),
        "memory_bytes": {
            "program": memory.program,
            "scf": memory.scf,
            "scf_gathered": memory.scf_gathered if memory.scf_gathers else 0,
            "mp2": memory.mp2,
            "gradient": memory.gradient.peak,
            "peak": memory.predicted_peak,
            "budget": memory.budget,
            "least": memory.least,
            "comfortable": memory.comfortable,
            "device": card_bytes(work, limits, made_there=setup.options.transform == "device"),
            "disk": _result_bytes(work, setup.options.correlation.kind, orbitals),
            "prepared": prepared,
        },
        "scratch": {
            "folder": str(setup.scratch),
            "scf_integrals": _place_of_integrals(memory),
            "fitted_tensor": "memory" if memory.mp2_fits_in_core else "disk",
            "bytes": memory.scratch,
            "free_bytes": _free(setup.scratch),
            "written_bytes": plan.traffic.written,
            "read_bytes": plan.traffic.read,
            "cached": plan.traffic.cached,
            "bytes_per_second": asdict(plan.disk or BUILT_IN),
            "rates": "built-in" if plan.disk is None else "measured on this host",
        },
        "flops": work.flops(),
        "seconds": {**asdict(plan.timings), "command": plan.timings.total + plan.rates.launch},
        "trainium": _predictions(outlook.trainium),
        "transform": {"place": "device" if setup.options.transform == "device" else "host"},
        "rates": "measured on this host" if plan.rates.date else "built-in",
        "rates_measured": {"date": plan.rates.date, "foreign_cores": plan.rates.foreign},
        "threads": setup.threads,
        "backend": setup.backend.name,
        "reason": setup.backend_reason,
        "fits": memory.fits and _has_space(outlook),
        "change": change,
    }


def _result_bytes(work: Workload, kind: str, orbitals: int) -> int:
    """Bytes of the result file.

    Parameters
    ----------
    kind : of the correlation energy; only "pairs" stores pair energies
    orbitals : numbers of the orbitals
    """
    numbers, overhead = orbitals, FILE_OVERHEAD
    if kind == "pairs":
        numbers += work.spins[0].nocc * work.spins[-1].nocc + sum(s.nocc**2 for s in work.spins)
    if work.task != "energy":
        numbers += 2 * len(work.spins) * work.nao**2
        overhead += DENSITIES_OVERHEAD
    return overhead + FLOAT64 * numbers


def _place_of_integrals(memory: MemoryPlan) -> str:
    """Where the SCF keeps its fitted integrals."""
    if not memory.scf_disk:
        return "none"
    if memory.scf_fits_in_core:
        return "memory"
    return "disk"


def _predictions(trainium: Sequence[Prediction] | None) -> dict[str, Any] | None:
    """Predicted times of the pair energies by chip and number of cores; None if not requested."""
    if trainium is None:
        return None
    found: dict[str, Any] = {
        "label": "pair energies on one core where no number of cores is given, float32; "
        "predicted, not measured"
    }
    for one in trainium:
        found[_place(one)] = {k: v for k, v in asdict(one).items() if k != "chip"}
    return found


def _free(folder: Path) -> int:
    """Bytes free in a folder; 0 if it cannot be used."""
    try:
        return free_disk(folder)
    except OSError:
        return 0


def _has_space(outlook: Outlook) -> bool:
    needed = outlook.plan.memory.scratch
    return needed == 0 or _free(outlook.setup.scratch) >= needed + RESERVE


def plan_json(outlook: Outlook) -> str:
    """JSON text with a newline."""
    return json.dumps(plan_dict(outlook), indent=2) + "\n"


MEMORY = {  # key of memory_bytes -> what it is called; JSON has the parts of the peak too
    "peak": "peak",
    "budget": "allowed",
    "least": "smallest safe limit",
    "comfortable": "all in core",
    "device": "device",
    "disk": "result file",
    "prepared": "prepared file",
}


TIMES = {
    "scf": "SCF",
    "pair_energies": "pair energies",
    **AFTER,
    "command": "with start and end of the command",
}


def plan_text(outlook: Outlook) -> str:
    """The plan as text."""
    facts = plan_dict(outlook)
    molecule = outlook.system.molecule
    sizes, memory, flops, scratch = (
        facts[key] for key in ("sizes", "memory_bytes", "flops", "scratch")
    )
    operations = {
        "scf": flops["exchange"]
        + flops["exchange_single"]
        + flops["examined"]
        + flops["scf_fit"]
        + flops["eigen"],
        "fit": flops["fit"],
        "transform": flops["transform"],
        "pair_energies": flops["pairs_fp64"] + flops["pairs_mixed"],
    }
    alone = outlook.setup.options.correlation.kind == "none"
    without_work = set(AFTER)
    if alone:
        without_work |= {"integrals", "fit", "transform", "pair_energies"}
    seconds = {
        name: value for name, value in facts["seconds"].items() if value or name not in without_work
    }
    stages = []
    # sums last
    for name in sorted(seconds, key=lambda name: name in ("total", "command")):
        count = f"{operations[name]:.2e}" if name in operations else ""
        stages.append((TIMES.get(name, name), f"{seconds[name]:.2f}", count))
    subject = (
        f"{molecule.name}: {molecule.formula}, {counted_text(sizes['nelectron'], 'electron')}, "
        f"{counted_text(sizes['nao'], 'function')}"
    )
    orbitals = f"{_of_spins(sizes['nocc'])} occupied, {_of_spins(sizes['nvir'])} virtual orbitals"
    if alone:
        system = [f"{subject}, fitting set of {sizes['naux_scf']} (SCF)", orbitals]
    else:
        system = [
            f"{subject}, fitting sets of {sizes['naux_scf']} (SCF) and {sizes['naux']} (MP2)",
            f"correlated: {orbitals}",
            f"frozen core: {sizes['frozen_core']}; {counted_text(sizes['tiles'], 'tile')} of pairs",
        ]
    places = [f"SCF integrals: {scratch['scf_integrals']}"]
    if not alone:
        places.append(f"B: {scratch['fitted_tensor']}")
    facts_of_run = [
        *system,
        *fitting_errors(molecule, outlook.system.scf_fitting, outlook.system.mp2_fitting),
        f"backend {facts['backend']} ({facts['reason']}), "
        f"{counted_text(facts['threads'], 'thread')}",
        _rates(outlook.plan.rates),
    ]
    lines = [
        *(line for fact in facts_of_run for line in wrap(fact, WIDTH, break_on_hyphens=False)),
        "",
        *aligned(Table("", ("stage", "#predicted / s", "#operations"), stages)),
        "",
        *(
            f"memory, {label:<19}{format_bytes(memory[name]):>13}"
            for name, label in MEMORY.items()
            if memory[name]
        ),
        f"scratch, {scratch['folder']}: {format_bytes(scratch['bytes'])} needed, "
        f"{format_bytes(scratch['free_bytes'])} free ({', '.join(places)})",
    ]
    if scratch["bytes"]:
        lines.append(_traffic(scratch))
    if outlook.trainium is not None:
        lines += [
            "",
            *_trainium(outlook.trainium),
            f"B is made on the {facts['transform']['place']}",
        ]
    verdict = "fits"
    if not facts["fits"]:
        verdict = f"does not fit: use {facts['change']}"
    return "\n".join([*lines, "", f"verdict: {verdict}"]) + "\n"


def _traffic(scratch: Mapping[str, Any]) -> str:
    """What is written to the scratch folder and read from it, and how fast."""
    speed = scratch["bytes_per_second"]
    reading, where = "read", "the system has no memory free for it"
    if scratch["cached"]:
        reading, where = "cached", "it stays in the system's memory"
    return (
        f"traffic: {format_bytes(scratch['written_bytes'])} written at "
        f"{format_bytes(speed['write'])}/s, {format_bytes(scratch['read_bytes'])} read at "
        f"{format_bytes(speed[reading])}/s, partly while computing "
        f"({speed['date'][:10] or 'built-in rates'}; {where})"
    )


def _of_spins(numbers: Sequence[int]) -> str:
    """Numbers of orbitals of each spin, e.g. "5" or "5 alpha and 4 beta"."""
    if len(numbers) == 1:
        return str(numbers[0])
    alpha, beta = numbers
    return f"{alpha} alpha and {beta} beta"


def _rates(found: Rates) -> str:
    """When the rates were measured, and whether the machine was quiet."""
    if not found.date:
        return "rates built-in"
    date = found.date[:10]
    if not found.disturbed:
        return f"rates measured on this host, {date}"
    return (
        f"rates of {date}, while others took {found.foreign:.1f} cores, may be low: plan again "
        "later"
    )


def _place(one: Prediction) -> str:
    return one.chip if one.cores == 1 else f"{one.chip}, {one.cores} cores"


def _trainium(predicted: tuple[Prediction, ...]) -> list[str]:
    """Predicted pair energies on one core of each chip: device time, with launches listed
    separately."""
    rows: list[tuple[str, ...]] = []
    for one in predicted:
        if one.obstacle:
            rows.append((f"{_place(one)}: {one.obstacle}", "", "", "", ""))
            continue
        rows.append(
            (
                f"{_place(one)}, lane {one.lane}, {counted_text(one.calls, 'call')}, "
                f"{counted_text(one.neffs, 'NEFF')}",
                f"{one.device:.4f} to {one.slowest:.4f}",
                f"{one.queued:.4f} to {one.dispatch:.4f}",
                f"{one.link:.4f}",
                format_bytes(one.memory),
            )
        )
    heads = ("pair energies, predicted", "#device / s", "#dispatch / s", "#link / s", "#memory")
    if rows:
        return aligned(Table("", heads, rows))
    return ["nothing to correlate on Trainium"]
