"""What result files and prepared files have in common: molecule, options, bases, reference, and the content's hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, Protocol

import h5py
import numpy as np

from dfmp2.basis import BasisSet
from dfmp2.io.schema import (
    OF_REFERENCE,
    OPTIONAL_RECORDS,
    Item,
    basis_from,
    basis_items,
    option_values,
    record_items,
    record_values,
)
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.record import Reference, Sizes


class Calculation(Protocol):
    """A calculation whose reference is known."""

    @property
    def molecule(self) -> Molecule: ...
    @property
    def options(self) -> Options: ...
    @property
    def orbital_basis(self) -> BasisSet: ...
    @property
    def scf_fitting(self) -> BasisSet | None: ...
    @property
    def mp2_fitting(self) -> BasisSet: ...
    @property
    def reference(self) -> Reference: ...
    @property
    def mole_json(self) -> str: ...


def calculation_items(source: Calculation) -> dict[str, Item]:
    """Datasets of molecule, options, bases and orbitals, by path; `/mol` and `/scf` as PySCF lays them out."""
    molecule, reference = source.molecule, source.reference
    coeff, energy, occ = reference.mo_coeff, reference.mo_energy, reference.mo_occ
    if reference.nspin == 1:
        coeff, energy, occ = coeff[0], energy[0], occ[0]
    items = {
        "mol": Item(source.mole_json, "", "PySCF molecule, JSON"),
        "scf/e_tot": Item(reference.scf_total_energy, "hartree", "total Hartree-Fock energy"),
        "scf/mo_energy": Item(energy, "hartree", "orbital energies, first axis spin if unrestricted"),
        "scf/mo_occ": Item(occ, "", "orbital occupations"),
        "scf/mo_coeff": Item(coeff, "", "orbital coefficients (nao, nmo), first axis spin if unrestricted"),
        "dfmp2/input/name": Item(molecule.name, "", "name of the molecule"),
        "dfmp2/input/source": Item(molecule.source, "", "where the geometry came from"),
        "dfmp2/input/text": Item(molecule.text, "", "input text, verbatim"),
        "dfmp2/input/text_sha256": Item(
            hashlib.sha256(molecule.text.encode()).hexdigest(), "", "hash of the input text"
        ),
        "dfmp2/input/symbols": Item(molecule.symbols, "", "element symbols"),
        "dfmp2/input/ghost": Item(np.array(molecule.ghost, dtype=np.uint8), "", "1 for a ghost atom"),
        "dfmp2/input/coordinates": Item(molecule.coordinates, "bohr", "nuclear positions (natom, 3)"),
        "dfmp2/input/charge": Item(molecule.charge, "elementary charge", "total charge"),
        "dfmp2/input/multiplicity": Item(molecule.multiplicity, "", "spin multiplicity 2S+1"),
    }
    if molecule.point_charges is not None:
        items["dfmp2/input/point_charges"] = Item(
            molecule.point_charges, "bohr, elementary charge", "point charges (n, 4): x, y, z, charge"
        )
    for field in fields(source.options):
        value = getattr(source.options, field.name)
        if value is not None:
            items[f"dfmp2/input/options/{field.name}"] = Item(value, "", f"option --{field.name.replace('_', '-')}")
    places = (
        ("orbital", source.orbital_basis),
        ("scf_fitting", source.scf_fitting),
        ("mp2_fitting", source.mp2_fitting),
    )
    for place, basis in places:
        if basis is not None:
            items |= basis_items(place, basis)
    parts = {name: getattr(reference, name) for name in OF_REFERENCE}
    for name, record in {"reference": reference, **parts}.items():
        if record is not None:
            items |= record_items(name, record)
    return items


def read_records(handle: h5py.File, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Records by name, None where an optional one is not there; of the reference its plain values only."""
    records: dict[str, Any] = dict.fromkeys(kinds)
    for name, kind in kinds.items():
        if name in handle["dfmp2"] or name not in OPTIONAL_RECORDS:
            values = record_values(kind, stored(handle, f"dfmp2/{name}"))
            records[name] = values if kind is Reference else kind(**values)
    return records


