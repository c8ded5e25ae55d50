"""Throughput of `dfmp2 batch run` against a shell loop over a PySCF script, on many small molecules.

    python scripts/batch_throughput.py [--count 100] [--basis cc-pvdz] [--workers 2] [--rounds 1]
    python scripts/batch_throughput.py --overhead 1000   what a batch costs beside its calculations, and its memory

Each molecule is a water with slightly moved atoms. The script is what one writes in five minutes: xyz file in, DF-RHF
and DF-MP2 energy out, a process per molecule. It is timed one molecule after the other with all cores and with one
thread, and with as many processes at a time as dfmp2 has workers, one thread each. All must give the energies of dfmp2
to 1e-6 Eh. In several rounds the ways take turns, each with its part of the molecules, so that a machine with other
users treats them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import sys
from pyscf import gto, scf
from pyscf.mp.dfmp2_native import DFMP2
mol = gto.M(atom=sys.argv[1], basis=sys.argv[2], verbose=0)
mf = scf.RHF(mol).density_fit(auxbasis=sys.argv[2] + "-jkfit").run(conv_tol=1e-10)
mp = DFMP2(mf, auxbasis=sys.argv[2] + "-ri")
mp.kernel()
print(sys.argv[1], repr(float(mp.e_tot)), flush=True)
"""
ATOMS = (("O", 0.0, 0.0, 0.1173), ("H", 0.0, 0.7572, -0.4692), ("H", 0.0, -0.7572, -0.4692))
MOVED = 0.02  # angstrom, largest displacement along each axis
AGREEMENT = 1e-6  # Eh: PySCF's default density threshold of the SCF is looser than ours


def main() -> None:
    """Time all ways and print one line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--basis", default="cc-pvdz")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--overhead", type=int, metavar="N", help="only time N hydrogen molecules with one worker"
    )
    given = parser.parse_args()
    if given.overhead:
        overhead(given.overhead)
        return
    spent: dict[str, float] = {}
    worst = 0.0
    rng = random.Random(1)
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_molecules(folder, given.count // given.rounds, rng)
            found: dict[str, dict[str, float]] = {}
            for way, (command, settings) in ways(folder, given.basis, given.workers).items():
                seconds, text = timed(command, folder, settings)
                spent[way] = spent.get(way, 0.0) + seconds
                found[way] = energies(folder, text)
            ours, *others = found.values()
            worst = max(
                worst, *(abs(other[file] - ours[file]) for other in others for file in ours)
            )
    count = given.count // given.rounds * given.rounds
    ours_spent = next(iter(spent.values()))
    for way, seconds in spent.items():
        print(
            f"{way}: {seconds:.1f} s, {count / seconds:.2f} molecules/s, {seconds / ours_spent:.1f} x the first"
        )
    print(
        f"largest difference of the energies: {worst:.0e} Eh; load average now {os.getloadavg()[0]:.1f}"
    )
    if worst > AGREEMENT:
        raise SystemExit("the energies differ")


def overhead(count: int) -> None:
    """Print the time per item beside its calculation, and the resident memory of the parent as the batch goes on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(count):
            (folder / f"h2-{number}.xyz").write_text(
                f"2\n\nH 0 0 0\nH 0 0 {0.7 + 0.1 * number / count:.6f}\n"
            )
        files = sorted(path.name for path in folder.glob("*.xyz"))
        command = [
            str(Path(sys.executable).with_name("dfmp2")),
            "batch",
            "run",
            *files,
            "--basis",
            "sto-3g",
        ]
        command += ["--output", "out", "--quiet", "--threads", "1"]
        begun, seen = time.perf_counter(), {}
        running = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        while running.poll() is None:
            time.sleep(0.2)
            done = len(list((folder / "out").glob("*.h5")))
            resident = [
                line for line in _status(running.pid).splitlines() if line.startswith("VmRSS:")
            ]
            if done and resident:
                seen[10 * done // count] = int(resident[0].split()[1]) / 1000
        wall = time.perf_counter() - begun
        items = json.loads((folder / "out" / "batch.json").read_text())["items"]
    computed = sum(item["seconds"] for item in items if item["status"] == "complete")
    beside = (wall - computed) / count * 1000
    print(
        f"{count} items in {wall:.1f} s, {computed:.1f} s of them in calculations: {beside:.1f} ms per item beside them"
    )
    print(
        "resident memory of the parent, MB: "
        + ", ".join(f"{10 * k} % {size:.0f}" for k, size in sorted(seen.items()))
    )


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def ways(folder: Path, basis: str, workers: int) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Command and environment variables of each way; dfmp2's is the first."""
    (folder / "mp2.py").write_text(SCRIPT)
    program, python = str(Path(sys.executable).with_name("dfmp2")), shlex.quote(sys.executable)
    ours = [
        program,
        "batch",
        "run",
        *sorted(path.name for path in folder.glob("*.xyz")),
        "--basis",
        basis,
    ]
    ours += ["--output", "out", "--quiet", "--workers", str(workers), "--threads", "1"]
    loop = ["sh", "-c", f"for f in *.xyz; do {python} mp2.py $f {shlex.quote(basis)}; done"]
    several = [
        "sh",
        "-c",
        f"ls *.xyz | xargs -P {workers} -I F {python} mp2.py F {shlex.quote(basis)}",
    ]
    single = {"OMP_NUM_THREADS": "1"}
    return {
        f"dfmp2 batch run --workers {workers} --threads 1": (ours, {}),
        "shell loop over a PySCF script": (loop, {}),
        "the same with OMP_NUM_THREADS=1": (loop, single),
        f"the same, {workers} processes at a time": (several, single),
    }


def write_molecules(folder: Path, count: int, rng: random.Random) -> None:
    """Make `count` xyz files."""
    for number in range(count):
        rows = [
            f"{s} {' '.join(f'{x + rng.uniform(-MOVED, MOVED):.6f}' for x in point)}"
            for s, *point in ATOMS
        ]
        (folder / f"water-{number:03d}.xyz").write_text(
            "\n".join([str(len(rows)), "", *rows]) + "\n"
        )


def energies(folder: Path, text: str) -> dict[str, float]:
    """Total energies by file, Eh: from what the script printed, or from the batch."""
    rows = [line.split() for line in text.splitlines() if line.startswith("water-")]
    if rows:
        return {file: float(energy) for file, energy in rows}
    items = json.loads((folder / "out" / "batch.json").read_text())["items"]
    return {item["molecule"]: item["energy"] for item in items}


def timed(command: list[str], folder: Path, settings: dict[str, str]) -> tuple[float, str]:
    """Wall seconds and standard output of a command that must succeed."""
    environment = {
        key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"
    } | settings
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return time.perf_counter() - start, done.stdout


if __name__ == "__main__":
    main()
