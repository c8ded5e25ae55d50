"""Studies of a molecule in Python, as `interop.python` offers single calculations and
`interop.batch` many; `interop.thermochemistry` compares molecules."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from dfmp2.errors import InputError, Option
from dfmp2.execution.parts import StepWorkers
from dfmp2.interop.python import (
    MoleculeLike,
    NoKeywords,
    TranslatingListener,
    molecule_and_options,
    number_of_workers,
    options_among,
    public,
    read_molecule,
)
from dfmp2.molecule.files import read_frames, read_point_charges
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Keywords, MoleculeKeywords, Options, make_options
from dfmp2.output import study as stored
from dfmp2.output.study import Study
from dfmp2.progress import Listener
from dfmp2.studies.cbs import basis_set_limit
from dfmp2.studies.composite import at_level
from dfmp2.studies.coordinate import Constraints
from dfmp2.studies.frequencies import StoredHessian, harmonic_frequencies, read_hessian
from dfmp2.studies.geometric_search import MINIMUM, Search
from dfmp2.studies.hessian import DISPLACEMENT
from dfmp2.studies.ideal_gas import ATMOSPHERE, ROOM_TEMPERATURE, make_conditions
from dfmp2.studies.interaction import interaction_energy
from dfmp2.studies.keeper import Keeper
from dfmp2.studies.optimize import optimize_geometry
from dfmp2.studies.reaction_path import reaction_path
from dfmp2.studies.runs import CarryOutKeywords
from dfmp2.studies.scan import along_written, over_frames, scan_energies

CoordinateLike = tuple[str, str, str | Sequence[float]]  # kind, atoms, values


class FileKeywords(TypedDict, total=False):
    """Where runs are stored, and who is notified of them."""

    output: str | os.PathLike[str] | None
    overwrite: bool
    resume: bool
    listener: Listener | None


class CompositeKeywords(TypedDict, total=False):
    """Keywords of a level with several runs per molecule: basis-set pairs and corrections."""

    scf_formula: str | None
    correlation_formula: str | None
    delta: str | None
    delta_program: str | None


class SharedKeywords(TypedDict, total=False):
    """Keywords of a study with independent runs."""

    workers: int | None


class StudyKeywords(MoleculeKeywords, Keywords, FileKeywords):
    """Keywords of several calculations of a molecule that go into one file."""


class LevelKeywords(StudyKeywords, CompositeKeywords):
    """Keywords of a study at a level that may take several runs per molecule."""


class SharedStudyKeywords(StudyKeywords, SharedKeywords):
    """Keywords of a study whose runs several processes may share."""


class SharedLevelKeywords(LevelKeywords, SharedKeywords):
    """Keywords of such a study at a level that may take several runs per molecule."""


@public(LevelKeywords)
def optimize(
    molecule: MoleculeLike,
    basis: str,
    *,
    freeze: Sequence[tuple[str, str]] = (),
    fixed: Sequence[tuple[str, str, float]] = (),
    constraints: str = "",
    convergence: str = "GAU",
    max_steps: int = 100,
    transition_state: bool = False,
    verify: bool = False,
    start_hessian: str | os.PathLike[str] | None = None,
    **options: Unpack[LevelKeywords],
) -> Study:
    """Optimise to a stationary point, with `verify` to a minimum or a transition state; other
    parameters as in `run`.

    Parameters
    ----------
    freeze : sequence of (str, str), optional
        Coordinates to keep, as ("bond", "1,2"), ("xyz", "1-3"); atoms count from 1.
    fixed : sequence of (str, str, float), optional
        Coordinates to bring to a value, as ("angle", "2,1,3", 90.0); degrees, lengths in angstrom
        or in `units`.
    constraints : str, optional
        Text of a constraints file of geomeTRIC.
    convergence : str, optional
        One of `dfmp2.options.CONVERGENCE`.
    max_steps : int, optional
        Limit on the number of steps after the first geometry.
    transition_state : bool, optional
        Search for a first-order saddle point.
    verify : bool, optional
        Compute the Hessian of the final geometry, and continue along imaginary modes that should
        not exist.
    start_hessian : str or path, optional
        A study with the Hessian of a similar geometry, from which the search starts.
    output : str or path, optional
        File for all steps, None for none.
    overwrite, resume : bool, optional
        Replace that file, or continue from it.

    Returns
    -------
    Study; `study.arrays["final_geometry"].value` is (natom, 3) in bohr, `study.runs` has a result
    per step

    Raises
    ------
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do; without
        convergence it is `dfmp2.Unfinished`, whose `study` holds the steps

    Examples
    --------
    >>> study = dfmp2.optimize("inputs/h2o.xyz", basis="cc-pvdz")               # doctest: +SKIP
    >>> study.values["optimized_total_energy"].value                            # doctest: +SKIP
    """
    kept = _entries("freeze", freeze, ("bond", "1,2"))
    values = [
        (kind, atoms, str(value))
        for kind, atoms, value in _entries("fixed", fixed, ("angle", "2,1,3", 90.0))
    ]
    search = Search(
        constraints=Constraints(
            frozen=kept, fixed=values, text=constraints, units=units_of(options)
        ),
        convergence=convergence,
        max_steps=max_steps,
        transition_state=transition_state,
        verify=verify,
    )
    parsed, level = _molecule_and_level(molecule, basis, options)
    return optimize_geometry(
        parsed,
        level,
        search,
        start_hessian=_stored_hessian(start_hessian),
        **carrying_out(options, "dfmp2.optimize"),
    )


def _entries(name: str, given: Any, example: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tuples in a sequence, each with as many parts as the example, kind and atoms as text.

    Raises
    ------
    InputError : it is something else, such as one tuple that is in no list
    """
    refusal = InputError(Option(name, given), f": expected a list such as [{example!r}]")
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise refusal
    entries = tuple(given)
    for entry in entries:
        shaped = isinstance(entry, Sequence) and len(entry) == len(example)
        if not shaped or not all(isinstance(part, str) for part in entry[:2]):
            raise refusal
    return entries


