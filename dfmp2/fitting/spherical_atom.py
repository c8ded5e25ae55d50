"""A spherical atom: Hartree-Fock with averaged shells, and two-electron integrals from radial
functions alone.

    (ab|cd) = sum_k R^k(ab,cd) sum_q c_kq(ab) c_kq(cd)      q = -k..k; c_kq comes from the angles                  (1)
    R^k(ab,cd) = int int f_a f_b(r) r_<^k / r_>^(k+1) f_c f_d(s) r^2 s^2 dr ds = sum_w X^k_ab,w X^k_cd,w           (2)

f are the radial parts of a, b, c, d. With r = e^x, s = e^y and u = k + 1/2 the kernel is
e^(-u|x-y|) / (rs)^(1/2), a convolution: X^k_ab,w is the Fourier transform of f_a f_b r^(5/2) times
the square root of 2 u / (u^2 + w^2). These functions of x are smooth and vanish at both ends, so a
uniform grid gives 12 digits. A fitting set gives another X: its functions of angular momentum k fit
R^k. Summed over the angular parts, with n = (2i+1)(2a+1)(2j+1)(2b+1), i to b now being angular
momenta, 3j symbols (i k a) of zero projections and 6j symbols:

    sum (ij|ij)        = (2i+1)(2j+1) sum_k (i k j)^2 R^k(ij,ij)                                                   (3)
    sum (ia|jb)^2      = n sum_k (i k a)^2 (j k b)^2 / (2k+1) R^k(ia,jb)^2                                         (4)
    sum (ia|jb)(ib|ja) = n sum_kp (-1)^(k+p) (i k a)(j k b)(i p b)(j p a) {i a k, j b p} R^k(ia,jb) R^p(ib,ja)     (5)

Source: Slater, Quantum Theory of Atomic Structure (1960), volume 1; Edmonds, Angular Momentum in
Quantum Mechanics (1957), for the symbols.
"""

# ruff: noqa: E741 - l is the usual symbol of an angular momentum
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.integrals.metric import factorise
from dfmp2.molecule.mole import start_density
from dfmp2.molecule.pyscf_shield import shielded

# Period in x; more than half of it is empty, so that the kernel of k = 0 can decay
POINTS, LENGTH = (2048, 95.0)
R = np.exp(np.arange(-27.0, 7.5, LENGTH / POINTS))  # bohr; for exponents from 1e-5 to 1e11

Factor = Callable[[int, Array], Array]  # k, products f_a f_b (..., points) -> X^k, (..., nw)


Potentials = dict[tuple[int, int], dict[int, Array]]  # X^k by k, for angular momenta of two shells


@dataclass(frozen=True, slots=True, eq=False)
class Shells:
    """Orbitals of one angular momentum l.

    Attributes
    ----------
    values : (n, points) radial parts at R, bohr^-3/2
    energies : (n,) Eh
    occupations : (n,) electrons in each of the 2l + 1 orbitals, 0 to 2
    """

    values: Array
    energies: Array
    occupations: Array

    def part(self, *, occupied: bool) -> Shells:
        """The shells with electrons, or those without."""
        those = (self.occupations > 0) == occupied
        return Shells(self.values[those], self.energies[those], self.occupations[those])


def radial_functions(mole: Any) -> list[Array]:
    """Radial parts of the basis functions of an atom, (n, points) for each angular momentum from
    0."""
    found: dict[int, list[Array]] = {}
    for shell in range(mole.nbas):
        momentum = mole.bas_angular(shell)
        gaussians = R**momentum * np.exp(-np.outer(mole.bas_exp(shell), R**2))
        found.setdefault(momentum, []).extend(mole._libcint_ctr_coeff(shell).T @ gaussians)
    return [np.reshape(found.get(momentum, []), (-1, len(R))) for momentum in range(max(found) + 1)]


def exact_potential(k: int, products: Array) -> Array:
    """X^k of Eq. 2."""
    frequencies = 2 * np.pi * np.fft.rfftfreq(POINTS, LENGTH / POINTS)
    kernel = (2 * k + 1) / ((k + 0.5) ** 2 + frequencies**2) / LENGTH
    kernel[1:-1] *= 2  # for the negative frequencies
    transformed = np.fft.rfft(products * R**2.5, POINTS) * (np.sqrt(kernel) * (LENGTH / POINTS))
    return np.concatenate([transformed.real, transformed.imag], axis=-1)


