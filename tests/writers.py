"""Everything that writes a file, and system faults at any step: full disks, I/O errors, short
writes."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from dfmp2.errors import ResourceError
from dfmp2.execution.manifest import leave_manifest, make_batch

Fault = tuple[str, int]  # the step that fails, and how

FAULTS: tuple[Fault, ...] = (
    ("open", errno.EACCES),
    ("open", errno.EROFS),
    ("write", errno.ENOSPC),
    ("write", errno.EIO),
    ("short write", errno.ENOSPC),
    ("flush", errno.EDQUOT),
    ("fsync", errno.EIO),
    ("fsync", errno.ENOSPC),
    ("rename", errno.EIO),
    ("rename", errno.ENOSPC),
)
_open = builtins.open
SECOND = (
    ("open", errno.EROFS),
    ("write", errno.EIO),
    ("fsync", errno.ENOSPC),
    ("rename", errno.ENOSPC),
)
OLD = "old"  # what a file holds before it is written, behind what only a file of dfmp2 begins with
BEGINNINGS = {".checkpoint": "dfmp2 checkpoint 2\n", "batch.toml": "item = []  # "}


def named(fault: Fault) -> str:
    """The name of a test's fault."""
    return f"{fault[0]} {errno.errorcode[fault[1]]}"


# --- the faults -----------------------------------------------------------------------------------


