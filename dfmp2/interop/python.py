"""The Python interface: what `import dfmp2` offers.

Every function says what is wrong in the words of Python, `frozen_core=` where the command line has `--frozen-core`, and
which keyword may have been meant by one that there is not.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack

from dfmp2.backends.registry import BACKENDS
from dfmp2.errors import Dfmp2Error, InputError, ResultExists
from dfmp2.molecule.foreign import Atoms, Mole
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.molecule.xyz import read_frames, read_point_charges, read_xyz
from dfmp2.mp2 import derive as derivation
from dfmp2.mp2.calculation import NOTHING, Calculation, Checkpoint, begun, limited
from dfmp2.mp2.energy import build_b, correlate, mp2_energy
from dfmp2.mp2.result import MP2Result
from dfmp2.options import (
    BEFORE_PAIRS,
    BOTH_PARTS,
    NEEDS_WHOLE_RUN,
    WHOLE_RUN,
    EnergyKeywords,
    Keywords,
    MeanFieldKeywords,
    MoleculeKeywords,
    Options,
    PreparedKeywords,
    ScfKeywords,
    default_backend,
    in_python,
    make_options,
    require_known,
)
from dfmp2.output import hdf5
from dfmp2.output.checkpoint import checkpointing
from dfmp2.planning.plan import Outlook, foresee, settle
from dfmp2.planning.system import assemble
from dfmp2.planning.system import prepare as set_up
from dfmp2.progress import Collector, Listener, Relay, Stopwatch
from dfmp2.scf.adopt import adopt, require_repeatable
from dfmp2.scf.fitting_sets import with_errors
from dfmp2.scf.stability import full_stability

if TYPE_CHECKING:
    from dfmp2.execution.batch import BatchResult
    from dfmp2.gradients.gradient import GradientResult
    from dfmp2.output.prepared import Prepared
    from dfmp2.output.study import Study
    from dfmp2.scf.reference import Reference

P = ParamSpec("P")
R = TypeVar("R")
MoleculeLike = Molecule | str | os.PathLike[str] | Atoms | Mole  # what a molecule may be given as
OF_THE_SCF = {"basis", *ScfKeywords.__annotations__}  # what a mean field leaves no choice about


class NoKeywords(TypedDict):
    """Of a function that has parameters alone."""


class RunKeywords(MoleculeKeywords, Keywords):
    """Of a calculation: its molecule, and its options."""


class PrepareKeywords(MoleculeKeywords, PreparedKeywords):
    """Of the first part of a calculation."""


class OptionKeywords(Keywords, total=False):
    """All options, also of what has its basis already and says why it takes no other."""

    basis: str


class StudyKeywords(MoleculeKeywords, Keywords, total=False):
    """Of several calculations that go into one file."""

    output: str | os.PathLike[str] | None
    overwrite: bool
    resume: bool
    listener: Listener | None


def offered(keywords: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function one of Python's: unknown keywords and errors are spoken of in its words.

    Parameters
    ----------
    keywords : the TypedDict of what it takes beside its parameters
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = {*inspect.signature(function).parameters, *keywords.__annotations__}

        @functools.wraps(function)
        def called(*arguments: P.args, **given: P.kwargs) -> R:
            with python_words():
                require_known(given, known)
                return function(*arguments, **given)

        return called

    return decorate


@contextmanager
def python_words() -> Iterator[None]:
    """Errors of the block, or of the function that is decorated with it, speak of keywords."""
    try:
        yield
    except Dfmp2Error as error:
        error.args = (in_python(str(error)),)
        raise


class Told(Relay):
    """Passes events on, warnings in the words of Python."""

    def __init__(self, listener: Listener | None) -> None:
        super().__init__(listener or Listener())

    def warning(self, text: str) -> None:
        super().warning(in_python(text))


@offered(RunKeywords)
def run(
    molecule: MoleculeLike,
    basis: str,
    *,
    listener: Listener | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **options: Unpack[RunKeywords],
) -> MP2Result:
    """DF-MP2 energy of a molecule.

    Parameters
    ----------
    molecule : path of an xyz file, a Molecule, ASE's Atoms or PySCF's Mole, of which nothing but the molecule is taken
    basis : orbital basis name
    charge, multiplicity : win over the file; for a Molecule its own values are the default
    units : unit of the coordinates in the file, "angstrom" (None too) or "bohr"; a Molecule is in bohr
    point_charges : charges around the molecule: path of a file of lines x, y, z, charge, or rows of the same; None for
        those of a Molecule
    point_charge_units : of their positions, "angstrom" or "bohr"
    listener : receives progress and warnings; by default warnings are raised as Python warnings
    checkpoint : result file beside which CHECKPOINT.checkpoint is kept while the run lasts; None for no checkpoint
    resume : go on from that checkpoint if there is one
    options : any field of `dfmp2.Options`

    Returns
    -------
    MP2Result; `dfmp2.write(result, path)` stores it

    Raises
    ------
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do

    Examples
    --------
    >>> dfmp2.run("inputs/h2o.xyz", basis="cc-pvdz").mp2_correlation_energy    # doctest: +SKIP
    -0.2039736135...
    """
    told, (found, chosen) = Told(listener), _question(molecule, basis, options)
    return _checkpointed(
        checkpoint, resume, told, lambda kept: run_options(found, chosen, listener=told, checkpoint=kept)
    )


def _checkpointed(
    checkpoint: str | os.PathLike[str] | None,
    resume: bool,
    told: Listener,
    compute: Callable[[Checkpoint], MP2Result],
) -> MP2Result:
    """The result, with a checkpoint beside CHECKPOINT while it is computed where one is wanted."""
    if checkpoint is None:
        if resume:
            raise InputError("resume=True needs checkpoint=FILE: the result file whose checkpoint is to be used")
        return compute(NOTHING)
    with checkpointing(Path(checkpoint), resume=resume, note=told.stage, warn=told.warning) as kept:
        result = compute(kept)
        kept.complete()
        return result


def _question(molecule: MoleculeLike, basis: str, given: Mapping[str, Any]) -> tuple[Molecule, Options]:
    """What is to be computed and how, from the keywords of a calculation."""
    chosen = make_options(**_options(given), basis=basis)
    return _molecule(molecule, given), chosen


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in Options.__slots__}


def _molecule(given: Any, said: Mapping[str, Any]) -> Molecule:
    """The molecule that is meant, and what is `said` of it by the keywords of MoleculeKeywords, as of `run`."""
    field = read_point_charges(said.get("point_charges"), said.get("point_charge_units", "angstrom"))
    units, state = said.get("units"), {name: said.get(name) for name in ("charge", "multiplicity")}
    if isinstance(given, str | os.PathLike):
        if isinstance(given, str) and ("\\n" in given or ";" in given):
            raise InputError(
                "molecule is a text: expected the path of an xyz file; dfmp2.Molecule.from_string reads it"
            )
        return read_xyz(Path(given), units=units or "angstrom", **state).molecule.in_field(field)
    if units is not None:
        raise InputError(
            f"units={units!r} belongs to a file: a dfmp2.Molecule has its coordinates in bohr; leave it out, and "
            "multiply coordinates in angstrom by dfmp2.units.BOHR_PER_ANGSTROM"
        )
    if hasattr(given, "get_chemical_symbols"):
        given = Molecule.from_ase(given, **state)
    elif hasattr(given, "atom_pure_symbol"):
        given = Molecule.from_pyscf(given)
    elif not isinstance(given, Molecule):
        raise InputError(
            f"molecule is a {type(given).__name__}: expected the path of an xyz file, a dfmp2.Molecule, ASE's Atoms or "
            "PySCF's Mole"
        )
    charge, multiplicity = (getattr(given, name) if state[name] is None else state[name] for name in state)
    stated: Molecule = given.with_state(charge, multiplicity)
    return stated if field is None else stated.in_field(field)


def run_options(
    molecule: Molecule,
    options: Options,
    *,
    listener: Listener | None = None,
    command: str = "dfmp2.run",
    checkpoint: Checkpoint = NOTHING,
) -> MP2Result:
    """The same with options already made (the command line's way in)."""
    start = hdf5.start_of(options)
    if options.properties:
        from dfmp2.gradients.gradient import mp2_properties

        return mp2_properties(molecule, options, start=start, listener=listener, command=command, checkpoint=checkpoint)
    return mp2_energy(molecule, options, start=start, listener=listener, command=command, checkpoint=checkpoint)


@offered(RunKeywords)
def gradient(
    molecule: MoleculeLike,
    basis: str,
    *,
    listener: Listener | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **options: Unpack[RunKeywords],
) -> GradientResult:
    """Energy, gradient, relaxed densities and dipole moments of a molecule; what is not listed is as of `run`.

    Parameters
    ----------
    checkpoint, resume : of the energy; the gradient is computed again
    options : any field of `dfmp2.Options`; with os_scale or ss_scale the gradient is that of the scaled energy, with
        check it is compared with energies along one direction

    Returns
    -------
    GradientResult with gradient (natom, 3) in Eh/bohr, properties, certificate, and result, which `dfmp2.write` stores

    Raises
    ------
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do

    Examples
    --------
    >>> dfmp2.gradient("inputs/h2o.xyz", basis="cc-pvdz").gradient              # doctest: +SKIP
    """
    from dfmp2.gradients.gradient import GradientResult

    told, (found, chosen) = Told(listener), _question(molecule, basis, options)

    def compute(kept: Checkpoint) -> MP2Result:
        return gradient_options(found, chosen, listener=told, checkpoint=kept).result

    return GradientResult(_checkpointed(checkpoint, resume, told, compute))


def gradient_options(
    molecule: Molecule,
    options: Options,
    *,
    listener: Listener | None = None,
    command: str = "dfmp2.gradient",
    checkpoint: Checkpoint = NOTHING,
) -> GradientResult:
    """The same with options already made (the command line's way in)."""
    from dfmp2.gradients.gradient import mp2_gradient

    start = hdf5.start_of(options)
    return mp2_gradient(molecule, options, start=start, listener=listener, command=command, checkpoint=checkpoint)


@offered(StudyKeywords)
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
    **options: Unpack[StudyKeywords],
) -> Study:
    """The geometry of a minimum or a transition state; what is not listed is as of `run`.

    Parameters
    ----------
    freeze : what stays, as ("bond", "1,2"), ("xyz", "1-3"); atoms count from 1
    fixed : what is brought to a value, as ("angle", "2,1,3", 90.0); degrees, lengths in angstrom or in `units`
    constraints : text of a constraints file of geomeTRIC
    convergence : one of `dfmp2.studies.optimize.PRESETS`
    max_steps : after the first geometry
    transition_state : look for a saddle point of first order
    output : file that all steps go to, None for none
    overwrite, resume : replace that file, or go on from it

    Returns
    -------
    Study; `study.arrays["final_geometry"].value` is (natom, 3) in bohr, `study.runs` has a result per step

    Raises
    ------
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do; not converged is
        `dfmp2.Unfinished`, whose `study` holds the steps

    Examples
    --------
    >>> study = dfmp2.optimize("inputs/h2o.xyz", basis="cc-pvdz")               # doctest: +SKIP
    >>> study.values["optimized_total_energy"].value                            # doctest: +SKIP
    """
    from dfmp2.studies.optimize import Constraints, Search, optimize_geometry

    values = [(kind, atoms, str(value)) for kind, atoms, value in fixed]
    kept = Constraints(tuple(freeze), values, constraints, options.get("units") or "angstrom")
    search = Search(kept, convergence, max_steps, transition_state)
    found, chosen = _question(molecule, basis, options)
    start = hdf5.start_of(chosen)
    return optimize_geometry(found, chosen, search, start=start, **_kept(options, "dfmp2.optimize"))


