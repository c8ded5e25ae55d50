"""One set of tests for every lane that launches kernels: interpreter, AWS's simulator, Trainium.

Only the interpreter is always available. The others are skipped with a reason, or fail with
`--require MARKER`: `nki_simulator` (package nki), `nki` and `nki_xla` (a Trainium device, marked
`neuron` as well).
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_triangular

import dfmp2
from dfmp2.backends import contract
from dfmp2.backends.base import Tile
from dfmp2.backends.cpu import CpuBackend
from dfmp2.backends.untransformed import UntransformedTensor
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.pairs import pair_energies
from dfmp2.trainium import layout
from dfmp2.trainium.backend import NkiBackend, transform
from dfmp2.trainium.entry import refusal
from dfmp2.trainium.launch.executors import executor as launch_lane
from tests.conftest import MOLECULES, Heard
from tests.test_nki_kernels import launch, oracle, space, untransformed
from tests.twins import transform_twin

MARKS = {
    "nki-interpreter": (),
    "nki-simulator": (pytest.mark.nki_simulator,),
    "nki": (pytest.mark.neuron, pytest.mark.nki),
    "nki-xla": (pytest.mark.neuron, pytest.mark.nki_xla),
}

# contract cases that the interpreter runs by default; `dfmp2 kernels check` has its own tests
QUICK = 3
_OPEN = {}


def lanes(*names):
    """Parameters, each with the markers of its lane."""
    return [pytest.param(name, marks=MARKS[name]) for name in names or MARKS]


def cases():
    found = []
    for name, marks in MARKS.items():
        for number, case in enumerate(contract.CASES):
            slow = (pytest.mark.slow,) if name == "nki-interpreter" and number >= QUICK else ()
            names = f"{name}-{case.kind}-{case.nvir}-{case.right}"
            found.append(pytest.param(name, case, marks=(*marks, *slow), id=names))
    return found


def require(lane):
    """Skip unless the lane is available."""
    missing = None if lane == "nki-interpreter" else refusal(lane)
    if missing is not None:
        pytest.skip(f"lane {lane}: {missing}")


def opened(lane):
    """The executor of a lane, one per test run because a process can hold a device once."""
    require(lane)
    if lane not in _OPEN:
        _OPEN[lane] = launch_lane(lane)
    return _OPEN[lane]


def backend(lane):
    return NkiBackend(lane, opened(lane))


@pytest.mark.parametrize(("lane", "case"), cases())
def test_contract(lane, case):
    found = contract.examine_backend(backend(lane), case)
    assert found.passed, found


@pytest.mark.parametrize(
    "lane", [pytest.param("nki-interpreter", marks=pytest.mark.slow), *lanes(*list(MARKS)[1:])]
)
@pytest.mark.parametrize("variant", ["plain", "packed", "placed"])
def test_variants_where_the_last_row_tile_is_short(lane, variant):
    s = space(8, 160, 40)
    b = NkiBackend(lane, opened(lane), variant)
    operand = b.put(s.b, s.occ, s.vir, "mixed")
    terms = b.pair_terms(operand, operand, Tile(0, 8, 0, 8, True))
    for found, expected in zip((terms.direct, terms.exchange), oracle(s, 8, True), strict=True):
        assert found.sum() == pytest.approx(-expected.sum(), rel=3e-7)


@pytest.mark.parametrize("lane", lanes())
def test_products_and_the_triangular_solve(lane):
    rng = np.random.default_rng(11)
    a, b = rng.standard_normal((250, 260)), rng.standard_normal((250, 600))
    lower = np.tril(rng.standard_normal((250, 250))) * 0.02 + np.eye(250)
    right = rng.standard_normal((250, 700))
    solved = launch(opened(lane), "products", "trsm", factor=layout.pack_triangle(lower), b=right)
    for found, expected in (
        (launch(opened(lane), "products", "gemm", a=a, b=b, batches=1, columns=260), a.T @ b),
        (launch(opened(lane), "products", "syrk", a=a, identity=np.eye(128), columns=260), a.T @ a),
        (solved, solve_triangular(lower, right, lower=True)),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("lane", lanes())
def test_transform(lane):
    rng = np.random.default_rng(12)
    raw = rng.standard_normal((140, 60, 60))
    a, c_occ, c_vir = (
        raw + raw.transpose(0, 2, 1),
        rng.standard_normal((60, 9)),
        rng.standard_normal((60, 40)),
    )
    expected = list(layout.pack_b(transform_twin(a, c_occ, c_vir, np.float64), dtype=np.float64))
    executor = opened(lane)
    (made,) = transform([untransformed(a, c_occ, c_vir)], executor)
    for found, block in zip(made, expected, strict=True):
        np.testing.assert_allclose(
            executor.fetch(found), block, rtol=0, atol=2e-6 * np.abs(block).max()
        )


@pytest.mark.parametrize("lane", lanes())
def test_pair_terms_of_what_was_transformed(lane):
    """B kept on the device against B from the host, two spins with different virtual spaces."""
    rng = np.random.default_rng(13)
    raw = rng.standard_normal((30, 50 * 51 // 2)) * 0.01
    c = np.linalg.qr(rng.standard_normal((50, 50)))[0]
    tensors = [UntransformedTensor(raw, c[:, :n], c[:, n:]) for n in (9, 25)]
    eps = [(-np.linspace(2, 1, n), np.linspace(0.5, 9, 50 - n)) for n in (9, 25)]
    made = backend(lane).put_untransformed(tensors, eps)
    host = CpuBackend(1)
    exact = [
        host.put(t.rows(range(t.shape[0])), *e, "fp64") for t, e in zip(tensors, eps, strict=True)
    ]
    found, expected = pair_energies(made, backend(lane)), pair_energies(exact, host)
    assert found.same_spin_energy == pytest.approx(expected.same_spin_energy, rel=1e-6)
    assert found.opposite_spin_energy == pytest.approx(expected.opposite_spin_energy, rel=1e-6)


@pytest.mark.parametrize("lane", lanes("nki-simulator", "nki", "nki-xla"))
@pytest.mark.parametrize("molecule", ["h2o", "nh2"])
def test_a_molecule_equals_pyscf(lane, molecule):
    require(lane)
    given = {"backend": lane, "check": True, "threads": 1, "listener": Heard()}
    result = dfmp2.run(Molecule.from_string(MOLECULES[molecule]), "cc-pvdz", **given)
    assert abs(result.check.same_spin_difference) < 1e-7
    assert abs(result.check.opposite_spin_difference) < 1e-7
    details = dict(detail.split(": ", 1) for detail in result.provenance.backend_details)
    assert details["lane"] == lane
    assert int(details["kernel launches"].split()[0]) >= 1
