"""A common thread setting for BLAS libraries, OpenMP and our own workers.

NumPy, SciPy and PySCF each bring their own OpenBLAS, and PySCF an OpenMP runtime; by default they
start several times as many threads as there are cores, which compete with each other. Here every
OpenBLAS runs single-threaded, and the only parallelism is PySCF's OpenMP loops and our workers,
which never run at the same time. The settings of a process that imports dfmp2 are restored
afterwards. Our workers are `worker_pool`, `each`, `each_share` and `prefetched`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, cast

from dfmp2.errors import InputError
from dfmp2.host.resources import gives_memory_back

Loaded = TypeVar("Loaded")
Part = TypeVar("Part")

# Names under which OpenBLAS exports its controls: plain, SciPy's and NumPy's 64-bit builds.
_OPENBLAS_NAMES = ("openblas_{}", "scipy_openblas_{}", "scipy_openblas_{}64_", "openblas_{}64_")
HUGE_PAGES = "NUMPY_MADVISE_HUGEPAGE"  # read by NumPy when it is imported
_OPENMP_LIBRARIES = ("libgomp", "libomp", "libiomp5")


def set_environment(threads: int) -> None:
    """Set the thread variables; only effective before NumPy and PySCF are loaded."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    # Waiting threads sleep, because spinning ones would take cores from our workers (glycine, SCF:
    # 1.0 s against 0.4 s).
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # NumPy asks for huge pages, but on such a machine the first touch of one takes 3 s per GB, and
    # of small pages 0.5 s.
    if gives_memory_back():
        os.environ.setdefault(HUGE_PAGES, "0")
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
        os.environ[name] = "1"


def require_huge_pages() -> None:
    """Raise for a variable with which NumPy cannot be imported.

    Raises
    ------
    InputError : it is no number
    """
    value = os.environ.get(HUGE_PAGES, "0")
    try:
        int(value)
    except ValueError as error:
        raise InputError(
            f"{HUGE_PAGES} is {value!r} in the environment, and NumPy cannot be imported with it: "
            "expected 0 or 1, or unset it"
        ) from error


@contextmanager
def limited(threads: int, blas: int = 1) -> Iterator[None]:
    """Give OpenMP `threads` threads and every loaded OpenBLAS `blas`, during the block."""
    undo: list[Callable[[], None]] = []
    try:
        undo += [_limit_openblas(library, blas) for library in _loaded("openblas")]
        undo += [_limit_openmp(library, threads) for library in _loaded(*_OPENMP_LIBRARIES)]
        yield
    finally:
        for restore in undo:
            restore()


def openblas() -> dict[str, int | None]:
    """Number of threads of every loaded OpenBLAS, by path; None if it does not tell."""
    controls = {path: _openblas_controls(path) for path in _loaded("openblas")}
    return {path: int(found[0]()) if found else None for path, found in controls.items()}


def openblas_kernels() -> list[tuple[str, str]]:
    """The library that each loaded OpenBLAS belongs to, and the processor type whose kernels it
    uses, as in ("PySCF", "Prescott")."""
    return [(_library_of(path), _openblas_kernels(path)) for path in _loaded("openblas")]


def kernels() -> str:
    """A description of everything other than sizes that affects the last bits of a product: the
    kernels of each OpenBLAS, and NumPy's instructions.

    For instance "SkylakeX (NumPy, SciPy), Prescott (PySCF), AVX512_ICL". OpenBLAS and NumPy choose
    by the processor; if neither tells, only the kind of processor is given.
    """
    users: dict[str, list[str]] = {}
    for library, core in openblas_kernels():
        users.setdefault(core, []).append(library)
    names = [f"{core} ({', '.join(sorted(libraries))})" for core, libraries in users.items()]
    return ", ".join([*sorted(names, reverse=True), _vector_instructions()])


def _openblas_kernels(path: str) -> str:
    """The processor type whose kernels an OpenBLAS uses."""
    library = ctypes.CDLL(path)
    for pattern in _OPENBLAS_NAMES:
        get = getattr(library, pattern.format("get_corename"), None)
        if get is not None:
            get.restype = ctypes.c_char_p
            return str(get().decode())
    return "unknown kernels"


def _library_of(path: str) -> str:
    """The library that an OpenBLAS belongs to, judged by its folder; otherwise the file's own
    name."""
    for name in ("NumPy", "SciPy", "PySCF"):
        if f"/{name.lower()}" in path:
            return name
    return os.path.basename(path)


def _vector_instructions() -> str:
    """The widest group of instructions that NumPy uses here, or the kind of processor."""
    import numpy as np  # which initialises its OpenBLAS when loaded

    config = cast(dict[str, Any], np.show_config(mode="dicts"))
    groups = config.get("SIMD Extensions", {}).get("found", [])
    return str(groups[-1]) if groups else platform.machine()


def _openblas_controls(path: str) -> tuple[Any, Any] | None:
    """The functions that get and set the number of threads."""
    library = ctypes.CDLL(path)
    for pattern in _OPENBLAS_NAMES:
        get = getattr(library, pattern.format("get_num_threads"), None)
        put = getattr(library, pattern.format("set_num_threads"), None)
        if get is not None and put is not None:
            return get, put
    return None


