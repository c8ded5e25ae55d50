"""Memory and time of plans against counts by hand: an open shell whose spins, bases and blocks all
differ, small enough for every bound on work space to be that of its arrays; sizes in numbers of
float64 where nothing else is said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyscf import dft, gto

from dfmp2.backends import tiling
from dfmp2.backends.cpu import CpuBackend
from dfmp2.planning import memory, rates, time
from dfmp2.planning.gradient_memory import gradient_memory, gradient_with_b
from dfmp2.planning.memory import MemoryPlan, Stage
from dfmp2.planning.rates import DiskRates, Rates
from dfmp2.planning.sizes import Spin, Workload, exact_row_shares, sampled_pairs, scf_cycles
from dfmp2.planning.system import useful_threads
from dfmp2.scf.ladder import begins_coarse, uses_single

OPEN = Workload(
    nao=23,
    naux_scf=101,
    naux=79,
    spins=(Spin(7, 5, 14), Spin(6, 4, 15)),
    precision="auto",
    block_functions=17,
    scf_columns=250,
    rectangles=210,
    widest_shell=5,
    frontier=((2, 3), (1, 4)),
    single_exchange=True,
    examined=True,
    operators=2,
)
PAIRS = 23 * 24 // 2
B = (5 * 14 + 4 * 15) * 79
FRONTIER = ((2 * 3 + 4 + 9) + (1 * 4 + 1 + 16)) * 79
WORKERS = 3
MB = 10**6
# 30 matrices of each spin, and J, K of each worker, whole and packed
MATRICES = 30 * 23**2 * 2 + 2 * (PAIRS + 23**2) * WORKERS
INTEGRALS = 101 * 250  # of one operator


def plan_of(work: Workload, budget: int = 10**12) -> MemoryPlan:
    """The plan with three threads of the host."""
    return memory.memory_plan(work, CpuBackend(WORKERS).limits, WORKERS, program=0, budget=budget)


def test_memory_of_a_small_scf_counted_by_hand() -> None:
    plan = plan_of(OPEN)
    buffers = 2 * 101 * PAIRS
    assert plan.scf_in_core == 8 * (MATRICES + 2 * INTEGRALS + 2 * 101**2 + buffers)
    assert plan.scf_disk == 8 * 2 * INTEGRALS
    # Made on disk beside 10 matrices and the metric, the widest shell of functions at a time.
    fit = Stage(8 * (10 * 23**2 * 2 + 101**2) + 24 * MB, 8 * 5 * 23 * 101, 8 * 2 * INTEGRALS)
    assert plan.scf_fit == fit
    halves = 101 * (7 + 6) * 23
    read = Stage(8 * (MATRICES + 2 * INTEGRALS + halves), 8 * 2 * INTEGRALS, 8 * 2 * INTEGRALS)
    assert plan.scf_read == read
    assert plan.scf_response == 2 * 4 * 101 * 23 * (7 + 6)  # in float32, as the exchange
    assert plan.scf_gathered == 4 * 2 * 101 * 210
    assert plan.grid_values == 0


def test_what_an_scf_holds_beside_its_integrals_is_counted() -> None:
    """A grid and the one its error is found with, a solvent, X2C, and integrals of four centres.

    The points of the first grid are there once more for the stability of the solution.
    """
    plain = plan_of(OPEN)
    few = plan_of(replace(OPEN, grid=300, finer_grid=400, kernel=6))
    block = 700 * 23 * 12 + 4 * 23**2 * 2
    kernel = 300 * (6 * 8 + 96)  # for the stability of all rotations
    assert few.scf_in_core - plain.scf_in_core == WORKERS * block * 8 + 700 * 96 + kernel
    unexamined = [
        plan_of(replace(OPEN, examined=False, grid=points, finer_grid=0, kernel=6)).scf_in_core
        for points in (0, 700)
    ]
    assert unexamined[1] - unexamined[0] == WORKERS * block * 8 + 700 * 96
    assert few.grid_values == 300 * 23 * 4 * 8
    many = plan_of(replace(OPEN, grid=5000, finer_grid=7000))
    block = 1008 * 23 * 12 + 4 * 23**2 * 2
    held = WORKERS * block * 8 + 12000 * 96 + 5000 * 96
    assert many.scf_in_core - plain.scf_in_core == held
    solvent = plan_of(replace(OPEN, surface=90))
    kept = 90**2 + 2 * 90 * PAIRS
    assert solvent.scf_in_core - plain.scf_in_core == 8 * kept
    wide = plan_of(replace(OPEN, surface=2000))  # its matrices are gone before there are integrals
    assert wide.scf_in_core == wide.scf_fit.fixed == 15 * 8 * 2000**2
    relativistic = plan_of(replace(OPEN, x2c_functions=400))
    assert relativistic.scf_in_core == relativistic.scf_fit.fixed == 32 * 8 * 400**2
    exact = plan_of(replace(OPEN, naux_scf=0, operators=1))
    assert exact.scf_in_core == 8 * (MATRICES + PAIRS * (PAIRS + 1) // 2)
    again = 4 * 23**2 * 2 * WORKERS
    assert (exact.scf_fit, exact.scf_disk) == (Stage(), 0)
    assert exact.scf_read == Stage(8 * (MATRICES + again))


LARGE = replace(
    OPEN,
    nao=800,
    naux_scf=4000,
    naux=3000,
    spins=(Spin(60, 50, 700), Spin(55, 45, 705)),
    block_functions=40,
    scf_columns=300_000,
    frontier=((16, 32), (15, 32)),
)


def test_memory_of_a_large_scf_is_bounded_where_it_streams() -> None:
    """Work space has its bounds, in megabytes for each worker."""
    plan, whole = plan_of(LARGE), 4000 * 300_000
    matrices = 30 * 800**2 * 2 + 2 * (800 * 801 // 2 + 800**2) * WORKERS
    assert plan.scf_in_core == 8 * (matrices + 2 * whole + 2 * 4000**2) + 3 * 32 * MB
    fixed = 8 * (10 * 800**2 * 2 + 4000**2) + 3 * 8 * MB
    assert plan.scf_fit == Stage(fixed, 8 * 4000**2, 64 * MB)  # a metric is wider than a shell
    assert plan.scf_read == Stage(8 * matrices + 3 * (8 + 12) * MB, 24 * MB, 256 * MB)
    columns = plan_of(replace(LARGE, nao=2000, scf_columns=700_000)).scf_read
    assert columns.least == 2 * WORKERS * 700_000 * 8


def test_memory_of_a_small_mp2_counted_by_hand() -> None:
    """Orbitals go one by one: the edge of a tile is 1."""
    plan = plan_of(OPEN)
    orbitals = 7 + 6 + 3 + 4  # all occupied ones, and the virtual ones of the frontier
    metric, row = 79**2, 15 * 79
    hessian = (2 * 3 + 1 * 4) ** 2 + 3 * (2 * 3) ** 2
    held = 17 * orbitals * 23 + B + FRONTIER  # what BLAS copies: all of both
    tiles = WORKERS * (1 + 2) * 15**2
    fixed = metric + FRONTIER + WORKERS * 23 * ((23 + 14) + (23 + 15))
    function = PAIRS + 2 * 130 + 40 + 2 * orbitals * 23
    assert plan.mp2_disk == 8 * B
    assert plan.integral_block == 8 * 17 * PAIRS
    assert plan.mp2_integrals == Stage(8 * fixed, 8 * 16 * function, 8 * 17 * function)
    assert plan.mp2_solve == Stage(8 * (held + FRONTIER + metric + WORKERS * 2 * B))
    streamed = Stage(8 * (held + tiles + row) + 4 * row, 8 * 3 * row, 8 * (9 + 2) * row)
    assert plan.mp2_pairs == streamed
    making = 8 * (metric + fixed + 17 * function)
    looking = 8 * (held + FRONTIER + hessian)
    pairs = 8 * (held + metric + tiles) + 4 * B  # B in float32 as well
    assert plan.mp2_in_core == 8 * B + max(making, looking, pairs)
    exact = plan_of(replace(OPEN, precision="fp64"))
    assert exact.mp2_pairs.fixed == streamed.fixed - 4 * row
    assert exact.mp2_integrals == plan.mp2_integrals and exact.mp2_solve == plan.mp2_solve
    assert exact.mp2_in_core == 8 * B + max(making, looking, pairs - 4 * B)
    many = plan_of(replace(OPEN, frontier=((2, 3), (20, 40))))
    frontier = (2 * 3 + 4 + 9 + 20 * 40 + 400 + 1600) * 79
    hessian = (2 * 3 + 20 * 40) ** 2 + 3 * (20 * 40) ** 2
    held = 17 * (7 + 6 + 3 + 40) * 23 + B + frontier
    assert many.mp2_in_core == 8 * (B + held + frontier + hessian)
    assert many.mp2_solve == Stage(8 * (held + frontier + hessian))


def test_memory_of_a_large_mp2_is_bounded_where_it_streams() -> None:
    plan = plan_of(LARGE)
    whole, metric, row = (50 * 700 + 45 * 705) * 3000, 3000**2, 705 * 3000
    frontier = (16 * 32 + 16**2 + 32**2 + 15 * 32 + 15**2 + 32**2) * 3000
    virtuals = WORKERS * 800 * (800 + 700 + 800 + 705)
    half = 40 * (60 + 55 + 32 + 32) * 800
    assert 8 * half > WORKERS * 12 * MB  # so it is cut to that
    held = WORKERS * 16 * MB
    fixed = 8 * (metric + frontier + virtuals) + WORKERS * 12 * MB + held
    function = 8 * (800 * 801 // 2 + 2 * (50 * 700 + 45 * 705) + frontier // 3000)
    assert plan.mp2_integrals == Stage(fixed, 16 * function, 40 * function)
    solved = WORKERS * (8 * row + MB)  # of one orbital, which is more than 16 MB
    assert plan.mp2_solve == Stage(held + 8 * (frontier + metric) + solved)
    tile = 3 * 705**2  # one pair, and two blocks of its amplitudes as work space
    in_core = max(8 * metric + fixed + 40 * function, held + 4 * whole + 8 * (metric + 3 * tile))
    assert plan.mp2_in_core == 8 * whole + in_core
    assert plan.mp2_disk == 8 * whole


def test_the_host_of_a_card_holds_no_tiles() -> None:
    """But the two buffers of 64 MB through which B goes there, or less for a smaller B."""
    card = replace(CpuBackend(WORKERS).limits, memory=10**9)
    for work, buffers in ((OPEN, 2 * 8 * B), (LARGE, 128 * MB)):
        edge = tiling.edge(work.spins[0].nocc, card, work.spins[1].nvir * work.naux)
        row = 8 * work.spins[1].nvir * work.naux
        found = memory.memory_plan(work, card, WORKERS, program=0, budget=10**12).mp2_pairs
        rows = sum(spin.nocc for spin in work.spins)
        assert found.least == 3 * edge * row and found.most == (rows + 2 * edge) * row
        solve = memory.memory_plan(work, card, WORKERS, program=0, budget=10**12).mp2_solve
        assert solve == plan_of(work).mp2_solve
        held = memory._blas_buffers(work, WORKERS)
        assert found.fixed == held + buffers + row + row // 2


def test_memory_of_checks_counted_by_hand() -> None:
    """PySCF's DF-MP2, exact integrals of some orbitals, and matrices of a quadrature."""
    row = 8 * 15 * 79
    shell = 2 * 11 * 23**2  # of h functions
    fixed = 8 * MB + 8 * 2 * B + 8 * 3 * 79**2 + 4 * row + 8 * shell
    assert memory.check_stage(OPEN, WORKERS) == Stage(fixed, row, 5 * row)
    one = 8 * 23 * 15 * (9 + 2 * 5)
    block = 8 * PAIRS * 5 * 23
    matrices = 3 * 15**2 * 9 + 23**2 * (8 + WORKERS * 5**2)
    fixed = block + WORKERS * 2 * one + 8 * matrices
    assert memory.exact_rows_stage(OPEN, WORKERS, 2) == Stage(fixed, one, 2 * one)
    large = memory.exact_rows_stage(LARGE, WORKERS, 9)
    one = 8 * 800 * 705 * (95 + 2 * 5)
    matrices = 3 * 705**2 * 95 + 800**2 * (8 + WORKERS * 5**2)
    shell = 8 * (800 * 801 // 2) * 5 * 5
    assert large == Stage(shell + WORKERS * 28 * MB + 8 * matrices, one, 9 * one)
    plan = plan_of(OPEN)
    screened = memory.without_pairs(plan, OPEN)
    both, group = 8 * 2 * 79**2, 8 * B  # all of B at a time, twice with what it is scaled to
    assert screened.mp2_in_core == max(plan.mp2_in_core, 8 * B + both + 2 * group)
    expected = Stage(plan.mp2_pairs.fixed + 5 * group, both, 16 * both)
    assert screened.mp2_pairs == expected
    assert memory.group_bytes(79) == 16 * MB
    assert memory.group_bytes(3000) == 8 * 3000**2


def test_memory_of_the_host_of_a_device_counted_by_hand() -> None:
    metric = 2 * 79**2 + 17 * PAIRS  # with a block of integrals, and what is solved of them
    assert memory.device_host_bytes(OPEN) == 8 * (79 * PAIRS + metric) + 32 * MB
    wide = replace(OPEN, nao=300)  # a piece of 128 functions, once more in float32 and padded
    piece = 128 * (8 * 300**2 + 4 * 384**2)
    assert memory.device_host_bytes(wide) == 8 * 79 * (300 * 301 // 2) + piece + 4 * B
    held = 8 * 3000 * (800 * 801 // 2)
    b = 8 * (50 * 700 + 45 * 705) * 3000
    assert memory.device_host_bytes(LARGE) == held + 2 * b


GRADIENT = replace(OPEN, task="gradient")


def test_memory_of_a_gradient_counted_by_hand() -> None:
    """Everything in memory, and the least of it."""
    plan = plan_of(GRADIENT)
    found = gradient_memory(GRADIENT, plan, 9, WORKERS)
    half = 8 * (7 + 6) * 23 * 101
    always = 20 * MB + 14 * MB
    fixed = always + 8 * 24 * 23**2 * 2 + 8 * B
    metrics = 8 * 3 * 79**2
    # Amplitudes in float32: of the spin with most of them, for all virtual orbitals, twice.
    tiles = 2 * 4 * 5 * 14 * 15
    tiles += min(4 * 4 * 2 * MB // 8, 2 * tiles)
    amplitudes = fixed + metrics + 12 * B + WORKERS * (tiles + 8 * (3 * 15 * 79 + 79**2))
    function = 8 * (9 * 23**2 + 6 * 23 * 13)
    fitted = fixed + metrics + 8 * B + 101 * function
    work = 8 * WORKERS * (101**2 + 3 * 23 * 101)
    mean_field = fixed + 8 * 3 * 101**2 + half + max(101 * function, work)
    rotations = 7 * (23 - 7) + 6 * (23 - 6)
    response = always + 8 * 40 * rotations + plan.scf_in_core
    of_occupied = 2 * 4 * 101 * 23 * 13 + 3 * 12 * MB
    kept = 8 * 2 * INTEGRALS
    two_center = fixed + 8 * 3 * 101**2
    assert (found.purpose, found.disk, found.packed_bytes) == ("gradient", 0, 101 * 8 * PAIRS)
    assert found.scf_kept and found.response_held
    assert not (found.z_on_disk or found.half_on_disk or found.scf_on_disk)
    before = max(plan.mp2, amplitudes + 8 * B, fitted)
    assert found.peak == max(before + kept, mean_field, response + of_occupied, two_center)
    assert found.needed == max(
        amplitudes + 8 * B,
        fitted - 92 * function,
        mean_field - 101 * function + max(9 * function, work),
        response + of_occupied,
        two_center,
    )
    on_disk = max(plan.scf_fit.needed, plan.scf_read.needed)
    assert found.least == max(
        amplitudes,
        fitted - 8 * B - 92 * function,
        mean_field - half - 101 * function + max(9 * function, work),
        response - plan.scf_in_core + min(plan.scf_in_core, on_disk),
        two_center,
    )
    assert found.comfortable == max(
        plan.mp2_in_core + kept, amplitudes + 8 * B + kept, fitted + kept, response + of_occupied
    )
    assert gradient_with_b(GRADIENT, WORKERS) == amplitudes
    # Each array is in memory from the byte on where it fits there.
    for name, room, value in (
        ("z_on_disk", max(amplitudes + 8 * B, fitted - 92 * function), False),
        ("half_on_disk", mean_field - 101 * function + max(9 * function, work), False),
        ("response_held", response + of_occupied, True),
        ("scf_kept", before + kept, True),
    ):
        just, below = (
            gradient_memory(GRADIENT, plan_of(GRADIENT, memory.SLACK + n), 9, WORKERS)
            for n in (room, room - 1)
        )
        assert (getattr(just, name), getattr(below, name)) == (value, not value), name
        if name == "z_on_disk":
            assert below.disk == max(8 * B, half if below.half_on_disk else 0)
    densities = gradient_memory(replace(GRADIENT, task="properties"), plan, 9, WORKERS)
    assert densities.purpose == "relaxed densities"


# --- time -----------------------------------------------------------------------------------------

HOST = Rates(
    integrals=2e8,
    products=7e10,
    products_single=1.3e11,
    functional=5e7,
    pairs_fp64=4e10,
    pairs_mixed=9e10,
    start=0.37,
)
FOUR_CENTRE, EXACT = 0.56 * 2e8, 0.029 * 7e10
EXCHANGE, SINGLE = 0.73 * 7e10, 0.84 * 1.3e11
SOLVE, TRANSFORM, EIGEN, CHECKED = 0.94 * 7e10, 0.83 * 7e10, 0.052 * 7e10, 0.5 * 7e10
MOVED = 8e8  # bytes per second
TIMED = replace(OPEN, cycles=11, starts=2, primitives=31, atoms=4)
THREE = PAIRS + 1.3 * (31 * 32 // 2)  # integrals of three centres for each fitting function
HALVES = 2 * 101 * 23**2 * 250 // PAIRS  # operations of an occupied orbital, over the pairs kept
BUILD = 2 * ((101 * 23**2 + HALVES) * 13 + 2 * 2 * 101 * 250)
BESIDE = 2 * (23**2 / 2.5e6 + 23**3 / EIGEN)  # s: matrices of an iteration
PAIR_WORK = 2 * 79 * (15 * 14**2 + 10 * 15**2 + 20 * 14 * 15)


def scf_seconds(work: Workload) -> float:
    return time.time_text(work, HOST).scf


def test_time_of_an_scf_counted_by_hand() -> None:
    """Two starts of 12 builds, of which 7 are in float32; 30 products for the stability of each."""
    made = 2 * 101 * THREE / 2e8 + 101**2 * 5e-8 + 2 * 101**2 * 250 / SOLVE + 8 * INTEGRALS / MOVED
    products = 10 * BUILD / EXCHANGE + 14 * BUILD / SINGLE
    product = HALVES * 13 + 2 * 101 * (7**2 * (3 * 23 - 7) + 6**2 * (3 * 23 - 6))
    examined = 60 * product / SINGLE + 0.5 * 60 * BESIDE
    whole = made + products + examined + 24 * (BESIDE + 1e-3)
    assert scf_seconds(TIMED) == pytest.approx(whole)
    closed = replace(TIMED, spins=(Spin(7, 5, 14),))  # to RHF and to UHF: 60 of each start
    product = HALVES * 7 + 2 * 101 * 7**2 * (3 * 23 - 7)
    examined = 120 * product / SINGLE + 0.5 * 120 * BESIDE / 2
    unexamined = scf_seconds(replace(closed, examined=False))
    assert scf_seconds(closed) - unexamined == pytest.approx(examined)
    pace = time.pace(TIMED, HOST)
    assert pace.integrals == pytest.approx(2 * 101 * THREE / 2e8)
    assert pace.cycle == pytest.approx(BUILD / EXCHANGE + BESIDE + 1e-3)
    assert (pace.cycles, pace.starts, pace.check) == (11, 2, 0.0)
    assert pace.certificate == pytest.approx(PAIR_WORK / 4e10)
    assert time.pace(replace(TIMED, precision="fp64"), HOST).certificate == 0.0
    double = replace(TIMED, single_exchange=False)
    product = HALVES * 13 + 2 * 101 * (7**2 * (3 * 23 - 7) + 6**2 * (3 * 23 - 6))
    for work, rate in ((TIMED, SINGLE), (double, EXCHANGE)):
        examined = 30 * product / rate + 0.5 * 30 * BESIDE
        assert time.pace(work, HOST).examined == pytest.approx(examined)


def test_time_of_four_centre_integrals_counted_by_hand() -> None:
    work = replace(TIMED, naux_scf=0, operators=1, single_exchange=False)
    four = PAIRS * (PAIRS + 1) / 2 + 0.5 * (496 * 497 / 2)
    build = 4 * 2 * PAIRS**2
    rest = 24 * build / EXACT + 60 * 2 * build / EXACT + 30 * BESIDE + 24 * (BESIDE + 1e-3)
    assert scf_seconds(work) == pytest.approx(four / FOUR_CENTRE + rest)
    anew = time.time_text(work, HOST, time.Traffic(recomputed=True)).scf
    assert anew == pytest.approx((24 + 2 * 60) * four / FOUR_CENTRE + rest)
    pace = time.pace(work, HOST)
    assert pace.integrals == 0.0
    assert pace.cycle == pytest.approx(build / EXACT + BESIDE + 1e-3)


def test_time_of_what_comes_on_top_of_an_scf_counted_by_hand() -> None:
    """Core potentials, X2C, a solvent and a functional; float32 begins on an eighth of the grid."""
    plain = scf_seconds(TIMED)
    potentials = scf_seconds(replace(TIMED, potentials=3))
    assert potentials - plain == pytest.approx(4e-6 * 3 * 23**2)
    relativistic = scf_seconds(replace(TIMED, x2c_functions=61))
    assert relativistic - plain == pytest.approx(0.08 + 200 * 61**3 / EXCHANGE)
    solvent = scf_seconds(replace(TIMED, surface=90))
    made = 90 * PAIRS
    field = 3 * 90**3 / EXCHANGE + 0.6 + 5e-7 * 90**2 + made / 2e8 + 2 * 24 * 8 * made / 5e9
    assert solvent - plain == pytest.approx(field)
    wide = 300_000  # points, whose integrals are not kept
    solvent = scf_seconds(replace(TIMED, surface=wide))
    made = wide * PAIRS
    field = 3 * wide**3 / EXCHANGE + 0.6 + 5e-7 * wide**2 + 2 * 24 * made / 2e8
    assert solvent - plain == pytest.approx(field)
    functional = scf_seconds(replace(TIMED, grid=900, finer_grid=1300))
    evaluated = (24 - 16 + 2 + 1) * 900 + 1300
    assert functional - plain == pytest.approx(evaluated * 2 * 23 / 5e7)
    precise = replace(TIMED, precision="fp64")
    functional = scf_seconds(replace(precise, grid=900))
    assert functional - scf_seconds(precise) == pytest.approx(25 * 900 * 2 * 23 / 5e7)
    alone = replace(TIMED, exchange=False, examined=False)
    less = 10 / EXCHANGE + 14 / SINGLE
    with_k = scf_seconds(replace(TIMED, examined=False))
    more = (101 * 23**2 + HALVES) * 13 - 2 * 2 * 101 * 250  # J costs half beside K
    assert with_k - scf_seconds(alone) == pytest.approx(less * 2 * more)


def test_time_of_mp2_counted_by_hand() -> None:
    """Pair energies in float32, and all of so few pairs again in float64."""
    found = time.time_text(TIMED, HOST)
    fit, first = 79**2 * 130, 5 * (23 + 14) + 4 * (23 + 15)
    frontier = 23 * 7 + FRONTIER // 79
    assert found.integrals == pytest.approx(79 * THREE / 2e8)
    assert found.fit == pytest.approx(79**2 * 5e-8 + fit / SOLVE + 8 * B / MOVED)
    products = 2 * 79 * 23 * (first + frontier) / TRANSFORM
    assert found.transform == pytest.approx(products + 8 * (B + FRONTIER) / MOVED)
    pairs = PAIR_WORK * (1 / 4e10 + 1 / 9e10) + 8 * B / MOVED
    assert found.pair_energies == pytest.approx(pairs)
    stages = sum(getattr(found, name) for name in time.STAGES)
    assert found.total == pytest.approx(0.37 + stages)
    checked = time.time_text(replace(TIMED, checked=True), HOST)
    again = 3 * (fit + 2 * 79 * 23 * first + PAIR_WORK) / CHECKED + 2 * 79 * THREE / 2e8
    assert checked.total - found.total == pytest.approx(again)
    exact = time.time_text(replace(TIMED, precision="fp64"), HOST)
    assert exact.pair_energies == pytest.approx(PAIR_WORK / 4e10)
    twice = time.time_text(replace(TIMED, grid=900, finer_grid=1300), HOST)
    for name in ("integrals", "fit", "transform", "pair_energies"):
        assert getattr(twice, name) == pytest.approx(2 * getattr(found, name))


def test_a_quadrature_has_matrices_at_each_point() -> None:
    work = replace(TIMED, points=12, precision="fp64")
    assert work.flops()["pairs_fp64"] == 12 * 79**2 * 130
    assert work.flops()["pairs_mixed"] == 0
    found = time.time_text(work, HOST).pair_energies
    assert found == pytest.approx(1.3 * 12 * 79**2 * 130 / 4e10)


def test_time_of_a_gradient_counted_by_hand() -> None:
    work = replace(TIMED, task="gradient", precision="fp64")
    found = time.gradient_seconds(work, HOST)
    amplitudes = 0
    for left, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        elements = (5, 4)[left] * (5, 4)[right] * (14, 15)[left] * (14, 15)[right]
        amplitudes += elements * (4 * 79 + 2 * (14 + 5, 15 + 4)[left])
    squares = 79**2 * 130
    assert found.amplitudes == pytest.approx(
        amplitudes / 4e10 + squares * (1 / SOLVE + 2 / TRANSFORM)
    )
    single = time.gradient_seconds(replace(work, precision="auto"), HOST)
    assert found.amplitudes - single.amplitudes == pytest.approx(amplitudes * (1 / 4e10 - 1 / 9e10))
    products = 6 * 23**2 * 9 + 4 * 23 * 130
    made = 4.4 * 79 * THREE / 2e8
    assert found.fitted_integrals == pytest.approx(made + 79 * products / TRANSFORM)
    densities = time.gradient_seconds(replace(work, task="properties"), HOST)
    products = 4 * 23**2 * 9 + 4 * 23 * 130
    made = 79 * THREE / 2e8
    assert densities.fitted_integrals == pytest.approx(made + 79 * products / TRANSFORM)
    assert densities.mean_field == 0.25
    halves = 101 * 23 * 13
    of_scf = 4.4 * 2 * 101 * THREE / 2e8 + 8 * halves * 23 / TRANSFORM
    of_scf += 2 * halves * 101 * (1 / SOLVE + 1 / TRANSFORM)
    nuclei = 1.6e-7 * 4 * 23**2
    assert found.mean_field == pytest.approx(0.25 + 2 * of_scf + nuclei)
    heavy = time.gradient_seconds(replace(work, potentials=2, x2c_functions=61), HOST)
    more = 200 * nuclei + 375 * 4 * 61**3 / EXCHANGE
    assert heavy.mean_field - found.mean_field == pytest.approx(more)
    functional = time.gradient_seconds(replace(work, grid=900), HOST)
    once = 900 * 2 * 23 / 5e7
    assert functional.mean_field - found.mean_field == pytest.approx(5 * once)
    assert functional.response - found.response == pytest.approx(12 * once)
    exact = time.gradient_seconds(replace(work, naux_scf=0, operators=1), HOST)
    four = PAIRS * (PAIRS + 1) / 2 + 0.5 * (496 * 497 / 2)
    assert exact.mean_field == pytest.approx(0.25 + 7.7 * four / FOUR_CENTRE + nuclei)
    builds = 2 * 2 * 17
    assert exact.response == pytest.approx(four / FOUR_CENTRE + 4 * builds * PAIRS**2 / EXACT)
    anew = memory.GradientMemory(scf_on_disk=True)
    again = time.gradient_seconds(replace(work, naux_scf=0, operators=1), HOST, anew)
    assert again.response - exact.response == pytest.approx((34 - 1) * four / FOUR_CENTRE)
    fields = time.time_text(replace(work, in_fields=6), HOST)
    alone = time.time_text(work, HOST)
    energy = alone.total - alone.gradient - 0.37
    relaxed = densities.total
    assert fields.gradient - alone.gradient == pytest.approx(6 * (energy + relaxed))
    assert alone.gradient == pytest.approx(found.total)


def test_time_of_the_z_vector_equations_without_what_is_held() -> None:
    """All of J and K in every iteration, and integrals of the SCF that are made again."""
    work = replace(TIMED, task="gradient")
    held = memory.GradientMemory(scf_kept=True, response_held=False)
    kept = 250 / PAIRS

    def build(orbitals: int) -> float:
        return 101 * 23**2 * (1 + 2 * kept) * orbitals + 4 * 4 * 101 * 250

    double = (build(46) + 2 * build(26)) / EXCHANGE
    expected = 2 * (double + 14 * build(26) / SINGLE)
    assert time.gradient_seconds(work, HOST, held).response == pytest.approx(expected)
    anew = time.gradient_seconds(work, HOST, replace(held, scf_kept=False)).response
    made = 2 * 101 * THREE / 2e8 + 101**2 * 250 / SOLVE
    assert anew - expected == pytest.approx(2 * made)


def test_traffic_counted_by_hand() -> None:
    """With everything on disk: integrals once per build, B raw and fitted, and its tiles."""
    limits = CpuBackend(WORKERS).limits
    plan = plan_of(TIMED, budget=0)
    moved = time.traffic(TIMED, plan, limits)
    assert moved.scf_written == plan.scf_disk == 8 * 2 * INTEGRALS
    assert moved.scf_read == plan.scf_disk * (24 + 2 * 60)
    assert (moved.fit_written, moved.fit_read) == (2 * 8 * B, 8 * B)
    assert (moved.recomputed, moved.cached) == (False, False)
    assert moved.written == moved.scf_written + moved.fit_written
    assert moved.read == moved.scf_read + moved.fit_read + moved.pairs_read
    disk = DiskRates(write=3e6, read=2e6, cached=5e6)
    found = time.time_text(TIMED, HOST, moved, disk)
    fit = 79**2 * 5e-8 + 79**2 * 130 / SOLVE + 16 * B / 3e6 + 8 * B / 2e6
    assert found.fit == pytest.approx(fit)
    assert found.pair_energies == pytest.approx(moved.pairs_read / 2e6)
    cached = time.time_text(TIMED, HOST, replace(moved, cached=True), disk)
    assert cached.fit == pytest.approx(fit - 8 * B / 2e6 + 8 * B / 5e6)
    in_memory = time.traffic(TIMED, plan_of(TIMED), limits)
    assert in_memory == time.Traffic()
    exact = replace(TIMED, naux_scf=0)
    assert time.traffic(exact, plan_of(exact, budget=0), limits).recomputed
    assert not time.traffic(exact, plan_of(exact), limits).recomputed


def test_integrals_of_a_gradient_go_to_disk_where_they_do_not_fit() -> None:
    """Those of the SCF in the Z-vector equations, in blocks as in the SCF."""
    work = replace(LARGE, task="gradient")
    ample = plan_of(work)
    rotations = 60 * (800 - 60) + 55 * (800 - 55)
    vectors = 20 * MB + 40 * MB + 8 * 40 * rotations
    needed = vectors + ample.scf_in_core
    just, below = (
        gradient_memory(work, plan_of(work, memory.SLACK + n), 9, WORKERS)
        for n in (needed, needed - 1)
    )
    assert not just.scf_on_disk and below.scf_on_disk
    assert (just.pair_bytes, just.read_bytes) == (0, 0)
    assert (below.pair_bytes, below.read_bytes) == (8 * 4000**2, 256 * MB)
    assert below.disk >= ample.scf_disk and not below.scf_kept
    alone = replace(work, naux=0, spins=(Spin(60, 0, 0), Spin(55, 0, 0)), grid=9000)
    kohn_sham = gradient_memory(alone, plan_of(work), 9, WORKERS)
    assert not (kohn_sham.scf_on_disk or kohn_sham.scf_kept)
    half = 8 * 115 * 800 * 4000
    fixed = 20 * MB + 40 * MB + 8 * 24 * 800**2 * 2
    blocks = 8 * (9 * 800**2 + 6 * 800 * 115)
    mean_field = fixed + 8 * 3 * 4000**2 + half + 9 * blocks
    work_space = 8 * WORKERS * (4000**2 + 3 * 800 * 4000)
    assert kohn_sham.least == max(
        fixed + 8 * 3 * 4000**2 + max(9 * blocks, work_space),
        fixed + 8 * 3 * 4000**2,
        fixed + 9000 * 96 + WORKERS * 16 * MB,
    )
    assert kohn_sham.needed >= mean_field


# --- rates ----------------------------------------------------------------------------------------


def test_rates_are_work_by_its_shortest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every routine takes two seconds here; the work is counted on a molecule that PySCF makes of
    the same waters."""
    asked: list[int] = []

    def two_seconds(work: Any) -> float:
        asked.append(1)
        return 2.0

    monkeypatch.setattr(rates, "shortest", two_seconds)
    found = rates._host(3)
    water = "O {0} 0 0.2217; H {0} 1.4309 -0.8867; H {0} -1.4309 -0.8867"
    atoms = ";".join(water.format(5.67 * number) for number in range(4))
    mole = gto.M(atom=atoms, unit="bohr", basis="cc-pvtz", verbose=0)
    fitting = gto.M(atom=atoms, unit="bohr", basis="cc-pvtz-ri", verbose=0)
    # Oxygen has 10 s, 5 p, 2 d and 1 f primitives, hydrogen 5 s, 2 p and 1 d.
    nao, naux = mole.nao, fitting.nao
    contracted, primitive = nao * (nao + 1) // 2, 4 * (10 + 15 + 10 + 7 + 2 * (5 + 6 + 5))
    assert nao == 4 * 58
    integrals = naux * (contracted + 1.3 * (primitive * (primitive + 1) // 2))
    assert found["integrals"] == pytest.approx(integrals / 2)
    assert found["products"] == found["products_single"] == 768**3
    small = gto.M(atom=";".join(atoms.split(";")[:6]), unit="bohr", basis="cc-pvdz", verbose=0)
    grid = dft.gen_grid.Grids(small)
    grid.level = 1
    grid.build()
    assert found["functional"] == pytest.approx(len(grid.weights) * small.nao / 2)
    pairs = rates._pairs(CpuBackend(2))
    assert pairs == dict.fromkeys(("pairs_fp64", "pairs_mixed"), 16 * 17 * 256**2 * 768 / 2)
    assert len(asked) == 6


def test_the_shortest_of_three_times_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 13.0, 20.0, 21.5, 30.0, 34.0])
    monkeypatch.setattr(rates.time, "perf_counter", lambda: next(clock))
    done: list[int] = []
    assert rates.shortest(lambda: done.append(1)) == 1.5
    assert len(done) == 3


def test_the_better_rate_of_each_kind_is_kept() -> None:
    """Others can only slow a routine down; times are better when they are shorter."""
    first = Rates(1.0, 9.0, 3.0, 8.0, 5.0, 6.0, 0.2, 0.9, 2.5, "first")
    second = Rates(4.0, 2.0, 7.0, 1.0, 6.0, 5.0, 0.4, 0.3, 0.05, "second")
    assert first.better(second) == Rates(4.0, 9.0, 7.0, 8.0, 6.0, 6.0, 0.2, 0.3, 0.05, "second")
    assert first.disturbed and not second.disturbed
    assert not replace(first, foreign=0.1).disturbed


@pytest.mark.parametrize(
    ("used", "cores", "threads", "taken"),
    [(2.5, 4, 2, 0.5), (1.5, 4, 2, 0.0), (1.5, 2, 2, 1.5), (0.7, 1, 2, 0.7), (0.7, None, 3, 0.7)],
)
def test_cores_that_others_take_are_beyond_the_idle_ones(
    monkeypatch: pytest.MonkeyPatch, used: float, cores: int | None, threads: int, taken: float
) -> None:
    monkeypatch.setattr(rates.os, "cpu_count", lambda: cores)
    others: Any = SimpleNamespace(used=lambda: used)
    assert rates._taken(others, threads) == pytest.approx(taken)


# --- counts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tolerance", "elements", "started", "cycles"),
    [
        (1e-6, "C H O", False, 12),
        (1e-4, "C H", False, 9),
        (1e-8, "C H", False, 15),
        (1e-6, "C Fe", False, 15),
        (1e-6, "C H", True, 7),
        (1e-9, "C Fe", True, 15),
        (1e-1, "C", True, 2),
    ],
)
def test_iterations_of_an_scf_counted_by_hand(
    tolerance: float, elements: str, started: bool, cycles: int
) -> None:
    """12 to 1e-6 Eh, 1.7 for each digit; 3 more for metals, three digits less for a good start."""
    assert scf_cycles(tolerance, elements.split(), started=started) == cycles


def test_samples_counted_by_hand() -> None:
    """48 pairs or 2 %; 24 orbitals in four strata of each spin, two of each at least."""
    found = [sampled_pairs(count) for count in (0, 47, 48, 2400, 2401, 10_000)]
    assert found == [0, 47, 48, 48, 49, 200]
    assert exact_row_shares([24]) == [[24]]
    assert exact_row_shares([13, 11]) == [[13], [11]]
    assert exact_row_shares([30, 28]) == [[3, 3, 3, 3], [3, 3, 3, 3]]
    assert exact_row_shares([25]) == [[7, 6, 6, 6]]
    assert exact_row_shares([100, 3]) == [[6, 6, 6, 6], [1, 1, 1, 0]]


@dataclass(frozen=True)
class Planned:
    """The set-up of a run, as far as threads go."""

    active: int


def test_small_molecules_have_one_thread_and_float64() -> None:
    """Below 64 functions threads cost more than they gain, below 128 float32, and below 64 a
    coarse grid."""
    setup: Any = Planned(4)
    for nao, threads in ((63, 1), (64, 4)):
        made: Any = SimpleNamespace(mole=SimpleNamespace(nao=nao))
        assert useful_threads(setup, made).active == threads
    assert [uses_single("mixed", nao) for nao in (127, 128)] == [False, True]
    assert [begins_coarse("auto", nao) for nao in (63, 64)] == [False, True]
    assert not uses_single("fp64", 1000) and not begins_coarse("fp64", 1000)
