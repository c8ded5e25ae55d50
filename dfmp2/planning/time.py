"""The time model: seconds of a run, work divided by the rates of this host and traffic by those of the scratch folder.

Bytes written to and read from scratch, from the memory plan; nothing where all stays in memory:

    SCF integrals   written once, read once per J and K
    B               written raw, read and written by the fit, read for the pair energies and, about as much of it, by
                    the certificate

What is read while something is computed costs nothing as long as the computation takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.backends import tiling
from dfmp2.backends.base import Limits, Tile
from dfmp2.planning.memory import FLOAT32, FLOAT64, MemoryPlan
from dfmp2.planning.rates import BUILT_IN, DiskRates, Rates
from dfmp2.planning.sizes import CYCLES, EXACT_BUILDS, Workload
from dfmp2.units import quantity as _q


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall times, s."""

    scf: float = _q("s", "SCF")
    integrals: float = _q("s", "three-centre integrals of the MP2 step")
    fit: float = _q("s", "fitting metric and fit")
    transform: float = _q("s", "AO to MO transformation")
    pair_energies: float = _q("s", "pair energies, certificate included")
    total: float = _q("s", "whole calculation, start-up of the program excluded")
    fitting_certificate: float = _q("s", "fitting certificate", 0.0)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between memory and scratch: of the SCF integrals, of B raw and fitted, and of B for the pair energies."""

    scf_written: int = 0
    scf_read: int = 0
    fit_written: int = 0
    fit_read: int = 0
    pairs_read: int = 0

    @property
    def written(self) -> int:
        """All bytes written."""
        return self.scf_written + self.fit_written

    @property
    def read(self) -> int:
        """All bytes read."""
        return self.scf_read + self.fit_read + self.pairs_read


IN_MEMORY = Traffic()


def certificate_seconds(work: Workload, dense: Workload | None, rows: int, passes: int, rates: Rates) -> float:
    """Predicted time of a fitting certificate, s.

    Parameters
    ----------
    work : of the run; dense : of the second fit, None where all orbitals have exact integrals
    rows, passes : orbitals with exact integrals, and passes over the four-centre integrals they take
    """
    pairs, nvir = work.pairs_of_functions, max(spin.nvir for spin in work.spins)
    again = seconds(dense or work, rates)
    fock = again.scf + EXACT_BUILDS * pairs * pairs / 2 / rates.four_centre if work.naux_scf else 0.0
    halves = 2 * pairs * work.nao * (work.nao + nvir) * rows / rates.transform
    second = 0.0 if dense is None else again.total - rates.start - again.scf
    return fock + passes * pairs * pairs / rates.four_centre + halves + second


def tiles_of(work: Workload, limits: Limits) -> dict[tuple[int, int], list[Tile]]:
    """Tiles of pairs of each channel, spins of i and j, under the limits of a backend."""
    rows = [spin.nvir * work.naux for spin in work.spins]
    tiles = {(s, s): tiling.triangle(spin.nocc, limits, rows[s]) for s, spin in enumerate(work.spins)}
    if len(work.spins) == 2:
        tiles[0, 1] = tiling.rectangle(work.spins[0].nocc, work.spins[1].nocc, limits, max(rows))
    return tiles


def traffic(work: Workload, plan: MemoryPlan, limits: Limits) -> Traffic:
    """What a run with this plan will move; the limits of the backend decide about tiles."""
    scf = 0 if plan.scf_fits_in_core else plan.scf_disk
    if plan.mp2_fits_in_core:
        return Traffic(scf, work.scf_builds * scf)
    size, passes = (FLOAT64, 1) if work.precision == "fp64" else (FLOAT32, 2)  # of a number in memory
    read = 0
    for (left, right), tiles in tiles_of(work, limits).items():
        near, far = (work.spins[s].nvir * work.naux for s in (left, right))
        for visit in tiling.visits(tiles, plan.tensor_bytes, near * size, far * size, same=left == right):
            read += (visit.end - visit.begin) * near + sum(stop - start for start, stop in visit.passing) * far
    return Traffic(scf, work.scf_builds * scf, 2 * plan.mp2_disk, plan.mp2_disk, passes * FLOAT64 * read)


def seconds(work: Workload, rates: Rates, moved: Traffic = IN_MEMORY, disk: DiskRates = BUILT_IN) -> Timings:
    """Predicted wall time per stage, s.

    Parameters
    ----------
    moved, disk : bytes to and from scratch, and the speed of its folder
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
        "pair_energies": max(pairs, moved.pairs_read / disk.read),
    }
    return Timings(**stages, total=rates.start + sum(stages.values()))
