"""The memory model: what a run will hold in memory and write to disk, stage by stage, before it
starts.

Counts the arrays that grow with the molecule; program and libraries are what is resident already.
Each stage has a variant in memory and one on disk; the one in memory is taken where it fits. On
disk a stage holds what it must and, of the streamed array, as many blocks as the budget leaves room
for.

A gradient, or relaxed densities alone, hold beside an energy:

    amplitudes            B, Z, amplitudes of one occupied orbital for each worker
    fitted integrals      Z, blocks of integrals and their derivatives
    Z-vector              Coulomb and exchange matrices as in the SCF, vectors of the iteration
    mean field            half-transformed integrals (nocc, nao, naux) of the JK set, blocks as above
    functional            blocks of points, their functions and derivatives

With a functional its kernel at every point is held beside the Z-vector equations.

Z and the half-transformed integrals go to disk where they do not fit; B does where the energy has
put it there. How many integrals are made at a time follows from what is left, and changes last bits
only. Where there is room the SCF integrals stay until the Z-vector equations, instead of being made
again, and integrals of the occupied orbitals are held in their iterations
(`dfmp2.scf.response_matrices`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dfmp2.backends import tiling
from dfmp2.backends.base import Limits
from dfmp2.backends.transfers import STAGE_BYTES
from dfmp2.errors import ResourceError
from dfmp2.errors.messages import Option
from dfmp2.integrals.basis_on_grid import BLOCK_POINTS, values_bytes
from dfmp2.planning.sizes import Workload
from dfmp2.scf.solvent import surface_bytes
from dfmp2.units import format_bytes
from dfmp2.units import quantity as _q

FLOAT64, FLOAT32 = 8, 4
# (nao, nao) float64 arrays alive in the SCF: DIIS space of 8 pairs, Fock, density, work
SCF_MATRICES = 30
# float64 arrays of the decontracted basis while X2C is made: 31 to 36 measured (Ar chain, cc-pVTZ)
X2C_MATRICES = 32
# Of Kohn-Sham (dfmp2.scf.exchange_correlation):
# float64 arrays of a function at the points of a block, of a worker: values and derivatives,
# those that matter among them, what they are multiplied with
XC_VALUES = 12
XC_MATRICES = 4  # (nao, nao) of each spin of a worker: potential, its transpose, products
POINT_BYTES = 96  # coordinates and weight of a point, in both orders, and of the order itself
START_MATRICES = 10  # of them at the first iteration, when the integrals are made
WORKER_BYTES = (
    32 * 10**6
)  # buffers of one worker in the SCF fit, the exchange and the triangular solves
STREAMING_WORKER_BYTES = (
    8 * 10**6
)  # of BLAS and small arrays in the exchange where blocks are small
FIT_WORKER_BYTES = 8 * 10**6  # of BLAS while the SCF integrals are fitted on their way to the disk
HALF_BYTES = (
    12 * 10**6
)  # of half-transformed integrals per worker (dfmp2.integrals.transform, dfmp2.scf.jk)
LEFT_BEHIND = (
    16 * 10**6
)  # of BLAS per worker, at most: it keeps the buffers that it copies operands to
BLAS_DEPTH = 256  # rows of an operand that it copies at a time
SLACK = (
    8 * 10**6
)  # modules, pages of libraries and Python objects that come on the way, the result file among them
VARIES = 10**6  # between two processes that load the same
RECOMPUTED_MATRICES = 4  # (nao, nao) per thread of a conventional SCF that makes its integrals anew
PAIR_BLOCK_MOST = 64 * 10**6  # of SCF integrals made at a time; larger ones gain nothing
CACHE_BYTES = 4 * 10**6  # of SCF integrals that each worker takes at least
READ_MOST = 256 * 10**6  # of SCF integrals read at a time
SOLVE_BYTES = 16 * 10**6  # of B a worker solves at a time (dfmp2.integrals.metric)
PIECE_BYTES = 10**6  # of raw integrals that a worker reads at a time from the disk
CHECK_MODULES = 8 * 10**6  # of PySCF that only the check loads, and of HDF5
CHECK_SHELL = 11  # functions of the largest fitting shell: h
DEVICE_TILE = 128  # rows of a tile on a device, and fitting functions of a slice
DEVICE_PIECE = (
    2**30
)  # bytes of fitted integrals that go up together, where that is one slice or more
EXACT_BLOCK = 32 * 10**6  # of four-centre integrals (dfmp2.integrals.four_center)
EXACT_WORK = 16 * 10**6  # of a worker that adds them up
CERTIFICATE_LEFT = (
    24 * 10**6
)  # PySCF's modules of exact J, K and integrals, and what they leave (18 to 26 measured)
MOST_MATRICES = 16  # over fitting functions that one pass over B on disk serves
GROUP_BYTES = 16 * 10**6  # of B taken at a time by what makes them
LEAST_FUNCTIONS = 16  # fitting functions in the smallest block of MP2 integrals: one shell
# Of a gradient:
TILE_ELEMENTS = 1 << 22  # amplitudes of a block, of one j with all i and a and some b
TILE_ARRAYS = 2  # of that size: amplitudes, and their combination
AMPLITUDE_BYTES = 2 * 10**6  # of amplitudes, in float64, between two products
CACHE_ARRAYS = 4  # of that size: denominators, work
PACKED_MOST = 4 * 10**6  # bytes of packed three-centre integrals per block
STREAM_BYTES = 6 * 10**6  # of B read from disk at a time by a worker
MATRICES = 24  # (nao, nao) float64 arrays of a spin: orbitals, densities, fields, Lagrangian
MODULES = 20 * 10**6  # bytes of PySCF's and our modules that only a gradient loads
HEAP_LEAST, HEAP_MOST = 14 * 10**6, 40 * 10**6  # left in the C library's heap by earlier stages
METRICS = 3  # (naux, naux) float64 arrays: metric, factor, two-index densities
# of them while the metric's derivative is contracted, when there are no blocks any more
TWO_CENTER = 3
VECTORS = 40  # of the Z-vector equations, with their images
MORE_VECTORS = 20  # of these with a functional, whose kernel is on a coarser grid in the iterations
# (nao, nao) arrays per fitting function of a block: integrals, densities, derivatives, copies
PASS_MATRICES = 9
RESPONSE_WORK = 12 * 10**6  # of a worker of dfmp2.scf.response_matrices
PASS_HALVES = 6  # (nocc, nao) arrays per fitting function of a block
# Of the functional (dfmp2.gradients.functional): bytes of a worker's block of points, and the
# numbers that it holds of a function at a point
XC_GRADIENT_BYTES = 16 * 10**6
XC_GRADIENT_VALUES = 40


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of the process, byte."""

    budget: int = _q("byte", "memory the run was allowed to use")
    predicted_peak: int = _q("byte", "predicted peak resident memory")
    measured_peak: int = _q("byte", "measured peak resident memory")


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the large arrays lived."""

    scf_integrals: str = _q("", "fitted SCF integrals: memory, disk, or none")
    fitted_tensor: str = _q("", "B of the MP2 step: memory or disk")
    folder: str = _q("", "folder scratch files were in, empty when there were none")
    predicted: int = _q("byte", "scratch space planned")
    written: int = _q("byte", "bytes written to scratch files")
    read: int = _q("byte", "bytes read from scratch files")


@dataclass(frozen=True, slots=True)
class Stage:
    """Bytes of one step of a variant on disk: `fixed`, and between `least` and `most` of streamed
    blocks."""

    fixed: int = 0
    least: int = 0
    most: int = 0

    @property
    def needed(self) -> int:
        """Bytes without which it cannot run."""
        return self.fixed + self.least

    def blocks(self, room: int) -> int:
        """Bytes for blocks when `room` bytes may be held in all."""
        return min(max(room - self.fixed, self.least), max(self.most, self.least))

    def held(self, room: int) -> int:
        """Bytes it will hold, of the `room` there is."""
        return self.fixed + self.blocks(room)


NOTHING = Stage()


@dataclass(frozen=True, slots=True)
class GradientMemory:
    """How the arrays of a gradient are held; without one, nothing is.

    Attributes
    ----------
    purpose : "gradient" or "relaxed densities"
    z_on_disk, half_on_disk, scf_on_disk : whether these arrays, and the SCF integrals, are in
        scratch space; those of four centres are made anew instead
    scf_kept, response_held : whether the SCF integrals stay from the SCF on, and those of occupied
        orbitals are held
    pair_bytes, read_bytes : of SCF integrals made and read at a time, as of
        `dfmp2.host.scratch.Room`
    packed_bytes : of packed three-centre integrals per block
    peak : bytes held at most beside the program
    disk : bytes of scratch space beside what the energy leaves there
    needed : bytes beside the program without which it cannot run with this budget
    least, comfortable : the same with the smallest one, and with one that keeps everything in
        memory
    """

    purpose: str = ""
    z_on_disk: bool = False
    half_on_disk: bool = False
    scf_on_disk: bool = False
    scf_kept: bool = False
    response_held: bool = False
    pair_bytes: int = 0
    read_bytes: int = 0
    packed_bytes: int = 0
    peak: int = 0
    disk: int = 0
    needed: int = 0
    least: int = 0
    comfortable: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes per stage.

    Attributes
    ----------
    program : resident now, without what an earlier run of this process has left for this one
    budget : what the run may use
    scf_in_core, mp2_in_core : with everything in memory
    scf_fit, scf_read : making and reading the SCF integrals on disk; a conventional SCF has no
        scf_fit, and makes its integrals anew where scf_read is
    mp2_integrals, mp2_solve, mp2_pairs : making B on disk, fitting it and looking at stability,
        pair energies
    scf_disk, mp2_disk : bytes on disk of the variants on disk
    integral_block : bytes of packed MP2 integrals per block where there is room
    exact_rows : integrals of single orbitals from four centres
    mp2_check : PySCF's DF-MP2 with its integrals on disk
    scf_response : integrals of the occupied orbitals, where the stability of all rotations is
        looked at
    grid_values : of basis functions on the integration grid
    scf_gathered : integrals of the float32 iterations, gathered once where negligible pairs were
        dropped
    certificate : of the fitting certificate, which has an SCF and pair energies of its own; None
        without one
    gradient : of the gradient, or of relaxed densities
    grid_disk : bytes on disk of another B, on orbitals of a finer integration grid, beside the
        first one
    """

    program: int
    budget: int
    scf_in_core: int
    scf_fit: Stage
    scf_read: Stage
    scf_disk: int
    mp2_in_core: int
    mp2_integrals: Stage
    mp2_solve: Stage
    mp2_pairs: Stage
    mp2_disk: int
    integral_block: int
    exact_rows: Stage = NOTHING
    mp2_check: Stage = NOTHING
    scf_response: int = 0
    scf_gathered: int = 0
    grid_values: int = 0
    certificate: MemoryPlan | None = None
    gradient: GradientMemory = GradientMemory()
    grid_disk: int = 0

    @property
    def room(self) -> int:
        """Bytes the run may hold beside the program."""
        return self.budget - self.program - SLACK

    @property
    def scf_fits_in_core(self) -> bool:
        """Whether the SCF integrals stay in memory."""
        return self.scf_in_core <= self.room

    @property
    def response_held(self) -> bool:
        """Whether integrals of the occupied orbitals are held beside those of the SCF."""
        return self.scf_fits_in_core and 0 < self.scf_response <= self.room - self.scf_in_core

    @property
    def scf_gathers(self) -> bool:
        """Whether integrals of the float32 iterations are gathered once: the last to get room."""
        held = self.scf_in_core
        if self.response_held:
            held += self.scf_response
        return self.scf_fits_in_core and 0 < self.scf_gathered <= self.room - held

    @property
    def mp2_fits_in_core(self) -> bool:
        """Whether B stays in memory."""
        return self.mp2_in_core <= self.room

    @property
    def scf(self) -> int:
        """Bytes the SCF will hold."""
        return self._scf_without_grid + self.grid_room

    @property
    def grid_room(self) -> int:
        """Bytes for values of basis functions on the integration grid that are kept."""
        return max(0, min(self.grid_values, self.room - self._scf_without_grid))

    @property
    def _scf_without_grid(self) -> int:
        """Bytes the SCF will hold beside values of basis functions on the integration grid."""
        if self.scf_fits_in_core:
            scf = self.scf_in_core
            if self.response_held:
                scf += self.scf_response
            if self.scf_gathers:
                scf += self.scf_gathered
            return scf
        return max(self.scf_fit.held(self.room), self.scf_read.held(self.room))

    @property
    def mp2(self) -> int:
        """Bytes the MP2 step will hold."""
        check = self.mp2_check.held(self.room)
        if self.mp2_fits_in_core:
            return max(self.mp2_in_core, check)
        return max([check, *(stage.held(self.room) for stage in self._mp2_stages)])

    @property
    def pair_bytes(self) -> int:
        """Of raw SCF integrals per block of pairs on disk."""
        return self.scf_fit.blocks(self.room)

    @property
    def read_bytes(self) -> int:
        """Of SCF integrals read from disk at a time, both buffers."""
        return self.scf_read.blocks(self.room)

    @property
    def integral_bytes(self) -> int:
        """Of packed MP2 integrals per block."""
        if self.mp2_fits_in_core:
            return self.integral_block
        share = self.mp2_integrals.blocks(self.room) / max(1, self.mp2_integrals.most)
        return int(self.integral_block * min(1.0, share))

    @property
    def tensor_bytes(self) -> int:
        """Of B on disk held in memory at a time."""
        return self.mp2_pairs.blocks(self.room)

    @property
    def row_bytes(self) -> int:
        """Of exact integrals of single orbitals, for the orbitals of one pass."""
        return self.exact_rows.blocks(self.room)

    @property
    def check_bytes(self) -> int:
        """Of B that the check holds at a time."""
        return self.mp2_check.blocks(self.room)

    @property
    def disk(self) -> int:
        """Bytes of scratch space: the SCF integrals are gone before B is written, which lasts to
        the end."""
        scf = mp2 = 0
        if not self.scf_fits_in_core:
            scf = self.scf_disk
        if not self.mp2_fits_in_core:
            mp2 = self.mp2_disk + self.grid_disk
        if self.certificate is not None:
            mp2 += self.certificate.disk
        return max(scf, mp2)

    @property
    def scratch(self) -> int:
        """The same of the whole run; B is there still when arrays of a gradient come."""
        return self.disk + self.gradient.disk

    @property
    def predicted_peak(self) -> int:
        """Expected peak resident memory, bytes."""
        own = max(self.scf, self.mp2, self.exact_rows.held(self.room), self.gradient.peak)
        peak = self.program + SLACK + own
        if self.certificate is None:
            return peak
        return max(peak, self.certificate.predicted_peak)

    @property
    def least(self) -> int:
        """Smallest budget that works, in another process as well, bytes."""
        least = self.program + VARIES + SLACK + max(self._needed, self.gradient.least)
        if self.certificate is None:
            return least
        return max(least, self.certificate.least)

    @property
    def comfortable(self) -> int:
        """Smallest budget with which everything stays in memory, bytes."""
        rows = self.exact_rows.fixed + self.exact_rows.most
        scf = self.scf_in_core + self.scf_response + self.scf_gathered + self.grid_values
        comfortable = (
            self.program + SLACK + max(scf, self.mp2_in_core, rows, self.gradient.comfortable)
        )
        if self.certificate is None:
            return comfortable
        return max(comfortable, self.certificate.comfortable)

    @property
    def fits(self) -> bool:
        """Whether the run can stay inside the budget."""
        there = self.certificate is None or self.certificate.fits
        return there and max(self._needed, self.gradient.needed) <= self.room

    def require(self) -> None:
        """Refuse a run that cannot stay inside the budget.

        Raises
        ------
        ResourceError : with the bytes required and available, and what would fit
        """
        if not self.fits:
            if self.gradient.purpose:
                purpose = f" for the {self.gradient.purpose}"
            else:
                purpose = ""
            raise ResourceError(
                (
                    f"not enough memory{purpose}: {format_bytes(self.least)} are required even "
                    f"with all large arrays on disk ({format_bytes(self.program)} of them for the "
                    f"program itself) and {format_bytes(self.budget)} may be used: allow at least "
                ),
                Option("memory", f"{-(-self.least // 10**6)}MB"),
                ", or choose a smaller ",
                Option("basis"),
            )

    @property
    def _needed(self) -> int:
        """Bytes beside the program without which an energy cannot run."""
        scf = min(self.scf_in_core, max(self.scf_fit.needed, self.scf_read.needed))
        mp2 = min(self.mp2_in_core, max(stage.needed for stage in self._mp2_stages))
        return max(scf, mp2, self.mp2_check.needed, self.exact_rows.needed)

    @property
    def _mp2_stages(self) -> tuple[Stage, ...]:
        return self.mp2_integrals, self.mp2_solve, self.mp2_pairs


