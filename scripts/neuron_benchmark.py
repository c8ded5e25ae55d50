#!/usr/bin/env python3
"""Time the pair step on Trainium: nothing compiled, in a fresh process, warm; PyTorch and the prediction beside it.

Every phase is a process of its own, because a runtime loads programs once:

    cold     empty folder of compiled programs      fresh    the same folder, a new process      warm    its later runs

The arrays and energies are those of `dfmp2 bench --shape`; a wrong energy ends with exit code 8 and no table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dfmp2.backends.base import Shape
from dfmp2.errors import BackendUnavailable, ComparisonFailed, Dfmp2Error, InputError, KernelFailed
from dfmp2.host import threads
from dfmp2.host.resources import usable_cores
from dfmp2.mp2.pairs import pair_energies
from dfmp2.progress import Collector, Silent
from dfmp2.trainium import entry
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.costs import catalogue, prediction
from dfmp2.trainium.costs.chips import CHIPS, Assumptions
from dfmp2.trainium.launch import environment, toolchain
from dfmp2.trainium.launch.executors import executor
from dfmp2.trainium.launch.proof import RAMP
from dfmp2.validation import bench as shapes
from dfmp2.validation import machine, synthetic
from dfmp2.validation.synthetic import KERNEL_CERTIFICATE

LANES = ("nki", "nki-xla")
REHEARSAL = "nki-interpreter"
PLAIN_NAMES = {
    "nki": "compiled programs",
    "nki-xla": "torch-xla",
    REHEARSAL: "interpreter on the host",
}
LONGEST = 7200.0  # s of one phase; compiling the large shape may take most of it
Found = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--lane", choices=(*LANES, REHEARSAL), default="nki")
    parser.add_argument("--shapes", default="medium,large", metavar="LIST")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--json", default="neuron-benchmark.json", metavar="FILE")
    parser.add_argument(
        "--without-torch", action="store_true", help="leave PyTorch on the host out"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would run, and the predictions"
    )
    parser.add_argument("--phase", metavar="SHAPE", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    try:
        if given.repeats < 2:
            raise InputError(
                f"--repeats {given.repeats}: expected 2 or more, since the first run of a process is not warm"
            )
        if given.phase:
            print(json.dumps(phase(given.lane, given.phase, given.repeats)))
            return 0
        names = [name.strip() for name in given.shapes.split(",")]
        predictions = {name: predict(shapes.problem(name)) for name in names}
        if given.dry_run:
            print(plan(given.lane, names, given.repeats, predictions), end="")
            return 0
        refuse(given.lane)
        target = Path(given.json)
        if not target.absolute().parent.is_dir():
            raise InputError(f"--json {target}: there is no such folder")
        found = measure(
            given.lane, names, given.repeats, predictions, with_torch=not given.without_torch
        )
    except Dfmp2Error as error:
        print(f"neuron_benchmark: {error}", file=sys.stderr)
        return error.exit_code
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found), end="")
    return 0


def refuse(lane: str) -> None:
    """Refuse to time what is not there.

    Raises
    ------
    BackendUnavailable : the reason, and what to do
    """
    reason = None if lane == REHEARSAL else entry.refusal(lane)
    if reason is not None:
        raise BackendUnavailable(
            f"lane {lane} cannot be used: {reason}; --dry-run shows what would be timed"
        )


def predict(problem: shapes.Problem) -> Found:
    """Predicted seconds of the pair step on one core of the chip here, else of trn1: engines, dispatch, transfers."""
    shape = Shape(problem.kernel.nocc, problem.kernel.nvir, problem.kernel.naux)
    chip = CHIPS[toolchain.device_target() or "trn1"]
    row = catalogue.find("pair_energy")
    price, _ = catalogue.best(row, shape, chip, Assumptions())
    launched = prediction.dispatch("nki", [price], *catalogue.host_bytes(row, shape, price))
    return {
        "chip": chip.name,
        "device": price.makespan / 1e9,
        "usual": price.at(catalogue.USUAL) / 1e9,
        "slowest": price.at(catalogue.SLOWEST) / 1e9,
        "floor": price.floor / 1e9,
        "dispatch": launched.calls / 1e3,
        "queued": launched.queued / 1e3,
        "link": launched.link / 1e3,
        "programs": price.neffs,
        "calls": price.calls,
    }


def measure(
    lane: str, names: Sequence[str], repeats: int, predictions: Found, *, with_torch: bool
) -> Found:
    """All phases of all shapes."""
    doubts = Collector(Silent())
    header = machine.watch(doubts)
    found: Found = {
        "lane": lane,
        "rehearsal": lane == REHEARSAL,
        "machine": header.lines(),
        "warnings": doubts.warnings,
        "shapes": {},
    }
    for name in names:
        with tempfile.TemporaryDirectory(prefix="dfmp2-benchmark-") as folder:
            variables = {
                "DFMP2_NEFF_CACHE": folder,
                "NEURON_COMPILE_CACHE_URL": str(Path(folder) / "xla"),
            }
            phases = {
                kind: in_a_process(lane, name, repeats, variables) for kind in ("cold", "fresh")
            }
        judge(name, phases)
        host = torch_times(name) if with_torch else None
        found["shapes"][name] = {**phases, "predicted": predictions[name], "torch": host}
    return found


def in_a_process(lane: str, name: str, repeats: int, variables: dict[str, str]) -> Found:
    """One phase; the seconds from its start to its end besides what it says itself.

    Raises
    ------
    KernelFailed : it failed; its last line says why
    """
    command = [sys.executable, __file__, "--phase", name, "--lane", lane, "--repeats", str(repeats)]
    print(f"{name}: {' '.join(command[1:])}", file=sys.stderr, flush=True)
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise KernelFailed(
            f"{name} on lane {lane} took more than {LONGEST:.0f} s: does the compiler hang?"
        ) from error
    if done.returncode != 0:
        told = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise KernelFailed(f"{name} on lane {lane} ended with {done.returncode}: {told}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "process": time.perf_counter() - begin}


def phase(lane: str, name: str, repeats: int) -> Found:
    """In this process: open the lane, upload, the pair step several times.

    Returns
    -------
    seconds of each part, the energy's deviation in Eh, and what the lane proves
    """
    problem = shapes.problem(name)
    begin = time.perf_counter()
    if lane != REHEARSAL:
        backend = entry.make(lane, 1)
    else:
        backend = NkiBackend(lane, executor("nki-interpreter"))
    opened = time.perf_counter() - begin
    ramp = time.perf_counter() + (RAMP if lane != REHEARSAL else 0.0)
    with threads.limited(usable_cores()):
        b, space = synthetic.make(problem.kernel, usable_cores())
        begin = time.perf_counter()
        operand = backend.put(b, space.eps_occ, space.eps_vir, "mixed")
        uploaded = time.perf_counter() - begin
        runs = []
        for turn in range(repeats):
            if turn == 1:
                time.sleep(max(0.0, ramp - time.perf_counter()))
            begin = time.perf_counter()
            pairs = pair_energies([operand], backend)
            runs.append(time.perf_counter() - begin)
    energy = pairs.opposite_spin_energy + pairs.same_spin_energy
    return {
        "open": opened,
        "upload": uploaded,
        "first": runs[0],
        "warm": runs[1:],
        "difference": energy - problem.energy,
        "proof": backend.describe(),
    }


def judge(name: str, phases: Found) -> None:
    """Raise where an energy is wrong.

    Raises
    ------
    ComparisonFailed : it differs by more than float32 explains
    """
    problem = shapes.problem(name)
    allowed = problem.tolerance + KERNEL_CERTIFICATE * abs(problem.energy)
    for kind, found in phases.items():
        if not abs(found["difference"]) <= allowed:
            raise ComparisonFailed(
                f"{name}, {kind}: the energy is off by {found['difference']:.1e} Eh, more than {allowed:.1e} Eh: its "
                "time means nothing"
            )


def torch_times(name: str) -> Found | None:
    """Seconds of the pair step with PyTorch on this host by precision, None where it is not there."""
    command = [
        sys.executable,
        "-m",
        "dfmp2",
        "bench",
        "--shape",
        name,
        "--backend",
        "torch",
        "--json",
        "-",
        "--quiet",
    ]
    free = {k: v for k, v in os.environ.items() if k != "DFMP2_REQUIRE_NKI"}
    done = subprocess.run(
        command, env=free, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    if done.returncode != 0:
        print(f"{name}: no times of PyTorch: {done.stderr.strip()}", file=sys.stderr)
        return None
    times: dict[str, list[float]] = {}
    for one in json.loads(done.stdout)["measurements"]:
        times.setdefault(one["precision"], []).append(one["pairs"])
    return {precision: statistics.median(seconds) for precision, seconds in times.items()}


def table(found: Found) -> str:
    """What was measured, as Markdown."""
    title = f"pair step on lane {found['lane']} ({PLAIN_NAMES[found['lane']]}), seconds"
    if found["rehearsal"]:
        title = "REHEARSAL on the interpreter: nothing of this is a time of a device"
    lines = [title, "", *found["machine"], *found["warnings"], ""]
    lines += [
        "| shape | cold process | compiling | fresh process | its first run | warm (range) | predicted | upload "
        "| PyTorch fp32 | fp64 | warm to fp32 | energy off by / Eh |",
        "|" + "---|" * 12,
    ]
    for name, one in found["shapes"].items():
        warm, torch = one["fresh"]["warm"], one["torch"] or {}
        middle = statistics.median(warm)
        best = one["predicted"]["device"] + one["predicted"]["queued"]
        worst = one["predicted"]["slowest"] + one["predicted"]["dispatch"]
        if torch.get("mixed"):
            ratio = f"{torch['mixed'] / middle:.1f} times"
        else:
            ratio = "-"
        cells = [
            name,
            f"{one['cold']['process']:.1f}",
            f"{one['cold']['first'] - one['fresh']['first']:.1f}",
            f"{one['fresh']['process']:.1f}",
            f"{one['fresh']['first']:.3f}",
            f"{middle:.4f} ({min(warm):.4f}-{max(warm):.4f})",
            f"{best:.4f}-{worst:.4f}",
            f"{one['fresh']['upload']:.3f}",
            *(f"{torch[p]:.2f}" if p in torch else "-" for p in ("mixed", "fp64")),
            ratio,
            f"{one['fresh']['difference']:.1e}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    for name, one in found["shapes"].items():
        lines += [
            "",
            f"what ran, {name}:",
            *(f"    {key}: {value}" for key, value in one["fresh"]["proof"].items()),
        ]
    return "\n".join(lines) + "\n"


def plan(lane: str, names: Sequence[str], repeats: int, predictions: Found) -> str:
    """What would run, and the predictions."""
    lines = [
        f"dry run: would time lane {lane}, {repeats} runs of each process; {environment.cache_folder()} is not used"
    ]
    for name in names:
        one = predictions[name]
        lines.append(
            f"    {name}: cold and fresh process, PyTorch; {1e3 * one['device']:.1f} to {1e3 * one['slowest']:.1f} ms "
            f"predicted on one {one['chip']} core (floor {1e3 * one['floor']:.2f}), {1e3 * one['queued']:.1f} to "
            f"{1e3 * one['dispatch']:.1f} ms dispatch of {one['calls']} calls, {1e3 * one['link']:.1f} ms transfers, "
            f"{one['programs']} programs to compile"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
