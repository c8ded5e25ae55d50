"""A batch as jobs of AWS Batch: an array of shards, and a warm-up before it where kernels are compiled.

Inputs and results are in S3 (`dfmp2.execution.s3`) or on a file system that the containers mount; a container runs
`dfmp2 batch run`. The job definition is named after what is in it (SHA-256), so that one that is registered already can
be used again; what belongs to one batch (command, locations) comes with the job.
Sources: AWS Batch API reference, RegisterJobDefinition, SubmitJob and EvaluateOnExit; user guide, "Automated job
retries" and "Compute resource memory management"; AWS Neuron documentation, "Amazon EC2 Trn1 architecture".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dfmp2.backends.registry import accelerator
from dfmp2.errors import Dfmp2Error, InputError, Interrupted, ResourceError
from dfmp2.execution.arrays import Request, compiled_backend
from dfmp2.execution.devices import CORES_PER_CHIP
from dfmp2.execution.manifest import Batch
from dfmp2.execution.package import Package, pack
from dfmp2.execution.s3 import INPUTS, PROGRAMS, Location, Store, asking, read_location
from dfmp2.host.files import write_atomically

PREFIX = "/opt/dfmp2"  # of the image: the virtual environment (scripts/container/install.sh)
WORK = "/work"  # of the image: scratch, caches and HOME; a volume of its own, so that the root can be read-only
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOST_SHARDS = 10_000  # an array has 2 to this many jobs; a single shard is a job without array
LEAST_SECONDS = 60
MEBIBYTE = 2**20
MEMORY_PER_CPU = 1800  # MiB of a job without instance: what a compute-optimised instance has for one
RESERVED = 512  # MiB of a container, or a tenth, for what is not a worker
LEAST_MEMORY = 1024  # MiB of a container
TAGS = {"application": "dfmp2"}
ENDED = ("SUCCEEDED", "FAILED")
ROLE = re.compile(r"arn:[a-z-]+:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}")
NAME = re.compile(r"[A-Za-z0-9:/_.@-]{1,512}")  # of queues and images, or their ARNs
# In this order, five at most; the last one counts for all else, which would be tried again without it.
RETRY_RULES = (
    {"onExitCode": str(Interrupted.exit_code), "action": "RETRY"},  # stopped, and goes on from its checkpoint
    {"onStatusReason": "Host EC2*", "action": "RETRY"},  # the instance is gone, as when a Spot instance is taken back
    {"onStatusReason": "Task failed to start*", "action": "RETRY"},  # image not pulled, disk of the host full
    {"onReason": "*", "action": "EXIT"},
)


@dataclass(frozen=True, slots=True)
class Instance:
    """A type of instance; a job asks for all of its virtual CPUs, since AWS Batch does not count Neuron devices.

    Attributes
    ----------
    name : of the type
    vcpus : virtual CPUs
    memory : MiB that a job may ask for, the instance's less what its system and the agent of Batch keep
    chips : /dev/neuron0 and so on
    target : of the compiler
    """

    name: str
    vcpus: int
    memory: int
    chips: int
    target: str = "trn1"

    @property
    def cores(self) -> int:
        """NeuronCores: as many workers can have one of their own."""
        return CORES_PER_CHIP * self.chips


INSTANCES = {
    instance.name: instance
    for instance in (
        Instance("trn1.2xlarge", 8, 30_000, 1),  # 32 GiB
        Instance("trn1.32xlarge", 128, 490_000, 16),  # 512 GiB
        Instance("trn1n.32xlarge", 128, 490_000, 16),  # 512 GiB
    )
}


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the container that outlives it.

    Attributes
    ----------
    target : its place in the container
    source : folder of the host; "" for an empty one that the host makes and removes
    efs : identity of an EFS file system, "" for none
    """

    target: str
    source: str = ""
    efs: str = ""

    def volume(self, name: str) -> dict[str, Any]:
        """Entry of `volumes`."""
        if self.efs:
            return {"name": name, "efsVolumeConfiguration": {"fileSystemId": self.efs, "transitEncryption": "ENABLED"}}
        return {"name": name, "host": {"sourcePath": self.source} if self.source else {}}


