"""The in-order list schedule: when each instruction of a trace starts and ends; and the account of one call.

Every engine and the DMA queues issue in program order. An instruction starts when its engine is free, what it waits for
has ended (plus the cross-engine wait; for transfers plus the DMA start time) and the ports it needs are free: on trn1
one PSUM port for Vector and Scalar Engine and one SBUF port for Vector Engine and GpSimd, on trn2 the PSUM banks.
Whoever can start first gets a port. What an instruction waits for:

    RAW  a read waits for the writes of the region       WAR  a write waits for the reads of the region
    WAW  a write waits for earlier writes of it          release: a new buffer waits for the old one's users

Kernels declare a fresh buffer where they need it and leave its address to the compiler. Here the oldest released memory
is taken first, without fragmentation: PSUM tensors get one of 8 banks, SBUF tensors bytes of every partition. A new
buffer may be written when the last user of every buffer it replaces has finished; this is where too little double
buffering shows.

The account of a call has the busy time per engine, traffic, memory, and two makespans: the lower bound is the busiest
engine (or the PSUM port on trn1), the other one the list schedule. Nothing was measured on a device.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfmp2.trainium.calls import Call
from dfmp2.trainium.costs.chips import DMA_QUEUES, Assumptions, Chip, charge, queues, transfer_time
from dfmp2.trainium.interpreter.rules import PSUM_BANKS, Settings
from dfmp2.trainium.interpreter.run import run_kernel
from dfmp2.trainium.interpreter.trace import Access, Instruction, Rectangle, Trace, covers, overlap

DESCRIPTOR_BYTES = 2 * 16  # source and destination element of a descriptor ring
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma")
PSUM_PORT, SBUF_PORT = "psum", "sbuf"
PSUM_SHARERS, SBUF_SHARERS = ("vector", "scalar"), ("vector", "gpsimd")
NOTHING, ENGINE, INSTRUCTION, PORT = 0, 1, 2, 3  # what an instruction waited for last


def place(trace: Trace, chip: Chip) -> tuple[dict[int, tuple[int, ...]], dict[int, int]]:
    """The tensors whose memory each on-chip tensor of a trace takes over, and the banks of those in PSUM.

    A run has refused what does not fit.
    """
    replaces, bank = dict[int, tuple[int, ...]](), dict[int, int]()
    for space, capacity in (("psum", PSUM_BANKS), ("sbuf", chip.sbuf)):
        free: deque[tuple[int, int | None]] = deque(
            [(capacity, None)]
        )  # (room, former tenant), oldest first
        alive: list[tuple[int, int, int]] = []  # (last use, tensor, size)
        for allocation in (a for a in trace.allocations if a.space == space):
            while alive and alive[0][0] < allocation.born:
                _, tensor, size = heapq.heappop(alive)
                free.append((size, tensor))
            wanted = own = 1 if space == "psum" else allocation.bytes
            former = []
            while wanted:
                size, tenant = free.popleft()
                if tenant is not None:
                    former.append(tenant)
                if size > wanted:
                    free.appendleft((size - wanted, tenant))
                wanted -= min(size, wanted)
            replaces[allocation.tensor] = tuple(former)
            if space == "psum":
                if former:
                    bank[allocation.tensor] = bank[former[0]]
                else:
                    bank[allocation.tensor] = len(bank)
            heapq.heappush(alive, (allocation.last_use, allocation.tensor, own))
    return replaces, bank


def waits(trace: Trace, replaces: dict[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """For every instruction the earlier ones of other engines it waits for (transfers also for transfers)."""
    writes: dict[int, dict[Rectangle, int]] = {}
    reads: dict[int, dict[tuple[str, Rectangle], int]] = {}
    last: dict[int, dict[str, int]] = {}  # tensor -> engine -> its last user
    begun: set[tuple[int, str]] = set()
    result = []
    for index, instruction in enumerate(trace.instructions):
        engine, needed = instruction.engine, set[int]()
        for access in instruction.reads:
            own, earlier = access[2:], writes.get(access.tensor)
            if earlier:
                exact = earlier.get(own)
                if exact is not None and len(earlier) == 1:
                    needed.add(exact)
                else:
                    needed.update(done for region, done in earlier.items() if overlap(region, own))
        for access in instruction.writes:
            needed.update(
                _overwritten(access, writes.setdefault(access.tensor, {}), reads.get(access.tensor))
            )
            if (access.tensor, engine) not in begun:
                begun.add((access.tensor, engine))
                for former in replaces.get(access.tensor, ()):
                    needed.update(last.get(former, {}).values())
        for access in instruction.reads:
            reads.setdefault(access.tensor, {})[(engine, access[2:])] = index
            last.setdefault(access.tensor, {})[engine] = index
        for access in instruction.writes:
            writes[access.tensor][access[2:]] = index
            last.setdefault(access.tensor, {})[engine] = index
        needed.discard(index)
        kept = (n for n in needed if engine == "dma" or trace.instructions[n].engine != engine)
        result.append(tuple(sorted(kept)))
    return result


def _overwritten(
    access: Access, writes: dict[Rectangle, int], reads: dict[tuple[str, Rectangle], int] | None
) -> list[int]:
    """Earlier users of the region; those it covers entirely are forgotten, since they are waited for now."""
    own = access[2:]
    found = []
    for region in [region for region in writes if overlap(region, own)]:
        found.append(writes[region])
        if covers(own, region):
            del writes[region]
    if reads:
        for key in [key for key in reads if overlap(key[1], own)]:
            found.append(reads[key])
            if covers(own, key[1]):
                del reads[key]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Times of all instructions, ns.

    Attributes
    ----------
    start, end : (n,) float64
    cause : (n,) what decided the start: NOTHING, ENGINE (busy), INSTRUCTION (a dependency), PORT (held)
    blocker : (n,) index of the dependency or port holder, -1 otherwise
    port : ns the PSUM port of Vector and Scalar Engine was held (trn1)
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    cause: NDArray[np.int8]
    blocker: NDArray[np.int64]
    port: float

    @property
    def makespan(self) -> float:
        """ns from the first start of a transfer's preparation to the last end."""
        return float(self.end.max()) if len(self.end) else 0.0


