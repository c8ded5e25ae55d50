"""The two benches: a device behind an executor of dfmp2, and the model (interpreter and cost model)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.mp2.pairs import pair_energies
from dfmp2.trainium import calls
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.calls import Program, program_of
from dfmp2.trainium.costs import prediction
from dfmp2.trainium.costs.chips import CHIPS, Assumptions
from dfmp2.trainium.costs.schedule import settle
from dfmp2.trainium.interpreter import rules
from dfmp2.trainium.interpreter.run import Settings, run_kernel
from dfmp2.trainium.layout import EDGE
from neuron_probes.probe import CHIP, Check, ProbeError

NVIR = 32  # virtual orbitals of a small problem
WARM = 7  # timed attempts, of which the shortest counts
LANES = ("nki", "nki-xla", "nki-call")  # that run on a device
Timed = Callable[[], object]
Sizes = tuple[int, int, int]


class DeviceBench:
    """Kernels on an executor, timed by the wall clock.

    Two programs that differ in the number of turns only are timed; their difference has no dispatch and no transfer in
    it, because operands and results are the same size.

    Parameters
    ----------
    executor : of a lane that runs on a device
    compiling : (shape, edge) -> seconds and peak bytes to compile the pair kernel in a process of its own
    """

    few, many = 64, 1024

    def __init__(
        self, executor: Any, compiling: Callable[[Sizes, int], tuple[float, float]]
    ) -> None:
        self.name = str(executor.lane)
        self._begun = time.perf_counter()
        self._executor = executor
        self._compiling = compiling

    def run(self, source: str, kernel: str, arguments: dict[str, Any]) -> NDArray[Any]:
        """The result of one call."""
        return np.asarray(self._executor.launch(source, kernel, self._resident(arguments)))

    def nanoseconds(
        self, source: str, kernel: str, arguments: dict[str, Any], varied: str, check: Check
    ) -> float:
        """Time of one more turn.

        Raises
        ------
        ProbeError : a result fails its check
        """
        resident = self._resident(arguments)
        best = []
        for turns in (self.few, self.many):
            given = {**resident, varied: turns}
            result = np.asarray(self._executor.launch(source, kernel, given))  # compiles and loads
            if not check(result, turns):
                raise ProbeError(
                    f"{kernel} with {varied}={turns}: the device did not compute what the kernel says"
                )
            best.append(shortest(partial(self._executor.launch, source, kernel, given)))
        return (best[1] - best[0]) / (self.many - self.few) * 1e9

    def calls(self, source: str, kernel: str, arguments: dict[str, Any], count: int) -> float:
        """Seconds of `count` calls that follow each other without waiting, where the lane can do that."""
        resident = self._resident(arguments)
        self._executor.launch(source, kernel, resident)
        return shortest(queue(self._executor, source, kernel, resident, count))

    def programs(self, blocks: int) -> float:
        """New programs that the pairs of `blocks` blocks of occupied orbitals need."""
        before = self._programs()
        nocc = EDGE * blocks
        b = np.random.default_rng(blocks).uniform(0.1, 1.0, (nocc, NVIR, 128)) / 100
        backend = NkiBackend(self.name, self._executor)
        operand = backend.put(b, -np.linspace(2.0, 0.5, nocc), np.linspace(0.2, 9.0, NVIR), "mixed")
        pair_energies([operand], backend)
        return float(self._programs() - before)

    def device(self, source: str, kernel: str, arguments: dict[str, Any]) -> float:
        """Mean milliseconds by nrtpy's `benchmark` in device mode (SDK 2.32 on); NaN where there is no such clock."""
        resident = self._resident(arguments)
        program = program_of(source, kernel, resident)
        self._executor.launch(source, kernel, resident)
        loaded = getattr(self._executor, "_loaded", {}).get(program)
        if loaded is None or not hasattr(loaded.model, "benchmark"):
            return math.nan
        inputs = {name: resident[name].value for name, _ in program.tensors}
        try:
            return float(
                loaded.model.benchmark(inputs=inputs, benchmark_iter=20, mode="device").mean_ms
            )
        except RuntimeError:  # documented: no events were captured
            return math.nan

    def watch(
        self, source: str, kernel: str, arguments: dict[str, Any], seconds: float
    ) -> list[tuple[float, float]]:
        """Seconds since this bench was made, right after the runtime, and of each launch."""
        resident = self._resident(arguments)
        self._executor.launch(source, kernel, resident)  # loads
        found = []
        while not found or found[-1][0] < seconds:
            begin = time.perf_counter()
            self._executor.launch(source, kernel, resident)
            found.append((begin - self._begun, time.perf_counter() - begin))
        return found

    def compilation(self, shape: tuple[int, int, int], edge: int) -> tuple[float, float]:
        """Seconds and peak bytes, compiled anew."""
        return self._compiling(shape, edge)

    def _programs(self) -> int:
        """Programs in use: with torch-xla the graphs that it has compiled, by its own counter."""
        proof = self._executor.proof
        return int(proof.compiled if self.name == "nki-xla" else proof.programs)

    def _resident(self, arguments: dict[str, Any]) -> dict[str, Any]:
        arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
        return {
            **arguments,
            **{name: self._executor.upload(array) for name, array in arrays.items()},
        }


