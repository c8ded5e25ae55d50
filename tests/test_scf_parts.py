"""The bookkeeping of an SCF: decisions, counts and bounds, with made-up mean fields and explicit
sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyscf import df, gto, lib, scf
from scipy import linalg

import dfmp2
from dfmp2.errors import ConvergenceError
from dfmp2.host.threads import shares
from dfmp2.integrals import screening
from dfmp2.integrals.basis_on_grid import BasisOnGrid
from dfmp2.integrals.metric import MetricFactor
from dfmp2.integrals.screening import every_pair
from dfmp2.options import Options
from dfmp2.progress import Silent
from dfmp2.scf import following, jk, jk_on_disk, ladder, response_matrices, rotations, solvent
from dfmp2.scf.following import find_solution
from dfmp2.scf.jk import JKFitting
from dfmp2.scf.ladder import Ladder, SingleSchedule
from dfmp2.scf.reference import Reference, Solutions, Stability, common_orbitals
from dfmp2.scf.response_matrices import ResponseMatrices
from dfmp2.scf.rotations import BROKEN, RHF, UHF, RotatedSpin, Rotation
from dfmp2.scf.stability import Examination
from tests.awkward import MOLECULES, mole_of
from tests.conftest import Heard
from tests.recorded import recorded_error, recorded_texts

# --- the ladder of convergence methods ------------------------------------------------------------


class MadeUp:
    """A mean field whose iterations have given energies and gradients, rung by rung.

    Each rung takes as many from its list as it may; the last one converges.
    """

    def __init__(self, rows: list[tuple[float, float]]) -> None:
        self.rows = rows
        self.converged = False
        self.mol = SimpleNamespace(nao=10)
        self.level_shift: Any = None
        self.DIIS: Any = None
        self.callback: Any = None
        self.check_convergence: Any = None
        self.max_cycle = 0
        self.seen: list[tuple[str, int, float, Any]] = []
        self.mo_coeff, self.mo_occ = np.eye(2), np.array([2.0, 0.0])
        self.number = 0
        self.mo_energy: Any = None

    def envs(self, energy: float, gradient: float) -> dict[str, Any]:
        self.number += 1
        self.mo_coeff = self.number * np.eye(2)
        return {
            "e_tot": energy,
            "last_hf_e": energy + 1e-3,
            "norm_gorb": gradient,
            "conv_tol": 1e-8,
            "conv_tol_grad": 1e-5,
            "mo_coeff": self.mo_coeff,
            "mo_occ": self.mo_occ,
            "dm": np.eye(2),
            "fock": f"F{self.number}",
            "s1e": "S",
            "x_orth": "X",
        }

    def eig(self, fock: str, overlap: str, x: str) -> tuple[Any, Any]:
        return f"energies of {fock} {overlap} {x}", 7 * self.mo_coeff

    def get_occ(self, energy: str, coeff: Any) -> Any:
        return f"occupations of {energy}", coeff[0, 0]

    def kernel(self, density: Any) -> None:
        name = {ladder.adiis(): "ADIIS"}.get(self.DIIS, "DIIS")
        self.seen.append((name, self.max_cycle, self.level_shift, density))
        for _ in range(self.max_cycle):
            if not self.rows:
                self.converged = True
                return
            envs = self.envs(*self.rows.pop(0))
            ends = self.check_convergence(envs)
            self.callback(envs)
            if ends:
                self.converged = True
                return

    def newton(self) -> Any:
        outer = self

        class Solver(SimpleNamespace):
            def kernel(self, coeff: Any, occ: Any) -> None:
                outer.seen.append(("second order", self.max_cycle, outer.level_shift, coeff))
                envs = None
                for imacro in range(self.max_cycle):
                    if not outer.rows:
                        self.converged = True
                        break
                    envs = {**outer.envs(*outer.rows.pop(0)), "imacro": imacro}
                    assert outer.check_convergence is None
                    self.callback(envs)
                if envs is not None:
                    self.callback(envs)  # the last one again, as in PySCF

            def make_rdm1(self, *given: Any) -> Any:
                return outer.make_rdm1(*given)

        return Solver(
            converged=False,
            callback=self.callback,
            check_convergence=None,
            mol=self.mol,
            mo_coeff=self.mo_coeff,
            mo_occ=self.mo_occ,
        )

    def make_rdm1(self, *orbitals: Any) -> Any:
        return ("density", float((orbitals[0] if orbitals else self.mo_coeff)[0, 0]))


@pytest.fixture
def one_density(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last orbitals of `MadeUp` have the density of its last Fock matrix."""
    monkeypatch.setattr(ladder, "_other_density", lambda *_: False)


def flat(count: int) -> list[tuple[float, float]]:
    """Iterations that make no progress but do not climb."""
    return [(-1.0 - 1e-6 * n, 0.5) for n in range(count)]


