"""Studies: basis set limits, interaction energies and scans, against published numbers, PySCF and
formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from pyscf import gto, lib, scf
from pyscf.mp import dfmp2_native, dfump2_native

import dfmp2.interop.python  # before a test replaces mp2_energy, which it takes
from dfmp2.errors import ConvergenceError, InputError, Interrupted, ResultFileError
from dfmp2.errors.messages import Option
from dfmp2.molecule.files import read_frames
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.xyz import parse_xyz, read_xyz
from dfmp2.mp2 import energy as mp2
from dfmp2.mp2.composite import correlation_formula, scf_formula
from dfmp2.options import Options
from dfmp2.output import hdf5
from dfmp2.output.reports.study_tables import extrema_tables
from dfmp2.output.study import is_study, read_study, read_verified_study
from dfmp2.planning.memory import MemoryPlan
from dfmp2.studies import interaction, reaction
from dfmp2.studies.composite import at_level, expand, parse_bracket
from dfmp2.studies.coordinate import make_coordinate, parse_atoms, show_atoms
from dfmp2.studies.extrema import (
    _of_barriers,
    barriers,
    find_extrema,
    find_minimum,
    make_curve,
    numbers_of_curve,
)
from dfmp2.studies.interaction import alone, in_complex, make_fragments
from dfmp2.studies.task import Step, examine_steps
from dfmp2.units import ANGSTROM_PER_BOHR
from tests.conftest import MOLECULES, Runner, succeed
from tests.recorded import recorded_error, recorded_failure, recorded_texts

INPUTS = Path(__file__).parent.parent / "inputs"
PEROXIDE = parse_xyz(
    "4\n\nO 0 0.7 0\nO 0 -0.7 0\nH 0.9 0.9 0.1\nH -0.3 -0.9 0.8\n", file="h2o2"
).molecule
SETS = ("--basis", "6-31g", "--scf-auxbasis", "def2-universal-jkfit", "--auxbasis", "def2-svp-ri")
EXACT = ("--precision", "fp64", "--scf-conv-tol", "1e-12", "--threads", "1", "--json")
UNITS = {"": 1.0, "_kj_per_mol": 2625.4996394799, "_kcal_per_mol": 2625.4996394799 / 4.184}


# --- basis set limits -----------------------------------------------------------------------------


def test_water_as_in_psi4(call: Runner, folder: Path) -> None:
    """Psi4 test dlpnomp2-2: cc-pv[tq]z, core frozen, Hartree-Fock of cc-pVQZ and X^-3 for the
    correlation energy."""
    water = (
        "3\n\nO 0.0 0.0 0.0\nH 0.957000000000 0.0 0.0\nH -0.23961366388010 0.92651729184185 0.0\n"
    )
    (folder / "w.xyz").write_text(water)
    done = succeed(
        call(
            "cbs",
            "w.xyz",
            "--basis",
            "cc-pv[tq]z",
            "--frozen-core",
            "auto",
            "--json",
            "--output",
            "x.h5",
        )
    )
    found = done.json
    assert found["cbs_scf_total_energy"] == pytest.approx(-76.0648475978853, abs=1e-8)
    assert found["cbs_mp2_correlation_energy"] == pytest.approx(-0.2983537611221, abs=1e-7)
    assert found["cbs_mp2_total_energy"] == pytest.approx(-76.3632013590074, abs=1e-7)
    same, opposite = (
        found[f"cbs_mp2_{spin}_spin_correlation_energy"] for spin in ("same", "opposite")
    )
    assert same + opposite == pytest.approx(found["cbs_mp2_correlation_energy"], abs=1e-14)
    assert found["cbs_scs_mp2_correlation_energy"] == pytest.approx(
        same / 3 + 1.2 * opposite, abs=1e-14
    )
    runs = read_study("x.h5").runs
    assert [run.mp2_fitting.elements["O"].name.lower() for run in runs.values()] == [
        "cc-pvtz-ri",
        "cc-pvqz-ri",
    ]
    assert [run["frozen_core_orbitals"] for run in found["runs"].values()] == [1, 1]
    assert succeed(call("show", "x.h5", "--json")).json == found
    assert "Helgaker, Klopper, Koch, Noga" in " ".join(succeed(call("show", "x.h5")).out.split())


def test_diffuse_and_def2(call: Runner) -> None:
    """The limit lies below the larger basis and differs between families by less than the step
    between two bases."""
    small = succeed(call("cbs", "h2.xyz", "--basis", "aug-cc-pv[dt]z", "--json")).json
    printed = succeed(
        call("show", small["output"])
    ).out  # energies of plain MP2 once, of its two names
    assert printed.count("\ncorrelation energy at the limit") == 1
    assert "\nMP2 correlation energy at the limit" not in printed
    assert "\nSCS-MP2 correlation energy at the limit" in printed
    other = succeed(call("cbs", "h2.xyz", "--basis", "def2-[tq]zvpp", "--json", "--overwrite")).json
    assert (small["correlation_formula"], other["correlation_formula"]) == (
        "helgaker",
        "neese-valeev",
    )
    for found in (small, other):
        energies = [run["mp2_correlation_energy"] for run in found["runs"].values()]
        assert found["cbs_mp2_correlation_energy"] < energies[1] < energies[0]
    assert small["cbs_mp2_correlation_energy"] == pytest.approx(
        other["cbs_mp2_correlation_energy"], abs=1.5e-3
    )


@pytest.mark.parametrize(
    ("basis", "frozen_core", "tested"),
    [
        ("cc-pv[dt]z", "auto", True),
        ("aug-cc-pv[dt]z", "none", True),
        ("cc-pcv[dt]z", "none", True),
        ("cc-pcv[dt]z", "auto", False),
        ("cc-pv[dt]z-pp", "auto", False),
        ("cc-pv[dt]z-pp", "none", False),
    ],
)
def test_sets_for_which_a_formula_was_not_tested(
    basis: str, frozen_core: str, tested: bool
) -> None:
    """Sets with core potentials, and core-valence sets with frozen cores."""
    level: Any = at_level(
        Options(basis, frozen_core=frozen_core),
        scf_formula="karton-martin",
        correlation_formula="helgaker",
    )
    assert any("valence sets" in note for note in level.notes([])) == (not tested)
    settings = level.settings()
    assert settings["basis_sets"] == [basis.replace("[dt]", one) for one in "dt"]
    assert settings["cardinal_numbers"] == [2, 3]
    assert settings["scf_formula"] == "karton-martin"
    assert settings["correlation_formula"] == "helgaker"
    fitted = replace(level, scf_auxbasis="def2-universal-jkfit", auxbasis="cc-pv[dt]z-ri").runs
    assert [run.options.scf_auxbasis for run in fitted] == ["def2-universal-jkfit"] * 2
    assert [run.options.auxbasis for run in fitted] == ["cc-pvdz-ri", "cc-pvtz-ri"]
    by_default: Any = at_level(Options(basis))
    assert by_default.settings()["scf_formula"] == "largest"
    for more, of in (({}, "Hartree-Fock"), ({"method": "b2plyp"}, "Kohn-Sham")):
        assert replace(by_default, **more).notes([])[0].startswith(f"{of}: largest")


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


@pytest.mark.parametrize(
    ("text", "names", "family"),
    [
        ("cc-pv[tq]z", ("cc-pvtz", "cc-pvqz"), "cc-pvnz"),
        ("aug-cc-pV[Q5]Z", ("aug-cc-pvqz", "aug-cc-pv5z"), "aug-cc-pvnz"),
        ("cc-pv([tq]+d)z", ("cc-pv(t+d)z", "cc-pv(q+d)z"), "cc-pvnz"),
        ("def2-[tq]zvppd", ("def2-tzvppd", "def2-qzvppd"), "def2"),
        ("aug-cc-pv[dt]z-pp", ("aug-cc-pvdz-pp", "aug-cc-pvtz-pp"), "cc-pvnz-pp"),
        ("cc-pwcv[tq]z-pp", ("cc-pwcvtz-pp", "cc-pwcvqz-pp"), "cc-pvnz-pp"),
        ("cc-pv[56]z", ("cc-pv5z", "cc-pv6z"), "cc-pvnz"),
        ("aug-cc-pv([dt]+d)z", ("aug-cc-pv(d+d)z", "aug-cc-pv(t+d)z"), "aug-cc-pvnz"),
        ("aug-cc-pcv[q5]z", ("aug-cc-pcvqz", "aug-cc-pcv5z"), "cc-pcvnz"),
        ("cc-pwcv[dt]z", ("cc-pwcvdz", "cc-pwcvtz"), "cc-pcvnz"),
        ("def2-[tq]zvp", ("def2-tzvp", "def2-qzvp"), "def2"),
    ],
)
def test_brackets(text: str, names: tuple[str, str], family: str) -> None:
    bracket = parse_bracket(text)
    assert (bracket.names, bracket.family) == (names, family)
    assert bracket.cardinals == tuple("dtq56".index(letter) + 2 for letter in bracket.letters)
    assert (
        expand("def2-universal-jkfit", bracket, Option("scf_auxbasis"))
        == ("def2-universal-jkfit",) * 2
    )
    assert (
        expand(f"x-[{bracket.letters.upper()}]-ri", bracket, Option("auxbasis"))[1]
        == f"x-{bracket.letters[1]}-ri"
    )
    with recorded_error(InputError):
        expand("cc-pv[d5]z-ri", bracket, Option("auxbasis"))


# --- interaction energies -------------------------------------------------------------------------


def pyscf_energies(atoms: str, basis: str, kind: Any, frozen: int, **molecule: Any) -> np.ndarray:
    """E(HF), E_SS, E_OS of PySCF with explicit fitting sets, ghosts included."""
    with lib.with_omp_threads(1):
        mol = gto.M(atom=atoms, basis=basis, verbose=0, **molecule)
        mf = kind(mol).density_fit(auxbasis="def2-universal-jkfit")
        mf.conv_tol, mf.conv_tol_grad = 1e-12, 1e-7
        mf.run()
        solver = (dfmp2_native.DFRMP2 if kind is scf.RHF else dfump2_native.DFUMP2)(
            mf, frozen=frozen, auxbasis="def2-svp-ri"
        )
        solver.verbose = 0
        components = []
        with solver:
            for solver.ps, solver.pt in ((0.0, 1.0), (1.0, 0.0)):  # same spin, opposite spin
                components.append(float(solver.kernel()))
    return np.array([mf.e_tot, *components])


NEHE = (
    "interaction",
    "nehe.xyz",
    "--fragments",
    "1,2",
    *SETS,
    "--frozen-core",
    "auto",
    *EXACT[:-1],
)


def test_parts_and_ghosts_against_pyscf(call: Runner, folder: Path) -> None:
    """Neon has a frozen core and its ghost none; ghosts carry both fitting sets. The file is one of
    several results."""
    (folder / "nehe.xyz").write_text("2\n\nNe 0 0 0\nHe 0 0 2.6\n")
    printed = succeed(call(*NEHE, "--output", "x.h5", "--verbose"))
    shown = succeed(call("show", "x.h5", "--verify"))
    assert printed.out.rpartition("dfmp2 finished")[0] in shown.out
    assert is_study("x.h5") and read_verified_study("x.h5")[1] in shown.out
    (folder / "changed.h5").write_bytes((folder / "x.h5").read_bytes())
    with h5py.File("changed.h5", "r+") as handle:
        numbers: list[h5py.Dataset] = []
        handle.visititems(lambda _, item: numbers.append(item) if hasattr(item, "dtype") else None)
        changed = next(item for item in numbers if item.dtype.kind == "f" and item.shape == ())
        changed[()] = changed[()] + 1
    with pytest.raises(ResultFileError):
        read_study("changed.h5")
    found = succeed(call("show", "x.h5", "--json")).json
    ne, he, ghost_ne, ghost_he = "Ne 0 0 0", "He 0 0 2.6", "GHOST-Ne 0 0 0", "GHOST-He 0 0 2.6"
    energies = {
        name: pyscf_energies("; ".join(atoms), "6-31g", scf.RHF, frozen)
        for name, atoms, frozen in (
            ("complex", (ne, he), 1),
            ("fragment-1-in-complex", (ne, ghost_he), 1),
            ("fragment-1-alone", (ne,), 1),
            ("fragment-2-in-complex", (ghost_ne, he), 0),
            ("fragment-2-alone", (he,), 0),
        )
    }
    for scheme, basis in (("cp_corrected", "in-complex"), ("uncorrected", "alone")):
        parts = (
            energies["complex"] - energies[f"fragment-1-{basis}"] - energies[f"fragment-2-{basis}"]
        )
        expected = {
            "scf_": parts[0],
            "mp2_same_spin_correlation_": parts[1],
            "mp2_opposite_spin_correlation_": parts[2],
            "mp2_correlation_": parts[1] + parts[2],
            "": parts.sum(),
            "scs_mp2_correlation_": parts[1] / 3 + 1.2 * parts[2],
        }
        for prefix, energy in expected.items():
            assert found[f"{prefix}{scheme}_interaction_energy"] == pytest.approx(
                energy, abs=1e-8
            ), prefix
    cores = {name: run["frozen_core_orbitals"] for name, run in found["runs"].items()}
    assert (
        cores["complex"] == 1
        and cores["fragment-2-in-complex"] == 0
        and cores["fragment-1-in-complex"] == 1
    )
    one = succeed(call("show", "x.h5", "--run", "fragment-2-in-complex", "--json")).json
    assert one["formula"] == "He + ghost Ne" and one["sizes"]["nao"] == 11
    stored = read_study("x.h5").runs["fragment-2-in-complex"]
    assert stored.mp2_total_energy == one["mp2_total_energy"]
    # A run is a complete result: extracted, it keeps its hash
    hdf5.write(stored, "alone.h5")
    assert hdf5.read("alone.h5")
    with recorded_error(ResultFileError):
        hdf5.read("x.h5")
    assert call("show", "x.h5", "--run", "nothing").code == 3
    again = call(*NEHE, "--output", "x.h5")
    recorded_failure(again, 3)


@pytest.mark.parametrize(
    ("atoms", "charges", "spins"),
    [
        (("He 0 0 0", "H 0 0 2.5"), (0, 0), (0, 1)),
        (("He 0 0 2.8", "F 0 0 0", "He 0 2.9 0"), (0, -1, 0), (0, 0, 0)),
    ],
    ids=["a radical", "three of which one is an ion"],
)
def test_fragments_against_pyscf(
    atoms: tuple[str, ...],
    charges: tuple[int, ...],
    spins: tuple[int, ...],
    call: Runner,
    folder: Path,
) -> None:
    """Every fragment has the basis of the whole complex, and the charge and unpaired electrons
    given for it."""
    (folder / "parts.xyz").write_text("\n".join((str(len(atoms)), "", *atoms)))
    kind = scf.UHF if any(spins) else scf.RHF
    numbers = ",".join(str(n + 1) for n in range(len(atoms)))
    given = (
        "--fragments",
        numbers,
        "--charges",
        ",".join(map(str, charges)),
        "--charge",
        str(sum(charges)),
    )
    given += (
        "--multiplicities",
        ",".join(str(n + 1) for n in spins),
        "--multiplicity",
        str(sum(spins) + 1),
    )
    found = succeed(
        call(
            "interaction", "parts.xyz", *given, "--reference", kind.__name__.lower(), *SETS, *EXACT
        )
    ).json
    expected = pyscf_energies(
        "; ".join(atoms), "6-31g", kind, 0, charge=sum(charges), spin=sum(spins)
    )
    for number, (charge, spin) in enumerate(zip(charges, spins, strict=True)):
        centres = [atom if place == number else f"GHOST-{atom}" for place, atom in enumerate(atoms)]
        expected -= pyscf_energies("; ".join(centres), "6-31g", kind, 0, charge=charge, spin=spin)
    assert found["cp_corrected_interaction_energy"] == pytest.approx(expected.sum(), abs=1e-8)
    assert [fragment["charge"] for fragment in found["fragments"]] == list(charges)
    assert any(
        "Wells and Wilson, Chem. Phys. Lett. 101, 429 (1983)" in note for note in found["notes"]
    ) == (len(atoms) > 2)


PARTS = {  # prefix of a difference -> energy of a run
    "": "total_energy",
    "scf_": "scf_total_energy",
    "functional_": "functional_energy",
    "exx_": "hf_total_energy",
    "dispersion_": "dispersion_energy",
    "correlation_": "correlation_energy",
    "mp2_correlation_": "mp2_correlation_energy",
    "mp2_same_spin_correlation_": "mp2_same_spin_correlation_energy",
    "mp2_opposite_spin_correlation_": "mp2_opposite_spin_correlation_energy",
    "scs_mp2_correlation_": "scs_mp2_correlation_energy",
    "sos_mp2_correlation_": "sos_mp2_correlation_energy",
    "scaled_mp2_correlation_": "scaled_mp2_correlation_energy",
}


def test_every_part_of_an_energy_has_its_own_difference() -> None:
    """Energies of three fragments, made up so that no two are alike, of runs in mixed precision
    with bounds."""
    rng = np.random.default_rng(4)
    numbers = rng.uniform(-9, -1, (7, len(PARTS)))
    names = ["complex", *(f"fragment-{n}-in-complex" for n in (1, 2, 3))]
    names += [f"fragment-{n}-alone" for n in (1, 2, 3)]
    runs: dict[str, Any] = {}
    for name, row in zip(names, numbers, strict=True):
        energies = dict(zip(PARTS.values(), row, strict=True))
        run = SimpleNamespace(**energies, mean_field_name="hf_total_energy", precision="mixed")
        run.certificate = SimpleNamespace(correlation_error=-1e-9 * row[0])
        run.terms = (((1.0, 0.5), run),)
        runs[name] = run
    runs[names[-1]].precision = "fp64"  # repeated in it
    expected = {"precision_error": -0.5e-9 * numbers[:-1, 0].sum()}
    of_reaction = {"precision_error": 0.5e-9 * -(2 * numbers[0, 0] + 3 * numbers[1, 0])}
    for (prefix, _), (whole, *energies) in zip(PARTS.items(), numbers.T, strict=True):
        one = energies[0]
        for unit, factor in UNITS.items():
            corrected, raw = whole - sum(energies[:3]), whole - sum(energies[3:])
            expected[f"{prefix}cp_corrected_interaction_energy{unit}"] = corrected * factor
            expected[f"{prefix}uncorrected_interaction_energy{unit}"] = raw * factor
            expected[f"{prefix}counterpoise_correction{unit}"] = (corrected - raw) * factor
            of_reaction[f"{prefix}reaction_energy{unit}"] = (3 * one - 2 * whole) * factor
    found = interaction._values(runs, 3)
    assert {name: item.value for name, item in found.items()} == pytest.approx(expected, rel=1e-9)
    species: Any = [
        SimpleNamespace(weight=weight, result=runs[name])
        for weight, name in ((-2.0, "complex"), (3.0, "fragment-1-in-complex"))
    ]
    plan: Any = None
    found = reaction._values(species, plan, gas=False)
    assert {name: item.value for name, item in found.items()} == pytest.approx(
        of_reaction, rel=1e-9
    )


def test_ranges_and_ghosts_of_a_fragment() -> None:
    """A ghost of the complex stays a ghost, in its own fragment and with the others."""
    assert parse_atoms("1-3+7-9", 9, "--fragments") == (0, 1, 2, 6, 7, 8)
    assert show_atoms((0, 1, 2, 6, 8)) == "1-3+7+9"
    points = np.arange(12.0).reshape(4, 3)
    molecule = Molecule(("O", "H", "Ne", "H"), points, ghost=(False, False, True, False))
    first, second = make_fragments("1+4,2", molecule, "-1,1", None)  # a ghost may be in none
    assert alone(molecule, first).labels == ("O", "H") and alone(molecule, first).charge == -1
    assert in_complex(molecule, second).labels == ("@O", "H", "@Ne", "@H")
    assert (alone(molecule, first).coordinates == points[[0, 3]]).all()
    first, second = make_fragments("1+3,2+4", molecule, None, None)
    assert alone(molecule, first).labels == ("O", "@Ne")
    assert in_complex(molecule, first).labels == ("O", "@H", "@Ne", "@H")


def test_spins_that_couple() -> None:
    """Two doublets make a singlet or a triplet; a quartet and a doublet a triplet or a quintet."""
    points = np.array([[0.0, 0, 0], [0, 0, 3]])
    for text, possible in (("2,2", {1, 3}), ("4,2", {3, 5}), ("3,1", {3})):
        for total in range(1, 7):
            molecule = Molecule(("N", "O"), points, multiplicity=total)
            if total in possible:
                assert make_fragments("1,2", molecule, None, text)[0].multiplicity == int(text[0])
            else:
                with recorded_error(InputError):
                    make_fragments("1,2", molecule, None, text)


# --- scans ----------------------------------------------------------------------------------------


def pyscf_energy(distance: float) -> float:
    """E(MP2 total) of H2 in 6-31G from PySCF's DF-MP2."""
    return float(pyscf_energies(f"H 0 0 0; H 0 0 {distance}", "6-31g", scf.RHF, 0).sum())


