"""Instabilities of the SCF solution: found, measured, followed to a minimum, recorded, and said in words that help."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import gto, scf

import dfmp2
from dfmp2 import pipeline
from dfmp2.case import instability
from dfmp2.checkpoint.encoding import newest
from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import ConvergenceError, InputError
from dfmp2.io import hdf5
from dfmp2.io.report import report
from dfmp2.io.study import read_study
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.record import Reference, Stability
from dfmp2.reference import following, rotations
from dfmp2.reference.stability import full_stability
from dfmp2.result import MP2Result
from dfmp2.solutions import Solutions
from dfmp2.units import BOHR_PER_ANGSTROM
from tests.conftest import Runner, succeed
from tests.faults import numbers

BENZENE = Path(__file__).parent.parent / "inputs" / "benzene.xyz"
FAR = -0.998721351  # Eh, H2 at 3 angstrom, cc-pVDZ with cc-pvdz-jkfit: PySCF's UHF from orbitals of its atoms
RHF_FAR = -0.826484078  # its RHF
TWO_ATOMS = 2 * -0.4992784  # Eh, H in cc-pVDZ


class Said(Listener):
    """Keeps warnings and stages."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.stages: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def stage(self, text: str) -> None:
        self.stages.append(text)


def atoms(*rows: tuple[str, float, float, float], multiplicity: int = 1) -> Molecule:
    """A molecule from positions in angstrom."""
    places = np.array([row[1:] for row in rows]) * BOHR_PER_ANGSTROM
    return Molecule(tuple(row[0] for row in rows), places, multiplicity=multiplicity)


def hydrogen(distance: float = 3.0, multiplicity: int = 1) -> Molecule:
    return atoms(("H", 0, 0, 0), ("H", 0, 0, distance), multiplicity=multiplicity)


NO2 = atoms(("N", 0, 0, 0), ("O", 1.0986, 0, 0.4677), ("O", -1.0986, 0, 0.4677), multiplicity=2)


def run(molecule: Molecule, basis: str = "cc-pvdz", **options: Any) -> tuple[MP2Result, Said]:
    said = Said()
    given = {"threads": 1, "allow_small_gap": True, "listener": said, **options}
    return dfmp2.run(molecule, basis, **given), said


def solutions(result: MP2Result) -> Solutions:
    assert result.reference.solutions is not None
    return result.reference.solutions


# --- the solution that is used ----------------------------------------------------------------------------------


def test_a_singlet_leaves_the_rhf_solution_and_says_how() -> None:
    result, said = run(hydrogen(), reference="uhf")
    assert result.scf_total_energy == pytest.approx(FAR, abs=1e-8)
    assert result.reference.spin_square == pytest.approx(0.9949, abs=1e-4)
    found = solutions(result)
    assert found.energy == pytest.approx((RHF_FAR, FAR), abs=1e-8)
    assert found.lowest_eigenvalue[0] == pytest.approx(-0.3595, abs=1e-4) and found.lowest_eigenvalue[1] > 0
    assert found.kind == ("UHF to UHF",) * 2 and (found.chosen, found.followed) == (2, 1)
    assert result.options.stability == "follow" and not [text for text in said.warnings if "unstable" in text]
    history = result.reference.history
    assert history is not None and history.shape == (result.reference.cycles, 3)
    np.testing.assert_allclose(np.diff(history[:, 0]), history[1:, 1], atol=1e-12)


@pytest.mark.parametrize("scf_type", ["df", "conventional"])
@pytest.mark.parametrize("guess", ["mix", "core"])
def test_guesses_end_in_the_same_minimum(guess: str, scf_type: str) -> None:
    result, _ = run(hydrogen(), reference="uhf", guess=guess, scf=scf_type)
    assert result.scf_total_energy == pytest.approx(FAR, abs=1e-6)
    assert result.reference.start.startswith({"mix": "atomic densities, HOMO and LUMO", "core": "core Ham"}[guess])
    assert solutions(result).followed == (guess == "core")  # a mixed start has left the RHF solution already


def test_orbitals_of_a_triplet_do_not_collapse(tmp_path: Path) -> None:
    triplet, _ = run(hydrogen(multiplicity=3))
    dfmp2.write(triplet, tmp_path / "triplet.h5")
    result, _ = run(hydrogen(), reference="uhf", scf_from=str(tmp_path / "triplet.h5"))
    assert result.scf_total_energy == pytest.approx(FAR, abs=1e-8)


