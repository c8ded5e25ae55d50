"""Reference determinants: PySCF energies, the rescue ladder, start densities, adoption of foreign mean fields."""

from __future__ import annotations

import numpy as np
import pytest
from pyscf import dft, gto, scf
from pyscf.mp import dfmp2_native, dfump2_native

import dfmp2
from dfmp2 import pipeline
from dfmp2.errors import ConvergenceError, InputError, NumericalError
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.reference import guess, mean_field
from dfmp2.reference.basis import resolve_orbital
from dfmp2.reference.mole import build_mole

WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"


def pyscf_mole(atom=WATER, **options):
    return gto.M(atom=atom, basis="cc-pvdz", verbose=0, **options)


def built(molecule, basis="cc-pvdz"):
    return build_mole(molecule, resolve_orbital(basis, molecule.elements), 10**9)


def water(**changes):
    mole = pyscf_mole()
    return Molecule(("O", "H", "H"), mole.atom_coords(), **changes)


def test_start_density_is_that_of_pyscf():
    ours, theirs = guess.start_density(built(water()), "rhf"), scf.hf.init_guess_by_minao(pyscf_mole())
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_start_density_outside_a_potential_is_that_of_pyscf():
    mole = built(Molecule(("I", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 3.04]])), "def2-svp")
    assert mole.nelectron == 26
    np.testing.assert_allclose(guess.start_density(mole, "rhf"), scf.hf.init_guess_by_minao(mole), atol=1e-12)


@pytest.mark.parametrize(("scf_type", "fit"), [("df", "cc-pvdz-jkfit"), ("conventional", None)])
def test_scf_energy_equals_pyscf(scf_type, fit):
    mf = scf.RHF(pyscf_mole())
    mf = (mf.density_fit(auxbasis=fit) if fit else mf).set(conv_tol=1e-12).run()
    result = dfmp2.run(water(), "cc-pvdz", scf=scf_type, stability="off")
    assert result.scf_total_energy == pytest.approx(mf.e_tot, abs=2e-10)
    assert result.reference.scf_type == scf_type


def test_df_and_conventional_scf_differ_by_the_known_amount():
    """-0.2039736135 (DF-SCF) and -0.2039883827 Eh (conventional) with cc-pvdz-ri: PySCF's own values."""
    df, conventional = (
        dfmp2.run("inputs/h2o.xyz", "cc-pvdz", scf=kind, precision="fp64", stability="off")
        for kind in ("df", "conventional")
    )
    assert df.mp2_correlation_energy == pytest.approx(-0.2039736135, abs=2e-9)
    assert conventional.mp2_correlation_energy == pytest.approx(-0.2039883827, abs=2e-9)


class Recorder(Listener):
    def __init__(self):
        self.cycles, self.stages = [], []

    def scf_cycle(self, cycle, energy, change, gradient):
        self.cycles.append(cycle)

    def stage(self, text):
        self.stages.append(text)


def climb(limit, converging_rung=None):
    """The ladder on a fake mean field that converges on one rung only."""
    runs = []

    class Fake:
        converged = False
        mo_coeff = mo_occ = None

        def kernel(self, *_):
            rung = "newton" if isinstance(self, Newton) else "shift" if self.level_shift else "diis"
            runs.append((rung, self.max_cycle))
            for _ in range(self.max_cycle + isinstance(self, Newton)):
                self.callback({"e_tot": -1.0, "norm_gorb": 1.0, "fock": None, "s1e": None, "x_orth": None})
            self.converged = rung == converging_rung

        def make_rdm1(self):
            return np.eye(1)

        def eig(self, fock, overlap, x):
            return None, None

        def get_occ(self, energy, coeff):
            return None

        def newton(self):
            other = Newton()
            other.callback = self.callback
            return other

    class Newton(Fake):
        level_shift = 0.0

    listener = Recorder()
    options = Options(basis="x", scf_max_cycles=limit)
    try:
        _, ladder, history = mean_field._climb(Fake(), np.eye(1), options, listener)
    except ConvergenceError as error:
        return runs, None, listener.cycles, str(error)
    return runs, ladder, len(history), None


def test_ladder_climbs_inside_the_cycle_limit():
    runs, ladder, cycles, _ = climb(100, "newton")
    assert runs == [("diis", 60), ("shift", 20), ("newton", 19)]
    assert ladder == ["DIIS", "level shift", "second order"]
    assert cycles == 100


def test_ladder_stops_at_the_rung_that_converges():
    assert climb(100, "shift")[0] == [("diis", 60), ("shift", 20)]


@pytest.mark.parametrize("limit", [1, 7, 40, 41, 99])
def test_cycle_limit_is_hard(limit):
    runs, _, cycles, message = climb(limit)
    assert sum(n + (rung == "newton") for rung, n in runs) == limit == len(cycles)
    assert f"in {limit} cycles" in message


def test_unconverged_scf_gives_no_energy():
    with pytest.raises(ConvergenceError, match=r"--scf-max-cycles"):
        dfmp2.run(water(), "cc-pvdz", scf_max_cycles=2)


def test_second_order_rung_converges_for_real(monkeypatch):
    """DIIS and level shift cut to nothing useful: the second-order solver must finish the job."""
    monkeypatch.setattr(mean_field, "DIIS_LEAST", 1)
    monkeypatch.setattr(mean_field, "DIIS_SHARE", 0.02)
    monkeypatch.setattr(mean_field, "SHIFT_SHARE", 0.02)
    rescued = dfmp2.run(water(), "cc-pvdz", stability="off")
    assert rescued.reference.ladder == ("DIIS", "level shift", "second order")
    assert rescued.mp2_total_energy == pytest.approx(dfmp2.run(water(), "cc-pvdz").mp2_total_energy, abs=2e-8)


