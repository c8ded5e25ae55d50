"""The same numbers whether integrals live in memory or on disk; a plan that keeps to any budget it accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import df, gto, scf

import dfmp2
from dfmp2 import memory
from dfmp2.backends.cpu import CpuBackend
from dfmp2.reference.density_fitting import FittedIntegrals
from dfmp2.reference.disk_integrals import DiskIntegrals, pair_blocks
from dfmp2.reference.pair_list import every_pair
from dfmp2.reference.room import Room
from dfmp2.result import MP2Result
from dfmp2.scratch.space import Space
from dfmp2.workload import Spin, Workload
from tests.conftest import write_molecules

INPUTS = Path(__file__).parent.parent / "inputs"
EXACT = {"precision": "fp64", "threads": 1}
MEGABYTE = 10**6


def set_variant(monkeypatch: pytest.MonkeyPatch, *, disk: bool) -> None:
    """Both stages in memory, or both on disk with as little of them in memory as can be."""
    for name in ("scf_fits_in_core", "mp2_fits_in_core"):
        monkeypatch.setattr(memory.MemoryPlan, name, property(lambda _: not disk))
    if disk:
        for name in ("pair_bytes", "read_bytes", "integral_bytes", "tensor_bytes"):
            monkeypatch.setattr(memory.MemoryPlan, name, property(lambda _: 1))


def both(monkeypatch: pytest.MonkeyPatch, compute: Any) -> tuple[MP2Result, MP2Result]:
    set_variant(monkeypatch, disk=False)
    held = compute()
    set_variant(monkeypatch, disk=True)
    return held, compute()


@pytest.mark.parametrize("name", ["h2o", "nh2", pytest.param("o2", marks=pytest.mark.slow)])
def test_energies_on_disk_equal_those_in_memory(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    held, stored = both(
        monkeypatch, lambda: dfmp2.run(INPUTS / f"{name}.xyz", "cc-pvdz", scratch=str(scratch), **EXACT)
    )
    assert stored.scf_total_energy == pytest.approx(held.scf_total_energy, abs=1e-10)
    assert stored.mp2_same_spin_correlation_energy == pytest.approx(held.mp2_same_spin_correlation_energy, abs=1e-10)
    assert stored.mp2_correlation_energy == pytest.approx(held.mp2_correlation_energy, abs=1e-10)
    assert held.storage is not None and stored.storage is not None
    assert (held.storage.scf_integrals, held.storage.fitted_tensor, held.storage.written) == ("memory", "memory", 0)
    assert (stored.storage.scf_integrals, stored.storage.fitted_tensor) == ("disk", "disk")
    sizes = stored.sizes
    b = sum(o * v for o, v in zip(sizes.nocc, sizes.nvir, strict=True)) // (1 if name != "h2o" else 2) * sizes.naux
    columns = sizes.nao * (sizes.nao + 1) // 2
    assert stored.storage.written == 8 * (sizes.naux_scf * columns + 2 * b)  # B raw, and once more fitted
    assert stored.storage.read > stored.storage.written
    assert stored.storage.folder == str(scratch) and list(scratch.iterdir()) == []


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("precision", ["fp64", "mixed"])
@pytest.mark.parametrize("spin", [0, 1])
def test_pair_energies_on_the_same_orbitals(
    backend: str, precision: str, spin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles and solves are the same; only the number of functions per product of the transformation differs."""
    if backend == "torch":
        pytest.importorskip("torch")
    atoms = "N 0 0 0; H 0 0.8 0.6; H 0 -0.8 0.6" + ("" if spin else "; H 0.9 0 -0.3")
    mole = gto.M(atom=atoms, basis="cc-pvdz", spin=spin, verbose=0)
    mf = (scf.UHF if spin else scf.RHF)(mole).run(conv_tol=1e-10, conv_tol_grad=1e-5)
    held, stored = both(monkeypatch, lambda: dfmp2.from_mean_field(mf, backend=backend, precision=precision, threads=2))
    for name, matrix in held.pairs.channels().items():
        np.testing.assert_allclose(
            stored.pairs.channels()[name], matrix, rtol=0, atol=1e-16 if precision == "fp64" else 1e-9
        )
    if held.certificate is not None and stored.certificate is not None:
        assert stored.certificate.correlation_error == pytest.approx(held.certificate.correlation_error, abs=1e-14)
    assert stored.storage is not None and stored.storage.scf_integrals == "none"


