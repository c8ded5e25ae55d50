"""The Python interface: what `import dfmp2` offers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfmp2 import pipeline
from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import InputError, ResultExists
from dfmp2.io import hdf5
from dfmp2.io.checkpoint import checkpointing
from dfmp2.io.hdf5 import read
from dfmp2.io.point_charges import read_point_charges
from dfmp2.io.start_orbitals import read_start_orbitals
from dfmp2.io.xyz import read_xyz
from dfmp2.molecule import Molecule
from dfmp2.options import BEFORE_PAIRS, BOTH_PARTS, Options, default_backend, make_options
from dfmp2.progress import Listener
from dfmp2.ranks.team import ALONE, Team
from dfmp2.result import MP2Result

if TYPE_CHECKING:
    from dfmp2.io.preparation import PreparedFile
    from dfmp2.io.prepared import OpenedFile
    from dfmp2.prepared import Prepared

__all__ = [
    "energy",
    "energy_of",
    "from_mean_field",
    "prepare",
    "prepare_options",
    "read",
    "run",
    "run_options",
    "write",
]


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
    field = read_point_charges(point_charges, point_charge_units)
    molecule = _molecule(molecule, units, charge, multiplicity, field)
    return _checkpointed(
        checkpoint, resume, listener, lambda journal: run_options(molecule, chosen, listener=listener, journal=journal)
    )


def _checkpointed(
    checkpoint: str | Path | None,
    resume: bool,
    listener: Listener | None,
    compute: Callable[[Journal | None], MP2Result],
) -> MP2Result:
    """The result, with a checkpoint beside CHECKPOINT while it is computed where one is wanted."""
    if checkpoint is None:
        if resume:
            raise InputError("resume=True needs checkpoint=FILE: the result file whose checkpoint is to be used")
        return compute(None)
    told = listener or Listener()
    with checkpointing(checkpoint, resume=resume, note=told.stage, warn=told.warning) as kept:
        result = compute(kept.journal)
        kept.complete()
        return result


def _molecule(
    given: Molecule | str | Path, units: str | None, charge: int | None, multiplicity: int | None, field: Any
) -> Molecule:
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
    journal: Journal | None = None,
    team: Team = ALONE,
) -> MP2Result:
    """The same with options already made (the command line's way in), and over ranks."""
    start = None if options.scf_from is None or team.rank else read_start_orbitals(options.scf_from)
    return pipeline.run(molecule, options, start=start, listener=listener, command=command, journal=journal, team=team)


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

    Parameters are those of `run`, and

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
    from dfmp2.io.preparation import PreparedFile

    foreign = sorted(set(Options.__slots__) & set(options) - {*BEFORE_PAIRS, *BOTH_PARTS})
    if foreign:
        raise InputError(f"{foreign[0]} belongs to the pair energies, which dfmp2.energy computes: leave it out here")
    chosen = make_options(**{"backend": "auto", **options}, basis=basis)
    field = read_point_charges(point_charges, point_charge_units)
    molecule = _molecule(molecule, units, charge, multiplicity, field)
    told = listener or Listener()
    with (
        PreparedFile(Path(output), overwrite=overwrite) as file,
        checkpointing(output, resume=resume, note=told.stage, warn=told.warning) as kept,
    ):
        found = prepare_options(molecule, chosen, file, listener=listener, journal=kept.journal)
        file.publish()
        kept.complete()
        return found


def prepare_options(
    molecule: Molecule,
    options: Options,
    file: PreparedFile,
    *,
    listener: Listener | None = None,
    command: str = "dfmp2.prepare",
    journal: Journal | None = None,
) -> Prepared:
    """The same with options already made and a file that is still to be published (the command line's way in)."""
    from dfmp2 import parts

    start = None if options.scf_from is None else read_start_orbitals(options.scf_from)
    return parts.prepare(molecule, options, file, start=start, listener=listener, command=command, journal=journal)


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
    from dfmp2.io.prepared import opened
    from dfmp2.prepared import options_for

    given = {"backend": default_backend(), **options}
    with opened(prepared) as source:
        chosen = options_for(source.prepared, given)
        return _checkpointed(
            checkpoint, resume, listener, lambda journal: energy_of(source, chosen, listener=listener, journal=journal)
        )


def energy_of(
    source: OpenedFile,
    options: Options,
    *,
    listener: Listener | None = None,
    command: str = "dfmp2.energy",
    journal: Journal | None = None,
) -> MP2Result:
    """The same with the file open and options already made (the command line's way in)."""
    from dfmp2 import parts

    return parts.energy(source, options, listener=listener, command=command, journal=journal)


def from_mean_field(
    mean_field: Any, auxbasis: str | None = None, *, listener: Listener | None = None, **options: Any
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
    return pipeline.run_mean_field(mean_field, auxbasis, options, listener)