@offered(StudyKeywords)
def frequencies(
    molecule: MoleculeLike,
    basis: str,
    *,
    temperature: float = 298.15,
    pressure: float = 101325.0,
    symmetry_number: int | None = None,
    displacement: float = 0.005,
    allow_gradient: bool = False,
    **options: Unpack[StudyKeywords],
) -> Study:
    """Harmonic frequencies, infrared intensities and thermochemistry; what is not listed is as of `run`.

    Parameters
    ----------
    temperature, pressure : of the gas, K and Pa
    symmetry_number : rotations that put the molecule onto itself, None to count them
    displacement : of each coordinate, bohr
    allow_gradient : go on at a geometry that is no stationary point
    output, overwrite, resume : as of `optimize`

    Returns
    -------
    Study; `study.table["wavenumber"].values` are in cm^-1, imaginary ones negative

    Raises
    ------
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do

    Examples
    --------
    >>> geometry = dfmp2.optimize("inputs/h2o.xyz", basis="cc-pvdz").last       # doctest: +SKIP
    >>> dfmp2.frequencies(geometry, basis="cc-pvdz").table["wavenumber"].values # doctest: +SKIP
    """
    from dfmp2.studies.frequencies import Conditions, harmonic_frequencies

    conditions = Conditions(temperature, pressure, symmetry_number, displacement, allow_gradient)
    found, chosen = _question(molecule, basis, options)
    start = hdf5.start_of(chosen)
    return harmonic_frequencies(found, chosen, conditions, start=start, **_kept(options, "dfmp2.frequencies"))


