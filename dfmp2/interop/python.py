"""The Python interface: everything in `import dfmp2` except studies and batches
(`interop.studies`).

Errors name Python keywords, `frozen_core=` for `--frozen-core` on the command line, and suggest the
keyword that a misspelt one resembles.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack

from dfmp2.backends.registry import BACKENDS
from dfmp2.errors import ComparisonFailed, Dfmp2Error, InputError, Message, Option, ResultExists
from dfmp2.errors.messages import PYTHON, Words, in_words, plain
from dfmp2.errors.wishes import require_known_option
from dfmp2.fitting.sets import with_errors
from dfmp2.molecule.files import read_file, read_point_charges
from dfmp2.molecule.foreign import Atoms, Mole
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.mp2 import derive as derivation
from dfmp2.mp2.calculation import (
    NOTHING,
    Calculation,
    CalculationKeywords,
    Checkpoint,
    Opening,
    open_calculation,
)
from dfmp2.mp2.energy import energy_on_reference, mp2_energy
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
    make_options,
)
from dfmp2.options.methods import method_of_orbitals
from dfmp2.output import hdf5
from dfmp2.output.checkpoint import checkpointing
from dfmp2.planning.plan import Outlook, foresee, settle_plan
from dfmp2.planning.system import assemble
from dfmp2.progress import Listener, Relay
from dfmp2.scf.adopt import adopt, double_hybrid_of, require_repeatable
from dfmp2.scf.stability import full_stability

if TYPE_CHECKING:
    from dfmp2.gradients.result import GradientResult
    from dfmp2.mp2.prepared import Prepared
    from dfmp2.scf.reference import Reference

P = ParamSpec("P")
R = TypeVar("R")
MoleculeLike = Molecule | str | os.PathLike[str] | Atoms | Mole  # accepted as a molecule
OF_THE_SCF = {"basis", *ScfKeywords.__annotations__}  # options that a mean field has already fixed


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
        known = {*inspect.signature(function).parameters, *keywords.__annotations__}

        @functools.wraps(function)
        def called(*arguments: P.args, **keywords_given: P.kwargs) -> R:
            with speaking(PYTHON):
                require_known_option(keywords_given, known)
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


@contextmanager
def speaking(words: Words) -> Iterator[None]:
    """Word the errors of a block, or of a decorated function, for a front end."""
    try:
        yield
    except Dfmp2Error as error:
        error.speak(words)
        raise


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
    molecule : str, path, Molecule, ase.Atoms or pyscf.gto.Mole
        Path of an xyz file (or .mol, .sdf, .pdb, through ASE), a Molecule, ASE's Atoms or PySCF's
        Mole, whose basis is ignored.
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
    return _proven(result, translating, required=require_proofs)


def _proven(result: MP2Result, listener: Listener, *, required: bool) -> MP2Result:
    """The result; if its check or certificate fails, raise, or warn unless `required`."""
    if required:
        result.require_proofs("; with require_proofs=False it is returned with this as a warning")
        return result
    try:
        result.require_proofs()
    except ComparisonFailed as error:
        listener.warning(str(error))
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
    if not isinstance(molecule, Molecule):
        raise InputError(
            f"molecule is a {type(molecule).__name__}: expected the path of an xyz file, a "
            "dfmp2.Molecule, ASE's Atoms or PySCF's Mole"
        )
    charge = state["charge"]
    if charge is None:
        charge = molecule.charge
    multiplicity = state["multiplicity"]
    if multiplicity is None:
        multiplicity = molecule.multiplicity
    return molecule.with_state(charge, multiplicity)


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
    return GradientResult(_proven(result, translating, required=require_proofs))


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
    if gradient:
        task = "gradient"
    elif chosen.properties:
        task = "properties"
    else:
        task = "energy"
    outlook = foresee(parsed, chosen, TranslatingListener(listener), calibrate=calibrate, task=task)
    return replace(outlook, change=Message(in_words(outlook.change, PYTHON)))


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
    ResultExists : the file exists and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """
    if os.path.lexists(path) and not overwrite:
        raise ResultExists(
            f"{path} already exists: overwrite=True replaces it, another name keeps it"
        )
    hdf5.write(result, Path(path), overwrite=overwrite)


derive = public(OptionKeywords)(derivation.derive)
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

    whole = sorted(set(WHOLE_RUN) & set(options))
    if whole:
        raise InputError(Option(whole[0]), NEEDS_WHOLE_RUN)
    of_this_part = {*BEFORE_PAIRS, *BOTH_PARTS, "method"}
    foreign = sorted(set(Options.__slots__) & set(options) - of_this_part)
    if foreign:
        raise InputError(
            f"{foreign[0]} belongs to the pair energies, which dfmp2.energy computes: leave it out "
            "here"
        )
    named: Any = options.get("method")
    method = method_of_orbitals(named, options.get("xc"))
    chosen = make_options(
        **{"backend": "auto", **options_among(options), "method": method}, basis=basis
    )
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
    return _proven(result, translating, required=require_proofs)


