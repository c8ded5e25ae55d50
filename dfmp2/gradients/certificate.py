"""Consistency checks between the parts of a gradient.

    1/4 sum_Q,mn G_Q,mn (mn|Q) = E_corr        three-index density and integrals
    1/2 sum_PQ g_PQ (P|Q) = E_corr             two-index density and metric
    tr(D S) = N                                relaxed density
    sum_A F_A = 0,  sum_A R_A x F_A = 0        forces on atoms and point charges, torques by the extent of the molecule

where the torque includes that on the spheres of an integration grid, which do not rotate with the
molecule. E_corr is that of the pair energies, from other code. The derivatives of fitted integrals
on the fitting centres follow from translational invariance, so their forces always add up to zero;
errors show in the sum of the torques. A wrong orbital response shows in the torques and in
`with_slope`, which compares the gradient along one direction d with energies,

    g.d = [E(-2h) - 8 E(-h) + 8 E(h) - E(2h)] / 12 h
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dfmp2.arrays import Array
from dfmp2.gradients.correlation import CorrelationPart
from dfmp2.gradients.density import options_beside
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.mp2.energy import mp2_energy
from dfmp2.mp2.properties import Gradient, GradientCertificate, Properties
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.planning.system import System
from dfmp2.progress import Listener, Silent
from dfmp2.scf.kohn_sham import is_discontinuous
from dfmp2.scf.reference import Reference

ENERGY = 1e-9  # Eh, plus the allowance for the precision of the pair energies
SUMS = 1e-6  # Eh/bohr, Eh, electrons
# Eh/bohr; energies from an SCF to 1e-12 Eh scatter by 8e-7 (docs/project/validation/gradients.md)
SLOPE = 2e-6
# Eh/bohr, if the energy jumps when grid points cross a discontinuity of the functional: up to 9e-6
# observed (docs/project/validation/gradients.md)
SLOPE_WITH_JUMPS = 2e-5
STEP = 0.005  # bohr
TIGHT = 1e-12  # Eh, for the SCF of displaced molecules


def certify_gradient(
    system: System,
    result: MP2Result,
    found: Gradient | None,
    densities: Properties,
    correlation: CorrelationPart,
    residual: float,
    left: float,
    sphere_torque: Array,
) -> GradientCertificate:
    """The certificate of a gradient, or of densities alone if None, without energies of displaced
    molecules.

    Parameters
    ----------
    residual : of the Z-vector equations, Eh
    left : error of E(corr) because the SCF stopped early, Eh
    sphere_torque : torque on the spheres of the integration grid, (3,) Eh; 0 for Hartree-Fock
    """
    scaling, energy = result.options.correlation, result.correlation_energy
    with shielded():
        overlap = system.mole.intor("int1e_ovlp")
    weight = 2.0 if len(densities.relaxed_density) == 1 else 1.0
    electrons = weight * float(np.vdot(densities.relaxed_density.sum(axis=0), overlap))
    translation = rotation = None
    if found is not None:
        translation, rotation = _sums(system.molecule, found, sphere_torque)
    exact = result.precision == "fp64"
    factor = max(abs(scaling.opposite_spin), abs(scaling.same_spin), 1.0)
    return GradientCertificate(
        three_center_difference=correlation.three_center - energy,
        two_center_difference=correlation.two_center - energy,
        allowed_energy=ENERGY * max(1.0, abs(energy))
        + (0.0 if exact else factor * result.options.tolerance),
        electrons_difference=electrons - float(sum(system.mole.nelec)),
        translation=translation,
        rotation=rotation,
        z_vector_residual=residual,
        allowed_sum=SUMS,
        scf_convergence_error=left,
    )


def _sums(molecule: Molecule, found: Gradient, sphere_torque: Array) -> tuple[float, float]:
    """Largest components of the sum of all forces, and of the sum of all torques divided by the
    molecule's extent, Eh/bohr."""
    forces = [found.total_gradient]
    places = [molecule.coordinates]
    if found.point_charge_gradient is not None and molecule.point_charges is not None:
        forces.append(found.point_charge_gradient)
        places.append(molecule.point_charges[:, :3])
    force = np.concatenate(forces)
    place = np.concatenate(places)
    arms = place - place.mean(axis=0)
    extent = max(1.0, float(np.linalg.norm(arms, axis=1).max()))
    torque = np.cross(arms, force).sum(axis=0) + sphere_torque
    return float(np.abs(force.sum(axis=0)).max()), float(np.abs(torque).max()) / extent


def with_slope(
    proof: GradientCertificate,
    molecule: Molecule,
    options: Options,
    reference: Reference,
    found: Gradient,
    listener: Listener,
) -> GradientCertificate:
    """The certificate, extended by the slope along one direction, analytic and from four
    energies."""
    direction = check_direction(molecule)
    tight = options_beside(options, TIGHT)
    start = reference.as_start("the reference")
    energies = []
    for factor in (-2, -1, 1, 2):
        listener.stage(f"check: energy at {factor * STEP:+.3f} bohr along a direction")
        moved = replace(molecule, coordinates=molecule.coordinates + factor * STEP * direction)
        energies.append(
            mp2_energy(moved, tight, start=start, listener=Silent(), doubt_units=False).total_energy
        )
    slope = (energies[0] - 8 * energies[1] + 8 * energies[2] - energies[3]) / (12 * STEP)
    analytic = float(np.vdot(found.total_gradient, direction))
    allowed = SLOPE
    functionals = [xc for xc in (reference.xc, reference.energy_xc) if xc is not None]
    if any(is_discontinuous(xc) for xc in functionals):
        allowed = SLOPE_WITH_JUMPS
    return replace(proof, analytic_slope=analytic, numerical_slope=slope, allowed_slope=allowed)


def check_direction(molecule: Molecule) -> Array:
    """A unit vector that moves every atom, (natom, 3); the same in every run."""
    direction = np.random.default_rng(0).standard_normal((molecule.natom, 3))
    return np.asarray(direction / np.linalg.norm(direction))