def _stored_hessian(path: str | os.PathLike[str] | None) -> StoredHessian | None:
    """The Hessian in a file, None without one."""
    return None if path is None else read_hessian(path)


def units_of(keywords: Mapping[str, Any]) -> str:
    """Unit of the lengths in keywords."""
    return keywords.get("units") or "angstrom"


@public(StudyKeywords)
def irc(
    molecule: MoleculeLike,
    basis: str,
    *,
    start_hessian: str | os.PathLike[str] | None = None,
    convergence: str = MINIMUM.convergence,
    max_steps: int = MINIMUM.max_steps,
    **options: Unpack[StudyKeywords],
) -> Study:
    """The intrinsic reaction coordinate from a transition state to the minima on both sides; other
    parameters as in `optimize`.

    Parameters
    ----------
    molecule : str, path or Molecule
        The molecule at the transition state.
    start_hessian : str or path, optional
        A study with the Hessian of this geometry; None to compute it.
    convergence : str, optional
        Convergence of the minima: one of `dfmp2.options.CONVERGENCE`.
    max_steps : int, optional
        Limit on the number of steps on each side, those of the path and of the optimisation
        together.

    Returns
    -------
    Study; its table has a row per geometry, `study.path` has the results, its values the barriers

    Examples
    --------
    >>> study = dfmp2.irc("ts.xyz", "cc-pvdz", start_hessian="ts.optimization.h5")  # doctest: +SKIP
    >>> study.values["barrier_forward_kj_per_mol"].value                           # doctest: +SKIP
    """
    search = Search(convergence=convergence, max_steps=max_steps)
    hessian = _stored_hessian(start_hessian)
    parsed, chosen = molecule_and_options(molecule, basis, options)
    return reaction_path(parsed, chosen, search, hessian, **carrying_out(options, "dfmp2.irc"))