@dataclass(frozen=True, slots=True)
class Settings:
    """What AWS Batch is asked beside the request.

    Attributes
    ----------
    queue, image : names
    place : of inputs and results in S3, None when they are on a mounted file system
    mounts : folders of the containers
    instance : type whose devices the containers get, None for the default of the backend
    programs : where compiled programs are kept, None for the default
    job_role, execution_role : ARNs of what its processes may do, and what the host may do to start it; "" for none
    attempts : of a job, the first one included
    every : s between two copies to S3
    warm : whether a job of its own compiles first, where something is to be compiled
    """

    queue: str
    image: str
    place: Location | None
    mounts: tuple[Mount, ...]
    instance: Instance | None = None
    programs: str | None = None
    job_role: str = ""
    execution_role: str = ""
    attempts: int = 10
    every: float = 60.0
    warm: bool = True


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

    def requests(self) -> dict[str, Any]:
        """What AWS Batch is asked, by the names of the files that `--cli-input-json` reads."""
        name = {"jobDefinition": self.definition["jobDefinitionName"]}
        warm_up = {} if self.warm_up is None else {"warm-up": self.warm_up | name}
        return {"job-definition": self.definition, **warm_up, "array": self.array | name}

    def write(self, folder: Path) -> None:
        """Write the requests as `--cli-input-json` reads them, and the inputs that they name.

        Raises
        ------
        ResourceError : they cannot be written
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(f"cannot make the folder {folder}: {error.strerror}: use another --write") from error
        for name, value in self.requests().items():
            write_atomically(folder / f"{name}.json", (json.dumps(value, indent=2) + "\n").encode(), overwrite=True)
        if self.package is not None:
            write_atomically(folder / self.package.name, self.package.content, overwrite=True)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What AWS has taken.

    Attributes
    ----------
    definition : ARN
    registered : whether that is new
    warm_up, array : numbers of the jobs, "" for no warm-up
    """

    definition: str
    registered: bool
    warm_up: str
    array: str


# --- options ----------------------------------------------------------------------------------------------------------


def read_settings(given: Mapping[str, Any]) -> Settings:
    """The options of `dfmp2 batch submit --aws-batch`.

    Raises
    ------
    InputError : one is missing or not of its form
    """
    if given["s3"] is None and not given["mount"] and not given["efs"]:
        raise InputError("name where inputs and results are: --s3 s3://BUCKET/PREFIX, --mount HOST, --efs ID:CONTAINER")
    found: dict[str, str] = {}
    for name, pattern, expected in (
        ("queue", NAME, "the name of a job queue"),
        ("image", NAME, "the name of an image in a registry"),
        ("job_role", ROLE, "arn:aws:iam::ACCOUNT:role/NAME"),
        ("execution_role", ROLE, "arn:aws:iam::ACCOUNT:role/NAME"),
    ):
        value = given[name]
        if value is None and pattern is ROLE:
            value = ""
        elif value is None or pattern.fullmatch(value) is None:
            wrong = "is missing" if value is None else repr(value)
            raise InputError(f"--{name.replace('_', '-')} {wrong}: expected {expected}")
        found[name] = value
    return Settings(
        **found,
        place=None if given["s3"] is None else read_location(given["s3"], "--s3"),
        mounts=read_mounts(given["mount"], given["efs"]),
        instance=None if given["instance"] is None else INSTANCES[given["instance"]],
        programs=None if given["programs"] is None else given["programs"].rstrip("/"),
        attempts=given["attempts"],
        every=given["copy_every"],
        warm=given["warm_up"],
    )


def read_mounts(hosts: Sequence[str], systems: Sequence[str]) -> tuple[Mount, ...]:
    """What --mount HOST[:CONTAINER] and --efs ID:CONTAINER name, and the working folder where neither gives one.

    Raises
    ------
    InputError : not of that form, or two for one place
    """
    found = []
    for text in hosts:
        source, _, target = text.partition(":")
        if not all(map(_is_absolute, filter(None, (source, target)))) or not source:
            raise InputError(f"--mount {text!r}: expected HOST or HOST:CONTAINER, both absolute paths such as /fsx")
        found.append(Mount(target or source, source=source))
    for text in systems:
        identity, _, target = text.partition(":")
        if re.fullmatch(r"fs-[0-9a-f]{8,40}", identity) is None or not _is_absolute(target):
            raise InputError(f"--efs {text!r}: expected ID:CONTAINER such as fs-0123456789abcdef0:/efs")
        found.append(Mount(target, efs=identity))
    if all(mount.target != WORK for mount in found):
        found.insert(0, Mount(WORK))
    places = [mount.target for mount in found]
    if len(set(places)) < len(places):
        raise InputError(f"--mount and --efs name one place twice: {', '.join(places)}")
    return tuple(found)


