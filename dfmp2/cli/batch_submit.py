"""`dfmp2 batch submit`: an array job of a scheduler, shown first and submitted only when told to."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dfmp2.cli.help import GroupedCommand
from dfmp2.cli.options import BACKENDS, Words, with_options
from dfmp2.errors import InputError, ResourceError
from dfmp2.molecule.text import printable
from dfmp2.options import BACKEND_WORDS

if TYPE_CHECKING:
    from dfmp2.execution.manifest import Batch

SLURM, AWS = "--slurm", "--aws-batch"
INSTANCES = ["trn1.2xlarge", "trn1.32xlarge", "trn1n.32xlarge"]  # of `dfmp2.execution.aws`, which takes long to import


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
        raise InputError(f"--time {text} has no unit: write for example {text.strip()}min or {text.strip()}h")
    seconds = float(number[1]) * SECONDS[number[2]] if number is not None else 0.0
    if clock is not None:
        seconds = sum(int(part or 0) * each for part, each in zip(clock.groups(), (86400, 3600, 60, 1), strict=True))
    if not 1 <= seconds <= LONGEST:
        raise InputError(
            f"--time {text[:40]!r}: expected a time such as 90min, 2h, 1d, 02:00:00 or 1-12:00:00, up to "
            f"{LONGEST // 86400} days"
        )
    return round(seconds)


def _number(name: str, kind: click.ParamType[Any], default: float, text: str) -> Callable[[Any], Any]:
    return click.option(name, type=kind, default=default, show_default=True, metavar="N", help=text)


OPTIONS = (
    click.option(
        "--backend", type=Words(BACKENDS, BACKEND_WORDS), help="Slurm: of the pair energies of a prepared file."
    ),
    click.option("--partition", metavar="NAME", help="Slurm: partition."),
    click.option("--account", metavar="NAME", help="Slurm: account."),
    click.option("--qos", metavar="NAME", help="Slurm: quality of service."),
    click.option("--constraint", metavar="LIST", help="Slurm: features of the nodes."),
    click.option(
        "--cpus-per-task", type=click.IntRange(1, 4096), help="Slurm: of a task.  [default: workers x threads]"
    ),
    click.option(
        "--gres", metavar="LIST", help="Slurm: none: the whole node.  [default: gpu:N for cuda, nki, nki-xla]"
    ),
    click.option("--parallel", type=click.IntRange(1), metavar="N", help="Slurm: most tasks at a time."),
    _number(
        "--restarts", click.IntRange(0, 10_000), 20, "Slurm: how often a task that is told to stop requeues itself."
    ),
    _number("--signal-before", click.IntRange(15, 65535), 120, "Slurm: seconds between SIGTERM and the time limit."),
    click.option("--setup", multiple=True, metavar="LINE", help="Slurm: shell line to begin with; repeat it."),
    click.option("--node-scratch", metavar="DIR", help="Slurm: scratch folder.  [default: $SLURM_TMPDIR, $TMPDIR]"),
    click.option("--cache", metavar="DIR", help="Slurm: compiled kernels, on a disk that all nodes see."),
    click.option("--collect", metavar="TABLE", help="Slurm: a last job collects the energies (.h5, .csv, .json)."),
    click.option("--queue", metavar="NAME", help="AWS: job queue."),
    click.option("--image", metavar="URI", help="AWS: container image, made by scripts/container."),
    click.option("--s3", metavar="s3://BUCKET/PREFIX", help="AWS: inputs, results and checkpoints in S3."),
    click.option(
        "--instance", type=click.Choice(INSTANCES), help="AWS: of a task.  [default: trn1.2xlarge for nki, nki-xla]"
    ),
    click.option("--job-role", metavar="ARN", help="AWS: role of the containers; needs the bucket of --s3."),
    click.option("--execution-role", metavar="ARN", help="AWS: role that starts the containers."),
    _number("--attempts", click.IntRange(1, 10), 10, "AWS: runs of a task, if it is stopped."),
    click.option("--warm-up/--no-warm-up", default=True, help="AWS: compile kernels in a job of its own, first."),
    _number("--copy-every", click.FloatRange(1, 3600), 60.0, "AWS: seconds between two copies to S3."),
    click.option("--region", metavar="NAME", help="AWS: region.  [default: of the environment or ~/.aws]"),
    click.option("--profile", metavar="NAME", help="AWS: profile of ~/.aws.  [default: that of the environment]"),
)


@click.command("submit", cls=GroupedCommand, short_help="Show, or submit, an array job of Slurm or AWS Batch.")
@click.argument("source", metavar="MANIFEST.toml | PREPARED.h5")
@click.option(SLURM, "scheduler", flag_value=SLURM, help="An array job of Slurm.")
@click.option(AWS, "scheduler", flag_value=AWS, help="An array job of AWS Batch.")
@click.option("--output", metavar="DIR|FILE", help="Folder of the results; file of the result of PREPARED.h5.")
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
@lambda command: with_options(OPTIONS, command)
@click.pass_context
def submit(ctx: click.Context, /, scheduler: str | None, as_json: bool, **given: Any) -> None:
    """Make an array job of N shards: task I computes shard I.

    The shards are those of the items of MANIFEST.toml or, with --slurm, of the pair energies of a file that dfmp2
    prepare has written, whose result a last job puts together. Nothing is submitted without --submit. Tasks that are
    told to stop save what they have, and go on when they run again; what is complete is never computed twice. Exit code
    3 when something named is wrong, also when the scheduler refuses it; 6 when there is no scheduler.
    """
    if scheduler is None:
        raise click.UsageError(f"name the scheduler: {SLURM} or {AWS}")
    other, prefix = (AWS, "AWS: ") if scheduler == SLURM else (SLURM, "Slurm: ")
    for option in ctx.command.params:
        on_the_line = ctx.get_parameter_source(option.name or "") == ParameterSource.COMMANDLINE
        if on_the_line and isinstance(option, click.Option) and (option.help or "").startswith(prefix):
            raise click.UsageError(f"{option.opts[0]} belongs to {other}, and this is {scheduler}: leave it out")
    batch = _read_batch(given)
    show = _slurm(batch, given) if scheduler == SLURM else _aws(batch, given)
    if as_json:
        click.echo(json.dumps({"scheduler": scheduler.lstrip("-"), "shards": given["shards"], **show.json}, indent=2))
        return
    for path, text in () if given["submit_now"] else show.texts.items():
        click.echo(f"==> {path} <==\n{text}")
    said = ", ".join(f"{name} {number}" for name, number in show.jobs.items() if number)
    click.echo(printable(f"submitted: {said}; {show.last}" if said else "Nothing was submitted: --submit does that"))


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown: the texts of files, the numbers of jobs that were submitted, where to look, and all as JSON."""

    texts: Mapping[Path, str]
    jobs: Mapping[str, str]
    last: str
    json: Mapping[str, Any]


