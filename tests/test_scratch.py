"""Scratch folders: gone after success, error, signal and death; never anything that is not ours."""

from __future__ import annotations

import os
import platform
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dfmp2 import memory
from dfmp2.errors import InputError, ResourceError
from dfmp2.scratch import folder as scratch_folder
from dfmp2.scratch import space as scratch_space
from dfmp2.scratch.folder import PREFIX, choose_root, remove_stale
from dfmp2.scratch.space import Space, prefetched
from dfmp2.scratch.tensor import StoredTensor
from tests.conftest import COMMAND, Runner, succeed

INPUTS = Path(__file__).parent.parent / "inputs"
DISK_RUN = ("run", str(INPUTS / "water-8.xyz"), "--basis", "cc-pvdz", "--memory", "220MB", "--threads", "1")
DEAD = 2**22 - 1  # above the largest process number Linux gives by default


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "scratch"
    made.mkdir()
    return made


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that can go to disk goes there, however small."""
    for name in ("scf_fits_in_core", "mp2_fits_in_core"):
        monkeypatch.setattr(memory.MemoryPlan, name, property(lambda _: False))


def stale_name(pid: int = DEAD, host: str | None = None) -> str:
    name = re.sub(r"[^A-Za-z0-9_.]", "_", platform.node()) if host is None else host
    return f"{PREFIX}-{name}-{pid}-12345-0123abcd"


# --- arrays -------------------------------------------------------------------------------------------


def test_array_gives_back_what_was_written_and_counts(root: Path) -> None:
    values = np.random.default_rng(0).standard_normal((7, 11))
    with Space(root, 8 * 77) as space:
        array = space.array("b", 77)
        array.write(0, values[:3])
        array.write(33, values[3:])
        out = np.empty((4, 11))
        array.read(22, out)
        np.testing.assert_array_equal(out, values[2:6])
        assert (space.written, space.read) == (8 * 77, 8 * 44)
        (own,) = root.iterdir()
        assert own.stat().st_mode & 0o077 == 0 and {file.name for file in own.iterdir()} == {"lock", "b.h5"}
    assert list(root.iterdir()) == []


def test_no_folder_before_the_first_array(root: Path) -> None:
    with Space(root, 10):
        assert list(root.iterdir()) == []


@pytest.mark.parametrize("block", [1, 4, 9])
def test_tensor_is_fitted_group_by_group(root: Path, block: int) -> None:
    rng = np.random.default_rng(1)
    raw, factor = rng.standard_normal((9, 5, 3)), rng.standard_normal((9, 6))
    with Space(root, 0) as space:
        kept, shorter = (StoredTensor(space, name, (5, 3, 9), [(0, 2), (2, 4), (4, 5)]) for name in "ab")
        for p0 in range(0, 9, block):
            for tensor in (kept, shorter):
                tensor.add(p0, min(p0 + block, 9), raw[p0 : p0 + block])
        kept.fit(lambda rows: 2 * rows, 2, shrinks=False)
        shorter.fit(lambda rows: rows @ factor, 2, shrinks=True)
        out = np.empty((3, 3, 9))
        kept.read(1, 4, out)
        np.testing.assert_array_equal(out, 2 * raw.transpose(1, 2, 0)[1:4])
        np.testing.assert_array_equal(kept.orbital(2), out[1])
        with pytest.raises(TypeError, match="expected float64"):
            kept.read(1, 4, out.astype(np.float32))
        assert shorter.shape == (5, 3, 6)
        out = np.empty((5, 3, 6))
        shorter.read(0, 5, out)
        np.testing.assert_allclose(out, np.einsum("pia,pq->iaq", raw, factor), atol=1e-14)


def test_next_block_is_fetched_during_the_work_on_the_present_one() -> None:
    loaded: list[int] = []

    def load(k: int) -> int:
        loaded.append(k)
        return k

    for k in prefetched(load, 3):
        deadline = time.monotonic() + 5
        while len(loaded) < min(k + 2, 3) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert loaded == list(range(min(k + 2, 3)))


# --- what is left behind, and what is left alone ------------------------------------------------------------------


def test_stale_folders_of_the_dead_go_and_everything_else_stays(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.h5").write_text("mine")
    stale = root / stale_name()
    stale.mkdir()
    (stale / "lock").touch()
    (stale / "scf.h5").write_text("x")
    kept = {
        "living": root / stale_name(os.getpid()).replace("-12345-", f"-{scratch_folder._started(os.getpid())}-"),
        "other host": root / stale_name(host="elsewhere"),
        "other name": root / "dfmp2-scratch-data",
        "somebody's": root / stale_name().replace("abcd", "abce"),
    }
    for path in kept.values():
        path.mkdir()
        (path / "scf.h5").write_text("x")
    (kept["somebody's"] / "notes.txt").write_text("x")
    (kept["somebody's"] / "link.h5").symlink_to(outside / "precious.h5")
    link, file = root / stale_name().replace("abcd", "1111"), root / stale_name().replace("abcd", "2222")
    link.symlink_to(outside)
    file.write_text("x")
    assert remove_stale(root) == [stale.name]
    assert not stale.exists() and link.is_symlink() and file.read_text() == "x"
    assert (outside / "precious.h5").read_text() == "mine"
    for name in ("living", "other host", "other name"):
        assert (kept[name] / "scf.h5").exists(), name
    assert sorted(p.name for p in kept["somebody's"].iterdir()) == ["link.h5", "notes.txt"]


def test_reused_process_number_does_not_protect(root: Path) -> None:
    """Our own number, but another start time: that process is dead."""
    stale = root / stale_name(os.getpid())
    stale.mkdir()
    assert remove_stale(root) == [stale.name]


def test_a_held_lock_protects_whatever_the_name_says(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in another container has the same host name perhaps, but its number means nothing here."""
    monkeypatch.setattr(os, "getpid", lambda: DEAD)
    with Space(root, 0) as space:
        space.array("b", 3)
        monkeypatch.undo()
        assert remove_stale(root) == []
        assert space.folder is not None and (space.folder / "b.h5").exists()


