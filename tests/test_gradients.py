"""Gradients, relaxed densities and their certificate, against energies and PySCF; and parts that
the value of a gradient does not show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyscf import gto, scf

import dfmp2
from dfmp2.errors import ConvergenceError, Dfmp2Error, NumericalError, ResourceError
from dfmp2.gradients import amplitudes, certificate
from dfmp2.gradients import response as responses
from dfmp2.gradients.gradient import mp2_gradient
from dfmp2.gradients.response import FockBuilder, Orbitals
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.resources import resident_memory
from dfmp2.host.scratch import Space
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.properties import Gradient, GradientCertificate
from dfmp2.options import make_options
from dfmp2.options.methods import Method
from dfmp2.progress import Silent
from dfmp2.scf.rotations import (
    UHF,
    free_rotations,
)
from tests.awkward import CHARGES, MOLECULES, mole_of, slope
from tests.conftest import Heard
from tests.cuts import gradient_on_disk
from tests.recorded import recorded_error, recorded_failure, recorded_warning
from tests.test_stability import hessians

SMALL = {
    "basis": "6-31g",
    "scf_auxbasis": "def2-universal-jkfit",
    "auxbasis": "cc-pvdz-ri",
    "allow_poor_fit": True,
}
EXACT = {"precision": "fp64", "scf_conv_tol": 1e-14, "stability": "off", "threads": 1}
FOUR_CENTRE = {"scf": "conventional", "scf_auxbasis": None}
WATER = Molecule(("O", "H", "H"), [[0, 0, 0.22], [0, 1.43, -0.88], [0.1, -1.5, -0.8]])
FIELD = WATER.in_field([[0, 0.3, 4.2, 0.5], [1, -5, 0, -0.8]])
GHOST = Molecule(
    ("H", "F", "H"), [[0, 0, 0.22], [0, 1.43, -0.88], [0.1, -1.5, -0.8]], ghost=(False, False, True)
)
CUT = "eigenvalues of the metric cut"
CASES = {
    "rhf, core and virtuals frozen, scaled": (
        WATER, {"frozen_core": "1", "frozen_virtual": 2, "os_scale": 1.2, "ss_scale": 0.3},
    ),
    "uhf, core and virtuals frozen, scaled": (
        WATER.with_state(1, 2), {"frozen_core": "1", "frozen_virtual": 2, "os_scale": 1.3, "ss_scale": 0.4},
    ),
    "uhf, four-centre": (WATER.with_state(1, 2), {"basis": "sto-3g", **FOUR_CENTRE}),
    "ghost on a charge": (GHOST.in_field([[0.1, -1.5, -0.8, 0.4], [1, -5, 0, -0.8]]), {}),
    "core potential": (
        Molecule(("Na", "H", "O"), [[0, 0.2, 0], [0.1, 0, 3.4], [0, 3, -1]], ghost=(False, False, True)),
        {"basis": "6-31g,1=lanl2dz", "auxbasis": "def2-svp-ri"},
    ),
    "x2c": (WATER, {"basis": "sto-3g", "relativity": "x2c"}),
    "charges": (FIELD, {}),
    CUT: (WATER, {}),
    "no beta "
    "electron": (Molecule(("H", "H"), [[0, 0, 0], [0, 0, 2.1]], charge=1, multiplicity=2), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_the_derivative_of_the_energy(name, monkeypatch):
    molecule, special = CASES[name]
    if name == CUT:
        monkeypatch.setattr("dfmp2.integrals.metric.CONDITION_LIMIT", 1e2)
        monkeypatch.setattr("dfmp2.integrals.metric.EIGENVALUE_CUT", 3e-3)
        # Errors of atoms with so few fitting functions would be kept for other tests.
        monkeypatch.setattr("dfmp2.fitting.sets.fitting_error", lambda *_: 0.0)
    options = make_options(**SMALL | EXACT | special)
    found = mp2_gradient(molecule, options, listener=Silent())
    assert (found.result.diagnostics.metric_dropped > 5) is (name == CUT)
    rng = np.random.default_rng(1)
    direction, charges = rng.standard_normal((molecule.natom, 3)), None
    expected = np.vdot(direction, found.gradient)
    if molecule.point_charges is not None:
        charges = np.column_stack([rng.standard_normal((2, 3)), np.zeros(2)])
        expected += np.vdot(charges[:, :3], found.point_charge_gradient)
    assert slope(found.result, direction, charges) == pytest.approx(expected, abs=5e-8)
    assert found.certificate.passed, found.certificate.failures


REFUSED = {
    "linearly dependent": (Molecule(("He",) * 6, np.array(
            [[0, 0, 0], [0, 0, 0.3782], [0, 0, 0.7563], [0, 0, -0.3782], [0, 0.3782, 0], [0.3782, 0, 0]]
        ), ghost=(False, *[True] * 5)), {"basis": "aug-cc-pvtz", "auxbasis": None, "scf_auxbasis": None}),
    "degenerate": (Molecule(("Ne",), [[0, 0, 0]]), {"frozen_virtual": 1, "basis": "cc-pvdz", "scf_auxbasis": None}),
    "device": (WATER, {"transform": "device"}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gradient_is_refused(name):
    molecule, special = REFUSED[name]
    with recorded_error(Dfmp2Error):
        mp2_gradient(molecule, make_options(**SMALL | EXACT | special), listener=Silent())


SHORT = ("h2o.xyz", "--basis", "sto-3g", "--auxbasis", "cc-pvdz-ri", "--allow-poor-fit")


def test_a_strong_response_of_the_orbitals_is_warned_of():
    """Nearly all of CN's Z-vector lies along the softest rotation, whose eigenvalue is that of
    `--stability full`."""
    radical = Molecule(("C", "N"), [[0, 0, 0], [0.2, 0.3, 2.2]], multiplicity=2)
    with recorded_warning(UserWarning):
        found = dfmp2.gradient(radical, "6-31g", stability="full", threads=1).result
    (said,) = (warning for warning in found.diagnostics.warnings if "respond" in warning)
    along, costs = map(float, re.search("by (.*) along .* costs (.*) Eh ", said).groups())
    assert costs == pytest.approx(found.reference.stability.lowest_eigenvalue, abs=2e-3)
    assert along == pytest.approx(0.58, abs=0.05)  # the norm of the whole Z-vector


def test_a_gradient_whose_certificate_fails_is_refused_in_python(monkeypatch):
    """Or returned with a warning on request; so are densities without a gradient."""
    molecule = Molecule.from_string("N 0 0 0; O 0.1 0.2 1.3; H 0.9 0 -0.5")
    loose = {"basis": "sto-3g", "scf_conv_tol": 1e-2, "threads": 1, "stability": "off"}
    with recorded_error(dfmp2.ComparisonFailed):
        dfmp2.gradient(molecule, **loose)
    with recorded_warning(UserWarning):
        found = dfmp2.gradient(molecule, **loose, require_proofs=False)
    assert found.certificate.failures == ["rotation"]
    monkeypatch.setattr("dfmp2.gradients.certificate.SUMS", 1e-14)
    with recorded_error(dfmp2.ComparisonFailed):
        dfmp2.run(molecule, **loose, properties=True)
    with recorded_warning(UserWarning):
        dfmp2.run(molecule, **loose, properties=True, require_proofs=False)


def test_a_gradient_whose_certificate_fails_ends_with_8(call):
    done = call("gradient", *SHORT, "--scf-conv-tol", "1e-3", "--check")
    recorded_failure(done, 8)
    assert not dfmp2.read("h2o.gradient.h5").gradient_certificate.passed


@pytest.mark.parametrize(
    ("rotation", "slope", "advice"),
    [
        (2e-6, -0.03445, "--scf-conv-tol 1e-12; for a mean field"),
        (
            0.0,
            -0.034437,
            "--scf-conv-tol 1e-14: at 1e-12 Eh, energies of displaced molecules scatter",
        ),
        (2e-6, -0.034437, "--scf-conv-tol 1e-12; for a mean field"),
    ],
)
def test_a_failed_certificate_advises_what_helps(
    rotation: float, slope: float, advice: str
) -> None:
    """The slope of superoxide beside water differs by 1.3e-5 Eh/bohr at 1e-12 Eh, whatever the
    gradient's own SCF, and by 6e-8 at 1e-14."""
    certificate = GradientCertificate(
        three_center_difference=0.0,
        two_center_difference=0.0,
        allowed_energy=1e-9,
        electrons_difference=0.0,
        z_vector_residual=0.0,
        allowed_sum=1e-6,
        rotation=rotation,
        translation=0.0,
        analytic_slope=-0.03445,
        numerical_slope=slope,
        allowed_slope=2e-6,
    )
    with pytest.raises(dfmp2.ComparisonFailed) as failed:
        certificate.require()
    assert f"converge the SCF further ({advice}" in str(failed.value)


