"""One NeuronCore in a process of its own: takes B and tiles from its parent, gives back pair terms in float64.

    python -P -m dfmp2.trainium.launch.core_process LANE CORE

Requests come on standard input, answers go to what was standard output, both as length and pickle; what the runtime
prints goes to standard error. The process ends with its parent, whose end closes the pipe. Ctrl-C is the parent's.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from dfmp2.backends.base import Operand, Tile
from dfmp2.errors import Dfmp2Error
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.launch.executors import executor

LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, message: object) -> None:
    """Write one message."""
    text = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(LENGTH.pack(len(text)))
    stream.write(text)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message.

    Raises
    ------
    EOFError : the other side has ended
    """
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    size = LENGTH.unpack(head)[0]
    text = stream.read(size)
    if len(text) < size:
        raise EOFError
    return pickle.loads(text)


class Core:
    """What one process holds: a backend and the operands put so far."""

    def __init__(self, lane: str, core: int) -> None:
        self._backend = NkiBackend(lane, executor(lane, core))
        self._held: dict[int, Operand] = {}

    def declare(self, key: int, shape: tuple[int, ...], eps_occ: Any, eps_vir: Any) -> None:
        """Open an operand under a key; its blocks come when they are needed."""
        self._held[key] = self._backend.declare(shape, eps_occ, eps_vir)

    def add(self, key: int, number: int, rows: Any) -> None:
        """Make one block of B resident."""
        self._backend.add(self._held[key], number, rows)

    def drop(self, keys: tuple[int, ...]) -> None:
        """Let operands go."""
        for key in keys:
            self._held.pop(key, None)

    def pair(self, left: int, right: int, tile: Tile) -> tuple[Any, Any]:
        """Direct and exchange terms of a tile."""
        terms = self._backend.pair_terms(self._held[left], self._held[right], tile)
        return terms.direct, terms.exchange

    def describe(self) -> dict[str, str]:
        """Proof of this core."""
        return self._backend.describe()


def answer(work: Callable[[], object]) -> tuple[str, object]:
    """The value, or our error by name and message."""
    try:
        return "done", work()
    except Dfmp2Error as error:
        return type(error).__name__, str(error)


def main(lane: str, core: int) -> None:
    """Serve one core until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    held: list[Core] = []
    send(out, answer(lambda: held.append(Core(lane, core))))
    while held:
        try:
            verb, arguments = receive(sys.stdin.buffer)
        except EOFError:
            return
        send(out, answer(lambda: getattr(held[0], verb)(*arguments)))  # noqa: B023 - called at once


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
