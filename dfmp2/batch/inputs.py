"""What an item is computed from, and its fingerprint: results of the same input need not be computed again.

The fingerprint covers geometry and point charges (their bits), charge, multiplicity and every option that can change a
result or its checks; memory, threads and scratch space only decide how it is reached.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from dfmp2.batch.manifest import Item
from dfmp2.checkpoint.fingerprint import point_charges
from dfmp2.errors import InputError
from dfmp2.io.point_charges import read_point_charges
from dfmp2.io.text_file import read_text
from dfmp2.io.xyz import MAX_BYTES, TOO_LARGE, parse_xyz
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.result import MP2Result

# Options with which a finished result stays what it is.
NOT_COMPARED = ("memory", "threads", "scratch", "scf_max_cycles", "allow_small_gap", "allow_poor_fit", "scf_from")
START = "start orbitals sha256:"  # in the command that a result was made with
LARGEST_START = 4 * 10**9  # bytes of a file with start orbitals


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """The input of an item, read once.

    Attributes
    ----------
    molecule : what its file says
    text, file : of the file, so that a worker sees what was fingerprinted
    fingerprint : SHA-256
    start : SHA-256 of the file with start orbitals, "" for none
    """

    molecule: Molecule
    text: str
    file: str
    fingerprint: str
    start: str


def read_input(item: Item) -> Input:
    """Read the molecule of an item.

    Raises
    ------
    InputError : what `dfmp2 run` would say of the file
    """
    settings = item.settings
    _, text = read_text(item.path, MAX_BYTES, TOO_LARGE)
    molecule = parse_xyz(
        text, file=item.molecule, units=settings.units, charge=settings.charge, multiplicity=settings.multiplicity
    ).molecule.in_field(read_point_charges(settings.point_charges, settings.point_charge_units))
    start = "" if settings.options.scf_from is None else _file_hash(Path(settings.options.scf_from))
    return Input(molecule, text, item.molecule, fingerprint(molecule, settings.options, start), start)


def fingerprint(molecule: Molecule, options: Options, start: str) -> str:
    """SHA-256 of what decides a result.

    Parameters
    ----------
    start : SHA-256 of the file with start orbitals, "" for none
    """
    settled = options.settled(molecule.multiplicity)
    values = {name: value for name, value in asdict(settled).items() if name not in NOT_COMPARED}
    text = json.dumps([molecule.fingerprint, values, start], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint_of(result: MP2Result) -> str:
    """The fingerprint of the input a stored result was made from."""
    found = re.search(re.escape(START) + "([0-9a-f]{64})", result.provenance.command)
    return fingerprint(result.molecule, result.options, found[1] if found else "")


def differences(result: MP2Result, wanted: Input, options: Options) -> str:
    """What of the input has changed since a result was made, for people."""
    changed = [
        name
        for name, value in asdict(options.settled(wanted.molecule.multiplicity)).items()
        if name not in NOT_COMPARED and getattr(result.options, name) != value
    ]
    old, new = result.molecule, wanted.molecule
    if (old.charge, old.multiplicity) != (new.charge, new.multiplicity):
        changed.insert(0, "charge or multiplicity")
    if old.labels != new.labels or old.coordinates.tobytes() != new.coordinates.tobytes():
        changed.insert(0, "geometry")
    if point_charges(old) != point_charges(new):
        changed.insert(0, "point charges")
    return ", ".join(changed) or "start orbitals"


def _file_hash(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_START:
            raise InputError(f"--scf-from {path}: expected a file with start orbitals")
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"--scf-from {path}: cannot be read ({error.strerror})") from error
