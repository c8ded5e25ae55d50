"""Every number that a study derives from its runs, by a formula written out here; and the numbers of
a result in JSON, HDF5 and Python, which are the same.

What studies and results print and write is recorded in sessions (`tests/sessions.py`); the runs are
compared with other programs elsewhere (docs/project/validation/numbers.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import dfmp2
from dfmp2.arrays import same_content
from dfmp2.mp2.dispersion import Dispersion
from dfmp2.mp2.error_of_difference import combined
from dfmp2.mp2.properties import Polarizability
from dfmp2.mp2.result import Certificate, Check, CoupledCluster, FittingCertificate, Ranks
from dfmp2.output import hdf5
from dfmp2.output.hdf5_datasets import RECORDS_PATH, reduced
from dfmp2.output.reports.study_tables import species_table
from dfmp2.output.study import Column, Study
from dfmp2.output.text import report
from tests.conftest import run_here
from tests.sessions import leaves

FIXED = ("--basis", "sto-3g", "--threads", "1", "--precision", "fp64", "--quiet")
FILES = {
    "oh.xyz": "3\nmultiplicity=2\nO 0 0 0\nH 0.3 0.8 0.5\n@He -1.4 0.3 0.2\n",
    "heh.xyz": "2\ncharge=1\nHe 0 0 0\nH 0.3 0.5 0.72\n",
    "li.xyz": "3\ncharge=1\nLi 0 0 0\nH 0.2 0.3 2.0\nH 0.2 0.9 2.4\n",
    # Near the minimum of its relaxed scan.
    "near.xyz": "3\ncharge=1\nH 0.02 0.01 0\nH 0.5 0.1 0.84\nH -0.45 0.1 0.86\n",
    "he.xyz": "1\n\nHe 0 0 0\n",
    "proton.xyz": "2\n\nH 0 0 0\nH 0.1 0.2 0.71\n",
    "be.xyz": "1\n\nBe 0 0 0\n",
    "be-ion.xyz": "1\ncharge=1 multiplicity=2\nBe 0 0 0\n",
    "li-ion.xyz": "1\ncharge=1\nLi 0 0 0\n",
    "pair.xyz": "2\n\nLi 0 0 0\nLi 0.9 1.4 2.2\n",
    "field.txt": "3.1 -1.2 2.5 0.4\n-2.2 1.9 -2.8 -0.3\n",
}
DELTA = ("--delta", "ccsd(t)/sto-3g")
FAST = (*FIXED, "--stability", "off")
HEH = ("heh.xyz", *FAST)
# All run in one folder; each writes the file NAME.h5.
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "oh.xyz", *FIXED, "--frozen-core", "1", "--point-charges", "field.txt", "--properties"),
    "gradient": ("gradient", "oh.xyz", *FIXED, "--frozen-core", "1"),
    "optimization": ("optimize", *HEH, "--max-steps", "9"),
    "scan": ("scan", "oh.xyz", *FAST, "--bond", "1,2", "0.9:1.2:5", "--frozen-core", "1"),
    "map": ("scan", "li.xyz", *FAST, "--bond", "2,3", "0.7:0.8:2", "--angle", "1,2,3", "95:120:2"),
    "interaction": ("interaction", "li.xyz", *FAST, "--fragments", "1,2-3", "--charges", "1,0", *DELTA),
    "cbs": ("cbs", "proton.xyz", *FIXED[2:], "--basis", "cc-pv[dt]z", "--method", "scs-mp2", *DELTA),
    "reaction": ("reaction", *FAST, "--reactants", "pair.xyz,2*be-ion.xyz", "--products", "2*li-ion.xyz,2*be.xyz"),
    "relaxed": ("scan", "near.xyz", *FAST, "--bond", "2,3", "0.95:1.05:2", "--relaxed", "--convergence", "GAU_LOOSE"),
}  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file that a command writes; it runs when it is first asked for."""
    folder = tmp_path_factory.mktemp("outputs")
    for file, text in FILES.items():
        (folder / file).write_text(text)

    @cache
    def file_of(name: str) -> Path:
        done = run_here(*COMMANDS[name], "--output", f"{name}.h5", cwd=folder)
        assert done.code in (0, 4), (name, done.err)
        return folder / f"{name}.h5"

    return file_of


