"""Called by scripts/benchmarks/run.sh: compute, read and collect a batch of water-like molecules,
and print processor times as Markdown.

    python scripts/benchmarks/data_set.py FOLDER                     # 2,000 molecules: about ten minutes
    python scripts/benchmarks/data_set.py FOLDER --count 200

The tables are in docs/tutorials/data-set.md and docs/howto/batch.md. The batch has gradients
(6-31G) of a smooth trajectory and of distorted water, its radical cation, hydroxide and oxonium;
`collect` makes extended xyz twice. Then follow an index with the lines of 500 shards of 100 items,
50 kills of a process that appends to it, and the start of a shard of 50,000 items. Exit code 1:
data read from a data set by ASE, h5py or pandas (with pyarrow) differ from the files, dE along the
trajectory differs from the work of the forces, or a kill lost a line.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import ase.io
import h5py
import numpy as np

import dfmp2
from dfmp2.output.batch_index import IndexWriter, read_rows
from dfmp2.units import ANGSTROM_PER_BOHR

WATER = np.array([[0, 0, 0.1173], [0, 0.7572, -0.4692], [0, -0.7572, -0.4692]])
EV_PER_HARTREE = 27.211386245988
FRAMES = 40  # of the trajectory
SHARDS = 500
KILLS = 50
CENTRAL = np.array([1 / 280, -4 / 105, 1 / 5, -4 / 5, 0, 4 / 5, -1 / 5, 4 / 105, -1 / 280])
APPENDING = """
import sys
from pathlib import Path
from dfmp2.output.batch_index import IndexWriter
index, number = IndexWriter(Path(sys.argv[1]), (0, 2)), int(sys.argv[2])
while True:
    index.append([{"name": f"k{number}", "status": "complete", "padding": "x" * 300}])
    print(number, flush=True)
    number += 1
"""


def frame(number: int) -> np.ndarray:
    """Water at a point of the trajectory, angstrom."""
    time_of = 0.02 * number
    moved = [
        [0, 0, np.sin(5 * time_of)],
        [0.3 * np.sin(3 * time_of), np.sin(7 * time_of), np.cos(4 * time_of)],
        [0, np.sin(6 * time_of + 1), np.sin(3 * time_of)],
    ]
    return WATER + 0.06 * np.array(moved)


def write_molecules(folder: Path, count: int) -> list[str]:
    """Write xyz files of the trajectory, then of molecules drawn with a fixed seed; returns their
    names."""
    draw = np.random.default_rng(41)
    names = []
    for number in range(count):
        symbols = ["O", "H", "H"]
        state = "charge=0 multiplicity=1"
        if number < FRAMES:
            places = frame(number)
        else:
            places = WATER + 0.08 * draw.standard_normal((3, 3))
        kind = number % 10
        if number >= FRAMES and kind == 7:
            state = "charge=1 multiplicity=2"
        elif number >= FRAMES and kind == 8:
            symbols, places, state = ["O", "H"], places[:2], "charge=-1 multiplicity=1"
        elif number >= FRAMES and kind == 9:
            fourth = [[0.9, 0, 0.5] + 0.05 * draw.standard_normal(3)]
            symbols, places = ["O", "H", "H", "H"], np.vstack([places, fourth])
            state = "charge=1 multiplicity=1"
        lines = [str(len(symbols)), state]
        for symbol, place in zip(symbols, places, strict=True):
            lines.append(f"{symbol} {place[0]:.10f} {place[1]:.10f} {place[2]:.10f}")
        name = f"m{number:05d}"
        (folder / f"{name}.xyz").write_text("\n".join(lines) + "\n")
        names.append(name)
    return names


def processor_time(*command: str) -> float:
    """Processor time of a dfmp2 command and its workers, s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-P", "-m", "dfmp2", *command], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_batch(folder: Path, names: list[str], keep: str) -> None:
    """Compute the gradients of all molecules in FOLDER/KEEP."""
    lines = ['basis = "6-31g"', 'task = "gradient"', f'output = "{keep}"', f'keep = "{keep}"']
    lines += ["threads = 1", 'memory = "2GB"']
    for name in names:
        lines += ["[[item]]", f'molecule = "{name}.xyz"']
    manifest = folder / f"{keep}.toml"
    manifest.write_text("\n".join(lines) + "\n")
    processor_time("batch", "run", str(manifest), "--workers", "2", "--quiet")


