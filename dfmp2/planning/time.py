"""The time model: work divided by the rates of this host, and traffic by those of the scratch
folder.

Bytes written to and read from scratch follow from the memory plan; none if everything stays in
memory:

    SCF integrals   written once, read once per J and K
    B               written raw, read and written by the fit, read for the pair energies and, about as much of it, by
                    the certificate

Reading during a computation costs nothing as long as the computation takes longer. Written data
stay in the system's cache if the run leaves room for them, and are read from there.

The SCF consists of its integrals, their fit, and the builds of J and K for the expected iterations
and a stability analysis of all rotations. New arrays of integrals cost the time of writing them
once, in another order.

The time left of a calculation is its forecast, corrected by its own measurements so far.

A calculation has three phases: the SCF; integrals, transformation and fit, whose blocks alternate;
and pair energies. The rest of the current one takes as long as its finished fraction has shown: of
the SCF the digits by which the gradient has fallen, of the others the finished blocks or tiles. The
less of it is done, the more the forecast counts.

A forecast is multiplied by the ratio of measured to predicted seconds so far, for iterations of the
SCF and for completed phases: a machine half as fast as its rates suggest needs twice as long for
everything.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace

from dfmp2.backends import tiling
from dfmp2.backends.base import Limits
from dfmp2.host.resources import usable_memory
from dfmp2.planning.gradient import gradient_seconds
from dfmp2.planning.memory import GradientMemory, MemoryPlan
from dfmp2.planning.rates import BUILT_IN, DiskRates, Rates
from dfmp2.planning.sizes import EXACT_BUILDS, FLOAT32, FLOAT64, Workload
from dfmp2.progress import Stopwatch
from dfmp2.scf.solvent import KEPT_BYTES
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
    gradient: float = _q("s", "gradient and relaxed densities", 0.0)

    def only(self, stages: Collection[str]) -> Timings:
        """The times of some stages only; start and check stay in the total."""
        left_out = {name: 0.0 for name in STAGES if name not in stages}
        return replace(
            self, **left_out, total=self.total - sum(getattr(self, name) for name in left_out)
        )

    def __add__(self, other: Timings) -> Timings:
        return Timings(
            *(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True))
        )


NO_TIME = Timings(scf=0.0, integrals=0.0, fit=0.0, transform=0.0, pair_energies=0.0, total=0.0)
STAGES = (
    "scf",
    "integrals",
    "fit",
    "transform",
    "pair_energies",
    "fitting_certificate",
    "gradient",
)
# Costs not worth a rate of their own, on a core of an AMD EPYC; in seconds unless stated otherwise:
REORDERED = 8e8  # bytes per second of integrals reordered into new memory
MATRICES = 2.5e6  # n^2 per second for an SCF iteration apart from J, K and diagonalisations
X2C_SECONDS, X2C_PRODUCTS = 0.08, 200  # and operations per cube of the decontracted basis
POTENTIAL_SECONDS = 4e-6  # per pair of functions and core potential
SURFACE_SECONDS = 5e-7  # per pair of points on a solvent's surface, whose matrices are made once
SOLVENT_SECONDS = 0.6  # for PySCF to load its solvent modules
SURFACE_PRODUCTS = 3  # operations per cube of the number of points on a solvent's surface
SURFACE_READ = 5e9  # bytes per second of their integrals in memory, read by a product
METRIC_SECONDS = 5e-8  # per element of the fitting metric, for integrals and checks of the factor
CYCLE_SECONDS = 1e-3  # per SCF iteration of any molecule
# of an SCF iteration apart from J and K, per product with the orbital Hessian
EXAMINED_MATRICES = 0.5
# Cost of PySCF's DF-MP2 relative to our own operations, with its products on one core
CHECK_INTEGRALS, CHECK_PRODUCTS = (2, 3)
# cost per operation relative to a pair energy, since B is weighted for each quadrature point
WEIGHED = 1.3
SMALL = 30.0  # s, of calculations that may be shared by processes without being asked


@dataclass(frozen=True, slots=True)
class Pace:
    """Predicted seconds of parts of a run that are not in `Timings`.

    Attributes
    ----------
    integrals : three-centre integrals of the SCF
    cycle : one SCF iteration
    starts : number of SCF starts
    examined : stability analyses of all solutions
    certificate : recomputing a sample of pairs
    """

    integrals: float
    cycle: float
    starts: int = 1
    examined: float = 0.0
    certificate: float = 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between memory and scratch: of the SCF integrals, of B raw and fitted, and of B for the
    pair energies.

    `recomputed` : whether the four-centre integrals of a conventional SCF do not fit and are
    recomputed in every iteration; `cached` : whether everything stays in the system's cache
    alongside the run.
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


def certificate_seconds(
    work: Workload, dense: Workload | None, rows: int, passes: int, rates: Rates
) -> float:
    """Predicted time of a fitting certificate, s.

    Parameters
    ----------
    work : of the run; dense : of the second fit, None if all orbitals have exact integrals
    rows, passes : orbitals with exact integrals, and number of passes over the four-centre
        integrals
    """
    pairs = work.pairs_of_functions
    nvir = max(spin.nvir for spin in work.spins)
    again = time_text(dense or work, rates)
    made = replace(work, naux_scf=0).integrals()["scf"] / rates.four_centre
    halves = 2 * pairs * work.nao * (work.nao + nvir) * rows / rates.transform
    fock = second = 0.0
    if work.naux_scf:
        fock = again.scf + EXACT_BUILDS * made
    if dense is not None:
        second = again.total - rates.start - again.scf
    return fock + 2 * passes * made + halves + second  # twice: (mn|ls) and (ls|mn)


def cuts_of(work: Workload, limits: Limits) -> dict[tuple[int, int], tiling.Cuts]:
    """How the pairs of each channel (spins of i and j) are divided under the limits of a
    backend."""
    rows = [spin.nvir * work.naux for spin in work.spins]
    cuts = {
        (s, s): tiling.triangle_cuts(spin.nocc, limits, rows[s])
        for s, spin in enumerate(work.spins)
    }
    if len(work.spins) == 2:
        alpha, beta = work.spins
        cuts[0, 1] = tiling.rectangle_cuts(alpha.nocc, beta.nocc, limits, max(rows))
    return cuts


def traffic(work: Workload, plan: MemoryPlan, limits: Limits) -> Traffic:
    """Traffic of a run with this plan; tiles depend on the limits of the backend."""
    scf = 0 if plan.scf_fits_in_core else plan.scf_disk
    recomputed = not work.naux_scf and not plan.scf_fits_in_core
    scf_read = scf * (work.scf_builds + len(work.spins) * work.hessian_products)
    if plan.mp2_fits_in_core:
        return Traffic(scf, scf_read, recomputed=recomputed)
    # Bytes of a number in memory
    size, passes = (FLOAT64, 1) if work.precision == "fp64" else (FLOAT32, 2)
    read = 0
    for channel, cuts in cuts_of(work, limits).items():
        near, far = (work.spins[s].nvir * work.naux for s in channel)
        left, right = cuts.orbitals_read(plan.tensor_bytes, near * size, far * size)
        read += left * near + right * far
    return Traffic(
        scf_written=scf,
        scf_read=scf_read,
        fit_written=2 * plan.mp2_disk,
        fit_read=plan.mp2_disk,
        pairs_read=passes * FLOAT64 * read,
        recomputed=recomputed,
    )


def time_text(
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
    gradient : locations of the arrays of a gradient, None for memory
    """
    flops = work.flops()
    pairs = flops["pairs_fp64"] / rates.pairs_fp64 + flops["pairs_mixed"] / rates.pairs_mixed
    if work.points:
        pairs *= WEIGHED
    rounding = 0.0 if work.precision == "fp64" else work.b_bytes / REORDERED
    metric = work.naux**2 * METRIC_SECONDS
    read = disk.cached if moved.cached else disk.read
    if moved.fit_written:
        reordering = moved.fit_written / disk.write + moved.fit_read / read
    else:
        reordering = work.b_bytes / REORDERED
    stages = {
        "scf": _scf(work, rates, moved, disk),
        "integrals": work.integrals()["integrals"] / rates.integrals,
        "fit": metric + flops["fit"] / rates.solve + reordering,
        "transform": flops["transform"] / rates.transform
        + (work.b_bytes + work.frontier_bytes) / REORDERED,
        "pair_energies": max(pairs + rounding, moved.pairs_read / read),
    }
    if work.finer_grid:  # E(corr) is computed with the orbitals of both grids
        for name in ("integrals", "fit", "transform", "pair_energies"):
            stages[name] *= 2
    if work.task != "energy":
        alone = replace(work, task="properties")
        more = sum(stages.values()) + gradient_seconds(alone, rates, gradient).total
        stages["gradient"] = gradient_seconds(work, rates, gradient).total + work.in_fields * more
    return Timings(**stages, total=rates.start + sum(stages.values()) + _check(work, rates))


