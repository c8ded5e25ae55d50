"""The least time a stage can take: what it must do, divided by what the machine was measured to do in the same run.

    t_limit = integrals / rate + products / GEMM rate + bytes / bandwidth + diagonalisations

The largest term names what the stage is bound by; t_limit over the measured time is the fraction reached.
Counted are only operations no DF-MP2 program can leave out; integrals are evaluated without
screening, but only those of pairs that are not negligible are fitted and contracted. In mixed
precision all Fock matrices but one, and the pair energies, may be done in float32, so they are counted at that rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dfmp2 import threads
from dfmp2.backends.cpu import CpuBackend
from dfmp2.bench.products import square_rate
from dfmp2.molecule import Molecule
from dfmp2.reference import integrals
from dfmp2.reference.basis import resolve_orbital
from dfmp2.reference.fitting_sets import resolve_fitting
from dfmp2.reference.mole import build_auxiliary, build_mole
from dfmp2.reference.pair_list import pair_list
from dfmp2.result import MP2Result
from dfmp2.workload import CYCLES, Spin, Workload

STREAMED = 1 << 27  # bytes read to measure the bandwidth, beyond any cache
EVALUATED = 50_000_000  # integrals to measure their rate, 0.4 GB; half a second on 2 cores
PRODUCTS, MEMORY, INTEGRALS, EIGEN = "matrix products", "memory bandwidth", "integrals", "diagonalisation"


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the machine does per second with all threads; of integrals, for one molecule.

    Attributes
    ----------
    fp64, fp32 : operations of large matrix products
    memory : bytes read
    integrals : three-centre integrals of the orbital basis and the MP2 fitting set
    eigen : seconds of one diagonalisation of the size of the Fock matrix
    """

    fp64: float
    fp32: float
    memory: float
    integrals: float
    eigen: float

    def best(self, other: Ceilings) -> Ceilings:
        """The faster of two measurements, rate by rate."""
        return Ceilings(
            fp64=max(self.fp64, other.fp64),
            fp32=max(self.fp32, other.fp32),
            memory=max(self.memory, other.memory),
            integrals=max(self.integrals, other.integrals),
            eigen=min(self.eigen, other.eigen),
        )


def ceilings(molecule: Molecule, basis: str, nao: int, count: int) -> Ceilings:
    """Measure the machine now, a few seconds.

    Parameters
    ----------
    nao : rows of the Fock matrix
    count : threads
    """
    matrix = np.random.default_rng(0).standard_normal((nao, nao))
    with threads.limited(count):
        memory, integral = _bandwidth(count), _integral_rate(molecule, basis)
        eigen = _seconds(lambda: np.linalg.eigh(matrix + matrix.T))
    return Ceilings(*product_rates(count), memory, integral, eigen)


def product_rates(count: int) -> tuple[float, float]:
    """Operations per second of large matrix products in float64 and float32 with all threads, measured now."""
    backend = CpuBackend(count)
    return square_rate(backend, "fp64", count), square_rate(backend, "mixed", count)


def kept_pairs(molecule: Molecule, basis: str) -> int:
    """Pairs of basis functions the SCF keeps integrals of; the others are negligible."""
    return len(pair_list(build_mole(molecule, resolve_orbital(basis, molecule.elements), 10**9)).columns)


def least_seconds(result: MP2Result, at: Ceilings, columns: int = 0) -> dict[str, dict[str, float]]:
    """Stage -> what bounds it -> seconds it takes at least; columns : kept pairs, 0 for all."""
    sizes, reference = result.sizes, result.reference
    nspin = reference.nspin
    spins = tuple(
        Spin(nocc + sizes.frozen_core, nocc, nvir)
        for nocc, nvir in list(zip(sizes.nocc, sizes.nvir, strict=True))[:nspin]
    )
    precision = "fp64" if result.precision == "fp64" else "mixed"
    work = Workload(sizes.nao, sizes.naux_scf, sizes.naux, spins, precision, 0, scf_columns=columns)
    flops, evaluated = work.flops(), work.integrals()
    builds = reference.cycles + 1
    coulomb = 4 * nspin * sizes.naux_scf * work.kept_pairs  # operations per build; two passes over the integrals
    exchange = flops["exchange"] / (CYCLES + 1) - coulomb
    single = builds - 1 if precision == "mixed" else 0
    return {
        "scf": {
            INTEGRALS: evaluated["scf"] / at.integrals,
            PRODUCTS: flops["scf_fit"] / at.fp64 + exchange * (single / at.fp32 + (builds - single) / at.fp64),
            MEMORY: builds * 4 * coulomb / nspin / at.memory,
            EIGEN: builds * nspin * at.eigen,
        },
        "integrals": {INTEGRALS: evaluated["integrals"] / at.integrals},
        "fit": {PRODUCTS: flops["fit"] / at.fp64},
        "transform": {PRODUCTS: flops["transform"] / at.fp64},
        "pair_energies": {PRODUCTS: flops["pairs_fp64"] / at.fp64 + flops["pairs_mixed"] / at.fp32},
    }


def _bandwidth(count: int) -> float:
    """Bytes per second that all threads read together."""
    data = np.ones(STREAMED // 8)
    parts = np.array_split(data, count)
    with ThreadPoolExecutor(count) as pool:
        return STREAMED / _seconds(lambda: list(pool.map(np.sum, parts)))


def _integral_rate(molecule: Molecule, basis: str) -> float:
    """Three-centre integrals per second, into memory that is there already."""
    orbital = resolve_orbital(basis, molecule.elements)
    mole = build_mole(molecule, orbital, 10**9)
    auxmole = build_auxiliary(mole, molecule, resolve_fitting("ri", None, orbital, molecule.elements))
    pairs = int(mole.nao) * (int(mole.nao) + 1) // 2
    largest = integrals.block_functions(auxmole, int(mole.nao))
    out = np.empty((min(int(auxmole.nao), max(largest, EVALUATED // pairs)), pairs))

    def evaluate() -> int:
        done = 0
        for _, done, _ in integrals.packed_blocks(mole, auxmole, out=out):
            if done + largest > len(out):
                break
        return done * pairs

    evaluate()  # touches the memory
    start = time.perf_counter()
    return evaluate() / (time.perf_counter() - start)


def _seconds(work: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
