"""Is --memory a ceiling? Molecules chosen at random, each with four budgets, as whole processes; a table as Markdown.

    python scripts/benchmarks/memory_ceiling.py --rows rows.jsonl          # 20 molecules, then other commands
    python scripts/benchmarks/memory_ceiling.py inputs/c20h42.xyz --basis cc-pvdz     # one molecule, with its times
    python scripts/benchmarks/memory_ceiling.py inputs/water-10.xyz --gradient        # of dfmp2 gradient

The budgets are the comfortable one (the smallest with which `dfmp2 plan` keeps every array in memory), the program and
half or a quarter of what is beyond it (of a gradient a third or a tenth), and the smallest that works, which is read
from the refusal of 1 MB. Every peak is that of the kernel, measured from outside. A row is written to --rows as it
comes; started again, the script goes on. Exit code 1: a peak exceeds its budget by more than 5 %, a budget is refused
that is not below the smallest, an energy has other bits (1e-8 Eh where a conventional SCF makes its integrals anew), a
gradient is off by 1e-9 Eh/bohr, or scratch is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from programs import Child, private_folder, run_dfmp2

from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.xyz import read_xyz, write_xyz
from dfmp2.validation.entries import load

MEGABYTE = 10**6
CEILING = 1.05  # times the budget
CONVENTIONAL = 1e-8  # Eh, by which energies may differ where PySCF makes four-centre integrals anew
GRADIENT = 1e-9  # Eh/bohr, by which a gradient may differ from that with everything in memory
REFUSED = 7  # exit code
SEED = 18
INPUTS = Path(__file__).resolve().parents[2] / "inputs"
BASES = ("cc-pvdz", "def2-svp", "cc-pvtz", "def2-tzvp", "aug-cc-pvdz")
SMALL = {
    "cc-pvtz": 13,
    "def2-tzvp": 13,
    "aug-cc-pvdz": 13,
}  # atoms of a molecule that is drawn with this basis
MOST_ATOMS = 32  # with the others
DRAWN = {
    "df": 9,
    "x2c": 2,
    "cation": 3,
    "conventional": 2,
    "ecp-scf": 1,
    "uhf-scf": 1,
    "conventional-scf": 2,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A molecule and the options of its runs."""

    name: str
    molecule: Molecule
    options: dict[str, str]
    gradient: bool = False

    @property
    def arguments(self) -> list[str]:
        """The options on the command line."""
        return [
            word for name, value in self.options.items() for word in (f"--{name}", value) if word
        ]

    @property
    def label(self) -> str:
        """How the table calls it: reference, SCF, Hamiltonian, precision and threads behind molecule and basis."""
        given = self.options
        uhf = self.molecule.multiplicity != 1 or given.get("reference") == "uhf"
        words = [
            "UHF" if uhf else "RHF",
            "conventional SCF" if given.get("scf") == "conventional" else "",
        ]
        words += [
            given.get("relativity", "").upper(),
            given.get("precision", ""),
            f"{given['threads']} thr",
        ]
        return f"{self.name} {given['basis']}, {', '.join(word for word in words if word)}"


