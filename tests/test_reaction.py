"""Reactions: numbers against PySCF's DF-MP2 and against formulas, balance, stored results, and
refusals."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyscf import df, gto, scf
from pyscf.mp import dfmp2 as pyscf_dfmp2
from pyscf.mp import dfump2 as pyscf_dfump2

import dfmp2
from dfmp2.cli.reaction import ReactionOptions
from dfmp2.errors import InputError
from dfmp2.errors.messages import Option
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.output.reports.study import _listed_runs
from dfmp2.studies import reaction as reactions
from dfmp2.studies import species, species_results
from dfmp2.studies.geometric_search import Search
from dfmp2.studies.ideal_gas import GasConditions, LowModes, vibrational_entropies
from dfmp2.studies.reaction import ReactionPlan
from dfmp2.studies.species import (
    Reaction,
    equation,
    make_coefficient,
    parse_numbers,
    parse_term,
    parse_terms,
    read_reaction,
    read_species,
)
from dfmp2.studies.species_results import notes_on_gas
from tests.conftest import Runner, succeed
from tests.faults import finished_in_stops
from tests.ideal_gas import ideal_gas
from tests.recorded import recorded_error, recorded_texts
from tests.springs import on_springs, pyramid, pyramids

SMALL = {"threads": 1, "listener": dfmp2.Listener()}
FITTED = {"scf_auxbasis": "def2-universal-jkfit", "auxbasis": "cc-pvdz-ri"}
MOLECULES = {
    "h": "1\nmultiplicity=2\nH 0 0 0\n",
    "proton": "2\ncharge=1\nH 0 0 0\nHe 0 0 0.77\n",
    "he": "1\n\nHe 0 0 0\n",
    "h3": "3\ncharge=1\nH 0 0 0\nH 0.87 0 0\nH 0.435 0.753 0\n",
    "hf": "2\n\nH 0 0 0\nF 0 0 0.92\n",
    "f": "1\nmultiplicity=2\nF 0 0 0\n",
    "lithium-ion": "1\ncharge=1\nLi 0 0 0\n",
    "linear-h3": "3\nmultiplicity=2\nH 0 0 -0.9423\nH 0 0 0\nH 0 0 0.9423\n",
}


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The molecules of all tests, and those of these, in the working directory."""
    monkeypatch.chdir(folder)
    for name, text in MOLECULES.items():
        (folder / f"{name}.xyz").write_text(text)
    return folder


def pyscf_energy(text: str, charge: int = 0, spin: int = 0) -> float:
    """DF-MP2/cc-pvdz on DF-HF with the fitting sets of FITTED, all electrons correlated."""
    atoms = "; ".join(text.splitlines()[2:])
    mole = gto.M(atom=atoms, basis="cc-pvdz", charge=charge, spin=spin, verbose=0)
    field = scf.UHF(mole) if spin else scf.RHF(mole)
    field = field.density_fit(auxbasis=FITTED["scf_auxbasis"])
    field.conv_tol = 1e-12
    total = field.kernel()
    if mole.nelectron > 1:
        correlated = (pyscf_dfump2.DFUMP2 if spin else pyscf_dfmp2.DFMP2)(field)
        correlated.with_df = df.DF(mole, auxbasis=FITTED["auxbasis"])
        total += correlated.kernel()[0]
    return float(total)


def test_a_dissociation_as_in_pyscf(folder: Path) -> None:
    """Open shells, atoms, and a stated error of the difference."""
    study = dfmp2.reaction("hf.xyz", "h.xyz,f.xyz", "cc-pvdz", **FITTED, **SMALL)
    expected = (
        pyscf_energy(MOLECULES["h"], spin=1)
        + pyscf_energy(MOLECULES["f"], spin=1)
        - pyscf_energy(MOLECULES["hf"])
    )
    found = study.values["reaction_energy"].value
    assert found == pytest.approx(expected, abs=1e-7)
    assert study.values["reaction_energy_kcal_per_mol"].value == pytest.approx(
        expected * 627.5094740631, abs=1e-4
    )
    parts = [study.values[f"{name}_reaction_energy"].value for name in ("scf", "mp2_correlation")]
    assert sum(parts) == pytest.approx(found, abs=1e-12)
    budget = study.error_budget
    assert budget is not None and "reaction energy is good to" in budget.summary


