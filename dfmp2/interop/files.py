"""Molecules from .mol, .sdf and .pdb files, read by ASE; what ASE passes over in silence is refused or read here.

ASE takes symbols and positions. Charges (`M  CHG`, columns 79-80 of a PDB atom) are added up; drawings in two
dimensions, V3000, several molecules or models, and alternate locations are refused.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from dfmp2.errors import BackendUnavailable, InputError
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.text import printable, read_text
from dfmp2.molecule.xyz import MAX_BYTES, TOO_LARGE, XyzFile, read_xyz
from dfmp2.units import BOHR_PER_ANGSTROM

FORMATS = {".mol": "mol", ".sdf": "sdf", ".pdb": "proteindatabank"}  # end of the name -> ASE's name


def read_molecule(path: str, *, units: str, charge: int | None, multiplicity: int | None) -> XyzFile:
    """Read one molecule from a file, whose format is known by the end of its name: .mol, .sdf, .pdb, else xyz.

    Parameters
    ----------
    units, charge, multiplicity : as of `dfmp2.molecule.xyz.read_xyz`; only xyz files may be in bohr

    Raises
    ------
    InputError : it cannot be read, or is not one molecule in three dimensions
    BackendUnavailable : ASE is not installed
    """
    kind = FORMATS.get(Path(path).suffix.lower())
    if kind is None:
        return read_xyz(path, units=units, charge=charge, multiplicity=multiplicity)
    file, text = read_text(path, MAX_BYTES, TOO_LARGE, f"a {Path(path).suffix} file")
    try:
        if units != "angstrom":
            raise InputError(f"--units {units}: {Path(path).suffix} files are in angstrom: leave it out")
        found = _charge_of_pdb(text) if kind == "proteindatabank" else _charge_of_mol(text, multiplicity)
        atoms = _atoms(text, kind)
        total = found if charge is None else charge
        name = "".join(letter if letter.isprintable() else "_" for letter in Path(file).stem) or "molecule"
        molecule = Molecule(
            tuple(atoms.get_chemical_symbols()), atoms.get_positions() * BOHR_PER_ANGSTROM, (), total, multiplicity or 1
        )
    except InputError as error:
        raise InputError(str(error), file=file) from error
    return XyzFile(
        replace(molecule, name=name, source=printable(file), text=text),
        "option" if charge is not None else "file" if found else "default",
        "default" if multiplicity is None else "option",
    )


def _atoms(text: str, kind: str) -> Any:
    """The one set of atoms that ASE finds."""
    try:
        from ase.io import read
    except ImportError as absent:
        raise BackendUnavailable(
            f"ASE, which reads {kind} files, is not installed ({absent}): pip install 'dfmp2[ase]', or give an xyz file"
        ) from absent
    try:
        found = [atoms for atoms in read(io.StringIO(text), index=":", format=kind) if len(atoms)]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OSError) as error:  # of a damaged file
        raise InputError(f"ASE cannot read it as {kind} ({type(error).__name__}: {error}): give an xyz file") from error
    if len(found) != 1:
        raise InputError(f"{len(found)} molecules or models: keep one in a file")
    return found[0]


def _charge_of_mol(text: str, multiplicity: int | None) -> int:
    """Sum of the charges of the atoms."""
    lines = text.splitlines()
    if text.count("$$$$") > 1:
        raise InputError(f"{text.count('$$$$')} molecules: keep one in a file")
    if len(lines) > 3 and "V3000" in lines[3]:
        raise InputError("V3000: only V2000 is read: save it as V2000, or as xyz")
    if len(lines) > 1 and lines[1][20:22] == "2D":
        raise InputError("a drawing in two dimensions: make a geometry of it first (three dimensions)")
    if multiplicity is None and re.search(r"^M  RAD", text, re.MULTILINE):
        raise InputError("it names radical centres (M  RAD): give --multiplicity")
    rows = [line.split()[3:] for line in lines if line.startswith("M  CHG")]
    try:
        return sum(int(value) for row in rows for value in row[1::2])
    except ValueError as error:
        raise InputError(f"M  CHG is damaged ({error}): give --charge and remove the line") from error


def _charge_of_pdb(text: str) -> int:
    """Sum of the charges in columns 79 and 80, such as 2+ or 1-."""
    atoms = [line for line in text.splitlines() if line.startswith(("ATOM", "HETATM"))]
    if any(line[16:17].strip() for line in atoms):
        raise InputError("alternate locations of atoms (column 17): keep one of each")
    written = [line[78:80].strip() for line in atoms]
    return sum(int(word[::-1]) for word in written if re.fullmatch(r"[1-9][+-]", word))
