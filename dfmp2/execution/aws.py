"""A batch on AWS: jobs of AWS Batch, with a warm-up before them to compile kernels, and its files in S3.

    s3://BUCKET/PREFIX/inputs/SHA256.tar    manifest, molecules, orbitals to start from; never changes
                       results/NAME.h5      and errors and checkpoints, as in the output folder of a batch
                       programs/...         compiled ones

A container runs `dfmp2 batch run`, on copies of these or on a file system that is mounted. Any host can go on with any
shard. An object appears whole or not at all, and the newest version is seen at once (S3 documentation, "data
consistency model"). The job definition is named after what is in it (SHA-256), so that one that is registered already
can be used again; what belongs to one batch (command, locations) comes with the job. boto3 is imported here only;
credentials and region come from where it looks for them.
Sources: AWS Batch API reference, RegisterJobDefinition, SubmitJob and EvaluateOnExit; user guide, "Automated job
retries" and "Compute resource memory management"; AWS Neuron documentation, "Amazon EC2 Trn1 architecture".
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from dfmp2.backends.registry import accelerator
from dfmp2.errors import BackendUnavailable, InputError, Interrupted, ResourceError
from dfmp2.execution.manifest import COMPILED, OF_THE_BATCH, Batch, read_manifest
from dfmp2.execution.state import NO_FILE, stamp
from dfmp2.execution.worker import DAMAGED
from dfmp2.host.devices import CORES_PER_CHIP
from dfmp2.host.scratch import VARIABLE
from dfmp2.output.checkpoint import SUFFIX

PREFIX = "/opt/dfmp2"  # of the image: the virtual environment (scripts/container/install.sh)
WORK = "/work"  # of the image: scratch, caches and HOME; a volume of its own, so that the root can be read-only
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOST_SHARDS = 10_000
MEBIBYTE = 2**20
MEMORY_PER_CPU = 1800  # MiB of a job without instance: what a compute-optimised instance has for one
RESERVED = 512  # MiB of a container, or a tenth, for what is not a worker
LEAST_MEMORY = 1024  # MiB of a container
TAGS = {"propagateTags": True, "tags": {"application": "dfmp2"}}
ROLES = {"jobRoleArn": "job_role", "executionRoleArn": "execution_role"}  # in a request, and the option
# In this order, five at most; the last one counts for all else, which would be tried again without it.
RETRY_RULES = (
    {"onExitCode": str(Interrupted.exit_code), "action": "RETRY"},  # stopped, and goes on from its checkpoint
    {"onStatusReason": "Host EC2*", "action": "RETRY"},  # the instance is gone, as when a Spot instance is taken back
    {"onStatusReason": "Task failed to start*", "action": "RETRY"},  # image not pulled, disk of the host full
    {"onReason": "*", "action": "EXIT"},
)


INPUTS, RESULTS, PROGRAMS = "inputs", "results", "programs"  # below the location of a batch
MANIFEST = "dfmp2-batch.toml"  # in the inputs
RETRIES = 6  # of one request, by botocore, with growing pauses
# Files of an item. The result comes last: it is written before a checkpoint or an error goes.
PASSING, KEPT = (f".h5{SUFFIX}", ".error.json"), (f".h5{DAMAGED}", ".h5")  # KEPT stay in S3 when the host has none
# Whole entries of the cache of compiled programs; none is ever changed, so hosts may copy at any time.
PROGRAM = re.compile(r"[0-9a-f]{8,64}/[A-Za-z0-9.+_-]+\.(neff|json)")

# Error, advice, and what calls for them: codes in the answers of Batch and S3 (AWS documentation, "Common error types"
# and "S3 error responses") and names of boto3's errors. Anything else may pass.
ANSWERS = (
    (BackendUnavailable, "pass --region, set AWS_REGION, or write it into ~/.aws/config", "NoRegionError"),
    (
        BackendUnavailable,
        "run `aws configure`, set AWS_PROFILE, or give the instance or the job a role",
        "AuthFailure ExpiredToken ExpiredTokenException InvalidAccessKeyId InvalidClientTokenId SignatureDoesNotMatch "
        "UnrecognizedClientException CredentialRetrievalError NoCredentialsError PartialCredentialsError "
        "ProfileNotFound SSOTokenLoadError TokenRetrievalError UnauthorizedSSOTokenError",
    ),
    (
        ResourceError,
        "allow it in the policy of the user or role",
        "403 AccessDenied AccessDeniedException AllAccessDisabled UnauthorizedOperation",
    ),
    (
        InputError,
        "check names, region and values",
        "301 400 404 ClientException InvalidBucketName NoSuchBucket NoSuchKey NotFound ParamValidationError "
        "PermanentRedirect ValidationException",
    ),
)


class Instance(NamedTuple):
    """A type of instance: virtual CPUs, MiB that a job may ask for, and chips (/dev/neuron0 and so on)."""

    vcpus: int
    memory: int  # less than the instance has: the system and the agent of AWS Batch keep some
    chips: int


INSTANCES = {  # a job asks for all virtual CPUs of its instance, since AWS Batch does not count Neuron devices
    "trn1.2xlarge": Instance(8, 30_000, 1),  # 32 GiB
    "trn1.32xlarge": Instance(128, 490_000, 16),  # 512 GiB
    "trn1n.32xlarge": Instance(128, 490_000, 16),  # 512 GiB
}
Requests = dict[str, dict[str, Any]]  # by the names of files for `aws batch ... --cli-input-json`


def make_requests(batch: Batch, given: Mapping[str, Any]) -> tuple[Requests, dict[str, bytes]]:
    """What AWS Batch is asked, and the inputs by their place in S3, none where they are on a mounted file system.

    `given` are the options of `dfmp2 batch submit --aws-batch`; InputError where they do not fit together.
    """
    for option, what in (("queue", "job queue"), ("image", "container image")):
        if not given[option]:
            raise InputError(f"--{option} is missing: expected the name of a {what}")
    if given["shards"] > MOST_SHARDS:
        raise InputError(f"--shards {given['shards']}: an array of AWS Batch has at most {MOST_SHARDS} jobs")
    mounts, lane, variables = _mounts(given), batch.asks_for(*COMPILED), dict[str, str]()
    source, inputs, programs = _sources(batch, given, mounts)
    definition, memory = _definition(given, given["instance"] or ("trn1.2xlarge" if lane else "cpu"), lane, mounts)
    run = ["dfmp2", "batch", "run", *source]
    if lane is not None:
        variables["NEURON_COMPILE_CACHE_URL"] = f"{programs}/xla"
        if given["s3"] and programs.startswith("s3://"):
            run += ["--programs", programs]
        elif _is_mounted(Path(programs), mounts):
            variables["DFMP2_NEFF_CACHE"] = programs
        else:
            raise InputError(
                f"--programs {programs}: expected a folder below --mount or --efs, or s3://BUCKET/PREFIX beside --s3"
            )
    elif given["programs"]:
        raise InputError("--programs: the manifest names neither backend nki nor nki-xla, so no kernel is compiled")
    name = f"dfmp2-{re.sub(r'[^A-Za-z0-9_-]+', '-', Path(batch.source).stem)[:80].strip('-') or 'batch'}"

    def job(name: str, *more: str) -> dict[str, Any]:
        overrides = {"command": [*run, *more], "environment": _pairs(variables)}
        common = {"jobQueue": given["queue"], "jobDefinition": definition["jobDefinitionName"], **TAGS}
        return {"jobName": name, "containerOverrides": overrides, **common}

    share = {"workers": given["workers"], "threads": given["threads"], "memory": f"{memory}MiB"}
    share["copy-every"] = f"{given['copy_every']:g}"
    words = [str(word) for option, value in share.items() for word in (f"--{option}", value)]
    requests = {"job-definition": definition}
    if lane is not None and given["warm_up"]:
        requests["warm-up"] = job(f"{name}-warm-up", "--warm-up")
    requests["array"] = job(name, *words, *["--scf-chain"] * given["scf_chain"])
    if given["shards"] > 1:
        requests["array"]["arrayProperties"] = {"size": given["shards"]}
    return requests, inputs


def environment(instance: Instance | None) -> dict[str, str]:
    """Variables of every container: where its tools, its scratch and its compiled programs are.

    The runtime's list of cores is left out: dfmp2 gives each worker its own.
    """
    own = {
        **{"PATH": f"{PREFIX}/bin:{SYSTEM_PATH}", "HOME": WORK, "TMPDIR": WORK, "DFMP2_SCRATCH": WORK},
        **{"XDG_CACHE_HOME": f"{WORK}/.cache", "DFMP2_NEFF_CACHE": f"{WORK}/{PROGRAMS}"},
    }
    return own if instance is None else {**own, **accelerator().container_variables("trn1", own, PREFIX)}


def _definition(
    given: Mapping[str, Any], kind: str, lane: str | None, mounts: Mapping[str, Any]
) -> tuple[dict[str, Any], int]:
    """The request RegisterJobDefinition, and the memory that its workers share, MiB."""
    workers, threads, instance = given["workers"], given["threads"], INSTANCES.get(kind)
    cores = workers * threads
    vcpus, most, chips = instance or (cores, None, 0)
    memory = most or MEMORY_PER_CPU * vcpus
    if given["memory"] is not None:
        memory = -(-given["memory"] // MEBIBYTE)
    if cores > vcpus:
        raise InputError(
            f"{workers} workers of {threads} threads need {cores} virtual CPUs, and {kind} has {vcpus}: use fewer"
        )
    if lane is not None and workers > CORES_PER_CHIP * chips:
        raise InputError(
            f"--workers {workers}: {kind} has {CORES_PER_CHIP * chips} NeuronCores and a core serves one "
            f"process: use at most {CORES_PER_CHIP * chips}"
        )
    if not LEAST_MEMORY <= memory <= (most or memory):
        limit = f", and on {kind} at most {most} MiB" if most else ""
        raise InputError(f"--memory: {memory} MiB for a container, expected {LEAST_MEMORY} MiB or more{limit}")
    devices = [f"/dev/neuron{k}" for k in range(chips)]
    definition: dict[str, Any] = {
        "type": "container",
        "platformCapabilities": ["EC2"],
        "containerProperties": {
            "image": given["image"],
            "command": ["dfmp2", "doctor"],
            "resourceRequirements": [
                {"type": "VCPU", "value": str(vcpus)},
                {"type": "MEMORY", "value": str(memory)},
            ],
            "environment": _pairs(environment(instance)),
            # A first process that passes SIGTERM on and takes in ended workers.
            "linuxParameters": {
                "initProcessEnabled": True,
                "devices": [{"hostPath": d, "containerPath": d, "permissions": ["READ", "WRITE"]} for d in devices],
            },
            "privileged": False,
            "readonlyRootFilesystem": True,
            "volumes": [{"name": f"volume{k}", **volume} for k, volume in enumerate(mounts.values())],
            "mountPoints": [{"sourceVolume": f"volume{k}", "containerPath": path} for k, path in enumerate(mounts)],
            **{role: given[option] for role, option in ROLES.items() if given[option]},
        },
        "retryStrategy": {"attempts": given["attempts"], "evaluateOnExit": [dict(rule) for rule in RETRY_RULES]},
        **TAGS,
    }
    if given["seconds"] is not None:  # of one attempt; one that reaches it is not repeated
        definition["timeout"] = {"attemptDurationSeconds": given["seconds"]}
    digest = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]
    name = f"dfmp2-{kind.replace('.', '-')}-{digest}"
    return {"jobDefinitionName": name, **definition}, memory - max(RESERVED, memory // 10)


def _pairs(variables: Mapping[str, str]) -> list[dict[str, str]]:
    """Variables as AWS Batch wants them."""
    return [{"name": name, "value": value} for name, value in variables.items()]


def _mounts(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Volumes by their places in the container; the working folder is one that the host makes, unless one is named."""
    if given["s3"] is None and not given["mount"] and not given["efs"]:
        raise InputError("name where inputs and results are: --s3 s3://BUCKET/PREFIX, --mount HOST, --efs ID:CONTAINER")
    found: dict[str, dict[str, Any]] = {WORK: {"host": {}}}
    for option, pattern, expected in (
        ("mount", r"(/[^:]+)(?::(/[^:]+))?", "HOST or HOST:CONTAINER, both absolute paths such as /fsx"),
        ("efs", r"(fs-[0-9a-f]+):(/[^:]+)", "ID:CONTAINER such as fs-0123456789abcdef0:/efs"),
    ):
        for text in given[option]:
            match = re.fullmatch(pattern, text)
            if match is None:
                raise InputError(f"--{option} {text!r}: expected {expected}")
            efs = {"efsVolumeConfiguration": {"fileSystemId": match[1], "transitEncryption": "ENABLED"}}
            found[match[2] or match[1]] = {"host": {"sourcePath": match[1]}} if option == "mount" else efs
    return found


