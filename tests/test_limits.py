"""Every limit refuses at its value and accepts just below it; plans, bounds and stored data have
these numbers."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from scipy.special import stdtrit

import dfmp2
from dfmp2.errors import NumericalError, ResourceError
from dfmp2.execution import items
from dfmp2.execution.batch import plan_item
from dfmp2.execution.manifest import BatchItem
from dfmp2.execution.pool import WorkerShare
from dfmp2.host import files
from dfmp2.integrals.metric import CONDITION_LIMIT, EIGENVALUE_CUT, factorise
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.xyz import parse_xyz
from dfmp2.mp2 import certificate, check, energy, laplace
from dfmp2.mp2.calculation import State, StoredB
from dfmp2.mp2.pairs import PairEnergies
from dfmp2.mp2.properties import Polarizability
from dfmp2.mp2.result import Certificate, MP2Result, NativeEnergies
from dfmp2.options import Options, make_options
from dfmp2.options.values import KEPT
from dfmp2.output import checkpoint as checkpoints
from dfmp2.output.checkpoint import FileCheckpoint, checkpoint_of
from dfmp2.output.hdf5_datasets import pack_records, unpack
from dfmp2.output.state import decode, encode
from dfmp2.planning.memory import SLACK, VARIES, GradientMemory, MemoryPlan, Stage
from dfmp2.planning.sizes import Sizes
from dfmp2.progress import Silent
from dfmp2.studies import task
from tests.awkward import EXACT, MOLECULES, mole_of
from tests.conftest import MOLECULES as EVERYDAY
from tests.conftest import only_free_in
from tests.recorded import recorded_error

# --- memory, disk ---------------------------------------------------------------------------------

PROGRAM = 300
PLAN = MemoryPlan(
    program=PROGRAM,
    budget=10**9,
    scf_in_core=1000,
    scf_fit=Stage(50, 20, 200),
    scf_read=Stage(60, 30, 100),
    scf_disk=5000,
    mp2_in_core=2000,
    mp2_integrals=Stage(40, 10, 500),
    mp2_solve=Stage(70, 25, 300),
    mp2_pairs=Stage(80, 15, 400),
    mp2_disk=7000,
    integral_block=100,
    exact_rows=Stage(2500, 100, 900),
    gradient=GradientMemory(peak=10, disk=3000, needed=5, least=5, comfortable=20),
)


def budget(room: int) -> int:
    """The memory that leaves `room` bytes beside the program."""
    return PROGRAM + SLACK + room


ALONE = replace(PLAN, exact_rows=Stage(), gradient=GradientMemory())
FORCES = GradientMemory("gradient", peak=3500, needed=3500, least=3500, comfortable=4000)
DEMANDING = replace(ALONE, exact_rows=Stage(7000, 100, 900))


@pytest.mark.parametrize(
    ("parts", "least", "comfortable", "peak"),
    [
        ({}, 95, 2000, 2000),
        ({"scf_in_core": 8000}, 95, 8000, 8000),
        ({"scf_in_core": 8000, "scf_fit": Stage(4000, 20, 200)}, 4020, 8000, 8000),
        ({"scf_in_core": 8000, "scf_read": Stage(4500, 30, 200)}, 4530, 8000, 8000),
        ({"scf_in_core": 3000, "scf_fit": Stage(4000, 20, 200)}, 3000, 3000, 3000),
        ({"scf_response": 9000}, 95, 10000, 10000),
        ({"mp2_in_core": 9000, "mp2_integrals": Stage(6000, 10, 500)}, 6010, 9000, 9000),
        ({"mp2_in_core": 9000, "mp2_solve": Stage(6100, 20, 500)}, 6120, 9000, 9000),
        ({"mp2_in_core": 9000, "mp2_pairs": Stage(6200, 30, 500)}, 6230, 9000, 9000),
        ({"mp2_check": Stage(4000, 10, 500)}, 4010, 4500, 4500),
        ({"exact_rows": Stage(2500, 100, 900)}, 2600, 3400, 3400),
        ({"gradient": FORCES}, 3500, 4000, 3500),
        ({"certificate": DEMANDING}, 7100, 7900, 7900),
    ],
)
def test_every_part_of_a_plan_counts_where_it_is_the_largest(
    parts: dict[str, Any], least: int, comfortable: int, peak: int
) -> None:
    """On disk its fixed and smallest blocks, in memory all of it; a certificate is planned
    separately."""

    def within(room: int) -> MemoryPlan:
        plan = replace(ALONE, **parts, budget=budget(room))
        if plan.certificate is None:
            return plan
        return replace(plan, certificate=replace(plan.certificate, budget=budget(room)))

    assert within(0).least == PROGRAM + VARIES + SLACK + least
    assert within(0).comfortable == PROGRAM + VARIES + SLACK + comfortable
    assert within(10**6).predicted_peak == budget(peak)
    within(least).require()
    assert within(least).predicted_peak == budget(least)
    with recorded_error(ResourceError):
        within(least - 1).require()


@pytest.mark.parametrize(
    ("room", "disk"), [(2000, 0), (1999, 7000), (1000, 7000), (999, 7000), (95, 7000)]
)
def test_scratch_space_is_the_larger_of_both_steps_and_that_of_the_gradient(
    room: int, disk: int
) -> None:
    """B still exists when the gradient's arrays are added; the integrals of the SCF are gone."""
    plan = replace(PLAN, exact_rows=Stage(), budget=budget(room))
    assert (plan.disk, plan.scratch) == (disk, disk + 3000)
    assert replace(plan, scf_disk=9000).disk == (9000 if room < 1000 else disk)
    blocks = [replace(plan, mp2_in_core=n, budget=budget(290)).integral_bytes for n in (290, 291)]
    assert blocks == [100, 50]  # all of them beside B, or half beside the rest on disk
    # B of two grids
    assert replace(plan, grid_disk=400).disk == (7400 if room < 2000 else 0)
    certificate = replace(plan, scf_disk=100, mp2_disk=250)
    assert replace(plan, certificate=certificate).disk == (7250 if room < 2000 else 0)


