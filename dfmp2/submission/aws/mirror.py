"""The files of a shard in S3: what was done before is fetched, what is done is copied at once.

    NAME.h5  NAME.h5.checkpoint  NAME.h5.damaged  NAME.error.json    as `dfmp2 batch run` keeps them in its folder

A result is copied before its checkpoint or error is removed; a result is never removed. Lock files stay on the host,
so two jobs that compute one item do it twice, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dfmp2.batch.state import stamp
from dfmp2.batch.worker import DAMAGED
from dfmp2.io.checkpoint import SUFFIX
from dfmp2.submission.aws.bucket import Location, Store

RESULT = ".h5"
KEPT = (RESULT, f"{RESULT}{DAMAGED}")  # in S3 also when the host has none
FETCHED = (RESULT, f"{RESULT}{SUFFIX}", ".error.json")
NOTHING = (0, 0)


class Mirror:
    """Files of some items in a folder, and their copies.

    Parameters
    ----------
    place : of the copies
    folder : output of the batch
    names : of the items
    """

    def __init__(self, store: Store, place: Location, folder: Path, names: Sequence[str]) -> None:
        self._store, self._place, self._folder, self._names = store, place, folder, names
        self._known: dict[str, tuple[int, int]] = {}  # what S3 holds: the file's stamp when it was copied

    def fetch(self) -> int:
        """Get what S3 has of the items; how many files that were."""
        for name in self._names:
            there = set(self._store.names(self._place / f"{name}."))
            for suffix in FETCHED:
                if suffix[1:] in there:
                    file = self._folder / f"{name}{suffix}"
                    self._store.get(self._place / file.name, file)
                    self._known[file.name] = stamp(file)
        return len(self._known)

    def push(self) -> int:
        """Bring S3 to what the folder holds; how many files were copied."""
        copied = 0
        for name in self._names:
            for suffix in (*KEPT, *FETCHED[1:]):
                copied += self._bring(self._folder / f"{name}{suffix}", keep=suffix in KEPT)
        return copied

    def _bring(self, file: Path, *, keep: bool) -> bool:
        now = stamp(file)
        known = self._known.get(file.name, NOTHING)
        if now == known:
            return False
        try:
            if now != NOTHING:
                self._store.put(file, self._place / file.name)
                self._known[file.name] = now
                return True
        except FileNotFoundError:  # it went since; the next look will see that
            return False
        if not keep:
            self._store.delete(self._place / file.name)
            del self._known[file.name]
        return False
