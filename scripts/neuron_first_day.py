#!/usr/bin/env python3
"""The first hour on a Trainium host: what works, what that decides, what to do next, and one archive of all of it.

    python scripts/neuron_first_day.py                   all steps, an hour at most; an archive at the end
    python scripts/neuron_first_day.py --results DIR     again: goes on with what has not passed in DIR
    python scripts/neuron_first_day.py --only smallest,water
    python scripts/neuron_first_day.py --dry-run         what would run
    python scripts/neuron_first_day.py --lane nki-simulator   AWS's simulator alone, without a device

Every step is a process of its own with its output in DIR/STEP.log. It prints what was found, what that decides and what
to do next; after a failure the steps go on that do not need what failed, but nothing more is launched on a device that
has reported a fault. Where the packages are the tests' stand-in, all of it is marked as a rehearsal and sizes are tiny.
Exit codes: 0, or that of the first step that failed (1, 5, 6, 7, 8); 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))

from neuron_signs import ARCHIVE, diagnose  # noqa: E402

from dfmp2.trainium.launch import environment, toolchain  # noqa: E402
from dfmp2.trainium.launch.environment import HERE  # noqa: E402

LANES = ("nki", "nki-xla")
SIMULATOR = "nki-simulator"
GRACE = 30.0  # s that a step gets to end what it has started
AGREE = 1e-7  # Eh, between lanes and with PySCF
FACTS = "P1,P3,P10,P11,P12"
COSTS = "P2,P4,P5,P6,P7,P9"
STAND_IN = "a stand-in"
PACKAGES = (
    "aws-neuronx-dkms",
    "aws-neuronx-runtime-lib",
    "aws-neuronx-tools",
    "aws-neuronx-collectives",
)
SHOWN = ("NEURON_", "NKI_", "DFMP2_", "PJRT_DEVICE", "LD_LIBRARY_PATH")
KEPT = (
    "neuron_device",
    "nc_count",
    "logical_neuroncore_config",
    "memory_size",
    "neuroncore_ids",
    "connected_to",
)
PRIVATE = (
    (r"\bi-[0-9a-f]{8,17}\b", "INSTANCE"),
    (r"\bip-\d+-\d+-\d+-\d+[\w.-]*", "HOST"),
    (r"(?<![\d.])(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}(?![\d.])", "ADDRESS"),
)
Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a step has shown: found, what that decides, what to do next; code : 0 where it passed."""

    found: str
    decides: str
    then: str = ""
    code: int = 0
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes
    ----------
    name : of its log; about : the question
    command : arguments of the Python interpreter
    seconds : it may take
    judge : from its output and its file of numbers to the verdict, where it ended with 0
    after : steps that must have passed; lane : that must be usable, "" for none
    prints : its numbers are the object that it prints, not a file that it writes
    """

    name: str
    about: str
    command: tuple[str, ...]
    seconds: float
    judge: Callable[[str, Found], Verdict]
    after: tuple[str, ...] = ()
    lane: str = ""
    prints: bool = False


@dataclass(slots=True)
class Day:
    """What is known so far, written to DIR/summary.json after every step."""

    folder: Path
    rehearsal: bool
    steps: dict[str, Found] = field(default_factory=dict)
    machine: Found = field(default_factory=dict)

    def save(self) -> None:
        """Write the summary."""
        told = {
            "rehearsal on a stand-in": self.rehearsal,
            "machine": self.machine,
            "steps": self.steps,
        }
        (self.folder / "summary.json").write_text(json.dumps(told, indent=1) + "\n")

    def load(self) -> bool:
        """Take up what an earlier run has found; False where that was a rehearsal and this is none, or the reverse."""
        file = self.folder / "summary.json"
        if file.exists():
            known = json.loads(file.read_text())
            self.steps, self.machine = known["steps"], known["machine"]
            return bool(known["rehearsal on a stand-in"] == self.rehearsal)
        return True

    def meet(self, machine: Found) -> None:
        """Take up what the machine is; what was found on another one does not count."""
        for name in ("instance", "packages"):
            if self.machine and machine.get(name) != self.machine.get(name):
                print(
                    f"    {name}: {self.machine.get(name)} before, {machine.get(name)} now: every step runs again"
                )
                self.steps = {}
        self.machine = machine

    def passed(self, name: str) -> bool:
        """Whether a step has passed."""
        return bool(self.steps.get(name, {}).get("code", 1) == 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], epilog="Exit codes: 0, 1, 2, 5 to 8"
    )
    parser.add_argument("--results", metavar="DIR", help="default: first-day-DATE")
    parser.add_argument(
        "--lane", choices=(*LANES, SIMULATOR), help="only this lane (default: all of the device)"
    )
    parser.add_argument(
        "--only", metavar="LIST", help="steps, or beginnings of their names, with commas"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        metavar="N",
        help="begin no step after these (default: 60)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the steps and their commands")
    parser.add_argument("--ask", choices=tuple(ASKED), help=argparse.SUPPRESS)
    parser.add_argument("--numbers", metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.ask:
        return ask(given.ask, given.lane or "", Path(given.numbers))
    folder = Path(
        given.results or f"first-day-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    ).absolute()
    lanes = (given.lane,) if given.lane else LANES
    wanted = [word.strip() for word in (given.only or "").split(",") if word.strip()]
    listed = steps(folder, lanes, rehearsing())
    names = [step.name for step in listed]
    meant = {word: [name for name in names if name == word or (word not in names and name.startswith(word))]
             for word in wanted}  # fmt: skip
    unknown = [word for word, found in meant.items() if not found]
    if unknown:
        parser.error(f"--only {', '.join(unknown)}: expected beginnings of {', '.join(names)}")
    kept_names = {"machine", *(name for found in meant.values() for name in found)}
    chosen = [step for step in listed if not wanted or step.name in kept_names]
    if given.dry_run:
        for step in chosen:
            print(f"{step.name:<24}{step.about}\n{'':<24}{shown(step.command)}")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    day = Day(folder, rehearsing())
    if not day.load():
        parser.error(f"--results {folder} mixes a rehearsal with a device: name another folder")
    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # a lost connection, too: the step that runs is ended first
        signal.signal(number, signal.default_int_handler)
    try:
        code = run(day, chosen, time.monotonic() + 60 * given.minutes)
    except KeyboardInterrupt:
        print(f"\nstopped; the same command with --results {folder} goes on")
        code = 130
    print(f"\nall of it, without names and addresses of this machine: {pack(day)}")
    return code


def rehearsing() -> bool:
    """Whether nki is the tests' stand-in; nothing found then says anything about a device."""
    try:
        told = metadata.metadata("nki").get("Summary") or ""
    except metadata.PackageNotFoundError:
        told = ""
    return STAND_IN in told or any(name.startswith("STAND_IN_") for name in os.environ)


