"""The kernels by name, the price of a shape, and the predicted time and device memory of a
calculation; as JSON and text, labelled as predictions.

    time = sum over calls of count * `model.engines`        floor = multiplications / (128 * 128) * passes / clock

The floor of the pair energies counts pairs i <= j (all pairs between two spins) at full use of the
array. A program depends on the padded numbers of virtual orbitals and fitting functions, and on the
occupied orbitals of a full or last block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from textwrap import fill
from typing import Any, NamedTuple

from dfmp2.backends.base import Prediction, Shape
from dfmp2.errors import InputError, KernelError, Option
from dfmp2.trainium import calls, layout
from dfmp2.trainium.calls import KernelCall
from dfmp2.trainium.costs import model
from dfmp2.trainium.costs.model import (
    CHIPS,
    FLOAT32,
    SLOWEST,
    USUAL,
    Chip,
    Engines,
    find_chip,
)
from dfmp2.trainium.interpreter.memory import Trace
from dfmp2.trainium.interpreter.rules import MOVED_BYTES, Settings
from dfmp2.trainium.interpreter.rules import Shape as Tensor
from dfmp2.trainium.interpreter.run import run_kernel
from dfmp2.trainium.kernels.sizes import P
from dfmp2.trainium.layout import padded_naux, padded_nvir
from dfmp2.units import format_bytes

LANE = "nki"
SUBMIT = 0.67  # ms for each further call in a queue
# ms for a call that is waited for, as the executors do for each; newer runtimes need about 0.2
ROUND_TRIP = 1.3
UPLOAD, DOWNLOAD = 4.6e6, 5.6e6  # bytes per ms
MS, NS = 1e3, 1e9  # in a second


class Row(NamedTuple):
    """A kernel.

    Attributes
    ----------
    name, short : values of `--kernel`
    about : one-line description
    calls : shape, target, variant -> calls that cover the shape
    multiplications : shape -> unavoidable float32 multiplications, for the floor
    sizes : meaning of the three numbers of a shape
    """

    name: str
    short: str
    about: str
    calls: Callable[[Shape, str, str], tuple[KernelCall, ...]]
    multiplications: Callable[[Shape], int]
    sizes: tuple[str, str, str] = ("nocc", "nvir", "naux")

    def variants(self, shape: Shape, target: str) -> tuple[str, ...]:
        """Forms of the kernel at a shape."""
        if self.short == "K3":
            return calls.variants(shape.nvir, shape.naux, target)
        return ("plain",)


@dataclass(frozen=True, slots=True)
class Price:
    """The cost on one core of all calls that cover a shape; times in ns, summed over calls.

    Attributes
    ----------
    variant : form of the kernel
    parts : the kinds of calls, and the engine times of one of each
    floor : time of the Tensor Engine at full use, ns
    """

    variant: str
    parts: tuple[tuple[KernelCall, Engines], ...]
    floor: float

    def total(self, of: Callable[[Engines], float]) -> float:
        """A quantity summed over all calls."""
        return sum(call.count * of(engines) for call, engines in self.parts)

    def at(self, use: float = 1.0) -> float:
        """Time without launches if the limiting engine is busy for this fraction of it."""
        return self.total(lambda engines: engines.at(use))

    def queued(self, submit: float) -> float:
        """Excess of the time to submit calls over their duration, if none is waited for; `submit` :
        ns per call."""
        return self.total(lambda engines: max(0.0, submit - engines.at(1.0)))

    @property
    def calls(self) -> int:
        """Number of kernel calls."""
        return sum(call.count for call, _ in self.parts)

    @property
    def neffs(self) -> int:
        """Number of compiled programs."""
        return len({call.program for call, _ in self.parts})


def price(variant: str, made: Iterable[KernelCall], multiplications: int, chip: Chip) -> Price:
    """The price of calls that together make `multiplications` float32 multiplications."""
    parts = tuple((call, model.engines(call, chip)) for call in made)
    return Price(variant, parts, multiplications / P**2 * model.PASSES / chip.tensor)


def b_bytes(shape: Shape) -> int:
    """Bytes of B in the kernels' layout, padding included."""
    columns = layout.tile_columns(layout.padded_nvir(shape.nvir))
    slices = layout.stored_slices(columns, layout.padded_naux(shape.naux))
    return FLOAT32 * shape.nocc * P * slices * columns


def _pairs(shape: Shape) -> int:
    return shape.pairs * shape.nvir**2 * shape.naux


