"""Predicted time and device memory of a calculation: what the host adds to kernel calls, pair energies, transformation.

    nki        programs compiled once, loaded once, operands stay on the device
    nki-xla    the same through torch-xla
    nki-call   every call compiles, uploads its inputs and downloads its outputs

1.3 ms per round trip, 4.6 GB/s to and 5.6 GB/s from the device are figures published for trn1
through torch-xla; for nki the link is assumed to be the same. One spin needs the pairs i <= j of its space, two spins
both of these and all pairs between them. B comes from the host, to each of several cores the blocks that it needs; or
it is made on the core from fitted integrals over basis functions, which go up once for all spins, and stays there.

Nothing here was measured on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dfmp2.backends.base import Prediction, Shape
from dfmp2.errors import KernelError
from dfmp2.trainium import layout
from dfmp2.trainium.calls import one_bucket, product_call, transform_calls, transform_traffic
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.costs.catalogue import FLOAT32, Price, price
from dfmp2.trainium.costs.chips import CHIPS, Assumptions, Chip, find_chip
from dfmp2.trainium.layout import blocks_by_core, largest_share, pair_channels

LANES = ("nki", "nki-xla", "nki-call")
SUBMIT = 0.67  # ms of each further call of a queue
ROUND_TRIP = 1.3  # ms of a call that is waited for, as the executors wait for each; newer runtimes need about 0.2
UPLOAD, DOWNLOAD = 4.6e6, 5.6e6  # bytes per ms
RECOMPILE = 10_000.0  # ms for each call of the lane nki-call, unless the user knows better
MS, NS = 1e3, 1e9  # in a second


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Host time of a list of calls, ms, if none of it overlaps with the device.

    Attributes
    ----------
    lane : how calls are launched
    calls : round trips, where every call is waited for; queued : where none but the last is, one round trip and what
        submitting the others takes longer than they last
    link : uploads and downloads; compile : compilation inside the calls
    flagged : why this lane is not for production, "" if it is
    """

    lane: str
    calls: float
    queued: float
    link: float
    compile: float
    flagged: str


def dispatch(
    lane: str,
    prices: Sequence[Price],
    resident: int,
    per_call: int,
    output: int,
    recompile: float = RECOMPILE,
) -> Dispatch:
    """Host time of all calls of these prices.

    Parameters
    ----------
    lane : one of LANES
    resident : bytes of all inputs together, uploaded once; per_call : the same with the inputs of each call anew
    output : bytes downloaded in all
    recompile : ms per call, lane nki-call only
    """
    down, calls = output / DOWNLOAD, sum(price.calls for price in prices)
    waited = calls * ROUND_TRIP
    if lane == "nki-call":
        if calls <= 1:
            flagged = ""
        else:
            flagged = f"every one of the {calls} calls compiles and uploads again: for probes only"
        return Dispatch(lane, waited, waited, per_call / UPLOAD + down, calls * recompile, flagged)
    if lane not in LANES:
        raise ValueError(f"lane {lane!r}: expected one of {', '.join(LANES)}")
    if calls:
        queued = ROUND_TRIP + sum(price.queued(SUBMIT * 1e6) for price in prices) / 1e6
    else:
        queued = 0.0
    return Dispatch(lane, waited, min(waited, queued), resident / UPLOAD + down, 0.0, "")


def predict(
    spins: Sequence[Shape], chips: tuple[str, ...] = tuple(CHIPS), cores: int = 1
) -> tuple[Prediction, ...]:
    """One prediction per chip; none where there is nothing to correlate.

    Parameters
    ----------
    cores : of the chip that share the pairs
    """
    if spins:
        return tuple(_on(CHIPS[name], spins, cores) for name in chips)
    return ()


def offer(spins: Sequence[Shape], own: int = 1) -> tuple[Prediction, ...]:
    """Predictions on one core of each chip, on all cores of each, and on `own` cores where that is another number."""
    found = predict(spins)
    for chip in CHIPS.values():
        found += predict(spins, chips=(chip.name,), cores=chip.cores)
        found += predict(spins, chips=(chip.name,), cores=own) if own not in (1, chip.cores) else ()
    return found


