"""The file between the two parts of a run (`dfmp2.mp2.prepared`): B, and everything the pair energies need beside it.

    /b/{alpha, beta}                  (nocc, nvir, naux) float64, Eh^1/2, contiguous; restricted: alpha stands for both
    /b/{alpha, beta}_{ends, sha256}   groups of occupied orbitals, where each ends and the hash of its numbers
    /mol, /scf, /dfmp2/...            as in a result file (`dfmp2.output.hdf5`), texts of fixed length

It grows beside its target, B in its place where memory does not hold it, and gets its name when it is on disk.

While it is made it lies beside its target, locked, and is gone unless it is finished:

    .NAME.part-RANDOM    /b/{alpha, beta} first, allocated as a whole and filled past HDF5; then the rest

The process that makes it holds a lock on it; a killed one loses the lock, and the next to make a file of the same name
removes what it has left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, ResourceError, ResultFileError
from dfmp2.host.arrays_on_disk import Region, StoredTensor, allocate, numbers_hash
from dfmp2.host.files import beside, move, require_writable, settled
from dfmp2.host.threads import each
from dfmp2.integrals.metric import orbital_groups
from dfmp2.mp2.prepared import Prepared
from dfmp2.output.hdf5 import (
    OF_REFERENCE,
    PREPARED,
    RECORDS,
    Item,
    calculation_items,
    content_hash,
    printed,
    read_calculation,
    read_records,
    record_items,
    stored,
    write_items,
)
from dfmp2.output.safe_hdf5 import open_checked, read_attribute

VERSION = 1
SPINS = ("alpha", "beta")
KINDS = {
    name: RECORDS[name]
    for name in ("reference", *OF_REFERENCE, "sizes", "diagnostics", "timings", "predicted", "memory", "storage")
} | {"provenance": RECORDS["provenance"]}
NOTE = "dfmp2/run/frozen_core_note"


@dataclass(frozen=True, slots=True)
class Group:
    """Occupied orbitals i0:i1 of B and the SHA-256 of their numbers."""

    i0: int
    i1: int
    sha256: str


class OpenedFile:
    """A prepared file, open for reading; made by `opened` (a `dfmp2.mp2.prepared.Source`)."""

    def __init__(self, path: str, prepared: Prepared, sha256: str, regions: list[Region], groups: list[list[Group]]):
        self.path, self.prepared, self.sha256 = path, prepared, sha256
        self._regions, self._groups = dict(zip(SPINS, regions, strict=False)), groups
        self.tensors = [
            StoredTensor(self, name, shape, [(g.i0, g.i1) for g in found], existing=True)
            for name, shape, found in zip(SPINS, prepared.shapes, groups, strict=False)
        ]
        digest = hashlib.sha256(prepared.reference.mo_energy.tobytes())
        for group in (group for found in groups for group in found):
            digest.update(f"{group.i0} {group.i1} {group.sha256}\n".encode())
        self.fingerprint = digest.hexdigest()

    @property
    def read(self) -> int:
        """Bytes of B read so far."""
        return sum(region.bytes_read for region in self._regions.values())

    def array(self, name: str, size: int, *, existing: bool = False) -> Region:
        """The numbers of one spin."""
        return self._regions[name]

    def load(self, workers: int) -> list[Any]:
        """B of each spin in memory, its hashes checked.

        Raises
        ------
        ResultFileError : numbers do not have their hash
        """
        arrays: list[Any] = [np.empty(tensor.shape) for tensor in self.tensors]
        self._check(workers, arrays)
        return arrays

    def check(self) -> None:
        """Compare B with its hashes, a group of orbitals at a time.

        Raises
        ------
        ResultFileError : numbers do not have their hash
        """
        self._check(1, [None] * len(self.tensors))

    def _check(self, workers: int, arrays: list[Any]) -> None:
        parts = [(spin, group) for spin, groups in enumerate(self._groups) for group in groups]

        def check(number: int) -> None:
            spin, group = parts[number]
            tensor, array = self.tensors[spin], arrays[spin]
            rows = np.empty((group.i1 - group.i0, *tensor.shape[1:])) if array is None else array[group.i0 : group.i1]
            tensor.read(group.i0, group.i1, rows)
            if numbers_hash(rows) != group.sha256:
                raise ResultFileError(
                    f"{self.path}: B of the {SPINS[spin]} orbitals {group.i0 + 1} to {group.i1} does not have its "
                    "hash: prepare it again"
                )

        each(len(parts), check, workers)


@contextmanager
def opened(path: str | Path) -> Iterator[OpenedFile]:
    """A prepared file for reading: everything but B is read and checked, B is left where it is.

    Raises
    ------
    InputError : no such file
    ResultFileError : foreign, damaged, or of an unknown version
    """
    prepared, sha256, places = _read(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=str(path)) from error
    try:
        regions = [Region(descriptor, offset, str(path)) for offset, _ in places]
        yield OpenedFile(str(path), prepared, sha256, regions, [groups for _, groups in places])
    finally:
        os.close(descriptor)


def verified(path: Path) -> Prepared:
    """What a prepared file holds, after checking all of its hashes."""
    with opened(path) as source:
        source.check()
        return source.prepared


def is_prepared(path: str | Path) -> bool:
    """Whether an HDF5 file says that it was prepared; false for a file that cannot be opened."""
    return PREPARED in _attributes(path)


def store(handle: h5py.File, prepared: Prepared, digests: list[list[Group]]) -> None:
    """Put everything but B, which lies there already, into a file."""
    items = {
        **calculation_items(prepared),
        NOTE: Item(prepared.frozen_core_note, "", "how the frozen core was counted"),
    }
    for name in KINDS:
        if name not in ("reference", *OF_REFERENCE):
            items |= record_items(name, getattr(prepared, name))
    for name, groups in zip(SPINS, digests, strict=False):
        ends = np.array([group.i1 for group in groups], dtype=np.int64)
        items[f"b/{name}_ends"] = Item(ends, "", "occupied orbital behind the last one of each group")
        items[f"b/{name}_sha256"] = Item(tuple(g.sha256 for g in groups), "", "hash of each group's numbers")
    write_items(handle, items, _fixed)
    handle.attrs["creator"] = _fixed("dfmp2")
    handle.attrs["creator_version"] = _fixed(prepared.provenance.version)
    handle.attrs[PREPARED] = VERSION
    handle.attrs["content_sha256"] = _fixed(_hash(handle))


def _read(path: str | Path) -> tuple[Prepared, str, list[tuple[int, list[Group]]]]:
    """What there is beside B, the hash of that, and where B of each spin lies with its groups."""
    attributes = _attributes(path)
    if attributes and PREPARED not in attributes:
        what = (
            "a finished result, which dfmp2 show prints"
            if "dfmp2_schema_version" in attributes
            else "a study of several results, which dfmp2 show prints"
            if "dfmp2_study_version" in attributes
            else f"no file of dfmp2 prepare (no {PREPARED})"
        )
        raise ResultFileError(f"{path}: {what}: name a file that dfmp2 prepare has written")
    with open_checked(path, heaps=False) as handle:
        version = read_attribute(handle, PREPARED)
        if version is None:
            raise ResultFileError(f"{path}: no file of dfmp2 prepare (no {PREPARED})")
        if not isinstance(version, int | np.integer) or int(version) != VERSION:
            raise ResultFileError(
                f"{path}: prepared file of version {version}, this dfmp2 reads version {VERSION}: use the dfmp2 that "
                "wrote it, or prepare it again"
            )
        found = _hash(handle)
        if read_attribute(handle, "content_sha256") != found:
            raise ResultFileError(f"{path}: the content does not have its stored hash: prepare it again")
        try:
            records = read_records(handle, KINDS)
            calculation = read_calculation(handle, records)
        except InputError as error:  # a molecule or options that could not have been run
            raise ResultFileError(f"{path}: damaged file ({error}): prepare it again") from error
        note = handle[NOTE].asstr()[()]
        prepared = Prepared(**calculation, **records, frozen_core_note=str(note))
        _require_whole(prepared)
        size = os.stat(path).st_size
        places = [
            (_offset(handle[f"b/{name}"], shape, size), _groups(handle, name, shape[0]))
            for name, shape in zip(SPINS, prepared.shapes, strict=False)
        ]
        return prepared, found, places


def _require_whole(prepared: Prepared) -> None:
    """Refuse what PySCF's molecules cannot be built of, and orbitals that are not those of the sizes."""
    for basis in (prepared.orbital_basis, prepared.scf_fitting, prepared.mp2_fitting):
        if basis is not None and not set(prepared.molecule.elements) <= set(basis.elements):
            raise ValueError("a basis lacks an element")
    core, left_out = prepared.sizes.frozen_core, prepared.sizes.frozen_virtual
    occupations = prepared.reference.mo_occ
    active = [(max(0, int((occ > 0).sum()) - core), int((occ == 0).sum()) - left_out) for occ in occupations]
    if active != [shape[:2] for shape in prepared.shapes]:
        raise ValueError("its occupations are not those of its sizes")
    if (prepared.scf_fitting is None) != (prepared.sizes.naux_scf == 0):
        raise ValueError("its SCF fitting set does not belong to its sizes")
    if min(shape[2] for shape in prepared.shapes) < 1 or prepared.diagnostics.metric_dropped < 0:
        raise ValueError("B has no fitting functions")


