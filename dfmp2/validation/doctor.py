"""Checks of whether this installation, machine and folder are fit for a run, one row each in
`CHECKS`.

The last check is the smallest calculation with all defaults, whose energy is compared with PySCF's,
and its result file. For H2 at 1.4 bohr in STO-3G, with the fitting sets def2-universal-jkfit and
def2-svp-ri, PySCF 2.14.0 (density-fitted scf.RHF, mp.dfmp2_native) gives the energies below.
Symmetry fixes the orbitals, so nothing depends on SCF convergence. NumPy, PySCF and their
dependents are imported only by the checks, because they may be broken.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dfmp2.errors import ComparisonFailed, Dfmp2Error, InputError, ResourceError
from dfmp2.host import resources
from dfmp2.host.provenance import installed_version
from dfmp2.units import counted_text, format_bytes

if TYPE_CHECKING:
    from dfmp2.mp2.result import MP2Result

OLDEST_TORCH = (2, 9)
IMPORT_SECONDS = 120  # for torch in a separate process; a cold network disk is slow
LITTLE_DISK = 10**9  # bytes
LITTLE_MEMORY = 2 * 10**9  # bytes; libraries and the smallest run take 110 MB
# A run sets them to 1 itself
OVERRIDDEN = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
PINNING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
UNLIMITED = 1 << 60  # in control groups version 1, means no limit
INSTALL_SOURCE = "pip install . in the source folder"
REINSTALL = "install dfmp2 and its libraries again in a fresh virtual environment"

BASIS, DISTANCE = "sto-3g", 1.4  # bohr
SCF_ENERGY = -1.1167383286909018  # Eh
CORRELATION_ENERGY = -0.013153383073958618  # Eh
LARGEST_ERROR = 1e-8  # Eh

# Run by another Python process, since a broken build may crash it.
TORCH_PROBE = """
import json, torch
device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "device": device}))
"""

# given by name, because the registry of backends needs libraries
NEURON = "dfmp2.trainium.launch.toolchain"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The outcome of one check.

    Attributes
    ----------
    status : "ok"; "warn" (the default run works, but something else may not); "fail" (it does not
        work)
    detail : finding
    fix : what to do about it, one line; "" for nothing
    exit_code : of the default run, if it fails
    name : subject of the check
    """

    status: str
    detail: str
    fix: str = ""
    exit_code: int = 0
    name: str = ""


def ok(detail: str) -> Diagnosis:
    """A diagnosis without problems."""
    return Diagnosis("ok", detail)


def warn(detail: str, fix: str = "") -> Diagnosis:
    """A diagnosis with which the default run works; as in `fail`, the fix defaults to that of the
    row."""
    return Diagnosis("warn", detail, fix)


def fail(detail: str, code: int, fix: str = "") -> Diagnosis:
    """A diagnosis with which the default run ends with this exit code."""
    return Diagnosis(status="fail", detail=detail, fix=fix, exit_code=code)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that checks may inspect, as one value that tests can replace; created before any
    variable is changed.

    Attributes
    ----------
    environ : environment variables as the user set them
    folder : working directory, where results are written
    root : "/" on a real machine; prefix of /dev, /proc, /sys and /opt
    prefix : prefix of the Python installation or virtual environment
    path : Python's module search path
    cores : number of cores this process may be scheduled on
    version : distribution name -> installed version or None
    requirements : requirements in the package's own metadata, e.g. "numpy>=1.26"; None if it is not
        installed
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: Path = field(default_factory=Path)
    root: Path = Path("/")
    prefix: Path = Path(sys.prefix)
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    cores: int = field(default_factory=resources.allowed_cores)
    version: Callable[[str], str | None] = installed_version
    requirements: tuple[str, ...] | None = field(default_factory=lambda: _metadata("dfmp2"))

    def words(self, file: str) -> list[str]:
        """Words in a system file such as "/sys/fs/cgroup/cpu.max"; empty if it cannot be read."""
        try:
            return (self.root / file.lstrip("/")).read_text(errors="replace").split()
        except OSError:
            return []