@offered(StudyKeywords)
def interaction(
    molecule: MoleculeLike,
    basis: str,
    fragments: str | Sequence[Sequence[int]],
    *,
    charges: Sequence[int] | str | None = None,
    multiplicities: Sequence[int] | str | None = None,
    **options: Unpack[StudyKeywords],
) -> Study:
    """Interaction energy of fragments, counterpoise-corrected and not; what is not listed is as of `run`.

    Parameters
    ----------
    fragments : atoms of each, from 1: "1-5,6-10", or [[1, 2, 3], [4, 5, 6]]
    charges, multiplicities : of each fragment; None for 0 and 1
    output, overwrite, resume : as of `optimize`

    Returns
    -------
    Study; its values are listed at `dfmp2.studies.interaction.interaction_energy`

    Raises
    ------
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do

    Examples
    --------
    >>> study = dfmp2.interaction("inputs/formic-acid-dimer.xyz", "cc-pvdz", "1-5,6-10")   # doctest: +SKIP
    >>> study.values["cp_corrected_interaction_energy"].value                              # doctest: +SKIP
    """
    from dfmp2.studies.interaction import interaction_energy

    found, chosen = _question(molecule, basis, options)
    parts = fragments if isinstance(fragments, str) else ",".join("+".join(map(str, part)) for part in fragments)
    states: dict[str, Any] = {"charges": _listed(charges), "multiplicities": _listed(multiplicities)}
    return interaction_energy(found, parts, chosen, **states, **_kept(options, "dfmp2.interaction"))