def steps(folder: Path, lanes: Sequence[str], rehearsal: bool) -> list[Step]:
    """All steps in their order: what is cheap and decides most comes first."""
    own = str(SCRIPTS / "neuron_first_day.py")
    molecule = str(ROOT / "inputs/h2o.xyz")
    basis = "sto-3g" if rehearsal else "cc-pvdz"
    if rehearsal:
        sizes = {"medium": "9/20/40", "large": "9/40/60"}
    else:
        sizes = {"medium": "medium", "large": "large"}
    probing, costs = (
        (("--turns", "4,24"), "P9") if rehearsal else ((), COSTS)
    )  # the others take hours on a host

    def asked(what: str, name: str, lane: str = "") -> tuple[str, ...]:
        return (
            own,
            "--ask",
            what,
            *(("--lane", lane) if lane else ()),
            "--numbers",
            str(folder / f"{name}.json"),
        )

    def energy(lane: str, *more: str) -> tuple[str, ...]:
        output = str(folder / f"{lane}.dfmp2.h5")
        fixed = ("--backend", lane, "--check", "--json", "--overwrite", "--output", output)
        return "-m", "dfmp2", "run", molecule, "--basis", basis, *fixed, *more

    def probes(name: str, lane: str, which: str) -> tuple[str, ...]:
        fixed = ("--only", which, "--lane", lane, "--cache", str(folder / "neff"), *probing)
        return str(SCRIPTS / "probe_neuron.py"), *fixed, "--json", str(folder / f"{name}.json")

    def timed(name: str, lane: str, shape: str) -> tuple[str, ...]:
        fixed = (
            "--lane",
            lane,
            "--shapes",
            sizes[shape],
            "--repeats",
            "2" if rehearsal else "5",
            "--without-torch",
        )
        return str(SCRIPTS / "neuron_benchmark.py"), *fixed, "--json", str(folder / f"{name}.json")

    found = [
        Step("machine", "which device, packages and tools are here, and which lanes can be used",
             asked("machine", "machine", lanes[0] if len(lanes) == 1 else ""), 300, judge_machine),
        Step("predictions", "what the model predicts, written down before anything is measured",
             asked("predictions", "predictions"), 300, judge_predictions),
        Step("water-nki-interpreter", "the energy of water in our interpreter on the host, and PySCF's",
             energy("nki-interpreter"), 600, judge_water, prints=True),
        Step("water-nki-simulator", "the energy of water in AWS's simulator",
             energy(SIMULATOR), 900, judge_water, lane=SIMULATOR, prints=True),
    ]  # fmt: skip
    for lane in lanes:
        first = f"smallest-{lane}"
        marker, water = lane.replace("-", "_"), f"water-{lane}"
        check = ("-m", "dfmp2", "kernels", "check", "--lane", lane)
        pytest = ("-m", "pytest", "-p", "no:cacheprovider", "-m", marker, "--require", marker)
        contract = Step(f"contract-{lane}", "twelve awkward blocks of pair terms against their definition",
                        check, 1500, judge_plain, (water,), lane)  # fmt: skip
        tests = Step(f"tests-{lane}", "the tests of the lane; a skipped one counts as failed",
                     (*pytest, str(ROOT / "tests/test_nki_on_lanes.py")), 3600, judge_plain, (water,),
                     lane)  # fmt: skip
        if lane == SIMULATOR:
            found += [contract, tests]
            continue
        found += [
            Step(first, "does one copy of 128 x 64 numbers compile, load, run and come back?",
                 asked("smallest", first, lane), 900, judge_smallest, lane=lane),
            Step(f"kept-{lane}", "can an output that stays on the device be the input of a program?",
                 asked("kept", f"kept-{lane}", lane), 600, judge_kept, (first,), lane),
            Step(f"guard-{lane}", "is the guard content with this device, and does it refuse a wrong pair?",
                 asked("guard", f"guard-{lane}", lane), 600, judge_guard, (first,), lane),
            Step(f"facts-{lane}", "do the facts hold on which the kernels rest?",
                 probes(f"facts-{lane}", lane, FACTS), 1500, judge_facts, (first,), lane),
            Step(water, "the energy of water, and the guard's verdict",
                 energy(lane), 900, judge_water, (first,), lane, prints=True),
            Step(f"transform-{lane}", "the same with B made on the device",
                 energy(lane, "--transform", "device"), 900, judge_water, (water, f"kept-{lane}"), lane,
                 prints=True),
            Step(f"medium-{lane}", "time of the medium shape beside the prediction",
                 timed(f"medium-{lane}", lane, "medium"), 1500, judge_times, (water,), lane),
            Step(f"large-{lane}", "time of the large shape beside the prediction",
                 timed(f"large-{lane}", lane, "large"), 2400, judge_times, (f"medium-{lane}",), lane),
            contract,
        ]  # fmt: skip
        if lane == "nki":
            found.append(
                Step("profile-nki", "how busy is each engine, beside the prediction",
                     (str(SCRIPTS / "profile_table.py"), "--capture", "small" if rehearsal else "medium", "--results",
                      str(folder)), 900, judge_plain, ("medium-nki",), lane))  # fmt: skip
        found += [
            Step(f"costs-{lane}", "what do instructions, transfers and launches cost?",
                 probes(f"costs-{lane}", lane, costs), 3600, judge_probes, (first,), lane),
            tests,
            Step(f"compile-{lane}", "how long does compiling larger blocks take?",
                 probes(f"compile-{lane}", lane, "P8"), 3600, judge_probes, (first,), lane),
        ]  # fmt: skip
    return found