def drawn() -> list[Case]:
    """The molecules of the table, the same at every call."""
    rng = random.Random(SEED)
    read = {path.stem: read_xyz(str(path)).molecule for path in sorted(INPUTS.glob("*.xyz"))}
    entries = {
        entry.id: entry
        for entry in load()
        if len(entry.calculations) == 1 and "slow" not in entry.tags
    }

    def from_inputs(
        *, bases: tuple[str, ...] = BASES, most: int = MOST_ATOMS, charge: int = 0, **more: str
    ) -> Case:
        basis = rng.choice(bases)
        most = min(most, SMALL.get(basis, most))
        every_electron = more.get("relativity") == "x2c" or basis.startswith(("cc-", "aug-"))
        fit = [
            name
            for name, one in read.items()
            if one.natom <= most and not (every_electron and "I" in one.elements)
        ]
        name = rng.choices(fit, [read[name].natom for name in fit])[
            0
        ]  # of which the larger ones say more
        molecule = read[name]
        if charge:
            molecule = molecule.with_state(
                charge, 3 - molecule.multiplicity if molecule.multiplicity < 3 else 2
            )
        options = {
            "precision": rng.choice(("auto", "fp64")),
            "threads": rng.choice(("1", "1", "2")),
            **more,
        }
        return Case(f"{name}{'+' * charge}", molecule, {"basis": basis, **options})

    def from_entries(tag: str) -> Case:
        name = rng.choice([name for name, entry in entries.items() if tag in entry.tags])
        one = entries[name].calculations[0]
        options = {
            name: getattr(one.options, name) for name in ("basis", "auxbasis", "reference")
        } | {"threads": "1"}
        options |= {"allow-poor-fit": ""} | (
            {} if one.options.scf == "df" else {"scf": "conventional"}
        )
        return Case(name, one.molecule, options)

    make: dict[str, Callable[[], Case]] = {
        "df": from_inputs,
        "x2c": lambda: from_inputs(bases=BASES[::2], most=13, relativity="x2c"),
        "cation": lambda: from_inputs(bases=BASES[:2], most=13, charge=1),
        "conventional": lambda: from_inputs(bases=BASES[:2], most=16, scf="conventional"),
        "ecp-scf": lambda: from_entries("ecp"),
        "uhf-scf": lambda: from_entries("uhf"),
        "conventional-scf": lambda: from_entries("conventional-scf"),
    }
    cases: dict[str, Case] = {}
    for kind, count in DRAWN.items():
        wanted = len(cases) + count
        while len(cases) < wanted:
            case = make[kind]()
            cases.setdefault(case.label, case)
    return list(cases.values())


def least_named(command: str, *arguments: str, folder: Path) -> int:
    """The smallest budget that the refusal of 1 MB names, bytes."""
    child, _ = run_dfmp2(command, *arguments, "--memory", "1MB", folder=folder)
    found = re.search(r"at least --memory (\d+)MB", child.err)
    if child.code != REFUSED or found is None:
        raise SystemExit(
            f"{command} {' '.join(arguments)} with 1 MB: exit code {child.code}: {child.ending()}"
        )
    return int(found[1]) * MEGABYTE


