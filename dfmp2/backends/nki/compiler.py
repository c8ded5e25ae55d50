"""Compiles a kernel to a NEFF file in a process of its own; no device is needed.

The interpreter may be another one than this (`DFMP2_NKI_PYTHON`), since nki and the runtime bindings may not share an
environment. SIGTERM is held back until the compilation ends, which may take minutes: what is compiled is kept, and
the signal then stops the run. Ctrl-C ends the compiler at once and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from dfmp2.backends.nki import environment, toolchain
from dfmp2.backends.nki.environment import HERE, Host
from dfmp2.backends.nki.neff_cache import Compiled, NeffCache
from dfmp2.backends.nki.programs import Program
from dfmp2.backends.nki.proof import Proof
from dfmp2.errors import BackendUnavailable, KernelError

CHILD = Path(__file__).with_name("compile_child.py")
PACKAGE = Path(__file__).parents[3]  # the folder that holds dfmp2, which the other interpreter may not have installed
COMPILERS = ("nki", "neuronx-cc")


def compiler_versions(host: Host = HERE) -> dict[str, str]:
    """Versions of the compiler, empty unless all of it is there."""
    found = toolchain.versions(COMPILERS, host, host.python)
    return found if len(found) == len(COMPILERS) else {}


def ensure(program: Program, target: str, cache: NeffCache, proof: Proof, host: Host = HERE) -> Compiled:
    """The compiled program: from the cache, else compiled now.

    Raises
    ------
    BackendUnavailable : it is not in the cache and nothing can be compiled here
    KernelError : the compiler refuses the kernel
    """
    compiler = compiler_versions(host)
    known = cache.find(program, target, compiler)
    if known is not None:
        proof.cache_hits += 1
        return known
    missing = toolchain.compiler_problems(host, target)
    if missing:
        raise BackendUnavailable(
            f"{program.label} is not compiled for {target} in {cache.folder}, and it cannot be compiled here: "
            f"{toolchain.told(missing)}; or compile it where nki is installed (dfmp2 kernels warmup), then copy "
            "the folder"
        )
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="dfmp2-neff-") as place:
        made, entry = _compile(program, target, Path(place), host)
        seconds = time.perf_counter() - begin
        done = cache.add(program, target, compiler, made, entry, seconds)
    proof.compiled += 1
    proof.compile_seconds += seconds
    return done


def _compile(program: Program, target: str, folder: Path, host: Host) -> tuple[Path, str]:
    """The NEFF file and the entry point that made it."""
    request = {
        "source": program.source,
        "kernel": program.kernel,
        "tensors": program.tensors,
        "statics": program.statics,
        "target": target,
        "logical_core": 1,
        "folder": str(folder),
    }
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    variables = {**host.environ, **environment.settings("nki", target, host)}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE), host.environ.get("PYTHONPATH", "")]))
    log = folder / "compiler.log"
    with log.open("wb") as output, holding_sigterm():
        code = _run([host.python, "-P", str(CHILD), str(folder / "request.json")], variables, output.fileno(), folder)
    entry = _entry(folder / "entry.json")
    made = [path for path in sorted(folder.rglob("*.neff")) if path.stat().st_size]
    made = [path for path in made if path == folder / "kernel.neff"] or made
    # The documented plain call runs the kernel after it has compiled it, which fails where there is no device.
    if len(made) == 1 and (code == 0 or entry == "call" or (folder / "compiled").exists()):
        return made[0], entry
    told = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
    what = f"ended with {code}" if code else f"left {len(made)} NEFF files"
    raise KernelError(
        f"the compiler {what} for {program.label} on {target} (entry point {entry}): {told[0][:400]}: report this, or "
        "use --backend cpu"
    )


def _run(command: list[str], variables: dict[str, str], output: int, folder: Path) -> int:
    """Run a process apart from the terminal's signals, and end it if this one is interrupted."""
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


def _entry(file: Path) -> str:
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["entry"])
    except (OSError, ValueError, KeyError):
        return "not reached"


@contextlib.contextmanager
def holding_sigterm() -> Iterator[None]:
    """Hold SIGTERM back for the time of the block and raise it again at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may change handlers, and only there Python runs them
        return
    came: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = signal.signal(signal.SIGTERM, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    if came:
        signal.raise_signal(signal.SIGTERM)
