"""Compare our energies with the entries, one after another; each calculation is done once.

A difference passes within the entry's tolerance, to which MIXED is added if a pair step ran in
mixed precision: it is the error that a run accepts, not one that we measured. Entries for which
float32 may be less accurate (tag "float64") are computed with "auto" if "mixed" is requested, and
report whether they were repeated in float64.

Conventional MP2 is a different method, which density fitting approximates: its differences are
shown without a verdict.

An entry is skipped, with the reason, if this installation or machine cannot run it; any other error
is a failure of that entry only.

Calculations that differ only in the frozen core or the MP2 fitting set start their SCF from the
converged orbitals of the first. Kernels use the same put, pair terms and certificate as molecules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dfmp2.arrays import Array
from dfmp2.backends import registry
from dfmp2.errors import (
    BackendUnavailable,
    Dfmp2Error,
    InputError,
    Interrupted,
    Option,
    ResourceError,
    UnsupportedByBackend,
)
from dfmp2.host import resources, threads
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.mp2 import energy
from dfmp2.mp2.certificate import pair_energies_to_tolerance
from dfmp2.mp2.pairs import PairOperands
from dfmp2.mp2.result import Certificate, MP2Result
from dfmp2.options import Options
from dfmp2.options.methods import SCS, SOS
from dfmp2.output.hdf5 import ENERGIES
from dfmp2.progress import Silent
from dfmp2.scf.reference import StartOrbitals
from dfmp2.units import DEBYE
from dfmp2.validation import entries
from dfmp2.validation.compare import recompute
from dfmp2.validation.entries import (
    KERNEL_CERTIFICATE,
    Quantity,
    ReferenceCalculation,
    ReferenceEntry,
)
from dfmp2.validation.psi4 import INSTALL, find_psi4
from dfmp2.validation.tables import FAIL, PASS, SHOWN, SKIPPED, QuantityRow

MIXED = 1e-7  # Eh, the default of --tolerance
AGAINST_TOLERANCE = 1e-8  # Eh; 2.5e-9 seen, with core potentials
AGAINST_REASON = (
    "recomputed from scratch with the same bases; two converged SCFs, E(corr) of "
    "first order in theirs"
)
# Methods without pair energies
OF_SCF = ("scf_total_energy", "nuclear_repulsion_energy", "mp2_singles_energy")
NAMES = {"pyscf": "PySCF", "psi4": "Psi4"}

Values = dict[str, float]


class ProgramEnergies(NamedTuple):
    """A program's energies for one calculation, Eh, and whether its pair energies have mixed
    precision."""

    values: Values
    mixed: bool = False
    program: str = "dfmp2"


class Session:
    """Our program with fixed settings; the backend is chosen on creation.

    `repeated` counts calculations that were too inaccurate in mixed precision and were repeated in
    float64.

    Parameters
    ----------
    backend, precision : as for `dfmp2 run`
    memory : bytes the process may use, None for the free memory
    count : threads, None for the usable cores
    optimize : function of molecule, options and constraints that returns the result at the minimum
        (`dfmp2.studies.optimize.minimum`)

    Raises
    ------
    BackendError : the backend cannot be used
    InputError : an unknown precision, or memory or threads that are not positive
    """

    def __init__(
        self,
        backend: str = "auto",
        precision: str = "auto",
        memory: int | None = None,
        count: int | None = None,
        optimize: Callable[..., MP2Result] | None = None,
    ) -> None:
        import_pyscf()  # otherwise every entry would fail for the same reason
        checked = Options(basis="none", precision=precision, memory=memory, threads=count)
        self.precision, self.memory = checked.precision, checked.memory
        self.threads = checked.threads or resources.usable_cores()
        self.backend, self.reason = registry.select_backend(backend, self.precision, self.threads)
        self.repeated, self._optimize = 0, optimize
        self._results: dict[ReferenceCalculation, MP2Result] = {}

    def result(self, calculation: ReferenceCalculation) -> MP2Result:
        """The calculation's result, computed on first use."""
        if calculation not in self._results:
            options = replace(calculation.options, memory=self.memory, threads=self.threads)
            if options.correlation.kind == "pairs":  # others run in float64 on the host
                options = replace(options, backend=self.backend.name, precision=self.precision)
            result = self._function(calculation)(
                calculation.molecule,
                options,
                start=self._start(calculation),
                listener=Silent(),
                command="dfmp2 validate",
            )
            self._count(result.certificate)
            self._results[calculation] = result
        return self._results[calculation]

    def _function(self, calculation: ReferenceCalculation) -> Callable[..., MP2Result]:
        """The function that computes a calculation."""
        if calculation.constraints is not None:
            if self._optimize is None:
                raise UnsupportedByBackend(
                    "its geometry is optimised first: dfmp2 validate does that"
                )
            return partial(self._optimize, constraints=calculation.constraints)
        if calculation.gradient:
            return _with_gradient
        return energy.mp2_energy

    def calculate(self, calculation: ReferenceCalculation) -> ProgramEnergies:
        """Our energies for a calculation."""
        result = self.result(calculation)
        values = {name: value for name in ENERGIES if (value := getattr(result, name)) is not None}
        values["nuclear_repulsion_energy"] = result.reference.nuclear_repulsion_energy
        values["scs_mp2_total_energy"] = result.scf_total_energy + result.scs_mp2_correlation_energy
        values["sos_mp2_total_energy"] = result.scf_total_energy + result.sos_mp2_correlation_energy
        values |= _derivatives(result)
        return ProgramEnergies(values, result.precision == "mixed")

    def evaluate(self, entry: ReferenceEntry) -> tuple[float, bool, str]:
        """Our energy for a synthetic problem, Eh, whether it has mixed precision, and a remark.

        Raises
        ------
        ResourceError : its arrays do not fit into the allowed memory
        UnsupportedByBackend : float64 is needed, which the backend does not have
        """
        [quantity], kernel = entry.quantities, entry.kernel
        if kernel is None:
            raise TypeError(f"{entry.id} is a molecule")
        if self.precision == "mixed" and "float64" in entry.tags:
            asked = "auto"
        else:
            asked = self.precision
        # The backend cannot repeat in float64
        single = asked != "fp64" and registry.float64_backend(self.backend) is not self.backend
        if single:
            accepted = KERNEL_CERTIFICATE * abs(quantity.value)
        else:
            accepted = MIXED
        entries.require_host_memory(
            kernel, (8 if asked == "fp64" else 12) * kernel.elements, self.memory
        )
        with threads.limited(self.threads):
            b, space = entries.make_synthetic(kernel, self.threads)
            pairs, precision, certificate = pair_energies_to_tolerance(
                PairOperands([b], [space], threads=self.threads),
                self.backend,
                precision=asked,
                tolerance=accepted,
                listener=Silent(),
            )
        self._count(certificate)
        said = ""
        if certificate is not None and certificate.correlation_error > MIXED:
            said = f"float32 alone may be {certificate.correlation_error:.1e} Eh off"
            if single:
                raise UnsupportedByBackend(
                    f"{said}, and ", Option("backend", self.backend.name), " has no float64"
                )
            said += ": repeated in float64"
        return pairs.same_spin_energy + pairs.opposite_spin_energy, precision == "mixed", said

    def _count(self, certificate: Certificate | None) -> None:
        self.repeated += certificate is not None and certificate.repeated_in_fp64

    def _start(self, calculation: ReferenceCalculation) -> StartOrbitals | None:
        """Converged orbitals of the same SCF, if already available."""
        for other, result in self._results.items():
            if _of_scf(other) == _of_scf(calculation):
                return result.reference.as_start(other.geometry)
        return None


