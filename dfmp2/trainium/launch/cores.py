"""Several NeuronCores: one process per core takes the next tile of pairs when idle, and receives
the blocks it lacks.

Every entry of the pair matrix has its own place, and sums are taken in float64 in the order of that
matrix; so energies have the same bits for any number of cores and any distribution of work. Nothing
is exchanged between cores. Each process is the only worker of a ProcessPoolExecutor. Unverified on
hardware; in the tests the same processes run the interpreter.
"""

from __future__ import annotations

import queue
import weakref
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, replace
from multiprocessing import connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.backends.base import Backend, Operand, PairTerms, Shape, Tile
from dfmp2.errors import Dfmp2Error, KernelFailed
from dfmp2.host.processes import begin_quietly, exit_code, start_process
from dfmp2.trainium.backend import LIMITS, NkiBackend
from dfmp2.trainium.launch import toolchain
from dfmp2.trainium.launch.compiler import compile_ahead
from dfmp2.trainium.launch.executors import NeffExecutor, executor
from dfmp2.trainium.layout import block_edge, padded_naux, padded_nvir

PATIENCE = 5.0  # s allowed for a process to end by itself


class CoreProcess:
    """The parent's end of one process.

    Raises
    ------
    Dfmp2Error : the process cannot use its core; raised by `wait`
    """

    def __init__(self, lane: str, core: int) -> None:
        variables = {}
        if lane.startswith("nki"):
            variables["NEURON_RT_VISIBLE_CORES"] = str(core)
        self.core = core
        self.blocks: dict[int, set[int]] = {}  # operand key -> blocks that the process holds
        self._executor, self._opened, self._process = start_process(
            begin_quietly, (variables,), open_core, lane, core
        )

    def wait(self) -> None:
        """Wait until the process has its core."""
        self._result(self._opened)

    def ask(self, verb: str, *arguments: object) -> Any:
        """Call a method of `Served` in the process and return its result."""
        try:
            answer = self._executor.submit(call_served, verb, arguments)
        except BrokenExecutor as error:
            raise self._ended() from error
        return self._result(answer)

    def end(self) -> None:
        """Let the process end, and kill it if it does not."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        # Not `join`: the executor joins it too, and of two joining threads one may never be
        # notified.
        if not connection.wait([self._process.sentinel], PATIENCE):
            self._process.kill()

    def _result(self, answer: Future[Any]) -> Any:
        """An answer; errors in the process are raised here."""
        try:
            return answer.result()
        except Dfmp2Error as error:
            raise error.prefixed(f"NeuronCore {self.core}") from error
        except BrokenExecutor as error:
            raise self._ended() from error

    def _ended(self) -> KernelFailed:
        return KernelFailed(
            f"the process of NeuronCore {self.core} ended with {exit_code(self._process)} while it "
            "was needed; there is no result: look at what it printed above, then report this"
        )


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Shared:
    """An operand of which each process holds the blocks that it has needed so far.

    Attributes
    ----------
    key : its key in the processes
    b : (nocc, nvir, naux) float32, on the host
    """

    key: int
    b: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        """(nocc, nvir, naux)."""
        return self.b.shape


class CoresBackend(Backend):
    """Pair terms on several cores.

    Parameters
    ----------
    lane : run by each process
    cores : number of cores, with one process each

    Raises
    ------
    Dfmp2Error : a core cannot be used
    """

    def __init__(self, lane: str, cores: Sequence[int]) -> None:
        self.name = lane
        self.limits = replace(
            LIMITS, workers=len(cores), transforms=False, compiles=lane == NeffExecutor.lane
        )
        self._all = [CoreProcess(lane, core) for core in cores]
        self._finish = weakref.finalize(self, _end, self._all)
        self._idle: queue.SimpleQueue[CoreProcess] = queue.SimpleQueue()
        for process in self._all:
            process.wait()
            self._idle.put(process)
        self._operands: weakref.WeakValueDictionary[int, Shared] = weakref.WeakValueDictionary()
        self._keys = 0

    def prepare(self, spins: Sequence[Shape], nao: int = 0) -> None:
        """Compile the programs that these shapes need, once and here, before the cores load
        them."""
        if self.limits.compiles:
            compile_ahead(tuple(spins), toolchain.device_target() or "trn1")

    def put(self, b: Array, eps_occ: Array, eps_vir: Array, precision: str) -> Operand:
        """Keep B in float32, as needed by the kernels; its blocks are sent to the cores that need
        them."""
        self._keys += 1
        shared = Shared(self._keys, np.asarray(b, dtype=np.float32))
        self._operands[shared.key] = shared
        return Operand(shared, eps_occ, eps_vir, precision)

    def pair_terms(self, left: Operand, right: Operand, tile: Tile) -> PairTerms:
        """Direct and exchange terms of a tile, computed by an idle core."""
        process = self._idle.get()
        try:
            self._drop(process)
            self._send(process, left, tile.i0, tile.i1)
            self._send(process, right, tile.j0, tile.j1)
            return PairTerms(*process.ask("pair", left.b.key, right.b.key, tile))
        finally:
            self._idle.put(process)

    def _drop(self, process: CoreProcess) -> None:
        """Tell a process to drop operands that are no longer needed."""
        keys = process.blocks.keys() - self._operands.keys()
        if keys:
            process.ask("drop", tuple(keys))
        for key in keys:
            del process.blocks[key]

    def _send(self, process: CoreProcess, operand: Operand, first: int, last: int) -> None:
        """Send a process any missing blocks of these orbitals."""
        shared: Shared = operand.b
        described = shared.shape, operand.eps_occ, operand.eps_vir
        there = process.blocks.setdefault(shared.key, set())
        _, nvir, naux = shared.shape
        edge = block_edge(padded_nvir(nvir), padded_naux(naux))
        for number in range(first // edge, -(-last // edge)):
            if number not in there:
                rows = shared.b[number * edge : (number + 1) * edge]
                process.ask("hold", shared.key, described, number, rows)
                there.add(number)

    def describe(self) -> dict[str, str]:
        """Descriptions by the cores: once if they agree, by core if they differ; launches also in
        total."""
        told = {process.core: process.ask("describe") for process in self._all}
        merged = {"cores": ", ".join(map(str, told))}
        for name in next(iter(told.values())):
            values = {one[name] for one in told.values()}
            by_core = " | ".join(f"core {core}: {one[name]}" for core, one in told.items())
            merged[name] = by_core
            if name == "kernel launches":
                merged[name] = f"{sum(int(one[name]) for one in told.values())} ({by_core})"
            elif len(values) == 1:
                merged[name] = values.pop()
        return merged

    def close(self) -> None:
        """End all processes."""
        self._finish()


def _end(processes: list[CoreProcess]) -> None:
    for process in processes:
        process.end()


class Served:
    """State of one process: a backend and the operands it holds."""

    def __init__(self, lane: str, core: int) -> None:
        self._backend = NkiBackend(lane, executor(lane, core))
        self._held: dict[int, Operand] = {}

    def hold(self, key: int, described: tuple[Any, Any, Any], number: int, rows: Any) -> None:
        """Make a block of B resident; `described` : shape and energies of the operand with that
        key."""
        if key not in self._held:
            self._held[key] = self._backend.declare(*described)
        self._backend.add(self._held[key], number, rows)

    def drop(self, keys: tuple[int, ...]) -> None:
        """Drop operands."""
        for key in keys:
            self._held.pop(key, None)

    def pair(self, left: int, right: int, tile: Tile) -> tuple[Any, Any]:
        """Direct and exchange terms of a tile."""
        terms = self._backend.pair_terms(self._held[left], self._held[right], tile)
        return terms.direct, terms.exchange

    def describe(self) -> dict[str, str]:
        """Proof of this core."""
        return self._backend.describe()


_served: list[Served] = []  # in the process of a core: the state it serves


def open_core(lane: str, core: int) -> None:
    """Acquire the core; called in its process."""
    _served.append(Served(lane, core))


def call_served(verb: str, arguments: tuple[Any, ...]) -> Any:
    """Call a method of the state that this process serves."""
    return getattr(_served[0], verb)(*arguments)
