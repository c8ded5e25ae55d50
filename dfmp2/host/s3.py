"""Copies of files in S3, Amazon's object store, and the interface to AWS through boto3.

An object appears completely or not at all, and the newest version is visible at once (S3
documentation, "data consistency model"). Credentials and region come from boto3's usual places;
boto3 is imported only here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from dfmp2.errors import BackendUnavailable, Dfmp2Error, InputError, Interrupted, ResourceError
from dfmp2.host.files import stamp

# Our error for a response of AWS or an error of boto3, by its code or name; ResourceError for all
# others. Sources: AWS documentation, "Common error types" and "S3 error responses".
ERRORS: dict[type[Dfmp2Error], str] = {
    BackendUnavailable: r"\w*(NoRegion|Token|Credential|AccessKeyId|Signature|Profile|AuthFailure|Unrecognized)\w*",
    InputError: r"301|40[04]|ClientException|InvalidBucketName|NoSuch\w*|NotFound|Param\w*|Permanent\w*|Validation\w*",
}


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Translate errors in the block, as given in ERRORS."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, Boto3Error, ClientError, OSError) as error:
        answer = {}
        if isinstance(error, ClientError):
            answer = error.response.get("Error", {})
        code = str(answer.get("Code", type(error).__name__))
        message = " ".join(str(answer.get("Message", error)).split()).rstrip(".")
        kinds = (kind for kind, codes in ERRORS.items() if re.fullmatch(codes, code))
        kind = next(kinds, ResourceError)
        advice = ""
        if kind is BackendUnavailable:
            advice = ": see `aws configure`, --region and --profile"
        raise kind(f"{what}: {code}: {message}{advice}") from error


def connect(service: str, region: str | None = None, profile: str | None = None) -> Any:
    """A client of an AWS service such as "s3"; raises BackendUnavailable if boto3 or the region is
    missing."""
    try:
        import boto3
    except ImportError as error:
        raise BackendUnavailable(
            f"AWS needs the boto3 package ({error}): pip install 'dfmp2[aws]'"
        ) from error
    with asking(f"connecting to {service}"):
        return boto3.Session(region_name=region, profile_name=profile).client(service)


class Copies:
    """Copies below s3://BUCKET/PREFIX of the files of a folder whose names match `kind`.

    Lock files stay on the host, so two jobs may compute the same item twice, with the same result.
    """

    def __init__(self, client: Any, place: str, folder: Path, kind: re.Pattern[str]) -> None:
        self._client, self._place, self._folder, self._kind = client, place, folder, kind
        self._bucket, _, self._prefix = f"{place}/".removeprefix("s3://").partition("/")
        self._known, self._lock = dict[str, tuple[int, int]](), threading.Lock()

    def names(self) -> set[str]:
        """Names of all objects."""
        with asking(f"listing {self._place}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            return {
                one["Key"].removeprefix(self._prefix)
                for page in pages
                for one in page.get("Contents", ())
            }

    def put(self, name: str, content: BinaryIO) -> None:
        """Store the content in an object."""
        with asking(f"writing {self._place}/{name}"):
            self._client.upload_fileobj(content, self._bucket, self._prefix + name)

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        with asking(f"removing {self._place}/{name}"):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def fetch(self, names: Iterable[str]) -> int:
        """Fetch those of these objects that the folder lacks, each all or nothing; returns the
        number requested."""
        before = len(self._known)
        with self._lock:
            for name in names:
                path = self._folder / name
                if not path.exists():
                    with asking(f"copying {self._place}/{name} to {path}"):
                        path.parent.mkdir(parents=True, exist_ok=True)
                        self._client.download_file(self._bucket, self._prefix + name, str(path))
                self._known[name] = stamp(path)
            return len(self._known) - before

    def save(self) -> None:
        """Bring S3 up to date with the host."""
        with self._lock:
            # A result must arrive before its checkpoint or error is removed, so missing files are
            # listed first and deleted last.
            gone = self._known.keys() - set(self._files())
            for name in self._files():
                self._save_changed(name)
            for name in gone:
                self.delete(name)
                del self._known[name]

    def _save_changed(self, name: str) -> None:
        """Store a file, unless it is the one that was stored last."""
        path = self._folder / name
        seen = stamp(path)
        if seen == self._known.get(name):
            return
        # A file that has vanished meanwhile is handled by the next call.
        with suppress(FileNotFoundError), open(path, "rb") as stream:
            self.put(name, stream)
            self._known[name] = seen

    def _files(self) -> list[str]:
        """Names of the existing files; a program comes before its record, NAME.neff before
        .json."""
        paths = [path for path in sorted(self._folder.rglob("*"), reverse=True) if path.is_file()]
        return [
            name
            for path in paths
            if self._kind.fullmatch(name := path.relative_to(self._folder).as_posix())
        ]


@contextmanager
def kept(copies: Sequence[Copies], every: float, warn: Callable[[str], None]) -> Iterator[None]:
    """Save copies every `every` seconds during the block, and at its end.

    Raises
    ------
    Interrupted : the final copies failed; earlier failures only cause a warning and are retried
    """
    over = threading.Event()

    def save() -> None:
        for one in copies:
            one.save()

    def save_now_and_then() -> None:
        while not over.wait(every):
            try:
                save()
            except Dfmp2Error as error:
                warn(f"{error}; it is tried again")

    thread = threading.Thread(target=save_now_and_then, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        try:
            save()
        except Dfmp2Error as error:
            raise Interrupted(
                f"{error}; what did not arrive is computed again by the next attempt"
            ) from error
