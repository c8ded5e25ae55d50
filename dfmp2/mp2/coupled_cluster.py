"""CCSD(T) from another program, for its difference from MP2 in a small basis.

    correction = E(CCSD(T)) - E(MP2)        both from that program, with its orbitals and integrals

PySCF starts from the orbitals of our run and fits the integrals in its MP2 set (those of the Fock
matrix in the SCF's set), so that its MP2 energy must equal ours; this is checked. A program behind
QCEngine starts from the geometry and uses four-centre integrals. Raghavachari, Trucks, Pople,
Head-Gordon, Chem. Phys. Lett. 157, 479 (1989).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dfmp2.errors import (
    BackendUnavailable,
    ComparisonFailed,
    ConvergenceError,
    InputError,
    Option,
    ResourceError,
)
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.mp2.energy import mp2_energy
from dfmp2.mp2.result import CoupledCluster, MP2Result
from dfmp2.options import Options
from dfmp2.planning.sizes import FLOAT64, Workload
from dfmp2.planning.system import resolve, set_up_run
from dfmp2.progress import Listener, Silent
from dfmp2.scf import hamiltonian
from dfmp2.units import told_apart

PYSCF, PSI4 = PROGRAMS = ("pyscf", "psi4")
CONVERGED = 1e-8  # Eh, change of the CCSD energy
AMPLITUDES = 1e-6  # norm of the change of the amplitudes
MOST_CYCLES = 100
SAME_MP2 = 1e-6  # Eh, between two programs with the same orbitals and fitting sets
DOUBLES = 20  # arrays of the size of T2: amplitudes, their history, integrals, intermediates
TEMPORARY = 1.5  # times the arrays; measured: H2O/cc-pVQZ 1.4, CH2I2/def2-SVP 1.0 plus MODULES
MODULES = 80 * 10**6  # bytes of PySCF's coupled-cluster modules
GIBIBYTE = 2**30
UNDERSTOOD = (1, 4)  # first version of Psi4 that understands what QCEngine writes
ONE_ELECTRON = "none: fewer than two electrons are correlated"


@dataclass(frozen=True, slots=True)
class WithCoupledCluster:
    """Runs MP2 and then CCSD(T) in a given program; called like `dfmp2.mp2.energy.mp2_energy`.

    Attributes
    ----------
    program : str
        One of PROGRAMS.
    """

    program: str

    def __call__(
        self,
        molecule: Molecule,
        options: Options,
        *,
        listener: Listener | None = None,
        **how: Any,
    ) -> MP2Result:
        """The MP2 result with its field `coupled_cluster` filled.

        Raises
        ------
        ConvergenceError : CCSD does not converge
        ComparisonFailed : PySCF's MP2 energy differs
        BackendUnavailable : the program is not installed, or has failed
        """
        listener = listener or Silent()
        result = mp2_energy(molecule, options, listener=listener, **how)
        begin = time.perf_counter()
        if _uncorrelated(result.sizes.nocc, result.reference.nspin):
            found = CoupledCluster(
                program=ONE_ELECTRON,
                ccsd_correlation_energy=0.0,
                triples_energy=0.0,
                mp2_correlation_energy=0.0,
                seconds=0.0,
            )
        elif self.program == PYSCF:
            listener.stage("CCSD(T) by PySCF")
            found = _by_pyscf(result)
        else:
            listener.stage(f"CCSD(T) by {self.program}")
            found = _by_qcengine(self.program, result)
        return replace(result, coupled_cluster=replace(found, seconds=time.perf_counter() - begin))

    def require(self, molecule: Molecule, work: Workload, budget: int) -> None:
        """Raise before the run if the program cannot treat the molecule.

        Parameters
        ----------
        work : Workload
            Workload of its MP2.
        budget : int
            Bytes that may be used.

        Raises
        ------
        InputError : the program does not support it
        ResourceError : it does not fit; names the bytes needed and available
        """
        occupied = tuple(spin.nocc for spin in work.spins)
        if self.program != PYSCF and molecule.point_charges is not None:
            raise InputError(
                Option("delta_program", self.program),
                " does not get the point charges: use ",
                Option("delta_program", PYSCF),
            )
        if 0 in occupied and not _uncorrelated(occupied, len(occupied)):
            raise InputError(
                f"{molecule.formula} has {max(occupied)} correlated electrons of one spin and none "
                "of the other, for which there is no CCSD(T) here: leave out ",
                Option("delta"),
            )
        needed = coupled_cluster_bytes(work)
        if needed > budget:
            required, allowed = told_apart("bytes", needed, budget)
            raise ResourceError(
                f"CCSD(T) with {work.nao} basis functions needs about {required}, and {allowed} "
                "may be used: use a smaller basis for ",
                Option("delta"),
                ", freeze the core, or allow more ",
                Option("memory"),
            )


def _uncorrelated(occupied: Sequence[int], nspin: int) -> bool:
    """Whether fewer than two electrons are correlated."""
    return nspin == 2 and sum(occupied) < 2


def coupled_cluster_bytes(work: Workload) -> int:
    """Bytes of PySCF's CCSD(T): arrays of the size of T2, and (ov|vv) twice for the triples.

    With two spins, T2 has parts for both and for mixed pairs.
    """
    doubles = triples = 0
    for first in work.spins:
        for second in work.spins:
            virtuals = first.nvir * second.nvir
            doubles += first.nocc * second.nocc * virtuals
            triples += 2 * first.nocc * virtuals * second.nvir
    arrays = FLOAT64 * (DOUBLES * doubles + triples + work.nao**2 * work.naux)
    return MODULES + round(TEMPORARY * arrays)


def _by_pyscf(result: MP2Result) -> CoupledCluster:
    """CCSD(T) with fitted integrals on the orbitals of a result."""
    with shielded():
        import pyscf

        solver = _pyscf_solver(result)
        integrals = solver.ao2mo()
        mp2, singles, doubles = solver.init_amps(integrals)
        ccsd = float(solver.kernel(singles, doubles, eris=integrals)[0])
        if not solver.converged:
            raise ConvergenceError(
                f"CCSD has not converged in {MOST_CYCLES} iterations: the reference is not a good "
                "start for it; look at its ",
                Option("stability", "full"),
                ", or leave out ",
                Option("delta"),
            )
        triples = float(solver.ccsd_t(eris=integrals))
        t1 = d1 = None
        if result.reference.nspin == 1:
            t1 = float(solver.get_t1_diagnostic())
            d1 = float(solver.get_d1_diagnostic())
    if not abs(mp2 - result.mp2_correlation_energy) <= SAME_MP2:
        raise ComparisonFailed(
            f"PySCF's MP2 on the same orbitals is {mp2:.8f} Eh and ours "
            f"{result.mp2_correlation_energy:.8f} Eh: its CCSD(T) belongs to another calculation; "
            "report this"
        )
    return CoupledCluster(
        program=f"PySCF {pyscf.__version__} (fitted integrals)",
        ccsd_correlation_energy=ccsd,
        triples_energy=triples,
        mp2_correlation_energy=float(mp2),
        seconds=0.0,
        t1_diagnostic=t1,
        d1_diagnostic=d1,
    )


def _pyscf_solver(result: MP2Result) -> Any:
    """PySCF's density-fitted CCSD for the orbitals of a result."""
    from pyscf import df
    from pyscf.cc import dfccsd, dfuccsd

    options, reference = result.options, result.reference
    system = resolve(result.molecule, set_up_run(options, ""), Silent(), doubt_units=False)
    mf = hamiltonian.mean_field(
        system.mole, reference.kind, options.relativity, result.molecule.point_charges
    )
    if system.jk_auxmole is not None:
        mf = mf.density_fit(auxbasis=system.jk_auxmole.basis)
    mf.mo_coeff, mf.mo_energy, mf.mo_occ = reference.mo_coeff, reference.mo_energy, reference.mo_occ
    mf.e_tot = reference.scf_total_energy
    mf.converged = True
    if reference.nspin == 1:
        mf.mo_coeff, mf.mo_energy, mf.mo_occ = mf.mo_coeff[0], mf.mo_energy[0], mf.mo_occ[0]
        solver = dfccsd.RCCSD(mf, frozen=result.sizes.frozen_core)
    else:
        solver = dfuccsd.UCCSD(mf, frozen=result.sizes.frozen_core)
    solver.with_df = df.DF(system.mole, auxbasis=system.auxmole.basis)
    solver.conv_tol, solver.conv_tol_normt = CONVERGED, AMPLITUDES
    solver.max_cycle = MOST_CYCLES
    solver.max_memory = result.memory.budget / 1e6
    return solver