def _is_absolute(text: str) -> bool:
    path = PurePosixPath(text)
    return str(path) == text and path.is_absolute() and text != "/" and ".." not in path.parts and text.isprintable()


# --- requests ---------------------------------------------------------------------------------------------------------


def make_jobs(batch: Batch, request: Request, own: Settings) -> Jobs:
    """The requests for a batch.

    Raises
    ------
    InputError : what is asked does not fit together
    """
    lane = compiled_backend(batch)
    instance = own.instance or (INSTANCES["trn1.2xlarge"] if lane else None)
    _require_fitting(request, instance, lane)
    if own.programs is not None and lane is None:
        raise InputError("--programs: the manifest names neither backend nki nor nki-xla, so no kernel is compiled")
    definition, memory = _definition(request, own, instance)
    if own.place is None:
        package, source = None, _mounted(batch, request, own)
        places = [mount for mount in own.mounts if _absolute(batch.output).is_relative_to(mount.target)]
        programs = own.programs or f"{places[0].target}/dfmp2-{PROGRAMS}"
        identity = "\0".join(source)
    else:
        if request.output is not None:
            raise InputError(f"--output {request.output}: results go to {own.place}/results: leave it out")
        package = pack(batch)
        programs = own.programs or str(own.place / PROGRAMS)
        source = [str(own.place / INPUTS / package.name), "--copy-every", f"{own.every:g}"]
        source += ["--programs", programs] if lane and programs.startswith("s3:") else []
        identity = "\0".join([str(own.place), package.name])
    run = ["dfmp2", "batch", "run", *source]
    share = ["--workers", str(request.workers), "--threads", str(request.threads), "--memory", f"{memory}MiB"]
    variables = {} if lane is None else _cache(programs, own)
    label = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(batch.source).stem)[:80].strip("-") or "batch"
    name = f"dfmp2-{label}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    array = _job(name, own.queue, [*run, *share, *["--scf-chain"] * request.chained], variables)
    if request.shards > 1:
        array["arrayProperties"] = {"size": request.shards}
    first = None
    if lane is not None and own.warm:
        target = "trn1" if instance is None else instance.target
        first = _job(f"{name}-warm-up", own.queue, [*run, "--warm-up", target], variables)
    return Jobs(definition, first, array, package, own.place)


def environment(instance: Instance | None) -> dict[str, str]:
    """Variables of every container: where its tools, its scratch and its compiled programs are.

    The runtime's list of cores is left out: dfmp2 gives each worker its own.
    """
    own = {
        "PATH": f"{PREFIX}/bin:{SYSTEM_PATH}",
        "HOME": WORK,
        "TMPDIR": WORK,
        "DFMP2_SCRATCH": WORK,
        "XDG_CACHE_HOME": f"{WORK}/.cache",
        "DFMP2_NEFF_CACHE": f"{WORK}/{PROGRAMS}",
    }
    if instance is None:
        return own
    return {**own, **accelerator().container_variables(instance.target, own, PREFIX)}


