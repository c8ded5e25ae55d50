"""Public kernels of others as traces, and what was measured with them on trn1: checks of the cost model.

    trnsci/trnblas: trnblas/nki/dispatch.py (loops, loads and engine operations per iteration),
    docs/benchmarks.md and CHANGELOG.md (times on trn1.2xlarge, neuronxcc 2.24, NKI 0.3.0, float32).

    aws-neuron-sdk: general/nki/tutorials/matrix_multiplication.rst (trn1.32xlarge, bfloat16) and fused_mamba.rst
    (float32), kernels in aws-neuron/nki-samples
    aws-samples/sample-spectral-dns-on-aws-neuron: docs/results.md, docs/neuron-rules.md, kernels (NKI 0.6, float32)

Only the operation counts of these kernels are restated here, in this module's own terms.

Fitted were, before any of the second set was predicted: 100 and 64 cycles per instruction and 512 bytes of half rate
on trnblas (elementwise, batched medium and 16/384/512); 1.3 ms of a launch, 4.6 and 5.6 GB/s on its and trntensor's
matrix products; the line at 96 kB and its factor on rule 3 of the spectral DNS sample (88 against 96 kB); half the rate
for rows a power of two apart on its rule 7 (1,708 against 743 ms), from 8 kB on, since batched 16/384/512 has 2 kB and
no harm. All else is documented. The second set (`out_of_sample`) was fitted on by nothing.
The model's figure is the in-order schedule, as for our own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy import ndindex

from dfmp2.trainium.costs.chips import Assumptions, Chip, charge, transfer_time
from dfmp2.trainium.costs.published import load
from dfmp2.trainium.costs.schedule import settle
from dfmp2.trainium.interpreter.trace import Access, Allocation, Engine, Instruction, Space, Trace

ROW = 512  # bytes of one row of a 128 x 128 float32 tile


@dataclass(frozen=True, slots=True)
class Published:
    """A figure published for trn1 and where it stands."""

    what: str
    value: float
    unit: str
    source: str


ELEMENTWISE_VECTOR = Published(
    "elementwise kernel, Vector Engine busy", 206.0, "ms", "profile of the medium shape"
)
ELEMENTWISE_STATEMENTS = Published(
    "elementwise kernel, Vector Engine instructions", 403_039, "", "the same profile"
)
ELEMENTWISE_READS = Published(
    "elementwise kernel, HBM reads", 6_578_757_632, "bytes", "the same profile"
)
BATCHED_MEDIUM = Published(
    "batched pairs, medium, energy step, warm",
    next(one.published for one in load()[1] if one.id == "medium-batched"),
    "ms",
    "docs/benchmarks.md, v0.5.4",
)
BATCHED_CHUNKED = Published("batched pairs, 16/384/512, warm", 38.7, "ms", "CHANGELOG.md, v0.5.4")
BATCHED_FROM_DISK = Published(
    "batched pairs, medium, 64 NEFFs loaded from disk", 98.7e3, "ms", "CHANGELOG.md, v0.5.5"
)
BATCHED_COLD = Published(
    "batched pairs, medium, compiled anew", 2041.3e3, "ms", "CHANGELOG.md, v0.5.5"
)
BATCHED_SMALL = Published("batched pairs, small, warm", 5.0, "ms", "docs/benchmarks.md, v0.5.2")
ROUND_TRIP = 1.3  # ms of one dispatch, from its calls of 16 to 2048^3 matrix products


def elementwise_strip(nvir: int = 448, rows: int = 112) -> list[Instruction]:
    """One strip of the elementwise kernel on a given T: two loads, ten operations, 32 x 32 transposes of one load."""
    vector = (
        [("tensor_copy", 1)] * 3
        + [("tensor_tensor", 2)] * 4
        + [("reciprocal", 1), ("tensor_tensor", 2)]
    )
    loads = [_load(rows, 4 * nvir, 4 * nvir), _load(nvir, 4 * rows, 4 * rows)]
    body = [_vector(name, nvir, operands) for name, operands in vector]
    turn = [_vector("nc_transpose", rows, 1) for _ in range(nvir // 32)]
    return [*loads, *turn, *body, _vector("tensor_reduce", nvir, 1)]


def elementwise_strips(nocc: int = 64, nvir: int = 448, rows: int = 112) -> int:
    """Number of strips of all ordered pairs."""
    return nocc * nocc * (nvir // rows)


def batched_block(naux: int) -> list[Instruction]:
    """One 128 x 128 block of one pair of the batched kernel: two products with their loads, then the energy terms."""
    steps = 2 * -(-naux // 128)
    loads = [_load(128, ROW, ROW) for _ in range(2 * steps)]
    products = [
        Instruction("nc_matmul", "tensor", 128, 128, 4, (), (), stationary=128)
        for _ in range(steps)
    ]
    vector = (
        [("tensor_copy", 1)] * 5
        + [("tensor_tensor", 2)] * 2
        + [("tensor_scalar", 1)]
        + [("tensor_tensor", 2)] * 2
    )
    body = [
        _vector(name, 128, operands)
        for name, operands in [*vector, ("reciprocal", 1), ("tensor_tensor", 2)]
    ]
    return [
        *loads,
        *products,
        *body,
        _vector("tensor_reduce", 128, 1),
        _vector("tensor_copy", 1, 1),
    ]


def batched_blocks(nocc: int, nvir: int) -> int:
    """Number of blocks of all ordered pairs."""
    return nocc * nocc * (-(-nvir // 128)) ** 2


def engine_time(
    iteration: list[Instruction], count: int, engine: str, chip: Chip, given: Assumptions
) -> float:
    """Busy time of an engine, or of all DMA queues together, ms."""
    if engine == "dma":
        return (
            count
            * sum(transfer_time(one, chip, given) for one in iteration if one.engine == "dma")
            / 1e6
        )
    cycles = sum(charge(one, chip, given).cycles for one in iteration if one.engine == engine)
    return count * cycles / chip.clock(engine) / 1e6


def traffic(iteration: list[Instruction], count: int) -> int:
    """HBM bytes read."""
    return count * sum(one.bytes for one in iteration)


def _vector(name: str, elements: int, operands: int) -> Instruction:
    inside = tuple(Access(k, "sbuf", 0, 128, 0, 4 * elements) for k in range(operands))
    return Instruction(name, "vector", elements, 128, 4, inside, (), operands=operands)


def _load(rows: int, row_bytes: int, run: int) -> Instruction:
    return Instruction(
        "dma_copy", "dma", row_bytes // 4, min(rows, 128), 4, (), (), bytes=rows * row_bytes, descriptors=rows,
        run_bytes=run,
    )  # fmt: skip


# --- Kernels of others as schedules: held against figures that no constant of the model was fitted on. ---------------


class Recorder:
    """A trace written instruction by instruction; buffers are fresh at every use, as in the kernels themselves."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._buffers: list[list[Any]] = []

    def tile(self, size: int, space: Space = "sbuf", rows: int = 128) -> Access:
        """A buffer of `size` bytes per partition."""
        issued = len(self.trace.instructions)
        self._buffers.append([len(self._buffers), "tile", space, size, issued, issued, ""])
        return Access(len(self._buffers) - 1, space, 0, rows, 0, size)

    def do(
        self,
        name: str,
        engine: Engine,
        elements: int,
        reads: Sequence[Access],
        write: Access,
        **more: Any,
    ) -> Access:
        """An instruction; its destination comes back."""
        for access in (*reads, write):
            self._buffers[access.tensor][5] = len(self.trace.instructions)
        more = {"itemsize": 4, **more}
        size = more.pop("itemsize")
        self.trace.instructions.append(
            Instruction(name, engine, elements, 128, size, tuple(reads), (write,), **more)
        )
        return write

    def load(self, size: int, rows: int = 128, row: int = 0) -> Access:
        """A fresh tile of `size` bytes per partition, each from one run in HBM; `row` : bytes from one to the next."""
        tile = self.tile(size, rows=rows)
        return self._move(self.tile(1, "hbm"), tile, size, rows, row)

    def store(self, tile: Access, row: int = 0) -> None:
        """A tile to HBM."""
        self._move(
            tile, self.tile(1, "hbm"), tile.byte_stop - tile.byte_start, tile.partition_stop, row
        )

    def _move(self, source: Access, target: Access, size: int, rows: int, row: int) -> Access:
        facts = {"bytes": rows * size, "descriptors": rows, "run_bytes": size, "row_bytes": row}
        return self.do("dma_copy", "dma", size // 4, [source], target, **facts)

    def both(self, left: Access, right: Access) -> Access:
        """A sum or product of two float32 tiles on the Vector Engine."""
        size = left.byte_stop
        return self.do(
            "tensor_tensor",
            "vector",
            size // 4,
            [left, right],
            self.tile(size, rows=left.partition_stop),
        )

    def copy(self, bank: Access, itemsize: int = 4) -> Access:
        """A bank of PSUM as a tile, by the Vector Engine."""
        count = bank.byte_stop // 4
        return self.do(
            "tensor_copy",
            "vector",
            count,
            [bank],
            self.tile(count * itemsize, rows=bank.partition_stop),
        )

    def product(
        self, bank: Access, columns: int, stationary: Access, moving: Access, itemsize: int = 4
    ) -> None:
        """A product of 128 stationary columns, added to a bank."""
        self.do(
            "nc_matmul",
            "tensor",
            columns,
            [stationary, moving],
            bank,
            stationary=bank.partition_stop,
            itemsize=itemsize,
        )

    def milliseconds(self, chip: Chip, given: Assumptions) -> tuple[float, float]:
        """The busiest engine and the in-order schedule, ms."""
        self.trace.allocations = [Allocation(*row) for row in self._buffers]
        account, _ = settle(self.trace, chip, given)
        return account.bound / 1e6, account.makespan / 1e6


def tutorial_product(version: str) -> tuple[Recorder, int]:
    """Part of AWS's matrix product tutorial, (4096, 8192) times (8192, 8192) in bfloat16, and how many such parts.

    version : "tiled", "hoisted" loads, "blocked" free dimensions, "optimised": blocked in all three
    """
    w, k_tiles = Recorder(), 64
    left_row, right_row = 2 * 4096, 2 * 8192  # bytes between rows of the operands
    if version == "optimised":  # one of 8 blocks of 1,024 columns
        sums = [
            [w.do("memset", "vector", 512, [], w.tile(1024)) for _ in range(2)] for _ in range(32)
        ]
        for _ in range(8):
            right = [w.load(2048, row=right_row) for _ in range(8)]
            for m in range(2):
                left = [w.load(4096, row=left_row) for _ in range(8)]
                for n, row in ndindex(2, 16):
                    bank = w.tile(2048, "psum")
                    for a, b in zip(left, right, strict=True):
                        w.product(bank, 512, a, b, 2)
                    total = sums[16 * m + row]
                    w.do("tensor_tensor", "vector", 512, [total[n], bank], total[n])
        for pair in sums:
            packed = w.tile(2048)
            for part in pair:
                w.do("tensor_copy", "vector", 512, [part], packed)
            w.store(packed, right_row)
        return w, 8
    rows, columns = (2, 2) if version == "blocked" else (1, 1)  # tiles of a block
    left_held = [
        [w.load(256, row=left_row) for _ in range(k_tiles)]
        for _ in range(rows if version != "tiled" else 0)
    ]
    for _ in range(16 // columns):
        right_held = [
            [w.load(1024, row=right_row) for _ in range(k_tiles)]
            for _ in range(columns if version != "tiled" else 0)
        ]
        for m, n in ndindex(rows, columns):
            bank = w.tile(2048, "psum")
            for k in range(k_tiles):
                a = left_held[m][k] if left_held else w.load(256, row=left_row)
                if right_held:
                    b = right_held[n][k]
                else:
                    b = w.load(1024, row=right_row)
                w.product(bank, 512, a, b, 2)
            w.store(w.copy(bank, 2), right_row)
    return w, 32 // rows


def mamba(version: int, channels: int, length: int, states: int = 16) -> tuple[Recorder, int]:
    """Part of AWS's Mamba tutorial in float32, 128 channels or all of them, and how many such parts.

    version : 1 loads delta and u for every state, 2 once, 3 also cuts the sequence into pieces of 512
    """
    w, tiles = Recorder(), channels // 128
    turns = tiles if version == 1 else 1
    sums = [w.do("memset", "vector", length, [], w.tile(4 * length)) for _ in range(turns)]
    piece = 512 if version == 3 else length
    if version == 1:
        kept = None
    else:
        kept = (w.load(4 * length), w.load(4 * length))
    for _, turn in ndindex(states, turns):
        delta, u = kept or (w.load(4 * length), w.load(4 * length))
        w.load(4)  # A, one number per channel
        for low in range(0, length, piece):
            part = [
                access._replace(byte_start=4 * low, byte_stop=4 * (low + piece))
                for access in (delta, u)
            ]
            grown = w.do("activation", "scalar", piece, part[:1], w.tile(4 * piece))
            taken = w.do("tensor_tensor", "vector", piece, part, w.tile(4 * piece))
            taken = w.do(
                "tensor_tensor", "vector", piece, [taken, _spread(w, piece)], w.tile(4 * piece)
            )
            scanned = w.do("tensor_tensor_scan", "vector", piece, [grown, taken], w.tile(4 * piece))
            to = w.tile(4 * piece, "psum" if version == 3 else "sbuf")
            result = w.do("tensor_tensor", "vector", piece, [scanned, _spread(w, piece)], to)
            total = sums[turn]._replace(byte_start=4 * low, byte_stop=4 * (low + piece))
            w.do("tensor_tensor", "vector", piece, [total, result], total)
    for total in sums:
        w.store(total)
    return w, 1 if version == 1 else tiles


def _spread(w: Recorder, columns: int) -> Access:
    """A row of HBM in all partitions: loaded into one, multiplied with ones into PSUM."""
    bank = w.tile(4 * columns, "psum")
    w.product(bank, columns, w.tile(512, rows=1), w.load(4 * columns, rows=1))
    return bank


def spectral_step(n: int, chip: Chip, given: Assumptions) -> tuple[float, float]:
    """ms of a time step of the spectral solver on one core at n^3 points: busiest engine, in-order schedule.

    Three stages of six transforms to physical space, three back, a curl, a cross product and an update; every pass
    writes HBM and is waited for, so that their times add up.
    """
    row = 4 * n * n
    parts: list[tuple[int, Recorder]] = []
    for count, real_in, real_out in ((18, False, True), (9, True, False)):
        w = Recorder()
        _spectral_pass(w, n, n * n, row, real_in, False)
        for _ in range(n):
            _spectral_pass(w, n, n, 0, False, False)
        _spectral_pass(w, n, n * n, row, False, real_out)
        parts.append((count, w))
    for count, loads, products, scaled, stores in (
        (3, 9, 18, 0, 6),
        (3, 6, 9, 0, 3),
        (2, 23, 42, 18, 12),
        (1, 29, 48, 18, 12),
    ):
        w = Recorder()
        for _ in range(n * n // 512):
            tiles = [w.load(2048, n, row) for _ in range(loads)]
            made = [w.both(tiles[k % loads], tiles[(k + 1) % loads]) for k in range(products)]
            for k in range(scaled):
                w.do("tensor_scalar", "vector", 512, [tiles[k % loads]], w.tile(2048, rows=n))
            for k in range(stores):
                w.store(made[-1 - k], row)
        parts.append((count, w))
    found = [(count, w.milliseconds(chip, given)) for count, w in parts]
    return sum(count * times[0] for count, times in found), sum(
        count * times[1] for count, times in found
    )


def _spectral_pass(
    w: Recorder, n: int, columns: int, row: int, real_in: bool, real_out: bool
) -> None:
    """A transform along the rows of an (n, columns) view, `row` bytes apart: the data stationary, the matrix moving."""
    matrix, width = w.tile(4 * n, rows=n), min(512, columns)
    for _ in range(0, columns, width):
        data = [w.load(4 * width, n, row) for _ in range(1 if real_in else 2)]
        for low in range(0, width, 128):
            for _ in range(1 if real_out else 2):
                bank = w.tile(4 * n, "psum", min(128, width - low))
                for one in data:
                    w.product(bank, n, one, matrix)
                w.store(w.copy(bank))


@dataclass(frozen=True, slots=True)
class Held:
    """A published figure beside the model's, all in its unit.

    Attributes
    ----------
    model : in-order schedule; bound : busiest engine alone
    even : the schedule without the rule about rows a power of two apart
    why : what a miss is put down to
    """

    published: Published
    model: float
    bound: float
    even: float
    why: str = ""

    @property
    def error(self) -> float:
        """Relative, of the model."""
        return self.model / self.published.value - 1


TUTORIAL, DNS, TRNBLAS = "AWS tutorial", "DNS", "trnblas"  # see above
PRODUCTS = (("tiled", 51.80), ("hoisted", 42.96), ("blocked", 22.07), ("optimised", 6.97))
SCANS = (
    (1, 256, 512, 0.17293),
    (1, 4096, 512, 2.34),
    (2, 4096, 512, 1.61),
    (3, 4096, 2048, 6.6),
    (3, 4096, 8192, 27.8),
)
SPECTRAL = ((64, 5.2), (128, 20.4))
MEASURED_MOVES = (
    ("wide transfers", 12_307, 5092e6, 152.63),
    ("as before them", 41_107, 7972e6, 175.78),
)
RULE = (
    "rows a power of two apart: half the rate is too slow for these loads, the full rate too fast"
)
WHY = {
    "tiled": RULE,
    "blocked": RULE,
    "mamba_v2, 4096": "delta u is the same for all states: at 99.63 % of the Vector Engine the compiler must hoist it",
    "64^3": "one order of all transfers: each load waits behind stores that wait for products; engines alone fit",
    "128^3": "the same; and rows 64 kB apart seem to cost nothing: without the rule the busiest engine takes {:.1f} ms",
    "as before them": RULE,
    "batched pairs": "one launch and transfers; what the other 2 ms are is not published",
}


def out_of_sample(chip: Chip, given: Assumptions) -> list[Held]:
    """All figures that no constant was fitted on, with what the model says."""
    found = []

    def hold(
        what: str, value: float, source: str, priced: Callable[[Assumptions], tuple[float, float]]
    ) -> None:
        (bound, model), (engine, even) = priced(given), priced(replace(given, stride_factor=1.0))
        why = next((text for key, text in WHY.items() if key in what), "")
        held = Held(Published(what, value, "ms", source), model, bound, even, why.format(engine))
        found.append(held if abs(held.error) > 0.25 else replace(held, why=""))

    def times(made: tuple[Recorder, int], model: Assumptions) -> tuple[float, float]:
        bound, makespan = made[0].milliseconds(chip, model)
        return made[1] * bound, made[1] * makespan

    def moved(run: int, count: int, model: Assumptions) -> tuple[float, float]:
        one = _load(128, run, run)._replace(row_bytes=4 * 256**2 // 2)
        busy = 3 * count * transfer_time(one, chip, model) / 1e6
        return busy, busy

    def batched(model: Assumptions) -> tuple[float, float]:
        busy = engine_time(batched_block(384), batched_blocks(16, 112), "dma", chip, model)
        return busy, busy + ROUND_TRIP

    for version, value in PRODUCTS:
        product = tutorial_product(version)
        hold(
            f"bfloat16 product 4096 x 8192 x 8192, {version}",
            value,
            TUTORIAL,
            partial(times, product),
        )
    for number, channels, length, value in SCANS:
        scan = mamba(number, channels, length)
        hold(
            f"mamba_v{number}, {channels} channels, {length} steps",
            value,
            TUTORIAL,
            partial(times, scan),
        )
    for n, value in SPECTRAL:
        step = partial(spectral_step, n, chip)
        hold(
            f"spectral DNS, {n}^3 points, one core, a time step",
            value,
            f"{DNS} results, section 4",
            step,
        )
    for name, count, volume, value in MEASURED_MOVES:
        what = f"spectral DNS, 256^3 points, two cores, a time step, {name}: its published bytes and transfers"
        hold(what, value, f"{DNS} rules, 7", partial(moved, int(volume / count / 128), count))
    hold(BATCHED_SMALL.what, BATCHED_SMALL.value, TRNBLAS, batched)
    hold("16 launches of one pair each", 25.4, TRNBLAS, lambda _: (0.0, 16 * ROUND_TRIP))
    return found


# Rule 3 of the spectral DNS sample, us per turn by resident bytes that transfers write; its kernel is not public, so
# that the model says ratios only. 88 against 96 kB is what `moved_line` and `moved_factor` were read from.
CLIFF = (  # rows, kB, how it came, us, in the sample
    (8192, 72, "", 2809, False), (8192, 80, "", 2804, False), (8192, 88, "", 2823, True), (8192, 96, "", 11_201, True),
    (8192, 128, "", 8256, False), (16_384, 96, "", 40_608, False), (16_384, 128, "", 42_436, False),
    (8192, 96, "copied by an engine", 3002, False), (8192, 128, "copied by an engine", 3839, False),
)  # fmt: skip
CLIFF_BASE = {8192: 2798, 16_384: 10_982}  # us at 64 kB


def cliff(given: Assumptions) -> list[tuple[str, float, float, bool]]:
    """(what, published ratio to 64 kB, the model's, whether it was fitted on)."""
    rows = []
    for size, resident, how, value, fitted in CLIFF:
        if 1024 * resident >= given.moved_line and not how:
            model = given.moved_factor
        else:
            model = 1.0
        rows.append(
            (
                f"{size:,} rows, {resident} kB{', ' + how if how else ''}",
                value / CLIFF_BASE[size],
                model,
                fitted,
            )
        )
    return rows