def test_a_charged_reaction_as_in_pyscf(folder: Path) -> None:
    """A proton goes from helium to hydrogen; each species of both sides is run once."""
    study = dfmp2.reaction("proton.xyz,h2.xyz", "h3.xyz,he.xyz", "cc-pvdz", **FITTED, **SMALL)
    h2 = "2\n\nH 0 0 0\nH 0 0 0.74\n"
    expected = (
        pyscf_energy(MOLECULES["h3"], charge=1)
        + pyscf_energy(MOLECULES["he"])
        - pyscf_energy(MOLECULES["proton"], charge=1)
        - pyscf_energy(h2)
    )
    assert study.values["reaction_energy"].value == pytest.approx(expected, abs=1e-7)
    coefficients = dict(zip(study.runs, study.table["coefficient"].values, strict=True))
    assert coefficients == {"proton": -1.0, "h2": -1.0, "h3": 1.0, "he": 1.0}


def test_coefficients_and_species_on_both_sides(folder: Path) -> None:
    """A catalyst cancels, a species that occurs twice is run once, and fractions are exact."""
    sides = ("1/2*h2.xyz,h.xyz", ["h.xyz", (1, "h.xyz")])
    study = dfmp2.reaction(*sides, "6-31g", **SMALL)
    assert study.table["coefficient"].values == [-0.5, 1.0]
    energies = {name: run.total_energy for name, run in study.runs.items()}
    assert study.values["reaction_energy"].value == pytest.approx(
        energies.pop("h") - energies.pop("h2") / 2, abs=1e-14
    )
    assert energies == {} and "1/2 h2 -> h" in study.title


def test_a_species_is_another_where_atoms_places_state_or_source_differ() -> None:
    """Coefficients of one species are added; others of its name get numbers."""
    hydroxide = Molecule(("O", "H"), [[0, 0, 0], [0, 0, 1.8]], charge=-1)
    others = (
        replace(hydroxide, symbols=("S", "H")),
        replace(hydroxide, charge=1),
        replace(hydroxide, multiplicity=3),
        replace(hydroxide, coordinates=[[0, 0, 0], [0, 0, 1.9]]),
    )
    found: list[species.Species] = []
    for molecule in (hydroxide, *others, hydroxide):
        species._add(found, species.Species("oh", Fraction(1, 2), molecule))
    candidate: Any = "a stored result"
    species._add(found, species.Species("oh", Fraction(2), hydroxide, candidate))
    assert [(one.label, one.coefficient) for one in found] == [
        ("oh", 1),
        *((f"oh-{number}", Fraction(1, 2)) for number in (2, 3, 4, 5)),
        ("oh-6", 2),
    ]


def test_one_third_is_exact() -> None:
    assert 3 * make_coefficient("1/3", Option("reactants")) == 1
    assert parse_term("0.1*a.xyz", Option("x")) == (Fraction(1, 10), "a.xyz")
    assert parse_terms(" 2 * a.xyz , b.xyz", Option("x")) == [(2, "a.xyz"), (1, "b.xyz")]


def test_the_file_of_a_reaction(call: Runner, folder: Path) -> None:
    """Paths are relative to its folder; the command names errors in it."""
    inner = folder / "inner"
    inner.mkdir()
    (inner / "bare.xyz").write_text("1\n\nH 0 0 0\n")
    text = 'reactants = ["../h2.xyz"]\nproducts = ["2*bare.xyz"]\nmultiplicities = { bare = 2 }\n'
    (inner / "split.toml").write_text(text)
    asked = ("--basis", "6-31g", "--units", "bohr", "--json")
    found = json.loads(succeed(call("reaction", "inner/split.toml", *asked)).out)
    assert np.linalg.norm(np.diff(found["runs"]["h2"]["geometry"], axis=0)) == pytest.approx(0.74)
    assert found["output"] == "split.reaction.h5" and found["equation"] == "h2 -> 2 bare"
    energies = {name: run["mp2_total_energy"] for name, run in found["runs"].items()}
    assert found["reaction_energy"] == pytest.approx(2 * energies["bare"] - energies["h2"])
    assert found["error_budget"]["mp2_total_energy"] > 0
    for wrong in (
        "reactants = 1",
        "basis = 'cc-pvdz'",
        "reactants = [",
        "#" * 2**20 + "\n",
        text + "charges = { bare = 0.5 }\n",
        text + "transition_states = 'bare'\n",
    ):
        (inner / "wrong.toml").write_text(wrong)
        with recorded_error(InputError):
            read_reaction(inner / "wrong.toml")


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


