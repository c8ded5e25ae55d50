"""Called by scripts/benchmarks/run.sh: make Markdown tables from the JSON files of `dfmp2 bench`,
race.py and scaling.py.

python scripts/benchmarks/tables.py FILE.json ...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Found = dict[str, Any]


def races(found: list[Found]) -> list[str]:
    """Whole programs: seconds, ratios with their range, peak memory, energies."""
    lines = []
    for race in found:
        lanes = race["lanes"]
        peers = [name for name in lanes if not name.startswith("dfmp2")]
        lines += [
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
            if name in peers:
                ratios = [
                    _spread((race["ratios"].get(f"{ours} / {name}") or {}).get("total"))
                    for ours in OURS
                ]
                of_dfmp2 = race["ratios"].get(f"dfmp2 / {name}") or {}
                of_processor = _spread(of_dfmp2.get("processor"))
            difference = race["differences"].get(f"dfmp2 - {name}")
            if difference is None or "correlation" not in difference:
                shown = ""
            else:
                shown = f"{difference['correlation']:.1e}"
            processor = [_spread(lane["processor"]), of_processor, str(lane.get("points") or "")]
            cells = [name, *seconds, _spread(lane["peak memory"], 0), *ratios, shown, *processor]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def shapes(found: list[Found]) -> list[str]:
    """The pair step alone."""
    if not found:
        return []
    lines = [
        "| shape | backend | precision | pair step / s | GF/s |",
        "|" + "---|" * 5,
    ]
    for shape in found:
        k = shape["problem"]["kernel"]
        name = f"{shape['problem']['name']} ({k['nocc']}/{k['nvir']}/{k['naux']})"
        for row in shape["results"]:
            cells = [
                name,
                row["backend"],
                row["precision"],
                _spread(row["seconds"]),
                _spread(row["gflops"], 0),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *(_state(shape) for shape in found), ""]


def series(found: list[Found]) -> list[str]:
    """Scaling of the stages."""
    lines = []
    for one in found:
        names = list(one["exponents"])
        lines += [
            f"n-alkanes in {one['basis']}; {one['threads']} threads; {_state(one)}",
            "",
            "| molecule | functions | "
            + " | ".join(f"{name.replace('_', ' ')} / s" for name in names)
            + " | peak / MB |",
            "|" + "---|" * (len(names) + 3),
        ]
        for m in one["members"]:
            seconds = " | ".join(f"{m['seconds'][name]:.2f}" for name in names)
            lines.append(f"| C{m['carbons']} | {m['nao']} | {seconds} | {m['peak'] / 1e6:.0f} |")
        for label, key in (("functions", "nao"), ("carbons", "carbons")):
            values = " | ".join(_number(one["exponents"][name][key]) for name in names)
            lines.append(f"| exponent in {label} | | {values} | |")
        last = one["members"][-1]["fraction_of_products"]
        lines.append(
            "| fraction of product rate | | "
            + " | ".join(_number(last.get(name)) for name in names)
            + " | |"
        )
        lines.append("")
    return lines


def products(found: list[Found]) -> list[str]:
    """Rates of matrix products."""
    lines = []
    for one in found:
        lines += [_state(one), "", "| library | precision | threads | GF/s |", "|---|---|---|---|"]
        for row in one["rates"]:
            rate = {key: value / 1e9 for key, value in row["flops_per_second"].items()}
            lines.append(
                f"| {row['library']} | {row['precision']} | {row['threads']} | {_spread(rate, 0)} |"
            )
        lines.append("")
    return lines


OURS = ("dfmp2", "dfmp2 fp64")
TABLES = {"race": races, "shape": shapes, "scaling": series, "gemm": products}


def _spread(value: dict[str, float] | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    middle, low, high = (f"{value[key]:.{digits}f}" for key in ("median", "low", "high"))
    return middle if low == high else f"{middle} ({low}-{high})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _state(one: Found) -> str:
    """Machine, date, and how quiet it was."""
    header = one["machine"]
    foreign = one.get("foreign_cores")
    if foreign is None and "runs" in one:
        foreign = max(run["child"]["foreign"] / run["child"]["wall"] for run in one["runs"])
    if foreign is None:
        foreign = max(member["foreign"] for member in one["members"])
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    return (
        f"{header['processor']}, {header['cores']} cores; {versions}; {header['date'][:10]}; "
        f"others used at most {foreign:.2f} cores"
    )


def main() -> None:
    """Command line: JSON files in, Markdown on standard output."""
    parser = argparse.ArgumentParser(description="Markdown tables out of JSON files of dfmp2 bench")
    parser.add_argument("files", nargs="+", type=Path)
    found: dict[str, list[Found]] = {mode: [] for mode in TABLES}
    for file in parser.parse_args().files:
        one = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(one, dict) or one.get("mode") not in found:
            parser.error(f"{file} is no JSON file of dfmp2 bench, race.py or scaling.py")
        found[one["mode"]].append(one)
    for mode, table in TABLES.items():
        for line in table(found[mode]):
            print(line)


if __name__ == "__main__":
    main()
