#!/usr/bin/env python3
"""How busy the engines were in a profile of a pair kernel, beside the prediction of the cost model.

    python scripts/profile_table.py --capture SHAPE --results DIR    profile the programs of a shape on this device
    python scripts/profile_table.py --shape SHAPE SUMMARY.json...    the table, in the order of the programs

SUMMARY.json is what `neuron-explorer view --output-format summary-json` prints (neuron-profile before SDK 2.31): times
in seconds, shares from 0 to 1. Capturing leaves profiles (.ntff) and summaries (.json) in DIR. Exit code 6 where there
is no profiler.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dfmp2.errors import BackendUnavailable, Dfmp2Error, InputError, KernelFailed
from dfmp2.trainium import calls
from dfmp2.trainium.calls import Call, parse_shape
from dfmp2.trainium.costs.chips import CHIPS, Assumptions
from dfmp2.trainium.costs.schedule import Account, schedule_call
from dfmp2.trainium.interpreter import rules
from dfmp2.trainium.launch import compiler, environment, toolchain
from dfmp2.trainium.launch.compiler import NeffCache

ENGINES = ("tensor", "vector", "scalar", "gpsimd")
LEAST_USE = 0.85  # of the Tensor Engine, below which the schedule has gaps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--capture", metavar="SHAPE", help="compile and profile the programs of a shape"
    )
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="where profiles go (default: here)",
    )
    parser.add_argument("--shape", metavar="SHAPE", help="shape of the profiles")
    parser.add_argument("summaries", nargs="*", type=Path, metavar="SUMMARY.json")
    given = parser.parse_args(arguments)
    try:
        if given.capture:
            print(table(given.capture, capture(given.capture, given.results)), end="")
        elif given.shape and given.summaries:
            print(table(given.shape, [read(path) for path in given.summaries]), end="")
        else:
            raise InputError("nothing to do: give --capture SHAPE, or --shape SHAPE and summaries")
    except Dfmp2Error as error:
        print(f"profile_table: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def calls_of(shape: str) -> tuple[Call, ...]:
    """The pair calls that the backend makes for a shape on this chip."""
    size = parse_shape(shape)
    generation = rules.GENERATION[toolchain.device_target() or "trn1"]
    return calls.pair_energy_calls(
        *size, generation, calls.variants(size.nvir, size.naux, generation)[-1]
    )


def compiled(shape: str) -> list[str]:
    """Files of the compiled programs of a shape.

    Raises
    ------
    InputError : one of them is not in the cache
    """
    cache, versions = NeffCache(environment.cache_folder()), compiler.compiler_versions()
    files = []
    for call in calls_of(shape):
        program = calls.program_of(call.source, call.kernel, call.arguments)
        found = cache.find(program, toolchain.device_target() or "trn1", versions)
        if found is None:
            raise InputError(
                f"{program.label} is not in {cache.folder}: dfmp2 kernels warmup --shape {shape}"
            )
        files.append(str(found.path))
    return files


def capture(shape: str, folder: Path) -> list[dict[str, Any]]:
    """Profile the second execution of each program; the first also loads.

    Raises
    ------
    BackendUnavailable : no profiler; KernelFailed : a profile failed
    """
    profiler = shutil.which("neuron-explorer") or shutil.which("neuron-profile")
    if profiler is None:
        raise BackendUnavailable(
            "neither neuron-explorer nor neuron-profile is on PATH: install aws-neuronx-tools"
        )
    compiler.compile_ahead((parse_shape(shape),), toolchain.device_target() or "trn1")
    found = []
    for number, program in enumerate(compiled(shape), 1):
        trace = folder / f"profile-{number}.ntff"
        _run([profiler, "capture", "-n", program, "-s", str(trace), "--profile-nth-exec=2"])
        made = sorted(
            folder.glob(f"profile-{number}*.ntff")
        )  # some releases add the execution to the name
        if not made:
            raise KernelFailed(f"{profiler} left no profile of {program}")
        told = _run(
            [profiler, "view", "-n", program, "-s", str(made[0]), "--output-format", "summary-json"]
        )
        summary = folder / f"profile-{number}.json"
        summary.write_text(told)
        found.append(read(summary))
    return found


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise KernelFailed(f"{' '.join(command)} ended with {done.returncode}: {told}")
    return done.stdout


def read(path: Path) -> dict[str, Any]:
    """The numbers of a summary; some releases put them below the name of the profile.

    Raises
    ------
    InputError : no such file, or it is something else
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as a summary: {error}", file=str(path)) from error
    if isinstance(found, dict) and len(found) == 1 and isinstance(next(iter(found.values())), dict):
        found = next(iter(found.values()))
    if not isinstance(found, dict) or "total_time" not in found:
        raise InputError(
            "has no total_time: expected the output of view --output-format summary-json",
            file=str(path),
        )
    return found


def table(shape: str, summaries: Sequence[dict[str, Any]]) -> str:
    """Measured and predicted times of each program.

    Raises
    ------
    InputError : more summaries than programs
    """
    listed = calls_of(shape)
    if len(summaries) > len(listed):
        raise InputError(f"{len(summaries)} summaries for the {len(listed)} programs of {shape}")
    lines = []
    for call, summary in zip(listed, summaries, strict=False):
        chip = CHIPS[toolchain.device_target() or "trn1"]
        _, account, _ = schedule_call(call, chip, Assumptions())
        lines += _program(call, summary, account)
    return "\n".join(lines) + "\n"


def _program(call: Call, summary: dict[str, Any], account: Account) -> list[str]:
    total = float(summary["total_time"]) * 1e3
    if call.arguments["diagonal"]:
        kind = "diagonal"
    else:
        kind = "off-diagonal"
    predicted = account.makespan / 1e6
    lines = [
        f"{call.kernel}, {kind}: {total:.3f} ms measured, {predicted:.3f} ms predicted ({total / predicted:.2f} times)",
        f"    {'engine':<8}{'measured ms':>12}{'predicted ms':>14}{'busy':>8}",
    ]
    for engine in ENGINES:
        seconds = summary.get(f"{engine}_engine_active_time")
        share = summary.get(f"{engine}_engine_active_time_percent")
        if seconds is None:
            busy = "-"
        else:
            busy = f"{float(seconds) * 1e3:.3f}"
        part = "-" if share is None else f"{100 * float(share):.0f} %"
        lines.append(f"    {engine:<8}{busy:>12}{account.busy[engine] / 1e6:>14.3f}{part:>8}")
    moved = [summary.get(f"hbm_{way}_bytes") for way in ("read", "write")]
    if None not in moved:
        lines.append(
            f"    HBM: {moved[0]} bytes read ({account.bytes_read} predicted), {moved[1]} written "
            f"({account.bytes_written} predicted)"
        )
    use = summary.get("tensor_engine_active_time_percent")
    if use is not None and float(use) < LEAST_USE:
        lines.append(
            f"    the Tensor Engine waits {100 * (1 - float(use)):.0f} % of the time: look for gaps in the profile"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
