"""Files of a batch in S3, and `dfmp2 batch run s3://...`, which a container of AWS Batch runs.

    s3://BUCKET/PREFIX/inputs/SHA256.tar    manifest and molecules; never changes
                       results/NAME.h5      and errors and checkpoints, as in the output folder of a batch
                       shards/I-of-N.json   when which attempt began, and how it ended
                       programs/...         compiled ones

Any host can go on with any shard, since all that is on a host is a copy. An object appears whole or not at all, and the
newest version is seen at once (S3 documentation, "data consistency model"). boto3 is imported here only; credentials
and region come from where boto3 looks for them: environment, ~/.aws, the role of an instance or a job.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dfmp2.backends.registry import accelerator
from dfmp2.errors import BackendUnavailable, Dfmp2Error, InputError, Interrupted, ResourceError
from dfmp2.execution.arrays import compiled_backend, warm_ups
from dfmp2.execution.manifest import Batch, read_manifest
from dfmp2.execution.package import OUTPUT, unpack
from dfmp2.execution.state import stamp
from dfmp2.execution.worker import DAMAGED
from dfmp2.host.scratch import VARIABLE
from dfmp2.output.checkpoint import SUFFIX

INPUTS, RESULTS, SHARDS, PROGRAMS = "inputs", "results", "shards", "programs"  # below the location of a batch
LONGEST_KEY = 900  # bytes of a prefix; S3 allows 1024 for a whole key
RETRIES = 6  # of one request, by botocore, with growing pauses
JOB = {"job": "AWS_BATCH_JOB_ID", "attempt": "AWS_BATCH_JOB_ATTEMPT", "queue": "AWS_BATCH_JQ_NAME"}

# Files of an item. The result comes first: it is copied before a checkpoint or an error goes.
RESULT, KEPT = ".h5", (".h5", f".h5{DAMAGED}")  # KEPT stay in S3 when the host has none
FETCHED = (RESULT, f".h5{SUFFIX}", ".error.json")
NOTHING = (0, 0)
# Whole entries of the cache of compiled programs; none is ever changed, so hosts may copy at any time.
PROGRAM = re.compile(r"[0-9a-f]{8,64}/[A-Za-z0-9.+_-]+\.(neff|json)")

INSTALL = "pip install 'dfmp2[aws]'"
CREDENTIALS = "run `aws configure`, set AWS_PROFILE, or give the instance or the job a role"
REGION = "pass --region, set AWS_REGION, or write it into ~/.aws/config"
# Codes in the answers of Batch and S3 (AWS documentation, "Common error types" and "S3 error responses").
NOT_KNOWN = {
    *("AuthFailure", "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidClientTokenId"),
    *("SignatureDoesNotMatch", "UnrecognizedClientException"),
}
NOT_ALLOWED = {"403", "AccessDenied", "AccessDeniedException", "AllAccessDisabled", "UnauthorizedOperation"}
NOT_THERE = {"404", "NoSuchBucket", "NoSuchKey", "NotFound"}
WRONG = {"301", "400", "ClientException", "InvalidBucketName", "PermanentRedirect", "ValidationException"}


# --- AWS --------------------------------------------------------------------------------------------------------------


def connect(service: str, region: str | None = None, profile: str | None = None) -> Any:
    """A client of "batch" or "s3".

    Parameters
    ----------
    region, profile : None for what the environment or ~/.aws says

    Raises
    ------
    BackendUnavailable : boto3, credentials or region are missing
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise BackendUnavailable(f"AWS needs the boto3 package ({error}): {INSTALL}") from error
    with asking(f"connecting to {service}"):
        session = boto3.Session(region_name=region, profile_name=profile)
        client = session.client(service, config=Config(retries={"mode": "standard", "max_attempts": RETRIES}))
        if session.get_credentials() is None:
            raise BackendUnavailable(f"there are no AWS credentials: {CREDENTIALS}")
    return client


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Translate what goes wrong in the block into an error that says what to do.

    Raises
    ------
    BackendUnavailable : no credentials that AWS knows, or no region
    InputError : something named does not exist, or is not as AWS wants it
    ResourceError : it is not allowed, or AWS cannot be reached
    """
    from boto3.exceptions import Boto3Error
    from botocore import exceptions

    missing = (
        exceptions.CredentialRetrievalError,
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.ProfileNotFound,
        exceptions.SSOError,
        exceptions.TokenRetrievalError,
    )
    try:
        yield
    except exceptions.ClientError as error:
        raise _refused(what, error.response.get("Error", {})) from error
    except exceptions.NoRegionError as error:
        raise BackendUnavailable(f"{what}: no AWS region is known: {REGION}") from error
    except missing as error:
        raise BackendUnavailable(f"{what}: no AWS credentials ({error}): {CREDENTIALS}") from error
    except exceptions.ParamValidationError as error:
        raise InputError(f"{what}: AWS does not take this: {_one_line(error)}") from error
    except (exceptions.BotoCoreError, Boto3Error) as error:
        raise ResourceError(f"{what}: AWS did not answer as expected ({_one_line(error)}): try again later") from error


def _refused(what: str, answer: Any) -> Dfmp2Error:
    """The error for an answer other than success."""
    code, message = str(answer.get("Code", "")), _one_line(answer.get("Message", ""))
    if code in NOT_KNOWN:
        return BackendUnavailable(f"{what}: AWS does not accept the credentials ({code}: {message}): {CREDENTIALS}")
    if code in NOT_ALLOWED:
        return ResourceError(
            f"{what}: these credentials may not do that ({code}: {message}): allow it in the policy of the user or role"
        )
    if code in NOT_THERE:
        return InputError(f"{what}: there is no such thing ({code}: {message}): check the name and the region")
    if code in WRONG:
        return InputError(f"{what}: AWS refuses ({code}: {message}): check names, region and values")
    return ResourceError(f"{what}: AWS answered {code}: {message}: try again later")


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


# --- S3 ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Location:
    """A bucket and a key or prefix in it, without a slash at either end."""

    bucket: str
    key: str

    def __truediv__(self, name: str) -> Location:
        return Location(self.bucket, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def read_location(text: str, option: str) -> Location:
    """The location that an option names.

    Raises
    ------
    InputError : it is none
    """
    match = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", text)
    key = "" if match is None else (match[2] or "").strip("/")
    bad = any(step in ("", ".", "..") or not step.isprintable() for step in (key.split("/") if key else []))
    if match is None or bad or len(key.encode()) > LONGEST_KEY:
        raise InputError(f"{option} {text!r}: expected s3://BUCKET/PREFIX with the lower-case name of a bucket")
    return Location(match[1], key)


class Store:
    """What is done with files in S3; each method raises a `Dfmp2Error` when it cannot be done.

    Parameters
    ----------
    client : of S3, from `connect`
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def names(self, prefix: Location) -> list[str]:
        """Keys that begin with that of `prefix`, without it."""
        with asking(f"listing {prefix}*"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=prefix.bucket, Prefix=prefix.key)
            return [entry["Key"][len(prefix.key) :] for page in pages for entry in page.get("Contents", ())]

    def get(self, place: Location, path: Path) -> None:
        """Put an object into a file, all or nothing."""
        part = path.with_name(f".{path.name}.s3-{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "wb") as stream, asking(f"reading {place}"):
                self._client.download_fileobj(place.bucket, place.key, stream)
            os.replace(part, path)
        except OSError as error:
            raise ResourceError(f"cannot write {path}: {error.strerror}: free some space in {path.parent}") from error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def put(self, path: Path, place: Location) -> None:
        """Put a file into an object; of a file that is replaced meanwhile, one whole version.

        Raises
        ------
        FileNotFoundError : the file is gone
        """
        with open(path, "rb") as stream, asking(f"writing {place}"):
            self._client.upload_fileobj(stream, place.bucket, place.key)

    def write(self, content: bytes, place: Location) -> None:
        """Put bytes into an object."""
        with asking(f"writing {place}"):
            self._client.put_object(Bucket=place.bucket, Key=place.key, Body=content)

    def delete(self, place: Location) -> None:
        """Remove an object, if there is one."""
        with asking(f"removing {place}"):
            self._client.delete_object(Bucket=place.bucket, Key=place.key)


class S3Copies:
    """Copies of the files of some items, and of compiled programs (`dfmp2.execution.batch.Copies`).

    Lock files stay on the host, so two jobs that compute one item do it twice, with the same result.

    Parameters
    ----------
    place : of the batch in S3
    folder : output of the batch
    programs, cache : of compiled programs in S3 and here; None where nothing is copied
    every : s between two copies
    """

    def __init__(
        self, store: Store, place: Location, folder: Path, programs: Location | None, cache: Path, every: float
    ) -> None:
        self._store, self._place, self._folder = store, place / RESULTS, folder
        self._programs, self._cache, self._every = programs, cache, every
        self._names: Sequence[str] = ()
        self._known: dict[str, tuple[int, int]] = {}  # what S3 holds: the file's stamp when it was copied
        self._known_programs: set[str] = set()
        self._due = time.monotonic() + every
        self.exit_code = 0  # of the run

    def fetch(self, names: Sequence[str]) -> int:
        """Get what S3 has of these items; how many files that were."""
        self._names = names
        for name in names:
            there = set(self._store.names(self._place / f"{name}."))
            for file in (self._folder / f"{name}{suffix}" for suffix in FETCHED if suffix[1:] in there):
                self._store.get(self._place / file.name, file)
                self._known[file.name] = stamp(file)
        return len(self._known)

    def fetch_programs(self) -> None:
        """Get the compiled programs that are not here."""
        if self._programs is None:
            return
        prefix = Location(self._programs.bucket, f"{self._programs.key}/")
        self._known_programs = {name for name in self._store.names(prefix) if PROGRAM.fullmatch(name)}
        for name in _records_last(self._known_programs):
            if not (self._cache / name).exists():
                self._store.get(self._programs / name, self._cache / name)

    def save(self, *, now: bool) -> None:
        """Bring S3 to what the host holds, at once or when it is due."""
        if not now and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        for name in self._names:
            for suffix in (*KEPT, *FETCHED[1:]):
                self._bring(name, suffix)
        if self._programs is None:
            return
        here = {path.relative_to(self._cache).as_posix() for path in self._cache.glob("*/*")}
        for name in _records_last(name for name in here - self._known_programs if PROGRAM.fullmatch(name)):
            with suppress(FileNotFoundError):
                self._store.put(self._cache / name, self._programs / name)
                self._known_programs.add(name)

    def _bring(self, name: str, suffix: str) -> None:
        file = self._folder / f"{name}{suffix}"
        now, known = stamp(file), self._known.get(file.name, NOTHING)
        if now == known:
            return
        if now != NOTHING:
            with suppress(FileNotFoundError):  # it went since; the next look will see that
                self._store.put(file, self._place / file.name)
                self._known[file.name] = now
        elif suffix not in KEPT:
            self._bring(name, RESULT)  # it may have come since it was looked at, and is why this file is gone
            self._store.delete(self._place / file.name)
            del self._known[file.name]


def _records_last(names: Any) -> list[str]:
    """Programs before the records that describe them."""
    return sorted(names, key=lambda name: (name.endswith(".json"), name))


# --- what a container runs --------------------------------------------------------------------------------------------


@contextmanager
def unpacked(source: str, programs: str | None, label: str, every: float) -> Iterator[tuple[Batch, S3Copies]]:
    """A batch whose inputs are in S3, in a folder that goes with the block, and the copies of its files.

    Parameters
    ----------
    source : s3://BUCKET/PREFIX/inputs/NAME.tar
    programs : place of compiled programs in S3, None where they are on a file system or not needed
    label : of the note in S3, such as "0-of-8"
    every : s between two copies

    Raises
    ------
    Dfmp2Error : S3 cannot be read or written
    """
    inputs = read_location(source, "the inputs")
    prefix, _, name = inputs.key.rpartition("/")
    place = Location(inputs.bucket, prefix.removesuffix(INPUTS).rstrip("/"))
    shared = None if programs is None else read_location(programs, "--programs")
    store = Store(connect("s3"))
    note: dict[str, Any] = {"shard": label.replace("-of-", "/")}
    note |= {key: os.environ[variable] for key, variable in JOB.items() if variable in os.environ}

    def write_note(status: str, **more: Any) -> None:
        note.update(more, status=status, **{f"{status}_at": datetime.now(UTC).isoformat(timespec="seconds")})
        store.write(json.dumps(note, indent=1).encode() + b"\n", place / SHARDS / f"{label}.json")

    write_note("running")  # here a role that may not write is found, not after hours
    with tempfile.TemporaryDirectory(prefix="dfmp2-batch-", dir=os.environ.get(VARIABLE)) as given:
        archive = Path(given) / name
        store.get(inputs, archive)
        batch = read_manifest(unpack(archive, Path(given) / "batch"), output=Path(given) / OUTPUT)
        copies = S3Copies(store, place, batch.output, shared, accelerator().cache_folder(), every)
        copies.fetch_programs()
        try:
            yield batch, copies
        except Dfmp2Error as error:
            copies.exit_code = error.exit_code
            raise
        finally:
            write_note("ended", exit_code=copies.exit_code)


def compile_programs(batch: Batch, target: str, copies: S3Copies | None, stop_asked: Callable[[], int]) -> int:
    """Compile what a batch will launch, in a job of its own before the array: else every task compiles the same.

    Parameters
    ----------
    target : chip, such as "trn1"
    copies : of compiled programs, None where they are on a file system

    Returns
    -------
    The exit code of the first `dfmp2 kernels warmup` that fails, else 0

    Raises
    ------
    Interrupted : stopped; what was compiled is kept
    """
    lane = compiled_backend(batch)
    for arguments in () if lane is None else warm_ups(batch):
        command = ["dfmp2", "kernels", "warmup", "--lane", str(lane), "--target", target, *arguments]
        # A session of its own: a signal reaches it once, from here.
        child = subprocess.Popen([sys.executable, "-P", "-m", *command], start_new_session=True)
        while child.poll() is None and not stop_asked():
            with suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
        child.terminate()
        child.wait()
        if copies is not None:
            copies.save(now=True)
        if stop_asked():
            raise Interrupted("terminated (SIGTERM): the next attempt goes on")
        if child.returncode:
            return child.returncode
    return 0
