"""Integration grids: values of `--grid`, the default for a functional, points, and stored data."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import df, dft, gto, scf, symm
from pyscf.gw import urpa
from scipy import linalg

import dfmp2
from dfmp2.errors import ForeignCheckpoint, InputError, Interrupted
from dfmp2.integrals import grid
from dfmp2.interop import qcschema
from dfmp2.molecule.mole import fitting_data
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.error_estimates import (
    GRID,
    GRID_ALONE,
    GRID_LEAST,
    GRID_LEFT,
    kohn_sham_grid_error,
    largest_kohn_sham_error,
)
from dfmp2.mp2.error_of_difference import combined
from dfmp2.options import Options, make_options
from dfmp2.options.values import LEBEDEV_POINTS
from dfmp2.output import hdf5
from dfmp2.output.document import size
from dfmp2.output.reports.method import _grid_facts
from dfmp2.output.text import report
from dfmp2.planning.memory import MemoryPlan
from dfmp2.planning.plan import foresee
from dfmp2.progress import Silent
from dfmp2.scf import grid_error as scf_grid_error
from dfmp2.scf import kohn_sham
from dfmp2.scf.reference import GridError
from tests.awkward import read
from tests.faults import Stopping
from tests.recorded import recorded_error

RADICAL = Molecule(
    ("O", "H"), np.array([[0.0, 0.1, 0.2], [0.3, 0.4, 2.0]]), charge=0, multiplicity=2
)
WATER = Molecule(
    ("O", "H", "H"), np.array([[0.0, 0.1, 0.22], [0.1, 1.53, -0.89], [0.0, -1.43, -0.79]])
)
ION = Molecule(("O", "H"), np.array([[0.0, 0.1, 0.2], [0.3, 0.4, 2.0]]), charge=-1)
BROMINE = Molecule(("H", "Br"), np.array([[0.0, 0.0, 0.0], [0.2, 0.0, 2.66]]))
HELIUM = Molecule(("He",), np.zeros((1, 3)))
PBE: dict[str, Any] = {"basis": "6-31g", "threads": 1, "method": "drpa", "xc": "pbe"}


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
    assert qcschema.read_keywords("x", "drpa", {"xc": "pbe", "grid": given}, {}).grid == name


def test_spheres_are_those_of_pyscf() -> None:
    sizes = sorted(int(number) for number in dft.gen_grid.LEBEDEV_NGRID)
    assert sizes == [1, *LEBEDEV_POINTS]
    assert sorted({dft.gen_grid.LEBEDEV_ORDER[n] for n in dft.gen_grid.ANG_ORDER.flat}) == list(
        grid.SPHERES[:-2]
    )


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
        ("rppscan,rppscan", 4),
        ("mgga_x_r4scan", 4),
        ("m08-hx,m08-hx", 4),
        ("m11,m11", 4),
        ("revm11,revm11", 4),
        ("hyb_mgga_x_revm06", 4),
        ("mn12-sx,mn12-sx", 4),
    ],
)
def test_the_default_follows_the_functional(xc: str, level: int) -> None:
    assert grid.default_level(xc) == level
    assert grid.grid_name(None, xc) == str(level)
    assert grid.grid_name("99,590", xc) == "99,590"


@pytest.mark.parametrize(
    "name", ["0", "3", pytest.param("9", marks=pytest.mark.slow), "50,194", "23,38"]
)
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
    counted = grid.count_points(grid.make_grid(mole, name))
    assert 0 <= len(ours.weights) - counted < dft.gen_grid.ALIGNMENT_UNIT
    larger = grid.make_finer_grid(mole, name)
    more = grid.count_points(larger)
    assert 0 <= len(larger.build(sort_grids=False).weights) - more < dft.gen_grid.ALIGNMENT_UNIT
    assert grid.name_of_grid(theirs) == name
    finer = grid.finer_name(mole, name, "pbe")
    assert grid.count_points(grid.make_finer_grid(mole, finer)) > 1.5 * counted
    assert Options("x", method="drpa", xc="pbe", grid=finer).grid == finer


@pytest.mark.parametrize(
    ("name", "finer"),
    [
        ("0", "3"),
        ("1", "3"),
        ("3", "5"),
        ("8", "9"),
        ("9", "280,2030"),
        ("30,50", "3"),
        ("50,302", "70,590"),
        ("75,302", "105,590"),
        ("99,590", "139,974"),
        ("1000,5810", "1000,5810"),
    ],
)
def test_the_finer_grid_is_two_levels_up_and_at_least_the_default(name: str, finer: str) -> None:
    mole = gto.M(atom="He 0 0 0", basis="sto-3g", verbose=0)
    assert grid.finer_name(mole, name, "pbe") == finer
    assert grid.finer_name(mole, "2", "scan") == "5"
    assert grid.finer_name(mole, "5", "scan") == "7"


@pytest.mark.usefixtures("coarse_grid_error")
def test_the_grid_is_used_and_stored(tmp_path: Path) -> None:
    """Energies equal PySCF's on that grid."""
    settings = {**PBE, "basis": "sto-3g", "scf_conv_tol": 1e-11}
    found = dfmp2.run(RADICAL, **settings, grid=(23, 50))
    mole = gto.loads(found.mole_json)
    fitting = fitting_data(found.molecule, found.scf_fitting)
    mf = dft.UKS(mole, xc="pbe").density_fit(auxbasis=fitting)
    mf.grids.atom_grid = (23, 50)
    assert found.scf_total_energy == pytest.approx(mf.run(conv_tol=1e-11).e_tot, abs=1e-9)
    hdf5.write(found, tmp_path / "r.h5")
    stored = hdf5.read(tmp_path / "r.h5")
    said = stored.to_dict()
    assert (said["grid"], stored.options.grid) == ("23,50", "23,50")
    assert said["grid_points"] == np.count_nonzero(mf.grids.weights)
    with recorded_error(InputError):
        dfmp2.derive(stored, grid=4)
    assert dfmp2.derive(stored, grid=(23, 50)).total_energy == stored.total_energy


