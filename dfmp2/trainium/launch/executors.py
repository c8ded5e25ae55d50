"""Executors launch kernels by name and count the launches. There is one class per lane:

    nki-interpreter        our own, on the CPU
    nki-simulator          AWS's simulator: a kernel as Python on the CPU, slowly and with AWS's checks of arguments;
                           it models trn3 unless NEURON_PLATFORM_TARGET_OVERRIDE says otherwise,
                           which is set here
    nki                    compiled programs: compiler process (nki) -> NEFF file in our cache -> this process (runtime
                           bindings): load once, launch many times on resident tensors
    nki-xla                torch-xla tensors that stay on the device, one graph per kernel

The bindings are nrtpy's NrtpyModel and NrtpyTensor as documented on its pages (SDK 2.32 on). With
torch-xla, blocks are separate device buffers and never slices of one, since a slice becomes part of
the traced graph and every offset another program; every launch is synchronised, so that a graph
holds only one kernel; torch-xla silently uses the CPU unless PJRT_DEVICE is set before its import,
so it is set, and the device type is checked afterwards. Everything but the interpreter is
unverified on hardware.

Errors of the device become ours (`launching`):

    1200-1205, NRT_TIMEOUT, NRT_HW_ERROR, ...UNRECOVERABLE   DeviceFault, exit 7: the run is discarded, the host named
    1003 completed with numerical errors                     NumericalError, exit 5
    1005, 9 the core belongs to another process              BackendUnavailable, exit 6
    4, 11 a resource is short                                ResourceError, exit 7
    anything else                                            KernelFailed, exit 1

Codes: nrt_status.h of the Neuron Runtime. The bindings raise RuntimeError with "NRT Error
NAME(CODE): ..." (nrtpy error page); torch-xla a RuntimeError that quotes the status. No error was
ever provoked on hardware.
"""

from __future__ import annotations

import os
import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import (
    BackendUnavailable,
    DeviceFault,
    Dfmp2Error,
    KernelFailed,
    Message,
    NumericalError,
    Option,
    ResourceError,
)
from dfmp2.trainium.calls import Program, program_of, source_hash
from dfmp2.trainium.interpreter.rules import GENERATION
from dfmp2.trainium.interpreter.run import Settings, run_kernel
from dfmp2.trainium.launch import compiler, environment, toolchain
from dfmp2.trainium.launch.compiler import NeffCache, Proof

Kernel = Callable[..., Any]
PATTERN = np.arange(256, dtype=np.float32).reshape(2, 128) / 7


