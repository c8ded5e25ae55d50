"""How values are written: integration grids, solvents, sizes of memory, and names of presets."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from dfmp2.errors import InputError, Option

# How much of a result a file keeps, in ascending order (`dfmp2.output.hdf5_datasets`).
KEPT = ("energies", "properties", "all")
ALL = "all"
# Options that divide one machine among the workers of a batch; items cannot set them.
OF_THE_MACHINE = ("memory", "threads", "scratch")
CONVERGENCE = (  # of an optimisation, by geomeTRIC's names
    "GAU",
    "GAU_LOOSE",
    "GAU_TIGHT",
    "GAU_VERYTIGHT",
    "NWCHEM_LOOSE",
    "TURBOMOLE",
    "INTERFRAG_TIGHT",
)
SOLVENT_MODELS = {"cpcm": "C-PCM", "smd": "SMD"}
SMD = "smd"  # the solvent model with an energy besides its reaction field

GRID_LEVELS = range(10)  # PySCF's levels
RADIAL_POINTS = range(10, 1001)
LEBEDEV_POINTS = (  # of spheres with Lebedev weights
    6,
    14,
    26,
    38,
    50,
    74,
    86,
    110,
    146,
    170,
    194,
    230,
    266,
    302,
    350,
    434,
    590,
    770,
    974,
    1202,
    1454,
    1730,
    2030,
    2354,
    2702,
    3074,
    3470,
    3890,
    4334,
    4802,
    5294,
    5810,
)


def parse_grid(given: object) -> str:
    """An integration grid in the options' form: "5" for a level or "99,590" for points per atom.

    Parameters
    ----------
    given : object
        A level, as number or text, "NRAD,NANG", or a pair of these numbers.

    Raises
    ------
    InputError
        It is none of these, or the level or sphere does not exist.
    """
    text = str(given)
    if isinstance(given, list | tuple):
        text = ",".join(str(part) for part in given)
    parts = [part.strip() for part in text.split(",")]
    whole = all(re.fullmatch("[0-9]{1,6}", part) for part in parts)
    if isinstance(given, bool | float) or not whole or len(parts) > 2:
        raise InputError(
            Option("grid", text[:40]),
            ": expected a level from 0 to 9, or NRAD,NANG, points along the radius and on the "
            "sphere of each atom, such as 99,590",
        )
    numbers = [int(part) for part in parts]
    if len(numbers) == 1:
        if numbers[0] not in GRID_LEVELS:
            raise InputError(
                Option("grid", numbers[0]),
                ": levels are 0 to 9; for more points give NRAD,NANG, such as 200,1454",
            )
        return str(numbers[0])
    radial, angular = numbers
    if radial not in RADIAL_POINTS:
        raise InputError(
            Option("grid", f"{radial},{angular}"),
            f": expected {RADIAL_POINTS[0]} to {RADIAL_POINTS[-1]} points along the radius, such "
            "as 99,590",
        )
    if angular not in LEBEDEV_POINTS:
        smaller = [number for number in LEBEDEV_POINTS if number < angular]
        larger = [number for number in LEBEDEV_POINTS if number > angular]
        near = [f"{radial},{number}" for number in (*smaller[-1:], *larger[:1])]
        raise InputError(
            Option("grid", f"{radial},{angular}"),
            f": there is no Lebedev sphere of {angular} points; use {' or '.join(near)}",
        )
    return f"{radial},{angular}"


def dielectric_constant(solvent: str) -> float | None:
    """The dielectric constant from `--solvent eps=VALUE`, None for the name of a solvent.

    Raises
    ------
    InputError : the value is not a number above 1
    """
    name, equals, value = solvent.partition("=")
    if not solvent.strip():
        raise InputError(
            Option("solvent"), " is empty: name a solvent such as water, or leave it out"
        )
    if not equals:
        return None
    try:
        eps = float(value)
    except ValueError:
        eps = math.nan
    if name.strip().lower() != "eps" or not math.isfinite(eps) or eps <= 1.0:
        raise InputError(
            Option("solvent", solvent[:40]),
            ": expected the name of a solvent, or eps= and a dielectric constant above 1, such as "
            "eps=10.4",
        )
    return eps


_PREFIXES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_BYTES = re.compile(
    r"([+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))\s*(?:([kmgt]i?)b?|b)",
    re.ASCII | re.IGNORECASE,
)
_LARGEST = 2**63 - 1  # largest signed 64-bit size; no machine has more


def parse_bytes(text: str) -> int:
    """Number of bytes in a text such as "8GB" or "8G" (10^9), "8 GiB" or "8Gi" (2^30); units in any
    case.

    Other programs read G as 2^30; 10^9 is smaller, and so stays within what was meant. A number
    without a unit is rejected: 8 could mean 8 bytes, 8 MB (PySCF) or 8 GB.

    Raises
    ------
    InputError : not a number with a unit, unknown unit, zero, negative or absurdly large
    """
    match = _BYTES.fullmatch(text.strip())
    if match:
        size = int(Decimal(match[1]) * _PREFIXES[(match[2] or "").lower()])
    else:
        size = 0
    if not 1 <= size <= _LARGEST:
        raise InputError(
            Option("memory", text[:40]),
            ": expected a number with a unit (B, kB, MB, GB, TB, KiB, MiB, GiB or TiB), "
            "from 1 byte to 9 million TB, such as 8GB or 7.5GiB",
        )
    return size


def parse_texts(name: str, given: Any, example: str) -> tuple[str, ...]:
    """The texts in a list.

    Parameters
    ----------
    name : of the option
    given : any iterable of texts, which is read once
    example : of one text, for the message

    Raises
    ------
    InputError : it is one text, or contains something else
    """
    refusal = InputError(Option(name, given), f": expected a list of texts, as [{example!r}]")
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise refusal
    texts = tuple(given)
    if not all(isinstance(text, str) for text in texts):
        raise refusal
    return texts