@pytest.mark.usefixtures("coarse_grid_error")
def test_a_mean_field_keeps_its_grid() -> None:
    mf = dft.RKS(gto.M(atom="H 0 0 0; F 0 0 0.92", basis="sto-3g", verbose=0), xc="pbe")
    mf.grids.atom_grid = (30, 110)
    mf.run(conv_tol=1e-10)
    for given in ((30, 110), {"H": (30, 110), "default": (30, 110)}):
        mf.grids.atom_grid = given
        found = dfmp2.from_mean_field(mf, method="ks")
        assert found.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-9)
        assert (found.reference.grid, found.options.grid) == ("30,110", "30,110")
        assert found.reference.grid_points == np.count_nonzero(mf.grids.weights)
    with recorded_error(InputError):
        dfmp2.from_mean_field(mf, "cc-pvdz-ri", method="drpa", grid=3)
    for other in (
        {"atom_grid": {"F": (30, 110)}},
        {"prune": None},
        {"prune": dft.gen_grid.sg1_prune},
        {"radi_method": dft.radi.gauss_chebyshev},
        {"becke_scheme": dft.gen_grid.stratmann},
        {"radii_adjust": dft.radi.becke_atomic_radii_adjust},
        {"atom_grid": {"H": (20, 50), "F": (30, 110)}},
        {"atom_grid": {"O": (30, 110)}},
    ):
        mf.grids = dft.Grids(mf.mol).set(**other)
        with recorded_error(InputError):
            dfmp2.from_mean_field(mf, "cc-pvdz-ri", method="drpa")


# --- the measured error ---------------------------------------------------------------------------


def oracle(found: Any, finer: str) -> list[float]:
    """Errors of E(KS), E(EXX) and E(RPA): the module's equations written out with PySCF, with
    orbitals of both spins."""
    mole = gto.loads(found.mole_json)
    reference = found.reference
    spins = [0, reference.nspin - 1]
    coeff, energy = reference.mo_coeff[spins], reference.mo_energy[spins]
    occ = reference.mo_occ[spins] / (3 - reference.nspin)
    density = (coeff * occ[:, None]) @ coeff.swapaxes(1, 2)
    energies, potentials = [], []
    for points in (grid.make_grid(mole, reference.grid), grid.make_finer_grid(mole, finer)):
        points.build(with_non0tab=True)
        _, e, v = dft.numint.NumInt().nr_uks(mole, points, reference.xc, density)
        energies.append(e)
        potentials.append(v)
    change = coeff.swapaxes(1, 2) @ (potentials[1] - potentials[0]) @ coeff
    moved, turn = np.linalg.eigh(change + [np.diag(e) for e in energy])
    mean_field = scf.UHF(mole).density_fit(fitting_data(found.molecule, found.scf_fitting))
    mean_field.set(mo_occ=occ, converged=True)  # so that PySCF takes the energies as they are
    fitted = df.DF(mole, auxbasis=fitting_data(found.molecule, found.mp2_fitting))
    errors = [energies[0] - energies[1], 0.0, 0.0]
    for sign, c, e in ((1, coeff, energy), (-1, coeff @ turn, moved)):
        mean_field.set(mo_coeff=c, mo_energy=e)
        errors[1] += sign * mean_field.energy_tot()
        correlation = urpa.URPA(mean_field).set(with_df=fitted, verbose=0)
        correlation.kernel(nw=100)
        errors[2] += sign * correlation.e_corr
    return errors


