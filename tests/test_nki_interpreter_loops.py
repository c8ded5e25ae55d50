"""Hardware loops: results against NumPy, releases, and buffers that live for the whole loop, once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dfmp2.backends.nki.interpreter.run import Settings, Shape, run_kernel
from dfmp2.backends.nki.interpreter.settings import RELEASES
from dfmp2.backends.nki.interpreter.violations import Violation

SOURCE = str(Path(__file__).parent / "data" / "nki_kernels" / "dynamic_rows.py")
BLOCKS, WIDTH = 6, 40
TAKEN = {
    "counter_in_sbuf": RELEASES[:4],
    "index_as_offset": RELEASES[1:4],
    "body_function": RELEASES[3:],
}


def arguments() -> dict[str, object]:
    generator = np.random.default_rng(7)
    return {
        "rows": generator.standard_normal((32 * BLOCKS, WIDTH)).astype(np.float32),
        "scale": generator.uniform(1, 2, (32, 1)).astype(np.float32),
        "count": np.array([[BLOCKS]], np.int32),
    }


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kernel", TAKEN)
def test_each_addressing_in_the_releases_that_have_it(kernel, release):
    given = arguments()
    if release not in TAKEN[kernel]:
        with pytest.raises(Violation) as caught:
            run_kernel(SOURCE, kernel, given, Settings(release=release))
        assert caught.value.rule in ("release-name", "loop-offset")
        return
    (out,), trace = run_kernel(SOURCE, kernel, given, Settings(release=release))
    expected = np.tile(given["scale"], (BLOCKS, 1)) * given["rows"]
    np.testing.assert_array_equal(out, expected.astype(np.float32))
    moved = [i for i in trace.instructions if i.name == "dma_copy" and i.dynamic]
    assert len(moved) == 2 * BLOCKS


def test_body_buffers_are_counted_once_and_live_for_the_whole_loop():
    """Two tiles of 160 bytes in the body, a 4-byte column and two 4-byte counters outside: 332 bytes for any count."""
    for count in (1, BLOCKS):
        given = {**arguments(), "count": np.array([[count]], np.int32)}
        settings = Settings(strict=False)
        _, trace = run_kernel(SOURCE, "counter_in_sbuf", given, settings)
        body = [a for a in trace.allocations if a.space == "sbuf" and a.bytes == 4 * WIDTH]
        loop = [n for n, i in enumerate(trace.instructions) if i.dynamic]
        assert len(body) == 2
        assert {(a.born, a.last_use) for a in body} == {(loop[0], len(trace.instructions) - 1)}
        assert trace.sbuf_high_water == 2 * 4 * WIDTH + 4 + 4


def test_counter_is_followed_without_arithmetic():
    given = {**arguments(), "rows": Shape((32 * BLOCKS, WIDTH)), "scale": Shape((32, 1))}
    _, trace = run_kernel(SOURCE, "counter_in_sbuf", given, Settings(arithmetic=False))
    starts = [i.reads[0].byte_start for i in trace.instructions if i.dynamic and i.reads[0].space == "hbm"]
    assert starts == [32 * WIDTH * 4 * block for block in range(BLOCKS)]
    with pytest.raises(Violation, match="counts-only mode does not know"):
        run_kernel(SOURCE, "counter_in_sbuf", {**given, "count": Shape((1, 1), "int32")}, Settings(arithmetic=False))


def test_offset_beyond_the_tensor_is_refused():
    given = {**arguments(), "count": np.array([[BLOCKS + 1]], np.int32)}
    with pytest.raises(Violation) as caught:
        run_kernel(SOURCE, "counter_in_sbuf", given)
    assert caught.value.rule == "ap-pattern"


NESTED = """\
import nki
import nki.isa as nisa
import nki.language as nl

DYNAMIC_LOOPS = True


@nki.jit
def kernel(a):
    out = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.shared_hbm)
    s = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=s, src=a)
    for i in nl.dynamic_range(3):
        t = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=t, src=s)
        for j in nl.dynamic_range(2):
            u = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=u[:, 0:8], data=t, op0=nl.add, operand0=1.0)
            nisa.tensor_copy(dst=s, src=u[:, 0:8])
    nisa.dma_copy(dst=out, src=s)
    return out
"""


def test_nested_loops_from_0_6_0_on(tmp_path):
    path = tmp_path / "nested.py"
    path.write_text(NESTED)
    a = np.zeros((128, 8), np.float32)
    (out,), trace = run_kernel(str(path), "kernel", {"a": a}, Settings(release="0.6.0"))
    assert (out == 3).all()
    assert trace.sbuf_high_water == 4 * (8 + 8 + 16)
    for release in RELEASES[:3]:
        with pytest.raises(Violation, match="loop-nested"):
            run_kernel(str(path), "kernel", {"a": a}, Settings(release=release))
