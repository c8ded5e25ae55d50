"""NKI's documentation of each call, sentence by sentence: one small kernel that does what a
sentence allows, or what it forbids.

Pages are docstrings of `nki.isa` and `nki.language` and the guides of the Neuron documentation;
each row gives the sentence in short. Allowed statements are run and compared with NumPy; forbidden
ones are refused under the name of a rule. Kernels spell calls as the pages do.
"""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2.trainium.interpreter.rules import Violation
from dfmp2.trainium.interpreter.run import Settings, run_kernel

FRAME = """\
import nki
import nki.isa as nisa
import nki.language as nl


def sbuf(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def psum(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum)


@nki.jit
def kernel(a, b):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    s = sbuf((128, 64))
    t = sbuf((128, 64))
    r = sbuf((128, 64))
    c = sbuf((128, 1))
    p = psum((64, 64))
    q = psum((128, 64))
    nisa.dma_copy(dst=s, src=a)
    nisa.dma_copy(dst=t, src=b)
    nisa.memset(dst=c, value=2.0)
{body}
    nisa.dma_copy(dst=out, src=r)
    return out
"""
BOTH, V2, V3 = ("gen2", "gen3"), ("gen2",), ("gen3",)


def columns(a, b, left):
    """The first 64 rows are `left`, the others those of b."""
    return np.concatenate([left, b[64:]])


