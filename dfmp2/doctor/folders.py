"""Folders and streams: where results, scratch files and text go, and what PySCF would execute there."""

from __future__ import annotations

import contextlib
import locale
import os
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from dfmp2.doctor.finding import FAIL, OK, WARN, Finding, Surroundings
from dfmp2.errors import Dfmp2Error
from dfmp2.resources import free_disk
from dfmp2.units import format_bytes

LITTLE_DISK = 10**9  # bytes
PROBE = "dfmp2-doctor.h5"  # name of the result a run would write
NO_RESOURCES = 7


def check_output_folder(s: Surroundings) -> Finding:
    """Can a result be written into the working directory?"""
    from dfmp2.io.files import require_writable

    name = "working directory"
    fix = "change to a folder of yours with free space, or write elsewhere with --output"
    try:
        require_writable(s.folder / PROBE, overwrite=True, expected_bytes=10**6)
        shown, free = s.folder.resolve(), free_disk(s.folder)
    except Dfmp2Error as error:
        return Finding(name, FAIL, str(error), fix, error.exit_code)
    except OSError as error:  # it was deleted under our feet
        return Finding(name, FAIL, f"cannot be used ({error.strerror})", fix, NO_RESOURCES)
    detail = f"{shown}, {format_bytes(free)} free"
    return Finding(name, WARN, f"{detail}: little", fix) if free < LITTLE_DISK else Finding(name, OK, detail)


def disk_time(folder: Path) -> float | None:
    """Modification time the file system gives a file written now, s since 1970; None if none can be written."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".dfmp2-doctor-", dir=folder) as handle:
            handle.write(b"time")
            handle.flush()
            return os.fstat(handle.fileno()).st_mtime
    except OSError:
        return None


def check_scratch(s: Surroundings) -> Finding:
    """Can PySCF write its temporary files? It makes one in every SCF, in PYSCF_TMPDIR or TMPDIR."""
    variable = next((name for name in ("PYSCF_TMPDIR", "TMPDIR") if s.environ.get(name)), None)
    try:
        folder = s.environ[variable] if variable else tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding("scratch", FAIL, str(error), "export TMPDIR=a folder that can be written", NO_RESOURCES)
    origin = f"{variable}={folder}" if variable else folder
    try:
        with tempfile.NamedTemporaryFile(prefix="dfmp2-doctor-", dir=folder):
            free = free_disk(Path(folder))
    except OSError as error:
        # Python passes over a TMPDIR that cannot be used, PySCF does so too; a PYSCF_TMPDIR it takes as it is.
        fatal = variable != "TMPDIR"
        fix = f"unset {variable}, or make it a folder that can be written" if variable else "make it writable"
        return Finding(
            "scratch",
            FAIL if fatal else WARN,
            f"{origin} cannot be written ({error.strerror})",
            fix,
            NO_RESOURCES if fatal else 0,
        )
    detail = f"{origin}, {format_bytes(free)} free"
    if free < LITTLE_DISK:
        return Finding("scratch", WARN, f"{detail}: little", "export PYSCF_TMPDIR=a folder with more space")
    return Finding("scratch", OK, detail)


def check_home(s: Surroundings) -> Finding:
    """Is there a home directory? Shells of services and of AWS's SSM have none."""
    if s.home is None:
        return Finding("home", WARN, "HOME is not set: compilers and caches look for it", "export HOME=/root or yours")
    if not s.home.is_dir():
        return Finding("home", WARN, f"HOME={s.home} is no folder", "export HOME=a folder of yours")
    return Finding("home", OK, str(s.home))


def check_pyscf_configuration(s: Surroundings) -> Finding:
    """What PySCF alone would execute or load at import; inside dfmp2 it is shut out."""
    files = [folder / ".pyscf_conf.py" for folder in (s.folder, s.home) if folder is not None]
    found = sorted({str(file.resolve()) for file in files if file.is_file()})
    variables = [f"{name}={s.environ[name]}" for name in ("PYSCF_CONFIG_FILE", "PYSCF_EXT_PATH") if name in s.environ]
    if found or variables:
        return Finding(
            "PySCF configuration",
            WARN,
            f"{', '.join(found + variables)}: ignored by dfmp2, executed or loaded by PySCF on its own",
            "look into it, or remove it, if it is not yours",
        )
    return Finding("PySCF configuration", OK, "nothing that PySCF on its own would execute")


def check_text(s: Surroundings, streams: tuple[TextIO | None, TextIO | None] | None = None) -> Finding:
    """Do numbers and text survive locale and encoding?"""
    stdout, stderr = streams or (sys.stdout, sys.stderr)
    closed = [name for name, stream in (("stdout", stdout), ("stderr", stderr)) if stream is None]
    named = next((f"{name}={s.environ[name]}" for name in ("LC_ALL", "LC_NUMERIC", "LANG") if s.environ.get(name)), "")
    detail = f"{named or 'no locale set'}, stdout {getattr(stdout, 'encoding', None) or 'closed'}"
    if closed:
        return Finding("text", WARN, f"{detail}: {' and '.join(closed)} closed", "start it with both streams open")
    if not numbers_survive(named.partition("=")[2]):
        return Finding("text", WARN, f"{detail}: numbers are not read with a decimal point", "export LC_ALL=C.UTF-8")
    encoding = (getattr(stdout, "encoding", "") or "").lower().replace("-", "").replace("_", "")
    if encoding not in ("utf8", "utf8sig"):
        return Finding("text", WARN, f"{detail}: names beyond ASCII are shown as escapes", "export PYTHONUTF8=1")
    return Finding("text", OK, detail)


def numbers_survive(name: str) -> bool:
    """Whether our reader takes a decimal point for what it is while the C library follows the locale `name`."""
    from dfmp2.io.xyz import parse_xyz

    before = locale.setlocale(locale.LC_ALL)
    try:
        with contextlib.suppress(locale.Error):  # a locale that is not installed changes nothing
            locale.setlocale(locale.LC_ALL, name)
        molecule = parse_xyz("1\n\nHe 0 0 1.5\n", file="text", units="bohr").molecule
        return float(molecule.coordinates[0, 2]) == 1.5 and f"{1.5:.1f}" == "1.5"
    finally:
        locale.setlocale(locale.LC_ALL, before)
