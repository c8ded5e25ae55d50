"""Called by docs/project/performance/index.md: time this dfmp2 against another version on molecules
that neither was tuned on; a Markdown table.

    python scripts/benchmarks/versions.py --other OTHER/bin/python --repeats 3

OTHER is an environment with the other version. Whole processes with default options, which take
turns. The last column is what the default precision changes: two runs of this version, this one and
fp64, both with --scf-conv-tol 1e-12, since E(corr) is of first order in what the SCF leaves.
Geometries are those of ASE's G2 set, clusters are copies of them on a square or cube. Exit code 8
when an energy differs by more than --tolerance allows, 1e-7 Eh.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ase.build import molecule
from programs import options, private_folder, run_child

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = 1e-7  # Eh, the default --tolerance
APART = 4.2  # angstrom between molecules of a cluster, about
CASES: tuple[
    tuple[str, ...], ...
] = (  # molecule of G2, times copies, or file of inputs/; basis; further options
    ("C4H4O", "cc-pvtz"),
    ("C5H5N", "cc-pvtz"),
    ("C4H4NH", "def2-tzvp"),
    ("CH3CONH2", "cc-pvtz"),
    ("trans-butane", "cc-pvtz"),
    ("C3H6_D3h", "cc-pvqz"),
    ("C2Cl4", "cc-pvtz"),
    ("CH3COCH3", "cc-pvtz", "--frozen-core", "auto"),
    ("HF x 8", "cc-pvtz"),
    ("CH3OH x 4", "cc-pvtz"),
    ("C2H4 x 8", "cc-pvdz"),
    ("formic-acid-dimer", "cc-pvtz"),
    ("C2H5", "cc-pvtz"),
    ("NO2", "aug-cc-pvtz"),
    ("CH3CO", "cc-pvtz"),
    ("ch2i2", "def2-tzvp"),
    ("ch2i2", "def2-qzvp"),
    ("CH3CN", "aug-cc-pvtz"),
    ("SO2", "aug-cc-pvqz"),
    ("glycine", "aug-cc-pvdz"),
)


def write_molecule(name: str, path: Path) -> None:
    """The xyz file of a molecule of CASES."""
    given = ROOT / "inputs" / f"{name}.xyz"
    if given.exists():
        path.write_bytes(given.read_bytes())
        return
    kind, _, copies = name.partition(" x ")
    one, count = molecule(kind), int(copies or 1)
    edge = 1
    while edge**3 < count:
        edge += 1
    size = max(APART, float(np.ptp(one.positions, axis=0).max()) + 0.6 * APART)
    places = [np.array((k % edge, k // edge % edge, k // edge**2)) * size for k in range(count)]
    rows = [
        (s, *(x + place))
        for place in places
        for s, x in zip(one.symbols, one.positions, strict=True)
    ]
    unpaired = round(abs(float(one.get_initial_magnetic_moments().sum())))
    lines = [
        str(len(rows)),
        f"multiplicity={unpaired + 1}",
        *(f"{s} {x:.6f} {y:.6f} {z:.6f}" for s, x, y, z in rows),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


def run(python: str, case: tuple[str, ...], folder: Path, *more: str) -> dict[str, Any]:
    """What a version prints of a case, and the seconds of its process."""
    words = [
        "run",
        "x.xyz",
        "--basis",
        *case[1:],
        *more,
        "--output",
        "x.h5",
        "--overwrite",
        "--quiet",
        "--json",
    ]
    child = run_child([python, "-P", "-m", "dfmp2", *words], folder, {})
    if child.code:
        raise SystemExit(
            f"{python}: {' '.join(case)} failed (exit code {child.code}): {child.ending()}"
        )
    return {**json.loads(child.out), "wall": child.wall, "foreign": child.foreign / child.wall}


def main() -> None:
    """Run all, print a row each as it comes."""
    parser = options(__doc__ or "")
    parser.add_argument("--other", required=True, metavar="PYTHON", help="of the other version")
    given = parser.parse_args()
    names = ("scf_total_energy", "mp2_correlation_energy")
    records, worst = [], 0.0
    print(
        "| molecule | functions | iterations: before, now | before / s | now / s | ratio | "
        "dE(SCF), dE(corr) / Eh |"
    )
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        with private_folder(given.scratch) as place:
            folder = Path(place)
            write_molecule(case[0], folder / "x.xyz")
            threads = ("--threads", str(given.threads))
            exact, usual = (
                run(
                    sys.executable,
                    case,
                    folder,
                    "--precision",
                    kind,
                    "--scf-conv-tol",
                    "1e-12",
                    *threads,
                )
                for kind in ("fp64", "auto")
            )
            pairs = [
                [run(python, case, folder, *threads) for python in (given.other, sys.executable)]
                for _ in range(given.repeats)
            ]
        before, now = ([pair[k] for pair in pairs] for k in (0, 1))
        ratio = statistics.median(b["wall"] / a["wall"] for a, b in pairs)
        seconds = [statistics.median(found["wall"] for found in runs) for runs in (before, now)]
        away = [usual[name] - exact[name] for name in names]
        worst = max(worst, *map(abs, away))
        foreign = statistics.mean(found["foreign"] for found in (*before, *now))
        cycles = [runs[0]["scf_iterations"] for runs in (before, now)]
        records.append(
            {"case": case, "ratio": ratio, "seconds": seconds, "away": away, "foreign": foreign}
        )
        print(
            f"| {' '.join(case)} | {now[0]['sizes']['nao']} | {cycles[0]}, {cycles[1]} | "
            f"{seconds[0]:.2f} | {seconds[1]:.2f} | {ratio:.2f} | {away[0]:.0e}, {away[1]:.0e} |",
            flush=True,
        )
    total = statistics.geometric_mean(record["ratio"] for record in records)
    print(
        f"\nGeometric mean of the ratios {total:.2f}; largest "
        f"{max(record['ratio'] for record in records):.2f}."
    )
    print(
        f"Others used {statistics.mean(record['foreign'] for record in records):.2f} cores "
        "meanwhile."
    )
    if given.json:
        given.json.write_text(json.dumps(records), encoding="ascii")
    if worst > ALLOWED:
        print(f"dfmp2: energies differ by {worst:.0e} Eh, more than {ALLOWED:.0e}", file=sys.stderr)
        raise SystemExit(8)


if __name__ == "__main__":
    main()
