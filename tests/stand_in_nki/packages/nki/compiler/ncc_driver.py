"""Imitates the driver of neuronx-cc."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CompileOptions:
    """Options."""

    target: str
    lnc: int
    output_path: str
    artifacts_dir: str


def compile_bir_to_neff(compile_opts, bir, input_arrays, argument_names, output_arg_names):
    """Write the file."""
    assert compile_opts.target in ("trn1", "trn2") and compile_opts.lnc == 1
    assert Path(compile_opts.artifacts_dir).is_dir() and output_arg_names == ["out"]
    bir.kernel.compile(Path(compile_opts.output_path), bir.inputs)
