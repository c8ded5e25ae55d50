"""The Python interface: what `import dfmp2` offers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfmp2.errors import InputError, ResultExists
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.molecule.xyz import read_point_charges, read_xyz
from dfmp2.mp2.calculation import NOTHING, Calculation, Checkpoint, begun, limited
from dfmp2.mp2.energy import build_b, correlate, mp2_energy
from dfmp2.mp2.result import MP2Result
from dfmp2.options import BEFORE_PAIRS, BOTH_PARTS, NEEDS_WHOLE_RUN, WHOLE_RUN, Options, default_backend, make_options
from dfmp2.output import hdf5
from dfmp2.output.checkpoint import checkpointing
from dfmp2.output.hdf5 import read
from dfmp2.planning.plan import settle
from dfmp2.planning.system import assemble
from dfmp2.planning.system import prepare as set_up
from dfmp2.progress import Collector, Listener, Stopwatch
from dfmp2.scf.adopt import adopt, require_repeatable
from dfmp2.scf.fitting_sets import with_errors
from dfmp2.scf.stability import full_stability

if TYPE_CHECKING:
    from dfmp2.gradients.gradient import GradientResult
    from dfmp2.output.prepared import Prepared
    from dfmp2.output.study import Study
    from dfmp2.scf.reference import Reference

__all__ = [
    "energy",
    "frequencies",
    "from_mean_field",
    "gradient",
    "gradient_options",
    "optimize",
    "prepare",
    "read",
    "run",
    "run_options",
    "write",
]

# Options that a mean field that has converged leaves no choice about.
OF_THE_SCF = frozenset(("basis", "reference", "xc", "relativity", "scf", "scf_auxbasis", "scf_max_cycles")) | {
    *("guess", "scf_from", "scf_starts")
}


def run(
    molecule: Molecule | str | Path,
    basis: str,
    *,
    charge: int | None = None,
    multiplicity: int | None = None,
    units: str | None = None,
    point_charges: Any = None,
    point_charge_units: str = "angstrom",
    listener: Listener | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    **options: Any,
) -> MP2Result:
    """DF-MP2 energy of a molecule.

    Parameters
    ----------
    molecule : path of an xyz file, or a Molecule
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
    chosen = make_options(basis=basis, **options)
    molecule = _molecule(molecule, units, charge, multiplicity, point_charges, point_charge_units)
    return _checkpointed(
        checkpoint, resume, listener, lambda kept: run_options(molecule, chosen, listener=listener, checkpoint=kept)
    )


def _checkpointed(
    checkpoint: str | Path | None,
    resume: bool,
    listener: Listener | None,
    compute: Callable[[Checkpoint], MP2Result],
) -> MP2Result:
    """The result, with a checkpoint beside CHECKPOINT while it is computed where one is wanted."""
    if checkpoint is None:
        if resume:
            raise InputError("resume=True needs checkpoint=FILE: the result file whose checkpoint is to be used")
        return compute(NOTHING)
    told = listener or Listener()
    with checkpointing(checkpoint, resume=resume, note=told.stage, warn=told.warning) as kept:
        result = compute(kept)
        kept.complete()
        return result


def _molecule(
    given: Molecule | str | Path,
    units: str | None,
    charge: int | None,
    multiplicity: int | None,
    point_charges: Any,
    point_charge_units: str,
) -> Molecule:
    """The molecule that is meant, as of `run`."""
    field = read_point_charges(point_charges, point_charge_units)
    if isinstance(given, str | Path):
        read = read_xyz(given, units=units or "angstrom", charge=charge, multiplicity=multiplicity)
        return read.molecule.in_field(field)
    if isinstance(given, Molecule):
        if units is not None:
            raise InputError(
                f"units={units!r} belongs to a file: a dfmp2.Molecule has its coordinates in bohr; leave it out, and "
                "multiply coordinates in angstrom by dfmp2.units.BOHR_PER_ANGSTROM"
            )
        stated = given.with_state(
            given.charge if charge is None else charge, given.multiplicity if multiplicity is None else multiplicity
        )
        return stated if field is None else stated.in_field(field)
    raise InputError(f"molecule is a {type(given).__name__}: expected the path of an xyz file or a dfmp2.Molecule")


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


