"""Result files: `write(result, path)` stores a result, and `read(path)` returns it.

    /mol, /scf/{e_tot, mo_energy, mo_occ, mo_coeff}   PySCF's checkpoint layout, loadable by PySCF
    /dfmp2/input/...                                  molecule and options
    /dfmp2/bases/{orbital, scf_fitting, mp2_fitting}  exponents, origin, hashes
    /dfmp2/RECORD/FIELD                               the records of the result and of its reference (RECORDS)
    /dfmp2/run/...                                    backend, precision and frozen core actually used
    /dfmp2/pairs/...                                  unscaled pair energies
    /dfmp2/energies/...                               totals, derived from the above for other readers

Every dataset carries its unit and description; those of a record are the metadata of its fields
(`dfmp2.units.quantity`). Changing a name, type or unit raises SCHEMA_VERSION. A file is built in
memory, written beside the target, flushed and renamed, so that a partial result never exists. It
contains a hash of its content.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import Command, InputError, Option, ResultFileError
from dfmp2.errors.messages import Placeholder
from dfmp2.host.files import write_atomically
from dfmp2.mp2.pairs import NO_PAIRS, PairEnergies
from dfmp2.mp2.result import OF_MP2, OF_SCALED_MP2, OF_THE_METHOD, MP2Result
from dfmp2.options import ALL, KEPT, Options
from dfmp2.output.hdf5_datasets import (
    RECORDS_PATH,
    Dataset,
    by_group,
    file_bytes,
    hash_of,
    numbers,
    open_checked,
    pack_records,
    pair_sums,
    printed,
    read_attribute,
    read_contents,
    require_harmless,
    require_hash,
    set_texts,
    storable,
    stored,
    stored_hash,
    without_heap,
    write_items,
)
from dfmp2.output.stored_calculation import (
    OF_REFERENCE,
    calculation_items,
    read_calculation,
    read_records,
    record_items,
    records_of,
)
from dfmp2.scf.reference import Reference, StartOrbitals

SCHEMA_VERSION = 1
PACKED_VERSION = 2  # with all records in one dataset (`dfmp2.output.hdf5_datasets`)
READABLE = (SCHEMA_VERSION, PACKED_VERSION)
COMPACT = ("v108", "v108")  # h5py's `libver` for packed files: HDF5 1.8 (2008)
PAIR_SUMS = "dfmp2/pair_sums"
# attribute of files made by `dfmp2 prepare` (dfmp2.output.prepared)
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


RECORDS = records_of(MP2Result) | records_of(Reference)


# --- files ----------------------------------------------------------------------------------------


def write(
    result: MP2Result, path: str | Path, *, overwrite: bool = False, packed: bool = False
) -> None:
    """Write a result to a file, completely or not at all.

    Parameters
    ----------
    packed : store everything but the arrays in one dataset (schema 2); always done for a result
        that does not keep everything
    overwrite : replace an existing file atomically

    Raises
    ------
    ResultExists : the file exists and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """
    write_atomically(Path(path), to_bytes(result, packed=packed), overwrite=overwrite)


def to_bytes(result: MP2Result, *, packed: bool = False) -> bytes:
    """The result file that `write` would store, as bytes."""
    if packed or result.kept != ALL:
        return file_bytes(lambda handle: store(handle, result, packed=True), COMPACT)
    return file_bytes(lambda handle: store(handle, result))


def read(path: str | Path, *, verify: bool = True) -> MP2Result:
    """The result stored in a file.

    Parameters
    ----------
    path : str or Path
        The result file.
    verify : bool
        Check the stored hash against the content, which takes about a third of the time.

    Raises
    ------
    InputError : no such file
    ResultFileError : not a result file, damaged, incomplete, of an unknown version, or changed
        since it was written
    """
    with open_checked(path) as handle:
        return load_group(handle, path, verify=verify)


def read_verified(path: str | Path) -> tuple[MP2Result, str]:
    """The result stored in a file, and its content hash, which is checked first; raises as
    `read`."""
    with open_checked(path) as handle:
        _require_known(handle, path)
        contents = read_contents(handle)
        content_hash = require_hash(contents, path, stored_hash(handle))
        return load(contents, path), content_hash


# --- a result in a group --------------------------------------------------------------------------


def store(group: h5py.Group, result: MP2Result, *, packed: bool = False) -> None:
    """Put a result into an empty group: the root of its own file, or one of several groups of a
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
        # Variable-length text takes a heap of 4 kB.
        convert = without_heap
        texts = {name: without_heap(text) for name, text in texts.items()}
    set_texts(group.id, texts | {"dfmp2_schema_version": version})
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
        label = without_heap
    # Fixed-length, unlike the texts above, for the reason given in `read_attribute`.
    group.attrs["content_sha256"] = np.bytes_(hash_of(write_items(group, items, convert, label)))
    group.attrs["status"] = np.bytes_("complete")


