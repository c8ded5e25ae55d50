"""Rates of matrix products and of the pair step with NumPy and with PyTorch, measured by `dfmp2 bench --gemm`.

They decide whether `--backend auto` takes PyTorch on the host. It does so only when the record of this machine,
these versions and this number of threads, made on a quiet machine, says that the pair step is clearly faster there,
and the time saved pays several times for importing PyTorch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dfmp2 import host_cache

LIBRARIES = ("numpy", "torch", "dfmp2")  # a new version of any of them is measured again
# Rates of the pair step repeated on one host differ by up to 8 % (2 cores, shapes of 5 MB); a gain must be twice that.
CLEARLY = 1.15
# The time saved must be this many times what the import of PyTorch costs (1.0 s and 200 MB on the same host).
PAYS = 3.0
QUIET = 0.1  # cores; a record made while other processes used more is not acted upon


@dataclass(frozen=True, slots=True)
class ProductRates:
    """One record, for a number of threads.

    Attributes
    ----------
    products : "numpy fp64 1", ... (library, precision, threads) -> operations per second of a large square product
    pairs : "cpu fp64", ... (backend, precision) -> operations per second of the pair step with all threads
    torch_import : seconds to import PyTorch, None where it is not installed
    foreign : cores that other processes used meanwhile
    date : of the measurement, ISO 8601
    """

    products: dict[str, float]
    pairs: dict[str, float]
    torch_import: float | None
    foreign: float
    date: str


def load(threads: int) -> ProductRates | None:
    """The record of this host for a number of threads, None if there is none."""
    stored = host_cache.load(_key(threads))
    try:
        return None if stored is None else _record(stored)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # of another version, or damaged: as if it had never been measured


def store(threads: int, record: ProductRates) -> None:
    """Keep a record."""
    host_cache.store(_key(threads), asdict(record))


def torch_reason(record: ProductRates | None, precision: str, operations: float) -> str | None:
    """Why `auto` should take PyTorch for a pair step of so many operations; None when it should not.

    Parameters
    ----------
    precision : "fp64", "mixed" or "auto", which computes in mixed precision
    operations : floating-point operations of the pair step
    """
    wanted = "fp64" if precision == "fp64" else "mixed"
    if record is None or record.torch_import is None or record.foreign > QUIET:
        return None
    host, torch = (record.pairs.get(f"{backend} {wanted}") for backend in ("cpu", "torch"))
    if not host or not torch or torch < CLEARLY * host:
        return None
    saved = operations / host - operations / torch
    if saved < PAYS * record.torch_import:
        return None
    return (
        f"auto: PyTorch does the pair step at {torch / 1e9:.0f} GF/s and NumPy at {host / 1e9:.0f} on this host "
        f"(dfmp2 bench --gemm, {record.date}), which saves about {saved:.0f} s of this run"
    )


def _key(threads: int) -> str:
    return host_cache.key(f"products {threads} threads", LIBRARIES)


def _record(stored: dict[str, Any]) -> ProductRates:
    start = stored["torch_import"]
    return ProductRates(
        products={str(name): float(value) for name, value in stored["products"].items()},
        pairs={str(name): float(value) for name, value in stored["pairs"].items()},
        torch_import=None if start is None else float(start),
        foreign=float(stored["foreign"]),
        date=str(stored["date"]),
    )
