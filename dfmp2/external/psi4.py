"""Psi4 as a second opinion: the same calculation from scratch, in a separate process.

    run_psi4(result, threads, memory=None, timeout=None) -> NativeEnergies

takes geometry, bases (as numbers), reference type and frozen orbitals from a result, starts the `psi4`
found on PATH in a private temporary folder and returns its SCF energy and unscaled MP2 components, Eh.
`find_psi4()` returns its path, or None; `parse_output(text)` reads an output.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dfmp2 import resources
from dfmp2.errors import BackendError, BackendUnavailable, ComparisonFailed, ResourceError, UnsupportedByBackend
from dfmp2.external.psi4_input import decontracted, psi4_input
from dfmp2.record import NativeEnergies
from dfmp2.reference.integrals import smallest_overlap
from dfmp2.reference.mole import build_mole
from dfmp2.result import MP2Result

INSTALL = "apt-get install psi4, or conda install -c conda-forge psi4"
# Variables that make Psi4 take basis sets, settings or threads from elsewhere.
FOREIGN_VARIABLES = ("PSIPATH", "PSI_SCRATCH", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
INEXACT = "Failed to converge"  # what Psi4 1.3 prints, and then goes on; gold with its potential is 3e-5 Eh off
# X2C of Psi4 1.3.2 and PySCF 2.14, E(SCF): HCl 9e-9, HBr 2e-7 Eh apart (4e-9 in c, E about c^-2 Z^4: Ag 9e-7).
HEAVIEST = 5 * 10**6  # sum of Z^4
LEAST_OVERLAP = 1e-6  # eigenvalue; HBr/6-31G with 1e-8 is 3e-5 Eh off, HBr/def2-TZVP with 2e-6 is not
LAST_LINES = 3  # of a failed run's output, shown in the error
LONGEST_LINE = 160

_NUMBER = r"\s*=\s*(-?\d+\.\d+(?:[eE][-+]?\d+)?)"
_ERROR = re.compile(r"(Fatal Error|[\w.]*(Error|Exception)): \S")
_ENERGIES = {
    "scf_total_energy": r"^\s*Reference Energy" + _NUMBER,
    "same_spin": r"^\s*Same-Spin Energy" + _NUMBER,
    "opposite_spin": r"^\s*Opposite-Spin Energy" + _NUMBER,
}


@dataclass(frozen=True, slots=True)
class Psi4Output:
    """What a Psi4 DF-MP2 output says.

    Attributes
    ----------
    energies : program with version, SCF energy and unscaled components, Eh
    nao, naux : functions of the orbital and the MP2 fitting set
    active : (correlated occupied, correlated virtual) orbitals, once or for alpha and beta
    """

    energies: NativeEnergies
    nao: int
    naux: int
    active: tuple[tuple[int, int], ...]


def find_psi4() -> str | None:
    """Absolute path of the `psi4` on PATH, or None."""
    found = shutil.which("psi4")
    return None if found is None else os.path.abspath(found)


def run_psi4(
    result: MP2Result, threads: int, *, memory: int | None = None, timeout: float | None = None
) -> NativeEnergies:
    """Repeat a calculation with Psi4: SCF from scratch, then its own DF-MP2.

    Parameters
    ----------
    result : the calculation; of its numbers only the sizes are used, to see that Psi4 did the same
    threads : threads of Psi4
    memory : bytes Psi4 may use, None for 70 % of what is free
    timeout : seconds after which Psi4 is stopped, None for no limit

    Raises
    ------
    BackendUnavailable : there is no psi4 on PATH
    BackendError : Psi4 failed, was stopped or cannot express the calculation; its last lines are quoted
    ComparisonFailed : Psi4 correlated other orbitals or used other functions
    ResourceError : no temporary folder can be made
    """
    program = find_psi4()
    if program is None:
        raise BackendUnavailable(f"psi4 is not on PATH: install it ({INSTALL}), or compare with PySCF (--with pyscf)")
    _require_repeatable(result)
    text = psi4_input(result, memory or int(0.7 * resources.available_memory()))
    with _private_folder() as folder:
        (folder / "input.dat").write_text(text, encoding="ascii")
        code = _execute([program, "-n", str(threads), "-s", str(folder)], folder, threads, timeout)
        output = _read(folder / "output.dat")
        screen = _read(folder / "screen.txt")
    if code != 0:
        raise BackendError(f"Psi4 failed ({_reason(code)}): {_ending(screen or output)}")
    if INEXACT in screen:
        raise BackendError(
            "Psi4's integrals over the core potential did not converge, so its energies are no reference here: compare "
            "with PySCF (--with pyscf), or use a newer Psi4"
        )
    found = parse_output(output)
    _require_same(found, result)
    return found.energies


def _require_repeatable(result: MP2Result) -> None:
    """Refuse X2C where Psi4's differs from PySCF's by more than 1e-6 Eh: other constants, and what rounding leaves."""
    if result.options.relativity == "none":
        return
    molecule = result.molecule
    if int((molecule.numbers[~np.array(molecule.ghost)] ** 4).sum()) > HEAVIEST:
        raise UnsupportedByBackend(
            "--relativity x2c with atoms this heavy: Psi4's speed of light differs from PySCF's in the ninth digit, "
            "which changes E(SCF) by 1e-6 Eh and more: compare with PySCF (--with pyscf)"
        )
    basis = build_mole(molecule, decontracted(result.orbital_basis), resources.available_memory())
    if smallest_overlap(basis) < LEAST_OVERLAP:
        raise UnsupportedByBackend(
            f"--relativity x2c: the decontracted {result.orbital_basis.name} is so nearly linearly dependent that "
            "Psi4's X2C is off by 1e-6 Eh and more: compare with PySCF (--with pyscf)"
        )


def parse_output(text: str) -> Psi4Output:
    """Energies, version and sizes out of a Psi4 DF-MP2 output.

    Raises
    ------
    BackendError : it is not the output of a DF-MP2 calculation that ended
    """
    version = re.search(r"^\s*Psi4 (\d\S*)", text, re.MULTILINE)
    values = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in _ENERGIES.items()}
    functions = re.search(r"NBF =\s*(\d+), NAUX =\s*(\d+)", text)
    # Class, frozen and all occupied, active occupied, active virtual, all and frozen virtual orbitals.
    classes = re.findall(r"^\s*(?:PAIRS|ALPHA|BETA)((?:\s+\d+){6})\s*$", text, re.MULTILINE)
    if version is None or functions is None or not classes or not all(values.values()):
        raise BackendError(
            f"Psi4's output holds no DF-MP2 energies: {_ending(text)}; compare with PySCF (--with pyscf)"
        )
    energies = {name: float(match.group(1)) for name, match in values.items() if match is not None}
    active = tuple((int(row.split()[2]), int(row.split()[3])) for row in classes)
    return Psi4Output(
        NativeEnergies(program=f"Psi4 {version.group(1)}", **energies),
        nao=int(functions.group(1)),
        naux=int(functions.group(2)),
        active=active,
    )


def _require_same(found: Psi4Output, result: MP2Result) -> None:
    """Refuse energies of another calculation than the one that was asked for."""
    sizes = result.sizes
    ours = tuple(zip(sizes.nocc, sizes.nvir, strict=True))[: result.reference.nspin]
    theirs = (found.nao, found.naux, found.active)
    if theirs != (sizes.nao, sizes.naux, ours):
        raise ComparisonFailed(
            f"Psi4 did another calculation: {found.nao} basis functions, {found.naux} fitting functions and "
            f"{found.active} active (occupied, virtual) orbitals, the result has {sizes.nao}, {sizes.naux} and {ours}"
        )


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder only we can read, on Psi4's scratch disk if one is named, gone when the block is left."""
    scratch = os.environ.get("PSI_SCRATCH") or None
    try:
        made = tempfile.TemporaryDirectory(prefix="dfmp2-psi4-", dir=scratch, ignore_cleanup_errors=True)
    except OSError as error:
        raise ResourceError(
            f"no temporary folder for Psi4 can be made in {scratch or tempfile.gettempdir()} ({error.strerror}): "
            "set PSI_SCRATCH to a folder that can be written"
        ) from error
    with made as name:
        yield Path(name)


def _execute(command: list[str], folder: Path, threads: int, timeout: float | None) -> int:
    """Run Psi4 in `folder`, away from the terminal; whatever ends the wait also ends Psi4.

    It gets a process group of its own, so that everything it starts can be stopped, and `folder` as its
    home, because it would execute a ~/.psi4rc.
    """
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    environment |= {"HOME": str(folder), "PSI_SCRATCH": str(folder), "OMP_NUM_THREADS": str(threads)}
    with open(folder / "screen.txt", "wb") as screen:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise BackendError(f"{command[0]} cannot be started ({error.strerror}): install Psi4 again") from error
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise BackendError(
                f"Psi4 was stopped after --timeout {timeout:g} s: allow more, or leave it out"
            ) from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its files are temporary: nothing to save
                process.wait()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _reason(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"killed by signal {-code}"


def _ending(text: str) -> str:
    """What a failed run said: its error message, else its last lines; on one line, fit for a terminal."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    shown = [line[:LONGEST_LINE] for line in errors[:1] or lines[-LAST_LINES:]]
    return "".join(c if c.isprintable() else " " for c in " | ".join(shown)) or "it wrote nothing"
