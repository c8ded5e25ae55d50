"""The plan of a run, made before the SCF: its workload, memory and time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.backends.base import Backend, Prediction, Shape
from dfmp2.backends.registry import foreseen, predictions, select_backend, weigh_trainium
from dfmp2.errors import KernelError, Message, Option, ResourceError, UnsupportedByBackend
from dfmp2.host import resources, threads
from dfmp2.host.deferred import presentation
from dfmp2.integrals import three_center
from dfmp2.molecule.frozen_core import FrozenCore
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.planning import devices, memory, rates, time
from dfmp2.planning.gradient import gradient_memory, gradient_with_b
from dfmp2.planning.memory import NOTHING
from dfmp2.planning.rates import BUILT_IN, DiskRates, Rates
from dfmp2.planning.sizes import Workload, exact_row_shares
from dfmp2.planning.system import (
    Setup,
    System,
    densely_fitted,
    frozen_core,
    resolve,
    set_up_run,
    with_kept_pairs,
    workload,
)
from dfmp2.planning.time import IN_MEMORY, NO_TIME, Pace, Timings, Traffic
from dfmp2.progress import Listener
from dfmp2.scf.hartree_fock import reference_kind
from dfmp2.units import format_bytes, told_apart


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is expected to need.

    Attributes
    ----------
    work : sizes and operations
    memory : bytes per stage, and whether they fit
    timings : predicted wall times, s
    pace : predicted wall times of parts of them, s
    rates : basis of the times, measured on this host or built-in
    tiles : pair tiles of all channels
    traffic : bytes moved to and from scratch
    disk : measured speed of the scratch folder, None if never measured
    certificate : plan of the fitting certificate, None if not requested
    """

    work: Workload
    memory: memory.MemoryPlan
    timings: Timings
    pace: Pace
    rates: Rates
    tiles: int
    traffic: Traffic = IN_MEMORY
    disk: DiskRates | None = None
    certificate: CertificatePlan | None = None


@dataclass(frozen=True, slots=True)
class CertificatePlan:
    """What a fitting certificate is expected to need.

    Attributes
    ----------
    dense : sizes of the second fit, None if all orbitals have exact integrals
    memory : bytes of the conventional SCF, of the second fit, and of the exact integrals
    rows : orbitals with exact integrals; passes : number of passes over the four-centre integrals
    """

    dense: Workload | None
    memory: memory.MemoryPlan
    rows: int
    passes: int


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRun:
    """What to compute and how, settled before any number is computed.

    Attributes
    ----------
    system : System
        Molecule and basis sets.
    setup : Setup
        Options, backend, threads, memory budget and scratch folder.
    kind : str
        "rhf", "uhf" or "rohf".
    core : FrozenCore
    plan : Plan
        Memory, disk and time.
    """

    system: System
    setup: Setup
    kind: str
    core: FrozenCore
    plan: Plan


@dataclass(frozen=True, slots=True, eq=False)
class Outlook(PlannedRun):
    """A planned run that is not done.

    Attributes
    ----------
    system, setup, kind, core, plan : as in PlannedRun
    change : the smallest change that would make it fit, "" when it fits
    trainium : predicted pair energies on one and on all cores of each Trainium chip; None if
        irrelevant
    """

    change: Message
    trainium: tuple[Prediction, ...] | None

    def to_dict(self) -> dict[str, Any]:
        """The object printed by `dfmp2 plan --json`: bytes, operations, seconds."""
        found: dict[str, Any] = presentation().plan_dict(self)
        return found

    def __repr__(self) -> str:
        peak = format_bytes(self.plan.memory.predicted_peak)
        seconds = self.plan.timings.total
        verdict = f"does not fit: {self.change}" if self.change else "fits"
        return f"Outlook({self.system.molecule.formula}: {peak}, {seconds:.2g} s, {verdict})"

    def __str__(self) -> str:
        return str(presentation().plan_text(self)).rstrip("\n")


