"""Imitates nrtpy: models and tensors; a device that counts its inferences in STAND_IN_COUNTER.

Signatures, messages of errors and the opaque type of outputs are those of neuron-runtime/nrtpy/ in
the documentation (aws-neuron/aws-neuron-sdk at commit 81ce03ae); what is refused before a launch is
what `_validate_io` of spike/src/spike/spike_model.py refuses (aws-neuron/nkipy at commit b91c9800),
which nrtpy has grown out of.
"""

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
# the name that the compiler gives (export_neff.py of sample-spectral-dns-on-aws-neuron)
OUT = "output_0"
ARCHITECTURE = {"trn1": "v2", "trn2": "v3"}
COUNTING = Lock()  # cores of a test may share the process


class NrtError(RuntimeError):
    """A status of libnrt."""


def fault():
    """What should go wrong now."""
    return os.environ.get("STAND_IN_NKI", "")


class NrtpyTensor:
    """A tensor on the device."""

    def __init__(self, tensor_ref, shape, dtype):
        self.tensor_ref = tensor_ref
        self.shape = shape
        self.dtype = dtype

    @classmethod
    def from_numpy(cls, array, core_id=0):
        """Upload."""
        if fault() == "core-busy":
            raise NrtError("NRT Error NRT_EXEC_NC_BUSY(1005): Failed to allocate tensor")
        held = np.zeros_like(array) if fault() == "deaf-device" else np.array(array, order="C")
        return cls(
            SimpleNamespace(memory=held.reshape(-1).view(np.uint8), core_id=core_id),
            array.shape,
            array.dtype,
        )

    def numpy(self):
        """Download, with the tensor's shape and type."""
        # A later launch does not reach it
        return self.tensor_ref.memory.view(self.dtype).reshape(self.shape).copy()


class NrtpyModel:
    """A loaded program."""

    def __init__(self, record, core_id):
        self.record, self.core_id = record, core_id
        prefix = "input0_" if fault() == "other-names" else ""
        self.input_tensors_info = {
            prefix + name: SimpleNamespace(shape=s, dtype="float32")
            for name, s in record["shapes"].items()
        }
        self.output_tensors_info = {OUT: SimpleNamespace(shape=list(self._shape()), dtype="|V4")}
        if fault() == "two-outputs":
            self.output_tensors_info["output_1"] = self.output_tensors_info[OUT]

    @classmethod
    def load_from_neff(cls, neff_path, core_id=0):
        """Load."""
        record = json.loads(Path(neff_path).read_text())
        for name, value in record["statics"].items():
            if isinstance(value, list):
                record["statics"][name] = tuple(value)
        from nki.published import TARGETS

        product = Path(os.environ["STAND_IN_PRODUCT"]).read_text().split(".")[0]
        built, here = TARGETS[record["target"]], ARCHITECTURE.get(product, "v2")
        if built != here or fault() == "other-chip":
            raise NrtError(
                f"NRT Error NRT_FAILURE(6): Failed to load model: NEFF arch: {built}, instance "
                f"arch: {here}"
            )
        return cls(record, core_id)

    def _shape(self):
        """Of the output."""
        from dfmp2.trainium.interpreter.run import Settings, Shape, run_kernel

        given = {name: Shape(tuple(shape)) for name, shape in self.record["shapes"].items()}
        target = "gen3" if self.record["target"] == "trn2" else "gen2"
        settings = Settings(target=target, arithmetic=False, measured=False)
        out, _ = run_kernel(
            self.record["source"],
            self.record["kernel"],
            {**given, **self.record["statics"]},
            settings,
        )
        return out[0].shape

    def __call__(self, inputs):
        from nki import interpret

        known = self.input_tensors_info
        if set(inputs) - set(known):
            raise ValueError(f"Unknown inputs for model 'kernel'. Expected: {list(known)}")
        for name, tensor in inputs.items():
            assert tensor.tensor_ref.core_id == self.core_id, f"{name}: on another core"
            given = (tensor.shape, tensor.dtype)
            expected = (tuple(known[name].shape), np.dtype(known[name].dtype))
            assert given == expected, f"Input {name}: expected {expected}, got {given}"
        if fault() in ERRORS:
            raise NrtError(ERRORS[fault()])
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        given = {**arrays, **self.record["statics"]}
        out = interpret(self.record["source"], self.record["kernel"], given, self.record["target"])
        made = NrtpyTensor.from_numpy(np.asarray(out, np.float32), core_id=self.core_id)
        made.dtype = np.dtype(self.output_tensors_info[OUT].dtype)
        counter = Path(os.environ["STAND_IN_COUNTER"])
        with COUNTING:
            counter.write_text(str(int(counter.read_text()) + 1))
        return {OUT: made}
