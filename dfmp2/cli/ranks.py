"""`dfmp2 run` as one of several ranks: who may speak, and the code each of them leaves with.

Rank 0 reads, prints and writes. Another rank says one thing at most: why it failed. torchrun starts ranks again that
end with another code than 0, so what no restart can mend ends with 0 where our own launcher tells the true code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import click

from dfmp2 import resources
from dfmp2.cli import signals
from dfmp2.errors import InputError, Interrupted, ResourceError
from dfmp2.io.text import printable
from dfmp2.progress import Listener
from dfmp2.ranks import place as places
from dfmp2.ranks import status
from dfmp2.ranks.ending import DONE, FAILED, LOST, STOPPED, Ending
from dfmp2.ranks.place import Place

if TYPE_CHECKING:
    from dfmp2.ranks.group import Group
    from dfmp2.ranks.team import Team

FAULT = 1
NOTICE = 0.5  # s in which the end of another rank becomes known, when this one fails because of it


@dataclass(slots=True)
class Member:
    """This process as a rank: its place, its group when it has joined, and the last it has said."""

    place: Place
    group: Group | None = None
    said: str = ""


_members: list[Member] = []


class Silent(Listener):
    """Rank 0 says it all; this one only hears of signals."""

    def stage(self, text: str) -> None:
        signals.check()

    def tiles(self, done: int, total: int) -> None:
        signals.check()

    def warning(self, text: str) -> None:
        """Rank 0 gives the same."""


def require_run(arguments: Sequence[str]) -> None:
    """Refuse commands that several ranks would do all over again, each of them.

    Raises
    ------
    InputError : it is not `run`
    """
    place, name = places.here(), next((word for word in arguments if not word.startswith("-")), "run")
    if place is not None and place.size > 1 and name != "run":
        raise InputError(f"dfmp2 {name} inside torchrun: only dfmp2 run works over ranks: start {name} by itself")


def launched(ranks: int | None, restarts: int, molecule: str) -> int | None:
    """The exit code of a run over `--ranks`, None where this process is to compute.

    Raises
    ------
    InputError : the options make no sense
    BackendUnavailable : PyTorch is missing
    """
    if status.folder() is not None and places.here() is not None:
        return None  # started by the launcher below
    if ranks is None:
        if restarts:
            raise InputError("--max-restarts belongs to --ranks; torchrun has an option of that name itself")
        return None
    if places.here() is not None:
        raise InputError(f"--ranks {ranks} inside torchrun: this process is one of several already: leave --ranks out")
    if ranks < 1 or restarts < 0:
        raise InputError(f"--ranks {ranks}, --max-restarts {restarts}: expected 1 rank or more, 0 restarts or more")
    if restarts and molecule == "-":
        raise InputError("--max-restarts: standard input can be read once only: name a file")
    if ranks == 1 and not restarts:
        return None
    cores = resources.cores()
    if ranks > cores:
        click.echo(f"warning: {ranks} ranks share {cores} cores: they will wait for each other", err=True)
    from dfmp2.ranks.launcher import launch

    return launch(sys.argv[1:], ranks, restarts)


def enlist(place: Place, backend: str) -> Team:
    """Join the other ranks; what this process says and how it ends is that of a rank from here on.

    Raises
    ------
    BackendUnavailable : PyTorch is missing
    InputError : fewer devices than ranks
    ResourceError : the ranks cannot reach each other
    """
    member = Member(place)
    _members.append(member)
    if place.size == 1:
        from dfmp2.ranks.team import ALONE

        return ALONE
    from dfmp2.batch.accelerators import pinning
    from dfmp2.ranks.joining import join

    for name in ("cuda", "nki") if backend == "auto" else (backend,):
        os.environ |= pinning(name, place.local_rank, place.local_size, option="--nproc-per-node")
    signals.once()
    member.group = group = join(place, lambda: os.kill(os.getpid(), signal.SIGTERM))
    sys.excepthook = _fault
    if place.rank:
        signals.finish_first(group)
    group.look_around(place.attempt)
    return group


def restarted() -> bool:
    """Whether this run goes on by itself from what it had saved before a rank died."""
    members = _members[-1:]
    return any((one.place.attempt if one.group is None else one.group.attempt) > 0 for one in members)


def verdict(message: str, code: int) -> tuple[str | None, int]:
    """What this process says at its end, None for nothing, and its exit code."""
    if not _members:  # all ranks fail in the same way, before they know of each other
        with contextlib.suppress(InputError):
            place = places.here()
            return message if place is None or place.rank == 0 else None, code
    if not _members or _members[-1].place.size == 1:
        return message, code
    member = _members[-1]
    rank, group = member.place.rank, member.group
    ending = None if group is None else group.watch.look()
    if group is not None and code in status.INTERRUPTED and signals.received() is None:
        ending = _noticed(group)  # nobody asked this rank to stop
    if ending is None or ending.kind == STOPPED:
        if code in status.INTERRUPTED:
            return message if rank == 0 else None, code
        member.said = message
        return f"rank {rank} on {socket.gethostname()}: {message}", code
    if ending.kind == LOST:
        return _bereaved(member, ending, message, code)
    return None, ending.code


def _bereaved(member: Member, ending: Ending, message: str, code: int) -> tuple[str | None, int]:
    """What is said when a rank is gone without a word: by rank 0, or by rank 1 if it is rank 0 that is gone."""
    rank, interrupted = member.place.rank, code in status.INTERRUPTED
    left = message.partition(": ")[2] if interrupted else message
    saved = interrupted and "--resume" in message
    if rank:
        left, saved = "where it had saved a checkpoint, the same command with --resume goes on", True
    if ending.rank >= 0 and member.place.attempt < int(os.environ.get("TORCHELASTIC_MAX_RESTARTS") or 0):
        left = "all ranks are started again"
    speaks = rank == (1 if ending.rank == 0 else 0)
    return f"{ending.told}: {left}" if speaks else None, (Interrupted if saved else ResourceError).exit_code


def leave(code: int) -> int:
    """End this process if it is one of several ranks, so that the others know; else give the code back."""
    if not _members:
        return code
    member = _members[-1]
    place, group, where = member.place, member.group, status.folder()
    ending = None if group is None else group.watch.ending
    if group is not None and ending is None and (code or place.rank == 0):
        kind = DONE if code == 0 else STOPPED if code in status.INTERRUPTED else FAILED
        group.watch.announce(Ending(kind, place.rank, socket.gethostname(), code, member.said))
    if where is not None:
        status.leave(where, place.attempt, place.rank, code)
    if not place.elastic:
        final = code
    elif ending is not None and ending.kind == LOST:
        final = FAULT  # torchrun is to start again, or to fail on this host as well
    else:
        final = 0 if code in status.INTERRUPTED or (where is not None and group is not None) else code
    if place.size == 1:
        return final
    if group is not None:
        group.watch.leave()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(final)  # threads that wait for a word of other ranks would hold the interpreter up


def _noticed(group: Group) -> Ending | None:
    """What has ended elsewhere, when that is about to become known."""
    until = time.monotonic() + NOTICE
    while group.watch.look() is None and time.monotonic() < until:
        time.sleep(0.05)
    return group.watch.ending


def _fault(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What nobody has foreseen: a fault in dfmp2, or that another rank or torchrun is gone."""
    signals.settle()
    group = _members[-1].group
    if group is not None:
        _noticed(group)
    message, code = verdict(f"a fault in dfmp2: {kind.__name__}: {error}", FAULT)
    if message is not None:
        if group is None or group.watch.ending is None:
            sys.__excepthook__(kind, error, trace)
        click.echo(f"dfmp2: {printable(message)}", err=True)
    leave(code)
