"""The file of a study in progress, and resuming a stopped one.

    x.scan.h5               all finished runs, rewritten as a whole, status "incomplete" until the last one
    x.scan.h5.checkpoint    the current run (`dfmp2.output.checkpoint`); its identity names run and start

A restarted study takes the finished runs from the file and continues with the interrupted one.
(After a kill, the file may lack the last runs if they take less time than writing it.) The lock of
the file is held during the study, so that only one process works on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from dfmp2.errors import ForeignCheckpoint, InputError, Option, ResultFileError
from dfmp2.host.files import OUTPUT, locked, remove_parts, require_all_writable
from dfmp2.host.provenance import blas_and_kernels
from dfmp2.mp2.calculation import NOTHING, Checkpoint, State
from dfmp2.mp2.identity import changed, question
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.checkpoint import FileCheckpoint, checkpoint_of, found_beside, remove
from dfmp2.output.study import Study, StudyWriter, is_unfinished, read_study
from dfmp2.progress import Listener
from dfmp2.studies.task import Step, Task

# bohr; effect of another machine's rounding on a geometry derived from results
NEAR = 1e-6
REST = 5.0  # pause after writing the file, as a multiple of the time it took


class Keeper:
    """Keeps finished runs in a file and the state of the current one beside it; does nothing
    without a path.

    Parameters
    ----------
    path : file of the study, None for none; finished runs of a stopped study are taken from it, and
        the interrupted one continues from the checkpoint beside it
    overwrite : replace a complete file, or an unfinished one of another study
    resume : also take the runs of a complete file, and repeat those that failed
    beside : files to be made from the finished study, by the option that names them
    undisturbed : context in which the file is written (the command line defers signals there)
    finishing : called with the checkpoint of every run (the command line makes signals wait for the
        next iteration or tile)
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        overwrite: bool = False,
        resume: bool = False,
        beside: Mapping[Option, Path] | None = None,
        undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
        finishing: Callable[[FileCheckpoint], None] = lambda _: None,
    ) -> None:
        if resume and overwrite:
            raise InputError(
                Option("resume", True),
                " keeps the finished runs of the file and ",
                Option("overwrite", True),
                " drops them: choose one",
            )
        self._path = path
        self._undisturbed = undisturbed
        self._finishing = finishing
        self._resume = resume
        self._discards = overwrite
        self._files: dict[Option, Path] = {}
        self._stored: Study | None = None
        self._writer: StudyWriter | None = None
        self._interrupted: State | None = None  # state of the run in which a study was stopped
        self._next = 0.0  # time.monotonic() from which the file is worth writing
        self._behind = False  # whether the file lacks a kept run
        if path is not None:
            self._files = {OUTPUT: path, **(beside or {})}
            self._stored = _stored_study(path, resume=resume, overwrite=overwrite)
            self._writer = StudyWriter(path, overwrite=overwrite or self._stored is not None)
        self.replaces = overwrite or resume or self._stored is not None
        self.written = self._stored is not None

    def recall(
        self,
        steps: Sequence[Step],
        listener: Listener,
        threads: int,
        free: tuple[str, ...] = (),
        chosen: tuple[str, ...] = (),
        *,
        follow: bool,
    ) -> dict[str, MP2Result]:
        """The stored results of steps, by name.

        Parameters
        ----------
        threads : number of threads of missing runs
        free, chosen : as in Task
        follow : the steps depend on other results; a run at another geometry is ignored

        Raises
        ------
        InputError : a run of that name is of another calculation, or steps are missing and the
            stored ones would differ in their last bits
        """
        recalled: dict[str, MP2Result] = {}
        if self._stored is None or self._writer is None:
            return recalled
        stored = [step for step in steps if step.name in self._stored.runs]
        some_missing = len(stored) < len(steps)
        for step in stored:
            run = self._stored.runs[step.name]
            if follow and not step.optimised and _moved(run, step):
                listener.note(
                    f"run {step.name} in {self._path} is at another geometry: it is computed again"
                )
                continue
            molecule = step.molecule
            if follow:
                molecule = replace(molecule, coordinates=run.molecule.coordinates)
            settable = [*chosen, *_changeable(self._stored, free, step.options)]
            options = replace(
                step.options, **{name: getattr(run.options, name) for name in settable}
            )
            different = changed(question(run.molecule, run.options), question(molecule, options))
            if not follow and some_missing and run.provenance.threads != threads:
                different.append(f"threads: {run.provenance.threads} there, {threads} here")
            if different and self._discards:
                listener.note(f"starting from the beginning: {self._other(step, different)}")
                self._stored = None
                return {}
            if different:
                raise InputError(
                    f"{self._other(step, different)}: use the options it was started with, or "
                    "start anew with ",
                    Option("overwrite", True),
                )
            recalled[step.name] = run
        for step in stored:
            if step.name in recalled:
                self._writer.add(step.name, recalled[step.name], packed=step.passing)
        products = blas_and_kernels()
        if any(run.provenance.blas != products for run in recalled.values()):
            listener.note(
                f"runs in {self._path} were made with other products than those of this host "
                f"({products}): their last bits may differ from those of a run here"
            )
        return recalled

    def _other(self, step: Step, different: Sequence[str]) -> str:
        """The error that the stored run of a step is of another calculation."""
        return (
            f"run {step.name} in {self._path} is another calculation (different "
            f"{', '.join(different)})"
        )

    @contextmanager
    def held(self, task: Task, listener: Listener) -> Iterator[None]:
        """Lock the file for this process; afterwards only the file remains, unless the study was
        stopped.

        Raises
        ------
        InputError : the file holds a study of another kind
        ResultExists : the file, or one to be made from it, exists and may not be replaced
        ResultFileError : another process is writing the file
        ForeignCheckpoint : the checkpoint beside it belongs to none of these runs
        """
        if self._path is None:
            yield
            return
        self._require_same(task)
        checkpoint = checkpoint_of(self._path)
        require_all_writable(list(self._files.items()), overwrite=self.replaces)
        with locked(self._path):
            remove_parts(self._path, checkpoint, *self._files.values())
            if os.path.lexists(checkpoint):
                self._interrupted = found_beside(
                    self._path,
                    resume=self._resume,
                    replace_foreign=self._discards,
                    note=listener.stage,
                    warn=listener.warning,
                )
            if self._interrupted is not None and not _belongs(self._interrupted, task):
                if not self._discards:
                    raise ForeignCheckpoint(
                        f"{checkpoint} belongs to another calculation "
                        f"({self._interrupted.run or 'a single run'} there): name another file, or "
                        "start anew with ",
                        Option("overwrite", True),
                    )
                self._interrupted = None
            yield
            remove(checkpoint)

    def _require_same(self, task: Task) -> None:
        """Raise if the stored study is of another kind or had other settings.

        Raises
        ------
        InputError : its kind, or a setting that its runs depend on, differs
        """
        if self._stored is None:
            return
        settings = self._stored.settings
        different = [
            name.replace("_", " ")
            for name, value in task.question.items()
            if settings.get(name, False) != value
        ]
        other = ""
        if self._stored.kind != task.kind:
            other = f"a study of kind {self._stored.kind}, not {task.kind}"
        elif different:
            other = f"another {task.kind} (different {', '.join(different)})"
        if other and not self._discards:
            raise InputError(
                f"{self._path} holds {other}: name another file, or start anew with ",
                Option("overwrite", True),
            )
        if other:
            self._stored = None

    @contextmanager
    def up_to_date(self, study: Callable[[], Study]) -> Iterator[None]:
        """Ensure that the file holds every finished run, however the block ends."""
        try:
            yield
        finally:
            if self._behind:
                self.write(study())

    def checkpoint(self, step: Step) -> Checkpoint:
        """A checkpoint beside the file that saves the state of a run, and holds its state if it was
        interrupted."""
        if self._path is None:
            return NOTHING
        if step.optimised:  # an optimisation restarts from its beginning
            self.wait_for_no_run()
            return NOTHING
        state = None
        if self._interrupted is not None and self._interrupted.run == step.name:
            state = self._interrupted
            if step.start and state.reference is None:
                # A few iterations from the orbitals of another step are repeated: differences of
                # gradients would show the other way to convergence.
                state = None
        checkpoint = FileCheckpoint(
            self._path,
            state,
            replace_foreign=self._discards,
            run=step.name,
            eager=self.written or self._behind,
        )
        self._finishing(checkpoint)
        return checkpoint

    def wait_for_no_run(self) -> None:
        """Let signals act at once, because other processes do the computing."""
        if self._path is not None:
            self._finishing(FileCheckpoint(self._path))

    def close(self, checkpoint: Checkpoint) -> None:
        """Discard the checkpoint of a run that was kept or has failed for good."""
        if isinstance(checkpoint, FileCheckpoint) and checkpoint.saved:
            checkpoint.complete()

    def keep(self, step: Step, result: MP2Result, study: Callable[[], Study]) -> None:
        """Put a finished run into the file, with a delay if writing takes longer than the runs."""
        if self._writer is not None:
            with self._undisturbed():
                self._writer.add(step.name, result, packed=step.passing)
                self._behind = True
            if time.monotonic() >= self._next:
                self.write(study())

    def replace(self, name: str, result: MP2Result) -> None:
        """Replace a kept run; written together with the next."""
        if self._writer is not None:
            self._writer.replace(name, result)

    def write(self, study: Study) -> None:
        """Write everything kept so far."""
        if self._writer is not None:
            started = time.monotonic()
            with self._undisturbed():
                self._writer.write(study)
                self.written = True
                self._behind = False
            ended = time.monotonic()
            self._next = ended + REST * (ended - started)