def _limit_openblas(path: str, threads: int) -> Callable[[], None]:
    controls = _openblas_controls(path)
    if controls is None:
        return lambda: None
    get, put = controls
    before = int(get())
    put(ctypes.c_int(threads))
    return lambda: put(ctypes.c_int(before))


def _limit_openmp(path: str, threads: int) -> Callable[[], None]:
    library = ctypes.CDLL(path)
    before = int(library.omp_get_max_threads())
    library.omp_set_num_threads(ctypes.c_int(threads))
    return lambda: library.omp_set_num_threads(ctypes.c_int(before))


class _LoadedObject(ctypes.Structure):
    """`struct dl_phdr_info` (man 3 dl_iterate_phdr); `added` and `removed` count the libraries that
    were loaded and unloaded so far."""

    _fields_: ClassVar = [
        ("address", ctypes.c_void_p),
        ("path", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("header_count", ctypes.c_uint16),
        ("added", ctypes.c_ulonglong),
        ("removed", ctypes.c_ulonglong),
    ]


_Visitor = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p
)


def _visit_loaded(visit: Callable[[_LoadedObject], bool]) -> None:
    """Call a function with each shared library of this process until it returns true."""
    # Keep holding the GIL, because the system takes its own lock here, and a thread that imports a
    # library takes them in this order.
    iterate = getattr(ctypes.PyDLL(None), "dl_iterate_phdr", None)
    if iterate is not None:
        iterate(_Visitor(lambda loaded, _size, _data: visit(loaded.contents)), None)


def _loaded(*names: str) -> tuple[str, ...]:
    """Paths of the shared libraries of this process whose file name contains one of `names`."""
    counts: list[tuple[int, int]] = []

    def count(loaded: _LoadedObject) -> bool:
        counts.append((loaded.added, loaded.removed))
        return True

    _visit_loaded(count)
    return _listed(names, *counts)


@lru_cache(10)
def _listed(names: tuple[str, ...], *_counts: tuple[int, int]) -> tuple[str, ...]:
    """The same, listed again only after a library was loaded or unloaded: a process has hundreds,
    and every run asks four times."""
    paths = set()

    def visit(loaded: _LoadedObject) -> bool:
        path = os.fsdecode(loaded.path)
        file = path.rpartition("/")[2]
        if any(name in file for name in names):
            paths.add(os.path.realpath(path))
        return False

    _visit_loaded(visit)
    return tuple(sorted(paths))


class Workers(ThreadPoolExecutor):
    """The thread pool for all of our work.

    Attributes
    ----------
    watch : if set, called by the worker with its name, the task, its start and end
        (`time.perf_counter`, s)
    """

    watch: ClassVar[Callable[[str, str, float, float], None] | None] = None

    def __init__(self, workers: int, name: str = "worker") -> None:
        super().__init__(workers, name)

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        """As in `concurrent.futures`."""
        watch = Workers.watch
        return super().submit(work if watch is None else _watched(work, watch), *given, **named)


def _watched(
    work: Callable[..., Any], watch: Callable[[str, str, float, float], None]
) -> Callable[..., Any]:
    task = getattr(work, "__qualname__", type(work).__name__).replace(".<locals>", "")

    def timed(*given: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return work(*given, **named)
        finally:
            watch(threading.current_thread().name, task, begin, time.perf_counter())

    return timed


# Idle pools by their number of threads: to start threads takes longer than many of the tasks
_IDLE: dict[int, list[Workers]] = {}


@contextmanager
def worker_pool(count: int) -> Iterator[Workers]:
    """A pool of `count` threads, an idle one if there is one; after an error or a signal it is shut
    down, and no further task is started.

    All tasks must be finished at the end of the block.
    """
    idle = _IDLE.setdefault(count, [])
    try:
        pool = idle.pop()
    except IndexError:
        pool = Workers(count)
    finished = False
    try:
        yield pool
        finished = True
    finally:
        if finished:
            idle.append(pool)
        else:
            pool.shutdown(cancel_futures=True)


def each(count: int, work: Callable[[int], Part], workers: int) -> list[Part]:
    """[work(0), ..., work(count - 1)], called in threads; after an error or a signal, no further
    call is started."""
    with worker_pool(workers) as pool:
        futures = [pool.submit(work, number) for number in range(count)]
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()
    return [future.result() for future in futures]


def shares(count: int, workers: int) -> list[tuple[int, int]]:
    """range(count) in a nearly equal range (first, last) for each worker."""
    step = count / workers
    return [(round(k * step), round((k + 1) * step)) for k in range(workers)]


def each_share(count: int, work: Callable[[int, int], Part], workers: int) -> list[Part]:
    """[work(first, last), ...] of the `shares` of all workers, each called in a thread."""
    ranges = shares(count, workers)
    return each(workers, lambda number: work(*ranges[number]), workers)


def prefetched(load: Callable[[int], Loaded], count: int) -> Iterator[Loaded]:
    """Yield load(0), load(1), ..., each loaded by a thread while the caller works on the previous
    one.

    `load(k)` must not modify the value returned by `load(k - 1)`.
    """
    with Workers(1, "reader") as pool:
        coming = [pool.submit(load, 0)] if count else []
        for k in range(1, count + 1):
            present = coming.pop().result()
            if k < count:
                coming.append(pool.submit(load, k))
            yield present
