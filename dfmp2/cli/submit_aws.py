"""`dfmp2 batch submit --aws-batch`: its own options, and what becomes of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.calculation import with_options
from dfmp2.errors import InputError, ResourceError
from dfmp2.io.text import printable
from dfmp2.submission.aws.instances import INSTANCES

if TYPE_CHECKING:
    from dfmp2.batch.manifest import Batch
    from dfmp2.submission.aws.jobs import Jobs, Settings
    from dfmp2.submission.aws.queue import Submitted
    from dfmp2.submission.request import Request

ROLE = re.compile(r"arn:[a-z-]+:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}")
NAME = re.compile(r"[A-Za-z0-9:/_.@-]{1,512}")  # of queues and images, or their ARNs

OPTIONS = (
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
        type=click.Choice(list(INSTANCES)),
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


def aws_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of AWS Batch."""
    return with_options(OPTIONS, command)


def submit_aws(batch: Batch, shared: Request, **own: Any) -> int:
    """Show, or submit, the array job of a batch on AWS Batch; the exit code."""
    from dfmp2.submission.aws.bucket import Store
    from dfmp2.submission.aws.jobs import make_jobs
    from dfmp2.submission.aws.queue import submit
    from dfmp2.submission.aws.session import connect

    jobs = make_jobs(batch, shared, _settings(own))
    if shared.folder is not None:
        _write(jobs, shared.folder)
    done = None
    if shared.submit:
        service = connect("batch", own["region"], own["profile"])
        store = None if jobs.place is None else Store(connect("s3", own["region"], own["profile"]))
        done = submit(jobs, service, store)
    _show(jobs, shared, done)
    return os.EX_OK


def _settings(own: dict[str, Any]) -> Settings:
    from dfmp2.submission.aws.bucket import read_location
    from dfmp2.submission.aws.jobs import Settings
    from dfmp2.submission.aws.mounts import read_mounts

    if own["s3"] is None and not own["mount"] and not own["efs"]:
        raise InputError("name where inputs and results are: --s3 s3://BUCKET/PREFIX, --mount HOST, --efs ID:CONTAINER")
    return Settings(
        queue=_checked(own, "queue", NAME, "the name of a job queue"),
        image=_checked(own, "image", NAME, "the name of an image in a registry"),
        place=None if own["s3"] is None else read_location(own["s3"], "--s3"),
        mounts=read_mounts(own["mount"], own["efs"]),
        instance=None if own["instance"] is None else INSTANCES[own["instance"]],
        programs=None if own["programs"] is None else own["programs"].rstrip("/"),
        job_role=_checked(own, "job_role", ROLE, "arn:aws:iam::ACCOUNT:role/NAME", missing=""),
        execution_role=_checked(own, "execution_role", ROLE, "arn:aws:iam::ACCOUNT:role/NAME", missing=""),
        attempts=own["attempts"],
        every=own["copy_every"],
        warm=own["warm_up"],
    )


def _checked(
    own: dict[str, Any], name: str, pattern: re.Pattern[str], expected: str, *, missing: str | None = None
) -> str:
    """The value of an option."""
    value, option = own[name], f"--{name.replace('_', '-')}"
    if value is None and missing is not None:
        return missing
    if value is None or pattern.fullmatch(value) is None:
        raise InputError(f"{option} {'is missing' if value is None else repr(value)}: expected {expected}")
    return str(value)


def _write(jobs: Jobs, folder: Path) -> None:
    """What `aws batch register-job-definition` and `submit-job` read with --cli-input-json, and the inputs it names."""
    from dfmp2.io.files import write_atomically

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot make the folder {folder}: {error.strerror}: use another --write") from error
    for name, value in _requests(jobs).items():
        write_atomically(folder / f"{name}.json", (json.dumps(value, indent=2) + "\n").encode(), overwrite=True)
    if jobs.package is not None:
        write_atomically(folder / jobs.package.name, jobs.package.content, overwrite=True)


def _requests(jobs: Jobs) -> dict[str, Any]:
    """What AWS Batch is asked, by the names of its files."""
    name = jobs.definition["jobDefinitionName"]
    found = {"job-definition": jobs.definition, "warm-up": jobs.warm_up, "array": jobs.array}
    return {
        key: value if key == "job-definition" else {**value, "jobDefinition": name}
        for key, value in found.items()
        if value is not None
    }


def _show(jobs: Jobs, shared: Request, done: Submitted | None) -> None:
    requests = _requests(jobs)
    inputs = ""
    if jobs.package is not None:
        inputs = f"{jobs.package.files} files of inputs, {len(jobs.package.content)} bytes -> {jobs.place}/inputs"
    if shared.as_json:
        submitted = None if done is None else {"warm_up": done.warm_up, "array": done.array, "job": done.definition}
        value = {"scheduler": "aws-batch", "shards": shared.shards, "submitted": submitted}
        click.echo(json.dumps({**value, "requests": requests}, indent=2))
        return
    if done is None:
        for name, request in requests.items():
            click.echo(f"==> {name}.json <==\n{json.dumps(request, indent=2)}")
        if inputs:
            click.echo(printable(inputs))
        click.echo("nothing was submitted (--submit)")
        return
    click.echo(f"job definition {done.definition} ({'registered' if done.registered else 'there already'})")
    if done.warm_up:
        click.echo(f"warm-up: job {done.warm_up}")
    click.echo(f"array of {shared.shards}: job {done.array}" if shared.shards > 1 else f"job {done.array}")
    if jobs.place is not None:
        click.echo(printable(f"results: aws s3 sync {jobs.place}/results FOLDER"))