MATRICES = ("M", "N", "K")  # A (K, M), B (K, N)
ONE_MATRIX = ("1", "N", "K")  # A (K, N); the first number of a shape must be 1
KERNELS = (
    Row(
        name="pair_energy",
        short="K3",
        about="direct and exchange terms of all pairs i <= j of one spin space",
        calls=lambda shape, target, variant: calls.pair_energy_calls(*shape, target, variant),
        multiplications=_pairs,
    ),
    Row(
        name="pair_energy_cross",
        short="K3x",
        about="direct terms of all pairs of two spin spaces (two equal ones for --shape)",
        calls=lambda shape, target, _: calls.cross_calls(
            (shape.nocc,) * 2, (shape.nvir,) * 2, shape.naux, target
        ),
        multiplications=lambda shape: shape.nocc**2 * shape.nvir**2 * shape.naux,
    ),
    Row(
        name="transform",
        short="K12",
        about="AO to MO transformation of fitted integrals in one program (ao_to_mo), in pieces "
        "where there are many",
        calls=lambda shape, *_: calls.transform_calls(shape.nao, *shape),
        multiplications=lambda shape: (
            shape.naux * shape.nocc * shape.nao * (shape.nao + shape.nvir)
        ),
    ),
    Row(
        name="gemm",
        short="",
        about="one matrix product; --shape M,N,K",
        calls=lambda shape, *_: (calls.product_call(1, shape.naux, shape.nocc, shape.nvir),),
        multiplications=prod,
        sizes=MATRICES,
    ),
    Row(
        name="gemm_batch",
        short="",
        about="sixteen matrix products in one call; --shape M,N,K",
        calls=lambda shape, *_: (calls.product_call(16, shape.naux, shape.nocc, shape.nvir),),
        multiplications=lambda shape: 16 * prod(shape),
        sizes=MATRICES,
    ),
    Row(
        name="syrk",
        short="",
        about="A^t A, one triangle computed; --shape 1,N,K",
        calls=lambda shape, *_: (calls.syrk_call(shape.naux, shape.nvir),),
        multiplications=lambda shape: shape.naux * shape.nvir * (shape.nvir + 1) // 2,
        sizes=ONE_MATRIX,
    ),
    Row(
        name="trsm",
        short="",
        about="triangular solve of order K for N columns; --shape 1,N,K",
        calls=lambda shape, *_: (calls.trsm_call(shape.naux, shape.nvir),),
        multiplications=lambda shape: shape.naux * (shape.naux + 1) // 2 * shape.nvir,
        sizes=ONE_MATRIX,
    ),
    Row(
        name="mp2_energy",
        short="",
        about="elementwise energy terms of a given T, all pairs",
        calls=lambda shape, *_: (calls.energy_call(shape.nocc, shape.nvir),),
        multiplications=lambda shape: 0,
    ),
)


def find(name: str) -> Row:
    """The kernel of a given name.

    Raises
    ------
    InputError : unknown name
    """
    for row in KERNELS:
        if name and name in (row.name, row.short):
            return row
    known = ", ".join(f"{row.name} ({row.short})" if row.short else row.name for row in KERNELS)
    raise InputError(Option("kernel", name), f": unknown kernel: expected one of {known}")


def best(row: Row, shape: Shape, chip: Chip, variant: str | None = None) -> Price:
    """The price of the variant that runs use, or of the given one.

    Raises
    ------
    InputError : unknown variant, or an M that the kernel does not have
    KernelError : the kernel does not fit into the memory of a core
    """
    if row.sizes == ONE_MATRIX and shape.nocc != 1:
        sizes = ",".join(map(str, shape))
        raise InputError(
            Option("shape", sizes),
            f": {row.name} has no M: expected 1,N,K, such as 1,{shape.nvir},{shape.naux}",
        )
    offered = row.variants(shape, chip.target)
    if variant is not None and variant not in offered:
        raise InputError(
            Option("variant", variant), f": {row.name} offers {', '.join(offered)} at this shape"
        )
    if row.name.startswith("pair_energy"):
        require_partition(row.name, shape, chip)
    name = variant or offered[-1]
    return price(name, row.calls(shape, chip.target, name), row.multiplications(shape), chip)


