"""The Python interface: everything in `import dfmp2` except studies and batches
(`interop.studies`).

Errors name Python keywords, `frozen_core=` for `--frozen-core` on the command line, and suggest the
keyword that a misspelt one resembles.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack

from dfmp2.backends.registry import BACKENDS
from dfmp2.errors import ComparisonFailed, InputError, Message, Option, ResultExists, speaking
from dfmp2.errors.messages import PYTHON, in_words, plain
from dfmp2.errors.wishes import require_known_option
from dfmp2.molecule.files import read_file, read_point_charges
from dfmp2.molecule.foreign import Atoms, Mole
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2 import derive as derivation
from dfmp2.mp2.calculation import (
    NOTHING,
    CalculationKeywords,
    Checkpoint,
)
from dfmp2.mp2.energy import mp2_energy
from dfmp2.mp2.result import MP2Result
from dfmp2.options import (
    BEFORE_PAIRS,
    BOTH_PARTS,
    NEEDS_WHOLE_RUN,
    WHOLE_RUN,
    EnergyKeywords,
    Keywords,
    MoleculeKeywords,
    Options,
    PreparedKeywords,
    default_backend,
    make_options,
)
from dfmp2.options.methods import method_of_orbitals
from dfmp2.output import hdf5
from dfmp2.output.checkpoint import checkpointing
from dfmp2.planning.plan import Outlook, foresee
from dfmp2.progress import Listener, Relay

if TYPE_CHECKING:
    from dfmp2.gradients.result import GradientResult
    from dfmp2.mp2.prepared import Prepared

P = ParamSpec("P")
R = TypeVar("R")
MoleculeLike = Molecule | str | os.PathLike[str] | Atoms | Mole  # accepted as a molecule


class NoKeywords(TypedDict):
    """Keywords of a function that has only parameters."""


class RunKeywords(MoleculeKeywords, Keywords):
    """Keywords of a calculation: its molecule and its options."""


class PrepareKeywords(MoleculeKeywords, PreparedKeywords):
    """Keywords of the first part of a calculation."""


class OptionKeywords(Keywords, total=False):
    """All options, also for functions that have a basis already and reject another one."""

    basis: str


def public(keywords: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function public in Python: its errors, unknown keywords included, use Python's syntax.

    Parameters
    ----------
    keywords : the TypedDict of the keywords it accepts besides its parameters
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        named = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}

        @functools.wraps(function)
        def called(*arguments: P.args, **keywords_given: P.kwargs) -> R:
            with speaking(PYTHON):
                require_known_option(keywords_given, named | keywords.__annotations__.keys())
                return function(*arguments, **keywords_given)

        return called

    return decorate


def number_of_workers(given: Any) -> int:
    """A number of processes.

    Raises
    ------
    InputError : it is not a positive whole number
    """
    count = plain(given)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(Option("workers", given), ": expected a whole number, 1 or more")
    return count


class TranslatingListener(Relay):
    """Passes events on, with warnings in Python's syntax."""

    def __init__(self, listener: Listener | None) -> None:
        super().__init__(listener or Listener())

    def stage(self, text: str) -> None:
        super().stage(in_words(text, PYTHON))

    def note(self, text: str) -> None:
        super().note(in_words(text, PYTHON))

    def warning(self, text: str) -> None:
        super().warning(in_words(text, PYTHON))


@public(RunKeywords)
def run(
    molecule: MoleculeLike,
    basis: str,
    *,
    listener: Listener | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    require_proofs: bool = True,
    **options: Unpack[RunKeywords],
) -> MP2Result:
    """DF-MP2 energy of a molecule.

    Parameters
    ----------
    molecule : str, path, Molecule, ase.Atoms, pyscf.gto.Mole or qcelemental.models.Molecule
        Path of an xyz file (or .mol, .sdf, .pdb, through ASE), a Molecule, ASE's Atoms, PySCF's
        Mole, whose basis is ignored, or QCElemental's Molecule.
    basis : str
        Name of the orbital basis.
    charge, multiplicity : int, optional
        They override the file; the default for a Molecule is its own values.
    units : str, optional
        Unit of the coordinates in the file, "angstrom" (also for None) or "bohr"; a Molecule is in
        bohr.
    point_charges : path or (n, 4) array, optional
        Charges around the molecule: path of a file with lines of x, y, z, charge, or rows of these
        numbers; None for those of a Molecule.
    point_charge_units : str, optional
        Unit of their positions, "angstrom" or "bohr".
    listener : Listener, optional
        Receives progress and warnings; by default warnings are raised as Python warnings.
    checkpoint : str or path, optional
        Result file beside which CHECKPOINT.checkpoint is kept during the run. If an earlier run of
        the same calculation was interrupted, this one continues from it; None for no checkpoint.
    resume : bool, optional
        Report it if there is no checkpoint to continue from.
    require_proofs : bool, optional
        Raise if the requested check, or the certificate of properties, fails; with False this is
        only a warning, and the result is returned.
    options : keywords
        Any field of `dfmp2.Options`.

    Returns
    -------
    MP2Result
        `dfmp2.write(result, path)` stores it.

    Raises
    ------
    dfmp2.ComparisonFailed : a check or certificate fails
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do

    Examples
    --------
    >>> dfmp2.run("inputs/h2o.xyz", basis="cc-pvdz").mp2_correlation_energy    # doctest: +SKIP
    -0.2039736135...
    """
    translating = TranslatingListener(listener)
    parsed, chosen = molecule_and_options(molecule, basis, options)

    def compute(state: Checkpoint) -> MP2Result:
        return run_options(parsed, chosen, listener=translating, checkpoint=state)

    result = _checkpointed(checkpoint, resume, translating, compute)
    return prove(result, translating, required=require_proofs)


