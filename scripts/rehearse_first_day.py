#!/usr/bin/env python3
"""Rehearse scripts/neuron_first_day.py with every failure planted in the tests' stand-in of AWS's packages.

    python scripts/rehearse_first_day.py                 all failures; the table of docs/trainium/first-day.md
    python scripts/rehearse_first_day.py --only cliff    some of them, by beginnings of their names

A row passes where the step that should meet the failure says the diagnosis that it should, the exit code is the right
one, and no energy is off by more than 1e-7 Eh. Exit code 0 when all rows pass, else 8. Nothing here is a device.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402

from tests.stand_in_nki.site import Site, planted  # noqa: E402

FIRST = ROOT / "scripts" / "neuron_first_day.py"
ENERGY = (
    -0.035534318
)  # Eh, E(corr) of the water of inputs/h2o.xyz in STO-3G with def2-svp-ri, by PySCF 2.14
RIGHT = 1e-7


@dataclass(frozen=True)
class Row:
    """One failure.

    Attributes
    ----------
    name : of the failure; plant : what brings it about
    only : steps to run; step : the one that meets it
    says : what it must say; code : exit code of the script
    """

    name: str
    plant: Callable[[Site], object]
    only: str
    step: str
    says: str
    code: int


def fault(name: str) -> Callable[[Site], object]:
    """A failure that the stand-in knows by name."""
    return lambda site: site.fault(name)


def flags(site: Site) -> None:
    """What a user has in the environment for torch-xla."""
    site.patch.setenv("NEURON_CC_FLAGS", "--cache_dir=/tmp/x --auto-cast=none")


def no_compiler(site: Site) -> None:
    """The bin folder of the environment that compiles is not on PATH."""
    (site.folder / "bin" / "neuronx-cc").unlink()


ROWS = (
    Row("nothing", lambda site: None, "smallest,guard,water,contract", "contract-nki-xla", "12 of 12 blocks agree", 0),
    Row("nothing, on trn2", lambda site: site.device("trn2.48xlarge"), "smallest-nki,kept-nki,water-nki,transform-nki",
        "transform-nki", "Eh from PySCF", 0),
    Row("a documented flag is refused", fault("flag-refused"), "smallest-nki,water-nki", "smallest-nki",
        "neuronx-cc does not know --auto-cast=none", 6),
    Row("a flag of torch-xla is in NEURON_CC_FLAGS", flags, "smallest-nki", "smallest-nki",
        "neuronx-cc does not know --cache_dir=/tmp/x", 6),
    Row("the bias of a copy is ignored", fault("bias-ignored"), "smallest-nki,facts-nki,water-nki", "facts-nki",
        "a copy leaves its bias out", 0),
    Row("columns of tensor_scalar are ignored", fault("column-ignored"), "smallest-nki,facts-nki,water-nki",
        "facts-nki", "Vector sum with a column", 8),
    Row("the same, straight to water", fault("column-ignored"), "smallest-nki,water-nki", "water-nki",
        "the guard refused a wrong pair", 5),
    Row("streaming slows down at 96 KiB", fault("cliff"), "smallest-nki,facts-nki,water-nki", "facts-nki",
        "times slower from 96 KiB on", 0),
    Row("kept outputs have an opaque type", lambda site: None, "smallest-nki,kept-nki,water-nki,transform-nki",
        "kept-nki", "calls the output's type |V4", 0),
    Row("and it cannot be changed", fault("frozen-types"), "smallest-nki,kept-nki,water-nki,transform-nki", "kept-nki",
        "refuses a new type for a tensor that stayed", 1),
    Row("a transfer aborts", fault("dma-abort"), "smallest-nki,water-nki", "smallest-nki", "aborted a transfer", 7),
    Row("the device does not answer", fault("time-out"), "smallest-nki,water-nki", "smallest-nki", "did not answer", 7),
    Row("tensors have other names", fault("other-names"), "smallest-nki,water-nki", "smallest-nki",
        "by different names: ['input0_x'] ['output_0']", 1),
    Row("a release lacks nisa.reciprocal", fault("without-nisa.reciprocal"), "smallest-nki,water-nki", "smallest-nki",
        "this release of nki has no reciprocal", 6),
    Row("the folder of artifacts is not empty", fault("folder-not-empty"), "smallest-nki", "smallest-nki",
        "refuses a folder of artifacts that is not empty", 6),
    Row("the compiler takes its default target", fault("target-ignored"), "smallest-nki", "smallest-nki",
        "a program compiled for v4 was loaded on v2", 1),
    Row("neuronx-cc is not on PATH", no_compiler, "smallest-nki", "machine", "neuronx-cc is not on PATH", 6),
    Row("the driver does not find neuronx-cc", fault("no-compiler-on-path"), "smallest-nki", "smallest-nki",
        "neuronx-cc is not on PATH", 6),
    Row("the first seconds are slow", fault("slow-start"), "smallest-nki,facts-nki,water-nki", "facts-nki",
        "the first second is", 0),
    Row("numbers come back 0.1 % too large", fault("wrong-numbers"), "smallest-nki,water-nki", "smallest-nki",
        "numbers came back changed", 8),
    Row("the compiler refuses an instruction", fault("compiler-refuses"), "smallest-nki", "smallest-nki",
        "the compiler refuses a kernel: NCC_EVRF004", 6),
    Row("another process holds the core", fault("core-busy"), "smallest-nki", "smallest-nki",
        "another process holds the NeuronCore", 6),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], epilog="Exit codes: 0, 8"
    )
    parser.add_argument(
        "--only", metavar="LIST", default="", help="beginnings of names, with commas"
    )
    wanted = [word.strip() for word in parser.parse_args(arguments).only.split(",") if word.strip()]
    good = True
    print(
        "| failure planted | step | diagnosis printed | what to do next | exit |\n|---|---|---|---|---|"
    )
    for row in ROWS:
        if wanted and not any(row.name.startswith(word) for word in wanted):
            continue
        line, wrong = rehearse(row)
        print(line, flush=True)
        if wrong:
            good = False
            print(f"{row.name}: {wrong}", file=sys.stderr)
    return 0 if good else 8


def rehearse(row: Row) -> tuple[str, str]:
    """The row of the table, and what is wrong with it ("" if nothing)."""
    with (
        tempfile.TemporaryDirectory(prefix="dfmp2-rehearsal-") as place,
        pytest.MonkeyPatch.context() as patch,
        planted(Path(place), patch) as site,
    ):
        site.sound()
        site.processes()
        row.plant(site)
        folder = Path(place) / "day"
        command = [sys.executable, str(FIRST), "--results", str(folder), "--only", row.only]
        done = subprocess.run(
            command, env=dict(os.environ), cwd=place, capture_output=True, text=True, check=False
        )
        summary = json.loads((folder / "summary.json").read_text())
        archives = [file.name for file in folder.glob("*.tar.gz")]
    return judged(row, done, summary, archives)


def judged(
    row: Row, done: subprocess.CompletedProcess[str], summary: dict, archives: list[str]
) -> tuple[str, str]:
    """The same, from what the script printed and wrote."""
    met = summary["steps"].get(row.step, {"found": "not run", "then": "", "decides": ""})
    energies = {
        name: step["numbers"]["mp2_correlation_energy"]
        for name, step in summary["steps"].items()
        if "mp2_correlation_energy" in step["numbers"]
    }
    told = met["found"]
    reasons = [
        f"{row.step} says {told!r}, not {row.says!r}" if row.says not in told else "",
        f"exit {done.returncode}, not {row.code}: {done.stdout[-800:]} {done.stderr[-800:]}"
        if done.returncode != row.code
        else "",
        ""
        if all(abs(e - ENERGY) < RIGHT for e in energies.values())
        else f"a wrong energy: {energies}",
        ""
        if summary["rehearsal on a stand-in"] and "REHEARSAL" in done.stdout
        else "not marked as a rehearsal",
        ""
        if archives and all(name.startswith("rehearsal-") for name in archives)
        else f"archives {archives}",
    ]
    sentence = next(
        (part for part in re.split(r"; (?=P\d+:)|(?<=\w)\. |; ", told) if row.says in part), told
    ).strip()
    cells = [row.name, row.step, sentence, met["then"] or "-", str(done.returncode)]
    line = "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells) + " |"
    return line, "; ".join(filter(None, reasons))


if __name__ == "__main__":
    sys.exit(main())
