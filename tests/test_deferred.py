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
        f"assert code == 0; assert 'pyscf.scf.diis' in sys.modules; assert not {LOADED}; "
        "assert 'scipy.special' in sys.modules; assert 'numpy.f2py.f2py2e' not in sys.modules; "
        "assert 'pyscf.symm.geom' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_loaded_module_is_left_alone():
    code = "import scipy.optimize as before; " + SET_UP + "import scipy.optimize as after; assert before is after"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "use",
    [
        "import numpy as np; assert np.ma.array([1, 2], mask=[0, 1]).sum() == 1",
        "import numpy.ma as ma; assert ma.isMaskedArray(ma.array([1]))",
        "from numpy.polynomial import Polynomial; assert Polynomial([1, 2])(3) == 7",
        "import numpy as np; np.testing.assert_allclose(1.0, 1.0)",
        "import numpy.f2py; assert callable(numpy.f2py.run_main)",
        "import numpy.ctypeslib as c; assert c.as_array",
        "import numpy as np; assert np.rec.array([(1, 2.0)], dtype=[('a', int), ('b', float)]).a[0] == 1",
    ],
)
def test_the_rest_of_numpy_is_there_when_asked_for(use):
    light = "from dfmp2.deferred import defer_numpy_extras; defer_numpy_extras(); import scipy.linalg, scipy.special; "
    subprocess.run([sys.executable, "-c", light + use], check=True)


def test_point_groups_are_there_when_asked_for():
    code = (
        "from dfmp2.deferred import defer_unused; defer_unused(); from pyscf import gto, scf; "
        "mole = gto.M(atom='O 0 0 0; H 0 0.76 0.59; H 0 -0.76 0.59', symmetry=True, verbose=0); "
        "mf = scf.RHF(mole); assert mole.groupname == 'C2v' and type(mf).__name__ == 'SymAdaptedRHF', type(mf); "
        "assert abs(mf.kernel() + 74.96) < 0.1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
