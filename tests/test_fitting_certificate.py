"""The fitting certificate against PySCF's conventional SCF and four-centre MP2, and its sample
against many draws."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyscf import dft, mp, scf
from scipy.stats import t

import dfmp2
from dfmp2.errors import ResourceError
from dfmp2.integrals import four_center
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.xyz import parse_xyz
from dfmp2.mp2 import fitting_certificate
from dfmp2.mp2.fitting_certificate import SCF_ROUNDING, drawn, estimate
from dfmp2.planning import sizes
from dfmp2.scf import conventional
from dfmp2.validation.compare import recompute_exact
from tests import awkward
from tests.awkward import mole_of
from tests.conftest import MOLECULES, Heard
from tests.recorded import recorded_texts

WATER, RADICAL = (parse_xyz(MOLECULES[name], file=name).molecule for name in ("h2o", "nh2"))
PLAIN: dict[str, Any] = {"precision": "fp64", "stability": "off", "threads": 1, "certify_fit": True}


def chain(molecule: Molecule, count: int) -> Molecule:
    """Copies of a closed-shell molecule, 5.5 bohr apart."""
    steps = np.arange(count)[:, None, None] * np.array([5.5, 0.3, 0.1])
    places = (molecule.coordinates + steps).reshape(-1, 3)
    return replace(
        molecule, symbols=molecule.symbols * count, ghost=molecule.ghost * count, coordinates=places
    )


# --- against PySCF --------------------------------------------------------------------------------


@pytest.mark.parametrize(("molecule", "core"), [(WATER, 0), (RADICAL, 1)], ids=["rhf", "uhf, core"])
def test_a_complete_certificate_is_exact(
    molecule: Molecule, core: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against PySCF's conventional SCF and MP2, which share only the integrals with it; blocks of
    few pairs, in several passes."""
    monkeypatch.setattr(four_center, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(four_center, "WORK_BYTES", 5_000)
    mf = scf.HF(mole_of(molecule, "6-31g")).set(conv_tol=1e-13, conv_tol_grad=1e-9).run()
    method = mp.MP2(mf, frozen=core).run()
    result = dfmp2.run(molecule, "6-31g", frozen_core=core, **PLAIN)
    found = result.fitting_certificate
    assert result.scf_total_energy - found.scf_error == pytest.approx(mf.e_tot, abs=1e-9)
    assert result.mp2_correlation_energy - found.correlation_error == pytest.approx(
        method.e_corr, abs=1e-8
    )
    assert 1e-9 <= found.scf_uncertainty < 5e-9 and 0 < found.correlation_uncertainty < 1e-6
    assert (
        found.orbitals == found.sampled_orbitals == sum(result.sizes.nocc[: result.reference.nspin])
    )
    assert found.pairs == found.sampled_pairs == found.orbitals * (found.orbitals + 1) // 2
    assert found.seed == 1


def test_what_coupling_still_lowers_is_in_the_energy_and_stated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After one exact Fock matrix from orbitals of a poor set: to second order in its coupling,
    which is all but a fifth."""
    monkeypatch.setattr(conventional, "COUPLED", 0.1)
    mf = scf.HF(mole_of(RADICAL, "6-31g")).set(conv_tol=1e-13, conv_tol_grad=1e-9).run()
    sets = {"scf_auxbasis": "def2-svp-ri", "auxbasis": "def2-svp-ri", "allow_poor_fit": True}
    result = dfmp2.run(RADICAL, "6-31g", **sets, **PLAIN)
    found = result.fitting_certificate
    left = found.scf_uncertainty - SCF_ROUNDING
    assert left > 1e-7
    assert abs(result.scf_total_energy - found.scf_error - mf.e_tot) < left / 4
    # E(corr) feels the coupling to first order.
    correlation = result.mp2_correlation_energy - found.correlation_error
    off = abs(correlation - mp.MP2(mf, frozen=result.sizes.frozen_core).run().e_corr)
    assert 10 * SCF_ROUNDING < off < found.correlation_uncertainty


@pytest.mark.usefixtures("coarse_grid_error")
@pytest.mark.parametrize(
    ("molecule", "method", "xc"),
    [
        (RADICAL, "b2plyp", "0.53*HF + 0.47*B88, 0.73*LYP"),
        (
            awkward.MOLECULES["peroxide anion"],
            "wb2plyp",
            "0.53*HF + 0.47*LR_HF(0.3) + 0.47*GGA_X_ITYH, 0.73*LYP",
        ),
    ],
    ids=["uks", "range-separated"],
)
def test_the_certificate_of_a_double_hybrid_is_exact(
    molecule: Molecule, method: str, xc: str
) -> None:
    """Against PySCF's conventional Kohn-Sham and its UMP2 on these orbitals."""
    mole = mole_of(molecule)
    mf = dft.UKS(mole, xc=xc)
    mf.grids.atom_grid = (20, 50)
    mf.run(conv_tol=1e-12, conv_tol_grad=1e-8)
    second_order = mp.UMP2(mf).kernel()[0]
    given = {"method": method, "grid": "20,50", "auxbasis": "cc-pvdz-ri"}
    result = dfmp2.run(molecule, "6-31g", scf_auxbasis="cc-pvdz-jkfit", **given, **PLAIN)
    found = result.fitting_certificate
    assert result.scf_total_energy - found.scf_error == pytest.approx(mf.e_tot, abs=2e-9)
    unscaled = result.pairs.correlation_energy
    assert unscaled - found.correlation_error == pytest.approx(second_order, abs=1e-8)
    assert abs(found.scf_error) > 1e-6 and abs(found.correlation_error) > 1e-6
    assert result.error_budget.sources["scf_fitting"].scf.kind == "measured"


CHARGES = np.array([[0.0, 4.0, 3.0, 0.5], [3.0, -5.0, 0.0, -0.4]])
HYDROGEN_IODIDE = Molecule(("H", "I"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 3.04]]))


