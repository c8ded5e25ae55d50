"""Is the Hartree-Fock solution a minimum? Lowest eigenvalue of the real orbital Hessian.

With a in the virtual and i in the occupied orbitals, D = (e_a - e_i) delta_ij delta_ab:

    RHF, singlet   D + 4 (ia|jb) - (ib|ja) - (ij|ab)      negative: a lower RHF solution exists
    RHF, triplet   D - (ib|ja) - (ij|ab)                  negative: a lower UHF solution exists
    UHF            D + 2 (ia|jb) - (ib|ja) - (ij|ab) within a spin, 2 (ia|jb) between the spins

Method "auto" diagonalises the block of the frontier orbitals with fitted integrals: all rotations of
a small molecule, the most likely ones of a large one (its lowest eigenvalue is an upper bound, so a
negative one proves an instability). "full" runs PySCF's iterative analysis over all rotations.
Source: Seeger and Pople, J. Chem. Phys. 66, 3045 (1977).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dfmp2.orbitals import ActiveSpace
from dfmp2.record import Reference, Stability
from dfmp2.reference.shield import shielded

Array = NDArray[np.float64]

EXACT_ROTATIONS = 600  # per spin; up to here the block is the whole Hessian
FRONTIER_OCCUPIED, FRONTIER_VIRTUAL = 16, 32
THRESHOLD = -1e-4  # Eh; a symmetry-broken direction has exactly zero curvature, so zero is not unstable


def frontier_spaces(reference: Reference) -> list[ActiveSpace]:
    """Orbital ranges whose fitted integrals `frontier_stability` needs: (ia), (ij), (ab) of each spin's window."""
    windows = _windows(reference)
    return [s for w in windows for s in (w, _same(w.c_occ, w.eps_occ), _same(w.c_vir, w.eps_vir))]


def frontier_elements(occupied: int, virtual: int) -> int:
    """Elements (p, q) of a spin's `frontier_spaces`: what of B the check holds per fitting function."""
    if occupied * virtual > EXACT_ROTATIONS:
        occupied, virtual = min(occupied, FRONTIER_OCCUPIED), min(virtual, FRONTIER_VIRTUAL)
    return occupied * virtual + occupied**2 + virtual**2


def frontier_stability(reference: Reference, tensors: list[Array]) -> Stability:
    """Stability from the orbital Hessian of the frontier orbitals.

    Parameters
    ----------
    tensors : fitted integrals of `frontier_spaces`, in its order, Eh^1/2

    Returns
    -------
    Stability with the lowest eigenvalue, Eh
    """
    windows = _windows(reference)
    exact = all(_rotations(n) == w.nocc * w.nvir for n, w in zip(reference.mo_occ, windows, strict=True))
    covered = "all rotations" if exact else f"{sum(w.nocc * w.nvir for w in windows)} frontier rotations"
    if reference.kind == "rhf":
        coulomb, exchange = _blocks(windows[0], *tensors)
        lowest = {"RHF to RHF": _lowest(exchange + 4 * coulomb), "RHF to UHF": _lowest(exchange)}
    else:
        (ja, xa), (jb, xb) = (_blocks(w, *tensors[3 * s : 3 * s + 3]) for s, w in enumerate(windows))
        ba, bb = (tensors[3 * s].reshape(-1, tensors[0].shape[2]) for s in (0, 1))
        mixed = 2 * ba @ bb.T
        lowest = {"UHF to UHF": _lowest(np.block([[xa + 2 * ja, mixed], [mixed.T, xb + 2 * jb]]))}
    kind, eigenvalue = min(lowest.items(), key=lambda item: item[1])
    verdict = f"unstable ({kind})" if eigenvalue < THRESHOLD else "stable" if exact else "no instability found"
    return Stability(verdict, f"{', '.join(lowest)}; {covered}", eigenvalue)


def full_stability(mf: Any) -> Stability:
    """Stability from PySCF's iterative analysis over all real rotations (and RHF to UHF)."""
    with shielded():
        if mf.istype("UHF"):
            _, _, internal, _ = mf.stability(internal=True, external=False, return_status=True, verbose=0)
            findings = {"UHF to UHF": internal}
        else:
            _, _, internal, external = mf.stability(internal=True, external=True, return_status=True, verbose=0)
            findings = {"RHF to RHF": internal, "RHF to UHF or complex": external}
    broken = [kind for kind, stable in findings.items() if not stable]
    verdict = f"unstable ({', '.join(broken)})" if broken else "stable"
    return Stability(verdict, f"{', '.join(findings)}; all rotations, PySCF's iterative solver", float("nan"))


def _rotations(occ: Array) -> int:
    return int((occ > 0).sum() * (occ == 0).sum())


def _windows(reference: Reference) -> list[ActiveSpace]:
    spins = zip(reference.mo_coeff, reference.mo_energy, reference.mo_occ, strict=True)
    return [_window(*spin) for spin in spins]


def _window(coeff: Array, energy: Array, occ: Array) -> ActiveSpace:
    occupied, virtual = np.flatnonzero(occ > 0), np.flatnonzero(occ == 0)
    if _rotations(occ) > EXACT_ROTATIONS:
        occupied, virtual = occupied[-FRONTIER_OCCUPIED:], virtual[:FRONTIER_VIRTUAL]
    return ActiveSpace(coeff[:, occupied], coeff[:, virtual], energy[occupied], energy[virtual])


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
    exchange = (-ibja - ijab.reshape(nocc, nocc, nvir, nvir).transpose(0, 2, 1, 3)).reshape(size, size)
    exchange[np.diag_indices(size)] += (window.eps_vir[None, :] - window.eps_occ[:, None]).ravel()
    return coulomb, exchange


def _lowest(hessian: Array) -> float:
    if not hessian.size:
        return float("inf")
    return float(scipy.linalg.eigh(hessian, eigvals_only=True, subset_by_index=[0, 0])[0])
