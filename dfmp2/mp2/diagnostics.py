"""Can the energies be trusted? Instabilities of the reference, the fitting metric, gaps; in words and as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.integrals.spaces import ActiveSpace, homo_lumo_gap, smallest_denominator
from dfmp2.messages import Message, Option, joined
from dfmp2.mp2.result import Diagnostics
from dfmp2.options import Options
from dfmp2.planning.system import System
from dfmp2.progress import Collector
from dfmp2.scf.reference import GIVEN, Reference

GRAVE_GAIN, GRAVE_SPIN = (
    0.01,
    0.3,
)  # Eh and <S^2> from which MP2 on an unstable solution is doubtful
MORE_STARTS = 10  # of the SCF, as advised


@dataclass(frozen=True, slots=True)
class Metric:
    """The fitting metric: condition number, functions dropped, relative eigenvalue cut."""

    condition: float
    dropped: int
    threshold: float


def warn_of_doubts(
    system: System, reference: Reference, metric: Metric, options: Options, listener: Collector
) -> None:
    """Warn of a metric and of a reference that the energies will suffer from."""
    if metric.dropped:
        listener.warning(
            f"the fitting metric is near singular: {metric.dropped} of {system.auxmole.nao} functions dropped"
        )
    unstable = instability(reference, options, system.molecule.multiplicity)
    if unstable:
        listener.warning(unstable)


def diagnostics(
    system: System,
    reference: Reference,
    spaces: list[ActiveSpace],
    metric: Metric,
    warnings: list[str],
) -> Diagnostics:
    """Numbers that tell whether the energies can be trusted, and the warnings so far."""
    atoms, jk = system.molecule.real_symbols, system.scf_fitting
    return Diagnostics(
        homo_lumo_gap=homo_lumo_gap(reference.mo_energy, reference.mo_occ),
        smallest_denominator=smallest_denominator(spaces),
        metric_condition=metric.condition,
        metric_dropped=metric.dropped,
        metric_threshold=metric.threshold,
        warnings=tuple(warnings),
        scf_fitting_error=None if jk is None else jk.error_of(atoms),
        mp2_fitting_error=system.mp2_fitting.error_of(atoms),
    )


def instability(reference: Reference, options: Options, multiplicity: int) -> Message | str:
    """Kind and size of an instability of the reference, and what leads to a lower solution; "" for none found."""
    found, solutions = reference.stability, reference.solutions
    if found is None or not found.verdict.startswith("unstable"):
        return ""
    broken = reference.kind == "rhf" and "to UHF" in found.verdict
    gain, spin = found.energy_gain or 0.0, (multiplicity - 1) / 2
    text = (
        f"the SCF solution is {found.verdict}, lowest eigenvalue {found.lowest_eigenvalue:.4f} Eh: a lower "
        f"{'UHF ' if broken else ''}solution exists"
    )
    if gain:
        text += f", at least {gain:.1e} Eh below"
    if gain > GRAVE_GAIN or reference.spin_square - spin * (spin + 1) > GRAVE_SPIN:
        text += ", and MP2 on this one may be meaningless"
    if options.stability == "follow" and solutions is not None and not broken:
        text += f"; {solutions.followed} steps along instabilities did not end in a minimum"
    return Message(f"{text}. ", _remedy(reference, options, broken=broken))


def _remedy(reference: Reference, options: Options, *, broken: bool) -> Message:
    """What leads to a lower solution and was not asked for already."""
    if reference.ladder == GIVEN:
        kind = "UHF" if broken else "it again"
        return Message(f"Converge {kind} in PySCF (mf.stability() gives its start) and take that")
    if broken:
        return Message(Option("reference", "uhf"), " finds it")
    if options.stability != "follow":
        return Message(Option("stability", "follow"), " finds it")
    mixed = reference.kind == "uhf" and options.guess != "mix" and options.scf_from is None
    more = []
    if mixed:
        more.append(Option("guess", "mix"))
    if options.scf_starts < MORE_STARTS:
        more.append(Option("scf_starts", MORE_STARTS))
    if more:
        return Message("Try ", joined(more, " or "))
    return Message(
        "Try another ",
        Option("scf_from"),
        ": orbitals of a similar geometry or of another spin state",
    )