NO_SCF: dict[str, Any] = {
    "scf_in_core": 0,
    "scf_gathered": 0,
    "scf_fit": NOTHING,
    "scf_read": NOTHING,
    "scf_disk": 0,
    "scf_response": 0,
}
PARTS: dict[
    str, tuple[tuple[str, ...], dict[str, Any]]
] = {  # its stages, and the parts of the memory plan for the rest
    "all": (time.STAGES, {}),
    "up to b": (time.STAGES[:4], {"mp2_pairs": NOTHING, "mp2_check": NOTHING, "mp2_disk": 0}),
    "from orbitals": (time.STAGES[1:], NO_SCF),
    "from b": (
        ("pair_energies", "fitting_certificate"),
        {**NO_SCF, "mp2_integrals": NOTHING, "mp2_solve": NOTHING, "mp2_disk": 0},
    ),
}


def make_plan(
    system: System,
    setup: Setup,
    core: FrozenCore,
    kind: str,
    *,
    part: str = "all",
    task: str = "energy",
) -> Plan:
    """Plan a run of kind "rhf" or "uhf", with times from the rates of this host if measured.

    Parameters
    ----------
    task : what is computed, "energy", "properties" or "gradient"
    part : part of the run, a key of PARTS; B takes no scratch space if it is made in, or read from,
        its file
    """
    limits = setup.backend.limits
    work = workload(system, setup.options, core, kind)
    work = replace(work, task=task, precision=limits.settled(work.precision))
    if part in ("all", "up to b") or task != "energy":
        work = with_kept_pairs(work, system)
    if part == "up to b":
        work = replace(work, precision="fp64")
    if part == "from b":
        work = replace(work, frontier=())
        if not work.finer_grid:
            work = replace(work, block_functions=0)
    planned = _memory(work, setup, part)
    certificate = None
    if setup.options.certify_fit:
        certificate = _certificate(system, setup, work)
        planned = replace(planned, certificate=certificate.memory)
    if task != "energy":
        planned = _with_gradient(planned, system, setup, work, part)
    traffic = time.traffic(work, planned, limits)
    known = rates.load_rates(setup.backend.name, setup.threads) or Rates()
    plan = Plan(
        work=work,
        memory=planned,
        timings=NO_TIME,
        pace=time.pace(work, known),
        rates=known,
        tiles=sum(cuts.tiles for cuts in time.cuts_of(work, limits).values()),
        traffic=replace(traffic, cached=_stays_cached(planned, setup)),
        disk=rates.load_disk(setup.scratch),
        certificate=certificate,
    )
    return replace(plan, timings=_seconds(setup, plan).only(PARTS[part][0]))


def _with_gradient(
    energy: memory.MemoryPlan, system: System, setup: Setup, work: Workload, part: str
) -> memory.MemoryPlan:
    """The plan of a part of a run, with the gradient or the relaxed densities that follow it."""
    fitting = [aux for aux in (system.auxmole, system.jk_auxmole) if aux is not None]
    widest = max(int(np.diff(aux.ao_loc_nr()).max(initial=1)) for aux in fitting)
    in_core = max(energy.mp2_in_core, gradient_with_b(work, setup.active))
    energy = replace(energy, mp2_in_core=in_core)
    whole = energy
    if part != "all":
        whole = replace(_memory(work, setup, "all"), mp2_in_core=in_core)
    return replace(energy, gradient=gradient_memory(work, whole, widest, setup.active))


def settle_plan(
    system: System,
    setup: Setup,
    kind: str,
    listener: Listener,
    *,
    core: FrozenCore | None = None,
    part: str = "all",
    task: str = "energy",
) -> PlannedRun:
    """Settle frozen core, backend and plan of a run before any number is computed.

    Parameters
    ----------
    kind : str
        "rhf", "uhf" or "rohf".
    core : FrozenCore, optional
        If already known.
    part, task : str
        As in `make_plan`.

    Raises
    ------
    Dfmp2Error : the backend is not sufficient
    """
    core = core or frozen_core(system, setup.options, listener)
    setup = settle_backend(setup, system, core, kind)
    plan = make_plan(system, setup, core, kind, part=part, task=task)
    limits, options = setup.backend.limits, setup.options
    in_core = plan.memory.mp2_fits_in_core and plan.memory.scf_fits_in_core
    if limits.fits and options.transform == "device" and not in_core:
        raise ResourceError(
            Option("transform", "device"),
            ": the fitted integrals do not fit into host memory: allow more with ",
            Option("memory"),
            ", or use ",
            Option("transform", "host"),
        )
    on_card = limits.fits and limits.memory is not None and plan.memory.scf_fits_in_core
    whole = task == "energy" and part == "all" and options.correlation.kind == "pairs"
    if on_card and whole and options.transform == "auto":
        # B that stays on the card needs no memory on the host.
        there = replace(setup, options=replace(options, transform="device"))
        made_there = make_plan(system, there, core, kind, part=part, task=task)
        if made_there.memory.mp2_fits_in_core and made_there.memory.scf_fits_in_core:
            setup, plan = there, made_there
    return PlannedRun(system=system, setup=setup, kind=kind, core=core, plan=plan)


