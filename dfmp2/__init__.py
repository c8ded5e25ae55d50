"""dfmp2: density-fitted MP2 energies on the host, on CUDA and on AWS Trainium.

    import dfmp2
    result = dfmp2.run("h2o.xyz", basis="cc-pvdz")
    result.mp2_correlation_energy

Names are loaded on first use: importing the package loads neither PySCF nor torch.
"""

from __future__ import annotations

import sys
from importlib import import_module

# Nothing but what the interpreter has loaded already: with -m the working directory is still on the path here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from dfmp2.errors import Dfmp2Error
    from dfmp2.interop import tensor
    from dfmp2.interop.python import energy, frequencies, from_mean_field, gradient, optimize, prepare, read, run, write
    from dfmp2.molecule.molecule import Molecule
    from dfmp2.mp2.derive import derive
    from dfmp2.mp2.result import MP2Result
    from dfmp2.options import Options

_HOMES = {
    "run": "dfmp2.interop.python",
    "optimize": "dfmp2.interop.python",
    "frequencies": "dfmp2.interop.python",
    "prepare": "dfmp2.interop.python",
    "energy": "dfmp2.interop.python",
    "from_mean_field": "dfmp2.interop.python",
    "read": "dfmp2.interop.python",
    "write": "dfmp2.interop.python",
    "gradient": "dfmp2.interop.python",
    "derive": "dfmp2.mp2.derive",
    "Molecule": "dfmp2.molecule.molecule",
    "Options": "dfmp2.options",
    "MP2Result": "dfmp2.mp2.result",
    "Dfmp2Error": "dfmp2.errors",
    "__version__": "dfmp2.host.provenance",
}

__all__ = [
    "Dfmp2Error",
    "MP2Result",
    "Molecule",
    "Options",
    "derive",
    "energy",
    "frequencies",
    "from_mean_field",
    "gradient",
    "optimize",
    "prepare",
    "read",
    "run",
    "tensor",
    "write",
]


class _Later(type(sys)):  # type: ignore[misc]
    """A module in whose place `import` finds this one; it is loaded when a name of it is asked for."""

    def __getattr__(self, name: str) -> object:
        return getattr(import_module("dfmp2.interop.tensor"), name)

    def __dir__(self) -> list[str]:
        return dir(import_module("dfmp2.interop.tensor"))


if not TYPE_CHECKING:
    sys.modules["dfmp2.tensor"] = tensor = _Later("dfmp2.tensor")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'dfmp2' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home.version() if name == "__version__" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