def read_calculation(handle: h5py.File, records: dict[str, Any]) -> dict[str, Any]:
    """Molecule, options, bases and reference, by the names of `Calculation`.

    Parameters
    ----------
    records : as `read_records` found them; "reference" and its parts are taken out, "sizes" is compared with

    Raises
    ------
    KeyError, TypeError, ValueError, InputError : something is missing, damaged, or does not belong together
    """
    given = stored(handle, "dfmp2/input")
    options = Options(**option_values(stored(handle, "dfmp2/input/options"), Options))
    molecule = Molecule(
        symbols=tuple(str(s) for s in given["symbols"]),
        coordinates=given["coordinates"],
        ghost=tuple(bool(g) for g in given["ghost"]),
        charge=int(given["charge"]),
        multiplicity=int(given["multiplicity"]),
        name=str(given["name"]),
        source=str(given["source"]),
        text=str(given["text"]),
        point_charges=given.get("point_charges"),
    )
    sizes = records["sizes"]
    nspin = {"rhf": 1, "uhf": 2}[records["reference"]["kind"]]
    orbitals: dict[str, Any] = {
        name: numbers(handle, f"scf/{name}", shape[0 if nspin == 2 else 1 :]).reshape(shape)
        for name, shape in {
            "mo_coeff": (nspin, sizes.nao, sizes.nmo),
            "mo_energy": (nspin, sizes.nmo),
            "mo_occ": (nspin, sizes.nmo),
        }.items()
    }
    bases = {
        place: basis_from(stored(handle, f"dfmp2/bases/{place}")) if place in handle["dfmp2/bases"] else None
        for place in ("orbital", "scf_fitting", "mp2_fitting")
    }
    if bases["orbital"] is None or bases["mp2_fitting"] is None:
        raise KeyError("dfmp2/bases")
    _require_consistent(molecule, bases["orbital"], sizes)
    return {
        "molecule": molecule,
        "options": options,
        "orbital_basis": bases["orbital"],
        "scf_fitting": bases["scf_fitting"],
        "mp2_fitting": bases["mp2_fitting"],
        "reference": Reference(
            **records.pop("reference"), **orbitals, **{name: records.pop(name) for name in OF_REFERENCE}
        ),
        "mole_json": handle["mol"].asstr()[()],
    }


def write_items(group: h5py.Group, items: Mapping[str, Item], storable: Callable[[Any], Any]) -> None:
    """Store datasets with their units and descriptions; `storable` turns a value into what h5py takes."""
    for name, item in items.items():
        dataset = group.create_dataset(name, data=storable(item.value))
        dataset.attrs["units"] = storable(item.units)
        dataset.attrs["description"] = storable(item.description)


def printed(text: str) -> bytes:
    """Text as UTF-8; a file name need not be UTF-8, and its other bytes are written as \\udcNN."""
    return text.encode("utf-8", "backslashreplace")


def stored(handle: h5py.File, group: str) -> dict[str, Any]:
    """The datasets directly in a group, text decoded."""
    values = {}
    for name, item in handle[group].items():
        if isinstance(item, h5py.Dataset):
            values[name] = item.asstr()[()] if item.dtype.kind in "OS" else item[()]
    return values


def numbers(handle: h5py.File, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A float64 dataset of the expected shape (checked before it is read) that holds finite numbers."""
    item = handle[name]
    if item.shape != shape or item.dtype != np.float64:
        raise ValueError(f"{name} is {item.dtype} {item.shape}, expected float64 {shape}")
    values = np.asarray(item[()])
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinite numbers")
    return values


def content_hash(handle: h5py.File, leave_out: Collection[str] = ()) -> str:
    """SHA-256 over names, types, shapes and bytes of all datasets but some, in the order of their names."""
    digest = hashlib.sha256()
    names: list[str] = []
    handle.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    for name in sorted(set(names) - set(leave_out)):
        value = handle[name][()]
        if handle[name].dtype.kind == "O":
            texts = [value] if isinstance(value, bytes) else list(value)
            content = b"\0".join(text if isinstance(text, bytes) else str(text).encode() for text in texts)
        else:
            content = np.ascontiguousarray(value).tobytes()
        digest.update(f"{name}|{handle[name].dtype.str}|{handle[name].shape}|".encode() + content)
    return digest.hexdigest()


def _require_consistent(molecule: Molecule, orbital: BasisSet, sizes: Sizes) -> None:
    """Refuse orbital counts that cannot be those of the molecule: `compare` computes with them."""
    electrons = molecule.check_electrons(orbital.ecp_electrons)
    nocc = tuple(max(0, n - sizes.frozen_core) for n in electrons)
    nvir = tuple(sizes.nmo - n - sizes.frozen_virtual for n in electrons)
    if (sizes.nocc, sizes.nvir) != (nocc, nvir) or min(sizes.frozen_core, sizes.frozen_virtual, *nvir) < 0:
        raise ValueError("its numbers of orbitals do not belong to its molecule")