def test_singular_metric_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Six centres within 0.4 angstrom: fitting functions are dropped, so B has fewer of them than it had raw."""
    crowd = write_molecules(tmp_path) / "crowd.xyz"
    held, stored = both(monkeypatch, lambda: dfmp2.run(crowd, "aug-cc-pvtz", stability="off", **EXACT))
    assert held.diagnostics.metric_dropped > 0
    assert stored.diagnostics.metric_dropped == held.diagnostics.metric_dropped
    assert stored.mp2_total_energy == pytest.approx(held.mp2_total_energy, abs=1e-10)


MOLE = gto.M(
    atom="N 0 0 0; H 0 0.8 0.6; H 0 -0.8 0.6; H 0 9 0; H 0 18 0; H 0 27 0; H 0 36 0", basis="cc-pvdz", spin=1, verbose=0
)
AUX = df.addons.make_auxmol(MOLE, "cc-pvdz-jkfit")


@pytest.mark.parametrize(("pair_bytes", "read_bytes"), [(1, 1), (10**5, 10**5), (10**9, 10**9)])
def test_matrices_from_disk(pair_bytes: int, read_bytes: int, tmp_path: Path) -> None:
    """Any block size, densities of two spins with and without orbitals; pairs of distant functions are left out."""
    rng = np.random.default_rng(2)
    occupied = [rng.standard_normal((MOLE.nao, n)) for n in (5, 4)]
    held = FittedIntegrals(MOLE, AUX, 2).build()
    assert not held.pairs.complete
    density = np.stack([c @ c.T for c in occupied])
    with Space(tmp_path, 0) as space:
        stored = DiskIntegrals(MOLE, AUX, 2, Room(space, pair_bytes, read_bytes))
        for left, right in zip(held.matrices(occupied), stored.matrices(occupied), strict=True):
            np.testing.assert_allclose(right, left, atol=1e-10)
        for left, right in zip(held.get_jk(density), stored.get_jk(density), strict=True):  # PySCF's own builder
            np.testing.assert_allclose(right, left, atol=1e-10)
        assert stored.get_naoaux() == AUX.nao
        stored.discard()
        assert [file.name for file in next(tmp_path.iterdir()).iterdir()] == ["lock"]


def test_full_stability_reads_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    far = write_molecules(tmp_path) / "h2-far.xyz"
    held, stored = both(monkeypatch, lambda: dfmp2.run(far, "sto-3g", stability="full", **EXACT))
    assert held.reference.stability is not None and stored.reference.stability is not None
    assert stored.reference.stability.verdict == held.reference.stability.verdict
    assert "unstable" in stored.reference.stability.verdict


def test_pair_blocks_cover_the_triangle_once() -> None:
    for most in (1, 5_000, 100_000, 10**9):
        blocks = pair_blocks(MOLE, every_pair(MOLE.nao), AUX.nao, most)
        assert [b.t0 for b in blocks] == [0, *(b.t1 for b in blocks[:-1])]
        assert blocks[-1].t1 == MOLE.nao * (MOLE.nao + 1) // 2
        assert all((b.t1 - b.t0) * AUX.nao * 8 <= most or b.last == b.first + 1 for b in blocks)


# --- the plan -------------------------------------------------------------------------------------------


def workload(spins: int, precision: str) -> Workload:
    return Workload(
        nao=490,
        naux_scf=2366,
        naux=1708,
        spins=(Spin(81, 81, 409),) * spins,
        precision=precision,
        block_functions=66,
        widest_shell=6,
        frontier_elements=1792 * spins,
    )


@pytest.mark.parametrize("spins", [1, 2])
@pytest.mark.parametrize("precision", ["fp64", "auto"])
def test_every_accepted_budget_is_kept(spins: int, precision: str) -> None:
    def made(budget: int) -> memory.MemoryPlan:
        return memory.plan(
            workload(spins, precision),
            program=100 * MEGABYTE,
            budget=budget,
            workers=2,
            limits=CpuBackend(2).limits,
            edge=3,
        )

    ample = made(10**11)
    assert ample.disk == 0 and ample.fits
    assert ample.least < ample.comfortable / 5
    before = 0
    for budget in np.geomspace(ample.least, 1.2 * ample.comfortable, 40).astype(int):
        plan = made(int(budget) + 1)
        plan.require()
        assert before <= plan.predicted_peak <= plan.budget or plan.disk == 0
        assert plan.predicted_peak <= plan.budget
        assert plan.pair_bytes > 0 and plan.read_bytes > 0 and plan.tensor_bytes >= 3 * 3 * 409 * 1708 * 8
        whole = 2366 * 490 * 491 // 2 * 8
        assert plan.disk == max(
            0 if plan.scf_fits_in_core else whole, 0 if plan.mp2_fits_in_core else spins * 81 * 409 * 1708 * 8
        )
    assert made(ample.comfortable).disk == 0 and made(ample.comfortable - 1).disk > 0
    assert not made(ample.least - 1).fits and made(ample.least).fits


@pytest.mark.slow
@pytest.mark.parametrize("memory_given", ["270MB", "220MB"])
def test_peak_stays_near_the_budget(memory_given: str, tmp_path: Path) -> None:
    import os
    import subprocess

    from tests.conftest import COMMAND

    process = subprocess.Popen(
        [COMMAND, "run", INPUTS / "water-8.xyz", "--basis", "cc-pvdz", "--precision", "fp64", "--memory", memory_given],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert usage.ru_maxrss * 1024 <= 1.1 * int(memory_given[:-2]) * MEGABYTE + 200 * MEGABYTE
    result = dfmp2.read(tmp_path / "water-8.dfmp2.h5")
    assert result.mp2_total_energy == pytest.approx(-610.0169162773, abs=1e-8)
