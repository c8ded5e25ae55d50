"""Numbers that leave the program, for molecules of `tests/awkward.py`, against PySCF and explicit
formulas."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import scf
from pyscf.hessian import thermo

import dfmp2
from dfmp2.fitting import sets
from dfmp2.gradients import certificate as gradient_certificate
from dfmp2.gradients.density import options_in_fields
from dfmp2.host.threads import HUGE_PAGES
from dfmp2.interop import qcschema
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import make_options
from dfmp2.output.export import export
from dfmp2.output.export.molden import normal_modes as molden_of_vibrations
from dfmp2.output.reports import study as study_report
from dfmp2.output.reports.energies import energy_rows
from dfmp2.output.study import Study
from dfmp2.progress import Silent
from dfmp2.studies.cbs import basis_set_limit
from dfmp2.studies.frequencies import harmonic_frequencies
from dfmp2.studies.hessian import for_differences
from dfmp2.studies.interaction import interaction_energy
from dfmp2.studies.vibrations import masses, principal_axes, rigid_motions
from tests.awkward import (
    BASIS,
    EXACT,
    MOLECULES,
    mean_field,
    mole_of,
    read,
    semicanonical,
    singles_energies,
    spin_energies,
)
from tests.conftest import Runner, run_command, succeed
from tests.ideal_gas import HARTREE, ideal_gas
from tests.recorded import recorded_error, recorded_failure
from tests.springs import on_springs
from tests.test_limits import SOUND

# Orbitals that `auto` freezes
CORES = {"N": 1, "O": 1, "C": 1, "F": 1, "B": 1, "Cl": 5, "Li": 1, "H": 0}
ROHF = ("cyano radical", "methylene", "nitrogen dioxide")
HOF = read("", "O 0 0 0", "F 1.0 0.1 0", "H -0.3 0.9 0.2")
PLACES = [f"{atom:03d}-{letter}" for atom in (1, 2, 3) for letter in "xyz"]


@pytest.fixture(autouse=True)
def known_fitting_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of fitting sets, which are in test_basis, without measuring them."""
    monkeypatch.setattr(sets, "fitting_error", lambda role, orbital, fitting: 1e-5)


@pytest.fixture(scope="module")
def vibrations() -> Study:
    """Frequencies of bent HOF on springs, whose modes all differ; a loose SCF convergence is
    requested."""
    options = make_options(basis="sto-3g", threads=1, scf_conv_tol=1e-6, stability="off")
    with pytest.MonkeyPatch.context() as patch:
        on_springs(patch, HOF)
        return harmonic_frequencies(HOF, options, allow_gradient=True, listener=Silent())


# --- energies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fluoroformyl cation radical", "methanol radical in a field"])
def test_numbers_of_the_reference(name: str) -> None:
    """Gap, denominators, spin, dipole moment and condition of the metric, against PySCF's mean field
    and sums over its nuclei."""
    molecule = MOLECULES[name]
    mf = mean_field(molecule, scf.UHF)
    mole, core = mf.mol, 3
    ours = dfmp2.from_mean_field(
        mf,
        BASIS["auxbasis"],
        frozen_core=str(core),
        frozen_virtual=2,
        check=True,
        stability="off",
        threads=1,
        listener=Silent(),
    )
    assert ours.check.passed
    reference, sizes, found = ours.reference, ours.sizes, ours.diagnostics
    assert (sizes.natom, sizes.nelectron, sizes.nmo) == (mole.natm, sum(mole.nelec), mole.nao)
    assert tuple(sizes.nocc) == tuple(n - core for n in mole.nelec)
    assert tuple(sizes.nvir) == tuple(mole.nao - n - 2 for n in mole.nelec)
    assert reference.nuclear_repulsion_energy == pytest.approx(mf.energy_nuc(), abs=1e-10)
    assert reference.spin_square == pytest.approx(mf.spin_square()[0], abs=1e-9)
    dipole = mf.dip_moment(unit="au", verbose=0)  # of electrons and nuclei, also among charges
    assert reference.dipole == pytest.approx(dipole, abs=1e-8)
    alpha, beta = (e[n - 2 : n + 2] for e, n in zip(mf.mo_energy, mole.nelec, strict=True))
    assert found.homo_lumo_gap == pytest.approx(min(alpha[2] - alpha[1], beta[2] - beta[1]))
    opposite = alpha[2] + beta[2] - alpha[1] - beta[1]
    same = [e[2] + e[3] - e[1] - e[0] for e in (alpha, beta)]
    assert found.smallest_denominator == pytest.approx(min(opposite, *same))
    condition = np.linalg.cond(mole_of(molecule, BASIS["auxbasis"]).intor("int2c2e"), 1)
    assert 0.3 < found.metric_condition / condition < 1 + 1e-5  # LAPACK's estimate
    assert (found.metric_dropped, found.metric_threshold) == (0, 0.0)


