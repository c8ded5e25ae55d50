"""Recipes of images and clusters, tested without an engine: files they name exist, and their steps
are those of a script."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dfmp2.execution.aws import INSTANCES, WORK
from dfmp2.trainium.launch.environment import LIBRARIES, TOOLS
from tests.conftest import ROOT

FOLDER = ROOT / "scripts" / "container"
CLUSTER = ROOT / "scripts" / "parallelcluster" / "cluster.yaml"


def script(name: str, *arguments: str, **settings) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(FOLDER / f"{name}.sh"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, **settings
    )


@pytest.mark.parametrize("path", [*sorted(FOLDER.iterdir()), CLUSTER], ids=lambda path: path.name)
def test_files_are_sound_and_name_no_account(path: Path) -> None:
    assert not re.search(r"\b[0-9]{12}\b|\.dkr\.ecr\.|ami-[0-9a-f]{8}|AKIA", path.read_text())
    if path.suffix == ".sh":
        for checker in (["bash", "-n"], *([["shellcheck"]] if shutil.which("shellcheck") else [])):
            found = subprocess.run([*checker, path], capture_output=True, text=True, check=False)
            assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", ["cpu", "neuron"])
def test_recipe(name: str) -> None:
    """No base image of our own, no privileges, only the script's steps, and the variables and
    writable folders of tools."""
    lines = (FOLDER / f"{name}.Dockerfile").read_text().splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    # One step, one line: the test script reads them so
    assert not any(step[-1].endswith("\\") for step in steps)

    def values(instruction: str) -> list[str]:
        return [arguments for found, arguments in steps if found == instruction]

    assert (
        steps[:2] == [["ARG", "BASE_IMAGE"], ["FROM", "${BASE_IMAGE}"]] and len(values("FROM")) == 1
    )
    for call in values("RUN"):
        assert re.fullmatch(
            r"bash /build/scripts/container/install\.sh --prefix /opt/[^;&|]*( && rm -rf /build)?",
            call,
        )
    assert values("RUN")[-1].endswith("rm -rf /build")
    user = dict(argument.split("=") for argument in values("ARG") if "=" in argument)["USER_ID"]
    assert int(user) >= 1000 and values("USER") == ["${USER_ID}:${USER_ID}"] == [steps[-3][1]]
    assert values("ENTRYPOINT") == ['["/opt/dfmp2/bin/dfmp2-entrypoint"]']
    assert values("WORKDIR") == values("VOLUME") == [WORK]
    told = dict(word.split("=", 1) for line in values("ENV") for word in shlex.split(line))
    # The root may be read-only
    for variable in ("HOME", "TMPDIR", "DFMP2_SCRATCH", "XDG_CACHE_HOME"):
        assert Path(told[variable]).is_relative_to(WORK), variable
    tools = {"/opt/dfmp2/bin", "/usr/bin", "/bin"} | ({TOOLS} if name == "neuron" else set())
    assert tools <= set(told["PATH"].split(":"))
    if name == "neuron":  # in front of what the base image has
        assert told["LD_LIBRARY_PATH"] == f"{LIBRARIES}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
    else:
        assert "LD_LIBRARY_PATH" not in told
    # What pyproject.toml names, else pip fails
    copied = [word for line in values("COPY") for word in line.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    assert {"pyproject.toml", "README.md", "LICENSE", "dfmp2", "scripts/container"} == set(copied)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "expected an absolute path"),
        (("--prefix", "relative"), "expected an absolute path"),
        (("--prefix", "/"), "exists already"),
        (("--prefix", "/opt/x", "--uid", "0"), "other than root"),
        (("--prefix", "/opt/x", "--only", "nki==0.7.0"), "need --index"),
        (("--prefix",), "needs a value"),
        (("--perfix", "x"), "unknown option --perfix"),
    ],
)
def test_install_refuses(arguments: tuple[str, ...], said: str) -> None:
    done = script("install", *arguments)
    assert done.returncode == 2 and said in done.stderr


def test_entrypoint(tmp_path: Path) -> None:
    """dfmp2's commands need no `dfmp2` in front, and what AWS Batch is told is run as it is."""
    (tmp_path / "dfmp2").write_text('#!/bin/sh\necho "dfmp2: $*"\n')
    (tmp_path / "dfmp2").chmod(0o755)
    search = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for arguments in (("run", "my file.xyz"), ("dfmp2", "run", "my file.xyz")):
        assert script("entrypoint", *arguments, env=search).stdout == "dfmp2: run my file.xyz\n"
    assert script("entrypoint", "python", "-c", "print(1 + 1)", env=search).stdout == "2\n"


@pytest.mark.slow
def test_steps_of_the_cpu_recipe() -> None:
    """In a new folder instead of the root, without this environment: the energy of water agrees
    with PySCF."""
    done = script("test_cpu", "--python", sys.executable, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "all steps passed" in done.stderr and "-76.23072475" in done.stdout


def test_cluster() -> None:
    """The template declares all its variables, and matches the scripts made by `dfmp2 batch submit
    --slurm`."""
    yaml = pytest.importorskip("yaml")
    text = CLUSTER.read_text()
    head, _, body = text.partition("\nRegion:")
    wanted = set(re.findall(r"\$\{([A-Z_]+)\}", body))
    assert wanted | {"REGION"} == set(re.findall(r"\b([A-Z_]+)=", head))
    found = yaml.safe_load(re.sub(r"\$\{([A-Z_]+)\}", r"value-of-\1", text))
    partition, workers = re.findall(r"--partition (\S+)|--workers (\d+)", head)
    queue = next(
        queue for queue in found["Scheduling"]["SlurmQueues"] if queue["Name"] == partition[0]
    )
    assert queue["JobExclusiveAllocation"]  # --gres none: the node whole
    types = {
        one["InstanceType"]
        for resource in queue["ComputeResources"]
        for one in resource["Instances"]
    }
    assert all(int(workers[1]) <= 2 * INSTANCES[name].chips for name in types)
    mounted = {one["MountDir"] for one in found["SharedStorage"]}
    for path in re.findall(r"(?:submit|--cache|--prefix) (/\S+)", head):
        assert any(Path(path.rstrip(").,")).is_relative_to(place) for place in mounted), path
