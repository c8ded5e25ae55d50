"""Arrays on disk: the same numbers as in memory, and scratch folders that leave nothing behind."""

from __future__ import annotations

import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock
from weakref import WeakSet

import numpy as np
import pytest
from pyscf import df, gto

import dfmp2
from dfmp2.errors import InputError, Interrupted, ResourceError
from dfmp2.host import scratch as scratch_folder
from dfmp2.host.scratch import PREFIX, Room, Space, choose_root, remove_stale
from dfmp2.integrals.three_center import ClusterRectangles
from dfmp2.mp2 import energy as energy_steps
from dfmp2.mp2.result import MP2Result
from dfmp2.planning import memory
from dfmp2.planning.memory import VARIES
from dfmp2.planning.rates import DiskRates
from dfmp2.scf import jk, ladder
from dfmp2.scf.jk import JKFitting
from dfmp2.scf.jk_on_disk import DiskIntegrals
from tests.conftest import (
    COMMAND,
    INPUTS,
    PATIENCE,
    Heard,
    Runner,
    only_free_in,
    succeed,
    wait_until,
)
from tests.recorded import recorded_error

DEAD = 2**22 - 1  # above the largest process id of Linux by default
EXACT = {"precision": "fp64", "threads": 1}
SLOW = pytest.mark.slow


def set_variant(monkeypatch: pytest.MonkeyPatch, *, disk: bool) -> None:
    """Both stages in memory, or both on disk with as little as possible in memory."""
    for name in ("scf_fits_in_core", "mp2_fits_in_core"):
        monkeypatch.setattr(memory.MemoryPlan, name, property(lambda _: not disk))
    if disk:
        for name in ("pair_bytes", "read_bytes", "integral_bytes", "tensor_bytes"):
            monkeypatch.setattr(memory.MemoryPlan, name, property(lambda _: 1))


