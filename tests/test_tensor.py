"""`dfmp2.tensor`: every primitive on every available backend, against NumPy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from dfmp2 import tensor as dt
from dfmp2.backends import registry
from dfmp2.errors import BackendUnavailable, InputError, UnsupportedByBackend
from tests.recorded import recorded_error

LANES = [("cpu", "float64"), ("cpu", "float32"), ("torch", "float64"), ("torch", "float32")]
LANES += [
    (row.name, "float32")
    for row in registry.BACKENDS
    if row.name.startswith("nki") and row.probe() is None
]
TOLERANCE = {"float64": 1e-12, "float32": 3e-6}
pytestmark = pytest.mark.filterwarnings("error:The given NumPy array is not writable")


@pytest.fixture(params=LANES, ids="-".join)
def lane(request):
    """A backend and a type that it supports."""
    return request.param


def numbers(dtype, *shape, seed=0):
    """An array that may not be written to."""
    array = np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)
    array.flags.writeable = False
    return array


def check(found, expected):
    """Require the same kind and type, and equality to rounding."""
    assert (
        isinstance(found, np.ndarray)
        and str(found.dtype) in TOLERANCE
        and found.shape == expected.shape
    )
    wide = np.asarray(expected, np.float64)
    assert np.abs(found - wide).max() <= TOLERANCE[str(found.dtype)] * np.abs(wide).max()


def wide(*arrays):
    return [array.astype(np.float64) for array in arrays]


@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (100, 70, 200), (128, 129, 127), (8, 16, 2048)]
)
def test_gemm_of_any_shape_with_alpha_and_beta(lane, m, k, n):
    backend, dtype = lane
    a, b, c = numbers(dtype, m, k), numbers(dtype, n, k).T, numbers(dtype, m, n, seed=1)
    x, y, z = wide(a, b, c)
    check(dt.gemm(a, b, backend=backend), x @ y)
    check(dt.gemm(a, b, alpha=2.0, beta=-1.5, c=c, backend=backend), 2 * x @ y - 1.5 * z)
    added = numbers(dtype, m, m, seed=2)
    found = dt.syrk(a, alpha=2.0, beta=-1.5, c=added, backend=backend)
    check(found, 2 * x @ x.T - 1.5 * wide(added)[0])
    for alpha, beta in ((1.0, -1.5), (2.0, 0.0)):  # one without the other
        check(dt.gemm(a, b, alpha=alpha, beta=beta, c=c, backend=backend), alpha * x @ y + beta * z)


@pytest.mark.bits
@pytest.mark.parametrize("size", [1, 127, 129, 300])
def test_symmetric_products_are_symmetric_to_the_bit(lane, size):
    """Whatever the library and the processor's kernels do on either side of the diagonal."""
    backend, dtype = lane
    a = numbers(dtype, size, 130)
    square = dt.syrk(a, alpha=0.7, backend=backend)
    check(square, 0.7 * wide(a)[0] @ a.T)
    np.testing.assert_array_equal(square, square.T)


@pytest.mark.parametrize(
    ("name", "array"), [("cpu", np.array), ("torch", torch.tensor), ("nki-interpreter", np.array)]
)
def test_the_upper_half_of_a_symmetric_product_counts(name, array):
    device = registry.select_backend(name, "auto", 1)[0].tensors()
    np.testing.assert_array_equal(
        device._mirrored(array([[1.0, 2.0], [3.0, 4.0]])), [[1, 2], [2, 4]]
    )


@pytest.mark.parametrize(
    "expression",
    ["ij,jk->ik", "bp,ap", "mi,mnP->inP", "bij,bkj->kbi", "i,j->ji", "iap,jbp->iajb", "ijk,kji->i"],
)
def test_einsum_is_that_of_numpy(lane, expression):
    backend, dtype = lane
    terms = expression.split("->")[0].split(",")
    sizes = {letter: 3 + 5 * place for place, letter in enumerate(sorted(set("".join(terms))))}
    a, b = (numbers(dtype, *(sizes[x] for x in term), seed=k) for k, term in enumerate(terms))
    check(dt.einsum(expression, a, b, backend=backend), np.einsum(expression, *wide(a, b)))


