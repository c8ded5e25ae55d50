"""The values of a race: what is computed, what a program answered, what a run took."""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.bench.machine import Machine
from dfmp2.bench.process import Child

TOLERANCE = 1e-7  # Eh; largest difference of energies of two programs


@dataclass(frozen=True, slots=True)
class Calculation:
    """What every program computes.

    Attributes
    ----------
    basis : name of the orbital basis
    threads : of every program
    memory : bytes every program may use, None for what each takes by itself
    options : further options of `dfmp2 run`; peers repeat what came of them
    """

    basis: str
    threads: int
    memory: int | None
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stages:
    """Wall seconds of the stages that all programs have; `between` is MP2 integrals, transformation and fit."""

    scf: float
    between: float
    pairs: float

    @property
    def total(self) -> float:
        """Their sum; what is missing to the wall time is start, reading and writing."""
        return self.scf + self.between + self.pairs


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program answered.

    Attributes
    ----------
    program : name and version
    scf_energy, correlation_energy : Eh
    sizes : orbital functions, MP2 fitting functions, correlated occupied and virtual orbitals (alpha)
    stages : wall seconds; details : the same under the program's own names
    cycles : SCF iterations, None when the program does not say
    note : what else is worth printing
    """

    program: str
    scf_energy: float
    correlation_energy: float
    sizes: tuple[int, ...]
    stages: Stages
    details: dict[str, float]
    cycles: int | None
    note: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one program; `script` is the input file it was given, "" for none."""

    lane: str
    child: Child
    outcome: Outcome
    script: str


@dataclass(frozen=True, slots=True)
class Race:
    """All runs, in the order in which they were made.

    Attributes
    ----------
    machine : header
    title : molecule, basis, sizes
    calculation : what was computed
    runs : of all lanes, alternating; the lanes have the same number
    touched : bytes written to before every run, 0 for none
    load_after : load average at the end
    """

    machine: Machine
    title: str
    calculation: Calculation
    runs: tuple[Run, ...]
    touched: int
    load_after: float

    @property
    def lanes(self) -> list[str]:
        """Names of the lanes in the order of their first run."""
        return list(dict.fromkeys(run.lane for run in self.runs))

    def of(self, lane: str) -> list[Run]:
        """The runs of one lane."""
        return [run for run in self.runs if run.lane == lane]

    def scripts(self) -> dict[str, str]:
        """Lane -> text of the input file it was given."""
        return {lane: script for lane in self.lanes if (script := self.of(lane)[0].script)}

    def ours(self) -> list[str]:
        """Lanes of dfmp2."""
        return [lane for lane in self.lanes if lane.startswith("dfmp2")]

    def peers(self) -> list[str]:
        """The other lanes."""
        return [lane for lane in self.lanes if not lane.startswith("dfmp2")]

    def differences(self) -> dict[tuple[str, str], tuple[float, float]]:
        """(lane of ours, other lane) -> largest difference of SCF and correlation energy over the runs, Eh."""
        found = {}
        for lane in self.ours():
            for other in self.lanes:
                if other != lane and (other, lane) not in found:
                    pairs = [(a.outcome, b.outcome) for a, b in zip(self.of(lane), self.of(other), strict=True)]
                    found[lane, other] = (
                        max((a.scf_energy - b.scf_energy for a, b in pairs), key=abs),
                        max((a.correlation_energy - b.correlation_energy for a, b in pairs), key=abs),
                    )
        return found
