"""Rates of this machine: of the program's own routines, and of a scratch folder.

Each is measured once and kept by `dfmp2.host.cache`, one entry for a machine, what was measured,
and the versions of the libraries that it depends on. Where nothing was measured the defaults below
hold: those of the 2-core machine the first version was written on.

Other processes can only make a routine slower. So each rate is that of the best of several short
runs, what others used meanwhile is kept with them, and rates that were disturbed are measured
again, the better of each kept, until the machine is quiet (`refreshed`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dfmp2.backends import tiling
from dfmp2.backends.base import Backend, Operand, Tile
from dfmp2.errors import ResourceError
from dfmp2.errors.messages import Option
from dfmp2.fitting.sets import resolve_fitting
from dfmp2.host import cache, threads
from dfmp2.host.resources import Others
from dfmp2.host.scratch import SUFFIX, Space
from dfmp2.integrals import three_center
from dfmp2.integrals.metric import factorise
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.molecule.basis_library import resolve_orbital
from dfmp2.molecule.mole import build_auxiliary, build_mole, primitive_functions
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.options import Options
from dfmp2.planning.sizes import Workload
from dfmp2.progress import Silent

LIBRARIES = ("numpy", "scipy", "pyscf", "dfmp2")  # a new version of any of them is measured again
REPEATS = 3
PRODUCT = 768  # edge of the matrices
QUIET = 0.1  # cores used by other processes, above which rates are called disturbed
WATCHED = 0.2  # s that tell whether the machine is quieter now
CHUNK = 8 << 20  # bytes per access to a disk
SIZE = 48 * CHUNK  # 403 MB
LONGEST = 8.0  # s each way; what a slow disk has not done by then is left out


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of this host with a given number of threads.

    Attributes
    ----------
    integrals, four_centre : integrals of three and of four centres per second, as
        `Workload.integrals` counts them
    exchange, exchange_single, solve, transform, pairs_fp64, pairs_mixed : floating-point operations
        per second of the SCF's Coulomb and exchange matrices in float64 and float32, triangular
        solves, AO to MO transformation, pair energies
    products : the same of float64 products by one core, as PySCF makes them
    exact_exchange : the same of Coulomb and exchange matrices from four-centre integrals
    eigen : n^3 per second of a diagonalisation
    matrices : n^2 per second of what else an SCF iteration does with its matrices
    reorder : bytes per second of integrals that are put in another order into new memory
    start : seconds of a run outside its stages, not measured: libraries, bases
    launch : seconds of a command before and after the run, not measured: interpreter, imports,
        report, file
    foreign : cores that other processes took from the measurement: those they used beyond the idle
        ones
    date : of the measurement, ISO 8601, "" for the built-in rates
    """

    integrals: float = 3.2e8
    four_centre: float = 1.8e8
    exchange: float = 7.0e10
    exchange_single: float = 1.6e11
    solve: float = 9.0e10
    transform: float = 8.0e10
    pairs_fp64: float = 9.0e10
    pairs_mixed: float = 1.8e11
    products: float = 4.8e10
    exact_exchange: float = 2.8e9
    eigen: float = 5.0e9
    matrices: float = 2.5e6
    reorder: float = 8.0e8
    start: float = 0.3
    launch: float = 0.45
    foreign: float = 0.0
    date: str = ""

    @property
    def disturbed(self) -> bool:
        """Whether other processes used so much that the rates may be too low."""
        return self.foreign > QUIET

    def better(self, other: Rates) -> Rates:
        """The higher rate and the shorter time of each kind, with the date of the other
        measurement."""
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
    """Speed of a scratch folder, bytes per second; `date` of the measurement, ISO 8601, "" for the
    built-in rates.

    write, read : of the disk; cached : of reading what is in the system's memory
    """

    write: float = 1.6e9
    read: float = 1.2e9
    date: str = ""
    cached: float = 4e9


BUILT_IN = DiskRates()


def load_rates(backend: str, count: int) -> Rates | None:
    """Rates of the routines measured earlier on this host for a backend and thread count, or
    None."""
    return _known(Rates, _key(backend, count))


def store_rates(backend: str, count: int, rates: Rates) -> None:
    """Keep rates of the routines."""
    cache.store_cached(_key(backend, count), asdict(rates))


def load_disk(root: Path) -> DiskRates | None:
    """Rates of a scratch folder measured earlier on this host, or None."""
    return _known(DiskRates, _disk_key(root))


