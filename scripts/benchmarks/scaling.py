"""Called by scripts/benchmarks/run.sh: measure the scaling of the stages of dfmp2, as whole
processes on a series of n-alkanes, together with matrix products on the same host.

    python scripts/benchmarks/scaling.py --sizes 10,20,40

The exponents are fitted to all sizes (least squares, log-log). For transformation, fit and pair
energies, the rate is shown as a fraction of that of a large square product measured just before
each run, in float64, or in float32 for pair energies in mixed precision. Prints Markdown.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tables
from make_alkane import alkane, to_xyz
from programs import options, private_folder, run_dfmp2

from dfmp2.backends.cpu import CpuBackend
from dfmp2.progress import Listener
from dfmp2.validation.bench import spread, square_rate, watch


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """p of the least-squares fit log(value) = p log(size) + c; None for fewer than two different
    sizes.

    All sizes have equal weight, regardless of their time, because relative errors are fitted.
    """
    points = [
        (math.log(size), math.log(value))
        for size, value in zip(sizes, values, strict=True)
        if value > 0
    ]
    if len({x for x, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def operations(sizes: dict[str, Any]) -> dict[str, float]:
    """Floating-point operations of the stages that are matrix products, closed shell."""
    nao, naux, nocc, nvir = sizes["nao"], sizes["naux"], sizes["nocc"], sizes["nvir"]
    return {
        "transform": 2.0 * naux * nocc * nao * (nao + nvir),
        "fit": float(naux**2 * nocc * nvir),
        "pair_energies": float(nocc * (nocc + 1) * nvir**2 * naux),
    }


def measure(n: int, given: Any, folder: Path) -> dict[str, Any]:
    """One run of C(n)H(2n+2): time, peak memory, sizes, and rates of products just before it."""
    backend = CpuBackend(given.threads)
    rates = {
        precision: square_rate(backend, precision, given.threads) for precision in ("fp64", "mixed")
    }
    (folder / "alkane.xyz").write_text(to_xyz(alkane(n), f"C{n}H{2 * n + 2}"), encoding="ascii")
    arguments = (
        "run",
        "alkane.xyz",
        "--basis",
        given.basis,
        "--precision",
        given.precision,
        "--overwrite",
        "--quiet",
    )
    child, found = run_dfmp2(*arguments, folder=folder, threads=given.threads)
    if child.code:
        raise SystemExit(
            f"C{n}H{2 * n + 2}: dfmp2 run failed (exit code {child.code}): {child.ending()}"
        )
    stages = {name: value for name, value in found["timings"].items() if name != "total"}
    print(f"C{n}H{2 * n + 2}: {child.wall:.2f} s", file=sys.stderr)
    return {
        "seconds": {**stages, "rest": child.wall - sum(stages.values()), "total": child.wall},
        "peak": child.peak,
        "foreign": child.foreign / child.wall,
        "sizes": {name: found["sizes"][name] for name in ("nao", "naux", "nocc", "nvir")},
        "precision": found["precision"],
        "rates": rates,
    }


def member(n: int, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians for one size."""
    seconds = {
        name: spread([run["seconds"][name] for run in runs]).median for name in runs[0]["seconds"]
    }
    sizes = {
        name: value[0] if isinstance(value, list) else value
        for name, value in runs[0]["sizes"].items()
    }
    fastest = {
        precision: max(run["rates"][precision] for run in runs) for precision in ("fp64", "mixed")
    }
    used = {"pair_energies": runs[0]["precision"]}
    return {
        "carbons": n,
        **sizes,
        "seconds": seconds,
        "peak": max(run["peak"] for run in runs),
        "foreign": max(run["foreign"] for run in runs),
        "fraction_of_products": {
            name: count / seconds[name] / fastest[used.get(name, "fp64")] if seconds[name] else None
            for name, count in operations(sizes).items()
        },
    }


def main() -> None:
    """Command line."""
    parser = options(__doc__ or "")
    parser.add_argument("--basis", default="cc-pvdz")
    parser.add_argument("--sizes", default="10,20,30,40", help="carbon atoms, with commas")
    parser.add_argument("--precision", default="auto", choices=("auto", "fp64", "mixed"))
    given = parser.parse_args()
    sizes = sorted({int(word) for word in given.sizes.split(",")})
    header = watch(Listener())
    runs: dict[int, list[dict[str, Any]]] = {n: [] for n in sizes}
    with private_folder(given.scratch) as folder:
        for _ in range(given.repeats):  # all sizes once before any is repeated
            for n in sizes:
                runs[n].append(measure(n, given, Path(folder)))
    members = [member(n, runs[n]) for n in sizes]
    found = {
        "mode": "scaling",
        "machine": asdict(header),
        "load_average_after": os.getloadavg()[0],
        "basis": given.basis,
        "threads": given.threads,
        "repeats": given.repeats,
        "members": members,
        "exponents": {
            name: {
                variable: exponent(
                    [m[variable] for m in members], [m["seconds"][name] for m in members]
                )
                for variable in ("nao", "carbons")
            }
            for name in members[0]["seconds"]
        },
    }
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print("\n".join(tables.scaling_table(found)))


if __name__ == "__main__":
    main()
