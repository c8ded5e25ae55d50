"""Messages whose options and commands are values, which each front end writes in its own syntax.

    Message(Option("frozen_core", 5), " leaves no electron: see ", Command("plan"))

    command line    --frozen-core 5 leaves no electron: see dfmp2 plan
    Python          frozen_core=5 leaves no electron: see dfmp2.plan
    manifest        frozen_core = 5 leaves no electron: see dfmp2 plan
    QCSchema        keywords.frozen_core = 5 leaves no electron: see dfmp2 plan

A message is the text for the command line, and keeps the parts it was made of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Protocol

SAFE = re.compile(r"[\w.,:;/+@%=\[\]~*'-]+")  # values that a shell reads as one word, more or less
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")


class Missing(Enum):
    """Placeholder for a missing value, the same object in every process."""

    NOT_GIVEN = "not given"


NOT_GIVEN: Any = Missing.NOT_GIVEN


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A value for the user to fill in, such as N or FILE."""

    name: str

    def __str__(self) -> str:
        return self.name


N = Placeholder("N")


@dataclass(frozen=True, slots=True)
class Option:
    """An option, possibly with a given or proposed value.

    Attributes
    ----------
    name : Python name: a field of `dfmp2.Options` or another keyword
    value : missing for the option itself; True for a flag that is set
    flag : name on the command line if it is a different one
    """

    name: str
    value: Any = NOT_GIVEN
    flag: str = ""

    @property
    def of_shell(self) -> str:
        """The option as written on the command line: --frozen-core, or -o."""
        flag = self.flag or self.name
        if len(flag) == 1:
            return f"-{flag}"
        return "--" + flag.replace("_", "-")

    def __str__(self) -> str:
        return COMMAND_LINE.option(self)

    def of(self, value: Any) -> Option:
        """The option with a value."""
        return replace(self, value=value)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line that is also a Python function."""

    name: str

    def __str__(self) -> str:
        return COMMAND_LINE.command(self)


class Words(Protocol):
    """How a front end writes options and commands."""

    def option(self, option: Option) -> str: ...
    def command(self, command: Command) -> str: ...


class CommandLineWords:
    """--frozen-core 5, --check, dfmp2 run."""

    def option(self, option: Option) -> str:
        """The option and its value."""
        value = plain(option.value)
        if value is NOT_GIVEN or value is True:
            return option.of_shell
        if isinstance(value, str) and not SAFE.fullmatch(value):
            value = repr(value)
        return f"{option.of_shell} {value}"

    def command(self, command: Command) -> str:
        """The command, preceded by the program's name."""
        return f"dfmp2 {command.name}"


class PythonWords:
    """frozen_core=5, check=True, dfmp2.run."""

    def option(self, option: Option) -> str:
        """The keyword and its value."""
        if option.value is NOT_GIVEN:
            return option.name
        return f"{option.name}={_literal(option.value)}"

    def command(self, command: Command) -> str:
        """The function."""
        return f"dfmp2.{command.name}"


class ManifestWords(CommandLineWords):
    """frozen_core = 5, check = true."""

    def option(self, option: Option) -> str:
        """The key and its value."""
        if option.value is NOT_GIVEN:
            return option.name
        return f"{option.name} = {_literal(option.value, true='true', false='false')}"


class QCSchemaWords(ManifestWords):
    """keywords.frozen_core = 5, model.basis."""

    PLACES: ClassVar = {
        "basis": "model.basis",
        "method": "model.method",
        "charge": "molecule.molecular_charge",
        "multiplicity": "molecule.molecular_multiplicity",
    }

    def option(self, option: Option) -> str:
        """The field and its value."""
        name = self.PLACES.get(option.name, f"keywords.{option.name}")
        return super().option(replace(option, name=name))


COMMAND_LINE = CommandLineWords()
PYTHON = PythonWords()
MANIFEST = ManifestWords()
QCSCHEMA = QCSchemaWords()

_front_ends: list[Words] = [PYTHON]  # of this process, the innermost one last