def test_two_runs_share_a_folder(root: Path) -> None:
    with Space(root, 0) as first:
        first.array("b", 3).write(0, np.ones(3))
        with Space(root, 0) as second:
            second.array("b", 3).write(0, np.zeros(3))
            assert len(list(root.iterdir())) == 2
        assert list(root.iterdir()) == [first.folder]
    assert list(root.iterdir()) == []


def test_signal_during_the_removal_is_raised_afterwards(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, calls = scratch_space.remove_folder, []

    def interrupted(path: Path) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove(path)

    monkeypatch.setattr(scratch_space, "remove_folder", interrupted)
    space = Space(root, 0)
    space.array("b", 3)
    with pytest.raises(KeyboardInterrupt):
        space.close()
    assert list(root.iterdir()) == []


# --- choosing and refusing ------------------------------------------------------------------------------------


def test_where_scratch_goes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFMP2_SCRATCH", str(root))
    assert choose_root(None) == root
    assert choose_root("/") == Path("/")
    monkeypatch.setenv("DFMP2_SCRATCH", str(root / "missing"))
    with pytest.raises(InputError, match=r"DFMP2_SCRATCH .*missing: there is no such folder"):
        choose_root(None)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
@pytest.mark.usefixtures("on_disk")
def test_a_folder_in_memory_is_used_with_a_warning(call: Runner) -> None:
    done = succeed(call("run", "h2.xyz", "--basis", "sto-3g", "--scratch", "/dev/shm"))
    assert "/dev/shm is itself in memory" in done.err
    assert not list(Path("/dev/shm").glob(f"{PREFIX}-*"))


@pytest.mark.parametrize("name", ["missing", "h2.xyz"])
def test_a_folder_that_is_none_is_refused_before_the_scf(call: Runner, name: str) -> None:
    done = call("run", "h2.xyz", "--basis", "sto-3g", "--scratch", name)
    assert done.code == 3 and f"--scratch {name}: there is no such folder" in done.message
    assert "RHF" not in done.err


@pytest.mark.usefixtures("on_disk")
def test_unwritable_folder(call: Runner) -> None:
    done = call("run", "h2o.xyz", "--basis", "sto-3g", "--scratch", "/proc")
    assert done.code == 7 and "/proc" in done.message and "--scratch" in done.message
    assert "SCF   1" not in done.err


@pytest.mark.usefixtures("on_disk")
def test_disk_full_at_the_start(call: Runner, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_folder, "free_disk", lambda _: 1_000_000)
    done = call("run", "h2o.xyz", "--basis", "sto-3g", "--scratch", str(root))
    assert done.code == 7 and "SCF   1" not in done.err
    assert re.search(rf"{root}: [\d.]+ kB are needed and 1.00 MB are free", done.message)


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may grow beyond 40 kB; the system then fails as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("on_disk", "small_files")
@pytest.mark.parametrize("basis", ["6-31g", "cc-pvdz"])
def test_disk_full_in_the_middle(call: Runner, root: Path, folder: Path, basis: str) -> None:
    """The SCF integrals (120 kB in 6-31G, 280 kB in cc-pVDZ) do not fit."""
    done = call("run", "h2o.xyz", "--basis", basis, "--scratch", str(root))
    assert done.code == 7
    assert re.search(rf"scratch folder {root}: .*needs .* there, .* written and .* free now", done.message)
    assert list(root.iterdir()) == [] and not (folder / "h2o.dfmp2.h5").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
@pytest.mark.usefixtures("on_disk")
def test_really_full_file_system(call: Runner, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", root], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
        monkeypatch.setattr(scratch_folder, "RESERVE", -(10**9))  # as if somebody else had filled it since
        done = call("run", "h2o.xyz", "--basis", "cc-pvdz", "--scratch", str(root))
        assert done.code == 7 and "No space left on device" in done.message and list(root.iterdir()) == []
    finally:
        subprocess.run(["umount", root], check=True)


def test_read_error_is_reported(root: Path) -> None:
    with Space(root, 80) as space:
        array = space.array("b", 10)
        array.write(0, np.ones(10))
        array.read(0, np.empty(10))
        os.truncate(space.folder / "b.h5", 100)  # type: ignore[operator]
        with pytest.raises(ResourceError, match="shorter than what was written"):
            array.read(0, np.empty(10))


# --- signals and death ------------------------------------------------------------------------------------------


def start(root: Path, cwd: Path) -> subprocess.Popen[bytes]:
    """A run that has made its scratch folder and is in the SCF."""
    process = subprocess.Popen(
        [COMMAND, *DISK_RUN, "--scratch", root],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 30
    while not list(root.glob(f"{PREFIX}-*-{process.pid}-*/scf.h5")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signal_leaves_nothing(number: signal.Signals, code: int, root: Path, folder: Path) -> None:
    process = start(root, folder)
    process.send_signal(number)
    assert process.wait(20) == code
    assert list(root.iterdir()) == [] and not list(folder.glob("*.h5"))


def test_killed_run_is_cleaned_up_by_the_next_and_a_living_one_is_not(dfmp2: Runner, root: Path, folder: Path) -> None:
    process = start(root, folder)
    h2 = ("run", "h2.xyz", "--basis", "sto-3g", "--overwrite", "--scratch", str(root))
    succeed(dfmp2(*h2))
    assert len(list(root.iterdir())) == 1
    process.kill()
    process.wait()
    assert len(list(root.iterdir())) == 1
    succeed(dfmp2(*h2))
    assert list(root.iterdir()) == []
