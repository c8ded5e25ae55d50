"""The time model: seconds of a run, work divided by the rates of this host and traffic by those of the scratch folder.

Bytes written to and read from scratch, from the memory plan; nothing where all stays in memory:

    SCF integrals   written once, read once per J and K
    B               written raw, read and written by the fit, read for the pair energies and, about as much of it, by
                    the certificate

What is read while something is computed costs nothing as long as the computation takes longer. What was written stays
in the system's memory where there is room for it beside the run, and is read from there.

The SCF is its integrals, their fit, and as many builds of J and K as iterations are expected and a stability analysis
of all rotations takes. New arrays of integrals cost the time of writing them once, in another order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from dfmp2.backends import tiling
from dfmp2.backends.base import Limits, Tile
from dfmp2.planning.memory import FLOAT32, FLOAT64, MemoryPlan
from dfmp2.planning.rates import BUILT_IN, DiskRates, Rates
from dfmp2.planning.sizes import EXACT_BUILDS, Workload
from dfmp2.units import quantity as _q

if TYPE_CHECKING:
    from dfmp2.planning.gradient import GradientMemory


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
    gradient: float = _q("s", "gradient and relaxed densities", 0.0)

    def only(self, stages: Collection[str]) -> Timings:
        """Those of some stages alone; start and check stay in the total."""
        left_out = {name: 0.0 for name in STAGES if name not in stages}
        return replace(self, **left_out, total=self.total - sum(getattr(self, name) for name in left_out))

    def __add__(self, other: Timings) -> Timings:
        return Timings(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))


STAGES = ("scf", "integrals", "fit", "transform", "pair_energies", "fitting_certificate", "gradient")
# What is small, and not worth a rate of its own, s on one core of an AMD EPYC:
X2C_SECONDS, X2C_PRODUCTS = 0.08, 200  # and operations per cube of the decontracted basis
POTENTIAL_SECONDS = 4e-6  # per pair of functions and core potential
METRIC_SECONDS = 5e-8  # per element of the fitting metric, its integrals and its factor's checks
CYCLE_SECONDS = 1e-3  # per SCF iteration, whatever the molecule
EXAMINED_MATRICES = 0.5  # of what an SCF iteration does beside J and K, per product with the orbital Hessian
CHECK_INTEGRALS, CHECK_PRODUCTS = 2, 3  # times our own operations that PySCF's DF-MP2 takes, its products by one core


@dataclass(frozen=True, slots=True)
class Pace:
    """Predicted seconds of parts of a run that `Timings` does not name.

    Attributes
    ----------
    integrals : three-centre integrals of the SCF
    cycle : one SCF iteration
    cycles : iterations that are expected of each start; starts : of the SCF
    examined : stability analysis of one solution
    certificate : redoing a sample of pairs
    check : PySCF's own DF-MP2
    """

    integrals: float
    cycle: float
    cycles: int
    starts: int = 1
    examined: float = 0.0
    certificate: float = 0.0
    check: float = 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between memory and scratch: of the SCF integrals, of B raw and fitted, and of B for the pair energies.

    `recomputed` : whether the four-centre integrals of a conventional SCF do not fit, and are made in every iteration;
    `cached` : whether all of it stays in the system's memory, beside the run.
    """

    scf_written: int = 0
    scf_read: int = 0
    fit_written: int = 0
    fit_read: int = 0
    pairs_read: int = 0
    recomputed: bool = False
    cached: bool = False

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
    recomputed = not work.naux_scf and not plan.scf_fits_in_core
    if plan.mp2_fits_in_core:
        return Traffic(scf, work.scf_builds * scf, recomputed=recomputed)
    size, passes = (FLOAT64, 1) if work.precision == "fp64" else (FLOAT32, 2)  # of a number in memory
    read = 0
    for (left, right), tiles in tiles_of(work, limits).items():
        near, far = (work.spins[s].nvir * work.naux for s in (left, right))
        for visit in tiling.visits(tiles, plan.tensor_bytes, near * size, far * size, same=left == right):
            read += (visit.end - visit.begin) * near + sum(stop - start for start, stop in visit.passing) * far
    return Traffic(scf, work.scf_builds * scf, 2 * plan.mp2_disk, plan.mp2_disk, passes * FLOAT64 * read, recomputed)