def test_amplitudes_in_float32_give_the_same_gradient():
    given = {**SMALL, **EXACT, "basis": "sto-3g", "listener": Silent()}
    exact, found = (
        dfmp2.gradient(WATER.with_state(1, 2), **{**given, "precision": precision})
        for precision in ("fp64", "mixed")
    )
    assert 1e-12 < np.abs(found.gradient - exact.gradient).max() < 1e-8
    density, expected = (one.properties.relaxed_density for one in (found, exact))
    assert 1e-12 < np.abs(density - expected).max() < 1e-7
    assert found.certificate.passed


def test_memory_that_does_not_suffice_is_refused_before_the_scf():
    told = Heard()
    with pytest.raises(ResourceError, match=r"for the gradient.*--memory"):
        mp2_gradient(
            WATER,
            make_options(**SMALL | EXACT, memory=resident_memory() + 15 * 10**6),
            listener=told,
        )
    assert not told.energies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "share"),
    [("mp2", 2 / 3), ("wb97x-2", 1 / 3)],  # grid values are dropped before disk is used
)
def test_the_peak_stays_within_every_budget(tmp_path, method, share):
    molecule = Path(__file__).parents[1] / "inputs" / "formic-acid-dimer.xyz"
    given = [str(molecule), "--basis", "def2-tzvp", "--threads", "1", "--method", method]

    def facts(*arguments):
        command = [sys.executable, "-m", "dfmp2", *arguments, "--json"]
        return json.loads(
            subprocess.run(command, check=True, capture_output=True, cwd=tmp_path).stdout
        )

    memory = facts("plan", *given, "--gradient", "--memory", "100TB")["memory_bytes"]
    beyond = memory["comfortable"] - memory["program"]
    more = 3 * 10**6  # libraries differ in size from one process to the next
    budgets = [
        memory["comfortable"] + more,
        memory["program"] + int(beyond * share),
        memory["least"] + more,
    ]
    found = [
        facts("gradient", *given, "--memory", f"{budget}B", "--overwrite", "--output", "x.h5")
        for budget in budgets
    ]
    for budget, one in zip(budgets, found, strict=True):
        assert one["memory"]["measured_peak"] < 1.05 * budget
        np.testing.assert_allclose(one["total_gradient"], found[0]["total_gradient"], atol=1e-9)
    assert (
        found[0]["storage"]["written"]
        == 0
        < found[1]["storage"]["written"]
        < found[2]["storage"]["written"]
    )


