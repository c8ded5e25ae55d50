"""A QCSchema molecule: symbols, geometry in bohr, ghosts (atoms that are not real), charge, multiplicity, fragments.

Charge and multiplicity are those of the molecule; where they are missing they follow from the fragments, as far as
these leave no choice, else from the schema's defaults 0 and 1. Masses, labels and bonds have no part in the energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dfmp2.elements import atomic_number
from dfmp2.errors import InputError
from dfmp2.io.text import printable
from dfmp2.molecule import Molecule

USED = ("symbols", "geometry", "real", "molecular_charge", "molecular_multiplicity", "name")
CHECKED = (
    "schema_name",
    "schema_version",
    "atomic_numbers",
    "fragments",
    "fragment_charges",
    "fragment_multiplicities",
)
NO_PART = (
    *("masses", "mass_numbers", "atom_labels", "connectivity", "identifiers", "comment", "id", "extras"),
    *("provenance", "validated", "fix_com", "fix_orientation", "fix_symmetry"),
)
SCHEMAS = {("qcschema_molecule", 2), ("qcschema_molecule", 3), ("qc_schema_molecule", 2)}


def read_molecule(document: Mapping[str, Any]) -> Molecule:
    """The molecule of a QCSchema document of molecule version 2 or 3.

    Raises
    ------
    InputError : a field is missing, unknown, of another type, or contradicts another one
    """
    unknown = [name for name in document if name not in (*USED, *CHECKED, *NO_PART) and document[name] is not None]
    if unknown:
        raise InputError(f"molecule has the unknown field {unknown[0]!r}: correct its name, or move it to extras")
    name, version = document.get("schema_name", "qcschema_molecule"), document.get("schema_version", 2)
    if (name, version) not in SCHEMAS:
        raise InputError(f"molecule is {name!r} of schema_version {version!r}: expected qcschema_molecule, 2 or 3")
    symbols = _list(document, "symbols")
    if not symbols or not all(isinstance(symbol, str) for symbol in symbols):
        raise InputError("molecule.symbols: expected a list of element symbols")
    natom = len(symbols)
    ghost = [not real for real in _list(document, "real", [True] * natom, natom, bool)]
    numbers = _list(document, "atomic_numbers", None, natom, int)
    if numbers is not None and numbers != [atomic_number(symbol) for symbol in symbols]:
        raise InputError("molecule.atomic_numbers do not belong to molecule.symbols: leave them out, or correct them")
    points = _geometry(document, natom)
    charge, multiplicity = _state(document, ghost)
    return Molecule(
        symbols=tuple(symbols),
        coordinates=points,
        ghost=tuple(ghost),
        charge=charge,
        multiplicity=multiplicity,
        name=printable(str(document.get("name") or "molecule")),
        source="QCSchema",
    )


def _geometry(document: Mapping[str, Any], natom: int) -> Any:
    """(natom, 3) bohr, from a flat list or from rows."""
    given = document.get("geometry")
    rows = given if isinstance(given, list) else []
    numbers = [x for row in rows for x in (row if isinstance(row, list) else [row])]
    if not numbers or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers):
        raise InputError("molecule.geometry: expected a list of numbers in bohr")
    if len(numbers) != 3 * natom or any(isinstance(row, list) and len(row) != 3 for row in rows):
        raise InputError(
            f"molecule.geometry has {len(numbers)} numbers: expected {3 * natom} in bohr, x, y, z of {natom} atoms"
        )
    try:
        return np.array(numbers, dtype=np.float64).reshape(natom, 3)
    except OverflowError as error:  # a whole number beyond what a float can hold
        raise InputError(f"molecule.geometry: {error}: expected numbers in bohr") from error


def _state(document: Mapping[str, Any], ghost: list[bool]) -> tuple[int, int]:
    """Charge and multiplicity; fragments made of ghosts alone carry none."""
    fragments = _fragments(document, len(ghost))
    real = [any(not ghost[atom] for atom in fragment) for fragment in fragments]
    count = len(fragments)
    charges = _list(document, "fragment_charges", [0] * count, count, int | float)
    multiplicities = _list(document, "fragment_multiplicities", [1] * count, count, int | float)
    if not fragments and (document.get("fragment_charges") or document.get("fragment_multiplicities")):
        raise InputError("molecule has fragment charges or multiplicities but no fragments: add them")
    total = sum(_whole("fragment_charges", q) for q, here in zip(charges, real, strict=True) if here)
    given = document.get("molecular_charge")
    charge = total if given is None else _whole("molecular_charge", given)
    if document.get("fragment_charges") and charge != total:
        raise InputError(f"molecule.molecular_charge is {charge}, its fragment_charges add up to {total}: correct one")
    open_shells = [_whole("fragment_multiplicities", m) for m, here in zip(multiplicities, real, strict=True) if here]
    open_shells = [m for m in open_shells if m != 1]
    given = document.get("molecular_multiplicity")
    if given is not None:
        return charge, _whole("molecular_multiplicity", given)
    if len(open_shells) > 1:
        raise InputError(
            f"molecule.molecular_multiplicity was not given, and {len(open_shells)} fragments are open shells, which "
            "couple in several ways: give it"
        )
    return charge, open_shells[0] if open_shells else 1


def _fragments(document: Mapping[str, Any], natom: int) -> list[list[int]]:
    fragments = _list(document, "fragments", [])
    try:
        listed = [[int(atom) for atom in fragment] for fragment in fragments]
    except (TypeError, ValueError) as error:
        raise InputError("molecule.fragments: expected lists of atom numbers, from 0") from error
    if listed and sorted(atom for fragment in listed for atom in fragment) != list(range(natom)):
        raise InputError(f"molecule.fragments: expected each of the atoms 0 to {natom - 1} in exactly one of them")
    return listed


def _list(
    document: Mapping[str, Any], name: str, default: Any = (), length: int | None = None, kind: Any = object
) -> Any:
    value = document.get(name)
    if value is None:
        return default
    sound = isinstance(value, list) and (length is None or len(value) == length)
    if not sound or not all(isinstance(x, kind) and (kind is bool or not isinstance(x, bool)) for x in value):
        expected = "a list" if length is None else f"a list of {length} values, one for each"
        raise InputError(f"molecule.{name}: expected {expected}")
    return value


def _whole(name: str, value: Any) -> int:
    """A whole number that may be written as 1.0, as QCElemental does."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or int(value) != value:
        raise InputError(f"molecule.{name} {value!r}: expected a whole number")
    return int(value)
