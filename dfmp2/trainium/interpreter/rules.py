"""The rules a kernel can break, the error that names one, and the settings of a run.

The table of rules is rules.tsv beside this file: what is allowed, what to write instead, and the
supporting page, a path in the aws-neuron-sdk documentation; "own rule" marks one that is stricter
than the pages, with its reason.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, NamedTuple

from dfmp2.errors import InputError, KernelError


class Rule(NamedTuple):
    """A rule: what is allowed, what to write instead of a violation, and the supporting page."""

    allowed: str
    instead: str
    source: str


def _read_rules() -> dict[str, Rule]:
    rows = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8").splitlines()[1:]
    return {rule: Rule(*rest) for rule, *rest in (row.split("\t") for row in rows)}


RULES = _read_rules()
# name of nl, nisa, a tensor or Python -> what to write instead
INSTEAD_OF: dict[str, str] = {
    "divide": "nisa.reciprocal(dst=r, data=b), then nisa.tensor_tensor(op=nl.multiply)",
    "broadcast_to": "nisa.tensor_scalar(operand0=column), which spreads a (P, 1) column over the "
    "row",
    "expand_dims": "a slice of length one, t[:, k : k + 1]",
    "load": "a tile, nl.ndarray(.., buffer=nl.sbuf), and nisa.dma_copy(dst=tile, src=..)",
    "store": "nisa.dma_copy(dst=out[..], src=tile)",
    "zeros": "nl.ndarray and nisa.memset(value=0.0)",
    "ones": "nl.ndarray and nisa.memset(value=1.0)",
    "full": "nl.ndarray and nisa.memset",
    "sum": "nisa.tensor_reduce(op=nl.add, axis=1), or row sums of "
    "nisa.activation(reduce_op=nl.add)",
    "mean": "row sums of nisa.activation(reduce_op=nl.add), then "
    "nisa.tensor_scalar(op0=nl.multiply)",
    "matmul": "nisa.nc_matmul(dst=psum tile, stationary=.., moving=..), the stationary operand "
    "transposed",
    "transpose": "nisa.nc_transpose, or nisa.nc_matmul with an identity as moving operand",
    "load_transpose2d": "nisa.dma_copy, then nisa.nc_matmul with an identity",
    "affine_range": "range()",
    "sequential_range": "range()",
    "static_range": "range()",
    "dynamic_range": "range(): each round of a loop on the device ends with a barrier",
    "fori_loop": "range(): each round of a loop on the device ends with a barrier",
    "power": "nisa.tensor_scalar(op1=nl.power, operand1=..), whose exponent is a number",
    "relu": "nisa.tensor_scalar(op0=nl.maximum, operand0=0.0)",
    "negative": "nisa.tensor_scalar(op0=nl.multiply, operand0=-1.0)",
    "where": "products with a mask of zeros and ones",
    "tile_size": "the constants P and BANK of kernels/sizes.py",
    "program_id": "an argument; each core runs calls of its own",
    "device_print": "the interpreter's result, or a second output",
    "enumerate": "for k in range(len(..))",
    "zip": "for k in range(len(..))",
    "abs": "nisa.tensor_tensor(op=nl.maximum) of t and of -t",
    "int": "// of ints, which stays an int",
    "float": "a literal, 1.0",
    "isinstance": "an argument that says which",
    "sorted": "order on the host",
}

Target = Literal["gen2", "gen3"]
# Names of chips in runtime variables and instance types -> generation; and our names for these.
GENERATION: dict[str, Target] = {
    **dict.fromkeys(("trn1", "trn1n", "inf2", "gen2"), "gen2"),
    **dict.fromkeys(("trn2", "trn2u", "gen3"), "gen3"),
}
CHIP: dict[str, str] = {"gen2": "trn1", "gen3": "trn2"}

# SBUF bytes per partition (trainium_inferentia2_arch.rst, trainium2_arch.rst); the compiler
# reserves part of them (16 KiB documented for gen2 at v2.26.0).
SBUF_BYTES: dict[str, int] = {"gen2": 192 * 1024, "gen3": 224 * 1024}
COMPILER_BYTES = 16 * 1024
MOVED_BYTES = 64 * 1024  # of these, bytes that transfers may write on gen2
PSUM_BANK_BYTES = 2048
PSUM_BANKS = 8
PARTITIONS = 128


@dataclass(frozen=True, slots=True)
class Settings:
    """How a kernel is interpreted.

    target : chip generation, gen2 (trn1) or gen3 (trn2)
    exact : every float buffer, product and sum in float64, to test only the algebra; otherwise
        declared dtypes, a float32 dot per product, and sequential row sums
    arithmetic : if False, only count: apply all rules that need no data, and record the trace
    measured : also reject code that breaks no documented rule but is slow by others' measurements
        (sbuf-moved, dma-stride)
    """

    target: Target = "gen2"
    exact: bool = False
    arithmetic: bool = True
    measured: bool = True

    def __post_init__(self) -> None:
        if self.target not in CHIP:
            raise InputError(
                f"interpreter setting target={self.target!r}; choose one of {', '.join(CHIP)}"
            )

    @property
    def sbuf_limit(self) -> int:
        """Usable bytes per SBUF partition."""
        return SBUF_BYTES[self.target] - COMPILER_BYTES

    @property
    def moved_limit(self) -> int:
        """Bytes per SBUF partition that transfers may write."""
        if self.measured and self.target == "gen2":
            return MOVED_BYTES
        return SBUF_BYTES[self.target]


@dataclass(frozen=True, slots=True)
class Shape:
    """Placeholder for a float32 input in HBM in counts-only runs."""

    shape: tuple[int, ...]


class Violation(KernelError):
    """A kernel broke a documented rule; `allowed`, `instead` and `source` are from the table.

    Parameters
    ----------
    rule : key of `RULES`
    done : what the kernel did, with the numbers
    place : "file:line" of the kernel statement, with its caller if it is in a helper function ("" :
        the call itself)
    """

    def __init__(self, rule: str, done: str, place: str = "") -> None:
        allowed, instead, source = RULES[rule]
        if rule == "not-in-subset":
            instead = next(
                (INSTEAD_OF[word] for word in re.findall(r"\w+", done) if word in INSTEAD_OF),
                instead,
            )
        super().__init__(
            f"{place + ': ' if place else ''}[{rule}] {done}; allowed: {allowed} ({source}); "
            f"instead: {instead}"
        )
        self.rule = rule
        self.done = done
        self.place = place
        self.allowed = allowed
        self.source = source
        self.instead = instead


class NotInSubset(Violation):
    """A call, keyword or attribute that kernels of this package may not use, even if releases allow
    it."""

    def __init__(self, done: str, place: str = "") -> None:
        super().__init__("not-in-subset", done, place)


def kernel_place(files: dict[str, str]) -> str:
    """The current position in a kernel: "file:line" of the innermost running statement in one of
    `files` (path -> short name), followed by that of the caller if it is in a helper function, as
    "file:line (from file:line)"."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < 2:
        short = files.get(frame.f_code.co_filename)
        if short is not None:
            found.append(f"{short}:{frame.f_lineno}")
        frame = frame.f_back
    if len(found) > 1:
        return f"{found[0]} (from {found[1]})"
    return "".join(found)