def require_partition(kernel: str, shape: Shape, chip: Chip) -> None:
    """Raise if the pair energies need more of a partition than is available.

    Raises
    ------
    KernelError : names the kernel and the bytes
    """
    nvir = layout.padded_nvir(shape.nvir)
    least = layout.sbuf_bytes(nvir, layout.padded_naux(shape.naux))
    if least > chip.sbuf:
        raise KernelError(
            f"{kernel} needs {least} bytes per SBUF partition for {shape.nvir} virtual orbitals "
            f"and {shape.naux} fitting functions: a {chip.name} core has {chip.sbuf}: use ",
            Option("backend", "cpu"),
        )


def queued_ms(prices: Sequence[Price], cores: int = 1) -> float:
    """Host time to launch all calls if each core waits only for its last, ms, in addition to the
    device time."""
    most = _most_calls(prices, cores)
    if not most:
        return 0.0
    behind = sum(one.queued(SUBMIT * 1e6) for one in prices) / 1e6
    return min(most * ROUND_TRIP, ROUND_TRIP + behind / cores)


def _most_calls(prices: Sequence[Price], cores: int) -> int:
    """Calls of a core that takes the most of them."""
    return -(-sum(one.calls for one in prices) // cores)


def predict(
    spins: Sequence[Shape], chips: tuple[str, ...] = tuple(CHIPS), cores: int = 1
) -> tuple[Prediction, ...]:
    """One prediction per chip; empty if there is nothing to correlate.

    Parameters
    ----------
    cores : number of cores of the chip that share the pairs
    """
    if spins:
        return tuple(_on(CHIPS[name], spins, cores) for name in chips)
    return ()


def offer(spins: Sequence[Shape], own: int) -> tuple[Prediction, ...]:
    """Predictions for one core of each chip, for all its cores, and for `own` cores if that is
    another number."""
    found = predict(spins)
    for chip in CHIPS.values():
        found += predict(spins, chips=(chip.name,), cores=chip.cores)
        if own not in (1, chip.cores):
            found += predict(spins, chips=(chip.name,), cores=own)
    return found


def _on(chip: Chip, spins: Sequence[Shape], cores: int) -> Prediction:
    try:
        prices = [best(find("pair_energy"), shape, chip) for shape in spins]
        if len(spins) == 2:
            prices.append(price("plain", calls.mixed_calls(spins, chip.target), 0, chip))
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
        dispatch=_most_calls(prices, cores) * ROUND_TRIP / MS,
        queued=queued_ms(prices, cores) / MS,
        link=(cores * operands / UPLOAD + results / DOWNLOAD) / MS,
        calls=sum(one.calls for one in prices),
        neffs=len({call.program for one in prices for call, _ in one.parts}),
        memory=memory,
        available=chip.hbm,
        obstacle=short,
        cores=cores,
        uploaded=cores * operands,
    )


def _shared(prices: Sequence[Price], use: float, cores: int) -> float:
    """Time of all calls on cores that each take the next one when idle, s: at least that of the
    longest."""
    longest = max(
        (engines.at(use) for one in prices for _, engines in one.parts if cores > 1), default=0.0
    )
    return max(sum(one.at(use) for one in prices) / cores, longest) / NS


def predict_transform(spins: Sequence[Shape], nao: int, chip: str) -> Prediction:
    """Predicted transformation of one or two spins with `nao` basis functions on one core.

    Raises
    ------
    KernelError : the kernels cannot run at these sizes
    """
    core = find_chip(chip)
    made = [
        call
        for shape in calls.one_bucket(tuple(spins))
        for call in calls.transform_calls(nao, *shape)
    ]
    done = price("plain", made, 0, core)
    up = calls.transform_traffic(spins, nao)
    return _alone(done, core, up, 0)


def predict_product(sizes: tuple[int, int, int, int], chip: Chip) -> Prediction:
    """Prediction of one call for (batches, contracted, rows, columns), with the upload of the
    operands and download of the result."""
    try:
        done = price("plain", [calls.product_call(*sizes)], prod(sizes), chip)
    except KernelError as error:
        return Prediction(chip.name, LANE, available=chip.hbm, obstacle=str(error))
    given = done.parts[0][0].arguments.values()
    up = FLOAT32 * sum(prod(value.shape) for value in given if isinstance(value, Tensor))
    return _alone(done, chip, up, round(done.total(lambda engines: engines.written)))


def _alone(done: Price, chip: Chip, up: int, down: int) -> Prediction:
    """Prediction for calls on one core that upload and download the given bytes."""
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


