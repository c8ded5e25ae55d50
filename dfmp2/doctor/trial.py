"""The proof: the smallest calculation, with all defaults, held against PySCF's energy, and its result file.

H2 at 1.4 bohr in STO-3G, fitting sets def2-universal-jkfit and def2-svp-ri: PySCF 2.14.0 (scf.RHF density-fitted,
mp.dfmp2_native) gives the energies below. Symmetry fixes the orbitals, so nothing depends on SCF convergence.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path

import numpy as np

from dfmp2.doctor.finding import FAIL, OK, WARN, Finding, Surroundings
from dfmp2.doctor.packages import REINSTALL
from dfmp2.errors import Dfmp2Error
from dfmp2.molecule import Molecule
from dfmp2.progress import Listener
from dfmp2.result import MP2Result

DISTANCE = 1.4  # bohr
BASIS = "sto-3g"
SCF_ENERGY = -1.1167383286909018  # Eh
CORRELATION_ENERGY = -0.013153383073958618  # Eh
LARGEST_ERROR = 1e-8  # Eh
COMPARISON_FAILED, NO_RESOURCES = 8, 7


class Quiet(Listener):
    """Warnings of a molecule nobody asked about are of no interest."""

    def warning(self, text: str) -> None:
        """Nothing."""


def check_default_run() -> tuple[Finding, MP2Result | None]:
    """Does a run with all defaults give the right energy?"""
    from dfmp2 import api

    molecule = Molecule(("H", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, DISTANCE]]), name="h2", source="dfmp2 doctor")
    start = time.perf_counter()
    try:
        result = api.run(molecule, BASIS, listener=Quiet())
    except Dfmp2Error as error:
        return Finding("default run", FAIL, str(error), "mend what the message names", error.exit_code), None
    except OSError as error:  # what the command line turns into exit code 7
        return Finding("default run", FAIL, f"the system refused: {error}", "see scratch", NO_RESOURCES), None
    return judge_run(result, time.perf_counter() - start), result


def judge_run(result: MP2Result, seconds: float) -> Finding:
    """Is the energy of the trial molecule what PySCF gives?"""
    scf, correlation = result.scf_total_energy - SCF_ENERGY, result.mp2_correlation_energy - CORRELATION_ENERGY
    detail = (
        f"H2/{BASIS} on {result.backend} ({result.precision}, {result.provenance.threads} threads) in {seconds:.1f} s: "
        f"E(SCF) {scf:+.0e}, E(corr) {correlation:+.0e} Eh from PySCF's"
    )
    if max(abs(scf), abs(correlation)) > LARGEST_ERROR:
        fix = f"do not trust this installation: {REINSTALL}, then dfmp2 validate"
        return Finding("default run", FAIL, detail, fix, COMPARISON_FAILED)
    return Finding("default run", OK, detail)


def check_result_file(s: Surroundings, result: MP2Result | None) -> Finding:
    """Can a result be written into the working directory and read back, file locks included?"""
    from dfmp2.io import hdf5

    if result is None:
        return Finding("result file", WARN, "not tried: there is no result to write", "mend the default run first")
    setting = s.environ.get("HDF5_USE_FILE_LOCKING")
    shown = "" if setting is None else f", HDF5_USE_FILE_LOCKING={setting}"
    path = s.folder / f".dfmp2-doctor-{uuid.uuid4().hex[:12]}.h5"
    try:
        hdf5.write(result, path)
        same = hdf5.read(path).mp2_total_energy == result.mp2_total_energy and hdf5.verify(path)
    except Dfmp2Error as error:
        if "lock" in str(error).lower():  # the file is there: the run itself works
            fix = "export HDF5_USE_FILE_LOCKING=FALSE, or write to a disk of this machine"
            return Finding("result file", WARN, f"written, but this disk has no file locks{shown}", fix)
        fix = "write elsewhere with --output, or free some space"
        return Finding("result file", FAIL, str(error), fix, error.exit_code)
    finally:
        _remove(path)
    if not same:
        return Finding("result file", FAIL, "what was read is not what was written", REINSTALL, NO_RESOURCES)
    return Finding("result file", OK, f"written, locked, read and removed{shown}")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
