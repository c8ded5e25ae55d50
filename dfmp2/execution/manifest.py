"""A batch: its molecules, how each is computed, and where results go; read from TOML or made from a
list of files.

    basis = "cc-pvdz"             run options, with "_" or "-"; they apply to every item
    output = "results"
    [[item]]
    molecule = "water.xyz"        name = "..." (default: the file's stem), and options that override those above

    frame = 3                     one frame of a multi-frame file; frames = "all" makes an item of each

Options and their types are those of `dfmp2.options.Options`. Paths are relative to the manifest's
folder, or to --root, and confined to it. Nothing is evaluated, and everything is checked before
anything runs.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dfmp2.backends.registry import names as backend_names
from dfmp2.errors import InputError, Option
from dfmp2.errors.messages import COMMAND_LINE, MANIFEST, ManifestWords, Placeholder, in_words
from dfmp2.errors.wishes import require_known_option
from dfmp2.host.files import OUTPUT, make_folder, write_atomically
from dfmp2.molecule.files import DATABASE, frames_in, units_alone
from dfmp2.molecule.frozen_core import count_core
from dfmp2.molecule.text import read_text
from dfmp2.options import ALL, KEPT, OF_THE_MACHINE, Options
from dfmp2.options.basis_parts import change_files

MAX_BYTES = 64 * 10**6
LONGEST_NAME = 100  # bytes
LONGEST_SHOWN = 60
OPTIMIZE = "optimize"  # a task of an item

# Values of `task` in a manifest; their functions are in `dfmp2.execution.items`.
TASKS = ("energy", "properties", "gradient", OPTIMIZE)
# Keys of a manifest other than the options of a calculation: type or choices.
OF_THE_ITEM: dict[str, Any] = {
    "charge": int,
    "multiplicity": int,
    "units": ("angstrom", "bohr"),
    "task": TASKS,
    "keep": KEPT,
    "smiles": str,
    "frame": int,
    "frames": ("all",),
    "point_charges": str,
    "point_charge_units": ("angstrom", "bohr"),
}
KNOWN = (*(field.name for field in fields(Options)), *OF_THE_ITEM)
FLOATS = {field.name for field in fields(Options) if str(field.type).startswith("float")}
PATHS = ("scf_from", "scratch", "point_charges")
LEFT_MANIFEST = "batch.toml"  # in the output folder of a batch made from files
COMPILED = ("nki", "nki-xla")  # backends that launch compiled programs


class ItemWords(ManifestWords):
    """As in a manifest; options that it does not have, such as --workers, as on the command
    line."""

    def option(self, option: Option) -> str:
        """The key or the option, and its value."""
        if option.name in KNOWN:
            return super().option(option)
        return COMMAND_LINE.option(option)


OF_ITEMS = ItemWords()

LEAST_ONE = {  # numbers that begin with 1, and what is expected of them
    "frame": "the number of a frame, 1 or more",
    "multiplicity": "2S + 1, so 1 (singlet) or more",
}


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One molecule of a batch: the name of its output files, its input file as given and as
    located, and how it is computed.

    `target` is its result file. `given` is its full specification: options by name, and the keys in
    OF_THE_ITEM. Memory, threads and scratch in its options are those of the whole batch.
    """

    name: str
    molecule: str
    path: Path
    options: Options
    given: Mapping[str, Any]
    target: Path

    @property
    def keep(self) -> str:
        """How much of its result is stored, one of KEPT."""
        return str(self.given.get("keep", ALL))

    @property
    def task(self) -> str:
        """What to compute, one of TASKS."""
        asked = str(self.given.get("task", "energy"))
        if asked == "energy" and self.options.properties:
            return "properties"
        return asked

    @property
    def planned_task(self) -> str:
        """The task as planned: an optimisation counts as one gradient."""
        if self.task == OPTIMIZE:
            return "gradient"
        return self.task