def _sources(
    batch: Batch, given: Mapping[str, Any], mounts: Mapping[str, Any]
) -> tuple[list[str], dict[str, bytes], str]:
    """Arguments that name the batch in a container, its inputs by their place in S3, and where programs are kept."""
    if given["s3"] is not None:
        place = given["s3"].rstrip("/")
        if re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/[^/\s]+)*", place) is None:
            raise InputError(f"--s3 {given['s3']!r}: expected s3://BUCKET/PREFIX with the lower-case name of a bucket")
        if given["output"] is not None:
            raise InputError(f"--output {given['output']}: results go to {place}/results: leave it out")
        content = pack(batch)
        archive = f"{place}/{INPUTS}/{hashlib.sha256(content).hexdigest()[:32]}.tar"
        return [archive], {archive: content}, given["programs"] or f"{place}/{PROGRAMS}"
    manifest, output, root = (path.resolve() for path in (Path(batch.source), batch.output, batch.root))
    for path in (manifest, output, root):
        if not _is_mounted(path, mounts):
            raise InputError(
                f"{path} is on nothing that the containers mount: name its file system with --mount HOST:CONTAINER or "
                "--efs ID:CONTAINER (CONTAINER is its path here), or let everything go through S3 with --s3"
            )
    arguments = [str(manifest), "--output", str(output), *(["--root", str(root)] if given["root"] else [])]
    return arguments, {}, given["programs"] or f"{manifest.parent}/dfmp2-{PROGRAMS}"


