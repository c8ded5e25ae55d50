"""Is this installation, this machine and this folder fit for a run? `CHECKS` has one row per question.

The proof comes last: the smallest calculation, with all defaults, held against PySCF's energy, and its result file.
H2 at 1.4 bohr in STO-3G, fitting sets def2-universal-jkfit and def2-svp-ri: PySCF 2.14.0 (scf.RHF density-fitted,
mp.dfmp2_native) gives the energies below. Symmetry fixes the orbitals, so nothing depends on SCF convergence.
NumPy, PySCF and what needs them are imported by the checks themselves: they may be what is broken.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import locale
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from dfmp2.errors import Dfmp2Error
from dfmp2.host import resources
from dfmp2.units import format_bytes

if TYPE_CHECKING:
    from dfmp2.mp2.result import MP2Result

OLDEST_PYTHON = (3, 11)
REQUIRED = {"numpy": (1, 26), "scipy": (1, 11), "h5py": (3, 10), "click": (8, 1)}
OLDEST_TORCH = (2, 9)
IMPORT_SECONDS = 120  # for torch in a process of its own; a cold network disk is slow
LITTLE_DISK = 10**9  # bytes
LITTLE_MEMORY = 2 * 10**9  # bytes; libraries and the smallest run hold 110 MB
LARGEST_SKEW = 5.0  # s between this clock and that of the disk
DAY = 86400.0  # s
OVERRIDDEN = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")  # a run sets them to 1 itself
PINNING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
QUOTA = "/sys/fs/cgroup/cpu.max"  # version 2 of the control groups, which a run looks at
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
UNLIMITED = 1 << 60  # what version 1 of the control groups calls no limit
REINSTALL = "install dfmp2 and its libraries again in a fresh virtual environment"
FAULT, INPUT, NO_RESOURCES, COMPARISON_FAILED = 1, 3, 7, 8  # exit codes of a run

BASIS, DISTANCE = "sto-3g", 1.4  # bohr
SCF_ENERGY = -1.1167383286909018  # Eh
CORRELATION_ENERGY = -0.013153383073958618  # Eh
LARGEST_ERROR = 1e-8  # Eh

OK, WARN, FAIL = "ok", "warn", "fail"

# Run by another Python: a broken build may take the process with it.
_TORCH_PROBE = """
import json, torch
device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "device": device}))
"""

NEURON = "dfmp2.trainium.launch.toolchain"  # by name: it needs no library, which the registry of backends does


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes
    ----------
    status : "ok"; "warn" (the default run works, but something else may not); "fail" (it does not work)
    detail : what was found
    fix : what to do about it, one line; "" where there is nothing to do
    exit_code : of the default run, where it fails
    name : what was looked at
    """

    status: str
    detail: str
    fix: str = ""
    exit_code: int = 0
    name: str = ""


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution by its metadata, without importing it; None if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def affinity() -> int:
    """Cores this process may be scheduled on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything a check may look at, as one value that tests can plant.

    Attributes
    ----------
    environ : environment variables as the user set them
    folder : working directory, where results are written
    home : home directory, None if there is none
    root : "/" on a real machine: /dev, /proc, /sys and /opt are looked up below it
    prefix : of the Python installation or virtual environment
    path : Python's module search path
    cores : cores this process may be scheduled on
    version : distribution name -> installed version or None
    torch : the process that imports PyTorch meanwhile, None where it is not installed
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: Path = field(default_factory=Path)
    home: Path | None = None
    root: Path = Path("/")
    prefix: Path = Path(sys.prefix)
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    cores: int = field(default_factory=affinity)
    version: Callable[[str], str | None] = installed_version
    torch: subprocess.Popen[str] | None = None

    def words(self, file: str) -> list[str]:
        """Words of a system file such as "/sys/fs/cgroup/cpu.max"; none where it cannot be read."""
        try:
            return (self.root / file.lstrip("/")).read_text(errors="replace").split()
        except OSError:
            return []


def observe() -> Surroundings:
    """The surroundings of this process, before it changes any of its variables."""
    home = os.environ.get("HOME")
    return Surroundings(home=Path(home) if home else None)


def examine(s: Surroundings) -> list[Finding]:
    """Every finding about these surroundings, in the order in which a run would stumble.

    The default run comes last in the table and first in time: it loads the libraries that the checks of BLAS and
    PySCF look at, while another process imports PyTorch.
    """
    s = replace(s, torch=start_torch_probe(s))
    first = {name: inspect(name, s) for name in ("libraries", "working directory")}
    trial = _trial(s, *first.values())
    findings = []
    for name, row in CHECKS.items():
        if name in first:
            findings.append(first[name])
        elif trial[0].exit_code != FAULT or not row.loads:
            findings.append(inspect(name, s))
        if name == "Psi4":
            found = import_module(NEURON).diagnose(s)
            findings += [Finding(status, detail, fix, name=question) for question, status, detail, fix in found]
    return [*findings, *trial]


def inspect(name: str, s: Surroundings) -> Finding:
    """The outcome of one row of `CHECKS`."""
    row = CHECKS[name]
    found = row.look(s)
    return replace(found, name=name, fix=found.fix or ("" if found.status == OK else row.fix))


def exit_code(findings: Sequence[Finding]) -> int:
    """What the default run would exit with: 0, or the code of the first failure."""
    return next((finding.exit_code for finding in findings if finding.status == FAIL), 0)


# --- packages ---


def check_python(_s: Surroundings) -> Finding:
    """Is Python new enough?"""
    version = sys.version_info[:3]
    detail = f"{'.'.join(map(str, version))} ({platform.machine()}), {sys.executable}"
    return Finding(OK, detail) if version >= OLDEST_PYTHON else Finding(FAIL, detail, exit_code=FAULT)


def check_command(s: Surroundings) -> Finding:
    """Is the `dfmp2` on PATH this one?"""
    installed = s.version("dfmp2")
    detail = f"{installed or 'not installed'}, {Path(__file__).resolve().parents[1]}"
    if installed is None:
        return Finding(WARN, f"{detail} (run from its source)", "pip install . in the source folder")
    found = shutil.which("dfmp2", path=s.environ.get("PATH", ""))
    own = s.prefix / "bin"
    if found is not None and own.is_dir() and Path(found).parent.resolve() != own.resolve():
        return Finding(WARN, f"{detail}, but {found} comes first on PATH", f"put {own} first on PATH, or activate it")
    return Finding(OK, detail)


def check_libraries(s: Surroundings) -> Finding:
    """Are the libraries there that every run needs?"""
    found = {name: s.version(name) for name in REQUIRED}
    detail = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
    missing = [name for name, version in found.items() if version is None]
    if missing:
        return Finding(FAIL, detail, f"pip install {' '.join(missing)}", FAULT)
    old = [name for name, version in found.items() if _numbers(version or "") < REQUIRED[name]]
    if old:
        wanted = " ".join(f"'{name}>={'.'.join(map(str, REQUIRED[name]))}'" for name in old)
        return Finding(WARN, f"{detail}: {', '.join(old)} too old", f"pip install {wanted}")
    return Finding(OK, detail)


def check_pyscf(_s: Surroundings) -> Finding:
    """Does PySCF import, and are its evaluating parsers switched off inside the shield?"""
    shield = import_module("dfmp2.molecule.pyscf_shield")
    try:
        with shield.shielded():
            closed = [name for name in shield.EVALUATING if getattr(sys.modules[name], shield.FLAG) is True]
    except Dfmp2Error as error:
        fix = "unset PYSCF_MAX_MEMORY" if "PYSCF_MAX_MEMORY" in str(error) else shield.INSTALL
        return Finding(FAIL, str(error), fix, error.exit_code)
    detail = f"{shield.pyscf_version()}, shield closed ({len(closed)} of {len(shield.EVALUATING)} parsers)"
    if len(closed) < len(shield.EVALUATING):
        return Finding(FAIL, detail, f"install it again: {shield.INSTALL}", INPUT)
    return Finding(OK, detail)


def check_exchange(s: Surroundings) -> Finding:
    """Is the Basis Set Exchange there? (optional)"""
    version = s.version("basis-set-exchange")
    if version is not None:
        return Finding(OK, f"from PySCF's files and basis-set-exchange {version}")
    without = "without basis-set-exchange there is no MP2 fitting set beyond krypton"
    return Finding(OK, f"from PySCF's files; {without} (optional: pip install 'dfmp2[bse]')")


def check_psi4(s: Surroundings) -> Finding:
    """Is there a Psi4 to compare with? (optional)"""
    found = shutil.which("psi4", path=s.environ.get("PATH", ""))
    if found is None:
        return Finding(OK, "not on PATH (optional, for compare --with psi4)")
    return Finding(OK, f"{found} (for compare --with psi4)")


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


def check_torch(s: Surroundings) -> Finding:
    """Can the torch and cuda backends be used? (optional)"""
    driver = (s.root / "proc/driver/nvidia/version").exists()
    if s.torch is None:
        if driver:
            return Finding(WARN, "an NVIDIA driver, but no PyTorch", "pip install 'dfmp2[torch]'")
        return Finding(OK, "not installed, no NVIDIA driver (optional: pip install 'dfmp2[torch]')")
    try:
        text, errors = s.torch.communicate(timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        s.torch.kill()
        text, errors = "", f"no answer within {IMPORT_SECONDS} s"
    try:
        found = json.loads(text)
    except ValueError:
        last = errors.strip().splitlines()[-1:] or [f"exit code {s.torch.poll()}"]
        reinstall = "pip install --force-reinstall torch"
        return Finding(WARN, f"{s.version('torch')} does not import: {last[0][:160]}", reinstall)
    return judge_torch(str(found["version"]), found["cuda"], found["device"], driver)


def judge_torch(version: str, cuda: str | None, device: str | None, driver: bool) -> Finding:
    """What an importable torch is good for.

    Parameters
    ----------
    version : of torch; cuda : version it was built with, or None; device : name of the CUDA device, or None
    driver : whether an NVIDIA driver is loaded
    """
    detail = f"{version}, {'CUDA ' + cuda if cuda else 'no CUDA build'}, {device or 'no CUDA device'}"
    if _numbers(version) < OLDEST_TORCH:
        return Finding(WARN, detail, "backends torch and cuda need 2.9 or newer: pip install 'torch>=2.9'")
    if driver and cuda is None:
        return Finding(WARN, f"{detail}, but an NVIDIA driver", "install a CUDA build of torch")
    if driver and device is None:
        return Finding(WARN, f"{detail}, but an NVIDIA driver", "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES")
    return Finding(OK, detail)


def check_module_path(s: Surroundings) -> Finding:
    """Would Python import files of the working directory in place of libraries?"""
    needed = {*sys.stdlib_module_names, *REQUIRED, "pyscf", "dfmp2", "torch", "basis_set_exchange", "nki"}
    spec = find_spec("dfmp2")
    package = None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent  # a fine place, too
    try:
        here, entries = s.folder.resolve(), list(s.folder.iterdir())
    except OSError:
        return Finding(OK, "the working directory cannot be read")

    def importable(entry: Path) -> bool:
        return entry.is_file() if entry.suffix == ".py" else entry.is_dir() and any(entry.glob("*.py"))

    named = [entry for entry in entries if entry.name.removesuffix(".py") in needed]
    shadows = sorted(entry.name for entry in named if importable(entry) and entry.resolve() != package)
    on_path = any(entry == "" or Path(entry).resolve() == here for entry in s.path)
    if shadows:
        danger = "is" if on_path else "would be, with PYTHONPATH=. or python -c,"
        detail = f"{', '.join(shadows[:5])} in the working directory {danger} imported in place of a library"
        return Finding(WARN, detail, "rename it, or work in another folder")
    if on_path and s.environ.get("PYTHONPATH") is not None:
        return Finding(WARN, "the working directory is on Python's path through PYTHONPATH", "unset PYTHONPATH")
    return Finding(OK, "no file of the working directory shadows a library")


def _numbers(version: str) -> tuple[int, int]:
    """Major and minor version; (0, 0) where there are none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (0, 0) if match is None else (int(match[1]), int(match[2]))