def _packed(items: Mapping[str, Dataset], kept: str) -> dict[str, Dataset]:
    """Datasets of a packed file: those that stay separate, and the records that hold the others."""
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


def load_group(
    group: h5py.Group,
    path: str | Path,
    *,
    verify: bool,
    contents: Mapping[str, NDArray[Any]] | None = None,
) -> MP2Result:
    """The result in a group written by `store`, with its hash checked if `verify` is true; raises
    as `read`, with `path` in the messages. `contents` are those of the group if they were read."""
    _require_known(group, path)
    if contents is None:
        contents = read_contents(group)
    result = load(contents, path)
    if verify:
        require_hash(contents, path, stored_hash(group))
    return result


def load(contents: Mapping[str, NDArray[Any]], path: str | Path) -> MP2Result:
    """The result in the contents of a group written by `store`; raises as `load_group`."""
    groups = by_group(contents)
    try:
        records = read_records(groups, RECORDS)
        calculation = read_calculation(groups, records)
        alpha, beta = records["sizes"].nocc
        if calculation["reference"].nspin == 2:
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
    except InputError as error:  # an impossible molecule or invalid options
        raise ResultFileError(f"{path}: damaged file ({error}): compute it again") from error


def _require_known(group: h5py.Group, path: str | Path) -> None:
    """Raise unless the group is a complete result of a known version."""
    if "dfmp2_table_version" in group.attrs:
        raise ResultFileError(
            f"{path}: a table, as dfmp2 validate and dfmp2 batch collect write it: read its "
            "columns with h5py; dfmp2 show prints results"
        )
    version = read_attribute(group, "dfmp2_schema_version")
    status = read_attribute(group, "status")
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

    PySCF's own loader evaluates the text under `/mol` as code; here it is parsed as JSON, and only
    the nuclear charges are used, to recognise orbitals of another molecule.

    Raises
    ------
    InputError : the file lacks them, or they do not fit together
    ResultFileError : the file is damaged or holds something a checkpoint never holds
    """
    with open_checked(path) as handle:
        require_harmless(handle)
        if RECORDS_PATH in handle and "scf/mo_coeff" not in handle:
            raise InputError(
                "start orbitals are what the file of this result left out: compute it again with ",
                Option("keep", ALL),
                file=str(path),
            )
        coeff = _real_array(handle, "scf/mo_coeff", path)
        occ = _real_array(handle, "scf/mo_occ", path)
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
        return StartOrbitals(mo_coeff=coeff, mo_occ=occ, charges=_charges(handle), origin=str(path))


def start_of(options: Options) -> StartOrbitals | None:
    """The start orbitals named by the options, None if there are none; raises as
    `read_start_orbitals`."""
    if options.scf_from is None:
        return None
    return read_start_orbitals(options.scf_from)


def _real_array(handle: h5py.File, name: str, path: str | Path) -> NDArray[np.float64]:
    # PySCF stores a pair of arrays this way
    item = handle.get(name)
    pair = handle.get(f"{name}__from_list__")
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
    """Nuclear charges of the stored molecule, None if they are not in the file."""
    try:
        return tuple(int(atom[0]) for atom in json.loads(handle["mol"][()])["_atm"])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
