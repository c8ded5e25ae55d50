"""The in-order list schedule: when each instruction of a trace starts and ends.

Every engine and the DMA queues issue in program order. An instruction starts when its engine is free, what it
waits for has ended (plus the cross-engine wait; for transfers plus the DMA start time) and the ports it needs are
free: on trn1 one PSUM port for Vector and Scalar Engine and one SBUF port for Vector Engine and GpSimd, on trn2
the PSUM banks. Whoever can start first gets a port.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.nki.costs import dependencies
from dfmp2.backends.nki.costs.chips import DMA_QUEUES, Assumptions, Chip
from dfmp2.backends.nki.costs.instructions import charge, queues, transfer_time
from dfmp2.backends.nki.costs.residency import Residency, place
from dfmp2.backends.nki.interpreter.trace import Instruction, Trace

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma")
PSUM_PORT, SBUF_PORT = "psum", "sbuf"
PSUM_SHARERS, SBUF_SHARERS = ("vector", "scalar"), ("vector", "gpsimd")
NOTHING, ENGINE, INSTRUCTION, PORT = 0, 1, 2, 3  # what an instruction waited for last


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


def durations(trace: Trace, chip: Chip, given: Assumptions) -> NDArray[np.float64]:
    """Nanoseconds each instruction keeps its engine, or its queues, busy."""
    known: dict[tuple[object, ...], float] = {}
    times = np.empty(len(trace.instructions))
    for index, one in enumerate(trace.instructions):
        spaces = tuple(access.space for access in one.reads[:2])
        rows = tuple(access.partition_stop - access.partition_start for access in one.reads + one.writes)
        key = (one[:5], one[7:16], spaces, rows if one.engine == "dma" or one.name == "tensor_reduce" else 0)
        if one.name == "tensor_reduce" or key not in known:
            known[key] = _duration(one, chip, given)
        times[index] = known[key]
    return times


def _duration(one: Instruction, chip: Chip, given: Assumptions) -> float:
    if one.engine == "dma":
        return transfer_time(one, chip, given)
    return charge(one, chip, given).cycles / chip.clock(one.engine)


def build(trace: Trace, chip: Chip, given: Assumptions) -> Schedule:
    """Schedule a trace on one core of a chip."""
    residency = place(trace, chip)
    needed = dependencies.find(trace, residency)
    times = durations(trace, chip, given)
    order: dict[str, list[int]] = {engine: [] for engine in ENGINES}
    for index, one in enumerate(trace.instructions):
        order[one.engine].append(index)
    return _Simulation(trace, chip, given, residency, needed, times).run(order)


class _Simulation:
    """Engines, queues and ports while the schedule is made."""

    def __init__(
        self,
        trace: Trace,
        chip: Chip,
        given: Assumptions,
        residency: Residency,
        needed: list[tuple[int, ...]],
        times: NDArray[np.float64],
    ) -> None:
        count = len(trace.instructions)
        self._trace, self._chip, self._needed = trace, chip, needed
        self._times: list[float] = times.tolist()
        self._start, self._end = [0.0] * count, [-1.0] * count
        self._cause, self._blocker = [NOTHING] * count, [-1] * count
        self._waits = {e: given.cross_engine_wait / chip.clock(e) for e in ENGINES if e != "dma"}
        self._waits["dma"] = given.dma_start
        self._free = dict.fromkeys(ENGINES, 0.0)
        self._queues = [0.0] * DMA_QUEUES
        self._ports: dict[object, tuple[float, int]] = {}
        self._port_time = 0.0
        self._bank = residency.bank

    def run(self, order: dict[str, list[int]]) -> Schedule:
        """Commit, again and again, the engine whose next instruction can start first."""
        heads = {engine: 0 for engine in ENGINES if order[engine]}
        ready: dict[str, tuple[float, int, int]] = {}  # engine -> (data ready, cause, blocker) of its next instruction
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
                raise RuntimeError("an instruction waits for a later one: the trace is not in program order")
            engine = self._trace.instructions[best[1]].engine
            self._commit(engine, best[1], best[0], ready.pop(engine))
            heads[engine] += 1
            if heads[engine] == len(order[engine]):
                del heads[engine]
        return Schedule(
            np.array(self._start), np.array(self._end), np.array(self._cause, np.int8),
            np.array(self._blocker, np.int64), self._port_time,
        )  # fmt: skip

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
