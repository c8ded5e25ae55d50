"""Parts of a plan: sizes of runs against PySCF's counts; parts of a run, devices that make B, and
scratch folders, with made-up numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from pyscf import dft, gto

from dfmp2.backends import tiling
from dfmp2.backends.base import Limits, Shape
from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import InputError, KernelError, ResourceError, UnsupportedByBackend
from dfmp2.host import resources
from dfmp2.options import Options
from dfmp2.planning import devices, memory, plan, rates, system
from dfmp2.planning.memory import MemoryPlan, Stage
from dfmp2.planning.plan import PARTS, CertificatePlan, Plan, workload_sizes
from dfmp2.planning.rates import DiskRates, Rates
from dfmp2.planning.sizes import Sizes, Spin, Workload
from dfmp2.planning.system import with_kept_pairs
from dfmp2.planning.time import (
    NO_TIME,
    STAGES,
    Pace,
    Timings,
    Traffic,
    certificate_seconds,
    cuts_of,
    time_text,
)
from dfmp2.progress import Silent
from tests.awkward import MOLECULES, mole_of, read
from tests.conftest import Heard
from tests.recorded import recorded_error

WORK = Workload(
    nao=20,
    naux_scf=70,
    naux=60,
    spins=(Spin(5, 4, 15), Spin(4, 3, 16)),
    precision="auto",
    block_functions=12,
)


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

    assert (found.nao, found.atoms, found.potentials) == (nao, mole.natm, 0)
    pairs = options.correlation.kind != "none"
    assert found.naux == (functions("def2-svp-ri") if pairs else 0)
    assert found.naux_scf == (functions("def2-universal-jkfit") if options.scf == "df" else 0)
    assert found.spins == tuple(Spin(n, n - core, nao - n - last) for n in counts)
    kind = options.correlation.kind
    assert found.precision == (options.precision if kind == "pairs" else "fp64")
    assert found.widest_shell == max(2 * mole.bas_angular(n) + 1 for n in range(mole.nbas)) == 5
    assert found.primitives == sum(
        mole.bas_nprim(n) * (2 * mole.bas_angular(n) + 1) for n in range(mole.nbas)
    )
    x2c = mole.decontract_basis(aggregate=True)[0].nao if "relativity" in given else 0
    assert found.x2c_functions == x2c
    unexamined = options.functional is not None or options.solvent is not None
    default = "follow" if len(counts) == 2 else "auto"
    if unexamined or options.reference == "rohf":
        default = "off"
    stability = given.get("stability", default)
    window = tuple((n, nao - n) for n in counts) if stability == "auto" else ()
    assert found.frontier == window
    rohf = options.reference == "rohf"
    assert found.examined == (rohf or stability in ("full", "follow"))
    assert found.products == (5 if rohf else 30)
    assert found.starts == given.get("scf_starts", 1)
    assert found.checked == bool(given.get("check"))
    assert found.in_fields == (6 if given.get("polarizability") else 0)
    assert found.points == {"laplace": 12, "rpa": 56}.get(kind, 0)
    assert found.single_exchange is False  # below 128 functions
    variables = {"b2plyp": 4, "drpa": 4, "ks": 5}.get(options.method, 0)
    assert found.kernel == (len(counts) * variables) ** 2
    if options.functional is None:
        assert (found.grid, found.finer_grid, found.coarse_grid) == (0, 0, 0)
    else:
        level = int(given["grid"])
        assert found.grid == grid_points(mole, level)
        assert found.finer_grid > found.grid and found.coarse_grid in (0, grid_points(mole, 1))
        assert found.coarse_grid == 0  # below 64 functions
    separated = options.method == "drpa"
    assert found.operators == (2 if separated else 1)
    assert found.exchange == (options.method != "ks")
    assert (found.surface > 100) == ("solvent" in given)
    cycles = 12  # to 1e-6 Eh; 1.7 per digit, and three digits fewer after a good start
    if "scf_conv_tol" in given:
        cycles = 10
    if "scf_from" in given:
        cycles = 7
    assert found.cycles == cycles
    assert found.scf_columns == 0
    kept = with_kept_pairs(found, SimpleNamespace(naux_scf=found.naux_scf, mole=mole))
    columns = nao * (nao + 1) // 2 if options.scf == "df" else 0
    assert kept == replace(found, scf_columns=columns)


def test_sizes_that_are_stored() -> None:
    """Of hydroxide with a ghost; orbitals as they were found."""
    molecule = read("charge=-1", "O 0 0 0", "H 0 0 0.97", "@He 0 0 2")
    options = Options(basis="6-31g", frozen_virtual=1, backend="cpu", threads=1)
    made = system.resolve(molecule, system.set_up_run(options, "test"), Silent())
    spaces: Any = [SimpleNamespace(nocc=4, nvir=5), SimpleNamespace(nocc=3, nvir=6)]
    orbitals: Any = SimpleNamespace(mo_energy=np.zeros((2, 12)))
    core: Any = SimpleNamespace(orbitals=2)
    found = system.system_sizes(made, orbitals, spaces, core, options)
    fitted = (made.naux_scf, int(made.auxmole.nao))
    assert (
        found == Sizes(3, 10, 13, 12, *fitted, 2, (4, 3), (5, 6), 1) and fitted[0] > fitted[1] > 0
    )


def test_no_program_freezes_more_than_there_are_beta_electrons() -> None:
    """Psi4's core of sodium has five orbitals, and a quartet four beta electrons."""
    options, heard = Options(basis="sto-3g", frozen_core="auto", backend="cpu", threads=1), Heard()
    made = system.resolve(
        read("multiplicity=4", "Na 0 0 0"), system.set_up_run(options, "test"), Silent()
    )
    assert (system.frozen_core(made, options, heard).orbitals, heard.warnings) == (1, [])


