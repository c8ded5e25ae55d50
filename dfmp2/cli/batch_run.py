"""`dfmp2 batch run`: many molecules, isolated from each other, by several processes."""

from __future__ import annotations

import functools
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dfmp2.cli.console import Console, conclude, open_log, require_log, styled
from dfmp2.cli.help import AnnouncedCommand
from dfmp2.cli.options import ALL as EVERY_OPTION
from dfmp2.cli.options import (
    ENGINE,
    LAST_LINE,
    MOST_WORKERS,
    SCF_CHAIN,
    as_one,
    options_of,
)
from dfmp2.cli.run import command_line, require_distinct
from dfmp2.errors import STOPPED, DeviceFault, InputError, Interrupted, SomeFailed
from dfmp2.host.processes import start_server
from dfmp2.host.resources import pinning, usable_cores
from dfmp2.molecule.text import printable
from dfmp2.options import ALL, KEPT, OF_THE_MACHINE, WHOLE_RUN, Options
from dfmp2.output.document import (
    WIDEST,
    cut_text,
    displayed_width,
    padded,
    shortened_lines,
)
from dfmp2.units import counted_text, format_bytes

if TYPE_CHECKING:
    from dfmp2.execution.batch import BatchRun
    from dfmp2.execution.items import ItemStatus
    from dfmp2.execution.manifest import Batch
    from dfmp2.execution.pool import Pool
    from dfmp2.host.s3 import Copies

    # The batch, the copies of its results in S3, and whether it is only the list of a shard
    OpenedBatch = tuple[Batch, Copies | None, bool]

MOST_SHOWN = 20
STATE_WIDTH = 12  # of "failed (12)" and a blank
NAME_WIDTH = 27  # of a name, leaving room for an energy and a time; longer ones are cut
MOST_LINES = 4  # of the remark on an item
READ_BY_ITEMS = ("point_charges", "scf_from")  # files that are named in their options
# s within which two SIGTERM count as one, because a scheduler sends it to all processes and its
# script forwards it
TOGETHER = 1.0


def folder_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --output and --root to a command."""
    output = click.option(
        "--output", metavar="DIR", help="Folder of the results.  [default: that of the manifest]"
    )
    root = click.option(
        "--root",
        metavar="DIR",
        help="Folder that paths are relative to; a manifest's stay inside it.",
    )
    return output(root(function))


def of_a_batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add MANIFEST or OUTPUT, --output and --root to a command, which receives them as one
    `batch`."""

    @functools.wraps(function)
    def with_batch(manifest: str, root: str | None, output: str | None, **options: Any) -> Any:
        from dfmp2.execution.manifest import read_batch

        return function(batch=read_batch(manifest, root=root, output=output), **options)

    return folder_options(click.argument("manifest", metavar="MANIFEST.toml | OUTPUT")(with_batch))


@dataclass(frozen=True, slots=True)
class BatchSource:
    """The source of a batch on the command line: a manifest or molecule files, and folders."""

    sources: tuple[str, ...]
    output: str | None
    root: str | None

    @property
    def manifests(self) -> list[str]:
        """Those of the sources that are manifests, or folders with one."""
        from dfmp2.execution.manifest import holds_manifest

        return [name for name in self.sources if name.endswith(".toml") or holds_manifest(name)]


@dataclass(frozen=True, slots=True)
class WorkDivision:
    """The division of a batch: the values of --workers, --engine, --shard and --scf-chain."""

    workers: int | None
    engine: str | None
    shard: str | None
    scf_chain: bool

    def part(self) -> tuple[int, int] | None:
        """(I, N) of --shard, or of the array job to which this process belongs; None for all.

        Raises
        ------
        InputError : not I/N
        """
        from dfmp2.execution.batch import read_shard, shard_of_job

        if self.shard is not None:
            return read_shard(self.shard)
        return shard_of_job()


