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
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack, cast

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import Command, InputError, NumericalError, Option, ResultFileError
from dfmp2.gradients import certificate as checks
from dfmp2.gradients import density, derivatives
from dfmp2.gradients.amplitudes import amplitude_densities
from dfmp2.gradients.correlation import CorrelationPart, correlation_part
from dfmp2.gradients.density import properties
from dfmp2.gradients.functional import Functionals, functional_gradient, gradient_functionals
from dfmp2.gradients.mean_field import mean_field_part
from dfmp2.gradients.response import (
    FockBuilder,
    Orbitals,
    Relaxed,
    convergence_error,
    fock_matrices,
    relax,
)
from dfmp2.host import resources
from dfmp2.host.arrays_on_disk import ScratchTensor
from dfmp2.host.deferred import presentation
from dfmp2.host.scratch import Room
from dfmp2.integrals.metric import InverseMetric
from dfmp2.integrals.spaces import ActiveSpace
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
from dfmp2.mp2.properties import Gradient, GradientCertificate, Polarizability, Properties
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.combinations import require_energy_check
from dfmp2.planning.memory import GradientMemory, Memory
from dfmp2.planning.plan import settle_plan
from dfmp2.planning.system import resolve
from dfmp2.planning.time import gradient_seconds
from dfmp2.progress import Listener, Silent
from dfmp2.scf import hamiltonian
from dfmp2.scf.functional_kernel import FunctionalKernel, coarse_grid
from dfmp2.scf.hartree_fock import reference_kind
from dfmp2.scf.integrals import jk_builder, release_integrals, reproducible
from dfmp2.scf.kohn_sham import HARTREE_FOCK
from dfmp2.scf.ladder import uses_single
from dfmp2.scf.reference import Reference, StartOrbitals
from dfmp2.scf.rotations import fitting_object

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class GradientResult:
    """A finished gradient: the result of the energy, in which it is stored.

    Attributes
    ----------
    result : with its fields `gradient`, `gradient_certificate` and `properties`

    Raises
    ------
    ResultFileError : by the properties, if the result is only an energy
    """

    result: MP2Result

    @property
    def gradient(self) -> Array:
        """(natom, 3) float64, Eh/bohr."""
        return self._stored(self.result.gradient).total_gradient

    @property
    def point_charge_gradient(self) -> Array | None:
        """(n, 3) float64, Eh/bohr, None without point charges."""
        return self._stored(self.result.gradient).point_charge_gradient

    @property
    def properties(self) -> Properties:
        """Densities, dipole moments, natural occupations."""
        return self._stored(self.result.properties)

    @property
    def certificate(self) -> GradientCertificate:
        """The consistency checks of the gradient."""
        return self._stored(self.result.gradient_certificate)

    def to_dataframe(self) -> Any:
        """Atoms and their gradient, Eh/bohr, as a pandas DataFrame; units are in `attrs["units"]`.

        Raises
        ------
        InputError
            pandas is not installed.
        """
        columns = {
            "symbol": self.result.molecule.labels,
            **dict(zip("xyz", self.gradient.T, strict=True)),
        }
        return presentation().frame(columns, dict.fromkeys("xyz", "hartree/bohr"))

    def __repr__(self) -> str:
        gradient = self.result.gradient
        if gradient is None:
            norm = "no gradient"
        else:
            norm = f"|gradient| = {gradient.norm:.8f} Eh/bohr"
        return f"GradientResult({norm}, {self.result!r})"

    def __str__(self) -> str:
        return str(self.result)

    def _repr_html_(self) -> str:
        return self.result._repr_html_()

    def _stored(self, part: Part | None) -> Part:
        if part is None:
            raise ResultFileError(
                (
                    f"the result of {self.result.molecule.name} is an energy without its gradient: "
                    "compute it with "
                ),
                Command("gradient"),
                ", or again",
            )
        return part


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


