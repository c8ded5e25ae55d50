"""Compiled programs: what identifies one, and which ones a calculation needs.

A program belongs to a kernel, the shapes of its tensors and its compile-time constants; all tensors are float32.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dfmp2.backends.nki.calls import Call, cross_calls, pair_energy_calls, transform_calls, variants
from dfmp2.backends.nki.costs.shapes import Shape
from dfmp2.backends.nki.executor import source_hash

GENERATION = {"trn1": "gen2", "trn2": "gen3"}
CHIP = {generation: chip for chip, generation in GENERATION.items()}


@dataclass(frozen=True, slots=True)
class Program:
    """One kernel at given shapes and constants.

    Attributes
    ----------
    source, kernel : module and function
    tensors : (name, shape) of each tensor; statics : (name, value) of each constant
    """

    source: str
    kernel: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    statics: tuple[tuple[str, Any], ...]

    @property
    def label(self) -> str:
        """For messages."""
        shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in self.tensors)
        return f"{self.kernel} ({shapes})"

    def fingerprint(self, target: str, logical_core: int = 1) -> str:
        """Names the program on a chip for these kernel sources, whatever compiles it."""
        what = [self.source, self.kernel, self.tensors, self.statics, target, logical_core, source_hash()]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def program_of(source: str, kernel: str, arguments: Mapping[str, Any]) -> Program:
    """The program that a call with these arguments needs; whatever has a shape is a tensor."""
    tensors = {name: tuple(map(int, value.shape)) for name, value in arguments.items() if hasattr(value, "shape")}
    statics = {name: value for name, value in arguments.items() if name not in tensors}
    return Program(source, kernel, tuple(sorted(tensors.items())), tuple(sorted(statics.items())))


def pair_programs(spins: tuple[Shape, ...], target: str) -> tuple[Program, ...]:
    """Programs of the pair energies of one or two spins, as the backend launches them.

    Parameters
    ----------
    target : "trn1" or "trn2"
    """
    generation = GENERATION[target]
    calls: list[Call] = []
    for shape in spins:
        best = variants(shape.nvir, shape.naux)[-1]
        calls += pair_energy_calls(*shape, generation, best)
    if len(spins) == 2:
        alpha, beta = spins
        calls += cross_calls((alpha.nocc, beta.nocc), (alpha.nvir, beta.nvir), alpha.naux, generation)
    found = [program_of(call.source, call.kernel, call.arguments) for call in calls]
    return tuple(dict.fromkeys(found))


def transform_programs(spins: tuple[Shape, ...], nao: int, target: str) -> tuple[Program, ...]:
    """Programs of the transformation on the device: two, for one or two spins.

    Parameters
    ----------
    spins : in `one_bucket`; nao : basis functions
    target : "trn1" or "trn2"
    """
    calls = [call for shape in spins for call in transform_calls(nao, *shape, GENERATION[target])]
    return tuple(dict.fromkeys(program_of(call.source, call.kernel, call.arguments) for call in calls))


def one_bucket(spins: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The shapes as the kernels see them where the device transforms: all spins with most virtual orbitals of any."""
    most = max((shape.nvir for shape in spins), default=0)
    return tuple(shape._replace(nvir=most) for shape in spins)


def programs(spins: tuple[Shape, ...], target: str, nao: int = 0) -> tuple[Program, ...]:
    """All programs of a run; `nao` basis functions where the device transforms, else 0."""
    if not nao:
        return pair_programs(spins, target)
    spins = one_bucket(spins)
    return *transform_programs(spins, nao, target), *pair_programs(spins, target)
