"""The Python that runs, the libraries it finds, and PySCF behind its shield."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from dfmp2.doctor.finding import FAIL, OK, WARN, Finding, Surroundings
from dfmp2.errors import Dfmp2Error

OLDEST_PYTHON = (3, 11)
REQUIRED = {"numpy": (1, 26), "scipy": (1, 11), "h5py": (3, 10), "click": (8, 1)}
OLDEST_TORCH = (2, 9)
IMPORT_SECONDS = 120  # for torch in a process of its own; a cold network disk is slow
REINSTALL = "install dfmp2 and its libraries again in a fresh virtual environment"
FAULT, INPUT = 1, 3  # exit codes of a run without a library, and of one that PySCF's shield refuses

# Run by another Python: a broken build may take the process with it.
_TORCH_PROBE = """
import json, torch
device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "device": device}))
"""


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Is Python new enough?"""
    detail = f"{'.'.join(map(str, version))} ({platform.machine()}), {sys.executable}"
    if version < OLDEST_PYTHON:
        return Finding("Python", FAIL, detail, "install Python 3.11 or newer and make a new virtual environment", FAULT)
    return Finding("Python", OK, detail)


def check_libraries(s: Surroundings) -> Finding:
    """Are the libraries there that every run needs?"""
    found = {name: s.version(name) for name in REQUIRED}
    detail = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
    missing = [name for name, version in found.items() if version is None]
    if missing:
        return Finding("libraries", FAIL, detail, f"pip install {' '.join(missing)}", FAULT)
    old = [name for name, version in found.items() if numbers(version or "") < REQUIRED[name]]
    if old:
        wanted = " ".join(f"'{name}>={'.'.join(map(str, REQUIRED[name]))}'" for name in old)
        return Finding("libraries", WARN, f"{detail}: {', '.join(old)} too old", f"pip install {wanted}")
    return Finding("libraries", OK, detail)


def check_pyscf() -> Finding:
    """Does PySCF import, and are its evaluating parsers switched off inside the shield?"""
    shield = import_module("dfmp2.reference.shield")
    try:
        with shield.shielded():
            closed = [name for name in shield.EVALUATING if getattr(sys.modules[name], shield.FLAG) is True]
    except Dfmp2Error as error:
        fix = "unset PYSCF_MAX_MEMORY" if "PYSCF_MAX_MEMORY" in str(error) else shield.INSTALL
        return Finding("PySCF", FAIL, str(error), fix, error.exit_code)
    detail = f"{shield.pyscf_version()}, shield closed ({len(closed)} of {len(shield.EVALUATING)} parsers)"
    if len(closed) < len(shield.EVALUATING):
        return Finding("PySCF", FAIL, detail, f"install it again: {shield.INSTALL}", INPUT)
    return Finding("PySCF", OK, detail)


def check_exchange(s: Surroundings) -> Finding:
    """Is the Basis Set Exchange there? (optional)"""
    version = s.version("basis-set-exchange")
    if version is None:
        return Finding(
            "basis sets",
            OK,
            "from PySCF's files; without basis-set-exchange there is no MP2 fitting set beyond krypton "
            "(optional: pip install 'dfmp2[bse]')",
        )
    return Finding("basis sets", OK, f"from PySCF's files and basis-set-exchange {version}")


def check_psi4(s: Surroundings) -> Finding:
    """Is there a Psi4 to compare with? (optional)"""
    found = shutil.which("psi4", path=s.environ.get("PATH", ""))
    if found is None:
        return Finding("Psi4", OK, "not on PATH (optional, for compare --with psi4)")
    return Finding("Psi4", OK, f"{found} (for compare --with psi4)")


def start_torch_probe(s: Surroundings) -> subprocess.Popen[str] | None:
    """Import torch in another process, meanwhile; None where it is not installed."""
    if s.version("torch") is None:
        return None
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _TORCH_PROBE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=s.prefix,
        env=dict(s.environ),
    )