def test_batches_symmetric_products_and_triangles(lane):
    backend, dtype = lane
    a, b, c = numbers(dtype, 3, 40, 50), numbers(dtype, 3, 50, 20), numbers(dtype, 3, 40, 20)
    check(
        dt.gemm_batch(a, b, alpha=0.5, beta=2.0, c=c, backend=backend),
        0.5 * wide(a)[0] @ b + 2.0 * c,
    )
    check(dt.syrk(a[0].T, backend=backend), wide(a[0])[0].T @ a[0])
    # Its other half must not be read
    whole = (0.05 * numbers(dtype, 140, 140) + np.eye(140)).astype(dtype)
    right = numbers(dtype, 140, 33)
    for lower, triangle in ((True, np.tril(whole)), (False, np.triu(whole))):
        expected = np.linalg.solve(*wide(triangle, 2 * right))
        check(dt.trsm(whole, right, alpha=2.0, lower=lower, backend=backend), expected)


def test_tensors_of_pytorch_come_back_as_such(lane):
    backend, dtype = lane
    a, b = torch.tensor(numbers(dtype, 30, 20)), torch.tensor(numbers(dtype, 20, 10))
    there = dt.gemm(dt.to_device(a, backend=backend), b)
    for found in (
        dt.gemm(a, b, backend=backend),
        dt.from_device(there),
        dt.einsum("ij,jk->ki", a, b, backend=backend).T,
    ):
        assert isinstance(found, torch.Tensor) and found.dtype == a.dtype
        check(found.numpy(), wide(a.numpy())[0] @ b.numpy())
    held = [dt.to_device(one, backend=backend) for one in (a, a.numpy())]
    a *= 2  # what was sent stays
    for one in held:
        np.testing.assert_array_equal(2 * np.asarray(dt.from_device(one)), a)
    triangle = torch.from_numpy(np.triu(numbers(dtype, 20, 20)) + 9 * np.eye(20, dtype=dtype))
    found = dt.trsm(triangle, b, lower=False, backend=backend)
    check(found.numpy(), np.linalg.solve(*wide(triangle.numpy(), b.numpy())))


def problem(dtype, nocc=5, nvir=25, naux=40, nao=30):
    """Fitted integrals, orbitals, energies, and B, (ia|jb) and e_ij in float64."""
    a = 0.1 * numbers(dtype, naux, nao, nao)
    a = a + a.transpose(0, 2, 1)
    c_occ, c_vir = 0.1 * numbers(dtype, nao, nocc), 0.1 * numbers(dtype, nao, nvir)
    occ, vir = -np.linspace(2.0, 0.5, nocc), np.linspace(0.1, 3.0, nvir)
    b = np.einsum("pmn,mi,na->iap", *wide(a, c_occ, c_vir))
    t = np.einsum("iap,jbp->iajb", b, b)
    gaps = occ[:, None, None, None] + occ[:, None] - vir[:, None, None] - vir
    pairs = (t * (2 * t - t.transpose(0, 3, 2, 1)) / gaps).sum((1, 3))
    return a, c_occ, c_vir, occ, vir, b, t, pairs