def settle_backend(setup: Setup, system: System, core: FrozenCore, kind: str) -> Setup:
    """The set-up, with a Trainium lane instead of NumPy if `auto` may choose and it pays off.

    Raises
    ------
    UnsupportedByBackend, ResourceError : B is to be computed on the device but cannot be
    """
    options = setup.options
    work = workload(system, setup.options, core, kind)
    if (
        options.correlation.plain
        and options.backend == "auto"
        and setup.backend.name == "cpu"
        and options.precision != "fp64"
    ):
        known = rates.load_rates("cpu", setup.threads)
        host = time.time_text(work, known or Rates()).pair_energies
        found = weigh_trainium(trainium_shapes(work), host, known is not None, setup.threads)
        if found is not None:
            setup = replace(setup, backend=found[0] or setup.backend, backend_reason=found[1])
    if options.transform == "device":
        require_device(
            setup.backend, work, setup.budget - resources.resident_memory() - memory.SLACK
        )
    return setup


def require_device(backend: Backend, work: Workload, room: int) -> None:
    """Raise if `--transform device` is impossible; `room` bytes may be held on the host.

    Raises
    ------
    UnsupportedByBackend : the device cannot compute B
    ResourceError : the host's part does not fit into memory
    """
    spins = trainium_shapes(work)
    if backend.limits.fits and spins:
        return
    if not backend.limits.transforms or not spins:
        if spins:
            why = "this backend takes B from the host"
        else:
            why = "there is nothing to correlate"
        raise UnsupportedByBackend(
            Option("transform", "device"),
            f": {why}; use ",
            Option("backend", "cuda"),
            ", an nki lane on one core, or ",
            Option("transform", "host"),
        )
    try:
        backend.transform_seconds(spins, work.nao)
    except KernelError as error:
        raise UnsupportedByBackend(
            Option("transform", "device"),
            ": ",
            error.message,
            "; use ",
            Option("transform", "host"),
        ) from error
    held = devices.host_bytes(work)
    if held > room:
        needed, left = told_apart("bytes", held, room)
        raise ResourceError(
            Option("transform", "device"),
            (
                f" holds {needed} of fitted integrals on the host, where {left} are left: allow "
                f"{format_bytes(held - room)} more with "
            ),
            Option("memory"),
            ", or use ",
            Option("transform", "host"),
        )


def _seconds(setup: Setup, plan: Plan) -> Timings:
    """Predicted times of a run; if the device computes B, with more columns to fit and its program
    instead of products."""
    work, certificate = plan.work, plan.certificate
    found = time.time_text(
        work, plan.rates, plan.traffic, plan.disk or BUILT_IN, plan.memory.gradient
    )
    if certificate is not None:
        more = time.certificate_seconds(
            work, certificate.dense, certificate.rows, certificate.passes, plan.rates
        )
        found = replace(found, fitting_certificate=more, total=found.total + more)
    if setup.options.transform != "device":
        return found
    fit = 0.0  # counted with the transformation
    if not setup.backend.limits.fits:
        fit = found.fit * work.pairs_of_functions / work.elements
    transform = setup.backend.transform_seconds(trainium_shapes(work), work.nao)
    total = found.total + fit - found.fit + transform - found.transform
    return replace(found, fit=fit, transform=transform, total=total)


def prepare_programs(setup: Setup, work: Workload, listener: Listener) -> None:
    """Compile the programs that the backend needs for this run, before the SCF because it may fail.

    Raises
    ------
    BackendUnavailable : a program is missing and cannot be compiled here
    """
    if setup.backend.limits.compiles:
        listener.stage(f"compiled kernels of {setup.backend.name}")
        setup.backend.prepare(
            trainium_shapes(work), work.nao if setup.options.transform == "device" else 0
        )