@pytest.mark.parametrize("name", ROHF)
def test_singles_of_rohf_are_of_both_spins(name: str) -> None:
    """sum |f_ia|^2 / (e_i - e_a) with the Fock matrix of either spin: they differ by
    millihartrees."""
    molecule = MOLECULES[name]
    mf = mean_field(molecule, scf.ROHF)
    core = sum(CORES[symbol] for symbol in molecule.symbols)
    parts = singles_energies(*semicanonical(mf), core)
    ours = dfmp2.run(
        molecule, **EXACT, reference="rohf", frozen_core="auto", stability="off", listener=Silent()
    )
    assert ours.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-9)
    assert abs(parts[0] - parts[1]) > 1e-5
    assert ours.mp2_singles_energy == pytest.approx(sum(parts), abs=1e-8)
    assert ours.to_dict()["mp2_singles_energy"] == ours.mp2_singles_energy
    energies = {row.name: row.energy for row in energy_rows(ours)}
    doubles = 1.2 * energies["opposite-spin correlation"] + energies["same-spin correlation"] / 3
    assert energies["SCS-MP2 correlation"] == pytest.approx(doubles + sum(parts), abs=1e-8)


def test_limits_keep_spins_apart_and_singles_whole() -> None:
    """Each component is extrapolated by X^-3 from cc-pVDZ and cc-pVTZ; singles are in every total,
    unscaled."""
    hydride = read("multiplicity=3", "N 0 0 0", "H 0.1 0.2 1.03")
    options = make_options(
        basis="cc-pv[dt]z",
        reference="rohf",
        method="scs-mp2",
        frozen_core="auto",
        stability="off",
        threads=1,
    )
    study = basis_set_limit(hydride, options, listener=Silent())
    small, large = study.runs.values()
    values = {name: item.value for name, item in study.values.items()}

    def limit(name: str) -> float:
        return (27 * getattr(large, name) - 8 * getattr(small, name)) / 19

    same = limit("mp2_same_spin_correlation_energy")
    opposite = limit("mp2_opposite_spin_correlation_energy")
    singles = limit("mp2_singles_energy")
    assert abs(same) < 0.5 * abs(opposite) and singles < -1e-4
    hartree_fock = large.scf_total_energy
    expected = {
        "scf_total_energy": hartree_fock,
        "mp2_same_spin_correlation_energy": same,
        "mp2_opposite_spin_correlation_energy": opposite,
        "mp2_correlation_energy": same + opposite + singles,
        "mp2_total_energy": hartree_fock + same + opposite + singles,
        "scs_mp2_correlation_energy": 1.2 * opposite + same / 3 + singles,
        "sos_mp2_correlation_energy": 1.3 * opposite + singles,
        "correlation_energy": 1.2 * opposite + same / 3 + singles,
        "total_energy": hartree_fock + 1.2 * opposite + same / 3 + singles,
    }
    for name, energy in expected.items():
        assert values[f"cbs_{name}"] == pytest.approx(energy, abs=1e-11), name


