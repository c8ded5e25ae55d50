"""What a gradient costs beside its energy: processor time and peak memory of `dfmp2 run` and `dfmp2 gradient`.

    python scripts/benchmarks/gradient_cost.py [--threads 1] inputs/water-10.xyz C10H22.xyz > table.md

Each command is a process of its own with all electrons correlated in cc-pVDZ and default options. Processor time is
that of all threads, which a busy machine disturbs less than wall time. The gradient includes its energy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = Path(sys.executable).with_name("dfmp2")
BASIS = "cc-pvdz"


def measure(command: str, molecule: Path, threads: int, folder: Path) -> tuple[float, float, float]:
    """Wall time and processor time, s, and peak memory, MB, of one command."""
    program = (
        "import resource, subprocess, sys, time\n"
        "begin = time.perf_counter()\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime, time.perf_counter() - begin, used.ru_maxrss / 1e3)\n"
    )
    output = folder / f"{command}.h5"
    options = ["--basis", BASIS, "--threads", str(threads), "--quiet", "--overwrite", "--output", str(output)]
    arguments = [sys.executable, "-c", program, str(COMMAND), command, str(molecule), *options]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    processor, wall, memory = (float(word) for word in done.stdout.split())
    return wall, processor, memory


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("molecules", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="file that rows are appended to as they come")
    given = parser.parse_args()
    print(
        "| molecule | energy: wall, processor / s, MB | gradient: wall, processor / s, MB | ratio of wall, processor |"
    )
    print("|---|---|---|---|")
    for molecule in given.molecules:
        with tempfile.TemporaryDirectory() as folder:
            found = [measure(command, molecule, given.threads, Path(folder)) for command in ("run", "gradient")]
        cells = [f"{wall:.1f}, {processor:.1f}, {memory:.0f}" for wall, processor, memory in found]
        ratios = ", ".join(f"{found[1][k] / found[0][k]:.1f}" for k in (0, 1))
        print(f"| {molecule.stem} | {cells[0]} | {cells[1]} | {ratios} |", flush=True)
        if given.rows:
            with given.rows.open("a") as file:
                print(json.dumps({"molecule": molecule.stem, "energy": found[0], "gradient": found[1]}), file=file)


if __name__ == "__main__":
    main()
