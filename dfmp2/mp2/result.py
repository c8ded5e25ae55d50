"""The result of a calculation and its parts: frozen values, with a unit and a description for every
field.

The metadata of the fields defines the schema of the HDF5 file (`dfmp2.output.hdf5`). Derived
quantities are properties, so they cannot disagree with their parts. Arrays are float64, energies in
hartree (Eh). Names follow QCSchema if it has them. `to_dict` returns what `--json` prints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.arrays import same_content
from dfmp2.errors import ComparisonFailed, InputError, Option
from dfmp2.host.deferred import presentation
from dfmp2.host.provenance import Memory, Preparation, Provenance, Storage
from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.dispersion import Dispersion
from dfmp2.mp2.error_budget import ErrorBudget
from dfmp2.mp2.pairs import PairEnergies
from dfmp2.mp2.properties import Gradient, GradientCertificate, Polarizability, Properties
from dfmp2.options import ALL, Options
from dfmp2.options.methods import CUSTOM, SCS, SOS
from dfmp2.planning.sizes import Sizes
from dfmp2.planning.time import Timings
from dfmp2.scf.reference import Reference
from dfmp2.units import quantity as _q
from dfmp2.units import told_apart

# Energies of the requested method, whichever it is; the prefix `mp2_` means plain MP2.
OF_THE_METHOD = (
    "same_spin_correlation_energy",
    "opposite_spin_correlation_energy",
    "correlation_energy",
    "total_energy",
)
OF_MP2 = tuple(f"mp2_{name}" for name in OF_THE_METHOD)
SUMMANDS = {  # of a total energy -> what they are
    "scf_total_energy": "total energy of the SCF",
    "hf_total_energy": "Hartree-Fock energy of the Kohn-Sham orbitals",
    "functional_energy": "energy of the functional with the orbitals of the SCF",
    "correlation_energy": "correlation energy of the method",
    "dispersion_energy": "dispersion correction",
}
OF_SCALED_MP2 = ("scs_mp2_correlation_energy", "sos_mp2_correlation_energy")


@dataclass(frozen=True, slots=True)
class Quadrature:
    """An energy computed as a sum over quadrature points, for a method without pair energies."""

    energy: float = _q(
        "hartree", "unscaled opposite-spin energy of MP2 (Laplace), or correlation energy (RPA)"
    )
    points: int = _q("", "exponents of the Laplace transform, or frequencies")
    lowest: float = _q(
        "hartree", "lower end of the range: of e_a + e_b - e_i - e_j (Laplace), of e_a - e_i (RPA)"
    )
    highest: float = _q("hartree", "upper end of the range")
    error: float = _q(
        "hartree", "error of the correlation energy: a bound (Laplace), an estimate (RPA)"
    )
    scale: float = _q("hartree", "scale a of the frequencies a cot(u) (RPA)", 0.0)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Precision error from recomputing a sample of pairs in float64 (`dfmp2.mp2.certificate`).

    If `seed` is None, as in files of earlier versions, the errors are estimates from evenly spaced
    pairs.
    """

    pairs: int = _q("", "pairs evaluated")
    sampled: int = _q("", "pairs recomputed in float64")
    correlation_error: float = _q(
        "hartree", "95 % upper bound on the precision error of the correlation energy"
    )
    same_spin_error: float = _q(
        "hartree", "95 % upper bound on the precision error of the same-spin component"
    )
    opposite_spin_error: float = _q(
        "hartree", "95 % upper bound on the precision error of the opposite-spin component"
    )
    largest_pair_error: float = _q(
        "hartree", "largest difference found for one pair, both its orders counted"
    )
    tolerance: float = _q("hartree", "largest bound accepted")
    repeated_in_fp64: bool = _q(
        "", "the bound exceeded the tolerance and the step was repeated in float64"
    )
    seed: int | None = _q("", "seed of the random sample", None)

    @property
    def accepted(self) -> bool:
        """Whether the bound is within the tolerance; false if it is NaN."""
        return self.correlation_error <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingCertificate:
    """Errors of the fitted integrals in this molecule, from four-centre integrals
    (`dfmp2.mp2.fitting_certificate`).

    Errors are fitted - exact, where exact means a conventional SCF and four-centre MP2 on its
    orbitals.
    """

    correlation_error: float | None = _q(
        "hartree",
        "fitting error of the correlation energy; absent if pairs were left out by derive",
        None,
    )
    correlation_uncertainty: float | None = _q(
        "hartree", "half the 95 % interval of that error", None
    )
    orbitals: int = _q("", "correlated occupied orbitals, of both spins if they differ")
    sampled_orbitals: int = _q("", "number of these whose exact integrals were computed")
    pairs: int = _q("", "pairs of correlated orbitals")
    sampled_pairs: int = _q("", "pairs with exact integrals")
    seed: int = _q("", "of the random sample")
    scf_error: float | None = _q(
        "hartree", "fitting error of the SCF energy; none for a conventional SCF", None
    )
    scf_uncertainty: float | None = _q("hartree", "largest expected deviation of that error", None)


