"""A batch as jobs of AWS Batch: an array of shards, and a warm-up before it where kernels are compiled.

Everything here turns values into requests; nothing is asked of AWS. Inputs and results are in S3 (`Settings.place`) or
on a file system that the containers mount.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dfmp2.batch.manifest import Batch
from dfmp2.errors import InputError
from dfmp2.submission import warm_up
from dfmp2.submission.aws.bucket import Location, read_location
from dfmp2.submission.aws.definition import LEAST_SECONDS, Container, job_definition, pairs
from dfmp2.submission.aws.instances import INSTANCES, Instance
from dfmp2.submission.aws.mounts import Mount
from dfmp2.submission.aws.package import Package, pack
from dfmp2.submission.aws.shard import CHAINED, PROGRAMS
from dfmp2.submission.request import Request

MOST_SHARDS = 10_000  # an array has 2 to this many jobs; a single shard is a job without array (SubmitJob)
MEBIBYTE = 2**20
MEMORY_PER_CPU = 1800  # MiB of a job without instance: what a compute-optimised instance has for one
RESERVED = 512  # MiB of a container, or a tenth, for what watches and copies
LEAST_MEMORY = 1024  # MiB of a container
MODULE = ["python", "-P", "-m", "dfmp2.submission.aws"]
TAGS = {"application": "dfmp2"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What AWS Batch is told beside the request.

    Attributes
    ----------
    queue, image : names
    place : of inputs and results in S3, None when they are on a mounted file system
    mounts : folders of the containers
    instance : type whose devices the containers get, None for the default of the backend
    programs : where compiled programs are kept, None for the default
    job_role, execution_role : ARNs, "" for none
    attempts : of a job
    every : s between two copies to S3
    warm : whether a job of its own compiles first, where something is to be compiled
    """

    queue: str
    image: str
    place: Location | None
    mounts: tuple[Mount, ...]
    instance: Instance | None
    programs: str | None
    job_role: str
    execution_role: str
    attempts: int
    every: float
    warm: bool


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """What is sent.

    Attributes
    ----------
    definition : the request RegisterJobDefinition
    warm_up, array : requests SubmitJob, without the definition's ARN and what they wait for
    package, place : inputs and where they go, None on a mounted file system
    """

    definition: dict[str, Any]
    warm_up: dict[str, Any] | None
    array: dict[str, Any]
    package: Package | None
    place: Location | None


def make_jobs(batch: Batch, request: Request, settings: Settings) -> Jobs:
    """The requests for a batch.

    Raises
    ------
    InputError : what is asked does not fit together
    """
    lane = warm_up.lane(batch)
    instance = settings.instance or (INSTANCES["trn1.2xlarge"] if lane else None)
    _require_fitting(request, instance, lane)
    if settings.programs is not None and lane is None:
        raise InputError("--programs: the manifest names neither backend nki nor nki-xla, so no kernel is compiled")
    container = _container(request, settings, instance)
    memory = f"{container.memory - max(RESERVED, container.memory // 10)}MiB"
    options = ["--workers", str(request.workers), "--threads", str(request.threads), "--memory", memory]
    options += [CHAINED] * request.chained
    target = "trn1" if instance is None else instance.target
    if settings.place is None:
        package, own = None, _mounted(batch, request, settings)
        run, warm = ["dfmp2", "batch", "run", *own, *options], [*MODULE, "warm-up", "--manifest", *_without_output(own)]
        mount = next(mount for mount in settings.mounts if mount.holds(_absolute(batch.output)))
        programs = settings.programs or f"{mount.target}/dfmp2-{PROGRAMS}"
        identity = "\0".join(own)
    else:
        if request.output is not None:
            raise InputError(f"--output {request.output}: results go to {settings.place}/results: leave it out")
        package = pack(batch)
        own = ["--place", str(settings.place), "--inputs", package.name]
        programs = settings.programs or str(settings.place / PROGRAMS)
        own += ["--programs", programs] if lane and programs.startswith("s3:") else []
        run = [*MODULE, "shard", *own, "--every", f"{settings.every:g}", "--", *options]
        warm = [*MODULE, "warm-up", *own]
        identity = "\0".join([str(settings.place), package.name])
    variables = {} if lane is None else _cache(programs, settings)
    name = f"dfmp2-{_label(batch)}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    array = _job(name, settings.queue, run, variables)
    if request.shards > 1:
        array["arrayProperties"] = {"size": request.shards}
    first = None
    if lane is not None and settings.warm:
        first = _job(f"{name}-warm-up", settings.queue, [*warm, "--target", target], variables)
    return Jobs(job_definition(container), first, array, package, settings.place)


