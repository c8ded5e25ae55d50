"""Compiled programs (NEFF files): cached on disk and compiled in a separate process; no device is
needed. `Proof` counts what was compiled and launched, and times the first launch of each program
apart from later ones (unverified on hardware).

    FOLDER/FINGERPRINT/COMPILER.neff   with COMPILER.json beside it: versions, seconds, SHA-256, what the program is

The fingerprint covers kernel sources, shapes, constants and chip; the file name gives the
compiler's versions. Files appear by renaming, failed compilations leave only a log, and a file
whose SHA-256 does not match counts as absent, so that broken files are never used. A host without a
compiler uses the newest file.

The Python interpreter that compiles may be a different one (`DFMP2_NKI_PYTHON`), since nki and the
runtime bindings may need separate environments. Ctrl-C and SIGTERM end the compiler at once and
leave nothing of that program behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dfmp2.backends.base import Shape
from dfmp2.errors import BackendUnavailable, KernelError, Option, ResourceError
from dfmp2.host.files import describe_space, put
from dfmp2.trainium.calls import Program, programs
from dfmp2.trainium.launch import environment, toolchain
from dfmp2.trainium.launch.environment import HERE

CHILD = Path(__file__).with_name("compile_child.py")
COMPILERS = ("nki", "neuronx-cc")
FAILED = "failed.log"  # output of a failed compilation
# Lines that state the cause
TELLING = re.compile(r"NCC_|NRT_|error:|can't open file|has no attribute")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program.

    Attributes
    ----------
    path : of the NEFF file; sha256 : of its contents
    compiler : versions, such as "nki 0.5.0, neuronx-cc 2.26.6360.0"
    entry : entry point of the compiler
    seconds : compilation time
    """

    path: Path
    sha256: str
    compiler: str
    entry: str
    seconds: float