def both(monkeypatch: pytest.MonkeyPatch, compute: Any) -> tuple[MP2Result, MP2Result]:
    set_variant(monkeypatch, disk=False)
    held = compute()
    set_variant(monkeypatch, disk=True)
    return held, compute()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "scratch"
    made.mkdir()
    return made


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put everything possible on disk, however small."""
    set_variant(monkeypatch, disk=True)


def stale_name(pid: int = DEAD, host: str | None = None) -> str:
    name = re.sub(r"[^A-Za-z0-9_.]", "_", platform.node()) if host is None else host
    return f"{PREFIX}-{name}-{pid}-0123abcd"


# --- the same numbers -----------------------------------------------------------------------------


def test_energies_on_disk_equal_those_in_memory(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """To the last bit; what is written is what was planned."""
    given = {"scratch": str(root), "stability": "off", "memory": 3 * 10**9, **EXACT}
    held, stored = both(
        monkeypatch, lambda: dfmp2.run(INPUTS / "nh2.xyz", "sto-3g", **given, listener=Heard())
    )
    for energy in (
        "scf_total_energy",
        "mp2_same_spin_correlation_energy",
        "mp2_correlation_energy",
    ):
        assert getattr(stored, energy) == getattr(held, energy)
    storages = [held.storage, stored.storage]
    assert [(one.scf_integrals, one.fitted_tensor) for one in storages] == [
        ("memory", "memory"),
        ("disk", "disk"),
    ]
    sizes = stored.sizes
    b = sum(o * v for o, v in zip(sizes.nocc, sizes.nvir, strict=True)) * sizes.naux
    columns = sizes.nao * (sizes.nao + 1) // 2
    # B raw, and once more fitted
    written = 8 * (sizes.naux_scf * columns + 2 * b)
    assert [one.written for one in storages] == [0, written]
    monkeypatch.setattr("dfmp2.planning.rates.load_disk", lambda folder: DiskRates(date="today"))
    planned = dfmp2.plan(INPUTS / "nh2.xyz", "sto-3g", **given).to_dict()["scratch"]
    assert planned["written_bytes"] == written
    assert stored.storage.predicted == planned["bytes"]
    builds = stored.reference.cycles - 12  # beyond the iterations that were foreseen
    assert stored.storage.read - planned["read_bytes"] == builds * 8 * sizes.naux_scf * columns
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert stored.memory.measured_peak == pytest.approx(peak, rel=0.05)
    assert stored.memory.budget == 3 * 10**9
    assert stored.storage.folder == str(root) and list(root.iterdir()) == []


MOLE = gto.M(
    atom="H 0 18 0; N 0 0 0; H 0 27 0; H 0 0.8 0.6; H 0 36 0; H 0 -0.8 0.6; H 0 9 0",
    basis="6-31g",
    spin=1,
    verbose=0,
)
AUX = df.addons.make_auxmol(MOLE, "def2-universal-jkfit")


@pytest.mark.parametrize(("pair_bytes", "read_bytes"), [(1, 1), (10**5, 10**5), (10**9, 10**9)])
def test_matrices_from_disk(
    pair_bytes: int,
    read_bytes: int,
    tmp_path: Path,
) -> None:
    """Any block size, densities of two spins with and without orbitals; pairs of distant functions
    are omitted."""
    rng = np.random.default_rng(2)
    occupied = [rng.standard_normal((MOLE.nao, n)) for n in (5, 4)]
    held = JKFitting(MOLE, AUX, 2).build()
    assert not held.pairs.complete
    density = np.stack([c @ c.T for c in occupied])
    with Space(tmp_path, 0) as space:
        stored = DiskIntegrals(MOLE, AUX, 2, Room(space, pair_bytes, read_bytes))
        for left, right in zip(held.matrices(occupied), stored.matrices(occupied), strict=True):
            np.testing.assert_array_equal(right, left)
        for left, right in zip(held.get_jk(density), stored.get_jk(density), strict=True):
            np.testing.assert_array_equal(right, left)
        held._exchange = stored._exchange = density
        rows = [made.matrices(occupied, rows=True)[1] for made in (held, stored)]
        np.testing.assert_array_equal(*rows)
        assert stored.get_naoaux() == AUX.nao
        far = [made.get_jk(density[0], omega=0.3)[1] for made in (held, stored)]
        np.testing.assert_array_equal(*far)
        stored.discard()
        assert [file.name for file in next(tmp_path.iterdir()).iterdir()] == ["lock"]


def test_the_scf_of_a_run_gathers_once_and_frees_before_b(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cation of distant atoms and molecules: as planned, in every float32 iteration, with the
    same bits as without enough memory."""
    water = "O 0 0 0; H 0 0.76 0.59; H 0.1 -0.76 0.6"
    atoms = "Ne 9 1 0.3; He 18 2 0.3; Ne 27 3 0.3; He 36 4 0.3"
    apart = dfmp2.Molecule.from_string(f"{water}; {atoms}", charge=1, multiplicity=2)
    monkeypatch.setattr(ladder, "SINGLE_LEAST", 1)
    made: list[int] = []
    alive: WeakSet[ClusterRectangles] = WeakSet()

    class Counted(ClusterRectangles):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(sum(part.nbytes for part in self.share(0, 10**6)))
            alive.add(self)

    monkeypatch.setattr(jk, "ClusterRectangles", Counted)
    plans: list[memory.MemoryPlan] = []
    before_b = energy_steps.build_b

    def build_b(calculation: Any, *rest: Any, **named: Any) -> Any:
        plans.append(calculation.plan.memory)
        assert not alive
        return before_b(calculation, *rest, **named)

    monkeypatch.setattr(energy_steps, "build_b", build_b)
    once = dfmp2.run(apart, "6-31g")
    assert plans[0].scf_gathers and made == [plans[0].scf_gathered]
    monkeypatch.setattr(memory.MemoryPlan, "scf_gathers", False)
    anew = dfmp2.run(apart, "6-31g")
    assert len(made) == 1
    assert anew.mp2_total_energy == once.mp2_total_energy
    np.testing.assert_array_equal(anew.reference.history, once.reference.history)