@pytest.fixture(scope="module")
def study_of(stored: Callable[[str], Path]) -> Callable[[str], Study]:
    """The study that a command stored."""
    return cache(lambda name: dfmp2.read_study(stored(name)))


# --- the same number everywhere -------------------------------------------------------------------

DENSITIES = ("scf", "unrelaxed", "relaxed")
OTHER_NAMES = {  # key of JSON -> attribute of a result, if its name is another one
    "charge": "molecule/charge",
    "multiplicity": "molecule/multiplicity",
    "geometry": "molecule/coordinates",
    "nuclear_repulsion_energy": "reference/nuclear_repulsion_energy",
    "scf_iterations": "reference/cycles",
    "scf_dipole_moment": "reference/dipole",
    "spin_square": "reference/spin_square",
    "stability": "reference/stability",
    "frozen_core_orbitals": "sizes/frozen_core",
    "predicted_timings": "predicted",
    "precision_certificate": "certificate",
    "grid_points": "reference/grid_points",
    "dielectric_constant": "reference/dielectric_constant",
    "solvent_energy": "reference/solvent_energy",
    "smd_cds_energy": "reference/smd_cds_energy",
    "gradient_norm": "gradient/norm",
    "gradient_seconds": "gradient/seconds",
    "total_gradient": "gradient/total_gradient",
    "mp2_total_gradient": "gradient/mp2_total_gradient",
    "point_charge_gradient": "gradient/point_charge_gradient",
    "properties/spin_square/scf": "reference/spin_square",
    **{f"properties/dipole/{name}": f"properties/{name}_dipole" for name in DENSITIES},
    **{
        f"properties/natural_occupations/{name}": f"properties/{name}_occupations"
        for name in DENSITIES
    },
    **{
        f"properties/{quantity}/{name}": f"properties/{quantity}/{place}"
        for quantity in (
            "quadrupole",
            "mulliken_charges",
            "lowdin_charges",
            "mulliken_spin_populations",
            "lowdin_spin_populations",
        )
        for place, name in enumerate(DENSITIES)
    },
}
APART = (
    "error_budget",
    "scf_fitting_error",
    "mp2_fitting_error",
    "point_charges",
    "scf_solutions",
    "properties/origin",
    "provenance",
    "scs_mp2_total",
    "sos_mp2_total",
)  # held elsewhere


def number_at(found: Any, path: str) -> Any:
    """The attribute of a result with the name of a key of JSON."""
    for name, attribute in OTHER_NAMES.items():
        if path == name or path.startswith(f"{name}/"):
            path = attribute + path.removeprefix(name)
            break
    for part in path.split("/"):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


def values_of(study: Study) -> dict[str, float]:
    """The values of a study by name."""
    return {name: item.value for name, item in study.values.items()}


def plain(value: Any) -> Any:
    """An array, tuple or number as JSON has it."""
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def compare_with_attributes(printed: dict[str, Any], result: dfmp2.MP2Result) -> set[str]:
    """Check each number of a JSON object, and return the paths."""
    compared = set()
    for path, value in leaves(printed):
        path = path.removeprefix("/")
        if isinstance(value, bool | str | None) or path.endswith("[]") or path.startswith(APART):
            continue
        assert plain(number_at(result, path)) == value, path
        compared.add(path.partition("/")[0])
    return compared


# Path of a dataset -> attribute of a result; the first that fits.
STORED_AS = {
    "scf/e_tot": "scf_total_energy",
    "scf/": "reference/",
    "dfmp2/energies/": "",
    "dfmp2/input/options/": "options/",
    "dfmp2/input/": "molecule/",
    "dfmp2/rotation_left/": "reference/rotation_left/",
    "dfmp2/solutions/": "reference/solutions/",
    "dfmp2/stability/": "reference/stability/",
    "dfmp2/": "",
}


