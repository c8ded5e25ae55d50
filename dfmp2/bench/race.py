"""Whole programs on one molecule, from an xyz file to a result file: A B C A B C ... in one run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from dfmp2.bench import machine
from dfmp2.bench.peers import GEOMETRY, RESULT, Lane, lanes
from dfmp2.bench.process import Child, ending, private_folder, run_child, touch_memory
from dfmp2.bench.race_values import Calculation, Race, Run
from dfmp2.errors import (
    BackendError,
    ComparisonFailed,
    ConvergenceError,
    Dfmp2Error,
    InputError,
    NumericalError,
    ResourceError,
)
from dfmp2.external.psi4 import INSTALL
from dfmp2.io import hdf5
from dfmp2.io.xyz import write_xyz
from dfmp2.molecule import Molecule
from dfmp2.progress import Listener
from dfmp2.result import MP2Result

TRIAL = Molecule(("H", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.4]]))  # bohr
TRIAL_BASIS = "cc-pvdz"
INSTALLS = {"pyscf": "pip install 'pyscf>=2.13'", "psi4": INSTALL}
_ERRORS: tuple[type[Dfmp2Error], ...] = (InputError, ConvergenceError, NumericalError, BackendError, ResourceError)


def race(
    molecule: Molecule,
    calculation: Calculation,
    *,
    against: list[str],
    precisions: list[str],
    repeats: int,
    touched: int,
    scratch: str | None,
    listener: Listener,
) -> Race:
    """Time dfmp2 and its peers on a molecule, alternating.

    Every program first computes H2 once, untimed: its files are in the system's cache afterwards, and a
    program that does not work is found before the long run.

    Parameters
    ----------
    against : "pyscf", "pyscf-tuned", "psi4"
    precisions : one lane of ours for each
    repeats : runs of every program
    touched : bytes to write to before every run, so that memory is warm; 0 for none
    scratch : folder for temporary files, None for the system's

    Raises
    ------
    InputError, BackendUnavailable : an unknown program, or one that is not there
    BackendError : a program fails; others as `dfmp2 run` raises them
    ComparisonFailed : a program computed something else (sizes differ)
    """
    entries = lanes(calculation, against, precisions)
    trials = lanes(replace(calculation, basis=TRIAL_BASIS, options=()), against, precisions)
    header = machine.watch()
    for warning in header.warnings():
        listener.warning(warning)
    with private_folder(scratch) as folder:
        listener.stage(f"H2 with every program, untimed: {', '.join(lane.name for lane in trials)}")
        _round(trials, TRIAL, folder, 0, Listener(), "")
        runs: list[Run] = []
        title = ""
        for number in range(1, repeats + 1):
            made, ours = _round(entries, molecule, folder, touched, listener, f"{number}/{repeats}")
            runs += made
            title = _title(ours, molecule.name)
    finished = Race(header, title, calculation, tuple(runs), touched, machine.load_average())
    shares = [run.child.foreign / run.child.wall for run in finished.runs]
    disturbed = [share for share in shares if share > machine.BUSY]
    if disturbed:
        listener.warning(
            f"in {len(disturbed)} of {len(shares)} runs others used up to {max(disturbed):.2f} cores: times are too "
            "long, and ratios favour programs whose threads do not wait for each other; do not quote them"
        )
    return finished


def _round(
    entries: list[Lane], molecule: Molecule, parent: Path, touched: int, listener: Listener, count: str
) -> tuple[list[Run], MP2Result]:
    """One run of every lane, in their order; the first of them is ours."""
    runs: list[Run] = []
    ours: MP2Result | None = None
    for lane in entries:
        folder = parent / "run"
        folder.mkdir()
        (folder / GEOMETRY).write_text(write_xyz(molecule), encoding="ascii")
        command = lane.write(folder, ours)
        script = (folder / lane.script).read_text(encoding="utf-8") if lane.script else ""
        if touched:
            touch_memory(touched)
        child = run_child(command, folder, lane.settings)
        if child.code:
            raise failure(lane, child)
        outcome = lane.read(folder)
        if runs and outcome.sizes != runs[0].outcome.sizes:
            raise ComparisonFailed(
                f"{lane.name} did another calculation: {outcome.sizes} orbital functions, fitting functions, "
                f"correlated occupied and virtual orbitals; dfmp2 {runs[0].outcome.sizes}"
            )
        listener.stage(f"[{count}] {lane.name:<12} {child.wall:8.2f} s  E(corr) {outcome.correlation_energy:.10f} Eh")
        runs.append(Run(lane.name, replace(child, output=""), outcome, script))
        if ours is None:
            ours = hdf5.read(folder / RESULT)
        shutil.rmtree(folder)
    if ours is None:
        raise InputError("no program to run: give --precision at least one of auto, fp64, mixed")
    return runs, ours


def failure(lane: Lane, child: Child) -> Dfmp2Error:
    """The error a failed program ends the race with: our own as it was, a peer's quoted."""
    if lane.name.startswith("dfmp2"):
        messages = [line for line in child.output.splitlines() if line.startswith("dfmp2: ")]
        said = messages[-1].removeprefix("dfmp2: ") if messages else ending(child.output)
        kind = next((error for error in _ERRORS if error.exit_code == child.code), Dfmp2Error)
        return kind(f"dfmp2 run failed: {said}")
    reason = f"exit code {child.code}" if child.code > 0 else f"killed by signal {-child.code}"
    fix = INSTALLS[lane.name.split("-")[0]]
    return BackendError(
        f"{lane.name} failed ({reason}): {ending(child.output)}; install it again ({fix}) or leave it out"
    )


def _title(result: MP2Result, name: str) -> str:
    sizes, molecule = result.sizes, result.molecule
    names = [result.orbital_basis, *([] if result.scf_fitting is None else [result.scf_fitting]), result.mp2_fitting]
    sets = [", ".join(sorted({element.name for element in basis.elements.values()})) for basis in names]
    return (
        f"{name} ({molecule.formula}), {result.reference.kind.upper()}, {' / '.join(sets)}; "
        f"{sizes.nao} functions, fitting sets of {sizes.naux_scf} and {sizes.naux}, {sizes.nocc[0]} correlated "
        f"occupied and {sizes.nvir[0]} virtual orbitals, {sizes.frozen_core} frozen"
    )
