"""Arrays that all ranks of one host have in common: memory without a file, opened through the process that made it.

It is gone with the last process that has it, however that ends.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dfmp2.checkpoint.encoding import Section
from dfmp2.errors import ResourceError
from dfmp2.units import format_bytes

TOKEN = 16  # bytes that tell one host's memory from another's under the same name


class Segment:
    """Shared memory of this process, until it is closed and everybody has let go.

    Raises
    ------
    ResourceError : the system has none to give
    """

    def __init__(self, size: int) -> None:
        self.size = size
        try:
            self._descriptor = os.memfd_create("dfmp2", os.MFD_CLOEXEC)
            os.ftruncate(self._descriptor, max(size, 1))
        except OSError as error:
            raise ResourceError(
                f"no {format_bytes(size)} of memory to share between ranks ({error.strerror}): allow less --memory, "
                "so that large arrays go to --scratch"
            ) from error

    @property
    def path(self) -> str:
        """Where other processes of this user find it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def close(self) -> None:
        """Let it go; those who have mapped it keep it."""
        os.close(self._descriptor)


def mapped(path: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """The array in a segment.

    Raises
    ------
    OSError : it cannot be opened
    """
    kind = np.dtype(dtype)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(descriptor, max(1, math.prod(shape) * kind.itemsize))
    finally:
        os.close(descriptor)
    return np.frombuffer(memory, kind, math.prod(shape)).reshape(shape)


def probe() -> tuple[Segment | None, Section]:
    """A segment with a token, for others to find out whether they reach it; none where the system has no such thing."""
    if not hasattr(os, "memfd_create"):
        return None, Section({"path": "", "token": ""})
    segment = Segment(TOKEN)
    token = secrets.token_bytes(TOKEN)
    mapped(segment.path, (TOKEN,), np.uint8)[:] = np.frombuffer(token, np.uint8)
    return segment, Section({"path": segment.path, "token": token.hex()})


def reached(section: Section) -> bool:
    """Whether this process sees the memory that another has made."""
    with suppress(OSError, ValueError):
        return bool(mapped(section.values["path"], (TOKEN,), np.uint8).tobytes().hex() == section.values["token"])
    return False
