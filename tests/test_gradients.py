"""Gradients, relaxed densities and their certificate, against energies, PySCF and published
numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import Dfmp2Error, ResourceError
from dfmp2.gradients.gradient import mp2_gradient
from dfmp2.host.resources import resident_memory
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.properties import GradientCertificate
from dfmp2.options import make_options
from dfmp2.progress import Silent
from tests.awkward import slope
from tests.conftest import Heard, succeed
from tests.cuts import gradient_on_disk
from tests.recorded import recorded_error, recorded_failure, recorded_warning

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
    "rhf, four-centre": (WATER, FOUR_CENTRE),
    "uhf, four-centre": (WATER.with_state(1, 2), FOUR_CENTRE),
    "ghost on a charge": (GHOST.in_field([[0.1, -1.5, -0.8, 0.4], [1, -5, 0, -0.8]]), {}),
    "core potential": (
        Molecule(("Na", "H", "O"), [[0, 0.2, 0], [0.1, 0, 3.4], [0, 3, -1]], ghost=(False, False, True)),
        {"basis": "6-31g,1=lanl2dz", "auxbasis": "def2-svp-ri"},
    ),
    "x2c": (WATER, {"relativity": "x2c"}),
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


def test_a_strong_response_of_the_orbitals_is_warned_of(tmp_path):
    """Nearly all of CN's Z-vector lies along the softest rotation, whose eigenvalue is that of
    `--stability full`; little of water's lies along any one."""
    radical = Molecule(("C", "N"), [[0, 0, 0], [0.2, 0.3, 2.2]], multiplicity=2)
    options = {"basis": "6-31g", "threads": 1}
    with recorded_warning(UserWarning):
        found = dfmp2.gradient(radical, stability="full", **options).result
    dfmp2.write(found, tmp_path / "cn.h5")
    stored = dfmp2.read(tmp_path / "cn.h5").diagnostics.warnings
    (said,) = (warning for warning in stored if "respond" in warning)
    along, costs = map(float, re.search("by (.*) along .* costs (.*) Eh ", said).groups())
    assert costs == pytest.approx(found.reference.stability.lowest_eigenvalue, abs=2e-3)
    assert along == pytest.approx(0.58, abs=0.05)  # the norm of the whole Z-vector
    assert dfmp2.gradient(WATER, **options).result.diagnostics.warnings == ()


def test_a_gradient_whose_certificate_fails_is_refused_in_python(monkeypatch):
    """Or returned with a warning on request; so are densities without a gradient."""
    molecule = Molecule.from_string(
        "4\ncharge=1 multiplicity=2\nC 0 0 0\nO 0 0.1 1.3\nH 0.9 0 -0.5\nF -1.1 0.2 -0.4"
    )
    loose = {"basis": "sto-3g", "scf_conv_tol": 1e-2, "threads": 1}
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
    molecule = WATER.with_state(1, 2)
    exact = mp2_gradient(molecule, make_options(**SMALL | EXACT), listener=Silent())
    found = mp2_gradient(
        molecule, make_options(**SMALL | EXACT | {"precision": "mixed"}), listener=Silent()
    )
    difference = np.abs(found.gradient - exact.gradient).max()
    assert 1e-12 < difference < 1e-8
    assert (
        1e-12
        < np.abs(found.properties.relaxed_density - exact.properties.relaxed_density).max()
        < 1e-7
    )
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


def test_the_plan_of_a_gradient_is_that_of_its_run(call):
    options = ("h2o.xyz", "--basis", "cc-pvdz", "--threads", "1")
    energy, plan = (
        succeed(call("plan", *options, *more, "--json")).json for more in ((), ("--gradient",))
    )
    assert plan["seconds"]["gradient"] > 0 == energy["seconds"]["gradient"]
    assert plan["seconds"]["total"] == pytest.approx(
        energy["seconds"]["total"] + plan["seconds"]["gradient"], abs=1e-9
    )
    for name in ("least", "peak"):
        assert plan["memory_bytes"][name] > energy["memory_bytes"][name] + 10**7
    result = dfmp2.gradient("h2o.xyz", basis="sto-3g", threads=1, listener=Silent()).result
    assert result.timings.gradient == pytest.approx(result.gradient.seconds, abs=0.2)
    assert result.predicted.gradient > 0
    small = f"{plan['memory_bytes']['program'] + 10**7}B"
    refused = succeed(call("plan", *options, "--gradient", "--memory", small, "--json")).json
    assert not refused["fits"]
    assert refused["change"].startswith("--memory")


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
    given = SMALL | EXACT | {"scratch": str(tmp_path), "listener": Silent()}
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
