"""Storage of a calculation as datasets: molecule, options, bases and reference.

Results, checkpoints and prepared files share this layout (`dfmp2.output.hdf5`,
`dfmp2.output.state`, `dfmp2.output.prepared`). A record is a dataclass whose fields have a unit and
a description (`dfmp2.units.quantity`); each field becomes a dataset.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from dfmp2.molecule.basis import BasisSet, ElementBasis, nested_tuples
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import ALL, Options
from dfmp2.output.hdf5_datasets import Dataset, Groups, numbers, stored
from dfmp2.planning.sizes import Sizes
from dfmp2.scf.reference import Reference

# Group -> field
BASES = {"orbital": "orbital_basis", "scf_fitting": "scf_fitting", "mp2_fitting": "mp2_fitting"}
ORBITALS = ("mo_coeff", "mo_energy", "mo_occ")  # fields of the reference stored under /scf
HIGHEST_MOMENTUM = 12  # of a shell; limit of PySCF's integral library


def records_of(kind: type) -> dict[str, type]:
    """Fields of a dataclass that are themselves records (dataclasses whose fields have units), with
    their types."""
    return {
        name: part
        for name, hint in get_type_hints(kind).items()
        for part in (hint, *get_args(hint))
        if is_dataclass(part)
        and isinstance(part, type)
        and all("units" in field.metadata for field in fields(part))
    }


OF_REFERENCE = tuple(records_of(Reference))  # stability, solutions, error of the grid


# --- molecule, options and reference --------------------------------------------------------------


def calculation_items(source: Any) -> dict[str, Dataset]:
    """Datasets of molecule, options, bases and reference, by path.

    Parameters
    ----------
    source : a result, or another value with `molecule`, `options`, the three bases, `reference` and
        `mole_json`
    """
    molecule = source.molecule
    text_hash = hashlib.sha256(molecule.text.encode()).hexdigest()
    given = {
        "name": Dataset(molecule.name, "", "name of the molecule"),
        "source": Dataset(molecule.source, "", "where the geometry came from"),
        "text": Dataset(molecule.text, "", "input text, verbatim"),
        "text_sha256": Dataset(text_hash, "", "hash of the input text"),
        "symbols": Dataset(molecule.symbols, "", "element symbols"),
        "ghost": Dataset(np.array(molecule.ghost, dtype=np.uint8), "", "1 for a ghost atom"),
        "coordinates": Dataset(molecule.coordinates, "bohr", "nuclear positions (natom, 3)"),
        "charge": Dataset(molecule.charge, "elementary charge", "total charge"),
        "multiplicity": Dataset(molecule.multiplicity, "", "spin multiplicity 2S+1"),
        "point_charges": Dataset(
            molecule.point_charges,
            "bohr, elementary charge",
            "point charges (n, 4): x, y, z, charge",
        ),
    }
    for field in fields(source.options):
        given[f"options/{field.name}"] = Dataset(
            getattr(source.options, field.name), "", f"option --{field.name.replace('_', '-')}"
        )
    items = {}
    if source.mole_json:
        items["mol"] = Dataset(source.mole_json, "", "PySCF molecule, JSON")
    for name, item in given.items():
        if item.value is not None:
            items[f"dfmp2/input/{name}"] = item
    for group, name in BASES.items():
        if getattr(source, name) is not None:
            items |= basis_items(group, getattr(source, name))
    return items | reference_items(source.reference)


def reference_items(reference: Reference) -> dict[str, Dataset]:
    """Datasets of a reference with all its parts, by path."""
    coeff, energy, occ = (getattr(reference, name) for name in ORBITALS)
    if reference.nspin == 1:
        coeff, energy, occ = coeff[0], energy[0], occ[0]
    items = {
        "scf/e_tot": Dataset(reference.scf_total_energy, "hartree", "total energy of the SCF"),
        "scf/mo_energy": Dataset(
            energy, "hartree", "orbital energies, first axis spin if unrestricted"
        ),
        "scf/mo_occ": Dataset(occ, "", "orbital occupations"),
        "scf/mo_coeff": Dataset(
            coeff, "", "orbital coefficients (nao, nmo), first axis spin if unrestricted"
        ),
        **record_items("reference", reference),
    }
    for name in OF_REFERENCE:
        part = getattr(reference, name)
        if part is not None:
            items |= record_items(name, part)
    return items


def read_records(groups: Groups, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The stored records by name; for the reference, only its plain values.

    Raises
    ------
    KeyError, TypeError, ValueError : a field is missing or of the wrong type
    """
    values = {
        name: field_values(kind, stored(groups, f"dfmp2/{name}"))
        for name, kind in kinds.items()
        if f"dfmp2/{name}" in groups
    }
    return {
        name: found if name == "reference" else kinds[name](**found)
        for name, found in values.items()
    }


