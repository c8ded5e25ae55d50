"""`dfmp2 batch run`: compute the items of a manifest, or a list of xyz files, with several processes."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dfmp2.cli.batch_display import Display
from dfmp2.cli.calculation import calculation_options
from dfmp2.cli.console import Console, open_log
from dfmp2.errors import DeviceFault, InputError, Interrupted, SomeFailed
from dfmp2.io.text import printable
from dfmp2.resources import available_memory, usable_cores

if TYPE_CHECKING:
    from dfmp2.batch.manifest import Batch
    from dfmp2.batch.orders import Orders, Outcome

OF_THE_MACHINE = ("memory", "threads", "scratch")  # may be given beside a manifest
SHARE_OF_FREE = 0.9  # of the memory that is free
STOPPED_TWICE = 130
MOST_SHOWN = 20


@click.command("run", short_help="Compute what is not complete.")
@click.argument("sources", nargs=-1, required=True, metavar="MANIFEST.toml | FILE.xyz...")
@click.option("--output", metavar="DIR", help="Folder of the results.  [default: that of the manifest]")
@click.option("--root", metavar="DIR", help="Folder that the manifest's paths are relative to, and confined to.")
@click.option("--workers", type=click.IntRange(1, 4096), default=1, show_default=True, help="Processes.")
@click.option("--shard", metavar="I/N", help="Part I (from 0) of N.  [default: of the Slurm or AWS Batch array job]")
@click.option("--scf-chain", is_flag=True, help="Start the SCF from the item before, of the same atoms.")
@click.option("--json", "as_json", is_flag=True, help="Print the status as one JSON object.")
@click.option("--quiet", is_flag=True, help="Print only the last line, and warnings.")
@click.option("--log", metavar="FILE", help="Append progress to a file.")
@click.option("--check", is_flag=True, help="Also run PySCF's own DF-MP2; an item that differs fails.")
@calculation_options
@click.pass_context
def run(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    output: str | None,
    root: str | None,
    workers: int,
    shard: str | None,
    scf_chain: bool,
    as_json: bool,
    quiet: bool,
    log: str | None,
    **options: Any,
) -> int:
    """Compute every item of MANIFEST.toml, or every FILE.xyz with the same options, that is not complete.

    Results are OUTPUT/NAME.h5, errors OUTPUT/NAME.error.json, the overview OUTPUT/batch.json and batch.csv. --threads
    are those of each worker, --memory is shared by all of them. Ctrl-C or SIGTERM stops within 10 s; the same command
    goes on. Exit code 0 when all is complete, 9 when items failed, 75 when it was stopped, 7 when
    a device failed and none is left.
    """
    given = {name: value for name, value in options.items() if _from_command_line(ctx, name)}
    batch = load(sources, given, output, root)
    orders = _make_orders(batch, workers, _shard(shard), scf_chain, given)
    from dfmp2.batch.run import run_batch

    with contextlib.ExitStack() as stack:
        handle = open_log(log)
        console = Console(quiet=quiet or as_json, log=stack.enter_context(handle) if handle else None)
        with Display(console) as display:
            part = "" if orders.shard is None else f", shard {orders.shard[0]} of {orders.shard[1]}"
            console.note(
                f"{_count(len(batch.items), 'item')}{part}, {_count(workers, 'worker')} x "
                f"{_count(orders.threads, 'thread')}, {orders.memory / 1e9:.1f} GB each -> {batch.output}"
            )
            if orders.shard is not None and orders.shard[1] > len(batch.items):
                console.warning(f"more shards ({orders.shard[1]}) than items: some of them have nothing to do")
            outcome = run_batch(batch, orders, display)
            _report(batch, outcome, as_json=as_json, quiet=quiet)
    return _conclude(batch, outcome)


def load(sources: Sequence[str], given: Mapping[str, Any], output: str | None, root: str | None) -> Batch:
    """The batch that the command line names.

    Parameters
    ----------
    given : options of the calculation that were given there
    """
    from dfmp2.batch.manifest import make_batch, read_manifest

    target = None if output is None else Path(output)
    manifests = [source for source in sources if source.endswith(".toml")]
    if not manifests:
        if target is None:
            raise InputError("no --output: name the folder of the results")
        if root is not None:
            raise InputError("--root belongs to a manifest: leave it out, files are named as they are")
        if "basis" not in given:
            raise InputError("no --basis: name an orbital basis such as cc-pvdz")
        folders = [source for source in sources if os.path.isdir(source)]
        if folders:
            raise InputError(f"{folders[0]} is a folder: name its files, for example {folders[0].rstrip('/')}/*.xyz")
        return make_batch(sources, given, target)
    if len(sources) > 1:
        raise InputError(
            f"{len(sources)} arguments with {manifests[0]} among them: expected one manifest, or xyz files"
        )
    foreign = [name for name in given if name not in OF_THE_MACHINE]
    if foreign:
        option = foreign[0].replace("_", "-")
        raise InputError(f"--{option} beside a manifest: write {foreign[0]} = ... into {manifests[0]}")
    return read_manifest(manifests[0], root=None if root is None else Path(root), output=target)


def _from_command_line(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def _shard(text: str | None) -> tuple[int, int] | None:
    from dfmp2.batch.order import read_shard, shard_of_job

    return shard_of_job() if text is None else read_shard(text)


def _make_orders(
    batch: Batch, workers: int, shard: tuple[int, int] | None, chained: bool, given: Mapping[str, Any]
) -> Orders:
    """Divide the machine."""
    from dfmp2.batch.orders import Orders
    from dfmp2.batch.settings import make_settings

    common = batch.items[0].settings.options
    own = make_settings(
        {"basis": "-", **{k: v for k, v in given.items() if k in OF_THE_MACHINE}}, "command line"
    ).options
    threads = own.threads or common.threads or max(1, usable_cores() // workers)
    memory = own.memory or common.memory or int(SHARE_OF_FREE * available_memory())
    return Orders(
        workers=workers,
        threads=threads,
        memory=memory // workers,
        scratch=own.scratch or common.scratch,
        shard=shard,
        chained=chained,
        command=printable(shlex.join(["dfmp2", *sys.argv[1:]]))[:4000],
    )


def _report(batch: Batch, outcome: Outcome, *, as_json: bool, quiet: bool) -> None:
    from dfmp2.batch.ledger import status
    from dfmp2.io.batch import to_json

    if as_json:
        click.echo(to_json(status(outcome.rows)), nl=False)
        return
    failed = outcome.own("failed")
    if not quiet:
        for row in failed[:MOST_SHOWN]:
            click.echo(printable(f"failed ({row.exit_code}) {row.name}: {(row.error or '')[:200]}"))
        if len(failed) > MOST_SHOWN:
            click.echo(f"... and {len(failed) - MOST_SHOWN} more; see {printable(str(batch.output / 'batch.csv'))}")
    click.echo(f"dfmp2 batch {_state(outcome)} -> {printable(str(batch.output))}")


def _state(outcome: Outcome) -> str:
    complete = len(outcome.own("complete"))
    said = [f"{complete} of {len(outcome.mine)} items complete ({outcome.found} of them before)"]
    said += [f"{len(outcome.own(state))} {state}" for state in ("failed", "running", "pending") if outcome.own(state)]
    return f"{'stopped' if outcome.stopped else 'finished'}: {', '.join(said)}"


def _conclude(batch: Batch, outcome: Outcome) -> int:
    """The exit code, or the error that stands for it."""
    failed, left = len(outcome.own("failed")), len(outcome.own("pending"))
    running = outcome.own("running")
    if outcome.stopped > 1:
        click.echo(f"dfmp2: stopped at once: {_items(left)} not complete; the same command goes on", err=True)
        return STOPPED_TWICE
    if outcome.barred and left and not outcome.stopped:
        raise DeviceFault(
            f"{_items(left)} not begun: {', '.join(outcome.barred)} of host {socket.gethostname()} reported a hardware "
            "fault, and no other device was left: take this host out of use; the same command on another one goes on"
        )
    if (outcome.stopped and running) or left:
        raise Interrupted(f"stopped: {_items(left + len(running))} not complete; the same command goes on")
    if running:
        raise Interrupted(
            f"{_items(len(running))} being computed by another process ({running[0].name}: {running[0].remark}); the "
            "same command says later what became of that"
        )
    if failed:
        raise SomeFailed(
            f"{failed} of {len(outcome.mine)} items failed: see NAME.error.json in {batch.output}; the same command "
            f"tries them again"
        )
    return os.EX_OK


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _items(number: int) -> str:
    return f"{number} item{'s are' if number != 1 else ' is'}"


for _parameter in run.params:
    if _parameter.name == "basis":
        _parameter.required = False  # a manifest names it
