"""A batch on AWS: jobs of AWS Batch, preceded by a warm-up that compiles kernels, with files in S3.

    s3://BUCKET/PREFIX/inputs/SHA256.zip    manifest, molecules, orbitals to start from; never changes
                       results/NAME.h5      also errors and checkpoints, as in the output folder of a batch
                       programs/...         compiled programs

A container runs `dfmp2 batch run` on copies of these. Any host can continue any shard. Sources: AWS
Batch API reference, RegisterJobDefinition, SubmitJob and EvaluateOnExit; user guide, "Automated job
retries" and "Compute resource memory management"; AWS Neuron documentation, "Amazon EC2 Trn1
architecture".
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dfmp2.backends.registry import accelerator
from dfmp2.errors import InputError, Interrupted, Option
from dfmp2.execution.batch import shards, works
from dfmp2.execution.items import inputs_to_share
from dfmp2.execution.manifest import (
    COMPILED,
    Batch,
    manifest_lines,
    read_manifest,
)
from dfmp2.host.resources import CORES_PER_CHIP
from dfmp2.host.s3 import Copies, asking, connect, kept
from dfmp2.host.scratch import VARIABLE
from dfmp2.options import OF_THE_MACHINE
from dfmp2.options.basis_parts import parse_parts
from dfmp2.output.checkpoint import SUFFIX
from dfmp2.units import counted_text

# in the image, for scratch, caches and HOME; a separate volume, so that the root can be read-only
WORK = "/work"
MEBIBYTE = 2**20
# MiB per virtual CPU without a given instance, as on compute-optimised instances
MEMORY_PER_CPU = 1800
LARGEST_ARRAY = 10_000  # SubmitJob, arrayProperties: "between 2 and 10,000 jobs"
SHORTEST = 60  # s, JobTimeout: "The minimum value for the timeout is 60 seconds"
# CreateJobQueue, jobQueueName; SubmitJob, jobQueue: "either the name or the ARN"
QUEUE = re.compile(
    r"(arn:aws[a-z-]*:batch:[a-z0-9-]+:[0-9]{12}:job-queue/)?[A-Za-z0-9][A-Za-z0-9_-]{0,127}"
)
# ContainerProperties, image, which may also end in @DIGEST
IMAGE = re.compile(r"[A-Za-z0-9_:./#@-]{1,255}")
# IAM API reference, Role: path and name
ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/([!-~]{0,510}/)?[A-Za-z0-9_+=,.@-]{1,64}")
RESERVED = 512  # MiB of a container, or a tenth of it, for anything but workers
TAGS = {"propagateTags": True, "tags": {"application": "dfmp2"}}
# Name in a request, and option
ROLES = {"jobRoleArn": "job_role", "executionRoleArn": "execution_role"}
# Forms that AWS Batch accepts, by option
FORMS = {
    "queue": (
        QUEUE,
        "the name of a job queue, of up to 128 letters, digits, - and _, or its ARN, "
        "arn:aws:batch:REGION:ACCOUNT:job-queue/NAME with the account's 12 digits",
    ),
    "image": (IMAGE, "the URI of a container image, up to 255 letters, digits and _:./#@-"),
    **dict.fromkeys(
        ROLES.values(),
        (ROLE, "the ARN of a role, arn:aws:iam::ACCOUNT:role/NAME with the account's 12 digits"),
    ),
}
# In this order, at most five; the last one applies to everything else, which would otherwise be
# retried.
RETRY_RULES = (
    {
        "onExitCode": str(Interrupted.exit_code),
        "action": "RETRY",
    },  # stopped; continues from its checkpoint
    {
        "onStatusReason": "Host EC2*",
        "action": "RETRY",
    },  # the instance is gone, e.g. a reclaimed Spot instance
    {
        "onStatusReason": "Task failed to start*",
        "action": "RETRY",
    },  # image not pulled, or the host's disk is full
    {"onReason": "*", "action": "EXIT"},
)
INPUTS, RESULTS, PROGRAMS = "inputs", "results", "programs"  # relative to the location of a batch
MANIFEST = "dfmp2-batch.toml"  # among the inputs
FILES_OF_AN_ITEM = ("scf_from", "point_charges")  # options that name a file
OF_AN_ITEM = (".h5", f".h5{SUFFIX}", ".error.json")
# Complete entries of the cache of compiled programs; they never change, so hosts may copy at any
# time.
PROGRAM = re.compile(r"[0-9a-f]{8,64}/[A-Za-z0-9.+_-]+\.(neff|json)")
RESULT = re.compile(r"[^./][^/]*\.(h5|h5\..*|error\.json)")


class Instance(NamedTuple):
    """An instance type: virtual CPUs, MiB that a job may request, and chips (/dev/neuron0 and so
    on)."""

    vcpus: int
    memory: int  # less than the instance has, because the system and the AWS Batch agent need some
    chips: int


# a job requests all virtual CPUs of its instance, since AWS Batch does not count Neuron devices
INSTANCES = {
    "trn1.2xlarge": Instance(8, 30_000, 1),  # 32 GiB
    **dict.fromkeys(("trn1.32xlarge", "trn1n.32xlarge"), Instance(128, 490_000, 16)),  # 512 GiB
}
Requests = dict[str, dict[str, Any]]  # by file name for `aws batch ... --cli-input-json`


# --- submission -----------------------------------------------------------------------------------


def make_requests(batch: Batch, given: Mapping[str, Any]) -> tuple[Requests, dict[str, bytes]]:
    """The requests to AWS Batch, and the inputs by their location in S3.

    `given` are the options of `dfmp2 batch submit --aws-batch`; raises InputError if they are
    incompatible.
    """
    _require_submittable(given)
    place = given["s3"].rstrip("/")
    lane = batch.asks_for(*COMPILED)
    kind = given["instance"] or ("trn1.2xlarge" if lane else "cpu")
    container = _container(given, kind, lane)
    definition = _definition(given, kind, container)
    content = pack(batch, given["shards"], chained=given["scf_chain"])
    archive = f"{place}/{INPUTS}/{hashlib.sha256(content).hexdigest()[:32]}.zip"
    variables = []
    if lane is not None:
        variables.append({"name": "NEURON_COMPILE_CACHE_URL", "value": f"{place}/{PROGRAMS}/xla"})
    name = f"dfmp2-{re.sub(r'[^A-Za-z0-9_-]+', '-', Path(batch.source).stem)[:80]}"

    def job(name: str, *more: str) -> dict[str, Any]:
        overrides = {"command": ["dfmp2", "batch", "run", archive, *more], "environment": variables}
        common = {
            "jobQueue": given["queue"],
            "jobDefinition": definition["jobDefinitionName"],
            **TAGS,
        }
        return {"jobName": name, "containerOverrides": overrides, **common}

    share = {
        "workers": given["workers"],
        "threads": given["threads"],
        "memory": f"{container.memory - max(RESERVED, container.memory // 10)}MiB",
        "copy-every": f"{given['copy_every']:g}",
    }
    words = [str(word) for option, value in share.items() for word in (f"--{option}", value)]
    requests = {"job-definition": definition}
    if lane is not None and given["warm_up"]:
        requests["warm-up"] = job(f"{name}-warm-up", "--warm-up")
    requests["array"] = job(name, *words, *["--scf-chain"] * given["scf_chain"])
    if given["shards"] > 1:
        requests["array"]["arrayProperties"] = {"size": given["shards"]}
    return requests, {archive: content}


def _require_submittable(given: Mapping[str, Any]) -> None:
    """Raise for options that are missing, or that AWS Batch cannot take."""
    names = {"queue": "job queue", "image": "container image", "s3": "place, s3://BUCKET/PREFIX"}
    for option, what in names.items():
        if not given[option]:
            raise InputError(Option(option), f" is missing: expected the name of a {what}")
    for option, (form, expected) in FORMS.items():
        if given[option] and form.fullmatch(given[option]) is None:
            raise InputError(Option(option, given[option]), f": expected {expected}")
    if given["seconds"] is not None and given["seconds"] < SHORTEST:
        raise InputError(
            Option("time", given["seconds"]),
            f" s: AWS Batch takes no limit below {SHORTEST} s: allow more, or leave it out",
        )
    if given["shards"] > LARGEST_ARRAY:
        raise InputError(
            Option("shards", given["shards"]),
            f": an array of AWS Batch has at most {LARGEST_ARRAY} jobs: use at most that many "
            "shards, each of several items",
        )
    place = given["s3"].rstrip("/")
    if not _is_place(place):
        raise InputError(
            Option("s3", given["s3"]),
            ": expected s3://BUCKET/PREFIX; the name of a bucket has 3 to 63 lower-case letters, "
            "digits, - and .",
        )
    if given["output"] is not None:
        raise InputError(
            Option("output", given["output"]), f": results go to {place}/results: leave it out"
        )


def _is_place(text: str) -> bool:
    """Whether a text is s3://BUCKET/PREFIX with a bucket that may exist.

    Source: Amazon S3 user guide, "General purpose bucket naming rules".
    """
    place = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/[^/\s]+)*", text)
    if place is None or ".." in place[1]:
        return False
    return re.fullmatch(r"[0-9]+(\.[0-9]+){3}", place[1]) is None  # no IP address


def _container(given: Mapping[str, Any], kind: str, lane: str | None) -> Instance:
    """What a container requests of its instance: all of a given kind, but no more memory than
    wanted.

    Raises
    ------
    InputError : the workers need more than the instance has
    """
    workers = given["workers"]
    threads = given["threads"]
    cores = workers * threads
    instance = INSTANCES.get(kind, Instance(vcpus=cores, memory=MEMORY_PER_CPU * cores, chips=0))
    if cores > instance.vcpus:
        raise InputError(
            f"{counted_text(workers, 'worker')} with {counted_text(threads, 'thread')} each: "
            f"{cores} virtual CPUs are needed, and {kind} has {instance.vcpus}: use fewer"
        )
    if lane is not None and workers > CORES_PER_CHIP * instance.chips:
        raise InputError(
            Option("workers", workers),
            f": {kind} has {CORES_PER_CHIP * instance.chips} NeuronCores, one for each worker",
        )
    memory = instance.memory
    if given["memory"] is not None:
        memory = -(-given["memory"] // MEBIBYTE)
    limit = ""
    too_much = False
    if kind in INSTANCES:
        limit = f", and on {kind} at most {instance.memory} MiB"
        too_much = memory > instance.memory
    if memory < 2 * RESERVED or too_much:
        raise InputError(
            Option("memory"),
            f": {memory} MiB for a container, expected {2 * RESERVED} MiB or more{limit}",
        )
    return instance._replace(memory=memory)


def _definition(given: Mapping[str, Any], kind: str, container: Instance) -> dict[str, Any]:
    """The request RegisterJobDefinition, named after its content (SHA-256), so that everything that
    depends on a batch is passed with the job."""
    devices = [f"/dev/neuron{k}" for k in range(container.chips)]
    definition: dict[str, Any] = {
        "type": "container",
        "platformCapabilities": ["EC2"],
        "containerProperties": {
            "image": given["image"],
            "command": ["dfmp2", "doctor"],
            "resourceRequirements": [
                {"type": "VCPU", "value": str(container.vcpus)},
                {"type": "MEMORY", "value": str(container.memory)},
            ],
            # An init process that forwards SIGTERM and reaps ended workers.
            "linuxParameters": {
                "initProcessEnabled": True,
                "devices": [
                    {"hostPath": d, "containerPath": d, "permissions": ["READ", "WRITE"]}
                    for d in devices
                ],
            },
            "privileged": False,
            "readonlyRootFilesystem": True,
            "volumes": [{"name": "work", "host": {}}],  # created by the host
            "mountPoints": [{"sourceVolume": "work", "containerPath": WORK}],
            **{role: given[option] for role, option in ROLES.items() if given[option]},
        },
        "retryStrategy": {
            "attempts": given["attempts"],
            "evaluateOnExit": [dict(rule) for rule in RETRY_RULES],
        },
        **TAGS,
    }
    if given["seconds"] is not None:  # per attempt; one that reaches the limit is not repeated
        definition["timeout"] = {"attemptDurationSeconds": given["seconds"]}
    digest = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]
    name = f"dfmp2-{kind.replace('.', '-')}-{digest}"
    return {"jobDefinitionName": name, **definition}


def submit_to_aws(
    requests: Requests, inputs: Mapping[str, bytes], region: str | None, profile: str | None
) -> dict[str, str]:
    """Submit a batch to its queue; returns the ARN of the job definition and the job numbers."""
    client = connect("batch", region, profile)
    s3 = connect("s3", region, profile)
    definition = requests["job-definition"]
    for place, content in inputs.items():
        folder, _, name = place.rpartition("/")
        Copies(s3, folder, Path(), RESULT).put(name, io.BytesIO(content))
    with asking(f"registering the job definition {definition['jobDefinitionName']}"):
        done = {
            "job": client.register_job_definition(**definition)["jobDefinitionArn"],
            "warm_up": "",
        }
    for key, job in (("warm_up", requests.get("warm-up")), ("array", requests["array"])):
        if job is not None:
            if done["warm_up"]:
                wait = {"dependsOn": [{"jobId": done["warm_up"]}]}
            else:
                wait = {}
            with asking(f"submitting {job['jobName']}"):
                done[key] = client.submit_job(**job, **wait)["jobId"]
    return done


def pack(batch: Batch, count: int = 1, *, chained: bool = False) -> bytes:
    """The inputs of a batch as an archive; the same inputs give the same bytes.

    The manifest is rewritten so that all paths lead into the archive. If the batch has several
    shards, each also has a manifest of its own items, so that a container reads only those.

    Parameters
    ----------
    count : int
        Number of shards.
    chained : bool
        Whether items may start from each other's orbitals, which affects the distribution of items.

    Raises
    ------
    InputError : a file cannot be read
    """
    files, root = dict[str, bytes](), batch.root.resolve()

    def add(path: Path) -> str:
        name = f"files/{path.resolve().relative_to(root).as_posix()}"
        try:
            files[name] = files.get(name) or path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror})") from error
        return name

    shared = batch.items[0].given
    head = manifest_lines({name: shared[name] for name in ("memory", "threads") if name in shared})
    tables = []
    for item in batch.items:
        if parse_parts(item.options.basis).files:
            raise InputError(
                Option("basis"), " names a file, which AWS Batch does not take along: name a set"
            )
        values = {name: value for name, value in item.given.items() if name not in OF_THE_MACHINE}
        values |= {name: add(Path(values[name])) for name in FILES_OF_AN_ITEM if name in values}
        values |= {"name": item.name, "molecule": add(item.path)}
        tables.append("\n".join(["[[item]]", *manifest_lines(values)]))
    files[MANIFEST] = "\n".join([*head, *tables, ""]).encode()
    members = shards(works(inputs_to_share(batch)), count, chained=chained) if count > 1 else []
    for number, own in enumerate(members):
        if own:  # a manifest must have items; the whole one shows that this shard has none
            name = _shard_manifest((number, count), chained=chained)
            lines = [*head, *(tables[work.place] for work in own), ""]
            files[name] = "\n".join(lines).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name])  # without a time stamp
    return stream.getvalue()


def _shard_manifest(shard: tuple[int, int], *, chained: bool) -> str:
    """Name of the manifest of shard (I, N) in the archive."""
    kind = "chained" if chained else "alone"
    return f"shards/{kind}-{shard[0]}-of-{shard[1]}.toml"


# --- in a container -------------------------------------------------------------------------------


class Unpacked(NamedTuple):
    """The work of a container.

    `own` tells whether `batch` holds only the items of its shard; `results` copies result files
    from and to S3.
    """

    batch: Batch
    results: Copies
    own: bool


@contextmanager
def unpacked_archive(
    source: str,
    every: float,
    warn: Callable[[str], None],
    shard: tuple[int, int] | None = None,
    *,
    chained: bool = False,
) -> Iterator[Unpacked]:
    """The batch of s3://BUCKET/PREFIX/inputs/NAME.zip, in a folder that exists during the block.

    Changes are copied to S3 every `every` seconds and at the end.

    Parameters
    ----------
    shard : (int, int), optional
        Shard I of N. If the archive has a manifest for it, only that and the files it names are
        read.
    chained : bool
        As in `pack`.

    Raises
    ------
    InputError : not an archive of inputs, or one without a manifest
    Interrupted : the results cannot be copied at the end
    """
    client = connect("s3")
    place, _, archive_name = source.rpartition(f"/{INPUTS}/")
    with tempfile.TemporaryDirectory(prefix="dfmp2-batch-", dir=os.environ.get(VARIABLE)) as made:
        folder = Path(made)
        results = Copies(client, f"{place}/{RESULTS}", folder / RESULTS, RESULT)
        copies = [results]
        # Detect missing write permission now rather than after hours.
        results.put(".writable", io.BytesIO())
        results.delete(".writable")
        Copies(client, f"{place}/{INPUTS}", folder, RESULT).fetch([archive_name])
        try:
            with zipfile.ZipFile(folder / archive_name) as archive:
                batch, own = _extract(archive, folder, shard, chained=chained)
        except zipfile.BadZipFile as error:
            raise InputError(
                f"{source} is no archive of inputs ({error}): submit the batch again"
            ) from error
        if batch.asks_for(*COMPILED):
            copies.insert(
                0, Copies(client, f"{place}/{PROGRAMS}", accelerator().cache_folder(), PROGRAM)
            )
            copies[0].fetch(filter(PROGRAM.fullmatch, copies[0].names()))
        with kept(copies, every, warn):
            yield Unpacked(batch, results, own)


def _extract(
    archive: zipfile.ZipFile, folder: Path, shard: tuple[int, int] | None, *, chained: bool
) -> tuple[Batch, bool]:
    """The unpacked batch of the archive, and whether it is only that of the shard.

    Members are plain files; `zipfile` strips anything that would lead out of the folder.
    """
    output = folder / RESULTS
    name = ""
    if shard is not None:
        name = _shard_manifest(shard, chained=chained)
    members = set(archive.namelist())
    if name not in members:
        archive.extractall(folder)
        return read_manifest(folder / MANIFEST, output=output), False
    archive.extract(name, folder)
    batch = read_manifest(folder / name, root=folder, output=output)
    paths = {item.path for item in batch.items}
    for item in batch.items:
        paths |= {Path(item.given[key]) for key in FILES_OF_AN_ITEM if key in item.given}
    names = {path.relative_to(folder.resolve()).as_posix() for path in paths}
    for member in sorted(names & members):
        archive.extract(member, folder)
    return batch, True


def fetch_items(results: Copies, names: Sequence[str]) -> int:
    """Fetch the existing files of these items; returns their number."""
    there = results.names()
    return results.fetch(
        file for name in names for end in OF_AN_ITEM if (file := f"{name}{end}") in there
    )
