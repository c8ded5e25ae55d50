"""Measured tile times as a JSON file, so that one host's measurement serves any number of simulations."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dfmp2.errors import InputError
from dfmp2.fleet.tiles import TileTimes
from dfmp2.io.files import write_atomically
from dfmp2.io.text_file import read_text

VERSION = 1
MAX_BYTES = 10**7


def write_tiles(path: Path, times: TileTimes, *, overwrite: bool) -> None:
    """Write measured times.

    Raises
    ------
    ResultFileError : the file exists and `overwrite` is false
    ResourceError : it cannot be written
    """
    content = {"dfmp2_tile_times": VERSION, "units": "s", **asdict(times)}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode(), overwrite=overwrite)


def read_tiles(path: str) -> TileTimes:
    """Measured times from a file.

    Raises
    ------
    InputError : it is not what `write_tiles` writes
    """
    file, text = read_text(path, MAX_BYTES, f"more than {MAX_BYTES // 10**6} MB", "a JSON file of tile times")
    try:
        return _times(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"not a file of tile times ({error}): make one with dfmp2 batch plan FILE.xyz --measure-tiles FILE.json",
            file=file,
        ) from error


def _times(value: Any) -> TileTimes:
    if value["dfmp2_tile_times"] != VERSION:
        raise ValueError(f"version {value['dfmp2_tile_times']!r}, expected {VERSION}")
    seconds = {str(name): tuple(float(one) for one in found) for name, found in value["seconds"].items()}
    if not all(found and all(math.isfinite(one) and one > 0 for one in found) for found in seconds.values()):
        raise ValueError("a time is not a positive number")
    return TileTimes(
        sizes=tuple((int(nocc), int(nvir), int(naux)) for nocc, nvir, naux in value["sizes"]),
        precision=str(value["precision"]),
        backend=str(value["backend"]),
        at_once=int(value["at_once"]),
        host=str(value["host"]),
        date=str(value["date"]),
        seconds=seconds,
    )