# --- cores, memory, clock ---


def check_threads(s: Surroundings) -> Finding:
    """Will a run use the cores it may use, and no more?"""
    quota = _cpu_quota(s)
    usable = s.cores if quota is None else min(s.cores, max(1, int(quota)))
    detail = f"{usable} usable ({s.cores} by affinity, {'no quota' if quota is None else f'quota {quota:g}'})"
    problems: list[tuple[str, str]] = []
    asked = s.environ.get("OMP_NUM_THREADS")  # which a run takes as its number of threads
    if asked is not None:
        first = asked.split(",")[0].strip()
        if not first.isdigit() or int(first) < 1:
            problems.append((f"OMP_NUM_THREADS={asked} is no number", "unset OMP_NUM_THREADS"))
        elif int(first) > usable:
            problems.append((f"OMP_NUM_THREADS={asked} is more", f"export OMP_NUM_THREADS={usable}"))
        elif int(first) < usable:
            fix = f"unset OMP_NUM_THREADS, or run with --threads {usable}"
            problems.append((f"OMP_NUM_THREADS={asked} is fewer", fix))
    # Workers inherit the one core that OpenMP binds the main thread to.
    bound = [name for name in PINNING if s.environ.get(name, "false").lower() not in ("false", "disabled", "none")]
    if bound:
        shown = ", ".join(f"{name}={s.environ[name]}" for name in bound)
        problems.append((f"{shown} may pin all workers to one core", f"unset {' '.join(bound)}"))
    if asked is None and usable < s.cores and len(s.words(QUOTA)) != 2:
        problems.append((f"a run would start {s.cores}", f"export OMP_NUM_THREADS={usable}"))
    if problems:
        texts, fixes = zip(*problems, strict=True)
        return Finding(WARN, f"{detail}; {'; '.join(texts)}", "; ".join(fixes))
    set_to = [f"{name}={s.environ[name]}" for name in OVERRIDDEN if s.environ.get(name, "1") != "1"]
    return Finding(OK, detail + (f"; a run overrides {', '.join(set_to)}" if set_to else ""))


