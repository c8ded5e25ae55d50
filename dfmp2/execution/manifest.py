"""A batch: its molecules, how each is computed, and where results go. Read from TOML, or made of a list of files.

    basis = "cc-pvdz"             run options, "_" or "-"; they hold for every item
    output = "results"
    [[item]]
    molecule = "water.xyz"        name = "..." (default: the file's stem), and options that win over those above

Options and their types are those of `dfmp2.options.Options`. Paths are relative to the manifest's folder, or to --root,
and confined to it. Nothing is evaluated, and everything is checked before anything runs.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from dfmp2.backends.registry import names as backend_names
from dfmp2.errors import InputError
from dfmp2.molecule.frozen_core import count_core
from dfmp2.molecule.text import read_text
from dfmp2.options import Options

MAX_BYTES = 64 * 10**6
MAX_ITEMS = 100_000
LONGEST_NAME = 100
LONGEST_SHOWN = 60

# What a manifest may say beside the options of a calculation, with types.
OF_THE_MOLECULE: dict[str, Any] = {
    **{"charge": int, "multiplicity": int, "units": str},
    **{"point_charges": str, "point_charge_units": str},
}
TYPES = {**{field.name: get_type_hints(Options)[field.name] for field in fields(Options)}, **OF_THE_MOLECULE}
OF_THE_BATCH = ("memory", "threads", "scratch")  # they divide one machine among workers, so an item has none of its own
PATHS = ("scf_from", "scratch", "point_charges")
EXPECTED = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}
# What an option may be beside its own type: `frozen_core = 2` and `memory = "8GB"` say what they mean.
ALSO: dict[str, tuple[type, ...]] = {"frozen_core": (int,), "memory": (str,)}


@dataclass(frozen=True, slots=True)
class Item:
    """One molecule of a batch.

    Attributes
    ----------
    name : of its files in the output folder
    molecule : its file as it was given
    path : its file
    options : of the run; `memory`, `threads` and `scratch` are those of the whole batch
    given : what was said about its settings, to write it down
    charge, multiplicity : None for what the file says
    units : of the file
    point_charges, point_charge_units : file of charges around it, None for none, and the unit of their positions
    """

    name: str
    molecule: str
    path: Path
    options: Options
    given: Mapping[str, Any]
    charge: int | None = None
    multiplicity: int | None = None
    units: str = "angstrom"
    point_charges: str | None = None
    point_charge_units: str = "angstrom"


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
        output = _confined(root, given, f"{file}: output")
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
    own = _read_settings(values, "command line")
    items = [Item(slug(Path(file).stem), file, root / file, given=dict(values), **own) for file in files]
    return _make_batch("", root, output, items)


def read_values(table: Mapping[str, Any], other: tuple[str, ...], where: str) -> dict[str, Any]:
    """The options in a table, under their names with underscores.

    Parameters
    ----------
    other : keys of the table that are no options
    where : the place, for errors

    Raises
    ------
    InputError : an unknown key, one that is given twice, or a value of another type
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in other:
            continue
        if name not in TYPES:
            close = difflib.get_close_matches(name, [*TYPES, *other], n=1)
            advice = f"did you mean {close[0]}?" if close else "expected the long name of an option of dfmp2 run"
            raise InputError(f"{where}: unknown key {key!r}: {advice}")
        if name in values:
            raise InputError(f"{where}: {key!r} is given twice, with _ and with -: keep one")
        values[name] = _checked(name, value, f"{where}: {key}")
    return values


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
            given[name] = str(_confined(root, given[name], f"{where}: {name}"))
    called = table.get("name", Path(molecule).stem)
    if not isinstance(called, str) or not slug(called):
        raise InputError(f"{where}: name = {called!r}: expected text with letters or digits")
    path = _confined(root, molecule, f"{where}: molecule")
    return Item(slug(called), molecule, path, given=given, **_read_settings(given, where))


def _read_settings(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of an item, from values that `read_values` has checked.

    Raises
    ------
    InputError : no basis, or a value that is not allowed
    """
    if "basis" not in values:
        raise InputError(f'{where}: no basis: name an orbital basis, e.g. basis = "cc-pvdz"')
    own = {name: values[name] for name in OF_THE_MOLECULE if name in values}
    for name in ("units", "point_charge_units"):
        if own.get(name, "angstrom") not in ("angstrom", "bohr"):
            raise InputError(f"{where}: {name} {own[name]!r}: expected angstrom or bohr")
    if own.get("multiplicity", 1) < 1:
        raise InputError(f"{where}: multiplicity {own['multiplicity']}: expected 2S + 1, so 1 (singlet) or more")
    try:
        options = Options(**{name: value for name, value in values.items() if name not in OF_THE_MOLECULE})
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if options.backend not in backend_names():
        raise InputError(f"{where}: backend {options.backend!r}: expected one of {', '.join(backend_names())}")
    return {"options": options, **own}


def _checked(name: str, value: Any, where: str) -> Any:
    """The value of an option, if it is of the option's type."""
    kinds = [kind for kind in EXPECTED if TYPES[name] is kind or str(TYPES[name]).startswith(f"{kind.__name__} |")]
    allowed = (*kinds, *ALSO.get(name, ()), *((int,) if float in kinds else ()))
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, allowed):
        raise InputError(f"{where} = {value!r}: expected {EXPECTED[kinds[0]]}")
    if name == "frozen_core":
        text = str(value).strip().lower()
        if not text.isdigit():
            try:
                count_core("H", text, 0)
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
        return text
    try:
        return float(value) if float in kinds else value
    except OverflowError as error:
        raise InputError(f"{where}: {EXPECTED[float]} below 1e308 is expected") from error


def _confined(root: Path, given: str, where: str) -> Path:
    """The file or folder that a manifest names, which must lie under `root` also when links are followed.

    Raises
    ------
    InputError : it lies elsewhere
    """
    try:
        base = root.resolve()
        found = (base / given).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, or links in a circle
        raise InputError(f"{where}: {given!r} is no usable path ({error})") from error
    if not given or not found.is_relative_to(base):
        raise InputError(
            f"{where}: {given!r} is not below {root}: expected a path inside that folder (links may not lead out of "
            "it); --root names another folder"
        )
    return found


def _make_batch(source: str, root: Path, output: Path, items: Sequence[Item]) -> Batch:
    file = source or "command line"
    if len(items) > MAX_ITEMS:
        raise InputError(f"{file}: {len(items)} items: at most {MAX_ITEMS} are accepted; split the batch")
    if not items:
        raise InputError(f"{file}: no molecule: name a manifest or xyz files")
    seen: dict[str, tuple[int, Item]] = {}  # also where file names differ in case only
    for number, item in enumerate(items, start=1):
        if not item.name:
            raise InputError(f"{file}: item {number} ({item.molecule}): its file name makes no name: use a manifest")
        first, other = seen.setdefault(item.name.casefold(), (number, item))
        if first != number:
            raise InputError(
                f"{file}: items {first} ({other.molecule}) and {number} ({item.molecule}) are both named "
                f"{item.name!r}: give one of them another name"
            )
    if output.exists() and not output.is_dir():
        raise InputError(f"{file}: output {output} is a file: name a folder")
    return Batch(source, root, output, tuple(items))
