"""A calculation under way: what was settled before it began, what its stages hand on, and how far to trust that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dfmp2 import threads
from dfmp2.agreement import require_common_scratch, same_plan
from dfmp2.checkpoint.journal import Journal
from dfmp2.frozen_core import FrozenCore
from dfmp2.identity import identity
from dfmp2.options import Options
from dfmp2.orbitals import ActiveSpace, active_space, homo_lumo_gap, smallest_denominator
from dfmp2.planning import Plan, prepare_programs
from dfmp2.progress import Collector, Stopwatch
from dfmp2.ranks.team import ALONE, Team
from dfmp2.record import Diagnostics, Reference, StartOrbitals
from dfmp2.reference.adopt import GIVEN
from dfmp2.reference.mean_field import require_fitting
from dfmp2.scratch.folder import in_memory
from dfmp2.scratch.space import Space
from dfmp2.system import Setup, System, useful_threads
from dfmp2.units import format_bytes

Settled = tuple[FrozenCore, Setup, Plan]  # before any number is computed
GRAVE_GAIN, GRAVE_SPIN = 0.01, 0.3  # Eh and <S^2> from which MP2 on an unstable solution is doubtful
MORE_STARTS = 10  # of the SCF, as advised


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One calculation: what is computed, how, and who hears of it.

    Attributes
    ----------
    system, setup, core, plan : settled before any number is computed
    space : scratch space, entered
    listener, clock, journal : progress and warnings, wall times, what is saved for a run that goes on
    team : ranks that share the work
    """

    system: System
    setup: Setup
    core: FrozenCore
    plan: Plan
    space: Space
    listener: Collector
    clock: Stopwatch
    journal: Journal
    team: Team = ALONE


@contextmanager
def opened(
    system: System,
    setup: Setup,
    kind: str,
    settle: Callable[[Setup], Settled],
    listener: Collector,
    clock: Stopwatch,
    journal: Journal,
    start: StartOrbitals | None = None,
    *,
    fitted_integrals: str = "",
    team: Team = ALONE,
) -> Iterator[Case]:
    """Settle what remains, begin or go on, and hold threads and scratch space meanwhile.

    Parameters
    ----------
    kind : "rhf" or "uhf"
    settle : set-up with the threads to use -> frozen core, set-up with its backend, and a plan that fits into memory
    start : start orbitals of the SCF
    fitted_integrals : fingerprint of B where it has been made, "" where it is still to be made
    team : ranks that share the work; scratch space is that of rank 0

    Raises
    ------
    Dfmp2Error : whatever can be refused before a number is computed
    """
    setup = useful_threads(setup, system)
    with threads.limited(setup.active):
        core, setup, plan = settle(setup)
        if start is not None:
            require_fitting(start, system.mole)
        prepare_programs(setup, plan.work, listener)
        made = {"fitted integrals": fitted_integrals} if fitted_integrals else {}
        journal.begin({**identity(system, setup, core, kind, start), **made}, listener)
        if not made:  # last bits depend on how the integrals are cut
            plan = same_plan(plan, journal, listener, team)
        if plan.memory.disk:
            listener.stage(f"{format_bytes(plan.memory.disk)} do not fit into memory and go to {setup.scratch}")
            if in_memory(setup.scratch):
                listener.warning(
                    f"the scratch folder {setup.scratch} is itself in memory, beyond --memory: name a folder on a disk "
                    "with --scratch"
                )
        with Space(setup.scratch, plan.memory.disk if team.rank == 0 else 0) as space:
            require_common_scratch(plan, space, team)
            yield Case(system, setup, core, plan, space, listener, clock, journal, team)


@dataclass(frozen=True, slots=True)
class Metric:
    """The fitting metric: condition number, functions dropped, relative eigenvalue cut."""

    condition: float
    dropped: int
    threshold: float


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """What the pair energies are made from.

    Attributes
    ----------
    reference : with its stability
    b : (nocc, nvir, naux) float64 per spin, Eh^1/2; arrays, or all of them on disk
    """

    reference: Reference
    b: list[Any]
    metric: Metric


def active_spaces(case: Case, reference: Reference) -> list[ActiveSpace]:
    """The correlated orbitals of each spin.

    Raises
    ------
    InputError : there are no virtual orbitals
    """
    spins = zip(reference.mo_coeff, reference.mo_energy, reference.mo_occ, strict=True)
    return [active_space(*spin, case.core.orbitals, case.setup.options.frozen_virtual) for spin in spins]


def doubts(case: Case, tensors: Tensors) -> None:
    """Warn of a metric and of a reference that the energies will suffer from."""
    metric, listener = tensors.metric, case.listener
    if metric.dropped:
        listener.warning(
            f"the fitting metric is near singular: {metric.dropped} of {case.system.auxmole.nao} functions dropped"
        )
    unstable = instability(tensors.reference, case.setup.options, case.system.molecule.multiplicity)
    if unstable:
        listener.warning(unstable)


def instability(reference: Reference, options: Options, multiplicity: int) -> str:
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
    return f"{text}. {_remedy(reference, options, broken=broken)}"


def _remedy(reference: Reference, options: Options, *, broken: bool) -> str:
    """What leads to a lower solution and was not asked for already."""
    if reference.ladder == GIVEN:
        return f"Converge {'UHF' if broken else 'it again'} in PySCF (mf.stability() gives its start) and take that"
    if broken:
        return "--reference uhf finds it"
    if options.stability != "follow":
        return "--stability follow finds it"
    mixed = reference.kind == "uhf" and options.guess != "mix" and options.scf_from is None
    more = [
        *(["--guess mix"] if mixed else []),
        *([f"--scf-starts {MORE_STARTS}"] if options.scf_starts < MORE_STARTS else []),
    ]
    return f"Try {' or '.join(more) or 'another --scf-from: orbitals of a similar geometry or of another spin state'}"


def diagnostics(case: Case, tensors: Tensors) -> Diagnostics:
    """Numbers that tell whether the energies can be trusted, and the warnings so far."""
    reference, metric = tensors.reference, tensors.metric
    atoms, jk = case.system.molecule.real_symbols, case.system.scf_fitting
    return Diagnostics(
        homo_lumo_gap=homo_lumo_gap(reference.mo_energy, reference.mo_occ),
        smallest_denominator=smallest_denominator(active_spaces(case, reference)),
        metric_condition=metric.condition,
        metric_dropped=metric.dropped,
        metric_threshold=metric.threshold,
        warnings=tuple(case.listener.warnings),
        scf_fitting_error=None if jk is None else jk.error_of(atoms),
        mp2_fitting_error=case.system.mp2_fitting.error_of(atoms),
    )
