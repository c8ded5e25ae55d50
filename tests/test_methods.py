"""Methods of `--method` and the ROHF reference, against explicit sums and other programs.

Published energies of kappa-MP2 and ROHF-MP2 are entries of `dfmp2 validate`, which test_physics.py
runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyscf import scf

import dfmp2
from dfmp2.backends import registry
from dfmp2.errors import InputError
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import make_options
from dfmp2.options.methods import METHODS
from dfmp2.output import hdf5
from tests.awkward import mole_of, semicanonical, singles_energies, spin_energies

EXACT = {"basis": "6-31g", "auxbasis": "cc-pvdz-ri", "precision": "fp64", "scf_conv_tol": 1e-12}
WATER = Molecule(
    ("O", "H", "H"), np.array([[0.0, 0.0, 0.22], [0.0, 1.43, -0.89], [0.0, -1.43, -0.89]])
)
RADICAL = WATER.with_state(1, 2)
FACTORS = {  # as published
    "mp2": (1.0, 1.0),
    "scs-mp2": (1.2, 1 / 3),
    "sos-mp2": (1.3, 0.0),
    "scs-vdw-mp2": (1.28, 0.5),
    "scsn-mp2": (0.0, 1.76),
    "kappa-mp2": (1.0, 1.0),
}


def spin_orbital_sum(
    b: list[Any], occupied: list[Any], virtual: list[Any], kappa: float | None
) -> tuple[float, float]:
    """Same-spin and opposite-spin energies summed over spin orbitals, Eh: every term with its own
    factor."""
    found = [0.0, 0.0]
    for one in (0, 1):
        for other in (0, 1):
            g = np.einsum("iap,jbp->iajb", b[one], b[other])
            d = occupied[one][:, None, None, None] + occupied[other][:, None] - virtual[other]
            d = d - virtual[one][:, None, None]
            factor = 1.0 if kappa is None else (1 - np.exp(kappa * d)) ** 2
            t = g * factor / d
            if one == other:
                found[0] += 0.5 * float(np.vdot(t, g - g.transpose(0, 3, 2, 1)))
            else:
                found[1] += 0.5 * float(np.vdot(t, g))
    return found[0], found[1]


@pytest.mark.parametrize("precision", ["fp64", "mixed"])
@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_regularised_terms_of_two_spins_are_the_sums_written_out(name: str, precision: str) -> None:
    """Spins of different sizes, several tiles, and one vanishing gap, where plain MP2 diverges."""
    if name == "torch":
        pytest.importorskip("torch")
    rng, kappa = np.random.default_rng(3), 1.1
    b = [0.3 * rng.standard_normal((n, v, 21)) for n, v in ((5, 70), (3, 72))]
    occupied = [np.sort(-rng.random(len(x)) - 0.2) for x in b]
    virtual = [np.sort(rng.random(x.shape[1]) - 0.2 + 1e-6) for x in b]
    backend = registry.select_backend(name, precision, 2)[0].regularised(kappa)
    from dfmp2.mp2.pairs import pair_energies

    put = [backend.put(x, e, v, precision) for x, e, v in zip(b, occupied, virtual, strict=True)]
    pairs = pair_energies(put, backend)
    found = pairs.same_spin_energy, pairs.opposite_spin_energy
    rounding = 1e-11 if precision == "fp64" else 1e-5
    assert found == pytest.approx(spin_orbital_sum(b, occupied, virtual, kappa), rel=rounding)


def test_every_method_has_its_published_factors_and_the_totals_follow(tmp_path: Any) -> None:
    assert {one.name for one in METHODS.values() if one.kind == "pairs"} == set(FACTORS)
    plain = dfmp2.run(WATER, **EXACT)
    same, opposite = (
        plain.mp2_same_spin_correlation_energy,
        plain.mp2_opposite_spin_correlation_energy,
    )
    unscaled = {
        "mp2_correlation_energy": opposite + same,
        "mp2_total_energy": plain.scf_total_energy + opposite + same,
        "scs_mp2_correlation_energy": 1.2 * opposite + same / 3,
        "sos_mp2_correlation_energy": 1.3 * opposite,
    }
    for name, (c_os, c_ss) in FACTORS.items():
        if name == "kappa-mp2":
            continue
        derived = dfmp2.derive(plain, method=name)
        assert derived.method == name
        assert derived.correlation_energy == pytest.approx(c_os * opposite + c_ss * same, abs=1e-14)
        parts = derived.opposite_spin_correlation_energy, derived.same_spin_correlation_energy
        assert parts == pytest.approx((c_os * opposite, c_ss * same), abs=1e-15)
        assert derived.total_energy == pytest.approx(
            plain.scf_total_energy + derived.correlation_energy, abs=1e-12
        )
        for key, energy in unscaled.items():
            assert getattr(derived, key) == pytest.approx(energy, rel=1e-13), key
        hdf5.write(derived, tmp_path / f"{name}.h5")
        assert hdf5.read(tmp_path / f"{name}.h5").to_dict()["total_energy"] == derived.total_energy
    asked = dfmp2.run(WATER, method="scs-mp2", **EXACT)
    assert asked.total_energy == pytest.approx(
        plain.scf_total_energy + plain.scs_mp2_correlation_energy, abs=1e-10
    )


def test_rohf_singles_and_doubles_are_those_of_spin_orbitals() -> None:
    """With frozen orbitals; against PySCF's ROHF and explicit sums over spin orbitals."""
    mf, couplings = semicanonical(scf.ROHF(mole_of(RADICAL)).run(conv_tol=1e-13))
    singles = sum(singles_energies(mf, couplings, 1, 2))
    doubles = spin_energies(mf, 1, 2, "cc-pvdz-ri")
    settings = {**EXACT, "scf": "conventional", "reference": "rohf", "frozen_virtual": 2}
    ours = dfmp2.run(RADICAL, **settings, frozen_core="1")
    assert ours.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-10)
    assert ours.mp2_singles_energy == pytest.approx(singles, abs=1e-9)
    assert ours.components == pytest.approx(doubles, abs=1e-9)
    assert ours.mp2_correlation_energy == pytest.approx(singles + sum(doubles), abs=1e-9)
    assert ours.reference.spin_square == 0.75
    scaled = dfmp2.derive(ours, method="scs-mp2")
    parts = (
        1.2 * ours.mp2_opposite_spin_correlation_energy + ours.mp2_same_spin_correlation_energy / 3
    )
    # Never scaled
    assert scaled.correlation_energy == pytest.approx(parts + ours.mp2_singles_energy, abs=1e-14)
    more = dfmp2.derive(ours, frozen_core=2)
    again = dfmp2.run(RADICAL, **settings, frozen_core="2")
    assert more.mp2_singles_energy == pytest.approx(again.mp2_singles_energy, abs=1e-9)


