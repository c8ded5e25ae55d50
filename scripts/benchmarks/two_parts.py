"""What a run in two parts costs, beside the same run in one piece: CPU and wall time, peak memory, size of the file.

    python scripts/benchmarks/two_parts.py inputs/water-8.xyz --basis cc-pvtz

Exit code 1 when the energies are not the same number.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from programs import private_folder, run_dfmp2


def measured(*arguments: str, folder: Path, threads: int) -> dict[str, Any]:
    """Run a command and print a line of the table; the JSON object it printed."""
    child, found = run_dfmp2(*arguments, "--precision", "fp64", folder=folder, threads=threads)
    if child.code:
        raise SystemExit(f"dfmp2 {arguments[0]} failed (exit code {child.code}): {child.ending()}")
    print(
        f"| `dfmp2 {arguments[0]}` | {child.cpu:.1f} | {child.wall:.1f} | {child.peak / 1e6:.0f} MB |",
        flush=True,
    )
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("molecule", type=Path)
    parser.add_argument("--basis", required=True)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    what, n = (str(given.molecule.resolve()), "--basis", given.basis), given.threads
    print("| whole process | CPU / s | wall / s | peak memory |\n|---|---|---|---|")
    with private_folder() as name:
        folder = Path(name)
        prepared = measured("prepare", *what, "--output", "x.prepared.h5", folder=folder, threads=n)
        size = (folder / "x.prepared.h5").stat().st_size
        parts = measured(
            "energy", "--from", "x.prepared.h5", "--output", "parts.h5", folder=folder, threads=n
        )
        whole = measured("run", *what, "--output", "whole.h5", folder=folder, threads=n)
    b = prepared["fitted_tensor"]
    print(f"\nB {b['shapes']}, {b['bytes'] / 1e6:.1f} MB; file {size / 1e6:.1f} MB")
    print(
        f"E(MP2) {parts['mp2_total_energy']!r} in parts, {whole['mp2_total_energy']!r} in one piece"
    )
    return int(parts["mp2_total_energy"] != whole["mp2_total_energy"])


if __name__ == "__main__":
    sys.exit(main())
