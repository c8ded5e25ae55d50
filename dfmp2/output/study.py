"""Files of several calculations: a study, which holds whole results with the table and the numbers
derived from them, or a table alone.

    /runs/NAME/...                      results, each laid out as a result file (`dfmp2.output.hdf5`), with its own hash
    /study/{title, settings, notes}     what was requested (settings as JSON)
    /study/{table/COLUMN, values/NAME, arrays/NAME}  results, each with its unit and description

The file is rewritten atomically after every run, with status "incomplete" until the last one is
done. A table (`write_table`) is a group with one dataset per column.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import ResultFileError
from dfmp2.host.deferred import presentation
from dfmp2.host.files import write_atomically
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.composite import Part, combine
from dfmp2.mp2.error_budget import ErrorBudget
from dfmp2.mp2.result import MP2Result
from dfmp2.output import hdf5, study_budget
from dfmp2.output.hdf5_datasets import (
    Dataset,
    Groups,
    attributes_of,
    by_group,
    file_bytes,
    hash_of,
    image,
    open_checked,
    printed,
    read_attribute,
    read_contents,
    require_hash,
    storable,
    stored,
    stored_hash,
    write_items,
)
from dfmp2.units import counted_text

STUDY_VERSION = 1
TABLE_VERSION = 1
MOST_RUNS = 500
MOST_OBJECTS = 300 * MOST_RUNS + 1000  # a result has about 200 groups and datasets
FOREMOST = (  # the main result of a study, for one line
    "cp_corrected_interaction_energy_kj_per_mol",
    "composite_total_energy",
    "reaction_gibbs_energy_kj_per_mol",
    "reaction_energy_kj_per_mol",
    "cbs_total_energy",
    "minimum_quartic",
    "minimum_parabola",
    "lowest_energy",
    "barrier_forward_kj_per_mol",
    "optimized_total_energy",
    "zero_point_energy",
)
FIGURE = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
KINDS = (
    "interaction",
    "cbs",
    "scan",
    "optimization",
    "frequencies",
    "irc",
    "thermochemistry",
    "reaction",
)


class Column(NamedTuple):
    """A column of texts or numbers (None is stored as NaN), with unit and description."""

    values: Sequence[Any]
    units: str
    description: str


class Warned(NamedTuple):
    """A warning of one or more runs: the text of the first run, the names of the runs (empty for
    the study itself), and whether the figures differ in the others."""

    text: str
    runs: tuple[str, ...]
    differs: bool = False


def run_warnings(runs: Mapping[str, MP2Result]) -> list[Warned]:
    """The warnings of named runs; runs whose warnings differ only in figures, such as the points of
    a scan, are grouped."""
    texts: dict[str, list[str]] = {}
    names: dict[str, list[str]] = {}
    for name, result in runs.items():
        for text in result.diagnostics.warnings:
            pattern = FIGURE.sub("#", text)
            texts.setdefault(pattern, []).append(text)
            warned = names.setdefault(pattern, [])
            if name not in warned:
                warned.append(name)
    return [
        Warned(said[0], tuple(names[pattern]), differs=len(set(said)) > 1)
        for pattern, said in texts.items()
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Several results and the numbers derived from them.

    Attributes
    ----------
    kind : one of KINDS
    title : one line for people
    settings : what was requested, as plain JSON values
    notes : lines for the report: formulas, citations, what failed
    values : numbers, by name
    table : columns of equal length, by name
    runs : results, by name
    complete : whether everything requested has been tried
    version, command, created : of the program that wrote it
    arrays : numbers with more than one dimension, by name
    warnings : those that are not in any of its runs
    """

    kind: str
    title: str
    settings: Mapping[str, Any]
    notes: tuple[str, ...]
    values: Mapping[str, Dataset]
    table: Mapping[str, Column]
    runs: Mapping[str, MP2Result] = field(repr=False)
    complete: bool
    version: str = ""
    command: str = ""
    created: str = ""
    arrays: Mapping[str, Dataset] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_dataframe(self) -> Any:
        """Its table, or its values if it has no table, as a pandas DataFrame; units are in
        `attrs["units"]`.

        Raises
        ------
        InputError : pandas is not installed
        """
        return presentation().study_frame(self)

    def plot(self, axes: Any = None) -> Any:
        """The matplotlib Axes of a scan, a spectrum of frequencies, or the course of an
        optimisation.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            The Axes to draw on; None for a new figure.

        Raises
        ------
        ImportError : matplotlib is not installed
        InputError : the study is of another kind, or has nothing to draw yet
        """
        return presentation().study_plot(self, axes)

    def _repr_html_(self) -> str:
        return str(presentation().study_html(self))

    def __repr__(self) -> str:
        said = next(
            (
                f", {name} = {self.values[name].value:.10g}"
                for name in FOREMOST
                if name in self.values
            ),
            "",
        )
        return f"Study({self.title}: {self.status}, {counted_text(len(self.runs), 'run')}{said})"

    def __str__(self) -> str:
        return str(presentation().study_report(self)).rstrip("\n")

    @property
    def all_warnings(self) -> list[Warned]:
        """Its own warnings and those of its runs, `run_warnings`."""
        return [*(Warned(text, ()) for text in self.warnings), *run_warnings(self.runs)]

    @property
    def results(self) -> dict[str, MP2Result]:
        """Its results by name: its runs, or the combined result of the runs of one molecule at a
        composite level."""
        parts = [Part(*part) for part in self.settings.get("parts", ())]
        if not parts:
            return dict(self.runs)
        endings = [part.name if self.kind == "cbs" else f"-{part.name}" for part in parts]
        found: dict[str, MP2Result] = {}
        for name in self.runs:
            if not name.endswith(endings[0]):
                continue
            whole = name.removesuffix(endings[0])
            names = [f"{whole}{ending}" for ending in endings]
            if all(one in self.runs for one in names):
                runs = [self.runs[one] for one in names]
                found[whole] = combine(list(zip(parts, runs, strict=True)))
        return found

    @property
    def path(self) -> dict[str, MP2Result]:
        """The results that correspond to rows of its table, by name: the steps of an optimisation,
        the kept points of a relaxed scan, otherwise all."""
        results = self.results
        names = self.settings.get("path")
        if names is None and self.kind == "optimization":  # of an earlier version
            names = [name for name in results if name.startswith("step-")]
        if names is None:
            return results
        return {name: results[name] for name in names}

    @property
    def coordinates(self) -> list[str]:
        """Names of the columns that hold the coordinates of a scan, one or two."""
        if "coordinates" in self.settings:
            return list(self.settings["coordinates"])
        return [self.settings["coordinate"]]

    @property
    def last(self) -> Molecule:
        """The geometry of the last run: the final geometry of an optimisation."""
        return list(self.path.values())[-1].molecule

    @property
    def status(self) -> str:
        """Either "complete" or "incomplete"."""
        return "complete" if self.complete else "incomplete"

    @property
    def error_budget(self) -> ErrorBudget | None:
        """The error budget of its energies; None if there are none, or none yet."""
        return study_budget.budget_of_study(self)

    @property
    def uncorrected_error_budget(self) -> ErrorBudget | None:
        """The error budget of an interaction energy without counterpoise correction; None for other
        studies."""
        return study_budget.uncorrected_budget_of_study(self)