def test_an_item_of_a_batch_asks_for_free_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 kB; below that the item waits, since the disk is full for all, and leaves no file."""
    path, target = tmp_path / "h2.xyz", tmp_path / "h2.h5"
    path.write_text("2\n\nH 0 0 0\nH 0 0 0.74\n")
    options = Options(basis="sto-3g", backend="cpu")
    given = items.read_input(BatchItem("h2", str(path), path, options, {}, target))
    for free, elsewhere, status in ((10**4 - 1, 10**15, "pending"), (10**4, 0, "complete")):
        monkeypatch.setattr(files, "free_disk", only_free_in(tmp_path, free, elsewhere))
        row = items.compute_item(given, None, None, "test", WorkerShare(1, 4 * 10**9))
        assert (row.status, row.exit_code or 0) == (status, 0)
        assert target.exists() == (status == "complete")


@pytest.mark.parametrize("there", [True, False])
def test_an_item_is_planned_where_its_scratch_folder_is_not(tmp_path: Path, there: bool) -> None:
    """That of this host stands for one that only the computing host has."""
    scratch = tmp_path / "scratch"
    if there:
        scratch.mkdir()
    options = Options(basis="sto-3g", backend="cpu", scratch=str(scratch))
    path, target = tmp_path / "h2.xyz", tmp_path / "h2.h5"
    hydrogen = Molecule(("H", "H"), [[0, 0, 0], [0, 0, 1.4]])
    item = BatchItem("h2", str(path), path, options, {}, target)
    found = plan_item(item, hydrogen, WorkerShare(1, 4 * 10**9))
    assert found.setup.scratch.is_dir()
    assert (found.setup.scratch == scratch) is there


# --- locks and what a stopped run leaves ----------------------------------------------------------


def test_the_file_of_a_lock_is_gone_before_the_lock_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a lock taken by another process meanwhile would lose its file."""
    target, there = tmp_path / "x.h5", list[bool]()
    release = FileLock.release

    def watched(lock: Any, *given: Any, **more: Any) -> None:
        there.append(Path(lock.lock_file).exists())
        release(lock, *given, **more)

    monkeypatch.setattr(FileLock, "release", watched)
    with files.locked(target):
        assert files.lock_file(target).exists() and not there
    assert there[0] is False and not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def methylene() -> MP2Result:
    """A small run of an open shell."""
    options = {**EXACT, "basis": "sto-3g", "stability": "off"}
    return dfmp2.run(MOLECULES["methylene"], **options, method="sos-mp2", listener=Silent())


