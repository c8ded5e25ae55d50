"""The file of a study: several whole results in one HDF5 file, with the table and the numbers made of them.

    /runs/NAME/...                      results, each laid out as a result file (`dfmp2.io.schema`), with its own hash
    /study/{title, settings, notes}     what was asked for (settings as JSON)
    /study/{table/COLUMN, values/NAME}  what came out, each with its unit and description

The file is written anew after every run, all or nothing, with status "incomplete" until the last one is done.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from dfmp2.errors import ResultFileError
from dfmp2.io import hdf5
from dfmp2.io.content import content_hash
from dfmp2.io.files import write_atomically
from dfmp2.io.safe_hdf5 import open_checked, read_attribute
from dfmp2.result import MP2Result

STUDY_VERSION = 1
MOST_RUNS = 500
MOST_OBJECTS = 300 * MOST_RUNS + 1000  # a result has about 200 groups and datasets
KINDS = ("interaction", "cbs", "scan")
TEXT = h5py.string_dtype()


class Value(NamedTuple):
    """A number of a study."""

    value: float
    units: str
    description: str


class Column(NamedTuple):
    """A column of its table: texts, or numbers (NaN where there is none)."""

    values: tuple[Any, ...]
    units: str
    description: str


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Several results and what was made of them.

    Attributes
    ----------
    kind : "interaction", "cbs" or "scan"
    title : one line for people
    settings : what was asked for; plain JSON values
    notes : lines for the report: formulas, citations, what failed
    values : numbers, by name
    table : columns of equal length, by name
    runs : results, by name
    complete : whether everything asked for has been tried
    version, command, created : of the program that wrote it
    """

    kind: str
    title: str
    settings: Mapping[str, Any]
    notes: tuple[str, ...]
    values: Mapping[str, Value]
    table: Mapping[str, Column]
    runs: Mapping[str, MP2Result] = field(repr=False)
    complete: bool
    version: str = ""
    command: str = ""
    created: str = ""

    @property
    def status(self) -> str:
        """complete or incomplete."""
        return "complete" if self.complete else "incomplete"


