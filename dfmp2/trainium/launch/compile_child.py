"""Compiles one kernel to a NEFF file; run as a script by the interpreter that has nki, see `compiler`.

    python -P compile_child.py REQUEST.json

The entry points of the compiler are not public and differ per release, so they are looked for by import and by the
arguments they take, in this order; the one taken is written to `entry.json` before it is called:

  standalone   nki.framework.compiled.StandaloneKernel, what a call with NumPy arrays uses, with an executor that does
               nothing in place of the device
  driver       nki.compiler.driver.compile_to_bir and nki.compiler.ncc_driver.compile_bir_to_neff, as the test harness
               of AWS's nki-library calls them
  call         the documented way: NKI_ARTIFACTS_DIR, set before nki is imported, keeps kernel.neff of a plain call;
               where there is no device the call fails after the compilation, and the file is there

Unverified: no release of nki was available to try them; they follow public documentation and published code of others.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

DONE = "compiled"  # a file that tells that the compilation has ended
Entry = Callable[[], object]


def main(request: Path) -> None:
    """Compile what the request names into its folder."""
    wanted = json.loads(request.read_text(encoding="utf-8"))
    folder = Path(wanted["folder"])
    os.environ["NKI_ARTIFACTS_DIR"] = str(folder)
    nki = import_module("nki")
    kernel = getattr(import_module(wanted["source"]), wanted["kernel"])
    arguments: dict[str, Any] = {name: np.zeros(shape, np.float32) for name, shape in wanted["tensors"]}
    arguments |= {name: tuple(value) if isinstance(value, list) else value for name, value in wanted["statics"]}
    for name, find in (("standalone", _standalone), ("driver", _driver), ("call", _call)):
        entry = find(kernel, arguments, wanted, folder)
        if entry is not None:
            found = {"entry": name, "nki": str(getattr(nki, "__version__", "unknown"))}
            (folder / "entry.json").write_text(json.dumps(found), encoding="utf-8")
            entry()
            return
    raise SystemExit("nki offers no entry point that is known: compiler and dfmp2 do not fit each other")


def _standalone(kernel: Any, arguments: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> Entry | None:
    try:
        adapter = import_module("nki.framework.compiled").StandaloneKernel
    except (ImportError, AttributeError):
        return None
    parameters = inspect.signature(adapter).parameters
    convert = getattr(kernel, "_to_subclass", None)
    if convert is None or not {"_executor", "artifacts_dir"} <= set(parameters):
        return None

    def compile_only(*_: Any, **__: Any) -> None:
        """In place of the device: what follows the compilation does not matter."""
        (folder / DONE).touch()

    return lambda: convert(adapter, artifacts_dir=str(folder), _executor=compile_only)(**arguments)


def _driver(kernel: Any, arguments: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> Entry | None:
    try:
        driver, ncc = import_module("nki.compiler.driver"), import_module("nki.compiler.ncc_driver")
        frontend = import_module("nki.compiler.frontend").ParserFrontend
        lower, link, options = driver.compile_to_bir, ncc.compile_bir_to_neff, ncc.CompileOptions
    except (ImportError, AttributeError):
        return None
    given = {
        "target": wanted["target"],
        "lnc": wanted["logical_core"],
        "output_path": str(folder / "kernel.neff"),
        "artifacts_dir": str(folder / "artifacts"),
    }
    if not (
        _takes(options, given) and _takes(lower, ("kernel_func", "frontend", "inputs", "compile_opts", "output_names"))
    ):
        return None

    def run() -> None:
        (folder / "artifacts").mkdir(exist_ok=True)
        chosen = options(**given)
        lowered = lower(
            kernel_func=kernel,
            frontend=frontend(),
            inputs=dict(arguments),
            compile_opts=chosen,
            output_names=["out"],
        )
        inputs = [spec.name for spec in lowered.descriptor.input_specs]
        link(chosen, lowered, [], inputs, [spec.name for spec in lowered.descriptor.output_specs])

    return run


def _call(kernel: Any, arguments: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> Entry | None:
    return lambda: kernel(**arguments)


def _takes(function: Any, names: Any) -> bool:
    """Whether a function has parameters of these names."""
    return set(names) <= set(inspect.signature(function).parameters)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
