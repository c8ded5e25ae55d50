"""The installed command, small molecules, and results that are computed once for all tests."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import json
import lzma
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dfmp2.errors.messages import COMMAND_LINE, serving
from tests.recorded import MESSAGES

# Shell variables that could decide which tests pass are hidden from the tests and the programs they
# start.
SETTINGS = (
    "PYTHON",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "LC_",
    "LANG",
    "TERM",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "DFMP2_BACKEND",
)
# OPENBLAS_CORETYPE stands for another processor (`scripts/core_types`): tests pass on all of them.
KEPT = ("PYTHONPATH", "OPENBLAS_CORETYPE")
for variable in [name for name in os.environ if name.startswith(SETTINGS) and name not in KEPT]:
    del os.environ[variable]
# As in `dfmp2` itself: threads that wait in PySCF or BLAS sleep instead of taking cores from those
# that work.
os.environ |= {"OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}

# Files of dfmp2 0.1; test_pinned checks their content.
WRITTEN = Path(__file__).parent / "data" / "written_by_0.1"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--require MARKER`: the requirements of tests with that marker are met, so a skip is a
    failure; `--record`: write the messages of `tests.recorded` anew."""
    parser.addoption(
        "--require",
        action="append",
        default=[],
        metavar="MARKER",
        help="fail where MARKER's tests skip",
    )
    parser.addoption("--record", action="store_true", help="write the messages that tests compare")


# Files of `pytest -m quick`: every room in less than a minute on two cores.
QUICK = {
    "test_architecture.py",
    "test_awkward.py",  # gradients, interop, output
    "test_backends.py",
    "test_basis.py",
    "test_batch_manifest.py",  # execution
    "test_charge_and_spin.py",  # molecule
    "test_cli_options.py",
    "test_integrals.py",
    "test_limits.py",  # host, mp2, planning, studies
    "test_nki_lint.py",  # trainium
    "test_numbers.py",
    "test_pairs.py",
    "test_stability.py",  # scf
    "test_messages.py",  # errors
    "test_xyz.py",
}