NAMES = {
    "tensor": "Tensor Engine",
    "vector": "Vector Engine",
    "scalar": "Scalar Engine",
    "port": "shared PSUM port",
    "dma": "DMA queues",
}
NS_PER_MS = 1e6


def largest_trace(price: Price, chip: Chip) -> Trace:
    """The trace of the longest call, run without arithmetic, for memory use and broken rules.

    Raises
    ------
    KernelError : the kernel breaks a rule of the chip
    """
    call: KernelCall = max(price.parts, key=lambda part: part[1].at(1.0))[0]
    settings = Settings(target=chip.target, arithmetic=False, measured=False)
    return run_kernel(call.source, call.kernel, call.arguments, settings)[1]


def price_dict(price: Price, trace: Trace) -> dict[str, Any]:
    """The object that `dfmp2 kernels cost --json` prints; all of it predicted."""
    engine_ms = {
        name: price.total(lambda engines, name=name: getattr(engines, name)) / NS_PER_MS  # type: ignore[misc]
        for name in NAMES
    }
    return {
        "makespan_ms": price.at() / NS_PER_MS,
        "makespan_usual_ms": price.at(USUAL) / NS_PER_MS,
        "makespan_slowest_ms": price.at(SLOWEST) / NS_PER_MS,
        "variant": price.variant,
        "calls": price.calls,
        "dispatch_ms": price.calls * ROUND_TRIP,
        "dispatch_queued_ms": queued_ms([price]),
        "engine_ms": {**engine_ms, "gpsimd": 0.0},
        "te_utilisation": engine_ms["tensor"] / (price.at() / NS_PER_MS),
        "floor_share": price.floor / price.at(),
        "hbm_bytes": round(price.total(lambda engines: engines.read + engines.written)),
        "neffs": price.neffs,
        "sbuf_high_water_bytes": trace.sbuf_high_water,
        "dma_written_bytes": trace.moved_high_water,
        "floor_ms": price.floor / NS_PER_MS,
    }


def price_text(row: Row, shape: Shape, chip: Chip, price: Price, trace: Trace) -> str:
    """The engine table of a shape, as text."""
    found = price_dict(price, trace)
    named = [pair for pair in zip(row.sizes, shape, strict=True) if pair[0] != "1"]
    sizes = ", ".join(f"{name} {size}" for name, size in named)
    lines = [
        f"{row.name}, {sizes}: predicted, not measured",
        f"variant {price.variant}: calls {price.calls}, programs {price.neffs}; one {chip.name} "
        "core, float32",
    ]
    if row.name.startswith("pair_energy"):
        lines.append(
            f"computed as nvir {padded_nvir(shape.nvir)}, naux {padded_naux(shape.naux)}; no "
            "padded pairs"
        )
    lines += ["", f"{'predicted':<22}{'busy / ms':>12}"]
    for name, label in NAMES.items():
        if found["engine_ms"][name]:
            lines.append(f"{label:<22}{found['engine_ms'][name]:>12.3f}")
    times = (
        ("time at best", "makespan_ms", "busiest engine, without waits"),
        (f"at {USUAL:.0%}", "makespan_usual_ms", "of its peak, as AWS's tuned products"),
        (f"at {SLOWEST:.0%}", "makespan_slowest_ms", "of its peak, as float32 kernels of others"),
        ("floor", "floor_ms", f"real products alone, {found['floor_share']:.0%} of the best time"),
        (
            "launches",
            "dispatch_ms",
            f"each waited for; queued {found['dispatch_queued_ms']:.3f} ms",
        ),
    )
    lines += ["", *(f"{label:<22}{found[key]:>12.3f} ms  {about}" for label, key, about in times)]
    lines += [
        f"{'HBM traffic':<22}{format_bytes(found['hbm_bytes']):>12}",
        f"{'SBUF high water':<22}{trace.sbuf_high_water:>12} of {chip.sbuf} bytes per partition",
        f"{'written by DMA':<22}{trace.moved_high_water:>12} of {MOVED_BYTES} bytes per partition "
        "(trn1)",
        f"{'PSUM high water':<22}{trace.psum_high_water:>12} of 8 banks",
    ]
    return "\n".join(lines) + "\n"


def kernels_text() -> str:
    """The list of kernels, as text."""
    return "".join(
        fill(f"{row.name:<20}{row.short:<5}{row.about}", 80, subsequent_indent=" " * 25) + "\n"
        for row in KERNELS
    )