def test_ions_keep_their_charge_and_the_counterpoise_correction_its_sign() -> None:
    """Fluoride carries the charge, not water; the correction is corrected minus uncorrected
    energy."""
    complex_ = MOLECULES["fluoride and water"]
    options = make_options(**EXACT, stability="off")
    study = interaction_energy(complex_, "1,2-4", options, charges="-1,0", listener=Silent())
    values = {name: item.value for name, item in study.values.items()}
    energies: dict[str, Any] = {}
    for name, run in study.runs.items():
        charge = -1 if name == "complex" or name.startswith("fragment-1") else 0
        assert (run.molecule.charge, run.molecule.multiplicity) == (charge, 1)
        mf = mean_field(run.molecule, scf.UHF)
        energies[name] = np.array([mf.e_tot, sum(spin_energies(mf, 0))])
        ours = [run.scf_total_energy, run.mp2_correlation_energy]
        assert ours == pytest.approx(energies[name], abs=1e-8)
    corrected, raw = (
        energies["complex"] - energies[f"fragment-1-{basis}"] - energies[f"fragment-2-{basis}"]
        for basis in ("in-complex", "alone")
    )
    for place, prefix in enumerate(("scf_", "correlation_")):
        correction = corrected[place] - raw[place]
        for name, expected in (
            ("cp_corrected_interaction_energy", corrected[place]),
            ("uncorrected_interaction_energy", raw[place]),
            ("counterpoise_correction", correction),
        ):
            assert values[f"{prefix}{name}"] == pytest.approx(expected, abs=3e-8)
        assert correction > 1e-3
        in_kcal = values[f"{prefix}counterpoise_correction_kcal_per_mol"]
        assert in_kcal == pytest.approx(correction * 627.5094740631, abs=2e-5)


# --- vibrations and gases -------------------------------------------------------------------------


def test_displaced_runs_are_tight_and_the_hessian_is_symmetric(vibrations: Study) -> None:
    """Even if a loose SCF was requested: 1e-6 Eh in an energy would be 1e-3 in its second
    derivatives."""
    assert {run.options.scf_conv_tol <= 1e-11 for run in vibrations.runs.values()} == {True}
    tight = for_differences(dfmp2.Options("sto-3g", scf_conv_tol=1e-13))
    assert tight.scf_conv_tol == 1e-13
    hessian = vibrations.arrays["hessian"].value
    np.testing.assert_array_equal(hessian, hessian.T)
    step = vibrations.settings["displacement"]
    rows = np.stack(
        [
            (
                vibrations.runs[f"plus-{at}"].gradient.mp2_total_gradient
                - vibrations.runs[f"minus-{at}"].gradient.mp2_total_gradient
            ).ravel()
            / (2 * step)
            for at in PLACES
        ]
    )
    assert np.abs(rows - rows.T).max() > 1e-9  # so it was symmetrised, as the mean of both
    assert hessian == pytest.approx((rows + rows.T) / 2, abs=1e-13)


MASSES = [15.99491461957, 18.99840316273, 1.00782503223]  # O, F, H
RADIATED = 974.8802  # km/mol of |d mu / d Q|^2 in atomic units and u


def check_modes(found: dict[str, Any], hessian: Any, slopes: Any, masses: Any) -> None:
    """Compare modes with PySCF's from the same Hessian, and intensities with its modes times the
    slopes of the dipole moment, (9, 3)."""
    theirs = thermo.harmonic_analysis(
        mole_of(HOF),
        hessian.reshape(3, 3, 3, 3).transpose(0, 2, 1, 3),
        mass=np.array(masses),
        imaginary_freq=False,
    )
    assert found["wavenumber"] == pytest.approx(theirs["freq_wavenumber"], rel=1e-5)
    assert found["reduced_mass"] == pytest.approx(theirs["reduced_mass"], rel=1e-6)
    assert found["force_constant"] == pytest.approx(theirs["force_const_dyne"], rel=1e-5)
    modes = theirs["norm_mode"] / np.linalg.norm(theirs["norm_mode"], axis=(1, 2))[:, None, None]
    signs = np.sign((modes * found["normal_modes"]).sum(axis=(1, 2)))
    assert found["normal_modes"] == pytest.approx(modes * signs[:, None, None], abs=1e-6)
    along = theirs["norm_mode"].reshape(3, 9) @ slopes
    assert np.ptp(found["ir_intensity"]) > 1
    assert found["ir_intensity"] == pytest.approx(RADIATED * (along**2).sum(axis=1), rel=1e-5)


