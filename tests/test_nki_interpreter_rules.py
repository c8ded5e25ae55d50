"""One small kernel per documented rule that breaks just that rule, beside the same kernel put right.

Each row: rule, statements that break it, statements that do not, settings. `s`, `t` are SBUF tiles (128, 64) loaded
from the inputs (values in 0.5..1.5), `u` an SBUF tile not yet written, `c` a column (128, 1) of ones, `x` a PSUM tile
(64, 64) that holds s^T t, `y` a PSUM tile not yet written, `e` an SBUF identity (64, 64).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dfmp2.errors import InputError, KernelError
from dfmp2.trainium.interpreter.rules import RULES, NotInSubset, Violation
from dfmp2.trainium.interpreter.run import Settings, Shape, run_kernel
from tests.test_nki_lint import BODY, MODULE_LEVEL

KERNEL = """\
import nki
import nki.isa as nisa
import nki.language as nl

DYNAMIC_LOOPS = True


def part(x):
    return x


@nki.jit
def other(a):
    return a


@nki.jit
def kernel(a, b, identity, one):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    s = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    u = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    e = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
    c = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    k = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    x = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    y = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=s, src=a)
    nisa.dma_copy(dst=t, src=b)
    nisa.dma_copy(dst=e, src=identity)
    nisa.dma_copy(dst=k, src=one)
    nisa.memset(dst=c, value=1.0)
    nisa.nc_matmul(dst=x, stationary=s, moving=t, accumulate=False)
{body}
    nisa.dma_copy(dst=out, src=s)
    return out
