"""How a kernel is interpreted: chip, release, arithmetic of the engines, strictness; and placeholders for arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dfmp2.errors import InputError

Target = Literal["gen2", "gen3"]
PeModel = Literal["exact", "fp32", "bf16prod", "split4"]
RowSum = Literal["float64", "fp32"]
StorageModel = Literal["declared", "float64"]
RELEASES = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0")

# SBUF bytes per partition (trainium_inferentia2_arch.rst, trainium2_arch.rst).
SBUF_BYTES: dict[str, int] = {"gen2": 192 * 1024, "gen3": 224 * 1024}
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


@dataclass(frozen=True, slots=True)
class Shape:
    """Placeholder for an HBM input in counts-only runs: shape and dtype name, no data."""

    shape: tuple[int, ...]
    dtype: str = "float32"