def _is_mounted(path: Path, mounts: Mapping[str, Any]) -> bool:
    """Whether a path is on something that outlives the containers."""
    return any(path.resolve().is_relative_to(place) for place, volume in mounts.items() if volume != {"host": {}})


def submit(requests: Requests, inputs: Mapping[str, bytes], region: str | None, profile: str | None) -> dict[str, str]:
    """Send a batch to its queue; the ARN of the job definition and the numbers of the jobs."""
    client = connect("batch", region, profile)
    queue, definition = requests["array"]["jobQueue"], requests["job-definition"]
    with asking(f"looking at the job queue {queue}"):
        found = client.describe_job_queues(jobQueues=[queue])["jobQueues"]
    if not found or found[0].get("state") == "DISABLED":
        what = "is DISABLED" if found else f"is no job queue in {client.meta.region_name}"
        raise InputError(f"--queue {queue} {what}: check the name, or pass --region")
    for place, content in inputs.items():
        folder, _, name = place.rpartition("/")
        Store(connect("s3", region, profile), folder).put(name, content)
    name = definition["jobDefinitionName"]
    with asking(f"registering the job definition {name}"):
        found = client.describe_job_definitions(jobDefinitionName=name, status="ACTIVE")["jobDefinitions"]
        done = {"job": (found or [client.register_job_definition(**definition)])[0]["jobDefinitionArn"], "warm_up": ""}
    for key, job in (("warm_up", requests.get("warm-up")), ("array", requests["array"])):
        if job is not None:
            wait = {"dependsOn": [{"jobId": done["warm_up"]}]} if done["warm_up"] else {}
            with asking(f"submitting {job['jobName']}"):
                done[key] = client.submit_job(**job, **wait)["jobId"]
    return done


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Translate what goes wrong in the block into an error that says what to do (ANSWERS)."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, Boto3Error, ClientError, OSError) as error:
        answer = error.response.get("Error", {}) if isinstance(error, ClientError) else {}
        code, message = str(answer.get("Code", type(error).__name__)), str(answer.get("Message", error))
        found = ((kind, advice) for kind, advice, codes in ANSWERS if code in codes.split())
        kind, advice = next(found, (ResourceError, "try again later"))
        raise kind(f"{what}: {code}: {' '.join(message.split())}: {advice}") from error


