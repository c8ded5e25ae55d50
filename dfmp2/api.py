"""The Python interface: what `import dfmp2` offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dfmp2 import pipeline
from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import InputError
from dfmp2.io.checkpoint import checkpointing
from dfmp2.io.hdf5 import read, write
from dfmp2.io.start_orbitals import read_start_orbitals
from dfmp2.io.xyz import read_xyz
from dfmp2.molecule import Molecule
from dfmp2.options import Options, make_options
from dfmp2.progress import Listener
from dfmp2.result import MP2Result

__all__ = ["from_mean_field", "read", "run", "run_options", "write"]


def run(
    molecule: Molecule | str | Path,
    basis: str,
    *,
    charge: int | None = None,
    multiplicity: int | None = None,
    units: str = "angstrom",
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
    units : unit of the coordinates in the file, "angstrom" or "bohr"
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
    if isinstance(molecule, str | Path):
        molecule = read_xyz(molecule, units=units, charge=charge, multiplicity=multiplicity).molecule
    elif isinstance(molecule, Molecule):
        molecule = molecule.with_state(
            molecule.charge if charge is None else charge,
            molecule.multiplicity if multiplicity is None else multiplicity,
        )
    else:
        raise InputError(
            f"molecule is a {type(molecule).__name__}: expected the path of an xyz file or a dfmp2.Molecule"
        )
    if checkpoint is None:
        if resume:
            raise InputError("resume=True needs checkpoint=FILE: the result file whose checkpoint is to be used")
        return run_options(molecule, chosen, listener=listener, command="dfmp2.run")
    told = listener or Listener()
    with checkpointing(checkpoint, resume=resume, note=told.stage, warn=told.warning) as kept:
        result = run_options(molecule, chosen, listener=listener, command="dfmp2.run", journal=kept.journal)
        kept.complete()
        return result


def run_options(
    molecule: Molecule,
    options: Options,
    *,
    listener: Listener | None = None,
    command: str = "dfmp2.run",
    journal: Journal | None = None,
) -> MP2Result:
    """The same with options already made (the command line's way in)."""
    start = None if options.scf_from is None else read_start_orbitals(options.scf_from)
    return pipeline.run(molecule, options, start=start, listener=listener, command=command, journal=journal)


def from_mean_field(
    mean_field: Any, auxbasis: str | None = None, *, listener: Listener | None = None, **options: Any
) -> MP2Result:
    """DF-MP2 energy on a converged PySCF RHF or UHF, density-fitted or not.

    Parameters
    ----------
    mean_field : converged PySCF mean field of a molecule, spherical functions
    auxbasis : MP2 fitting set; None for the partner of the orbital basis
    options : fields of `dfmp2.Options` that concern the MP2 step (frozen_core, precision, backend, ...)

    Returns
    -------
    MP2Result

    Raises
    ------
    dfmp2.Dfmp2Error : not converged, Kohn-Sham, restricted open-shell, periodic, Cartesian functions
    """
    return pipeline.run_mean_field(mean_field, auxbasis, options, listener)