def test_a_gradient_that_was_stopped_with_arrays_on_disk_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("DFMP2_CHECKPOINT_SECONDS", "0")
    monkeypatch.setattr("dfmp2.planning.memory.MemoryPlan.mp2_fits_in_core", False)
    gradient_on_disk(monkeypatch, pair_bytes=10**5, read_bytes=10**6)
    given = SMALL | EXACT | {"basis": "sto-3g", "scratch": str(tmp_path), "listener": Silent()}
    expected = dfmp2.gradient(WATER, **given)
    stops = "dfmp2.gradients.mean_field.mean_field_part"
    with monkeypatch.context() as stopped:
        stopped.setattr(stops, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dfmp2.gradient(WATER, **given, checkpoint=tmp_path / "water.h5")
    (folder,) = tmp_path.glob("dfmp2-scratch-*")
    for name in ("scf", "half-0", "z-0"):  # as after SIGKILL
        (folder / f"{name}.raw").write_bytes(b"left over")
    found = dfmp2.gradient(WATER, **given, checkpoint=tmp_path / "water.h5", resume=True)
    assert found.result.storage.written < expected.result.storage.written  # B existed already
    np.testing.assert_array_equal(found.gradient, expected.gradient)
    assert not list(tmp_path.glob("dfmp2-scratch-*"))


# --- amplitudes -----------------------------------------------------------------------------------


def test_amplitudes_are_read_from_disk_in_whole_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two orbitals, where there is room for five of B."""
    monkeypatch.setattr(amplitudes, "STREAM_BYTES", 5 * 8 * 3 * 4 + 7)
    with Space(tmp_path, 0) as space:
        region = space.array("b", 7 * 3 * 4)
        region.write(0, np.zeros(7 * 3 * 4))
        stored: Any = StoredTensor(region, (7, 3, 4), [(0, 7)])
        rows = amplitudes._Rows(stored, np.arange(4), 1, single=True)
        read = [len(part) for _, part in rows._read(2)]
    assert read == [4, 3]


# --- the response of the orbitals -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("atoms", "charges", "charge", "count"),
    [
        ("O 0.3 0.1 0; H 0.5 0.8 0.6", None, 0, 1),
        ("O 0 0 0; H 0 0 0.97; GHOST-H 0 0 -1.1", [[0.0, 0.0, 5.0, 0.6]], 0, 1),
        ("O 0 0 0; H 0 0 0.97; GHOST-H 0.3 0 -1.1", None, 0, 0),
        ("O 0 0 0; H 0 0 0.97", [[0.0, 2.0, 2.5, 0.6]], 0, 0),
        ("C 0.1 0.2 0", None, 1, 2),
        ("N 0 0 0; N 0.3 0.2 1.1", None, -1, 1),
    ],
)
def test_rotations_about_an_axis_of_the_nuclei_change_no_energy(
    atoms: str, charges: Any, charge: int, count: int
) -> None:
    """Radicals in degenerate orbitals, also among ghosts and charges on the axis or beside it.

    There are as many as zero eigenvalues of PySCF's Hessian, and the response to any terms is that
    of its pseudoinverse."""
    rng = np.random.default_rng(23)
    mole = gto.M(atom=atoms, basis="sto-3g", charge=charge, spin=1, verbose=0)
    core = scf.hf.get_hcore(mole)
    for *place, value in charges or []:
        with mole.with_rinv_origin(place):
            core = core - value * mole.intor("int1e_rinv")
    mf = scf.UHF(mole)
    mf.get_hcore = lambda *_: core
    mf.run(conv_tol=1e-13, conv_tol_grad=1e-7)
    os = [
        Orbitals(coeff, energy, core=0, nocc=nocc, nvir=mole.nao - nocc, virtual=0)
        for coeff, energy, nocc in zip(mf.mo_coeff, mf.mo_energy, mole.nelec, strict=True)
    ]
    free = free_rotations(mf.mol, mf.get_hcore, os[0].coeff, [o.rotations for o in os])
    size = sum(o.nvir * o.nocc for o in os)
    stacked = np.reshape(free, (count, size))
    np.testing.assert_allclose(stacked @ stacked.T, np.eye(count), atol=1e-12)
    values, vectors = hessians(mf)[UHF]
    kept = np.abs(values) > 1e-5
    assert np.count_nonzero(~kept) == count
    t_occ = [0.1 * rng.standard_normal((mole.nao, o.nocc)) for o in os]
    t_vir = [0.1 * rng.standard_normal((mole.nao, o.nvir)) for o in os]
    nothing = [np.zeros((mole.nao,) * 2) for _ in os]
    found, residual = responses.relax(
        FockBuilder(mf), os, nothing, t_occ, t_vir, Heard(), None, free
    )
    assert residual <= 5e-11
    terms = [t[o.nocc :] - u[: o.nocc].T for o, t, u in zip(os, t_occ, t_vir, strict=True)]
    right = -np.concatenate([term.ravel() for term in terms]) / 2
    expected = vectors[:, kept] @ ((vectors[:, kept].T @ right) / values[kept])
    x = [p.relaxed[o.nocc :, : o.nocc].ravel() for o, p in zip(os, found, strict=True)]
    np.testing.assert_allclose(np.concatenate(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("frozen", "correlated"), [(0, 1), (6, 5)])
@pytest.mark.parametrize(("apart", "refused"), [(0.9e-4, True), (1.1e-4, False)])
def test_a_frozen_orbital_that_is_degenerate_with_a_correlated_one_is_refused(
    frozen: int, correlated: int, apart: float, refused: bool
) -> None:
    energy = np.arange(7.0) - 3.5
    energy[frozen] = energy[correlated] + apart
    orbitals = Orbitals(np.eye(7), energy, core=1, nocc=3, nvir=2, virtual=1)
    with recorded_error(NumericalError) if refused else nullcontext():
        responses._mixed(orbitals, orbitals.zeros, orbitals.zeros)


def test_a_response_that_does_not_converge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MOST_CYCLES", 3)
    with recorded_error(ConvergenceError):
        mp2_gradient(WATER, make_options(**SMALL | EXACT), listener=Silent())


@pytest.mark.parametrize(("size", "warned"), [(0.249, 0), (0.251, 1), (-0.251, 1)])
def test_a_response_is_strong_beyond_a_quarter_along_one_rotation(size: float, warned: int) -> None:
    """In either direction; two smaller parts of the same norm are none."""
    rng = np.random.default_rng(6)
    hessian = rng.standard_normal((5, 5))
    hessian += hessian.T
    values, modes = np.linalg.eigh(hessian)
    vectors = list(np.linalg.qr(rng.standard_normal((5, 5)))[0])
    images = [hessian @ vector for vector in vectors]
    heard = Heard()
    x = size * modes[:, 2] + 0.2 * modes[:, 0]
    responses._warn_of_strong_response(vectors, images, x, heard)
    said = f"by 0.25 along a rotation that costs {values[2]:.3f} Eh"
    assert [said in warning for warning in heard.warnings] == [True] * warned


# --- sums of a certificate ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "opposite", "same", "energy", "allowed"),
    [
        ("mixed", 1.3, 0.4, -0.4, 1e-9 + 1.3 * 2e-7),
        ("mixed", 0.4, -1.5, -0.4, 1e-9 + 1.5 * 2e-7),
        ("mixed", 0.3, 0.2, -0.4, 1e-9 + 2e-7),
        ("fp64", 1.3, 0.4, -2.5, 2.5e-9),
    ],
)
def test_the_certificate_of_a_gradient_by_hand(
    precision: str, opposite: float, same: float, energy: float, allowed: float
) -> None:
    """Torques about the centre of all positions, over the largest distance from it; grid spheres
    contribute the opposite. Restricted in mixed precision, unrestricted in float64."""
    rng = np.random.default_rng(23)
    molecule = MOLECULES["hypochlorous acid in a field"]
    on_atoms = rng.standard_normal((molecule.natom, 3))
    on_charges = rng.standard_normal((3, 3))
    spheres = np.array([0.3, -0.2, 0.7])
    made = Gradient(
        mp2_total_gradient=on_atoms,
        scaling="mp2",
        opposite_spin_factor=1.0,
        same_spin_factor=1.0,
        seconds=0.0,
        point_charge_gradient=on_charges,
    )
    places = np.vstack([molecule.coordinates, np.array(CHARGES)[:, :3]])
    forces = np.vstack([on_atoms, on_charges])
    centre = sum(places) / len(places)
    torque = spheres + sum(
        np.cross(place - centre, force) for place, force in zip(places, forces, strict=True)
    )
    extent = max(1.0, *(float(np.linalg.norm(place - centre)) for place in places))
    mole, spins = mole_of(molecule), 2 if precision == "fp64" else 1
    density = rng.standard_normal((spins, mole.nao, mole.nao))
    system: Any = SimpleNamespace(mole=mole, molecule=molecule)
    result: Any = SimpleNamespace(
        options=SimpleNamespace(
            correlation=Method("custom", "custom", opposite, same, "test"), tolerance=2e-7
        ),
        correlation_energy=energy,
        precision=precision,
    )
    sums: Any = SimpleNamespace(three_center=energy + 3e-3, two_center=energy - 5e-3)
    densities: Any = SimpleNamespace(relaxed_density=density)
    given = (system, result, made, densities, sums, 7e-8, 9e-9, spheres)
    electrons = (3 - spins) * float((density * mole.intor("int1e_ovlp")).sum())
    found = asdict(certificate.certify_gradient(*given))
    assert {name: value for name, value in found.items() if value is not None} == pytest.approx(
        {
            "three_center_difference": 3e-3,
            "two_center_difference": -5e-3,
            "allowed_energy": allowed,
            "electrons_difference": electrons - mole.nelectron,
            "z_vector_residual": 7e-8,
            "allowed_sum": 1e-6,
            "translation": float(np.abs(sum(forces)).max()),
            "rotation": float(np.abs(torque).max()) / extent,
            "scf_convergence_error": 9e-9,
        },
        rel=1e-10,
    )


@pytest.mark.parametrize(
    ("xc", "energy_xc", "allowed"),
    [(None, None, 2e-6), ("pbe", "hf", 2e-6), (",pz", None, 2e-5), ("pbe", ",pz", 2e-5)],
)
def test_a_slope_by_hand(
    xc: str | None, energy_xc: str | None, allowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four energies of a quartic polynomial give its slope exactly, from a tight SCF. Either
    functional may jump."""
    molecule, asked = MOLECULES["chloramine"], []
    direction = certificate.check_direction(molecule)
    gradient = np.random.default_rng(2).standard_normal((molecule.natom, 3))

    def energy(moved: Any, options: Any, **how: Any) -> Any:
        asked.append((options.scf_conv_tol, how["start"], how["doubt_units"]))
        step = moved.coordinates - molecule.coordinates
        s = float(np.vdot(step, direction))
        np.testing.assert_allclose(step, s * direction, atol=1e-13)
        return SimpleNamespace(total_energy=-0.3 * s + 20 * s**2 - 50 * s**3 + 300 * s**4)

    monkeypatch.setattr(certificate, "mp2_energy", energy)
    tolerance = 1e-8 if xc is None else 1e-14
    options = make_options(basis="sto-3g", scf_conv_tol=tolerance)
    proof: Any = GradientCertificate(0.0, 0.0, 1e-9, 0.0, 1e-11, 1e-6)
    reference: Any = SimpleNamespace(xc=xc, energy_xc=energy_xc, as_start=lambda origin: "there")
    found = certificate.with_slope(
        proof, molecule, options, reference, SimpleNamespace(total_gradient=gradient), Heard()
    )
    assert found.numerical_slope == pytest.approx(-0.3, rel=1e-9)
    assert found.analytic_slope == float(np.vdot(gradient, direction))
    assert found.allowed_slope == allowed
    assert asked == [(min(tolerance, 1e-12), "there", False)] * 4
