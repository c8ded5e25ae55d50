"""Documents to print or show: sections made of facts, tables, figures and notes.

`document_text` turns them into lines, `dfmp2.output.html.page` into a page. Figures and tables of
details appear only on the page.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from dfmp2.molecule.text import printable

# Words in notes on what the numbers of a study are not
DOUBTS = ("NO STATIONARY POINT", "NO MINIMUM", "NO TRANSITION STATE", "NOT CONVERGED", "TOO COLD")
ABSENT = "-"
ELLIPSIS = "..."  # shown by ASCII terminals too
WIDTH = 78  # of the line under a heading
WIDEST = 80  # characters of a line of text
LEAST = 10  # characters; heads and last columns are not made narrower
LAST_PART = re.compile(r": |\. (?=[A-Z])")  # separates the advice at the end of a message
# Folders of an absolute path, in quotes or not; does not match HTML or URLs.
FOLDERS = re.compile(r"""(?<=')/(?:[^/'\n<>]+/)+|(?<![\w/.~)<])/(?:[^\s/'":;,<>()|]+/)+""")


class Facts(NamedTuple):
    """Pairs of a name and a text; a text without a name has its own line."""

    rows: Sequence[tuple[str, Any]]
    kind: str = "facts"


class Table(NamedTuple):
    """A table.

    Attributes
    ----------
    caption : what it shows, "" if the heading of the section says so
    heads : names of the columns, followed by " / unit"; the prefix "#" marks a column of numbers,
        "~" one that is left out of text
    rows : cells; the first of a row may be (text, anchor it links to)
    sortable : whether a click on a heading sorts it
    details : folded, and not printed as text
    folded : collapsed on the page until opened or printed
    verbatim : user input, in which no names are rewritten on the page
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    sortable: bool = False
    details: bool = False
    folded: bool = False
    verbatim: bool = False
    kind: str = "table"


class Figure(NamedTuple):
    """A drawing function (`dfmp2.output.drawings`), a caption, and the values if they are worth a
    table."""

    draw: Callable[[], str]
    caption: str
    table: Table | None = None
    kind: str = "figure"


class SummaryTile(NamedTuple):
    """A tile at the top of a page: a name, its value, a remark below, and optionally the mood of a
    `Note`."""

    name: str
    value: Any
    remark: str = ""
    mood: str = ""


class Note(NamedTuple):
    """A remark; mood is "ok", "info", "warning" or "failure"."""

    mood: str
    text: str
    kind: str = "note"


class Code(NamedTuple):
    """Text shown exactly as given."""

    caption: str
    text: str
    folded: bool = False
    kind: str = "code"


Block = str | Facts | Table | Figure | Note | Code


class Section(NamedTuple):
    """Blocks under a heading of level 2 or 3; `anchor` is its link target."""

    anchor: str
    title: str
    blocks: Sequence[Block]
    level: int = 2


def document_text(head: Iterable[str], sections: Iterable[Section]) -> str:
    """Lines of the head, then those of each section under its title; control characters are made
    visible."""
    parts = [list(head)]
    for section in sections:
        lines = block_lines(section.blocks)
        if lines:
            parts.append([section.title, "-" * WIDTH, *(lines[1:] if lines[0] == "" else lines)])
    return "".join("\n".join([*map(printable, part), "", ""]) for part in parts)


def block_lines(blocks: Sequence[Block]) -> list[str]:
    """The lines of blocks, with a blank one between a table and the text below it."""
    lines: list[str] = []
    below_table = False
    for block in blocks:
        added = _lines(block)
        if below_table and isinstance(block, str):
            lines.append("")
        if added:
            below_table = isinstance(block, Table)
        lines += added
    return lines


def _lines(block: Block) -> list[str]:
    match block:
        case str():
            return wrap(block, WIDTH, break_on_hyphens=False)
        case Facts():
            facts = (f"{name}: {value}" if name else str(value) for name, value in block.rows)
            return [line for fact in facts for line in _folded(fact)]
        case Note():
            mood = {"ok": "", "info": "note: "}.get(block.mood, f"{block.mood}: ")
            return wrap(mood + block.text, WIDTH, break_on_hyphens=False)
        case Table() if not block.details:
            return ["", *wrap(block.caption, WIDTH, break_on_hyphens=False), *fitted_lines(block)]
        case Code():
            return [f"{block.caption}:", *block.text.splitlines()]
    return []


def aligned(table: Table) -> list[str]:
    """The rows of a table under its heads, each column as wide as its widest cell."""
    columns = []
    for head, *cells in zip(table.heads, *table.rows, strict=True):
        if not head.startswith("~"):
            texts = [
                head.lstrip("#"),
                *map(_cell_text, cells),
            ]
            width = max(map(displayed_width, texts))
            if head.startswith("#"):
                columns.append([" " * (width - displayed_width(text)) + text for text in texts])
            else:
                columns.append([padded(text, width) for text in texts])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _cell_text(cell: Any) -> str:
    """The text of a cell, which may be (text, anchor)."""
    return str(cell[0]) if isinstance(cell, tuple) else str(cell)


def displayed_width(text: str) -> int:
    """Columns that a text takes on a terminal: two for a wide (e.g. Chinese) character, none for a
    combining accent."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 1


def padded(text: str, width: int) -> str:
    """The text, padded with spaces to a width on the terminal."""
    return text + " " * max(0, width - displayed_width(text))


def cut_text(text: str, width: int) -> str:
    """The text; if it is wider than `width`, its middle is replaced by an ellipsis, since names
    differ at their ends."""
    if displayed_width(text) <= width:
        return text
    room = width - len(ELLIPSIS)
    end = _fitting(text[::-1], room // 2)[::-1]
    start = _fitting(text, room - displayed_width(end))
    return f"{start}{ELLIPSIS}{end}"


def _fitting(text: str, width: int) -> str:
    """The longest beginning of a text that fits into `width` on a terminal."""
    for count, character in enumerate(text):
        width -= _character_width(character)
        if width < 0:
            return text[:count]
    return text


def wrap_text(text: str, width: int) -> list[str]:
    """The words of a text in lines of at most `width` on a terminal."""
    return joined_words(text.split(), width)


def joined_words(
    words: Iterable[str], width: int, indent: str = "", hanging: str = ""
) -> list[str]:
    """Words in lines of at most `width` on a terminal; a wider word gets its own line, unbroken.

    Parameters
    ----------
    indent, hanging : before the first line, and before the others
    """
    lines: list[str] = []
    for word in words:
        if lines and displayed_width(lines[-1]) + 1 + displayed_width(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{hanging if lines else indent}{word}")
    return lines


def shortened_lines(message: str, width: int, most: int) -> list[str]:
    """The lines of a message; if there are more than `most`, its beginning, an ellipsis, and its
    last part, which says what to do and is never cut."""
    lines = wrap_text(message, width)
    starts = [match.end() for match in LAST_PART.finditer(message)]
    if len(lines) <= most or not starts:
        return lines
    advice = wrap_text(message[starts[-1] :], width)
    facts = wrap_text(message[: starts[-1]], width)
    room = max(1, most - len(advice))
    if len(facts) <= room:
        return lines
    room_for_words = width - len(ELLIPSIS)
    # Whole words, since part of a number would be another number
    last_fact = _fitting(wrap_text(facts[room - 1], room_for_words)[0], room_for_words)
    return [*facts[: room - 1], last_fact + ELLIPSIS, *advice]


def without_folders(text: str) -> str:
    """Text with every absolute path reduced to its last name, because pages are shared and should
    not reveal home folders."""
    return FOLDERS.sub("", text)


def _folded(fact: str) -> list[str]:
    """A fact in lines that fit a terminal; a word, such as a hash or a file name, is never
    broken."""
    if len(fact) <= WIDEST or " " not in fact.rpartition(": ")[2]:
        return [fact]
    return wrap(
        fact, WIDEST, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def fitted_lines(table: Table) -> list[str]:
    """Lines of a table, none wider than a terminal.

    A last column of text is wrapped if there is room. Otherwise heads are broken to the width of
    their cells, with units below names, and columns that do not fit follow below, with the first
    one repeated.
    """
    lines = aligned(table)
    if max(map(displayed_width, lines)) <= WIDEST:
        return lines
    printed = [k for k, head in enumerate(table.heads) if not head.startswith("~")]
    folded = _with_last_column_folded(table, printed)
    if folded:
        return folded
    return _columns_in_turns(table, printed)


def fitted_width(table: Table) -> int:
    """Width of a table with its heads broken and all its columns side by side."""
    widths = []
    for k, head in enumerate(table.heads):
        if head.startswith("~"):
            continue
        cells = [_cell_text(row[k]) for row in table.rows]
        widths.append(max(map(displayed_width, [*_broken_head(head, cells), *cells])))
    return sum(widths) + 2 * (len(widths) - 1)


def _with_last_column_folded(table: Table, printed: Sequence[int]) -> list[str]:
    """Lines with the last printed column wrapped; none if it holds numbers or has no room."""
    *others, last = printed
    if table.heads[last].startswith("#"):
        return []
    heads = [table.heads[k] for k in others]
    rows = [[row[k] for k in others] for row in table.rows]
    starts = aligned(Table("", heads, rows))
    indent = max(map(displayed_width, starts)) + 2
    room = WIDEST - indent
    texts = [table.heads[last], *(str(row[last]) for row in table.rows)]
    longest_word = max(len(word) for text in texts for word in text.split() or [""])
    if room <= LEAST or longest_word > room:
        return []
    lines = []
    for start, text in zip(starts, texts, strict=True):
        first, *more = wrap(text, room, break_on_hyphens=False) or [""]
        lines.append(f"{padded(start, indent)}{first}".rstrip())
        lines += [" " * indent + part for part in more]
    return lines


def _columns_in_turns(table: Table, printed: Sequence[int]) -> list[str]:
    """Lines of as many columns at a time as fit beside the first one, under broken heads."""
    cells = [[row[k] for row in table.rows] for k in printed]
    heads = [_broken_head(table.heads[k], column) for k, column in zip(printed, cells, strict=True)]
    height = max(map(len, heads))
    columns = []
    for head, column in zip(heads, cells, strict=True):
        above = [""] * (height - len(head))
        columns.append([*above, *head, *column])
    signs = ["#" if table.heads[k].startswith("#") else "" for k in printed]

    def side_by_side(part: Sequence[int]) -> list[str]:
        rows = list(zip(*(columns[k] for k in part), strict=True))
        return aligned(Table("", [signs[k] for k in part], rows))[1:]

    shown: list[str] = []
    waiting = list(range(1, len(columns)))
    while waiting:
        count = len(waiting)
        lines = side_by_side([0, *waiting])
        while count > 1 and max(map(displayed_width, lines)) > WIDEST:
            count -= 1
            lines = side_by_side([0, *waiting[:count]])
        while not lines[0]:  # drop blank lines left by taller heads in other turns
            lines = lines[1:]
        if shown:
            shown.append("")
        shown += lines
        waiting = waiting[count:]
    return shown


def _broken_head(head: str, cells: Sequence[Any]) -> list[str]:
    """Lines of a head, as wide as its longest word or cell; a unit stays with its slash."""
    name, slash, unit = head.removeprefix("#").partition(" / ")
    unit_line = f"/ {unit}" if slash else ""
    texts = list(map(_cell_text, cells))
    width = max(LEAST, *map(len, [unit_line, *name.split(" "), *texts]))
    if len(name) + 1 + len(unit_line) <= width or not slash:
        return wrap(f"{name} {unit_line}", width)
    return [*wrap(name, width), unit_line]


# --- numbers --------------------------------------------------------------------------------------


def number_text(value: float, form: str) -> str:
    """A number in a format such as ".2e"; ABSENT if it is not finite."""
    if math.isfinite(value):
        return f"{value:{form}}"
    return ABSENT


def energy_text(value: float) -> str:
    """An energy, Eh, with all printed digits; zero has no sign."""
    return number_text(value, "z.10f")


def difference(value: float) -> str:
    """A signed difference, Eh."""
    if not value:
        return "0"
    return number_text(value, "+.2e")


def size(value: float) -> str:
    """A number of which only the magnitude matters."""
    if not value:
        return "0"
    return number_text(value, ".1e")


def fixed(value: float | None, digits: int = 2) -> str:
    """A number with that many digits; "" for None."""
    if value is None:
        return ""
    return number_text(value, f"z.{digits}f")
