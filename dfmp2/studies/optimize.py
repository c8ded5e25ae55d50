"""Geometries of minima and of transition states, in internal coordinates.

geomeTRIC proposes the geometries (Wang, Song, J. Chem. Phys. 144, 214108 (2016):
translation-rotation-internal coordinates); each is one run with its gradient, its SCF started from
the orbitals of the run before. A transition state begins with the Hessian of the first geometry, by
differences of gradients (`dfmp2.studies.frequencies`), a minimum with a model of it, whose force
constant of a torsion about the bond jk is

    0.0023 - 0.07 (r_jk - r_cov)    Eh/rad^2, 0.0023 at least, lengths in bohr                                      (1)

(Schlegel, Theor. Chim. Acta 66, 333 (1984)); geomeTRIC has ten times as much. Everything is decided
by the numbers alone, so that a study which goes on takes the same way through its stored runs
again.

Energy and gradient are those of MP2, or of the custom scaling where os_scale or ss_scale are given.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any, Unpack

import numpy as np

from dfmp2.errors import InputError, NumericalError
from dfmp2.errors.messages import Command, Message, Option, plain
from dfmp2.gradients.gradient import GradientResult
from dfmp2.molecule.elements import internal_coordinate, radius
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import structure
from dfmp2.mp2.calculation import NOTHING, Checkpoint
from dfmp2.mp2.result import MP2Result
from dfmp2.options import CONVERGENCE, MP2, Options
from dfmp2.output.document import counted_text
from dfmp2.output.hdf5 import Dataset
from dfmp2.output.study import MOST_RUNS, Column, Study
from dfmp2.progress import Listener
from dfmp2.scf.reference import StartOrbitals
from dfmp2.studies.coordinate import ATOMS, parse_atoms, parse_place
from dfmp2.studies.frequencies import DISPLACEMENT, SMALL_ENOUGH, displaced, hessian
from dfmp2.studies.runs import (
    CarryOutKeywords,
    Failures,
    Numbers,
    Results,
    Step,
    Task,
    Unfinished,
    carry_out,
    certified_gradient,
    examine_steps,
    without_densities,
)
from dfmp2.studies.stationary import StationaryPoint, stationary_point, symmetry_kept
from dfmp2.units import ANGSTROM_PER_BOHR, BOHR_PER_ANGSTROM, quantity

CITATION = "geomeTRIC: L.-P. Wang, C. C. Song, J. Chem. Phys. 144, 214108 (2016)"
INSTALL = "pip install 'dfmp2[opt]'"
MOST_STEPS = 100
MOST_RESTARTS = 3  # along imaginary modes
# runs that a study has room for beside its steps and Hessians: probes, and sides of saddle points
BESIDE = 50
# of the trust radius; a shorter step is as long as the model of the energy wants it
UNLIMITED = 0.8
NOT_VERIFIED = "a stationary point: dfmp2 frequencies, or --verify, tells whether it is a {sought}"
PROBE = 0.05  # bohr; how far the atom that moves most goes to measure a curvature
MOST_PROBES = 6  # at one geometry
BETWEEN_FRAGMENTS = 0.02  # Eh/bohr^2, of the model; geomeTRIC has 0.05
FLAT = 1e-7  # Eh/bohr; gradients below are noise, and say nothing of a step
# The softest that coordinates get, as parts of the model's force constants; between fragments,
# Eh/bohr^2 as such: chosen below the 1.4e-4 that was measured for He2.
SOFTEST = {"Distance": 0.5, "Angle": 0.3, "LinearAngle": 0.1, "Dihedral": 0.2, "OutOfPlane": 0.2}
SOFTEST_BETWEEN = 1e-5
# how much softer than the curvature measured last another one between fragments can be
SOFTER = 10.0
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
        InputError : atoms that do not exist or are named twice, a value that no such coordinate
            has, a coordinate that is constrained twice or whose atoms are all held, a file with
            more than constraints
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
    convergence : one of `dfmp2.options.CONVERGENCE`, in any case: change of the energy (Eh),
        gradient and displacement of an atom, root mean square and largest (Eh/bohr, angstrom);
        change and displacement are those of the last step, as geomeTRIC has them, or of the next
        one, as Gaussian and optking have them
    max_steps : after the first geometry
    transition_state : look for a saddle point of first order
    verify : compute the Hessian of what is found, and start again along imaginary modes that should
        not be
    """

    constraints: Constraints = Constraints()
    convergence: str = "GAU"
    max_steps: int = MOST_STEPS
    transition_state: bool = False
    verify: bool = False

    @property
    def sought(self) -> str:
        """minimum or transition state."""
        if self.transition_state:
            return "transition state"
        return "minimum"

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_steps", plain(self.max_steps))
        if self.convergence.upper() not in CONVERGENCE:
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


