"""What a run will hold in memory, stage by stage, before it starts.

Counts the arrays that grow with the molecule; program and libraries are what is resident already.
The SCF needs less when it must: PySCF moves its fitted integrals to disk. The MP2 step holds B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dfmp2.errors import ResourceError
from dfmp2.units import format_bytes

FLOAT64, FLOAT32 = 8, 4
SCF_MATRICES = 30  # (nao, nao) float64 arrays alive in the SCF: DIIS space of 8 pairs, Fock, density, work
SCF_BUFFERS = 1.35  # fitted SCF integrals while they are made, relative to their final size
SLACK = 40 * 10**6  # bytes of Python objects and library buffers made on the way


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

    def require(self) -> None:
        """Refuse a run that cannot stay inside the budget.

        Raises
        ------
        ResourceError : with the bytes required and available, and what would fit
        """
        if self.least > self.budget:
            raise ResourceError(
                f"not enough memory: {format_bytes(self.least)} are required ({format_bytes(self.mp2)} of them for the "
                f"fitted integrals and the pair energies) and {format_bytes(self.budget)} may be used: allow at least "
                f"--memory {-(-self.least // 10**6)}MB, or make the problem smaller (--frozen-core, a smaller --basis)"
            )


def plan(
    *,
    program: int,
    budget: int,
    nao: int,
    naux_scf: int,
    naux: int,
    shapes: Sequence[tuple[int, int]],
    block_functions: int,
    precision: str,
    workers: int,
    chunk_elements: int,
) -> MemoryPlan:
    """Bytes every stage will hold.

    Parameters
    ----------
    program, budget : resident and allowed bytes
    naux_scf, naux : functions of the SCF fitting set (0 for a conventional SCF) and of the MP2 one
    shapes : (nocc, nvir) per spin
    block_functions : fitting functions per block of integrals
    precision : "fp64", "mixed" or "auto"
    workers, chunk_elements : concurrent tiles and elements of (ia|jb) each of them holds
    """
    pairs = nao * (nao + 1) // 2
    matrices = SCF_MATRICES * nao * nao * FLOAT64 * len(shapes)
    fitted = naux_scf * pairs * FLOAT64 if naux_scf else min(pairs * (pairs + 1) // 2 * FLOAT64, budget // 2)
    elements = sum(nocc * nvir for nocc, nvir in shapes)
    tensors = elements * naux * (FLOAT64 if precision == "fp64" else FLOAT64 + FLOAT32)
    block = block_functions * (pairs + 2 * elements) * FLOAT64
    metric = 2 * naux * naux * FLOAT64
    tiles = 3 * workers * max(chunk_elements, max((nvir * nvir for _, nvir in shapes), default=0)) * FLOAT64
    return MemoryPlan(
        program=program,
        scf_in_core=int(matrices + SCF_BUFFERS * fitted),
        scf_least=matrices + min(int(SCF_BUFFERS * fitted), 200 * 10**6),
        mp2=tensors + metric + max(block, tiles),
        budget=budget,
    )
