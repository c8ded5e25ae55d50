"""The program `dfmp2`, which is also `python -m dfmp2`."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # -m puts the working directory first; a numpy.py lying there must not be run
    del sys.path[0]


def program() -> int:
    """Run the command line and return the exit code of the process, which is about to end."""
    from dfmp2.cli.early import end_on_signals

    end_on_signals()
    from dfmp2.cli.main import program

    return program()


if __name__ == "__main__":
    sys.exit(program())
