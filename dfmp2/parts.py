"""A run in two parts that need not share a machine: everything up to B, and the pair energies.

    prepare: molecule -> reference, B -> file            energy: file -> pair energies -> result

B lies in one file, float64; the second part makes no integrals. Both are the stages of `dfmp2.pipeline`, so
together they give the bits of a run in one piece.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from dfmp2 import memory, planning, provenance, resources
from dfmp2.backends.base import Limits
from dfmp2.backends.cpu import CpuBackend
from dfmp2.case import Case, Metric, Settled, Tensors, active_spaces, diagnostics, doubts, opened
from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import ResultFileError
from dfmp2.frozen_core import FrozenCore
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.planning import Plan, make_plan, settle_backend
from dfmp2.prepared import Prepared, Source, Target
from dfmp2.progress import Collector, Listener, Stopwatch
from dfmp2.record import Memory, Preparation, StartOrbitals, Timings
from dfmp2.reference.exchange_schedule import uses_single
from dfmp2.reference.mean_field import reference_kind
from dfmp2.reference.mole import build_auxiliary, build_mole, dump_mole
from dfmp2.result import MP2Result
from dfmp2.route import ON_HOST
from dfmp2.stages import converge, correlated, fitted, storage, timings
from dfmp2.system import Setup, System, frozen_core, resolve, sizes
from dfmp2.system import prepare as set_up

NOTHING = memory.Stage(0, 0, 0)
NO_DEVICE = Limits(("fp64",), tile_edge=1, tile_elements=0, workers=1)  # pair energies are no part of it


def prepare(
    molecule: Molecule,
    options: Options,
    target: Target,
    *,
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.prepare",
    journal: Journal | None = None,
) -> Prepared:
    """SCF, integrals and B of one molecule, in a file.

    Parameters are those of `dfmp2.pipeline.run`, and

    target : is filled and sealed

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`
    """
    listener, clock, journal = Collector(listener or Listener()), Stopwatch(), journal or Journal()
    options = options.settled(molecule.multiplicity)
    setup = set_up(options, command, lambda count: (CpuBackend(count), "the pair energies are still to come"))
    system = resolve(molecule, setup, listener)
    kind = reference_kind(options, molecule.multiplicity)

    def settle(setup: Setup) -> Settled:
        core = frozen_core(system, options, listener)
        plan = _without_pairs(make_plan(system, setup, core, kind), setup)
        plan.memory.require()
        target.require(memory.FLOAT64 * plan.work.elements * plan.work.naux)
        return core, setup, plan

    with opened(system, setup, kind, settle, listener, clock, journal, start) as case:
        tensors = fitted(case, converge(case, kind, start), target.place)
        warnings = tuple(listener.warnings)
        doubts(case, tensors)  # said now, and stored by those who compute the energies
        listener.stage("writing B")
        target.fill(tensors.b, case.setup.active)
        tensors.b.clear()
        found = _prepared(case, tensors, warnings)
        target.seal(found)
        return found


def energy(
    source: Source,
    options: Options,
    *,
    listener: Listener | None = None,
    command: str = "dfmp2.energy",
    journal: Journal | None = None,
) -> MP2Result:
    """The pair energies of a file that was prepared, and with them the result.

    Parameters
    ----------
    options : of the whole calculation (`dfmp2.prepared.options_for`)
    journal : saves finished tiles, and may hold those that were finished before

    Raises
    ------
    ResultFileError : the file is damaged
    Dfmp2Error : see `dfmp2.errors`
    """
    listener, clock, journal = Collector(listener or Listener()), Stopwatch(), journal or Journal()
    prepared, kind = source.prepared, source.prepared.reference.kind
    setup = set_up(options, command)
    system = _rebuilt(prepared, setup, source.path)
    for text in prepared.diagnostics.warnings:
        listener.warning(text)
    if options.precision == "fp64" and prepared.options.precision != "fp64" and _began_in_single(prepared):
        listener.warning(
            "--precision fp64, but the SCF began with float32 exchange (its end is float64): prepare it with "
            "--precision fp64 for a run without any float32"
        )

    def settle(setup: Setup) -> Settled:
        core = FrozenCore(prepared.sizes.frozen_core, options.frozen_core, note=prepared.frozen_core_note)
        setup = replace(settle_backend(setup, system, core, kind), route=ON_HOST)  # where B was made
        plan = _pairs_alone(make_plan(system, setup, core, kind, scf=False), setup, prepared)
        plan.memory.require()
        return core, setup, plan

    with opened(system, setup, kind, settle, listener, clock, journal, fitted_integrals=source.fingerprint) as case:
        result = correlated(case, _tensors(case, source))
    return replace(
        result,
        timings=_sum(prepared.timings, result.timings),
        storage=None
        if result.storage is None
        else replace(result.storage, read=source.read, scf_integrals=prepared.storage.scf_integrals),
        preparation=_preparation(source),
    )


def _tensors(case: Case, source: Source) -> Tensors:
    """B of each spin, in memory where it fits, else in its file; its hashes are checked either way."""
    case.listener.stage(f"reading and checking the fitted integrals in {source.path}")
    if case.plan.memory.mp2_fits_in_core:
        b = source.load(case.setup.active)
    else:
        source.check()
        b = list(source.tensors)
    found = source.prepared.diagnostics
    metric = Metric(found.metric_condition, found.metric_dropped, found.metric_threshold)
    return Tensors(source.prepared.reference, b, metric)


def _without_pairs(plan: Plan, setup: Setup) -> Plan:
    """The plan of a run that ends with B, in a file beside which nothing of it goes to scratch."""
    work = replace(plan.work, precision="fp64")
    room = plan.memory
    held = planning.memory_plan(work, NO_DEVICE, setup.threads, program=room.program, budget=room.budget)
    held = replace(held, mp2_pairs=NOTHING, mp2_disk=0)
    times = plan.timings
    times = replace(times, pair_energies=0.0, total=times.total - times.pair_energies)
    return replace(plan, memory=held, timings=times)


def _pairs_alone(plan: Plan, setup: Setup, prepared: Prepared) -> Plan:
    """The plan of a run that begins with B."""
    work = replace(plan.work, frontier_elements=0, block_functions=0)
    room = plan.memory
    held = planning.memory_plan(work, setup.backend.limits, setup.threads, program=room.program, budget=room.budget)
    held = replace(held, scf_in_core=0, scf_fit=None, scf_read=None, scf_disk=0)
    held = replace(held, mp2_integrals=NOTHING, mp2_solve=NOTHING, mp2_disk=0)
    seconds = plan.timings.pair_energies
    predicted = replace(prepared.predicted, pair_energies=seconds, total=prepared.predicted.total + seconds)
    return replace(plan, work=work, memory=held, timings=predicted)


def _prepared(case: Case, tensors: Tensors, warnings: tuple[str, ...]) -> Prepared:
    system, setup, options = case.system, case.setup, case.setup.options
    spaces = active_spaces(case, tensors.reference)
    return Prepared(
        molecule=system.molecule,
        options=options,
        orbital_basis=system.orbital_basis,
        scf_fitting=system.scf_fitting,
        mp2_fitting=system.mp2_fitting,
        reference=tensors.reference,
        sizes=sizes(system, tensors.reference, spaces, case.core, options),
        diagnostics=replace(diagnostics(case, tensors), warnings=warnings),
        timings=timings(case.clock),
        predicted=case.plan.timings,
        memory=Memory(setup.budget, case.plan.memory.predicted_peak, resources.peak_resident_memory()),
        provenance=provenance.collect(setup.command, setup.threads, setup.backend.describe()),
        frozen_core_note=case.core.note,
        mole_json=dump_mole(system.mole),
        storage=storage(case),
    )


def _rebuilt(prepared: Prepared, setup: Setup, path: str) -> System:
    """The system of the first part, from the numbers it has stored: no basis is looked up by its name."""
    molecule, jk = prepared.molecule, prepared.scf_fitting
    mole = build_mole(molecule, prepared.orbital_basis, setup.budget)
    system = System(
        molecule=molecule,
        orbital_basis=prepared.orbital_basis,
        scf_fitting=jk,
        mp2_fitting=prepared.mp2_fitting,
        mole=mole,
        auxmole=build_auxiliary(mole, molecule, prepared.mp2_fitting),
        jk_auxmole=None if jk is None else build_auxiliary(mole, molecule, jk),
    )
    here = (int(mole.nao), int(system.auxmole.nao), system.naux_scf)
    if here != (prepared.sizes.nao, prepared.sizes.naux, prepared.sizes.naux_scf):
        raise ResultFileError(f"{path}: damaged file (its sizes are not those of its bases): prepare it again")
    return system


def _began_in_single(prepared: Prepared) -> bool:
    return prepared.options.scf == "df" and uses_single(prepared.options.precision, prepared.sizes.nao)


def _sum(first: Timings, second: Timings) -> Timings:
    """Wall times of both parts."""
    return Timings(**{name: value + getattr(second, name) for name, value in asdict(first).items()})


def _preparation(source: Source) -> Preparation:
    prepared = source.prepared
    return Preparation(
        **asdict(prepared.provenance),
        file=source.path,
        sha256=source.sha256,
        seconds=prepared.timings.total,
        measured_peak=prepared.memory.measured_peak,
    )
