"""Arrays on disk that all ranks have in common, in the scratch folder of rank 0, which every host has to see.

A file is opened for each access and closed after it: that is what network file systems promise to take notice of.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dfmp2.checkpoint.encoding import Section
from dfmp2.errors import ResourceError
from dfmp2.ranks.team import Team
from dfmp2.scratch import dataset
from dfmp2.scratch.folder import SUFFIX
from dfmp2.scratch.region import Region
from dfmp2.scratch.space import Space

Array = NDArray[np.float64]

SEEN = "seen"  # file by which ranks find out whether they see the folder


class SharedFiles:
    """The home of tensors that ranks make together.

    Parameters
    ----------
    space : of this rank; the folder is that of rank 0
    """

    def __init__(self, space: Space, team: Team) -> None:
        self._space, self._team = space, team

    def array(self, name: str, size: int, *, existing: bool = False) -> SharedArray:
        """A flat array of `size` numbers; all ranks call this together.

        Raises
        ------
        ResourceError : the file cannot be made
        """

        def make() -> Section:
            path = self._space.own_folder() / f"{name}{SUFFIX}"
            try:
                place = dataset.locate(path) if existing else dataset.reserve(path, size)
            except OSError as error:
                raise self._space.refuse(error.strerror or error) from error
            return Section({"path": str(path), "place": place})

        told = self._team.told(make).values
        return SharedArray(self._space, Path(told["path"]), told["place"])


class SharedArray:
    """Numbers in a file that other ranks read and write as well."""

    def __init__(self, space: Space, path: Path, place: int) -> None:
        self._space, self._path, self._place = space, path, place

    def write(self, start: int, values: Array) -> None:
        """Store C-ordered `values` of any shape from number `start` on.

        Raises
        ------
        ResourceError : the disk is full or fails
        """
        with _Opened(self._space, self._path, os.O_WRONLY) as descriptor:
            Region(descriptor, self._place, str(self._path)).write(start, values)
        self._space.written += values.nbytes

    def read(self, start: int, out: Array) -> None:
        """Fill the C-ordered array `out` with the numbers from `start` on.

        Raises
        ------
        ResourceError : the disk fails
        """
        with _Opened(self._space, self._path, os.O_RDONLY) as descriptor:
            Region(descriptor, self._place, str(self._path)).read(start, out)
        self._space.read += out.nbytes


class _Opened:
    def __init__(self, space: Space, path: Path, flags: int) -> None:
        try:
            self._descriptor = os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            raise space.refuse(error.strerror) from error

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def require_common(space: Space, team: Team) -> None:
    """Make sure that all ranks see the scratch folder of rank 0, before anything is computed.

    Raises
    ------
    ResourceError : on rank 0, some do not
    """
    token = secrets.token_hex(8)

    def make() -> Section:
        path = space.own_folder() / f"{SEEN}{SUFFIX}"
        try:
            path.write_text(token)
        except OSError as error:
            raise space.refuse(error.strerror) from error
        return Section({"path": str(path), "token": token})

    told = team.told(make).values
    seen = False
    with suppress(OSError):
        seen = os.access(told["path"], os.W_OK) and Path(told["path"]).read_text() == told["token"]
    blind = [rank for rank, answer in enumerate(team.collect(Section({"seen": seen}))) if not answer.values["seen"]]
    if blind and team.rank == 0:
        named = ", ".join(f"{rank} on {team.hosts[rank]}" for rank in blind)
        raise ResourceError(
            f"rank {named} cannot use the scratch folder {space.root} of rank 0 on {team.hosts[0]}: name a folder that "
            "all hosts share with --scratch"
        )
    team.meet()
    if team.rank == 0:
        with suppress(OSError):
            Path(told["path"]).unlink()
