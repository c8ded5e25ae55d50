"""Result files: `write(result, path)`, and `read(path)`, which gives back what was written.

    /mol, /scf/{e_tot, mo_energy, mo_occ, mo_coeff}   PySCF's checkpoint layout, loadable by PySCF
    /dfmp2/input/...                                  molecule and options
    /dfmp2/bases/{orbital, scf_fitting, mp2_fitting}  exponents, origin, hashes
    /dfmp2/RECORD/FIELD                               the records of the result and of its reference (RECORDS)
    /dfmp2/run/...                                    backend, precision and frozen core as they really were
    /dfmp2/pairs/...                                  unscaled pair energies
    /dfmp2/energies/...                               totals, derived from the above for other readers

Every dataset carries its unit and description; those of a record are the metadata of its fields
(`dfmp2.units.quantity`). Changing a name, type or unit raises SCHEMA_VERSION. A file is made in
memory, then written beside the target, flushed and renamed: there is never half a result. It
carries a hash of its content.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, ResultFileError
from dfmp2.errors.messages import Command, Option, Placeholder
from dfmp2.host.files import write_atomically
from dfmp2.molecule.basis import BasisSet, ElementBasis, nested_tuples
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import (
    NO_PAIRS,
    OF_MP2,
    OF_SCALED_MP2,
    OF_THE_METHOD,
    MP2Result,
    PairEnergies,
)
from dfmp2.options import ALL, KEPT, Options
from dfmp2.output.kept import RECORDS as RECORDS_PATH
from dfmp2.output.kept import pack_records, pair_sums, unpack
from dfmp2.output.safe_hdf5 import (
    content,
    datasets,
    open_checked,
    read_attribute,
    read_contents,
)
from dfmp2.planning.sizes import Sizes
from dfmp2.scf.reference import Reference, StartOrbitals

SCHEMA_VERSION = 1
PACKED_VERSION = 2  # its records are in one dataset (`dfmp2.output.kept`)
READABLE = (SCHEMA_VERSION, PACKED_VERSION)
COMPACT = ("v108", "v108")  # h5py's `libver` of packed files: HDF5 1.8, of 2008
PAIR_SUMS = "dfmp2/pair_sums"
# attribute of a file of `dfmp2 prepare` (dfmp2.output.prepared)
PREPARED = "dfmp2_prepared_version"

ENERGIES = (
    "scf_total_energy",
    "functional_energy",
    "dispersion_energy",
    *OF_THE_METHOD,
    "mp2_singles_energy",
    "rpa_correlation_energy",
    *OF_MP2,
    *OF_SCALED_MP2,
    "scaled_mp2_correlation_energy",
)
RUN_FIELDS = {
    "backend": "backend that evaluated the pair energies",
    "backend_reason": "why it was chosen",
    "precision": "fp64 or mixed, as it really ran",
    "frozen_core_note": "how the frozen core was counted",
}
BASES = {
    "orbital": "orbital_basis",
    "scf_fitting": "scf_fitting",
    "mp2_fitting": "mp2_fitting",
}  # group -> field
ORBITALS = ("mo_coeff", "mo_energy", "mo_occ")  # of the reference; they lie under /scf
Groups = Mapping[str, Mapping[str, Any]]  # datasets by the path of their group, and their name
HIGHEST_MOMENTUM = 12  # of a shell; what PySCF's integral library can take


def records_of(kind: type) -> dict[str, type]:
    """Fields of a dataclass that are records, that is dataclasses whose fields have a unit, with
    their types."""
    return {
        name: part
        for name, hint in get_type_hints(kind).items()
        for part in (hint, *get_args(hint))
        if is_dataclass(part)
        and isinstance(part, type)
        and all("units" in field.metadata for field in fields(part))
    }


OF_REFERENCE = tuple(records_of(Reference))  # stability, solutions
RECORDS = records_of(MP2Result) | records_of(Reference)


class Dataset(NamedTuple):
    """A dataset: its value, unit and description."""

    value: Any
    units: str
    description: str


# --- files ----------------------------------------------------------------------------------------


def write(
    result: MP2Result, path: str | Path, *, overwrite: bool = False, packed: bool = False
) -> None:
    """Write a result, all or nothing.

    Parameters
    ----------
    packed : with all but the arrays in one dataset (schema 2), as a result is in any case that
        does not keep everything
    overwrite : replace a file that is there, at once and as a whole

    Raises
    ------
    ResultExists : the file exists and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """
    write_atomically(Path(path), to_bytes(result, packed=packed), overwrite=overwrite)


def to_bytes(result: MP2Result, *, packed: bool = False) -> bytes:
    """The result file as bytes; as `write`."""
    if packed or result.kept != ALL:
        return file_bytes(lambda handle: store(handle, result, packed=True), COMPACT)
    return file_bytes(lambda handle: store(handle, result))


def file_bytes(fill: Callable[[h5py.File], None], version: tuple[str, str] | None = None) -> bytes:
    """An HDF5 file that `fill` puts something into, as bytes; `version` is h5py's `libver`."""
    # HDF5 takes a name for a file even in memory, and refuses one that is open.
    with h5py.File(
        f"{uuid.uuid4().hex}.h5", "w", driver="core", backing_store=False, libver=version
    ) as handle:
        fill(handle)
        return image(handle)