Record = TypeVar("Record", Rates, DiskRates)
OF_TYPE: dict[str, Callable[[Any], Any]] = {  # of a field -> its value out of JSON
    "float": float,
    "str": str,
}


def _known(kind: type[Record], key: str) -> Record | None:
    """The record under a key; None for nothing, and for what is damaged or of another version."""
    stored = cache.load_cached(key)
    try:
        if stored:
            return kind(
                **{one.name: OF_TYPE[str(one.type)](stored[one.name]) for one in fields(kind)}
            )
        return None
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _key(backend: str, count: int) -> str:
    return cache.cache_key(f"{backend} {count} threads", LIBRARIES)


def _disk_key(root: Path) -> str:
    return cache.cache_key(f"scratch {root.resolve()}", ())


# --- measuring ------------------------------------------------------------------------------------


def measure_rates(backend: Backend, count: int) -> Rates:
    """Measure the rates of all routines, a few seconds, and keep them."""
    others = Others()
    with threads.limited(count):
        found: dict[str, Any] = {**_host(count), **_pairs(backend)}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    rates = Rates(**found, foreign=_taken(others, count), date=now)
    store_rates(backend.name, count, rates)
    return rates


def refreshed(backend: Backend, count: int, known: Rates) -> Rates:
    """Rates that were disturbed when they were measured, measured again where the machine is
    quieter now."""
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
    """Cores that others used beyond those that are idle while this process uses `count` of them."""
    return max(0.0, others.used() - max(0, (os.cpu_count() or count) - count))


def _host(count: int) -> dict[str, float]:
    """Rates of the steps on the host, on water molecules 3 angstrom apart.

    Four of them in cc-pVTZ for what depends on their sizes, in cc-pVDZ for the overhead of an SCF
    iteration, two for four-centre integrals.
    """
    from dfmp2.integrals.screening import every_pair
    from dfmp2.integrals.transform import Transformation
    from dfmp2.scf.jk import coulomb_exchange_of_b, fit_columns

    mole, auxmole = _waters(4, "cc-pvtz", "ri")
    nao, naux = int(mole.nao), int(auxmole.nao)
    npair = nao * (nao + 1) // 2
    rng = np.random.default_rng(0)
    c = rng.standard_normal((nao, nao)) / nao
    nocc, nvir = 40, 150
    space = ActiveSpace(c[:, :nocc].copy(), c[:, -nvir:].copy(), -np.ones(nocc), np.ones(nvir))
    b = np.empty((naux, npair))
    evaluate = shortest(lambda: [None for _ in three_center.packed_blocks(mole, auxmole, out=b)])
    transformation = Transformation([space], count)
    transform = shortest(lambda: transformation(b))
    factor = factorise(three_center.coulomb_metric(auxmole))
    solve = shortest(lambda: fit_columns(b, factor, [npair], count))
    occupied = [np.ascontiguousarray(c[:, :nocc])]
    pairs = every_pair(nao)
    exchange = shortest(lambda: coulomb_exchange_of_b(b, pairs, occupied, count))
    single = shortest(lambda: coulomb_exchange_of_b(b, pairs, occupied, count, single=True))
    overlap = mole.intor_symmetric("int1e_ovlp")
    kinetic = mole.intor_symmetric("int1e_kin")
    square = rng.standard_normal((PRODUCT, PRODUCT))
    product = shortest(lambda: square @ square)
    eigen = shortest(lambda: np.linalg.eigh(overlap @ kinetic @ overlap))
    size = Workload(nao, naux, naux, (), "fp64", 0, primitives=primitive_functions(mole))
    operations = 3 * naux * nao**2 * nocc + 4 * naux * npair
    return {
        "integrals": size.integrals()["integrals"] / evaluate,
        "transform": 2 * naux * nocc * nao * (nao + nvir) / transform,
        "solve": naux**2 * npair / solve,
        "exchange": operations / exchange,
        "exchange_single": operations / single,
        "products": 2 * PRODUCT**3 / product,
        "eigen": nao**3 / eigen,
        "reorder": _reorder(),
        "matrices": _matrices(count, operations / exchange),
        **_exact(),
    }


def _reorder() -> float:
    """Bytes per second of (P|ia) of some fitting functions, put where B_iaP is made."""
    part = np.ones((64, 32, 160))

    def put() -> None:
        np.empty((32, 160, 256))[:, :, :64] = part.transpose(1, 2, 0)

    return part.nbytes / shortest(put)


