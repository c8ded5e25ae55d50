"""Jobs on their way to AWS Batch: the queue is asked first, and nothing is left behind where a job is refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dfmp2.errors import Dfmp2Error, InputError
from dfmp2.submission.aws.bucket import Store
from dfmp2.submission.aws.jobs import Jobs
from dfmp2.submission.aws.session import asking
from dfmp2.submission.aws.shard import INPUTS

ENDED = ("SUCCEEDED", "FAILED")


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


def submit(jobs: Jobs, batch: Any, store: Store | None) -> Submitted:
    """Send a batch to its queue.

    Parameters
    ----------
    batch : client of AWS Batch
    store : S3, None for a batch on a mounted file system

    Raises
    ------
    InputError : the queue is missing, closed, or has no instances that could run the jobs; or they are there already
    Dfmp2Error : AWS refuses, or does not answer; no job is left
    """
    require_queue(batch, jobs)
    if store is not None and jobs.package is not None and jobs.place is not None:
        _require_alone(batch, jobs.array)
        inputs = jobs.place / INPUTS / jobs.package.name
        if not store.exists(inputs):
            store.write(jobs.package.content, inputs)
    definition, registered = _register(batch, jobs.definition)
    first = "" if jobs.warm_up is None else _send(batch, jobs.warm_up, definition, "")
    try:
        return Submitted(definition, registered, first, _send(batch, jobs.array, definition, first))
    except Dfmp2Error:
        if first:
            with suppress(Dfmp2Error), asking("taking the warm-up back"):
                batch.terminate_job(jobId=first, reason="the array job after it was refused")
        raise


def require_queue(batch: Any, jobs: Jobs) -> None:
    """Refuse a queue that would refuse the jobs, or let them wait for ever.

    Raises
    ------
    InputError : saying why
    """
    name = jobs.array["jobQueue"]
    with asking(f"looking at the job queue {name}"):
        found = batch.describe_job_queues(jobQueues=[name])["jobQueues"]
    if not found:
        region = batch.meta.region_name
        raise InputError(f"--queue {name}: there is no such job queue in {region}: check the name, or pass --region")
    state = found[0].get("state", "ENABLED"), found[0].get("status", "VALID")
    if state != ("ENABLED", "VALID"):
        why = found[0].get("statusReason", "")
        raise InputError(f"--queue {name} is {' and '.join(state)} {why}: it must be ENABLED and VALID")
    places = [entry["computeEnvironment"] for entry in found[0].get("computeEnvironmentOrder", ())]
    with asking(f"looking at the compute environments of {name}"):
        environments = batch.describe_compute_environments(computeEnvironments=places)["computeEnvironments"]
    against = [_objection(environment, jobs.definition) for environment in environments]
    if all(against):
        raise InputError(f"--queue {name} cannot run these jobs: {'; '.join(against) or 'no compute environment'}")


def _objection(environment: dict[str, Any], definition: dict[str, Any]) -> str:
    """Why a compute environment cannot run a job, "" if it can."""
    name = environment["computeEnvironmentName"]
    state = environment.get("state", "ENABLED"), environment.get("status", "VALID")
    if state != ("ENABLED", "VALID"):
        return f"{name} is {' and '.join(state)}"
    resources = environment.get("computeResources") or {}
    if resources.get("type", "").startswith("FARGATE"):
        return f"{name} is of Fargate, which has no read-write volumes of a host and no Neuron devices"
    properties = definition["containerProperties"]
    vcpus = next(int(one["value"]) for one in properties["resourceRequirements"] if one["type"] == "VCPU")
    if resources.get("maxvCpus", vcpus) < vcpus:
        return f"{name} has at most {resources['maxvCpus']} virtual CPUs and a job needs {vcpus}"
    types = resources.get("instanceTypes", ())
    devices = len(properties["linuxParameters"].get("devices", ()))
    if devices and types and not any(_has_neuron(kind, devices) for kind in types):
        return f"{name} has {', '.join(types)} and a job needs {devices} Neuron devices of a trn1 instance"
    return ""


def _has_neuron(kind: str, devices: int) -> bool:
    """Whether instances of a type or family have as many Neuron devices."""
    family, _, size = kind.partition(".")
    if family not in ("trn1", "trn1n"):
        return False
    return not size or (devices == 1 and size == "2xlarge") or (devices > 1 and size == "32xlarge")


def _require_alone(batch: Any, array: dict[str, Any]) -> None:
    """Refuse a job that is there already: both would compute the same, since S3 has no locks."""
    with asking("looking for the same jobs"):
        found = batch.list_jobs(
            jobQueue=array["jobQueue"], filters=[{"name": "JOB_NAME", "values": [array["jobName"]]}]
        )["jobSummaryList"]
    active = [job for job in found if job["jobName"] == array["jobName"] and job.get("status") not in ENDED]
    if active:
        raise InputError(
            f"job {active[0]['jobId']} ({active[0].get('status')}) computes the same inputs into the same place: wait "
            f"for it, or end it with: aws batch terminate-job --job-id {active[0]['jobId']} --reason again"
        )


def _register(batch: Any, definition: dict[str, Any]) -> tuple[str, bool]:
    """ARN of the job definition, and whether it had to be registered: its name says what is in it."""
    name = definition["jobDefinitionName"]
    with asking(f"looking for the job definition {name}"):
        found: Sequence[Any] = batch.describe_job_definitions(jobDefinitionName=name, status="ACTIVE")["jobDefinitions"]
    if found:
        return str(max(found, key=lambda one: one["revision"])["jobDefinitionArn"]), False
    with asking(f"registering the job definition {name}"):
        return str(batch.register_job_definition(**definition)["jobDefinitionArn"]), True


def _send(batch: Any, job: dict[str, Any], definition: str, after: str) -> str:
    """Number of a job; it waits for `after`."""
    wait = {"dependsOn": [{"jobId": after}]} if after else {}
    with asking(f"submitting {job['jobName']}"):
        return str(batch.submit_job(**job, jobDefinition=definition, **wait)["jobId"])
