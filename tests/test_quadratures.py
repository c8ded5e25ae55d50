"""Methods without pair energies, Laplace SOS-MP2 and direct RPA, against tiles and PySCF; commands
that must refuse them do.

Published energies are entries of `dfmp2 validate`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import ao2mo, df, gto, scf
from pyscf.gw import rpa as pyscf_rpa
from pyscf.gw import urpa as pyscf_urpa

import dfmp2
from dfmp2.errors import InputError
from dfmp2.molecule.mole import fitting_data
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2 import laplace
from dfmp2.output import hdf5
from dfmp2.output.reports.result import in_full
from dfmp2.output.text import pair_table, report
from tests.recorded import recorded_error

pytestmark = pytest.mark.usefixtures("coarse_grid_error")
EXACT = {"basis": "6-31g", "auxbasis": "cc-pvdz-ri", "precision": "fp64", "scf_conv_tol": 1e-12}
WATER = Molecule(
    ("O", "H", "H"), np.array([[0.0, 0.0, 0.22], [0.0, 1.43, -0.89], [0.0, -1.43, -0.89]])
)
RADICAL = WATER.with_state(1, 2)
STRETCHED = Molecule(("Li", "Li"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 9.0]]))  # gap 0.15 Eh


SOS = {"method": "sos-mp2"}
OF_TRANSFORM: list[tuple[Molecule, dict[str, Any]]] = [
    (WATER, SOS),
    (WATER, {**SOS, "frozen_core": "1", "frozen_virtual": 2}),
    (WATER, {**SOS, "tolerance": 1e-9}),
    (RADICAL, SOS),
    (RADICAL, {**SOS, "reference": "rohf"}),
    (STRETCHED, {**SOS, "auxbasis": "auto"}),
    (WATER, {**SOS, "basis": "aug-cc-pvdz", "auxbasis": None, "threads": 2}),
    (RADICAL, {"method": "xygj-os"}),
    (
        RADICAL,
        {"method": "dsd-pbep86", "ss_scale": 0.0, "os_scale": 0.5, "frozen_core": 1},
    ),
    (RADICAL, {"method": "custom-dh", "xc": "camb3lyp", "os_scale": -0.4, "ss_scale": 0.0}),
]


@pytest.mark.parametrize(("molecule", "options"), OF_TRANSFORM, ids=str)
def test_laplace_is_the_sum_over_pairs(molecule: Molecule, options: dict[str, Any]) -> None:
    """SOS-MP2, and double hybrids of opposite spin."""
    settings = EXACT | options
    transformed = {"method": "sos-laplace"}
    if options["method"] != "sos-mp2":
        settings |= {"grid": "0", "tolerance": 1e-8}
        transformed = {"laplace": True}
    tolerance = settings.get("tolerance", 1e-7)
    tiles = dfmp2.run(molecule, **settings)
    found = dfmp2.run(molecule, **settings | transformed)
    assert found.quadrature is not None and found.grid_certificate is None
    assert found.mean_field_energy == pytest.approx(tiles.mean_field_energy, abs=1e-10)
    assert abs(found.correlation_energy - tiles.correlation_energy) <= (
        found.quadrature.error + 1e-11
    )
    assert 0.005 * tolerance < found.quadrature.error <= tolerance  # one less is too few
    assert found.mp2_singles_energy == pytest.approx(tiles.mp2_singles_energy, abs=1e-11)
    assert abs(found.total_energy - tiles.total_energy) <= tolerance
    assert np.isnan(found.components[0]) and found.same_spin_correlation_energy == 0.0
    assert "quadrature" in report(found)


def test_a_misjudged_size_of_the_energy_is_made_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplace, "_size", lambda *given: 1e-6)
    found = dfmp2.run(WATER, method="sos-laplace", **EXACT)
    assert found.quadrature is not None and 2e-9 < found.quadrature.error <= 1e-7


@pytest.mark.parametrize(
    ("molecule", "core"), [(WATER, 0), (WATER, 1), (RADICAL, 0), (RADICAL, 1)], ids=str
)
def test_rpa_is_that_of_pyscf_on_the_same_orbitals(molecule: Molecule, core: int) -> None:
    tolerance = 1e-10
    ours = dfmp2.run(molecule, method="drpa", frozen_core=str(core), tolerance=tolerance, **EXACT)
    mole = gto.loads(ours.mole_json)
    restricted = ours.reference.kind == "rhf"
    mf = scf.RHF(mole) if restricted else scf.UHF(mole)
    parts = ours.reference.mo_coeff, ours.reference.mo_energy, ours.reference.mo_occ
    mf.mo_coeff, mf.mo_energy, mf.mo_occ = (part[0] for part in parts) if restricted else parts
    mf.e_tot, mf.converged = ours.scf_total_energy, True
    frozen = core if restricted else ([0], [0]) if core else None
    theirs = (pyscf_rpa.RPA if restricted else pyscf_urpa.URPA)(mf, frozen=frozen)
    theirs.with_df = df.DF(mole, auxbasis=fitting_data(ours.molecule, ours.mp2_fitting))
    theirs.verbose = 0
    theirs.kernel(nw=120)
    assert ours.quadrature is not None and ours.quadrature.error <= tolerance
    assert ours.rpa_correlation_energy == pytest.approx(theirs.e_corr, abs=1e-9)


@pytest.mark.parametrize(("method", "kind"), [("sos-laplace", "laplace"), ("drpa", "rpa")])
def test_results_without_pairs_are_stored_said_and_not_derived(
    method: str, kind: str, tmp_path: Path
) -> None:
    found = dfmp2.run(RADICAL, method=method, **EXACT)
    hdf5.write(found, tmp_path / "r.h5")
    stored = hdf5.read(tmp_path / "r.h5")
    said = stored.to_dict()
    assert said == found.to_dict() and stored.quadrature == found.quadrature
    for name in ("energy", "points", "scale", "lowest", "highest", "error"):
        assert said[kind][name] == getattr(found.quadrature, name), name
    assert said["method"] == method
    assert said["total_energy"] == pytest.approx(
        said["scf_total_energy"] + said["correlation_energy"], abs=1e-12
    )
    missing = {
        "mp2_same_spin_correlation_energy",
        "mp2_correlation_energy",
        "mp2_total_energy",
        "scs_mp2_correlation_energy",
        "scs_mp2_total_energy",
        "solvent_energy",
        "smd_cds_energy",
    }
    energy = said["correlation_energy"]
    if kind == "laplace":
        assert said["opposite_spin_correlation_energy"] == energy
        assert energy == 1.3 * said["mp2_opposite_spin_correlation_energy"]
        assert said["same_spin_correlation_energy"] == 0.0
        assert said["rpa_correlation_energy"] is None
        hybrid = replace(stored.options, method="xygj-os", laplace=True)
        with recorded_error(InputError):
            dfmp2.derive(replace(stored, options=hybrid), frozen_core=1)
    else:
        assert said["rpa_correlation_energy"] == energy
        missing |= {
            "same_spin_correlation_energy",
            "opposite_spin_correlation_energy",
            "sos_mp2_correlation_energy",
            "mp2_opposite_spin_correlation_energy",
            "sos_mp2_total_energy",
        }
    absent = {name for name in said if name.endswith("_energy") and said[name] is None}
    assert absent - {"rpa_correlation_energy", "functional_energy", "dispersion_energy"} == missing
    assert "quadrature of" in str(said["error_budget"])
    assert f"{found.total_energy:.10f}" in report(stored) and "nan" not in report(stored).lower()
    assert "Pair energies" not in [section.title for section in in_full(stored, "0" * 64)]
    assert pair_table(stored) == f"{method} has no pair energies\n"
    for changes in ({"frozen_core": 1}, {"method": "mp2"}, {"os_scale": 1.2}):
        with recorded_error(InputError):
            dfmp2.derive(stored, **changes)


def test_what_one_electron_has() -> None:
    """There is no pair of opposite spins; in direct RPA an electron screens itself."""
    atom = Molecule(("H",), np.zeros((1, 3)), multiplicity=2)
    laplace, rpa = (
        dfmp2.run(atom, method=name, basis="cc-pvdz") for name in ("sos-laplace", "drpa")
    )
    assert laplace.correlation_energy == 0.0
    mole = gto.M(atom="H 0 0 0", basis="cc-pvdz", spin=1, verbose=0)
    mf = scf.uhf.UHF(mole).run()  # scf.UHF leaves the electron out of the virtual energies
    electron, virtual = mf.mo_coeff[0][:, :1], mf.mo_coeff[0][:, 1:]
    gaps = mf.mo_energy[0][1:] - mf.mo_energy[0][0]
    k = ao2mo.general(mole, (electron, virtual, electron, virtual), compact=False)
    squares = np.linalg.eigvalsh(np.diag(gaps**2) + 2 * np.sqrt(np.outer(gaps, gaps)) * k)
    exact = (np.sqrt(squares).sum() - gaps.sum() - k.trace()) / 2
    assert rpa.correlation_energy == pytest.approx(exact, abs=3e-5) and exact < -0.009
