"""`dfmp2 compare` with PySCF, without fitting (--exact), and with Psi4; and the errors that each
check detects."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from ast import literal_eval
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import dfmp2
from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import (
    BackendError,
    ComparisonFailed,
    ConvergenceError,
    InputError,
    ResourceError,
    UnsupportedByBackend,
)
from dfmp2.host import resources
from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2 import check as exact
from dfmp2.mp2 import energy
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output import hdf5
from dfmp2.progress import Collector, Listener, Silent
from dfmp2.scf.reference import StartOrbitals
from dfmp2.units import BOHR_PER_ANGSTROM
from dfmp2.validation import compare, formulas, psi4
from dfmp2.validation.psi4 import find_psi4, parse_output, psi4_input, run_psi4
from tests.conftest import (
    COMMAND,
    INPUTS,
    PATIENCE,
    ROOT,
    Heard,
    Runner,
    Stored,
    succeed,
    wait_until,
)
from tests.recorded import recorded_error, recorded_failure, recorded_texts

DATA = ROOT / "tests" / "data" / "psi4"
WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
SAME, OPPOSITE = "mp2_same_spin_correlation_energy", "mp2_opposite_spin_correlation_energy"


def atoms(text: str, scale: float = BOHR_PER_ANGSTROM, **state: int) -> Molecule:
    """Atoms in angstrom (or bohr, scale 1), a ghost as @X."""
    rows = [line.split() for line in text.split(";")]
    points = scale * np.array([[float(x) for x in row[1:]] for row in rows])
    return Molecule(
        tuple(r[0].lstrip("@") for r in rows), points, tuple(r[0][0] == "@" for r in rows), **state
    )


def exactly(result: MP2Result, tolerance: float = compare.FITTING_TOLERANCE) -> compare.Comparison:
    return compare.recompute_exact(result, tolerance, 1, Listener())


# --- --exact: the energies ---


AMIDOGEN = (
    "N 0 0 -0.145912918634892; H 0 -1.511214298139 1.013682596946108; H 0 1.511214298139 "
    "1.013682596946108"
)


# E(SCF), E_SS, E_corr of NH2, UHF, aug-cc-pVDZ, of Psi4's standard suite, scf_type pk and mp2_type conv
# (QCEngine a97b469).
PUBLISHED = (-55.57513805247548, -0.03520162545964887, -0.15485993330517828)


def test_published_four_centre_energies() -> None:
    """Conventional MP2 of another program: 1e-8 Eh, because E(corr) is linear in the orbital
    errors."""
    radical = atoms(AMIDOGEN, 1, multiplicity=2)
    check = exactly(dfmp2.run(radical, "aug-cc-pvdz", frozen_core="none", stability="off"))
    scf, same, opposite = (
        check.named(name).theirs for name in ("scf_total_energy", SAME, OPPOSITE)
    )
    assert (scf, same, same + opposite) == pytest.approx(PUBLISHED, abs=1e-8)
    assert check.passed
    assert abs(check.correlation_difference) > 1e-6  # the fitting error, which no other check shows


def test_frozen_virtual_orbitals_and_spins() -> None:
    """UHF: the frozen core is 2 % of the energies, the frozen virtual orbitals 4 %, and fitting
    errs by 0.1 %."""
    frozen = {"frozen_core": "1", "frozen_virtual": 1, "stability": "off"}
    check = exactly(dfmp2.run(atoms(AMIDOGEN, 1, multiplicity=2), "cc-pvdz", **frozen))
    for part in (check.named(SAME), check.named(OPPOSITE)):
        assert abs(part.difference) < 5e-3 * abs(part.theirs)


def test_what_does_not_fit_is_refused_first(water: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the largest basis that would fit into the available memory."""
    result = hdf5.read(water.path)
    sizes = replace(result.sizes, nao=2000, nvir=(1995, 1995))
    monkeypatch.setattr(compare.hartree_fock, "run_scf", None)
    monkeypatch.setattr(resources, "available_memory", lambda: 10**10)
    for method, arrays in (("mp2", 0), ("kappa-mp2", 2)):  # (ia|jb) of 5 occupied orbitals, twice
        options = replace(result.options, method=method, check=False)
        with pytest.raises(ResourceError, match=r"\d+ functions would fit") as refused:
            exactly(replace(result, sizes=sizes, options=options))
        fits = int(str(refused.value).partition(" functions would fit")[0].split()[-1])
        needed = [
            exact.required_bytes(sizes, 1, n)
            + compare.LOADED
            + 8 * arrays * (5 * max(0, 1995 + n - 2000)) ** 2
            for n in (fits, fits + 1)
        ]
        assert needed[0] <= 9 * 10**9 < needed[1]