def memory_plan(
    work: Workload, limits: Limits, threads: int, *, program: int, budget: int, grown: int = 0
) -> MemoryPlan:
    """Bytes every stage will hold.

    Parameters
    ----------
    work : sizes of the calculation
    limits : of the backend, which say what a tile holds
    program, budget : resident and allowed bytes
    grown : of the resident bytes, what came since the plan before in this process; modules and
        buffers serve again
    """
    workers = max(limits.workers, threads)
    program -= min(grown, SLACK + min(workers * FIT_WORKER_BYTES, _blas_buffers(work, workers)))
    in_core, fit, read, disk = _scf(work, workers)
    block = work.block_functions * work.pairs_of_functions * FLOAT64
    if work.examined:
        response = work.operators * _of_occupied(work)
    else:
        response = 0
    return MemoryPlan(
        program,
        budget,
        in_core,
        fit,
        read,
        disk,
        *_mp2(work, workers, limits),
        block,
        scf_response=response,
        scf_gathered=work.operators * work.naux_scf * work.rectangles * FLOAT32,
        grid_values=values_bytes(work.grid, work.nao, derivatives=True, single=False),
    )


def _scf(work: Workload, workers: int) -> tuple[int, Stage, Stage, int]:
    """As of `MemoryPlan`: with everything in memory, making and reading integrals on disk, bytes
    there."""
    pairs, n, naux = work.pairs_of_functions, work.nao, work.naux_scf
    x2c = X2C_MATRICES * work.x2c_functions**2 * FLOAT64  # freed before the SCF integrals are made
    matrices = (
        SCF_MATRICES * n * n * FLOAT64 * len(work.spins) + 2 * (pairs + n * n) * FLOAT64 * workers
    )
    surface, in_solvent = surface_bytes(work.surface, n)
    x2c = max(x2c, surface)  # so are the matrices of which the response of a solvent is made
    matrices += in_solvent
    points = work.grid + work.finer_grid  # both are there while the error of the first is measured
    if points:
        block = min(points, BLOCK_POINTS) * n * XC_VALUES + XC_MATRICES * n * n * len(work.spins)
        matrices += workers * block * FLOAT64 + points * POINT_BYTES
    if work.examined:
        matrices += work.grid * (work.kernel * FLOAT64 + POINT_BYTES)
    if not naux:
        everything = work.operators * pairs * (pairs + 1) // 2 * FLOAT64
        again = RECOMPUTED_MATRICES * n * n * FLOAT64 * len(work.spins) * workers
        return max(matrices + everything, x2c), NOTHING, Stage(max(matrices + again, x2c)), 0
    columns = work.kept_pairs
    whole = naux * columns * FLOAT64  # of one operator; on disk only one is read at a time
    metric = naux * naux * FLOAT64
    buffers = min(WORKER_BYTES * workers, 2 * naux * pairs * FLOAT64)
    start = START_MATRICES * n * n * FLOAT64 * len(work.spins)
    widest = work.widest_shell * n * naux * FLOAT64
    least = max(
        widest, metric
    )  # a nearly singular metric is diagonalised before there are integrals
    fit = Stage(
        max(start + metric + FIT_WORKER_BYTES * workers, x2c),
        least,
        min(PAIR_BLOCK_MOST, 2 * whole),
    )
    occupied = sum(spin.occupied for spin in work.spins)
    streaming = min(STREAMING_WORKER_BYTES * workers, 2 * whole) + min(
        HALF_BYTES * workers, naux * occupied * n * FLOAT64
    )
    least = 2 * workers * max(CACHE_BYTES, columns * FLOAT64)  # dfmp2.scf.jk
    read = Stage(matrices + streaming, min(least, 2 * whole), min(READ_MOST, 2 * whole))
    in_core = matrices + work.operators * whole + 2 * metric + buffers
    return max(in_core, x2c), fit, read, work.operators * whole