def _of_scf(calculation: ReferenceCalculation) -> ReferenceCalculation:
    """The calculation without the steps after the SCF."""
    return replace(
        calculation, options=replace(calculation.options, auxbasis=None, frozen_core="none")
    )


class Other:
    """Another program's energies for the same calculations, from scratch.

    Parameters
    ----------
    program : "pyscf" or "psi4"
    session : source of our results, whose geometry, bases and options are repeated

    Raises
    ------
    InputError : an unknown program
    BackendUnavailable : Psi4 is not on PATH
    """

    def __init__(self, program: str, session: Session) -> None:
        if program not in NAMES:
            raise InputError(
                Option("against", program),
                f": expected {' or '.join(NAMES)}, or both with a comma between them",
            )
        if program == "psi4" and find_psi4() is None:
            raise BackendUnavailable(
                Option("against", "psi4"),
                f": psi4 is not on PATH: install it ({INSTALL}), or use ",
                Option("against"),
                " pyscf",
            )
        self.program, self.name, self._session = program, NAMES[program], session
        self._found: dict[ReferenceCalculation, ProgramEnergies] = {}

    def calculate(self, calculation: ReferenceCalculation) -> ProgramEnergies:
        """Its energies for a calculation.

        Raises
        ------
        UnsupportedByBackend : it cannot do the calculation, which is not our failure
        """
        if calculation not in self._found:
            result = self._session.result(calculation)
            if calculation.options.reference == "rohf" or calculation.options.method != "mp2":
                raise UnsupportedByBackend(
                    f"{self.name} is asked for plain MP2 of RHF and UHF only"
                )
            try:  # the entry judges all differences, so accept any here
                check = recompute(
                    result, float("inf"), self._session.threads, Silent(), program=self.program
                )
            except Interrupted:
                raise
            except Dfmp2Error as error:
                raise UnsupportedByBackend(str(error)) from error
            scf, same, opposite = (
                check.named(name).theirs
                for name in (
                    "scf_total_energy",
                    "mp2_same_spin_correlation_energy",
                    "mp2_opposite_spin_correlation_energy",
                )
            )
            scs = SCS.apply(opposite, same)
            values = {
                "scf_total_energy": scf,
                "mp2_same_spin_correlation_energy": same,
                "mp2_opposite_spin_correlation_energy": opposite,
                "mp2_correlation_energy": same + opposite,
                "mp2_total_energy": scf + same + opposite,
                "scs_mp2_correlation_energy": scs,
                "scs_mp2_total_energy": scf + scs,
                "sos_mp2_total_energy": scf + SOS.apply(opposite, same),
            }
            self._found[calculation] = ProgramEnergies(values, program=check.program)
        return self._found[calculation]