def test_names_and_numbers_on_the_command_line() -> None:
    option = Option("charges")
    assert parse_numbers("oh=-1, na=+1", option) == {"oh": -1, "na": 1}
    for wrong in ("oh", "oh=x", "oh=1.5", "=1", "oh=1,"):
        with recorded_error(InputError):
            parse_numbers(wrong, option)


def test_stored_results_take_part(folder: Path) -> None:
    """They are not recomputed, must be of one level, and need no basis if alone."""
    for name in ("h2", "h"):
        dfmp2.write(dfmp2.run(f"{name}.xyz", "6-31g", threads=1), f"{name}.h5")
    study = dfmp2.reaction("h2.h5", "2*h.h5", **SMALL)
    again = dfmp2.reaction("h2.xyz", "2*h.h5", "6-31g", **SMALL)
    assert study.values["reaction_energy"].value == pytest.approx(
        again.values["reaction_energy"].value, abs=1e-12
    )
    said = " ".join(again.notes)
    assert "h is a stored result" in said and "fitting errors" not in said
    with recorded_error(InputError):
        dfmp2.reaction("h2.xyz", "2*h.h5", "cc-pvdz", **SMALL)
    Path("h.gbs").write_text("H 0\nS 2 1.0\n5.45 0.156\n0.825 0.905\nS 1 1.0\n0.183 1.0\n****\n")
    own = {"basis": "h.gbs", "auxbasis": "def2-svp-ri", "scf_auxbasis": "def2-universal-jkfit"}
    dfmp2.write(dfmp2.run("h.xyz", **own, threads=1), "own.h5")
    assert dfmp2.reaction("h2.xyz", "2*own.h5", **own, **SMALL).complete
    # Each has its part of the basis, and the core of fluorine is frozen on both sides.
    given = {"frozen_core": "auto", **SMALL}
    for name, basis in (("h", "6-31g"), ("hf", "6-31g,F=cc-pvdz")):
        dfmp2.write(dfmp2.run(f"{name}.xyz", basis, **given), f"{name}-part.h5")
    assert dfmp2.reaction("hf-part.h5", "h-part.h5,f.xyz", "6-31g,F=cc-pvdz", **given).complete
    with recorded_error(InputError):
        dfmp2.reaction("h2.xyz", "2*h.h5", "6-31g", multiplicities={"h": 4}, **SMALL)


def test_a_stored_hessian_beside_energies(folder: Path) -> None:
    """Atoms need none; other molecules without one are named, and leave no Gibbs energy."""
    stored = dfmp2.frequencies(
        "h2.xyz", "6-31g", allow_gradient=True, temperature=310.0, output="h2.h5", **SMALL
    )
    atoms = dfmp2.reaction("h2.h5", "2*h.xyz", "6-31g", **SMALL)
    (wavenumber,) = stored.table["wavenumber"].values
    assert atoms.values["reaction_energy_at_0_kelvin"].value == pytest.approx(
        atoms.values["reaction_energy"].value - wavenumber / 2 / 219474.6313632, abs=1e-10
    )
    low = {"quasi_harmonic": "grimme", "cutoff": 1000.0, "frequencies": True}
    dfmp2.write(dfmp2.run("h.xyz", "6-31g", threads=1), "h.h5")
    soft = dfmp2.reaction(
        "h2.h5", "2*h.h5", "6-31g", symmetry_numbers={"h2": 6}, scale=0.5, **low, **SMALL
    )
    assert soft.values["reaction_energy_at_0_kelvin"].value == pytest.approx(
        soft.values["reaction_energy"].value - wavenumber / 4 / 219474.6313632, abs=1e-10
    )
    risen = soft.values["reaction_entropy"].value - atoms.values["reaction_entropy"].value
    shaking = vibrational_entropies(np.array([wavenumber / 2]), 298.15, LowModes("grimme", 1000.0))
    shaking -= vibrational_entropies(np.array([wavenumber]), 298.15, LowModes())
    assert shaking[0] < -0.03  # J/(mol K)
    expected = 8.31446261815 * math.log(3) - shaking[0]  # 6 instead of 2
    assert risen == pytest.approx(expected, abs=1e-9)
    for hydrogen, lacking in (("h2.h5", ["proton, h3"]), ("h2.xyz", [])):
        moved = dfmp2.reaction(f"{hydrogen},proton.xyz", "h3.xyz,he.xyz", "6-31g", **SMALL)
        said = [note for note in moved.notes if "without a Hessian" in note]
        assert said == [
            f"no enthalpy and no Gibbs energy: {names} without a Hessian" for names in lacking
        ]
        assert "reaction_gibbs_energy" not in moved.values


