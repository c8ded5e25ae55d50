"""The index of a batch: a summary of every item, so that the results need not be reread.

Each shard of a batch appends lines of JSON to its own file, one for each item that changed, and
never touches the files of others. A kill can truncate at most the last line, and the file of that
item holds the same information. A reader merges the files; the latest line about an item counts.
Index files of earlier versions (`batch.json`) are read as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dfmp2.errors import ResourceError
from dfmp2.host.files import acquire_lock, release_lock, write_failure

OLD_INDEX = "batch.json"
OLD_VERSION = 2
STEM = "batch"
ENDING = ".index.jsonl"
LARGEST_JSON = 500 * 10**6  # bytes


def index_name(shard: tuple[int, int] | None) -> str:
    """Name of the index file of a shard (I, N), or of a run of the whole batch."""
    if shard is None:
        return f"{STEM}{ENDING}"
    return f"{STEM}.{shard[0]}-of-{shard[1]}{ENDING}"


def is_index(name: str) -> bool:
    """Whether a file name is that of an index."""
    return name == OLD_INDEX or (name.startswith(f"{STEM}.") and name.endswith(ENDING))


def read_rows(folder: Path, shard: tuple[int, int] | None = None) -> dict[str, dict[str, Any]]:
    """The latest row of each item by name, from all files of an index or from that of one shard;
    rows that cannot be parsed are skipped."""
    rows: dict[str, dict[str, Any]] = {}
    if shard is not None:
        names = [index_name(shard)]
    else:
        try:
            names = sorted(name for name in os.listdir(folder) if is_index(name))
        except OSError:
            return rows
    for name in names:
        for row in _rows_of(folder / name):
            known = rows.get(str(row.get("name")))
            if known is None or _time_of(row) >= _time_of(known):
                rows[str(row.get("name"))] = row
    return rows


def _rows_of(path: Path) -> Iterator[dict[str, Any]]:
    try:
        if path.is_symlink() or path.stat().st_size > LARGEST_JSON:
            return
        text = path.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return
    if path.name == OLD_INDEX:
        value = _parsed(text)
        items = value.get("items") if value.get("dfmp2_batch_version") == OLD_VERSION else None
        lines: Iterable[Any] = items if isinstance(items, list) else []
    else:
        lines = map(_parsed, text.splitlines())
    for row in lines:
        if isinstance(row, dict) and isinstance(row.get("name"), str):
            yield row


def _parsed(text: str) -> dict[str, Any]:
    """The JSON object in a line; empty if it is not one, such as a truncated line."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _time_of(row: Mapping[str, Any]) -> float:
    at = row.get("at")
    return float(at) if isinstance(at, int | float) else 0.0


class IndexWriter:
    """Appends rows to the file of a shard, or to one of another name while that is locked.

    Attributes
    ----------
    path : the file
    """

    def __init__(self, folder: Path, shard: tuple[int, int] | None) -> None:
        self.path = folder / index_name(shard)
        if acquire_lock(self.path) is not None:
            name = self.path.name.removesuffix(ENDING)
            self.path = folder / f"{name}.{uuid.uuid4().hex[:8]}{ENDING}"
            acquire_lock(self.path)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows, stamped with the current time, in one write.

        Raises
        ------
        ResourceError : the disk is full or the folder cannot be written
        """
        now = time.time()
        lines = [json.dumps({**row, "at": now}, separators=(",", ":")) for row in rows]
        if not lines:
            return
        # The leading newline ends a line that a kill may have truncated.
        content = "\n" + "\n".join(lines) + "\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(descriptor, content.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise write_failure(self.path, error, len(content)) from error

    def close(self) -> None:
        """Release the file."""
        with contextlib.suppress(ResourceError):
            release_lock(self.path)