def check_torch(s: Surroundings, probe: subprocess.Popen[str] | None) -> Finding:
    """Can the torch and cuda backends be used? (optional)"""
    driver = s.exists("/proc/driver/nvidia/version")
    if probe is None:
        if driver:
            return Finding("PyTorch", WARN, "an NVIDIA driver, but no PyTorch", "pip install 'dfmp2[torch]'")
        return Finding("PyTorch", OK, "not installed, no NVIDIA driver (optional: pip install 'dfmp2[torch]')")
    try:
        text, errors = probe.communicate(timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        probe.kill()
        text, errors = "", f"no answer within {IMPORT_SECONDS} s"
    installed = s.version("torch")
    try:
        found = json.loads(text)
    except ValueError:
        last = errors.strip().splitlines()[-1:] or [f"exit code {probe.poll()}"]
        return Finding(
            "PyTorch", WARN, f"{installed} does not import: {last[0][:160]}", "pip install --force-reinstall torch"
        )
    return judge_torch(str(found["version"]), found["cuda"], found["device"], driver)


def judge_torch(version: str, cuda: str | None, device: str | None, driver: bool) -> Finding:
    """What an importable torch is good for.

    Parameters
    ----------
    version : of torch; cuda : version it was built with, or None; device : name of the CUDA device, or None
    driver : whether an NVIDIA driver is loaded
    """
    detail = f"{version}, {'CUDA ' + cuda if cuda else 'no CUDA build'}, {device or 'no CUDA device'}"
    if numbers(version) < OLDEST_TORCH:
        return Finding("PyTorch", WARN, detail, "backends torch and cuda need 2.9 or newer: pip install 'torch>=2.9'")
    if driver and cuda is None:
        return Finding("PyTorch", WARN, f"{detail}, but an NVIDIA driver", "install a CUDA build of torch")
    if driver and device is None:
        return Finding(
            "PyTorch", WARN, f"{detail}, but an NVIDIA driver", "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES"
        )
    return Finding("PyTorch", OK, detail)


def check_command(s: Surroundings) -> Finding:
    """Is the `dfmp2` on PATH this one?"""
    installed = s.version("dfmp2")
    where = Path(__file__).resolve().parents[1]
    detail = f"{installed or 'not installed'}, {where}"
    if installed is None:
        return Finding("dfmp2", WARN, f"{detail} (run from its source)", "pip install . in the source folder")
    found = shutil.which("dfmp2", path=s.environ.get("PATH", ""))
    own = s.prefix / "bin"
    if found is not None and own.is_dir() and Path(found).parent.resolve() != own.resolve():
        return Finding(
            "dfmp2", WARN, f"{detail}, but {found} comes first on PATH", f"put {own} first on PATH, or activate it"
        )
    return Finding("dfmp2", OK, detail)


def check_module_path(s: Surroundings) -> Finding:
    """Would Python import files of the working directory in place of libraries?"""
    needed = {*sys.stdlib_module_names, *REQUIRED, "pyscf", "dfmp2", "torch", "basis_set_exchange", "nki"}
    try:
        here, entries = s.folder.resolve(), list(s.folder.iterdir())
    except OSError:
        return Finding("module path", OK, "the working directory cannot be read")
    shadows = sorted(
        e.name for e in entries if e.name.removesuffix(".py") in needed and _importable(e) and not _ours(e)
    )
    on_path = any(entry == "" or Path(entry).resolve() == here for entry in s.path)
    if shadows:
        danger = "is" if on_path else "would be, with PYTHONPATH=. or python -c,"
        return Finding(
            "module path",
            WARN,
            f"{', '.join(shadows[:5])} in the working directory {danger} imported in place of a library",
            "rename it, or work in another folder",
        )
    if on_path and s.environ.get("PYTHONPATH") is not None:
        return Finding(
            "module path", WARN, "the working directory is on Python's path through PYTHONPATH", "unset PYTHONPATH"
        )
    return Finding("module path", OK, "no file of the working directory shadows a library")


def _importable(entry: Path) -> bool:
    if entry.suffix == ".py":
        return entry.is_file()
    return entry.is_dir() and any(entry.glob("*.py"))


def _ours(entry: Path) -> bool:
    """The package itself: its source folder is a fine place to work in."""
    spec = find_spec("dfmp2")
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent == entry.resolve()


def numbers(version: str) -> tuple[int, int]:
    """Major and minor version; (0, 0) where there are none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (0, 0) if match is None else (int(match[1]), int(match[2]))