def test_the_curve_of_a_scan_ends_at_two_atoms(call: Runner, folder: Path) -> None:
    arguments = ("--bond", "1,2", "0.74:6.74:4", "--basis", "cc-pvdz", "--reference", "uhf", "--allow-small-gap")
    found = succeed(call("scan", "h2.xyz", *arguments, "--json")).json["table"]
    assert found["scf_total_energy"][-1] == pytest.approx(TWO_ATOMS, abs=2e-5)
    runs = read_study(folder / "h2.scan.h5").runs.values()
    assert [solutions(one).followed for one in runs] == [0, 1, 0, 0]  # broken once, handed on from there


def test_diis_that_climbs_back_is_replaced_by_the_second_order_solver() -> None:
    """NO2: DIIS returns to the symmetric solution from 7e-6 Eh below it."""
    result, _ = run(NO2, reference="uhf")
    found = solutions(result)
    assert found.energy[0] - found.energy[1] == pytest.approx(2.8e-5, abs=2e-6)
    assert found.lowest_eigenvalue[0] < -2e-3 and found.lowest_eigenvalue[1] > 2e-3
    assert result.reference.ladder == ("DIIS", "second order")


def test_rhf_is_followed_to_a_lower_rhf() -> None:
    """C2: PySCF's RHF does the same from the orbitals that its own analysis hands back."""
    mf = scf.RHF(gto.M(atom="C 0 0 0; C 0 0 1.25", basis="6-31g", verbose=0)).density_fit(
        auxbasis="def2-universal-jkfit"
    )
    mf.run(conv_tol=1e-11)
    higher = mf.e_tot
    mf.kernel(mf.make_rdm1(mf.stability()[0], mf.mo_occ))
    carbon = atoms(("C", 0, 0, 0), ("C", 0, 0, 1.25))
    result, said = run(carbon, "6-31g", stability="follow", scf_auxbasis="def2-universal-jkfit")
    found = solutions(result)
    assert found.energy == pytest.approx((higher, mf.e_tot), abs=1e-7) and higher - mf.e_tot > 0.015
    assert found.kind == ("RHF to RHF", "RHF to UHF")  # the first was followed, the second cannot be
    (text,) = [text for text in said.warnings if "unstable" in text]
    assert "unstable (RHF to UHF)" in text and "--reference uhf finds it" in text and "did not end" not in text


# --- several starts -----------------------------------------------------------------------------------------------


def test_the_lowest_of_several_starts_is_kept_and_is_the_same_again() -> None:
    first, second = (run(hydrogen(2.0), reference="uhf", scf_starts=3, stability="off")[0] for _ in range(2))
    found = solutions(first)
    assert found.start == (1, 2, 3) and found.energy == solutions(second).energy
    assert first.scf_total_energy == min(found.energy) == found.energy[found.chosen - 1]
    assert found.energy[0] > min(found.energy) + 0.01  # the atomic start stays at the RHF solution
    assert first.reference.start == f"atomic densities, turned at random ({found.start[found.chosen - 1]})"


def test_a_start_that_fails_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    random = following.random_density

    def failing(mf: Any, density: Any, number: int) -> Any:
        if number == 2:
            raise ConvergenceError("planted")
        return random(mf, density, number)

    monkeypatch.setattr(following, "random_density", failing)
    result, _ = run(hydrogen(), "sto-3g", reference="uhf", scf_starts=3)
    found = solutions(result)
    assert np.isnan(found.energy[found.start.index(2)]) and 3 in found.start
    assert result.to_dict()["scf_solutions"]["found"][found.start.index(2)]["energy"] is None
    assert "not converged" in report(result)


def test_starts_that_all_fail_end_the_run() -> None:
    with pytest.raises(ConvergenceError, match="did not converge in 2 cycles"):
        run(NO2, "sto-3g", scf_starts=2, scf_max_cycles=2)


