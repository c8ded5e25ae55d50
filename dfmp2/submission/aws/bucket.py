"""Files in S3: a location such as s3://bucket/prefix, and the few things done with it.

An object appears whole or not at all, and the newest version is seen at once (S3 documentation, "data consistency
model"); so what is written as a whole here is never found in part by another host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfmp2.errors import InputError, ResourceError
from dfmp2.submission.aws.session import asking

LONGEST_KEY = 900  # bytes of a prefix; S3 allows 1024 for a whole key


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
    steps = key.split("/") if key else []
    bad = any(step in ("", ".", "..") or not step.isprintable() for step in steps)
    if match is None or bad or len(key.encode()) > LONGEST_KEY:
        raise InputError(f"{option} {text!r}: expected s3://BUCKET/PREFIX with the lower-case name of a bucket")
    return Location(match[1], key)


class Store:
    """What is done with files in S3.

    Parameters
    ----------
    client : of S3, from `session.connect`
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def names(self, prefix: Location) -> Iterator[str]:
        """Keys that begin with that of `prefix`, without it.

        Raises
        ------
        Dfmp2Error : they cannot be listed
        """
        with asking(f"listing {prefix}*"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=prefix.bucket, Prefix=prefix.key)
            found = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        yield from (key[len(prefix.key) :] for key in found)

    def exists(self, place: Location) -> bool:
        """Whether there is an object with exactly this key."""
        return "" in self.names(place)

    def get(self, place: Location, path: Path) -> None:
        """Put an object into a file, all or nothing.

        Raises
        ------
        Dfmp2Error : it cannot be read
        ResourceError : the file cannot be written
        """
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
        Dfmp2Error : it cannot be written
        """
        with open(path, "rb") as stream, asking(f"writing {place}"):
            self._client.upload_fileobj(stream, place.bucket, place.key)

    def write(self, content: bytes, place: Location) -> None:
        """Put bytes into an object.

        Raises
        ------
        Dfmp2Error : it cannot be written
        """
        with asking(f"writing {place}"):
            self._client.put_object(Bucket=place.bucket, Key=place.key, Body=content)

    def delete(self, place: Location) -> None:
        """Remove an object, if there is one.

        Raises
        ------
        Dfmp2Error : it cannot be removed
        """
        with asking(f"removing {place}"):
            self._client.delete_object(Bucket=place.bucket, Key=place.key)