def test_a_converged_scf_is_saved_at_once(tmp_path: Path, methylene: MP2Result) -> None:
    """If a checkpoint exists already: the time between saves is then ignored."""
    kept = FileCheckpoint(tmp_path / "x.h5")
    kept.begin({"basis": "a"}, Silent())
    reference = methylene.reference
    kept.add_reference(reference)
    assert not kept.saved  # the run is over before the first save is due
    kept.write()
    before = checkpoint_of(tmp_path / "x.h5").read_bytes()
    kept.add_reference(replace(reference, cycles=reference.cycles + 1))
    after = checkpoint_of(tmp_path / "x.h5").read_bytes()
    assert before != after and decode(after).reference.cycles == reference.cycles + 1


def test_the_scratch_folder_of_a_checkpoint_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []
    monkeypatch.setattr(checkpoints, "remove_kept", removed.append)
    b = StoredB(str(tmp_path / "one"), ((1, 1, 1),), (("0" * 64,),), 1.0, 0, 0.0)
    file = checkpoint_of(tmp_path / "one.h5")
    file.write_bytes(encode(State({}, None, None, b, {})))
    checkpoints.remove(file)
    assert removed == [tmp_path / "one"] and not file.exists()


# --- numbers that bound others --------------------------------------------------------------------


def test_the_bound_of_a_sample_is_that_of_cochran_and_satterthwaite() -> None:
    """Two strata of 40 and 25 pairs of which 5 and 4 are drawn, and one of 3 that is drawn
    whole."""
    rng = np.random.default_rng(2)
    sizes = ((40, 5), (25, 4), (3, 3))
    strata = [(n, 1e-8 * rng.standard_normal((k, 3)), -0.01 - rng.random((k, 3))) for n, k in sizes]
    energy = np.array([-30.0, -40.0, -70.0])
    total = sum(n * d.mean(axis=0) for n, d, _ in strata)
    known = sum(n * e.mean(axis=0) for n, _, e in strata)
    ratio = total / known
    parts = [
        n * (n - k) / k * np.var(d - ratio * e, axis=0, ddof=1)
        for (n, k), (_, d, e) in zip(sizes[:2], strata, strict=False)
    ]
    variance = parts[0] + parts[1]
    freedom = variance**2 / (parts[0] ** 2 / 4 + parts[1] ** 2 / 3)
    expected = np.abs(total + ratio * (energy - known)) + stdtrit(freedom, 0.975) * np.sqrt(
        variance
    )
    assert certificate._bounds(strata, energy) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("error", "accepted"), [(0.99e-7, True), (0.9999e-7, True), (1.01e-7, False), (math.nan, False)]
)
def test_a_bound_is_refused_above_the_tolerance(error: float, accepted: bool) -> None:
    size = 12
    matrix = -np.ones((size, size))
    weights = size * size  # each pair i < j counts twice
    pairs = PairEnergies(matrix, (np.zeros((size, size)),))

    def redo(channel: Any, rows: Any, columns: Any) -> Any:
        exact = matrix[rows, columns] * (1 + error / weights)
        return np.column_stack([np.zeros(len(rows)), exact])

    found = certificate.bound_errors(pairs, redo, 1e-7)
    assert found.accepted == accepted
    if accepted:
        assert found.correlation_error == pytest.approx(error, rel=1e-3)
    assert replace(found, correlation_error=1e-7).accepted
    assert not replace(found, correlation_error=float(np.nextafter(1e-7, 1))).accepted