# Files that take the most processor time, longest first: when distributed, each worker begins with
# one, so that none is left alone with one at the end.
LONG = (
    "test_sessions.py",
    "test_same_numbers.py",
    "test_stability.py",
    "test_tables.py",
    "test_study_resume.py",
    "test_composite.py",
    "test_checkpoint.py",
    "test_compare.py",
    "test_grid.py",
    "test_result_files.py",
    "test_report_browser.py",
    "test_optimize.py",
    "test_solvent.py",
    "test_outputs.py",
    "test_prepared.py",
    "test_awkward.py",
    "test_validate.py",
    "test_pyscf.py",
    "test_pinned.py",
    "test_nki_kernels.py",
    "test_gradients.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Make pytest-xdist keep the order of files instead of beginning with those that have the most
    tests; compare messages with those recorded."""
    config.pluginmanager.register(MESSAGES)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Make each of several workers import another part of the files first: pytest rewrites their
    assertions (two thirds of the time of a collection) and stores them for the other workers."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    place = int(worker["workerid"].removeprefix("gw"))
    for path in sorted(Path(__file__).parent.glob("test_*.py"))[place :: worker["workercount"]]:
        # A module that fails, or asks to be skipped, does so again when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(f"tests.{path.stem}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of QUICK that are not slow; put those of LONG first if there are several
    workers."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        places = {name: place for place, name in enumerate(LONG)}
        items.sort(key=lambda item: places.get(item.path.name, len(LONG)))
    for item in items:
        if item.path.name in QUICK and item.get_closest_marker("slow") is None:
            item.add_marker("quick")


def pytest_collection_finish() -> None:
    """Load every module of dfmp2 that needs nothing optional: one first loaded while a test has
    replaced a function would keep the replacement for the tests that follow."""
    for module in pkgutil.walk_packages(importlib.import_module("dfmp2").__path__, "dfmp2."):
        if not module.name.startswith(NOT_LOADED):
            importlib.import_module(module.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Turn the skip of a required test into a failure."""
    report: Any = yield
    missing = [name for name in item.config.getoption("--require") if item.get_closest_marker(name)]
    if report.skipped and missing and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = (
            "failed",
            f"--require {missing[0]}, but it was skipped: {report.longrepr}",
        )
    return report


from dfmp2.cli.main import main  # noqa: E402
from dfmp2.host.resources import exclude_existing, usable_cores  # noqa: E402
from dfmp2.progress import Listener  # noqa: E402 - after the variables are gone

# Modules that run a command, or need nki or QCEngine.
NOT_LOADED = ("dfmp2.__main__", "dfmp2.trainium.kernels.", "dfmp2.interop.qcengine")
ROOT = Path(__file__).parent.parent
INPUTS = ROOT / "inputs"
COMMAND = Path(sys.executable).with_name("dfmp2")
# s for steps that take a few seconds on an idle machine: it ends a test that would hang, and is no
# measure of speed.
PATIENCE = 300.0

MOLECULES = {
    "h2": "2\n\nH 0 0 0\nH 0 0 0.74\n",
    "h2o": "3\nH2O; the geometry of the README\nO 0 0 0.1173\nH 0 0.7572 -0.4692\nH 0 -0.7572 "
    "-0.4692\n",
    "nh2": "3\nmultiplicity=2\nN 0 0 0\nH 0 0.8036 0.6347\nH 0 -0.8036 0.6347\n",
    "h2-far": "2\n\nH 0 0 0\nH 0 0 12\n",  # gap about 1/R = 0.044 Eh, and unstable towards UHF
    "h2-apart": "2\n\nH 0 0 0\nH 0 0 28\n",  # gap 0.019 Eh when started from the orbitals of h2-far
    # The fitting metric of aug-cc-pvtz is near singular here.
    "crowd": "6\nsix centres of which one is real\nHe 0 0 0\n@He 0 0 0.2001\n@He 0 0 0.4002\n"
    "@He 0 0 -0.2001\n@He 0 0.2001 0\n@He 0.2001 0 0\n",
    "nah": "2\n\nNa 0 0 0\nH 0 0 1.8874\n",
    "o2": "2\nmultiplicity=3\nO 0 0 0\nO 0 0 1.2075\n",
}


class Heard(Listener):
    """A listener that records what a run reported; of each SCF iteration its number, energy, change
    and gradient."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.stages: list[str] = []
        self.cycles: list[tuple[int, float, float, float]] = []

    @property
    def energies(self) -> list[float]:
        return [energy for _, energy, *_ in self.cycles]

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        self.cycles.append((cycle, energy, change, gradient))


class Terminal(io.StringIO):
    """A stream that claims to be a terminal; its size is unknown, so it has 80 columns."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Finished:
    """The outcome of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON object."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    @property
    def went_on(self) -> bool:
        """Whether it said that it goes on from a checkpoint."""
        return "going on from " in self.err

    @property
    def iterated(self) -> bool:
        """Whether it showed the first iteration of an SCF."""
        return "SCF   1" in self.err

    @property
    def kept_runs(self) -> int:
        """How many runs of a study it said were finished before."""
        return self.err.count("finished before")

    @property
    def message(self) -> str:
        """The last line of a failed command; with --json the message in its JSON object."""
        assert "Traceback" not in self.err, self.err
        if self.err.splitlines()[-1].startswith("{"):
            said = json.loads(self.err.splitlines()[-1])
            assert (
                list(said) == ["error", "kind", "exit_code"] and said["exit_code"] == self.code
            ), said
            assert "dfmp2: " not in self.err
            return f"dfmp2: {said['error']}"
        lines = [line for line in self.err.splitlines() if line.startswith("dfmp2: ")]
        assert len(lines) == 1, self.err
        assert self.err.splitlines()[-1] == lines[0]
        return lines[0]


Runner = Callable[..., Finished]


def run_command(
    *arguments: str | bytes,
    cwd: Path,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    program: tuple[str, ...] = (str(COMMAND),),
) -> Finished:
    """Run the installed command in a folder and wait for it."""
    done = subprocess.run(
        [*program, *arguments],
        cwd=cwd,
        input=stdin,
        env={**os.environ, "NO_COLOR": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def in_shell(script: str, *arguments: str, cwd: Path) -> Finished:
    """The outcome of a bash script in which "$@" stands for the command with its arguments."""
    return run_command("-c", script, "bash", str(COMMAND), *arguments, cwd=cwd, program=("bash",))


def on_a_terminal(stream: str, *arguments: str, cwd: Path, **env: str) -> str:
    """What the command writes to "stdout" or "stderr" if that is a terminal."""
    reader, writer = os.openpty()
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: writer}
    shown = b""
    with subprocess.Popen(
        [COMMAND, *arguments], cwd=cwd, env=plain | {"TERM": "xterm"} | env, **streams
    ) as process:
        os.close(writer)
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while piece := os.read(reader, 4096):
                shown += piece
    os.close(reader)
    assert process.returncode == 0
    return shown.decode()


def wait_until(condition: Callable[[], Any]) -> Any:
    """The first true value of a condition."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it never happened")


def only_free_in(folder: Path, free: int, elsewhere: int) -> Callable[[Path], int]:
    """A `free_disk` of `free` bytes for one folder, and of others for every other one."""
    return lambda place: free if Path(place).resolve() == folder.resolve() else elsewhere


def succeed(finished: Finished) -> Finished:
    """The same, after checking that the command succeeded."""
    assert finished.code == 0, finished.err
    return finished


def write_molecules(folder: Path) -> Path:
    """Put `MOLECULES` into a folder as xyz files."""
    for name, text in MOLECULES.items():
        (folder / f"{name}.xyz").write_text(text)
    return folder


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder below `folder`, with its size and time of change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
    return found


