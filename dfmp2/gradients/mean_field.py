"""Coulomb energy of the SCF density D with X, and exchange energy of D with Y: derivatives of their
fitted integrals.

    E = sum_mnls X^T_mn (mn|ls) D^T_ls - sum_s sum_mnls Y^s_mn (ml|ns) D^s_ls         T: sum over the spins s

With X = Y = D/2 this is the energy of Hartree-Fock; with P it is the term P f of the correlation
energy. For a functional, Y contains c D/2 and c P, c being its exact exchange; a range-separated
one also needs integrals of the long-range operator, without Coulomb. In the Coulomb-exchange
fitting set, with V = (P|Q), c = V^-1 (Q|, and i occupied orbitals of a spin,

    dE = sum_Q [ X^T_mn c_Q(D^T) + D^T_mn c_Q(X^T) ] d(mn|Q) - sum_PQ c_P(X^T) c_Q(D^T) dV_PQ
         - sum_s [ 2 sum_i C_mi t_iQ,n d(mn|Q) - sum_iPQ c_iP,n t_iQ,n dV_PQ ]         t_iQ,m = sum_n Y^s_mn c_iQ,n

The half-transformed (in|Q) of all occupied orbitals are kept, (nocc, nao, naux), in memory or on
disk, and overwritten by t. Source: Weigend, Phys. Chem. Chem. Phys. 4, 4285 (2002), for the fitted
matrices; the derivative follows from the expression above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.gradients import derivatives
from dfmp2.gradients.correlation import add_product
from dfmp2.gradients.functional import Functionals
from dfmp2.gradients.response import Orbitals, Relaxed
from dfmp2.host.arrays_on_disk import ScratchTensor
from dfmp2.host.scratch import Space
from dfmp2.host.threads import each_share
from dfmp2.integrals.metric import InverseMetric
from dfmp2.integrals.three_center import coulomb_metric
from dfmp2.mp2.calculation import Calculation
from dfmp2.scf.kohn_sham import HARTREE_FOCK


def mean_field_gradient(
    calculation: Calculation,
    spins: Sequence[Orbitals],
    relaxed: Sequence[Relaxed],
    functionals: Functionals | None,
) -> tuple[Array, Array | None]:
    """Eqs. 1 and 2 of `dfmp2.gradients.gradient` without the functional: gradient on the atoms,
    (natom, 3), and on the point charges, (n, 3) Eh/bohr.

    Parameters
    ----------
    relaxed : sequence of Relaxed
        P and W of each spin.
    """
    mole, charges = calculation.system.mole, calculation.system.molecule.point_charges
    weight = 2.0 if len(spins) == 1 else 1.0
    scf = [o.density for o in spins]
    change = [o.in_functions(p.relaxed) for o, p in zip(spins, relaxed, strict=True)]
    density = weight * np.sum([*scf, *change], axis=0)
    weighted = weight * np.sum(_energy_weighted(spins, relaxed, functionals), axis=0)
    on_atoms, on_charges = derivatives.nuclear_repulsion_gradient(mole, charges)
    on_atoms += derivatives.one_electron(mole, calculation.options.relativity, density, weighted)
    if charges is not None and on_charges is not None:
        of_charges = derivatives.point_charge_gradient(mole, charges, density)
        on_atoms += of_charges[0]
        on_charges += of_charges[1]
    coulomb = [d / 2 + p for d, p in zip(scf, change, strict=True)]
    for omega, exchanged in exchanged_densities(scf, change, functionals).items():
        others = [] if omega else coulomb
        on_atoms += _two_electron(calculation, spins, others, exchanged, omega)
    return on_atoms, on_charges


def _energy_weighted(
    spins: Sequence[Orbitals], relaxed: Sequence[Relaxed], functionals: Functionals | None
) -> list[Array]:
    """W_HF + W of each spin, (nao, nao) Eh."""
    weighted = [o.in_functions(p.weighted) for o, p in zip(spins, relaxed, strict=True)]
    if functionals is not None and not functionals.stationary:
        return weighted  # W is that of the whole energy
    of_scf = []
    for o in spins:
        energies = np.where(np.arange(len(o.energy)) < o.occupied, o.energy, 0.0)
        of_scf.append(o.in_functions(np.diag(energies)))
    return [one + more for one, more in zip(of_scf, weighted, strict=True)]


def _two_electron(
    calculation: Calculation,
    spins: Sequence[Orbitals],
    others: Sequence[Array],
    exchanged: Sequence[Array],
    omega: float,
) -> Array:
    """Eq. 2 of one operator, (natom, 3) Eh/bohr.

    Parameters
    ----------
    others, exchanged : sequence of array
        X and Y per spin, as in `mean_field_part`.
    omega : float
        Of the long-range operator in 1/bohr, 0 for the full one.
    """
    system, memory = calculation.system, calculation.plan.memory.gradient
    mole = _with_operator(system.mole, omega)
    if system.jk_auxmole is None:
        weight = 2.0 if len(spins) == 1 else 1.0
        densities = [o.density for o in spins]
        return derivatives.four_center(mole, densities, others, exchanged, weight)
    return mean_field_part(
        mole,
        _with_operator(system.jk_auxmole, omega),
        [o.coeff[:, : o.occupied] for o in spins],
        others,
        exchanged,
        memory.packed_bytes,
        calculation.space if memory.half_on_disk else None,
        calculation.setup.active,
    )


def _with_operator(mole: Any, omega: float) -> Any:
    """The PySCF molecule, for integrals of the long-range operator unless omega is 0."""
    if not omega:
        return mole
    mole = mole.copy()
    mole.set_range_coulomb(omega)
    return mole


def exchanged_densities(
    scf: Sequence[Array], change: Sequence[Array], functionals: Functionals | None
) -> dict[float, list[Array]]:
    """Densities Y that D exchanges with, (nao, nao) per spin, keyed by omega of the operator: first
    0, the full one, empty if it has no exact exchange.

    Parameters
    ----------
    scf, change : sequence of array
        D and P of each spin, (nao, nao).
    """
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


def mean_field_part(
    mole: Any,
    auxmole: Any,
    occupied: Sequence[Array],
    others: Sequence[Array],
    exchanged: Sequence[Array],
    packed_bytes: int,
    space: Space | None,
    threads: int,
) -> Array:
    """Gradient of the fitted Coulomb energy of D with X and exchange energy of D with Y, (natom, 3)
    Eh/bohr.

    Parameters
    ----------
    mole, auxmole : pyscf.gto.Mole
        PySCF molecules with the orbital and the Coulomb-exchange fitting functions; for integrals
        of a long-range operator, ones with the operator set.
    occupied : sequence of array
        Occupied orbitals per spin (nao, nocc), with D = C C^T; a single entry stands for both.
    others, exchanged : sequence of array
        X and Y per spin, (nao, nao) symmetric; empty if that part is not wanted.
    packed_bytes : int
        Bytes of packed integrals per block.
    space : Space, optional
        Scratch space for the half-transformed integrals, None to keep them in memory.
    threads : int
        Number of workers.
    """
    weight = 2.0 if len(occupied) == 1 else 1.0
    density = weight * np.sum([c @ c.T for c in occupied], axis=0)
    other = np.zeros_like(density)
    if others:
        other = weight * np.sum(others, axis=0)
    exchanging = occupied if exchanged else []
    ranges = derivatives.blocks(mole, auxmole, packed_bytes)
    half = [  # (in|Q), then t
        ScratchTensor((c.shape[1], mole.nao, auxmole.nao), ranges, space, f"half-{s}")
        for s, c in enumerate(exchanging)
    ]
    raw = np.zeros((2, auxmole.nao))  # (Q|D), (Q|X)
    for p0, p1, integrals in derivatives.unpacked_blocks(mole, auxmole, packed_bytes):
        if others:
            flat = integrals.reshape(p1 - p0, -1)
            raw[0, p0:p1] = flat @ density.ravel()
            raw[1, p0:p1] = flat @ other.ravel()
        for c, tensor in zip(exchanging, half, strict=True):
            tensor.put_block(p0, p1, _half_transformed(integrals, c, threads))
    inverse = InverseMetric(coulomb_metric(auxmole), threads)
    unfitted = raw @ inverse.dropped
    of_density, of_other = inverse.apply(raw.copy())
    factors = -np.outer(of_other, of_density)
    mixed = np.outer(of_density, unfitted[1]) + np.outer(of_other, unfitted[0])
    for y, tensor in zip(exchanged, half, strict=True):
        for products, left_out in _fit_exchange(tensor, y, inverse, threads):
            factors += weight * products
            mixed -= 2 * weight * left_out

    def densities() -> Iterator[derivatives.Block]:
        for p0, p1 in ranges:
            total = of_density[p0:p1, None, None] * other + of_other[p0:p1, None, None] * density
            for c, tensor in zip(exchanging, half, strict=True):
                _subtract(total, weight * c, tensor.block(p0, p1), threads)
            yield p0, p1, total

    gradient = derivatives.three_center(mole, auxmole, densities(), threads)
    for tensor in half:
        tensor.discard()
    return gradient + derivatives.two_center(auxmole, factors + inverse.mixing(mixed))


def _fit_exchange(
    tensor: ScratchTensor, y: Array, inverse: InverseMetric, threads: int
) -> list[tuple[Array, Array]]:
    """sum_in c_iP,n t_iQ,n, and the same with (in|R) along dropped eigenvectors R for c, each (naux,
    naux or fewer) as one term per worker; (in|Q) in `tensor` is replaced by t."""
    nocc, _, naux = tensor.shape

    def share(first: int, last: int) -> tuple[Array, Array]:
        products = np.zeros((naux, naux))
        left_out = np.zeros((naux, inverse.dropped.shape[1]))
        for i in range(first, last):
            rows = tensor.rows(i)
            unfitted = rows @ inverse.dropped
            fitted = inverse.apply(rows)
            turned = y @ fitted
            products += fitted.T @ turned
            left_out += turned.T @ unfitted
            tensor.put_rows(i, turned)
        return products, left_out

    return each_share(nocc, share, threads)


def _half_transformed(integrals: Array, c: Array, threads: int) -> Array:
    """(in|Q), (nocc, nao, q), from (q, nao, nao)."""
    count, nao = integrals.shape[:2]
    half = np.empty((c.shape[1], nao, count))

    def share(first: int, last: int) -> None:
        half[:, :, first:last] = np.matmul(c.T, integrals[first:last]).transpose(1, 2, 0)

    each_share(count, share, threads)
    return half


def _subtract(total: Array, c: Array, t: Array, threads: int) -> None:
    """Subtract C t and its transpose from G of a block; t is (nocc, nao, q)."""

    def share(first: int, last: int) -> None:
        rows = np.ascontiguousarray(t[:, :, first:last].transpose(2, 0, 1))
        add_product(total[first:last], -c, rows)

    each_share(len(total), share, threads)