def run(day: Day, chosen: Sequence[Step], end: float) -> int:
    """Run the steps one after the other; the exit code of the first that failed, else 0."""
    first, stopped = 0, ""
    if day.rehearsal:
        print(
            "REHEARSAL on the tests' stand-in of AWS's packages: nothing below says anything about a device"
        )
    for number, step in enumerate(chosen, 1):
        print(f"\n[{number}/{len(chosen)}] {step.name}: {step.about}", flush=True)
        missing = [
            name for name in step.after if name in [s.name for s in chosen] and not day.passed(name)
        ]
        refused = day.machine.get("lanes", {}).get(step.lane)
        if day.passed(step.name) and step.name != "machine":
            print("    passed before")
        elif stopped and step.lane in LANES:
            print(f"    not run: the device failed in {stopped}")
        elif missing:
            print(f"    not run: {', '.join(missing)} did not pass")
        elif refused:
            print(f"    not run: this lane cannot be used: {refused}")
        elif time.monotonic() > end:
            print("    not run: the time is over; the same command with --results goes on here")
        else:
            verdict = perform(day, step, min(step.seconds, max(60.0, end - time.monotonic())))
            first = first or verdict.code
            stopped = stopped or (step.name if verdict.stops else "")
    return first


def perform(day: Day, step: Step, limit: float) -> Verdict:
    """Run one step and say what it means."""
    begin = time.monotonic()
    file = day.folder / f"{step.name}.json"
    file.unlink(missing_ok=True)
    text, code = process(step, day.folder, limit)
    numbers: Found = {}
    if code == 0 and step.prints:
        file.write_text(text[text.index("{") : text.rindex("}") + 1])
    if file.exists():
        read = json.loads(file.read_text())
        numbers = read if isinstance(read, dict) else {"probes": read}
    if code == 0 or (code == 1 and "probes" in numbers):
        verdict = step.judge(text, numbers)
    else:
        sign = diagnose(text, code)
        verdict = Verdict(
            sign.what, "this step failed", sign.then, code if code in range(1, 9) else 1, sign.stops
        )
    if step.name == "machine":
        day.meet(numbers)
    seconds = time.monotonic() - begin
    day.steps[step.name] = {**asdict(verdict), "seconds": round(seconds, 1), "numbers": numbers}
    day.save()
    say(
        "ok" if verdict.code == 0 else f"FAILED, exit {verdict.code}",
        f"after {seconds:.0f} s: {verdict.found}",
    )
    say("decides:", verdict.decides)
    if verdict.then:
        say("next:", verdict.then)
    return verdict


