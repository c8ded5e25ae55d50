"""A page as one HTML file: no other file, no network, readable without its few lines of script.

The templates beside this module (`*.j2`) hold structure and words. Whatever they print is plain text of unknown
origin: Jinja2 escapes it, control characters are made visible. The file forbids itself everything it does not contain
(Content-Security-Policy with the hashes of its one style sheet and one script), so that even a mistake in escaping
could neither run nor fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import math
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dfmp2.host.provenance import version
from dfmp2.molecule.text import printable
from dfmp2.units import format_bytes

ABSENT = "not recorded"
FOLDER = Path(__file__).parent


def render(template: str, title: str, sources: str, **values: Any) -> str:
    """The text of an HTML file.

    Parameters
    ----------
    template : file that sets `subtitle`, `headline` and `main` and then includes page.j2
    title : heading of the page
    sources : what it was made from
    values : what the template prints
    """
    sheet, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return ENVIRONMENT.get_template(template).render(
        title=title,
        sections=[],  # anchor and title of each, filled by the macro `section`
        sheet=Markup(sheet),
        script=Markup(script),
        policy=f"default-src 'none'; style-src '{_digest(sheet)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        footer=f"Written by dfmp2 {version()} from {sources}. Energies in hartree (Eh) unless another unit is named.",
        **values,
    )


def energy(value: float | None) -> str:
    """An energy, Eh, to the last digit `dfmp2 show` prints; zero has no sign; "" for None."""
    return "" if value is None else f"{value:z.10f}" if math.isfinite(value) else ABSENT


def difference(value: float) -> str:
    """A signed difference, Eh."""
    return f"{value:+.2e}" if math.isfinite(value) else ABSENT


def size(value: float) -> str:
    """A number whose magnitude is what matters."""
    return f"{value:.1e}" if math.isfinite(value) else ABSENT


def fixed(value: float | None, digits: int = 2) -> str:
    """A number with that many digits; "" for None."""
    return "" if value is None else f"{value:.{digits}f}" if math.isfinite(value) else ABSENT


def counted(count: int, name: str) -> str:
    """A number of things, e.g. "1 warning"."""
    return f"{count} {name}{'s' * (count != 1)}"


def lines(text: str) -> Markup:
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
    extensions=["jinja2.ext.do"],
    undefined=StrictUndefined,
    finalize=_printed,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
ENVIRONMENT.filters |= {
    "energy": energy,
    "difference": difference,
    "size": size,
    "fixed": fixed,
    "counted": counted,
    "bytes": format_bytes,
    "lines": lines,
    "isfinite": math.isfinite,
}
