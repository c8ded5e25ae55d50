"""A page as Markdown: the same sections, tables and numbers; a figure is its caption and its values."""

from __future__ import annotations

import re

from dfmp2.io.text import printable
from dfmp2.report.page import Block, Code, Facts, Figure, Note, Page, Table, Text

NOTE_WORDS = {"ok": "Good:", "info": "Note:", "warning": "Warning:", "failure": "Failed:"}
# What Markdown, or GitHub on top of it, takes for markup, a link or a mention, anywhere in a line and at its start.
ANYWHERE = re.compile(r"[\\`*\[\]|~$@]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.", re.IGNORECASE)
AT_START = re.compile(r"\A(?:[-+#>=]|\d+(?=[.)]))")


def to_markdown(page: Page) -> str:
    """The page as the text of a Markdown file."""
    parts = [f"# {_escape(page.title)}\n", f"{_line(page.subtitle)}\n", _facts(page.headline)]
    for section in page.sections:
        parts.append(f"{'#' * section.level} {_escape(section.title)}\n")
        parts += [_block(block) for block in section.blocks]
    return "\n".join([*parts, "---\n", f"{_line(page.footer)}\n"])


def _escape(text: str) -> str:
    """One line of plain text that no renderer takes for markup, a link or HTML."""
    line = printable(text).replace("&", "&amp;").replace("<", "&lt;").strip()
    return ANYWHERE.sub(lambda found: "\\" + found[0], line)


def _line(text: str) -> str:
    """The same at the start of a line, where more is markup."""
    line = _escape(text)
    found = AT_START.match(line)
    if found is None:
        return line
    end = found.end()
    return f"{line[:end]}\\{line[end:]}" if line[0].isdigit() else f"\\{line}"


def _block(block: Block) -> str:
    match block:
        case Table():
            return _table(block)
        case Facts():
            return _facts(block.items)
        case Text():
            return f"{_line(block.text)}\n"
        case Note():
            return f"> **{NOTE_WORDS[block.kind]}** {_escape(block.text)}\n"
        case Code():
            lines = [printable(line) for line in block.text.splitlines()]
            fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
            return "\n".join([f"{_line(block.caption)}\n", fence, *lines, fence, ""])
        case Figure():
            values = "" if block.values is None else f"\n{_table(block.values)}"
            return f"*Figure (in the HTML report):* {_escape(block.caption)}\n{values}"


def _facts(items: tuple[tuple[str, str], ...]) -> str:
    return "".join(f"- **{_escape(name)}**: {_escape(value)}\n" for name, value in items)


def _table(table: Table) -> str:
    heads = [_escape(column.heading) for column in table.columns]
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    rows = [[_escape(cell.text) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in (heads, rules, *rows)]
    return "\n".join([f"{_line(table.caption)}\n", *lines, ""])
