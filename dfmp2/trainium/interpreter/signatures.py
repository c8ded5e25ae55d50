"""Names of the language: regions, engines, operators, enumerations, and the parameters of five NKI releases.

The parameter names, their order and defaults are taken from the docstring stubs of the public documentation at tags
v2.29.0, v2.30.0, v2.31.0 and v2.32.0 (NKI 0.3.0 to 0.6.0). NKI 0.7.0 has no tag yet: its rows follow the notes of the
2.33 pages (activation gains `engine` before `name`, dynamic_range is gone) and are otherwise those of 0.6.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NoReturn

from dfmp2.trainium.interpreter.rules import NotInSubset
from dfmp2.trainium.interpreter.settings import RELEASES
from dfmp2.trainium.interpreter.trace import Space

BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
UNARY = ("copy", "square", "exp", "sqrt", "rsqrt", "reciprocal")
ENUMERATIONS: dict[str, tuple[str, ...]] = {
    "engine": ("unknown", "tensor", "vector", "scalar", "gpsimd", "dma", "sync"),
    "dge_mode": ("unknown", "swdge", "hwdge", "none"),
    "reduce_cmd": ("idle", "reset", "reduce", "reset_reduce", "load_reduce"),
    "oob_mode": ("error", "skip"),
}
# instruction -> ((first release, parameters in order; "name=default" where there is a default), ...)
INSTRUCTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "nc_matmul": (
        (
            "0.3.0",
            "dst stationary moving is_stationary_onezero=False is_moving_onezero=False is_transpose=False"
            " accumulate=None tile_position=() tile_size=() perf_mode=none name=None",
        ),
    ),
    "activation": (
        (
            "0.3.0",
            "dst op data bias=None scale=1.0 reduce_op=None reduce_res=None reduce_cmd=idle name=None",
        ),
        (
            "0.7.0",
            "dst op data bias=None scale=1.0 reduce_op=None reduce_res=None reduce_cmd=idle engine=unknown name=None",
        ),
    ),
    "tensor_tensor": (("0.3.0", "dst data1 data2 op engine=unknown name=None"),),
    "tensor_scalar": (
        (
            "0.3.0",
            "dst data op0 operand0 reverse0=False op1=None operand1=None reverse1=False engine=unknown name=None",
        ),
    ),
    "scalar_tensor_tensor": (("0.3.0", "dst data op0 operand0 op1 operand1 reverse0=False reverse1=False name=None"),),
    "reciprocal": (("0.3.0", "dst data name=None"),),
    "tensor_copy": (("0.3.0", "dst src engine=unknown name=None"),),
    "memset": (("0.3.0", "dst value engine=unknown name=None"),),
    "tensor_reduce": (("0.3.0", "dst op data axis negate=False keepdims=False name=None"),),
    "tensor_scalar_reduce": (
        ("0.3.0", "dst data op0 operand0 reduce_op reduce_res reverse0=False name=None"),
        (
            "0.4.0",
            "dst data op0 operand0 reduce_op reduce_res reverse0=False reduce_cmd=reset_reduce reduce_init=None"
            " name=None",
        ),
        (
            "0.6.0",
            "dst data op0 operand0 reduce_op reduce_res=None reverse0=False reduce_cmd=reset_reduce reduce_init=None"
            " reduce_res_negate=False name=None",
        ),
    ),
    "dma_copy": (
        ("0.3.0", "dst src oob_mode=error dge_mode=unknown engine=unknown name=None"),
        ("0.4.0", "dst src priority=None oob_mode=error dge_mode=unknown engine=unknown name=None"),
    ),
    "register_alloc": (("0.3.0", "x=None"),),
    "register_load": (("0.3.0", "dst src"),),
    "register_move": (("0.3.0", "dst src"),),
}
# nl name -> releases that have it; the names of the subset that every release has are in `COMMON_NAMES`.
LOOP_NAMES: dict[str, tuple[str, ...]] = {
    "dynamic_range": ("0.3.0", "0.4.0", "0.5.0", "0.6.0"),
    "fori_loop": ("0.6.0", "0.7.0"),
}
COMMON_NAMES = frozenset(
    (
        *("ndarray", "no_reorder", "sbuf", "psum", "shared_hbm", "private_hbm", "hbm"),
        *("float32", "tfloat32", "float16", "bfloat16", "int32", "uint8"),
        *("add", "subtract", "multiply", "maximum", "minimum"),
        *("copy", "square", "exp", "sqrt", "rsqrt", "reciprocal"),
    )
)
DEPRECATED_LOOPS = ("affine_range", "sequential_range", "static_range")


@dataclass(frozen=True, slots=True)
class Region:
    """A memory region: its name in nl and the space it lies in."""

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
    """A math operator, passed as op= to an instruction (calling it would be the high-level language)."""

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
OPERATORS = {name: Operator(name) for name in (*BINARY, *UNARY)}


@cache
def parameters(instruction: str, release: str) -> dict[str, bool]:
    """Parameter name -> whether it is required, in the release's order."""
    text = ""
    for first, row in INSTRUCTIONS[instruction]:
        if RELEASES.index(first) <= RELEASES.index(release):
            text = row
    return {word.split("=")[0]: "=" not in word for word in text.split()}


@cache
def in_all_releases(instruction: str) -> frozenset[str]:
    """Parameter names that every release has."""
    names = frozenset(parameters(instruction, RELEASES[0]))
    for release in RELEASES[1:]:
        names &= frozenset(parameters(instruction, release))
    return names


@cache
def required_somewhere(instruction: str) -> frozenset[str]:
    """Parameter names that at least one release requires."""
    found: frozenset[str] = frozenset()
    for release in RELEASES:
        found |= {name for name, required in parameters(instruction, release).items() if required}
    return found
