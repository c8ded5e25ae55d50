"""Refuse an HDF5 file on which the HDF5 library would never finish.

Text of variable length lies in global heaps, chains of objects that begin behind a signature:

    "GCOL" version(1) reserved(3) size(8)    then objects: index(2) references(2) reserved(4) length(8) data

Object 0 is the free space at the end, its length counts its header. The library steps from object to
object, and for ever when a step is zero: free space of length zero, as in a file with a hole, or a
length near 2^64 that overflows (HDF5 2.0, `H5HG__cache_heap_deserialize`). No signal reaches Python
meanwhile. This module can go when the oldest HDF5 that h5py may bring refuses such heaps.
"""

from __future__ import annotations

import mmap
from pathlib import Path

SIGNATURE, VERSION = b"GCOL", 1
HEADER = 16  # bytes, of a heap and of an object
SMALLEST = 4096  # bytes of a heap; smaller ones, other versions and those beyond the file's end the library refuses
MOST_STEPS = 100_000  # objects in all heaps; a result has some hundred


def has_broken_heap(path: Path) -> bool:
    """Whether some heap cannot be walked to its end, or the heaps hold more than those of any result.

    Parameters
    ----------
    path : a regular file with lengths of eight bytes, as h5py writes it

    Raises
    ------
    OSError : it cannot be read
    """
    if path.stat().st_size < SMALLEST:
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        steps, start = 0, data.find(SIGNATURE)
        while start >= 0:
            size = _number(data, start + 8, 8)
            if _number(data, start + 4, 1) == VERSION and SMALLEST <= size <= len(data) - start:
                place, end = start + HEADER, start + size
                while place + HEADER <= end:
                    index, length = _number(data, place, 2), _number(data, place + 8, 8)
                    step = length if index == 0 else HEADER + -(-length // 8) * 8
                    place, steps = place + step, steps + 1
                    if step < HEADER or place > end or steps > MOST_STEPS:
                        return True
            start = data.find(SIGNATURE, start + 1)
    return False


def _number(data: mmap.mmap, place: int, width: int) -> int:
    return int.from_bytes(data[place : place + width], "little")
