"""The parts of a result: frozen values, with a unit and a description on every field.

The metadata of the fields is the schema of the HDF5 file (`dfmp2.io.hdf5`). Derived quantities are
properties, so they cannot disagree with their parts. Arrays are float64; energies in hartree (Eh).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfmp2.solutions import Solutions
from dfmp2.units import quantity as _q

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PairEnergies:
    """Unscaled pair energies of the active occupied orbitals, Eh; each component is its matrix' sum.

    opposite_spin : (nocc_alpha, nocc_beta)
    same_spin : one (nocc, nocc) matrix (restricted) or two (alpha-alpha, beta-beta)
    """

    opposite_spin: Array
    same_spin: tuple[Array, ...]

    @property
    def opposite_spin_energy(self) -> float:
        """E_OS, Eh."""
        return math.fsum(self.opposite_spin.flat)

    @property
    def same_spin_energy(self) -> float:
        """E_SS, Eh."""
        return math.fsum(value for matrix in self.same_spin for value in matrix.flat)

    def channels(self) -> dict[str, Array]:
        """Matrices by name: opposite_spin, same_spin or same_spin_alpha and same_spin_beta."""
        names = ("same_spin",) if len(self.same_spin) == 1 else ("same_spin_alpha", "same_spin_beta")
        return {"opposite_spin": self.opposite_spin, **dict(zip(names, self.same_spin, strict=True))}


@dataclass(frozen=True, slots=True, eq=False)
class StartOrbitals:
    """Orbitals to start the SCF from.

    Attributes
    ----------
    mo_coeff : (nspin, nao, nmo) float64
    mo_occ : (nspin, nmo) float64
    charges : nuclear charges of the atoms they belong to, or None when the file does not say
    origin : file name, for the record
    """

    mo_coeff: Array
    mo_occ: Array
    charges: tuple[int, ...] | None
    origin: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """What recomputing a sample of pairs in float64 found (`dfmp2.mp2.certificate`)."""

    pairs: int = _q("", "pairs evaluated")
    sampled: int = _q("", "pairs recomputed in float64")
    correlation_error: float = _q("hartree", "estimated precision error of the correlation energy")
    same_spin_error: float = _q("hartree", "estimated precision error of the same-spin component")
    opposite_spin_error: float = _q("hartree", "estimated precision error of the opposite-spin component")
    largest_pair_error: float = _q("hartree", "largest difference found for one pair, both its orders counted")
    tolerance: float = _q("hartree", "largest estimate accepted")
    repeated_in_fp64: bool = _q("", "the estimate exceeded the tolerance and the step was repeated in float64")

    @property
    def accepted(self) -> bool:
        """Whether the estimate is within the tolerance."""
        return self.correlation_error <= self.tolerance


@dataclass(frozen=True, slots=True)
class NativeEnergies:
    """What PySCF computes, Eh.

    Attributes
    ----------
    program : name and version
    scf_total_energy, same_spin, opposite_spin : Eh, unscaled
    """

    program: str
    scf_total_energy: float
    same_spin: float
    opposite_spin: float


@dataclass(frozen=True, slots=True)
class Check:
    """PySCF's own DF-MP2 and the differences (ours - PySCF), Eh."""

    program: str = _q("", "program and module that computed the reference values")
    scf_total_energy: float = _q("hartree", "reference SCF energy")
    same_spin: float = _q("hartree", "reference same-spin correlation energy")
    opposite_spin: float = _q("hartree", "reference opposite-spin correlation energy")
    scf_difference: float = _q("hartree", "SCF energy, ours - reference")
    same_spin_difference: float = _q("hartree", "same-spin correlation energy, ours - reference")
    opposite_spin_difference: float = _q("hartree", "opposite-spin correlation energy, ours - reference")
    allowed: float = _q("hartree", "largest difference accepted")

    @property
    def correlation_difference(self) -> float:
        """E(corr), ours - reference, Eh."""
        return self.same_spin_difference + self.opposite_spin_difference

    @property
    def largest_difference(self) -> float:
        """Largest absolute difference of any component, Eh; NaN where one is NaN."""
        parts = (self.scf_difference, self.same_spin_difference, self.opposite_spin_difference)
        return float(np.max(np.abs((*parts, self.correlation_difference))))

    @property
    def passed(self) -> bool:
        """Whether every component agrees within what is allowed."""
        return self.largest_difference <= self.allowed


