"""Imitates nrtpy: models and tensors; a device that counts its inferences in STAND_IN_COUNTER."""

import json
import os
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import numpy as np

ERRORS = {
    "hardware-fault": "NRT Error NRT_EXEC_HW_ERR_NC_UE(1202): Failed to execute model",
    "time-out": "NRT Error NRT_TIMEOUT(5): Failed to execute model",
    "out-of-bounds": "NRT Error NRT_EXEC_OOB(1006): Failed to execute model",
    "not-a-number": "NRT Error NRT_EXEC_COMPLETED_WITH_NUM_ERR(1003): Failed to execute model",
}


COUNTING = Lock()  # cores of a test may share the process


class NrtError(RuntimeError):
    """A status of libnrt."""


def fault():
    """What should go wrong now."""
    return os.environ.get("STAND_IN_NKI", "")


class NrtpyTensor:
    """A tensor on the device."""

    def __init__(self, array):
        self.array = array

    @classmethod
    def from_numpy(cls, array, name=None, core_id=0):
        """Upload."""
        if fault() == "core-busy":
            raise NrtError("NRT Error NRT_EXEC_NC_BUSY(1005): Failed to allocate tensor")
        return cls(np.zeros_like(array) if fault() == "deaf-device" else np.array(array, order="C"))

    @property
    def dtype(self):
        """Type of the elements; an output that the runtime has made is opaque."""
        return self.array.dtype

    def numpy(self):
        """Download; outputs come as bytes, as libnrt does not know their type."""
        return self.array


class NrtpyModel:
    """A loaded program."""

    def __init__(self, record):
        self.record = record
        self.input_tensors_info = {name: SimpleNamespace(shape=s) for name, s in record["shapes"].items()}
        self.output_tensors_info = {"out": SimpleNamespace(shape=list(self.shape()))}

    @classmethod
    def load_from_neff(cls, neff_path, name=None, core_id=0, cc_enabled=False, rank_id=0, world_size=1):
        """Load."""
        if fault() == "other-chip":
            raise NrtError("NRT Error NRT_FAILURE(6): Failed to load model")
        record = json.loads(Path(neff_path).read_text())
        if record["target"] != "trn1":
            raise NrtError(f"NRT Error NRT_FAILURE(6): NEFF arch: {record['target']}, instance arch: v2")
        return cls(record)

    def shape(self):
        """Of the output."""
        from dfmp2.trainium.interpreter.run import Settings, Shape, run_kernel

        given = {name: Shape(tuple(shape)) for name, shape in self.record["shapes"].items()}
        arguments = {**given, **self.record["statics"]}
        out, _ = run_kernel(self.record["source"], self.record["kernel"], arguments, Settings(arithmetic=False))
        return out[0].shape

    def __call__(self, inputs, outputs=None, save_trace=False, ntff_name=None):
        from nki import interpret

        if fault() in ERRORS:
            raise NrtError(ERRORS[fault()])
        opaque = [name for name, tensor in inputs.items() if tensor.dtype != np.float32]
        if opaque:
            raise TypeError(f"input {opaque[0]} is {inputs[opaque[0]].dtype}, the program takes float32")
        arrays = {name: tensor.array for name, tensor in inputs.items()}
        out = interpret(self.record["source"], self.record["kernel"], {**arrays, **self.record["statics"]})
        counter = Path(os.environ["STAND_IN_COUNTER"])
        with COUNTING:
            counter.write_text(str(int(counter.read_text()) + 1))
        if outputs is None:
            return {"out": NrtpyTensor(np.ascontiguousarray(out).view("V4"))}
        outputs["out"].array = np.ascontiguousarray(out).view(outputs["out"].dtype)
        return None
