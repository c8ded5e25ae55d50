"""The layer beneath the methods: workers, regions of files, locks. Products are in the session
`files-locks-and-devices`."""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from filelock import FileLock
from pyscf import lib

from dfmp2.errors import (
    DiskFull,
    ResourceError,
    ResultFileError,
)
from dfmp2.host import files, resources, threads
from dfmp2.host.arrays_on_disk import FileRegion, StoredTensor, numbers_hash
from tests.conftest import PATIENCE
from tests.recorded import recorded_error

RNG = np.random.default_rng(31)


# --- workers --------------------------------------------------------------------------------------


def test_workers_are_as_many_as_they_should_be_and_stop_after_an_error() -> None:
    names: set[str] = set()
    together = threading.Barrier(3, timeout=PATIENCE)

    def work(number: int) -> None:
        names.add(threading.current_thread().name)
        together.wait()

    threads.each(3, work, 3)
    assert len(names) == 3 and all(name.startswith("worker_") for name in names)
    done: list[int] = []

    def fail(number: int) -> None:
        done.append(number)
        if number == 2:
            raise ValueError("made up")
        if number > 2:
            time.sleep(0.02)

    with recorded_error(ValueError):
        threads.each(1000, fail, 1)
    assert done[:3] == [0, 1, 2] and len(done) < 1000


def test_the_next_is_fetched_while_one_is_worked_on() -> None:
    begun = [threading.Event() for _ in range(4)]
    names: list[str] = []

    def load(k: int) -> int:
        names.append(threading.current_thread().name)
        begun[k].set()
        return 10 * k

    for k, value in enumerate(threads.prefetched(load, 4)):
        assert value == 10 * k
        if k < 3:
            assert begun[k + 1].wait(PATIENCE)
        assert not any(event.is_set() for event in begun[k + 2 :])
    assert set(names) == {"reader_0"}


def test_threads_of_the_libraries_are_put_back() -> None:
    before, of_openmp = threads.openblas(), lib.num_threads()
    assert before
    with threads.limited(of_openmp + 2, 3):
        assert 3 in threads.openblas().values()  # a build for one thread stays as it is
        assert lib.num_threads() == of_openmp + 2
    assert threads.openblas() == before
    assert lib.num_threads() == of_openmp

    with recorded_error(ValueError), threads.limited(1):
        assert set(threads.openblas().values()) <= {1, None}
        raise ValueError("made up")
    assert threads.openblas() == before


def test_kernels_of_a_library_are_named_by_one_word() -> None:
    """The processor type alone, without the settings of the build."""
    kernels = threads.openblas_kernels()
    assert kernels
    for library, core in kernels:
        assert core.isalnum(), (library, core)


def test_a_library_that_is_loaded_later_is_listed(tmp_path: Path) -> None:
    """Between two listings of the same names: a copy of one that PySCF always loads."""
    assert threads._loaded("late-library") == ()
    late = tmp_path / "late-library.so"
    shutil.copy(lib.numpy_helper._np_helper._name, late)
    ctypes.CDLL(str(late))
    assert threads._loaded("late-library") == (os.path.realpath(late),)


def test_existing_objects_are_not_collected_during_a_calculation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resources.Collections, "few", False)
    gc.unfreeze()  # what tests/conftest.py froze
    with resources.few_collections():
        with resources.few_collections():
            pass
        assert gc.get_freeze_count() > 0  # the outer one decides
    assert gc.get_freeze_count() == 0
    gc.freeze()  # by somebody else
    with resources.few_collections():
        pass
    assert gc.get_freeze_count() > 0


# --- numbers in files -----------------------------------------------------------------------------


def test_regions_of_a_file_keep_to_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(b"x" * 8 + b"\0" * 80)
    with open(path, "r+b") as file:
        region = FileRegion(file.fileno(), 8, str(path))
        write = os.pwrite  # which may store only a part
        monkeypatch.setattr(os, "pwrite", lambda to, left, place: write(to, left[:20], place))
        region.write(2, np.arange(6.0).reshape(2, 3)[:, ::-1])
        assert path.read_bytes()[:8] == b"x" * 8
        out = np.empty((3, 2))
        region.read(2, out)
        assert out.tolist() == [[2.0, 1.0], [0.0, 5.0], [4.0, 3.0]]
        region.read(0, np.empty((0, 3)))
        assert (region.bytes_written, region.bytes_read) == (48, 48)
        with recorded_error(ResultFileError):
            region.read(9, np.empty(2))
        monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        with pytest.raises(DiskFull):
            region.write(0, np.empty(1))
        monkeypatch.undo()
    with recorded_error(ResourceError):
        region.read(0, np.empty(1))
    with recorded_error(ResourceError):
        region.write(0, np.empty(1))


@pytest.mark.parametrize("shrinks", [False, True])
def test_a_tensor_is_fitted_where_it_lies(shrinks: bool, tmp_path: Path) -> None:
    """Raw integrals in blocks of fitting functions; groups of two and three orbitals."""
    raw = RNG.standard_normal((6, 5, 3))  # (P, i, a)
    factor = RNG.standard_normal((6, 4 if shrinks else 6))
    path = tmp_path / "b"
    path.write_bytes(b"\0" * 8 * raw.size)
    with open(path, "r+b") as file:
        region = FileRegion(file.fileno(), 0, "b")
        groups = [(0, 2), (2, 5)]
        tensor = StoredTensor(region, (5, 3, 6), groups, signed=True)
        for p0, p1 in ((0, 1), (1, 4), (4, 6)):
            tensor.add(p0, p1, raw[p0:p1])
        solve = Mock(side_effect=lambda rows: rows @ factor)
        tensor.fit(solve, 2, shrinks=shrinks)
        # Rows that come back shorter are processed in eighths, so that little is held twice.
        assert max(len(call.args[0]) for call in solve.mock_calls) == (2 if shrinks else 9)
        out = np.empty((5, 3, factor.shape[1]))
        tensor.read(0, 5, out)
        np.testing.assert_allclose(out, np.einsum("pia,pq->iaq", raw, factor), rtol=1e-12)
        hashes = tuple(numbers_hash(tensor._rows(*group)) for group in groups)
        again = StoredTensor(region, out.shape, groups)
        assert again.agrees(hashes) and again.digests == tensor.digests == hashes
        assert not StoredTensor(region, tensor.shape, groups).agrees(hashes[:1])
        assert not StoredTensor(region, tensor.shape, groups).agrees(hashes[::-1])
        with recorded_error(TypeError):
            tensor.read(0, 1, np.empty((1, 3, 4), np.float32))


# --- locks (and the session `files-locks-and-devices`) --------------------------------------------


def test_a_look_is_not_taken_for_a_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that checks who holds a lock may be interrupted by others, also with files of a
    dead process."""
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    monkeypatch.setattr(files, "UNNAMED", PATIENCE)
    target = tmp_path / "x.h5"
    path = files.lock_file(target)
    dead = json.dumps({"pid": 2**22 - 1, "host": socket.gethostname(), "since": "s"})
    for said in ("", dead):
        look = FileLock(path, thread_local=False)
        look.acquire()
        path.write_text(said)
        ended = threading.Timer(0.3, look.release)
        ended.start()
        assert files.acquire_lock(target) is None
        ended.join()
        holder = files.lock_holder(target)
        assert holder is not None and holder.pid == os.getpid()
        files.release_lock(target)
        assert not path.exists()
