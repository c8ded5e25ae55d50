"""One DF-MP2 calculation from a molecule to a result; reads as the method section of a paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dfmp2 import provenance, resources, threads
from dfmp2.check import allowed_difference, compare
from dfmp2.errors import InputError
from dfmp2.fitting import factorise, fit
from dfmp2.frozen_core import FrozenCore
from dfmp2.molecule import Molecule
from dfmp2.mp2.precision import pair_energies_to_tolerance
from dfmp2.options import Options, make_options
from dfmp2.orbitals import active_space, guard_gap, homo_lumo_gap, smallest_denominator
from dfmp2.planning import Plan, make_plan
from dfmp2.progress import Collector, Listener, Stopwatch
from dfmp2.record import Diagnostics, Memory, Reference, StartOrbitals, Timings
from dfmp2.reference import integrals, mean_field, native, stability
from dfmp2.reference.adopt import adopt
from dfmp2.reference.mole import dump_mole, fitting_data
from dfmp2.reference.shield import import_pyscf
from dfmp2.result import MP2Result
from dfmp2.system import Setup, System, assemble, frozen_core, prepare, resolve, sizes, useful_threads


def run(
    molecule: Molecule,
    options: Options,
    *,
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.run",
) -> MP2Result:
    """DF-MP2 energy of one molecule.

    Parameters
    ----------
    molecule, options : what to compute and how
    start : start orbitals of the SCF, None for atomic densities
    listener : receives progress and warnings
    command : stored in the provenance

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`; nothing is written by this function
    """
    listener = Collector(listener or Listener())
    clock = Stopwatch()
    setup = prepare(options, command)
    system = resolve(molecule, setup, listener)
    setup = useful_threads(setup, system)
    with threads.limited(setup.active):
        kind = mean_field.reference_kind(options.reference, molecule.multiplicity)
        core = frozen_core(system, options, listener)
        plan = make_plan(system, setup, core, kind)
        plan.memory.require()
        listener.stage(f"{kind.upper()} ({options.scf})")
        with clock("scf"):
            mf, reference = mean_field.run_scf(
                *(system.mole, kind, options, system.jk_auxmole, start, listener),
                threads=setup.active,
                in_core=plan.memory.scf_fits_in_core,
            )
            if options.stability == "full":
                reference = replace(reference, stability=stability.full_stability(mf))
        mean_field.release(mf)  # before B is made
        return correlate(system, reference, setup, core, plan, listener, clock)


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
        plan = make_plan(system, setup, core, reference.kind)
        plan.memory.require()
        if options.stability == "full":
            reference = replace(reference, stability=stability.full_stability(converged))
        return correlate(system, reference, setup, core, plan, listener, clock)


def correlate(
    system: System,
    reference: Reference,
    setup: Setup,
    core: FrozenCore,
    plan: Plan,
    listener: Collector,
    clock: Stopwatch,
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

    with clock("fit"):
        factor = factorise(integrals.coulomb_metric(auxmole))
    if factor.dropped:
        listener.warning(f"the fitting metric is near singular: {factor.dropped} of {auxmole.nao} functions dropped")
    listener.stage("three-centre integrals, transformation and fit")
    frontier = stability.frontier_spaces(reference) if options.stability == "auto" else []
    ranges = [*spaces, *frontier]  # one pass over the integrals serves both
    blocks = integrals.transformed_blocks(mole, auxmole, ranges, clock)
    b = fit(blocks, factor, [(s.nocc, s.nvir) for s in ranges], auxmole.nao, setup.active, clock)
    if frontier:
        with clock("scf"):
            found = stability.frontier_stability(reference, b[len(spaces) :])
        reference = replace(reference, stability=found)
        del b[len(spaces) :]
    if reference.stability is not None and reference.stability.verdict.startswith("unstable"):
        listener.warning(
            f"the SCF solution is {reference.stability.verdict}: a lower one exists, and MP2 on this one may be "
            "meaningless; try --reference uhf or --scf-from with other orbitals"
        )

    listener.stage("pair energies")
    with clock("pair_energies"):
        pairs, precision, certificate = pair_energies_to_tolerance(
            b, spaces, setup.backend, options.precision, options.tolerance, listener
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
            metric_condition=factor.condition,
            metric_dropped=factor.dropped,
            metric_threshold=factor.threshold,
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
    )