def pace(work: Workload, rates: Rates) -> Pace:
    """Predicted seconds of parts of a run, not counting reads from scratch."""
    certificate = 0.0
    if work.precision != "fp64":
        certificate = work.flops()["pairs_fp64"] / rates.pairs_fp64
    return Pace(
        integrals=work.integrals()["scf"] / rates.integrals if work.naux_scf else 0.0,
        cycle=_build(work, rates) + _matrices(work, rates) + CYCLE_SECONDS,
        starts=work.starts,
        examined=_examined(work, rates),
        certificate=certificate,
    )


def _check(work: Workload, rates: Rates) -> float:
    """Predicted wall time of PySCF's own DF-MP2, s; 0 if not requested."""
    if not work.checked:
        return 0.0
    flops = replace(work, precision="fp64", frontier=()).flops()
    products = (
        CHECK_PRODUCTS
        * sum(flops[name] for name in ("fit", "transform", "pairs_fp64"))
        / rates.checked
    )
    return CHECK_INTEGRALS * work.integrals()["integrals"] / rates.integrals + products


def _build(work: Workload, rates: Rates) -> float:
    """Predicted wall time of one build of J, K and the functional in float64, as in the last
    iterations, s."""
    flops = work.flops()
    rate = rates.exchange if work.naux_scf else rates.exact_exchange
    matrices = (flops["exchange"] + flops["exchange_single"]) / rate
    return (matrices + flops["functional"] / rates.functional) / work.scf_builds


