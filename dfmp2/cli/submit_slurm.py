"""`dfmp2 batch submit --slurm`: its own options, and what becomes of them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.calculation import with_options
from dfmp2.errors import InputError, ResourceError

if TYPE_CHECKING:
    from dfmp2.batch.manifest import Batch
    from dfmp2.submission.request import Request
    from dfmp2.submission.slurm.jobs import Cluster, Program, Script

FOLDER = "slurm"  # in the folder of the results
NO_GRES = "none"
ENDINGS = (".h5", ".csv", ".json")
CARRIED = ("DFMP2_NKI_PYTHON",)  # variables that the tasks need as they are here
SLOW_SIGNAL = 60  # s by which Slurm may send a signal earlier than told (sbatch, --signal)

OPTIONS = (
    click.option("--partition", metavar="NAME", help="Slurm: partition."),
    click.option("--account", metavar="NAME", help="Slurm: account."),
    click.option("--qos", metavar="NAME", help="Slurm: quality of service."),
    click.option("--constraint", metavar="LIST", help="Slurm: features of the nodes."),
    click.option(
        "--cpus-per-task", type=click.IntRange(1, 4096), help="Slurm: cores of a task.  [default: workers x threads]"
    ),
    click.option(
        "--gres",
        metavar="LIST",
        help="Slurm: generic resources; none: the whole node.  [default: gpu:N for the backends cuda, nki, nki-xla]",
    ),
    click.option("--parallel", type=click.IntRange(1), metavar="N", help="Slurm: most tasks at a time."),
    click.option(
        "--restarts",
        type=click.IntRange(0, 10_000),
        default=20,
        show_default=True,
        help="Slurm: how often a task that was told to stop may requeue itself.",
    ),
    click.option(
        "--signal-before",
        type=click.IntRange(15, 65535),
        default=120,
        show_default=True,
        metavar="S",
        help="Slurm: seconds between SIGTERM and the time limit.",
    ),
    click.option("--setup", multiple=True, metavar="LINE", help="Slurm: shell line to begin with; repeat it."),
    click.option("--node-scratch", metavar="DIR", help="Slurm: scratch folder.  [default: $SLURM_TMPDIR, $TMPDIR]"),
    click.option("--cache", metavar="DIR", help="Slurm: compiled kernels, on a disk that all nodes see."),
    click.option("--collect", metavar="TABLE", help="Slurm: a last job collects the energies (.h5, .csv, .json)."),
)


def slurm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of Slurm."""
    return with_options(OPTIONS, command)


def submit_slurm(batch: Batch, shared: Request, **own: Any) -> int:
    """Show, write or submit the scripts of a batch; the exit code."""
    from dfmp2.batch.manifest import slug
    from dfmp2.submission.slurm import sbatch
    from dfmp2.submission.slurm.jobs import scripts

    request = _absolute(shared)
    folder = _path(shared.folder or batch.output / FOLDER, "--write" if shared.folder else "the output folder")
    program = _program(batch, own)
    name = slug(f"dfmp2-{batch.output.resolve().name}")
    jobs = scripts(request, _cluster(batch, request, own), program, Path(folder), name)
    if shared.submit:
        sbatch.require_slurm(shared.shards)
    if shared.submit or shared.folder is not None:
        _write(jobs, Path(folder))
    numbers = sbatch.submit(jobs, Path(folder)) if shared.submit else {}
    _show(jobs, Path(folder), numbers, shared)
    return os.EX_OK


def _absolute(shared: Request) -> Request:
    """Paths that mean the same on every node."""
    return replace(
        shared,
        manifest=_path(shared.manifest, "the manifest"),
        root=None if shared.root is None else _path(shared.root, "--root"),
        output=None if shared.output is None else _path(shared.output, "--output"),
    )


def _path(path: str | Path, what: str) -> str:
    from dfmp2.submission.slurm.quoting import require_line

    return require_line(os.path.abspath(path), what)


