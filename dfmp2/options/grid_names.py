"""How an integration grid is named: a level of PySCF, or points of each atom."""

from __future__ import annotations

import re

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option

GRID_LEVELS = range(10)  # of PySCF
RADIAL_POINTS = range(10, 1001)
LEBEDEV_POINTS = (  # of spheres with weights by Lebedev
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
    """An integration grid as options hold it, "5" for a level or "99,590" for points of each atom.

    Parameters
    ----------
    given : object
        A level, the text of one, "NRAD,NANG", or a pair of these numbers.

    Raises
    ------
    InputError
        It is none of them, or there is no such level or sphere.
    """
    if isinstance(given, list | tuple):
        text = ",".join(str(part) for part in given)
    else:
        text = str(given)
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
        near = [
            *[number for number in LEBEDEV_POINTS if number < angular][-1:],
            *[number for number in LEBEDEV_POINTS if number > angular][:1],
        ]
        raise InputError(
            Option("grid", f"{radial},{angular}"),
            f": there is no Lebedev sphere of {angular} points; take "
            f"{' or '.join(f'{radial},{number}' for number in near)}",
        )
    return f"{radial},{angular}"
