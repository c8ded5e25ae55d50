"""A batch as Slurm jobs: an array of shards, a warm-up before it where kernels are compiled, a collection after it.

Everything here turns values into text; nothing is read, written or run.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dfmp2.batch.accelerators import CORES_PER_CHIP
from dfmp2.submission.request import Request
from dfmp2.submission.slurm import text
from dfmp2.submission.slurm.quoting import directive, log_name, shell_words
from dfmp2.submission.walltime import slurm_time
from dfmp2.submission.warm_up import Spins, arguments

WARM_UP, ARRAY, COLLECT = "warm-up", "array", "collect"
LOGS = "logs"
MEBIBYTE = 2**20
SUBMIT = "submit.sh"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What Slurm is told beside the request; None and () leave it to the cluster.

    Attributes
    ----------
    partition, account, qos, constraint : names
    cpus : of a task
    gres : generic resources of a task
    exclusive : whether a task has its node for itself
    parallel : most tasks at a time
    restarts : how often a task may requeue itself
    margin : time between SIGTERM and the time limit, s
    setup : shell lines before anything else
    scratch : folder in which each task has its own
    """

    cpus: int
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    exclusive: bool = False
    parallel: int | None = None
    restarts: int = 20
    margin: int = 120
    setup: tuple[str, ...] = ()
    scratch: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """How dfmp2 is called on the nodes; paths are absolute.

    Attributes
    ----------
    python : its interpreter
    lane : backend whose programs are compiled by the warm-up, None for none
    shapes : what to compile for
    variables : to export
    table : where the collection goes, None for none
    """

    python: str
    lane: str | None = None
    shapes: tuple[Spins, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    table: str | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """A job.

    Attributes
    ----------
    name : its file is NAME.sbatch
    after : name of the job it waits for and how that must have ended, None for none
    """

    name: str
    text: str
    after: tuple[str, str] | None = None

    def path(self, folder: Path) -> Path:
        """Its file."""
        return folder / f"{self.name}.sbatch"

    def command(self, folder: Path, job: str | None) -> list[str]:
        """The call of sbatch.

        Parameters
        ----------
        job : number of the job it waits for
        """
        wait = []
        if self.after is not None and job is not None:
            wait = [f"--dependency={self.after[1]}:{job}", "--kill-on-invalid-dep=yes"]
        return ["sbatch", "--parsable", *wait, str(self.path(folder))]


def scripts(request: Request, cluster: Cluster, program: Program, folder: Path, name: str) -> tuple[Script, ...]:
    """All jobs in the order in which they are submitted.

    Parameters
    ----------
    request : with absolute paths
    folder : of the scripts, absolute; logs go into a folder in it
    name : of the jobs
    """
    found = [Script(ARRAY, _array(request, cluster, program, folder, name))]
    if program.lane is not None and program.shapes:
        first = Script(WARM_UP, _warm_up(request, cluster, program, folder, name))
        found = [first, Script(ARRAY, found[0].text, (WARM_UP, "afterok"))]
    if program.table is not None:
        found.append(Script(COLLECT, _collect(request, cluster, program, folder, name), (ARRAY, "afterany")))
    return tuple(found)


def submission(jobs: Sequence[Script], folder: Path) -> str:
    """A script that submits them; the last line of its output says under which numbers."""
    lines = ["#!/bin/bash", "set -euo pipefail", f"mkdir -p -- {shlex.quote(str(folder / LOGS))}"]
    for job in jobs:
        call = shlex.join(job.command(folder, "JOB"))
        if job.after is not None:
            call = call.replace(":JOB ", f':"${{{_variable(job.after[0])}%%;*}}" ', 1)
        lines.append(f"{_variable(job.name)}=$({call})")
    said = ", ".join(f"{job.name} ${{{_variable(job.name)}%%;*}}" for job in jobs)
    return "\n".join([*lines, f'echo "submitted: {said}"']) + "\n"


def _variable(name: str) -> str:
    return name.replace("-", "_")


def _array(request: Request, cluster: Cluster, program: Program, folder: Path, name: str) -> str:
    limit = "" if cluster.parallel is None else f"%{cluster.parallel}"
    head = [
        directive("job-name", name),
        f"#SBATCH --array=0-{request.shards - 1}{limit}",
        *_places(cluster),
        *_share(request, cluster, devices=True),
        f"#SBATCH --signal=B:TERM@{cluster.margin}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        *_files(folder, "%A_%a.log"),
    ]
    values = {"shards": request.shards, "workers": request.workers, "cpus": cluster.cpus, "restarts": cluster.restarts}
    chained = ["--scf-chain"] if request.chained else []
    lines = [
        *(f"{key}={value}" for key, value in values.items()),
        f"scratch={'${SLURM_TMPDIR:-${TMPDIR:-/tmp}}' if cluster.scratch is None else shlex.quote(cluster.scratch)}",
        f"run=({shell_words([*_call(program, 'batch', 'run', *_batch(request)), *chained])})",
    ]
    parts = [text.ENVIRONMENT, text.TASK, *_cores(cluster, program), text.SCRATCH, text.SHARE, text.RUN, text.REQUEUE]
    about = f"Task I computes shard I of {request.shards}, saves and requeues itself when it is told to stop."
    return _script(head, about, cluster, program, lines, parts)


def _warm_up(request: Request, cluster: Cluster, program: Program, folder: Path, name: str) -> str:
    """The lane `nki` compiles without a device, `nki-xla` with one."""
    device = program.lane != "nki"
    head = [
        directive("job-name", f"{name}-{WARM_UP}"),
        *_places(cluster),
        *_share(request, cluster, devices=device),
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        *_files(folder, f"{WARM_UP}-%j.log"),
    ]
    calls = [
        f"run {shell_words(['kernels', 'warmup', '--lane', str(program.lane), *arguments(spins)])}"
        for spins in program.shapes
    ]
    run = f'\nrun() {{ {shell_words(_call(program))} "$@" || exit; }}\n'
    parts = [text.ENVIRONMENT, *(_cores(cluster, program) if device else ()), run + "\n".join(calls) + "\n"]
    about = "Compiles what the molecules of the batch launch, unless it is in the cache."
    return _script(head, about, cluster, program, (), parts)


def _collect(request: Request, cluster: Cluster, program: Program, folder: Path, name: str) -> str:
    head = [
        directive("job-name", f"{name}-{COLLECT}"),
        *_places(cluster),
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        *_files(folder, f"{COLLECT}-%j.log"),
    ]
    call = _call(program, "batch", "collect", *_batch(request), "-o", str(program.table), "--overwrite")
    about = "Writes the energies of all complete items into one table."
    return _script(head, about, cluster, program, (), [text.ENVIRONMENT, f"\nexec {shell_words(call)}\n"])


def _script(
    head: Sequence[str],
    about: str,
    cluster: Cluster,
    program: Program,
    values: Sequence[str],
    parts: Sequence[str],
) -> str:
    """The cluster's own lines come first: they may use variables that are not set."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in program.variables]
    lines = ["#!/bin/bash", *head, "", f"# {about}", *cluster.setup, "set -u"]
    lines += [f"python={shlex.quote(program.python)}", *values, *exports]
    return "\n".join(lines) + "\n" + text.SAY + "".join(parts)


def _places(cluster: Cluster) -> list[str]:
    named = {
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
    }
    return [directive(option, value) for option, value in named.items() if value is not None]


def _share(request: Request, cluster: Cluster, *, devices: bool) -> list[str]:
    found = ["#SBATCH --nodes=1", "#SBATCH --ntasks=1", f"#SBATCH --cpus-per-task={cluster.cpus}"]
    if request.memory is not None:
        found.append(f"#SBATCH --mem={-(-request.memory // MEBIBYTE)}M")
    if request.seconds is not None:
        found.append(f"#SBATCH --time={slurm_time(request.seconds)}")
    if devices and cluster.gres is not None:
        found.append(directive("gres", cluster.gres))
    if devices and cluster.exclusive:
        found.append(directive("exclusive"))
    return found


def _files(folder: Path, pattern: str) -> list[str]:
    return [directive("chdir", str(folder)), directive("output", log_name(folder / LOGS, pattern))]


def _batch(request: Request) -> list[str]:
    """The batch as the other commands name it."""
    places = (("--root", request.root), ("--output", request.output))
    return [request.manifest, *(word for option, value in places if value is not None for word in (option, value))]


def _call(program: Program, *words: str) -> list[str]:
    """dfmp2 of this interpreter, whatever lies in the working directory."""
    return [program.python, "-P", "-m", "dfmp2", *words]


def _cores(cluster: Cluster, program: Program) -> list[str]:
    """Where the node is the task's own, all of its cores are."""
    if program.lane is None or cluster.exclusive:
        return []
    return [f"\ncores_per_chip={CORES_PER_CHIP}{text.CORES}"]