def _offset(item: Any, shape: tuple[int, int, int], size: int) -> int:
    """Where in the file the numbers of B begin."""
    if item.shape != shape or item.dtype != np.dtype("<f8"):
        raise ValueError(f"{item.name} is {item.dtype} {item.shape}, expected float64 {shape}")
    if item.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
        raise ValueError(f"{item.name} is not contiguous")
    offset = item.id.get_offset()
    if item.size and (offset is None or offset + 8 * item.size > size):
        raise ValueError(f"{item.name} lies beyond the end of the file")
    return int(offset or 0)


def _groups(handle: h5py.File, name: str, nocc: int) -> list[Group]:
    found = stored(handle, "b")
    ends = [int(end) for end in found[f"{name}_ends"]]
    begins = [0, *ends][:-1]
    if (ends[-1] if ends else 0) != nocc or any(i0 >= i1 for i0, i1 in zip(begins, ends, strict=True)):
        raise ValueError(f"the groups of {name} do not cover its orbitals")
    return [Group(i0, i1, str(h)) for i0, i1, h in zip(begins, ends, found[f"{name}_sha256"], strict=True)]


def _hash(handle: h5py.File) -> str:
    """Hash of everything but B, whose own hashes are among it."""
    return content_hash(handle, leave_out=[f"b/{name}" for name in SPINS])