def prove(result: MP2Result, listener: Listener, *, required: bool) -> MP2Result:
    """The result; if its check or certificate fails, raise, or warn unless `required`."""
    if required:
        result.require_proofs("; with require_proofs=False it is returned with this as a warning")
        return result
    try:
        result.require_proofs()
    except ComparisonFailed as error:
        listener.warning(error.message)
    return result


def _checkpointed(
    checkpoint: str | os.PathLike[str] | None,
    resume: bool,
    listener: Listener,
    compute: Callable[[Checkpoint], MP2Result],
) -> MP2Result:
    """The result; while it is computed, a checkpoint is kept beside CHECKPOINT if one is given."""
    if checkpoint is None:
        if resume:
            raise InputError(
                "resume=True needs checkpoint=FILE: the result file whose checkpoint is to be used"
            )
        return compute(NOTHING)
    with checkpointing(
        Path(checkpoint), resume=resume, note=listener.stage, warn=listener.warning
    ) as state:
        result = compute(state)
        state.complete()
        return result


def molecule_and_options(
    molecule: MoleculeLike, basis: str, keywords: Mapping[str, Any]
) -> tuple[Molecule, Options]:
    """The molecule and the options, from the keywords of a calculation."""
    chosen = make_options(**options_among(keywords), basis=basis)
    return read_molecule(molecule, keywords), chosen


