"""Import PySCF safely: no configuration from the working directory, no evaluated input.

PySCF executes the first of `PYSCF_CONFIG_FILE`, `./.pyscf_conf.py` and `~/.pyscf_conf.py` when it
is imported, and its parsers evaluate whatever they cannot read as a number. `import_pyscf` puts our
own configuration (`pyscf_conf.py`, which switches evaluation off) first; `shielded` keeps
evaluation off while our calls run, even if PySCF was imported earlier with evaluation on.

The settings `PYSCF_MAX_MEMORY` and `PYSCF_TMPDIR` remain in force; a personal `~/.pyscf_conf.py` is
not read. Plugins are found where packages are installed, not through `PYSCF_EXT_PATH` or a folder
`pyscf/` in the working directory.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from dfmp2.errors import InputError

MINIMUM = (2, 13)
INSTALL = "pip install 'pyscf>=2.13'"
CONFIG = Path(__file__).with_name("pyscf_conf.py")

# Each of these copies DISABLE_EVAL from the configuration at import, so each has its own switch.
EVALUATING = (
    "pyscf.gto.mole",
    "pyscf.gto.basis.parse_nwchem",
    "pyscf.gto.basis.parse_nwchem_ecp",
    "pyscf.gto.basis.parse_cp2k",
    "pyscf.gto.basis.parse_molpro",
)
FLAG = "DISABLE_EVAL"

_lock = threading.RLock()
_depth = 0  # calls of shielded() in progress, in all threads
_found: list[tuple[ModuleType, bool]] = []  # switches before the outermost call


def import_pyscf() -> None:
    """Import PySCF with evaluation switched off; does nothing if it is already imported.

    Raises
    ------
    InputError : PySCF is missing, broken, older than 2.13 or without the switches
    """
    with _lock:
        if sys.modules.get("pyscf") is None:
            _require_settings()
            with _our_configuration(), no_imports_from_working_directory():
                _import("pyscf")
                _require_version()
                _evaluating_modules()
        _require_version()


@contextmanager
def shielded() -> Iterator[None]:
    """Keep PySCF's evaluation switched off while the block runs, then restore the switches.

    Every call of PySCF runs inside this block. It may be nested and used from several threads: the
    first one to enter sets the switches, the last one to leave restores them.

    Raises
    ------
    InputError : as in `import_pyscf`
    """
    global _depth
    import_pyscf()
    with _lock:
        if _depth == 0:
            _found[:] = [(module, getattr(module, FLAG)) for module in _evaluating_modules()]
            for module, _ in _found:
                setattr(module, FLAG, True)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                for module, value in _found:
                    setattr(module, FLAG, value)
                _found.clear()


def pyscf_version() -> str:
    """Version of the imported PySCF, e.g. "2.14.0"."""
    import_pyscf()
    return str(sys.modules["pyscf"].__version__)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: its compiled libraries cannot be loaded
        raise InputError(
            "PySCF, which computes the SCF and the integrals, is not installed or cannot be "
            f"imported ({error}; a copy in the working directory does not count): {INSTALL}"
        ) from error


def _require_settings() -> None:
    """Raise for settings that would make PySCF's import fail half-way, or run another
    configuration."""
    if not CONFIG.is_file():
        raise InputError(
            f"{CONFIG.name}, a part of dfmp2, is missing from {CONFIG.parent}: install dfmp2 again"
        )
    memory = os.environ.get("PYSCF_MAX_MEMORY")
    if memory is not None and not re.fullmatch(r"\s*\d+\s*", memory):
        raise InputError(
            f"the environment variable PYSCF_MAX_MEMORY is {memory!r}: expected whole megabytes or "
            "unset"
        )


def _require_version() -> None:
    version = str(getattr(sys.modules["pyscf"], "__version__", "unknown"))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < MINIMUM:
        raise InputError(f"PySCF {version} is installed, dfmp2 needs 2.13 or newer: {INSTALL}")


def _evaluating_modules() -> list[ModuleType]:
    """The modules with a switch; raise if PySCF lacks one."""
    modules = [_import(name) for name in EVALUATING]
    for module in modules:
        if not hasattr(module, FLAG):
            version = getattr(sys.modules["pyscf"], "__version__", "unknown")
            raise InputError(
                f"PySCF {version} has no switch {FLAG} in {module.__name__}, so its parsers would "
                f"execute input text: install a supported version, {INSTALL}"
            )
    return modules


@contextmanager
def _our_configuration() -> Iterator[None]:
    """Set the environment for PySCF's import, with our configuration instead of others; it is
    restored afterwards."""
    before = {
        name: os.environ.pop(name, None)
        for name in ("PYSCF_CONFIG_FILE", "PYSCF_EXT_PATH", "PYSCF_ARGPARSE")
    }
    os.environ["PYSCF_CONFIG_FILE"] = str(CONFIG)
    try:
        yield
    finally:
        del os.environ["PYSCF_CONFIG_FILE"]
        os.environ.update({name: value for name, value in before.items() if value is not None})


@contextmanager
def no_imports_from_working_directory() -> Iterator[None]:
    """`sys.path` without the working directory.

    `python -m` puts it first, so that a folder `pyscf/` there would be imported in place of PySCF
    or join its package path as a plugin.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:  # the directory was deleted: nothing can be imported from it
        here = ""
    with _lock:
        before = list(sys.path)
        sys.path[:] = [entry for entry in before if entry and os.path.realpath(entry) != here]
        try:
            yield
        finally:
            sys.path[:] = before