@click.command("run", cls=AnnouncedCommand, short_help="Compute what is not complete.")
@click.argument("sources", nargs=-1, required=True, metavar="MANIFEST.toml | OUTPUT | FILE...")
@folder_options
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    help="Number of processes.  [default: one per core for small molecules, otherwise 1; all of "
    "--engine]",
)
@ENGINE
@click.option(
    "--shard",
    metavar="I/N",
    help="Part I (from 0) of N.  [default: of the Slurm or AWS Batch array job]",
)
@SCF_CHAIN
@click.option(
    "--keep",
    type=click.Choice(KEPT),
    default=ALL,
    show_default=True,
    help="What to store of each result: energies and forces, all numbers, or orbitals too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the status as one JSON object.")
@LAST_LINE
@click.option("--log", metavar="FILE", help="Append progress to a file.")
@click.option(
    "--check", is_flag=True, help="Also run PySCF's own DF-MP2; an item that differs fails."
)
@click.option("--copy-every", type=click.FloatRange(1, 3600), default=60.0, hidden=True)
@click.option("--warm-up", is_flag=True, hidden=True)
@options_of(*EVERY_OPTION, *WHOLE_RUN, basis_required=False)  # given in the manifest
@click.pass_context
@as_one("source", BatchSource)
@as_one("division", WorkDivision)
def batch_run(
    ctx: click.Context,
    /,
    source: BatchSource,
    division: WorkDivision,
    as_json: bool,
    quiet: bool,
    log: str | None,
    copy_every: float,
    warm_up: bool,
    **options: Any,
) -> int:
    """Compute every item of MANIFEST.toml, or every FILE (as of dfmp2 run) with the same options,
    that is not complete; OUTPUT is the folder of a batch of files that is to be continued.

    Results are OUTPUT/NAME.h5, errors OUTPUT/NAME.error.json. With --workers, --threads are those
    of each; --memory is shared by all of them (on --engine: of each). Ctrl-C or SIGTERM stops
    within 10 s; repeat the command to continue. Exit code 0 if all items are complete, 9 if items
    failed, 75 if it was stopped, 7 if a device failed, the output folder can no longer be written or
    --engine does not answer.
    """
    explicit = [ParameterSource.COMMANDLINE]
    if not source.manifests:  # which name the backend themselves
        explicit.append(ParameterSource.ENVIRONMENT)
    options = {
        name: value for name, value in options.items() if ctx.get_parameter_source(name) in explicit
    }
    part = division.part()
    for number, file in enumerate(source.sources, start=1):
        require_distinct({f"FILE {number}": file, "--log": log})
    if log is not None:
        require_log(log)
    signals = Signals()
    with (
        ExitStack() as log_files,
        Console(quiet=quiet or as_json, log=None) as console,
        _opened_batch(source, division, part, options, copy_every, console) as opened,
    ):
        batch, _, own_list = opened
        if log is not None:
            require_no_file_of(batch, "--log", log)
            console.log_to(log_files.enter_context(open_log(log)))
        if warm_up:
            return _compile_programs(batch, signals)
        run = _make_run(opened, division, part, options, console)
        run.stop_asked = lambda: signals.count
        pool, workers, workers_text = make_pool(run, division, options)
        _announce(batch, part, workers_text, console, listed=own_list)
        run.compute(pool, workers)
        console.close()
        if as_json:
            from dfmp2.output.json import rows_json

            click.echo(rows_json(status_json(batch, list(run.rows.values()))), nl=False)
        else:
            _report(batch, run, signals.count, quiet=quiet)
        return _conclude(batch, run, signals.count)


def _opened_batch(
    source: BatchSource,
    division: WorkDivision,
    part: tuple[int, int] | None,
    options: Mapping[str, Any],
    copy_every: float,
    console: Console,
) -> AbstractContextManager[OpenedBatch]:
    """A context with the batch: from an archive in S3, the list of a shard, or the command line.

    Parameters
    ----------
    copy_every : float
        Seconds between copies of the results to S3.
    """
    if source.sources[0].startswith("s3://"):  # in a container of `batch submit --aws-batch`
        from dfmp2.execution.aws import unpacked_archive

        return unpacked_archive(
            source.sources[0], copy_every, console.warning, part, chained=division.scf_chain
        )
    listed = _own_list(source, division, part, options)
    if listed is not None:
        return nullcontext((listed, None, True))
    batch = load_batch(source, options)
    if not batch.source:
        from dfmp2.execution.manifest import leave_manifest

        leave_manifest(batch)
    return nullcontext((batch, None, False))


