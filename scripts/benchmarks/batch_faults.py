"""Table of faults of a batch: no result is lost, computed twice or different in a bit, and the right item is blamed.

    python scripts/benchmarks/batch_faults.py [--kills 50] [--seed 1] [--only NAME]

A batch of small molecules runs with two workers; the fault is injected at a random moment; the same command is given
again until all is complete. Results are compared with those of a batch without a fault. Dask rows start a scheduler and
workers on loopback, and are left out where `distributed` is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402 - its Skipped is what a control group that cannot be made raises

import dfmp2  # noqa: E402
from tests.conftest import COMMAND  # noqa: E402
from tests.control_group import limited_memory  # noqa: E402
from tests.test_batch import chain  # noqa: E402

SMALL, LARGE = 8, 4  # waters by themselves, waters in the molecule that comes first
BASIS = "cc-pvtz"
OPTIONS = ("--basis", BASIS, "--precision", "fp64", "--threads", "1", "--workers", "2", "--quiet")
OOM_LIMIT = 320 * 10**6  # bytes for the whole batch
OOM_OPTIONS = (
    "--basis",
    "cc-pvtz",
    "--precision",
    "fp64",
    "--threads",
    "1",
    "--memory",
    "3GB",
    "--quiet",
)
LONGEST = 1.5  # s from the first item to the fault; the batch takes about twice that
PAUSE = 3.0  # s a worker is stopped for
TRIALS = 3  # of the rows that are not kill -9
PATIENCE = 120.0  # s
COLUMNS = ("faults", "hit an item", "lost", "computed twice", "different bits", "wrongly blamed")


@dataclass
class Batch:
    """One run of `dfmp2 batch run`, and what is known of it."""

    folder: Path
    options: Sequence[str] = OPTIONS
    wrapper: Sequence[str] = ()
    hit: set[str] = field(default_factory=set)  # items that a worker had when it met the fault
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Give the command."""
        names = sorted(path.name for path in self.folder.glob("*.xyz"))
        command = [
            *self.wrapper,
            str(COMMAND),
            "batch",
            "run",
            *names,
            "--output",
            "out",
            *self.options,
        ]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=self.folder, stdout=pipe, stderr=pipe, text=True
        )

    def finish(self) -> tuple[int, str]:
        """Exit code and output."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out + err

    def results(self) -> dict[str, tuple[int, int]]:
        """Inode and time of change of every result."""
        found = (self.folder / "out").glob("*.h5")
        return {path.stem: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}

    def failed(self) -> dict[str, int]:
        """Exit codes of failed items."""
        found = (self.folder / "out").glob("*.error.json")
        return {path.name.split(".")[0]: json.loads(path.read_text())["code"] for path in found}

    def holders(self) -> dict[int, str]:
        """Items by the processes that compute them."""
        found = {}
        for path in (self.folder / "out").glob(".*.lock"):
            try:
                found[int(json.loads(path.read_text())["pid"])] = path.name[1:].removesuffix(
                    ".lock"
                )
            except (OSError, ValueError):
                continue  # it has just begun, or ended
        return found

    def victim(self, rng: random.Random) -> int | None:
        """A worker that computes, stopped so that it cannot go on to another item meanwhile; what it holds is hit.

        None where the batch ends before.
        """
        while self.process.poll() is None:
            computing = sorted(self.holders())
            if not computing:
                continue
            pid = rng.choice(computing)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                name = self.holders().get(pid)
                if name is not None:
                    self.hit.add(name)
                    return pid
                os.kill(pid, signal.SIGCONT)
        return None


def main() -> None:
    """Inject the faults and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    rows: dict[str, Callable[[Path, Truth, random.Random], Counter[str]]] = {
        "kill -9 of a worker": killed_worker,
        "worker out of memory": out_of_memory,
        "SIGSTOP, SIGCONT of a worker": stopped_worker,
        "disk full under a worker": full_disk,
        "kill -9 of the parent": killed_parent,
        "24 good and 3 bad items, worker and parent killed twice": killed_twice,
    }
    if importlib.util.find_spec("distributed"):
        rows |= {
            "kill -9 of a Dask worker": killed_dask_worker,
            "kill -9 of the scheduler": killed_scheduler,
        }
    print(f"| fault | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    with tempfile.TemporaryDirectory() as scratch:
        truth = Truth(Path(scratch))
        total: Counter[str] = Counter()
        for name, row in rows.items():
            if given.only not in name:
                continue
            found: Counter[str] = Counter()
            for number in range(given.kills if row is killed_worker else TRIALS):
                folder = Path(scratch) / f"{row.__name__}-{number}"
                try:
                    found += row(truth.copy(folder), truth, rng)
                except pytest.skip.Exception as error:
                    print(f"| {name} | left out: {error} |")
                    break
            else:
                print(f"| {name} | {' | '.join(str(found[key]) for key in COLUMNS)} |", flush=True)
            total += found
        print(f"| all | {' | '.join(str(total[key]) for key in COLUMNS)} |")
    if any(total[key] for key in COLUMNS[2:]):
        raise SystemExit("a promise is broken")


class Truth:
    """The molecules, and the results of batches without a fault."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._numbers = scratch, dict[str, dict[str, Any]]()

    def copy(self, folder: Path) -> Path:
        """A folder with the molecules."""
        folder.mkdir()
        (folder / "large.xyz").write_text(chain(LARGE))
        for number in range(SMALL):
            (folder / f"w{number}.xyz").write_text(
                chain(1).replace("0.7572", f"{0.75 + 0.01 * number:.4f}")
            )
        return folder

    def numbers(self, options: Sequence[str]) -> dict[str, Any]:
        """Numbers of every item with these options, without a fault."""
        key = " ".join(options)
        if key not in self._numbers:
            batch = Batch(self.copy(self._scratch / f"truth-{len(self._numbers)}"), options)
            code, text = batch.finish()
            if code:
                raise SystemExit(f"the batch fails without a fault: {text}")
            self._numbers[key] = numbers(batch.folder)
        return self._numbers[key]


def numbers(folder: Path) -> dict[str, Any]:
    """What must be the same to the last bit, by item."""
    found = {}
    for path in sorted((folder / "out").glob("*.h5")):
        result = dfmp2.read(path)
        pairs = np.asarray(result.pairs.opposite_spin).tobytes()
        found[path.stem] = (result.scf_total_energy, result.mp2_total_energy, pairs)
    return found


def judge(
    batch: Batch, truth: Truth, allowed: set[int], options: Sequence[str] = ()
) -> Counter[str]:
    """Count what is wrong after a fault, and after the same command once more.

    Parameters
    ----------
    allowed : exit codes of an item that was hit
    options : of the batch without a fault that it is compared with, those of the batch itself by default
    """
    before, failed = batch.results(), batch.failed()
    wrong = {name for name, code in failed.items() if name not in batch.hit or code not in allowed}
    names = {path.stem for path in batch.folder.glob("*.xyz")}
    if before.keys() < names or failed:
        batch.start()
        code, text = batch.finish()
        if code:
            raise SystemExit(f"the same command does not go on (exit code {code}): {text}")
    after = batch.results()
    found, expected = numbers(batch.folder), truth.numbers(options or batch.options)
    return Counter(
        {
            "faults": 1,
            "hit an item": len(batch.hit),
            "lost": len(names - after.keys()),
            "computed twice": sum(before[name] != after.get(name) for name in before),
            "different bits": sum(found[name] != expected[name] for name in found),
            "wrongly blamed": len(wrong),
        }
    )


def wait_for_work(batch: Batch, rng: random.Random) -> None:
    """Until the batch computes, and a random moment longer."""
    end = time.monotonic() + PATIENCE
    while not batch.holders() and batch.process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, LONGEST))


def killed_worker(folder: Path, truth: Truth, rng: random.Random) -> Counter[str]:
    """SIGKILL to a worker."""
    batch = Batch(folder)
    wait_for_work(batch, rng)
    pid = batch.victim(rng)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    batch.finish()
    return judge(batch, truth, {7})


def out_of_memory(folder: Path, truth: Truth, _rng: random.Random) -> Counter[str]:
    """The kernel kills the worker of the large molecule; the others fit into the control group."""
    with limited_memory(OOM_LIMIT) as group:
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        batch = Batch(folder, OOM_OPTIONS, ("sh", "-c", enter, "sh"))
        batch.hit.add("large")
        batch.finish()
    batch.wrapper = ()
    return judge(batch, truth, {7})


def stopped_worker(folder: Path, truth: Truth, rng: random.Random) -> Counter[str]:
    """A worker that does nothing for a while; nothing may fail."""
    batch = Batch(folder)
    wait_for_work(batch, rng)
    pid = batch.victim(rng)
    if pid is not None:
        time.sleep(PAUSE)
        os.kill(pid, signal.SIGCONT)
    batch.finish()
    return judge(batch, truth, set())


def full_disk(folder: Path, truth: Truth, rng: random.Random) -> Counter[str]:
    """One worker can write no file above 2 kB from now on, so all that it computes fails."""
    batch = Batch(folder)
    wait_for_work(batch, rng)
    pid = batch.victim(rng)
    if pid is not None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (2048, 2048))
        os.kill(pid, signal.SIGCONT)
        while batch.process.poll() is None:
            batch.hit |= {name for holder, name in batch.holders().items() if holder == pid}
            time.sleep(0.005)
    batch.finish()
    return judge(batch, truth, {7})


def killed_parent(folder: Path, truth: Truth, rng: random.Random) -> Counter[str]:
    """SIGKILL to the batch; its workers end by themselves, and the same command waits for that."""
    batch = Batch(folder)
    wait_for_work(batch, rng)
    batch.hit |= set(batch.holders().values())
    batch.process.kill()
    batch.finish()
    time.sleep(
        8.0
    )  # a worker that is not stopped at once may still finish its item: that is not doubled work
    return judge(batch, truth, set())


def killed_twice(folder: Path, _truth: Truth, rng: random.Random) -> Counter[str]:
    """SIGKILL to a worker and to the batch, twice; in the end the bad items have failed, and they alone."""
    for path in folder.glob("*.xyz"):
        path.unlink()
    for number in range(24):
        (folder / f"w{number}.xyz").write_text(
            chain(1).replace("0.7572", f"{0.74 + 0.001 * number:.4f}")
        )
    bad = {
        "cut": "3\n\nO 0 0 0\n",
        "element": "1\n\nXx 0 0 0\n",
        "near": "2\n\nH 0 0 0\nH 0 0 0.001\n",
    }
    for name, text in bad.items():
        (folder / f"{name}.xyz").write_text(text)
    plain = folder.with_name(f"{folder.name}-plain")
    shutil.copytree(folder, plain)
    Batch(plain).finish()
    batch, doubled = Batch(folder), 0
    for _ in range(2):
        before = batch.results()
        wait_for_work(batch, rng)
        pid = batch.victim(rng)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        time.sleep(rng.uniform(0.0, 0.5))
        batch.process.kill()
        batch.finish()
        time.sleep(8.0)
        doubled += sum(made != batch.results().get(name) for name, made in before.items())
        batch.start()
    before = batch.results()
    batch.finish()
    found, expected = numbers(folder), numbers(plain)
    return Counter(
        {
            "faults": 4,
            "hit an item": len(batch.hit),
            "lost": len(expected.keys() - found.keys()),
            "computed twice": doubled
            + sum(made != batch.results().get(name) for name, made in before.items()),
            "different bits": sum(found[name] != expected[name] for name in found),
            "wrongly blamed": len(batch.failed().keys() ^ bad.keys()),
        }
    )


class Cluster:
    """A Dask scheduler and two workers on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0")
        while not self.file.exists():
            time.sleep(0.05)
        options = ("--nthreads", "1", "--no-nanny", "--memory-limit", "2GB")
        self.workers = [self._start("worker", *options) for _ in range(2)]

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()
        self.file.unlink()

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "dask",
            *arguments,
            "--no-dashboard",
            "--scheduler-file",
            str(self.file),
        ]
        return subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def killed_dask_worker(folder: Path, truth: Truth, rng: random.Random) -> Counter[str]:
    """SIGKILL to a Dask worker; the second command runs on the other one."""
    with Cluster(folder) as cluster:
        batch = Batch(folder, (*OPTIONS, "--engine", str(cluster.file)))
        wait_for_work(batch, rng)
        pid = batch.victim(rng)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        batch.finish()
        return judge(batch, truth, {7}, OPTIONS)


def killed_scheduler(folder: Path, truth: Truth, rng: random.Random) -> Counter[str]:
    """SIGKILL to the scheduler; the second command runs on a new cluster."""
    with Cluster(folder) as cluster:
        batch = Batch(folder, (*OPTIONS, "--engine", str(cluster.file)))
        wait_for_work(batch, rng)
        batch.hit |= set(batch.holders().values())
        cluster.scheduler.kill()
        code, text = batch.finish()
        if code not in (0, 7):
            raise SystemExit(f"a lost scheduler ends the batch with exit code {code}: {text}")
    with Cluster(folder):
        return judge(batch, truth, set(), OPTIONS)


if __name__ == "__main__":
    main()