def duration(one: Instruction, chip: Chip, given: Assumptions) -> float:
    """Nanoseconds an instruction keeps its engine, or its queues, busy."""
    if one.engine == "dma":
        return transfer_time(one, chip, given)
    return charge(one, chip, given).cycles / chip.clock(one.engine)


def build(trace: Trace, chip: Chip, given: Assumptions) -> Schedule:
    """Schedule a trace on one core of a chip."""
    return _Simulation(trace, chip, given).run()


class _Simulation:
    """Engines, queues and ports while the schedule is made."""

    def __init__(self, trace: Trace, chip: Chip, given: Assumptions) -> None:
        count = len(trace.instructions)
        replaces, self._bank = place(trace, chip)
        self._trace, self._chip = trace, chip
        self._needed = waits(trace, replaces)
        crowded = chip.target == "gen2" and trace.moved_high_water >= given.moved_line
        slower = given.moved_factor if crowded else 1.0
        self._times = [
            duration(one, chip, given) * (slower if one.engine == "dma" else 1.0)
            for one in trace.instructions
        ]
        self._start, self._end = [0.0] * count, [-1.0] * count
        self._cause, self._blocker = [NOTHING] * count, [-1] * count
        self._waits = {e: given.cross_engine_wait / chip.clock(e) for e in ENGINES if e != "dma"}
        self._waits["dma"] = given.dma_start
        self._free = dict.fromkeys(ENGINES, 0.0)
        self._queues = [0.0] * DMA_QUEUES
        self._ports: dict[object, tuple[float, int]] = {}
        self._port_time = 0.0

    def run(self) -> Schedule:
        """Commit, again and again, the engine whose next instruction can start first."""
        order: dict[str, list[int]] = {engine: [] for engine in ENGINES}
        for index, one in enumerate(self._trace.instructions):
            order[one.engine].append(index)
        heads = {engine: 0 for engine in ENGINES if order[engine]}
        ready: dict[
            str, tuple[float, int, int]
        ] = {}  # engine -> (data ready, cause, blocker) of its next instruction
        while heads:
            best: tuple[float, int] | None = None
            for engine, position in heads.items():
                index = order[engine][position]
                if engine not in ready:
                    known = self._ready(engine, index)
                    if known is None:
                        continue
                    ready[engine] = known
                start = self._earliest(engine, index, ready[engine][0])
                if best is None or (start, index) < best:
                    best = (start, index)
            if best is None:
                raise RuntimeError(
                    "an instruction waits for a later one: the trace is not in program order"
                )
            start, index = best
            engine = self._trace.instructions[index].engine
            self._commit(engine, index, start, ready.pop(engine))
            heads[engine] += 1
            if heads[engine] == len(order[engine]):
                del heads[engine]
        times = np.array(self._start), np.array(self._end)
        return Schedule(
            *times,
            np.array(self._cause, np.int8),
            np.array(self._blocker, np.int64),
            self._port_time,
        )

    def _ready(self, engine: str, index: int) -> tuple[float, int, int] | None:
        """When all that an instruction waits for is there; None while some of it is not scheduled yet."""
        latest, blocker = 0.0, -1
        for other in self._needed[index]:
            end = self._end[other]
            if end < 0.0:
                return None
            if end >= latest:
                latest, blocker = end, other
        if blocker < 0 and engine != "dma":
            return 0.0, NOTHING, -1
        wait = self._waits[engine]
        if engine == "dma" and self._trace.instructions[index].dynamic:
            wait += self._chip.dynamic_descriptor
        return latest + wait, INSTRUCTION, blocker

    def _earliest(self, engine: str, index: int, data: float) -> float:
        start = max(data, self._engine_free(engine, index))
        for port in self._ports_of(engine, index):
            start = max(start, self._ports.get(port, (0.0, -1))[0])
        return start

    def _engine_free(self, engine: str, index: int) -> float:
        if engine != "dma":
            return self._free[engine]
        wanted = queues(self._trace.instructions[index])
        return max(self._free["dma"], sorted(self._queues)[wanted - 1])

    def _ports_of(self, engine: str, index: int) -> set[object]:
        one = self._trace.instructions[index]
        if engine == "dma" or engine == "tensor":
            return set()
        accesses = one.reads + one.writes
        ports: set[object] = set()
        if self._chip.bank_conflicts:
            ports.update(self._bank[a.tensor] for a in accesses if a.space == "psum")
        if not self._chip.shared_ports:
            return ports
        if engine in PSUM_SHARERS and any(a.space == "psum" for a in accesses):
            ports.add(PSUM_PORT)
        if engine in SBUF_SHARERS and any(a.space == "sbuf" for a in accesses):
            ports.add(SBUF_PORT)
        return ports

    def _commit(self, engine: str, index: int, start: float, ready: tuple[float, int, int]) -> None:
        data, cause, blocker = ready
        if self._engine_free(engine, index) >= data and cause != NOTHING:
            cause, blocker = ENGINE, -1
        end = start + self._times[index]
        for port in self._ports_of(engine, index):
            held, holder = self._ports.get(port, (0.0, -1))
            if held == start and start > max(data, self._engine_free(engine, index)):
                cause, blocker = PORT, holder
            self._ports[port] = (end, index)
            if port == PSUM_PORT:
                self._port_time += end - start
        if engine == "dma":
            self._transfer(index, start, end)
        else:
            self._free[engine] = end
        self._start[index], self._end[index] = start, end
        self._cause[index], self._blocker[index] = cause, blocker

    def _transfer(self, index: int, start: float, end: float) -> None:
        """Take the queues that are free first; later transfers may not start before this one."""
        one = self._trace.instructions[index]
        taken = sorted(range(DMA_QUEUES), key=self._queues.__getitem__)[: queues(one)]
        for queue in taken:
            self._queues[queue] = end
        self._free["dma"] = start
        if one.dynamic and self._chip.software_descriptors:
            self._free["gpsimd"] = max(self._free["gpsimd"], start) + self._chip.dynamic_descriptor


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
    descriptors : contiguous runs of transfers
    statements : instructions by name, matrix products flagged one/zero or transpose as "nc_matmul (hinted)"
    sbuf : most bytes per partition alive, moved : of tensors that transfers write; psum : most banks alive
    """

    busy: dict[str, float]
    documented: dict[str, float]
    makespan: float
    bound: float
    port: float
    bytes_read: int
    bytes_written: int
    descriptors: int
    statements: dict[str, int]
    sbuf: int
    moved: int
    psum: int

    @property
    def ring_bytes(self) -> int:
        """Device memory of the static descriptor rings, about."""
        return self.descriptors * DESCRIPTOR_BYTES

    @property
    def utilisation(self) -> float:
        """Tensor Engine busy time over the in-order makespan."""
        if self.makespan:
            return self.busy["tensor"] / self.makespan
        return 0.0


def settle(trace: Trace, chip: Chip, given: Assumptions) -> tuple[Account, Schedule]:
    """The account and the schedule of a trace."""
    plan = build(trace, chip, given)
    taken = (plan.end - plan.start).tolist()
    busy, documented = dict.fromkeys(ENGINES, 0.0), dict.fromkeys(ENGINES, 0.0)
    read = written = descriptors = 0
    statements: Counter[str] = Counter()
    for one, time in zip(trace.instructions, taken, strict=True):
        if one.engine == "dma":
            share = queues(one) / DMA_QUEUES
            busy["dma"] += time * share
            documented["dma"] += time * share
            descriptors += one.descriptors
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
        descriptors=descriptors,
        statements=dict(sorted(statements.items())),
        sbuf=trace.sbuf_high_water,
        moved=trace.moved_high_water,
        psum=trace.psum_high_water,
    ), plan


def trace_of(call: Call, chip: Chip) -> Trace:
    """The instructions of a call, without the arithmetic."""
    settings = Settings(target=chip.target, arithmetic=False, measured=False)
    return run_kernel(call.source, call.kernel, call.arguments, settings)[1]


def schedule_call(call: Call, chip: Chip, given: Assumptions) -> tuple[Trace, Account, Schedule]:
    """Trace, account and schedule of a call."""
    done = trace_of(call, chip)
    return done, *settle(done, chip, given)
