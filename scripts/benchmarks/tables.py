"""Called by scripts/benchmarks/race.py and scaling.py: Markdown tables of what they found."""

from __future__ import annotations

from typing import Any

OURS = ("dfmp2", "dfmp2 fp64")


def race_table(race: dict[str, Any]) -> list[str]:
    """Lines on whole programs: seconds, ratios with their range, peak memory, energies."""
    lanes = race["lanes"]
    lines = [
        f"{race['title']}; {race['threads']} threads; {_state(race)}",
        "",
        "| program | total / s | SCF | MP2 integrals, fit | pairs | rest | peak / MB "
        "| dfmp2 to it | dfmp2 fp64 to it | E(corr), dfmp2 - it / Eh | processor / s "
        "| dfmp2 to it | grid points |",
        "|" + "---|" * 13,
    ]
    for name, lane in lanes.items():
        seconds = [
            _spread(lane[key])
            for key in ("total", "SCF", "MP2 integrals, fit", "pair energies", "rest")
        ]
        ratios = ["", ""]
        of_processor = ""
        if not name.startswith("dfmp2"):
            ratios = [
                _spread((race["ratios"].get(f"{ours} / {name}") or {}).get("total"))
                for ours in OURS
            ]
            of_dfmp2 = race["ratios"].get(f"dfmp2 / {name}") or {}
            of_processor = _spread(of_dfmp2.get("processor"))
        difference = race["differences"].get(f"dfmp2 - {name}", {})
        shown = ""
        if "correlation" in difference:
            shown = f"{difference['correlation']:.1e}"
        processor = [_spread(lane["processor"]), of_processor, str(lane.get("points") or "")]
        cells = [name, *seconds, _spread(lane["peak memory"], 0), *ratios, shown, *processor]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def scaling_table(found: dict[str, Any]) -> list[str]:
    """Lines on a series of molecules: seconds of the stages, and exponents fitted to them."""
    names = list(found["exponents"])
    heads = ["molecule", "functions", *(f"{name.replace('_', ' ')} / s" for name in names)]
    lines = [
        f"n-alkanes in {found['basis']}; {found['threads']} threads; {_state(found)}",
        "",
        f"| {' | '.join(heads)} | peak / MB |",
        "|" + "---|" * (len(heads) + 1),
    ]
    for m in found["members"]:
        seconds = " | ".join(f"{m['seconds'][name]:.2f}" for name in names)
        lines.append(f"| C{m['carbons']} | {m['nao']} | {seconds} | {m['peak'] / 1e6:.0f} |")
    for label, key in (("functions", "nao"), ("carbons", "carbons")):
        values = " | ".join(_number(found["exponents"][name][key]) for name in names)
        lines.append(f"| exponent in {label} | | {values} | |")
    last = found["members"][-1]["fraction_of_products"]
    fractions = " | ".join(_number(last.get(name)) for name in names)
    lines.append(f"| fraction of product rate | | {fractions} | |")
    return lines


def _spread(value: dict[str, float] | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    middle, low, high = (f"{value[key]:.{digits}f}" for key in ("median", "low", "high"))
    return middle if low == high else f"{middle} ({low}-{high})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _state(one: dict[str, Any]) -> str:
    """Machine, date, and how quiet it was."""
    header = one["machine"]
    if "runs" in one:
        foreign = max(run["child"]["foreign"] / run["child"]["wall"] for run in one["runs"])
    else:
        foreign = max(member["foreign"] for member in one["members"])
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    return (
        f"{header['processor']}, {header['cores']} cores; {versions}; {header['date'][:10]}; "
        f"others used at most {foreign:.2f} cores"
    )