@public(SharedStudyKeywords)
def frequencies(
    molecule: MoleculeLike,
    basis: str,
    *,
    temperature: float = ROOM_TEMPERATURE,
    pressure: float = ATMOSPHERE,
    symmetry_number: int | None = None,
    displacement: float = DISPLACEMENT,
    allow_gradient: bool = False,
    **options: Unpack[SharedStudyKeywords],
) -> Study:
    """Harmonic frequencies, infrared intensities and thermochemistry; other parameters as in
    `optimize`.

    Parameters
    ----------
    temperature, pressure : float, optional
        Temperature and pressure of the gas, K and Pa.
    symmetry_number : int, optional
        Rotational symmetry number, None to determine it from the geometry.
    displacement : float, optional
        Displacement of each coordinate of each atom, bohr.
    allow_gradient : bool, optional
        Continue at a geometry that is not a stationary point.
    workers : int, optional
        Number of processes that share the displaced runs, None for this process alone; `memory` is
        shared by all of them, `threads` are per process.

    Returns
    -------
    Study; `study.table["wavenumber"].values` are in cm^-1, imaginary ones negative

    Examples
    --------
    >>> geometry = dfmp2.optimize("inputs/h2o.xyz", basis="cc-pvdz").last       # doctest: +SKIP
    >>> dfmp2.frequencies(geometry, basis="cc-pvdz").table["wavenumber"].values # doctest: +SKIP
    """
    gas = make_conditions(temperature=temperature, pressure=pressure, symmetry=symmetry_number)
    parsed, chosen = molecule_and_options(molecule, basis, options)
    return harmonic_frequencies(
        parsed,
        chosen,
        gas,
        displacement=displacement,
        allow_gradient=allow_gradient,
        **carrying_out(options, "dfmp2.frequencies"),
    )


@public(SharedLevelKeywords)
def interaction(
    molecule: MoleculeLike,
    basis: str,
    fragments: str | Sequence[Sequence[int]],
    *,
    charges: Sequence[int] | str | None = None,
    multiplicities: Sequence[int] | str | None = None,
    **options: Unpack[SharedLevelKeywords],
) -> Study:
    """Interaction energy of fragments, with and without counterpoise correction; other parameters
    as in `optimize`.

    Parameters
    ----------
    fragments : str or sequence of sequences of int
        Atoms of each fragment, from 1: "1-5,6-10", or [[1, 2, 3], [4, 5, 6]]; "auto": from bonds.
    charges, multiplicities : sequence of int or str, optional
        Charge and multiplicity of each fragment; None for 0 and 1.
    workers : int, optional
        Number of processes that share the runs, as in `frequencies`.

    Returns
    -------
    Study; for its values see `dfmp2.studies.interaction.interaction_energy`

    Examples
    --------
    >>> study = dfmp2.interaction("inputs/formic-acid-dimer.xyz", "cc-pvdz", "1-5,6-10")   # doctest: +SKIP
    >>> study.values["cp_corrected_interaction_energy"].value                              # doctest: +SKIP
    """
    parsed, level = _molecule_and_level(molecule, basis, options)
    parts = fragments
    if not isinstance(parts, str):
        if not isinstance(parts, Iterable) or not all(isinstance(p, Iterable) for p in parts):
            raise InputError(
                Option("fragments", fragments),
                ": expected '1-3,4' or a list such as [[1, 2, 3], [4]]",
            )
        parts = ",".join("+".join(map(str, part)) for part in parts)
    return interaction_energy(
        parsed,
        parts,
        level,
        charges=_with_commas(charges),
        multiplicities=_with_commas(multiplicities),
        **carrying_out(options, "dfmp2.interaction"),
    )


def _with_commas(numbers: Sequence[int] | str | None) -> str | None:
    """Numbers in the form of the command line."""
    if numbers is None or isinstance(numbers, str):
        return numbers
    if not isinstance(numbers, Iterable):
        numbers = (numbers,)
    return ",".join(map(str, numbers))