def connect(service: str, region: str | None = None, profile: str | None = None) -> Any:
    """A client of "batch" or "s3"; BackendUnavailable where boto3, credentials or region are missing."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import NoCredentialsError
    except ImportError as error:
        raise BackendUnavailable(f"AWS needs the boto3 package ({error}): pip install 'dfmp2[aws]'") from error
    with asking(f"connecting to {service}"):
        session = boto3.Session(region_name=region, profile_name=profile)
        if session.get_credentials() is None:
            raise NoCredentialsError
        return session.client(service, config=Config(retries={"mode": "standard", "max_attempts": RETRIES}))


class Store:
    """What is below s3://BUCKET/PREFIX, by names; each method raises a `Dfmp2Error` when it cannot be done."""

    def __init__(self, client: Any, place: str) -> None:
        self._client, self._place = client, place
        self._bucket, _, self._prefix = f"{place}/".removeprefix("s3://").partition("/")

    def names(self) -> set[str]:
        """Of all objects."""
        with asking(f"listing {self._place}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            return {one["Key"].removeprefix(self._prefix) for page in pages for one in page.get("Contents", ())}

    def get(self, name: str, path: Path) -> None:
        """Put an object into a file, all or nothing."""
        with asking(f"copying {self._place}/{name} to {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._client.download_file(self._bucket, self._prefix + name, str(path))

    def put(self, name: str, content: Path | bytes) -> None:
        """Put bytes or a file, which is one version of it, into an object; FileNotFoundError for one that is gone."""
        with (
            io.BytesIO(content) if isinstance(content, bytes) else open(content, "rb") as stream,
            asking(f"writing {self._place}/{name}"),
        ):
            self._client.upload_fileobj(stream, self._bucket, self._prefix + name)

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        with asking(f"removing {self._place}/{name}"):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)


def pack(batch: Batch) -> bytes:
    """The inputs of a batch as a tar archive: the same inputs, the same bytes. InputError for an unreadable file.

    The manifest is written anew, so that no path leads anywhere but into the archive.
    """
    files, root = dict[str, bytes](), batch.root.resolve()

    def add(path: Path) -> str:
        name = f"files/{path.resolve().relative_to(root).as_posix()}"
        try:
            files[name] = files.get(name) or path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror})") from error
        return name

    def lines(given: Mapping[str, Any]) -> list[str]:
        # Strings, numbers and truth values of TOML look as in JSON; but DEL must be escaped.
        return [f"{name} = {json.dumps(x, ensure_ascii=False)}".replace("\x7f", "\\u007f") for name, x in given.items()]

    shared = batch.items[0].given
    text = lines({name: shared[name] for name in ("memory", "threads") if name in shared})
    for item in batch.items:
        values = {name: value for name, value in item.given.items() if name not in OF_THE_BATCH}
        values |= {name: add(Path(values[name])) for name in ("scf_from", "point_charges") if name in values}
        text += ["[[item]]", *lines({**values, "name": item.name, "molecule": add(item.path)})]
    files[MANIFEST] = "\n".join([*text, ""]).encode()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)  # of no owner and no time
            entry.size = len(files[name])
            archive.addfile(entry, io.BytesIO(files[name]))
    return stream.getvalue()


