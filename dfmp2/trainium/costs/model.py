"""The cost of one kernel call in closed form: products x passes, passes over elements, bytes moved.

    Tensor Engine    4 max(64, columns) cycles per float32 product of a tile        (2 for transposes on trn2)
    Vector Engine    passes x elements + 100 cycles per statement      passes: 5 for the pair energies, 8 for a reciprocal
    Scalar Engine    passes x elements + 64 cycles per statement + 64 per row sum
    PSUM port        on trn1, everything that both of them read or write there
    transfers        bytes (run + 512) / run / (16 queues x rate)      run: contiguous bytes
    time             the busiest of these / use + the exposed time at the beginning and end of a call

`use` is at most 1. AWS's tuned products keep an engine busy for 85 % of the time (documentation
2.26, matrix multiplication tutorial); float32 kernels of others on trn1 reach 40 %
(aws-samples/sample-spectral-dns-on-aws-neuron, docs/results.md). All engines are derated alike.
Cycles per element are from the instruction pages of documentation 2.26, the last to give them; 100
and 64 cycles per statement reproduce a published kernel of 403,039 instructions (202 ms against 206
measured), and 512 bytes the 135 to 142 GB/s published for rows of that length. Nothing was measured
on a device.

Sources of the chips' clocks, memories and rates of transfers: the Trainium/Inferentia2 and
Trainium2 architecture guides of the AWS Neuron documentation (engine specifications: clocks, SBUF,
ports), its DMA bandwidth guide, trainium2.rst and logical-neuroncore-config.rst. At four passes
these clocks amount to 22.9 and 19.7 float32 TFLOPS per core; the guides say 23 and 20. On trn2 two
cores share a bank of 24 GiB, of which each is assigned half here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from dfmp2.errors import InputError, Option
from dfmp2.trainium.calls import KernelCall
from dfmp2.trainium.interpreter.rules import Settings, Target
from dfmp2.trainium.kernels.sizes import (
    AHEAD,
    BANK,
    PART,
    SOLVED,
    STAGE,
    P,
    equal_parts,
    lower_start,
    parts_of,
    sum_columns,
    traversal,
    upper_columns,
)
from dfmp2.trainium.layout import emission

FLOAT32 = 4
PASSES = 4  # of the Tensor Engine for a float32 product
FLOOR = 64  # fewest columns that a product is charged for
VECTOR_STATEMENT, SCALAR_STATEMENT, ROW_SUM = 100, 64, 64  # cycles
RECIPROCAL = 8  # cycles per element
DMA_QUEUES = 16
DMA_HALF = 512  # contiguous bytes at which a queue reaches half its rate
DMA_START = 1300.0  # ns between the release of a transfer and its first byte
RUN_TILES = 16  # tiles of fitted integrals in a load, as in transform.py
TOGETHER, PANEL = 4, 24_576  # as in tiles.py and products.py, which need nki to be imported
TABLES = ("tables", "eu", "neg")
USUAL, SLOWEST = 0.85, 0.40  # of an engine's peak


@dataclass(frozen=True, slots=True)
class Chip:
    """One NeuronCore of a chip.

    Attributes
    ----------
    name : "trn1" or "trn2"
    target : the chip generation that kernels are written for
    tensor, vector, scalar : clocks of the engines, GHz
    dma : bytes per ns of one DMA queue
    hbm : bytes of device memory per core
    cores : physical cores of a chip
    shared_port : whether Vector and Scalar Engine share one PSUM port
    fast_transpose : whether transpose mode halves the four passes of a float32 product
    """

    name: str
    target: Target
    tensor: float
    vector: float
    scalar: float
    dma: float
    hbm: int
    cores: int
    shared_port: bool
    fast_transpose: bool

    @property
    def sbuf(self) -> int:
        """Usable bytes per partition."""
        return Settings(target=self.target).sbuf_limit


CHIPS = {
    "trn1": Chip(
        name="trn1",
        target="gen2",
        tensor=2.8,
        vector=1.12,
        scalar=1.4,
        dma=17.0,
        hbm=16 * 1024**3,  # 32 GiB for two cores
        cores=2,
        shared_port=True,
        fast_transpose=False,
    ),
    "trn2": Chip(
        name="trn2",
        target="gen3",
        tensor=2.4,
        vector=0.96,
        scalar=1.2,
        dma=23.0,
        hbm=12 * 1024**3,  # 96 GiB for eight cores
        cores=8,
        shared_port=False,
        fast_transpose=True,
    ),
}


def find_chip(name: str) -> Chip:
    """The chip of a given name.

    Raises
    ------
    InputError : unknown name
    """
    if name not in CHIPS:
        raise InputError(
            Option("target", name), f": unknown chip: expected one of {', '.join(CHIPS)}"
        )
    return CHIPS[name]


@dataclass(slots=True)
class Engines:
    """Busy times of the engines of a core during a call, ns, and the bytes moved.

    Attributes
    ----------
    port : PSUM port shared by Vector and Scalar Engine
    exposed : time before the first product and after the last, while the busiest engine waits
    read, written : bytes of HBM
    """

    chip: Chip
    tensor: float = 0.0
    vector: float = 0.0
    scalar: float = 0.0
    port: float = 0.0
    dma: float = 0.0
    exposed: float = 0.0
    read: float = 0.0
    written: float = 0.0

    @property
    def busiest(self) -> float:
        """Busy time of the limiting engine."""
        return max(self.tensor, self.vector, self.scalar, self.port, self.dma)

    def at(self, use: float) -> float:
        """Time of the call if the limiting engine is busy for this fraction of it."""
        return self.busiest / use + self.exposed

    def products(self, count: float, columns: float, *, transposes: bool = False) -> None:
        """Add products of 128 x 128 stationary tiles with moving tiles of `columns` columns."""
        passes = PASSES
        if transposes and self.chip.fast_transpose:
            passes = PASSES // 2
        self.tensor += count * passes * max(FLOOR, columns) / self.chip.tensor

    def vector_passes(
        self, elements: float, statements: float, *, psum: float = 0.0, psum_statements: float = 0.0
    ) -> None:
        """Add passes over elements per partition; `psum` : those of statements that read or write
        PSUM."""
        self.vector += (elements + VECTOR_STATEMENT * statements) / self.chip.vector
        if self.chip.shared_port:
            self.port += (psum + VECTOR_STATEMENT * psum_statements) / self.chip.vector

    def scalar_passes(
        self, elements: float, statements: float, *, sums: float = 0.0, psum: bool = False
    ) -> None:
        """Add passes over elements per partition; `sums` of the statements have a row sum."""
        taken = (elements + SCALAR_STATEMENT * statements + ROW_SUM * sums) / self.chip.scalar
        self.scalar += taken
        if psum and self.chip.shared_port:
            self.port += taken

    def transfer(self, moved: float, run: float, *, stored: bool = False) -> None:
        """Add a transfer between HBM and SBUF, in contiguous runs of `run` bytes."""
        self.dma += self.seconds(moved, run)
        if stored:
            self.written += moved
        else:
            self.read += moved

    def seconds(self, moved: float, run: float) -> float:
        """Time of a transfer on all queues, ns."""
        return moved * (run + DMA_HALF) / run / (DMA_QUEUES * self.chip.dma)


def engines(call: KernelCall, chip: Chip) -> Engines:
    """Busy times of the engines of a chip's core during a call."""
    found = Engines(chip)
    KERNELS[call.kernel](found, call)
    return found


