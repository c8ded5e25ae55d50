"""Text of unknown origin on its way to a screen, where control characters would do more than be read."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line of text with line breaks, control characters and undecodable bytes written as escapes."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
