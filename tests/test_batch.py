"""`dfmp2 batch` in processes of its own: signals, deaths, and batches that share the items. What else
it does is shown by the sessions `batch-*`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import dfmp2
from dfmp2.execution.batch import PATIENCE as PATIENCE_OF_BATCH
from dfmp2.host.files import lock_holder
from dfmp2.mp2 import energy
from dfmp2.output.state import decode
from tests.conftest import PATIENCE, run_command, succeed, wait_until
from tests.faults import start

HEAD = 'basis = "sto-3g"\nprecision = "fp64"\nthreads = 1\noutput = "out"\n'
WATERS = 3.0  # angstrom between the waters of `chain`


def items(*names: str) -> str:
    """[[item]] tables."""
    return "".join(f'[[item]]\nmolecule = "{name}.xyz"\n' for name in names)


def chain(count: int) -> str:
    """xyz text of waters in a row: large enough to be interrupted."""
    rows = [
        f"{symbol} {WATERS * k + x} {y} {z}"
        for k in range(count)
        for symbol, x, y, z in (
            ("O", 0, 0, 0.1173),
            ("H", 0, 0.7572, -0.4692),
            ("H", 0, -0.7572, -0.4692),
        )
    ]
    return "\n".join([str(3 * count), "", *rows]) + "\n"


def results(output: Path) -> dict[str, tuple[int, int]]:
    """Inode and modification time of every result."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in sorted(output.glob("*.h5"))
    }


def worker_of(result: Path) -> int:
    """The process that computes an item, as soon as there is one; its lock is held shortly before
    it names the process."""
    return wait_until(lambda: getattr(lock_holder(result), "pid", 0))


def test_terminated_and_resumed(folder, call):
    """SIGTERM gives 75 and only complete items; the same command computes the rest, and nothing
    twice."""
    (folder / "chain.xyz").write_text(chain(8))
    (folder / "m.toml").write_text(
        HEAD.replace("sto-3g", "cc-pvdz") + items("chain", "h2", "h2o", "nh2")
    )
    running = start(folder, "batch", "run", "m.toml", "--workers", "2")
    wait_until(lambda: list((folder / "out").glob("*.h5")))
    worker_of(folder / "out" / "chain.h5")
    live = succeed(call("batch", "status", "m.toml", "--json")).json
    assert live["items"][0]["status"] == "running"
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 75, err
    assert "repeat the command to continue" in err.splitlines()[-1] and "stopped" in out
    assert not list((folder / "out").glob(".*.lock")) and not list(
        (folder / "out").glob("*.error.json")
    )
    before = results(folder / "out")
    assert before and "chain.h5" not in before
    value = succeed(call("batch", "status", "m.toml", "--json")).json
    assert (value["complete"], value["pending"]) == (len(before), 4 - len(before))
    (folder / "chain.xyz").write_text(chain(1))
    succeed(call("batch", "run", "m.toml"))
    after = results(folder / "out")
    assert len(after) == 4 and {name: after[name] for name in before} == before


def test_a_stopped_item_goes_on_from_its_checkpoint(folder, call, monkeypatch):
    """With a checkpoint at every safe point: SIGTERM leaves it, and the same command continues to
    the same bits, without another SCF."""
    (folder / "chain.xyz").write_text(chain(3))
    arguments = ("chain.xyz", "--basis", "6-31g", "--precision", "fp64", "--threads", "1")
    running = start(
        folder, "batch", "run", *arguments, "--output", "out", DFMP2_CHECKPOINT_SECONDS="0"
    )
    kept = folder / "out" / "chain.h5.checkpoint"
    wait_until(lambda: kept.exists() and decode(kept.read_bytes()).reference is not None)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 75, err
    left = {path.name for path in (folder / "out").iterdir()}
    assert left == {"batch.index.jsonl", "batch.toml", "chain.h5.checkpoint"}
    shutil.copytree(folder / "out", folder / "damaged")
    (folder / "damaged" / "chain.h5.checkpoint").write_bytes(
        b"dfmp2 checkpoint 2\nscratch -\nnonsense"
    )
    run_scf = Mock(wraps=energy.run_scf)
    monkeypatch.setattr(energy, "run_scf", run_scf)
    succeed(call("batch", "run", *arguments, "--output", "out"))
    run_scf.assert_not_called()
    done = succeed(call("batch", "run", *arguments, "--output", "damaged"))
    assert run_scf.called and "damaged/chain.h5.checkpoint is damaged" in done.err
    resumed, whole = (dfmp2.read(folder / name / "chain.h5") for name in ("out", "damaged"))
    assert resumed.mp2_total_energy == whole.mp2_total_energy
    assert np.array_equal(resumed.pairs.opposite_spin, whole.pairs.opposite_spin)
    assert not (folder / "out" / "chain.h5.checkpoint").exists()


