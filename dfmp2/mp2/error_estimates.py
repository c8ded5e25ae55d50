"""The errors of one run, estimated source by source for its error budget (`dfmp2.mp2.error_budget`).

    source                 E(SCF)                   E(corr)
    precision              SCF_ROUNDING eps |E|     the certificate; in float64 naux eps (|E_OS| + |E_SS|)
    SCF convergence        softness g^2             ROTATED root|E(corr)| z + SPIN s    g: last orbital gradient, Eh
    of other runs                                   FIRST_ORDER softness g
    of Kohn-Sham           as for E(corr)                                       E(SCF): that of its determinant, E(EXX)
    integration grid       |dE_EXX| + left          |dE_c| + left               Kohn-Sham only; both: |dE_EXX + dE_c| + left
    fitting metric                                  sqrt(condition) eps |E(corr)| + DROPPED |E(corr)| functions dropped
    fitting of SCF, MP2                             `dfmp2.mp2.fitting_estimates`
    basis set              only a study of several basis sets can tell

    in a solvent                      both + turning_gain, E(corr) + TURNED turning_gain
    z, s                                            rotation left to converged orbitals, change of <S^2>
                                                    by it (`dfmp2.scf.rotation_left`)
    softness = STIFFNESS z / f                      f: gradient of the final orbitals, Eh; of other runs
                                                    max(|E_k - E| / g_k^2) over the SCF's last approach;
                                                    at least SOFTNESS, in these for UHF
                                                    UNRESTRICTED_SOFTNESS
    left = GRID_ALONE max(|dE_EXX|, |dE_c|) + GRID_LEAST n, in both together with GRID_LEFT

dE_EXX and dE_c are the changes on orbitals of a finer grid, obtained by one step towards them
(`dfmp2.scf.grid_error`). Their signs are known, so they are added before the magnitude is taken.
At convergence E(SCF) is stationary but E(corr) is not: hence g^2 and g. The condition number of the
triangular factor L of the metric is the square root of that of the metric, and the relative error
of B = L^-1 (Q|ia) is a multiple of eps times it (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed. (2002), chapters 8 and 10).

The constants cover 95 % of what `scripts/error_budget.py` of commit e394fee measured
(docs/project/validation/error-budget.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dfmp2.integrals.grid import LEVEL, default_level
from dfmp2.molecule.elements import bond_orders
from dfmp2.mp2.error_budget import (
    BOUNDED,
    ESTIMATED,
    MEASURED,
    SOURCES,
    UNKNOWN,
    UNKNOWN_BASIS,
    ErrorBudget,
    Share,
    Source,
    finite_share,
)
from dfmp2.mp2.fitting_estimates import fitting_shares, free_atom_error
from dfmp2.scf.ladder import begins_coarse, uses_single
from dfmp2.scf.reference import GIVEN
from dfmp2.units import ANGSTROM_PER_BOHR, counted_text

if TYPE_CHECKING:
    from dfmp2.molecule.molecule import Molecule
    from dfmp2.mp2.result import MP2Result
    from dfmp2.scf.reference import Reference

EPSILON = float(np.finfo(np.float64).eps)
SCF_ROUNDING = 50.0  # times eps |E(SCF)|
SOFTNESS = 3.0  # 1/Eh
UNRESTRICTED_SOFTNESS = 17.0  # 1/Eh
STIFFNESS = 1.5  # times z / f of the final orbitals, for the energy of the last iteration
FIRST_ORDER = 0.04  # Eh
# Eh^1/2, of E(corr), times root of |E(corr)|, per norm of the rotation that is left; the root because
# the norm for n equal molecules is root n times that for one
ROTATED = {"rhf": 0.45, "uhf": 0.25, "rohf": 0.45}
TURNED = 0.5  # part of the energy gained by turning the orbitals in a solvent that is in E(corr)
SPIN = 0.15  # Eh, of E(corr), per change of <S^2> by that rotation
APPROACH = 0.1  # Eh, largest gradient in the last approach to the solution
BACK = 0.5  # a gradient that grows by more than a factor 1 / BACK begins a new approach
GRID_LEFT = 0.5  # times the larger change, in the sum of both: what one step of the orbitals omits
GRID_ALONE = 1.0  # times the larger change, in one energy alone: nothing cancels there
GRID_LEAST = 2e-9  # Eh per atom: changes may vanish by accident
KOHN_SHAM_LEFT = 1.5  # times the change of E(KS), which involves no step: error of the finer grid
KOHN_SHAM_LEAST = 4e-8  # Eh per atom
KOHN_SHAM_ROUGH = 2e-7  # the same with functionals whose default grid is finer
GRID = 1e-7  # Eh per atom if the error was not measured, as in files of earlier versions
# Factor on both for an external SCF: its orbitals are those of the gradient, not one step better
GIVEN_TIMES = 4.5
DROPPED = 1e-6  # of E(corr), per fitting function dropped by the eigenvalue cut
CANCELLING = 0.03  # part of the fitting errors of all runs that remains in an energy difference
NO_PAIRS = Share(0.0, BOUNDED, "there is no pair of electrons to correlate")


@dataclass(frozen=True, slots=True)
class Changed:
    """Fitting errors that remain in a difference if bonds or spins change.

    Attributes
    ----------
    between : factor on the change of the SCF's estimate between atoms, dimensionless
    bond : per unit of bond order, Eh
    hydrogen : the same for bonds to hydrogen, Eh
    electron : per electron added, removed, paired or unpaired, Eh
    metal_electron : the same if a d or f shell is being filled, Eh
    """

    between: float
    bond: float
    hydrogen: float
    electron: float
    metal_electron: float


CHANGED = {
    "scf": Changed(between=0.7, bond=8e-5, hydrogen=1e-5, electron=1e-5, metal_electron=1e-5),
    "correlation": Changed(
        between=0.3, bond=3e-5, hydrogen=1.8e-5, electron=1.2e-5, metal_electron=5e-5
    ),
}


def error_budget(result: MP2Result) -> ErrorBudget:
    """The budget of one run: E(SCF), E(corr) and their sum relative to the same basis set without
    fitting.

    If the method scales the components of MP2, the budget is that of unscaled MP2.
    """
    method, energy = result.options.correlation, "E(MP2, total)"
    if not method.scaled_mp2:
        energy = f"E({method.title}, total)"
    budget = ErrorBudget(error_sources(result), energy)
    return replace(budget, reaction=_reaction(result, budget))


def error_sources(result: MP2Result) -> dict[str, Source]:
    """The sources of the budget of one run."""
    shares = {
        "precision": (_scf_rounding(result), _pair_precision(result)),
        "scf_convergence": _convergence(result),
        "fitting_metric": (None, _metric(result)),
        **fitting_shares(result),
        "basis_set": (UNKNOWN_BASIS, UNKNOWN_BASIS),
    }
    sources = {}
    for key, name in SOURCES.items():
        if key != "grid":
            scf, correlation = shares[key]
            sources[key] = Source(name, finite_share(scf), finite_share(correlation))
        elif result.reference.xc is not None:
            sources[key] = _grid(result)
    if _fitted_energy(result) == 0.0:
        nothing: Share | None = NO_PAIRS
        if result.options.correlation.kind == "none":
            nothing = None
        for key, source in sources.items():
            if source.correlation is not None:
                sources[key] = replace(source, correlation=nothing, both=None)
    return sources


def _reaction(result: MP2Result, budget: ErrorBudget) -> float | None:
    """Expected error of the energy of a reaction that makes one bond and breaks one, Eh.

    Both sides are assumed to be like this run; None if its own error is unknown.
    """
    if budget.total is None:
        return None
    fitted = fitting_shares(replace(result, fitting_certificate=None))
    fitting = [share.value for pair in fitted.values() for share in pair if share is not None]
    if None in fitting:
        return None
    cancelled = CANCELLING * 2.0 * math.fsum(value for value in fitting if value is not None)
    others = [
        source.total
        for key, source in budget.sources.items()
        if not key.endswith("fitting") and key != "basis_set"
    ]
    orders = bond_orders_of(result.molecule)
    if any("H" not in pair for pair in orders):
        bond = "bond"
    else:
        bond = "hydrogen"
    if result.scf_fitting is None:
        kinds = [CHANGED["correlation"]]
    else:
        kinds = list(CHANGED.values())
    if orders:
        changed = math.fsum(2.0 * getattr(kind, bond) for kind in kinds)
    else:
        changed = math.fsum(kind.electron for kind in kinds)
    alone = 2.0 * abs(free_atom_error(result))
    return 2.0 * math.fsum(others) + cancelled + changed + alone


def _grid(result: MP2Result) -> Source:
    """Integration grid: the error the run has measured, else what is known of its functional."""
    atoms = len(result.molecule.real_symbols)
    reference, changes = result.reference, grid_changes(result)
    if changes is not None and not all(map(math.isfinite, changes)):
        how = "the numbers it follows from are not finite"
    elif changes is not None and reference.grid_error is not None:
        scf, correlation = changes
        return signed_source(
            scf,
            correlation,
            largest=max(abs(scf), abs(correlation)),
            least=GRID_LEAST * atoms,
            finer=f"grid {reference.grid_error.finer}",
        )
    elif reference.grid_error is not None:
        how = "E(corr) was not computed on a finer grid"
        of_scf = kohn_sham_grid_error(reference, atoms)
        double_hybrid = result.options.correlation.double_hybrid
        if double_hybrid and reference.functional_energy is None and of_scf is not None:
            # The orbitals feel the same change of V_xc as E(KS), but only through the small
            # second-order part of the density.
            second_order = replace(of_scf, how="no larger than that of E(KS), from finer grids")
            return Source(SOURCES["grid"], of_scf, second_order)
        if double_hybrid and reference.energy_xc is not None:
            how = f"the energy of {reference.energy_xc} was not computed on a finer grid"
    elif int(reference.grid_level or 0) < LEVEL or default_level(str(reference.xc)) > LEVEL:
        how = "its error was not measured, and no other is known for this functional and grid"
    else:
        how = f"{GRID:g} Eh for each atom, from finer grids"
        return Source(SOURCES["grid"], Share(GRID * atoms, ESTIMATED, how), None)
    unknown = Share(None, UNKNOWN, how)
    return Source(SOURCES["grid"], unknown, unknown)


def grid_changes(result: MP2Result) -> tuple[float, float] | None:
    """Measured grid errors of E(EXX) and E(corr), with signs, Eh; None if they were not
    measured."""
    found, certificate = result.reference.grid_error, result.grid_certificate
    if found is None or found.exx_error is None or certificate is None:
        return None
    return found.exx_error, certificate.correlation_error


def signed_source(
    scf: float, correlation: float, largest: float, least: float, finer: str
) -> Source:
    """The integration grid as a source, from measured changes of both energies.

    Parameters
    ----------
    scf, correlation : float
        Changes of E(EXX) and of E(corr), or sums of them over runs, with their signs, Eh.
    largest : float
        Magnitude of the larger one, or the sum of these over runs, Eh.
    least : float
        Smallest uncertainty that remains, Eh.
    finer : str
        Description of the finer grid.
    """
    left = GRID_LEFT * largest + least
    alone = GRID_ALONE * largest + least
    how = (
        f"measured with {finer}: {scf:+.1e} Eh in E(EXX), {correlation:+.1e} Eh in E(corr), both "
        f"within {left:.1e} Eh"
    )
    return Source(
        SOURCES["grid"],
        Share(abs(scf) + alone, ESTIMATED, how),
        Share(abs(correlation) + alone, ESTIMATED, how),
        abs(scf + correlation) + left,
    )


def kohn_sham_grid_error(reference: Reference, atoms: int) -> Share | None:
    """Grid error of E(KS); None if it was not measured.

    Parameters
    ----------
    reference : Reference
        A Kohn-Sham reference.
    atoms : int
        Number of real atoms.
    """
    found = reference.grid_error
    if found is None:
        return None
    value = largest_kohn_sham_error(found.scf_error, str(reference.xc), atoms)
    how = f"E(KS) of the same density on grid {found.finer}: {found.scf_error:+.1e} Eh"
    return Share(value, ESTIMATED, how)


def largest_kohn_sham_error(change: float, xc: str, atoms: int) -> float:
    """Largest expected grid error of E(KS), Eh.

    Parameters
    ----------
    change : float
        Change of E(KS) on a finer grid, Eh.
    xc : str
        The functional.
    atoms : int
        Number of real atoms.
    """
    least = KOHN_SHAM_LEAST
    if default_level(xc) > LEVEL:
        least = KOHN_SHAM_ROUGH
    return (1.0 + KOHN_SHAM_LEFT) * abs(change) + least * atoms


def _scf_rounding(result: MP2Result) -> Share:
    value = SCF_ROUNDING * EPSILON * abs(result.scf_total_energy)
    return Share(value, ESTIMATED, f"float64: {SCF_ROUNDING:g} units in the last place of E(SCF)")


def _pair_precision(result: MP2Result) -> Share:
    certificate, quadrature = result.certificate, result.quadrature
    if quadrature is not None:
        laplace = result.options.correlation.kind == "laplace"
        if laplace:
            how = "exponents, from their largest relative error"
        else:
            how = "frequencies, from the change made by the last ones"
        return Share(
            quadrature.error,
            BOUNDED if laplace else ESTIMATED,
            f"quadrature of {quadrature.points} {how}",
        )
    if result.precision == "fp64":
        parts = abs(result.pairs.opposite_spin_energy) + abs(result.pairs.same_spin_energy)
        how = "float64: a unit in the last place of E(OS) and E(SS) for each fitting function"
        return Share(result.sizes.naux * EPSILON * parts, BOUNDED, how)
    if certificate is None:
        return Share(None, UNKNOWN, "mixed precision without a certificate")
    pairs = counted_text(certificate.pairs, "pair")
    sample = f"{certificate.sampled} of {pairs} redone in float64"
    if certificate.sampled == certificate.pairs:
        return Share(certificate.correlation_error, MEASURED, sample)
    if certificate.seed is None:  # evenly spaced pairs, from before samples were drawn at random
        return Share(certificate.correlation_error, ESTIMATED, f"estimate from {sample}")
    return Share(certificate.correlation_error, BOUNDED, f"95 % upper bound from {sample}")


def _convergence(result: MP2Result) -> tuple[Share, Share]:
    """Shares of an unconverged SCF, from the norm of its last orbital gradient in the history, or
    else from the tolerance."""
    reference = result.reference
    elsewhere = reference.ladder == GIVEN
    if elsewhere and reference.history is None:
        share = Share(None, UNKNOWN, "the SCF was done elsewhere and its gradient is not recorded")
        return share, share
    gradient, known = _last_gradient(result)
    second = _softness(result)
    if elsewhere and reference.rotation_left is None:
        second *= GIVEN_TIMES
    first = FIRST_ORDER * second
    correlation = Share(first * gradient, ESTIMATED, f"{first:.3g} g, g = {known}")
    left = reference.rotation_left
    if left is not None:
        turned = ROTATED[reference.kind] * math.sqrt(abs(_fitted_energy(result)))
        value = turned * left.rotation + SPIN * abs(left.spin_square)
        how = f"{turned:.2g} z, z = {left.rotation:.1e}, the rotation to converged orbitals"
        if reference.kind == "uhf":
            how = f"{how}, and {SPIN:g} times the change of <S^2> by it, {left.spin_square:+.1e}"
        correlation = Share(value, ESTIMATED, how)
    certificate = result.gradient_certificate
    if (
        certificate is not None
        and certificate.scf_convergence_error is not None
        and _unscaled(result)
    ):
        error = certificate.scf_convergence_error
        how = f"relaxed density times the remaining error of the Fock matrix: {error:+.1e} Eh"
        correlation = Share(abs(error), MEASURED, how)
    stationary = reference.xc is None
    if result.options.correlation.double_hybrid:
        stationary = result.functional_energy is None
    if stationary:
        scf = Share(second * gradient**2, ESTIMATED, f"{second:.3g} g^2, g = {known}")
    else:  # the determinant minimises the energy of another functional
        scf = correlation
    return _with_turning(scf, reference, 1.0), _with_turning(correlation, reference, TURNED)


def _with_turning(share: Share, reference: Reference, factor: float) -> Share:
    """The share plus `factor` times the turning gain."""
    if reference.turning_gain is None or share.value is None:
        return share
    value = factor * reference.turning_gain
    how = f"{share.how}, and {value:.1e} Eh for turning the orbitals about an axis of the nuclei"
    return replace(share, value=share.value + value, how=how)


def _last_gradient(result: MP2Result) -> tuple[float, str]:
    """Norm of the last orbital gradient of the SCF, Eh, and how it is known."""
    history, tolerance = result.reference.history, result.options.scf_gradient_tol
    if history is None:
        return tolerance, f"{tolerance:.1e} Eh, the tolerance of the orbital gradient"
    if not len(history):
        return 0.0, "0: one diagonalisation solves this SCF"
    gradient = float(history[-1, 2])
    return gradient, f"{gradient:.1e} Eh, the last orbital gradient"


def _softness(result: MP2Result) -> float:
    """Energy change per squared gradient, 1/Eh.

    It equals 1 / (2 h), with h the curvature along the rotations that converge last; soft rotations
    are large even if the gradient is small. Where the rotation that is left was solved for, it
    follows from that. Otherwise it is the largest |E_k - E| / g_k^2 of the iterations that led to
    the solution. They may not reach the softest rotation of a UHF solution, and energies of float32
    products or of a coarser grid do not show it.
    """
    reference, precision, nao = result.reference, result.options.precision, result.sizes.nao
    history, left = reference.history, reference.rotation_left
    if left is not None and left.gradient:
        return max(SOFTNESS, STIFFNESS * left.rotation / left.gradient)
    softness = SOFTNESS
    if reference.kind == "uhf":
        softness = UNRESTRICTED_SOFTNESS
    coarse = reference.xc is not None and begins_coarse(precision, nao)
    if history is None or len(history) < 2 or coarse or uses_single(precision, nao):
        return softness
    energies, gradients = history[:, 0], history[:, 2]
    rounding = SCF_ROUNDING * EPSILON * abs(energies[-1])
    for k in range(len(history) - 2, -1, -1):
        if gradients[k] > APPROACH or gradients[k] <= BACK * gradients[k + 1]:
            break
        left_energy = abs(energies[k] - energies[-1])  # a saddle point is approached from below
        if left_energy > 10 * rounding:
            softness = max(softness, float(left_energy / gradients[k] ** 2))
    return softness


def _unscaled(result: MP2Result) -> bool:
    """Whether the gradient is that of the unscaled E(corr)."""
    gradient = result.gradient
    return (
        gradient is not None and gradient.opposite_spin_factor == gradient.same_spin_factor == 1.0
    )


def _metric(result: MP2Result) -> Share:
    found = result.diagnostics
    energy = abs(_fitted_energy(result))
    # A condition number is at least 1
    condition = found.metric_condition if found.metric_condition >= 1.0 else math.nan
    value = math.sqrt(condition) * EPSILON * energy
    how = f"root of the condition number {condition:.1e} times rounding"
    if not found.metric_dropped:
        return Share(value, BOUNDED, how)
    dropped = (
        f"{found.metric_dropped} fitting functions dropped at {found.metric_threshold:.0e} "
        "of the largest"
    )
    return Share(
        value + DROPPED * found.metric_dropped * energy, ESTIMATED, f"{how}, and {dropped}"
    )


def _fitted_energy(result: MP2Result) -> float:
    """The unscaled correlation energy that depends on fitted integrals, Eh."""
    if result.quadrature is None:
        return result.pairs.correlation_energy
    return result.quadrature.energy


def bond_orders_of(molecule: Molecule) -> dict[tuple[str, str], float]:
    """Bond orders of the molecule, summed for each pair of elements."""
    return bond_orders(molecule.symbols, molecule.coordinates * ANGSTROM_PER_BOHR, molecule.ghost)
