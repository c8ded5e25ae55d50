"""Geometry searches with geomeTRIC, one geometry at a time, in the coordinates of
`dfmp2.studies.internal_coordinates`."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.errors import InputError, NumericalError, Option
from dfmp2.errors.messages import plain
from dfmp2.gradients.result import GradientResult
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import CONVERGENCE
from dfmp2.output.study import MOST_RUNS
from dfmp2.studies.coordinate import Constraints
from dfmp2.studies.internal_coordinates import constrained_directions, make_coordinates
from dfmp2.studies.vibrations import masses, rigid_motions
from dfmp2.units import ANGSTROM_PER_BOHR, quantity

MOST_STEPS = 100
INSTALL = "pip install 'dfmp2[opt]'"
# of the trust radius; a shorter step was not limited by it
UNLIMITED = 0.8
PROBE = 0.05  # bohr; largest displacement of an atom in a curvature measurement
MOST_PROBES = 6  # at one geometry
FLAT = 1e-7  # Eh/bohr; smaller gradients are noise and determine no step
# softest force constant between fragments, Eh/bohr^2, chosen below the 1.4e-4 measured for He2
SOFTEST_BETWEEN = 1e-5
# another curvature between fragments can be softer than the last measured one by this factor
SOFTER = 10.0
ENFORCED = 0.1  # bohr or radian; constraints closer to their value are enforced exactly


@dataclass(frozen=True, slots=True)
class Search:
    """Settings of a geometry search.

    Attributes
    ----------
    constraints : coordinates that are held or set
    convergence : one of `dfmp2.options.CONVERGENCE`, in upper or lower case: energy change (Eh),
        root mean square and largest gradient and displacement of an atom (Eh/bohr, angstrom);
        change and displacement refer to the last step, as in geomeTRIC, or to the next one, as in
        Gaussian and optking
    max_steps : most steps after the first geometry
    transition_state : search for a first-order saddle point
    verify : compute the Hessian of the geometry found, and restart along any unwanted imaginary
        modes
    """

    constraints: Constraints = Constraints()
    convergence: str = "GAU"
    max_steps: int = MOST_STEPS
    transition_state: bool = False
    verify: bool = False

    @property
    def sought(self) -> str:
        """Either "minimum" or "transition state"."""
        return "transition state" if self.transition_state else "minimum"

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_steps", plain(self.max_steps))
        if str(self.convergence).upper() not in CONVERGENCE:
            raise InputError(
                Option("convergence", self.convergence),
                f": expected one of {', '.join(CONVERGENCE)}",
            )
        if (
            isinstance(self.max_steps, bool)
            or not isinstance(self.max_steps, int)
            or not 1 <= self.max_steps < MOST_RUNS
        ):
            raise InputError(
                Option("max_steps", self.max_steps),
                f": expected a whole number from 1 to {MOST_RUNS - 1}",
            )


MINIMUM = Search()


@dataclass(frozen=True, slots=True)
class Point:
    """A geometry with its convergence measures; gradients and displacements as in
    `Search.convergence`, NaN if not yet available."""

    total_energy: float = quantity("hartree", "energy that is minimised")
    rms_gradient: float = quantity(
        "hartree/bohr",
        "root mean square of the gradients of the atoms, without constrained directions",
    )
    max_gradient: float = quantity(
        "hartree/bohr", "largest gradient of an atom, without constrained directions"
    )
    rms_displacement: float = quantity(
        "angstrom", "root mean square of the displacements since the geometry before"
    )
    max_displacement: float = quantity("angstrom", "largest displacement since the geometry before")

    @property
    def said(self) -> str:
        """A one-line summary."""
        if math.isnan(self.max_displacement):
            moved = ""
        else:
            moved = f", moved {self.max_displacement:.1e} A"
        return f"E = {self.total_energy:.10f} Eh, gradient {self.max_gradient:.1e} Eh/bohr{moved}"


def geometric_library() -> Any:
    """The geomeTRIC package.

    Raises
    ------
    InputError : geomeTRIC is not installed
    """
    try:
        import geometric
    except ImportError as error:
        raise InputError(f"the optimisation needs geomeTRIC ({error}): {INSTALL}") from error
    return geometric


@contextmanager
def quiet() -> Iterator[None]:
    """Silence geomeTRIC in the block; our own table shows the progress."""
    logger = logging.getLogger("geometric")
    handler = logging.NullHandler()
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)


def _engine(atoms: Any, found: Sequence[MP2Result]) -> Any:
    """geomeTRIC's engine, which takes energy and gradient from the last of the runs."""
    from geometric.engine import Engine

    class LastRun(Engine):  # type: ignore[misc] # its types are not followed
        """Energy and gradient of the run at the optimiser's geometry."""

        def calc(self, *_: Any, **__: Any) -> dict[str, Any]:
            gradient = GradientResult(found[-1]).gradient.ravel().copy()
            return {"energy": found[-1].total_energy, "gradient": gradient}

        def save_guess_files(self, _: str) -> None:
            pass

        load_guess_files = save_guess_files

    return LastRun(atoms)


