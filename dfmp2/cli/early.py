"""Signals while the command line is being imported, which takes most of a second on a busy machine.

An exception raised in the import of a library ends in a traceback, or in none where that library
catches it. Since nothing has been written yet, the handler ends the process. Only `signal` and what
every interpreter has loaded may be imported here.
"""

from __future__ import annotations

import os
import signal
import sys

LINES = {  # signal -> (message, exit code: STOPPED and that of Interrupted in `dfmp2.errors`)
    signal.SIGINT: ("interrupted (Ctrl-C): nothing was written", 130),
    signal.SIGTERM: ("terminated (SIGTERM): nothing was written; run it again", 75),
}
KINDS = {signal.SIGINT: "KeyboardInterrupt", signal.SIGTERM: "Interrupted"}


def end_on_signals() -> None:
    """End the process on Ctrl-C and SIGTERM, until `dfmp2.cli.signals.listen` is called."""
    for number in LINES:
        signal.signal(number, _end)


def _end(number: int, _frame: object) -> None:
    message, code = LINES[signal.Signals(number)]
    line = f"dfmp2: {message}"
    if asks_for_json(sys.argv[1:]):
        kind = KINDS[signal.Signals(number)]
        line = f'{{"error": "{message}", "kind": "{kind}", "exit_code": {code}}}'
    try:
        os.write(2, f"{line}\n".encode())
    finally:  # if nobody can read it, the exit code tells
        os._exit(code)


def asks_for_json(arguments: list[str]) -> bool:
    """Whether the arguments of the command line ask for messages as JSON."""
    return "--json" in arguments and arguments[0] != "bench"  # whose --json names a file