@pytest.mark.parametrize(
    ("limit", "cycles"),
    [
        (100, [("DIIS", 60, 0.0), ("DIIS", 20, 0.3), ("second order", 20, 0.0)]),
        (50, [("DIIS", 40, 0.0), ("DIIS", 10, 0.3)]),
        (70, [("DIIS", 42, 0.0), ("DIIS", 14, 0.3), ("second order", 14, 0.0)]),
        (3, [("DIIS", 3, 0.0)]),
    ],
)
def test_each_rung_has_its_share_of_the_cycles(
    limit: int, cycles: list[tuple[str, int, float]]
) -> None:
    """60 % for DIIS, but at least 40; 20 % with a level shift; the rest for the second-order
    solver, whose last iteration PySCF reports twice: the error names its change, not zero."""
    made, heard = MadeUp(flat(2 * limit)), Heard()
    options = Options(basis="sto-3g", scf_max_cycles=limit)
    climbed = Ladder(made, options, heard)
    with recorded_error(ConvergenceError):
        climbed.climb("start")
    assert ladder.LEVEL_SHIFT == 0.3
    assert [one[:3] for one in made.seen] == cycles
    names = ["DIIS", "level shift", "second order"][: len(cycles)]
    assert climbed.rungs == names
    assert made.seen[0][3] == "start"
    if len(cycles) > 1:  # each starts from the last orbitals of the one before
        assert made.seen[1][3] == ("density", float(cycles[0][1]))
    assert sum(n for _, n, _ in cycles) == limit == len(climbed.history)
    said = [
        f"SCF not converged by {name} in {n} cycles"
        for name, (_, n, _) in zip(names, cycles, strict=True)
    ]
    assert heard.stages == said


@pytest.mark.usefixtures("one_density")
def test_iterations_are_recorded_with_their_changes() -> None:
    rows = [(-3.0, 0.4), (-3.5, 0.2), (-3.4, 0.1)]
    made, heard, saved = MadeUp(list(rows)), Heard(), []
    climbed = Ladder(
        made, Options(basis="sto-3g"), heard, lambda coeff, occ: saved.append((coeff, occ))
    )
    assert climbed.climb("start") is made
    assert made.callback is None and made.check_convergence is None
    # The orbitals are those of the last Fock matrix itself.
    assert made.mo_energy == "energies of F3 S X" and made.mo_coeff[0, 0] == 21.0
    assert made.mo_occ == ("occupations of energies of F3 S X", 21.0)
    made.mo_occ = np.array([2.0, 0.0])
    expected = [(-3.0, 0.0, 0.4), (-3.5, -0.5, 0.2), (-3.4, pytest.approx(0.1), 0.1)]
    assert climbed.history == expected
    assert heard.cycles == [(n + 1, *row) for n, row in enumerate(expected)]
    assert [coeff[0, 0, 0] for coeff, _ in saved] == [1.0, 2.0, 3.0]
    assert saved[0][0].shape == (1, 2, 2) and saved[0][1].tolist() == [[2.0, 0.0]]
    # Occupations of both spins of UHF, and those of ROHF, which PySCF has in one row.
    envs = {**made.envs(-3.0, 0.1), "mo_coeff": np.ones((2, 3, 3)), "mo_occ": np.ones((2, 3))}
    climbed._record(envs)
    assert saved[-1][0].shape == (2, 3, 3) and saved[-1][1].shape == (2, 3)
    envs = {**made.envs(-3.0, 0.1), "mo_occ": np.array([2.0, 1.0]), "dm": np.ones((2, 2, 2))}
    climbed._record(envs)
    assert saved[-1][1].tolist() == [[1.0, 1.0], [1.0, 0.0]] and saved[-1][0].shape == (2, 2, 2)


@pytest.mark.usefixtures("one_density")
def test_a_climb_is_given_up_for_adiis_and_back() -> None:
    """DIIS stays above its lowest energy, the third, for eight iterations; ADIIS goes on from there
    until it is calm, at least four iterations; then DIIS again."""
    rows = [(-3.0, 0.4), (-3.5, 0.3), (-4.0, 0.2), *[(-3.9, 0.2)] * 9]
    calm = [(-4.1, 0.004)] * 3 + [(-4.1, 0.006), (-4.1, 0.004)]
    made, heard = MadeUp([*rows, *calm, (-4.2, 0.001)]), Heard()
    climbed = Ladder(made, Options(basis="sto-3g"), heard)
    climbed.climb("start")
    assert climbed.rungs == ["DIIS", "ADIIS", "DIIS"]
    # PySCF calls this before the iteration is recorded: for the twelfth, after eleven.
    assert made.seen[0][:2] == ("DIIS", 60)
    assert made.seen[1] == ("ADIIS", 60 - 12, 0.0, ("density", 3.0))
    used = 12 + 5
    assert made.seen[2][:2] == ("DIIS", 60 - used)
    assert made.seen[2][3] == ("density", float(used))
    turned = Ladder(MadeUp([*rows]), Options(basis="sto-3g"), Heard(), turned=True)
    turned.climb("start")
    assert turned.rungs == ["DIIS"]


def test_the_second_order_solver_goes_alone_where_it_is_asked_to() -> None:
    made = MadeUp([(-1.0, 0.1)] * 3)
    climbed = Ladder(made, Options(basis="sto-3g", scf_max_cycles=30), Heard())
    solver = climbed.climb(None, second_order=True)
    assert climbed.rungs == ["second order"] and made.seen[0][1] == 30
    assert (solver.ah_conv_tol, solver.ah_lindep) == (1e-16, 1e-20)


