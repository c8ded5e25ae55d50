"""Several frames in one xyz file, one behind the other, as trajectories and scans are written."""

from __future__ import annotations

from pathlib import Path

from dfmp2.errors import InputError
from dfmp2.io.text_file import read_text
from dfmp2.io.xyz import MAX_BYTES, parse_xyz
from dfmp2.molecule import Molecule

MOST_FRAMES = 10_000


def read_frames(
    path: str | Path, *, units: str = "angstrom", charge: int | None = None, multiplicity: int | None = None
) -> list[Molecule]:
    """Every frame of an xyz file, or of standard input for "-"; parameters as in `dfmp2.io.xyz.read_xyz`.

    Raises
    ------
    InputError : the file cannot be read, or a frame is no molecule; the frame and its first line are named
    """
    file, text = read_text(path, MAX_BYTES, f"more than {MAX_BYTES // 10**6} MB: split it")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").rstrip().split("\n")
    frames: list[Molecule] = []
    place = 0
    while place < len(lines):
        if not lines[place].strip():
            place += 1  # blank lines between frames
            continue
        if len(frames) == MOST_FRAMES:
            raise InputError(f"more than {MOST_FRAMES} frames: split it", file=file)
        word = lines[place].strip()
        count = (
            int(word) if word.isascii() and word.isdigit() and len(word) < 10 else 0
        )  # 0: the reader says what is wrong
        block = "\n".join(lines[place : place + count + 2])
        name = f"{file}, frame {len(frames) + 1} (line {place + 1} on)"
        read = parse_xyz(block, file=name, units=units, charge=charge, multiplicity=multiplicity).molecule
        frames.append(read)
        place += count + 2
    if not frames:
        raise InputError("empty: expected the frames of an xyz file", file=file)
    return frames
