"""The page of files: results, a study, or a batch. The one module of the report that reads them.

A batch's folder holds NAME.h5 for complete items, NAME.error.json {code, message, traceback} for failed ones, and
batch.json, whose `items` also name those that are pending. Nothing outside the folder is read, whatever batch.json
says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.errors import InputError, ResourceError, ResultFileError
from dfmp2.mp2.result import MP2Result
from dfmp2.output import hdf5
from dfmp2.output.html.result import energies, level_name
from dfmp2.output.html.several import STATES, Item, batch_page, comparison_page, result_page, study_page
from dfmp2.output.series import Entry, method
from dfmp2.output.study import is_study, read_study, verify_study

ERROR_SUFFIX = ".error.json"
INDEX = "batch.json"
LOST = f"{INDEX} calls it complete, but its result file is missing: run the batch again"
LONGEST = 1e9  # s; what is longer is no time
LARGEST_JSON = 50_000_000  # bytes
MOST_RESULTS = 2000  # compared on one page


def page(sources: Sequence[Path], title: str | None) -> str:
    """The page of result files, of one study, or of one batch.

    Raises
    ------
    InputError, ResultFileError, ResourceError : one of them cannot be read
    """
    if is_batch(sources[0]):
        items, remarks = read_batch(sources[0])
        folder = sources[0] if sources[0].is_dir() else sources[0].parent
        return batch_page(items, remarks, folder.resolve().name, title)
    if len(sources) == 1 and is_study(sources[0]):
        content, study = verify_study(sources[0]), read_study(sources[0])
        runs = [Entry(name, _slim(result), f"{content} (table)") for name, result in study.runs.items()]
        return study_page(study, runs, title, sources[0].name)
    entries = read_entries(sources)
    return result_page(entries[0], title) if len(entries) == 1 else comparison_page(entries, title)


def is_batch(source: Path) -> bool:
    """Whether a path names a batch: its folder or its batch.json."""
    return source.is_dir() or source.name == INDEX


def batch_files(source: Path) -> list[Path]:
    """The files of a batch that a report reads, which it must not overwrite."""
    folder = source if source.is_dir() else source.parent
    return [*sorted(folder.glob("*.h5")), *sorted(folder.glob(f"*{ERROR_SUFFIX}")), folder / INDEX]


def read_entries(paths: Sequence[Path]) -> list[Entry]:
    """Results with their names on the page.

    Raises
    ------
    InputError, ResultFileError : a file is missing, damaged, of another version, or given twice
    """
    if len(paths) > MOST_RESULTS:
        raise InputError(f"{len(paths)} results were given, at most {MOST_RESULTS} fit on a page: name fewer")
    seen: dict[tuple[int, int], Path] = {}
    entries = []
    names = [path.name for path in paths]
    for path in paths:
        if len(paths) > 1 and is_study(path):
            raise InputError(f"{path} is a study with runs of its own, which is shown alone: name it alone")
        content = hdf5.verify(path)
        status = path.stat()
        other = seen.setdefault((status.st_dev, status.st_ino), path)
        if other is not path:
            raise InputError(f"{path} is the same file as {other}: name every result once")
        name = path.name if names.count(path.name) == 1 else str(path)
        entries.append(Entry(name, _slim(hdf5.read(path)), content))
    return entries


def read_batch(source: Path) -> tuple[list[Item], list[str]]:
    """Items of a batch, and remarks on what could not be read.

    Raises
    ------
    InputError, ResultFileError : there is no such folder, or nothing of a batch in it
    ResourceError : the folder may not be read
    """
    folder = source if source.is_dir() else source.parent
    if not source.exists():
        raise InputError("no such file", file=str(source))
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise ResourceError(f"{folder} cannot be read ({error.strerror}): check the permissions") from error
    files = [path for path in found if path.is_file() and not path.is_symlink()]
    links = [path.name for path in found if path.is_symlink()]
    remarks = [f"not followed, because they are links: {', '.join(links[:5])}"] if links else []
    items = {path.name.removesuffix(".h5"): _complete(path) for path in files if path.suffix == ".h5"}
    for path in files:
        if path.name.endswith(ERROR_SUFFIX):
            name = path.name.removesuffix(ERROR_SUFFIX)
            if name in items and items[name].state == "complete":
                remarks.append(f"{name} has a result and an error file: the result counts")
            else:
                items[name] = _failed(name, path)
    index = folder / INDEX
    if index in files:
        for name, state, seconds in _listed(index, remarks):
            known = items.get(name)
            if known is None:
                items[name] = Item(name, "damaged" if state == "complete" else state, message=LOST, seconds=seconds)
            elif known.seconds is None:
                items[name] = known._replace(seconds=seconds)
    elif source.name == INDEX:
        raise ResultFileError(f"{source}: not a regular file: name the folder of a batch, or its {INDEX}")
    if not items:
        raise ResultFileError(
            f"{folder}: no results (.h5), no *{ERROR_SUFFIX} and no items in {INDEX}: name the output folder of a batch"
        )
    return [items[name] for name in sorted(items)], remarks


def _slim(result: MP2Result) -> MP2Result:
    """Without the orbital coefficients, which no page shows and many of which would not fit into memory."""
    none = np.empty((result.reference.nspin, 0, 0))
    return replace(result, reference=replace(result.reference, mo_coeff=none), mole_json="")


def _complete(path: Path) -> Item:
    name = path.name.removesuffix(".h5")
    try:
        hdf5.verify(path)
        result = hdf5.read(path)
    except (InputError, ResultFileError) as error:
        return Item(name, "damaged", code=error.exit_code, message=str(error))
    backend, warnings = f"{result.backend}, {result.precision}", str(len(result.diagnostics.warnings))
    cells = (result.molecule.formula, str(result.sizes.nao), *energies(result), backend, warnings)
    return Item(name, "complete", result.timings.total, cells, method(result), level_name(result))


def _failed(name: str, path: Path) -> Item:
    found = _json(path)
    if not isinstance(found, dict):
        return Item(name, "failed", message=f"{path.name} cannot be read as JSON: see the log of the batch")
    code = found.get("code")
    return Item(
        name,
        "failed",
        code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        message=str(found.get("message") or ""),
        traceback=str(found.get("traceback") or ""),
    )


def _listed(index: Path, remarks: list[str]) -> list[tuple[str, str, float | None]]:
    """Name, state and seconds of the items in batch.json."""
    found = _json(index)
    rows = found.get("items") if isinstance(found, dict) else None
    if not isinstance(rows, list):
        remarks.append(f"{INDEX} holds no list of items: only the files in the folder are shown")
        return []
    listed = []
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("name"), str):
            state, seconds = row.get("status"), row.get("seconds")
            spent = float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < LONGEST else None
            listed.append((row["name"], state if state in STATES else "pending", spent))
    return listed


def _json(path: Path) -> Any:
    """The value in a JSON file, None when it is none."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            return None
        return json.loads(path.read_text(encoding="utf-8", errors="backslashreplace"))
    except (OSError, ValueError, RecursionError):
        return None