def _cpu_quota(s: Surroundings) -> float | None:
    """Cores the control group allows, None for no limit."""
    quota = s.words(QUOTA)
    if len(quota) != 2:
        quota = [*s.words("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), *s.words("/sys/fs/cgroup/cpu/cpu.cfs_period_us")]
    if len(quota) != 2 or not all(part.isdigit() for part in quota) or int(quota[1]) == 0:
        return None
    return int(quota[0]) / int(quota[1])


def check_blas(_s: Surroundings) -> Finding:
    """Which BLAS is loaded, and does every OpenBLAS let itself be set to one thread?"""
    from dfmp2.host import provenance, threads

    with threads.limited(1):
        libraries = [(Path(path).name, *_openblas(path)) for path in _loaded_libraries("openblas")]
    detail = f"NumPy: {provenance.blas()}"
    if libraries:
        detail += "; loaded: " + ", ".join(f"{name} ({config})" for name, config, _ in libraries)
    stubborn = [name for name, _, count in libraries if count != 1]
    return (
        Finding(WARN, f"{detail}; {', '.join(stubborn)} cannot be set to one thread")
        if stubborn
        else Finding(OK, detail)
    )


def _loaded_libraries(name: str) -> list[str]:
    """Paths of the shared libraries of this process with `name` in their file name."""
    try:
        text = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return sorted({path for path in re.findall(r"(/\S+)", text) if name in Path(path).name and ".so" in path})


def _openblas(path: str) -> tuple[str, int | None]:
    """(version and processor type, threads) of an OpenBLAS; None where it does not tell."""
    library = ctypes.CDLL(path)
    for pattern in ("openblas_{}", "scipy_openblas_{}", "scipy_openblas_{}64_", "openblas_{}64_"):
        config, count = (getattr(library, pattern.format(f"get_{what}"), None) for what in ("config", "num_threads"))
        if config is not None and count is not None:
            config.restype = ctypes.c_char_p
            words = (config() or b"").decode(errors="replace").split()
            shown = [w for w in words if w[:1].isdigit() or w in words[-2:-1] or w.startswith("MAX_THREADS")]
            return " ".join(shown) or "OpenBLAS", int(count())
    return "unknown build", None


def check_memory(s: Surroundings) -> Finding:
    """Is there memory, within the limits of control group and shell?"""
    free = resources.available_memory()
    limits = [int(w[0]) for file in MEMORY_LIMITS if (w := s.words(file)) and w[0].isdigit() and int(w[0]) < UNLIMITED]
    detail = f"{format_bytes(free)} available"
    detail += f", control group limit {format_bytes(min(limits))}" if limits else ", no control group limit"
    address = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address != resource.RLIM_INFINITY:
        detail += f"; the shell limits addresses to {format_bytes(address)}, which counts reserved memory as used"
        return Finding(WARN, detail, "ulimit -v unlimited, and limit runs with --memory")
    return Finding(WARN if free < LITTLE_MEMORY else OK, detail)


def check_clock(s: Surroundings) -> Finding:
    """Is the clock plausible, and does the disk of the working directory have the same?"""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    installed = Path(__file__).stat().st_mtime
    if installed > now + DAY:
        detail = f"{shown}, but dfmp2 was installed {(installed - now) / DAY:.0f} days later"
        return Finding(WARN, detail, "set the clock (date, chrony, ntpd)")
    disk = _disk_time(s.folder)
    if disk is not None and abs(disk - now) > LARGEST_SKEW:
        ahead = "ahead of" if disk > now else "behind"
        return Finding(WARN, f"{shown}; the disk of the working directory is {abs(disk - now):.0f} s {ahead} it")
    return Finding(OK, shown)


def _disk_time(folder: Path) -> float | None:
    """Modification time the file system gives a file written now, s since 1970; None if none can be written."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".dfmp2-doctor-", dir=folder) as handle:
            handle.write(b"time")
            handle.flush()
            return os.fstat(handle.fileno()).st_mtime
    except OSError:
        return None


# --- folders and streams ---


def check_output_folder(s: Surroundings) -> Finding:
    """Can a result be written into the working directory?"""
    from dfmp2.host.files import require_writable

    try:
        require_writable(s.folder / "dfmp2-doctor.h5", overwrite=True, expected_bytes=10**6)
        shown, free = s.folder.resolve(), resources.free_disk(s.folder)
    except Dfmp2Error as error:
        return Finding(FAIL, str(error), exit_code=error.exit_code)
    except OSError as error:  # it was deleted under our feet
        return Finding(FAIL, f"cannot be used ({error.strerror})", exit_code=NO_RESOURCES)
    detail = f"{shown}, {format_bytes(free)} free"
    return Finding(WARN, f"{detail}: little") if free < LITTLE_DISK else Finding(OK, detail)


def check_scratch(s: Surroundings) -> Finding:
    """Can PySCF write its temporary files? It makes one in every SCF, in PYSCF_TMPDIR or TMPDIR."""
    variable = next((name for name in ("PYSCF_TMPDIR", "TMPDIR") if s.environ.get(name)), None)
    try:
        folder = s.environ[variable] if variable else tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding(FAIL, str(error), "export TMPDIR=a folder that can be written", NO_RESOURCES)
    origin = f"{variable}={folder}" if variable else folder
    try:
        with tempfile.NamedTemporaryFile(prefix="dfmp2-doctor-", dir=folder):
            free = resources.free_disk(Path(folder))
    except OSError as error:
        fix = f"unset {variable}, or make it a folder that can be written" if variable else "make it writable"
        detail = f"{origin} cannot be written ({error.strerror})"
        # Python passes over a TMPDIR that cannot be used, PySCF does so too; a PYSCF_TMPDIR it takes as it is.
        return Finding(WARN, detail, fix) if variable == "TMPDIR" else Finding(FAIL, detail, fix, NO_RESOURCES)
    detail = f"{origin}, {format_bytes(free)} free"
    return Finding(WARN, f"{detail}: little") if free < LITTLE_DISK else Finding(OK, detail)


def check_home(s: Surroundings) -> Finding:
    """Is there a home directory? Shells of services and of AWS's SSM have none."""
    if s.home is None:
        return Finding(WARN, "HOME is not set: compilers and caches look for it", "export HOME=/root or yours")
    return Finding(OK, str(s.home)) if s.home.is_dir() else Finding(WARN, f"HOME={s.home} is no folder")


def check_pyscf_configuration(s: Surroundings) -> Finding:
    """What PySCF alone would execute or load at import; inside dfmp2 it is shut out."""
    files = [folder / ".pyscf_conf.py" for folder in (s.folder, s.home) if folder is not None]
    found = sorted({str(file.resolve()) for file in files if file.is_file()})
    found += [f"{name}={s.environ[name]}" for name in ("PYSCF_CONFIG_FILE", "PYSCF_EXT_PATH") if name in s.environ]
    if found:
        return Finding(WARN, f"{', '.join(found)}: ignored by dfmp2, executed or loaded by PySCF on its own")
    return Finding(OK, "nothing that PySCF on its own would execute")


def check_text(s: Surroundings) -> Finding:
    """Do numbers and text survive locale and encoding?"""
    streams: dict[str, TextIO | None] = {"stdout": sys.stdout, "stderr": sys.stderr}
    closed = [name for name, stream in streams.items() if stream is None]
    named = next((f"{name}={s.environ[name]}" for name in ("LC_ALL", "LC_NUMERIC", "LANG") if s.environ.get(name)), "")
    encoding = getattr(sys.stdout, "encoding", None) or "closed"
    detail = f"{named or 'no locale set'}, stdout {encoding}"
    if closed:
        return Finding(WARN, f"{detail}: {' and '.join(closed)} closed", "start it with both streams open")
    if not numbers_survive(named.partition("=")[2]):
        return Finding(WARN, f"{detail}: numbers are not read with a decimal point", "export LC_ALL=C.UTF-8")
    if encoding.lower().replace("-", "").replace("_", "") not in ("utf8", "utf8sig"):
        return Finding(WARN, f"{detail}: names beyond ASCII are shown as escapes", "export PYTHONUTF8=1")
    return Finding(OK, detail)


def numbers_survive(name: str) -> bool:
    """Whether our reader takes a decimal point for what it is while the C library follows the locale `name`."""
    from dfmp2.molecule.xyz import parse_xyz

    before = locale.setlocale(locale.LC_ALL)
    try:
        with contextlib.suppress(locale.Error):  # a locale that is not installed changes nothing
            locale.setlocale(locale.LC_ALL, name)
        molecule = parse_xyz("1\n\nHe 0 0 1.5\n", file="text", units="bohr").molecule
        return float(molecule.coordinates[0, 2]) == 1.5 and f"{1.5:.1f}" == "1.5"
    finally:
        locale.setlocale(locale.LC_ALL, before)


# --- the default run ---


def _trial(s: Surroundings, libraries: Finding, working: Finding) -> list[Finding]:
    """The default run, and the file of its result where the working directory can hold one."""
    result = None
    if libraries.status == FAIL:
        run = Finding(FAIL, "not tried: libraries are missing", libraries.fix, libraries.exit_code)
    else:
        try:
            run, result = check_default_run()
        except ImportError as error:  # installed and broken
            run = Finding(FAIL, f"a library does not import: {error}", REINSTALL, FAULT)
    found = [replace(run, name="default run")]
    if run.exit_code != FAULT and working.status != FAIL:
        found.append(replace(check_result_file(s, result), name="result file"))
    return found


def check_default_run() -> tuple[Finding, MP2Result | None]:
    """Does a run with all defaults give the right energy?"""
    import numpy as np

    from dfmp2.molecule.molecule import Molecule
    from dfmp2.options import make_options
    from dfmp2.progress import Listener

    class Quiet(Listener):
        def warning(self, text: str) -> None:
            """Warnings of a molecule nobody asked about are of no interest."""

    molecule = Molecule(("H", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, DISTANCE]]), name="h2", source="dfmp2 doctor")
    start = time.perf_counter()
    try:
        from dfmp2.mp2.energy import mp2_energy  # imports PySCF

        result = mp2_energy(molecule, make_options(basis=BASIS), listener=Quiet(), command="dfmp2 doctor")
    except Dfmp2Error as error:
        return Finding(FAIL, str(error), "mend what the message names", error.exit_code), None
    except OSError as error:  # what the command line turns into exit code 7
        return Finding(FAIL, f"the system refused: {error}", "see scratch", NO_RESOURCES), None
    return judge_run(result, time.perf_counter() - start), result