def compare_with_datasets(path: Path, result: dfmp2.MP2Result) -> int:
    """Check each number of a file, as h5py reads it, and return how many there are."""
    stored: dict[str, Any] = {}
    with h5py.File(path) as handle:

        def note(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.dtype.kind != "O" and name != RECORDS_PATH:
                stored[name] = plain(item[()])

        handle.visititems(note)
    for name, value in stored.items():
        group, _, last = name.rpartition("/")
        if group == "dfmp2/pairs":
            expected = result.pairs.channels()[last]
        elif last == "fitting_error":
            expected = list(getattr(result, group.rpartition("/")[2]).errors.values())
        else:
            start = next(start for start in STORED_AS if name.startswith(start))
            expected = number_at(result, STORED_AS[start] + name.removeprefix(start))
        assert plain(expected) == value, name
    return len(stored)


ALWAYS_APART = {
    *(f"energies/{name}_energy" for name in ("scf_total", "correlation", "total", "mp2_total")),
    *("input/symbols", "input/coordinates", "gradient/mp2_total_gradient"),
    "properties/relaxed_dipole",
}
OF_PROPERTIES = {
    *(f"pairs/{name}" for name in ("opposite_spin", "same_spin_alpha", "same_spin_beta")),
    *("properties/mulliken_charges", "properties/lowdin_charges"),
}


@pytest.mark.parametrize(
    ("keep", "apart"),
    [("properties", OF_PROPERTIES), ("energies", set())],
    ids=["properties", "energies"],
)
def test_a_file_that_keeps_less_has_what_is_sought_apart(
    keep: str, apart: set[str], stored: Callable[[str], Path], tmp_path: Path
) -> None:
    """As a dataset each, with its number; all the rest is in the records."""
    result = reduced(dfmp2.read(stored("gradient")), keep)
    hdf5.write(result, tmp_path / "less.h5")
    with h5py.File(tmp_path / "less.h5") as handle:
        paths: list[str] = []
        handle.visit(paths.append)
        names = {path for path in paths if isinstance(handle[path], h5py.Dataset)}
    assert names == {f"dfmp2/{name}" for name in ALWAYS_APART | apart | {"records"}}
    assert compare_with_datasets(tmp_path / "less.h5", result) == len(names) - 1
    found = dfmp2.read(tmp_path / "less.h5")
    assert found.reference.mo_coeff.size == found.properties.relaxed_density.size == 0
    assert found.properties.unrelaxed_density.size == 0


def test_numbers_of_a_result_are_the_same_everywhere(
    stored: Callable[[str], Path], tmp_path: Path
) -> None:
    """In JSON, HDF5 and Python; those that few results have are made up, so that no two are
    alike."""
    result = dfmp2.read(stored("gradient"))
    slopes = np.array([[1.0, 0.2, 0.3], [0.25, 2.0, 0.5], [0.35, 0.45, 3.0]])
    parts = {
        "diagnostics": replace(
            result.diagnostics, metric_dropped=3, metric_threshold=1e-12, mp2_fitting_error=2e-5
        ),
        "timings": replace(result.timings, fitting_certificate=0.25),
        "certificate": Certificate(91, 17, 1e-9, 2e-9, 3e-9, 4e-9, 1e-7, False, 5),
        "fitting_certificate": FittingCertificate(
            correlation_error=1e-5,
            correlation_uncertainty=2e-6,
            orbitals=9,
            sampled_orbitals=8,
            pairs=45,
            sampled_pairs=36,
            seed=7,
            scf_error=3e-5,
            scf_uncertainty=4e-6,
        ),
        "check": Check("PySCF", -74.1, -0.01, -0.02, 1e-9, 2e-9, 3e-9, 1e-6),
        "dispersion": Dispersion("d4", -0.01, "x", "y", 0.6, 0.7, 0.8, 0.9, 5.1, ""),
        "coupled_cluster": CoupledCluster("PySCF", -0.11, -0.012, -0.09, 1.5, 0.013, 0.014),
        "polarizability": Polarizability(
            slopes, 2 * slopes, np.array([1.1, 1.9, 3.2]), 1e-7, 2e-3, 0.01, 3.5
        ),
    }
    reference = replace(
        result.reference,
        dielectric_constant=78.4,
        solvent_energy=-0.02,
        smd_cds_energy=0.003,
        grid_points=1234,
    )
    predicted = replace(result.predicted, fitting_certificate=0.5)
    ranks = Ranks(2, ("a", "b"), (10, 20))
    filled = replace(result, reference=reference, predicted=predicted, ranks=ranks, **parts)
    found = filled.to_dict()
    assert found["ranks"] == {"count": 2, "hosts": ["a", "b"], "measured_peaks": [10, 20]}
    assert "ranks: " in report(filled)  # runs of 0.1 could be distributed
    compared = compare_with_attributes({**found, "ranks": None}, filled)
    assert compared >= {*parts, "solvent_energy"} - {"certificate"} | {"precision_certificate"}
    hdf5.write(filled, tmp_path / "filled.h5")
    assert dfmp2.read(tmp_path / "filled.h5").to_dict() == found
    assert compare_with_datasets(tmp_path / "filled.h5", filled) > 150
    forces = np.array(found["total_gradient"])
    assert found["gradient_norm"] == pytest.approx(np.sqrt((forces**2).sum()), rel=1e-12)
    assert result.gradient.largest == max(abs(forces.min()), abs(forces.max()))
    assert found["provenance"]["threads"] == result.provenance.threads == 1
    history = np.array(result.reference.history)
    assert len(history) == found["scf_iterations"]
    assert history[-1, 0] == pytest.approx(found["scf_total_energy"], abs=1e-9)
    assert found["check"]["correlation_difference"] == pytest.approx(5e-9)
    assert found["coupled_cluster"]["correction"] == pytest.approx(-0.032)
    even = (slopes + slopes.T) / 2 - 2 * np.eye(3)
    for name, value in {
        "isotropic": 2.0,
        "anisotropy": math.sqrt(1.5 * (even**2).sum()),
        "asymmetry": 0.05,
        "step_error": 0.4,
    }.items():
        assert found["polarizability"][name] == pytest.approx(value), name


def test_numbers_of_a_result_that_are_sums(stored: Callable[[str], Path]) -> None:
    """Its point charges, and the fitting errors of its real atoms."""
    printed = dfmp2.read(stored("run")).to_dict()
    field = np.array([row.split() for row in FILES["field.txt"].splitlines()], float)
    places, charges = field[:, :3] / 0.52917721092, field[:, 3]
    energy = sum(
        nucleus * charge / np.linalg.norm(np.array(printed["geometry"][atom]) - place)
        for atom, nucleus in ((0, 8), (1, 1))
        for place, charge in zip(places, charges, strict=True)
    )
    assert printed["point_charges"] == {
        "count": 2,
        "total_charge": pytest.approx(0.1),
        "nuclear_energy": pytest.approx(energy, rel=1e-9),
    }
    for name in ("scf_fitting_error", "mp2_fitting_error"):
        of = printed[name]["elements"]
        assert printed[name]["sum"] == pytest.approx(of["O"] + of["H"], rel=1e-12)
        assert printed["diagnostics"][name] == pytest.approx(printed[name]["sum"], rel=1e-12)
        assert "He" not in of  # the ghost
    assert printed["properties"]["origin"] == [0.0, 0.0, 0.0]


def test_each_dataset_is_described_and_has_units(stored: Callable[[str], Path]) -> None:
    """Moments of writing are those of UTC."""
    described = []
    with h5py.File(stored("run")) as handle:

        def note(path: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                assert item.attrs["description"].strip() and "units" in item.attrs, path
                described.append(path)

        handle.visititems(note)
        moments = [handle.attrs["file_time"], dfmp2.read(stored("run")).provenance.created]
    assert len(described) > 80
    for moment in moments:
        age = datetime.now(UTC) - datetime.fromisoformat(moment)
        assert timedelta(0) <= age < timedelta(hours=1)


VALUES = np.array([1.0, np.nan])
WORDS = np.array(["a", "b"])


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (VALUES, VALUES.copy(), True),
        (WORDS, WORDS.copy(), True),
        ([1, {"x": VALUES}], [1, {"x": VALUES.copy()}], True),
        ({"x": (np.nan, 2.0)}, {"x": (np.nan, 2.0)}, True),
        ((), (), True),
        (None, None, True),
        (VALUES, np.array([1.0, 2.0]), False),
        (VALUES, [1.0, np.nan], False),
        ({"x": (np.nan, 2.0)}, {"x": (1.0, 2.0)}, False),
        ({"x": (np.nan, 2.0)}, {"x": (-np.inf, 2.0)}, False),
        (WORDS, np.array(["a", "c"]), False),
        ((1.0,), (1.0, 2.0), False),
        ((1.0, 2.0), [1.0, 2.0], False),
        ({"x": 1}, {"x": 2}, False),
        ({"x": 1}, {"x": 1, "y": 2}, False),
        (1, 1.0, False),
        (True, 1, False),
        ("a", None, False),
        (1.0, math.nextafter(1.0, 2.0), False),
    ],
)
def test_what_is_the_same_content(one: Any, other: Any, expected: bool) -> None:
    assert same_content(one, other) is expected and same_content(other, one) is expected


