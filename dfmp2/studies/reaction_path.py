"""The intrinsic reaction coordinate: from a transition state down both sides to the minima.

geomeTRIC takes the steps (Gonzalez, Schlegel, J. Phys. Chem. 94, 5523 (1990)): first along the
imaginary mode, then along arcs of steepest descent in mass-weighted coordinates, 0.1 angstrom times
the root of the mode's reduced mass apart. Once the largest gradient of an atom has fallen to a
tenth of its maximum, the optimisation of `dfmp2.studies.optimize` continues to the minimum. The
length of the path is

    s = sum_k sqrt(sum_A m_A |x_A(k+1) - x_A(k)|^2)        sqrt(u) bohr                             (1)

for geometries rotated onto each other, with the masses of the most abundant isotopes; it is
negative in the backward direction. The forward direction is that in which the largest component of
the imaginary mode decreases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Unpack

import numpy as np

from dfmp2.errors import Command, InputError, NumericalError, Option
from dfmp2.gradients.gradient import certified_gradient, require_gradient
from dfmp2.gradients.result import GradientResult
from dfmp2.molecule.elements import bonds
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import fragment_formulas, rotation_onto
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study
from dfmp2.progress import Listener
from dfmp2.studies.frequencies import StoredHessian
from dfmp2.studies.geometric_search import MINIMUM, GeomeTRIC, Search, geometric_library, quiet
from dfmp2.studies.hessian import (
    BY_FREQUENCIES,
    DISPLACEMENT,
    displaced,
    for_differences,
    hessian,
    require_room,
)
from dfmp2.studies.interaction import in_units
from dfmp2.studies.optimize import CITATION, Course
from dfmp2.studies.runs import CarryOutKeywords, carry_out, without_densities
from dfmp2.studies.task import Failures, Numbers, Results, Step, Task, Unfinished
from dfmp2.studies.vibrations import (
    StationaryPoint,
    largest_gradient,
    masses,
    require_stationary,
    stationary_point,
)
from dfmp2.units import (
    ANGSTROM_PER_BOHR,
    KJ_PER_MOL_PER_HARTREE,
    counted_text,
)

SIDES = ("backward", "forward")
TOP = "transition-state"
SAME_GEOMETRY = 0.02 / ANGSTROM_PER_BOHR  # bohr; of a stored Hessian that is one of this geometry
AT_THIS_GEOMETRY = 1e-4  # angstrom
# of the largest gradient on this side: below it the path is in the valley of the minimum
VALLEY = 0.1
IRC_CITATION = "C. Gonzalez, H. B. Schlegel, J. Phys. Chem. 94, 5523 (1990)"
# measured for HCN, HNO and CH2O against steps a quarter as long
STEPS = (
    "steps of 0.1 angstrom times the root of the imaginary mode's reduced mass: between the "
    "stationary points, energies at a given s are up to about 1 % of the descent too high; runs "
    "named minimum-step belong to an optimisation, not to the path"
)
FOR_A_PATH = (
    "a path begins at a transition state: give the geometry of ",
    Command("optimize"),
    " ",
    Option("transition_state", True),
    " with this method and basis",
)


def reaction_path(
    molecule: Molecule,
    options: Options,
    search: Search = MINIMUM,
    start_hessian: StoredHessian | None = None,
    **how: Unpack[CarryOutKeywords],
) -> Study:
    """The path from a transition state to the minima on both sides.

    Parameters
    ----------
    molecule : Molecule
        The transition state.
    options : Options
        The SCF is converged to at least 1e-11 Eh.
    search : Search, optional
        Its convergence applies to the minima; its max_steps to each side, where they count the
        steps of the path and those of the optimisation together.
    start_hessian : StoredHessian, optional
        Hessian of this geometry; None to compute it.
    how : as in `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study with a table row per geometry, from the backward minimum to the forward one

    Raises
    ------
    Unfinished : max_steps are not enough; its `study` holds the path so far
    NumericalError : not a transition state
    InputError : a single atom, ghosts, a method without gradients, a Hessian of something else, or
        more runs than a study allows
    Dfmp2Error : of a run
    """
    if molecule.natom < 2 or any(molecule.ghost):
        raise InputError(
            f"{molecule.formula} has no reaction path: give two atoms or more, and no ghosts"
        )
    if molecule.point_charges is not None:
        raise InputError(
            "a reaction path leaves out rotations, which point charges resist: leave out ",
            Option("point_charges"),
        )
    require_gradient(molecule, options)
    options = for_differences(options)
    top = Step(name=TOP, who="the transition state", molecule=molecule, options=options)
    if start_hessian is None:
        _require_room(top, search)
    descent = _Descent(top, search, start_hessian, how.get("listener") or Listener())
    task = Task(
        kind="irc",
        what=f"reaction path of {molecule.described}",
        molecule=molecule,
        options=options,
        steps=[top],
        evaluate=descent.evaluate,
        chained=True,
        then=descent.then,
        compute=certified_gradient,
        passed=without_densities,
        free=("precision", "tolerance"),
    )
    return carry_out(task, **how)


def _require_room(top: Step, search: Search) -> None:
    """Raise if the Hessian of the transition state leaves too few runs for both sides of the path.

    Raises
    ------
    InputError : what the Hessian takes
    """
    require_room(
        top,
        hessians=1,
        geometries=len(SIDES) * search.max_steps + 1,
        about=("a path begins with ",),
        steps=f"{search.max_steps} steps on each side",
        instead=BY_FREQUENCIES,
    )


class _Descent:
    """The descent from the transition state on both sides.

    Parameters
    ----------
    top : Step
        The transition state.
    search : Search
    stored : StoredHessian or None
    listener : Listener

    Attributes
    ----------
    sides : dict of str to list of str
        The names of the runs from the transition state (excluded) to where an optimisation begins.
    courses : dict of str to Course
        The optimisations begun so far, each of which goes on from the last run of its side.
    minima : dict of str to str
        The name of the run at each minimum found so far.
    """

    def __init__(
        self, top: Step, search: Search, stored: StoredHessian | None, listener: Listener
    ) -> None:
        self._top = top
        self._search = search
        self._stored = stored
        self._listener = listener
        self._hessian: Any = None
        if stored is not None:
            self._hessian = stored.turned_to(top.molecule, SAME_GEOMETRY)
        self._point: StationaryPoint | None = None
        self.sides: dict[str, list[str]] = {side: [] for side in SIDES}
        self.courses: dict[str, Course] = {}
        self.minima: dict[str, str] = {}
        geometric_library()

    def then(self, results: Results) -> Iterator[Sequence[Step]]:
        """The steps that follow the transition state, as in Task."""
        require_stationary(results[TOP], FOR_A_PATH, goes_on=False)
        if self._hessian is None:
            yield displaced(self._top, DISPLACEMENT)
            self._hessian = hessian(self._top.molecule, results, DISPLACEMENT)
        self._point = stationary_point(
            self._top.molecule, self._hessian, GradientResult(results[TOP]).gradient
        )
        self._listener.note(self._point.lines[0])
        if self._point.imaginary != 1:
            error = NumericalError(
                f"{self._point.lines[0]}: a path begins at a transition state, with one imaginary "
                "mode: look for one with ",
                Command("optimize"),
                " ",
                Option("transition_state", True),
            )
            error.goes_on = False
            raise error
        for side in reversed(SIDES):
            yield from self._down(side, results)

    def _down(self, side: str, results: Results) -> Iterator[Sequence[Step]]:
        """Steps from the transition state to the minimum on one side."""
        top = self._top.molecule
        with quiet():
            method = GeomeTRIC(top, self._search, "", downhill=side)
        name = TOP
        number = 0
        steepest = 0.0
        while True:
            point = method.judge(results[name], self._hessian)
            if name != TOP or side == SIDES[-1]:  # both sides begin there; report it once
                self._listener.note(f"{name}: {point.said}")
            if name != TOP and not method.refused:
                self.sides[side].append(name)
                steepest = max(steepest, point.max_gradient)
            if method.arrived or point.max_gradient < VALLEY * steepest:
                break
            place = method.next_geometry()
            if place is None:
                raise _too_short(side, number)
            start = TOP if name == TOP else ""
            number += 1
            name = f"{side}-{number:03d}"
            yield [
                Step(
                    name=name,
                    who=f"{side}, step {number}",
                    molecule=replace(top, coordinates=place),
                    options=self._top.options,
                    start=start,
                )
            ]
        last = self.sides[side][-1]
        first = Step(
            name=last, who=last, molecule=results[last].molecule, options=self._top.options
        )
        left = self._search.max_steps - number
        rest = replace(self._search, max_steps=max(1, left))
        course = Course(first, rest, self._listener, prefix=f"{side}-minimum-")
        self.courses[side] = course
        try:
            for steps in course.then(results):
                if left < 1 and not steps[0].passing:
                    raise _too_short(side, number)
                yield steps
        except Unfinished as error:
            raise _too_short(side, self._search.max_steps) from error
        self.minima[side] = course.path[-1]

    def _geometries(self, side: str) -> list[str]:
        """The names of the runs on one side, as far as it is known, from the transition state
        (excluded) to the minimum."""
        names = list(self.sides[side])
        if side in self.courses:
            names += self.courses[side].path[1:]
        return names

    def evaluate(self, results: Results, _failures: Failures, complete: bool) -> Numbers:
        """The numbers of the path so far, as in Task."""
        back = [name for name in reversed(self._geometries("backward")) if name in results]
        ahead = [name for name in self._geometries("forward") if name in results]
        names = [*back, *([TOP] if TOP in results else []), *ahead]
        settings: dict[str, Any] = {
            "convergence": self._search.convergence.upper(),
            "max_steps": self._search.max_steps,
            "path": names,
            "start_hessian": self._stored.path if self._stored is not None else None,
        }
        notes = self._notes()
        if not names:
            return Numbers(settings, notes)
        table = _table(names, [results[name] for name in names], names.index(TOP))
        arrays: dict[str, Dataset] = {}
        if self._point is not None:
            arrays["hessian"] = Dataset(
                self._point.hessian,
                "hartree/bohr^2",
                "second derivatives of the energy at the transition state (3 natom, 3 natom)",
            )
        if not complete:
            return Numbers(settings=settings, notes=notes, values={}, table=table, arrays=arrays)
        minima = {side: results[name] for side, name in self.minima.items()}
        own_bonds = _own_bonds(minima)
        for side, run in minima.items():
            settings[f"{side}_minimum"] = fragment_formulas(run.molecule)
            settings[f"{side}_bonds"] = own_bonds[side]
            settings[f"{side}_run"] = self.minima[side]
        notes += _ends(minima, own_bonds)
        return Numbers(
            settings=settings,
            notes=notes,
            values=_values(results[TOP], minima),
            table=table,
            arrays=arrays,
        )

    def _notes(self) -> list[str]:
        """How the path is found, and what is known of the transition state."""
        notes = [
            f"intrinsic reaction coordinate by geomeTRIC {geometric_library().__version__}: "
            f"{IRC_CITATION}",
            CITATION,
            STEPS,
            f"minima optimised with convergence {self._search.convergence.upper()}",
        ]
        if self._stored is not None:
            notes.append(f"Hessian: {self._stored.path}, {self._stored.result.level}")
            away = self._stored.distance(self._top.molecule) * ANGSTROM_PER_BOHR
            if away > AT_THIS_GEOMETRY:
                notes.append(
                    f"that Hessian, and with it the wavenumbers, are of a geometry {away:.4f} "
                    "angstrom away from the transition state"
                )
        if self._point is not None:
            notes += self._point.lines
        return notes


def _too_short(side: str, steps: int) -> Unfinished:
    """The error if the steps of one side are used up before its minimum."""
    return Unfinished(
        f"no minimum {side}s after {counted_text(steps, 'step')}: allow more with ",
        Option("max_steps"),
    )


def _table(names: Sequence[str], runs: Sequence[MP2Result], top: int) -> dict[str, Column]:
    """A row for each geometry of the path."""
    lengths = [0.0]
    for before, after in pairwise(runs):
        lengths.append(lengths[-1] + arc_length(before.molecule, after.molecule))
    energies = [run.total_energy for run in runs]
    above = [(energy - min(energies)) * KJ_PER_MOL_PER_HARTREE for energy in energies]
    gradients = [largest_gradient(run) for run in runs]
    return {
        "run": Column(tuple(names), "", "name of the run"),
        "s": Column(
            tuple(length - lengths[top] for length in lengths),
            "sqrt(u) bohr",
            "length of the path from the transition state, negative backwards",
        ),
        "relative_energy": Column(tuple(above), "kJ/mol", "total energy above the lowest point"),
        "total_energy": Column(tuple(energies), "hartree", "energy of the method"),
        "max_gradient": Column(tuple(gradients), "hartree/bohr", "largest gradient of an atom"),
    }


def arc_length(before: Molecule, after: Molecule) -> float:
    """A term of Eq. 1, sqrt(u) bohr, after superposing the geometries."""
    weights = masses(before)
    places = []
    for molecule in (before, after):
        centre = weights @ molecule.coordinates / weights.sum()
        places.append(molecule.coordinates - centre)
    moved = places[1] - places[0] @ rotation_onto(places[0], places[1], weights).T
    return float(np.sqrt(weights @ (moved**2).sum(axis=1)))


def _values(top: MP2Result, minima: dict[str, MP2Result]) -> dict[str, Dataset]:
    """Energies of the three stationary points, barriers and the reaction energy."""
    energies = {side: run.total_energy for side, run in minima.items()}
    values = {
        "transition_state_energy": Dataset(
            top.total_energy, "hartree", "energy of the transition state"
        ),
        "backward_minimum_energy": Dataset(
            energies["backward"], "hartree", "energy of the minimum backwards"
        ),
        "forward_minimum_energy": Dataset(
            energies["forward"], "hartree", "energy of the minimum forwards"
        ),
    }
    differences = {
        "barrier_forward": (
            top.total_energy - energies["backward"],
            "transition state above the minimum backwards",
        ),
        "barrier_backward": (
            top.total_energy - energies["forward"],
            "transition state above the minimum forwards",
        ),
        "reaction_energy": (
            energies["forward"] - energies["backward"],
            "minimum forwards less minimum backwards",
        ),
    }
    for name, (energy, about) in differences.items():
        values |= in_units(name, energy, about)
    return values


def _own_bonds(minima: dict[str, MP2Result]) -> dict[str, list[str]]:
    """The bonds, e.g. "C1-H3", that exist only in the minimum on each side."""
    found = {}
    for side, run in minima.items():
        molecule = run.molecule
        places = molecule.coordinates * ANGSTROM_PER_BOHR
        found[side] = set(bonds(molecule.symbols, places, molecule.ghost))
    named: dict[str, list[str]] = {}
    for side, other in (SIDES, SIDES[::-1]):
        symbols = minima[side].molecule.symbols
        own = sorted(found[side] - found[other])
        named[side] = [f"{symbols[i]}{i + 1}-{symbols[j]}{j + 1}" for i, j in own]
    return named


def _ends(minima: dict[str, MP2Result], own_bonds: dict[str, list[str]]) -> list[str]:
    """Description of both minima, with the bonds that only one of them has."""
    lines = []
    for side in SIDES:
        said = f"minimum {side}s: {fragment_formulas(minima[side].molecule)}"
        if own_bonds[side]:
            said += f", with the bond {', '.join(own_bonds[side])}"
        lines.append(said)
    if not any(own_bonds.values()):
        lines.append("both minima have the same bonds: they are conformers, or mirror images")
    return lines
