"""Where the SCF starts, and which solution it ends in: instabilities are followed to a minimum, from
one start or several.

    atoms   the densities of the atoms (`dfmp2.molecule.mole`)
    mix     HOMO and LUMO of the Fock matrix of the atoms, mixed by 45 degrees in alpha and by -45
            degrees in beta
    core    the orbitals of the core Hamiltonian

An SCF converges to a stationary point. If the orbital Hessian has a negative eigenvalue, the
orbitals are rotated along its eigenvector to the lowest energy found and converged again, up to
MOST_STEPS times. This is how a UHF started from densities without spin polarisation leaves the RHF
solution. With several starts, the lowest solution is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import ConvergenceError, Message
from dfmp2.molecule.mole import start_density
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.scf.reference import RotationLeft, Solutions, Stability
from dfmp2.scf.rotation_left import UNCERTAIN
from dfmp2.scf.rotations import (
    BROKEN,
    Rotation,
    orbital_spins,
    rotated,
    turned_orbitals,
    with_orbitals,
)
from dfmp2.scf.stability import Examination, judged, kinds_in_words

ORIGINS = {
    "atoms": "atomic densities",
    "mix": "atomic densities, HOMO and LUMO mixed",
    "core": "core Hamiltonian",
}
RANDOM_OCCUPIED, RANDOM_VIRTUAL = 10, 10  # frontier orbitals that a random start mixes, per spin
RANDOM_ANGLE = 1.0  # rad, typical angle by which each of them is rotated
MOST_STEPS = 5
SPIN_ROUNDING = 1e-10  # of <S^2>, on either side of the value of a pure spin state
LOWER = 1e-7  # Eh; a solution that is not lower by this counts as the same

History = list[tuple[float, float, float]]
Examine = Callable[[Any], Examination]  # `dfmp2.scf.stability.examined`


class Solve(Protocol):
    """Converges the SCF; returns mean field, ladder and iterations.

    It starts from a density, which may be that of `turned` orbitals, or from orbitals and their
    occupations with the second-order solver, which does not climb. The iterations of the `first`
    SCF are saved so that an interrupted run can be resumed.
    """

    def __call__(
        self, density: Any, *, orbitals: Any = None, first: bool = False, turned: bool = False
    ) -> tuple[Any, list[str], History]: ...


@dataclass(slots=True)
class FollowedSolution:
    """A solution and how it was found.

    Attributes
    ----------
    mf : converged PySCF mean field
    origin : where the start orbitals came from
    ladder, history : convergence methods and iterations, from the start on
    stability : None if it was not examined
    left : what is left to full convergence, None if it was not examined
    place : number among all solutions found, from 1
    """

    mf: Any
    origin: str
    ladder: list[str]
    history: History
    stability: Stability | None = None
    left: RotationLeft | None = None
    place: int = 1


@dataclass(slots=True)
class Log:
    """Solutions in the order they are found: the columns of `Solutions`."""

    rows: list[tuple[int, str, float, float, float, str]] = field(default_factory=list)

    def add(self, start: int, origin: str, mf: Any, lowest: Rotation | None) -> int:
        """Record a solution, or None for a start that did not converge; returns its number."""
        if mf is None:
            energy, spin = (math.nan, math.nan)
        else:
            energy, spin = (float(mf.e_tot), spin_square(mf))
        if lowest is None:
            eigenvalue, kind = (math.nan, "")
        else:
            eigenvalue = lowest.eigenvalue
            kind = kinds_in_words(lowest.kind, mf)
        self.rows.append((start, origin, energy, spin, eigenvalue, kind))
        return len(self.rows)

    def record(self, chosen: int) -> Solutions:
        """The record of all solutions, with the number of the chosen one."""
        start, origin, energy, spin_square, eigenvalue, kind = zip(*self.rows, strict=True)
        return Solutions(start, origin, energy, spin_square, eigenvalue, kind, chosen)


# --- start densities ------------------------------------------------------------------------------


def guess_density(guess: str, mf: Any, kind: str) -> Any:
    """Start density for `--guess`, for PySCF's RHF or UHF object `mf`."""
    if guess == "core":
        core = mf.get_hcore()
        if kind == "uhf":
            core = np.stack([core, core])
        return _diagonalised(mf, core).make_rdm1()
    density = start_density(mf.mol, kind)
    if guess == "atoms":
        return density
    of_atoms = _diagonalised(mf, mf.get_fock(dm=density))
    turned = []
    for spin, sign in zip(orbital_spins(of_atoms), (1.0, -1.0), strict=True):
        x = np.zeros_like(spin.differences)
        x[:1, -1:] = sign  # lowest virtual and highest occupied orbital
        turned.append(rotated(spin, x, math.pi / 4))
    return mf.make_rdm1(*with_orbitals(of_atoms, turned))


