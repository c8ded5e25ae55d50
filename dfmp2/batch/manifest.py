"""A batch: its molecules, how each is computed, and where results go. Read from TOML, or made of a list of files.

    basis = "cc-pvdz"             run options, "_" or "-"; they hold for every item
    output = "results"
    [[item]]
    molecule = "water.xyz"        name = "..." (default: the file's stem), and options that win over those above

Paths are relative to the manifest's folder, or to --root, and confined to it. Nothing is evaluated.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfmp2.batch.settings import OF_THE_BATCH, PATHS, Settings, confined, make_settings, read_values
from dfmp2.errors import InputError
from dfmp2.io.text_file import read_text

MAX_BYTES = 64 * 10**6
MAX_ITEMS = 100_000
LONGEST_NAME = 100
LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Item:
    """One molecule of a batch.

    Attributes
    ----------
    name : of its files in the output folder
    molecule : its file as it was given
    path : its file
    settings : how it is computed; `memory` and `threads` are those of the whole batch
    given : what was said about its settings, to write it down
    """

    name: str
    molecule: str
    path: Path
    settings: Settings
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """All items, in the order in which they were given.

    Attributes
    ----------
    source : the manifest, "" when the files were named on the command line
    root : folder that paths are relative to
    output : folder of the results
    items : with different names
    """

    source: str
    root: Path
    output: Path
    items: tuple[Item, ...]

    def result(self, item: Item) -> Path:
        """Where the result of an item goes."""
        return self.output / f"{item.name}.h5"

    def failure(self, item: Item) -> Path:
        """Where the error of an item goes."""
        return self.output / f"{item.name}.error.json"


def read_manifest(path: str | Path, *, root: Path | None = None, output: Path | None = None) -> Batch:
    """The batch a manifest describes; nothing but the manifest is read.

    Parameters
    ----------
    root : folder that paths are relative to, None for the manifest's own
    output : wins over the manifest's

    Raises
    ------
    InputError : naming file, key and item
    """
    file, text = read_text(path, MAX_BYTES, f"more than {MAX_BYTES // 10**6} MB: split the batch", "a TOML manifest")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, or a number of thousands of digits
        raise InputError(f"not TOML ({error}): correct the manifest", file=file) from error
    if root is not None and not root.is_dir():
        raise InputError(f"--root {root}: there is no such folder")
    root = Path(path).parent if root is None else root
    common = read_values(table, ("output", "item"), file)
    tables = table.get("item")
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise InputError('no [[item]]: expected one table [[item]] with molecule = "FILE" per molecule', file=file)
    if output is None:
        given = table.get("output")
        if not isinstance(given, str):
            raise InputError('no output: add output = "FOLDER", or pass --output FOLDER', file=file)
        output = confined(root, given, f"{file}: output")
    items = [_read_item(one, common, root, f"{file}, item {number}") for number, one in enumerate(tables, start=1)]
    return _make_batch(file, root, output, items)


def make_batch(files: Sequence[str], values: Mapping[str, Any], output: Path, root: Path | None = None) -> Batch:
    """The batch of files named on the command line, all computed alike.

    Parameters
    ----------
    values : option names with underscores
    root : folder that their names are relative to, None for the working directory

    Raises
    ------
    InputError : a bad value, or two files of the same name
    """
    root = Path.cwd() if root is None else root
    if "point_charges" in values:  # found again from another folder, as the molecules are
        values = {**values, "point_charges": str(root / values["point_charges"])}
    settings = make_settings(values, "command line")
    items = [Item(slug(Path(file).stem), file, root / file, settings, dict(values)) for file in files]
    return _make_batch("", root, output, items)


def slug(text: str) -> str:
    """Text as a file name: letters, digits, "." "_" "-", not starting with a dot; "" when nothing is left."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", text).lstrip(".-")[:LONGEST_NAME].rstrip(".")


def _read_item(table: Mapping[str, Any], common: Mapping[str, Any], root: Path, where: str) -> Item:
    molecule = table.get("molecule")
    if not isinstance(molecule, str):
        close = difflib.get_close_matches("molecule", list(table), n=1)
        meant = f" (is {close[0]!r} meant?)" if close and close[0] != "molecule" else ""
        raise InputError(f'{where}: no molecule{meant}: expected molecule = "FILE"')
    where = f"{where} ({molecule[:LONGEST_SHOWN]})"
    own = read_values(table, ("molecule", "name"), where)
    for name in OF_THE_BATCH:
        if name in own:
            raise InputError(f"{where}: {name} belongs to the batch as a whole: move it above the first [[item]]")
    given = {**common, **own}
    for name in PATHS:
        if name in given:
            given[name] = str(confined(root, given[name], f"{where}: {name}"))
    called = table.get("name", Path(molecule).stem)
    if not isinstance(called, str) or not slug(called):
        raise InputError(f"{where}: name = {called!r}: expected text with letters or digits")
    path = confined(root, molecule, f"{where}: molecule")
    return Item(slug(called), molecule, path, make_settings(given, where), given)


def _make_batch(source: str, root: Path, output: Path, items: Sequence[Item]) -> Batch:
    file = source or "command line"
    if len(items) > MAX_ITEMS:
        raise InputError(f"{file}: {len(items)} items: at most {MAX_ITEMS} are accepted; split the batch")
    if not items:
        raise InputError(f"{file}: no molecule: name a manifest or xyz files")
    _require_distinct(items, file)
    if output.exists() and not output.is_dir():
        raise InputError(f"{file}: output {output} is a file: name a folder")
    return Batch(source, root, output, tuple(items))


def _require_distinct(items: Iterable[Item], file: str) -> None:
    """Refuse two items whose files would be the same, also where file names differ in case only."""
    seen: dict[str, tuple[int, Item]] = {}
    for number, item in enumerate(items, start=1):
        if not item.name:
            raise InputError(f"{file}: item {number} ({item.molecule}): its file name makes no name: use a manifest")
        first, other = seen.setdefault(item.name.casefold(), (number, item))
        if first != number:
            raise InputError(
                f"{file}: items {first} ({other.molecule}) and {number} ({item.molecule}) are both named "
                f"{item.name!r}: give one of them another name"
            )
