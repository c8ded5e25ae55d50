"""Geometries of minima and of transition states, in internal coordinates.

geomeTRIC proposes the geometries (Wang, Song, J. Chem. Phys. 144, 214108 (2016): translation-rotation-internal
coordinates); each is one run with its gradient, its SCF started from the orbitals of the run before. A transition state
begins with the Hessian of the first geometry, by differences of gradients (`dfmp2.studies.frequencies`), a minimum with
a model of it, whose force constant of a torsion about the bond jk is

    0.0023 - 0.07 (r_jk - r_cov)    Eh/rad^2, 0.0023 at least, lengths in bohr                                      (1)

(Schlegel, Theor. Chim. Acta 66, 333 (1984)); geomeTRIC has ten times as much. Everything is decided by the numbers
alone, so that a study which goes on takes the same way through its stored runs again.

Energy and gradient are those of MP2, or of the custom scaling where os_scale or ss_scale are given.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Unpack

import numpy as np

from dfmp2.errors import InputError, NumericalError
from dfmp2.gradients.gradient import GradientResult
from dfmp2.messages import Command, Message, Option, plain
from dfmp2.molecule.elements import internal_coordinate, radius
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.calculation import NOTHING, Checkpoint
from dfmp2.mp2.result import MP2Result
from dfmp2.options import MP2, Options
from dfmp2.output.document import counted
from dfmp2.output.hdf5 import Item
from dfmp2.output.study import MOST_RUNS, Column, Study
from dfmp2.progress import Listener
from dfmp2.scf.reference import StartOrbitals
from dfmp2.studies.coordinate import ATOMS, parse_atoms, parse_place
from dfmp2.studies.frequencies import DISPLACEMENT, displaced, hessian
from dfmp2.studies.runs import (
    Failures,
    How,
    Numbers,
    Results,
    Step,
    Task,
    Unfinished,
    carry_out,
    examine,
    gradient,
    without_densities,
)
from dfmp2.units import ANGSTROM_PER_BOHR, BOHR_PER_ANGSTROM, quantity

CITATION = "geomeTRIC: L.-P. Wang, C. C. Song, J. Chem. Phys. 144, 214108 (2016)"
INSTALL = "pip install 'dfmp2[opt]'"
# What a minimum is held to, by geomeTRIC's names: change of the energy (Eh), gradient and displacement of an atom, root
# mean square and largest (Eh/bohr, angstrom). Change and displacement are those of the last step, as geomeTRIC has
# them, or of the next one, as Gaussian and optking have them.
PRESETS = (
    "GAU",
    "GAU_LOOSE",
    "GAU_TIGHT",
    "GAU_VERYTIGHT",
    "NWCHEM_LOOSE",
    "TURBOMOLE",
    "INTERFRAG_TIGHT",
)
MOST_STEPS = 100
UNLIMITED = (
    0.8  # of the trust radius; a shorter step is as long as the model of the energy wants it
)
ENFORCED = 0.1  # bohr or radian; constraints that are nearer to their value are met exactly
KINDS = {
    "bond": "distance",
    "distance": "distance",
    "angle": "angle",
    "dihedral": "dihedral",
    "xyz": "xyz",
}
FREEZE, SET = Option("freeze"), Option("fixed", flag="set")
EXPECTED = "expected bond I,J, angle I,J,K, dihedral I,J,K,L or xyz RANGES, atoms counted from 1"


@dataclass(frozen=True, slots=True)
class Constraints:
    """What stays as it is, or is brought to a value.

    Attributes
    ----------
    frozen : (kind, atoms) as ("bond", "1,2"), ("xyz", "1-3+7")
    fixed : (kind, atoms, value) as ("angle", "2,1,3", "90"); degrees, and lengths in `units`
    text : a constraints file of geomeTRIC, "" for none
    units : "angstrom" or "bohr"
    """

    frozen: Sequence[tuple[str, str]] = ()
    fixed: Sequence[tuple[str, str, str]] = ()
    text: str = ""
    units: str = "angstrom"

    def for_geometric(self, molecule: Molecule) -> str:
        """All of them in geomeTRIC's format, lengths in angstrom; "" for none.

        Raises
        ------
        InputError : atoms that do not exist or are named twice, a value that no such coordinate has, a coordinate that
            is constrained twice or whose atoms are all held, a file with more than constraints
        """
        lines = [f"$freeze\n{_line(FREEZE, kind, atoms, molecule)}" for kind, atoms in self.frozen]
        lines += [
            f"$set\n{_line(SET, kind, atoms, molecule)} {self._value(kind, atoms, value)!r}"
            for kind, atoms, value in self.fixed
        ]
        for line in self.text.splitlines():
            word = line.partition("#")[0].strip().lower()
            if word.startswith("$scan"):
                raise InputError(
                    Option("constraints"),
                    ": $scan asks for several optimisations: use ",
                    Command("scan"),
                    ", or one $set each",
                )
            if word.startswith("$options"):
                raise InputError(
                    Option("constraints"),
                    ": $options are those of geomeTRIC's command: use the options of dfmp2",
                )
        text = "\n".join([*lines, *([self.text] if self.text.strip() else [])])
        _require_once(text)
        return text

    def _value(self, kind: str, atoms: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        least, most, what = {
            "angle": (0.0, 180.0, "degrees above 0 and below 180"),
            "dihedral": (-360.0, 360.0, "degrees between -360 and 360"),
        }.get(kind, (0.0, 1e3, f"a length above 0 in {self.units}"))
        if kind == "xyz" or not least < value < most:
            expected = Message(what)
            if kind == "xyz":
                expected = Message("positions as they are: ", FREEZE.of("xyz"))
            raise InputError(SET, f" {kind} {atoms} {text[:40]}: expected ", expected)
        if KINDS[kind] == "distance" and self.units == "bohr":
            return value * ANGSTROM_PER_BOHR
        return value


def _line(option: Option, kind: str, atoms: str, molecule: Molecule) -> str:
    if kind not in KINDS:
        raise InputError(option, f" {kind[:40]!r}: {EXPECTED}")
    if kind == "xyz":
        chosen = parse_atoms(atoms, molecule.natom, option)
        return "xyz " + ",".join(str(atom + 1) for atom in chosen)
    of_kind = replace(option, flag=f"{option.flag or option.name} {kind}")
    place = parse_place(of_kind, kind.replace("distance", "bond"), atoms, molecule.natom)
    return " ".join([KINDS[kind], *(str(atom + 1) for atom in place)])


def _require_once(text: str) -> None:
    """Refuse constraints that can contradict each other."""
    rows = [line.partition("#")[0].lower().split() for line in text.splitlines()]
    held = {atom for row in rows if row[:1] == ["xyz"] and len(row) > 1 for atom in _listed(row[1])}
    seen = set()
    for kind, *words in filter(None, rows):
        count = ATOMS.get(kind.replace("distance", "bond"))
        if count is None:
            continue
        place = tuple(words[:count])
        coordinate = KINDS[kind], min(place, place[::-1])
        said = f"{kind.replace('distance', 'bond')} {','.join(place)}"
        if coordinate in seen:
            raise InputError(
                f"{said} is constrained twice: keep one of ",
                FREEZE,
                ", ",
                SET,
                " and the lines of ",
                Option("constraints"),
            )
        if held.issuperset(place):
            raise InputError(
                f"{said} is constrained, and all its atoms are held by xyz: leave one of them out"
            )
        seen.add(coordinate)


def _listed(ranges: str) -> Iterator[str]:
    """The atoms of "1-3,7"."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            yield from map(str, range(int(first), int(last or first) + 1))


