"""One-electron densities, and the properties that follow from them.

    D = sum_s C (n + P) C^T            mu = sum_A Z_A R_A - sum_mn D_mn (m|r|n)
    Q_xy = sum_A Z_A X_A Y_A - sum_mn D_mn (m|xy|n)
    q_A = Z_A - sum_{m on A} (D S)_mm                    Mulliken
    q_A = Z_A - sum_{m on A} (S^1/2 D S^1/2)_mm          Loewdin; spin populations with the alpha minus the beta density

n is 1 for occupied orbitals of the reference; P is that of the correlation energy
(`dfmp2.gradients.response`): unrelaxed, only between correlated orbitals of the same kind; relaxed,
with the response of the orbitals. The relaxed dipole moment is the derivative of the energy with
respect to a field. Natural occupations are the eigenvalues of S^1/2 D S^1/2. Moments refer to the
origin of the coordinates: the dipole moment of a charged molecule depends on it, and so does the
quadrupole moment, which includes its trace, if there is a dipole moment. Z is the nuclear charge
minus the electrons that a core potential replaces. Sources: Mulliken, J. Chem. Phys. 23, 1833
(1955); Loewdin, J. Chem. Phys. 18, 365 (1950).

Below: the static dipole polarizability from runs in uniform fields.

    alpha_xy = d mu_x / d F_y = [mu_x(+F e_y) - mu_x(-F e_y)] / 2F
    alpha_xx = -d2E / dF_x2   = [2 E(0) - E(+F e_x) - E(-F e_x)] / F^2

mu is the relaxed dipole moment, which is -dE/dF; E is the energy that the densities belong to. The
error of the first expression is F^2 gamma / 6, that of the second F^2 gamma / 12, gamma being the
second hyperpolarizability, so twice their difference is the error of the first. Energies in fields
also show whether the relaxed dipole moments, and with them the relaxed density, are correct: by
Simpson's rule, to the fourth power of the field,

    [E(-F e_x) - E(+F e_x)] / 2F = [mu_x(-F e_x) + 4 mu_x(0) + mu_x(+F e_x)] / 6

The field enters the one-electron Hamiltonian (`dfmp2.scf.hamiltonian`); the basis functions do not
depend on it. The runs start from the orbitals without field.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from dfmp2.arrays import Array
from dfmp2.gradients.derivatives import by_atom
from dfmp2.gradients.response import Orbitals, Relaxed
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.mp2.properties import Polarizability, Properties
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.progress import Listener


def properties(mole: Any, spins: Sequence[Orbitals], densities: Sequence[Relaxed]) -> Properties:
    """Densities, moments, charges and natural occupations.

    Parameters
    ----------
    mole : PySCF molecule
    spins, densities : orbitals and densities of both spins, or of one that stands for both
    """
    weight = 2.0 if len(spins) == 1 else 1.0
    scf = np.stack([o.density for o in spins])
    pairs = list(zip(spins, densities, strict=True))
    unrelaxed = scf + np.stack([o.in_functions(p.unrelaxed) for o, p in pairs])
    relaxed = scf + np.stack([o.in_functions(p.relaxed) for o, p in pairs])
    of_spins = np.stack([scf, unrelaxed, relaxed])  # (3, nspin, nao, nao)
    total = weight * of_spins.sum(axis=1)
    dipole, quadrupole = _moments(mole, total)
    with shielded():
        overlap = mole.intor("int1e_ovlp")
    basis = overlap @ spins[0].coeff
    charges = mole.atom_charges().astype(np.float64)
    mulliken, lowdin = _populations(mole, overlap, total)
    mulliken_spin = None
    lowdin_spin = None
    if len(spins) == 2:
        mulliken_spin, lowdin_spin = _populations(mole, overlap, of_spins[:, 0] - of_spins[:, 1])
    return Properties(
        scf_dipole=dipole[0],
        unrelaxed_dipole=dipole[1],
        relaxed_dipole=dipole[2],
        unrelaxed_occupations=_occupations(total[1], basis),
        relaxed_occupations=_occupations(total[2], basis),
        unrelaxed_density=unrelaxed,
        relaxed_density=relaxed,
        quadrupole=quadrupole,
        mulliken_charges=charges - mulliken,
        lowdin_charges=charges - lowdin,
        mulliken_spin_populations=mulliken_spin,
        lowdin_spin_populations=lowdin_spin,
    )


def _moments(mole: Any, densities: Array) -> tuple[Array, Array]:
    """Dipole moments (k, 3) and quadrupole moments (k, 3, 3) of densities (k, nao, nao)."""
    charges = mole.atom_charges().astype(np.float64)
    places = mole.atom_coords()
    with shielded():
        position = mole.intor("int1e_r")
        squares = mole.intor("int1e_rr").reshape(3, 3, mole.nao, mole.nao)
    dipole = charges @ places - np.einsum("xmn,dmn->dx", position, densities, optimize=True)
    quadrupole = np.einsum("a,ax,ay->xy", charges, places, places) - np.einsum(
        "xymn,dmn->dxy", squares, densities, optimize=True
    )
    return dipole, quadrupole


def _populations(mole: Any, overlap: Array, densities: Array) -> tuple[Array, Array]:
    """Mulliken's and Loewdin's populations of the atoms, each (k, natom), of densities (k, nao,
    nao)."""
    values, vectors = np.linalg.eigh(overlap)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    mulliken = np.einsum("dmn,mn->dm", densities, overlap)
    lowdin = np.einsum("ma,dab,bm->dm", root, densities, root, optimize=True)
    return by_atom(mole, mulliken).T, by_atom(mole, lowdin).T


def _occupations(density: Array, basis: Array) -> Array:
    """Natural occupations of a density (nao, nao), largest first; `basis` is S C, (nao, nmo)."""
    return np.array(np.linalg.eigvalsh(basis.T @ density @ basis)[::-1])


# --- polarizability -------------------------------------------------------------------------------

FIELD = 0.001  # Eh/(e bohr)
# Relative to the largest element or 1 bohr^3: asymmetry and step error; in e bohr: slopes
ALLOWED = 1e-3
TIGHT = 1e-13  # Eh, for the SCF in fields: an error of 1e-10 Eh in an energy makes 2e-4 bohr^3
ROUNDING = 1e-15  # of the SCF energy: the best that can be reached


def options_beside(options: Options, tolerance: float) -> Options:
    """Options of runs that start from the orbitals of a finished one: energies in float64 from an
    SCF converged to `tolerance`, Eh, and nothing examined or certified again."""
    return replace(
        options,
        check=False,
        certify_fit=False,
        precision="fp64",
        guess="atoms",
        scf_from=None,
        scf_starts=1,
        stability="off",
        scf_conv_tol=min(tolerance, options.scf_conv_tol),
    )


def options_in_fields(result: MP2Result) -> Options:
    """Options of the runs in fields: densities only, energies in float64, and a tight SCF from the
    given orbitals."""
    tight = max(TIGHT, ROUNDING * abs(result.scf_total_energy))
    return replace(
        options_beside(result.options, tight),
        polarizability=False,
        allow_small_gap=True,
    )


def in_fields(
    dipole: Array,
    without: Callable[[], MP2Result],
    run: Callable[[Array], MP2Result],
    listener: Listener,
) -> Polarizability:
    """The polarizability of a molecule.

    Parameters
    ----------
    dipole : relaxed dipole moment without field, (3,) e bohr
    without : returns the result without field
    run : returns energy and properties in a field, (3,) Eh/(e bohr)
    """
    begin = time.perf_counter()
    found: list[MP2Result] = []
    listener.stage("polarizability: energy without field")
    energy = without().total_energy
    for axis, name in enumerate("xyz"):
        for sign in (1, -1):
            listener.stage(f"polarizability: field of {sign * FIELD:+.3f} along {name}")
            found.append(run(sign * FIELD * np.eye(3)[axis]))
    # Field, sign, density, x
    dipoles = np.stack([cast(Properties, one.properties).dipole for one in found])
    dipoles = dipoles.reshape(3, 2, 3, 3)
    slopes = (dipoles[:, 0] - dipoles[:, 1]) / (2 * FIELD)
    energies = np.array([one.total_energy for one in found]).reshape(3, 2)
    own = np.stack([np.diagonal(dipoles[:, sign, 2]) for sign in (0, 1)])  # along the field
    means = (own.sum(axis=0) + 4 * dipole) / 6
    return Polarizability(
        relaxed=slopes[:, 2].T.copy(),
        scf=slopes[:, 0].T.copy(),
        from_energies=(2 * energy - energies.sum(axis=1)) / FIELD**2,
        dipole_difference=float(
            np.abs((energies[:, 1] - energies[:, 0]) / (2 * FIELD) - means).max()
        ),
        field=FIELD,
        allowed=ALLOWED,
        seconds=time.perf_counter() - begin,
    )