@pytest.mark.slow
def test_the_prediction_is_what_is_held(tmp_path: Path) -> None:
    """Peak memory of NH3/aug-cc-pVTZ in a fresh process: the estimate within 20 MB (345 of 353 MB
    measured)."""
    program = (
        "import dfmp2; from dfmp2.host import resources; from dfmp2.progress import Listener\n"
        "from dfmp2.mp2 import check as exact; from dfmp2.validation import compare\n"
        f"r = dfmp2.run({str(INPUTS / 'nh3.xyz')!r}, 'aug-cc-pvtz', stability='off')\n"
        "resources.return_memory(); resources.restart_peak(); before = "
        "resources.resident_memory()\ncompare.recompute_exact(r, 1e-3, 1, Listener())\n"
        "print(before + compare.LOADED + exact.required_bytes(r.sizes, 1, r.sizes.nao))\n"
        "print(resources.peak_resident_memory())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    predicted, peak = map(int, done.stdout.split())
    assert abs(peak - predicted) < 20 * 10**6


# --- which SCF solution ---


@pytest.fixture(scope="module")
def broken() -> MP2Result:
    """H2 at 2.5 angstrom with one electron at each end, which no start from atomic densities
    reaches."""
    molecule = atoms("H 0 0 0; H 0 0 2.5")
    bonding, antibonding = dfmp2.run(molecule, "sto-3g", stability="off").reference.mo_coeff[0].T
    left, right = (bonding + antibonding) / np.sqrt(2), (bonding - antibonding) / np.sqrt(2)
    start = np.stack([np.column_stack([left, right]), np.column_stack([right, left])])
    occupied = np.array([[1.0, 0.0], [1.0, 0.0]])
    options = Options(basis="sto-3g", reference="uhf", stability="off", precision="fp64")
    return energy.mp2_energy(
        molecule, options, start=StartOrbitals(start, occupied, None, "one at each end")
    )


def test_another_solution_is_compared_with_itself(broken: MP2Result) -> None:
    """From atomic densities PySCF finds E(RHF), 0.23 Eh higher; the stored numbers are nevertheless
    correct."""
    warned = Collector(Silent())
    assert compare.recompute(broken, 1e-7, 1, warned).passed
    recorded_texts(warned.warnings)
    assert exactly(broken).passed
    wrong = replace(broken, reference=replace(broken.reference, scf_total_energy=-0.8))
    warned = Collector(Silent())
    assert not compare.recompute(wrong, 1e-6, 1, warned).passed  # of no solution
    assert warned.warnings == []


@pytest.mark.parametrize(
    ("alone", "stored", "expected"),
    [
        (0.9e-6, None, "alone"),
        (1.1e-6, 0.0, "stored"),
        (-1.1e-6, 0.0, "stored"),
        (1e-3, 1e-3, "alone"),  # neither has the stored energy
        (None, 0.0, "stored"),
        (None, -1e-3, "stored"),
    ],
)
def test_which_scf_of_pyscf_is_compared(
    alone: float | None, stored: float | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That from atomic densities, unless that from the stored orbitals alone has their energy, Eh
    above it; None if it does not converge or is not needed."""
    found = [
        ConvergenceError("by hand")
        if above is None
        else (name, SimpleNamespace(scf_total_energy=-76.0 - above))
        for name, above in (("alone", alone), ("stored", stored))
    ]
    monkeypatch.setattr(compare, "_scf", Mock(side_effect=found))
    heard = Heard()
    result: Any = SimpleNamespace(scf_total_energy=-76.0, reference=SimpleNamespace(title="RHF"))
    assert compare._same_solution(None, result, None, heard, 1)[0] == expected
    assert len(heard.warnings) == (expected == "stored")


def test_a_loosely_converged_scf_is_not_repeated_loosely(call: Runner) -> None:
    """Repeated with its own 1e-2 Eh it would agree to 4e-14 Eh; converged it is 1.4e-5 Eh lower."""
    succeed(
        call(
            "run",
            "h2o.xyz",
            "--basis",
            "cc-pvdz",
            "--scf-conv-tol",
            "1e-2",
            "--scf-max-cycles",
            "4",
            "--precision",
            "fp64",
            "--quiet",
        )
    )
    done = call("compare", "h2o.dfmp2.h5", "--json")
    recorded_failure(done, 8)
    assert done.json["energies"]["scf_total_energy"]["difference"] == pytest.approx(
        1.44e-5, rel=0.01
    )


def test_the_other_scf_is_converged_further_than_the_default() -> None:
    """PySCF with the threshold of the run takes its path and agrees to 1e-14 Eh; with 1e-14 Eh it is
    2.5e-7 Eh lower."""
    molecule = dfmp2.Molecule.from_string("C 0 0 0; N 0 0 1.2", multiplicity=2)
    result = dfmp2.run(molecule, "6-31g", threads=1, precision="fp64")
    found = compare.recompute(result, 1e-6, 1, Silent())
    assert found.correlation_difference == pytest.approx(2.5e-7, abs=2e-8)


def test_where_the_other_scf_ends_early_it_says_so(
    water: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "CONVERGED", 1e-300)
    monkeypatch.setattr(compare, "LEAST_CYCLES", 12)
    result = hdf5.read(water.path)
    result = replace(result, options=replace(result.options, scf_max_cycles=12))
    warned = Collector(Silent())
    assert compare.recompute(result, 1e-7, 1, warned).passed
    recorded_texts(warned.warnings)


def test_orbitals_that_are_left_give_no_fitting_error(water: Stored) -> None:
    """With another orbital occupied the conventional SCF falls back to the ground state."""
    result = hdf5.read(water.path)
    swapped = result.reference.mo_coeff.copy()
    swapped[:, :, [4, 5]] = swapped[:, :, [5, 4]]
    with recorded_error(ComparisonFailed):
        exactly(replace(result, reference=replace(result.reference, mo_coeff=swapped)))


# --- what the checks see and what they do not ---


@pytest.mark.parametrize(
    ("options", "said", "name", "difference"),
    [
        (
            ("--basis", "cc-pvdz", "--scf-auxbasis", "cc-pvdz-jkfit"),
            "E(SCF) is off by +3.4e-01 Eh per atom: suspect the SCF fitting set (cc-pvdz-jkfit)",
            "scf_total_energy",
            0.6737,  # in PySCF and Psi4 as well
        ),
        (
            ("--basis", "6-31g*", "--auxbasis", "cc-pvdz-ri"),
            "suspect the MP2 fitting set (cc-pvdz-ri)",
            "mp2_correlation_energy",
            -0.0022,
        ),
    ],
)
def test_a_poor_set_is_seen_without_sets_only(
    call: Runner, folder: Path, options: tuple[str, ...], said: str, name: str, difference: float
) -> None:
    """HBr with published sets that do not fit bromine."""
    (folder / "mol.xyz").write_text("2\n\nH 0 0 0\nBr 0 0 1.41\n")
    succeed(call("run", "mol.xyz", *options, "--allow-poor-fit"))
    succeed(call("compare", "mol.dfmp2.h5"))
    done = call("compare", "mol.dfmp2.h5", "--exact", "--json")
    assert done.code == 8 and said in done.message
    found = done.json["energies"][name]["difference"]
    assert found == pytest.approx(difference, abs=1e-4)


def test_a_fault_of_the_pair_terms_is_seen_by_another_program(
    call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part in a thousand: --check and compare detect it; the certificate shares it, and --exact
    is not precise enough."""
    right = CpuBackend.pair_terms

    def wrong(*arguments: Any) -> Any:
        terms = right(*arguments)
        return terms._replace(direct=1.001 * terms.direct)

    monkeypatch.setattr(CpuBackend, "pair_terms", wrong)
    options = ("--basis", "cc-pvdz", "--backend", "cpu", "--precision", "mixed", "--check")
    assert call("run", "h2o.xyz", *options).code == 8
    assert call("compare", "h2o.dfmp2.h5").code == 8
    succeed(call("compare", "h2o.dfmp2.h5", "--exact"))
    certificate = hdf5.read("h2o.dfmp2.h5").certificate
    assert certificate is not None and certificate.accepted


# --- every method and every reference ---


AMIDOGEN_BENT = "N 0 0 -0.0772; H 0.1 -0.7997 0.5364; H 0 0.8997 0.5364"  # no symmetry
CHARGES = np.array([[0.0, 0.0, 4.0, 0.3], [1.0, -3.0, 2.0, -0.5]])
METHODS_COMPARED: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "kappa, charged": (AMIDOGEN_BENT, "6-31g", {"charge": 1}, {"method": "kappa-mp2"}),
    "kappa, frozen": (
        AMIDOGEN_BENT,
        "6-31g",
        {"multiplicity": 2},
        {"method": "kappa-mp2", "kappa": 1.7, "frozen_core": "1", "frozen_virtual": 2},
    ),
    "kappa, rohf": (
        AMIDOGEN_BENT,
        "6-31g",
        {"multiplicity": 2},
        {"method": "kappa-mp2", "reference": "rohf"},
    ),
    "laplace": (
        AMIDOGEN_BENT,
        "6-31g",
        {"multiplicity": 2},
        {"method": "sos-laplace", "frozen_core": "1"},
    ),
    "laplace, coarse": (WATER, "6-31g", {}, {"method": "sos-laplace", "tolerance": 1e-4}),
    "drpa, point charges": (
        AMIDOGEN_BENT,
        "6-31g",
        {"multiplicity": 2, "point_charges": CHARGES},
        {"method": "drpa", "frozen_core": "1", "frozen_virtual": 1},
    ),
    "drpa, pbe0, x2c, point charges": (
        WATER,
        "6-31g",
        {"point_charges": CHARGES},
        {"method": "drpa", "xc": "pbe0", "grid": 0, "relativity": "x2c"},
    ),
    "drpa, pbe0, solvent": (
        WATER,
        "6-31g",
        {},
        {"method": "drpa", "xc": "pbe0", "grid": 0, "solvent": "water"},
    ),
    "drpa, core potential": ("H 0 0.1 0; I 0 0 1.6; @H 0 0 3", "def2-svp", {}, {"method": "drpa"}),
    "drpa, uks, x2c": (
        "S 0 0 0; H 0.97 0.93 0; H -0.9 0.95 0",
        "6-31g",
        {"multiplicity": 2, "charge": 1},
        {
            "method": "drpa",
            "xc": "pbe",
            "relativity": "x2c",
            "scf_auxbasis": "def2-universal-jkfit",
        },
    ),
    "drpa, one electron": (
        "H 0 0 0; H 0 0.1 1.2",
        "6-31g",
        {"multiplicity": 2, "charge": 1},
        {"method": "drpa"},
    ),
    "rohf, scs": (
        AMIDOGEN_BENT,
        "6-31g",
        {"multiplicity": 2},
        {"reference": "rohf", "method": "scs-mp2", "frozen_core": "1", "frozen_virtual": 1},
    ),
    "rohf, conventional": (
        AMIDOGEN_BENT,
        "6-31g",
        {"multiplicity": 2, "point_charges": CHARGES},
        {"reference": "rohf", "scf": "conventional"},
    ),
}


SLOW = ("drpa, uks, x2c", "drpa, pbe0, solvent")


@cache
def result_of(name: str) -> MP2Result:
    """A run of METHODS_COMPARED, not to be changed."""
    text, basis, state, options = METHODS_COMPARED[name]
    sets = {"auxbasis": "def2-svp-ri", "allow_poor_fit": True}
    return dfmp2.run(atoms(text, **state), basis, threads=1, **sets, **options)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in METHODS_COMPARED],
)
def test_every_method_is_recomputed(name: str) -> None:
    """PySCF's modules or sums over its integrals: within 1e-8 Eh and the stated error of a
    quadrature. Without fitting, the errors of sound sets: below 1e-3 Eh per atom, and not zero."""
    result = result_of(name)
    heard = Heard()
    found = compare.recompute(result, 1e-8, 1, heard)
    assert found.passed, found
    assert not [stage for stage in heard.stages if "grid" in stage]  # its error is not compared
    stored = {energy.name: energy.stored for energy in found.energies}
    told = result.to_dict()
    for key in stored.keys() - {"mp2_doubles_energy"}:
        assert told[key] == pytest.approx(stored[key], abs=1e-14)
    assert found.energies[-1].stored == result.correlation_energy
    assert found.energies[-1].theirs < -0.008  # the compared energies are not both zero
    unfitted = exactly(result)
    assert unfitted.passed, unfitted
    error = abs(unfitted.correlation_difference)
    assert 1e-9 < error < 0.02 * abs(unfitted.energies[-1].theirs)