def options_among(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Those keywords that are options of a calculation."""
    return {name: value for name, value in keywords.items() if name in Options.__slots__}


def read_molecule(molecule: Any, keywords: Mapping[str, Any]) -> Molecule:
    """The molecule, read or converted from what was given.

    Parameters
    ----------
    molecule : MoleculeLike
    keywords : mapping
        May contain MoleculeKeywords, as in `run`.

    Raises
    ------
    InputError : it cannot be read as a molecule, or a keyword does not apply to it
    """
    field = read_point_charges(
        keywords.get("point_charges"), keywords.get("point_charge_units", "angstrom")
    )
    units = keywords.get("units")
    state = {name: keywords.get(name) for name in ("charge", "multiplicity")}
    if isinstance(molecule, str | os.PathLike):
        if isinstance(molecule, str) and ("\n" in molecule or ";" in molecule):
            raise InputError(
                "molecule is a text: expected the path of an xyz file; dfmp2.Molecule.from_string "
                "reads it"
            )
        file = read_file(Path(molecule), units=units or "angstrom", **state)
        return file.molecule.in_field(field)
    if units is not None:
        raise InputError(
            f"units={units!r} belongs to a file: a dfmp2.Molecule has its coordinates in bohr; "
            "leave it out, and multiply coordinates in angstrom by dfmp2.units.BOHR_PER_ANGSTROM"
        )
    stated = _converted(molecule, state)
    return stated if field is None else stated.in_field(field)


def _converted(molecule: Any, state: Mapping[str, Any]) -> Molecule:
    """The Molecule for an object, with the charge and multiplicity in `state` if given."""
    if hasattr(molecule, "get_chemical_symbols"):
        molecule = Molecule.from_ase(molecule, **state)
    elif hasattr(molecule, "atom_pure_symbol"):
        molecule = Molecule.from_pyscf(molecule)
    elif hasattr(molecule, "molecular_charge"):
        molecule = Molecule.from_qcschema(molecule)
    if isinstance(molecule, Mapping):
        raise InputError(
            "molecule is a mapping: dfmp2.Molecule.from_qcschema reads a molecule of QCSchema"
        )
    if not isinstance(molecule, Molecule):
        raise InputError(
            f"molecule is a {type(molecule).__name__}: expected the path of an xyz file, a "
            "dfmp2.Molecule, ASE's Atoms, PySCF's Mole or QCElemental's Molecule"
        )
    return molecule.with_state(state["charge"], state["multiplicity"])


def run_options(
    molecule: Molecule,
    options: Options,
    **how: Unpack[CalculationKeywords],
) -> MP2Result:
    """The same with ready-made options, for the command line."""
    asked: CalculationKeywords = {"start": hdf5.start_of(options), **how}
    if options.properties:
        from dfmp2.gradients.gradient import mp2_properties

        return mp2_properties(molecule, options, **asked)
    return mp2_energy(molecule, options, **asked)


@public(RunKeywords)
def gradient(
    molecule: MoleculeLike,
    basis: str,
    *,
    listener: Listener | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    require_proofs: bool = True,
    **options: Unpack[RunKeywords],
) -> GradientResult:
    """Energy, gradient, relaxed densities and dipole moments of a molecule; other parameters as in
    `run`.

    Parameters
    ----------
    checkpoint, resume : optional
        Checkpoint of the energy; the gradient is computed again.
    options : keywords
        Any field of `dfmp2.Options`. With os_scale or ss_scale the gradient is that of the scaled
        energy; with check it is compared with energies along one direction.
    require_proofs : bool, optional
        Raise if the certificate of the gradient fails; with False this is only a warning, and the
        gradient is returned.

    Returns
    -------
    GradientResult
        With gradient (natom, 3) in Eh/bohr, properties, certificate, and result, which
        `dfmp2.write` stores.

    Raises
    ------
    dfmp2.ComparisonFailed : the certificate fails
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do

    Examples
    --------
    >>> dfmp2.gradient("inputs/h2o.xyz", basis="cc-pvdz").gradient              # doctest: +SKIP
    """
    from dfmp2.gradients.result import GradientResult

    translating = TranslatingListener(listener)
    parsed, chosen = molecule_and_options(molecule, basis, options)

    def compute(state: Checkpoint) -> MP2Result:
        return gradient_options(parsed, chosen, listener=translating, checkpoint=state).result

    result = _checkpointed(checkpoint, resume, translating, compute)
    return GradientResult(prove(result, translating, required=require_proofs))


def gradient_options(
    molecule: Molecule,
    options: Options,
    **how: Unpack[CalculationKeywords],
) -> GradientResult:
    """The same with ready-made options, for the command line."""
    from dfmp2.gradients.gradient import mp2_gradient

    asked: CalculationKeywords = {"start": hdf5.start_of(options), **how}
    return mp2_gradient(molecule, options, **asked)


@public(RunKeywords)
def plan(
    molecule: MoleculeLike,
    basis: str,
    *,
    gradient: bool = False,
    calibrate: bool = False,
    listener: Listener | None = None,
    **options: Unpack[RunKeywords],
) -> Outlook:
    """Memory, scratch space and time that a run would need; other parameters as in `run`.

    Parameters
    ----------
    gradient : bool, optional
        Plan `dfmp2.gradient` instead of `dfmp2.run`.
    calibrate : bool, optional
        Measure the rates of this host and of the scratch folder again; they are measured on first
        use.

    Returns
    -------
    Outlook
        `print` shows it, `to_dict` gives bytes, operations and seconds, `change` tells how to make
        it fit.

    Raises
    ------
    dfmp2.Dfmp2Error : the run itself would fail, for any reason except memory

    Examples
    --------
    >>> print(dfmp2.plan("inputs/h2o.xyz", basis="cc-pvtz"))                    # doctest: +SKIP
    """
    parsed, chosen = molecule_and_options(molecule, basis, options)
    task = "energy"
    if gradient:
        task = "gradient"
    elif chosen.properties:
        task = "properties"
    if task != "energy":
        from dfmp2.gradients.gradient import require_gradient

        require_gradient(parsed, chosen)
    outlook = foresee(parsed, chosen, TranslatingListener(listener), calibrate=calibrate, task=task)
    change = outlook.to_dict()["change"]  # of memory, or of the scratch folder
    return replace(outlook, change=Message(in_words(change, PYTHON)))


def available_backends() -> list[str]:
    """Names of the backends available here; `dfmp2 backends` says why others are not.

    Examples
    --------
    >>> dfmp2.available_backends()                                              # doctest: +SKIP
    ['cpu', 'torch']
    """
    return [row.name for row in BACKENDS if row.probe() is None]


@public(NoKeywords)
def write(result: MP2Result, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a result to a file, completely or not at all.

    Parameters
    ----------
    result : MP2Result
    path : str or path
    overwrite : bool, optional
        Replace an existing file, atomically.

    Raises
    ------
    InputError : it is not the result of one run
    ResultExists : the file exists and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """
    derivation.require_one_run(result, "write")
    if os.path.lexists(path) and not overwrite:
        raise ResultExists(
            f"{path} already exists: overwrite=True replaces it, another name keeps it"
        )
    hdf5.write(result, Path(path), overwrite=overwrite)


@public(OptionKeywords)
@functools.wraps(derivation.derive)
def derive(result: MP2Result, *, listener: Listener | None = None, **given: Any) -> MP2Result:
    return derivation.derive(result, listener=TranslatingListener(listener), **given)


read = public(NoKeywords)(hdf5.read)


@public(RunKeywords)
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
    """Compute SCF, integrals and B of a molecule, and write them to a file from which `energy`
    continues, here or on another machine.

    Other parameters as in `run`.

    Parameters
    ----------
    output : str or path
        The file; OUTPUT.checkpoint is kept beside it during the run.
    overwrite : bool, optional
        Replace an existing file.
    options : keywords
        Fields of `dfmp2.Options` that concern the calculation before the pair energies.

    Returns
    -------
    Prepared
        The content of the file, except B.

    Raises
    ------
    dfmp2.Dfmp2Error : the message says what was given, what was expected and what to do

    Examples
    --------
    >>> dfmp2.prepare("inputs/h2o.xyz", "cc-pvdz", "h2o.prepared.h5")           # doctest: +SKIP
    >>> dfmp2.energy("h2o.prepared.h5", backend="torch").mp2_total_energy       # doctest: +SKIP
    """
    from dfmp2.mp2.prepared import prepare_b
    from dfmp2.output.prepared import PreparedFile

    chosen = _options_before_pairs(basis, options)
    parsed = read_molecule(molecule, options)
    translating = TranslatingListener(listener)
    file = PreparedFile(Path(output), overwrite=overwrite)
    with (
        checkpointing(
            Path(output),
            resume=resume,
            note=translating.stage,
            warn=translating.warning,
            replace_foreign=overwrite,
        ) as state,
        file,
    ):
        prepared = prepare_b(
            parsed,
            chosen,
            file,
            start=hdf5.start_of(chosen),
            listener=translating,
            checkpoint=state,
        )
        file.publish()
        state.complete()
        return prepared


def _options_before_pairs(basis: str, keywords: Mapping[str, Any]) -> Options:
    """The options of `prepare`.

    Raises
    ------
    InputError : a keyword belongs to the pair energies, or to a run that is not divided
    """
    whole = sorted(set(WHOLE_RUN) & set(keywords))
    if whole:
        raise InputError(Option(whole[0]), " ", NEEDS_WHOLE_RUN)
    of_this_part = {*BEFORE_PAIRS, *BOTH_PARTS, "method"}
    foreign = sorted(set(Options.__slots__) & set(keywords) - of_this_part)
    if foreign:
        raise InputError(
            f"{foreign[0]} belongs to the pair energies, which dfmp2.energy computes: leave it out "
            "here"
        )
    chosen = {"backend": "auto", **options_among(keywords)}
    chosen["method"] = method_of_orbitals(keywords.get("method"), keywords.get("xc"))
    return make_options(**chosen, basis=basis)


@public(OptionKeywords)
def energy(
    prepared: str | os.PathLike[str],
    *,
    listener: Listener | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    require_proofs: bool = True,
    **options: Unpack[EnergyKeywords],
) -> MP2Result:
    """DF-MP2 energy from a file written by `prepare`; only the pair energies are computed.

    Parameters
    ----------
    prepared : str or path
        The file.
    listener, checkpoint, resume, require_proofs : optional
        As in `run`.
    options : keywords
        Fields of `dfmp2.Options` that concern the pair energies (backend, precision, tolerance,
        memory, ...).

    Raises
    ------
    dfmp2.Dfmp2Error : the file is damaged or foreign, or any error of `run`
    """
    from dfmp2.mp2.prepared import options_for, prepared_energy
    from dfmp2.output.prepared import opened

    translating = TranslatingListener(listener)
    with opened(Path(prepared)) as source:
        chosen = options_for(source.prepared, {"backend": default_backend(), **options})

        def compute(state: Checkpoint) -> MP2Result:
            return prepared_energy(source, chosen, listener=translating, checkpoint=state)

        result = _checkpointed(checkpoint, resume, translating, compute)
    return prove(result, translating, required=require_proofs)
