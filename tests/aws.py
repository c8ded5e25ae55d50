"""AWS as simulated by moto, in a server of this process that other processes can reach."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

BUCKET, PREFIX, REGION = "molecules", "waters", "us-east-1"
PLACE = f"s3://{BUCKET}/{PREFIX}"
ROLE = "arn:aws:iam::123456789012:role/batch"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
}


class Bucket:
    """A bucket in this process, with the methods of a client of S3 that `dfmp2.host.s3` calls."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.sent: list[str] = []  # keys, in the order in which they arrived
        self.removed: list[set[str]] = []  # what there was when an object was removed
        self.protected = False

    def get_paginator(self, _method: str) -> Bucket:
        return self

    def paginate(self, **asked: str) -> Iterator[dict[str, Any]]:
        """One page for each object."""
        assert asked["Bucket"] == BUCKET
        for key in sorted(self.objects):
            if key.startswith(asked["Prefix"]):
                yield {"Contents": [{"Key": key}]}
        yield {}

    def upload_fileobj(self, content: BinaryIO, bucket: str, key: str) -> None:
        assert bucket == BUCKET
        if self.protected:
            raise OSError("AccessDenied")
        self.objects[key] = content.read()
        self.sent.append(key)

    def download_file(self, bucket: str, key: str, path: str) -> None:
        assert bucket == BUCKET
        Path(path).write_bytes(self.objects[key])

    def delete_object(self, **asked: str) -> None:
        assert asked["Bucket"] == BUCKET
        self.removed.append(self.names())
        self.objects.pop(asked["Key"], None)

    def names(self) -> set[str]:
        """Names of all objects below the prefix."""
        return {key.removeprefix(f"{PREFIX}/") for key in self.objects}


@dataclass
class Cloud:
    """The server and its clients."""

    address: str
    s3: Any
    batch: Any
    variables: dict[str, str]

    def forget(self) -> None:
        """Remove everything but an empty bucket."""
        _post(f"{self.address}/moto-api/reset", b"")
        self.s3.create_bucket(Bucket=BUCKET)

    def queue(self) -> None:
        """The job queue "queue" with one compute environment."""
        import boto3

        network = boto3.client("ec2", endpoint_url=self.address)
        subnet = network.describe_subnets()["Subnets"][0]["SubnetId"]
        group = network.describe_security_groups()["SecurityGroups"][0]["GroupId"]
        rights = boto3.client("iam", endpoint_url=self.address)
        role = rights.create_role(RoleName="role", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        profile = rights.create_instance_profile(InstanceProfileName="profile")["InstanceProfile"][
            "Arn"
        ]
        resources = {
            "type": "EC2",
            "maxvCpus": 64,
            "subnets": [subnet],
            "securityGroupIds": [group],
        }
        resources |= {"minvCpus": 0, "instanceTypes": ["trn1.2xlarge"], "instanceRole": profile}
        environment = self.batch.create_compute_environment(
            computeEnvironmentName="machines",
            type="MANAGED",
            computeResources=resources,
            serviceRole=role,
        )["computeEnvironmentArn"]
        order = [{"order": 1, "computeEnvironment": environment}]
        self.batch.create_job_queue(
            jobQueueName="queue", state="ENABLED", priority=1, computeEnvironmentOrder=order
        )

    def names(self) -> set[str]:
        """Names of all objects below the prefix."""
        found = self.s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/").get("Contents", ())
        return {entry["Key"].removeprefix(f"{PREFIX}/") for entry in found}

    def body(self, key: str) -> bytes:
        """Contents of an object."""
        found = self.s3.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{key}")["Body"].read()
        assert isinstance(found, bytes)
        return found

    def container(self, job: str, work: Path, **variables: str) -> subprocess.Popen[str]:
        """Run the command of a job's container in a process with its variables."""
        told = self.batch.describe_jobs(jobs=[job])["jobs"][0]
        definition = self.batch.describe_job_definitions(jobDefinitions=[told["jobDefinition"]])[
            "jobDefinitions"
        ][0]
        assert not definition["containerProperties"].get("environment")
        environment = image("cpu") | {
            one["name"]: one["value"] for one in told["container"]["environment"]
        }
        # The folders of the image are those of this test, its tools those of this environment.
        mine = {name: value.replace("/work", str(work)) for name, value in environment.items()}
        mine["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        # Not what is installed
        mine |= {
            name: os.environ[name]
            for name in ("PYTHONPATH", "OPENBLAS_CORETYPE")
            if name in os.environ
        }
        mine |= {
            "AWS_BATCH_JOB_ID": job,
            "AWS_BATCH_JOB_ATTEMPT": "1",
            **self.variables,
            **variables,
        }
        work.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            told["container"]["command"],
            env=mine,
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def image(kind: str) -> dict[str, str]:
    """Variables of the container image "cpu" or "neuron"."""
    text = (Path(__file__).parent.parent / f"scripts/container/{kind}.Dockerfile").read_text()
    lines = [line.removeprefix("ENV ") for line in text.splitlines() if line.startswith("ENV ")]
    return dict(pair.split("=", 1) for line in lines for pair in line.split())


@contextmanager
def cloud() -> Iterator[Cloud]:
    """A server with an empty bucket; jobs are accepted but never run."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    before = dict(os.environ)
    os.environ.update(CREDENTIALS)
    try:
        _post(f"{address}/moto-api/config", b'{"batch": {"use_docker": false}}')
        clients = (boto3.client(name, endpoint_url=address) for name in ("s3", "batch"))
        variables = {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": address,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        found = Cloud(address, *clients, variables)
        found.forget()
        yield found
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.stop()


def _post(address: str, body: bytes) -> None:
    with urllib.request.urlopen(
        urllib.request.Request(address, data=body, method="POST"), timeout=10
    ) as answer:
        assert answer.status in (200, 201)
