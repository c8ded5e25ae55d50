"""Called by scripts/benchmarks/run.sh: time dfmp2 and other programs on one molecule, as whole
processes from an xyz file to the energy, in turns: A B C A B C ...

    python scripts/benchmarks/race.py inputs/benzene.xyz --basis cc-pvtz --against
    pyscf,pyscf-tuned,psi4 --repeats 5

All use the same geometry, orbital and fitting sets and frozen core, and converge to 1e-10 Eh and an
orbital gradient of 1e-6 (Psi4: a root mean square of 1e-7, its own measure). Every program first
computes H2 once, untimed, so that its files are in the system's cache and a program that does not
work is found before the long run. `pyscf-tuned` is PySCF with OPENBLAS_NUM_THREADS=1. Arguments
after `--`, following the molecule, as in `inputs/benzene.xyz -- --frozen-core auto`, are options of
`dfmp2 run`; the other programs repeat the resulting calculation. With `--gradient` dfmp2 also
computes the gradient, PySCF that of its SCF instead of MP2, and Psi4 only the energy. Final
integration grids must have the same number of points within 10 %: programs prune them differently,
and `--psi4-grid` selects another one for Psi4. Prints Markdown; exit code 8 when
energies differ by more than 1e-7 Eh.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tables
from programs import FOLDER, options, peer_settings, private_folder, run_child, touch_memory
from pyscf_script import pyscf_script

import dfmp2
from dfmp2.host import resources
from dfmp2.mp2.result import MP2Result
from dfmp2.options import parse_bytes
from dfmp2.progress import Listener
from dfmp2.validation.bench import ratios, spread, watch
from dfmp2.validation.psi4 import find_psi4, parse_output, psi4_input

TOLERANCE = 1e-7  # Eh; largest energy difference between two programs
POINTS = 0.1  # largest relative difference of the number of grid points from ours
PSI4_CONVERGENCE = 1e-7  # d_convergence
SHORTEST = 0.005  # s; no ratios for shorter stages, which the programs print with three decimals
H2 = "2\nH2\nH 0 0 0\nH 0 0 0.74\n"
MEASURES: dict[
    str, Callable[[dict[str, Any]], float]
] = {  # "rest" is start-up, imports, reading, writing
    "total": lambda run: run["child"]["wall"],
    "SCF": lambda run: run["outcome"]["stages"]["scf"],
    "MP2 integrals, fit": lambda run: run["outcome"]["stages"]["between"],
    "pair energies": lambda run: run["outcome"]["stages"]["pairs"],
    "rest": lambda run: run["child"]["wall"] - sum(run["outcome"]["stages"].values()),
    # of all threads and child processes: the measure to use on a shared machine
    "processor": lambda run: run["child"]["cpu"],
    "peak memory": lambda run: run["child"]["peak"] / 1e6,
}
# A line of the upper, flat half of Psi4's timer.dat is repeated in the lower one, nested by "| ".
_TIMER = re.compile(r"^(\S.*?)\s*:\s+\S+u\s+\S+s\s+(\d+\.\d+)w\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a program.

    Attributes
    ----------
    program : name and version
    scf_energy, correlation_energy : Eh; None if not computed
    sizes : orbital functions, MP2 fitting functions, correlated occupied and virtual orbitals
        (alpha)
    stages : wall seconds of "scf", "between" (MP2 integrals, transformation, fit) and "pairs"
    cycles : SCF iterations, None if the program does not tell
    points : of the final integration grid, 0 for Hartree-Fock
    """

    program: str
    scf_energy: float
    correlation_energy: float | None
    sizes: tuple[int, ...]
    stages: dict[str, float]
    cycles: int | None
    points: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """One program with its settings.

    Attributes
    ----------
    name : printed name
    settings : environment variables
    write : writes its input to a folder and returns the command, given the result of dfmp2
    read : reads its output from the folder
    """

    name: str
    settings: dict[str, str]
    write: Callable[[Path, MP2Result | None], list[str]]
    read: Callable[[Path], Outcome]