def test_hydrogen_against_pyscf_and_its_minimum(call: Runner, folder: Path) -> None:
    arguments = ("--bond", "1,2", "0.68:0.80:7", "--stability", "off", *SETS, *EXACT)
    found = succeed(call("scan", "h2.xyz", *arguments)).json
    table = found["table"]
    assert table["bond_1_2"] == [0.68, 0.70, 0.72, 0.74, 0.76, 0.78, 0.80]
    for place in (0, 3, 6):
        assert table["mp2_total_energy"][place] == pytest.approx(
            pyscf_energy(table["bond_1_2"][place]), abs=1e-8
        )
    energies = np.array(table["mp2_total_energy"])
    relative = 2625.4996394799 * (energies - energies.min())
    assert table["relative_energy"] == pytest.approx(relative.tolist(), abs=1e-6)
    # PySCF's curve has the same height on both sides of its minimum.
    best, step, bend = found["minimum_quartic"], 0.005, found["minimum_quartic_curvature"]
    below, at, above = (pyscf_energy(best + shift) for shift in (-step, 0.0, step))
    assert (below - above) / (2 * step * bend) == pytest.approx(0, abs=5e-4)
    assert (below - 2 * at + above) / step**2 == pytest.approx(bend, rel=0.02)
    assert found["minimum_quartic_energy"] == pytest.approx(at, abs=1e-7)
    assert found["minimum_parabola"] == pytest.approx(best, abs=2e-3)


