"""The programs of a race: what each is given, and what it says afterwards.

All read or are given the same geometry, the same orbital and both fitting sets, the same frozen core, and
converge to 1e-10 Eh and an orbital gradient of 1e-6 (Psi4: a root mean square of 1e-7, its own measure).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from dfmp2 import resources
from dfmp2.bench.process import FOLDER
from dfmp2.bench.pyscf_script import pyscf_script
from dfmp2.bench.race_values import Calculation, Outcome, Stages
from dfmp2.errors import BackendError, BackendUnavailable, InputError
from dfmp2.external.psi4 import INSTALL, find_psi4, parse_output
from dfmp2.external.psi4_input import psi4_input
from dfmp2.io import hdf5
from dfmp2.record import Timings
from dfmp2.result import MP2Result

GEOMETRY, RESULT = "molecule.xyz", "result.h5"
PYSCF_SCRIPT, PSI4_INPUT = "peer.py", "input.dat"
PSI4_CONVERGENCE = 1e-7  # d_convergence
NAMES = ("pyscf", "pyscf-tuned", "psi4")
SCF_STAGES, PAIR_STAGES = ("scf",), ("pair_energies",)

# A line of the upper, flat half of Psi4's timer.dat is repeated in the lower one, nested by "| ".
_TIMER = re.compile(r"^(\S.*?)\s*:\s+\S+u\s+\S+s\s+(\d+\.\d+)w\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Lane:
    """One program with its settings.

    Attributes
    ----------
    name : as printed
    settings : environment variables, besides the common ones
    write : puts the input into a folder and returns the command; our own finished result, or None in our lanes
    read : what the program left in the folder
    script : name of the input file it is given besides the geometry, "" for none
    """

    name: str
    settings: dict[str, str]
    write: Callable[[Path, MP2Result | None], list[str]]
    read: Callable[[Path], Outcome]
    script: str = ""


def lanes(calculation: Calculation, against: list[str], precisions: list[str]) -> list[Lane]:
    """Our own lanes, one per precision, then those of the peers, each of them there.

    Raises
    ------
    InputError : an unknown program
    BackendUnavailable : Psi4 is asked for and not on PATH
    """
    unknown = [name for name in against if name not in NAMES]
    if unknown:
        raise InputError(f"--against {unknown[0]!r}: expected one or more of {', '.join(NAMES)}, with commas between")
    if "psi4" in against and find_psi4() is None:
        raise BackendUnavailable(f"--against psi4: psi4 is not on PATH: install it ({INSTALL}), or leave it out")
    ours = [_dfmp2(calculation, precision) for precision in precisions]
    return [*ours, *(_PEERS[name](calculation) for name in against)]


def _dfmp2(calculation: Calculation, precision: str) -> Lane:
    name = "dfmp2" if precision == "auto" else f"dfmp2 {precision}"

    def write(_folder: Path, _ours: MP2Result | None) -> list[str]:
        return [
            *(sys.executable, "-P", "-m", "dfmp2", "run", GEOMETRY, f"--basis={calculation.basis}"),
            *("--threads", str(calculation.threads), "--precision", precision, "--output", RESULT, "--overwrite"),
            *calculation.options,
        ]

    return Lane(name, {}, write, lambda folder: _read_ours(folder / RESULT))


def _pyscf(calculation: Calculation, *, tuned: bool) -> Lane:
    settings = {"OMP_NUM_THREADS": str(calculation.threads)}
    if tuned:
        settings["OPENBLAS_NUM_THREADS"] = "1"

    def write(folder: Path, ours: MP2Result | None) -> list[str]:
        (folder / PYSCF_SCRIPT).write_text(
            pyscf_script(_required(ours), GEOMETRY, calculation.memory), encoding="utf-8"
        )
        return [sys.executable, PYSCF_SCRIPT]

    return Lane("pyscf-tuned" if tuned else "pyscf", settings, write, _read_pyscf, PYSCF_SCRIPT)


def _psi4(calculation: Calculation) -> Lane:
    def write(folder: Path, ours: MP2Result | None) -> list[str]:
        memory = calculation.memory or int(0.7 * resources.available_memory())
        text = psi4_input(_required(ours), memory, PSI4_CONVERGENCE)
        (folder / PSI4_INPUT).write_text(text, encoding="ascii")
        return [find_psi4() or "psi4", "-n", str(calculation.threads), "-s", str(folder)]

    settings = {"OMP_NUM_THREADS": str(calculation.threads), "HOME": FOLDER}  # it would execute a ~/.psi4rc
    return Lane("psi4", settings, write, _read_psi4, PSI4_INPUT)


_PEERS: dict[str, Callable[[Calculation], Lane]] = {
    "pyscf": lambda calculation: _pyscf(calculation, tuned=False),
    "pyscf-tuned": lambda calculation: _pyscf(calculation, tuned=True),
    "psi4": _psi4,
}


def _required(ours: MP2Result | None) -> MP2Result:
    if ours is None:
        raise BackendError("a peer repeats the calculation of dfmp2, which has not been done")
    return ours


def _read_ours(path: Path) -> Outcome:
    result = hdf5.read(path)
    times = {field.name: getattr(result.timings, field.name) for field in fields(Timings) if field.name != "total"}
    between = sum(value for name, value in times.items() if name not in (*SCF_STAGES, *PAIR_STAGES))
    return Outcome(
        program=f"dfmp2 {result.provenance.version}",
        scf_energy=result.scf_total_energy,
        correlation_energy=result.mp2_correlation_energy,
        sizes=(result.sizes.nao, result.sizes.naux, result.sizes.nocc[0], result.sizes.nvir[0]),
        stages=Stages(times["scf"], between, times["pair_energies"]),
        details=times,
        cycles=result.reference.cycles,
        note=f"backend {result.backend} ({result.backend_reason}), pair energies in {result.precision}",
    )


def _read_pyscf(folder: Path) -> Outcome:
    facts = json.loads((folder / "peer.json").read_text(encoding="ascii"))
    times = facts["seconds"]
    return Outcome(
        program=facts["program"],
        scf_energy=facts["scf_energy"],
        correlation_energy=facts["correlation_energy"],
        sizes=tuple(facts["sizes"]),
        stages=Stages(times["fitted integrals"] + times["scf"], times["mp2 integrals"], times["pair energies"]),
        details=times,
        cycles=facts["cycles"],
        note="",
    )


def _read_psi4(folder: Path) -> Outcome:
    text = (folder / "output.dat").read_text(encoding="utf-8", errors="replace")
    found = parse_output(text)
    times = psi4_times((folder / "timer.dat").read_text(encoding="utf-8", errors="replace"))
    mp2 = {name: value for name, value in times.items() if name.startswith("DFMP2")}
    pairs = mp2.pop("DFMP2 Energy", 0.0)
    scf = sum(value for name, value in times.items() if not name.startswith("DFMP2"))
    iterations = re.findall(r"^\s*@\S+ iter\s+(\d+):", text, re.MULTILINE)
    return Outcome(
        program=found.energies.program,
        scf_energy=found.energies.scf_total_energy,
        correlation_energy=found.energies.same_spin + found.energies.opposite_spin,
        sizes=(found.nao, found.naux, *found.active[0]),
        stages=Stages(scf, sum(mp2.values()), pairs),
        details=times,
        cycles=int(iterations[-1]) if iterations else None,
        note="",
    )


def psi4_times(text: str) -> dict[str, float]:
    """Wall seconds of the outermost timers of Psi4's timer.dat, whose lower half is nested."""
    nested = text.rpartition("-----")[2]
    found: dict[str, float] = {}
    for name, wall in _TIMER.findall(nested):
        if not name.startswith("|"):
            found[name] = found.get(name, 0.0) + float(wall)
    return found
