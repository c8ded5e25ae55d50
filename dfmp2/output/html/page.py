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
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dfmp2.host.provenance import version
from dfmp2.molecule.text import printable
from dfmp2.output.document import Section, SummaryTile, without_folders
from dfmp2.units import (
    EV_PER_HARTREE,
    KCAL_PER_MOL_PER_HARTREE,
    KJ_PER_MOL_PER_HARTREE,
    WAVENUMBER_PER_HARTREE,
)

FOLDER = Path(__file__).parent
NUMBER = re.compile(r"[+\-±]*\d+\.\d+(?:e[+-]\d+)?(?: Eh(?![\w/]))?")


MOST_WARNINGS = 3  # in the headline; each stands in the section of its run as well
UNITS = {  # that energies may be shown in -> how many of it are a hartree
    "Eh": 1.0,
    "mEh": 1e3,
    "kJ/mol": KJ_PER_MOL_PER_HARTREE,
    "kcal/mol": KCAL_PER_MOL_PER_HARTREE,
    "eV": EV_PER_HARTREE,
    "cm^-1": WAVENUMBER_PER_HARTREE,
}


def render(
    title: str,
    subtitle: str,
    tiles: Sequence[SummaryTile],
    sections: Sequence[Section],
    sources: str,
    warnings: Sequence[str] = (),
) -> str:
    """The text of an HTML file.

    Parameters
    ----------
    title, subtitle : heading of the page, and the line below it
    tiles : what is to be seen first, the answer before all
    sources : what the page was made from
    warnings : those of its runs, the first of which stand below the tiles
    """
    names = "page.css", "page.js", "molecule.js"
    sheet, *scripts = ((FOLDER / name).read_text(encoding="utf-8") for name in names)
    script = "".join(scripts)
    return ENVIRONMENT.get_template("page.j2").render(
        title=title,
        subtitle=subtitle,
        tiles=tiles,
        sections=sections,
        warnings=warnings[:MOST_WARNINGS],
        more=len(warnings[MOST_WARNINGS:]),
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


def _lines(text: str) -> Markup:
    """Text whose line breaks are kept."""
    return Markup("\n").join(map(printable, text.splitlines()))


def _unbroken(value: Any) -> Markup:
    """Text whose numbers, with the unit Eh behind them, are not broken at their hyphens."""
    return Markup(NUMBER.sub(r'<span class="q">\g<0></span>', str(escape(_printed(value)))))


def _printed(value: Any) -> str:
    """What a template prints: markup as it is, everything else as text without control characters
    and folders."""
    if isinstance(value, Markup):
        return value
    return printable(without_folders(str(value)))


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
ENVIRONMENT.filters.update(lines=_lines, unbroken=_unbroken)