class StudyWriter:
    """Holds the runs of a study as HDF5 in memory, so that writing the file once more costs only a copy.

    Parameters
    ----------
    path : file to write
    overwrite : replace what is there; once written, the file is replaced in any case
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._path = path
        self._overwrite = overwrite
        # HDF5 takes a name for a file even in memory, and refuses one that is open.
        self._runs = h5py.File(f"runs-{uuid.uuid4().hex}.h5", "w", driver="core", backing_store=False)

    def add(self, name: str, result: MP2Result) -> None:
        """Keep a run."""
        hdf5.store(self._runs.create_group(f"runs/{name}"), result)

    def write(self, study: Study) -> None:
        """Write the runs so far with the table and values of `study`.

        Raises
        ------
        ResultFileError : the file exists and may not be replaced
        ResourceError : the disk is full or the folder cannot be written
        """
        with h5py.File(f"study-{uuid.uuid4().hex}.h5", "w", driver="core", backing_store=False) as handle:
            if "runs" in self._runs:
                self._runs.copy("runs", handle)
            _store(handle, study)
            handle.flush()
            content = bytes(handle.id.get_file_image())
        write_atomically(self._path, content, overwrite=self._overwrite)
        self._overwrite = True


def is_study(path: str | Path) -> bool:
    """Whether an HDF5 file says that it is a study; false for a file that cannot be opened."""
    try:
        if not Path(path).is_file():  # opening a pipe would wait for ever
            return False
        with h5py.File(path, "r") as handle:
            return "dfmp2_study_version" in handle.attrs
    except (OSError, RuntimeError, ValueError):  # the reader of results says what is wrong with it
        return False


def read_study(path: str | Path) -> Study:
    """Read a study with all its runs.

    Raises
    ------
    InputError : no such file
    ResultFileError : not a study, damaged, or of an unknown version
    """
    with open_checked(path, most_objects=MOST_OBJECTS) as handle:
        version = read_attribute(handle, "dfmp2_study_version")
        if version is None:
            raise ResultFileError(f"{path}: not a study (no dfmp2_study_version): dfmp2 show prints a single result")
        if not isinstance(version, int | np.integer) or int(version) != STUDY_VERSION:
            raise ResultFileError(
                f"{path}: study version {version}, this dfmp2 reads {STUDY_VERSION}: use the dfmp2 that wrote it"
            )
        kind, status = read_attribute(handle, "kind"), read_attribute(handle, "status")
        if kind not in KINDS or status not in ("complete", "incomplete"):
            raise ResultFileError(f"{path}: a study of kind {kind!r} with status {status!r}: damaged, compute it again")
        group = handle["study"]
        runs = (
            {name: hdf5.load(run, f"{path}, {name}") for name, run in handle["runs"].items()}
            if "runs" in handle
            else {}
        )
        order = [str(name) for name in group["runs"].asstr()[()]]
        return Study(
            kind=kind,
            title=group["title"].asstr()[()],
            settings=dict(json.loads(group["settings"].asstr()[()])),
            notes=tuple(str(note) for note in group["notes"].asstr()[()]),
            values={name: Value(float(item[()]), *_labels(item)) for name, item in _ordered(group, "values")},
            table={name: Column(_column(item), *_labels(item)) for name, item in _ordered(group, "table")},
            runs={name: runs[name] for name in order},
            complete=status == "complete",
            version=group["version"].asstr()[()],
            command=group["command"].asstr()[()],
            created=group["created"].asstr()[()],
        )


def verify_study(path: str | Path) -> str:
    """Check every stored hash, of the table and of each run, and return that of the table.

    Raises
    ------
    ResultFileError : one differs
    """
    with open_checked(path, most_objects=MOST_OBJECTS) as handle:
        groups = {"study": (handle["study"], read_attribute(handle, "content_sha256"))}
        for name, run in handle["runs"].items() if "runs" in handle else ():
            groups[name] = (run, read_attribute(run, "content_sha256"))
        for name, (group, stored) in groups.items():
            if content_hash(group) != stored:
                raise ResultFileError(
                    f"{path}, {name}: the content does not have its stored hash {str(stored)[:12]}...: compute it again"
                )
        return str(groups["study"][1])


def _store(handle: h5py.File, study: Study) -> None:
    handle.attrs["creator"] = "dfmp2"
    handle.attrs["creator_version"] = study.version
    handle.attrs["file_time"] = study.created
    handle.attrs["default"] = "study"
    handle.attrs["dfmp2_study_version"] = STUDY_VERSION
    group = handle.create_group("study")
    texts = {
        "title": (study.title, "what was studied"),
        "settings": (json.dumps(study.settings), "what was asked for, JSON"),
        "version": (study.version, "dfmp2 version"),
        "command": (study.command, "command line, or the Python entry point"),
        "created": (study.created, "time of writing, ISO 8601 with time zone"),
    }
    lists = {
        "notes": (study.notes, "formulas, citations, remarks"),
        "runs": (tuple(study.runs), "names of the runs, in order"),
        "value_names": (tuple(study.values), "names below values, in order"),
        "table_names": (tuple(study.table), "names below table, in order"),
    }
    for name, (text, description) in texts.items():
        _describe(group.create_dataset(name, data=_utf8(text), dtype=TEXT), "", description)
    for name, (items, description) in lists.items():
        _describe(group.create_dataset(name, data=np.array([_utf8(x) for x in items], dtype=TEXT)), "", description)
    for name, value in study.values.items():
        _describe(group.create_dataset(f"values/{name}", data=float(value.value)), value.units, value.description)
    for name, column in study.table.items():
        texts_only = all(isinstance(x, str) for x in column.values)
        data: Any = [_utf8(x) for x in column.values] if texts_only else [float(x) for x in column.values]
        dataset = group.create_dataset(f"table/{name}", data=np.array(data, dtype=TEXT if texts_only else np.float64))
        _describe(dataset, column.units, column.description)
    # Texts of a fixed length: `safe_hdf5.read_attribute` says why.
    handle.attrs["content_sha256"] = np.bytes_(content_hash(group))
    handle.attrs["kind"] = np.bytes_(study.kind)
    handle.attrs["status"] = np.bytes_(study.status)


def _describe(dataset: h5py.Dataset, units: str, description: str) -> None:
    # The reader wants units back, so they are of fixed length as well.
    dataset.attrs["units"] = np.bytes_(units.encode())
    dataset.attrs["description"] = np.bytes_(description.encode())


def _labels(dataset: h5py.Dataset) -> tuple[str, str]:
    units, description = (read_attribute(dataset, name) for name in ("units", "description"))
    return str(units), str(description)


def _ordered(group: h5py.Group, kind: str) -> list[tuple[str, h5py.Dataset]]:
    names = group["value_names" if kind == "values" else "table_names"].asstr()[()]
    return [(str(name), group[f"{kind}/{name}"]) for name in names]


def _column(dataset: h5py.Dataset) -> tuple[Any, ...]:
    if dataset.dtype.kind == "O":
        return tuple(str(text) for text in dataset.asstr()[()])
    return tuple(float(x) for x in dataset[()])


def _utf8(text: str) -> str:
    """A file name need not be UTF-8; its other bytes are written as \\udcNN."""
    return text.encode("utf-8", "backslashreplace").decode()


def plain(value: float) -> float | None:
    """A number JSON can hold."""
    return value if math.isfinite(value) else None