def _of_occupied(work: Workload) -> int:
    """Bytes of the integrals of occupied orbitals that `dfmp2.scf.response_matrices` holds."""
    if work.single_exchange:
        number = FLOAT32
    else:
        number = FLOAT64
    return number * work.naux_scf * work.nao * sum(spin.occupied for spin in work.spins)


def _mp2(work: Workload, workers: int, limits: Limits) -> tuple[int, Stage, Stage, Stage, int]:
    """As of `MemoryPlan`: with everything in memory, integrals, fit and pairs on disk, bytes
    there."""
    pairs, naux = work.pairs_of_functions, work.naux
    whole = work.elements * naux * FLOAT64
    if work.precision == "fp64":
        single = 0
    else:
        single = work.elements * naux * FLOAT32
    metric = naux * naux * FLOAT64
    frontier = work.frontier_elements * naux * FLOAT64
    rotations = [occupied * virtual for occupied, virtual in work.frontier]
    hessian = (sum(rotations) ** 2 + 3 * max(rotations, default=0) ** 2) * FLOAT64
    nvir = max((s.nvir for s in work.spins), default=0)
    row = nvir * naux * FLOAT64
    edge = max(tiling.edge(spin.nocc, limits, nvir * naux) for spin in work.spins)
    if limits.memory is None:
        tiles = min(workers * _tile_elements(limits, edge, nvir * nvir) * FLOAT64, 2 * whole)
    else:  # they are in the device's memory; the host has the buffers through which B goes there
        tiles = min(2 * STAGE_BYTES, 2 * whole)
    per_function = (
        pairs + 2 * work.elements + work.frontier_elements
    ) * FLOAT64  # on disk once more, to be written
    # Of all workers: half-transformed integrals, what BLAS keeps, triangles and virtuals.
    half = work.block_functions * work.half_transformed * work.nao * FLOAT64
    solved = workers * min(max(SOLVE_BYTES, row), whole)
    left = _blas_buffers(work, workers)
    fixed = (
        metric
        + frontier
        + workers * work.nao * sum(work.nao + spin.nvir for spin in work.spins) * FLOAT64
    )
    if half > workers * HALF_BYTES:
        half = workers * HALF_BYTES
        fixed += half + left
    else:  # smaller blocks make them smaller
        per_function += 2 * work.half_transformed * work.nao * FLOAT64
    block = work.block_functions * per_function
    in_core = whole + max(
        metric + fixed + block, left + frontier + hessian, left + single + metric + tiles
    )
    integrals = Stage(fixed, min(block, LEAST_FUNCTIONS * per_function), block)
    pieces = workers * min(PIECE_BYTES, whole)
    solve = Stage(left + max(frontier + max(metric + solved + pieces, hessian), 2 * metric))
    rows = sum(s.nocc for s in work.spins)
    if work.precision == "fp64":
        rounding = 0
    else:
        rounding = row // 2
    streamed = Stage(left + tiles + row + rounding, 3 * edge * row, (rows + 2 * edge) * row)
    return in_core, integrals, solve, streamed, whole