def _make_run(
    opened: OpenedBatch,
    division: WorkDivision,
    part: tuple[int, int] | None,
    options: Mapping[str, Any],
    console: Console,
) -> BatchRun:
    """The run of the items of this process, with their files of earlier attempts."""
    from dfmp2.execution.batch import BatchRun, of_shard
    from dfmp2.execution.items import read_inputs

    batch, copies, own_list = opened
    inputs = read_inputs(batch, whole=not own_list)
    mine: Sequence[int] = range(len(inputs))
    if not own_list:
        mine = of_shard(inputs, part, chained=division.scf_chain)
    if copies is not None:
        from dfmp2.execution.aws import fetch_items

        count = fetch_items(copies, [batch.items[place].name for place in mine])
        console.note(f"items: {len(mine)}, files of earlier attempts: {count}")
    scratch = batch.items[0].options.scratch
    if batch.source and options.get("scratch"):  # instead of the manifest's
        scratch = os.path.abspath(options["scratch"])
    run = BatchRun(
        batch=batch,
        inputs=inputs,
        mine=mine,
        listener=console,
        chained=division.scf_chain,
        scratch=scratch,
        command=command_line()[:4000],
        shard=part,
    )
    if batch.optimizes:
        from dfmp2.studies.optimize import minimum

        run.optimize = minimum
    return run


def _announce(
    batch: Batch,
    part: tuple[int, int] | None,
    workers_text: str,
    console: Console,
    *,
    listed: bool,
) -> None:
    """Announce the batch, its workers and its output; `listed` if the batch is only the list of a
    shard."""
    items = counted_text(len(batch.items), "item")
    if part is None:
        console.note(f"{items}, {workers_text} -> {batch.output}")
        return
    shard, shards = part
    console.note(f"{items}, shard {shard} of {shards}, {workers_text} -> {batch.output}")
    if shards > len(batch.items) and not listed:
        console.warning(f"more shards ({shards}) than items: some of them have nothing to do")


def require_no_file_of(batch: Batch, option: str, path: str | Path) -> None:
    """Raise if an option names the manifest, or a file that an item reads or makes, as a file to be
    written."""
    from dfmp2.execution.manifest import LEFT_MANIFEST

    require_distinct({"manifest": batch.source or batch.output / LEFT_MANIFEST, option: path})
    for item in batch.items:
        files = {"molecule": item.path, "result": item.target}
        files |= {name: item.given[name] for name in READ_BY_ITEMS if name in item.given}
        for name, file in files.items():
            require_distinct({f"{name} of {item.name}": file, option: path})


class Signals:
    """Counts signals: the first asks the batch to stop, the second to stop at once."""

    def __init__(self) -> None:
        self.count = 0
        self._last = -math.inf  # s, time of the last one
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if number != signal.SIGTERM or now - self._last > TOGETHER:
            self.count += 1
        self._last = now


def load_batch(source: BatchSource, options: Mapping[str, Any]) -> Batch:
    """The batch given on the command line.

    Parameters
    ----------
    options : mapping
        Options of the calculation given on the command line.

    Raises
    ------
    InputError : a manifest among files, options that belong in the manifest, or no --output
    """
    from dfmp2.execution.manifest import LEFT_MANIFEST, make_batch, read_batch

    sources = source.sources
    manifests = source.manifests
    if not manifests:
        if source.output is None:
            raise InputError("--output is missing: name the folder for the results")
        for name in sources:
            if os.path.isdir(name):
                raise InputError(
                    f"{name} is a folder: name its files, for example {name.rstrip('/')}/*.xyz"
                )
        return make_batch(sources, options, Path(source.output), source.root)
    if len(sources) > 1:
        raise InputError(
            f"{len(sources)} arguments with {manifests[0]} among them: expected one manifest, or "
            "files of molecules"
        )
    manifest = manifests[0]
    if os.path.isdir(manifest):
        manifest = os.path.join(manifest, LEFT_MANIFEST)
    for name in options:
        if name not in OF_THE_MACHINE:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} with a manifest: write {name} = ... into {manifest}")
    return read_batch(manifests[0], root=source.root, output=source.output)