class StudyWriter:
    """Holds the file of a study in memory, so that rewriting it costs only a copy.

    Parameters
    ----------
    path : file to write
    overwrite : replace an existing file; the file is always replaced after the first write
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._path = path
        self._overwrite = overwrite
        self._file = h5py.File(
            f"runs-{uuid.uuid4().hex}.h5", "w", driver="core", backing_store=False
        )
        self._waiting: dict[str, tuple[MP2Result, bool]] = {}

    def add(self, name: str, result: MP2Result, *, packed: bool = False) -> None:
        """Put a run into the next `write`; packed, like a file of a batch, it takes a third of the
        time."""
        self._waiting[name] = (result, packed)

    def replace(self, name: str, result: MP2Result) -> None:
        """Replace the run of that name by its reduced form, packed."""
        self._waiting[name] = (result, True)

    def write(self, study: Study) -> None:
        """Write the runs so far with the table and values of `study`.

        Raises
        ------
        ResultFileError : the file exists and may not be replaced
        ResourceError : the disk is full or the folder cannot be written
        """
        for name, (result, packed) in self._waiting.items():
            place = f"runs/{name}"
            if place in self._file:
                del self._file[place]
            hdf5.store(self._file.create_group(place), result, packed=packed)
        self._waiting.clear()
        if "study" in self._file:
            del self._file["study"]
        _store(self._file, study)
        write_atomically(self._path, image(self._file), overwrite=self._overwrite)
        self._overwrite = True


def is_study(path: str | Path) -> bool:
    """Whether an HDF5 file is marked as a study; false if it cannot be opened."""
    return "dfmp2_study_version" in attributes_of(path)


def is_unfinished(path: str | Path) -> bool:
    """Whether an HDF5 file is marked as a study with unfinished runs; false if it is damaged."""
    if not is_study(path):
        return False
    try:
        with open_checked(path) as handle:
            return bool(read_attribute(handle, "status") == "incomplete")
    except ResultFileError:
        return False


def read_study(path: str | Path, *, verify: bool = True) -> Study:
    """The study stored in a file, with all its runs.

    Parameters
    ----------
    path : str or Path
        The file.
    verify : bool
        Check the stored hashes of the table and of every run against the content.

    Raises
    ------
    InputError : no such file
    ResultFileError : not a study, damaged, of an unknown version, or changed since it was written
    """
    with open_checked(path) as handle:
        return _load(handle, path, verify=verify)


def read_verified_study(path: str | Path) -> tuple[Study, str]:
    """The study stored in a file, and the content hash of its table, which is checked as those of
    its runs are; errors are those of `read_study`."""
    with open_checked(path) as handle:
        return _load(handle, path, verify=True), stored_hash(handle)


def _load(handle: h5py.File, path: str | Path, *, verify: bool) -> Study:
    """The study in an open file; parameters and errors as in `read_study`."""
    version = read_attribute(handle, "dfmp2_study_version")
    if version is None:
        raise ResultFileError(
            f"{path}: not a study (no dfmp2_study_version): dfmp2 show prints a single result"
        )
    if not isinstance(version, int | np.integer) or int(version) != STUDY_VERSION:
        raise ResultFileError(
            f"{path}: study version {version}, this dfmp2 reads {STUDY_VERSION}: use the dfmp2 "
            "that wrote it"
        )
    kind = read_attribute(handle, "kind")
    status = read_attribute(handle, "status")
    if kind not in KINDS or status not in ("complete", "incomplete"):
        raise ResultFileError(
            f"{path}: a study of kind {kind!r} with status {status!r}: damaged, compute it again"
        )
    groups = _contents_of(handle)
    contents = groups["study"]
    if verify:
        require_hash(contents, f"{path}, study", stored_hash(handle))
    by_name = by_group(contents)
    given = {"array_names": (), "warnings": (), **stored(by_name, "")}
    values, table, arrays = (
        _with_units(handle, by_name, group, given[names])
        for group, names in (
            ("values", "value_names"),
            ("table", "table_names"),
            ("arrays", "array_names"),
        )
    )
    return Study(
        kind=kind,
        title=given["title"],
        settings=dict(json.loads(given["settings"])),
        notes=tuple(given["notes"]),
        values={name: item._replace(value=float(item.value)) for name, item in values.items()},
        table={name: Column(tuple(item.value.tolist()), *item[1:]) for name, item in table.items()},
        runs={
            name: hdf5.load_group(
                handle[f"runs/{name}"],
                f"{path}, {name}",
                verify=verify,
                contents=groups[f"runs/{name}"],
            )
            for name in given["runs"]
        },
        complete=status == "complete",
        arrays=arrays,
        warnings=tuple(given["warnings"]),
        **{name: given[name] for name in ("version", "command", "created")},
    )


def _contents_of(handle: h5py.File) -> dict[str, dict[str, NDArray[Any]]]:
    """The datasets of the study and of each run by the path of its group, after checking every
    object in the file."""
    groups: dict[str, dict[str, NDArray[Any]]] = {}
    for path, value in read_contents(handle, most_objects=MOST_OBJECTS).items():
        depth = 2 if path.startswith("runs/") else 1
        *group, name = path.split("/", depth)
        groups.setdefault("/".join(group), {})[name] = value
    return groups


def write_table(
    path: Path,
    name: str,
    columns: Mapping[str, Column],
    attributes: Mapping[str, str],
    *,
    overwrite: bool,
) -> None:
    """Write `columns` as the group `name`; a row has the same index in every column.

    Parameters
    ----------
    attributes : texts that apply to the whole table

    Raises
    ------
    ResultFileError : the file exists and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """

    def fill(handle: h5py.File) -> None:
        group = handle.create_group(name)
        group.attrs.update(attributes)
        write_items(group, _column_items(columns), storable)
        handle.attrs.update(
            {
                "creator": "dfmp2",
                "file_time": datetime.now(UTC).isoformat(timespec="seconds"),
                "default": name,
                "dfmp2_table_version": TABLE_VERSION,
                "status": "complete",
            }
        )

    write_atomically(path, file_bytes(fill), overwrite=overwrite)


def _store(handle: h5py.File, study: Study) -> None:
    items = {
        "title": Dataset(study.title, "", "what was studied"),
        "settings": Dataset(json.dumps(study.settings), "", "what was asked for, JSON"),
        "version": Dataset(study.version, "", "dfmp2 version"),
        "command": Dataset(study.command, "", "command line, or the Python entry point"),
        "created": Dataset(study.created, "", "time of writing, ISO 8601 with time zone"),
        "notes": Dataset(tuple(study.notes), "", "formulas, citations, remarks"),
        "runs": Dataset(tuple(study.runs), "", "names of the runs, in order"),
        "value_names": Dataset(tuple(study.values), "", "names below values, in order"),
        "table_names": Dataset(tuple(study.table), "", "names below table, in order"),
        **{
            f"values/{name}": item._replace(value=float(item.value))
            for name, item in study.values.items()
        },
        **{f"table/{name}": item for name, item in _column_items(study.table).items()},
    }
    if study.warnings:
        items["warnings"] = Dataset(study.warnings, "", "warnings that concern no single run")
    if study.arrays:
        items["array_names"] = Dataset(tuple(study.arrays), "", "names below arrays, in order")
        items |= {f"arrays/{name}": item for name, item in study.arrays.items()}
    group = handle.create_group("study")
    # The reader needs the units; `read_attribute` says why their length is fixed.
    stored_items = write_items(group, items, storable, label=lambda text: np.bytes_(printed(text)))
    handle.attrs.update(
        {
            "creator": "dfmp2",
            "creator_version": study.version,
            "file_time": study.created,
            "default": "study",
            "dfmp2_study_version": STUDY_VERSION,
            "content_sha256": np.bytes_(hash_of(stored_items)),
            "kind": np.bytes_(study.kind),
            "status": np.bytes_(study.status),
        }
    )


def _with_units(
    handle: h5py.File, groups: Groups, group: str, names: Sequence[str]
) -> dict[str, Dataset]:
    """Values of a group of the study that were read already, with their units and descriptions."""
    if len(names) == 0:
        return {}
    values = stored(groups, group)
    found = {}
    for name in names:
        dataset = handle[f"study/{group}/{name}"]
        units, description = (
            str(read_attribute(dataset, text)) for text in ("units", "description")
        )
        found[str(name)] = Dataset(values[name], units, description)
    return found


def _column_items(columns: Mapping[str, Column]) -> dict[str, Dataset]:
    """A dataset for each column."""
    return {name: Dataset(_values(column.values), *column[1:]) for name, column in columns.items()}


def _values(values: Sequence[Any]) -> Any:
    if all(isinstance(value, str) for value in values):
        return tuple(values)
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
