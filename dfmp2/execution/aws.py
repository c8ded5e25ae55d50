"""A batch as jobs of AWS Batch: one job definition, one array job of shards, a warm-up before it to compile kernels.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dfmp2.backends.registry import accelerator
from dfmp2.errors import InputError, Interrupted
from dfmp2.execution.manifest import COMPILED, Batch
from dfmp2.execution.s3 import INPUTS, PROGRAMS, Store, asking, connect, pack
from dfmp2.host.devices import CORES_PER_CHIP

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
