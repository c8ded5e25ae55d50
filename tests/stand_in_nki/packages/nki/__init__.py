"""Imitates nki: decorator, simulate, plain call."""

import json
import os
from pathlib import Path

import numpy as np

__version__ = "0.5.0"
FAULT = os.environ.get("STAND_IN_NKI", "")
FLAGS = ("--auto-cast=", "--verbose=", "--target", "--lnc", "--model-type", "-O")  # of neuronx-cc, as far as needed
ARTIFACTS = os.environ.get("NKI_ARTIFACTS_DIR", "")

if FAULT == "broken-import":
    raise OSError("libnki.so: undefined symbol: _ZN3nki")


def interpret(source, kernel, arguments):
    """Outputs by dfmp2's interpreter, spoilt as STAND_IN_NKI asks."""
    from dfmp2.trainium.interpreter.run import run_kernel

    fault = os.environ.get("STAND_IN_NKI", "")
    if fault == "kernel-raises":
        raise AssertionError("tensor_tensor data1 partition dimension 256 exceeds maximum 128")
    out = run_kernel(source, kernel, {k: np.asarray(v) if hasattr(v, "shape") else v for k, v in arguments.items()})
    only = out[0][0]
    return only * np.float32(1.001) if fault == "wrong-numbers" else only


class Kernel:
    """What @nki.jit makes."""

    def __init__(self, func):
        self.func = func

    def __call__(self, **arguments):
        if any(type(value).__module__.startswith("torch") for value in arguments.values()):
            import torch

            given = {k: v.numpy() if hasattr(v, "numpy") else v for k, v in arguments.items()}
            return torch.from_numpy(interpret(self.func.__module__, self.func.__name__, given))
        if ARTIFACTS:
            self.compile(Path(ARTIFACTS) / "kernel.neff", arguments)
            raise RuntimeError("NRT Error NRT_FAILURE(1): no device")
        return interpret(self.func.__module__, self.func.__name__, arguments)

    def compile(self, file, arguments, output=None):
        """Leave a file that the imitation of nrtpy understands."""
        fault = os.environ.get("STAND_IN_NKI", "")
        if fault == "compiler-refuses":
            raise ValueError("NCC_EVRF004: 3 instructions are not supported on gen2")
        if fault == "compiler-mute":
            return
        left = os.listdir(file.parent)
        if left:
            raise RuntimeError(f"[NCC_IDRV077] output directory is not empty: {left}")
        unknown = [flag for flag in os.environ.get("NEURON_CC_FLAGS", "").split() if not flag.startswith(FLAGS)]
        if unknown:
            raise RuntimeError(f"neuronx-cc: error: unrecognized arguments: {' '.join(unknown)}")
        shapes = {name: list(value.shape) for name, value in arguments.items() if hasattr(value, "shape")}
        statics = {name: value for name, value in arguments.items() if name not in shapes}
        record = {"source": self.func.__module__, "kernel": self.func.__name__, "shapes": shapes, "statics": statics}
        record["target"] = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
        record["environment"] = {name: value for name, value in os.environ.items() if name.startswith("NEURON")}
        (output or file).write_text(json.dumps(record))

    def _to_subclass(self, kind):
        return kind(func=self)


def jit(func):
    """Decorate a kernel."""
    return Kernel(func)


def simulate(kernel):
    """The simulator."""
    if os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] != "trn1":
        raise RuntimeError("the simulator models another chip")
    return lambda **arguments: interpret(kernel.func.__module__, kernel.func.__name__, arguments)
