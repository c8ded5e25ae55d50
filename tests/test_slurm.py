"""Slurm scripts: what bash and shellcheck say of them, what they do when signals come, and what is refused.

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
from pathlib import Path

import pytest

from dfmp2.errors import InputError
from dfmp2.execution.arrays import Request, parse_walltime
from dfmp2.execution.manifest import make_batch
from dfmp2.execution.slurm import Script, directive, prepare, slurm_time, submission
from tests.conftest import succeed, write_molecules
from tests.test_batch import HEAD, chain, items, start, wait_for

HOSTILE = 'it\'s a "folder" of 100% $HOME ${HOME} `id` #1; rm'
SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
REQUEST = {"manifest": f"/m/{HOSTILE}.toml", "root": None, "output": None, "shards": 4, "workers": 2, "threads": 1}
GIVEN = {
    **dict.fromkeys(("partition", "account", "qos", "constraint", "cpus_per_task", "gres", "parallel")),
    **dict.fromkeys(("node_scratch", "cache", "collect")),
    **{"restarts": 20, "signal_before": 120, "setup": ()},
}
FULL = {
    **{"partition": "long", "account": "chem", "qos": "high", "constraint": "[a|b]&c", "gres": "gpu:a100:2"},
    **{"parallel": 2, "setup": ("module load python", 'export A="b c"'), "cpus_per_task": 8},
    **{"node_scratch": f"/scratch/{HOSTILE}", "collect": f"/t/{HOSTILE}.csv"},
}
KINDS = {  # backend, options
    "plain": ("cpu", {}),
    "full": ("cuda", FULL),
    "nki": ("nki", {"cache": f"/c/{HOSTILE}", "collect": "/t.csv"}),
    "nki-xla": ("nki-xla", {"cache": "/c"}),
    "whole node": ("nki", {"gres": "none", "cache": "/c"}),
}


def jobs(folder: Path, kind: str = "plain", where: Path | None = None, **changed) -> list[Script]:
    """The jobs of water and NH2 in cc-pVDZ: four shards of two workers."""
    backend, given = KINDS[kind]
    files = [str(write_molecules(folder) / f"{name}.xyz") for name in ("h2o", "nh2")]
    batch = make_batch(files, {"basis": "cc-pvdz", "backend": backend}, folder / "out")
    request = Request(**{**REQUEST, "memory": None, "seconds": None, "chained": False, **changed})
    return prepare(batch, request, where or folder, {**GIVEN, **given})


def directives(text: str) -> list[str]:
    """Options in #SBATCH lines; double quotes mean the same to Slurm and to a shell that expands nothing."""
    return [
        word
        for line in text.splitlines()
        if line.startswith("#SBATCH ")
        for word in shlex.split(line.removeprefix("#SBATCH "), comments=True)
    ]


# What is rendered


@pytest.mark.parametrize("kind", KINDS)
def test_bash_and_shellcheck_accept_every_script(kind, tmp_path):
    """SC2016 asks whether the $ of a name was meant as a variable: it was not."""
    made = jobs(tmp_path, kind, tmp_path / HOSTILE, memory=2 * 10**9, seconds=7200, chained=True)
    for name, text in [*((job.name, job.text) for job in made), ("submit", submission(made))]:
        (tmp_path / name).write_text(text)
        for checker in (["bash", "-n"], *([[SHELLCHECK, "--exclude=SC2016"]] if SHELLCHECK else [])):
            done = subprocess.run([*checker, tmp_path / name], capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), f"{checker[0]} {name}: {done.stdout}{done.stderr}\n{text}"


def test_what_the_array_asks_for(tmp_path):
    text = jobs(tmp_path, "full", Path("/f"), memory=2 * 10**9, seconds=90061)[0].text
    assert set(directives(text)) == {
        "--job-name=dfmp2-out",
        "--array=0-3%2",
        "--partition=long",
        "--account=chem",
        "--qos=high",
        "--constraint=[a|b]&c",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=8",
        "--mem=1908M",  # Slurm's M is 2^20 bytes: 2e9 / 1048576 = 1907.3
        "--time=1-01:01:01",
        "--gres=gpu:a100:2",
        "--signal=B:TERM@120",
        "--requeue",
        "--open-mode=append",
        "--chdir=/f",
        "--output=/f/logs/%A_%a.log",
    }


def test_a_folder_of_any_name_survives_slurm(tmp_path):
    folder = Path("/f") / HOSTILE
    found = directives(jobs(tmp_path, where=folder)[0].text)
    assert f"--chdir={folder}" in found
    assert f"--output={str(folder).replace('%', '%%')}/logs/%A_%a.log" in found
    assert directive("output", 'a "b"') == r'#SBATCH --output="a \"b\""'  # an escaped space would end it there


