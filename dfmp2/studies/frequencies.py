"""Harmonic frequencies by central differences of gradients, with infrared intensities and
thermochemistry.

One run at the given geometry is followed by those of its Hessian (`dfmp2.studies.hessian`), which
may be computed by other processes; d mu / d x_j are differences of the dipole moments likewise. The
Hessian is analysed in `dfmp2.studies.vibrations`.

A stored Hessian can be read back, for thermochemistry or to start from at a nearby geometry.

It rotates with the molecule: if R is the rotation that best aligns the stored geometry with the new
one, H = R H' R^T for each pair of atoms.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import Command, InputError, Message, Option
from dfmp2.errors.messages import plain
from dfmp2.gradients.gradient import certified_gradient
from dfmp2.gradients.result import GradientResult
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import rotation_onto
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.run_names import displaced_runs
from dfmp2.output.study import MOST_RUNS, Column, Study, is_study, read_study
from dfmp2.studies.degeneracy import DEGENERATE, may_be_degenerate
from dfmp2.studies.hessian import (
    DISPLACEMENT,
    central_differences,
    displaced,
    for_differences,
    hessian,
)
from dfmp2.studies.ideal_gas import (
    ROOM,
    GasConditions,
    require_between,
    thermochemistry,
    too_cold,
)
from dfmp2.studies.runs import CarryOutKeywords, carry_out, without_densities
from dfmp2.studies.task import Failures, Numbers, Results, Step, Task
from dfmp2.studies.vibrations import (
    Vibrations,
    masses,
    no_stationary_point,
    on_a_line,
    require_stationary,
    symmetry_number,
    vibrations,
)
from dfmp2.units import ANGSTROM_PER_BOHR, told_apart

LEAST_DISPLACEMENT, MOST_DISPLACEMENT = 5e-5, 0.1  # bohr; the least one excluded
REFERENCE = "reference"
IN_FIELD = ("a molecule among point charges has none: leave out one of the two",)


def harmonic_frequencies(
    molecule: Molecule,
    options: Options,
    gas: GasConditions = ROOM,
    *,
    displacement: float = DISPLACEMENT,
    allow_gradient: bool = False,
    **how: Unpack[CarryOutKeywords],
) -> Study:
    """Harmonic frequencies at the geometry of `molecule`.

    Parameters
    ----------
    options : the SCF is converged to at least 1e-11 Eh
    gas : with a single temperature and pressure
    displacement : of each coordinate, bohr
    allow_gradient : continue at a geometry that is not a stationary point
    how : as in `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study with one table row per vibration (imaginary ones negative), the arrays `hessian` (3 natom,
    3 natom), Eh/bohr^2, `normal_modes` (n, natom, 3) and `dipole_derivatives` (3 natom, 3), e, and
    the thermochemistry as values

    Raises
    ------
    InputError : a single atom, ghosts, or more runs than a study allows
    NumericalError : the gradient is too large
    Dfmp2Error : of a run
    """
    displacement = plain(displacement)
    require_between("displacement", (displacement,), LEAST_DISPLACEMENT, MOST_DISPLACEMENT, "bohr")
    gas.require_single("the gas")
    _require_vibrations(molecule)
    if molecule.point_charges is not None:
        gas.require_usual(IN_FIELD)
    options = for_differences(options)
    reference = Step(name=REFERENCE, who="the geometry given", molecule=molecule, options=options)

    def then(results: Results) -> Iterator[Sequence[Step]]:
        if not allow_gradient:
            require_stationary(results[REFERENCE])
        yield displaced(reference, displacement)

    def evaluate(results: Results, _failures: Failures, complete: bool) -> Numbers:
        return _numbers(molecule, gas, displacement, results, complete=complete)

    task = Task(
        kind="frequencies",
        what=f"frequencies of {molecule.described}",
        molecule=molecule,
        options=options,
        steps=[reference],
        evaluate=evaluate,
        then=then,
        compute=gradient_alone,
        free=("precision", "tolerance"),  # affect only pair energies; amplitudes are in float64
    )
    return carry_out(task, **how)


def gradient_alone(*arguments: Any, **more: Any) -> MP2Result:
    """As `dfmp2.gradients.gradient.certified_gradient`, without the densities: those of 6 natom + 1
    runs would fill memory and the file."""
    return without_densities(certified_gradient(*arguments, **more))


def _require_vibrations(molecule: Molecule) -> None:
    if molecule.natom < 2:
        raise InputError(
            f"{molecule.formula} is one atom and has no vibrations; ",
            Command("run"),
            " computes its energy",
        )
    if any(molecule.ghost):
        raise InputError("ghost atoms have no mass, so no vibrations: leave them out")
    if 6 * molecule.natom >= MOST_RUNS:
        raise InputError(
            f"{molecule.natom} atoms take {6 * molecule.natom + 1} gradients, and a study holds at "
            f"most {MOST_RUNS}: compute a smaller molecule, of up to {(MOST_RUNS - 1) // 6} atoms"
        )
    masses(molecule)


# --- numbers --------------------------------------------------------------------------------------


def _numbers(
    molecule: Molecule,
    gas: GasConditions,
    displacement: float,
    results: Results,
    *,
    complete: bool,
) -> Numbers:
    settings: dict[str, object] = {
        "temperature": gas.temperature,
        "pressure": gas.pressure,
        "displacement": displacement,
        "symbols": list(molecule.symbols),
    }
    notes = [
        f"central differences of gradients, displacement {displacement:g} bohr; "
        "harmonic, not scaled",
        "masses of the most abundant isotopes: "
        + ", ".join(f"{s} {_mass(molecule, s)}" for s in molecule.elements),
    ]
    if not complete:
        return Numbers(settings, notes)
    second = hessian(molecule, results, displacement)
    moved = [GradientResult(results[one.name]) for one in displaced_runs(molecule.natom)]
    dipoles = central_differences([run.properties.relaxed_dipole for run in moved], displacement)
    modes = vibrations(molecule, second, dipoles)
    first = results[REFERENCE]
    settings["rigid_motions_removed"] = modes.removed
    notes += no_stationary_point(first)
    notes += _imaginary(molecule, modes)
    values = {"total_energy": Dataset(first.total_energy, "hartree", "at the geometry given")}
    if molecule.point_charges is None:
        symmetry, chosen = rotational_symmetry(molecule, masses(molecule), gas.symmetry)
        settings["symmetry_number"] = symmetry
        notes.append(f"{_shape(molecule)}, rotational symmetry number {symmetry} ({chosen})")
        notes += too_cold(molecule, masses(molecule), gas.temperatures)
        if may_be_degenerate(molecule):
            notes.append(DEGENERATE)
        values |= thermochemistry(
            molecule,
            first.total_energy,
            modes.wavenumber,
            gas.temperature,
            gas.pressure,
            symmetry,
        )
        if modes.wavenumber[0] < 0:
            notes.append("imaginary modes are left out of the thermochemistry")
    else:
        notes.append(
            "among point charges the molecule cannot move freely: all its motions are listed, "
            "without thermochemistry"
        )
    numbers = tuple(float(k + 1) for k in range(len(modes.wavenumber)))
    table = {"mode": Column(numbers, "", "number of the vibration")} | {
        field.name: Column(
            tuple(getattr(modes, field.name).tolist()),
            field.metadata["units"],
            field.metadata["description"],
        )
        for field in fields(modes)
        if field.metadata
    }
    arrays = {
        "hessian": Dataset(
            second, "hartree/bohr^2", "second derivatives of the energy (3 natom, 3 natom)"
        ),
        "normal_modes": Dataset(
            modes.displacements, "", "normalised displacements of the atoms (n, natom, 3)"
        ),
        "dipole_derivatives": Dataset(
            dipoles, "elementary charge", "of the relaxed dipole moment (3 natom, 3)"
        ),
    }
    return Numbers(settings=settings, notes=notes, values=values, table=table, arrays=arrays)


def _mass(molecule: Molecule, symbol: str) -> str:
    return f"{masses(molecule)[molecule.symbols.index(symbol)]:.9g}"


def _shape(molecule: Molecule) -> str:
    if on_a_line(molecule):
        return "linear molecule"
    return "non-linear molecule"


def _imaginary(molecule: Molecule, modes: Vibrations) -> list[str]:
    """A line for every imaginary mode: its wavenumber, and the atoms that move most."""
    lines = []
    for number, (wavenumber, moves) in enumerate(
        zip(modes.wavenumber, modes.displacements, strict=True), start=1
    ):
        if wavenumber < 0:
            lengths = np.linalg.norm(moves, axis=1)
            order = [
                int(atom)
                for atom in np.argsort(-lengths, kind="stable")
                if lengths[atom] > lengths.max() / 2
            ]
            named = ", ".join(f"{molecule.symbols[atom]}{atom + 1}" for atom in order[:4])
            lines.append(
                f"IMAGINARY mode {number}: {abs(wavenumber):.1f}i cm^-1, mostly of {named}"
            )
    return lines


# --- Hessians in files ----------------------------------------------------------------------------

FARTHEST = 0.5 / ANGSTROM_PER_BOHR  # bohr; an atom may be this far off for a Hessian to be a start
TRANSITION_STATE = "transition-state"  # run of a reaction path
OPTION = Option("start_hessian")


@dataclass(frozen=True, slots=True, eq=False)
class StoredHessian:
    """A Hessian with its origin.

    Attributes
    ----------
    path : str
        The file, for messages.
    result : MP2Result
        At the geometry of the Hessian.
    hessian : (3 natom, 3 natom) array
        Eh/bohr^2.
    dipole_derivatives : (3 natom, 3) array or None
        e; None if the file has none.
    constrained : bool
        Whether it is the Hessian along constraints.
    at_start : bool
        Whether it is that of the start of a search, which is not a stationary point.
    isotopes : tuple of str
        Isotopes of the gas in the file, e.g. "1=2H".
    symmetry : int or None
        Rotational symmetry number of the gas in the file; None if there is no gas.
    """

    path: str
    result: MP2Result
    hessian: Array
    dipole_derivatives: Array | None = None
    constrained: bool = False
    at_start: bool = False
    isotopes: tuple[str, ...] = ()
    symmetry: int | None = None

    @property
    def molecule(self) -> Molecule:
        """At the geometry of the Hessian."""
        return self.result.molecule

    def vibrations(self, weights: Array) -> Vibrations:
        """The vibrations for the given masses (natom,), u."""
        slopes = self.dipole_derivatives
        if slopes is None:
            slopes = np.zeros((len(self.hessian), 3))
        return vibrations(self.molecule, self.hessian, slopes, weights=weights)

    def require_gas(self) -> None:
        """Raise if no gas can be derived from the Hessian.

        Raises
        ------
        InputError : it does not belong to a stationary point, is along constraints, among point
            charges, or in a file for other isotopes
        """
        if self.isotopes:
            raise InputError(
                f"{self.path} is about the isotopes {', '.join(self.isotopes)}, and every gas here "
                "begins with the most abundant ones: give the file of ",
                Command("frequencies"),
                "; of other isotopes there is ",
                Command("thermo"),
                " ",
                Option("isotope"),
            )
        if self.at_start:
            raise InputError(
                f"{self.path}: the Hessian is that of the geometry that the search began with: ",
                Command("frequencies"),
                " of the geometry that was found computes another",
            )
        if self.constrained:
            raise InputError(
                f"{self.path}: the Hessian is that along constraints, so there is no free molecule: ",
                Command("frequencies"),
                " of an unconstrained geometry makes a gas",
            )
        if self.molecule.point_charges is not None:
            raise InputError(
                f"{self.path}: among point charges the molecule cannot move freely, so there is no "
                "gas: ",
                Command("frequencies"),
                " of the molecule alone makes one",
            )

    def turned_to(self, molecule: Molecule, farthest: float = FARTHEST) -> Array:
        """The Hessian for a molecule in another position and orientation, (3 natom, 3 natom)
        Eh/bohr^2.

        Parameters
        ----------
        molecule : Molecule
        farthest : float, optional
            Largest distance between corresponding atoms after the rotation, bohr.

        Raises
        ------
        InputError : it is along constraints, or of other atoms, another charge or multiplicity,
            other point charges, or another geometry
        """
        if self.constrained:
            raise InputError(
                OPTION.of(self.path),
                ": its Hessian is one along constraints: give one without them",
            )
        for what, stored, asked in (
            ("atoms", " ".join(self.molecule.symbols), " ".join(molecule.symbols)),
            ("charge", self.molecule.charge, molecule.charge),
            ("multiplicity", self.molecule.multiplicity, molecule.multiplicity),
        ):
            if stored != asked:
                raise InputError(
                    OPTION.of(self.path),
                    f": {what} {stored} there, {asked} here: give the Hessian of this molecule",
                )
        if molecule.point_charges is not None or self.molecule.point_charges is not None:
            raise InputError(
                OPTION.of(self.path),
                ": in the field of point charges a Hessian does not turn with the molecule: leave "
                "it out",
            )
        rotation, away = self._rotation_to(molecule)
        if away > farthest:
            of_start = Message("")
            if self.at_start:
                of_start = Message(
                    "; the one in this file is of the start of the search, ",
                    Option("verify", True),
                    " adds that of its end",
                )
            moved, allowed = told_apart(
                ".2f", away * ANGSTROM_PER_BOHR, farthest * ANGSTROM_PER_BOHR
            )
            raise InputError(
                OPTION.of(self.path),
                f": an atom is {moved} angstrom away from where it is here, "
                f"and {allowed} is allowed: give a Hessian of this "
                "geometry",
                of_start,
            )
        turn = np.kron(np.eye(molecule.natom), rotation)
        return turn @ self.hessian @ turn.T

    def distance(self, molecule: Molecule) -> float:
        """How far the atom that lies farthest from its place in `molecule` is away, bohr."""
        return self._rotation_to(molecule)[1]

    def _rotation_to(self, molecule: Molecule) -> tuple[Array, float]:
        """The rotation that brings the atoms nearest to those of `molecule`, and how far the
        farthest one is away then, bohr."""
        before = self.molecule.coordinates - self.molecule.coordinates.mean(axis=0)
        now = molecule.coordinates - molecule.coordinates.mean(axis=0)
        rotation = rotation_onto(before, now, np.ones(molecule.natom))
        return rotation, float(np.linalg.norm(now - before @ rotation.T, axis=1).max())


def read_hessian(path: str | os.PathLike[str]) -> StoredHessian:
    """The Hessian in the file of a study; the caller checks that it suits its purpose.

    Raises
    ------
    InputError : no such file, or one without a Hessian
    ResultFileError : the file is damaged
    """
    file = Path(path)
    if file.exists() and not is_study(file):
        raise InputError(
            f"{path} contains no Hessian: expected a file of ",
            Command("frequencies"),
            ", which computes one, or of ",
            Command("optimize"),
            " with ",
            Option("verify", True),
        )
    return hessian_of(read_study(file), str(path))


def hessian_of(study: Study, path: str) -> StoredHessian:
    """The Hessian of a study; errors name its file.

    Raises
    ------
    InputError : the study has none
    """
    constrained = bool(study.settings.get("constraints"))
    if "hessian" in study.arrays:
        slopes = study.arrays.get("dipole_derivatives")
        dipole_derivatives = slopes.value if slopes is not None else None
        return StoredHessian(
            path=path,
            result=_result_at_hessian(study),
            hessian=np.array(study.arrays["hessian"].value, dtype=np.float64),
            dipole_derivatives=dipole_derivatives,
            constrained=constrained,
            isotopes=tuple(study.settings.get("isotopes", ())),
            symmetry=study.settings.get("symmetry_number"),
        )
    # A transition-state search has the runs of the Hessian that it started with.
    results = study.results
    if study.kind == "optimization" and study.settings.get("path"):
        first = results[study.settings["path"][0]]
        if all(one.name in results for one in displaced_runs(first.molecule.natom)):
            return StoredHessian(
                path=path,
                result=first,
                hessian=hessian(first.molecule, results, DISPLACEMENT),
                constrained=constrained,
                at_start=True,
            )
    state = ""
    if not study.complete:
        state = ", because it is not complete: repeat the command that began it"
    raise InputError(
        f"{path} is a study of kind {study.kind} without a Hessian{state}: ",
        Command("frequencies"),
        " computes one",
    )


def rotational_symmetry(
    molecule: Molecule,
    weights: Array,
    given: int | None,
    stored: StoredHessian | None = None,
) -> tuple[int, str]:
    """The rotational symmetry number, and where it comes from.

    The number in a file is one of the most abundant isotopes: it holds where the same atoms are
    alike, and is counted anew where isotopes tell some of them apart.

    Parameters
    ----------
    weights : (natom,) array
        Masses, u.
    given : int or None
        It counts before all others.
    stored : StoredHessian or None
        The Hessian, where it comes from a file.
    """
    if given is not None:
        return given, "given"
    counted = symmetry_number(molecule, weights)
    if stored is None or stored.symmetry in (None, counted):
        return counted, "counted"
    usual = masses(molecule)
    alike = weights[:, None] == weights[None]
    if (alike != (usual[:, None] == usual[None])).any():
        return counted, "counted"
    return stored.symmetry, f"given in {stored.path}"


def _result_at_hessian(study: Study) -> MP2Result:
    """The run at the geometry of the Hessian."""
    if study.kind == "optimization":
        return list(study.path.values())[-1]
    if study.kind == "irc":
        return study.runs[TRANSITION_STATE]
    return study.results[REFERENCE]
