"""Text of unknown origin: read from a file up to a sensible size, shown without control
characters."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from dfmp2.errors import InputError


def read_text(
    path: str | Path, most: int, too_large: str, kind: str = "an xyz file"
) -> tuple[str, str]:
    """Name for errors, and text, of a file or of standard input for the path "-".

    Parameters
    ----------
    most : largest size accepted, bytes
    too_large : message for a larger file
    kind : what is expected, for errors

    Raises
    ------
    InputError : the file cannot be read, is too large, or is not UTF-8 text
    """
    file = "stdin" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            data = _read_stdin(most)
        else:
            data = _read_regular(str(path), most, too_large, kind)
        if len(data) > most:
            raise InputError(too_large)
        if b"\0" in data:
            raise InputError(
                f"not {kind}: it contains NUL bytes, so it is binary; give a text file"
            )
        return file, data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = (
            f"byte {error.start + 1} is not UTF-8 text (binary, or another encoding); save "
            "it as plain text"
        )
        raise InputError(f"not {kind}: {reason}", file=file) from error
    except InputError as error:
        raise error.placed(file=file) from error


def _read_stdin(most: int) -> bytes:
    if sys.stdin is None:  # the process was started with standard input closed
        raise InputError("standard input is closed: give a file name")
    return sys.stdin.buffer.read(most + 1)


def _read_regular(path: str, most: int, too_large: str, kind: str) -> bytes:
    """At most `most` + 1 bytes of a regular file; a pipe or device might block or never end."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"is a directory: give {kind}")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(
                "is a device, pipe or socket: give a regular file, or - for standard input"
            )
        if status.st_size > most:
            raise InputError(too_large)
        with open(path, "rb") as stream:
            return stream.read(most + 1)
    except FileNotFoundError as error:
        raise InputError("no such file: check the name and the directory") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot be read ({reason}): check the name, the permissions and the disk"
        ) from error


def printable(text: str) -> str:
    """One line of text with line breaks, control characters and undecodable bytes written as
    escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def shown(text: str) -> str:
    """A piece of text for an error: short, on one line, printable."""
    piece = ascii(text[:50])
    if len(text) <= 50 and len(piece) <= 52:
        return piece
    return f"{piece[:48]}...{piece[-1]}"


def name_of_file(file: str) -> str:
    """The name of a molecule from that of its file."""
    stem = Path(file).stem
    return "".join(letter if letter.isprintable() else "_" for letter in stem) or "molecule"
