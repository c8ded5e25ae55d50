"""Pair energies of a prepared file in N shards: each process computes some of the tiles and stores
them in a file beside the result.

    RESULT.shard-I-of-N.checkpoint    finished tiles of part I

A tile is a pure function of B and its index, and results are added in tile order, so the bits equal
those of one process, however the work is divided and even if tiles are computed twice.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from dfmp2.backends.base import PairTerms, TileSource
from dfmp2.backends.tiling import pairs_in
from dfmp2.errors import InputError, Message, Option, ResultFileError
from dfmp2.errors.messages import Part
from dfmp2.mp2.calculation import RUN, Calculation, Checkpoint
from dfmp2.mp2.identity import OTHER_BITS, PROCESSOR, differences, other_processor
from dfmp2.mp2.pairs import PairOperands, Results, TileKey, evaluate_keys, tile_keys
from dfmp2.mp2.prepared import PreparedSource, open_prepared, read_b
from dfmp2.options import Options
from dfmp2.output.checkpoint import SUFFIX, remove
from dfmp2.output.state import decode
from dfmp2.progress import Listener
from dfmp2.units import counted_text

Shard = tuple[int, int]  # I of N


def require_pairs(options: Options) -> None:
    """Raise InputError if the method has no pair energies to distribute."""
    if options.correlation.kind != "pairs":
        raise InputError(
            Option("method", options.method),
            " has no tiles of pairs, so that ",
            Option("workers"),
            ", ",
            Option("engine"),
            ", ",
            Option("shard"),
            " and ",
            Option("collect", True),
            " are not available for it: leave them out",
        )


def require_tiles(keys: list[TileKey], count: int, given: Part) -> None:
    """Raise InputError, naming what was `given`, if there are fewer tiles than shards."""
    if count > len(keys):
        raise InputError(
            given,
            f": the pairs are divided into {counted_text(len(keys), 'tile')}: use at most "
            f"{counted_text(len(keys), 'shard')}",
        )


def pairs_of_shard(keys: list[TileKey]) -> int:
    """Pairs in all of these tiles."""
    return sum(pairs_in(key[3]) for key in keys)


def cut(keys: list[TileKey], count: int) -> list[list[TileKey]]:
    """Parts with about equal numbers of pairs, each of neighbouring tiles so that it needs few rows
    of B; some may be empty."""
    parts: list[list[TileKey]] = [[] for _ in range(count)]
    before, total = 0, pairs_of_shard(keys)
    for key in sorted(keys):
        pairs = pairs_in(key[3])
        parts[(2 * before + pairs) * count // (2 * total)].append(key)
        before += pairs
    return parts


def evaluator(
    calculation: Calculation, source: PreparedSource
) -> Callable[[list[TileKey]], Results]:
    """A function that evaluates tiles in this process; B is read now, into memory if it fits, and
    passed to the backend once."""
    fitted = read_b(calculation, source)
    backend = calculation.setup.pair_backend
    operands = PairOperands(
        b=fitted.b,
        spaces=calculation.spaces(source.prepared.reference),
        stream_bytes=calculation.plan.memory.tensor_bytes,
        threads=calculation.setup.active,
    )
    put: dict[str, list[TileSource]] = {}

    def evaluate(keys: list[TileKey]) -> Results:
        asked = backend.limits.settled(calculation.options.precision)
        if keys[0][0] or asked == "fp64":
            precision = "fp64"
        else:
            precision = "mixed"
        if precision not in put:
            put.clear()
            put[precision] = operands.on(backend, precision)
        return evaluate_keys(backend, put[precision], keys)

    return evaluate


def shard_of(target: Path, index: int, count: int) -> Path:
    """Path that stands for a shard of a result; its tiles are in the checkpoint of that path."""
    return target.with_name(f"{target.name}.shard-{index}-of-{count}")


def shards_of(target: Path) -> dict[Shard, Path]:
    """The shard files beside a result, by (I, N)."""
    files = sorted(target.parent.glob(f"{glob.escape(target.name)}.shard-*{SUFFIX}"))
    found = (
        (re.search(r"\.shard-(\d{1,9})-of-(\d{1,9})\.checkpoint$", path.name), path)
        for path in files
    )
    return {(int(match[1]), int(match[2])): path for match, path in found if match}


def remove_shards(target: Path) -> None:
    """Remove the shards of a result, which now holds their tiles."""
    for path in shards_of(target).values():
        remove(path)


def label(index: int, count: int) -> str:
    """The label of a shard in the identity of its tiles."""
    return f"shard {index}/{count}"


def compute_shard(
    source: PreparedSource,
    options: Options,
    shard: Shard,
    listener: Listener,
    command: str,
    checkpoint: Checkpoint,
) -> tuple[list[TileKey], list[TileKey]]:
    """Compute the tiles of part I of N that `checkpoint` lacks; return that part and all tiles."""
    index, count = shard
    tiles_only = replace(options, certify_fit=False)
    with open_prepared(source, tiles_only, listener, command, checkpoint) as calculation:
        keys = tile_keys(source.prepared.shapes, calculation.setup.backend.limits, 0)
        require_tiles(keys, count, Message(Option("shard", index), f"/{count}"))
        part = cut(keys, count)[index]
        missing = [key for key in part if key not in checkpoint.tiles]
        if missing:
            with closing(evaluator(calculation, source)(missing)) as results:
                for number, (key, terms) in enumerate(results, len(part) - len(missing) + 1):
                    checkpoint.add_tile(key, terms)
                    calculation.listener.step(number, len(part), "tiles")
        return part, keys


def collected(target: Path, calculation: Calculation, keys: list[TileKey]) -> Results:
    """The tiles of all shards of a result, without any repetition in float64, which is left to the
    caller.

    Raises
    ------
    ResultFileError : a shard is damaged, or belongs to another calculation, file, version or number
        of shards
    InputError : shards are missing or incomplete
    """
    if keys[0][0]:
        return
    files = shards_of(target)
    counts = sorted({count for _, count in files})
    if len(counts) != 1:
        if counts:
            found = (
                f"there are shards of {' and of '.join(map(str, counts))}: delete the wrong ones"
            )
        else:
            found = "there are none: compute the shards first"
        raise InputError(
            Option("collect", True),
            f": expected all shards of one cut beside {target}, and {found}",
        )
    done: dict[TileKey, PairTerms] = {}
    elsewhere: dict[str, list[str]] = {}  # shards by the processors that computed them and this one
    for shard, path in files.items():
        try:
            state = decode(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ResultFileError(
                f"{path} is damaged ({error}): compute shard {shard[0]}/{shard[1]} again"
            ) from error
        here = {RUN: label(*shard), **calculation.identity}
        different = differences(state.identity, here, leave_out=[PROCESSOR])
        if different:
            raise ResultFileError(
                f"{path} belongs to another calculation: {', '.join(different)}: compute it with "
                "the same file, options and versions as the others, or collect with those"
            )
        processors = other_processor(state.identity, here)
        if processors:
            elsewhere.setdefault(processors, []).append("{}/{}".format(*shard))
        done |= state.tiles or {}
    for processors, shards in elsewhere.items():
        calculation.listener.warning(
            f"shards {', '.join(shards)} were made on another kind of processor ({processors}): "
            f"{OTHER_BITS}"
        )
    every = [*keys, *(key for key in calculation.checkpoint.tiles if not key[0])]
    parts = enumerate(cut(every, counts[0]))
    left = [
        f"{index}/{counts[0]}"
        for index, part in parts
        if not done.keys() >= set(part).intersection(keys)
    ]
    if left:
        raise InputError(
            Option("collect", True),
            f": shards of {target} are missing or not complete: {', '.join(left)}: compute them",
        )
    yield from ((key, done[key]) for key in keys)