def say(title: str, words: str) -> None:
    """A paragraph of what a step says."""
    print(
        textwrap.fill(f"{title} {words}", 110, initial_indent="    ", subsequent_indent="        "),
        flush=True,
    )


def process(step: Step, folder: Path, limit: float) -> tuple[str, int]:
    """Output and exit code of a step; 124 where it took longer than `limit` seconds."""
    variables = {
        **os.environ,
        "PATH": environment.search_path(HERE),
        "HOME": os.environ.get("HOME") or environment.home(),
    }
    libraries = [environment.LIBRARIES, os.environ.get("LD_LIBRARY_PATH", "")]
    modules = [str(SCRIPTS), str(ROOT), os.environ.get("PYTHONPATH", "")]
    variables |= {
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
        "PYTHONPATH": os.pathsep.join(filter(None, modules)),
        "DFMP2_NEFF_CACHE": str(folder / "neff"),
        "NEURON_COMPILE_CACHE_URL": os.environ.get("NEURON_COMPILE_CACHE_URL", str(folder / "xla")),
        "DFMP2_REQUIRE_NKI": "1",  # whatever falls back to the host ends with exit code 6
    }
    log = folder / f"{step.name}.log"
    command = [sys.executable, *step.command]
    with log.open("w") as output, subprocess.Popen(
        command, env=variables, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder,
        start_new_session=True,
    ) as child:  # fmt: skip
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            if child.poll() is None:  # Ctrl-C, too
                end(child)
    return log.read_text(errors="replace"), code


