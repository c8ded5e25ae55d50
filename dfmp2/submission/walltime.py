"""Limits on wall time: what people write, and what schedulers read."""

from __future__ import annotations

import re

from dfmp2.errors import InputError

UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
LONGEST = 366 * 86400  # s

_NUMBER = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*([A-Za-z]{0,8})")
_CLOCK = re.compile(r"(?:([0-9]{1,3})-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])")


def parse_walltime(text: str) -> int:
    """Seconds of "90min", "2h", "1.5h", "1d", or of Slurm's "HH:MM:SS" and "D-HH:MM:SS".

    A number without a unit is refused: Slurm reads minutes, AWS Batch seconds.

    Raises
    ------
    InputError : none of these, or not between a second and a year
    """
    expected = "expected a time such as 90min, 2h, 1d, 02:00:00 or 1-12:00:00"
    clock, number = _CLOCK.fullmatch(text.strip()), _NUMBER.fullmatch(text.strip())
    if clock is not None:
        days, hours, minutes, rest = (int(part or 0) for part in clock.groups())
        seconds = float(days * UNITS["d"] + hours * UNITS["h"] + minutes * UNITS["min"] + rest)
    elif number is not None and number[2] in UNITS:
        seconds = float(number[1]) * UNITS[number[2]]
    elif number is not None and not number[2]:
        raise InputError(f"--time {text} has no unit: write for example {text.strip()}min or {text.strip()}h")
    else:
        raise InputError(f"--time {text[:40]!r}: {expected}")
    if not 1 <= seconds <= LONGEST:
        raise InputError(f"--time {text[:40]!r}: expected 1 s to {LONGEST // 86400} days; {expected}")
    return round(seconds)


def slurm_time(seconds: int) -> str:
    """The same as D-HH:MM:SS."""
    days, rest = divmod(seconds, UNITS["d"])
    hours, rest = divmod(rest, UNITS["h"])
    return f"{days}-{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