def dihedral(points: np.ndarray) -> float:
    """The angle between two planes from its cosine, with the sign of the triple product;
    degrees."""
    a, b, c = points[1] - points[0], points[2] - points[1], points[3] - points[2]
    one, two = np.cross(a, b), np.cross(b, c)
    cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    return math.degrees(math.acos(np.clip(cosine, -1, 1))) * (1 if a @ two >= 0 else -1)


def test_dihedral_turns_one_side_only() -> None:
    coordinate = make_coordinate("dihedral", "3,1,2,4", "-170:170:18", PEROXIDE)
    assert coordinate.moving == (1, 3)
    behind = coordinate.at(PEROXIDE, -170)
    assert coordinate.deviation(behind, 170) == pytest.approx(math.radians(-20))
    before = PEROXIDE.coordinates
    for value in coordinate.values:
        after = coordinate.at(PEROXIDE, value).coordinates
        assert dihedral(after[[2, 0, 1, 3]]) == pytest.approx(value, abs=1e-9)
        for i, j in combinations(range(4), 2):
            if {i, j} != {2, 3}:
                assert np.linalg.norm(after[i] - after[j]) == pytest.approx(
                    np.linalg.norm(before[i] - before[j])
                )


def test_the_side_of_the_last_atom_moves() -> None:
    """Glycine is a chain; in the dimer a bond between the fragments moves one of them; a ring has
    no side."""
    dimer = read_xyz(INPUTS / "formic-acid-dimer.xyz").molecule
    between = make_coordinate("bond", "3,10", "1.5:2.5:3", dimer)
    assert between.moving == (5, 6, 7, 8, 9)
    moved = between.at(dimer, 2.5)
    length = np.linalg.norm(moved.coordinates[2] - moved.coordinates[9]) * ANGSTROM_PER_BOHR
    assert length == pytest.approx(2.5, abs=1e-12)
    assert (moved.coordinates[:5] == dimer.coordinates[:5]).all()
    inside = make_coordinate("bond", "1,2", "1.2:1.5:3", dimer)
    assert inside.moving == (1, 4)  # O and its H
    assert make_coordinate("bond", "1,2", "1.2:1.5:3", dimer, moving="2").moving == (1,)
    ghosts = Molecule(dimer.symbols, dimer.coordinates, ghost=(False,) * 5 + (True,) * 5)
    assert make_coordinate("bond", "3,10", "1.5:2.5:3", ghosts).moving == (5, 6, 7, 8, 9)
    near = Molecule(
        ("O", "H", "H"),
        np.array([[0.0, 0, 0], [0, 0, 1.8], [0, 1.2, 2.4]]),
        ghost=(False, False, True),
    )
    # The ghost stays where it is
    assert make_coordinate("bond", "1,2", "0.9:1.0:2", near).moving == (1,)
    benzene = read_xyz(INPUTS / "benzene.xyz").molecule
    with recorded_error(InputError):
        make_coordinate("bond", "1,2", "1.3:1.5:3", benzene)


