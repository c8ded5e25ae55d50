"""What an import may do: PySCF executes nothing from a user's folders, and heavy modules are loaded
on first use."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest

import dfmp2
from dfmp2.errors import InputError
from dfmp2.molecule import pyscf_shield
from dfmp2.molecule.pyscf_shield import EVALUATING, FLAG, import_pyscf, pyscf_version, shielded
from tests.conftest import PATIENCE
from tests.recorded import recorded_error

PLANT = "import pathlib; pathlib.Path('marker').touch()\n"
SET_UP = "import sys; from dfmp2.host.deferred import defer; defer('scipy.optimize'); "
LOADED = "'scipy.optimize._minimize' in sys.modules"


def run_python(code: str, folder: Path, **environment: str) -> str:
    """Standard output of a fresh interpreter with the working directory first on its path, as in
    `python -m`."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYSCF_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={
            **clean,
            "PYTHONPATH": str(Path(dfmp2.__file__).parents[1]),
            "HOME": str(folder),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def flags() -> list[bool]:
    return [bool(getattr(import_module(name), FLAG)) for name in EVALUATING]


# --- the shield around PySCF ----------------------------------------------------------------------


def test_nothing_from_the_working_directory_is_executed_or_imported(tmp_path: Path) -> None:
    """Planted: a configuration, a whole package `pyscf`, one on the plugin path; the environment is
    left as it was."""
    (tmp_path / ".pyscf_conf.py").write_text(PLANT)
    (tmp_path / "own.py").write_text(PLANT)
    (tmp_path / "pyscf").mkdir()
    (tmp_path / "pyscf" / "__init__.py").write_text(PLANT)
    (tmp_path / "plugin" / "pyscf").mkdir(parents=True)
    code = """
import os, sys
from dfmp2.molecule.pyscf_shield import import_pyscf, EVALUATING, FLAG
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
    planted = {
        "PYSCF_CONFIG_FILE": str(tmp_path / "own.py"),
        "PYSCF_EXT_PATH": str(tmp_path / "plugin"),
    }
    assert run_python(code, tmp_path, **settings, **planted) == "fine\n"
    assert not (tmp_path / "marker").exists()


def test_a_folder_pyscf_does_not_join_the_package_as_plugin(tmp_path: Path) -> None:
    (
        tmp_path / "pyscf"
    ).mkdir()  # no __init__.py: what pkgutil.extend_path looks for, so that PySCF alone joins it
    (tmp_path / "pyscf" / "planted.py").write_text(PLANT)
    code = """
from dfmp2.molecule.pyscf_shield import import_pyscf
import_pyscf()
try:
    import pyscf.planted
except ModuleNotFoundError:
    print("refused")
"""
    assert run_python(code, tmp_path) == "refused\n"
    assert not (tmp_path / "marker").exists()


@pytest.fixture
def open_pyscf(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySCF as it is imported by others: its switches are open."""
    import_pyscf()
    for name in EVALUATING:
        monkeypatch.setattr(import_module(name), FLAG, False)


