"""Numbers the engines must return: formats, products, row sums, poison, fuzz; expected values from IEEE formats."""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2.backends.nki.interpreter.dtypes import drop_bits
from dfmp2.backends.nki.interpreter.run import Settings, run_kernel
from dfmp2.backends.nki.interpreter.violations import Violation

HEAD = """\
import nki
import nki.isa as nisa
import nki.language as nl


def load(tensor, dtype):
    tile = nl.ndarray(tensor.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=tensor)
    return tile


"""
PRODUCT = (
    HEAD
    + """\
@nki.jit
def kernel(a, b, dtype16, times):
    x = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    if dtype16 == 'bfloat16':
        left = load(a, nl.bfloat16)
        right = load(b, nl.bfloat16)
    elif dtype16 == 'tfloat32':
        left = load(a, nl.tfloat32)
        right = load(b, nl.tfloat32)
    else:
        left = load(a, nl.float32)
        right = load(b, nl.float32)
    for k in range(times):
        nisa.nc_matmul(dst=x, stationary=left, moving=right, accumulate=k > 0)
    y = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=y, src=x)
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=y)
    return out
"""
)
CHAIN = (
    HEAD
    + """\
@nki.jit
def kernel(a, column):
    s = load(a, nl.float32)
    c = load(column, nl.float32)
    out = nl.ndarray((128, 8, 24), dtype=nl.float32, buffer=nl.shared_hbm)
    r = nl.ndarray((128, 8, 24), dtype=nl.float32, buffer=nl.sbuf)
    sums = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    sum3 = nl.ndarray((128, 2), dtype=nl.float32, buffer=nl.sbuf)
    cube = s.ap(pattern=[[24, 128], [12, 2], [1, 12]], offset=0)
    nisa.tensor_scalar(dst=r[:, 0, :], data=s, op0=nl.subtract, operand0=c, reverse0=True, op1=nl.multiply,
                       operand1=3.0)
    nisa.scalar_tensor_tensor(dst=r[:, 1, :], data=s, op0=nl.multiply, operand0=c, op1=nl.subtract, operand1=s,
                              reverse1=True)
    nisa.activation(dst=r[:, 2, :], op=nl.square, data=s, bias=c, scale=0.5, reduce_op=nl.add,
                    reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=sums)
    nisa.reciprocal(dst=r[:, 3, :], data=s)
    nisa.tensor_scalar(dst=r[:, 4, :], data=s, op0=nl.maximum, operand0=sums)
    nisa.tensor_reduce(dst=sum3, op=nl.add, data=cube, axis=2, negate=True)
    nisa.tensor_copy(dst=r[:, 5, 0:2], src=sum3)
    nisa.tensor_copy(dst=r[:, 5, 2:24], src=s[:, 0:22])
    nisa.tensor_scalar_reduce(dst=r[:, 6, :], data=s, op0=nl.add, operand0=1.0, reduce_op=nl.maximum, reduce_res=sums)
    nisa.activation(dst=r[:, 7, :], op=nl.rsqrt, data=s, scale=sums)
    nisa.dma_copy(dst=out, src=r)
    return out
"""
)


def run(tmp_path, text: str, arguments: dict[str, object], **settings: object) -> np.ndarray:
    path = tmp_path / "kernel.py"
    path.write_text(text)
    (out,), _ = run_kernel(str(path), "kernel", arguments, Settings(**settings))
    return out


def product(tmp_path, a, b, dtype16="", times=1, **settings):
    operands = {"a": np.asarray(a, np.float32), "b": np.asarray(b, np.float32), "dtype16": dtype16, "times": times}
    return run(tmp_path, PRODUCT, operands, **settings)


@pytest.mark.parametrize(
    ("value", "bits", "rounded"),
    [
        (1 + 2**-8, 16, 1.0),  # bfloat16 has 7 mantissa bits: a tie goes to the even neighbour
        (1 + 3 * 2**-8, 16, 1 + 2**-6),
        (1 + 2**-8 + 2**-20, 16, 1 + 2**-7),
        (1 + 2**-11, 13, 1.0),  # tfloat32 has 10
        (-(1 + 3 * 2**-11), 13, -(1 + 2**-9)),
        (3.4e38, 16, np.inf),
        (np.inf, 13, np.inf),
    ],
)
def test_rounding_to_nearest_even(value, bits, rounded):
    assert drop_bits(np.array([value], np.float32), bits)[0] == np.float32(rounded)