def write_rates() -> None:
    """Store rates of this host in the present cache, so that a plan does not measure them (17 s)."""
    from dfmp2.planning import rates

    for backend in ("cpu", "torch", "nki-interpreter"):
        for count in {1, 2, 4, usable_cores()}:
            rates.store_rates(backend, count, rates.Rates(date="2026-11-22"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of one file stay together, as `--dist loadfile` says, but sessions, which share nothing."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if "test_sessions.py" in nodeid:
                return nodeid
            return str(super()._split_scope(nodeid))

    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def known_rates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A separate cache in which the rates of this host are known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        write_rates()
        yield


@pytest.fixture(scope="session", autouse=True)
def known_words() -> Iterator[None]:
    """Errors of library calls in the words of the command line, as `Message` and the recorded
    messages have them; a session with `>>>` speaks Python."""
    with serving(COMMAND_LINE):
        yield


@pytest.fixture(scope="session", autouse=True)
def known_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tell `MESSAGES` which folder changes from run to run."""
    MESSAGES.folder = str(tmp_path_factory.getbasetemp())


MODULES = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def known_heap() -> None:
    """Collect the garbage of thirty modules, since searching all of it takes 0.4 s."""
    if next(MODULES) % 30 == 0:
        gc.unfreeze()


@pytest.fixture(autouse=True)
def frozen_heap(known_heap: None) -> None:
    """Exclude objects that exist before the test (modules, tests and fixtures) from `gc.collect`,
    which every run calls several times and which would take half of the processor time."""
    gc.collect()
    exclude_existing()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail where a test leaves a file open, a lock held or a scratch folder, whatever it raised."""
    from dfmp2.host import files, scratch

    def opened() -> set[tuple[str, str]]:
        found = set()
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # that of the listing itself
                found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        return {(number, path) for number, path in found if path.startswith(("/tmp", "/var"))}

    before = opened()
    yield
    gc.collect()
    assert opened() - before == set()
    assert [path for (_, path), locks in files._held.items() if locks] == []
    mine = f"{scratch.PREFIX}-{scratch._host()}-{os.getpid()}-*"
    assert list(Path(tempfile.gettempdir()).glob(mine)) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with the small molecules in it."""
    return write_molecules(tmp_path)


@pytest.fixture
def dfmp2(folder: Path) -> Runner:
    """The installed command, run in `folder`."""

    def run(*arguments: str | bytes, **settings: Any) -> Finished:
        return run_command(*arguments, cwd=settings.pop("cwd", folder), **settings)

    return run


@pytest.fixture
def coarse_grid_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the error of a grid, which is a third of a small run, with few points; tests of that
    error are in test_grid."""
    monkeypatch.setattr("dfmp2.scf.grid_error.finer_name", lambda *given: "20,50")


@pytest.fixture
def workers() -> None:
    """Make the workers of `call` separate processes."""


@pytest.fixture
def call(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Iterator[Runner]:
    """The same command line in this process, including its workers: no start-up time, and parts can
    be replaced."""
    # A fork server, if any, does not serve later tests
    monkeypatch.setattr("dfmp2.host.processes._served", [])
    if "workers" not in request.fixturenames:
        work_here(monkeypatch)
    environment = dict(os.environ)
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> Finished:
        capfd.readouterr()
        code = main(arguments)
        captured = capfd.readouterr()
        return Finished(code, captured.out, captured.err)

    yield run
    os.environ.clear()
    os.environ.update(environment)


def work_here(patch: pytest.MonkeyPatch) -> None:
    """Let the workers of batches and studies compute in this process, without a fork server."""
    from tests.here import HereSlot

    patch.setattr("dfmp2.execution.pool.Slot", HereSlot)
    patch.setattr("dfmp2.host.processes._served", ["none is needed"])


def run_here(*arguments: str, cwd: Path) -> Finished:
    """As `call`, for fixtures that several tests share."""
    out, err, environment = io.StringIO(), io.StringIO(), dict(os.environ)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        work_here(patch)
        patch.setattr("sys.argv", ["dfmp2", *arguments])  # which is stored in a result
        patch.chdir(cwd)
        code = main(arguments)
    os.environ.clear()
    os.environ.update(environment)
    return Finished(code, out.getvalue(), err.getvalue())


@dataclass(frozen=True)
class Stored:
    """A result file and the object that `run --json` printed for it."""

    path: Path
    json: dict[str, Any]


def _stored(folder: Path, name: str, *options: str) -> Stored:
    arguments = ("run", f"{name}.xyz", "--basis", "sto-3g", "--json", *options)
    done = succeed(run_here(*arguments, cwd=write_molecules(folder)))
    return Stored(folder / f"{name}.dfmp2.h5", done.json)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files of dfmp2 0.1, unpacked; nothing in it may change."""
    folder = tmp_path_factory.mktemp("by_0.1") / "written"
    shutil.copytree(WRITTEN, folder)
    for packed in folder.rglob("*.h5.xz"):
        packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


@pytest.fixture(scope="session")
def water(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """RHF water in STO-3G, with PySCF's check; not to be changed."""
    return _stored(tmp_path_factory.mktemp("water"), "h2o", "--check")


@pytest.fixture(scope="session")
def radical(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """UHF NH2 in STO-3G, with all optional parts; not to be changed."""
    options = ("--check", "--frozen-core", "1", "--os-scale", "1.1", "--memory", "4GB")
    return _stored(tmp_path_factory.mktemp("radical"), "nh2", *options)