def seconds(
    work: Workload,
    rates: Rates,
    moved: Traffic = IN_MEMORY,
    disk: DiskRates = BUILT_IN,
    gradient: GradientMemory | None = None,
) -> Timings:
    """Predicted wall time per stage, s.

    Parameters
    ----------
    moved, disk : bytes to and from scratch, and the speed of its folder
    gradient : where the arrays of a gradient are, None for memory
    """
    flops = work.flops()
    built = work.elements * work.naux * FLOAT64  # bytes of B
    frontier = work.frontier_elements * work.naux * FLOAT64
    pairs = flops["pairs_fp64"] / rates.pairs_fp64 + flops["pairs_mixed"] / rates.pairs_mixed
    rounding = 0 if work.precision == "fp64" else built / rates.reorder
    metric = work.naux**2 * METRIC_SECONDS
    read = disk.cached if moved.cached else disk.read
    stages = {
        "scf": _scf(work, rates, moved, disk),
        "integrals": work.integrals()["integrals"] / rates.integrals,
        "fit": metric
        + flops["fit"] / rates.solve
        + (moved.fit_written / disk.write + moved.fit_read / read if moved.fit_written else built / rates.reorder),
        "transform": flops["transform"] / rates.transform + (built + frontier) / rates.reorder,
        "pair_energies": max(pairs + rounding, moved.pairs_read / read),
    }
    if work.task != "energy":
        from dfmp2.planning.gradient import seconds as of_gradient

        alone = replace(work, task="properties")
        more = sum(stages.values()) + of_gradient(alone, rates, gradient).total
        stages["gradient"] = of_gradient(work, rates, gradient).total + work.in_fields * more
    return Timings(**stages, total=rates.start + sum(stages.values()) + _check(work, rates))


def pace(work: Workload, rates: Rates) -> Pace:
    """Predicted seconds of parts of a run, what is read from scratch not counted."""
    return Pace(
        integrals=work.integrals()["scf"] / rates.integrals if work.naux_scf else 0.0,
        cycle=_build(work, rates) + _matrices(work, rates) + CYCLE_SECONDS,
        cycles=work.cycles,
        starts=work.starts,
        examined=work.examined_builds * (_build(work, rates) + EXAMINED_MATRICES * _matrices(work, rates)),
        certificate=0.0 if work.precision == "fp64" else work.flops()["pairs_fp64"] / rates.pairs_fp64,
        check=_check(work, rates),
    )


def _check(work: Workload, rates: Rates) -> float:
    """Predicted wall time of PySCF's own DF-MP2, s; 0 where it is not asked for."""
    if not work.checked:
        return 0.0
    flops = replace(work, precision="fp64", frontier=()).flops()
    products = CHECK_PRODUCTS * sum(flops[name] for name in ("fit", "transform", "pairs_fp64")) / rates.products
    return CHECK_INTEGRALS * work.integrals()["integrals"] / rates.integrals + products


def _build(work: Workload, rates: Rates) -> float:
    """Predicted wall time of J, K and the functional once, s: in float64, as the last ones are."""
    flops = work.flops()
    rate = rates.exchange if work.naux_scf else rates.exact_exchange
    matrices = (flops["exchange"] + flops["exchange_single"]) / rate
    return (matrices + flops["functional"] / rates.pairs_fp64) / work.scf_builds


def _matrices(work: Workload, rates: Rates) -> float:
    """Predicted wall time of what else an SCF iteration does with its matrices, s."""
    return len(work.spins) * (work.nao**2 / rates.matrices + work.nao**3 / rates.eigen)


def _scf(work: Workload, rates: Rates, moved: Traffic, disk: DiskRates) -> float:
    """Predicted wall time of the SCF and of a stability analysis of all rotations, s."""
    flops, evaluated = work.flops(), work.integrals()["scf"]
    if work.naux_scf:
        made = work.naux_scf * work.kept_pairs * FLOAT64
        integrals = evaluated / rates.integrals + work.naux_scf**2 * METRIC_SECONDS + flops["scf_fit"] / rates.solve
        integrals += moved.scf_written / disk.write if moved.scf_written else made / rates.reorder
        products = flops["exchange"] / rates.exchange + flops["exchange_single"] / rates.exchange_single
    else:
        integrals = evaluated / rates.four_centre * (work.scf_builds if moved.recomputed else 1)
        products = flops["exchange"] / rates.exact_exchange
    products += flops["functional"] / rates.pairs_fp64
    cycles = work.starts * (work.cycles + 1)
    examined = work.scf_builds - cycles
    matrices = (cycles + EXAMINED_MATRICES * examined) * _matrices(work, rates) + cycles * CYCLE_SECONDS
    one_electron = POTENTIAL_SECONDS * work.potentials * work.nao**2
    if work.x2c_functions:
        one_electron += X2C_SECONDS + X2C_PRODUCTS * work.x2c_functions**3 / rates.exchange
    read = disk.cached if moved.cached else disk.read
    return integrals + max(products, moved.scf_read / read) + matrices + one_electron