def random_density(mf: Any, density: Any, number: int) -> Any:
    """A different start density for each number: orbitals of the Fock matrix of `density`, rotated
    at random."""
    found = _diagonalised(mf, mf.get_fock(dm=density))
    rng = np.random.default_rng(number)
    turned = []
    for spin in orbital_spins(found):
        x = np.zeros_like(spin.differences)
        window = x[:RANDOM_VIRTUAL, -RANDOM_OCCUPIED:]
        window += (
            rng.standard_normal(window.shape) * RANDOM_ANGLE / math.sqrt(max(1, window.shape[0]))
        )
        turned.append(rotated(spin, x, 1.0))
    return mf.make_rdm1(*with_orbitals(found, turned))


def _diagonalised(mf: Any, fock: Array) -> Any:
    """A copy of `mf` with the orbitals of a Fock matrix."""
    found = mf.copy()
    found.mo_energy, found.mo_coeff = found.eig(fock, found.get_ovlp())
    found.mo_occ = found.get_occ(found.mo_energy, found.mo_coeff)
    return found


# --- solutions ------------------------------------------------------------------------------------


def find_solution(
    mf: Any,
    density: Any,
    origin: str,
    options: Options,
    listener: Listener,
    solve: Solve,
    examine: Examine,
) -> tuple[FollowedSolution, Solutions | None]:
    """The solution to use, and all solutions found if more than one was looked for.

    Parameters
    ----------
    mf : PySCF mean field, not converged
    density, origin : those of the first start

    Raises
    ------
    ConvergenceError : no start converges
    """
    log, best = Log(), None
    for start in range(1, options.scf_starts + 1):
        name = origin
        if start > 1:
            listener.stage(f"start {start} of {options.scf_starts}: orbitals rotated at random")
            name = f"{origin}, rotated at random ({start})"
        try:
            begin = density if start == 1 else random_density(mf, density, start)
            solved = solve(begin, first=start == 1)
        except ConvergenceError as error:
            if start == options.scf_starts and best is None:
                raise
            log.add(start, name, None, None)
            listener.stage(Message(f"start {start} did not converge: ", error.message))
            continue
        found = _follow(
            FollowedSolution(solved[0], name, *solved[1:]),
            start,
            options,
            listener,
            solve,
            examine,
            log,
        )
        if best is None or found.mf.e_tot < best.mf.e_tot - LOWER:
            best = found
    best = cast(FollowedSolution, best)  # a single start that fails has raised
    several = options.scf_starts > 1 or options.stability == "follow"
    return best, log.record(best.place) if several else None


def _follow(
    found: FollowedSolution,
    start: int,
    options: Options,
    listener: Listener,
    solve: Solve,
    examine: Examine,
    log: Log,
) -> FollowedSolution:
    """The solution reached by following the instabilities of another one."""
    if options.stability not in ("full", "follow"):
        found.place = log.add(start, found.origin, found.mf, None)
        return found
    for step in range(MOST_STEPS + 1):
        lowest, found.left = examine(found.mf)
        found.stability, angles = judged(found.mf, lowest)
        way = next(
            (one for one in lowest if one.kind != BROKEN and one.eigenvalue < -UNCERTAIN), None
        )
        found.place = log.add(start, found.origin, found.mf, way or (lowest[0] if lowest else None))
        if options.stability == "full" or way is None or step == MOST_STEPS:
            break
        angle = angles[way.kind]
        if not angle:
            break
        listener.stage(
            f"following an instability ({kinds_in_words(way.kind, found.mf)}, lowest eigenvalue {way.eigenvalue:.4f} Eh)"
        )
        try:
            solved = _lower(found.mf, way, angle, solve)
        except ConvergenceError as error:
            log.add(start, found.origin, None, None)
            listener.warning(
                Message(
                    "an instability of the SCF solution was found and cannot be followed: ",
                    error.message,
                )
            )
            break
        if solved is None:
            break
        mf, ladder, history = solved
        before = found.history[-1][0] if found.history else mf.e_tot
        joined = [
            *found.history,
            *((e, e - before if not n else d, g) for n, (e, d, g) in enumerate(history)),
        ]
        found = FollowedSolution(mf, found.origin, [*found.ladder, *ladder], joined)
    return found


def _lower(
    mf: Any, way: Rotation, angle: float, solve: Solve
) -> tuple[Any, list[str], History] | None:
    """The SCF converged from orbitals rotated along `way`, None if it does not end below `mf`.

    DIIS may climb back to the solution it came from; then the second-order solver is used to
    descend.
    """
    orbitals = turned_orbitals(mf, way, angle)
    with suppress(ConvergenceError):
        solved = solve(mf.make_rdm1(*orbitals), turned=True)
        if solved[0].e_tot < mf.e_tot - LOWER:
            return solved
    solved = solve(None, orbitals=orbitals)
    return solved if solved[0].e_tot < mf.e_tot - LOWER else None


def spin_square(mf: Any) -> float:
    """<S^2> of a determinant; exactly S(S+1), its lower bound, without spin contamination.

    Source: Szabo and Ostlund, Modern Quantum Chemistry (1996), equation 2.271.
    """
    spin = 0.5 * abs(int(mf.mol.spin))
    pure = spin * (spin + 1)
    if np.ndim(mf.mo_occ) == 1:  # RHF, ROHF
        return pure
    contamination = float(mf.spin_square()[0]) - pure
    return pure + (contamination if contamination > SPIN_ROUNDING else 0.0)
