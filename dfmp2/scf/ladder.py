"""The ladder that an SCF climbs until it converges.

    DIIS          PySCF's, at first in float32 if that saves time
    ADIIS         from the lowest energy so far, if DIIS has left it and does not return
    level shift   when DIIS has used its share of the cycles, unless it has stalled
    second order  with the remaining cycles

Source of ADIIS: Hu and Yang, J. Chem. Phys. 132, 054109 (2010).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import ConvergenceError, Option
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.scf.rotations import fitting_object
from dfmp2.units import counted_text, told_apart

Iteration = tuple[float, float, float]  # energy, its change, norm of the orbital gradient; Eh
OnIteration = Callable[[Array, Array], None]

LEVEL_SHIFT = 0.3  # Eh, added to the virtual orbital energies on the second rung
DIIS_LEAST = 40  # cycles DIIS always gets before the ladder starts
DIIS_SHARE = 0.6  # of the cycle limit
SHIFT_SHARE = 0.2  # likewise; the second-order solver gets the rest
# Iterations of DIIS above its lowest energy after which it does not return by itself
CLIMBED = 8
# Eh, norm of the orbital gradient; closer to convergence, rounding alone may raise the energy
FAR = 1e-3
# Iterations of DIIS with gradients below FAR and within a factor STALLED_BY of each other after which
# only a second-order step lowers them: the integration grid gives a rotation that costs no energy,
# such as that of the open shell of an atom, a gradient and almost no curvature
STALLED = 8
STALLED_BY = 1.1
CALM = 5e-3  # Eh, gradient below which ADIIS ends
CALM_LEAST = 4  # iterations it gets at least
SINGLE_UNTIL = 1e-3  # Eh, norm of the orbital gradient
# Eh, norm of the orbital gradient below which K changes so little between virtual orbitals that it
# is kept
ROWS_BELOW = 0.1
# Factor on the best gradient so far: an iteration that stays above it has reached the noise level,
# or does not converge anyway
SINGLE_GAIN = 0.8
SINGLE_PATIENCE = 4  # iterations before this is tested: the first ones may go up and down
# Eh, norm of the orbital gradient down to which corrected float32 products are used; their error in
# it is up to 5e-6
CORRECTED_UNTIL = 1e-5
# Eh, largest orbital gradient at the anchor from which an SCF may converge on the coarser grid
# (`dfmp2.scf.exchange_correlation`), also as a multiple of the requested gradient: that grid misses
# about 1 % of the gradient's change, and of the energy a hundredth of 1e-9 Eh
ANCHOR_UNTIL = 2e-5
ANCHOR_REACH = 20
# times eps |E|: energy changes of a converged SCF, up to 2.4e-11 Eh for CBr4 (-10326 Eh)
ROUNDING = 10
SINGLE_LEAST = 128  # basis functions from which float32 products save time
COARSE_LEAST = 64  # basis functions from which a coarse grid saves time


class Ladder:
    """Converges a PySCF mean field and records every iteration.

    Parameters
    ----------
    mf : pyscf.scf.hf.SCF
        Not converged.
    options : Options
        Cycle limit and thresholds of the SCF.
    listener : Listener
    on_iteration : callable, optional
        Called with orbitals (nspin, nao, nmo) and occupations (nspin, nmo) after each iteration; an
        exception raised there ends the SCF.
    turned : bool
        Whether the start orbitals were rotated. DIIS may then climb back to the unrotated solution,
        which ADIIS should not try to prevent.

    Attributes
    ----------
    rungs : list of str
        Names of the methods used.
    history : list of Iteration
    """

    def __init__(
        self,
        mf: Any,
        options: Options,
        listener: Listener,
        on_iteration: OnIteration | None = None,
        *,
        turned: bool = False,
    ) -> None:
        self._mf = mf
        self._options = options
        self._listener = listener
        self._on_iteration = on_iteration
        self._turned = turned
        self.rungs: list[str] = []
        self.history: list[Iteration] = []
        self._rung_start = 0  # number of iterations before the present rung
        # Likewise before its first one in float64, whose gradient shows whether DIIS stalls
        self._double_start = 0
        self._gave_up = False  # whether DIIS has left the lowest energy for good
        self._stalled = False  # whether DIIS no longer lowers the gradient
        self._schedule: SingleSchedule | None = None
        self._macro = -1  # number of the last second-order iteration, from 0
        # Of the last iteration, and of the one with the lowest energy
        self._fock: tuple[Any, Any, Any] | None = None
        self._lowest_energy = np.inf
        self._lowest_orbitals: tuple[Any, Any] = (None, None)  # and occupations

    def climb(self, density: Any, *, second_order: bool = False) -> Any:
        """The converged mean field.

        Parameters
        ----------
        density : (nao, nao) or (2, nao, nao)
            Start of the first rung.
        second_order : bool
            Use only the last rung, from the orbitals of the mean field.

        Raises
        ------
        ConvergenceError : not converged within options.scf_max_cycles
        """
        limit = self._options.scf_max_cycles
        diis = shift = 0
        if not second_order:
            diis = min(limit, max(DIIS_LEAST, int(limit * DIIS_SHARE)))
            shift = min(limit - diis, int(limit * SHIFT_SHARE))
            self._begin_in_single()
        self._mf.callback = self._record
        rungs = [("DIIS", diis), ("level shift", shift), ("second order", limit - diis - shift)]
        while rungs:
            rung, cycles = rungs.pop(0)
            if cycles <= 0:
                continue
            self.rungs.append(rung)
            self._rung_start = self._double_start = len(self.history)
            if rung == "second order":
                self._solve_second_order(cycles)
            else:
                self._iterate(rung, cycles, density)
            if self._schedule is not None:
                self._schedule.finish()
            if self._mf.converged:
                self._mf.callback = None
                self._mf.check_convergence = None
                return self._mf
            spent = counted_text(len(self.history) - self._rung_start, "cycle")
            self._listener.stage(f"SCF not converged by {rung} in {spent}")
            density = self._mf.make_rdm1()
            if self._gave_up:
                self._gave_up = False
                density = self._mf.make_rdm1(*self._lowest_orbitals)
                rungs.insert(0, ("ADIIS", diis - len(self.history)))
            elif rung == "ADIIS":
                rungs.insert(0, ("DIIS", diis - len(self.history)))
            elif self._stalled:
                rungs = [("second order", limit - len(self.history))]
                self._stalled = False
        raise self._not_converged()

    def _begin_in_single(self) -> None:
        """Let the first rung compute exchange in float32 if that saves time."""
        fitted = fitting_object(self._mf)
        precision = self._options.precision
        nao = int(self._mf.mol.nao)
        on_grid = vars(self._mf).get("on_grid")
        if not hasattr(fitted, "single") or not uses_single(precision, nao):
            fitted = None
        if not begins_coarse(precision, nao):
            on_grid = None
        if fitted is not None or on_grid is not None:
            self._schedule = SingleSchedule(self._mf, fitted, on_grid)

    def _iterate(self, rung: str, cycles: int, density: Any) -> None:
        """Run DIIS, ADIIS or DIIS with a level shift, from a density."""
        mf = self._mf
        mf.check_convergence = self._ends
        mf.max_cycle = cycles
        mf.level_shift = LEVEL_SHIFT if rung == "level shift" else 0.0
        mf.DIIS = adiis() if rung == "ADIIS" else commutator_diis()
        mf.kernel(density)
        if rung == "ADIIS" or self._gave_up or self._stalled:
            mf.converged = False
        if mf.converged and self._fock is not None:  # one electron needs no iteration
            # The Fock matrix of the last density, neither extrapolated nor level-shifted.
            fock, overlap, orthogonal = self._fock
            shifted = mf.mo_coeff, mf.mo_occ
            mf.mo_energy, mf.mo_coeff = mf.eig(fock, overlap, x=orthogonal)
            mf.mo_occ = mf.get_occ(mf.mo_energy, mf.mo_coeff)
            if _other_density(mf, overlap, shifted):
                # An occupied orbital lies above an empty one: a level shift keeps it occupied, and
                # DIIS takes turns between two orbitals that are equivalent by symmetry.
                mf.mo_coeff, mf.mo_occ = shifted
                mf.converged = False

    def _solve_second_order(self, cycles: int) -> None:
        """Run PySCF's second-order solver, from the orbitals of the mean field."""
        mf = self._mf
        mf.check_convergence = None
        mf.level_shift = 0.0
        solver = mf.newton()
        # With PySCF's own limits, 1e-12 and 1e-14, a step along a soft mode stalls for good at a
        # gradient of 6e-7 Eh.
        solver.ah_conv_tol = 1e-16
        solver.ah_lindep = 1e-20
        solver.max_cycle = cycles
        solver.kernel(mf.mo_coeff, mf.mo_occ)
        self._mf = solver

    def _record(self, envs: dict[str, Any]) -> None:
        """PySCF's callback, called with the variables of its loop after an iteration."""
        if self.rungs[-1] == "second order":
            if envs["imacro"] == self._macro:  # the last iteration again, after the loop
                return
            self._macro = envs["imacro"]
        self._fock = envs.get("fock"), envs.get("s1e"), envs.get("x_orth")
        energy = float(envs["e_tot"])
        gradient = float(envs["norm_gorb"])
        change = energy - self.history[-1][0] if self.history else 0.0
        self.history.append((energy, change, gradient))
        if energy < self._lowest_energy:
            self._lowest_energy = energy
            self._lowest_orbitals = envs["mo_coeff"], envs["mo_occ"]
        self._listener.scf_cycle(len(self.history), energy, change, gradient)
        if self._on_iteration is None:
            return
        coeff = np.asarray(envs["mo_coeff"])
        occ = np.asarray(envs["mo_occ"])
        if occ.ndim == 2:  # UHF
            self._on_iteration(coeff, occ)
        elif np.ndim(envs["dm"]) == 3:  # ROHF
            both = np.stack([occ > 0, occ > 1]).astype(np.float64)
            self._on_iteration(np.stack([coeff, coeff]), both)
        else:
            self._on_iteration(coeff[None], occ[None])

    def _ends(self, envs: dict[str, Any]) -> bool:
        """Whether the present rung ends, converged or given up; PySCF calls it before `_record`."""
        if self.rungs[-1] == "ADIIS":
            enough = len(self.history) - self._rung_start >= CALM_LEAST
            return enough and float(envs["norm_gorb"]) < CALM
        if self._schedule is not None and len(self.rungs) == 1:
            if self._schedule.single:
                self._double_start = len(self.history) + 1
            done = self._schedule.converged(envs)
        else:
            done = converged(envs)
        if not done and self.rungs == ["DIIS"] and not self._turned:
            self._gave_up = climbed(self.history)
        if not done and self.rungs[-1] == "DIIS" and not self._gave_up:
            self._stalled = stalled(self.history[self._double_start :])
        return done or self._gave_up or self._stalled

    def _not_converged(self) -> ConvergenceError:
        _, change, gradient = self.history[-1]
        options = self._options
        sign = "-" if change < 0 else ""
        changed, energy_needed = told_apart(".1e", abs(change), options.scf_conv_tol)
        slope, slope_needed = told_apart(".1e", gradient, options.scf_gradient_tol)
        return ConvergenceError(
            (
                f"the SCF did not converge in {counted_text(len(self.history), 'cycle')} "
                f"({', '.join(self.rungs)}): the last energy change was {sign}{changed} Eh (needed "
                f"{energy_needed}) and the orbital gradient {slope} Eh "
                f"(needed {slope_needed}). Without a converged reference "
                "there is no MP2 energy. Check geometry, charge and multiplicity; raise "
            ),
            Option("scf_max_cycles"),
            "; or start from other orbitals with ",
            Option("scf_from"),
        )


