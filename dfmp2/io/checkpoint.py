"""The file OUTPUT.h5.checkpoint: read with suspicion, replaced as a whole, gone when the result is there.

One process at a time writes it: the lock of the result (`dfmp2.io.lock`) is taken with the first save, or when a
checkpoint is read to go on from it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dfmp2.checkpoint.encoding import State, newest
from dfmp2.checkpoint.journal import EVERY, Journal
from dfmp2.errors import InputError, Interrupted, ResourceError, ResultFileError
from dfmp2.io.files import write_atomically
from dfmp2.io.lock import Holder, acquire, refresh, release
from dfmp2.scratch.folder import PREFIX, remove_folder, take_over

SUFFIX = ".checkpoint"
VARIABLE = "DFMP2_CHECKPOINT_SECONDS"
LARGEST = 8 * 10**9  # bytes

Say = Callable[[str], None]


class CheckpointFile:
    """Where a journal is written.

    Parameters
    ----------
    target : the result file

    Attributes
    ----------
    path : name of the checkpoint
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._file = checkpoint_of(target)
        self._claimed = self._locked = self._lost = False
        self.path = str(self._file)

    def save(self, content: bytes) -> None:
        """Replace the file.

        Raises
        ------
        ResourceError : it cannot be written, or another process is computing the same result
        """
        other = self.claim()
        if other is not None or self._lost:
            self._lost = True  # for good: what the other process leaves is its own
            raise ResourceError(
                f"{self._target} is being computed by {other or 'another process'}: one of both results will be kept"
            )
        write_atomically(self._file, content, overwrite=True)
        refresh(self._target)

    def claim(self) -> Holder | None:
        """Take the lock of the result; the other process that has it, or None."""
        if self._claimed:
            return None
        other = acquire(self._target)
        if other is not None and other.pid != os.getpid():
            return other
        self._claimed, self._locked = True, other is None
        return None

    def read(self) -> State:
        """The newest intact state.

        Raises
        ------
        FileNotFoundError : there is none
        ResultFileError : it is damaged, or no regular file
        """
        try:
            status = os.stat(self._file)
            if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
                raise ResultFileError(f"{self.path} is no checkpoint: it is not a regular file of its size")
            return newest(self._file.read_bytes())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ResultFileError(f"{self.path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ResultFileError(f"{self.path} is damaged: {error}") from error

    def remove(self) -> None:
        """Delete the file and the fitted integrals it names; the result is complete."""
        scratch = self._scratch()
        with suppress(OSError):
            self._file.unlink()
        if scratch is not None and scratch.name.startswith(PREFIX):
            lock = take_over(scratch)
            if lock is not None:
                remove_folder(scratch)
                os.close(lock)

    def close(self) -> None:
        """Give the lock back; a signal that comes meanwhile is raised afterwards."""
        stopped: BaseException | None = None
        while self._locked:
            try:
                release(self._target)
                self._locked = False
            except (KeyboardInterrupt, Interrupted) as signal:
                stopped = signal
        if stopped is not None:
            raise stopped

    def _scratch(self) -> Path | None:
        try:
            section = self.read().sections.get("scratch")
        except (OSError, ResultFileError):
            return None
        return None if section is None else Path(str(section.values.get("folder", "")))


class Checkpoint:
    """A journal and its file; made by `checkpointing`."""

    def __init__(self, journal: Journal, file: CheckpointFile) -> None:
        self.journal, self._file = journal, file

    def complete(self) -> None:
        """The result is written: remove the checkpoint and what it refers to, unless they are another process'."""
        if self._file.claim() is None:
            self._file.remove()
            self.journal.saved = False


def checkpoint_of(target: Path) -> Path:
    """The checkpoint of a result file."""
    return target.with_name(target.name + SUFFIX)


@contextmanager
def checkpointing(
    target: str | Path,
    *,
    resume: bool,
    note: Say,
    warn: Say,
    replace_foreign: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> Iterator[Checkpoint]:
    """Save the state of a run beside its result now and then, and go on from what an earlier one saved.

    Parameters
    ----------
    target : the result file
    resume : go on from the checkpoint if there is one
    note, warn : told what is found
    replace_foreign : start from the beginning where the checkpoint belongs to another calculation, instead of refusing
    ready : as in `Journal`

    Raises
    ------
    ResultFileError : another process is computing this result
    """
    target = Path(target)
    file = CheckpointFile(target)
    try:
        found = found_beside(target, file, resume=resume, note=note, warn=warn)
        journal = Journal(file, found, every=seconds(), replace_foreign=replace_foreign, ready=ready)
        yield Checkpoint(journal, file)
    finally:
        file.close()


def seconds() -> float:
    """Time between two saves: $DFMP2_CHECKPOINT_SECONDS, or 5.

    Raises
    ------
    InputError : it is no time
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return EVERY
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InputError(f"{VARIABLE}={text!r}: expected seconds between two saves, 0 or more")
    return value


def found_beside(target: Path, file: CheckpointFile, *, resume: bool, note: Say, warn: Say) -> State | None:
    """What there is to go on from, None to start from the beginning; what is damaged is named and not used.

    Raises
    ------
    ResultFileError : another process is computing this result
    """
    if not resume:
        if os.path.lexists(checkpoint_of(target)):
            note(f"{file.path} of an earlier run is not used: --resume would go on from it")
        return None
    try:
        state = file.read()
    except FileNotFoundError:
        note(f"there is no {file.path}: starting from the beginning")
        return None
    except ResultFileError as error:
        warn(f"{error}: it is not used, starting from the beginning")
        return None
    require_alone(target, file)
    if state.damaged:
        warn(f"{file.path} is damaged in part: going on from the state saved before (number {state.serial})")
    return state


def require_alone(target: Path, file: CheckpointFile) -> None:
    """Take the lock of a result for this process.

    Raises
    ------
    ResultFileError : another process is computing it
    """
    other = file.claim()
    if other is not None:
        raise ResultFileError(f"{target} is being computed by {other}: wait for it, or stop it")
