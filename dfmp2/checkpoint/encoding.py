"""The bytes of a checkpoint: two generations of a run's state, each with the hash of its content.

    dfmp2 checkpoint 1 \\n  scratch FOLDER or - \\n  [older generation]  newest generation
    generation = MARK, length (8 bytes), SHA-256 of the payload (32 bytes), payload
    payload    = length of the JSON (8 bytes), JSON, arrays one after another

A section of the state is plain values and arrays. Nothing but JSON and float64, integer and boolean numbers is read
back, and never more than the file holds. The older generation comes first, so that a file that was cut short has it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEAD = b"dfmp2 checkpoint 1\n"
MARK = b"\x89dfmp2 generation\r\n\x1a\n"
NO_SCRATCH = "-"
DTYPES = ("<f8", "<i8", "|b1")
LENGTH = 8
PREFIX = len(MARK) + LENGTH + hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A part of the state.

    Attributes
    ----------
    values : what JSON can hold
    arrays : float64, int64 or bool, by name
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A run's state as it was saved.

    Attributes
    ----------
    serial : number of the generation, from 1
    sections : by name
    block : its bytes
    damaged : whether something else in the file was damaged, so that a newer state may be lost
    """

    serial: int
    sections: Mapping[str, Section]
    block: bytes
    damaged: bool


def encode(serial: int, sections: Mapping[str, Section]) -> bytes:
    """One generation."""
    table: dict[str, Any] = {}
    pieces: list[bytes] = []
    for name, section in sections.items():
        shapes: dict[str, tuple[str, list[int]]] = {}
        for key, array in section.arrays.items():
            dtype = array.dtype.newbyteorder("<").str
            shapes[key] = dtype, list(array.shape)
            pieces.append(array.astype(dtype).tobytes())
        table[name] = {"values": section.values, "arrays": shapes}
    text = json.dumps({"serial": serial, "sections": table}).encode()
    payload = b"".join([len(text).to_bytes(LENGTH, "little"), text, *pieces])
    return MARK + len(payload).to_bytes(LENGTH, "little") + hashlib.sha256(payload).digest() + payload


def assemble(older: bytes, newest: bytes, scratch: str) -> bytes:
    """A file of two generations; `older` is empty for the first."""
    return HEAD + f"scratch {scratch or NO_SCRATCH}\n".encode("utf-8", "surrogateescape") + older + newest


def newest(content: bytes) -> State:
    """The newest intact generation of a file.

    Raises
    ------
    ValueError : it is no checkpoint, or no generation in it is intact
    """
    if not content.startswith(HEAD[:-2]):
        raise ValueError("it does not begin like a checkpoint of dfmp2")
    if not content.startswith(HEAD):
        raise ValueError("it is of another version")
    found: list[State] = []
    intact = content.find(b"\n", len(HEAD)) + 1  # bytes: the head, and every generation with its hash
    place = content.find(MARK)
    while place >= 0:
        block = _block(content, place)
        if block is not None:
            serial, sections = _decode(block[PREFIX:])
            found.append(State(serial, sections, block, damaged=False))
            intact += len(block)
        place = content.find(MARK, place + (len(block) if block else 1))
    if not found:
        raise ValueError("its content does not have the stored hash")
    best = max(found, key=lambda state: state.serial)
    return State(best.serial, best.sections, best.block, damaged=intact != len(content))


def _block(content: bytes, place: int) -> bytes | None:
    """The generation that begins there, None when it does not have its hash."""
    start = place + PREFIX
    length = int.from_bytes(content[place + len(MARK) : place + len(MARK) + LENGTH], "little")
    payload = content[start : start + length]
    stored = content[place + len(MARK) + LENGTH : start]
    if len(payload) != length or hashlib.sha256(payload).digest() != stored:
        return None
    return content[place : start + length]


def _decode(payload: bytes) -> tuple[int, dict[str, Section]]:
    """Serial number and sections of an intact payload.

    Raises
    ------
    ValueError : the hash is right, and yet it is not what `encode` writes
    """
    try:
        end = LENGTH + int.from_bytes(payload[:LENGTH], "little")
        table = json.loads(payload[LENGTH:end])
        sections = {}
        for name, entry in table["sections"].items():
            arrays = {}
            for key, (dtype, shape) in entry["arrays"].items():
                if dtype not in DTYPES or not all(isinstance(n, int) and n >= 0 for n in shape):
                    raise ValueError(f"{name}/{key} is not an array of numbers")
                count = math.prod(shape)
                arrays[key] = np.frombuffer(payload, dtype, count, end).reshape(shape).copy()
                end += count * np.dtype(dtype).itemsize
            sections[name] = Section(dict(entry["values"]), arrays)
        return int(table["serial"]), sections
    except (LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"it is not laid out as dfmp2 does it ({error})") from error