def _read_batch(given: dict[str, Any]) -> Batch | None:
    """The batch, None for a prepared file; sizes and times in `given` become numbers."""
    from dfmp2.execution.manifest import read_manifest
    from dfmp2.options import Options, parse_bytes
    from dfmp2.output.prepared import is_prepared

    batch, common = None, Options("-")
    if not is_prepared(given["source"]):
        root, output = (None if given[name] is None else Path(given[name]) for name in ("root", "output"))
        batch = read_manifest(given["source"], root=root, output=output)
        common, count = batch.items[0].options, len(batch.items)
        if given["shards"] > count:
            raise InputError(f"--shards {given['shards']}: the batch has {count} items: use at most that many shards")
    given["threads"] = given["threads"] or common.threads or 1
    given["memory"] = common.memory if given["memory"] is None else parse_bytes(given["memory"])
    given["seconds"] = None if given["time"] is None else parse_walltime(given["time"])
    return batch


def _slurm(batch: Batch | None, given: Mapping[str, Any]) -> Shown:
    """Make the scripts; write and submit them where that is asked for."""
    from dfmp2.execution import slurm

    of_one = {"root": None, "workers": 1, "scf_chain": False, "collect": None} if batch is None else {"backend": None}
    for name, default in of_one.items():
        if given[name] != default:
            option, kinds = name.replace("_", "-"), ("manifest", "prepared file")[:: 1 if batch is None else -1]
            raise InputError(f"--{option} belongs to a {kinds[0]}, and {given['source']} is a {kinds[1]}: leave it out")
    work = slurm.prepared_work(given) if batch is None else slurm.batch_work(batch, given)
    folder = Path(os.path.abspath(given["write"] or work.folder))
    texts, jobs = slurm.scripts(work, folder, given), {}
    if given["submit_now"]:
        slurm.require_slurm()
    if given["submit_now"] or given["write"]:
        _write({path: text.encode() for path, text in texts.items()})
    if given["submit_now"]:
        jobs = slurm.submit(folder)
    value = {"submitted": bool(jobs), "jobs": jobs, "files": {str(path): text for path, text in texts.items()}}
    return Shown(texts, jobs, f"logs go to {folder / 'logs'}; scancel {' '.join(jobs.values())} takes it back", value)


def _aws(batch: Batch | None, given: Mapping[str, Any]) -> Shown:
    """Make the requests; write and send them where that is asked for."""
    from dfmp2.execution import aws

    if batch is None:
        raise InputError(f"{given['source']} is a prepared file: its pair energies are shared out with {SLURM} only")
    requests, inputs = aws.make_requests(batch, given)
    texts = {Path(f"{name}.json"): json.dumps(value, indent=2) + "\n" for name, value in requests.items()}
    if given["write"]:
        contents = {name: text.encode() for name, text in texts.items()}
        contents |= {Path(Path(place).name): content for place, content in inputs.items()}
        _write({Path(given["write"]) / name: content for name, content in contents.items()})
    jobs = aws.submit(requests, inputs, given["region"], given["profile"]) if given["submit_now"] else {}
    results = f"results: aws s3 sync {given['s3']}/results FOLDER"
    return Shown(texts, jobs, results, {"submitted": jobs or None, "requests": requests})


def _write(files: Mapping[Path, bytes]) -> None:
    """Write files into a folder that may have to be made.

    Raises
    ------
    ResourceError : they cannot be written
    """
    from dfmp2.host.files import write_atomically

    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(f"cannot make the folder {path.parent}: {error.strerror}: use --write DIR") from error
        write_atomically(path, content, overwrite=True)