def test_frequencies_are_those_of_their_gradients_and_dipole_moments(vibrations: Study) -> None:
    """Dipole derivatives by differences, modes by PySCF, and the gas written out: bent, unlike
    masses."""
    runs = vibrations.runs
    dipoles = [
        np.array([runs[f"{sign}-{place}"].properties.relaxed_dipole for place in PLACES])
        for sign in ("plus", "minus")
    ]
    slopes = (dipoles[0] - dipoles[1]) / 0.01
    assert vibrations.arrays["dipole_derivatives"].value == pytest.approx(slopes, abs=1e-12)
    columns = {name: column.values for name, column in vibrations.table.items()}
    assert columns["mode"] == (1.0, 2.0, 3.0)
    found = {**columns, "normal_modes": vibrations.arrays["normal_modes"].value}
    check_modes(found, vibrations.arrays["hessian"].value, slopes, MASSES)
    energy = runs["reference"].total_energy
    gas = ideal_gas(
        masses=MASSES,
        places=HOF.coordinates,
        wavenumbers=columns["wavenumber"],
        energy=energy,
        multiplicity=1,
        kelvin=298.15,
        pascal=101325.0,
        symmetry=1,
    )
    values = {name: item.value for name, item in vibrations.values.items()}
    assert values == pytest.approx({"total_energy": energy, **gas}, rel=1e-8)
    names = ("temperature", "pressure", "displacement", "rigid_motions_removed", "symmetry_number")
    assert [vibrations.settings[name] for name in names] == [298.15, 101325.0, 0.005, 6, 1]


def test_a_gas_of_another_isotope_at_other_conditions(vibrations: Study) -> None:
    """DOF, scaled, at two temperatures and two pressures: every row is written out."""
    study = dfmp2.thermo(
        vibrations,
        temperature="250:700:2",
        pressure=[1e5, 3e5],
        isotopes=["3=2H"],
        scale=0.95,
        symmetry_number=2,
    )
    arrays = {name: item.value for name, item in study.arrays.items()}
    masses = np.array([*MASSES[:2], 2.01410177812])
    assert arrays["masses"] == pytest.approx(masses, rel=1e-8)
    for name in ("hessian", "dipole_derivatives"):
        np.testing.assert_array_equal(arrays[name], vibrations.arrays[name].value)
    check_modes(arrays, arrays["hessian"], arrays["dipole_derivatives"], masses)
    assert arrays["scaled_wavenumber"] == pytest.approx(0.95 * arrays["wavenumber"], rel=1e-14)
    energy = study.runs["reference"].total_energy
    gases = [
        ideal_gas(
            masses=masses,
            places=HOF.coordinates,
            wavenumbers=arrays["scaled_wavenumber"],
            energy=energy,
            multiplicity=1,
            kelvin=kelvin,
            pascal=pascal,
            symmetry=2,
        )
        for kelvin in (250.0, 700.0)
        for pascal in (1e5, 3e5)
    ]
    values = {name: item.value for name, item in study.values.items()}
    assert values == pytest.approx({"total_energy": energy, **gases[0]}, rel=1e-8)
    for name, column in study.table.items():
        expected = [gas[name.replace("enthalpy_correction", "enthalpy")] for gas in gases]
        if name == "enthalpy_correction":
            expected = [(enthalpy - energy) * HARTREE / 1000 for enthalpy in expected]
        if name == "gibbs_energy_correction":
            expected = [gas["gibbs_energy_correction_kj_per_mol"] for gas in gases]
        assert list(column.values) == pytest.approx(expected, rel=1e-7), name
    names = ("symmetry_number", "scale_factor", "cutoff")
    assert [study.settings[name] for name in names] == [2, 0.95, 100.0]


def test_files_for_viewers_have_the_modes_of_the_table(vibrations: Study) -> None:
    lines = molden_of_vibrations(vibrations).decode().splitlines()
    for section, name in (("[INT]", "ir_intensity"), ("[FREQ]", "wavenumber")):
        start = lines.index(section) + 1
        shown = [float(line) for line in lines[start : start + 3]]
        assert shown == pytest.approx(vibrations.table[name].values, abs=1e-4)


