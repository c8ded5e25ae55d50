"""Run one molecule at fractions of its comfortable memory, as whole processes, and print a table as markdown.

    python scripts/benchmarks/memory_fractions.py inputs/c20h42.xyz --basis cc-pvdz
    python scripts/benchmarks/memory_fractions.py inputs/water-8.xyz --basis cc-pvqz --fractions 1,3,10

Comfortable is the smallest budget with which `dfmp2 plan` keeps every array in memory. All runs use --precision fp64
and the same threads. A fraction below the smallest budget that works is shown as refused, and that one is run instead.
Exit code 1: an energy differs by more than 1e-10 Eh, a peak exceeds its budget by 10 % + 200 MB, or scratch is left.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from programs import private_folder, run_dfmp2

MEGABYTE = 10**6
SAME_ENERGY = 1e-10  # Eh
REFUSED = 7  # exit code


def main() -> int:
    """Print the table; 1 if a run broke its promise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("molecule", type=Path)
    parser.add_argument("--basis", required=True)
    parser.add_argument("--fractions", default="1,3,10", help="divisors of the comfortable memory")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scratch", help="folder to make scratch in")
    given = parser.parse_args()
    arguments = [str(given.molecule.resolve()), "--basis", given.basis, "--precision", "fp64"]
    with private_folder() as folder:
        planned = [*arguments, "--memory", "100TB"]
        memory = run_dfmp2("plan", *planned, folder=Path(folder), threads=given.threads)[1]["memory_bytes"]
    print("| budget | fraction | SCF integrals, B | dE / Eh | peak RSS | time / s | slowdown | written, read |")
    print("|---|---|---|---|---|---|---|---|")
    first: tuple[float, float] | None = None
    broken = False
    # A few MB more: libraries differ in size from one process to the next.
    budgets = [(f"1/{d}", memory["comfortable"] // int(d) + 4 * MEGABYTE) for d in given.fractions.split(",")]
    waiting = list(reversed(budgets))
    with private_folder(given.scratch) as scratch:
        while waiting:
            name, budget = waiting.pop()
            with private_folder() as folder:
                options = ["--memory", f"{budget}B", "--scratch", scratch, "--output", "x.h5", "--quiet"]
                child, facts = run_dfmp2("run", *arguments, *options, folder=Path(folder), threads=given.threads)
            shown = f"{budget / MEGABYTE:.0f} MB"
            if child.code == REFUSED and name != "least":
                print(f"| {shown} | {name} | refused before the SCF in {child.wall:.1f} s | | | | | |", flush=True)
                waiting.append(("least", memory["least"] + 4 * MEGABYTE))
                continue
            if child.code:
                print(f"| {shown} | {name} | exit code {child.code} | | | | | |", flush=True)
                return 1
            energy, storage = facts["mp2_total_energy"], facts["storage"]
            first = first or (energy, child.wall)
            difference = energy - first[0]
            limit = 1.1 * budget + 200 * MEGABYTE
            broken |= abs(difference) > SAME_ENERGY or child.peak > limit or bool(os.listdir(scratch))
            print(
                f"| {shown} | {name} | {storage['scf_integrals']}, {storage['fitted_tensor']} | {difference:+.1e} "
                f"| {child.peak / MEGABYTE:.0f} MB | {child.wall:.1f} | {child.wall / first[1]:.2f} "
                f"| {storage['written'] / 1e9:.2f}, {storage['read'] / 1e9:.2f} GB |",
                flush=True,
            )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
