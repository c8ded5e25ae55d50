"""Hostile surroundings and input: nothing planted is run, read or believed."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import pytest

from tests.conftest import COMMAND, Runner, Stored, listing, run_command, succeed, write_molecules
from tests.recorded import recorded_failure

STO3G = ("--basis", "sto-3g")
CODE = "__import__('os').system('touch EXECUTED')"
PLANTED = "import pathlib; pathlib.Path(r'{marker}').touch(); raise SystemExit('planted')\n"

# --- the working directory ------------------------------------------------------------------------

# Not planted for `python -m`, since Python makes it unavoidable: with -m the working directory is
# searched first until dfmp2 gets to take it off, so a `dfmp2.py` there is what Python was asked to
# run, and a `typing.py` is what the package's own first import finds. `python -P -m dfmp2` and the
# command `dfmp2` have no such window.
MODULES = (
    "typing",
    "numpy",
    "scipy",
    "h5py",
    "click",
    "json",
    "uuid",
    "ctypes",
    "tempfile",
    "concurrent",
    "hashlib",
    "torch",
    "basis_set_exchange",
    "sitecustomize",
    "usercustomize",
    "pyscf_conf",
    "pyscf_forge",
    "threadpoolctl",
)
BASIS_FILES = (
    "sto-3g",
    "sto-3g.dat",
    "STO-3G",
    "def2-universal-jkfit",
    "def2-svp-ri",
    "def2-svp-ri.dat",
    "ano",
    "ano.dat",
    "cc-pvdz",
    "cc-pvdz.dat",
    "cc-pvdz-ri",
    "cc-pvdz-jkfit",
    "minao",
)


def plant(folder: Path, marker: Path) -> None:
    """Fill a folder with everything PySCF, Python or a careless program would pick up there."""
    code = PLANTED.format(marker=marker)
    for name in MODULES:
        (folder / f"{name}.py").write_text(code)
    for name in (".pyscf_conf.py", "conftest.py", "setup.py", "evil.py"):
        (folder / name).write_text(code)
    for package in ("pyscf", "numpy.libs", "pyscf/gto", "pyscf/lib", "plugin/pyscf"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(code)
    for name in BASIS_FILES:  # one wide s function, and code where PySCF's parsers evaluate
        (folder / name).write_text(f"BASIS\nH S\n 0.1 1.0\nO S\n 0.1 {CODE}\nEND\n")
    (folder / "dfmp2.toml").write_text("basis = 'cc-pvqz'\n")
    (folder / "setup.cfg").write_text("[pyscf]\nmax_memory = 1\n")


@pytest.mark.parametrize(
    "program",
    [pytest.param((str(COMMAND),), marks=pytest.mark.slow), (sys.executable, "-m", "dfmp2")],
    ids=["script", "module"],
)
def test_hostile_working_directory_changes_nothing(
    program: tuple[str, ...], folder: Path, water: Stored
) -> None:
    marker = folder / "EXECUTED"
    plant(folder, marker)
    env = {
        "HOME": str(folder),
        "PYSCF_CONFIG_FILE": str(folder / "evil.py"),
        "PYSCF_EXT_PATH": str(folder / "plugin"),
        "PYSCF_ARGPARSE": "1",
    }
    before = set(listing(folder))
    done = succeed(
        run_command("run", "h2o.xyz", *STO3G, "--json", cwd=folder, program=program, env=env)
    )
    assert not marker.exists()
    assert set(listing(folder)) - before == {"h2o.dfmp2.h5"}
    assert done.json["mp2_total_energy"] == pytest.approx(water.json["mp2_total_energy"], abs=1e-9)
    for place in ("orbital", "scf_fitting", "mp2_fitting"):
        with h5py.File(folder / "h2o.dfmp2.h5") as ours, h5py.File(water.path) as theirs:
            name = f"dfmp2/bases/{place}/elements"
            assert ours[name][()] == theirs[name][()]
    if program == (str(COMMAND),):
        succeed(run_command("show", "h2o.dfmp2.h5", cwd=folder, env=env))
        succeed(run_command("compare", "h2o.dfmp2.h5", cwd=folder, env=env))
        # The probe for torch imports it from where Python finds it, which is not here.
        assert "planted" not in succeed(run_command("backends", cwd=folder, env=env)).out
    assert not marker.exists()


def test_planted_files_would_have_been_run(folder: Path) -> None:
    """The trap works: bare Python in the same folder falls into it."""
    marker = folder / "EXECUTED"
    plant(folder, marker)
    run_command("-c", "import pyscf", cwd=folder, program=(sys.executable,))
    assert marker.exists()


# --- links ----------------------------------------------------------------------------------------


def test_links_to_files_elsewhere(
    call: Runner, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A link may be read through; as output it is never written through."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_molecules(elsewhere)
    (folder / "linked.xyz").symlink_to(elsewhere / "h2.xyz")
    (folder / "linked.dfmp2.h5").symlink_to(elsewhere / "not-there")
    before = listing(elsewhere)
    recorded_failure(call("run", "linked.xyz", *STO3G), 3)
    assert call("run", "linked.xyz", *STO3G, "--overwrite").code == 7
    assert (folder / "linked.dfmp2.h5").is_symlink() and listing(elsewhere) == before