@pytest.mark.parametrize(
    ("molecule", "options"),
    [
        (WATER.in_field(CHARGES), {"basis": "6-31g", "frozen_virtual": 2}),
        (WATER, {"basis": "6-31g", "relativity": "x2c"}),
        (HYDROGEN_IODIDE, {"basis": "def2-svp", "frozen_core": "auto"}),
        (WATER, {"basis": "6-31g", "scf": "conventional"}),
    ],
    ids=["point charges", "x2c", "core potential", "conventional"],
)
def test_every_hamiltonian_is_certified(molecule: Molecule, options: dict[str, Any]) -> None:
    result = dfmp2.run(molecule, **options, **PLAIN)
    found, truth = result.fitting_certificate, recompute_exact(result, 1.0, 1, Heard())
    assert found.correlation_error == pytest.approx(truth.correlation_difference, abs=1e-7)
    if result.reference.scf_type == "conventional":
        assert found.scf_error is found.scf_uncertainty is None
    else:
        assert found.scf_error == pytest.approx(truth.scf_difference, abs=1e-9)
        assert abs(found.scf_error) > 1e-7


def test_a_fitting_set_that_is_wrong_is_found_out() -> None:
    """cc-pVDZ-JKFIT misses 0.67 Eh for bromine; this far from the conventional solution, more Fock
    matrices are needed."""
    bromide = Molecule(("H", "Br"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 2.67]]))
    found = dfmp2.run(
        bromide, "cc-pvdz", scf_auxbasis="cc-pvdz-jkfit", allow_poor_fit=True, **PLAIN
    )
    assert found.fitting_certificate.scf_error == pytest.approx(0.6737, abs=1e-4)
    assert found.fitting_certificate.scf_uncertainty < 1e-8


# --- the sample -----------------------------------------------------------------------------------