def end(child: subprocess.Popen[bytes]) -> None:
    """Ask a step to end, which then ends the compiler that it has started; kill it where it does not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGINT)
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)


# What a step that ended with 0 means


def judge_machine(_: str, found: Found) -> Verdict:
    """Lanes that can be used."""
    usable = [lane for lane in found["wanted"] if found["lanes"][lane] is None]
    chip = f"{found['instance'] or 'unknown instance'} ({found['target'] or 'no chip'})"
    told = f"{chip}, {found['versions'] or 'no packages'}"
    if not usable:
        sign = diagnose("\n".join(found["lanes"][lane] for lane in reversed(found["wanted"])), 6)
        return Verdict(f"{told}; {sign.what}", "none of the lanes can be used", sign.then, 6)
    return Verdict(told, f"lanes {' and '.join(usable)} can be used", expected(found))


def expected(found: Found) -> str:
    """What is known of this chip with this release."""
    release = str(found["packages"].get("nki", "unknown"))
    if found["target"] == "trn1" and not release.startswith("0.6"):
        return f"nki {release} was never seen to run on trn1; 0.6 was, by others"
    return ""


def judge_predictions(_: str, found: Found) -> Verdict:
    """Predicted times."""
    told = [
        f"{name} {1e3 * p['device']:.1f} to {1e3 * p['slowest']:.1f} ms, launches {1e3 * p['dispatch']:.1f} ms more"
        for name, p in found.items()
    ]
    return Verdict(
        f"predicted, not measured: {'; '.join(told)}", "nothing yet: steps medium and large compare"
    )


def judge_smallest(_: str, found: Found) -> Verdict:
    """A copy must come back as it went."""
    details = found["details"]
    if found["wrong"]:
        return Verdict(
            f"{found['wrong']} of 8192 numbers came back changed",
            "no number of this lane counts",
            ARCHIVE,
            8,
        )
    way = details.get("compiled through", details.get("graphs", "?"))
    told = (
        f"compiled in {found['compile']:.1f} s ({way}), launched in {1e3 * found['launch']:.2f} ms"
    )
    return Verdict(
        f"{told}; tensors {found['tensors']}", "programs compile, load and run on this lane"
    )


def judge_kept(_: str, found: Found) -> Verdict:
    """A copy of a copy."""
    if found["wrong"]:
        return Verdict(
            f"{found['wrong']} of 8192 numbers changed",
            "--transform device cannot be used",
            ARCHIVE,
            8,
        )
    told = f"the runtime calls the output's type {found['type']}"
    return Verdict(told, "outputs can stay on the device: --transform device can be used")


def judge_guard(_: str, found: Found) -> Verdict:
    """Accepted as it is, refused when spoilt."""
    told = f"accepted: {found['accepted']}; spoilt by 0.1 %: {found['refused'] or 'ACCEPTED'}"
    if not found["refused"]:
        return Verdict(told, "the guard sees nothing: no energy of this lane counts", ARCHIVE, 8)
    return Verdict(
        told, "a device that computes wrong numbers ends the run with exit code 5 and no energy"
    )


def judge_facts(text: str, found: Found) -> Verdict:
    """P1, P3, P10, P11, P12; the first two must hold."""
    done = judge_probes(text, found)
    bad = [
        answer["decision"]["text"]
        for answer in found["probes"]
        if answer["decision"]
        and re.match(r"too coarse|float32 products are cut", answer["decision"]["text"])
    ]
    if bad:
        then = "no energy of this device counts, and the guard must refuse all of them; " + ARCHIVE
        return Verdict(f"arithmetic is wrong: {'; '.join(bad)}", done.decides, then, 8)
    return done


def judge_probes(_: str, found: Found) -> Verdict:
    """What each probe decides, and which constants it settles."""
    answered = [answer for answer in found["probes"] if not answer["failed"]]
    failed = [answer for answer in found["probes"] if answer["failed"]]
    told = "; ".join(f"{a['probe']}: {a['decision']['text']}" for a in answered)
    settles = [setting for answer in answered for setting in answer["decision"]["settles"]]
    settled = "; ".join(
        f"{s['place'].removeprefix('dfmp2.trainium.')} = {s['value']}" for s in settles
    )
    if failed:
        sign = diagnose("\n".join(answer["failed"] for answer in failed), 1)
        names = ", ".join(answer["probe"] for answer in failed)
        return Verdict(f"{names} failed: {sign.what}. {told}", settled, sign.then, 1, sign.stops)
    return Verdict(told, settled)


def judge_water(_: str, found: Found) -> Verdict:
    """The energy against PySCF; launches, counters and guard."""
    details = dict(line.split(": ", 1) for line in found["provenance"]["backend_details"])
    difference = abs(found["check"]["correlation_difference"])
    told = f"E(corr) {found['mp2_correlation_energy']:.9f} Eh, {difference:.1e} Eh from PySCF"
    guard = details.get("pairs redone in float64 meanwhile", "")
    told += f"; guard: pairs redone {guard}" if guard else ""
    if not difference <= AGREE:
        return Verdict(told, "a wrong energy: the guard did not see it", f"stop here; {ARCHIVE}", 8)
    if found["backend"] in LANES and details.get("inference counters") == "did not move":
        return Verdict(told, "it was not the device: its counters did not move", ARCHIVE, 1)
    if found["backend"] in LANES:
        counted = f", counters {details['inference counters']}"
    else:
        counted = ""
    return Verdict(
        f"{told}; launches {details['kernel launches']}{counted}",
        f"{found['backend']} gives right energies",
    )


def judge_times(_: str, found: Found) -> Verdict:
    """The warm time against the predicted range."""
    ((name, one),) = found["shapes"].items()
    p, warm = one["predicted"], statistics.median(one["fresh"]["warm"])
    low, high = p["device"], p["slowest"] + p["dispatch"]
    told = (
        f"{name}: warm {1e3 * warm:.1f} ms, first run {1e3 * one['fresh']['first']:.1f} ms (discarded); predicted "
        f"{1e3 * low:.1f} ms (schedule) to {1e3 * high:.1f} ms (40 % and every launch waited for); "
        f"energy off by {one['fresh']['difference']:.1e} Eh"
    )
    if warm < low:
        return Verdict(
            told,
            "faster than the schedule: the model charges too much",
            "see P2 and P4 of step costs",
        )
    if warm <= high:
        rest = max(warm - p["dispatch"], 1e-9)
        return Verdict(
            told,
            f"within the range: {100 * p['floor'] / rest:.0f} % of the Tensor Engine's peak, launches apart",
        )
    times = warm / high
    if 3 < warm / p["usual"] < 6:
        reason = "about four times suggests the 96 KiB line (P11 of step facts)"
    else:
        reason = "see profile"
    return Verdict(
        told,
        f"{times:.1f} times slower than the slowest prediction: the model misses something",
        reason,
    )


def judge_plain(text: str, _: Found) -> Verdict:
    """The last line says it."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return Verdict(lines[-1].strip() if lines else "done", "see the log")


