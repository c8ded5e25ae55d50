"""The three stages of a calculation, each a function of what was settled before it began.

converge: SCF -> reference        fitted: reference -> B of each spin        correlated: B -> energies
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dfmp2 import provenance, resources
from dfmp2.case import Case, Metric, Tensors, active_spaces, diagnostics, doubts
from dfmp2.check import allowed_difference, compare
from dfmp2.checkpoint.encoding import Section
from dfmp2.checkpoint.stages import from_reference, to_reference
from dfmp2.fitting import factorise, fit
from dfmp2.mp2.precision import pair_energies_to_tolerance
from dfmp2.orbitals import ActiveSpace, guard_gap, homo_lumo_gap, smallest_denominator
from dfmp2.progress import Stopwatch
from dfmp2.ranks.team import Team
from dfmp2.record import Memory, Ranks, Reference, StartOrbitals, Storage, Timings
from dfmp2.reference import integrals, mean_field, native, stability, untransformed
from dfmp2.reference.mole import dump_mole, fitting_data
from dfmp2.reference.room import Room
from dfmp2.result import MP2Result
from dfmp2.resumption import keep_reference, keep_tensors, kept_tensors, solved, stored_tensors
from dfmp2.scratch.tensor import StoredTensor
from dfmp2.system import sizes

Place = Callable[[list[tuple[int, int]], int], list[StoredTensor]] | None  # (nocc, nvir) per spin, naux


def converge(case: Case, kind: str, start: StartOrbitals | None) -> Reference:
    """The SCF, on rank 0; taken from a run that was stopped where that had converged it."""
    options, memory = case.setup.options, case.plan.memory
    case.listener.stage(f"{kind.upper()} ({options.scf})")

    def solve() -> Reference:
        mf, reference = mean_field.run_scf(
            *(case.system.mole, kind, options, case.system.jk_auxmole, start, case.listener),
            threads=case.setup.active,
            integrals="memory" if memory.scf_fits_in_core else "disk",
            charges=case.system.molecule.point_charges,
            room=Room(case.space, memory.pair_bytes, memory.read_bytes),
            journal=case.journal,
        )
        mean_field.release(mf)  # before B is made
        return reference

    with case.clock("scf"):
        if case.team.size == 1:
            reference = solved(case.journal, solve)
        else:
            reference = to_reference(case.team.told(lambda: from_reference(solved(case.journal, solve))))
    resources.return_memory()
    return reference


def fitted(case: Case, reference: Reference, place: Place = None) -> Tensors:
    """B of each spin: three-centre integrals, transformed and fitted; and the stability of the reference.

    Parameters
    ----------
    place : makes room on disk for a B that does not fit into memory, None for scratch space

    Raises
    ------
    NumericalError : the gap is too small for MP2
    """
    spaces = active_spaces(case, reference)
    _guard(case, reference, spaces)
    if place is None and not case.plan.memory.mp2_fits_in_core:
        shapes = [(s.nocc, s.nvir) for s in spaces]
        found = kept_tensors(case.space, shapes, case.system.auxmole.nao, case.journal, case.listener, case.team)
        if found is not None:
            kept = found[1]
            return Tensors(reference, list(found[0]), Metric(kept.condition, kept.dropped, kept.threshold))
    return _fit(case, reference, spaces, place)


def correlated(case: Case, tensors: Tensors) -> MP2Result:
    """Pair energies, certificate and check: the result. `tensors.b` is emptied."""
    options, mole, reference = case.setup.options, case.system.mole, tensors.reference
    setup, plan, listener = case.setup, case.plan, case.listener
    spaces = active_spaces(case, reference)
    doubts(case, tensors)

    listener.stage("pair energies")
    with case.clock("pair_energies"):
        pairs, precision, certificate = pair_energies_to_tolerance(
            *(tensors.b, spaces, setup.backend, options.precision, options.tolerance, listener),
            held=plan.memory.tensor_bytes,
            journal=case.journal,
            team=case.team,
            threads=setup.active,
        )
    tensors.b.clear()  # the check needs the room
    ranks = spread(case)
    check = None
    if options.check and case.team.rank == 0:
        listener.stage("check: PySCF's own DF-MP2 on the same orbitals")
        data = fitting_data(case.system.molecule, case.system.mp2_fitting)
        theirs = native.native_energies(mole, reference, data, case.core.orbitals, options.frozen_virtual)
        check = compare(reference, pairs, theirs, allowed_difference(certificate, precision))

    return MP2Result(
        molecule=case.system.molecule,
        options=options,
        orbital_basis=case.system.orbital_basis,
        scf_fitting=case.system.scf_fitting,
        mp2_fitting=case.system.mp2_fitting,
        reference=reference,
        pairs=pairs,
        sizes=sizes(case.system, reference, spaces, case.core, options),
        backend=setup.backend.name,
        backend_reason=setup.backend_reason,
        precision=precision,
        diagnostics=diagnostics(case, tensors),
        timings=timings(case.clock),
        predicted=plan.timings,
        memory=Memory(setup.budget, plan.memory.predicted_peak, resources.peak_resident_memory()),
        provenance=provenance.collect(
            setup.command, setup.threads, {**setup.backend.describe(), **setup.route.describe()}
        ),
        frozen_core_note=case.core.note,
        certificate=certificate,
        check=check,
        mole_json=dump_mole(mole),
        storage=storage(case),
        ranks=ranks,
    )


def timings(clock: Stopwatch) -> Timings:
    """Wall times so far, s."""
    stages = ("scf", "integrals", "fit", "transform", "pair_energies")
    return Timings(**{name: clock.seconds.get(name, 0.0) for name in stages}, total=clock.total)


def _guard(case: Case, reference: Reference, spaces: list[ActiveSpace]) -> None:
    gap = homo_lumo_gap(reference.mo_energy, reference.mo_occ)
    doubt = guard_gap(gap, smallest_denominator(spaces), case.setup.options.allow_small_gap)
    if doubt:
        case.listener.warning(doubt)


def _fit(case: Case, reference: Reference, spaces: list[ActiveSpace], place: Place) -> Tensors:
    """B from the integrals."""
    mole, auxmole, memory, clock = case.system.mole, case.system.auxmole, case.plan.memory, case.clock
    with clock("fit"):
        factor = factorise(integrals.coulomb_metric(auxmole), overwrite=True)
    case.listener.stage("three-centre integrals, transformation and fit")
    frontier = stability.frontier_spaces(reference) if case.setup.options.stability == "auto" else []
    ranges = [*spaces, *frontier]  # one pass over the integrals serves both
    shapes = [(s.nocc, s.nvir) for s in ranges]
    stored = []
    if not memory.mp2_fits_in_core:
        wanted = shapes[: len(spaces)] if case.team.size == 1 else shapes, auxmole.nao
        stored = place(*wanted) if place else stored_tensors(case.space, *wanted, case.journal, case.team)
    active, block_bytes = case.setup.active, memory.integral_bytes
    if case.setup.route.on_device:
        a = untransformed.fitted_integrals(mole, auxmole, factor, active, clock, block_bytes)
        b = untransformed.on_device(a, spaces, frontier, case.setup.backend, clock)
    else:
        blocks = integrals.transformed_blocks(mole, auxmole, ranges, clock, active, block_bytes, case.team)
        b = fit(blocks, factor, shapes, auxmole.nao, active, clock, stored, case.team)
        del blocks
    metric = Metric(factor.condition, factor.dropped, factor.threshold)
    keep_tensors(case.space, case.journal, [] if place else stored[: len(spaces)], factor)
    del factor
    resources.return_memory()
    if frontier:
        with clock("scf"):
            reference = _with_stability(reference, b[len(spaces) :], case.team)
        del b[len(spaces) :]
    keep_reference(case.journal, reference)
    return Tensors(reference, b, metric)


def _with_stability(reference: Reference, b: list[Any], team: Team) -> Reference:
    """The reference with what B of the frontier orbitals says of its stability; rank 0 looks."""

    def look() -> Reference:
        found = [tensor.whole() if isinstance(tensor, StoredTensor) else tensor for tensor in b]
        return replace(reference, stability=stability.frontier_stability(reference, found))

    return look() if team.size == 1 else to_reference(team.told(lambda: from_reference(look())))


def spread(case: Case) -> Ranks | None:
    """How the run was spread over ranks, None where there is one; all ranks call it."""
    if case.team.size == 1:
        return None
    own = Section({"peak": resources.peak_resident_memory(), "written": case.space.written, "read": case.space.read})
    found = [section.values for section in case.team.collect(own)]
    case.space.written, case.space.read = (sum(int(one[name]) for one in found) for name in ("written", "read"))
    return Ranks(len(found), case.team.hosts, tuple(int(one["peak"]) for one in found))


def storage(case: Case) -> Storage:
    """Where the large arrays lived, for the record."""
    memory, space = case.plan.memory, case.space
    none = case.system.naux_scf == 0 or memory.scf_fit is None
    return Storage(
        scf_integrals="none" if none else "memory" if memory.scf_fits_in_core else "disk",
        fitted_tensor="memory" if memory.mp2_fits_in_core else "disk",
        folder=str(space.root) if space.folder is not None or space.written else "",
        predicted=memory.disk,
        written=space.written,
        read=space.read,
    )
