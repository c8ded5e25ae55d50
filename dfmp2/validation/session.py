"""Compute what the entries ask for, each calculation once: on our own program, or on another one.

Calculations that differ only in the frozen core or the MP2 fitting set start their SCF from the converged
orbitals of the first. A kernel goes through the same put, pair terms and certificate as a molecule.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2 import pipeline, resources, threads
from dfmp2.backends.base import Backend
from dfmp2.backends.registry import select
from dfmp2.errors import BackendUnavailable, InputError, ResourceError
from dfmp2.external.psi4 import INSTALL, find_psi4
from dfmp2.io.schema import ENERGIES
from dfmp2.mp2 import scaling
from dfmp2.mp2.precision import pair_energies_to_tolerance
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.recompute import PROGRAMS, recompute
from dfmp2.record import Certificate, PairEnergies, StartOrbitals
from dfmp2.reference.shield import import_pyscf
from dfmp2.result import MP2Result
from dfmp2.units import format_bytes
from dfmp2.validation import synthetic
from dfmp2.validation.entries import Calculation
from dfmp2.validation.synthetic import Kernel

# Largest certificate accepted for a kernel, of its energy: sums of equal numbers round systematically in float32
# (6e-6 for the arrays of the GAMESS mini-app), which nothing in a molecule does.
KERNEL_CERTIFICATE = 2e-5
NAMES = {"pyscf": "PySCF", "psi4": "Psi4"}

Values = dict[str, float]


class Quiet(Listener):
    """No progress; warnings belong to fixed, known calculations."""

    def warning(self, text: str) -> None:
        """The entries are chosen to include what is warned about."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a whole validation runs.

    Attributes
    ----------
    backend, precision : as for `dfmp2 run`
    memory : bytes the process may use, None for what is free
    threads : None for the usable cores
    """

    backend: str = "auto"
    precision: str = "auto"
    memory: int | None = None
    threads: int | None = None


class Session:
    """Our program with settings that stay; the backend is chosen when it is made.

    `repeated` counts the calculations that were too far off in mixed precision and were repeated in float64.

    Raises
    ------
    BackendError : the backend cannot be used
    InputError : an unknown precision, or memory or threads that are no positive numbers
    """

    def __init__(self, settings: Settings) -> None:
        import_pyscf()  # without it every entry would fail for the same reason
        checked = Options(basis="none", precision=settings.precision, memory=settings.memory, threads=settings.threads)
        self.precision, self.memory = checked.precision, checked.memory
        self.threads = checked.threads or resources.usable_cores()
        self._backend: Backend
        self._backend, self.reason = select(settings.backend, self.precision, self.threads)
        self.repeated = 0
        self._results: dict[Calculation, MP2Result] = {}

    @property
    def backend(self) -> str:
        """Name of the chosen backend."""
        return self._backend.name

    def result(self, calculation: Calculation) -> MP2Result:
        """The calculation's result, computed when it is asked for the first time."""
        if calculation not in self._results:
            result = pipeline.run(
                calculation.molecule,
                Options(
                    basis=calculation.basis,
                    reference=calculation.reference,
                    scf=calculation.scf,
                    scf_auxbasis=calculation.scf_auxbasis,
                    scf_conv_tol=calculation.scf_conv_tol,
                    stability="off",
                    auxbasis=calculation.auxbasis,
                    frozen_core=calculation.frozen_core,
                    backend=self.backend,
                    precision=self.precision,
                    memory=self.memory,
                    threads=self.threads,
                    allow_small_gap=True,
                    allow_poor_fit=True,  # the published sets, whatever they are
                ),
                start=self._start(calculation),
                listener=Quiet(),
                command="dfmp2 validate",
            )
            self._count(result.certificate)
            self._results[calculation] = result
        return self._results[calculation]

    def calculate(self, calculation: Calculation) -> tuple[Values, Values]:
        """Our energies of a calculation and the certificate's estimate for each, Eh."""
        result = self.result(calculation)
        values = {name: value for name in ENERGIES if (value := getattr(result, name)) is not None}
        values["nuclear_repulsion_energy"] = result.reference.nuclear_repulsion_energy
        values["scs_mp2_total_energy"] = result.scf_total_energy + result.scs_mp2_correlation_energy
        return values, _allowances(result.certificate, result.precision)

    def evaluate(self, kernel: Kernel, reference: float) -> tuple[float, float]:
        """Our energy of a synthetic problem and the certificate's estimate, Eh; `reference` sets the scale.

        Raises
        ------
        ResourceError : its arrays do not fit into the memory that may be used
        """
        self._require_memory(kernel)
        with threads.limited(self.threads):
            b, space = synthetic.make(kernel, self.threads)
            pairs, precision, certificate = pair_energies_to_tolerance(
                [b],
                [space],
                self._backend,
                self.precision,
                KERNEL_CERTIFICATE * abs(reference),
                Quiet(),
                threads=self.threads,
            )
        self._count(certificate)
        return _correlation(pairs), _allowances(certificate, precision).get("mp2_correlation_energy", 0.0)

    def _count(self, certificate: Certificate | None) -> None:
        self.repeated += certificate is not None and certificate.repeated_in_fp64

    def _start(self, calculation: Calculation) -> StartOrbitals | None:
        """Converged orbitals of the same SCF, if it has been done."""
        for other, result in self._results.items():
            if _scf(other) == _scf(calculation):
                return StartOrbitals(result.reference.mo_coeff, result.reference.mo_occ, None, other.geometry)
        return None

    def _require_memory(self, kernel: Kernel) -> None:
        elements = kernel.nocc * kernel.nvir * kernel.naux
        held = 8 * (1 if self.precision == "fp64" else 1.5) * elements
        if kernel.recipe == "trnblas":
            held = max(held, 8 * (elements + kernel.nocc * (kernel.nocc + kernel.nvir) * kernel.naux))
        needed = resources.resident_memory() + int(held) + 8 * 2 * kernel.naux**2
        budget = self.memory or resources.resident_memory() + int(0.9 * resources.available_memory())
        if needed > budget:
            raise ResourceError(
                f"its arrays need {format_bytes(needed)} and {format_bytes(budget)} may be used: allow more with "
                "--memory, or use a larger machine"
            )


