"""Figures published for trn1 by trnblas and trntensor beside our model's and, measured now, this
host's.

A product's figure is that of one call with its transfers, as theirs is. An energy step begins with
a resident B, also where theirs begins with T. On one thread the host's is processor time, which
other programs do not lengthen. The figures and their sources are in published.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from dfmp2.backends import registry, tiling
from dfmp2.backends.base import Shape
from dfmp2.host.threads import limited
from dfmp2.progress import Listener
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.costs.model import CHIPS

FIGURES = ("published", "torch", "host")  # columns
MS = 1e3  # in a second
LONG = 1e11  # operations of what is measured only with --slow


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published figure.

    Attributes
    ----------
    published : in `unit`, ms where it is a time; torch : of PyTorch on the CPU of the same machine,
        None for none
    kind, sizes : of what the model and the host repeat; entry : of `dfmp2 validate --table trnsci`,
        "" for none
    """

    id: str
    what: str
    unit: str
    published: float
    source: str
    torch: float | None = None
    kind: str = ""
    sizes: tuple[int, ...] = ()
    entry: str = ""

    @property
    def operations(self) -> float:
        """Floating-point, of the products."""
        if self.kind != "pairs":
            return 2.0 * float(np.prod(self.sizes))
        nocc, nvir, naux = self.sizes
        return float(nocc * (nocc + 1) * nvir**2 * naux)


@cache
def load_published() -> tuple[dict[str, str], tuple[PublishedFigure, ...]]:
    """Sources by name, and all figures."""
    found = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return found["sources"], tuple(
        PublishedFigure(**{**row, "sizes": tuple(row.get("sizes", ()))}) for row in found["rows"]
    )


def model(figure: PublishedFigure, chip: str) -> tuple[float, float] | None:
    """Least and largest prediction for one core, in the figure's unit; None where nothing is
    predicted."""
    if not figure.kind:
        return None
    if figure.kind == "pairs":
        (one,) = catalogue.predict((Shape(*figure.sizes),), chips=(chip,))
        return MS * (one.device + one.queued), MS * (one.slowest + one.dispatch)
    g, k, m, n = figure.sizes
    one = catalogue.predict_product((g, k, m, n), CHIPS[chip])
    up = one.uploaded / catalogue.UPLOAD
    down = 4 * g * m * n / catalogue.DOWNLOAD
    calls = tuple(MS * (time + one.dispatch) for time in (one.device, one.slowest))
    if figure.kind == "resident":  # five calls
        low, high = (5 * (call + up + down) / (5 * call + up + down) for call in calls)
        return min(low, high), max(low, high)
    alone = {"up": (up, up), "down": (down, down), "kernel": (MS * one.device, MS * one.slowest)}
    return alone.get(figure.kind) or (calls[0] + up + down, calls[1] + up + down)


def measured(figure: PublishedFigure, threads: int, *, slow: bool) -> float | None:
    """ms of the same on this host in float32, the best of three (of one with more than 1e11
    operations); None for none.

    Parameters
    ----------
    slow : whether to measure what has more than 1e11 operations
    """
    if figure.kind not in ("product", "pairs") or (figure.operations > LONG and not slow):
        return None
    rng = np.random.default_rng(0)
    if figure.kind == "product":
        g, k, m, n = figure.sizes
        a, b = (rng.standard_normal(shape, np.float32) for shape in ((g, k, m), (g, k, n)))
        with limited(threads, blas=threads):
            return _best(lambda: a.swapaxes(1, 2) @ b, figure, threads)
    nocc, nvir, naux = figure.sizes
    backend, _ = registry.select_backend("cpu", "mixed", threads)
    b = rng.standard_normal(figure.sizes, np.float32) / np.float32(naux)
    operand = backend.put(b, -np.linspace(2.0, 1.0, nocc), np.linspace(0.5, 5.0, nvir), "mixed")
    tiles = tiling.triangle(nocc, backend.limits, nvir * naux)

    def pairs() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(partial(backend.pair_terms, operand, operand), tiles))

    with limited(threads):
        return _best(pairs, figure, threads)


def _best(work: Callable[[], object], figure: PublishedFigure, threads: int) -> float:
    seconds = []
    clock = time.process_time if threads == 1 else time.perf_counter
    for _ in range(1 if figure.operations > LONG else 3):
        start = clock()
        work()
        seconds.append(clock() - start)
    return MS * min(seconds)


def published_table(
    chip: str, threads: int, *, measure: bool, slow: bool, listener: Listener | None = None
) -> list[dict[str, Any]]:
    """Every figure with the model's and, where asked for, this host's."""
    sources, figures = load_published()
    found: dict[tuple[object, ...], float | None] = {}
    rows = []
    for one in figures:
        same = one.kind, one.sizes
        if measure and same not in found:
            found[same] = measured(one, threads, slow=slow)
        predicted = model(one, chip)
        rows.append(
            {
                **{
                    name: getattr(one, name)
                    for name in ("id", "what", "unit", "published", "torch", "entry")
                },
                "source": sources[one.source],
                "model": None if predicted is None else list(predicted),
                "host": found.get(same),
            }
        )
        if listener is not None:
            listener.step(len(rows), len(figures), "figures")
    return rows


def to_text(rows: Sequence[dict[str, Any]], chip: str) -> str:
    """The table for reading, each column with what it is."""
    lines = [
        "published: measured by others on trn1, NKI and PyTorch on its CPU",
        f"model: predicted, one {chip} core; host: measured here with --measure",
        "a dash: no such figure; energies: dfmp2 validate --table trnsci",
        "",
        f"{'':<36}{'':>4}{'published':>10}{'PyTorch':>8}{'model':>15}{'host':>7}",
    ]
    for row in rows:
        if row["model"] is None:
            shown = "-"
        else:
            shown = " to ".join(dict.fromkeys(_short(x, 3) for x in row["model"]))
        published, torch, host = (
            "-" if row[name] is None else _short(row[name], 4) for name in FIGURES
        )
        lines.append(
            f"{row['what']:<36}{row['unit']:>4}{published:>10}{torch:>8}{shown:>15}{host:>7}"
        )
    sources = (f"source: {one}" for one in dict.fromkeys(row["source"] for row in rows))
    return (
        "\n".join([*lines, "", *(fill(one, 80, subsequent_indent="  ") for one in sources)]) + "\n"
    )


def _short(number: float, digits: int) -> str:
    if number >= 10**digits:
        return f"{number:.0f}"
    return f"{number:.{digits}g}"
