"""Imitates nki: decorator, simulate, plain call."""

import json
import os
from pathlib import Path

import numpy as np

from nki import published

__version__ = "0.6.0"
# Read at the import, as nrtpy's trouble-shooting page says
ARTIFACTS = os.environ.get("NKI_ARTIFACTS_DIR", "")


def fault():
    """What should go wrong."""
    return os.environ.get("STAND_IN_NKI", "")


if fault() == "broken-import":
    raise OSError("libnki.so: undefined symbol: _ZN3nki")


def interpret(source, kernel, arguments, target="trn1"):
    """Outputs by dfmp2's interpreter, spoilt as STAND_IN_NKI asks."""
    from dfmp2.trainium.interpreter.run import Settings, run_kernel

    if fault() == "kernel-raises":
        raise AssertionError("tensor_tensor data1 partition dimension 256 exceeds maximum 128")
    given = {k: np.asarray(v) if hasattr(v, "shape") else v for k, v in arguments.items()}
    # A chip is slow, not strict
    settings = Settings(target="gen3" if target == "trn2" else "gen2", measured=False)
    (only,), _ = run_kernel(source, kernel, given, settings)
    return only * np.float32(1.001) if fault() == "wrong-numbers" else only


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

    def compile(self, file, arguments, output=None, target=None):
        """Leave a file that the imitation of nrtpy understands."""
        if fault() == "compiler-refuses":
            raise ValueError("NCC_EVRF004: 3 instructions are not supported on gen2")
        if fault() == "compiler-mute":
            return
        published.check_folder(file.parent)
        published.check_flags(os.environ.get("NEURON_CC_FLAGS", ""))
        shapes = {
            name: list(value.shape) for name, value in arguments.items() if hasattr(value, "shape")
        }
        statics = {name: value for name, value in arguments.items() if name not in shapes}
        record = {
            "source": self.func.__module__,
            "kernel": self.func.__name__,
            "shapes": shapes,
            "statics": statics,
        }
        named = target or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE")
        record["target"] = named or published.DEFAULT_TARGET
        record["environment"] = {
            name: value for name, value in os.environ.items() if name.startswith("NEURON")
        }
        (output or file).write_text(json.dumps(record))


def jit(func):
    """Decorate a kernel."""
    return Kernel(func)


def simulate(kernel):
    """The simulator."""
    if os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] not in ("trn1", "trn2"):
        raise RuntimeError("the simulator models another chip")
    return lambda **arguments: interpret(kernel.func.__module__, kernel.func.__name__, arguments)