@pytest.mark.usefixtures("one_density")
def test_flat_gradients_of_float32_or_of_an_earlier_rung_do_not_end_diis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four iterations of ADIIS and six of DIIS: the second-order solver is not needed. Float32
    products end after five iterations; eight in float64 then show that DIIS has stalled."""
    rows = [(-4.0, 0.2), *[(-3.9, 0.2)] * 9, *[(-4.1, 9e-4)] * 10]
    climbed = Ladder(MadeUp(rows), Options(basis="sto-3g"), Heard())
    climbed.climb("start")
    assert climbed.rungs == ["DIIS", "ADIIS", "DIIS"]
    monkeypatch.setattr(ladder, "SINGLE_LEAST", 10)
    made: Any = MadeUp([(-1.0, 5e-4)] * 20)
    made.with_df = SimpleNamespace(single=False, corrected=False, occupied_rows=False)
    heard = Heard()
    Ladder(made, Options(basis="sto-3g"), heard).climb("start")
    assert heard.stages == ["SCF not converged by DIIS in 14 cycles"]


def test_later_rungs_are_in_float64_on_the_final_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although DIIS has ended before it left float32."""
    for name, value in (("SINGLE_LEAST", 10), ("COARSE_LEAST", 10), ("DIIS_LEAST", 3)):
        monkeypatch.setattr(ladder, name, value)
    made: Any = MadeUp([(-1.0 - 1e-6 * n, 0.05) for n in range(20)])
    made.with_df = SimpleNamespace(single=False, corrected=False, occupied_rows=False)
    left: list[str] = []
    made.on_grid = SimpleNamespace(single=False, leave_coarse_grid=lambda: left.append("left"))
    with pytest.raises(ConvergenceError):
        Ladder(made, Options("sto-3g", scf_max_cycles=5), Heard()).climb("start")
    assert not any(vars(made.with_df).values()) and len(left) == 3


@pytest.mark.parametrize(
    ("energies", "gradient", "expected"),
    [
        ([-2.0, *[-1.9] * 8], 0.0011, True),
        ([-2.0, *[-1.9] * 7], 0.0011, False),
        ([-2.0, *[-1.9] * 7, -2.0], 0.0011, False),
        ([-2.0, *[-1.9] * 8], 0.001, False),
        ([-1.0, -2.0, *[-1.9] * 8], 0.1, True),
        ([-2.1, -2.0, *[-2.05] * 8], 0.1, True),
    ],
)
def test_a_climb_is_eight_iterations_above_the_lowest(
    energies: list[float], gradient: float, expected: bool
) -> None:
    assert ladder.climbed([(energy, 0.0, gradient) for energy in energies]) == expected


@pytest.mark.parametrize(
    ("before", "change", "gradient", "expected"),
    [
        (0.0, 0.9e-8, 0.9e-5, True),
        (0.0, -0.9e-8, 0.9e-5, True),
        (0.0, 1e-8, 0.9e-5, False),
        (0.0, 0.0, 1e-5, False),
        # Rounding: neighbouring numbers at 1e8 are 1.5e-8 apart; the gradient decides all the same.
        (-1e8, 1.8e-7, 0.9e-5, True),
        (-1e8, 3e-7, 0.9e-5, False),
        (-1e8, 0.0, 1e-5, False),
    ],
)
def test_convergence_is_below_both_limits_or_within_rounding(
    before: float, change: float, gradient: float, expected: bool
) -> None:
    envs = {"e_tot": before + change, "last_hf_e": before, "norm_gorb": gradient}
    assert ladder.converged({**envs, "conv_tol": 1e-8, "conv_tol_grad": 1e-5}) == expected


@pytest.mark.parametrize(
    ("at_anchor", "asked", "done"),
    [(1.9e-5, 1e-6, True), (2e-5, 1e-6, False), (1.9e-6, 1e-7, True), (2e-6, 1e-7, False)]
    + [(1.9e-5, 1e-3, True), (2e-5, 1e-3, False)],
)
def test_an_anchor_is_near_below_twenty_times_what_is_asked_for(
    at_anchor: float, asked: float, done: bool
) -> None:
    """It is also near below 2e-5 Eh in any case; otherwise another one follows."""
    on_grid = SimpleNamespace(single=False, anchored=False, renew=False, at_anchor=False)
    made = SingleSchedule(SimpleNamespace(), None, on_grid)
    envs = {"e_tot": 0.0, "last_hf_e": 0.0, "conv_tol": 1e-8, "conv_tol_grad": asked}
    assert not made.converged({**envs, "norm_gorb": 5e-4})
    on_grid.at_anchor = True
    made.converged({**envs, "norm_gorb": at_anchor})
    on_grid.at_anchor = False
    assert made.converged({**envs, "norm_gorb": 0.5e-7}) == done
    assert on_grid.renew != done


# --- solutions ------------------------------------------------------------------------------------


class Solution:
    """A made-up converged mean field."""

    def __init__(self, energy: float, name: str = "") -> None:
        self.e_tot, self.name = energy, name
        self.mo_occ = np.array([2.0, 0.0])
        self.mol = SimpleNamespace(spin=0)

    def make_rdm1(self, *orbitals: Any) -> Any:
        return orbitals


