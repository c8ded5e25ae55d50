"""The DF-MP2 energy of a molecule: the equations and the code that follows them.

    F C = S C e                                          Hartree-Fock (Roothaan-Hall, Pople-Nesbet), or Kohn-Sham  (1)
    (P|Q) = sum_R L_PR L_QR                                            Coulomb metric of the fitting functions     (2)
    B_iaP = sum_Q [L^-1]_PQ (Q|ia),   (ia|jb) = sum_P B_iaP B_jbP      density fitting                             (3)
    e_OS(i,j) = sum_ab (ia|jb)^2 / D,   D = e_i + e_j - e_a - e_b      pair energies, opposite spin                (4)
    e_SS(i,j) = sum_ab (ia|jb) [(ia|jb) - (ib|ja)] / D                 same spin, with the exchange term           (5)
    E(MP2) = E(HF) + sum_ij e_OS(i,j) + sum_ij e_SS(i,j)                                                           (6)

i, j: correlated occupied orbitals; a, b: virtual orbitals; P, Q: fitting functions. Sources:
Feyereisen, Fitzgerald, Komornicki, Chem. Phys. Lett. 208, 359 (1993); Weigend, Haeser, Patzelt,
Ahlrichs, Chem. Phys. Lett. 294, 143 (1998). A backend (`dfmp2.backends.cpu`) sums over a and b,
`dfmp2.mp2.pairs` over pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dfmp2.backends.untransformed import made_on_device
from dfmp2.host import provenance, resources
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.provenance import Memory
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
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.mp2.calculation import (
    NOTHING,
    Calculation,
    Checkpoint,
    FittedIntegrals,
    Opening,
    kept_b,
    open_calculation,
    room_for_b,
    save_b,
    storage_of,
    timings_of,
)
from dfmp2.mp2.certificate import pair_energies_to_tolerance
from dfmp2.mp2.diagnostics import NO_METRIC, Metric, diagnostics, warn_of_doubts
from dfmp2.mp2.pairs import NO_PAIRS, Elsewhere, PairEnergies, PairOperands
from dfmp2.mp2.result import Certificate, MP2Result, Quadrature
from dfmp2.options import Options
from dfmp2.options.combinations import require_energy_check
from dfmp2.planning.system import resolve, system_sizes
from dfmp2.progress import Listener, counted_blocks
from dfmp2.scf.hamiltonian import Environment
from dfmp2.scf.hartree_fock import reference_kind, run_scf
from dfmp2.scf.integrals import ScfIntegrals, release_integrals
from dfmp2.scf.reference import Reference, StartOrbitals

# (nocc, nvir) per spin, naux -> room for B
Place = Callable[[list[tuple[int, int]], int], list[StoredTensor]]


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
    checkpoint : saves finished work, and may hold that of an interrupted run
    doubt_units : as in `dfmp2.planning.system.resolve`

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`; only the checkpoint writes anything
    """
    options = options.settled(molecule.multiplicity)
    require_energy_check(options)
    kind = reference_kind(options, molecule.multiplicity)
    with open_calculation(
        options,
        kind,
        Opening(partial(resolve, molecule, doubt_units=doubt_units)),
        start=start,
        listener=listener,
        command=command,
        checkpoint=checkpoint,
    ) as calculation:
        reference = converged_reference(calculation, start)  # Eq. 1
        return energy_on_reference(calculation, reference)  # Eqs. 2 to 6


def energy_on_reference(calculation: Calculation, reference: Reference) -> MP2Result:
    """The energy on a converged reference, Eqs. 2 to 6."""
    reference, fitted = fitted_integrals(calculation, reference)
    correlation = correlate(calculation, reference, fitted)
    del fitted  # checks and certificates need the memory
    return complete(calculation, reference, correlation)


def converged_reference(
    calculation: Calculation,
    start: StartOrbitals | None,
    finish: Callable[[Any], None] = release_integrals,
) -> Reference:
    """The converged reference, Eq. 1; the saved one if an interrupted run had converged it.

    Parameters
    ----------
    finish : called with the mean field while it still holds the SCF integrals
    """
    system, memory, checkpoint = calculation.system, calculation.plan.memory, calculation.checkpoint
    kind = calculation.kind.upper()
    options = calculation.options
    if options.functional is not None:
        name = options.xc or options.correlation.title
        kind = f"{kind.replace('HF', 'KS')}, {name}"
    calculation.listener.stage(f"{kind} ({calculation.options.scf})")
    device = None
    if options.transform == "device" and calculation.setup.backend.limits.fits:
        device = calculation.setup.backend
    if checkpoint.reference is not None:
        return checkpoint.reference
    with calculation.clock("scf"):
        integrals = ScfIntegrals(
            auxmole=system.jk_auxmole,
            place="memory" if memory.scf_fits_in_core else "disk",
            threads=calculation.setup.active,
            room=Room(calculation.space, memory.pair_bytes, memory.read_bytes),
            response_in_memory=memory.response_held,
            gathers=memory.scf_gathers and device is None,
            grid_room=memory.grid_room,
            device=device,
        )
        mf, reference = run_scf(
            system.mole,
            calculation.kind,
            calculation.options,
            integrals,
            start,
            calculation.listener,
            Environment(system.molecule.point_charges, calculation.field),
            store=checkpoint,
        )
        finish(mf)  # before B is built
        checkpoint.add_reference(reference)
    resources.return_memory()
    return reference


