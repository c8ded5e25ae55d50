"""How far one molecule, or a campaign of small ones, goes on N nodes: arithmetic from unit costs measured here.

    python scripts/benchmarks/scale.py measure > docs/performance/scale.json    # minutes, on a quiet machine
    python scripts/benchmarks/scale.py page docs/performance/scale.json > docs/performance/scale.md

`measure` runs dfmp2 itself: a molecule in two parts (`prepare`, then `energy` with one process and with workers) and a
batch of waters with one and two workers. `page` multiplies; whatever is not measured is in MODEL and on the page.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from batch_throughput import write_molecules
from make_alkane import alkane, to_xyz
from programs import private_folder, run_dfmp2

from dfmp2.progress import Listener
from dfmp2.validation.machine import watch

INPUTS = Path(__file__).resolve().parents[2] / "inputs"
REFERENCE = "water-8", "cc-pvtz"  # what the rates are measured on
CASES = (
    ("(H2O)8", "cc-pvtz"),
    ("C40H82", "cc-pvdz"),
    ("C40H82", "cc-pvtz"),
    ("C100H202", "cc-pvtz"),
)
NODES = (1, 4, 16, 64, 256)
STAGES = {  # kinds of work (`dfmp2 plan --json`) in each stage of a run
    "scf": ("exchange", "exchange_single", "examined", "scf_fit", "eigen"),
    "integrals": ("fit", "transform"),
    "pair_energies": ("pairs_fp64", "pairs_mixed"),
}
MODEL = {
    "cores": (32, "cores of a node, each as fast as one of the measured machine"),
    "parallel": (0.5, "parallel efficiency of SCF and integrals with all cores of one node"),
    "read": (1.0e9, "bytes/s that one node reads from the shared file system"),
    "system": (1.0e10, "bytes/s that the file system serves to all nodes together"),
    "write": (5.0e8, "bytes/s at which one node writes B there"),
    "start": (5.0, "s to start a task and its workers, after no wait in the queue"),
}
ITEMS = 100  # waters of the measured batch
CAMPAIGN = 1_000_000


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("measure", help="print unit costs of this machine as JSON")
    commands.add_parser("page", help="print the page").add_argument("costs", type=Path)
    given = parser.parse_args()
    if given.command == "measure":
        print(json.dumps(measure(), indent=1))
    else:
        print(page(json.loads(given.costs.read_text(encoding="utf-8"))), end="")


# --- measured ---------------------------------------------------------------------------------------------------------


def measure() -> dict[str, Any]:
    """Unit costs of this machine; one thread for each process unless the name says otherwise."""
    machine = watch(Listener())
    with private_folder() as name:
        folder = Path(name)
        molecule, basis = str(INPUTS / f"{REFERENCE[0]}.xyz"), REFERENCE[1]
        dfmp2("prepare", molecule, "--basis", basis, "--output", "b.h5", folder=folder, threads=1)
        cuts = ((0, 1), (0, 2), (1, 1), (2, 1))  # workers, 0 for none, and threads of each
        energy = {
            f"{workers} x {threads}": energies(folder, workers, threads)
            for workers, threads in cuts
        }
        whole = dfmp2(
            "run", molecule, "--basis", basis, "--output", "whole.h5", folder=folder, threads=1
        )
        outlooks = [outlook(folder, *case) for case in CASES]
        batch = {str(workers): waters(folder, workers) for workers in (1, 2)}
    correlation = {found.pop("correlation") for found in energy.values()}
    if len(correlation) != 1:
        raise SystemExit(f"the cuts do not agree to the last bit: {correlation}")
    return {
        "machine": asdict(machine),
        "timings": whole["timings"],
        "flops": outlook(None, *CASES[0])["flops"],
        "energy": energy,
        "molecules": outlooks,
        "batch": batch,
    }


def dfmp2(*arguments: str, folder: Path, threads: int) -> dict[str, Any]:
    """What a command that must succeed printed, and its wall time under "wall"."""
    child, found = run_dfmp2(*arguments, "--quiet", "--overwrite", folder=folder, threads=threads)
    if child.code:
        raise SystemExit(f"dfmp2 {arguments[0]} failed (exit code {child.code}): {child.ending()}")
    return found | {"wall": child.wall}


def energies(folder: Path, workers: int, threads: int) -> dict[str, Any]:
    """Wall time and pair step of `dfmp2 energy`, with worker processes where there are any."""
    cut = ("--workers", str(workers)) if workers else ()
    found = dfmp2(
        "energy",
        "--from",
        "b.h5",
        "--output",
        f"{workers}.h5",
        *cut,
        folder=folder,
        threads=threads,
    )
    return {
        "wall": found["wall"],
        "pair_energies": found["timings"]["pair_energies"],
        "correlation": found["mp2_correlation_energy"],
    }


def outlook(folder: Path | None, formula: str, basis: str) -> dict[str, Any]:
    """Sizes and operations of a molecule, from `dfmp2 plan`."""
    with private_folder() as name:
        folder = folder or Path(name)
        path = INPUTS / "water-8.xyz"
        if formula != "(H2O)8":
            path = folder / f"{formula}.xyz"
            carbons = int(formula[1 : formula.index("H")])
            path.write_text(to_xyz(alkane(carbons), formula), encoding="ascii")
        child, found = run_dfmp2("plan", str(path), "--basis", basis, folder=folder)
    if child.code:
        raise SystemExit(f"dfmp2 plan failed (exit code {child.code}): {child.ending()}")
    sizes = {name: found["sizes"][name] for name in ("nao", "naux", "nocc", "nvir")}
    return {"formula": formula, "basis": basis, **sizes, "flops": found["flops"]}


def waters(folder: Path, workers: int) -> dict[str, float]:
    """Wall time of a batch, and of the same batch when everything is there."""
    own = folder / f"batch-{workers}"
    own.mkdir()
    write_molecules(own, ITEMS, random.Random(1))
    command = [
        sys.executable,
        "-P",
        "-m",
        "dfmp2",
        "batch",
        "run",
        *sorted(path.name for path in own.glob("*.xyz")),
    ]
    command += [
        "--basis",
        "cc-pvdz",
        "--output",
        "out",
        "--workers",
        str(workers),
        "--threads",
        "1",
        "--quiet",
    ]
    spent = []
    for _ in range(2):
        begun = time.perf_counter()
        subprocess.run(command, cwd=own, check=True, stdout=subprocess.DEVNULL)
        spent.append(time.perf_counter() - begun)
    return {"wall": spent[0], "again": spent[1]}


# --- multiplied -------------------------------------------------------------------------------------------------------

PAGE = """# How far on many nodes