def test_an_imaginary_mode_is_not_drawn_in_the_spectrum(vibrations: Study) -> None:
    """Three sticks for three real modes, two if one is imaginary, and none left of zero."""
    column = vibrations.table["wavenumber"]
    for values in (column.values, (-column.values[0], *column.values[1:])):
        table = {**vibrations.table, "wavenumber": column._replace(values=values)}
        (figure,) = study_report.study_figures(replace(vibrations, table=table))
        drawing = figure.draw()
        assert drawing.count('class="mark"') == sum(value > 0 for value in values)
        assert f"<title>{values[1]:.1f}," in drawing
        assert (f"<title>{abs(values[0]):.1f}," in drawing) == (values[0] > 0)


# --- what other programs give and take ------------------------------------------------------------


def asked(
    molecule: Molecule, driver: str, method: str = "mp2", **keywords: Any
) -> qcschema.Request:
    """A parsed QCSchema request."""
    document = {
        "schema_name": "qcschema_input",
        "schema_version": 1,
        "molecule": {
            "symbols": list(molecule.symbols),
            "geometry": molecule.coordinates.ravel().tolist(),
            "molecular_charge": molecule.charge,
            "molecular_multiplicity": molecule.multiplicity,
        },
        "driver": driver,
        "model": {"method": method, "basis": "sto-3g"},
        "keywords": {"threads": 1, **keywords},
    }
    return qcschema.read_request(document)


def test_qcschema_answers_with_relaxed_moments_and_polarizability() -> None:
    request = asked(MOLECULES["methylene"], "properties", polarizability=True)
    assert request.options.polarizability
    result = qcschema.run(asked(MOLECULES["methylene"], "properties"), listener=Silent())
    answer = qcschema.answer(request, replace(result, polarizability=SOUND))
    assert answer["return_result"]["polarizability"] == SOUND.relaxed.tolist()
    properties = result.properties
    moments = {
        "mp2_dipole_moment": properties.relaxed_dipole.tolist(),
        "scf_dipole_moment": properties.scf_dipole.tolist(),
        "scf_quadrupole_moment": properties.quadrupole[0].ravel().tolist(),
    }
    assert {name: answer["properties"][name] for name in moments} == moments
    assert np.abs(properties.relaxed_dipole - properties.scf_dipole).max() > 0.001
    theirs = mean_field(result.molecule, scf.UHF, fitted=False, basis="sto-3g")
    dipole = theirs.dip_moment(unit="au", verbose=0)
    assert properties.scf_dipole == pytest.approx(dipole, abs=2e-3)  # fitting


def test_runs_in_fields_are_tight_whatever_was_asked_for() -> None:
    """An error of 1e-10 Eh in an energy would be 2e-4 bohr^3; a larger threshold is kept if
    rounding requires it."""
    loose = dfmp2.run(
        MOLECULES["methylene"], "sto-3g", threads=1, scf_conv_tol=1e-6, listener=Silent()
    )
    options = options_in_fields(loose)
    assert options.scf_conv_tol == 1e-13 and options.precision == "fp64"
    heavy = replace(loose, reference=replace(loose.reference, scf_total_energy=-2500.0))
    assert options_in_fields(heavy).scf_conv_tol == pytest.approx(2.5e-12, rel=1e-9, abs=0.0)
    wishes = {
        "check": True,
        "certify_fit": True,
        "polarizability": True,
        "precision": "mixed",
        "scf_starts": 3,
        "stability": "follow",
    }
    beside = {
        "check": False,
        "certify_fit": False,
        "polarizability": False,
        "precision": "fp64",
        "guess": "atoms",
        "scf_from": None,
        "scf_starts": 1,
        "stability": "off",
        "scf_conv_tol": 1e-13,
        "allow_small_gap": True,  # a field may close a gap that was large enough
    }
    for start in ({"guess": "mix"}, {"scf_from": "other.h5"}):
        asked = replace(loose.options, **wishes, **start)
        found = asdict(options_in_fields(replace(loose, options=asked)))
        assert found == {**asdict(asked), **beside}


def test_a_gradient_of_qcschema_whose_certificate_fails_is_no_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = asked(MOLECULES["methylene"], "gradient")
    monkeypatch.setattr(gradient_certificate, "SUMS", 1e-14)
    with recorded_error(dfmp2.ComparisonFailed):
        qcschema.run(request, listener=Silent())


