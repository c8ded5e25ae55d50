"""Write and read result files (layout: `dfmp2.io.schema`). `read(path)` gives back what was written.

A file is made in memory, then written beside the target, flushed and renamed: there is never half a
result. It carries a hash of its content, and is a valid PySCF checkpoint at the same time.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dfmp2.basis import BasisSet
from dfmp2.errors import InputError, ResultFileError
from dfmp2.io.files import write_atomically
from dfmp2.io.safe_hdf5 import open_checked, read_attribute
from dfmp2.io.schema import (
    ENERGIES,
    OPTIONAL_RECORDS,
    RECORDS,
    SCHEMA_VERSION,
    Item,
    basis_from,
    basis_items,
    option_values,
    record_items,
    record_values,
)
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.record import PairEnergies, Reference, Sizes
from dfmp2.result import MP2Result

RUN_FIELDS = {
    "backend": "backend that evaluated the pair energies",
    "backend_reason": "why it was chosen",
    "precision": "fp64 or mixed, as it really ran",
    "frozen_core_note": "how the frozen core was counted",
}


def write(result: MP2Result, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a result, all or nothing.

    Raises
    ------
    ResultFileError : the file exists and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """
    write_atomically(Path(path), to_bytes(result), overwrite=overwrite)


def to_bytes(result: MP2Result) -> bytes:
    """The result file as bytes."""
    with h5py.File("result.h5", "w", driver="core", backing_store=False) as handle:
        store(handle, result)
        handle.flush()
        return bytes(handle.id.get_file_image())


def store(group: h5py.Group, result: MP2Result) -> None:
    """Put a result into an empty group: the root of a file of its own, or one of several in a study."""
    group.attrs["creator"] = "dfmp2"
    group.attrs["creator_version"] = result.provenance.version
    group.attrs["file_time"] = result.provenance.created
    group.attrs["HDF5_Version"] = h5py.version.hdf5_version
    group.attrs["h5py_version"] = h5py.version.version
    group.attrs["default"] = "dfmp2"
    group.attrs["dfmp2_schema_version"] = SCHEMA_VERSION
    for name, item in _items(result).items():
        dataset = group.create_dataset(name, data=_storable(item.value))
        dataset.attrs["units"] = item.units
        dataset.attrs["description"] = item.description
    # Of fixed length, unlike the texts above: `safe_hdf5.read_attribute` says why.
    group.attrs["content_sha256"] = np.bytes_(content_hash(group))
    group.attrs["status"] = np.bytes_("complete")


def read(path: str | Path) -> MP2Result:
    """Read a result file back.

    Raises
    ------
    InputError : no such file
    ResultFileError : foreign, damaged, incomplete, or of an unknown version
    """
    with open_checked(path) as handle:
        return load(handle, path)


def load(group: h5py.Group, path: str | Path) -> MP2Result:
    """The result in a group that `store` filled; `path` names it in errors, which are those of `read`."""
    _require_known(group, path)
    try:
        return _result(group)
    except InputError as error:  # a molecule or options that could not have been run
        raise ResultFileError(f"{path}: damaged file ({error}): compute it again") from error


def verify(path: str | Path) -> str:
    """Check the stored hash against the content and return it.

    Raises
    ------
    ResultFileError : they differ
    """
    with open_checked(path) as handle:
        _require_known(handle, path)
        stored, found = str(read_attribute(handle, "content_sha256")), content_hash(handle)
    if stored != found:
        raise ResultFileError(
            f"{path}: the content does not have its stored hash ({stored[:12]}..., found {found[:12]}...)"
        )
    return found


def content_hash(handle: h5py.File) -> str:
    """SHA-256 over names, types, shapes and bytes of all datasets, in the order of their names."""
    digest = hashlib.sha256()
    names: list[str] = []
    handle.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    for name in sorted(names):
        value = handle[name][()]
        if handle[name].dtype.kind == "O":
            texts = [value] if isinstance(value, bytes) else list(value)
            content = b"\0".join(text if isinstance(text, bytes) else str(text).encode() for text in texts)
        else:
            content = np.ascontiguousarray(value).tobytes()
        digest.update(f"{name}|{handle[name].dtype.str}|{handle[name].shape}|".encode() + content)
    return digest.hexdigest()