class GeomeTRIC:
    """The optimiser of geomeTRIC, called for one geometry at a time.

    Parameters
    ----------
    constraints : in geomeTRIC's format, "" for none
    origin : the molecule whose coordinates are frozen, None for this one
    downhill : follow the intrinsic reaction coordinate down one side, "forward" or "backward"; ""
        for an optimisation instead

    Raises
    ------
    InputError : geomeTRIC is missing, or cannot build coordinates with these constraints
    """

    def __init__(
        self,
        molecule: Molecule,
        search: Search,
        constraints: str,
        origin: Molecule | None = None,
        downhill: str = "",
    ) -> None:
        geometric_library()
        from geometric.errors import Error
        from geometric.molecule import Molecule as Geometry
        from geometric.nifty import bohr2ang
        from geometric.optimize import OPT_STATE, Optimizer
        from geometric.params import OptParams
        from geometric.step import calc_drms_dmax, get_delta_prime, update_hessian

        self._states = OPT_STATE
        self._errors = (Error, RuntimeError, ValueError)
        self._displacements = calc_drms_dmax
        self._step_of = get_delta_prime
        self._updated = update_hessian
        self._found: list[MP2Result] = []  # the last one is at the current geometry
        atoms = Geometry()
        atoms.elem = list(molecule.symbols)
        atoms.xyzs = [molecule.coordinates * bohr2ang]
        atoms.build_topology()
        if origin is None:
            origin = molecule
        try:
            coordinates = make_coordinates(
                molecule,
                atoms,
                origin,
                constraints,
                connect=bool(downhill) and len(atoms.molecules) == 1,  # as in geomeTRIC's command
            )
        except (*self._errors, LookupError, np.linalg.LinAlgError) as error:
            raise InputError(
                f"geomeTRIC cannot take the constraints ({' '.join(str(error).split())}): correct "
                "them"
            ) from error
        parameters = OptParams(
            convergence_set=search.convergence.upper(),
            maxiter=search.max_steps + 1,  # `next_geometry` stops earlier
            transition=search.transition_state,
            enforce=ENFORCED,
            frequency=False,
            irc=bool(downhill),
            irc_direction=downhill or "both",
            subfrctor=1 if molecule.point_charges is None else 0,
        )
        self._max_steps = search.max_steps
        self._judged = molecule.coordinates.flatten()
        self._constrained = bool(constraints.strip())
        self._in_field = molecule.point_charges is not None
        self._started_from_hessian = False
        self._probes = 0  # at the current geometry
        self._between = SOFTEST_BETWEEN
        self._measured = False  # whether a step or a probe has measured a curvature
        self.foreseen = ""
        self._downhill = downhill
        self._masses = masses(molecule)
        if downhill:  # masses used for frequencies, instead of isotope averages
            coordinates.mass = np.repeat(self._masses, 3)
        engine = _engine(atoms, self._found)
        self._optimizer = Optimizer(
            self._judged, atoms, coordinates, engine, None, parameters, print_info=False
        )

    @property
    def refused(self) -> bool:
        """Whether the last step is undone and a shorter one follows."""
        return not np.array_equal(self._optimizer.X, self._judged)

    @property
    def limits(self) -> dict[str, float]:
        """Convergence thresholds by the names in Point: Eh/bohr and angstrom."""
        parameters = self._optimizer.params
        return {
            "rms_gradient": float(parameters.Convergence_grms),
            "max_gradient": float(parameters.Convergence_gmax),
            "rms_displacement": float(parameters.Convergence_drms),
            "max_displacement": float(parameters.Convergence_dmax),
        }

    @property
    def arrived(self) -> bool:
        """Whether the downhill path has reached a valley, from which an optimisation continues."""
        return self.converged or bool(self._optimizer.IRC_info["opt"])

    @property
    def converged(self) -> bool:
        """Whether the last geometry is converged; `foreseen` then tells what the next step would
        change."""
        return bool(self._optimizer.state == self._states.CONVERGED)

    def judge(self, found: MP2Result, hessian: Any = None) -> Point:
        """Process energy and gradient of the current geometry.

        Parameters
        ----------
        hessian : (3 natom, 3 natom) Eh/bohr^2 at the first geometry, None for a model

        Raises
        ------
        NumericalError : geomeTRIC cannot continue
        """
        optimizer, self.foreseen = self._optimizer, ""
        self._probes = 0
        self._found[:] = [found]
        moved = (math.nan, math.nan)
        with self._asked():
            first = optimizer.Iteration == 0
            if hessian is not None and first:
                optimizer.params.hess_data = hessian
                optimizer.params.reset = False  # keep the Hessian even with negative curvatures
                self._started_from_hessian = True
            optimizer.calcEnergyForce()
            if first:
                optimizer.prepareFirstStep()
                if self._downhill:
                    self._choose_mode(hessian)
            # A rejected step is undone below
            energy, gradients = (optimizer.E, optimizer.calcGradNorm())
            self._judged = optimizer.X.copy()
            if not first:
                moved = self._displacement(optimizer.X, optimizer.Xprev)
                optimizer.evaluateStep()
                self._measured = True
                if optimizer.state == self._states.CONVERGED and not self._downhill:
                    self._learn_last_step()
                    limits = optimizer.params
                    # In a field, where geomeTRIC superposes the geometries
                    if moved[0] >= limits.Convergence_drms or moved[1] >= limits.Convergence_dmax:
                        optimizer.state = self._states.NEEDS_EVALUATION
        return Point(float(energy), *map(float, (*gradients, *moved)))

    def next_geometry(self) -> Any:
        """(natom, 3) bohr, or None at the end.

        Raises
        ------
        NumericalError : geomeTRIC cannot continue
        """
        optimizer, states = self._optimizer, self._states
        with self._asked():
            here = optimizer.X.copy()
            gradients = optimizer.calcGradNorm()
            while optimizer.state not in (states.CONVERGED, states.FAILED):
                optimizer.step()
                if optimizer.state == states.NEEDS_EVALUATION:
                    at_judged = np.array_equal(here, self._judged) and not self._downhill
                    if at_judged and self._needless(here, gradients):
                        optimizer.state = states.CONVERGED
                    elif optimizer.Iteration > self._max_steps:
                        optimizer.state = states.FAILED
                    else:
                        return optimizer.X.reshape(-1, 3).copy()
        return None

    def _choose_mode(self, hessian: Any) -> None:
        """Make the first step follow the imaginary mode; forwards, its largest component
        decreases."""
        from geometric.normal_modes import frequency_analysis

        optimizer = self._optimizer
        wavenumbers, modes, _ = frequency_analysis(optimizer.X, hessian, mass=self._masses)
        mode = modes[0]
        if mode[np.abs(mode).argmax()] < 0:
            modes[0] = -mode
        optimizer.TSWavenum = wavenumbers
        optimizer.TSNormal_modes_x = modes

    def _learn_last_step(self) -> None:
        """Update the Hessian with the last step, which geomeTRIC omits after convergence."""
        optimizer = self._optimizer
        optimizer.X_hist.append(optimizer.X)
        optimizer.Gx_hist.append(optimizer.gradx)
        optimizer.UpdateHessian()

    def unmeasured(self) -> Any:
        """A displaced geometry, (natom, 3) bohr, whose gradient will show whether the current one
        has converged; None if it has.

        The Hessian is rebuilt from the steps so far, but starting from the softest force constants
        that molecules have. If its step is below every threshold too, nothing unmeasured can change
        the verdict. Otherwise, and always if there has been no step, the gradient at a geometry
        slightly along that step measures the curvature.
        """
        optimizer = self._optimizer
        coordinates = optimizer.IC
        limits = optimizer.params
        if self._started_from_hessian or not hasattr(coordinates, "softest_hessian"):
            return None
        here = self._judged
        gradient = optimizer.Gx_hist[-1]
        if not self._in_field:  # rigid motions have no gradient but its errors
            rigid = rigid_motions(self._found[-1].molecule, np.ones(len(here) // 3))
            gradient = gradient - rigid @ (rigid.T @ gradient)
        if abs(gradient).max() < FLAT or self._probes == MOST_PROBES:
            return None
        free = copy(limits)
        free.reset = False
        with self._asked():
            softest = self._updated(
                coordinates,
                coordinates.softest_hessian(here, self._between),
                optimizer.X_hist,
                optimizer.Gx_hist,
                free,
                trust_limit=True,
                max_updates=100,
            )
            internal = coordinates.calcGrad(here, gradient)
            shift = max(0.0, SOFTEST_BETWEEN / 10 - float(np.linalg.eigvalsh(softest).min()))
            step, expected, _ = self._step_of(shift, here, internal, softest, coordinates, False, 0)
            to_cartesian = coordinates.wilsonB(here).T @ coordinates.GInverse(here)
            move = (to_cartesian @ np.ravel(step)).reshape(-1, 3)
        lengths = np.linalg.norm(move, axis=1) * ANGSTROM_PER_BOHR
        small = (
            lengths.max() < limits.Convergence_dmax
            and np.sqrt(np.mean(lengths**2)) < limits.Convergence_drms
            and abs(float(expected)) < limits.Convergence_energy
        )
        if lengths.max() == 0.0 or (small and self._measured):
            return None
        self._probes += 1
        return here.reshape(-1, 3) + move * (PROBE * ANGSTROM_PER_BOHR / lengths.max())

    def measure(self, result: MP2Result) -> str:
        """Learn the curvature from the gradient at the geometry of `unmeasured`, and return a
        description of it."""
        optimizer = self._optimizer
        here = self._judged
        gradient = optimizer.Gx_hist[-1]
        other = GradientResult(result).gradient.ravel().copy()
        place = result.molecule.coordinates.ravel()
        move = place - here
        curvature = float(move @ (other - gradient) / (move @ move))
        slope = float(move @ gradient / np.linalg.norm(move))
        # Inserted before the current geometry, so that updates by differences use it.
        optimizer.X_hist[-1:] = [place, here.copy()]
        optimizer.Gx_hist[-1:] = [other, gradient]
        optimizer.params.reset = False  # keep measured curvatures, even negative ones
        if not np.array_equal(optimizer.X, here):
            optimizer.Iteration -= 1  # for the foreseen step that was not taken
        optimizer.X = here.copy()
        with self._asked():
            optimizer.Y = optimizer.IC.calculate(optimizer.X)
            optimizer.G = optimizer.IC.calcGrad(optimizer.X, gradient).flatten()
            optimizer.H = self._updated(
                optimizer.IC,
                optimizer.H,
                optimizer.X_hist,
                optimizer.Gx_hist,
                optimizer.params,
                trust_limit=False,
                max_updates=1,
            )
        optimizer.state = self._states.NEEDS_EVALUATION
        self._measured = True
        self._between = max(SOFTEST_BETWEEN, curvature / SOFTER)
        return (
            f"curvature along the gradient that is left, measured: {curvature:.1e} Eh/bohr^2, at a "
            f"slope of {abs(slope):.1e} Eh/bohr"
        )

    def constraint_derivatives(self) -> tuple[Any, Any] | None:
        """First and second derivatives of the constrained coordinates at the current geometry, (m,
        3 natom) and (m, 3 natom, 3 natom); None without constraints."""
        coordinates, here = self._optimizer.IC, self._judged
        if not coordinates.haveConstraints():
            return None
        second = [
            np.reshape(one.second_derivative(here.reshape(-1, 3)), (here.size, here.size))
            for one in coordinates.Prims.cPrims
        ]
        return constrained_directions(coordinates, here), np.array(second)

    def _displacement(self, place: Any, before: Any) -> tuple[float, float]:
        """Root mean square and largest, angstrom; in a field with the motion as a whole."""
        if not self._in_field:
            return self._displacements(place, before)  # type: ignore[no-any-return]
        lengths = np.linalg.norm((place - before).reshape(-1, 3), axis=1) * ANGSTROM_PER_BOHR
        return float(np.sqrt(np.mean(lengths**2))), float(lengths.max())

    def _needless(self, here: Any, gradients: tuple[float, float]) -> bool:
        """Whether the next step from `here` (3 natom,) and the gradients are below all
        thresholds."""
        optimizer = self._optimizer
        limits, coordinates = optimizer.params, optimizer.IC
        moved = self._displacement(optimizer.X, here)
        self.foreseen = (
            f"the next step would move no atom by more than {moved[1]:.1e} angstrom and change the "
            f"energy by {optimizer.expect:.1e} Eh"
        )
        kept = coordinates.maxConstraintViolation(here) < limits.Convergence_cmax
        found = (*gradients, *moved, abs(optimizer.expect))
        names = ("grms", "gmax", "drms", "dmax", "energy")
        small = all(
            x < getattr(limits, f"Convergence_{name}") for x, name in zip(found, names, strict=True)
        )
        return bool(kept and small and optimizer.cnorm < UNLIMITED * optimizer.trust)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            with quiet(), np.errstate(all="ignore"):  # a step of zero length has no quality
                yield
        except (*self._errors, np.linalg.LinAlgError) as error:
            also = ""
            if self._constrained:
                also = ", or correct the constraints, which may contradict each other"
            raise NumericalError(
                f"geomeTRIC cannot go on ({' '.join(str(error).split())}): start from another "
                f"geometry{also}"
            ) from error
