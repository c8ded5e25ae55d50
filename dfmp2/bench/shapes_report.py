"""The pair step's times as JSON and as a table."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from dfmp2.bench.shapes import EMULATED, Measurement, ShapeTimes
from dfmp2.bench.spread import Spread, ratios, spread

Group = tuple[str, str]


def groups(times: ShapeTimes) -> dict[Group, list[Measurement]]:
    """Measurements by (backend, precision), in the order of their first."""
    found: dict[Group, list[Measurement]] = {}
    for one in times.measurements:
        found.setdefault((one.backend, one.precision), []).append(one)
    return found


def summary(times: ShapeTimes, found: list[Measurement]) -> dict[str, Spread]:
    """Seconds, GF/s, and per cent of the products' rates measured just before."""
    operations = times.problem.operations
    return {
        "seconds": spread([one.pairs for one in found]),
        "gflops": spread([operations / one.pairs / 1e9 for one in found]),
        "square_gflops": spread([one.square / 1e9 for one in found]),
        "shaped_gflops": spread([one.shaped / 1e9 for one in found]),
        "percent_of_square": spread([100 * operations / one.pairs / one.square for one in found]),
        "percent_of_shaped": spread([100 * operations / one.pairs / one.shaped for one in found]),
        "put_seconds": spread([one.put for one in found]),
        "certificate_seconds": spread([one.certificate for one in found]),
    }


def compared(times: ShapeTimes) -> dict[str, Spread]:
    """Ratios of times, run by run: mixed to fp64 of a backend, and backends of one precision."""
    by = groups(times)
    found = {}
    for (backend, precision), ours in by.items():
        for (other, exact), theirs in by.items():
            same_precision = precision == exact and backend != other and list(by).index((other, exact)) == 0
            if (backend == other and (precision, exact) == ("mixed", "fp64")) or same_precision:
                seconds = [[one.pairs for one in group] for group in (ours, theirs)]
                found[f"{backend} {precision} / {other} {exact}"] = ratios(*seconds)
    return found


def to_dict(times: ShapeTimes) -> dict[str, Any]:
    """The object `--json` writes."""
    return {
        "mode": "shape",
        "machine": asdict(times.machine),
        "load_average_after": times.load_after,
        "foreign_cores": times.foreign,
        "problem": asdict(times.problem),
        "operations": times.problem.operations,
        "threads": times.threads,
        "not_timed": {**times.unused, "nki": EMULATED},
        "results": [
            {
                "backend": backend,
                "precision": precision,
                **{name: asdict(value) for name, value in summary(times, found).items()},
                "energy_difference": max((one.difference for one in found), key=abs),
            }
            for (backend, precision), found in groups(times).items()
        ],
        "ratios": {name: asdict(value) for name, value in compared(times).items()},
        "measurements": [asdict(one) for one in times.measurements],
    }


def to_json(times: ShapeTimes) -> str:
    """JSON text with a newline."""
    return json.dumps(to_dict(times), indent=2, allow_nan=False) + "\n"


def to_text(times: ShapeTimes) -> str:
    """Header and table."""
    k = times.problem.kernel
    by = groups(times)
    lines = [
        *times.machine.lines(),
        f"load average at the end {times.load_after:.2f} (our own work included)",
        f"others used {times.foreign:.2f} cores meanwhile",
        f"{times.problem.name}: {k.nocc} occupied, {k.nvir} virtual, {k.naux} fitting functions; "
        f"{times.problem.operations:.3g} operations; {times.threads} threads; {len(next(iter(by.values())))} runs of "
        "each, alternating",
        *(f"{name} not timed: {reason}" for name, reason in times.unused.items()),
        EMULATED,
        "",
        f"{'backend':<8}{'precision':<10}{'pair step / s':>22}{'GF/s':>20}{'square product':>20}{'% of it':>18}"
        f"{'same shapes':>20}{'% of it':>18}{'certificate / s':>18}{'error / Eh':>12}",
    ]
    for (backend, precision), found in by.items():
        s = summary(times, found)
        worst = max((one.difference for one in found), key=abs)
        lines.append(
            f"{backend:<8}{precision:<10}{s['seconds'].show(3):>22}{s['gflops'].show(0):>20}{s['square_gflops'].show(0):>20}"
            f"{s['percent_of_square'].show(0):>18}{s['shaped_gflops'].show(0):>20}{s['percent_of_shaped'].show(0):>18}"
            f"{s['certificate_seconds'].show(3) if precision == 'mixed' else '-':>18}{worst:>12.1e}"
        )
    found_ratios = [f"{name:<32}{value.show():>20}" for name, value in compared(times).items()]
    return "\n".join([*lines, *(["", "ratio of times, run by run", *found_ratios] if found_ratios else [])]) + "\n"
