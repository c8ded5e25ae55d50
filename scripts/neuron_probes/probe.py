"""A probe: a question, what to measure, and the rule that turns the numbers into a decision about the code.

The same measurement runs on two benches: on the device, and on the model (our interpreter for numbers, our cost model
for times), so that every measured figure stands beside the predicted one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from dfmp2.trainium.costs.chips import CHIPS
from dfmp2.trainium.interpreter import rules
from dfmp2.trainium.launch import toolchain

Numbers = dict[str, float]
# The chip that is asked: the one here; without a device what NKI's variable names, else trn1.
_NAMED = toolchain.device_target() or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or "trn1"
CHIP = CHIPS[rules.CHIP[rules.GENERATION.get(_NAMED, "gen2")]]


class Bench(Protocol):
    """What a probe may ask for; `few` and `many` are the repetitions between which times are compared.

    Attributes
    ----------
    name : of the lane, or "model"
    """

    name: str
    few: int
    many: int

    def run(self, source: str, kernel: str, arguments: dict[str, Any]) -> NDArray[Any]:
        """The result of one call."""
        ...

    def nanoseconds(
        self, source: str, kernel: str, arguments: dict[str, Any], varied: str, check: Check
    ) -> float:
        """Time of one more turn of a kernel that makes `varied` turns; each result must pass `check`."""
        ...

    def calls(self, source: str, kernel: str, arguments: dict[str, Any], count: int) -> float:
        """Seconds of `count` calls in a row whose results are fetched at the end; NaN where that is not known."""
        ...

    def programs(self, blocks: int) -> float:
        """Programs compiled for all pairs of `blocks` blocks of occupied orbitals."""
        ...

    def device(self, source: str, kernel: str, arguments: dict[str, Any]) -> float:
        """Milliseconds of one launch by the device's own clock; NaN where the lane does not tell."""
        ...

    def watch(
        self, source: str, kernel: str, arguments: dict[str, Any], seconds: float
    ) -> list[tuple[float, float]]:
        """Seconds since the start and of each launch, for `seconds` from the start of the runtime; [] if unknown."""
        ...

    def compilation(self, shape: tuple[int, int, int], edge: int) -> tuple[float, float]:
        """Seconds and peak bytes of memory to compile the pair kernel of a shape; NaN where that is not known."""
        ...


Check = Callable[[NDArray[Any], int], bool]


class ProbeError(Exception):
    """A device computed something else than the kernel says: no time of it means anything."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A constant or a choice in the code, as "module:name" or "module:Class.field", and what it should be."""

    place: str
    value: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What the numbers decide, in words, and what they settle in the code."""

    text: str
    settles: tuple[Setting, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """One question.

    Attributes
    ----------
    name : P1, P2, ...
    question : what is not known without a device
    ask : measures on a bench; the numbers by name, with their unit in the name
    decide : from numbers to the decision
    """

    name: str
    question: str
    ask: Callable[[Bench], Numbers]
    decide: Callable[[Numbers], Decision]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came out: predicted numbers always, measured ones and the decision where there was a device."""

    probe: Probe
    predicted: Numbers
    measured: Numbers | None = None
    failed: str = ""
    seconds: float = field(default=0.0)

    @property
    def decision(self) -> Decision:
        """From what was measured, else from the prediction (and then it decides nothing)."""
        return self.probe.decide(self.predicted if self.measured is None else self.measured)
