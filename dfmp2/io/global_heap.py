"""Refuse an HDF5 file on which the HDF5 library would never finish.

Text of variable length lies in global heaps, chains of objects that begin behind a signature:

    "GCOL" version(1) reserved(3) size(8)    then objects: index(2) references(2) reserved(4) length(8) data

Object 0 is the free space at the end. The library steps over it by its length, and for ever when that
is zero, as it is in a file with a hole (HDF5 2.0, `H5HG__cache_heap_deserialize`); no signal reaches
Python meanwhile. This module can go when the oldest HDF5 that h5py may bring refuses such a heap.
"""

from __future__ import annotations

import mmap
from pathlib import Path

SIGNATURE = b"GCOL"
HEADER = 16  # bytes, of a heap and of an object
MOST_STEPS = 100_000  # objects in all heaps; a result has some hundred


def is_endless(path: Path) -> bool:
    """Whether a heap of the file is a trap for the library, or the heaps hold more than any result's.

    Parameters
    ----------
    path : a regular file with lengths of eight bytes, as h5py writes it

    Raises
    ------
    OSError : it cannot be read
    """
    if path.stat().st_size < HEADER:
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        steps, start = 0, data.find(SIGNATURE)
        while start >= 0:
            end = min(start + _number(data, start + 8, 8), len(data))
            place = start + HEADER
            while place + HEADER <= end:
                index, length = _number(data, place, 2), _number(data, place + 8, 8)
                steps += 1
                if steps > MOST_STEPS or (index == 0 and length == 0):
                    return True
                place += length if index == 0 else HEADER + -(-length // 8) * 8
            start = data.find(SIGNATURE, start + 1)
    return False


def _number(data: mmap.mmap, place: int, width: int) -> int:
    return int.from_bytes(data[place : place + width], "little")