SUMS = "nisa.tensor_copy(dst=r[:, 1:64], src=s[:, 1:64])"
PRODUCT = (
    "nisa.tensor_copy(dst=r[0:64, :], src=p)\nnisa.tensor_copy(dst=r[64:128, :], src=t[64:128, :])"
)
ACT = "nisa.activation(dst=r, op=nl.{op}, data=s{more})"
ALLOWED = (  # sentence, statements, result, targets
    (
        "nc_transpose: on the Tensor Engine into PSUM",
        "w = psum((64, 128))\n"
        "nisa.nc_transpose(dst=w, data=s)\n"
        "nisa.tensor_copy(dst=r[0:64, :], src=w[:, 0:64])\n"
        "nisa.tensor_copy(dst=r[64:128, :], src=w[:, 64:128])",
        lambda a, b: np.concatenate([a.T[:, :64], a.T[:, 64:]]),
        BOTH,
    ),
    (
        "nc_transpose: of 32 x 32 on the Vector Engine into SBUF",
        "nisa.tensor_copy(dst=r, src=s)\nnisa.nc_transpose(dst=r[0:32, 0:32], data=s[0:32, 0:32])",
        lambda a, b: np.block([[a[:32, :32].T, a[:32, 32:]], [a[32:]]]),
        BOTH,
    ),
    (
        "nc_matmul: dst in another bank of PSUM",
        "w = psum((64, 1024))\n"
        "nisa.nc_matmul(dst=w[:, 512:576], stationary=s, moving=t, accumulate=False)\n"
        "nisa.tensor_copy(dst=r[0:64, :], src=w[:, 512:576])\n"
        "nisa.tensor_copy(dst=r[64:128, :], src=t[64:128, :])",
        lambda a, b: columns(a, b, a.T @ b),
        BOTH,
    ),
    (
        "dma_copy: on chip, between partitions",
        "nisa.dma_copy(dst=r[0:64, :], src=s[64:128, :])\n"
        "nisa.dma_copy(dst=r[64:128, :], src=s[0:64, :])",
        lambda a, b: np.concatenate([a[64:], a[:64]]),
        BOTH,
    ),
    (
        "NkiTensor.reshape: other dimensions of the same elements",
        "w = r.reshape((128, 2, 32))\n"
        "nisa.tensor_copy(dst=w[:, 0, :], src=s[:, 32:64])\n"
        "nisa.tensor_copy(dst=w[:, 1, :], src=s[:, 0:32])",
        lambda a, b: np.roll(a, 32, axis=1),
        BOTH,
    ),
    # activation
    (
        "activation: op(data * scale + bias)",
        ACT.format(op="exp", more=", bias=c, scale=0.5"),
        lambda a, b: np.exp(a * 0.5 + 2),
        BOTH,
    ),
    (
        "activation: scale a [N, 1] vector from SBUF",
        ACT.format(op="square", more=", scale=c"),
        lambda a, b: (2 * a) ** 2,
        BOTH,
    ),
    (
        "activation: scale a [N, 1] vector from PSUM",
        "nisa.tensor_copy(dst=q[:, 0:1], src=c)\n"
        + ACT.format(op="square", more=", scale=q[:, 0:1]"),
        lambda a, b: (2 * a) ** 2,
        BOTH,
    ),
    (
        "activation: bias a compile-time scalar from NeuronCore-v3 on",
        ACT.format(op="exp", more=", bias=0.5"),
        lambda a, b: np.exp(a + 0.5),
        V3,
    ),
    (
        "activation: data in PSUM",
        "nisa.tensor_copy(dst=q, src=s)\nnisa.activation(dst=r, op=nl.sqrt, data=q)",
        lambda a, b: np.sqrt(a),
        BOTH,
    ),
    (
        "activation: dst in PSUM",
        "nisa.activation(dst=q, op=nl.copy, data=s)\nnisa.tensor_copy(dst=r, src=q)",
        lambda a, b: a,
        BOTH,
    ),
    (
        "activation: reset_reduce resets, accumulates, and reduce_res reads out",
        ACT.format(
            op="square",
            more=", reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce, "
            "reduce_res=r[:, 0:1]",
        ).replace("dst=r", "dst=q")
        + "\n"
        + SUMS,
        lambda a, b: np.hstack([(a**2).sum(1, keepdims=True), a[:, 1:]]),
        BOTH,
    ),
    (
        "activation: dst of another type",
        "h = sbuf((128, 64), nl.bfloat16)\n"
        "nisa.activation(dst=h, op=nl.copy, data=s)\nnisa.tensor_copy(dst=r, src=h)",
        lambda a, b: a,
        BOTH,
    ),
    # reciprocal
    (
        "reciprocal: 1 / x of a tile in SBUF",
        "nisa.reciprocal(dst=r, data=s)",
        lambda a, b: 1 / a,
        BOTH,
    ),
    (
        "reciprocal: of a tile in PSUM",
        "nisa.tensor_copy(dst=q, src=s)\nnisa.reciprocal(dst=r, data=q)",
        lambda a, b: 1 / a,
        BOTH,
    ),
    # tensor_tensor
    (
        "tensor_tensor: both in SBUF",
        "nisa.tensor_tensor(dst=r, data1=s, data2=t, op=nl.multiply)",
        lambda a, b: a * b,
        BOTH,
    ),
    (
        "tensor_tensor: data1 in PSUM, data2 in SBUF",
        "nisa.tensor_copy(dst=q, src=s)\n"
        "nisa.tensor_tensor(dst=r, data1=q, data2=t, op=nl.subtract)",
        lambda a, b: a - b,
        BOTH,
    ),
    (
        "tensor_tensor: data1 in SBUF, data2 in PSUM",
        "nisa.tensor_copy(dst=q, src=t)\nnisa.tensor_tensor(dst=r, data1=s, data2=q, op=nl.add)",
        lambda a, b: a + b,
        BOTH,
    ),
    (
        "tensor_tensor: dst in PSUM",
        "nisa.tensor_tensor(dst=q, data1=s, data2=t, op=nl.maximum)\n"
        "nisa.tensor_copy(dst=r, src=q)",
        np.maximum,
        BOTH,
    ),
    (
        "tensor_tensor: dst the same as an operand",
        "nisa.tensor_copy(dst=r, src=s)\nnisa.tensor_tensor(dst=r, data1=r, data2=t, op=nl.add)",
        lambda a, b: a + b,
        BOTH,
    ),
    # tensor_scalar and relatives
    (
        "tensor_scalar: a compile-time constant",
        "nisa.tensor_scalar(dst=r, data=s, op0=nl.multiply, operand0=3.0)",
        lambda a, b: 3 * a,
        BOTH,
    ),
    (
        "tensor_scalar: a vector (P, 1)",
        "nisa.tensor_scalar(dst=r, data=s, op0=nl.add, operand0=c)",
        lambda a, b: a + 2,
        BOTH,
    ),
    (
        "tensor_scalar: two operators",
        "nisa.tensor_scalar(dst=r, data=s, op0=nl.multiply, operand0=3.0, op1=nl.add, operand1=c)",
        lambda a, b: 3 * a + 2,
        BOTH,
    ),
    (
        "tensor_scalar: reverse0 swaps the operands",
        "nisa.tensor_scalar(dst=r, data=s, op0=nl.subtract, operand0=1.0, reverse0=True)",
        lambda a, b: 1 - a,
        BOTH,
    ),
    (
        "tensor_scalar: reverse1 swaps those of the second",
        "nisa.tensor_scalar(dst=r, data=s, op0=nl.add, operand0=1.0, op1=nl.subtract, operand1=c, "
        "reverse1=True)",
        lambda a, b: 2 - (a + 1),
        BOTH,
    ),
    (
        "tensor_scalar: power of a sum",
        "nisa.tensor_scalar(dst=r, data=s, op0=nl.add, operand0=c, op1=nl.power, operand1=-0.5)",
        lambda a, b: (a + 2) ** -0.5,
        BOTH,
    ),
    (
        "tensor_scalar: data in PSUM",
        "nisa.tensor_copy(dst=q, src=s)\n"
        "nisa.tensor_scalar(dst=r, data=q, op0=nl.add, operand0=1.0)",
        lambda a, b: a + 1,
        BOTH,
    ),
    (
        "scalar_tensor_tensor: (data op0 operand0) op1 operand1",
        "nisa.scalar_tensor_tensor(dst=r, data=s, op0=nl.multiply, operand0=2.0, op1=nl.add, "
        "operand1=t)",
        lambda a, b: 2 * a + b,
        BOTH,
    ),
    (
        "tensor_scalar_reduce: the sum along the free dimension comes with it",
        "nisa.tensor_scalar_reduce(dst=q, data=s, op0=nl.multiply, operand0=2.0, reduce_op=nl.add, "
        "reduce_res=r[:, 0:1])\n" + SUMS,
        lambda a, b: np.hstack([2 * a.sum(1, keepdims=True), a[:, 1:]]),
        BOTH,
    ),
    # tensor_reduce, tensor_copy, memset
    (
        "tensor_reduce: the free axis",
        "nisa.tensor_reduce(dst=r[:, 0:1], op=nl.add, data=s, axis=1)\n" + SUMS,
        lambda a, b: np.hstack([a.sum(1, keepdims=True), a[:, 1:]]),
        BOTH,
    ),
    (
        "tensor_reduce: negate multiplies by -1",
        "nisa.tensor_reduce(dst=r[:, 0:1], op=nl.add, data=s, axis=1, negate=True)\n" + SUMS,
        lambda a, b: np.hstack([-a.sum(1, keepdims=True), a[:, 1:]]),
        BOTH,
    ),
    (
        "tensor_copy: PSUM to SBUF",
        "nisa.tensor_copy(dst=q, src=s)\nnisa.tensor_copy(dst=r, src=q)",
        lambda a, b: a,
        BOTH,
    ),
    (
        "tensor_copy: a strided source",
        "nisa.tensor_copy(dst=r[:, 0:32], src=s[:, 0:63:2])\n"
        "nisa.tensor_copy(dst=r[:, 32:64], src=s[:, 1:64:2])",
        lambda a, b: np.hstack([a[:, ::2], a[:, 1::2]]),
        BOTH,
    ),
    (
        "tensor_copy: engine named",
        "nisa.tensor_copy(dst=r, src=s, engine=nisa.engine.gpsimd)",
        lambda a, b: a,
        BOTH,
    ),
    ("memset: a constant", "nisa.memset(dst=r, value=1.5)", lambda a, b: 0 * a + 1.5, BOTH),
    # dma_copy
    (
        "dma_copy: HBM to SBUF, a slice of rows",
        "nisa.dma_copy(dst=r[0:64, :], src=a[64:128, :])\n"
        "nisa.dma_copy(dst=r[64:128, :], src=a[0:64, :])",
        lambda a, b: np.concatenate([a[64:], a[:64]]),
        BOTH,
    ),
    ("dma_copy: SBUF to SBUF", "nisa.dma_copy(dst=r, src=s)", lambda a, b: a, BOTH),
    (
        "dma_copy: converts types",
        "h = sbuf((128, 64), nl.bfloat16)\nnisa.dma_copy(dst=h, src=a)\n"
        "nisa.tensor_copy(dst=r, src=h)",
        lambda a, b: a,
        BOTH,
    ),
    (
        "dma_copy: dge_mode none",
        "nisa.dma_copy(dst=r, src=b, dge_mode=nisa.dge_mode.none)",
        lambda a, b: b,
        BOTH,
    ),
    (
        "dma_copy: hardware DGE from NeuronCore-v3 on",
        "nisa.dma_copy(dst=r, src=b, dge_mode=nisa.dge_mode.hwdge)",
        lambda a, b: b,
        V3,
    ),
    # nc_matmul, nc_transpose
    (
        "nc_matmul: stationary^T moving into PSUM",
        "nisa.nc_matmul(dst=p, stationary=s, moving=t, accumulate=False)\n" + PRODUCT,
        lambda a, b: columns(a, b, a.T @ b),
        BOTH,
    ),
    (
        "nc_matmul: accumulates within a group",
        "for k in range(2):\n    nisa.nc_matmul(dst=p, stationary=s, moving=t, accumulate=k > 0)\n"
        + PRODUCT,
        lambda a, b: columns(a, b, 2 * a.T @ b),
        BOTH,
    ),
    (
        "nc_matmul: contraction of fewer than 128 rows",
        "nisa.nc_matmul(dst=p, stationary=s[0:32, :], moving=t[0:32, :], accumulate=False)\n"
        + PRODUCT,
        lambda a, b: columns(a, b, a[:32].T @ b[:32]),
        BOTH,
    ),
    (
        "nc_transpose: Tensor Engine, into PSUM",
        "w = psum((64, 128))\nnisa.nc_transpose(dst=w, data=s)\n"
        "nisa.tensor_copy(dst=r[0:64, :], src=w[:, 0:64])\n"
        "nisa.tensor_copy(dst=r[64:128, :], src=t[64:128, :])",
        lambda a, b: columns(a, b, a.T[:, :64]),
        BOTH,
    ),
    # language
    (
        "tiles: reshape of the free dimensions",
        "w = r.reshape((128, 4, 16))\nv = s.reshape((128, 4, 16))\nnisa.tensor_copy(dst=w, src=v)",
        lambda a, b: a,
        BOTH,
    ),
    (
        "language: a loop over a range known when the kernel is compiled",
        "for k in range(4):\n    nisa.tensor_copy(dst=r[:, 16 * k : 16 * k + 16], "
        "src=s[:, 16 * k : 16 * k + 16])",
        lambda a, b: a,
        BOTH,
    ),
    (
        "language: a condition on a compile-time value",
        "if a.shape[1] > 32:\n    nisa.tensor_copy(dst=r, src=s)\nelse:\n"
        "    nisa.tensor_copy(dst=r, src=t)",
        lambda a, b: a,
        BOTH,
    ),
)
FORBIDDEN = (  # sentence, statements, rule, targets
    # activation
    (
        "activation: bias must be a [N, 1] vector on NeuronCore-v2",
        ACT.format(op="exp", more=", bias=0.5"),
        "activation-bias",
        V2,
    ),
    (
        "activation: scale must have a float32 data type",
        "h = sbuf((128, 1), nl.bfloat16)\nnisa.memset(dst=h, value=1.0)\n"
        + ACT.format(op="exp", more=", scale=h"),
        "activation-scale",
        BOTH,
    ),
    (
        "activation: scale one element per partition",
        ACT.format(op="exp", more=", scale=t"),
        "scalar-operand",
        BOTH,
    ),
    (
        "activation: reduce_op must be nl.add",
        ACT.format(
            op="copy",
            more=", reduce_op=nl.maximum, reduce_res=c, reduce_cmd=nisa.reduce_cmd.reset_reduce",
        ),
        "activation-reduce",
        BOTH,
    ),
    (
        "activation: data in SBUF or PSUM",
        "nisa.activation(dst=r, op=nl.exp, data=a)",
        "operand-space",
        BOTH,
    ),
    (
        "activation: as many elements per partition in dst as in data",
        "nisa.activation(dst=r[:, 0:32], op=nl.exp, data=s)",
        "element-count",
        BOTH,
    ),
    (
        "activation: as many partitions in dst as in data",
        "nisa.activation(dst=r[0:64, :], op=nl.exp, data=s)",
        "partition-match",
        BOTH,
    ),
    (
        "activation: a function of the table",
        "nisa.activation(dst=r, op=nl.maximum, data=s)",
        "activation-op",
        BOTH,
    ),
    # reciprocal
    ("reciprocal: SBUF or PSUM", "nisa.reciprocal(dst=r, data=b)", "operand-space", BOTH),
    # tensor_tensor
    (
        "tensor_tensor: not both in PSUM",
        "nisa.tensor_copy(dst=q, src=s)\nw = psum((128, 64))\n"
        "nisa.tensor_copy(dst=w, src=t)\nnisa.tensor_tensor(dst=r, data1=q, data2=w, op=nl.add)",
        "both-psum",
        BOTH,
    ),
    (
        "tensor_tensor: no broadcasting",
        "nisa.tensor_tensor(dst=r, data1=s, data2=c, op=nl.add)",
        "element-count",
        BOTH,
    ),
    (
        "tensor_tensor: equal partition axis size",
        "nisa.tensor_tensor(dst=r[0:64, :], data1=s[0:64, :], data2=t[0:32, :], op=nl.add)",
        "partition-match",
        BOTH,
    ),
    (
        "tensor_tensor: a binary operator",
        "nisa.tensor_tensor(dst=r, data1=s, data2=t, op=nl.exp)",
        "not-in-subset",
        BOTH,
    ),
    (
        "tensor_tensor: division is none of the Vector Engine's operators",
        "nisa.tensor_tensor(dst=r, data1=s, data2=t, op=nl.divide)",
        "not-in-subset",
        BOTH,
    ),
    # tensor_scalar and relatives
    (
        "tensor_scalar: operand0 a constant or (P, 1)",
        "nisa.tensor_scalar(dst=r, data=s, op0=nl.add, operand0=t)",
        "scalar-operand",
        BOTH,
    ),
    (
        "tensor_scalar: a vector of as many partitions",
        "nisa.tensor_scalar(dst=r, data=s, op0=nl.add, operand0=c[0:64, :])",
        "partition-match",
        BOTH,
    ),
    (
        "scalar_tensor_tensor: data and operand1 not both in PSUM",
        "nisa.tensor_copy(dst=q, src=s)\nw = psum((128, 64))\nnisa.tensor_copy(dst=w, src=t)\n"
        "nisa.scalar_tensor_tensor(dst=r, data=q, op0=nl.add, operand0=1.0, op1=nl.add, operand1=w)",
        "both-psum",
        BOTH,
    ),
    (
        "scalar_tensor_tensor: operand1 a tile",
        "nisa.scalar_tensor_tensor(dst=r, data=s, op0=nl.add, operand0=1.0, op1=nl.add, operand1=2.0)",
        "operand-type",
        BOTH,
    ),
    # tensor_reduce, tensor_copy, memset
    (
        "tensor_reduce: not the partition axis",
        "nisa.tensor_reduce(dst=r[:, 0:1], op=nl.add, data=s, axis=0)",
        "reduce-axis",
        BOTH,
    ),
    (
        "tensor_reduce: one element per partition where all free axes are reduced",
        "nisa.tensor_reduce(dst=r[:, 0:2], op=nl.add, data=s, axis=1)",
        "element-count",
        BOTH,
    ),
    (
        "tensor_copy: GpSimd cannot access PSUM",
        "nisa.tensor_copy(dst=q, src=s)\nnisa.tensor_copy(dst=r, src=q, engine=nisa.engine.gpsimd)",
        "gpsimd-psum",
        BOTH,
    ),
    (
        "tensor_copy: within on-chip memories",
        "nisa.tensor_copy(dst=r, src=a)",
        "operand-space",
        BOTH,
    ),
    (
        "tensor_copy: the Tensor Engine is none of its engines",
        "nisa.tensor_copy(dst=r, src=s, engine=nisa.engine.tensor)",
        "engine",
        BOTH,
    ),
    (
        "tensor_copy: a source that the destination overlaps",
        "nisa.tensor_copy(dst=s[:, 1:64], src=s[:, 0:63])",
        "overlap",
        BOTH,
    ),
    (
        "memset: Vector or GpSimd Engine",
        "nisa.memset(dst=r, value=1.0, engine=nisa.engine.scalar)",
        "engine",
        BOTH,
    ),
    ("memset: a constant", "nisa.memset(dst=r, value=c)", "value-type", BOTH),
    # dma_copy
    ("dma_copy: HBM or SBUF", "nisa.dma_copy(dst=q, src=a)", "dma-psum", BOTH),
    (
        "dma_copy: as many elements in src as in dst",
        "nisa.dma_copy(dst=r[:, 0:32], src=a)",
        "dma-shape",
        BOTH,
    ),
    (
        "dma_copy: hardware DGE for NeuronCore-v3 or newer",
        "nisa.dma_copy(dst=r, src=b, dge_mode=nisa.dge_mode.hwdge)",
        "dma-hwdge",
        V2,
    ),
    (
        "dma_copy: no conversion with hardware DGE",
        "h = sbuf((128, 64), nl.bfloat16)\n"
        "nisa.dma_copy(dst=h, src=b, dge_mode=nisa.dge_mode.hwdge)",
        "dma-cast",
        V3,
    ),
    # nc_matmul
    (
        "nc_matmul: inputs from SBUF",
        "nisa.tensor_copy(dst=q, src=s)\n"
        "nisa.nc_matmul(dst=p, stationary=q, moving=t, accumulate=False)",
        "matmul-space",
        BOTH,
    ),
    (
        "nc_matmul: output to PSUM",
        "nisa.nc_matmul(dst=r[0:64, :], stationary=s, moving=t, accumulate=False)",
        "matmul-space",
        BOTH,
    ),
    (
        "nc_matmul: float32 only with float32",
        "h = sbuf((128, 64), nl.bfloat16)\n"
        "nisa.tensor_copy(dst=h, src=t)\nnisa.nc_matmul(dst=p, stationary=s, moving=h, accumulate=False)",
        "matmul-dtype",
        BOTH,
    ),
    (
        "nc_matmul: dst must be float32",
        "w = psum((64, 64), nl.bfloat16)\n"
        "nisa.nc_matmul(dst=w, stationary=s, moving=t, accumulate=False)",
        "matmul-dtype",
        BOTH,
    ),
    (
        "nc_matmul: equal contraction of both",
        "nisa.nc_matmul(dst=p, stationary=s[0:64, :], moving=t, accumulate=False)",
        "matmul-contraction",
        BOTH,
    ),
    (
        "nc_matmul: stationary at most 128 columns",
        "w = sbuf((128, 192))\nnisa.memset(dst=w, value=1.0)\n"
        "v = psum((128, 64))\nnisa.nc_matmul(dst=v, stationary=w, moving=t, accumulate=False)",
        "matmul-size",
        BOTH,
    ),
    (
        "nc_matmul: moving at most 512 columns",
        "w = sbuf((128, 640))\nnisa.memset(dst=w, value=1.0)\n"
        "v = psum((64, 640))\nnisa.nc_matmul(dst=v, stationary=s, moving=w, accumulate=False)",
        "matmul-size",
        BOTH,
    ),
    (
        "nc_matmul: the first of a group overwrites",
        "nisa.tensor_copy(dst=p, src=s[0:64, :])\n"
        "nisa.nc_matmul(dst=p, stationary=s, moving=t, accumulate=True)",
        "matmul-group",
        BOTH,
    ),
    # guides: memories and tiles
    ("architecture: at most 128 partitions", "w = sbuf((129, 8))", "partition-count", BOTH),
    (
        "architecture: 32 partitions start at 0, 32, 64 or 96",
        "nisa.tensor_copy(dst=r[16:48, :], src=s[16:48, :])",
        "partition-start",
        BOTH,
    ),
    (
        "architecture: 64 partitions start at 0 or 64",
        "nisa.tensor_copy(dst=r[32:96, :], src=s[32:96, :])",
        "partition-start",
        BOTH,
    ),
    (
        "architecture: partitions are contiguous",
        "nisa.tensor_copy(dst=r[0:64, :], src=s[0:128:2, :])",
        "partition-step",
        BOTH,
    ),
    (
        "architecture: a product stays within a bank",
        "w = psum((64, 1024))\n"
        "nisa.nc_matmul(dst=w[:, 480:544], stationary=s, moving=t, accumulate=False)",
        "psum-bank",
        BOTH,
    ),
    (
        "architecture: what is read has been written",
        "nisa.tensor_copy(dst=s, src=r)",
        "uninitialised-read",
        BOTH,
    ),
    (
        "language: slices stay inside the tensor",
        "nisa.tensor_copy(dst=r, src=s[:, 1:65])",
        "index",
        BOTH,
    ),
    ("language: tensors are no numbers of Python", "w = s + t", "tensor-arithmetic", BOTH),
    (
        "language: no condition on data",
        "if s:\n    nisa.tensor_copy(dst=r, src=s)",
        "tensor-conditional",
        BOTH,
    ),
    ("migration: keywords, not positions", "nisa.tensor_copy(r, s)", "positional", BOTH),
    (
        "isa: parameters as they are documented",
        "nisa.tensor_copy(dst=r, source=s)",
        "signature",
        BOTH,
    ),
    ("language: no comprehension", "w = [k for k in range(4)]", "syntax", BOTH),
    ("kernel arguments are read only", "nisa.dma_copy(dst=a, src=s)", "input-written", BOTH),
)


