"""A batch on AWS: jobs of AWS Batch, with a warm-up before them to compile kernels, and its files in S3.

    s3://BUCKET/PREFIX/inputs/SHA256.zip    manifest, molecules, orbitals to start from; never changes
                       results/NAME.h5      and errors and checkpoints, as in the output folder of a batch
                       programs/...         compiled ones

A container runs `dfmp2 batch run` on copies of these. Any host can go on with any shard. An object appears whole or not
at all, and the newest version is seen at once (S3 documentation, "data consistency model"). boto3 is imported here
only; credentials and region come from where it looks for them.
Sources: AWS Batch API reference, RegisterJobDefinition, SubmitJob and EvaluateOnExit; user guide, "Automated job
retries" and "Compute resource memory management"; AWS Neuron documentation, "Amazon EC2 Trn1 architecture".
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from dfmp2.backends.registry import accelerator
from dfmp2.errors import BackendUnavailable, InputError, Interrupted, ResourceError
from dfmp2.execution.items import stamp
from dfmp2.execution.manifest import COMPILED, OF_THE_BATCH, Batch, read_manifest
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
OF_AN_ITEM = (".h5", f".h5{SUFFIX}", ".error.json")
# Whole entries of the cache of compiled programs; none is ever changed, so hosts may copy at any time.
PROGRAM = re.compile(r"[0-9a-f]{8,64}/[A-Za-z0-9.+_-]+\.(neff|json)")
RESULT = re.compile(r"[^./][^/]*\.(h5|h5\..*|error\.json)")

# What calls for which error and advice: codes in the answers of Batch and S3 (AWS documentation, "Common error types"
# and "S3 error responses") and names of boto3's errors. Anything else may pass.
ANSWERS = (
    ("NoRegionError", BackendUnavailable, "pass --region, set AWS_REGION, or write it into ~/.aws/config"),
    (
        r"\w*(Token|Credential|AccessKeyId|Signature|Profile|AuthFailure|UnrecognizedClient)\w*",
        BackendUnavailable,
        "run `aws configure`, set AWS_PROFILE, or give the instance or the job a role",
    ),
    (r"403|AllAccess\w*|AccessDenied\w*|Unauth\w*", ResourceError, "allow it in the policy of the user or role"),
    (
        r"301|40[04]|ClientException|InvalidBucketName|NoSuch\w*|NotFound|Param\w*|Permanent\w*|Validation\w*",
        InputError,
        "check names, region and values",
    ),
)


class Instance(NamedTuple):
    """Of a type of instance: virtual CPUs, MiB that a job may ask for, and chips (/dev/neuron0 and so on)."""

    vcpus: int
    memory: int  # less than the instance has: the system and the agent of AWS Batch keep some
    chips: int


INSTANCES = {  # a job asks for all virtual CPUs of its instance, since AWS Batch does not count Neuron devices
    "trn1.2xlarge": Instance(8, 30_000, 1),  # 32 GiB
    **dict.fromkeys(("trn1.32xlarge", "trn1n.32xlarge"), Instance(128, 490_000, 16)),  # 512 GiB
}
Requests = dict[str, dict[str, Any]]  # by the names of files for `aws batch ... --cli-input-json`


# --- submission -------------------------------------------------------------------------------------------------------


def make_requests(batch: Batch, given: Mapping[str, Any]) -> tuple[Requests, dict[str, bytes]]:
    """What AWS Batch is asked, and the inputs by their place in S3.

    `given` are the options of `dfmp2 batch submit --aws-batch`; InputError where they do not fit together.
    """
    for option, what in (("queue", "job queue"), ("image", "container image"), ("s3", "place, s3://BUCKET/PREFIX")):
        if not given[option]:
            raise InputError(f"--{option} is missing: expected the name of a {what}")
    place, lane = given["s3"].rstrip("/"), batch.asks_for(*COMPILED)
    if re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/[^/\s]+)*", place) is None:
        raise InputError(f"--s3 {given['s3']!r}: expected s3://BUCKET/PREFIX with the lower-case name of a bucket")
    if given["output"] is not None:
        raise InputError(f"--output {given['output']}: results go to {place}/results: leave it out")
    if given["shards"] > MOST_SHARDS:
        raise InputError(f"--shards {given['shards']}: an array of AWS Batch has at most {MOST_SHARDS} jobs")
    definition, memory = _definition(given, given["instance"] or ("trn1.2xlarge" if lane else "cpu"), lane)
    content = pack(batch)
    archive = f"{place}/{INPUTS}/{hashlib.sha256(content).hexdigest()[:32]}.zip"
    variables = {} if lane is None else {"NEURON_COMPILE_CACHE_URL": f"{place}/{PROGRAMS}/xla"}
    name = f"dfmp2-{re.sub(r'[^A-Za-z0-9_-]+', '-', Path(batch.source).stem)[:80].strip('-') or 'batch'}"

    def job(name: str, *more: str) -> dict[str, Any]:
        overrides = {"command": ["dfmp2", "batch", "run", archive, *more], "environment": _pairs(variables)}
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
    return requests, {archive: content}


def environment(instance: Instance | None) -> dict[str, str]:
    """Variables of every container: where its tools, its scratch and its compiled programs are.

    The runtime's list of cores is left out: dfmp2 gives each worker its own.
    """
    own = {
        **{"PATH": f"{PREFIX}/bin:{SYSTEM_PATH}", "HOME": WORK, "TMPDIR": WORK, "DFMP2_SCRATCH": WORK},
        **{"XDG_CACHE_HOME": f"{WORK}/.cache", "DFMP2_NEFF_CACHE": f"{WORK}/{PROGRAMS}"},
    }
    return own if instance is None else {**own, **accelerator().container_variables("trn1", own, PREFIX)}


def _definition(given: Mapping[str, Any], kind: str, lane: str | None) -> tuple[dict[str, Any], int]:
    """The request RegisterJobDefinition, and the memory that its workers share, MiB.

    The definition is named after what is in it (SHA-256), so that what belongs to one batch comes with the job.
    """
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
            "volumes": [{"name": "work", "host": {}}],  # which the host makes
            "mountPoints": [{"sourceVolume": "work", "containerPath": WORK}],
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


def submit(requests: Requests, inputs: Mapping[str, bytes], region: str | None, profile: str | None) -> dict[str, str]:
    """Send a batch to its queue; the ARN of the job definition and the numbers of the jobs."""
    client, s3 = connect("batch", region, profile), connect("s3", region, profile)
    queue, definition = requests["array"]["jobQueue"], requests["job-definition"]
    with asking(f"looking at the job queue {queue}"):
        found = client.describe_job_queues(jobQueues=[queue])["jobQueues"]
    if not found or found[0].get("state") == "DISABLED":  # before anything is sent
        raise InputError(f"--queue {queue} is no job queue in {client.meta.region_name}, or DISABLED: see --region")
    for place, content in inputs.items():
        folder, _, name = place.rpartition("/")
        Copies(s3, folder, Path(), RESULT, 0.0).put(name, content)
    with asking(f"registering the job definition {definition['jobDefinitionName']}"):
        done = {"job": client.register_job_definition(**definition)["jobDefinitionArn"], "warm_up": ""}
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
        found = ((kind, advice) for codes, kind, advice in ANSWERS if re.fullmatch(codes, code))
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


def pack(batch: Batch) -> bytes:
    """The inputs of a batch as an archive: the same inputs, the same bytes. InputError for an unreadable file.

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
    with zipfile.ZipFile(stream, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name])  # of no time
    return stream.getvalue()