def test_pyscf_imported_earlier_is_closed_and_reopened(
    open_pyscf: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """To PySCF a coordinate is a Python expression: evaluated outside the block, refused inside."""
    from pyscf import gto

    text = "H 0 0 0; H 0 0 len([print('executed')])"
    gto.M(atom=text, unit="Bohr", verbose=0)
    with shielded(), pytest.raises(ValueError, match="Failed to parse geometry"):
        gto.M(atom=text, unit="Bohr", verbose=0)
    assert capsys.readouterr().out == "executed\n"
    gto.M(atom=text, unit="Bohr", verbose=0)
    assert capsys.readouterr().out == "executed\n"


def test_switches_stay_closed_until_the_last_thread_leaves(open_pyscf: None) -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with shielded():
            entered.set()
            leave.wait(PATIENCE)

    thread = threading.Thread(target=other)
    with shielded():
        thread.start()
        assert entered.wait(PATIENCE)
    assert all(flags())
    leave.set()
    thread.join(PATIENCE)
    assert not any(flags())


@pytest.mark.parametrize(
    ("version", "switch", "refused"),
    [
        *((old, True, True) for old in ("2.12.1", "1.7.6", "unknown")),
        *((new, True, False) for new in ("2.13.0", "2.14.0rc1", "3.0")),
        ("2.14.0", False, True),  # a parser that evaluates, and cannot be told not to
        (None, True, True),
    ],
)
def test_a_pyscf_that_is_missing_too_old_or_not_to_be_closed_is_refused(
    version: str | None, switch: bool, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_pyscf()
    if version is None:
        monkeypatch.setitem(sys.modules, "pyscf", None)
    else:
        monkeypatch.setattr(sys.modules["pyscf"], "__version__", version)
    if not switch:
        monkeypatch.delattr(sys.modules["pyscf.gto.basis.parse_cp2k"], FLAG)
    with recorded_error(InputError) if refused else nullcontext(), shielded():
        assert pyscf_version() == version


def test_settings_that_would_break_the_import_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyscf", raising=False)
    monkeypatch.setenv("PYSCF_MAX_MEMORY", "plenty")
    with recorded_error(InputError):
        import_pyscf()
    monkeypatch.delenv("PYSCF_MAX_MEMORY")
    monkeypatch.setattr(pyscf_shield, "CONFIG", Path("nowhere") / "pyscf_conf.py")
    with recorded_error(InputError):
        import_pyscf()
    assert "pyscf" not in sys.modules


def test_a_deleted_working_directory_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code = (
        "import os; os.rmdir(os.getcwd())\n"
        "from dfmp2.molecule.pyscf_shield import no_imports_from_working_directory\n"
        "with no_imports_from_working_directory(): print('fine')"
    )
    assert run_python(code, folder) == "fine\n"


# --- modules that are loaded late -----------------------------------------------------------------


def test_a_deferred_module_is_loaded_by_use(tmp_path: Path) -> None:
    """Each way to import it runs in a process of its own."""
    code = f"""
{SET_UP}
import os
import scipy.linalg
for use in ("import scipy.optimize._linprog", "from scipy.optimize import *; minimize"):
    child = os.fork()
    if not child:
        assert not {LOADED}
        exec(use)
        assert {LOADED}
        import scipy.optimize as o
        assert abs(o.brentq(lambda x: x * x - 2, 0, 2) - 2**0.5) < 1e-9
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    run_python(code, tmp_path)
    run_python(
        "import scipy.optimize as before; "
        + SET_UP
        + "import scipy.optimize as after; assert before is after",
        tmp_path,
    )


def test_a_run_loads_neither_it_nor_torch(tmp_path):
    code = (
        "import sys; from dfmp2.cli.main import main; "
        "code = main(['run', 'inputs/h2o.xyz', '--basis', 'sto-3g', '--output', "
        f"r'{tmp_path}/h2o.h5']); assert code == 0; assert 'pyscf.scf.diis' in sys.modules; assert "
        f"not {LOADED}; assert 'scipy.special' in sys.modules; assert 'numpy.f2py.f2py2e' not in "
        "sys.modules; assert 'pyscf.symm.geom' not in sys.modules; assert 'torch' not in "
        "sys.modules"
    )
    shown = (
        "import sys; from dfmp2.cli.main import main; "
        f"assert main(['show', r'{tmp_path}/h2o.h5']) == 0; assert main(['batch', 'status', "
        f"r'{tmp_path}']) == 3; assert 'scipy' not in sys.modules"
    )
    for program in (code, shown):
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_rest_of_numpy_and_pyscf_is_there_when_asked_for(tmp_path: Path) -> None:
    run_python(
        """
from dfmp2.host.deferred import defer_numpy_extras, defer_unused
defer_numpy_extras(), defer_unused()
import scipy.linalg, scipy.special
import numpy as np
assert np.ma.array([1, 2], mask=[0, 1]).sum() == 1
import numpy.ma as ma
assert ma.isMaskedArray(ma.array([1]))
from numpy.polynomial import Polynomial
assert Polynomial([1, 2])(3) == 7
np.testing.assert_allclose(1.0, 1.0)
import numpy.f2py, numpy.ctypeslib
assert callable(numpy.f2py.run_main) and numpy.ctypeslib.as_array
assert np.rec.array([(1, 2.0)], dtype=[('a', int), ('b', float)]).a[0] == 1
from pyscf import gto, scf
mole = gto.M(atom='O 0 0 0; H 0 0.76 0.59; H 0 -0.76 0.59', symmetry=True, verbose=0)
mf = scf.RHF(mole)
assert mole.groupname == 'C2v' and type(mf).__name__ == 'SymAdaptedRHF', type(mf)
assert abs(mf.kernel() + 74.96) < 0.1
""",
        tmp_path,
    )
