"""Rates of matrix products with NumPy and with PyTorch, measured by `dfmp2 bench --gemm` and kept in the host cache."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dfmp2.host import cache

LIBRARIES = ("numpy", "torch", "dfmp2")  # a new version of any of them is measured again


@dataclass(frozen=True, slots=True)
class ProductRates:
    """One record, for a number of threads.

    Attributes
    ----------
    products : "numpy fp64 1", ... (library, precision, threads) -> operations per second of a large square product
    foreign : cores that other processes used meanwhile
    date : of the measurement, ISO 8601
    """

    products: dict[str, float]
    foreign: float
    date: str


def load(threads: int) -> ProductRates | None:
    """The record of this host for a number of threads, None if there is none or it is damaged."""
    stored = cache.load(_key(threads))
    try:
        if stored is None:
            return None
        products = {str(name): float(value) for name, value in stored["products"].items()}
        return ProductRates(products, float(stored["foreign"]), str(stored["date"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def store(threads: int, record: ProductRates) -> None:
    """Keep a record."""
    cache.store(_key(threads), asdict(record))


def _key(threads: int) -> str:
    return cache.key(f"products {threads} threads", LIBRARIES)
