"""Imitates the driver of neuronx-cc; names and defaults as in the released package."""

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class CompileOptions:
    """Options of a compilation."""

    target: str = "trn1"
    lnc: int = 1
    artifacts_dir: str | None = None
    output_path: str = "file.neff"
    optimised: bool = True

    def disable_backend_optimizations(self):
        """Without scheduling and allocation."""
        return replace(self, optimised=False)


class CompiledKernel:
    """A compiled kernel."""

    @classmethod
    def from_frontend(cls, frontend_result, compile_opts, frontend_time=0.0, tensor_inputs=None):
        """Write the program."""
        if compile_opts.optimised or frontend_result.target != compile_opts.target:
            raise RuntimeError("NCC_INTERNAL")
        folder, output = Path(compile_opts.artifacts_dir), Path(compile_opts.output_path)
        frontend_result.kernel.compile(folder / "kernel.neff", frontend_result.inputs, output)
        return cls()
