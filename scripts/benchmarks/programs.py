"""Called by scripts/benchmarks/race.py: whole programs as child processes, measured from outside:
time, peak memory, load by other processes."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dfmp2.host.threads import openblas_kernels

# Each command is started by a program that uses only the standard library: children inherit the
# peak memory of their parent, so a peak measured from a process with NumPy loaded would never be
# below NumPy's. `foreign` are the processor seconds that everything else on the machine used
# meanwhile (including those taken away by a host). The launcher also waits for workers that a
# process of the command has started, so that they are counted.
LAUNCHER = """
import ctypes, json, os, resource, sys, time
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
def busy():
    try:
        fields = [int(word) for word in open("/proc/stat").readline().split()[1:]]
    except (OSError, ValueError):
        return 0.0
    return (sum(fields[:8]) - sum(fields[3:5])) / os.sysconf("SC_CLK_TCK")
before, start = busy(), time.perf_counter()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, _ = os.wait4(pid, 0)
wall, others = time.perf_counter() - start, busy() - before
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu = usage.ru_utime + usage.ru_stime
facts = {"wall": wall, "cpu": cpu, "foreign": max(0.0, others - cpu), "code": os.waitstatus_to_exitcode(status)}
facts["peak"] = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
json.dump(facts, open(sys.argv[1], "w"))
"""
# Writes to one byte of every page, so that the memory is available when the next process requests
# it.
TOUCH = """
import mmap, sys
block = mmap.mmap(-1, int(sys.argv[1]))
for start in range(0, len(block), mmap.PAGESIZE):
    block[start] = 1
"""
# Variables that a timed program must not inherit from the shell: thread counts, binding,
# configuration of other programs.
DROPPED = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "OPENBLAS_",
    "MKL_",
    "BLIS_",
    "VECLIB_",
    "PYSCF_",
    "PSI",
    "PYTHONSTARTUP",
    "COLUMNS",
)
# Users do not run programs that compile their sources at every start
DROPPED += ("PYTHONDONTWRITEBYTECODE",)
STANDARD_LIBRARY = (sys.executable, "-I", "-S", "-c")
FOLDER = "{folder}"  # stands for the working directory in a setting


@dataclass(frozen=True, slots=True)
class Child:
    """A finished process.

    Attributes
    ----------
    wall, cpu, foreign : its wall and processor seconds, and those used by other processes meanwhile
    peak : its largest resident size, bytes
    code : exit code, negative for a signal
    out, err : its output
    """

    wall: float
    cpu: float
    foreign: float
    peak: int
    code: int
    out: str
    err: str

    def facts(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return {name: value for name, value in asdict(self).items() if name not in ("out", "err")}

    def ending(self) -> str:
        """The last lines of a failed program's output, on one line fit for a terminal."""
        lines = [line.strip()[:160] for line in (self.err or self.out).splitlines() if line.strip()]
        return (
            "".join(c if c.isprintable() else " " for c in " | ".join(lines[-3:]))
            or "it wrote nothing"
        )


def peer_settings(threads: int) -> dict[str, str]:
    """Environment of another program: its threads, and the kernels that NumPy's OpenBLAS has chosen.

    Older ones, such as those of PySCF's wheel and of Debian, do not know new processors and fall
    back to kernels of 2004 ("Prescott"), which would decide the race.
    """
    kernels = dict(openblas_kernels()).get("NumPy", "")  # without a name, OpenBLAS chooses itself
    return {"OMP_NUM_THREADS": str(threads), "OPENBLAS_CORETYPE": kernels}


def run_child(command: Sequence[str], folder: Path, settings: Mapping[str, str]) -> Child:
    """Run a command in `folder` and measure it; anything that ends the wait also ends the command
    and its children.

    Temporary files go to `folder`; PySCF gets an empty configuration file, because it would execute
    the user's.
    """
    report, empty = folder / "launcher.json", folder / "empty.conf"
    report.unlink(missing_ok=True)
    empty.touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    given = {name: value.replace(FOLDER, str(folder)) for name, value in settings.items()}
    own = {"TMPDIR": str(folder), "PYSCF_CONFIG_FILE": str(empty), "PSI_SCRATCH": str(folder)}
    with open(folder / "out.txt", "wb") as out, open(folder / "err.txt", "wb") as err:
        launcher = subprocess.Popen(
            [*STANDARD_LIBRARY, LAUNCHER, str(report), *command],
            cwd=folder,
            env={**kept, **own, **given},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            # its own group, so that everything it starts can be stopped
            start_new_session=True,
        )
        try:
            launcher.wait()
        finally:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)  # its files are temporary
                launcher.wait()
    texts = [
        (folder / name).read_text(encoding="utf-8", errors="replace")
        for name in ("out.txt", "err.txt")
    ]
    if not report.exists():
        raise SystemExit(f"{command[0]} cannot be started: {texts[1].strip().splitlines()[-1]}")
    return Child(**json.loads(report.read_text(encoding="ascii")), out=texts[0], err=texts[1])


def run_dfmp2(
    *arguments: str, folder: Path, threads: int | None = None
) -> tuple[Child, dict[str, Any]]:
    """Run and measure a dfmp2 command with --json; returns also the object it printed ({} if
    none)."""
    if threads is None:
        counted = ()
    else:
        counted = ("--threads", str(threads))
    child = run_child(
        [sys.executable, "-P", "-m", "dfmp2", *arguments, *counted, "--json"], folder, {}
    )
    return child, json.loads(child.out) if child.out else {}


def touch_memory(size: int) -> None:
    """Write to `size` bytes in another process, so that a virtual machine's host has already
    allocated them."""
    subprocess.run([*STANDARD_LIBRARY, TOUCH, str(size)], check=True)


def private_folder(parent: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """A folder for input, output and scratch files of the timed programs, removed at the end of the
    block."""
    return tempfile.TemporaryDirectory(
        prefix="dfmp2-bench-", dir=parent, ignore_cleanup_errors=True
    )


def options(description: str) -> argparse.ArgumentParser:
    """Options shared by all measurements of whole programs."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every program"
    )
    parser.add_argument("--repeats", type=int, default=1, help="runs of each")
    parser.add_argument("--scratch", metavar="DIR", help="folder for temporary files")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write JSON")
    return parser
