"""The PySCF shield: what PySCF would execute, read or import on its own stays out."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import pytest

import dfmp2
from dfmp2.errors import InputError
from dfmp2.reference import shield
from dfmp2.reference.shield import EVALUATING, FLAG, import_pyscf, pyscf_version, shielded

ROOT = str(Path(dfmp2.__file__).parents[1])
PLANT = "import pathlib; pathlib.Path('marker').touch()\n"


def run_python(code: str, folder: Path, **environment: str) -> str:
    """Standard output of a fresh interpreter with the working directory first on its path, as in `python -m`."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYSCF_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=clean | {"PYTHONPATH": ROOT, "HOME": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def flags() -> list[bool]:
    return [bool(getattr(import_module(name), FLAG)) for name in EVALUATING]


def test_pyscf_executes_planted_configuration_without_the_shield(tmp_path: Path) -> None:
    (tmp_path / ".pyscf_conf.py").write_text(PLANT)
    run_python("import pyscf", tmp_path)
    assert (tmp_path / "marker").exists()


def test_nothing_from_the_working_directory_is_executed_or_imported(tmp_path: Path) -> None:
    """Planted: configuration, a whole package `pyscf`, one as plugin path; the environment is left as it was."""
    (tmp_path / ".pyscf_conf.py").write_text(PLANT)
    (tmp_path / "own.py").write_text(PLANT)
    (tmp_path / "pyscf").mkdir()
    (tmp_path / "pyscf" / "__init__.py").write_text(PLANT)
    (tmp_path / "plugin" / "pyscf").mkdir(parents=True)
    code = """
import os, sys
from dfmp2.reference.shield import import_pyscf, EVALUATING, FLAG
assert "pyscf" not in sys.modules and "h5py" not in sys.modules
before, path = dict(os.environ), list(sys.path)
import_pyscf()
assert dict(os.environ) == before and sys.path == path
import pyscf
assert all(getattr(sys.modules[name], FLAG) is True for name in EVALUATING)
assert pyscf.__config__.MAX_MEMORY == 1234 and not pyscf.__config__.ARGPARSE
assert not any(os.path.realpath(p).startswith(os.getcwd()) for p in pyscf.__path__), pyscf.__path__
import_pyscf()
print("fine")
"""
    settings = {"PYSCF_MAX_MEMORY": "1234", "PYSCF_ARGPARSE": "1"}
    planted = {"PYSCF_CONFIG_FILE": str(tmp_path / "own.py"), "PYSCF_EXT_PATH": str(tmp_path / "plugin")}
    assert run_python(code, tmp_path, **settings, **planted) == "fine\n"
    assert not (tmp_path / "marker").exists()


def test_a_folder_pyscf_does_not_join_the_package_as_plugin(tmp_path: Path) -> None:
    (tmp_path / "pyscf").mkdir()  # no __init__.py: what pkgutil.extend_path looks for
    (tmp_path / "pyscf" / "planted.py").write_text(PLANT)
    code = """
from dfmp2.reference.shield import import_pyscf
import_pyscf()
try:
    import pyscf.planted
except ModuleNotFoundError:
    print("refused")
"""
    assert run_python("import pyscf.planted", tmp_path) == ""
    assert (tmp_path / "marker").exists()  # PySCF alone does import it
    (tmp_path / "marker").unlink()
    assert run_python(code, tmp_path) == "refused\n"
    assert not (tmp_path / "marker").exists()


def test_pyscf_imported_earlier_is_closed_and_reopened(tmp_path: Path) -> None:
    """A coordinate is a Python expression to PySCF: evaluated outside the block, refused inside."""
    code = """
from pyscf import gto
from dfmp2.reference.shield import shielded
text = "H 0 0 0; H 0 0 len([print('executed')])"
def build():
    try:
        gto.M(atom=text, unit="Bohr", verbose=0)
    except Exception as error:
        print(type(error).__name__)
build()
with shielded():
    build()
build()
"""
    assert run_python(code, tmp_path) == "executed\nValueError\nexecuted\n"


def test_switches_close_and_restore_when_nested(monkeypatch: pytest.MonkeyPatch) -> None:
    import_pyscf()
    found = [True, False, False, True, False]
    for name, value in zip(EVALUATING, found, strict=True):
        monkeypatch.setattr(import_module(name), FLAG, value)
    with shielded():
        assert all(flags())
        with pytest.raises(ZeroDivisionError), shielded():
            raise ZeroDivisionError
        assert all(flags())
    assert flags() == found


def test_switches_stay_closed_until_the_last_thread_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    import_pyscf()
    for name in EVALUATING:
        monkeypatch.setattr(import_module(name), FLAG, False)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with shielded():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with shielded():
        thread.start()
        assert entered.wait(10)
    assert all(flags())
    leave.set()
    thread.join(10)
    assert not any(flags())


@pytest.mark.parametrize("version", ["2.12.1", "1.7.6", "unknown"])
def test_old_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    import_pyscf()
    monkeypatch.setattr(sys.modules["pyscf"], "__version__", version)
    with pytest.raises(InputError, match=rf"PySCF {version} is installed.*pip install 'pyscf>=2\.13'") as caught:
        import_pyscf()
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("version", ["2.13.0", "2.14.0rc1", "3.0"])
def test_supported_versions(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    import_pyscf()
    monkeypatch.setattr(sys.modules["pyscf"], "__version__", version)
    assert pyscf_version() == version


def test_a_parser_without_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import_pyscf()
    monkeypatch.delattr(sys.modules["pyscf.gto.basis.parse_cp2k"], FLAG)
    with pytest.raises(InputError, match=r"PySCF 2\..*parse_cp2k.*pip install"), shielded():
        pass


def test_missing_pyscf_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyscf", None)
    with pytest.raises(InputError, match=r"not installed.*pip install 'pyscf>=2\.13'"):
        import_pyscf()


def test_settings_that_would_break_the_import_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyscf", raising=False)
    monkeypatch.setenv("PYSCF_MAX_MEMORY", "plenty")
    with pytest.raises(InputError, match="PYSCF_MAX_MEMORY is 'plenty'"):
        import_pyscf()
    monkeypatch.delenv("PYSCF_MAX_MEMORY")
    monkeypatch.setattr(shield, "CONFIG", Path("nowhere") / "pyscf_conf.py")
    with pytest.raises(InputError, match=r"pyscf_conf\.py.*missing"):
        import_pyscf()
    assert "pyscf" not in sys.modules


def test_a_deleted_working_directory_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code = (
        "import os; os.rmdir(os.getcwd())\n"
        "from dfmp2.reference.shield import no_imports_from_working_directory\n"
        "with no_imports_from_working_directory(): print('fine')"
    )
    assert run_python(code, folder) == "fine\n"