def _own_list(
    source: BatchSource,
    division: WorkDivision,
    part: tuple[int, int] | None,
    options: Mapping[str, Any],
) -> Batch | None:
    """The items of a shard from the list written by `batch submit`; None if there is none, so that
    the shard is determined from the whole batch."""
    if part is None or source.output is None or not set(options) <= set(OF_THE_MACHINE):
        return None
    from dfmp2.execution.batch import read_list

    folder = Path(source.output)
    return read_list(source.sources[0], source.root, folder, part, chained=division.scf_chain)


def make_pool(
    run: BatchRun, division: WorkDivision, options: Mapping[str, Any]
) -> tuple[Pool, int, str]:
    """The workers of a run, their largest number, and their description.

    Parameters
    ----------
    options : mapping
        Options of the calculation given on the command line; --memory and --threads override those
        of the manifest.
    """
    from dfmp2.execution.pool import WorkerShare, local_pool

    batch, count = run.batch, division.workers
    common = batch.items[0].options
    machine = Options("-", **{name: options[name] for name in OF_THE_MACHINE if name in options})
    threads = machine.threads or common.threads
    memory = machine.memory or common.memory
    if division.engine is not None:
        from dfmp2.execution.dask import DaskPool

        share = WorkerShare(threads or 0, memory or 0)
        text = f"the Dask cluster of {division.engine}"
        return DaskPool(division.engine, batch.output, share), count or MOST_WORKERS, text
    run.require_surroundings()
    if run.left and not pinning(batch.device, 0, 1):
        start_server(["dfmp2.execution.preloaded", "dfmp2.execution.items"])
        if count is None:
            cores = threads or usable_cores()
            count = run.suitable_workers(cores, memory)
            threads = cores // count
    count = count or 1
    pool = local_pool(batch.device, count, threads, memory)
    workers = counted_text(count, "worker")
    threads_text = counted_text(pool.share.threads, "thread")
    return pool, count, f"{workers} x {threads_text}, {format_bytes(pool.share.memory)} each"


def _compile_programs(batch: Batch, signals: Signals) -> int:
    """Compile the programs of the batch, in a job of its own before the array; otherwise every task
    would do the same.

    One program serves a bucket of sizes (virtuals to 32, fitting functions to 128). Returns the
    exit code of the first failed `dfmp2 kernels warmup`, or 0; raises Interrupted when stopped,
    keeping the compiled programs.
    """
    from dfmp2.backends.registry import accelerator
    from dfmp2.execution.batch import works
    from dfmp2.execution.items import read_inputs
    from dfmp2.execution.manifest import COMPILED
    from dfmp2.planning.plan import trainium_shapes

    lane = str(batch.asks_for(*COMPILED))
    buckets: dict[Any, list[str]] = {}  # arguments of `kernels warmup`
    for item, work in zip(batch.items, works(read_inputs(batch)), strict=True):
        if not work.load or item.options.backend not in COMPILED:
            continue
        spins = trainium_shapes(work.load)
        if not spins:
            continue
        shape = ["--shape", f"{spins[0].nocc},{spins[0].nvir},{spins[0].naux}"]
        if len(spins) > 1:
            shape += ["--beta", f"{spins[1].nocc},{spins[1].nvir}"]
        buckets.setdefault(accelerator().bucket(spins), shape)
    for _, shape in sorted(buckets.items()):
        command = [sys.executable, "-P", "-m", "dfmp2", "kernels", "warmup", "--lane", lane, *shape]
        # A session of its own, so that a signal reaches it only once, from here.
        with subprocess.Popen(command, start_new_session=True) as child:
            while child.poll() is None and not signals.count:
                time.sleep(0.2)
            child.terminate()
        if signals.count:
            raise Interrupted("stopped while kernels were compiled: repeat the command to continue")
        if child.returncode:
            return child.returncode
    return os.EX_OK


