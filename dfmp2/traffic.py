"""Bytes a run will write to and read from scratch, from its memory plan: nothing where all stays in memory.

    SCF integrals   written once, read once per J and K
    B               written raw, read and written by the fit, read for the pair energies and by the certificate, some
                    orbitals for the order in which float32 adds up

The certificate's pairs depend on energies nobody knows yet; as many pairs at random read about the same. A second,
larger sample is not foreseen.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from dfmp2.backends.base import Limits, Tile
from dfmp2.memory import FLOAT32, FLOAT64, MemoryPlan
from dfmp2.mp2 import tiling
from dfmp2.mp2.certificate import FRACTION, LEAST_SAMPLED
from dfmp2.mp2.streaming import visits
from dfmp2.mp2.summation import SAMPLED
from dfmp2.workload import Workload

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