# --- in a container ---------------------------------------------------------------------------------------------------


@contextmanager
def unpacked(source: str, every: float) -> Iterator[tuple[Batch, Copies]]:
    """The batch of s3://BUCKET/PREFIX/inputs/NAME.zip in a folder that goes with the block, and copies of its files."""
    client, (place, _, archive_name) = connect("s3"), source.rpartition(f"/{INPUTS}/")
    with tempfile.TemporaryDirectory(prefix="dfmp2-batch-", dir=os.environ.get(VARIABLE)) as made:
        folder = Path(made)
        results = Copies(client, f"{place}/{RESULTS}", folder / RESULTS, RESULT, every)
        probe = f".{os.environ.get('AWS_BATCH_JOB_ID', '')}"
        results.put(probe, b"")  # here a role that may not write is found, not after hours
        results.delete(probe)
        Copies(client, f"{place}/{INPUTS}", folder, RESULT, every).fetch([archive_name])
        try:
            with zipfile.ZipFile(folder / archive_name) as archive:
                archive.extractall(folder)  # plain files alone; names that lead out lose what does
        except zipfile.BadZipFile as error:
            raise InputError(f"{source} is no archive of inputs ({error}): submit the batch again") from error
        batch = read_manifest(folder / MANIFEST, output=folder / RESULTS)
        if batch.asks_for(*COMPILED):
            programs = Copies(client, f"{place}/{PROGRAMS}", accelerator().cache_folder(), PROGRAM, every)
            programs.fetch(filter(PROGRAM.fullmatch, programs.names()))
            results.programs = programs
        yield batch, results