@pytest.mark.parametrize(
    ("atoms", "multiplicity", "left_out", "enough"),
    [
        (("H 0 0 0", "H 0 0 0.9"), 3, 0, False),  # two electrons of one spin in two functions
        (("O 0 0 0", "H 0 0 0.97"), 2, 0, True),  # five in six
        (("O 0 0 0", "H 0 0 0.97"), 2, 1, False),
    ],
)
def test_each_spin_needs_a_virtual_orbital(
    atoms: tuple[str, ...], multiplicity: int, left_out: int, enough: bool
) -> None:
    options = Options(basis="sto-3g", frozen_virtual=left_out)
    with nullcontext() if enough else recorded_error(InputError):
        workload_sizes(read(f"multiplicity={multiplicity}", *atoms), options, Silent())


def test_workers_of_a_backend_need_memory_beyond_the_threads() -> None:
    limits, given = CpuBackend(3).limits, {"program": 0, "budget": 10**12}
    planned = [memory.memory_plan(WORK, limits, count, **given) for count in (1, 3, 4)]
    assert planned[0] == planned[1] != planned[2]


def test_pairs_of_two_spins_are_cut_for_the_longer_rows() -> None:
    limits = Limits(("mixed",), 9, 10**6, 1, 10**10, edge_elements=3600)
    found, shorter = (tiling.rectangle_cuts(4, 3, limits, 60 * nvir) for nvir in (16, 15))
    assert cuts_of(WORK, limits)[0, 1] == found != shorter


def test_shapes_leave_out_spins_with_nothing_to_correlate() -> None:
    assert plan.trainium_shapes(WORK) == (Shape(4, 15, 60), Shape(3, 16, 60))
    for spins in ((Spin(5, 4, 15), Spin(1, 0, 19)), (Spin(5, 4, 15), Spin(20, 19, 0))):
        assert plan.trainium_shapes(replace(WORK, spins=spins)) == (Shape(4, 15, 60),)


# --- devices that make B --------------------------------------------------------------------------


def backend(*, fits: bool, transforms: bool, cost: Callable[..., float] | None = None) -> Any:
    limits = SimpleNamespace(fits=fits, transforms=transforms)
    return SimpleNamespace(limits=limits, transform_seconds=cost or (lambda spins, nao: 7.0))


NOBODY = (Spin(1, 0, 19),)


