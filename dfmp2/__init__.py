"""dfmp2: density-fitted MP2 energies on the host, on CUDA and on AWS Trainium.

    import dfmp2
    result = dfmp2.run("h2o.xyz", basis="cc-pvdz")
    result.mp2_correlation_energy

Names are loaded on first use: importing the package loads neither PySCF nor torch.
"""

from __future__ import annotations

from importlib import import_module

# Import only what the interpreter has loaded already: with -m, the working directory is still on
# the path here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from dfmp2 import tensor
    from dfmp2.errors import (
        BackendError,
        BackendUnavailable,
        ComparisonFailed,
        ConvergenceError,
        DeviceFault,
        Dfmp2Error,
        DiskFull,
        ForeignCheckpoint,
        InputError,
        Interrupted,
        KernelError,
        KernelFailed,
        NumericalError,
        ResourceError,
        ResultExists,
        ResultFileError,
        SomeFailed,
        UnsupportedByBackend,
    )
    from dfmp2.gradients.result import GradientResult
    from dfmp2.interop.batch import BatchResult, batch, read_many
    from dfmp2.interop.pyscf import from_mean_field
    from dfmp2.interop.python import (
        available_backends,
        derive,
        energy,
        gradient,
        plan,
        prepare,
        read,
        run,
        write,
    )
    from dfmp2.interop.studies import (
        cbs,
        frequencies,
        interaction,
        irc,
        optimize,
        read_study,
        scan,
    )
    from dfmp2.interop.thermochemistry import rank, reaction, thermo
    from dfmp2.molecule.molecule import Molecule
    from dfmp2.mp2.prepared import Prepared
    from dfmp2.mp2.result import MP2Result
    from dfmp2.options import Options
    from dfmp2.output.study import Study
    from dfmp2.planning.plan import Plan
    from dfmp2.progress import Listener, LoggingListener
    from dfmp2.studies.task import Unfinished

_OFFERED = {  # module -> names
    "dfmp2.interop.python": (
        "run",
        "gradient",
        "plan",
        "prepare",
        "energy",
        "derive",
        "read",
        "write",
        "available_backends",
    ),
    "dfmp2.interop.studies": (
        "optimize",
        "frequencies",
        "interaction",
        "irc",
        "cbs",
        "scan",
        "read_study",
    ),
    "dfmp2.interop.thermochemistry": ("reaction", "thermo", "rank"),
    "dfmp2.interop.pyscf": ("from_mean_field",),
    "dfmp2.interop.batch": ("batch", "BatchResult", "read_many"),
    "dfmp2.gradients.result": ("GradientResult",),
    "dfmp2.mp2.prepared": ("Prepared",),
    "dfmp2.planning.plan": ("Plan",),
    "dfmp2.tensor": (),  # the module itself
    "dfmp2.molecule.molecule": ("Molecule",),
    "dfmp2.options": ("Options",),
    "dfmp2.mp2.result": ("MP2Result",),
    "dfmp2.output.study": ("Study",),
    "dfmp2.progress": ("Listener", "LoggingListener"),
    "dfmp2.errors": (
        "Dfmp2Error",
        "InputError",
        "ForeignCheckpoint",
        "ResultFileError",
        "ResultExists",
        "ConvergenceError",
        "NumericalError",
        "BackendError",
        "BackendUnavailable",
        "UnsupportedByBackend",
        "KernelError",
        "KernelFailed",
        "ResourceError",
        "DeviceFault",
        "DiskFull",
        "ComparisonFailed",
        "SomeFailed",
        "Interrupted",
    ),
    "dfmp2.studies.task": ("Unfinished",),
    "dfmp2.host.provenance": ("__version__",),
}
_HOMES = {
    name: module
    for module, names in _OFFERED.items()
    for name in names or (module.rpartition(".")[2],)
}

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "BatchResult",
    "ComparisonFailed",
    "ConvergenceError",
    "DeviceFault",
    "Dfmp2Error",
    "DiskFull",
    "ForeignCheckpoint",
    "GradientResult",
    "InputError",
    "Interrupted",
    "KernelError",
    "KernelFailed",
    "Listener",
    "LoggingListener",
    "MP2Result",
    "Molecule",
    "NumericalError",
    "Options",
    "Plan",
    "Prepared",
    "ResourceError",
    "ResultExists",
    "ResultFileError",
    "SomeFailed",
    "Study",
    "Unfinished",
    "UnsupportedByBackend",
    "available_backends",
    "batch",
    "cbs",
    "derive",
    "energy",
    "frequencies",
    "from_mean_field",
    "gradient",
    "interaction",
    "irc",
    "optimize",
    "plan",
    "prepare",
    "rank",
    "reaction",
    "read",
    "read_many",
    "read_study",
    "run",
    "scan",
    "tensor",
    "thermo",
    "write",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'dfmp2' has no attribute {name!r}", name=name, obj=import_module(__name__)
        )
    try:
        home = import_module(_HOMES[name])
    except ValueError:  # NumPy is kept from being imported by a variable of the environment
        import_module("dfmp2.host.threads").require_huge_pages()
        raise
    if name == "__version__":
        return home.version()
    if name in _OFFERED[_HOMES[name]]:
        return getattr(home, name)
    return home


def __dir__() -> list[str]:
    return sorted(_HOMES)
