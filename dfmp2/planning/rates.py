"""Rates of this machine: of the program's own routines, of a scratch folder, of large matrix products.

Each is measured once and kept by `dfmp2.host.cache`, one entry for a machine, what was measured, and the versions of
the libraries that it depends on. Where nothing was measured the defaults below hold: those of the 2-core machine the
first version was written on.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dfmp2.backends import tiling
from dfmp2.backends.base import Backend, Operand, Tile
from dfmp2.errors import ResourceError
from dfmp2.host import cache, threads
from dfmp2.host.scratch import SUFFIX, Space
from dfmp2.integrals import three_center
from dfmp2.integrals.metric import factorise
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.molecule.basis_library import resolve_orbital
from dfmp2.molecule.mole import build_auxiliary, build_mole
from dfmp2.molecule.molecule import Molecule
from dfmp2.scf.fitting_sets import resolve_fitting

LIBRARIES = ("numpy", "scipy", "pyscf", "dfmp2")  # a new version of any of them is measured again
PRODUCT_LIBRARIES = ("numpy", "torch", "dfmp2")
REPEATS = 3
CHUNK = 8 << 20  # bytes per access to a disk, a multiple of every block size that O_DIRECT asks for
SIZE = 48 * CHUNK  # 403 MB
LONGEST = 8.0  # s each way; what a slow disk has not done by then is left out
DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of this host with a given number of threads.

    Attributes
    ----------
    integrals : three-centre integrals per second; four_centre : four-centre integrals per second
    exchange, exchange_single, solve, transform, pairs_fp64, pairs_mixed : floating-point operations per second
        of the SCF's Coulomb and exchange matrices in float64 and float32, triangular solves, AO to MO
        transformation, pair energies
    eigen : n^3 per second of one generalised diagonalisation and what else an SCF iteration does
    start : seconds to import the libraries; iteration : seconds of overhead per SCF iteration
    """

    integrals: float = 1.2e8
    four_centre: float = 4.0e7
    exchange: float = 9.0e10
    exchange_single: float = 1.6e11
    solve: float = 8.0e10
    transform: float = 6.0e10
    pairs_fp64: float = 9.0e10
    pairs_mixed: float = 1.8e11
    eigen: float = 1.5e9
    start: float = 0.22
    iteration: float = 0.010


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Speed of a scratch folder, bytes per second; `date` of the measurement, ISO 8601, "" for the built-in rates."""

    write: float = 1.6e9
    read: float = 1.2e9
    date: str = ""


@dataclass(frozen=True, slots=True)
class ProductRates:
    """Rates of matrix products with NumPy and PyTorch for a number of threads (`dfmp2 bench --gemm`).

    Attributes
    ----------
    products : "numpy fp64 1", ... (library, precision, threads) -> operations per second of a large square product
    foreign : cores that other processes used meanwhile
    date : of the measurement, ISO 8601
    """

    products: dict[str, float]
    foreign: float
    date: str


BUILT_IN = DiskRates()


def load(backend: str, count: int) -> Rates | None:
    """Rates of the routines measured earlier on this host for a backend and thread count, or None."""
    return _known(_key(backend, count), lambda stored: Rates(**{name: float(value) for name, value in stored.items()}))


def store(backend: str, count: int, rates: Rates) -> None:
    """Keep rates of the routines."""
    cache.store(_key(backend, count), asdict(rates))


def load_disk(root: Path) -> DiskRates | None:
    """Rates of a scratch folder measured earlier on this host, or None."""
    return _known(_disk_key(root), lambda x: DiskRates(float(x["write"]), float(x["read"]), str(x["date"])))


def load_products(count: int) -> ProductRates | None:
    """Rates of products measured earlier on this host for a number of threads, or None."""

    def made(stored: dict[str, Any]) -> ProductRates:
        products = {str(name): float(value) for name, value in stored["products"].items()}
        return ProductRates(products, float(stored["foreign"]), str(stored["date"]))

    return _known(_product_key(count), made)


def store_products(count: int, record: ProductRates) -> None:
    """Keep rates of products."""
    cache.store(_product_key(count), asdict(record))


Record = TypeVar("Record")


def _known(key: str, made: Callable[[dict[str, Any]], Record]) -> Record | None:
    """What is kept under a key; None for nothing, and for what is damaged or of another version."""
    stored = cache.load(key)
    try:
        return None if stored is None else made(stored)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _key(backend: str, count: int) -> str:
    return cache.key(f"{backend} {count} threads", LIBRARIES)


def _disk_key(root: Path) -> str:
    return cache.key(f"scratch {root.resolve()}", ())


def _product_key(count: int) -> str:
    return cache.key(f"products {count} threads", PRODUCT_LIBRARIES)


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(backend: Backend, count: int) -> Rates:
    """Measure the rates of all routines, a few seconds, and keep them."""
    with threads.limited(count):
        rates = replace(Rates(), **_host(count), **_pairs(backend))
    store(backend.name, count, rates)
    return rates


def _host(count: int) -> dict[str, float]:
    """Rates of integrals, transformation, exchange, solves and diagonalisation on four waters, 3 angstrom apart."""
    from dfmp2.integrals.screening import every_pair
    from dfmp2.integrals.transform import Transformation
    from dfmp2.scf.jk import coulomb_exchange, fit_columns

    one = np.array([[0.0, 0.0, 0.2217], [0.0, 1.4309, -0.8867], [0.0, -1.4309, -0.8867]])
    shift = np.array([5.67, 0.0, 0.0])
    molecule = Molecule(("O", "H", "H") * 4, np.vstack([one + k * shift for k in range(4)]))
    orbital = resolve_orbital("cc-pvtz", molecule.elements)
    mole = build_mole(molecule, orbital, 10**9)
    auxmole = build_auxiliary(mole, molecule, resolve_fitting("ri", None, orbital, molecule.elements))
    nao, naux = int(mole.nao), int(auxmole.nao)
    npair = nao * (nao + 1) // 2
    rng = np.random.default_rng(0)
    c = rng.standard_normal((nao, nao)) / nao
    nocc, nvir = 40, 150
    space = ActiveSpace(c[:, :nocc].copy(), c[:, -nvir:].copy(), -np.ones(nocc), np.ones(nvir))
    b = np.empty((naux, npair))
    evaluate = _best(lambda: [None for _ in three_center.packed_blocks(mole, auxmole, out=b)])
    transformation = Transformation([space], count)
    transform = _best(lambda: transformation(b))
    factor = factorise(three_center.coulomb_metric(auxmole))
    solve = _best(lambda: fit_columns(b, factor, [npair], count))
    occupied = [np.ascontiguousarray(c[:, :nocc])]
    pairs = every_pair(nao)
    exchange = _best(lambda: coulomb_exchange(b, pairs, occupied, count))
    single = _best(lambda: coulomb_exchange(b, pairs, occupied, count, single=True))
    overlap = mole.intor_symmetric("int1e_ovlp")
    kinetic = mole.intor_symmetric("int1e_kin")
    eigen = _best(lambda: np.linalg.eigh(overlap @ kinetic @ overlap))
    return {
        "integrals": naux * npair / evaluate,
        "transform": 2 * naux * nocc * nao * (nao + nvir) / transform,
        "solve": naux**2 * npair / solve,
        "exchange": (3 * naux * nao**2 * nocc + 4 * naux * npair) / exchange,
        "exchange_single": (3 * naux * nao**2 * nocc + 4 * naux * npair) / single,
        "eigen": nao**3 / (2.5 * eigen),  # one iteration: diagonalisation, orthogonalisation, DIIS, gradient
    }


def _pairs(backend: Backend) -> dict[str, float]:
    """Rates of the pair energies in the precisions the backend has, all its workers at once."""
    nocc, nvir, naux = 16, 256, 768
    rng = np.random.default_rng(1)
    b = rng.standard_normal((nocc, nvir, naux)) / naux
    rates = {}
    for precision in ("fp64", "mixed"):
        if precision in backend.limits.precisions:
            operand = backend.put(b, -np.linspace(1.0, 2.0, nocc), np.linspace(0.5, 5.0, nvir), precision)
            backend.pair_terms(operand, operand, Tile(0, 1, 0, 1, True))
            taken = _best(partial(_every_tile, backend, operand, tiling.triangle(nocc, backend.limits, nvir * naux)))
            rates[f"pairs_{precision}"] = nocc * (nocc + 1) * nvir**2 * naux / taken
    return rates


def _every_tile(backend: Backend, operand: Operand, tiles: list[Tile]) -> None:
    work = partial(backend.pair_terms, operand, operand)
    threads.each(len(tiles), lambda number: work(tiles[number]), backend.limits.workers)


def _best(work: Callable[[], Any]) -> float:
    """Shortest time of a few repetitions, s."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_disk(root: Path, size: int | None = None) -> DiskRates:
    """Write and read a file in a folder, a second or so, and keep the rates.

    The system keeps what was written in memory and would answer a read at once, so both ways go around it where the
    file system can (O_DIRECT); elsewhere what was written is forced to disk and dropped from the cache before it is
    read.

    Parameters
    ----------
    size : of the file, bytes; None for SIZE

    Raises
    ------
    ResourceError : the folder cannot be written or has too little space
    """
    size = size or SIZE
    with Space(root, size) as space:
        path = space.own_folder() / f"speed{SUFFIX}"  # such a file is removed with the folder, also by the next run
        try:
            try:
                write, read = _disk(path, size, DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL or not DIRECT:
                    raise
                path.unlink(missing_ok=True)
                write, read = _disk(path, size, 0)  # a file system without direct access
        except OSError as error:
            raise ResourceError(
                f"scratch folder {root}: {error.strerror} while its speed was measured: name another one with --scratch"
            ) from error
    found = DiskRates(write, read, datetime.now(UTC).isoformat(timespec="seconds"))
    cache.store(_disk_key(root), asdict(found))
    return found


def _disk(path: Path, size: int, flags: int) -> tuple[float, float]:
    """Bytes per second written, `fsync` included, and read."""
    with mmap.mmap(-1, CHUNK) as buffer:  # begins at a page, as direct access needs
        buffer[:] = os.urandom(CHUNK)  # a file system may compress zeros
        handle = os.open(path, os.O_CREAT | os.O_RDWR | flags, 0o600)
        try:
            start = time.perf_counter()
            written = sum(_until(start, size, lambda: os.write(handle, buffer)))
            os.fsync(handle)
            writing = time.perf_counter() - start
            if not flags and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(handle, 0, os.SEEK_SET)
            start = time.perf_counter()
            read = sum(_until(start, written, lambda: os.readv(handle, [buffer])))
            return written / writing, read / (time.perf_counter() - start)
        finally:
            os.close(handle)


def _until(start: float, size: int, move: Callable[[], int]) -> Iterator[int]:
    """Bytes of each access until all are moved or the time is over."""
    left = size
    while left > 0 and time.perf_counter() - start < LONGEST:
        count = move()
        if not count:
            raise OSError(errno.EIO, "the file is shorter than what was written")
        left -= count
        yield count
