"""Derivatives of integrals with respect to the nuclei, contracted with densities immediately.

    one electron      sum_mn D_mn h^x_mn - sum_mn W_mn S^x_mn
    two centres       sum_PQ g_PQ (P|Q)^x
    three centres     sum_Q,mn G_Q,mn (mn|Q)^x                           blocks of Q
    four centres      sum_mnls D_ls [X_mn (mn|ls)^x - 1/2 Y_mn (ml|ns)^x]     conventional SCF

All densities are symmetric in m and n. Basis functions move with their atoms: d/dA of a function on
A is minus its derivative with respect to the electron position, and by translational invariance
d/dQ (mn|Q) = -(d/dm + d/dn)(mn|Q), so three-centre integrals need the derivative of only one
function. Integrals come from PySCF (libcint), as does h^x of the spin-free X2C Hamiltonian.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.host.threads import each
from dfmp2.integrals.three_center import packed_blocks, shell_blocks
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.scf import hamiltonian

Block = tuple[int, int, Array]  # p0, p1 and (p1-p0, nao, nao) numbers, symmetric in the last two

SHELLS_PER_CALL = 64  # of fitting functions P, whose derivatives of (P|Q) are in memory at a time
CHARGES_PER_CALL = 64  # whose field integrals are in memory at a time


def by_atom(mole: Any, values: Array) -> Array:
    """Sums over the functions of each atom, (natom, 3), of values (3, nao)."""
    slices = mole.aoslice_by_atom()[:, 2:]
    return np.stack([values[:, p0:p1].sum(axis=1) for p0, p1 in slices])


def nuclear_repulsion_gradient(mole: Any, charges: Array | None) -> tuple[Array, Array | None]:
    """Gradient of the repulsion of the nuclei and point charges: on the atoms (natom, 3), on the
    charges (n, 3), Eh/bohr.

    Parameters
    ----------
    charges : array, optional
        (n, 4) x, y, z in bohr and charge in e, or None.
    """
    places = mole.atom_coords()
    z = mole.atom_charges().astype(np.float64)
    apart = places[:, None] - places
    distance = np.sqrt((apart**2).sum(axis=2))
    np.fill_diagonal(distance, np.inf)
    gradient = -np.einsum("a,b,ab,abx->ax", z, z, distance**-3, apart, optimize=True)
    if charges is None:
        return gradient, None
    on_charges = np.empty((len(charges), 3))
    nuclei = z != 0  # a ghost may lie on a charge
    for number, (*place, q) in enumerate(charges):
        away = places[nuclei] - place
        force = -(z[nuclei] * q / np.sqrt((away**2).sum(axis=1)) ** 3)[:, None] * away
        gradient[nuclei] += force
        on_charges[number] = -force.sum(axis=0)
    return gradient, on_charges


def one_electron(mole: Any, relativity: str, density: Array, weighted: Array) -> Array:
    """sum D h^x - sum W S^x without point charges, (natom, 3) Eh/bohr.

    Parameters
    ----------
    relativity : str
        "none" or "x2c".
    density, weighted : array
        D and W, sums over spins, (nao, nao).
    """
    with shielded():
        if relativity == "none":
            gradient = _core(mole, density)
        else:
            mf = hamiltonian.mean_field(mole, "rhf" if mole.spin == 0 else "uhf", relativity, None)
            derivative = mf.nuc_grad_method().hcore_generator(mole)
            gradient = np.stack(
                [np.einsum("xmn,mn->x", derivative(atom), density) for atom in range(mole.natm)]
            )
        overlap = mole.intor("int1e_ipovlp", comp=3)
    return gradient + 2 * by_atom(mole, np.einsum("xmn,mn->xm", overlap, weighted))


def _core(mole: Any, density: Array) -> Array:
    """sum D h^x of kinetic energy, nuclei and core potentials, (natom, 3) Eh/bohr.

    PySCF has it too, in a package that takes 0.3 s to load.
    """
    from pyscf import gto

    with_cores = set()
    moved = mole.intor("int1e_ipkin", comp=3) + mole.intor("int1e_ipnuc", comp=3)
    if mole.has_ecp():
        moved += mole.intor("ECPscalar_ipnuc", comp=3)
        with_cores = set(mole._ecpbas[:, gto.ATOM_OF])
    gradient = -by_atom(mole, np.einsum("xmn,mn->xm", moved, density))
    for atom in range(mole.natm):
        with mole.with_rinv_at_nucleus(atom):
            field = -mole.atom_charge(atom) * mole.intor("int1e_iprinv", comp=3)
            if atom in with_cores:
                field += mole.intor("ECPscalar_iprinv", comp=3)
        gradient[atom] += np.einsum("xmn,mn->x", field, density)
    return 2 * gradient


def point_charge_gradient(mole: Any, charges: Array, density: Array) -> tuple[Array, Array]:
    """Gradient of the energy of the electrons in the field of point charges: on the atoms (natom,
    3), on the charges (n, 3), Eh/bohr.

    Parameters
    ----------
    charges : array
        (n, 4) x, y, z in bohr and charge in e.
    density : array
        Summed over spins, (nao, nao).
    """
    on_functions = np.zeros((3, mole.nao))
    on_charges = np.empty((len(charges), 3))
    with shielded():
        for first in range(0, len(charges), CHARGES_PER_CALL):
            some = charges[first : first + CHARGES_PER_CALL]
            # (x, k, m, n): dm/dr with 1/|r - R_k|
            field = mole.intor("int1e_grids_ip", grids=some[:, :3])
            parts = np.einsum("xkmn,mn,k->xkm", field, density, some[:, 3], optimize=True)
            on_functions += parts.sum(axis=1)
            on_charges[first : first + len(some)] = -2 * parts.sum(axis=2).T
    return 2 * by_atom(mole, on_functions), on_charges


def two_center(auxmole: Any, factors: Array) -> Array:
    """sum_PQ g_PQ (P|Q)^x, (natom, 3) Eh/bohr; `factors` is g, (naux, naux), not necessarily
    symmetric."""
    edges = auxmole.ao_loc_nr()
    sums = np.empty((3, auxmole.nao))
    both = factors + factors.T
    with shielded():
        for first in range(0, auxmole.nbas, SHELLS_PER_CALL):
            last = min(first + SHELLS_PER_CALL, auxmole.nbas)
            # dP/dr
            integrals = auxmole.intor(
                "int2c2e_ip1", comp=3, shls_slice=(first, last, 0, auxmole.nbas)
            )
            rows = slice(edges[first], edges[last])
            sums[:, rows] = np.einsum("xpq,pq->xp", integrals, both[rows])
    return -by_atom(auxmole, sums)


def three_center(mole: Any, auxmole: Any, densities: Iterable[Block], threads: int) -> Array:
    """sum_Q,mn G_Q,mn (mn|Q)^x, (natom, 3) Eh/bohr.

    Parameters
    ----------
    densities : iterable of Block
        G in blocks of whole shells of fitting functions, as cut by `blocks`.
    threads : int
        Number of workers for the contraction.
    """
    on_functions = np.zeros((3, mole.nao))
    on_fitting = np.zeros((3, auxmole.nao))
    with shielded():
        from pyscf.gto import conc_env, moleintor

        atm, bas, env = conc_env(
            mole._atm, mole._bas, mole._env, auxmole._atm, auxmole._bas, auxmole._env
        )
        edges = auxmole.ao_loc_nr()
        optimiser = moleintor.make_cintopt(atm, bas[: mole.nbas], env, "int3c2e_ip1_sph")
        work = np.empty(0)
        for p0, p1, density in densities:
            first, last = (mole.nbas + int(shell) for shell in np.searchsorted(edges, (p0, p1)))
            size = 3 * density.size
            if len(work) < size:
                work = np.empty(size)
            found = moleintor.getints3c(
                "int3c2e_ip1_sph",
                atm,
                bas,
                env,
                (0, mole.nbas, 0, mole.nbas, first, last),
                3,
                aosym="s1",
                cintopt=optimiser,
                out=work[:size],
            )
            found = found.transpose(0, 3, 2, 1)  # memory order (x, Q, n, m): dm/dr
            parts = np.empty((3, p1 - p0, mole.nao))

            def contract(
                worker: int, found: Array = found, density: Array = density, parts: Array = parts
            ) -> None:
                for q in range(worker, len(density), threads):
                    np.einsum("xnm,nm->xm", found[:, q], density[q], out=parts[:, q])

            each(threads, contract, threads)
            on_functions += parts.sum(axis=1)
            on_fitting[:, p0:p1] = parts.sum(axis=2)
    return 2 * (by_atom(auxmole, on_fitting) - by_atom(mole, on_functions))


def blocks(mole: Any, auxmole: Any, packed_bytes: int) -> list[tuple[int, int]]:
    """Ranges of fitting functions, whole shells, for one block of densities and derivatives
    each."""
    edges = auxmole.ao_loc_nr()
    return [
        (int(edges[p]), int(edges[q]))
        for p, q in shell_blocks(np.diff(edges), mole.nao, packed_bytes)
    ]


def unpacked_blocks(mole: Any, auxmole: Any, packed_bytes: int) -> Iterator[Block]:
    """(mn|Q) in the ranges of `blocks`, (p1-p0, nao, nao) float64."""
    from pyscf import lib

    for p0, p1, packed in packed_blocks(mole, auxmole, block_bytes=packed_bytes):
        yield p0, p1, lib.unpack_tril(packed)


def four_center(
    mole: Any,
    density: Sequence[Array],
    coulomb: Sequence[Array],
    exchange: Sequence[Array],
    weight: float,
) -> Array:
    """Gradient of the Coulomb energy of D with X and the exchange energy of D with Y, from
    four-centre integrals, (natom, 3) Eh/bohr.

    sum (mn|ls)^x X^T_mn D^T_ls - w sum_s (ml|ns)^x Y^s_mn D^s_ls, where T is w times the sum over
    spins

    Parameters
    ----------
    mole : pyscf.gto.Mole
        PySCF molecule; for integrals of a long-range operator, one with the operator set.
    density : sequence of array
        D of each spin, symmetric (nao, nao).
    coulomb, exchange : sequence of array
        X and Y of each spin, symmetric (nao, nao); empty if that part is not wanted.
    weight : float
        w; 2 if one spin stands for both.
    """
    from pyscf.grad import rhf

    others = [*density, *exchange]
    totals = []
    if coulomb:
        totals = [weight * np.sum(density, axis=0), weight * np.sum(coulomb, axis=0)]
    parts = np.zeros((3, mole.nao))
    with shielded():  # matrices of dm/dr with the sign of dm/dA, in one pass over the integrals
        fields, exchanged = rhf.get_jk(mole, np.stack([*others, *totals]))
    if coulomb:
        parts += np.einsum("xmn,mn->xm", fields[-2], totals[1])
        parts += np.einsum("xmn,mn->xm", fields[-1], totals[0])
    if exchange:
        for s, d in enumerate(density):
            parts -= weight * np.einsum("xmn,mn->xm", exchanged[s], exchange[s])
            parts -= weight * np.einsum("xmn,mn->xm", exchanged[len(density) + s], d)
    return 2 * by_atom(mole, parts)