@pytest.mark.parametrize(
    ("molecule", "xc", "name"),
    [
        pytest.param(WATER, "scan", "20,50", marks=pytest.mark.slow),
        (WATER, "b3lyp", "0"),
        pytest.param(RADICAL, "r2scan", "0", marks=pytest.mark.slow),
        (RADICAL, "pbe0", "20,86"),
    ],
    ids=str,
)
def test_the_error_is_what_the_equations_say(molecule: Molecule, xc: str, name: str) -> None:
    settings = {**PBE, "basis": "sto-3g", "xc": xc, "grid": name, "scf_conv_tol": 1e-11}
    found = dfmp2.run(molecule, **settings, allow_small_gap=True)
    measured = found.to_dict()["grid_error"]
    expected = oracle(found, measured["finer_grid"])
    points = grid.make_finer_grid(gto.loads(found.mole_json), measured["finer_grid"]).build()
    assert measured["finer_grid_points"] == np.count_nonzero(points.weights)
    names = ("scf_total_energy", "hf_total_energy", "correlation_energy")
    assert 0 < found.grid_certificate.seconds < found.timings.total
    for key, value in zip(names, expected, strict=True):
        assert abs(value) > 1e-6  # so that it is seen
        assert measured[key] == pytest.approx(value, rel=2e-2, abs=1e-9), key