class Copies:
    """Copies below s3://BUCKET/PREFIX of the files of a folder whose names match `kind`, every so many seconds.

    Lock files stay on the host, so two jobs that compute one item do it twice, with the same result. `programs` are
    copied with these, None where none are needed.
    """

    programs: Copies | None = None

    def __init__(self, client: Any, place: str, folder: Path, kind: re.Pattern[str], every: float) -> None:
        self._client, self._place, self._folder, self._kind = client, place, folder, kind
        self._bucket, _, self._prefix = f"{place}/".removeprefix("s3://").partition("/")
        self._every, self._due, self._known = every, time.monotonic() + every, dict[str, tuple[int, int]]()

    def names(self) -> set[str]:
        """Of all objects."""
        with asking(f"listing {self._place}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            return {one["Key"].removeprefix(self._prefix) for page in pages for one in page.get("Contents", ())}

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

    def fetch(self, names: Iterable[str]) -> int:
        """Get what the folder lacks of these objects, each all or nothing; how many were asked for."""
        before = len(self._known)
        for name in names:
            path = self._folder / name
            if not path.exists():
                with asking(f"copying {self._place}/{name} to {path}"):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._client.download_file(self._bucket, self._prefix + name, str(path))
            self._known[name] = stamp(path)
        return len(self._known) - before

    def fetch_items(self, names: Sequence[str]) -> int:
        """Get what there is of these items; how many files that were."""
        there = self.names()
        return self.fetch(file for name in names for end in OF_AN_ITEM if (file := f"{name}{end}") in there)

    def save(self, *, now: bool) -> None:
        """Bring S3 to what the host holds, at once or when it is due."""
        if self.programs is not None:
            self.programs.save(now=now)
        if not now and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        # A result is there before its checkpoint or error goes: what is gone is looked for first, and goes last.
        gone = self._known.keys() - set(self._files())
        for name in self._files():
            seen = stamp(self._folder / name)
            if seen != self._known.get(name):
                with suppress(FileNotFoundError):  # it went since; the next look will see that
                    self.put(name, self._folder / name)
                    self._known[name] = seen
        for name in gone:
            self.delete(name)
            del self._known[name]

    def _files(self) -> list[str]:
        """Names of the files there are; a program comes before its record, NAME.neff before .json."""
        paths = [path for path in sorted(self._folder.rglob("*"), reverse=True) if path.is_file()]
        return [name for path in paths if self._kind.fullmatch(name := path.relative_to(self._folder).as_posix())]
