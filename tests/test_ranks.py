"""One molecule over several processes: the bits of one process, one voice, our exit codes, and runs that go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfmp2
from dfmp2.checkpoint.encoding import Section
from dfmp2.errors import InputError
from dfmp2.ranks import message, place, shared_memory, status
from tests.conftest import COMMAND, listing, run_command, succeed
from tests.faults import EACH, numbers

pytest.importorskip("torch.distributed")

INPUTS = Path(__file__).parent.parent / "inputs"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
NH2 = ("run", str(INPUTS / "nh2.xyz"), "--basis", "cc-pvdz", "--threads", "1")
GLYCINE = ("run", str(INPUTS / "glycine.xyz"), "--basis", "cc-pvdz", "--threads", "1")
ONE_OF_TWO = {"WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
WATERS = ("run", str(INPUTS / "water-8.xyz"), "--basis", "cc-pvdz")
# Tiles of pairs that take their time.
SLOW = """
import os, time
if os.environ.get("RANK"):
    from dfmp2.backends.cpu import CpuBackend
    plain = CpuBackend.pair_terms
    def pair_terms(self, *arguments):
        time.sleep(0.3)
        return plain(self, *arguments)
    CpuBackend.pair_terms = pair_terms
"""


def bits(path: Path) -> dict[str, bytes]:
    """Numbers that must not depend on the ranks."""
    return {name: value for name, value in numbers(path).items() if not name.startswith("dfmp2/ranks")}


def by_torchrun(count: int, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TORCHRUN, "--nproc-per-node", str(count), "-m", "dfmp2", *arguments],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    succeed(run_command(*NH2, "--output", "nh2.h5", cwd=folder))
    return folder / "nh2.h5"


def test_torchrun_gives_the_bits_of_one_process(alone: Path, tmp_path: Path) -> None:
    """UHF, mixed precision; rank 0 alone speaks and writes."""
    done = by_torchrun(2, *NH2, "--output", "two.h5", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 and done.stdout.startswith("dfmp2 finished")
    assert sorted(listing(tmp_path)) == ["two.h5"]
    result = dfmp2.read(tmp_path / "two.h5")
    assert bits(tmp_path / "two.h5") == bits(alone)
    assert result.ranks is not None and result.ranks.count == 2 and len(set(result.ranks.hosts)) == 1
    assert result.to_dict()["ranks"]["count"] == 2 and dfmp2.read(alone).ranks is None


def test_launcher_with_three_ranks_and_b_on_disk(alone: Path, tmp_path: Path) -> None:
    """Ranks that do not see each other's memory meet in the scratch folder, which is empty afterwards."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    apart = tmp_path / "sitecustomize.py"  # as on three hosts
    apart.write_text("import os\ndel os.memfd_create\n")
    variables = {"PYTHONPATH": str(tmp_path)}
    arguments = (*NH2, "--output", "three.h5", "--quiet", "--ranks", "3", "--scratch", str(scratch), "--log", "log")
    done = succeed(run_command(*arguments, cwd=tmp_path, env=variables))
    assert done.out.count("\n") == 1
    result = dfmp2.read(tmp_path / "three.h5")
    assert result.storage is not None and result.storage.fitted_tensor == "disk" and result.storage.read > 0
    different = {name for name, value in bits(tmp_path / "three.h5").items() if value != bits(alone).get(name)}
    assert different == set() and not list(scratch.iterdir())
    assert (tmp_path / "log").read_text().count("pair energies\n") == 1


