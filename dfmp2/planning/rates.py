"""Rates of this machine: of the program's own routines, and of a scratch folder.

Each is measured once and kept by `dfmp2.host.files`, with one entry per machine, quantity, and
versions of the libraries involved. Without a measurement the defaults below apply, which are those
of the 2-core machine on which the first version was written.

Other processes can only slow a routine down. Each rate is therefore the best of several short runs,
the processor use of others is recorded, and disturbed rates are measured again, keeping the better
ones, until the machine is quiet (`refreshed`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dfmp2.backends import tiling
from dfmp2.backends.base import Backend, Operand, Tile
from dfmp2.fitting.sets import resolve_fitting
from dfmp2.host import threads
from dfmp2.host.files import cache_key, load_cached, store_cached
from dfmp2.host.resources import Others
from dfmp2.host.scratch import SUFFIX, Space
from dfmp2.integrals import three_center
from dfmp2.integrals.grid import make_grid
from dfmp2.molecule.basis_library import resolve_orbital
from dfmp2.molecule.mole import build_auxiliary, build_mole, primitive_functions
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.planning.sizes import Workload

LIBRARIES = ("numpy", "scipy", "pyscf", "dfmp2")  # a new version means a new measurement
REPEATS = 3
PRODUCT = 768  # edge of the matrices
ROOM = 10**8  # bytes for values of basis functions on a grid
QUIET = 0.1  # cores used by other processes, above which rates count as disturbed
WATCHED = 0.2  # s to watch whether the machine has become quieter
CHUNK = 8 << 20  # bytes per access to a disk
SIZE = 48 * CHUNK  # 403 MB
LONGEST = 8.0  # s for writing and for reading; a slow disk is stopped then


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of this host with a given number of threads. Rates that are not measured are fractions
    of these.

    Attributes
    ----------
    integrals : float
        Three-centre integrals per second, as `Workload.integrals` counts them.
    products, products_single : float
        Floating-point operations per second of products of matrices in float64 and float32.
    functional : float
        Points times basis functions per second for an exchange-correlation energy and potential.
    pairs_fp64, pairs_mixed : float
        Floating-point operations per second of the backend's pair energies.
    start : float
        Seconds of a run outside its stages (libraries, bases); not measured.
    launch : float
        Seconds of a command before and after the run (interpreter, imports, report, file); not
        measured.
    foreign : float
        Cores that other processes took from the measurement, i.e. used beyond the idle ones.
    date : str
        Date of the measurement, ISO 8601, "" for the built-in rates.
    """

    integrals: float = 3.2e8
    products: float = 9.6e10
    products_single: float = 1.9e11
    functional: float = 7.0e7
    pairs_fp64: float = 9.0e10
    pairs_mixed: float = 1.8e11
    start: float = 0.3
    launch: float = 0.45
    foreign: float = 0.0
    date: str = ""

    @property
    def four_centre(self) -> float:
        """Four-centre integrals per second."""
        return 0.56 * self.integrals

    @property
    def exchange(self) -> float:
        """Operations per second of the SCF's Coulomb and exchange matrices in float64."""
        return 0.73 * self.products

    @property
    def exchange_single(self) -> float:
        """The same in float32."""
        return 0.84 * self.products_single

    @property
    def exact_exchange(self) -> float:
        """The same from four-centre integrals."""
        return 0.029 * self.products

    @property
    def solve(self) -> float:
        """Operations per second of triangular solves."""
        return 0.94 * self.products

    @property
    def transform(self) -> float:
        """Operations per second of the AO to MO transformation."""
        return 0.83 * self.products

    @property
    def checked(self) -> float:
        """Operations per second of PySCF's own DF-MP2, much of which runs on one core."""
        return 0.5 * self.products

    @property
    def eigen(self) -> float:
        """n^3 per second of a diagonalisation."""
        return 0.052 * self.products

    @property
    def disturbed(self) -> bool:
        """Whether other processes used so much that the rates may be too low."""
        return self.foreign > QUIET

    def better(self, other: Rates) -> Rates:
        """The higher rate and shorter time of each kind, with the date of the other measurement."""
        names = [f.name for f in fields(self) if f.name != "date"]
        best: dict[str, Any] = {
            name: max(getattr(self, name), getattr(other, name)) for name in names
        }
        best |= {
            name: min(getattr(self, name), getattr(other, name))
            for name in ("start", "launch", "foreign")
        }
        return Rates(**best | {"date": other.date})


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Speed of a scratch folder, bytes per second; `date` of measurement, ISO 8601, "" for the
    built-in rates.

    write, read : of the disk; cached : of reading from the system's cache
    """

    write: float = 1.6e9
    read: float = 1.2e9
    date: str = ""
    cached: float = 4e9


BUILT_IN = DiskRates()


def load_rates(backend: str, count: int) -> Rates | None:
    """Rates of the routines, measured earlier on this host for a backend and thread count, or
    None."""
    return _known(Rates, _key(backend, count))


def store_rates(backend: str, count: int, rates: Rates) -> None:
    """Store rates of the routines."""
    store_cached(_key(backend, count), asdict(rates))


def load_disk(root: Path) -> DiskRates | None:
    """Rates of a scratch folder, measured earlier on this host, or None."""
    return _known(DiskRates, _disk_key(root))


Record = TypeVar("Record", Rates, DiskRates)
OF_TYPE: dict[str, Callable[[Any], Any]] = {  # type of a field -> its value from JSON
    "float": float,
    "str": str,
}


def _known(kind: type[Record], key: str) -> Record | None:
    """The record under a key; None if missing, damaged, or of another version."""
    stored = load_cached(key)
    try:
        if stored:
            return kind(
                **{one.name: OF_TYPE[str(one.type)](stored[one.name]) for one in fields(kind)}
            )
        return None
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _key(backend: str, count: int) -> str:
    return cache_key(f"{backend} {count} threads", LIBRARIES)


def _disk_key(root: Path) -> str:
    return cache_key(f"scratch {root.resolve()}", ())


# --- measuring ------------------------------------------------------------------------------------


def measure_rates(backend: Backend, count: int) -> Rates:
    """Measure the rates of all routines, which takes a few seconds, and store them."""
    others = Others()
    with threads.limited(count):
        found: dict[str, Any] = {**_host(count), **_pairs(backend)}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    rates = Rates(**found, foreign=_taken(others, count), date=now)
    store_rates(backend.name, count, rates)
    return rates


def refreshed(backend: Backend, count: int, known: Rates) -> Rates:
    """The rates, measured again if they were disturbed and the machine is quieter now."""
    if not known.disturbed:
        return known
    others = Others()
    time.sleep(WATCHED)
    if _taken(others, count) >= known.foreign:
        return known
    rates = known.better(measure_rates(backend, count))
    store_rates(backend.name, count, rates)
    return rates


def _taken(others: Others, count: int) -> float:
    """Cores that others used beyond those left idle while this process uses `count`."""
    return max(0.0, others.used() - max(0, (os.cpu_count() or count) - count))


def _host(count: int) -> dict[str, float]:
    """Rates of the host, on water molecules 3 angstrom apart: four in cc-pVTZ for integrals, two in
    cc-pVDZ for a functional."""
    mole, auxmole = _waters(4, "cc-pvtz")
    nao, naux = int(mole.nao), int(auxmole.nao)
    b = np.empty((naux, nao * (nao + 1) // 2))
    evaluate = shortest(lambda: [None for _ in three_center.packed_blocks(mole, auxmole, out=b)])
    size = Workload(
        nao=nao,
        naux_scf=naux,
        naux=naux,
        spins=(),
        precision="fp64",
        block_functions=0,
        primitives=primitive_functions(mole),
    )
    return {
        "integrals": size.integrals()["integrals"] / evaluate,
        "products": _product(np.float64),
        "products_single": _product(np.float32),
        "functional": _functional(count),
    }


def _product(kind: type[np.floating[Any]]) -> float:
    """Operations per second of a product of matrices."""
    square = np.random.default_rng(0).standard_normal((PRODUCT, PRODUCT)).astype(kind)
    return 2 * PRODUCT**3 / shortest(lambda: square @ square)


def _functional(count: int) -> float:
    """Points times functions per second of energy and potential of a GGA."""
    from dfmp2.scf.exchange_correlation import ExchangeCorrelation

    mole, _ = _waters(2, "cc-pvdz")
    with shielded():
        from pyscf.dft.numint import NumInt

        numint = NumInt()
        grid = make_grid(mole, "1")
        grid.build(with_non0tab=True)
    evaluator = ExchangeCorrelation(mole, grid, count, room=ROOM)
    density = np.eye(mole.nao)
    seconds = shortest(lambda: evaluator.energy_and_potential(numint, "pbe", density))
    return float(len(grid.weights) * mole.nao / seconds)


def _waters(number: int, basis: str) -> tuple[Any, Any]:
    """PySCF molecules for a row of water molecules, 3 angstrom apart, and for their MP2 fitting
    functions."""
    one = np.array([[0.0, 0.0, 0.2217], [0.0, 1.4309, -0.8867], [0.0, -1.4309, -0.8867]])
    shift = np.array([5.67, 0.0, 0.0])
    molecule = Molecule(
        ("O", "H", "H") * number, np.vstack([one + k * shift for k in range(number)])
    )
    orbital = resolve_orbital(basis, molecule.elements)
    mole = build_mole(molecule, orbital, 10**9)
    fitting = resolve_fitting("ri", None, orbital, molecule.elements)
    return mole, build_auxiliary(mole, molecule, fitting)


def _pairs(backend: Backend) -> dict[str, float]:
    """Rates of the pair energies in the backend's precisions, with all its workers at once."""
    nocc, nvir, naux = 16, 256, 768
    b = np.random.default_rng(1).standard_normal((nocc, nvir, naux)) / naux
    rates = {}
    for precision in ("fp64", "mixed"):
        if precision in backend.limits.precisions:
            operand = backend.put(
                b, -np.linspace(1.0, 2.0, nocc), np.linspace(0.5, 5.0, nvir), precision
            )
            backend.pair_terms(operand, operand, Tile(0, 1, 0, 1, True))
            taken = shortest(
                partial(
                    _every_tile,
                    backend,
                    operand,
                    tiling.triangle(nocc, backend.limits, nvir * naux),
                )
            )
            rates[f"pairs_{precision}"] = nocc * (nocc + 1) * nvir**2 * naux / taken
    return rates


