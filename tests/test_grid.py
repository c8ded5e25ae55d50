"""Integration grids: what `--grid` takes, the default of a functional, points, and what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import dft, gto

import dfmp2
from dfmp2.errors import ForeignCheckpoint, InputError, Interrupted
from dfmp2.integrals import grid
from dfmp2.interop import qcschema
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import LEBEDEV_POINTS, Options, make_options
from dfmp2.output import hdf5
from tests.conftest import Runner, succeed
from tests.faults import Stopping

RADICAL = Molecule(
    ("O", "H"), np.array([[0.0, 0.1, 0.2], [0.3, 0.4, 2.0]]), charge=0, multiplicity=2
)
HELIUM = Molecule(("He",), np.zeros((1, 3)))
PBE: dict[str, Any] = {"basis": "cc-pvdz", "method": "drpa", "xc": "pbe"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (4, "4"),
        (np.int64(0), "0"),
        ("9", "9"),
        (" 7 ", "7"),
        ("99,590", "99,590"),
        ("99, 590", "99,590"),
        ((50, 194), "50,194"),
        ([np.int64(75), 302], "75,302"),
        ("1000,5810", "1000,5810"),
    ],
    ids=str,
)
def test_a_grid_is_a_level_or_points_of_each_atom(given: Any, name: str) -> None:
    assert Options("cc-pvdz", method="drpa", xc="pbe", grid=given).grid == name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("99,600", "there is no Lebedev sphere of 600 points; take 99,590 or 99,770"),
        ("99,5", "there is no Lebedev sphere of 5 points; take 99,6"),
        ("99,9999", "there is no Lebedev sphere of 9999 points; take 99,5810"),
        (10, "--grid 10: levels are 0 to 9; for more points give NRAD,NANG"),
        ("9,590", "expected 10 to 1000 points along the radius"),
        ((1001, 590), "expected 10 to 1000 points along the radius"),
        ("-3", "expected a level from 0 to 9, or NRAD,NANG"),
        ("fine", "expected a level from 0 to 9, or NRAD,NANG"),
        ("99,590,3", "expected a level from 0 to 9, or NRAD,NANG"),
        ("", "expected a level from 0 to 9, or NRAD,NANG"),
        (3.0, "expected a level from 0 to 9, or NRAD,NANG"),
        (True, "expected a level from 0 to 9, or NRAD,NANG"),
        ("99 590", "expected a level from 0 to 9, or NRAD,NANG"),
        ("٣", "expected a level from 0 to 9, or NRAD,NANG"),
    ],
    ids=str,
)
def test_another_grid_is_refused_with_what_there_is(given: Any, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        Options("cc-pvdz", method="drpa", xc="pbe", grid=given)
    assert said in str(refusal.value)


def test_spheres_are_those_of_pyscf() -> None:
    sizes = sorted(int(number) for number in dft.gen_grid.LEBEDEV_NGRID)
    assert sizes == [1, *LEBEDEV_POINTS]


def test_hartree_fock_has_no_grid(call: Runner) -> None:
    with pytest.raises(InputError, match="Hartree-Fock has none: name one with --xc"):
        Options("cc-pvdz", grid="5")
    said = call("run", "h2o.xyz", "--basis", "cc-pvdz", "--grid", "5").message
    assert "--grid 5 is of a functional, and Hartree-Fock has none" in said


@pytest.mark.parametrize(
    ("xc", "level"),
    [
        ("lda,vwn", 3),
        ("PBE", 3),
        ("b3lyp", 3),
        ("0.25*hf+0.75*b88,0.8*lyp", 3),
        ("tpss", 3),
        ("pw6b95", 3),
        ("scan", 5),
        ("scan0", 5),
        (",scan", 5),
        ("0.5*pbe+0.5*scan,scan", 5),
        ("revscan,revscan", 5),
        ("r2scan", 4),
        ("r2scan0", 4),
        ("rscan", 4),
        ("m06-2x", 4),
        ("M06_L", 4),
        ("m05-2x", 4),
        ("mn15-l,mn15-l", 4),
        ("mn15,mn15", 4),
    ],
)
def test_the_default_follows_the_functional(xc: str, level: int) -> None:
    assert grid.default_level(xc) == level
    assert grid.grid_name(None, xc) == str(level)
    assert grid.grid_name("99,590", xc) == "99,590"


@pytest.mark.parametrize("name", ["0", "3", "5", "9", "50,194", "99,590", "23,38"])
def test_points_are_those_of_pyscf_and_known_before_they_are_made(name: str) -> None:
    mole = gto.M(atom="Br 0 0 0; H 0 0 1.4; He 0 2 0", spin=None, basis="sto-3g", verbose=0)
    theirs = dft.gen_grid.Grids(mole)
    if "," in name:
        theirs.atom_grid = tuple(map(int, name.split(",")))
    else:
        theirs.level = int(name)
    theirs.build()
    ours = grid.make_grid(mole, name)
    ours.build()
    assert np.array_equal(ours.coords, theirs.coords)
    assert np.array_equal(ours.weights, theirs.weights)
    assert 0 <= len(ours.weights) - grid.count_points(mole, name) < dft.gen_grid.ALIGNMENT_UNIT
    assert grid.name_of_grid(theirs) == name
    finer = grid.finer_name(name)
    assert grid.count_points(mole, finer) > 1.5 * grid.count_points(mole, name)
    assert Options("x", method="drpa", xc="pbe", grid=finer).grid == finer


@pytest.mark.parametrize(
    ("name", "finer"),
    [
        ("0", "2"),
        ("3", "5"),
        ("8", "9"),
        ("9", "280,2030"),
        ("50,194", "70,434"),
        ("75,302", "105,590"),
        ("99,600", "139,974"),
        ("1000,5810", "1000,5810"),
    ],
)
def test_the_finer_grid_is_two_levels_up(name: str, finer: str) -> None:
    assert grid.finer_name(name) == finer


def test_the_grid_is_used_and_stored(call: Runner, tmp_path: Path) -> None:
    """Energies are those of PySCF on that grid, and differ from those on another one."""
    found = dfmp2.run(RADICAL, **PBE, grid=(23, 50), scf_conv_tol=1e-11)
    mole = gto.loads(found.mole_json)
    mf = dft.UKS(mole, xc="pbe").density_fit(auxbasis="cc-pvdz-jkfit")
    mf.grids.atom_grid = (23, 50)
    mf.conv_tol = 1e-11
    assert found.scf_total_energy == pytest.approx(mf.run().e_tot, abs=1e-9)
    other = dfmp2.run(RADICAL, **PBE, grid=1)
    assert abs(other.scf_total_energy - found.scf_total_energy) > 1e-5
    hdf5.write(found, tmp_path / "r.h5")
    stored = hdf5.read_verified(tmp_path / "r.h5")
    said = stored.to_dict()
    assert (said["grid"], stored.options.grid) == ("23,50", "23,50")
    assert said["grid_points"] == np.count_nonzero(mf.grids.weights)
    assert (other.to_dict()["grid"], other.reference.grid_level) == ("1", 1)
    with pytest.raises(InputError, match="another integration grid has other orbitals"):
        dfmp2.derive(stored, grid=4)
    again = dfmp2.derive(stored, grid=(23, 50))
    assert again.total_energy == stored.total_energy
    asked = ("--basis", "cc-pvdz", "--method", "drpa", "--xc", "pbe", "--grid", "23,50")
    succeed(call("run", "h2.xyz", *asked, "--output", "hydrogen.h5"))
    assert hdf5.read("hydrogen.h5").reference.grid == "23,50"


def test_another_grid_is_another_calculation(tmp_path: Path) -> None:
    target = tmp_path / "w.h5"
    settings = {**PBE, "scf_conv_tol": 1e-11, "grid": 0}
    with Stopping(every=4), pytest.raises(Interrupted):
        dfmp2.run(RADICAL, **settings, checkpoint=target)
    with pytest.raises(ForeignCheckpoint, match=r"grid \(0 there, 1 here\)"):
        dfmp2.run(RADICAL, **settings | {"grid": 1}, checkpoint=target, resume=True)
    again = dfmp2.run(RADICAL, **settings, checkpoint=target, resume=True)
    assert again.reference.grid == "0"


def test_a_prepared_file_has_its_grid(tmp_path: Path) -> None:
    dfmp2.prepare(HELIUM, "cc-pvdz", tmp_path / "p.h5", xc="pbe", grid=1)
    found = dfmp2.energy(tmp_path / "p.h5")
    assert (found.reference.grid, found.options.grid) == ("1", "1")
    whole = dfmp2.run(HELIUM, **PBE, grid=1)
    assert found.total_energy == pytest.approx(whole.total_energy, abs=1e-10)
    with pytest.raises(InputError, match=r"grid belongs to what dfmp2\.prepare has already done"):
        dfmp2.energy(tmp_path / "p.h5", grid=2)


def test_qcschema_takes_a_grid() -> None:
    for given, name in ((4, "4"), ("50,194", "50,194"), ([50, 194], "50,194")):
        options = qcschema.read_keywords("cc-pvdz", "drpa", {"xc": "pbe", "grid": given}, {})
        assert options.grid == name


def on_own_grid(**of_the_grid: Any) -> Any:
    """A converged RKS of PySCF with what is given set on its grid."""
    mf = dft.RKS(gto.M(atom="H 0 0 0; F 0 0 0.92", basis="6-31g", verbose=0), xc="pbe")
    for name, value in of_the_grid.items():
        setattr(mf.grids, name, value)
    mf.conv_tol = 1e-10
    return mf.run()


def test_a_mean_field_keeps_its_grid() -> None:
    for given in ((30, 110), {"H": (30, 110), "F": (30, 110)}, {"default": (30, 110)}):
        mf = on_own_grid(atom_grid=given)
        found = dfmp2.from_mean_field(mf, "cc-pvdz-ri", method="drpa")
        assert found.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-9)
        assert (found.reference.grid, found.options.grid) == ("30,110", "30,110")
        assert found.reference.grid_points == np.count_nonzero(mf.grids.weights)
    with pytest.raises(InputError, match="grid belongs to the SCF"):
        dfmp2.from_mean_field(mf, "cc-pvdz-ri", method="drpa", grid=3)
    with pytest.raises(InputError, match="other points for other atoms"):
        dfmp2.from_mean_field(on_own_grid(atom_grid={"F": (30, 110)}), "cc-pvdz-ri", method="drpa")
    with pytest.raises(InputError, match=r"grids\.prune = None"):
        dfmp2.from_mean_field(on_own_grid(prune=None), "cc-pvdz-ri", method="drpa")


def test_options_of_a_functional_are_checked_before_it_runs() -> None:
    with pytest.raises(InputError, match='grid="99,600": there is no Lebedev sphere'):
        dfmp2.run(HELIUM, **PBE, grid="99,600")
    assert make_options(**PBE, grid=5).grid == "5"