def exact_rows_stage(work: Workload, workers: int, count: int) -> Stage:
    """Bytes for exact integrals of `count` occupied orbitals of one spin, as many at once as there
    is room for."""
    n, pairs, nvir = work.nao, work.pairs_of_functions, max(spin.nvir for spin in work.spins)
    occupied = sum(spin.nocc for spin in work.spins)
    one = FLOAT64 * n * nvir * (occupied + 2 * work.widest_shell)
    shell = FLOAT64 * pairs * work.widest_shell  # integrals of a shell and one function
    block = min(max(EXACT_BLOCK, shell * work.widest_shell), shell * n)
    work_space = workers * min(HALF_BYTES + EXACT_WORK, count * one)
    matrices = 3 * nvir * nvir * occupied + n * n * (8 + workers * work.widest_shell**2)
    fixed = block + work_space + FLOAT64 * matrices
    return Stage(fixed, one, count * one)


def _blas_buffers(work: Workload, workers: int) -> int:
    """Bytes that BLAS keeps: its own copies of half-transformed integrals, and of what is
    solved."""
    half = work.block_functions * work.half_transformed * work.nao * FLOAT64
    solved = min(
        workers * SOLVE_BYTES, (work.elements + work.frontier_elements) * work.naux * FLOAT64
    )
    return min(workers * LEFT_BEHIND, half + solved * BLAS_DEPTH // max(work.naux, BLAS_DEPTH))


def check_stage(work: Workload, workers: int) -> Stage:
    """PySCF's native DF-MP2 on the orbitals of the run: B by rows, of which it reads some at a
    time."""
    row = max((s.nvir for s in work.spins), default=0) * work.naux * FLOAT64
    rows = max((s.nocc for s in work.spins), default=0)
    whole = work.elements * work.naux * FLOAT64
    shell = 2 * CHECK_SHELL * work.nao**2 * FLOAT64
    fixed = (
        CHECK_MODULES
        + min(workers * LEFT_BEHIND, 2 * whole)
        + 3 * work.naux**2 * FLOAT64
        + 4 * row
        + shell
    )
    return Stage(fixed, row, rows * row)


def _tile_elements(limits: Limits, edge: int, pair: int) -> int:
    """Numbers a tile holds: products of `pair` elements each, and work space of at most twice as
    many."""
    held = min(max(limits.tile_elements, pair), max(1, edge) ** (2 if limits.square else 1) * pair)
    if limits.work_elements is None:
        wanted = 2 * limits.tile_elements
    else:
        wanted = limits.work_elements
    return held + min(max(wanted, 2 * pair), 2 * held)


def group_bytes(naux: int) -> int:
    """Of B that is taken at a time by what makes matrices (naux, naux) of it, one orbital at least.

    With as many rows as a matrix has, little time goes into reading and writing that.
    """
    return max(GROUP_BYTES, naux**2 * FLOAT64)


def without_pairs(found: MemoryPlan, work: Workload) -> MemoryPlan:
    """The plan of a method that needs matrices over fitting functions (`dfmp2.mp2.response`) in
    place of tiles."""
    matrices = len(work.spins) * work.naux**2 * FLOAT64
    row = max((s.nvir for s in work.spins), default=0) * work.naux * FLOAT64
    whole = work.elements * work.naux * FLOAT64
    group = min(max(row, group_bytes(work.naux)), whole)
    scaled = 2 * group  # the one before as well
    in_core = max(found.mp2_in_core, whole + matrices + scaled)
    streamed = Stage(found.mp2_pairs.fixed + scaled + 3 * group, matrices, MOST_MATRICES * matrices)
    return replace(found, mp2_in_core=in_core, mp2_pairs=streamed)


def device_host_bytes(work: Workload) -> int:
    """Bytes the host holds where a device makes B of fitted integrals over basis functions: these,
    and beside them the metric, a piece that goes up, or B of the certificate's sample."""
    tiles, groups = -(-work.nao // DEVICE_TILE), -(-work.naux // DEVICE_TILE)
    integrals = work.naux * work.pairs_of_functions * FLOAT64
    metric = 2 * work.naux**2 * FLOAT64 + work.block_functions * work.pairs_of_functions * FLOAT64
    packed = DEVICE_TILE * (tiles * DEVICE_TILE) ** 2 * FLOAT32  # of a slice of fitting functions
    piece = DEVICE_TILE * work.nao**2 * FLOAT64 + max(packed, min(groups * packed, DEVICE_PIECE))
    b = work.elements * work.naux * FLOAT64
    frontier = 2 * work.frontier_elements * work.naux * FLOAT64
    return integrals + max(metric + 2 * SOLVE_BYTES, piece + b // 2, 2 * b, frontier)


@dataclass(frozen=True, slots=True)
class _GradientArrays:
    """Bytes of the arrays of a gradient, by the stages of the table at the top of this module.

    Attributes
    ----------
    b : int
        B, and Z, which has its size.
    half : int
        Half-transformed integrals of the SCF set; 0 for relaxed densities.
    fixed : int
        Modules, what earlier stages leave behind, and matrices over basis functions.
    metric, jk_metric : int
        Matrices over the functions of the MP2 set and of the SCF set.
    mean_field_work : int
        Work space of all workers in the mean-field stage.
    two_center : int
        Everything while the metric's derivative is contracted.
    vectors : int
        Everything but J, K and their integrals in the Z-vector equations.
    of_occupied : int
        Integrals of the occupied orbitals there; 0 for a conventional SCF.
    functional : int
        Everything while the functional is differentiated; 0 without one.
    packed : int
        Packed three-centre integrals of one fitting function.
    per_function : int
        All arrays of a block, for each of its fitting functions.
    functions, least_functions : int
        Fitting functions of the largest block, and of the smallest one.
    """

    b: int
    half: int
    fixed: int
    metric: int
    jk_metric: int
    mean_field_work: int
    two_center: int
    vectors: int
    of_occupied: int
    functional: int
    packed: int
    per_function: int
    functions: int
    least_functions: int

    @property
    def least_block(self) -> int:
        """Bytes of the smallest block of integrals."""
        return self.least_functions * self.per_function

    def block(self, functions: int) -> int:
        """Fitting functions in a block when `functions` are wanted."""
        return min(self.functions, max(self.least_functions, functions))

    def fitted_integrals(self, z: int, block: int) -> int:
        """Bytes of the stage of the fitted integrals, with `z` bytes of Z and a block of
        integrals."""
        return self.fixed + self.metric + z + block

    def mean_field(self, half: int, block: int) -> int:
        """Bytes of the mean-field stage, with `half` bytes of half-transformed integrals."""
        return self.fixed + self.jk_metric + half + max(block, self.mean_field_work)


def _gradient_arrays(work: Workload, widest: int, threads: int) -> _GradientArrays:
    """Sizes of the arrays of a gradient, or of relaxed densities; parameters as of
    `gradient_memory`."""
    nao, naux, naux_scf = work.nao, work.naux, work.naux_scf
    occupied = sum(spin.occupied for spin in work.spins)
    rotations = sum(spin.occupied * (nao - spin.occupied) for spin in work.spins)
    functions = max(naux, naux_scf)
    left, fixed = _gradient_always(work, threads)
    half = mean_field_work = two_center = of_occupied = of_functional = 0
    if work.task == "gradient":
        half = occupied * nao * naux_scf * FLOAT64
        mean_field_work = threads * (naux_scf**2 + 3 * nao * naux_scf) * FLOAT64
        two_center = fixed + TWO_CENTER * functions**2 * FLOAT64
        if work.grid:
            of_functional = fixed + work.grid * POINT_BYTES + threads * XC_GRADIENT_BYTES
    if naux and naux_scf:
        of_occupied = work.operators * _of_occupied(work) + threads * RESPONSE_WORK
    vectors, kernel = VECTORS, 0
    if work.grid:  # functions at points are counted with the SCF
        kernel = work.grid * (work.kernel * FLOAT64 + POINT_BYTES)
        kernel += kernel // 2  # on a coarser grid too
        vectors += MORE_VECTORS
    return _GradientArrays(
        b=work.elements * naux * FLOAT64,
        half=half,
        fixed=fixed,
        metric=METRICS * naux**2 * FLOAT64,
        jk_metric=METRICS * naux_scf**2 * FLOAT64,
        mean_field_work=mean_field_work,
        two_center=two_center,
        vectors=left + vectors * rotations * FLOAT64 + kernel,
        of_occupied=of_occupied,
        functional=of_functional,
        packed=nao * (nao + 1) // 2 * FLOAT64,
        per_function=FLOAT64 * (PASS_MATRICES * nao * nao + PASS_HALVES * nao * occupied),
        functions=functions,
        least_functions=min(widest, functions),
    )


def gradient_memory(
    work: Workload, energy: MemoryPlan, widest: int, threads: int
) -> GradientMemory:
    """Where each array of a gradient, or of relaxed densities, is held: in memory where it fits.

    Parameters
    ----------
    work : Workload
        Sizes of the calculation.
    energy : MemoryPlan
        The plan of the energy, whose budget the gradient keeps to.
    widest : int
        Functions in the widest shell of the fitting sets.
    threads : int
        Workers.
    """
    arrays = _gradient_arrays(work, widest, threads)
    room, least_block = energy.room, arrays.least_block
    purpose = "relaxed densities"
    if work.task == "gradient":
        purpose = "gradient"

    # Amplitudes, with B in memory or streamed from disk.
    b_streamed = threads * min(STREAM_BYTES, arrays.b)
    amplitudes_streamed = _amplitudes(work, threads, b_streamed)
    amplitudes_in_memory = _amplitudes(work, threads, arrays.b)
    amplitudes = amplitudes_streamed
    if energy.mp2_fits_in_core:
        amplitudes = amplitudes_in_memory

    # The Z-vector equations, with the integrals of the SCF in memory or on disk.
    fit, read = energy.scf_fit, energy.scf_read
    response_in_memory = arrays.vectors + energy.scf_in_core
    response_on_disk = arrays.vectors + max(fit.needed, read.needed)
    if not work.naux:  # Kohn-Sham alone has no response
        response_in_memory = response_on_disk = 0
    disk_is_smaller = response_on_disk < response_in_memory
    scf_on_disk = disk_is_smaller and response_in_memory > room
    response_held = False
    pair_bytes = read_bytes = 0
    if scf_on_disk:
        pair_bytes = fit.blocks(room - arrays.vectors)
        read_bytes = read.blocks(room - arrays.vectors)
        response = arrays.vectors + max(fit.fixed + pair_bytes, read.fixed + read_bytes)
    else:
        response = response_in_memory
        response_held = bool(arrays.of_occupied) and response + arrays.of_occupied <= room
        if response_held:
            response += arrays.of_occupied

    # Z, and the half-transformed integrals of the mean field.
    z_in_memory = max(amplitudes + arrays.b, arrays.fitted_integrals(arrays.b, least_block)) <= room
    half_in_memory = arrays.mean_field(arrays.half, least_block) <= room
    z = z_on_disk = 0
    if z_in_memory:
        z = arrays.b
    else:
        z_on_disk = arrays.b
    half = half_on_disk = 0
    if half_in_memory:
        half = arrays.half
    else:
        half_on_disk = arrays.half

    # Blocks of integrals take what is left.
    rest = room - max(arrays.fitted_integrals(z, 0), arrays.fixed + arrays.jk_metric + half)
    at_once = arrays.block(min(PACKED_MOST // arrays.packed, rest // arrays.per_function))
    block = at_once * arrays.per_function

    # The SCF integrals stay until the Z-vector equations where there is room beside everything
    # before.
    kept = work.operators * work.naux_scf * work.kept_pairs * FLOAT64
    peak_before_response = max(energy.mp2, amplitudes + z, arrays.fitted_integrals(z, block))
    scf_kept = (
        work.naux_scf > 0
        and work.naux > 0
        and energy.scf_fits_in_core
        and energy.certificate is None
        and peak_before_response + kept <= room
    )
    if scf_kept:
        peak_before_response += kept

    response_least = min(response_in_memory, response_on_disk)
    comfortable_block = arrays.block(PACKED_MOST // arrays.packed) * arrays.per_function
    scf_disk = 0
    if scf_on_disk:
        scf_disk = energy.scf_disk
    return GradientMemory(
        purpose=purpose,
        z_on_disk=not z_in_memory,
        half_on_disk=not half_in_memory,
        scf_on_disk=scf_on_disk,
        scf_kept=scf_kept,
        response_held=response_held,
        pair_bytes=pair_bytes,
        read_bytes=read_bytes,
        packed_bytes=at_once * arrays.packed,
        peak=max(
            peak_before_response,
            arrays.mean_field(half, block),
            response,
            arrays.two_center,
            arrays.functional,
        ),
        disk=max(z_on_disk, half_on_disk, scf_disk),
        needed=max(
            amplitudes + z,
            arrays.fitted_integrals(z, least_block),
            arrays.mean_field(half, least_block),
            response,
            arrays.two_center,
            arrays.functional,
        ),
        least=max(
            amplitudes_streamed,
            arrays.fitted_integrals(0, least_block),
            arrays.mean_field(0, least_block),
            response_least,
            arrays.two_center,
            arrays.functional,
        ),
        comfortable=max(
            energy.mp2_in_core + kept,
            amplitudes_in_memory + arrays.b + kept,
            arrays.fitted_integrals(arrays.b, comfortable_block) + kept,
            arrays.mean_field(arrays.half, comfortable_block),
            response_in_memory + arrays.of_occupied,
            arrays.two_center,
            arrays.functional,
        ),
    )


def gradient_with_b(work: Workload, threads: int) -> int:
    """Bytes beside the program while amplitudes are made of a B in memory, everything else on
    disk."""
    return _amplitudes(work, threads, work.elements * work.naux * FLOAT64)


def _gradient_always(work: Workload, threads: int) -> tuple[int, int]:
    """Bytes of modules and what earlier stages have left, and these with matrices over basis
    functions."""
    whole = work.elements * work.naux * FLOAT64
    half = sum(spin.occupied for spin in work.spins) * work.nao * work.naux_scf * FLOAT64
    left = MODULES + max(HEAP_LEAST, min(HEAP_MOST, whole + half))
    return left, left + MATRICES * work.nao**2 * FLOAT64 * len(work.spins) + min(
        LEFT_BEHIND * threads, whole
    )


def _amplitudes(work: Workload, threads: int, b: int) -> int:
    """Bytes while amplitudes are made, without Z, `b` bytes of B being held."""
    naux, nvir = work.naux, max(spin.nvir for spin in work.spins)
    columns = max((spin.nocc * spin.nvir for spin in work.spins), default=0)
    if work.precision == "fp64":
        number = FLOAT64
    else:
        number = FLOAT32
    tiles = TILE_ARRAYS * number * max(columns, min(columns * nvir, TILE_ELEMENTS))
    cached = max(AMPLITUDE_BYTES // FLOAT64, nvir * nvir) * number
    tiles += min(CACHE_ARRAYS * cached, 2 * tiles)
    workers = threads * (tiles + (3 * nvir * naux + naux * naux) * FLOAT64)
    single = 0 if work.precision == "fp64" else b // 2  # the same in float32
    return (
        _gradient_always(work, threads)[1] + METRICS * naux * naux * FLOAT64 + b + single + workers
    )
