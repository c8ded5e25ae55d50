"""Rotations of occupied into virtual orbitals: the lowest eigenvector of the orbital Hessian, and
the energy along it.

With x_ai a rotation, e the orbital energies and C_occ, C_vir the orbitals of a spin, the Hessian
takes x to

    (H x)_ai = (e_a - e_i) x_ai + [C_vir^T (w J[D] - K[D]) C_occ]_ai       D = A C_occ^T + C_occ A^T,  A = C_vir x

with w J the sum of both spins (UHF), twice that of one (RHF to RHF), or zero (RHF to UHF). With
Kohn-Sham orbitals K is the exact exchange of the functional, and its kernel is added.
Because 2 D = (A + C)(A + C)^T - (A - C)(A - C)^T, the matrices are those of two densities with
orbitals, which the fitted builder handles efficiently. Only real rotations are considered. Source:
Seeger and Pople, J. Chem. Phys. 66, 3045 (1977).

If the orbitals of a linear molecule or an atom are less symmetric than its nuclei (the hole in the
pi shell of OH), turning them about an axis of the nuclei changes no energy: with l = r x nabla about
the axis, v_ai = (a|l|i) gives H v = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.scf.kohn_sham import (
    ExactExchange,
    exact_exchange_of,
    exchange_correlation_energy,
)

RHF, BROKEN, UHF = "RHF to RHF", "RHF to UHF", "UHF to UHF"
COULOMB = {RHF: 2.0, BROKEN: 0.0, UHF: 1.0}  # weight of J summed over spins
# Eigenvectors to converge, and start vectors: of any symmetry, so that none is missed
ROOTS, STARTS = (2, 4)
RESIDUAL = 2e-3  # Eh; the error of the eigenvalue is quadratic in it
MOST_CYCLES, SPACE = 60, 30
SMALLEST = 0.05  # Eh, smallest denominator in the preconditioner
COLLINEAR = 1e-3  # bohr, largest distance of nuclei from an axis
SYMMETRIC = 1e-4  # Eh, largest change of the one-electron Hamiltonian by a symmetry
TURNED = 1e-3  # norm of v, least for orbitals that are less symmetric than the nuclei
RAISED = 1.0  # Eh, eigenvalue of a free rotation where others are looked for
# 45 degrees mixes HOMO and LUMO completely; small angles are for the onset of an instability
ANGLES = tuple(math.pi / 4 * 0.5**k for k in range(7))
FLAT = 1e-9  # Eh; energies closer than this are equal


@dataclass(frozen=True, slots=True, eq=False)
class RotatedSpin:
    """Orbitals of a spin: (nao, nocc), (nao, nvir), and e_a - e_i, (nvir, nocc), Eh."""

    occupied: Array
    virtual: Array
    differences: Array


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Lowest eigenvector of the orbital Hessian.

    Attributes
    ----------
    kind : kinds of solution that it leads from and to
    eigenvalue : Eh
    vectors : (nvir, nocc) of alpha and beta, also for RHF; the longer one has norm 1
    converged : whether the iteration has converged; if not, the eigenvalue is an upper bound
    roots : the lowest eigenvalues, Eh, with their vectors of all spins, (n,) of norm 1
    """

    kind: str
    eigenvalue: float
    vectors: tuple[Array, Array]
    converged: bool
    roots: tuple[tuple[float, Array], ...] = ()


# x and weight -> H x, as in `hessian_product`
Product = Callable[[Sequence[Array], float], list[Array]]


def flattened(parts: Sequence[Array]) -> Array:
    """The matrices of all spins as one vector."""
    return np.concatenate([part.ravel() for part in parts])


def split(vector: Array, spins: Sequence[RotatedSpin]) -> list[Array]:
    """A vector as (nvir, nocc) of each spin."""
    edges = np.cumsum([spin.differences.size for spin in spins])[:-1]
    parts = np.split(vector, edges)
    return [part.reshape(s.differences.shape) for part, s in zip(parts, spins, strict=True)]


def without(vector: Array, others: Sequence[Array]) -> Array:
    """The part of a vector that is orthogonal to other orthonormal ones."""
    for other in others:
        vector = vector - other * (other @ vector)
    return vector