def image(handle: h5py.File) -> bytes:
    """A file in memory as bytes."""
    handle.flush()
    return bytes(handle.id.get_file_image())


def read(path: str | Path, *, verify: bool = True) -> MP2Result:
    """The result in a file.

    Parameters
    ----------
    path : str or Path
        The result file.
    verify : bool
        Check the stored hash against the content, which makes up about a third of the time.

    Raises
    ------
    InputError : no such file
    ResultFileError : foreign, damaged, incomplete, of an unknown version, or changed since it was
        written
    """
    with open_checked(path, walk=False) as handle:
        _require_known(handle, path)
        contents = read_contents(handle)
        result = load(contents, path)
        if verify:
            _require_hash(contents, path, read_attribute(handle, "content_sha256"))
    return result


def verify(path: str | Path) -> str:
    """Check the stored hash of a result file against its content and return it.

    Raises
    ------
    InputError, ResultFileError : as for `read`, or the two differ
    """
    with open_checked(path, walk=False) as handle:
        _require_known(handle, path)
        contents = read_contents(handle)
        return _require_hash(contents, path, read_attribute(handle, "content_sha256"))


def check_hash(group: h5py.Group, path: str | Path, expected: object) -> str:
    """Check the hash that a group should have and return it; `path` names the group in the error.

    Raises
    ------
    ResultFileError : the content was changed since it was written
    """
    return _require_hash({name: content(item) for name, item in datasets(group)}, path, expected)


def _require_hash(contents: Mapping[str, NDArray[Any]], path: str | Path, expected: object) -> str:
    found = _hash(contents)
    if expected != found:
        raise ResultFileError(
            f"{path}: the content does not have its stored hash ({str(expected)[:12]}..., found "
            f"{found[:12]}...): compute it again"
        )
    return found


def content_hash(group: h5py.Group, leave_out: Collection[str] = ()) -> str:
    """SHA-256 over names, types, shapes and bytes of all datasets but some, in the order of their
    names."""
    return _hash({name: content(item) for name, item in datasets(group) if name not in leave_out})