class Other:
    """Another program's energies for the same calculations, from scratch.

    Parameters
    ----------
    program : "pyscf" or "psi4"
    session : where our results come from (their geometry, bases and options are repeated)
    """

    def __init__(self, program: str, session: Session) -> None:
        self.program = program
        self.name = NAMES[program]
        self._session = session
        self._values: dict[Calculation, tuple[str, Values]] = {}

    def calculate(self, calculation: Calculation) -> tuple[str, Values]:
        """Program with version, and its energies, Eh."""
        if calculation not in self._values:
            result = self._session.result(calculation)
            # Every difference is judged by the entry, so any is let through here.
            check = recompute(result, float("inf"), self._session.threads, Quiet(), program=self.program)
            same, opposite = check.same_spin, check.opposite_spin
            self._values[calculation] = (
                check.program,
                {
                    "scf_total_energy": check.scf_total_energy,
                    "mp2_same_spin_correlation_energy": same,
                    "mp2_opposite_spin_correlation_energy": opposite,
                    "mp2_correlation_energy": same + opposite,
                    "mp2_total_energy": check.scf_total_energy + same + opposite,
                    "scs_mp2_correlation_energy": scaling.SCS.apply(opposite, same),
                    "scs_mp2_total_energy": check.scf_total_energy + scaling.SCS.apply(opposite, same),
                },
            )
        return self._values[calculation]


def require_program(name: str) -> None:
    """Refuse a program that cannot recompute here.

    Raises
    ------
    InputError : unknown
    BackendUnavailable : Psi4 is not on PATH
    """
    if name not in PROGRAMS:
        raise InputError(f"--against {name!r}: expected {' or '.join(PROGRAMS)}, or both with a comma between them")
    if name == "psi4" and find_psi4() is None:
        raise BackendUnavailable(f"--against psi4: psi4 is not on PATH: install it ({INSTALL}), or use --against pyscf")


def combined(values: list[Values], of: str, factors: tuple[float, ...]) -> float:
    """sum_k factor_k property(calculation_k)."""
    if len(values) != len(factors) or any(of not in value for value in values):
        raise InputError(f"a validation entry asks for {of!r} with {len(factors)} factors: the data are damaged")
    return sum(factor * value[of] for factor, value in zip(factors, values, strict=True))


def spread(allowances: list[Values], of: str, factors: tuple[float, ...]) -> float:
    """Precision error allowed for such a combination."""
    return sum(abs(factor) * value.get(of, 0.0) for factor, value in zip(factors, allowances, strict=True))


def _allowances(certificate: Certificate | None, precision: str) -> Values:
    """The certificate's estimate for every energy it bears on; nothing in float64."""
    if certificate is None or precision == "fp64":
        return {}
    same, opposite = certificate.same_spin_error, certificate.opposite_spin_error
    return {
        "mp2_same_spin_correlation_energy": same,
        "mp2_opposite_spin_correlation_energy": opposite,
        "mp2_correlation_energy": certificate.correlation_error,
        "mp2_total_energy": certificate.correlation_error,
        "scs_mp2_correlation_energy": 1.2 * opposite + same / 3.0,
        "scs_mp2_total_energy": 1.2 * opposite + same / 3.0,
        "sos_mp2_correlation_energy": 1.3 * opposite,
    }


def _correlation(pairs: PairEnergies) -> float:
    return pairs.same_spin_energy + pairs.opposite_spin_energy


def _scf(calculation: Calculation) -> tuple[object, ...]:
    """What decides the SCF solution."""
    c = calculation
    return (c.geometry, c.charge, c.multiplicity, c.reference, c.basis, c.scf, c.scf_auxbasis, c.scf_conv_tol)
