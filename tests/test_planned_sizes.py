"""Sizes of runs against PySCF's counts, memory of a gradient against a count by hand in numbers of
float64 unless stated otherwise, and rates.

Complete plans are in the table `plans` (tests/test_tables.py) and in the sessions `plan-...`,
`parts-of-plans` and `rates-of-a-host`.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyscf import dft, gto

from dfmp2.backends.cpu import CpuBackend
from dfmp2.options import Options
from dfmp2.planning import memory, rates
from dfmp2.planning.gradient import gradient_memory, gradient_with_b
from dfmp2.planning.memory import MemoryPlan
from dfmp2.planning.plan import workload_sizes
from dfmp2.planning.sizes import Spin, Workload
from dfmp2.planning.system import with_kept_pairs
from dfmp2.progress import Silent
from tests.awkward import MOLECULES, mole_of
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


# --- sizes ----------------------------------------------------------------------------------------


def grid_points(mole: Any, level: int) -> int:
    """The size of PySCF's grid before points without weight are removed: angular points of its
    shells."""
    grid = dft.gen_grid.Grids(mole)
    grid.level = level
    made = grid.gen_atomic_grids(mole, level=level)
    return sum(len(made[mole.atom_symbol(atom)][1]) for atom in range(mole.natm))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("cyano radical", {}),
        ("cyano radical", {"frozen_core": 2, "frozen_virtual": 3, "stability": "full"}),
        ("cyano radical", {"reference": "rohf", "scf": "conventional", "check": True}),
        ("chloramine", {"scf_starts": 3, "polarizability": True, "scf_conv_tol": 1e-8}),
        ("chloramine", {"stability": "off", "relativity": "x2c", "precision": "fp64"}),
        ("chloramine", {"method": "b2plyp", "grid": "1"}),
        ("cyano radical", {"method": "drpa", "xc": "camb3lyp", "grid": "2", "precision": "fp64"}),
        ("chloramine", {"method": "ks", "xc": "tpss", "grid": "1", "scf_from": "x.chk"}),
        ("chloramine", {"method": "sos-laplace", "solvent": "water"}),
    ],
)
def test_sizes_of_a_run_are_those_of_pyscf(name: str, given: dict[str, Any]) -> None:
    molecule = MOLECULES[name]
    options = Options(basis="6-31g*", allow_poor_fit=True, **given)
    if options.scf == "df":
        options = replace(options, scf_auxbasis="def2-universal-jkfit")
    if options.correlation.kind != "none":
        options = replace(options, auxbasis="def2-svp-ri")
    found = workload_sizes(molecule, options, Silent())
    mole = mole_of(molecule, "6-31g*")
    nao, (alpha, beta) = mole.nao, mole.nelec
    counts = [alpha, beta] if name == "cyano radical" else [alpha]
    core, last = int(given.get("frozen_core", 0)), given.get("frozen_virtual", 0)

    def functions(basis: str) -> int:
        fitting = gto.M(
            atom=mole._atom, unit="bohr", basis=basis, charge=mole.charge, spin=mole.spin, verbose=0
        )
        return int(fitting.nao)

    kind = options.correlation.kind
    fitted = options.scf == "df"
    rohf = options.reference == "rohf"
    default = "follow" if len(counts) == 2 else "auto"
    if options.functional is not None or options.solvent is not None or rohf:
        default = "off"
    stability = given.get("stability", default)
    variables = {"b2plyp": 4, "drpa": 4, "ks": 5}.get(options.method, 0)
    cycles = 12  # to 1e-6 Eh; 1.7 per digit, and three digits fewer after a good start
    if "scf_conv_tol" in given:
        cycles = 10
    if "scf_from" in given:
        cycles = 7
    shells = range(mole.nbas)
    expected = replace(
        found,
        nao=nao,
        atoms=mole.natm,
        potentials=0,
        naux=functions("def2-svp-ri") if kind != "none" else 0,
        naux_scf=functions("def2-universal-jkfit") if fitted else 0,
        spins=tuple(Spin(n, n - core, nao - n - last) for n in counts),
        precision=options.precision if kind == "pairs" else "fp64",
        widest_shell=max(2 * mole.bas_angular(n) + 1 for n in shells),
        primitives=sum(mole.bas_nprim(n) * (2 * mole.bas_angular(n) + 1) for n in shells),
        x2c_functions=0,
        frontier=tuple((n, nao - n) for n in counts) if stability == "auto" else (),
        examined=rohf or stability in ("full", "follow"),
        products=5 if rohf else 30,
        starts=given.get("scf_starts", 1),
        checked=bool(given.get("check")),
        in_fields=6 if given.get("polarizability") else 0,
        points={"laplace": 12, "rpa": 56}.get(kind, 0),
        single_exchange=False,  # below 128 functions
        kernel=(len(counts) * variables) ** 2,
        coarse_grid=0,  # below 64 functions
        operators=2 if options.method == "drpa" else 1,
        exchange=options.method != "ks",
        cycles=cycles,
        scf_columns=0,
    )
    if "relativity" in given:
        expected = replace(expected, x2c_functions=mole.decontract_basis(aggregate=True)[0].nao)
    if options.functional is None:
        expected = replace(expected, grid=0, finer_grid=0)
    else:
        expected = replace(expected, grid=grid_points(mole, int(given["grid"])))
        assert found.finer_grid > found.grid
    assert found == expected and expected.widest_shell == 5
    assert (found.surface > 100) == ("solvent" in given)
    kept = with_kept_pairs(found, SimpleNamespace(naux_scf=found.naux_scf, mole=mole))
    assert kept == replace(found, scf_columns=nao * (nao + 1) // 2 if fitted else 0)


def test_the_kernel_of_a_functional_is_counted_where_it_is_examined() -> None:
    """At each point its second derivatives, beside coordinates and weights in both orders."""
    points, derivatives = 900, 36
    work = replace(GRADIENT, grid=points, finer_grid=1300, kernel=derivatives)
    examined, left = (
        memory._scf_matrices(replace(work, examined=examined), WORKERS)
        for examined in (True, False)
    )
    assert examined - left == points * (8 * derivatives + 12 * 8)
