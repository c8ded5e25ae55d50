"""`python -m dfmp2` is `dfmp2`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # -m puts the working directory first; a numpy.py lying there must not be run
        del sys.path[0]
    from dfmp2.cli.main import program

    sys.exit(program())