def _examined(work: Workload, rates: Rates) -> float:
    """Predicted wall time of the stability analyses of all rotations, s, with integrals in
    memory."""
    rate = rates.exchange_single if work.single_exchange else rates.exchange
    products = work.flops()["examined"] / (rate if work.naux_scf else rates.exact_exchange)
    return products + EXAMINED_MATRICES * work.hessian_products * _matrices(work, rates)


def _matrices(work: Workload, rates: Rates) -> float:
    """Predicted wall time of the remaining matrix work of an SCF iteration, s."""
    return len(work.spins) * (work.nao**2 / MATRICES + work.nao**3 / rates.eigen)


def _scf(work: Workload, rates: Rates, moved: Traffic, disk: DiskRates) -> float:
    """Predicted wall time of the SCF and of a stability analysis of all rotations, s."""
    flops, evaluated = work.flops(), work.integrals()["scf"]
    if work.naux_scf:
        made = work.naux_scf * work.kept_pairs * FLOAT64
        integrals = (
            evaluated / rates.integrals
            + work.naux_scf**2 * METRIC_SECONDS
            + flops["scf_fit"] / rates.solve
        )
        integrals += moved.scf_written / disk.write if moved.scf_written else made / REORDERED
        products = (
            flops["exchange"] / rates.exchange + flops["exchange_single"] / rates.exchange_single
        )
    else:
        again = work.scf_builds + len(work.spins) * work.hessian_products
        integrals = evaluated / rates.four_centre * (again if moved.recomputed else 1)
        products = flops["exchange"] / rates.exact_exchange
    products += flops["functional"] / rates.functional + _examined(work, rates)
    matrices = work.scf_builds * (_matrices(work, rates) + CYCLE_SECONDS)
    one_electron = POTENTIAL_SECONDS * work.potentials * work.nao**2
    if work.x2c_functions:
        one_electron += X2C_SECONDS + X2C_PRODUCTS * work.x2c_functions**3 / rates.exchange
    read = disk.cached if moved.cached else disk.read
    parts = (
        integrals,
        max(products, moved.scf_read / read),
        matrices,
        one_electron,
        _reaction_field(work, rates),
    )
    return sum(parts)


def _reaction_field(work: Workload, rates: Rates) -> float:
    """Predicted wall time of a solvent in the SCF, s."""
    if not work.surface:
        return 0.0
    made = work.surface * work.pairs_of_functions
    solved = SURFACE_PRODUCTS * work.surface**3 / rates.exchange
    solved += SOLVENT_SECONDS + SURFACE_SECONDS * work.surface**2
    if FLOAT64 * made > KEPT_BYTES:
        return solved + 2 * work.scf_builds * made / rates.integrals
    read = 2 * work.scf_builds * FLOAT64 * made / SURFACE_READ
    return solved + made / rates.integrals + read


def process_count(seconds: Sequence[float], memory: int, limit: int | None, cores: int) -> int:
    """The number of processes that should share independent calculations; 1 if these are better
    divided among threads.

    Small calculations leave cores idle however many threads they have. The number is such that the
    longest one does not keep the others waiting.

    Parameters
    ----------
    seconds : predicted times of the calculations
    memory : bytes of the largest one with everything in memory
    limit : bytes for all processes and this one, None for most of the free memory
    cores : cores that may be used
    """
    longest = max(seconds)
    if not 0 < longest <= SMALL:
        return 1
    count = min(cores, len(seconds), round(sum(seconds) / longest))
    room = (limit or usable_memory()) // memory - 1
    return max(1, min(count, room))


# --- time left ------------------------------------------------------------------------------------

PHASES = (
    ("scf",),
    ("integrals", "fit", "transform"),
    ("pair_energies",),
    ("fitting_certificate",),
    ("gradient",),
)
TRUSTED = 0.2  # fraction of a phase after which only its own speed counts
PRIOR = 0.2  # s with which the forecast is weighted
LEAST_GRADIENT = 1e-99  # Eh; that of one electron may vanish