class Subspace:
    """Orthonormal vectors in which the residual of H x = b is minimised, and H times each.

    Parameters
    ----------
    product : x -> H x, both (n,)
    denominators : approximate diagonal of H, nowhere 0, (n,) Eh
    free : orthonormal rotations that x does not contain, (n,) each
    """

    def __init__(
        self, product: Callable[[Array], Array], denominators: Array, free: Sequence[Array]
    ) -> None:
        self._product, self._denominators, self._free = product, denominators, free
        self.vectors: list[Array] = []
        self.images: list[Array] = []

    def extend(self, residual: Array) -> None:
        """Add the preconditioned residual, orthogonal to the other vectors, and H times it."""
        vector = residual / self._denominators
        for _ in range(2):  # twice, to be orthogonal to rounding
            vector = without(vector, (*self._free, *self.vectors))
        vector /= np.linalg.norm(vector)
        self.vectors.append(vector)
        self.images.append(without(self._product(vector), self._free))

    def best(self, right: Array) -> tuple[Array, Array]:
        """x with the smallest residual, and that residual, b - H x."""
        images = np.stack(self.images, axis=1)
        parts = np.linalg.lstsq(images, right, rcond=None)[0]
        return np.stack(self.vectors, axis=1) @ parts, right - images @ parts


def free_rotations(
    mole: Any, core: Callable[[], Array], coeff: Array, spins: Sequence[RotatedSpin]
) -> list[Array]:
    """Orthonormal rotations v about axes of symmetry, each as a vector of all spins; empty if the
    orbitals are as symmetric as the nuclei, or the nuclei are not on a line. Parameters as in
    `free_turns`."""
    return independent(
        [
            flattened([spin.virtual.T @ turn @ spin.occupied for spin in spins])
            for turn in free_turns(mole, core, coeff)
        ]
    )


def independent(vectors: Sequence[Array]) -> list[Array]:
    """Orthonormal combinations of rotations, (n,), without those that turn nothing."""
    if not vectors:
        return []
    _, norms, directions = np.linalg.svd(np.stack(vectors), full_matrices=False)
    return list(directions[norms > TURNED])


def free_turns(mole: Any, core: Callable[[], Array], coeff: Array) -> list[Array]:
    """Matrices of l about axes of symmetry in the basis functions, (nao, nao); empty if the nuclei
    are not on a line.

    Parameters
    ----------
    mole : Any
        The PySCF molecule.
    core : callable
        Returns the one-electron part of the Fock matrix with point charges and a field, (nao, nao)
        Eh; called if the nuclei are on a line. An axis is one of symmetry if a rotation about it
        does not change this matrix.
    coeff : array
        All orbitals of a spin, (nao, nmo).
    """
    places = mole.atom_coords()
    centred = places - places.mean(axis=0)
    if np.linalg.eigvalsh(centred.T @ centred)[1] > COLLINEAR**2:
        return []
    with mole.with_common_orig(places.mean(axis=0)):
        turns = mole.intor("int1e_cg_irxp")
    hamiltonian = coeff.T @ core() @ coeff
    changes = []
    for turn in turns:
        generator = coeff.T @ turn @ coeff
        changes.append((hamiltonian @ generator - generator @ hamiltonian).ravel())
    squares, axes = np.linalg.eigh(np.stack(changes) @ np.stack(changes).T)
    return [np.einsum("x,xmn->mn", axis, turns) for axis in axes.T[squares < SYMMETRIC**2]]


def lowest_rotation(
    kind: str, spins: Sequence[RotatedSpin], product: Product, free: Sequence[Array]
) -> Rotation:
    """The rotation of this kind with the lowest eigenvalue, other than `free` ones.

    Parameters
    ----------
    spins : sequence of RotatedSpin
        Canonical orbitals of a converged mean field.
    product : Product
        Product with the Hessian (`dfmp2.scf.response_matrices.orbital_hessian`).
    free : sequence of array
        Orthonormal rotations of this kind that change no energy, from `free_rotations`.
    """
    diagonal = flattened([spin.differences for spin in spins])

    def products(vectors: Sequence[Array]) -> list[Array]:
        images = [flattened(product(split(x, spins), COULOMB[kind])) for x in vectors]
        for image, x in zip(images, vectors, strict=True):
            for rotation in free:
                image += RAISED * (rotation @ x) * rotation
        return images

    def precondition(residual: Array, eigenvalue: float, _: Array) -> Array:
        gap = diagonal - eigenvalue
        return np.asarray(residual / np.where(np.abs(gap) < SMALLEST, SMALLEST, gap))

    rng = np.random.default_rng(0)
    # Lowest orbital-energy differences, all symmetries
    favoured = SMALLEST / (diagonal - diagonal.min() + SMALLEST)
    starts = rng.standard_normal((min(STARTS, diagonal.size), diagonal.size)) * favoured
    with shielded():
        from pyscf import lib

        converged, values, vectors = lib.davidson1(
            products,
            list(starts),
            precondition,
            tol=RESIDUAL**2,  # of the eigenvalue; its root is that of the residual
            max_cycle=MOST_CYCLES,
            max_space=SPACE,
            nroots=min(ROOTS, diagonal.size),
            verbose=0,
        )
    x = split(vectors[0], spins)
    scale = 1 / max(np.linalg.norm(part) for part in x)
    return Rotation(
        kind,
        float(values[0]),
        (scale * x[0], (-scale if kind == BROKEN else scale) * x[-1]),
        bool(converged[0]),
        tuple((float(value), vector) for value, vector in zip(values, vectors, strict=True)),
    )