def test_linear_angles() -> None:
    line = Molecule(("O", "C", "O"), np.array([[0.0, 0, -2.2], [0, 0, 0], [0, 0, 2.2]]))
    bent = make_coordinate("angle", "1,2,3", "150:180:4", line).at(line, 150)
    assert np.linalg.norm(bent.coordinates[2]) == pytest.approx(2.2)
    assert bent.coordinates[2, 2] == pytest.approx(-2.2 * math.cos(math.radians(150)))
    chain = Molecule(
        ("H", "C", "C", "H"), np.array([[0.0, 0, -2], [0, 0, 0], [0, 0, 2.3], [0, 0, 4.3]])
    )
    with recorded_error(InputError):
        make_coordinate("dihedral", "1,2,3,4", "0:90:3", chain)


def test_minimum_of_known_curves() -> None:
    xs = [0.8, 0.9, 1.0, 1.1, 1.25]
    found = find_minimum(xs, [-100 + 0.7 * (x - 1.03) ** 2 for x in xs], 3)
    assert found is not None and found.position == pytest.approx(1.03, abs=1e-10)
    assert (found.energy, found.curvature) == (
        pytest.approx(-100, abs=1e-12),
        pytest.approx(1.4, abs=1e-8),
    )
    # A Morse curve, r_e = 1.1, second derivative 2 D a^2.
    fine = [0.9, 1.0, 1.1234, 1.2, 1.3]
    morse = find_minimum(fine, [0.2 * (1 - math.exp(-2 * (x - 1.1))) ** 2 for x in fine], 5)
    assert morse is not None and morse.position == pytest.approx(1.1, abs=1e-3)
    assert morse.curvature == pytest.approx(2 * 0.2 * 4, rel=0.02)
    assert find_minimum(xs, list(xs), 3) is None  # at an end
    assert find_minimum(xs, [(x - 0.9) ** 2 for x in xs], 5) is None  # one neighbour on the left
    assert find_minimum(xs[:2], [0.0, 1.0], 3) is None


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