def largest_differences(folder: Path, names: list[str], frames: list[ase.Atoms]) -> list[float]:
    """Largest differences: between ASE's values and the files (eV, eV/angstrom), and between dE of
    the trajectory from energies and from forces, Eh per frame."""
    energies, places, gradients = {}, {}, {}
    of_ase = 0.0
    for atoms in frames:
        name = atoms.info["name"]
        result = dfmp2.read(folder / "all" / f"{name}.h5")
        energies[name] = result.total_energy
        places[name] = result.molecule.coordinates
        gradients[name] = result.gradient.total_gradient
        forces = -gradients[name] * EV_PER_HARTREE / ANGSTROM_PER_BOHR
        energy = energies[name] * EV_PER_HARTREE
        difference = np.abs(atoms.get_forces() - forces).max()
        of_ase = max(of_ase, difference, abs(atoms.get_potential_energy() - energy))
    of_trajectory = 0.0
    for middle in range(4, FRAMES - 4):
        near = names[middle - 4 : middle + 5]
        change = CENTRAL @ np.array([energies[name] for name in near])
        moved = np.tensordot(CENTRAL, np.array([places[name] for name in near]), 1)
        work = np.vdot(gradients[names[middle]], moved)
        of_trajectory = max(of_trajectory, abs(change - work))
    return [of_ase, of_trajectory]


def differences_of_columns(folder: Path, names: list[str]) -> dict[str, float]:
    """Largest difference of energies and forces, Eh and Eh/bohr, between the results and the data
    sets in other formats, by format; parquet only if pyarrow is installed."""
    expected = {}
    for name in names:
        result = dfmp2.read(folder / "all" / f"{name}.h5")
        expected[name] = (result.total_energy, -result.gradient.total_gradient)
    forms = {"h5": read_groups}
    if find_spec("pyarrow") is not None:
        forms["parquet"] = read_rows_of_parquet
    largest = {}
    for form, read in forms.items():
        target = folder / f"columns.{form}"
        processor_time(
            *("batch", "collect", str(folder / "all.toml"), "--to", form),
            *("-o", str(target), "--overwrite"),
        )
        molecules = read(target)
        if set(molecules) != set(expected):
            raise SystemExit(f"{target}: {len(molecules)} of {len(expected)} molecules")
        largest[form] = 0.0
        for name, (energy, forces) in molecules.items():
            largest[form] = max(
                largest[form],
                abs(energy - expected[name][0]),
                np.abs(forces - expected[name][1]).max(),
            )
    return largest


def read_groups(path: Path) -> dict[str, tuple[float, np.ndarray]]:
    """Energy and forces of each molecule of an HDF5 data set, by name."""
    molecules = {}
    with h5py.File(path) as file:
        for group in file.values():
            for number, name in enumerate(group["name"].asstr()[()]):
                molecules[name] = (group["energy"][number], group["forces"][number])
    return molecules


def read_rows_of_parquet(path: Path) -> dict[str, tuple[float, np.ndarray]]:
    """Energy and forces of each molecule of a parquet file, by name."""
    import pandas

    frame = pandas.read_parquet(path)
    molecules = {}
    for name, energy, forces in zip(frame["name"], frame["energy"], frame["forces"], strict=True):
        molecules[name] = (energy, np.reshape(forces, (-1, 3)))
    return molecules


def time_shard_start(folder: Path) -> float:
    """Processor time of a shard of 100 out of 50,000 complete items, s: the start, and checking
    each item."""
    folder.mkdir()
    (folder / "h2.xyz").write_text("2\n\nH 0 0 0\nH 0 0 0.74\n")
    lines = ['basis = "sto-3g"', "threads = 1", 'memory = "2GB"']
    lines += ["[[item]]", 'molecule = "h2.xyz"'] * (100 * SHARDS)
    manifest = folder / "many.toml"
    manifest.write_text("\n".join(lines) + "\n")
    output = ("--output", str(folder / "many"))
    processor_time(
        *("batch", "submit", str(manifest), "--slurm", "--shards", str(SHARDS), *output),
        *("--write", str(folder / "written"), "--json"),
    )
    shard = ("batch", "run", str(manifest), "--shard", f"0/{SHARDS}", *output, "--quiet")
    processor_time(*shard)
    return processor_time(*shard)


