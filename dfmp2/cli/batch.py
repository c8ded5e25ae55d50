"""`dfmp2 batch`: many molecules; run them, plan them, see where they stand, collect their energies,
submit them."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dfmp2.cli.console import Console, open_log
from dfmp2.cli.help import AnnouncedCommand, CommandGroup
from dfmp2.cli.options import (
    AS_JSON,
    BACKENDS,
    ENGINE,
    LAST_LINE,
    MOST_WORKERS,
    OVERWRITE,
    SCF_CHAIN,
    Words,
    calculation_options,
    with_options,
)
from dfmp2.cli.run import command_line
from dfmp2.errors import BackendUnavailable, DeviceFault, InputError, Interrupted, SomeFailed
from dfmp2.errors.messages import Option
from dfmp2.molecule.text import printable
from dfmp2.mp2.result import ALL, KEPT
from dfmp2.options import BACKEND_WORDS, Options, parse_bytes
from dfmp2.output.document import counted_text

if TYPE_CHECKING:
    from dfmp2.execution.batch import BatchRun
    from dfmp2.execution.items import ItemStatus
    from dfmp2.execution.manifest import Batch
    from dfmp2.execution.pool import Pool

# Those of `dfmp2.output.dataset.WRITERS`, which --help need not import.
DATASETS = ("extxyz", "h5", "parquet", "csv", "json", "ase.db")
OF_THE_MACHINE = ("memory", "threads", "scratch")  # may be given beside a manifest
STOPPED_TWICE = 130
MOST_SHOWN = 20
# s within which two SIGTERM are one: a scheduler sends it to all processes, and its script passes
# it on
TOGETHER = 1.0


@click.group(
    "batch",
    cls=CommandGroup,
    short_help="Run many molecules, restart them, see where they stand, collect their energies.",
)
def batch_command() -> None:
    """Many molecules: isolated from each other, computed by several processes, never computed
    twice.

    A manifest is a TOML file: options of `dfmp2 run` (basis = "cc-pvdz"), output = "FOLDER", and
    one table [[item]] with molecule = "FILE" (as of dfmp2 run) per molecule, which may have a name
    and options of its own.
    """


def _folders(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --output and --root."""
    output = click.option(
        "--output", metavar="DIR", help="Folder of the results.  [default: that of the manifest]"
    )
    root = click.option(
        "--root",
        metavar="DIR",
        help="Folder that paths are relative to; a manifest's stay inside it.",
    )
    return output(root(function))