def _metadata(name: str) -> tuple[str, ...] | None:
    """Requirements in the metadata of an installed distribution, starting with the Python version;
    None if there is no metadata."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    python = found.metadata["Requires-Python"]
    return (*([f"python{python}"] if python else []), *(found.requires or ()))


def examine(s: Surroundings) -> Iterator[Diagnosis]:
    """All findings about these surroundings, in the order of `CHECKS`, with those about Trainium
    after the libraries."""
    for name in CHECKS:
        yield inspect(name, s)
        if name == "libraries":
            for question, status, detail, fix in import_module(NEURON).diagnose(s):
                yield Diagnosis(status, detail, fix, name=question)


def inspect(name: str, s: Surroundings) -> Diagnosis:
    """The outcome of one row of `CHECKS`."""
    look, fix = CHECKS[name]
    try:
        found = look(s)
    except ImportError as error:  # missing, or installed but broken
        found = fail(f"a library does not import: {error}", Dfmp2Error.exit_code, REINSTALL)
    return replace(found, name=name, fix=found.fix or ("" if found.status == "ok" else fix))


def exit_code(findings: Sequence[Diagnosis]) -> int:
    """Exit code of the default run: 0, or that of the first failure."""
    return next((finding.exit_code for finding in findings if finding.status == "fail"), 0)


# --- packages ---


def check_command(s: Surroundings) -> Diagnosis:
    """Check whether the `dfmp2` on PATH is this one."""
    installed = s.version("dfmp2")
    detail = f"{installed or 'not installed'}, {Path(__file__).resolve().parents[1]}"
    if installed is None:
        return warn(f"{detail} (run from its source)", INSTALL_SOURCE)
    found = shutil.which("dfmp2", path=s.environ.get("PATH", ""))
    own = s.prefix / "bin"
    if found is not None and own.is_dir() and Path(found).parent.resolve() != own.resolve():
        return warn(
            f"{detail}, but {found} comes first on PATH", f"put {own} first on PATH, or activate it"
        )
    return ok(detail)


def oldest_versions(requirements: Sequence[str]) -> dict[str, str]:
    """The oldest version of Python and of each library that every run needs, by name.

    Parameters
    ----------
    requirements : of the package's metadata, such as "numpy>=1.26"; those of extras are left out
    """
    needed = {}
    for requirement in requirements:
        specifier, _, marker = requirement.partition(";")
        if "extra" not in marker:
            name, _, oldest = specifier.partition(">=")
            needed[name.strip()] = oldest.strip()
    return needed


def check_libraries(s: Surroundings) -> Diagnosis:
    """Check that Python and the libraries in the package's own metadata are installed and can be
    imported."""
    if s.requirements is None:
        return warn("dfmp2 is not installed: what it needs is not known", INSTALL_SOURCE)
    needed = oldest_versions(s.requirements)
    versions = {name: _version_of(s, name) for name in needed}
    detail = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        # Without PySCF a run gives a clear error; without another library it ends in a traceback.
        code = InputError.exit_code if missing == ["pyscf"] else Dfmp2Error.exit_code
        return fail(detail, code, f"pip install {' '.join(missing)}")
    for name in versions:
        if name not in ("python", "pyscf"):  # PySCF has its own check
            import_module(name.replace("-", "_"))
    old = [name for name in needed if _numbers(versions[name]) < _numbers(needed[name])]
    if "python" in old:
        return fail(
            detail,
            Dfmp2Error.exit_code,
            f"make a virtual environment with python>={needed['python']}",
        )
    if old:
        wanted = " ".join(f"'{name}>={needed[name]}'" for name in old)
        return warn(
            f"{detail}: {', '.join(old)} of a version that will not do", f"pip install {wanted}"
        )
    return ok(detail)


def _version_of(s: Surroundings, name: str) -> str | None:
    if name == "python":
        return ".".join(map(str, sys.version_info[:3]))
    return s.version(name)


def check_pyscf(_s: Surroundings) -> Diagnosis:
    """Check that PySCF can be imported, and that its evaluating parsers are disabled inside the
    shield."""
    from dfmp2.molecule import pyscf_shield as shield

    try:
        with shield.shielded():
            flags = [getattr(sys.modules[name], shield.FLAG) is True for name in shield.EVALUATING]
    except Dfmp2Error as error:
        fix = shield.INSTALL
        if "PYSCF_MAX_MEMORY" in str(error):
            fix = "unset PYSCF_MAX_MEMORY"
        return fail(str(error), error.exit_code, fix)
    closed = flags.count(True)
    detail = f"{shield.pyscf_version()}, shield closed ({closed} of {len(flags)} parsers)"
    if closed < len(flags):
        return fail(detail, InputError.exit_code, f"install it again: {shield.INSTALL}")
    return ok(detail)


def check_torch(s: Surroundings) -> Diagnosis:
    """Check whether the optional torch and cuda backends can be used."""
    driver = (s.root / "proc/driver/nvidia/version").exists()
    version = s.version("torch")
    if version is None:
        if driver:
            return warn("an NVIDIA driver, but no PyTorch", "pip install 'dfmp2[torch]'")
        return ok("not installed, no NVIDIA driver (optional: pip install 'dfmp2[torch]')")
    command = [sys.executable, "-P", "-c", TORCH_PROBE]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS,
            env=dict(s.environ),
            check=False,
        )
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {IMPORT_SECONDS} s"
    except ValueError:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:160]
    else:
        return judge_torch(str(found["version"]), found["cuda"], found["device"], driver)
    return warn(f"{version} does not import: {reason}", "pip install --force-reinstall torch")


def judge_torch(version: str, cuda: str | None, device: str | None, driver: bool) -> Diagnosis:
    """The diagnosis for an importable torch, built with this version of CUDA, on a machine with
    this CUDA device, and perhaps an NVIDIA driver."""
    detail = (
        f"{version}, {'CUDA ' + cuda if cuda else 'no CUDA build'}, {device or 'no CUDA device'}"
    )
    if _numbers(version) < OLDEST_TORCH:
        return warn(detail, "backends torch and cuda need 2.9 or newer: pip install 'torch>=2.9'")
    if driver and cuda is None:
        return warn(f"{detail}, but an NVIDIA driver", "install a CUDA build of torch")
    if driver and device is None:
        return warn(
            f"{detail}, but an NVIDIA driver", "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES"
        )
    return ok(detail)


def check_module_path(s: Surroundings) -> Diagnosis:
    """Check whether Python would import files from the working directory instead of libraries."""
    needed = {*sys.stdlib_module_names, *oldest_versions(s.requirements or ())}
    needed |= {"dfmp2", "torch", "basis_set_exchange", "nki"}
    spec = find_spec("dfmp2")
    # This is fine as well
    package = None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent
    try:
        here, entries = s.folder.resolve(), list(s.folder.iterdir())
    except OSError:
        return ok("the working directory cannot be read")

    def importable(entry: Path) -> bool:
        if entry.suffix == ".py":
            return entry.is_file()
        return entry.is_dir() and any(entry.glob("*.py"))

    shadows = sorted(
        entry.name
        for entry in entries
        if entry.name.removesuffix(".py") in needed
        and importable(entry)
        and entry.resolve() != package
    )
    on_path = any(entry == "" or Path(entry).resolve() == here for entry in s.path)
    if shadows:
        danger = "is" if on_path else "would be, with PYTHONPATH=. or python -c,"
        detail = (
            f"{', '.join(shadows[:5])} in the working directory {danger} imported in place "
            "of a library"
        )
        return warn(detail, "rename it, or work in another folder")
    if on_path and s.environ.get("PYTHONPATH") is not None:
        return warn(
            "the working directory is on Python's path through PYTHONPATH", "unset PYTHONPATH"
        )
    return ok("no file of the working directory shadows a library")


def _numbers(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version, (2, 14, 0) for "2.14.0rc1"; () if there are none."""
    release = re.match(r"\d+(\.\d+)*", version or "")
    if release is None:
        return ()
    return tuple(map(int, release[0].split(".")))


