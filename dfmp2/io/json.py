"""JSON text of a result: one object, 17 significant digits where they are needed."""

from __future__ import annotations

import json

from dfmp2.result import MP2Result


def to_json(result: MP2Result) -> str:
    """The object `--json` prints, with a newline."""
    return json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n"