def test_the_warm_up_compiles_before_the_array_and_the_table_comes_last(tmp_path):
    """Water and NH2 in cc-pVDZ: 24 functions, 5 (and 4) occupied, 84 fitting functions (inputs/README.md)."""
    warm_up, array, collect = jobs(tmp_path, "nki")
    assert [job.after for job in (warm_up, array, collect)] == ["", "afterok", "afterany"]
    assert array.command("7")[1:4] == ["--parsable", "--dependency=afterok:7", "--kill-on-invalid-dep=yes"]
    lines = [line for line in warm_up.text.splitlines() if line.startswith("run --")]
    assert lines == ["run --shape 5,19,84", "run --shape 5,19,84 --beta 4,20"]
    assert '"$python" -P -m dfmp2 kernels warmup --lane nki "$@"' in warm_up.text
    assert "--gres=gpu:1" not in directives(warm_up.text)  # compiling needs no device on this lane
    assert "--gres=gpu:1" in directives(array.text)
    assert "--gres=gpu:1" in directives(jobs(tmp_path, "nki-xla")[0].text)
    assert "--exclusive" in directives(jobs(tmp_path, "whole node")[1].text)


@pytest.mark.parametrize(
    ("text", "seconds", "slurm"),
    [
        ("90min", 5400, "0-01:30:00"),
        ("1.5h", 5400, "0-01:30:00"),
        ("2 d", 172800, "2-00:00:00"),
        ("45s", 45, "0-00:00:45"),
        ("02:03:04", 7384, "0-02:03:04"),
        ("1-12:00:00", 129600, "1-12:00:00"),
    ],
)
def test_time_limits(text, seconds, slurm):
    assert (parse_walltime(text), slurm_time(seconds)) == (seconds, slurm)


@pytest.mark.parametrize("text", ["", "90", "1:30", "2 weeks", "0s", "-1h", "1e3s", "9999d", "1h\nx", "00:90:00"])
def test_other_times_are_refused(text):
    with pytest.raises(InputError, match="--time"):
        parse_walltime(text)


# What a script does, with stand-ins for Slurm and dfmp2


DFMP2 = """#!/bin/bash
printf '%s\\n' "$@" >"$SEEN/arguments"
env >"$SEEN/environment"
trap 'echo term >>"$SEEN/signals"; sleep 0.2; exit 75' TERM
touch "$SEEN/started"
for _ in {1..100}; do [[ -e $SEEN/go ]] && exit "$(cat "$SEEN/go")"; sleep 0.1; done
"""


