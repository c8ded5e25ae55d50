"""Is the Hartree-Fock solution a minimum? Lowest eigenvalue of the real orbital Hessian.

With a in the virtual and i in the occupied orbitals, D = (e_a - e_i) delta_ij delta_ab:

    RHF, singlet   D + 4 (ia|jb) - (ib|ja) - (ij|ab)      negative: a lower RHF solution exists
    RHF, triplet   D - (ib|ja) - (ij|ab)                  negative: a lower UHF solution exists
    UHF            D + 2 (ia|jb) - (ib|ja) - (ij|ab) within a spin, 2 (ia|jb) between the spins

With Kohn-Sham orbitals K is the exact exchange of the functional, and the Hessian includes the
kernel of the functional (`dfmp2.scf.functional_kernel`): for equal changes of both spins, or
opposite ones for RKS to UKS.

Method "auto" diagonalises the block of the frontier orbitals with fitted integrals: all rotations
of a small molecule, the most likely ones of a large one (its lowest eigenvalue is an upper bound,
so a negative one proves an instability). "full" and "follow" find the lowest eigenvector of all
rotations iteratively (`dfmp2.scf.rotations`). For each kind of instability, the drop in energy
along its eigenvector is recorded: a lower solution gains at least that much. An RHF solution may
have both kinds. An eigenvalue that is zero within its error is marginal: an instability begins
there, or the rotation changes nothing, as for the only electron of a pi shell. Of the latter,
"full" and "follow" leave out those about an axis of the nuclei. Source: Seeger and Pople, J. Chem.
Phys. 66, 3045 (1977).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from dfmp2.arrays import Array
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.scf import rotations
from dfmp2.scf.functional_kernel import FunctionalKernel, coarse_grid
from dfmp2.scf.kohn_sham import exact_exchange_of, functional_of, of_mean_field
from dfmp2.scf.reference import Reference, RotationLeft, Stability
from dfmp2.scf.response_matrices import orbital_hessian, with_kernel
from dfmp2.scf.rotation_left import UNCERTAIN, rotation_left
from dfmp2.scf.rotations import BROKEN, RHF, UHF, RotatedSpin, Rotation

EXACT_ROTATIONS = 600  # per spin; up to here the block is the whole Hessian
FRONTIER_OCCUPIED, FRONTIER_VIRTUAL = 16, 32
# Eh, error of an eigenvalue from the MP2 fitting set ("auto"; -4e-4 for the zero of NO in def2-SVP)
UNCERTAIN_FITTED = 1e-3
CHUNK = 4 * 10**6  # elements of B at a time along a rotation


class Lowest(NamedTuple):
    """The lowest direction of one kind of rotation.

    Attributes
    ----------
    eigenvalue : float
        Eigenvalue of the orbital Hessian, Eh.
    gain : float or None
        Drop in energy along it, Eh; None unless the eigenvalue is negative.
    angle : float
        Angle of the lowest energy along it; 0 if the energy does not fall.
    """

    eigenvalue: float
    gain: float | None
    angle: float


def frontier_spaces(reference: Reference) -> list[ActiveSpace]:
    """Orbital ranges whose fitted integrals `frontier_stability` needs: (ia), (ij), (ab) for the
    window of each spin that has rotations."""
    spaces = []
    for window in _windows(reference):
        if window.nocc and window.nvir:
            spaces.append(window)
            spaces.append(_same(window.c_occ, window.eps_occ))
            spaces.append(_same(window.c_vir, window.eps_vir))
    return spaces


def frontier_window(occupied: int, virtual: int) -> tuple[int, int]:
    """Number of occupied and virtual orbitals of a spin in `frontier_spaces`: all of them in a
    small molecule."""
    if occupied * virtual > EXACT_ROTATIONS:
        return min(occupied, FRONTIER_OCCUPIED), min(virtual, FRONTIER_VIRTUAL)
    return occupied, virtual


def frontier_stability(reference: Reference, tensors: list[Array]) -> Stability:
    """Stability from the orbital Hessian of the frontier orbitals.

    Parameters
    ----------
    tensors : list of array
        Fitted integrals for `frontier_spaces`, in its order, Eh^1/2.

    Returns
    -------
    Stability with the lowest eigenvalue, Eh
    """
    windows = _windows(reference)
    tensors = _of_every_window(windows, tensors)
    examined = sum(window.nocc * window.nvir for window in windows)
    exact = examined == sum(int((n > 0).sum() * (n == 0).sum()) for n in reference.mo_occ)
    covered = "all rotations" if exact else f"{examined} frontier rotations"
    if reference.kind == "rhf":
        coulomb, exchange = _blocks(windows[0], *tensors)
        coulomb *= 4
        coulomb += exchange
        vectors = {RHF: _lowest(coulomb), BROKEN: _lowest(exchange)}
    else:
        vectors = {UHF: _lowest(_unrestricted_hessian(windows, tensors))}
    lowest = {
        kind: _measured(
            eigenvalue, UNCERTAIN_FITTED, partial(_energy_along, kind, vector, windows, tensors)
        )
        for kind, (eigenvalue, vector) in vectors.items()
    }
    return _stability(lowest, UNCERTAIN_FITTED, covered, certain=exact)


class Examination(NamedTuple):
    """The lowest rotation of each kind, in order of increasing eigenvalue, without those that turn
    the orbitals about an axis of the nuclei; and what Hartree-Fock has left, None for Kohn-Sham or
    if there is nothing to rotate."""

    lowest: list[Rotation]
    left: RotationLeft | None


def examined(mf: Any, *, single: bool = False, held: bool = False) -> Examination:
    """The lowest rotations of a converged mean field, and what its SCF has left; `single` and
    `held` as in `dfmp2.scf.response_matrices.orbital_hessian`."""
    spins = rotations.orbital_spins(mf)
    if not any(spin.differences.size for spin in spins):
        return Examination([], None)
    exchange = orbital_hessian(mf, spins, exact_exchange_of(mf), single=single, held=held)
    kinds = [UHF]
    if len(spins) == 1:
        kinds = [RHF, BROKEN]
    coeff = rotations.stacked_orbitals(mf)[0][0]
    free = rotations.free_rotations(mf.mol, mf.get_hcore, coeff, spins)
    found, left = [], None
    for kind in kinds:
        product, kernel = exchange, _kernel(mf, spins, kind)
        if kernel is not None:
            product = with_kernel(exchange, spins, kernel)
        excluded = [] if kind == BROKEN else free
        found.append(rotations.lowest_rotation(kind, spins, product, excluded))
        if kind != BROKEN and functional_of(mf) is None:
            left = rotation_left(mf, spins, product, found[0], free)
    return Examination(sorted(found, key=lambda rotation: rotation.eigenvalue), left)


def _kernel(mf: Any, spins: list[RotatedSpin], kind: str) -> FunctionalKernel | None:
    """The kernel of the functional for rotations of that kind, on a coarse grid, whose error is far
    below that of an eigenvalue; None for Hartree-Fock."""
    xc = functional_of(mf)
    if xc is None:
        return None
    threads = of_mean_field(mf, mf.grids).threads
    occupied = [spin.occupied for spin in spins]
    grid = coarse_grid(mf.mol, mf.grids)
    return FunctionalKernel(
        mf.mol,
        xc,
        grid,
        occupied,
        threads,
        opposite=kind == BROKEN,
        single=grid is not mf.grids,
    )


def judged(mf: Any, lowest: list[Rotation]) -> tuple[Stability, dict[str, float]]:
    """The stability of a solution, from its lowest rotations, and the angles of the lowest energy.

    Parameters
    ----------
    mf : PySCF mean field
        Converged.
    lowest : list of Rotation
        One for each kind.

    Returns
    -------
    Stability, and for each kind of rotation the angle of the lowest energy along it.
    """
    if not lowest:
        return Stability("stable", "nothing to rotate", float("inf")), {}
    measured = {
        rotation.kind: _measured(
            rotation.eigenvalue, UNCERTAIN, partial(rotations.energy_along, mf, rotation)
        )
        for rotation in sorted(lowest, key=lambda rotation: rotation.kind)
    }
    certain = all(rotation.converged for rotation in lowest)
    found = _stability(measured, UNCERTAIN, "all rotations, iterative", certain=certain)
    found = replace(
        found, verdict=kinds_in_words(found.verdict, mf), method=kinds_in_words(found.method, mf)
    )
    return found, {kind: direction.angle for kind, direction in measured.items()}


def kinds_in_words(kinds: str, mf: Any) -> str:
    """Kinds of rotations of a mean field as text: "RHF to UHF", or "RKS to UKS" with a
    functional."""
    if functional_of(mf) is None:
        return kinds
    return kinds.replace("HF", "KS")


def _measured(
    eigenvalue: float, uncertain: float, energy_along: Callable[[], Callable[[float], float]]
) -> Lowest:
    """The lowest direction of a kind, with the energy gained along it if it is unstable.

    Parameters
    ----------
    eigenvalue, uncertain : float
        The eigenvalue and its error, Eh.
    energy_along : callable
        Returns the energy relative to the solution, Eh, as a function of the angle.
    """
    if eigenvalue >= -uncertain:
        return Lowest(eigenvalue, None, 0.0)
    angle, energy = rotations.deepest(energy_along())
    return Lowest(eigenvalue, -energy, angle)


def _stability(
    lowest: Mapping[str, Lowest], uncertain: float, covered: str, *, certain: bool
) -> Stability:
    """The record of the lowest direction of each kind.

    Parameters
    ----------
    lowest : mapping of str to Lowest
        Lowest direction for each kind of rotation.
    uncertain : float
        Error of the eigenvalues, Eh.
    covered : str
        Which rotations were examined.
    certain : bool
        Whether no other rotation can be lower.
    """
    kinds = sorted(lowest, key=lambda kind: lowest[kind].eigenvalue)
    unstable = [kind for kind in kinds if lowest[kind].gain is not None]
    marginal = [kind for kind in kinds if lowest[kind].eigenvalue <= uncertain]
    if unstable:
        verdict = f"unstable ({' and '.join(unstable)})"
    elif marginal:
        verdict = f"marginal ({' and '.join(marginal)})"
    elif certain:
        verdict = "stable"
    else:
        verdict = "no instability found"
    external = lowest.get(BROKEN, Lowest(math.inf, None, 0.0))
    (internal,) = (direction for kind, direction in lowest.items() if kind != BROKEN)
    return Stability(
        verdict=verdict,
        method=f"{', '.join(lowest)}; {covered}",
        lowest_eigenvalue=lowest[kinds[0]].eigenvalue,
        energy_gain=lowest[kinds[0]].gain,
        internal_eigenvalue=internal.eigenvalue,
        internal_gain=internal.gain,
        external_eigenvalue=external.eigenvalue if BROKEN in lowest else None,
        external_gain=external.gain,
    )


def _windows(reference: Reference) -> list[ActiveSpace]:
    """The frontier orbitals of each spin."""
    windows = []
    for coeff, energy, occ in zip(
        reference.mo_coeff, reference.mo_energy, reference.mo_occ, strict=True
    ):
        occupied = np.flatnonzero(occ > 0)
        virtual = np.flatnonzero(occ == 0)
        nocc, nvir = frontier_window(len(occupied), len(virtual))
        i, a = occupied[len(occupied) - nocc :], virtual[:nvir]
        windows.append(ActiveSpace(coeff[:, i], coeff[:, a], energy[i], energy[a]))
    return windows


def _of_every_window(windows: list[ActiveSpace], tensors: list[Array]) -> list[Array]:
    """The integrals (ia|P), (ij|P), (ab|P) of each window, from those for `frontier_spaces`; 0
    where a spin has no rotations."""
    remaining = iter(tensors)
    naux = tensors[0].shape[2]
    found = []
    for window in windows:
        nocc, nvir = window.nocc, window.nvir
        for rows, columns in ((nocc, nvir), (nocc, nocc), (nvir, nvir)):
            if nocc and nvir:
                found.append(next(remaining))
            else:
                found.append(np.zeros((rows, columns, naux)))
    return found


def _same(coeff: Array, energy: Array) -> ActiveSpace:
    """An orbital range against itself, for (ij|P) and (ab|P)."""
    return ActiveSpace(coeff, coeff, energy, energy)


def _blocks(window: ActiveSpace, b_ov: Array, b_oo: Array, b_vv: Array) -> tuple[Array, Array]:
    """(ia|jb), and D - (ib|ja) - (ij|ab), both (nocc nvir, nocc nvir), Eh."""
    nocc, nvir, naux = b_ov.shape
    size = nocc * nvir
    coulomb = b_ov.reshape(size, naux) @ b_ov.reshape(size, naux).T
    ibja = coulomb.reshape(nocc, nvir, nocc, nvir).transpose(0, 3, 2, 1)
    ijab = b_oo.reshape(-1, naux) @ b_vv.reshape(-1, naux).T
    exchange = np.empty((size, size))
    parts = exchange.reshape(ibja.shape)
    np.add(ibja, ijab.reshape(nocc, nocc, nvir, nvir).transpose(0, 2, 1, 3), out=parts)
    np.negative(parts, out=parts)
    exchange[np.diag_indices(size)] += (window.eps_vir[None, :] - window.eps_occ[:, None]).ravel()
    return coulomb, exchange


def _unrestricted_hessian(windows: list[ActiveSpace], tensors: list[Array]) -> Array:
    """The full Hessian of the windows, built one spin after the other to save memory, Eh."""
    edge = windows[0].nocc * windows[0].nvir
    size = edge + windows[1].nocc * windows[1].nvir
    hessian = np.empty((size, size))
    for s, cut in enumerate((slice(0, edge), slice(edge, size))):
        coulomb, exchange = _blocks(windows[s], *tensors[3 * s : 3 * s + 3])
        coulomb *= 2
        np.add(exchange, coulomb, out=hessian[cut, cut])
        del coulomb, exchange
    ba, bb = (tensors[3 * s].reshape(-1, tensors[0].shape[2]) for s in (0, 1))
    mixed = 2 * ba @ bb.T
    hessian[:edge, edge:] = mixed
    hessian[edge:, :edge] = mixed.T
    return hessian


def _lowest(hessian: Array) -> tuple[float, Array]:
    """Lowest eigenvalue and its vector, (n,); the matrix is overwritten."""
    if not hessian.size:
        return float("inf"), np.empty(0)
    # LAPACK's order, so that nothing is copied
    values, vectors = scipy.linalg.eigh(hessian.T, overwrite_a=True, subset_by_index=[0, 0])
    return float(values[0]), vectors[:, 0]


def _energy_along(
    kind: str, vector: Array, windows: list[ActiveSpace], tensors: list[Array]
) -> Callable[[float], float]:
    """E(angle) - E(0) of the determinant rotated along an eigenvector of the windows' Hessian, Eh.

    With Delta the change of a spin's density in its window's orbitals and v_P = sum_pq B_pq,P
    Delta_pq

        E(angle) - E(0) = sum_s [sum_p e_p Delta_pp - tr(B_P Delta B_P Delta) / 2] + |v_alpha +
        v_beta|^2 / 2
    """
    if len(windows) == 2:
        parts = np.split(vector, [windows[0].nocc * windows[0].nvir])
    else:
        parts = [vector, vector]
    signs = (1.0, -1.0 if kind == BROKEN else 1.0)
    scale = 1 / max(np.linalg.norm(part) for part in parts)
    spins = [
        (windows[s], tensors[3 * s : 3 * s + 3]) for s in ((0, 1) if len(windows) == 2 else (0, 0))
    ]

    def change(angle: float) -> float:
        energy, potential = 0.0, np.zeros(tensors[0].shape[2])
        for (window, b), part, sign in zip(spins, parts, signs, strict=True):
            x = sign * scale * part.reshape(window.nocc, window.nvir).T
            one = np.eye(window.nocc + window.nvir)
            turned, _ = rotations.rotated(
                RotatedSpin(one[:, : window.nocc], one[:, window.nocc :], x), x, angle
            )
            delta = turned @ turned.T - np.diag(np.arange(len(one)) < window.nocc)
            energy += float(np.concatenate([window.eps_occ, window.eps_vir]) @ delta.diagonal())
            v, exchange = _fields(b, delta)
            potential += v
            energy -= exchange / 2
        return energy + float(potential @ potential) / 2

    return change


def _fields(b: list[Array], delta: Array) -> tuple[Array, float]:
    """sum_pq B_pq,P Delta_pq, shape (naux,), and sum_P tr(B_P Delta B_P Delta), for a window's B:
    (ia), (ij), (ab)."""
    b_ov, b_oo, b_vv = b
    nocc, nvir, naux = b_ov.shape
    potential, exchange = np.empty(naux), 0.0
    step = max(1, CHUNK // (nocc + nvir) ** 2)
    for start in range(0, naux, step):
        cut = slice(start, min(start + step, naux))
        ov = b_ov[:, :, cut].transpose(2, 0, 1)
        whole = np.block(
            [
                [b_oo[:, :, cut].transpose(2, 0, 1), ov],
                [ov.transpose(0, 2, 1), b_vv[:, :, cut].transpose(2, 0, 1)],
            ]
        )
        product = whole @ delta
        potential[cut] = product.trace(axis1=1, axis2=2)
        exchange += float(np.einsum("pij,pji->", product, product))
    return potential, exchange