def _listed(given: Sequence[int] | str | None) -> str | None:
    return given if given is None or isinstance(given, str) else ",".join(map(str, given))


@offered(StudyKeywords)
def cbs(
    molecule: MoleculeLike,
    basis: str,
    *,
    scf_formula: str = "largest",
    correlation_formula: str | None = None,
    **options: Unpack[StudyKeywords],
) -> Study:
    """Energy at the basis set limit, from runs in two basis sets; what is not listed is as of `run`.

    Parameters
    ----------
    basis : a pair of neighbours in brackets, such as "cc-pv[tq]z"
    scf_formula, correlation_formula : names of formulas, see `dfmp2.mp2.extrapolation`; None is X^-3, for def2 its own
        exponent
    output, overwrite, resume : as of `optimize`

    Returns
    -------
    Study; its values are listed at `dfmp2.studies.cbs.basis_set_limit`

    Raises
    ------
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do

    Examples
    --------
    >>> dfmp2.cbs("inputs/h2o.xyz", "cc-pv[tq]z").values["cbs_total_energy"].value          # doctest: +SKIP
    """
    from dfmp2.studies.cbs import basis_set_limit

    found, chosen = _question(molecule, basis, options)
    formulas: dict[str, Any] = {"scf": scf_formula, "correlation": correlation_formula}
    return basis_set_limit(found, chosen, **formulas, **_kept(options, "dfmp2.cbs"))