@dataclass(frozen=True, slots=True)
class Point:
    """A geometry that was judged; gradients and displacements as of `convergence`, NaN where there is
    none yet."""

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
        return (
            f"E = {self.total_energy:.10f} Eh, largest gradient of an atom "
            f"{self.max_gradient:.1e} Eh/bohr{moved}"
        )


def optimize_geometry(
    molecule: Molecule,
    options: Options,
    search: Search = Search(),
    *,
    start: StartOrbitals | None = None,
    **how: Unpack[CarryOutKeywords],
) -> Study:
    """The geometry of a stationary point, from that of `molecule`; with `search.verify` of a
    minimum.

    Parameters
    ----------
    start : start orbitals of the first run, None for those that the options name
    how : as of `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study; its runs are the steps, its table their energies and gradients, its arrays
    `final_geometry` (natom, 3), bohr

    Raises
    ------
    Unfinished : not converged after `search.max_steps` steps, or what was looked for is not what is
        found after MOST_RESTARTS restarts; its `study` holds them
    InputError : geomeTRIC is missing, one atom, ghosts, constraints that cannot be
    Dfmp2Error : of a run
    """
    if molecule.natom < 2:
        raise InputError(
            f"{molecule.formula} is one atom: there is nothing to optimise; ",
            Command("run"),
            " computes its energy",
        )
    if any(molecule.ghost):
        raise InputError(
            "ghost atoms have a gradient but no geometry of their own, and would wander: leave "
            "them out, or optimise the molecule without them"
        )
    if search.verify and 6 * molecule.natom + search.max_steps + BESIDE > MOST_RUNS:
        raise InputError(
            Option("verify", True),
            f": the Hessian of {molecule.natom} atoms takes {6 * molecule.natom} gradients, and "
            f"with {search.max_steps} steps that is more than the {MOST_RUNS} runs of a study: "
            "allow fewer with ",
            Option("max_steps"),
            ", or take ",
            Command("frequencies"),
            " of the geometry that is found",
        )
    listener = how.get("listener") or Listener()
    course = _Course(molecule, options, search, listener)
    examine_steps(course.first)
    kept = symmetry_kept(molecule)
    if kept and not search.verify:
        listener.stage(_may_be_a_saddle(kept))
    task = Task(
        kind="optimization",
        what=f"stationary point of {molecule.name} ({molecule.formula})",
        molecule=molecule,
        options=options,
        steps=course.first,
        evaluate=course.evaluate,
        chained=True,
        start=start,
        then=course.then,
        compute=certified_gradient,
        passed=without_densities,
        free=("precision", "tolerance", "scf_conv_tol"),  # what an error advises to change half way
    )
    return carry_out(task, **how)


