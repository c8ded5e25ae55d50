"""Memory of plans against counts by hand, in numbers of float64 unless stated otherwise; rates.
Complete plans of such calculations, with times, are in the table `plans` (tests/test_tables.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyscf import dft, gto

from dfmp2.backends.cpu import CpuBackend
from dfmp2.planning import memory, rates
from dfmp2.planning.gradient import gradient_memory, gradient_with_b
from dfmp2.planning.memory import MemoryPlan
from dfmp2.planning.rates import Rates
from dfmp2.planning.sizes import Workload, scf_cycles
from dfmp2.planning.system import useful_threads
from dfmp2.scf.ladder import begins_coarse, uses_single
from tests.test_tables import GRADIENT

PAIRS = 23 * 24 // 2
B = (5 * 14 + 4 * 15) * 79
WORKERS = 3
MB = 10**6
INTEGRALS = 101 * 250  # of one operator


def plan_of(work: Workload, budget: int = 10**12) -> MemoryPlan:
    """The plan with three threads of the host."""
    return memory.memory_plan(work, CpuBackend(WORKERS).limits, WORKERS, program=0, budget=budget)


def test_memory_of_a_gradient_counted_by_hand() -> None:
    """With everything in memory, and with as little as possible."""
    plan = plan_of(GRADIENT)
    found = gradient_memory(GRADIENT, plan, 9, WORKERS)
    half = 8 * (7 + 6) * 23 * 101
    always = 20 * MB + 14 * MB
    fixed = always + 8 * 24 * 23**2 * 2 + 8 * B
    metrics = 8 * 3 * 79**2
    # Amplitudes in float32: for the spin with most of them, for all virtual orbitals, twice.
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
    # Each array is kept in memory as soon as it fits, to the byte.
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
    certified = gradient_memory(GRADIENT, replace(plan, certificate=plan), 9, WORKERS)
    assert not certified.scf_kept  # it has an SCF of its own meanwhile
    densities = gradient_memory(replace(GRADIENT, task="properties"), plan, 9, WORKERS)
    assert densities.purpose == "relaxed densities"


# --- rates ----------------------------------------------------------------------------------------


def test_rates_are_work_by_its_shortest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every routine takes two seconds here; the work is counted on PySCF's molecule of the same
    waters."""
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
    """Other load can only slow a routine down; for times, shorter is better."""
    first = Rates(1.0, 9.0, 3.0, 8.0, 5.0, 6.0, 0.2, 0.9, 2.5, "first")
    second = Rates(4.0, 2.0, 7.0, 1.0, 6.0, 5.0, 0.4, 0.3, 0.05, "second")
    assert first.better(second) == Rates(4.0, 9.0, 7.0, 8.0, 6.0, 6.0, 0.2, 0.3, 0.05, "second")
    assert first.disturbed and not second.disturbed
    assert not replace(first, foreign=0.1).disturbed
    assert replace(first, foreign=0.101).disturbed


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
    """12 to 1e-6 Eh, 1.7 per digit; 3 more for metals, three digits fewer after a good start."""
    assert scf_cycles(tolerance, elements.split(), started=started) == cycles


@dataclass(frozen=True)
class Planned:
    """The set-up of a run, as far as threads are concerned."""

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