def gradient(
    molecule: Molecule | str | Path,
    basis: str,
    *,
    charge: int | None = None,
    multiplicity: int | None = None,
    units: str | None = None,
    point_charges: Any = None,
    point_charge_units: str = "angstrom",
    listener: Listener | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    **options: Any,
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

    chosen = make_options(basis=basis, **options)
    molecule = _molecule(molecule, units, charge, multiplicity, point_charges, point_charge_units)

    def compute(kept: Checkpoint) -> MP2Result:
        return gradient_options(molecule, chosen, listener=listener, checkpoint=kept).result

    return GradientResult(_checkpointed(checkpoint, resume, listener, compute))


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


def optimize(
    molecule: Molecule | str | Path,
    basis: str,
    *,
    freeze: Sequence[tuple[str, str]] = (),
    fixed: Sequence[tuple[str, str, float]] = (),
    constraints: str = "",
    convergence: str = "GAU",
    max_steps: int = 100,
    transition_state: bool = False,
    output: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    charge: int | None = None,
    multiplicity: int | None = None,
    units: str | None = None,
    point_charges: Any = None,
    point_charge_units: str = "angstrom",
    listener: Listener | None = None,
    **options: Any,
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
        `dfmp2.studies.runs.Unfinished`, whose `study` holds the steps

    Examples
    --------
    >>> study = dfmp2.optimize("inputs/h2o.xyz", basis="cc-pvdz")               # doctest: +SKIP
    >>> study.values["optimized_total_energy"].value                            # doctest: +SKIP
    """
    from dfmp2.studies.optimize import Constraints, Search, optimize_geometry

    read = _molecule(molecule, units, charge, multiplicity, point_charges, point_charge_units)
    values = [(kind, atoms, str(value)) for kind, atoms, value in fixed]
    kept = Constraints(tuple(freeze), values, constraints, units or "angstrom")
    return _studied(
        *(optimize_geometry, read, basis, options, Search(kept, convergence, max_steps, transition_state)),
        *(output, overwrite, resume, listener, "dfmp2.optimize"),
    )


def frequencies(
    molecule: Molecule | str | Path,
    basis: str,
    *,
    temperature: float = 298.15,
    pressure: float = 101325.0,
    symmetry_number: int | None = None,
    displacement: float = 0.005,
    allow_gradient: bool = False,
    output: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    charge: int | None = None,
    multiplicity: int | None = None,
    units: str | None = None,
    point_charges: Any = None,
    point_charge_units: str = "angstrom",
    listener: Listener | None = None,
    **options: Any,
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

    read = _molecule(molecule, units, charge, multiplicity, point_charges, point_charge_units)
    conditions = Conditions(temperature, pressure, symmetry_number, displacement, allow_gradient)
    return _studied(
        *(harmonic_frequencies, read, basis, options, conditions),
        *(output, overwrite, resume, listener, "dfmp2.frequencies"),
    )


def _studied(
    study: Callable[..., Study],
    molecule: Molecule,
    basis: str,
    options: dict[str, Any],
    how: Any,
    output: str | Path | None,
    overwrite: bool,
    resume: bool,
    listener: Listener | None,
    command: str,
) -> Study:
    """A study of one molecule, into a file where one is named."""
    from dfmp2.studies.runs import Keeper

    if output is None and resume:
        raise InputError("resume=True needs output=FILE: the file of the study that is to go on")
    chosen = make_options(basis=basis, **options)
    start = hdf5.start_of(chosen)
    keeper = Keeper(None if output is None else Path(output), overwrite=overwrite, resume=resume)
    return study(molecule, chosen, how, start=start, keeper=keeper, listener=listener, command=command)


def write(result: MP2Result, path: str | Path, *, overwrite: bool = False) -> None:
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
    hdf5.write(result, path, overwrite=overwrite)


def prepare(
    molecule: Molecule | str | Path,
    basis: str,
    output: str | Path,
    *,
    charge: int | None = None,
    multiplicity: int | None = None,
    units: str | None = None,
    point_charges: Any = None,
    point_charge_units: str = "angstrom",
    listener: Listener | None = None,
    overwrite: bool = False,
    resume: bool = False,
    **options: Any,
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
    drpa = {} if options.get("xc") is None else {"method": "drpa"}  # the only one for such orbitals
    chosen = make_options(**{"backend": "auto", **drpa, **options}, basis=basis)
    molecule = _molecule(molecule, units, charge, multiplicity, point_charges, point_charge_units)
    told = listener or Listener()
    file = two_parts.PreparedFile(Path(output), overwrite=overwrite)
    with checkpointing(output, resume=resume, note=told.stage, warn=told.warning) as kept, file:
        found = two_parts.prepare(molecule, chosen, file, listener=listener, checkpoint=kept)
        file.publish()
        kept.complete()
        return found


def energy(
    prepared: str | Path,
    *,
    listener: Listener | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    **options: Any,
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

    given = {"backend": default_backend(), **options}
    with two_parts.opened(prepared) as source:
        chosen = two_parts.options_for(source.prepared, given)
        return _checkpointed(
            *(checkpoint, resume, listener),
            lambda kept: two_parts.energy(source, chosen, listener=listener, checkpoint=kept),
        )


def from_mean_field(
    mean_field: Any, auxbasis: str | None = None, *, listener: Listener | None = None, **options: Any
) -> MP2Result:
    """DF-MP2 energy on a converged PySCF RHF or UHF, density-fitted or not; with method="drpa" also RKS or UKS.

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
    dfmp2.Dfmp2Error : not converged, Kohn-Sham with another method, restricted open-shell, periodic, Cartesian
        functions, and whatever cannot be recorded and repeated: solvent, fractional occupations, other integrals,
        orbitals not canonical
    """
    task = "properties" if options.get("properties") else "energy"
    with _on_mean_field(mean_field, auxbasis, listener, options, task) as (calculation, reference):
        if task == "energy":
            return correlate(calculation, *build_b(calculation, reference))
        from dfmp2.gradients.gradient import on_reference

        return on_reference(calculation, reference, [])


def gradient_from_mean_field(
    mean_field: Any, auxbasis: str | None = None, *, listener: Listener | None = None, **options: Any
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
    mean_field: Any, auxbasis: str | None, listener: Listener | None, options: dict[str, Any], task: str
) -> Iterator[tuple[Calculation, Reference]]:
    """A calculation begun with the orbitals of a mean field; `task` as of `dfmp2.planning.plan.make_plan`."""
    import_pyscf()
    listener, clock = Collector(listener or Listener()), Stopwatch()
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
        xc=reference.xc,
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
