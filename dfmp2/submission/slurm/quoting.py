"""Text of the user on its way into scripts: quoted for the shell and for #SBATCH lines, refused where neither helps."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from dfmp2.errors import InputError
from dfmp2.io.text import printable

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+-]+")


def shell_words(words: Iterable[str]) -> str:
    """A command for the shell."""
    return shlex.join(words)


def directive(option: str, value: str | None = None) -> str:
    """One #SBATCH line. Spaces and # need quotes there; in them a backslash stands before quotes and backslashes."""
    if value is None or _PLAIN.fullmatch(value):
        return f"#SBATCH --{option}" + ("" if value is None else f"={value}")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{option}="{escaped}"'


def log_name(folder: Path, pattern: str) -> str:
    """Name of a log for Slurm: % in the folder's name is doubled, that of `pattern` is Slurm's.

    Raises
    ------
    InputError : the folder's name holds a backslash, with which Slurm replaces no pattern
    """
    if "\\" in str(folder):
        raise InputError(f"{folder}: Slurm cannot write logs below a folder with a backslash in its name: use --write")
    return f"{str(folder).replace('%', '%%')}/{pattern}"


def require_line(text: str, what: str) -> str:
    """The same text, if it is one line of printable characters.

    Raises
    ------
    InputError : it is empty, or holds a line break or another control character
    """
    if not text.strip() or not text.isprintable():
        raise InputError(f"{what} {printable(text)!r}: expected one line without control characters")
    return text


def require_word(text: str, what: str) -> str:
    """The same text, if it is one word: letters, digits and what Slurm's names and lists are made of.

    Raises
    ------
    InputError : anything else is in it
    """
    if re.fullmatch(r"[A-Za-z0-9_.,:=@+&|*()\[\]/-]{1,256}", text) is None or text.startswith("-"):
        raise InputError(f"{what} {printable(text)!r}: expected a name of letters, digits and _.,:=@+&|*()[]/-")
    return text