def test_energies_from_b_and_from_t_and_from_what_stays_on_the_device(lane):
    backend, dtype = lane
    a, c_occ, c_vir, occ, vir, b, t, expected = problem(dtype)
    check(dt.ao_to_mo(a, c_occ, c_vir, backend=backend), b)
    made = dt.ao_to_mo(dt.to_device(a, backend=backend), c_occ, c_vir)
    check(dt.from_device(made), b)
    b, t = b.astype(dtype), t.astype(dtype)
    flat = t.reshape(125, 125)
    sent = [dt.to_device(x, backend=backend) for x in (b, t, flat)]
    for integrals in (b, t, flat, *sent, made, dt.einsum("iap,jbp->iajb", sent[0], sent[0])):
        pairs = dt.mp2_energy(integrals, occ, vir, pairs=True, backend=backend)
        assert np.abs(pairs - expected).max() <= TOLERANCE[dtype] * np.abs(expected).max(), (
            integrals
        )
        assert dt.mp2_energy(integrals, occ, vir, backend=backend) == pytest.approx(
            pairs.sum(), rel=1e-14
        )
    for energies in ((occ - 1, vir), (occ, vir + 1)):  # the same B with other energies
        shifted = dt.mp2_energy(made, *energies)
        whole = dt.mp2_energy(b, *energies, backend=backend)
        assert shifted == pytest.approx(whole, rel=TOLERANCE[dtype])
        assert abs(shifted / expected.sum() - 1) > 0.1


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
def test_products_and_energies_of_empty_arrays_are_those_of_numpy(lane, shape):
    (backend, dtype), (nocc, nvir, naux) = lane, shape
    shapes = [shape, (nocc, nvir) * 2, (naux, 4, 4), (4, nocc), (4, nvir)]
    given = [np.zeros(one, dtype) for one in shapes]
    sent = [dt.to_device(one, backend=backend) for one in given]
    made = [dt.ao_to_mo(*sent[2:]), dt.einsum("iap,jbp->iajb", sent[0], sent[0])]
    assert [dt.from_device(one).shape for one in made] == shapes[:2]
    for integrals in (*given[:2], *sent[:2], *made):
        pairs = dt.mp2_energy(integrals, -np.ones(nocc), np.ones(nvir), pairs=True, backend=backend)
        assert pairs.shape == (nocc, nocc) and not pairs.any()
    flat, lower = given[0].reshape(nocc * nvir, naux), np.eye(max(1, naux), dtype=dtype)
    assert not dt.syrk(flat, backend=backend).any()
    right = np.ones((len(lower), nocc * nvir), dtype)
    np.testing.assert_array_equal(dt.trsm(lower, right, backend=backend), right)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda a: dt.gemm(a, a[:3]), InputError),
        (lambda a: dt.gemm(a, a, beta=1.0), InputError),
        (lambda a: dt.gemm(a, a, beta=1.0, c=a[:2]), InputError),
        (lambda a: dt.gemm(a, a.astype(np.float32)), InputError),
        (lambda a: dt.gemm(a.astype(int), a.astype(int)), InputError),
        (lambda a: dt.gemm([[1.0]], a), InputError),
        (lambda a: dt.gemm(torch.ones(2, 2, requires_grad=True), a), InputError),
        (lambda a: dt.gemm(a, a, backend="abacus"), BackendUnavailable),
        (lambda a: dt.gemm(a, a, backend="nki"), BackendUnavailable),
        (lambda a: dt.gemm(a, a, backend="nki-interpreter"), UnsupportedByBackend),
        (
            lambda a: dt.gemm(dt.to_device(a, backend="cpu"), dt.to_device(a, backend="torch")),
            InputError,
        ),
        (lambda a: dt.gemm(dt.to_device(a, backend="cpu"), a, backend="torch"), InputError),
        (lambda a: dt.gemm(dt.to_device(a), a, alpha=2.0), UnsupportedByBackend),
        (lambda a: dt.from_device(a), InputError),
        (lambda a: dt.einsum("ij,jk,kl->il", a, a), InputError),
        (lambda a: dt.einsum("ii,ij->j", a, a), InputError),
        (lambda a: dt.einsum("ij,jk->i", a, a), InputError),
        (lambda a: dt.einsum("ij,jk->ikl", a, a), InputError),
        (lambda a: dt.syrk(a[0]), InputError),
        (lambda a: dt.trsm(a, a[:2]), InputError),
        (lambda a: dt.trsm(np.triu(a, 1), a), InputError),
        (lambda a: dt.trsm(dt.to_device(a), a, lower=False), InputError),
        (lambda a: dt.ao_to_mo(a[None], a[:3], a), InputError),
        (lambda a: dt.mp2_energy(a[None], -(a[0] ** 2), a[0] ** 2), InputError),
        (lambda a: dt.mp2_energy(a, np.ones(2), np.zeros(2)), InputError),
        (lambda a: dt.plan("ij,jk", (2, 3), (4, 5)), InputError),
        (lambda a: dt.plan("ij,jk", (2, 3), (3, 5), dtype="int8"), InputError),
        (lambda a: dt.gemm(a, a, c=a[:2]), InputError),
        (lambda a: dt.gemm(dt.to_device(a), a, beta=1.0, c=a), UnsupportedByBackend),
        (lambda a: dt.einsum("ij,jk->iik", a, a), InputError),
        (lambda a: dt.einsum("i1,1k->ik", a, a), InputError),
        (lambda a: dt.mp2_energy(a, np.array([-np.inf, 0.0]), np.ones(2)), InputError),
        (lambda a: dt.mp2_energy(a, np.zeros((1, 2)), np.ones(2)), InputError),
        (lambda a: dt.mp2_energy(a, np.zeros(2), np.ones((1, 2))), InputError),
        (
            lambda a: dt.ao_to_mo(
                *(x.astype("f4") for x in (a[None], a, a)), backend="nki-interpreter"
            ),
            InputError,
        ),
    ],
)
def test_what_does_not_fit_is_named(call, error):
    with recorded_error(error):
        call(numbers("float64", 4, 4))


def test_the_module_is_loaded_when_it_is_asked_for():
    script = (
        "import sys, dfmp2; assert 'numpy' not in sys.modules; "
        "assert 'tensor' in dir(dfmp2) and 'tensor' in dfmp2.__all__; "
        "product = dfmp2.tensor.einsum; import dfmp2.tensor as t; "
        "assert t.einsum is product and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
