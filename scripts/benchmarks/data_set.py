"""Called by scripts/benchmarks/run.sh: compute, read and collect a batch of water-like molecules,
and print processor times as Markdown.

    python scripts/benchmarks/data_set.py FOLDER                     # 2,000 molecules: about ten minutes
    python scripts/benchmarks/data_set.py FOLDER --count 200

The tables are in docs/tutorials/data-set.md and docs/howto/batch.md. The batch has gradients
(6-31G) of distorted water, its radical cation, hydroxide and oxonium; `collect` makes extended xyz
twice. Then follow an index with the lines of 500 shards of 100 items, and the start of a shard of
50,000 items. What a data set contains is tested by tests/test_dataset.py.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import dfmp2
from dfmp2.output.batch_index import IndexWriter, read_rows

WATER = np.array([[0, 0, 0.1173], [0, 0.7572, -0.4692], [0, -0.7572, -0.4692]])
SHARDS = 500


def write_molecules(folder: Path, count: int) -> list[str]:
    """Write xyz files of molecules drawn with a fixed seed; returns their names."""
    draw = np.random.default_rng(41)
    names = []
    for number in range(count):
        symbols = ["O", "H", "H"]
        state = "charge=0 multiplicity=1"
        places = WATER + 0.08 * draw.standard_normal((3, 3))
        kind = number % 10
        if kind == 7:
            state = "charge=1 multiplicity=2"
        elif kind == 8:
            symbols, places, state = ["O", "H"], places[:2], "charge=-1 multiplicity=1"
        elif kind == 9:
            fourth = [[0.9, 0, 0.5] + 0.05 * draw.standard_normal(3)]
            symbols, places = ["O", "H", "H", "H"], np.vstack([places, fourth])
            state = "charge=1 multiplicity=1"
        lines = [str(len(symbols)), state]
        for symbol, place in zip(symbols, places, strict=True):
            lines.append(f"{symbol} {place[0]:.10f} {place[1]:.10f} {place[2]:.10f}")
        name = f"m{number:05d}"
        (folder / f"{name}.xyz").write_text("\n".join(lines) + "\n")
        names.append(name)
    return names


def processor_time(*command: str) -> float:
    """Processor time of a dfmp2 command and its workers, s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-P", "-m", "dfmp2", *command], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_batch(folder: Path, names: list[str], keep: str) -> None:
    """Compute the gradients of all molecules in FOLDER/KEEP."""
    lines = ['basis = "6-31g"', 'task = "gradient"', f'output = "{keep}"', f'keep = "{keep}"']
    lines += ["threads = 1", 'memory = "2GB"']
    for name in names:
        lines += ["[[item]]", f'molecule = "{name}.xyz"']
    manifest = folder / f"{keep}.toml"
    manifest.write_text("\n".join(lines) + "\n")
    processor_time("batch", "run", str(manifest), "--workers", "2", "--quiet")


def time_shard_start(folder: Path) -> float:
    """Processor time of a shard of 100 out of 50,000 complete items, s: the start, and checking
    each item."""
    folder.mkdir()
    (folder / "h2.xyz").write_text("2\n\nH 0 0 0\nH 0 0 0.74\n")
    lines = ['basis = "sto-3g"', "threads = 1", 'memory = "2GB"']
    lines += ["[[item]]", 'molecule = "h2.xyz"'] * (100 * SHARDS)
    manifest = folder / "many.toml"
    manifest.write_text("\n".join(lines) + "\n")
    output = ("--output", str(folder / "many"))
    processor_time(
        *("batch", "submit", str(manifest), "--slurm", "--shards", str(SHARDS), *output),
        *("--write", str(folder / "written"), "--json"),
    )
    shard = ("batch", "run", str(manifest), "--shard", f"0/{SHARDS}", *output, "--quiet")
    processor_time(*shard)
    return processor_time(*shard)


def time_index(folder: Path) -> list[str]:
    """Rows of the table of an index: a line, and all of them merged."""
    folder.mkdir()
    row = {"status": "complete", "exit_code": 0, "output": "/results/i00000.h5", "seconds": 0.3}
    row |= {"energy": -76.0, "fingerprint": "a" * 64, "stamp": [13000, 10**18], "asked": "b" * 16}
    began = time.process_time()
    for shard in range(SHARDS):
        index = IndexWriter(folder, (shard, SHARDS))
        for number in range(100):
            index.append([{"name": f"i{100 * shard + number}", **row}])
        index.close()
    appended = time.process_time() - began
    size = sum(path.stat().st_size for path in folder.iterdir())
    began = time.process_time()
    count = len(read_rows(folder))
    merged = time.process_time() - began
    return [
        f"| index: one line of {size / count:.0f} bytes per item | {1e3 * appended / count:.3f} ms |",
        f"| `status`: merging {SHARDS} indexes of {count} items | {merged:.2f} s |",
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=" ".join(__doc__.partition("\n\n")[0].split()))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    names = write_molecules(given.folder, given.count)
    print("| processor time per molecule, one worker | read | collect, first | again | file |")
    print("|---|---|---|---|---|")
    for keep in ("all", "properties", "energies"):
        run_batch(given.folder, names, keep)
        files = [given.folder / keep / f"{name}.h5" for name in names]
        dfmp2.read(files[0])
        began = time.process_time()
        for path in files:
            dfmp2.read(path)
        times = [time.process_time() - began]
        target = given.folder / f"{keep}.extxyz"
        for _ in range(2):
            manifest = str(given.folder / f"{keep}.toml")
            asked = ("batch", "collect", manifest, "--to", "extxyz")
            times.append(processor_time(*asked, "-o", str(target), "--overwrite"))
        size = max(path.stat().st_size for path in files)
        cells = " | ".join(f"{1e3 * taken / len(names):.2f} ms" for taken in times)
        print(f"| `--keep {keep}` | {cells} | {size / 1e3:.1f} kB |", flush=True)
    print()
    print(*time_index(given.folder / "index"), sep="\n")
    started = time_shard_start(given.folder / "start")
    print(f"| shard of 100 of {100 * SHARDS} items, all complete | {started:.2f} s |")


if __name__ == "__main__":
    main()
