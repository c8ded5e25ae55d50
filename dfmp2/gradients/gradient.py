"""The gradient of the DF-MP2 energy of a molecule: the equations and the code that follows them.

    E^x = E_nuc^x + sum_mn (D + P)_mn h^x_mn - sum_mn (W_HF + W)_mn S^x_mn                                          (1)
          + [ (D/2 + P) with D: Coulomb - exchange ]^x                      JK fitting set, or four-centre           (2)
          + [ E_xc + P V_xc ]^x                                             integration grid, Kohn-Sham alone
          + 2 sum_s sum_iaQ Z_iaQ (ia|Q)^x - sum_PQ g_PQ (P|Q)^x            RI fitting set                           (3)

D and W_HF are the densities of Hartree-Fock (W_HF = sum_i e_i C_i C_i^T), Z and g the three- and
two-index densities of the correlation energy, P and W its relaxed and its energy-weighted density.
(ia|Q)^x is the derivative of the integrals over basis functions; that of the orbitals is contained
in P and W:

    amplitudes -> Y, P of correlated orbitals      `amplitudes`
    Y -> Z, g, T                                   `correlation`     Eq. 3
    T -> P, W: Z-vector equations                  `response`
    D, P -> Eq. 2                                  `mean_field`, `derivatives`

It is the gradient of the energy that `dfmp2.mp2.energy` computes, with the same fitting sets,
frozen orbitals and spin-component factors. For a double hybrid, Eq. 2 has the exact exchange of its
functionals, which may be range-separated, and the quadrature (`functional`) and the dispersion
correction are added. Sources: Weigend and Haeser, Theor. Chem. Acc. 97,
331 (1997); DiStasio, Steele, Rhee, Shao, Head-Gordon, J. Comput. Chem. 28, 839 (2007).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple, Unpack, cast

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import InputError, Option
from dfmp2.gradients import certificate as checks
from dfmp2.gradients import density, derivatives
from dfmp2.gradients.amplitudes import amplitude_densities
from dfmp2.gradients.correlation import CorrelationPart, correlation_part
from dfmp2.gradients.density import properties
from dfmp2.gradients.functional import Functionals, functional_gradient, gradient_functionals
from dfmp2.gradients.mean_field import mean_field_gradient
from dfmp2.gradients.response import (
    FockBuilder,
    Orbitals,
    Relaxed,
    convergence_error,
    fock_matrices,
    relax,
)
from dfmp2.gradients.result import GradientResult
from dfmp2.host import resources
from dfmp2.host.arrays_on_disk import ScratchTensor
from dfmp2.host.provenance import Memory
from dfmp2.host.scratch import Room
from dfmp2.integrals.metric import InverseMetric
from dfmp2.integrals.three_center import coulomb_metric
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.mp2.calculation import (
    NOTHING,
    Calculation,
    CalculationKeywords,
    Checkpoint,
    Opening,
    open_calculation,
    storage_of,
    timings_of,
)
from dfmp2.mp2.dispersion import dispersion_gradient
from dfmp2.mp2.energy import (
    complete,
    converged_reference,
    correlate,
    fitted_integrals,
    mp2_energy,
)
from dfmp2.mp2.properties import Gradient, Polarizability, Properties
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.combinations import require_energy_check
from dfmp2.planning.gradient import gradient_seconds
from dfmp2.planning.plan import settle_plan
from dfmp2.planning.system import resolve
from dfmp2.progress import Listener, Silent
from dfmp2.scf import hamiltonian
from dfmp2.scf.hartree_fock import reference_kind
from dfmp2.scf.integrals import ScfIntegrals, release_integrals
from dfmp2.scf.ladder import uses_single
from dfmp2.scf.reference import Reference, StartOrbitals
from dfmp2.scf.rotations import fitting_object, free_rotations


def mp2_gradient(
    molecule: Molecule,
    options: Options,
    *,
    separate: bool = False,
    **how: Unpack[CalculationKeywords],
) -> GradientResult:
    """Energy, gradient and relaxed densities of one molecule.

    They belong to the requested method; kappa-MP2 and ROHF have none. Amplitudes have the precision
    of the pair energies.

    Parameters
    ----------
    molecule, options : what to compute and how; options.check also compares the gradient along one
        direction with energies
    separate : also return the gradient of the SCF energy alone
    how : as in `dfmp2.mp2.energy.mp2_energy`; a checkpoint covers only the energy

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`
    """
    asked: CalculationKeywords = {"command": "dfmp2.gradient", **how}
    return GradientResult(
        _with_densities(molecule, options, _Extent(gradient=True, separate=separate), **asked)
    )


def mp2_properties(
    molecule: Molecule,
    options: Options,
    **how: Unpack[CalculationKeywords],
) -> MP2Result:
    """Energy and relaxed densities of one molecule without its gradient: no derivatives of
    integrals.

    Parameters and errors as in `mp2_gradient`. It sets the fields `properties` and
    `gradient_certificate` of the result, and with options.polarizability also that field.
    """
    return _with_densities(molecule, options, _Extent(), **how)


def certified_gradient(
    molecule: Molecule,
    options: Options,
    *,
    doubt_units: bool = True,
    **how: Unpack[CalculationKeywords],
) -> MP2Result:
    """The result of `mp2_gradient` after requiring its certificate; for studies and batches.

    Parameters
    ----------
    molecule : Molecule
        What to compute.
    options : Options
        How to compute it.
    doubt_units : bool
        Unused; energies have it.
    **how
        As in `mp2_gradient`.

    Raises
    ------
    ComparisonFailed
        The certificate of the gradient fails.
    Dfmp2Error
        As in `mp2_gradient`.
    """
    return mp2_gradient(molecule, options, **how).result.require_certified()


def certified_properties(
    molecule: Molecule, options: Options, **how: Unpack[CalculationKeywords]
) -> MP2Result:
    """The result of `mp2_properties` after requiring its certificates; parameters and errors as in
    `certified_gradient`."""
    return mp2_properties(molecule, options, **how).require_certified()


def require_gradient(molecule: Molecule, options: Options, *, separate: bool = False) -> None:
    """Raise for a calculation that has no gradient, or with `separate` none of the SCF alone.

    Raises
    ------
    InputError
        Gradients are not available for the method, the reference or the device.
    """
    options = options.settled(molecule.multiplicity)
    if options.transform == "device":
        raise InputError(
            Option("transform", "device"),
            " makes B on the device, and relaxed densities need it on the host: leave it out",
        )
    if options.solvent is not None:
        raise InputError(
            Option("solvent", options.solvent),
            " has no gradient or relaxed density: they need the response of the reaction field. "
            "Compute them in the gas phase and the energy in the solvent afterwards, or use "
            "energies of displaced molecules (scan, ASE with displacement=)",
        )
    if not options.correlation.differentiable:
        raise InputError(
            Option("method", options.method),
            " has no gradient or relaxed density: use ",
            Option("method", "mp2"),
            " (also with scaled components), a double hybrid such as ",
            Option("method", "b2plyp"),
            ", or energies of displaced molecules (scan, ASE with displacement=)",
        )
    if reference_kind(options, molecule.multiplicity) == "rohf":
        raise InputError(
            Option("reference", "rohf"),
            " has no gradient or relaxed density: use ",
            Option("reference", "uhf"),
        )
    if separate and options.correlation.double_hybrid and options.correlation.kind != "none":
        raise InputError(
            Option("method", options.method),
            " has a gradient that cannot be extrapolated, since its functional is not what the "
            "orbitals make stationary: use one basis set, or ",
            Option("method", "mp2"),
        )


class _Extent(NamedTuple):
    """What else to compute with energy and densities; `field`, `separate` as in `Calculation`."""

    gradient: bool = False
    field: Array | None = None
    separate: bool = False


def _with_densities(
    molecule: Molecule,
    options: Options,
    extent: _Extent,
    *,
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.run",
    checkpoint: Checkpoint = NOTHING,
) -> MP2Result:
    """The result with its densities, and whatever else was requested."""
    options = options.settled(molecule.multiplicity)
    require_gradient(molecule, options, separate=extent.separate)
    kind = reference_kind(options, molecule.multiplicity)
    if extent.gradient:
        task = "gradient"
    else:
        require_energy_check(options)
        task = "properties"
    with open_calculation(
        options,
        kind,
        Opening(partial(resolve, molecule), partial(settle_plan, task=task)),
        start=start,
        listener=listener,
        command=command,
        checkpoint=checkpoint,
    ) as calculation:
        calculation = replace(calculation, field=extent.field, separate=extent.separate)
        kept = list[Any]()
        finish: Callable[[Any], None]
        if calculation.plan.memory.gradient.scf_kept:
            finish = partial(_keep, kept=kept)
        else:
            finish = release_integrals
        reference = converged_reference(calculation, start, finish)
        result = gradient_on_reference(calculation, reference, kept)
    if options.polarizability:
        result = replace(
            result, polarizability=_polarizability(result, calculation.listener, command)
        )
    return result


def _polarizability(result: MP2Result, listener: Listener, command: str) -> Polarizability:
    """The polarizability of a result, from runs in fields that start from its orbitals."""
    start = result.reference.as_start("the reference")
    how: CalculationKeywords = {"start": start, "listener": Silent(), "command": command}
    molecule, options = result.molecule, density.options_in_fields(result)
    return density.in_fields(
        cast(Properties, result.properties).relaxed_dipole,
        lambda: mp2_energy(molecule, options, **how, doubt_units=False),
        lambda field: _with_densities(molecule, options, _Extent(field=field), **how),
        listener,
    )


def gradient_on_reference(
    calculation: Calculation, reference: Reference, kept: list[Any]
) -> MP2Result:
    """Energy and densities on a converged reference, and the gradient if it was planned.

    Parameters
    ----------
    kept : list
        As in `differentiate`.

    Raises
    ------
    Dfmp2Error
        As in `mp2_gradient`.
    """
    if calculation.plan.work.task == "gradient":
        reference.require_complete()
    reference, fitted = fitted_integrals(calculation, reference)
    correlation = correlate(calculation, reference, fitted)
    result = complete(calculation, reference, correlation)
    return differentiate(calculation, result, fitted.b, kept)


def _keep(mf: Any, kept: list[Any]) -> None:
    """Keep the fitted SCF integrals of a mean field, if it has any, for the response."""
    fitted = fitting_object(mf)
    if fitted is not None:
        kept.append(fitted)


def differentiate(
    calculation: Calculation,
    result: MP2Result,
    b: list[Any],
    kept: list[Any],
) -> MP2Result:
    """The densities of an energy while its B exists, and the gradient if it was planned.

    Parameters
    ----------
    b : list
        (nocc, nvir, naux) float64 per spin, Eh^1/2, in memory or on disk; emptied.
    kept : list
        The SCF's builder of J and K with its integrals, if kept; emptied.
    """
    system, options, listener = calculation.system, calculation.options, calculation.listener
    gradient = None
    sphere_torque = np.zeros(3)
    with calculation.clock("gradient"):
        begin = time.perf_counter()
        spins = orbitals(calculation, result.reference)
        correlation, unrelaxed = _correlation(calculation, result, spins, b)
        functionals = gradient_functionals(system.mole, result.reference)
        relaxed, residual, left = _response(
            calculation, spins, unrelaxed, correlation, kept, functionals
        )
        resources.return_memory()
        _tell(calculation, 3)
        if correlation.gradient is not None:
            total, on_charges, sphere_torque = _total_gradient(
                calculation, spins, relaxed, correlation.gradient, functionals
            )
            of_scf = None
            if calculation.separate:
                of_scf = _scf_gradient(calculation, spins, total)
            gradient = Gradient(
                mp2_total_gradient=total,
                scaling=options.correlation.title,
                opposite_spin_factor=options.correlation.opposite_spin,
                same_spin_factor=options.correlation.same_spin,
                seconds=time.perf_counter() - begin,
                point_charge_gradient=on_charges,
                scf_total_gradient=of_scf,
            )
    densities = properties(system.mole, spins, relaxed)
    certificate = checks.certify_gradient(
        system, result, gradient, densities, correlation, residual, left, sphere_torque
    )
    peak = max(result.memory.measured_peak, resources.peak_resident_memory())
    storage = storage_of(calculation)
    if options.check and gradient is not None:
        certificate = checks.with_slope(
            certificate, system.molecule, options, result.reference, gradient, listener
        )
    return replace(
        result,
        memory=Memory(result.memory.budget, calculation.plan.memory.predicted_peak, peak),
        storage=storage,
        timings=timings_of(calculation.clock),
        diagnostics=replace(result.diagnostics, warnings=tuple(listener.warnings)),
        gradient=gradient,
        gradient_certificate=certificate,
        properties=densities,
    )


def _total_gradient(
    calculation: Calculation,
    spins: list[Orbitals],
    relaxed: list[Relaxed],
    of_correlation: Array,
    functionals: Functionals | None,
) -> tuple[Array, Array | None, Array]:
    """Gradient of the method on the atoms, (natom, 3), and on the point charges, (n, 3) Eh/bohr,
    and the torque on the spheres of the integration grid, (3,) Eh.

    Parameters
    ----------
    of_correlation : array
        Eq. 3, (natom, 3).
    """
    mole, listener = calculation.system.mole, calculation.listener
    listener.stage("derivatives of the mean field")
    on_atoms, on_charges = mean_field_gradient(calculation, spins, relaxed, functionals)
    torque = np.zeros(3)
    if functionals is not None:
        listener.stage("derivatives of the functional")
        of_functional, torque = functional_gradient(
            mole,
            functionals.grid,
            (functionals.energy, functionals.scf),
            [o.density for o in spins],
            [o.in_functions(p.relaxed) for o, p in zip(spins, relaxed, strict=True)],
            calculation.setup.active,
        )
        on_atoms += of_functional
    correction = calculation.options.dispersion_correction
    if correction is not None:
        on_atoms += dispersion_gradient(calculation.system.molecule, *correction)
    return on_atoms + of_correlation, on_charges, torque


def _scf_gradient(calculation: Calculation, spins: list[Orbitals], total: Array) -> Array:
    """The gradient of the SCF energy, (natom, 3) Eh/bohr: Eqs. 1 and 2 without P and W.

    Parameters
    ----------
    total : array
        Gradient of the method, which equals that of the SCF if there is no correlation energy.
    """
    if calculation.options.correlation.kind == "none":
        return total
    relaxed = [Relaxed(o.zeros, o.zeros, o.zeros) for o in spins]
    return mean_field_gradient(calculation, spins, relaxed, None)[0]


def _tell(calculation: Calculation, done: int) -> None:
    """Report the predicted share of the time that has passed after `done` stages of
    `GradientTimes`."""
    plan = calculation.plan
    times = gradient_seconds(plan.work, plan.rates, plan.memory.gradient)
    expected = list(asdict(times).values())
    calculation.listener.step(round(100 * sum(expected[:done]) / sum(expected)), 100, "gradient, %")


def _correlation(
    calculation: Calculation,
    result: MP2Result,
    spins: list[Orbitals],
    b: list[Any],
) -> tuple[CorrelationPart, list[Array]]:
    """Eq. 3, the driving terms of the response, and P of correlated orbitals, (nmo, nmo) per
    spin; all zero without correlation energy."""
    system, options, threads = calculation.system, calculation.options, calculation.setup.active
    mole, auxmole = system.mole, system.auxmole
    spaces = calculation.spaces(result.reference)
    with_gradient = calculation.plan.work.task == "gradient"
    if options.correlation.kind == "none":
        part = CorrelationPart(
            gradient=np.zeros((mole.natm, 3)) if with_gradient else None,
            occupied=[np.zeros_like(space.c_occ) for space in spaces],
            virtual=[np.zeros_like(space.c_vir) for space in spaces],
            three_center=0.0,
            two_center=0.0,
        )
        return part, [o.zeros for o in spins]
    calculation.listener.stage("amplitudes and their densities")
    _tell(calculation, 0)
    inverse = InverseMetric(coulomb_metric(auxmole), threads)
    memory = calculation.plan.memory.gradient
    ranges = derivatives.blocks(mole, auxmole, memory.packed_bytes)
    where = calculation.space if memory.z_on_disk else None
    z = [
        ScratchTensor((s.nocc, s.nvir, len(inverse.metric)), ranges, where, f"z-{k}")
        for k, s in enumerate(spaces)
    ]
    amplitudes = amplitude_densities(
        b, spaces, options.correlation, inverse, z, threads, single=result.precision == "mixed"
    )
    b.clear()
    resources.return_memory()
    _tell(calculation, 1)
    what = "derivatives" if with_gradient else "densities"
    calculation.listener.stage(f"{what} of the fitted integrals")
    part = correlation_part(
        mole,
        auxmole,
        spaces,
        amplitudes,
        inverse,
        memory.packed_bytes,
        threads,
        with_gradient=with_gradient,
    )
    for tensor in z:
        tensor.discard()
    resources.return_memory()
    _tell(calculation, 2)
    return part, [
        o.embedded(*blocks)
        for o, *blocks in zip(spins, amplitudes.occupied, amplitudes.virtual, strict=True)
    ]


def orbitals(calculation: Calculation, reference: Reference) -> list[Orbitals]:
    """The orbitals of each spin and which of them are correlated."""
    return [
        Orbitals.of_space(*spin)
        for spin in zip(
            reference.mo_coeff,
            reference.mo_energy,
            reference.mo_occ,
            calculation.spaces(reference),
            strict=True,
        )
    ]


def _response(
    calculation: Calculation,
    spins: list[Orbitals],
    unrelaxed: list[Array],
    correlation: CorrelationPart,
    kept: list[Any],
    functionals: Functionals | None,
) -> tuple[list[Relaxed], float, float]:
    """P and W of each spin, the residual of the Z-vector equations, and the error of E(corr) from
    an SCF that stopped early, Eh."""
    if calculation.options.correlation.kind == "none":
        while kept:  # SCF integrals for the response
            kept.pop().discard()
        return [Relaxed(p, p, p) for p in unrelaxed], 0.0, 0.0
    calculation.listener.stage("Z-vector equations")
    mole, threads = calculation.system.mole, calculation.setup.active
    memory = calculation.plan.memory.gradient
    occupied = [o.coeff.T @ t for o, t in zip(spins, correlation.occupied, strict=True)]
    virtual = [o.coeff.T @ t for o, t in zip(spins, correlation.virtual, strict=True)]
    with shielded():
        mf = _builder(calculation, kept.pop() if kept else None)
        try:
            core = hamiltonian.mean_field(
                mole,
                calculation.kind,
                calculation.options.relativity,
                calculation.system.molecule.point_charges,
                field=calculation.field,
            ).get_hcore()
            builder = FockBuilder(
                mf=mf,
                single=uses_single(calculation.options.precision, int(mole.nao)),
                held=memory.response_held,
            )
            potential = None
            energy_fock = None
            if functionals is not None:
                c_occ = [np.ascontiguousarray(o.coeff[:, : o.occupied]) for o in spins]
                kernel, quick = functionals.kernels(mole, c_occ, threads, memory.kernel_values)
                builder = replace(
                    builder, exact=functionals.scf_exact, kernel=kernel, quick_kernel=quick
                )
                potential = functionals.potential(mole, functionals.scf, c_occ, threads)
                if not functionals.stationary:
                    of_energy = functionals.potential(mole, functionals.energy, c_occ, threads)
                    fock = fock_matrices(mf, core, spins, functionals.energy_exact, of_energy)
                    energy_fock = [
                        o.coeff.T @ one @ o.coeff for o, one in zip(spins, fock, strict=True)
                    ]
            relaxed, residual = relax(
                builder,
                spins,
                unrelaxed,
                occupied,
                virtual,
                calculation.listener,
                energy_fock,
                free_rotations(mole, lambda: core, spins[0].coeff, [o.rotations for o in spins]),
            )
            fock = fock_matrices(mf, core, spins, builder.exact, potential)
            return relaxed, residual, convergence_error(fock, spins, relaxed)
        finally:
            release_integrals(mf)


def _builder(calculation: Calculation, fitted: Any) -> Any:
    """A PySCF mean field with our Coulomb and exchange matrices, as in the SCF; `fitted` holds
    their integrals, or is None."""
    memory = calculation.plan.memory.gradient
    mf = hamiltonian.mean_field(calculation.system.mole, calculation.kind, "none", None)
    if fitted is not None:
        return mf.density_fit(with_df=fitted)
    integrals = ScfIntegrals(
        auxmole=calculation.system.jk_auxmole,
        place="disk" if memory.scf_on_disk else "memory",
        threads=calculation.setup.active,
        room=Room(calculation.space, memory.pair_bytes, memory.read_bytes),
    )
    return integrals.attach(mf)
