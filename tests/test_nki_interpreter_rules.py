"""For each documented rule, one small kernel that breaks just that rule, and its correction.

Each row: rule, statements that break it, statements that do not, settings; helper functions are in
a file beside the kernel. A pair too long for one line takes two rows, the second without violation. `s`, `t`
are SBUF tiles (128, 64) loaded from the inputs (values in 0.5..1.5), `u` an SBUF tile not yet
written, `c` a column (128, 1) of ones, `x` a PSUM tile (64, 64) that holds s^T t, `y` a PSUM tile
not yet written, `e` an SBUF identity (64, 64); `s64` and so on are first 64 rows, `t32` and so on
first 32 columns, `even` the even columns of `y`.
"""

from __future__ import annotations

import re
from runpy import run_path

import numpy as np
import pytest

from dfmp2.trainium.interpreter.arithmetic import DTYPES
from dfmp2.trainium.interpreter.memory import overlap
from dfmp2.trainium.interpreter.rules import INSTEAD_OF, RULES, NotInSubset, Violation
from dfmp2.trainium.interpreter.run import Settings, Shape, run_kernel
from dfmp2.trainium.interpreter.signatures import ENUMERATIONS, INSTRUCTIONS, OPERATORS, REGIONS
from tests.stand_in_nki.site import PACKAGES
from tests.test_nki_lint import BODY, MODULE_LEVEL

HELPERS = """\
import nki
import nki.isa as nisa
import nki.language as nl

HALF = ((64, 128), (1, 32))


def part(x):
    return x


def new(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def psum(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum)


def hbm():
    return new((128, 64), nl.float32, nl.private_hbm)


def filled(shape, dtype=nl.float32):
    w = new(shape, dtype)
    nisa.memset(dst=w, value=1.0)
    return w


def move(dst, src, mode=nisa.dge_mode.unknown):
    nisa.dma_copy(dst=dst, src=src, dge_mode=mode)


def copy(dst, src, engine=nisa.engine.unknown):
    nisa.tensor_copy(dst=dst, src=src, engine=engine)


def fill(dst, value):
    nisa.memset(dst=dst, value=value)


def product(dst, stationary, moving, accumulate, onezero=False, transpose=False):
    nisa.nc_matmul(dst=dst, stationary=stationary, moving=moving, accumulate=accumulate, is_moving_onezero=onezero,
                   is_transpose=transpose)


def act(dst, data, op, bias=None, scale=1.0):
    nisa.activation(dst=dst, op=op, data=data, bias=bias, scale=scale)


def summed(dst, data, result, op=nl.add, command=nisa.reduce_cmd.reset_reduce):
    nisa.activation(dst=dst, op=nl.copy, data=data, reduce_op=op, reduce_cmd=command, reduce_res=result)


def plus(dst, data, operand):
    nisa.tensor_scalar(dst=dst, data=data, op0=nl.add, operand0=operand)


def plus_summed(dst, data, result):
    nisa.tensor_scalar_reduce(dst=dst, data=data, op0=nl.add, operand0=1.0, reduce_op=nl.add, reduce_res=result)


def sum_of(dst, data1, data2):
    nisa.tensor_tensor(dst=dst, data1=data1, data2=data2, op=nl.add)


def reduce(dst, data, axis):
    nisa.tensor_reduce(dst=dst, op=nl.add, data=data, axis=axis)
"""
KERNEL = """\
import nki
import nki.isa as nisa
import nki.language as nl
from helpers import (
    HALF, part, new, psum, hbm, filled, move, copy, fill, product, act, summed, plus,
    plus_summed, sum_of, reduce,
)


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
    s64 = s[0:64, :]
    t64 = t[0:64, :]
    u64 = u[0:64, :]
    t32 = t[:, 0:32]
    y32 = y[:, 0:32]
    e32 = e[:, 0:32]
    x32 = x[:, 0:32]
    even = y[:, 0:63:2]
{body}
    nisa.dma_copy(dst=out, src=s)
    return out
"""
GEN3 = Settings(target="gen3")
NARROW = "v = new((64, 64), nl.bfloat16); copy(v, e); product({}, v, v, False, transpose=True)"


def big(first: int, second: int) -> str:
    """Two SBUF tiles of 100,000 bytes per partition; the first is used `second` times after the
    second is declared."""
    lines = [
        "v = nl.ndarray((128, 25000), dtype=nl.float32, buffer=nl.sbuf)",
        "nisa.memset(dst=v[:, 0:1], value=0.0)",
    ]
    lines += [
        "w = nl.ndarray((128, 25000), dtype=nl.float32, buffer=nl.sbuf)",
        "nisa.memset(dst=w, value=0.0)",
    ]
    return "\n".join(lines[:first] + ["nisa.tensor_copy(dst=u[:, 0:1], src=v[:, 0:1])"] * second)


