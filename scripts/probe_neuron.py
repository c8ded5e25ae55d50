#!/usr/bin/env python3
"""Ask a Trainium device the questions that the kernels and their cost model leave open (P1 to P12).

    python scripts/probe_neuron.py                 all of them, each in a process of its own
    python scripts/probe_neuron.py --only P1,P3    some of them
    python scripts/probe_neuron.py --dry-run       on the model alone: what would be asked, and what is expected

Every answer prints what was measured beside what was predicted, what that decides, and which constant or choice in the
code it settles. Exit code 6 where there is no device, 1 when a probe failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))

from neuron_probes.bench import LANES, DeviceBench, ModelBench  # noqa: E402
from neuron_probes.probe import CHIP, Answer, Numbers, Probe, ProbeError  # noqa: E402
from neuron_probes.questions import PROBES  # noqa: E402

from dfmp2.errors import BackendUnavailable, Dfmp2Error  # noqa: E402
from dfmp2.trainium.launch import executors, toolchain  # noqa: E402
from dfmp2.trainium.launch.proof import RAMP  # noqa: E402

LONGEST = 3600.0  # s for one probe or one compilation; 85 thousand statements may take that
GRACE = 30.0  # s that a process gets to end what it has started
INFLIGHT = "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS"  # 0, the default, makes every call wait for its result
QUEUE_LENGTH = "16"
UNTIMED = ("P1", "P3", "P9", "P10")
START = "P12"  # measures the first seconds itself


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], epilog="Exit codes: 0, 1, 6."
    )
    parser.add_argument(
        "--only", metavar="LIST", help="such as P1,P3 (default: all that the lane can answer)"
    )
    parser.add_argument(
        "--lane", choices=LANES, default="nki", help="how kernels are launched (default: nki)"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="also write all numbers, predicted and measured"
    )
    parser.add_argument("--dry-run", action="store_true", help="no device: show what is predicted")
    parser.add_argument(
        "--cache",
        metavar="FOLDER",
        help="keep compiled programs here (default: a temporary folder)",
    )
    parser.add_argument(
        "--turns",
        metavar="FEW,MANY",
        help="of programs whose times are compared (default: 64,1024)",
    )
    parser.add_argument(
        "--ask", metavar="PROBE", help=argparse.SUPPRESS
    )  # one probe in this process, JSON out
    parser.add_argument("--compile", metavar="NOCC,NVIR,NAUX,EDGE", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.turns:
        turns = tuple(int(word) for word in given.turns.split(","))
    else:
        turns = (DeviceBench.few, DeviceBench.many)
    try:
        if given.compile:
            print(json.dumps(compile_here(*(int(word) for word in given.compile.split(",")))))
            return 0
        if given.ask:
            print(json.dumps(ask_here(find(given.ask), given.lane, turns)))
            return 0
        wanted = choose(given.only, given.lane)
        if not given.dry_run:
            require_device(given.lane)
        if given.dry_run:
            answers = [rehearse(p) for p in wanted]
        else:
            answers = measure(wanted, given.lane, given.cache, turns)
    except (Dfmp2Error, ProbeError) as error:
        print(f"probe_neuron: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, Dfmp2Error) else 1
    print(report(answers, "model" if given.dry_run else given.lane), end="")
    if given.json:
        Path(given.json).write_text(
            json.dumps([as_json(answer) for answer in answers], indent=1) + "\n"
        )
    return 1 if any(answer.failed for answer in answers) else 0


def choose(only: str | None, lane: str) -> list[Probe]:
    """The probes that were asked for, or all that the lane can answer.

    Raises
    ------
    ProbeError : one of them does not exist, or is about times and the lane compiles in every call
    """
    answerable = [p for p in PROBES if lane != "nki-call" or p.name in UNTIMED]
    if only is None:
        return answerable
    wanted = [find(name.strip()) for name in only.split(",")]
    bad = [p.name for p in wanted if p not in answerable]
    if bad:
        raise ProbeError(
            f"{', '.join(bad)}: lane {lane} compiles in every call, so no time of it means anything"
        )
    return wanted


def find(name: str) -> Probe:
    """The probe of that name.

    Raises
    ------
    ProbeError : there is none
    """
    for probe in PROBES:
        if probe.name == name:
            return probe
    raise ProbeError(
        f"no probe {name!r}: expected one or more of {', '.join(p.name for p in PROBES)}, commas between"
    )


def require_device(lane: str) -> None:
    """Refuse to probe what is not there.

    Raises
    ------
    BackendUnavailable : no device, or the lane cannot be used; the reason and what to do
    """
    reason = toolchain.refusal(
        lane
    )  # whatever is compiled already: probes compile kernels of their own
    if reason is not None:
        raise BackendUnavailable(
            f"lane {lane} cannot be used: {reason}; --dry-run shows what would be asked"
        )


def rehearse(probe: Probe) -> Answer:
    """What the model predicts."""
    return Answer(probe, probe.ask(ModelBench()))


def measure(
    probes: Sequence[Probe], lane: str, cache: str | None, turns: tuple[int, ...]
) -> list[Answer]:
    """Every probe in a process of its own, so that one that brings the runtime down does not take the others along."""
    answers = []
    with tempfile.TemporaryDirectory(prefix="dfmp2-probes-") as folder:
        place = str(Path(cache or folder) / kernel_version())
        for probe in probes:
            if probe.name == START:  # compiles what the second one finds in the cache
                ask_apart(probe, lane, place, {}, turns)
            answers.append(ask_apart(probe, lane, place, {}, turns))
            if probe.name == "P6":  # the same with calls that may be queued
                answers.append(ask_apart(probe, lane, place, {INFLIGHT: QUEUE_LENGTH}, turns))
    return answers


def kernel_version() -> str:
    """Names the state of the probes' kernels, which the fingerprint of a compiled program does not cover."""
    files = sorted((SCRIPTS / "neuron_probes").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def ask_apart(
    probe: Probe, lane: str, cache: str, variables: dict[str, str], turns: tuple[int, ...]
) -> Answer:
    """One probe in a process of its own."""
    begin = time.perf_counter()
    command = ["--ask", probe.name, "--lane", lane, "--turns", ",".join(map(str, turns))]
    if variables:
        suffix = f" with {' '.join(f'{k}={v}' for k, v in variables.items())}"
    else:
        suffix = ""
    print(f"{probe.name}{suffix}: asking", file=sys.stderr, flush=True)
    failed, numbers = "", None
    try:
        numbers = answer_of(
            command,
            {"DFMP2_NEFF_CACHE": cache, **variables},
            LONGEST * (4 if probe.name == "P8" else 1),
        )
    except ProbeError as error:
        failed = str(error)
    named = Probe(probe.name + suffix, probe.question, probe.ask, probe.decide)
    return Answer(named, probe.ask(ModelBench()), numbers, failed, time.perf_counter() - begin)


def answer_of(arguments: Sequence[str], variables: dict[str, str], limit: float) -> Any:
    """The JSON that this script prints in a process of its own.

    Raises
    ------
    ProbeError : it failed, or took longer than `limit` seconds
    """
    environment = {**os.environ, "PYTHONPATH": _python_path(), **variables}
    command = [sys.executable, str(SCRIPTS / "probe_neuron.py"), *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, told = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise ProbeError(f"no answer within {limit:.0f} s") from None
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # it then ends the compiler that it has started
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
    if process.returncode != 0:
        raise ProbeError(
            (told.strip().splitlines() or [f"the process ended with {process.returncode}"])[-1]
        )
    return json.loads(out.splitlines()[-1])


def ask_here(probe: Probe, lane: str, turns: tuple[int, ...]) -> Numbers:
    """The numbers of a probe, measured in this process; times once the engines have reached their rate."""
    bench = DeviceBench(executors.executor(lane), compile_apart)
    bench.few, bench.many = turns
    if probe.name not in (*UNTIMED, START):
        time.sleep(RAMP)
    return probe.ask(bench)


def compile_apart(shape: tuple[int, int, int], edge: int) -> tuple[float, float]:
    """Seconds and peak bytes of memory to compile a pair block of a shape, without any cache.

    Raises
    ------
    ProbeError : it does not compile, or not in time
    """
    with tempfile.TemporaryDirectory(prefix="dfmp2-probes-") as folder:
        arguments = ["--compile", ",".join(map(str, (*shape, edge)))]
        found = answer_of(arguments, {"DFMP2_NEFF_CACHE": folder}, LONGEST)
    return float(found["seconds"]), float(found["peak"])


def compile_here(nocc: int, nvir: int, naux: int, edge: int) -> dict[str, float]:
    """Compile the off-diagonal pair block of a shape in child processes, and read their peak memory."""
    from dfmp2.trainium import calls
    from dfmp2.trainium.calls import program_of
    from dfmp2.trainium.launch import compiler, environment
    from dfmp2.trainium.launch.compiler import NeffCache
    from dfmp2.trainium.launch.proof import Proof

    call = calls.pair_energy_calls(nocc, nvir, naux, edge=edge)[0]
    program = program_of(call.source, call.kernel, call.arguments)
    begin = time.perf_counter()
    compiler.ensure(
        program, toolchain.device_target() or "trn1", NeffCache(environment.cache_folder()), Proof()
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {"seconds": time.perf_counter() - begin, "peak": float(peak)}


def report(answers: Sequence[Answer], lane: str) -> str:
    """All answers in words."""
    if lane == "model":
        lines = [
            f"dry run: predicted by the interpreter and the cost model for {CHIP.name}; nothing was measured",
            "",
        ]
    else:
        lines = [f"measured on lane {lane}; in brackets what was predicted", ""]
    for answer in answers:
        lines.append(f"{answer.probe.name}  {answer.probe.question}")
        for name, predicted in answer.predicted.items():
            if answer.measured is None:
                lines.append(f"    {name}: {_number(predicted)} predicted")
            elif name in answer.measured:
                lines.append(f"    {name}: {_number(answer.measured[name])} [{_number(predicted)}]")
        if answer.failed:
            lines += [f"    FAILED after {answer.seconds:.0f} s: {answer.failed}", ""]
            continue
        if lane != "model":
            lines.append(f"    took {answer.seconds:.0f} s")
        decision = answer.decision
        lines.append(
            f"    {'would decide' if answer.measured is None else 'decides'}: {decision.text}"
        )
        lines += [f"    settles {setting.place} = {setting.value}" for setting in decision.settles]
        lines.append("")
    return "\n".join(lines)


def as_json(answer: Answer) -> dict[str, Any]:
    """One answer for a file."""
    decided = None if answer.failed else asdict(answer.decision)
    return {
        "probe": answer.probe.name,
        "question": answer.probe.question,
        "predicted": _finite(answer.predicted),
        "measured": None if answer.measured is None else _finite(answer.measured),
        "failed": answer.failed or None,
        "decision": decided if answer.measured is not None else None,
        "seconds": round(answer.seconds, 3),
    }


def _finite(numbers: Numbers) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.4g}"


def _python_path() -> str:
    """The package and the probes' kernels, for the process that compiles them."""
    return os.pathsep.join(
        filter(None, [str(SCRIPTS), str(ROOT), os.environ.get("PYTHONPATH", "")])
    )


if __name__ == "__main__":
    sys.exit(main())
