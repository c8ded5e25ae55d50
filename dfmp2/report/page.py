"""A report as a value: sections of paragraphs, facts, tables and figures, which a writer turns into HTML or Markdown.

Every text is plain text of unknown origin; escaping is the writer's business (`dfmp2.report.html`,
`dfmp2.report.markdown`), so that a page holds no markup but the drawings made by `dfmp2.report.svg`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and whether it holds numbers (set flush right, sorted by value)."""

    heading: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, the number it is sorted by, and the section it leads to ("" for none)."""

    text: str
    key: float | None = None
    target: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under headings; the first column names the row.

    Attributes
    ----------
    caption : what the table shows, with units
    columns, rows : every row has one cell per column
    sortable : whether a reader may want another order
    folded : whether it is closed until the reader opens it (long, or the values of a figure)
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of label and value."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A remark that must not be missed; `kind` is "ok", "info", "warning" or "failure"."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Text to copy, line breaks kept; under a caption, closed until opened when `folded`."""

    caption: str
    text: str
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its caption and the numbers it shows.

    Attributes
    ----------
    svg : SVG element made by `dfmp2.report.svg`, all texts in it escaped
    caption : what it shows, in words that do without colour
    values : the same numbers as a table, None when a table beside it holds them
    """

    svg: str
    caption: str
    values: Table | None = None


Block = Table | Facts | Text | Note | Code | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of the page.

    Attributes
    ----------
    id : unique anchor, letters, digits and hyphens
    title : heading
    blocks : content in order
    level : 2 or 3
    """

    id: str
    title: str
    blocks: tuple[Block, ...]
    level: int = 2


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report.

    Attributes
    ----------
    title, subtitle : heading and one line below it
    headline : the most important numbers, as label and value
    sections : in order
    footer : how the page was made
    """

    title: str
    subtitle: str
    headline: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    footer: str


def cells(*values: str | Cell) -> tuple[Cell, ...]:
    """A row from texts and cells."""
    return tuple(value if isinstance(value, Cell) else Cell(value) for value in values)


def columns(*headings: str) -> tuple[Column, ...]:
    """Columns from headings; one that starts with "#" holds numbers."""
    return tuple(Column(heading.removeprefix("#"), heading.startswith("#")) for heading in headings)
