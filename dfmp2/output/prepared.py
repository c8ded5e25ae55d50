"""The file between the two parts of a run (`dfmp2.mp2.prepared`): a reference and its B.

It can be read without dfmp2:

    /b/...                    B and the hashes of its groups, in the layout of all states (`dfmp2.output.state`)
    /mol, /scf, /dfmp2/...    as in a result file (`dfmp2.output.hdf5`), texts of fixed length

While being written it is called .NAME.part-RANDOM, beside its target, and B is built in it directly
if memory is too small; it is renamed when complete on disk. The writing process holds the lock of
the target and removes leftovers of killed processes.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dfmp2.errors import Command, Dfmp2Error, InputError, ResultFileError
from dfmp2.host.arrays_on_disk import FileRegion, StoredTensor, numbers_hash
from dfmp2.host.files import (
    beside,
    move,
    remove_parts,
    require_place,
    require_writable,
    settled,
    write_failure,
)
from dfmp2.host.threads import each
from dfmp2.integrals.metric import orbital_groups
from dfmp2.mp2.prepared import Prepared, Shape
from dfmp2.mp2.result import Calculated
from dfmp2.output.hdf5 import PREPARED
from dfmp2.output.hdf5_datasets import (
    Dataset,
    attributes_of,
    by_group,
    hash_of,
    open_checked,
    read_attribute,
    stored,
)
from dfmp2.output.state import (
    SPINS,
    Group,
    allocate_b,
    fixed_text,
    group_items,
    places_of_b,
    read_groups,
    read_layout,
    store_layout,
)
from dfmp2.output.stored_calculation import (
    OF_REFERENCE,
    calculation_items,
    read_calculation,
    read_records,
    record_items,
    records_of,
)
from dfmp2.scf.reference import Reference

VERSION = 1
KINDS = records_of(Calculated) | records_of(Reference)
NOTE = "dfmp2/run/frozen_core_note"
OVERHEAD = 60_000  # bytes in the file other than B and the orbitals, at least


# --- reading the file -----------------------------------------------------------------------------


class UnchangedRegion(FileRegion):
    """Numbers in an open file that must not change meanwhile, so that their verified hashes stay
    valid."""

    def __init__(self, descriptor: int, offset: int, name: str) -> None:
        super().__init__(descriptor, offset, name)
        self._file, self._path, self._opened = descriptor, name, _stamp(descriptor)

    def read(self, start: int, out: Any) -> None:
        """As in Region; raises if the file has changed since it was opened."""
        super().read(start, out)
        if _stamp(self._file) != self._opened:
            raise ResultFileError(f"{self._path} was changed while it was read: prepare it again")


def _stamp(descriptor: int) -> tuple[int, int]:
    """Size and modification time (ns), which change with the content."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


class OpenedFile:
    """A prepared file open for reading, returned by `opened`.

    Attributes
    ----------
    path : its name
    prepared : everything in it except B
    sha256 : hash of its content
    fingerprint : everything that the bits of the pair energies depend on
    """

    def __init__(
        self,
        path: str,
        prepared: Prepared,
        sha256: str,
        regions: Sequence[FileRegion],
        groups: list[list[Group]],
    ):
        self.path, self.prepared, self.sha256 = path, prepared, sha256
        self._regions, self._groups = regions, groups
        digest = hashlib.sha256(prepared.reference.mo_energy.tobytes())
        for i0, i1, numbers in (group for found in groups for group in found):
            digest.update(f"{i0} {i1} {numbers}\n".encode())
        self.fingerprint = digest.hexdigest()

    @property
    def read(self) -> int:
        """Bytes of B read so far."""
        return sum(region.bytes_read for region in self._regions)

    def load(self, workers: int, *, held: bool = True) -> list[Any]:
        """B of each spin, checked against its hashes: in memory, or left in the file unless `held`.

        Raises
        ------
        ResultFileError : the numbers do not match their hashes
        """
        tensors = [
            StoredTensor(region, shape, [group[:2] for group in found])
            for region, shape, found in zip(
                self._regions, self.prepared.shapes, self._groups, strict=True
            )
        ]
        if held:
            arrays = [np.empty(tensor.shape) for tensor in tensors]
        else:
            arrays = []
        parts = [(spin, *group) for spin, groups in enumerate(self._groups) for group in groups]

        def check(number: int) -> None:
            spin, i0, i1, sha256 = parts[number]
            if held:
                rows = arrays[spin][i0:i1]
            else:
                rows = np.empty((i1 - i0, *tensors[spin].shape[1:]))
            tensors[spin].read(i0, i1, rows)
            if numbers_hash(rows) != sha256:
                raise ResultFileError(
                    f"{self.path}: B of the {SPINS[spin]} orbitals {i0 + 1} to {i1} does not have "
                    "its hash: prepare it again"
                )

        each(len(parts), check, workers if held else 1)
        return list(arrays if held else tensors)