@dataclass(frozen=True, slots=True)
class Batch:
    """All items, with unique names, in the given order.

    `source` is the manifest, "" if the files were given on the command line; `root` is the folder
    that paths are relative to, `output` that of the results.
    """

    source: str
    root: Path
    output: Path
    items: tuple[BatchItem, ...]

    @property
    def device(self) -> str:
        """The backend whose devices are distributed among workers."""
        return self.asks_for(*COMPILED, "cuda", "cuda-tf32", "auto") or "cpu"

    @property
    def optimizes(self) -> bool:
        """Whether the geometry of any item is to be optimised."""
        return any(item.task == OPTIMIZE for item in self.items)

    def worded(self, message: str) -> str:
        """A message about an item, with the keys of its manifest as they are written there."""
        if not self.source:
            return message
        return in_words(message, OF_ITEMS)

    def asks_for(self, *backends: str) -> str | None:
        """The first of these backends that an item requests."""
        asked = {item.options.backend for item in self.items}
        return next((name for name in backends if name in asked), None)


def read_manifest(
    path: str | Path, *, root: str | Path | None = None, output: str | Path | None = None
) -> Batch:
    """The batch described by a manifest; no other file is read.

    Paths are relative to `root`, None for the manifest's own folder; `output` overrides that in the
    manifest.
    """
    file, table = _read_table(path)
    return _batch_of(file, table, Path(path).parent if root is None else Path(root), output)


def _read_table(path: str | Path) -> tuple[str, dict[str, Any]]:
    """The name of a manifest for messages, and its content."""
    file, text = read_text(
        path, MAX_BYTES, f"more than {MAX_BYTES // 10**6} MB: split the batch", "a TOML manifest"
    )
    try:
        return file, tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, or a number with thousands of digits
        raise InputError(f"not TOML ({error}): correct the manifest", file=file) from error


def _batch_of(file: str, table: Mapping[str, Any], root: Path, output: str | Path | None) -> Batch:
    """The batch described by the content of a manifest; parameters as in `read_manifest`."""
    _existing(root)
    common = _read_values(table, ("output", "item"), file)
    tables = _tables_of_items(table, file)
    if output is None and "output" not in table:
        advice = ""
        if _is_left(table):
            folder = Path(file).parent
            advice = (
                f"if dfmp2 batch run FILE... left this manifest, name its folder, {folder}; or "
            )
        raise InputError(
            f'no output: {advice}add output = "FOLDER", or pass ',
            Option("output", Placeholder("FOLDER")),
            file=file,
        )
    if output is None:
        output = _confined(root, table["output"], f"{file}: output")
    output = Path(output)
    items: list[BatchItem] = []
    for number, one in enumerate(tables, start=1):
        item = _read_item(one, common, root, output, f"{file}, item {number}")
        database = item.path.suffix.lower() == DATABASE and "frame" not in item.given
        if database or "frames" in item.given:
            items += _each_frame(item)
        else:
            items.append(item)
    return _checked(Batch(source=file, root=root, output=output, items=tuple(items)))


def _existing(root: Path) -> Path:
    """The folder that paths are relative to, which must exist."""
    if not root.is_dir():
        raise InputError(Option("root", root), ": there is no such folder")
    return root


def _tables_of_items(table: Mapping[str, Any], file: str) -> list[dict[str, Any]]:
    """The tables [[item]] of a manifest, of which there must be one."""
    tables = table.get("item")
    if isinstance(tables, list) and tables and all(isinstance(one, dict) for one in tables):
        return tables
    raise InputError(
        'no [[item]]: expected one table [[item]] with molecule = "FILE" per molecule', file=file
    )