@contextmanager
def unpacked(source: str, programs: str | None, every: float) -> Iterator[tuple[Batch, S3Copies]]:
    """The batch of s3://BUCKET/PREFIX/inputs/NAME.tar in a folder that goes with the block, and copies of its files.

    `programs` and `every` are those of S3Copies.
    """
    client, (place, _, archive_name) = connect("s3"), source.rpartition(f"/{INPUTS}/")
    results, probe = Store(client, f"{place}/{RESULTS}"), f".{os.environ.get('AWS_BATCH_JOB_ID', '')}"
    results.put(probe, b"")  # here a role that may not write is found, not after hours
    results.delete(probe)
    with tempfile.TemporaryDirectory(prefix="dfmp2-batch-", dir=os.environ.get(VARIABLE)) as made:
        folder = Path(made)
        Store(client, f"{place}/{INPUTS}").get(archive_name, folder / "inputs.tar")
        try:
            with tarfile.open(folder / "inputs.tar") as archive:
                for entry in archive:  # the filters of `tarfile` are missing before Python 3.11.4
                    if not entry.isreg() or not (folder / entry.name).resolve().is_relative_to(folder.resolve()):
                        raise tarfile.TarError(f"{entry.name} leads out of it")
                    archive.extract(entry, folder)
        except tarfile.TarError as error:
            raise InputError(f"{source} is no archive of inputs ({error}): submit the batch again") from error
        batch = read_manifest(folder / MANIFEST, output=folder / RESULTS)
        yield batch, S3Copies(results, batch.output, Store(client, programs) if programs else None, every)


