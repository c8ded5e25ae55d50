"""A series of alkanes as JSON and as tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from dfmp2.bench.scaling import STAGES, Series

COLUMNS = (*STAGES, "rest", "total")


def to_dict(series: Series) -> dict[str, Any]:
    """The object `--json` writes."""
    return {
        "mode": "scaling",
        "machine": asdict(series.machine),
        "load_average_after": series.load_after,
        "calculation": asdict(series.calculation),
        "repeats": series.repeats,
        "members": [asdict(member) for member in series.members],
        "stages": {
            name: {
                "exponent_in_functions": series.growth(name, "nao"),
                "exponent_in_carbons": series.growth(name, "carbons"),
                "bound_by": [None if (found := member.bound(name)) is None else found[0] for member in series.members],
                "fraction_of_limit": [
                    None if (found := member.bound(name)) is None else found[1] for member in series.members
                ],
            }
            for name in COLUMNS
        },
    }


def to_json(series: Series) -> str:
    """JSON text with a newline."""
    return json.dumps(to_dict(series), indent=2, allow_nan=False) + "\n"


def to_text(series: Series) -> str:
    """Header, times by size, exponents and limits by stage."""
    calculation = series.calculation
    lines = [
        *series.machine.lines(),
        f"load average at the end {series.load_after:.2f} (our own runs included)",
        f"n-alkanes in {calculation.basis}, whole processes, {calculation.threads} threads, "
        f"{series.repeats} runs of each",
        "",
        f"{'seconds':<12}{'functions':>10}{'fitting':>9}"
        + "".join(f"{name.replace('_', ' '):>15}" for name in COLUMNS)
        + f"{'peak / MB':>11}",
    ]
    for member in series.members:
        cells = "".join(f"{member.seconds[name]:>15.2f}" for name in COLUMNS)
        formula = f"C{member.carbons}H{2 * member.carbons + 2}"
        lines.append(f"{formula:<12}{member.nao:>10}{member.naux:>9}{cells}{member.peak / 1e6:>11.0f}")
    lines += ["", _rates(series), "", _stage_header(series)]
    lines += [_stage(series, name) for name in COLUMNS]
    lines.append("a fraction above 1: the machine was slower while the limit was measured than during the run")
    return "\n".join(lines) + "\n"


def _rates(series: Series) -> str:
    at = series.members[-1].ceilings
    return (
        f"limits measured here (largest molecule): products {at.fp64 / 1e9:.0f} GF/s float64, "
        f"{at.fp32 / 1e9:.0f} float32; memory {at.memory / 1e9:.0f} GB/s; {at.integrals / 1e6:.0f} million integrals/s"
    )


def _stage_header(series: Series) -> str:
    sizes = "".join(f"{f'C{member.carbons}':>8}" for member in series.members)
    return (
        f"{'stage':<16}{'exponent in':>12}{'':>10}  {'bound by':<18}fraction of the limit reached\n"
        f"{'':<16}{'functions':>12}{'carbons':>10}  {'':<18}{sizes}"
    )


def _stage(series: Series, name: str) -> str:
    growth = [series.growth(name, variable) for variable in ("nao", "carbons")]
    shown = [f"{value:.2f}" if value is not None else "-" for value in growth]
    bounds = [member.bound(name) for member in series.members]
    last = bounds[-1]
    fractions = "".join(f"{'-' if found is None else f'{found[1]:.2f}':>8}" for found in bounds)
    bound = "-" if last is None else last[0]
    return f"{name.replace('_', ' '):<16}{shown[0]:>12}{shown[1]:>10}  {bound:<18}{fractions}"
