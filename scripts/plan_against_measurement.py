"""Run molecules of rising size as whole processes and print predicted against measured memory and time, as markdown.

    python scripts/plan_against_measurement.py            # calibrates first; about two minutes on two cores

Prediction and measurement stand in every result file; this only puts them side by side.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
CASES = (
    ("h2o", "cc-pvdz"),
    ("glycine", "cc-pvdz"),
    ("benzene", "cc-pvtz"),
    ("water-10", "cc-pvdz"),
    ("water-8", "cc-pvtz"),
    ("c20h42", "cc-pvdz"),
    ("water-10", "cc-pvdz", "250MB"),  # with a budget: large arrays on disk
    ("c20h42", "cc-pvdz", "460MB"),
)


def dfmp2(*arguments: str) -> dict[str, object]:
    """Run a dfmp2 command with --json and return its object."""
    command = [str(Path(sys.executable).with_name("dfmp2")), *arguments, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Print the table."""
    dfmp2("plan", str(ROOT / "inputs" / "h2o.xyz"), "--basis", "cc-pvdz", "--calibrate")
    print("| input | memory: predicted | measured | ratio | time: predicted | measured | ratio |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, basis, *budget) in enumerate(CASES):
            xyz, output = str(ROOT / "inputs" / f"{name}.xyz"), str(Path(folder) / f"{number}.h5")
            allowed = ("--memory", *budget) if budget else ()
            run = dfmp2("run", xyz, "--basis", basis, "--output", output, "--quiet", *allowed)
            memory, timings, predicted = run["memory"], run["timings"], run["predicted_timings"]
            sizes = memory["predicted_peak"] / 1e6, memory["measured_peak"] / 1e6  # type: ignore[index]
            times = predicted["total"], timings["total"]  # type: ignore[index]
            print(
                f"| {' '.join((name, basis, *budget))} "
                f"| {sizes[0]:.0f} MB | {sizes[1]:.0f} MB | {sizes[0] / sizes[1]:.2f} "
                f"| {times[0]:.2f} s | {times[1]:.2f} s | {times[0] / times[1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