def ours(
    basis: str, precision: str, threads: int, more: list[str], *, gradient: bool = False
) -> Program:
    """dfmp2 in one precision."""
    task = "run"
    if gradient:
        task = "gradient"
    command = [
        sys.executable,
        "-P",
        "-m",
        "dfmp2",
        task,
        "molecule.xyz",
        f"--basis={basis}",
        *more,
    ]
    command += [
        "--threads",
        str(threads),
        "--precision",
        precision,
        "--output",
        "result.h5",
        "--quiet",
    ]
    return Program(
        "dfmp2" if precision == "auto" else f"dfmp2 {precision}", {}, lambda *_: command, read_ours
    )


def peers(threads: int, *, gradient: bool, psi4_grid: str) -> dict[str, Program]:
    """The other programs, by name.

    Parameters
    ----------
    threads : of each
    gradient : whether PySCF computes the gradient of the SCF instead of MP2
    psi4_grid : NRAD,NANG of Psi4's integration grid, "" for those of dfmp2
    """

    def write_pyscf(folder: Path, result: MP2Result | None) -> list[str]:
        assert result is not None
        text = pyscf_script(result, "molecule.xyz", gradient=gradient)
        (folder / "peer.py").write_text(text, encoding="utf-8")
        return [sys.executable, "peer.py"]

    def write_psi4(folder: Path, result: MP2Result | None) -> list[str]:
        assert result is not None
        if result.options.correlation.kind == "none":
            raise SystemExit("psi4 is not raced with a functional alone: leave it out of --against")
        memory = int(0.7 * resources.available_memory())
        text = psi4_input(result, memory, PSI4_CONVERGENCE)
        if psi4_grid:
            radial, angular = psi4_grid.split(",")
            text = re.sub("dft_radial_points [0-9]+", f"dft_radial_points {radial}", text)
            text = re.sub("dft_spherical_points [0-9]+", f"dft_spherical_points {angular}", text)
        (folder / "input.dat").write_text(text, encoding="ascii")
        return [find_psi4() or "psi4", "-n", str(threads), "-s", str(folder)]

    one = peer_settings(threads)
    return {
        "pyscf": Program("pyscf", one, write_pyscf, read_pyscf),
        "pyscf-tuned": Program(
            "pyscf-tuned", {**one, "OPENBLAS_NUM_THREADS": "1"}, write_pyscf, read_pyscf
        ),
        "psi4": Program(
            "psi4", {**one, "HOME": FOLDER}, write_psi4, read_psi4
        ),  # Psi4 would execute a ~/.psi4rc
    }


def read_ours(folder: Path) -> Outcome:
    """The results in a file of dfmp2."""
    result = dfmp2.read(folder / "result.h5")
    times = asdict(result.timings)
    scf, pairs = times["scf"], times["pair_energies"]
    between = sum(
        value for name, value in times.items() if name not in ("scf", "pair_energies", "total")
    )
    correlation = None
    if result.options.correlation.kind == "pairs":
        correlation = result.pairs.correlation_energy
    return Outcome(
        program=f"dfmp2 {result.provenance.version}, {result.backend}, {result.precision}",
        scf_energy=result.scf_total_energy,
        correlation_energy=correlation,
        sizes=(result.sizes.nao, result.sizes.naux, result.sizes.nocc[0], result.sizes.nvir[0]),
        stages={"scf": scf, "between": between, "pairs": pairs},
        cycles=result.reference.cycles,
        points=int(result.reference.grid_points or 0),
    )


def read_pyscf(folder: Path) -> Outcome:
    """The results written by pyscf_script.py."""
    facts = json.loads((folder / "peer.json").read_text(encoding="ascii"))
    times = facts.pop("seconds")
    scf, between = times["fitted integrals"] + times["scf"], times.get("mp2 integrals", 0.0)
    between += times.get("gradient", 0.0)
    stages = {"scf": scf, "between": between, "pairs": times.get("pair energies", 0.0)}
    return Outcome(**{**facts, "sizes": tuple(facts["sizes"])}, stages=stages)