def _items(result: MP2Result) -> dict[str, Item]:
    """Every dataset of a result file."""
    molecule, reference = result.molecule, result.reference
    coeff, energy, occ = reference.mo_coeff, reference.mo_energy, reference.mo_occ
    if reference.nspin == 1:
        coeff, energy, occ = coeff[0], energy[0], occ[0]
    items = {
        "mol": Item(result.mole_json, "", "PySCF molecule, JSON"),
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
    for field in fields(result.options):
        value = getattr(result.options, field.name)
        if value is not None:
            items[f"dfmp2/input/options/{field.name}"] = Item(value, "", f"option --{field.name.replace('_', '-')}")
    for name, description in RUN_FIELDS.items():
        items[f"dfmp2/run/{name}"] = Item(getattr(result, name), "", description)
    places = (
        ("orbital", result.orbital_basis),
        ("scf_fitting", result.scf_fitting),
        ("mp2_fitting", result.mp2_fitting),
    )
    for place, basis in places:
        if basis is not None:
            items |= basis_items(place, basis)
    records = {name: getattr(result, name) for name in RECORDS if name != "stability"} | {
        "stability": reference.stability
    }
    for name, record in records.items():
        if record is not None:
            items |= record_items(name, record)
    for name, matrix in result.pairs.channels().items():
        items[f"dfmp2/pairs/{name}"] = Item(matrix, "hartree", "unscaled pair energies; their sum is the component")
    for name in ENERGIES:
        value = getattr(result, name)
        if value is not None:
            items[f"dfmp2/energies/{name}"] = Item(value, "hartree", name.replace("_", " "))
    return items


def _storable(value: Any) -> Any:
    """What h5py stores without pickling: numbers, arrays, UTF-8 text."""
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return np.array([_storable(item) for item in value], dtype=h5py.string_dtype())
    if isinstance(value, str):  # a file name need not be UTF-8; its other bytes are written as \udcNN
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _require_known(handle: h5py.File, path: str | Path) -> None:
    version, status = read_attribute(handle, "dfmp2_schema_version"), read_attribute(handle, "status")
    if "dfmp2_study_version" in handle.attrs:
        raise ResultFileError(f"{path}: a study with several results: dfmp2 show prints it, and with --run NAME one")
    if version is None:
        raise ResultFileError(f"{path}: not a dfmp2 result (no dfmp2_schema_version)")
    if not isinstance(version, int | np.integer) or int(version) != SCHEMA_VERSION:
        raise ResultFileError(
            f"{path}: schema version {version}, this dfmp2 reads version {SCHEMA_VERSION}: use the dfmp2 that wrote it"
        )
    if status != "complete":
        raise ResultFileError(f"{path}: status {status!r}, not 'complete': compute it again")


def _stored(handle: h5py.File, group: str) -> dict[str, Any]:
    """The datasets directly in a group, text decoded."""
    values = {}
    for name, item in handle[group].items():
        if isinstance(item, h5py.Dataset):
            values[name] = item.asstr()[()] if item.dtype.kind == "O" else item[()]
    return values


def _result(handle: h5py.File) -> MP2Result:
    given = _stored(handle, "dfmp2/input")
    options = Options(**option_values(_stored(handle, "dfmp2/input/options"), Options))
    molecule = Molecule(
        symbols=tuple(str(s) for s in given["symbols"]),
        coordinates=given["coordinates"],
        ghost=tuple(bool(g) for g in given["ghost"]),
        charge=int(given["charge"]),
        multiplicity=int(given["multiplicity"]),
        name=str(given["name"]),
        source=str(given["source"]),
        text=str(given["text"]),
    )
    records: dict[str, Any] = dict.fromkeys(RECORDS)
    for name, kind in RECORDS.items():
        if name in handle["dfmp2"] or name not in OPTIONAL_RECORDS:
            values = record_values(kind, _stored(handle, f"dfmp2/{name}"))
            records[name] = values if kind is Reference else kind(**values)
    sizes = records["sizes"]
    nspin = {"rhf": 1, "uhf": 2}[records["reference"]["kind"]]
    orbitals: dict[str, Any] = {
        name: _array(handle, f"scf/{name}", shape[0 if nspin == 2 else 1 :]).reshape(shape)
        for name, shape in {
            "mo_coeff": (nspin, sizes.nao, sizes.nmo),
            "mo_energy": (nspin, sizes.nmo),
            "mo_occ": (nspin, sizes.nmo),
        }.items()
    }
    reference = Reference(**records.pop("reference"), **orbitals, stability=records.pop("stability"))
    alpha, beta = sizes.nocc
    same = {"same_spin": alpha} if nspin == 1 else {"same_spin_alpha": alpha, "same_spin_beta": beta}
    pairs = PairEnergies(
        _array(handle, "dfmp2/pairs/opposite_spin", (alpha, beta)),
        tuple(_array(handle, f"dfmp2/pairs/{name}", (n, n)) for name, n in same.items()),
    )
    bases = {
        place: basis_from(_stored(handle, f"dfmp2/bases/{place}")) if place in handle["dfmp2/bases"] else None
        for place in ("orbital", "scf_fitting", "mp2_fitting")
    }
    if bases["orbital"] is None or bases["mp2_fitting"] is None:
        raise KeyError("dfmp2/bases")
    _require_consistent(molecule, bases["orbital"], sizes)
    run = _stored(handle, "dfmp2/run")
    choices: dict[str, Any] = {name: str(run[name]) for name in RUN_FIELDS}
    return MP2Result(
        molecule=molecule,
        options=options,
        orbital_basis=bases["orbital"],
        scf_fitting=bases["scf_fitting"],
        mp2_fitting=bases["mp2_fitting"],
        reference=reference,
        pairs=pairs,
        mole_json=handle["mol"].asstr()[()],
        **records,
        **choices,
    )


def _require_consistent(molecule: Molecule, orbital: BasisSet, sizes: Sizes) -> None:
    """Refuse orbital counts that cannot be those of the molecule: `compare` computes with them."""
    electrons = molecule.check_electrons(orbital.ecp_electrons)
    nocc = tuple(max(0, n - sizes.frozen_core) for n in electrons)
    nvir = tuple(sizes.nmo - n - sizes.frozen_virtual for n in electrons)
    if (sizes.nocc, sizes.nvir) != (nocc, nvir) or min(sizes.frozen_core, sizes.frozen_virtual, *nvir) < 0:
        raise ValueError("its numbers of orbitals do not belong to its molecule")


def _array(handle: h5py.File, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A float64 dataset of the expected shape (checked before it is read) that holds finite numbers."""
    item = handle[name]
    if item.shape != shape or item.dtype != np.float64:
        raise ValueError(f"{name} is {item.dtype} {item.shape}, expected float64 {shape}")
    values = np.asarray(item[()])
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinite numbers")
    return values