@pytest.mark.parametrize(
    ("fits", "transforms", "spins", "lacking", "refused"),
    [
        (False, True, WORK.spins, 0, None),
        (False, True, WORK.spins, 1, ResourceError),
        (True, False, WORK.spins, 10**12, None),
        (False, False, WORK.spins, 0, UnsupportedByBackend),
        (True, True, NOBODY, 0, UnsupportedByBackend),
        (False, True, NOBODY, 0, UnsupportedByBackend),
    ],
    ids=["room", "a byte less", "of its own", "none", "nobody", "nobody with room"],
)
def test_a_device_makes_b_where_it_can_and_the_host_has_room(
    fits: bool, transforms: bool, spins: tuple[Spin, ...], lacking: int, refused: Any
) -> None:
    """Down to the last byte."""
    room = devices.host_bytes(WORK) - lacking
    with nullcontext() if refused is None else recorded_error(refused):
        device = backend(fits=fits, transforms=transforms)
        plan.require_device(device, replace(WORK, spins=spins), room)


def test_a_device_without_a_kernel_for_these_sizes_is_refused() -> None:
    asked = Mock(side_effect=KernelError("too wide"))
    with recorded_error(UnsupportedByBackend):
        plan.require_device(backend(fits=False, transforms=True, cost=asked), WORK, 10**12)
    asked.assert_called_once_with(plan.trainium_shapes(WORK), 20)


def plan_of(**how: Any) -> Plan:
    limits = CpuBackend(1).limits
    held = memory.memory_plan(WORK, limits, 1, program=0, budget=10**12)
    return replace(
        Plan(WORK, held, NO_TIME, Pace(1.0, 1.0, 1), Rates(), tiles=3),
        **how,
    )


