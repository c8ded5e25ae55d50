"""The documented rules a kernel can break, each with the page it comes from, the error that names it, and the settings
of a run: chip, release, arithmetic of the engines, strictness.

Pages are paths in the aws-neuron-sdk documentation; "own rule" marks a rule of ours that is narrower than the pages,
with its reason. ISA, LANG, ARCH and so on abbreviate the pages below.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal, get_args

from dfmp2.errors import InputError, KernelError
from dfmp2.trainium.interpreter.remedies import remedy

ISA = "nki/api/nki/isa/__init__.py"
LANG = "nki/api/nki/language/__init__.py"
JIT = "nki/api/nki/__init__.py"
SHARED = "nki/api/nki.api.shared.rst"
ARCH = "nki/guides/architecture/trainium_inferentia2_arch.rst"
ARCH2 = "nki/guides/architecture/trainium2_arch.rst"
NOTES = "release-notes/components/nki.rst"
MIGRATION = "nki/migration/index.rst"
GUIDE = "nki/get-started/nki-language-guide.rst"
APS = "nki/deep-dives/nki-aps.rst"
LOOPS = "nki/deep-dives/nki-dynamic-loops.rst"
DGE = "nki/deep-dives/nki-dge.rst"
DNS = "aws-samples/sample-spectral-dns-on-aws-neuron docs/neuron-rules.md"

# rule -> (what is allowed, page)
RULES: dict[str, tuple[str, str]] = {
    # storage and views
    "partition-count": ("at most 128 partitions (dimension 0 on chip)", ARCH),
    "partition-start": ("start 0; 0 or 64 for at most 64 partitions; 0, 32, 64 or 96 for at most 32", ARCH),
    "partition-step": ("partitions are contiguous: no step in dimension 0", ARCH),
    "partition-match": ("all operands of an instruction occupy the same number of partitions", ARCH),
    "tensor-rank": ("tensors of rank 2 to 4", f"{GUIDE}; own rule: the ranks documented in every release"),
    "tensor-shape": ("positive Python ints as dimensions", GUIDE),
    "tensor-size": ("at most 2 GiB in HBM: DMA offsets have 32 bits", f"{DNS}, rule 10"),
    "tensor-dtype": ("float32, tfloat32, float16, bfloat16, int32, uint8, as nl objects", SHARED),
    "buffer-object": ("a buffer object: nl.sbuf, nl.psum, nl.shared_hbm, nl.private_hbm", MIGRATION),
    "address": ("no address: direct and automatic allocation cannot be mixed", f"{LANG}; own rule"),
    "sbuf-capacity": ("192 KiB per partition on gen2, 224 KiB on gen3, less the compiler's share", f"{ARCH}; {ARCH2}"),
    "sbuf-moved": (
        "on gen2 at most 64 KiB per partition alive of what dma_copy writes; copy what stays by an engine",
        f"{DNS}, rule 3: beyond 96 KiB streamed tiles lose their slots",
    ),
    "psum-bank": ("a PSUM tensor fits one bank of 2 KiB per partition", f"{ARCH}; own rule for whole tensors"),
    "psum-banks": ("at most 8 PSUM banks alive at once", ARCH),
    "index": ("one static slice start:stop:step per dimension, inside the tensor, not empty", GUIDE),
    "integer-index": (
        "an integer index on a middle free dimension of a tensor of rank 3 or 4 only",
        f"{GUIDE}; own rule",
    ),
    "access-pattern": ("at most 4 free dimensions, sizes below 65536, strides below 32768 elements", ARCH),
    "ap-base": ("ap() on the whole tensor, not on a slice or another ap()", f"{APS}; own rule: releases disagree"),
    "ap-offset": ("an explicit integer offset=", f"{MIGRATION}; own rule: the default changed in 0.5.0"),
    "ap-pattern": ("[stride, count] pairs inside the tensor; on chip the first is [free size, partitions]", APS),
    "ap-dynamic": ("scalar_offset: a (1, 1) int32 SBUF tensor or a register, one at most", APS),
    "uninitialised-read": ("elements are written before they are read", f"{LANG} ndarray"),
    "lost-write": (
        "what is written is read before it is overwritten",
        "own rule, with fuzz: a swapped buffer rotation",
    ),
    "input-written": ("kernel inputs are read only", f"{JIT}; own rule"),
    "hbm-order": (
        "an HBM range stored by a kernel is neither loaded nor stored again by it, except inside nl.no_reorder",
        f"{LANG} no_reorder; own rule: the guide promises the order of dependent statements, not of transfers by name",
    ),
    "output-space": ("a kernel returns nl.shared_hbm tensors", NOTES),
    "output-unwritten": ("every element of a returned tensor is written", f"{LANG} ndarray"),
    "tensor-arithmetic": ("tensors are operands of nisa instructions, not of Python operators or assignments", GUIDE),
    "tensor-conditional": ("Python conditions on compile-time values only", GUIDE),
    # instructions
    "operand-type": ("tensors where the page says tile, constants where it says constant", ISA),
    "operand-space": ("operands in the memories the page names for this instruction", ISA),
    "element-count": ("equal numbers of elements per partition, no broadcasting", f"{ISA}; {NOTES} 0.3.0"),
    "both-psum": ("not both inputs in PSUM", ISA),
    "scalar-operand": ("a Python float or a [P, 1] float32 slice", ISA),
    "value-type": ("a fill value of the tile's kind: float for float tiles, int for integer tiles", f"{NOTES} 0.3.0"),
    "engine": ("an engine that has this instruction on this target", ISA),
    "gpsimd-psum": ("GpSimd cannot access PSUM", ISA),
    "dma-psum": ("dma_copy neither reads nor writes PSUM", f"{ISA}; {NOTES} 0.3.0"),
    "dma-spaces": ("dma_copy between HBM and SBUF", f"{ISA}; own rule"),
    "dma-shape": ("equal shapes on both sides", f"{ISA}; own rule: element order differs otherwise"),
    "dma-stride": (
        "on gen2 no 256 KiB of parts of rows that lie a power of two, from 8 KiB on, apart in HBM; pad the rows",
        f"{DNS}, rule 7: they are moved at half the rate",
    ),
    "dma-hwdge": ("hardware DGE on gen3 only", ISA),
    "dma-cast": ("no conversion with hardware DGE", DGE),
    "dma-priority": ("priority on NeuronCore-v4 only", ISA),
    "matmul-rank": ("2-D operands", f"{ISA} nc_matmul; own rule"),
    "matmul-space": ("stationary and moving in SBUF, dst in PSUM", f"{ISA} nc_matmul"),
    "matmul-size": ("stationary free size at most 128, moving free size at most 512", f"{ISA} nc_matmul"),
    "matmul-contraction": ("equal partition counts of stationary and moving", f"{ISA} nc_matmul"),
    "matmul-start": ("equal start partitions of stationary and moving", "own rule: not documented otherwise"),
    "matmul-dst": ("dst is [stationary free size, moving free size] and starts at partition 0", f"{ISA} nc_matmul"),
    "matmul-dtype": ("float operands, float32/tfloat32 only together, dst float32", f"{ISA} nc_matmul"),
    "matmul-accumulate": (
        "accumulate= a Python bool, or left out where all elements are fresh or all are in one open group",
        f"{ISA} nc_matmul, accumulation mode; own rule",
    ),
    "matmul-group": ("accumulate=True onto elements of one open matmul group", f"{ISA} nc_matmul, accumulation mode"),
    "matmul-transpose": ("is_transpose with a square 0/1 identity, accumulate=False, dst of the data's dtype", ISA),
    "matmul-onezero": ("a one/zero flag only on operands that hold 0 and 1 only", ISA),
    "activation-op": ("nl.copy, square, exp, sqrt, rsqrt or reciprocal", SHARED),
    "activation-bias": (
        "bias None or a [P, 1] tensor on gen2 (not tfloat32); also a float on gen3",
        f"{ISA} activation",
    ),
    "activation-copy-bias": (
        "no bias with nl.copy on gen2, which does not add it; nisa.tensor_scalar(op0=nl.add) does",
        "aws-neuron-sdk issue 1296",
    ),
    "activation-scale": ("scale a float or a [P, 1] float32 tensor", f"{ISA} activation"),
    "activation-reciprocal": ("no bias with reciprocal on gen2", SHARED),
    "activation-domain": ("inputs inside the function's valid range", SHARED),
    "activation-reduce": (
        "reduce_op=nl.add, reduce_cmd=reset_reduce and reduce_res together",
        f"{ISA} activation; own rule",
    ),
    "activation-result": (
        "reduce_res a [P, 1] float32 slice that does not overlap dst",
        f"{ISA} activation; {NOTES} 0.6.0",
    ),
    "reciprocal-domain": ("no zero and no denormal input", f"{ISA} reciprocal"),
    "reduce-axis": ("the last free axes, contiguous, never axis 0", f"{ISA} tensor_reduce"),
    # dynamic loops and registers
    "loop-index": ("a loop index is a device register: no Python arithmetic, comparison or slicing", LOOPS),
    "loop-offset": ("from 0.4.0 on: a dynamic_range index as scalar_offset", f"{NOTES} 0.3.0, known issues"),
    "loop-step": ("a compile-time positive int as step", LOOPS),
    "loop-no-reorder": ("no dynamic loop inside nl.no_reorder", LOOPS),
    "loop-nested": ("nested dynamic loops from 0.6.0 on", f"{NOTES} 0.6.0"),
    "loop-scope": ("tensors and indices of a loop body are used inside the loop", LOOPS),
    "register": ("registers from nisa.register_alloc, loaded from one int32 element", ISA),
    # signatures, language, kernel calls
    "positional": ("nisa instructions are called with keywords only", f"{MIGRATION}; own rule: orders differ"),
    "signature": ("parameters that the release documents, all required ones given", ISA),
    "enum-value": ("members of the nisa enumerations, not their integer values", LANG),
    "release-name": ("names that the release documents", f"{NOTES}; {MIGRATION}"),
    "jit": ("the bare decorator @nki.jit (no mode, no platform_target)", f"{JIT}; {NOTES} 0.3.0"),
    "sub-kernel": ("a kernel is not called by a kernel and helper functions carry no decorator", GUIDE),
    "kernel-arguments": ("arrays, ints, floats, bools, strings, None and tuples of them", GUIDE),
    "kernel-assert": ("the kernel's own assertion", GUIDE),
    "kernel-error": ("kernel code that runs without a Python error", GUIDE),
    "purity": ("module globals are constants, bound once; no global or nonlocal", GUIDE),
    "syntax": ("the statements that the parsers of 0.3.0 to 0.6.0 and the tracer of 0.7.0 all take", GUIDE),
    "loop-target": ("a plain name as the target of for", f"{DNS}, rule 9: the parser expects a simple variable"),
    "constant-name": ("a module constant of that name in one kernel file only", "own rule: one name, one value"),
    "import": ("nki, nki.language, nki.isa and other kernel files, at the top of the file", GUIDE),
    "not-in-subset": ("the calls listed in the package's signature tables", "own rule"),
}

# Rules of ours that are narrower than the documentation: kernels of this package obey them, those of others need not.
OWN_RULES = frozenset(rule for rule, (_, source) in RULES.items() if "own rule" in source)
# What a run can go on without, for kernels of others: rules of ours, documented ones, and what is only slow.
WAIVABLE = frozenset(
    ("ap-base", "hbm-order", "input-written", "dma-spaces", "dma-shape", "matmul-group", "uninitialised-read")
)
SLOW = frozenset(("sbuf-moved", "dma-stride"))

Target = Literal["gen2", "gen3"]
PeModel = Literal["exact", "fp32", "bf16prod", "split4"]
RowSum = Literal["float64", "fp32"]
StorageModel = Literal["declared", "float64"]
RELEASES = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0")

# SBUF bytes per partition (trainium_inferentia2_arch.rst, trainium2_arch.rst).
SBUF_BYTES: dict[str, int] = {"gen2": 192 * 1024, "gen3": 224 * 1024}
MOVED_BYTES = 64 * 1024  # of them that transfers may write on gen2
PSUM_BANK_BYTES = 2048
PSUM_BANKS = 8
PARTITIONS = 128


@dataclass(frozen=True, slots=True)
class Settings:
    """How a kernel is interpreted.

    target : chip generation, gen2 (trn1) or gen3 (trn2)
    release : NKI release whose signatures and loop rules apply at run time (the source lint covers all five)
    pe_model : Tensor Engine arithmetic: exact (float64 dot per instruction, added to PSUM in float32), fp32 (float32
        dot), bf16prod (products of 16-bit operands rounded to bfloat16), split4 (float32 as four products of 12-bit
        halves)
    row_sum : engine reductions in float64, or sequentially in float32
    storage : declared dtypes, or every float buffer in float64 (tests the algebra alone)
    fuzz : None, or the seed of random garbage in new buffers and random order inside contractions; also turns on the
        lost-write rule
    strict : refuse reads of unwritten elements at once (False: NaN, or 4 for integers, flows on)
    arithmetic : False counts only: all rules that need no data, and the trace
    compiler_sbuf : bytes per SBUF partition that the compiler keeps for itself (16 KiB documented for gen2 at v2.26.0)
    measured : refuse also what is slow by others' measurements and breaks no documented rule (sbuf-moved, dma-stride)
    waived : rules that kernels of others may break (`WAIVABLE`); none for our own
    """

    target: Target = "gen2"
    release: str = "0.3.0"
    pe_model: PeModel = "fp32"
    row_sum: RowSum = "fp32"
    storage: StorageModel = "declared"
    fuzz: int | None = None
    strict: bool = True
    arithmetic: bool = True
    compiler_sbuf: int = 16 * 1024
    measured: bool = True
    waived: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        choices: tuple[tuple[str, str, tuple[str, ...]], ...] = (
            ("target", self.target, get_args(Target)),
            ("release", self.release, RELEASES),
            ("pe_model", self.pe_model, get_args(PeModel)),
            ("row_sum", self.row_sum, get_args(RowSum)),
            ("storage", self.storage, get_args(StorageModel)),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise InputError(f"interpreter setting {name}={value!r}; choose one of {', '.join(allowed)}")
        if not 0 <= self.compiler_sbuf < SBUF_BYTES[self.target]:
            raise InputError(f"compiler_sbuf={self.compiler_sbuf}: 0 to {SBUF_BYTES[self.target] - 1} bytes expected")
        if self.storage == "float64" and self.pe_model not in ("exact", "fp32"):
            raise InputError(
                f"pe_model={self.pe_model!r} rounds products and cannot be combined with storage='float64'"
            )

    @property
    def sbuf_limit(self) -> int:
        """Usable bytes per SBUF partition."""
        return SBUF_BYTES[self.target] - self.compiler_sbuf

    @property
    def moved_limit(self) -> int:
        """Bytes per SBUF partition that transfers may write."""
        return MOVED_BYTES if self.measured and self.target == "gen2" else SBUF_BYTES[self.target]


@dataclass(frozen=True, slots=True)
class Shape:
    """Placeholder for an HBM input in counts-only runs: shape and dtype name, no data."""

    shape: tuple[int, ...]
    dtype: str = "float32"


class Violation(KernelError):
    """A kernel broke a documented rule; `allowed` and `source` come from the table, `instead` is what to write.

    Parameters
    ----------
    rule : key of `RULES`
    done : what the kernel did, with the numbers
    place : "file:line" of the kernel statement, with its caller where that is a helper function ("" : the call itself)
    """

    def __init__(self, rule: str, done: str, place: str = "") -> None:
        allowed, source = RULES[rule]
        instead = remedy(rule, done)
        super().__init__(
            f"{place + ': ' if place else ''}[{rule}] {done}; allowed: {allowed} ({source}); instead: {instead}"
        )
        self.rule = rule
        self.done = done
        self.place = place
        self.allowed = allowed
        self.source = source
        self.instead = instead


class NotInSubset(Violation):
    """A call, keyword or attribute that no kernel of this package may use, whatever the releases say."""

    def __init__(self, done: str, place: str = "") -> None:
        super().__init__("not-in-subset", done, place)


def kernel_place(files: dict[str, str], *, callers: bool = False) -> str:
    """ "file:line" of the innermost running statement whose file is one of `files` (path -> short name).

    callers : add the statement that called the helper function it stands in, as "file:line (from file:line)".
    """
    found = ""
    frame = sys._getframe(1)
    while frame is not None:
        short = files.get(frame.f_code.co_filename)
        if short is not None:
            place = f"{short}:{frame.f_lineno}"
            if not callers:
                return place
            if found:
                return f"{found} (from {place})"
            found = place
        if frame.f_back is None:
            break
        frame = frame.f_back
    return found