def _hash(values: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(values):
        value = values[name]
        if value.dtype.kind == "O":
            held = b"\0".join(
                text if isinstance(text, bytes) else str(text).encode() for text in value.flat
            )
        else:
            held = value.tobytes()
        digest.update(f"{name}|{value.dtype.str}|{value.shape}|".encode() + held)
    return digest.hexdigest()


# --- a result in a group --------------------------------------------------------------------------


def store(group: h5py.Group, result: MP2Result, *, packed: bool = False) -> None:
    """Put a result into an empty group: the root of a file of its own, or one of several in a
    study."""
    packed = packed or result.kept != ALL
    texts = {
        "creator": "dfmp2",
        "creator_version": result.provenance.version,
        "file_time": result.provenance.created,
        "HDF5_Version": h5py.version.hdf5_version,
        "h5py_version": h5py.version.version,
        "default": "dfmp2",
    }
    version = PACKED_VERSION if packed else SCHEMA_VERSION
    convert: Callable[[Any], Any] = storable
    if result.kept != ALL:
        # Text of variable length takes a heap of 4 kB.
        convert = _without_heap
        texts = {name: _without_heap(text) for name, text in texts.items()}
    _set_texts(group.id, texts | {"dfmp2_schema_version": version})
    items = calculation_items(result)
    for name, description in RUN_FIELDS.items():
        items[f"dfmp2/run/{name}"] = Dataset(getattr(result, name), "", description)
    if packed:
        items["dfmp2/run/kept"] = Dataset(result.kept, "", "all, properties or energies")
    for name in RECORDS:
        if name not in ("reference", *OF_REFERENCE) and getattr(result, name) is not None:
            items |= record_items(name, getattr(result, name))
    for name, matrix in result.pairs.channels().items():
        items[f"dfmp2/pairs/{name}"] = Dataset(
            matrix, "hartree", "unscaled pair energies; their sum is the component"
        )
    for name in ENERGIES:
        value = getattr(result, name)
        plain = result.options.correlation.plain and result.options.functional is None
        if value is not None and (math.isfinite(value) or plain):
            items[f"dfmp2/energies/{name}"] = Dataset(value, "hartree", name.replace("_", " "))
    if result.pairs.summed:
        sums = (result.pairs.opposite_spin_energy, result.pairs.same_spin_energy)
        items[PAIR_SUMS] = Dataset(sums, "hartree", "unscaled opposite-spin, same-spin energy")
    label = None
    if packed:
        items = _packed(items, result.kept)
        label = _without_heap
    # Of fixed length, unlike the texts above: `safe_hdf5.read_attribute` says why.
    group.attrs["content_sha256"] = np.bytes_(_hash(write_items(group, items, convert, label)))
    group.attrs["status"] = np.bytes_("complete")


def _packed(items: Mapping[str, Dataset], kept: str) -> dict[str, Dataset]:
    """Datasets of a packed file: those that stay alone, and the records that hold the others."""
    values = {}
    for path, item in items.items():
        if path == "scf/mo_coeff" and kept != ALL:
            continue
        values[path] = item.value
        if isinstance(item.value, str):
            values[path] = printed(item.value).decode()
    apart, records = pack_records(values, kept)
    about = "numbers and texts by path: JSON, compressed by zlib"
    alone = {path: items[path] for path in apart}
    if kept != ALL:
        alone = {path: item._replace(description="") for path, item in alone.items()}
    return alone | {RECORDS_PATH: Dataset(records, "", about)}


def _without_heap(value: Any) -> Any:
    """The same as `storable`, with texts of fixed length."""
    if isinstance(value, str):
        return np.bytes_(printed(value))
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return np.array([printed(item) for item in value])
    return value


def load_group(group: h5py.Group, path: str | Path) -> MP2Result:
    """The result in a group that `store` filled; `path` names it in errors, which are those of
    `read`."""
    _require_known(group, path)
    return load(read_contents(group), path)


def load(contents: Mapping[str, NDArray[Any]], path: str | Path) -> MP2Result:
    """The result in the contents of a group that `store` filled; as `load_group`."""
    groups = by_group(contents)
    try:
        records = read_records(groups, RECORDS)
        calculation = read_calculation(groups, records)
        alpha, beta = records["sizes"].nocc
        unrestricted = calculation["reference"].nspin == 2
        if unrestricted:
            same = {"same_spin_alpha": alpha, "same_spin_beta": beta}
        else:
            same = {"same_spin": alpha}
        pairs = NO_PAIRS
        said = stored(groups, "dfmp2/run")
        kept = str(said.get("kept", ALL))
        if kept not in KEPT:
            raise InputError(f"it keeps {kept!r}, expected one of {', '.join(KEPT)}")
        if "pair_sums" in groups.get("dfmp2", {}):
            opposite, same_sum = map(float, groups["dfmp2"]["pair_sums"])
            pairs = pair_sums(opposite, same_sum)
        elif calculation["options"].correlation.kind == "pairs":
            pairs = PairEnergies(
                numbers(groups, "dfmp2/pairs", "opposite_spin", (alpha, beta)),
                tuple(
                    numbers(groups, "dfmp2/pairs", name, (nocc, nocc))
                    for name, nocc in same.items()
                ),
            )
        elif (
            calculation["options"].correlation.kind != "none" and records.get("quadrature") is None
        ):
            raise InputError("neither pair energies nor a quadrature")
        run: dict[str, Any] = {name: str(said[name]) for name in RUN_FIELDS}
        return MP2Result(pairs=pairs, kept=kept, **calculation, **records, **run)
    except InputError as error:  # a molecule or options that could not have been run
        raise ResultFileError(f"{path}: damaged file ({error}): compute it again") from error


def _require_known(group: h5py.Group, path: str | Path) -> None:
    """Refuse what is no complete result of a known version."""
    if "dfmp2_table_version" in group.attrs:
        raise ResultFileError(
            f"{path}: a table, as dfmp2 validate and dfmp2 batch collect write it: read its "
            "columns with h5py; dfmp2 show prints results"
        )
    version, status = read_attribute(group, "dfmp2_schema_version"), read_attribute(group, "status")
    if "dfmp2_study_version" in group.attrs:
        raise ResultFileError(
            f"{path}: a study with several results: dfmp2 show prints it, and with ",
            Option("run", Placeholder("NAME")),
            " one; dfmp2.read_study reads it",
        )
    if PREPARED in group.attrs:
        raise ResultFileError(
            f"{path}: prepared, without energies yet: ",
            Command("energy"),
            " ",
            Option("prepared", path, flag="from"),
            " computes them",
        )
    if version is None:
        raise ResultFileError(f"{path}: not a dfmp2 result (no dfmp2_schema_version)")
    if not isinstance(version, int | np.integer) or int(version) not in READABLE:
        raise ResultFileError(
            f"{path}: schema version {version}, this dfmp2 reads versions "
            f"{' and '.join(map(str, READABLE))}: use the dfmp2 that wrote it"
        )
    if status != "complete":
        raise ResultFileError(f"{path}: status {status!r}, not 'complete': compute it again")


# --- start orbitals -------------------------------------------------------------------------------


def read_start_orbitals(path: str | Path) -> StartOrbitals:
    """Orbitals from `/scf` of a result or of a PySCF checkpoint.

    PySCF's own loader evaluates the text under `/mol`; here it is parsed as JSON and only the
    nuclear charges are taken from it, to recognise orbitals of another molecule.

    Raises
    ------
    InputError : the file lacks them, or they do not fit together
    ResultFileError : the file is damaged or holds what no checkpoint holds
    """
    with open_checked(path) as handle:
        coeff, occ = (
            _real_array(handle, "scf/mo_coeff", path),
            _real_array(handle, "scf/mo_occ", path),
        )
        if coeff.ndim == 2:
            coeff, occ = coeff[None], occ[None]
        fits = (
            coeff.ndim == 3
            and occ.ndim == 2
            and len(coeff) == len(occ) <= 2
            and coeff.shape[2] == occ.shape[1]
        )
        occupied = ((occ >= 0) & (occ <= 2)).all() and occ.any()  # false for NaN
        if not (fits and occupied and np.isfinite(coeff).all()):
            raise InputError(
                f"scf/mo_coeff {coeff.shape} and scf/mo_occ {occ.shape} are no RHF or UHF orbitals",
                file=str(path),
            )
        return StartOrbitals(coeff, occ, _charges(handle), str(path))


def start_of(options: Options) -> StartOrbitals | None:
    """The start orbitals that the options name, None for none; raises as `read_start_orbitals`."""
    if options.scf_from is None:
        return None
    return read_start_orbitals(options.scf_from)


def _real_array(handle: h5py.File, name: str, path: str | Path) -> NDArray[np.float64]:
    item, pair = (
        handle.get(name),
        handle.get(f"{name}__from_list__"),
    )  # so PySCF stores a pair of arrays
    if isinstance(pair, h5py.Group) and not isinstance(item, h5py.Dataset):
        return np.stack([np.asarray(pair[key], dtype=np.float64) for key in sorted(pair)])
    if not isinstance(item, h5py.Dataset) or item.dtype.kind != "f":
        raise InputError(
            f"no dataset {name} of real numbers: name a PySCF chkfile of a converged RHF or UHF, "
            "or a dfmp2 result",
            file=str(path),
        )
    return np.asarray(item[()], dtype=np.float64)


def _charges(handle: h5py.File) -> tuple[int, ...] | None:
    """Nuclear charges of the stored molecule, None where the file does not say."""
    try:
        return tuple(int(atom[0]) for atom in json.loads(handle["mol"][()])["_atm"])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


# --- what results and prepared files have in common -----------------------------------------------


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
        about = f"option --{field.name.replace('_', '-')}"
        given[f"options/{field.name}"] = Dataset(getattr(source.options, field.name), "", about)
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
    """The records that are there, by name; of the reference its plain values only.

    Raises
    ------
    KeyError, TypeError, ValueError : a field is missing or of another type
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
    """Molecule, options, bases, reference and PySCF's molecule, by the names of the fields of a
    result.

    Parameters
    ----------
    records : as `read_records` found them; "reference" and its parts are taken out, "sizes" is
        compared with

    Raises
    ------
    KeyError, TypeError, ValueError, InputError : something is missing, damaged, or does not belong
        together
    """
    bases = {
        field: basis_from(stored(groups, f"dfmp2/bases/{name}"))
        if f"dfmp2/bases/{name}" in groups
        else None
        for name, field in BASES.items()
    }
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
    """The reference that `reference_items` stored.

    Parameters
    ----------
    groups : mapping
        Datasets by group.
    records : dict
        As `read_records` found them; "reference" and its parts are taken out.
    shapes : mapping
        Shapes of the arrays under /scf for one spin. A file that does not keep the coefficients
        gives empty ones.

    Raises
    ------
    KeyError, TypeError, ValueError
        Something is missing, damaged, or does not belong together.
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
    """Refuse orbital counts that cannot be those of the molecule: `compare` computes with them."""
    electrons = molecule.check_electrons(orbital.ecp_electrons)
    nocc = tuple(max(0, n - sizes.frozen_core) for n in electrons)
    nvir = tuple(sizes.nmo - n - sizes.frozen_virtual for n in electrons)
    if (sizes.nocc, sizes.nvir) != (nocc, nvir) or min(
        sizes.frozen_core, sizes.frozen_virtual, *nvir
    ) < 0:
        raise ValueError("its numbers of orbitals do not belong to its molecule")


# --- records --------------------------------------------------------------------------------------


def record_items(name: str, record: Any) -> dict[str, Dataset]:
    """Datasets of a record, by path; fields that are None, or lie elsewhere, are left out."""
    return {
        f"dfmp2/{name}/{field.name}": Dataset(
            value, field.metadata["units"], field.metadata["description"]
        )
        for field in fields(record)
        if field.name not in (*ORBITALS, *OF_REFERENCE)
        and (value := getattr(record, field.name)) is not None
    }


def field_values(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments of a dataclass from what was read, each turned into the type of its
    field.

    What is not stored is left to the default of the field, as in files older than the field.

    Raises
    ------
    TypeError, ValueError, OverflowError : a value is of another type
    """
    return {
        name: convert(stored[name])
        for name, convert in _converters(kind)
        if stored.get(name) is not None
    }


@cache
def _converters(kind: type[Any]) -> list[tuple[str, Callable[[Any], Any]]]:
    """Fields of a dataclass with what turns a stored value into their type."""
    hints = get_type_hints(kind)
    return [(field.name, _converter(hints[field.name])) for field in fields(kind)]


def _converter(hint: Any) -> Callable[[Any], Any]:
    """What turns a stored value into an annotated type: text or a number, a tuple of either, or an
    array."""
    kind = next(
        (kind for kind in (hint, *get_args(hint)) if kind in (bool, int, float, str)), np.asarray
    )
    if get_origin(hint) is tuple:
        return lambda value: tuple(kind(x) for x in value)
    return kind


# --- basis sets -----------------------------------------------------------------------------------


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
    """A basis from its datasets.

    Raises
    ------
    KeyError, TypeError, ValueError : it is damaged, or its numbers do not have their hash
    """
    elements, hashes = _elements(stored["elements"])
    if hashes != tuple(stored["sha256"]):
        raise ValueError("the hash of a basis does not belong to its numbers")
    errors = [
        float(error) for error in stored.get("fitting_error", ())
    ]  # none in files of dfmp2 0.1
    if not all(map(math.isfinite, errors)) or len(errors) not in (0, len(elements)):
        raise ValueError("the fitting errors of a basis do not belong to its elements")
    return BasisSet(
        str(stored["role"]),
        str(stored["name"]),
        dict(elements),
        dict(zip(elements, errors, strict=False)),
    )


@lru_cache(256)  # the results of a batch have the same bases
def _elements(text: str) -> tuple[dict[str, ElementBasis], tuple[str, ...]]:
    """Elements of a basis from its JSON, and their hashes; ValueError where they are no numbers."""
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
    """Refuse a basis that is not texts and numbers in their places: it goes to PySCF, whose parsers
    take text."""
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


# --- datasets -------------------------------------------------------------------------------------


def write_items(
    group: h5py.Group,
    items: Mapping[str, Dataset],
    convert: Callable[[Any], Any],
    label: Callable[[str], Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """Store datasets with their units and descriptions, and return what was stored by name.

    Parameters
    ----------
    convert : turns a value into what h5py takes
    label : the same for units and descriptions, where it differs
    """
    made, label = dict[str, NDArray[Any]](), label or convert
    for name, item in items.items():
        value = convert(item.value)
        made[name] = value = np.asarray(value, TEXT if isinstance(value, str) else None, order="C")
        if value.shape:
            space = h5py.h5s.create_simple(value.shape)
        else:
            space = SCALAR
        stored_as, held_as = _types(value.dtype, str(value.dtype.metadata))
        dataset = h5py.h5d.create(group.id, name.encode(), stored_as, space, PLAIN, WITH_GROUPS)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, value, held_as)
        texts = {"units": label(item.units)}
        if item.description:
            texts["description"] = label(item.description)
        _set_texts(dataset, texts)
    return made


# A result has 150 datasets and 300 attributes. What `group.create_dataset` and `dataset.attrs` make
# anew for each is made once here: it takes two thirds of their time.
TEXT, SCALAR = h5py.string_dtype(), h5py.h5s.create(h5py.h5s.SCALAR)
PLAIN, WITH_GROUPS = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5p.create(h5py.h5p.LINK_CREATE)
PLAIN.set_obj_track_times(False)
WITH_GROUPS.set_create_intermediate_group(True)


@cache
def _types(kind: np.dtype[Any], metadata: str) -> tuple[h5py.h5t.TypeID, h5py.h5t.TypeID]:
    """In the file and in memory; types that differ in their `metadata` alone, the encoding of text,
    equal for NumPy."""
    return h5py.h5t.py_create(kind, logical=True), h5py.h5t.py_create(kind)


@lru_cache(1000)
def _words(text: str) -> NDArray[Any]:
    return np.array(text, TEXT)


def _set_texts(holder: h5py.h5g.GroupID | h5py.h5d.DatasetID, texts: Mapping[str, Any]) -> None:
    """Give a group or dataset attributes that it does not have yet, of variable length but where a
    text is an array."""
    for name, text in texts.items():
        if isinstance(text, str):
            words = _words(text)
        else:
            words = np.asarray(text)
        stored_as, held_as = _types(words.dtype, str(words.dtype.metadata))
        h5py.h5a.create(holder, name.encode(), stored_as, SCALAR).write(words, held_as)


def storable(value: Any) -> Any:
    """What h5py stores without pickling: numbers, arrays, UTF-8 text of variable length."""
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return np.array([printed(item) for item in value], dtype=h5py.string_dtype())
    if isinstance(value, str):
        return printed(value).decode()
    return value


def printed(text: str) -> bytes:
    """Text as UTF-8; a file name need not be UTF-8, and its other bytes are written as \\udcNN."""
    return text.encode("utf-8", "backslashreplace")


def by_group(contents: Mapping[str, NDArray[Any]]) -> Groups:
    """Datasets, and what the records of a packed file hold, by the path of their group, "" for the
    root, and their names in it."""
    values: dict[str, Any] = dict(contents)
    if RECORDS_PATH in values:
        values |= unpack(values.pop(RECORDS_PATH))
    groups: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        group, _, name = path.rpartition("/")
        groups.setdefault(group, {})[name] = value
    return groups


def stored(groups: Groups, name: str) -> dict[str, Any]:
    """The datasets directly in a group, text decoded."""
    return {
        key: _value(value) if isinstance(value, np.ndarray) else value
        for key, value in groups[name].items()
    }


def _value(found: NDArray[Any]) -> Any:
    """An array, or a number or text where it has no axes."""
    if found.dtype.kind in "OS":
        texts = [text.decode() for text in found.flat]
        if found.ndim:
            return np.array(texts, dtype=object).reshape(found.shape)
        return texts[0]
    return found[()]


def numbers(groups: Groups, group: str, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A float64 dataset of a group that has the expected shape and holds finite numbers."""
    values = np.asarray(groups[group][name])
    if values.shape != shape or values.dtype != np.float64:
        where = f"{group}/{name}"
        raise ValueError(f"{where} is {values.dtype} {values.shape}, expected float64 {shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{group}/{name} holds NaN or infinite numbers")
    return values
