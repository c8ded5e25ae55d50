"""The pair energies of a molecule on Trainium cores: predicted time and device memory, launch lane apart.

One spin needs the pairs i <= j of its space, two spins both of these and all pairs between them. B comes from the
host, to each of several cores the blocks that it needs. Nothing here was measured on a device.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.backends.nki.assignment import blocks_by_core, largest_share, pair_channels
from dfmp2.backends.nki.costs import catalogue
from dfmp2.backends.nki.costs.chips import CHIPS, Assumptions, Chip
from dfmp2.backends.nki.costs.dispatch import dispatch
from dfmp2.backends.nki.costs.pricing import Price, price
from dfmp2.backends.nki.costs.shapes import Shape
from dfmp2.backends.nki.layout import EDGE
from dfmp2.errors import KernelError

LANE = "neff"
MS = 1e6  # ns


@dataclass(frozen=True, slots=True)
class Prediction:
    """Pair energies on one core or several, programs compiled and loaded before.

    Attributes
    ----------
    chip, lane : which core, and how calls are launched
    device : s of the core, in-order schedule; dispatch : s of submissions if none overlaps; link : s of uploads and
        downloads
    calls, neffs : kernel calls and compiled programs
    memory, available : bytes of device memory needed and there, of the fullest core
    cores : that share the pairs; uploaded : bytes of B to all of them
    obstacle : why it cannot run, "" if it can
    """

    chip: str
    lane: str
    device: float = 0.0
    dispatch: float = 0.0
    link: float = 0.0
    calls: int = 0
    neffs: int = 0
    memory: int = 0
    available: int = 0
    obstacle: str = ""
    cores: int = 1
    uploaded: int = 0


def predict(
    spins: tuple[Shape, ...],
    given: Assumptions | None = None,
    chips: tuple[str, ...] = tuple(CHIPS),
    cores: int = 1,
) -> tuple[Prediction, ...]:
    """One prediction per chip; none where there is nothing to correlate.

    Parameters
    ----------
    cores : of the chip that share the pairs
    """
    return tuple(_on(CHIPS[name], spins, given or Assumptions(), cores) for name in chips) if spins else ()


def shared_bytes(spins: tuple[Shape, ...], cores: int) -> list[int]:
    """Bytes of B that each core is sent: of the blocks it needs, padding included."""
    block = [catalogue.b_bytes(shape) // -(-shape.nocc // EDGE) for shape in spins]
    needed = blocks_by_core(pair_channels([shape.nocc for shape in spins]), cores)
    return [sum(block[spin] for spin, _ in found) for found in needed]


def _on(chip: Chip, spins: tuple[Shape, ...], given: Assumptions, cores: int) -> Prediction:
    try:
        prices = _prices(chip, spins, given)
    except KernelError as error:
        return Prediction(chip.name, LANE, available=chip.hbm, obstacle=str(error))
    by_core = shared_bytes(spins, cores)
    operands = sum(by_core)
    results = sum(p.call.count * p.account.bytes_written for found in prices for p in found.parts)
    rings = {p.call.neff: p.account.ring_bytes for found in prices for p in found.parts}
    calls = sum(found.calls for found in prices)
    launched = dispatch(LANE, calls, operands, operands, results)
    memory = max(by_core) + -(-results // cores) + sum(rings.values())
    short = "" if memory <= chip.hbm else "B does not fit the device memory of one core"
    return Prediction(
        chip=chip.name,
        lane=LANE,
        device=sum(found.makespan for found in prices) / MS / 1e3 * largest_share([s.nocc for s in spins], cores),
        dispatch=launched.calls / 1e3 / cores,
        link=launched.link / 1e3,
        calls=calls,
        neffs=len(rings),
        memory=memory,
        available=chip.hbm,
        obstacle=short,
        cores=cores,
        uploaded=operands,
    )


def _prices(chip: Chip, spins: tuple[Shape, ...], given: Assumptions) -> list[Price]:
    row = catalogue.find("pair_energy")
    prices = [catalogue.best(row, shape, chip, given)[0] for shape in spins]
    if len(spins) == 2:
        alpha, beta = spins
        work = alpha.nocc * beta.nocc * alpha.nvir * beta.nvir * alpha.naux
        prices.append(price("plain", catalogue.cross(spins, chip), work, chip, given))
    return prices