def validate(
    entries: Sequence[ReferenceEntry], session: Session, others: Sequence[Other] = ()
) -> Iterator[list[QuantityRow]]:
    """Yield the rows of each entry as soon as they are known.

    Parameters
    ----------
    others : programs to recompute the references; () to use the published ones
    """
    for entry in entries:
        yield [row for other in others or (None,) for row in _rows(entry, session, other)]


def _rows(entry: ReferenceEntry, session: Session, other: Other | None) -> list[QuantityRow]:
    why = entry.missing()
    if why is None and other is not None and entry.kernel is not None:
        why = f"arrays without a molecule, which {other.name} cannot recompute"
    status = SKIPPED
    if why is None:
        try:
            return _judged(entry, session, other)
        except Interrupted:
            raise
        except Dfmp2Error as error:
            why = str(error)
            status = SKIPPED if isinstance(error, ResourceError | UnsupportedByBackend) else FAIL
    rows = [_row(entry, quantity, status=status, reason=why) for quantity in entry.quantities]
    if other is None:
        return rows
    return [replace(row, maker=other.name, version="", reference=None) for row in rows]


def _judged(entry: ReferenceEntry, session: Session, other: Other | None) -> list[QuantityRow]:
    """The rows of an entry: ours beside the published values, or beside another program's."""
    if entry.kernel is not None:
        return [_judged_kernel(entry, session)]
    ours = [session.calculate(calculation) for calculation in entry.calculations]
    if other is not None:
        return _judged_by(other, entry, ours)
    rows = []
    for quantity in entry.quantities:
        value = combined_value([found.values for found in ours], quantity)
        limit = _limit(entry, _in_mixed_precision(quantity, ours))
        rows.append(_compared(entry, quantity, value, quantity.value, limit))
    return rows


def _judged_kernel(entry: ReferenceEntry, session: Session) -> QuantityRow:
    """The row of an entry without a molecule."""
    [quantity] = entry.quantities
    value, mixed, remark = session.evaluate(entry)
    reason = "; ".join(text for text in (remark, entry.tolerance_reason) if text)
    return _compared(entry, quantity, value, quantity.value, _limit(entry, mixed), reason)


def _judged_by(
    other: Other, entry: ReferenceEntry, ours: Sequence[ProgramEnergies]
) -> list[QuantityRow]:
    """The rows of an entry for what another program reports of it."""
    theirs = [other.calculate(calculation) for calculation in entry.calculations]
    maker, _, version = theirs[0].program.partition(" ")
    rows = []
    for quantity in entry.quantities:
        if quantity.of == "nuclear_repulsion_energy":  # is not reported
            continue
        if quantity.of not in theirs[0].values:
            reason = f"{maker} is asked for E(SCF) and the energies of MP2 only"
            skipped = _row(entry, quantity, status=SKIPPED, reason=reason)
            rows.append(replace(skipped, maker=maker, version=version, reference=None))
            continue
        limit = AGAINST_TOLERANCE * max(1.0, sum(map(abs, quantity.factors)))
        if _in_mixed_precision(quantity, ours):
            limit += MIXED
        if entry.published is not None and entry.tolerance is not None:
            limit = entry.tolerance
        value = combined_value([found.values for found in ours], quantity)
        reference = combined_value([found.values for found in theirs], quantity)
        row = _compared(entry, quantity, value, reference, limit, AGAINST_REASON)
        rows.append(replace(row, maker=maker, version=version, source="recomputed now"))
    return rows


