"""What ranks say to each other as bytes: a section of a checkpoint, that is JSON and plain numbers, with its hash.

Never pickles: whoever reaches the store's port can write to it.
"""

from __future__ import annotations

from dfmp2.checkpoint.encoding import Section, assemble, encode, newest

NAME = "message"


def pack(section: Section) -> bytes:
    """A section as bytes."""
    return assemble(b"", encode(1, {NAME: section}), "")


def unpack(content: bytes) -> Section:
    """The section.

    Raises
    ------
    ValueError : it is damaged, or not of ours
    """
    return newest(content).sections[NAME]