def test_the_bound_of_a_laplace_transform_has_the_factor_of_the_method(
    methylene: MP2Result,
) -> None:
    """1.3 times the rule's largest relative error times the exact energy, not the rule's energy."""
    options = replace(methylene.options, method="sos-laplace", tolerance=1e-4)
    result = energy.mp2_energy(methylene.molecule, options, listener=Silent())
    found = result.quadrature
    (relative,) = [
        error
        for points, error in laplace._fitted(math.log(found.highest / found.lowest))
        if points.shape[1] == found.points
    ]
    expected = 1.3 * relative * abs(found.energy) / (1 - relative)
    assert found.error == pytest.approx(expected, rel=1e-6) and found.error <= 1e-4
    assert abs(result.correlation_energy - methylene.correlation_energy) <= found.error


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [12, 30])
def test_the_condition_of_a_metric_is_that_before_the_cut(size: int, sign: int) -> None:
    """The smallest eigenvalue counts, whether it is dropped or not, and if rounding has made it
    negative."""
    turn = np.linalg.qr(np.random.default_rng(size).standard_normal((size, size)))[0]
    values = np.geomspace(1e-13, 10.0, size)
    values[0] *= sign
    metric = (turn * values) @ turn.T
    factor = factorise((metric + metric.T) / 2)
    kept = values >= EIGENVALUE_CUT * 10.0
    assert factor.dropped == (~kept).sum() > 0
    assert factor.condition == pytest.approx(1e14, rel=0.2)
    assert 10.0 / values[kept].min() < 0.5e14 and CONDITION_LIMIT < 1e14


PARTS = ("scf_difference", "same_spin_difference", "opposite_spin_difference")


def test_a_check_is_of_our_energies_against_theirs(methylene: MP2Result) -> None:
    ours = methylene
    theirs = NativeEnergies("x", ours.scf_total_energy - 0.1, same_spin=-0.02, opposite_spin=-0.3)
    made = check.native_check(ours.reference, ours.pairs, theirs, 1e-8)
    expected = (0.1, ours.pairs.same_spin_energy + 0.02, ours.pairs.opposite_spin_energy + 0.3)
    assert [getattr(made, part) for part in PARTS] == pytest.approx(expected, abs=1e-12)
    assert made.correlation_difference == pytest.approx(expected[1] + expected[2], abs=1e-12)
    assert made.scf_total_energy == ours.scf_total_energy - 0.1
    assert (made.same_spin, made.opposite_spin, made.allowed) == (-0.02, -0.3, 1e-8)
    for bounds in ((3e-8, 1e-8, 2e-8), (1e-8, 3e-8, 2e-8), (1e-8, 2e-8, 3e-8)):
        proof = Certificate(9, 4, *bounds, 1e-9, tolerance=1e-7, repeated_in_fp64=False)
        assert check.allowed_difference(proof, "mixed") == pytest.approx(4e-8)
        assert check.allowed_difference(proof, "fp64") == pytest.approx(1e-8)
    assert check.allowed_difference(None, "mixed") == check.allowed_difference(None, "fp64") == 1e-8


SOUND = Polarizability(
    relaxed=np.array([[9.0, 0.5, -0.2], [0.5, 7.0, 0.3], [-0.2, 0.3, 20.0]]),
    scf=np.eye(3),
    from_energies=np.array([9.0, 7.0, 20.0]),
    dipole_difference=0.0,
    field=0.001,
    allowed=1e-3,
    seconds=1.0,
)


