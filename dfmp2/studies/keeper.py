"""The file of a study while it grows: finished runs are in it, the state of the present one is beside it.

    x.scan.h5               every finished run, written anew as a whole, status "incomplete" until the last one
    x.scan.h5.checkpoint    the present run (`dfmp2.checkpoint`); its fingerprint names the run and what it starts from

One process at a time: the lock of the file is held as long as the study goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from dfmp2.checkpoint.encoding import State
from dfmp2.checkpoint.journal import IDENTITY, RUN, Journal
from dfmp2.errors import ForeignCheckpoint, InputError
from dfmp2.identity import FREE
from dfmp2.io.checkpoint import CheckpointFile, checkpoint_of, found_beside, require_alone, seconds
from dfmp2.io.files import require_writable
from dfmp2.io.study import Study, StudyWriter, read_study, verify_study
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.resources import usable_cores
from dfmp2.result import MP2Result
from dfmp2.studies.step import Step

REST = 5.0  # pause after writing the file, in units of the time that took


class Keeper:
    """Keeps finished runs in a file and the state of the present one beside it; nowhere when there is no path.

    Parameters
    ----------
    path : file of the study, None for none
    overwrite : replace an existing file
    resume : take finished runs from the file if it exists, and go on from the checkpoint beside it
    beside : files that are made of the study when it is done, by the option that names them
    undisturbed : context in which the file is written (the command line defers signals there)
    finishing : told of the journal of every run (the command line lets a signal wait for its next safe point)
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        overwrite: bool = False,
        resume: bool = False,
        beside: Mapping[str, Path] | None = None,
        undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
        finishing: Callable[[Journal], None] = lambda _: None,
    ) -> None:
        if resume and overwrite:
            raise InputError("--resume keeps the finished runs of the file and --overwrite drops them: choose one")
        self._path, self._resume, self._undisturbed, self._finishing = path, resume, undisturbed, finishing
        self._files = {} if path is None else {"--output": path, **(beside or {})}
        self._replaces = overwrite or resume
        self._stored: Study | None = None
        if resume and path is not None and path.exists():
            verify_study(path)
            self._stored = read_study(path)
        self._writer = None if path is None else StudyWriter(path, overwrite=overwrite or self._stored is not None)
        self._checkpoint = None if path is None else CheckpointFile(path)
        self._begun: State | None = None  # what a stopped study had done of a run
        self.written = self._stored is not None
        self._behind = False  # whether a run is kept that the file lacks
        self._next = 0.0  # time.monotonic() from which on the file is worth writing

    def require_kind(self, kind: str) -> None:
        """Refuse to go on with the file of another kind of study."""
        if self._stored is not None and self._stored.kind != kind:
            raise InputError(
                f"--resume: {self._path} holds a study of kind {self._stored.kind}, not {kind}: name another file"
            )

    def find(self, steps: Sequence[Step]) -> dict[str, MP2Result]:
        """The stored results of these steps, by name.

        Raises
        ------
        InputError : a run of that name is another calculation, or steps are missing and had other last bits
        """
        runs = {} if self._stored is None else self._stored.runs
        stored = {step.name: runs[step.name] for step in steps if step.name in runs}
        for step in steps:
            if step.name in stored:
                changed = _changed(stored[step.name], step, alone=len(stored) == len(steps))
                if changed:
                    raise InputError(
                        f"--resume: run {step.name} in {self._path} is another calculation (different "
                        f"{', '.join(changed)}): use the options it was started with, or start anew with --overwrite"
                    )
        return stored

    @contextmanager
    def held(self, steps: Sequence[Step], listener: Listener) -> Iterator[None]:
        """The file for this process alone; in the end nothing but the file is left, unless the study was stopped.

        Raises
        ------
        ResultExists : it is there, or a file to be made of it is, and may not be replaced
        ResultFileError : another process is writing it
        ForeignCheckpoint : what lies beside it is of none of these runs
        """
        if self._path is None or self._checkpoint is None:
            yield
            return
        for option, file in self._files.items():
            require_writable(file, overwrite=self._replaces, option=option)
        try:
            require_alone(self._path, self._checkpoint)
            if os.path.lexists(checkpoint_of(self._path)):
                self._begun = found_beside(
                    *(self._path, self._checkpoint),
                    resume=self._resume,
                    note=listener.stage,
                    warn=listener.warning,
                )
            if self._begun is not None and _run_of(self._begun) not in {step.name for step in steps}:
                raise ForeignCheckpoint(
                    f"{self._checkpoint.path} belongs to another calculation ({_run_of(self._begun) or 'a single run'} "
                    "there): name another file, or delete it"
                )
            yield
            self._checkpoint.remove()
        finally:
            self._checkpoint.close()

    def journal(self, step: Step) -> Journal:
        """Saves the state of a run beside the file, and holds what a stopped study had done of that run."""
        if self._checkpoint is None:
            return Journal()
        found = self._begun if self._begun is not None and _run_of(self._begun) == step.name else None
        journal = Journal(self._checkpoint, found, every=seconds(), run=step.name, eager=self.written or self._behind)
        self._finishing(journal)
        return journal

    def close(self, journal: Journal) -> None:
        """The run is kept, or has failed for good: there is nothing to go on from."""
        if self._checkpoint is not None and journal.saved:
            self._checkpoint.remove()
            journal.saved = False

    def keep(self, name: str, result: MP2Result, *, stored: bool = False) -> None:
        """Put a finished run aside for the file; `stored` says that it came from there."""
        if self._writer is not None:
            with self._undisturbed():
                self._writer.add(name, result)
                self._behind = self._behind or not stored

    @property
    def due(self) -> bool:
        """Whether the file should be written now: writing it takes a small part of the time, however long it is."""
        return self._writer is not None and time.monotonic() >= self._next

    def write(self, study: Study) -> None:
        """Write everything kept so far."""
        if self._writer is not None:
            begun = time.monotonic()
            with self._undisturbed():
                self._writer.write(study)
                self.written, self._behind = True, False
            ended = time.monotonic()
            self._next = ended + REST * (ended - begun)

    def catch_up(self, study: Callable[[bool], Study]) -> None:
        """Write what the file lacks, before the study is left unfinished."""
        if self._behind:
            self.write(study(False))


def _changed(found: MP2Result, step: Step, *, alone: bool) -> list[str]:
    """What makes a step another calculation than a stored one; `alone` where nothing is computed beside it."""
    wanted = step.options.settled(step.molecule.multiplicity)
    changed = [name for name in Options.__slots__ if getattr(found.options, name) != getattr(wanted, name)]
    changed = [name for name in changed if name not in FREE]
    threads = step.options.threads or usable_cores()
    if not alone and found.provenance.threads != threads:
        changed.append(f"threads: {found.provenance.threads} there, {threads} here")
    return changed if found.molecule == step.molecule else ["molecule", *changed]


def _run_of(state: State) -> str:
    """The run of a study that a checkpoint belongs to, "" for one of `dfmp2 run`."""
    return str(state.sections[IDENTITY].values.get(RUN, ""))