Arithmetic, not a measurement of a cluster: unit costs measured on one machine, multiplied with a stated model of nodes,
network and file system. What was measured:

| {reference}, `dfmp2 energy` | wall / s | pair step / s |
|---|---|---|
{energy}

With the start of their processes two workers do the pair step at {ratio:.2f} times the rate of one process with two
threads; `scripts/benchmarks/workers.py` measures them without it. The bits are the same for every cut.

| {items} waters cc-pVDZ, `dfmp2 batch run` | wall / s | molecules/s | again, nothing to do / s |
|---|---|---|---|
{batch}

{machine}

## The model

| | value |
|---|---|
{model}

- SCF, integrals and B on one node (`dfmp2 prepare`); pair tiles on all (`dfmp2 energy --shard I/N`), a worker for each
  core.
- Every node reads all of B once while it computes; the file system's total bounds all nodes together.
- Pairs divide evenly among the workers, rounded up to whole pairs.
- A task that fails, a queue that is full, a core that is slower: not in the model.

## One molecule

Seconds from submission to energy; in brackets the part that more nodes cannot shorten (SCF, integrals, writing B).

| | nao, nocc, nvir, naux | B / GB | {nodes} |
|---|---|---|{rules}
{molecules}

## A campaign

{campaign_items:,} waters in cc-pVDZ, an array of one task for each node, {cores} workers of one thread each:

| nodes | molecules/s | minutes |
|---|---|---|
{campaign}

Larger molecules divide as well until one of them takes as long as all others of its shard:
`dfmp2 batch plan --shards N` prints the longest shard beside the shortest.