# --- cores, memory, clock ---


def check_threads(s: Surroundings) -> Diagnosis:
    """Check that a run will use the cores it may use, and no more."""
    share = resources.cpu_quota(s.words)
    usable = s.cores
    limit = "no quota"
    if share is not None:
        usable = min(s.cores, max(1, int(share)))
        limit = f"quota {share:g}"
    detail = f"{usable} usable ({s.cores} by affinity, {limit})"
    problems = _threads_asked_for(s, usable)
    # Workers inherit the single core to which OpenMP binds the main thread.
    bound = [
        name
        for name in PINNING
        if s.environ.get(name, "false").lower() not in ("false", "disabled", "none")
    ]
    if bound:
        shown = ", ".join(f"{name}={s.environ[name]}" for name in bound)
        problems.append((f"{shown} may pin all workers to one core", f"unset {' '.join(bound)}"))
    stubborn = _stubborn_blas()
    if stubborn:
        problems.append(
            (f"{', '.join(stubborn)} cannot be set to one thread", "export OPENBLAS_NUM_THREADS=1")
        )
    if problems:
        texts, fixes = zip(*problems, strict=True)
        return warn(f"{detail}; {'; '.join(texts)}", "; ".join(fixes))
    set_to = [f"{name}={s.environ[name]}" for name in OVERRIDDEN if s.environ.get(name, "1") != "1"]
    return ok(detail + (f"; a run overrides {', '.join(set_to)}" if set_to else ""))