@offered(StudyKeywords)
def scan(
    molecule: MoleculeLike | Sequence[MoleculeLike],
    basis: str,
    coordinate: tuple[str, str, str | Sequence[float]] | None = None,
    *,
    moving: str | None = None,
    chained: bool = True,
    **options: Unpack[StudyKeywords],
) -> Study:
    """Energies along a coordinate, or of several geometries of one molecule; what is not listed is as of `run`.

    Parameters
    ----------
    molecule : without a coordinate the path of an xyz file of several frames, or a list of molecules
    coordinate : as ("bond", "1,2", "0.8:1.2:9") or ("angle", "2,1,3", [95, 100, 105]): kind (bond, angle or dihedral),
        atoms from 1, values in angstrom (or in `units`) or degrees, FROM:TO:POINTS or a list
    moving : atoms that move, such as "4-6+8"; None for the side of the last atom
    chained : start every SCF from the orbitals of the point before
    output, overwrite, resume : as of `optimize`

    Returns
    -------
    Study; its table has a row for each point, NaN and the exit code of its error for one that failed, which is also a
    warning; its values hold the minimum

    Raises
    ------
    dfmp2.Dfmp2Error : the calculation would be refused for the first point already

    Examples
    --------
    >>> study = dfmp2.scan("inputs/h2o.xyz", "cc-pvdz", ("bond", "1,2", "0.90:1.02:7"))     # doctest: +SKIP
    >>> study.to_dataframe()                                                                # doctest: +SKIP
    """
    from dfmp2.studies.coordinate import make_coordinate
    from dfmp2.studies.scan import along, over_frames, scan_energies

    chosen, units = make_options(**_options(options), basis=basis), options.get("units") or "angstrom"
    if coordinate is None:
        if moving is not None:
            raise InputError("moving belongs to a coordinate: name one, as in coordinate=('bond', '1,2', '0.8:1.2:9')")
        frames = _frames(molecule, options)
        if len(frames) < 2:
            raise InputError("one geometry: name a coordinate, as in ('bond', '1,2', '0.8:1.2:9'), or give several")
        asked = over_frames(frames, chosen, chained=chained)
    else:
        whole = _molecule(molecule, options)
        found = make_coordinate(*coordinate, whole, units=units, moving=moving)
        asked = along(whole, found, chosen, chained=chained)
    return scan_energies(asked, start=hdf5.start_of(chosen), **_kept(options, "dfmp2.scan"))


def _frames(given: Any, said: Mapping[str, Any]) -> list[Molecule]:
    """The geometries of a scan without a coordinate."""
    if not isinstance(given, str | os.PathLike):
        many = isinstance(given, Sequence)
        return [_molecule(one, said) for one in (given if many else [given])]
    field = read_point_charges(said.get("point_charges"), said.get("point_charge_units", "angstrom"))
    state = {name: said.get(name) for name in ("charge", "multiplicity")}
    frames = read_frames(Path(given), units=said.get("units") or "angstrom", **state)
    return [frame.in_field(field) for frame in frames]