def test_repulsion_of_nuclei_without_ghosts_in_trexio(tmp_path: Path) -> None:
    """sum Z_A Z_B / R_AB of the real nuclei."""
    library = pytest.importorskip("trexio")
    molecule = MOLECULES["nitroxyl with a ghost"]
    result = dfmp2.run(molecule, "sto-3g", threads=1, stability="off", listener=Silent())
    charges = np.where(molecule.ghost, 0, molecule.numbers)
    expected = sum(
        charges[a] * charges[b] / np.linalg.norm(molecule.coordinates[a] - molecule.coordinates[b])
        for a in range(len(charges))
        for b in range(a)
    )
    path = tmp_path / "x.h5"
    path.write_bytes(export(result, "trexio"))
    with library.File(str(path), "r", library.TREXIO_AUTO) as file:
        assert library.read_nucleus_repulsion(file) == pytest.approx(expected, abs=1e-9)
        assert library.read_state_energy(file) == result.scf_total_energy


# --- forces ---------------------------------------------------------------------------------------


def test_forces_on_atoms_among_more_charges_than_are_taken_at_a_time() -> None:
    """70 charges, more than the 64 of a call: compared with energy differences for atoms and
    charges along a direction."""
    rng = np.random.default_rng(9)
    places = rng.standard_normal((70, 3))
    places *= (9 + 3 * rng.random((70, 1))) / np.linalg.norm(places, axis=1, keepdims=True)
    field = np.hstack([places, rng.uniform(-0.4, 0.4, (70, 1))])
    molecule = read("", "O 0 0 0", "H 0.1 0.1 0.97", "H 0.9 0.2 -0.3")
    tight = {
        "basis": "sto-3g",
        "precision": "fp64",
        "scf_conv_tol": 1e-12,
        "threads": 1,
        "listener": Silent(),
    }
    found = dfmp2.gradient(molecule.in_field(field), **tight)
    on_atoms, on_charges = rng.standard_normal((3, 3)), rng.standard_normal((70, 3))
    energies = []
    for step in (-0.006, -0.003, 0.003, 0.006):
        moved = replace(molecule, coordinates=molecule.coordinates + step * on_atoms)
        around = field + step * np.hstack([on_charges, np.zeros((70, 1))])
        energies.append(dfmp2.run(moved.in_field(around), **tight).total_energy)
    expected = (energies[0] - 8 * energies[1] + 8 * energies[2] - energies[3]) / (12 * 0.003)
    slope = np.vdot(found.gradient, on_atoms) + np.vdot(found.point_charge_gradient, on_charges)
    assert slope == pytest.approx(expected, abs=2e-6)
    assert np.abs(found.point_charge_gradient[64:]).max() > 1e-4


# --- pages and defaults ---------------------------------------------------------------------------


def test_a_variable_that_numpy_cannot_read_is_refused_before_it_is_imported(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("", "yes"):
        monkeypatch.setenv(HUGE_PAGES, value)
        done = call("run", "h2.xyz", "--basis", "sto-3g")
        recorded_failure(done, 3)
    import_numpy, in_python = (
        run_command("-c", code, cwd=folder, program=(sys.executable,))
        for code in ("import numpy", "import dfmp2; dfmp2.InputError; dfmp2.run")
    )
    assert "ValueError: invalid literal" in import_numpy.err
    said = done.message.removeprefix("dfmp2: ")
    assert in_python.err.splitlines()[-1] == f"dfmp2.errors.InputError: {said}"
    for value in ("0", " 1 "):
        monkeypatch.setenv(HUGE_PAGES, value)
        succeed(call("plan", "h2.xyz", "--basis", "sto-3g"))


# --- stationary points ----------------------------------------------------------------------------


def test_rigid_motions_of_a_nearly_straight_molecule_are_those_along_its_axis() -> None:
    bend = np.radians(1.0)
    place = np.array([[0, 0, 0], [1.9 * np.sin(bend), 0, -1.9 * np.cos(bend)], [0.01, 0.02, 2.2]])
    bent = Molecule(("C", "N", "H"), place)
    weights = masses(bent)
    centred, axes = principal_axes(bent, weights)
    straight = replace(bent, coordinates=np.outer(centred @ axes[2], axes[2]))
    found, expected = (rigid_motions(molecule, weights) for molecule in (bent, straight))
    assert found.shape == (9, 5)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-10)
