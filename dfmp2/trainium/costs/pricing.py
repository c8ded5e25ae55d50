"""The price of a shape: the calls that cover it, each counted by the interpreter and scheduled, times how often.

    makespan = sum over calls of count * in-order makespan        floor = multiplications / (128 * 128) * passes / clock

An account of one call has the busy time per engine, traffic, memory, and two makespans: the lower bound is the busiest
engine (or the PSUM port on trn1), the other one the list schedule. The floor of the pair energies counts pairs i <= j
(all pairs between two spins) at full use of the array. Everything is read from a trace; nothing was measured on a
device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dfmp2.trainium.calls import Call
from dfmp2.trainium.costs import schedule
from dfmp2.trainium.costs.chips import DMA_QUEUES, FLOAT32_PASSES, Assumptions, Chip, charge, queues
from dfmp2.trainium.costs.schedule import ENGINES, Schedule
from dfmp2.trainium.interpreter.run import run_kernel
from dfmp2.trainium.interpreter.settings import Settings
from dfmp2.trainium.interpreter.trace import Trace

DESCRIPTOR_BYTES = 2 * 16  # source and destination element of a descriptor ring
ARRAY = 128 * 128


@dataclass(frozen=True, slots=True)
class Account:
    """What one call of a kernel costs on one core.

    Attributes
    ----------
    busy : ns per engine; "dma" is the mean over the 16 queues
    documented : the same without the per-instruction overheads
    makespan : ns of the in-order schedule; bound : ns of the busiest engine or port
    port : ns the shared PSUM port is held (0 on trn2)
    bytes_read, bytes_written : HBM traffic
    rows : transfers; descriptors : contiguous runs
    statements : instructions by name, matrix products flagged one/zero or transpose as "nc_matmul (hinted)"
    sbuf : most bytes per partition alive; psum : most banks alive
    """

    busy: dict[str, float]
    documented: dict[str, float]
    makespan: float
    bound: float
    port: float
    bytes_read: int
    bytes_written: int
    rows: int
    descriptors: int
    statements: dict[str, int]
    sbuf: int
    psum: int

    @property
    def ring_bytes(self) -> int:
        """Device memory of the static descriptor rings, about."""
        return self.descriptors * DESCRIPTOR_BYTES

    @property
    def utilisation(self) -> float:
        """Tensor Engine busy time over the in-order makespan."""
        return self.busy["tensor"] / self.makespan if self.makespan else 0.0


def settle(trace: Trace, chip: Chip, given: Assumptions) -> tuple[Account, Schedule]:
    """The account and the schedule of a trace."""
    plan = schedule.build(trace, chip, given)
    taken = (plan.end - plan.start).tolist()
    busy, documented = dict.fromkeys(ENGINES, 0.0), dict.fromkeys(ENGINES, 0.0)
    read = written = rows = descriptors = 0
    statements: Counter[str] = Counter()
    for one, time in zip(trace.instructions, taken, strict=True):
        if one.engine == "dma":
            share = queues(one) / DMA_QUEUES
            busy["dma"] += time * share
            documented["dma"] += time * share
            rows, descriptors = rows + 1, descriptors + one.descriptors
            read += one.bytes if any(access.space == "hbm" for access in one.reads) else 0
            written += one.bytes if any(access.space == "hbm" for access in one.writes) else 0
        else:
            busy[one.engine] += time
            documented[one.engine] += charge(one, chip, given).documented / chip.clock(one.engine)
        flagged = one.name == "nc_matmul" and (one.one_zero or one.transpose)
        statements[f"{one.name} (hinted)" if flagged else one.name] += 1
    port = plan.port if chip.shared_ports else 0.0
    return Account(
        busy=busy,
        documented=documented,
        makespan=plan.makespan,
        bound=max(*busy.values(), port),
        port=port,
        bytes_read=read,
        bytes_written=written,
        rows=rows,
        descriptors=descriptors,
        statements=dict(sorted(statements.items())),
        sbuf=trace.sbuf_high_water,
        psum=trace.psum_high_water,
    ), plan


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