def test_rounding_keeps_nan():
    assert np.isnan(drop_bits(np.array([np.nan], np.float32), 16)).all()


def test_width_of_products_is_visible(tmp_path):
    """(1 + 2^-7)^2 - (1 + 2^-6) = 2^-14: there with full products, gone when products are rounded to bfloat16."""
    a = [[1 + 2**-7], [1.0]]
    b = [[1 + 2**-7], [-(1 + 2**-6)]]
    assert product(tmp_path, a, b, "bfloat16", pe_model="fp32") == 2**-14
    assert product(tmp_path, a, b, "bfloat16", pe_model="exact") == 2**-14
    assert product(tmp_path, a, b, "bfloat16", pe_model="bf16prod") == 0
    # float32 operands do not go through the 16-bit path
    assert product(tmp_path, a, b, pe_model="bf16prod") == 2**-14


def test_operands_are_rounded_to_their_format(tmp_path):
    third = np.float32(1 / 3)
    assert product(tmp_path, [[third]], [[1.0]], "bfloat16") == np.float32(0.333984375)
    assert product(tmp_path, [[third]], [[1.0]], "tfloat32") == drop_bits(np.array([third]), 13)
    assert product(tmp_path, [[third]], [[1.0]], "tfloat32", storage="float64") == third


def test_products_against_float64(tmp_path):
    a, b = np.random.default_rng(1).standard_normal((2, 128, 96)).astype(np.float32)
    oracle = a.astype(np.float64).T @ b.astype(np.float64)
    scale = np.abs(a.astype(np.float64).T) @ np.abs(b.astype(np.float64))
    exact = product(tmp_path, a, b, pe_model="exact")
    np.testing.assert_array_equal(exact, oracle.astype(np.float32))
    for model in ("fp32", "split4"):
        assert (np.abs(product(tmp_path, a, b, pe_model=model) - oracle) <= 2**-22 * scale).all()
    np.testing.assert_allclose(product(tmp_path, a, b, storage="float64"), oracle, rtol=1e-13, atol=1e-13)
    narrow = product(tmp_path, a, b, "bfloat16", pe_model="bf16prod")
    assert 1e-4 < np.abs(narrow - oracle).max() / scale.max() < 2**-7


def test_accumulation_in_psum_is_float32(tmp_path):
    """Three times x = 1 + 2^-23: x + x is exact, the third sum falls between float32 neighbours 2^-22 apart."""
    x = np.float32(1 + 2**-23)
    total = product(tmp_path, [[1.0]], [[x]], times=3, pe_model="exact")
    assert total == np.float32(x + x) + x
    assert abs(float(total[0, 0]) - 3 * float(x)) == 2**-23
    assert product(tmp_path, [[1.0]], [[x]], times=3, storage="float64") == 3 * float(x)


@pytest.mark.parametrize(("model", "total"), [("fp32", 2.0**24), ("float64", 2.0**24 + 6)])
def test_row_sums_are_sequential_or_exact(tmp_path, model, total):
    """Six ones after 2^24 are lost one by one in float32."""
    a = np.zeros((128, 24), np.float32)
    a[:, 0], a[:, 1:7] = 2.0**24, 1.0
    text = (
        HEAD
        + """\
@nki.jit
def kernel(a):
    s = load(a, nl.float32)
    t = nl.ndarray((128, 24), dtype=nl.float32, buffer=nl.sbuf)
    r = nl.ndarray((128, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=t, op=nl.copy, data=s, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce,
                    reduce_res=r[:, 0:1])
    nisa.tensor_reduce(dst=r[:, 1:2], op=nl.add, data=s, axis=1)
    out = nl.ndarray((128, 2), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=r)
    return out
"""
    )
    np.testing.assert_array_equal(run(tmp_path, text, {"a": a}, row_sum=model), np.full((128, 2), total))