@contextmanager
def opened(path: str | Path) -> Iterator[OpenedFile]:
    """A prepared file open for reading: everything but B is read and checked.

    Raises
    ------
    InputError : no such file
    ResultFileError : not a prepared file, damaged, or of an unknown version
    """
    attributes = attributes_of(path)
    if attributes and PREPARED not in attributes:
        raise ResultFileError(
            f"{path}: no file of ",
            Command("prepare"),
            (
                f" (no {PREPARED}): name one that it has written; results and studies are "
                "printed by dfmp2 show"
            ),
        )
    with open_checked(path) as handle:
        version = read_attribute(handle, PREPARED)
        if not isinstance(version, int | np.integer) or int(version) != VERSION:
            raise ResultFileError(
                f"{path}: prepared file of version {version}, this dfmp2 reads version {VERSION}: "
                "use the dfmp2 that wrote it, or prepare it again"
            )
        contents = read_layout(handle)
        sha256 = hash_of(contents)
        if read_attribute(handle, "content_sha256") != sha256:
            raise ResultFileError(
                f"{path}: the content does not have its stored hash: prepare it again"
            )
        datasets = by_group(contents)
        try:
            records = read_records(datasets, KINDS)
            calculation = read_calculation(datasets, records)
        except InputError as error:  # an impossible molecule or invalid options
            raise ResultFileError(f"{path}: damaged file ({error}): prepare it again") from error
        note = str(stored(datasets, "dfmp2/run")["frozen_core_note"])
        prepared = Prepared(**calculation, **records, frozen_core_note=note)
        _require_whole(prepared)
        offsets = places_of_b(handle, prepared.shapes, os.stat(path).st_size)
        groups = read_groups(datasets, prepared.shapes)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        regions = [UnchangedRegion(descriptor, offset, str(path)) for offset in offsets]
        yield OpenedFile(str(path), prepared, sha256, regions, groups)
    finally:
        os.close(descriptor)


def verified(path: Path) -> Prepared:
    """The contents of a prepared file, after checking all of its hashes."""
    with opened(path) as source:
        source.load(1, held=False)
        return source.prepared


def is_prepared(path: str | Path) -> bool:
    """Whether an HDF5 file is marked as a prepared file; false if it cannot be opened."""
    return PREPARED in attributes_of(path)


def _require_whole(prepared: Prepared) -> None:
    """Raise if PySCF's molecule cannot be built or the orbitals do not match the sizes."""
    for basis in (prepared.orbital_basis, prepared.scf_fitting, prepared.mp2_fitting):
        if basis is not None and not set(prepared.molecule.elements) <= set(basis.elements):
            raise ValueError("a basis lacks an element")
    core, left_out = prepared.sizes.frozen_core, prepared.sizes.frozen_virtual
    occupations = prepared.reference.mo_occ
    active = [
        (max(0, int((occ > 0).sum()) - core), int((occ == 0).sum()) - left_out)
        for occ in occupations
    ]
    if active != [shape[:2] for shape in prepared.shapes]:
        raise ValueError("its occupations are not those of its sizes")
    if (prepared.scf_fitting is None) != (prepared.sizes.naux_scf == 0):
        raise ValueError("its SCF fitting set does not belong to its sizes")
    if min(shape[2] for shape in prepared.shapes) < 1 or prepared.diagnostics.metric_dropped < 0:
        raise ValueError("B has no fitting functions")


# --- making the file ------------------------------------------------------------------------------


