"""The interpreter: numbers the engines must return, views, hardware loops. Traces of kernels are in
the session `kernel-files`."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from dfmp2.errors import KernelError
from dfmp2.trainium.interpreter.arithmetic import DTYPES, drop_bits
from dfmp2.trainium.interpreter.memory import Core, Tensor, whole
from dfmp2.trainium.interpreter.run import Settings, run_kernel
from dfmp2.trainium.interpreter.signatures import REGIONS
from tests.recorded import recorded_error

HEAD = """\
import nki
import nki.isa as nisa
import nki.language as nl

DYNAMIC_LOOPS = True


def new(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def load(tensor, dtype=nl.float32):
    tile = new(tensor.shape, dtype)
    nisa.dma_copy(dst=tile, src=tensor)
    return tile


def stored(tile):
    out = new(tile.shape, nl.float32, nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def kernel"""
PRODUCT = """(a, b, dtype16, times):
    x = new((a.shape[1], b.shape[1]), nl.float32, nl.psum)
    if dtype16 == 'bfloat16':
        left = load(a, nl.bfloat16)
        right = load(b, nl.bfloat16)
    elif dtype16 == 'tfloat32':
        left = load(a, nl.tfloat32)
        right = load(b, nl.tfloat32)
    else:
        left = load(a)
        right = load(b)
    for k in range(times):
        nisa.nc_matmul(dst=x, stationary=left, moving=right, accumulate=k > 0)
    y = new(x.shape)
    nisa.tensor_copy(dst=y, src=x)
    return stored(y)
"""
CHAIN = """(a, column):
    s = load(a)
    c = load(column)
    r = new((128, 12, 24))
    sums = new((128, 1))
    sum3 = new((128, 2))
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
    nisa.tensor_scalar_reduce(dst=r[:, 8, :], data=s, op0=nl.subtract, operand0=c, reverse0=True,
                              reduce_op=nl.minimum, reduce_res=sums)
    nisa.tensor_scalar(dst=r[:, 9, :], data=s, op0=nl.minimum, operand0=c, op1=nl.add, operand1=sums)
    nisa.scalar_tensor_tensor(dst=r[:, 10, :], data=s, op0=nl.subtract, operand0=c, reverse0=True, op1=nl.multiply,
                              operand1=s)
    nisa.tensor_scalar(dst=r[:, 11, :], data=s, op0=nl.multiply, operand0=c, op1=nl.subtract, operand1=9.0,
                       reverse1=True)
    return stored(r)
"""


def run(tmp_path, text: str, arguments: dict[str, object], **settings: object) -> np.ndarray:
    """Output of a kernel, given from its parameters on."""
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + text)
    (out,), _ = run_kernel(str(path), "kernel", arguments, Settings(**settings))
    return out


def product(tmp_path, a, b, dtype16="", times=1, **settings):
    operands = {
        "a": np.asarray(a, np.float32),
        "b": np.asarray(b, np.float32),
        "dtype16": dtype16,
        "times": times,
    }
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


def test_products_against_float64(tmp_path):
    a, b = np.random.default_rng(1).standard_normal((2, 128, 96)).astype(np.float32)
    oracle = a.astype(np.float64).T @ b.astype(np.float64)
    scale = np.abs(a.astype(np.float64).T) @ np.abs(b.astype(np.float64))
    assert (np.abs(product(tmp_path, a, b) - oracle) <= 2**-22 * scale).all()
    np.testing.assert_allclose(product(tmp_path, a, b, exact=True), oracle, rtol=1e-13, atol=1e-13)


THIRD = np.float32(1 / 3)
NEXT = np.float32(1 + 2**-23)  # NEXT + NEXT is exact, the third sum is between float32 neighbours


@pytest.mark.parametrize(
    ("a", "b", "dtype16", "times", "exact", "expected"),
    [
        # (1 + 2^-7)^2 - (1 + 2^-6) = 2^-14, which a product rounded to bfloat16 would lose
        ([[1 + 2**-7], [1.0]], [[1 + 2**-7], [-(1 + 2**-6)]], "bfloat16", 1, False, 2**-14),
        ([[THIRD]], [[1.0]], "bfloat16", 1, False, np.float32(0.333984375)),
        ([[THIRD]], [[1.0]], "tfloat32", 1, False, np.float32(0.33325195)),
        ([[THIRD]], [[1.0]], "tfloat32", 1, True, THIRD),
        ([[1.0]], [[NEXT]], "", 3, False, 3 * float(NEXT) + 2**-23),
        ([[1.0]], [[NEXT]], "", 3, True, 3 * float(NEXT)),
    ],
)
def test_operands_have_their_width_and_sums_that_of_float32(
    tmp_path, a, b, dtype16, times, exact, expected
):
    assert product(tmp_path, a, b, dtype16, times, exact=exact) == expected


@pytest.mark.parametrize(("exact", "total"), [(False, 2.0**24), (True, 2.0**24 + 6)])
def test_row_sums_are_sequential_or_exact(tmp_path, exact, total):
    """Six ones after 2^24 are lost one by one in float32."""
    a = np.zeros((128, 24), np.float32)
    a[:, 0], a[:, 1:7] = 2.0**24, 1.0
    text = """(a):
    s = load(a)
    r = new((128, 2))
    nisa.activation(dst=new((128, 24)), op=nl.copy, data=s, reduce_op=nl.add,
                    reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=r[:, 0:1])
    nisa.tensor_reduce(dst=r[:, 1:2], op=nl.add, data=s, axis=1)
    return stored(r)
"""
    np.testing.assert_array_equal(
        run(tmp_path, text, {"a": a}, exact=exact), np.full((128, 2), total)
    )


def test_row_sums_are_those_of_the_operand_that_dst_overwrites(tmp_path):
    text = """(a):
    s = load(a)
    r = new((128, 1))
    nisa.activation(dst=s[:, 1:24], op=nl.square, data=s[:, 1:24], reduce_op=nl.add,
                    reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=r)
    return stored(r)
"""
    a = np.arange(128 * 24, dtype=np.float32).reshape(128, 24) % 50
    np.testing.assert_array_equal(
        run(tmp_path, text, {"a": a}), (a[:, 1:] ** 2).sum(axis=1, keepdims=True)
    )


@pytest.mark.parametrize("exact", [False, True])
def test_element_instructions_against_numpy(tmp_path, exact):
    generator = np.random.default_rng(2)
    kind = np.float64 if exact else np.float32
    a = generator.uniform(0.5, 2.0, (128, 24)).astype(np.float32).astype(kind)
    c = generator.uniform(0.5, 2.0, (128, 1)).astype(np.float32).astype(kind)
    out = run(tmp_path, CHAIN, {"a": a, "column": c}, exact=exact)
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
        c - a,
        np.minimum(a, c) + (c - a).min(axis=1, keepdims=True),
        (c - a) * a,
        9.0 - a * c,
    ]
    tolerance = 1e-14 if exact else 5e-7
    np.testing.assert_allclose(out, np.stack(expected, axis=1), rtol=tolerance)
    assert out.dtype == kind


def test_formats_of_tiles(tmp_path):
    """Casts on the way through 16-bit and integer tiles, as NumPy's float16 and round-half-even
    give them."""
    a = np.array([[2.5, 3.5, -2.5, 1 / 3, 300.0, 1.0, 1.0, 1.0]] * 4, np.float32)
    text = """(a):
    s = load(a)
    half = load(a, nl.float16)
    whole = new((4, 8), nl.int32)
    small = new((4, 8), nl.uint8)
    nisa.tensor_scalar(dst=whole, data=s, op0=nl.multiply, operand0=1.0)
    nisa.tensor_copy(dst=small, src=s)
    r = new((4, 3, 8))
    nisa.tensor_copy(dst=r[:, 0, :], src=half)
    nisa.tensor_copy(dst=r[:, 1, :], src=whole)
    nisa.tensor_copy(dst=r[:, 2, :], src=small)
    return stored(r)
"""
    out = run(tmp_path, text, {"a": a})
    np.testing.assert_array_equal(out[:, 0], a.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(out[0, 1, :4], [2.0, 4.0, -2.0, 0.0])
    np.testing.assert_array_equal(out[0, 2, :5], [2.0, 4.0, 0.0, 0.0, 255.0])


def numbered(shape: tuple[int, ...], space: str = "sbuf") -> tuple[Tensor, np.ndarray]:
    """A tensor whose elements are numbered in C order, and the same as a NumPy array."""
    core = Core(Settings())
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return whole(core, core.declare("t", REGIONS[space], DTYPES["float32"], shape, values)), values


def test_what_no_tensor_has():
    """Python's own look-ups raise AttributeError; attributes of other libraries are refused."""
    tensor, _ = numbered((4, 8))
    assert not hasattr(tensor, "__array_interface__")
    with recorded_error(KernelError):
        tensor.rearrange  # noqa: B018


@st.composite
def keys(draw, shape):
    """Slices for each dimension (no step in dimension 0), an integer in a middle one now and
    then."""
    parts = []
    for dimension, size in enumerate(shape):
        if 0 < dimension < len(shape) - 1 and draw(st.booleans()):
            parts.append(draw(st.integers(0, size - 1)))
            continue
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start + 1, size))
        parts.append(slice(start, stop, draw(st.integers(1, 3)) if dimension else None))
    return tuple(parts)


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(
    data=st.data(),
    shape=st.lists(st.integers(1, 7), min_size=2, max_size=4).map(tuple),
    hbm=st.booleans(),
)
def test_slices_of_slices_are_numpys(data, shape, hbm):
    tensor, values = numbered(shape, "hbm" if hbm else "sbuf")
    for _ in range(2):
        key = data.draw(keys(tensor.shape))
        tensor, values = tensor[key], values[key]
        assert tensor.shape == values.shape
        np.testing.assert_array_equal(tensor.values(), values)
    first, last = int(values.min()), int(values.max())
    if hbm:
        assert tensor.rectangle == (0, 1, 4 * first, 4 * last + 4)
    else:
        row = int(np.prod(shape[1:]))
        free = values % row
        partitions = first // row, last // row + 1
        assert tensor.rectangle == (*partitions, 4 * free.min(), 4 * free.max() + 4)


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    steps=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    offset=st.integers(0, 10),
)
def test_access_patterns_follow_the_formula(counts, steps, offset):
    """Element [w, z, ...] is element offset + 64 w + step z + ... of the flattened tensor
    (nki-aps.rst)."""
    tensor, values = numbered((4, 8, 8))
    pattern = [[64, 4], *([step, count] for step, count in zip(steps, counts, strict=False))]
    view = tensor.ap(pattern=pattern, offset=offset)
    grid = np.indices([count for _, count in pattern])
    expected = offset + sum(step * index for (step, _), index in zip(pattern, grid, strict=True))
    np.testing.assert_array_equal(view.values(), values.reshape(-1)[expected])