"""
GEN3 = Settings(target="gen3")
MATMUL = "nisa.nc_matmul(dst={}, stationary={}, moving={}, accumulate={}{})"
ACT = "nisa.activation(dst=u, op=nl.{}, data=s{})"
ROWS_OF = "nisa.tensor_scalar_reduce(dst=u, data=s, op0=nl.add, operand0=1.0, reduce_op=nl.add, reduce_res={}{})"
SUM = ", reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res="
NEW = "w = nl.ndarray({}, dtype=nl.{}, buffer=nl.{})"
LOOP = "for i in nl.dynamic_range({}):\n    "
V4, V6 = Settings(release="0.4.0"), Settings(release="0.6.0")


def big(first: int, second: int) -> str:
    """Two SBUF tiles of 100,000 bytes per partition; `second` uses of the first after the second was declared."""
    lines = ["v = nl.ndarray((128, 25000), dtype=nl.float32, buffer=nl.sbuf)", "nisa.memset(dst=v[:, 0:1], value=0.0)"]
    lines += ["w = nl.ndarray((128, 25000), dtype=nl.float32, buffer=nl.sbuf)", "nisa.memset(dst=w, value=0.0)"]
    return "\n".join(lines[:first] + ["nisa.tensor_copy(dst=u[:, 0:1], src=v[:, 0:1])"] * second)


def banks(count: int) -> str:
    """`count` PSUM tiles alive at once."""
    lines = []
    for n in range(count):
        lines += [
            NEW.format("(64, 8)", "float32", "psum").replace("w", f"w{n}", 1),
            f"nisa.memset(dst=w{n}, value=0.0)",
        ]
    return "\n".join(lines + [f"nisa.memset(dst=w{n}, value=0.0)" for n in range(count)])


CASES = [
    ("partition-count", NEW.format("(129, 4)", "float32", "sbuf"), NEW.format("(128, 4)", "float32", "sbuf")),
    ("partition-start", "nisa.memset(dst=u[16:32, :], value=0.0)", "nisa.memset(dst=u[96:128, :], value=0.0)"),
    ("partition-start", "nisa.memset(dst=u[32:96, :], value=0.0)", "nisa.memset(dst=u[64:128, :], value=0.0)"),
    ("partition-start", "nisa.memset(dst=u[32:97, :], value=0.0)", "nisa.memset(dst=u[0:65, :], value=0.0)"),
    # DMA reaches any partition
    (
        "partition-start",
        "nisa.tensor_copy(dst=u[8:16, :], src=s[0:8, :])",
        "nisa.dma_copy(dst=u[8:16, :], src=a[8:16, :])",
    ),
    ("partition-step", "w = s[0:128:2, :]", "w = s[:, 0:64:2]"),
    ("partition-match", "nisa.tensor_copy(dst=u[0:32, :], src=s)", "nisa.tensor_copy(dst=u[0:32, :], src=s[64:96, :])"),
    ("tensor-rank", NEW.format("(128,)", "float32", "sbuf"), NEW.format("(128, 2, 2, 2)", "float32", "sbuf")),
    ("tensor-rank", NEW.format("(128, 1, 1, 1, 1)", "float32", "sbuf"), ""),
    ("tensor-shape", NEW.format("(128, 0)", "float32", "sbuf"), ""),
    ("tensor-shape", NEW.format("(128, 2.0)", "float32", "sbuf"), ""),
    (
        "tensor-dtype",
        "w = nl.ndarray((128, 2), dtype='float32', buffer=nl.sbuf)",
        NEW.format("(2, 2)", "uint8", "sbuf"),
    ),
    ("buffer-object", "name = 'sbuf'\nw = nl.ndarray((128, 2), dtype=nl.float32, buffer=name)", ""),
    ("address", "w = nl.ndarray((128, 2), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))", ""),
    ("sbuf-capacity", big(4, 1), big(4, 0)),
    ("sbuf-capacity", NEW.format("(128, 45057)", "float32", "sbuf"), NEW.format("(128, 44000)", "float32", "sbuf")),
    ("psum-bank", NEW.format("(128, 513)", "float32", "psum"), NEW.format("(128, 512)", "float32", "psum")),
    ("psum-banks", banks(9), banks(8)),
    ("index", "w = s[:, 0:65]", "w = s[:, 0:64]"),
    ("index", "w = s[:, 8:8]", "w = s[:, 8:9]"),
    ("index", "w = s[:, 0:-1]", ""),
    ("index", "w = s[0:64]", "w = s[0:64, :]"),
    ("index", "w = s[:, 0:True]", "w = s[:, 0:1]"),
    ("integer-index", "w = s[:, 3]", "w = s[:, 3:4]"),
    (
        "integer-index",
        "w = nl.ndarray((128, 2, 4), dtype=nl.float32)[:, 0, 3]",
        "w = nl.ndarray((8, 2, 4), dtype=nl.float32)[:, 1, :]",
    ),
    (
        "access-pattern",
        "w = nl.ndarray((128, 65536), dtype=nl.uint8)\nnisa.memset(dst=w, value=1)",
        "w = nl.ndarray((128, 65535), dtype=nl.uint8)\nnisa.memset(dst=w, value=1)",
    ),
    (
        "access-pattern",
        "w = nl.ndarray((128, 2, 32768), dtype=nl.uint8)\nnisa.memset(dst=w[:, :, 0:1], value=1)",
        "w = nl.ndarray((128, 2, 32767), dtype=nl.uint8)\nnisa.memset(dst=w[:, :, 0:1], value=1)",
    ),
    (
        "ap-base",
        "w = s[:, 0:32].ap(pattern=[[64, 128], [1, 32]], offset=0)",
        "w = s.ap(pattern=[[64, 128], [1, 32]], offset=0)",
    ),
    (
        "ap-base",
        "v = s.ap(pattern=[[64, 128], [1, 32]], offset=0)\nw = v.ap(pattern=[[64, 128], [1, 32]], offset=0)",
        "",
    ),
    ("ap-offset", "w = s.ap(pattern=[[64, 128], [1, 32]])", "w = s.ap(pattern=[[64, 128], [1, 32]], offset=32)"),
    ("ap-pattern", "w = s.ap(pattern=[[32, 128], [1, 32]], offset=0)", ""),
    ("ap-pattern", "w = s.ap(pattern=[[64, 128], [1, 32]], offset=33)", ""),
    ("ap-pattern", "w = s.ap(pattern=[[64, 128]], offset=0)", ""),
    ("ap-pattern", "w = s.ap(pattern=[[64, 128], [1.0, 2]], offset=0)", ""),
    ("ap-pattern", "w = s.ap(pattern=[[64, 128], [-1, 2]], offset=8)", ""),
    ("ap-dynamic", "w = a.ap(pattern=[[64, 4], [1, 64]], offset=0, scalar_offset=one, indirect_dim=0)", ""),
    (
        "ap-dynamic",
        "w = a.ap(pattern=[[64, 4], [1, 64]], offset=0, scalar_offset=c[0:1, :], indirect_dim=0)",
        "w = a.ap(pattern=[[64, 4], [1, 64]], offset=0, scalar_offset=k, indirect_dim=0)",
    ),
    (
        "ap-dynamic",
        "w = a.ap(pattern=[[64, 4], [1, 64]], offset=0, scalar_offset=k, indirect_dim=2)",
        "w = a.ap(pattern=[[64, 4], [1, 64]], offset=0, scalar_offset=k, indirect_dim=1)",
    ),
    ("uninitialised-read", "nisa.tensor_copy(dst=t, src=u)", "nisa.tensor_copy(dst=u, src=t)"),
    (
        "uninitialised-read",
        "nisa.memset(dst=u[:, 0:63], value=0.0)\nnisa.tensor_copy(dst=t, src=u)",
        "nisa.memset(dst=u[:, 0:63], value=0.0)\nnisa.memset(dst=u[:, 63:64], value=0.0)\n"
        "nisa.tensor_copy(dst=t, src=u)",
    ),
    (
        "lost-write",
        "nisa.tensor_copy(dst=u, src=s)\nnisa.tensor_copy(dst=t, src=u)\nnisa.tensor_copy(dst=u, src=s)\n"
        "nisa.tensor_copy(dst=u, src=s)",
        # read in part is read: padding rows are never looked at
        "nisa.tensor_copy(dst=u, src=s)\nnisa.tensor_copy(dst=t[0:64, :], src=u[0:64, :])\n"
        "nisa.tensor_copy(dst=u, src=s)",
        Settings(fuzz=1),
    ),
    ("input-written", "nisa.dma_copy(dst=a, src=s)", "nisa.dma_copy(dst=s, src=a)"),
    (
        "hbm-order",
        NEW.format("(128, 64)", "float32", "private_hbm")
        + "\nnisa.dma_copy(dst=w, src=s)\nnisa.dma_copy(dst=u, src=w)",
        NEW.format("(128, 64)", "float32", "private_hbm")
        + "\nwith nl.no_reorder():\n    nisa.dma_copy(dst=w, src=s)\n    nisa.dma_copy(dst=u, src=w)",
    ),
    (
        "hbm-order",
        NEW.format("(128, 64)", "float32", "private_hbm")
        + "\nnisa.dma_copy(dst=w, src=s)\nnisa.dma_copy(dst=w, src=t)",
        NEW.format("(128, 64)", "float32", "private_hbm")
        + "\nnisa.dma_copy(dst=w[:, 0:32], src=s[:, 0:32])\nnisa.dma_copy(dst=w[:, 32:64], src=t[:, 32:64])",
    ),
    ("output-space", "return s", ""),
    ("output-space", "return a", ""),
    ("output-space", "return 1", ""),
    (
        "output-unwritten",
        "nisa.dma_copy(dst=out[0:64, :], src=s[0:64, :])\nreturn out",
        "nisa.dma_copy(dst=out, src=s)\nreturn out",
    ),
    ("tensor-arithmetic", "w = s + t", "w = 1 + 2"),
    ("tensor-arithmetic", "s += t", ""),
    ("tensor-arithmetic", "s[:, 0:1] = 0.0", ""),
    ("tensor-conditional", "if s:\n    pass", "if part(1):\n    pass"),
    ("tensor-conditional", "w = s == t", "w = s.shape == t.shape"),
    ("operand-type", "nisa.tensor_copy(dst=u, src=1.0)", "nisa.memset(dst=u, value=1.0)"),
    ("operand-space", "nisa.tensor_copy(dst=u, src=a)", "nisa.dma_copy(dst=u, src=a)"),
    (
        "element-count",
        "nisa.tensor_tensor(dst=u, data1=s, data2=c, op=nl.add)",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=c)",
    ),
    (
        "both-psum",
        "nisa.tensor_tensor(dst=u[0:64, :], data1=x, data2=x, op=nl.add)",
        "nisa.tensor_tensor(dst=u[0:64, :], data1=x, data2=s[0:64, :], op=nl.add)",
    ),
    (
        "both-psum",
        "nisa.scalar_tensor_tensor(dst=u[0:64, :], data=x, op0=nl.add, operand0=1.0, op1=nl.add, operand1=x)",
        "nisa.scalar_tensor_tensor(dst=u[0:64, :], data=x, op0=nl.add, operand0=1.0, op1=nl.add, operand1=e)",
    ),
    (
        "scalar-operand",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=1)",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=1.0)",
    ),
    ("scalar-operand", "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=t)", ""),
    ("scalar-operand", "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=c, op1=nl.add)", ""),
    ("value-type", "nisa.memset(dst=u, value=0)", "nisa.memset(dst=k, value=0)"),
    ("value-type", "nisa.memset(dst=k, value=0.0)", "nisa.memset(dst=u, value=0.0)"),
    (
        "engine",
        "nisa.tensor_copy(dst=u, src=s, engine=nisa.engine.scalar)",
        "nisa.tensor_copy(dst=u, src=s, engine=nisa.engine.gpsimd)",
    ),
    (
        "engine",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.subtract, operand0=1.0, engine=nisa.engine.scalar)",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.multiply, operand0=1.0, engine=nisa.engine.scalar)",
        GEN3,
    ),
    (
        "engine",
        ACT.format("copy", ", engine=nisa.engine.vector"),
        ACT.format("copy", ", engine=nisa.engine.scalar"),
        Settings(release="0.7.0"),
    ),
    ("engine", "nisa.dma_copy(dst=u, src=a, engine=nisa.engine.sync)", "nisa.dma_copy(dst=u, src=a)"),
    (
        "gpsimd-psum",
        "nisa.tensor_copy(dst=u[0:64, :], src=x, engine=nisa.engine.gpsimd)",
        "nisa.tensor_copy(dst=u[0:64, :], src=x, engine=nisa.engine.vector)",
    ),
    ("dma-psum", "nisa.dma_copy(dst=out[0:64, :], src=x)", "nisa.tensor_copy(dst=u[0:64, :], src=x)"),
    ("dma-spaces", "nisa.dma_copy(dst=u, src=s)", "nisa.tensor_copy(dst=u, src=s)"),
    ("dma-shape", NEW.format("(128, 8, 8)", "float32", "sbuf") + "\nnisa.dma_copy(dst=w, src=a)", ""),
    (
        "dma-hwdge",
        "nisa.dma_copy(dst=u, src=a, dge_mode=nisa.dge_mode.hwdge)",
        "nisa.dma_copy(dst=u, src=a, dge_mode=nisa.dge_mode.none)",
    ),
    (
        "dma-cast",
        NEW.format("(128, 64)", "bfloat16", "sbuf") + "\nnisa.dma_copy(dst=w, src=a, dge_mode=nisa.dge_mode.hwdge)",
        NEW.format("(128, 64)", "bfloat16", "sbuf") + "\nnisa.dma_copy(dst=w, src=a, dge_mode=nisa.dge_mode.swdge)",
        GEN3,
    ),
    ("dma-priority", "nisa.dma_copy(dst=u, src=a, priority=1)", "nisa.dma_copy(dst=u, src=a)", V4),
    (
        "matmul-rank",
        "w = nl.ndarray((128, 8, 8), dtype=nl.float32)\nnisa.memset(dst=w, value=0.0)\n"
        + MATMUL.format("y", "w", "t", False, ""),
        "w = nl.ndarray((128, 2, 64), dtype=nl.float32)\nnisa.memset(dst=w, value=0.0)\n"
        + MATMUL.format("y", "w[:, 1, :]", "t", False, ""),
    ),
    (
        "matmul-space",
        MATMUL.format("y", "x", "s[0:64, :]", False, ""),
        MATMUL.format("y", "e", "s[0:64, :]", False, ""),
    ),
    (
        "matmul-size",
        "w = nl.ndarray((128, 129), dtype=nl.float32)\nnisa.memset(dst=w, value=0.0)\n"
        + MATMUL.format("y", "w", "t", False, ""),
        "",
    ),
    (
        "matmul-size",
        "w = nl.ndarray((128, 513), dtype=nl.float32)\nnisa.memset(dst=w, value=0.0)\n"
        + MATMUL.format("y", "s", "w", False, ""),
        "",
    ),
    (
        "matmul-contraction",
        MATMUL.format("y", "s", "t[0:64, :]", False, ""),
        MATMUL.format("y", "s[0:64, :]", "t[0:64, :]", False, ""),
    ),
    (
        "matmul-start",
        MATMUL.format("y", "s[0:64, :]", "t[64:128, :]", False, ""),
        MATMUL.format("y", "s[64:128, :]", "t[64:128, :]", False, ""),
    ),
    (
        "matmul-dst",
        MATMUL.format("y[:, 0:32]", "s", "t", False, ""),
        MATMUL.format("y[:, 0:32]", "s", "t[:, 0:32]", False, ""),
    ),
    (
        "matmul-dst",
        NEW.format("(128, 64)", "float32", "psum") + "\n" + MATMUL.format("w[64:128, :]", "s", "t", False, ""),
        NEW.format("(128, 64)", "float32", "psum") + "\n" + MATMUL.format("w[0:64, :]", "s", "t", False, ""),
    ),
    (
        "matmul-dtype",
        "w = nl.ndarray((128, 64), dtype=nl.bfloat16)\nnisa.memset(dst=w, value=1.0)\n"
        + MATMUL.format("y", "w", "t", False, ""),
        "w = nl.ndarray((128, 64), dtype=nl.tfloat32)\nnisa.memset(dst=w, value=1.0)\n"
        + MATMUL.format("y", "w", "t", False, ""),
    ),
    (
        "matmul-dtype",
        NEW.format("(64, 64)", "bfloat16", "psum") + "\n" + MATMUL.format("w", "s", "t", False, ""),
        NEW.format("(64, 64)", "float32", "psum") + "\n" + MATMUL.format("w", "s", "t", False, ""),
    ),
    ("matmul-accumulate", MATMUL.format("x", "s", "t", 1, ""), MATMUL.format("x", "s", "t", True, "")),
    ("matmul-accumulate", "nisa.nc_matmul(dst=y, stationary=s, moving=t)", ""),
    ("matmul-group", MATMUL.format("y", "s", "t", True, ""), MATMUL.format("x", "s", "t", True, "")),
    # a write by another engine ends the group
    ("matmul-group", "nisa.memset(dst=x[:, 0:1], value=0.0)\n" + MATMUL.format("x", "s", "t", True, ""), ""),
    # accumulate=False on a part closes the older group; two groups side by side are fine
    (
        "matmul-group",
        MATMUL.format("x[:, 0:32]", "s", "t[:, 0:32]", False, "")
        + "\n"
        + MATMUL.format("x[:, 32:64]", "s", "t[:, 0:32]", True, ""),
        MATMUL.format("y[:, 0:32]", "s", "t[:, 0:32]", False, "")
        + "\n"
        + MATMUL.format("y[:, 32:64]", "s", "t[:, 0:32]", False, "")
        + "\n"
        + MATMUL.format("y[:, 0:32]", "s", "t[:, 0:32]", True, ""),
    ),
    (
        "matmul-group",
        MATMUL.format("y[:, 0:32]", "s", "t[:, 0:32]", False, "") + "\n" + MATMUL.format("y", "s", "t", True, ""),
        MATMUL.format("y", "s", "t", False, "") + "\n" + MATMUL.format("y[:, 0:32]", "s", "t[:, 0:32]", True, ""),
    ),
    # even columns only were initialised
    (
        "matmul-group",
        MATMUL.format("y[:, 0:63:2]", "s", "t[:, 0:32]", False, "")
        + "\n"
        + MATMUL.format("y[:, 0:32]", "s", "t[:, 0:32]", True, ""),
        MATMUL.format("y[:, 0:63:2]", "s", "t[:, 0:32]", False, "")
        + "\n"
        + MATMUL.format("y[:, 0:63:2]", "s", "t[:, 0:32]", True, ""),
    ),
    (
        "matmul-transpose",
        MATMUL.format("y", "s[0:64, :]", "t[0:64, :]", False, ", is_transpose=True"),
        MATMUL.format("y", "s[0:64, :]", "e", False, ", is_transpose=True"),
    ),
    (
        "matmul-transpose",
        MATMUL.format("y[:, 0:32]", "s[0:64, :]", "e[:, 0:32]", False, ", is_transpose=True"),
        MATMUL.format("y[:, 0:32]", "s[0:64, :]", "e[:, 0:32]", False, ""),
    ),
    ("matmul-transpose", MATMUL.format("x", "s[0:64, :]", "e", True, ", is_transpose=True"), ""),
    (
        "matmul-onezero",
        MATMUL.format("y", "s", "t", False, ", is_moving_onezero=True"),
        MATMUL.format("y", "s[0:64, :]", "e", False, ", is_moving_onezero=True"),
    ),
    ("activation-op", ACT.format("add", ""), ACT.format("exp", "")),
    ("activation-bias", ACT.format("copy", ", bias=0.5"), ACT.format("copy", ", bias=c")),
    ("activation-bias", ACT.format("copy", ", bias=t"), ""),
    (
        "activation-bias",
        "w = nl.ndarray((128, 1), dtype=nl.tfloat32)\nnisa.memset(dst=w, value=1.0)\n" + ACT.format("copy", ", bias=w"),
        "w = nl.ndarray((128, 1), dtype=nl.bfloat16)\nnisa.memset(dst=w, value=1.0)\n" + ACT.format("copy", ", bias=w"),
    ),
    # GpSimd takes tensor_scalar for rsqrt only
    ("engine", "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=1.0, engine=nisa.engine.gpsimd)", ""),
    ("activation-bias", ACT.format("copy", ", bias=1"), ACT.format("copy", ", bias=0.5"), GEN3),
    ("activation-scale", ACT.format("copy", ", scale=2"), ACT.format("copy", ", scale=2.0")),
    (
        "activation-scale",
        "w = nl.ndarray((128, 1), dtype=nl.bfloat16)\nnisa.memset(dst=w, value=1.0)\n"
        + ACT.format("copy", ", scale=w"),
        ACT.format("copy", ", scale=c"),
    ),
    ("activation-reciprocal", ACT.format("reciprocal", ", bias=c"), ACT.format("reciprocal", ", scale=c")),
    ("activation-domain", ACT.format("rsqrt", ", scale=-1.0"), ACT.format("rsqrt", "")),
    ("activation-domain", ACT.format("sqrt", ", scale=0.0"), ACT.format("sqrt", "")),
    ("activation-domain", ACT.format("reciprocal", ", scale=1e-20"), ACT.format("reciprocal", ", scale=-1.0")),
    ("activation-reduce", ACT.format("copy", ", reduce_op=nl.add, reduce_res=c"), ACT.format("copy", SUM + "c")),
    ("activation-reduce", ACT.format("copy", SUM.replace("reset_reduce", "reduce") + "c"), ""),
    ("activation-reduce", ACT.format("copy", SUM.replace("add", "multiply") + "c"), ""),
    ("activation-result", ACT.format("copy", SUM + "u[:, 0:1]"), ACT.format("copy", SUM + "t[:, 0:1]")),
    ("activation-result", ACT.format("copy", SUM + "t[:, 0:2]"), ""),
    (
        "reciprocal-domain",
        "nisa.memset(dst=t[:, 0:1], value=0.0)\nnisa.reciprocal(dst=u, data=t)",
        "nisa.reciprocal(dst=u, data=t)",
    ),
    (
        "reduce-axis",
        "nisa.tensor_reduce(dst=c, op=nl.add, data=s, axis=0)",
        "nisa.tensor_reduce(dst=c, op=nl.add, data=s, axis=1)",
    ),
    (
        "reduce-axis",
        NEW.format("(128, 2, 2)", "float32", "sbuf")
        + "\nnisa.memset(dst=w, value=1.0)\nnisa.tensor_reduce(dst=u[:, 0:2], op=nl.add, data=w, axis=(1,))",
        NEW.format("(128, 2, 2)", "float32", "sbuf")
        + "\nnisa.memset(dst=w, value=1.0)\nnisa.tensor_reduce(dst=u[:, 0:2], op=nl.add, data=w, axis=(2,))",
    ),
    ("loop-index", LOOP.format(2) + "w = i + 1", LOOP.format(2) + "nisa.memset(dst=u, value=1.0)"),
    ("loop-index", LOOP.format(2) + "w = s[:, 0:i]", ""),
    ("loop-index", LOOP.format(2) + "if i == 0:\n        pass", ""),
    ("loop-index", "r = nisa.register_alloc(x=1)\nwhile r:\n    pass", ""),
    (
        "loop-offset",
        LOOP.format(2) + "w = a.ap(pattern=[[64, 4], [1, 64]], offset=0, scalar_offset=i, indirect_dim=0)",
        LOOP.format(2) + "w = a.ap(pattern=[[64, 4], [1, 64]], offset=0, scalar_offset=k, indirect_dim=0)",
    ),
    ("loop-step", LOOP.format("0, 4, 0") + "pass", LOOP.format("0, 4, 2") + "pass"),
    ("loop-step", "r = nisa.register_alloc(x=1)\n" + LOOP.format("0, 4, r") + "pass", ""),
    (
        "loop-no-reorder",
        "with nl.no_reorder():\n    for i in nl.dynamic_range(2):\n        pass",
        LOOP.format(2) + "with nl.no_reorder():\n        pass",
    ),
    ("loop-nested", LOOP.format(2) + "for j in nl.dynamic_range(2):\n        pass", LOOP.format(2) + "pass"),
    (
        "loop-scope",
        LOOP.format(2) + NEW.format("(8, 8)", "float32", "sbuf") + "\n    nisa.memset(dst=w, value=0.0)\n"
        "nisa.tensor_copy(dst=u[0:8, 0:8], src=w)",
        LOOP.format(2) + NEW.format("(8, 8)", "float32", "sbuf") + "\n    nisa.memset(dst=w, value=0.0)\n"
        "    nisa.tensor_copy(dst=u[0:8, 0:8], src=w)",
    ),
    ("loop-scope", LOOP.format(2) + "pass\nw = a.ap(pattern=[[64, 4], [1, 64]], offset=0, scalar_offset=i)", "", V4),
    ("register", "r = nisa.register_alloc()\nfor i in nl.dynamic_range(r):\n    pass", "r = nisa.register_alloc(x=2)"),
    (
        "register",
        "r = nisa.register_alloc()\nnisa.register_load(dst=r, src=c[0:1, :])",
        "r = nisa.register_alloc()\nnisa.register_load(dst=r, src=k)\nfor i in nl.dynamic_range(r):\n    pass",
    ),
    ("register", "nisa.register_move(dst=s, src=1)", "nisa.register_move(dst=nisa.register_alloc(), src=1)"),
    ("register", "r = nisa.register_alloc(x=1.0)", "r = nisa.register_alloc(x=1)"),
    ("register", "nisa.register_load(dst=1, src=k)", ""),
    ("register", LOOP.format("2.0") + "pass", LOOP.format(2) + "pass"),
    ("not-in-subset", "nisa.tensor_reduce(dst=c, op=nl.subtract, data=s, axis=1)", ""),
    ("signature", "nisa.dma_copy(dst=u, src=a, priority=1)", "nisa.dma_copy(dst=u, src=a)"),
    (
        "signature",
        "nisa.tensor_scalar_reduce(dst=u, data=s, op0=nl.add, operand0=1.0, reduce_op=nl.add)",
        "nisa.tensor_scalar_reduce(dst=u, data=s, op0=nl.add, operand0=1.0, reduce_op=nl.add, reduce_res=c)",
    ),
    ("enum-value", "mode = 3\nnisa.dma_copy(dst=u, src=a, dge_mode=mode)", "nisa.dma_copy(dst=u, src=a)"),
    ("release-name", "nl.fori_loop(0, 2, part)", LOOP.format(2) + "pass"),
    ("release-name", LOOP.format(2) + "pass", "nl.fori_loop(0, 2, part)", Settings(release="0.7.0")),
    ("sub-kernel", "call = other\nw = call(a)", "call = part\nw = call(a)"),
    ("kernel-assert", "assert a.shape == (128, 65), f'{a.shape}'", "assert a.shape == (128, 64), f'{a.shape}'"),
    ("element-count", "nisa.tensor_reduce(dst=u[:, 0:2], op=nl.add, data=s, axis=1)", ""),
    ("not-in-subset", ROWS_OF.format("c", ", reduce_cmd=nisa.reduce_cmd.reduce"), ROWS_OF.format("c", ""), V4),
    ("not-in-subset", ROWS_OF.format("None", ""), ROWS_OF.format("c", ""), V6),
    ("activation-result", ROWS_OF.format("u[:, 0:1]", ""), ROWS_OF.format("t[:, 0:1]", "")),
    (
        "scalar-operand",
        "w = nl.ndarray((128, 1), dtype=nl.bfloat16)\nnisa.memset(dst=w, value=1.0)\n"
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=w)",
        "",
    ),
    ("positional", "fill = nisa.memset\nfill(u, value=0.0)", "fill = nisa.memset\nfill(dst=u, value=0.0)"),
    ("not-in-subset", "call = nisa.nc_transpose", "call = nisa.memset"),
    ("not-in-subset", "nisa.dma_copy(dst=u, src=a, oob_mode=nisa.oob_mode.skip)", ""),
    ("not-in-subset", "w = s.ap(pattern=[[64, 128], [1, 32]], offset=0, dtype=nl.float16)", ""),
    ("operand-type", "nisa.dma_copy(dst=u, src=1.0)", ""),
    ("index", "w = nl.ndarray((8, 2, 4), dtype=nl.float32)[:, 2, :]", ""),
    ("kernel-error", "w = (1, 2)[a.shape[0]]", "w = (1, 2)[1]"),
    ("kernel-error", "nisa.memset(dst=u, value=0.0, engine=nisa.engine.warp)", ""),
    ("kernel-error", "w = part()", "w = part(1)"),
    ("not-in-subset", MATMUL.format("y", "s", "t", False, ", tile_position=(0, 0), tile_size=(128, 128)"), ""),
    ("not-in-subset", "nisa.tensor_tensor(dst=u, data1=s, data2=t, op=nl.square)", ""),
    ("not-in-subset", "w = nl.add(s, t)", ""),
]


def write(folder, body: str) -> tuple[str, int]:
    """Path of a kernel file with `body`, and the first line of the body."""
    path = folder / "kernel.py"
    text = KERNEL.format(body="\n".join("    " + line for line in (body or "pass").splitlines()))
    path.write_text(text)
    return str(path), KERNEL[: KERNEL.index("{body}")].count("\n") + 1


def arguments() -> dict[str, object]:
    values = np.random.default_rng(5).uniform(0.5, 1.5, (2, 128, 64)).astype(np.float32)
    return {
        "a": values[0],
        "b": values[1],
        "identity": np.eye(64, dtype=np.float32),
        "one": np.ones((1, 1), dtype=np.int32),
    }


ROWS = [
    pytest.param(*row[:3], row[3] if len(row) > 3 else Settings(), id=f"{n}:{row[0]}") for n, row in enumerate(CASES)
]


@pytest.mark.parametrize(("rule", "bad", "good", "settings"), ROWS)
def test_rule_refuses_the_kernel_that_breaks_it(tmp_path, rule, bad, good, settings):
    path, first = write(tmp_path, bad)
    with pytest.raises(Violation) as caught:
        run_kernel(path, "kernel", arguments(), settings)
    error = caught.value
    assert error.rule == rule
    assert isinstance(error, NotInSubset) == (rule == "not-in-subset")
    assert error.allowed in str(error)
    assert error.source in str(error)
    if error.place and rule != "output-unwritten":
        line = int(error.place.removeprefix("kernel.py:"))
        assert first <= line < first + len(bad.splitlines())


@pytest.mark.parametrize(("rule", "bad", "good", "settings"), ROWS)
def test_rule_lets_the_corrected_kernel_pass(tmp_path, rule, bad, good, settings):
    path, _ = write(tmp_path, good)
    (out,), _ = run_kernel(path, "kernel", arguments(), settings)
    assert out.shape == (128, 64)


def test_counts_only_finds_the_rules_that_need_no_data(tmp_path):
    needs_data = {"activation-domain", "reciprocal-domain", "matmul-onezero", "matmul-transpose"}
    given = {**arguments(), "a": Shape((128, 64)), "b": Shape((128, 64)), "identity": Shape((64, 64))}
    for rule, bad, _, *settings in CASES:
        if rule in needs_data or settings:
            continue
        path, _ = write(tmp_path, bad)
        with pytest.raises(Violation) as caught:
            run_kernel(path, "kernel", given, Settings(arithmetic=False))
        assert caught.value.rule == rule


def test_every_rule_has_a_kernel_that_breaks_it():
    elsewhere = {"kernel-arguments"}
    tested = {row[0] for row in CASES} | {row[0] for row in BODY} | {row[0] for row in MODULE_LEVEL} | elsewhere
    assert tested == set(RULES)


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, (1, [2]), object()])
def test_kernel_arguments_are_arrays_and_constants(tmp_path, value):
    path, _ = write(tmp_path, "")
    with pytest.raises(Violation) as caught:
        run_kernel(path, "kernel", {**arguments(), "one": value}, Settings())
    assert caught.value.rule == "kernel-arguments"


def test_arrays_have_device_formats_and_ranks(tmp_path):
    path, _ = write(tmp_path, "")
    for value, rule in ((np.zeros((128, 64)), "tensor-dtype"), (np.zeros(64, np.float32), "tensor-rank")):
        with pytest.raises(Violation) as caught:
            run_kernel(path, "kernel", {**arguments(), "a": value}, Settings())
        assert caught.value.rule == rule


def test_wrong_calls_say_what_is_there(tmp_path):
    path, _ = write(tmp_path, "")
    with pytest.raises(InputError, match=r"no kernel product; its kernels: other, kernel"):
        run_kernel(path, "product", arguments())
    with pytest.raises(InputError, match=r"kernel takes a, b, identity, one; given: a"):
        run_kernel(path, "kernel", {"a": arguments()["a"]})
    with pytest.raises(InputError, match=r"arithmetic=False"):
        run_kernel(path, "kernel", {**arguments(), "a": Shape((128, 64))})
    with pytest.raises(InputError, match=r"no file .*missing\.py"):
        run_kernel("dfmp2.trainium.missing", "kernel", {})
    with pytest.raises(InputError, match=r"compiler_sbuf=-1"):
        Settings(compiler_sbuf=-1)
    with pytest.raises(InputError, match=r"release='1\.0'; choose one of 0\.3\.0"):
        Settings(release="1.0")
    assert issubclass(Violation, KernelError)


@pytest.mark.parametrize(
    ("text", "rule", "place"),
    [
        (b"from other import missing\n", "import", "kernel.py:1"),
        (b"from kernel import missing\n", "import", "kernel.py:1"),
        (b"import nki\nLIMIT = UNKNOWN\n", "kernel-error", "kernel.py:2"),
        (b"LIMIT = 1 // 0\n", "kernel-error", "kernel.py:1"),
        (b"\xff\xfe", "syntax", "kernel.py"),
        (b"x = 1\0", "syntax", "kernel.py"),
        (b"def f(:\n", "syntax", "kernel.py:1"),
    ],
)
def test_files_that_do_not_load_are_violations(tmp_path, text, rule, place):
    path = tmp_path / "kernel.py"
    path.write_bytes(text)
    (tmp_path / "other.py").write_text("PRESENT = 1\n")
    with pytest.raises(Violation) as caught:
        run_kernel(str(path), "kernel", {})
    assert (caught.value.rule, caught.value.place) == (rule, place)


def test_kernel_files_are_not_modules_of_the_process(tmp_path):
    """Two files, one importing the other, run without leaving anything in sys.modules."""
    (tmp_path / "shared_rows.py").write_text(
        "import nki.language as nl\n\nROWS = 128\n\n\ndef rows():\n    return ROWS\n"
    )
    path, _ = write(tmp_path, "w = nl.ndarray((rows(), ROWS), dtype=nl.float32)")
    text = Path(path).read_text()
    Path(path).write_text("from shared_rows import ROWS, rows\n" + text)
    before = set(sys.modules)
    (out,), _ = run_kernel(path, "kernel", arguments())
    assert out.shape == (128, 64)
    assert not {name for name in set(sys.modules) - before if "nki" in name or "rows" in name}
    assert "nki" not in sys.modules
