"""Names of the language: regions, engines, operators, enumerations, and the parameters of five NKI releases.

The parameter names, their order and defaults are taken from the docstring stubs of the public documentation at tags
v2.29.0, v2.30.0, v2.31.0 and v2.32.0 (NKI 0.3.0 to 0.6.0). NKI 0.7.0 has no tag yet: its rows follow the notes of the
2.33 pages (activation gains `engine` before `name`, dynamic_range is gone) and are otherwise those of 0.6.0.
"""

from __future__ import annotations

from ast import literal_eval
from dataclasses import dataclass
from functools import cache
from typing import NoReturn

from dfmp2.trainium.interpreter.arithmetic import DTYPES, SUBSET
from dfmp2.trainium.interpreter.rules import RELEASES, NotInSubset
from dfmp2.trainium.interpreter.trace import Space

ENUMERATIONS: dict[str, tuple[str, ...]] = {
    "engine": ("unknown", "tensor", "vector", "scalar", "gpsimd", "dma", "sync"),
    "dge_mode": ("unknown", "swdge", "hwdge", "none"),
    "reduce_cmd": ("idle", "reset", "reduce", "reset_reduce", "load_reduce"),
    "oob_mode": ("error", "skip"),
}
# instruction -> first release -> parameters in order; "name=default" where there is a default
INSTRUCTIONS: dict[str, dict[str, str]] = {
    "nc_matmul": {
        "0.3.0": "dst stationary moving is_stationary_onezero=False is_moving_onezero=False is_transpose=False"
        " accumulate=None tile_position=() tile_size=() perf_mode=None name=None",
    },
    "activation": {
        "0.3.0": "dst op data bias=None scale=1.0 reduce_op=None reduce_res=None reduce_cmd=idle name=None",
        "0.7.0": "dst op data bias=None scale=1.0 reduce_op=None reduce_res=None reduce_cmd=idle engine=unknown"
        " name=None",
    },
    "tensor_tensor": {"0.3.0": "dst data1 data2 op engine=unknown name=None"},
    "tensor_scalar": {
        "0.3.0": "dst data op0 operand0 reverse0=False op1=None operand1=None reverse1=False engine=unknown name=None",
    },
    "scalar_tensor_tensor": {
        "0.3.0": "dst data op0 operand0 op1 operand1 reverse0=False reverse1=False name=None"
    },
    "reciprocal": {"0.3.0": "dst data name=None"},
    "tensor_copy": {"0.3.0": "dst src engine=unknown name=None"},
    "memset": {"0.3.0": "dst value engine=unknown name=None"},
    "tensor_reduce": {"0.3.0": "dst op data axis negate=False keepdims=False name=None"},
    "tensor_scalar_reduce": {
        "0.3.0": "dst data op0 operand0 reduce_op reduce_res reverse0=False name=None",
        "0.4.0": "dst data op0 operand0 reduce_op reduce_res reverse0=False reduce_cmd=reset_reduce reduce_init=None"
        " name=None",
        "0.6.0": "dst data op0 operand0 reduce_op reduce_res=None reverse0=False reduce_cmd=reset_reduce"
        " reduce_init=None reduce_res_negate=False name=None",
    },
    "dma_copy": {
        "0.3.0": "dst src oob_mode=error dge_mode=unknown engine=unknown name=None",
        "0.4.0": "dst src priority=None oob_mode=error dge_mode=unknown engine=unknown name=None",
    },
    "register_alloc": {"0.3.0": "x=None"},
    "register_load": {"0.3.0": "dst src"},
    "register_move": {"0.3.0": "dst src"},
}
# Documented parameters that our kernels may not use.
NOT_TAKEN = frozenset(
    ("tile_position", "tile_size", "perf_mode", "reduce_init", "reduce_res_negate", "keepdims")
)
# nl name -> releases that have it
LOOP_NAMES: dict[str, tuple[str, ...]] = {
    "dynamic_range": ("0.3.0", "0.4.0", "0.5.0", "0.6.0"),
    "fori_loop": ("0.6.0", "0.7.0"),
}
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
OPERATORS = {name: Operator(name) for name in SUBSET}
# nl names of the subset that every release has
COMMON_NAMES = frozenset(("ndarray", "no_reorder", *REGIONS, *DTYPES, *OPERATORS))


@cache
def parameters(instruction: str, release: str) -> dict[str, bool]:
    """Parameter name -> whether it is required, in the release's order."""
    text = [
        row
        for first, row in INSTRUCTIONS[instruction].items()
        if RELEASES.index(first) <= RELEASES.index(release)
    ]
    return {word.split("=")[0]: "=" not in word for word in text[-1].split()}


@cache
def defaults(instruction: str) -> dict[str, object]:
    """What a parameter is where it is left out; also those that only other releases have."""
    words = (
        word.partition("=") for row in INSTRUCTIONS[instruction].values() for word in row.split()
    )
    return {
        name: Member(name, text) if name in ENUMERATIONS else literal_eval(text)
        for name, given, text in words
        if given
    }


@cache
def in_all_releases(instruction: str) -> frozenset[str]:
    """Parameter names that every release has."""
    return frozenset.intersection(
        *(frozenset(parameters(instruction, release)) for release in RELEASES)
    )


@cache
def required_somewhere(instruction: str) -> frozenset[str]:
    """Parameter names that at least one release requires."""
    rows = [parameters(instruction, release) for release in RELEASES]
    return frozenset(name for row in rows for name, required in row.items() if required)
