"""The simulation of the pair queue against the queue itself: 1 and 2 processes on this host, as markdown.

    python scripts/strong_scaling.py inputs/c20h42.xyz --basis cc-pvdz --repeats 3

Tiles of the molecule are timed with one and with two of them running at once (`dfmp2.fleet.tiles`), and so is a request
to the shared counter. Then real processes drain the real queue: B of these sizes in one shared file, torch's TCPStore
as the counter, NumPy's backend with one thread each. Numbers in B are random: a tile takes the same time with any.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

from dfmp2 import threads
from dfmp2.backends.cpu import CpuBackend
from dfmp2.fleet import latency
from dfmp2.fleet.queue import Store, drain
from dfmp2.fleet.tiles import drawn, measure, queue, sizes_of
from dfmp2.io.xyz import read_xyz
from dfmp2.mp2 import tiling
from dfmp2.options import Options
from dfmp2.planning import sizes
from dfmp2.progress import Listener
from dfmp2.workload import Workload

DTYPES = {"fp64": np.float64, "mixed": np.float32}
SEEDS = range(20)


def rank(folder: Path, number: int, ranks: int, shape: tuple[int, int, int], precision: str, port: int) -> None:
    """One process of the queue: waits for the others, takes tiles until none is left, says when it began and ended."""
    from torch.distributed import TCPStore

    nocc, nvir, naux = shape
    backend = CpuBackend(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    with threads.limited(1):
        b = np.memmap(folder / "b", DTYPES[precision], "r", shape=shape)
        operand = backend.put(b, -np.linspace(1.0, 2.0, nocc), np.linspace(0.5, 5.0, nvir), precision)
        tiles = tiling.triangle(nocc, backend.limits, nvir * naux)
        operand.b.sum()  # so that its pages are mapped, as those of B in memory are
        backend.pair_terms(operand, operand, tiles[-1])
        store.add("ready", 1)
        while store.add("ready", 0) < ranks:
            time.sleep(0.001)
        start = time.monotonic()
        while (taken := store.add("next", 1) - 1) < len(tiles):
            backend.pair_terms(operand, operand, tiles[taken])
        (folder / f"times-{number}").write_text(f"{start} {time.monotonic()}")


def real(folder: Path, work: Workload, ranks: int, precision: str) -> float:
    """Wall time of the queue on `ranks` processes, s."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    [shape] = sizes_of(work)
    words = [str(folder), str(ranks), *map(str, shape), precision, str(server.port)]
    processes = [subprocess.Popen([sys.executable, __file__, "--rank", str(k), *words]) for k in range(ranks)]
    if any(process.wait() for process in processes):
        raise SystemExit("a process failed")
    times = [tuple(map(float, (folder / f"times-{k}").read_text().split())) for k in range(ranks)]
    return max(end for _, end in times) - min(start for start, _ in times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("molecule", nargs="+")
    parser.add_argument("--basis", default="cc-pvdz")
    parser.add_argument("--precision", choices=["fp64", "mixed"], default="mixed")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    store = latency.measure()
    print(f"{platform.node()}, {date.today()}; load average {os.getloadavg()[0]:.2f} (quiet: below 0.2)")
    print(f"counter: {1e6 * store.latency:.0f} us a request, {1e6 * store.service:.0f} us of them exclusively")
    print(
        "\n| molecule | tiles | ranks | real / s (range) | simulated, drawn / s (range of 20 seeds) "
        "| simulated to real | speed-up real | simulated |\n|---|---|---|---|---|---|---|---|"
    )
    for name in given.molecule:
        options = Options(given.basis, precision=given.precision)
        work = sizes(read_xyz(name).molecule, options, Listener())
        compare(Path(name).stem, work, given.precision, given.repeats, store)


def compare(name: str, work: Workload, precision: str, repeats: int, store: Store) -> None:
    """Rows of one molecule; measurements alternate with the real queue, so that a drifting clock meets both."""
    backend = CpuBackend(1)
    kinds = queue(work, backend.limits)
    [shape] = sizes_of(work)
    measured: dict[int, list[float]] = {1: [], 2: []}
    simulated: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        b = np.memmap(folder / "b", DTYPES[precision], "w+", shape=shape)
        rng = np.random.default_rng(0)
        for row in b:
            row[:] = rng.standard_normal(shape[1:]) / shape[2]
        b.flush()
        for _ in range(repeats):
            for ranks in (1, 2):
                times = measure(work, backend, ranks, platform.node())
                simulated[ranks] += [drain(drawn(kinds, times, seed), ranks, store).makespan for seed in SEEDS]
                measured[ranks].append(real(folder, work, ranks, precision))
    for ranks in (1, 2):
        found = [statistics.median(values[ranks]) for values in (measured, simulated)]
        gains = [statistics.median(values[1]) / statistics.median(values[ranks]) for values in (measured, simulated)]
        spans = [f"{min(values[ranks]):.2f}-{max(values[ranks]):.2f}" for values in (measured, simulated)]
        print(
            f"| {name} | {len(kinds)} | {ranks} | {found[0]:.2f} ({spans[0]}) | {found[1]:.2f} ({spans[1]}) "
            f"| {found[1] / found[0]:.2f} | {gains[0]:.2f} | {gains[1]:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        own, folder_name, count, *dimensions, kind, address = sys.argv[2:]
        nocc, nvir, naux = map(int, dimensions)
        rank(Path(folder_name), int(own), int(count), (nocc, nvir, naux), kind, int(address))
    else:
        main()