def _of_a_batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command MANIFEST or OUTPUT, --output and --root, which it gets as one `batch`."""

    @functools.wraps(function)
    def found(manifest: str, root: str | None, output: str | None, **given: Any) -> Any:
        from dfmp2.execution.manifest import read_batch

        return function(batch=read_batch(manifest, root=root, output=output), **given)

    return _folders(click.argument("manifest", metavar="MANIFEST.toml | OUTPUT")(found))


# --- run ------------------------------------------------------------------------------------------


@batch_command.command("run", cls=AnnouncedCommand, short_help="Compute what is not complete.")
@click.argument("sources", nargs=-1, required=True, metavar="MANIFEST.toml | FILE...")
@_folders
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    help="Processes.  [default: 1; all of --engine]",
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
    help="Of each result: forces and energies, all numbers, or orbitals too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the status as one JSON object.")
@LAST_LINE
@click.option("--log", metavar="FILE", help="Append progress to a file.")
@click.option(
    "--check", is_flag=True, help="Also run PySCF's own DF-MP2; an item that differs fails."
)
@click.option("--copy-every", type=click.FloatRange(1, 3600), default=60.0, hidden=True)
@click.option("--warm-up", is_flag=True, hidden=True)
@calculation_options
@click.pass_context
def batch_run(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    output: str | None,
    root: str | None,
    workers: int | None,
    engine: str | None,
    shard: str | None,
    scf_chain: bool,
    keep: str,
    as_json: bool,
    quiet: bool,
    log: str | None,
    copy_every: float,
    warm_up: bool,
    **options: Any,
) -> int:
    """Compute every item of MANIFEST.toml, or every FILE (as of dfmp2 run) with the same options,
    that is not complete.

    Results are OUTPUT/NAME.h5, errors OUTPUT/NAME.error.json. --threads
    are those of each worker, --memory is shared by all of them (on --engine: of each). Ctrl-C or
    SIGTERM stops within 10 s; the same command goes on. Exit code 0 when all is complete, 9 when
    items failed, 75 when it was stopped, 7 when a device failed, or --engine does not answer.
    """
    said = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    given = {
        name: value for name, value in options.items() if ctx.get_parameter_source(name) in said
    }
    if ctx.get_parameter_source("keep") in said:
        given["keep"] = keep
    from dfmp2.execution.shards import of_shard, read_shard, shard_of_job

    workers = workers or (1 if engine is None else MOST_WORKERS)
    part, signals = shard_of_job() if shard is None else read_shard(shard), Signals()
    with contextlib.ExitStack() as stack:
        handle = open_log(log)
        if handle:
            log_file = stack.enter_context(handle)
        else:
            log_file = None
        console = stack.enter_context(Console(quiet=quiet or as_json, log=log_file))
        copies = None
        listed = None
        if sources[0].startswith(
            "s3://"
        ):  # in a container of AWS Batch: its job is that of `batch submit --aws-batch`
            from dfmp2.execution.aws import unpacked_archive

            batch, copies = stack.enter_context(
                unpacked_archive(sources[0], copy_every, console.warning)
            )
        else:
            if part is not None and output is not None and set(given) <= set(OF_THE_MACHINE):
                from dfmp2.execution.shard_lists import read_list

                listed = read_list(sources[0], root, Path(output), part, chained=scf_chain)
            batch = listed or load_batch(sources, given, output, root)
            if not batch.source:
                leave_manifest(batch)
        if warm_up:
            return _compile_programs(batch, signals)
        from dfmp2.execution.batch import BatchRun
        from dfmp2.execution.items import read_inputs
        from dfmp2.output.table import rows_json

        pool, who = _workers(batch, engine, workers, given)
        if part is None:
            shown = ""
        else:
            shown = f", shard {part[0]} of {part[1]}"
        console.note(f"{counted_text(len(batch.items), 'item')}{shown}, {who} -> {batch.output}")
        if part is not None and part[1] > len(batch.items) and not listed:
            console.warning(f"more shards ({part[1]}) than items: some of them have nothing to do")
        inputs = read_inputs(batch)
        mine: Sequence[int] = range(len(inputs))
        if not listed:
            mine = of_shard(inputs, part, chained=scf_chain)
        if copies is not None:
            from dfmp2.execution.aws import fetch_items

            count = fetch_items(copies, [batch.items[place].name for place in mine])
            console.note(f"items: {len(mine)}, files of earlier attempts: {count}")
        scratch = given.get("scratch") or batch.items[0].options.scratch
        line = command_line()[:4000]
        done = BatchRun(
            batch, inputs, mine, console, scf_chain, scratch, line, stop_asked=lambda: signals.count
        )
        done.shard = part
        done.compute(pool, workers)
        console.close()
        if as_json:
            click.echo(rows_json(_status(list(done.rows.values()))), nl=False)
        else:
            _report(batch, done, signals.count, quiet=quiet)
        return _conclude(batch, done, signals.count)


for _parameter in batch_run.params:
    if _parameter.name == "basis":
        _parameter.required = False  # a manifest names it


class Signals:
    """Counts signals: the first asks the batch to stop, the second to stop at once."""

    def __init__(self) -> None:
        self.count, self._last = 0, -math.inf
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        before, self._last = self._last, time.monotonic()
        if number != signal.SIGTERM or self._last - before > TOGETHER:
            self.count += 1


def load_batch(
    sources: Sequence[str], given: Mapping[str, Any], output: str | None, root: str | None
) -> Batch:
    """The batch that the command line names, with the options of the calculation that were given
    there."""
    from dfmp2.execution.manifest import make_batch, read_manifest

    manifests = [source for source in sources if source.endswith(".toml")]
    if not manifests:
        if output is None:
            raise InputError("no --output: name the folder of the results")
        folders = [source for source in sources if os.path.isdir(source)]
        if folders:
            raise InputError(
                f"{folders[0]} is a folder: name its files, for example "
                f"{folders[0].rstrip('/')}/*.xyz"
            )
        return make_batch(sources, given, Path(output), root)
    if len(sources) > 1:
        raise InputError(
            f"{len(sources)} arguments with {manifests[0]} among them: expected one manifest, or "
            "files of molecules"
        )
    foreign = [name for name in given if name not in OF_THE_MACHINE]
    if foreign:
        option = foreign[0].replace("_", "-")
        raise InputError(
            f"--{option} beside a manifest: write {foreign[0]} = ... into {manifests[0]}"
        )
    return read_manifest(manifests[0], root=root, output=output)


def leave_manifest(batch: Batch) -> None:
    """Leave a manifest of a batch of files in its output folder, which then stands for it."""
    from dfmp2.execution.manifest import LEFT_MANIFEST, manifest_of
    from dfmp2.host.files import make_folder, write_atomically

    make_folder(batch.output)
    write_atomically(batch.output / LEFT_MANIFEST, manifest_of(batch), overwrite=True)


def _workers(
    batch: Batch, engine: str | None, workers: int, given: Mapping[str, Any]
) -> tuple[Pool, str]:
    """The workers of a run, and what they are in words."""
    common = batch.items[0].options
    own = Options("-", **{name: given[name] for name in OF_THE_MACHINE if name in given})
    threads, memory = own.threads or common.threads, own.memory or common.memory
    if engine is not None:
        from dfmp2.execution.dask import DaskPool
        from dfmp2.execution.pool import WorkerShare

        return DaskPool(
            engine, batch.output, WorkerShare(threads or 0, memory or 0)
        ), f"the Dask cluster of {engine}"
    from dfmp2.execution.pool import local_pool

    pool = local_pool(batch.device, workers, threads, memory)
    each = f"{counted_text(pool.share.threads, 'thread')}, {pool.share.memory / 1e9:.1f} GB each"
    return pool, f"{counted_text(workers, 'worker')} x {each}"


def _compile_programs(batch: Batch, signals: Signals) -> int:
    """Compile what the batch will launch, in a job of its own before its array: else every task
    does the same.

    One program serves a bucket of sizes (virtuals to 32, fitting functions to 256). Returns the
    exit code of the first `dfmp2 kernels warmup` that fails, else 0; Interrupted when stopped, with
    what was compiled kept.
    """
    from dfmp2.backends.registry import accelerator
    from dfmp2.execution.items import read_inputs
    from dfmp2.execution.manifest import COMPILED
    from dfmp2.execution.shards import works
    from dfmp2.planning.plan import trainium_shapes

    lane, buckets = str(batch.asks_for(*COMPILED)), dict[Any, list[str]]()
    for item, work in zip(batch.items, works(read_inputs(batch)), strict=True):
        if work.load and item.options.backend in COMPILED:
            spins = trainium_shapes(work.load)
        else:
            spins = ()
        if spins:
            if len(spins) > 1:
                beta = ["--beta", f"{spins[1].nocc},{spins[1].nvir}"]
            else:
                beta = []
            shape = ["--shape", f"{spins[0].nocc},{spins[0].nvir},{spins[0].naux}", *beta]
            buckets.setdefault(accelerator().bucket(spins), shape)
    for _, shape in sorted(buckets.items()):
        command = [sys.executable, "-P", "-m", "dfmp2", "kernels", "warmup", "--lane", lane, *shape]
        # A session of its own: a signal reaches it once, from here.
        with subprocess.Popen(command, start_new_session=True) as child:
            while child.poll() is None and not signals.count:
                time.sleep(0.2)
            child.terminate()
        if signals.count:
            raise Interrupted("stopped while kernels were compiled: the same command goes on")
        if child.returncode:
            return child.returncode
    return os.EX_OK


def _report(batch: Batch, done: BatchRun, stopped: int, *, quiet: bool) -> None:
    failed = done.own("failed")
    for row in () if quiet else failed[:MOST_SHOWN]:
        click.echo(printable(f"failed ({row.exit_code}) {row.name}: {(row.error or '')[:200]}"))
    if len(failed) > MOST_SHOWN and not quiet:
        click.echo(f"... and {len(failed) - MOST_SHOWN} more: see dfmp2 batch status")
    parts = [
        f"{len(done.own('complete'))} of {len(done.rows)} items complete ({done.found} of them "
        "before)"
    ]
    parts += [
        f"{len(done.own(state))} {state}"
        for state in ("failed", "running", "pending")
        if done.own(state)
    ]
    if stopped or done.full:
        state = f"stopped: {', '.join(parts)}"
    else:
        state = f"finished: {', '.join(parts)}"
    click.echo(f"dfmp2 batch {state} -> {printable(str(batch.output))}")


def _conclude(batch: Batch, done: BatchRun, stopped: int) -> int:
    """The exit code, or the error that stands for it."""
    failed, running, left = (len(done.own(state)) for state in ("failed", "running", "pending"))
    again, missing = (
        "the same command goes on",
        f"{counted_text(left + running, 'item')} not complete",
    )
    if stopped > 1:
        click.echo(f"dfmp2: stopped at once: {missing}; {again}", err=True)
        return STOPPED_TWICE
    if done.full and not stopped:
        raise done.disk_full()
    if done.fault and left and not stopped:
        raise DeviceFault(f"{missing}: {done.fault}; the same command on another host goes on")
    if (stopped and running) or left:
        raise Interrupted(f"stopped: {missing}; {again}")
    if running:
        first = done.own("running")[0]
        raise Interrupted(f"{missing}: {first.name}: {first.remark}; {again} when that has ended")
    if failed:
        raise SomeFailed(
            f"{failed} of {len(done.rows)} items failed: see NAME.error.json in {batch.output}; "
            f"the same command tries them again"
        )
    return os.EX_OK


def duration(seconds: float) -> str:
    """Time as people say it."""
    if seconds < 90:
        if seconds < 10:
            return f"{seconds:.1f} s"
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


# --- status, plan, collect ------------------------------------------------------------------------


@batch_command.command("status", short_help="Where every item stands.")
@_of_a_batch
@AS_JSON
def status(batch: Batch, as_json: bool) -> None:
    """Say which items are complete, failed, pending or running, at any time, also while the batch
    runs."""
    from dfmp2.execution.items import look_items
    from dfmp2.output.table import rows_json

    rows = look_items(batch)
    found = _status(rows)
    if as_json:
        click.echo(rows_json(found), nl=False)
        return
    for row in rows:
        if row.exit_code:
            code = f" ({row.exit_code})"
        else:
            code = ""
        more = row.error or row.remark
        if row.status == "complete":
            more = f"E(MP2) = {row.energy:.10f} Eh, {row.seconds or 0.0:.1f} s"
        click.echo(printable(f"{row.status + code:12s} {row.name:24s} {more[:200]}").rstrip())
    counts = [
        f"{number} {state}" for state, number in found.items() if state not in ("total", "items")
    ]
    click.echo(f"{', '.join(counts)}; {len(rows)} in all")


def _status(rows: Sequence[ItemStatus]) -> dict[str, Any]:
    """What --json prints: how many items there are in each state, and all of them."""
    from dfmp2.execution.items import STATES, STATUS_KEYS

    counts = Counter(row.status for row in rows)
    items = [{key: getattr(row, key) for key in STATUS_KEYS} for row in rows]
    return {"total": len(rows), **{state: counts[state] for state in STATES}, "items": items}


@batch_command.command(
    "plan", cls=AnnouncedCommand, short_help="Predict the time of every item and of every shard."
)
@_of_a_batch
@click.option(
    "--shards",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Parts of the batch.",
)
@click.option(
    "--scf-chain",
    is_flag=True,
    help="Keep pieces of a series together, as batch run --scf-chain does.",
)
@AS_JSON
def batch_plan(batch: Batch, shards: int, scf_chain: bool, as_json: bool) -> None:
    """Predict what every item costs and show the shards that `batch run --shard I/N` computes.

    The shards depend on manifest and molecules only. Times are those of this machine when `dfmp2
    plan` or `dfmp2 run` has measured its rates, else of the machine the forecast was written on;
    one process, its default threads.
    """
    from dfmp2.execution.shards import foresee_shards
    from dfmp2.output.table import rows_json

    outlook = foresee_shards(batch, shards, chained=scf_chain)
    if as_json:
        click.echo(rows_json(outlook), nl=False)
        return
    for row in outlook["items"]:
        if row["nao"] is None:
            sizes = "will be refused"
        else:
            sizes = f"{row['nao']} functions, {duration(row['seconds'])}"
        if row["error"]:
            error = f": {row['error']}"
        else:
            error = ""
        click.echo(printable(f"shard {row['shard']:<5d} {row['name']:24s} {sizes}{error}"))
    loads = [shard["seconds"] for shard in outlook["shards"]]
    remark = ""
    if not outlook["measured"]:
        remark = " (at built-in rates; dfmp2 plan MOLECULE measures those of this machine)"
    click.echo(
        f"{counted_text(outlook['total'], 'item')} in {counted_text(shards, 'shard')}: "
        f"{duration(sum(loads))} in all, the longest shard {duration(max(loads))}, the shortest "
        f"{duration(min(loads))}{remark}"
    )


@batch_command.command("collect", short_help="One table or data set of all complete results.")
@_of_a_batch
@click.option("-o", "table", required=True, metavar="FILE", help="Table.h5, .csv, .json, or data.")
@click.option(
    "--to",
    type=click.Choice(DATASETS),
    help="Data set: energies, forces, dipole moments.  [default: a table of energies]",
)
@click.option("--workers", type=click.IntRange(1, MOST_WORKERS), default=1, show_default=True)
@click.option(
    "--split", metavar="A:B:C", help="Files for training, validation and test, by hash of names."
)
@click.option("--duplicates", is_flag=True, help="Also equal geometries into a data set.")
@click.option("--uncertified", is_flag=True, help="Also results whose certificate fails.")
@OVERWRITE
@click.option(
    "--allow-mixed",
    is_flag=True,
    help="Also when the results were computed with different methods.",
)
def batch_collect(
    batch: Batch, table: str, to: str | None, overwrite: bool, allow_mixed: bool, **how: Any
) -> None:
    """Write energies and key numbers of all complete results into one table, or with --to a data
    set for machine learning, after checking every file's hash.

    Results of different methods (basis, fitting sets, frozen core, precision, ...) are refused
    unless --allow-mixed is given, because their energies cannot be compared. Equal geometries and
    results whose certificates fail are reported and left out of a data set. --split 8:1:1 writes
    FILE.train, .validation and .test in front of the ending.
    """
    from dfmp2.cli.collecting import Destination

    destination = Destination.chosen(batch.output, table, to, how["split"], overwrite=overwrite)
    console = Console(quiet=False, log=None)
    for line in destination.collect(batch, console.warning, allow_mixed=allow_mixed, **how):
        click.echo(printable(line))


# --- submit ---------------------------------------------------------------------------------------

SLURM, AWS = "--slurm", "--aws-batch"
INSTANCES = [
    "trn1.2xlarge",
    "trn1.32xlarge",
    "trn1n.32xlarge",
]  # of `dfmp2.execution.aws`, which takes long to import
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
LONGEST = 366 * 86400  # s


def parse_walltime(text: str) -> int:
    """Seconds of "90min", "2h", "1.5h", "1d", or of Slurm's "HH:MM:SS" and "D-HH:MM:SS".

    A number without a unit is refused: Slurm reads minutes, AWS Batch seconds.

    Raises
    ------
    InputError : none of these, or not between a second and a year
    """
    clock = re.fullmatch(r"(?:([0-9]{1,3})-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])", text.strip())
    number = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*(s|min|h|d|)", text.strip())
    if number is not None and not number[2]:
        raise InputError(
            f"--time {text} has no unit: write for example {text.strip()}min or {text.strip()}h"
        )
    if number is not None:
        seconds = float(number[1]) * SECONDS[number[2]]
    else:
        seconds = 0.0
    if clock is not None:
        seconds = sum(
            int(part or 0) * each
            for part, each in zip(clock.groups(), (86400, 3600, 60, 1), strict=True)
        )
    if not 1 <= seconds <= LONGEST:
        raise InputError(
            f"--time {text[:40]!r}: expected a time such as 90min, 2h, 1d, 02:00:00 or 1-12:00:00, "
            f"up to {LONGEST // 86400} days"
        )
    return round(seconds)


def _number(
    name: str, kind: click.ParamType[Any], default: float, text: str
) -> Callable[[Any], Any]:
    return click.option(name, type=kind, default=default, show_default=True, metavar="N", help=text)


OPTIONS = (
    click.option(
        "--backend",
        type=Words(BACKENDS, BACKEND_WORDS),
        help="Slurm: of the pair energies of a prepared file.",
    ),
    click.option("--partition", metavar="NAME", help="Slurm: partition."),
    click.option("--account", metavar="NAME", help="Slurm: account."),
    click.option("--qos", metavar="NAME", help="Slurm: quality of service."),
    click.option("--constraint", metavar="LIST", help="Slurm: features of the nodes."),
    click.option(
        "--cpus-per-task",
        type=click.IntRange(1, 4096),
        help="Slurm: of a task.  [default: workers x threads]",
    ),
    click.option(
        "--gres",
        metavar="LIST",
        help="Slurm: none: the whole node.  [default: gpu:N for cuda, nki, nki-xla]",
    ),
    click.option(
        "--parallel", type=click.IntRange(1), metavar="N", help="Slurm: most tasks at a time."
    ),
    _number(
        "--restarts",
        click.IntRange(0, 10_000),
        20,
        "Slurm: how often a task that is told to stop requeues itself.",
    ),
    _number(
        "--signal-before",
        click.IntRange(15, 65535),
        120,
        "Slurm: seconds between SIGTERM and the time limit.",
    ),
    click.option(
        "--setup", multiple=True, metavar="LINE", help="Slurm: shell line to begin with; repeat it."
    ),
    click.option(
        "--node-scratch",
        metavar="DIR",
        help="Slurm: scratch folder.  [default: $SLURM_TMPDIR, $TMPDIR]",
    ),
    click.option(
        "--cache", metavar="DIR", help="Slurm: compiled kernels, on a disk that all nodes see."
    ),
    click.option(
        "--collect",
        metavar="TABLE",
        help="Slurm: a last job collects the energies (.h5, .csv, .json).",
    ),
    click.option("--queue", metavar="NAME", help="AWS: job queue."),
    click.option("--image", metavar="URI", help="AWS: container image, made by scripts/container."),
    click.option(
        "--s3", metavar="s3://BUCKET/PREFIX", help="AWS: inputs, results and checkpoints in S3."
    ),
    click.option(
        "--instance",
        type=click.Choice(INSTANCES),
        help="AWS: of a task.  [default: trn1.2xlarge for nki, nki-xla]",
    ),
    click.option(
        "--job-role", metavar="ARN", help="AWS: role of the containers; needs the bucket of --s3."
    ),
    click.option("--execution-role", metavar="ARN", help="AWS: role that starts the containers."),
    _number("--attempts", click.IntRange(1, 10), 10, "AWS: runs of a task, if it is stopped."),
    click.option(
        "--warm-up/--no-warm-up",
        default=True,
        help="AWS: compile kernels in a job of its own, first.",
    ),
    _number(
        "--copy-every", click.FloatRange(1, 3600), 60.0, "AWS: seconds between two copies to S3."
    ),
    click.option(
        "--region", metavar="NAME", help="AWS: region.  [default: of the environment or ~/.aws]"
    ),
    click.option(
        "--profile",
        metavar="NAME",
        help="AWS: profile of ~/.aws.  [default: that of the environment]",
    ),
)


@batch_command.command("submit", short_help="Show, or submit, an array job of Slurm or AWS Batch.")
@click.argument("source", metavar="MANIFEST.toml | PREPARED.h5")
@click.option(SLURM, "scheduler", flag_value=SLURM, help="An array job of Slurm.")
@click.option(AWS, "scheduler", flag_value=AWS, help="An array job of AWS Batch.")
@click.option(
    "--output", metavar="DIR|FILE", help="Folder of the results; file of the result of PREPARED.h5."
)
@click.option(
    "--root",
    metavar="DIR",
    help="Folder that the manifest's paths are relative to, and confined to.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 100_000),
    required=True,
    metavar="N",
    help="Tasks of the array.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="Processes of a task.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 4096),
    help="Of each worker.  [default: the manifest's, else 1]",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="Of a task, e.g. 16GB.  [default: the manifest's, else the scheduler's]",
)
@click.option(
    "--time",
    metavar="TIME",
    help="Limit of a task: 90min, 2h, 1-12:00:00.  [default: the scheduler's]",
)
@SCF_CHAIN
@click.option(
    "--submit/--dry-run",
    "submit_now",
    default=False,
    show_default=True,
    help="Submit, or only show.",
)
@click.option("--write", metavar="DIR", help="Also write what is shown into a folder.")
@AS_JSON
@lambda command: with_options(OPTIONS, command)
@click.pass_context
def batch_submit(ctx: click.Context, /, scheduler: str | None, as_json: bool, **given: Any) -> None:
    """Make an array job of N shards: task I computes shard I.

    The shards are those of the items of MANIFEST.toml or, with --slurm, of the pair energies of a
    file that dfmp2 prepare has written, whose result a last job puts together. Nothing is submitted
    without --submit. Tasks that are told to stop save what they have, and go on when they run
    again; what is complete is never computed twice. Exit code 3 when something named is wrong, also
    when the scheduler refuses it; 6 when there is no scheduler.
    """
    if scheduler is None:
        raise click.UsageError(f"name the scheduler: {SLURM} or {AWS}")
    if scheduler == SLURM:
        other, prefix = (AWS, "AWS: ")
    else:
        other, prefix = (SLURM, "Slurm: ")
    for option in ctx.command.params:
        on_the_line = ctx.get_parameter_source(option.name or "") == ParameterSource.COMMANDLINE
        if (
            on_the_line
            and isinstance(option, click.Option)
            and (option.help or "").startswith(prefix)
        ):
            raise click.UsageError(
                f"{option.opts[0]} belongs to {other}, and this is {scheduler}: leave it out"
            )
    batch = _read_batch(given)
    if scheduler == SLURM:
        show = _slurm(batch, given)
    else:
        show = _aws(batch, given)
    if as_json:
        click.echo(
            json.dumps(
                {"scheduler": scheduler.lstrip("-"), "shards": given["shards"], **show.json},
                indent=2,
            )
        )
        return
    for path, text in () if given["submit_now"] else show.texts.items():
        click.echo(f"==> {path} <==\n{text}")
    said = ", ".join(f"{name} {number}" for name, number in show.jobs.items() if number)
    click.echo(
        printable(
            f"submitted: {said}; {show.last}"
            if said
            else "Nothing was submitted: --submit does that"
        )
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown: the texts of files, the numbers of jobs that were submitted, where to look,
    and all as JSON."""

    texts: Mapping[Path, str]
    jobs: Mapping[str, str]
    last: str
    json: Mapping[str, Any]


