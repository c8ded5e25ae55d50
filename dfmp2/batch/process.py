"""A worker process as its parent sees it: start, tell, hear, watch, stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The library is found where this one was, also when it is not installed, and never in the working directory.
START = "import sys; sys.path.append(sys.argv.pop()); from dfmp2.batch.worker import main; sys.exit(main())"
LIBRARY = Path(__file__).parent.parent.parent
CHUNK = 2**16
LAST_BYTES = 16_000  # of what a worker wrote on standard error


class Worker:
    """One process with its pipes.

    Parameters
    ----------
    threads : of its calculations
    variables : environment variables it gets beside those of this process
    """

    def __init__(self, threads: int, variables: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        # A session of its own: Ctrl-C on the terminal reaches the parent only, which then decides.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, str(threads), str(os.getpid()), str(LIBRARY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **variables, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,
        )
        self._buffer = b""
        self.ready = False
        self.peak = 0

    @property
    def pid(self) -> int:
        """Process number."""
        return self._process.pid

    def fileno(self) -> int:
        """Of the pipe its replies come through."""
        pipe = self._process.stdout
        return -1 if pipe is None else pipe.fileno()

    def tell(self, task: Mapping[str, Any]) -> bool:
        """Send a task; false when the worker is dead."""
        pipe = self._process.stdin
        try:
            if pipe is None:
                return False
            pipe.write(json.dumps(task).encode() + b"\n")
            pipe.flush()
        except OSError:
            return False
        return True

    def hear(self) -> tuple[list[dict[str, Any]], bool]:
        """Replies that have come, and whether there may be more; waits for at least a part of one."""
        chunk = os.read(self.fileno(), CHUNK)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [json.loads(line) for line in lines], bool(chunk)

    def watch(self) -> None:
        """Note the largest resident size so far."""
        try:
            text = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return
        for line in text.splitlines():
            if line.startswith("VmHWM:"):
                self.peak = int(line.split()[1]) * 1024

    def dismiss(self) -> None:
        """Let it end when it has nothing to do."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                return

    def terminate(self) -> None:
        """Ask it to stop at once."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def ending(self, patience: float = 10.0) -> tuple[int, str]:
        """Exit code (negative for a signal) of a process whose pipe has ended, and its last words on standard error."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_BYTES))
        return code, self._errors.read().decode(errors="replace")

    def close(self) -> None:
        """End it if need be and give its files back."""
        self.dismiss()
        self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
