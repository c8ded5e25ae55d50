"""What a run cost: wall time per stage against the prediction, the rate of the matrix products, memory.

rate = floating-point operations of the stage (`dfmp2.workload`) / its wall time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from dfmp2.forecast import Rates
from dfmp2.record import Storage
from dfmp2.report.numbers import ABSENT, seconds
from dfmp2.report.page import Block, Cell, Facts, Figure, Note, Table, cells, columns
from dfmp2.report.plot import Bar, bars
from dfmp2.result import MP2Result
from dfmp2.units import format_bytes
from dfmp2.workload import Spin, Workload

STAGES = {
    "scf": "SCF",
    "integrals": "integrals",
    "transform": "transformation",
    "fit": "metric and fit",
    "pair_energies": "pair energies",
}
SHORTEST = 0.01  # s; below, a rate would say more about the clock than about the machine


class Speed(NamedTuple):
    """What was measured on the machine of the run with its number of threads, as far as it is known.

    rates : of the program's own routines, per second; None when they were never measured
    products : stage -> operations per second of a large square matrix product in the stage's library and precision
    """

    rates: Rates | None = None
    products: Mapping[str, float] = MappingProxyType({})


class Rate(NamedTuple):
    """Operations of a stage, and the rate measured for that stage's routine, per second."""

    operations: int
    calibrated: float | None


def cost_blocks(result: MP2Result, speed: Speed) -> tuple[Block, ...]:
    """Bars of time and memory, and the table of rates."""
    timings, memory = result.timings, result.memory
    named = [(STAGES[name], getattr(timings, name), getattr(result.predicted, name)) for name in STAGES]
    other = timings.total - sum(value for _, value, _ in named)
    stages = [Bar(name, value, seconds(value), predicted) for name, value, predicted in named]
    stages.append(Bar("everything else", max(other, 0.0), seconds(max(other, 0.0))))
    caption = (
        f"Wall time per stage, {timings.total:.2f} s in all, {_threads(result)}; strokes mark what "
        f"was predicted before the run ({result.predicted.total:.2f} s in all, imports included)."
        f"{' Everything else includes the check by PySCF.' if result.check is not None else ''}"
    )
    amounts: tuple[Bar, ...] = (
        Bar("measured", memory.measured_peak, format_bytes(memory.measured_peak)),
        Bar("predicted", memory.predicted_peak, format_bytes(memory.predicted_peak)),
        Bar("allowed", memory.budget, format_bytes(memory.budget)),
    )
    ratio = memory.predicted_peak / memory.measured_peak if memory.measured_peak else 0.0
    said = f"Peak resident memory of the process; predicted / measured = {ratio:.2f}."
    # A budget far above the need would shrink the other two bars to nothing: it is left to the caption.
    if memory.budget > 8 * max(memory.measured_peak, memory.predicted_peak):
        amounts = amounts[:2]
        said += f" The run was allowed to use {format_bytes(memory.budget)}."
    return (
        Figure(bars("Wall time per stage", stages, "predicted"), caption),
        Figure(bars("Peak memory", amounts), said),
        *_storage(result.storage),
        *_rates(result, speed),
    )


def work_of(result: MP2Result, precision: str) -> Workload:
    """The workload of the run, with its pair energies done in `precision`, "fp64" or "mixed"."""
    sizes = result.sizes
    occupied = [int(np.count_nonzero(occ)) for occ in result.reference.mo_occ]
    spins = tuple(Spin(*numbers) for numbers in zip(occupied, sizes.nocc, sizes.nvir, strict=False))
    return Workload(sizes.nao, sizes.naux_scf, sizes.naux, spins, precision, 0)


def stage_rates(result: MP2Result, rates: Rates | None) -> dict[str, Rate]:
    """Operations and calibrated rate of the stages that are matrix products."""
    certificate = result.certificate
    # A mixed pass whose result was not accepted was followed by one in float64: both were done.
    passes = ["mixed"] if certificate is not None else []
    if certificate is None or certificate.repeated_in_fp64:
        passes.append("fp64")
    done = [work_of(result, precision).flops() for precision in passes]
    exact, mixed = (sum(flops[name] for flops in done) for name in ("pairs_fp64", "pairs_mixed"))
    calibrated = None
    if rates is not None and exact + mixed:
        calibrated = (exact + mixed) / (exact / rates.pairs_fp64 + mixed / rates.pairs_mixed)
    return {
        "transform": Rate(done[0]["transform"], None if rates is None else rates.transform),
        "fit": Rate(done[0]["fit"], None if rates is None else rates.solve),
        "pair_energies": Rate(exact + mixed, calibrated),
    }


def _threads(result: MP2Result) -> str:
    count = result.provenance.threads
    return f"{count} thread{'s' * (count != 1)}"


def _storage(storage: Storage | None) -> tuple[Block, ...]:
    if storage is None:
        return ()
    facts = [
        ("fitted SCF integrals", f"in {storage.scf_integrals}" if storage.scf_integrals != "none" else "none kept"),
        ("fitted integrals B of MP2", f"in {storage.fitted_tensor}"),
    ]
    if storage.written or storage.predicted:
        amounts = (storage.written, storage.read, storage.predicted)
        written, read, planned = (format_bytes(amount) for amount in amounts)
        facts.append(("scratch files", f"{written} written (planned {planned}), {read} read, in {storage.folder}"))
    return (Facts(tuple(facts)),)


def _rates(result: MP2Result, speed: Speed) -> tuple[Block, ...]:
    if "derived from" in result.frozen_core_note:
        return (Note("info", "A derived result keeps the times of its original run, so no rates can be given."),)
    rows = []
    for name, rate in stage_rates(result, speed.rates).items():
        spent, product = getattr(result.timings, name), speed.products.get(name)
        reached = rate.operations / spent if spent >= SHORTEST else None
        shown = Cell("too short to tell") if reached is None else Cell(f"{reached / 1e9:.1f}", reached)
        row = cells(STAGES[name], Cell(f"{rate.operations / 1e9:.3g}"), seconds(spent), shown)
        rows.append((*row, *_against(reached, rate.calibrated), *_against(reached, product)))
    head = ("stage", "#10⁹ operations", "#time", "#GFLOP/s", "#calibrated", "#share", "#matrix product", "#share of it")
    caption = (
        "Floating-point rate, GFLOP/s, of the stages that are matrix products (a multiplication and an addition count "
        "as two operations); calibrated: this program's routine for it; matrix product: a large square one, alone"
    )
    return Table(caption, columns(*head), tuple(rows)), *_unknown(result, speed)


def _against(reached: float | None, best: float | None) -> tuple[Cell, Cell]:
    """A rate to compare with, and the share of it that was reached."""
    if best is None:
        return Cell(ABSENT), Cell("")
    return Cell(f"{best / 1e9:.1f}", best), Cell("" if reached is None else f"{100 * reached / best:.0f} %")


def _unknown(result: MP2Result, speed: Speed) -> tuple[Block, ...]:
    missing = [
        *(["the program's routines (dfmp2 plan --calibrate measures them)"] if speed.rates is None else []),
        *(["matrix products alone (dfmp2 bench --gemm measures them)"] if not speed.products else []),
    ]
    if not missing:
        return ()
    said = (
        f"Result files do not record the speed of their machine, and for host {result.provenance.host} with "
        f"{_threads(result)} there is no record here of {' or of '.join(missing)}."
    )
    return (Note("info", said),)