def _read_batch(given: dict[str, Any]) -> Batch | None:
    """The batch, None for a prepared file; sizes and times in `given` become numbers."""
    from dfmp2.execution.manifest import read_manifest
    from dfmp2.output.prepared import is_prepared

    batch, common = None, Options("-")
    if not is_prepared(given["source"]):
        root, output = (
            None if given[name] is None else Path(given[name]) for name in ("root", "output")
        )
        batch = read_manifest(given["source"], root=root, output=output)
        common, count = batch.items[0].options, len(batch.items)
        if given["shards"] > count:
            raise InputError(
                f"--shards {given['shards']}: the batch has {count} items: use at most that many "
                "shards"
            )
    given["threads"] = given["threads"] or common.threads or 1
    if given["memory"] is None:
        given["memory"] = common.memory
    else:
        given["memory"] = parse_bytes(given["memory"])
    if given["time"] is None:
        given["seconds"] = None
    else:
        given["seconds"] = parse_walltime(given["time"])
    return batch


def _slurm(batch: Batch | None, given: Mapping[str, Any]) -> Shown:
    """Make the scripts; write and submit them where that is asked for."""
    from dfmp2.execution import slurm

    if batch is None:
        of_one = {"root": None, "workers": 1, "scf_chain": False, "collect": None}
    else:
        of_one = {"backend": None}
    for name, default in of_one.items():
        if given[name] != default:
            option, kinds = (
                name.replace("_", "-"),
                ("manifest", "prepared file")[:: 1 if batch is None else -1],
            )
            raise InputError(
                f"--{option} belongs to a {kinds[0]}, and {given['source']} is a {kinds[1]}: leave "
                "it out"
            )
    if batch is None:
        work = slurm.prepared_jobs(given)
    else:
        work = slurm.batch_jobs(batch, given)
    folder = Path(os.path.abspath(given["write"] or work.folder))
    texts, jobs = slurm.scripts(work, folder, given), {}
    if given["submit_now"] and shutil.which("sbatch") is None:
        raise BackendUnavailable(
            "--submit: there is no sbatch on PATH: log in to a machine of the Slurm cluster, or "
            "use --write DIR and submit from there"
        )
    if given["submit_now"] or given["write"]:
        _write({path: text.encode() for path, text in texts.items()})
        if batch is not None:
            from dfmp2.execution.shard_lists import write_lists

            write_lists(batch, given["shards"], chained=given["scf_chain"])
    if given["submit_now"]:
        jobs = slurm.submit_to_slurm(folder)
    value = {
        "submitted": bool(jobs),
        "jobs": jobs,
        "files": {str(path): text for path, text in texts.items()},
    }
    return Shown(
        texts,
        jobs,
        f"logs go to {folder / 'logs'}; scancel {' '.join(jobs.values())} takes it back",
        value,
    )