def _threads_asked_for(s: Surroundings, usable: int) -> list[tuple[str, str]]:
    """What is wrong with the number of threads of a run, and how to mend it."""
    asked = s.environ.get("OMP_NUM_THREADS")  # which a run uses as its number of threads
    if asked is None:
        return []
    threads = resources.threads_asked_for(asked)
    if not threads:
        return [(f"OMP_NUM_THREADS={asked} is no number", "unset OMP_NUM_THREADS")]
    if threads > usable:
        return [(f"OMP_NUM_THREADS={asked} is more", f"export OMP_NUM_THREADS={usable}")]
    if threads < usable:
        fix = f"unset OMP_NUM_THREADS, or run with --threads {usable}"
        return [(f"OMP_NUM_THREADS={asked} is fewer", fix)]
    return []


def _stubborn_blas() -> list[str]:
    """Every loaded OpenBLAS that cannot be set to one thread."""
    from dfmp2.host import threads

    with threads.limited(1):
        loaded = {Path(path).name: count for path, count in threads.openblas().items()}
    return [name for name, count in loaded.items() if count != 1]


def check_memory(s: Surroundings) -> Diagnosis:
    """Check that there is enough memory within the limits of control group and shell."""
    free = resources.available_memory()
    limits = [
        int(w[0])
        for file in resources.memory_limits(s.words(resources.CONTROL_GROUPS))
        if (w := s.words(file)) and w[0].isdigit() and int(w[0]) < UNLIMITED
    ]
    limit = "no control group limit"
    if limits:
        limit = f"control group limit {format_bytes(min(limits))}"
    detail = f"{format_bytes(free)} available, {limit}"
    address = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address != resource.RLIM_INFINITY:
        detail += (
            f"; the shell limits addresses to {format_bytes(address)}, which counts "
            "reserved memory as used"
        )
        return warn(detail, "ulimit -v unlimited, and limit runs with --memory")
    if free < LITTLE_MEMORY:
        return warn(detail)
    return ok(detail)


# --- folders ---


def check_scratch(s: Surroundings) -> Diagnosis:
    """Check that PySCF can write its temporary files, one in every SCF, in PYSCF_TMPDIR or
    TMPDIR."""
    variable = next((name for name in ("PYSCF_TMPDIR", "TMPDIR") if s.environ.get(name)), None)
    if variable:
        folder = s.environ[variable]
        origin = f"{variable}={folder}"
        fix = f"unset {variable}, or make it a folder that can be written"
    else:
        try:
            folder = origin = tempfile.gettempdir()
        except FileNotFoundError as error:
            return fail(
                str(error), ResourceError.exit_code, "export TMPDIR=a folder that can be written"
            )
        fix = "make it writable"
    try:
        with tempfile.NamedTemporaryFile(prefix="dfmp2-doctor-", dir=folder):
            return _room(origin, Path(folder))
    except OSError as error:
        detail = f"{origin} cannot be written ({error.strerror})"
        # Python and PySCF skip an unusable TMPDIR, but PySCF uses PYSCF_TMPDIR unconditionally.
        if variable == "TMPDIR":
            return warn(detail, fix)
        return fail(detail, ResourceError.exit_code, fix)


def _room(shown: str, folder: Path) -> Diagnosis:
    free = resources.free_disk(folder)
    detail = f"{shown}, {format_bytes(free)} free"
    if free < LITTLE_DISK:
        return warn(f"{detail}: little")
    return ok(detail)


# --- the default run ---