def _waters(number: int, basis: str, kind: str) -> tuple[Any, Any]:
    """PySCF molecules of water molecules in a row, 3 angstrom apart, and of their fitting
    functions, "jk" or "ri"."""
    one = np.array([[0.0, 0.0, 0.2217], [0.0, 1.4309, -0.8867], [0.0, -1.4309, -0.8867]])
    shift = np.array([5.67, 0.0, 0.0])
    molecule = Molecule(
        ("O", "H", "H") * number, np.vstack([one + k * shift for k in range(number)])
    )
    orbital = resolve_orbital(basis, molecule.elements)
    mole = build_mole(molecule, orbital, 10**9)
    return mole, build_auxiliary(
        mole, molecule, resolve_fitting(kind, None, orbital, molecule.elements)
    )


def _matrices(count: int, exchange: float) -> float:
    """n^2 per second of what an SCF iteration does beside J and K, whose operations per second are
    given."""
    from dfmp2.scf.hartree_fock import run_scf
    from dfmp2.scf.integrals import ScfIntegrals, release_integrals

    mole, auxmole = _waters(4, "cc-pvdz", "jk")
    clock = _Iterations()
    options = Options("cc-pvdz", stability="off")
    integrals = ScfIntegrals(auxmole, "memory", threads=count)
    mf, _ = run_scf(mole, "rhf", options, integrals, start=None, listener=clock)
    release_integrals(mf)
    nao, naux, nocc = int(mole.nao), int(auxmole.nao), mole.nelectron // 2
    products = (3 * naux * nao**2 * nocc + 2 * naux * nao * (nao + 1)) / exchange
    iteration = min(b - a for a, b in pairwise(clock.times))
    return float(nao**2 / max(iteration - products, iteration / 4))


class _Iterations(Silent):
    """When each SCF iteration has ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        self.times.append(time.perf_counter())


def _exact() -> dict[str, float]:
    """Rates of a conventional SCF, of PySCF's own integrals and matrices."""
    mole, _ = _waters(2, "cc-pvdz", "ri")
    nao = int(mole.nao)
    with shielded():
        from pyscf.scf.hf import dot_eri_dm

        integrals = mole.intor("int2e", aosym="s8")
        evaluate = shortest(lambda: mole.intor("int2e", aosym="s8"))
        density = np.eye(nao)
        build = shortest(lambda: dot_eri_dm(integrals, density, hermi=1))
    size = Workload(nao, 0, 0, (), "fp64", 0, primitives=primitive_functions(mole))
    return {
        "four_centre": size.integrals()["scf"] / evaluate,
        "exact_exchange": 4 * size.pairs_of_functions**2 / build,
    }


def _pairs(backend: Backend) -> dict[str, float]:
    """Rates of the pair energies in the precisions the backend has, all its workers at once."""
    nocc, nvir, naux = 16, 256, 768
    rng = np.random.default_rng(1)
    b = rng.standard_normal((nocc, nvir, naux)) / naux
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


def shortest(work: Callable[[], object], repeats: int | None = None) -> float:
    """Shortest time of a few repetitions, REPEATS for None, s."""
    times = []
    for _ in range(repeats or REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_disk(root: Path) -> DiskRates:
    """Write and read a file in a folder, a second or so, and keep the rates.

    Raises
    ------
    ResourceError : the folder cannot be written or has too little space
    """
    with Space(root, SIZE) as space:
        path = (
            space.own_folder() / f"speed{SUFFIX}"
        )  # such a file is removed with the folder, also by the next run
        try:
            write, read, cached = _moved(path)
        except OSError as error:
            raise ResourceError(
                (
                    f"scratch folder {root}: {error.strerror} while its speed was measured: name "
                    "another one with "
                ),
                Option("scratch"),
            ) from error
    found = DiskRates(write, read, datetime.now(UTC).isoformat(timespec="seconds"), cached)
    cache.store_cached(_disk_key(root), asdict(found))
    return found


def _moved(path: Path) -> list[float]:
    """Bytes per second written to the disk, read from it, and read again, from the system's memory.

    The system keeps what was written in memory and would answer a read at once: it is forced to
    disk and dropped.
    """
    buffer, done = bytearray(os.urandom(CHUNK)), 0  # a file system may compress zeros
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