def time_index(folder: Path) -> list[str]:
    """Rows of the table of an index: a line, and all of them merged."""
    folder.mkdir()
    row = {"status": "complete", "exit_code": 0, "output": "/results/i00000.h5", "seconds": 0.3}
    row |= {"energy": -76.0, "fingerprint": "a" * 64, "stamp": [13000, 10**18], "asked": "b" * 16}
    began = time.process_time()
    for shard in range(SHARDS):
        index = IndexWriter(folder, (shard, SHARDS))
        for number in range(100):
            index.append([{"name": f"i{100 * shard + number}", **row}])
        index.close()
    appended = time.process_time() - began
    size = sum(path.stat().st_size for path in folder.iterdir())
    began = time.process_time()
    count = len(read_rows(folder))
    merged = time.process_time() - began
    return [
        f"| index: one line of {size / count:.0f} bytes per item | {1e3 * appended / count:.3f} ms |",
        f"| `status`: merging {SHARDS} indexes of {count} items | {merged:.2f} s |",
    ]


def lost_lines(folder: Path) -> int:
    """Number of lines that were reported as appended but are missing after the kills."""
    folder.mkdir()
    said: list[int] = []
    following = 0
    for _ in range(KILLS):
        command = [sys.executable, "-c", APPENDING, str(folder), str(following)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            text = process.stdout.readline()
            time.sleep(random.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            text += process.stdout.read()
        said += [int(line) for line in text.split("\n")[:-1] if line]
        following = max(said) + 2
    rows = read_rows(folder)
    return sum(f"k{number}" not in rows for number in said)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=" ".join(__doc__.partition("\n\n")[0].split()))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    names = write_molecules(given.folder, given.count)
    print("| processor time per molecule, one worker | read | collect, first | again | file |")
    print("|---|---|---|---|---|")
    frames = []
    for keep in ("all", "properties", "energies"):
        run_batch(given.folder, names, keep)
        files = [given.folder / keep / f"{name}.h5" for name in names]
        dfmp2.read(files[0])
        began = time.process_time()
        for path in files:
            dfmp2.read(path)
        times = [time.process_time() - began]
        target = given.folder / f"{keep}.extxyz"
        for _ in range(2):
            manifest = str(given.folder / f"{keep}.toml")
            asked = ("batch", "collect", manifest, "--to", "extxyz")
            times.append(processor_time(*asked, "-o", str(target), "--overwrite"))
        size = max(path.stat().st_size for path in files)
        cells = " | ".join(f"{1e3 * taken / len(names):.2f} ms" for taken in times)
        print(f"| `--keep {keep}` | {cells} | {size / 1e3:.1f} kB |", flush=True)
        frames = ase.io.read(target, ":")
    of_ase, of_trajectory = largest_differences(given.folder, names, frames)
    print(f"\nASE against the files: {of_ase:.1e} eV, eV/angstrom")
    columns = differences_of_columns(given.folder, names)
    for form, difference in columns.items():
        print(f"{form} against the files: {difference:.1e} Eh, Eh/bohr")
    print(f"dE of the trajectory from energies and forces: {of_trajectory:.1e} Eh per frame\n")
    print(*time_index(given.folder / "index"), sep="\n")
    started = time_shard_start(given.folder / "start")
    print(f"| shard of 100 of {100 * SHARDS} items, all complete | {started:.2f} s |")
    lost = lost_lines(given.folder / "kills")
    print(f"\n{KILLS} kills: {lost} lines lost")
    different = of_ase > 1e-9 or max(columns.values()) > 1e-12
    return int(different or of_trajectory > 1e-7 or lost > 0)


if __name__ == "__main__":
    sys.exit(main())