def test_a_sample_finds_the_error_within_its_uncertainty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of 8 of the 19 orbitals of both spins, against all of them."""
    everything, some = 19, 8
    molecule = chain(WATER, 2).with_state(1, 2)
    options = {"molecule": molecule, "basis": "6-31g", **PLAIN}
    monkeypatch.setattr(sizes, "EXACT_ROWS", everything)
    truth = dfmp2.run(**options).fitting_certificate
    monkeypatch.setattr(sizes, "EXACT_ROWS", some)
    monkeypatch.setattr(sizes, "EXACT_STRATA", 2)
    found = dfmp2.run(**options).fitting_certificate
    assert truth.orbitals == truth.sampled_orbitals == found.orbitals == everything
    assert found.sampled_orbitals < everything and found.sampled_pairs < found.pairs == truth.pairs
    assert abs(found.correlation_error - truth.correlation_error) <= found.correlation_uncertainty
    assert (
        truth.correlation_uncertainty
        < found.correlation_uncertainty
        < 0.5 * abs(truth.correlation_error)
    )
    assert found.scf_error == pytest.approx(truth.scf_error, abs=1e-9)
    whole = fitting_certificate.pair_energies_to_tolerance

    def rounded(*given: Any, **how: Any) -> Any:
        """With a bound on the rounding of 1e-4 Eh."""
        assert how["tolerance"] == 2e-7
        return *whole(*given, **how)[:2], SimpleNamespace(correlation_error=1e-4)

    monkeypatch.setattr(fitting_certificate, "pair_energies_to_tolerance", rounded)
    again = dfmp2.run(**options, tolerance=2e-7).fitting_certificate
    assert again.correlation_uncertainty == pytest.approx(found.correlation_uncertainty + 1e-4)


@pytest.mark.parametrize(("count", "strata"), [(24, 4), (8, 1)])
def test_the_interval_covers_the_truth_in_19_of_20_draws(
    count: int, strata: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of many orbitals in strata with different means and spreads, drawn 1,000 times; the
    first interval is Cochran's and Satterthwaite's."""
    monkeypatch.setattr(sizes, "EXACT_ROWS", count)
    monkeypatch.setattr(sizes, "EXACT_STRATA", strata)
    generator = np.random.default_rng(3)
    counts = [40, 37]
    fitted = [generator.normal(-0.05, 0.02, n) for n in counts]
    missed = [generator.normal(np.linspace(0, 3e-6, n), 1e-6) for n in counts]
    exact = [f - d for f, d in zip(fitted, missed, strict=True)]
    truth = math.fsum(np.concatenate(exact))
    found = np.array([estimate(fitted, exact, drawn(counts, seed)) for seed in range(1000)])
    assert 0.93 < (np.abs(found[:, 0] - truth) <= found[:, 1]).mean() < 0.975
    assert abs(found[:, 0].mean() - truth) < 4 * found[:, 0].std() / math.sqrt(len(found))
    assert np.median(found[:, 1]) < 1e-4
    terms = []
    for spin, of_spin in enumerate(drawn(counts, 0)):
        for stratum, pick in of_spin:
            size, n = len(stratum), len(pick)
            terms.append((size * (size - n) * np.var(missed[spin][pick], ddof=1) / n, n - 1))
    variance = sum(term for term, _ in terms)
    freedom = variance**2 / sum(term**2 / free for term, free in terms)
    assert found[0, 1] == pytest.approx(t.ppf(0.975, freedom) * math.sqrt(variance), rel=1e-9)


# --- with everything else -------------------------------------------------------------------------


def test_a_certificate_that_does_not_fit_is_refused_before_the_scf() -> None:
    """It needs more memory than the run alone, whose minimum budget does not suffice."""

    def least(**options: Any) -> int:
        heard = Heard()
        with pytest.raises(ResourceError) as refused:
            dfmp2.run(
                chain(WATER, 6), "cc-pvdz", memory=10**6, listener=heard, **{**PLAIN, **options}
            )
        assert not heard.energies
        return int(str(refused.value).split('memory="')[1].split("MB")[0])

    assert least() > least(certify_fit=False) + 10


@pytest.mark.parametrize(("name", "value"), [("MOST_BUILDS", 1), ("SAME_OCCUPIED", 1.1)])
def test_a_certificate_that_cannot_be_made_is_not_made_up(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The builds do not suffice, or lead to other orbitals."""
    monkeypatch.setattr(conventional, name, value)
    heard = Heard()
    result = dfmp2.run(WATER, "sto-3g", listener=heard, **PLAIN)
    assert result.fitting_certificate is None
    assert list(result.diagnostics.warnings) == heard.warnings
    recorded_texts(text for text in heard.warnings if "not certified" in text)
