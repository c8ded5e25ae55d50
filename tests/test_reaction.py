"""Reactions: numbers against PySCF's DF-MP2 and against formulas, balance, stored results, and
refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import scf

import dfmp2
from dfmp2.cli.reaction import ReactionOptions
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.output.reports.study import _listed_runs
from dfmp2.studies import reaction as reactions
from dfmp2.studies import species
from dfmp2.studies.species import (
    read_reaction,
)
from tests.awkward import EXACT, mean_field, read, spin_energies
from tests.conftest import Runner, succeed
from tests.faults import finished_in_stops
from tests.ideal_gas import ideal_gas
from tests.springs import on_springs, pyramid, pyramids

SMALL = {"threads": 1, "listener": dfmp2.Listener()}
MOLECULES = {
    "h": "1\nmultiplicity=2\nH 0 0 0\n",
    "linear-h3": "3\nmultiplicity=2\nH 0 0 -0.9423\nH 0 0 0\nH 0 0 0.9423\n",
}


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The molecules of all tests, and those of these, in the working directory."""
    monkeypatch.chdir(folder)
    for name, text in MOLECULES.items():
        (folder / f"{name}.xyz").write_text(text)
    return folder


SPECIES = {
    "proton": read("charge=1", "H 0 0 0", "He 0 0 0.77"),
    "h2": read("", "H 0 0 0", "H 0 0 0.74"),
    "h3": read("charge=1", "H 0 0 0", "H 0.87 0 0", "H 0.435 0.753 0"),
    "he": read("", "He 0 0 0"),
    "hf": read("", "H 0 0 0", "F 0 0 0.92"),
    "h": read("multiplicity=2", "H 0 0 0"),
    "f": read("multiplicity=2", "F 0 0 0"),
}


@pytest.mark.parametrize(
    ("reactants", "products"), [(["hf"], ["h", "f"]), (["proton", "h2"], ["h3", "he"])]
)
def test_reaction_energies_are_differences_of_those_of_pyscf(
    reactants: list[str], products: list[str]
) -> None:
    """Of a bond that breaks, and of a proton that goes from helium to hydrogen."""
    sides = [[SPECIES[name] for name in side] for side in (reactants, products)]
    study = dfmp2.reaction(*sides, **EXACT)
    expected = np.zeros(3)
    for sign, molecules in zip((-1, 1), sides, strict=True):
        for molecule in molecules:
            mf = mean_field(molecule, scf.UHF)
            expected += sign * np.array([mf.e_tot, *spin_energies(mf, 0)])
    for name, energy in (
        ("", expected.sum()),
        ("scf_", expected[0]),
        ("mp2_same_spin_correlation_", expected[1]),
        ("mp2_opposite_spin_correlation_", expected[2]),
    ):
        found = study.values[f"{name}reaction_energy"].value
        assert found == pytest.approx(energy, abs=1e-8), name
    assert study.table["coefficient"].values == [-1.0] * len(reactants) + [1.0] * len(products)


def test_a_reaction_is_the_same_in_a_file_and_in_options(folder: Path) -> None:
    (folder / "r.toml").write_text(
        """reactants = ["hcn.xyz", "2*h.xyz"]
        products = ["n.xyz"]
        charges = { n = -1 }
        multiplicities = { h = 2 }
        symmetry_numbers = { hcn = 1 }
        transition_states = ["hcn", "n"]"""
    )
    given = ReactionOptions(
        file=None,
        reactants="hcn.xyz,2*h.xyz",
        products="n.xyz",
        charges="n=-1",
        multiplicities="h=2",
        symmetry_numbers="hcn=1",
        transition_states="hcn, n",
    )
    assert given.read() == read_reaction("r.toml")


@pytest.mark.parametrize("separate", [False, True])
def test_an_atom_has_its_energy_where_others_have_gradients(separate: bool) -> None:
    """Of the mean field too, where it is asked for, as at the limit of two basis sets."""
    options = Options("6-31g", threads=1)
    found = reactions._gradient(SPECIES["he"], options, separate=separate)
    assert found.gradient is None and found.total_energy < -2.8
    gradient = reactions._gradient(
        Molecule.from_string("H 0 0 0; H 0 0 0.7"), options, separate=separate
    ).gradient
    assert gradient is not None and (gradient.scf_total_gradient is not None) is separate