def fitted_integrals(
    calculation: Calculation, reference: Reference, place: Place | None = None
) -> tuple[Reference, FittedIntegrals]:
    """The reference with its stability, and B; no B for Kohn-Sham alone. A B left on disk by an
    interrupted run is reused.

    Parameters
    ----------
    place : callable, optional
        Allocates a B on disk that does not fit into memory; None for scratch space.

    Raises
    ------
    NumericalError
        The gap is too small for MP2.
    """
    if calculation.options.correlation.kind == "none":
        calculation.checkpoint.add_reference(reference)
        return reference, FittedIntegrals([], NO_METRIC)
    spaces = calculation.spaces(reference)
    warn_of_small_gap(calculation, reference, spaces)
    if place is None and not calculation.plan.memory.mp2_fits_in_core:
        kept = kept_b(calculation, spaces)
        if kept is not None:
            return reference, kept
    from dfmp2.scf import stability

    frontier = []
    if calculation.options.stability == "auto":
        frontier = stability.frontier_spaces(reference)
    fitted = build_b(calculation, reference, frontier=frontier, place=place)
    if frontier:
        with calculation.clock("scf"):
            found = stability.frontier_stability(reference, fitted.frontier)
        reference = replace(reference, stability=found)
        fitted = replace(fitted, frontier=[])
    if place is None:
        save_b(calculation, reference, fitted)
    else:
        calculation.checkpoint.add_reference(reference)
    return reference, fitted


def warn_of_small_gap(
    calculation: Calculation, reference: Reference, spaces: list[ActiveSpace]
) -> None:
    """Warn of a small gap, and of frozen orbitals that split a shell.

    Raises
    ------
    NumericalError
        The gap is too small for MP2.
    """
    options = calculation.options
    gap = homo_lumo_gap(reference.mo_energy, reference.mo_occ)
    frozen = calculation.core.orbitals, options.frozen_virtual
    title = options.correlation.title
    for doubt in (
        guard_gap(gap, smallest_denominator(spaces), options.allow_small_gap, title),
        arbitrary_cut(reference.mo_energy, reference.mo_occ, *frozen),
    ):
        if doubt:
            calculation.listener.warning(doubt)