def shared_bytes(spins: Sequence[Shape], cores: int) -> list[int]:
    """Bytes of B that each core is sent: of the blocks it needs, padding included."""
    block = [catalogue.b_bytes(shape) // -(-shape.nocc // layout.EDGE) for shape in spins]
    needed = blocks_by_core(pair_channels([shape.nocc for shape in spins]), cores)
    return [sum(block[spin] for spin, _ in found) for found in needed]


def _on(chip: Chip, spins: Sequence[Shape], cores: int) -> Prediction:
    try:
        prices = _prices(chip, spins)
    except KernelError as error:
        return Prediction(chip.name, LANES[0], available=chip.hbm, obstacle=str(error))
    by_core = shared_bytes(spins, cores)
    operands = sum(by_core)
    results = sum(p.call.count * p.account.bytes_written for found in prices for p in found.parts)
    rings = {p.call.neff: p.account.ring_bytes for found in prices for p in found.parts}
    calls = sum(found.calls for found in prices)
    launched = dispatch(LANES[0], prices, operands, operands, results)
    memory = max(by_core) + -(-results // cores) + sum(rings.values())
    if memory <= chip.hbm:
        short = ""
    else:
        short = "B does not fit the device memory of one core"
    share = largest_share([s.nocc for s in spins], cores) / NS
    return Prediction(
        chip=chip.name,
        lane=LANES[0],
        device=sum(found.makespan for found in prices) * share,
        usual=sum(found.at(catalogue.USUAL) for found in prices) * share,
        slowest=sum(found.at(catalogue.SLOWEST) for found in prices) * share,
        dispatch=launched.calls / 1e3 / cores,
        queued=launched.queued / 1e3 / cores,
        link=launched.link / 1e3,
        calls=calls,
        neffs=len(rings),
        memory=memory,
        available=chip.hbm,
        obstacle=short,
        cores=cores,
        uploaded=operands,
    )


def _prices(chip: Chip, spins: Sequence[Shape]) -> list[Price]:
    row, given = catalogue.find("pair_energy"), Assumptions()
    prices = [catalogue.best(row, shape, chip, given)[0] for shape in spins]
    if len(spins) == 2:
        alpha, beta = spins
        work = alpha.nocc * beta.nocc * alpha.nvir * beta.nvir * alpha.naux
        prices.append(price("plain", catalogue.cross(spins, chip), work, chip, given))
    return prices


def predict_transform(spins: Sequence[Shape], nao: int, chip: str) -> Prediction:
    """The transformation of one or two spins with `nao` basis functions on one core.

    Raises
    ------
    KernelError : they cannot run at these sizes
    """
    core = find_chip(chip)
    found = [call for shape in one_bucket(tuple(spins)) for call in transform_calls(nao, *shape)]
    done = price("plain", found, 0, core, Assumptions())
    up = transform_traffic(found, len(spins))
    return Prediction(
        chip=core.name,
        lane=LANES[0],
        device=done.makespan / NS,
        usual=done.at(catalogue.USUAL) / NS,
        dispatch=done.calls * ROUND_TRIP / MS,
        link=up / UPLOAD / MS,
        calls=done.calls,
        neffs=done.neffs,
        uploaded=up,
    )


def predict_product(sizes: tuple[int, int, int, int], chip: Chip) -> Prediction:
    """One call for (batches, contracted, rows, columns): operands go up once, the result comes back."""
    try:
        call = product_call(*sizes)
        done = price("plain", [call], prod(sizes), chip, Assumptions())
    except KernelError as error:
        return Prediction(chip.name, LANES[0], available=chip.hbm, obstacle=str(error))
    sent, written = (
        FLOAT32 * sum(prod(call.arguments[x].shape) for x in "ab"),
        done.parts[0].account.bytes_written,
    )
    launched = dispatch(LANES[0], [done], sent, sent, written)
    return Prediction(
        chip=chip.name,
        lane=LANES[0],
        device=done.makespan / NS,
        usual=done.at(catalogue.USUAL) / NS,
        slowest=done.at(catalogue.SLOWEST) / NS,
        dispatch=launched.calls / MS,
        queued=launched.queued / MS,
        link=launched.link / MS,
        calls=1,
        neffs=1,
        memory=sent + written,
        available=chip.hbm,
        uploaded=sent,
    )
