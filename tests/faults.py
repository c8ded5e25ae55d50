"""Runs that are killed: processes forked from one that has done the imports, and comparison of
their results.

Run as a program, it is that process: requests are lines of JSON on standard input, replies go to
standard output.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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

if TYPE_CHECKING:
    from tests.conftest import Finished, Runner

ROOT = Path(__file__).parent.parent
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


class Server:
    """Starts `dfmp2` without its start-up time."""

    def __init__(self, threads: int = 1) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), EACH: "0"},
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def start(self, arguments: list[str], cwd: Path) -> int:
        """Start `dfmp2 ARGUMENTS` and return its process id; its output goes to
        `CWD/../PID.out`."""
        return int(self.ask(start=arguments, cwd=str(cwd))["pid"])

    def wait(self, pid: int, kill_after: float | None = None) -> tuple[int, float]:
        """Exit code (negative for a signal) and seconds; kill -9 comes after `kill_after`
        seconds."""
        reply = self.ask(wait=pid, kill_after=kill_after)
        return int(reply["code"]), float(reply["seconds"])

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def kill_and_resume(
    server: Server,
    arguments: list[str],
    folder: Path,
    kills: int,
    seed: int,
    reference: Mapping[str, bytes],
) -> dict[str, int]:
    """Repeatedly kill a run at random moments and resume it until it ends.

    Returns
    -------
    counts of kills, resumed runs, finished chains, results that were not the reference and files
    that could not be read

    A killed SCF continues from its last orbitals, so energies are compared within CLOSE.
    """
    rng = random.Random(seed)
    target = folder / "killed.h5"
    command = [*arguments, "--output", target.name, "--resume", "--quiet"]
    counts = dict.fromkeys(
        ("kills", "kills with a checkpoint", "resumed", "chains", "different", "unreadable"), 0
    )
    code, whole = server.wait(server.start(command, folder))
    assert code == 0
    target.unlink()
    checkpoint = target.with_name(target.name + ".checkpoint")
    tries = 0
    # If other processes slow a run down, it may be killed before its first checkpoint or finish too
    # often.
    while (
        counts["kills"] < kills
        or counts["kills with a checkpoint"] <= kills // 4
        or not counts["chains"]
        or checkpoint.exists()
    ):
        tries += 1
        assert tries < 20 * kills, counts
        counts["resumed"] += checkpoint.exists()
        code, _ = server.wait(server.start(command, folder), rng.uniform(0.0, 1.1 * whole))
        assert code in (0, -signal.SIGKILL), (folder.parent / "last.out").read_text()
        counts["kills"] += code != 0
        counts["kills with a checkpoint"] += code != 0 and checkpoint.exists()
        if target.exists():
            try:
                counts["different"] += not close(numbers(target), reference)
            except OSError:
                counts["unreadable"] += 1
            if code == 0:
                counts["chains"] += 1
                left = [path.name for path in folder.iterdir() if path.name.startswith(target.name)]
                assert left == [target.name], left
            target.unlink()
            checkpoint.unlink(missing_ok=True)
    return counts


def _serve(threads: int) -> None:
    from dfmp2.host import threads as settings

    settings.set_environment(threads)
    from dfmp2.molecule.pyscf_shield import import_pyscf

    import_pyscf()
    import pyscf.df
    import pyscf.scf  # noqa: F401

    started: dict[int, float] = {}
    replies = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            begun = time.monotonic()
            pid = os.fork()
            if not pid:
                _become(request["start"], Path(request["cwd"]))
            started[pid] = begun
            reply: dict[str, Any] = {"pid": pid}
        else:
            reply = _await(request["wait"], started.pop(request["wait"]), request["kill_after"])
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _become(arguments: list[str], cwd: Path) -> None:
    from dfmp2.cli.main import main

    os.chdir(cwd)
    output = os.open(cwd.parent / "last.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["dfmp2", *arguments]
    code = main(arguments)
    sys.stdout.flush()
    os._exit(code)


def _await(pid: int, begun: float, kill_after: float | None) -> dict[str, Any]:
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - begun}
        if kill_after is not None and time.monotonic() - begun > kill_after:
            os.kill(pid, signal.SIGKILL)
            kill_after = None
        time.sleep(0.001)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    _serve(int(sys.argv[1]))