@pytest.mark.parametrize(
    ("molecule", "xc", "basis", "asked"),
    [
        (ION, "pbe", "sto-3g", "50,110"),
        pytest.param(WATER, "pbe", "6-31g", "50,110", marks=pytest.mark.slow),
        pytest.param(RADICAL, "r2scan", "cc-pvdz", 1, marks=pytest.mark.slow),
        pytest.param(ION, "m06-2x", "6-31+g*", 1, marks=pytest.mark.slow),
        pytest.param(BROMINE, "b3lyp", "6-31g", "30,86", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_run_on_a_fine_grid_lies_within_what_was_stated(
    molecule: Molecule, xc: str, basis: str, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is a separate SCF on a finer grid than that used to measure the error."""
    settings = {
        **PBE,
        "basis": basis,
        "auxbasis": "auto",
        "xc": xc,
        "scf_conv_tol": 1e-11,
        "tolerance": 1e-9,
        "allow_small_gap": True,
    }
    found = dfmp2.run(molecule, **settings, grid=asked)
    monkeypatch.setattr(scf_grid_error, "with_grid_error", lambda mf, reference, **_: reference)
    exact = dfmp2.run(molecule, **settings, grid=5)
    assert exact.to_dict()["grid_error"] is None
    source = found.error_budget.sources["grid"]
    errors = (
        (found.total_energy - exact.total_energy, found.grid_error_total),
        (found.hf_total_energy - exact.hf_total_energy, source.scf.value),
        (found.correlation_energy - exact.correlation_energy, source.correlation.value),
    )
    for wrong, stated in errors:
        assert abs(wrong) <= stated
    largest = max(abs(wrong) for wrong, _ in errors)
    assert (found.grid_error_total or 0.0) <= 4 * largest + 1e-8
    kohn_sham = kohn_sham_grid_error(found.reference, found.molecule.natom)
    wrong = abs(found.scf_total_energy - exact.scf_total_energy)
    assert wrong <= kohn_sham.value <= 4 * wrong + 1e-6


@pytest.mark.parametrize(
    ("symbol", "spin", "radial"), [("F", 2, 75), pytest.param("V", 4, 130, marks=pytest.mark.slow)]
)
def test_the_error_of_an_open_shell_depends_on_its_orientation(
    symbol: str, spin: int, radial: int
) -> None:
    """A hole in a p or a d shell, turned; against spheres of PySCF that all have 590
    points, of which its levels have 50 or 86 near a nucleus."""
    mole = gto.M(atom=symbol, basis="sto-3g", charge=1, spin=spin, verbose=0)
    mf = dft.UKS(mole, xc="pbe").run(max_cycle=100)
    record = dfmp2.run(HELIUM, **{**PBE, "method": "ks"}).reference
    level = dft.Grids(mole).build()
    fine = dft.Grids(mole).set(prune=None, atom_grid=(radial, 590)).build()
    orbitals, true = mf.mo_coeff, []
    for angles in ((0.0, 0.0, 0.0), (0.3, 0.9, 0.5)):
        turns = [
            symm.Dmatrix.Dmatrix(mole.bas_angular(shell), *angles, reorder_p=True)
            for shell in range(mole.nbas)
        ]
        mf.mo_coeff = linalg.block_diag(*turns) @ orbitals
        density = mf.make_rdm1()
        energies = [mf._numint.nr_uks(mole, points, "pbe", density)[1] for points in (level, fine)]
        true.append(energies[0] - energies[1])
        error = scf_grid_error.with_grid_error(mf, record, of_orbitals=False).grid_error
        assert error.scf_error == pytest.approx(true[-1], rel=0.2, abs=2e-8)
        assert abs(true[-1]) <= largest_kohn_sham_error(error.scf_error, "pbe", 1)
    assert max(true) - min(true) > 5e-7


@cache
def with_a_ghost() -> dfmp2.MP2Result:
    """Three atoms and a ghost on a coarse grid; not to be changed."""
    molecule = read("charge=1", "H 0 0 0", "H 0.1 0 0.9", "H 0.7 0.3 0.4", "@He -1.2 0.3 0.2")
    return dfmp2.run(molecule, **{**PBE, "basis": "sto-3g"}, grid=0, listener=Silent())


def test_the_budget_adds_changes_with_their_signs() -> None:
    """The least error of an atom is that of three atoms."""
    found = with_a_ghost()
    source = found.error_budget.sources["grid"]
    x, c = found.reference.grid_error.exx_error, found.grid_certificate.correlation_error
    larger = max(abs(x), abs(c))
    changes = np.array([abs(x) + larger, abs(c) + larger, abs(x + c) + 0.5 * larger])
    stated = source.scf.value, source.correlation.value, source.total
    assert stated == pytest.approx(changes + 6e-9, rel=1e-9)
    assert source.total == found.grid_error_total
    largest = 2.5 * abs(found.reference.grid_error.scf_error) + 3 * 4e-8
    assert found.to_dict()["grid_error"]["largest_scf_total_energy"] == pytest.approx(largest)
    error = replace(found.reference.grid_error, exx_error=c, scf_error=-4e-9)
    other = replace(
        found,
        reference=replace(found.reference, grid_error=error),
        grid_certificate=replace(found.grid_certificate, correlation_error=x),
    )
    assert abs(abs(x) - abs(c)) > 1e-7 and other.grid_error_total == found.grid_error_total
    row = found.to_dataframe().iloc[0]
    assert (row["grid"], row["grid_error"]) == ("0", found.grid_error_total)
    facts = _grid_facts(other)
    assert f"at most about {size(1e-8 + 3 * 4e-8)} Eh" in facts["grid error of E(KS)"]


def test_a_difference_takes_the_signs_of_both_runs() -> None:
    """Two molecules of the same shape, one rotated: changes add with the weights and signs of their
    own energy; the rest by magnitude, of the larger one in each run."""
    one = with_a_ghost()
    places = one.molecule.coordinates @ np.diag([1.0, -1.0, -1.0])
    turned = replace(one.molecule, coordinates=places)
    settings = {**PBE, "basis": "sto-3g", "grid": 0, "listener": Silent()}
    other = dfmp2.run(turned, **settings)
    weights = np.array([[1.0, 0.25], [-0.5, -2.0]])
    source = combined(list(zip(weights, (one, other), strict=True)), "It").sources["grid"]
    changes = weights * [
        [run.reference.grid_error.exx_error, run.grid_certificate.correlation_error]
        for run in (one, other)
    ]
    largest = np.abs(changes).max(axis=1).sum()
    least = 3 * GRID_LEAST * np.abs(weights).max(axis=1).sum()
    x, c = changes.sum(axis=0)
    alone = GRID_ALONE * largest + least
    expected = abs(x) + alone, abs(c) + alone, abs(x + c) + GRID_LEFT * largest + least
    stated = source.scf.value, source.correlation.value, source.total
    assert stated == pytest.approx(expected, rel=1e-12)
    assert "in 2 runs" in source.how
    old = [((1.0, 1.0), one), ((-1.0, -1.0), of_an_earlier_version(other, level=3))]
    added = combined(old, "The difference").sources["grid"]
    assert added.scf.value == pytest.approx(one.error_budget.sources["grid"].scf.value + 3 * GRID)


@pytest.mark.parametrize(
    ("most", "same"), [(0.9e-4, True), (-0.9e-4, True), (1.1e-4, False), (-1.1e-4, False)]
)
def test_an_error_is_measured_with_the_last_density_where_it_is_that_of_the_orbitals(
    most: float, same: bool
) -> None:
    """Within 1e-4 in each element, above and below."""
    mole = gto.M(atom="He", basis="6-31g", verbose=0)
    mf = kohn_sham.kohn_sham_mean_field(mole, "rhf", "pbe", "0").run(conv_tol=1e-9)
    density = mf.make_rdm1()
    moved = np.array(density)
    moved[0, 0] += most
    mf.latest = moved, -7.0
    found, energy = scf_grid_error._latest(mf)
    assert (energy == -7.0) == same
    np.testing.assert_array_equal(found, moved if same else density)


def of_an_earlier_version(found: Any, *, level: int, xc: str = "pbe") -> Any:
    """The result as in files that did not record grid errors."""
    reference = replace(
        found.reference, xc=xc, grid=None, grid_points=None, grid_level=level, grid_error=None
    )
    return replace(found, reference=reference, grid_certificate=None)


def test_results_of_earlier_versions_say_what_they_know(tmp_path: Path) -> None:
    found = dfmp2.run(HELIUM, **PBE, grid=1)
    hdf5.write(of_an_earlier_version(found, level=3), tmp_path / "old.h5")
    old = hdf5.read(tmp_path / "old.h5")
    assert (old.reference.grid_name, old.to_dict()["grid"]) == ("3", "3")
    assert old.to_dict()["grid_error"] is None
    source = old.error_budget.sources["grid"]
    assert source.total == pytest.approx(GRID) == old.grid_error_total
    assert old.error_budget.total is not None
    assert "finer grid" not in report(old)
    for level, xc in ((3, "scan"), (2, "pbe"), (3, "m06-2x")):
        unknown = of_an_earlier_version(found, level=level, xc=xc)
        assert unknown.grid_error_total is None and unknown.error_budget.total is None
        assert "integration grid" in unknown.error_budget.summary


def test_the_error_survives_a_stop_and_a_prepared_file(tmp_path: Path) -> None:
    settings = {**PBE, "basis": "sto-3g", "grid": 0, "scf_conv_tol": 1e-11}
    whole = dfmp2.run(ION, **settings)
    basis, method = settings.pop("basis"), settings.pop("method")
    dfmp2.prepare(ION, basis, tmp_path / "p.h5", **settings)
    second = dfmp2.energy(tmp_path / "p.h5")
    assert (second.reference.grid, second.options.grid) == ("0", "0")
    assert second.total_energy == pytest.approx(whole.total_energy, abs=1e-9)
    for other in ({"grid": 2}, {"method": "mp2"}, {"xc": "pbe0"}):
        with recorded_error(InputError):
            dfmp2.energy(tmp_path / "p.h5", **other)
    settings |= {"basis": basis, "method": method, "checkpoint": tmp_path / "w.h5"}
    with Stopping(after_scf=True), pytest.raises(Interrupted):
        dfmp2.run(ION, **settings)
    with recorded_error(ForeignCheckpoint):
        dfmp2.run(ION, **settings | {"xc": "pbe0"}, resume=True)
    resumed = dfmp2.run(ION, **settings, resume=True)
    expected = {
        key: value if isinstance(value, str) else pytest.approx(value, rel=1e-4)
        for key, value in whole.to_dict()["grid_error"].items()
    }
    for found in (second, resumed):
        assert found.to_dict()["grid_error"] == expected


@pytest.mark.slow
def test_b_on_disk_gives_the_same_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B of both sets of orbitals goes to scratch space and is removed afterwards."""
    settings = {**PBE, "grid": 1, "scf_conv_tol": 1e-11}
    in_memory = dfmp2.run(WATER, **settings)
    monkeypatch.setattr(MemoryPlan, "mp2_fits_in_core", property(lambda plan: False))
    plan = foresee(WATER, make_options(**settings), Silent(), calibrate=False).plan
    assert plan.memory.disk == 2 * plan.memory.mp2_disk > 0
    on_disk = dfmp2.run(WATER, **settings, scratch=str(tmp_path))
    assert on_disk.storage.fitted_tensor == "disk"
    assert on_disk.grid_certificate.correlation_error == pytest.approx(
        in_memory.grid_certificate.correlation_error, rel=1e-4, abs=1e-11
    )
    assert list(tmp_path.iterdir()) == []


def test_the_plan_counts_the_finer_grid_and_the_second_correlation_energy() -> None:
    def planned(**options: Any) -> Any:
        chosen = make_options(**{**PBE, **options})
        return foresee(WATER, chosen, Silent(), calibrate=False).plan

    default, fine, hartree_fock = planned(), planned(grid=9), planned(xc=None)
    mole = gto.M(atom="O 0 0 0; H 0 0 1; H 0 1 0", basis="sto-3g", verbose=0)
    assert default.work.grid == grid.count_points(grid.make_grid(mole, "3"))
    assert default.work.finer_grid == grid.count_points(grid.make_finer_grid(mole, "5"))
    assert (hartree_fock.work.grid, hartree_fock.work.finer_grid) == (0, 0)
    assert fine.memory.scf > default.memory.scf > hartree_fock.memory.scf
    assert fine.timings.scf > default.timings.scf > hartree_fock.timings.scf
    assert default.timings.pair_energies == pytest.approx(2 * hartree_fock.timings.pair_energies)


def test_one_electron_and_empty_spins_have_an_error_too() -> None:
    hydrogen = Molecule(("H",), np.zeros((1, 3)), multiplicity=2)
    found = dfmp2.run(hydrogen, **PBE, grid=0)
    exact = dfmp2.run(hydrogen, **PBE, grid=6)
    wrong = abs(found.total_energy - exact.total_energy)
    assert wrong <= found.grid_error_total


def test_orbitals_on_a_finer_grid_stay_occupied() -> None:
    """Eigenvectors of the changed Fock matrix of each spin, sorted by energy within the occupied
    and the virtual ones, even if the change makes two of them cross."""
    reference = dfmp2.run(Molecule(("He",), np.zeros((1, 3))), "6-31g", threads=1).reference
    energies = np.array([[-1.0, -0.1, 0.0, 0.9], [-2.0, 0.3, 0.4, 0.5]])
    coupling = np.zeros((2, 4, 4))
    coupling[0] = np.diag([0.0, 0.2, 0.0, -0.5])
    coupling[0, 0, 3] = coupling[0, 3, 0] = 0.01
    coupling[1] = np.diag([2.6, 0.0, 0.0, -0.3])
    orbitals = np.linalg.qr(np.random.default_rng(1).standard_normal((2, 4, 4)))[0]
    moved = replace(
        reference,
        mo_coeff=orbitals,
        mo_energy=energies,
        mo_occ=np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]),
        grid_error=GridError("5", 10, 0.0, 0.0, coupling),
    )
    found = scf_grid_error.on_finer_grid(moved)
    np.testing.assert_allclose(
        found.mo_energy, [[-1.0, 0.1, 0.0, 0.4], [0.6, 0.2, 0.3, 0.4]], atol=1e-4
    )
    for spin in (0, 1):
        fock = orbitals[spin] @ (coupling[spin] + np.diag(energies[spin])) @ orbitals[spin].T
        for energy, vector in zip(found.mo_energy[spin], found.mo_coeff[spin].T, strict=True):
            np.testing.assert_allclose(fock @ vector, energy * vector, atol=1e-12)
    with recorded_error(ValueError):
        scf_grid_error.on_finer_grid(reference)