def read_batch(
    source: str | Path, *, root: str | Path | None = None, output: str | Path | None = None
) -> Batch:
    """The batch of a manifest, or of a folder with one: that which a batch of files has left with
    its results, or a user's own.

    Raises
    ------
    InputError : there is no manifest, it is invalid, or that left in the folder was written by
        another user and so might name any file
    """
    folder = Path(source)
    if not folder.is_dir():
        return read_manifest(source, root=root, output=output)
    manifest = folder / LEFT_MANIFEST
    try:
        found = manifest.is_file()
    except OSError as error:
        raise InputError(
            f"{manifest} cannot be read ({error.strerror}): check the permissions of the folder"
        ) from error
    if not found:
        raise InputError(
            f"{folder} is a folder without {LEFT_MANIFEST}, which dfmp2 batch run FILE... leaves "
            "in its output folder: name the manifest of the batch"
        )
    file, table = _read_table(manifest)
    if not _is_left(table):
        return _batch_of(file, table, Path(root or folder), output)
    if root is None and manifest.stat().st_uid != os.geteuid():
        raise InputError(
            f"{manifest} was written by another user: name the folder that its files must be in "
            "with ",
            Option("root", Placeholder("DIR")),
        )
    return _batch_of(file, table, Path(root or folder.anchor or "/"), output or folder)


def holds_manifest(folder: str | Path) -> bool:
    """Whether a folder holds the manifest of a batch, which `read_batch` reads."""
    return os.path.isfile(os.path.join(folder, LEFT_MANIFEST))


def _is_left(table: Mapping[str, Any]) -> bool:
    """Whether the content of a manifest has the form of `manifest_of`: absolute paths, and no
    output."""
    items = table.get("item")
    if "output" in table or not isinstance(items, list):
        return False
    return all(
        isinstance(item, dict) and os.path.isabs(str(item.get("molecule"))) for item in items
    )


def leave_manifest(batch: Batch) -> None:
    """Write a manifest of a batch of files to its output folder, which can then be used in its
    place.

    Raises
    ------
    InputError : the folder has another manifest of that name, or a path is not UTF-8
    ResourceError : it cannot be written
    """
    content = manifest_of(batch)
    target = batch.output / LEFT_MANIFEST
    if os.path.lexists(target):
        _require_left(target)
    make_folder(batch.output)
    write_atomically(target, content, overwrite=True)


def _require_left(manifest: Path) -> None:
    """Raise for a manifest that no batch of files has left."""
    left = False
    with suppress(InputError):
        left = _is_left(_read_table(manifest)[1])
    if not left:
        raise InputError(
            f"{manifest} is another manifest, in whose place that of these files would be left: ",
            "name another folder with ",
            OUTPUT,
        )


def manifest_lines(values: Mapping[str, Any]) -> list[str]:
    """Values as lines of a manifest; TOML strings, numbers and booleans are written as in JSON,
    except that DEL must be escaped."""
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, value in values.items()
    ]


def manifest_of(batch: Batch) -> bytes:
    """A manifest of the batch with absolute paths, for its output folder.

    Raises
    ------
    InputError : a path is not UTF-8, and TOML holds nothing else
    """
    text = list[str]()
    for item in batch.items:
        # As the options have them: in Python they may be given in other types
        values = {name: getattr(item.options, name, value) for name, value in item.given.items()}
        values = {name: value for name, value in values.items() if value is not None}
        machine = {name: values.pop(name) for name in OF_THE_MACHINE if name in values}
        text = text or manifest_lines(machine)
        values |= {"basis": item.given["basis"], "name": item.name, "molecule": str(item.path)}
        text += ["[[item]]", *manifest_lines(values)]
    try:
        return "\n".join([*text, ""]).encode()
    except UnicodeEncodeError as error:
        line = text[error.object.count("\n", 0, error.start)]
        raise InputError(
            f"{line}: the name is not UTF-8, as it must be in {LEFT_MANIFEST}: rename the file or "
            "its folder"
        ) from error


