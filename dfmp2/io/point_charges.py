"""Reader of files with point charges, strict: what is not understood is refused.

# water 2 of the cluster          a comment, also behind numbers; blank lines are skipped
2.9117  0.0000  0.0592  -0.834    x, y, z, charge in e
3.4970  0.0000 -0.7072   0.417
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError
from dfmp2.io.text_file import read_text
from dfmp2.io.xyz import MAX_LINE, UNITS, read_number
from dfmp2.point_charges import checked

MAX_BYTES = 64 * 10**6
TOO_LARGE = f"more than {MAX_BYTES // 10**6} MB: expected the point charges around one molecule"
MAX_CHARGES = 1_000_000
SHOWN = 50  # characters of a line in an error
KIND = "a file of point charges"


def read_point_charges(given: Any, units: str = "angstrom") -> NDArray[np.float64] | None:
    """Point charges (n, 4), x, y, z in bohr and charge in e, from a file or from numbers; None for None.

    Parameters
    ----------
    given : path of a file with lines of x, y, z and charge, or rows of the same
    units : of x, y, z: "angstrom" or "bohr"

    Raises
    ------
    InputError : the file cannot be read, or is not what was expected; it names file and line
    """
    if units not in UNITS:
        raise InputError(f"--point-charge-units {units!r}: expected angstrom or bohr")
    if given is None:
        return None
    file = None
    if isinstance(given, str | Path):
        file, text = read_text(given, MAX_BYTES, TOO_LARGE, KIND)
        given = _parse(text, file)
    try:
        return checked(given, UNITS[units])
    except InputError as error:
        raise InputError(str(error), file=file) from error


def _parse(text: str, file: str) -> list[tuple[float, ...]]:
    rows: list[tuple[float, ...]] = []
    if "\0" in text:
        raise InputError(f"not {KIND}: it contains NUL bytes, so it is binary; give a text file", file=file)
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        body = line.partition("#")[0].strip()
        if not body:
            continue
        try:
            words = body[: MAX_LINE + 1].split()
            if len(words) != 4 or len(body) > MAX_LINE:
                raise InputError(
                    f"{body[:SHOWN]!a}: expected x, y, z and charge, four numbers with spaces between them, and # "
                    "before a comment"
                )
            if len(rows) == MAX_CHARGES:
                raise InputError(f"more than {MAX_CHARGES} charges: leave out those far away")
            rows.append(tuple(map(read_number, words)))
        except InputError as error:
            raise InputError(str(error), file=file, line=number) from error
    if not rows:
        raise InputError("no point charge: expected lines of x, y, z and charge", file=file)
    return rows
