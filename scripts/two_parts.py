"""What a run in two parts costs, beside the same run in one piece: CPU and wall time, peak memory, size of the file.

    python scripts/two_parts.py inputs/water-8.xyz --basis cc-pvtz

Exit code 1 when the energies are not the same number.
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

COMMAND = Path(sys.executable).with_name("dfmp2")


def measured(*arguments: str, cwd: str) -> dict[str, Any]:
    """Run a command and print a line of the table; the JSON object it printed."""
    begun = time.monotonic()
    process = subprocess.Popen([COMMAND, *arguments, "--json"], cwd=cwd, stdout=subprocess.PIPE)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(process.returncode)
    cpu, wall = usage.ru_utime + usage.ru_stime, time.monotonic() - begun
    print(f"| `dfmp2 {arguments[0]}` | {cpu:.1f} | {wall:.1f} | {usage.ru_maxrss * 1024 / 1e6:.0f} MB |", flush=True)
    return dict(json.loads(text))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("molecule")
    parser.add_argument("--basis", required=True)
    parser.add_argument("--threads", default="2")
    given = parser.parse_args()
    both = ("--precision", "fp64", "--threads", given.threads)
    what = (str(Path(given.molecule).resolve()), "--basis", given.basis, *both)
    print("| whole process | CPU / s | wall / s | peak memory |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        prepared = measured("prepare", *what, "--output", "x.prepared.h5", cwd=folder)
        size = Path(folder, "x.prepared.h5").stat().st_size
        parts = measured("energy", "--from", "x.prepared.h5", *both, "--output", "parts.h5", cwd=folder)
        whole = measured("run", *what, "--output", "whole.h5", cwd=folder)
    b = prepared["fitted_tensor"]
    print(f"\nB {b['shapes']}, {b['bytes'] / 1e6:.1f} MB; file {size / 1e6:.1f} MB")
    print(f"E(MP2) {parts['mp2_total_energy']!r} in parts, {whole['mp2_total_energy']!r} in one piece")
    return int(parts["mp2_total_energy"] != whole["mp2_total_energy"])


if __name__ == "__main__":
    sys.exit(main())
