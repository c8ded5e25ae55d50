"""Compiled programs (NEFF files) on disk, one folder per program and one file per compiler that made it.

    FOLDER/FINGERPRINT/COMPILER.neff   with COMPILER.json beside it: versions, seconds, SHA-256, what the program is

The fingerprint holds kernel sources, shapes, constants and chip, the file name the compiler's versions. Files appear
by renaming, failed compilations leave nothing, and a file whose SHA-256 does not match counts as absent; so nothing
broken is ever found here. A host without a compiler takes the file of the newest one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dfmp2.backends.nki.programs import Program
from dfmp2.disk import put
from dfmp2.errors import ResourceError


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program.

    Attributes
    ----------
    path : of the NEFF file; sha256 : of its contents
    compiler : versions, such as "nki 0.5.0, neuronx-cc 2.26.6360.0"
    entry : how the compiler was entered
    seconds : the compilation took
    """

    path: Path
    sha256: str
    compiler: str
    entry: str
    seconds: float


class NeffCache:
    """The folder of compiled programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, program: Program, target: str, compiler: Mapping[str, str]) -> Compiled | None:
        """The compiled program, None where there is none.

        Parameters
        ----------
        compiler : versions of the compiler here; empty where there is none, then any compiler's file will do
        """
        place = self.folder / program.fingerprint(target)
        if compiler:
            return _read(place / f"{_slug(named(compiler))}.json")
        found = [entry for file in place.glob("*.json") if (entry := _read(file)) is not None]
        return max(found, key=lambda entry: _numbers(entry.compiler), default=None)

    def add(
        self, program: Program, target: str, compiler: Mapping[str, str], made: Path, entry: str, seconds: float
    ) -> Compiled:
        """Keep a compiled program.

        Raises
        ------
        ResourceError : the folder cannot be written; what was in it counts as before
        """
        place = self.folder / program.fingerprint(target)
        name = _slug(named(compiler))
        contents = made.read_bytes()
        done = Compiled(
            place / f"{name}.neff", hashlib.sha256(contents).hexdigest(), named(compiler), entry, round(seconds, 3)
        )
        record = {**asdict(done), "path": done.path.name, "target": target, "program": asdict(program)}
        try:
            place.mkdir(parents=True, exist_ok=True)
            put(done.path, contents)
            try:
                put(done.path.with_suffix(".json"), json.dumps(record, indent=1).encode())
            except OSError:
                done.path.unlink(missing_ok=True)  # without its record it would never be found
                raise
        except OSError as error:
            raise ResourceError(
                f"cannot keep the compiled program in {self.folder}: {error.strerror}: free some space, or name "
                "another folder with DFMP2_NEFF_CACHE"
            ) from error
        return done


def named(compiler: Mapping[str, str]) -> str:
    """Versions in one text."""
    return ", ".join(f"{name} {version}" for name, version in sorted(compiler.items()))


def _read(record: Path) -> Compiled | None:
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        path = record.with_suffix(".neff")
        contents = path.read_bytes()
        done = Compiled(path, found["sha256"], found["compiler"], found["entry"], float(found["seconds"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return done if hashlib.sha256(contents).hexdigest() == done.sha256 else None


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+_-]+", "_", text)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
