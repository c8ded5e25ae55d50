"""When the state of a run is saved: every few seconds, at safe points, and once more when it is asked to stop.

A safe point is the end of an SCF iteration or of a tile of pairs. What is to be saved lies in named sections; an
uninterrupted run passes through the same states, so that one that goes on from them gives the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from dfmp2.checkpoint.encoding import NO_SCRATCH, Section, State, assemble, encode
from dfmp2.checkpoint.fingerprint import require_same
from dfmp2.errors import ForeignCheckpoint, Interrupted, ResourceError
from dfmp2.progress import Listener

EVERY = 5.0  # s between two saves, and before the first: what takes less leaves no checkpoint
SHARE = 0.01  # of the time at most that goes into saving
IDENTITY = "fingerprint"
RUN = "run"  # name in the fingerprint: which of several runs


class File(Protocol):
    """Where a journal is written."""

    path: str

    def save(self, content: bytes) -> None:
        """Replace the file; ResourceError when it cannot be written."""


class Journal:
    """The state of one run on its way to disk.

    Parameters
    ----------
    file : where it goes, None to save nothing
    found : the state an earlier run saved, None to start from the beginning
    every : s between two saves
    replace_foreign : start from the beginning, instead of refusing, when `found` is of another calculation
    run : which of several runs of one study, "" for a calculation by itself
    eager : stop at a safe point even before the first save, because earlier runs of the study are on disk
    ready : called before the first number is computed, when nothing else is wrong; may refuse

    Attributes
    ----------
    saved : whether there is a checkpoint of this calculation on disk
    saving : whether it is being written: an exception now would part the file from the knowledge of it
    stop_asked : whether the run ends at its next safe point
    """

    def __init__(
        self,
        file: File | None = None,
        found: State | None = None,
        *,
        every: float = EVERY,
        replace_foreign: bool = False,
        run: str = "",
        eager: bool = False,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._file, self._found = file, found
        self._every, self._replace_foreign = every, replace_foreign
        self._run, self._eager, self._ready = run, eager, ready
        self._sections: dict[str, Section | Callable[[], Section]] = {}
        self._listener = Listener()
        self._serial, self._older = 0, b""
        self._due = time.monotonic() + every
        self._failed = self._in_loop = self.saving = False
        self.saved = self.stop_asked = False

    @property
    def path(self) -> str:
        """Name of the file, "" for none."""
        return "" if self._file is None else self._file.path

    @property
    def active(self) -> bool:
        """Whether anything is ever saved."""
        return self._file is not None

    def begin(self, identity: Mapping[str, str], listener: Listener) -> None:
        """Say what is computed, before the first number is.

        Raises
        ------
        ForeignCheckpoint : the state found belongs to another calculation
        Dfmp2Error : what `ready` refuses
        """
        self._ready()
        if self._run:
            identity = {RUN: self._run, **identity}
        self._listener = listener
        self._due = time.monotonic() + self._every
        if self._found is not None:
            try:
                require_same(self._found.sections[IDENTITY].values, identity, self.path)
            except ForeignCheckpoint as error:
                if not self._replace_foreign:
                    raise
                listener.stage(f"starting from the beginning: {error}")
                self._found = None
        if self._found is not None:
            self._serial, self._older = self._found.serial, self._found.block
            self.saved = True
            listener.stage(f"going on from {self.path}")
        self._sections[IDENTITY] = Section(dict(identity))

    def section(self, name: str) -> Section | None:
        """What an earlier run saved under this name."""
        return None if self._found is None else self._found.sections.get(name)

    def keep(self, name: str, section: Section | Callable[[], Section]) -> None:
        """Save this from now on; arrays are copied when they are saved, a function is called then."""
        self._sections[name] = section

    def drop(self, name: str) -> None:
        """Save it no longer."""
        self._sections.pop(name, None)

    @contextmanager
    def loop(self) -> Iterator[None]:
        """A block that comes to safe points again and again."""
        self._in_loop = True
        try:
            yield
        finally:
            self._in_loop = False

    def safe_point(self) -> None:
        """Save what is due, and stop when that was asked for.

        Raises
        ------
        Interrupted : the run was asked to stop; everything is saved
        """
        self._save_if(self.stop_asked or time.monotonic() >= self._due)

    def milestone(self) -> None:
        """A stage has ended: save it where there is a checkpoint already, or one is due; stop if that was asked for."""
        self._save_if(self.saved or self.stop_asked or time.monotonic() >= self._due)

    def ask_to_stop(self) -> bool:
        """Stop at the next safe point.

        Returns
        -------
        False when there is nothing on disk or no safe point ahead: the caller has to stop the run itself
        """
        if not (self.saving or ((self.saved or self._eager) and self._in_loop)):
            return False
        self.stop_asked = True
        return True

    def _save_if(self, wanted: bool) -> None:
        if wanted:
            self.save()
        if self.stop_asked:
            raise Interrupted(f"stopped: {self.path} holds what was done")

    def save(self) -> None:
        """Write the state now; a disk that refuses is reported once, and what was saved before stays."""
        if self._file is None:
            return
        begun = time.monotonic()
        sections = {name: part if isinstance(part, Section) else part() for name, part in self._sections.items()}
        block = encode(self._serial + 1, sections)
        scratch = sections.get("scratch", Section()).values.get("folder", NO_SCRATCH)
        self.saving = True
        try:
            self._file.save(assemble(self._older, block, scratch))
        except ResourceError as error:
            if not self._failed:
                self._listener.warning(f"no checkpoint could be saved, the run goes on without: {error}")
            self._failed = True
        else:
            self._serial, self._older, self.saved = self._serial + 1, block, True
        finally:
            self.saving = False
        now = time.monotonic()
        self._due = now + (max(self._every, (now - begun) / SHARE) if self._every else 0.0)