@pytest.mark.parametrize("frequencies", [False, True])
@pytest.mark.parametrize("optimize", [False, True])
def test_a_species_is_computed_as_it_was_asked_for(
    optimize: bool, frequencies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own search, options and charge; a saddle point only where one is asked for."""
    searches: list[Any] = []

    def course(first: Any, search: Any, *_: Any, **__: Any) -> Any:
        searches.append((first, search))
        return SimpleNamespace(path=["step-000"])

    monkeypatch.setattr(species, "Course", course)
    asked = Search(convergence="GAU_LOOSE", max_steps=7)
    plan = ReactionPlan(asked if optimize else None, frequencies, GasConditions(), True)
    loose = Options("sto-3g", scf_conv_tol=1e-8, method="scs-mp2")
    ion = Molecule(("O", "H"), np.array([[0.0, 0, 0], [0, 0, 1.8]]), charge=-1)
    for wanted in (True, False):
        one = species.Species("oh", Fraction(-2), ion, symmetry=1, transition_state=wanted)
        made = species.SpeciesCourse(one, loose, plan, dfmp2.Listener())
        assert made.first.name == ("oh:step-000" if optimize else "oh")
        assert made.first.molecule == ion and made.has_hessian == frequencies
        tight = frequencies and not optimize
        assert made.first.options == replace(loose, scf_conv_tol=1e-11 if tight else 1e-8)
        runs = 1 + 12 * frequencies + optimize * (1 + 12 * wanted)
        assert made.least_runs == runs
    sought = [search for _, search in searches]
    expected = [replace(asked, transition_state=wanted) for wanted in (True, False)]
    assert sought == (expected if optimize else [])


@pytest.mark.parametrize("separate", [False, True])
def test_an_atom_has_its_energy_where_others_have_gradients(separate: bool) -> None:
    """Of the mean field too, where it is asked for, as at the limit of two basis sets."""
    options = Options("6-31g", threads=1)
    atom = Molecule.from_string("He 0 0 0")
    found = reactions._gradient(atom, options, separate=separate)
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


def test_a_species_without_a_mass_is_refused_before_anything_runs() -> None:
    heavy = [species.Species("og", Fraction(1), Molecule.from_string("Og 0 0 0"))]
    plan = ReactionPlan(frequencies=True)
    with recorded_error(InputError):
        reactions._require_hessians(Options("sto-3g"), heavy, plan)
    reactions._require_hessians(Options("sto-3g"), heavy, replace(plan, frequencies=False))


def test_the_free_energy_of_a_dissociation(folder: Path) -> None:
    """H2 -> 2 H at 1 mol/l from its one wavenumber: translation, rotation, vibration and spin
    written out."""
    study = dfmp2.reaction(
        "h2.xyz",
        "2*h.xyz",
        "6-31g",
        frequencies=True,
        optimize=True,
        standard_state="1M",
        temperature=500.0,
        output="h2.h5",
        **SMALL,
    )
    energies = study.table["total_energy"].values
    molecule, atom = (
        ideal_gas(
            masses=[1.00782503] * len(places),
            places=places,
            wavenumbers=wavenumbers,
            energy=energy,
            multiplicity=multiplicity,
            kelvin=500.0,
            pascal=1000 * 8.31446261815324 * 500.0,
            symmetry=len(places),
        )
        for places, wavenumbers, energy, multiplicity in (
            (
                study.arrays["h2_geometry"].value,
                study.arrays["h2_wavenumbers"].value,
                energies[0],
                1,
            ),
            ([[0, 0, 0]], [], energies[1], 2),
        )
    )
    for name, of_gas in {
        "energy_at_0_kelvin": "total_energy_at_0_kelvin",
        "enthalpy": "enthalpy",
        "entropy": "entropy",
        "gibbs_energy": "gibbs_energy",
    }.items():
        expected = 2 * atom[of_gas] - molecule[of_gas]
        assert study.values[f"reaction_{name}"].value == pytest.approx(expected, rel=1e-7), name
    assert study.settings["pressure"] == pytest.approx(atom["pressure"], rel=1e-10)
    stored = dfmp2.read_study("h2.h5")
    assert stored.values["reaction_gibbs_energy"] == study.values["reaction_gibbs_energy"]
    tolerances = {
        run.options.scf_conv_tol for name, run in stored.runs.items() if "step" not in name
    }
    assert tolerances == {1e-11}  # those of the search may be looser


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


def test_a_reaction_in_one_line(folder: Path) -> None:
    terms = [parse_terms(text, Option("x")) for text in ("2*h2.xyz,o2.xyz", "2*h2o.xyz")]
    species = read_species(Reaction(*terms))
    assert equation(species) == "2 h2 + o2 -> 2 h2o"
    assert [one.molecule.multiplicity for one in species] == [1, 3, 1]
    spins = [Molecule.from_string("O 0 0 0; O 0 0 1.2", multiplicity=m) for m in (3, 1)]
    species = read_species(Reaction(*([(Fraction(1), one)] for one in spins)))
    assert [(one.coefficient, one.molecule.multiplicity) for one in species] == [(-1, 3), (1, 1)]
    assert equation(species) == "O2 -> O2-2"


@pytest.mark.parametrize(
    ("transition_state", "wavenumbers", "said"),
    [
        (False, [1600.0, 3700.0], ""),
        (True, [1600.0, 3700.0], "NO TRANSITION STATE: it has no imaginary mode"),
        (True, [-812.36, 1600.0], "a transition state: its imaginary mode, 812.4i cm.-1,"),
        (False, [-812.36, 1600.0], "a transition state: its imaginary mode, 812.4i cm.-1,"),
        (True, [-812.36, -20.04, 9.0], "NO MINIMUM .*: 2 imaginary modes, 812.4i, 20.0i cm.-1,"),
    ],
)
def test_what_is_said_of_the_kind_of_a_species(
    monkeypatch: pytest.MonkeyPatch, transition_state: bool, wavenumbers: list[float], said: str
) -> None:
    monkeypatch.setattr(species_results, "no_stationary_point", lambda result: [])
    species: Any = SimpleNamespace(label="x", stored=None, transition_state=transition_state)
    imaginary = sum(number < 0 for number in wavenumbers)
    found: Any = SimpleNamespace(
        species=species, hessian=[], wavenumbers=wavenumbers, imaginary=imaginary, result=None
    )
    plan: Any = SimpleNamespace(optimize=None)
    notes = reactions._notes([found], plan, gas=False)[1:]
    assert len(notes) == bool(said)
    assert all(re.match(f"x is {said}", note) for note in notes)


def test_what_is_said_of_the_gas_of_a_reaction() -> None:
    """Of each species that is no classical rotor, or may be degenerate in space."""
    atoms = {"oh": ("O 0 0 0; H 0 0 0.97", 2), "o": ("O 0 0 0", 3), "ne": ("Ne 0 0 0", 1)}
    atoms |= {"h2": ("H 0 0 0; H 0 0 0.74", 1), "i2": ("I 0 0 0; I 0 0 2.67", 1)}
    found: list[Any] = []
    for name, (text, multiplicity) in atoms.items():
        molecule = Molecule.from_string(text, multiplicity=multiplicity)
        result = SimpleNamespace(molecule=molecule)
        found.append(SimpleNamespace(species=SimpleNamespace(label=name), result=result))
    cold = GasConditions((20.0,), (), "1M", 0.95, LowModes("truhlar", 90.0))
    for gas in (cold, GasConditions(standard_state="1bar"), GasConditions(pressures=(2e5,))):
        recorded_texts(notes_on_gas(found, gas))


def test_an_uncertain_mode_is_left_out_of_the_gas_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Its entropy would be above 30 J/(mol K)."""
    (folder / "d.xyz").write_text("2\ncharge=1\nLi 0 0 0\nHe 0 1.2 1.55\n")
    whole = species.hessian
    monkeypatch.setattr(species, "hessian", lambda *given: -1e-4 * whole(*given))
    conditions = {"frequencies": True, "allow_gradient": True}
    study = dfmp2.reaction("lithium-ion.xyz,he.xyz", "d.xyz", "6-31g", **conditions, **SMALL)
    (wavenumber,) = study.arrays["d_wavenumbers"].value
    assert -6 < wavenumber < -1
    assert study.table["zero_point_energy"].values == [0.0, 0.0, 0.0]
    assert study.table["imaginary_modes"].values == [0.0, 0.0, 1.0]
    said = (
        f"d has 1 mode whose curvature is zero within the noise, {-wavenumber:.1f}i cm^-1, left out"
    )
    assert said in " ".join(study.notes)
