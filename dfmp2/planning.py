"""The plan of a run: its workload, the memory it will hold, the seconds it will take. Made before the SCF."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dfmp2 import calibration, forecast, memory, resources, threads
from dfmp2.frozen_core import FrozenCore
from dfmp2.molecule import Molecule
from dfmp2.mp2 import tiling
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.record import Timings
from dfmp2.reference import integrals
from dfmp2.reference.mean_field import reference_kind
from dfmp2.system import Setup, System, frozen_core, prepare, resolve
from dfmp2.workload import Spin, Workload


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is expected to need.

    Attributes
    ----------
    work : sizes and operations
    memory : bytes per stage, and whether they fit
    timings : predicted wall times, s
    measured : whether the times rest on rates measured on this host (else on built-in ones)
    tiles : pair tiles of all channels
    """

    work: Workload
    memory: memory.MemoryPlan
    timings: Timings
    measured: bool
    tiles: int


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """A run planned but not done.

    Attributes
    ----------
    system, setup, core : what would be computed, with what, and the frozen core
    plan : what it would need
    change : the smallest change that would make it fit, "" when it fits
    """

    system: System
    setup: Setup
    core: FrozenCore
    plan: Plan
    change: str


def make_plan(system: System, setup: Setup, core: FrozenCore, kind: str) -> Plan:
    """Plan a run of kind "rhf" or "uhf"; times from the rates of this host if they were ever measured."""
    work = _workload(system, setup.options, core, kind)
    rates = calibration.load(setup.backend.name, setup.threads)
    limits, nocc = setup.backend.limits, [s.nocc for s in work.spins]
    tiles = sum(len(tiling.triangle(n, limits)) for n in nocc)
    if len(nocc) == 2:
        tiles += len(tiling.rectangle(nocc[0], nocc[1], limits))
    timings = forecast.seconds(work, rates or forecast.Rates())
    return Plan(work, _memory(work, setup), timings, rates is not None, tiles)


def foresee(molecule: Molecule, options: Options, listener: Listener, *, calibrate: bool) -> Outlook:
    """Plan a run without doing it; measures this host's rates when they are missing, or when asked to.

    Raises
    ------
    Dfmp2Error : the run itself would be refused, for any reason but memory
    """
    setup = prepare(options, "dfmp2 plan")
    with threads.limited(setup.threads):
        system = resolve(molecule, setup, listener)
        kind = reference_kind(options.reference, molecule.multiplicity)
        core = frozen_core(system, options, listener)
        plan = make_plan(system, setup, core, kind)  # before measuring, which leaves memory behind
        if calibrate or not plan.measured:
            listener.stage("measuring the rates of this host, once")
            rates = calibration.measure(setup.backend, setup.threads)
            plan = replace(plan, timings=forecast.seconds(plan.work, rates), measured=True)
        return Outlook(system, setup, core, plan, _smallest_change(plan, system, setup, core, kind))


def _smallest_change(plan: Plan, system: System, setup: Setup, core: FrozenCore, kind: str) -> str:
    if plan.memory.fits:
        return ""
    if core.orbitals == 0:
        options = replace(setup.options, frozen_core="auto")
        smaller = frozen_core(system, options, Listener())
        if make_plan(system, replace(setup, options=options), smaller, kind).memory.fits:
            return f"--frozen-core auto ({smaller.orbitals} orbitals)"
    return f"--memory {-(-plan.memory.least // 10**6)}MB"


def _workload(system: System, options: Options, core: FrozenCore, kind: str) -> Workload:
    """Sizes of the run; nvir is taken from nao, an upper limit."""
    mole = system.mole
    spins = mole.nelec if kind == "uhf" else mole.nelec[:1]
    nao = int(mole.nao)
    return Workload(
        nao=nao,
        naux_scf=system.naux_scf,
        naux=int(system.auxmole.nao),
        spins=tuple(
            Spin(int(n), max(0, int(n) - core.orbitals), max(0, nao - int(n) - options.frozen_virtual)) for n in spins
        ),
        precision=options.precision,
        block_functions=integrals.block_functions(system.auxmole, nao),
    )


def _memory(work: Workload, setup: Setup) -> memory.MemoryPlan:
    limits = setup.backend.limits
    return memory.plan(
        work,
        program=resources.resident_memory(),
        budget=setup.budget,
        workers=max(limits.workers, setup.threads),
        chunk_elements=limits.tile_elements,
    )
