"""`dfmp2 batch`: isolated items, restarts, and the same energies as single runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pytest

import dfmp2
from dfmp2.execution.batch import PATIENCE as PATIENCE_OF_BATCH
from dfmp2.execution.batch import read_list
from dfmp2.host.files import lock_holder
from dfmp2.output.batch_index import IndexWriter, read_rows
from tests.conftest import COMMAND, MOLECULES, PATIENCE, run_command, succeed, wait_until
from tests.recorded import recorded_failure

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


def start(
    folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start the command without waiting for it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [str(COMMAND), "batch", *arguments],
        cwd=folder,
        env={**os.environ, **(env or {})},
        text=True,
        **pipes,
    )


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


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """A batch with a radical, overrides, and every kind of failure; its folder and the output of
    the command."""
    folder = tmp_path_factory.mktemp("batch")
    for name, text in MOLECULES.items():
        (folder / f"{name}.xyz").write_text(text)
    (folder / "cut.xyz").write_text("3\n\nO 0 0 0\n")
    (folder / "odd.xyz").write_text("2\n\nO 0 0 0\nH 0 0 0.97\n")
    (folder / "m.toml").write_text(
        HEAD
        + items("h2", "h2o", "nh2", "cut", "odd", "missing", "h2-far", "o2")
        .replace('"h2-far.xyz"\n', '"h2-far.xyz"\nscf_max_cycles = 1\n')
        .replace(
            '"o2.xyz"\n',
            '"o2.xyz"\nname = "Oxygen, triplet"\nbasis = "cc-pvdz"\nfrozen-core = "auto"\n',
        )
        + '[[item]]\nmolecule = "h2o.xyz"\nname = "no-basis"\nbasis = "cc-pvdzz"\n'
    )
    return folder, run_command(
        "batch", "run", "m.toml", "--workers", "2", "--memory", "4GB", cwd=folder
    )


@pytest.fixture
def own_batch(batch, tmp_path):
    """A copy of the finished batch, for tests that change it."""
    folder, done = batch
    shutil.copytree(folder, tmp_path / "own", dirs_exist_ok=True)
    return tmp_path / "own", done


def test_status_has_the_shape_that_was_promised(batch, call, monkeypatch):
    folder, _ = batch
    monkeypatch.chdir(folder)
    counts = succeed(call("batch", "status", "m.toml", "--json")).json
    by_name = {item["name"]: item for item in counts.pop("items")}
    assert counts == {"total": 9, "complete": 4, "failed": 5, "pending": 0, "running": 0}
    seconds = dfmp2.read(folder / "out" / "h2o.h5").timings.total
    found = {"status": "complete", "exit_code": 0, "error": None, "seconds": seconds}
    found |= {"name": "h2o", "molecule": "h2o.xyz", "output": str(folder / "out" / "h2o.h5")}
    far = by_name["h2-far"]
    assert by_name["h2o"] == found and found.keys() == far.keys()
    assert far["exit_code"] == 4 and "did not converge" in far["error"] and far["output"] is None
    assert "5 failed" in succeed(call("batch", "status", "m.toml")).out


def test_an_index_is_trusted_of_the_same_files(own_batch, call, monkeypatch):
    """For a known input and an unchanged file, the latest line on an item counts, so that results
    need not be reread, even if a kill truncated the last line."""
    folder, _ = own_batch
    monkeypatch.chdir(folder)
    path = folder / "out" / "batch.index.jsonl"
    lines = path.read_text()
    energy = dfmp2.read(folder / "out" / "h2o.h5").mp2_total_energy
    row = read_rows(folder / "out")["h2o"] | {"energy": 1.5}
    later = {"at": row["at"] + 1}
    known = {"asked": "", **later}  # the input is examined
    changes = (
        (later, 1.5),
        (known, 1.5),
        ({"at": row["at"] - 1}, energy),
        ({"stamp": [1, 2], **later}, energy),
        ({"stamp": "ab", **later}, energy),
        ({"fingerprint": "", **known}, energy),
        ({"kept": "energies", **later}, energy),
    )
    for change, shown in changes:
        path.write_text(f"{lines}{json.dumps(row | change)}\n" + '{"name": "h2o", "ener')
        assert f"E(MP2) = {shown:.10f} Eh" in succeed(call("batch", "status", "m.toml")).out
    path.write_text(lines + '{"name": "h2o", "ener')
    with closing(IndexWriter(folder / "out", None)) as index:
        index.append([row | {"energy": 2.5}])
    assert "E(MP2) = 2.5000000000 Eh" in succeed(call("batch", "status", "m.toml")).out


def test_an_index_of_an_earlier_version_is_read(own_batch, call, monkeypatch):
    folder, _ = own_batch
    monkeypatch.chdir(folder)
    row = read_rows(folder / "out")["h2o"]
    (folder / "out" / "batch.index.jsonl").unlink()
    old = {name: row[name] for name in ("name", "molecule", "status", "fingerprint", "stamp")}
    old |= {
        **{"exit_code": 0, "error": None, "output": "elsewhere.h5", "seconds": 1.0, "energy": 1.5},
        **{"remark": "", "notes": [], "device_fault": False, "disk_full": False},
    }
    for version, shown in ((2, 1.5), (1, dfmp2.read("out/h2o.h5").mp2_total_energy)):
        value = {"dfmp2_batch_version": version, "items": [old]}
        (folder / "out" / "batch.json").write_text(json.dumps(value))
        assert f"E(MP2) = {shown:.10f} Eh" in succeed(call("batch", "status", "m.toml")).out


def test_each_task_reads_its_own_list(folder, call):
    """Lists written by submit give the same shards as the manifest; changing the manifest
    invalidates them."""
    (folder / "m.toml").write_text(HEAD + items("h2", "h2o", "nh2"))
    submit = ("batch", "submit", "m.toml", "--slurm", "--shards", "2", "--write", "scripts")
    succeed(call(*submit))
    script = (folder / "scripts" / "array.sbatch").read_text()
    assert f"--output {folder / 'out'}" in script
    lists = [folder / "out" / "batch.shards" / f"{part}-of-2.json" for part in (0, 1)]
    named = [[row["name"] for row in json.loads(path.read_text())["items"]] for path in lists]
    assert sorted(named[0] + named[1]) == ["h2", "h2o", "nh2"] and all(named)
    run = ("batch", "run", "m.toml", "--output", "out", "--shard")
    succeed(call(*run, "1/2"))
    assert {path.stem for path in (folder / "out").glob("*.h5")} == set(named[1])
    value = json.loads(lists[0].read_text())
    value["items"] = json.loads(lists[1].read_text())["items"]  # the list is what counts
    lists[0].write_text(json.dumps(value))
    assert f"({len(named[1])} of them before)" in succeed(call(*run, "0/2")).out
    own = (str(folder / "m.toml"), None, Path("out"), (0, 2))
    assert read_list(*own, chained=False).items[0].target.parent == folder / "out"
    assert read_list(*own, chained=True) is None
    assert read_list(own[0], str(folder / "out"), *own[2:], chained=False) is None
    with (folder / "m.toml").open("a") as manifest:
        manifest.write("# a change\n")
    succeed(call(*run, "0/2"))
    assert {path.stem for path in (folder / "out").glob("*.h5")} == {"h2", "h2o", "nh2"}


@pytest.mark.parametrize("keep", [pytest.param("energies", marks=pytest.mark.slow), "properties"])
def test_a_file_keeps_what_is_asked_for(folder, call, keep):
    """For a radical with a gradient: every number to the last bit, 15 kB, and errors that say what
    to do; requesting more computes it again."""
    text = HEAD + 'task = "gradient"\nkeep = "KEEP"\n' + items("nh2")
    for asked in (keep, "all"):
        (folder / "m.toml").write_text(text.replace("KEEP", asked))
        done = succeed(call("batch", "run", "m.toml", "--memory", "2GB"))
        assert "(0 of them before)" in done.out
        (folder / "out" / "nh2.h5").rename(folder / f"{asked}.h5")
        shutil.copy(folder / f"{asked}.h5", folder / "out" / "nh2.h5")
    small, whole = (dfmp2.read(folder / f"{name}.h5") for name in (keep, "all"))
    assert (small.kept, whole.kept) == (keep, "all")
    assert (folder / f"{keep}.h5").stat().st_size < 15_000 + 3_000 * (keep == "properties")
    assert np.array_equal(small.gradient.mp2_total_gradient, whole.gradient.mp2_total_gradient)
    assert np.array_equal(small.properties.relaxed_dipole, whole.properties.relaxed_dipole)
    for name in ("mp2_total_energy", "mp2_same_spin_correlation_energy", "scf_total_energy"):
        assert getattr(small, name) == getattr(whole, name)
    assert small.error_budget.to_dict() == whole.error_budget.to_dict()
    assert small.orbital_basis == whole.orbital_basis and small.options == whole.options
    assert (small.properties.mulliken_charges is None) == (keep == "energies")
    assert succeed(call("show", f"{keep}.h5")).out
    assert succeed(call("report", f"{keep}.h5", "-o", f"{keep}.html")).code == 0
    for command in (
        ("export", f"{keep}.h5", "--to", "molden"),
        ("derive", f"{keep}.h5", "--frozen-core", "1"),
        ("compare", f"{keep}.h5"),
        ("run", "nh2.xyz", "--basis", "sto-3g", "--scf-from", f"{keep}.h5"),
    ):
        refused = call(*command)
        recorded_failure(refused, 3)
    dfmp2.write(small, folder / "again.h5")
    assert dfmp2.read(folder / "again.h5").to_dict() == small.to_dict()
    (folder / "m.toml").write_text(text.replace("KEEP", keep))
    assert "(1 of them before)" in succeed(call("batch", "run", "m.toml")).out
    chained = call("batch", "run", "m.toml", "--scf-chain")
    recorded_failure(chained, 3)


def test_nothing_complete_is_computed_again_and_changes_are_said(own_batch, call, monkeypatch):
    """The same command, then after every kind of change: only what changed is computed."""
    folder, _ = own_batch
    monkeypatch.chdir(folder)
    before = results(folder / "out")
    (folder / "out" / "batch.index.jsonl").unlink()
    again = call("batch", "run", "m.toml")
    complete = {name for name, row in read_rows(folder / "out").items() if "output" in row}
    assert complete == {path.stem for path in (folder / "out").glob("*.h5")}
    assert again.code == 9 and "(4 of them before)" in again.out
    assert results(folder / "out") == before
    (folder / "h2.xyz").write_text("2\n\nH 0 0 0\nH 0 0 0.75\n")
    damaged = bytearray((folder / "out" / "nh2.h5").read_bytes())
    place = damaged.index(
        np.float64(dfmp2.read(folder / "out" / "nh2.h5").scf_total_energy).tobytes()
    )
    damaged[place] ^= 1
    (folder / "out" / "nh2.h5").write_bytes(damaged)
    (folder / "cut.xyz").write_text(MOLECULES["h2"])
    pending = succeed(call("batch", "status", "m.toml", "--json")).json
    assert {item["name"] for item in pending["items"] if item["status"] == "pending"} == {
        "h2",
        "nh2",
    }
    done = call("batch", "run", "m.toml")
    assert (
        "h2: its input has changed since the result was made (geometry): it is computed again"
        in done.err
    )
    assert done.err.count("it is computed again") == 2  # but no molecule that cannot be read
    assert "nh2: its result does not count" in done.err and "stored hash" in done.err
    assert "(2 of them before), 4 failed" in done.out
    after = results(folder / "out")
    assert {name for name in before if before[name] == after[name]} == {
        "h2o.h5",
        "Oxygen_triplet.h5",
    }
    assert dfmp2.read(folder / "out" / "h2.h5").molecule.coordinates[1, 2] == pytest.approx(
        0.75 / 0.52917721
    )
    assert not (folder / "out" / "cut.error.json").exists()
    assert {path.name for path in (folder / "out").glob("*.previous")} == {
        "h2.h5.previous",
        "nh2.h5.previous",
    }
    assert (folder / "out" / "nh2.h5.previous").read_bytes() == damaged


def test_collect_refuses_a_mixture(own_batch, call, monkeypatch):
    folder, _ = own_batch
    monkeypatch.chdir(folder)
    manifest = Path("m.toml").read_text()
    for target in (["t.csv"], ["out/t.h5"], ["m.toml", "--to", "extxyz", "--overwrite"]):
        recorded_failure(call("batch", "collect", "m.toml", "-o", *target), 3)
    assert not (folder / "t.csv").exists() and Path("m.toml").read_text() == manifest
    done = succeed(call("batch", "collect", "m.toml", "-o", "t.h5", "--allow-mixed"))
    # Items that never had a result are only counted.
    assert "5 of 9 items left out" in done.err and " is left out" not in done.err
    recorded_failure(call("batch", "collect", "m.toml", "-o", "t.h5"), 3)
    with h5py.File(folder / "t.h5") as handle:
        assert handle["batch/mp2_correlation_energy"].attrs["units"] == "hartree"
    for file in folder.glob("*.xyz"):
        file.unlink()
    recorded_failure(call("batch", "collect", "m.toml", "-o", "t.csv"), 3)


def test_a_series_starts_from_its_neighbour(folder, call):
    for number in range(3):
        (folder / f"w{number}.xyz").write_text(
            MOLECULES["h2o"].replace("0.7572", f"{0.75 + 0.01 * number}")
        )
    files = [f"w{number}.xyz" for number in range(3)]
    common = ("--basis", "6-31g", "--precision", "fp64", "--threads", "1", "--json")
    chained = call("batch", "run", *files, *common, "--output", "chained", "--scf-chain")
    assert succeed(chained).json["complete"] == 3
    found = [dfmp2.read(folder / "chained" / f"w{number}.h5") for number in range(3)]
    assert [Path(result.reference.start).name for result in found] == [
        "atomic densities",
        "w0.h5",
        "w1.h5",
    ]
    assert found[1].reference.cycles < found[0].reference.cycles
    cold = dfmp2.run(folder / "w2.xyz", "6-31g", precision="fp64", threads=1)
    assert abs(cold.mp2_total_energy - found[2].mp2_total_energy) < 1e-8


def test_terminated_and_resumed(folder, call):
    """SIGTERM gives 75 and only complete items; the same command computes the rest, and nothing
    twice."""
    (folder / "chain.xyz").write_text(chain(8))
    (folder / "m.toml").write_text(
        HEAD.replace("sto-3g", "cc-pvdz") + items("chain", "h2", "h2o", "nh2")
    )
    running = start(folder, "run", "m.toml", "--workers", "2")
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


@pytest.mark.slow
def test_a_stopped_item_goes_on_from_its_checkpoint(folder, call):
    """With a checkpoint at every safe point: SIGTERM leaves it, and the same command continues to
    the same bits."""
    (folder / "chain.xyz").write_text(chain(4))
    arguments = ("chain.xyz", "--basis", "cc-pvdz", "--precision", "fp64", "--threads", "1")
    running = start(
        folder, "run", *arguments, "--output", "out", env={"DFMP2_CHECKPOINT_SECONDS": "0"}
    )
    wait_until(lambda: (folder / "out" / "chain.h5.checkpoint").exists())
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 75, err
    left = {path.name for path in (folder / "out").iterdir()}
    assert left == {"batch.index.jsonl", "batch.toml", "chain.h5.checkpoint"}
    shutil.copytree(folder / "out", folder / "damaged")
    (folder / "damaged" / "chain.h5.checkpoint").write_bytes(
        b"dfmp2 checkpoint 2\nscratch -\nnonsense"
    )
    succeed(call("batch", "run", *arguments, "--output", "out"))
    done = succeed(call("batch", "run", *arguments, "--output", "damaged"))
    assert "damaged/chain.h5.checkpoint is damaged" in done.err
    resumed, whole = (dfmp2.read(folder / name / "chain.h5") for name in ("out", "damaged"))
    assert resumed.mp2_total_energy == whole.mp2_total_energy
    assert np.array_equal(resumed.pairs.opposite_spin, whole.pairs.opposite_spin)
    assert not (folder / "out" / "chain.h5.checkpoint").exists()


def test_a_second_signal_ends_it_at_once(folder):
    (folder / "chain.xyz").write_text(chain(8))
    running = start(folder, "run", "chain.xyz", "--basis", "cc-pvdz", "--output", "out", "--json")
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
def test_a_worker_that_dies_fails_its_item_and_the_batch_goes_on(folder):
    (folder / "chain.xyz").write_text(chain(8))
    (folder / "other.xyz").write_text(chain(8))
    (folder / "m.toml").write_text(
        HEAD.replace("sto-3g", "cc-pvdz") + items("chain", "other", "h2")
    )
    running = start(folder, "run", "m.toml", "--memory", "6GB", "--workers", "2")
    ends = {"chain": (signal.SIGKILL, 7), "other": (signal.SIGSEGV, 1)}
    workers = {name: worker_of(folder / "out" / f"{name}.h5") for name in ends}
    time.sleep(0.7)
    for name, (number, _) in ends.items():
        os.kill(workers[name], number)
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 9 and "1 of 3 items complete" in out, err
    for name, (number, code) in ends.items():
        error = json.loads((folder / "out" / f"{name}.error.json").read_text())
        assert error["code"] == code and number.name in error["message"]
        assert "it was allowed 3.00 GB" in error["message"]
        assert (
            "per worker would fit" in error["message"]
            and "with large arrays on disk" in error["message"]
        )
        assert ("less --memory" in error["message"]) == (number == signal.SIGSEGV)
    assert "Fatal Python error: Segmentation fault" in error["traceback"]
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
    running = start(folder, "run", *arguments, "--precision", "fp64")
    worker = worker_of(folder / "out" / "chain.h5")
    os.kill(worker, signal.SIGSTOP)
    wait_until((folder / "out" / "h2.h5").exists)
    before = results(folder / "out")
    running.kill()
    running.wait(timeout=PATIENCE)
    again = start(folder, "run", *arguments, "--precision", "fp64")
    line = next(line for line in again.stderr or () if "left to it" in line)
    assert f"chain: it is being computed by process {worker} on" in line
    os.kill(worker, signal.SIGCONT)
    _, err = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0 and "computed again" not in err, err
    wait_until(lambda: not Path(f"/proc/{worker}").exists())
    assert running.stderr is not None
    assert "resource_tracker" not in running.stderr.read()
    after = results(folder / "out")
    assert set(after) == {"chain.h5", "h2.h5"} and after["h2.h5"] == before["h2.h5"]
    assert not list((folder / "out").glob(".*")) and not list((folder / "tmp").iterdir())
    alone = dfmp2.run(folder / "chain.xyz", "cc-pvdz", precision="fp64", threads=1)
    assert (
        abs(alone.mp2_total_energy - dfmp2.read(folder / "out" / "chain.h5").mp2_total_energy)
        < 1e-10
    )


@pytest.mark.slow
def test_two_batches_at_once_share_the_items(folder, call):
    """No item is computed by both; a batch that finds an item being computed says so."""
    names = [f"w{number}" for number in range(6)]
    for number, name in enumerate(names):
        (folder / f"{name}.xyz").write_text(
            MOLECULES["h2o"].replace("0.7572", f"{0.75 + 0.01 * number}")
        )
    (folder / "m.toml").write_text(HEAD.replace("sto-3g", "cc-pvdz") + items(*names))
    both = [start(folder, "run", "m.toml") for _ in range(2)]
    said = [process.communicate(timeout=PATIENCE) for process in both]
    assert all(process.returncode in (0, 75) for process in both), said
    done = succeed(call("batch", "run", "m.toml"))
    assert "6 of 6 items complete (6 of them before)" in done.out
    computed = sum(line.count("E(MP2) =") for _, err in said for line in err.splitlines())
    others = sum(text in err for _, err in said for text in ("left to it", "finished it meanwhile"))
    assert computed >= 6 and others >= 1
    assert not list((folder / "out").glob(".*"))


@pytest.mark.parametrize(
    ("output", "given", "variables"),
    [
        ("h2o.xyz/out", [], {}),
        ("taken", [], {}),
        ("taken", ["--log", "taken/h2.h5"], {}),
        ("out", ["--scratch", "gone"], {}),
        ("out", [], {"DFMP2_SCRATCH": "gone"}),
        ("out", [], {"DFMP2_CHECKPOINT_SECONDS": "often"}),
    ],
)
def test_what_would_fail_every_item_is_refused_at_once(
    folder, call, monkeypatch, output, given, variables
):
    (folder / "taken" / "batch.index.jsonl").mkdir(parents=True)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = call("batch", "run", "h2.xyz", "--basis", "sto-3g", "--output", output, *given)
    recorded_failure(done, 7 if output == "h2o.xyz/out" else 3)
    assert not list(folder.rglob("*.error.json"))


def test_the_parent_imports_neither_torch_nor_dask(folder):
    """It only starts workers, reports and waits."""
    code = (
        "import sys; from dfmp2.cli.main import main; code = main(sys.argv[1:]); "
        "assert not {'torch', 'dask', 'distributed'} & set(sys.modules); sys.exit(code)"
    )
    arguments = ("batch", "run", "h2.xyz", "--basis", "sto-3g", "--output", "out", "--quiet")
    done = succeed(run_command(*arguments, cwd=folder, program=(sys.executable, "-c", code)))
    assert done.out.startswith("dfmp2 batch finished: 1 of 1 item complete") and done.err == ""


def test_plan_divides_the_work(batch, call, monkeypatch):
    folder, _ = batch
    monkeypatch.chdir(folder)
    value = succeed(call("batch", "plan", "m.toml", "--shards", "2", "--json")).json
    assert value["total"] == 9 and sorted({item["shard"] for item in value["items"]}) == [0, 1]
    by_name = {item["name"]: item for item in value["items"]}
    assert (
        by_name["h2o"]["nao"] == 7
        and by_name["no-basis"]["nao"] is None
        and by_name["missing"]["error"]
    )
    assert by_name["h2o"]["naux"] == dfmp2.plan("h2o.xyz", "sto-3g").to_dict()["sizes"]["naux"]
    assert sum(shard["items"] for shard in value["shards"]) == 9
    for number, shard in enumerate(value["shards"]):
        members = [item for item in value["items"] if item["shard"] == number]
        assert (shard["shard"], shard["items"]) == (f"{number}/2", len(members))
        assert shard["seconds"] == pytest.approx(sum(item["seconds"] for item in members))
    times = [item["seconds"] for item in value["items"]]
    assert value["seconds"] == pytest.approx(sum(times)) and by_name["h2o"]["seconds"] > 0
    ends = f"the longest shard {max(times):.1f} s, the shortest 0.0 s"  # of an item that is refused
    assert ends in succeed(call("batch", "plan", "m.toml", "--shards", "9")).out