def fitted_potential(auxmole: Any) -> Factor:
    """X^k from the fitting functions of an atom: B_ab,P of one of the 2k + 1 functions."""
    functions = [
        exact_potential(k, values) * math.sqrt(4 * np.pi / (2 * k + 1))
        for k, values in enumerate(radial_functions(auxmole))
    ]
    factor = factorise(scipy.linalg.block_diag(*(x @ x.T for x in functions)))
    inverse = factor.factor.T if factor.triangular else factor.factor
    inverses = np.split(inverse, np.cumsum([len(x) for x in functions])[:-1])  # rows of each k

    def potential(k: int, products: Array) -> Array:
        if k >= len(functions):
            return np.zeros((*products.shape[:-1], 0))
        return np.asarray(exact_potential(k, products) @ functions[k].T @ inverses[k])

    return potential


def atomic_hartree_fock(mole: Any) -> list[Shells]:
    """Shells of the neutral atom, for each angular momentum from 0, from PySCF's SCF with J and K
    from Eq. 2.

    Raises
    ------
    AssertionError, IndexError : PySCF fills shells that the basis does not have
    """
    functions = radial_functions(mole)
    momenta = np.concatenate(
        [np.full(_width(mole, n), mole.bas_angular(n)) for n in range(mole.nbas)]
    )
    # (n, 2l + 1)
    places = [np.flatnonzero(momenta == l).reshape(-1, 2 * l + 1) for l in range(len(functions))]

    def coulomb_exchange(_mole: Any, density: Any, *_: Any, **__: Any) -> tuple[Array, Array]:
        return _coulomb_exchange(density, places, functions)

    with shielded():
        from pyscf.scf.atom_hf import AtomSphAverageRHF

        mf = AtomSphAverageRHF(mole)
        mf.get_jk, mf.direct_scf = coulomb_exchange, False
        mf.kernel(start_density(mole, "rhf"))
    shells = []
    for at, values in zip(places, functions, strict=True):
        own = mf.mo_coeff[at[:, 0]].any(axis=0)  # orbitals of the first m
        shells.append(
            Shells(mf.mo_coeff[at[:, 0]][:, own].T @ values, mf.mo_energy[own], mf.mo_occ[own])
        )
    return shells


def _coulomb_exchange(
    density: Any, places: list[NDArray[np.intp]], functions: list[Array]
) -> tuple[Array, Array]:
    """J and K of a spherical density, (nao, nao) Eh.

    Parameters
    ----------
    places, functions : for each angular momentum l, places of the basis functions, (n, 2l + 1), and
        their radial parts, (n, points)
    """
    natural = []  # orbitals of the density, and electrons in all 2l + 1 of them
    for at, values in zip(places, functions, strict=True):
        of_momentum = np.einsum("pmqm->pq", density[at[:, :, None, None], at])
        weights, vectors = np.linalg.eigh(of_momentum)
        there = np.abs(weights) > 1e-14
        natural.append((vectors[:, there].T @ values, weights[there]))
    charge = exact_potential(
        0, np.sum([weights @ values**2 for values, weights in natural], axis=0)
    )
    j, k = np.zeros((2, *density.shape))
    for l, (at, values) in enumerate(zip(places, functions, strict=True)):
        coulomb = exact_potential(0, values[:, None] * values) @ charge
        exchange = np.zeros_like(coulomb)
        for l2, (others, weights) in enumerate(natural):
            for power in _powers(l, l2):
                x = exact_potential(power, values[:, None] * others)
                exchange += three_j(l, power, l2) ** 2 * np.tensordot(
                    x * weights[:, None], x, axes=((1, 2), (1, 2))
                )
        for m in at.T:
            j[np.ix_(m, m)] = coulomb
            k[np.ix_(m, m)] = exchange
    return j, k


def coulomb_exchange_energy(shells: list[Shells], factor: Factor) -> float:
    """1/2 (J | D) - 1/4 (K | D), Eh."""
    occupied = [shell.part(occupied=True) for shell in shells]
    density = [
        (2 * l + 1) * shell.occupations @ shell.values**2 for l, shell in enumerate(occupied)
    ]
    charge = factor(0, np.sum(density, axis=0))
    exchange = 0.0
    for l, left in enumerate(occupied):
        for l2, right in enumerate(occupied):
            for k in _powers(l, l2):
                x = factor(k, left.values[:, None] * right.values)
                summed = left.occupations @ (x**2).sum(axis=2) @ right.occupations
                # Eq. 3
                exchange += (2 * l + 1) * (2 * l2 + 1) * three_j(l, k, l2) ** 2 * float(summed)
    return float(charge @ charge) / 2 - exchange / 4