def make_batch(
    files: Sequence[str], values: Mapping[str, Any], output: Path, root: str | Path | None = None
) -> Batch:
    """The batch of files given on the command line, relative to `root`, all computed with the same
    `values`."""
    # Absolute, since workers on a cluster have other working directories.
    root = Path.cwd() / _existing(Path(root or ""))
    given = {
        name: str(root / x) if name in ("point_charges", "scf_from") else x
        for name, x in values.items()
    }
    if given.get("scratch") is not None:
        given["scratch"] = os.path.abspath(given["scratch"])
    if isinstance(given.get("basis"), str):
        given["basis"] = change_files(
            given["basis"], lambda file: str(root / os.path.expanduser(file))
        )
    options = options_of_item(given)
    items = []
    for file in files:
        name = slug(Path(file).stem)
        item = BatchItem(
            name=name,
            molecule=file,
            path=root / file,
            options=options,
            given=given,
            target=output.absolute() / f"{name}.h5",
        )
        items += _each_frame(item)
    return _checked(Batch(source="", root=root, output=output, items=tuple(items)))


def _each_frame(item: BatchItem) -> list[BatchItem]:
    """An item for each frame of its file, named NAME-0001 or by the frame's own name; the item
    itself if the file holds one molecule."""
    frames = frames_in(item.path)
    if not frames:
        return [item]
    items = []
    for frame in frames:
        name = slug(frame.name) or numbered(item.name, f"{frame.number:04d}")
        given = {key: value for key, value in item.given.items() if key != "frames"}
        items.append(
            replace(
                item,
                name=name,
                given={**given, "frame": frame.number},
                target=item.target.with_name(f"{name}.h5"),
            )
        )
    return items


def _read_values(table: Mapping[str, Any], other: tuple[str, ...], where: str) -> dict[str, Any]:
    """The options in a table except its `other` keys, under names with underscores."""
    values: dict[str, Any] = {}
    try:
        known = [*KNOWN, *other]
        require_known_option(table, [*known, *(name.replace("_", "-") for name in known)], known)
    except InputError as error:
        error.speak(MANIFEST)
        raise error.prefixed(where) from error
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in other:
            continue
        if name in values:
            raise InputError(f"{where}: {key!r} is given twice, with _ and with -: keep one")
        values[name] = value
    return values


def slug(text: str) -> str:
    """Text as a file name: letters and digits of any script, "." "_" "+" "-", not starting with a
    dot, at most 100 bytes; "" if nothing is left."""
    plain = re.sub(r"[^\w.+-]+", "_", unicodedata.normalize("NFC", text)).lstrip(".-")
    return plain.encode()[:LONGEST_NAME].decode(errors="ignore").rstrip(".")


def numbered(name: str, number: str) -> str:
    """NAME-NUMBER with NAME cut to fit, so that a manifest with this name gives it again."""
    room = LONGEST_NAME - len(number) - 1
    return f"{name.encode()[:room].decode(errors='ignore').rstrip('.')}-{number}"


def _read_item(
    table: Mapping[str, Any], common: Mapping[str, Any], root: Path, output: Path, where: str
) -> BatchItem:
    own = _read_values(table, ("molecule", "name"), where)
    molecule = table.get("molecule")
    if not isinstance(molecule, str):
        raise InputError(f'{where}: no molecule: expected molecule = "FILE"')
    where = f"{where} ({molecule[:LONGEST_SHOWN]})"
    for name in OF_THE_MACHINE:
        if name in own:
            raise InputError(
                f"{where}: {name} belongs to the batch as a whole: move it above the first [[item]]"
            )
    given = {**common, **own}
    given |= {
        name: str(_confined(root, given[name], f"{where}: {name}"))
        for name in PATHS
        if name in given
    }
    if isinstance(given.get("basis"), str) and given["basis"].strip():
        given["basis"] = change_files(
            given["basis"], lambda file: str(_confined(root, file, f"{where}: basis"))
        )
    called = table.get("name", Path(molecule).stem)
    if not isinstance(called, str) or not slug(called):
        raise InputError(f"{where}: name = {called!r}: expected text with letters or digits")
    path = _confined(root, molecule, f"{where}: molecule")
    name = slug(called)
    try:
        options = options_of_item(given)
    except InputError as error:
        error.speak(MANIFEST)
        raise error.prefixed(where) from error
    return BatchItem(
        name=name,
        molecule=molecule,
        path=path,
        options=options,
        given=given,
        target=output.absolute() / f"{name}.h5",
    )