def test_what_is_said_of_a_curve_without_a_minimum_at_its_lowest_point() -> None:
    """Energies of a cubic with a minimum at 2 and a maximum at -2; degrees and Eh."""

    def cubic(x: float) -> float:
        return -80.0 + 1e-4 * (x**3 - 12 * x)

    said = []
    for first, last in ((-3, 4), (-5, 4), (-5, 1), (3, 6), (3, 4)):
        places = np.arange(first, last + 1.0)
        values, arrays, remarks = numbers_of_curve(
            make_curve(places, [cubic(x) for x in places]), "degree"
        )
        assert (first == -3) == (not remarks) == ("minimum_parabola" in values)
        inside = [place for place in (-2.0, 2.0) if first < place < last]
        found = arrays.get("extrema_position")
        assert ([] if found is None else found.value.tolist()) == pytest.approx(inside, abs=0.1)
        said += remarks
    recorded_texts(said)


def butane_like(degrees: float) -> float:
    """Trans at 180 degrees, two gauche minima, cis on top; Eh."""
    return (
        -158.0
        + 3e-3 * (1 + math.cos(3 * math.radians(degrees)))
        + 1e-3 * (1 + math.cos(math.radians(degrees)))
    )


GAUCHE, ECLIPSED = (  # where 9 sin(3 x) + sin(x) = 0: 9 (3 - 4 s^2) + 1 = 0
    180 / math.pi * angle
    for angle in (math.asin(math.sqrt(28 / 36)), math.pi - math.asin(math.sqrt(28 / 36)))
)