class ModelBench:
    """What the interpreter and the cost model say; no time of it was measured.

    Parameters
    ----------
    settings : of the interpreter; the default is this host's chip, else trn1, in documented arithmetic
    """

    name = "model"
    few, many = 8, 24  # times grow evenly with the turns, so that few will do

    def __init__(self, settings: Settings | None = None) -> None:
        here = Settings(target=rules.GENERATION[CHIP.name])
        self._settings = replace(
            settings or here, measured=False
        )  # a chip is slow where the interpreter refuses
        self._counting = replace(self._settings, arithmetic=False)
        self._chip = CHIPS[rules.CHIP[self._settings.target]]
        self._spans: dict[Program, float] = {}

    def run(self, source: str, kernel: str, arguments: dict[str, Any]) -> NDArray[Any]:
        """The interpreter's result."""
        (out,), _ = run_kernel(source, kernel, arguments, self._settings)
        return np.asarray(out)

    def nanoseconds(
        self, source: str, kernel: str, arguments: dict[str, Any], varied: str, check: Check
    ) -> float:
        """The cost model's time of one more turn; results are checked as on a device.

        Raises
        ------
        ProbeError : a result fails its check
        """
        spans = []
        for turns in (self.few, self.many):
            (out,), trace = run_kernel(source, kernel, {**arguments, varied: turns}, self._settings)
            if not check(np.asarray(out), turns):
                raise ProbeError(
                    f"{kernel} with {varied}={turns}: the interpreter did not compute what the kernel says"
                )
            spans.append(settle(trace, self._chip, Assumptions())[0].makespan)
        return (spans[1] - spans[0]) / (self.many - self.few)

    def calls(self, source: str, kernel: str, arguments: dict[str, Any], count: int) -> float:
        """A round trip for one call; each further one as long as its kernel, or its submission if that is longer."""
        program = program_of(source, kernel, arguments)
        if program not in self._spans:
            _, trace = run_kernel(source, kernel, arguments, self._counting)
            self._spans[program] = settle(trace, self._chip, Assumptions())[0].makespan / 1e9
        own = self._spans[program]
        return prediction.ROUND_TRIP / 1e3 + own + (count - 1) * max(own, prediction.SUBMIT / 1e3)

    def programs(self, blocks: int) -> float:
        """Programs of the calls that the backend makes; none of those of 3 blocks is new for 5."""
        if blocks > 3:
            known = {call.neff for call in calls.pair_energy_calls(3 * EDGE, NVIR, 128)}
            return float(
                len(
                    {call.neff for call in calls.pair_energy_calls(blocks * EDGE, NVIR, 128)}
                    - known
                )
            )
        return float(len({call.neff for call in calls.pair_energy_calls(blocks * EDGE, NVIR, 128)}))

    def device(self, source: str, kernel: str, arguments: dict[str, Any]) -> float:
        """The makespan of the schedule."""
        _, trace = run_kernel(source, kernel, arguments, self._counting)
        return settle(trace, self._chip, Assumptions())[0].makespan / 1e6

    def watch(
        self, source: str, kernel: str, arguments: dict[str, Any], seconds: float
    ) -> list[tuple[float, float]]:
        """Not predicted."""
        return []

    def compilation(self, shape: tuple[int, int, int], edge: int) -> tuple[float, float]:
        """Not predicted."""
        return math.nan, math.nan


def queue(executor: Any, source: str, kernel: str, resident: dict[str, Any], count: int) -> Timed:
    """A function that makes `count` calls and fetches their results at the end.

    The executors wait for each call, as a calculation must be able to tell which one failed; so this goes past
    `launch`, to the torch-xla graph or to the loaded program with one set of outputs per call. Where neither is there
    the calls wait for each other.
    """
    values = {name: getattr(value, "value", value) for name, value in resident.items()}
    if executor.lane == "nki-xla":
        from dfmp2.trainium.launch.executors import native_kernel

        function, sync = native_kernel(source, kernel), import_module("torch_xla").sync

        def lazy() -> None:
            waiting = []
            for _ in range(count):
                waiting.append(function(**values))
                sync()
            for one in waiting:
                one.cpu()

        return lazy
    if executor.lane == "nki":
        program = program_of(source, kernel, resident)
        model = executor._loaded[program].model
        inputs = {name: values[name] for name, _ in program.tensors}
        sets = [dict(model(inputs=inputs)) for _ in range(count)]

        def submitted() -> None:
            for outputs in sets:
                model(inputs=inputs, outputs=outputs)
            for outputs in sets:
                for tensor in outputs.values():
                    tensor.numpy()

        return submitted

    def blocking() -> None:
        for _ in range(count):
            executor.launch(source, kernel, resident)

    return blocking


def shortest(work: Timed) -> float:
    """Seconds of the shortest of a few attempts."""
    best = math.inf
    for _ in range(WARM):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best
