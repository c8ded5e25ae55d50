"""The pair step over ranks against one process with as many threads, and the memory of all ranks together.

    python scripts/ranks_table.py [--molecule inputs/water-8.xyz] [--basis cc-pvdz] [--ranks 2] [--repeats 5]

Both ways take turns; the fastest of each counts. Memory is the largest sum of proportional set sizes, in which a page
that several processes share counts once; looking at it takes time, so that is a run of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import dfmp2
from dfmp2.units import format_bytes

EVERY = 0.1  # s between two looks at memory


@dataclass(frozen=True)
class Run:
    """One run: seconds of the pair step and of the whole, bytes of all its processes, correlation energy."""

    pairs: float
    total: float
    memory: int
    energy: float


def run(folder: Path, options: argparse.Namespace, ranks: int, threads: int, watched: bool) -> Run:
    """Run once, with `ranks` processes of `threads` threads; memory is looked at only when `watched`."""
    target = folder / f"{ranks}.h5"
    arguments = ["run", options.molecule, "--basis", options.basis, "--threads", str(threads), "--precision"]
    arguments += [options.precision, "--quiet", "--overwrite", "--output", str(target)]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    process = subprocess.Popen(
        [sys.executable, *launch, "-m", "dfmp2", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    peak = 0
    while watched and process.poll() is None:
        peak = max(peak, sum(map(proportional, members(process.pid, launch != []))))
        time.sleep(EVERY)
    if process.wait():
        raise SystemExit(f"the run with {ranks} ranks failed with {process.returncode}")
    result = dfmp2.read(target)
    return Run(result.timings.pair_energies, result.timings.total, peak, result.mp2_correlation_energy)


def members(pid: int, launched: bool) -> list[int]:
    """Processes that compute: torchrun's children, or the process itself."""
    if not launched:
        return [pid]
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def proportional(pid: int) -> int:
    """Proportional set size, bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--molecule", default="inputs/water-8.xyz")
    parser.add_argument("--basis", default="cc-pvdz")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    ways = {"1 process": (1, options.ranks), f"{options.ranks} ranks": (options.ranks, 1)}
    found: dict[str, list[Run]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        held = {name: run(Path(folder), options, *way, watched=True).memory for name, way in ways.items()}
        for _ in range(options.repeats):
            for name, way in ways.items():
                found[name].append(run(Path(folder), options, *way, watched=False))
    print("| | pair step / s (all) | whole / s | memory of all processes | E(corr) / Eh |")
    print("|---|---|---|---|---|")
    for name, runs in found.items():
        steps = ", ".join(f"{one.pairs:.2f}" for one in runs)
        best, whole = min(one.pairs for one in runs), min(one.total for one in runs)
        print(f"| {name} | {best:.2f} ({steps}) | {whole:.1f} | {format_bytes(held[name])} | {runs[0].energy:.12f} |")
    first, second = (min(one.pairs for one in runs) for runs in found.values())
    print(f"pair step, {options.ranks} ranks / 1 process: {second / first:.3f}")


if __name__ == "__main__":
    main()
