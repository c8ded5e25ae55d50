"""A batch as Slurm jobs: an array of shards, a warm-up before it where kernels are compiled, a collection after it.

The text of the jobs is `slurm.sh.j2`. Text of the user on its way into scripts is quoted for the shell and for #SBATCH
lines, and refused where neither helps.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dfmp2.backends.registry import accelerator
from dfmp2.errors import BackendUnavailable, InputError, ResourceError
from dfmp2.execution.arrays import SECONDS, Request, compiled_backend, warm_ups
from dfmp2.execution.devices import CORES_PER_CHIP
from dfmp2.execution.manifest import Batch, slug
from dfmp2.host.files import write_atomically
from dfmp2.molecule.text import printable

WARM_UP, ARRAY, COLLECT = "warm-up", "array", "collect"
FOLDER, LOGS, SUBMIT = "slurm", "logs", "submit.sh"  # in the folder of the results, and in that of the scripts
NO_GRES = "none"
ENDINGS = (".h5", ".csv", ".json")
CARRIED = ("DFMP2_NKI_PYTHON",)  # variables that the tasks need as they are here
SLOW_SIGNAL = 60  # s by which Slurm may send a signal earlier than told (sbatch, --signal)
PATIENCE = 120.0  # s that Slurm has for an answer
LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Script:
    """A job.

    Attributes
    ----------
    path : its file
    name : "array", "warm-up" or "collect"
    after : how the job before it must have ended, "" where it waits for none
    """

    path: Path
    name: str
    text: str
    after: str = ""

    def command(self, before: str) -> list[str]:
        """The call of sbatch; `before` is the number of the job before it."""
        wait = [f"--dependency={self.after}:{before}", "--kill-on-invalid-dep=yes"] if self.after else []
        return ["sbatch", "--parsable", *wait, str(self.path)]


# --- scripts ----------------------------------------------------------------------------------------------------------


def prepare(batch: Batch, request: Request, folder: Path | None, given: Mapping[str, Any]) -> list[Script]:
    """The jobs of a batch, in the order in which they are submitted.

    Parameters
    ----------
    folder : of the scripts, None for one in the folder of the results
    given : options of `dfmp2 batch submit --slurm`

    Raises
    ------
    InputError : what is asked does not fit together, or cannot be written into a script
    """
    where = Path(_path(folder or batch.output / FOLDER, "--write" if folder else "the output folder"))
    values = _values(batch, request, given) | {"folder": str(where)}
    jobs = [Script(where / "array.sbatch", ARRAY, _render(ARRAY, values))]
    if values["warm_ups"]:
        jobs = [Script(where / "warm-up.sbatch", WARM_UP, _render(WARM_UP, values)), replace(jobs[0], after="afterok")]
    if values["table"] is not None:
        jobs.append(Script(where / "collect.sbatch", COLLECT, _render(COLLECT, values), "afterany"))
    return jobs


def submission(jobs: Sequence[Script]) -> str:
    """A script that submits them; the last line of its output says under which numbers."""
    lines = ["#!/bin/bash", "set -euo pipefail", f"mkdir -p -- {shlex.quote(str(jobs[0].path.parent / LOGS))}"]
    before = ""
    for job in jobs:
        call = shlex.join(job.command("JOB")).replace(":JOB ", f':"{before}" ', 1)
        variable = job.name.replace("-", "_")
        lines.append(f"{variable}=$({call})")
        before = f"${{{variable}%%;*}}"
    numbers = ", ".join(f"{job.name} ${{{job.name.replace('-', '_')}%%;*}}" for job in jobs)
    return "\n".join([*lines, f'echo "submitted: {numbers}"']) + "\n"


def _values(batch: Batch, request: Request, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the template needs, checked; None leaves something to the cluster."""
    names = {
        option: None if given[option] is None else _require_word(given[option], f"--{option}")
        for option in ("partition", "account", "qos", "constraint", "gres")
    }
    needed = request.workers * request.threads
    cpus, margin, table = given["cpus_per_task"] or needed, given["signal_before"], given["collect"]
    if cpus < needed:
        raise InputError(
            f"--cpus-per-task {cpus}: {request.workers} workers of {request.threads} threads need {needed} cores"
        )
    if request.seconds is not None and request.seconds <= margin + SLOW_SIGNAL:
        raise InputError(
            f"--time {request.seconds} s: tasks are told to stop {margin} s before, which Slurm may do {SLOW_SIGNAL} s "
            f"early: allow more than {margin + SLOW_SIGNAL} s, or a smaller --signal-before"
        )
    if table is not None and Path(table).suffix not in ENDINGS:
        raise InputError(f"--collect {table}: expected a name ending in {', '.join(ENDINGS)}")
    lane, variables = compiled_backend(batch), {}
    gres = names.pop("gres")
    if lane is not None:
        cache = _path(given["cache"] or accelerator().cache_folder(), "--cache")
        variables = {"DFMP2_NEFF_CACHE": cache, "NEURON_COMPILE_CACHE_URL": f"{cache}/xla"}
        variables |= {name: os.environ[name] for name in CARRIED if name in os.environ}
        gres = gres or f"gpu:{-(-request.workers // CORES_PER_CHIP)}"  # a core of a chip for each worker
    elif given["cache"] is not None:
        raise InputError("--cache: the manifest names neither backend nki nor nki-xla, so no kernel is compiled")
    elif any(item.options.backend == "cuda" for item in batch.items):
        gres = gres or f"gpu:{request.workers}"
    source = [_path(request.manifest, "the manifest")]
    for option, path in (("--root", request.root), ("--output", request.output)):
        source += [] if path is None else [option, _path(path, option)]
    return {
        "name": slug(f"dfmp2-{batch.output.resolve().name}"),
        "places": [(option, value) for option, value in names.items() if value is not None],
        "cpus": cpus,
        "mebibytes": None if request.memory is None else -(-request.memory // 2**20),
        "time": None if request.seconds is None else slurm_time(request.seconds),
        "gres": None if gres == NO_GRES else gres,
        "exclusive": gres == NO_GRES,
        "shards": request.shards,
        "workers": request.workers,
        "chained": request.chained,
        "parallel": given["parallel"],
        "restarts": given["restarts"],
        "margin": margin,
        "setup": [_require_line(line, "--setup") for line in given["setup"]],
        "scratch": None if given["node_scratch"] is None else _path(given["node_scratch"], "--node-scratch"),
        "python": _path(sys.executable, "the interpreter"),
        "variables": list(variables.items()),
        "batch": source,
        "lane": lane,
        "warm_ups": () if lane is None else warm_ups(batch),
        "table": None if table is None else _path(table, "--collect"),
    }


def _render(kind: str, values: Mapping[str, Any]) -> str:
    """Text of a job."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": shlex.quote, "words": shlex.join}
    # The lane `nki` compiles without a device, `nki-xla` with one.
    devices = kind == ARRAY or (kind == WARM_UP and values["lane"] != "nki")
    return environment.get_template("slurm.sh.j2").render(
        kind=kind, devices=devices, cores_per_chip=CORES_PER_CHIP, directive=directive, log_name=log_name, **values
    )


def slurm_time(seconds: int) -> str:
    """Seconds as D-HH:MM:SS."""
    days, rest = divmod(seconds, SECONDS["d"])
    hours, rest = divmod(rest, SECONDS["h"])
    return f"{days}-{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"


# --- quoting ----------------------------------------------------------------------------------------------------------


def directive(option: str, value: str | None = None) -> str:
    """One #SBATCH line. Spaces and # need quotes there; in them a backslash stands before quotes and backslashes."""
    if value is None or re.fullmatch(r"[A-Za-z0-9_./:=,@%+-]+", value):
        return f"#SBATCH --{option}" + ("" if value is None else f"={value}")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{option}="{escaped}"'


def log_name(folder: str, pattern: str) -> str:
    """Name of a log for Slurm: % in the folder's name is doubled, that of `pattern` is Slurm's.

    Raises
    ------
    InputError : the folder's name holds a backslash, with which Slurm replaces no pattern
    """
    if "\\" in folder:
        raise InputError(f"{folder}: Slurm cannot write logs below a folder with a backslash in its name: use --write")
    return f"{folder.replace('%', '%%')}/{LOGS}/{pattern}"


def _path(path: str | Path, what: str) -> str:
    """A path that means the same on every node."""
    return _require_line(os.path.abspath(path), what)


def _require_line(text: str, what: str) -> str:
    if not text.strip() or not text.isprintable():
        raise InputError(f"{what} {printable(text)!r}: expected one line without control characters")
    return text


def _require_word(text: str, what: str) -> str:
    """Letters, digits and what Slurm's names and lists are made of."""
    if re.fullmatch(r"[A-Za-z0-9_.,:=@+&|*()\[\]/-]{1,256}", text) is None or text.startswith("-"):
        raise InputError(f"{what} {printable(text)!r}: expected a name of letters, digits and _.,:=@+&|*()[]/-")
    return text


# --- submitting -------------------------------------------------------------------------------------------------------


def require_slurm(shards: int) -> None:
    """Refuse, before anything is written, where there is no Slurm or it has no arrays that large.

    Raises
    ------
    BackendUnavailable : sbatch or scontrol is missing, or the controller does not answer
    InputError : more shards than MaxArraySize
    """
    missing = [program for program in ("sbatch", "scontrol", "squeue") if shutil.which(program) is None]
    if missing:
        raise BackendUnavailable(
            f"--submit: there is no {', no '.join(missing)} on PATH: log in to a machine of the Slurm cluster, or use "
            "--write DIR and submit from there"
        )
    code, out, errors = _run(["scontrol", "show", "config"])
    if code:
        raise BackendUnavailable(f"--submit: Slurm does not answer: {errors or f'scontrol ended with {code}'}")
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", out, re.MULTILINE)
    if found is not None and shards > int(found[1]):
        raise InputError(f"--shards {shards}: this cluster has arrays of at most {found[1]} tasks (MaxArraySize)")


def write(jobs: Sequence[Script]) -> None:
    """Scripts, the script that submits them, and a folder for the logs, which Slurm does not make.

    Raises
    ------
    ResourceError : they cannot be written
    """
    logs = jobs[0].path.parent / LOGS
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot make the folder {logs}: {error.strerror}: use another --write") from error
    for path, text in files(jobs).items():
        write_atomically(path, text.encode(), overwrite=True)


def files(jobs: Sequence[Script]) -> dict[Path, str]:
    """What is written."""
    return {job.path: job.text for job in jobs} | {jobs[0].path.parent / SUBMIT: submission(jobs)}


def submit(jobs: Sequence[Script]) -> dict[str, str]:
    """Job numbers by name.

    Raises
    ------
    InputError : Slurm refuses a job; those before it are cancelled
    """
    numbers: dict[str, str] = {}
    for job in jobs:
        code, out, errors = _run(job.command(next(reversed(numbers.values()), "")))
        number = out.strip().partition(";")[0]
        if code or not number.isdigit():
            cancelled = ""
            if numbers:
                failed, _, why = _run(["scancel", *numbers.values()])
                cancelled = f"; job {', '.join(numbers.values())} "
                cancelled += f"could not be cancelled: {why}" if failed else "was cancelled"
            raise InputError(f"Slurm refuses {job.path}: {errors or out.strip()[:LONGEST_MESSAGE]}{cancelled}")
        numbers[job.name] = number
    return numbers


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, output, and the message in one line.

    Raises
    ------
    BackendUnavailable : it cannot be run, or does not end
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        raise BackendUnavailable(f"{command[0]} did not answer within {PATIENCE:.0f} s: ask squeue --me") from error
    except OSError as error:
        raise BackendUnavailable(f"{command[0]} cannot be run: {error.strerror}") from error
    return done.returncode, done.stdout, printable(" ".join(done.stderr.split()))[:LONGEST_MESSAGE]