@pytest.mark.parametrize("fits", [False, True])
def test_times_of_a_run_whose_b_a_device_makes(fits: bool) -> None:
    """Its program replaces the transformation; the host fits all pairs of functions, or none."""
    setup: Any = SimpleNamespace(
        options=SimpleNamespace(transform="host"), backend=backend(fits=fits, transforms=True)
    )
    host = plan._seconds(setup, plan_of())
    setup.options.transform = "device"
    found = plan._seconds(setup, plan_of())
    assert found.transform == 7.0
    fit = 0.0 if fits else host.fit * (20 * 21 // 2) / (4 * 15 + 3 * 16)
    assert found.fit == pytest.approx(fit, rel=1e-12)
    more = 7.0 - host.transform + fit - host.fit
    assert found.total == pytest.approx(host.total + more, rel=1e-12)
    assert (found.scf, found.integrals, found.pair_energies) == (
        host.scf,
        host.integrals,
        host.pair_energies,
    )


def test_times_of_a_plan_are_those_of_its_parts() -> None:
    """Of traffic at the measured speed of the disk, of a gradient, and of a certificate."""
    work, held = replace(WORK, task="gradient"), memory.GradientMemory(scf_on_disk=True)
    speed, moved = DiskRates(1e8, 2e8, "today", 3e8), Traffic(10**8, 3 * 10**8, 10**7, 10**7, 10**9)
    full = replace(FULL, gradient=held)
    planned = plan_of(work=work, traffic=moved, disk=speed, memory=full)
    setup: Any = SimpleNamespace(options=SimpleNamespace(transform="host"))
    alone = time_text(work, Rates(), moved, speed, held)
    assert plan._seconds(setup, planned) == alone
    of_another_disk = plan._seconds(setup, replace(planned, disk=None))
    assert of_another_disk == time_text(work, Rates(), moved, DiskRates(), held) != alone
    cached = time_text(work, Rates(), replace(moved, cached=True), speed, held)
    assert alone.fit - cached.fit == pytest.approx(10**7 * (1 / 2e8 - 1 / 3e8), rel=1e-6)
    certificate = CertificatePlan(None, FULL, rows=3, passes=2)
    more = certificate_seconds(work, None, 3, 2, Rates())
    found = plan._seconds(setup, replace(planned, certificate=certificate))
    assert found == replace(alone, fitting_certificate=more, total=alone.total + more)


def test_a_certificate_of_an_exact_run_has_no_other_scf_or_fit() -> None:
    """For the seven orbitals of both spins, in one pass for each."""
    setup: Any = SimpleNamespace(backend=CpuBackend(3), threads=3, budget=10**10)
    found = plan._certificate(setup, setup, replace(WORK, naux_scf=0, scf_columns=1))
    needs = (found.memory.scf, found.memory.mp2, found.memory.disk)
    assert (found.dense, found.rows, found.passes, *needs) == (None, 7, 2, 0, 0, 0)


@pytest.mark.parametrize(("at_once", "passes"), [(12, 2), (5, 6), (1, 24)])
def test_a_certificate_needs_a_second_fit_and_some_exact_rows(
    at_once: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 of 53 orbitals in eight strata, as many of a spin at a time as there is room for, after one
    SCF without what the run does beside it."""
    alone = replace(WORK, nao=70, spins=(Spin(50, 28, 20), Spin(27, 25, 43)), scf_columns=900)
    extras = {"starts": 3, "examined": True, "x2c_functions": 99, "rectangles": 11}
    work = replace(alone, frontier=((2, 3), (4, 5)), **extras)
    fitted: Any = SimpleNamespace(auxmole=SimpleNamespace(nao=333))
    monkeypatch.setattr(plan, "densely_fitted", lambda system: fitted)
    monkeypatch.setattr(plan.three_center, "block_functions", lambda aux, nao: 17)
    monkeypatch.setattr(resources, "resident_memory", lambda: 10**8)
    rows, program = memory.exact_rows_stage(alone, 3, 12), 10**8 + (24 + 3 * 16) * 10**6
    setup: Any = SimpleNamespace(backend=CpuBackend(3), threads=3)
    setup.budget = program + memory.SLACK + rows.fixed + at_once * rows.least
    found = plan._certificate(fitted, setup, work)
    dense = replace(alone, naux=333, block_functions=17)
    limits = CpuBackend(3).limits
    planned = memory.memory_plan(dense, limits, 3, program=program, budget=setup.budget)
    assert found == CertificatePlan(dense, replace(planned, exact_rows=rows), 24, passes)


def test_programs_are_compiled_before_the_scf() -> None:
    """With the transformation where the device makes B."""
    asked: list[Any] = []
    heard = Heard()
    for compiles, transform, expected in (
        (False, "host", []),
        (True, "host", [(plan.trainium_shapes(WORK), 0)]),
        (True, "device", [(plan.trainium_shapes(WORK), 20)]),
    ):
        asked.clear()
        setup: Any = SimpleNamespace(
            options=SimpleNamespace(transform=transform),
            backend=SimpleNamespace(
                name="nki",
                limits=SimpleNamespace(compiles=compiles),
                prepare=lambda spins, nao: asked.append((spins, nao)),
            ),
        )
        plan.prepare_programs(setup, WORK, heard)
        assert asked == expected
    assert heard.stages == ["compiled kernels of nki"] * 2


# --- parts of a run -------------------------------------------------------------------------------

TIMES = Timings(1.0, 2.0, 4.0, 8.0, 16.0, 100.0, 32.0, 64.0)
FULL = MemoryPlan(
    program=1,
    budget=10**9,
    scf_in_core=11,
    scf_fit=Stage(1, 2, 3),
    scf_read=Stage(4, 5, 6),
    scf_disk=12,
    mp2_in_core=13,
    mp2_integrals=Stage(7, 8, 9),
    mp2_solve=Stage(10, 11, 12),
    mp2_pairs=Stage(13, 14, 15),
    mp2_disk=14,
    integral_block=15,
    mp2_check=Stage(16, 17, 18),
    scf_response=16,
    scf_gathered=17,
)
NO_SCF = {
    "scf_in_core": 0,
    "scf_gathered": 0,
    "scf_fit": Stage(),
    "scf_read": Stage(),
    "scf_disk": 0,
    "scf_response": 0,
}


@pytest.mark.parametrize(
    ("part", "stages", "gone"),
    [
        ("all", STAGES, {}),
        (
            "up to b",
            ("scf", "integrals", "fit", "transform"),
            {"mp2_pairs": Stage(), "mp2_check": Stage(), "mp2_disk": 0},
        ),
        (
            "from orbitals",
            (
                "integrals",
                "fit",
                "transform",
                "pair_energies",
                "fitting_certificate",
                "gradient",
            ),
            NO_SCF,
        ),
        (
            "from b",
            ("pair_energies", "fitting_certificate"),
            {**NO_SCF, "mp2_integrals": Stage(), "mp2_solve": Stage(), "mp2_disk": 0},
        ),
    ],
)
def test_a_part_of_a_run_takes_its_stages_alone(
    part: str, stages: tuple[str, ...], gone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PARTS[part] == (stages, gone)
    found = TIMES.only(PARTS[part][0])
    left = [name for name in STAGES if name not in stages]
    assert all(getattr(found, name) == 0.0 for name in left)
    assert all(getattr(found, name) == getattr(TIMES, name) for name in stages)
    assert found.total == 100.0 - sum(getattr(TIMES, name) for name in left)
    assert Timings(2.0, 4.0, 8.0, 16.0, 32.0, 200.0, 64.0, 128.0) == TIMES + TIMES
    # The memory of that part; of a finer grid there is another B.
    monkeypatch.setattr(memory, "memory_plan", lambda *_, **__: FULL)
    monkeypatch.setattr(plan, "_program", None)
    options = Options(basis="x")
    setup: Any = SimpleNamespace(backend=CpuBackend(1), threads=1, budget=10**9, options=options)
    assert plan._memory(WORK, setup, part) == replace(FULL, **gone)
    finer = plan._memory(replace(WORK, finer_grid=9), setup, part)
    if part == "up to b":
        assert finer == replace(FULL, **gone)
    elif part == "from b":
        assert finer == replace(FULL, **NO_SCF, mp2_disk=0, grid_disk=14)
    else:
        assert finer == replace(FULL, **gone, grid_disk=14)
    checked: Any = SimpleNamespace(**{**vars(setup), "options": replace(options, check=True)})
    check = memory.check_stage(WORK, 1)
    if part != "up to b":
        assert plan._memory(WORK, checked, part).mp2_check == check
    device: Any = SimpleNamespace(
        **{**vars(setup), "options": replace(options, transform="device")}
    )
    held = plan._memory(WORK, device, "all")
    assert held == replace(FULL, mp2_in_core=devices.host_bytes(WORK))
    laplace: Any = SimpleNamespace(
        **{**vars(setup), "options": replace(options, method="sos-laplace")}
    )
    assert plan._memory(WORK, laplace, "all") == memory.without_pairs(FULL, WORK)


@pytest.mark.parametrize(
    ("part", "task", "screened", "precision", "checked", "fitted"),
    [
        ("all", "energy", True, "mixed", True, True),
        ("up to b", "energy", True, "fp64", True, True),
        ("from orbitals", "energy", False, "mixed", True, True),
        ("from orbitals", "gradient", True, "mixed", True, True),
        ("from b", "energy", False, "mixed", False, False),
    ],
)
def test_the_work_of_a_part(
    part: str,
    task: str,
    screened: bool,
    precision: str,
    checked: bool,
    fitted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the SCF keeps, precision, frontier orbitals and blocks of integrals; with one thread each
    pair of 7 and 6 orbitals is a tile."""
    speed = DiskRates(1.0, 2.0, "today", 3.0)
    monkeypatch.setattr(rates, "load_disk", lambda root: speed)
    options = Options(basis="6-31g", threads=1, precision="mixed", stability="auto", backend="cpu")
    setup = system.set_up_run(options, "test")
    made = system.resolve(MOLECULES["cyano radical"], setup, Silent())
    core = system.frozen_core(made, options, Silent())
    found = plan.make_plan(made, setup, core, "uhf", part=part, task=task)
    assert (found.work.task, found.work.precision) == (task, precision)
    shown = (found.work.scf_columns, found.work.frontier, found.work.block_functions)
    assert [bool(one) for one in shown] == [screened, checked, fitted]
    assert (found.tiles, found.disk) == (7 * 8 // 2 + 6 * 7 // 2 + 7 * 6, speed)
    hybrid = replace(options, method="b2plyp", xc=None, grid="0", stability="off")
    again = plan.make_plan(made, replace(setup, options=hybrid), core, "uhf", part=part, task=task)
    assert again.work.block_functions  # with orbitals of the finer grid there is another B


def test_what_a_run_before_has_left_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def planned(*_: Any, program: int, budget: int, grown: int) -> MemoryPlan:
        asked.append((program, grown))
        return replace(FULL, program=program - grown, budget=budget)

    monkeypatch.setattr(memory, "memory_plan", planned)
    monkeypatch.setattr(plan, "_program", None)
    setup: Any = SimpleNamespace(
        backend=CpuBackend(1), threads=1, budget=10**9, options=Options(basis="x")
    )
    for resident in (100, 130, 120, 90):
        monkeypatch.setattr(resources, "resident_memory", lambda here=resident: here)
        plan._memory(WORK, setup, "all")
    assert asked == [(100, 0), (130, 30), (120, 20), (90, 0)]


@pytest.mark.parametrize("with_b", [3000, 3])
@pytest.mark.parametrize("part", ["all", "from b"])
def test_a_gradient_is_planned_beside_the_whole_energy(
    part: str, with_b: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may need more with B in memory, with the widest shell of both fitting sets and the threads
    in use."""
    whole, energy = replace(FULL, scf_disk=77), replace(FULL, mp2_in_core=1000)
    monkeypatch.setattr(plan, "_memory", lambda *_: whole)
    monkeypatch.setattr(plan, "gradient_with_b", lambda work, threads: with_b * threads)
    monkeypatch.setattr(plan, "gradient_memory", lambda *given: given)
    places = (np.array([0, 1, 6]), np.array([0, 7, 8]))
    aux, jk = (SimpleNamespace(ao_loc_nr=lambda place=place: place) for place in places)
    made: Any = SimpleNamespace(auxmole=aux, jk_auxmole=jk)
    setup: Any = SimpleNamespace(active=2, threads=5)
    found: Any = plan._with_gradient(energy, made, setup, WORK, part)
    in_core = max(1000, 2 * with_b)
    beside = replace(energy if part == "all" else whole, mp2_in_core=in_core)
    assert found == replace(energy, mp2_in_core=in_core, gradient=(WORK, beside, 7, 2))


# --- scratch folders ------------------------------------------------------------------------------


@pytest.mark.parametrize(("disk", "cached"), [(0, False), (1, True), (700, True), (701, False)])
def test_what_is_on_disk_stays_cached_beside_what_the_run_may_take(
    disk: int, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1000 bytes are free; the run may take 300 more than it uses."""
    monkeypatch.setattr(resources, "resident_memory", lambda: 200)
    monkeypatch.setattr(resources, "available_memory", lambda: 1000)
    held: Any = SimpleNamespace(disk=disk)
    setup: Any = SimpleNamespace(budget=500)
    assert plan._stays_cached(held, setup) == cached
    setup.budget = 100  # less than it uses
    assert plan._stays_cached(held, setup) == (0 < disk <= 1000)


def test_a_folder_that_cannot_be_measured_is_no_reason_not_to_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = Heard()
    setup: Any = SimpleNamespace(scratch=Path("/scratch"))
    speed = DiskRates(1.0, 2.0, "today", 3.0)
    monkeypatch.setattr(
        rates, "measure_disk", lambda root: speed if root == setup.scratch else None
    )
    assert plan._measured_disk(setup, heard) is speed
    assert heard.stages == ["measuring the speed of /scratch, once"]

    def fail(root: Path) -> DiskRates:
        raise ResourceError("it is full")

    monkeypatch.setattr(rates, "measure_disk", fail)
    assert plan._measured_disk(setup, heard) is None
    assert heard.warnings == ["it is full; times of disk traffic are those of another disk"]