def _other_density(mf: Any, overlap: Array, orbitals: tuple[Any, Any]) -> bool:
    """Whether the occupied orbitals of `mf` span a space other than these."""
    difference = np.asarray(mf.make_rdm1()) - np.asarray(mf.make_rdm1(*orbitals))
    product = difference @ overlap
    # tr (D' - D) S (D' - D) S is 2 if an orbital of one spin is exchanged, 8 for RHF
    moved = float(np.sum(product * product.swapaxes(-1, -2)))
    return moved > 1.0


def converged(envs: dict[str, Any]) -> bool:
    """PySCF's own criterion, from the variables of its loop; an energy change within rounding
    counts as none."""
    energy = float(envs["e_tot"])
    change = abs(energy - float(envs["last_hf_e"]))
    limit = max(envs["conv_tol"], ROUNDING * float(np.finfo(np.float64).eps) * abs(energy))
    return bool(change < limit and float(envs["norm_gorb"]) < envs["conv_tol_grad"])


def climbed(history: list[Iteration]) -> bool:
    """Whether the energy left its lowest value CLIMBED iterations ago, far from convergence."""
    if len(history) <= CLIMBED:
        return False
    energies = [energy for energy, _, _ in history]
    gradients = [gradient for _, _, gradient in history]
    return min(energies[-CLIMBED:]) > min(energies[:-CLIMBED]) and min(gradients[-CLIMBED:]) > FAR