@pytest.mark.usefixtures("coarse_grid_error")
def test_a_functional_that_is_not_that_of_the_orbitals_is_recomputed() -> None:
    """XYG3 uses the orbitals of B3LYP: an energy of the functional that is wrong by 1e-6 Eh is seen,
    as that much."""
    given = {"method": "xyg3", "grid": 0, "threads": 1, "listener": Listener()}
    result = dfmp2.run(dfmp2.Molecule.from_string("Li 0 0 0; H 0.1 0 1.6"), "sto-3g", **given)
    energy = result.functional_energy + 1e-6
    wrong = replace(result, reference=replace(result.reference, functional_energy=energy))
    seen = compare.recompute(wrong, 1e-8, 1, Listener())
    assert not seen.passed
    assert seen.named("functional_energy").difference == pytest.approx(1e-6, rel=0.02)


def test_a_wrong_energy_of_every_method_is_seen() -> None:
    """One part in ten thousand of any component of the correlation energy."""
    one, charged, open_shell = map(result_of, ("drpa, one electron", "kappa, charged", "rohf, scs"))
    quadrature = replace(one.quadrature, energy=1.0001 * one.quadrature.energy, error=0)
    pairs = replace(charged.pairs, opposite_spin=1.0001 * charged.pairs.opposite_spin)
    coupling = 1.0001 * open_shell.reference.mo_coupling
    reference = replace(open_shell.reference, mo_coupling=coupling)
    for wrong, allowed in (
        (replace(one, quadrature=quadrature), 1e-7),
        (replace(charged, pairs=pairs), 1e-7),
        (replace(open_shell, reference=reference), 1e-8),
    ):
        assert not compare.recompute(wrong, allowed, 1, Heard()).passed