def _pairs(found: Engines, call: KernelCall) -> None:
    """K3; see the head of the kernel file."""
    block = _Block(call)
    group = block.group
    items = emission(block.rows, block.columns, block.residents, block.diagonal, group)
    singles = sum(len(item.rows) == 1 for item in items)
    groups = len(items) - singles
    if singles:
        tiles = -(-block.nvir // P)
        found.products(singles * tiles * block.slices * block.parts, block.width)
        _folded(found, singles, block.nvir, block.parts)
    if groups:
        full, left = divmod(block.nvir, P)
        found.products(groups * (group * full + 1) * block.slices, block.nvir)
        _folded(found, groups * group, full * P, 1)
        _leftover(found, groups, group, full, left)
        found.scalar_passes(block.rows * block.slices * left, block.rows)
    upper = upper_columns(block.nvir)
    pairs = singles + group * groups
    _operands(found, block, pairs, sum_columns(upper))


def _folded(found: Engines, pairs: int, nvir: int, parts: int) -> None:
    """Add elementwise work on the upper triangle of blocks: five passes of the Vector Engine, three
    sums."""
    tiles, upper = -(-nvir // P), upper_columns(nvir)
    chunks = -(-upper // BANK)
    cut = int(nvir < upper and nvir % BANK != 0)  # with doubled and single denominators
    found.products(pairs * upper / P, P, transposes=True)
    found.vector_passes(
        pairs * 5 * upper,
        pairs * (4 * chunks + cut),
        psum=pairs * 2 * upper,
        psum_statements=pairs * 2 * chunks,
    )
    short = nvir % P
    copies = 3 * tiles - 2 + (parts - 1) * tiles + int(short > 0)
    found.scalar_passes(pairs * (upper + lower_start(tiles) + short), pairs * copies, psum=True)
    _three_sums(found, pairs * upper, pairs * sum_columns(upper) // 3)


def _leftover(found: Engines, groups: int, group: int, full: int, height: int) -> None:
    """Add elementwise work on the rows below the last full tile, for pairs that share a tile."""
    shared = group * full * height + height
    found.products(groups * (group * full + 1), height)
    found.vector_passes(
        groups * 5 * shared,
        groups * (group + 7),
        psum=groups * 2 * shared,
        psum_statements=groups * 4,
    )
    copies = groups * (group * (full + 1) + 2)
    found.scalar_passes(groups * (shared + full * P + height), copies, psum=True)
    _three_sums(found, groups * shared, groups * (group + 1))


def _three_sums(found: Engines, elements: int, sums: int) -> None:
    """Add row sums of squares of X (in SBUF), of squares of Y (in PSUM), and of their product."""
    found.scalar_passes(elements, sums, sums=sums, psum=True)
    found.scalar_passes(2 * elements, 2 * sums, sums=2 * sums)


def _cross(found: Engines, call: KernelCall) -> None:
    """K3 between two spins: two passes of the Vector Engine, one sum."""
    block = _Block(call)
    tiles = call.arguments["b_i"].shape[2] // P
    pairs = block.rows * block.columns
    units = tiles * block.parts
    elements = tiles * block.nvir
    found.products(pairs * units * block.slices, block.width)
    found.vector_passes(
        pairs * 2 * elements,
        pairs * 2 * units,
        psum=pairs * elements,
        psum_statements=pairs * units,
    )
    found.scalar_passes(pairs * elements, pairs * units, sums=pairs * units)
    _operands(found, block, pairs, units)


class _Block:
    """Sizes in a call of the pair energies."""

    def __init__(self, call: KernelCall) -> None:
        given = call.arguments
        self.rows, self.columns = given["b_i"].shape[0] // P, given["b_j"].shape[0] // P
        sizes: tuple[int, int, int, int]
        if "sizes" in given:
            sizes = given["sizes"]
        else:
            sizes = given["nvir"], given["slices"], given["residents"], 1
        self.nvir, self.slices, residents, self.group = sizes
        self.residents = min(self.rows, residents)
        self.diagonal = bool(given.get("diagonal"))
        self.parts = parts_of(self.nvir, self.slices)
        self.width = -(-self.nvir // self.parts)  # columns of a part of B_j
        self.tables = sum(prod(given[name].shape) for name in TABLES if name in given)
        self.left, self.right = given["b_i"].shape[2], given["b_j"].shape[2]


def _operands(found: Engines, block: _Block, pairs: int, places: int) -> None:
    """Add transfers and copies of blocks of B, and the waiting time; `places` : partial sums per
    pair."""
    steps = traversal(block.rows, block.columns, block.residents, block.parts, block.diagonal)
    loads = 1 + sum(step[1:] != before[1:] for before, step in pairwise(steps))
    row = FLOAT32 * P * block.slices
    b_i, b_j = row * block.left, row * block.right
    run_i, run_j = FLOAT32 * STAGE, row * block.right // P
    if block.parts > 1:
        b_j = row * block.width
        run_i = FLOAT32 * 2 * P
        run_j = FLOAT32 * block.width
    pair = found.tensor / pairs
    after = (found.vector + found.scalar) / pairs
    found.transfer(block.rows * b_i, run_i)
    found.transfer(loads * b_j, run_j)
    found.transfer(FLOAT32 * block.tables, FLOAT32 * STAGE)
    results = FLOAT32 * pairs * places
    found.transfer(P * results, results / -(-block.rows // block.residents), stored=True)
    pieces = block.rows * -(-block.slices * block.left // STAGE)
    found.scalar_passes(block.rows * block.slices * block.left + block.tables // P, pieces)
    one = found.seconds(b_i, run_i) + DMA_START / AHEAD
    late = max(0.0, one - pair) * (block.residents - 1)
    first = one + found.seconds(b_j, run_j) + found.seconds(FLOAT32 * block.tables, FLOAT32 * STAGE)
    found.exposed = DMA_START + first + late + after


def _transform(found: Engines, call: KernelCall) -> None:
    """K12: 128 x 128 products with few columns, then full ones; fitted integrals are read once per
    block."""
    _, tiles, edge = call.arguments["c_occ"].shape
    columns = call.arguments["c_vir"].shape[2]
    rows = call.arguments["a"].shape[0]
    stored = call.arguments.get("stored", 0)
    made = rows // (tiles * P)
    banks = -(-P // min(P, BANK // edge))
    found.products(made * tiles * tiles * P, edge)
    found.products(made * edge * tiles * -(-columns // BANK), min(BANK, columns))
    copies = made * tiles * edge / 2  # of one bank column each, alternating between the engines
    found.vector_passes(
        2 * P * copies, banks * copies, psum=2 * P * copies, psum_statements=banks * copies
    )
    found.scalar_passes(2 * P * copies, banks * copies, psum=True)
    found.scalar_passes(made * edge * columns, made * edge * -(-columns // BANK), psum=True)
    found.transfer(FLOAT32 * rows * tiles * P * P, FLOAT32 * RUN_TILES * P)
    found.transfer(FLOAT32 * made * P * tiles * columns, FLOAT32 * columns)
    if "before" in call.arguments:
        stored = call.arguments["before"].shape[1]
        found.transfer(FLOAT32 * edge * P * (stored - made) * columns, FLOAT32 * STAGE)
    run = FLOAT32 * min(BANK, columns)
    found.transfer(FLOAT32 * edge * P * stored * columns, run, stored=True)
    found.exposed = 2 * DMA_START + (edge * columns) / found.chip.scalar


def _products(found: Engines, call: KernelCall) -> None:
    """gemm and syrk: panels of A stay, B is streamed past each."""
    given = call.arguments
    triangle = call.kernel == "syrk"
    batches = given.get("batches", 1)
    depth = given["a"].shape[0] // batches
    wide = given["a" if triangle else "b"].shape[1]
    rows = given["columns"]
    columns = rows if triangle else wide
    slices, tiles = -(-depth // P), -(-rows // P)
    part = equal_parts(columns, min(BANK, PART // slices))
    group = P * max(1, min(TOGETHER, PANEL // 3 // (slices * P)))
    panel = group * max(1, PANEL // (group * slices) - 1)
    results = tiles * columns
    if triangle:
        results -= P * tiles * (tiles - 1) // 2
        found.products(tiles * (tiles - 1) // 2, P)
    found.products(batches * slices * results / part, part)
    found.scalar_passes(
        batches * (slices * rows + tiles * columns),
        batches * (slices * -(-rows // group) + tiles * -(-columns // part)),
    )
    once = FLOAT32 * batches * depth
    found.transfer(once * rows, FLOAT32 * min(group, rows))
    found.transfer(once * columns * -(-rows // panel), FLOAT32 * part)
    found.transfer(FLOAT32 * batches * rows * columns, FLOAT32 * part, stored=True)
    first = FLOAT32 * depth * (min(group, rows) + part)
    found.exposed = 2 * DMA_START + found.seconds(first, FLOAT32 * part)


def _solve(found: Engines, call: KernelCall) -> None:
    """trsm: row tile after row tile, two parts of columns at a time."""
    size, columns = call.arguments["b"].shape
    tiles = -(-size // P)
    part = equal_parts(columns, min(BANK, SOLVED // tiles))
    parts, below = -(-columns // part), tiles * (tiles + 1) // 2
    found.products(parts * below, part)
    found.vector_passes(
        tiles * columns, tiles * parts, psum=tiles * columns, psum_statements=tiles * parts
    )
    found.scalar_passes(tiles * columns, tiles * parts, psum=True)
    found.transfer(FLOAT32 * P * P * below * -(-parts // 2), FLOAT32 * P * (tiles + 1) / 2)
    found.transfer(FLOAT32 * size * columns, FLOAT32 * part)
    found.transfer(FLOAT32 * size * columns, FLOAT32 * part, stored=True)
    found.exposed = 4 * DMA_START


def _energies(found: Engines, call: KernelCall) -> None:
    """mp2_energy for a given T: five passes of the Vector Engine and a reciprocal."""
    nvir, nocc = call.arguments["eu"].shape[0], call.arguments["nocc"]
    tiles = -(-nvir // P)
    parts = tiles * -(-nvir // BANK)
    elements = tiles * nvir
    found.products(nocc * tiles * tiles, equal_parts(nvir, P))
    found.vector_passes(
        nocc * (5 + RECIPROCAL) * elements,
        nocc * 6 * parts,
        psum=nocc * (4 + RECIPROCAL) * elements,
        psum_statements=nocc * 4 * parts,
    )
    found.scalar_passes(nocc * elements, nocc * parts, sums=nocc * parts)
    found.transfer(FLOAT32 * nocc * nvir**2, FLOAT32 * nvir)
    found.transfer(FLOAT32 * nvir**2, FLOAT32 * nvir)
    found.transfer(FLOAT32 * P * nocc, FLOAT32 * nocc, stored=True)
    found.exposed = 4 * DMA_START + (found.vector + found.scalar) / nocc


KERNELS: dict[str, Callable[[Engines, KernelCall], None]] = {
    "pair_energy_block": _pairs,
    "pair_energy_cross": _cross,
    "ao_to_mo": _transform,
    "ao_to_mo_next": _transform,
    "gemm": _products,
    "syrk": _products,
    "trsm": _solve,
    "mp2_energy": _energies,
}
