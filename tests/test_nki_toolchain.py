"""One environment that runs and one that compiles. How AWS's packages are found is the session
`trainium-toolchain`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.conftest import ROOT

COMPILER = '''"""What a compilation imports, told instead of a program."""
import json, os, pathlib, sys
import numpy
import dfmp2
record = {
    "numpy": numpy.__file__,
    "nki": __file__,
    "python": sys.prefix,
    "dfmp2": os.path.realpath(dfmp2.__file__),
    "path": sys.path,
}
pathlib.Path(os.environ["TOLD"]).write_text(json.dumps(record))
raise RuntimeError("NCC_STAND_IN: told")
'''
LEAKED = "raise ImportError('the package of the other environment')\n"
ASK = """
from dfmp2.backends.base import Shape
from dfmp2.trainium.launch import compiler, toolchain
from dfmp2.errors import Dfmp2Error
try:
    compiler.compile_ahead((Shape(3, 8, 12),), "trn1")
except Dfmp2Error as error:
    print(error)
"""


def packages(prefix: Path) -> Path:
    """The folder of packages of an environment."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(prefix)}))


def plant(site: Path, name: str, version: str, text: str) -> None:
    """Install a package of one line."""
    module = name.replace("-", "_")
    (site / module).mkdir()
    (site / module / "__init__.py").write_text(text)
    information = site / f"{module}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An environment with dfmp2, its libraries and a package called nki that must not be imported,
    and one with a compiler."""
    folder = tmp_path_factory.mktemp("environments")
    run, compile_ = folder / "run", folder / "compile"
    for prefix in (run, compile_):
        venv.create(prefix, with_pip=False, symlinks=True)
    # As installed from a wheel: the package beside all others, not a link to a checkout.
    shutil.copytree(
        ROOT / "dfmp2", packages(run) / "dfmp2", ignore=shutil.ignore_patterns("__pycache__")
    )
    own = sysconfig.get_path("purelib")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (packages(run) / "libraries.pth").write_text("\n".join(dict.fromkeys([own, *libraries])) + "\n")
    plant(packages(run), "nki", "0.6.0", LEAKED)
    for name, text in (
        ("numpy", "ndarray = float32 = None\n"),
        ("nki", COMPILER),
        ("neuronx-cc", ""),
    ):
        plant(
            packages(compile_),
            name,
            {"nki": "0.6.0", "neuronx-cc": "2.27.5334.0"}.get(name, "1.0"),
            text,
        )
    tool = compile_ / "bin" / "neuronx-cc"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return run, compile_


@pytest.mark.parametrize("checked", [True, False])
def test_the_compiler_meets_dfmp2_and_nothing_else_of_the_run_environment(
    environments: tuple[Path, Path], tmp_path: Path, checked: bool
) -> None:
    """The availability check (`checked`) imports nki first; then the child that compiles does."""
    run, compile_ = environments
    told = tmp_path / "told.json"
    variables = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "DFMP2"))
        },
        "DFMP2_NKI_PYTHON": str(compile_ / "bin" / "python"),
        "DFMP2_NEFF_CACHE": str(tmp_path / "neff"),
        "TOLD": str(told),
    }
    ask = ASK
    if not checked:
        ask = ASK.replace("try:", "toolchain.compiler_problems = lambda target: ()\ntry:")
    done = subprocess.run(
        [str(run / "bin" / "python"), "-c", ask],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "NCC_STAND_IN" in done.stdout, done.stdout + done.stderr
    found = json.loads(told.read_text())
    assert found["python"] == str(compile_)
    for name in ("nki", "numpy"):
        assert found[name].startswith(str(packages(compile_))), found[name]
    assert found["dfmp2"].startswith(str(packages(run)))  # the plain install, by a link to it alone
    assert str(packages(run)) not in found["path"]