def way(kind: str, eigenvalue: float) -> Rotation:
    return Rotation(kind, eigenvalue, (np.zeros((1, 1)),) * 2, True)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the angle of every rotation; the energies along them are not computed."""
    stability = SimpleNamespace(verdict="made up")
    monkeypatch.setattr(
        following, "judged", lambda mf, lowest: (stability, {one.kind: 0.3 for one in lowest})
    )
    monkeypatch.setattr(following, "turned_orbitals", lambda mf, way, angle: (mf.name, angle))


@pytest.mark.usefixtures("judged")
@pytest.mark.parametrize(
    ("drop", "kinds", "steps"),
    [
        (1e-3, [RHF] * 9, 5),
        (1.1e-7, [RHF] * 9, 5),
        (0.9e-7, [RHF] * 9, 0),
        (1e-3, [BROKEN] * 9, 0),
        (1e-3, [UHF, UHF, BROKEN], 2),
    ],
)
def test_instabilities_are_followed_five_times_at_most(
    drop: float, kinds: list[str], steps: int
) -> None:
    """To solutions lower by 1e-7 Eh, with the same kind of reference."""
    solved: list[tuple[Any, dict[str, Any]]] = []

    def solve(density: Any, **how: Any) -> Any:
        solved.append((density, how))
        turned = len([1 for _, one in solved if "turned" in one])
        return (
            Solution(-1.0 - drop * turned, f"s{len(solved)}"),
            [f"r{len(solved)}"],
            [(-1.0, -0.25, 0.1)],
        )

    left = list(kinds)

    def examine(mf: Any) -> Examination:
        return Examination([way(left.pop(0), -0.01)], None)

    heard = Heard()
    options = Options(basis="sto-3g", stability="follow")
    found, solutions = find_solution(None, "start", "atoms", options, heard, solve, examine)
    assert solutions is not None and solved[0] == ("start", {"first": True})
    assert len(solutions.energy) == steps + 1 == solutions.chosen == found.place
    assert solutions.start == (1,) * (steps + 1) and solutions.origin == ("atoms",) * (steps + 1)
    assert solutions.spin_square == (0.0,) * (steps + 1)
    assert solutions.lowest_eigenvalue == (-0.01,) * (steps + 1)
    assert len(found.ladder) == len(found.history) == steps + 1
    # The first change of each section is that from the last energy of the one before.
    assert found.history[0] == (-1.0, -0.25, 0.1)
    assert all(row == (-1.0, 0.0, 0.1) for row in found.history[1:])
    if steps == 0 and drop == 0.9e-7:  # DIIS, then the second-order solver from the same orbitals
        assert solved[1] == (("s1", 0.3), {"turned": True})
        assert solved[2] == (None, {"orbitals": ("s1", 0.3)})
        assert len(solved) == 3
    assert len(heard.stages) == max(steps, int(drop == 0.9e-7))


@pytest.mark.usefixtures("judged")
def test_the_lowest_of_several_starts_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fourth is lower than the second by more than 1e-7 Eh, the third by less, and the fifth is
    not lower than the fourth by as much; the first and the last do not converge."""
    energies: dict[str, float | None] = {
        "start": None,
        "2": -1.0,
        "3": -1.0 - 0.9e-7,
        "4": -1.0 - 1.2e-7,
        "5": -1.0 - 1.9e-7,
        "6": None,
    }
    monkeypatch.setattr(following, "random_density", lambda mf, density, number: str(number))

    def solve(density: Any, **how: Any) -> Any:
        energy = energies[density]
        if energy is None:
            raise ConvergenceError("made up")
        return Solution(energy, density), ["DIIS"], [(energy, 0.0, 0.1)]

    options = Options(basis="sto-3g", stability="off", scf_starts=6)
    heard = Heard()
    found, solutions = find_solution(None, "start", "atoms", options, heard, solve, lambda mf: [])
    assert solutions is not None
    assert (found.mf.name, found.place, solutions.chosen) == ("4", 4, 4)
    origins = [f"atoms, rotated at random ({n})" for n in (2, 3, 4, 5, 6)]
    assert solutions.origin == ("atoms", *origins)
    assert solutions.energy == pytest.approx(
        [math.nan, *list(energies.values())[1:-1], math.nan], nan_ok=True
    )
    assert solutions.kind == ("",) * 6
    assert sum("orbitals rotated at random" in text for text in heard.stages) == 5
    for start in (1, 6):
        assert sum(f"start {start} did not converge" in text for text in heard.stages) == 1
    energies = dict.fromkeys(energies)
    with recorded_error(ConvergenceError):
        find_solution(None, "start", "atoms", options, heard, solve, lambda mf: [])
    alone = Options(basis="sto-3g", stability="off")
    energies = {"start": -1.0}
    assert find_solution(None, "start", "atoms", alone, heard, solve, lambda mf: [])[1] is None


@pytest.mark.usefixtures("judged")
def test_an_instability_that_cannot_be_followed_is_warned_of() -> None:
    def solve(density: Any, **how: Any) -> Any:
        if how.get("first"):
            return Solution(-1.0, "s1"), ["DIIS"], []
        raise ConvergenceError("it climbs")

    heard = Heard()
    options = Options(basis="sto-3g", stability="follow")
    found, solutions = find_solution(
        None,
        "start",
        "atoms",
        options,
        heard,
        solve,
        lambda mf: Examination([way(UHF, -0.01)], None),
    )
    assert solutions is not None and len(solutions.energy) == 2 and solutions.chosen == 1
    assert found.mf.name == "s1"
    recorded_texts(heard.warnings)
    # A mere check follows nothing; an eigenvalue equal to the threshold is not followed.
    for asked, eigenvalue in (("full", -0.01), ("follow", -following.UNCERTAIN)):
        options = Options(basis="sto-3g", stability=asked)
        found, solutions = find_solution(
            None,
            "start",
            "atoms",
            options,
            Heard(),
            solve,
            lambda mf, e=eigenvalue: Examination([way(UHF, e)], None),
        )
        assert found.place == 1 and (solutions is None) == (asked == "full")


@pytest.mark.parametrize(
    ("spin", "found", "expected"),
    [
        (1, 0.75 + 2e-10, 0.75 + 2e-10),
        (1, 0.75 + 0.5e-10, 0.75),
        (1, 0.7, 0.75),
        (2, 2.5, 2.5),
        (-2, 2.0, 2.0),
    ],
)
def test_spin_contamination_counts_from_rounding_on(
    spin: int, found: float, expected: float
) -> None:
    mf: Any = SimpleNamespace(
        mol=SimpleNamespace(spin=spin), mo_occ=np.ones((2, 3)), spin_square=lambda: (found, 1.0)
    )
    assert following.spin_square(mf) == expected
    mf.mo_occ = np.ones(3)
    assert following.spin_square(mf) == abs(spin) / 2 * (abs(spin) / 2 + 1)


