"""Can the energies be trusted? Instabilities of the reference, fitting metric and gaps, in words
and numbers."""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.errors.messages import Message, Option, joined
from dfmp2.integrals.spaces import ActiveSpace, homo_lumo_gap, smallest_denominator
from dfmp2.mp2.result import Diagnostics
from dfmp2.options import Options
from dfmp2.planning.system import System
from dfmp2.progress import Collector
from dfmp2.scf.reference import GIVEN, Reference
from dfmp2.units import counted_text

# Eh and <S^2> beyond which MP2 on an unstable solution is doubtful
GRAVE_GAIN, GRAVE_SPIN = (0.01, 0.3)
# Excess of <S^2> that is warned: NH2 has 0.01, NCO 0.10, CN and C2H 0.4
CONTAMINATED = 0.1
MORE_STARTS = 10  # SCF starts that the advice recommends


@dataclass(frozen=True, slots=True)
class Metric:
    """The fitting metric: condition number, functions dropped, relative eigenvalue cut."""

    condition: float
    dropped: int
    threshold: float


NO_METRIC = Metric(1.0, 0, 0.0)  # if nothing is fitted


def warn_of_doubts(
    system: System, reference: Reference, metric: Metric, options: Options, listener: Collector
) -> None:
    """Warn of a metric or a reference that makes the energies unreliable."""
    if metric.dropped:
        listener.warning(
            f"the fitting metric is near singular: {metric.dropped} of {system.auxmole.nao} "
            "functions dropped"
        )
    _, nao, nmo = reference.mo_coeff.shape
    if nmo < nao:
        listener.warning(
            f"{nao - nmo} of {nao} basis functions were dropped because they are linearly "
            "dependent: energies jump where their number changes with the geometry"
        )
    unstable = instability(reference, options, system.molecule.multiplicity)
    if unstable:
        listener.warning(unstable)
    mixed = spin_contamination(reference, options, system.molecule.multiplicity)
    if mixed:
        listener.warning(mixed)


def diagnostics(
    system: System,
    reference: Reference,
    spaces: list[ActiveSpace],
    metric: Metric,
    warnings: list[str],
) -> Diagnostics:
    """Numbers that show whether the energies can be trusted, and the warnings so far."""
    jk, ri = system.scf_fitting, system.mp2_fitting
    return Diagnostics(
        homo_lumo_gap=homo_lumo_gap(reference.mo_energy, reference.mo_occ),
        smallest_denominator=smallest_denominator(spaces),
        metric_condition=metric.condition,
        metric_dropped=metric.dropped,
        metric_threshold=metric.threshold,
        warnings=tuple(warnings),
        scf_fitting_error=None if jk is None else jk.error_of(jk.real_keys(system.molecule)),
        mp2_fitting_error=ri.error_of(ri.real_keys(system.molecule)),
    )


def instability(reference: Reference, options: Options, multiplicity: int) -> Message | str:
    """Kinds and sizes of the instabilities of the reference, and how to reach lower solutions; ""
    if there are none."""
    stability = reference.stability
    if stability is None or not stability.unstable:
        return ""
    lower = []
    for kind, gain in stability.gains.items():
        solution = f"a lower {_lower_kind(kind)} solution exists"
        if gain:
            solution += f", at least {gain:.1e} Eh below"
        lower.append(solution)
    text = (
        f"the SCF solution is {stability.verdict}, lowest eigenvalue "
        f"{stability.lowest_eigenvalue:.4f} Eh: {'; '.join(lower)}"
    )
    largest = max(stability.gains.values())
    if largest > GRAVE_GAIN or reference.spin_square - pure_spin_square(multiplicity) > GRAVE_SPIN:
        text += ", and MP2 on this one may be meaningless"
    solutions = reference.solutions
    internal = any(not _is_external(kind) for kind in stability.gains)
    if options.stability == "follow" and solutions is not None and internal:
        if solutions.followed:
            steps = counted_text(solutions.followed, "step")
            text += f"; {steps} along instabilities did not end in a minimum"
        else:
            text += "; no SCF that started along it ended lower"
    return Message(f"{text}. ", _remedies(reference, options, list(stability.gains)))


def pure_spin_square(multiplicity: int) -> float:
    """<S^2> of a pure spin state."""
    spin = (multiplicity - 1) / 2
    return spin * (spin + 1)


def spin_contamination(reference: Reference, options: Options, multiplicity: int) -> Message | str:
    """How far <S^2> is above that of a pure spin state, and what to compare with; "" if it is
    close, or if the method adds nothing to its reference."""
    pure = pure_spin_square(multiplicity)
    if reference.spin_square - pure < CONTAMINATED or options.correlation.kind == "none":
        return ""
    text = (
        f"the reference mixes spin states: <S^2> is {reference.spin_square:.2f}, and {pure:.2f} in "
        f"a pure state, so the {options.correlation.title} energy may be unreliable"
    )
    if multiplicity > 1 and reference.xc is None:
        return Message(f"{text}. Compare with ", Option("reference", "rohf"))
    return text


def _is_external(kind: str) -> bool:
    """Whether an instability leads to a solution of another kind, as in "RHF to UHF"."""
    solution, lower = kind.split(" to ")
    return solution != lower


def _lower_kind(kind: str) -> str:
    """RHF or UHF: the kind of solution that an instability such as "RHF to UHF" leads to."""
    return kind.split(" to ")[1]


def _remedies(reference: Reference, options: Options, kinds: list[str]) -> Message:
    """Options, not yet used, that lead to the lower solutions of these kinds."""
    if reference.ladder == GIVEN:
        return Message(
            f"Converge {' or '.join(_lower_kind(kind) for kind in kinds)} in PySCF from the "
            "orbitals that mf.stability() returns, and pass that mean field"
        )
    if len(kinds) == 1:
        return _remedy(reference, options, kinds[0], "it")
    remedies = [
        _remedy(reference, options, kind, f"the {_lower_kind(kind)} solution") for kind in kinds
    ]
    return joined(remedies)


def _remedy(reference: Reference, options: Options, kind: str, solution: str) -> Message:
    """The option that leads to the solution below an instability of a kind."""
    if _is_external(kind):
        return Message(Option("reference", "uhf"), f" looks for {solution}")
    if options.stability != "follow":
        return Message(Option("stability", "follow"), f" looks for {solution}")
    more = []
    if reference.kind == "uhf" and options.guess != "mix" and options.scf_from is None:
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
