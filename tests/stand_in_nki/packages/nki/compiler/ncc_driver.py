"""Imitates the driver of neuronx-cc: what export/export_neff.py of
sample-spectral-dns-on-aws-neuron calls (NKI 0.6.0), and the options that
test/utils/kernel_tracer.py of aws-neuron/nki-library gives."""

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class CompileOptions:
    """Options of a compilation."""

    target: str = "trn3"
    lnc: int = 1
    artifacts_dir: str | None = None
    output_path: str = "file.neff"
    neuronx_cc_args: tuple[str, ...] = ()
    enable_device_dump: bool = False
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
        frontend_result.kernel.compile(
            folder / "kernel.neff", frontend_result.inputs, output, compile_opts.target
        )
        if output.exists():
            (folder / "a-part.neff").write_bytes(b"left beside the program")
        return cls()
