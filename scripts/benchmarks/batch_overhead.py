"""Called by scripts/benchmarks/run.sh: measure the overhead of a batch per item, and the memory of
its parent process.

    python scripts/benchmarks/batch_overhead.py                       # of this environment
    python scripts/benchmarks/batch_overhead.py OLD/bin/python        # and of another one, alternating

The figures are in docs/project/performance/index.md. Batches of 4 and of 104 water molecules
(STO-3G, one worker, one thread) alternate; the difference is divided by 100. Processor time is used
because a busy machine affects it little; Linux only (memory is read from /proc).
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

FEW = 4
MANY = 104


@dataclass(frozen=True)
class Batch:
    """The cost of one batch.

    Attributes
    ----------
    total, parent : float
        Seconds of processor time, of all processes and of the parent alone.
    peak : float
        Largest resident memory of the parent, MB.
    """

    total: float
    parent: float
    peak: float


def write_molecules(folder: Path) -> None:
    """Write `MANY` distorted water molecules, always the same ones."""
    draw = random.Random(1)
    for number in range(MANY):
        lines = ["3", "", f"O 0 0 {0.1 * draw.random():.4f}", "H 0.96 0 0", "H -0.2 0.93 0"]
        (folder / f"w{number}.xyz").write_text("\n".join(lines) + "\n")


def run_batch(python: str, folder: Path, count: int) -> Batch:
    """Run the first `count` molecules of `folder` as a batch, and watch the parent process."""
    output = folder / f"out-{time.monotonic_ns()}"
    command = [python, "-P", "-m", "dfmp2", "batch", "run"]
    command += [f"w{number}.xyz" for number in range(count)]
    command += ["--basis", "sto-3g", "--output", str(output), "--quiet"]
    command += ["--workers", "1", "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    peak = 0.0
    parent = 0.0
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                peak = int(line.split()[1]) * 1024 / 1e6
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        parent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        time.sleep(0.02)
    if process.wait() != 0:
        raise SystemExit(f"{python}: the batch ended with exit code {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Batch(total, parent, peak)


def main() -> int:
    """Run the batches and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="of other environments")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    pythons = [sys.executable, *given.pythons]
    small: dict[str, list[Batch]] = {python: [] for python in pythons}
    large: dict[str, list[Batch]] = {python: [] for python in pythons}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_molecules(folder)
        for _ in range(given.repeats):
            for python in pythons:
                small[python].append(run_batch(python, folder, FEW))
                large[python].append(run_batch(python, folder, MANY))
    print(
        "| environment | processor time per item | of the parent | parent's peak, 4 and 104 items |"
    )
    print("|---|---|---|---|")
    for python in pythons:
        few = small[python]
        many = large[python]
        total = statistics.median(b.total for b in many) - statistics.median(b.total for b in few)
        parent = statistics.median(b.parent for b in many) - statistics.median(
            b.parent for b in few
        )
        print(
            f"| {python} | {total / (MANY - FEW):.4f} s | {parent / (MANY - FEW):.4f} s "
            f"| {max(b.peak for b in few):.0f} and {max(b.peak for b in many):.0f} MB |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
