"""Rates of another machine, from those of this host or from what the user measured there.

What is scaled with cores is what the program shares out among threads: integrals, products, pair energies. A
diagonalisation and the overhead of an iteration are not: they only become faster with a faster core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dfmp2.fleet.instances import Instance
from dfmp2.forecast import Rates
from dfmp2.scratch.speed import DiskRates

PER_CORE = (
    "integrals",
    "four_centre",
    "exchange",
    "exchange_single",
    "solve",
    "transform",
    "pairs_fp64",
    "pairs_mixed",
)
SECONDS = ("start", "iteration")


@dataclass(frozen=True, slots=True)
class Host:
    """This host: rates with `threads` threads, speed of its scratch folder; `measured`, or built-in."""

    rates: Rates
    threads: int
    disk: DiskRates
    measured: bool


def rates_on(instance: Instance, threads: int, host: Host) -> Rates:
    """Rates of `threads` threads of an instance."""
    if instance.rates is None:
        base, share = host.rates, instance.factor * threads / host.threads
        single = instance.factor
    else:
        base, share, single = Rates(**instance.rates), threads / instance.cores, 1.0
    changed = {name: getattr(base, name) * share for name in PER_CORE}
    changed |= {name: getattr(base, name) / single for name in SECONDS}
    return replace(base, **changed, eigen=base.eigen * single)


def disk_on(instance: Instance, host: Host) -> DiskRates:
    """Speed of the scratch folder of an instance."""
    return instance.scratch or host.disk
