"""B computed by K12 in whole runs: energies, programs, certificate, restart, errors, choice of the
method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dfmp2.backends.base import Shape
from dfmp2.backends.untransformed import UntransformedTensor
from dfmp2.errors import InputError, NumericalError
from dfmp2.integrals.metric import EIGENVALUE_CUT, MetricFactor
from dfmp2.interop import python
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.pairs import pair_energies
from dfmp2.options import Options
from dfmp2.output import hdf5
from dfmp2.output.checkpoint import FileCheckpoint
from dfmp2.planning import plan
from dfmp2.scf.jk import fit_columns
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.calls import programs
from dfmp2.trainium.costs.catalogue import predict_transform
from dfmp2.trainium.launch import executors
from dfmp2.trainium.launch.executors import InterpreterExecutor
from tests.conftest import MOLECULES, Heard
from tests.faults import recorded
from tests.recorded import recorded_error
from tests.stand_in_nki.site import planted
from tests.test_checkpoint import compute
from tests.test_nki_backend import GEOMETRIES

ON_DEVICE = {"backend": "nki-interpreter", "transform": "device", "threads": 1, "listener": Heard()}


@pytest.fixture
def launched(monkeypatch):
    """Programs that the interpreter launches."""
    seen = set()
    inner = InterpreterExecutor._run

    def run(self, program, arguments):
        seen.add(program)
        return inner(self, program, arguments)

    monkeypatch.setattr(InterpreterExecutor, "_run", run)
    return seen


@pytest.mark.parametrize("functions", [0.5, 1, 3, 100])
def test_rows_of_b_are_made_in_blocks_of_fitting_functions(monkeypatch, functions):
    """B of some orbitals in any order, by the formula; existing ones are not computed again."""
    rng, nao, naux = np.random.default_rng(3), 6, 8
    whole = rng.standard_normal((naux, nao, nao))
    whole += whole.transpose(0, 2, 1)
    rows, columns = np.tril_indices(nao)
    c = rng.standard_normal((nao, nao))
    tensor = UntransformedTensor(whole[:, rows, columns], c[:, :4], c[:, 4:])
    monkeypatch.setattr("dfmp2.backends.untransformed.BLOCK_BYTES", int(functions * 8 * nao * nao))
    expected = np.einsum("Pmn,mi,na->iaP", whole, c[:, :4], c[:, 4:], optimize=True)
    assert tensor.shape == expected.shape
    np.testing.assert_allclose(tensor.rows([2, 0]), expected[[2, 0]], atol=1e-12)
    monkeypatch.setattr("dfmp2.backends.untransformed.unpacked", lambda *_: pytest.fail("again"))
    np.testing.assert_allclose(tensor[0], expected[0], atol=1e-12)
    assert tensor.rows([]).shape == (0, 2, naux)


@pytest.mark.parametrize(("name", "most"), [("h2o", 2), ("nh2", 5)])
def test_a_molecule_equals_pyscf_with_few_programs(tmp_path, launched, name, most):
    result = python.run(Molecule.from_string(MOLECULES[name]), "6-31g", check=True, **ON_DEVICE)
    differences = result.check.same_spin_difference, result.check.opposite_spin_difference
    assert max(map(abs, differences)) < 1e-7
    assert abs(result.check.correlation_difference) <= result.certificate.correlation_error + 1e-10
    # All of a small molecule, from float64
    assert result.certificate.sampled == result.certificate.pairs
    assert 1e-12 < result.certificate.correlation_error < 1e-7
    told = "transformation: device: asked for with --transform device"
    assert told in result.provenance.backend_details
    assert len(launched) <= most
    work = plan.workload_sizes(result.molecule, result.options, Heard())
    assert launched <= set(programs(plan.trainium_shapes(work), "trn1", work.nao))
    hdf5.write(result, tmp_path / "r.h5")
    assert hdf5.read(tmp_path / "r.h5").options == result.options


def test_both_spins_share_their_programs_whatever_their_virtual_orbitals(launched):
    """120 and 130 virtuals are one and two tiles of 128 columns: programs of their own would be
    eight."""
    rng = np.random.default_rng(3)
    raw = rng.standard_normal((20, 150 * 151 // 2)) * 0.01
    c = np.linalg.qr(rng.standard_normal((150, 150)))[0]
    tensors = [UntransformedTensor(raw, c[:, :n], c[:, 150 - v :]) for n, v in ((9, 120), (3, 130))]
    eps = [(-np.linspace(2, 1, t.shape[0]), np.linspace(0.5, 9, t.shape[1])) for t in tensors]
    device = NkiBackend("k", InterpreterExecutor())
    pair_energies(device.put_untransformed(tensors, eps), device)
    assert len(launched) <= 6
    assert launched == set(programs((Shape(9, 120, 20), Shape(3, 130, 20)), "trn1", 150))


def test_columns_are_fitted_by_a_metric_that_was_cut():
    cut, raw = np.random.default_rng(0).standard_normal((2, 9, 9))
    factor = MetricFactor(cut[:, 4:], False, 1.0 / EIGENVALUE_CUT, 4)
    found = fit_columns(raw, factor, [7, 9], 1)
    np.testing.assert_allclose(found, cut[:, 4:].T @ raw, rtol=1e-12, atol=1e-12)


def test_resumed_with_the_same_bits_and_not_on_the_other_route(tmp_path):
    options = Options(basis="sto-3g", threads=1, backend="nki-interpreter", transform="device")
    target = tmp_path / "x.h5"
    with recorded() as states:
        whole = compute("nh2", options, FileCheckpoint(target))
    middle = FileCheckpoint(target, states[len(states) // 2], in_batch=True)
    assert compute("nh2", options, middle) == whole
    with recorded_error(InputError):
        compute("nh2", replace(options, transform="host"), FileCheckpoint(target, states[-1]))


@pytest.mark.slow
def test_what_float32_loses_with_diffuse_functions_is_found_and_refused():
    """Benzene in aug-cc-pVDZ, which `auto` would have left to the host. The loss itself is 2e-9 to
    2e-7 Eh, depending on the processor."""
    benzene = Molecule.from_string(GEOMETRIES["benzene"])
    with pytest.raises(
        NumericalError, match=r'exceeds the tolerance 1\.0e-07 Eh, .*use transform="host"'
    ):
        python.run(benzene, "aug-cc-pvdz", **ON_DEVICE)
    wider = python.run(benzene, "aug-cc-pvdz", tolerance=1e-6, check=True, **ON_DEVICE)
    assert abs(wider.check.correlation_difference) < wider.certificate.correlation_error
    assert 1e-7 < wider.certificate.correlation_error < 1e-6


def test_predicted_transfers_are_those_of_the_lane(tmp_path, monkeypatch):
    """UHF on the stand-in for AWS's packages: the same bytes, and B is never read back."""
    with planted(tmp_path, monkeypatch) as machine:
        machine.sound()
        executor = executors.executor("nki-xla")
        rng = np.random.default_rng(5)
        a, c = rng.standard_normal((30, 40 * 41 // 2)), rng.standard_normal((40, 40))
        tensors = [UntransformedTensor(a, c[:, :n], c[:, n:]) for n in (9, 7)]
        energies = [(-np.ones(n), np.ones(40 - n)) for n in (9, 7)]
        operand, _ = NkiBackend("k", executor).put_untransformed(tensors, energies)
        found = predict_transform([Shape(*t.shape) for t in tensors], 40, "trn1")
        assert (executor.proof.bytes_up, executor.proof.bytes_down) == (found.uploaded, 0)
        assert executor.proof.launches == found.calls
        fetched = executor.fetch(operand.b.blocks[0])
        assert executor.proof.bytes_down == 4 * fetched.size > 0