def build_b(
    calculation: Calculation,
    reference: Reference,
    *,
    frontier: Sequence[ActiveSpace] = (),
    place: Place | None = None,
) -> FittedIntegrals:
    """B_iaP of each spin, and of the frontier orbitals, from one pass over the integrals, Eqs. 2
    and 3.

    Parameters
    ----------
    frontier : sequence of ActiveSpace
        Frontier orbitals of each spin, or none.
    place : callable, optional
        As in `fitted_integrals`.
    """
    spaces = calculation.spaces(reference)
    mole, auxmole = calculation.system.mole, calculation.system.auxmole
    setup, memory, clock = calculation.setup, calculation.plan.memory, calculation.clock
    with clock("fit"):
        factor = factorise(three_center.coulomb_metric(auxmole), overwrite=True)  # Eq. 2
    calculation.listener.stage("three-centre integrals, transformation and fit")
    stored: list[StoredTensor] = []
    if not memory.mp2_fits_in_core:
        on_disk = [(s.nocc, s.nvir) for s in spaces]
        stored = place(on_disk, auxmole.nao) if place else room_for_b(calculation, on_disk)
    on_device = setup.options.transform == "device"
    packed = None
    if on_device and not setup.backend.limits.fits:  # the host fits all integrals in place
        packed = np.empty((auxmole.nao, mole.nao * (mole.nao + 1) // 2))
    # (Q|mu nu) in blocks of Q
    blocks = three_center.packed_blocks(mole, auxmole, packed, memory.integral_bytes)
    blocks = counted_blocks(clock.during("integrals", blocks), auxmole.nao, calculation.listener)
    if packed is not None:
        for _ in blocks:
            pass
        with shielded():
            from dfmp2.scf.jk import fit_columns
        with clock("fit"):
            packed = fit_columns(packed, factor, [packed.shape[1]], setup.active)
        with clock("transform"):
            b = made_on_device(packed, spaces, list(frontier), setup.backend)
    elif on_device:
        with clock("transform"):
            b = setup.backend.make_b(blocks, factor.of_rows(), spaces, list(frontier))
    else:
        every = [*spaces, *frontier]
        transformed = clock.during(
            "transform", three_center.transformed_blocks(blocks, every, setup.active)
        )
        shapes = [(s.nocc, s.nvir) for s in every]
        with clock("fit"):
            b = fit(transformed, factor, shapes, auxmole.nao, setup.active, stored)  # Eq. 3
        del transformed
    del blocks, packed
    metric = Metric(factor.condition, factor.dropped, factor.threshold)
    del factor
    resources.return_memory()
    count = len(spaces)
    return FittedIntegrals(b[:count], metric, frontier=b[count:], stored=stored)


class Correlation(NamedTuple):
    """The energies of pairs, or of a quadrature, and their precision.

    Attributes
    ----------
    metric : Metric
        Metric in which B was fitted.
    pairs : PairEnergies
        Empty (NO_PAIRS) for a method without pairs.
    precision : str
        "fp64" or "mixed", as actually used.
    certificate : Certificate, optional
        Certificate of the precision.
    quadrature : Quadrature, optional
        Energy of a method without pairs.
    """

    metric: Metric
    pairs: PairEnergies
    precision: str
    certificate: Certificate | None
    quadrature: Quadrature | None


def correlate(
    calculation: Calculation,
    reference: Reference,
    fitted: FittedIntegrals,
    elsewhere: Elsewhere | None = None,
) -> Correlation:
    """The correlation energy, Eqs. 4 and 5, with the certificate of its precision.

    Parameters
    ----------
    elsewhere : callable, optional
        Computes tiles in other processes.
    """
    setup, options, listener = calculation.setup, calculation.options, calculation.listener
    spaces = calculation.spaces(reference)
    warn_of_doubts(calculation.system, reference, fitted.metric, options, listener)

    quadrature, pairs, precision, certificate = None, NO_PAIRS, "fp64", None
    with calculation.clock("pair_energies"):
        if options.correlation.kind in ("laplace", "rpa"):
            quadrature = integrate(calculation, spaces, fitted)
        elif options.correlation.kind == "pairs":
            listener.stage("pair energies")
            operands = PairOperands(
                b=fitted.b,
                spaces=spaces,
                stream_bytes=calculation.plan.memory.tensor_bytes,
                threads=setup.active,
            )
            pairs, precision, certificate = pair_energies_to_tolerance(
                operands,
                setup.pair_backend,
                setup.pair_backend.limits.settled(options.precision),
                options.tolerance,
                listener,
                store=calculation.checkpoint,
                elsewhere=elsewhere,
            )
    return Correlation(
        metric=fitted.metric,
        pairs=pairs,
        precision=precision,
        certificate=certificate,
        quadrature=quadrature,
    )


def complete(calculation: Calculation, reference: Reference, correlation: Correlation) -> MP2Result:
    """The result: the energies with the check and certificates that were requested."""
    system, setup, options = calculation.system, calculation.setup, calculation.options
    listener, pairs, quadrature = calculation.listener, correlation.pairs, correlation.quadrature
    check = None
    if options.pair_check:
        from dfmp2.mp2.check import allowed_difference, native_check, native_energies

        listener.stage("check: PySCF's own DF-MP2 on the same orbitals")
        data = fitting_data(system.molecule, system.mp2_fitting)
        frozen = calculation.core.orbitals, options.frozen_virtual
        theirs = native_energies(
            system.mole, reference, data, *frozen, held=calculation.plan.memory.check_bytes
        )
        allowed = allowed_difference(correlation.certificate, correlation.precision)
        check = native_check(reference, pairs, theirs, allowed)

    fitting_certificate = None
    if options.certify_fit:
        from dfmp2.mp2.fitting_certificate import certify_fit

        with calculation.clock("fitting_certificate"):
            fitting_certificate = certify_fit(calculation, reference, pairs, build_b)

    of_grid = None
    of_rpa = options.correlation.kind == "rpa"
    if quadrature is not None and of_rpa and reference.grid_error is not None:
        from dfmp2.mp2 import rpa

        of_grid = rpa.grid_certificate(calculation, reference, quadrature, build_b)

    made = {}
    if options.transform == "device" and setup.backend.limits.fits:
        made = {"on the device": "J and K, transformation and fit, pair energies"}
    elif options.transform == "device":
        made = {"transformation": "device: asked for with --transform device"}
    return MP2Result(
        **calculated(calculation, reference, correlation.metric, listener.warnings, made),
        pairs=pairs,
        backend=setup.backend.name,
        backend_reason=setup.backend_reason,
        precision=correlation.precision,
        certificate=correlation.certificate,
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
    made : facts about the backend beyond its own description
    """
    system = calculation.system
    setup = calculation.setup
    spaces = calculation.spaces(reference)
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
    method = calculation.options.correlation
    tolerance = calculation.options.tolerance
    listener = calculation.listener
    how = calculation.plan.memory.tensor_bytes, calculation.setup.active, listener
    listener.stage(f"{method.title} by quadrature")
    if method.kind == "laplace":
        from dfmp2.mp2 import laplace

        return laplace.opposite_spin_energy(fitted.b, spaces, method.opposite_spin, tolerance, *how)
    from dfmp2.mp2 import rpa

    return rpa.correlation_energy(fitted.b, spaces, tolerance, *how)
