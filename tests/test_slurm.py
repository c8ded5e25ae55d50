"""Slurm scripts: checks by bash and shellcheck, behaviour on signals, and refusals.

scripts/test_slurm runs them on a real Slurm.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from dfmp2.cli.batch import parse_walltime
from dfmp2.errors import InputError
from dfmp2.execution import slurm as slurm_jobs
from dfmp2.execution.manifest import read_manifest
from tests.conftest import PATIENCE, Runner, succeed, wait_until
from tests.recorded import recorded_error, recorded_failure
from tests.test_batch import HEAD, chain, items, start

ODD = "it's a folder of 100% $HOME ${HOME} `id` #1; rm"  # allowed as the name of a script's folder
HOSTILE = f'{ODD} "x"'  # allowed everywhere else
SHELLCHECK = shutil.which("shellcheck") or shutil.which(
    "shellcheck", path=str(Path(sys.executable).parent)
)
SUBMIT = ("batch", "submit", "m.toml", "--slurm", "--shards")
JOBS = ("array", "collect")
FULL = {
    "--partition": "long",
    "--account": "chem",
    "--qos": "high",
    "--constraint": "[a|b]&c",
    "--gres": "gpu:a100:2",
    "--parallel": "2",
    "--restarts": "0",
    "--setup": 'export A="b c"',
    "--cpus-per-task": "8",
    "--memory": "2GB",
    "--time": "25h",
    "--node-scratch": f"/scratch/{HOSTILE}",
    "--collect": f"/t/{HOSTILE}.csv",
}
KINDS = {  # backend, options
    "plain": ("cpu", {}),
    "full": ("cuda", FULL),
    "nki": ("nki", {"--cache": f"/c/{HOSTILE}", "--collect": "/t.csv"}),
    "nki-xla": ("nki-xla", {"--cache": "/c"}),
    "whole node": ("nki", {"--gres": "none", "--cache": "/c"}),
}


@pytest.fixture
def manifest(folder: Path) -> Path:
    """Four molecules, results in a folder with an awkward name."""
    (folder / "m.toml").write_text(
        HEAD.replace('"out"', f"'''{ODD}'''") + items("h2", "h2o", "nh2", "o2")
    )
    return folder / "m.toml"


def rendered(call: Runner, manifest: Path, kind: str = "plain", *more: str) -> dict[str, str]:
    """Texts of the scripts by name: four shards of two workers."""
    backend, given = KINDS[kind]
    text = manifest.read_text()
    manifest.write_text(f'backend = "{backend}"\n{text[text.index("basis") :]}')
    options = [word for pair in given.items() for word in pair]
    value = succeed(call(*SUBMIT, "4", "--workers", "2", "--json", *options, *more)).json
    return {Path(name).name: text for name, text in value["files"].items()}


def directives(text: str) -> list[str]:
    """Options in #SBATCH lines; double quotes mean the same to Slurm and to a shell without
    expansion."""
    lines = [
        line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")
    ]
    return [word for line in lines for word in shlex.split(line, comments=True)]


# What is rendered


@pytest.mark.parametrize("kind", KINDS)
def test_bash_and_shellcheck_accept_every_script(
    kind: str, call: Runner, manifest: Path, tmp_path: Path
) -> None:
    """SC2016 asks whether the $ of a name was meant as a variable: it was not."""
    for name, text in rendered(call, manifest, kind, "--scf-chain").items():
        (tmp_path / name).write_text(text)
        for checker in (
            ["bash", "-n"],
            *([[SHELLCHECK, "--exclude=SC2016"]] if SHELLCHECK else []),
        ):
            done = subprocess.run([*checker, tmp_path / name], capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), (
                f"{checker[0]} {name}: {done.stdout}{done.stderr}\n{text}"
            )


def test_what_the_array_asks_for(call: Runner, manifest: Path) -> None:
    assert set(directives(rendered(call, manifest, "full", "--write", ODD)["array.sbatch"])) == {
        "--job-name=dfmp2-it_s_a_folder_of_100_HOME_HOME_id_1_rm",
        "--array=0-3%2",
        "--signal=B:TERM@120",
        "--partition=long",
        "--account=chem",
        "--qos=high",
        "--constraint=[a|b]&c",
        "--gres=gpu:a100:2",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=8",
        "--requeue",
        "--open-mode=append",
        "--mem=1908M",  # Slurm's M is 2^20 bytes: 2e9 / 1048576 = 1907.3
        "--time=1500:00",
        f"--chdir={manifest.parent / ODD}",
        "--output=logs/%A_%a.log",
    }


def test_the_warm_up_compiles_before_the_array_and_the_table_comes_last(
    call: Runner, manifest: Path
) -> None:
    """The lane nki compiles without a device, nki-xla with one."""
    files = rendered(call, manifest, "nki")
    assert list(files) == ["warm-up.sbatch", "array.sbatch", "collect.sbatch", "submit.sh"]
    warm_up, array = files["warm-up.sbatch"], files["array.sbatch"]
    assert f"dfmp2 batch run {manifest} --output " in warm_up and " --warm-up)\n" in warm_up
    assert f"export DFMP2_NEFF_CACHE={shlex.quote(f'/c/{HOSTILE}')}\n" in warm_up
    assert "--gres=gpu:1" in directives(array) and "--gres=gpu:1" not in directives(warm_up)
    xla = rendered(call, manifest, "nki-xla")
    assert "--gres=gpu:1" in directives(xla["warm-up.sbatch"]) and "collect.sbatch" not in xla
    whole = directives(rendered(call, manifest, "whole node")["array.sbatch"])
    assert "--exclusive" in whole and not any(option.startswith("--gres") for option in whole)


GIVEN = {
    **dict.fromkeys(("partition", "account", "qos", "constraint", "gres", "cache", "seconds")),
    **{"signal_before": 120, "workers": 3, "threads": 2, "cpus_per_task": None},
}


@pytest.mark.parametrize(
    ("backend", "given", "gres", "cpus"),
    [
        ("cpu", {}, None, 6),
        ("cpu", {"gres": "license:1", "cpus_per_task": 9}, "license:1", 9),
        ("nki", {}, "gpu:2", 6),  # chips have two cores
        ("nki-xla", {"workers": 4}, "gpu:2", 8),
        ("cuda", {}, "gpu:3", 6),
        ("cuda-tf32", {"workers": 1}, "gpu:1", 2),
        ("cuda", {"gres": "gpu:a100:1"}, "gpu:a100:1", 6),
    ],
)
def test_devices_and_cores_of_a_task(
    folder: Path, backend: str, given: dict[str, object], gres: str | None, cpus: int
) -> None:
    """As many as its workers need, unless others are asked for."""
    (folder / "m.toml").write_text(f'{HEAD}backend = "{backend}"\n{items("h2")}')
    asked = {"source": "m.toml", "root": None, "collect": None, "scf_chain": False}
    jobs = slurm_jobs.batch_jobs(read_manifest(folder / "m.toml"), GIVEN | asked)
    assert jobs.backend == backend
    found = slurm_jobs._values(jobs, Path("/w"), GIVEN | given)
    assert (found["gres"], found["cpus"], found["places"]) == (gres, cpus, {})
    assert bool(found["variables"]) == backend.startswith("nki")


@pytest.mark.parametrize(("seconds", "enough"), [(None, True), (181, True), (180, False)])
def test_a_task_must_have_time_to_stop(seconds: int | None, enough: bool) -> None:
    """It is told two minutes before its end, and Slurm may do so a minute early."""
    with nullcontext() if enough else recorded_error(InputError):
        slurm_jobs._require_time_to_stop(seconds, 120)


def test_pair_energies_of_a_prepared_file(call: Runner, folder: Path) -> None:
    """Every task computes a shard; a final job with the same options combines them into one
    result."""
    succeed(call("prepare", "h2o.xyz", "--basis", "sto-3g"))
    told = ("batch", "submit", "h2o.prepared.h5", "--shards", "3", "--json")
    files = succeed(call(*told, "--slurm", "--threads", "4", "--backend", "cpu")).json["files"]
    assert set(files) == {
        f"{folder}/h2o.dfmp2.slurm/{name}"
        for name in ("array.sbatch", "collect.sbatch", "submit.sh")
    }
    energy = (
        f"dfmp2 energy --from {folder}/h2o.prepared.h5 --output {folder}/h2o.dfmp2.h5 --backend cpu"
    )
    array = files[f"{folder}/h2o.dfmp2.slurm/array.sbatch"]
    assert f"{energy})\n" in array and '--shard "$SLURM_ARRAY_TASK_ID/3"' in array
    assert {"--array=0-2", "--cpus-per-task=4"} <= set(directives(array))
    collect = files[f"{folder}/h2o.dfmp2.slurm/collect.sbatch"]
    # It may recompute all pairs
    assert f"{energy} --collect)\n" in collect and "--cpus-per-task=4" in directives(collect)
    files = succeed(call(*told, "--slurm", "--backend", "cuda")).json["files"]
    assert all(
        "--gres=gpu:1" in directives(files[f"{folder}/h2o.dfmp2.slurm/{job}.sbatch"])
        for job in JOBS
    )
    (folder / "h2o.dfmp2.h5").touch()
    assert call(*told, "--slurm").code == 3


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        (5400, ("90min", "1.5h")),
        (172800, ("2 d",)),
        (45, ("45s",)),
        (7384, ("02:03:04",)),
        (129600, ("1-12:00:00",)),
        (None, ("", "90", "1:30", "2 weeks", "0s", "-1h", "1e3s", "9999d", "1h\nx", "00:90:00")),
    ],
)
def test_time_limits(seconds: int | None, texts: tuple[str, ...]) -> None:
    for text in texts:
        with nullcontext() if seconds else pytest.raises(InputError):
            assert parse_walltime(text) == seconds


# Scripts in action, with stand-ins for Slurm and dfmp2


DFMP2 = """#!/bin/bash
printf '%s\\n' "$@" >"$SEEN/arguments"
env >"$SEEN/environment"
trap 'sleep 0.2; echo saved >>"$SEEN/scontrol"; kill -TERM $PPID; exit 75' TERM
touch "$SEEN/started"
for _ in {1..3000}; do [[ -e $SEEN/go ]] && exit "$(cat "$SEEN/go")"; sleep 0.1; done
"""


class Node:
    """A node on which a rendered array script runs."""

    def __init__(self, script: str, folder: Path) -> None:
        self.folder, self.seen = folder / HOSTILE, folder / "seen"
        (folder / "bin").mkdir()
        self.seen.mkdir()
        (self.folder / "scratch").mkdir(parents=True)
        for name, text in {
            "python": DFMP2,
            "squeue": '#!/bin/bash\necho "$STATE"\n',
            "scontrol": '#!/bin/bash\necho "$*" >>"$SEEN/scontrol"\n',
        }.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self.script = self.folder / "array.sbatch"
        self.script.write_text(
            script.replace(f"\npython={sys.executable}\n", f"\npython={folder}/bin/python\n")
        )
        self.environment = {
            "PATH": os.environ["PATH"],
            "SEEN": str(self.seen),
            "STATE": "RUNNING",
            "TMPDIR": str(self.folder / "scratch"),
            "OMP_NUM_THREADS": "64",
            "OMP_PROC_BIND": "true",
            "SLURM_JOB_ID": "9",
            "SLURM_ARRAY_JOB_ID": "7",
            "SLURM_ARRAY_TASK_ID": "2",
            "SLURM_CPUS_PER_TASK": "6",
        }

    def launch(self, *, wait: bool = True, **environment: str) -> subprocess.Popen[str]:
        """Start the script and wait until dfmp2 runs."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**self.environment, **environment}
        running = subprocess.Popen(
            ["bash", self.script], env=environment, start_new_session=True, **pipes
        )
        if wait:
            wait_until((self.seen / "started").exists)
        return running

    def finish(self, running: subprocess.Popen[str]) -> tuple[int, str]:
        """Exit code and output."""
        _, err = running.communicate(timeout=PATIENCE)
        assert not list((self.folder / "scratch").iterdir())
        return running.returncode, err

    def read(self, name: str) -> str:
        """The record written by a stand-in."""
        path = self.seen / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def node(call: Runner, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A node for the array of a plain batch."""
    script = rendered(
        call, manifest, "plain", "--scf-chain", "--root", ".", "--output", HOSTILE, "--write", "w"
    )
    return Node(script["array.sbatch"], tmp_path_factory.mktemp("node"))


@pytest.mark.parametrize("code", [0, 9, 75])
def test_the_exit_code_is_that_of_dfmp2(node: Node, code: int) -> None:
    """75 without a signal means that another process has an item; the task is requeued as well."""
    (node.seen / "go").write_text(str(code))
    assert node.finish(node.launch())[0] == code
    assert node.read("scontrol") == ("requeue 7_2\n" if code == 75 else "")


def test_what_dfmp2_is_called_with(node: Node, manifest: Path) -> None:
    (node.seen / "go").write_text("0")
    code, said = node.finish(node.launch(SLURM_MEM_PER_NODE="2000"))
    assert code == 0, said
    assert node.read("arguments").splitlines() == [
        "-P",
        "-m",
        "dfmp2",
        "batch",
        "run",
        str(manifest),
        "--root",
        str(manifest.parent),
        "--output",
        str(manifest.parent / HOSTILE),
        "--workers",
        "2",
        "--scf-chain",
        "--shard",
        "2/4",
        "--threads",
        "3",
        "--memory",
        "1800MiB",
    ]
    environment = dict(
        line.split("=", 1) for line in node.read("environment").splitlines() if "=" in line
    )
    assert not {"OMP_NUM_THREADS", "OMP_PROC_BIND"} & environment.keys()
    assert environment["PATH"].startswith(f"{node.folder.parent}/bin:")
    scratch = Path(environment["DFMP2_SCRATCH"])
    assert scratch.parent == node.folder / "scratch" and environment["TMPDIR"] == str(scratch)


@pytest.mark.parametrize("whole_job", [False, True])
def test_a_signal_is_passed_on_and_the_task_requeued(node: Node, whole_job: bool) -> None:
    """--signal=B: reaches only the script, preemption all its processes."""
    running = node.launch()
    (os.killpg if whole_job else os.kill)(running.pid, signal.SIGTERM)
    code, said = node.finish(running)
    assert (code, node.read("scontrol")) == (75, "saved\nrequeue 7_2\n"), said
    assert "interrupted: requeued" in said


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        *(
            ({"STATE": state}, f"Slurm says {state}: not requeued")
            for state in ("COMPLETING", "CANCELLED")
        ),
        ({"STATE": ""}, "Slurm says nothing: not requeued"),
        ({"SLURM_RESTART_COUNT": "20"}, "restarted 20 times before: not requeued"),
    ],
)
def test_it_does_not_come_back_when_it_should_not(
    node: Node, environment: dict[str, str], text: str
) -> None:
    running = node.launch(**environment)
    running.terminate()
    code, said = node.finish(running)
    assert (code, node.read("scontrol")) == (75, "saved\n") and text in said


def test_no_scratch_folder(node: Node) -> None:
    code, said = node.finish(node.launch(wait=False, TMPDIR="/no such folder"))
    assert code == 7 and "no such folder" in said and not node.read("arguments")


def test_cores_of_the_allocated_chips(call: Runner, manifest: Path, tmp_path: Path) -> None:
    node = Node(rendered(call, manifest, "nki")["array.sbatch"], tmp_path)
    (node.seen / "go").write_text("0")
    assert node.finish(node.launch(SLURM_JOB_GPUS="0,2-3"))[0] == 0
    assert "NEURON_RT_VISIBLE_CORES=0-1,4-7\n" in node.read("environment")
    assert f"DFMP2_NEFF_CACHE=/c/{HOSTILE}\n" in node.read("environment")
    code, said = node.finish(node.launch(wait=False))
    assert code == 6 and "no Trainium chip" in said


def test_two_sigterm_at_once_are_one_request(folder: Path) -> None:
    """A scheduler signals script and children, the script passes it on: dfmp2 still saves and ends
    with 75."""
    (folder / "chain.xyz").write_text(chain(5))
    running = start(folder, "run", "chain.xyz", "--basis", "cc-pvdz", "--output", "out")
    wait_until(lambda: list((folder / "out").glob(".chain.lock")))
    running.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 75, err


# The command


SBATCH = """#!/bin/bash
printf '%s\\n' "$@" END >>"$SEEN"
[[ ${@: -1} != *"$REFUSED" ]] || { echo "sbatch: error: invalid partition specified: nowhere" >&2; exit 1; }
echo "$(grep -c END "$SEEN");cluster"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a Slurm that accepts every job on PATH; return the file with its arguments."""
    folder = tmp_path / "slurm bin"
    folder.mkdir()
    for name, text in {
        "sbatch": SBATCH,
        "scancel": '#!/bin/bash\necho "scancel $*" >>"$SEEN"\n',
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("REFUSED", "nothing")
    return tmp_path / "seen"


@pytest.mark.parametrize(
    ("file", "to"),
    [("t.csv", ""), ("t.extxyz", "extxyz"), ("t.parquet", "parquet"), ("t.db", "ase.db")],
)
def test_the_last_job_writes_what_the_ending_says(
    call: Runner, manifest: Path, file: str, to: str
) -> None:
    """Its command is valid for `batch collect`, which would refuse different methods, and to
    replace a file of the batch."""
    files = succeed(call(*SUBMIT, "3", "--collect", file, "--json")).json["files"]
    text = next(text for path, text in files.items() if path.endswith("collect.sbatch"))
    assert f"-o {manifest.parent / file} --overwrite" in text
    assert (f"--to {to})" in text) == bool(to)
    text = manifest.read_text()
    for wrong in ('method = "scs-mp2"', f'point-charges = "{file}"'):
        manifest.write_text(f"{text}{wrong}\n")
        recorded_failure(call(*SUBMIT, "3", "--collect", file), 3)


def test_shown_and_then_submitted(call: Runner, manifest: Path, slurm: Path) -> None:
    arguments = (*SUBMIT, "3", "--collect", f"{ODD}/t.csv")
    shown = succeed(call(*arguments)).out
    assert f"\npython={sys.executable}\n" in shown and "Nothing was submitted" in shown
    assert not slurm.exists() and not (manifest.parent / ODD).exists()
    value = succeed(call(*arguments, "--submit", "--json")).json
    assert all(text in shown for text in value["files"].values())
    target = manifest.parent / ODD / "slurm"
    assert value["jobs"] == {"array": "1", "collect": "2"}
    assert slurm.read_text().splitlines() == [
        "--parsable",
        "array.sbatch",
        "END",
        "--parsable",
        "--dependency=afterany:1",
        "--kill-on-invalid-dep=yes",
        "collect.sbatch",
        "END",
    ]
    assert {path.name for path in target.iterdir()} == {
        "array.sbatch",
        "collect.sbatch",
        "submit.sh",
        "logs",
    }
    assert value["files"] == {
        str(path): path.read_text() for path in target.iterdir() if path.is_file()
    }
    slurm.unlink()
    done = subprocess.run(
        ["bash", target / "submit.sh"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "submitted: array 1, collect 2\n"


def test_an_array_waits_for_its_warm_up(
    call: Runner, manifest: Path, slurm: Path, monkeypatch
) -> None:
    monkeypatch.setenv("DFMP2_NKI_PYTHON", "/compile me/python")
    manifest.write_text('backend = "nki"\n' + manifest.read_text())
    value = succeed(call(*SUBMIT, "2", "--cache", "c", "--submit", "--json")).json
    assert value["jobs"] == {"warm-up": "1", "array": "2"}
    assert "--dependency=afterok:1\n--kill-on-invalid-dep=yes\narray.sbatch" in slurm.read_text()
    texts = {Path(name).name: text for name, text in value["files"].items()}
    for line in (
        f"export DFMP2_NEFF_CACHE={manifest.parent}/c\n",
        "export DFMP2_NKI_PYTHON='/compile me/python'\n",
    ):
        assert line in texts["warm-up.sbatch"] and line in texts["array.sbatch"]


def test_what_was_submitted_is_taken_back_when_slurm_refuses_the_rest(
    call, manifest, slurm, monkeypatch
) -> None:
    for refused, told in (
        ("array.sbatch", "nowhere"),
        ("collect.sbatch", "nowhere; job 1 was cancelled"),
    ):
        monkeypatch.setenv("REFUSED", refused)
        slurm.unlink(missing_ok=True)
        done = call(*SUBMIT, "2", "--collect", "t.csv", "--submit")
        assert (done.code, done.out) == (3, "") and done.message.endswith(
            f"invalid partition specified: {told}"
        )
    assert slurm.read_text().endswith("scancel 1\n")


def test_without_slurm(
    call: Runner, manifest: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/no such folder")
    done = call(*SUBMIT, "2", "--submit")
    assert done.code == 6
    assert not slurm.exists() and not (manifest.parent / ODD).exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--account", "a\n#SBATCH --uid=0"),
        ("--write", "a\nb"),
        ("--write", 'a"b'),
        ("--time", "90"),
        ("--collect", "no folder/t.csv"),
        ("--collect", f"{ODD}/t.h5"),
    ],
)
def test_nothing_is_sent_with_a_wrong_option(
    call: Runner, manifest: Path, slurm: Path, option: str, value: str
) -> None:
    """The other options are in the table of wrong inputs."""
    done = call(*SUBMIT, "2", option, value, "--submit")
    assert (done.code, done.out) == (3, "") and "Traceback" not in done.err
    assert not slurm.exists() and not (manifest.parent / ODD).exists()