def orbital_spins(mf: Any) -> list[RotatedSpin]:
    """Orbitals of one spin (RHF) or both (UHF)."""
    return [
        RotatedSpin(c[:, n > 0], c[:, n == 0], e[n == 0][:, None] - e[n > 0])
        for c, e, n in zip(*stacked_orbitals(mf), strict=True)
    ]


def stacked_orbitals(mf: Any) -> tuple[Array, Array, Array]:
    """Coefficients (nspin, nao, nmo), energies and occupations (nspin, nmo) of RHF or UHF."""
    coeff, energy, occ = (
        np.asarray(x, dtype=np.float64) for x in (mf.mo_coeff, mf.mo_energy, mf.mo_occ)
    )
    if occ.ndim == 1:
        return coeff[None], energy[None], occ[None]
    return coeff, energy, occ


def rotated(spin: RotatedSpin, x: Array, angle: float) -> tuple[Array, Array]:
    """Occupied and virtual orbitals of a spin rotated by exp(angle (x - x^T)), (nao, nocc) and
    (nao, nvir).

    Parameters
    ----------
    x : array
        (nvir, nocc).
    """
    left, angles, right = np.linalg.svd(angle * x, full_matrices=False)
    cosine, sine = np.cos(angles) - 1, np.sin(angles)
    occupied = (spin.occupied @ (right.T * cosine) + spin.virtual @ (left * sine)) @ right
    virtual = (spin.virtual @ (left * cosine) - spin.occupied @ (right.T * sine)) @ left.T
    return spin.occupied + occupied, spin.virtual + virtual


def turned_orbitals(mf: Any, rotation: Rotation, angle: float) -> tuple[Array, Array]:
    """Orbitals of `mf` rotated along an eigenvector, and its occupations, stacked as in PySCF."""
    return with_orbitals(
        mf,
        [
            rotated(spin, x, angle)
            for spin, x in zip(orbital_spins(mf), rotation.vectors, strict=False)
        ],
    )


