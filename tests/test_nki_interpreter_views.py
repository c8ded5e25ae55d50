"""Slices and access patterns address the elements that NumPy's slicing and the page's formula address."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmp2.backends.nki.interpreter.core import Core
from dfmp2.backends.nki.interpreter.dtypes import BFLOAT16, FLOAT32
from dfmp2.backends.nki.interpreter.run import Settings
from dfmp2.backends.nki.interpreter.tensors import Tensor, whole


def numbered(shape: tuple[int, ...], space: str = "sbuf") -> tuple[Tensor, np.ndarray]:
    """A tensor whose elements are numbered in C order, and the same as a NumPy array."""
    core = Core(Settings())
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    region = "shared_hbm" if space == "hbm" else space
    return whole(core, core.declare("t", region, space, FLOAT32, shape, values)), values


@st.composite
def keys(draw, shape):
    """Slices for each dimension (no step in dimension 0), an integer in a middle one now and then."""
    parts = []
    for dimension, size in enumerate(shape):
        if 0 < dimension < len(shape) - 1 and draw(st.booleans()):
            parts.append(draw(st.integers(0, size - 1)))
            continue
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start + 1, size))
        parts.append(slice(start, stop, draw(st.integers(1, 3)) if dimension else None))
    return tuple(parts)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), shape=st.lists(st.integers(1, 7), min_size=2, max_size=4).map(tuple), hbm=st.booleans())
def test_slices_of_slices_are_numpys(data, shape, hbm):
    tensor, values = numbered(shape, "hbm" if hbm else "sbuf")
    for _ in range(2):
        key = data.draw(keys(tensor.shape))
        tensor, values = tensor[key], values[key]
        assert tensor.shape == values.shape
        np.testing.assert_array_equal(tensor.values(), values)
    first, last = int(values.min()), int(values.max())
    if hbm:
        assert (tensor.access.byte_start, tensor.access.byte_stop) == (4 * first, 4 * last + 4)
    else:
        row = int(np.prod(shape[1:]))
        free = values % row
        assert (tensor.access.partition_start, tensor.access.partition_stop) == (first // row, last // row + 1)
        assert (tensor.access.byte_start, tensor.access.byte_stop) == (4 * free.min(), 4 * free.max() + 4)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    steps=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    offset=st.integers(0, 10),
)
def test_access_patterns_follow_the_formula(counts, steps, offset):
    """Element [w, z, ...] is element offset + 64 w + step z + ... of the flattened tensor (nki-aps.rst)."""
    tensor, values = numbered((4, 8, 8))
    pattern = [[64, 4], *([step, count] for step, count in zip(steps, counts, strict=False))]
    view = tensor.ap(pattern=pattern, offset=offset)
    grid = np.indices([count for _, count in pattern])
    expected = offset + sum(step * index for (step, _), index in zip(pattern, grid, strict=True))
    np.testing.assert_array_equal(view.values(), values.reshape(-1)[expected])


def test_contiguous_runs():
    tensor, _ = numbered((4, 6, 8))
    assert tensor.run() == 48
    assert tensor[:, 2:4, :].run() == 16
    assert tensor[:, 2:4, 1:8].run() == 7
    assert tensor[:, 2, 0:8].run() == 8
    assert tensor[:, :, 0:8:2].run() == 1
    in_hbm, _ = numbered((4, 6, 8), "hbm")
    assert in_hbm.run() == 4 * 48
    assert in_hbm[1:3, :, :].run() == 96


def test_large_strides_begin_at_16_bytes():
    core = Core(Settings())
    for dtype, step in ((FLOAT32, 4), (BFLOAT16, 8)):
        tensor = whole(core, core.declare("t", "sbuf", "sbuf", dtype, (4, 64)))
        assert tensor[:, 0:64:step].strided
        assert not tensor[:, 0 : 64 : step - 1].strided
        assert not tensor[:, 0:1].strided
