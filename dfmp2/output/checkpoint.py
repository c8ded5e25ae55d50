"""The file OUTPUT.checkpoint, from which a stopped run is resumed.

Its content is described in `dfmp2.output.state`. It is saved every few seconds and when the run is
asked to stop, always after an SCF iteration, a stage or a tile of pairs, and removed when the
result is written. Resumed after the SCF, a run gives the same bits as one that was never stopped;
an SCF that was stopped restarts from its last orbitals or, where bits matter, from its original
guess.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import PairTerms
from dfmp2.errors import (
    DiskFull,
    ForeignCheckpoint,
    InputError,
    Interrupted,
    Message,
    Option,
    ResourceError,
    ResultFileError,
)
from dfmp2.host.files import locked, remove_parts, write_atomically
from dfmp2.host.scratch import remove_kept
from dfmp2.mp2.calculation import RUN, Checkpoint, State, StoredB
from dfmp2.mp2.identity import OTHER_BITS, PROCESSOR, other_processor, require_same
from dfmp2.mp2.pairs import TileKey
from dfmp2.output.state import HEAD, OldVersion, decode, encode
from dfmp2.progress import Listener, Silent
from dfmp2.scf.reference import Reference, StartOrbitals

SUFFIX = ".checkpoint"
VARIABLE = "DFMP2_CHECKPOINT_SECONDS"
EVERY = 5.0  # s between saves and before the first; a shorter run leaves no checkpoint
SHARE = 0.01  # at most this fraction of the time is spent on saving
LARGEST = 8 * 10**9  # bytes

Say = Callable[[str], None]


def checkpoint_of(target: Path) -> Path:
    """Path of the checkpoint of a result file."""
    return target.with_name(target.name + SUFFIX)


class FileCheckpoint(Checkpoint):
    """The state of one run in the file beside its result.

    Parameters
    ----------
    target : the result file
    found : the state to resume from, None to start from the beginning
    replace_foreign : start from the beginning, instead of raising, if `found` belongs to another
        calculation
    in_batch : restart a stopped SCF from its original guess, so that an item of a batch has the
        same bits however often it was stopped; and end the run if the disk is full, instead of
        continuing without a checkpoint
    run : which run of a study, "" for a calculation by itself
    eager : stop on request even before the first save, because earlier runs of the study are on
        disk
    ready : called with the bytes of the orbitals before the first number is computed, after all
        other checks; may raise

    Attributes
    ----------
    saved : whether there is a checkpoint of this calculation on disk
    saving : whether it is being written; an exception now would leave `saved` wrong
    stop_asked : whether the run ends after the present iteration or tile
    """

    def __init__(
        self,
        target: Path,
        found: State | None = None,
        *,
        replace_foreign: bool = False,
        in_batch: bool = False,
        run: str = "",
        eager: bool = False,
        ready: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._file = checkpoint_of(target)
        self._found = found
        self._replace_foreign = replace_foreign
        self._in_batch = in_batch
        self._run = run
        self._eager = eager
        self._ready = ready
        self._listener = Listener()
        self._every = seconds_text()
        self._due, self._failed = time.monotonic() + self._every, False
        self.path = str(self._file)
        self.saved = self.saving = self.stop_asked = False

    def begin(
        self, identity: Mapping[str, str], listener: Listener, orbital_bytes: int = 0
    ) -> None:
        """As in Checkpoint; errors of `ready` are raised here."""
        self._ready(orbital_bytes)
        self.identity = {**({RUN: self._run} if self._run else {}), **identity}
        self._listener = listener
        self._due = time.monotonic() + self._every
        found = self._found
        if found is None:
            return
        try:
            require_same(found.identity, self.identity, self.path)
        except ForeignCheckpoint as error:
            if not self._replace_foreign:
                raise
            listener.note(Message("starting from the beginning: ", error.message))
            return
        self.reference, self.b, self.tiles = found.reference, found.b, found.tiles
        self.orbitals = None if self._in_batch else found.orbitals
        self.saved = True
        listener.note(f"going on from {self.path}")
        processors = other_processor(found.identity, self.identity)
        if processors:
            listener.warning(
                f"{self.path} was made on another kind of processor ({processors}): {OTHER_BITS}"
            )
            both = f"{found.identity[PROCESSOR]} and {self.identity[PROCESSOR]}"
            self.identity = {**self.identity, PROCESSOR: both}

    def add_orbitals(self, mo_coeff: NDArray[np.float64], mo_occ: NDArray[np.float64]) -> None:
        self.orbitals = StartOrbitals(
            mo_coeff=mo_coeff, mo_occ=mo_occ, charges=None, origin=self.path
        )
        self._safe_point()

    def add_reference(self, reference: Reference) -> None:
        self.reference, self.orbitals = reference, None
        self._safe_point(wanted=self.saved)

    def add_b(self, b: StoredB | None) -> None:
        if b is not None or self.b is not None:
            self.b, self.tiles = b, {}

    def add_tile(self, key: TileKey, terms: PairTerms) -> None:
        self.tiles[key] = terms
        self._safe_point()

    def ask_to_stop(self) -> bool:
        """Stop after the present iteration or tile; false if there would be nothing to resume
        from."""
        self.stop_asked = self.saved or self.saving or self._eager
        return self.stop_asked

    def write(self) -> None:
        """Write the state now.

        Raises
        ------
        ResourceError, ResultFileError : writing fails, or something else has that name; what was
            saved before stays
        """
        self.saving = True
        try:
            content_of(self._file, len(HEAD))
            write_atomically(self._file, encode(self), overwrite=True)
            self.saved = True
        finally:
            self.saving = False

    def save(self) -> None:
        """Write the state now; warn once if writing fails.

        Raises
        ------
        DiskFull : the disk is full and that is to end the run
        """
        begun = time.monotonic()
        try:
            self.write()
        except (ResourceError, ResultFileError) as error:
            if self._in_batch and isinstance(error, DiskFull):
                raise
            if not self._failed:
                self._listener.warning(
                    Message(
                        "no checkpoint could be saved, the run continues without: ", error.message
                    )
                )
            self._failed = True
        now = time.monotonic()
        self._due = now + (max(self._every, (now - begun) / SHARE) if self._every else 0.0)

    def complete(self) -> None:
        """Remove the checkpoint, because the result has been written."""
        remove(self._file)
        self.saved = False

    def _safe_point(self, *, wanted: bool = False) -> None:
        """Save if a save is due, and stop if that was requested."""
        if wanted or self.stop_asked or time.monotonic() >= self._due:
            self.save()
        if self.stop_asked:
            raise Interrupted(f"stopped: {self.path} holds what was done")


class Stop(Silent):
    """Ends a run once `asked` is true: at its next safe point, or at its next event if it has no
    checkpoint."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self.checkpoint: FileCheckpoint | None = None
        self._asked = asked

    def stage(self, text: str) -> None:
        self._check()

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        self._check()

    def step(self, done: int, total: int, what: str) -> None:
        self._check()

    def _check(self) -> None:
        if self._asked() and not (self.checkpoint is not None and self.checkpoint.ask_to_stop()):
            raise Interrupted("stopped")