@dataclass(frozen=True, slots=True)
class GridCertificate:
    """Grid error of the correlation energy, from the orbitals of a finer integration grid."""

    correlation_error: float = _q(
        "hartree", "grid error of the correlation energy: this grid minus the finer one"
    )
    seconds: float = _q("s", "wall time of it")


@dataclass(frozen=True, slots=True)
class NativeEnergies:
    """PySCF's energies, Eh.

    Attributes
    ----------
    program : name and version
    scf_total_energy, same_spin, opposite_spin : Eh, unscaled
    singles : Eh, of an ROHF reference
    """

    program: str
    scf_total_energy: float
    same_spin: float
    opposite_spin: float
    singles: float = 0.0


@dataclass(frozen=True, slots=True)
class Check:
    """PySCF's own DF-MP2 and the differences (ours - PySCF), Eh."""

    program: str = _q("", "program and module that computed the reference values")
    scf_total_energy: float = _q("hartree", "reference SCF energy")
    same_spin: float = _q("hartree", "reference same-spin correlation energy")
    opposite_spin: float = _q("hartree", "reference opposite-spin correlation energy")
    scf_difference: float = _q("hartree", "SCF energy, ours - reference")
    same_spin_difference: float = _q("hartree", "same-spin correlation energy, ours - reference")
    opposite_spin_difference: float = _q(
        "hartree", "opposite-spin correlation energy, ours - reference"
    )
    allowed: float = _q("hartree", "largest difference accepted")

    @property
    def correlation_difference(self) -> float:
        """E(corr), ours - reference, Eh."""
        return self.same_spin_difference + self.opposite_spin_difference

    @property
    def largest_difference(self) -> float:
        """Largest absolute difference of any component, Eh; NaN if one is NaN."""
        parts = (self.scf_difference, self.same_spin_difference, self.opposite_spin_difference)
        return float(np.max(np.abs((*parts, self.correlation_difference))))

    @property
    def passed(self) -> bool:
        """Whether every component agrees within the allowed difference."""
        return self.largest_difference <= self.allowed

    def require(self, then: str = "") -> None:
        """Raise if the result disagrees; `then` ends the message.

        Raises
        ------
        ComparisonFailed : gives the difference
        """
        if not self.passed:
            differs, most = told_apart(".1e", self.largest_difference, self.allowed)
            raise ComparisonFailed(
                f"PySCF's DF-MP2 differs by {differs} Eh, more than the allowed {most} Eh{then}"
            )


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Numbers that show whether the result can be trusted."""

    homo_lumo_gap: float = _q(
        "hartree", "smallest gap between occupied and virtual orbital energies of one spin"
    )
    smallest_denominator: float = _q("hartree", "smallest e_a + e_b - e_i - e_j")
    metric_condition: float = _q("", "estimated condition number of the fitting metric (P|Q)")
    metric_dropped: int = _q("", "fitting functions dropped by the eigenvalue cut")
    metric_threshold: float = _q(
        "", "eigenvalue cut relative to the largest eigenvalue, 0 if Cholesky was used"
    )
    warnings: tuple[str, ...] = _q("", "warnings given during the run")
    scf_fitting_error: float | None = _q(
        "hartree", "error of the SCF fitting set, sum over atoms measured alone", None
    )
    mp2_fitting_error: float | None = _q(
        "hartree", "error of the MP2 fitting set, sum over atoms measured alone", None
    )


@dataclass(frozen=True, slots=True)
class CoupledCluster:
    """CCSD(T) from another program, and its MP2 with the same orbitals and integrals."""

    program: str = _q("", "program and version, with its kind of integrals")
    ccsd_correlation_energy: float = _q("hartree", "correlation energy of CCSD")
    triples_energy: float = _q("hartree", "energy of the perturbative triples")
    mp2_correlation_energy: float = _q("hartree", "correlation energy of its MP2")
    seconds: float = _q("s", "wall time of it")
    t1_diagnostic: float | None = _q("", "T1 diagnostic", None)
    d1_diagnostic: float | None = _q("", "D1 diagnostic", None)

    @property
    def correlation_energy(self) -> float:
        """CCSD(T) correlation energy, Eh."""
        return self.ccsd_correlation_energy + self.triples_energy

    @property
    def correction(self) -> float:
        """E(CCSD(T)) - E(MP2), Eh."""
        return self.correlation_energy - self.mp2_correlation_energy


@dataclass(frozen=True, slots=True)
class Ranks:
    """How a run was distributed over processes."""

    count: int = _q("", "processes")
    hosts: tuple[str, ...] = _q("", "host of each")
    measured_peaks: tuple[int, ...] = _q(
        "byte", "measured peak resident memory of each, shared arrays counted in all"
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Calculated:
    """What every calculation records, with or without pair energies."""

    molecule: Molecule
    options: Options
    orbital_basis: BasisSet
    scf_fitting: BasisSet | None
    mp2_fitting: BasisSet
    reference: Reference
    sizes: Sizes
    diagnostics: Diagnostics
    timings: Timings
    predicted: Timings
    memory: Memory
    provenance: Provenance
    frozen_core_note: str
    mole_json: str = ""
    storage: Storage | None = None

    def __eq__(self, other: object) -> bool:
        """Whether the other holds the same values, to the last bit of every number."""
        if type(other) is not type(self):
            return NotImplemented
        return same_content(self, other)

    def __hash__(self) -> int:
        return hash((self.molecule.text, self.reference.scf_total_energy))

    @property
    def level(self) -> str:
        """Method, basis and Hamiltonian, e.g. "DF-MP2/cc-pvdz"."""
        return self.options.level_in(self.orbital_basis.name)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MP2Result(Calculated):
    """A finished DF-MP2 calculation.

    The unscaled components are sums of `pairs`; every total is arithmetic on them.
    """

    pairs: PairEnergies
    backend: str
    backend_reason: str
    precision: str
    certificate: Certificate | None = None
    check: Check | None = None
    ranks: Ranks | None = None
    preparation: Preparation | None = None
    fitting_certificate: FittingCertificate | None = None
    grid_certificate: GridCertificate | None = None
    gradient: Gradient | None = None
    gradient_certificate: GradientCertificate | None = None
    properties: Properties | None = None
    polarizability: Polarizability | None = None
    quadrature: Quadrature | None = None
    dispersion: Dispersion | None = None
    coupled_cluster: CoupledCluster | None = None
    kept: str = ALL

    @property
    def terms(self) -> tuple[tuple[tuple[float, float], MP2Result], ...]:
        """The runs whose energies add up to its own, with the weights of their E(SCF) and E(corr):
        only itself."""
        return (((1.0, 1.0), self),)

    @property
    def components(self) -> tuple[float, float]:
        """E_SS and E_OS as computed, unscaled, Eh; NaN if the method has none."""
        kind = self.options.correlation.kind
        if kind == "pairs":
            return self.pairs.same_spin_energy, self.pairs.opposite_spin_energy
        return (
            math.nan,
            self.quadrature.energy if self.quadrature and kind == "laplace" else math.nan,
        )

    @property
    def rpa_correlation_energy(self) -> float | None:
        """Correlation energy of the direct random-phase approximation, Eh; None if it was not
        requested."""
        if self.quadrature is None or self.options.correlation.kind != "rpa":
            return None
        return self.quadrature.energy

    @property
    def scf_total_energy(self) -> float:
        """SCF energy: E(HF) or the Kohn-Sham energy, Eh."""
        return self.reference.scf_total_energy

    @property
    def hf_total_energy(self) -> float:
        """E(HF), or with Kohn-Sham orbitals the energy of their determinant, E(EXX), Eh."""
        return self.reference.hf_total_energy

    @property
    def functional_energy(self) -> float | None:
        """Energy of the functional that the total energy is based on, Eh; None if it is that of the
        SCF, or Hartree-Fock."""
        return self.reference.functional_energy

    @property
    def dispersion_energy(self) -> float | None:
        """Dispersion energy of a double hybrid, Eh; None without a correction."""
        return None if self.dispersion is None else self.dispersion.energy

    @property
    def mean_field_energy(self) -> float:
        """The energy that the correlation energy is added to, Eh: E(HF), E(EXX), or that of a
        double hybrid's functional."""
        if not self.options.correlation.double_hybrid:
            return self.hf_total_energy
        if self.functional_energy is not None:
            return self.functional_energy
        return self.scf_total_energy

    @property
    def mean_field_name(self) -> str:
        """The key of `mean_field_energy` in JSON."""
        if self.options.correlation.double_hybrid:
            if self.functional_energy is None:
                return "scf_total_energy"
            return "functional_energy"
        if self.reference.xc is None:
            return "scf_total_energy"
        return "hf_total_energy"

    @property
    def summands(self) -> list[str]:
        """Names of the energies that add up to its total energy, as in SUMMANDS; to that of a
        composite level its correction is added."""
        names = [self.mean_field_name, "correlation_energy"]
        if self.dispersion is not None:
            names.append("dispersion_energy")
        return names

    @property
    def method(self) -> str:
        """Name of the requested method: a key of `dfmp2.options.METHODS`, a double hybrid, or a
        custom one."""
        return self.options.correlation.name

    @property
    def same_spin_correlation_energy(self) -> float:
        """Same-spin part of the method's correlation energy, scaled, Eh."""
        return _scaled(self.options.correlation.same_spin, self.components[0])

    @property
    def opposite_spin_correlation_energy(self) -> float:
        """Opposite-spin part of the method's correlation energy, scaled, Eh."""
        return _scaled(self.options.correlation.opposite_spin, self.components[1])

    @property
    def mp2_singles_energy(self) -> float:
        """Energy of the single excitations of an ROHF reference, part of every correlation energy
        and never scaled, Eh."""
        return self.reference.singles_energy(self.sizes.frozen_core, self.sizes.frozen_virtual)

    @property
    def correlation_energy(self) -> float:
        """Correlation energy of the method, Eh."""
        if self.rpa_correlation_energy is not None:
            return self.rpa_correlation_energy
        return (
            self.same_spin_correlation_energy
            + self.opposite_spin_correlation_energy
            + self.mp2_singles_energy
        )

    @property
    def total_energy(self) -> float:
        """Energy of the mean field + correlation energy of the method + dispersion energy, Eh."""
        total = self.mean_field_energy + self.correlation_energy
        if self.dispersion is not None:
            total += self.dispersion.energy
        return total

    @property
    def mp2_same_spin_correlation_energy(self) -> float:
        """E_SS of plain MP2, unscaled, Eh; this and everything derived from it is NaN if the method
        does not compute it."""
        if self.options.regulariser is None:
            return self.components[0]
        return math.nan

    @property
    def mp2_opposite_spin_correlation_energy(self) -> float:
        """E_OS of plain MP2, unscaled, Eh."""
        if self.options.regulariser is None:
            return self.components[1]
        return math.nan

    @property
    def mp2_correlation_energy(self) -> float:
        """E_SS + E_OS + ROHF singles, Eh."""
        doubles = self.mp2_same_spin_correlation_energy + self.mp2_opposite_spin_correlation_energy
        return doubles + self.mp2_singles_energy

    @property
    def mp2_total_energy(self) -> float:
        """E(HF) + E(MP2 correlation), always unscaled, Eh; NaN with the orbitals of a double
        hybrid."""
        if self.options.correlation.double_hybrid:
            return math.nan
        return self.scf_total_energy + self.mp2_correlation_energy

    @property
    def scs_mp2_correlation_energy(self) -> float:
        """SCS-MP2 correlation energy, Eh; NaN with the orbitals of a double hybrid."""
        if self.options.correlation.double_hybrid:
            return math.nan
        same = self.mp2_same_spin_correlation_energy
        opposite = self.mp2_opposite_spin_correlation_energy
        return SCS.apply(opposite, same) + self.mp2_singles_energy

    @property
    def sos_mp2_correlation_energy(self) -> float:
        """SOS-MP2 correlation energy, Eh; NaN with the orbitals of a double hybrid."""
        if self.options.correlation.double_hybrid:
            return math.nan
        return SOS.apply(self.mp2_opposite_spin_correlation_energy, 0.0) + self.mp2_singles_energy

    @property
    def scaled_mp2_correlation_energy(self) -> float | None:
        """Correlation energy with the user's own factors, Eh; None if none were given."""
        return self.correlation_energy if self.method == CUSTOM else None

    @property
    def scf_fitting_estimate(self) -> float | None:
        """Most likely fitting error of E(SCF), fitted - exact, Eh: of a single atom the measured
        one; None if part of it was not estimated."""
        from dfmp2.mp2.fitting_estimates import one_atom_error

        if self.reference.one_atom_fitting_errors is not None:
            return one_atom_error(self)
        atoms = self.diagnostics.scf_fitting_error
        between = self.reference.interatomic_fitting_error
        if atoms is None or between is None:
            return None
        return atoms + between

    @property
    def error_budget(self) -> ErrorBudget:
        """How wrong E(SCF), E(corr) and E(MP2, total) may be, and how we know."""
        from dfmp2.mp2.error_estimates import error_budget

        return error_budget(self)

    @property
    def grid_error_total(self) -> float | None:
        """Possible contribution of the integration grid to the error of the total energy, Eh; None
        without a functional."""
        source = self.error_budget.sources.get("grid")
        if source is None or any(share.value is None for share in source.shares):
            return None
        return source.total

    def require_kept(self, what: str) -> None:
        """Raise unless everything was kept in the result.

        Parameters
        ----------
        what : str
            What needs it, as the subject of the message.

        Raises
        ------
        InputError : part of it was not kept
        """
        if self.kept != ALL:
            raise InputError(
                f"{what} needs what the file of this result left out (it keeps {self.kept}): "
                "compute it again with ",
                Option("keep", ALL),
            )

    def require_proofs(self, then: str = "") -> None:
        """Raise if PySCF's check or a certificate fails, like `require_certified`."""
        if self.check is not None:
            self.check.require(then)
        self.require_certified(then)

    def require_certified(self, then: str = "") -> MP2Result:
        """The result itself; raise if the certificate of its gradient, densities or polarizability
        fails.

        Parameters
        ----------
        then : ends the message

        Raises
        ------
        ComparisonFailed : names what is larger than accepted
        """
        for proof in (self.gradient_certificate, self.polarizability):
            if proof is not None:
                proof.require(then)
        return self

    def to_dict(self) -> dict[str, Any]:
        """The object `dfmp2 run --json` prints; energies in hartree."""
        values: dict[str, Any] = presentation().result_dict(self)
        return values

    def to_dataframe(self) -> Any:
        """Its key numbers as a pandas DataFrame of one row; units are in `attrs["units"]`.

        Raises
        ------
        InputError : pandas is not installed
        """
        return presentation().result_frame(self)

    def __repr__(self) -> str:
        method = self.options.correlation
        correlation = ""
        if method.kind != "none":
            correlation = f", E(corr) = {self.correlation_energy:.10f} Eh"
        return (
            f"MP2Result({self.molecule.formula}: {self.level}, E({method.title}, total) = "
            f"{self.total_energy:.10f} Eh{correlation})"
        )

    def __str__(self) -> str:
        return str(presentation().report(self)).rstrip("\n")

    def _repr_html_(self) -> str:
        return str(presentation().result_html(self))


def _scaled(factor: float, energy: float) -> float:
    """The scaled energy; 0 for a component that the method omits, which may be NaN."""
    if factor == 0.0:
        return 0.0
    return factor * energy + 0.0
