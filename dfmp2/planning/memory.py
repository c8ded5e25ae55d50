"""The memory model: a prediction, before a run starts, of the memory and disk space it will use,
stage by stage.

It counts arrays that grow with the molecule; program and libraries are already resident. Each stage
has a variant in memory, which is used if it fits, and one on disk. The latter keeps in memory only
what it must, and as many blocks of the streamed array as the budget allows.

The additional memory of a gradient is planned in `dfmp2.planning.gradient`, that of a device, and
of a host whose device makes B, in `dfmp2.planning.devices`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dfmp2.backends import tiling
from dfmp2.backends.base import Limits
from dfmp2.backends.transfers import STAGE_BYTES
from dfmp2.errors import Option, ResourceError
from dfmp2.integrals.basis_on_grid import BLOCK_POINTS, values_bytes
from dfmp2.planning.sizes import FLOAT32, FLOAT64, Workload
from dfmp2.scf.solvent import surface_bytes
from dfmp2.units import format_bytes, told_apart

# (nao, nao) float64 arrays alive in the SCF: DIIS space of 8 pairs, Fock, density, work
SCF_MATRICES = 30
START_MATRICES = 10  # of these at the first iteration, when the integrals are made
# float64 arrays over the decontracted basis while X2C is computed: 31 to 36 measured (Ar chain,
# cc-pVTZ)
X2C_MATRICES = 32
# For Kohn-Sham (dfmp2.scf.exchange_correlation): float64 arrays of basis functions at the points of
# a worker's block: values and derivatives, the significant ones among them, their factors
XC_VALUES = 12
XC_MATRICES = 4  # (nao, nao) of each spin of a worker: potential, its transpose, products
POINT_BYTES = 96  # coordinates and weight of a point, in both orders, and of the order itself
# buffers of one worker in the SCF fit, the exchange and the triangular solves
WORKER_BYTES = 32 * 10**6
# of BLAS and small arrays in the exchange if blocks are small
STREAMING_WORKER_BYTES = 8 * 10**6
FIT_WORKER_BYTES = 8 * 10**6  # of BLAS while the SCF integrals are fitted on their way to disk
# of half-transformed integrals per worker (dfmp2.integrals.three_center, dfmp2.scf.jk)
HALF_BYTES = 12 * 10**6
# of BLAS per worker, at most: it keeps its copies of operands
LEFT_BEHIND = 16 * 10**6
BLAS_DEPTH = 256  # rows of an operand copied at a time
# modules, library pages and Python objects that accumulate during the run, including the result
# file
SLACK = 8 * 10**6
VARIES = 5 * 10**6  # between processes; a run loads 1 to 4 MB more than its plan
RECOMPUTED_MATRICES = 4  # (nao, nao) per thread of a conventional SCF that recomputes its integrals
PAIR_BLOCK_MOST = 64 * 10**6  # of SCF integrals made at a time; more gains nothing
CACHE_BYTES = 4 * 10**6  # of SCF integrals per worker, at least
READ_MOST = 256 * 10**6  # of SCF integrals read at a time
SOLVE_BYTES = 16 * 10**6  # of B that a worker solves at a time (dfmp2.integrals.metric)
PIECE_BYTES = 10**6  # of raw integrals that a worker reads from disk at a time
CHECK_MODULES = 8 * 10**6  # of HDF5, and of PySCF loaded only by the check
CHECK_SHELL = 11  # functions of the largest fitting shell: h
EXACT_BLOCK = 32 * 10**6  # of four-centre integrals (dfmp2.integrals.four_center)
EXACT_WORK = 16 * 10**6  # of a worker that sums them up
# PySCF's modules for exact J, K and integrals, and their remains (18 to 26 measured)
CERTIFICATE_LEFT = 24 * 10**6
MOST_MATRICES = 16  # over fitting functions, served by one pass over B on disk
GROUP_BYTES = 16 * 10**6  # of B taken at a time to compute them
LEAST_FUNCTIONS = 16  # fitting functions in the smallest block of MP2 integrals: one shell


@dataclass(frozen=True, slots=True)
class Stage:
    """Bytes of one step of a variant on disk: `fixed`, and `least` to `most` for streamed
    blocks."""

    fixed: int = 0
    least: int = 0
    most: int = 0

    @property
    def needed(self) -> int:
        """The smallest number of bytes with which it can run."""
        return self.fixed + self.least

    def blocks(self, room: int) -> int:
        """Bytes for blocks if `room` bytes may be used in total."""
        return min(max(room - self.fixed, self.least), max(self.most, self.least))

    def held(self, room: int) -> int:
        """Bytes that it will hold, out of `room`."""
        return self.fixed + self.blocks(room)


NOTHING = Stage()


@dataclass(frozen=True, slots=True)
class GradientMemory:
    """How the arrays of a gradient are held; by default, without a gradient, none are.

    Attributes
    ----------
    purpose : "gradient" or "relaxed densities"
    z_on_disk, half_on_disk, scf_on_disk : whether these arrays and the SCF integrals are in scratch
        space; four-centre integrals are recomputed instead
    scf_kept, response_held : whether the SCF integrals are kept from the SCF on, and those of
        occupied orbitals are held
    pair_bytes, read_bytes : of SCF integrals made and read at a time, as in
        `dfmp2.host.scratch.Room`
    packed_bytes : of packed three-centre integrals per block
    kernel_values : of basis functions on the coarser grid of a functional's kernel
    peak : most bytes held in addition to the program
    disk : bytes of scratch space in addition to those left by the energy
    needed : bytes in addition to the program required to run with this budget
    least, comfortable : the same with the smallest budget, and with one that keeps everything in
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
    kernel_values: int = 0
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
    program : resident now, without anything reusable left by an earlier run of this process
    budget : limit for the run
    scf_in_core, mp2_in_core : with everything in memory
    scf_fit, scf_read : making and reading the SCF integrals on disk; a conventional SCF has no
        scf_fit, and scf_read is its recomputation of integrals
    mp2_integrals, mp2_solve, mp2_pairs : making B on disk, fitting it and checking stability, pair
        energies
    scf_disk, mp2_disk : disk space of the variants on disk
    integral_block : bytes of packed MP2 integrals per block if there is room
    exact_rows : integrals of single orbitals from four centres
    mp2_check : PySCF's DF-MP2 with its integrals on disk
    scf_response : integrals of the occupied orbitals, if the stability to all rotations is checked
    grid_values : of basis functions on the integration grid
    scf_gathered : integrals of the float32 iterations, gathered once
    certificate : for the fitting certificate, which has its own SCF and pair energies; None without
        one
    gradient : for the gradient, or relaxed densities
    grid_disk : disk space of a second B, for orbitals of a finer integration grid one
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
        """Bytes that the run may hold in addition to the program."""
        return self.budget - self.program - SLACK

    @property
    def scf_fits_in_core(self) -> bool:
        """Whether the SCF integrals stay in memory."""
        return self.scf_in_core <= self.room

    @property
    def response_held(self) -> bool:
        """Whether integrals of the occupied orbitals are held in addition to those of the SCF."""
        return self.scf_fits_in_core and 0 < self.scf_response <= self.room - self.scf_in_core

    @property
    def scf_gathers(self) -> bool:
        """Whether integrals of the float32 iterations are gathered once, for which room is
        considered last."""
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
        """Bytes that the SCF will hold."""
        return self._scf_without_grid + self.grid_room

    @property
    def grid_room(self) -> int:
        """Bytes for stored values of basis functions on the integration grid."""
        return max(0, min(self.grid_values, self.room - self._scf_without_grid))

    @property
    def _scf_without_grid(self) -> int:
        """Bytes that the SCF will hold, excluding values of basis functions on the integration
        grid."""
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
        """Bytes that the MP2 step will hold."""
        check = self.mp2_check.held(self.room)
        if self.mp2_fits_in_core:
            return max(self.mp2_in_core, check)
        return max([check, *(stage.held(self.room) for stage in self._mp2_stages)])

    @property
    def pair_bytes(self) -> int:
        """Bytes of raw SCF integrals per block of pairs on disk."""
        return self.scf_fit.blocks(self.room)

    @property
    def read_bytes(self) -> int:
        """Bytes of SCF integrals read from disk at a time, for both buffers."""
        return self.scf_read.blocks(self.room)

    @property
    def integral_bytes(self) -> int:
        """Bytes of packed MP2 integrals per block."""
        if self.mp2_fits_in_core:
            return self.integral_block
        share = self.mp2_integrals.blocks(self.room) / max(1, self.mp2_integrals.most)
        return int(self.integral_block * min(1.0, share))

    @property
    def tensor_bytes(self) -> int:
        """Bytes of B on disk held in memory at a time."""
        return self.mp2_pairs.blocks(self.room)

    @property
    def row_bytes(self) -> int:
        """Bytes of exact integrals of single orbitals, for the orbitals of one pass."""
        return self.exact_rows.blocks(self.room)

    @property
    def check_bytes(self) -> int:
        """Bytes of B that the check holds at a time."""
        return self.mp2_check.blocks(self.room)

    @property
    def disk(self) -> int:
        """Bytes of scratch space; the SCF integrals are removed before B is written, which stays to
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
        """Bytes of scratch space of the whole run; B is still there when arrays of a gradient are
        added."""
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
        """Smallest budget that works, even in another process, bytes."""
        least = self.program + VARIES + SLACK + max(self._needed, self.gradient.least)
        if self.certificate is None:
            return least
        return max(least, self.certificate.least)

    @property
    def comfortable(self) -> int:
        """Smallest budget with which everything stays in memory, even in another process, bytes."""
        rows = self.exact_rows.fixed + self.exact_rows.most
        check = self.mp2_check.fixed + self.mp2_check.most
        scf = self.scf_in_core + self.scf_response + self.scf_gathered + self.grid_values
        held = max(scf, self.mp2_in_core, rows, check, self.gradient.comfortable)
        comfortable = self.program + VARIES + SLACK + held
        if self.certificate is None:
            return comfortable
        return max(comfortable, self.certificate.comfortable)

    @property
    def fits(self) -> bool:
        """Whether the run can stay within the budget."""
        there = self.certificate is None or self.certificate.fits
        return there and max(self._needed, self.gradient.needed) <= self.room

    def require(self) -> None:
        """Raise if the run cannot stay within the budget.

        Raises
        ------
        ResourceError : with the bytes required and available, and what would fit
        """
        if not self.fits:
            purpose = ""
            if self.gradient.purpose:
                purpose = f" for the {self.gradient.purpose}"
            needed, allowed = told_apart("bytes", self.least, self.budget)
            raise ResourceError(
                (
                    f"not enough memory{purpose}: {needed} are required even "
                    f"with all large arrays on disk ({format_bytes(self.program)} of them for the "
                    f"program itself) and {allowed} may be used: allow at least "
                ),
                Option("memory", f"{-(-self.least // 10**6)}MB"),
                ", or choose a smaller ",
                Option("basis"),
            )

    @property
    def _needed(self) -> int:
        """Bytes that an energy requires in addition to the program."""
        scf = min(self.scf_in_core, max(self.scf_fit.needed, self.scf_read.needed))
        mp2 = min(self.mp2_in_core, max(stage.needed for stage in self._mp2_stages))
        return max(scf, mp2, self.mp2_check.needed, self.exact_rows.needed)

    @property
    def _mp2_stages(self) -> tuple[Stage, ...]:
        return self.mp2_integrals, self.mp2_solve, self.mp2_pairs


def memory_plan(
    work: Workload, limits: Limits, threads: int, *, program: int, budget: int, grown: int = 0
) -> MemoryPlan:
    """The plan of the bytes that every stage will hold.

    Parameters
    ----------
    work : sizes of the calculation
    limits : limits of the backend, which determine the size of a tile
    program, budget : resident and allowed bytes
    grown : part of the resident bytes added since the previous plan in this process; modules and
        buffers are reused
    """
    workers = max(limits.workers, threads)
    reused = SLACK + min(workers * FIT_WORKER_BYTES, _blas_buffers(work, workers))
    return MemoryPlan(
        program=program - min(grown, reused),
        budget=budget,
        **_scf(work, workers),
        **_mp2(work, workers, limits),
        integral_block=work.block_functions * work.pairs_of_functions * FLOAT64,
        scf_response=work.operators * of_occupied_bytes(work) if work.examined else 0,
        scf_gathered=work.operators * work.naux_scf * work.rectangles * FLOAT32,
        grid_values=_grid_values(work),
    )


def _grid_values(work: Workload) -> int:
    """Bytes of all values of basis functions on the integration grid that are worth storing; in
    float32 on the coarse initial grid of an SCF."""
    if work.coarse_grid:
        return values_bytes(work.coarse_grid, work.nao, derivatives=True, single=True)
    return values_bytes(work.grid, work.nao, derivatives=True, single=False)


def _scf(work: Workload, workers: int) -> dict[str, Any]:
    """Fields of `MemoryPlan` for the SCF."""
    pairs, n, naux = work.pairs_of_functions, work.nao, work.naux_scf
    of_surface, in_solvent = surface_bytes(work.surface, n)
    # Freed before the SCF integrals are made: X2C, and matrices for the response of a solvent.
    before = max(X2C_MATRICES * work.x2c_functions**2 * FLOAT64, of_surface)
    matrices = _scf_matrices(work, workers) + in_solvent
    if not naux:
        everything = work.operators * pairs * (pairs + 1) // 2 * FLOAT64
        again = RECOMPUTED_MATRICES * n * n * FLOAT64 * len(work.spins) * workers
        return {
            "scf_in_core": max(matrices + everything, before),
            "scf_fit": NOTHING,
            "scf_read": Stage(max(matrices + again, before)),
            "scf_disk": 0,
        }
    columns = work.kept_pairs
    whole = naux * columns * FLOAT64  # for one operator; on disk only one is read at a time
    metric = naux * naux * FLOAT64
    buffers = min(WORKER_BYTES * workers, 2 * naux * pairs * FLOAT64)
    start = START_MATRICES * n * n * FLOAT64 * len(work.spins)
    widest = work.widest_shell * n * naux * FLOAT64
    occupied = sum(spin.occupied for spin in work.spins)
    streaming = min(STREAMING_WORKER_BYTES * workers, 2 * whole)
    streaming += min(HALF_BYTES * workers, naux * occupied * n * FLOAT64)
    cached = 2 * workers * max(CACHE_BYTES, columns * FLOAT64)  # dfmp2.scf.jk
    in_core = matrices + work.operators * whole + 2 * metric + buffers
    return {
        "scf_in_core": max(in_core, before),
        "scf_fit": Stage(
            fixed=max(start + metric + FIT_WORKER_BYTES * workers, before),
            # A nearly singular metric is diagonalised before the integrals are made.
            least=max(widest, metric),
            most=min(PAIR_BLOCK_MOST, 2 * whole),
        ),
        "scf_read": Stage(
            fixed=matrices + streaming,
            least=min(cached, 2 * whole),
            most=min(READ_MOST, 2 * whole),
        ),
        "scf_disk": work.operators * whole,
    }


def _scf_matrices(work: Workload, workers: int) -> int:
    """Bytes of matrices over basis functions during the SCF, and of a functional's points."""
    n, nspin = work.nao, len(work.spins)
    matrices = SCF_MATRICES * n * n * nspin + 2 * (work.pairs_of_functions + n * n) * workers
    total = matrices * FLOAT64
    points = work.grid + work.finer_grid  # both exist while the error of the first is measured
    if points:
        block = min(points, BLOCK_POINTS) * n * XC_VALUES + XC_MATRICES * n * n * nspin
        total += workers * block * FLOAT64 + points * POINT_BYTES
    if work.examined:
        total += work.grid * (work.kernel * FLOAT64 + POINT_BYTES)
    return total