def read_calculation(groups: Groups, records: dict[str, Any]) -> dict[str, Any]:
    """Molecule, options, bases, reference and PySCF's molecule, under the field names of a result.

    Parameters
    ----------
    records : as returned by `read_records`; "reference" and its parts are removed, "sizes" is used
        for checks

    Raises
    ------
    KeyError, TypeError, ValueError, InputError : something is missing, damaged or inconsistent
    """
    bases: dict[str, BasisSet | None] = dict.fromkeys(BASES.values())
    for name, field in BASES.items():
        group = f"dfmp2/bases/{name}"
        if group in groups:
            bases[field] = basis_from(stored(groups, group))
    if bases["orbital_basis"] is None or bases["mp2_fitting"] is None:
        raise KeyError("dfmp2/bases")
    sizes = records["sizes"]
    kept = groups.get("dfmp2/run", {}).get("kept", ALL)
    mole_json = ""
    if kept == ALL or "mol" in groups.get("", {}):
        mole_json = stored(groups, "")["mol"]
    molecule = Molecule(**field_values(Molecule, stored(groups, "dfmp2/input")))
    _require_consistent(molecule, bases["orbital_basis"], sizes)
    shapes: dict[str, tuple[int, ...]] = {"mo_energy": (sizes.nmo,), "mo_occ": (sizes.nmo,)}
    if kept == ALL:
        shapes["mo_coeff"] = (sizes.nao, sizes.nmo)
    return {
        "molecule": molecule,
        "options": Options(**field_values(Options, stored(groups, "dfmp2/input/options"))),
        **bases,
        "reference": read_reference(groups, records, shapes),
        "mole_json": mole_json,
    }


