"""Measurements on this host, stored between runs in `calibration.json` in `$XDG_CACHE_HOME/dfmp2`.

The file is a JSON object; keys consist of machine, versions and quantity, values are objects of
numbers and texts. The folder is `~/.cache/dfmp2` if XDG_CACHE_HOME is not set.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dfmp2.host.files import put, read_json
from dfmp2.host.provenance import installed_version


def cache_key(what: str, libraries: Sequence[str]) -> str:
    """Key of a measurement on this machine with the installed versions of the libraries, "absent"
    if missing."""
    versions = [f"{library}-{installed_version(library) or 'absent'}" for library in libraries]
    return f"{platform.node()} {platform.machine()} {what} {' '.join(versions)}"


def load_cached(name: str) -> dict[str, Any] | None:
    """The value of a key, None if it was never stored or the file cannot be read."""
    value = read_json(path()).get(name)
    return value if isinstance(value, dict) else None


def store_cached(name: str, value: Mapping[str, Any]) -> None:
    """Store a value; if the folder cannot be written, it will only be measured again."""
    file = path()
    content = json.dumps({**read_json(file), name: dict(value)}, indent=1)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        put(file, content.encode())


def path() -> Path:
    """Path of the file."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "dfmp2" / "calibration.json"
