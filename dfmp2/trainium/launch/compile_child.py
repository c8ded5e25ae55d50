"""Compile one kernel to a NEFF file; run as a script by the Python interpreter that has nki, see
`compiler`.

    python -P compile_child.py REQUEST.json

There are two entry points to the compiler, tried in this order; the one used is written to
`entry.json` before the call, and the next is tried only if the release does not support it:

  tracer       nki.compiler.frontend.TracerFrontend without backend optimisation, then CompiledKernel.from_frontend with
               backend optimisations disabled: seen to run on trn1 with NKI 0.6.0
               (export/export_neff.py of aws-samples/sample-spectral-dns-on-aws-neuron)
  call         the documented way: NKI_ARTIFACTS_DIR, set before nki is imported, keeps kernel.neff of a plain call;
               where there is no device the call fails after the compilation, and the file is there

neuronx-cc rejects a non-empty artifacts folder (NCC_IDRV077), so it gets one of its own. Without a
target, kernels compile for trn3; so it is given both in the variable and in the call. Unverified,
since no release of nki was available for a test; arguments follow the sources of the released
packages.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

DONE = "compiled"  # a file that marks the end of the compilation
ARTIFACTS = "artifacts"  # a folder for the compiler alone
MISFIT = (ImportError, AttributeError, TypeError)  # a release with another interface
Way = Callable[[Any, dict[str, Any], str, Path], None]


def main(request: Path) -> None:
    """Compile the requested program into its folder."""
    wanted = json.loads(request.read_text(encoding="utf-8"))
    folder = Path(wanted["folder"])
    os.environ["NKI_ARTIFACTS_DIR"] = str(folder / ARTIFACTS)
    nki = import_module("nki")
    kernel = getattr(import_module(wanted["source"]), wanted["kernel"])
    arguments: dict[str, Any] = {
        name: np.zeros(shape, np.float32) for name, shape in wanted["tensors"]
    }
    arguments |= {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in wanted["statics"]
    }
    for name, way in WAYS.items():
        found = {"entry": name, "nki": str(getattr(nki, "__version__", "unknown"))}
        (folder / "entry.json").write_text(json.dumps(found), encoding="utf-8")
        shutil.rmtree(folder / ARTIFACTS, ignore_errors=True)
        (folder / ARTIFACTS).mkdir()
        try:
            way(kernel, arguments, wanted["target"], folder)
        except MISFIT as error:
            if name == "call":
                raise
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            (folder / DONE).touch()
            return


def _tracer(kernel: Any, arguments: dict[str, Any], target: str, folder: Path) -> None:
    context = import_module("nki._backends.context").nki_ir_context
    frontend = import_module("nki.compiler.frontend").TracerFrontend
    driver = import_module("nki.compiler.ncc_driver")
    inputs = inspect.signature(kernel.func).bind(**arguments).arguments
    given = {"target": target, "lnc": 1, "artifacts_dir": str(folder / ARTIFACTS)}
    options = driver.CompileOptions(output_path=str(folder / "kernel.neff"), **given)
    options = driver.CompileOptions.disable_backend_optimizations(options)
    with context() as opened:
        traced = frontend(enable_backend_opt=False).compile(opened, kernel, inputs=inputs, **given)
        driver.CompiledKernel.from_frontend(traced, options)


def _call(kernel: Any, arguments: dict[str, Any], target: str, folder: Path) -> None:
    kernel(**arguments)


WAYS: dict[str, Way] = {"tracer": _tracer, "call": _call}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