# --- the eigenvector --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "distance"), [("RHF", 0.9), ("UHF", 0.9), ("RHF", 2.0), ("UHF", 2.0)])
def test_lowest_eigenvalue_is_that_of_the_whole_hessian(kind: str, distance: float) -> None:
    """PySCF's own Hessian products on every unit vector, in four-centre integrals."""
    from pyscf.scf import stability as theirs
    from pyscf.soscf import newton_ah

    mf = getattr(scf, kind)(gto.M(atom=f"H 0 0 0; F 0 0 {distance}", basis="6-31g", verbose=0)).run(
        conv_tol=1e-12, max_cycle=200
    )
    assert mf.converged
    if kind == "RHF":
        _, hop, diagonal = newton_ah.gen_g_hop_rhf(mf, mf.mo_coeff, mf.mo_occ)
        external = theirs._gen_hop_rhf_external(mf)
        products = [(hop, diagonal.size, 0.5), (external[2], external[3].size, 1.0)]
    else:
        _, hop, diagonal = newton_ah.gen_g_hop_uhf(mf, mf.mo_coeff, mf.mo_occ)
        products = [(hop, diagonal.size, 1.0)]
    lowest = min(
        scale * np.linalg.eigvalsh(np.array([np.asarray(product(row)).real for row in np.eye(size)]))[0]
        for product, size, scale in products
    )
    assert full_stability(mf).lowest_eigenvalue == pytest.approx(lowest, abs=2e-5)


@pytest.mark.parametrize("method", ["auto", "full"])
def test_the_energy_along_the_eigenvector_is_that_of_determinants(method: str) -> None:
    """H2 at 3 angstrom: a tenth of PySCF's gain at least, and never more than all of it."""
    result, _ = run(hydrogen(), stability=method)
    found = result.reference.stability
    assert found is not None and found.energy_gain is not None
    assert 0.8 * (RHF_FAR - FAR) < found.energy_gain < RHF_FAR - FAR


def test_energy_along_a_rotation_is_quadratic_with_its_eigenvalue() -> None:
    mf = scf.UHF(gto.M(atom="N 0 0 0; H 0 0.8 0.6; H 0 -0.8 0.6", basis="6-31g", spin=1, verbose=0)).run(conv_tol=1e-12)
    rotation = rotations.lowest_rotation(mf, rotations.UHF)
    assert rotation is not None
    norm = sum(float(np.vdot(x, x)) for x in rotation.vectors)
    angle = 0.01
    assert rotations.energy_along(mf, rotation)(angle) == pytest.approx(angle**2 * norm * rotation.eigenvalue, rel=1e-3)


# --- what is said ---------------------------------------------------------------------------------------------------


def test_benzene_is_unstable_and_its_mp2_is_not_called_meaningless() -> None:
    """UHF lies 2.5 mEh below RHF."""
    said = Said()
    dfmp2.run(BENZENE, "cc-pvdz", threads=1, listener=said, precision="mixed")
    (text,) = said.warnings
    assert "unstable (RHF to UHF)" in text and "--reference uhf finds it" in text and "meaningless" not in text


def test_hydrogen_far_apart_is(tmp_path: Path) -> None:
    result, said = run(hydrogen())
    dfmp2.write(result, tmp_path / "x.h5")
    assert dfmp2.read(tmp_path / "x.h5").reference.stability == result.reference.stability
    (text,) = [text for text in said.warnings if "unstable" in text]
    assert "lowest eigenvalue -0.3595 Eh" in text and "1.5e-01 Eh below, and MP2 on this one may be mean" in text


def test_advice_never_repeats_what_was_asked_for() -> None:
    base, _ = run(hydrogen(), "sto-3g")
    unstable = Stability("unstable (UHF to UHF)", "", -0.1, 1e-3)
    rows = Solutions((1,) * 6, ("x",) * 6, (0.0,) * 6, (0.0,) * 6, (-0.1,) * 6, ("UHF to UHF",) * 6, 6)
    uhf = dataclasses.replace(base.reference, kind="uhf", stability=unstable, solutions=rows, spin_square=0.0)

    def said(reference: Reference = uhf, **options: Any) -> str:
        return instability(reference, Options(basis="x", **options).settled(1), 1)

    assert "--stability follow finds it" in said(stability="auto", reference=uhf) and "meaningless" not in said()
    left = said(**{"reference": uhf, "stability": "follow"})
    assert "5 steps along instabilities did not end in a minimum" in left
    assert "Try --guess mix or --scf-starts 10" in left
    assert "Try --scf-starts 10" in said(stability="follow", guess="mix")
    assert "Try --guess mix" in said(stability="follow", scf_starts=10)
    assert "Try another --scf-from" in said(stability="follow", guess="mix", scf_starts=10)
    assert "in PySCF" in said(dataclasses.replace(uhf, ladder=("given",)))
    assert "may be meaningless" in said(dataclasses.replace(uhf, spin_square=0.5))


