"""What a check finds, and what it looks at: the surroundings of the process as one value that tests can plant."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes
    ----------
    name : what was looked at
    status : "ok"; "warn" (the default run works, but something else may not); "fail" (it does not work)
    detail : what was found
    fix : what to do about it, one line; "" where there is nothing to do
    exit_code : of the default run, where it fails
    """

    name: str
    status: str
    detail: str
    fix: str = ""
    exit_code: int = 0


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution by its metadata, without importing it; None if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def affinity() -> int:
    """Cores this process may be scheduled on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything a check may look at.

    Attributes
    ----------
    environ : environment variables as the user set them
    folder : working directory, where results are written
    home : home directory, None if there is none
    root : "/" on a real machine: /dev, /proc, /sys and /opt are looked up below it
    prefix : of the Python installation or virtual environment
    path : Python's module search path
    cores : cores this process may be scheduled on
    version : distribution name -> installed version or None
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: Path = field(default_factory=Path)
    home: Path | None = None
    root: Path = Path("/")
    prefix: Path = Path(sys.prefix)
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    cores: int = field(default_factory=affinity)
    version: Callable[[str], str | None] = installed_version

    def words(self, file: str) -> list[str]:
        """Words of a system file such as "/sys/fs/cgroup/cpu.max"; none where it cannot be read."""
        try:
            return (self.root / file.lstrip("/")).read_text(errors="replace").split()
        except OSError:
            return []

    def exists(self, file: str) -> bool:
        """Whether a system file or folder exists."""
        return (self.root / file.lstrip("/")).exists()


def observe() -> Surroundings:
    """The surroundings of this process, before it changes any of its variables."""
    home = os.environ.get("HOME")
    return Surroundings(home=Path(home) if home else None)
