"""Files of a batch in S3, and what a container of AWS Batch does with them before and after `dfmp2 batch run`.

    s3://BUCKET/PREFIX/inputs/SHA256.tar    manifest, molecules, orbitals to start from; never changes
                       results/NAME.h5      and errors and checkpoints, as in the output folder of a batch
                       programs/...         compiled ones

Any host can go on with any shard, since all that is on a host is a copy. An object appears whole or not at all, and the
newest version is seen at once (S3 documentation, "data consistency model"). boto3 is imported here only; credentials
and region come from where boto3 looks for them: environment, ~/.aws, the role of an instance or a job.
"""

from __future__ import annotations

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
from typing import Any

from dfmp2.backends.registry import accelerator
from dfmp2.errors import BackendUnavailable, InputError, ResourceError
from dfmp2.execution.manifest import OF_THE_BATCH, Batch, read_manifest
from dfmp2.execution.state import NO_FILE, stamp
from dfmp2.execution.worker import DAMAGED
from dfmp2.host.scratch import VARIABLE
from dfmp2.output.checkpoint import SUFFIX

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