def _aws(batch: Batch | None, given: Mapping[str, Any]) -> Shown:
    """Make the requests; write and send them where that is asked for."""
    from dfmp2.execution import aws

    if batch is None:
        raise InputError(
            f"{given['source']} is a prepared file: its pair energies are shared out with {SLURM} "
            "only"
        )
    requests, inputs = aws.make_requests(batch, given)
    texts = {
        Path(f"{name}.json"): json.dumps(value, indent=2) + "\n" for name, value in requests.items()
    }
    if given["write"]:
        contents = {name: text.encode() for name, text in texts.items()}
        contents |= {Path(Path(place).name): content for place, content in inputs.items()}
        _write({Path(given["write"]) / name: content for name, content in contents.items()})
    if given["submit_now"]:
        jobs = aws.submit_to_aws(requests, inputs, given["region"], given["profile"])
    else:
        jobs = {}
    results = f"results: aws s3 sync {given['s3']}/results FOLDER"
    return Shown(texts, jobs, results, {"submitted": jobs or None, "requests": requests})


def _write(files: Mapping[Path, bytes]) -> None:
    """Write files into a folder that may have to be made.

    Raises
    ------
    ResourceError : they cannot be written
    """
    from dfmp2.host.files import make_folder, write_atomically

    for path, content in files.items():
        make_folder(path.parent, Option("write"))
        write_atomically(path, content, overwrite=True)