def options_of_item(given: Mapping[str, Any]) -> Options:
    """The options in the specification of an item, which is checked completely."""
    if "basis" not in given:
        raise InputError("no basis: name an orbital basis, e.g. ", Option("basis", "cc-pvdz"))
    for name, value in given.items():
        _require_allowed(name, value)
    for name, expected in LEAST_ONE.items():
        if given.get(name, 1) < 1:
            raise InputError(Option(name, given[name]), f": expected {expected}")
    rest = {name: value for name, value in given.items() if name not in OF_THE_ITEM}
    try:
        rest |= {
            name: float(rest[name]) for name in FLOATS & rest.keys() if type(rest[name]) is int
        }
        options = Options(**rest)
        if not options.frozen_core.isdigit():
            count_core("H", options.frozen_core, 0)
    except (TypeError, OverflowError) as error:
        raise InputError(str(error)) from error
    return options


def _require_allowed(name: str, value: object) -> None:
    """Raise for a value of an item that is not among those allowed, or of another type."""
    allowed: tuple[str, ...] | type | None = OF_THE_ITEM.get(name)
    if name == "backend":
        allowed = tuple(backend_names())
    if isinstance(allowed, tuple) and value not in allowed:
        raise InputError(Option(name, value), f": expected {_one_of(allowed)}")
    if isinstance(allowed, type) and type(value) is not allowed:
        expected = "text in quotes" if allowed is str else "a whole number"
        raise InputError(Option(name, value), f": expected {expected}")


def _one_of(allowed: Sequence[str]) -> str:
    """The values that are allowed, for a message."""
    if len(allowed) == 1:
        return allowed[0]
    return f"one of {', '.join(allowed)}"


def _confined(root: Path, given: Any, where: str) -> Path:
    """The file or folder named in a manifest, which must be inside `root` even after following
    links."""
    if not isinstance(given, str):
        raise InputError(f"{where}: {given!r} is no path: expected text")
    base = root.resolve()
    try:
        found = (base / given).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # NUL, circular links
        raise InputError(f"{where}: {given!r} is no usable path ({error})") from error
    if not given or not found.is_relative_to(base):
        raise InputError(
            (
                f"{where}: {given!r} is not below {root}: expected a path inside that folder "
                "(links may not lead out of it); "
            ),
            Option("root"),
            " names another folder",
        )
    return found


def _checked(batch: Batch) -> Batch:
    """The batch with numbers appended to repeated names; raises InputError if it is empty."""
    file = batch.source or None
    if not batch.items:
        raise InputError("no molecule: name a manifest or files of molecules", file=file)
    units = {item.given.get("point_charge_units", "angstrom") for item in batch.items}
    if "bohr" in units and not any("point_charges" in item.given for item in batch.items):
        error = units_alone("bohr")
        if file is None:
            raise error
        error.speak(MANIFEST)
        raise error.prefixed(file)
    wanted = {item.name.casefold() for item in batch.items}  # file names may ignore case
    taken = set[str]()
    items = []
    for number, item in enumerate(batch.items, start=1):
        if not item.name:
            raise InputError(
                f"item {number} ({item.molecule}): its file name makes no name: use a manifest",
                file=file,
            )
        name, count = item.name, 1
        while name.casefold() in taken or (count > 1 and name.casefold() in wanted):
            count += 1
            name = numbered(item.name, str(count))
        taken.add(name.casefold())
        if count > 1:
            item = replace(item, name=name, target=item.target.with_name(f"{name}.h5"))
        items.append(item)
    if batch.output.exists() and not batch.output.is_dir():
        raise InputError(f"output {batch.output} is a file: name a folder", file=file)
    return replace(batch, items=tuple(items))