def read_psi4(folder: Path) -> Outcome:
    """The results in Psi4's output.dat and timer.dat."""
    text = (folder / "output.dat").read_text(encoding="utf-8", errors="replace")
    found = parse_output(text)
    times = psi4_times((folder / "timer.dat").read_text(encoding="utf-8", errors="replace"))
    mp2 = {name: value for name, value in times.items() if name.startswith("DFMP2")}
    pairs = mp2.pop("DFMP2 Energy", 0.0)
    scf = sum(value for name, value in times.items() if not name.startswith("DFMP2"))
    iterations = re.findall(r"^\s*@\S+ iter\s+(\d+):", text, re.MULTILINE)
    points = re.findall(r"^\s*Total Points\s*=\s*(\d+)", text, re.MULTILINE)
    return Outcome(
        program=found.energies.program,
        scf_energy=found.energies.scf_total_energy,
        correlation_energy=found.energies.same_spin + found.energies.opposite_spin,
        sizes=(found.nao, found.naux, *found.active[0]),
        stages={"scf": scf, "between": sum(mp2.values()), "pairs": pairs},
        cycles=int(iterations[-1]) if iterations else None,
        points=int(points[-1]) if points else 0,
    )


def psi4_times(text: str) -> dict[str, float]:
    """Wall seconds of the outermost timers of Psi4's timer.dat, whose lower half is nested."""
    found: dict[str, float] = {}
    for name, wall in _TIMER.findall(text.rpartition("-----")[2]):
        if not name.startswith("|"):
            found[name] = found.get(name, 0.0) + float(wall)
    return found


def run_all(
    programs: list[Program], molecule: str, parent: Path, touched: int
) -> tuple[list[dict[str, Any]], str]:
    """Run every program once, in order, beginning with dfmp2; returns also the title of the
    calculation."""
    runs: list[dict[str, Any]] = []
    result: MP2Result | None = None
    for program in programs:
        folder = parent / "run"
        folder.mkdir()
        (folder / "molecule.xyz").write_text(molecule, encoding="utf-8")
        command = program.write(folder, result)
        if touched:
            touch_memory(touched)
        child = run_child(command, folder, program.settings)
        if child.code:
            raise SystemExit(f"{program.name} failed (exit code {child.code}): {child.ending()}")
        outcome = program.read(folder)
        if runs:
            require_same(program.name, outcome, runs[0]["outcome"])
        print(
            f"{program.name:<12} {child.wall:8.2f} s, processor {child.cpu:.2f} s, "
            f"peak {child.peak / 1e6:.0f} MB, {outcome.points} points  "
            f"E(SCF) {outcome.scf_energy:.10f}, E(corr) {outcome.correlation_energy} Eh",
            file=sys.stderr,
        )
        runs.append({"lane": program.name, "child": child.facts(), "outcome": asdict(outcome)})
        result = result or dfmp2.read(folder / "result.h5")
        shutil.rmtree(folder)
    assert result is not None
    sizes = runs[0]["outcome"]["sizes"]
    return (
        runs,
        f"{result.molecule.formula}, {result.reference.kind.upper()}, functions, fitting, occ., "
        f"virt. {sizes}",
    )


def require_same(name: str, outcome: Outcome, of_dfmp2: dict[str, Any]) -> None:
    """Raise if a program did a different calculation from dfmp2."""
    sizes = list(outcome.sizes)
    if outcome.correlation_energy is None:  # no MP2 fitting set, no frozen core
        sizes[1:] = []
    if sizes != list(of_dfmp2["sizes"])[: len(sizes)]:
        raise SystemExit(
            f"{name} did another calculation: {outcome.sizes}, not {of_dfmp2['sizes']}"
        )
    if abs(outcome.points - of_dfmp2["points"]) > POINTS * of_dfmp2["points"]:
        raise SystemExit(
            f"the grid of {name} has {outcome.points} points, that of dfmp2 {of_dfmp2['points']}: "
            f"more than {POINTS:.0%} apart; name another grid with --psi4-grid"
        )


