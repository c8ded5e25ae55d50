"""The place, time, software, memory and storage with which a result was made."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import Any, cast

from dfmp2.host.threads import kernels
from dfmp2.units import quantity as _q

KERNELS = "; "  # between BLAS and kernels, which are missing in files of earlier versions


@dataclass(frozen=True, slots=True)
class Provenance:
    """The place, time and software with which the result was made."""

    version: str = _q("", "dfmp2 version")
    command: str = _q("", "command line, or the Python entry point")
    created: str = _q("", "end of the calculation, ISO 8601 with time zone")
    host: str = _q("", "host name")
    platform: str = _q("", "operating system and processor")
    python: str = _q("", "Python version")
    numpy: str = _q("", "NumPy version")
    scipy: str = _q("", "SciPy version")
    pyscf: str = _q("", "PySCF version")
    h5py: str = _q("", "h5py version")
    blas: str = _q("", "BLAS that NumPy uses; of each BLAS the kernels that the processor got")
    threads: int = _q("", "threads given to the run")
    backend_details: tuple[str, ...] = _q("", "device and library versions of the backend")


@dataclass(frozen=True, slots=True)
class Preparation(Provenance):
    """The place, time and software with which B was made, when another process made it (`dfmp2
    prepare`)."""

    file: str = _q("", "file that B was read from")
    sha256: str = _q("", "hash of that file's content")
    seconds: float = _q("s", "wall time of the preparation: SCF, integrals, B and writing it")
    measured_peak: int = _q("byte", "measured peak resident memory of the preparation")


@cache  # each lookup takes a millisecond or two
def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution from its metadata, without importing it; None if
    missing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def version() -> str:
    """Version of the installed dfmp2."""
    return installed_version("dfmp2") or "not installed"


def blas() -> str:
    """Name and version of the BLAS that NumPy was built with."""
    import numpy as np  # may be missing, which the doctor reports

    config = cast(dict[str, Any], np.show_config(mode="dicts"))
    found = config.get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()


def blas_and_kernels() -> str:
    """The BLAS of NumPy, and the kernels that each BLAS uses on this processor."""
    return f"{blas()}{KERNELS}{kernels()}"


def versions() -> dict[str, str]:
    """Versions of all software used in the computation."""
    return {"dfmp2": version()} | {
        name: str(installed_version(name.lower())) for name in ("PySCF", "NumPy", "SciPy")
    }


def collect_provenance(
    command: str, threads: int, backend_details: Mapping[str, str]
) -> Provenance:
    """Provenance of a run that is ending now.

    Parameters
    ----------
    command : command line or entry point
    threads : number of threads of the run
    backend_details : the backend's description of its device and libraries
    """
    return Provenance(
        version=version(),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        platform=platform.platform(),
        python=platform.python_version(),
        **{name: str(installed_version(name)) for name in ("numpy", "scipy", "pyscf", "h5py")},
        blas=blas_and_kernels(),
        threads=threads,
        backend_details=tuple(f"{name}: {value}" for name, value in backend_details.items()),
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of the process, byte."""

    budget: int = _q("byte", "memory the run was allowed to use")
    predicted_peak: int = _q("byte", "predicted peak resident memory")
    measured_peak: int = _q("byte", "measured peak resident memory")


@dataclass(frozen=True, slots=True)
class Storage:
    """The locations of the large arrays."""

    scf_integrals: str = _q("", "fitted SCF integrals: memory, disk, or none")
    fitted_tensor: str = _q("", "B of the MP2 step: memory or disk")
    folder: str = _q("", "folder scratch files were in, empty when there were none")
    predicted: int = _q("byte", "scratch space planned")
    written: int = _q("byte", "bytes written to scratch files")
    read: int = _q("byte", "bytes read from scratch files")
