"""`dfmp2 batch submit`: a batch as an array job of a scheduler, shown first and submitted only when told to."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dfmp2.cli.console import Console
from dfmp2.cli.options import with_options
from dfmp2.errors import InputError
from dfmp2.molecule.text import printable

if TYPE_CHECKING:
    from dfmp2.execution.arrays import Request
    from dfmp2.execution.manifest import Batch

SLURM, AWS = "--slurm", "--aws-batch"
INSTANCES = ["trn1.2xlarge", "trn1.32xlarge", "trn1n.32xlarge"]  # of `dfmp2.execution.aws`, which takes long to import

SLURM_OPTIONS = (
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
AWS_OPTIONS = (
    click.option("--queue", metavar="NAME", help="AWS: job queue."),
    click.option("--image", metavar="URI", help="AWS: container image, made by scripts/container."),
    click.option("--s3", metavar="s3://BUCKET/PREFIX", help="AWS: inputs, results and checkpoints in S3."),
    click.option(
        "--mount",
        multiple=True,
        metavar="HOST[:CONTAINER]",
        help="AWS: folder of the hosts, e.g. of FSx for Lustre; repeat it. /work is scratch.",
    ),
    click.option("--efs", multiple=True, metavar="ID:CONTAINER", help="AWS: EFS file system; repeat it."),
    click.option(
        "--instance",
        type=click.Choice(INSTANCES),
        help="AWS: its devices, CPUs and memory for each task.  [default: trn1.2xlarge for nki, nki-xla]",
    ),
    click.option(
        "--programs",
        metavar="PLACE",
        help="AWS: compiled kernels, s3://... or a mounted folder.  [default: in --s3]",
    ),
    click.option("--job-role", metavar="ARN", help="AWS: role of the containers; needs the bucket of --s3."),
    click.option("--execution-role", metavar="ARN", help="AWS: role that starts the containers."),
    click.option(
        "--attempts", type=click.IntRange(1, 10), default=10, show_default=True, help="AWS: runs of a task, if stopped."
    ),
    click.option(
        "--warm-up/--no-warm-up", default=True, help="AWS: compile kernels in a job before the array.  [default: yes]"
    ),
    click.option(
        "--copy-every",
        type=click.FloatRange(1, 3600),
        default=60.0,
        show_default=True,
        metavar="S",
        help="AWS: seconds between two copies to S3.",
    ),
    click.option("--region", metavar="NAME", help="AWS: region.  [default: of the environment or ~/.aws]"),
    click.option("--profile", metavar="NAME", help="AWS: profile of ~/.aws.  [default: that of the environment]"),
)


def _scheduler_options(function: Callable[..., Any]) -> Callable[..., Any]:
    return with_options((*SLURM_OPTIONS, *AWS_OPTIONS), function)


@click.command("submit", short_help="Show, or submit, the batch as an array job of Slurm or AWS Batch.")
@click.argument("manifest", metavar="MANIFEST.toml")
@click.option(SLURM, "scheduler", flag_value=SLURM, help="An array job of Slurm.")
@click.option(AWS, "scheduler", flag_value=AWS, help="An array job of AWS Batch.")
@click.option("--output", metavar="DIR", help="Folder of the results.  [default: that of the manifest]")
@click.option("--root", metavar="DIR", help="Folder that the manifest's paths are relative to, and confined to.")
@click.option("--shards", type=click.IntRange(1, 100_000), required=True, metavar="N", help="Tasks of the array.")
@click.option("--workers", type=click.IntRange(1, 4096), default=1, show_default=True, help="Processes of a task.")
@click.option("--threads", type=click.IntRange(1, 4096), help="Of each worker.  [default: the manifest's, else 1]")
@click.option("--memory", metavar="SIZE", help="Of a task, e.g. 16GB.  [default: the manifest's, else the scheduler's]")
@click.option("--time", metavar="TIME", help="Limit of a task: 90min, 2h, 1-12:00:00.  [default: the scheduler's]")
@click.option("--scf-chain", is_flag=True, help="Start the SCF from the item before, of the same atoms.")
@click.option("--submit/--dry-run", "submit_now", default=False, show_default=True, help="Submit, or only show.")
@click.option("--write", metavar="DIR", help="Also write what is shown into a folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_scheduler_options
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    manifest: str,
    scheduler: str | None,
    output: str | None,
    root: str | None,
    shards: int,
    workers: int,
    threads: int | None,
    memory: str | None,
    time: str | None,
    scf_chain: bool,
    submit_now: bool,
    write: str | None,
    as_json: bool,
    **own: Any,
) -> int:
    """Cut the batch of MANIFEST.toml into N shards and make an array job of them: task I computes shard I.

    Nothing is submitted without --submit. Tasks that are told to stop save what they have, and go on when they run
    again; what is complete is never computed twice. Exit code 3 when something named is wrong, also when the scheduler
    refuses it; 6 when there is no scheduler.
    """
    if scheduler is None:
        raise click.UsageError(f"name the scheduler: {SLURM} or {AWS}")
    other, prefix = (AWS, "AWS: ") if scheduler == SLURM else (SLURM, "Slurm: ")
    for option in ctx.command.params:
        given = ctx.get_parameter_source(option.name or "") == ParameterSource.COMMANDLINE
        if given and isinstance(option, click.Option) and (option.help or "").startswith(prefix):
            raise click.UsageError(f"{option.opts[0]} belongs to {other}, and this is {scheduler}: leave it out")
    from dfmp2.execution.arrays import Request, parse_walltime
    from dfmp2.execution.manifest import read_manifest
    from dfmp2.options import parse_bytes

    folder = None if root is None else Path(root)
    batch = read_manifest(manifest, root=folder, output=None if output is None else Path(output))
    if shards > len(batch.items):
        raise InputError(f"--shards {shards}: the batch has {len(batch.items)} items: use at most that many shards")
    common = batch.items[0].options
    request = Request(
        manifest=manifest,
        root=root,
        output=output,
        shards=shards,
        workers=workers,
        threads=threads or common.threads or 1,
        memory=common.memory if memory is None else parse_bytes(memory),
        seconds=None if time is None else parse_walltime(time),
        chained=scf_chain,
    )
    _announce(batch, request, Console(quiet=as_json, log=None))
    target = None if write is None else Path(write)
    (_slurm if scheduler == SLURM else _aws)(batch, request, own, target, submit_now, as_json)
    return os.EX_OK


def duration(seconds: float) -> str:
    """Time as people say it."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _announce(batch: Batch, request: Request, console: Console) -> None:
    """What the tasks will have to do."""
    from dfmp2.execution.arrays import foresee

    outlook = foresee(batch, request.shards, chained=request.chained)
    bad = [item for item in outlook["items"] if item["nao"] is None]
    if bad:
        why = bad[0]["error"] or "its basis, charge or multiplicity does not fit"
        console.warning(f"{len(bad)} of {len(batch.items)} items will be refused, the first is {bad[0]['name']}: {why}")
    # No item is computed by several workers.
    longest = max(part["seconds"] / request.workers for part in outlook["shards"])
    longest = max(longest, *(item["seconds"] for item in outlook["items"]))
    rates = "rates of this machine" if outlook["measured"] else "built-in rates"
    console.note(
        f"{len(batch.items)} items in {request.shards} shards, {request.workers} x {request.threads} cores each: the "
        f"longest is predicted to take {duration(longest)} ({rates})"
    )
    if request.seconds is not None and longest > request.seconds:
        console.warning(f"--time is {duration(request.seconds)}: the longest shard will need more than one run")