class Node:
    """A node on which a rendered array script runs."""

    def __init__(self, folder: Path, kind: str = "plain", **changed) -> None:
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
        (array,) = [job for job in jobs(folder, kind, self.folder, **changed) if job.name == "array"]
        self.script = self.folder / "array.sbatch"
        self.script.write_text(array.text.replace(f"\npython={sys.executable}\n", f"\npython={folder}/bin/python\n"))
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

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """The script, once dfmp2 runs."""
        running = self.launch(**environment)
        wait_for((self.seen / "started").exists)
        return running

    def launch(self, **environment: str) -> subprocess.Popen[str]:
        """The script."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**self.environment, **environment}
        return subprocess.Popen(["bash", self.script], env=environment, start_new_session=True, **pipes)

    def finish(self, running: subprocess.Popen[str]) -> tuple[int, str]:
        """Exit code and what it said."""
        _, err = running.communicate(timeout=30)
        return running.returncode, err

    def read(self, name: str) -> str:
        """What a stand-in saw."""
        path = self.seen / name
        return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("code", [0, 9, 75])
def test_the_exit_code_is_that_of_dfmp2(tmp_path, code):
    """75 without a signal: another process has an item; the task comes again as well."""
    node = Node(tmp_path)
    (node.seen / "go").write_text(str(code))
    assert node.finish(node.start())[0] == code
    assert node.read("scontrol") == ("requeue 7_2\n" if code == 75 else "")
    assert not list((node.folder / "scratch").iterdir())


def test_what_dfmp2_is_called_with(tmp_path):
    node = Node(tmp_path, chained=True, root="/r s", output="/o")
    (node.seen / "go").write_text("0")
    code, said = node.finish(node.start(SLURM_MEM_PER_NODE="2000"))
    assert code == 0, said
    assert node.read("arguments").splitlines() == [
        *("-P", "-m", "dfmp2", "batch", "run", f"/m/{HOSTILE}.toml", "--root", "/r s", "--output", "/o", "--scf-chain"),
        *("--shard", "2/4", "--workers", "2", "--threads", "3", "--memory", "1800MiB"),
    ]
    environment = dict(line.split("=", 1) for line in node.read("environment").splitlines() if "=" in line)
    assert not {"OMP_NUM_THREADS", "OMP_PROC_BIND"} & environment.keys()
    assert environment["PATH"].startswith(f"{tmp_path}/bin:")
    scratch = Path(environment["DFMP2_SCRATCH"])
    assert scratch.parent == node.folder / "scratch" and environment["TMPDIR"] == str(scratch)


@pytest.mark.parametrize("whole_job", [False, True])
def test_a_signal_is_passed_on_and_the_task_requeued(tmp_path, whole_job):
    """--signal=B: reaches the script alone, preemption all its processes."""
    node = Node(tmp_path)
    running = node.start()
    (os.killpg if whole_job else os.kill)(running.pid, signal.SIGTERM)
    code, said = node.finish(running)
    assert (code, node.read("scontrol")) == (75, "requeue 7_2\n"), said
    assert "interrupted: requeued" in said and "term" in node.read("signals")
    assert not list((node.folder / "scratch").iterdir())


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"STATE": "COMPLETING"}, "Slurm says COMPLETING: not requeued"),
        ({"STATE": "CANCELLED"}, "Slurm says CANCELLED: not requeued"),
        ({"STATE": ""}, "Slurm says nothing: not requeued"),
        ({"SLURM_RESTART_COUNT": "20"}, "restarted 20 times before: not requeued"),
    ],
)
def test_it_does_not_come_back_when_it_should_not(tmp_path, environment, text):
    node = Node(tmp_path)
    running = node.start(**environment)
    running.terminate()
    code, said = node.finish(running)
    assert (code, node.read("scontrol")) == (75, "") and text in said


@pytest.mark.parametrize(
    ("environment", "code", "text"),
    [
        ({"SLURM_ARRAY_TASK_ID": ""}, 3, "no task of a Slurm array"),
        ({"SLURM_ARRAY_TASK_ID": "4"}, 3, "cut into 4 shards, so tasks are 0 to 3"),
        ({"TMPDIR": "/no such folder"}, 7, "no such folder"),
    ],
)
def test_a_script_in_the_wrong_place(tmp_path, environment, code, text):
    node = Node(tmp_path)
    found, said = node.finish(node.launch(**environment))
    assert found == code and text in said and not (node.seen / "started").exists()


def test_cores_of_the_allocated_chips(tmp_path):
    node = Node(tmp_path, "nki")
    (node.seen / "go").write_text("0")
    assert node.finish(node.start(SLURM_JOB_GPUS="0,2-3"))[0] == 0
    assert "NEURON_RT_VISIBLE_CORES=0-1,4-5,6-7\n" in node.read("environment")
    assert f"DFMP2_NEFF_CACHE=/c/{HOSTILE}\n" in node.read("environment")
    code, said = node.finish(node.launch())
    assert code == 6 and "no Trainium chip" in said


def test_two_sigterm_at_once_are_one_request(folder):
    """A scheduler signals script and children, the script passes it on: dfmp2 still saves and ends with 75."""
    (folder / "chain.xyz").write_text(chain(5))
    running = start(folder, "run", "chain.xyz", "--basis", "cc-pvdz", "--output", "out")
    wait_for(lambda: list((folder / "out").glob(".chain.lock")))
    running.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 75, err


# The command


SBATCH = """#!/bin/bash
printf '%s\\n' "$@" END >>"$SEEN"
[[ ${@: -1} != *"$REFUSED" ]] || { echo "sbatch: error: invalid partition specified: nowhere" >&2; exit 1; }
echo "$(grep -c END "$SEEN");cluster"
"""
SCONTROL = "#!/bin/bash\necho 'MaxArraySize            = 3'\n"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A PATH with a Slurm that takes every job; the file with what it was told."""
    folder = tmp_path / "slurm bin"
    folder.mkdir()
    for name, text in {
        "sbatch": SBATCH,
        "scontrol": SCONTROL,
        "squeue": "#!/bin/bash\n",
        "scancel": '#!/bin/bash\necho "scancel $*" >>"$SEEN"\n',
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    seen = tmp_path / "seen"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(seen))
    monkeypatch.setenv("REFUSED", "nothing")
    return seen


@pytest.fixture
def manifest(folder):
    """Four molecules in a folder with an awkward name."""
    (folder / "m.toml").write_text(HEAD.replace('"out"', f"'''{HOSTILE}'''") + items("h2", "h2o", "nh2", "o2"))
    return folder / "m.toml"


def test_nothing_happens_without_submit(call, manifest, slurm):
    done = succeed(call("batch", "submit", "m.toml", "--slurm", "--shards", "2", "--threads", "2"))
    assert "4 items in 2 shards, 1 x 2 cores each" in done.err
    assert "#SBATCH --array=0-1\n" in done.out and "#SBATCH --cpus-per-task=2\n" in done.out
    assert f"\npython={sys.executable}\n" in done.out and f'"$python" -P -m dfmp2 batch run {manifest}' in done.out
    assert "array=$(sbatch --parsable" in done.out and "Nothing was submitted" in done.out
    assert not slurm.exists() and not (manifest.parent / HOSTILE).exists()


