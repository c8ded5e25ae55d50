"""Array jobs: in which order, and by which shard, items are computed; and times as schedulers are told them.

Large items first, so that none of them is alone at the end. Items are taken in buckets of a factor of two in cost, and
within a bucket those of one composition together: what is prepared for a shape is used while it is warm. Shards are
filled largest first, each item to the shard with the least so far.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dfmp2.errors import InputError

LEAST = 1e-3  # s; cheaper items are all alike
MOST_SHARDS = 100_000
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
LONGEST = 366 * 86400  # s
SCHEDULERS = (  # variables: index, first index (or None), count
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"),
    ("AWS_BATCH_JOB_ARRAY_INDEX", None, "AWS_BATCH_JOB_ARRAY_SIZE"),
)


@dataclass(frozen=True, slots=True)
class Work:
    """An item as the scheduler sees it.

    Attributes
    ----------
    place : its place in the manifest
    cost : s
    shape : items of the same shape have the same one
    series : items of one series may start from each other's orbitals
    """

    place: int
    cost: float
    shape: str
    series: str


@dataclass(frozen=True, slots=True)
class Run:
    """Items that one worker computes one after the other; places in the manifest."""

    places: tuple[int, ...]
    cost: float


def arrange(items: Sequence[Work], *, parts: int, chained: bool) -> list[Run]:
    """Runs in the order in which they should begin.

    Parameters
    ----------
    parts : pieces that a series is cut into when items are chained, so that as many can work on it
    """
    if not chained:
        return [Run((item.place,), item.cost) for item in sorted(items, key=_rank)]
    by_place = {item.place: item for item in items}
    runs = [
        Run(piece, sum(by_place[place].cost for place in piece))
        for series in _series(items)
        for piece in _pieces(series, parts)
    ]
    return sorted(runs, key=lambda run: (-run.cost, run.places))


def shards(items: Sequence[Work], count: int, *, chained: bool = False) -> list[list[Work]]:
    """The items of each shard, in the manifest's order; every host finds the same."""
    by_place = {item.place: item for item in items}
    runs = sorted(arrange(items, parts=count, chained=chained), key=lambda run: (-run.cost, run.places))
    filled: list[list[int]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for run in runs:
        least = min(range(count), key=lambda k: (loads[k], len(filled[k]), k))
        filled[least].extend(run.places)
        loads[least] += run.cost
    return [[by_place[place] for place in sorted(places)] for places in filled]


def read_shard(text: str) -> tuple[int, int]:
    """(I, N) from "I/N", I from 0 to N - 1.

    Raises
    ------
    InputError : not of that form
    """
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    if match is None or not int(match[1]) < int(match[2]) <= MOST_SHARDS:
        raise InputError(f"--shard {text!r}: expected I/N with I from 0 to N - 1, for example 0/8")
    return int(match[1]), int(match[2])


def shard_of_job(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """(I, N) of a task in a Slurm or AWS Batch array job; None outside of one.

    Raises
    ------
    InputError : the scheduler's variables make no sense
    """
    for index, first, count in SCHEDULERS:
        if index not in environment:
            continue
        names = [index, count] + ([first] if first else [])
        try:
            values = {name: int(environment[name]) for name in names}
        except (KeyError, ValueError) as error:
            raise InputError(f"{index} is set, but {', '.join(names)} are not all numbers: pass --shard I/N") from error
        place = values[index] - (values[first] if first else 0)
        if not 0 <= place < values[count]:
            raise InputError(
                f"{index} = {values[index]} is not one of {values[count]} tasks in steps of one: use an array such as "
                f"0-{values[count] - 1}, or pass --shard I/N"
            )
        return place, values[count]
    return None


def parse_walltime(text: str) -> int:
    """Seconds of "90min", "2h", "1.5h", "1d", or of Slurm's "HH:MM:SS" and "D-HH:MM:SS".

    A number without a unit is refused: Slurm reads minutes, AWS Batch seconds.

    Raises
    ------
    InputError : none of these, or not between a second and a year
    """
    expected = "expected a time such as 90min, 2h, 1d, 02:00:00 or 1-12:00:00"
    clock = re.fullmatch(r"(?:([0-9]{1,3})-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])", text.strip())
    number = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*([A-Za-z]{0,8})", text.strip())
    if clock is not None:
        days, hours, minutes, rest = (int(part or 0) for part in clock.groups())
        seconds = float(days * SECONDS["d"] + hours * SECONDS["h"] + minutes * SECONDS["min"] + rest)
    elif number is not None and number[2] in SECONDS:
        seconds = float(number[1]) * SECONDS[number[2]]
    elif number is not None and not number[2]:
        raise InputError(f"--time {text} has no unit: write for example {text.strip()}min or {text.strip()}h")
    else:
        raise InputError(f"--time {text[:40]!r}: {expected}")
    if not 1 <= seconds <= LONGEST:
        raise InputError(f"--time {text[:40]!r}: expected 1 s to {LONGEST // 86400} days; {expected}")
    return round(seconds)


def _rank(item: Work) -> tuple[float, str, float, int]:
    bucket = math.floor(math.log2(max(item.cost, LEAST)))
    return -bucket, item.shape, -item.cost, item.place


def _series(items: Sequence[Work]) -> list[list[int]]:
    """Places of the items of each series, in the manifest's order."""
    found: dict[str, list[int]] = {}
    for item in sorted(items, key=lambda item: item.place):
        found.setdefault(item.series, []).append(item.place)
    return list(found.values())


def _pieces(series: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    """Cut into at most `parts` pieces of about equal length."""
    length = -(-len(series) // parts)
    return [tuple(series[start : start + length]) for start in range(0, len(series), length)]
