"""Laws that any correct MP2 program must obey, the definition itself, and published energies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pyscf import gto, mp, scf

import dfmp2
from dfmp2.molecule.molecule import Molecule
from dfmp2.progress import Listener
from tests.conftest import INPUTS, Heard

EXPECTED = json.loads((INPUTS / "expected.json").read_text())["cases"]
PUBLISHED = json.loads((Path(__file__).parent / "data" / "reference_cases.json").read_text())[
    "cases"
]


WATER = Molecule(
    ("O", "H", "H"), np.array([[0.0, 0.0, 0.2217], [0.0, 1.4309, -0.8867], [0.0, -1.4309, -0.8867]])
)


def test_two_electrons_of_different_spin_and_an_ion_of_one_keep_zeros_without_sign():
    """In mixed precision too, where direct and exchange terms differ by their rounding."""
    hydrogen = Molecule(("H", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.4]]))
    pair = dfmp2.run(hydrogen, "cc-pvdz", reference="uhf").to_dict()
    assert (str(pair["mp2_same_spin_correlation_energy"]), str(pair["spin_square"])) == (
        "0.0",
        "0.0",
    )
    ion = dfmp2.run(hydrogen.with_state(1, 2), "cc-pvdz").to_dict()
    zeros = {
        name: str(value)
        for name, value in ion.items()
        if name.endswith("correlation_energy") and value == 0
    }
    assert len(zeros) == 8 and set(zeros.values()) == {"0.0"} and ion["spin_square"] == 0.75


def test_linear_dependence_leaves_fewer_orbitals_than_functions():
    """Diffuse ghosts 0.21 angstrom apart: nmo < nao, nvir follows nmo, and a warning counts them."""
    z = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.4], [0.0, 0.4, 0.0], [0.4, 0.0, 0.0], [0.4, 0.4, 0.0]]
    crowded = Molecule(
        ("He", "O", "O", "O", "O"), np.array(z), ghost=(False, True, True, True, True)
    )
    exact = {"precision": "fp64", "stability": "off", "scf_conv_tol": 1e-12, "threads": 1}
    result = dfmp2.run(crowded, "aug-cc-pvdz", **exact)
    assert result.sizes.nmo < result.sizes.nao
    assert result.sizes.nvir[0] == result.sizes.nmo - 1
    dropped = result.sizes.nao - result.sizes.nmo
    said = f"{dropped} of {result.sizes.nao} basis functions were dropped"
    assert [text for text in result.diagnostics.warnings if text.startswith(said)]


@pytest.mark.bits
def test_threads_and_memory_do_not_change_the_pair_energies():
    """Same orbitals (one SCF), then 1 or 2 threads and two budgets: the same bits."""
    mf = scf.RHF(gto.M(atom="O 0 0 0; H 0 0.7 0.6; H 0 -0.7 0.6", basis="6-31g", verbose=0)).run()
    for precision in ("fp64", "mixed"):
        first, *others = (
            dfmp2.from_mean_field(
                mf, "def2-svp-ri", precision=precision, threads=threads, memory=memory
            )
            for threads, memory in ((1, 4 * 10**9), (2, 4 * 10**9), (2, 8 * 10**9))
        )
        for other in others:
            np.testing.assert_array_equal(first.pairs.opposite_spin, other.pairs.opposite_spin)
            np.testing.assert_array_equal(first.pairs.same_spin[0], other.pairs.same_spin[0])


# --- published by other programs' test suites (tests/data/reference_cases.json, with sources) -----


SOURCE_TOLERANCE = 1e-6  # Eh; looser than a source's own only where the source itself is
# They take seconds each and add nothing to the others
LONG = {
    "gpu4pyscf-vitaminC-631g",
    "fermi-benzene-6-31g",
    "fermi-glycine-sto-3g",
    "fermi-water-cc-pvtz",
    "psi4-dfmp2-ecp-nexe-ae",
    "psi4-dfmp2-ecp-nexe-he-only",
}


NAMES = {
    "hf total energy": "scf_total_energy",
    "mp2 same-spin correlation energy": "mp2_same_spin_correlation_energy",
    "mp2 opposite-spin correlation energy": "mp2_opposite_spin_correlation_energy",
    "mp2 correlation energy": "mp2_correlation_energy",
    "mp2 total energy": "mp2_total_energy",
    "scs-mp2 correlation energy": "scs_mp2_correlation_energy",
}


def molecule_of(case):
    lines = [line.split() for line in case["geometry"].splitlines()]
    scale = 1.0 if case["units"] == "bohr" else 1.0 / case["angstrom_per_bohr"]
    return Molecule(
        symbols=tuple(line[0] for line in lines),
        coordinates=np.array([[float(x) for x in line[1:4]] for line in lines]) * scale,
        charge=case["charge"],
        multiplicity=case["multiplicity"],
    )


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow) if c["id"] in LONG else c for c in PUBLISHED],
    ids=[c["id"] for c in PUBLISHED],
)
def test_published_energy_is_reproduced(case):
    result = dfmp2.run(
        molecule_of(case),
        case["basis"],
        scf=case["scf_type"],
        scf_auxbasis=case["scf_auxbasis"],
        auxbasis=case["auxbasis"],
        reference=case["reference"],
        frozen_core=str(case["frozen_core"]),
        precision="fp64",
        scf_conv_tol=1e-11,
        stability="off",
        threads=2,
        allow_small_gap=True,
        allow_poor_fit=True,
        listener=Listener() if case["auxbasis"].endswith("-ri") else Heard(),
    )
    compared = 0
    for name, value in case["values"].items():
        if name in NAMES:
            tolerance = min(SOURCE_TOLERANCE, max(case["tolerance"], 2e-9))
            # The agreement that an independent program attains with this source
            if "pyscf_difference" in case:
                tolerance = min(SOURCE_TOLERANCE, max(tolerance, 2 * case["pyscf_difference"]))
            assert getattr(result, NAMES[name]) == pytest.approx(value, abs=tolerance), name
            compared += 1
    assert compared


# --- every shipped input, by PySCF and, where it was run, Psi4 (inputs/README.md) -----------------


SLOW = {
    *("benzene", "butane", "c20h42", "formic-acid-dimer", "glycine", "water-8", "water-10"),
    "ch2i2",  # published energies with a core potential take less
}
COMPONENTS = (
    "scf_total_energy",
    "mp2_same_spin_correlation_energy",
    "mp2_opposite_spin_correlation_energy",
    "mp2_correlation_energy",
    "mp2_total_energy",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in EXPECTED],
)
def test_input_gives_its_expected_energy(name):
    case = EXPECTED[name]
    result = dfmp2.run(
        INPUTS / case["file"],
        case["basis"],
        precision="auto" if name in ("c20h42", "water-8") else "fp64",
    )
    assert result.molecule.charge == case["charge"]
    assert result.molecule.multiplicity == case["multiplicity"]
    for component in COMPONENTS:
        # E(corr) is of first order in the orbitals: 1e-10 Eh in the SCF gives about 1e-8 Eh here.
        assert getattr(result, component) == pytest.approx(case["values"][component], abs=1e-7), (
            component
        )
    counts = result.sizes.nao, result.sizes.naux, result.sizes.naux_scf
    assert counts == tuple(case["sizes"][name] for name in ("nao", "naux_ri", "naux_jk"))
    psi4 = case.get("psi4") or {}
    assert name == "c20h42" or set(COMPONENTS) <= set(psi4)
    for component, value in psi4.items():
        if component in COMPONENTS:
            assert getattr(result, component) == pytest.approx(value, abs=1e-7), f"Psi4 {component}"


def test_every_geometry_file_has_an_expected_energy():
    assert {path.name for path in INPUTS.glob("*.xyz")} == {
        case["file"] for case in EXPECTED.values()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("symbols", "length", "charge", "multiplicity", "basis", "masses"),
    [
        ("H Cl", 1.32, 1, 2, "cc-pvdz", (1.00782503, 34.96885268)),
        ("S O", 1.49, 0, 3, "def2-svp", (31.97207117, 15.99491462)),
        ("Li F", 1.58, 0, 1, "def2-svp", (7.01600344, 18.99840316)),
    ],
)
def test_wavenumbers_are_those_of_energies_without_fitting(
    symbols: str,
    length: float,
    charge: int,
    multiplicity: int,
    basis: str,
    masses: tuple[float, float],
) -> None:
    """Second differences of PySCF's conventional energies; docs/howto/frequencies.md has the
    differences."""
    one, other = symbols.split()
    bohr = length / 0.529177210903
    molecule = Molecule((one, other), [[0, 0, 0], [0, 0, bohr]]).with_state(charge, multiplicity)
    found = dfmp2.frequencies(molecule, basis, allow_gradient=True, threads=1)
    energies = []
    for k in (-2, -1, 0, 1, 2):
        atoms = [(one, (0, 0, 0)), (other, (0, 0, bohr + 0.02 * k))]
        mole = gto.M(
            atom=atoms, unit="bohr", basis=basis, charge=charge, spin=multiplicity - 1, verbose=0
        )
        mf = scf.UHF(mole).run(conv_tol=1e-10).newton()
        mf.conv_tol, mf.conv_tol_grad = 1e-13, 1e-9
        mf.kernel(mf.mo_coeff, mf.mo_occ)
        energies.append(mf.e_tot + mp.UMP2(mf).kernel()[0])
    constant = np.dot([-1, 16, -30, 16, -1], energies) / (12 * 0.02**2)
    reduced = masses[0] * masses[1] / sum(masses) * 1822.888486
    expected = np.sqrt(constant / reduced) * 219474.6314
    assert found.table["wavenumber"].values[-1] == pytest.approx(expected, abs=1.0)