def _definition(request: Request, own: Settings, instance: Instance | None) -> tuple[dict[str, Any], int]:
    """The request RegisterJobDefinition, and the memory that its workers share, MiB."""
    vcpus = request.workers * request.threads if instance is None else instance.vcpus
    memory = MEMORY_PER_CPU * vcpus if instance is None else instance.memory
    if request.memory is not None:
        memory = -(-request.memory // MEBIBYTE)
    if memory < LEAST_MEMORY:
        raise InputError(f"--memory: {memory} MiB are too few for a container: expected {LEAST_MEMORY} MiB or more")
    mounts = {"work" if mount.target == WORK else f"mount{n}": mount for n, mount in enumerate(own.mounts)}
    properties: dict[str, Any] = {
        "image": own.image,
        "command": ["dfmp2", "doctor"],
        "resourceRequirements": [
            {"type": "VCPU", "value": str(vcpus)},
            {"type": "MEMORY", "value": str(memory)},
        ],
        "environment": _pairs(environment(instance)),
        "linuxParameters": {"initProcessEnabled": True},  # so that SIGTERM arrives and ended workers do not stay
        "privileged": False,
        "readonlyRootFilesystem": True,
        "volumes": [mount.volume(name) for name, mount in mounts.items()],
        "mountPoints": [{"containerPath": mount.target, "sourceVolume": name} for name, mount in mounts.items()],
    }
    if instance is not None:
        devices = [f"/dev/neuron{number}" for number in range(instance.chips)]
        properties["linuxParameters"]["devices"] = [
            {"hostPath": device, "containerPath": device, "permissions": ["READ", "WRITE"]} for device in devices
        ]
    for key, role in (("jobRoleArn", own.job_role), ("executionRoleArn", own.execution_role)):
        if role:
            properties[key] = role
    definition: dict[str, Any] = {
        "type": "container",
        "platformCapabilities": ["EC2"],
        "containerProperties": properties,
        "retryStrategy": {"attempts": own.attempts, "evaluateOnExit": [dict(rule) for rule in RETRY_RULES]},
        "propagateTags": True,
        "tags": dict(TAGS),
    }
    if request.seconds is not None:  # of one attempt; one that reaches it is not repeated
        definition["timeout"] = {"attemptDurationSeconds": request.seconds}
    digest = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]
    kind = "cpu" if instance is None else instance.name.replace(".", "-")
    return {"jobDefinitionName": f"dfmp2-{kind}-{digest}", **definition}, memory - max(RESERVED, memory // 10)


def _job(name: str, queue: str, command: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    overrides: dict[str, Any] = {"command": list(command)}
    if variables:
        overrides["environment"] = _pairs(variables)
    return {
        "jobName": name,
        "jobQueue": queue,
        "containerOverrides": overrides,
        "propagateTags": True,
        "tags": dict(TAGS),
    }


def _pairs(variables: Mapping[str, str]) -> list[dict[str, str]]:
    """Variables as AWS Batch wants them."""
    return [{"name": name, "value": value} for name, value in variables.items()]


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


def _mounted(batch: Batch, request: Request, own: Settings) -> list[str]:
    """Manifest and folders of a batch on a file system that has the same path here and in the containers."""
    for path in (_absolute(batch.source), _absolute(batch.output), _absolute(batch.root)):
        if not _on_a_mount(path, own):
            raise InputError(
                f"{path} is on nothing that the containers mount: name its file system with --mount HOST:CONTAINER or "
                "--efs ID:CONTAINER (CONTAINER is its path here), or let everything go through S3 with --s3"
            )
    root = [] if request.root is None else ["--root", str(_absolute(request.root))]
    return [str(_absolute(batch.source)), "--output", str(_absolute(batch.output)), *root]


def _cache(programs: str, own: Settings) -> dict[str, str]:
    """Variables that say where compiled programs are kept."""
    if programs.startswith("s3:"):
        if own.place is None:
            raise InputError(f"--programs {programs}: without --s3 expected a folder below --mount or --efs")
        return {"NEURON_COMPILE_CACHE_URL": f"{read_location(programs, '--programs')}-xla"}
    if not PurePosixPath(programs).is_absolute() or not _on_a_mount(PurePosixPath(programs), own):
        raise InputError(f"--programs {programs}: expected s3://BUCKET/PREFIX, or a folder below --mount or --efs")
    return {"DFMP2_NEFF_CACHE": programs, "NEURON_COMPILE_CACHE_URL": f"{programs}/xla"}


def _on_a_mount(path: PurePosixPath, own: Settings) -> bool:
    """Whether a path is on something that outlives the containers."""
    return any(path.is_relative_to(mount.target) for mount in own.mounts if mount.source or mount.efs)


def _absolute(path: str | Path) -> PurePosixPath:
    return PurePosixPath(Path(path).resolve())


# --- submitting -------------------------------------------------------------------------------------------------------


def submit(jobs: Jobs, client: Any, store: Store | None) -> Submitted:
    """Send a batch to its queue, which is asked first; nothing is left behind where a job is refused.

    Parameters
    ----------
    client : of AWS Batch
    store : S3, None for a batch on a mounted file system

    Raises
    ------
    InputError : the queue is missing, closed, or has no instances that could run the jobs; or they are there already
    Dfmp2Error : AWS refuses, or does not answer; no job is left
    """
    _require_queue(jobs, client)
    if store is not None and jobs.package is not None and jobs.place is not None:
        _require_alone(jobs.array, client)
        inputs = jobs.place / INPUTS / jobs.package.name
        if "" not in store.names(inputs):
            store.write(jobs.package.content, inputs)
    name = jobs.definition["jobDefinitionName"]
    with asking(f"registering the job definition {name}"):
        found = client.describe_job_definitions(jobDefinitionName=name, status="ACTIVE")["jobDefinitions"]
        last = (
            max(found, key=lambda one: one["revision"]) if found else client.register_job_definition(**jobs.definition)
        )
    definition = str(last["jobDefinitionArn"])
    first = "" if jobs.warm_up is None else _send(client, jobs.warm_up, definition, "")
    try:
        return Submitted(definition, not found, first, _send(client, jobs.array, definition, first))
    except Dfmp2Error:
        if first:
            with suppress(Dfmp2Error), asking("taking the warm-up back"):
                client.terminate_job(jobId=first, reason="the array job after it was refused")
        raise


def _send(client: Any, job: Mapping[str, Any], definition: str, after: str) -> str:
    """Number of a job; it waits for `after`."""
    wait = {"dependsOn": [{"jobId": after}]} if after else {}
    with asking(f"submitting {job['jobName']}"):
        return str(client.submit_job(**job, jobDefinition=definition, **wait)["jobId"])


def _require_queue(jobs: Jobs, client: Any) -> None:
    """Refuse a queue that would refuse the jobs, or let them wait for ever."""
    name = jobs.array["jobQueue"]
    with asking(f"looking at the job queue {name}"):
        found = client.describe_job_queues(jobQueues=[name])["jobQueues"]
    if not found:
        region = client.meta.region_name
        raise InputError(f"--queue {name}: there is no such job queue in {region}: check the name, or pass --region")
    state = found[0].get("state", "ENABLED"), found[0].get("status", "VALID")
    if state != ("ENABLED", "VALID"):
        why = found[0].get("statusReason", "")
        raise InputError(f"--queue {name} is {' and '.join(state)} {why}: it must be ENABLED and VALID")
    places = [entry["computeEnvironment"] for entry in found[0].get("computeEnvironmentOrder", ())]
    with asking(f"looking at the compute environments of {name}"):
        environments = client.describe_compute_environments(computeEnvironments=places)["computeEnvironments"]
    against = [_objection(one, jobs.definition["containerProperties"]) for one in environments]
    if all(against):
        raise InputError(f"--queue {name} cannot run these jobs: {'; '.join(against) or 'no compute environment'}")


def _objection(compute: Mapping[str, Any], properties: Mapping[str, Any]) -> str:
    """Why a compute environment cannot run a job, "" if it can."""
    name = compute["computeEnvironmentName"]
    state = compute.get("state", "ENABLED"), compute.get("status", "VALID")
    if state != ("ENABLED", "VALID"):
        return f"{name} is {' and '.join(state)}"
    resources = compute.get("computeResources") or {}
    if resources.get("type", "").startswith("FARGATE"):
        return f"{name} is of Fargate, which has no read-write volumes of a host and no Neuron devices"
    vcpus = next(int(one["value"]) for one in properties["resourceRequirements"] if one["type"] == "VCPU")
    if resources.get("maxvCpus", vcpus) < vcpus:
        return f"{name} has at most {resources['maxvCpus']} virtual CPUs and a job needs {vcpus}"
    types, devices = resources.get("instanceTypes", ()), len(properties["linuxParameters"].get("devices", ()))
    if devices and types and not any(_has_neuron(kind, devices) for kind in types):
        return f"{name} has {', '.join(types)} and a job needs {devices} Neuron devices of a trn1 instance"
    return ""


def _has_neuron(kind: str, devices: int) -> bool:
    """Whether instances of a type or family have as many Neuron devices."""
    if kind in INSTANCES:
        return INSTANCES[kind].chips == devices
    return kind in ("trn1", "trn1n")


def _require_alone(array: Mapping[str, Any], client: Any) -> None:
    """Refuse a job that is there already: both would compute the same, since S3 has no locks."""
    filters = [{"name": "JOB_NAME", "values": [array["jobName"]]}]
    with asking("looking for the same jobs"):
        found = client.list_jobs(jobQueue=array["jobQueue"], filters=filters)["jobSummaryList"]
    active = [job for job in found if job["jobName"] == array["jobName"] and job.get("status") not in ENDED]
    if active:
        raise InputError(
            f"job {active[0]['jobId']} ({active[0].get('status')}) computes the same inputs into the same place: wait "
            f"for it, or end it with: aws batch terminate-job --job-id {active[0]['jobId']} --reason again"
        )
