"""Seconds a run will take: its workload divided by the rates of this host, its traffic by those of the scratch folder.

Rates are measured once per host (`dfmp2.calibration`, `dfmp2.scratch.speed`) and cached; without a measurement the
rates below are used, those of the 2-core machine the first version was written on.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.record import Timings
from dfmp2.scratch.speed import BUILT_IN, DiskRates
from dfmp2.traffic import IN_MEMORY, Traffic
from dfmp2.workload import CYCLES, Workload


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of this host with a given number of threads.

    Attributes
    ----------
    integrals : three-centre integrals per second; four_centre : four-centre integrals per second
    exchange, exchange_single, solve, transform, pairs_fp64, pairs_mixed : floating-point operations per second
        of the SCF's Coulomb and exchange matrices in float64 and float32, triangular solves, AO to MO
        transformation, pair energies
    eigen : n^3 per second of one generalised diagonalisation and what else an SCF iteration does
    start : seconds to import the libraries; iteration : seconds of overhead per SCF iteration
    """

    integrals: float = 1.2e8
    four_centre: float = 4.0e7
    exchange: float = 9.0e10
    exchange_single: float = 1.6e11
    solve: float = 8.0e10
    transform: float = 6.0e10
    pairs_fp64: float = 9.0e10
    pairs_mixed: float = 1.8e11
    eigen: float = 1.5e9
    start: float = 0.22
    iteration: float = 0.010


def seconds(work: Workload, rates: Rates, moved: Traffic = IN_MEMORY, disk: DiskRates = BUILT_IN) -> Timings:
    """Predicted wall time per stage, s.

    Parameters
    ----------
    moved, disk : bytes to and from scratch, and the speed of its folder; what is fetched ahead costs nothing while
        the computation takes longer
    """
    flops, integrals = work.flops(), work.integrals()
    per_integral = rates.integrals if work.naux_scf else rates.four_centre
    matrices = flops["exchange"] / rates.exchange + flops["exchange_single"] / rates.exchange_single
    scf = (
        integrals["scf"] / per_integral
        + flops["scf_fit"] / rates.solve
        + max(matrices, moved.scf_read / disk.read)
        + flops["eigen"] / rates.eigen
        + work.starts * CYCLES * rates.iteration
        + moved.scf_written / disk.write
    )
    pairs = flops["pairs_fp64"] / rates.pairs_fp64 + flops["pairs_mixed"] / rates.pairs_mixed
    stages = {
        "scf": scf,
        "integrals": integrals["integrals"] / rates.integrals,
        "fit": flops["fit"] / rates.solve + moved.fit_written / disk.write + moved.fit_read / disk.read,
        "transform": flops["transform"] / rates.transform,
        "pair_energies": max(pairs, moved.pairs_ahead / disk.read) + (moved.pairs_read - moved.pairs_ahead) / disk.read,
    }
    return Timings(**stages, total=rates.start + sum(stages.values()))