class TimeLeft:
    """The forecast of one calculation; see `dfmp2.progress.Forecast`.

    Parameters
    ----------
    clock : of the calculation, with the stages of `Timings`
    foreseen, pace : predicted seconds
    tolerance : of the SCF gradient, Eh
    """

    def __init__(self, clock: Stopwatch, foreseen: Timings, pace: Pace, tolerance: float) -> None:
        self._clock = clock
        self._foreseen = foreseen
        self._pace = pace
        self._tolerance = tolerance
        iterated = max(foreseen.scf - pace.integrals - pace.examined, 1e-9)
        self._of_integrals = pace.integrals / (pace.integrals + iterated)  # part of the SCF
        self._first = 1.0  # gradient of the first iteration of the current SCF
        self._last = 0.0  # time of the last iteration
        self._solved = 0  # number of SCFs begun
        self._iterations = 0  # between two gradients of one SCF, and their seconds
        self._spent = 0.0
        self._phase = 0
        # seconds elapsed and fraction of the phase, at its first report and now
        self._reports: list[tuple[float, float]] = []

    def cycle(self, cycle: int, gradient: float) -> None:
        """As in Forecast; the digits by which the gradient has fallen are the finished fraction."""
        self._advance()
        if self._phase > 0:  # an SCF of a certificate
            return
        now = time.perf_counter()
        gradient = max(gradient, LEAST_GRADIENT)
        if cycle == 1:
            self._solved += 1
            self._first = gradient
        else:
            self._iterations += 1
            self._spent += now - self._last
        self._last = now
        needed = math.log(max(self._first / self._tolerance, 1.01))
        fallen = math.log(self._first / gradient)
        finished = (self._solved - 1 + min(fallen / needed, 1.0)) / self._pace.starts
        fraction = self._of_integrals + (1.0 - self._of_integrals) * min(finished, 1.0)
        furthest = self._reports[-1][1] if self._reports else 0.0  # a gradient may rise
        self._report(max(fraction, furthest))

    def step(self, done: int, total: int) -> None:
        """As in Forecast."""
        self._advance()
        fraction = done / max(total, 1)
        if self._phase == 0:  # parts of the SCF's integrals
            fraction *= self._of_integrals
        self._report(fraction)

    def _report(self, fraction: float) -> None:
        """Take note of the finished fraction of the current phase."""
        here = self._clock.elapsed(*PHASES[self._phase]), fraction
        again = self._reports and fraction < self._reports[-1][1]  # all pairs, in float64
        if again:
            self._reports = []
        self._reports = [*self._reports[:1], here]

    def left(self) -> float | None:
        """As in Forecast."""
        self._advance()
        ratio = self._ratio()
        present = self._of_phase(ratio)
        if present is None:
            return None
        until_now = sum(self._predicted(phase) for phase in range(self._phase + 1))
        return present + ratio * (self._foreseen.total - until_now)

    def _advance(self) -> None:
        """Find the current phase, the last one with time spent on it."""
        begun = [number for number, names in enumerate(PHASES) if self._clock.elapsed(*names)]
        reached = max(begun, default=0)
        if reached != self._phase:
            self._phase = reached
            self._reports = []

    def _predicted(self, phase: int) -> float:
        return math.fsum(getattr(self._foreseen, name) for name in PHASES[phase])

    def _ratio(self) -> float:
        """Ratio of measured to predicted seconds of SCF iterations and completed phases."""
        measured = self._spent
        predicted = self._iterations * self._pace.cycle
        for phase in range(1, self._phase):
            measured += self._clock.elapsed(*PHASES[phase])
            predicted += self._predicted(phase)
        return (measured + PRIOR) / (predicted + PRIOR)

    def _of_phase(self, ratio: float) -> float | None:
        """Seconds left of the current phase; None once it takes longer than foreseen without a
        report."""
        names = PHASES[self._phase]
        elapsed = self._clock.elapsed(*names)
        foreseen = self._predicted(self._phase)
        if not self._reports:
            left = foreseen * ratio - elapsed
            return left if left > 0 else None
        after = 0.0  # seconds of the phase behind its last report
        if "scf" in names:
            after = min(self._pace.examined, foreseen)
        elif "fit" in names:
            after = min(self._foreseen.fit, foreseen)
        elif "pair_energies" in names:
            after = min(self._pace.certificate, foreseen)
        counted = max(foreseen - after, 1e-9)
        (began, first), (now, done) = self._reports[0], self._reports[-1]
        if done > first:
            own = (now - began) / ((done - first) * counted)
            ratio += min(1.0, (done - first) / TRUSTED) * (own - ratio)
        return max(0.0, ((1 - done) * counted + after) * ratio - (elapsed - now))
