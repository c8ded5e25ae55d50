"""Called by docs/project/performance/plan.md: run many kinds of molecules as whole processes, and
write a page of predicted and measured time and memory.

    python scripts/benchmarks/plan_against_measurement.py --machine "2 cores of an AMD EPYC" --date
    "22 November 2026"

Calibrates first; takes about three minutes on two quiet cores. Every result file contains
prediction and measurement; this puts them side by side in docs/project/performance/plan.md.

    python scripts/benchmarks/plan_against_measurement.py --processor-time

does the same on a shared machine, with one thread and the processor time of whole commands. It
prints a line for each, and the number of those off by more than a factor of 2, but writes no page.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from long_tables import shortened
from make_alkane import alkane, to_xyz
from programs import private_folder, run_child, run_dfmp2

LAUNCH = 0.45  # s of a command outside its run, as in `dfmp2.planning.rates.Rates`
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "project" / "performance" / "plan.md"
FACTOR = 1.5
MIDDLE = ("integrals", "fit", "transform")
CASES: tuple[tuple[str, ...], ...] = (  # molecule, basis, further options
    ("h2o", "cc-pvdz"),
    ("h2o", "aug-cc-pvqz"),
    ("nh3", "cc-pvtz"),
    ("nh2", "cc-pvtz"),
    ("o2", "aug-cc-pvtz"),
    ("ch3oo", "cc-pvtz"),
    ("hbr", "cc-pvtz", "--relativity", "x2c"),
    ("glycine", "cc-pvdz"),
    ("glycine", "cc-pvtz", "--frozen-core", "auto"),
    ("glycine", "cc-pvdz", "--scf", "conventional"),
    ("acetate", "aug-cc-pvdz"),
    ("benzene", "cc-pvtz"),
    ("benzene", "cc-pvdz", "--stability", "full"),
    ("benzene", "cc-pvdz", "--certify-fit"),
    ("benzene", "cc-pvtz", "--method", "drpa"),
    ("ch2i2", "def2-tzvp"),
    ("nico4", "def2-svp"),
    ("ticl4", "def2-tzvp"),
    ("water-10", "cc-pvdz"),
    ("water-10", "cc-pvdz", "--memory", "250MB"),
    ("c10h22", "cc-pvdz", "--check"),
    ("water-8", "aug-cc-pvdz"),
)
WITH_FUNCTIONALS = (
    ("h2o", "cc-pvtz", "--method", "b2plyp"),
    ("glycine", "cc-pvdz", "--method", "b2plyp"),
    ("benzene", "cc-pvdz", "--method", "pwpb95"),
    ("nh2", "cc-pvtz", "--method", "ks", "--xc", "pbe0"),
)
TWICE = 2.0  # largest accepted error factor of predicted processor time
MEASURE = """
import time
from dfmp2.backends.cpu import CpuBackend
from dfmp2.planning import rates
rates.time.perf_counter = time.process_time
rates.measure_rates(CpuBackend(1), 1)
"""
# SCFs not converged by the first method tried
UNFORESEEN = (("phenyl", "cc-pvdz"), ("vcl4", "def2-svp"))

Atom = tuple[str, float, float, float]


def tetrahedron(centre: str, *ends: tuple[str, float]) -> list[Atom]:
    """A tetrahedral centre with atoms in four directions, distances in angstrom."""
    atoms: list[Atom] = [(centre, 0.0, 0.0, 0.0)]
    for x, y, z in ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)):
        atoms += [(symbol, *(r * c / math.sqrt(3) for c in (x, y, z))) for symbol, r in ends]
    return atoms


def methyl(*rest: Atom) -> list[Atom]:
    """A methyl group at the origin, and other atoms."""
    return [
        ("C", 0, 0, 0),
        ("H", 1.027, 0, -0.363),
        ("H", -0.514, 0.889, -0.363),
        ("H", -0.514, -0.889, -0.363),
        *rest,
    ]


def ring(symbol: str, count: int, radius: float) -> list[Atom]:
    """Corners of a hexagon."""
    angles = [math.pi / 3 * k for k in range(count)]
    return [(symbol, radius * math.cos(a), radius * math.sin(a), 0.0) for a in angles]


MADE: dict[str, tuple[list[Atom], str]] = {  # molecules not in inputs/: atoms in angstrom, comment
    "ch3oo": (methyl(("O", 0, 0, 1.45), ("O", 1.2, 0, 1.9)), "multiplicity=2"),
    "hbr": ([("H", 0, 0, 0), ("Br", 0, 0, 1.414)], ""),
    "acetate": (
        methyl(("C", 0, 0, 1.55), ("O", 1.105, 0, 2.12), ("O", -1.105, 0, 2.12)),
        "charge=-1",
    ),
    "nico4": (tetrahedron("Ni", ("C", 1.838), ("O", 2.979)), ""),
    "ticl4": (tetrahedron("Ti", ("Cl", 2.17)), ""),
    "vcl4": (tetrahedron("V", ("Cl", 2.14)), "multiplicity=2"),
    "phenyl": (ring("C", 6, 1.39) + ring("H", 5, 2.48), "multiplicity=2"),
}


def write_molecules(folder: Path) -> None:
    """Write xyz files of all molecules."""
    for path in (ROOT / "inputs").glob("*.xyz"):
        (folder / path.name).write_bytes(path.read_bytes())
    for name, (atoms, comment) in MADE.items():
        lines = [
            str(len(atoms)),
            comment,
            *(f"{s} {x:.6f} {y:.6f} {z:.6f}" for s, x, y, z in atoms),
        ]
        (folder / f"{name}.xyz").write_text("\n".join(lines) + "\n", encoding="ascii")
    (folder / "c10h22.xyz").write_text(to_xyz(alkane(10), "c10h22"), encoding="ascii")


def measured(case: Sequence[str], folder: Path, launch: float) -> dict[str, Any]:
    """Predicted and measured seconds and bytes of a run; `launch` is the predicted time of a
    command outside it, s."""
    molecule, basis, *more = case
    child, run = run_dfmp2(
        "run",
        f"{molecule}.xyz",
        "--basis",
        basis,
        *more,
        "--output",
        "x.h5",
        "--overwrite",
        "--quiet",
        folder=folder,
    )
    if child.code:
        raise SystemExit(f"{' '.join(case)} failed (exit code {child.code}): {child.ending()}")
    memory, spent, foreseen = run["memory"], run["timings"], run["predicted_timings"]
    times = {name: (foreseen[name], spent[name]) for name in ("scf", "pair_energies", "total")}
    times["middle"] = tuple(sum(found[name] for name in MIDDLE) for found in (foreseen, spent))
    return {
        "functions": run["sizes"]["nao"],
        "iterations": run["scf_iterations"],
        "seconds": times | {"command": (foreseen["total"] + launch, child.wall)},
        "bytes": (memory["predicted_peak"], memory["measured_peak"]),
        "foreign": child.foreign / child.wall,
    }


def side_by_side(pair: Sequence[float], digits: int = 2) -> str:
    """Predicted and measured, with their ratio."""
    foreseen, spent = pair
    return f"{foreseen:.{digits}f} | {spent:.{digits}f} | {foreseen / spent:.2f}"


def row_of(case: Sequence[str], found: dict[str, Any]) -> str:
    """A row of the table of times."""
    seconds = found["seconds"]
    stages = " | ".join(
        "{:.2f}, {:.2f}".format(*seconds[name]) for name in ("scf", "middle", "pair_energies")
    )
    totals = " | ".join(side_by_side(seconds[name]) for name in ("total", "command"))
    return (
        f"| {' '.join(case)} | {found['functions']} | {found['iterations']} | {stages} | {totals} |"
    )


def beyond(found: Sequence[dict[str, Any]], name: str) -> int:
    """Number of predictions off by more than FACTOR."""
    ratios = [foreseen / spent for foreseen, spent in (one["seconds"][name] for one in found)]
    return sum(not 1 / FACTOR <= ratio <= FACTOR for ratio in ratios)


def page(rows: dict[str, dict[str, Any]], machine: str, date: str, foreign: float) -> str:
    """The page; `rows` are keyed by the arguments of each case."""
    found = [rows[" ".join(case)] for case in CASES]
    heads = ("run", "functions", "SCF iterations", "SCF", "integrals, fit", "pair energies")
    totals = ("total, predicted", "measured", "ratio", "command, predicted", "measured", "ratio")
    head = f"| {' | '.join((*heads, *totals))} |\n|{'---|' * (len(heads) + len(totals))}"
    others = sum(one["foreign"] for one in rows.values()) / max(1, len(rows))
    memory = [
        f"| {' '.join(case)} | {side_by_side([x / 1e6 for x in rows[' '.join(case)]['bytes']], 0)} "
        "|"
        for case in CASES
    ]
    lines = [
        "# Plan against measurement",
        "",
        "The table compares predictions of `dfmp2 plan` with measured times in seconds, with "
        "default options except those",
        "named. For each stage the predicted time precedes the measured one. *Total* is the time "
        "stored in the result,",
        "*command* that of the whole process.",
        "",
        head,
        *(row_of(case, one) for case, one in zip(CASES, found, strict=True)),
        "",
        f"Off by more than a factor of {FACTOR}: {beyond(found, 'total')} of {len(found)} totals "
        f"and {beyond(found, 'command')} of {len(found)} commands.",
        "",
        "The number of iterations of a difficult SCF cannot be predicted:",
        "",
        head,
        *(row_of(case, rows[" ".join(case)]) for case in UNFORESEEN),
        "",
        "## Memory",
        "",
        "This table compares predicted and measured peaks of the resident memory, in MB:",
        "",
        "| run | predicted | measured | ratio |",
        "|---|---|---|---|",
        *memory,
        "",
        "These figures were measured with `python scripts/benchmarks/plan_against_measurement.py` "
        f"({machine}, {date}); the rates",
        f"were measured just before. Other processes used {foreign:.2f} cores while the rates were "
        f"measured, and {others:.2f} during the runs.",
    ]
    return "\n".join(lines) + "\n"


def by_processor_time(folder: Path) -> None:
    """Print predicted and spent processor seconds of each case with one thread."""
    cache = {"XDG_CACHE_HOME": str(folder)}
    child = run_child([sys.executable, "-P", "-c", MEASURE], folder, cache)
    if child.code:
        raise SystemExit(f"the rates could not be measured: {child.ending()}")
    beyond_twice = 0
    cases = (*CASES, *WITH_FUNCTIONALS)
    for molecule, basis, *more in cases:
        command = ("run", f"{molecule}.xyz", "--basis", basis, *more, "--threads", "1")
        files = ("--output", "x.h5", "--overwrite", "--quiet", "--json")
        program = (sys.executable, "-P", "-m", "dfmp2")
        child = run_child([*program, *command, *files], folder, cache)
        if child.code:
            raise SystemExit(f"{' '.join(command)} failed ({child.code}): {child.ending()}")
        foreseen = json.loads(child.out)["predicted_timings"]["total"] + LAUNCH
        ratio = foreseen / child.cpu
        if not 1 / TWICE <= ratio <= TWICE:
            beyond_twice += 1
        print(f"{' '.join(command):<60} {foreseen:8.2f} {child.cpu:8.2f} {ratio:6.2f}", flush=True)
    print(f"{beyond_twice} of {len(cases)} are off by more than a factor of {TWICE:g}")


def main() -> None:
    """Measure all cases, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", default="", help="class of the machine, for the page")
    parser.add_argument("--date", default="")
    parser.add_argument(
        "--processor-time", action="store_true", help="one thread, processor time, no page"
    )
    given = parser.parse_args()
    if given.processor_time:
        with private_folder() as name:
            write_molecules(Path(name))
            by_processor_time(Path(name))
        return
    if not given.machine or not given.date:
        parser.error("--machine and --date are needed for the page")
    rows: dict[str, dict[str, Any]] = {}
    with private_folder() as name:
        folder = Path(name)
        write_molecules(folder)
        _, plan = run_dfmp2("plan", "h2o.xyz", "--basis", "cc-pvdz", "--calibrate", folder=folder)
        foreign = plan["rates_measured"]["foreign_cores"]
        launch = plan["seconds"]["command"] - plan["seconds"]["total"]
        for case in (*CASES, *UNFORESEEN):
            found = measured(case, folder, launch)
            rows[" ".join(case)] = found
            print(row_of(case, found), flush=True)
        text = page(rows, given.machine, given.date, foreign)
        PAGE.write_text(shortened(text, PAGE), encoding="utf-8")


if __name__ == "__main__":
    main()
