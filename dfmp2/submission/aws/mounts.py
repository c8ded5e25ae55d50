"""Folders of a container that outlive it: of its host (FSx for Lustre, instance storage), and EFS file systems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from dfmp2.errors import InputError

WORK = "/work"  # of the image: scratch, caches and HOME; a volume of its own, so that the root can be read-only


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the container.

    Attributes
    ----------
    target : its place in the container
    source : folder of the host; "" for an empty one that the host makes and removes
    efs : identity of an EFS file system, "" for none
    """

    target: str
    source: str = ""
    efs: str = ""

    def volume(self, name: str) -> dict[str, Any]:
        """Entry of `volumes`."""
        if self.efs:
            return {
                "name": name,
                "efsVolumeConfiguration": {"fileSystemId": self.efs, "transitEncryption": "ENABLED"},
            }
        return {"name": name, "host": {"sourcePath": self.source} if self.source else {}}

    def holds(self, path: PurePosixPath) -> bool:
        """Whether a path of the container is on it."""
        return path.is_relative_to(self.target)


def read_mounts(hosts: Sequence[str], systems: Sequence[str]) -> tuple[Mount, ...]:
    """What --mount HOST[:CONTAINER] and --efs ID:CONTAINER name, and the working folder where neither gives one.

    Raises
    ------
    InputError : not of that form, or two for one place
    """
    found = []
    for text in hosts:
        source, _, target = text.partition(":")
        if not all(map(_absolute, filter(None, (source, target)))) or not source:
            raise InputError(f"--mount {text!r}: expected HOST or HOST:CONTAINER, both absolute paths such as /fsx")
        found.append(Mount(target or source, source=source))
    for text in systems:
        identity, _, target = text.partition(":")
        if re.fullmatch(r"fs-[0-9a-f]{8,40}", identity) is None or not _absolute(target):
            raise InputError(f"--efs {text!r}: expected ID:CONTAINER such as fs-0123456789abcdef0:/efs")
        found.append(Mount(target, efs=identity))
    if all(mount.target != WORK for mount in found):
        found.insert(0, Mount(WORK))
    places = [mount.target for mount in found]
    if len(set(places)) < len(places):
        raise InputError(f"--mount and --efs name one place twice: {', '.join(places)}")
    return tuple(found)


def _absolute(text: str) -> bool:
    path = PurePosixPath(text)
    return str(path) == text and path.is_absolute() and text != "/" and ".." not in path.parts and text.isprintable()