@pytest.mark.parametrize("storage", ["declared", "float64"])
def test_element_instructions_against_numpy(tmp_path, storage):
    generator = np.random.default_rng(2)
    kind = np.float64 if storage == "float64" else np.float32
    a = generator.uniform(0.5, 2.0, (128, 24)).astype(np.float32).astype(kind)
    c = generator.uniform(0.5, 2.0, (128, 1)).astype(np.float32).astype(kind)
    out = run(tmp_path, CHAIN, {"a": a, "column": c}, storage=storage)
    square = (a * 0.5 + c) ** 2
    expected = [
        (c - a) * 3.0,
        a - a * c,
        square,
        1 / a,
        np.maximum(a, square.sum(axis=1, keepdims=True)),
        np.concatenate([-a.reshape(128, 2, 12).sum(axis=2), a[:, :22]], axis=1),
        a + 1.0,
        1 / np.sqrt(a * (a.max(axis=1, keepdims=True) + 1.0)),
    ]
    tolerance = 1e-14 if storage == "float64" else 5e-7
    np.testing.assert_allclose(out, np.stack(expected, axis=1), rtol=tolerance)
    assert out.dtype == kind


def test_formats_of_tiles(tmp_path):
    """Casts on the way through 16-bit and integer tiles, as NumPy's float16 and round-half-even give them."""
    a = np.array([[2.5, 3.5, -2.5, 1 / 3] * 2] * 4, np.float32)
    text = (
        HEAD
        + """\
@nki.jit
def kernel(a):
    s = load(a, nl.float32)
    half = load(a, nl.float16)
    whole = nl.ndarray((4, 8), dtype=nl.int32, buffer=nl.sbuf)
    small = nl.ndarray((4, 8), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=whole, data=s, op0=nl.multiply, operand0=1.0)
    nisa.tensor_copy(dst=small, src=s)
    r = nl.ndarray((4, 3, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=r[:, 0, :], src=half)
    nisa.tensor_copy(dst=r[:, 1, :], src=whole)
    nisa.tensor_copy(dst=r[:, 2, :], src=small)
    out = nl.ndarray((4, 3, 8), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=r)
    return out
"""
    )
    out = run(tmp_path, text, {"a": a})
    np.testing.assert_array_equal(out[:, 0], a.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(out[0, 1, :4], [2.0, 4.0, -2.0, 0.0])
    np.testing.assert_array_equal(out[0, 2, :4], [2.0, 4.0, 0.0, 0.0])


UNWRITTEN = (
    HEAD
    + """\
@nki.jit
def kernel(a):
    u = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
    k = nl.ndarray((128, 8), dtype=nl.int32, buffer=nl.sbuf)
    r = nl.ndarray((128, 2, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=r[:, 0, :], src=u)
    nisa.tensor_copy(dst=r[:, 1, :], src=k)
    out = nl.ndarray((128, 2, 8), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=r)
    return out
"""
)


def test_poison_flows_where_reads_are_not_refused(tmp_path):
    a = np.zeros((128, 8), np.float32)
    with pytest.raises(Violation, match="uninitialised-read"):
        run(tmp_path, UNWRITTEN, {"a": a})
    out = run(tmp_path, UNWRITTEN, {"a": a}, strict=False)
    assert np.isnan(out[:, 0]).all()
    assert (out[:, 1] == 4).all()
    first, second = (run(tmp_path, UNWRITTEN, {"a": a}, strict=False, fuzz=seed) for seed in (1, 2))
    assert np.isfinite(first).all()
    assert (first[:, 0] != second[:, 0]).any()


def test_fuzz_reorders_contractions_and_nothing_else(tmp_path):
    a, b = np.random.default_rng(3).standard_normal((2, 128, 64)).astype(np.float32)
    plain = product(tmp_path, a, b)
    orders = [product(tmp_path, a, b, fuzz=seed) for seed in range(4)]
    assert any((order != plain).any() for order in orders)
    scale = np.abs(a).T.astype(np.float64) @ np.abs(b)
    for order in orders:
        assert (np.abs(order - plain) <= 2**-21 * scale).all()
    np.testing.assert_array_equal(orders[1], product(tmp_path, a, b, fuzz=1))
    np.testing.assert_array_equal(plain, product(tmp_path, a, b))


def test_models_that_round_are_not_combined_with_float64_storage():
    with pytest.raises(Exception, match="storage='float64'") as caught:
        Settings(storage="float64", pe_model="split4")
    assert type(caught.value).__name__ == "InputError"
