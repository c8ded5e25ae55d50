"""What a gradient costs beside its energy, and beside Psi4's: times and peak memory of whole processes.

    python scripts/benchmarks/gradient_cost.py [--threads 1] [--psi4] inputs/water-10.xyz C10H22.xyz > table.md

All electrons are correlated in cc-pVDZ, in each --precision; other options are the defaults. Processor time is that of
all threads, which a busy machine disturbs less than wall time. The gradient includes its energy. Times are the smallest
of --repeat runs, programs taking turns, and ratios those of these times, of the processor first, then of the wall.
--psi4 runs the `psi4` that is on PATH with the same fitting sets (its defaults), once, and compares gradients.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dfmp2.output.hdf5 import read

COMMAND = Path(sys.executable).with_name("dfmp2")
BASIS = "cc-pvdz"
PROGRAM = """import resource, subprocess, sys, time
begin = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, time.perf_counter() - begin, used.ru_maxrss / 1e3)
"""
INPUT = """molecule {{
0 1
{atoms}
symmetry c1
no_reorient
no_com
}}
set {{
basis {basis}
scf_type df
mp2_type df
freeze_core false
e_convergence 1e-8
d_convergence 1e-6
}}
memory 8 GB
gradient('mp2')
"""


def measure(arguments: list[str], folder: Path) -> tuple[float, float, float]:
    """Processor time and wall time, s, and peak memory, MB, of one command."""
    command = [sys.executable, "-P", "-c", PROGRAM, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    processor, wall, memory = (float(word) for word in done.stdout.split())
    return processor, wall, memory


def ours(command: str, molecule: Path, threads: int, precision: str) -> list[str]:
    """The command line of `dfmp2 run` or `dfmp2 gradient`."""
    options = [
        "--basis",
        BASIS,
        "--precision",
        precision,
        "--threads",
        str(threads),
        "--quiet",
        "--overwrite",
        "--output",
        f"{command}.h5",
    ]
    return [str(COMMAND), command, str(molecule.resolve()), *options]


def theirs(molecule: Path, threads: int, folder: Path) -> list[str]:
    """The command line of Psi4's gradient; writes its input."""
    atoms = "\n".join(molecule.read_text().splitlines()[2:])
    (folder / "psi4.in").write_text(INPUT.format(atoms=atoms, basis=BASIS))
    return ["psi4", "psi4.in", "psi4.out", "-n", str(threads)]


def difference(folder: Path) -> float:
    """Largest difference between both gradients, Eh/bohr."""
    found = read(folder / "gradient.h5").gradient
    if found is None:
        raise SystemExit("gradient.h5 holds no gradient")
    gradient = found.mp2_total_gradient
    lines = (
        (folder / "psi4.out")
        .read_text()
        .rpartition("-Total Gradient:")[2]
        .splitlines()[3 : 3 + len(gradient)]
    )
    return float(np.abs(gradient - [[float(x) for x in line.split()[1:4]] for line in lines]).max())


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("molecules", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--precision", nargs="+", default=["auto", "fp64"])
    parser.add_argument("--psi4", action="store_true", help="also Psi4's gradient")
    given = parser.parse_args()
    heads = ["molecule", "precision", "run", "gradient", "gradient / run"]
    heads += ["Psi4's gradient", "gradient / Psi4's", "difference, Eh/bohr"] if given.psi4 else []
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    for molecule in given.molecules:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            if given.psi4:
                reference = measure(theirs(molecule, given.threads, folder), folder)
            else:
                reference = None
            for precision in given.precision:
                commands = {
                    name: ours(name, molecule, given.threads, precision)
                    for name in ("run", "gradient")
                }
                found = [
                    {name: measure(line, folder) for name, line in commands.items()}
                    for _ in range(given.repeat)
                ]
                energy, whole = (
                    [min(run[name][k] for run in found) for k in range(3)] for name in commands
                )
                cells = [
                    molecule.stem,
                    precision,
                    _cell(energy),
                    _cell(whole),
                    _ratio(whole, energy),
                ]
                if reference is not None:
                    cells += [
                        _cell(reference),
                        _ratio(whole, reference),
                        f"{difference(folder):.1e}",
                    ]
                print("| " + " | ".join(cells) + " |", flush=True)


def _cell(measured: Sequence[float]) -> str:
    processor, wall, memory = measured
    return f"{processor:.1f} s, {wall:.1f} s, {memory:.0f} MB"


def _ratio(one: Sequence[float], other: Sequence[float]) -> str:
    return f"{one[0] / other[0]:.2f}, {one[1] / other[1]:.2f}"


if __name__ == "__main__":
    main()
