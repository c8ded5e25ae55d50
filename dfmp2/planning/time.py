"""Seconds a run will take: its work divided by the rates of this host, its traffic by those of the scratch folder.

Bytes written to and read from scratch, from the memory plan; nothing where all stays in memory:

    SCF integrals   written once, read once per J and K
    B               written raw, read and written by the fit, read for the pair energies and by the certificate, some
                    orbitals for the order in which float32 adds up

The certificate's pairs depend on energies nobody knows yet; as many pairs at random read about the same. A second,
larger sample is not foreseen.

Rates are measured once per host (`dfmp2.planning.rates`, `dfmp2.planning.disk_rates`) and cached; without a
measurement the rates below are used, those of the 2-core machine the first version was written on.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from dfmp2.backends import tiling
from dfmp2.backends.base import Limits, Tile
from dfmp2.backends.tiling import visits
from dfmp2.planning.disk_rates import BUILT_IN, DiskRates
from dfmp2.planning.figures import Timings
from dfmp2.planning.memory import FLOAT32, FLOAT64, MemoryPlan
from dfmp2.planning.sizes import CYCLES, FRACTION, LEAST_SAMPLED, SAMPLED, Workload

SEED = 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between memory and scratch.

    Attributes
    ----------
    scf_written, scf_read : SCF integrals; what is read is fetched while J and K are built
    fit_written, fit_read : B, raw and fitted
    pairs_read : B for the pair energies
    pairs_ahead : of these, what is fetched while pair energies are computed
    """

    scf_written: int = 0
    scf_read: int = 0
    fit_written: int = 0
    fit_read: int = 0
    pairs_read: int = 0
    pairs_ahead: int = 0

    @property
    def written(self) -> int:
        """All bytes written."""
        return self.scf_written + self.fit_written

    @property
    def read(self) -> int:
        """All bytes read."""
        return self.scf_read + self.fit_read + self.pairs_read


IN_MEMORY = Traffic()


def traffic(work: Workload, plan: MemoryPlan, limits: Limits) -> Traffic:
    """What a run with this plan will move.

    Parameters
    ----------
    limits : of the backend, which decide the tiles
    """
    scf = 0 if plan.scf_fits_in_core else plan.scf_disk
    if plan.mp2_fits_in_core:
        return Traffic(scf, work.scf_builds * scf)
    waited = ahead = 0
    if work.precision != "fp64":
        waited += sum(FLOAT64 * min(spin.nocc, SAMPLED) * spin.nvir * work.naux for spin in work.spins)
    for left, right in ((0, 0), (1, 1), (0, 1)) if len(work.spins) == 2 else ((0, 0),):
        tiles = _tiles(work, limits, left, right)
        passes = [(tiles, FLOAT64 if work.precision == "fp64" else FLOAT32)]
        if work.precision != "fp64":
            passes.append((_sampled(work, left, right), FLOAT64))
        for wanted, size in passes:
            found = _read(work, wanted, plan.tensor_bytes, size, left, right)
            waited, ahead = waited + found[0], ahead + found[1]
    return Traffic(scf, work.scf_builds * scf, 2 * plan.mp2_disk, plan.mp2_disk, waited + ahead, ahead)


def _tiles(work: Workload, limits: Limits, left: int, right: int) -> list[Tile]:
    rows = [spin.nvir * work.naux for spin in work.spins]
    if left == right:
        return tiling.triangle(work.spins[left].nocc, limits, rows[left])
    return tiling.rectangle(work.spins[left].nocc, work.spins[right].nocc, limits, max(rows))


def _sampled(work: Workload, left: int, right: int) -> list[Tile]:
    """As many pairs as the certificate redoes, at random."""
    rows, columns = work.spins[left].nocc, work.spins[right].nocc
    pairs = [(i, j) for i in range(rows) for j in range(i if left == right else 0, columns)]
    count = min(len(pairs), max(LEAST_SAMPLED, math.ceil(FRACTION * len(pairs))))
    return [Tile(i, i + 1, j, j + 1, False) for i, j in random.Random(SEED).sample(pairs, count)]


def _read(work: Workload, tiles: list[Tile], held: int, size: int, left: int, right: int) -> tuple[int, int]:
    """Bytes of B on disk read for some tiles: those that are waited for, and those fetched ahead.

    Parameters
    ----------
    held : bytes of B that may be in memory; size : of one number there, on disk it is float64
    """
    near, far = (work.spins[s].nvir * work.naux for s in (left, right))
    waited = ahead = 0
    for visit in visits(tiles, held, near * size, far * size, same=left == right):
        first = visit.passing[0][1] - visit.passing[0][0] if visit.passing else 0
        columns = sum(stop - start for start, stop in visit.passing)
        waited += (visit.end - visit.begin) * near + first * far
        ahead += (columns - first) * far
    return FLOAT64 * waited, FLOAT64 * ahead


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