def stalled(history: list[Iteration]) -> bool:
    """Whether the gradient has hardly changed for STALLED iterations, close to convergence."""
    gradients = [gradient for _, _, gradient in history[-STALLED:]]
    few = len(gradients) < STALLED
    return not few and max(gradients) < min(FAR, STALLED_BY * min(gradients))


def adiis() -> Any:
    """PySCF's ADIIS class, whose import loads SciPy's optimisers."""
    from pyscf import scf

    return scf.ADIIS


def commutator_diis() -> Any:
    """PySCF's DIIS class with error vectors X^T (F D S - S D F) X computed by NumPy's BLAS, in a
    third of the time."""
    from pyscf import lib
    from pyscf.scf import diis

    class Commutators(diis.CDIIS):  # type: ignore[misc]
        """As in PySCF, without damping. A change of the integration grid is carried into the Fock
        matrices of earlier iterations (`dfmp2.scf.kohn_sham.KohnSham`), and those with the error of
        float32 products are dropped (`SingleSchedule`)."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._factors: dict[
                int, list[tuple[Array, Array]]
            ] = {}  # for the density of each vector
            self._leaves = False  # whether the next update drops the vectors so far

        def update(self, s: Array, d: Any, f: Any, mf: Any = None, *_: Any, **__: Any) -> Any:
            """The extrapolated Fock matrix, or one for each spin."""
            if self._leaves:
                self._bookkeep: list[int] = []
                self._head = 0
                self._H: Any = None
                self._buffer.clear()
            shift = None
            self._leaves = False
            if mf is not None:
                shift = vars(mf).pop("grid_shift", None)
                self._leaves = vars(mf).pop("products_were_single", False)
            if shift is not None and self._bookkeep:
                self._add_to_earlier(shift, s)
            factors = density_factors(d)
            self._factors[self._head % self.space] = factors
            return lib.diis.DIIS.update(self, f, xerr=self._errors(s, factors, f))

        def _errors(self, s: Array, factors: list[tuple[Array, Array]], f: Any) -> Array:
            """Error vectors of all spins, concatenated."""
            errors = []
            focks = np.reshape(f, (-1, *np.shape(s)))
            for (left, right), fock in zip(factors, focks, strict=True):
                product = (self.Corth.T @ (s @ left)) @ (right @ fock @ self.Corth)
                errors.append((product.T - product).ravel())
            return np.concatenate(errors)

        def _add_to_earlier(self, shift: Array, s: Array) -> None:
            """Add a matrix to the stored Fock matrices, and recompute their errors."""
            for slot in self._bookkeep:
                fock = np.reshape(self.get_vec(slot), np.shape(shift)) + shift
                self._store(f"x{slot}", fock.ravel())
                self._store(f"e{slot}", self._errors(s, self._factors[slot], fock))
            for row in self._bookkeep:
                for column in self._bookkeep:
                    overlap = np.dot(self.get_err_vec(row), self.get_err_vec(column))
                    self._H[row + 1, column + 1] = overlap

    return Commutators


def density_factors(density: Any) -> list[tuple[Array, Array]]:
    """L, (nao, n), and R, (n, nao), of each spin, with density L R: from the occupied orbitals if
    PySCF has tagged the density with them, so that its products have few columns."""
    orbitals: Any = getattr(density, "mo_coeff", None)
    shape = (-1, *np.shape(density)[-2:])
    if np.ndim(orbitals) != np.ndim(density):
        return [(np.eye(shape[-1]), matrix) for matrix in np.reshape(density, shape)]
    factors = []
    for coeff, occupations in zip(
        np.reshape(orbitals, (-1, *np.shape(orbitals)[-2:])),
        np.reshape(density.mo_occ, (-1, np.shape(orbitals)[-1])),
        strict=True,
    ):
        occupied = coeff[:, occupations > 0]
        factors.append((occupied * occupations[occupations > 0], occupied.T))
    return factors


def diagonalise(
    fock: Array, overlap: Array, overwrite: bool = False, x: Array | None = None
) -> tuple[Array, Array]:
    """Orbital energies (nmo,), Eh, and coefficients (nao, nmo), by divide and conquer: takes half
    the time of PySCF's `_eigh`, with its arguments and phases."""
    from pyscf.scf.hf import _adjust_phase_, eig

    if x is None:
        energies, coefficients = eig(fock, overlap, overwrite)
        return energies, coefficients
    energies, vectors = np.linalg.eigh(x.T @ fock @ x)
    return energies, _adjust_phase_(x @ vectors)


