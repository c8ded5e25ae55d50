"""The inputs of a batch in one file: its manifest, its molecules, and orbitals that it starts from.

    dfmp2-batch.toml    written anew, so that no path leads anywhere but into the package
    molecules/...       as they were named, where that is below the manifest's folder
    start/SHA256        files of `scf-from`
    charges/SHA256      files of `point-charges`

The same inputs give the same bytes, so that the name of the object in S3 can be the SHA-256 of what is in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dfmp2.errors import InputError, ResourceError
from dfmp2.execution.manifest import OF_THE_BATCH, Batch, Item

MANIFEST = "dfmp2-batch.toml"
OUTPUT = "results"  # below the folder of the manifest
LARGEST_FILE = 4 * 10**9  # bytes
MOST_FILES = 300_000


@dataclass(frozen=True, slots=True, eq=False)
class Package:
    """Inputs as they are sent.

    Attributes
    ----------
    content : a tar archive
    files : how many are in it
    """

    content: bytes
    files: int

    @property
    def name(self) -> str:
        """Of the object: the same for the same inputs."""
        return f"{hashlib.sha256(self.content).hexdigest()[:32]}.tar"


def pack(batch: Batch) -> Package:
    """The inputs of a batch.

    Raises
    ------
    InputError : a file cannot be read
    """
    files: dict[str, bytes] = {}
    items = [_pack_item(batch, item, files) for item in batch.items]
    shared = {key: value for key, value in batch.items[0].given.items() if key in ("memory", "threads")}
    lines = [*_assignments({"output": OUTPUT, **shared}), ""]
    for values in items:
        lines += ["[[item]]", *_assignments(values), ""]
    files[MANIFEST] = "\n".join(lines).encode()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)  # of no owner and no time
            entry.size = len(files[name])
            archive.addfile(entry, io.BytesIO(files[name]))
    return Package(stream.getvalue(), len(files))


def unpack(archive: Path, folder: Path) -> Path:
    """Put the files of a package into a folder; its manifest.

    Raises
    ------
    InputError : it is no package
    ResourceError : the folder cannot be written
    """
    try:
        with tarfile.open(archive, mode="r:") as files:
            entries = files.getmembers()
            if len(entries) > MOST_FILES or not all(entry.isreg() and entry.size <= LARGEST_FILE for entry in entries):
                raise InputError(f"{archive} is no package of inputs: it holds more than regular files of their size")
            for entry in entries:
                _extract(files, entry, folder)
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"{archive} is no package of inputs ({error}): submit the batch again") from error
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise InputError(f"{archive} is no package of inputs: there is no {MANIFEST} in it")
    return manifest


def _extract(files: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    """Write one file; the library's own filters are missing before Python 3.11.4."""
    name = PurePosixPath(entry.name)
    content = files.extractfile(entry)
    if name.is_absolute() or ".." in name.parts or content is None:
        raise InputError(f"{entry.name!r} leads out of the folder, so this is no package of inputs")
    target = folder / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as stream:
            shutil.copyfileobj(content, stream)
    except OSError as error:
        raise ResourceError(f"cannot write {target}: {error.strerror}: free some space in {folder}") from error


def _pack_item(batch: Batch, item: Item, files: dict[str, bytes]) -> dict[str, Any]:
    """Values of an item in the new manifest; its files are added to `files`."""
    values = {name: value for name, value in item.given.items() if name not in OF_THE_BATCH}
    for key, folder in (("scf_from", "start"), ("point_charges", "charges")):
        if values.get(key) is not None:
            content = _read(Path(values[key]), f"item {item.name}: {key.replace('_', '-')}")
            values[key] = f"{folder}/{hashlib.sha256(content).hexdigest()}"
            files[values[key]] = content
    name = _below(batch.root, item)
    files[name] = _read(item.path, f"item {item.name}: molecule")
    return {"name": item.name, "molecule": name, **values}


def _below(root: Path, item: Item) -> str:
    """Name of a molecule in the package."""
    try:
        return f"molecules/{item.path.resolve().relative_to(root.resolve()).as_posix()}"
    except ValueError:  # named on the command line, from anywhere
        return f"molecules/{item.name}.xyz"


def _read(path: Path, what: str) -> bytes:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{what}: {path} is no regular file of at most {LARGEST_FILE // 10**9} GB")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{what}: {path} cannot be read ({error.strerror})") from error


def _assignments(values: Mapping[str, Any]) -> Iterator[str]:
    """Lines of TOML, whose strings, numbers and truth values look as in JSON; but DEL must be escaped."""
    for key, value in values.items():
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