def judge_run(result: MP2Result, seconds: float) -> Finding:
    """Is the energy of the trial molecule what PySCF gives?"""
    scf, correlation = result.scf_total_energy - SCF_ENERGY, result.mp2_correlation_energy - CORRELATION_ENERGY
    detail = (
        f"H2/{BASIS} on {result.backend} ({result.precision}, {result.provenance.threads} threads) in {seconds:.1f} s: "
        f"E(SCF) {scf:+.0e}, E(corr) {correlation:+.0e} Eh from PySCF's"
    )
    if max(abs(scf), abs(correlation)) > LARGEST_ERROR:
        fix = f"do not trust this installation: {REINSTALL}, then dfmp2 validate"
        return Finding(FAIL, detail, fix, COMPARISON_FAILED)
    return Finding(OK, detail)


def check_result_file(s: Surroundings, result: MP2Result | None) -> Finding:
    """Can a result be written into the working directory and read back, file locks included?"""
    from dfmp2.output import hdf5

    if result is None:
        return Finding(WARN, "not tried: there is no result to write", "mend the default run first")
    setting = s.environ.get("HDF5_USE_FILE_LOCKING")
    shown = "" if setting is None else f", HDF5_USE_FILE_LOCKING={setting}"
    path = s.folder / f".dfmp2-doctor-{uuid.uuid4().hex[:12]}.h5"
    try:
        hdf5.write(result, path)
        same = hdf5.read(path).mp2_total_energy == result.mp2_total_energy and hdf5.verify(path)
    except Dfmp2Error as error:
        if "lock" in str(error).lower():  # the file is there: the run itself works
            fix = "export HDF5_USE_FILE_LOCKING=FALSE, or write to a disk of this machine"
            return Finding(WARN, f"written, but this disk has no file locks{shown}", fix)
        return Finding(FAIL, str(error), "write elsewhere with --output, or free some space", error.exit_code)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    if not same:
        return Finding(FAIL, "what was read is not what was written", REINSTALL, NO_RESOURCES)
    return Finding(OK, f"written, locked, read and removed{shown}")