def test_bytes_of_sums_counted_by_hand() -> None:
    """B of both spins twice, three-centre integrals, (ia|jb) of one i four times and, for plasmons,
    two matrices."""
    pairs = 3 * 7 + 2 * 8
    for plasmons in (False, True):
        numbers = 2 * 20 * pairs + 20 * 10 * 11 // 2 + 4 * 8 * pairs + 2 * pairs**2 * plasmons
        assert formulas.fitted_bytes([(3, 7), (2, 8)], 10, 20, plasmons=plasmons) == 8 * numbers


def test_sums_that_do_not_fit_are_refused(call: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    succeed(call("run", "h2o.xyz", "--basis", "6-31g", "--method", "drpa", "--quiet"))
    asked: list[Any] = []
    monkeypatch.setattr(
        formulas, "fitted_bytes", lambda *given, **how: asked.append((given, how)) or 10**15
    )
    done = call("compare", "h2o.dfmp2.h5")
    assert done.code == 7
    naux = hdf5.read("h2o.dfmp2.h5").sizes.naux
    assert asked == [(([(5, 8)], 13, naux), {"plasmons": True})]


# --- Psi4: the input ---


# NH2, cc-pVDZ, one frozen orbital: printed by Psi4 1.3.2 in DATA/compare-nh2.out.
RECORDED = (-55.5670750200435464, -0.0319039122076434, -0.1114970638772585)


@pytest.fixture(scope="module")
def radical_result() -> MP2Result:
    return dfmp2.run(
        INPUTS / "nh2.xyz", "cc-pvdz", frozen_core="1", precision="fp64", stability="off"
    )


@pytest.fixture
def stored(radical_result: MP2Result, folder: Path) -> Path:
    """The radical's result file in the working directory of `call` and `dfmp2`."""
    hdf5.write(radical_result, folder / "nh2.h5")
    return folder / "nh2.h5"


@pytest.fixture(scope="module")
def iodide_result() -> MP2Result:
    """HI with its 28-electron core potential, and a ghost of each element."""
    molecule = atoms("H 0 0 0; I 0 0 1.6; @I 0 0 4; @H 0 0 5")
    return dfmp2.run(
        molecule, "def2-svp", auxbasis="def2-svp-ri", frozen_core="auto", stability="off"
    )


def test_recorded_input_is_what_is_written(
    radical_result: MP2Result, iodide_result: MP2Result
) -> None:
    """The input whose output is recorded; and that of HI, whose ghost has a basis set without a
    core potential, since Psi4 applies a potential at a ghost as well."""
    assert psi4_input(radical_result, 10**9) == (DATA / "compare-nh2.in").read_text()
    assert psi4_input(iodide_result, 10**9) == (DATA / "compare-hi.in").read_text()
    no_ghost = replace(iodide_result.molecule, ghost=(False,) * 4)
    assert "bare" not in psi4_input(replace(iodide_result, molecule=no_ghost), 10**9)


def test_settings_follow_the_calculation(radical_result: MP2Result) -> None:
    r = radical_result
    for result, expected in (
        (replace(r, scf_fitting=None), "scf_type pk"),
        (replace(r, options=Options(basis="cc-pvdz", scf_conv_tol=1e-12)), "e_convergence 1.0e-12"),
        (  # functions were dropped
            replace(r, sizes=replace(r.sizes, nmo=r.sizes.nao - 1)),
            "s_orthogonalization canonical\ns_tolerance 1.0e-06",
        ),
        (
            replace(r, molecule=r.molecule.in_field([[1.0, 2.0, 3.0, -0.5]])),
            "field.extern.addCharge(-0.5, 1.0, 2.0, 3.0)\n",
        ),
        (
            replace(r, sizes=replace(r.sizes, frozen_core=2, frozen_virtual=3)),
            "num_frozen_docc 2\nnum_frozen_uocc 3\n",
        ),
        (
            replace(r, molecule=replace(r.molecule, charge=-2, multiplicity=4)),
            "molecule {\n-2 4\nN ",
        ),
    ):
        text = psi4_input(result, 10**9)
        assert expected in text
        assert ("df_basis_scf" in text) == ("scf_type df" in text)
    for memory, given in ((10**6, 500), (500_999_999, 500), (7 * 10**9, 7000)):
        assert psi4_input(r, memory).startswith(f"memory {given} mb\n")


def test_nothing_but_numbers_and_symbols_gets_in(radical_result):
    """Psi4 executes its input, and a result file may come from anywhere."""
    evil = "}\nimport os; os.system('touch /tmp/evil')\n"
    basis = radical_result.orbital_basis
    elements = {symbol: replace(e, name=evil, source=evil) for symbol, e in basis.elements.items()}
    hostile = replace(
        radical_result,
        molecule=replace(radical_result.molecule, name=evil, source=evil, text=evil),
        orbital_basis=BasisSet(evil, evil, elements),
        options=replace(radical_result.options, basis=evil.replace("/", "")),  # no file
    )
    assert psi4_input(hostile, 10**9) == psi4_input(radical_result, 10**9)
    renamed = {symbol: replace(e, symbol=evil) for symbol, e in elements.items()}
    of_atoms = replace(hostile.orbital_basis, elements=renamed)
    with recorded_error(UnsupportedByBackend):
        psi4_input(replace(hostile, orbital_basis=of_atoms), 10**9)


def test_what_the_format_cannot_express_is_refused(radical_result, iodide_result):
    basis = radical_result.mp2_fitting
    high = replace(basis.elements["N"], shells=((11, (1.0, 1.0)),))
    every = replace(high, shells=tuple((momentum, (1.5, 2.0)) for momentum in range(11)))
    letters = [line[0] for line in psi4._shells("N", every).splitlines()[1::2]]
    assert "".join(letters) == "SPDFGHIKLMN"
    orbital = iodide_result.orbital_basis
    local = replace(orbital.elements["I"], ecp=(28, ((-1, ((), (), ((1.0, 1.0),))),)))
    potential = replace(orbital, elements={**orbital.elements, "I": local})
    beyond = replace(basis, elements={**basis.elements, "N": high})
    for kind, refused in (
        (UnsupportedByBackend, replace(radical_result, mp2_fitting=beyond)),
        (InputError, replace(radical_result, mp2_fitting=replace(basis, elements={}))),
        (UnsupportedByBackend, replace(iodide_result, orbital_basis=potential)),
    ):
        with recorded_error(kind):
            psi4_input(refused, 10**9)


def test_psi4_is_asked_for_the_parts_of_a_functional(radical_result):
    """Exchange and correlation of libxc by name with their factors, on a grid of as many points; not
    for a range-separated one, another one of the energy, or a grid without numbers of points."""
    options = replace(radical_result.options, method="b2plyp", check=False)
    reference = replace(
        radical_result.reference, xc="0.53*HF + 0.47*B88, 0.7*LYP + 0.3*P86", grid="75,302"
    )
    found = replace(radical_result, options=options, reference=reference)
    text = psi4_input(found, 10**9)
    assert "dft_radial_points 75\n" in text and "dft_spherical_points 302\n" in text
    (task,) = (line for line in text.splitlines() if line.startswith("energy('scf', "))
    functional = literal_eval(task.partition("dft_functional=")[2].removesuffix(")"))
    assert functional == {
        "name": "functional",
        "x_hf": {"alpha": 0.53},
        "x_functionals": {"GGA_X_B88": {"alpha": 0.47}},
        "c_functionals": {"GGA_C_LYP": {"alpha": 0.7}, "GGA_C_P86": {"alpha": 0.3}},
        "c_mp2": {"os": 1.0, "ss": 1.0},
    }
    for changes in ({"grid": "3"}, {"xc": "camb3lyp", "grid": "3"}, {"energy_xc": "b3lyp"}):
        with recorded_error(UnsupportedByBackend):
            psi4_input(replace(found, reference=replace(reference, **changes)), 10**9)


# --- Psi4: the output ---


def test_recorded_output() -> None:
    text = (DATA / "compare-nh2.out").read_text()
    found = parse_output(text)
    assert found.energies.program == "Psi4 1.3.2"
    assert (
        found.energies.scf_total_energy,
        found.energies.same_spin,
        found.energies.opposite_spin,
    ) == RECORDED
    assert (found.nao, found.naux, found.active) == (24, 84, ((4, 19), (3, 20)))
    restricted = "\t   PAIRS       1       5       4      19      19       0\n"
    assert parse_output(re.sub(r"\t   ALPHA.*\n.*BETA.*\n", restricted, text)).active == ((4, 19),)
    for missing in ("Same-Spin Energy", "NBF =", "ALPHA|BETA", "Psi4 1.3.2"):
        with recorded_error(BackendError):
            parse_output(re.sub(missing, "gone", text))


# --- Psi4: a stand-in on PATH ---


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Put a program called psi4 first on PATH, and watch the temporary folder."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("PSI_SCRATCH", str(scratch))
    monkeypatch.setenv("RECORDED", str(DATA / "compare-nh2.out"))

    def make(script: str) -> Path:
        program = tmp_path / "bin" / "psi4"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        return scratch

    yield make
    assert list(scratch.iterdir()) == []  # whatever happened


def test_energies_of_another_calculation_are_refused(radical_result, stand_in):
    stand_in("cp $RECORDED output.dat")
    sizes = replace(radical_result.sizes, frozen_core=0, nocc=(5, 4))
    with recorded_error(ComparisonFailed):
        run_psi4(replace(radical_result, sizes=sizes), 1)
    with recorded_error(UnsupportedByBackend):
        run_psi4(replace(radical_result, sizes=replace(sizes, nocc=(4, 0))), 1)


def test_psi4s_energies_beside_ours(call: Runner, stored: Path, stand_in):
    stand_in("cp $RECORDED output.dat")
    done = succeed(call("compare", "nh2.h5", "--with", "psi4"))
    assert done.out.endswith("agrees with Psi4 1.3.2 within 1.0e-06 Eh, same fitting sets\n")
    found = succeed(call("compare", "nh2.h5", "--with", "psi4", "--json")).json
    assert (found["program"], found["passed"]) == ("Psi4 1.3.2", True)
    row = found["energies"]["mp2_opposite_spin_correlation_energy"]
    assert row["psi4"] == RECORDED[2]
    assert row["difference"] == pytest.approx(row["stored"] - RECORDED[2], abs=1e-15)
    assert abs(row["difference"]) < 1e-8


def test_it_runs_alone(radical_result, stand_in, tmp_path, monkeypatch):
    """Its own folder as home and working directory, no terminal, no foreign basis sets, our
    threads."""
    names = ("PSIPATH", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
    for name in names:
        monkeypatch.setenv(name, "1")
    foreign = "".join(f"${name}" for name in names)
    seen = tmp_path / "seen"
    stand_in(
        f'(pwd; echo "$HOME|$OMP_NUM_THREADS|{foreign}|$*"; head -1 input.dat; cat; ls) > {seen}; '
        "cp $RECORDED output.dat"
    )
    monkeypatch.setattr(resources, "available_memory", lambda: 10**10)
    run_psi4(radical_result, 3)
    where, environment, memory, *files = seen.read_text().splitlines()
    assert Path(where).parent == tmp_path / "scratch"
    assert environment == f"{where}|3||-n 3 -s {where}"
    assert memory == "memory 7000 mb"  # most of what is free
    assert files == ["input.dat", "screen.txt"]


@pytest.mark.parametrize(
    ("script", "allowed"),
    [
        ("s/-0.1114970638772585/-0.1115970638772585/", "1e-3"),
        ("s/-55.5670750200435464/-55.6670750200435464/", "1"),
    ],
)
def test_a_difference_is_exit_8(
    call: Runner, stored: Path, stand_in, script: str, allowed: str
) -> None:
    stand_in(f"sed '{script}' $RECORDED > output.dat")
    done = call("compare", "nh2.h5", "--with", "psi4")
    recorded_failure(done, 8)
    assert call("compare", "nh2.h5", "--with", "psi4", "--tolerance", allowed).code == 0


@pytest.mark.parametrize(
    "script",
    [
        "echo 'Fatal Error: There are no occupied orbitals with beta spin.'; exit 1",
        "echo a; printf 'b%0160d\\n' 0; echo c; printf 'd\\033[2J\\n'; exit 3",
        "exit 1",
        "kill -SEGV $$",
        "true",
        "echo 'Failed to converge: '; cp $RECORDED output.dat",
        "sleep 600",
    ],
    ids=["message", "last lines", "silent", "crash", "no output", "inexact", "slow"],
)
def test_a_failing_psi4_is_exit_6(call: Runner, stored: Path, stand_in, script):
    stand_in(script)
    done = call(
        "compare", "nh2.h5", "--with", "psi4", "--timeout", "0.3" if "sleep" in script else "300"
    )
    recorded_failure(done, 6)
    assert done.out == ""


def test_psi4_missing_or_without_a_folder(
    call: Runner, stored: Path, stand_in, monkeypatch, tmp_path
):
    def refused(code: int) -> None:
        recorded_failure(call("compare", "nh2.h5", "--with", "psi4"), code)

    stand_in("true")
    (tmp_path / "bin" / "psi4").write_text("no program")
    refused(6)
    with monkeypatch.context() as planted:
        planted.setenv("PSI_SCRATCH", "/nowhere")
        refused(7)
    monkeypatch.setenv("PATH", str(COMMAND.parent))
    refused(6)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_ends_psi4_and_removes_its_folder(stored: Path, stand_in, tmp_path, number, code):
    scratch = stand_in(f"echo $$ > {tmp_path}/pid; sleep 600 & echo $! >> {tmp_path}/pid; wait")
    arguments = [str(COMMAND), "compare", "nh2.h5", "--with", "psi4"]
    process = subprocess.Popen(
        arguments, cwd=stored.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    pids = tmp_path / "pid"
    wait_until(lambda: pids.exists() and pids.read_text().count("\n") == 2)
    assert len(list(scratch.iterdir())) == 1
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (code, "")
    assert len([line for line in err.splitlines() if line.startswith("dfmp2: ")]) == 1
    # a killed process that nobody waits for may linger for a moment
    wait_until(lambda: not any(map(running, pids.read_text().split())))


def running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- Psi4 itself ---


AMIDOGEN_ANGSTROM = "N 0 0 -0.0772; H 0 -0.7997 0.5364; H 0 0.7997 0.5364"
REAL = {
    "h2o": (WATER, "cc-pvdz", {}),
    "h2o, core and virtuals frozen": (WATER, "cc-pvdz", {"frozen_core": "1", "frozen_virtual": 2}),
    "h2o, conventional": (WATER, "cc-pvdz", {"scf": "conventional", "frozen_core": "auto"}),
    "h2o, ghosts": (WATER + "; @O 0 0 3; @H 0 0.75 3.5", "cc-pvdz", {"frozen_core": "auto"}),
    "h2o, ghost with a core potential": (
        WATER + "; @I 0 0 2.5",
        "def2-svp",
        {"frozen_core": "auto"},
    ),
    "hi, core potential": ("H 0 0 0; I 0 0 1.6; @I 0 0 4", "def2-svp", {"frozen_core": "auto"}),
    "lih, uhf": ("Li 0 0 0; H 0 0 1.6", "def2-svp", {"reference": "uhf"}),
    "he, dropped functions": (
        "He 0 0 0; @He 0 0 0.21; @He 0 0 0.42",
        "aug-cc-pvtz",
        {"auxbasis": "aug-cc-pvtz-ri"},
    ),
    "nh2, rohf with singles": (AMIDOGEN_ANGSTROM, "cc-pvdz", {"reference": "rohf"}),
    "nh2, laplace": (AMIDOGEN_ANGSTROM, "cc-pvdz", {"method": "sos-laplace"}),
    "nh2, rohf, frozen": (
        AMIDOGEN_ANGSTROM,
        "cc-pvdz",
        {"reference": "rohf", "frozen_core": "1", "frozen_virtual": 2},
    ),
    "nh2, radical, core frozen": (AMIDOGEN_ANGSTROM, "aug-cc-pvdz", {"frozen_core": "1"}),
    "water, quadruple zeta": (WATER, "cc-pvqz", {"frozen_core": "auto"}),
}


@pytest.mark.skipif(find_psi4() is None, reason="psi4 is not on PATH")
@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_psi4_agrees(name):
    """Two programs, each with its own SCF: 1e-7 Eh, because E(corr) is linear in the orbital
    errors."""
    text, basis, options = REAL[name]
    molecule = atoms(text, multiplicity=2 if text == AMIDOGEN_ANGSTROM else 1)
    result = dfmp2.run(molecule, basis, precision="fp64", stability="off", **options)
    if "dropped" in name:
        assert result.sizes.nmo < result.sizes.nao
    check = compare.recompute(result, 1e-7, 2, Listener(), program="psi4")
    assert check.passed, check