class NeffCache:
    """The folder of compiled programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, program: Program, target: str, compiler: Mapping[str, str]) -> Compiled | None:
        """The compiled program, None if there is none.

        Parameters
        ----------
        compiler : versions of the compiler here; empty if there is none, in which case any file
            will do
        """
        place = self.folder / program.fingerprint(target)
        if compiler:
            return _read(place / f"{_slug(named(compiler))}.json")
        found = [entry for file in place.glob("*.json") if (entry := _read(file)) is not None]
        return max(found, key=lambda entry: entry.path.stat().st_mtime, default=None)

    def add(
        self,
        program: Program,
        target: str,
        compiler: Mapping[str, str],
        made: Path,
        entry: str,
        seconds: float,
    ) -> Compiled:
        """Keep a compiled program.

        Raises
        ------
        ResourceError : the folder cannot be written; its previous contents stay valid
        """
        place = self.folder / program.fingerprint(target)
        name = _slug(named(compiler))
        contents = made.read_bytes()
        done = Compiled(
            place / f"{name}.neff",
            hashlib.sha256(contents).hexdigest(),
            named(compiler),
            entry,
            round(seconds, 3),
        )
        record = {
            **asdict(done),
            "path": done.path.name,
            "target": target,
            "program": asdict(program),
        }
        try:
            place.mkdir(parents=True, exist_ok=True)
            put(done.path, contents)
            put(done.path.with_suffix(".json"), json.dumps(record, indent=1).encode())
            (place / FAILED).unlink(missing_ok=True)
        except OSError as error:
            raise ResourceError(
                f"cannot keep the compiled program in {self.folder}: {error.strerror}: "
                f"{describe_space(self.folder, len(contents))}: free some space, or name another "
                "folder with DFMP2_NEFF_CACHE"
            ) from error
        return done


def named(compiler: Mapping[str, str]) -> str:
    """Versions of a compiler as one string."""
    return ", ".join(f"{name} {version}" for name, version in sorted(compiler.items()))


def _read(record: Path) -> Compiled | None:
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        path = record.with_suffix(".neff")
        contents = path.read_bytes()
        done = Compiled(
            path, found["sha256"], found["compiler"], found["entry"], float(found["seconds"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if hashlib.sha256(contents).hexdigest() == done.sha256:
        return done
    return None


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+_-]+", "_", text)


def compiler_versions() -> dict[str, str]:
    """Versions of the compiler; empty unless it is complete."""
    found = toolchain.toolchain_versions(COMPILERS, python=HERE.python)
    return found if len(found) == len(COMPILERS) else {}


def ensure(program: Program, target: str, cache: NeffCache, proof: Proof) -> Compiled:
    """The compiled program, from the cache or else compiled now.

    Raises
    ------
    BackendUnavailable : the program is not in the cache and cannot be compiled here
    KernelError : the compiler rejects the kernel
    """
    compiler = compiler_versions()
    known = cache.find(program, target, compiler)
    if known is not None:
        proof.cache_hits += 1
        return known
    missing = toolchain.compiler_problems(target)
    if missing:
        raise BackendUnavailable(
            f"{program.label} is not compiled for {target} in {cache.folder}, and it cannot be "
            f"compiled here: {toolchain.told(missing)}; or compile it where nki is installed "
            "(dfmp2 kernels warmup), then copy the folder"
        )
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="dfmp2-neff-") as place:
        made, entry = _compile(
            program, target, Path(place), cache.folder / program.fingerprint(target)
        )
        seconds = time.perf_counter() - begin
        done = cache.add(program, target, compiler, made, entry, seconds)
    proof.compiled += 1
    proof.compile_seconds += seconds
    return done


def compile_ahead(spins: tuple[Shape, ...], target: str, nao: int = 0) -> Proof:
    """Compile the programs that the pair energies of these shapes need, unless cached; needs no
    device.

    Parameters
    ----------
    nao : number of basis functions if the device transforms, otherwise 0

    Raises
    ------
    BackendUnavailable : nothing can be compiled here; KernelError : the compiler rejects a kernel
    """
    proof = Proof()
    cache = NeffCache(environment.cache_folder())
    for program in programs(spins, target, nao):
        ensure(program, target, cache, proof)
    return proof


def _compile(program: Program, target: str, folder: Path, kept: Path) -> tuple[Path, str]:
    """The NEFF file and the entry point that made it; the log of a failed compilation is left in
    `kept`."""
    request = {
        "source": program.source,
        "kernel": program.kernel,
        "tensors": program.tensors,
        "statics": program.statics,
        "target": target,
        "folder": str(folder),
    }
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    variables = environment.compiler_variables(target)
    log = folder / "compiler.log"
    with log.open("wb") as output:
        code = _run(
            [HERE.python, "-P", str(CHILD), str(folder / "request.json")],
            variables,
            output.fileno(),
            folder,
        )
    chosen = folder / "entry.json"
    entry = "not reached"
    if chosen.exists():
        entry = str(json.loads(chosen.read_text(encoding="utf-8"))["entry"])
    made = [path for path in sorted(folder.rglob("*.neff")) if path.stat().st_size]
    made = [path for path in made if path.name == "kernel.neff"] or made
    # The documented plain call runs the kernel after compiling it, which fails without a device.
    if len(made) == 1 and (code == 0 or entry == "call" or (folder / "compiled").exists()):
        return made[0], entry
    told = log.read_text(errors="replace").strip().splitlines() or ["no message"]
    with contextlib.suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
        put(kept / FAILED, log.read_bytes())
    what = f"ended with {code}" if code else f"left {len(made)} NEFF files"
    cause = next((line for line in reversed(told) if TELLING.search(line)), told[-1]).strip()
    raise KernelError(
        (
            f"the compiler {what} for {program.label} on {target} (entry point {entry}): "
            f"{cause[:400]} (all of it in {kept / FAILED}): report this, or use "
        ),
        Option("backend", "cpu"),
    )


def _run(command: list[str], variables: dict[str, str], output: int, folder: Path) -> int:
    """Run a process shielded from terminal signals, and end it if this one is interrupted."""
    with subprocess.Popen(
        command,
        env=variables,
        stdout=output,
        stderr=output,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        start_new_session=True,
    ) as child:
        try:
            return child.wait()
        finally:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)


@dataclass(slots=True)
class Proof:
    """Counts for one process.

    Attributes
    ----------
    launches : kernel launches
    compiled : programs compiled by this run; cache_hits : programs found in the cache
    compile_seconds, load_seconds : s; first_seconds : of the first launch of each program;
        later_seconds : of the others
    uploads, bytes_up, bytes_down : transfers
    """

    launches: int = 0
    compiled: int = 0
    cache_hits: int = 0
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    first_seconds: float = 0.0
    later_seconds: float = 0.0
    uploads: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    _seen: set[object] = field(default_factory=set, repr=False)

    @contextmanager
    def launch(self, program: object) -> Iterator[None]:
        """Count and time a successful launch."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.launches += 1
        if program in self._seen:
            self.later_seconds += seconds
        else:
            self._seen.add(program)
            self.first_seconds += seconds

    def describe(self) -> dict[str, str]:
        """The counts as text, for the record."""
        return {
            "programs": f"{len(self._seen)} launched, {self.compiled} compiled now, "
            f"{self.cache_hits} found in the cache",
            "compile time": f"{self.compile_seconds:.3f} s compiling, {self.load_seconds:.3f} s loading",
            "launch time": f"{self.first_seconds:.4f} s in first launches of a program, "
            f"{self.later_seconds:.4f} s in others",
            "transfers": f"{self.uploads} uploads, {self.bytes_up} bytes up, {self.bytes_down} "
            "bytes down",
        }
