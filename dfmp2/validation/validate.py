"""Hold our energies against the entries, one after the other; each calculation is computed once.

A difference passes within the entry's tolerance; in mixed precision the certificate's estimate is added to
it. An entry is skipped, with the reason, when this installation or machine cannot do it; whatever else goes
wrong in it is a failure of that entry, and the others go on.

Calculations that differ only in the frozen core or the MP2 fitting set start their SCF from the converged
orbitals of the first. A kernel goes through the same put, pair terms and certificate as a molecule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dfmp2.backends.base import Backend
from dfmp2.backends.registry import select
from dfmp2.errors import BackendUnavailable, Dfmp2Error, InputError, Interrupted, ResourceError, UnsupportedByBackend
from dfmp2.host import resources, threads
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.mp2 import energy
from dfmp2.mp2.certificate import pair_energies_to_tolerance
from dfmp2.mp2.result import SCS, Certificate, MP2Result
from dfmp2.options import Options
from dfmp2.output.hdf5 import ENERGIES
from dfmp2.progress import Listener
from dfmp2.scf.reference import StartOrbitals
from dfmp2.units import format_bytes
from dfmp2.validation import synthetic
from dfmp2.validation.compare import PROGRAMS, recompute
from dfmp2.validation.entries import Calculation, Entry, Quantity
from dfmp2.validation.psi4 import INSTALL, find_psi4
from dfmp2.validation.synthetic import KERNEL_CERTIFICATE, Kernel
from dfmp2.validation.tables import FAIL, PASS, SKIPPED, Row

AGAINST_TOLERANCE = 1e-8  # Eh; 2.5e-9 seen, with core potentials
AGAINST_REASON = "recomputed from scratch with the same bases; two converged SCFs, E(corr) of first order in theirs"
NAMES = {"pyscf": "PySCF", "psi4": "Psi4"}

Values = dict[str, float]


class Quiet(Listener):
    """No progress; warnings belong to fixed, known calculations."""

    def warning(self, text: str) -> None:
        """The entries are chosen to include what is warned about."""


class Session:
    """Our program with settings that stay; the backend is chosen when it is made.

    `repeated` counts the calculations that were too far off in mixed precision and were repeated in float64.

    Parameters
    ----------
    backend, precision : as for `dfmp2 run`
    memory : bytes the process may use, None for what is free
    count : threads, None for the usable cores

    Raises
    ------
    BackendError : the backend cannot be used
    InputError : an unknown precision, or memory or threads that are no positive numbers
    """

    def __init__(
        self, backend: str = "auto", precision: str = "auto", memory: int | None = None, count: int | None = None
    ) -> None:
        import_pyscf()  # without it every entry would fail for the same reason
        checked = Options(basis="none", precision=precision, memory=memory, threads=count)
        self.precision, self.memory = checked.precision, checked.memory
        self.threads = checked.threads or resources.usable_cores()
        self.backend: Backend
        self.backend, self.reason = select(backend, self.precision, self.threads)
        self.repeated = 0
        self._results: dict[Calculation, MP2Result] = {}

    def result(self, calculation: Calculation) -> MP2Result:
        """The calculation's result, computed when it is asked for the first time."""
        if calculation not in self._results:
            options = Options(
                basis=calculation.basis,
                reference=calculation.reference,
                scf=calculation.scf,
                scf_auxbasis=calculation.scf_auxbasis,
                scf_conv_tol=calculation.scf_conv_tol,
                stability="off",
                auxbasis=calculation.auxbasis,
                frozen_core=calculation.frozen_core,
                backend=self.backend.name,
                precision=self.precision,
                memory=self.memory,
                threads=self.threads,
                allow_small_gap=True,
                allow_poor_fit=True,  # the published sets, whatever they are
            )
            start, command = self._start(calculation), "dfmp2 validate"
            result = energy.mp2_energy(calculation.molecule, options, start=start, listener=Quiet(), command=command)
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
        held = (8 if self.precision == "fp64" else 12) * kernel.nocc * kernel.nvir * kernel.naux
        needed = resources.resident_memory() + max(held, synthetic.required_bytes(kernel)) + 16 * kernel.naux**2
        budget = self.memory or resources.resident_memory() + int(0.9 * resources.available_memory())
        if needed > budget:
            raise ResourceError(
                f"its arrays need {format_bytes(needed)} and {format_bytes(budget)} may be used: allow more with "
                "--memory, or use a larger machine"
            )
        with threads.limited(self.threads):
            b, space = synthetic.make(kernel, self.threads)
            allowed = KERNEL_CERTIFICATE * abs(reference)
            pairs, precision, certificate = pair_energies_to_tolerance(
                *([b], [space], self.backend, self.precision, allowed, Quiet()), threads=self.threads
            )
        self._count(certificate)
        energy = pairs.same_spin_energy + pairs.opposite_spin_energy
        return energy, _allowances(certificate, precision).get("mp2_correlation_energy", 0.0)

    def _count(self, certificate: Certificate | None) -> None:
        self.repeated += certificate is not None and certificate.repeated_in_fp64

    def _start(self, calculation: Calculation) -> StartOrbitals | None:
        """Converged orbitals of the same SCF, if it has been done."""
        for other, result in self._results.items():
            if replace(other, auxbasis="", frozen_core="") == replace(calculation, auxbasis="", frozen_core=""):
                return StartOrbitals(result.reference.mo_coeff, result.reference.mo_occ, None, other.geometry)
        return None


