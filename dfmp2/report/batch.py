"""A batch at a glance: every item with its state, energies and time, and why the failed ones failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dfmp2.batch.collection import differences
from dfmp2.report.numbers import energy_cell, seconds_cell
from dfmp2.report.page import Block, Cell, Code, Figure, Note, Page, Section, Table, Text, cells, columns
from dfmp2.report.plot import Bar, bars

# What the exit codes of the command line mean (`dfmp2.errors`).
MEANING = {
    1: "fault in dfmp2",
    2: "command line",
    3: "input or result file",
    4: "SCF did not converge",
    5: "numerical guard",
    6: "backend",
    7: "memory, disk or permissions",
    8: "comparison failed",
    75: "interrupted, can be resumed",
    130: "stopped by Ctrl-C",
}
ORDER = ("complete", "failed", "damaged", "running", "pending")
LONGEST_TRACEBACK = 4000  # characters, from its end
MOST_FAILURES = 100  # shown one by one


@dataclass(frozen=True, slots=True)
class Item:
    """One molecule of a batch; what is not known is None or "".

    Attributes
    ----------
    name, state : item and one of ORDER
    formula, backend : of a complete result
    method : what makes its energies comparable, by name; level : the same for people
    scf, correlation, total : energies, Eh
    seconds : wall time, s
    functions : basis functions
    warnings : number of warnings
    code : exit code of a failed item
    message, traceback : of a failed item
    """

    name: str
    state: str
    formula: str = ""
    method: Mapping[str, str] = field(default_factory=dict)
    level: str = ""
    backend: str = ""
    scf: float | None = None
    correlation: float | None = None
    total: float | None = None
    seconds: float | None = None
    functions: int | None = None
    warnings: int = 0
    code: int | None = None
    message: str = ""
    traceback: str = ""


def batch_page(items: Sequence[Item], title: str, source: str, footer: str, remarks: Sequence[str] = ()) -> Page:
    """The overview of a batch.

    Parameters
    ----------
    source : the folder it was read from
    remarks : what a reader of the folder had to say
    """
    counts = Counter(item.state for item in items)
    done = [item for item in items if item.state == "complete"]
    failed = [item for item in items if item.state in ("failed", "damaged")]
    spent = sum(item.seconds or 0.0 for item in done)
    states = [state for state in ORDER if counts[state]]
    headline = (
        ("items", str(len(items))),
        *((state, str(counts[state])) for state in states),
        ("wall time of all complete items", f"{spent:.1f} s"),
    )
    sections = [
        Section("overview", "Overview", (*_remarks(items, remarks), *_bars(states, counts), _table(items))),
        *([Section("failures", "Failures", _failures(failed)), *_failure_sections(items)] if failed else []),
    ]
    slowest = sorted(done, key=lambda item: -(item.seconds or 0.0))[:12]
    if len(slowest) > 1:
        drawing = bars(
            "Longest items",
            [Bar(_short(item.name), item.seconds or 0.0, f"{item.seconds or 0.0:.2f} s") for item in slowest],
        )
        caption = f"Wall time of the {len(slowest)} longest items."
        sections.append(Section("time", "Where the time went", (Figure(drawing, caption),)))
    return Page(title, f"{len(items)} items of {source}", headline, tuple(sections), footer)


def _remarks(items: Sequence[Item], remarks: Sequence[str]) -> list[Block]:
    blocks: list[Block] = [Note("warning", text) for text in remarks]
    done = [item for item in items if item.state == "complete"]
    different = differences({item.name: item.method for item in done})
    if different:
        said = "The items were computed with different methods, so their energies cannot be compared"
        blocks.append(Note("warning", f"{said}: {different}"))
    elif done:
        blocks.append(Text(f"All complete items: {done[0].level}."))
    if items and all(item.state == "complete" for item in items):
        blocks.append(Note("ok", f"All {len(items)} items are complete."))
    return blocks


def _bars(states: Sequence[str], counts: Counter[str]) -> tuple[Block, ...]:
    if len(states) < 2:
        return ()
    drawing = bars("Items by state", [Bar(state, counts[state], str(counts[state])) for state in states])
    return (Figure(drawing, "Items by state."),)


def _table(items: Sequence[Item]) -> Table:
    numbers = {id(item): place for place, item in enumerate(_shown(items), start=1)}
    rows = tuple(
        cells(
            Cell(item.name, target=f"failure-{numbers[id(item)]}" if id(item) in numbers else ""),
            item.state if item.code is None else f"{item.state} ({item.code})",
            item.formula,
            Cell("") if item.functions is None else Cell(str(item.functions), item.functions),
            energy_cell(item.scf),
            energy_cell(item.correlation),
            energy_cell(item.total),
            seconds_cell(item.seconds),
            item.backend,
            Cell(str(item.warnings)) if item.state == "complete" else Cell(""),
        )
        for item in items
    )
    head = ("item", "state (exit code)", "formula", "#functions", "#E(HF) / Eh", "#E(corr) / Eh", "#E(MP2) / Eh")
    caption = "All items; the headings sort" if len(rows) > 1 else "The item"
    return Table(caption, columns(*head, "#time / s", "backend", "#warnings"), rows, sortable=True)


def _shown(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if item.state in ("failed", "damaged")][:MOST_FAILURES]


def _failures(failed: Sequence[Item]) -> tuple[Block, ...]:
    by_code = Counter(item.code for item in failed)
    rows = tuple(
        cells("none" if code is None else Cell(str(code), code), MEANING.get(code or 0, "unknown"), Cell(str(count)))
        for code, count in sorted(by_code.items(), key=lambda one: (-one[1], one[0] or 0))
    )
    blocks: list[Block] = [Table("Failures by exit code", columns("exit code", "meaning", "#items"), rows)]
    if len(failed) > MOST_FAILURES:
        blocks.append(Note("info", f"The first {MOST_FAILURES} of {len(failed)} failures are shown below."))
    return tuple(blocks)


def _failure_sections(items: Sequence[Item]) -> tuple[Section, ...]:
    """One section per failed item: message and traceback."""
    found = []
    for place, item in enumerate(_shown(items), start=1):
        code = "" if item.code is None else f", exit code {item.code} ({MEANING.get(item.code, 'unknown')})"
        blocks: list[Block] = [Note("failure", item.message or "no message was written")]
        if item.traceback:
            left_out = len(item.traceback) - LONGEST_TRACEBACK
            caption = f"Traceback{f', the last {LONGEST_TRACEBACK} characters' if left_out > 0 else ''}"
            blocks.append(Code(caption, item.traceback[-LONGEST_TRACEBACK:], folded=True))
        found.append(Section(f"failure-{place}", f"{item.name}: {item.state}{code}", tuple(blocks), 3))
    return tuple(found)


def _short(name: str) -> str:
    return name if len(name) < 16 else name[:14] + "…"
