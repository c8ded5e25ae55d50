"""`dfmp2 batch submit`: a batch as an array job of a scheduler, shown first and submitted only when told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dfmp2.cli.batch_display import duration
from dfmp2.cli.console import Console
from dfmp2.cli.submit_aws import aws_options, submit_aws
from dfmp2.cli.submit_slurm import slurm_options, submit_slurm
from dfmp2.errors import InputError

if TYPE_CHECKING:
    from dfmp2.batch.manifest import Batch

SLURM, AWS = "--slurm", "--aws-batch"


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
@slurm_options
@aws_options
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
    options = _of_scheduler(ctx, scheduler, own)
    from dfmp2.batch.manifest import read_manifest
    from dfmp2.submission.request import Request
    from dfmp2.submission.walltime import parse_walltime
    from dfmp2.units import parse_bytes

    folder = None if root is None else Path(root)
    batch = read_manifest(manifest, root=folder, output=None if output is None else Path(output))
    common = batch.items[0].settings.options
    shared = Request(
        manifest=manifest,
        root=root,
        output=output,
        shards=_require_items(shards, batch),
        workers=workers,
        threads=threads or common.threads or 1,
        memory=common.memory if memory is None else parse_bytes(memory),
        seconds=None if time is None else parse_walltime(time),
        chained=scf_chain,
        submit=submit_now,
        folder=None if write is None else Path(write),
        as_json=as_json,
    )
    _announce(batch, shared, Console(quiet=as_json, log=None))
    return SUBMITTERS[scheduler](batch, shared, **options)


SUBMITTERS: dict[str, Callable[..., int]] = {SLURM: submit_slurm, AWS: submit_aws}
OPTIONS = {SLURM: slurm_options, AWS: aws_options}


def _of_scheduler(ctx: click.Context, scheduler: str, own: dict[str, Any]) -> dict[str, Any]:
    """The options of one scheduler; one of another that was given is refused."""
    names = {key: _names(decorate) for key, decorate in OPTIONS.items()}
    for other in names.keys() - {scheduler}:
        for name, option in names[other].items():
            if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{option} belongs to {other}, and this is {scheduler}: leave it out")
    return {name: own[name] for name in names[scheduler]}


def _names(decorate: Callable[..., Any]) -> dict[str, str]:
    """What the options of a decorator are called in Python and on the command line."""

    def nothing() -> None:
        """Takes the options."""

    return {option.name: option.opts[0] for option in getattr(decorate(nothing), "__click_params__", ())}


def _require_items(shards: int, batch: Batch) -> int:
    """No task without work."""
    if shards > len(batch.items):
        raise InputError(f"--shards {shards}: the batch has {len(batch.items)} items: use at most that many shards")
    return shards


def _announce(batch: Batch, shared: Any, console: Console) -> None:
    """What the tasks will have to do."""
    from dfmp2.batch.outlook import foresee

    outlook = foresee(batch, shared.shards, chained=shared.chained)
    bad = [item for item in outlook.items if item.nao is None]
    if bad:
        why = bad[0].error or "its basis, charge or multiplicity does not fit"
        console.warning(f"{len(bad)} of {len(batch.items)} items will be refused, the first is {bad[0].name}: {why}")
    # No item is computed by several workers.
    longest = max(*(load / shared.workers for load in outlook.loads), *(item.seconds for item in outlook.items))
    rates = "rates of this machine" if outlook.measured else "built-in rates"
    console.note(
        f"{len(batch.items)} items in {shared.shards} shards, {shared.workers} x {shared.threads} cores each: the "
        f"longest is predicted to take {duration(longest)} ({rates})"
    )
    if shared.seconds is not None and longest > shared.seconds:
        console.warning(f"--time is {duration(shared.seconds)}: the longest shard will need more than one run")