@pytest.mark.parametrize(("nocc", "nvir"), [(3, 5), (4, 2), (1, 4)])
@pytest.mark.parametrize("angle", [0.0, 0.3, -1.7])
def test_rotated_orbitals_are_those_of_the_exponential(nocc: int, nvir: int, angle: float) -> None:
    """exp(angle (x - x^T)) applied to all orbitals, which stay orthonormal."""
    rng = np.random.default_rng(7)
    coeff = np.linalg.qr(rng.standard_normal((nocc + nvir,) * 2))[0]
    x = rng.standard_normal((nvir, nocc))
    spin = RotatedSpin(coeff[:, :nocc], coeff[:, nocc:], np.ones((nvir, nocc)))
    whole = np.zeros((nocc + nvir,) * 2)
    whole[nocc:, :nocc], whole[:nocc, nocc:] = x, -x.T
    expected = coeff @ linalg.expm(angle * whole)
    found = np.hstack(rotations.rotated(spin, x, angle))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(found.T @ found, np.eye(nocc + nvir), atol=1e-12)
    mf = SimpleNamespace(
        mo_coeff=coeff[:, ::-1],
        mo_occ=np.r_[np.zeros(nvir), np.full(nocc, 2.0)],
        mo_energy=np.arange(nocc + nvir, dtype=float),
    )
    (own,) = rotations.orbital_spins(mf)
    np.testing.assert_array_equal(own.occupied, coeff[:, nocc - 1 :: -1])
    np.testing.assert_array_equal(own.differences[0], -nvir - np.arange(nocc, dtype=float))
    turn = Rotation(RHF, -1.0, (x, x), True)
    turned, occupations = rotations.turned_orbitals(mf, turn, angle)
    both = rotations.rotated(own, x, angle)
    np.testing.assert_array_equal(turned, np.hstack(both[::-1]))
    np.testing.assert_array_equal(occupations, mf.mo_occ)


@pytest.mark.parametrize(
    ("energy", "expected"),
    [
        (lambda x: -(x**2) + 2 * x**4, (math.pi / 8, None)),
        (lambda x: x**2, (0.0, 0.0)),
        (lambda x: x + x**2, (-math.pi / 8, None)),
        (lambda x: -0.9e-9 if x else 0.0, (0.0, 0.0)),
        (lambda x: -1.1e-9 if abs(x) < 0.02 else 1.0, (math.pi / 4 / 64, -1.1e-9)),
    ],
)
def test_the_lowest_energy_along_a_rotation_is_looked_for_from_45_degrees_down(
    energy: Callable[[float], float], expected: tuple[float, float | None]
) -> None:
    angle, lowest = rotations.deepest(energy)
    assert angle == pytest.approx(expected[0], rel=1e-12)
    assert lowest == pytest.approx(energy(angle) if expected[1] is None else expected[1], rel=1e-9)


# --- matrices and their counts --------------------------------------------------------------------


def small() -> tuple[Any, Any]:
    mole = mole_of(MOLECULES["methylene"], "6-31g")
    return mole, df.addons.make_auxmol(mole, "def2-universal-jkfit")


def test_a_caller_may_scale_the_exchange_it_was_given() -> None:
    """As PySCF does in place for a hybrid: the next matrices, with rows of the last K, are the
    same."""
    mole = gto.M(atom="C 0 0 0; H 0.2 0.99 0.35; H -0.1 -0.8 0.75", basis="cc-pvtz", verbose=0)
    auxmole = df.addons.make_auxmol(mole, "def2-universal-jkfit")
    coeff = np.linalg.qr(np.random.default_rng(4).standard_normal((mole.nao, mole.nao)))[0]
    occupation = np.zeros(mole.nao)
    occupation[:4] = 2.0
    density = lib.tag_array((coeff * occupation) @ coeff.T, mo_coeff=coeff, mo_occ=occupation)
    found = []
    for factor in (1.0, 0.25):
        made = JKFitting(mole, auxmole, 1)
        made.single = made.occupied_rows = True
        _, k = made.get_jk(density)
        k *= factor
        found.append(made.get_jk(density)[1])
    np.testing.assert_array_equal(*found)