# --- what studies derive from their runs ----------------------------------------------------------

KJ, KCAL = 2625.4996394799, 627.5094740631  # per mol and Eh
ENERGIES = {  # prefix of a difference -> the energy of each run
    "": "total_energy",
    "scf_": "scf_total_energy",
    "correlation_": "correlation_energy",
    "mp2_correlation_": "mp2_correlation_energy",
    "mp2_same_spin_correlation_": "mp2_same_spin_correlation_energy",
    "mp2_opposite_spin_correlation_": "mp2_opposite_spin_correlation_energy",
    "scs_mp2_correlation_": "scs_mp2_correlation_energy",
    "sos_mp2_correlation_": "sos_mp2_correlation_energy",
}


def in_three_units(name: str, energy: float) -> dict[str, float]:
    """An energy in Eh, kJ/mol and kcal/mol, by name."""
    return {name: energy, f"{name}_kj_per_mol": energy * KJ, f"{name}_kcal_per_mol": energy * KCAL}


def near(expected: Any) -> Any:
    """Equal but for rounding."""
    return pytest.approx(expected, rel=1e-7, abs=1e-11, nan_ok=True)


def correction(study: Study, name: str) -> float:
    """CCSD + (T) - MP2 of a run."""
    found = study.runs[name].coupled_cluster
    return found.ccsd_correlation_energy + found.triples_energy - found.mp2_correlation_energy


