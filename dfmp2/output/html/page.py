"""A page as one self-contained HTML file, without network access and readable without its script.

The template beside this module defines the structure. All values are treated as text of unknown
origin: Jinja2 escapes them, and control characters are made visible. A Content-Security-Policy with
the hashes of the one style sheet and one script forbids everything else, so that even an escaping
error could neither run nor fetch anything.
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
# Never broken across lines: options, DF-MP2, numbers with their unit, versions.
UNBROKEN = re.compile(
    r"(?<![\w-])--[a-z][\w-]*|\b(?:X2C-)?DF-\w+"
    rf"|[+\-{MINUS}±]*\d+(?:\.\d+)+(?: {TIMES} 10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?(?: (?:Eh|kJ/mol)(?![\w/]))?"
)
NARROW = 58  # characters per row of a table that fits beside another block
AS_GIVEN = ("command", "file", "name", "molecule", "comment", "read from")  # facts shown as typed
TILES = 4  # in a row at most
COLUMNS = 12  # of the grid of tiles

MOST_WARNINGS = 3  # in the headline; the section of each run repeats them
UNITS = {  # units for energies -> their number per hartree
    "Eh": 1.0,
    "mEh": 1e3,
    "kJ/mol": KJ_PER_MOL_PER_HARTREE,
    "kcal/mol": KCAL_PER_MOL_PER_HARTREE,
    "eV": EV_PER_HARTREE,
    "cm^-1": WAVENUMBER_PER_HARTREE,
}


class Summary(NamedTuple):
    """The first sheet of a page, which is also what is printed.

    Attributes
    ----------
    title, subtitle : str
        Heading of the page, as markup if a user wrote it, and the line below it.
    tiles : sequence of SummaryTile
        The main results.
    blocks : sequence of Block
        Shown below the tiles: drawing, molecule, energies, their errors, file.
    warnings : sequence of str
        Warnings of the runs; only the first are shown.
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
        Sources of the page.
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
    """Number of columns of each tile, so that every row is full: 7 tiles are 4 and 3."""
    rows = -(-count // TILES)
    widths: list[int] = []
    for row in range(rows):
        in_row = count // rows + (row < count % rows)
        widths += [COLUMNS // in_row] * in_row
    return widths


def arranged(blocks: Sequence[Block]) -> list[tuple[str, Block]]:
    """The blocks in layout order, each with "half" or "wide".

    Two half-width blocks are placed side by side even if others were between them; one without a
    partner takes the whole width.
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
    """Whether a block fits into half of the width."""
    if isinstance(block, Figure):
        return block.table is None or block.table.details
    if isinstance(block, Table):
        folded = block.details or block.folded
        return not folded and _row_length(block) <= NARROW
    return isinstance(block, Facts)


def _row_length(table: Table) -> int:
    """Characters per row as displayed; heads over texts are broken, those over numbers are not."""
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


def verbatim(text: str) -> Markup:
    """User text, in which no names are rewritten."""
    return escape(printable(without_folders(text)))


def _lines(text: str) -> Markup:
    """Text with its line breaks kept."""
    return Markup("\n").join(map(printable, text.splitlines()))


def _unbroken(value: Any) -> Markup:
    """Text in which options, and numbers with their units, are never broken across lines."""
    return Markup(UNBROKEN.sub(r'<span class="q">\g<0></span>', str(escape(_printed(value)))))


def _printed(value: Any) -> str:
    """A value as the template prints it: markup unchanged, everything else without control
    characters and folders and with names and numbers as people write them."""
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
    verbatim=verbatim,
)