@dataclass(frozen=True, slots=True)
class Search:
    """How a geometry is looked for.

    Attributes
    ----------
    constraints : what is kept or set
    convergence : one of PRESETS, in any case
    max_steps : after the first geometry
    transition_state : look for a saddle point of first order
    """

    constraints: Constraints = Constraints()
    convergence: str = "GAU"
    max_steps: int = MOST_STEPS
    transition_state: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_steps", plain(self.max_steps))
        if self.convergence.upper() not in PRESETS:
            raise InputError(
                Option("convergence", self.convergence), f": expected one of {', '.join(PRESETS)}"
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


@dataclass(frozen=True, slots=True)
class Point:
    """A geometry that was judged; gradients and displacements as of PRESETS, NaN where there is none yet."""

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
        """It in one line."""
        if math.isnan(self.max_displacement):
            moved = ""
        else:
            moved = f", moved by {self.max_displacement:.1e} angstrom at most"
        return f"E = {self.total_energy:.10f} Eh, largest gradient of an atom {self.max_gradient:.1e} Eh/bohr{moved}"


def optimize_geometry(
    molecule: Molecule,
    options: Options,
    search: Search = Search(),
    *,
    start: StartOrbitals | None = None,
    **how: Unpack[How],
) -> Study:
    """The geometry of a minimum or of a transition state, from that of `molecule`.

    Parameters
    ----------
    start : start orbitals of the first run, None for those that the options name
    how : as of `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study; its runs are the steps, its table their energies and gradients, its arrays `final_geometry` (natom, 3), bohr

    Raises
    ------
    Unfinished : not converged after `search.max_steps` steps; its `study` holds them
    InputError : geomeTRIC is missing, one atom, ghosts, constraints that cannot be
    Dfmp2Error : of a run
    """
    if search.transition_state:
        kind = "transition state"
    else:
        kind = "minimum"
    if molecule.natom < 2:
        raise InputError(
            f"{molecule.formula} is one atom: there is nothing to optimise; ",
            Command("run"),
            " computes its energy",
        )
    if any(molecule.ghost):
        raise InputError(
            "ghost atoms have a gradient but no geometry of their own, and would wander: leave them out, or optimise "
            "the molecule without them"
        )
    listener, text = how.get("listener") or Listener(), search.constraints.for_geometric(molecule)
    begin = "step-000"
    steps = [Step(begin, "step 0", molecule, options)]
    points: list[Point] = []
    with quiet():
        method = GeomeTRIC(molecule, search, text)
    examine(steps)

    def then(results: Results) -> Iterator[Sequence[Step]]:
        guess = None
        if search.transition_state:
            yield displaced(steps[0], DISPLACEMENT)
            guess = hessian(molecule, results, DISPLACEMENT)
        number, found = 0, results[begin]
        while True:
            points.append(method.judge(found, guess))
            place = method.next_geometry()
            listener.stage(points[-1].said)
            if place is None:
                break
            number += 1
            try:
                moved = replace(molecule, coordinates=place)
            except (
                InputError
            ) as error:  # an atom comes too near to another one, or to a point charge
                raise NumericalError(
                    (
                        f"step {number} leads to an impossible geometry ({error}): start from another "
                        "one, or hold atoms with "
                    ),
                    FREEZE,
                ) from error
            yield [Step(f"step-{number:03d}", f"step {number}", moved, options)]
            found = results[f"step-{number:03d}"]
        if not method.converged:
            raise Unfinished(
                f"no {kind} after {counted(search.max_steps, 'step')}: allow more with ",
                Option("max_steps"),
            )

    def evaluate(results: Results, _failures: Failures, complete: bool) -> Numbers:
        runs = [run for name, run in results.items() if name.startswith("step-")][: len(points)]
        return _numbers(
            search, text, points, runs, method.foreseen if complete else "", complete=complete
        )

    what = f"{kind} of {molecule.name} ({molecule.formula})"
    task = Task(
        *("optimization", what, molecule, options, steps, evaluate),
        chained=True,
        start=start,
        then=then,
        compute=gradient,
        passed=without_densities,
        free=("precision", "tolerance", "scf_conv_tol"),  # what an error advises to change half way
    )
    return carry_out(task, **how)


def minimum(
    molecule: Molecule,
    options: Options,
    *,
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.studies.optimize",
    checkpoint: Checkpoint = NOTHING,
    constraints: str = "",
) -> MP2Result:
    """The result at the minimum, with its gradient: the item of a batch. One that is stopped begins again.

    Parameters
    ----------
    constraints : in geomeTRIC's format

    Raises
    ------
    Dfmp2Error : as of `optimize_geometry`
    """
    search = Search(Constraints(text=constraints))
    found = optimize_geometry(
        molecule, options, search, start=start, listener=listener, command=command
    )
    return list(found.runs.values())[-1]


def _numbers(
    search: Search,
    text: str,
    points: Sequence[Point],
    runs: Sequence[MP2Result],
    foreseen: str,
    *,
    complete: bool,
) -> Numbers:
    settings = {
        "convergence": search.convergence.upper(),
        "max_steps": search.max_steps,
        "transition_state": search.transition_state,
        "constraints": text,
        "steps": max(0, len(points) - 1),
        "symbols": list(runs[0].molecule.symbols) if runs else [],
    }
    notes = [
        f"geometries by geomeTRIC {_library().__version__}, convergence {search.convergence.upper()}",
        CITATION,
    ]
    if not points:
        return Numbers(settings, notes)
    last = runs[-1]
    if last.gradient is not None and last.gradient.scaling != MP2.title:
        notes.append(f"energy and gradient of {last.gradient.scaling}")
    notes += [f"constraint: {line}" for line in _kept(text, last.molecule)]
    table = {"step": Column(tuple(map(float, range(len(points)))), "", "number of the geometry")}
    for field in fields(Point):
        found = [getattr(point, field.name) for point in points]
        table[field.name] = Column(found, field.metadata["units"], field.metadata["description"])
    values = {
        "optimized_total_energy": Item(
            points[-1].total_energy, "hartree", "energy of the last geometry"
        ),
        "energy_change": Item(
            points[-1].total_energy - points[0].total_energy, "hartree", "since the first geometry"
        ),
        "max_gradient": Item(
            points[-1].max_gradient, "hartree/bohr", "largest gradient of an atom, last geometry"
        ),
    }
    if not complete:
        notes.append("NOT CONVERGED: the last geometry is only the last")
    notes += [foreseen] if foreseen else []
    about = "positions of the atoms in the last geometry (natom, 3)"
    return Numbers(
        settings,
        notes,
        values,
        table,
        {"final_geometry": Item(last.molecule.coordinates, "bohr", about)},
    )


def _kept(text: str, molecule: Molecule) -> list[str]:
    """The bonds, angles and dihedrals that are constrained, with their values in a geometry; and other constraints."""
    said = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if (
            len(words) > 2
            and words[0].lower() in ATOMS | {"distance": 2}
            and not line.startswith("$")
        ):
            kind = words[0].lower().replace("distance", "bond")
            place = [int(word) - 1 for word in words[1 : 1 + ATOMS[kind]]]
            value = internal_coordinate(molecule.coordinates[place])
            if kind == "bond":
                shown = f"{value * ANGSTROM_PER_BOHR:.6f} angstrom"
            else:
                shown = f"{math.degrees(value):.4f} degrees"
            said.append(f"{kind} {'-'.join(str(atom + 1) for atom in place)} = {shown}")
        elif words and not words[0].startswith("$"):
            said.append(" ".join(words))
    return said


# --- geomeTRIC ------------------------------------------------------------------------------------------


def torsional_constant(molecule: Molecule, places: Any, j: int, k: int) -> float:
    """Eq. 1, Eh/rad^2, of the bond between atoms j and k at `places` (natom, 3), bohr."""
    stretched = float(np.linalg.norm(places[j] - places[k])) - BOHR_PER_ANGSTROM * sum(
        radius(molecule.symbols[atom]) for atom in (j, k)
    )
    return 0.0023 - 0.07 * min(0.0, stretched)


def _library() -> Any:
    """geomeTRIC.

    Raises
    ------
    InputError : it is not installed
    """
    try:
        import geometric
    except ImportError as error:
        raise InputError(f"the optimisation needs geomeTRIC ({error}): {INSTALL}") from error
    return geometric


@contextmanager
def quiet() -> Iterator[None]:
    """geomeTRIC says nothing in the block; its progress is in our table."""
    logger = logging.getLogger("geometric")
    handler, propagates = logging.NullHandler(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)


class GeomeTRIC:
    """Its optimiser, asked for one geometry after the other.

    Parameters
    ----------
    constraints : in its format, "" for none

    Raises
    ------
    InputError : it is missing, or cannot make coordinates with these constraints
    """

    def __init__(self, molecule: Molecule, search: Search, constraints: str) -> None:
        _library()
        from geometric.engine import Engine
        from geometric.errors import Error
        from geometric.internal import DelocalizedInternalCoordinates, Dihedral
        from geometric.molecule import Molecule as Geometry
        from geometric.nifty import bohr2ang
        from geometric.optimize import OPT_STATE, Optimizer
        from geometric.params import OptParams
        from geometric.prepare import parse_constraints
        from geometric.step import calc_drms_dmax

        self._states, self._errors, self._displacements = (
            OPT_STATE,
            (Error, RuntimeError, ValueError),
            calc_drms_dmax,
        )
        self._found: list[MP2Result] = []  # the last one is of the present geometry
        atoms = Geometry()
        atoms.elem = list(molecule.symbols)
        atoms.xyzs = [molecule.coordinates * bohr2ang]
        atoms.build_topology()

        class Given(Engine):  # type: ignore[misc] # its types are not followed
            """Energy and gradient of the run that was made of the optimiser's geometry."""

            def calc(engine, *_: Any, **__: Any) -> dict[str, Any]:  # noqa: N805 - `self` is the optimiser here
                found = self._found[-1]
                return {
                    "energy": found.total_energy,
                    "gradient": GradientResult(found).gradient.ravel().copy(),
                }

            def save_guess_files(engine, _: str) -> None:  # noqa: N805
                pass

            load_guess_files = save_guess_files

        class Coordinates(DelocalizedInternalCoordinates):  # type: ignore[misc]
            """Its coordinates, with softer torsions in the model Hessian: Eq. 1."""

            def guess_hessian(own, place: Any) -> Any:  # noqa: N805
                model = own.Prims.guess_hessian(place)
                for k, torsion in enumerate(own.Prims.Internals):
                    if type(torsion) is Dihedral:
                        model[k, k] = torsional_constant(
                            molecule, place.reshape(-1, 3), torsion.b, torsion.c
                        )
                return own.Vecs.T @ model @ own.Vecs

        objects, values = None, [None]
        try:
            if constraints.strip():
                objects, values = parse_constraints(atoms, constraints)
            coordinates = Coordinates(
                *(atoms,),
                build=True,
                connect=False,
                addcart=False,
                constraints=objects,
                cvals=values[0],
                conmethod=0,
            )
        except (*self._errors, LookupError, np.linalg.LinAlgError) as error:
            raise InputError(
                f"geomeTRIC cannot take the constraints ({' '.join(str(error).split())}): correct them"
            ) from error
        parameters = OptParams(
            convergence_set=search.convergence.upper(),
            maxiter=search.max_steps + 1,  # `next_geometry` stops before
            transition=search.transition_state,
            enforce=ENFORCED,
            frequency=False,
            subfrctor=1 if molecule.point_charges is None else 0,
        )
        given, self._max_steps = molecule.coordinates.flatten(), search.max_steps
        self._judged, self._constrained = given, bool(constraints.strip())
        self.foreseen = ""
        self._optimizer = Optimizer(
            given, atoms, coordinates, Given(atoms), None, parameters, print_info=False
        )

    @property
    def converged(self) -> bool:
        """Whether the last geometry is what was looked for; then `foreseen` says what the next one would change."""
        return bool(self._optimizer.state == self._states.CONVERGED)

    def judge(self, found: MP2Result, hessian: Any = None) -> Point:
        """Take energy and gradient of the present geometry.

        Parameters
        ----------
        hessian : (3 natom, 3 natom) Eh/bohr^2 of the first geometry, None for a model

        Raises
        ------
        NumericalError : geomeTRIC cannot go on
        """
        optimizer, self.foreseen = self._optimizer, ""
        self._found[:] = [found]
        moved = (math.nan, math.nan)
        with self._asked():
            first = optimizer.Iteration == 0
            if hessian is not None and first:
                optimizer.params.hess_data = hessian
            optimizer.calcEnergyForce()
            if first:
                optimizer.prepareFirstStep()
            energy, gradients = (
                optimizer.E,
                optimizer.calcGradNorm(),
            )  # a step that is refused is undone below
            self._judged = optimizer.X.copy()
            if not first:
                moved = self._displacements(optimizer.X, optimizer.Xprev)
                optimizer.evaluateStep()
        return Point(float(energy), *map(float, (*gradients, *moved)))

    def next_geometry(self) -> Any:
        """(natom, 3) bohr, or None at the end.

        Raises
        ------
        NumericalError : geomeTRIC cannot go on
        """
        optimizer, states = self._optimizer, self._states
        with self._asked():
            here, gradients = optimizer.X.copy(), optimizer.calcGradNorm()
            while optimizer.state not in (states.CONVERGED, states.FAILED):
                optimizer.step()
                if optimizer.state == states.NEEDS_EVALUATION:
                    if np.array_equal(here, self._judged) and self._needless(here, gradients):
                        optimizer.state = states.CONVERGED
                    elif optimizer.Iteration > self._max_steps:
                        optimizer.state = states.FAILED
                    else:
                        return optimizer.X.reshape(-1, 3).copy()
        return None

    def _needless(self, here: Any, gradients: tuple[float, float]) -> bool:
        """Whether the step that would come next, from `here` (3 natom,), is below every limit, as the gradients are."""
        optimizer = self._optimizer
        limits, coordinates = optimizer.params, optimizer.IC
        moved = self._displacements(optimizer.X, here)
        self.foreseen = (
            f"the next step would move no atom by more than {moved[1]:.1e} angstrom and change the energy by "
            f"{optimizer.expect:.1e} Eh"
        )
        kept = not coordinates.haveConstraints() or (
            coordinates.maxConstraintViolation(here) < limits.Convergence_cmax
        )
        found = (*gradients, *moved, abs(optimizer.expect))
        names = ("grms", "gmax", "drms", "dmax", "energy")
        small = all(
            x < getattr(limits, f"Convergence_{name}") for x, name in zip(found, names, strict=True)
        )
        return bool(kept and small and optimizer.cnorm < UNLIMITED * optimizer.trust)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            with quiet(), np.errstate(all="ignore"):  # a step of no length has no quality
                yield
        except (*self._errors, np.linalg.LinAlgError) as error:
            if self._constrained:
                also = ", or correct the constraints, which may contradict each other"
            else:
                also = ""
            raise NumericalError(
                f"geomeTRIC cannot go on ({' '.join(str(error).split())}): start from another geometry{also}"
            ) from error
