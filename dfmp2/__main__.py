"""`python -m dfmp2` is `dfmp2`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[
            0
        ]  # -m puts the working directory first; a numpy.py lying there must not be run
    from dfmp2.cli.main import program

    sys.exit(program())
