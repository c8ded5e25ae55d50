"""Predicted time and device memory of a calculation: what the host adds to kernel calls, pair
energies, transformation.

1.3 ms per round trip, 4.6 GB/s to and 5.6 GB/s from the device are figures published for trn1
through torch-xla; for compiled programs the link is assumed to be the same. One spin needs the
pairs i <= j of its space, two spins both of these and all pairs between them. B comes from the
host, to each of several cores the blocks of the tiles that it takes, all of them at most; or it is
made on the core from fitted integrals over basis functions, which go up once for all spins, and
stays there.

Nothing here was measured on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dfmp2.backends.base import Prediction, Shape
from dfmp2.errors import KernelError
from dfmp2.trainium.calls import one_bucket, product_call, transform_calls, transform_traffic
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.costs.catalogue import Price, b_bytes, price, uploaded
from dfmp2.trainium.costs.model import CHIPS, SLOWEST, USUAL, Chip, find_chip

LANE = "nki"
SUBMIT = 0.67  # ms of each further call of a queue
# ms of a call that is waited for, as the executors wait for each; newer runtimes need about 0.2
ROUND_TRIP = 1.3
UPLOAD, DOWNLOAD = 4.6e6, 5.6e6  # bytes per ms
MS, NS = 1e3, 1e9  # in a second


def queued_ms(prices: Sequence[Price]) -> float:
    """Host time of the launches of all calls where none but the last is waited for, ms, beside the
    device's."""
    calls = sum(one.calls for one in prices)
    if not calls:
        return 0.0
    behind = sum(one.queued(SUBMIT * 1e6) for one in prices) / 1e6
    return min(calls * ROUND_TRIP, ROUND_TRIP + behind)


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
    """Predictions on one core of each chip, on all cores of each, and on `own` cores where that is
    another number."""
    found = predict(spins)
    for chip in CHIPS.values():
        found += predict(spins, chips=(chip.name,), cores=chip.cores)
        if own not in (1, chip.cores):
            found += predict(spins, chips=(chip.name,), cores=own)
    return found


def _on(chip: Chip, spins: Sequence[Shape], cores: int) -> Prediction:
    try:
        prices = [catalogue.best(catalogue.find("pair_energy"), shape, chip) for shape in spins]
        if len(spins) == 2:
            prices.append(price("plain", catalogue.cross(spins, chip), 0, chip))
    except KernelError as error:
        return Prediction(chip.name, LANE, available=chip.hbm, obstacle=str(error))
    operands = sum(map(b_bytes, spins))
    results = sum(one.total(lambda engines: engines.written) for one in prices)
    short = ""
    memory = operands + round(results)
    if memory > chip.hbm:
        short = "B does not fit the device memory of one core"
    return Prediction(
        chip=chip.name,
        lane=LANE,
        device=_shared(prices, 1.0, cores),
        usual=_shared(prices, USUAL, cores),
        slowest=_shared(prices, SLOWEST, cores),
        dispatch=sum(one.calls for one in prices) * ROUND_TRIP / MS / cores,
        queued=queued_ms(prices) / MS / cores,
        link=(cores * operands / UPLOAD + results / DOWNLOAD) / MS,
        calls=sum(one.calls for one in prices),
        neffs=len({call.neff for one in prices for call, _ in one.parts}),
        memory=memory,
        available=chip.hbm,
        obstacle=short,
        cores=cores,
        uploaded=cores * operands,
    )


def _shared(prices: Sequence[Price], use: float, cores: int) -> float:
    """Seconds of all calls on cores that take the next one when they are idle: no less than that of
    the longest."""
    longest = max(
        (engines.at(use) for one in prices for _, engines in one.parts if cores > 1), default=0.0
    )
    return max(sum(one.at(use) for one in prices) / cores, longest) / NS


def predict_transform(spins: Sequence[Shape], nao: int, chip: str) -> Prediction:
    """The transformation of one or two spins with `nao` basis functions on one core.

    Raises
    ------
    KernelError : they cannot run at these sizes
    """
    core = find_chip(chip)
    made = [call for shape in one_bucket(tuple(spins)) for call in transform_calls(nao, *shape)]
    done, up = price("plain", made, 0, core), transform_traffic(made, len(spins))
    return _alone(done, core, up, 0)


def predict_product(sizes: tuple[int, int, int, int], chip: Chip) -> Prediction:
    """One call for (batches, contracted, rows, columns): operands go up once, the result comes
    back."""
    try:
        done = price("plain", [product_call(*sizes)], prod(sizes), chip)
    except KernelError as error:
        return Prediction(chip.name, LANE, available=chip.hbm, obstacle=str(error))
    up = uploaded(call for call, _ in done.parts)
    return _alone(done, chip, up, round(done.total(lambda engines: engines.written)))


def _alone(done: Price, chip: Chip, up: int, down: int) -> Prediction:
    """Calls of one core that send and read back that many bytes."""
    return Prediction(
        chip=chip.name,
        lane=LANE,
        device=done.at() / NS,
        usual=done.at(USUAL) / NS,
        slowest=done.at(SLOWEST) / NS,
        dispatch=done.calls * ROUND_TRIP / MS,
        queued=queued_ms([done]) / MS,
        link=(up / UPLOAD + down / DOWNLOAD) / MS,
        calls=done.calls,
        neffs=done.neffs,
        memory=up + down,
        available=chip.hbm,
        uploaded=up,
    )
