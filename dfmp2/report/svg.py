"""SVG elements as text: every attribute and text is escaped here, coordinates get two decimals."""

from __future__ import annotations

import html
from collections.abc import Iterable

from dfmp2.io.text import printable


def element(tag: str, *children: str, **attributes: str | float) -> str:
    """An element; `cls` is the attribute class, an underscore in a name a hyphen, numbers are rounded."""
    written = "".join(f' {_name(key)}="{_value(value)}"' for key, value in attributes.items())
    return f"<{tag}{written}>{''.join(children)}</{tag}>" if children else f"<{tag}{written}/>"


def text(x: float, y: float, content: str, cls: str = "") -> str:
    """A line of text at (x, y)."""
    body = escape(content)
    return element("text", body, x=x, y=y, cls=cls) if cls else element("text", body, x=x, y=y)


def titled(tag: str, title: str, **attributes: str | float) -> str:
    """An element with a title, which browsers show when it is pointed at."""
    return element(tag, f"<title>{escape(title)}</title>", **attributes)


def line(x1: float, y1: float, x2: float, y2: float, cls: str, **attributes: str | float) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, cls=cls, **attributes)


def drawing(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """The whole drawing; `label` says in words what it shows, and is no wider on a page than its own width by half."""
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
    )


def escape(content: str) -> str:
    """Text of unknown origin as SVG text."""
    return html.escape(printable(content), quote=True)


def _name(key: str) -> str:
    return {"cls": "class"}.get(key, key.replace("_", "-"))


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