class _Failing(io.FileIO):
    """A file on a failing disk; accepted data are on it."""

    def __init__(self, path: Path, mode: str, fault: Fault) -> None:
        super().__init__(str(path), mode)
        self._step, self._number = fault

    def write(self, content: Any) -> int:
        if self._step == "flush":
            return super().write(content)
        if self._step == "short write":
            super().write(bytes(content[: len(content) // 2]))
        raise OSError(self._number, os.strerror(self._number))

    def flush(self) -> None:
        if self._step == "flush":
            raise OSError(self._number, os.strerror(self._number))


@contextmanager
def failing(
    fault: Fault, folder: Path | None = None, only: Callable[[str], bool] = lambda name: True
) -> Iterator[list[str]]:
    """Let every file written in the block fail at one step; yields the names of the files that met
    the fault.

    Parameters
    ----------
    folder : the disk that fails; the working directory when None
    only : of a file's name: whether it is on the bad disk
    """
    step, number = fault
    met: list[str] = []
    descriptors: set[int] = set()
    place = Path(folder or Path.cwd()).resolve()

    def bad(path: Any) -> bool:
        if isinstance(path, int):
            return False
        target = Path(os.fsdecode(path)).absolute()
        return place in target.parents and only(target.name)

    def opened(path: Any, mode: str = "r", *given: Any, **more: Any) -> Any:
        if not set(mode) & set("xwa") or not bad(path):
            handle = _open(path, mode, *given, **more)
            descriptors.discard(handle.fileno())  # the reused number of an earlier bad one
            return handle
        if step == "open":
            met.append(Path(path).name)
            raise OSError(number, os.strerror(number), str(path))
        if step in ("write", "short write", "flush"):
            met.append(Path(path).name)
            raw = _Failing(Path(path), mode.replace("b", "") + "b", fault)
            return (
                raw if "b" in mode else io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
            )
        handle = _open(path, mode, *given, **more)
        descriptors.add(handle.fileno())
        return handle

    def broken(original: Callable[..., Any], name: Callable[..., str | None]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            found = name(*given)
            if found is None:
                return original(*given, **more)
            met.append(found)
            raise OSError(number, os.strerror(number), found)

        return call

    def of_fsync(descriptor: int) -> str | None:
        return "fsync" if step == "fsync" and descriptor in descriptors else None

    def of_rename(_part: Any, target: Any) -> str | None:
        return str(target) if step == "rename" and bad(target) else None

    with (
        mock.patch.object(builtins, "open", opened),
        mock.patch.object(io, "open", opened),
        mock.patch.object(os, "fsync", broken(os.fsync, of_fsync)),
        mock.patch.object(os, "replace", broken(os.replace, of_rename)),
        mock.patch.object(os, "link", broken(os.link, of_rename)),
    ):
        yield met


# --- the writers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writer:
    """Something that writes a file.

    Attributes
    ----------
    target : the file, there before with OLD in it
    write : a command line of dfmp2, or a function of the folder that raises
    goes_on : whether the request is still carried out without the file
    steps : at which it can fail
    only : of a file's name: whether it is on the bad disk
    option : names another file; words for a log, and for the cache of a compiler
    allowed : other files that may be there afterwards
    settings : environment variables
    once : module and function whose answer is the same whatever happens to the file, so that it is
        asked for once
    """

    target: str
    write: tuple[str, ...] | Callable[[Path], Any]
    goes_on: bool = False
    steps: tuple[str, ...] = ("open", "write", "short write", "flush", "fsync", "rename")
    only: Callable[[str], bool] = lambda name: True
    option: str = "choose another folder with --output"
    allowed: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    once: tuple[str, str] | None = None


H2 = ("--basis", "sto-3g", "--threads", "1")
SCAN = ("scan", "h2.xyz", "--bond", "1,2", "0.7:0.8:2", *H2, "--output", "new.h5", "--overwrite")
EACH = {"DFMP2_CHECKPOINT_SECONDS": "0"}  # a checkpoint at every safe point
RUN = "dfmp2.mp2.energy", "mp2_energy"


def _collected(folder: Path) -> None:
    from dfmp2.output.json import write_rows

    write_rows(
        folder / "new.h5", [{"name": "a", "seconds": 1.0}], {"basis": "sto-3g"}, overwrite=True
    )


def _error_file(folder: Path) -> None:
    from dfmp2.errors.messages import Message
    from dfmp2.execution.items import failed

    row = failed(
        make_batch(["a.xyz"], {"basis": "sto-3g"}, folder).items[0], 3, Message("wrong"), "trace"
    )
    if row.notes:
        raise ResourceError(row.notes[0])


def _ledger(folder: Path) -> None:
    leave_manifest(make_batch(["h2.xyz"], {"basis": "sto-3g"}, folder))


def _measured(folder: Path) -> None:
    from dfmp2.host import files

    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder)}):
        files.store_cached("rates", {"eigen": 1.0})


def _compiled(folder: Path) -> None:
    from dfmp2.trainium.calls import Program
    from dfmp2.trainium.launch.compiler import NeffCache

    made = folder / "h2.xyz"  # any bytes will do
    program = Program("pair_energy", "k", (("b", (1, 1)),), ())
    with mock.patch.object(Program, "fingerprint", return_value="neff"):
        NeffCache(folder).add(program, "trn1", {"nki": "0.5.0"}, made, "standalone", 1.0)


def _ends_with(*endings: str) -> Callable[[str], bool]:
    """Match a target, or the file written beside it before renaming."""
    return lambda name: any(
        f"{ending}.part-" in name or name.endswith(ending) for ending in endings
    )


WRITERS: dict[str, Writer] = {
    "result": Writer(
        "new.h5", ("run", "h2.xyz", *H2, "--output", "new.h5", "--overwrite"), once=RUN
    ),
    "report, HTML": Writer("new.html", ("report", "h2.h5", "--output", "new.html", "--overwrite")),
    "export": Writer(
        "new.xyz", ("export", "h2.h5", "--to", "xyz", "--output", "new.xyz", "--overwrite")
    ),
    "study (`scan`)": Writer("new.h5", SCAN, only=_ends_with(".h5"), once=RUN),
    "table of a scan": Writer(
        "new.csv",
        SCAN,
        option="choose another folder with --csv",
        only=_ends_with(".csv"),
        allowed=("new.h5",),
        once=RUN,
    ),
    "curve of a scan": Writer(
        "new.svg",
        SCAN,
        option="choose another folder with --plot",
        only=_ends_with(".svg"),
        allowed=("new.h5", "new.csv"),
        once=RUN,
    ),
    "checkpoint of a run": Writer(
        "new.h5.checkpoint",
        ("run", "h2.xyz", *H2, "--output", "new.h5", "--overwrite"),
        True,
        only=_ends_with(".checkpoint"),
        allowed=("new.h5",),
        settings=EACH,
    ),
    "validation": Writer(
        "new.h5",
        (
            "validate",
            "--only",
            "psi4-dfmp2-2-h2-cc-pvdz",
            "--threads",
            "1",
            "--output",
            "new.h5",
            "--overwrite",
        ),
        once=("dfmp2.validation.validate", "validate"),
    ),
    "measurement (`bench --json`)": Writer(
        "new.json",
        (
            "bench",
            "--shape",
            "small",
            "--backend",
            "cpu",
            "--precision",
            "fp64",
            "--repeats",
            "1",
            "--threads",
            "1",
            "--json",
            "new.json",
            "--overwrite",
        ),
        option="choose another folder with --json",
        once=("dfmp2.validation.bench", "measure_shape"),
    ),
    "rates of this host": Writer("dfmp2/calibration.json", _measured, True),
    "compiled kernel": Writer(
        "neff/nki_0.5.0.neff",
        _compiled,
        option="name another folder with DFMP2_NEFF_CACHE",
        only=_ends_with(".neff"),
    ),
    "NAME.error.json of a batch": Writer("a.error.json", _error_file),
    "batch.toml": Writer("batch.toml", _ledger, only=_ends_with("batch.toml")),
    "collected table": Writer("new.h5", _collected),
    "log": Writer(
        "new.log",
        ("run", "h2.xyz", *H2, "--output", "new.h5", "--log", "new.log"),
        steps=("open", "write", "short write", "flush"),
        option="choose another file",
        only=_ends_with(".log"),
        once=RUN,
    ),
}


def prepare(writer: Writer, folder: Path) -> None:
    """Put the old files there."""
    for name in {writer.target, *(name for name in writer.allowed if name != writer.target)}:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(
            next((start for end, start in BEGINNINGS.items() if name.endswith(end)), "") + OLD
        )


def intact(
    writer: Writer,
    folder: Path,
    before: dict[str, tuple[int, int]],
    after: dict[str, tuple[int, int]],
) -> bool:
    """Whether the old file is unchanged and only allowed files have been added."""
    if writer.goes_on and writer.target not in after:  # a successful run removes its checkpoint
        after = {**after, writer.target: before[writer.target]}
    with suppress(FileNotFoundError):
        if writer.target.endswith(".log"):  # a log is appended to
            return (folder / writer.target).read_text().startswith(OLD) and set(before) == set(
                after
            )
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    return not {
        name for name in changed if name not in writer.allowed and not (folder / name).is_dir()
    }


_answers: dict[tuple[str, ...], Any] = {}


@contextmanager
def remembered(writer: Writer) -> Iterator[None]:
    """Make the writer compute its data once for all its faults."""
    if writer.once is None:
        yield
        return
    asked = writer.once
    module, name = import_module(asked[0]), asked[1]
    original = getattr(module, name)

    def answer(*given: Any, **more: Any) -> Any:
        key = (*asked, repr(given)) if asked == RUN else asked
        if key not in _answers:
            found = original(*given, **more)
            _answers[key] = list(found) if isinstance(found, Iterator) else found
        return _answers[key]

    with mock.patch.object(module, name, answer):
        yield
