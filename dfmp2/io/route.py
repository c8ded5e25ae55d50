"""Where B is made, as JSON and as text, with the predicted costs of both ways."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dfmp2.route import Cost, Route


def route_dict(route: Route) -> dict[str, Any]:
    """The object under "transform" of `dfmp2 plan --json` and `dfmp2 kernels list --json`; seconds are predicted."""
    return {
        "place": route.place,
        "reason": route.reason,
        "chip": route.chip,
        "host_seconds": _seconds(route.host),
        "device_seconds": _seconds(route.device),
        "device_host_bytes": route.held,
    }


def route_lines(route: Route) -> list[str]:
    """The choice, and a line for each way."""
    lines = []
    if route.host is not None:
        lines.append(
            f"{'B made on, predicted for ' + route.chip:<38}{'fit / s':>12}{'transform / s':>14}{'K1, K2 / s':>12}"
            f"{'link / s':>10}{'all / s':>10}"
        )
        for place, cost in (("host", route.host), ("device", route.device)):
            if cost is not None:
                lines.append(
                    f"{place:<38}{cost.fit:>12.4f}{cost.transform:>14.4f}{cost.device:>12.4f}{cost.link:>10.4f}"
                    f"{cost.total:>10.4f}"
                )
    return [*lines, f"B is made on the {route.place}: {route.reason}"]


def _seconds(cost: Cost | None) -> dict[str, float] | None:
    return None if cost is None else {**asdict(cost), "total": cost.total}