@dataclass(frozen=True, slots=True)
class Stability:
    """Lowest eigenvalue of the orbital Hessian (`dfmp2.reference.stability`)."""

    verdict: str = _q("", "stable, unstable, no instability found, or not checked")
    method: str = _q("", "which rotations were examined and how")
    lowest_eigenvalue: float = _q("hartree", "lowest eigenvalue found; negative means a lower SCF solution exists")
    energy_gain: float | None = _q("hartree", "energy that falls along an unstable eigenvector, the least gained", None)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The converged Hartree-Fock reference."""

    kind: str = _q("", "rhf or uhf")
    scf_type: str = _q("", "df or conventional")
    scf_total_energy: float = _q("hartree", "total Hartree-Fock energy")
    nuclear_repulsion_energy: float = _q("hartree", "nuclear repulsion energy")
    cycles: int = _q("", "SCF iterations, rescue ladder included")
    ladder: tuple[str, ...] = _q("", "convergence methods used, in order")
    start: str = _q("", "where the start orbitals came from")
    spin_square: float = _q("", "<S^2> of the reference determinant")
    mo_coeff: Array = _q("", "orbital coefficients (nspin, nao, nmo)")
    mo_energy: Array = _q("hartree", "orbital energies (nspin, nmo)")
    mo_occ: Array = _q("", "orbital occupations (nspin, nmo)")
    stability: Stability | None = _q("", "orbital stability", None)
    solutions: Solutions | None = _q("", "SCF solutions found, where more than one was looked for", None)
    history: Array | None = _q("hartree", "energy, its change, orbital gradient of each SCF iteration (n, 3)", None)

    def __post_init__(self) -> None:
        """Raise ValueError where the history is not one row of three numbers for each iteration."""
        if self.history is not None and self.history.shape != (len(self.history), 3):
            raise ValueError(f"the SCF history has shape {self.history.shape}, expected (iterations, 3)")

    @property
    def nspin(self) -> int:
        """1 for a restricted, 2 for an unrestricted reference."""
        return int(self.mo_energy.shape[0])


@dataclass(frozen=True, slots=True)
class Sizes:
    """Dimensions; pairs of numbers are (alpha, beta)."""

    natom: int = _q("", "atoms, ghosts included")
    nelectron: int = _q("", "explicit electrons")
    nao: int = _q("", "orbital basis functions (spherical)")
    nmo: int = _q("", "molecular orbitals")
    naux_scf: int = _q("", "functions of the SCF fitting set, 0 for a conventional SCF")
    naux: int = _q("", "functions of the MP2 fitting set")
    frozen_core: int = _q("", "frozen core orbitals per spin")
    nocc: tuple[int, int] = _q("", "correlated occupied orbitals (alpha, beta)")
    nvir: tuple[int, int] = _q("", "correlated virtual orbitals (alpha, beta)")
    frozen_virtual: int = _q("", "virtual orbitals left out per spin")


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Numbers that tell whether the result can be trusted."""

    homo_lumo_gap: float = _q("hartree", "smallest gap between occupied and virtual orbital energies of one spin")
    smallest_denominator: float = _q("hartree", "smallest e_a + e_b - e_i - e_j")
    metric_condition: float = _q("", "estimated condition number of the fitting metric (P|Q)")
    metric_dropped: int = _q("", "fitting functions dropped by the eigenvalue cut")
    metric_threshold: float = _q("", "eigenvalue cut relative to the largest eigenvalue, 0 when Cholesky was used")
    warnings: tuple[str, ...] = _q("", "warnings given during the run")
    scf_fitting_error: float | None = _q("hartree", "error of the SCF fitting set, sum over atoms measured alone", None)
    mp2_fitting_error: float | None = _q("hartree", "error of the MP2 fitting set, sum over atoms measured alone", None)


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall times, s."""

    scf: float = _q("s", "SCF")
    integrals: float = _q("s", "three-centre integrals of the MP2 step")
    fit: float = _q("s", "fitting metric and fit")
    transform: float = _q("s", "AO to MO transformation")
    pair_energies: float = _q("s", "pair energies, certificate included")
    total: float = _q("s", "whole calculation, start-up of the program excluded")


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of the process, byte."""

    budget: int = _q("byte", "memory the run was allowed to use")
    predicted_peak: int = _q("byte", "predicted peak resident memory")
    measured_peak: int = _q("byte", "measured peak resident memory")


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the large arrays lived."""

    scf_integrals: str = _q("", "fitted SCF integrals: memory, disk, or none")
    fitted_tensor: str = _q("", "B of the MP2 step: memory or disk")
    folder: str = _q("", "folder scratch files were in, empty when there were none")
    predicted: int = _q("byte", "scratch space planned")
    written: int = _q("byte", "bytes written to scratch files")
    read: int = _q("byte", "bytes read from scratch files")


@dataclass(frozen=True, slots=True)
class Ranks:
    """How a run was spread over processes."""

    count: int = _q("", "processes")
    hosts: tuple[str, ...] = _q("", "host of each")
    measured_peaks: tuple[int, ...] = _q("byte", "measured peak resident memory of each, shared arrays counted in all")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where, when and with what the result was made."""

    version: str = _q("", "dfmp2 version")
    command: str = _q("", "command line, or the Python entry point")
    created: str = _q("", "end of the calculation, ISO 8601 with time zone")
    host: str = _q("", "host name")
    platform: str = _q("", "operating system and processor")
    python: str = _q("", "Python version")
    numpy: str = _q("", "NumPy version")
    scipy: str = _q("", "SciPy version")
    pyscf: str = _q("", "PySCF version")
    h5py: str = _q("", "h5py version")
    blas: str = _q("", "BLAS that NumPy uses")
    threads: int = _q("", "threads given to the run")
    backend_details: tuple[str, ...] = _q("", "device and library versions of the backend")


@dataclass(frozen=True, slots=True)
class Preparation(Provenance):
    """Where, when and with what B was made, when another process made it (`dfmp2 prepare`)."""

    file: str = _q("", "file that B was read from")
    sha256: str = _q("", "hash of that file's content")
    seconds: float = _q("s", "wall time of the preparation: SCF, integrals, B and writing it")
    measured_peak: int = _q("byte", "measured peak resident memory of the preparation")
