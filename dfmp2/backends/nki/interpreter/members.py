"""Named constants of the language: memory regions, engines, operators, enumerations. Plain comparable values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from dfmp2.backends.nki.interpreter.trace import Space
from dfmp2.backends.nki.interpreter.violations import NotInSubset


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
BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
UNARY = ("copy", "square", "exp", "sqrt", "rsqrt", "reciprocal")
OPERATORS = {name: Operator(name) for name in (*BINARY, *UNARY)}
ENUMERATIONS: dict[str, tuple[str, ...]] = {
    "engine": ("unknown", "tensor", "vector", "scalar", "gpsimd", "dma", "sync"),
    "dge_mode": ("unknown", "swdge", "hwdge", "none"),
    "reduce_cmd": ("idle", "reset", "reduce", "reset_reduce", "load_reduce"),
    "oob_mode": ("error", "skip"),
}