@cache
def default_result() -> tuple[MP2Result, float]:
    """The result of the smallest run with all defaults, computed once, and its time, s."""
    import numpy as np

    from dfmp2.molecule.molecule import Molecule
    from dfmp2.options import make_options
    from dfmp2.progress import Silent

    molecule = Molecule(
        ("H", "H"),
        np.array([[0.0, 0.0, 0.0], [0.0, 0.0, DISTANCE]]),
        name="h2",
        source="dfmp2 doctor",
    )
    start = time.perf_counter()
    from dfmp2.mp2.energy import mp2_energy  # imports PySCF

    result = mp2_energy(
        molecule, make_options(basis=BASIS), listener=Silent(), command="dfmp2 doctor"
    )
    return result, time.perf_counter() - start


def check_default_run(_s: Surroundings) -> Diagnosis:
    """Check that a run with all defaults gives the right energy."""
    try:
        return judge_run(*default_result())
    except Dfmp2Error as error:
        return fail(str(error), error.exit_code)
    except OSError as error:  # exit code 7 on the command line
        return fail(f"the system refused: {error}", ResourceError.exit_code, "see scratch")


def judge_run(result: MP2Result, seconds: float) -> Diagnosis:
    """Check that the energy of the trial molecule agrees with PySCF."""
    scf = result.scf_total_energy - SCF_ENERGY
    correlation = result.mp2_correlation_energy - CORRELATION_ENERGY
    threads = counted_text(result.provenance.threads, "thread")
    detail = (
        f"H2/{BASIS} on {result.backend} ({result.precision}, {threads}) "
        f"in {seconds:.1f} s: E(SCF) {scf:+.0e}, E(corr) {correlation:+.0e} Eh from PySCF's"
    )
    if max(abs(scf), abs(correlation)) > LARGEST_ERROR:
        fix = f"do not trust this installation: {REINSTALL}, then dfmp2 validate"
        return fail(detail, ComparisonFailed.exit_code, fix)
    return ok(detail)


def check_working_directory(s: Surroundings) -> Diagnosis:
    """Check that a result can be written to the working directory and read back, including file
    locks."""
    from dfmp2.host.files import require_place

    try:
        require_place(s.folder / "dfmp2-doctor.h5")
        room = _room(str(s.folder.resolve()), s.folder)
    except Dfmp2Error as error:
        return fail(str(error), error.exit_code)
    except OSError as error:  # it has been deleted meanwhile
        return fail(f"cannot be used ({error.strerror})", ResourceError.exit_code)
    from dfmp2.output import hdf5

    try:
        result, _ = default_result()
    except (Dfmp2Error, OSError):
        return warn(
            f"{room.detail}; there is no result to write into it", "mend the default run first"
        )
    locking = ""
    if "HDF5_USE_FILE_LOCKING" in s.environ:
        locking = f", HDF5_USE_FILE_LOCKING={s.environ['HDF5_USE_FILE_LOCKING']}"
    path = s.folder / f".dfmp2-doctor-{uuid.uuid4().hex[:12]}.h5"
    try:
        hdf5.write(result, path)
        same = hdf5.read(path).mp2_total_energy == result.mp2_total_energy
    except Dfmp2Error as error:
        if "lock" in str(error).lower():  # the file was written, so the run itself works
            fix = "export HDF5_USE_FILE_LOCKING=FALSE, or write to a disk of this machine"
            return warn(f"written, but this disk has no file locks{locking}", fix)
        return fail(str(error), error.exit_code)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    if not same:
        return fail("what was read is not what was written", ResourceError.exit_code)
    return replace(
        room, detail=f"{room.detail}; a result was written, locked, read and removed{locking}"
    )


# Subject -> check, and the default fix of its problems.
CHECKS: dict[str, tuple[Callable[[Surroundings], Diagnosis], str]] = {
    "dfmp2": (check_command, ""),
    "libraries": (check_libraries, ""),
    # As in a run, before PySCF is loaded.
    "working directory": (
        check_working_directory,
        "change to a folder of yours with free space, or write elsewhere with --output",
    ),
    "PySCF": (check_pyscf, ""),
    "module path": (check_module_path, ""),
    "PyTorch": (check_torch, ""),
    "threads": (check_threads, ""),
    "memory": (check_memory, "larger molecules need more: end other programs or raise the limit"),
    "scratch": (check_scratch, "export PYSCF_TMPDIR=a folder with more space"),
    "default run": (check_default_run, "mend what the message names"),
}
