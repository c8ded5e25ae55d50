"""A page as one HTML file: no other file, no network, readable without its few lines of script.

The template beside this module holds the structure. Whatever it prints is plain text of unknown
origin: Jinja2 escapes it, control characters are made visible. The file forbids itself everything
it does not contain (Content-Security-Policy with the hashes of its one style sheet and one script),
so that even a mistake in escaping could neither run nor fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dfmp2.host.provenance import version
from dfmp2.molecule.text import printable
from dfmp2.output.document import (
    Block,
    Facts,
    Figure,
    Section,
    SummaryTile,
    Table,
    without_folders,
)
from dfmp2.output.html.notation import MINUS, TIMES, formula, quantity, written
from dfmp2.units import (
    EV_PER_HARTREE,
    KCAL_PER_MOL_PER_HARTREE,
    KJ_PER_MOL_PER_HARTREE,
    WAVENUMBER_PER_HARTREE,
)

FOLDER = Path(__file__).parent
# What is not broken at the end of a line: options, DF-MP2, numbers with their unit, versions.
UNBROKEN = re.compile(
    r"(?<![\w-])--[a-z][\w-]*|\b(?:X2C-)?DF-\w+"
    rf"|[+\-{MINUS}±]*\d+(?:\.\d+)+(?: {TIMES} 10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?(?: (?:Eh|kJ/mol)(?![\w/]))?"
)
NARROW = 58  # characters of a row of a table that has room beside another block
AS_GIVEN = ("command", "file", "name", "molecule", "comment", "read from")  # facts shown as typed
TILES = 4  # in a row at most
COLUMNS = 12  # of the grid of tiles

MOST_WARNINGS = 3  # in the headline; each stands in the section of its run as well
UNITS = {  # that energies may be shown in -> how many of it are a hartree
    "Eh": 1.0,
    "mEh": 1e3,
    "kJ/mol": KJ_PER_MOL_PER_HARTREE,
    "kcal/mol": KCAL_PER_MOL_PER_HARTREE,
    "eV": EV_PER_HARTREE,
    "cm^-1": WAVENUMBER_PER_HARTREE,
}


class Summary(NamedTuple):
    """What is seen first, and alone on paper.

    Attributes
    ----------
    title, subtitle : str
        Heading of the page, and the line below it.
    tiles : sequence of SummaryTile
        The answer before all.
    blocks : sequence of Block
        What stands below the tiles: a drawing, molecule, energies, how good they are, file.
    warnings : sequence of str
        Those of the runs, of which the first are shown.
    """

    title: str
    subtitle: str
    tiles: Sequence[SummaryTile]
    blocks: Sequence[Block] = ()
    warnings: Sequence[str] = ()


def render(summary: Summary, sections: Sequence[Section], sources: str) -> str:
    """The text of an HTML file.

    Parameters
    ----------
    summary : Summary
        The first sheet.
    sections : sequence of Section
        The details below it.
    sources : str
        What the page was made from.
    """
    names = "page.css", "page.js", "molecule.js"
    sheet, *scripts = ((FOLDER / name).read_text(encoding="utf-8") for name in names)
    script = "".join(scripts)
    return ENVIRONMENT.get_template("page.j2").render(
        title=summary.title,
        subtitle=summary.subtitle,
        tiles=list(zip(summary.tiles, spans(len(summary.tiles)), strict=True)),
        blocks=summary.blocks,
        sections=sections,
        warnings=summary.warnings[:MOST_WARNINGS],
        more=len(summary.warnings[MOST_WARNINGS:]),
        units=UNITS,
        sheet=Markup(sheet),
        script=Markup(script),
        policy=Markup(
            f"default-src 'none'; style-src '{_digest(sheet)}'; script-src '{_digest(script)}'; "
            "img-src data:; "
        )
        + Markup("base-uri 'none'; form-action 'none'"),
        footer=f"Written by dfmp2 {version()} from {sources}. Energies in hartree (Eh) unless "
        "another unit is named.",
    )


def spans(count: int) -> list[int]:
    """How many of the columns each tile takes, so that every row is full: 7 are 4 and 3."""
    rows = -(-count // TILES)
    widths: list[int] = []
    for row in range(rows):
        in_row = count // rows + (row < count % rows)
        widths += [COLUMNS // in_row] * in_row
    return widths


def arranged(blocks: Sequence[Block]) -> list[tuple[str, Block]]:
    """The blocks in the order in which they are laid out, each with "half" or "wide".

    Two that need half of the width stand side by side, though others stood between them; one that
    finds no partner takes the whole width.
    """
    waiting = list(blocks)
    placed = []
    while waiting:
        block = waiting.pop(0)
        partner = None
        if _is_narrow(block):
            partner = next((k for k, other in enumerate(waiting) if _is_narrow(other)), None)
        if partner is None:
            placed.append(("wide", block))
            continue
        placed += [("half", block), ("half", waiting.pop(partner))]
    return placed


def _is_narrow(block: Block) -> bool:
    """Whether half of the width is enough for it."""
    if isinstance(block, Figure):
        return not block.alone and (block.table is None or block.table.details)
    if isinstance(block, Table):
        folded = block.details or block.folded
        return not folded and _row_length(block) <= NARROW
    return isinstance(block, Facts)


def _row_length(table: Table) -> int:
    """Characters of a row as it is written; heads over texts are broken, those over numbers not."""
    total = 0
    for k, head in enumerate(table.heads):
        words = [head.lstrip("#~")]
        if not head.startswith("#"):
            words = head.lstrip("~").split(" ")
        texts = [str(row[k][0] if isinstance(row[k], tuple) else row[k]) for row in table.rows]
        if head == "quantity":
            texts = [quantity(text) for text in texts]
        total += max(len(written(text)) for text in (*words, *texts)) + 2
    return total


def _verbatim(text: str) -> Markup:
    """Text as somebody gave it, whose names are not rewritten."""
    return escape(printable(without_folders(text)))


def _lines(text: str) -> Markup:
    """Text whose line breaks are kept."""
    return Markup("\n").join(map(printable, text.splitlines()))


def _unbroken(value: Any) -> Markup:
    """Text whose options and numbers, with the unit behind them, are not broken."""
    return Markup(UNBROKEN.sub(r'<span class="q">\g<0></span>', str(escape(_printed(value)))))


def _printed(value: Any) -> str:
    """What a template prints: markup as it is, everything else as text without control characters
    and folders, names and numbers as people write them."""
    if isinstance(value, Markup):
        return value
    return written(printable(without_folders(str(value))))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


ENVIRONMENT = Environment(
    loader=FileSystemLoader(FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_printed,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
ENVIRONMENT.globals["as_given"] = AS_GIVEN
ENVIRONMENT.filters.update(
    arranged=arranged,
    formula=formula,
    lines=_lines,
    quantity=quantity,
    unbroken=_unbroken,
    verbatim=_verbatim,
)
