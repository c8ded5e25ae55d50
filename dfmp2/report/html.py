"""A page as one HTML file: no other file, no network, readable without its few lines of script.

The file forbids itself everything it does not contain (Content-Security-Policy with the hashes of its one style
sheet and one script), so that even a mistake in escaping could neither run nor fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re

from dfmp2.io.text import printable
from dfmp2.report import style
from dfmp2.report.page import Block, Cell, Code, Facts, Figure, Note, Page, Section, Table, Text

NOTE_WORDS = {"ok": "✓ Good:", "info": "Note:", "warning": "! Warning:", "failure": "✗ Failed:"}
LONGEST_UNBROKEN = 28  # characters of a row's name that stay on one line
MOST_BESIDE = 6  # columns of a table that fits beside a figure
NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]+")


def to_html(page: Page) -> str:
    """The page as the text of an HTML file."""
    sheet, script = style.css(), style.SCRIPT
    policy = (
        f"default-src 'none'; style-src '{_digest(sheet)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    links = "".join(
        f'<li><a href="#{_anchor(section.id)}">{escape(section.title)}</a></li>'
        for section in page.sections
        if section.level == 2
    )
    headline = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in page.headline)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(page.title)}</title>
<style>{sheet}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>
<h1>{escape(page.title)}</h1>
<p>{escape(page.subtitle)}</p>
<dl class="headline">{headline}</dl>
</header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main id="content">
{"".join(_section(section) for section in page.sections)}</main>
<footer><p>{escape(page.footer)}</p></footer>
<script>{script}</script>
</body>
</html>
"""


def escape(text: str) -> str:
    """Text of unknown origin as HTML text or attribute value, control characters made visible."""
    return html.escape(printable(text), quote=True)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _anchor(name: str) -> str:
    return NOT_IN_ID.sub("-", name)


def _section(section: Section) -> str:
    anchor, heading = _anchor(section.id), f"h{section.level}"
    beside = any(isinstance(block, Figure) for block in section.blocks) and len(section.blocks) > 1
    kind = ' class="plain"' if not section.blocks else f' class="columns {_layout(section)}"' if beside else ""
    blocks = "".join(_block(block) for block in section.blocks)
    if kind.endswith('side"'):  # what stands beside the figure is one column
        blocks = f"{_block(section.blocks[0])}<div>{''.join(_block(block) for block in section.blocks[1:])}</div>\n"
    return (
        f'<section{kind} id="{anchor}" aria-labelledby="{anchor}-heading">'
        f'<{heading} id="{anchor}-heading">{escape(section.title)}</{heading}>\n{blocks}</section>\n'
    )


def _layout(section: Section) -> str:
    """Which column is the wider one: that of the only table beside the only figure, or neither."""
    shown = [isinstance(block, Figure) for block in section.blocks if not isinstance(block, Note | Text)]
    if shown[0] and sum(shown) == 1 and any(isinstance(block, Facts) for block in section.blocks):
        return "right side"
    return "left" if shown == [True, False] else "right" if shown == [False, True] else "even"


def _block(block: Block) -> str:
    match block:
        case Table():
            return _table(block)
        case Facts():
            items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in block.items)
            return f'<dl class="facts">{items}</dl>\n'
        case Text():
            return f"<p>{escape(block.text)}</p>\n"
        case Note():
            return f'<p class="note {block.kind}"><b>{NOTE_WORDS[block.kind]}</b> {escape(block.text)}</p>\n'
        case Code():
            lines = "\n".join(escape(line) for line in block.text.splitlines())
            if block.folded:
                return f'<details class="wide"><summary>{escape(block.caption)}</summary><pre>{lines}</pre></details>\n'
            return f'<div class="wide"><p class="label">{escape(block.caption)}</p><pre>{lines}</pre></div>\n'
        case Figure():
            values = "" if block.values is None else _table(block.values)
            caption = f"<figcaption>{escape(block.caption)}</figcaption>"
            return f"<figure>{block.svg}\n{caption}{values}</figure>\n"


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{" class=n" if column.numeric else ""}>{escape(column.heading)}</th>'
        for column in table.columns
    )
    rows = "".join(
        "<tr>" + "".join(_cell(cell, table, place) for place, cell in enumerate(row)) + "</tr>\n" for row in table.rows
    )
    caption = "" if table.folded else f"<caption>{escape(table.caption)}</caption>"
    kind = ' class="sortable"' if table.sortable else ""
    text = f"<table{kind}>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"
    name, wide = escape(table.caption), " wide" if len(table.columns) > MOST_BESIDE else ""
    text = f'<div class="scroll{wide}" role="region" tabindex="0" aria-label="{name}">{text}</div>'
    return f'<details class="print{wide}"><summary>{name}</summary>{text}</details>\n' if table.folded else text + "\n"


def _cell(cell: Cell, table: Table, place: int) -> str:
    names = [*(["n"] if table.columns[place].numeric else []), *(["k"] if len(cell.text) <= LONGEST_UNBROKEN else [])]
    key = "" if cell.key is None else f' data-key="{float(cell.key)!r}"'
    text = escape(cell.text)
    if cell.target:
        text = f'<a href="#{_anchor(cell.target)}">{text}</a>'
    if place == 0:
        kind = f' class="{" ".join(names)}"' if names else ""
        return f'<th scope="row"{kind}{key}>{text}</th>'
    return f"<td{' class=n' if names and names[0] == 'n' else ''}{key}>{text}</td>"