def test_the_hessian_of_a_species_is_that_of_the_geometry_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a minimum and of a saddle point, whose search begins with the Hessian of another geometry."""
    tilts, energies = pyramids()
    moved = np.array([[0, 0, 0.1], [0.05, 0, 0], [0, -0.06, 0.1], [0.02, 0.1, -0.1]])
    places = {"low": pyramid(tilts[0]), "ts": pyramid(tilts[1]) + moved}
    low, ts = (Molecule(("N", "H", "H", "H"), at, name=name) for name, at in places.items())
    on_springs(monkeypatch, ts)
    checked: list[Any] = []
    monkeypatch.setattr(species, "require_stationary", lambda run: checked.append(run.molecule))
    wishes = {"optimize": True, "frequencies": True, "transition_states": ["ts"]}
    study = dfmp2.reaction([low], [ts], "sto-3g", **wishes, **SMALL)
    expected = energies[1] - energies[0]
    assert study.values["reaction_energy"].value == pytest.approx(expected, abs=1e-6)
    for name in places:
        place = replace(ts, coordinates=study.arrays[f"{name}_geometry"].value)
        alone = dfmp2.frequencies(place, "sto-3g", **SMALL)
        found = [study.arrays[f"{name}_{kind}"].value for kind in ("hessian", "wavenumbers")]
        np.testing.assert_allclose(found[0], alone.arrays["hessian"].value, atol=1e-9)
        assert found[1] == pytest.approx(alone.table["wavenumber"].values, rel=1e-9)
        assert np.array_equal(checked.pop(0).coordinates, place.coordinates)
    assert [one["transition_state"] for one in study.settings["species"]] == [False, True]
    assert not any("-x" in name for name in _listed_runs(study))


def test_the_free_energy_of_a_dissociation(monkeypatch: pytest.MonkeyPatch) -> None:
    """H2 -> 2 H at 1 mol/l from its one wavenumber: translation, rotation, vibration and spin
    written out. An atom has no Hessian."""
    pair, atom = (SPECIES[name] for name in ("h2", "h"))
    on_springs(monkeypatch, pair)
    wishes = {"frequencies": True, "optimize": True, "temperature": 500.0, "standard_state": "1M"}
    study = dfmp2.reaction([pair], [(2, atom)], "6-31g", **wishes, **SMALL)
    label = next(iter(study.runs)).partition(":")[0]
    places, wavenumbers = (
        study.arrays[f"{label}_{kind}"].value for kind in ("geometry", "wavenumbers")
    )
    conditions = {"kelvin": 500.0, "pascal": 1000 * 8.31446261815324 * 500.0}
    gases = []
    for where, waves, energy, multiplicity in (
        (places, wavenumbers, study.table["total_energy"].values[0], 1),
        ([[0, 0, 0]], [], study.table["total_energy"].values[1], 2),
    ):
        gas = ideal_gas(
            masses=[1.00782503] * len(where),
            places=where,
            wavenumbers=waves,
            energy=energy,
            multiplicity=multiplicity,
            symmetry=len(where),
            **conditions,
        )
        gases.append(gas)
    for of_reaction, name in (
        ("energy_at_0_kelvin", "total_energy_at_0_kelvin"),
        ("enthalpy", "enthalpy"),
        ("entropy", "entropy"),
        ("gibbs_energy", "gibbs_energy"),
    ):
        expected = 2 * gases[1][name] - gases[0][name]
        found = study.values[f"reaction_{of_reaction}"].value
        assert found == pytest.approx(expected, rel=1e-7), name
    assert study.settings["pressure"] == pytest.approx(conditions["pascal"], rel=1e-10)
    hessian = [run for name, run in study.runs.items() if "step" not in name]
    assert {run.options.scf_conv_tol for run in hessian} == {1e-11}  # the search may be looser


def test_a_mode_without_curvature_is_left_out_of_the_gas_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its force constant is negative within the noise; its entropy would be large."""
    pair, atom = (SPECIES[name] for name in ("h2", "h"))
    on_springs(monkeypatch, pair)
    whole = species.hessian
    monkeypatch.setattr(species, "hessian", lambda *given: -1e-6 * whole(*given))
    wishes = {"frequencies": True, "allow_gradient": True}
    study = dfmp2.reaction([pair], [(2, atom)], "6-31g", **wishes, **SMALL)
    assert study.table["zero_point_energy"].values == [0.0, 0.0]
    assert "1 mode whose curvature is zero within the noise" in " ".join(study.notes)


@pytest.mark.slow
@pytest.mark.usefixtures("workers")
def test_a_stopped_reaction_goes_on(call: Runner, folder: Path) -> None:
    """The same command gives the numbers of an uninterrupted one (2e-9 Eh: resumed SCFs take other
    iterations); with workers too."""
    asked = ("reaction", "--reactants", "h2.xyz,h.xyz", "--products", "linear-h3.xyz")
    asked += ("--basis", "6-31g", "--frequencies", "--allow-gradient", "--json", "--threads", "1")
    done, stops = finished_in_stops(call, *asked, "--output", "x.h5", "--resume", every=60)
    assert stops >= 2
    once = json.loads(succeed(call(*asked, "--output", "y.h5")).out)
    shared = json.loads(succeed(call(*asked, "--output", "z.h5", "--workers", "2")).out)
    for other in (json.loads(succeed(done).out), shared):
        assert other["reaction_gibbs_energy"] == pytest.approx(
            once["reaction_gibbs_energy"], abs=1e-8
        )
    assert "linear-h3 is a transition state" in " ".join(once["notes"])