@contextmanager
def checkpointing(
    target: str | Path,
    run: str = "",
    *,
    resume: bool,
    note: Say,
    warn: Say,
    replace_foreign: bool = False,
    in_batch: bool = False,
    ready: Callable[[int], None] = lambda _: None,
) -> Iterator[FileCheckpoint]:
    """Hold the lock of a result, resume from the checkpoint beside it, and save the state there.

    Parameters
    ----------
    target : the result file
    resume : report a missing checkpoint
    note, warn : called with messages on what was found
    run, in_batch, ready : as in FileCheckpoint
    replace_foreign : start from the beginning if the checkpoint is of another calculation or
        version

    Raises
    ------
    ResultFileError : another process is computing this result, or the file there is not a
        checkpoint of this version
    """
    target = Path(target)
    with locked(target):
        remove_parts(target, checkpoint_of(target))
        found = found_beside(
            target, resume=resume, replace_foreign=replace_foreign, note=note, warn=warn
        )
        yield FileCheckpoint(
            target,
            found,
            replace_foreign=replace_foreign,
            in_batch=in_batch,
            run=run,
            ready=ready,
        )


def seconds_text() -> float:
    """Time between two saves: $DFMP2_CHECKPOINT_SECONDS, or 5.

    Raises
    ------
    InputError : the variable is not a valid time
    """
    text = os.environ.get(VARIABLE, "")
    try:
        value = float(text) if text else EVERY
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InputError(f"{VARIABLE}={text!r}: expected seconds between two saves, 0 or more")
    return value


def found_beside(
    target: Path, *, resume: bool, replace_foreign: bool, note: Say, warn: Say
) -> State | None:
    """The state to resume from, None to start from the beginning; a damaged checkpoint is reported
    and ignored.

    Parameters
    ----------
    resume : bool
        Report a missing checkpoint.
    replace_foreign : bool
        Start from the beginning if another version of dfmp2 wrote it.

    Raises
    ------
    ResultFileError : the file there is not a checkpoint, or is of another version
    """
    file = checkpoint_of(target)
    content = content_of(file)
    if content is None:
        if resume:
            note(f"there is no {file}: starting from the beginning")
        return None
    try:
        return decode(content)
    except OldVersion as error:
        if not replace_foreign:
            raise ResultFileError(f"{file} {error}") from error
        note(f"starting from the beginning: {file} {error}")
        return None
    except ValueError as error:
        warn(f"{file} is damaged: {error}: it is not used, starting from the beginning")
        return None


def content_of(file: Path, most: int = LARGEST) -> bytes | None:
    """The first bytes of a checkpoint, None if there is no file; any other file is left alone.

    Raises
    ------
    ResultFileError : the file is not a checkpoint
    """
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):
            raise ResultFileError(
                f"{file} is no regular file, so no checkpoint of dfmp2: move it away"
            )
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as stream:  # even if another file took its place meanwhile
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                content = stream.read(most)
            else:
                content = b""
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResultFileError(f"{file} cannot be read: {error.strerror}") from error
    if not content.startswith(HEAD):
        raise ResultFileError(
            f"{file} is no checkpoint of dfmp2: move it away, or name another ", Option("output")
        )
    return content


def remove(file: Path) -> None:
    """Delete a checkpoint and B in the scratch folder that it names, and nothing else."""
    state = None
    try:
        content = content_of(file)
        if content is None:
            return
        state = decode(content)
    except ResultFileError:
        return
    except ValueError:  # damaged, but ours
        pass
    with suppress(OSError):
        file.unlink()
    if state is not None and state.b is not None:
        remove_kept(Path(state.b.folder))
