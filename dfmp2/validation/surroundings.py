"""What the checks of `dfmp2 doctor` may inspect, and the outcome of one check."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from dfmp2.host.provenance import installed_version


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The outcome of one check.

    Attributes
    ----------
    status : "ok"; "warn" (the default run works, but something else may not); "fail" (it does not
        work)
    detail : finding
    fix : what to do about it, one line; "" for nothing
    exit_code : of the default run, if it fails
    name : subject of the check
    """

    status: str
    detail: str
    fix: str = ""
    exit_code: int = 0
    name: str = ""


def ok(detail: str) -> Diagnosis:
    """A diagnosis without problems."""
    return Diagnosis("ok", detail)


def warn(detail: str, fix: str = "") -> Diagnosis:
    """A diagnosis with which the default run works; as in `fail`, the fix defaults to that of the
    row."""
    return Diagnosis("warn", detail, fix)


def fail(detail: str, code: int, fix: str = "") -> Diagnosis:
    """A diagnosis with which the default run ends with this exit code."""
    return Diagnosis(status="fail", detail=detail, fix=fix, exit_code=code)


def _allowed_cores() -> int:
    """Cores that this process may run on, ignoring the quota of its control group."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that checks may inspect, as one value that tests can replace; created before any
    variable is changed.

    Attributes
    ----------
    environ : environment variables as the user set them
    folder : working directory, where results are written
    root : "/" on a real machine; prefix of /dev, /proc, /sys and /opt
    prefix : prefix of the Python installation or virtual environment
    path : Python's module search path
    cores : number of cores this process may be scheduled on
    version : distribution name -> installed version or None
    requirements : requirements in the package's own metadata, e.g. "numpy>=1.26"; None if it is not
        installed
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: Path = field(default_factory=Path)
    root: Path = Path("/")
    prefix: Path = Path(sys.prefix)
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    cores: int = field(default_factory=_allowed_cores)
    version: Callable[[str], str | None] = installed_version
    requirements: tuple[str, ...] | None = field(default_factory=lambda: _metadata("dfmp2"))

    @property
    def home(self) -> Path | None:
        """Home directory, None if there is none."""
        return Path(self.environ["HOME"]) if self.environ.get("HOME") else None

    def words(self, *files: str) -> list[str]:
        """Words in system files such as "/sys/fs/cgroup/cpu.max"; empty if they cannot be read."""
        try:
            texts = [(self.root / file.lstrip("/")).read_text(errors="replace") for file in files]
        except OSError:
            return []
        return " ".join(texts).split()


def _metadata(name: str) -> tuple[str, ...] | None:
    """Requirements in the metadata of an installed distribution, starting with the Python version;
    None if there is no metadata."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    python = found.metadata["Requires-Python"]
    return (*([f"python{python}"] if python else []), *(found.requires or ()))