def _changeable(study: Study, free: tuple[str, ...], wanted: Options) -> list[str]:
    """Those of the free options in which the runs of a stored study may differ from the wanted
    ones: all while it is unfinished; later those whose value one of its runs has, since it may have
    been continued with other options before it was complete."""
    if not study.complete:
        return list(free)
    stored = [run.options for run in study.runs.values()]
    changeable = []
    for name in free:
        value = getattr(wanted, name)
        if any(getattr(options, name) == value for options in stored):
            changeable.append(name)
    return changeable


def _stored_study(path: Path, *, resume: bool, overwrite: bool) -> Study | None:
    """The study in a file, to be continued; None if there is none or it may be replaced.

    Raises
    ------
    ResultFileError : the file is damaged and may not be replaced
    """
    if not path.exists() or not (resume or is_unfinished(path)):
        return None
    try:
        return read_study(path)
    except ResultFileError:
        if not overwrite:
            raise
        return None


def _moved(run: MP2Result, step: Step) -> bool:
    """Whether a run is at a different geometry from its step."""
    moves = np.abs(run.molecule.coordinates - step.molecule.coordinates)
    return bool(moves.max() > NEAR)


def _belongs(state: State, task: Task) -> bool:
    """Whether a checkpoint belongs to a run of the task."""
    if any(step.name == state.run for step in task.steps):
        return True
    return task.then is not None and bool(state.run)