def with_orbitals(mf: Any, spins: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Orbitals of `mf` replaced by given occupied and virtual orbitals of each spin, and its
    occupations."""
    coeff, occ = np.array(mf.mo_coeff), np.asarray(mf.mo_occ)
    if occ.ndim == 1:
        wholes, numbers = (coeff[None], occ[None])
    else:
        wholes, numbers = (coeff, occ)
    for whole, n, (occupied, virtual) in zip(wholes, numbers, spins, strict=True):
        whole[:, n > 0], whole[:, n == 0] = occupied, virtual
    return coeff, occ


def energy_along(mf: Any, rotation: Rotation) -> Callable[[float], float]:
    """E(angle) - E(0) of the rotated determinant as a function of the angle, Eh."""
    spins = orbital_spins(mf)
    core, exact = mf.get_hcore(), exact_exchange_of(mf)

    def energy(angle: float) -> float:
        turned = [
            rotated(spin, x, angle)[0]
            for spin, x in zip((spins[0], spins[-1]), rotation.vectors, strict=True)
        ]
        j, k = coulomb_exchange(mf, turned, exact)
        densities = [c @ c.T for c in turned]
        total = densities[0] + densities[1]
        exchange = sum(
            float(np.vdot(matrix, density)) for matrix, density in zip(k, densities, strict=True)
        )
        fields = (float(np.vdot(j[0] + j[1], total)) - exchange) / 2
        of_functional = exchange_correlation_energy(mf, np.stack(densities))
        return float(np.vdot(core, total)) + fields + of_functional

    here = energy(0.0)
    return lambda angle: energy(angle) - here


def deepest(change: Callable[[float], float]) -> tuple[float, float]:
    """Angle of the lowest energy tried along a rotation, and that energy relative to the start, Eh;
    0, 0 if none is lower.

    Parameters
    ----------
    change : callable
        Angle -> energy relative to the start, Eh.
    """
    best = (0.0, -FLAT)
    for size in ANGLES:
        angle, energy = min(
            ((angle, change(angle)) for angle in (size, -size)),
            key=lambda pair: round(pair[1] / FLAT),
        )
        if energy < best[1]:
            best = (angle, energy)
        elif best[0]:
            break
    return best if best[0] else (0.0, 0.0)


def fitting_object(mf: Any) -> Any:
    """The density-fitting object of a mean field, None for a conventional SCF.

    Asking PySCF for a missing attribute would make it load all of its methods: 300 modules, 40 MB.
    """
    return vars(mf).get("with_df")


def coulomb_exchange(mf: Any, orbitals: list[Array], exact: ExactExchange) -> tuple[Array, Array]:
    """J and exact exchange of the densities C C^T of some orbitals, each (n, nao, nao), Eh.

    Parameters
    ----------
    mf : pyscf.scf.hf.SCF
        Mean field that provides Coulomb and exchange matrices.
    orbitals : list of (nao, n)
        C of each density.
    exact : ExactExchange
        Exact exchange of the functional, X = c_SR K + (c_LR - c_SR) K(omega); K for Hartree-Fock.
    """
    coulomb, exchange = _matrices(mf, orbitals)
    if exact.short_range != 1.0:
        exchange = exact.short_range * exchange
    if exact.separated:
        _, long_range = _matrices(mf, orbitals, exact.omega)
        exchange = exchange + (exact.long_range - exact.short_range) * long_range
    return coulomb, exchange


def _matrices(mf: Any, orbitals: list[Array], omega: float = 0.0) -> tuple[Array, Array]:
    """J and K of densities C C^T, for the operator erf(omega r) / r if omega, 1/bohr, is not 0."""
    fitted = fitting_object(mf)
    if fitted is not None and hasattr(fitted, "matrices"):
        if omega:
            fitted = fitted.at_long_range(omega)
        found: tuple[Array, Array] = fitted.matrices(orbitals)
        return found
    widest = max(c.shape[1] for c in orbitals)
    if widest == 0:  # no electron of this spin, for which PySCF's matrices cannot be built
        nothing = np.zeros((len(orbitals), len(orbitals[0]), len(orbitals[0])))
        return nothing, nothing
    with shielded():
        from pyscf import lib

        padded = np.stack([np.pad(c, ((0, 0), (0, widest - c.shape[1]))) for c in orbitals])
        occupations = np.stack(
            [(np.arange(widest) < c.shape[1]).astype(np.float64) for c in orbitals]
        )
        densities = lib.tag_array(
            padded @ padded.transpose(0, 2, 1), mo_coeff=padded, mo_occ=occupations
        )
        j, k = mf.get_jk(mf.mol, densities, hermi=1, omega=omega or None)
    return np.asarray(j), np.asarray(k)


def hessian_product(
    mf: Any,
    spins: Sequence[RotatedSpin],
    x: Sequence[Array],
    weight: float,
    exact: ExactExchange,
) -> list[Array]:
    """H x of each spin, (nvir, nocc) Eh.

    Parameters
    ----------
    mf : PySCF mean field; only its Coulomb and exchange matrices are used
    x : (nvir, nocc) per spin; weight : w of J summed over spins
    exact : exact exchange used in place of K
    """
    coulomb, exchange = 0.0, []
    # One after the other, so that no more matrices are in memory than in the SCF
    for spin, part in zip(spins, x, strict=True):
        turned = spin.virtual @ part
        j, k = coulomb_exchange(mf, [turned + spin.occupied, turned - spin.occupied], exact)
        coulomb = coulomb + weight * (j[0] - j[1]) / 2
        exchange.append((k[0] - k[1]) / 2)
    return [
        spin.differences * part + spin.virtual.T @ (coulomb - own) @ spin.occupied
        for spin, part, own in zip(spins, x, exchange, strict=True)
    ]
