"""Imitates the front ends; the tracer is there where STAND_IN_ENTRY asks for it."""

import os
from types import SimpleNamespace

if os.environ.get("STAND_IN_ENTRY", "tracer") in ("tracer", "misfit"):

    class TracerFrontend:
        """Traces a kernel."""

        def __init__(self, enable_backend_opt=True):
            if enable_backend_opt:
                raise ValueError("the code generator of trn1 takes no optimised trace")

        def compile(self, ctx, kernel, *, inputs, target, lnc=1, artifacts_dir=None):
            """A trace, which needs its context."""
            if os.environ.get("STAND_IN_ENTRY") == "misfit":
                raise TypeError("compile() missing 1 required positional argument: 'session'")
            if ctx != "context" or lnc != 1:
                raise RuntimeError("no context")
            return SimpleNamespace(kernel=kernel, inputs=dict(inputs), target=target)
