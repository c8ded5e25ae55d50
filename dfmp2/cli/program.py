"""The program `dfmp2`: the command line in a process of its own, which ends as soon as its work is done.

Python ends by taking apart every module and object it holds; after a small molecule that takes a tenth of the
whole run. Here the process leaves once threads, exit handlers and buffers are done with.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress

from dfmp2.cli.main import main


def program() -> int:
    """Run the command line and return the exit code, with which the process is about to end."""
    codes: list[int] = []
    atexit.register(_leave, codes)  # the first to be registered is the last to be called
    codes.append(main())
    return codes[0]


def _leave(codes: list[int]) -> None:
    """End the process; the interpreter does it in its own way after a fault, or where stdout cannot be written.

    What stderr still holds is progress: nobody may be able to read it, and the exit code tells how the work ended.
    """
    if codes:
        with suppress(OSError, ValueError):
            if sys.stdout is not None:
                sys.stdout.flush()
            with suppress(OSError, ValueError):
                if sys.stderr is not None:
                    sys.stderr.flush()
            os._exit(codes[0])