def _slurm(
    batch: Batch, request: Request, own: dict[str, Any], folder: Path | None, submit_now: bool, as_json: bool
) -> None:
    """Show, write or submit the scripts of a batch."""
    from dfmp2.execution import slurm

    jobs = slurm.prepare(batch, request, folder, own)
    if submit_now:
        slurm.require_slurm(request.shards)
    if submit_now or folder is not None:
        slurm.write(jobs)
    numbers = slurm.submit(jobs) if submit_now else {}
    files, where = {str(path): text for path, text in slurm.files(jobs).items()}, jobs[0].path.parent
    if as_json:
        value = {"scheduler": "slurm", "shards": request.shards, "submitted": submit_now, "jobs": numbers}
        click.echo(json.dumps({**value, "files": files}, indent=1))
    elif submit_now:
        for job, before in zip(jobs, ["", *numbers.values()], strict=False):
            click.echo(f"{shlex.join(job.command(before))}  # job {numbers[job.name]}")
        click.echo(f"submitted: logs go to {where / slurm.LOGS}; scancel {' '.join(numbers.values())} takes it back")
    else:
        for name, text in files.items():
            click.echo(f"==> {name} <==\n{text}")
        written = "" if folder is None else f"written; bash {shlex.quote(str(where / slurm.SUBMIT))} submits it. "
        click.echo(f"{written}Nothing was submitted: --submit does that")


def _aws(
    batch: Batch, request: Request, own: dict[str, Any], folder: Path | None, submit_now: bool, as_json: bool
) -> None:
    """Show, write or submit the requests of a batch."""
    from dfmp2.execution import aws
    from dfmp2.execution.s3 import Store, connect

    jobs = aws.make_jobs(batch, request, aws.read_settings(own))
    if folder is not None:
        jobs.write(folder)
    done = None
    if submit_now:
        client = connect("batch", own["region"], own["profile"])
        store = None if jobs.place is None else Store(connect("s3", own["region"], own["profile"]))
        done = aws.submit(jobs, client, store)
    if as_json:
        submitted = None if done is None else {"warm_up": done.warm_up, "array": done.array, "job": done.definition}
        value = {"scheduler": "aws-batch", "shards": request.shards, "submitted": submitted}
        click.echo(json.dumps({**value, "requests": jobs.requests()}, indent=2))
    elif done is None:
        for name, value in jobs.requests().items():
            click.echo(f"==> {name}.json <==\n{json.dumps(value, indent=2)}")
        if jobs.package is not None:
            size = len(jobs.package.content)
            click.echo(printable(f"{jobs.package.files} files of inputs, {size} bytes -> {jobs.place}/inputs"))
        click.echo("nothing was submitted (--submit)")
    else:
        click.echo(f"job definition {done.definition} ({'registered' if done.registered else 'there already'})")
        if done.warm_up:
            click.echo(f"warm-up: job {done.warm_up}")
        click.echo(f"array of {request.shards}: job {done.array}" if request.shards > 1 else f"job {done.array}")
        if jobs.place is not None:
            click.echo(printable(f"results: aws s3 sync {jobs.place}/results FOLDER"))
