"""Imitates the lowering; absent unless STAND_IN_ENTRY asks for it."""

import os
from types import SimpleNamespace

if os.environ.get("STAND_IN_ENTRY", "standalone") == "driver":

    def compile_to_bir(kernel_func, frontend, inputs, compile_opts, output_names):
        """Lower a kernel."""
        names = [SimpleNamespace(name=name) for name, value in inputs.items() if hasattr(value, "shape")]
        outputs = [SimpleNamespace(name=name) for name in output_names]
        return SimpleNamespace(
            kernel=kernel_func, inputs=inputs, descriptor=SimpleNamespace(input_specs=names, output_specs=outputs)
        )
