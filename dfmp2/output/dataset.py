"""Data sets for machine learning: the results of a batch in one file.

    record = make_record(result, name="w0001")          energies, forces, dipole moment, ... of one molecule
    write_dataset(path, "h5", records)                   one file of all of them

Energies are those of the requested method, not only of plain MP2. Forces are the negative gradient.
In extxyz and ase.db units are those of ASE (eV, eV/angstrom, e angstrom); elsewhere they are atomic
and named in the file. Layouts are documented in the reference, "Files".
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dfmp2.errors import InputError, Option
from dfmp2.host.files import beside, move, settled, write_atomically
from dfmp2.molecule.elements import atomic_number
from dfmp2.mp2.identity import method
from dfmp2.mp2.result import MP2Result
from dfmp2.output.hdf5_datasets import Dataset, file_bytes, printed, storable, write_items
from dfmp2.output.json import numbers_of, to_csv
from dfmp2.units import ANGSTROM_PER_BOHR, EV_PER_HARTREE

EV_PER_ANGSTROM = EV_PER_HARTREE / ANGSTROM_PER_BOHR  # eV/angstrom in a force of 1 Eh/bohr
DATASET_VERSION = 1
SPLITS = ("train", "validation", "test")
SAME_POSITION = 1e-6  # bohr within which two positions are the same
ENERGIES = {  # of a record, Eh
    "energy": "total_energy",
    "scf_energy": "scf_total_energy",
    "mean_field_energy": "mean_field_energy",
    "correlation_energy": "correlation_energy",
    "same_spin_energy": "same_spin_correlation_energy",
    "opposite_spin_energy": "opposite_spin_correlation_energy",
    "dispersion_energy": "dispersion_energy",
}
UNITS = {
    **dict.fromkeys(ENERGIES, "hartree"),
    "coordinates": "bohr",
    "forces": "hartree/bohr",
    "dipole": "elementary charge * bohr",
    "charges": "elementary charge",
    "polarizability": "bohr^3",
    "charge": "elementary charge",
}
ABOUT = {
    "energy": "total energy of the method",
    "scf_energy": "energy of the SCF",
    "mean_field_energy": "energy that correlation and dispersion are added to",
    "correlation_energy": "correlation energy of the method",
    "same_spin_energy": "same-spin part of it, scaled as the method scales it",
    "opposite_spin_energy": "opposite-spin part of it",
    "dispersion_energy": "dispersion correction, contained in the total energy",
    "coordinates": "positions of the nuclei",
    "forces": "negative gradient of the total energy",
    "dipole": "dipole moment about the origin, of the method's relaxed density",
    "charges": "Mulliken charges of the relaxed density",
    "polarizability": "static dipole polarizability",
    "charge": "total charge",
    "multiplicity": "2S + 1",
}


@dataclass(frozen=True, slots=True)
class DataRecord:
    """The entry of one molecule in a data set, as plain numbers, strings and lists.

    Attributes
    ----------
    name, smiles : of the item; "" if no SMILES was given
    symbols, coordinates : atoms, (natom, 3) bohr
    charge, multiplicity : of the molecule
    energies : by the names of ENERGIES, Eh; None for energies that the method does not have
    forces, dipole, charges, polarizability : (natom, 3) Eh/bohr, (3,) e bohr, (natom,) e, (3, 3)
        bohr^3; None if not computed
    level, program : method with basis; program with version
    numbers : the row of the table of energies (`dfmp2.output.json`)
    method : what makes energies comparable (`dfmp2.mp2.identity.method`)
    unfit : why it does not belong in a data set unless the user wants it, "" if it does
    unsaid : what the record cannot say of the calculation, so that it belongs in no data set, "" if
        it says everything
    seconds : wall time of the calculation
    """

    name: str
    smiles: str
    symbols: Sequence[str]
    coordinates: Sequence[Sequence[float]]
    charge: int
    multiplicity: int
    energies: Mapping[str, float | None]
    forces: Sequence[Sequence[float]] | None
    dipole: Sequence[float] | None
    charges: Sequence[float] | None
    polarizability: Sequence[Sequence[float]] | None
    level: str
    program: str
    numbers: Mapping[str, Any]
    method: Mapping[str, str]
    unfit: str
    unsaid: str
    seconds: float

    @property
    def positions_hash(self) -> str:
        """Hash of atoms, charge, multiplicity and positions to SAME_POSITION, the same for two
        records of one geometry."""
        rounded = np.round(np.array(self.coordinates) / SAME_POSITION) + 0.0
        state = repr((list(self.symbols), self.charge, self.multiplicity))
        return hashlib.sha256(state.encode() + rounded.tobytes()).hexdigest()

    def split(self, shares: Sequence[float]) -> str:
        """The member of SPLITS it belongs to, by the hash of its SMILES or, failing that, its name,
        so that it does not depend on the other records.

        Parameters
        ----------
        shares : fraction of each of SPLITS
        """
        digest = hashlib.sha256((self.smiles or self.name).encode(errors="backslashreplace"))
        place = int.from_bytes(digest.digest()[:8], "big") / 2**64 * sum(shares)
        for name, share in zip(SPLITS, shares, strict=True):
            if place < share:
                return name
            place -= share
        return SPLITS[0]

    def to_dict(self) -> dict[str, Any]:
        """Its values by name, including the energies but not the table row."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        energies = values.pop("energies")
        del values["numbers"], values["method"], values["unfit"], values["unsaid"]
        return {**values, **energies}