# Questions that this script answers itself, in a process of their own


def ask(what: str, lane: str, numbers: Path) -> int:
    """Answer one question; an error of ours ends with its message and exit code."""
    from dfmp2.errors import Dfmp2Error

    try:
        found = ASKED[what](lane)
    except Dfmp2Error as error:
        print(error)
        return error.exit_code
    numbers.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0


def machine(lane: str) -> Found:
    """Device, versions, tools, variables and why lanes cannot be used; no names, no addresses."""
    found = toolchain.versions(toolchain.PACKAGES, HERE) | toolchain.versions(
        toolchain.PACKAGES, HERE, HERE.python
    )
    system = {name: version for name in PACKAGES if (version := debian(name))}
    return {
        "instance": HERE.text(toolchain.PRODUCT),
        "target": toolchain.device_target(HERE),
        "devices": len(HERE.devices()),
        "versions": ", ".join(f"{name} {version}" for name, version in found.items()),
        "packages": found,
        "system": {**system, "kernel": platform.release(), "python": platform.python_version()},
        "bindings": (toolchain.bindings() or ("none",))[0],
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(SHOWN)},
        "neuron-ls": neuron_ls(),
        "wanted": [lane] if lane else list(LANES),
        "lanes": {name: toolchain.refusal(name) for name in (*LANES, SIMULATOR)},
    }


def debian(package: str) -> str:
    """Version of a package of the system, "" where there is none."""
    if shutil.which("dpkg-query") is None:
        return ""
    command = ["dpkg-query", "--show", "--showformat=${Version}", package]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def neuron_ls() -> list[Found]:
    """Devices as neuron-ls lists them, without processes and PCI addresses."""
    tool = shutil.which("neuron-ls")
    if tool is None:
        return []
    done = subprocess.run([tool, "-j"], capture_output=True, text=True, timeout=60, check=False)
    try:
        return [
            {key: device[key] for key in KEPT if key in device}
            for device in json.loads(done.stdout)
        ]
    except (ValueError, TypeError):
        return []


def predictions(_: str) -> Found:
    """Predicted seconds of both shapes."""
    import neuron_benchmark

    from dfmp2.validation.bench import problem

    return {name: neuron_benchmark.predict(problem(name)) for name in ("medium", "large")}


def smallest(lane: str) -> Found:
    """One copy."""
    made, x, result = copied(lane, keep=False)
    tensors = {}
    for loaded in getattr(made, "_loaded", {}).values():
        known = {**loaded.model.input_tensors_info, **loaded.model.output_tensors_info}
        tensors = {name: str(getattr(info, "dtype", "not told")) for name, info in known.items()}
    launch = made.proof.first_seconds
    return {"wrong": int((result != x).sum()), "tensors": tensors, "details": made.describe(),
            "compile": made.proof.compile_seconds, "launch": launch}  # fmt: skip


