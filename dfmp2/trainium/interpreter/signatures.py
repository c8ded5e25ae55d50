"""Names of the language: regions, engines, operators, enumerations, and the parameters of the
instructions.

The parameters are those of NKI 0.6 (SDK 2.32); for everything that the kernels use, the pages of
0.7 repeat them.
"""

from __future__ import annotations

from ast import literal_eval
from dataclasses import dataclass
from functools import cache
from typing import Literal, NoReturn

from dfmp2.trainium.interpreter.arithmetic import SUBSET
from dfmp2.trainium.interpreter.rules import NotInSubset

Space = Literal["hbm", "sbuf", "psum"]
Engine = Literal["tensor", "vector", "scalar", "gpsimd", "dma"]
ENUMERATIONS: dict[str, tuple[str, ...]] = {
    "engine": ("unknown", "tensor", "vector", "scalar", "gpsimd", "dma", "sync"),
    "dge_mode": ("unknown", "swdge", "hwdge", "none"),
    "reduce_cmd": ("idle", "reset", "reduce", "reset_reduce", "load_reduce"),
    "oob_mode": ("error", "skip"),
}
# instruction -> parameters in order; "name=default" if there is a default
INSTRUCTIONS: dict[str, str] = {
    "nc_matmul": "dst stationary moving is_stationary_onezero=False is_moving_onezero=False "
    "is_transpose=False accumulate=None tile_position=() tile_size=() perf_mode=None name=None",
    "nc_transpose": "dst data engine=unknown name=None",
    "activation": "dst op data bias=None scale=1.0 reduce_op=None reduce_res=None reduce_cmd=idle "
    "name=None",
    "tensor_tensor": "dst data1 data2 op engine=unknown name=None",
    "tensor_scalar": "dst data op0 operand0 reverse0=False op1=None operand1=None reverse1=False "
    "engine=unknown name=None",
    "scalar_tensor_tensor": "dst data op0 operand0 op1 operand1 reverse0=False reverse1=False "
    "name=None",
    "reciprocal": "dst data name=None",
    "tensor_copy": "dst src engine=unknown name=None",
    "memset": "dst value engine=unknown name=None",
    "tensor_reduce": "dst op data axis negate=False keepdims=False name=None",
    "tensor_scalar_reduce": "dst data op0 operand0 reduce_op reduce_res=None reverse0=False"
    " reduce_cmd=reset_reduce reduce_init=None reduce_res_negate=False name=None",
    "dma_copy": "dst src priority=None oob_mode=error dge_mode=unknown engine=unknown name=None",
}
# Documented parameters that our kernels may not use.
NOT_TAKEN = frozenset(
    (
        "tile_position",
        "tile_size",
        "perf_mode",
        "reduce_init",
        "reduce_res_negate",
        "keepdims",
        "oob_mode",
    )
)


@dataclass(frozen=True, slots=True)
class Region:
    """A memory region: its name in nl, and its memory space."""

    name: str
    space: Space

    def __repr__(self) -> str:
        return f"nl.{self.name}"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of one of the nisa enumerations."""

    kind: str
    name: str

    def __repr__(self) -> str:
        return f"nisa.{self.kind}.{self.name}"


@dataclass(frozen=True, slots=True)
class Operator:
    """A math operator, passed as op= to an instruction (calling it would be the high-level
    language)."""

    name: str

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise NotInSubset(f"nl.{self.name} was called; pass it as op= to an instruction")


REGIONS = {
    "sbuf": Region("sbuf", "sbuf"),
    "psum": Region("psum", "psum"),
    "shared_hbm": Region("shared_hbm", "hbm"),
    "private_hbm": Region("private_hbm", "hbm"),
    "hbm": Region("private_hbm", "hbm"),
}
OPERATORS = {name: Operator(name) for name in SUBSET}


@cache
def parameters(instruction: str) -> dict[str, bool]:
    """Parameter name -> whether it is required, in order."""
    return {word.split("=")[0]: "=" not in word for word in INSTRUCTIONS[instruction].split()}


@cache
def defaults(instruction: str) -> dict[str, object]:
    """Default values of the optional parameters."""
    words = (word.partition("=") for word in INSTRUCTIONS[instruction].split())
    return {
        name: Member(name, text) if name in ENUMERATIONS else literal_eval(text)
        for name, given, text in words
        if given
    }