def test_operations_of_fitted_matrices_are_counted() -> None:
    """Two per multiply-add of the fit, of J, of the half transformation and of the product."""
    mole, auxmole = small()
    n, naux = mole.nao, auxmole.nao
    pairs = n * (n + 1) // 2
    made = JKFitting(mole, auxmole, 2, pairs=every_pair(n))
    made.build()
    assert made.operations == [naux**2 * pairs, 0]
    rng = np.random.default_rng(1)
    occupied = [rng.standard_normal((n, 3)), rng.standard_normal((n, 2))]
    made.build()
    j, k = made.matrices(occupied)
    fit = naux**2 * pairs
    per_orbital = naux * n * n + 2 * naux * n * n
    assert made.operations == [fit + 2 * 2 * naux * pairs + 5 * per_orbital, 0]
    made.single = True
    made.matrices(occupied)
    assert made.operations == [fit + 4 * 2 * naux * pairs + 5 * per_orbital, 5 * per_orbital]
    made._exchange = k
    made.matrices(occupied, rows=True)
    of_rows = 5 * 2 * naux * n * n + (9 + 4) * 4 * naux * n
    assert made.operations[1] == 5 * per_orbital + of_rows
    made.operations[0] -= 2 * 2 * naux * pairs  # J
    alone, nothing = made.matrices(occupied, exchange=False)
    assert made.operations[0] == fit + (4 * 2 + 2 * 4) * naux * pairs + 5 * per_orbital
    np.testing.assert_allclose(alone, j, atol=1e-10)
    assert not nothing.any() and k.any()
    b = lib.unpack_tril(made._cderi)
    np.testing.assert_allclose(made.squares, (made._cderi**2).sum(axis=0), rtol=1e-12)
    for s, c in enumerate(occupied):
        half = np.einsum("pmn,ni->pmi", b, c)
        np.testing.assert_allclose(k[s], np.einsum("pmi,pni->mn", half, half), atol=1e-9)
        np.testing.assert_allclose(
            j[s], np.einsum("pmn,p->mn", b, np.einsum("pmi,mi->p", half, c)), atol=1e-9
        )
    # Operations of another operator are added, and share the switches.
    long_range = made.at_long_range(0.4)
    assert long_range is made.at_long_range(0.4) and long_range.operations is made.operations
    assert long_range.name == "scf-long-range"
    for switch in ("single", "corrected", "occupied_rows", "gathers"):
        for state in (True, False):
            setattr(made, switch, state)
            assert getattr(made.at_long_range(0.4), switch) is state
    made.gathers = True
    with mole.with_range_coulomb(0.4):
        exact = df.DF(mole, "def2-universal-jkfit").get_jk(occupied[0] @ occupied[0].T)[0]
    again = made.at_long_range(0.4)
    mine, _ = made.get_jk(occupied[0] @ occupied[0].T, omega=0.4)
    assert np.abs(mine - exact).max() < 0.05 * np.abs(exact).max()  # their metric is of 1/r
    made.stop_gathering()
    assert not made.gathers and not again.gathers
    made.discard()
    assert made._cderi is None and again._cderi is None
    with pytest.raises(NotImplementedError):
        made.get_jk(occupied[0] @ occupied[0].T, omega=-0.1)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(("half", "apart"), [(1, 0.0), (4_000_000, 0.0), (1, 30.0)])