def test_a_second_signal_ends_it_at_once(folder):
    (folder / "chain.xyz").write_text(chain(8))
    running = start(
        folder, "batch", "run", "chain.xyz", "--basis", "cc-pvdz", "--output", "out", "--json"
    )
    worker = worker_of(folder / "out" / "chain.h5")
    time.sleep(0.3)  # it first tries with a file whether it can write into the folder
    os.kill(worker, signal.SIGSTOP)  # a worker that cannot answer
    running.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert running.poll() is None
    asked = time.monotonic()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)
    told = json.loads(err.splitlines()[-1])
    assert running.returncode == told["exit_code"] == 130 and "stopped at once" in told["error"]
    assert time.monotonic() - asked < PATIENCE_OF_BATCH
    assert not list((folder / "out").glob(".*"))


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_parent(folder, monkeypatch):
    """A batch started immediately waits for a worker that is slow to end, and then computes the
    item."""
    (folder / "chain.xyz").write_text(chain(2))
    (folder / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    arguments = (
        "chain.xyz",
        "h2.xyz",
        "--basis",
        "cc-pvdz",
        "--threads",
        "1",
        "--output",
        "out",
        "--workers",
        "2",
    )
    running = start(folder, "batch", "run", *arguments, "--precision", "fp64")
    worker = worker_of(folder / "out" / "chain.h5")
    os.kill(worker, signal.SIGSTOP)
    wait_until((folder / "out" / "h2.h5").exists)
    before = results(folder / "out")
    running.kill()
    running.wait(timeout=PATIENCE)
    again = start(folder, "batch", "run", *arguments, "--precision", "fp64")
    line = next(line for line in again.stderr or () if "left to it" in line)
    assert f"chain: it is being computed by process {worker} on" in line
    os.kill(worker, signal.SIGCONT)
    _, err = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0 and "computed again" not in err, err
    wait_until(lambda: not Path(f"/proc/{worker}").exists())
    assert "resource_tracker" not in running.stderr.read()
    after = results(folder / "out")
    assert set(after) == {"chain.h5", "h2.h5"} and after["h2.h5"] == before["h2.h5"]
    assert not list((folder / "out").glob(".*"))
    # A killed parent cannot remove the folder of its sockets, which multiprocessing makes
    (left,) = (folder / "tmp").iterdir()
    assert left.name.startswith("pymp-")


def test_the_parent_imports_neither_torch_nor_dask(folder):
    """It only starts workers, reports and waits."""
    code = (
        "import sys; from dfmp2.cli.main import main; code = main(sys.argv[1:]); "
        "assert not {'torch', 'dask', 'distributed'} & set(sys.modules); sys.exit(code)"
    )
    arguments = ("batch", "run", "h2.xyz", "--basis", "sto-3g", "--output", "out", "--quiet")
    done = succeed(run_command(*arguments, cwd=folder, program=(sys.executable, "-c", code)))
    assert done.out.startswith("dfmp2 batch finished: 1 of 1 item complete") and done.err == ""