def _cluster(batch: Batch, request: Request, own: dict[str, Any]) -> Cluster:
    from dfmp2.submission.slurm.jobs import Cluster
    from dfmp2.submission.slurm.quoting import require_line, require_word

    names = {
        option: None if own[option] is None else require_word(own[option], f"--{option}")
        for option in ("partition", "account", "qos", "constraint", "gres")
    }
    gres = names["gres"] or _devices(batch, request.workers)
    needed = request.workers * request.threads
    cpus = own["cpus_per_task"] or needed
    if cpus < needed:
        raise InputError(
            f"--cpus-per-task {cpus}: {request.workers} workers of {request.threads} threads need {needed} cores"
        )
    margin = own["signal_before"]
    if request.seconds is not None and request.seconds <= margin + SLOW_SIGNAL:
        raise InputError(
            f"--time {request.seconds} s: tasks are told to stop {margin} s before, which Slurm may do {SLOW_SIGNAL} s "
            f"early: allow more than {margin + SLOW_SIGNAL} s, or a smaller --signal-before"
        )
    scratch = own["node_scratch"]
    return Cluster(
        cpus=cpus,
        partition=names["partition"],
        account=names["account"],
        qos=names["qos"],
        constraint=names["constraint"],
        gres=None if gres == NO_GRES else gres,
        exclusive=gres == NO_GRES,
        parallel=own["parallel"],
        restarts=own["restarts"],
        margin=margin,
        setup=tuple(require_line(line, "--setup") for line in own["setup"]),
        scratch=None if scratch is None else _path(scratch, "--node-scratch"),
    )


def _devices(batch: Batch, workers: int) -> str | None:
    """A card for each CUDA worker, a core of a chip for each Trainium worker."""
    from dfmp2.batch.accelerators import CORES_PER_CHIP
    from dfmp2.submission.warm_up import lane

    if lane(batch) is not None:
        return f"gpu:{-(-workers // CORES_PER_CHIP)}"
    return f"gpu:{workers}" if any(item.settings.options.backend == "cuda" for item in batch.items) else None


def _program(batch: Batch, own: dict[str, Any]) -> Program:
    from dfmp2.backends.nki.environment import cache_folder
    from dfmp2.submission import warm_up
    from dfmp2.submission.slurm.jobs import Program

    table = own["collect"]
    if table is not None and Path(table).suffix not in ENDINGS:
        raise InputError(f"--collect {table}: expected a name ending in {', '.join(ENDINGS)}")
    lane = warm_up.lane(batch)
    variables: dict[str, str] = {}
    if lane is not None:
        cache = _path(own["cache"] or cache_folder(), "--cache")
        variables = {"DFMP2_NEFF_CACHE": cache, "NEURON_COMPILE_CACHE_URL": f"{cache}/xla"}
        variables |= {name: os.environ[name] for name in CARRIED if name in os.environ}
    elif own["cache"] is not None:
        raise InputError("--cache: the manifest names neither backend nki nor nki-xla, so no kernel is compiled")
    return Program(
        python=_path(sys.executable, "the interpreter"),
        lane=lane,
        shapes=() if lane is None else warm_up.shapes(batch),
        variables=tuple(variables.items()),
        table=None if table is None else _path(table, "--collect"),
    )


def _write(jobs: Sequence[Script], folder: Path) -> None:
    """Scripts, the script that submits them, and a folder for the logs, which Slurm does not make."""
    from dfmp2.io.files import write_atomically
    from dfmp2.submission.slurm.jobs import LOGS, SUBMIT, submission

    try:
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot make the folder {folder / LOGS}: {error.strerror}: use another --write") from error
    for job in jobs:
        write_atomically(job.path(folder), job.text.encode(), overwrite=True)
    write_atomically(folder / SUBMIT, submission(jobs, folder).encode(), overwrite=True)


def _show(jobs: Sequence[Script], folder: Path, numbers: dict[str, str], shared: Request) -> None:
    from dfmp2.io.batch import to_json
    from dfmp2.submission.slurm.jobs import LOGS, SUBMIT, submission

    files = {str(job.path(folder)): job.text for job in jobs} | {str(folder / SUBMIT): submission(jobs, folder)}
    if shared.as_json:
        value = {"scheduler": "slurm", "shards": shared.shards, "submitted": shared.submit, "jobs": numbers}
        click.echo(to_json({**value, "files": files}), nl=False)
        return
    if shared.submit:
        for job in jobs:
            before = None if job.after is None else numbers[job.after[0]]
            click.echo(f"{shlex.join(job.command(folder, before))}  # job {numbers[job.name]}")
        click.echo(f"submitted: logs go to {folder / LOGS}; scancel {' '.join(numbers.values())} takes it back")
        return
    for name, text in files.items():
        click.echo(f"==> {name} <==\n{text}")
    written = "" if shared.folder is None else f"written; bash {shlex.quote(str(folder / SUBMIT))} submits it. "
    click.echo(f"{written}Nothing was submitted: --submit does that")
