"""A deferred module behaves as the module itself, and is not loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

SET_UP = "import sys; from dfmp2.deferred import defer; defer('scipy.optimize'); "
LOADED = "'scipy.optimize._minimize' in sys.modules"


@pytest.mark.parametrize(
    "use",
    [
        "import scipy.optimize; scipy.optimize.minimize",
        "from scipy.optimize import minimize",
        "import scipy; scipy.optimize.minimize",
        "import scipy.optimize._linprog",
        "from scipy.optimize import *; minimize",
    ],
)
def test_is_loaded_by_use(use):
    check = f"import scipy.linalg; assert not {LOADED}; {use}; assert {LOADED}; "
    solve = "import scipy.optimize as o; assert abs(o.brentq(lambda x: x * x - 2, 0, 2) - 2**0.5) < 1e-9"
    subprocess.run([sys.executable, "-c", SET_UP + check + solve], check=True)


def test_a_run_does_not_load_it(tmp_path):
    code = (
        "import sys; from dfmp2.cli.main import main; "
        f"code = main(['run', 'inputs/h2o.xyz', '--basis', 'cc-pvdz', '--output', r'{tmp_path}/h2o.h5']); "
        f"assert code == 0; assert 'pyscf.scf.diis' in sys.modules; assert not {LOADED}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_loaded_module_is_left_alone():
    code = "import scipy.optimize as before; " + SET_UP + "import scipy.optimize as after; assert before is after"
    subprocess.run([sys.executable, "-c", code], check=True)
