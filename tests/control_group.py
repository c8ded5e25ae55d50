"""A Linux control group with a memory limit, inside that of this process."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@contextmanager
def limited_memory(limit: int) -> Iterator[Path]:
    """The folder of a group whose processes may hold `limit` bytes in total; skips the test if it
    cannot be created."""
    folder, values = _place()
    group = folder / f"dfmp2-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made in {folder}: {error.strerror}")
    try:
        for name in values:
            if not (group / name).exists() and name == values[0]:
                pytest.skip(f"{folder} does not hand its memory controller on")
            with suppress(FileNotFoundError):  # the kernel may not account for swap
                (group / name).write_text(str(0 if name == "memory.swap.max" else limit))
        yield group
    except PermissionError as error:
        pytest.skip(f"the limit of {group} cannot be set: {error.strerror}")
    finally:
        _remove(group)


def killed(group: Path) -> int:
    """Number of its processes that the kernel has killed for memory."""
    text = "".join(
        (group / name).read_text()
        for name in ("memory.oom_control", "memory.events")
        if (group / name).exists()
    )
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


def _place() -> tuple[Path, tuple[str, ...]]:
    """Folder of this process's group, and the files of the limits: version 1 of control groups, or
    version 2."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            own = ROOT / "memory" / path.lstrip("/")
            return own if own.is_dir() else ROOT / "memory", (
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
            )
    own = ROOT / lines[-1][2].lstrip("/") if lines else ROOT
    return own if own.is_dir() else ROOT, ("memory.max", "memory.swap.max")


def _remove(group: Path) -> None:
    """Remove the group as soon as its last process has been reaped."""
    for _ in range(100):
        try:
            os.rmdir(group)
            return
        except OSError:
            time.sleep(0.1)
