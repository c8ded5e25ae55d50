"""A race as JSON and as tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from dfmp2.bench.race_values import TOLERANCE, Race, Run
from dfmp2.bench.spread import Spread, ratios, spread
from dfmp2.errors import ComparisonFailed
from dfmp2.units import format_bytes

Measure = Callable[[Run], float]

# What every program has. "rest" is start-up, imports, reading, writing.
MEASURES: dict[str, Measure] = {
    "total": lambda run: run.child.wall,
    "SCF": lambda run: run.outcome.stages.scf,
    "MP2 integrals, fit": lambda run: run.outcome.stages.between,
    "pair energies": lambda run: run.outcome.stages.pairs,
    "rest": lambda run: run.child.wall - run.outcome.stages.total,
}
SHORTEST = 0.005  # s; no ratio of stages below, which the programs print with three decimals


def values(race: Race, lane: str, measure: Measure) -> list[float]:
    """A measure of all runs of a lane."""
    return [measure(run) for run in race.of(lane)]


def compared(race: Race, ours: str, theirs: str, measure: Measure) -> Spread | None:
    """Ratio ours/theirs, run by run; None where one of them is too short to measure."""
    a, b = values(race, ours, measure), values(race, theirs, measure)
    return ratios(a, b) if min(*a, *b) >= SHORTEST else None


def peak(run: Run) -> float:
    """Peak resident memory, MB."""
    return run.child.peak / 1e6


def to_dict(race: Race) -> dict[str, Any]:
    """The object `--json` writes: every run as measured, medians with ranges, ratios."""
    measures = {**MEASURES, "peak memory": peak}
    return {
        "mode": "race",
        "machine": asdict(race.machine),
        "load_average_after": race.load_after,
        "memory_touched_bytes": race.touched,
        "title": race.title,
        "calculation": asdict(race.calculation),
        "units": {"peak memory": "MB", "energies": "Eh", "others": "s"},
        "lanes": {
            lane: {
                "program": race.of(lane)[0].outcome.program,
                "note": race.of(lane)[0].outcome.note,
                **{name: asdict(spread(values(race, lane, measure))) for name, measure in measures.items()},
            }
            for lane in race.lanes
        },
        "ratios": {
            f"{ours} / {theirs}": {
                name: None if (found := compared(race, ours, theirs, measure)) is None else asdict(found)
                for name, measure in measures.items()
            }
            for ours in race.ours()
            for theirs in race.peers()
        },
        "differences": {
            f"{ours} - {other}": {"scf": scf, "correlation": correlation}
            for (ours, other), (scf, correlation) in race.differences().items()
        },
        "scripts": race.scripts(),
        "runs": [{name: value for name, value in asdict(run).items() if name != "script"} for run in race.runs],
    }


def to_json(race: Race) -> str:
    """JSON text with a newline."""
    return json.dumps(to_dict(race), indent=2, allow_nan=False) + "\n"


def to_text(race: Race) -> str:
    """Header and three tables: times, ratios, energies."""
    lines = [*_header(race), "", *_times(race), ""]
    if race.peers():
        lines += [*_ratios(race), ""]
    return "\n".join([*lines, *_energies(race)]) + "\n"


def scripts_text(race: Race) -> str:
    """The input files of the peers, each below a line that names it."""
    return "".join(f"--- {lane} ---\n{script.rstrip()}\n\n" for lane, script in race.scripts().items())


def judge(race: Race) -> None:
    """Raise when the programs disagree.

    Raises
    ------
    ComparisonFailed : energies differ by more than TOLERANCE
    """
    for (ours, other), found in race.differences().items():
        for name, difference in zip(("E(SCF)", "E(corr)"), found, strict=True):
            if abs(difference) > TOLERANCE:
                raise ComparisonFailed(
                    f"{name} of {ours} and {other} differ by {difference:.1e} Eh, more than {TOLERANCE:.0e} Eh: the "
                    "times are not those of the same calculation"
                )


def _header(race: Race) -> list[str]:
    calculation = race.calculation
    programs = {lane: race.of(lane)[0].outcome for lane in race.lanes}
    memory = "as each program takes by itself" if calculation.memory is None else format_bytes(calculation.memory)
    touched = f"{format_bytes(race.touched)} written to before every run" if race.touched else "not touched beforehand"
    return [
        *race.machine.lines(),
        f"load average at the end {race.load_after:.2f} (our own runs included); memory {touched}",
        race.title,
        f"{len(race.of(race.lanes[0]))} runs of each, alternating; {calculation.threads} threads; memory {memory}",
        "converged to 1e-10 Eh and gradient 1e-6 (Psi4: d_convergence 1e-7), the same fitting sets and frozen core",
        *(f"{lane}: {found.program}{', ' * bool(found.note)}{found.note}" for lane, found in programs.items()),
    ]


def _times(race: Race) -> list[str]:
    lines = [f"{'seconds':<20}" + "".join(f"{lane:>20}" for lane in race.lanes)]
    for name, measure in MEASURES.items():
        cells = [spread(values(race, lane, measure)).show() for lane in race.lanes]
        lines.append(f"{name:<20}" + "".join(f"{cell:>20}" for cell in cells))
    cells = [spread(values(race, lane, peak)).show(0) for lane in race.lanes]
    lines.append(f"{'peak memory / MB':<20}" + "".join(f"{cell:>20}" for cell in cells))
    cycles = [str(race.of(lane)[0].outcome.cycles or "-") for lane in race.lanes]
    return [*lines, f"{'SCF iterations':<20}" + "".join(f"{cell:>20}" for cell in cycles)]


def _ratios(race: Race) -> list[str]:
    pairs = [(ours, theirs) for ours in race.ours() for theirs in race.peers()]
    lines = ["ratio, median (range) of ratios run by run"]
    names = [*MEASURES, "peak memory"]
    lines.append(f"{'':<28}" + "".join(f"{name:>20}" for name in names))
    for ours, theirs in pairs:
        row = f"{ours + ' / ' + theirs:<28}"
        for name in names:
            found = compared(race, ours, theirs, {**MEASURES, "peak memory": peak}[name])
            row += f"{'-' if found is None else found.show():>20}"
        lines.append(row)
    return lines


def _energies(race: Race) -> list[str]:
    first = race.of(race.lanes[0])[0].outcome
    lines = [
        f"E(SCF) {first.scf_energy:.10f} Eh, E(corr) {first.correlation_energy:.10f} Eh ({race.lanes[0]})",
        f"{'difference / Eh':<36}{'E(SCF)':>12}{'E(corr)':>12}",
    ]
    for (ours, other), (scf, correlation) in race.differences().items():
        lines.append(f"{ours + ' - ' + other:<36}{scf:>12.1e}{correlation:>12.1e}")
    return lines
