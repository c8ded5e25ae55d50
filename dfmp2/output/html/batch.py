"""The page of a batch: every item with its state, energies and time, and the reasons for failures.

A batch folder holds NAME.h5 for each complete item, NAME.error.json {code, message, traceback} for
each failed one, and an index (`dfmp2.output.batch_index`), which also names the pending ones.
Nothing outside the folder is read, whatever the index says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from dfmp2.errors import EXIT_CODES, InputError, ResourceError, ResultFileError
from dfmp2.mp2.identity import METHOD, method, method_differences, with_common_basis
from dfmp2.output import hdf5
from dfmp2.output.batch_index import is_index, read_rows
from dfmp2.output.document import (
    Block,
    Code,
    Figure,
    Note,
    Section,
    SummaryTile,
    Table,
    fixed,
    without_folders,
)
from dfmp2.output.drawings.plots import Bar, bars
from dfmp2.output.html.page import Summary, render, verbatim
from dfmp2.output.reports.energies import (
    energies,
    energy_headings,
    mean_field_sign,
    without_empty_dispersion,
)
from dfmp2.output.reports.method import asked_for
from dfmp2.units import counted_text

ERROR_SUFFIX = ".error.json"
LOST = "the index calls it complete, but its result file is missing: run the batch again"
LONGEST = 1e9  # s; a longer time is an error
LARGEST_JSON = 50_000_000  # bytes
STATES = ("complete", "failed", "damaged", "running", "pending")
MOODS = {"failed": "failure", "damaged": "failure"}
LONGEST_TRACEBACK = 4000  # characters, from its end
MOST_FAILURES = 100  # listed individually
SLOWEST = 12  # items drawn
SUMMARISED = 5  # failures in the summary
LONGEST_MESSAGE = 160  # characters there


class BatchRow(NamedTuple):
    """One molecule of a batch; unknown values are None or "".

    Attributes
    ----------
    name, state : name of the item, and one of STATES
    seconds : wall time, s
    cells : formula, basis functions, energy of the mean field, E(corr), dispersion energy, E(total),
        backend and number of warnings of a complete item, as text
    sign : symbol of the energy of the mean field
    method : settings that make its energies comparable, by name
    asked : the requested method and quantities
    code, message, traceback : exit code and error of a failed item
    """

    name: str
    state: str
    seconds: float | None = None
    cells: tuple[str, ...] = ("",) * 8
    sign: str = ""
    method: Mapping[str, str] = {}
    asked: tuple[str, str] = ("", "")
    code: int | None = None
    message: str = ""
    traceback: str = ""


def is_batch(source: Path) -> bool:
    """Whether a path is the folder or the index of a batch."""
    return source.is_dir() or is_index(source.name)


def batch_page(source: Path, title: str | None) -> str:
    """The page of a batch, from its folder or its index.

    Raises
    ------
    InputError, ResultFileError : there is no such folder, or it holds no batch
    ResourceError : the folder cannot be read
    """
    items, remarks = _read(source)
    folder = (source if source.is_dir() else source.parent).resolve().name
    done = [item for item in items if item.state == "complete"]
    failed = [item for item in items if item.state in ("failed", "damaged")]
    anchors = {
        item.name: f"failure-{place}" for place, item in enumerate(failed[:MOST_FAILURES], start=1)
    }
    sections = [Section("overview", "Overview", [_all_items(items, anchors)])]
    blocks: list[Block] = [*_longest(done), *_remarks(items, done, remarks)]
    if failed:
        sections += _failures(failed, anchors)
        blocks += [_by_code(failed), _first_failures(failed)]
    subtitle = f"{counted_text(len(items), 'item')} of {folder}"
    heading = verbatim(title or f"Batch: {folder}")
    summary = Summary(heading, subtitle, _tiles(items, done), blocks)
    return render(summary, sections, f"the folder {folder}")


def _tiles(items: Sequence[BatchRow], done: Sequence[BatchRow]) -> list[SummaryTile]:
    """The states of the items, their method, and the number of warnings."""
    spent = sum(item.seconds or 0.0 for item in done)
    tiles = [
        SummaryTile("complete", f"{len(done)} of {len(items)}", f"wall time {spent:.1f} s in all")
    ]
    counts = Counter(item.state for item in items)
    for state in STATES[1:]:
        if counts[state]:
            tiles.append(SummaryTile(state, counts[state], "", MOODS.get(state, "")))
    methods = list(dict.fromkeys(item.asked for item in done))
    if len(methods) == 1:
        tiles.append(SummaryTile("method", *methods[0]))
    elif methods:
        levels = "; ".join(level for level, _ in methods[:3])
        tiles.append(SummaryTile("methods", len(methods), levels))
    warned = sum(int(item.cells[-1]) for item in done)
    mood = "warning" if warned else ""
    return [*tiles, SummaryTile("warnings", warned, "of complete items", mood)]


def _remarks(
    items: Sequence[BatchRow], done: Sequence[BatchRow], remarks: Sequence[str]
) -> list[Block]:
    """Remarks on the folder, the method of the complete items, and whether all are complete."""
    blocks: list[Block] = [Note("warning", text) for text in remarks]
    methods = with_common_basis(item.method for item in done)
    different = method_differences(
        {item.name: its for item, its in zip(done, methods, strict=True)}
    )
    if different:
        text = (
            "The items were computed with different methods, so their energies cannot be "
            f"compared: {different}"
        )
        blocks.append(Note("warning", text))
    elif done:
        known = {name: methods[0][name] for name in METHOD if methods[0][name] != "default"}
        if "solvent" not in known:
            known.pop("solvent_model", None)
        chosen = (f"{name.replace('_', ' ')} {value}" for name, value in known.items())
        blocks.append(f"All complete items: {', '.join(chosen)}.")
    if len(done) < len(items):
        return blocks
    if len(items) == 1:
        return [*blocks, Note("ok", "The only item is complete.")]
    return [*blocks, Note("ok", f"All {len(items)} items are complete.")]


def _all_items(items: Sequence[BatchRow], anchors: Mapping[str, str]) -> Table:
    """A row for each item, which links to its failure."""
    rows = []
    for item in items:
        state = item.state
        if item.code is not None:
            state = f"{item.state} ({item.code})"
        name = (item.name, anchors.get(item.name, ""))
        rows.append((name, state, *item.cells[:6], fixed(item.seconds), *item.cells[6:]))
    energy = energy_headings(item.sign for item in items if item.sign)
    heads = ("item", "state", "formula", "#functions", *energy, "#time / s", "backend", "#warnings")
    table = Table("All items; the headings sort", heads, rows, sortable=True)
    return without_empty_dispersion(table)


def _longest(done: Sequence[BatchRow]) -> list[Block]:
    """A drawing of the items that took longest, if there are two."""
    slowest = sorted(done, key=lambda item: -(item.seconds or 0.0))[:SLOWEST]
    if len(slowest) < 2:
        return []
    drawn = [Bar(i.name, (i.seconds or 0.0,), f"{fixed(i.seconds or 0.0)} s") for i in slowest]
    caption = f"Wall time of the {len(slowest)} longest items."
    return [Figure(partial(bars, "Longest items", drawn), caption)]


def _by_code(failed: Sequence[BatchRow]) -> Table:
    """The number of failed items by exit code."""
    codes = sorted(
        Counter(item.code for item in failed).items(), key=lambda one: (-one[1], one[0] or 0)
    )
    rows = [
        ("none" if c is None else c, EXIT_CODES.get(c or 0, "unknown"), count) for c, count in codes
    ]
    return Table("Failures by exit code", ("exit code", "meaning", "#items"), rows)


def _first_failures(failed: Sequence[BatchRow]) -> Table:
    """The first failed items with their shortened messages."""
    rows = [
        (item.name, shorten(item.message or "no message was written", LONGEST_MESSAGE))
        for item in failed[:SUMMARISED]
    ]
    more = ""
    if len(failed) > SUMMARISED:
        more = f", the first {SUMMARISED} of {len(failed)}"
    return Table(f"Failed items{more}", ("item", "message"), rows)


def _failures(failed: Sequence[BatchRow], anchors: Mapping[str, str]) -> list[Section]:
    blocks: list[Block] = [_by_code(failed)]
    if len(failed) > MOST_FAILURES:
        blocks.append(
            Note("info", f"The first {MOST_FAILURES} of {len(failed)} failures are shown below.")
        )
    sections = [Section("failures", "Failures", blocks)]
    for item in failed[:MOST_FAILURES]:
        title = f"{item.name}: {item.state}"
        if item.code is not None:
            title += f", exit code {item.code} ({EXIT_CODES.get(item.code, 'unknown')})"
        messages: list[Block] = [Note("failure", item.message or "no message was written")]
        if item.traceback:
            end = without_folders(item.traceback[-LONGEST_TRACEBACK:])
            messages.append(Code("Traceback, its end", end, folded=True))
        sections.append(Section(anchors[item.name], title, messages, level=3))
    return sections


# --- files ----------------------------------------------------------------------------------------


def _read(source: Path) -> tuple[list[BatchRow], list[str]]:
    """Items of a batch, and remarks on what could not be read."""
    folder = source if source.is_dir() else source.parent
    if not source.exists():
        raise InputError("no such file", file=str(source))
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise ResourceError(
            f"{folder} cannot be read ({error.strerror}): check the permissions"
        ) from error
    files = [path for path in found if path.is_file() and not path.is_symlink()]
    links = [path.name for path in found if path.is_symlink()]
    remarks = []
    if links:
        remarks.append(f"not followed, because they are links: {', '.join(links[:5])}")
    items = {path.stem: _complete(path) for path in files if path.suffix == ".h5"}
    for path in files:
        if not path.name.endswith(ERROR_SUFFIX):
            continue
        name = path.name.removesuffix(ERROR_SUFFIX)
        if name in items and items[name].state == "complete":
            remarks.append(f"{name} has a result and an error file: the result counts")
        else:
            items[name] = _failed(name, path)
    rows = read_rows(folder)
    if not rows and any(is_index(path.name) for path in files):
        remarks.append("the index holds no list of items: only the files in the folder are shown")
    for listed in map(_listed, rows.values()):
        known = items.setdefault(listed.name, listed)
        if known.seconds is None:
            items[listed.name] = known._replace(seconds=listed.seconds)
    if not items:
        raise ResultFileError(
            f"{folder}: no results (.h5), no *{ERROR_SUFFIX} and no items in an index: name the "
            "output folder of a batch"
        )
    return [items[name] for name in sorted(items)], remarks


def _complete(path: Path) -> BatchRow:
    try:
        result = hdf5.read(path)
    except (InputError, ResultFileError) as error:
        return BatchRow(path.stem, "damaged", code=error.exit_code, message=str(error))
    shown = (f"{result.backend}, {result.precision}", str(len(result.diagnostics.warnings)))
    cells = (result.molecule.formula, str(result.sizes.nao), *energies(result), *shown)
    return BatchRow(
        name=path.stem,
        state="complete",
        seconds=result.timings.total,
        cells=cells,
        sign=mean_field_sign(result),
        method=method(result),
        asked=asked_for(result),
    )


def _failed(name: str, path: Path) -> BatchRow:
    found = _json(path)
    if not isinstance(found, dict):
        return BatchRow(
            name, "failed", message=f"{path.name} cannot be read as JSON: see the log of the batch"
        )
    code, message, traceback = (found.get(key) for key in ("code", "message", "traceback"))
    known = code if type(code) is int else None
    return BatchRow(
        name, "failed", code=known, message=str(message or ""), traceback=str(traceback or "")
    )


def _listed(row: Mapping[str, Any]) -> BatchRow:
    """An item of the index; one listed as complete is lost if its file is missing."""
    state, seconds = row.get("status"), row.get("seconds")
    spent = None
    if isinstance(seconds, int | float) and 0 <= seconds < LONGEST:
        spent = float(seconds)
    if state == "complete":
        return BatchRow(row["name"], "damaged", spent, message=LOST)
    return BatchRow(row["name"], state if state in STATES else "pending", spent)


def _json(path: Path) -> Any:
    """The value in a JSON file, None if it is not valid JSON."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            return None
        return json.loads(path.read_text(encoding="utf-8", errors="backslashreplace"))
    except (OSError, ValueError, RecursionError):
        return None
