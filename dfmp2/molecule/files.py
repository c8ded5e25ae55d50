"""Molecules from files: xyz, and .mol, .sdf and .pdb by ASE; what ASE passes over in silence is refused or read here.

ASE takes symbols and positions. Charges (`M  CHG`, columns 79-80 of a PDB atom) are added up; drawings in two
dimensions, V3000 and alternate locations are refused, several molecules or models where one is expected too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from dfmp2.errors import BackendUnavailable, InputError
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.text import printable, read_text
from dfmp2.molecule.xyz import (
    MAX_BYTES,
    MORE,
    MOST_FRAMES,
    TOO_LARGE,
    XyzFile,
    frames_of,
    parse_xyz,
)
from dfmp2.units import BOHR_PER_ANGSTROM

FORMATS = {".mol": "mol", ".sdf": "sdf", ".pdb": "proteindatabank"}  # end of the name -> ASE's name
ENDS = {".sdf": r"^\$\$\$\$.*\n?", ".pdb": r"^ENDMDL.*\n?"}  # of a molecule, of a model


def read_file(
    path: str | Path,
    *,
    units: str = "angstrom",
    charge: int | None = None,
    multiplicity: int | None = None,
    called: str | None = None,
) -> XyzFile:
    """Read one molecule from a file, whose format is known by the end of its name: .mol, .sdf, .pdb, else xyz.

    Parameters
    ----------
    path : "-" is an xyz file on standard input
    units, charge, multiplicity : as of `dfmp2.molecule.xyz.read_xyz`; only xyz files may be in bohr
    called : its name in errors and in the result, None for the path

    Raises
    ------
    InputError : it cannot be read, or is not one molecule in three dimensions
    BackendUnavailable : ASE is not installed
    """
    end, file, text = _read(path, TOO_LARGE)
    return _parse(
        text, called or file, end, {"units": units, "charge": charge, "multiplicity": multiplicity}
    )


def read_frames(
    path: str | Path,
    *,
    units: str = "angstrom",
    charge: int | None = None,
    multiplicity: int | None = None,
) -> list[Molecule]:
    """Every frame of an xyz file, molecule of an .sdf file or model of a .pdb file; parameters as in `read_file`.

    Raises
    ------
    InputError : the file cannot be read, or a frame is no molecule; the frame and its first line are named
    BackendUnavailable : ASE is not installed
    """
    end, file, text = _read(path, f"{MORE}: split it")
    if end in FORMATS:
        blocks = _blocks(text, end)
    else:
        blocks = frames_of(text)
    frames: list[Molecule] = []
    for line, block in blocks:
        if len(frames) == MOST_FRAMES:
            raise InputError(f"more than {MOST_FRAMES} frames: split it", file=file)
        name = f"{file}, frame {len(frames) + 1} (line {line} on)"
        state: dict[str, Any] = {"units": units, "charge": charge, "multiplicity": multiplicity}
        frames.append(_parse(block, name, end, state).molecule)
    if not frames:
        raise InputError("empty: expected the frames of an xyz file", file=file)
    return frames


def _read(path: str | Path, too_large: str) -> tuple[str, str, str]:
    """End of the name in small letters, name for errors, text."""
    end = Path(path).suffix.lower()
    return end, *read_text(
        path, MAX_BYTES, too_large, f"a {end} file" if end in FORMATS else "an xyz file"
    )


def _blocks(text: str, end: str) -> Iterator[tuple[int, str]]:
    """Number of the first line, from 1, and text of each molecule or model."""
    if end in ENDS:
        ends = [found.end() for found in re.finditer(ENDS[end], text, re.MULTILINE)]
    else:
        ends = []
    for begin, stop in pairwise([0, *ends, len(text)]):
        if re.search(r"^(ATOM|HETATM)" if end == ".pdb" else r"\S", text[begin:stop], re.MULTILINE):
            yield text.count("\n", 0, begin) + 1, text[begin:stop]


def _parse(text: str, file: str, end: str, state: dict[str, Any]) -> XyzFile:
    """The one molecule of a text in the format of the end of a name; `file` names it in errors."""
    kind, (units, charge, multiplicity) = FORMATS.get(end), state.values()
    if kind is None:
        return parse_xyz(text, file=file, **state)
    try:
        if units != "angstrom":
            raise InputError(f"--units {units}: {end} files are in angstrom: leave it out")
        if kind == "proteindatabank":
            found = _charge_of_pdb(text)
        else:
            found = _charge_of_mol(text, multiplicity)
        atoms = _atoms(text, kind)
        total = found if charge is None else charge
        name = (
            "".join(letter if letter.isprintable() else "_" for letter in Path(file).stem)
            or "molecule"
        )
        molecule = Molecule(
            tuple(atoms.get_chemical_symbols()),
            atoms.get_positions() * BOHR_PER_ANGSTROM,
            (),
            total,
            multiplicity or 1,
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
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OSError,
    ) as error:  # of a damaged file
        raise InputError(
            f"ASE cannot read it as {kind} ({type(error).__name__}: {error}): give an xyz file"
        ) from error
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
        raise InputError(
            "a drawing in two dimensions: make a geometry of it first (three dimensions)"
        )
    if multiplicity is None and re.search(r"^M  RAD", text, re.MULTILINE):
        raise InputError("it names radical centres (M  RAD): give --multiplicity")
    rows = [line.split()[3:] for line in lines if line.startswith("M  CHG")]
    try:
        return sum(int(value) for row in rows for value in row[1::2])
    except ValueError as error:
        raise InputError(
            f"M  CHG is damaged ({error}): give --charge and remove the line"
        ) from error


def _charge_of_pdb(text: str) -> int:
    """Sum of the charges in columns 79 and 80, such as 2+ or 1-."""
    atoms = [line for line in text.splitlines() if line.startswith(("ATOM", "HETATM"))]
    if any(line[16:17].strip() for line in atoms):
        raise InputError("alternate locations of atoms (column 17): keep one of each")
    written = [line[78:80].strip() for line in atoms]
    return sum(int(word[::-1]) for word in written if re.fullmatch(r"[1-9][+-]", word))