def uses_single(precision: str, nao: int) -> bool:
    """Whether a density-fitted SCF of this precision and number of basis functions begins in
    float32."""
    return precision != "fp64" and nao >= SINGLE_LEAST


def begins_coarse(precision: str, nao: int) -> bool:
    """Whether the Kohn-Sham SCF begins on a coarse grid."""
    return precision != "fp64" and nao >= COARSE_LEAST


class SingleSchedule:
    """Switches `single`, `corrected` and `occupied_rows` of the Fock-matrix builders from one SCF
    iteration to the next.

    Parameters
    ----------
    mf : pyscf.scf.hf.SCF
        Its `products_were_single` makes DIIS drop the Fock matrices of float32 products.
    fitted : JKFitting or None
        Uses float32 exchange at first and, without a grid, corrected exchange afterwards.
    on_grid : ExchangeCorrelation or None
        Uses a coarser grid in float32 at first, and anchors on the final one afterwards.

    Attributes
    ----------
    single : bool
        Whether the present iteration uses float32 or corrected products.
    """

    def __init__(self, mf: Any, fitted: Any, on_grid: Any) -> None:
        self._mf = mf
        self._fitted = fitted
        self._on_grid = on_grid
        self._cycles = 0  # iterations
        self._in_double = 0  # iterations since the last one in float32
        self._best = float("inf")  # lowest gradient
        self._gradient_at_anchor = float("inf")
        self.single = True
        for part in (fitted, on_grid):
            if part is not None:
                part.single = True

    def converged(self, envs: dict[str, Any]) -> bool:
        """Whether PySCF's own criterion holds for two successive energies without float32, with the
        last anchor close enough; called once per iteration."""
        self._cycles += 1
        gradient = float(envs["norm_gorb"])
        stalled = self._cycles > SINGLE_PATIENCE and gradient > SINGLE_GAIN * self._best
        self._best = min(self._best, gradient)
        if self.single:
            if self._fitted is not None:
                self._fitted.occupied_rows = gradient < ROWS_BELOW
            self._advance(gradient, stalled=stalled)
            return False
        self._in_double += 1
        if self._fitted is not None:
            self._fitted.occupied_rows = False
        done = self._in_double > 1 and converged(envs)
        if self._on_grid is None or not self._on_grid.anchored:
            return done
        if self._on_grid.at_anchor:
            self._gradient_at_anchor = gradient
        enough = min(ANCHOR_UNTIL, ANCHOR_REACH * float(envs["conv_tol_grad"]))
        near = self._gradient_at_anchor < enough
        if done and near:
            return True
        self._on_grid.renew = stalled or (not near and gradient < enough)
        return False

    def _advance(self, gradient: float, *, stalled: bool) -> None:
        """Leave float32, with a step of corrected products in between if there is no grid."""
        if self._on_grid is not None:
            if gradient < SINGLE_UNTIL or stalled:
                self._leave_single()
        elif gradient < CORRECTED_UNTIL or (self._fitted.corrected and stalled):
            self._leave_single()
            self._mf.products_were_single = True
        elif self._fitted.single and (gradient < SINGLE_UNTIL or stalled):
            self._fitted.single = False
            self._fitted.corrected = True
            self._best = float("inf")

    def _leave_single(self) -> None:
        """Use float64 from now on, and anchors on the final grid."""
        self.single = False
        self._best = float("inf")  # the final grid raises the gradient at first
        if self._fitted is not None:
            self._fitted.single = False
            self._fitted.corrected = False
        if self._on_grid is not None:
            self._on_grid.single = False
            self._on_grid.anchored = True

    def finish(self) -> None:
        """Use float64 and the final grid from now on."""
        self._leave_single()
        if self._fitted is not None:
            self._fitted.occupied_rows = False
        if self._on_grid is not None:
            self._on_grid.leave_coarse_grid()
