"""Measurements on this host, stored between runs in `calibration.json` in `$XDG_CACHE_HOME/dfmp2`.

The file is a JSON object; keys consist of machine, versions and quantity, values are objects of
numbers and texts. The folder is `~/.cache/dfmp2` if XDG_CACHE_HOME is not set.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dfmp2.host.provenance import installed_version


def cache_key(what: str, libraries: Sequence[str]) -> str:
    """Key of a measurement on this machine with the installed versions of the libraries, "absent"
    if missing."""
    versions = [f"{library}-{installed_version(library) or 'absent'}" for library in libraries]
    return f"{platform.node()} {platform.machine()} {what} {' '.join(versions)}"


def load_cached(name: str) -> dict[str, Any] | None:
    """The value of a key, None if it was never stored or the file cannot be read."""
    try:
        known = json.loads(path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    value = known.get(name) if isinstance(known, dict) else None
    return value if isinstance(value, dict) else None


def store_cached(name: str, value: Mapping[str, Any]) -> None:
    """Store a value; if the folder cannot be written, it will only be measured again."""
    file = path()
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    from dfmp2.host.files import put

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        put(
            file,
            json.dumps(
                {**(known if isinstance(known, dict) else {}), name: dict(value)}, indent=1
            ).encode(),
        )
    except OSError:
        return


def path() -> Path:
    """Path of the file."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "dfmp2" / "calibration.json"