class Executor(ABC):
    """One lane on which kernels run.

    Parameters
    ----------
    chip : "trn1" or "trn2", or the name of its generation

    Attributes
    ----------
    lane : how kernels are launched
    target : chip generation, "gen2" (trn1) or "gen3" (trn2)
    dtype : type of its tensors
    compiles : whether programs are compiled before launch (`prepare`)
    proof : counts
    """

    lane: str
    compiles = False
    dtype: type[np.floating[Any]] = np.float32

    def __init__(self, chip: str) -> None:
        self.chip = chip
        self.target = GENERATION[chip]
        self.proof = Proof()

    def upload(self, array: NDArray[Any]) -> Any:
        """Make an array resident; the returned handle is passed to `launch`."""
        return np.ascontiguousarray(array, dtype=self.dtype)

    def launch(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> NDArray[Any]:
        """Run a kernel with one output and read it back; resident tensors and compile-time
        constants are passed by name.

        Raises
        ------
        BackendUnavailable, KernelError : the kernel is not compiled and cannot be, or breaks a rule
            of its language or chip
        DeviceFault, KernelFailed, NumericalError, ResourceError : see `launching`
        """
        return self.fetch(self.keep(source, kernel, arguments))

    def keep(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> Any:
        """As `launch`, but the output stays on the device and can be passed to `launch`."""
        program = program_of(source, kernel, arguments)
        self.prepare(program)
        with launching(f"kernel {kernel} on lane {self.lane}"), self.proof.launch(program):
            return self._run(program, arguments)

    def fetch(self, kept: Any) -> NDArray[Any]:
        """Copy an output of `keep` to the host."""
        return np.asarray(kept)

    @abstractmethod
    def _run(self, program: Program, arguments: Mapping[str, Any]) -> Any:
        """Run a program and return its output on the device."""

    def prepare(self, program: Program) -> None:  # noqa: B027 - nothing to do where `compiles` is False
        """Have a program compiled and loaded."""

    def describe(self) -> dict[str, str]:
        """Lane, chip, kernel sources, launches."""
        return {
            "lane": self.lane,
            "target": self.chip,
            "kernel sources": f"sha256 {source_hash()[:16]}",
            "kernel launches": str(self.proof.launches),
        }


class InterpreterExecutor(Executor):
    """Kernels in our own interpreter on the host.

    Parameters
    ----------
    settings : chip and arithmetic to emulate
    """

    lane = "nki-interpreter"

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        super().__init__(self.settings.target)
        if self.settings.exact:
            self.dtype = np.float64

    def _run(self, program: Program, arguments: Mapping[str, Any]) -> NDArray[Any]:
        (out,), _ = run_kernel(program.source, program.kernel, dict(arguments), self.settings)
        return out

    def describe(self) -> dict[str, str]:
        """The description of `Executor`, and the arithmetic."""
        return super().describe() | {"products": "exact" if self.settings.exact else "fp32"}


def native_kernel(source: str, kernel: str) -> Kernel:
    """The function of a kernel file, decorated by the real `@nki.jit`."""
    return cast(Kernel, getattr(import_module(source), kernel))


class NativeExecutor(Executor):
    """A lane that uses AWS's packages."""

    def describe(self) -> dict[str, str]:
        """The description of `Executor`, package versions, times and transfers."""
        found = toolchain.toolchain_versions((*toolchain.PACKAGES, "torch"))
        versions = ", ".join(f"{name} {version}" for name, version in found.items())
        return super().describe() | {"versions": versions or "unknown"} | self.proof.describe()


class DeviceTensor(NamedTuple):
    """A float32 tensor on a device: the runtime's handle and its shape."""

    value: Any
    shape: tuple[int, ...]


class DeviceExecutor(NativeExecutor):
    """Base class of device executors: uploads, launches, and counts of both."""

    def upload(self, array: NDArray[Any]) -> DeviceTensor:
        """A float32 copy in device memory."""
        stored = super().upload(array)
        with launching(f"upload of {stored.nbytes} bytes"):
            value = self._sent(stored)
        self.proof.uploads += 1
        self.proof.bytes_up += stored.nbytes
        return DeviceTensor(value, stored.shape)

    def fetch(self, kept: DeviceTensor) -> NDArray[np.float32]:
        """Copy an output of `keep` to the host, and count the transfer."""
        with launching("download"):
            out = self._read(kept)
        self.proof.bytes_down += out.nbytes
        return out

    @abstractmethod
    def _read(self, kept: DeviceTensor) -> NDArray[np.float32]:
        """The runtime's tensor as an array."""

    @abstractmethod
    def _sent(self, array: NDArray[np.float32]) -> Any:
        """The runtime's tensor for an array."""


class SimulatorExecutor(NativeExecutor):
    """Kernels in AWS's simulator, called with NumPy arrays."""

    lane = "nki-simulator"

    def __init__(self) -> None:
        os.environ.update(environment.settings(self.lane, "trn1"))
        super().__init__("trn1")
        with launching("import of nki"):
            self._nki = import_module("nki")

    def _run(self, program: Program, arguments: Mapping[str, Any]) -> NDArray[Any]:
        function = native_kernel(program.source, program.kernel)
        return np.asarray(one_output(self._nki.simulate(function)(**arguments), program.kernel))


def one_output(out: Any, kernel: str) -> Any:
    """The single float32 output of a kernel, from any library.

    Raises
    ------
    KernelFailed : the output is anything else
    """
    only = out
    if isinstance(out, tuple | list) and len(out) == 1:
        only = out[0]
    dtype = str(getattr(only, "dtype", type(only).__name__))
    shape = tuple(getattr(only, "shape", ()))
    if dtype.removeprefix("torch.") != "float32" or len(shape) < 2:
        raise KernelFailed(
            f"kernel {kernel} returned {dtype} of shape {shape} where one float32 tensor was "
            "expected: the release of nki and dfmp2 do not fit each other"
        )
    return only


class Loaded:
    """A program loaded on the device.

    The runtime does not always know the type of its own output (nrtpy's troubleshooting page: a
    void type), and rejects a tensor whose type is not the one named by the program (`_validate_io`
    of SpikeModel in nkipy, the predecessor of nrtpy). Since all data are float32, a tensor is given
    the type named by the program.
    """

    def __init__(self, model: Any, program: Program, entry: str) -> None:
        self.model = model
        self.entry = entry
        inputs = set(model.input_tensors_info)
        outputs = list(model.output_tensors_info)
        expected = {name for name, _ in program.tensors}
        if inputs != expected or len(outputs) != 1:
            raise KernelFailed(
                f"the compiled {program.label} takes {sorted(inputs)} and gives {outputs}; "
                f"expected {sorted(expected)} and one output: the compiler and dfmp2 do not fit "
                "each other"
            )
        self.output = outputs[0]
        self.shape = tuple(int(n) for n in model.output_tensors_info[self.output].shape)

    def run(self, inputs: dict[str, Any]) -> Any:
        """Run the program; the output stays on the device."""
        for name, tensor in inputs.items():
            name_type(tensor, self.model.input_tensors_info[name])
        return dict(self.model(inputs=inputs))[self.output]


def name_type(tensor: Any, known: Any) -> None:
    """Give a tensor the type that a program names for it, if one of the two is void and their sizes
    agree."""
    wanted = np.dtype(getattr(known, "dtype", np.float32))
    own = np.dtype(tensor.dtype)
    if wanted != own and "V" in (wanted.kind, own.kind) and wanted.itemsize == own.itemsize:
        tensor.dtype = wanted


class NeffExecutor(DeviceExecutor):
    """Compiled kernels on one NeuronCore.

    Parameters
    ----------
    core : the core owned by this process, None for that in NEURON_RT_VISIBLE_CORES or else the
        first

    Raises
    ------
    BackendUnavailable : the bindings or the device do not answer
    """

    lane = "nki"
    compiles = True

    def __init__(self, core: int | None = None) -> None:
        target = toolchain.device_target()
        if target is None or not toolchain.has_bindings():
            raise BackendUnavailable(
                Option("backend", "nki"), f" cannot be used: {toolchain.refusal('nki')}"
            )
        os.environ.update(environment.settings("nki", target, core=core))
        super().__init__(target)
        self._cache = NeffCache(environment.cache_folder())
        with launching("start of the Neuron runtime"):
            bindings = import_module("nrtpy")
            self._model = bindings.NrtpyModel
            self._tensor = bindings.NrtpyTensor
            self._prove_device()
        self._loaded: dict[Program, Loaded] = {}

    def prepare(self, program: Program) -> None:
        """Have a program compiled and loaded."""
        if program not in self._loaded:
            compiled = compiler.ensure(program, self.chip, self._cache, self.proof)
            begin = time.perf_counter()
            with launching(f"loading {program.label}"):
                model = self._model.load_from_neff(str(compiled.path))
                self._loaded[program] = Loaded(
                    model, program, f"{compiled.entry}, {compiled.compiler}"
                )
            self.proof.load_seconds += time.perf_counter() - begin

    def describe(self) -> dict[str, str]:
        """The description of `NativeExecutor`, and how its programs were compiled."""
        entries = sorted({loaded.entry for loaded in self._loaded.values()})
        return super().describe() | {"compiled through": "; ".join(entries) or "nothing launched"}

    def _sent(self, array: NDArray[np.float32]) -> Any:
        return self._tensor.from_numpy(array)

    def _run(self, program: Program, arguments: Mapping[str, Any]) -> DeviceTensor:
        loaded = self._loaded[program]
        inputs = {name: arguments[name].value for name, _ in program.tensors}
        return DeviceTensor(loaded.run(inputs), loaded.shape)

    def _read(self, kept: DeviceTensor) -> NDArray[np.float32]:
        # Bytes if the type is unknown; the kernels return float32
        raw = np.ascontiguousarray(kept.value.numpy())
        return raw.reshape(-1).view(np.float32).reshape(kept.shape)

    def _prove_device(self) -> None:
        """Write to the device and read back, so that an occupied core or broken driver is detected
        before the SCF."""
        back = (
            np.ascontiguousarray(self._tensor.from_numpy(PATTERN).numpy())
            .reshape(-1)
            .view(np.float32)
        )
        if not np.array_equal(back, PATTERN.reshape(-1)):
            raise BackendUnavailable(
                Option("backend", "nki"),
                (
                    " cannot be used: the device does not give back what was written to it: run "
                    "neuron-ls and look at dmesg"
                ),
            )


class XlaExecutor(DeviceExecutor):
    """Kernels through torch-xla.

    Parameters
    ----------
    core : the core owned by this process, None for that in NEURON_RT_VISIBLE_CORES or else the
        first

    Raises
    ------
    BackendUnavailable : torch-xla uses another device
    """

    lane = "nki-xla"
    platform = "NEURON"  # PJRT device type; replaced in tests, as is the lookup of kernels
    resolve = staticmethod(native_kernel)

    def __init__(self, core: int | None = None) -> None:
        target = toolchain.device_target() or "trn1"
        if self.platform == "NEURON":
            os.environ.update(environment.settings(self.lane, target, core=core))
        else:
            os.environ["PJRT_DEVICE"] = self.platform
        super().__init__(target)
        with launching("start of torch-xla"):
            self._torch, self._xla = import_module("torch"), import_module("torch_xla")
            self._metrics = import_module("torch_xla.debug.metrics")
            taken = str(import_module("torch_xla.runtime").device_type())
            if taken != self.platform:
                raise BackendUnavailable(
                    Option("backend", "nki-xla"),
                    (
                        f" cannot be used: torch-xla has taken the device {taken} and not "
                        f"{self.platform}: start a new process with PJRT_DEVICE unset, and look at "
                        "the import of libneuronxla"
                    ),
                )
            self._device = self._xla.device()

    def _sent(self, array: NDArray[np.float32]) -> Any:
        return self._torch.from_numpy(array).to(self._device)

    def _run(self, program: Program, arguments: Mapping[str, Any]) -> DeviceTensor:
        given = {
            name: a.value if isinstance(a, DeviceTensor) else a for name, a in arguments.items()
        }
        result = one_output(self.resolve(program.source, program.kernel)(**given), program.kernel)
        self._xla.sync()
        compilations = self._metrics.metric_data("CompileTime")  # number, ns, samples
        if compilations:
            self.proof.compiled = int(compilations[0])
            self.proof.compile_seconds = float(compilations[1]) / 1e9
        self.proof.cache_hits = int(self._metrics.counter_value("CachedCompile") or 0)
        return DeviceTensor(result, tuple(int(n) for n in result.shape))

    def _read(self, kept: DeviceTensor) -> NDArray[np.float32]:
        return np.asarray(kept.value.cpu().numpy())


def executor(lane: str, core: int | None = None) -> Executor:
    """The executor of a lane; `core` is the NeuronCore it owns, None for the first visible one.

    Parameters
    ----------
    lane : a lane in the table above

    Raises
    ------
    BackendUnavailable : unknown lane, or its device does not answer
    """
    match lane:
        case "nki":
            return NeffExecutor(core)
        case "nki-xla":
            return XlaExecutor(core)
        case "nki-simulator":
            return SimulatorExecutor()
        case "nki-interpreter":
            return InterpreterExecutor()
    raise BackendUnavailable(
        f"lane {lane!r} is unknown: expected nki, nki-xla, nki-simulator or nki-interpreter"
    )


HARDWARE = {*range(1200, 1206), 5, 6, 101}
HARDWARE_NAMES = (
    "NRT_TIMEOUT",
    "NRT_HW_ERROR",
    "NRT_EXEC_HW_ERR",
    "NRT_EXEC_SW_NQ_OVERFLOW",
    "UNRECOVERABLE",
)
NAMED = re.compile(r"\b(?P<name>NRT_[A-Z_]+)(?:\s*\(\s*(?P<code>\d+)\s*\))?")
STATUS = re.compile(
    r"\b(?:nrt\w*|status(?:_code| code)?)\s*[=:]\s*(?P<code>\d{1,4})\b", re.IGNORECASE
)
OTHERS: tuple[tuple[type[Dfmp2Error], tuple[str, ...], tuple[int, ...], Message], ...] = (
    (
        NumericalError,
        ("NRT_EXEC_COMPLETED_WITH_NUM_ERR",),
        (1003,),
        Message(
            "the kernel met NaN or infinite numbers; there is no result: use ",
            Option("backend", "cpu"),
        ),
    ),
    (
        BackendUnavailable,
        ("NRT_EXEC_NC_BUSY", "NRT_LOAD_NOT_ENOUGH_NC"),
        (1005, 9),
        Message(
            "the NeuronCore belongs to another process: name a free one in NEURON_RT_VISIBLE_CORES"
        ),
    ),
    (
        ResourceError,
        ("NRT_RESOURCE", "NRT_FAIL_HOST_MEM_ALLOC"),
        (4, 11),
        Message(
            "device or host memory does not suffice: use fewer processes, or ",
            Option("backend", "cpu"),
        ),
    ),
)
# Exceptions raised by kernel code, bindings and frameworks, which have no common class; none is
# swallowed.
FOREIGN = (
    RuntimeError,
    ValueError,
    TypeError,
    AssertionError,
    AttributeError,
    LookupError,
    ArithmeticError,
    OSError,
    ImportError,
)


@contextmanager
def launching(what: str) -> Iterator[None]:
    """Context for calls to the device software: its exceptions are converted to ours and end the
    run.

    Parameters
    ----------
    what : for the message, e.g. "kernel pair_energy_block on lane nki"
    """
    try:
        yield
    except FOREIGN as error:
        raise translate(error, what) from error


def translate(error: BaseException, what: str) -> Dfmp2Error:
    """Our error that corresponds to an exception of the device software."""
    text = " ".join(str(error).split())[:400] or "no message"
    status = NAMED.search(text) or STATUS.search(text)
    found = status.groupdict() if status else {}
    name = found.get("name", "")
    code = int(found.get("code") or 0)
    told = f"{what} on host {socket.gethostname()}: {type(error).__name__}: {text}"
    # Below 1000 the status name decides: loading a program for another chip is reported as
    # NRT_FAILURE(6).
    if name and code < 1000:
        code = 0
    if any(part in name for part in HARDWARE_NAMES) or code in HARDWARE:
        return DeviceFault(
            f"{told}: the device reported a fault or did not answer, so nothing it computed is "
            "kept; take this host out of use (neuron-ls, dmesg) and run again on another one"
        )
    for kind, names, codes, advice in OTHERS:
        if name in names or code in codes:
            return kind(f"{told}: ", advice)
    return KernelFailed(
        f"{told}: the kernel failed and there is no result: report this, or use ",
        Option("backend", "cpu"),
    )
