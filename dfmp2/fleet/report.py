"""Estimates as JSON and as tables, with everything they assume. All of it is predicted, and says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dfmp2.fleet.instances import Instance
from dfmp2.fleet.large import Job, Network, Row, falls_under
from dfmp2.fleet.many import HOUR, Estimate, Misfit
from dfmp2.fleet.rates import Host
from dfmp2.units import format_bytes

LABEL = "predicted, not measured"
MOST_MISFITS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """One molecule on machines of one kind."""

    instance: Instance
    job: Job
    network: Network
    rows: tuple[Row, ...]


def assumptions(instances: Sequence[Instance], host: Host, more: Sequence[str]) -> list[str]:
    """What every estimate rests on."""
    rates = "measured" if host.measured else "built-in, not measured (dfmp2 plan MOLECULE measures them)"
    found = [f"rates of this host: {rates}, {host.threads} threads; threads share work without loss"]
    for one in instances:
        base = "absolute rates" if one.rates is not None else f"{one.factor:g} times a core of this host"
        price = "no price" if one.price is None else f"{one.price:g} per hour of {one.price_date} ({one.price_source})"
        found.append(
            f"{one.name}: {one.cores} of {one.vcpus} vCPUs used, {format_bytes(one.memory)}, {base} of "
            f"{one.rates_date}; {price}; boot {one.boot:g} s"
            f"{f'; {one.interruptions:g} Spot interruptions per hour' if one.interruptions else ''}"
            f"{_chips(one)}"
        )
    return [*found, *more]


def many_to_dict(
    estimates: Sequence[Estimate], misfits: Sequence[Misfit], currency: str, said: Sequence[str]
) -> dict[str, Any]:
    """What `batch plan --fleet --json` prints for many molecules."""
    return {
        "label": LABEL,
        "currency": currency,
        "estimates": [{**asdict(one), "balance": one.balance} for one in estimates],
        "misfits": [asdict(one) for one in misfits],
        "assumptions": list(said),
    }


def many_to_text(estimates: Sequence[Estimate], misfits: Sequence[Misfit], currency: str, said: Sequence[str]) -> str:
    """A table of instances by wall time and cost, what does not fit, and what is assumed."""
    spot = any(one.interruptions for one in estimates)
    lines = [
        f"{LABEL}",
        f"{'instance':<24}{'number':>8}{'items':>8}{'wall time':>12}{'instance hours':>16}{f'cost / {currency}':>14}"
        f"{'balance':>9}{'interruptions':>15}"[: 91 if not spot else None],
    ]
    for one in estimates:
        lines.append(
            f"{one.instance[:23]:<24}{one.count:>8}{one.items:>8}{clock(one.wall):>12}{one.hours:>16.3f}"
            f"{one.cost:>14.3f}{one.balance:>9.2f}" + (f"{one.interruptions:>15.3f}" if spot else "")
        )
    if misfits:
        lines += ["", f"left out ({len(misfits)}):"]
        lines += [f"  {one.item} on {one.instance}: {one.reason}" for one in misfits[:MOST_MISFITS]]
        lines += [f"  ... and {len(misfits) - MOST_MISFITS} more"] * (len(misfits) > MOST_MISFITS)
    return "\n".join([*lines, *_said(said)]) + "\n"


def large_to_dict(scalings: Sequence[Scaling], currency: str, said: Sequence[str]) -> dict[str, Any]:
    """What `batch plan --molecule --json` prints."""
    return {
        "label": LABEL,
        "currency": currency,
        "instances": [
            {
                "instance": one.instance.name,
                "tiles": one.job.tiles,
                "b_bytes": one.job.b_bytes,
                "serial_fraction": one.job.serial_fraction,
                "store": asdict(one.network.store),
                "ranks": [
                    {
                        **asdict(row),
                        "speedup": row.speedup,
                        "efficiency": row.efficiency,
                        "pair_speedup": row.pair_speedup,
                        "pair_efficiency": row.pair_efficiency,
                        "cost": cost(one.instance, row),
                    }
                    for row in one.rows
                ],
                "under_half": {"pairs": _under(one.rows, pairs_only=True), "whole": _under(one.rows, pairs_only=False)},
            }
            for one in scalings
        ],
        "assumptions": list(said),
    }


def large_to_text(title: str, scalings: Sequence[Scaling], currency: str, said: Sequence[str]) -> str:
    """A table of ranks for each kind of machine, where efficiency falls under one half, and what is assumed."""
    lines = [f"{title}: {LABEL}"]
    priced = any(one.instance.price is not None for one in scalings)
    head = f"cost / {currency}" if priced else ""
    for one in scalings:
        fraction = one.job.serial_fraction
        lines += [
            "",
            f"{one.instance.name}: {one.job.tiles} tiles, B {format_bytes(one.job.b_bytes)}, {_ranks(one)}",
            f"{'ranks':>6}{'instances':>10}{'SCF':>10}{'B made':>10}{'B stored':>10}{'pairs':>10}{'speed-up':>10}"
            f"{'efficiency':>11}{'whole job':>11}{'speed-up':>10}{'efficiency':>11}{head:>12}".rstrip(),
        ]
        for row in one.rows:
            s, paid = row.stages, cost(one.instance, row)
            made = s["integrals"] + s["transform"] + s["fit"]
            lines.append(
                f"{row.ranks:>6}{row.instances:>10}{clock(s['scf']):>10}{clock(made):>10}{clock(s['B']):>10}"
                f"{clock(s['pairs']):>10}{row.pair_speedup:>10.1f}{row.pair_efficiency:>11.0%}{clock(row.total):>11}"
                f"{row.speedup:>10.1f}{row.efficiency:>11.0%}{'' if paid is None else f'{paid:.3f}':>12}".rstrip()
            )
        for name, pairs_only in (("pair step", True), ("whole job", False)):
            row_under = falls_under(one.rows, pairs_only=pairs_only)
            lines.append(
                f"{name}: efficiency stays above 50 %"
                if row_under is None
                else f"{name}: efficiency falls under 50 % at {row_under.ranks} ranks: "
                f"{row_under.reason(pairs_only=pairs_only)}"
            )
        lines.append(f"serial part {fraction:.1%} of one rank's time: the whole job gains {1 / fraction:.1f} at most")
    return "\n".join([*lines, *_said(said)]) + "\n"


def cost(instance: Instance, row: Row) -> float | None:
    """Of a row, boot included; None where there is no price."""
    return None if instance.price is None else row.instances * (row.total + instance.boot) / HOUR * instance.price


def clock(seconds: float) -> str:
    """Time for a table."""
    if seconds < 1e-6:
        return "0"
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / HOUR:.2f} h"


def _under(rows: Sequence[Row], *, pairs_only: bool) -> Mapping[str, Any] | None:
    row = falls_under(rows, pairs_only=pairs_only)
    return None if row is None else {"ranks": row.ranks, "reason": row.reason(pairs_only=pairs_only)}


def _said(said: Sequence[str]) -> list[str]:
    return ["", "assumed:", *(f"  {one}" for one in said)]


def _ranks(one: Scaling) -> str:
    each = one.network.ranks_each
    return f"{each} rank{'s' * (each > 1)} per instance, {one.job.at_once} tiles at once in each"


def _chips(instance: Instance) -> str:
    if not instance.accelerator:
        return ""
    return (
        f"; pair energies on {instance.accelerators} cores of {instance.accelerator}, times from the cost model of the "
        "kernels, which no device has confirmed"
    )