def made(tmp_path, statements):
    body = "\n".join("    " + line for line in statements.splitlines())
    path = tmp_path / "kernel.py"
    path.write_text(FRAME.format(body=body))
    a, b = np.random.default_rng(4).uniform(0.5, 1.5, (2, 128, 64)).astype(np.float32)
    return str(path), {"a": a, "b": b}


@pytest.mark.parametrize(
    ("statements", "expected", "targets"),
    [row[1:] for row in ALLOWED],
    ids=[row[0] for row in ALLOWED],
)
def test_what_a_page_allows_is_run(tmp_path, statements, expected, targets):
    path, given = made(tmp_path, statements)
    tolerance = 1e-2 if "bfloat16" in statements else 2e-6
    for target in targets:
        (found,), _ = run_kernel(path, "kernel", given, Settings(target=target))
        exact = expected(*(given[name].astype(np.float64) for name in "ab"))
        np.testing.assert_allclose(found, exact, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize(
    ("statements", "rule", "targets"),
    [row[1:] for row in FORBIDDEN],
    ids=[row[0] for row in FORBIDDEN],
)
def test_what_a_page_forbids_is_refused_by_name(tmp_path, statements, rule, targets):
    path, given = made(tmp_path, statements)
    for target in targets:
        with pytest.raises(Violation) as caught:
            run_kernel(path, "kernel", given, Settings(target=target))
        assert caught.value.rule == rule
        assert caught.value.instead
