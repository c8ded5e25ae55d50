"""Called by scripts that write pages: keep only the first rows of long tables on a page, and put
all rows in a file beside it.
"""

from __future__ import annotations

import re
from pathlib import Path

LONGEST = 15  # rows of one table on a page: a screen
SHOWN = 5  # of a longer one
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def shortened(text: str, page: Path) -> str:
    """The text of a page with long tables shortened; the full tables are written beside it.

    Parameters
    ----------
    text : str
        Markdown.
    page : Path
        Path of the page; the tables are named after it and their headings.
    """
    written = set(re.findall(r"\]\(([^)]*\.tsv)\)", text))  # by an earlier run

    def replaced(table: re.Match[str]) -> str:
        head, line, *rows = table[0].splitlines()
        if len(rows) <= LONGEST:
            return table[0]
        name = file_name(page, text[: table.start()], written)
        written.add(name)
        content = "\n".join("\t".join(cells(row)) for row in (head, *rows))
        (page.parent / name).write_text(content + "\n", encoding="utf-8")
        shown = "\n".join((head, line, *rows[:SHOWN]))
        caption = f"The table shows the first {SHOWN} of {len(rows)} rows; "
        return f"{shown}\n\n{caption}[download all {len(rows)}]({name}).\n"

    return TABLE.sub(replaced, text)


def file_name(page: Path, before: str, written: set[str]) -> str:
    """A name unique on the page, made of the page and the heading above the table."""
    heading = re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1]
    words = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
    name = f"{page.stem}-{words}.tsv"
    number = 2
    while name in written:
        name = f"{page.stem}-{words}-{number}.tsv"
        number += 1
    return name


def cells(row: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