@public(LevelKeywords)
def cbs(molecule: MoleculeLike, basis: str, **options: Unpack[LevelKeywords]) -> Study:
    """Energy at the basis-set limit, from runs in two basis sets; other parameters as in
    `optimize`.

    Parameters
    ----------
    basis : str
        A pair of neighbouring basis sets in brackets, such as "cc-pv[tq]z", which `interaction`,
        `scan` and `optimize` accept too. With `delta` also a single basis.
    scf_formula, correlation_formula : str, optional
        Names of formulas, see `dfmp2.mp2.composite`; None for the SCF energy in the larger basis
        and X^-3, or for def2 its own exponent.
    delta : str, optional
        A correction E(CCSD(T)) - E(MP2), as "ccsd(t)/cc-pvdz"; not available in `optimize`.
    delta_program : str, optional
        "pyscf", with fitted integrals, or "psi4", through QCEngine.

    Returns
    -------
    Study; for its values see `dfmp2.studies.cbs.basis_set_limit`

    Examples
    --------
    >>> dfmp2.cbs("inputs/h2o.xyz", "cc-pv[tq]z").values["cbs_total_energy"].value          # doctest: +SKIP
    """
    parsed, level = _molecule_and_level(molecule, basis, options)
    return basis_set_limit(parsed, level, **carrying_out(options, "dfmp2.cbs"))


def _molecule_and_level(
    molecule: MoleculeLike, basis: str, keywords: Mapping[str, Any]
) -> tuple[Molecule, Options]:
    """The molecule, and the options of its level."""
    level = level_of(basis, keywords)
    return read_molecule(molecule, keywords), level


def level_of(basis: str, keywords: Mapping[str, Any]) -> Options:
    """The options of a level that may take several runs, from keywords."""
    return at_level(
        make_options(**options_among(keywords), basis=basis),
        scf_formula=keywords.get("scf_formula"),
        correlation_formula=keywords.get("correlation_formula"),
        delta=keywords.get("delta"),
        delta_program=keywords.get("delta_program"),
    )


@public(SharedLevelKeywords)
def scan(
    molecule: MoleculeLike | Sequence[MoleculeLike],
    basis: str,
    coordinate: CoordinateLike | Sequence[CoordinateLike] | None = None,
    *,
    relaxed: bool = False,
    moving: str | None = None,
    chained: bool = True,
    convergence: str | None = None,
    **options: Unpack[SharedLevelKeywords],
) -> Study:
    """Energies along one or two coordinates, or of several geometries of one molecule; other
    parameters as in `optimize`.

    Parameters
    ----------
    molecule : str, path, Molecule, or a sequence of them
        Without a coordinate, the path of a file with several frames (xyz, sdf, pdb), or a list of
        molecules.
    coordinate : (str, str, str or sequence of float), optional
        As ("bond", "1,2", "0.8:1.2:9") or ("angle", "2,1,3", [95, 100, 105]): kind (bond, angle or
        dihedral), atoms from 1, values in angstrom (or in `units`) or degrees, FROM:TO:POINTS or a
        list. A list of two of them makes a map.
    relaxed : bool, optional
        Fix the coordinates and optimise everything else at each point.
    moving : str, optional
        Atoms that move, such as "4-6+8", for a single coordinate; None for the side of the last
        atom.
    chained : bool, optional
        Start every SCF from the orbitals of the previous point.
    convergence : str, optional
        Convergence of a relaxed scan: one of `dfmp2.options.CONVERGENCE`, None for GAU.
    workers : int, optional
        Number of processes that share the points, as in `frequencies`; a rigid scan needs
        `chained=False`.

    Returns
    -------
    Study; its table has a row for each point; a point that failed has NaN and the exit code of its
    error, and gives a warning. Its values hold the minimum

    Raises
    ------
    dfmp2.Dfmp2Error : the calculation would fail at the first point already

    Examples
    --------
    >>> study = dfmp2.scan("inputs/h2o.xyz", "cc-pvdz", ("bond", "1,2", "0.90:1.02:7"))     # doctest: +SKIP
    >>> study.to_dataframe()                                                                # doctest: +SKIP
    """
    level = level_of(basis, options)
    if convergence is not None and not relaxed:
        raise InputError(
            Option("convergence", convergence),
            " belongs to ",
            Option("relaxed", True),
            ": add it, or leave this out",
        )
    if options.get("workers") is not None and chained and not relaxed:
        raise InputError(
            Option("workers", options["workers"]),
            ": each point starts from the one before: add ",
            Option("chained", False),
        )
    if coordinate is None:
        _require_coordinate(relaxed=relaxed, moving=moving)
        asked = over_frames(_frames(molecule, options), level, chained=chained)
    else:
        if relaxed and convergence is None:
            convergence = MINIMUM.convergence
        asked = along_written(
            read_molecule(molecule, options),
            _coordinates(coordinate),
            level,
            units=units_of(options),
            moving=moving,
            chained=chained,
            convergence=convergence,
        )
    return scan_energies(asked, **carrying_out(options, "dfmp2.scan"))