def test_an_adopted_mean_field_is_not_followed() -> None:
    mf = scf.UHF(gto.M(atom="H 0 0 0; H 0 0 3", basis="cc-pvdz", verbose=0)).run()
    with pytest.raises(InputError, match=r"follow.*already been done.*full, auto or off"):
        dfmp2.from_mean_field(mf, stability="follow")
    with pytest.raises(InputError, match="guess belongs to the SCF"):
        dfmp2.from_mean_field(mf, guess="mix")
    found = dfmp2.from_mean_field(mf, stability="full", allow_small_gap=True, listener=Said()).reference.stability
    assert found is not None and found.lowest_eigenvalue == pytest.approx(-0.3595, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--guess", "mix"), "--guess mix.*RHF.*--reference uhf"),
        (("--guess", "mix", "--reference", "rhf"), "--guess mix"),
        (("--guess", "core", "--scf-from", "x.h5"), "--guess core and --scf-from x.h5"),
        (("--scf-starts", "0"), "--scf-starts 0: expected a whole number"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(options: tuple[str, ...], match: str, call: Runner) -> None:
    for command in ("run", "plan", "prepare"):
        done = call(command, "h2.xyz", "--basis", "sto-3g", *options)
        assert done.code == 3 and re.search(match, done.message), done.err


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_solutions_are_stored_and_shown(call: Runner, folder: Path) -> None:
    arguments = ("--basis", "sto-3g", "--reference", "uhf", "--allow-small-gap", "--scf-starts", "2")
    done = succeed(call("run", "h2-far.xyz", *arguments, "--output", "x.h5", "--json"))
    stored = dfmp2.read(folder / "x.h5")
    found = solutions(stored)
    assert done.json["scf_solutions"]["chosen"] == found.chosen
    assert [row["energy"] for row in done.json["scf_solutions"]["found"]] == list(found.energy)
    assert stored.options.scf_starts == 2 and stored.options.stability == "follow"
    text = succeed(call("show", "x.h5")).out
    assert "<- used" in text and f"{found.energy[0]:.10f}" in text
    succeed(call("report", "x.h5", "-o", "x.html"))
    assert "SCF solutions in the order" in (folder / "x.html").read_text()
    succeed(call("compare", "x.h5"))  # PySCF's integrals lead to the same solution


def test_prepared_in_two_parts_it_is_the_same(call: Runner, folder: Path) -> None:
    arguments = ("h2-far.xyz", "--basis", "sto-3g", "--reference", "uhf", "--allow-small-gap", "--threads", "1")
    whole = succeed(call("run", *arguments, "--json")).json
    succeed(call("prepare", *arguments, "--output", "x.prepared.h5"))
    arguments = ("--from", "x.prepared.h5", "--output", "y.h5", "--threads", "1", "--json")
    parts = succeed(call("energy", *arguments)).json
    for name in ("scf_total_energy", "mp2_total_energy", "scf_solutions", "stability"):
        assert parts[name] == whole[name]


def test_resumed_from_any_saved_state_while_following() -> None:
    options = Options(basis="cc-pvdz", reference="uhf", threads=1, scf_starts=2, allow_small_gap=True)

    def compute(journal: Journal | None = None) -> dict[str, bytes]:
        return numbers(hdf5.to_bytes(pipeline.run(hydrogen(), options, listener=Said(), journal=journal)))

    class File:
        path = "in memory"

        def __init__(self) -> None:
            self.contents: list[bytes] = []

        def save(self, content: bytes) -> None:
            self.contents.append(content)

    whole, file = compute(), File()
    assert compute(Journal(file, every=0.0)) == whole
    for content in file.contents[::6]:
        assert compute(Journal(File(), newest(content), every=0.0)) == whole


def test_defaults_depend_on_the_reference_and_old_results_still_answer(call: Runner, folder: Path) -> None:
    """Results of older versions have --stability auto: for RHF that is what the default still means."""
    succeed(call("run", "h2.xyz", "--basis", "sto-3g", "--stability", "auto", "--output", "x.h5"))
    done = succeed(call("run", "h2.xyz", "--basis", "sto-3g", "--output", "x.h5", "--resume"))
    assert "is complete: nothing is computed" in done.err
    assert Options(basis="x").settled(1).stability == "auto"
    assert (
        Options(basis="x").settled(2).stability == Options(basis="x", reference="uhf").settled(1).stability == "follow"
    )
    assert Options(basis="x", stability="off").settled(2).stability == "off"