@pytest.mark.parametrize(
    "grid",
    [
        np.linspace(0, 360, 37),  # both ends are one geometry, and a maximum
        np.linspace(0, 350, 36),
        np.linspace(350, 0, 36),
        np.linspace(180, 540, 37),  # a minimum at the seam
        np.linspace(-180, 175, 72),
    ],
)
def test_every_minimum_maximum_and_barrier_of_a_full_turn(grid: Any) -> None:
    curve = make_curve(grid, [butane_like(x) for x in grid], 360.0)
    first = curve.places[0]
    assert [curve.inside(first + turn) for turn in (-1e-9, 180, 359, 361)] == [
        first,
        first + 180,
        first + 359,
        first + 1,
    ]
    extrema = {round(one.position) % 360: one for one in find_extrema(curve)}
    expected = (0.0, GAUCHE, ECLIPSED, 180.0, 360 - ECLIPSED, 360 - GAUCHE)
    assert sorted(extrema) == [round(x) for x in expected]
    for place in expected:
        one = extrema[round(place)]
        assert one.points == 5 and one.position % 360 == pytest.approx(place, abs=0.05)
        assert one.energy == pytest.approx(butane_like(place), abs=2e-7)
        step = 1e-2  # degrees
        bend = butane_like(place + step) - 2 * butane_like(place) + butane_like(place - step)
        assert one.curvature == pytest.approx(bend / step**2, rel=0.02)
    heights = [
        (top.energy - low.energy, top.position % 360)
        for low, top, _ in barriers(curve, list(find_extrema(curve)))
    ]
    assert len(heights) == 3
    over_cis = next(height for height, place in heights if round(place) in (0, 360))
    assert over_cis == pytest.approx(butane_like(0) - butane_like(GAUCHE), abs=5e-7)


def test_barriers_of_a_scan() -> None:
    """2 cos(2x) + sin(x) / 2 mEh has minima of -1.5 and -2.5 at 90 and 270 degrees, and maxima of
    2 + 1/64 where sin(x) = 1/16."""
    grid = np.linspace(0, 360, 73)
    turns = np.radians(grid)
    curve = make_curve(grid, 1e-3 * (2 * np.cos(2 * turns) + np.sin(turns) / 2), 360.0)
    found = {
        name: item.value
        for name, item in _of_barriers(curve, find_extrema(curve), "degree").items()
    }
    tilt = math.degrees(math.asin(1 / 16))
    low, high = 2625.4996394799 * 3.515625e-3, 2625.4996394799 * 4.515625e-3
    expected = {
        "barrier_from": (90.0, 270.0),
        "barrier_position": (180 - tilt, tilt),
        "barrier_to": (270.0, 90.0),
        "barrier_forward": (low, high),
        "barrier_backward": (high, low),
    }
    assert found.keys() == expected.keys()
    order = np.argsort(found["barrier_from"] % 360)
    for name, numbers in expected.items():
        modulo = 1e9 if name.endswith("ward") else 360
        assert found[name][order] % modulo == pytest.approx(numbers, rel=1e-4), name
    arrays = numbers_of_curve(curve, "degree")[1]
    study: Any = SimpleNamespace(arrays=arrays, settings={"units": "degree"})
    kinds = {round(float(row[1])) % 360: row[0] for row in extrema_tables(study)[0].rows}
    assert kinds == {4: "maximum", 90: "minimum", 176: "maximum", 270: "minimum"}
    for row in extrema_tables(study)[1].rows:
        for joules, calories in (row[3:5], row[5:7]):
            assert float(joules) == pytest.approx(4.184 * float(calories), abs=1e-3)


