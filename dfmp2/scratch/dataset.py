"""Where the numbers of an array lie in an HDF5 file, for those who move bytes by position (`dfmp2.scratch.region`)."""

from __future__ import annotations

from pathlib import Path

import h5py

NAME = "b"  # of the dataset, as `dfmp2.scratch.space` has it


def reserve(path: Path, size: int) -> int:
    """Make a file for `size` float64 numbers of any content; the place of the first one, bytes.

    Raises
    ------
    OSError : it cannot be made
    """
    with h5py.File(path, "x", locking=False) as file:
        return allocate(file, NAME, (size,))


def allocate(group: h5py.Group, name: str, shape: tuple[int, ...]) -> int:
    """Room in an open file for float64 numbers of any content, contiguous; the place of the first one, bytes."""
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.CONTIGUOUS)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    made = h5py.h5d.create(group.id, name.encode(), h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple(shape), layout)
    return int(made.get_offset() or 0)


def locate(path: Path) -> int:
    """The place of the first number of an array, bytes.

    Raises
    ------
    OSError : it cannot be read
    """
    with h5py.File(path, "r", locking=False) as file:
        return int(file[NAME].id.get_offset() or 0)
