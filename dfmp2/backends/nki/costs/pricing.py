"""The price of a shape: the calls that cover it, each counted by the interpreter and scheduled, times how often.

    makespan = sum over calls of count * in-order makespan        floor = multiplications / (128 * 128) * passes / clock

The floor of the pair energies counts pairs i <= j (all pairs between two spins) at full use of the array.
Nothing here was measured on a device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dfmp2.backends.nki.calls import Call
from dfmp2.backends.nki.costs.account import Account, settle
from dfmp2.backends.nki.costs.chips import Assumptions, Chip
from dfmp2.backends.nki.costs.instructions import FLOAT32_PASSES
from dfmp2.backends.nki.costs.schedule import ENGINES, Schedule
from dfmp2.backends.nki.interpreter.run import run_kernel
from dfmp2.backends.nki.interpreter.settings import Settings
from dfmp2.backends.nki.interpreter.trace import Trace

ARRAY = 128 * 128


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of call of a shape and its account."""

    call: Call
    account: Account


@dataclass(frozen=True, slots=True)
class Price:
    """What all calls that cover a shape cost on one core; times in ns, sums over calls.

    Attributes
    ----------
    variant : which form of the kernel
    parts : the kinds of calls
    floor : ns of the Tensor Engine at full use
    """

    variant: str
    parts: tuple[Part, ...]
    floor: float

    def _sum(self, values: Iterable[float]) -> float:
        return sum(part.call.count * value for part, value in zip(self.parts, values, strict=True))

    @property
    def calls(self) -> int:
        """Number of kernel calls."""
        return sum(part.call.count for part in self.parts)

    @property
    def neffs(self) -> int:
        """Number of compiled programs."""
        return len({part.call.neff for part in self.parts})

    @property
    def makespan(self) -> float:
        """In-order schedule, host dispatch not included."""
        return self._sum(part.account.makespan for part in self.parts)

    @property
    def bound(self) -> float:
        """The busiest engine or port of each call."""
        return self._sum(part.account.bound for part in self.parts)

    @property
    def port(self) -> float:
        """PSUM port of Vector and Scalar Engine."""
        return self._sum(part.account.port for part in self.parts)

    def busy(self, engine: str, *, overhead: bool = True) -> float:
        """Busy time of an engine, with or without the per-instruction overheads."""
        return self._sum((part.account.busy if overhead else part.account.documented)[engine] for part in self.parts)

    @property
    def engines(self) -> dict[str, float]:
        """Busy time per engine."""
        return {engine: self.busy(engine) for engine in ENGINES}

    @property
    def utilisation(self) -> float:
        """Tensor Engine busy time over the makespan."""
        return self.busy("tensor") / self.makespan if self.makespan else 0.0

    @property
    def hbm_bytes(self) -> int:
        """HBM traffic, both ways."""
        return sum(p.call.count * (p.account.bytes_read + p.account.bytes_written) for p in self.parts)

    @property
    def sbuf(self) -> int:
        """SBUF bytes per partition alive at once, of the largest call."""
        return max((part.account.sbuf for part in self.parts), default=0)

    @property
    def psum(self) -> int:
        """PSUM banks alive at once, of the largest call."""
        return max((part.account.psum for part in self.parts), default=0)

    @property
    def rings(self) -> int:
        """Device bytes of the static descriptor rings of all compiled programs."""
        return sum({part.call.neff: part.account.ring_bytes for part in self.parts}.values())


_ACCOUNTS: dict[tuple[object, ...], Account] = {}


def price(variant: str, calls: Iterable[Call], multiplications: int, chip: Chip, given: Assumptions) -> Price:
    """Price a list of calls that together make `multiplications` float32 multiplications.

    Raises
    ------
    KernelError : a kernel breaks a rule of the chip, for instance the capacity of SBUF
    """
    parts = tuple(Part(call, _account(call, chip, given)) for call in calls)
    return Price(variant, parts, multiplications / ARRAY * FLOAT32_PASSES / chip.tensor)


def trace(call: Call, chip: Chip) -> Trace:
    """The instructions of a call, without the arithmetic."""
    settings = Settings(target="gen2" if chip.target == "gen2" else "gen3", arithmetic=False)
    return run_kernel(call.source, call.kernel, call.arguments, settings)[1]


def schedule_call(call: Call, chip: Chip, given: Assumptions) -> tuple[Trace, Account, Schedule]:
    """Trace, account and schedule of a call."""
    done = trace(call, chip)
    return done, *settle(done, chip, given)


def _account(call: Call, chip: Chip, given: Assumptions) -> Account:
    key = (call.source, call.kernel, tuple(sorted((k, repr(v)) for k, v in call.arguments.items())), chip.name, given)
    if key not in _ACCOUNTS:
        _ACCOUNTS[key] = schedule_call(call, chip, given)[1]
    return _ACCOUNTS[key]