def front_end() -> Words:
    """The words of the user of this process: Python's, within a command the command line's."""
    return _front_ends[-1]


@contextmanager
def serving(words: Words) -> Iterator[None]:
    """Show errors in the words of another front end during a block."""
    _front_ends.append(words)
    try:
        yield
    finally:
        _front_ends.pop()


Part = str | Option | Command


class Message(str):
    """A text for the user, in the syntax of the command line, with the parts it was made of.

    Parameters
    ----------
    parts : texts, options, commands and other messages, concatenated
    """

    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> Message:
        """The message; messages among `parts` are flattened."""
        flat = tuple(_flat(parts))
        message = super().__new__(cls, _written(flat, COMMAND_LINE))
        message.parts = flat
        return message

    def __reduce__(self) -> tuple[type[Message], tuple[Part, ...]]:
        return Message, self.parts

    @property
    def options(self) -> tuple[Option, ...]:
        """The options in the message."""
        return tuple(part for part in self.parts if isinstance(part, Option))

    def changed(self, change: Callable[[Option], Option]) -> Message:
        """The same message with other options, or other values of them."""
        return Message(*(change(part) if isinstance(part, Option) else part for part in self.parts))

    def to_json(self) -> list[Any]:
        """Its parts as JSON; `from_json` reads them back."""
        return [_to_json(part) for part in self.parts]

    @classmethod
    def from_json(cls, written: Any, text: str) -> Message:
        """The message written by `to_json`, or just the text if the parts do not produce it."""
        try:
            message = cls(*(_part(entry) for entry in written))
        except (TypeError, KeyError, AttributeError):
            return cls(text)
        return message if message == text else cls(text)


def in_words(text: str, words: Words) -> str:
    """A text in the syntax of a front end; unchanged unless it is a `Message`."""
    if isinstance(text, Message):
        return _written(text.parts, words)
    return text


def joined(parts: Sequence[Part], between: str = ", ", last: str = "") -> Message:
    """Options or messages joined into a list.

    Parameters
    ----------
    last : separator before the last one; "" for `between`
    """
    listed: list[Part] = []
    for place, part in enumerate(parts):
        if place:
            is_last = place == len(parts) - 1
            listed.append(last if last and is_last else between)
        listed.append(part)
    return Message(*listed)


def plain(value: Any) -> Any:
    """A NumPy number or truth value as a Python one, anything else unchanged."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def _to_json(part: Part) -> Any:
    """A part of a message as JSON, which `_part` reads back."""
    if isinstance(part, Command):
        return {"command": part.name}
    if not isinstance(part, Option):
        return part
    entry: dict[str, Any] = {"option": part.name, "flag": part.flag}
    value = plain(part.value)
    if isinstance(value, Placeholder):
        entry["placeholder"] = value.name
    elif isinstance(value, bool | int | float):
        entry["value"] = value
    elif value is not NOT_GIVEN:
        entry["value"] = str(value)
    return entry


def _part(entry: Any) -> Part:
    if isinstance(entry, str):
        return entry
    if "command" in entry:
        return Command(str(entry["command"]))
    value: Any = entry.get("value", NOT_GIVEN)
    if "placeholder" in entry:
        value = Placeholder(str(entry["placeholder"]))
    return Option(str(entry["option"]), value, str(entry["flag"]))


def _flat(parts: tuple[Part, ...]) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, Message):
            yield from part.parts
        elif isinstance(part, Option | Command):
            yield part
        elif part:
            yield str(part)


def _written(parts: tuple[Part, ...], words: Words) -> str:
    written = []
    for part in parts:
        if isinstance(part, Option):
            written.append(words.option(part))
        elif isinstance(part, Command):
            written.append(words.command(part))
        else:
            written.append(part)
    return "".join(written)


def _literal(value: Any, true: str = "True", false: str = "False") -> str:
    """A value as written in a program, with texts in quotation marks."""
    value = plain(value)
    if isinstance(value, bool):
        return true if value else false
    if isinstance(value, Placeholder | int | float):
        return str(value)
    if isinstance(value, str):
        if NUMBER.fullmatch(value):
            return value
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
