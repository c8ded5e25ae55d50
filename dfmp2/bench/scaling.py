"""How the stages grow: dfmp2 on a series of n-alkanes, as whole processes, with the limit of every stage beside it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, fields, replace
from pathlib import Path

from dfmp2.bench import machine
from dfmp2.bench.alkane import alkane, to_xyz
from dfmp2.bench.limits import Ceilings, ceilings, kept_pairs, least_seconds, product_rates
from dfmp2.bench.machine import Machine
from dfmp2.bench.peers import GEOMETRY, RESULT, lanes
from dfmp2.bench.process import private_folder, run_child
from dfmp2.bench.race import failure
from dfmp2.bench.race_values import Calculation
from dfmp2.bench.spread import exponent, spread
from dfmp2.errors import InputError
from dfmp2.io import hdf5
from dfmp2.progress import Listener
from dfmp2.record import Timings
from dfmp2.result import MP2Result

SIZES = (10, 20, 30, 40)
LEAST, MOST = 2, 1000  # carbon atoms
STAGES = tuple(field.name for field in fields(Timings) if field.name != "total")


@dataclass(frozen=True, slots=True)
class Member:
    """One alkane.

    Attributes
    ----------
    carbons, nao, naux : sizes
    seconds : stage, "rest" (start-up, reading, writing) or "total" -> wall seconds, median of the repetitions
    peak : peak resident memory, bytes
    foreign : cores that others used, the worst of the repetitions
    correlation_energy : Eh
    ceilings : the machine's rates, the best that was measured before and after its runs
    least : stage -> what bounds it -> seconds at least
    """

    carbons: int
    nao: int
    naux: int
    seconds: dict[str, float]
    peak: int
    foreign: float
    correlation_energy: float
    ceilings: Ceilings
    least: dict[str, dict[str, float]]

    def bound(self, stage: str) -> tuple[str, float] | None:
        """What bounds a stage, and the fraction of that limit reached; None where no limit is known."""
        parts = self.least.get(stage)
        if not parts or not self.seconds[stage] > 0:
            return None
        return max(parts, key=lambda name: parts[name]), sum(parts.values()) / self.seconds[stage]


@dataclass(frozen=True, slots=True)
class Series:
    """All members, the smallest first."""

    machine: Machine
    calculation: Calculation
    repeats: int
    members: tuple[Member, ...]
    load_after: float

    def growth(self, stage: str, variable: str) -> float | None:
        """Exponent of a stage's seconds in `variable` ("nao" or "carbons"), all sizes fitted; None for one size."""
        return exponent([getattr(m, variable) for m in self.members], [m.seconds[stage] for m in self.members])


def parse_sizes(text: str) -> tuple[int, ...]:
    """Carbon counts out of "10,20,30".

    Raises
    ------
    InputError : not numbers of carbon atoms in the range that can be computed
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and LEAST <= int(word) <= MOST for word in words):
        raise InputError(
            f"--sizes {text!r}: expected carbon atoms from {LEAST} to {MOST} with commas between, as 10,20,30,40"
        )
    return tuple(sorted({int(word) for word in words}))


def measure(
    sizes: tuple[int, ...],
    calculation: Calculation,
    *,
    precision: str,
    repeats: int,
    scratch: str | None,
    listener: Listener,
) -> Series:
    """Run dfmp2 on the alkanes, all sizes once before any is repeated.

    Raises
    ------
    Dfmp2Error : as `dfmp2 run` raises it
    """
    header = machine.watch()
    for warning in header.warnings():
        listener.warning(warning)
    found: dict[int, list[tuple[dict[str, float], int, float]]] = {n: [] for n in sizes}
    limits: dict[int, Ceilings] = {}
    results: dict[int, MP2Result] = {}
    with private_folder(scratch) as folder:
        for number in range(1, repeats + 1):
            for n in sizes:
                fp64, fp32 = product_rates(calculation.threads)
                seconds, peak, foreign, result = _run(n, calculation, precision, folder)
                listener.stage(f"[{number}/{repeats}] C{n}H{2 * n + 2}: {seconds['total']:.2f} s")
                found[n].append((seconds, peak, foreign))
                at = ceilings(result.molecule, calculation.basis, result.sizes.nao, calculation.threads)
                at = at.best(replace(at, fp64=fp64, fp32=fp32))
                results[n], limits[n] = result, at.best(limits.get(n, at))
    members = tuple(_member(n, found[n], results[n], limits[n]) for n in sizes)
    for member in members:
        for warning in machine.disturbance(member.foreign):
            listener.warning(f"C{member.carbons}H{2 * member.carbons + 2}: {warning}")
    return Series(header, calculation, repeats, members, machine.load_average())


def _run(
    n: int, calculation: Calculation, precision: str, parent: Path
) -> tuple[dict[str, float], int, float, MP2Result]:
    """Wall seconds by stage, peak memory, cores others used, and the result of one run."""
    [lane] = lanes(calculation, [], [precision])
    folder = parent / "run"
    folder.mkdir()
    (folder / GEOMETRY).write_text(to_xyz(alkane(n), f"C{n}H{2 * n + 2}"), encoding="ascii")
    child = run_child(lane.write(folder, None), folder, lane.settings)
    if child.code:
        raise failure(lane, child)
    result = hdf5.read(folder / RESULT)
    shutil.rmtree(folder)
    stages = {name: float(getattr(result.timings, name)) for name in STAGES}
    seconds = {**stages, "rest": child.wall - sum(stages.values()), "total": child.wall}
    return seconds, child.peak, child.foreign / child.wall, result


def _member(n: int, runs: list[tuple[dict[str, float], int, float]], result: MP2Result, at: Ceilings) -> Member:
    seconds = {name: spread([run[0][name] for run in runs]).median for name in runs[0][0]}
    return Member(
        carbons=n,
        nao=result.sizes.nao,
        naux=result.sizes.naux,
        seconds=seconds,
        peak=max(run[1] for run in runs),
        foreign=max(run[2] for run in runs),
        correlation_energy=result.mp2_correlation_energy,
        ceilings=at,
        least=least_seconds(result, at, kept_pairs(result.molecule, result.orbital_basis.name)),
    )