def foresee(
    molecule: Molecule,
    options: Options,
    listener: Listener,
    *,
    calibrate: bool,
    task: str = "energy",
) -> Outlook:
    """Plan a run without doing it; measures this host's rates if missing or requested.

    Parameters
    ----------
    task : what is computed, "energy", "properties" or "gradient"

    Raises
    ------
    Dfmp2Error : the run itself would be rejected, for any reason except memory
    """
    timed, run = foresee_unmeasured(molecule, options, listener, task=task)
    system, setup, plan = run.system, run.setup, run.plan
    with threads.limited(setup.threads):
        measured = _measured_rates(timed, setup.threads, plan.rates, listener, calibrate=calibrate)
        disk = plan.disk
        if calibrate or (plan.memory.scratch and disk is None):
            disk = _measured_disk(setup, listener)
        predicted = predictions(setup.backend, trainium_shapes(plan.work))
    plan = replace(plan, rates=measured, disk=disk)
    # Neither a frozen core nor fewer virtuals reduce the needs of the SCF and one tile: only more
    # memory helps.
    change = Message()
    if not plan.memory.fits:
        change = Message(Option("memory", f"{-(-plan.memory.least // 10**6)}MB"))
    return Outlook(
        system=system,
        setup=setup,
        kind=run.kind,
        core=run.core,
        plan=replace(plan, timings=_seconds(setup, plan)),
        change=change,
        trainium=predicted,
    )


def foresee_unmeasured(
    molecule: Molecule,
    options: Options,
    listener: Listener,
    *,
    task: str,
    doubt_units: bool = True,
) -> tuple[Backend, PlannedRun]:
    """The backend whose rates count, and the plan of a run at the rates known so far.

    Parameters
    ----------
    task, doubt_units : as in `foresee`, which raises the same errors, and `resolve`
    """
    options = options.settled(molecule.multiplicity)
    setup = set_up_run(
        options, "dfmp2 plan", lambda count: foreseen(options.backend, options.precision, count)
    )
    timed = setup.backend
    if setup.backend_reason.startswith("not on this host"):
        timed = select_backend("cpu", "auto", setup.threads)[0]
    with threads.limited(setup.threads):
        system = resolve(molecule, setup, listener, doubt_units=doubt_units)
        kind = reference_kind(options, molecule.multiplicity)
        core = frozen_core(system, options, listener)
        setup = settle_backend(setup, system, core, kind)
        # Before measuring, which leaves memory allocated
        plan = make_plan(system, setup, core, kind, task=task)
    return timed, PlannedRun(system=system, setup=setup, kind=kind, core=core, plan=plan)


def _measured_rates(
    backend: Backend, count: int, planned: Rates, listener: Listener, *, calibrate: bool
) -> Rates:
    """The rates of this host, measured if that is requested or necessary.

    Parameters
    ----------
    count : number of threads
    planned : rates used if none of this backend are stored; without a date, they are built-in
    """
    known = rates.load_rates(backend.name, count) or planned
    if calibrate or not known.date:
        listener.stage("measuring the rates of this host, once")
        return rates.measure_rates(backend, count)
    if known.disturbed:
        listener.stage(
            "measuring the rates of this host again: others used it when they were measured"
        )
        return rates.refreshed(backend, count, known)
    return known


def workload_sizes(molecule: Molecule, options: Options, listener: Listener) -> Workload:
    """Sizes of a run without planning it; neither its backend nor its scratch folder need exist
    here. The pairs of functions that the SCF keeps are missing, as in `workload`."""
    from dfmp2.backends.cpu import CpuBackend
    from dfmp2.molecule.pyscf_shield import import_pyscf

    import_pyscf()
    options = options.settled(molecule.multiplicity)
    count = options.threads or resources.usable_cores()
    setup = Setup(
        options=options,
        backend=CpuBackend(count),
        backend_reason="",
        threads=count,
        active=count,
        budget=resources.available_memory(),
        scratch=Path(),
        command="",
    )
    with threads.limited(setup.threads):
        system = resolve(molecule, setup, listener, doubt_units=False)
        kind = reference_kind(options, molecule.multiplicity)
        return workload(system, options, frozen_core(system, options, listener), kind)