class _Course:
    """The way of an optimisation through its runs: steps, probes, Hessians, and new starts.

    Parameters
    ----------
    molecule : Molecule
        At the first geometry.
    options : Options
        Of every step; the SCF of a Hessian's runs converges further.
    search : Search
    listener : Listener

    Attributes
    ----------
    first : list of Step
        The first geometry.
    points, path : list of Point, list of str
        What was judged, and the names of the runs.
    remarks : list of str
        What was measured beside the steps.
    verified : StationaryPoint or None
        The last geometry whose Hessian was computed at the end.
    """

    def __init__(
        self, molecule: Molecule, options: Options, search: Search, listener: Listener
    ) -> None:
        self._molecule = molecule
        self._options = options
        self._search = search
        self._listener = listener
        self._text = search.constraints.for_geometric(molecule)
        self.first = [Step("step-000", "step 0", molecule, options)]
        self.points: list[Point] = []
        self.path: list[str] = []
        self.remarks: list[str] = []
        self.verified: StationaryPoint | None = None
        self._restarts = 0
        self._probes = 0
        self._foreseen = ""
        with quiet():
            self._method = GeomeTRIC(molecule, search, self._text)

    def then(self, results: Results) -> Iterator[Sequence[Step]]:
        """The steps that follow the first one, as of Task."""
        guess = None
        if self._search.transition_state:
            yield displaced(self.first[0], DISPLACEMENT)
            guess = hessian(self._molecule, results, DISPLACEMENT)
        name = self.first[0].name
        while True:
            yield from self._descend(name, guess, results)
            if not self._search.verify:
                return
            yield from self._verify(results)
            assert self.verified is not None
            wanted = int(self._search.transition_state)
            if self.verified.imaginary <= wanted or not self._may_restart():
                break
            guess = self.verified.hessian
            sides = self._sides(wanted)
            yield sides
            name = min(sides, key=lambda side: round(results[side.name].total_energy, 8)).name
            left = self._search.max_steps - self._steps() - 1
            rest = replace(self._search, max_steps=left)
            with quiet():
                self._method = GeomeTRIC(results[name].molecule, rest, self._text, self._molecule)
        if self.verified.imaginary != wanted:
            raise self._not_found(self.verified)

    def _descend(self, name: str, guess: Any, results: Results) -> Iterator[Sequence[Step]]:
        """Steps from the run of this name to a stationary point."""
        method = self._method
        while True:
            self.points.append(method.judge(results[name], guess))
            self.path.append(name)
            self._listener.stage(self.points[-1].said)
            place = method.next_geometry()
            while place is None and method.converged:
                probe = method.unmeasured()
                if probe is None:
                    break
                self._probes += 1
                who = f"curvature {self._probes}"
                step = self._step(f"curvature-{self._probes:03d}", who, probe)
                yield [replace(step, start=name, passing=True)]
                self._remark(method.measure(results[step.name]))
                place = method.next_geometry()
            if place is None:
                break
            number = self._steps() + 1
            name = f"step-{number:03d}"
            yield [self._step(name, f"step {number}", place)]
        self._foreseen = method.foreseen
        if not method.converged:
            raise Unfinished(
                f"no stationary point after {counted_text(self._steps(), 'step')}: allow more with ",
                Option("max_steps"),
            )

    def _verify(self, results: Results) -> Iterator[Sequence[Step]]:
        """The runs of the Hessian of the last geometry."""
        last = results[self.path[-1]]
        tight = replace(self._options, scf_conv_tol=min(self._options.scf_conv_tol, SMALL_ENOUGH))
        reference = Step(self.path[-1], "the last geometry", last.molecule, tight)
        prefix = f"hessian-{self._restarts + 1}-"
        yield displaced(reference, DISPLACEMENT, prefix)
        self.verified = stationary_point(
            last.molecule,
            hessian(last.molecule, results, DISPLACEMENT, prefix),
            GradientResult(last).gradient,
            self._method.constraint_derivatives(),
        )
        self._remark(f"after {counted_text(self._steps(), 'step')}: {self.verified.lines[0]}")

    def _may_restart(self) -> bool:
        """Whether there is room in the study for one more way down and its Hessian, and are steps
        left."""
        hessians = self._restarts + 2 + int(self._search.transition_state)
        runs = self._search.max_steps + hessians * 6 * self._molecule.natom
        return (
            runs + BESIDE <= MOST_RUNS
            and self._steps() + 1 < self._search.max_steps
            and self._restarts < MOST_RESTARTS
        )

    def _sides(self, wanted: int) -> list[Step]:
        """The geometries at both sides of a saddle point, where the optimisation starts again."""
        assert self.verified is not None
        self._restarts += 1
        number = self._steps() + 1
        return [
            self._step(f"step-{number:03d}-{side}", f"step {number}, {side} side", place)
            for side, place in zip(("plus", "minus"), self.verified.sides(wanted), strict=True)
        ]

    def _step(self, name: str, who: str, place: Any) -> Step:
        try:
            moved = replace(self._molecule, coordinates=place)
        except InputError as error:  # an atom comes too near to another, or to a point charge
            raise NumericalError(
                f"{who} leads to an impossible geometry ({error}): start from another one, or hold "
                "atoms with ",
                FREEZE,
            ) from error
        return Step(name, who, moved, self._options)

    def _steps(self) -> int:
        return len(self.points) - 1

    def _remark(self, text: str) -> None:
        self._listener.stage(text)
        self.remarks.append(text)

    def _not_found(self, verified: StationaryPoint) -> Unfinished:
        """The error where the last stationary point is not what was looked for."""
        left = counted_text(verified.imaginary, "imaginary mode")
        starts = counted_text(self._restarts, "new start")
        error = Unfinished(
            f"no {self._search.sought}, but a {verified.kind} ({left}) after {starts} along "
            "imaginary modes: begin with another geometry"
        )
        error.goes_on = False
        return error

    def evaluate(self, results: Results, _failures: Failures, complete: bool) -> Numbers:
        """The numbers of the study so far, as of Task."""
        runs = [results[name] for name in self.path if name in results]
        points = self.points[: len(runs)]
        search = self._search
        settings = {
            "convergence": search.convergence.upper(),
            "max_steps": search.max_steps,
            "transition_state": search.transition_state,
            "constraints": self._text,
            "steps": max(0, len(points) - 1),
            "symbols": list(self._molecule.symbols) if runs else [],
            "path": self.path[: len(runs)],
            "verify": search.verify,
            "restarts": self._restarts,
            **self._kind(),
        }
        notes = [
            f"geometries by geomeTRIC {_library().__version__}, convergence "
            f"{search.convergence.upper()}",
            CITATION,
        ]
        what = f"{settings['stationary_point']} of {self._molecule.name} ({self._molecule.formula})"
        if search.transition_state and self.verified is None:
            what = f"{what}, sought as a transition state"
        if not points:
            return Numbers(settings, notes, what=what)
        last = runs[-1]
        if last.gradient is not None and last.gradient.scaling != MP2.title:
            notes.append(f"energy and gradient of {last.gradient.scaling}")
        notes += [f"constraint: {line}" for line in _kept(self._text, last.molecule)]
        notes += self.remarks
        if self.verified is not None:
            notes += self.verified.lines[1:]
        elif complete:
            notes.append(NOT_VERIFIED.format(sought=search.sought))
        kept = symmetry_kept(self._molecule)
        if kept and self.verified is None:
            notes.append(_may_be_a_saddle(kept))
        if len(points) < len(self.path) or not self._method.converged:
            notes.append("NOT CONVERGED: the last geometry is only the last")
        if complete and self._foreseen:
            notes.append(self._foreseen)
        return Numbers(
            settings, notes, _values(points), _table(points), self._arrays(last.molecule), what
        )

    def _kind(self) -> dict[str, Any]:
        """What is known of the stationary point, by the keys of the settings."""
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
    """Bonds, angles and contacts as arrays, atoms counted from 1; those of which there are none are
    left out."""
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
        f"the start is {symmetry}: its forces keep it so, and it can end at a saddle point; "
        "--verify computes what it is and goes on from there"
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
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.studies.optimize",
    checkpoint: Checkpoint = NOTHING,
    constraints: str = "",
) -> MP2Result:
    """The result at the stationary point, with its gradient: the item of a batch. One that is
    stopped begins again.

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
    return list(found.path.values())[-1]


def _kept(text: str, molecule: Molecule) -> list[str]:
    """The bonds, angles and dihedrals that are constrained, with their values in a geometry; and
    other constraints."""
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


# --- geomeTRIC ------------------------------------------------------------------------------------


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
    origin : the molecule whose coordinates are frozen, None for this one

    Raises
    ------
    InputError : it is missing, or cannot make coordinates with these constraints
    """

    def __init__(
        self,
        molecule: Molecule,
        search: Search,
        constraints: str,
        origin: Molecule | None = None,
    ) -> None:
        _library()
        from geometric.engine import Engine
        from geometric.errors import Error
        from geometric.internal import DelocalizedInternalCoordinates, Dihedral
        from geometric.molecule import Molecule as Geometry
        from geometric.nifty import bohr2ang
        from geometric.optimize import OPT_STATE, Optimizer
        from geometric.params import OptParams
        from geometric.prepare import parse_constraints
        from geometric.step import calc_drms_dmax, get_delta_prime, update_hessian

        self._states = OPT_STATE
        self._errors = (Error, RuntimeError, ValueError)
        self._displacements = calc_drms_dmax
        self._step_of = get_delta_prime
        self._updated = update_hessian
        self._found: list[MP2Result] = []  # the last one is of the present geometry
        atoms = Geometry()
        atoms.elem = list(molecule.symbols)
        atoms.xyzs = [molecule.coordinates * bohr2ang]
        atoms.build_topology()
        frozen = deepcopy(atoms)
        if origin is not None:
            frozen.xyzs = [origin.coordinates * bohr2ang]

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
            """Its coordinates, with another model Hessian: torsions of Eq. 1, and between
            fragments."""

            def guess_hessian(own, place: Any) -> Any:  # noqa: N805
                model = own.Prims.guess_hessian(place)
                for k, primitive in enumerate(own.Prims.Internals):
                    if type(primitive) is Dihedral:
                        model[k, k] = torsional_constant(
                            molecule, place.reshape(-1, 3), primitive.b, primitive.c
                        )
                    elif own.is_between_fragments(primitive):
                        model[k, k] = BETWEEN_FRAGMENTS
                return own.Vecs.T @ model @ own.Vecs

            def softest_hessian(own, place: Any, between: float) -> Any:  # noqa: N805
                """As the model, of the softest molecules there are: SOFTEST, and `between`
                fragments, Eh/bohr^2."""
                model = own.Prims.guess_hessian(place)
                for k, primitive in enumerate(own.Prims.Internals):
                    if type(primitive) is Dihedral:
                        model[k, k] = torsional_constant(
                            molecule, place.reshape(-1, 3), primitive.b, primitive.c
                        )
                    if own.is_between_fragments(primitive):
                        model[k, k] = between
                    else:
                        model[k, k] *= SOFTEST.get(type(primitive).__name__, 1.0)
                return own.Vecs.T @ model @ own.Vecs

            def is_between_fragments(own, primitive: Any) -> bool:  # noqa: N805
                """Whether it moves or turns one of several fragments."""
                kind = type(primitive).__name__
                return len(own.Prims.frags) > 1 and kind.startswith(("Translation", "Rotation"))

        objects, values = None, [None]
        try:
            if constraints.strip():
                objects, values = parse_constraints(frozen, constraints)
            coordinates = Coordinates(
                atoms,
                build=True,
                connect=False,
                addcart=False,
                constraints=objects,
                cvals=values[0],
                conmethod=0,
            )
        except (*self._errors, LookupError, np.linalg.LinAlgError) as error:
            raise InputError(
                f"geomeTRIC cannot take the constraints ({' '.join(str(error).split())}): correct "
                "them"
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
        self._in_field = molecule.point_charges is not None
        self._started_from_hessian = False
        self._probes = 0  # at the present geometry
        self._between = SOFTEST_BETWEEN
        self._measured = False  # whether a step or a probe has measured a curvature
        self.foreseen = ""
        self._optimizer = Optimizer(
            given, atoms, coordinates, Given(atoms), None, parameters, print_info=False
        )

    @property
    def converged(self) -> bool:
        """Whether the last geometry is what was looked for; then `foreseen` says what the next one
        would change."""
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
        self._probes = 0
        self._found[:] = [found]
        moved = (math.nan, math.nan)
        with self._asked():
            first = optimizer.Iteration == 0
            if hessian is not None and first:
                optimizer.params.hess_data = hessian
                optimizer.params.reset = False  # it stays where it has negative curvatures
                self._started_from_hessian = True
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
                self._measured = True
                if optimizer.state == self._states.CONVERGED:
                    self._learn_last_step()
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

    def _learn_last_step(self) -> None:
        """What geomeTRIC does after all steps but one that has converged: the Hessian knows of
        it."""
        optimizer = self._optimizer
        optimizer.X_hist.append(optimizer.X)
        optimizer.Gx_hist.append(optimizer.gradx)
        optimizer.UpdateHessian()

    def unmeasured(self) -> Any:
        """(natom, 3) bohr, a displaced geometry that tells whether the present one has converged;
        None if it has.

        The Hessian is made of the steps so far again, but from the softest force constants that
        molecules have. Where its step is below every limit as well, nothing that has not been
        measured can change the verdict. Else, and always where there was no step, the gradient of a
        geometry a little along that step measures the curvature.
        """
        optimizer = self._optimizer
        coordinates = optimizer.IC
        limits = optimizer.params
        if self._started_from_hessian or not hasattr(coordinates, "softest_hessian"):
            return None
        here = self._judged
        gradient = self._without_rigid_motions(optimizer.Gx_hist[-1])
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
            move = (to_cartesian @ np.ravel(step)[: len(internal)]).reshape(-1, 3)
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

    def _without_rigid_motions(self, gradient: Any) -> Any:
        """(3 natom,) a gradient without its components along motions of the whole, which are
        errors; all in a field."""
        if self._in_field:
            return gradient
        centred = self._judged.reshape(-1, 3) - self._judged.reshape(-1, 3).mean(axis=0)
        motions = [np.tile(axis, (len(centred), 1)).ravel() for axis in np.eye(3)]
        motions += [np.cross(axis, centred).ravel() for axis in np.eye(3)]
        rigid = np.stack(motions, axis=1)
        return gradient - rigid @ np.linalg.lstsq(rigid, gradient, rcond=None)[0]

    def measure(self, result: MP2Result) -> str:
        """Learn the curvature from the gradient at the geometry that `unmeasured` gave; what it is,
        for people."""
        optimizer = self._optimizer
        here = self._judged
        gradient = optimizer.Gx_hist[-1]
        other = GradientResult(result).gradient.ravel().copy()
        place = result.molecule.coordinates.ravel()
        move = place - here
        curvature = float(move @ (other - gradient) / (move @ move))
        slope = float(move @ gradient / np.linalg.norm(move))
        # Between the step before and the present geometry, so that updates by differences use it.
        optimizer.X_hist[-1:] = [place, here.copy()]
        optimizer.Gx_hist[-1:] = [other, gradient]
        optimizer.params.reset = False  # what was measured stays, also where it is negative
        if not np.array_equal(optimizer.X, here):
            optimizer.Iteration -= 1  # the step that was foreseen and not taken
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
        """((m, 3 natom), (m, 3 natom, 3 natom)) of the constrained coordinates at the present
        geometry; None without."""
        optimizer = self._optimizer
        if self._constrained:
            constrained = optimizer.IC.Prims.cPrims
        else:
            constrained = []
        if not constrained:
            return None
        here = self._judged
        size = here.size
        first = [np.reshape(one.derivative(here.reshape(-1, 3)), size) for one in constrained]
        second = [
            np.reshape(one.second_derivative(here.reshape(-1, 3)), (size, size))
            for one in constrained
        ]
        return np.array(first), np.array(second)

    def _needless(self, here: Any, gradients: tuple[float, float]) -> bool:
        """Whether the step that would come next, from `here` (3 natom,), is below every limit, as
        the gradients are."""
        optimizer = self._optimizer
        limits, coordinates = optimizer.params, optimizer.IC
        moved = self._displacements(optimizer.X, here)
        self.foreseen = (
            f"the next step would move no atom by more than {moved[1]:.1e} angstrom and change the "
            f"energy by {optimizer.expect:.1e} Eh"
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
                f"geomeTRIC cannot go on ({' '.join(str(error).split())}): start from another "
                f"geometry{also}"
            ) from error
