"""A result file with bytes changed, put in, cut out or cut off is read or refused, soon, and never anything else."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfmp2.errors import InputError, ResultFileError
from dfmp2.io import hdf5
from dfmp2.io.global_heap import HEADER, SIGNATURE, has_broken_heap
from dfmp2.io.json import to_json
from dfmp2.io.report import pair_table, report
from dfmp2.io.start_orbitals import read_start_orbitals
from tests.conftest import Stored

PATIENCE = 20.0  # s; a reading takes some 0.03
FILES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)

Change = tuple[str, float, bytes]

# What (overwrite, insert, delete or cut off), where (fraction of the file), with which bytes.
changes = st.lists(
    st.tuples(
        st.sampled_from(["overwrite", "overwrite", "overwrite", "insert", "delete", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.one_of(st.binary(min_size=1, max_size=16), st.sampled_from([b"\0" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f"])),
    ),
    min_size=1,
    max_size=8,
)


def mutate(content: bytes, plan: list[Change]) -> bytes:
    data = bytearray(content)
    for kind, fraction, new in plan:
        place = int(fraction * len(data))
        if kind == "overwrite":
            data[place : place + len(new)] = new
        elif kind == "insert":
            data[place:place] = new
        elif kind == "delete":
            del data[place : place + len(new)]
        else:
            del data[place:]
    return bytes(data)


def read_or_refuse(path: Path) -> bool:
    """Whether the file was read as a result; what is read can be shown."""
    start, accepted = time.monotonic(), False
    with suppress(InputError, ResultFileError):
        result = hdf5.read(path)
        accepted = True
        assert report(result) and to_json(result) and pair_table(result)
    for reader in (hdf5.verify, read_start_orbitals):
        with suppress(InputError, ResultFileError):
            reader(path)
    assert time.monotonic() - start < PATIENCE
    return accepted


@FILES
@given(plan=changes)
def test_changed_anywhere(plan: list[Change], radical: Stored, tmp_path: Path) -> None:
    path = tmp_path / "changed.h5"
    path.write_bytes(mutate(radical.path.read_bytes(), plan))
    read_or_refuse(path)


@FILES
@given(place=st.integers(0, 4095), new=st.binary(min_size=1, max_size=8), heap=st.booleans())
@pytest.mark.slow
def test_changed_where_the_structure_is(place: int, new: bytes, heap: bool, water: Stored, tmp_path: Path) -> None:
    """The first pages hold superblock, root group and a heap of texts; another heap is looked for by its signature."""
    content = bytearray(water.path.read_bytes())
    start = content.rfind(SIGNATURE) if heap else 0
    content[start + place : start + place + len(new)] = new
    path = tmp_path / "changed.h5"
    path.write_bytes(content)
    read_or_refuse(path)


def test_cut_off_at_every_length(water: Stored, tmp_path: Path) -> None:
    """Half a file is never a result: HDF5 stores its length."""
    content, path = water.path.read_bytes(), tmp_path / "short.h5"
    lengths = [*range(0, 64), *random.Random(1).sample(range(64, len(content)), 60), len(content) - 1]
    for length in lengths:
        path.write_bytes(content[:length])
        with pytest.raises(ResultFileError):
            hdf5.read(path)


def free_space(content: bytes) -> int:
    """Where the free space of the first heap begins that has any."""
    heap = content.find(SIGNATURE)
    while heap >= 0:
        place, end = heap + HEADER, heap + int.from_bytes(content[heap + 8 : heap + 16], "little")
        while place + HEADER <= end:
            if not any(content[place : place + 2]):
                return place
            place += HEADER + -(-int.from_bytes(content[place + 8 : place + 16], "little") // 8) * 8
        heap = content.find(SIGNATURE, heap + 1)
    raise AssertionError("the heaps of a result are not all full to the last byte")


@pytest.mark.parametrize(
    ("index", "length"), [(0, 0), (0, 1), (0, 2**64 - 1), (1, 2**64 - 1), (1, 2**64 - 16)], ids=range(5)
)
def test_a_hole_in_the_file_is_refused_at_once(index: int, length: int, water: Stored, tmp_path: Path) -> None:
    """Such a step from object to object keeps HDF5 2.0 busy for ever, beyond the reach of any signal."""
    content, path = bytearray(water.path.read_bytes()), tmp_path / "hole.h5"
    assert not has_broken_heap(water.path)
    place = free_space(bytes(content))
    content[place : place + HEADER] = index.to_bytes(8, "little") + length.to_bytes(8, "little")
    path.write_bytes(content)
    for reader in (hdf5.read, hdf5.verify, read_start_orbitals):
        with pytest.raises(ResultFileError, match="damaged file"):
            reader(path)


def test_a_text_that_claims_gigabytes_is_refused_at_once(water: Stored, tmp_path: Path) -> None:
    """The HDF5 library reserves what a text claims before it looks for it."""
    import h5py

    with h5py.File(water.path) as handle:
        offset = handle["dfmp2/input/text"].id.get_offset()
    content, path = bytearray(water.path.read_bytes()), tmp_path / "claim.h5"
    content[offset : offset + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    with pytest.raises(ResultFileError, match="longer than the file"):
        hdf5.read(path)


def test_a_heap_of_countless_objects_is_refused(tmp_path: Path) -> None:
    path, empty = tmp_path / "heap.h5", b"\x01" + bytes(HEADER - 1)
    for count, broken in ((1000, False), (1_000_000, True)):
        path.write_bytes(SIGNATURE + b"\x01\0\0\0" + (HEADER * (count + 1)).to_bytes(8, "little") + empty * count)
        assert has_broken_heap(path) == broken


def test_unchanged_it_is_read(water: Stored, radical: Stored) -> None:
    assert read_or_refuse(water.path) and read_or_refuse(radical.path)