class PreparedFile:
    """A prepared file being written; a context manager that removes the file unless it is
    published.

    Parameters
    ----------
    target : the final path, whose lock the process holds
    overwrite : replace an existing file

    Raises
    ------
    InputError, ResourceError : the file cannot be written
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        # `require` rejects an existing file, once the size is known.
        require_place(target)
        self._target, self._overwrite = target, overwrite
        self._stack = ExitStack()
        self._part, self._descriptor = target, -1
        self._regions: list[FileRegion] = []
        self._placed: list[tuple[Shape, StoredTensor]] = []
        self._groups: list[list[Group]] = []
        self._needed: int | None = None

    def __enter__(self) -> PreparedFile:
        remove_parts(self._target)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def require(self, size: int) -> None:
        """Raise if the target exists or the disk has no space for `size` bytes of B and orbitals.

        Raises
        ------
        ResultExists, ResourceError
        """
        self._needed = size + OVERHEAD
        require_writable(self._target, overwrite=self._overwrite, expected_bytes=self._needed)

    def place(self, shapes: list[tuple[int, int]], naux: int) -> list[StoredTensor]:
        """Space in the file for B of each spin, (nocc, nvir), to be built there."""
        room = [(nocc, nvir, naux) for nocc, nvir in shapes]
        self._begin(room)
        self._placed = [
            (shape, StoredTensor(region, shape, orbital_groups(*shape), signed=True))
            for region, shape in zip(self._regions, room, strict=True)
        ]
        return [tensor for _, tensor in self._placed]

    def fill(self, b: list[Any], workers: int) -> None:
        """Store B of each spin, (nocc, nvir, naux) float64, unless it was built in the file.

        Raises
        ------
        ResourceError : the disk is full or fails
        """
        shapes = [tensor.shape for tensor in b]
        cuts = [orbital_groups(*shape) for shape in shapes]
        if self._placed and [shape for shape, _ in self._placed] == shapes:
            hashes = [tensor.digests for _, tensor in self._placed]
        else:  # built in memory, or smaller than reserved because of an eigenvalue cut
            self._begin(shapes)
            hashes = [
                self._copied(*one, workers) for one in zip(self._regions, b, cuts, strict=True)
            ]
        self._groups = [
            [(i0, i1, digest) for (i0, i1), digest in zip(groups, found, strict=True)]
            for groups, found in zip(cuts, hashes, strict=True)
        ]

    def seal(self, prepared: Prepared) -> None:
        """Store everything else and flush it to disk.

        Raises
        ------
        ResourceError : the disk is full or fails
        """
        with self._reported():
            with h5py.File(self._part, "r+", locking=False) as handle:
                store_prepared(handle, prepared, self._groups)
            os.fsync(self._descriptor)

    def publish(self) -> None:
        """Give the file its name.

        Raises
        ------
        ResultFileError : the target has appeared meanwhile and may not be replaced
        ResourceError : the folder cannot be written
        """
        with settled(self._target):
            move(self._part, self._target, overwrite=self._overwrite)
            self._stack.close()

    def _begin(self, shapes: list[Shape]) -> None:
        """Create a file with space for tensors of these shapes."""
        with self._reported():
            self._part = beside(self._target)
            self._descriptor = os.open(
                self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )
            self._stack.callback(os.close, self._descriptor)
            self._stack.callback(self._part.unlink, missing_ok=True)
            with h5py.File(self._part, "w", locking=False) as handle:
                offsets = allocate_b(handle, shapes)
        self._regions = [
            _Region(self._descriptor, offset, self._target, self._needed) for offset in offsets
        ]

    def _copied(
        self, region: FileRegion, tensor: Any, cuts: list[tuple[int, int]], workers: int
    ) -> tuple[str, ...]:
        """Copy the groups of a tensor, in memory or on disk, to the file and return their
        hashes."""
        hashes = [""] * len(cuts)

        def copy(number: int) -> None:
            i0, i1 = cuts[number]
            if isinstance(tensor, StoredTensor):
                rows = np.empty((i1 - i0, *tensor.shape[1:]))
                tensor.read(i0, i1, rows)
            else:
                rows = tensor[i0:i1]
            region.write(i0 * tensor.shape[1] * tensor.shape[2], rows)
            hashes[number] = numbers_hash(rows)

        each(len(cuts), copy, workers)
        return tuple(hashes)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Translate errors of the operating system and of HDF5."""
        try:
            yield
        except (
            OSError,
            RuntimeError,
        ) as error:  # RuntimeError: from HDF5 if the disk fills up on closing
            known = error if isinstance(error, OSError) and error.errno else None
            if known is None:
                known = OSError(errno.EIO, str(error).splitlines()[0])
            raise write_failure(
                self._target, known, self._needed, discarded=bytes_on_disk(self._descriptor)
            ) from error


def bytes_on_disk(descriptor: int) -> int:
    """Bytes that an open file takes on its disk, 0 if there is none."""
    try:
        return os.fstat(descriptor).st_blocks * 512
    except OSError:
        return 0


class _Region(FileRegion):
    """Numbers in a prepared file that is being written.

    Parameters
    ----------
    target : the file's final path
    needed : bytes of the whole file, None if unknown
    """

    def __init__(self, descriptor: int, offset: int, target: Path, needed: int | None) -> None:
        super().__init__(descriptor, offset, str(target))
        self._target, self._needed = target, needed

    def failure(self, error: OSError | None) -> Dfmp2Error:
        """As in FileRegion, with the space needed and left."""
        if error is None:
            return super().failure(None)
        return write_failure(
            self._target, error, self._needed, discarded=bytes_on_disk(self._descriptor)
        )


def store_prepared(handle: h5py.File, prepared: Prepared, digests: list[list[Group]]) -> None:
    """Store everything but B, which is already there, in a file."""
    items = {
        **calculation_items(prepared),
        NOTE: Dataset(prepared.frozen_core_note, "", "how the frozen core was counted"),
    }
    for name in KINDS:
        if name not in ("reference", *OF_REFERENCE):
            items |= record_items(name, getattr(prepared, name))
    items |= group_items(digests)
    contents = store_layout(handle, items, prepared.provenance.version)
    handle.attrs[PREPARED] = VERSION
    handle.attrs["content_sha256"] = fixed_text(hash_of(contents))