def second_order_energy(shells: list[Shells], factor: Factor, least_gap: float) -> float:
    """-sum_ijab w_i w_j (ia|jb) [2 (ia|jb) - (ib|ja)] / (g_ia + g_jb), Eh.

    w is half the occupation, and g_ia = max(e_a - e_i, least_gap), Eh.
    """
    occupied = {l: shell.part(occupied=True) for l, shell in enumerate(shells)}
    empty = {l: shell.part(occupied=False) for l, shell in enumerate(shells)}
    occupied = {l: part for l, part in occupied.items() if len(part.values)}
    empty = {l: part for l, part in empty.items() if len(part.values)}
    gaps: dict[tuple[int, int], Array] = {}
    x: Potentials = {}
    for (i, left), (a, right) in product(occupied.items(), empty.items()):
        gaps[i, a] = np.maximum(right.energies - left.energies[:, None], least_gap)
        x[i, a] = {k: factor(k, left.values[:, None] * right.values) for k in _powers(i, a)}
    total = 0.0
    for i, j, a, b in product(occupied, occupied, empty, empty):
        weights = np.outer(occupied[i].occupations, occupied[j].occupations) / 4
        gap = gaps[i, a][:, :, None, None] + gaps[j, b]
        size = (2 * i + 1) * (2 * a + 1) * (2 * j + 1) * (2 * b + 1)
        for terms in _squared_integrals(x, i, j, a, b):
            total -= size * float(np.einsum("ij,iajb->", weights, terms / gap))
    return total


def _squared_integrals(x: Potentials, i: int, j: int, a: int, b: int) -> Iterator[Array]:
    """(ia|jb) [2 (ia|jb) - (ib|ja)] summed over the angular parts, without n of Eqs. 4 and 5: one
    term (ni, na, nj, nb) for each k."""
    crossed = _slater(x[i, b], x[j, a])
    for k, r in _slater(x[i, a], x[j, b]).items():
        outer = three_j(i, k, a) * three_j(j, k, b)
        terms = 2 * outer**2 / (2 * k + 1) * r  # Eq. 4
        for p, s in crossed.items():  # Eq. 5
            inner = three_j(i, p, b) * three_j(j, p, a) * six_j(i, a, k, j, b, p)
            terms -= (-1) ** (k + p) * outer * inner * s.transpose(0, 3, 2, 1)
        yield terms * r


def _slater(left: dict[int, Array], right: dict[int, Array]) -> dict[int, Array]:
    """R^k(ia,jb) by k, (ni, na, nj, nb), from X^k of ia and of jb."""
    return {k: np.tensordot(left[k], right[k], axes=(2, 2)) for k in left if k in right}


def _powers(l: int, l2: int) -> range:
    """Angular momenta k in the products of functions with l and l2."""
    return range(abs(l - l2), l + l2 + 1, 2)


def _width(mole: Any, shell: int) -> int:
    """Number of functions of a shell."""
    return int((2 * mole.bas_angular(shell) + 1) * mole.bas_nctr(shell))


@cache
def three_j(a: int, b: int, c: int) -> float:
    """3j symbol of zero projections; a + b + c is even and a, b, c form a triangle."""
    half, f = (a + b + c) // 2, math.factorial
    root = math.sqrt(f(2 * (half - a)) * f(2 * (half - b)) * f(2 * (half - c)) / f(2 * half + 1))
    size = root * f(half) / (f(half - a) * f(half - b) * f(half - c))
    return -size if half % 2 else size


@cache
def six_j(a: int, b: int, c: int, d: int, e: int, g: int) -> float:
    """6j symbol {a b c, d e g}, by Racah's formula."""
    f = math.factorial
    triads = ((a, b, c), (a, e, g), (d, b, g), (d, e, c))
    if not all(abs(x - y) <= z <= x + y for x, y, z in triads):
        return 0.0
    squares = [f(x + y - z) * f(x - y + z) * f(y + z - x) / f(x + y + z + 1) for x, y, z in triads]
    low = [sum(triad) for triad in triads]
    high = [a + b + d + e, b + c + e + g, c + a + g + d]
    return math.sqrt(math.prod(squares)) * math.fsum(
        (-1) ** t * f(t + 1) / math.prod([f(t - s) for s in low] + [f(s - t) for s in high])
        for t in range(max(low), min(high) + 1)
    )
