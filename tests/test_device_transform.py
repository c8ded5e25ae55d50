"""B made by K1 and K2 in whole runs: energies, programs, certificate, restart, refusals, choice of the route."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyscf import gto

from dfmp2 import api, calibration, memory, planning, route
from dfmp2.backends.nki import lanes
from dfmp2.backends.nki.backend import NkiBackend
from dfmp2.backends.nki.calls import transform_calls
from dfmp2.backends.nki.cores import CoresBackend
from dfmp2.backends.nki.costs.shapes import Shape
from dfmp2.backends.nki.costs.transformation import predict, traffic
from dfmp2.backends.nki.executor import InterpreterExecutor
from dfmp2.backends.nki.programs import program_of, programs
from dfmp2.checkpoint.encoding import newest
from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import InputError, NumericalError, ResourceError, UnsupportedByBackend
from dfmp2.fitting import EIGENVALUE_CUT, MetricFactor, factorise, fit
from dfmp2.forecast import Rates
from dfmp2.io import hdf5
from dfmp2.io.schema import option_values
from dfmp2.mp2.pairs import pair_energies
from dfmp2.options import Options
from dfmp2.orbitals import ActiveSpace
from dfmp2.progress import Stopwatch
from dfmp2.reference import integrals
from dfmp2.reference.untransformed import fitted_integrals
from dfmp2.untransformed import UntransformedTensor
from dfmp2.workload import Spin, Workload
from tests.conftest import MOLECULES, succeed
from tests.stand_in_nki.site import planted
from tests.test_checkpoint import InMemory, compute
from tests.test_nki_backend import GEOMETRIES, Quiet

ON_DEVICE = {"backend": "nki-interpreter", "transform": "device", "threads": 1, "listener": Quiet()}


@pytest.fixture
def launched(monkeypatch):
    """Programs that the interpreter launches, and where their outputs went."""
    seen = {"launch": [], "keep": []}
    inner = InterpreterExecutor.launch

    def launch(self, source, kernel, arguments):
        seen["launch"].append(program_of(source, kernel, arguments))
        return inner(self, source, kernel, arguments)

    def keep(self, source, kernel, arguments):
        seen["keep"].append(program_of(source, kernel, arguments))
        return inner(self, source, kernel, arguments)

    monkeypatch.setattr(InterpreterExecutor, "launch", launch)
    monkeypatch.setattr(InterpreterExecutor, "keep", keep)
    return seen


def molecule(folder: Path, name: str) -> Path:
    (folder / f"{name}.xyz").write_text(MOLECULES[name])
    return folder / f"{name}.xyz"


def details(result):
    return dict(line.split(": ", 1) for line in result.provenance.backend_details)


@pytest.mark.parametrize(("name", "most"), [("h2o", 4), ("nh2", 7)])
def test_a_molecule_equals_pyscf_with_few_programs(tmp_path, launched, name, most):
    result = api.run(molecule(tmp_path, name), "cc-pvdz", check=True, **ON_DEVICE)
    assert abs(result.check.same_spin_difference) < 1e-7
    assert abs(result.check.opposite_spin_difference) < 1e-7
    assert abs(result.check.correlation_difference) <= result.certificate.correlation_error + 1e-10
    assert result.certificate.sampled == result.certificate.pairs  # all of a small molecule, from float64
    assert 1e-12 < result.certificate.correlation_error < 1e-7
    assert details(result)["transformation"] == "device: asked for with --transform device"
    seen = {*launched["launch"], *launched["keep"]}
    assert {program.kernel for program in launched["keep"]} == {"full_transform"}  # B stays where it is
    assert {"half_transform", "full_transform"} < {program.kernel for program in seen}
    assert len(seen) <= most
    work = planning.sizes(result.molecule, result.options, Quiet())
    assert seen <= set(programs(planning.trainium_shapes(work), "trn1", work.nao))
    hdf5.write(result, tmp_path / "r.h5")
    assert hdf5.read(tmp_path / "r.h5").options == result.options


def test_both_spins_share_their_programs_whatever_their_virtual_orbitals(launched):
    """120 and 130 virtuals are one and two tiles of 128 columns: programs of their own would be eight."""
    rng = np.random.default_rng(3)
    raw = rng.standard_normal((20, 150 * 151 // 2)) * 0.01
    c = np.linalg.qr(rng.standard_normal((150, 150)))[0]
    tensors = [UntransformedTensor(raw, c[:, :n], c[:, 150 - v :]) for n, v in ((9, 120), (3, 130))]
    eps = [(-np.linspace(2, 1, t.shape[0]), np.linspace(0.5, 9, t.shape[1])) for t in tensors]
    device = NkiBackend("k", InterpreterExecutor())
    host = NkiBackend("k", InterpreterExecutor())
    made = device.put_untransformed(tensors, eps)
    sent = [host.put(t.rows(range(t.shape[0])), *e, "mixed") for t, e in zip(tensors, eps, strict=True)]
    found, expected = (pair_energies(operands, backend) for operands, backend in ((made, device), (sent, host)))
    for name, matrix in expected.channels().items():
        np.testing.assert_allclose(found.channels()[name], matrix, rtol=1e-5, atol=1e-6 * np.abs(matrix).max())
    launched["launch"].clear()
    launched["keep"].clear()
    pair_energies(device.put_untransformed(tensors, eps), device)
    seen = {*launched["launch"], *launched["keep"]}
    assert len(seen) <= 7
    assert seen == set(programs((Shape(9, 120, 20), Shape(3, 130, 20)), "trn1", 150))


def test_rows_of_b_are_those_that_the_host_fits():
    mole = gto.M(atom="N 0 0 0; H 0 0.8 0.6; H 0 -0.8 0.6; H 0.9 0 -0.3", basis="cc-pvdz", verbose=0)
    auxmole = gto.M(atom="N 0 0 0; H 0 0.8 0.6; H 0 -0.8 0.6; H 0.9 0 -0.3", basis="cc-pvdz-ri", verbose=0)
    c = np.linalg.qr(np.random.default_rng(0).standard_normal((mole.nao, mole.nao)))[0]
    space = ActiveSpace(c[:, :4], c[:, 4:], np.zeros(4), np.zeros(mole.nao - 4))
    metric = integrals.coulomb_metric(auxmole)
    values, vectors = np.linalg.eigh(metric)
    cut = vectors[:, 5:] / np.sqrt(values[5:])
    for factor in (factorise(metric), MetricFactor(cut, False, 1.0 / EIGENVALUE_CUT, 5)):
        a = fitted_integrals(mole, auxmole, factor, 1, Stopwatch(), 10**6)
        tensor = UntransformedTensor(a, space.c_occ, space.c_vir)
        blocks = integrals.transformed_blocks(mole, auxmole, [space], Stopwatch(), 1)
        (b,) = fit(blocks, factor, [(space.nocc, space.nvir)], auxmole.nao, 1, Stopwatch())
        assert tensor.shape == b.shape
        np.testing.assert_allclose(tensor.rows([3, 1]), b[[3, 1]], rtol=0, atol=1e-12)
        np.testing.assert_allclose(tensor[1], b[1], rtol=0, atol=1e-12)


def test_an_estimate_above_the_tolerance_is_refused(tmp_path):
    with pytest.raises(NumericalError, match="nki-interpreter has no float64: use --transform host, --backend cpu"):
        api.run(molecule(tmp_path, "h2o"), "sto-3g", tolerance=1e-15, **ON_DEVICE)


def test_resumed_with_the_same_bits_and_not_on_the_other_route():
    options = Options(basis="sto-3g", threads=1, backend="nki-interpreter", transform="device")
    whole, file = compute("nh2", options), InMemory()
    assert compute("nh2", options, Journal(file, every=0.0)) == whole
    states = [newest(content) for content in file.contents]
    for state in states[-1], states[len(states) // 2]:
        assert compute("nh2", options, Journal(InMemory(), state, every=0.0)) == whole
    with pytest.raises(InputError, match="--transform"):
        compute("nh2", replace(options, transform="host"), Journal(InMemory(), states[-1], every=0.0))


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_backends_that_take_b_from_the_host_refuse(call, backend):
    done = call("run", "h2o.xyz", "--basis", "sto-3g", "--backend", backend, "--transform", "device")
    assert (done.code, done.out) == (6, "")
    assert "--transform device: this backend takes B from the host" in done.message


def test_little_memory_is_refused_or_done_on_the_host(tmp_path, monkeypatch):
    monkeypatch.setattr(route, "host_bytes", lambda work: 10**13)
    with pytest.raises(ResourceError, match=r"--transform device holds 10\.00 TB of fitted integrals on the host"):
        api.run(molecule(tmp_path, "h2o"), "sto-3g", **ON_DEVICE)
    monkeypatch.setattr(memory.MemoryPlan, "mp2_fits_in_core", property(lambda _: False))
    result = api.run(molecule(tmp_path, "h2o"), "sto-3g", check=True, **(ON_DEVICE | {"transform": "auto"}))
    assert abs(result.check.correlation_difference) < 1e-7
    assert result.storage.fitted_tensor == "disk"
    assert details(result)["transformation"].startswith("host: ")


def work(nocc, nao, naux, spins=1):
    return Workload(nao, naux, naux, (Spin(nocc, nocc, nao - nocc),) * spins, "mixed", 100)


def choose(asked, rates, *, room=10**12, chip="trn1", nocc=60):
    w = work(nocc, 160, 400)
    return route.choose(asked, chip, planning.trainium_shapes(w), w, rates, room)


def test_the_faster_route_is_taken_and_the_reason_has_both_predictions():
    host = choose("auto", Rates())
    assert host.place == "host" and host.device.total > host.host.total
    assert (
        host.reason == f"predicted {host.device.total:.3g} s on the device (trn1), {host.host.total:.3g} s on the host"
    )
    rates = Rates(solve=1e15, transform=1e6)  # a host that solves at once and transforms slowly
    device = choose("auto", rates)
    assert device.on_device and device.device.total < device.host.total
    short = choose("auto", rates, room=10**6)
    assert not short.on_device and "MB do not fit into memory" in short.reason
    assert choose("host", rates).reason == "asked for with --transform host"
    with pytest.raises(UnsupportedByBackend, match="this backend takes B from the host"):
        choose("device", rates, chip="")


def test_auto_goes_the_faster_way_but_not_with_a_nearly_dependent_basis(tmp_path, monkeypatch):
    device = choose("auto", Rates(solve=1e15, transform=1e6))
    assert route.where_sound(device, 3e-2) is device
    assert route.where_sound(device, 2e-6).reason.endswith("an eigenvalue of 2e-06, too small for float32")
    monkeypatch.setattr(calibration, "load", lambda *_: Rates(solve=1e18, transform=1.0))
    monkeypatch.setattr(route, "sampled_orbitals", lambda spins: [0.0])  # a certificate that costs nothing
    given = ON_DEVICE | {"transform": "auto"}
    water = api.run(molecule(tmp_path, "h2o"), "sto-3g", check=True, **given)
    assert details(water)["transformation"].startswith("device: predicted ")
    assert abs(water.check.correlation_difference) < 1e-7
    crowd = api.run(molecule(tmp_path, "crowd"), "cc-pvdz", **given)  # six centres within 0.4 angstrom
    assert "too small for float32" in details(crowd)["transformation"]


@pytest.mark.slow
def test_what_float32_loses_with_diffuse_functions_is_found_and_refused(tmp_path):
    """Benzene in aug-cc-pVDZ: 2e-7 Eh are lost in K1 and K2, which `auto` would have left to the host."""
    (tmp_path / "benzene.xyz").write_text(GEOMETRIES["benzene"])
    with pytest.raises(NumericalError, match=r"exceeds the tolerance 1\.0e-07 Eh, .*use --transform host"):
        api.run(tmp_path / "benzene.xyz", "aug-cc-pvdz", **ON_DEVICE)
    wider = api.run(tmp_path / "benzene.xyz", "aug-cc-pvdz", tolerance=1e-6, check=True, **ON_DEVICE)
    assert 1e-8 < abs(wider.check.correlation_difference) < wider.certificate.correlation_error < 1e-6


def test_the_costs_are_those_of_the_formulas():
    spins = (Shape(60, 100, 400),)
    host, device, obstacle = route.costs(160, spins, "trn1", Rates(solve=1e9, transform=1e9))
    assert obstacle == ""
    assert host.fit == pytest.approx(400**2 * 6000 / 1e9)
    assert host.transform == pytest.approx(2 * 400 * 60 * 160 * 260 / 1e9)
    assert device.fit == pytest.approx(400**2 * 160 * 161 / 2 / 1e9)
    (sampled,) = route.sampled_orbitals(spins)
    assert 40 < sampled < 60  # 48 pairs of 1830
    assert device.transform == pytest.approx(host.transform * sampled / 60)
    found = predict(spins, 160, "trn1")
    # 2 tiles of basis functions, 4 slices of fitting functions, 1 group and 8 blocks of occupied orbitals.
    assert (found.calls, found.neffs) == (4 + 8, 2)
    up = 4 * (2 * 128**2) * 2 * 128 + 128 * 2 * 64 + 128 * 2 * 128 + 8 * (4 * 2 * 128) * 8 * 128
    assert found.up == 4 * up
    assert found.down == 4 * 4 * 256 * 64 * 128


def test_predicted_transfers_are_those_of_the_lane(tmp_path, monkeypatch):
    """UHF on the stand-in of AWS's packages: bytes, programs, and that B is never read back."""
    with planted(tmp_path, monkeypatch) as machine:
        machine.sound()
        executor = lanes.executor("nki")
        rng = np.random.default_rng(5)
        a, c = rng.standard_normal((30, 40 * 41 // 2)), rng.standard_normal((40, 40))
        tensors = [UntransformedTensor(a, c[:, :n], c[:, n:]) for n in (9, 7)]
        spins = tuple(Shape(*t.shape) for t in tensors)
        backend = NkiBackend("k", executor)
        backend.prepare(spins, 40)
        compiled = executor.proof.compiled
        operands = backend.put_untransformed(tensors, [(-np.ones(n), np.ones(40 - n)) for n in (9, 7)])
        found = predict(spins, 40, "trn1")
        assert (executor.proof.bytes_up, executor.proof.bytes_down) == (found.up, found.down)
        assert executor.launches == found.calls
        assert executor.proof.compiled == compiled <= 7
        for tensor, operand in zip(tensors, operands, strict=True):
            expected = NkiBackend("k", InterpreterExecutor()).put(
                tensor.rows(range(tensor.shape[0])), -np.ones(tensor.shape[0]), np.ones(tensor.shape[1]), "mixed"
            )
            for number, block in expected.b.blocks.items():
                raw = operand.b.blocks[number].value.numpy().view(np.float32)
                np.testing.assert_allclose(raw, block, rtol=0, atol=3e-6 * np.abs(block).max())


def test_a_run_on_the_compiled_lane(tmp_path, monkeypatch):
    with planted(tmp_path, monkeypatch) as machine:
        machine.sound()
        given = ON_DEVICE | {"backend": "nki"}
        result = api.run(molecule(machine.folder, "nh2"), "sto-3g", check=True, **given)
        assert abs(result.check.correlation_difference) < 1e-7
        told = details(result)
        # K1 and K2; the pair kernel for diagonal blocks and the one for two spins.
        assert told["programs"] == "4 launched, 4 compiled now, 0 found in the cache"
        assert told["kernel launches"] == "7"  # K1 and K2 for each spin, one block of pairs for each channel
        assert told["pairs redone in float64 meanwhile"].startswith("1, ")
        assert told["transformation"] == "device: asked for with --transform device"


def test_several_cores_take_b_from_the_host():
    single = NkiBackend("nki-interpreter", InterpreterExecutor())
    assert single.limits.transforms == "trn1"
    backend = CoresBackend("nki-interpreter", "interpreter", (0,), single.limits)
    try:
        assert backend.limits.transforms == ""
    finally:
        backend.close()


def test_plan_and_kernels_list_show_both_routes(call, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "measure", lambda backend, count: Rates())
    plan = succeed(call("plan", "h2o.xyz", "--basis", "cc-pvdz", "--backend", "nki-interpreter", "--json")).json
    assert plan["transform"]["place"] == "host" and plan["transform"]["chip"] == "trn1"
    assert plan["transform"]["device_seconds"]["total"] > plan["transform"]["host_seconds"]["total"] > 0
    forced = ("--backend", "nki-interpreter", "--transform", "device")
    text = succeed(call("plan", "h2o.xyz", "--basis", "cc-pvdz", *forced)).out
    assert "B is made on the device: asked for with --transform device" in text
    listed = succeed(call("kernels", "list", "h2o.xyz", "--basis", "cc-pvdz")).out
    assert "B is made on the host: predicted " in listed and "K1, K2 / s" in listed


def test_traffic_counts_fitted_integrals_once():
    one = traffic(list(transform_calls(300, 70, 200, 500)))
    two = traffic([*transform_calls(300, 70, 200, 500), *transform_calls(300, 70, 200, 500)])
    a = 4 * 3 * 128**2 * 3 * 128 * 4
    assert two[1] == 2 * one[1]
    assert two[0] == 2 * one[0] - a


def test_files_written_before_the_option_are_read():
    stored = {"basis": "cc-pvdz", "precision": "mixed"}
    assert Options(**option_values(stored, Options)) == Options(basis="cc-pvdz", precision="mixed")
