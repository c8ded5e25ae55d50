#!/usr/bin/env python3
"""Called by docs/project/trainium/first-day.md: the first hour on a Trainium host, in one archive.

    python scripts/neuron_first_day.py                   all steps of the lanes that can be used
    python scripts/neuron_first_day.py --results DIR     again: continues with the steps that have not passed in DIR
    python scripts/neuron_first_day.py --only root,water
    python scripts/neuron_first_day.py --lane nki-simulator   AWS's simulator alone, without a device

Missing requirements are reported before anything starts. Every step is a process with its output in
DIR/STEP.log; after a failure, steps that do not depend on it continue, but nothing more is launched
on a device that has reported a fault. Exit codes: 0, or that of the first failed step (1, 5, 6, 7,
8); 6 if no lane can be used; 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.backends import registry
from dfmp2.backends.base import Shape, Tile
from dfmp2.mp2.pairs import pair_energies
from dfmp2.trainium import entry
from dfmp2.trainium.calls import SHAPES
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.launch import environment, toolchain

ROOT = Path(__file__).resolve().parent.parent
OWN = str(Path(__file__).resolve())
LANES = ("nki", "nki-xla", "nki-simulator")
GRACE = 30.0  # s allowed for a step to end after Ctrl-C
RAMP = 5.0  # s after which devices have been reported to reach full speed
COARSE = 2.0**-21  # relative error of 1 / D from which the Newton step is needed
FREE = 2 * 10**9  # bytes of disk for programs and logs
DEVICE_FAULT = 7
PRIVATE = (
    (r"\bi-[0-9a-f]{8,17}\b", "INSTANCE"),
    (r"\bip-\d+-\d+-\d+-\d+[\w.-]*", "HOST"),
    (r"(?<![\d.])(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}(?![\d.])", "ADDRESS"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the test.

    Attributes
    ----------
    name : name of its log
    about : the question
    command : arguments of the Python interpreter
    decides : conclusion if it exits with 0
    then : what to do otherwise
    after : steps that must have passed
    seconds : time limit
    """

    name: str
    about: str
    command: tuple[str, ...]
    decides: str
    then: str
    after: tuple[str, ...] = ()
    seconds: float = 1800.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--results", metavar="DIR", help="default: first-day-DATE")
    parser.add_argument("--lane", choices=LANES, help="only this lane (default: all usable)")
    parser.add_argument("--only", metavar="LIST", help="beginnings of names of steps, with commas")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no step after these")
    parser.add_argument("--dry-run", action="store_true", help="show the steps and their commands")
    parser.add_argument("--ask", choices=("root", "times"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.ask:
        return {"root": ask_root, "times": ask_times}[given.ask](given.lane)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = Path(given.results or f"first-day-{stamp}").absolute()
    wanted = (given.lane,) if given.lane else LANES
    if given.dry_run:
        usable: tuple[str, ...] = wanted
    else:
        usable = tuple(lane for lane in wanted if entry.refusal(lane) is None)
    listed = [step for lane in usable for step in steps(lane, folder)]
    words = [word.strip() for word in (given.only or "").split(",") if word.strip()]
    unknown = [word for word in words if not any(s.name.startswith(word) for s in listed)]
    if unknown and listed:
        parser.error(f"--only {', '.join(unknown)}: expected {', '.join(s.name for s in listed)}")
    chosen = [step for step in listed if not words or step.name.startswith(tuple(words))]
    if given.dry_run:
        for step in chosen:
            print(f"{step.name:<24}{step.about}\n{'':<24}{shlex.join(step.command)}")
        return 0
    for warning in warnings(wanted, folder):
        print(f"before it starts: {warning}")
    if not usable:
        print("no lane can be used: nothing was started")
        return 6
    folder.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a lost connection first ends the current step
        signal.signal(number, signal.default_int_handler)
    try:
        code = run(folder, chosen, time.monotonic() + 60 * given.minutes)
    except KeyboardInterrupt:
        print(f"\nstopped; the same command with --results {folder} goes on")
        code = 130
    print(f"\nall of it, without names and addresses of this machine: {pack(folder)}")
    return code


def warnings(lanes: Sequence[str], folder: Path) -> list[str]:
    """Print, before anything runs, what is missing and what cannot be shown."""
    found = []
    for lane in lanes:
        refusal = entry.refusal(lane)
        if refusal is not None:
            found.append(f"lane {lane} is left out: {refusal}")
    if find_spec("pytest") is None:
        found.append(f"the step tests fails: {sys.executable} has no pytest: pip install pytest")
    target = toolchain.device_target()
    if target == "trn1":
        found.append("AWS names trn2 and trn3 for NKI 0.3 and later; others run 0.6 on trn1")
    place = folder
    while not place.exists():
        place = place.parent
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    if free < FREE:
        found.append(f"{place} has {free / 1e9:.1f} GB free: logs and programs may take 2 GB")
    return found


def steps(lane: str, folder: Path) -> list[Step]:
    """The steps of a lane, beginning with cheap and decisive ones."""
    marker = lane.replace("-", "_")
    output = str(folder / f"water-{lane}.dfmp2.h5")
    molecule = str(ROOT / "inputs/h2o.xyz")
    water = ("-m", "dfmp2", "run", molecule, "--basis", "cc-pvdz", "--backend", lane, "--check")
    pytest = ("-m", "pytest", "-p", "no:cacheprovider", "-m", marker, "--require", marker)
    found = [
        Step(
            name=f"root-{lane}",
            about="does a kernel compile, load and run, and how exact is its (e + e)^(-1/2)?",
            command=(OWN, "--ask", "root", "--lane", lane),
            decides="the Vector Engine's power is accurate enough",
            then="set NEWTON = True in dfmp2/trainium/kernels/tiles.py and repeat the step",
        ),
        Step(
            name=f"water-{lane}",
            about="the energy of water beside PySCF's, and the certificate's verdict",
            command=(*water, "--json", "--overwrite", "--output", output),
            decides=f"dfmp2 run --backend {lane} can be trusted with a molecule",
            then="send the archive: energies must not be used",
            after=(f"root-{lane}",),
        ),
        Step(
            name=f"contract-{lane}",
            about="twelve awkward blocks of pair terms against their definition",
            command=("-m", "dfmp2", "kernels", "check", "--lane", lane),
            decides="all shapes and short blocks are right",
            then="send the archive: the table names the shape",
            after=(f"root-{lane}",),
        ),
        Step(
            name=f"tests-{lane}",
            about="the tests of the lane; a skipped one counts as failed",
            command=(*pytest, str(ROOT / "tests/test_nki_on_lanes.py")),
            decides="products, transformation and all variants work",
            then="send the archive",
            after=(f"root-{lane}",),
            seconds=3600.0,
        ),
    ]
    if lane != "nki-simulator":
        found.append(
            Step(
                name=f"times-{lane}",
                about="time of the medium shape and of 50/190/840 beside the predicted range",
                command=(OWN, "--ask", "times", "--lane", lane),
                decides="--backend auto weighs this device rightly",
                then="predictions are wrong here: give --backend by hand, and send the archive",
                after=(f"water-{lane}",),
                seconds=3600.0,
            )
        )
    return found


def run(folder: Path, chosen: Sequence[Step], end: float) -> int:
    """Run the steps one after another; returns the exit code of the first that failed, else 0."""
    file = folder / "summary.json"
    known: dict[str, Any] = {"machine": machine(), "steps": {}}
    if file.exists():
        before = json.loads(file.read_text())
        if before["machine"] == known["machine"]:
            known = before
        else:
            print("packages or instance have changed: every step runs again")
    done, first, stopped = known["steps"], 0, ""
    for number, step in enumerate(chosen, 1):
        print(f"\n[{number}/{len(chosen)}] {step.name}: {step.about}", flush=True)
        missing = [name for name in step.after if done.get(name, {}).get("code", 0) != 0]
        if done.get(step.name, {}).get("code", 1) == 0:
            print("    passed before")
        elif stopped:
            print(f"    not run: the device failed in {stopped}")
        elif missing:
            print(f"    not run: {', '.join(missing)} did not pass")
        elif time.monotonic() > end:
            print("    not run: no time is left; go on with --results")
        else:
            code, last = start(step, folder)
            done[step.name] = {"code": code, "said": last}
            file.write_text(json.dumps(known, indent=1) + "\n")
            print(f"    found: {last}")
            if code == 0:
                print(f"    decides: {step.decides}")
            else:
                print(f"    failed with {code}; then: {step.then}")
                first = first or code
            if code == DEVICE_FAULT:
                stopped = step.name
    return first


def start(step: Step, folder: Path) -> tuple[int, str]:
    """Run a step; returns the exit code of its process, and its last line of output."""
    log = folder / f"{step.name}.log"
    variables = {**os.environ, "DFMP2_NEFF_CACHE": str(folder / "neff")}
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, *step.command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=folder,
            start_new_session=True,
        )
        try:
            code = child.wait(step.seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            os.killpg(child.pid, signal.SIGINT)
            try:
                child.wait(GRACE)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            if isinstance(error, KeyboardInterrupt):
                raise
            return 1, f"no answer in {step.seconds:.0f} s"
    lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    if code == 0 and step.name.startswith("water"):
        facts = json.loads("\n".join(lines[lines.index("{") :]))
        return 0, f"E(corr) {facts['mp2_correlation_energy']:.10f} Eh, checked against PySCF"
    return code, lines[-1].strip()[:300]


def machine() -> dict[str, Any]:
    """Instance and versions, which decide whether results of an earlier run count."""
    names = (*toolchain.PACKAGES, "torch", "numpy")
    here, other = toolchain.toolchain_versions(names), environment.HERE.python
    return {
        "chip": toolchain.device_target() or "none",
        "packages": here,
        "of the compiler": toolchain.toolchain_versions(names, python=other),
        "visible cores": list(entry.visible_cores()),
    }


def ask_root(lane: str) -> int:
    """Print the largest relative error of 1 / D in the pair kernels, 8 if a Newton step is needed."""
    # One virtual orbital and T = 1 give -1 / D for each pair; energies are multiples of 2^-8, so
    # that D is exact.
    backend, _ = registry.select_backend(lane, "auto", 1)
    backend.prepare((Shape(16, 1, 1),))
    rng, worst = np.random.default_rng(1), 0.0
    for _ in range(8):
        occupied = -np.sort(rng.integers(100, 6000, 16) / 256)[::-1]
        virtual = rng.integers(20, 6000, 1) / 256
        operand = backend.put(np.ones((16, 1, 1)), occupied, virtual, "mixed")
        found = backend.pair_terms(operand, operand, Tile(0, 16, 0, 16, True)).direct
        exact = np.triu(1 / (occupied[:, None] + occupied - 2 * virtual))
        pairs = exact != 0
        worst = max(worst, float(np.abs(found[pairs] / exact[pairs] - 1).max()))
    print(f"largest relative error of 1 / D: {worst:.1e}, allowed {COARSE:.1e}")
    return 0 if worst <= COARSE else 8


def ask_times(lane: str) -> int:
    """Print measured and predicted seconds of two shapes, 8 if one is outside its range."""
    backend, _ = registry.select_backend(lane, "auto", 1)
    outside = 0
    for shape in (Shape(50, 190, 840), SHAPES["medium"]):
        backend.prepare((shape,))
        rng = np.random.default_rng(0)
        b = rng.standard_normal(tuple(shape), np.float32) / np.float32(shape.naux)
        energies = -np.linspace(2.0, 1.0, shape.nocc), np.linspace(0.5, 5.0, shape.nvir)
        operand = backend.put(b, *energies, "mixed")
        begin, times = time.perf_counter(), []
        while len(times) < 3 or time.perf_counter() - begin < RAMP + 3 * times[-1]:
            once = time.perf_counter()
            pair_energies([operand], backend)
            times.append(time.perf_counter() - once)
        cores = backend.limits.workers
        chip = toolchain.device_target() or "trn1"
        (one,) = catalogue.predict((shape,), chips=(chip,), cores=cores)
        low, high, taken = one.device + one.queued, one.slowest + one.dispatch, min(times[-3:])
        outside += not low <= taken <= high
        told = f"{taken:.4f} s, predicted {low:.4f} to {high:.4f} on {cores} {chip} cores"
        print(f"{'/'.join(map(str, shape))}: {told}")
    return 8 if outside else 0


def pack(folder: Path) -> Path:
    """Make an archive of logs, summary and failed compilations, without names and addresses."""
    private = [(re.escape(socket.gethostname()), "HOST"), (rf"\b{getpass.getuser()}\b", "USER")]
    target = folder.with_suffix(".tar.gz")
    kept = [*folder.glob("*.log"), *folder.glob("*.json"), *folder.glob("neff/*/failed.log")]
    clean = folder / "clean"
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(kept):
            text = path.read_text(errors="replace")
            for pattern, word in (*PRIVATE, *private):
                text = re.sub(pattern, word, text)
            clean.write_text(text)
            archive.add(clean, arcname=f"{folder.name}/{path.relative_to(folder)}")
    clean.unlink(missing_ok=True)
    return target


if __name__ == "__main__":
    raise SystemExit(main())