def read_reference(
    groups: Groups, records: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Reference:
    """The reference stored by `reference_items`.

    Parameters
    ----------
    groups : mapping
        Datasets by group.
    records : dict
        As returned by `read_records`; "reference" and its parts are removed.
    shapes : mapping
        Shapes of the arrays under /scf for one spin. Coefficients that the file does not keep
        become empty arrays.

    Raises
    ------
    KeyError, TypeError, ValueError
        Something is missing, damaged or inconsistent.
    """
    values = records.pop("reference")
    spins = {"rhf": (), "uhf": (2,), "rohf": (2,)}[values["kind"]]
    values["mo_coeff"] = np.empty((max((1, *spins)), 0, 0))
    for name, shape in shapes.items():
        values[name] = numbers(groups, "scf", name, (*spins, *shape))
        if not spins:
            values[name] = values[name][None]
    for name in OF_REFERENCE:
        values[name] = records.pop(name, None)
    return Reference(**values)


def _require_consistent(molecule: Molecule, orbital: BasisSet, sizes: Sizes) -> None:
    """Raise if the numbers of orbitals are impossible for the molecule, because `compare` relies on
    them."""
    electrons = molecule.check_electrons(orbital.ecp_electrons)
    nocc = tuple(max(0, n - sizes.frozen_core) for n in electrons)
    nvir = tuple(sizes.nmo - n - sizes.frozen_virtual for n in electrons)
    if (sizes.nocc, sizes.nvir) != (nocc, nvir) or min(
        sizes.frozen_core, sizes.frozen_virtual, *nvir
    ) < 0:
        raise ValueError("its numbers of orbitals do not belong to its molecule")


# --- records -------------------------------------------------------------------------------------


def record_items(name: str, record: Any) -> dict[str, Dataset]:
    """Datasets of a record by path, without fields that are None or stored elsewhere."""
    return {
        f"dfmp2/{name}/{field.name}": Dataset(
            value, field.metadata["units"], field.metadata["description"]
        )
        for field in fields(record)
        if field.name not in (*ORBITALS, *OF_REFERENCE)
        and (value := getattr(record, field.name)) is not None
    }


def field_values(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments of a dataclass from stored values, each converted to the type of its
    field.

    Fields that are not stored, as in older files, keep their defaults.

    Raises
    ------
    TypeError, ValueError, OverflowError : a value is of the wrong type
    """
    return {
        name: convert(stored[name])
        for name, convert in _converters(kind)
        if stored.get(name) is not None
    }


@cache
def _converters(kind: type[Any]) -> list[tuple[str, Callable[[Any], Any]]]:
    """Converters from stored values to the types of the fields of a dataclass, by field."""
    hints = get_type_hints(kind)
    return [(field.name, _converter(hints[field.name])) for field in fields(kind)]


def _converter(hint: Any) -> Callable[[Any], Any]:
    """A converter from a stored value to an annotated type: text or a number, a tuple of either, or
    an array."""
    kind = next(
        (kind for kind in (hint, *get_args(hint)) if kind in (bool, int, float, str)), np.asarray
    )
    if get_origin(hint) is tuple:
        return lambda value: tuple(kind(x) for x in value)
    return kind


# --- basis sets ----------------------------------------------------------------------------------


def basis_items(place: str, basis: BasisSet) -> dict[str, Dataset]:
    """Datasets of a basis: its names, its numbers as JSON, and the hash of each element."""
    elements = {
        symbol: {
            field.name: getattr(element, field.name)
            for field in fields(element)
            if field.name != "symbol"
        }
        for symbol, element in basis.elements.items()
    }
    about = "JSON: symbol -> name, source, shells (exponents in bohr^-2), ecp"
    items = {
        "role": Dataset(basis.role, "", "orbital, jk (SCF fitting) or ri (MP2 fitting)"),
        "name": Dataset(basis.name, "", "name that was asked for"),
        "elements": Dataset(json.dumps(elements), "", about),
        "sha256": Dataset(_hashes(basis.elements), "", "hash of exponents and coefficients"),
    }
    if basis.errors:
        values = np.array([*basis.errors.values()])
        items["fitting_error"] = Dataset(values, "hartree", "error for one atom of each element")
    return {f"dfmp2/bases/{place}/{name}": item for name, item in items.items()}


def basis_from(stored: Mapping[str, Any]) -> BasisSet:
    """The basis stored in some datasets.

    Raises
    ------
    KeyError, TypeError, ValueError : the basis is damaged, or its numbers do not match their hash
    """
    elements, hashes = _elements(stored["elements"])
    if hashes != tuple(stored["sha256"]):
        raise ValueError("the hash of a basis does not belong to its numbers")
    # None in files of dfmp2 0.1
    errors = [float(error) for error in stored.get("fitting_error", ())]
    if not all(map(math.isfinite, errors)) or len(errors) not in (0, len(elements)):
        raise ValueError("the fitting errors of a basis do not belong to its elements")
    return BasisSet(
        role=str(stored["role"]),
        name=str(stored["name"]),
        elements=dict(elements),
        errors=dict(zip(elements, errors, strict=False)),
    )


@lru_cache(256)  # results of a batch share their bases
def _elements(text: str) -> tuple[dict[str, ElementBasis], tuple[str, ...]]:
    """Elements of a basis from its JSON, and their hashes; ValueError if they are not numbers."""
    elements = {
        key: ElementBasis(
            key.rstrip("0123456789"),
            **{name: nested_tuples(value) for name, value in values.items()},
        )
        for key, values in json.loads(text).items()
    }
    for element in elements.values():
        _require_numbers(element)
    return elements, _hashes(elements)


def _hashes(elements: Mapping[str, ElementBasis]) -> tuple[str, ...]:
    return tuple(f"{symbol} {element.sha256}" for symbol, element in elements.items())


def _require_numbers(element: ElementBasis) -> None:
    """Raise unless the basis of an element has strings and numbers in the right places, because it
    is passed to PySCF, whose parsers accept text."""
    core, channels = element.ecp or (0, ())
    momenta = [*(shell[0] for shell in element.shells), *(momentum + 1 for momentum, _ in channels)]
    primitives = [row for shell in element.shells for row in shell[1:]]
    terms = [term for _, powers in channels for power in powers for term in power]
    sound = (
        isinstance(element.name, str)
        and isinstance(element.source, str)
        and isinstance(element.ecp_source, str | None)
        and element.shells
        and isinstance(core, int)
        and all(momentum in range(HIGHEST_MOMENTUM + 1) for momentum in momenta)
        and all(len(shell) > 1 for shell in element.shells)
        and all(
            isinstance(x, int | float) and math.isfinite(x)
            for row in (*primitives, *terms)
            for x in row
        )
        and all(len(row) > 1 and row[0] > 0 for row in primitives)
        and all(len(term) > 1 for term in terms)
    )
    if not sound:
        raise ValueError(f"the basis of {element.symbol} is not made of shells of numbers")
