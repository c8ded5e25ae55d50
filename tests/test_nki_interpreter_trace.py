"""What the trace says of a kernel: instruction fields, descriptors, live ranges, high-water marks, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2.backends.nki.interpreter.run import Settings, Shape, run_kernel
from dfmp2.backends.nki.interpreter.trace import Access, Trace

KERNEL = """\
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(b3, small):
    out = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.shared_hbm)
    part = nl.ndarray((128, 3, 100), dtype=nl.float32, buffer=nl.sbuf)
    full = nl.ndarray((128, 3, 256), dtype=nl.float32, buffer=nl.sbuf)
    sums = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
    half = nl.ndarray((128, 16), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=part, src=b3[128:256, :, 64:164])
    nisa.dma_copy(dst=full, src=b3[0:128, :, :])
    nisa.dma_copy(dst=half, src=small)
    x = nl.ndarray((128, 100), dtype=nl.float32, buffer=nl.psum)
    for k in range(3):
        nisa.nc_matmul(dst=x, stationary=full[:, k, 128:256], moving=part[:, k, :], accumulate=k > 0)
    y = nl.ndarray((128, 100), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=y, op=nl.copy, data=x, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce,
                    reduce_res=sums[:, 0:1])
    nisa.tensor_tensor(dst=y, data1=y, data2=x, op=nl.multiply)
    nisa.tensor_copy(dst=sums[:, 1:4], src=y[:, 0:12:4])
    nisa.tensor_copy(dst=sums[:, 1:4], src=half[:, 0:9:3])
    nisa.memset(dst=sums[0:64, 1:3], value=0.0, engine=nisa.engine.gpsimd)
    nisa.dma_copy(dst=out, src=sums)
    return out
"""


@pytest.fixture(scope="module", params=[True, False], ids=["arithmetic", "counts only"])
def trace(request, tmp_path_factory) -> Trace:
    path = tmp_path_factory.mktemp("trace") / "kernel.py"
    path.write_text(KERNEL)
    values = np.ones((256, 3, 256), np.float32), np.ones((128, 16), np.float32)
    given = dict(
        zip(("b3", "small"), values if request.param else (Shape((256, 3, 256)), Shape((128, 16))), strict=True)
    )
    return run_kernel(str(path), "kernel", given, Settings(arithmetic=request.param))[1]


def test_program_order_and_lines(trace):
    assert [i.name for i in trace.instructions] == [
        *["dma_copy"] * 3,
        *["nc_matmul"] * 3,
        *["activation", "tensor_tensor", "tensor_copy", "tensor_copy", "memset", "dma_copy"],
    ]
    assert [i.engine for i in trace.instructions[6:]] == ["scalar", "vector", "vector", "vector", "gpsimd", "dma"]
    first = KERNEL[: KERNEL.index("    nisa.dma_copy(dst=part")].count("\n") + 1
    assert trace.instructions[0].line == f"kernel.py:{first}"


def test_descriptors_are_the_shorter_runs(trace):
    """Rows of a part of the last axis: one descriptor per partition and slice; whole rows: one per partition."""
    part, full, half = trace.instructions[:3]
    assert (part.bytes, part.descriptors, part.run_bytes) == (128 * 3 * 100 * 4, 128 * 3, 400)
    assert (full.bytes, full.descriptors, full.run_bytes) == (128 * 3 * 256 * 4, 128, 3 * 256 * 4)
    assert (half.bytes, half.descriptors, half.run_bytes) == (128 * 16 * 4, 128, 32)
    assert part.reads == (Access(0, "hbm", 0, 1, 4 * (128 * 768 + 64), 4 * (255 * 768 + 2 * 256 + 164)),)


def test_fields_of_compute_instructions(trace):
    matmul, act, multiply, wide, narrow, fill = (trace.instructions[n] for n in (4, 6, 7, 8, 9, 10))
    assert (matmul.elements, matmul.stationary, matmul.partitions, matmul.operands) == (100, 128, 128, 2)
    assert matmul.reads[0] == Access(3, "sbuf", 0, 128, 4 * (256 + 128), 4 * 512) or matmul.reads[0].tensor == 4
    assert (act.elements, act.reduces, act.operands, len(act.writes)) == (100, True, 1, 2)
    assert act.writes[1].byte_stop - act.writes[1].byte_start == 4
    assert {read.space for read in multiply.reads} == {"sbuf", "psum"}
    assert (wide.strided, narrow.strided) == (True, False)  # 16 and 6 bytes
    assert (fill.operands, fill.reads, fill.partitions, fill.elements) == (0, (), 64, 2)


def test_live_ranges_end_with_the_last_use(trace):
    alive = {a.tensor: (a.space, a.bytes, a.born, a.last_use) for a in trace.allocations}
    assert alive == {
        0: ("hbm", 256 * 768 * 4, 0, 1),
        1: ("hbm", 128 * 16 * 4, 0, 2),
        2: ("hbm", 128 * 4 * 4, 0, 11),
        3: ("sbuf", 1200, 0, 5),
        4: ("sbuf", 3072, 0, 5),
        5: ("sbuf", 16, 0, 11),
        6: ("sbuf", 32, 0, 9),
        7: ("psum", 400, 3, 7),
        8: ("sbuf", 400, 6, 8),
    }
    assert trace.sbuf_high_water == 1200 + 3072 + 16 + 32
    assert trace.psum_high_water == 1
    line = KERNEL[: KERNEL.index("    half = ")].count("\n") + 1
    assert trace.sbuf_peak_line == f"kernel.py:{line}"
    assert trace.target == "gen2"


def test_many_free_dimensions_are_flagged(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(
        "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n@nki.jit\ndef kernel(a):\n"
        "    out = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.shared_hbm)\n"
        "    s = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)\n"
        "    nisa.memset(dst=s.ap(pattern=[[16, 128], [8, 2], [4, 2], [2, 2], [1, 2]], offset=0), value=1.0)\n"
        "    nisa.dma_copy(dst=out, src=s)\n    return out\n"
    )
    (out,), trace = run_kernel(str(path), "kernel", {"a": np.zeros((1, 1), np.float32)})
    assert (out == 1).all()
    assert len(trace.warnings) == 1
    assert "4 free dimensions" in trace.warnings[0]