def trainium_shapes(work: Workload) -> tuple[Shape, ...]:
    """The shapes that the Trainium kernels see, one per spin with electrons to correlate."""
    return tuple(Shape(s.nocc, s.nvir, work.naux) for s in work.spins if s.nocc and s.nvir)


def _stays_cached(held: memory.MemoryPlan, setup: Setup) -> bool:
    """Whether the system can cache everything on disk in memory outside the run's budget."""
    taken = setup.budget - resources.resident_memory()
    return 0 < held.disk <= resources.available_memory() - max(0, taken)


def _measured_disk(setup: Setup, listener: Listener) -> DiskRates | None:
    """Speed of the scratch folder; an unusable folder does not prevent planning."""
    listener.stage(f"measuring the speed of {setup.scratch}, once")
    try:
        return rates.measure_disk(setup.scratch)
    except ResourceError as error:
        listener.warning(
            Message(error.message, "; times of disk traffic are those of another disk")
        )
        return None


_program: int | None = None  # bytes, from the previous plan in this process


def _memory(work: Workload, setup: Setup, part: str) -> memory.MemoryPlan:
    """Bytes of every stage of one part of a run."""
    global _program
    limits, options = setup.backend.limits, setup.options
    resident = resources.resident_memory()
    grown = 0
    if _program is not None:
        grown = max(0, resident - _program)
    plan = memory.memory_plan(
        work, limits, setup.threads, program=resident, budget=setup.budget, grown=grown
    )
    _program = plan.program
    if options.correlation.kind != "pairs":
        plan = memory.without_pairs(plan, work)
    if options.pair_check:
        plan = replace(plan, mp2_check=memory.check_stage(work, setup.threads))
    if options.transform == "device":
        if not limits.fits:
            plan = replace(plan, mp2_in_core=devices.host_bytes(work))
        pairs = part == "all" and work.task == "energy" and options.correlation.kind == "pairs"
        if pairs and devices.stays_on_card(work, limits):
            plan = replace(plan, mp2_in_core=min(plan.mp2_in_core, devices.card_host_bytes(work)))
    missing = PARTS[part][1]
    if work.finer_grid and part != "up to b":  # B again, with orbitals of a finer grid
        plan = replace(plan, grid_disk=plan.mp2_disk)
        if part == "from b":
            missing = {**NO_SCF, "mp2_disk": 0}
    return replace(plan, **missing)


def _certificate(system: System, setup: Setup, work: Workload) -> CertificatePlan:
    """Requirements of a fitting certificate: a second SCF, exact integrals, and a second fit if
    they are only a sample."""
    counts = [spin.nocc for spin in work.spins]
    shares = [sum(parts) for parts in exact_row_shares(counts)]
    if not work.scf_columns:
        work = with_kept_pairs(work, system)
    work = replace(work, frontier=(), x2c_functions=0, starts=1, examined=False, rectangles=0)
    dense = None
    if sum(shares) < sum(counts):
        auxmole = densely_fitted(system).auxmole
        functions = three_center.block_functions(auxmole, work.nao)
        dense = replace(work, naux=int(auxmole.nao), block_functions=functions)
    left = memory.CERTIFICATE_LEFT + memory.LEFT_BEHIND * setup.threads
    planned = memory.memory_plan(
        dense or work,
        setup.backend.limits,
        setup.threads,
        program=resources.resident_memory() + left,
        budget=setup.budget,
    )
    if dense is None:
        planned = replace(
            planned, mp2_in_core=0, mp2_integrals=NOTHING, mp2_solve=NOTHING, mp2_pairs=NOTHING
        )
    if not work.naux_scf:
        planned = replace(planned, **NO_SCF)
    rows = memory.exact_rows_stage(work, setup.threads, max(shares))
    planned = replace(planned, exact_rows=rows)
    at_once = max(1, planned.row_bytes // rows.least)
    return CertificatePlan(
        dense=dense,
        memory=planned,
        rows=sum(shares),
        passes=sum(-(-share // at_once) for share in shares),
    )