def test_b_ends_before_what_is_measured_beside_the_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check needs the room taken by B, also by that of the frontier orbitals."""
    made: list[weakref.ref[Any]] = []
    alive: list[bool] = []
    build, native = energy.build_b, check.native_energies

    def watched(*given: Any, **more: Any) -> Any:
        fitted = build(*given, **more)
        made.extend(weakref.ref(b) for b in (*fitted.b, *fitted.frontier))
        return fitted

    def look(*given: Any, **more: Any) -> Any:
        alive.extend(b() is not None for b in made)
        return native(*given, **more)

    monkeypatch.setattr(energy, "build_b", watched)
    monkeypatch.setattr(check, "native_energies", look)
    radical = parse_xyz(EVERYDAY["nh2"], file="nh2").molecule
    result = dfmp2.run(radical, "6-31g", check=True, threads=1, stability="auto")
    assert result.reference.stability is not None
    assert len(made) > 2  # of both spins, and of frontier orbitals
    assert alive == [False] * len(made)


@pytest.mark.parametrize(
    ("nspin", "nao", "nocc"),
    [(1, 30, (5, 4)), (2, 30, (5, 4)), (2, 6, (5, 4)), (2, 24, (16, 8))],
)
def test_four_centre_mp2_holds_its_integrals_and_those_of_pairs(
    nspin: int, nao: int, nocc: tuple[int, int]
) -> None:
    """In another basis than that of the run: ten more functions give ten more virtual orbitals."""
    sizes = Sizes(3, 9, 20, 20, 0, 50, 1, nocc, (19 - nocc[0], 19 - nocc[1]), 0)
    pairs = nao * (nao + 1) // 2
    alpha, beta = (n * max(0, 19 - n + nao - 20) for n in nocc)
    products = alpha * alpha
    if nspin == 2:
        products += alpha * beta + beta * beta
    most = max(30 * nao * nao * nspin, max(alpha, beta * (nspin == 2)) * pairs + products)
    assert check.required_bytes(sizes, nspin, nao) == 8 * (pairs * (pairs + 1) // 2 + most)


def test_a_check_that_pyscf_cannot_make_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no eigenvalue cut of the metric; the part of B that it may hold comes on top of the
    rest."""
    radical = parse_xyz(EVERYDAY["nh2"], file="nh2").molecule  # (5, 4) occupied, (2, 3) virtual
    allowed: list[float] = []

    def kernel(solver: Any) -> Any:
        allowed.append(solver.max_memory * 1e6)
        raise np.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr("pyscf.mp.dfump2_native.DFUMP2.kernel", kernel)
    monkeypatch.setattr(check, "resident_memory", lambda: 5 * 10**8)
    with recorded_error(NumericalError):
        dfmp2.run(radical, "sto-3g", check=True, threads=1, listener=Silent())
    naux = mole_of(radical, "def2-svp-ri").nao
    expected = 5 * 10**8 + 2 * naux**2 * 8 + 8 * 10**6
    assert expected < allowed[0] <= expected + 8 * naux * (5 * 2 + 4 * 3)


@pytest.mark.parametrize("fits", [True, False])
def test_a_study_measures_its_fitting_errors_only_if_the_certificate_fits_into_memory(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = SimpleNamespace(memory=SimpleNamespace(fits=fits), dense=True, rows=1)
    planned = SimpleNamespace(certificate=certificate, work=SimpleNamespace(spins=(None,)))
    monkeypatch.setattr(task, "_planned", lambda step: (None, planned))
    monkeypatch.setattr(task.time_plan, "certificate_seconds", lambda *_: 0.01)
    step = task.Step("it", "it", MOLECULES["chloramine"], make_options(basis="sto-3g"))
    found = task.certified([step])
    assert found.steps[0].options.certify_fit is fits
    assert found.note.startswith(
        "fitting errors: measured" if fits else "fitting errors: estimated"
    )


@pytest.mark.parametrize("kept", KEPT)
def test_numbers_that_json_cannot_hold_are_datasets_of_their_own(kept: str) -> None:
    """Also inside a tuple."""
    values = {"plain": 1.5, "lost": math.nan, "both": (1.0, math.inf), "text": "nan"}
    apart, records = pack_records(values, kept)
    assert apart.keys() == {"lost", "both"}
    assert unpack(records) == {"plain": 1.5, "text": "nan"}
