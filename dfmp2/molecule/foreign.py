"""Molecules of other programs: ASE's Atoms, PySCF's Mole, QCSchema documents.

They are read through their methods, so ASE and QCElemental need not be installed. If charge and
multiplicity of a QCSchema molecule are missing, they follow from its fragments as far as these
determine them, else from the schema's defaults 0 and 1. Masses, labels and bonds do not affect the
energy.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from dfmp2.errors import InputError
from dfmp2.molecule.comment import statements
from dfmp2.molecule.elements import atomic_number
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.molecule.text import printable
from dfmp2.units import ANGSTROM_PER_BOHR, BOHR_PER_ANGSTROM, counted_text


class Atoms(Protocol):
    """The part of `ase.Atoms` that is used."""

    def get_chemical_symbols(self) -> Any: ...
    def get_positions(self) -> Any: ...


class Mole(Protocol):
    """The part of `pyscf.gto.Mole` that is used."""

    def atom_coords(self) -> Any: ...
    def atom_pure_symbol(self, atm_id: Any, /) -> Any: ...


def from_ase(atoms: Any, charge: int | None = None, multiplicity: int | None = None) -> Molecule:
    """See `Molecule.from_ase`."""
    if atoms.pbc.any():
        raise InputError(
            "the atoms are periodic (pbc): only molecules are handled; set atoms.pbc = False"
        )
    if charge is None:
        charge = _sum("charge", "initial charges", atoms.get_initial_charges())
        _require_stated(atoms, "charge", charge)
    if multiplicity is None:
        moment = np.sum(atoms.get_initial_magnetic_moments(), axis=0)  # a vector if not collinear
        multiplicity = 1 + _sum("multiplicity", "initial magnetic moments", np.linalg.norm(moment))
        _require_stated(atoms, "multiplicity", multiplicity)
    return Molecule(
        symbols=tuple(atoms.get_chemical_symbols()),
        coordinates=atoms.get_positions() * BOHR_PER_ANGSTROM,
        charge=charge,
        multiplicity=multiplicity,
        name=atoms.get_chemical_formula(),
        source="ASE",
    )


def keys_of(quantity: str, pairs: Mapping[str, Any]) -> list[str]:
    """The keys whose values are the charge or the multiplicity of the molecule, by the words that
    the comment of an xyz file has for them.

    Parameters
    ----------
    quantity : "charge" or "multiplicity"
    pairs : values by key, as in `atoms.info`, where ASE puts what such a comment says
    """
    return [
        key
        for key in pairs
        if any(
            one.quantity == quantity and one.certain and one.meanings == {1}
            for one in statements(f"{key}=1")
        )
    ]


def _require_stated(atoms: Any, name: str, value: int) -> None:
    """Raise if `atoms.info` states another charge or multiplicity than the atoms add up to."""
    for key in keys_of(name, atoms.info):
        if not np.array_equal(atoms.info[key], value):
            raise InputError(
                f"atoms.info[{key!r}] is {atoms.info[key]}, but the {name} is {value} by the "
                f"initial charges and magnetic moments of the atoms: pass {name}=..."
            )


def _sum(name: str, what: str, values: Any) -> int:
    total = float(np.sum(values))
    if not np.isfinite(total) or abs(total - round(total)) > 1e-6:
        raise InputError(
            f"the {what} of the atoms add up to {total:.9g}: expected a whole number; pass "
            f"{name}=..."
        )
    return round(total)


def to_ase(molecule: Molecule) -> Any:
    """The molecule as `ase.Atoms`; see `Molecule.to_ase`."""
    if any(molecule.ghost) or molecule.point_charges is not None:
        raise InputError(
            f"{molecule.formula} has ghost atoms or point charges, which ase.Atoms cannot hold: "
            "remove them first, or write the molecule with to_xyz(), which holds ghosts but no point "
            "charges"
        )
    try:
        from ase import Atoms as AseAtoms
    except ImportError as error:
        raise InputError(f"ASE is not installed ({error}): pip install 'dfmp2[ase]'") from error
    charges = [0.0] * molecule.natom
    moments = [0.0] * molecule.natom
    charges[0] = float(molecule.charge)
    moments[0] = float(molecule.multiplicity - 1)
    return AseAtoms(
        symbols=list(molecule.symbols),
        positions=molecule.coordinates * ANGSTROM_PER_BOHR,
        charges=charges,
        magmoms=moments,
    )


def from_pyscf(mole: Any, source: str = "python: PySCF Mole") -> Molecule:
    """See `Molecule.from_pyscf`."""
    with shielded():
        from pyscf import gto

        if not isinstance(mole, gto.Mole) or hasattr(mole, "lattice_vectors"):
            raise InputError(
                f"a {type(mole).__name__} is not a PySCF Mole: periodic systems are not supported"
            )
        if not mole._built:
            raise InputError("the Mole is not built: call mol.build() first")
        if (mole._atm[:, gto.NUC_MOD_OF] == gto.NUC_GAUSS).any():
            raise InputError(
                "the Mole has nuclei of finite size (nucmod), which are not supported: leave it out"
            )
        if mole.nelectron != mole.tot_electrons():
            raise InputError(
                f"the Mole has nelectron {mole.nelectron}, and {mole.tot_electrons()} by its atoms "
                "and its charge: set mol.charge in place of mol.nelectron"
            )
        return Molecule(
            symbols=tuple(
                mole.atom_pure_symbol(i).removeprefix("GHOST-").removeprefix("X-")
                for i in range(mole.natm)
            ),
            coordinates=np.asarray(mole.atom_coords(unit="Bohr")),
            ghost=tuple(bool(gto.is_ghost_atom(mole.atom_symbol(i))) for i in range(mole.natm)),
            charge=int(mole.charge),
            multiplicity=int(mole.spin) + 1,
            name="molecule",
            source=source,
        )


# Fields of a molecule -> their JSON type; those below do not affect the energy.
MOLECULE = {
    "schema_name": str,
    "schema_version": int,
    "symbols": list,
    "geometry": list,
    "real": list,
    "name": str,
    "atomic_numbers": list,
    "molecular_charge": float,
    "molecular_multiplicity": float,
    "fragments": list,
    "fragment_charges": list,
    "fragment_multiplicities": list,
    **dict.fromkeys(
        ("masses", "mass_numbers", "atom_labels", "connectivity", "identifiers", "comment", "id"),
        object,
    ),
    **dict.fromkeys(
        ("extras", "provenance", "validated", "fix_com", "fix_orientation", "fix_symmetry"), object
    ),
}
SCHEMAS = {("qcschema_molecule", 2), ("qcschema_molecule", 3), ("qc_schema_molecule", 2)}


def from_qcschema(document: Any) -> Molecule:
    """See `Molecule.from_qcschema`."""
    dump = getattr(document, "model_dump_json", None) or getattr(document, "json", None)
    if dump is not None:
        document = json.loads(dump())
    if not isinstance(document, Mapping):
        raise InputError(
            f"molecule is a {type(document).__name__}: expected a QCSchema molecule, a JSON object"
        )
    given = read_fields("molecule", document, MOLECULE)
    name = given["schema_name"] or "qcschema_molecule"
    version = given["schema_version"] or 2
    if (name, version) not in SCHEMAS:
        raise InputError(
            f"molecule is {name!r} of schema_version {version!r}: expected qcschema_molecule, 2 or "
            "3"
        )
    symbols = given["symbols"]
    if not symbols or not all(isinstance(symbol, str) for symbol in symbols):
        raise InputError("molecule.symbols: expected a list of element symbols")
    ghost = [not real for real in _list(given, "real", len(symbols), bool) or [True] * len(symbols)]
    numbers = _list(given, "atomic_numbers", len(symbols), int)
    if numbers and numbers != [atomic_number(symbol) for symbol in symbols]:
        raise InputError(
            "molecule.atomic_numbers do not belong to molecule.symbols: leave them out, or correct "
            "them"
        )
    points = _geometry(given["geometry"], len(symbols))
    charge, multiplicity = _state(given, ghost)
    return Molecule(
        symbols=tuple(symbols),
        coordinates=points,
        ghost=tuple(ghost),
        charge=charge,
        multiplicity=multiplicity,
        name=printable(given["name"] or "molecule"),
        source="QCSchema",
    )


def _geometry(given: Any, natom: int) -> Any:
    """(natom, 3) bohr, from a flat list or from rows."""
    try:
        numbers = np.array(given)
    except ValueError:  # rows of different lengths
        numbers = np.empty(0)
    if numbers.dtype.kind not in "if":
        numbers = np.empty(0)
    if numbers.size == 3 * natom and numbers.shape not in ((3 * natom,), (natom, 3)):
        raise InputError(
            f"molecule.geometry has shape {numbers.shape}: expected {(natom, 3)} or "
            f"{(3 * natom,)} in bohr, x, y, z of each atom"
        )
    if numbers.size != 3 * natom:
        raise InputError(
            f"molecule.geometry has {numbers.size} numbers: expected {3 * natom} in bohr, x, y, z "
            f"of {counted_text(natom, 'atom')}"
        )
    return np.array(numbers, dtype=np.float64).reshape(natom, 3)


def _state(given: Mapping[str, Any], ghost: list[bool]) -> tuple[int, int]:
    """Charge and multiplicity; fragments that consist of ghosts have neither."""
    real = _real_fragments(given, ghost)
    total = sum(_of_fragments(given, "fragment_charges", 0, real))
    spins = [m for m in _of_fragments(given, "fragment_multiplicities", 1, real) if m != 1]
    charge = total
    if given["molecular_charge"] is not None:
        charge = _whole("molecular_charge", given["molecular_charge"])
    if given["fragment_charges"] and charge != total:
        raise InputError(
            f"molecule.molecular_charge is {charge}, its fragment_charges add up to {total}: "
            "correct one"
        )
    if given["molecular_multiplicity"] is not None:
        return charge, _whole("molecular_multiplicity", given["molecular_multiplicity"])
    if len(spins) > 1:
        raise InputError(
            f"molecule.molecular_multiplicity was not given, and {len(spins)} fragments are open "
            "shells, which couple in several ways: give it"
        )
    return charge, spins[0] if spins else 1


def _real_fragments(given: Mapping[str, Any], ghost: list[bool]) -> list[bool]:
    """Whether each fragment has an atom that is not a ghost."""
    try:
        fragments = [
            [operator.index(atom) for atom in fragment] for fragment in given["fragments"] or ()
        ]
    except TypeError as error:
        raise InputError("molecule.fragments: expected lists of atom numbers, from 0") from error
    atoms = sorted(atom for fragment in fragments for atom in fragment)
    if fragments and atoms != list(range(len(ghost))):
        raise InputError(
            f"molecule.fragments: expected each of the atoms 0 to {len(ghost) - 1} in exactly one "
            "of them"
        )
    return [any(not ghost[atom] for atom in fragment) for fragment in fragments]


def _of_fragments(given: Mapping[str, Any], name: str, default: int, real: list[bool]) -> list[int]:
    """The values of a field of fragments, for those that are not ghosts."""
    values = _list(given, name, len(real), int | float) or [default] * len(real)
    return [_whole(name, value) for value, here in zip(values, real, strict=True) if here]


def _list(given: Mapping[str, Any], name: str, length: int, kind: Any) -> list[Any] | None:
    """A field with one value of a given type per atom or fragment, or None."""
    value: list[Any] | None = given[name]
    if value is None:
        return None
    if len(value) != length or not all(
        isinstance(x, kind) and (kind is bool) == isinstance(x, bool) for x in value
    ):
        raise InputError(f"molecule.{name}: expected a list of {length} values, one for each")
    return value


def _whole(name: str, value: float) -> int:
    """A whole number, which may be written as 1.0, as in QCElemental."""
    if not isinstance(value, int) and not value.is_integer():
        raise InputError(f"molecule.{name} {value!r}: expected a whole number")
    return int(value)


def read_fields(place: str, given: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """The fields of a JSON object, None for those that are missing or null.

    Raises
    ------
    InputError : a field is unknown or of another type
    """
    for name, value in given.items():
        if value is None:
            continue
        if name not in types:
            raise InputError(
                f"{place} has the unknown field {name!r}: expected {', '.join(sorted(types))}"
            )
        kind = types[name]
        number = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if not isinstance(value, kind) and not number:
            raise InputError(
                f"{place}.{name} is a {JSON.get(type(value), type(value).__name__)}: expected a "
                f"{JSON[kind]}"
            )
    return {name: given.get(name) for name in types}


JSON = {
    dict: "JSON object",
    list: "list",
    str: "string",
    bool: "boolean",
    int: "whole number",
    float: "number",
}