class Other:
    """Another program's energies for the same calculations, from scratch.

    Parameters
    ----------
    program : "pyscf" or "psi4"
    session : where our results come from (their geometry, bases and options are repeated)

    Raises
    ------
    InputError : an unknown program
    BackendUnavailable : Psi4 is not on PATH
    """

    def __init__(self, program: str, session: Session) -> None:
        if program not in PROGRAMS:
            raise InputError(
                f"--against {program!r}: expected {' or '.join(PROGRAMS)}, or both with a comma between them"
            )
        if program == "psi4" and find_psi4() is None:
            raise BackendUnavailable(
                f"--against psi4: psi4 is not on PATH: install it ({INSTALL}), or use --against pyscf"
            )
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
            scf, same, opposite = check.scf_total_energy, check.same_spin, check.opposite_spin
            scs = SCS.apply(opposite, same)
            self._values[calculation] = (
                check.program,
                {
                    "scf_total_energy": scf,
                    "mp2_same_spin_correlation_energy": same,
                    "mp2_opposite_spin_correlation_energy": opposite,
                    "mp2_correlation_energy": same + opposite,
                    "mp2_total_energy": scf + same + opposite,
                    "scs_mp2_correlation_energy": scs,
                    "scs_mp2_total_energy": scf + scs,
                },
            )
        return self._values[calculation]


def validate(entries: Sequence[Entry], session: Session, others: Sequence[Other] = ()) -> Iterator[list[Row]]:
    """The rows of each entry as soon as they are known.

    Parameters
    ----------
    others : programs to recompute the references with; () to take the published ones
    """
    for entry in entries:
        yield [row for other in others or (None,) for row in _rows(entry, session, other)]


def _rows(entry: Entry, session: Session, other: Other | None) -> list[Row]:
    missing = entry.missing()
    if missing is None and other is not None and entry.kernel is not None:
        missing = f"arrays without a molecule, which {other.name} cannot recompute"
    if missing is not None:
        return _without_value(entry, other, SKIPPED, missing)
    try:
        if entry.kernel is not None:
            energies = [(quantity, session.evaluate(entry.kernel, quantity.value)) for quantity in entry.quantities]
            return [_row(entry, q, q.value, energy, _limit(entry, session, more)) for q, (energy, more) in energies]
        ours = [session.calculate(calculation) for calculation in entry.calculations]
    except Interrupted:
        raise
    except (ResourceError, UnsupportedByBackend) as error:
        return _without_value(entry, other, SKIPPED, str(error))
    except Dfmp2Error as error:
        return _without_value(entry, other, FAIL, str(error))
    if other is None:
        rows = []
        for quantity in entry.quantities:
            value, allowance = _combination(quantity, ours)
            rows.append(_row(entry, quantity, quantity.value, value, _limit(entry, session, allowance)))
        return rows
    try:
        return _recomputed(entry, ours, [other.calculate(calculation) for calculation in entry.calculations])
    except Interrupted:
        raise
    except Dfmp2Error as error:  # the other program cannot do it, which says nothing about ours
        return _without_value(entry, other, SKIPPED, str(error))