def of_occupied_bytes(work: Workload) -> int:
    """Bytes of the integrals of occupied orbitals that `dfmp2.scf.response_matrices` holds."""
    number = FLOAT32 if work.single_exchange else FLOAT64
    return number * work.naux_scf * work.nao * sum(spin.occupied for spin in work.spins)


def _mp2(work: Workload, workers: int, limits: Limits) -> dict[str, Any]:
    """Fields of `MemoryPlan` for MP2."""
    whole, row, metric = work.b_bytes, work.row_bytes, work.metric_bytes
    frontier, hessian = work.frontier_bytes, work.hessian_bytes
    single = single_row = 0
    if work.precision != "fp64":
        single, single_row = whole // 2, row // 2
    left = _blas_buffers(work, workers)
    edge = max(tiling.edge(s.nocc, limits, work.row_bytes // FLOAT64) for s in work.spins)
    tiles = 2 * STAGE_BYTES  # in the device's memory; the host has the buffers for sending B
    if limits.memory is None:
        nvir = max((s.nvir for s in work.spins), default=0)
        tiles = workers * _tile_elements(limits, edge, nvir * nvir) * FLOAT64
    tiles = min(tiles, 2 * whole)
    fixed, per_function = _transformation(work, workers)
    block = work.block_functions * per_function
    solved = workers * min(max(SOLVE_BYTES, row), whole)
    pieces = workers * min(PIECE_BYTES, whole)
    rows = sum(s.nocc for s in work.spins)
    return {
        "mp2_in_core": whole
        + max(metric + fixed + block, left + frontier + hessian, left + single + metric + tiles),
        "mp2_integrals": Stage(fixed, min(block, LEAST_FUNCTIONS * per_function), block),
        "mp2_solve": Stage(
            left + max(frontier + max(metric + solved + pieces, hessian), 2 * metric)
        ),
        "mp2_pairs": Stage(
            left + tiles + row + single_row, 3 * edge * row, (rows + 2 * edge) * row
        ),
        "mp2_disk": whole,
    }


def _transformation(work: Workload, workers: int) -> tuple[int, int]:
    """Bytes while integrals of MP2 are transformed: in any case, and per fitting function of a
    block."""
    triangles = work.nao * sum(work.nao + spin.nvir for spin in work.spins) * FLOAT64
    fixed = work.metric_bytes + work.frontier_bytes + workers * triangles
    # elements once more, to be written to disk
    per_function = work.pairs_of_functions + 2 * work.elements + work.frontier_elements
    per_function *= FLOAT64
    half = work.block_functions * work.half_transformed * work.nao * FLOAT64
    if half > workers * HALF_BYTES:
        return fixed + workers * HALF_BYTES + _blas_buffers(work, workers), per_function
    # Smaller blocks make the half-transformed integrals smaller.
    return fixed, per_function + 2 * work.half_transformed * work.nao * FLOAT64


def exact_rows_stage(work: Workload, workers: int, count: int) -> Stage:
    """Bytes for exact integrals of `count` occupied orbitals of one spin, as many at a time as
    fit."""
    n = work.nao
    pairs = work.pairs_of_functions
    nvir = max(spin.nvir for spin in work.spins)
    occupied = sum(spin.nocc for spin in work.spins)
    one = FLOAT64 * n * nvir * (occupied + 2 * work.widest_shell)
    shell = FLOAT64 * pairs * work.widest_shell  # integrals of a shell with one function
    block = min(max(EXACT_BLOCK, shell * work.widest_shell), shell * n)
    work_space = workers * min(HALF_BYTES + EXACT_WORK, count * one)
    matrices = 3 * nvir * nvir * occupied + n * n * (8 + workers * work.widest_shell**2)
    fixed = block + work_space + FLOAT64 * matrices
    return Stage(fixed, one, count * one)


def _blas_buffers(work: Workload, workers: int) -> int:
    """Bytes kept by BLAS: its copies of half-transformed integrals and of right-hand sides."""
    half = work.block_functions * work.half_transformed * work.nao * FLOAT64
    solved = min(workers * SOLVE_BYTES, work.b_bytes + work.frontier_bytes)
    return min(workers * LEFT_BEHIND, half + solved * BLAS_DEPTH // max(work.naux, BLAS_DEPTH))


def check_stage(work: Workload, workers: int) -> Stage:
    """Bytes for PySCF's own DF-MP2 on the orbitals of the run: B by rows, read a few at a time."""
    row = work.row_bytes
    rows = max((s.nocc for s in work.spins), default=0)
    shell = 2 * CHECK_SHELL * work.nao**2 * FLOAT64
    left = min(workers * LEFT_BEHIND, 2 * work.b_bytes)
    return Stage(CHECK_MODULES + left + 3 * work.metric_bytes + 4 * row + shell, row, rows * row)


def _tile_elements(limits: Limits, edge: int, pair: int) -> int:
    """Numbers held by a tile: products of `pair` elements each, and work space of at most twice as
    many."""
    held = min(max(limits.tile_elements, pair), max(1, edge) ** (2 if limits.square else 1) * pair)
    if limits.work_elements is None:
        wanted = 2 * limits.tile_elements
    else:
        wanted = limits.work_elements
    return held + min(max(wanted, 2 * pair), 2 * held)


def group_bytes(naux: int) -> int:
    """Bytes of B processed at a time to make matrices (naux, naux), at least one orbital.

    With as many rows as a matrix, little time is spent on reading and writing it.
    """
    return max(GROUP_BYTES, naux**2 * FLOAT64)


def without_pairs(plan: MemoryPlan, work: Workload) -> MemoryPlan:
    """The plan of a method that needs matrices over fitting functions (`dfmp2.mp2.response`)
    instead of tiles."""
    matrices = len(work.spins) * work.metric_bytes
    group = min(max(work.row_bytes, group_bytes(work.naux)), work.b_bytes)
    scaled = 2 * group  # with the previous one
    in_core = max(plan.mp2_in_core, work.b_bytes + matrices + scaled)
    streamed = Stage(plan.mp2_pairs.fixed + scaled + 3 * group, matrices, MOST_MATRICES * matrices)
    return replace(plan, mp2_in_core=in_core, mp2_pairs=streamed)
