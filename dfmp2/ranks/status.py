"""What each rank leaves for the launcher: torchrun knows only zero and one.

A rank that was asked to stop, or whose error no restart can mend, ends with zero, so that torchrun starts nothing
again; its own exit code lies in a folder that the launcher has made.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "DFMP2_RANKS_STATUS"
INTERRUPTED = (75, 130)


@dataclass(frozen=True, slots=True)
class Status:
    """How a rank has ended.

    Attributes
    ----------
    attempt : how often the ranks had been started again
    rank, code : number and exit code
    when : s since the epoch
    """

    attempt: int
    rank: int
    code: int
    when: float


def folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The launcher's folder, None where there is no launcher of ours."""
    given = environ.get(VARIABLE)
    return Path(given) if given else None


def leave(where: Path, attempt: int, rank: int, code: int) -> None:
    """Write it; a folder that is gone has no reader."""
    with suppress(OSError):
        text = json.dumps(asdict(Status(attempt, rank, code, time.time())))
        (where / f"{attempt}-{rank}.json").write_text(text)


def found(where: Path) -> list[Status]:
    """Those of the last attempt, the earliest first."""
    every = [Status(**json.loads(path.read_text())) for path in where.glob("*-*.json")]
    last = max((status.attempt for status in every), default=0)
    return sorted((status for status in every if status.attempt == last), key=lambda status: status.when)


def verdict(statuses: list[Status]) -> int | None:
    """The exit code of a run: of the first rank that failed, else of one that was stopped, else 0; None without any."""
    codes = [status.code for status in statuses]
    failed = [code for code in codes if code not in (0, *INTERRUPTED)]
    stopped = [status.code for status in sorted(statuses, key=lambda status: status.rank) if status.code in INTERRUPTED]
    return next(iter([*failed, *stopped, *codes]), None)