@public(OptionKeywords)
def from_mean_field(
    mean_field: Any,
    auxbasis: str | None = None,
    *,
    listener: Listener | None = None,
    require_proofs: bool = True,
    **options: Unpack[MeanFieldKeywords],
) -> MP2Result:
    """DF-MP2 energy on a converged PySCF RHF or UHF, density-fitted or not; with method="drpa" also
    RKS or UKS.

    Parameters
    ----------
    mean_field : pyscf.scf.hf.SCF
        Converged PySCF mean field of a molecule with spherical functions; sf-X2C-1e and point
        charges (`qmmm.mm_charge`) are recorded.
    auxbasis : str, optional
        MP2 fitting set; None for the partner of the orbital basis.
    require_proofs : bool, optional
        As in `run`.
    options : keywords
        Fields of `dfmp2.Options` that concern the MP2 step (frozen_core, precision, backend, ...).

    Returns
    -------
    MP2Result

    Raises
    ------
    dfmp2.Dfmp2Error : not converged, Kohn-Sham with another method, restricted open-shell,
        periodic, Cartesian functions, or anything that cannot be recorded and repeated: solvent,
        fractional occupations, other integrals, non-canonical orbitals
    """
    task = "properties" if options.get("properties") else "energy"
    with _on_mean_field(mean_field, auxbasis, listener, options, task) as (calculation, reference):
        if task == "energy":
            result = energy_on_reference(calculation, reference)
        else:
            from dfmp2.gradients.gradient import gradient_on_reference

            result = gradient_on_reference(calculation, reference, [])
    return _proven(result, TranslatingListener(listener), required=require_proofs)


@public(OptionKeywords)
def gradient_from_mean_field(
    mean_field: Any,
    auxbasis: str | None = None,
    *,
    listener: Listener | None = None,
    require_proofs: bool = True,
    **options: Unpack[MeanFieldKeywords],
) -> GradientResult:
    """DF-MP2 gradient and relaxed densities on a converged PySCF RHF or UHF; parameters as in
    `from_mean_field`.

    Raises
    ------
    dfmp2.Dfmp2Error : as in `from_mean_field` and `gradient`
    """
    from dfmp2.gradients.gradient import gradient_on_reference
    from dfmp2.gradients.result import GradientResult

    if options.get("check"):
        raise InputError(
            "check compares a gradient with energies of displaced molecules, whose SCF would not "
            "be that of this mean field: leave it out, or use dfmp2.gradient"
        )
    with _on_mean_field(mean_field, auxbasis, listener, options, "gradient") as (
        calculation,
        reference,
    ):
        result = gradient_on_reference(calculation, reference, [])
    return GradientResult(_proven(result, TranslatingListener(listener), required=require_proofs))


@contextmanager
def _on_mean_field(
    mean_field: Any,
    auxbasis: str | None,
    listener: Listener | None,
    options: Mapping[str, Any],
    task: str,
) -> Iterator[tuple[Calculation, Reference]]:
    """A calculation with the orbitals of a mean field; `task` as in
    `dfmp2.planning.plan.make_plan`."""
    import_pyscf()
    hybrid = double_hybrid_of(str(options.get("method") or "mp2"), mean_field)
    energy_xc = None
    if hybrid is not None and hybrid.energy:
        energy_xc = hybrid.energy.lower()
    adopted = adopt(mean_field, energy_xc)
    fixed = OF_THE_SCF & set(options)
    if fixed:
        raise InputError(
            f"{sorted(fixed)[0]} belongs to the SCF, which has already been done: leave it out"
        )
    if options.get("polarizability"):
        raise InputError(
            "polarizability converges the SCF again, in fields, which has already been done: use "
            "dfmp2.run, with scf_from for the orbitals"
        )
    if options.get("stability") == "follow":
        raise InputError(
            "stability follow converges the SCF again, which has already been done: follow it in "
            "PySCF (mf.stability()), or give full, auto or off"
        )
    reference, jk = adopted.reference, adopted.jk
    chosen = make_options(
        **{"stability": "off", **options, "auxbasis": auxbasis},
        basis=adopted.orbital.name,
        reference=reference.kind,
        relativity=adopted.relativity,
        scf=reference.scf_type,
        xc=reference.xc if hybrid is None else None,
        grid=reference.grid_name,
    )
    if jk is not None:
        jk = with_errors(jk, adopted.orbital, allow_poor=chosen.allow_poor_fit)
    opening = Opening(
        partial(assemble, adopted.molecule, adopted.orbital, jk),
        partial(settle_plan, part="from orbitals", task=task),
    )
    with open_calculation(
        chosen,
        reference.kind,
        opening,
        listener=TranslatingListener(listener),
        command="dfmp2.from_mean_field",
    ) as calculation:
        system = calculation.system
        reference = require_repeatable(mean_field, adopted, system.mole, system.jk_auxmole)
        if chosen.stability == "full":
            reference = replace(reference, stability=full_stability(mean_field))
        yield calculation, reference