def _every_tile(backend: Backend, operand: Operand, tiles: list[Tile]) -> None:
    work = partial(backend.pair_terms, operand, operand)
    threads.each(len(tiles), lambda number: work(tiles[number]), backend.limits.workers)


def shortest(work: Callable[[], object]) -> float:
    """Shortest time of REPEATS repetitions, s."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_disk(root: Path) -> DiskRates:
    """Write and read a file in a folder, which takes about a second, and store the rates.

    Raises
    ------
    ResourceError : the folder cannot be written or has too little space
    """
    with Space(root, SIZE) as space:
        # Such a file is removed with the folder, if necessary by the next run
        path = space.own_folder() / f"speed{SUFFIX}"
        try:
            write, read, cached = _moved(path)
        except OSError as error:
            raise space.failure(error) from error
    found = DiskRates(
        write=write, read=read, date=datetime.now(UTC).isoformat(timespec="seconds"), cached=cached
    )
    store_cached(_disk_key(root), asdict(found))
    return found


def _moved(path: Path) -> list[float]:
    """Bytes per second written to disk, read from it, and read again from the system's cache.

    The system caches written data and would serve a read at once, so the data are flushed to disk
    and dropped.
    """
    buffer, done = bytearray(os.urandom(CHUNK)), 0  # because a file system may compress zeros
    with path.open("w+b", buffering=0) as file:
        start = time.perf_counter()
        while done < SIZE and time.perf_counter() - start < LONGEST:
            done += file.write(buffer)
        os.fsync(file.fileno())
        found = [done / (time.perf_counter() - start)]
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(2):
            file.seek(0)
            done, start = 0, time.perf_counter()
            while time.perf_counter() - start < LONGEST and (count := file.readinto(buffer)):
                done += count
            found.append(done / (time.perf_counter() - start))
    return found
