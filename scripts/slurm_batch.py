"""Called by scripts/test_slurm: make its batch, small molecules and water clusters in one manifest,
and compare the energies.

slurm_batch.py make FOLDER          molecules and batch.toml
slurm_batch.py compare A.json B.json   two tables of `dfmp2 batch collect`; exit code 1 above 1e-10 Eh
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path

ALLOWED = 1e-10  # Eh
SMALL = ("h2o", "ch4", "nh3", "nh2", "o2")  # from inputs/, including a radical and a triplet
COPIES = 4
# Numbers of waters; the first runs longer than Slurm's interval for checking time limits, 30 s
CLUSTERS = (18, 6, 6, 6, 6)
HEAD = """basis = "cc-pvdz"
precision = "fp64"
output = "out"
"""
WATER = (("O", 0.0, 0.0, 0.1173), ("H", 0.0, 0.7572, -0.4692), ("H", 0.0, -0.7572, -0.4692))
APART = 3.0  # angstrom
MOVED = 0.02  # angstrom


def make(folder: Path) -> None:
    """25 molecules: moved copies of small ones, and clusters that run long enough to be
    interrupted."""
    inputs, moves = Path(__file__).parent.parent / "inputs", random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name in SMALL:
        count, comment, *atoms = (inputs / f"{name}.xyz").read_text().splitlines()
        for copy in range(COPIES):
            rows = [move(row, moves) for row in atoms if row.strip()]
            names.append(f"{name}-{copy}")
            (folder / f"{names[-1]}.xyz").write_text("\n".join([count, comment, *rows]) + "\n")
    for number, waters in enumerate(CLUSTERS):
        rows = [
            move(f"{s} {APART * k + x} {y} {z}", moves)
            for k in range(waters)
            for s, x, y, z in WATER
        ]
        names.append(f"cluster-{number}")
        (folder / f"{names[-1]}.xyz").write_text("\n".join([str(3 * waters), "", *rows]) + "\n")
    tables = "".join(f'[[item]]\nmolecule = "{name}.xyz"\n' for name in names)
    (folder / "batch.toml").write_text(HEAD + tables)


def move(row: str, moves: random.Random) -> str:
    """A slightly displaced atom."""
    symbol, *place = row.split()[:4]
    return " ".join([symbol, *(f"{float(x) + moves.uniform(-MOVED, MOVED):.6f}" for x in place)])


def compare(first: Path, second: Path) -> int:
    """Print the differences between two tables."""
    tables = [
        {row["name"]: row for row in json.loads(path.read_text())["items"]}
        for path in (first, second)
    ]
    if tables[0].keys() != tables[1].keys():
        print(f"the tables hold different items: {sorted(tables[0].keys() ^ tables[1].keys())}")
        return 1
    keys = [key for key in next(iter(tables[0].values())) if key.endswith("_energy")]
    gaps = [abs(tables[0][name][key] - tables[1][name][key]) for name in tables[0] for key in keys]
    same = sum(gap == 0.0 for gap in gaps)
    said = f"{len(tables[0])} items, {len(gaps)} energies: {same} equal to the last bit"
    print(f"{said}, largest difference {max(gaps):.1e} Eh")
    return int(not math.isfinite(sum(gaps)) or max(gaps) > ALLOWED)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])))
