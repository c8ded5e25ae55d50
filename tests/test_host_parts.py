"""The layer beneath the methods: BLAS calls against NumPy, workers, regions of files, devices,
folders."""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import platform
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from pyscf import lib

from dfmp2.errors import (
    Dfmp2Error,
    DiskFull,
    InputError,
    Option,
    ResourceError,
    ResultExists,
    ResultFileError,
)
from dfmp2.host import blas, files, resources, threads
from dfmp2.host.arrays_on_disk import FileRegion, StoredTensor, numbers_hash
from dfmp2.host.blas import SymmetricProducts
from dfmp2.host.files import remove_parts
from dfmp2.host.threads import Workers
from tests.conftest import PATIENCE
from tests.recorded import recorded_error, recorded_texts

RNG = np.random.default_rng(31)


# --- products -------------------------------------------------------------------------------------


@pytest.fixture
def lower() -> Any:
    """A lower triangle, with something above its diagonal that must not count."""
    return np.asfortranarray(RNG.standard_normal((5, 5)))


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_are_multiplied_with_a_triangle(lower: Any, count: int, transposed: bool) -> None:
    rows = RNG.standard_normal((count, 5))
    t = np.tril(lower)
    expected = rows @ (t if transposed else t.T)
    whole = np.vstack([rows, np.ones((2, 5))])
    blas.multiply_rows(lower, whole[:count], transposed=transposed)
    np.testing.assert_allclose(whole[:count], expected, rtol=1e-13)
    np.testing.assert_array_equal(whole[count:], np.ones((2, 5)))


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (2, 5), (6, 7), (3, 3)])
def test_columns_are_multiplied_with_a_triangle(lower: Any, start: int, stop: int) -> None:
    block = RNG.standard_normal((5, 7))
    expected = block.copy()
    expected[:, start:stop] = np.tril(lower) @ block[:, start:stop]
    blas.multiply_columns(lower, block, start, stop)
    np.testing.assert_allclose(block, expected, rtol=1e-13)


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (0, 2), (2, 5), (5, 6), (3, 3), (4, 7)])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_squares_are_added_above_the_diagonal(start: int, stop: int, count: int) -> None:
    """No rows or an empty range add nothing."""
    rows, matrix = RNG.standard_normal((count, 6)), RNG.standard_normal((6, 6))
    expected = matrix.copy()
    if start < stop <= 6:
        square = np.triu(rows.T @ rows)
        expected[start:stop] += square[start:stop]
    blas.add_square(rows, matrix, start, stop)
    np.testing.assert_allclose(matrix, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_projections_are_added(count: int) -> None:
    rows = RNG.standard_normal((count, 6))
    vector, sums = RNG.standard_normal((2, 6))
    expected = sums + rows.T @ (rows @ vector)
    sums = sums.copy()
    blas.add_projection(rows, vector, sums)
    np.testing.assert_allclose(sums, expected, rtol=1e-12)


def test_packed_symmetric_matrices_are_multiplied() -> None:
    """Sets of several sizes, one of them empty; used twice."""
    n = 5
    sets = [RNG.standard_normal((m, n)) for m in (3, 0, 1)]
    made = SymmetricProducts(sets)
    for k in (4, 2):
        packed = RNG.standard_normal((k, n * (n + 1) // 2))
        out = [np.full((k, len(one), n), np.nan) for one in sets]
        made(packed, out)
        for number in range(k):
            square = np.zeros((n, n))
            square[np.tril_indices(n)] = packed[number]
            square = square + square.T - np.diag(square.diagonal())
            for one, found in zip(sets, out, strict=True):
                np.testing.assert_allclose(found[number], one @ square, atol=1e-12)


LOWER = np.asfortranarray(np.zeros((5, 5)))
ROWS, SQUARE, VECTOR = np.zeros((3, 5)), np.zeros((5, 5)), np.zeros(5)
SINGLE, TURNED = np.float32, np.zeros((5, 3)).T
PACKED, OUT = np.zeros((2, 15)), [np.zeros((2, 3, 5))]


@pytest.mark.parametrize(
    "call",
    [
        lambda: blas.multiply_rows(LOWER, ROWS.astype(SINGLE)),
        lambda: blas.multiply_rows(LOWER, TURNED),
        lambda: blas.multiply_rows(LOWER.astype(SINGLE), ROWS),
        lambda: blas.multiply_rows(np.ascontiguousarray(LOWER), ROWS),
        lambda: blas.add_square(ROWS.astype(SINGLE), SQUARE, 0, 2),
        lambda: blas.add_square(TURNED, SQUARE, 0, 2),
        lambda: blas.add_square(ROWS, SQUARE[:4], 0, 2),
        lambda: blas.add_square(ROWS, SQUARE.astype(SINGLE), 0, 2),
        lambda: blas.add_square(ROWS, np.zeros((10, 5))[::2], 0, 2),
        lambda: blas.add_projection(ROWS[:, ::2], VECTOR[:3], VECTOR[:3]),
        lambda: blas.add_projection(ROWS, VECTOR[:4], VECTOR),
        lambda: blas.add_projection(ROWS, VECTOR, VECTOR[:4]),
        lambda: blas.add_projection(ROWS, VECTOR.astype(SINGLE), VECTOR),
        lambda: SymmetricProducts([ROWS])(np.zeros((2, 14)), OUT),
        lambda: SymmetricProducts([ROWS])(PACKED.astype(SINGLE), OUT),
        lambda: SymmetricProducts([ROWS])(np.zeros((15, 2)).T, OUT),
        lambda: SymmetricProducts([ROWS])(PACKED, [np.zeros((2, 2, 5))]),
        lambda: SymmetricProducts([ROWS, ROWS.astype(SINGLE)]),
    ],
)
def test_arrays_that_would_be_read_wrongly_are_refused(call: Callable[[], None]) -> None:
    """Other types, orders and shapes, which BLAS would misinterpret."""
    with pytest.raises((TypeError, ValueError)):
        call()


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
    threads.each(0, fail, 2)


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
    assert list(threads.prefetched(load, 0)) == []


def test_a_pool_is_used_again_unless_a_task_failed() -> None:
    with threads.worker_pool(3) as first:
        assert list(first.map(abs, (-1, 2))) == [1, 2]
        with threads.worker_pool(3) as inner:
            assert inner is not first
    with threads.worker_pool(3) as again, threads.worker_pool(2) as smaller:
        assert again in (first, inner)
        assert (again._max_workers, smaller._max_workers) == (3, 2)
    with pytest.raises(ZeroDivisionError), threads.worker_pool(3) as failed:
        failed.submit(lambda: 1 // 0).result()
    with pytest.raises(RuntimeError):
        failed.submit(abs, 1)
    with threads.worker_pool(3) as other:
        assert other is not failed


def test_a_watch_hears_of_every_task(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, str, float, float]] = []
    monkeypatch.setattr(Workers, "watch", lambda *what: heard.append(what))
    before = time.perf_counter()

    def task(a: int, *, b: int) -> int:
        return 10 * a + b

    with Workers(1, "mine") as pool:
        assert pool.submit(task, 3, b=4).result() == 34
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result()
    assert [one[0] for one in heard] == ["mine_0", "mine_0"]
    assert heard[0][1] == "test_a_watch_hears_of_every_task.task"
    assert before <= heard[0][2] <= heard[0][3] <= heard[1][2] <= time.perf_counter()


def test_a_library_is_known_by_the_folder_of_its_openblas() -> None:
    packages = "/usr/lib/python3/site-packages"
    for path, name in (
        (f"{packages}/numpy.libs/libscipy_openblas64_-6bb31eeb.so", "NumPy"),
        (f"{packages}/scipy.libs/libscipy_openblas-6cdc3b4a.so", "SciPy"),
        (f"{packages}/pyscf/lib/deps/lib/libopenblas.so.0", "PySCF"),
        ("/usr/lib/x86_64-linux-gnu/libopenblas.so.0", "libopenblas.so.0"),
    ):
        assert threads._library_of(path) == name


def test_threads_of_the_libraries_are_put_back() -> None:
    before, of_openmp = threads.openblas(), lib.num_threads()
    assert before
    with threads.limited(of_openmp + 2, 3):
        assert 3 in threads.openblas().values()  # a build for one thread stays as it is
        assert lib.num_threads() == of_openmp + 2
    assert threads.openblas() == before
    assert lib.num_threads() == of_openmp

    def fail() -> None:
        with threads.limited(1):
            assert set(threads.openblas().values()) <= {1, None}
            raise ValueError("made up")

    with recorded_error(ValueError):
        fail()
    assert threads.openblas() == before


def test_a_library_that_is_loaded_later_is_listed(tmp_path: Path) -> None:
    """Between two listings of the same names: a copy of one that PySCF always loads."""
    assert threads._loaded("late-library") == ()
    late = tmp_path / "late-library.so"
    shutil.copy(lib.numpy_helper._np_helper._name, late)
    ctypes.CDLL(str(late))
    assert threads._loaded("late-library") == (os.path.realpath(late),)


@pytest.mark.parametrize(
    ("gives_back", "before", "after"),
    [
        (False, {}, {"OMP_WAIT_POLICY": "passive"}),
        (True, {}, {"OMP_WAIT_POLICY": "passive", "NUMPY_MADVISE_HUGEPAGE": "0"}),
        (
            True,
            dict.fromkeys(("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "7"),
            {"OMP_WAIT_POLICY": "passive", "NUMPY_MADVISE_HUGEPAGE": "0"},
        ),
        (True, {"OMP_WAIT_POLICY": "active", "NUMPY_MADVISE_HUGEPAGE": "1"}, {}),
    ],
)
def test_variables_of_the_thread_libraries(
    gives_back: bool,
    before: dict[str, str],
    after: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of waiting threads and huge pages only if they are not set."""
    monkeypatch.setattr(threads, "gives_memory_back", lambda: gives_back)
    monkeypatch.setattr(os, "environ", dict(before))
    threads.set_environment(5)
    own = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")
    assert os.environ == before | after | own | {"OMP_NUM_THREADS": "5"}


@pytest.mark.parametrize(
    ("order", "expected"), [("0\n", True), ("9\n", True), ("10\n", False), ("-1\n", False)]
)
def test_machines_that_give_huge_pages_back(
    order: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_PAGE_REPORTING", str(tmp_path / "order"))
    assert not resources.gives_memory_back()  # no such file
    (tmp_path / "order").write_text(order)
    assert resources.gives_memory_back() == expected


def test_existing_objects_are_not_collected_during_a_calculation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resources.Collections, "few", False)
    gc.unfreeze()  # what tests/conftest.py froze
    for _ in range(2):
        with resources.few_collections():
            assert gc.get_freeze_count() > 0
            with resources.few_collections():
                pass
            assert gc.get_freeze_count() > 0  # the outer one decides
        assert gc.get_freeze_count() == 0
    gc.freeze()  # by somebody else
    with resources.few_collections():
        pass
    assert gc.get_freeze_count() > 0
    resources.exclude_existing()
    with resources.few_collections():
        pass
    assert gc.get_freeze_count() > 0


# --- numbers in files -----------------------------------------------------------------------------


def test_regions_of_a_file_keep_to_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(b"x" * 8 + b"\0" * 80)
    descriptor = os.open(path, os.O_RDWR)
    try:
        region = FileRegion(descriptor, 8, str(path))
        write = os.pwrite  # which may store only a part
        monkeypatch.setattr(os, "pwrite", lambda to, left, place: write(to, left[:20], place))
        region.write(2, np.arange(6.0).reshape(2, 3)[:, ::-1])
        assert path.read_bytes()[:8] == b"x" * 8
        out = np.empty((3, 2))
        region.read(2, out)
        assert out.tolist() == [[2.0, 1.0], [0.0, 5.0], [4.0, 3.0]]
        assert (region.bytes_written, region.bytes_read) == (48, 48)
        region.read(0, np.empty((0, 3)))
        region.read(4, np.empty(1))
        assert region.bytes_read == 56
        with recorded_error(ResultFileError):
            region.read(9, np.empty(2))
    finally:
        os.close(descriptor)
    with recorded_error(ResourceError):
        region.read(0, np.empty(1))
    with recorded_error(ResourceError):
        region.write(0, np.empty(1))


@pytest.mark.parametrize("shrinks", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_a_tensor_is_fitted_where_it_lies(shrinks: bool, signed: bool, tmp_path: Path) -> None:
    """Raw integrals in blocks of fitting functions; groups of two and three orbitals."""
    raw = RNG.standard_normal((6, 5, 3))  # (P, i, a)
    factor = RNG.standard_normal((6, 4 if shrinks else 6))
    path = tmp_path / "b"
    path.write_bytes(b"\0" * 8 * raw.size)
    descriptor = os.open(path, os.O_RDWR)
    try:
        region = FileRegion(descriptor, 0, "b")
        groups = [(0, 2), (2, 5)]
        tensor = StoredTensor(region, (5, 3, 6), groups, signed=signed)
        for p0, p1 in ((0, 1), (1, 4), (4, 6)):
            tensor.add(p0, p1, raw[p0:p1])
        lengths: list[int] = []

        def solve(rows: Any) -> Any:
            lengths.append(len(rows))
            return rows @ factor

        assert tensor.fit(solve, 2, shrinks=shrinks) is tensor
        expected = np.einsum("pia,pq->iaq", raw, factor)
        assert tensor.shape == expected.shape
        for i in range(5):
            np.testing.assert_allclose(tensor[i], expected[i], rtol=1e-12)
        out = np.empty((3, 3, expected.shape[2]))
        tensor.read(1, 4, out)
        np.testing.assert_allclose(out, expected[1:4], rtol=1e-12)
        # Rows that come back shorter are processed in eighths, so that little is held twice.
        assert sorted(lengths) == ([1] * 6 + [2] * 4 + [1] if shrinks else [6, 9]) or shrinks
        if shrinks:
            assert max(lengths) == 2 and sum(lengths) == 15
        hashes = tuple(numbers_hash(tensor._rows(*group)) for group in groups)
        assert tensor.digests == (hashes if signed else ())
        again = StoredTensor(region, tensor.shape, groups)
        assert again.agrees(hashes) and again.digests == hashes
        assert not StoredTensor(region, tensor.shape, groups).agrees(hashes[:1])
        assert not StoredTensor(region, tensor.shape, groups).agrees(hashes[::-1])
        with recorded_error(TypeError):
            tensor.read(0, 1, np.empty((1, 3, 4), np.float32))
    finally:
        os.close(descriptor)


# --- devices --------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    nvidia, dev = tmp_path / "gpus", tmp_path / "dev"
    nvidia.mkdir()
    dev.mkdir()
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (nvidia / name).mkdir()
    for name in ("neuron0", "neuron1", "neuron_fake", "null", "neuron"):
        (dev / name).touch()
    return {"nvidia": nvidia, "devices": dev}


@pytest.mark.parametrize(
    ("backend", "worker", "environment", "expected"),
    [
        ("cuda", 3, {}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ("cuda-tf32", 0, {}, {"CUDA_VISIBLE_DEVICES": "0"}),
        ("auto", 1, {"CUDA_VISIBLE_DEVICES": "5, GPU-8f ,7"}, {"CUDA_VISIBLE_DEVICES": "GPU-8f"}),
        ("auto", 1, {"CUDA_VISIBLE_DEVICES": "5,-1,7"}, {"CUDA_VISIBLE_DEVICES": "5"}),
        ("cuda", 0, {"CUDA_VISIBLE_DEVICES": ""}, {}),
        ("cpu", 0, {"CUDA_VISIBLE_DEVICES": "5"}, {}),
        ("torch", 0, {}, {}),
        ("nki", 3, {}, {"NEURON_RT_VISIBLE_CORES": "3"}),
        ("nki-xla", 3, {"NEURON_RT_VISIBLE_CORES": "2,5-7"}, {"NEURON_RT_VISIBLE_CORES": "7"}),
        ("nki", 1, {"NEURON_RT_VISIBLE_CORES": ""}, {"NEURON_RT_VISIBLE_CORES": "1"}),
    ],
)
def test_a_worker_has_a_device_of_its_own(
    backend: str,
    worker: int,
    environment: dict[str, str],
    expected: dict[str, str],
    folders: dict[str, Path],
) -> None:
    assert resources.pinning(backend, worker, 4, environment, **folders) == expected
    nowhere = folders["devices"] / "none"
    assert resources.pinning("cuda", 0, 4, {}, nvidia=nowhere, devices=nowhere) == {}
    assert resources.pinning("nki", 0, 4, {}, nvidia=nowhere, devices=nowhere) == {}


def test_a_core_serves_one_process(folders: dict[str, Path]) -> None:
    resources.pinning("nki", 3, 4, {}, **folders)
    with recorded_error(InputError):
        resources.pinning("nki", 0, 5, {}, **folders)
    for wrong in ("3-1", "a", "1-", "12345"):
        with recorded_error(InputError):
            resources.pinning("nki", 0, 1, {"NEURON_RT_VISIBLE_CORES": wrong}, **folders)
    one = {"NEURON_RT_VISIBLE_CORES": "3-3"}
    assert resources.pinning("nki", 0, 1, one, **folders) == {"NEURON_RT_VISIBLE_CORES": "3"}


# --- files ----------------------------------------------------------------------------------------


def test_files_are_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x"
    files.put(target, b"one")
    files.put(target, b"two")
    with pytest.raises(FileExistsError):
        files.put(target, b"three", overwrite=False)
    assert target.read_bytes() == b"two" and list(tmp_path.iterdir()) == [target]

    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(FileExistsError):
        files.put(target, b"three", overwrite=False)
    files.put(tmp_path / "y", b"four", overwrite=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]
    with recorded_error(ResultExists):
        files.write_atomically(target, b"five", overwrite=False)
    files.write_atomically(target, b"five", overwrite=True)
    assert target.read_bytes() == b"five"
    long = files.beside(tmp_path / ("n" * 250))
    assert len(long.name) == 1 + 200 + len(".part-") + 12 and long.parent == tmp_path
    assert files.beside(target) != files.beside(target)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, DiskFull),
        (errno.EIO, ResourceError),
        (errno.EACCES, ResourceError),
    ],
)
def test_a_disk_that_takes_nothing_any_more_is_full(
    number: int, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(number, os.strerror(number))
    assert files.disk_refusal(error) is kind

    def fail(*_: Any, **__: Any) -> None:
        raise error

    target = tmp_path / "x"
    with recorded_error(ResourceError) as caught, files.settled(target):
        fail()
    assert type(caught.value) is kind
    monkeypatch.setattr(os, "fsync", fail)
    with recorded_error(ResourceError) as caught, files.settled(target):
        pass
    assert type(caught.value) is kind
    monkeypatch.setattr(Path, "mkdir", fail)
    with recorded_error(ResourceError) as caught:
        files.make_folder(tmp_path / "a" / "b")
    assert type(caught.value) is kind
    monkeypatch.setattr(Path, "touch", fail)
    with recorded_error(ResourceError) as caught:
        files.require_writable(tmp_path / "x", overwrite=True)
    assert type(caught.value) is kind


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("x")
    files.require_writable(there, overwrite=True)
    with recorded_error(ResultExists):
        files.require_writable(there, overwrite=False)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ResultExists):
        files.require_writable(dangling, overwrite=False)
    for wrong in (tmp_path, tmp_path / "no" / "x", there / "x", Path("/dev/null")):
        with pytest.raises(InputError):
            files.require_writable(wrong, overwrite=True)
    with recorded_error(InputError):
        files.require_writable(tmp_path / ("n" * 300), overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "there"]
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    before = files.stamp(there)
    assert before == (1, there.stat().st_mtime_ns)
    assert files.stamp(tmp_path / "none") == files.NO_FILE == (0, 0)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", ["protected", "link", "none/x", "n" * 300])
def test_each_of_several_files_is_checked(place: int, name: str, tmp_path: Path) -> None:
    """With the same refusal as of one file alone, which names its option."""
    (tmp_path / "protected").touch(0o444)
    (tmp_path / "link").symlink_to("protected")
    targets = [(Option("output"), tmp_path / "x"), (Option("xyz"), tmp_path / "y")]
    with pytest.raises(Dfmp2Error) as alone:
        files.require_writable(tmp_path / name, overwrite=True, option=Option("csv"))
    targets.insert(place, (Option("csv"), tmp_path / name))
    with pytest.raises(type(alone.value)) as caught:
        files.require_all_writable(targets, overwrite=True)
    assert str(caught.value) == str(alone.value) and "csv" in str(caught.value)


# --- caches, locks, memory ------------------------------------------------------------------------


def test_entries_of_the_cache_are_those_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.load_cached("one") is None
    files.store_cached("one", {"a": 1})
    files.store_cached("two", {"b": 2})
    assert files.load_cached("one") == {"a": 1} and files.load_cached("two") == {"b": 2}
    files.store_cached("one", {"a": 3})
    assert files.load_cached("one") == {"a": 3} and files.load_cached("two") == {"b": 2}
    assert files.cache_file() == tmp_path / "dfmp2" / "calibration.json"
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", {"XDG_CACHE_HOME": "", "HOME": "/home/x"})
        assert files.cache_file().parent == Path("/home/x/.cache/dfmp2")
    keys = {files.cache_key(what, libraries) for what in "ab" for libraries in ((), ("numpy",))}
    assert len(keys) == 4
    assert np.__version__ in files.cache_key("a", ("numpy",))
    here = files.cache_key("a", ())
    for name in ("node", "machine"):  # a home folder may be that of several hosts
        with monkeypatch.context() as patch:
            patch.setattr(platform, name, lambda: "another")
            assert files.cache_key("a", ()) != here
    files.cache_file().write_text("{ damaged")
    assert files.load_cached("one") is None
    files.cache_file().write_text("[1, 2]")
    assert files.load_cached("one") is None
    files.store_cached("one", {"a": 4})
    assert files.load_cached("one") == {"a": 4}


def test_a_lock_is_taken_several_times_by_one_process_and_by_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    monkeypatch.setattr(files, "UNNAMED", 0.1)
    target = tmp_path / "x.h5"
    assert files.lock_file(target) == tmp_path / ".x.lock"
    assert files.lock_file(tmp_path / "y") == tmp_path / ".y.lock"
    assert files.lock_file(tmp_path / "y.csv") == tmp_path / ".y.csv.lock"
    assert files.lock_holder(target) is None
    monkeypatch.chdir(tmp_path)
    assert files.acquire_lock(target) is None and files.acquire_lock(Path("x.h5")) is None
    held = files.lock_holder(target)
    assert held is not None and held.pid == os.getpid() and held.host == platform.node()
    assert str(held) == f"process {held.pid} on {held.host}, since {held.since}"
    child = os.fork()
    if not child:  # it holds nothing
        os._exit(files.acquire_lock(target) != held)
    assert os.waitpid(child, 0)[1] == 0
    files.release_lock(target)
    assert files.lock_file(target).exists()
    files.release_lock(target)
    files.release_lock(target)  # nothing is held any more
    assert files.lock_holder(target) is None and not list(tmp_path.iterdir())
    # Another process counts if it holds the file's lock, whatever the file says.
    path = files.lock_file(target)
    with FileLock(path, thread_local=False):
        for said, name in (
            ('{"pid": 7, "host": "h", "since": "s"}', "process 7 on h, since s"),
            ("damaged", "another process"),
        ):
            path.write_text(said)
            other = files.acquire_lock(target)
            assert str(other) == str(files.lock_holder(target)) == name
            with recorded_error(ResultFileError), files.locked(target):
                pass
        files.discard_lock(target)
        assert path.exists()
    for said in ("", '{"pid": 7, "host": "h", "since": "s"}'):
        path.write_text(said)
        assert files.lock_holder(target) is None
        assert path.exists() == bool(said)  # a file that names nobody was left by a look
    files.discard_lock(target)
    assert not path.exists()


@pytest.mark.parametrize(
    ("pid", "host", "computes"),
    [
        (os.getpid(), None, True),
        (2**22 - 1, None, False),
        (2**22 - 1, "elsewhere", True),  # nobody here knows
        (0, "elsewhere", False),
    ],
    ids=["this process", "none", "of another host", "without a number"],
)
def test_who_holds_a_lock_may_be_alive(pid: int, host: str | None, computes: bool) -> None:
    assert files.Holder(pid, host or socket.gethostname(), "since").computes() == computes


def test_the_space_of_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written so far will be free again."""
    monkeypatch.setattr(files, "free_disk", lambda folder: 40)
    asked = ((100, 20), (100, 60), (None, 20), (100, 0))
    recorded_texts([files.describe_space(tmp_path, *numbers) for numbers in asked])


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


NAMES = ("x.h5", "y.h5")


def test_parts_of_a_file_are_those_of_its_folder(tmp_path: Path) -> None:
    """Those of a file of the same name elsewhere are left."""
    targets = [tmp_path / "a" / "x.h5", tmp_path / "b" / "y.h5"]
    parts = [
        tmp_path / folder / f"{files._beginning(Path(name))}1" for folder in "ab" for name in NAMES
    ]
    for part in parts:
        part.parent.mkdir(exist_ok=True)
        part.touch()
    remove_parts(*targets)
    assert [part.exists() for part in parts] == [False, True, True, False]