def test_interaction_energies_are_differences(study_of: Callable[[str], Study]) -> None:
    """Of the complex and two fragments, with the correction to CCSD(T); each in three units."""
    study = study_of("interaction")
    expected = {"precision_error": 0.0}
    table = {}
    for prefix, name in [*ENERGIES.items(), ("delta_", "")]:
        energies = {}
        for basis in ("in-complex", "alone"):
            parts = []
            for run in ("complex", f"fragment-1-{basis}", f"fragment-2-{basis}"):
                delta = correction(study, f"{run}-delta-pyscf")
                energy = getattr(study.runs[f"{run}-sto-3g"], name) if name else 0.0
                parts.append((energy, delta if prefix in ("", "delta_") else 0.0))
            energies[basis] = [whole - one - two for whole, one, two in zip(*parts, strict=True)]
        corrected, raw = (sum(energies[basis]) for basis in ("in-complex", "alone"))
        for scheme, basis in (("cp_corrected", "in-complex"), ("uncorrected", "alone")):
            of = f"{prefix}{scheme}_interaction_energy"
            expected |= in_three_units(of, sum(energies[basis]))
            if prefix in ("", "scf_", "correlation_"):
                table[of] = (energies[basis][0], sum(energies[basis]))
            if prefix == "delta_":  # the first row is that of the basis set alone
                table[of] = (math.nan, sum(energies[basis]))
        expected |= in_three_units(f"{prefix}counterpoise_correction", corrected - raw)
    assert values_of(study) == near(expected)
    assert study.table.keys() == {"basis", *table}
    for name, rows in table.items():
        assert study.table[name].values == near(rows), name