def compared(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and ranges for every program, ratios run by run, and largest energy differences."""
    names = list(dict.fromkeys(run["lane"] for run in runs))
    of = {name: [run for run in runs if run["lane"] == name] for name in names}
    own = [name for name in names if name.startswith("dfmp2")]
    pairs = [(mine, other) for mine in own for other in names if other not in own]
    medians, found = {}, {}
    for name in names:
        measured = {key: asdict(spread(list(map(get, of[name])))) for key, get in MEASURES.items()}
        outcome = of[name][0]["outcome"]
        medians[name] = {
            "program": outcome["program"],
            "points": outcome["points"],
            "cycles": outcome["cycles"],
            **measured,
        }
    for mine, other in pairs:
        values = {
            key: (list(map(get, of[mine])), list(map(get, of[other])))
            for key, get in MEASURES.items()
        }
        found[f"{mine} / {other}"] = {
            key: asdict(ratios(a, b)) if min(*a, *b) >= SHORTEST else None
            for key, (a, b) in values.items()
        }
    differences = {}
    for mine, other in [*pairs, *((own[0], name) for name in own[1:])]:
        both = [(a["outcome"], b["outcome"]) for a, b in zip(of[mine], of[other], strict=True)]
        differences[f"{mine} - {other}"] = {
            key: max((a[f"{key}_energy"] - b[f"{key}_energy"] for a, b in both), key=abs)
            for key in ("scf", "correlation")
            if all(one[f"{key}_energy"] is not None for pair in both for one in pair)
        }
    return {"lanes": medians, "ratios": found, "differences": differences}


def main() -> int:
    """Command line."""
    parser = options(__doc__ or "")
    parser.set_defaults(repeats=3)
    parser.add_argument("molecule", type=Path, help="xyz file")
    parser.add_argument("--basis", required=True)
    parser.add_argument("--against", default="", help="pyscf, pyscf-tuned, psi4; with commas")
    parser.add_argument("--precision", default="auto,fp64", help="auto, fp64, mixed; with commas")
    parser.add_argument(
        "--touch", default="", metavar="SIZE", help="write to this much memory before every run"
    )
    parser.add_argument(
        "--gradient", action="store_true", help="dfmp2 and PySCF compute a gradient too"
    )
    parser.add_argument(
        "--psi4-grid", default="", metavar="NRAD,NANG", help="of Psi4, whose pruning differs"
    )
    parser.add_argument("more", nargs="*", help="after --: options of dfmp2 run")
    given = parser.parse_args()
    known = peers(given.threads, gradient=given.gradient, psi4_grid=given.psi4_grid)
    wanted = [name for name in given.against.split(",") if name]
    if unknown := [name for name in wanted if name not in known]:
        parser.error(
            f"--against {unknown[0]}: expected one or more of {', '.join(known)}, with commas "
            "between"
        )
    precisions = given.precision.split(",")

    def programs(basis: str, more: list[str]) -> list[Program]:
        return [
            *(
                ours(basis, precision, given.threads, more, gradient=given.gradient)
                for precision in precisions
            ),
            *(known[name] for name in wanted),
        ]

    header, runs, title = watch(Listener()), [], ""
    touched = parse_bytes(given.touch) if given.touch else 0
    with private_folder(given.scratch) as folder:
        run_all(programs("cc-pvdz", []), H2, Path(folder), 0)
        for _ in range(given.repeats):
            done, title = run_all(
                programs(given.basis, given.more),
                given.molecule.read_text(encoding="utf-8"),
                Path(folder),
                touched,
            )
            runs += done
    found = {
        "mode": "race",
        "machine": asdict(header),
        "load_average_after": os.getloadavg()[0],
        "memory_touched_bytes": touched,
        "title": f"{given.molecule.stem} {given.basis}: {title}",
        "threads": given.threads,
        **compared(runs),
        "runs": runs,
    }
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print("\n".join(tables.race_table(found)))
    return 8 * any(
        abs(value) > TOLERANCE for pair in found["differences"].values() for value in pair.values()
    )


if __name__ == "__main__":
    sys.exit(main())
