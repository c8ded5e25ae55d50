"""Run molecules of rising size as whole processes and print predicted against measured memory and time, as markdown.

    python scripts/benchmarks/plan_against_measurement.py            # calibrates first; about two minutes on two cores

Prediction and measurement stand in every result file; this only puts them side by side.
"""

from __future__ import annotations

from pathlib import Path

from programs import private_folder, run_dfmp2

INPUTS = Path(__file__).resolve().parents[2] / "inputs"
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


def main() -> None:
    """Print the table."""
    with private_folder() as name:
        folder = Path(name)
        run_dfmp2("plan", str(INPUTS / "h2o.xyz"), "--basis", "cc-pvdz", "--calibrate", folder=folder)
        print("| input | memory: predicted | measured | ratio | time: predicted | measured | ratio |")
        print("|---|---|---|---|---|---|---|")
        for number, (molecule, basis, *budget) in enumerate(CASES):
            arguments = [
                "run",
                str(INPUTS / f"{molecule}.xyz"),
                "--basis",
                basis,
                "--output",
                f"{number}.h5",
                "--quiet",
            ]
            child, run = run_dfmp2(*arguments, *(("--memory", *budget) if budget else ()), folder=folder)
            if child.code:
                raise SystemExit(f"{molecule} {basis} failed (exit code {child.code}): {child.ending()}")
            memory, timings, predicted = run["memory"], run["timings"], run["predicted_timings"]
            sizes = memory["predicted_peak"] / 1e6, memory["measured_peak"] / 1e6
            times = predicted["total"], timings["total"]
            print(
                f"| {' '.join((molecule, basis, *budget))} "
                f"| {sizes[0]:.0f} MB | {sizes[1]:.0f} MB | {sizes[0] / sizes[1]:.2f} "
                f"| {times[0]:.2f} s | {times[1]:.2f} s | {times[0] / times[1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