def test_a_composite_level_is_a_sum(study_of: Callable[[str], Study]) -> None:
    """E(HF) of cc-pVTZ, X^-3 for the rest, and CCSD(T) - SCS-MP2 in a small basis."""
    study = study_of("cbs")
    runs, found = study.runs, values_of(study)
    names = ("opposite_spin_correlation_energy", "same_spin_correlation_energy")
    opposite, same = (
        (27 * getattr(runs["cc-pvtz"], f"mp2_{name}") - 8 * getattr(runs["cc-pvdz"], f"mp2_{name}"))
        / 19
        for name in names
    )
    correlation = 1.2 * opposite + same / 3
    small = runs["delta-pyscf"]
    delta = correction(study, "delta-pyscf") + small.mp2_correlation_energy
    delta -= 1.2 * small.mp2_opposite_spin_correlation_energy
    delta -= small.mp2_same_spin_correlation_energy / 3
    hartree_fock = runs["cc-pvtz"].scf_total_energy
    assert abs(delta) > 1e-3
    assert found == near(
        {
            "cbs_scf_total_energy": hartree_fock,
            "cbs_correlation_energy": correlation,
            "cbs_total_energy": hartree_fock + correlation,
            "cbs_mp2_same_spin_correlation_energy": same,
            "cbs_mp2_opposite_spin_correlation_energy": opposite,
            "cbs_mp2_correlation_energy": same + opposite,
            "cbs_mp2_total_energy": hartree_fock + same + opposite,
            "cbs_scs_mp2_correlation_energy": correlation,
            "cbs_sos_mp2_correlation_energy": 1.3 * opposite,
            "delta_correction": delta,
            "composite_total_energy": hartree_fock + correlation + delta,
        }
    )
    rows = [runs["cc-pvdz"], runs["cc-pvtz"]]
    for name in ("scf_total_energy", "correlation_energy", "total_energy"):
        expected = [*(getattr(run, name) for run in rows), found[f"cbs_{name}"]]
        assert study.table[name].values == near(tuple(expected))


@pytest.mark.parametrize("name", ["scan", "map", pytest.param("relaxed", marks=pytest.mark.slow)])
def test_the_table_of_a_scan(name: str, study_of: Callable[[str], Study]) -> None:
    """Coordinates measured in the geometries, energies of the points, heights above the lowest."""
    study = study_of(name)
    runs = sorted(study.settings.get("path", study.runs), key=lambda run: run.rpartition("-")[2])
    points = [study.runs[run] for run in runs]
    table = {key: list(column.values) for key, column in study.table.items()}
    lowest = min(points, key=lambda run: run.total_energy)
    bond = (0, 1) if name == "scan" else (1, 2)
    places = [run.molecule.coordinates * 0.52917721092 for run in points]
    lengths = [float(np.linalg.norm(place[bond[1]] - place[bond[0]])) for place in places]
    expected: dict[str, list[float]] = {
        f"bond_{bond[0] + 1}_{bond[1] + 1}": lengths,
        "relative_energy": [(run.total_energy - lowest.total_energy) * KJ for run in points],
        "homo_lumo_gap": [run.diagnostics.homo_lumo_gap for run in points],
        "scf_iterations": [run.reference.cycles for run in points],
        "exit_code": [0.0] * len(points),
    }
    for key in (
        "scf_total_energy",
        "mp2_total_energy",
        "mp2_correlation_energy",
        "mp2_same_spin_correlation_energy",
        "mp2_opposite_spin_correlation_energy",
    ):
        expected[key] = [getattr(run, key) for run in points]
    errors = []
    for run in points:
        total = combined([((1.0, 1.0), run), ((-1.0, -1.0), lowest)], "").total
        errors.append(0.0 if run is lowest or total is None else total * KJ)
    expected["relative_energy_error"] = errors
    if name == "map":
        sides = [(place[0] - place[1], place[2] - place[1]) for place in places]
        expected["angle_1_2_3"] = [
            math.degrees(math.acos(one @ two / np.linalg.norm(one) / np.linalg.norm(two)))
            for one, two in sides
        ]
    if name == "relaxed":
        for direction in ("forward", "backward"):
            passed = [study.runs[f"{direction}-{number:03d}"] for number in (1, 2)]
            expected[f"{direction}_energy"] = [run.total_energy for run in passed]
        start = np.array([row.split()[1:] for row in FILES["near.xyz"].splitlines()[2:]], float)
        assert np.array(study.settings["start_geometry"]) == near(start / 0.52917721092)
    assert table.keys() == expected.keys()
    for key, values in expected.items():
        assert table[key] == near(values), key


