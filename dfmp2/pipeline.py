"""One DF-MP2 calculation from a molecule to a result; reads as the method section of a paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dfmp2 import provenance, resources, threads
from dfmp2.check import allowed_difference, compare
from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import InputError
from dfmp2.fitting import factorise, fit
from dfmp2.frozen_core import FrozenCore
from dfmp2.identity import identity
from dfmp2.molecule import Molecule
from dfmp2.mp2.precision import pair_energies_to_tolerance
from dfmp2.options import Options, make_options
from dfmp2.orbitals import ActiveSpace, active_space, guard_gap, homo_lumo_gap, smallest_denominator
from dfmp2.planning import Plan, make_plan, prepare_programs, settle_backend
from dfmp2.progress import Collector, Listener, Stopwatch
from dfmp2.record import Diagnostics, Memory, Reference, StartOrbitals, Storage, Timings
from dfmp2.reference import integrals, mean_field, native, stability
from dfmp2.reference.adopt import adopt
from dfmp2.reference.mole import dump_mole, fitting_data
from dfmp2.reference.room import Room
from dfmp2.reference.shield import import_pyscf
from dfmp2.result import MP2Result
from dfmp2.resumption import keep_reference, keep_tensors, kept_tensors, same_layout, solved, stored_tensors
from dfmp2.scratch.folder import in_memory
from dfmp2.scratch.space import Space
from dfmp2.system import Setup, System, assemble, frozen_core, prepare, resolve, sizes, useful_threads
from dfmp2.units import format_bytes


def run(
    molecule: Molecule,
    options: Options,
    *,
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.run",
    journal: Journal | None = None,
) -> MP2Result:
    """DF-MP2 energy of one molecule.

    Parameters
    ----------
    molecule, options : what to compute and how
    start : start orbitals of the SCF, None for atomic densities
    listener : receives progress and warnings
    command : stored in the provenance
    journal : saves what is done, and may hold what a run that was stopped has done

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`; nothing is written by this function but by the journal
    """
    journal = journal or Journal()
    listener = Collector(listener or Listener())
    clock = Stopwatch()
    setup = prepare(options, command)
    system = resolve(molecule, setup, listener)
    setup = useful_threads(setup, system)
    with threads.limited(setup.active):
        kind = mean_field.reference_kind(options.reference, molecule.multiplicity)
        core = frozen_core(system, options, listener)
        setup = settle_backend(setup, system, core, kind)
        plan = make_plan(system, setup, core, kind)
        plan.memory.require()
        prepare_programs(setup, plan.work, listener)
        journal.begin(identity(system, setup, core, kind, start), listener)
        plan = same_layout(plan, journal, listener)
        with scratch_space(plan, setup, listener) as space:
            listener.stage(f"{kind.upper()} ({options.scf})")

            def solve() -> Reference:
                mf, reference = mean_field.run_scf(
                    *(system.mole, kind, options, system.jk_auxmole, start, listener),
                    threads=setup.active,
                    integrals="memory" if plan.memory.scf_fits_in_core else "disk",
                    room=Room(space, plan.memory.pair_bytes, plan.memory.read_bytes),
                    journal=journal,
                )
                if options.stability == "full":
                    reference = replace(reference, stability=stability.full_stability(mf))
                mean_field.release(mf)  # before B is made
                return reference

            with clock("scf"):
                reference = solved(journal, solve)
            resources.return_memory()
            return correlate(system, reference, setup, core, plan, space, listener, clock, journal)


def run_mean_field(
    converged: Any, auxbasis: str | None, given: Mapping[str, Any], listener: Listener | None = None
) -> MP2Result:
    """The MP2 step alone, on a mean field the user converged with PySCF."""
    import_pyscf()
    listener = Collector(listener or Listener())
    clock = Stopwatch()
    molecule, orbital, jk, reference = adopt(converged)
    fixed = {"basis", "reference", "scf", "scf_auxbasis", "scf_from", "scf_max_cycles"} & set(given)
    if fixed:
        raise InputError(f"{sorted(fixed)[0]} belongs to the SCF, which has already been done: leave it out")
    options = make_options(
        **{"stability": "off", **given, "auxbasis": auxbasis},
        basis=orbital.name,
        reference=reference.kind,
        scf=reference.scf_type,
    )
    setup = prepare(options, "dfmp2.from_mean_field")
    system = assemble(molecule, orbital, jk, setup, listener)
    setup = useful_threads(setup, system)
    with threads.limited(setup.active):
        core = frozen_core(system, options, listener)
        setup = settle_backend(setup, system, core, reference.kind)
        plan = make_plan(system, setup, core, reference.kind, scf=False)
        plan.memory.require()
        prepare_programs(setup, plan.work, listener)
        with scratch_space(plan, setup, listener) as space:
            if options.stability == "full":
                reference = replace(reference, stability=stability.full_stability(converged))
            return correlate(system, reference, setup, core, plan, space, listener, clock, Journal())


def correlate(
    system: System,
    reference: Reference,
    setup: Setup,
    core: FrozenCore,
    plan: Plan,
    space: Space,
    listener: Collector,
    clock: Stopwatch,
    journal: Journal,
) -> MP2Result:
    """The MP2 step on a converged reference: fit, transform, pair energies, certificate, check."""
    options, mole, auxmole = setup.options, system.mole, system.auxmole
    spins = list(zip(reference.mo_coeff, reference.mo_energy, reference.mo_occ, strict=True))
    spaces = [active_space(*spin, core.orbitals, options.frozen_virtual) for spin in spins]
    gap = homo_lumo_gap(reference.mo_energy, reference.mo_occ)
    denominator = smallest_denominator(spaces)
    doubt = guard_gap(gap, denominator, options.allow_small_gap)
    if doubt:
        listener.warning(doubt)

    found = None
    if not plan.memory.mp2_fits_in_core:
        found = kept_tensors(space, [(s.nocc, s.nvir) for s in spaces], auxmole.nao, journal, listener)
    if found is not None:
        b, metric = list[Any](found[0]), (found[1].condition, found[1].dropped, found[1].threshold)
    else:
        reference, b, metric = fitted_integrals(system, reference, spaces, setup, plan, space, listener, clock, journal)
    if metric[1]:
        listener.warning(f"the fitting metric is near singular: {metric[1]} of {auxmole.nao} functions dropped")
    if reference.stability is not None and reference.stability.verdict.startswith("unstable"):
        listener.warning(
            f"the SCF solution is {reference.stability.verdict}: a lower one exists, and MP2 on this one may be "
            "meaningless; try --reference uhf or --scf-from with other orbitals"
        )

    listener.stage("pair energies")
    with clock("pair_energies"):
        pairs, precision, certificate = pair_energies_to_tolerance(
            b, spaces, setup.backend, options.precision, options.tolerance, listener, plan.memory.tensor_bytes, journal
        )
    del b
    check = None
    if options.check:
        listener.stage("check: PySCF's own DF-MP2 on the same orbitals")
        data = fitting_data(system.molecule, system.mp2_fitting)
        theirs = native.native_energies(mole, reference, data, core.orbitals, options.frozen_virtual)
        check = compare(reference, pairs, theirs, allowed_difference(certificate, precision))

    return MP2Result(
        molecule=system.molecule,
        options=options,
        orbital_basis=system.orbital_basis,
        scf_fitting=system.scf_fitting,
        mp2_fitting=system.mp2_fitting,
        reference=reference,
        pairs=pairs,
        sizes=sizes(system, reference, spaces, core, options),
        backend=setup.backend.name,
        backend_reason=setup.backend_reason,
        precision=precision,
        diagnostics=Diagnostics(
            homo_lumo_gap=gap,
            smallest_denominator=denominator,
            metric_condition=metric[0],
            metric_dropped=metric[1],
            metric_threshold=metric[2],
            warnings=tuple(listener.warnings),
        ),
        timings=Timings(
            **{
                name: clock.seconds.get(name, 0.0) for name in ("scf", "integrals", "fit", "transform", "pair_energies")
            },
            total=clock.total,
        ),
        predicted=plan.timings,
        memory=Memory(setup.budget, plan.memory.predicted_peak, resources.peak_resident_memory()),
        provenance=provenance.collect(setup.command, setup.threads, setup.backend.describe()),
        frozen_core_note=core.note,
        certificate=certificate,
        check=check,
        mole_json=dump_mole(mole),
        storage=Storage(
            scf_integrals="none"
            if system.naux_scf == 0 or plan.memory.scf_fit is None
            else "memory"
            if plan.memory.scf_fits_in_core
            else "disk",
            fitted_tensor="memory" if plan.memory.mp2_fits_in_core else "disk",
            folder=str(space.root) if space.written or found is not None else "",
            predicted=plan.memory.disk,
            written=space.written,
            read=space.read,
        ),
    )


def fitted_integrals(
    system: System,
    reference: Reference,
    spaces: list[ActiveSpace],
    setup: Setup,
    plan: Plan,
    space: Space,
    listener: Collector,
    clock: Stopwatch,
    journal: Journal,
) -> tuple[Reference, list[Any], tuple[float, int, float]]:
    """B of each spin, the reference with its stability, and condition, dropped functions and cut of the metric."""
    mole, auxmole = system.mole, system.auxmole
    with clock("fit"):
        factor = factorise(integrals.coulomb_metric(auxmole), overwrite=True)
    listener.stage("three-centre integrals, transformation and fit")
    frontier = stability.frontier_spaces(reference) if setup.options.stability == "auto" else []
    ranges = [*spaces, *frontier]  # one pass over the integrals serves both
    shapes = [(s.nocc, s.nvir) for s in ranges]
    on_disk = not plan.memory.mp2_fits_in_core
    stored = stored_tensors(space, shapes[: len(spaces)], auxmole.nao, journal) if on_disk else []
    blocks = integrals.transformed_blocks(mole, auxmole, ranges, clock, setup.active, plan.memory.integral_bytes)
    b = fit(blocks, factor, shapes, auxmole.nao, setup.active, clock, stored)
    metric = factor.condition, factor.dropped, factor.threshold
    keep_tensors(space, journal, stored, factor)
    del factor, blocks
    resources.return_memory()
    if frontier:
        with clock("scf"):
            found = stability.frontier_stability(reference, b[len(spaces) :])
        reference = replace(reference, stability=found)
        del b[len(spaces) :]
    keep_reference(journal, reference)
    return reference, b, metric


def scratch_space(plan: Plan, setup: Setup, listener: Listener) -> Space:
    """The scratch space of a run, which says so when arrays go to disk.

    Raises
    ------
    ResourceError : on entry, when the folder cannot take what the plan needs
    """
    if plan.memory.disk:
        listener.stage(f"{format_bytes(plan.memory.disk)} do not fit into memory and go to {setup.scratch}")
        if in_memory(setup.scratch):
            listener.warning(
                f"the scratch folder {setup.scratch} is itself in memory, beyond --memory: name a folder on a disk "
                "with --scratch"
            )
    return Space(setup.scratch, plan.memory.disk)
