"""Compiled programs in S3: what one host has compiled, the others need not.

Only whole entries of the cache are copied, the record after the program it describes (`dfmp2.backends.nki.neff_cache`),
and none is ever changed; so hosts may copy at any time, in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dfmp2.submission.aws.bucket import Location, Store

ENTRY = re.compile(r"[0-9a-f]{8,64}/[A-Za-z0-9.+_-]+\.(neff|json)")


class SharedPrograms:
    """A folder of compiled programs and its copy in S3.

    Parameters
    ----------
    store, place : None for a folder that has no copy
    """

    def __init__(self, store: Store | None, place: Location | None, folder: Path) -> None:
        self._store, self._place, self._folder = store, place, folder
        self._there: set[str] = set()

    def fetch(self) -> int:
        """Copy from S3 what is not here; how many files that were."""
        if self._store is None or self._place is None:
            return 0
        prefix = Location(self._place.bucket, f"{self._place.key}/")
        self._there = {name for name in self._store.names(prefix) if ENTRY.fullmatch(name)}
        missing = [name for name in _ordered(self._there) if not (self._folder / name).exists()]
        for name in missing:
            self._store.get(self._place / name, self._folder / name)
        return len(missing)

    def push(self) -> int:
        """Copy to S3 what is not there; how many files that were."""
        if self._store is None or self._place is None:
            return 0
        here = (path.relative_to(self._folder).as_posix() for path in self._folder.glob("*/*"))
        new = [name for name in _ordered(here) if ENTRY.fullmatch(name) and name not in self._there]
        for name in new:
            with suppress(FileNotFoundError):
                self._store.put(self._folder / name, self._place / name)
                self._there.add(name)
        return len(new)


def _ordered(names: Iterable[str]) -> list[str]:
    """Programs before the records that describe them."""
    return sorted(names, key=lambda name: (name.endswith(".json"), name))