@pytest.mark.parametrize(
    ("coordinate", "closed"),
    [
        (("dihedral", "3,1,2,4", "0:350:36"), True),
        (("dihedral", "3,1,2,4", "360:0:37"), True),
        (("dihedral", "3,1,2,4", "3:353:36"), True),
        (("dihedral", "3,1,2,4", "0:340:35"), False),
        (("angle", "3,1,2", "20:160:15"), False),
    ],
)
def test_a_coordinate_that_comes_round_has_no_ends(
    coordinate: tuple[str, str, str], closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Energies of -2 cos(2x) + cos(x) / 2 mEh, whose minima are at 0 and 180 degrees, and its
    maxima of 2 + 1/64 where cos(x) = 1/16: all of them are found in a whole turn, in which the point
    at 0 has two neighbours."""
    peroxide = Molecule.from_string("O 0.7 0 0; O -0.7 0 0; H 0.9 0.95 0.2; H -0.9 0.95 -0.2")
    template = mp2.mp2_energy(peroxide, Options("sto-3g", threads=1))
    kind, atoms, values = coordinate
    places = [int(atom) for atom in atoms.split(",")]

    def energy(molecule: Molecule, *_: Any, **__: Any) -> Any:
        measured = molecule.dihedral(*places) if kind == "dihedral" else molecule.angle(*places)
        x = math.radians(measured)
        height = 1e-3 * (-2 * math.cos(2 * x) + math.cos(x) / 2) - template.mp2_correlation_energy
        reference = replace(template.reference, scf_total_energy=height)
        return replace(template, molecule=molecule, reference=reference)

    monkeypatch.setattr(mp2, "mp2_energy", energy)
    study = dfmp2.scan(peroxide, "sto-3g", coordinate, threads=1, listener=dfmp2.Listener())
    found = {name: array.value for name, array in study.arrays.items()}
    top = math.degrees(math.acos(1 / 16))
    if kind == "angle":
        assert found["extrema_position"] == pytest.approx([top], abs=0.3)
        assert "minimum_quartic" not in study.values and "barrier_from" not in found
        return
    expected = [0.0, top, 180.0, 360 - top]
    inner = expected if closed else expected[1:]
    first = min(float(number) for number in values.split(":")[:2])
    assert all(first - 1e-6 <= place < first + 360 for place in found["extrema_position"])
    turned = sorted((position + 1) % 360 - 1 for position in found["extrema_position"])
    assert turned == pytest.approx(inner, abs=0.3)
    assert study.values["minimum_quartic"].value % 360 == pytest.approx(180.0, abs=1e-3)
    if not closed:
        assert "barrier_from" not in found
        return
    low, high = 2625.4996394799 * 3.515625e-3, 2625.4996394799 * 4.515625e-3
    ways = {
        round(start) % 360: (forward, backward)
        for start, forward, backward in zip(
            *(found[f"barrier_{name}"] for name in ("from", "forward", "backward")), strict=True
        )
    }
    assert ways[0] == pytest.approx((low, high), rel=2e-3)
    assert ways[180] == pytest.approx((high, low), rel=2e-3)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("step", [1, -1])
def test_a_quartic_that_turns_beyond_the_neighbours_gives_way_to_a_parabola(
    sign: int, step: int
) -> None:
    """Its deepest well is at 0.5, beyond the point at 1, the neighbour of that at 2."""
    quartic = np.polynomial.Polynomial.fromroots([0.5, 1.4, 2.3]).integ()
    energies = sign * quartic(np.arange(5.0))[::step]
    (found,) = find_extrema(make_curve(np.arange(5.0), energies))
    before, here, after = energies[1:4]
    bend = before - 2 * here + after
    assert found.points == 3 and found.curvature == pytest.approx(bend)
    assert found.position == pytest.approx(2 + (before - after) / (2 * bend))


def test_half_a_turn_has_ends_and_failed_points_hide_extrema() -> None:
    half = np.linspace(0, 180, 19)
    curve = make_curve(half, [butane_like(x) for x in half], 360.0)
    assert [round(one.position) for one in find_extrema(curve)] == [62, 118]
    assert barriers(curve, find_extrema(curve)) == []
    whole = np.linspace(0, 360, 37)
    energies = [butane_like(x) for x in whole]
    energies[6] = math.nan  # 60 degrees, beside gauche
    gap = make_curve(whole, energies, 360.0)
    found = find_extrema(gap)
    assert [round(one.position) for one in found] == [0, 118, 180, 242, 298]
    assert [round(top.position) for _, top, _ in barriers(gap, found)] == [242]
    energies[6], energies[9] = butane_like(60), math.nan  # 90 degrees, on the slope between both
    slope = make_curve(whole, energies, 360.0)
    assert [round(one.position) for one in find_extrema(slope)] == [0, 62, 118, 180, 242, 298]
    assert [round(top.position) for _, top, _ in barriers(slope, find_extrema(slope))] == [0, 242]
    energies[9], energies[0] = butane_like(90), math.nan  # the geometry of 360 degrees
    seam = find_extrema(make_curve(whole, energies, 360.0))
    assert [round(one.position) for one in seam] == [0, 62, 118, 180, 242, 298]
    assert find_extrema(make_curve([1.0, 2.0], [0.0, 1.0])) == []
    both = make_curve([0.0, 1.0, 2.0], [math.nan] * 3)
    assert find_extrema(both) == []


@pytest.mark.parametrize("core", ["none", "0", "auto", "orca", "psi4", "pyscf"])
def test_cores_that_hold_for_every_molecule_are_taken(core: str) -> None:
    interaction.require_cancelling(Options("6-31g", frozen_core=core), "the molecules")


RUN = mp2.mp2_energy


def failing_at_0_8(molecule: Molecule, *arguments: Any, **settings: Any) -> Any:
    """A run that fails for H2 at 0.8 angstrom, for workers too."""
    bond = np.linalg.norm(molecule.coordinates[1] - molecule.coordinates[0])
    if abs(bond * ANGSTROM_PER_BOHR - 0.8) < 1e-6:
        raise ConvergenceError("planted")
    return RUN(molecule, *arguments, **settings)


def test_a_failed_point_beside_the_lowest_leaves_no_minimum(
    call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The four other points would give one, by interpolation across a point that was never
    computed."""
    scan = (
        "scan",
        "h2.xyz",
        "--bond",
        "1,2",
        "0.5:0.9:5",
        "--basis",
        "sto-3g",
        "--threads",
        "1",
        "--json",
    )
    scan += ("--stability", "off")
    whole = succeed(call(*scan)).json
    assert 0.7 < whole["minimum_parabola"] < 0.8
    monkeypatch.setattr(mp2, "mp2_energy", failing_at_0_8)
    found = call(*scan, "--overwrite").json
    assert found["table"]["exit_code"] == [0, 0, 0, 4, 0]
    assert not [name for name in found if name.startswith("minimum")]
    assert any("no minimum inside" in note for note in found["notes"])
    shared = call(*scan, "--no-chain", "--workers", "2", "--output", "by-workers.h5").json
    assert shared["table"]["exit_code"] == [0, 0, 0, 4, 0]
    failures = [[note for note in one["notes"] if "planted" in note] for one in (found, shared)]
    assert failures[0] == failures[1] and len(failures[0]) == 1


def test_frames_chain_and_a_failing_point(call: Runner, folder: Path) -> None:
    """H2 at 28 angstrom from the orbitals at 12 has a refused gap (code 5); the next point is still
    computed."""
    text = "".join(MOLECULES[name] for name in ("h2-far", "h2-apart", "h2"))
    (folder / "f.xyz").write_text(text)
    scan = ("scan", "f.xyz", "--basis", "sto-3g", "--threads", "1", "--json", "--output", "x.h5")
    done = call(*scan)
    recorded_failure(done, 9)
    assert done.json["failed"] == 1 and done.json["table"]["exit_code"] == [0, 5, 0]
    assert done.json["table"]["mp2_total_energy"][1] is None
    assert list(done.json["runs"]) == ["frame-001", "frame-003"]
    assert any("frame 2: failed with code 5" in note for note in done.json["notes"])
    rows = (folder / "x.csv").read_text().splitlines()
    assert rows[2].startswith("2,,,") and rows[2].endswith(",5")
    study = read_study("x.h5")
    assert study.runs["frame-003"].reference.start == "orbitals of frame-001" and study.complete
    again = call(*scan, "--resume", "--allow-small-gap")
    assert succeed(again).json["failed"] == 0 and again.kept_runs == 2
    alone = succeed(call("run", "h2.xyz", "--basis", "sto-3g", "--json")).json
    assert again.json["table"]["mp2_total_energy"][2] == pytest.approx(
        alone["mp2_total_energy"], abs=1e-9
    )


def test_frames_are_read_one_by_one(folder: Path) -> None:
    water = MOLECULES["h2o"]
    (folder / "f.xyz").write_text(f"{water}\n{water.replace('0.1173', '0.2')}\r\n")
    frames = read_frames(folder / "f.xyz")
    assert [frame.coordinates[0, 2] * ANGSTROM_PER_BOHR for frame in frames] == pytest.approx(
        [0.1173, 0.2]
    )
    for tail in (
        "3\n\nO 0 0 0\n",
        "x\n\nO 0 0 0\n",
        "3\n\nO 0 0 0\nH 0 0 x\nH 0 0 2\n",
    ):
        (folder / "f.xyz").write_text(water + tail)
        with recorded_error(InputError):
            read_frames(folder / "f.xyz")


# --- the file of a study --------------------------------------------------------------------------


def test_interrupted_and_resumed(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished runs stay in a valid file and are not recomputed; the values add up."""
    (folder / "pair.xyz").write_text("4\n\nH 0 0 0\nH 0 0 0.74\nH 3 0 0\nH 3 0 0.76\n")
    arguments = (
        "interaction",
        "pair.xyz",
        "--fragments",
        "1-2,3-4",
        "--basis",
        "6-31g",
        "--threads",
        "1",
    )
    arguments += ("--precision", "mixed")
    run, begun = mp2.mp2_energy, []

    def interrupted(*given: Any, **more: Any) -> Any:
        begun.append(given)
        if len(begun) == 3:
            raise Interrupted("planted")
        return run(*given, **more)

    with monkeypatch.context() as planted:
        planted.setattr(mp2, "mp2_energy", interrupted)
        done = call(*arguments, "--output", "x.h5")
    recorded_failure(done, 75)
    assert done.out == ""
    assert {path.name for path in folder.glob("*x.h5*")} == {"x.h5"}
    half = read_study("x.h5")
    assert (
        half.status == "incomplete"
        and list(half.runs) == ["complex", "fragment-1-in-complex"]
        and not half.values
    )
    assert "INCOMPLETE" in succeed(call("show", "x.h5")).out
    for option, value in (
        ("--scf-conv-tol", "1e-9"),
        ("--precision", "fp64"),
        ("--frozen-core", "auto"),
    ):
        other = call(*arguments, "--output", "x.h5", "--resume", option, value)
        recorded_failure(other, 3)
    resumed = succeed(call(*arguments, "--output", "x.h5", "--resume", "--json"))
    assert resumed.kept_runs == 2
    assert read_study("x.h5").complete
    found = resumed.json
    energies = {name: run["mp2_total_energy"] for name, run in found["runs"].items()}
    assert all(run.mp2_total_energy == energies[name] for name, run in half.runs.items())
    parts = (
        energies["complex"] - energies["fragment-1-in-complex"] - energies["fragment-2-in-complex"]
    )
    assert found["cp_corrected_interaction_energy"] == pytest.approx(parts, abs=1e-12)
    errors = [run.certificate.correlation_error for run in read_study("x.h5").runs.values()]
    assert found["precision_error"] == pytest.approx(sum(errors), rel=1e-12) and max(
        errors
    ) < 0.9 * sum(errors)
    assert list(found["runs"]) == list(read_study("x.h5").runs)
    assert succeed(call("show", "x.h5", "--json")).json == found


# --- warnings of the runs -------------------------------------------------------------------------


def test_a_warning_of_the_study_itself_is_kept(call: Runner, folder: Path) -> None:
    """H2 from two atoms: bonds are formed. A file without the list, as written by dfmp2 0.1, is
    read."""
    (folder / "h2.xyz").write_text("2\n\nH 0 0 0\nH 0 0 0.74\n")
    fragments = ("--fragments", "1,2", "--multiplicities", "2,2")
    done = succeed(call("interaction", "h2.xyz", *fragments, "--basis", "6-31g"))
    assert done.out.splitlines()[-1].endswith("; 1 warning")
    shown = " ".join(succeed(call("show", "h2.interaction.h5")).out.split())
    assert "warning: the fragments have 2 unpaired electrons and the complex 0" in shown
    with h5py.File(folder / "h2.interaction.h5", "r+") as file:
        del file["study/warnings"]
    assert read_study(folder / "h2.interaction.h5", verify=False).all_warnings == []