Made by `scripts/benchmarks/scale.py` from `docs/performance/scale.json`.
"""


def page(costs: dict[str, Any]) -> str:
    """The page of documentation."""
    machine, energy, batch = costs["machine"], costs["energy"], costs["batch"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    steps = [
        f"| {way(name)} | {found['wall']:.2f} | {found['pair_energies']:.2f} |"
        for name, found in energy.items()
    ]
    batches = [
        f"| {count(workers, 'worker')} of 1 thread | {found['wall']:.1f} | {ITEMS / found['wall']:.2f} "
        f"| {found['again']:.2f} |"
        for workers, found in batch.items()
    ]
    return PAGE.format(
        reference=f"{CASES[0][0]} {CASES[0][1]}",
        energy="\n".join(steps),
        ratio=energy["0 x 2"]["pair_energies"] / energy["2 x 1"]["pair_energies"],
        items=ITEMS,
        batch="\n".join(batches),
        machine=f"{machine['processor']}, {machine['cores']} cores; {versions}; {machine['date'][:10]}.",
        model="\n".join(f"| {meaning} | {value:g} |" for value, meaning in MODEL.values()),
        nodes=" | ".join(count(nodes, "node") for nodes in NODES),
        rules="---|" * len(NODES),
        molecules="\n".join(one_molecule(case, costs) for case in costs["molecules"]),
        campaign_items=CAMPAIGN,
        cores=MODEL["cores"][0],
        campaign="\n".join(campaign(nodes, batch) for nodes in NODES),
    )


def count(number: int | str, what: str) -> str:
    """A number of things."""
    return f"{number} {what}{'s' * (int(number) != 1)}"


def way(name: str) -> str:
    """A row's label."""
    workers, threads = name.split(" x ")
    if workers != "0":
        return f"`--workers {workers}`, 1 thread each"
    return f"one process, {count(threads, 'thread')}"


def one_molecule(case: dict[str, Any], costs: dict[str, Any]) -> str:
    """A row: seconds on each number of nodes."""
    cores, parallel, start = MODEL["cores"][0], MODEL["parallel"][0], MODEL["start"][0]
    seconds = {stage: cost_of(stage, case, costs) for stage in STAGES}  # of one core
    nocc, nvir = case["nocc"][0], case["nvir"][0]
    size, pairs = 8.0 * nocc * nvir * case["naux"], nocc * (nocc + 1) // 2
    serial = (
        start
        + (seconds["scf"] + seconds["integrals"]) / (cores * parallel)
        + size / MODEL["write"][0]
    )
    cells = []
    for nodes in NODES:
        share = math.ceil(pairs / (nodes * cores)) / pairs  # of one worker
        read = size / min(MODEL["read"][0], MODEL["system"][0] / nodes)
        cells.append(f"{serial + start + max(read, seconds['pair_energies'] * share):.0f}")
    sizes = f"{case['nao']}, {nocc}, {nvir}, {case['naux']}"
    cells[0] += f" ({serial:.0f})"
    return (
        f"| {case['formula']} {case['basis']} | {sizes} | {size / 1e9:.2f} | {' | '.join(cells)} |"
    )


def cost_of(stage: str, case: dict[str, Any], costs: dict[str, Any]) -> float:
    """Seconds of one core for a stage, in proportion to its operations."""
    timings = costs["timings"]
    measured = {
        "scf": timings["scf"],
        "integrals": timings["integrals"] + timings["fit"] + timings["transform"],
        "pair_energies": timings["pair_energies"],
    }
    kinds = STAGES[stage]
    return (
        measured[stage]
        * sum(case["flops"][kind] for kind in kinds)
        / sum(costs["flops"][kind] for kind in kinds)
    )


def campaign(nodes: int, batch: dict[str, dict[str, float]]) -> str:
    """A row: throughput and time of the campaign."""
    per_item = (batch["1"]["wall"] - batch["1"]["again"]) / ITEMS  # of one worker
    workers = nodes * MODEL["cores"][0]
    seconds = 2 * MODEL["start"][0] + math.ceil(CAMPAIGN / workers) * per_item
    return f"| {nodes} | {CAMPAIGN / seconds:.0f} | {seconds / 60:.1f} |"


if __name__ == "__main__":
    main()
