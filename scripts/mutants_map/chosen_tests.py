"""A pytest plugin that runs the tests chosen by `scripts/mutants` for a fault.

MUTANTS_CHOSEN is a file with their ids, in the order in which they run. An unknown id is not an
error: it may contain a folder, or a value that the fault has changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep only the chosen tests, in their order."""
    names = Path(os.environ["MUTANTS_CHOSEN"]).read_text().splitlines()
    places = {name: place for place, name in enumerate(names)}
    chosen = [item for item in items if item.nodeid in places]
    items[:] = sorted(chosen, key=lambda item: places[item.nodeid])