@pytest.mark.parametrize("kind", ["df", "conventional"])
def test_rohf_starts_again_and_is_stored(kind: str, tmp_path: Any) -> None:
    first = dfmp2.run(RADICAL, reference="rohf", scf=kind, **EXACT)
    hdf5.write(first, tmp_path / "r.h5")
    stored = hdf5.read(tmp_path / "r.h5")
    assert stored.mp2_singles_energy == first.mp2_singles_energy < -1e-5
    start = {"scf": kind, "scf_from": str(tmp_path / "r.h5")}
    again = dfmp2.run(RADICAL, reference="rohf", **EXACT, **start)
    assert again.reference.cycles < first.reference.cycles
    assert again.total_energy == pytest.approx(first.total_energy, abs=1e-9)


ASKED: dict[str, Any] = {
    "check": True,
    "certify_fit": True,
    "properties": True,
    "polarizability": True,
    "precision": "mixed",
    "transform": "device",
    "backend": "torch",
    "frozen_core": "auto",
    "frozen_virtual": 1,
    "auxbasis": "cc-pvdz-ri",
    "stability": "full",
    "os_scale": 1.1,
    "dispersion": "d3bj",
    "kappa": 1.2,
    "reference": "rohf",
    "xc": "pbe",
    "grid": "3",
    "scf": "conventional",
    "relativity": "x2c",
    "tolerance": 1e-8,
}
WITHOUT_PAIRS = "check certify_fit precision transform backend"
HARTREE_FOCK = "dispersion kappa xc grid"  # options that MP2 cannot use
COMBINATIONS: dict[str, tuple[dict[str, Any], str]] = {  # options, and which are refused with them
    "MP2": ({}, HARTREE_FOCK),
    "SCS-MP2": ({"method": "scs-mp2"}, f"os_scale {HARTREE_FOCK}"),
    "kappa-MP2": (
        {"method": "kappa-mp2"},
        "check certify_fit os_scale dispersion xc grid",
    ),
    "Laplace": (
        {"method": "sos-laplace"},
        f"{WITHOUT_PAIRS} properties polarizability os_scale {HARTREE_FOCK}",
    ),
    "dRPA": (
        {"method": "drpa"},
        f"{WITHOUT_PAIRS} properties polarizability os_scale dispersion kappa reference grid",
    ),
    "dRPA of a functional": (
        {"method": "drpa", "xc": "pbe0"},
        f"{WITHOUT_PAIRS} properties polarizability os_scale dispersion kappa reference",
    ),
    "functional alone": (
        {"method": "ks", "xc": "pbe0"},
        "certify_fit precision transform backend frozen_core frozen_virtual auxbasis os_scale dispersion kappa reference",
    ),
    "double hybrid": ({"method": "b2plyp"}, "kappa reference xc"),
    "double hybrid by Laplace": (
        {"method": "xygj-os", "laplace": True},
        f"{WITHOUT_PAIRS} properties polarizability dispersion kappa reference xc",
    ),
    "double hybrid of one's own": (
        {"method": "custom-dh", "xc": "pbe0", "os_scale": 0.5, "ss_scale": 0.2},
        "dispersion kappa reference",
    ),
    "ROHF": ({"reference": "rohf"}, f"certify_fit stability {HARTREE_FOCK}"),
    "solvent": (
        {"solvent": "water"},
        f"certify_fit properties polarizability stability {HARTREE_FOCK}",
    ),
    "conventional SCF": ({"scf": "conventional"}, HARTREE_FOCK),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_which_options_go_together(name: str) -> None:
    """Each option with each kind of calculation: accepted, or refused under its own name or the
    other's."""
    base, expected = COMBINATIONS[name]
    refused: dict[str, set[str]] = {}
    for option, value in ASKED.items():
        try:
            options = make_options(**{"basis": "sto-3g", **base, option: value})
        except InputError as error:
            refused[option] = {one.name for one in error.message.options}
        else:
            assert getattr(options, option) == value
    assert sorted(refused) == sorted(expected.split())
    for option, named in refused.items():
        assert named & {option, *base}, option


@pytest.mark.parametrize(
    ("options", "name", "opposite", "same"),
    [
        ({}, "mp2", 1.0, 1.0),
        ({"os_scale": 1.3}, "custom-scs-mp2", 1.3, 1.0),
        ({"ss_scale": 0.0}, "custom-scs-mp2", 1.0, 0.0),
        ({"method": "scs-mp2"}, "scs-mp2", 1.2, 1 / 3),
        ({"method": "b2plyp"}, "b2plyp", 0.27, 0.27),
        ({"method": "b2plyp", "os_scale": 0.4}, "custom-dh", 0.4, 0.27),
        ({"method": "b2plyp", "ss_scale": 0.0}, "custom-dh", 0.27, 0.0),
        (
            {"method": "custom-dh", "xc": "pbe", "os_scale": 0.4, "ss_scale": 0.1},
            "custom-dh",
            0.4,
            0.1,
        ),
        ({"method": "ks", "xc": "pbe"}, "ks", 0.0, 0.0),
    ],
)
def test_factors_of_the_correlation_energy(
    options: dict[str, Any], name: str, opposite: float, same: float
) -> None:
    """The published ones unless given; giving one leaves the other unchanged."""
    method = make_options(**{"basis": "sto-3g", **options}).correlation
    assert (method.name, method.opposite_spin, method.same_spin) == (
        name,
        pytest.approx(opposite),
        pytest.approx(same),
    )