def _job(name: str, queue: str, command: Sequence[str], variables: dict[str, str]) -> dict[str, Any]:
    overrides: dict[str, Any] = {"command": list(command)}
    if variables:
        overrides["environment"] = pairs(variables)
    return {
        "jobName": name,
        "jobQueue": queue,
        "containerOverrides": overrides,
        "propagateTags": True,
        "tags": dict(TAGS),
    }


def _container(request: Request, settings: Settings, instance: Instance | None) -> Container:
    vcpus = request.workers * request.threads if instance is None else instance.vcpus
    memory = MEMORY_PER_CPU * vcpus if instance is None else instance.memory
    if request.memory is not None:
        memory = -(-request.memory // MEBIBYTE)
    if memory < LEAST_MEMORY:
        raise InputError(f"--memory: {memory} MiB are too few for a container: expected {LEAST_MEMORY} MiB or more")
    return Container(
        image=settings.image,
        vcpus=vcpus,
        memory=memory,
        instance=instance,
        mounts=settings.mounts,
        attempts=settings.attempts,
        seconds=request.seconds,
        job_role=settings.job_role,
        execution_role=settings.execution_role,
    )


def _require_fitting(request: Request, instance: Instance | None, lane: str | None) -> None:
    """Refuse what AWS Batch would refuse, or leave waiting for ever."""
    if request.shards > MOST_SHARDS:
        raise InputError(f"--shards {request.shards}: an array of AWS Batch has at most {MOST_SHARDS} jobs")
    if request.seconds is not None and request.seconds < LEAST_SECONDS:
        raise InputError(f"--time {request.seconds} s: AWS Batch has no limits below {LEAST_SECONDS} s")
    if instance is None:
        return
    cores = request.workers * request.threads
    if cores > instance.vcpus:
        raise InputError(
            f"{request.workers} workers of {request.threads} threads need {cores} virtual CPUs, and {instance.name} "
            f"has {instance.vcpus}: use fewer"
        )
    if lane is not None and request.workers > instance.cores:
        raise InputError(
            f"--workers {request.workers}: {instance.name} has {instance.cores} NeuronCores and a core serves one "
            f"process: use at most {instance.cores}"
        )
    if request.memory is not None and request.memory > instance.memory * MEBIBYTE:
        raise InputError(
            f"--memory: a job on {instance.name} can have {instance.memory} MiB, and {request.memory // MEBIBYTE} MiB "
            "were asked for"
        )


def _mounted(batch: Batch, request: Request, settings: Settings) -> list[str]:
    """Manifest and folders of a batch on a file system that has the same path here and in the containers."""
    own = [str(_absolute(batch.source)), "--output", str(_absolute(batch.output))]
    if request.root is not None:
        own += ["--root", str(_absolute(request.root))]
    for path in (_absolute(batch.source), _absolute(batch.output), _absolute(batch.root)):
        if not any(mount.holds(path) for mount in settings.mounts if mount.source or mount.efs):
            raise InputError(
                f"{path} is on nothing that the containers mount: name its file system with --mount HOST:CONTAINER or "
                "--efs ID:CONTAINER (CONTAINER is its path here), or let everything go through S3 with --s3"
            )
    return own


def _without_output(own: Sequence[str]) -> list[str]:
    return [own[0], *own[3:]]


def _cache(programs: str, settings: Settings) -> dict[str, str]:
    """Variables that say where compiled programs are kept."""
    if programs.startswith("s3:"):
        if settings.place is None:
            raise InputError(f"--programs {programs}: without --s3 expected a folder below --mount or --efs")
        return {"NEURON_COMPILE_CACHE_URL": f"{read_location(programs, '--programs')}-xla"}
    path = PurePosixPath(programs)
    if not path.is_absolute() or not any(mount.holds(path) for mount in settings.mounts if mount.source or mount.efs):
        raise InputError(f"--programs {programs}: expected s3://BUCKET/PREFIX, or a folder below --mount or --efs")
    return {"DFMP2_NEFF_CACHE": programs, "NEURON_COMPILE_CACHE_URL": f"{programs}/xla"}


def _absolute(path: str | Path) -> PurePosixPath:
    return PurePosixPath(Path(path).resolve())


def _label(batch: Batch) -> str:
    """Name of the manifest as a name of a job may be."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(batch.source).stem)[:80].strip("-") or "batch"
