"""Seconds left of a calculation: its forecast, corrected by what it has measured of itself so far.

A calculation goes through three phases: the SCF; integrals, transformation and fit, whose blocks alternate; the pair
energies. What is left of the present one:

    SCF     time of the last iterations x how many are left, which the fall of the gradient's logarithm tells
    others  at the speed at which the counted parts, blocks or tiles, have been done, the forecast before that

What is still to come costs its forecast times the ratio of measured to predicted seconds so far, of the SCF's
integrals and iterations and of phases that are over: a machine that is half as fast as its rates say needs twice as
long for everything.
"""

from __future__ import annotations

import math
import time

from dfmp2.planning.time import Pace, Timings
from dfmp2.progress import Stopwatch

PHASES = (("scf",), ("integrals", "fit", "transform"), ("pair_energies",), ("fitting_certificate",), ("gradient",))
RECENT = 4  # SCF iterations that tell speed and convergence
SLOWEST, FASTEST = 0.1, 1.5  # digits of the gradient per iteration; below, nothing is said
TRUSTED = 0.2  # of a phase: when so much of it was done its own speed counts alone
PRIOR = 0.2  # s by which the forecast counts as confirmed
SOFT = 0.5, 0.03  # s, and fraction of what is left, over which a new estimate takes the place of the old one


class TimeLeft:
    """The forecast of one calculation; see `dfmp2.progress.Forecast`.

    Parameters
    ----------
    clock : of the calculation; its stages are those of `Timings`
    foreseen, pace : predicted seconds
    tolerance : of the SCF gradient, Eh
    """

    def __init__(self, clock: Stopwatch, foreseen: Timings, pace: Pace, tolerance: float) -> None:
        self._clock, self._foreseen, self._pace, self._tolerance = clock, foreseen, pace, tolerance
        self._cycles: list[tuple[float, float]] = []  # time, gradient of the iterations of the present SCF
        self._before = 0  # iterations and their seconds, of all SCFs
        self._spent = 0.0
        self._solved = 0  # SCFs that have begun
        self._phase = 0
        self._steps: list[tuple[float, float]] = []  # seconds elapsed and fraction of the phase, at first and now
        self._made = 0.0, 0.0  # seconds that the SCF's integrals took, and were expected to take
        self._told: tuple[float, float] | None = None  # when, seconds left

    def cycle(self, cycle: int, gradient: float) -> None:
        """As of Forecast."""
        now = time.perf_counter()
        if cycle == 1:
            self._cycles = []
            self._solved += 1
        else:
            self._before += 1
            self._spent += now - self._cycles[-1][0] if self._cycles else 0.0
        self._cycles.append((now, gradient))

    def step(self, done: int, total: int) -> None:
        """As of Forecast."""
        self._advance()
        here = self._clock.elapsed(*PHASES[self._phase]), done / max(total, 1)
        again = not self._steps or here[1] < self._steps[-1][1]  # all pairs are repeated in float64
        self._steps = [here] if again else [self._steps[0], here]
        if self._phase == 0:  # parts of the SCF's integrals
            seconds, fraction = here[0] - self._steps[0][0], here[1] - self._steps[0][1]
            self._made = seconds, fraction * self._pace.integrals

    def left(self) -> float | None:
        """As of Forecast; it changes softly from one call to the next."""
        self._advance()
        found, now = self._found(), time.perf_counter()
        if found is not None and self._told is not None:
            passed = now - self._told[0]
            expected = max(0.0, self._told[1] - passed)
            found = expected + (found - expected) * min(1.0, passed / (SOFT[0] + SOFT[1] * expected))
        self._told = None if found is None else (now, found)
        return found

    def _advance(self) -> None:
        reached = max((number for number, names in enumerate(PHASES) if self._clock.elapsed(*names)), default=0)
        if reached != self._phase:
            self._phase, self._steps = reached, []

    def _found(self) -> float | None:
        ratio = self._ratio()
        present = self._of_scf(ratio) if self._phase == 0 else self._of_phase(ratio)
        if present is None:
            return None
        later = sum(self._predicted(phase) for phase in range(self._phase + 1, len(PHASES)))
        check = self._pace.check if self._phase <= PHASES.index(("pair_energies",)) else 0.0
        return present + ratio * (later + check)

    def _predicted(self, phase: int) -> float:
        return math.fsum(getattr(self._foreseen, name) for name in PHASES[phase])

    def _ratio(self) -> float:
        """Measured to predicted seconds so far."""
        measured, predicted = self._spent + self._made[0], self._before * self._pace.cycle + self._made[1]
        for phase in range(1, self._phase):
            measured += self._clock.elapsed(*PHASES[phase])
            predicted += self._predicted(phase)
        return (measured + PRIOR) / (predicted + PRIOR)

    def _of_scf(self, ratio: float) -> float | None:
        """Seconds left of the SCF and of its stability analyses."""
        pace, foreseen = self._pace, self._foreseen.scf
        if len(self._cycles) < 2:
            left = foreseen * ratio - self._clock.elapsed("scf")
            return left if left > 0 else None
        recent = self._cycles[-RECENT:]
        seconds = (recent[-1][0] - recent[0][0]) / (len(recent) - 1)
        if len(self._cycles) <= RECENT:
            cycles = max(1.0, float(pace.cycles - len(self._cycles)))
        else:
            first, last, end = (math.log10(max(g, 1e-99)) for g in (recent[0][1], recent[-1][1], self._tolerance))
            speed = (first - last) / (len(recent) - 1)
            if speed < SLOWEST and last > end:
                return None
            cycles = max(0.0, last - end) / min(max(speed, SLOWEST), FASTEST)
        since = time.perf_counter() - recent[-1][0]
        present = max(0.0, cycles * seconds + pace.examined * ratio - since)
        return present + max(0, pace.starts - self._solved) * (foreseen / pace.starts) * ratio

    def _of_phase(self, ratio: float) -> float | None:
        """Seconds left of the present phase after the SCF."""
        names = PHASES[self._phase]
        elapsed, foreseen = self._clock.elapsed(*names), self._predicted(self._phase)
        if not self._steps:
            left = foreseen * ratio - elapsed
            return left if left > 0 else None
        after = {"fit": self._foreseen.fit, "pair_energies": self._pace.certificate}  # of what is counted
        last = min(foreseen, sum(value for name, value in after.items() if name in names))
        (began, before), (now, done) = self._steps[0], self._steps[-1]
        counted = max(foreseen - last, 1e-9)
        if done > before:
            own = (now - began) / ((done - before) * counted)
            ratio += min(1.0, (done - before) / TRUSTED) * (own - ratio)
        return max(0.0, ((1 - done) * counted + last) * ratio - (elapsed - now))