class S3Copies:
    """Copies in `results` of the files of some items, which are in `folder`, every so many seconds.

    Compiled programs are fetched from `programs`, and copied there; None where they are on a file system or not needed.
    Lock files stay on the host, so two jobs that compute one item do it twice, with the same result.
    """

    def __init__(self, results: Store, folder: Path, programs: Store | None, every: float) -> None:
        self._results, self._folder, self._every = results, folder, every
        self._programs, self._cache = programs, accelerator().cache_folder()
        self._names: Sequence[str] = ()
        self._known: dict[str, tuple[int, int]] = {}  # what S3 holds: the file's stamp when it was copied
        self._known_programs: set[str] = set()
        self._due = time.monotonic() + every
        if programs is not None:
            self._known_programs = set(filter(PROGRAM.fullmatch, programs.names()))
            for name in self._known_programs - self._compiled():
                programs.get(name, self._cache / name)

    def fetch(self, names: Sequence[str]) -> int:
        """Get what S3 has of these items; how many files that were."""
        self._names, there = names, self._results.names()
        for file in (f"{name}{suffix}" for name in names for suffix in (*PASSING, ".h5")):
            if file in there:
                self._results.get(file, self._folder / file)
                self._known[file] = stamp(self._folder / file)
        return len(self._known)

    def save(self, *, now: bool) -> None:
        """Bring S3 to what the host holds, at once or when it is due."""
        if not now and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        for name in self._names:
            seen = {f"{name}{suffix}": stamp(self._folder / f"{name}{suffix}") for suffix in (*PASSING, *KEPT)}
            for file in reversed(seen):  # what was looked at last is copied first
                if seen[file] == self._known.get(file, NO_FILE):
                    continue
                if seen[file] != NO_FILE:
                    with suppress(FileNotFoundError):  # it went since; the next look will see that
                        self._results.put(file, self._folder / file)
                        self._known[file] = seen[file]
                elif not file.endswith(KEPT):
                    self._results.delete(file)
                    del self._known[file]
        if self._programs is not None:
            for name in sorted(self._compiled() - self._known_programs, reverse=True):  # .neff before its .json
                self._programs.put(name, self._cache / name)
                self._known_programs.add(name)

    def _compiled(self) -> set[str]:
        """Programs on this host."""
        found = (path.relative_to(self._cache).as_posix() for path in self._cache.glob("*/*"))
        return set(filter(PROGRAM.fullmatch, found))
