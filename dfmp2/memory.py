"""What a run will hold in memory, stage by stage, before it starts.

Counts the arrays that grow with the molecule; program and libraries are what is resident already.
The SCF needs less when it must: PySCF moves its fitted integrals to disk. The MP2 step holds B.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.errors import ResourceError
from dfmp2.units import format_bytes
from dfmp2.workload import Workload

FLOAT64, FLOAT32 = 8, 4
SCF_MATRICES = 30  # (nao, nao) float64 arrays alive in the SCF: DIIS space of 8 pairs, Fock, density, work
WORKER_BYTES = 32 * 10**6  # buffers of one worker in the SCF fit, the exchange and the triangular solves
SLACK = 6 * 10**6  # bytes of Python objects and library buffers made on the way
DISK_BUFFER = 200 * 10**6  # of PySCF's SCF when its fitted integrals are on disk


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes per stage.

    Attributes
    ----------
    program : resident now
    scf_in_core : SCF with everything in memory; scf_least : with its integrals on disk
    mp2 : fit, transformation and pair energies
    budget : what the run may use
    """

    program: int
    scf_in_core: int
    scf_least: int
    mp2: int
    budget: int

    @property
    def scf_fits_in_core(self) -> bool:
        """Whether the fitted SCF integrals can stay in memory."""
        return self.program + SLACK + self.scf_in_core <= self.budget

    @property
    def predicted_peak(self) -> int:
        """Expected peak resident memory, bytes."""
        scf = self.scf_in_core if self.scf_fits_in_core else self.scf_least
        return self.program + SLACK + max(scf, self.mp2)

    @property
    def least(self) -> int:
        """Smallest budget that works, bytes."""
        return self.program + SLACK + max(self.scf_least, self.mp2)

    @property
    def fits(self) -> bool:
        """Whether the run can stay inside the budget."""
        return self.least <= self.budget

    def require(self) -> None:
        """Refuse a run that cannot stay inside the budget.

        Raises
        ------
        ResourceError : with the bytes required and available, and what would fit
        """
        if not self.fits:
            raise ResourceError(
                f"not enough memory: {format_bytes(self.least)} are required ({format_bytes(self.mp2)} of them for the "
                f"fitted integrals and the pair energies) and {format_bytes(self.budget)} may be used: allow at least "
                f"--memory {-(-self.least // 10**6)}MB, or make the problem smaller (--frozen-core, a smaller --basis)"
            )


def plan(work: Workload, *, program: int, budget: int, workers: int, chunk_elements: int) -> MemoryPlan:
    """Bytes every stage will hold.

    Parameters
    ----------
    work : sizes of the calculation
    program, budget : resident and allowed bytes
    workers, chunk_elements : concurrent tiles and elements of (ia|jb) each of them holds
    """
    pairs, n = work.pairs_of_functions, work.nao
    matrices = SCF_MATRICES * n * n * FLOAT64 * len(work.spins)
    small = 2 * (pairs + n * n) * FLOAT64 * workers
    buffers = min(WORKER_BYTES * workers, 2 * pairs * max(work.naux_scf, 1) * FLOAT64)
    if work.naux_scf:
        fitted = work.naux_scf * pairs * FLOAT64 + 2 * work.naux_scf**2 * FLOAT64 + buffers
    else:  # PySCF keeps all four-centre integrals when they fit, else it recomputes them
        fitted = min(pairs * (pairs + 1) // 2 * FLOAT64, budget // 2)
    tensors = work.elements * work.naux * (FLOAT64 if work.precision == "fp64" else FLOAT64 + FLOAT32)
    block = work.block_functions * (pairs + 2 * work.elements) * FLOAT64
    metric = 2 * work.naux**2 * FLOAT64
    largest = max((s.nvir for s in work.spins), default=0) ** 2
    tiles = 3 * workers * max(chunk_elements, largest) * FLOAT64
    return MemoryPlan(
        program=program,
        scf_in_core=matrices + small + fitted,
        scf_least=matrices + small + min(fitted, DISK_BUFFER),
        mp2=tensors + metric + max(block, min(tiles, 2 * tensors)),
        budget=budget,
    )