def test_matrices_of_rotations_are_their_sums_and_counted(
    single: bool, half: int, apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """w J_ai of both spins less c K_ai, of A C^T + C A^T with A = C_vir x; also for atoms so far
    apart that pairs are dropped and clusters reorder the functions."""
    monkeypatch.setattr(response_matrices, "HALF_BYTES", half)
    monkeypatch.setattr(screening, "CLUSTER", 13)
    mole, auxmole = small()
    if apart:
        atoms = f"H 0 0 {apart}; O 0 0 0; H 0 0.9 {apart}; H 0 0.8 0.6; He 0 0 {2 * apart}"
        mole = gto.M(atom=atoms, basis="6-31g", spin=1, verbose=0)
        auxmole = df.addons.make_auxmol(mole, "def2-universal-jkfit")
    n, naux = mole.nao, auxmole.nao
    fitted = JKFitting(mole, auxmole, 3)
    assert fitted.pairs.complete == (not apart)
    half_transform = 4 * n * len(fitted.pairs.columns) // (n + 1)  # 2 n^2, less dropped pairs
    b = lib.unpack_tril(fitted.pairs.expand(fitted.build()._cderi))
    rng = np.random.default_rng(2)
    spins = []
    for nocc in (4, 2):
        c = np.linalg.qr(rng.standard_normal((n, n)))[0]
        spins.append(RotatedSpin(c[:, :nocc], c[:, nocc:], np.zeros((n - nocc, nocc))))
    fitted.operations[:] = [0, 0]
    made = ResponseMatrices(fitted, spins, 0.7, single=single)
    shapes = [(4, n - 4), (2, n - 2)]
    held = sum(o * (half_transform + 2 * n * (o + v)) for o, v in shapes) * naux
    assert fitted.operations == ([0, held] if single else [held, 0])
    x = [rng.standard_normal(spin.differences.shape) for spin in spins]
    found = made(x, 1.5)
    more = sum(o * (half_transform + 2 * n * o + 4 * v * (1 + o)) for o, v in shapes) * naux
    assert sum(fitted.operations) == held + more
    densities = []
    for spin, part in zip(spins, x, strict=True):
        d = spin.virtual @ part @ spin.occupied.T
        densities.append(d + d.T)
    coulomb = np.einsum("pmn,p->mn", b, np.einsum("pls,ls->p", b, sum(densities)))
    accuracy = 2e-4 if single else 1e-9
    for spin, d, one in zip(spins, densities, found, strict=True):
        exchange = np.einsum("pml,ls,pns->mn", b, d, b, optimize=True)
        expected = spin.virtual.T @ (1.5 * coulomb - 0.7 * exchange) @ spin.occupied
        np.testing.assert_allclose(one, expected, atol=accuracy)


def test_columns_are_fitted_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are split within groups; a cut factor gives fewer rows."""
    monkeypatch.setattr(jk, "COLUMNS", 4)
    asked: list[tuple[int, int]] = []
    rng = np.random.default_rng(3)
    lower = np.asfortranarray(np.tril(rng.standard_normal((5, 5))))
    b = rng.standard_normal((5, 12))
    original = jk.multiply_columns

    def noted(factor: Any, block: Any, start: int, stop: int) -> None:
        asked.append((start, stop))
        original(factor, block, start, stop)

    monkeypatch.setattr(jk, "multiply_columns", noted)
    made = jk.fit_columns(b.copy(), MetricFactor(lower, True, 1.0, 0), [5, 12], 1)
    assert asked == [(0, 4), (4, 5), (5, 9), (9, 12)]
    np.testing.assert_allclose(made, lower @ b, atol=1e-13)
    cut = rng.standard_normal((5, 3))
    np.testing.assert_allclose(
        jk.fit_columns(b, MetricFactor(cut, False, 1.0, 2), [5, 12], 2), cut.T @ b, atol=1e-13
    )


def test_rows_of_pairs_are_cut_in_front_of_shells() -> None:
    """Groups have at least the pairs of a row of the widest shell."""
    mole = gto.M(atom="O 0 0 0; H 0.9 0.2 0", basis="cc-pvdz", charge=-1, verbose=0)
    nao, edges = mole.nao, [int(x) for x in mole.ao_loc_nr()]
    pairs = every_pair(nao)
    triangle = [n * (n + 1) // 2 for n in edges]
    least = 5 * nao
    for most in (0, 3 * nao, 9 * nao, nao * nao):
        blocks = screening.pair_groups(mole, pairs, most)
        assert blocks[0].first == 0 and blocks[-1].last == mole.nbas
        for one, following_one in pairwise(blocks):
            assert one.last == following_one.first
            together = triangle[following_one.last] - triangle[one.first]
            assert together > max(most, 0) or most == 0
        for one in blocks:
            assert (
                (one.c0, one.c1)
                == (one.t0, one.t1)
                == (
                    triangle[one.first],
                    triangle[one.last],
                )
            )
        assert screening.ends_of(blocks) == [block.c1 for block in blocks]
        assert screening.ends_of(blocks[1:]) == [block.c1 - blocks[1].c0 for block in blocks[1:]]
    groups = screening.pair_groups(mole, pairs)
    for one, following_one in pairwise(groups):
        assert one.t1 - one.t0 <= least
        assert following_one.t1 - one.t0 > least
    assert shares(10, 3) == [(0, 3), (3, 7), (7, 10)]
    assert shares(2, 4) == [(0, 0), (0, 1), (1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("block", "cache", "expected"),
    [
        (8 * 10 * 5 * 7, 8 * 55 * 3, (3, 6)),
        (8 * 10 * 5 * 7 - 1, 8 * 55 * 4 - 1, (3, 6)),
        (8 * 10 * 5 * 7, 8 * 55 * 9, (7, 7)),
        (1, 1, (1, 1)),
    ],
)
def test_rows_that_stay_in_cache(
    block: int, cache: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 5 orbitals over 10 functions, which have 55 pairs."""
    monkeypatch.setattr(jk, "BLOCK_BYTES", block)
    monkeypatch.setattr(jk, "CACHE_BYTES", cache)
    occupied = [np.zeros((10, 3)), np.zeros((10, 2))]
    assert jk.rows_at_a_time(every_pair(10), occupied) == expected
    assert jk.rows_at_a_time(every_pair(10), [np.zeros((10, 0))])[0] >= 1


def test_density_factors_are_those_of_occupied_orbitals() -> None:
    rng = np.random.default_rng(5)
    coeff = rng.standard_normal((2, 4, 4))
    occ = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    plain = np.stack([(c * n) @ c.T for c, n in zip(coeff, occ, strict=True)])
    for density, widths in (
        (plain, (4, 4)),
        (lib.tag_array(plain, mo_coeff=coeff, mo_occ=occ), (2, 1)),
    ):
        factors = ladder.density_factors(density)
        assert tuple(left.shape[1] for left, _ in factors) == widths
        for (left, right), expected in zip(factors, plain, strict=True):
            np.testing.assert_allclose(left @ right, expected, atol=1e-12)
    doubly = lib.tag_array(2 * plain[0], mo_coeff=coeff[0], mo_occ=2 * occ[0])
    ((left, right),) = ladder.density_factors(doubly)
    np.testing.assert_allclose(left @ right, 2 * plain[0], atol=1e-12)


@pytest.mark.parametrize(
    ("points", "nao", "expected"),
    [
        (0, 10, (0, 0)),
        (100, 10, (15 * 8 * 100**2, 8 * 100**2 + 2 * 8 * 100 * 55)),
        (1000, 700, (15 * 8 * 1000**2, 8 * 1000**2 + 4 * solvent.BLOCK_BYTES)),
    ],
)
def test_memory_of_a_surface(points: int, nao: int, expected: tuple[int, int]) -> None:
    """Matrices while it is built; M and integrals, or two blocks of these, afterwards."""
    assert solvent.KEPT_BYTES < 8 * 1000 * 700 * 701 // 2
    assert solvent.surface_bytes(points, nao) == expected
    assert solvent.points_per_block(10) == solvent.BLOCK_BYTES // (8 * 55)
    assert solvent.points_per_block(10**6) == 1


def test_columns_are_compressed_in_their_own_memory() -> None:
    raw = np.random.default_rng(4).standard_normal((5, 9))
    columns = np.array([0, 3, 4, 8])
    expected = raw[:, columns].copy()
    found = jk_on_disk._compressed(raw, columns)
    np.testing.assert_array_equal(found, expected)
    assert np.shares_memory(found, raw)


@pytest.mark.parametrize(
    "how",
    [
        {"method": "ks", "xc": "pbe", "scf": "conventional"},
        {"method": "b2plyp", "certify_fit": True},
    ],
)
def test_the_grid_has_the_workers_of_the_run(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    share_out, seen = BasisOnGrid.share_out, set[int]()

    def watched(grid: Any, work: Any, threads: int) -> Any:
        seen.add(threads)
        return share_out(grid, work, threads)

    monkeypatch.setattr(BasisOnGrid, "share_out", watched)
    monkeypatch.setattr("dfmp2.planning.system.SINGLE_THREADED", 0)
    how = {"grid": "20,50", "threads": 2, "listener": Silent(), **how}
    dfmp2.run(MOLECULES["borane cation"], "sto-3g", **how)
    assert seen == {2}


# --- what is recorded -----------------------------------------------------------------------------


def reference(**more: Any) -> Reference:
    """A reference of two spins with 2 and 1 of 4 orbitals occupied."""
    rng = np.random.default_rng(8)
    occ = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    energy = np.array([[-2.0, -1.0, 0.3, 0.7], [-1.8, 0.2, 0.4, 0.9]])
    coeff = np.stack([np.linalg.qr(rng.standard_normal((4, 4)))[0] for _ in range(2)])
    given: dict[str, Any] = {
        "kind": "uhf",
        "scf_type": "df",
        "scf_total_energy": -5.0,
        "nuclear_repulsion_energy": 1.0,
        "cycles": 7,
        "ladder": ("DIIS",),
        "start": "atoms",
        "spin_square": 0.76,
        "mo_coeff": coeff,
        "mo_energy": energy,
        "mo_occ": occ,
    }
    return Reference(**{**given, **more})


def test_names_of_references() -> None:
    assert (reference().name, reference().title, reference().nspin) == ("uhf", "UHF", 2)
    functional = reference(xc="pbe", kind="rhf", exx_total_energy=-4.5, grid_level=3)
    assert (functional.name, functional.title) == ("rks", "RKS(pbe)")
    assert (functional.hf_total_energy, reference().hf_total_energy) == (-4.5, -5.0)
    assert (functional.grid_name, reference().grid_name) == ("3", None)
    assert reference(grid="99,590", grid_level=None).grid_name == "99,590"
    reference(history=np.zeros((5, 3)))
    for shape in ((5, 2), (5,), (5, 3, 1)):
        with recorded_error(ValueError):
            reference(history=np.zeros(shape))


def test_common_orbitals_are_the_smallest_cosine_of_both_spins() -> None:
    first, angle = reference(), 0.3
    coeff = first.mo_coeff.copy()
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    coeff[1][:, [0, 2]] = coeff[1][:, [0, 2]] @ turn
    second = reference(mo_coeff=coeff)
    assert common_orbitals(first, first, np.eye(4)) == pytest.approx(1.0)
    assert common_orbitals(first, second, np.eye(4)) == pytest.approx(math.cos(angle))
    others = first.mo_occ[:, ::-1]
    assert common_orbitals(first, reference(mo_occ=others), np.eye(4)) == pytest.approx(0.0)
    within = first.mo_coeff.copy()
    within[0][:, [0, 1]] = within[0][:, [0, 1]] @ turn
    assert common_orbitals(first, reference(mo_coeff=within), np.eye(4)) == pytest.approx(1.0)


def test_solutions_have_columns_of_one_length() -> None:
    columns: dict[str, Any] = {
        "start": (1, 1, 2, 2, 2),
        "origin": tuple("abcde"),
        "energy": (-1.0, -2.0, -1.5, -2.5, -3.0),
        "spin_square": (0.0,) * 5,
        "lowest_eigenvalue": (0.1,) * 5,
        "kind": ("x",) * 5,
    }
    for chosen, followed in ((1, 0), (2, 1), (3, 0), (5, 2)):
        made = Solutions(**columns, chosen=chosen)
        assert made.followed == followed
    assert made.rows()[3]["energy"] == -2.5 and list(made.rows()[0]) == list(columns)
    for chosen in (0, 6):
        with recorded_error(ValueError):
            Solutions(**columns, chosen=chosen)
    with recorded_error(ValueError):
        Solutions(**{**columns, "kind": ("x",)}, chosen=1)


@pytest.mark.parametrize(
    ("verdict", "gains"),
    [
        ("stable", {}),
        ("no instability found", {}),
        ("unstable (UHF to UHF)", {"UHF to UHF": 0.1}),
        ("unstable (RHF to UHF and RHF to RHF)", {"RHF to UHF": 0.1, "RHF to RHF": 0.2}),
        ("unstable (RHF to RHF and RHF to UHF)", {"RHF to RHF": 0.1, "RHF to UHF": 0.3}),
    ],
)
def test_gains_of_both_instabilities(verdict: str, gains: dict[str, float]) -> None:
    """The first is the lowest; the second is that of its kind."""
    made = Stability(verdict, "all", -0.5, 0.1, -0.4, 0.2, -0.3, 0.3)
    assert made.gains == gains and list(made.gains) == list(gains)
    assert made.unstable == bool(gains)
    without = Stability(verdict, "all", -0.5)
    assert set(without.gains.values()) <= {0.0}


def test_another_density_is_noticed_for_every_reference() -> None:
    """One orbital is filled instead of another, in one spin or both."""
    mole = gto.M(atom="O 0 0 0; H 0 0.3 0.9", basis="6-31g", spin=1, verbose=0)
    closed = gto.M(atom="O 0 0 0; H 0 0.3 0.9", basis="6-31g", charge=-1, verbose=0)
    for kind, molecule in ((scf.UHF, mole), (scf.ROHF, mole), (scf.RHF, closed)):
        mf = kind(molecule).run()
        overlap = mf.get_ovlp()
        assert not ladder._other_density(mf, overlap, (mf.mo_coeff, mf.mo_occ))
        moved = mf.mo_occ.copy()
        last = np.flatnonzero(np.atleast_2d(moved)[0])[-1]
        moved[..., [last, last + 1]] = moved[..., [last + 1, last]]
        assert ladder._other_density(mf, overlap, (mf.mo_coeff, moved))