def kept(lane: str) -> Found:
    """A copy of a copy that stayed on the device."""
    made, x, resident = copied(lane, keep=True)
    told = str(getattr(resident.value, "dtype", "not told"))
    result = made.launch("neuron_probes.elementwise", "copies", {"x": resident, "rounds": 1})
    return {"wrong": int((result != x).sum()), "type": told}


def guard(lane: str) -> Found:
    """What the guard says of a block of pairs, and of the same where the device has another B than the host."""
    from dataclasses import replace

    import numpy as np

    from dfmp2.backends.base import Tile
    from dfmp2.errors import NumericalError
    from dfmp2.trainium.backend import NkiBackend
    from dfmp2.trainium.launch import executors
    from dfmp2.trainium.launch.guard import GuardedBackend, Held

    inner = NkiBackend(lane, executors.executor(lane))
    rng = np.random.default_rng(21)
    b, space = (
        rng.normal(size=(8, 40, 60)) / 50,
        (-np.linspace(2.0, 0.5, 8), np.linspace(0.2, 9.0, 40)),
    )
    tile = Tile(0, 8, 0, 8, True)
    content = GuardedBackend(inner)
    operand = content.put(b, *space, "mixed")
    content.pair_terms(operand, operand, tile)
    accepted, refused = content.describe()["pairs redone in float64 meanwhile"], ""
    spoilt = replace(operand, b=Held(inner.put(1.0005 * b, *space, "mixed"), b))
    try:
        GuardedBackend(inner).pair_terms(spoilt, spoilt, tile)
    except NumericalError as error:
        refused = str(error).partition(":")[2].partition(";")[0].strip()
    return {"accepted": accepted, "refused": refused}


def copied(lane: str, *, keep: bool) -> tuple[Any, Any, Any]:
    """The executor, numbers, and what the probe kernel `copies` makes of them; `keep` : left on the device."""
    import numpy as np

    from dfmp2.trainium.launch import executors

    made = executors.executor(lane)
    x = (np.arange(128 * 64, dtype=np.float32) / 7).reshape(128, 64)
    given = {"x": made.upload(x), "rounds": 1}
    return (
        made,
        x,
        (made.keep if keep else made.launch)("neuron_probes.elementwise", "copies", given),
    )


ASKED = {
    "machine": machine,
    "predictions": predictions,
    "smallest": smallest,
    "kept": kept,
    "guard": guard,
}


# The archive


def pack(day: Day) -> Path:
    """DIR as one file: logs and numbers without names of this machine, compiled programs by name only."""
    instance = day.machine.get("instance") or "unknown"
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    title = f"{'rehearsal' if day.rehearsal else 'first-day'}-{instance}-{stamp}"
    clean = day.folder / title
    clean.mkdir()
    for file in sorted(day.folder.iterdir()):
        if file.suffix in (".log", ".json"):
            (clean / file.name).write_text(scrub(file.read_text(errors="replace")))
    cache = day.folder / "neff"
    listed = [
        {"program": file.parent.name, "file": file.name, "bytes": file.stat().st_size}
        for file in sorted(cache.glob("**/*"))
        if file.is_file()
    ]
    (clean / "programs.json").write_text(json.dumps(listed, indent=1) + "\n")
    for file in sorted(cache.glob("**/failed.log")):
        (clean / f"failed-{file.parent.name[:12]}.log").write_text(
            scrub(file.read_text(errors="replace"))
        )
    archive = day.folder / f"{title}.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        out.add(clean, title, filter=anonymous)
    shutil.rmtree(clean)
    return archive


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file of nobody."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def scrub(text: str) -> str:
    """A text without host name, user, home, instance and private addresses."""
    own = {
        str(Path.home()): "~",
        socket.gethostname(): "HOST",
        socket.getfqdn(): "HOST",
        getpass.getuser(): "USER",
    }
    for word, instead in sorted(own.items(), key=lambda pair: -len(pair[0])):
        if len(word) > 1 and word not in ("localhost", "root", "ubuntu"):
            text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", instead, text)
    for pattern, instead in PRIVATE:
        text = re.sub(pattern, instead, text)
    return text


def shown(command: Sequence[str]) -> str:
    """A command for reading."""
    return " ".join(["python", *(word.replace(f"{ROOT}/", "") for word in command)])


if __name__ == "__main__":
    sys.exit(main())