@pytest.mark.parametrize("fit", [None, "cc-pvdz-jkfit"])
def test_restricted_mean_field_is_adopted(fit):
    mf = scf.RHF(pyscf_mole())
    mf = (mf.density_fit(auxbasis=fit) if fit else mf).run(conv_tol=1e-11)
    result = dfmp2.from_mean_field(mf, precision="fp64")
    native = dfmp2_native.DFRMP2(mf, auxbasis="cc-pvdz-ri").run()
    assert result.mp2_correlation_energy == pytest.approx(native.e_corr, abs=1e-11)
    assert result.mp2_total_energy == pytest.approx(native.e_tot, abs=1e-10)
    assert result.reference.scf_type == ("df" if fit else "conventional")


def test_unrestricted_mean_field_is_adopted_with_frozen_core():
    mf = scf.UHF(pyscf_mole("O 0 0 0; O 0 0 1.2", spin=2)).run(conv_tol=1e-11)
    result = dfmp2.from_mean_field(mf, "cc-pvdz-ri", precision="fp64", frozen_core="auto")
    assert result.sizes.frozen_core == 2
    native = dfump2_native.DFUMP2(mf, frozen=2, auxbasis="cc-pvdz-ri").run()
    assert result.mp2_correlation_energy == pytest.approx(native.e_corr, abs=1e-11)


def refused(mf, error, match, **options):
    with pytest.raises(error, match=match):
        dfmp2.from_mean_field(mf, **options)


def test_foreign_mean_fields_are_refused():
    mole, radical = pyscf_mole(), pyscf_mole("N 0 0 0; H 0 0.8 0.6; H 0 -0.8 0.6", spin=1)
    refused(dft.RKS(mole), InputError, "Kohn-Sham")
    refused(scf.ROHF(radical), InputError, "ROHF")
    refused(scf.GHF(mole), InputError, "GHF")
    refused(scf.RHF(mole), ConvergenceError, "not converged")
    refused(scf.RHF(pyscf_mole(cart=True)).run(), InputError, "Cartesian")
    refused(scf.RHF(mole).run(), InputError, "belongs to the SCF", scf_max_cycles=3)
    refused(object(), InputError, "object")


def with_gap(gap):
    """Water whose virtual orbital energies are shifted down to the given gap."""
    mf = scf.RHF(pyscf_mole()).run()
    mf.mo_energy[5:] += gap - (mf.mo_energy[5] - mf.mo_energy[4])
    return mf


def test_small_gap_is_warned_refused_or_allowed(monkeypatch):
    """The orbital energies are made up, which would be refused for itself."""
    monkeypatch.setattr(pipeline, "require_repeatable", lambda *_: None)
    with pytest.warns(UserWarning, match=r"gap is only 0\.0500 Eh"):
        dfmp2.from_mean_field(with_gap(0.05))
    refused(with_gap(0.01), NumericalError, r"0\.0100 Eh.*--allow-small-gap")
    with pytest.warns(UserWarning, match=r"gap is only 0\.0100 Eh"):
        dfmp2.from_mean_field(with_gap(0.01), allow_small_gap=True)
    refused(with_gap(-0.01), NumericalError, "must be positive", allow_small_gap=True)


@pytest.mark.parametrize(("distance", "verdict"), [(1.4, "stable"), (4.0, "unstable (RHF to UHF)")])
@pytest.mark.parametrize("method", ["auto", "full"])
def test_stretched_hydrogen_is_unstable_towards_uhf(distance, verdict, method):
    """The Coulson-Fischer point of H2 is near 2.3 bohr."""
    h2 = Molecule(("H", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, distance]]))
    result = dfmp2.run(h2, "cc-pvdz", stability=method, listener=Recorder() if distance < 2 else Muted())
    assert result.reference.stability.verdict.startswith(verdict.rstrip(")"))


class Muted(Listener):
    def warning(self, text):
        pass


def test_lowest_hessian_eigenvalue_equals_pyscf():
    """Triplet block of water, against PySCF's own Hessian-vector product in the conventional integrals."""
    from pyscf.scf import stability as theirs

    mf = scf.RHF(pyscf_mole()).run(conv_tol=1e-12)
    found = dfmp2.from_mean_field(mf, stability="auto").reference.stability
    hop, diagonal = theirs._gen_hop_rhf_external(mf)[2:4]
    matrix = np.array([hop(row) for row in np.eye(diagonal.size)])
    assert found.lowest_eigenvalue == pytest.approx(np.linalg.eigvalsh(matrix)[0], abs=1e-3)


def test_every_iteration_is_recorded_and_kept(tmp_path):
    result = dfmp2.run("inputs/h2o.xyz", "cc-pvdz", stability="off")
    history = result.reference.history
    assert history.shape == (result.reference.cycles, 3)
    assert history[-1, 0] == pytest.approx(result.scf_total_energy, abs=1e-12)
    np.testing.assert_allclose(np.diff(history[:, 0]), history[1:, 1], atol=1e-12)
    assert abs(history[-1, 1]) < result.options.scf_conv_tol and history[-1, 2] < result.options.scf_gradient_tol
    dfmp2.write(result, tmp_path / "h2o.h5")
    np.testing.assert_array_equal(dfmp2.read(tmp_path / "h2o.h5").reference.history, history)
