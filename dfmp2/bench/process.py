"""Time a child process from outside: wall and processor seconds, peak memory, what others did meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dfmp2.errors import BackendError, InputError, ResourceError

LAUNCHER = Path(__file__).with_name("launcher.py")
# What a shell may have set and a timed program must not inherit: thread counts, binding, foreign configuration.
DROPPED = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "OPENBLAS_",
    "MKL_",
    "BLIS_",
    "VECLIB_",
    "PYSCF_",
    "PYTHONDONTWRITEBYTECODE",  # a program that compiles its sources at every start is not what a user runs
    "PSI",
    "PYTHONSTARTUP",
    "COLUMNS",
)
FOLDER = "{folder}"  # stands for the working directory in a setting
LAST_LINES = 3  # of a failed program's output, shown in the error
LONGEST_LINE = 160

# Writes to one byte of every page, so that the memory is there when the next process asks for it.
_TOUCH = """
import mmap, sys
size = int(sys.argv[1])
block = mmap.mmap(-1, size)
for start in range(0, size, mmap.PAGESIZE):
    block[start] = 1
"""


@dataclass(frozen=True, slots=True)
class Child:
    """A finished process.

    Attributes
    ----------
    wall, cpu : its wall and processor seconds
    foreign : processor seconds that other processes used meanwhile
    peak : its largest resident size, bytes
    code : exit code, negative for a signal
    output : what it wrote on standard output and error
    """

    wall: float
    cpu: float
    foreign: float
    peak: int
    code: int
    output: str


@contextmanager
def private_folder(parent: str | None) -> Iterator[Path]:
    """A folder for input, output and scratch files of the timed programs, gone when the block is left.

    Raises
    ------
    InputError : `parent` is no folder
    ResourceError : it cannot be written
    """
    if parent is not None and not Path(parent).is_dir():
        raise InputError(f"--scratch {parent}: there is no such folder: make it first, or name another one")
    try:
        made = tempfile.TemporaryDirectory(prefix="dfmp2-bench-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise ResourceError(
            f"no temporary folder can be made in {parent or tempfile.gettempdir()} ({error.strerror}): name one that "
            "can be written with --scratch"
        ) from error
    with made as name:
        yield Path(name)


def environment(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """This process' environment without thread settings and configuration, temporary files in `folder`.

    PySCF would execute a configuration file of the user; it is given an empty one.
    """
    empty = folder / "empty.conf"
    empty.touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    given = {name: value.replace(FOLDER, str(folder)) for name, value in settings.items()}
    return {**kept, "TMPDIR": str(folder), "PYSCF_CONFIG_FILE": str(empty), "PSI_SCRATCH": str(folder), **given}


def run_child(command: Sequence[str], folder: Path, settings: Mapping[str, str]) -> Child:
    """Run a command in `folder` and measure it; whatever ends the wait also ends the command.

    Raises
    ------
    BackendError : it cannot be started
    """
    report, screen = folder / "launcher.json", folder / "screen.txt"
    report.unlink(missing_ok=True)
    with open(screen, "wb") as output:
        launcher = subprocess.Popen(
            [sys.executable, "-I", "-S", str(LAUNCHER), str(report), *command],
            cwd=folder,
            env=environment(folder, settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so that everything it starts can be stopped
        )
        try:
            launcher.wait()
        finally:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)  # its files are temporary: nothing to save
                launcher.wait()
    text = screen.read_text(encoding="utf-8", errors="replace")
    if not report.exists():
        raise BackendError(f"{command[0]} cannot be started: {ending(text)}")
    return Child(**json.loads(report.read_text(encoding="ascii")), output=text)


def touch_memory(size: int) -> None:
    """Write to `size` bytes in another process, so that a virtual machine's host has handed them out already.

    Raises
    ------
    ResourceError : there is not that much
    """
    done = subprocess.run([sys.executable, "-I", "-S", "-c", _TOUCH, str(size)], capture_output=True, check=False)
    if done.returncode:
        raise ResourceError(f"--touch: {size} bytes could not be written to beforehand: give a smaller size")


def ending(text: str) -> str:
    """The last lines of what a failed program said, on one line, fit for a terminal."""
    lines = [line.strip()[:LONGEST_LINE] for line in text.splitlines() if line.strip()]
    return "".join(c if c.isprintable() else " " for c in " | ".join(lines[-LAST_LINES:])) or "it wrote nothing"
