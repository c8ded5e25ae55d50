"""Slurm scripts: checks by bash and shellcheck, and behaviour on signals; what is sent to Slurm is
the session `slurm-submitted`.

scripts/test_slurm runs them on a real Slurm.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Runner, succeed, wait_until
from tests.test_batch import HEAD, items

ODD = "it's a folder of 100% $HOME ${HOME} `id` #1; rm"  # allowed as the name of a script's folder
HOSTILE = f'{ODD} "x"'  # allowed everywhere else
SHELLCHECK = shutil.which("shellcheck") or shutil.which(
    "shellcheck", path=str(Path(sys.executable).parent)
)
SUBMIT = ("batch", "submit", "m.toml", "--slurm", "--shards")
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


@pytest.mark.parametrize(
    ("send", "environment", "text"),
    [
        (os.kill, {}, "interrupted: requeued"),
        (os.killpg, {}, "interrupted: requeued"),
        (os.kill, {"STATE": "COMPLETING"}, "Slurm says COMPLETING: not requeued"),
        (os.kill, {"STATE": "CANCELLED"}, "Slurm says CANCELLED: not requeued"),
        (os.kill, {"STATE": ""}, "Slurm says nothing: not requeued"),
        (os.kill, {"SLURM_RESTART_COUNT": "20"}, "restarted 20 times before: not requeued"),
    ],
)
def test_a_signal_is_passed_on_and_the_task_requeued_unless_it_should_not_come_back(
    node: Node, send: Callable[[int, int], None], environment: dict[str, str], text: str
) -> None:
    """--signal=B: reaches only the script, preemption all its processes."""
    running = node.launch(**environment)
    send(running.pid, signal.SIGTERM)
    code, said = node.finish(running)
    requeued = "" if "not requeued" in text else "requeue 7_2\n"
    assert (code, node.read("scontrol")) == (75, f"saved\n{requeued}") and text in said, said


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
