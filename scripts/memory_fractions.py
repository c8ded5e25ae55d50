"""Run one molecule at fractions of its comfortable memory, as whole processes, and print a table as markdown.

    python scripts/memory_fractions.py inputs/c20h42.xyz --basis cc-pvdz
    python scripts/memory_fractions.py inputs/water-8.xyz --basis cc-pvqz --fractions 1,3,10

Comfortable is the smallest budget with which `dfmp2 plan` keeps every array in memory. All runs use --precision fp64
and the same threads. A fraction below the smallest budget that works is shown as refused, and that one is run instead.
Exit code 1: an energy differs by more than 1e-10 Eh, a peak exceeds its budget by 10 % + 200 MB, or scratch is left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).with_name("dfmp2"))
MEGABYTE = 10**6
SAME_ENERGY = 1e-10  # Eh
REFUSED = 7  # exit code


def plan(arguments: list[str]) -> dict[str, Any]:
    """Memory of a run in bytes, from `dfmp2 plan`."""
    done = subprocess.run([COMMAND, "plan", *arguments, "--json"], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout)["memory_bytes"])


def measure(arguments: list[str], budget: int, scratch: str) -> tuple[int, float, int, dict[str, Any]]:
    """Exit code, wall time in s, peak resident bytes of the whole process, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "x.json"
        options = ["--memory", f"{budget}B", "--scratch", scratch, "--output", f"{folder}/x.h5", "--json", "--quiet"]
        start = time.perf_counter()
        with open(output, "w") as handle:
            process = subprocess.Popen([COMMAND, "run", *arguments, *options], stdout=handle, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
        taken = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        text = output.read_text()
    return process.returncode, taken, usage.ru_maxrss * 1024, json.loads(text) if text else {}


def main() -> int:
    """Print the table; 1 if a run broke its promise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("molecule")
    parser.add_argument("--basis", required=True)
    parser.add_argument("--fractions", default="1,3,10", help="divisors of the comfortable memory")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--scratch", help="folder to make scratch in")
    given = parser.parse_args()
    arguments = [given.molecule, "--basis", given.basis, "--precision", "fp64", "--threads", given.threads]
    memory = plan([*arguments, "--memory", "100TB"])
    print("| budget | fraction | SCF integrals, B | dE / Eh | peak RSS | time / s | slowdown | written, read |")
    print("|---|---|---|---|---|---|---|---|")
    first: tuple[float, float] | None = None
    broken = False
    # A few MB more: libraries differ in size from one process to the next.
    budgets = [(f"1/{d}", memory["comfortable"] // int(d) + 4 * MEGABYTE) for d in given.fractions.split(",")]
    waiting = list(reversed(budgets))
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        while waiting:
            name, budget = waiting.pop()
            code, taken, peak, facts = measure(arguments, budget, scratch)
            shown = f"{budget / MEGABYTE:.0f} MB"
            if code == REFUSED and name != "least":
                print(f"| {shown} | {name} | refused before the SCF in {taken:.1f} s | | | | | |", flush=True)
                waiting.append(("least", memory["least"] + 4 * MEGABYTE))
                continue
            if code:
                print(f"| {shown} | {name} | exit code {code} | | | | | |", flush=True)
                return 1
            energy, storage = facts["mp2_total_energy"], facts["storage"]
            first = first or (energy, taken)
            difference = energy - first[0]
            limit = 1.1 * budget + 200 * MEGABYTE
            broken |= abs(difference) > SAME_ENERGY or peak > limit or bool(os.listdir(scratch))
            print(
                f"| {shown} | {name} | {storage['scf_integrals']}, {storage['fitted_tensor']} | {difference:+.1e} "
                f"| {peak / MEGABYTE:.0f} MB | {taken:.1f} | {taken / first[1]:.2f} "
                f"| {storage['written'] / 1e9:.2f}, {storage['read'] / 1e9:.2f} GB |",
                flush=True,
            )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
