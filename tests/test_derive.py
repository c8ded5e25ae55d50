"""Derived results against full runs on the same orbitals, and every refusal with its reason."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from pyscf import gto, scf

import dfmp2
from dfmp2.errors import InputError
from dfmp2.gradients.result import GradientResult
from dfmp2.mp2.composite import Part, combine
from dfmp2.mp2.derive import derive
from dfmp2.mp2.result import Certificate, FittingCertificate, MP2Result
from tests.conftest import Heard, Runner, Stored
from tests.recorded import recorded_error, recorded_failure, recorded_texts

EXACT = 1e-12  # Eh, asked of fp64
COMPONENTS = (
    "mp2_same_spin_correlation_energy",
    "mp2_opposite_spin_correlation_energy",
    "mp2_correlation_energy",
)


@pytest.fixture(scope="module")
def fields() -> dict[str, Any]:
    """Converged mean fields: closed shell, radical, an element for which the programs' cores
    differ, a core potential."""

    def converge(kind: Any, atoms: str, basis: str, **molecule: Any) -> Any:
        mol = gto.M(atom=atoms, basis=basis, verbose=0, **molecule)
        mf = kind(mol).density_fit(auxbasis="def2-universal-jkfit")
        mf.conv_tol = 1e-10
        return mf.run()

    return {
        "water": converge(
            scf.RHF, "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692", "6-31g"
        ),
        "nh2": converge(scf.UHF, "N 0 0 0; H 0 0.8036 0.6347; H 0 -0.8036 0.6347", "6-31g", spin=1),
        "nah": converge(scf.RHF, "Na 0 0 0; H 0 0 1.8874", "def2-svp"),
        "hi": converge(scf.RHF, "I 0 0 0; H 0 0 1.609", "def2-svp", ecp={"I": "def2-svp"}),
    }


_computed: dict[str, MP2Result] = {}


def compute(mf: Any, core: Any, precision: str = "fp64", **options: Any) -> MP2Result:
    """The result on these orbitals, each computed once."""
    asked = repr((mf.e_tot, core, precision, options))
    if asked not in _computed:
        options = {"listener": Heard(), "threads": 1, **options}
        found = dfmp2.from_mean_field(
            mf, "def2-svp-ri", frozen_core=core, precision=precision, **options
        )
        _computed[asked] = found
    return _computed[asked]


@pytest.mark.parametrize(
    ("name", "stored", "core", "orbitals"),
    [
        ("water", "none", "auto", 1),
        ("water", "none", 4, 4),
        ("nh2", "none", "auto", 1),
        ("nh2", "none", 3, 3),  # one beta electron is left
        ("nh2", "auto", 4, 4),  # and none
        ("nah", "pyscf", "psi4", 5),
        ("hi", "none", "orca", 4),
    ],
)
def test_a_larger_core_is_the_full_run(fields, name, stored, core, orbitals):
    full = compute(fields[name], core)
    derived = derive(compute(fields[name], stored), frozen_core=core, listener=Heard())
    assert derived.sizes == full.sizes
    assert derived.sizes.frozen_core == orbitals
    assert derived.options == full.options
    for channel, matrix in full.pairs.channels().items():
        assert np.abs(derived.pairs.channels()[channel] - matrix).max(initial=0.0) < EXACT
    for component in (*COMPONENTS, "mp2_total_energy"):
        assert getattr(derived, component) == pytest.approx(
            getattr(full, component), abs=EXACT, rel=0
        )
    assert derived.diagnostics.smallest_denominator == full.diagnostics.smallest_denominator
    assert derived.certificate is None


@pytest.mark.parametrize(("name", "core"), [("water", 1), ("nh2", 3)])
def test_mixed_precision_stays_within_its_certificates(fields, name, core):
    """The truth is the float64 run: the widened certificate must cover the distance to it."""
    parent, full, exact = (
        compute(fields[name], *how) for how in ((0, "mixed"), (core, "mixed"), (core, "fp64"))
    )
    derived = derive(parent, frozen_core=core, listener=Heard())
    assert derived.precision == "mixed"
    assert parent.certificate and full.certificate and derived.certificate
    allowed = parent.certificate.correlation_error + full.certificate.correlation_error
    assert abs(derived.mp2_correlation_energy - full.mp2_correlation_energy) <= allowed
    for component, limit in zip(
        COMPONENTS, ("same_spin_error", "opposite_spin_error", "correlation_error"), strict=True
    ):
        error = abs(getattr(derived, component) - getattr(exact, component))
        assert error <= getattr(derived.certificate, limit) + EXACT
    assert derived.certificate.pairs == parent.certificate.pairs


def test_what_the_record_says(fields):
    parent = compute(fields["water"], 0, "mixed", check=True)
    derived = derive(
        parent, frozen_core=1, origin="w.h5, content 0123", command="dfmp2 derive w.h5"
    )
    recorded_texts([derived.frozen_core_note])
    assert derived.provenance.command == f"dfmp2 derive w.h5; original: {parent.provenance.command}"
    assert derived.timings == parent.timings
    assert derive(parent, os_scale=1.1).check == parent.check is not None


def test_certificate_is_widened_by_the_pairs_left_out(fields):
    """By hand: float32 has 2^-24, and each omitted direct term counts eight of these; E_SS has
    direct and exchange terms."""
    found = Certificate(15, 15, 5e-9, 3e-9, 2e-9, 1e-12, 1e-7, False)
    parent = replace(compute(fields["water"], 0, "mixed"), certificate=found)
    direct = parent.pairs.opposite_spin
    bounds = {"opposite_spin": (2e-9, 8), "same_spin": (3e-9, 16), "correlation": (5e-9, 24)}
    # Water's 1s with itself and with the other four
    left_out = abs(direct[0, 0] + 2 * direct[0, 1:].sum())
    widened = derive(parent, frozen_core=1).certificate
    assert [getattr(widened, f"{name}_error") for name in bounds] == pytest.approx(
        [bound + terms / 2**24 * left_out for bound, terms in bounds.values()], rel=1e-9
    )
    # A device with coarser arithmetic: 1e-6 relative to the largest pair.
    coarse = replace(found, largest_pair_error=1e-6 * float(abs(direct).max()))
    wider = derive(replace(parent, certificate=coarse), frozen_core=1).certificate
    assert wider.opposite_spin_error == pytest.approx(2e-9 + 1e-6 * left_out, rel=1e-9)
    assert derive(parent, frozen_core=0, os_scale=1.1).certificate == found


def test_a_certificate_that_says_too_little_is_a_warning(fields):
    found = Certificate(15, 15, 1e-7, 1e-9, 1e-9, 1e-12, 1e-7, False)
    kept = Heard()
    derived = derive(
        replace(compute(fields["water"], 0, "mixed"), certificate=found),
        frozen_core=1,
        listener=kept,
    )
    recorded_texts(kept.warnings)
    assert not derived.certificate.accepted
    before = replace(derived, diagnostics=replace(derived.diagnostics, warnings=("before",)))
    both = derive(before, frozen_core=2, listener=kept).diagnostics.warnings
    assert both == ("before", *kept.warnings[1:]) and len(both) == 2
    exact = derive(replace(before, precision="fp64"), frozen_core=2, listener=Heard())
    assert exact.diagnostics.warnings == ("before",)


@pytest.mark.parametrize(
    "changes",
    [
        {"frozen_core": "none"},
        {"frozen_core": 5},
        {"frozen_core": -1},
        {"basis": "cc-pvtz"},
        {"auxbasis": "cc-pvdz-ri"},
        {"scf_auxbasis": "cc-pvtz-jkfit"},
        {"scf": "conventional"},
        {"reference": "uhf"},
        {"frozen_virtual": 1},
        {"precision": "mixed"},
        {"tolerance": 1e-9},
        {"os_scale": float("nan")},
    ],
    ids=str,
)
def test_refusals(fields, changes):
    with recorded_error(InputError):
        derive(compute(fields["water"], 1), **changes)


def test_a_core_needs_orbitals_of_both_spins(fields):
    """As if two electrons of NH2 were beta."""
    parent = compute(fields["nh2"], 1)
    alpha, beta = parent.reference.mo_occ
    few = np.stack([alpha, np.where(np.arange(len(beta)) < 2, beta, 0.0)])
    with recorded_error(InputError):
        derive(replace(parent, reference=replace(parent.reference, mo_occ=few)), frozen_core=3)


def test_another_option_may_have_the_value_it_had(fields):
    """Under any name: of the set used, the kind of reference, or the precision."""
    parent = compute(fields["nh2"], 1)
    fitting, scf_fitting = parent.mp2_fitting.names, parent.scf_fitting.names
    had = {
        "basis": parent.options.basis.upper(),
        "auxbasis": fitting,
        "scf_auxbasis": f" {scf_fitting.upper()} ",
        "scf": "df",
        "reference": "uhf",
        "frozen_virtual": 0,
        "relativity": "none",
        "precision": parent.precision,
    }
    for name, value in had.items():
        assert derive(parent, os_scale=1.1, **{name: value}).options.os_scale == 1.1, name
    others = {
        "basis": fitting,
        "auxbasis": scf_fitting,
        "scf_auxbasis": fitting,
        "scf": "uhf",
        "reference": "rhf",
        "frozen_virtual": "uhf",
        "precision": "mixed",
    }
    for name, value in others.items():
        with recorded_error(InputError):
            derive(parent, **{name: value})


def test_what_a_derived_result_keeps_and_what_goes(fields):
    """Sums over the same pairs with other factors; orbitals, spins and measurements of them are
    kept."""
    parent = compute(fields["nh2"], 1)
    same, opposite = parent.components
    scaled = derive(parent, os_scale=1.1, ss_scale=0.4)
    assert scaled.correlation_energy == pytest.approx(1.1 * opposite + 0.4 * same, abs=1e-13)
    assert derive(scaled, frozen_core=2).options.os_scale == 1.1
    assert derive(scaled, os_scale=0.7).correlation_energy == pytest.approx(
        0.7 * opposite + same, abs=1e-13
    )
    named = derive(scaled, method="scs-mp2")
    assert named.correlation_energy == pytest.approx(1.2 * opposite + same / 3, abs=1e-13)
    assert named.options.os_scale is None and named.options.ss_scale is None
    assert "derived from a result of" in named.frozen_core_note
    smaller = derive(parent, frozen_core=2, origin="x.h5")
    left = tuple(n - 1 for n in parent.sizes.nocc)
    assert (smaller.sizes.frozen_core, smaller.sizes.nocc) == (2, left)
    pairs = parent.pairs
    np.testing.assert_array_equal(smaller.pairs.opposite_spin, pairs.opposite_spin[1:, 1:])
    for found, whole in zip(smaller.pairs.same_spin, pairs.same_spin, strict=True):
        np.testing.assert_array_equal(found, whole[1:, 1:])
    dropped = ("gradient", "gradient_certificate", "properties", "polarizability")
    checked = replace(
        parent,
        check=object(),
        fitting_certificate=FittingCertificate(
            correlation_error=2e-5,
            correlation_uncertainty=1e-9,
            orbitals=6,
            sampled_orbitals=6,
            pairs=21,
            sampled_pairs=21,
            seed=1,
            scf_error=3e-5,
            scf_uncertainty=2e-9,
        ),
        coupled_cluster=object(),
        options=replace(parent.options, properties=True, polarizability=True),
        **dict.fromkeys(dropped, object()),
    )
    derived = derive(checked, frozen_core=2, origin="x.h5")
    recorded_texts([derived.frozen_core_note])
    gone = (*dropped, "check", "coupled_cluster")
    assert [getattr(derived, name) for name in gone] == [None] * 6
    pairs = sum(n * (n + 1) // 2 for n in left) + left[0] * left[1]
    kept = FittingCertificate(
        orbitals=sum(left),
        sampled_orbitals=0,
        pairs=pairs,
        sampled_pairs=0,
        seed=1,
        scf_error=3e-5,
        scf_uncertainty=2e-9,
    )
    assert derived.fitting_certificate == kept
    fitting = derived.error_budget.sources["scf_fitting"]
    assert (fitting.scf.value, fitting.scf.kind) == (3e-5 + 2e-9, "measured")
    assert fitting.correlation.kind == "estimated"
    assert not derived.options.properties and not derived.options.polarizability
    with recorded_error(InputError):
        derive(replace(parent, kept="energies"), frozen_core=2)


# --- the command ----------------------------------------------------------------------------------


def test_a_file_with_another_content_is_refused(call: Runner, water: Stored, folder: Path):
    shutil.copy(water.path, folder / "w.h5")
    with h5py.File(folder / "w.h5", "a") as handle:
        handle["dfmp2/pairs/opposite_spin"][0, 0] -= 1e-3
    recorded_failure(call("derive", "w.h5", "--frozen-core", "1"), 3)


@pytest.mark.parametrize("what", ["path", "gradient", "limit"])
def test_what_is_not_the_result_of_one_run(fields, tmp_path: Path, what: str) -> None:
    """Nor the limit of two basis sets: its energies are not those of its pairs and orbitals."""
    run = compute(fields["water"], 1)
    parts = [(Part("small", 1.0, -0.4), run), (Part("large", 0.0, 1.4), run)]
    value: Any = {"path": "x.h5", "gradient": GradientResult(run), "limit": combine(parts)}[what]
    with recorded_error(InputError):
        dfmp2.derive(value, frozen_core=2)
    with recorded_error(InputError):
        dfmp2.write(value, tmp_path / "x.h5")
    assert list(tmp_path.iterdir()) == []
