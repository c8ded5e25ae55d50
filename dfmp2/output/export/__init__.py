"""Export of results to the formats of other programs: a table of formats, each with a function from
a result to bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dfmp2.errors import InputError, Option
from dfmp2.molecule.text import printable
from dfmp2.molecule.xyz import write_xyz
from dfmp2.mp2.result import MP2Result
from dfmp2.options.methods import MP2
from dfmp2.output.dataset import extxyz, make_record, unsaid
from dfmp2.output.export.densities import cube
from dfmp2.output.export.molden import molden
from dfmp2.output.export.qcschema import qcschema
from dfmp2.output.export.trexio import trexio

__all__ = ["FORMATS", "Format", "export"]


def xyz(result: MP2Result) -> bytes:
    """The geometry in angstrom, with charge, multiplicity, method and energies as key=value in the
    comment line.

    Every energy key names its unit, because readers of extended xyz take a bare `energy` to be in
    electronvolts.
    """
    count, comment, *atoms = write_xyz(result.molecule).splitlines()
    energies = ("scf_total_energy", "mp2_correlation_energy", "mp2_total_energy")
    method = MP2
    if not math.isfinite(result.mp2_total_energy):  # no MP2 energy, only that of another method
        energies = ("scf_total_energy", "correlation_energy", "total_energy")
        method = result.options.correlation
    keys = " ".join(f"{name}_hartree={getattr(result, name):.12f}" for name in energies)
    level = result.options.level_in(result.orbital_basis.name, method)
    level = printable(level).replace('"', "'")
    charges = result.molecule.point_charges
    field = "" if charges is None else f" point_charges={len(charges)}"
    if result.options.solvent is not None:
        field = f' solvent="{printable(result.options.solvent_title)}"'
    line = f'{comment} method="{level}"{field} {keys}'
    return ("\n".join([count, line, *atoms]) + "\n").encode("ascii", "backslashreplace")


def _extxyz(result: MP2Result) -> bytes:
    """A frame of extended xyz.

    Raises
    ------
    InputError : a reader would take ghosts for atoms, or miss the point charges
    """
    reason = unsaid(result)
    if reason:
        raise InputError(
            Option("to"),
            f" extxyz: {result.molecule.name}: {reason}, which the format cannot say: use ",
            Option("to"),
            " xyz",
        )
    return extxyz([make_record(result)])


class Format(NamedTuple):
    """A file format: its writer, file suffix, description, and specific options."""

    write: Callable[..., bytes]
    ending: str
    holds: str
    options: tuple[str, ...] = ()


FORMATS = {
    "molden": Format(
        molden, ".molden", "geometry, basis, orbitals; up to g functions", ("orbitals", "of")
    ),
    "trexio": Format(trexio, ".trexio.h5", "geometry, basis, core potentials, SCF orbitals"),
    "qcschema": Format(
        qcschema,
        ".qcschema.json",
        "AtomicResult: input, all energies, basis, SCF orbitals",
        ("schema_version",),
    ),
    "xyz": Format(xyz, ".xyz", "geometry, energies in the comment line"),
    "extxyz": Format(
        _extxyz, ".extxyz", "energies and, of a gradient, forces in eV, as ASE and MACE read them"
    ),
    "cube": Format(
        cube,
        ".cube",
        "a density or an orbital on a grid",
        ("density", "spin", "orbital", "orbitals", "of", "spacing", "margin"),
    ),
}


def export(result: MP2Result, to: str, **options: Any) -> bytes:
    """A result in another program's format.

    Parameters
    ----------
    to : a name in FORMATS
    options : of that format

    Raises
    ------
    InputError : unknown format, an option of another format, a missing package, or a result that
        the format cannot hold
    ResultFileError : the result does not hold the requested density
    """
    if to not in FORMATS:
        raise InputError(
            Option("to", to), f": unknown format; expected one of {', '.join(FORMATS)}"
        )
    for name in options:
        if name not in FORMATS[to].options:
            owners = " and ".join(other for other, form in FORMATS.items() if name in form.options)
            raise InputError(
                Option(name),
                " belongs to ",
                Option("to"),
                f" {owners}",
                ", not to ",
                Option("to", to),
                ": leave it out",
            )
    if to not in ("xyz", "extxyz"):
        result.require_kept(f"the format {to}")
    return FORMATS[to].write(result, **options)