def _by_qcengine(program: str, result: MP2Result) -> CoupledCluster:
    """CCSD(T) with four-centre integrals from a program behind QCEngine."""
    require_program(program)
    import qcengine

    molecule, options = result.molecule, result.options
    document = {
        "schema_name": "qcschema_input",
        "schema_version": 1,
        "molecule": {
            "schema_name": "qcschema_molecule",
            "schema_version": 2,
            "symbols": list(molecule.symbols),
            "geometry": molecule.coordinates.ravel().tolist(),
            "real": [not ghost for ghost in molecule.ghost],
            "molecular_charge": molecule.charge,
            "molecular_multiplicity": molecule.multiplicity,
            "fix_com": True,
            "fix_orientation": True,
            "fix_symmetry": "c1",
        },
        "driver": "energy",
        "model": {"method": "ccsd(t)", "basis": options.basis},
        "keywords": {
            "reference": result.reference.kind,
            "scf_type": "pk",
            "num_frozen_docc": result.sizes.frozen_core,
            "e_convergence": CONVERGED,
            "d_convergence": CONVERGED,
        },
    }
    if _psi4_version() < UNDERSTOOD:
        answer = _by_old_psi4(document, result.memory.budget)
    else:
        task = {"ncores": options.threads or 1, "memory": result.memory.budget / GIBIBYTE}
        answer = qcengine.compute(document, program, return_dict=True, task_config=task)
    energies = answer.get("extras", {}).get("qcvars", {})
    if not answer["success"] or "CCSD(T) CORRELATION ENERGY" not in energies:
        said = str(answer.get("error", {}).get("error_message", "no energy"))
        lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no message"]
        raise BackendUnavailable(
            f"{program} failed with CCSD(T)/{options.basis} ({lines[-1][:160]}): use ",
            Option("delta_program", PYSCF),
        )
    origin = answer["provenance"]
    restricted = result.reference.nspin == 1
    return CoupledCluster(
        program=f"{origin['creator']} {origin['version']} (four-centre integrals)",
        ccsd_correlation_energy=float(energies["CCSD CORRELATION ENERGY"]),
        triples_energy=float(energies["(T) CORRECTION ENERGY"]),
        mp2_correlation_energy=float(energies["MP2 CORRELATION ENERGY"]),
        seconds=0.0,
        t1_diagnostic=float(energies["CC T1 DIAGNOSTIC"]) if restricted else None,
        d1_diagnostic=float(energies["CC D1 DIAGNOSTIC"]) if restricted else None,
    )