def stored(columns: int) -> str:
    """A store into a part of the rows of an HBM tensor."""
    return (
        f"w = new((128, {columns}), nl.float32, nl.private_hbm); move(w[:, 0:512], "
        "filled((128, 512)))"
    )


def banks(count: int) -> str:
    """`count` PSUM tiles alive at once."""
    lines = [f"w{n} = psum((64, 8)); fill(w{n}, 0.0)" for n in range(count)]
    return "\n".join(lines + [f"fill(w{n}, 0.0)" for n in range(count)])


CASES = [
    ("partition-count", "w = new((129, 4))", "w = new((128, 4))"),
    ("partition-start", "fill(u[16:32, :], 0.0)", "fill(u[96:128, :], 0.0)"),
    ("partition-start", "fill(u[32:96, :], 0.0)", "fill(u[64:128, :], 0.0)"),
    ("partition-start", "fill(u[32:97, :], 0.0)", "fill(u[0:65, :], 0.0)"),
    ("partition-start", "copy(u[8:16, :], s[0:8, :])", "move(u[8:16, :], a[8:16, :])"),
    ("partition-step", "w = s[0:128:2, :]", "w = s[:, 0:64:2]"),
    ("partition-match", "copy(u[0:32, :], s)", "copy(u[0:32, :], s[64:96, :])"),
    ("partition-match", "plus(u64, s64, c[0:32, :])", "plus(u64, s64, c[0:64, :])"),
    ("tensor-rank", "w = new((128,))", "w = new((128, 2, 2, 2))"),
    ("tensor-rank", "w = new((128, 1, 1, 1, 1))", ""),
    ("tensor-shape", "w = new((128, 0))", ""),
    ("tensor-shape", "w = new((128, 2.0))", ""),
    (
        "tensor-dtype",
        "w = nl.ndarray((128, 2), dtype='float32', buffer=nl.sbuf)",
        "w = new((2, 2), nl.uint8)",
    ),
    ("buffer-object", "name = 'sbuf'; w = nl.ndarray((128, 2), dtype=nl.float32, buffer=name)", ""),
    ("sbuf-capacity", big(4, 1), big(4, 0)),
    ("sbuf-capacity", "w = new((128, 45057))", "w = new((128, 44000))"),
    (
        "sbuf-moved",
        "w = new((128, 16380)); move(w[:, 0:64], a)",
        "w = new((128, 16380)); copy(w[:, 0:64], s)",
    ),
    ("psum-banks", banks(9), banks(8)),
    ("index", "w = s[:, 0:65]", "w = s[:, 0:64]"),
    ("index", "w = s[:, 8:8]", "w = s[:, 8:9]"),
    ("index", "w = s[:, 0:-1]", ""),
    ("index", "w = s[0:64]", "w = s[0:64, :]"),
    ("index", "w = s[:, 0:True]", "w = s[:, 0:1]"),
    ("integer-index", "w = s[:, 3]", "w = s[:, 3:4]"),
    ("integer-index", "w = new((128, 2, 4))[:, 0, 3]", "w = new((8, 2, 4))[:, 1, :]"),
    (
        "access-pattern",
        "w = new((1, 65536), nl.uint8); fill(w, 1)",
        "w = new((1, 65535), nl.uint8); fill(w, 1)",
    ),
    ("access-pattern", "w = new((128, 2, 32768), nl.uint8); fill(w[:, :, 0:1], 1)", ""),
    ("access-pattern", "", "w = new((128, 2, 32767), nl.uint8); fill(w[:, :, 0:1], 1)"),
    ("ap-base", "w = s[:, 0:32].ap(pattern=HALF, offset=0)", "w = s.ap(pattern=HALF, offset=0)"),
    ("ap-base", "v = s.ap(pattern=HALF, offset=0); w = v.ap(pattern=HALF, offset=0)", ""),
    ("ap-pattern", "w = s.ap(pattern=[[32, 128], [1, 32]], offset=0)", ""),
    ("ap-pattern", "w = s.ap(pattern=HALF, offset=33)", ""),
    ("ap-pattern", "w = s.ap(pattern=[[64, 128]], offset=0)", ""),
    ("ap-pattern", "w = s.ap(pattern=[[64, 128], [1.0, 2]], offset=0)", ""),
    ("ap-pattern", "w = s.ap(pattern=[[64, 128], [-1, 2]], offset=8)", ""),
    ("ap-pattern", "w = s.ap(pattern=[[64, 128], [1, 0]], offset=0)", ""),
    ("uninitialised-read", "copy(t, u)", "copy(u, t)"),
    ("uninitialised-read", "fill(u[:, 0:63], 0.0); copy(t, u)", ""),
    ("uninitialised-read", "", "fill(u[:, 0:63], 0.0); fill(u[:, 63:64], 0.0); copy(t, u)"),
    ("input-written", "move(a, s)", "move(s, a)"),
    ("hbm-order", "w = hbm(); move(w, s); move(u, w)", ""),
    ("hbm-order", "", "w = hbm()\nwith nl.no_reorder():\n    move(w, s)\n    move(u, w)"),
    ("hbm-order", "", "w = hbm()\nwith nl.no_reorder():\n    move(w, s)\n    move(w, t)"),
    (
        "hbm-order",
        "w = hbm()\nwith nl.no_reorder():\n    move(w, s)\nwith nl.no_reorder():\n    move(u, w)",
        "",
    ),
    ("hbm-order", "w = hbm()\nwith nl.no_reorder():\n    move(w, s)\nmove(u, w)", ""),
    ("hbm-order", "w = hbm(); move(w, s); move(w, t)", ""),
    (
        "hbm-order",
        "w = hbm(); move(w[:, 0:32], s[:, 0:32]); move(w[:, 31:64], t[:, 31:64])",
        "w = hbm(); move(w[:, 0:32], s[:, 0:32]); move(w[:, 32:64], t[:, 32:64])",
    ),
    ("output-space", "return s", ""),
    ("output-space", "return a", ""),
    ("output-space", "return 1", ""),
    ("output-space", "move(out, s); return out[0:64, :]", "move(out, s); return out"),
    ("output-unwritten", "move(out[0:64, :], s[0:64, :]); return out", "move(out, s); return out"),
    ("tensor-arithmetic", "w = s + t", "w = 1 + 2"),
    ("tensor-arithmetic", "s += t", ""),
    ("tensor-arithmetic", "s[:, 0:1] = 0.0", ""),
    ("tensor-conditional", "if s:\n    pass", "if part(1):\n    pass"),
    ("tensor-conditional", "w = s == t", "w = s.shape == t.shape"),
    ("operand-type", "copy(u, 1.0)", "fill(u, 1.0)"),
    ("operand-space", "copy(u, a)", "move(u, a)"),
    ("element-count", "sum_of(u, s, c)", "plus(u, s, c)"),
    ("both-psum", "sum_of(u64, x, x)", "sum_of(u64, x, s64)"),
    (
        "both-psum",
        "nisa.scalar_tensor_tensor(dst=u64, data=x, op0=nl.add, operand0=1.0, op1=nl.add, "
        "operand1=x)",
        "",
    ),
    (
        "both-psum",
        "",
        "nisa.scalar_tensor_tensor(dst=u64, data=x, op0=nl.add, operand0=1.0, op1=nl.add, "
        "operand1=e)",
    ),
    ("scalar-operand", "plus(u, s, 1)", "plus(u, s, 1.0)"),
    ("scalar-operand", "plus(u, s, t)", ""),
    ("scalar-operand", "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=c, op1=nl.add)", ""),
    ("value-type", "fill(u, 0)", "fill(k, 0)"),
    ("value-type", "fill(k, 0.0)", "fill(u, 0.0)"),
    ("engine", "copy(u, s, nisa.engine.scalar)", "copy(u, s, nisa.engine.gpsimd)"),
    (
        "engine",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.subtract, operand0=1.0, "
        "engine=nisa.engine.scalar)",
        "",
        GEN3,
    ),
    (
        "engine",
        "",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.multiply, operand0=1.0, "
        "engine=nisa.engine.scalar)",
        GEN3,
    ),
    ("engine", "nisa.dma_copy(dst=u, src=a, engine=nisa.engine.sync)", "move(u, a)"),
    ("gpsimd-psum", "copy(u64, x, nisa.engine.gpsimd)", "copy(u64, x, nisa.engine.vector)"),
    ("dma-psum", "move(out[0:64, :], x)", "copy(u64, x)"),
    ("dma-shape", "w = new((128, 8, 8)); move(w, a)", ""),
    ("dma-stride", stored(2048), stored(2049)),
    ("dma-stride", stored(4096), "w = new((128, 64), nl.float32, nl.private_hbm); move(w, s)"),
    ("tensor-size", "w = new((128, 4194305), nl.float32, nl.private_hbm)", ""),
    ("dma-hwdge", "move(u, a, nisa.dge_mode.hwdge)", "move(u, a, nisa.dge_mode.none)"),
    ("dma-cast", "w = new((128, 64), nl.bfloat16); move(w, a, nisa.dge_mode.hwdge)", "", GEN3),
    ("dma-cast", "", "w = new((128, 64), nl.bfloat16); move(w, a, nisa.dge_mode.swdge)", GEN3),
    ("dma-priority", "nisa.dma_copy(dst=u, src=a, priority=1)", "move(u, a)"),
    (
        "matmul-rank",
        "product(y, filled((128, 8, 8)), t, False)",
        "product(y, filled((128, 2, 64))[:, 1, :], t, False)",
    ),
    ("matmul-rank", "product(y, s, filled((128, 8, 8)), False)", ""),
    ("matmul-space", "product(y, x, s64, False)", "product(y, e, s64, False)"),
    ("matmul-size", "product(y, filled((128, 129)), t, False)", ""),
    ("matmul-size", "product(y, s, filled((128, 513)), False)", ""),
    ("matmul-contraction", "product(y, s, t64, False)", "product(y, s64, t64, False)"),
    (
        "matmul-start",
        "product(y, s64, t[64:128, :], False)",
        "product(y, s[64:128, :], t[64:128, :], False)",
    ),
    ("matmul-dst", "product(y32, s, t, False)", "product(y32, s, t32, False)"),
    ("matmul-dst", "w = psum((128, 64)); product(w[64:128, :], s, t, False)", ""),
    ("matmul-dst", "", "w = psum((128, 64)); product(w[0:64, :], s, t, False)"),
    ("matmul-dtype", "product(y, filled((128, 64), nl.bfloat16), t, False)", ""),
    ("matmul-dtype", "", "product(y, filled((128, 64), nl.tfloat32), t, False)"),
    ("matmul-dtype", "w = psum((64, 64), nl.bfloat16); product(w, s, t, False)", ""),
    ("matmul-dtype", "", "w = psum((64, 64)); product(w, s, t, False)"),
    ("matmul-accumulate", "product(x, s, t, 1)", "product(x, s, t, True)"),
    (
        "matmul-accumulate",
        "product(y32, s, t32, False); product(y, s, t, None)",
        "product(y, s, t, None)",
    ),
    ("matmul-group", "product(y, s, t, True)", "product(x, s, t, True)"),
    ("matmul-group", "fill(x[:, 0:1], 0.0); product(x, s, t, True)", ""),
    (
        "matmul-group",
        "product(x32, s, t32, False); product(x[:, 32:64], s, t32, True)",
        "w = t32; product(y32, s, w, False); product(y[:, 32:64], s, w, False); product(y32, s, w, "
        "True)",
    ),
    ("matmul-group", "product(y32, s, t32, False); product(y, s, t, True)", ""),
    ("matmul-group", "", "product(y, s, t, False); product(y32, s, t32, True)"),
    ("matmul-group", "product(even, s, t32, False); product(y32, s, t32, True)", ""),
    ("matmul-group", "", "product(even, s, t32, False); product(even, s, t32, True)"),
    (
        "matmul-transpose",
        "product(y, s64, t64, False, transpose=True)",
        "product(y, s64, e, False, transpose=True)",
    ),
    (
        "matmul-transpose",
        "product(y32, s64, e32, False, transpose=True)",
        "product(y32, s64, e32, False)",
    ),
    ("matmul-transpose", "product(x, s64, e, True, transpose=True)", ""),
    (
        "matmul-onezero",
        "product(y, s, t, False, onezero=True)",
        "product(y, s64, e, False, onezero=True)",
    ),
    ("activation-op", "act(u, s, nl.add)", "act(u, s, nl.exp)"),
    ("activation-bias", "act(u, s, nl.square, bias=0.5)", "act(u, s, nl.square, bias=c)"),
    ("activation-bias", "act(u, s, nl.square, bias=t)", ""),
    ("activation-copy-bias", "act(u, s, nl.copy, bias=c)", "plus(u, s, c)"),
    ("activation-bias", "act(u, s, nl.square, bias=filled((128, 1), nl.tfloat32))", ""),
    ("activation-bias", "", "act(u, s, nl.square, bias=filled((128, 1), nl.bfloat16))"),
    (
        "engine",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=1.0, engine=nisa.engine.gpsimd)",
        "",
    ),
    ("activation-bias", "act(u, s, nl.copy, bias=1)", "act(u, s, nl.copy, bias=0.5)", GEN3),
    ("activation-scale", "act(u, s, nl.copy, scale=2)", "act(u, s, nl.copy, scale=2.0)"),
    (
        "activation-scale",
        "act(u, s, nl.copy, scale=filled((128, 1), nl.bfloat16))",
        "act(u, s, nl.copy, scale=c)",
    ),
    (
        "activation-reciprocal",
        "act(u, s, nl.reciprocal, bias=c)",
        "act(u, s, nl.reciprocal, scale=c)",
    ),
    ("activation-domain", "act(u, s, nl.rsqrt, scale=-1.0)", "act(u, s, nl.rsqrt)"),
    ("activation-domain", "act(u, s, nl.sqrt, scale=0.0)", "act(u, s, nl.sqrt)"),
    (
        "activation-domain",
        "act(u, s, nl.reciprocal, scale=1e-20)",
        "act(u, s, nl.reciprocal, scale=-1.0)",
    ),
    (
        "activation-reduce",
        "nisa.activation(dst=u, op=nl.copy, data=s, reduce_op=nl.add, reduce_res=c)",
        "",
    ),
    ("activation-reduce", "", "summed(u, s, c)"),
    ("activation-reduce", "summed(u, s, c, command=nisa.reduce_cmd.reduce)", ""),
    ("activation-reduce", "summed(u, s, c, op=nl.multiply)", ""),
    ("activation-result", "summed(u, s, u[:, 0:1])", "summed(u, s, t[:, 0:1])"),
    ("activation-result", "summed(u, s, t[:, 0:2])", ""),
    (
        "reciprocal-domain",
        "fill(t[:, 0:1], 0.0); nisa.reciprocal(dst=u, data=t)",
        "nisa.reciprocal(dst=u, data=t)",
    ),
    ("reciprocal-domain", "fill(t[:, 0:1], 1e-39); nisa.reciprocal(dst=u, data=t)", ""),
    ("engine", "nisa.memset(dst=u, value=0.0, engine=nisa.engine.scalar)", ""),
    ("reduce-axis", "reduce(c, s, 0)", "reduce(c, s, 1)"),
    (
        "reduce-axis",
        "reduce(u[:, 0:2], filled((128, 2, 2)), (1,))",
        "reduce(u[:, 0:2], filled((128, 2, 2)), (2,))",
    ),
    ("not-in-subset", "nisa.tensor_reduce(dst=c, op=nl.subtract, data=s, axis=1)", ""),
    ("enum-value", "copy(u, s, nisa.dge_mode.unknown)", "copy(u, s, nisa.engine.unknown)"),
    ("enum-value", "mode = 3; nisa.dma_copy(dst=u, src=a, dge_mode=mode)", "move(u, a)"),
    ("sub-kernel", "call = other; w = call(a)", "call = part; w = call(a)"),
    (
        "kernel-assert",
        "assert a.shape == (128, 65), f'{a.shape}'",
        "assert a.shape == (128, 64), f'{a.shape}'",
    ),
    ("element-count", "reduce(u[:, 0:2], s, 1)", ""),
    (
        "not-in-subset",
        "nisa.tensor_scalar_reduce(dst=u, data=s, op0=nl.add, operand0=1.0, reduce_op=nl.add, "
        "reduce_res=c, reduce_cmd=nisa.reduce_cmd.reduce)",
        "plus_summed(u, s, c)",
    ),
    ("not-in-subset", "plus_summed(u, s, None)", "plus_summed(u, s, c)"),
    ("activation-result", "plus_summed(u, s, u[:, 0:1])", "plus_summed(u, s, t[:, 0:1])"),
    ("scalar-operand", "plus(u, s, filled((128, 1), nl.bfloat16))", ""),
    (
        "positional",
        "fill = nisa.memset; fill(u, value=0.0)",
        "fill = nisa.memset; fill(dst=u, value=0.0)",
    ),
    ("not-in-subset", "nisa.dma_copy(dst=u, src=a, oob_mode=nisa.oob_mode.skip)", ""),
    ("not-in-subset", "w = s.ap(pattern=HALF, offset=0, dtype=nl.float16)", ""),
    ("operand-type", "move(u, 1.0)", ""),
    ("index", "w = new((8, 2, 4))[:, 2, :]", ""),
    ("kernel-error", "w = (1, 2)[a.shape[0]]", "w = (1, 2)[1]"),
    ("kernel-error", "nisa.memset(dst=u, value=0.0, engine=nisa.engine.warp)", ""),
    ("kernel-error", "w = part()", "w = part(1)"),
    (
        "not-in-subset",
        "nisa.nc_matmul(dst=y, stationary=s, moving=t, accumulate=False, tile_position=(0, 0), "
        "tile_size=(128, 128))",
        "",
    ),
    ("not-in-subset", "nisa.tensor_tensor(dst=u, data1=s, data2=t, op=nl.square)", ""),
    ("not-in-subset", "w = nl.add(s, t)", ""),
    (
        "signature",
        "nisa.dma_copy(dst=u, src=a, mode=1)",
        "nisa.dma_copy(dst=u, src=a, priority=None)",
    ),
    ("signature", "nisa.reciprocal(dst=u)", "nisa.reciprocal(dst=u, data=s)"),
    ("not-in-subset", "w = s.ap(pattern=HALF, scalar_offset=k)", "w = s.ap(pattern=HALF)"),
    ("ap-pattern", "w = s.ap(pattern=HALF, offset=-1)", "w = s.ap(pattern=HALF, offset=32)"),
    # A destination and a source in one tile
    ("overlap", "copy(t[:, 1:64], t[:, 0:63])", "copy(t[:, 1:64], t[:, 1:64])"),
    ("overlap", "sum_of(s[:, 0:32], s[:, 16:48], t32)", "sum_of(s[:, 0:32], s[:, 32:64], t32)"),
    ("overlap", "plus(s[:, 0:63:2], s[:, 0:32], 1.0)", "plus(s[:, 0:63:2], s[:, 1:64:2], 1.0)"),
    ("overlap", "plus(s, s, s[:, 0:1])", "plus(s, s, t[:, 0:1])"),
    ("overlap", "move(s[0:64, 1:64], s[0:64, 0:63])", "move(s[0:64, :], s[64:128, :])"),
    ("overlap", "summed(s[:, 1:64], s[:, 0:63], c)", "summed(s, s, c)"),
    # Features of 0.6: transposes, other shapes, several banks, addresses, transfers on chip
    (
        "matmul-size",
        "nisa.nc_transpose(dst=psum((64, 128)), data=s, engine=nisa.engine.vector)",
        "",
    ),
    ("matmul-size", "", "nisa.nc_transpose(dst=psum((64, 128)), data=s)"),
    ("engine", "nisa.nc_transpose(dst=y, data=s64, engine=nisa.engine.gpsimd)", ""),
    (
        "matmul-space",
        "nisa.nc_transpose(dst=u64, data=s64, engine=nisa.engine.tensor)",
        "nisa.nc_transpose(dst=y, data=s64)",
    ),
    (
        "matmul-dst",
        "nisa.nc_transpose(dst=y32, data=s64)",
        "nisa.nc_transpose(dst=u[0:32, 0:32], data=s[0:32, 0:32])",
    ),
    ("matmul-transpose", "nisa.nc_transpose(dst=psum((64, 64), nl.bfloat16), data=s64)", ""),
    (
        "reshape",
        "w = s.reshape((64, 128))",
        "w = s.reshape((128, 8, 8)); move(w, a.reshape((128, 8, 8)))",
    ),
    ("reshape", "w = s.reshape((128, 65))", "w = a.reshape((64, 128))"),
    (
        "reshape",
        "w = s[:, 0:63:2].reshape((128, 4, 8))",
        "w = s[:, 0:32].reshape((128, 4, 8)); copy(u[:, 0:32], w)",
    ),
    ("tensor-shape", "w = s.reshape(64)", ""),
    (
        "psum-bank",
        "product(psum((64, 1024))[:, 480:544], s, t, False)",
        "product(psum((64, 1024))[:, 512:576], s, t, False)",
    ),
    ("psum-banks", "w = psum((128, 4608))", "w = psum((128, 2048)); fill(w[:, 0:2048], 0.0)"),
    ("address", "w = nl.ndarray((128, 2), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))", ""),
    ("address", "w = nl.ndarray((128, 2), dtype=nl.float32, buffer=nl.sbuf, address=8)", ""),
    ("address", "w = nl.ndarray((128, 2), dtype=nl.float32, buffer=nl.sbuf, address=(1, 0))", ""),
    (
        "power-domain",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=-1.0, op1=nl.power, operand1=-0.5)",
        "",
    ),
    (
        "power-domain",
        "",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=1.0, op1=nl.power, operand1=-0.5)",
    ),
    ("not-in-subset", "nisa.tensor_tensor(dst=u, data1=s, data2=t, op=nl.power)", ""),
    ("not-in-subset", "for i in nl.dynamic_range(2): pass", "for i in range(2): pass"),
    # Every limit, engine and parameter of a list
    *(
        (
            "activation-domain",
            f"act(u, s, nl.{op}, scale={high})",
            f"act(u, s, nl.{op}, scale={low})",
        )
        for op, low, high in (
            ("rsqrt", 1e28, 1e31),
            ("sqrt", 1e35, 1e37),
            ("reciprocal", 1e12, 1e14),
        )
    ),
    *(
        (
            "engine",
            "",
            f"nisa.tensor_scalar(dst=u, data=s, op0=nl.{first}, operand0=1.0, {second}"
            "engine=nisa.engine.scalar)",
            GEN3,
        )
        for first, second in (("multiply", "op1=nl.add, operand1=1.0, "), ("add", ""))
    ),
    (
        "matmul-onezero",
        "nisa.nc_matmul(dst=y, stationary=s, moving=t, accumulate=False, is_stationary_onezero=True)",
        "nisa.nc_matmul(dst=y, stationary=e, moving=s64, accumulate=False, "
        "is_stationary_onezero=True)",
    ),
    *(
        ("dma-stride", "", f"w = new((128, 2048), nl.float32, nl.private_hbm); {moved}")
        for moved in ("move(w[:, 0:64], s)", "move(w, filled((128, 2048)))")
    ),
    ("sbuf-moved", "", "w = new((128, 16380)); move(w[:, 0:64], a)", GEN3),
    (
        "psum-banks",
        "w = psum((128, 2048)); fill(w, 0.0); v = psum((128, 2049)); fill(v, 0.0); fill(w, 0.0)",
        "w = psum((128, 2048)); fill(w, 0.0); v = psum((128, 2048)); fill(v, 0.0); fill(w, 0.0)",
    ),
    *(
        ("not-in-subset", f"nisa.{call}", "")
        for call in (
            "nc_matmul(dst=y, stationary=s, moving=t, accumulate=False, perf_mode=1)",
            "nc_matmul(dst=y, stationary=s, moving=t, accumulate=False, tile_position=(0, 0))",
            "nc_matmul(dst=y, stationary=s, moving=t, accumulate=False, tile_size=(128, 128))",
            "tensor_reduce(dst=c, op=nl.add, data=s, axis=1, keepdims=True)",
            "tensor_scalar_reduce(dst=u, data=s, op0=nl.add, operand0=1.0, reduce_op=nl.add, "
            "reduce_res=c, reduce_init=0.0)",
            "tensor_scalar_reduce(dst=u, data=s, op0=nl.add, operand0=1.0, reduce_op=nl.add, "
            "reduce_res=c, reduce_res_negate=True)",
            "tensor_tensor(dst=new((128, 64), nl.int32), data1=s, data2=t, op=nl.add)",
            "tensor_tensor(dst=new((1, 1)), data1=k, data2=c[0:1, :], op=nl.add)",
            "tensor_tensor(dst=new((1, 1)), data1=c[0:1, :], data2=k, op=nl.add)",
        )
    ),
    ("kernel-error", "v, w = (1, 2, 3)", "v, w = (1, 2)"),
    ("matmul-dtype", NARROW.format("psum((64, 64), nl.bfloat16)"), ""),
    ("matmul-transpose", NARROW.format("y"), ""),
    ("matmul-transpose", NARROW.format("y"), NARROW.format("psum((64, 64), nl.bfloat16)"), GEN3),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the helpers, which are parsed once for all kernels."""
    made = tmp_path_factory.mktemp("kernels")
    (made / "helpers.py").write_text(HELPERS)
    return made


def write(folder, body: str) -> tuple[str, int]:
    """Path of a new kernel file with `body`, and the first line of the body."""
    path = folder / f"kernel{len(list(folder.iterdir()))}.py"
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


PARAMETERS = [
    pytest.param(*row[:3], row[3] if len(row) > 3 else Settings(), id=f"{n}:{row[0]}")
    for n, row in enumerate(CASES)
]


@pytest.mark.parametrize(("rule", "bad", "good", "settings"), PARAMETERS)
def test_a_rule_refuses_the_kernel_that_breaks_it_and_lets_the_corrected_one_pass(
    folder, rule, bad, good, settings
):
    if bad:
        path, first = write(folder, bad)
        with pytest.raises(Violation) as caught:
            run_kernel(path, "kernel", arguments(), settings)
        error = caught.value
        assert error.rule == rule
        assert isinstance(error, NotInSubset) == (rule == "not-in-subset")
        assert error.allowed in str(error) and error.source in str(error)
        # The statement itself, or the call of the helper that contains it
        if error.place and rule != "output-unwritten":
            line = int(re.findall(r"kernel\d+\.py:(\d+)", error.place)[-1])
            assert first <= line < first + len(bad.splitlines())
    if good:
        path, _ = write(folder, good)
        (out,), _ = run_kernel(path, "kernel", arguments(), settings)
        assert out.shape == (128, 64)


def test_counts_only_finds_the_rules_that_need_no_data(folder):
    needs_data = {
        "activation-domain",
        "reciprocal-domain",
        "power-domain",
        "matmul-onezero",
        "matmul-transpose",
    }
    given = {
        **arguments(),
        "a": Shape((128, 64)),
        "b": Shape((128, 64)),
        "identity": Shape((64, 64)),
    }
    first = {rule: bad for rule, bad, _, *settings in reversed(CASES) if bad and not settings}
    for rule, bad in first.items():
        if rule in needs_data:
            continue
        path, _ = write(folder, bad)
        with pytest.raises(Violation) as caught:
            run_kernel(path, "kernel", given, Settings(arithmetic=False))
        assert caught.value.rule == rule


def test_every_rule_has_a_kernel_that_breaks_it():
    tested = {row[0] for row in (*CASES, *BODY, *MODULE_LEVEL)}
    elsewhere = {"kernel-arguments", "constant-name"}
    assert tested | elsewhere == set(RULES)


# Remedies: a message says what to write instead, and that is accepted


def test_every_rule_names_what_to_write_instead():
    assert all(allowed and instead and source for allowed, instead, source in RULES.values())
    published = run_path(str(PACKAGES / "nki" / "published.py"))
    assert {*INSTRUCTIONS, *ENUMERATIONS} <= published["ISA"]
    assert {*REGIONS, *DTYPES, *OPERATORS} <= published["LANGUAGE"]
    told = " ".join([*(rule.instead for rule in RULES.values()), *INSTEAD_OF.values()])
    names = {(module, name) for module, name in re.findall(r"\b(nl|nisa)\.(\w+)", told)}
    known = {"ndarray", "no_reorder", *REGIONS, *DTYPES, *OPERATORS}
    assert {name for module, name in names if module == "nl"} <= known
    assert {name for module, name in names if module == "nisa"} <= {*INSTRUCTIONS, *ENUMERATIONS}


INSTEAD = [  # refused statement, remedy, and its correction, which makes u
    (
        "nisa.tensor_tensor(dst=u, data1=s, data2=t, op=nl.divide)",
        "nisa.reciprocal(dst=r, data=b), then nisa.tensor_tensor(op=nl.multiply)",
        "r = new((128, 64)); nisa.reciprocal(dst=r, data=t)\n"
        "nisa.tensor_tensor(dst=u, data1=s, data2=r, op=nl.multiply)",
        lambda a, b: a / b,
    ),
    (
        "sum_of(u, s, t[:, 3:4])",
        "nisa.tensor_scalar(operand0=column), which spreads a (P, 1) column over the row",
        "nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=t[:, 3:4])",
        lambda a, b: a + b[:, 3:4],
    ),
    (
        "w = nl.zeros((128, 64), dtype=nl.float32)",
        "nl.ndarray and nisa.memset(value=0.0)",
        "w = new((128, 64)); fill(w, 0.0); sum_of(u, s, w)",
        lambda a, b: a,
    ),
    (
        "u = nl.load(a)",
        "nisa.dma_copy(dst=tile, src=..)",
        "nisa.dma_copy(dst=u, src=b)",
        lambda a, b: b,
    ),
    (
        "for (i, j) in HALF: pass",
        "then pairs[k][0]",
        "for k in range(len(HALF)): nisa.tensor_scalar(dst=u, data=s, op0=nl.add, operand0=1.0)",
        lambda a, b: a + 1,
    ),
]


@pytest.mark.parametrize(
    ("refused", "told", "written", "expected"), INSTEAD, ids=range(len(INSTEAD))
)
def test_a_remedy_is_named_and_computes_what_was_meant(folder, refused, told, written, expected):
    given = arguments()
    path, _ = write(folder, refused)
    with pytest.raises(Violation) as caught:
        run_kernel(path, "kernel", given)
    assert told in caught.value.instead and str(caught.value).endswith(
        f"; instead: {caught.value.instead}"
    )
    path, _ = write(folder, f"{written}\nmove(out, u); return out")
    (found,), _ = run_kernel(path, "kernel", given)
    np.testing.assert_allclose(
        found, expected(*(given[name].astype(np.float64) for name in "ab")), rtol=3e-7
    )


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        ((0, 32, 8, 16), False),
        ((64, 96, 8, 16), False),
        ((32, 64, 0, 8), False),
        ((32, 64, 16, 20), False),
        ((63, 96, 15, 20), True),
        ((0, 33, 0, 9), True),
    ],
)
def test_views_that_touch_share_no_bytes(other: tuple[int, ...], shared: bool) -> None:
    one = (32, 64, 8, 16)
    assert overlap(one, other) is overlap(other, one) is shared