# --- the table ---


@dataclass(frozen=True, slots=True)
class Check:
    """A row: what looks, what to do about a problem that has no fix of its own, whether it needs what a run imports."""

    look: Callable[[Surroundings], Finding]
    fix: str = ""
    loads: bool = False


CHECKS = {
    "Python": Check(check_python, "install Python 3.11 or newer and make a new virtual environment"),
    "dfmp2": Check(check_command),
    "libraries": Check(check_libraries),
    "working directory": Check(
        check_output_folder, "change to a folder of yours with free space, or write elsewhere with --output"
    ),
    "PySCF": Check(check_pyscf, loads=True),
    "PySCF configuration": Check(check_pyscf_configuration, "look into it, or remove it, if it is not yours"),
    "module path": Check(check_module_path),
    "basis sets": Check(check_exchange),
    "PyTorch": Check(check_torch),
    "Psi4": Check(check_psi4),
    "threads": Check(check_threads),
    "BLAS": Check(check_blas, "export OPENBLAS_NUM_THREADS=1", loads=True),
    "text": Check(check_text, loads=True),
    "memory": Check(check_memory, "larger molecules need more: end other programs or raise the limit"),
    "scratch": Check(check_scratch, "export PYSCF_TMPDIR=a folder with more space"),
    "home": Check(check_home, "export HOME=a folder of yours"),
    "clock": Check(check_clock, "synchronise the clocks of this machine and the file server (chrony, ntpd)"),
}
