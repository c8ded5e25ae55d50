"""Geometry optimisation of minima and transition states in internal coordinates.

geomeTRIC proposes the geometries (Wang, Song, J. Chem. Phys. 144, 214108 (2016):
translation-rotation-internal coordinates); each is one run with its gradient, whose SCF starts from
the orbitals of the previous run. A transition-state search begins with the Hessian of the first
geometry, by differences of gradients (`dfmp2.studies.frequencies`), a minimisation with a model
Hessian (`dfmp2.studies.geometric_search`). All decisions depend only on the numbers, so that a
resumed study retraces its path through the stored runs.

Energy and gradient are those of MP2, or of the custom scaling if os_scale or ss_scale is given.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Unpack

import numpy as np

from dfmp2.errors import Command, InputError, NumericalError, Option
from dfmp2.gradients.gradient import certified_gradient, require_gradient
from dfmp2.gradients.result import GradientResult
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import structure
from dfmp2.mp2.calculation import NOTHING, Checkpoint
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.methods import MP2
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.run_names import OF_FOUND
from dfmp2.output.study import MOST_RUNS, Column, Study
from dfmp2.progress import Listener, Wordless
from dfmp2.scf.reference import StartOrbitals
from dfmp2.studies.composite import CompositeOptions, columns_of_bases
from dfmp2.studies.coordinate import FREEZE, constraint_lines
from dfmp2.studies.frequencies import StoredHessian
from dfmp2.studies.geometric_search import (
    MINIMUM,
    GeomeTRIC,
    Point,
    Search,
    geometric_library,
    quiet,
)
from dfmp2.studies.hessian import (
    BY_FREQUENCIES,
    DISPLACEMENT,
    Said,
    displaced,
    for_differences,
    hessian,
    require_room,
)
from dfmp2.studies.runs import CarryOutKeywords, carry_out, without_densities
from dfmp2.studies.task import Failures, Numbers, Results, Step, Task, Unfinished, expanded
from dfmp2.studies.vibrations import StationaryPoint, stationary_point, symmetry_kept
from dfmp2.units import counted_text

CITATION = "geomeTRIC: L.-P. Wang, C. C. Song, J. Chem. Phys. 144, 214108 (2016)"
MOST_RESTARTS = 3  # along imaginary modes
# runs reserved in a study in addition to steps and Hessians: probes, and sides of saddle points
BESIDE = 50
# advice to those whose last Hessian leaves no room
AFTERWARDS: Said = (
    ", or take ",
    Command("frequencies"),
    " of the geometry that is found",
)
NOT_VERIFIED = "not verified as a {sought}: run dfmp2 frequencies, or add --verify"


def optimize_geometry(
    molecule: Molecule,
    options: Options,
    search: Search,
    *,
    start: StartOrbitals | None = None,
    start_hessian: StoredHessian | None = None,
    **how: Unpack[CarryOutKeywords],
) -> Study:
    """Optimise `molecule` to a stationary point; with `search.verify`, to a verified minimum or
    transition state.

    Parameters
    ----------
    start : start orbitals of the first run, None for those named by the options
    start_hessian : Hessian of a geometry near the first one; None for a model (minimum) or a
        computed one (transition state)
    how : as in `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study whose runs are the steps, with a table of their energies and gradients, and the array
    `final_geometry` (natom, 3), bohr

    Raises
    ------
    Unfinished : not converged after `search.max_steps` steps, or still not the desired stationary
        point after MOST_RESTARTS restarts; its `study` holds the runs
    InputError : geomeTRIC is missing, a single atom, ghosts, impossible constraints, or a
        transition state with constraints
    Dfmp2Error : of a run
    """
    if molecule.natom < 2:
        raise InputError(
            f"{molecule.formula} is one atom: there is nothing to optimise; ",
            Command("run"),
            " computes its energy",
        )
    require_no_ghosts(molecule)
    if search.transition_state and search.constraints.for_geometric(molecule):
        raise InputError(
            Option("transition_state", True),
            ": geomeTRIC looks for transition states without constraints only: leave them out, or "
            "look for the highest point of ",
            Command("scan"),
            " ",
            Option("relaxed", True),
        )
    if isinstance(options, CompositeOptions) and options.delta is not None:
        raise InputError(
            Option("delta", options.delta),
            " has no gradient: optimise without it, and compute the energy of the geometry with ",
            Command("cbs"),
        )
    first = Step(name="step-000", who="step 0", molecule=molecule, options=options)
    for run in expanded(first):
        require_gradient(run.molecule, run.options, separate=run.separate)
    _require_room(first, search, begins_with_hessian=start_hessian is None)
    listener = how.get("listener") or Listener()
    course = Course(first, search, listener, start_hessian=start_hessian)
    kept = symmetry_kept(molecule)
    if kept and not search.verify:
        listener.note(_may_be_a_saddle(kept))
    task = Task(
        kind="optimization",
        what=f"stationary point of {molecule.described}",
        molecule=molecule,
        options=options,
        steps=[first],
        evaluate=course.evaluate,
        chained=True,
        start=start,
        then=course.then,
        compute=certified_gradient,
        passed=without_densities,
        free=("precision", "tolerance", "scf_conv_tol"),  # errors may advise changing these midway
    )
    return carry_out(task, **how)


def require_no_ghosts(molecule: Molecule) -> None:
    """Raise for ghost atoms, which are in no geometry.

    Raises
    ------
    InputError : there are some
    """
    if any(molecule.ghost):
        raise InputError(
            "ghost atoms have a gradient but no geometry of their own, and would wander: leave "
            "them out, or optimise the molecule without them"
        )


def _require_room(first: Step, search: Search, *, begins_with_hessian: bool) -> None:
    """Raise if the steps and Hessians of a search may take more runs than a study holds. A search
    without a Hessian has nothing to lose and may begin.

    Parameters
    ----------
    begins_with_hessian : whether the search for a transition state computes one

    Raises
    ------
    InputError : what the Hessians take
    """
    hessians = int(search.verify) + int(search.transition_state and begins_with_hessian)
    option = Option("transition_state", True)
    beside = 1  # the first geometry
    instead = BY_FREQUENCIES
    if search.verify:
        option = Option("verify", True)
        beside = BESIDE
        instead = AFTERWARDS
    if hessians:
        require_room(
            first,
            hessians=hessians,
            geometries=search.max_steps + beside,
            about=(option, ": "),
            steps=f"{search.max_steps} steps",
            instead=instead,
        )


class Course:
    """The course of an optimisation through its runs: steps, probes, Hessians, and restarts.

    Parameters
    ----------
    first : Step
        The first geometry, with the options of every step; the SCF in runs for a Hessian is
        converged further.
    search : Search
    listener : Listener
    prefix : str, optional
        Prefix of the step names, if the study has several optimisations.
    start_hessian : StoredHessian, optional
        As in `optimize_geometry`.

    Attributes
    ----------
    points, path : list of Point, list of str
        The points judged so far, and the names of their runs.
    remarks : list of str
        Results of measurements other than the steps.
    verified : StationaryPoint or None
        The last geometry, if its Hessian is known.
    """

    def __init__(
        self,
        first: Step,
        search: Search,
        listener: Listener,
        *,
        prefix: str = "",
        start_hessian: StoredHessian | None = None,
    ) -> None:
        self._first = first
        self._molecule = first.molecule
        self._options = first.options
        self._search = search
        self._listener = listener
        self._prefix = prefix
        self._text = search.constraints.for_geometric(first.molecule)
        self._stored = start_hessian
        self._guess = None
        if start_hessian is not None:
            self._guess = start_hessian.turned_to(first.molecule)
        self.points: list[Point] = []
        self.path: list[str] = []
        self.remarks: list[str] = []
        self.verified: StationaryPoint | None = None
        self._restarts = 0
        self._probes = 0
        self._foreseen = ""
        with quiet():
            self._method = GeomeTRIC(first.molecule, search, self._text)

    def then(self, results: Results) -> Iterator[Sequence[Step]]:
        """The steps that follow the first one, as in Task."""
        guess = self._guess
        if self._search.transition_state and guess is None:
            tight = for_differences(self._options)
            yield displaced(replace(self._first, options=tight), DISPLACEMENT)
            guess = hessian(self._molecule, results, DISPLACEMENT)
        name = self._first.name
        while True:
            yield from self._descend(name, guess, results)
            if not self._search.verify:
                return
            verified = yield from self._verify(results)
            wanted = int(self._search.transition_state)
            if verified.imaginary <= wanted or not self._may_restart():
                break
            guess = verified.hessian
            self.verified = None  # it says nothing of the geometries that follow
            sides = self._sides(verified, wanted)
            yield sides
            name = min(sides, key=lambda side: round(results[side.name].total_energy, 8)).name
            rest = replace(self._search, max_steps=self._search.max_steps - self._steps() - 1)
            with quiet():
                self._method = GeomeTRIC(results[name].molecule, rest, self._text, self._molecule)
        if verified.imaginary != wanted:
            raise self._not_found(verified)

    def _descend(self, name: str, guess: Any, results: Results) -> Iterator[Sequence[Step]]:
        """Steps from the run of this name to a stationary point."""
        method = self._method
        while True:
            self.points.append(method.judge(results[name], guess))
            self.path.append(name)
            if name.startswith(self._prefix):  # the path has already reported its last point
                self._listener.note(f"{name}: {self.points[-1].said}")
            place = method.next_geometry()
            while place is None and method.converged:
                probe = method.unmeasured()
                if probe is None:
                    break
                self._probes += 1
                who = f"curvature {self._probes}"
                step = self._step(f"{self._prefix}curvature-{self._probes:03d}", who, probe)
                yield [replace(step, start=name, passing=True)]
                self._remark(method.measure(results[step.name]))
                place = method.next_geometry()
            if place is None:
                break
            number = self._steps() + 1
            name = f"{self._prefix}step-{number:03d}"
            yield [self._step(name, f"step {number}", place)]
        self._foreseen = method.foreseen
        if not method.converged:
            raise Unfinished(
                f"no stationary point after {counted_text(self._steps(), 'step')}: allow more with ",
                Option("max_steps"),
            )

    def _verify(self, results: Results) -> Generator[Sequence[Step], None, StationaryPoint]:
        """The runs for the Hessian of the last geometry; returns the stationary point it shows."""
        last = results[self.path[-1]]
        tight = for_differences(self._options)
        reference = Step(
            name=self.path[-1], who="the last geometry", molecule=last.molecule, options=tight
        )
        prefix = f"{OF_FOUND}{self._restarts + 1}-"
        yield displaced(reference, DISPLACEMENT, prefix)
        verified = stationary_point(
            last.molecule,
            hessian(last.molecule, results, DISPLACEMENT, prefix),
            GradientResult(last).gradient,
            self._method.constraint_derivatives(),
        )
        self._remark(f"after {counted_text(self._steps(), 'step')}: {verified.lines[0]}")
        self.verified = verified
        return verified

    def _may_restart(self) -> bool:
        """Whether the study has room for another descent and its Hessian, and steps are left."""
        hessians = self._restarts + 2 + int(self._search.transition_state)
        steps = self._search.max_steps + BESIDE + hessians * 6 * self._molecule.natom
        return (
            steps * len(expanded(self._first)) <= MOST_RUNS
            and self._steps() + 1 < self._search.max_steps
            and self._restarts < MOST_RESTARTS
        )

    def _sides(self, verified: StationaryPoint, wanted: int) -> list[Step]:
        """The geometries on both sides of a saddle point, from which the optimisation restarts."""
        self._restarts += 1
        number = self._steps() + 1
        return [
            self._step(f"step-{number:03d}-{side}", f"step {number}, {side} side", place)
            for side, place in zip(("plus", "minus"), verified.sides(wanted), strict=True)
        ]

    def _step(self, name: str, who: str, place: Any) -> Step:
        try:
            moved = replace(self._molecule, coordinates=place)
        except InputError as error:  # an atom comes too close to another, or to a point charge
            raise NumericalError(
                f"{who} leads to an impossible geometry ({error}): start from another one, or hold "
                "atoms with ",
                FREEZE,
            ) from error
        return Step(name=name, who=who, molecule=moved, options=self._options)

    def _steps(self) -> int:
        return len(self.points) - 1

    def _remark(self, text: str) -> None:
        self._listener.note(text)
        self.remarks.append(text)

    def _not_found(self, verified: StationaryPoint) -> Unfinished:
        """The error if the last stationary point is not of the desired kind."""
        left = counted_text(verified.imaginary, "imaginary mode")
        starts = counted_text(self._restarts, "new start")
        error = Unfinished(
            f"no {self._search.sought}, but a {verified.kind} ({left}) after {starts} along "
            "imaginary modes: begin with another geometry"
        )
        error.goes_on = False
        return error

    def evaluate(self, results: Results, _failures: Failures, complete: bool) -> Numbers:
        """The numbers of the study so far, as in Task."""
        runs = [results[name] for name in self.path]
        search = self._search
        settings = {
            "convergence": search.convergence.upper(),
            "limits": self._method.limits,
            "max_steps": search.max_steps,
            "transition_state": search.transition_state,
            "constraints": self._text,
            "steps": max(0, self._steps()),
            "symbols": list(self._molecule.symbols) if runs else [],
            "path": list(self.path),
            "verify": search.verify,
            "restarts": self._restarts,
            **self._kind(),
        }
        if self._stored is not None:
            settings["start_hessian"] = self._stored.path
        what = f"{settings['stationary_point']} of {self._molecule.described}"
        if search.transition_state and self.verified is None:
            what = f"{what}, sought as a transition state"
        notes = self._notes_on_method()
        if not runs:
            return Numbers(settings, notes, what=what)
        last = runs[-1]
        notes += self._notes_on_outcome(last, complete=complete)
        if not self._method.converged:
            notes.append("NOT CONVERGED: the last geometry is only the last")
        if complete and self._foreseen:
            notes.append(self._foreseen)
        return Numbers(
            settings=settings,
            notes=notes,
            values=_values(self.points),
            table=_table(self.points) | columns_of_bases(runs),
            arrays=self._arrays(last.molecule),
            what=what,
        )

    def _notes_on_method(self) -> list[str]:
        """How the geometries are found."""
        notes = [
            f"geometries by geomeTRIC {geometric_library().__version__}, convergence "
            f"{self._search.convergence.upper()}",
            CITATION,
        ]
        if self._stored is not None:
            notes.append(f"start Hessian: {self._stored.path}, {self._stored.result.level}")
        return notes

    def _notes_on_outcome(self, last: MP2Result, *, complete: bool) -> list[str]:
        """What is known of the last geometry."""
        notes = []
        if last.gradient is not None and last.gradient.scaling != MP2.title:
            notes.append(f"energy and gradient of {last.gradient.scaling}")
        notes += [f"constraint: {line}" for line in constraint_lines(self._text, last.molecule)]
        notes += self.remarks
        if self.verified is not None:
            return notes + self.verified.lines[1:]
        if complete:
            notes.append(NOT_VERIFIED.format(sought=self._search.sought))
        kept = symmetry_kept(self._molecule)
        if kept:
            notes.append(_may_be_a_saddle(kept))
        return notes

    def _kind(self) -> dict[str, Any]:
        """What is known about the stationary point, by key of the settings."""
        if self.verified is None:
            return {"stationary_point": "stationary point", "imaginary_modes": None}
        return {
            "stationary_point": self.verified.kind,
            "imaginary_modes": self.verified.imaginary,
        }

    def _arrays(self, last: Molecule) -> dict[str, Dataset]:
        about = "positions of the atoms in the last geometry (natom, 3)"
        arrays = {"final_geometry": Dataset(last.coordinates, "bohr", about)} | _structure(last)
        if self.verified is not None:
            arrays["hessian"] = Dataset(
                self.verified.hessian,
                "hartree/bohr^2",
                "second derivatives of the energy, along the constraints (3 natom, 3 natom)",
            )
            arrays["wavenumbers"] = Dataset(
                self.verified.modes.wavenumber, "cm^-1", "harmonic, negative where imaginary (n)"
            )
        return arrays


def _structure(molecule: Molecule) -> dict[str, Dataset]:
    """Bonds, angles and contacts as arrays, atoms counted from 1; empty ones are omitted."""
    shape = structure(molecule)
    kinds = (
        ("bond", "lengths", "angstrom", "of bonds", shape.bonds),
        ("angle", "values", "degree", "of bond angles", shape.angles),
        (
            "contact",
            "lengths",
            "angstrom",
            "of each fragment and the one nearest to it",
            shape.contacts,
        ),
    )
    arrays = {}
    for name, values, units, about, rows in kinds:
        if not rows:
            continue
        atoms = np.array([[atom + 1 for atom in place] for place, _ in rows])
        arrays[f"{name}_atoms"] = Dataset(atoms, "", f"numbers of the atoms {about}, from 1")
        arrays[f"{name}_{values}"] = Dataset(np.array([value for _, value in rows]), units, about)
    return arrays


def _may_be_a_saddle(symmetry: str) -> str:
    return (
        f"the start is {symmetry} and stays so, because its forces do not break the symmetry: the "
        "result may be a saddle point; --verify finds out and continues from there"
    )


def _table(points: Sequence[Point]) -> dict[str, Column]:
    numbers = tuple(float(k) for k in range(len(points)))
    table = {"step": Column(numbers, "", "number of the geometry")}
    for field in fields(Point):
        column = [getattr(point, field.name) for point in points]
        table[field.name] = Column(column, field.metadata["units"], field.metadata["description"])
    return table


def _values(points: Sequence[Point]) -> dict[str, Dataset]:
    first, last = points[0], points[-1]
    return {
        "optimized_total_energy": Dataset(
            last.total_energy, "hartree", "energy of the last geometry"
        ),
        "energy_change": Dataset(
            last.total_energy - first.total_energy, "hartree", "since the first geometry"
        ),
        "max_gradient": Dataset(
            last.max_gradient, "hartree/bohr", "largest gradient of an atom, last geometry"
        ),
    }


def minimum(
    molecule: Molecule,
    options: Options,
    *,
    search: Search = MINIMUM,
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str,
    checkpoint: Checkpoint = NOTHING,
    doubt_units: bool = True,
) -> MP2Result:
    """The result at the stationary point, with its gradient, as an item of a batch; if stopped, it
    restarts from the beginning.

    Parameters
    ----------
    checkpoint, doubt_units : part of the interface of a run; ignored

    Raises
    ------
    Dfmp2Error : as in `optimize_geometry`
    """
    study = optimize_geometry(
        molecule, options, search, start=start, listener=listener, command=command
    )
    return list(study.path.values())[-1]


def relaxed_point(
    molecule: Molecule, options: Options, *, listener: Listener, **how: Any
) -> MP2Result:
    """As `minimum`, for a point of a relaxed scan, with a line about it."""
    result = minimum(molecule, options, listener=Wordless(listener), **how)
    listener.stage(f"optimised: E = {result.total_energy:.10f} Eh")
    return result
