"""Where, when and with what a result was made."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata

import numpy as np

from dfmp2.record import Provenance

installed = cache(metadata.version)  # reading one takes a millisecond or two


def version() -> str:
    """Version of the installed dfmp2."""
    try:
        return installed("dfmp2")
    except metadata.PackageNotFoundError:
        return "not installed"


def blas() -> str:
    """Name and version of the BLAS that NumPy was built with."""
    config = np.show_config(mode="dicts")
    found = config.get("Build Dependencies", {}).get("blas", {}) if isinstance(config, dict) else {}
    return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()


def versions() -> dict[str, str]:
    """Versions of everything that computes."""
    return {"dfmp2": version()} | {name: installed(name.lower()) for name in ("PySCF", "NumPy", "SciPy")}


def collect(command: str, threads: int, backend_details: Mapping[str, str]) -> Provenance:
    """Provenance of a run that ends now.

    Parameters
    ----------
    command : command line or entry point
    threads : threads the run was given
    backend_details : what the backend says of its device and libraries
    """
    return Provenance(
        version=version(),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        platform=platform.platform(),
        python=platform.python_version(),
        numpy=installed("numpy"),
        scipy=installed("scipy"),
        pyscf=installed("pyscf"),
        h5py=installed("h5py"),
        blas=blas(),
        threads=threads,
        backend_details=tuple(f"{name}: {value}" for name, value in backend_details.items()),
    )