def _kept(given: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Keeper, listener and command of a study, from the keywords that all studies take."""
    from dfmp2.studies.runs import Keeper

    output, resume = given.get("output"), given.get("resume", False)
    if output is None and resume:
        raise InputError("resume=True needs output=FILE: the file of the study that is to go on")
    keeper = Keeper(None if output is None else Path(output), overwrite=given.get("overwrite", False), resume=resume)
    return {"keeper": keeper, "listener": Told(given.get("listener")), "command": command}


@offered(RunKeywords)
def plan(
    molecule: MoleculeLike,
    basis: str,
    *,
    gradient: bool = False,
    calibrate: bool = False,
    listener: Listener | None = None,
    **options: Unpack[RunKeywords],
) -> Outlook:
    """What a run would need: memory, scratch space and time; what is not listed is as of `run`.

    Parameters
    ----------
    gradient : of `dfmp2.gradient`
    calibrate : measure the rates of this host and of the scratch folder again; they are measured at the first use

    Returns
    -------
    Outlook; `print` shows it, `to_dict` has bytes, operations and seconds, `change` what would make it fit

    Raises
    ------
    dfmp2.Dfmp2Error : the run itself would be refused, for any reason but memory

    Examples
    --------
    >>> print(dfmp2.plan("inputs/h2o.xyz", basis="cc-pvtz"))                    # doctest: +SKIP
    """
    found, chosen = _question(molecule, basis, options)
    task = "gradient" if gradient else "properties" if chosen.properties else "energy"
    return foresee(found, chosen, Told(listener), calibrate=calibrate, task=task)


def available_backends() -> list[str]:
    """Names of the backends that can be used here; `dfmp2 backends` says why others cannot.

    Examples
    --------
    >>> dfmp2.available_backends()                                              # doctest: +SKIP
    ['cpu', 'torch']
    """
    return [row.name for row in BACKENDS if row.probe() is None]


@offered(Keywords)
def batch(
    molecules: str | os.PathLike[str] | Sequence[MoleculeLike] | Mapping[str, MoleculeLike],
    basis: str | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    workers: int = 1,
    chained: bool = False,
    listener: Listener | None = None,
    **options: Unpack[Keywords],
) -> BatchResult:
    """Many molecules in processes of this host, isolated from each other; what is complete is not computed again.

    Parameters
    ----------
    molecules : a manifest (.toml), or molecules as of `run`: a list, or by the names of their results. Those that are
        no files are written to OUTPUT/molecules
    basis, options : of all of them; a manifest has its own, and takes memory, threads and scratch alone
    output : folder of the results, None for that of a manifest
    workers : processes; `memory` is shared by all of them, `threads` are those of each
    chained : start each SCF from the orbitals of the item before, where it has the same atoms
    listener : hears of each item, of one that failed as a warning

    Returns
    -------
    BatchResult: `result["NAME"]` reads a result, `to_dataframe` has a row for each item, `failed` those that failed

    Raises
    ------
    dfmp2.Dfmp2Error : before anything is computed; the failure of an item is in its row

    Examples
    --------
    >>> found = dfmp2.batch(["a.xyz", "b.xyz"], "cc-pvdz", "results", workers=2)            # doctest: +SKIP
    >>> found["a"].mp2_total_energy                                                         # doctest: +SKIP
    """
    from dfmp2.execution.batch import compute_batch
    from dfmp2.execution.manifest import make_batch, read_manifest

    given: dict[str, Any] = {**options} if basis is None else {**options, "basis": basis}
    if isinstance(molecules, str | os.PathLike):
        foreign = sorted(set(given) - {"memory", "threads", "scratch"})
        if foreign:
            raise InputError(f"{foreign[0]} beside a manifest: write it into {os.fspath(molecules)}")
        found = read_manifest(Path(molecules), output=None if output is None else Path(output))
    else:
        if output is None:
            raise InputError("output was not given: name the folder of the results")
        make_options(**given)  # before a file is written
        files = _files(molecules, Path(output) / "molecules")
        found = make_batch(files, given, Path(output))
    machine = {name: given[name] for name in ("memory", "threads", "scratch") if given.get(name) is not None}
    return compute_batch(found, workers, Options("-", **machine), Told(listener), chained=chained)


def _files(molecules: Any, folder: Path) -> list[str]:
    """The xyz file of each molecule, written where it has none."""
    from dfmp2.execution.manifest import slug
    from dfmp2.host.files import write_atomically
    from dfmp2.molecule.xyz import write_xyz

    names = list(molecules) if isinstance(molecules, Mapping) else [None] * len(molecules)
    files: list[str] = []
    for name, given in zip(names, molecules.values() if isinstance(molecules, Mapping) else molecules, strict=True):
        if name is None and isinstance(given, str | os.PathLike):
            files.append(os.fspath(given))
            continue
        molecule = _molecule(given, {})
        if molecule.point_charges is not None:
            raise InputError(f"{molecule!r}: an xyz file holds no point charges: name them in a manifest")
        path = folder / f"{slug(name or f'{molecule.name}-{len(files) + 1}')}.xyz"
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write_xyz(molecule).encode(), overwrite=True)
        files.append(str(path))
    return files


@offered(NoKeywords)
def write(result: MP2Result, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a result, all or nothing.

    Parameters
    ----------
    overwrite : replace a file that is there, at once and as a whole

    Raises
    ------
    ResultExists : the file exists and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """
    if os.path.lexists(path) and not overwrite:
        raise ResultExists(f"{path} already exists: overwrite=True replaces it, another name keeps it")
    hdf5.write(result, Path(path), overwrite=overwrite)


derive = offered(OptionKeywords)(derivation.derive)
read = offered(NoKeywords)(hdf5.read)


@offered(NoKeywords)
def read_study(path: str | os.PathLike[str]) -> Study:
    """A stored study with all its runs.

    Raises
    ------
    InputError : no such file
    ResultFileError : not a study, damaged, or of an unknown version
    """
    from dfmp2.output.study import read_study as stored

    return stored(Path(path))


@offered(RunKeywords)
def prepare(
    molecule: MoleculeLike,
    basis: str,
    output: str | os.PathLike[str],
    *,
    listener: Listener | None = None,
    overwrite: bool = False,
    resume: bool = False,
    **options: Unpack[PrepareKeywords],
) -> Prepared:
    """SCF, integrals and B of a molecule into a file, for `energy` to go on from, here or on another machine.

    What is not listed is as of `run`.

    Parameters
    ----------
    output : the file; OUTPUT.checkpoint is kept beside it while it is made
    overwrite : replace a file that is there
    options : fields of `dfmp2.Options` that concern what comes before the pair energies

    Returns
    -------
    Prepared: what the file holds, but B

    Raises
    ------
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do

    Examples
    --------
    >>> dfmp2.prepare("inputs/h2o.xyz", "cc-pvdz", "h2o.prepared.h5")           # doctest: +SKIP
    >>> dfmp2.energy("h2o.prepared.h5", backend="torch").mp2_total_energy       # doctest: +SKIP
    """
    from dfmp2.output import prepared as two_parts

    whole = sorted(set(WHOLE_RUN) & set(options))
    if whole:
        raise InputError(f"{whole[0]} {NEEDS_WHOLE_RUN}")
    foreign = sorted(set(Options.__slots__) & set(options) - {*BEFORE_PAIRS, *BOTH_PARTS})
    if foreign:
        raise InputError(f"{foreign[0]} belongs to the pair energies, which dfmp2.energy computes: leave it out here")
    chosen = make_options(**{"backend": "auto", **_options(options)}, basis=basis)
    whole_molecule, told = _molecule(molecule, options), Told(listener)
    file = two_parts.PreparedFile(Path(output), overwrite=overwrite)
    with checkpointing(Path(output), resume=resume, note=told.stage, warn=told.warning) as kept, file:
        found = two_parts.prepare(whole_molecule, chosen, file, listener=told, checkpoint=kept)
        file.publish()
        kept.complete()
        return found


@offered(OptionKeywords)
def energy(
    prepared: str | os.PathLike[str],
    *,
    listener: Listener | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **options: Unpack[EnergyKeywords],
) -> MP2Result:
    """DF-MP2 energy from a file of `prepare`: the pair energies alone.

    Parameters
    ----------
    prepared : the file
    listener, checkpoint, resume : as in `run`
    options : fields of `dfmp2.Options` that concern the pair energies (backend, precision, tolerance, memory, ...)

    Raises
    ------
    dfmp2.Dfmp2Error : the file is damaged or foreign, or what `run` refuses
    """
    from dfmp2.output import prepared as two_parts

    given, told = {"backend": default_backend(), **options}, Told(listener)
    with two_parts.opened(Path(prepared)) as source:
        chosen = two_parts.options_for(source.prepared, given)
        return _checkpointed(
            *(checkpoint, resume, told), lambda kept: two_parts.energy(source, chosen, listener=told, checkpoint=kept)
        )


@offered(OptionKeywords)
def from_mean_field(
    mean_field: Any,
    auxbasis: str | None = None,
    *,
    listener: Listener | None = None,
    **options: Unpack[MeanFieldKeywords],
) -> MP2Result:
    """DF-MP2 energy on a converged PySCF RHF or UHF, density-fitted or not.

    Parameters
    ----------
    mean_field : converged PySCF mean field of a molecule, spherical functions; sf-X2C-1e and point charges
        (`qmmm.mm_charge`) are recorded
    auxbasis : MP2 fitting set; None for the partner of the orbital basis
    options : fields of `dfmp2.Options` that concern the MP2 step (frozen_core, precision, backend, ...)

    Returns
    -------
    MP2Result

    Raises
    ------
    dfmp2.Dfmp2Error : not converged, Kohn-Sham, restricted open-shell, periodic, Cartesian functions, and whatever
        cannot be recorded and repeated: solvent, fractional occupations, other integrals, orbitals not canonical
    """
    task = "properties" if options.get("properties") else "energy"
    with _on_mean_field(mean_field, auxbasis, listener, options, task) as (calculation, reference):
        if task == "energy":
            return correlate(calculation, *build_b(calculation, reference))
        from dfmp2.gradients.gradient import on_reference

        return on_reference(calculation, reference, [])


@offered(OptionKeywords)
def gradient_from_mean_field(
    mean_field: Any,
    auxbasis: str | None = None,
    *,
    listener: Listener | None = None,
    **options: Unpack[MeanFieldKeywords],
) -> GradientResult:
    """DF-MP2 gradient and relaxed densities on a converged PySCF RHF or UHF; parameters as of `from_mean_field`.

    Raises
    ------
    dfmp2.Dfmp2Error : as of `from_mean_field` and `gradient`
    """
    from dfmp2.gradients.gradient import GradientResult, on_reference

    if options.get("check"):
        raise InputError(
            "check compares a gradient with energies of displaced molecules, whose SCF would not be that of this mean "
            "field: leave it out, or use dfmp2.gradient"
        )
    with _on_mean_field(mean_field, auxbasis, listener, options, "gradient") as (calculation, reference):
        return GradientResult(on_reference(calculation, reference, []))


@contextmanager
def _on_mean_field(
    mean_field: Any, auxbasis: str | None, listener: Listener | None, options: Mapping[str, Any], task: str
) -> Iterator[tuple[Calculation, Reference]]:
    """A calculation begun with the orbitals of a mean field; `task` as of `dfmp2.planning.plan.make_plan`."""
    import_pyscf()
    listener, clock = Collector(Told(listener)), Stopwatch()
    found = adopt(mean_field)
    fixed = OF_THE_SCF & set(options)
    if fixed:
        raise InputError(f"{sorted(fixed)[0]} belongs to the SCF, which has already been done: leave it out")
    if options.get("polarizability"):
        raise InputError(
            "polarizability converges the SCF again, in fields, which has already been done: use dfmp2.run, with "
            "scf_from for the orbitals"
        )
    if options.get("stability") == "follow":
        raise InputError(
            "stability follow converges the SCF again, which has already been done: follow it in PySCF "
            "(mf.stability()), or give full, auto or off"
        )
    reference, jk = found.reference, found.jk
    chosen = make_options(
        **{"stability": "off", **options, "auxbasis": auxbasis},
        basis=found.orbital.name,
        reference=reference.kind,
        relativity=found.relativity,
        scf=reference.scf_type,
    )
    if jk is not None:
        jk = with_errors(jk, found.orbital, allow_poor=chosen.allow_poor_fit)
    setup = set_up(chosen, "dfmp2.from_mean_field")
    system = assemble(found.molecule, found.orbital, jk, setup, listener)
    with limited(setup, system) as setup:
        core, setup, plan = settle(system, setup, reference.kind, listener, part="from orbitals", task=task)
        with begun(system, setup, reference.kind, core, plan, listener, clock) as calculation:
            reference = require_repeatable(mean_field, found, system.mole, system.jk_auxmole)
            if chosen.stability == "full":
                reference = replace(reference, stability=full_stability(mean_field))
            yield calculation, reference
