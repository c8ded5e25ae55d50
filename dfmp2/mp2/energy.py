"""The DF-MP2 energy of a molecule: the method section.

    F C = S C e                                          Hartree-Fock (Roothaan-Hall, Pople-Nesbet), or Kohn-Sham  (1)
    (P|Q) = sum_R L_PR L_QR                                            Coulomb metric of the fitting functions     (2)
    B_iaP = sum_Q [L^-1]_PQ (Q|ia),   (ia|jb) = sum_P B_iaP B_jbP      density fitting                             (3)
    e_OS(i,j) = sum_ab (ia|jb)^2 / D,   D = e_i + e_j - e_a - e_b      pair energies, opposite spin                (4)
    e_SS(i,j) = sum_ab (ia|jb) [(ia|jb) - (ib|ja)] / D                 same spin, with the exchange term           (5)
    E(MP2) = E(HF) + sum_ij e_OS(i,j) + sum_ij e_SS(i,j)                                                           (6)

i, j: correlated occupied orbitals, a, b: virtual ones, P, Q: fitting functions. Sources:
Feyereisen, Fitzgerald, Komornicki, Chem. Phys. Lett. 208, 359 (1993); Weigend, Haeser, Patzelt,
Ahlrichs, Chem. Phys. Lett. 294, 143 (1998). The sums over a and b are those of a backend
(`dfmp2.backends.cpu`); that over pairs is `dfmp2.mp2.pairs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from dfmp2.host import provenance, resources
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.scratch import Room
from dfmp2.integrals import three_center
from dfmp2.integrals.metric import factorise, fit
from dfmp2.integrals.spaces import (
    ActiveSpace,
    arbitrary_cut,
    guard_gap,
    homo_lumo_gap,
    smallest_denominator,
)
from dfmp2.molecule.mole import dump_mole, fitting_data
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.calculation import (
    NOTHING,
    Calculation,
    Checkpoint,
    FittedIntegrals,
    StoredB,
    begun,
    kept_b,
    memory_limited,
    room_for_b,
    storage_of,
    timings_of,
)
from dfmp2.mp2.certificate import pair_energies_to_tolerance
from dfmp2.mp2.diagnostics import NO_METRIC, Metric, diagnostics, warn_of_doubts
from dfmp2.mp2.grid_certificate import grid_certificate
from dfmp2.mp2.pairs import Elsewhere
from dfmp2.mp2.result import NO_PAIRS, MP2Result, Quadrature
from dfmp2.options import Options
from dfmp2.planning.memory import Memory
from dfmp2.planning.plan import settle_plan
from dfmp2.planning.system import resolve, system_sizes
from dfmp2.planning.system import set_up_run as set_up
from dfmp2.progress import Collector, Listener, Stopwatch, counted_blocks
from dfmp2.scf.hartree_fock import reference_kind, release_integrals, run_scf
from dfmp2.scf.reference import Reference, StartOrbitals

Place = Callable[
    [list[tuple[int, int]], int], list[StoredTensor]
]  # (nocc, nvir) per spin, naux -> room for B


def mp2_energy(
    molecule: Molecule,
    options: Options,
    *,
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.run",
    checkpoint: Checkpoint = NOTHING,
    doubt_units: bool = True,
) -> MP2Result:
    """DF-MP2 energy of one molecule.

    Parameters
    ----------
    molecule, options : what to compute and how
    start : start orbitals of the SCF, None for those of options.guess
    listener : receives progress and warnings
    command : stored in the provenance
    checkpoint : saves what is done, and may hold what a run that was stopped has done
    doubt_units : as in `dfmp2.planning.system.resolve`

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`; nothing is written by this function but by the checkpoint
    """
    listener = Collector(listener or Listener())
    clock = Stopwatch(listener)
    options = options.settled(molecule.multiplicity)
    kind = reference_kind(options, molecule.multiplicity)
    setup = set_up(options, command)  # backend, threads, memory
    system = resolve(molecule, setup, listener, doubt_units=doubt_units)  # basis and fitting sets
    with memory_limited(setup, system) as setup:
        core, setup, plan = settle_plan(
            system, setup, kind, listener
        )  # frozen core, memory, disk, time
        with begun(
            system, setup, kind, core, plan, listener, clock, checkpoint, start
        ) as calculation:
            reference = converged_reference(calculation, start)  # Eq. 1
            reference, fitted = build_b(calculation, reference)  # Eqs. 2 and 3
            return correlate(calculation, reference, fitted)  # Eqs. 4 to 6


def converged_reference(
    calculation: Calculation,
    start: StartOrbitals | None,
    finish: Callable[[Any], None] = release_integrals,
) -> Reference:
    """The converged reference, Eq. 1; where a run that was stopped had converged it, the one that
    it has saved.

    Parameters
    ----------
    finish : called with the mean field, which holds the SCF integrals still
    """
    system, memory, checkpoint = calculation.system, calculation.plan.memory, calculation.checkpoint
    kind, options = calculation.kind.upper(), calculation.options
    if options.functional is not None:
        name = options.xc or options.correlation.title
        kind = f"{kind.replace('HF', 'KS')}, {name}"
    calculation.listener.stage(f"{kind} ({calculation.options.scf})")
    if checkpoint.reference is not None:
        return checkpoint.reference
    with calculation.clock("scf"):
        mf, reference = run_scf(
            system.mole,
            calculation.kind,
            calculation.options,
            system.jk_auxmole,
            start,
            calculation.listener,
            threads=calculation.setup.active,
            integrals="memory" if memory.scf_fits_in_core else "disk",
            charges=system.molecule.point_charges,
            room=Room(calculation.space, memory.pair_bytes, memory.read_bytes),
            response_held=memory.response_held,
            resumed=checkpoint.orbitals,
            on_iteration=checkpoint.add_orbitals,
            field=calculation.field,
        )
        finish(mf)  # before B is made
        checkpoint.add_reference(reference)
    resources.return_memory()
    return reference


def build_b(
    calculation: Calculation, reference: Reference, place: Place | None = None
) -> tuple[Reference, FittedIntegrals]:
    """B_iaP of each spin, Eqs. 2 and 3, and the reference with its stability, which takes B of the
    frontier orbitals; no B for Kohn-Sham alone.

    Parameters
    ----------
    place : makes room on disk for a B that does not fit into memory, None for scratch space

    Raises
    ------
    NumericalError : the gap is too small for MP2
    """
    spaces, checkpoint = calculation.spaces(reference), calculation.checkpoint
    if calculation.options.correlation.kind == "none":
        checkpoint.add_reference(reference)
        return reference, FittedIntegrals([], NO_METRIC)
    gap = homo_lumo_gap(reference.mo_energy, reference.mo_occ)
    frozen = calculation.core.orbitals, calculation.options.frozen_virtual
    for doubt in (
        guard_gap(gap, smallest_denominator(spaces), calculation.options.allow_small_gap),
        arbitrary_cut(reference.mo_energy, reference.mo_occ, *frozen),
    ):
        if doubt:
            calculation.listener.warning(doubt)
    if place is None and not calculation.plan.memory.mp2_fits_in_core:
        there = kept_b(calculation, spaces)
        if there is not None:
            return reference, there
    frontier: list[ActiveSpace] = []
    if calculation.options.stability == "auto":
        from dfmp2.scf import stability

        frontier = stability.frontier_spaces(reference)
    fitted, stored = _transform_and_fit(calculation, spaces, frontier, place)
    if frontier:
        with calculation.clock("scf"):
            found = stability.frontier_stability(reference, fitted.b[len(spaces) :])
            reference = replace(reference, stability=found)
        del fitted.b[len(spaces) :]
    kept = None
    if stored and not place and checkpoint.path:
        calculation.space.keep(checkpoint.path)
        shapes, digests = (
            tuple(tensor.shape for tensor in stored),
            tuple(tensor.digests for tensor in stored),
        )
        kept = StoredB(str(calculation.space.folder), shapes, digests, **asdict(fitted.metric))
    checkpoint.add_b(kept)
    checkpoint.add_reference(reference)
    return reference, fitted


def _b_of(calculation: Calculation, reference: Reference) -> FittedIntegrals:
    """B of a reference and nothing else, for what is measured beside the energy."""
    fitted, _ = _transform_and_fit(calculation, calculation.spaces(reference), [], None)
    return fitted


def _transform_and_fit(
    calculation: Calculation,
    spaces: list[ActiveSpace],
    frontier: list[ActiveSpace],
    place: Place | None,
) -> tuple[FittedIntegrals, list[StoredTensor]]:
    """B of the spins and of the frontier orbitals, from one pass over the integrals; and what of it
    is on disk."""
    system, setup, held, clock = (
        calculation.system,
        calculation.setup,
        calculation.plan.memory,
        calculation.clock,
    )
    mole, auxmole, threads = system.mole, system.auxmole, setup.active
    with clock("fit"):
        factor = factorise(three_center.coulomb_metric(auxmole), overwrite=True)  # Eq. 2
    calculation.listener.stage("three-centre integrals, transformation and fit")
    shapes = [(s.nocc, s.nvir) for s in (*spaces, *frontier)]
    stored: list[StoredTensor] = []
    if not held.mp2_fits_in_core:
        on_disk = shapes[: len(spaces)]
        if place:
            stored = place(on_disk, auxmole.nao)
        else:
            stored = room_for_b(calculation, on_disk)
    device = setup.options.transform == "device"
    if device:
        a = np.empty((auxmole.nao, mole.nao * (mole.nao + 1) // 2))
    else:
        a = None
    blocks = three_center.packed_blocks(
        mole, auxmole, a, held.integral_bytes
    )  # (Q|mu nu) in blocks of Q
    blocks = counted_blocks(clock.during("integrals", blocks), auxmole.nao, calculation.listener)
    if a is not None:
        from dfmp2.mp2 import device_b

        for _ in blocks:
            pass
        with clock("fit"):
            a = device_b.fitted_ao_integrals(a, factor, threads)
        with clock("transform"):
            b = device_b.on_device(a, spaces, frontier, setup.backend)
    else:
        transformed = clock.during(
            "transform", three_center.transformed_blocks(blocks, [*spaces, *frontier], threads)
        )
        with clock("fit"):
            b = fit(transformed, factor, shapes, auxmole.nao, threads, stored)  # Eq. 3
        del transformed
    del blocks, a
    metric = Metric(factor.condition, factor.dropped, factor.threshold)
    del factor
    resources.return_memory()
    return FittedIntegrals(b, metric), stored


def correlate(
    calculation: Calculation,
    reference: Reference,
    fitted: FittedIntegrals,
    elsewhere: Elsewhere | None = None,
) -> MP2Result:
    """Pair energies, Eqs. 4 and 5, their certificates and the check: the result. `fitted.b` is
    emptied.

    Parameters
    ----------
    elsewhere : computes tiles in other processes
    """
    system, setup, plan, options = (
        calculation.system,
        calculation.setup,
        calculation.plan,
        calculation.options,
    )
    listener, spaces = calculation.listener, calculation.spaces(reference)
    warn_of_doubts(system, reference, fitted.metric, options, listener)

    quadrature, pairs, precision, certificate = None, NO_PAIRS, "fp64", None
    with calculation.clock("pair_energies"):
        if options.correlation.kind in ("laplace", "rpa"):
            quadrature = integrate(calculation, spaces, fitted)
        elif options.correlation.kind == "pairs":
            listener.stage("pair energies")
            pairs, precision, certificate = pair_energies_to_tolerance(
                fitted.b,
                spaces,
                setup.pair_backend,
                setup.pair_backend.limits.settled(options.precision),
                options.tolerance,
                listener,
                held=plan.memory.tensor_bytes,
                threads=setup.active,
                done=calculation.checkpoint.tiles,
                on_tile=calculation.checkpoint.add_tile,
                elsewhere=elsewhere,
            )
    fitted.b.clear()  # the check needs the room
    check = None
    if options.check:
        from dfmp2.mp2.check import allowed_difference, native_check, native_energies

        listener.stage("check: PySCF's own DF-MP2 on the same orbitals")
        data = fitting_data(system.molecule, system.mp2_fitting)
        frozen = calculation.core.orbitals, options.frozen_virtual
        theirs = native_energies(
            system.mole, reference, data, *frozen, held=plan.memory.check_bytes
        )
        check = native_check(reference, pairs, theirs, allowed_difference(certificate, precision))

    fitting_certificate = None
    if options.certify_fit:
        from dfmp2.mp2.fitting_certificate import certify_fit

        with calculation.clock("fitting_certificate"):
            fitting_certificate = certify_fit(calculation, reference, pairs, build_b)

    of_grid = None
    if quadrature is not None and reference.grid_error is not None:
        of_grid = grid_certificate(calculation, reference, quadrature, _b_of)

    if options.transform == "device":
        made = {"transformation": "device: asked for with --transform device"}
    else:
        made = {}
    return MP2Result(
        **calculated(calculation, reference, fitted.metric, listener.warnings, made),
        pairs=pairs,
        backend=setup.backend.name,
        backend_reason=setup.backend_reason,
        precision=precision,
        certificate=certificate,
        check=check,
        fitting_certificate=fitting_certificate,
        grid_certificate=of_grid,
        quadrature=quadrature,
        dispersion=calculation.dispersion,
    )


def calculated(
    calculation: Calculation,
    reference: Reference,
    metric: Metric,
    warnings: list[str],
    made: Mapping[str, str] = {},
) -> dict[str, Any]:
    """The fields of `Calculated`.

    Parameters
    ----------
    made : what is to be said of the backend beside its own description
    """
    system, setup, spaces = calculation.system, calculation.setup, calculation.spaces(reference)
    return {
        "molecule": system.molecule,
        "options": calculation.options,
        "orbital_basis": system.orbital_basis,
        "scf_fitting": system.scf_fitting,
        "mp2_fitting": system.mp2_fitting,
        "reference": reference,
        "sizes": system_sizes(system, reference, spaces, calculation.core, calculation.options),
        "diagnostics": diagnostics(system, reference, spaces, metric, warnings),
        "timings": timings_of(calculation.clock),
        "predicted": calculation.plan.timings,
        "memory": Memory(
            setup.budget, calculation.plan.memory.predicted_peak, resources.peak_resident_memory()
        ),
        "provenance": provenance.collect_provenance(
            setup.command, setup.threads, {**setup.backend.describe(), **made}
        ),
        "frozen_core_note": calculation.core.note,
        "mole_json": dump_mole(system.mole),
        "storage": storage_of(calculation),
    }


def integrate(
    calculation: Calculation, spaces: list[ActiveSpace], fitted: FittedIntegrals
) -> Quadrature:
    """The energy of a method without pair energies."""
    method, tolerance, listener = (
        calculation.options.correlation,
        calculation.options.tolerance,
        calculation.listener,
    )
    how = calculation.plan.memory.tensor_bytes, calculation.setup.active, listener
    listener.stage(f"{method.title} by quadrature")
    if method.kind == "laplace":
        from dfmp2.mp2 import laplace

        return laplace.opposite_spin_energy(fitted.b, spaces, method.opposite_spin, tolerance, *how)
    from dfmp2.mp2 import rpa

    return rpa.correlation_energy(fitted.b, spaces, tolerance, *how)