def _psi4_version() -> tuple[int, ...]:
    """Numeric part of Psi4's version; asked in a temporary folder, because Psi4 leaves a file
    behind."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["psi4", "--version"]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    words = ended.stdout.split() or [""]
    return tuple(int(number) for number in re.findall(r"\d+", words[-1])[:2])


def _by_old_psi4(document: dict[str, Any], budget: int) -> dict[str, Any]:
    """The answer of a Psi4 that understands only QCSchema 1.

    QCEngine 0.52 hands it QCSchema 2 all the same, which it rejects. This function can go once
    QCEngine converts the document.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.json"
        file.write_text(json.dumps({**document, "memory": int(0.9 * budget)}))
        command = ["psi4", "--scratch", folder, "--json", file.name]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            return {"success": False, "error": {"error_message": ended.stderr or "no message"}}
        answer: dict[str, Any] = json.loads(file.read_text())
        return answer


def require_program(program: str) -> None:
    """Raise unless the program is available.

    Raises
    ------
    BackendUnavailable : QCEngine is not installed, or does not find the program
    """
    if program == PYSCF:
        return
    try:
        import qcengine  # noqa: F401 - only to see whether it is installed
    except ImportError as error:
        raise BackendUnavailable(
            Option("delta_program", program),
            f" needs QCEngine ({error}): pip install 'dfmp2[qc]', or use ",
            Option("delta_program", PYSCF),
        ) from error
    if shutil.which(program) is None:
        raise BackendUnavailable(
            Option("delta_program", program),
            ": there is no such command here: install it, or use ",
            Option("delta_program", PYSCF),
        )
