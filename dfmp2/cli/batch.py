"""`dfmp2 batch`: many molecules; plan them, submit them as an array job of Slurm or AWS Batch, check
their state, collect their energies."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dfmp2.cli.batch_plan import batch_plan
from dfmp2.cli.batch_run import (
    batch_run,
    item_lines,
    of_a_batch,
    require_no_file_of,
    status_json,
)
from dfmp2.cli.console import Console, conclude, styled
from dfmp2.cli.help import CommandGroup, GroupedCommand
from dfmp2.cli.options import AS_JSON, MOST_WORKERS, OVERWRITE, SCF_CHAIN, Words, with_options
from dfmp2.errors import BackendUnavailable, InputError, Option
from dfmp2.host.files import require_place
from dfmp2.molecule.text import printable
from dfmp2.options import BACKEND_WORDS, BACKENDS, Options, parse_bytes
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.execution.manifest import Batch

# Keys of `dfmp2.output.dataset.WRITERS`, repeated so that --help need not import it.
DATASETS = ("extxyz", "h5", "parquet", "csv", "json", "ase.db")


@click.group(
    "batch",
    cls=CommandGroup,
    no_args_is_help=False,
    short_help="Run many molecules, restart them, check their state, collect their energies.",
)
def batch_command() -> None:
    """Many molecules: isolated from each other, computed by several processes, none twice.

    A manifest is a TOML file: options of `dfmp2 run` (basis = "cc-pvdz"), output = "FOLDER", and
    one table [[item]] with molecule = "FILE" (as of dfmp2 run) per molecule, which may have a name
    and options of its own.
    """


@batch_command.command("status", short_help="Show the state of every item.")
@of_a_batch
@AS_JSON
def status(batch: Batch, as_json: bool) -> None:
    """Say which items are complete, failed, pending or running, at any time, also while the batch
    runs."""
    from dfmp2.execution.items import look_items, said_energy
    from dfmp2.output.json import rows_json

    rows = look_items(batch)
    counts_and_items = status_json(batch, rows)
    if as_json:
        click.echo(rows_json(counts_and_items), nl=False)
        return
    for item, row in zip(batch.items, rows, strict=True):
        state = row.status
        if row.exit_code:
            state += f" ({row.exit_code})"
        if row.status == "complete":
            parts = [said_energy(item, row), f"{row.seconds or 0.0:.1f} s"]
            remark = ", ".join(filter(None, parts))
        else:
            remark = batch.worded(row.error or row.remark)
        click.echo(styled(item_lines(state, row.name, remark)))
    counts = [
        f"{number} {state}"
        for state, number in counts_and_items.items()
        if state not in ("total", "items")
    ]
    click.echo(styled(f"{', '.join(counts)}; {len(rows)} in all"))


@batch_command.command("collect", short_help="One table or data set of all complete results.")
@of_a_batch
@click.option("-o", "table", required=True, metavar="FILE", help="Table.h5, .csv, .json, or data.")
@click.option(
    "--to",
    type=click.Choice(DATASETS),
    help="Data set: energies, forces, dipole moments.  [default: a table of energies]",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    default=1,
    show_default=True,
    help="Number of processes that read results.",
)
@click.option(
    "--split", metavar="A:B:C", help="Files for training, validation and test, by hash of names."
)
@click.option("--duplicates", is_flag=True, help="Keep equal geometries in a data set.")
@click.option("--uncertified", is_flag=True, help="Keep results whose certificate fails.")
@OVERWRITE
@click.option(
    "--allow-mixed",
    is_flag=True,
    help="Allow results of different methods in one table.",
)
def batch_collect(
    batch: Batch, table: str, to: str | None, split: str | None, overwrite: bool, **how: Any
) -> None:
    """Write energies and key numbers of all complete results into one table, or with --to a data
    set for machine learning, after checking every file's hash.

    Results of different methods (basis, fitting sets, frozen core, precision, ...) are refused
    unless --allow-mixed is given, because their energies cannot be compared. Equal geometries and
    results whose certificates fail are reported and left out of a data set. --split 8:1:1 writes
    FILE.train, .validation and .test in front of the ending.
    """
    from dfmp2.execution.collect import Destination

    destination = Destination.chosen(batch.output, table, to, split, overwrite=overwrite)
    for target in destination.targets().values():
        require_no_file_of(batch, "-o", target)
    for line in destination.collect(batch, Console(quiet=False, log=None).warning, **how):
        conclude(printable(line))


batch_command.add_command(batch_plan)
batch_command.add_command(batch_run)


# --- array jobs -----------------------------------------------------------------------------------

SLURM, AWS = "--slurm", "--aws-batch"
# as in `dfmp2.execution.aws`, which is slow to import
INSTANCES = ["trn1.2xlarge", "trn1.32xlarge", "trn1n.32xlarge"]
# options that apply to only one kind of source, with their defaults
OF_A_MANIFEST = {"root": None, "workers": 1, "scf_chain": False, "collect": None}
OF_A_PREPARED_FILE = {"backend": None}
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
LONGEST = 366 * 86400  # s


def parse_walltime(text: str) -> int:
    """Seconds of "90min", "2h", "1.5h", "1d", or of Slurm's "HH:MM:SS" and "D-HH:MM:SS".

    A number without a unit is rejected, because it means minutes to Slurm and seconds to AWS Batch.

    Raises
    ------
    InputError : another form, or not between a second and a year
    """
    clock = re.fullmatch(r"(?:([0-9]{1,3})-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])", text.strip())
    number = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*(s|min|h|d|)", text.strip())
    if number is not None and not number[2]:
        raise InputError(
            f"--time {text} has no unit: write for example {text.strip()}min or {text.strip()}h"
        )
    seconds = 0.0
    if number is not None:
        seconds = float(number[1]) * SECONDS[number[2]]
    if clock is not None:
        days, hours, minutes, rest = (int(part or 0) for part in clock.groups())
        seconds = days * 86400 + hours * 3600 + minutes * 60 + rest
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
        metavar="NAME",
        help="Slurm: backend for a prepared file.",
    ),
    click.option("--partition", metavar="NAME", help="Slurm: partition."),
    click.option("--account", metavar="NAME", help="Slurm: account."),
    click.option("--qos", metavar="NAME", help="Slurm: quality of service."),
    click.option("--constraint", metavar="LIST", help="Slurm: features of the nodes."),
    click.option(
        "--cpus-per-task",
        type=click.IntRange(1, 4096),
        help="Slurm: cores of a task.  [default: workers x threads]",
    ),
    click.option(
        "--gres",
        metavar="LIST",
        help="Slurm: devices; none: the whole node.  [default: gpu:N for cuda, nki, nki-xla]",
    ),
    click.option(
        "--parallel",
        type=click.IntRange(1),
        metavar="N",
        help="Slurm: largest number of tasks at a time.",
    ),
    _number(
        "--restarts",
        click.IntRange(0, 10_000),
        20,
        "Slurm: how often a stopped task requeues itself.",
    ),
    _number(
        "--signal-before",
        click.IntRange(15, 65535),
        120,
        "Slurm: seconds between SIGTERM and the time limit.",
    ),
    click.option(
        "--setup",
        multiple=True,
        metavar="LINE",
        help="Slurm: shell line to begin with; may be repeated.",
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
        metavar="FILE",
        help="Slurm: a last job collects energies (.h5, .csv, .json) or a data set (.extxyz, "
        ".parquet, .db).",
    ),
    click.option("--queue", metavar="NAME", help="AWS: job queue."),
    click.option("--image", metavar="URI", help="AWS: container image, made by scripts/container."),
    click.option(
        "--s3", metavar="s3://BUCKET/PREFIX", help="AWS: inputs, results and checkpoints in S3."
    ),
    click.option(
        "--instance",
        type=click.Choice(INSTANCES),
        help="AWS: instance type of a task.  [default: trn1.2xlarge for nki, nki-xla]",
    ),
    click.option(
        "--job-role", metavar="ARN", help="AWS: role of the containers; needs the bucket of --s3."
    ),
    click.option("--execution-role", metavar="ARN", help="AWS: role that starts the containers."),
    _number("--attempts", click.IntRange(1, 10), 10, "AWS: attempts at a task that is stopped."),
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


@batch_command.command(
    "submit", cls=GroupedCommand, short_help="Show, or submit, an array job of Slurm or AWS Batch."
)
@click.argument("source", metavar="MANIFEST.toml | PREPARED.h5")
@click.option(SLURM, "scheduler", flag_value=SLURM, help="An array job of Slurm.")
@click.option(AWS, "scheduler", flag_value=AWS, help="An array job of AWS Batch.")
@click.option(
    "-o",
    "--output",
    metavar="DIR|FILE",
    help="Folder of the results; file of the result of PREPARED.h5.",
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
    help="Number of processes in a task.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 4096),
    help="Threads of each worker.  [default: the manifest's, else 1]",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory of a task, e.g. 16GB.  [default: the manifest's, else the scheduler's]",
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
@click.option("--write", metavar="DIR", help="Also write the scripts into a folder.")
@AS_JSON
@lambda command: with_options(OPTIONS, command)
@click.pass_context
def batch_submit(ctx: click.Context, /, scheduler: str | None, as_json: bool, **given: Any) -> None:
    """Make an array job of N shards: task I computes shard I.

    The shards are those of the items of MANIFEST.toml or, with --slurm, of the pair energies of a
    file that dfmp2 prepare has written, whose result a last job combines. Nothing is submitted
    without --submit. Tasks that are told to stop save their state and continue when they run again;
    nothing complete is computed twice. Exit code 3 if an option is wrong or the scheduler refuses
    the job, 6 if there is no scheduler.
    """
    if scheduler is None:
        raise click.UsageError(f"name the scheduler: {SLURM} or {AWS}")
    _require_own_options(ctx, scheduler)
    batch = _read_batch(given)
    if scheduler == SLURM:
        submission = _slurm(batch, given)
    else:
        submission = _aws(batch, given)
    if as_json:
        head = {"scheduler": scheduler.lstrip("-"), "shards": given["shards"]}
        click.echo(json.dumps(head | submission.json, indent=2))
        return
    if not given["submit_now"]:
        for path, text in submission.texts.items():
            click.echo(f"==> {path} <==\n{text}")
    numbers = ", ".join(f"{name} {number}" for name, number in submission.jobs.items() if number)
    if numbers:
        click.echo(printable(f"submitted: {numbers}; {submission.last}"))
    else:
        click.echo("Nothing was submitted: --submit does that")


def _require_own_options(ctx: click.Context, scheduler: str) -> None:
    """Raise UsageError for an option of the other scheduler on the command line."""
    other, prefix = SLURM, "Slurm: "
    if scheduler == SLURM:
        other, prefix = AWS, "AWS: "
    for option in ctx.command.params:
        if not isinstance(option, click.Option) or not (option.help or "").startswith(prefix):
            continue
        if ctx.get_parameter_source(option.name or "") == ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{option.opts[-1]} belongs to {other}, and this is {scheduler}: leave it out"
            )


@dataclass(frozen=True, slots=True)
class Submission:
    """An array job, submitted or only shown.

    Attributes
    ----------
    texts : mapping of Path to str
        Its files with their contents.
    jobs : mapping of str to str
        Numbers of the submitted jobs, by name.
    last : str
        Where to look, for the last line.
    json : dict
        Everything, for --json.
    """

    texts: Mapping[Path, str]
    jobs: Mapping[str, str]
    last: str
    json: dict[str, Any]


def _read_batch(given: dict[str, Any]) -> Batch | None:
    """The batch, None for a prepared file; sizes and times in `given` become numbers."""
    from dfmp2.execution.manifest import read_manifest
    from dfmp2.output.prepared import is_prepared

    batch = None
    common = Options("-")
    if not is_prepared(given["source"]):
        batch = read_manifest(given["source"], root=given["root"], output=given["output"])
        common = batch.items[0].options
        count = len(batch.items)
        if given["shards"] > count:
            raise InputError(
                f"--shards {given['shards']}: the batch has {counted_text(count, 'item')}: use at "
                f"most {counted_text(count, 'shard')}"
            )
    given["threads"] = given["threads"] or common.threads or 1
    if given["memory"] is None:
        given["memory"] = common.memory
    else:
        given["memory"] = parse_bytes(given["memory"])
    given["seconds"] = None
    if given["time"] is not None:
        given["seconds"] = parse_walltime(given["time"])
    return batch


def _slurm(batch: Batch | None, given: Mapping[str, Any]) -> Submission:
    """Make the scripts; write and submit them if requested."""
    from dfmp2.execution import slurm

    if batch is None:
        _require_defaults(OF_A_MANIFEST, given, "manifest", "prepared file")
        work = slurm.prepared_jobs(given)
    else:
        _require_defaults(OF_A_PREPARED_FILE, given, "prepared file", "manifest")
        work = slurm.batch_jobs(batch, given)
        if given["collect"] is not None:  # the last job replaces it
            require_no_file_of(batch, "--collect", given["collect"])
    folder = Path(os.path.abspath(given["write"] or work.folder))
    texts = slurm.scripts(work, folder, given)
    jobs: dict[str, str] = {}
    if given["submit_now"] and shutil.which("sbatch") is None:
        raise BackendUnavailable(
            "--submit: there is no sbatch on PATH: log in to a machine of the Slurm cluster, or "
            "use --write DIR and submit from there"
        )
    if batch is not None and given["submit_now"] and given["collect"] is not None:
        table = Path(os.path.abspath(given["collect"]))
        if table.parent != Path(os.path.abspath(batch.output)):  # which is made below
            require_place(table, option=Option("collect"))
    if given["submit_now"] or given["write"]:
        _write({path: text.encode() for path, text in texts.items()})
        if batch is not None:
            from dfmp2.execution.batch import write_lists

            write_lists(batch, given["shards"], chained=given["scf_chain"])
    if given["submit_now"]:
        jobs = slurm.submit_to_slurm(folder)
    value = {
        "submitted": bool(jobs),
        "jobs": jobs,
        "files": {str(path): text for path, text in texts.items()},
    }
    return Submission(
        texts=texts,
        jobs=jobs,
        last=f"logs go to {folder / 'logs'}; scancel {' '.join(jobs.values())} takes it back",
        json=value,
    )


def _require_defaults(
    defaults: Mapping[str, Any], given: Mapping[str, Any], kind: str, actual: str
) -> None:
    """Raise InputError for an option that belongs to the other kind of source.

    Parameters
    ----------
    defaults : mapping
        The options of that kind, with their defaults.
    kind, actual : str
        The kind they belong to, and the actual kind.
    """
    for name, default in defaults.items():
        if given[name] != default:
            raise InputError(
                f"--{name.replace('_', '-')} belongs to a {kind}, and {given['source']} is a "
                f"{actual}: leave it out"
            )


def _aws(batch: Batch | None, given: Mapping[str, Any]) -> Submission:
    """Make the requests; write and send them if requested."""
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
    jobs: dict[str, str] = {}
    if given["submit_now"]:
        jobs = aws.submit_to_aws(requests, inputs, given["region"], given["profile"])
    return Submission(
        texts=texts,
        jobs=jobs,
        last=f"results: aws s3 sync {given['s3']}/results FOLDER",
        json={"submitted": jobs or None, "requests": requests},
    )


def _write(files: Mapping[Path, bytes]) -> None:
    """Write files to a folder, creating it if necessary.

    Raises
    ------
    ResourceError : a file cannot be written
    """
    from dfmp2.host.files import make_folder, write_atomically

    for path, content in files.items():
        make_folder(path.parent, Option("write"))
        write_atomically(path, content, overwrite=True)