def _recomputed(entry: Entry, ours: list[tuple[Values, Values]], theirs: list[tuple[str, Values]]) -> list[Row]:
    """Our values against another program's, where it reports them (the nuclear repulsion it does not)."""
    program, _, version = theirs[0][0].partition(" ")
    made = {"program": program, "version": version, "source": "recomputed now", "reason": AGAINST_REASON}
    rows = []
    for quantity in entry.quantities:
        if quantity.of not in theirs[0][1]:
            continue
        value, allowance = _combination(quantity, ours)
        reference = combined([values for _, values in theirs], quantity.of, quantity.factors)
        scale = max(1.0, sum(abs(factor) for factor in quantity.factors))
        limit = AGAINST_TOLERANCE * scale + allowance if entry.published is None else entry.tolerance
        rows.append(_row(entry, quantity, reference, value, limit, **made))
    return rows


def combined(values: list[Values], of: str, factors: tuple[float, ...]) -> float:
    """sum_k factor_k property(calculation_k)."""
    if len(values) != len(factors) or any(of not in value for value in values):
        raise InputError(f"a validation entry asks for {of!r} with {len(factors)} factors: the data are damaged")
    return sum(factor * value[of] for factor, value in zip(factors, values, strict=True))


def _combination(quantity: Quantity, ours: list[tuple[Values, Values]]) -> tuple[float, float]:
    """Our value of a quantity and the certificate's part of its limit."""
    estimates = [allowance.get(quantity.of, 0.0) for _, allowance in ours]
    allowance = sum(abs(factor) * error for factor, error in zip(quantity.factors, estimates, strict=True))
    return combined([value for value, _ in ours], quantity.of, quantity.factors), allowance


def _limit(entry: Entry, session: Session, allowance: float) -> float:
    """Largest difference allowed; a published one is to be undercut as it stands."""
    if entry.published is not None or session.precision == "fp64" or allowance == 0.0:
        return entry.tolerance
    return (entry.tolerance if entry.tolerance_mixed is None else entry.tolerance_mixed) + allowance


def _row(entry: Entry, quantity: Quantity, reference: float, value: float, limit: float, **made: str) -> Row:
    """The row of a quantity; `made` replaces program, version, source and reason of the entry."""
    row = replace(_empty(entry, quantity, PASS, entry.tolerance_reason), **made)  # type: ignore[arg-type]
    difference = value - reference
    row = replace(row, reference=reference, value=value, difference=difference, tolerance=limit)
    if abs(difference) <= limit:  # false for NaN
        return row
    reason = f"off by {abs(difference):.1e} Eh, {limit:.1e} are allowed: {row.reason}"
    return replace(row, status=FAIL, reason=reason)


def _without_value(entry: Entry, other: Other | None, status: str, reason: str) -> list[Row]:
    rows = [_empty(entry, quantity, status, reason) for quantity in entry.quantities]
    return rows if other is None else [replace(row, program=other.name, version="", reference=None) for row in rows]


def _empty(entry: Entry, quantity: Quantity, status: str, reason: str) -> Row:
    return Row(
        id=entry.id,
        program=entry.program,
        version=entry.version,
        quantity=quantity.name,
        reference=quantity.value,
        value=None,
        difference=None,
        tolerance=entry.tolerance,
        status=status,
        reason=reason,
        source="; ".join(entry.source),
        published=entry.published,
    )


def _allowances(certificate: Certificate | None, precision: str) -> Values:
    """The certificate's estimate for every energy it bears on; nothing in float64."""
    if certificate is None or precision == "fp64":
        return {}
    same, opposite = certificate.same_spin_error, certificate.opposite_spin_error
    scs = 1.2 * opposite + same / 3.0
    return {
        "mp2_same_spin_correlation_energy": same,
        "mp2_opposite_spin_correlation_energy": opposite,
        "mp2_correlation_energy": certificate.correlation_error,
        "mp2_total_energy": certificate.correlation_error,
        "scs_mp2_correlation_energy": scs,
        "scs_mp2_total_energy": scs,
        "sos_mp2_correlation_energy": 1.3 * opposite,
    }