def _in_mixed_precision(quantity: Quantity, ours: Sequence[ProgramEnergies]) -> bool:
    """Whether pair energies in mixed precision enter a quantity."""
    of_pairs = quantity.of.endswith("_energy") and quantity.of not in OF_SCF
    return of_pairs and any(found.mixed for found in ours)


def combined_value(values: list[Values], quantity: Quantity) -> float:
    """sum_k factor_k property(calculation_k)."""
    of, factors = quantity.of, quantity.factors
    if len(values) != len(factors) or any(of not in value for value in values):
        raise InputError(
            f"a validation entry asks for {of!r} with {len(factors)} factors: the data are damaged"
        )
    return sum(factor * value[of] for factor, value in zip(factors, values, strict=True))


def _limit(entry: ReferenceEntry, mixed: bool) -> float | None:
    """Largest difference allowed, None without a verdict; a published limit is used unchanged."""
    if entry.tolerance is None:
        return None
    return entry.tolerance + MIXED * (mixed and entry.published is None)


def _compared(
    entry: ReferenceEntry,
    quantity: Quantity,
    value: float,
    reference: float,
    limit: float | None,
    reason: str | None = None,
) -> QuantityRow:
    """The row of a quantity; `reason` replaces the entry's."""
    row = _row(entry, quantity, status=PASS, reason=reason or entry.tolerance_reason)
    row = replace(row, reference=reference, value=value, tolerance=limit)
    if limit is None:
        return replace(row, status=SHOWN)
    off = abs(value - reference)
    if off <= limit:  # false for NaN
        return row
    return replace(
        row, status=FAIL, reason=f"off by {off:.1e} Eh, {limit:.1e} are allowed: {row.reason}"
    )


def _row(entry: ReferenceEntry, quantity: Quantity, *, status: str, reason: str) -> QuantityRow:
    """A row without our value."""
    return QuantityRow(
        id=entry.id,
        maker=entry.program,
        version=entry.version,
        quantity=quantity.name,
        reference=quantity.value,
        value=None,
        tolerance=entry.tolerance,
        status=status,
        reason=reason,
        source="; ".join(entry.source),
        published=entry.published,
    )


def _with_gradient(*arguments: Any, **more: Any) -> MP2Result:
    """The result of an energy with its gradient."""
    from dfmp2.gradients.gradient import mp2_gradient

    return mp2_gradient(*arguments, **more).result


def _derivatives(result: MP2Result) -> Values:
    """Available components of the gradient (Eh/bohr), natural occupations, dipole moments (debye)
    and polarizabilities (bohr^3) by name; the correlation contribution to dipole moments is in e
    bohr."""
    gradient, properties = result.gradient, result.properties
    if gradient is None or properties is None:
        return {}
    values: Values = {}
    forces = zip(result.molecule.labels, gradient.total_gradient, strict=True)
    for number, (label, row) in enumerate(forces, start=1):
        values |= _along_axes(f"gradient {number} {label} {{axis}}", row)
    for kind in ("unrelaxed", "relaxed"):
        occupations = getattr(properties, f"{kind}_occupations")
        for number, occupation in enumerate(occupations, start=1):
            values[f"{kind} occupation {number}"] = float(occupation)
    for kind in ("scf", "unrelaxed", "relaxed"):
        length = np.linalg.norm(getattr(properties, f"{kind}_dipole"))
        values[f"{kind} dipole / debye"] = DEBYE * float(length)
    added = properties.relaxed_dipole - properties.scf_dipole
    values |= _along_axes("correlation dipole {axis}", added)
    if result.polarizability is not None:
        added = np.diag(result.polarizability.relaxed - result.polarizability.scf)
        values |= _along_axes("correlation polarizability {axis}{axis}", added)
    return values


def _along_axes(name: str, vector: Array) -> Values:
    """The components of a vector, by a name in which {axis} stands for x, y or z."""
    return {name.format(axis=axis): float(value) for axis, value in zip("xyz", vector, strict=True)}
