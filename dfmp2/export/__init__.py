"""Results in the formats of other programs: one literal table of formats, each a function from a result to bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dfmp2.errors import InputError
from dfmp2.export.molden import molden
from dfmp2.export.qcschema import qcschema
from dfmp2.export.trexio import trexio
from dfmp2.export.xyz import xyz
from dfmp2.result import MP2Result

__all__ = ["FORMATS", "Format", "export"]


class Format(NamedTuple):
    """A file format: what makes its bytes, the ending of its files, and what is in it."""

    write: Callable[[MP2Result], bytes]
    ending: str
    holds: str


FORMATS = {
    "molden": Format(molden, ".molden", "geometry, basis, SCF orbitals; up to g functions"),
    "trexio": Format(trexio, ".trexio.h5", "geometry, basis, core potentials, SCF orbitals"),
    "qcschema": Format(qcschema, ".qcschema.json", "AtomicResult: input, all energies, basis, SCF orbitals"),
    "xyz": Format(xyz, ".xyz", "geometry, energies in the comment line"),
}


def export(result: MP2Result, to: str) -> bytes:
    """A result in another program's format.

    Parameters
    ----------
    to : a name in FORMATS

    Raises
    ------
    InputError : unknown format, a package is missing, or the format cannot hold this result
    """
    if to not in FORMATS:
        raise InputError(f"--to {to}: unknown format; expected one of {', '.join(FORMATS)}")
    return FORMATS[to].write(result)
