"""AWS in this process: a bucket that records what happens to it, and all services as simulated by moto."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

BUCKET, PREFIX, REGION = "molecules", "waters", "us-east-1"
PLACE = f"s3://{BUCKET}/{PREFIX}"
ROLE = "arn:aws:iam::123456789012:role/batch"
VARIABLES = {
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


@contextmanager
def simulated() -> Iterator[Any]:
    """A client of AWS Batch with the queue "queue", beside an empty bucket; jobs are accepted but
    never run."""
    import boto3
    from moto import mock_aws

    with mock_aws(config={"batch": {"use_docker": False}}):
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        rights = boto3.client("iam")
        role = rights.create_role(RoleName="role", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        client = boto3.client("batch")
        environment = client.create_compute_environment(
            computeEnvironmentName="machines", type="UNMANAGED", serviceRole=role
        )["computeEnvironmentArn"]
        order = [{"order": 1, "computeEnvironment": environment}]
        client.create_job_queue(
            jobQueueName="queue", state="ENABLED", priority=1, computeEnvironmentOrder=order
        )
        yield client