def _report(batch: Batch, run: BatchRun, stopped: int, *, quiet: bool) -> None:
    """Print the failed items, whose errors have been shown as warnings, and the last line.

    Parameters
    ----------
    stopped : int
        Number of times the user asked to stop.
    """
    failed = run.in_state("failed")
    if not quiet:
        for row in failed[:MOST_SHOWN]:
            click.echo(styled(item_lines(f"failed ({row.exit_code})", row.name, "")))
        if len(failed) > MOST_SHOWN:
            click.echo(f"... and {len(failed) - MOST_SHOWN} more: see dfmp2 batch status")
    complete = len(run.in_state("complete"))
    items = counted_text(len(run.rows), "item")
    parts = [f"{complete} of {items} complete ({run.complete_before} of them before)"]
    for state in ("failed", "running", "pending"):
        count = len(run.in_state(state))
        if count:
            parts.append(f"{count} {state}")
    if stopped or run.blocked:
        end = "stopped"
    else:
        end = "finished"
    conclude(f"dfmp2 batch {end}: {', '.join(parts)} -> {printable(str(batch.output))}")


def _conclude(batch: Batch, run: BatchRun, stopped: int) -> int:
    """The exit code, or raise the corresponding error."""
    failed = len(run.in_state("failed"))
    running = len(run.in_state("running"))
    pending = len(run.in_state("pending"))
    again = "repeat the command to continue"
    missing = f"{counted_text(pending + running, 'item')} not complete"
    if stopped > 1:
        error = Interrupted(f"stopped at once: {missing}; {again}")
        error.exit_code = STOPPED
        raise error
    if run.blocked and not stopped:
        raise run.unwritable(run.blocked)
    if run.fault and pending and not stopped:
        raise DeviceFault(f"{missing}: {run.fault}; repeat the command on another host to continue")
    if (stopped and running) or pending:
        raise Interrupted(f"stopped: {missing}; {again}")
    if running:
        first = run.in_state("running")[0]
        raise Interrupted(f"{missing}: {first.name}: {first.remark}; {again} when that has ended")
    if failed:
        raise SomeFailed(
            f"{failed} of {counted_text(len(run.rows), 'item')} failed: see NAME.error.json in "
            f"{batch.output}; repeat the command to try them again"
        )
    return os.EX_OK


def item_lines(state: str, name: str, remark: str) -> str:
    """The status of an item in lines that fit a terminal.

    A long name is shortened in its middle. A remark that does not fit is put below the name, in at
    most about MOST_LINES lines.
    """
    label = cut_text(printable(name), NAME_WIDTH)
    start = f"{state:<{STATE_WIDTH}} {padded(label, NAME_WIDTH)} "
    words = printable(remark)
    if displayed_width(start + words) <= WIDEST:
        return f"{start}{words}".rstrip()
    indent = " " * (STATE_WIDTH + 1)
    label = cut_text(printable(name), WIDEST - len(indent))
    below = shortened_lines(words, WIDEST - len(indent), MOST_LINES)
    return "\n".join([f"{state:<{STATE_WIDTH}} {label}", *(indent + line for line in below)])


def status_json(batch: Batch, rows: Sequence[ItemStatus]) -> dict[str, Any]:
    """The object that --json prints: the number of items in each state, and all items."""
    from dfmp2.execution.items import STATES, STATUS_KEYS

    counts = Counter(row.status for row in rows)
    items = [{key: getattr(row, key) for key in STATUS_KEYS} for row in rows]
    for item in items:
        if item["error"] is not None:
            item["error"] = batch.worded(item["error"])
    return {"total": len(rows), **{state: counts[state] for state in STATES}, "items": items}