def test_a_rank_killed_in_the_pair_step_is_started_again_and_the_bits_are_the_same(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    process = started(tmp_path, *NH2, "--output", "x.h5", "--ranks", "2", "--max-restarts", "1", slow=True)
    said = wait_for(process, "pair energies")
    time.sleep(2.0)
    kill(rank(process, tmp_path / "x.h5.checkpoint", 1))
    (tmp_path / "sitecustomize.py").unlink()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, said + err
    assert "rank 1 on" in err and "is gone" in err and "all ranks are started again" in err and "Traceback" not in err
    assert "going on from x.h5.checkpoint" in err and "SCF" not in err  # that was done already
    assert "dfmp2 finished" in out and sorted(listing(tmp_path)) == ["x.h5"]
    assert bits(tmp_path / "x.h5") == bits(alone)


def test_stopped_with_75_and_resumed_by_one_process(alone: Path, tmp_path: Path) -> None:
    process = started(tmp_path, *NH2, "--output", "x.h5", "--ranks", "2", "--quiet")
    rank(process, tmp_path / "x.h5.checkpoint", 1)
    process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 75 and time.monotonic() - begun < 10 and out == ""
    assert err == (
        "dfmp2: terminated (SIGTERM): x.h5.checkpoint holds what was done; the same command with --resume goes on\n"
    )
    succeed(run_command(*NH2, "--output", "x.h5", "--resume", cwd=tmp_path))
    assert bits(tmp_path / "x.h5") == bits(alone) and sorted(listing(tmp_path)) == ["x.h5"]


def test_a_failing_rank_ends_all_with_its_message_and_code(tmp_path: Path) -> None:
    """Rank 1 alone has a backend that is not there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('RANK') == '1':\n    os.environ['DFMP2_REQUIRE_NKI'] = 'perhaps'\n"
    )
    variables = {"PYTHONPATH": str(tmp_path)}
    done = run_command(*GLYCINE, "--output", "x.h5", "--ranks", "2", "--quiet", cwd=tmp_path, env=variables)
    assert done.code == 3 and done.out == "" and not (tmp_path / "x.h5").exists()
    said = [line for line in done.err.splitlines() if line]
    assert len(said) == 1 and said[0].startswith("dfmp2: rank 1 on ") and "DFMP2_REQUIRE_NKI" in said[0]


@pytest.mark.parametrize(
    ("arguments", "variables", "text"),
    [
        (("--ranks", "0"), {}, "expected 1 rank or more"),
        (("--max-restarts", "2"), {}, "belongs to --ranks"),
        (
            ("--ranks", "2"),
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "leave --ranks out",
        ),
        ((), {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "impossible numbers"),
    ],
)
def test_refused(arguments: tuple[str, ...], variables: dict[str, str], text: str, call: Any, monkeypatch: Any) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = call("run", "h2o.xyz", "--basis", "sto-3g", *arguments)
    assert done.code == 3 and text in done.err and done.err.count("\n") == 1


def test_without_torch_ranks_are_refused_before_anything(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('planted')\n")
    done = run_command(*NH2, "--ranks", "2", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 6 and "dfmp2[torch]" in done.err and done.err.count("\n") == 1


def test_one_rank_needs_no_torch(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('planted')\n")
    done = run_command(*NH2, "--ranks", "1", "--output", "x.h5", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert succeed(done) and bits(tmp_path / "x.h5") == bits(alone)


def test_threads_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's OMP_NUM_THREADS=1 says nothing; the user's own does."""
    monkeypatch.setattr("dfmp2.resources.cores", lambda: 8)
    variables = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1", "LOCAL_RANK": "1"}
    found = place.here({**variables, "LOCAL_WORLD_SIZE": "2"})
    assert found is not None
    for given, expected in (("1", 4), ("3", 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert found.threads == expected
    assert place.here({"RANK": "0"}) is None
    with pytest.raises(InputError, match="not by torchrun"):
        place.here({**variables, "RANK": "x"})


def test_messages_are_numbers_and_text_only() -> None:
    sent = Section({"a": [1, "b"]}, {"x": np.arange(6.0).reshape(2, 3)})
    heard = message.unpack(message.pack(sent))
    assert heard.values == sent.values and np.array_equal(heard.arrays["x"], sent.arrays["x"])
    with pytest.raises(ValueError, match="hash"):
        message.unpack(message.pack(sent)[:-1] + b"?")


def test_memory_is_shared_between_processes() -> None:
    segment = shared_memory.Segment(800)
    array = shared_memory.mapped(segment.path, (100,), np.float64)
    program = (
        "import sys; import numpy as np; from dfmp2.ranks import shared_memory as s\n"
        "s.mapped(sys.argv[1], (100,), np.float64)[:] = np.arange(100.0)"
    )
    subprocess.run([sys.executable, "-c", program, segment.path], check=True)
    segment.close()
    assert np.array_equal(array, np.arange(100.0))


@pytest.mark.parametrize(
    ("codes", "expected"), [((0, 0), 0), ((75, 0), 75), ((0, 75), 75), ((75, 4), 4), ((), None), ((130, 75), 130)]
)
def test_verdict_of_the_launcher(codes: tuple[int, ...], expected: int | None, tmp_path: Path) -> None:
    status.leave(tmp_path, 0, 5, 9)  # of an attempt before
    for rank_, code in enumerate(codes):
        status.leave(tmp_path, 1, rank_, code)
    found = status.found(tmp_path) if codes else []
    assert status.verdict(found) == expected


def test_every_rank_has_a_neuron_core_of_its_own(tmp_path: Path) -> None:
    """As torchrun starts it, on a machine with two cores; before torch or anything of Neuron is imported."""
    program = (
        "import os, sys\nfrom dfmp2.batch import accelerators as a\nfrom pathlib import Path\n"
        "import dfmp2.ranks.joining as joining\nfrom dfmp2.cli import ranks\nfrom dfmp2.ranks.place import here\n"
        "a.pinning.__kwdefaults__['devices'] = Path(sys.argv[1])\n"
        "class Stop(Exception): pass\n"
        "def join(*_): print(os.environ['NEURON_RT_VISIBLE_CORES'], 'torch' in sys.modules); raise Stop\n"
        "joining.join = join\n"
        "try: ranks.enlist(here(), sys.argv[2])\nexcept Stop: pass\n"
    )
    (tmp_path / "neuron0").touch()
    shown = []
    for rank_, backend in ((0, "auto"), (1, "nki")):
        variables = {"RANK": str(rank_), "LOCAL_RANK": str(rank_), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        found = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), backend],
            env={**os.environ, **variables, "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        shown.append(found.stdout.split())
    assert shown == [["0", "False"], ["1", "False"]]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["auto", "fp64"])
def test_waters_over_one_to_four_ranks(precision: str, tmp_path: Path) -> None:
    arguments = (*WATERS, "--threads", "2", "--precision", precision, "--quiet", "--output")
    succeed(run_command(*arguments, "0.h5", cwd=tmp_path))
    for count in (1, 2, 3, 4):
        done = by_torchrun(count, *arguments, f"{count}.h5", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert bits(tmp_path / f"{count}.h5") == bits(tmp_path / "0.h5")


@pytest.mark.slow
def test_two_nodes_on_one_machine(alone: Path, tmp_path: Path) -> None:
    """Two agents of torchrun, which meet at a port."""
    meeting = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:29517", "--rdzv-id", "test")
    command = [*TORCHRUN, *meeting, "--nproc-per-node", "1", "-m", "dfmp2", *NH2, "--output", "x.h5", "--quiet"]
    nodes = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    assert sorted(len(out.splitlines()) for out in outputs) == [0, 1]
    assert bits(tmp_path / "x.h5") == bits(alone)


def started(folder: Path, *arguments: str, slow: bool = False) -> subprocess.Popen[str]:
    """A run that saves at every safe point."""
    return subprocess.Popen(
        [COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, EACH: "0", **({"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} if slow else {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """What was said until `text`."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if text in line:
            return said
    raise AssertionError(said)


def rank(process: subprocess.Popen[str], checkpoint: Path, number: int) -> int:
    """Process number of a rank, when there is a checkpoint."""
    deadline = time.monotonic() + 120
    while not checkpoint.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    wanted = f"RANK={number}".encode()
    return next(int(pid) for pid in children if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