def _coordinates(coordinate: Any) -> tuple[Any, ...]:
    """The coordinates of a scan, of which one may stand in no list."""
    coordinates = coordinate
    if isinstance(coordinate, tuple | list) and coordinate and isinstance(coordinate[0], str):
        coordinates = [coordinate]
    example = ("bond", "1,2", "0.8:1.2:9")
    coordinates = _entries("coordinate", coordinates, example)
    if not coordinates or not all(isinstance(values, Iterable) for *_, values in coordinates):
        raise InputError(Option("coordinate", coordinate), f": expected values, as in {example!r}")
    return coordinates


def _require_coordinate(*, relaxed: bool, moving: str | None) -> None:
    """Raise for what a scan without a coordinate cannot do."""
    if relaxed:
        raise InputError(
            "relaxed=True fixes a coordinate: name one, as in coordinate=('dihedral', "
            "'1,2,3,4', '0:360:25')"
        )
    if moving is not None:
        raise InputError(
            "moving belongs to a coordinate: name one, as in coordinate=('bond', '1,2', "
            "'0.8:1.2:9')"
        )


def _frames(source: Any, keywords: Mapping[str, Any]) -> list[Molecule]:
    """The geometries of a scan without a coordinate: the frames of a file, or several molecules.

    Raises
    ------
    InputError : there is only one
    """
    if isinstance(source, str | os.PathLike):
        field = read_point_charges(
            keywords.get("point_charges"), keywords.get("point_charge_units", "angstrom")
        )
        frames = read_frames(
            Path(source),
            units=units_of(keywords),
            charge=keywords.get("charge"),
            multiplicity=keywords.get("multiplicity"),
        )
        molecules = [frame.in_field(field) for frame in frames]
    elif isinstance(source, Sequence):
        molecules = [read_molecule(molecule, keywords) for molecule in source]
    else:
        molecules = [read_molecule(source, keywords)]
    if len(molecules) < 2:
        raise InputError(
            "one geometry: name a coordinate, as in ('bond', '1,2', '0.8:1.2:9'), or give several"
        )
    return molecules


def carrying_out(keywords: Mapping[str, Any], command: str) -> CarryOutKeywords:
    """Keeper, listener, command and workers of a study, from its keywords."""
    output = keywords.get("output")
    resume = keywords.get("resume", False)
    if output is None and resume:
        raise InputError("resume=True needs output=FILE: the file of the study to continue")
    path = Path(output) if output is not None else None
    carrying_out: CarryOutKeywords = {
        "keeper": Keeper(path, overwrite=keywords.get("overwrite", False), resume=resume),
        "listener": TranslatingListener(keywords.get("listener")),
        "command": command,
    }
    workers = keywords.get("workers")
    if workers is not None:
        carrying_out["elsewhere"] = StepWorkers(number_of_workers(workers))
    return carrying_out


read_study = public(NoKeywords)(stored.read_study)
