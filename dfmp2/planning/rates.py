"""Measure this host's rates once, with the program's own routines, and keep them.

They are kept by `dfmp2.host.cache`, one entry per machine, thread count, backend and version of what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from dfmp2.backends import tiling
from dfmp2.backends.base import Backend, Operand, Tile
from dfmp2.host import cache, threads
from dfmp2.host.workers import each
from dfmp2.integrals import three_center
from dfmp2.integrals.metric import factorise
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.molecule.basis_library import resolve_orbital
from dfmp2.molecule.mole import build_auxiliary, build_mole
from dfmp2.molecule.molecule import Molecule
from dfmp2.planning.time import Rates
from dfmp2.progress import Stopwatch
from dfmp2.scf.fitting_sets import resolve_fitting

REPEATS = 3
MEASURED = ("numpy", "scipy", "pyscf", "dfmp2")  # a new version of any of them is measured again


def load(backend: str, count: int) -> Rates | None:
    """Rates measured earlier on this host for a backend and thread count, or None."""
    stored = cache.load(_key(backend, count))
    try:
        return None if stored is None else Rates(**{name: float(value) for name, value in stored.items()})
    except (ValueError, TypeError):
        return None  # a file of another version: measure again


def measure(backend: Backend, count: int) -> Rates:
    """Measure all rates, a few seconds, and store them."""
    with threads.limited(count):
        rates = replace(Rates(), **_host(count), **_pairs(backend))
    _store(backend.name, count, rates)
    return rates


def _host(count: int) -> dict[str, float]:
    """Rates of integrals, transformation, exchange, solves and diagonalisation on four waters."""
    from dfmp2.integrals.screening import every_pair
    from dfmp2.scf.jk import coulomb_exchange, fit_in_place

    molecule = _waters()
    orbital = resolve_orbital("cc-pvtz", molecule.elements)
    mole = build_mole(molecule, orbital, 10**9)
    auxmole = build_auxiliary(mole, molecule, resolve_fitting("ri", None, orbital, molecule.elements))
    nao, naux = int(mole.nao), int(auxmole.nao)
    npair = nao * (nao + 1) // 2
    rng = np.random.default_rng(0)
    c = rng.standard_normal((nao, nao)) / nao
    nocc, nvir = 40, 150
    space = ActiveSpace(c[:, :nocc].copy(), c[:, -nvir:].copy(), -np.ones(nocc), np.ones(nvir))
    clock = Stopwatch()
    b = np.empty((naux, npair))
    evaluate = _best(lambda: [None for _ in three_center.packed_blocks(mole, auxmole, out=b)])
    for _ in three_center.transformed_blocks(mole, auxmole, [space], clock, count):
        pass
    factor = factorise(three_center.coulomb_metric(auxmole))
    solve = _best(lambda: fit_in_place(b, factor.factor, count))
    occupied = [np.ascontiguousarray(c[:, :nocc])]
    pairs = every_pair(nao)
    exchange = _best(lambda: coulomb_exchange(b, pairs, occupied, count))
    single = _best(lambda: coulomb_exchange(b, pairs, occupied, count, single=True))
    overlap = mole.intor_symmetric("int1e_ovlp")
    kinetic = mole.intor_symmetric("int1e_kin")
    eigen = _best(lambda: np.linalg.eigh(overlap @ kinetic @ overlap))
    return {
        "integrals": naux * npair / evaluate,
        "transform": 2 * naux * nocc * nao * (nao + nvir) / clock.seconds["transform"],
        "solve": naux**2 * npair / solve,
        "exchange": (3 * naux * nao**2 * nocc + 4 * naux * npair) / exchange,
        "exchange_single": (3 * naux * nao**2 * nocc + 4 * naux * npair) / single,
        "eigen": nao**3 / (2.5 * eigen),  # one iteration: diagonalisation, orthogonalisation, DIIS, gradient
    }


def _pairs(backend: Backend) -> dict[str, float]:
    """Rates of the pair energies in the precisions the backend has, all its workers at once."""
    nocc, nvir, naux = 16, 256, 768
    rng = np.random.default_rng(1)
    b = rng.standard_normal((nocc, nvir, naux)) / naux
    rates = {}
    for precision in ("fp64", "mixed"):
        if precision in backend.limits.precisions:
            operand = backend.put(b, -np.linspace(1.0, 2.0, nocc), np.linspace(0.5, 5.0, nvir), precision)
            backend.pair_terms(operand, operand, Tile(0, 1, 0, 1, True))
            taken = _best(partial(_every_tile, backend, operand, tiling.triangle(nocc, backend.limits, nvir * naux)))
            rates[f"pairs_{precision}"] = nocc * (nocc + 1) * nvir**2 * naux / taken
    return rates


def _every_tile(backend: Backend, operand: Operand, tiles: list[Tile]) -> None:
    each(len(tiles), lambda number: backend.pair_terms(operand, operand, tiles[number]), backend.limits.workers)


def _waters() -> Molecule:
    """Four water molecules in a row, 3 angstrom apart."""
    one = np.array([[0.0, 0.0, 0.2217], [0.0, 1.4309, -0.8867], [0.0, -1.4309, -0.8867]])
    shift = np.array([5.67, 0.0, 0.0])
    return Molecule(("O", "H", "H") * 4, np.vstack([one + k * shift for k in range(4)]))


def _best(work: Callable[[], Any]) -> float:
    """Shortest time of a few repetitions, s."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _store(backend: str, count: int, rates: Rates) -> None:
    cache.store(_key(backend, count), asdict(rates))


def _key(backend: str, count: int) -> str:
    return cache.key(f"{backend} {count} threads", MEASURED)