def require_gradient(molecule: Molecule, options: Options) -> None:
    """Raise for a calculation that has no gradient.

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
    require_gradient(molecule, options)
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
    reference = result.reference
    asked = (result.molecule, density.options_in_fields(result))
    start = StartOrbitals(
        mo_coeff=reference.mo_coeff, mo_occ=reference.mo_occ, charges=None, origin="the reference"
    )
    how: dict[str, Any] = {"start": start, "listener": Silent(), "command": command}
    return density.in_fields(
        cast(Properties, result.properties).relaxed_dipole,
        lambda: mp2_energy(*asked, **how, doubt_units=False),
        lambda field: _with_densities(*asked, _Extent(field=field), **how),
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
    memory = calculation.plan.memory.gradient
    if calculation.plan.work.task == "gradient":
        _require_complete(reference)
    reference, fitted = fitted_integrals(calculation, reference)
    correlation = correlate(calculation, reference, fitted)
    return differentiate(
        calculation, complete(calculation, reference, correlation), fitted.b, kept, memory
    )


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
    memory: GradientMemory,
) -> MP2Result:
    """The densities of an energy while its B exists, and the gradient if it was planned.

    Parameters
    ----------
    b : list
        (nocc, nvir, naux) float64 per spin, Eh^1/2, in memory or on disk; emptied.
    kept : list
        The SCF's builder of J and K with its integrals, if kept; emptied.
    memory : GradientMemory
        Which arrays are in memory.
    """
    system, options, listener = calculation.system, calculation.options, calculation.listener
    mole, reference, gradient = system.mole, result.reference, None
    begin = time.perf_counter()
    with calculation.clock("gradient"):
        spaces = calculation.spaces(reference)
        spins = orbitals(calculation, reference)
        sphere_torque = np.zeros(3)
        single = result.precision == "mixed"
        if options.correlation.kind == "none":
            correlation, unrelaxed = _no_correlation(calculation, spaces, spins)
        else:
            # Eq. 3
            correlation, unrelaxed = _correlation(
                calculation, spaces, spins, b, memory, single=single
            )
        functionals = gradient_functionals(mole, reference)
        if options.correlation.kind == "none":
            relaxed = [Relaxed(p, p, p) for p in unrelaxed]
            residual = left = 0.0
            while kept:  # SCF integrals for the response
                kept.pop().discard()
        else:
            listener.stage("Z-vector equations")
            relaxed, residual, left = _response(
                calculation, spins, unrelaxed, correlation, kept, memory, functionals
            )
        resources.return_memory()
        _tell(calculation, memory, 3)
        if correlation.gradient is not None:
            listener.stage("derivatives of the mean field")
            # Eqs. 1 and 2
            on_atoms, on_charges = _assemble(calculation, spins, relaxed, memory, functionals)
            if functionals is not None:
                listener.stage("derivatives of the functional")
                of_functional, sphere_torque = functional_gradient(
                    mole,
                    functionals.grid,
                    (functionals.energy, functionals.scf),
                    [o.density for o in spins],
                    [o.in_functions(p.relaxed) for o, p in zip(spins, relaxed, strict=True)],
                    calculation.setup.active,
                )
                on_atoms += of_functional
            correction = options.dispersion_correction
            if correction is not None:
                on_atoms += dispersion_gradient(system.molecule, *correction)
            total = on_atoms + correlation.gradient
            of_scf = None
            if calculation.separate:
                of_scf = _scf_gradient(calculation, spins, memory, total)
            scaling = options.correlation
            gradient = Gradient(
                mp2_total_gradient=total,
                scaling=scaling.title,
                opposite_spin_factor=scaling.opposite_spin,
                same_spin_factor=scaling.same_spin,
                seconds=time.perf_counter() - begin,
                point_charge_gradient=on_charges,
                scf_total_gradient=of_scf,
            )
    densities = properties(mole, spins, relaxed)
    proof = checks.certify_gradient(
        system, result, gradient, densities, correlation, residual, left, sphere_torque
    )
    peak = Memory(
        result.memory.budget,
        calculation.plan.memory.predicted_peak,
        max(result.memory.measured_peak, resources.peak_resident_memory()),
    )
    storage = storage_of(calculation)
    if options.check and gradient is not None:
        proof = checks.with_slope(proof, system.molecule, options, reference, gradient, listener)
    result = replace(
        result,
        memory=peak,
        storage=storage,
        timings=timings_of(calculation.clock),
        diagnostics=replace(result.diagnostics, warnings=tuple(listener.warnings)),
    )
    return replace(result, gradient=gradient, gradient_certificate=proof, properties=densities)


def _scf_gradient(
    calculation: Calculation, spins: list[Orbitals], memory: GradientMemory, total: Array
) -> Array:
    """The gradient of the SCF energy, (natom, 3) Eh/bohr: Eqs. 1 and 2 without P and W.

    Parameters
    ----------
    total : array
        Gradient of the method, which equals that of the SCF if there is no correlation energy.

    Raises
    ------
    InputError
        The method is a double hybrid.
    """
    correlation = calculation.options.correlation
    if correlation.kind == "none":
        return total
    if correlation.double_hybrid:
        raise InputError(
            Option("method", calculation.options.method),
            " has a gradient that cannot be extrapolated, since its functional is not what the "
            "orbitals make stationary: use one basis set, or ",
            Option("method", "mp2"),
        )
    nothing = [np.zeros_like(o.energy) for o in spins]
    unrelaxed = [np.diag(zero) for zero in nothing]
    return _assemble(calculation, spins, [Relaxed(p, p, p) for p in unrelaxed], memory, None)[0]


def _tell(calculation: Calculation, memory: GradientMemory, done: int) -> None:
    """Report the predicted share of the time that has passed after `done` stages of
    `GradientTimes`."""
    expected = list(
        asdict(gradient_seconds(calculation.plan.work, calculation.plan.rates, memory)).values()
    )
    calculation.listener.step(round(100 * sum(expected[:done]) / sum(expected)), 100, "gradient, %")


def _correlation(
    calculation: Calculation,
    spaces: list[ActiveSpace],
    spins: list[Orbitals],
    b: list[Any],
    memory: GradientMemory,
    *,
    single: bool,
) -> tuple[CorrelationPart, list[Array]]:
    """Eq. 3, the driving terms of the response, and P of correlated orbitals, (nmo, nmo) per
    spin."""
    system, options, threads = calculation.system, calculation.options, calculation.setup.active
    mole, auxmole = system.mole, system.auxmole
    calculation.listener.stage("amplitudes and their densities")
    _tell(calculation, memory, 0)
    metric = coulomb_metric(auxmole)
    inverse = InverseMetric(metric, threads)
    with_gradient = calculation.plan.work.task == "gradient"
    ranges = derivatives.blocks(mole, auxmole, memory.packed_bytes)
    where = calculation.space if memory.z_on_disk else None
    z = [
        ScratchTensor((s.nocc, s.nvir, len(metric)), ranges, where, f"z-{k}")
        for k, s in enumerate(spaces)
    ]
    amplitudes = amplitude_densities(
        b, spaces, options.correlation, inverse, z, threads, single=single
    )
    b.clear()
    resources.return_memory()
    _tell(calculation, memory, 1)
    calculation.listener.stage(
        f"{'derivatives' if with_gradient else 'densities'} of the fitted integrals"
    )
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
    _tell(calculation, memory, 2)
    return part, [
        _placed(*each) for each in zip(spins, amplitudes.occupied, amplitudes.virtual, strict=True)
    ]


def _no_correlation(
    calculation: Calculation, spaces: list[ActiveSpace], spins: list[Orbitals]
) -> tuple[CorrelationPart, list[Array]]:
    """The same without correlation energy: zeros."""
    gradient = None
    if calculation.plan.work.task == "gradient":
        gradient = np.zeros((calculation.system.mole.natm, 3))
    part = CorrelationPart(
        gradient=gradient,
        occupied=[np.zeros_like(space.c_occ) for space in spaces],
        virtual=[np.zeros_like(space.c_vir) for space in spaces],
        three_center=0.0,
        two_center=0.0,
    )
    return part, [np.zeros((len(o.energy),) * 2) for o in spins]


def orbitals(calculation: Calculation, reference: Reference) -> list[Orbitals]:
    """The orbitals of each spin and which of them are correlated."""
    of_spins = []
    for coeff, energy, occ, space in zip(
        reference.mo_coeff,
        reference.mo_energy,
        reference.mo_occ,
        calculation.spaces(reference),
        strict=True,
    ):
        occupied = int(np.count_nonzero(occ))
        core = occupied - space.nocc
        of_spins.append(
            Orbitals(
                coeff=coeff,
                energy=energy,
                core=core,
                nocc=space.nocc,
                nvir=space.nvir,
                virtual=len(occ) - occupied - space.nvir,
            )
        )
    return of_spins


def _require_complete(reference: Reference) -> None:
    """Raise unless the orbitals span the basis: the response of missing orbitals is unknown."""
    _, nao, nmo = reference.mo_coeff.shape
    if nmo < nao:
        raise NumericalError(
            (
                f"{nao - nmo} of {nao} basis functions were dropped because they are linearly "
                "dependent: the energy has no gradient where their number may change; use a "
                "smaller "
            ),
            Option("basis"),
        )


def _placed(o: Orbitals, occupied: Array, virtual: Array) -> Array:
    """P of correlated orbitals, embedded in all orbitals, (nmo, nmo)."""
    p = np.zeros((len(o.energy),) * 2)
    p[o.core : o.occupied, o.core : o.occupied] = occupied
    p[o.occupied : o.last, o.occupied : o.last] = virtual
    return p


def _response(
    calculation: Calculation,
    spins: list[Orbitals],
    unrelaxed: list[Array],
    correlation: CorrelationPart,
    kept: list[Any],
    memory: GradientMemory,
    functionals: Functionals | None,
) -> tuple[list[Relaxed], float, float]:
    """P and W of each spin, the residual of the Z-vector equations, and the error of E(corr) from
    an SCF that stopped early, Eh."""
    occupied = [o.coeff.T @ t for o, t in zip(spins, correlation.occupied, strict=True)]
    virtual = [o.coeff.T @ t for o, t in zip(spins, correlation.virtual, strict=True)]
    with shielded():
        mf = _builder(calculation, kept.pop() if kept else None, memory)
        try:
            core = hamiltonian.mean_field(
                calculation.system.mole,
                calculation.kind,
                calculation.options.relativity,
                calculation.system.molecule.point_charges,
                field=calculation.field,
            ).get_hcore()
            builder = FockBuilder(mf)
            potential = None
            energy_fock = None
            if functionals is not None:
                mole = calculation.system.mole
                orbitals = [np.ascontiguousarray(o.coeff[:, : o.occupied]) for o in spins]
                threads = calculation.setup.active
                kernel = FunctionalKernel(
                    mole, functionals.scf, functionals.grid, orbitals, threads
                )
                quick, coarse = kernel, coarse_grid(mole, functionals.grid)
                if coarse is not functionals.grid:
                    quick = FunctionalKernel(
                        mole,
                        functionals.scf,
                        coarse,
                        orbitals,
                        threads,
                        single=True,
                        room=memory.kernel_values,
                    )
                builder = FockBuilder(
                    mf=mf, exact=functionals.scf_exact, kernel=kernel, quick_kernel=quick
                )
                potential = functionals.potential(mole, functionals.scf, orbitals, threads)
                if not functionals.stationary:
                    fock = fock_matrices(
                        mf,
                        core,
                        spins,
                        functionals.energy_exact,
                        functionals.potential(mole, functionals.energy, orbitals, threads),
                    )
                    energy_fock = [
                        o.coeff.T @ one @ o.coeff for o, one in zip(spins, fock, strict=True)
                    ]
            single = uses_single(calculation.options.precision, int(calculation.system.mole.nao))
            builder = replace(builder, single=single, held=memory.response_held)
            relaxed, residual = relax(
                builder, spins, unrelaxed, occupied, virtual, calculation.listener, energy_fock
            )
            fock = fock_matrices(mf, core, spins, builder.exact, potential)
            return relaxed, residual, convergence_error(fock, spins, relaxed)
        finally:
            release_integrals(mf)


def _builder(calculation: Calculation, fitted: Any, memory: GradientMemory) -> Any:
    """A PySCF mean field with our Coulomb and exchange matrices, as in the SCF; `fitted` holds
    their integrals, or is None."""
    system, threads = calculation.system, calculation.setup.active
    mf = hamiltonian.mean_field(system.mole, calculation.kind, "none", None)
    if system.jk_auxmole is None:
        return reproducible(mf, in_memory=not memory.scf_on_disk)
    if fitted is None:
        room = Room(calculation.space, memory.pair_bytes, memory.read_bytes)
        integrals = "disk" if memory.scf_on_disk else "memory"
        fitted = jk_builder(system.mole, system.jk_auxmole, integrals, threads, room)
    return mf.density_fit(with_df=fitted)


def _assemble(
    calculation: Calculation,
    spins: list[Orbitals],
    relaxed: list[Relaxed],
    memory: GradientMemory,
    functionals: Functionals | None,
) -> tuple[Array, Array | None]:
    """Eqs. 1 and 2: gradient on the atoms (natom, 3) and on the point charges (n, 3)."""
    system, threads = calculation.system, calculation.setup.active
    mole, charges = system.mole, system.molecule.point_charges
    weight = 2.0 if len(spins) == 1 else 1.0
    scf = [o.density for o in spins]
    change = [o.in_functions(p.relaxed) for o, p in zip(spins, relaxed, strict=True)]
    weighted = [o.in_functions(p.weighted) for o, p in zip(spins, relaxed, strict=True)]
    if functionals is None or functionals.stationary:  # otherwise W is that of the whole energy
        of_scf = [o.in_functions(np.diag(_occupied(o))) for o in spins]
        weighted = [one + more for one, more in zip(of_scf, weighted, strict=True)]
    density = weight * np.sum([*scf, *change], axis=0)
    on_atoms, on_charges = derivatives.nuclear_repulsion_gradient(mole, charges)
    on_atoms += derivatives.one_electron(
        mole, calculation.options.relativity, density, weight * np.sum(weighted, axis=0)
    )
    if charges is not None and on_charges is not None:
        of_charges = derivatives.point_charge_gradient(mole, charges, density)
        on_atoms += of_charges[0]
        on_charges += of_charges[1]
    others = [d / 2 + p for d, p in zip(scf, change, strict=True)]
    where = calculation.space if memory.half_on_disk else None
    for omega, exchanged in _exchanged(scf, change, functionals).items():
        with_operator, auxmole = mole, system.jk_auxmole
        if omega:
            with_operator = mole.copy()
            with_operator.set_range_coulomb(omega)
        if auxmole is None:
            on_atoms += derivatives.four_center(with_operator, scf, others, exchanged, weight)
        else:
            if omega:
                auxmole = auxmole.copy()
                auxmole.set_range_coulomb(omega)
            on_atoms += mean_field_part(
                with_operator,
                auxmole,
                [o.coeff[:, : o.occupied] for o in spins],
                others,
                exchanged,
                memory.packed_bytes,
                where,
                threads,
            )
        others = []  # Coulomb only with the full operator
    return on_atoms, on_charges


def _exchanged(
    scf: list[Array], change: list[Array], functionals: Functionals | None
) -> dict[float, list[Array]]:
    """Densities Y that D exchanges with, (nao, nao) per spin, keyed by omega of the operator: first
    0, the full one, empty if it has no exact exchange."""
    exact = energy = HARTREE_FOCK
    if functionals is not None:
        exact, energy = functionals.scf_exact, functionals.energy_exact
    by_omega: dict[float, list[Array]] = {0.0: []}
    if exact.full or energy.full:
        by_omega[0.0] = [
            energy.short_range * (d / 2) + exact.short_range * p
            for d, p in zip(scf, change, strict=True)
        ]
    for one, densities in ((energy, [d / 2 for d in scf]), (exact, change)):
        if one.separated:
            factor = one.long_range - one.short_range
            before = by_omega.get(one.omega, [np.zeros_like(d) for d in densities])
            by_omega[one.omega] = [
                total + factor * d for total, d in zip(before, densities, strict=True)
            ]
    return by_omega


def _occupied(o: Orbitals) -> Array:
    """Orbital energies of occupied orbitals, 0 for the others, (nmo,)."""
    return np.where(np.arange(len(o.energy)) < o.occupied, o.energy, 0.0)