def make_record(result: MP2Result, *, name: str = "", smiles: str = "") -> DataRecord:
    """The record of a result.

    Parameters
    ----------
    name : name of the item; "" for that of the molecule
    """
    molecule, properties = result.molecule, result.properties
    forces = dipole = charges = polarizability = None
    if result.gradient is not None:
        forces = (-result.gradient.total_gradient).tolist()
    if result.options.correlation.kind == "none" and result.reference.dipole is not None:
        dipole = result.reference.dipole.tolist()  # the energy is that of the SCF, too
    if properties is not None:
        dipole = properties.relaxed_dipole.tolist()
        if properties.mulliken_charges is not None:
            charges = properties.mulliken_charges[-1].tolist()
    if result.polarizability is not None:
        polarizability = result.polarizability.relaxed.tolist()
    return DataRecord(
        name=name or molecule.name,
        smiles=smiles,
        symbols=list(molecule.symbols),
        coordinates=molecule.coordinates.tolist(),
        charge=molecule.charge,
        multiplicity=molecule.multiplicity,
        energies={key: _finite(getattr(result, field)) for key, field in ENERGIES.items()},
        forces=forces,
        dipole=dipole,
        charges=charges,
        polarizability=polarizability,
        level=result.level,
        program=f"dfmp2 {result.provenance.version}",
        numbers=numbers_of(result),
        method=method(result),
        unfit=_unfit(result),
        unsaid=unsaid(result),
        seconds=result.timings.total,
    )


