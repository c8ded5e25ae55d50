"""Runs that are stopped, and comparison of their results."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from dfmp2.mp2.calculation import State
from dfmp2.output import checkpoint as checkpoint_files
from dfmp2.output.checkpoint import FileCheckpoint
from dfmp2.output.state import decode
from tests.conftest import COMMAND

if TYPE_CHECKING:
    from tests.conftest import Finished, Runner

EACH = "DFMP2_CHECKPOINT_SECONDS"  # 0: a checkpoint at every safe point
# Datasets that may differ between two runs of the same calculation; `mol` contains PySCF's memory
# limit.
OWN = (
    "dfmp2/timings",
    "dfmp2/predicted",
    "dfmp2/provenance",
    "dfmp2/memory",
    "dfmp2/storage",
    "dfmp2/input/options/scratch",
    "mol",
)


# Eh, for runs that converge by other steps to a gradient of 1e-6 Eh: 3e-8 observed in E(corr) of
# glycine
CLOSE = 1e-7


def energies(bits: Mapping[str, bytes]) -> list[float]:
    """SCF and correlation energy, Eh."""
    return [
        float(np.frombuffer(bits[name])[0])
        for name in ("scf/e_tot", "dfmp2/energies/mp2_correlation_energy")
    ]


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the command without waiting for it; like a shell's foreground job it reacts to
    Ctrl-C."""
    return subprocess.Popen(
        [COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        restore_signals=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def refusals(function: Callable[..., Any], *cases: tuple[Any, ...]) -> list[str]:
    """What a function says to each of several arguments, all of which it must refuse."""
    said = []
    for given in cases:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - recorded with its kind
            function(*given)
        said.append(f"{type(caught.value).__name__}: {caught.value}")
    return said


def close(found: Mapping[str, bytes], expected: Mapping[str, bytes]) -> bool:
    """Whether two results have the same content and energies that agree within the convergence of
    the SCF."""
    near = np.allclose(energies(found), energies(expected), rtol=0, atol=CLOSE)
    return found.keys() == expected.keys() and bool(near)


def numbers(source: Path | bytes) -> dict[str, bytes]:
    """All datasets of a result that must agree, as bytes."""
    found: dict[str, bytes] = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith(OWN):
            value = item[()]
            plain = np.asarray(value)
            found[name] = repr(value).encode() if plain.dtype == object else plain.tobytes()

    with h5py.File(io.BytesIO(source) if isinstance(source, bytes) else source) as handle:
        handle.visititems(take)
    return found


class Stopping:
    """Context in which runs are asked to stop, as by a signal.

    Parameters
    ----------
    every : at every such SCF iteration or tile, counted over all runs; at_tile : at this tile of
        every run; after_scf : when it has converged
    """

    def __init__(self, every: int = 0, at_tile: int = 0, after_scf: bool = False) -> None:
        self._every, self._at_tile, self._after_scf, self._points = every, at_tile, after_scf, 0
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Stopping:
        for name in ("add_orbitals", "add_reference", "add_tile"):
            self._patch.setattr(FileCheckpoint, name, self._stopping(getattr(FileCheckpoint, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def _stopping(self, add: Any) -> Any:
        def added(checkpoint: FileCheckpoint, *what: Any) -> None:
            of_scf = add.__name__ == "add_reference"
            self._points += not of_scf
            at_tile = (
                self._at_tile
                and add.__name__ == "add_tile"
                and len(checkpoint.tiles) + 1 == self._at_tile
            )
            due = self._after_scf if of_scf else self._every and self._points % self._every == 0
            if at_tile or due:
                checkpoint.stop_asked = True
            add(checkpoint, *what)

        return added


def finished_in_stops(call: Runner, *command: str, every: int) -> tuple[Finished, int]:
    """Repeat a command that is stopped again and again; returns its final output and the number of
    stops.

    Parameters
    ----------
    call : Runner
    command : str
        With --resume.
    every : int
        SCF iteration or tile at which it is asked to stop, counted over all runs.
    """
    stops = 0
    with Stopping(every=every):
        done = call(*command)
        while done.code == 75:
            stops += 1
            assert stops < 30
            done = call(*command)
    return done, stops


class Saved(Sequence[State]):
    """States in the form of files, each read again on access."""

    def __init__(self) -> None:
        self.files: list[bytes] = []

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: Any) -> Any:
        return decode(self.files[place])


@contextmanager
def recorded() -> Iterator[Saved]:
    """Record every state that runs in the block save, at every SCF iteration and tile; no file is
    written."""
    found = Saved()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EACH, "0")
        patch.setattr(
            checkpoint_files,
            "write_atomically",
            lambda _, content, **__: found.files.append(content),
        )
        yield found