def test_written_and_submitted(call, manifest, slurm):
    value = succeed(
        call("batch", "submit", "m.toml", "--slurm", "--shards", "3", "--collect", "t.csv", "--submit", "--json")
    ).json
    target = manifest.parent / HOSTILE / "slurm"
    assert value["jobs"] == {"array": "1", "collect": "2"}
    assert slurm.read_text().splitlines() == [
        *("--parsable", str(target / "array.sbatch"), "END"),
        *("--parsable", "--dependency=afterany:1", "--kill-on-invalid-dep=yes", str(target / "collect.sbatch"), "END"),
    ]
    assert {path.name for path in target.iterdir()} == {"array.sbatch", "collect.sbatch", "submit.sh", "logs"}
    assert value["files"] == {str(path): path.read_text() for path in target.iterdir() if path.is_file()}
    slurm.unlink()
    done = subprocess.run(["bash", target / "submit.sh"], capture_output=True, text=True, check=True)
    assert done.stdout == "submitted: array 1, collect 2\n"
    assert "--dependency=afterany:1" in slurm.read_text()


def test_a_batch_on_trainium_is_warmed_up_with_its_cache(call, manifest, slurm, monkeypatch):
    manifest.write_text('basis = "cc-pvdz"\nbackend = "nki"\noutput = "out"\n' + items("h2o", "nh2"))
    monkeypatch.setenv("DFMP2_NKI_PYTHON", "/compile me/python")
    value = succeed(
        call("batch", "submit", "m.toml", "--slurm", "--shards", "2", "--workers", "2", "--cache", "c", "--json")
    ).json
    texts = {Path(name).name: text for name, text in value["files"].items()}
    for line in (f"export DFMP2_NEFF_CACHE={manifest.parent}/c\n", "export DFMP2_NKI_PYTHON='/compile me/python'\n"):
        assert line in texts["warm-up.sbatch"] and line in texts["array.sbatch"]
    assert 'array=$(sbatch --parsable --dependency=afterok:"${warm_up%%;*}" --kill-on' in texts["submit.sh"]


def test_what_was_submitted_is_taken_back_when_slurm_refuses_the_rest(call, manifest, slurm, monkeypatch):
    monkeypatch.setenv("REFUSED", "collect.sbatch")
    done = call("batch", "submit", "m.toml", "--slurm", "--shards", "2", "--collect", "t.csv", "--submit")
    assert (done.code, done.out) == (3, "")
    assert "invalid partition specified: nowhere; job 1 was cancelled" in done.message
    assert "scancel 1\n" in slurm.read_text()


def test_without_slurm(call, manifest, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = call("batch", "submit", "m.toml", "--slurm", "--shards", "2", "--submit")
    assert done.code == 6 and "no sbatch, no scontrol, no squeue on PATH" in done.message
    assert not (manifest.parent / HOSTILE).exists()


@pytest.mark.parametrize(
    ("code", "arguments", "text"),
    [
        (2, [], "--slurm or --aws-batch"),
        (2, ["--slurm", "--shards", "0"], "--shards"),
        (3, ["--slurm", "--shards", "5"], "the batch has 4 items"),
        (3, ["--slurm", "--shards", "4", "--submit"], "at most 3 tasks"),
        (3, ["--slurm", "--time", "90"], "has no unit"),
        (3, ["--slurm", "--time", "3min"], "--signal-before"),
        (3, ["--slurm", "--memory", "8"], "expected a number with a unit"),
        (3, ["--slurm", "--partition", "a b"], "--partition 'a b'"),
        (3, ["--slurm", "--account", "a\n#SBATCH --uid=0"], "--account"),
        (3, ["--slurm", "--setup", "true\nrm -rf x"], "--setup"),
        (3, ["--slurm", "--write", "a\nb"], "--write"),
        (3, ["--slurm", "--write", "a\\b"], "backslash"),
        (3, ["--slurm", "--workers", "2", "--cpus-per-task", "1"], "need 2 cores"),
        (3, ["--slurm", "--cache", "c"], "no kernel is compiled"),
        (3, ["--slurm", "--collect", "t.txt"], "--collect t.txt"),
        (3, ["--slurm", "--root", "nowhere"], "no such folder"),
    ],
)
def test_bad_input(call, manifest, slurm, code, arguments, text):
    shards = [] if "--shards" in arguments else ["--shards", "2"]
    done = call("batch", "submit", "m.toml", *arguments, *shards)
    assert (done.code, done.out) == (code, "") and text in done.message
    assert not slurm.exists() and not (manifest.parent / HOSTILE).exists()