def test_a_reaction_is_products_less_reactants(study_of: Callable[[str], Study]) -> None:
    """Ions and an atom with spin that count twice."""
    study = study_of("reaction")
    coefficients = {"pair": -1.0, "be-ion": -2.0, "li-ion": 2.0, "be": 2.0}
    expected = {"precision_error": 0.0}
    for prefix, name in ENERGIES.items():
        parts = [factor * getattr(study.runs[run], name) for run, factor in coefficients.items()]
        expected |= in_three_units(f"{prefix}reaction_energy", sum(parts))
    assert values_of(study) == near(expected)
    table = {name: list(column.values) for name, column in study.table.items()}
    assert dict(zip(table["species"], table["coefficient"], strict=True)) == coefficients
    assert table["total_energy"] == [study.runs[run].total_energy for run in coefficients]
    assert table["charge"] == [0.0, 1.0, 1.0, 0.0]
    assert table["multiplicity"] == [1.0, 2.0, 1.0, 1.0]
    modes = Column((0.0, 1.0, 0.0, 0.0), "", "")
    of_saddle = replace(study, table={**study.table, "imaginary_modes": modes})
    assert "#imag. modes" in species_table(of_saddle).heads


def test_the_steps_of_an_optimisation(study_of: Callable[[str], Study]) -> None:
    """Two atoms: every atom has the same gradient, and moves by half of the change of the bond."""
    study = study_of("optimization")
    steps = [study.runs[name] for name in study.settings["path"]]
    energies = [run.total_energy for run in steps]
    gradients = [float(np.linalg.norm(run.gradient.total_gradient[0])) for run in steps]
    places = [run.molecule.coordinates for run in steps]
    lengths = [float(np.linalg.norm(place[1] - place[0])) for place in places]
    moved = [math.nan, *(abs(change) / 2 * 0.52917721092 for change in np.diff(lengths))]
    expected = {
        "step": [float(k) for k in range(len(steps))],
        "total_energy": energies,
        "rms_gradient": gradients,
        "max_gradient": gradients,
        "rms_displacement": moved,
        "max_displacement": moved,
    }
    assert study.table.keys() == expected.keys()
    for name, column in expected.items():
        found = list(study.table[name].values)
        assert found == pytest.approx(column, rel=1e-5, nan_ok=True), name
    assert values_of(study) == near(
        {
            "optimized_total_energy": energies[-1],
            "energy_change": energies[-1] - energies[0],
            "max_gradient": gradients[-1],
        }
    )
    assert study.arrays["final_geometry"].value == near(places[-1])
    assert study.arrays["contact_lengths"].value == near([lengths[-1] * 0.52917721092])
    assert study.arrays["contact_atoms"].value.tolist() == [[1, 2]]
