"""Studies: basis set limits, interaction energies and scans, against published numbers, PySCF and
formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyscf import scf

import dfmp2
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.composite import correlation_formula, scf_formula
from dfmp2.options import Options
from dfmp2.planning.memory import MemoryPlan
from dfmp2.studies.task import Step, examine_steps
from tests.awkward import EXACT, mean_field, read, spin_energies

# --- basis set limits -----------------------------------------------------------------------------


@pytest.mark.slow
def test_water_as_in_psi4() -> None:
    """Psi4 test dlpnomp2-2: cc-pv[tq]z, core frozen, Hartree-Fock of cc-pVQZ and X^-3 for the
    correlation energy."""
    water = Molecule.from_string("O 0 0 0; H 0.957 0 0; H -0.23961366388010 0.92651729184185 0")
    study = dfmp2.cbs(water, "cc-pv[tq]z", frozen_core="auto")
    for name, energy, allowed in (
        ("scf_total_energy", -76.0648475978853, 1e-8),
        ("mp2_correlation_energy", -0.2983537611221, 1e-7),
        ("mp2_total_energy", -76.3632013590074, 1e-7),
    ):
        assert study.values[f"cbs_{name}"].value == pytest.approx(energy, abs=allowed), name


EXPONENTS = {  # of Neese and Valeev, as printed in their paper
    ("cc-pvnz", 2): (4.42, 2.46),
    ("cc-pvnz", 3): (5.46, 3.05),
    ("def2", 3): (7.88, 2.97),
    ("aug-cc-pvnz", 2): (4.30, 2.51),
    ("aug-cc-pvnz", 3): (5.79, 3.05),
}
# E(X) = E + A f(X): energy, formula, family, X of the smaller basis, f as printed in the papers
FORMS = [
    (scf_formula, "exponential", "cc-pvnz", 2, lambda x: math.exp(-1.63 * x)),
    (scf_formula, "karton-martin", "cc-pvnz", 3, lambda x: (x + 1) * math.exp(-9 * x**0.5)),
    (scf_formula, "exp-sqrt", "cc-pvnz", 4, lambda x: math.exp(-6.3 * x**0.5)),
    (scf_formula, "power", "cc-pvnz", 3, lambda x: x**-3.4),
    (correlation_formula, "helgaker", "aug-cc-pvnz", 4, lambda x: x**-3.0),
    (correlation_formula, "truhlar", "cc-pvnz", 2, lambda x: x**-2.2),
]
for (family, lower), (alpha, beta) in EXPONENTS.items():
    FORMS += [
        (
            scf_formula,
            "neese-valeev",
            family,
            lower,
            lambda x, alpha=alpha: math.exp(-alpha * x**0.5),
        ),
        (correlation_formula, "neese-valeev", family, lower, lambda x, beta=beta: x**-beta),
    ]


@pytest.mark.parametrize(("formula", "name", "family", "lower", "f"), FORMS)
def test_formulas_are_exact_for_what_they_assume(
    formula: Any, name: str, family: str, lower: int, f: Any
) -> None:
    both = lower, lower + 1
    energies = [-76.07 + 5.0 * f(x) for x in both]
    limit = np.dot(formula(name, family, *both).weights(*both), energies)
    assert limit == pytest.approx(-76.07, abs=2e-11)


# --- interaction energies, scans ------------------------------------------------------------------


def pyscf_energies(molecule: Molecule, frozen_core: int = 0) -> Any:
    """E(HF), E_SS, E_OS of PySCF, Eh."""
    mf = mean_field(molecule, scf.UHF)
    return np.array([mf.e_tot, *spin_energies(mf, frozen_core)])


# molecule; charge, multiplicity and frozen core orbitals of each of its atoms
ATOMS_OF = {
    "a frozen core": (read("", "Ne 0 0 0", "He 0 0 2.6"), [(0, 1, 1), (0, 1, 0)]),
    "a radical": (read("multiplicity=2", "He 0 0 0", "H 0 0 2.5"), [(0, 1, 0), (0, 2, 0)]),
    "three of which one is an ion": (
        read("charge=-1", "He 0 0 2.8", "F 0 0 0", "He 0 2.9 0"),
        [(0, 1, 0), (-1, 1, 0), (0, 1, 0)],
    ),
}


@pytest.mark.parametrize("name", ATOMS_OF)
def test_interaction_energies_are_differences_of_those_of_pyscf(name: str) -> None:
    """Each atom is a fragment. A ghost has no frozen core, and carries both fitting sets."""
    molecule, states = ATOMS_OF[name]
    charges, multiplicities, cores = map(list, zip(*states, strict=True))
    study = dfmp2.interaction(
        molecule,
        fragments=[[number] for number in range(1, molecule.natom + 1)],
        charges=charges,
        multiplicities=multiplicities,
        frozen_core="auto" if any(cores) else "none",
        **EXACT,
    )
    corrected, uncorrected = np.zeros((2, 3)) + pyscf_energies(molecule, sum(cores))
    for atom, (charge, multiplicity, core) in enumerate(states):
        ghost = [place != atom for place in range(molecule.natom)]
        beside_ghosts = replace(molecule, ghost=ghost, charge=charge, multiplicity=multiplicity)
        alone = Molecule(
            (molecule.symbols[atom],), [[0, 0, 0]], charge=charge, multiplicity=multiplicity
        )
        corrected -= pyscf_energies(beside_ghosts, core)
        uncorrected -= pyscf_energies(alone, core)
    for scheme, (of_scf, same, opposite) in (
        ("cp_corrected", corrected),
        ("uncorrected", uncorrected),
    ):
        expected = {
            "scf_": of_scf,
            "mp2_same_spin_correlation_": same,
            "mp2_opposite_spin_correlation_": opposite,
            "mp2_correlation_": same + opposite,
            "": of_scf + same + opposite,
            "scs_mp2_correlation_": same / 3 + 1.2 * opposite,
        }
        for prefix, energy in expected.items():
            found = study.values[f"{prefix}{scheme}_interaction_energy"].value
            assert found == pytest.approx(energy, abs=1e-8), prefix


def test_the_minimum_of_a_scan_is_where_the_curve_of_pyscf_is_flat() -> None:
    """The quartic through five points of hydrogen, and the energy of one of them."""
    hydrogen = Molecule.from_string("H 0 0 0; H 0 0 0.7")
    study = dfmp2.scan(hydrogen, coordinate=("bond", "1,2", "0.68:0.80:5"), **EXACT)
    found = {name: item.value for name, item in study.values.items()}
    best, step = found["minimum_quartic"], 0.005
    below, at, above, far = (
        pyscf_energies(Molecule.from_string(f"H 0 0 0; H 0 0 {length}")).sum()
        for length in (best - step, best, best + step, 0.8)
    )
    assert study.table["mp2_total_energy"].values[4] == pytest.approx(far, abs=1e-8)
    bend = found["minimum_quartic_curvature"]
    assert (below - 2 * at + above) / step**2 == pytest.approx(bend, rel=0.02)
    assert (below - above) / (2 * step * bend) == pytest.approx(0, abs=5e-4)
    assert found["minimum_quartic_energy"] == pytest.approx(at, abs=1e-7)
    assert found["minimum_parabola"] == pytest.approx(best, abs=3e-3)


def test_what_earlier_runs_leave_is_in_the_memory_of_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Orbitals and pair energies of each spin in float64: NH2 has 13 functions, 4 and 3 active
    occupied orbitals; a closed shell of water, as many functions and 4."""
    asked: list[int] = []
    monkeypatch.setattr(MemoryPlan, "require", lambda plan: asked.append(plan.program))
    options = Options("6-31g", threads=1, frozen_core="1")
    radical, water = (
        Step(name=atoms, who=atoms, molecule=Molecule.from_string(text, **state), options=options)
        for atoms, text, state in (
            ("NH2", "N 0 0 0; H 0 0.8 0.6; H 0.1 -0.8 0.6", {"multiplicity": 2}),
            ("H2O", "O 0 0 0; H 0 0.8 0.6; H 0.1 -0.8 0.6", {}),
        )
    )
    of_radical = 8 * (13**2 + 2 * 4**2 + 13**2 + 2 * 3**2)
    of_water = 8 * (13**2 + 2 * 4**2)
    for steps, stored in (
        ([radical], None),
        ([radical, radical], of_radical),
        ([radical] * 4, 3 * of_radical),
        ([water, water, radical, radical], 2 * of_water + of_radical),
    ):
        assert examine_steps(steps) == [1] * len(steps)
        if stored is None:
            (alone,) = asked
        else:
            assert asked[-1] == alone + 16 * 10**6 + stored
    assert len(asked) == 4  # once for each study, where it needs most
