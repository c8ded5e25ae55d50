"""The job definition: what a container of any batch is given, and when AWS Batch tries again.

It is named after what is in it (SHA-256), so that one that is registered already can be used again. What belongs to one
batch (command, locations) comes with the job.
Sources: AWS Batch API reference, RegisterJobDefinition and EvaluateOnExit; user guide, "Automated job retries".
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfmp2.backends.nki.environment import LIBRARIES, Host, settings
from dfmp2.errors import Interrupted
from dfmp2.submission.aws.instances import Instance
from dfmp2.submission.aws.mounts import WORK, Mount

PREFIX = "/opt/dfmp2"  # of the image: the virtual environment (scripts/container/install.sh)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = f"{WORK}/programs"  # compiled ones, where no other folder is named
MOST_ATTEMPTS = 10
LEAST_SECONDS = 60
# In this order, five at most; the last one counts for all else, which would be tried again without it.
RETRY_RULES = (
    {"onExitCode": str(Interrupted.exit_code), "action": "RETRY"},  # stopped, and goes on from its checkpoint
    {"onStatusReason": "Host EC2*", "action": "RETRY"},  # the instance is gone, as when a Spot instance is taken back
    {"onStatusReason": "Task failed to start*", "action": "RETRY"},  # image not pulled, disk of the host full
    {"onReason": "*", "action": "EXIT"},
)


@dataclass(frozen=True, slots=True)
class Container:
    """What a container is given.

    Attributes
    ----------
    image : of a registry
    vcpus, memory : of a job, memory in MiB
    instance : whose Neuron devices it gets, None for none
    mounts : folders that outlive it
    attempts : at most, the first one included
    seconds : limit on one attempt, None for none; an attempt that reaches it is not repeated
    job_role, execution_role : ARNs of what its processes may do, and what the host may do to start it; "" for none
    """

    image: str
    vcpus: int
    memory: int
    instance: Instance | None
    mounts: tuple[Mount, ...]
    attempts: int = MOST_ATTEMPTS
    seconds: int | None = None
    job_role: str = ""
    execution_role: str = ""


def job_definition(container: Container) -> dict[str, Any]:
    """The request RegisterJobDefinition."""
    names = ["work" if mount.target == WORK else f"mount{n}" for n, mount in enumerate(container.mounts)]
    mounts = list(zip(names, container.mounts, strict=True))
    properties: dict[str, Any] = {
        "image": container.image,
        "command": ["dfmp2", "doctor"],
        "resourceRequirements": [
            {"type": "VCPU", "value": str(container.vcpus)},
            {"type": "MEMORY", "value": str(container.memory)},
        ],
        "environment": pairs(environment(container.instance)),
        "linuxParameters": {"initProcessEnabled": True},  # so that SIGTERM arrives and dead workers are buried
        "privileged": False,
        "readonlyRootFilesystem": True,
        "volumes": [mount.volume(name) for name, mount in mounts],
        "mountPoints": [{"containerPath": mount.target, "sourceVolume": name} for name, mount in mounts],
    }
    if container.instance is not None:
        properties["linuxParameters"]["devices"] = [
            {"hostPath": device, "containerPath": device, "permissions": ["READ", "WRITE"]}
            for device in container.instance.devices
        ]
    for key, role in (("jobRoleArn", container.job_role), ("executionRoleArn", container.execution_role)):
        if role:
            properties[key] = role
    definition: dict[str, Any] = {
        "type": "container",
        "platformCapabilities": ["EC2"],
        "containerProperties": properties,
        "retryStrategy": {"attempts": container.attempts, "evaluateOnExit": [dict(rule) for rule in RETRY_RULES]},
        "propagateTags": True,
        "tags": {"application": "dfmp2"},
    }
    if container.seconds is not None:
        definition["timeout"] = {"attemptDurationSeconds": container.seconds}
    digest = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]
    kind = "cpu" if container.instance is None else container.instance.name.replace(".", "-")
    return {"jobDefinitionName": f"dfmp2-{kind}-{digest}", **definition}


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
        "DFMP2_NEFF_CACHE": PROGRAMS,
    }
    if instance is None:
        return own
    planted = Host({**own, "DFMP2_NKI_PYTHON": f"{PREFIX}/bin/python"}, Path("/"), Path(PREFIX))
    neuron = settings("nki", instance.target, planted)
    del neuron["NEURON_RT_VISIBLE_CORES"]
    return {**own, **neuron, "LD_LIBRARY_PATH": LIBRARIES}


def pairs(variables: dict[str, str]) -> list[dict[str, str]]:
    """Variables as AWS Batch wants them."""
    return [{"name": name, "value": value} for name, value in variables.items()]