# Runs a command and prints its peak memory, kB; in a small process, because Linux includes the peak
# of the parent.
MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
sys.stderr.buffer.write(done.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(
            ("nh2.xyz", "--multiplicity", "2", "--basis", "cc-pvdz", "--scf", "conventional"),
            id="conventional",
        ),
        pytest.param(
            ("ch4.xyz", "--basis", "cc-pvtz", "--precision", "fp64"), id="stability", marks=SLOW
        ),
        pytest.param(("water-8.xyz", "--basis", "cc-pvdz"), id="fitted", marks=SLOW),
        pytest.param(("benzene.xyz", "--basis", "cc-pvdz", "--check"), id="check", marks=SLOW),
        pytest.param(
            ("glycine.xyz", "--basis", "cc-pvdz", "--relativity", "x2c"), id="x2c", marks=SLOW
        ),
    ],
)
def test_the_least_budget_named_is_kept(given: tuple[str, ...], tmp_path: Path) -> None:
    """It works, with a peak at most 5 % higher; apart from differences between processes, 4 % less
    is rejected."""

    def run(budget: int) -> subprocess.CompletedProcess[str]:
        command = (
            COMMAND,
            "run",
            str(INPUTS / given[0]),
            *given[1:],
            "--threads",
            "1",
            "--memory",
            f"{budget}kB",
        )
        launcher = (sys.executable, "-S", "-c", MEASURED, *command, "--quiet")
        return subprocess.run(launcher, cwd=tmp_path, capture_output=True, text=True, check=False)

    refused = run(1000)
    assert refused.returncode == 7
    least = 1000 * int(re.findall(r"at least --memory (\d+)MB", refused.stderr)[0])
    assert run((least - VARIES // 1000) * 96 // 100).returncode == 7
    kept = run(least)
    assert kept.returncode == 0, kept.stderr
    assert int(kept.stdout) * 1024 <= 1.05 * least * 1000


def test_arrays_go_back_to_the_system_when_they_are_freed() -> None:
    """With --memory; otherwise one large array would be enough to make the C library retain later
    ones."""
    program = (
        "import numpy as np; from dfmp2.host.resources import resident_memory; from dfmp2.options "
        "import Options\nfrom dfmp2.planning.system import set_up_run; set_up_run(Options('sto-3g', "
        "memory=10**9), '')\nbefore = resident_memory(); large = np.ones(3 * 10**6); del large\n"
        "several = [np.ones(250_000) for _ in range(40)]; last = several[-1]; del several\n"
        "print(resident_memory() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 10 * 10**6  # of 80 MB


# --- arrays ---------------------------------------------------------------------------------------


def test_numbers_beyond_the_end_of_a_file_are_no_numbers(tmp_path: Path) -> None:
    with Space(tmp_path, 80) as space:
        array = space.array("b", 10)
        array.write(0, np.ones(10))
        assert space.own_folder().stat().st_mode & 0o077 == 0
        os.truncate(space.own_folder() / "b.raw", 40)
        with recorded_error(ResourceError):
            array.read(0, np.empty(10))


def test_a_space_takes_one_folder_and_only_one_that_is_free(root: Path) -> None:
    """The folder of a dead process, with its lock; unless it already has a folder of its own."""
    left, other = (root / name for name in (stale_name(), stale_name(DEAD - 1)))
    left.mkdir()
    (left / "b-0.raw").write_bytes(np.arange(4.0).tobytes())
    opened = os.listdir("/proc/self/fd")
    space = Space(root, 0)
    assert not space.adopt(root / "no-such") and not space.adopt(root)
    assert space.adopt(left) and space.folder == left
    assert not Space(root, 0).adopt(left)  # its lock is held
    other.mkdir()
    assert not space.adopt(other)
    array, values = space.array("b-0", 4, existing=True), np.empty(4)
    array.read(0, values)
    np.testing.assert_array_equal(values, np.arange(4.0))
    space.close()
    assert [path.name for path in root.iterdir()] == [other.name]
    assert os.listdir("/proc/self/fd") == opened


# --- what is left behind, and what is left alone --------------------------------------------------


def test_stale_folders_of_the_dead_go_and_everything_else_stays(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.raw").write_text("mine")
    stale = root / stale_name()
    stale.mkdir()
    (stale / "lock").touch()
    (stale / "checkpoint").write_text(str(outside / "precious.raw"))  # which names another folder
    (stale / "scf.raw").write_text("x")
    kept = {
        "living": root / stale_name(os.getpid()),
        "other host": root / stale_name(host="elsewhere"),
        "other name": root / "dfmp2-scratch-data",
        "somebody's": root / stale_name().replace("abcd", "abce"),
    }
    for path in kept.values():
        path.mkdir()
        (path / "scf.raw").write_text("x")
    (kept["somebody's"] / "notes.txt").write_text("x")
    (kept["somebody's"] / "link.raw").symlink_to(outside / "precious.raw")
    link, file = (
        root / stale_name().replace("abcd", "1111"),
        root / stale_name().replace("abcd", "2222"),
    )
    link.symlink_to(outside)
    file.write_text("x")
    assert remove_stale(root) == [stale.name]
    assert not stale.exists() and link.is_symlink() and file.read_text() == "x"
    assert (outside / "precious.raw").read_text() == "mine"
    for name in ("living", "other host", "other name"):
        assert (kept[name] / "scf.raw").exists(), name
    assert sorted(p.name for p in kept["somebody's"].iterdir()) == ["link.raw", "notes.txt"]


def test_a_held_lock_protects_whatever_the_name_says(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in another container may have the same host name, but its process id means nothing
    here."""
    monkeypatch.setattr(os, "getpid", lambda: DEAD)
    with Space(root, 0) as space:
        space.array("b", 3)
        monkeypatch.undo()
        assert remove_stale(root) == []
        assert space.folder is not None and (space.folder / "b.raw").exists()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Interrupted])
def test_signal_during_the_removal_is_raised_afterwards(
    kind: type[BaseException], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Interrupted the first time
    remove = Mock(wraps=scratch_folder.remove_folder, side_effect=[kind, DEFAULT])
    monkeypatch.setattr(scratch_folder, "remove_folder", remove)
    space = Space(root, 0)
    space.array("b", 3)
    with pytest.raises(kind):
        space.close()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "stays"),
    [(KeyboardInterrupt(), True), (Interrupted("by hand"), True), (ValueError(), False)],
)
def test_a_folder_stays_for_a_checkpoint_if_the_run_is_stopped(
    error: BaseException, stays: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the run that has taken it over is stopped, which makes arrays anew."""
    monkeypatch.chdir(root.parent)
    with suppress(type(error)), Space(root, 0) as space:
        space.keep("x.checkpoint")
        space.array("b", 3).write(0, np.zeros(3))
        folder = space.own_folder()
        raise error
    with suppress(type(error)), Space(root, 0) as again:
        assert again.adopt(folder) == stays
        again.array("b", 2).write(0, np.ones(2))
        raise error
    if stays:  # whatever the working directory of the next run is
        assert (folder / "checkpoint").read_text() == str(root.parent / "x.checkpoint")
        assert (folder / "b.raw").read_bytes() == np.ones(2).tobytes()
    assert [path.name for path in root.iterdir()] == [folder.name] * stays


@pytest.mark.parametrize(
    ("option", "variable", "chosen"),
    [
        (None, "", "temporary"),
        ("", "variable", "variable"),
        ("option", "variable", "option"),
        ("option", "none", "option"),
        (None, "none", ""),
        ("none", "variable", ""),
    ],
)
def test_scratch_files_go_where_it_is_said(
    option: str | None,
    variable: str,
    chosen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the option, else by our variable, else where temporary files are; as an absolute path."""
    for name in ("option", "variable", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DFMP2_SCRATCH", variable)
    monkeypatch.setattr(scratch_folder.tempfile, "tempdir", str(tmp_path / "temporary"))
    with nullcontext() if chosen else recorded_error(InputError):
        assert choose_root(option) == tmp_path / chosen


# --- choosing and refusing ------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
@pytest.mark.usefixtures("on_disk")
def test_a_folder_in_memory_is_used_with_a_warning(call: Runner) -> None:
    done = succeed(call("run", "h2.xyz", "--basis", "sto-3g", "--scratch", "/dev/shm"))
    assert "/dev/shm is itself in memory" in done.err
    assert not list(Path("/dev/shm").glob(f"{PREFIX}-*"))


@pytest.mark.parametrize(
    ("kind", "expected"), [("tmpfs", True), ("ramfs", True), ("ext4", False), ("overlay", False)]
)
def test_file_systems_in_memory(
    kind: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = os.stat(tmp_path).st_dev
    lines = [
        f"24 1 {os.major(device) + 1}:7 / /elsewhere rw - {'ext4' if expected else 'tmpfs'} x rw",
        f"36 24 {os.major(device)}:{os.minor(device)} / /here rw shared:1 - {kind} x rw",
    ]
    monkeypatch.setattr(Path, "read_text", lambda self: "\n".join(lines))
    assert scratch_folder.in_memory(tmp_path) == expected
    assert not scratch_folder.in_memory(tmp_path / "missing")


def test_a_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", Mock(side_effect=OSError(30, "Read-only file system")))
    with Space(Path("/sys"), 0) as space, recorded_error(ResourceError):
        space.own_folder()


@pytest.mark.usefixtures("on_disk")
def test_disk_full_or_closed_at_the_start(
    call: Runner, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = call("run", "h2o.xyz", "--basis", "sto-3g", "--scratch", "/proc")
    assert (
        done.code == 7
        and "/proc" in done.message
        and "--scratch" in done.message
        and not done.iterated
    )
    monkeypatch.setattr(scratch_folder, "free_disk", only_free_in(root, 1_000_000, 10**15))
    done = call("run", "h2o.xyz", "--basis", "sto-3g", "--scratch", str(root))
    assert done.code == 7 and not done.iterated
    needed = r"16\.0\d MB are needed, of which 16\.00 MB have to stay free, and 1\.00 MB are free"
    assert re.search(rf"{root}: {needed}", done.message)


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of this process may not exceed 40 kB; the system then fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("on_disk", "small_files")
def test_disk_full_in_the_middle(call: Runner, root: Path, folder: Path) -> None:
    """The SCF integrals (280 kB) do not fit."""
    done = call("run", "h2o.xyz", "--basis", "cc-pvdz", "--scratch", str(root))
    assert done.code == 7
    assert re.search(
        rf"scratch folder {root}: .*needs .* there, .* written and .* free now", done.message
    )
    assert list(root.iterdir()) == [] and not (folder / "h2o.dfmp2.h5").exists()


# --- signals and death ----------------------------------------------------------------------------


def start(root: Path, cwd: Path) -> subprocess.Popen[bytes]:
    """A run that has created its scratch folder and is in the SCF."""
    options = ["--basis", "cc-pvdz", "--memory", "220MB", "--threads", "1"]
    process = subprocess.Popen(
        [COMMAND, "run", INPUTS / "water-8.xyz", *options, "--scratch", root],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    begun = f"{PREFIX}-*-{process.pid}-*/scf.raw"
    wait_until(lambda: list(root.glob(begun)) or process.poll() is not None)
    assert process.poll() is None
    return process


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), pytest.param(signal.SIGINT, 130, marks=SLOW)]
)
def test_signal_leaves_nothing(number: signal.Signals, code: int, root: Path, folder: Path) -> None:
    process = start(root, folder)
    process.send_signal(number)
    assert process.wait(PATIENCE) == code
    assert list(root.iterdir()) == [] and not list(folder.glob("*.h5"))


def test_killed_run_is_cleaned_up_by_the_next_and_a_living_one_is_not(
    call: Runner, root: Path, folder: Path
) -> None:
    process = start(root, folder)
    process.send_signal(signal.SIGSTOP)  # keep it alive during the test
    h2 = ("run", "h2.xyz", "--basis", "sto-3g", "--overwrite", "--scratch", str(root))
    succeed(call(*h2))
    assert len(list(root.iterdir())) == 1
    process.kill()
    process.wait()
    assert len(list(root.iterdir())) == 1
    succeed(call(*h2))
    assert list(root.iterdir()) == []
