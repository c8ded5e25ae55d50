"""A page as one HTML file: no other file, no network, readable without its few lines of script.

The template beside this module holds the structure. Whatever it prints is plain text of unknown origin: Jinja2 escapes
it, control characters are made visible. The file forbids itself everything it does not contain
(Content-Security-Policy with the hashes of its one style sheet and one script), so that even a mistake in escaping
could neither run nor fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dfmp2.host.provenance import version
from dfmp2.molecule.text import printable
from dfmp2.output.document import Section

FOLDER = Path(__file__).parent


def render(
    title: str, subtitle: str, headline: Iterable[tuple[str, Any]], sections: Sequence[Section], sources: str
) -> str:
    """The text of an HTML file.

    Parameters
    ----------
    title, subtitle : heading of the page, and the line below it
    headline : what is to be seen first: names and values
    sources : what the page was made from
    """
    sheet, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return ENVIRONMENT.get_template("page.j2").render(
        title=title,
        subtitle=subtitle,
        headline=headline,
        sections=sections,
        sheet=Markup(sheet),
        script=Markup(script),
        policy=f"default-src 'none'; style-src '{_digest(sheet)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        footer=f"Written by dfmp2 {version()} from {sources}. Energies in hartree (Eh) unless another unit is named.",
    )


def _lines(text: str) -> Markup:
    """Text whose line breaks are kept."""
    return Markup("\n").join(map(printable, text.splitlines()))


def _printed(value: Any) -> str:
    """What a template prints: markup as it is, everything else as text without control characters."""
    return value if isinstance(value, Markup) else printable(str(value))


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
ENVIRONMENT.filters["lines"] = _lines
