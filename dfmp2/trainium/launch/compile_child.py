"""Compiles one kernel to a NEFF file; run as a script by the interpreter that has nki, see `compiler`.

    python -P compile_child.py REQUEST.json

What compiles is looked for by import and by the arguments it takes, in this order; the one taken is written to
`entry.json` before it is called:

  standalone   nki.framework.compiled.StandaloneKernel, what a call with NumPy arrays uses, with an executor that does
               nothing in place of the device
  call         the documented way: NKI_ARTIFACTS_DIR, set before nki is imported, keeps kernel.neff of a plain call;
               where there is no device the call fails after the compilation, and the file is there

Unverified: no release of nki was available to try them; they follow public documentation and published code of others.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

DONE = "compiled"  # a file that tells that the compilation has ended


def main(request: Path) -> None:
    """Compile what the request names into its folder."""
    wanted = json.loads(request.read_text(encoding="utf-8"))
    folder = Path(wanted["folder"])
    os.environ["NKI_ARTIFACTS_DIR"] = str(folder)
    nki = import_module("nki")
    kernel = getattr(import_module(wanted["source"]), wanted["kernel"])
    arguments: dict[str, Any] = {name: np.zeros(shape, np.float32) for name, shape in wanted["tensors"]}
    arguments |= {name: tuple(value) if isinstance(value, list) else value for name, value in wanted["statics"]}
    standalone = _standalone(kernel, folder)
    found = {"entry": "standalone" if standalone else "call", "nki": str(getattr(nki, "__version__", "unknown"))}
    (folder / "entry.json").write_text(json.dumps(found), encoding="utf-8")
    (standalone or kernel)(**arguments)


def _standalone(kernel: Any, folder: Path) -> Callable[..., object] | None:
    """The kernel with an executor that does nothing, None where this release does not offer it."""
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

    made: Callable[..., object] = convert(adapter, artifacts_dir=str(folder), _executor=compile_only)
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]))