def _attributes(path: str | Path) -> set[str]:
    """Names of a file's attributes, none where it is no HDF5 file: its reader says what is wrong with it."""
    try:
        if not Path(path).is_file():  # opening a pipe would wait for ever
            return set()
        with h5py.File(path, "r") as handle:
            return set(handle.attrs)
    except (OSError, RuntimeError, ValueError):
        return set()


def _fixed(value: Any) -> Any:
    """What h5py stores in place: numbers, arrays, and UTF-8 text of the length it has."""
    if isinstance(value, str):
        text = printed(value)
        return np.array(text, dtype=h5py.string_dtype("utf-8", max(1, len(text))))
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        texts = [printed(item) for item in value]
        longest = max((len(text) for text in texts), default=1)
        return np.array(texts, dtype=h5py.string_dtype("utf-8", max(1, longest)))
    return value


OVERHEAD = 2_000_000  # bytes of the file beside B and the orbitals, generously: bases, input

Shape = tuple[int, int, int]
Tensor = NDArray[np.float64] | StoredTensor


class PreparedFile:
    """Where `dfmp2.mp2.prepared.prepare` puts what it makes (a `dfmp2.mp2.prepared.Target`); a context manager.

    Parameters
    ----------
    target : the file that is there in the end
    overwrite : replace one that is there already
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        self._target, self._overwrite = target, overwrite
        self._part: Path | None = None
        self._descriptor = -1
        self._regions: dict[str, Region] = {}
        self._room: list[Shape] = []
        self._placed: list[StoredTensor] = []
        self._digests: list[list[Group]] = []

    def __enter__(self) -> PreparedFile:
        require_writable(self._target, overwrite=True)  # one that is there is refused when its size is known
        _remove_abandoned(self._target)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def require(self, size: int) -> None:
        """Refuse a file that is there, and a disk on which `size` bytes of B find no room.

        Raises
        ------
        ResultExists, ResourceError
        """
        require_writable(self._target, overwrite=self._overwrite, expected_bytes=size + OVERHEAD)

    def place(self, shapes: list[tuple[int, int]], naux: int) -> list[StoredTensor]:
        """Room in the file for B of each spin, which is then made there.

        Parameters
        ----------
        shapes : (nocc, nvir) per spin
        """
        self._room = [(nocc, nvir, naux) for nocc, nvir in shapes]
        self._begin(self._room)
        self._placed = [
            StoredTensor(self, name, shape, orbital_groups(*shape), signed=True)
            for name, shape in zip(SPINS, self._room, strict=False)
        ]
        return list(self._placed)

    def array(self, name: str, size: int, *, existing: bool = False) -> Region:
        """The numbers of one spin in the file."""
        return self._regions[name]

    def fill(self, b: list[Any], workers: int) -> None:
        """Store B of each spin, (nocc, nvir, naux) float64, unless it was made in its place.

        Raises
        ------
        ResourceError : the disk is full or fails
        """
        groups = [orbital_groups(*tensor.shape) for tensor in b]
        if self._placed and [tensor.shape for tensor in b] == self._room:
            hashes = [tensor.digests for tensor in self._placed]
        else:  # made in memory; or an eigenvalue cut has left less of it than there was room for
            kept, self._part, before, self._descriptor = self._part, None, self._descriptor, -1
            try:
                self._begin([tensor.shape for tensor in b])
                hashes = [
                    self._copied(name, tensor, cuts, workers)
                    for name, tensor, cuts in zip(SPINS, b, groups, strict=False)
                ]
            finally:
                _discard(kept, before)
        self._digests = [
            [Group(i0, i1, digest) for (i0, i1), digest in zip(cuts, found, strict=True)]
            for cuts, found in zip(groups, hashes, strict=True)
        ]

    def seal(self, prepared: Prepared) -> None:
        """Store everything else, and see that it is on disk.

        Raises
        ------
        ResourceError : the disk is full or fails
        """
        with _reported(self._target):
            with h5py.File(self._part, "r+", locking=False) as handle:
                store(handle, prepared, self._digests)
            os.fsync(self._descriptor)

    def publish(self) -> None:
        """Give the file its name.

        Raises
        ------
        ResultFileError : the target appeared meanwhile and may not be replaced
        ResourceError : the folder cannot be written
        """
        if self._part is None:
            raise ValueError("nothing was prepared")
        with settled(self._target):
            move(self._part, self._target, overwrite=self._overwrite)
            self._drop()

    def _begin(self, shapes: list[Shape]) -> None:
        """A new file with room for tensors of these shapes."""
        with _reported(self._target):
            self._part, self._descriptor = _made(self._target)
            with h5py.File(self._part, "w", locking=False) as handle:
                offsets = [
                    _allocated(handle.require_group("b"), name, shape)
                    for name, shape in zip(SPINS, shapes, strict=False)
                ]
        name = str(self._target)
        self._regions = {
            spin: Region(self._descriptor, offset, name) for spin, offset in zip(SPINS, offsets, strict=False)
        }

    def _copied(self, name: str, tensor: Tensor, cuts: list[tuple[int, int]], workers: int) -> tuple[str, ...]:
        """Hashes of the groups of a tensor, which are written to the file."""
        row, hashes = tensor.shape[1] * tensor.shape[2], [""] * len(cuts)

        def copy(number: int) -> None:
            i0, i1 = cuts[number]
            if isinstance(tensor, StoredTensor):
                rows = np.empty((i1 - i0, *tensor.shape[1:]))
                tensor.read(i0, i1, rows)
            else:
                rows = tensor[i0:i1]
            self._regions[name].write(i0 * row, rows)
            hashes[number] = numbers_hash(rows)

        each(len(cuts), copy, workers)
        return tuple(hashes)

    def _drop(self) -> None:
        part, descriptor = self._part, self._descriptor
        self._part, self._descriptor = None, -1
        _discard(part, descriptor)


def _allocated(group: h5py.Group, name: str, shape: Shape) -> int:
    """Where B of one spin will lie."""
    offset = allocate(group, name, shape)
    for key, text in (("units", "hartree^1/2"), ("description", "fitted integrals B (nocc, nvir, naux)")):
        group[name].attrs[key] = np.bytes_(text)
    return offset


def _made(target: Path) -> tuple[Path, int]:
    """A new empty file beside the target, and the descriptor that holds its lock."""
    while True:
        part = beside(target)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):  # somebody took it for abandoned before it was locked
            if os.path.samestat(os.fstat(descriptor), os.stat(part)):
                return part, descriptor
        os.close(descriptor)


def _discard(part: Path | None, descriptor: int) -> None:
    if part is not None:
        with contextlib.suppress(OSError):
            part.unlink()
    if descriptor >= 0:
        os.close(descriptor)


def _remove_abandoned(target: Path) -> None:
    """Remove what killed processes of this user have left beside the target: files whose lock nobody holds."""
    pattern = glob.escape(str(target.parent / f".{target.name[:200]}.part-")) + "*"
    for name in glob.glob(pattern):
        with contextlib.suppress(OSError):
            descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name)
            finally:
                os.close(descriptor)


@contextmanager
def _reported(target: Path) -> Iterator[None]:
    """Say in our words what the system or HDF5 refuses."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: what HDF5 makes of a disk that fills up on closing
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error).splitlines()[0][:200]
        if number == errno.ENOSPC:
            reason += ": free some space or choose another folder with --output"
        raise ResourceError(f"cannot write {target}: {reason}: nothing was changed") from error