def budgets(plan: dict[str, int], least: int, parts: tuple[int, int]) -> dict[str, int]:
    """Budgets by name, bytes: those above the smallest, the smallest, and one below it."""
    beyond = plan["comfortable"] - plan["program"]
    wanted = {
        "comfortable": plan["comfortable"]
        + 2 * MEGABYTE,  # libraries differ in size from one process to the next
        **{f"1/{part}": plan["program"] + beyond // part for part in parts},
    }
    return {name: size for name, size in wanted.items() if size > least} | {
        "least": least,
        "below": least * 96 // 100,
    }


def rows_of(case: Case) -> Iterator[dict[str, Any]]:
    """Each budget of a molecule, measured."""
    with private_folder() as name, private_folder() as scratch:
        folder = Path(name)
        (folder / "x.xyz").write_text(write_xyz(case.molecule))
        arguments = ["x.xyz", *case.arguments]
        if case.gradient:
            command, planned, parts = ("gradient", ("--gradient",), (3, 10))
        else:
            command, planned, parts = ("run", (), (2, 4))
        plan = run_dfmp2("plan", *arguments, *planned, "--memory", "100TB", folder=folder)[1]
        least = least_named(command, *arguments, folder=folder)
        for which, budget in budgets(plan["memory_bytes"], least, parts).items():
            given = (
                "--memory",
                f"{budget}B",
                "--scratch",
                scratch,
                "--output",
                "x.h5",
                "--overwrite",
                "--quiet",
            )
            child, facts = run_dfmp2(command, *arguments, *given, folder=folder)
            row = {
                "case": case.label,
                "nao": plan["sizes"]["nao"],
                "which": which,
                "budget": budget,
            }
            row |= {
                "code": child.code,
                "peak": child.peak,
                "wall": child.wall,
                "left": os.listdir(scratch),
            }
            if child.code:
                row["error"] = child.ending()
            else:
                storage, memory = facts["storage"], facts["memory"]
                row |= {"predicted": memory["predicted_peak"], "energy": facts["mp2_total_energy"]}
                row |= {"arrays": f"{storage['scf_integrals']}, {storage['fitted_tensor']}"}
                row |= {"written": storage["written"], "read": storage["read"]}
                row |= {"gradient": facts["mp2_total_gradient"]} if case.gradient else {}
            yield row


def broken(row: dict[str, Any], first: dict[str, Any]) -> str:
    """Which promise a row breaks, "" for none; `first` is that of the comfortable budget."""
    if row["which"] == "below":
        if row["code"] == REFUSED:
            return ""
        return "below the least, and not refused"
    if row["code"]:
        return f"exit code {row['code']}: {row['error']}"
    if row["peak"] > CEILING * row["budget"]:
        return "more than 5 % above its budget"
    if row["left"]:
        return "scratch is left"
    if "gradient" in row and gradient_difference(row, first) > GRADIENT:
        return "other gradient"
    anew = row["arrays"].startswith("none") and row["budget"] < first["budget"]
    if abs(row["energy"] - first["energy"]) > (CONVENTIONAL if anew else 0.0):
        return "other energy"
    return ""


def gradient_difference(row: dict[str, Any], first: dict[str, Any]) -> float:
    """Largest difference between the gradients of two rows, Eh/bohr."""
    forces = zip(row["gradient"], first["gradient"], strict=True)
    return max(abs(x - y) for ours, theirs in forces for x, y in zip(ours, theirs, strict=True))


ENERGY = ("energy", "--from", "p.h5")
COMMANDS: tuple[
    tuple[str, int, tuple[str, ...]], ...
] = (  # label, processes that share the memory, arguments
    ("prepare", 1, ("prepare", "{inputs}/water-8.xyz", "--basis", "cc-pvdz", "--output", "p.h5")),
    ("energy", 1, (*ENERGY, "--output", "e.h5")),
    ("energy --workers 2", 3, (*ENERGY, "--output", "w.h5", "--workers", "2")),
    ("energy --shard 0/2", 1, (*ENERGY, "--output", "s.h5", "--shard", "0/2")),
    ("energy --shard 1/2", 1, (*ENERGY, "--output", "s.h5", "--shard", "1/2")),
    ("energy --collect", 1, (*ENERGY, "--output", "s.h5", "--collect")),
    (
        "interaction",
        1,
        (
            "interaction",
            "{inputs}/formic-acid-dimer.xyz",
            "--fragments",
            "1-5,6-10",
            "--basis",
            "def2-svp",
        ),
    ),
    ("scan", 1, ("scan", "{inputs}/ch4.xyz", "--bond", "1,2", "1.0:1.2:3", "--basis", "cc-pvtz")),
    ("cbs", 1, ("cbs", "{inputs}/ch4.xyz", "--basis", "cc-pv[dt]z")),
)
BATCH = (
    "batch",
    "run",
    "{inputs}/glycine.xyz",
    "{inputs}/benzene.xyz",
    "--basis",
    "cc-pvdz",
    "--output",
    "b",
)


def command_rows() -> Iterator[dict[str, Any]]:
    """Other commands, with the smallest budget that they name and with half as much again."""
    with private_folder() as name:
        folder = Path(name)
        for label, processes, given in COMMANDS:
            arguments = [word.format(inputs=INPUTS) for word in given] + [
                "--threads",
                "1",
                "--overwrite",
                "--quiet",
            ]
            if label.startswith(("interaction", "scan", "cbs")):
                arguments += ["--output", f"{label}.h5"]
            least = least_named(arguments[0], *arguments[1:], folder=folder)
            once = label.startswith(
                ("energy --shard", "energy --collect")
            )  # what is done is not done again
            for which, budget in (("least", least), ("3/2", least * 3 // 2))[: 1 if once else 2]:
                child, _ = run_dfmp2(*arguments, "--memory", f"{budget}B", folder=folder)
                yield {
                    "case": label,
                    "which": which,
                    "budget": budget // processes,
                    "peak": child.peak,
                } | end_of(child)
        arguments = [word.format(inputs=INPUTS) for word in BATCH] + [
            "--workers",
            "1",
            "--threads",
            "1",
        ]
        run_dfmp2(*arguments, "--memory", "1MB", folder=folder)
        texts = [
            json.loads(path.read_text())["message"] for path in (folder / "b").glob("*.error.json")
        ]
        least = (
            max(int(re.findall(r"at least --memory (\d+)MB", text)[0]) for text in texts) * MEGABYTE
        )
        child, _ = run_dfmp2(*arguments, "--memory", f"{least}B", folder=folder)
        row = {
            "case": "batch run --workers 1",
            "which": "least",
            "budget": least,
            "peak": child.peak,
        }
        yield row | end_of(child)


def end_of(child: Child) -> dict[str, Any]:
    """Exit code, wall time and the last words of a failure."""
    return {"code": child.code, "wall": child.wall, "error": child.ending() if child.code else ""}


def show_commands(rows: list[dict[str, Any]]) -> bool:
    """Print the rows of other commands; whether one breaks a promise."""
    print(
        "\n| command | budget of a process | kind of budget | largest process | peak / budget | time / s |"
        "\n|---|---|---|---|---|---|"
    )
    found = False
    for row in rows:
        if row["code"]:
            fault = f"exit code {row['code']}: {row['error']}"
        else:
            fault = ""
        fault = fault or ("more than 5 % above" if row["peak"] > CEILING * row["budget"] else "")
        found |= bool(fault)
        cells = [
            row["case"],
            f"{row['budget'] / MEGABYTE:.0f} MB",
            row["which"],
            f"{row['peak'] / MEGABYTE:.0f} MB",
        ]
        cells += [f"{row['peak'] / row['budget']:.2f}", f"{row['wall']:.1f}"]
        print(f"| {' | '.join(cells)} |{' **' + fault + '**' if fault else ''}", flush=True)
    return found


HEAD = (
    "| molecule | functions | budget | kind of budget | predicted | peak | peak / budget | SCF integrals, B | dE / Eh "
    "| time / s |"
)


def show(rows: list[dict[str, Any]]) -> bool:
    """Print the rows of a molecule; whether one breaks a promise."""
    first, found = rows[0], False
    for row in rows:
        fault = broken(row, first)
        found |= bool(fault)
        if row is first:
            begin = [row["case"], str(row["nao"])]
        else:
            begin = ["", ""]
        cells = [*begin, f"{row['budget'] / MEGABYTE:.0f} MB", row["which"]]
        if row["code"]:
            cells += ["", "", "", "refused", "", ""]
        else:
            cells += [f"{row['predicted'] / MEGABYTE:.0f}", f"{row['peak'] / MEGABYTE:.0f} MB"]
            cells += [f"{row['peak'] / row['budget']:.2f}", row["arrays"]]
            change = f"{row['energy'] - first['energy']:.0e}"
            change += f", {gradient_difference(row, first):.0e}" if "gradient" in row else ""
            cells += ["" if row is first else change, f"{row['wall']:.1f}"]
        print(f"| {' | '.join(cells)} |{' **' + fault + '**' if fault else ''}", flush=True)
    return found


def main() -> int:
    """Print the tables; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("molecule", nargs="*", type=Path, help="xyz files, in place of those drawn")
    parser.add_argument("--basis", default="cc-pvdz", help="of the xyz files")
    parser.add_argument("--precision", default="fp64", help="of the xyz files")
    parser.add_argument("--threads", default="2", help="of the xyz files")
    parser.add_argument(
        "--gradient", action="store_true", help="of the xyz files, instead of the energy"
    )
    parser.add_argument(
        "--rows", type=Path, help="file that keeps the rows; those that it has are not made again"
    )
    given = parser.parse_args()
    options = {"basis": given.basis, "precision": given.precision, "threads": given.threads}
    cases = [
        Case(path.stem, read_xyz(path).molecule, options, given.gradient) for path in given.molecule
    ] or drawn()
    kept: dict[str, list[dict[str, Any]]] = {}
    if given.rows and given.rows.exists():
        for line in given.rows.read_text().splitlines():
            kept.setdefault(json.loads(line)["case"], []).append(json.loads(line))
    print(f"{HEAD}\n{'|---' * 10}|")
    found = False
    for case in cases:
        rows = kept.get(case.label, [])
        if not rows or rows[-1]["which"] != "below":
            rows = list(rows_of(case))
            if given.rows:
                with open(given.rows, "a") as file:
                    file.writelines(f"{json.dumps(row)}\n" for row in rows)
        found |= show(rows)
    if not given.molecule:
        found |= show_commands(list(command_rows()))
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
