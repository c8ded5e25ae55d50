"""How far the orbitals of a Hartree-Fock SCF that has stopped are from those of a converged one.

With f_ai the Fock matrix for the density of the final orbitals, between virtual and occupied ones,
and H the orbital Hessian (`dfmp2.scf.rotations`), the rotation z that is left solves

    H z = -f

Its residual is minimised in the space of the lowest eigenvectors of H, if they are known, and of
preconditioned residuals. Rotations that cost no energy are left out: the SCF has no reason to go
along them, and their f is rounding.

In ROHF, rotations of closed (c) into virtual orbitals (v) are those of both spins, of closed into
open ones (s) those of beta, and of open into virtual ones those of alpha. H is that of UHF for these
rotations, with all blocks of the Fock matrices because the orbitals are not canonical in each spin.
Rotations of c into s and of s into v, one after the other, also rotate c into v, for which the
energy has the further term

    -sum_csv (f_alpha - f_beta)_vc x_vs x_sc

H of ROHF includes the response of a solvent's reaction field, which follows the orbitals: without
it, turning a half-filled pi shell in the field of its own density would cost energy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.linalg import expm

from dfmp2.arrays import Array
from dfmp2.scf.kohn_sham import exact_exchange_of
from dfmp2.scf.reference import RotationLeft
from dfmp2.scf.response_matrices import orbital_hessian
from dfmp2.scf.rotations import (
    COULOMB,
    SMALLEST,
    UHF,
    Product,
    RotatedSpin,
    Rotation,
    Subspace,
    flattened,
    free_turns,
    independent,
    split,
    without,
)
from dfmp2.scf.solvent import solvent_energies, solvent_potential, solvent_response

REDUCED = 0.1  # residual, as a part of f, at which the solution is good enough
MOST_VECTORS = 30
DIRECTIONS = 36  # in which the orbitals are turned about an axis
# Largest change of an element of the density of orbitals as symmetric as the nuclei
SAME_DENSITY = 1e-6
# Eh, error of an eigenvalue from the iteration (zeros of 20 radicals: 5e-7)
UNCERTAIN = 1e-4


def rotation_left(
    mf: Any,
    spins: Sequence[RotatedSpin],
    product: Product,
    lowest: Rotation,
    free: Sequence[Array],
) -> RotationLeft:
    """What an RHF or UHF that has stopped leaves.

    Parameters
    ----------
    mf : Any
        The mean field.
    spins : sequence of RotatedSpin
        Its orbitals.
    product : Product
        Product with the orbital Hessian.
    lowest : Rotation
        The lowest rotation to a solution of the same kind.
    free : sequence of array
        Orthonormal rotations that change no energy, (n,).
    """
    weight = COULOMB[lowest.kind]
    excluded = [*free, *(v for value, v in lowest.roots if abs(value) <= UNCERTAIN)]
    known = [(value, v) for value, v in lowest.roots if abs(value) > UNCERTAIN]
    gradients = [
        spin.virtual.T @ fock @ spin.occupied
        for spin, fock in zip(spins, final_fock_matrices(mf), strict=True)
    ]
    z = solve(
        lambda x: flattened(product(split(x, spins), weight)),
        flattened([spin.differences for spin in spins]),
        flattened(gradients),
        known,
        excluded,
    )
    return _measured(mf, spins, gradients, split(z, spins))


def open_shell_rotation_left(mf: Any, fock: Array, *, single: bool, held: bool) -> RotationLeft:
    """What an ROHF that has stopped leaves; `fock` is that of `final_fock_matrices`, `single` and
    `held` are as in `dfmp2.scf.response_matrices.orbital_hessian`."""
    coeff, occ = np.asarray(mf.mo_coeff), np.asarray(mf.mo_occ)
    closed, opened, empty = (coeff[:, occ == number] for number in (2, 1, 0))
    nclosed, nopen, nempty = closed.shape[1], opened.shape[1], empty.shape[1]
    spins = []
    for occupied, virtual in (
        (np.hstack([closed, opened]), empty),
        (closed, np.hstack([opened, empty])),
    ):
        nothing = np.zeros((virtual.shape[1], occupied.shape[1]))
        spins.append(RotatedSpin(occupied, virtual, nothing))
    response = orbital_hessian(mf, spins, exact_exchange_of(mf), single=single, held=held)
    gradients, occupied_blocks, virtual_blocks, diagonals = [], [], [], []
    for spin, matrix in zip(spins, fock, strict=True):
        gradients.append(spin.virtual.T @ matrix @ spin.occupied)
        occupied_blocks.append(spin.occupied.T @ matrix @ spin.occupied)
        virtual_blocks.append(spin.virtual.T @ matrix @ spin.virtual)
        diagonals.append(virtual_blocks[-1].diagonal()[:, None] - occupied_blocks[-1].diagonal())
    between = gradients[0][:, :nclosed] - gradients[1][nopen:]
    shapes = ((nopen, nclosed), (nempty, nclosed), (nempty, nopen))
    edges = np.cumsum([rows * columns for rows, columns in shapes])[:-1]

    def parts(x: Array) -> list[Array]:
        pieces = np.split(x, edges)
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]

    def of_spins(x: Array) -> list[Array]:
        into_open, across, out_of_open = parts(x)
        return [np.hstack([across, out_of_open]), np.vstack([into_open, across])]

    def of_both(alpha: Array, beta: Array) -> list[Array]:
        return [beta[:nopen], alpha[:, :nclosed] + beta[nopen:], alpha[:, nclosed:]]

    def product(x: Array) -> Array:
        turned = of_spins(x)
        images = response(turned, COULOMB[UHF])
        change = np.zeros((len(coeff), len(coeff)))
        for spin, part in zip(spins, turned, strict=True):
            change += spin.virtual @ part @ spin.occupied.T
        reaction = solvent_response(mf, change + change.T)
        for image, part, o, v, spin in zip(
            images, turned, occupied_blocks, virtual_blocks, spins, strict=True
        ):
            image += v @ part - part @ o
            image += spin.virtual.T @ reaction @ spin.occupied
        into_open, _, out_of_open = parts(x)
        first, second, third = of_both(*images)
        first = first - out_of_open.T @ between / 2
        third = third - between @ into_open.T / 2
        return flattened([first, second, third])

    free = []
    for turn in free_turns(mf.mol, mf.get_hcore, coeff):
        alpha, beta = (spin.virtual.T @ turn @ spin.occupied for spin in spins)
        free.append(flattened([beta[:nopen], alpha[:, :nclosed], alpha[:, nclosed:]]))
    gradient = of_both(*gradients)
    z = solve(
        product,
        flattened(of_both(*diagonals)),
        flattened(gradient),
        excluded=independent(free),
    )
    return _measured(mf, spins, gradient, of_spins(z))


def turning_gain(mf: Any) -> float:
    """Energy that the density of a linear molecule or an atom gains by turning about an axis of
    the nuclei, Eh.

    Without a solvent it gains nothing. The points on the surface of the cavity are less symmetric
    than the nuclei. The SCF may leave a half-filled pi shell pointing in any direction, since the
    gradient about the axis is below its tolerance.

    Parameters
    ----------
    mf : Any
        The mean field in its solvent.
    """
    if vars(mf).get("with_solvent") is None:
        return 0.0
    coeff = np.asarray(mf.mo_coeff)
    if coeff.ndim == 3:
        coeff = coeff[0]
    turns = free_turns(mf.mol, mf.get_hcore, coeff)
    if not turns:
        return 0.0
    total = np.asarray(mf.make_rdm1())
    if total.ndim == 3:
        total = total[0] + total[1]
    lowest = start = solvent_energies(mf, total)[0]
    for turn in turns:
        step = expm(2 * np.pi / DIRECTIONS * coeff @ coeff.T @ turn)
        turned = best = total
        for _ in range(DIRECTIONS - 1):
            turned = step @ turned @ step.T
            if np.abs(turned - total).max() < SAME_DENSITY:
                break
            energy = solvent_energies(mf, turned)[0]
            if energy < lowest:
                lowest, best = energy, turned
        total = best
    return start - lowest


def final_fock_matrices(mf: Any) -> Array:
    """Fock matrix of each spin for the density of the final orbitals, (nspin, nao, nao), Eh."""
    density = mf.make_rdm1()
    fock = mf.get_hcore() + mf.get_veff(dm=density) + solvent_potential(mf, density)
    return np.asarray(fock).reshape(-1, *np.shape(fock)[-2:])


def solve(
    product: Callable[[Array], Array],
    diagonal: Array,
    gradient: Array,
    known: Sequence[tuple[float, Array]] = (),
    excluded: Sequence[Array] = (),
) -> Array:
    """z of H z = -f, (n,), with a residual of REDUCED times f.

    Parameters
    ----------
    product : callable
        x -> H x, both (n,).
    diagonal : array
        Approximate diagonal of H, (n,) Eh.
    gradient : array
        f, (n,) Eh.
    known : sequence of (float, array)
        Eigenvalues of H, Eh, and orthonormal eigenvectors.
    excluded : sequence of array
        Orthonormal rotations that z does not contain.
    """
    right = without(-gradient, excluded)
    subspace = Subspace(product, np.maximum(diagonal, SMALLEST), excluded)
    subspace.vectors += [vector for _, vector in known]
    subspace.images += [value * vector for value, vector in known]
    x, residual = np.zeros_like(right), right
    if known:
        x, residual = subspace.best(right)
    goal = REDUCED * np.linalg.norm(right)
    most = min(MOST_VECTORS, right.size)
    while np.linalg.norm(residual) > goal and len(subspace.vectors) < most:
        subspace.extend(residual)
        x, residual = subspace.best(right)
    return x


def _measured(
    mf: Any, spins: Sequence[RotatedSpin], gradients: Sequence[Array], z: Sequence[Array]
) -> RotationLeft:
    """The record of a rotation z, (nvir, nocc) per spin, left by an SCF with gradients f."""
    weight = 2.0 if len(spins) == 1 else 1.0  # RHF: of both spins
    squares = [weight * float(np.vdot(x, x)) for x in z]
    gradient = math.sqrt(sum(weight * float(np.vdot(f, f)) for f in gradients))
    return RotationLeft(gradient, math.sqrt(sum(squares)), _spin_change(mf, spins, z))


def _spin_change(mf: Any, spins: Sequence[RotatedSpin], z: Sequence[Array]) -> float:
    """Change of <S^2>, which contains -|C_alpha^T S C_beta|^2 of the occupied orbitals."""
    if len(spins) == 1:
        return 0.0
    alpha, beta = spins
    overlap = mf.get_ovlp()
    common = alpha.occupied.T @ overlap @ beta.occupied
    change = (alpha.virtual @ z[0]).T @ overlap @ beta.occupied
    change += alpha.occupied.T @ overlap @ (beta.virtual @ z[1])
    return -2.0 * float(np.vdot(common, change))
