"""Why a worker died, and what its item would have needed: the message of an item whose process was killed."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfmp2.errors import ResourceError
from dfmp2.units import format_bytes

COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))  # lines "oom_kill N"
FAULT = 1  # exit code of a fault in dfmp2


@dataclass(frozen=True, slots=True)
class Casualty:
    """A worker that died while it computed.

    Attributes
    ----------
    code : of its process, negative for a signal
    peak : its largest resident size when last seen, bytes
    memory : what it was allowed, bytes
    out_of_memory : whether the system's count of processes killed for memory went up meanwhile
    errors : the last it wrote on standard error
    """

    code: int
    peak: int
    memory: int
    out_of_memory: bool
    errors: str

    @property
    def killed(self) -> bool:
        """Whether it was ended by SIGKILL."""
        return self.code == -signal.SIGKILL

    @property
    def exit_code(self) -> int:
        """Of the item."""
        return ResourceError.exit_code if self.killed else FAULT

    def message(self, need: Mapping[str, Any]) -> str:
        """What is said about the item.

        Parameters
        ----------
        need : "least" and "most", bytes the item is predicted to need with arrays on disk and in memory, or None
        """
        return f"{self._what()}; {self._sizes(need)}"

    def _what(self) -> str:
        if self.killed:
            who = (
                "the system's out-of-memory killer"
                if self.out_of_memory
                else "SIGKILL, as the out-of-memory killer does"
            )
            return f"its worker process was ended by {who}"
        if self.code < 0:
            try:
                name = signal.Signals(-self.code).name
            except ValueError:
                name = f"signal {-self.code}"
            return f"its worker process crashed ({name}): a fault in dfmp2 or a library it uses"
        lines = [line for line in self.errors.strip().splitlines() if line.strip()]
        return f"its worker process failed (exit code {self.code}): {lines[-1][:300] if lines else 'it said nothing'}"

    def _sizes(self, need: Mapping[str, Any]) -> str:
        least, most = need.get("least"), need.get("most")
        held = f"it held {format_bytes(self.peak)} when last seen and was allowed {format_bytes(self.memory)}"
        if least is None or most is None:
            return held
        fits = max(int(most), self.peak)
        advice = f": {format_bytes(fits)} per worker would fit ({format_bytes(int(least))} with large arrays on disk)"
        if fits <= self.memory:
            return f"{held}{advice}, so the machine had less free than it seemed: use fewer --workers or less --memory"
        return f"{held}{advice}: use fewer --workers or more --memory"


def killed_for_memory() -> int:
    """How many processes of this machine, or of this control group, were killed for memory so far."""
    found = 0
    for path in COUNTERS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        found += sum(int(words[1]) for words in map(str.split, lines) if words[0] == "oom_kill")
    return found