def _finite(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return value


def _unfit(result: MP2Result) -> str:
    """Why a result that a record describes does not belong in a data set, "" if it does."""
    if result.gradient_certificate is not None and not result.gradient_certificate.passed:
        return f"{result.gradient_certificate.owner} certificate fails"
    if result.polarizability is not None and not result.polarizability.passed:
        return "the certificate of the polarizability fails"
    if result.certificate is not None and not result.certificate.accepted:
        return "the precision error is above the tolerance"
    if result.check is not None and not result.check.passed:
        return "the check by PySCF fails"
    if result.options.solvent is not None:
        return "it is in a solvent"
    return ""


def unsaid(result: MP2Result) -> str:
    """What a record cannot say of a calculation, "" if it says everything."""
    if any(result.molecule.ghost):
        return "it has ghost atoms"
    if result.molecule.point_charges is not None:
        return "it has point charges around it"
    return ""


# --- formats --------------------------------------------------------------------------------------


def extxyz(records: Iterable[DataRecord]) -> bytes:
    """Frames of extended xyz, as ASE and MACE read them: eV, eV/angstrom, e angstrom."""
    return printed("".join(map(_frame, records)))


def _frame(record: DataRecord) -> str:
    positions = np.array(record.coordinates).reshape(-1, 3) * ANGSTROM_PER_BOHR
    columns, header = [positions], "species:S:1:pos:R:3"
    if record.forces is not None:
        columns.append(np.array(record.forces).reshape(-1, 3) * EV_PER_ANGSTROM)
        header += ":forces:R:3"
    if record.charges is not None:
        columns.append(np.array(record.charges).reshape(-1, 1))
        header += ":charges:R:1"
    keys = [f"Properties={header}"]
    for name, value in record.energies.items():
        if value is not None:
            keys.append(f"{name}={value * EV_PER_HARTREE!r}")
    if record.dipole is not None:
        keys.append(f'dipole="{_numbers(np.array(record.dipole) * ANGSTROM_PER_BOHR)}"')
    if record.polarizability is not None:
        keys.append(f'polarizability_bohr3="{_numbers(np.ravel(record.polarizability))}"')
    # MACE and fairchem read a `spin` that is 2S + 1; a reader of files cannot know which spin it is
    keys.append(
        f"charge={record.charge} multiplicity={record.multiplicity} spin={record.multiplicity}"
    )
    texts = {
        "name": record.name,
        "smiles": record.smiles,
        "method": record.level,
        "program": record.program,
    }
    keys += [f"{name}={_quoted(text)}" for name, text in texts.items() if text]
    keys.append('pbc="F F F"')
    rows = np.hstack(columns)
    lines = [f"{symbol} {_numbers(row)}" for symbol, row in zip(record.symbols, rows, strict=True)]
    return "\n".join([str(len(lines)), " ".join(keys), *lines, ""])


def _numbers(values: Any) -> str:
    return " ".join(repr(float(value)) for value in values)


def _quoted(text: str) -> str:
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def hdf5(records: Sequence[DataRecord]) -> bytes:
    """One group for molecules of the same atoms in the same order, charge and multiplicity, with
    one array per property whose first axis is the molecule."""
    groups: dict[Any, list[DataRecord]] = {}
    for record in records:
        key = (tuple(record.symbols), record.charge, record.multiplicity)
        groups.setdefault(key, []).append(record)

    def fill(handle: h5py.File) -> None:
        for number, members in enumerate(groups.values()):
            formula = str(members[0].numbers["formula"])
            write_items(handle.create_group(f"{number:06d}_{formula}"), _arrays(members), storable)
        handle.attrs.update(
            {
                "creator": "dfmp2",
                "dfmp2_dataset_version": DATASET_VERSION,
                "molecules": len(records),
                "status": "complete",
            }
        )

    return file_bytes(fill)


def _arrays(members: Sequence[DataRecord]) -> dict[str, Dataset]:
    """Datasets of molecules with the same atoms, by name; NaN where a molecule has no value."""
    first, natom = members[0], len(members[0].symbols)
    shapes = {
        "coordinates": (natom, 3),
        "forces": (natom, 3),
        "dipole": (3,),
        "charges": (natom,),
        "polarizability": (3, 3),
    }
    numbers = np.array([atomic_number(symbol) for symbol in first.symbols], dtype=np.int64)
    found = {
        "atomic_numbers": Dataset(numbers, "", "of the atoms, for all molecules"),
        "charge": Dataset(first.charge, UNITS["charge"], ABOUT["charge"]),
        "multiplicity": Dataset(first.multiplicity, "", ABOUT["multiplicity"]),
    }
    for name, shape in shapes.items():
        values = [getattr(member, name) for member in members]
        if any(value is not None for value in values):
            missing = np.full(shape, np.nan)
            stacked = np.stack([missing if value is None else np.array(value) for value in values])
            found[name] = Dataset(stacked.reshape(-1, *shape), UNITS[name], ABOUT[name])
    for name in ENERGIES:
        energies = [member.energies[name] for member in members]
        if any(energy is not None for energy in energies):
            filled = np.array([np.nan if energy is None else energy for energy in energies])
            found[name] = Dataset(filled, UNITS[name], ABOUT[name])
    for name in ("name", "smiles", "level", "program"):
        texts = tuple(str(getattr(member, name)) for member in members)
        found[name] = Dataset(texts, "", f"{name} of each molecule")
    return found


def json_text(records: Sequence[DataRecord]) -> bytes:
    """JSON with `molecules`, one object each, and the `units` of their values."""
    molecules = [record.to_dict() for record in records]
    text = json.dumps({"units": UNITS, "molecules": molecules}, indent=1, allow_nan=False)
    return printed(text + "\n")


def csv_text(records: Sequence[DataRecord]) -> bytes:
    """CSV with a row for each molecule; arrays as JSON."""
    rows = []
    for record in records:
        values = record.to_dict()
        for name, value in values.items():
            if isinstance(value, list | tuple):
                values[name] = json.dumps(value)
        rows.append(values)
    return to_csv(rows)


def parquet(records: Sequence[DataRecord]) -> bytes:
    """Parquet with a row for each molecule, arrays as flat lists in C order and units in the
    metadata of the columns.

    Raises
    ------
    InputError : pyarrow is not installed
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as absent:
        raise InputError(
            f"parquet needs pyarrow, which is not installed ({absent}): pip install "
            "'dfmp2[parquet]'"
        ) from absent
    rows = [record.to_dict() for record in records]
    number = pyarrow.float64()
    text = pyarrow.string()
    whole = pyarrow.int64()
    lists = ("coordinates", "forces", "dipole", "charges", "polarizability")
    kinds = {
        **dict.fromkeys(("name", "smiles", "level", "program"), text),
        "symbols": pyarrow.list_(text),
        **dict.fromkeys(("charge", "multiplicity"), whole),
        **dict.fromkeys(lists, pyarrow.list_(number)),
    }
    columns, schema = [], []
    for name in rows[0]:
        kind = kinds.get(name, number)
        values = [row[name] for row in rows]
        if name in lists:
            values = [None if value is None else np.ravel(value).tolist() for value in values]
        if kind == text:
            values = [printed(value).decode() for value in values]
        columns.append(pyarrow.array(values, kind))
        about = {"units": UNITS.get(name, ""), "description": ABOUT.get(name, "")}
        schema.append(pyarrow.field(name, kind, metadata=about))
    stream = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.Table.from_arrays(columns, schema=pyarrow.schema(schema)), stream
    )
    return stream.getvalue()


def ase_database(path: Path, records: Sequence[DataRecord]) -> None:
    """Write an SQLite database of ASE: eV, eV/angstrom, e angstrom.

    Raises
    ------
    InputError : ASE is not installed
    """
    try:
        from ase import Atoms
        from ase.calculators.singlepoint import SinglePointCalculator
        from ase.db import connect
    except ImportError as absent:
        raise InputError(
            f"ase.db needs ASE, which is not installed ({absent}): pip install 'dfmp2[ase]'"
        ) from absent
    with connect(str(path), type="db", append=False) as database:
        for record in records:
            atoms = Atoms(list(record.symbols), np.array(record.coordinates) * ANGSTROM_PER_BOHR)
            values: dict[str, Any] = {}
            if record.energies["energy"] is not None:
                values["energy"] = record.energies["energy"] * EV_PER_HARTREE
            if record.forces is not None:
                values["forces"] = np.array(record.forces) * EV_PER_ANGSTROM
            if record.dipole is not None:
                values["dipole"] = np.array(record.dipole) * ANGSTROM_PER_BOHR
            if record.charges is not None:
                values["charges"] = np.array(record.charges)
            atoms.calc = SinglePointCalculator(atoms, **values)
            data = {**record.to_dict(), "units": UNITS}
            database.write(
                atoms,
                data=data,
                item=f"item {record.name}",  # ASE rejects strings that look like numbers
                level=f"level {record.level}",
                # `row.charge` of ASE is the sum of the initial charges
                total_charge=record.charge,
                multiplicity=record.multiplicity,
            )


Writer = Callable[[Sequence[DataRecord]], bytes]
WRITERS: Mapping[str, tuple[str, Writer | None]] = {  # name -> file suffix, writer
    "extxyz": (".extxyz", extxyz),
    "h5": (".h5", hdf5),
    "parquet": (".parquet", parquet),
    "csv": (".csv", csv_text),
    "json": (".json", json_text),
    "ase.db": (".db", None),
}


def write_dataset(
    path: Path, to: str, records: Sequence[DataRecord], *, overwrite: bool = False
) -> None:
    """Write a data set, all or nothing.

    Parameters
    ----------
    to : a name in WRITERS

    Raises
    ------
    InputError : unknown format, missing package, or no record
    ResultExists : the file exists and `overwrite` is false
    ResourceError : it cannot be written
    """
    if to not in WRITERS:
        raise InputError(
            Option("to", to), f": unknown format; expected one of {', '.join(WRITERS)}"
        )
    if not records:
        raise InputError(f"{path}: no molecule is left for it: see what was left out, and why")
    ending, write = WRITERS[to]
    if write is not None:
        write_atomically(path, write(records), overwrite=overwrite)
        return
    part = beside(path)
    part = part.with_name(part.name + ending)
    with settled(path):
        try:
            ase_database(part, records)
            with open(part, "rb") as stream:
                os.fsync(stream.fileno())
            move(part, path, overwrite=overwrite)
        finally:
            part.unlink(missing_ok=True)
            part.with_name(f"{part.name}.lock").unlink(missing_ok=True)
