"""The state of a partly finished calculation, in one HDF5 layout.

    /identity                                 JSON: what identifies the calculation, by name
    /orbitals/{mo_coeff, mo_occ, origin}      from the last SCF iteration, until the SCF converges
    /scf/..., /dfmp2/{reference, ...}/...     the reference, as in a result file (`dfmp2.output.hdf5`)
    /b/{alpha, beta}                          B (nocc, nvir, naux) float64, Eh^1/2; restricted: only alpha
    /b/{alpha, beta}_{ends, sha256}           groups of occupied orbitals: end and hash of each
    /b/{folder, shapes, ...}                  location of B, if it is in a scratch folder
    /tiles/{index, terms}                     finished tiles: index and flags of each, and all their numbers

A checkpoint or shard (`dfmp2.output.checkpoint`, `dfmp2.output.tile_shards`) holds whatever is
available; a prepared file (`dfmp2.output.prepared`) holds the input, the reference, and B in
contiguous form. A checkpoint is written as a whole and begins with three lines of text, in a user
block that HDF5 readers skip:

    dfmp2 checkpoint 3
    scratch FOLDER            where B is stored on disk, or -
    sha256 HASH               of everything that follows

Version 2 was an npz archive in place of the HDF5 file; it is read as well.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import PairTerms, Tile
from dfmp2.errors import ResultFileError
from dfmp2.host.arrays_on_disk import allocate
from dfmp2.host.provenance import version
from dfmp2.molecule.basis import nested_tuples
from dfmp2.mp2.calculation import State, StoredB
from dfmp2.mp2.pairs import TileKey
from dfmp2.output.hdf5_datasets import (
    FOREIGN_ERRORS,
    NO_HEAPS,
    Dataset,
    Groups,
    by_group,
    file_bytes,
    printed,
    read_contents,
    stored,
    write_items,
)
from dfmp2.output.stored_calculation import (
    read_records,
    read_reference,
    records_of,
    reference_items,
)
from dfmp2.scf.reference import GridError, Reference, Solutions, Stability, StartOrbitals

SPINS = ("alpha", "beta")
NUMBERS_OF_B = ("b/alpha", "b/beta")
HEAD = b"dfmp2 checkpoint "
VERSION = b"3"
NPZ_VERSION = b"2"
SMALLEST_BLOCK = 512  # bytes of HDF5's user block; its size must be a power of two times this
TILE_COLUMNS = 9  # number, spins, i0, i1, j0, j1, on the diagonal?, with exchange?
KINDS = {"reference": Reference, **records_of(Reference)}

Group = tuple[int, int, str]  # occupied orbitals i0:i1 of B and the SHA-256 of their numbers


class OldVersion(ValueError):
    """The checkpoint was written by an unsupported version of dfmp2."""


# --- B --------------------------------------------------------------------------------------------


def allocate_b(handle: h5py.File, shapes: Sequence[tuple[int, int, int]]) -> list[int]:
    """Reserve space in an empty file for B of each spin and return the offsets.

    Parameters
    ----------
    handle : h5py.File
    shapes : sequence of (int, int, int)
        (nocc, nvir, naux) of each spin.
    """
    group = handle.create_group("b")
    offsets = []
    for name, shape in zip(SPINS, shapes, strict=False):
        offsets.append(allocate(group, name, shape))
        group[name].attrs["units"] = np.bytes_("hartree^1/2")
        group[name].attrs["description"] = np.bytes_("fitted integrals B (nocc, nvir, naux)")
    return offsets


def places_of_b(handle: h5py.File, shapes: Sequence[tuple[int, int, int]], size: int) -> list[int]:
    """Offsets of B of each spin in a file of `size` bytes.

    Raises
    ------
    ValueError
        B does not have these shapes, or is not contiguous within the file.
    """
    offsets = []
    for name, shape in zip(SPINS, shapes, strict=False):
        item = handle[f"b/{name}"]
        if item.shape != shape or item.dtype != np.dtype("<f8"):
            raise ValueError(f"{item.name} is {item.dtype} {item.shape}, expected float64 {shape}")
        if item.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
            raise ValueError(f"{item.name} is not contiguous")
        offset = item.id.get_offset()
        if item.size and (offset is None or offset + 8 * item.size > size):
            raise ValueError(f"{item.name} lies beyond the end of the file")
        offsets.append(int(offset or 0))
    return offsets


def group_items(groups: Sequence[Sequence[Group]]) -> dict[str, Dataset]:
    """Datasets of the hashes of a B stored in the same file, by path.

    Parameters
    ----------
    groups : sequence of sequences of (int, int, str)
        Groups of each spin.
    """
    items = {}
    for name, of_spin in zip(SPINS, groups, strict=False):
        ends = np.array([i1 for _, i1, _ in of_spin], dtype=np.int64)
        items[f"b/{name}_ends"] = Dataset(
            ends, "", "occupied orbital behind the last one of each group"
        )
        items[f"b/{name}_sha256"] = _hashes(tuple(sha256 for _, _, sha256 in of_spin))
    return items


def read_groups(groups: Groups, shapes: Sequence[tuple[int, int, int]]) -> list[list[Group]]:
    """Groups of occupied orbitals of each spin, with their hashes.

    Parameters
    ----------
    groups : mapping
        Datasets of the file by group.
    shapes : sequence of (int, int, int)
        Shapes of B of each spin; the groups must cover its occupied orbitals.

    Raises
    ------
    ValueError
        The groups do not cover the occupied orbitals.
    """
    values = stored(groups, "b")
    of_spins = []
    for name, (nocc, _, _) in zip(SPINS, shapes, strict=False):
        ends = [int(end) for end in values[f"{name}_ends"]]
        begins = [0, *ends][:-1]
        covered = (bool(ends) and ends[-1] == nocc) or (not ends and nocc == 0)
        if not covered or any(i0 >= i1 for i0, i1 in zip(begins, ends, strict=True)):
            raise ValueError(f"the groups of {name} do not cover its orbitals")
        hashes = [str(sha256) for sha256 in values[f"{name}_sha256"]]
        of_spins.append(list(zip(begins, ends, hashes, strict=True)))
    return of_spins


def _hashes(hashes: tuple[str, ...]) -> Dataset:
    return Dataset(hashes, "", "hash of each group's numbers")


def _stored_b_items(b: StoredB) -> dict[str, Dataset]:
    """Datasets that describe a B stored in a scratch folder, by path."""
    folder = json.dumps(b.folder)  # a file name need not be UTF-8
    items = {
        "b/folder": Dataset(folder, "", "JSON: scratch folder with the numbers"),
        "b/shapes": Dataset(np.array(b.shapes, dtype=np.int64), "", "(nocc, nvir, naux) per spin"),
        "b/condition": Dataset(b.condition, "", "condition of the fitting metric"),
        "b/dropped": Dataset(b.dropped, "", "eigenvectors left out of it"),
        "b/threshold": Dataset(b.threshold, "", "eigenvalue below which they are"),
    }
    for name, digests in zip(SPINS, b.digests, strict=False):
        items[f"b/{name}_sha256"] = _hashes(digests)
    return items


def _read_stored_b(groups: Groups) -> StoredB | None:
    if "b" not in groups:
        return None
    values = stored(groups, "b")
    shapes = tuple((int(nocc), int(nvir), int(naux)) for nocc, nvir, naux in values["shapes"])
    return StoredB(
        folder=str(json.loads(values["folder"])),
        shapes=shapes,
        digests=tuple(
            tuple(str(digest) for digest in values[f"{name}_sha256"])
            for name, _ in zip(SPINS, shapes, strict=False)
        ),
        condition=float(values["condition"]),
        dropped=int(values["dropped"]),
        threshold=float(values["threshold"]),
    )


# --- tiles ----------------------------------------------------------------------------------------


def _tile_items(tiles: Mapping[TileKey, PairTerms]) -> dict[str, Dataset]:
    """Datasets of finished tiles, by path."""
    index = [
        (*channel, *tile, terms.exchange is not None) for (*channel, tile), terms in tiles.items()
    ]
    parts = [part.ravel() for terms in tiles.values() for part in terms if part is not None]
    rows = np.array(index, dtype=np.int64).reshape(-1, TILE_COLUMNS)
    numbers = np.concatenate([np.zeros(0), *parts])
    about = "number, spins, i0, i1, j0, j1, whether on the diagonal, whether with exchange"
    return {
        "tiles/index": Dataset(rows, "", about),
        "tiles/terms": Dataset(numbers, "hartree", "terms of all tiles, one after the other"),
    }


def _read_tiles(index: NDArray[np.int64], numbers: NDArray[np.float64]) -> dict[TileKey, PairTerms]:
    """Finished tiles, with the numbers split among them."""
    tiles: dict[TileKey, PairTerms] = {}
    place = 0
    for number, left, right, i0, i1, j0, j1, diagonal, exchanging in index.tolist():
        rows, columns = i1 - i0, j1 - j0
        size = rows * columns
        direct = numbers[place : place + size].reshape(rows, columns)
        place += size
        exchange = None
        if exchanging:
            exchange = numbers[place : place + size].reshape(rows, columns)
            place += size
        key = (number, left, right, Tile(i0, i1, j0, j1, bool(diagonal)))
        tiles[key] = PairTerms(direct, exchange)
    return tiles


# --- the whole ------------------------------------------------------------------------------------


def store_layout(
    handle: h5py.File, items: Mapping[str, Dataset], version: str
) -> dict[str, NDArray[Any]]:
    """Store datasets in a file, together with the version of dfmp2, and return them as stored."""
    handle.attrs.update({"creator": fixed_text("dfmp2"), "creator_version": fixed_text(version)})
    return write_items(handle, items, fixed_text)


def read_layout(handle: h5py.File) -> dict[str, NDArray[Any]]:
    """All datasets of a file by path, except B, which may not fit into memory."""
    return read_contents(handle, leave_out=NUMBERS_OF_B, kinds=NO_HEAPS)


def encode(state: State) -> bytes:
    """The state as the content of a checkpoint."""
    identity = json.dumps(dict(state.identity))
    items = {"identity": Dataset(identity, "", "JSON: which calculation it is, by name")}
    if state.orbitals is not None:
        for field in fields(StartOrbitals):
            value = getattr(state.orbitals, field.name)
            if value is not None:
                items[f"orbitals/{field.name}"] = Dataset(value, "", "of the last SCF iteration")
    if state.reference is not None:
        items |= reference_items(state.reference)
    scratch = "-"
    if state.b is not None:
        scratch = state.b.folder
        items |= _stored_b_items(state.b)
    if state.tiles:
        items |= _tile_items(state.tiles)

    head = HEAD + VERSION + f"\nscratch {scratch}\n".encode("utf-8", "surrogateescape")
    marked = len(head) + len("sha256 \n") + 2 * hashlib.sha256().digest_size
    block = SMALLEST_BLOCK
    while block < marked:
        block *= 2
    content = b"\n" * (block - marked) + file_bytes(
        lambda handle: store_layout(handle, items, version())
    )
    return head + f"sha256 {hashlib.sha256(content).hexdigest()}\n".encode() + content


def decode(content: bytes) -> State:
    """The state in the content of a checkpoint.

    Raises
    ------
    OldVersion
        It was written by a version of dfmp2 that is no longer supported.
    ValueError
        The content is damaged.
    """
    written, _, rest = content.removeprefix(HEAD).partition(b"\n")
    if written not in (VERSION, NPZ_VERSION):
        raise OldVersion("was written by another version of dfmp2: delete it to start anew")
    _, _, rest = rest.partition(b"\nsha256 ")
    expected, _, payload = rest.partition(b"\n")
    if hashlib.sha256(payload).hexdigest().encode() != expected:
        raise ValueError("its content does not have the stored hash")
    try:
        if written == NPZ_VERSION:
            return _decode_npz(payload)
        return _decode_hdf5(payload.lstrip(b"\n"))
    except (*FOREIGN_ERRORS, ResultFileError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"it is not laid out as dfmp2 does it ({error})") from error


def _decode_hdf5(payload: bytes) -> State:
    with h5py.File(io.BytesIO(payload), "r") as handle:
        groups = by_group(read_layout(handle))
    state = State(identity=json.loads(stored(groups, "")["identity"]), b=_read_stored_b(groups))
    if "orbitals" in groups:
        values = {"charges": None, **stored(groups, "orbitals")}
        state.orbitals = StartOrbitals(**values)
    if "scf" in groups:
        nao, nmo = groups["scf"]["mo_coeff"].shape[-2:]
        shapes = {"mo_coeff": (nao, nmo), "mo_energy": (nmo,), "mo_occ": (nmo,)}
        state.reference = read_reference(groups, read_records(groups, KINDS), shapes)
    if "tiles" in groups:
        state.tiles = _read_tiles(groups["tiles"]["index"], groups["tiles"]["terms"])
    return state


def fixed_text(value: Any) -> Any:
    """The value in a form that h5py stores in place: number, array, or fixed-length UTF-8 text."""
    if isinstance(value, str):
        text = printed(value)
        return np.array(text, dtype=h5py.string_dtype("utf-8", max(1, len(text))))
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        texts = [printed(item) for item in value]
        longest = max((len(text) for text in texts), default=1)
        return np.array(texts, dtype=h5py.string_dtype("utf-8", max(1, longest)))
    return value


# --- version 2 ------------------------------------------------------------------------------------

NPZ_ARRAY = "array number"  # placeholder of an array in the JSON
NPZ_PARTS = {  # parts of a reference, each a separate record
    "stability": Stability,
    "solutions": Solutions,
    "grid_error": GridError,
}


def _decode_npz(payload: bytes) -> State:
    """The state in an npz archive: JSON, and the arrays it refers to by number."""
    with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
        arrays = [archive[name] for name in archive.files]

    def array_of(value: dict[str, Any]) -> Any:
        if value.keys() == {NPZ_ARRAY}:
            return arrays[1 + value[NPZ_ARRAY]]
        return value

    table = json.loads(arrays[0].tobytes(), object_hook=array_of)
    return State(
        identity={str(name): str(value) for name, value in table["identity"].items()},
        orbitals=_npz_record(StartOrbitals, table["orbitals"]),
        reference=_npz_record(Reference, table["reference"]),
        b=_npz_record(StoredB, table["b"]),
        tiles=_read_tiles(table["tiles"], table["terms"]),
    )


def _npz_record(kind: Any, values: Any) -> Any:
    """A record built from its fields, with tuples in place of JSON's lists; None for None."""
    if values is None:
        return None
    parts = {}
    for name, value in values.items():
        if name in NPZ_PARTS:
            parts[name] = _npz_record(NPZ_PARTS[name], value)
        else:
            parts[name] = nested_tuples(value)
    return kind(**parts)
