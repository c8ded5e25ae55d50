"""The torch-xla lane for real, on PJRT_DEVICE=CPU: residency, graphs, transfers.

The plain K3 kernel is replaced by a stand-in, which XLA traces; everything else is the real lane.
The counts are torch-xla's own. scripts/run_xla_tests.sh makes the environment and runs these.
"""

from __future__ import annotations

from importlib.util import find_spec
from math import prod

import numpy as np
import pytest

from dfmp2.backends.base import Shape
from dfmp2.mp2.pairs import pair_energies
from dfmp2.trainium import calls
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.costs.model import CHIPS
from tests import xla_twin
from tests.test_backends import fitted

TWIN = "xla-cpu-twin"
NVIR, NAUX = 40, 100


@pytest.fixture(scope="module")
def executor():
    if find_spec("torch_xla") is None:
        pytest.skip("torch-xla is not installed, see scripts/run_xla_tests.sh")
    return xla_twin.XlaTwinExecutor()


def metric(name):
    """(samples, sum) of a metric of torch-xla."""
    import torch_xla.debug.metrics as metrics

    data = metrics.metric_data(name)
    return (int(data[0]), int(data[1])) if data else (0, 0)


def run(executor, nocc):
    """Pair energies of `nocc` occupied orbitals, and the growth of graphs and transferred bytes."""
    names = ("CompileTime", "OutboundData", "InboundData")
    before = [metric(name) for name in names]
    backend = NkiBackend(TWIN, executor, "plain")
    pairs = pair_energies([backend.put(*fitted(nocc, NVIR, NAUX), "mixed")], backend)
    graphs, up, down = (
        tuple(np.subtract(metric(n), b)) for n, b in zip(names, before, strict=True)
    )
    return pairs, graphs[0], up[1], down[1]


def predicted_bytes(nocc):
    """Bytes to and from the device from the cost model (B, results) and the calls' own tables."""
    shape = Shape(nocc, NVIR, NAUX)
    price = catalogue.best(catalogue.find("pair_energy"), shape, CHIPS["trn1"], "plain")
    resident, down = catalogue.b_bytes(shape), price.total(lambda engines: engines.written)
    found = calls.pair_energy_calls(*shape)
    once = 4 * prod(found[0].arguments["tables"].shape)
    return resident + once + sum(
        4 * prod(call.arguments["neg"].shape) * call.count for call in found
    ), down


@pytest.mark.xla
def test_graphs_do_not_depend_on_the_number_of_blocks(executor):
    counts = [run(executor, nocc)[1] for nocc in (32, 48, 80)]  # 2, 3 and 5 blocks
    # One for off-diagonal and one for diagonal blocks, whatever the molecule
    assert counts == [2, 0, 0]


@pytest.mark.xla
@pytest.mark.parametrize("nocc", [8, 24, 33])
def test_transfers_equal_the_predicted_bytes(executor, nocc):
    before = executor.proof.bytes_up, executor.proof.bytes_down
    _, _, up, down = run(executor, nocc)
    assert (up, down) == predicted_bytes(nocc)
    assert (executor.proof.bytes_up - before[0], executor.proof.bytes_down - before[1]) == (
        up,
        down,
    )


@pytest.mark.xla
@pytest.mark.parametrize("diagonal", [True, False])
def test_what_comes_back_is_what_was_computed(executor, diagonal):
    form = calls.PairForm(64, 128, "plain")
    rng = np.random.default_rng(1)
    tensors = {
        name: rng.standard_normal(tensor.shape, np.float32)
        for name, tensor in form.tensors(diagonal).items()
    }
    constants = form.constants(diagonal)
    given = {name: executor.upload(array) for name, array in tensors.items()}
    found = executor.launch(
        f"{calls.KERNELS}.pair_energy", "pair_energy_block", {**given, **constants}
    )
    expected = xla_twin.stand_in(
        **{name: a.astype(np.float64) for name, a in tensors.items()}, **constants
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
