"""What a manifest may say about a run: the options of `dfmp2 run`, with their types.

A key is the long name of an option with "_" or "-". Values are checked here, before anything runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from dfmp2.backends.registry import names as backend_names
from dfmp2.errors import InputError
from dfmp2.frozen_core import count_core
from dfmp2.options import Options

OF_THE_MOLECULE: dict[str, Any] = {
    **{"charge": int, "multiplicity": int, "units": str},
    **{"point_charges": str, "point_charge_units": str},
}
OF_THE_BATCH = ("memory", "threads", "scratch")  # they divide one machine among workers, so an item has none of its own
PATHS = ("scf_from", "scratch", "point_charges")
KINDS = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}
# What an option may be beside its own type: `frozen_core = 2` and `memory = "8GB"` say what they mean.
ALSO: dict[str, tuple[type, ...]] = {"frozen_core": (int,), "memory": (str,)}


@dataclass(frozen=True, slots=True)
class Settings:
    """How one molecule is read and computed.

    Attributes
    ----------
    options : of the run
    charge, multiplicity : None for what the file says
    units : of the file
    point_charges, point_charge_units : file of charges around it, None for none, and the unit of their positions
    """

    options: Options
    charge: int | None = None
    multiplicity: int | None = None
    units: str = "angstrom"
    point_charges: str | None = None
    point_charge_units: str = "angstrom"


def known_keys() -> list[str]:
    """Every key that sets an option, with underscores."""
    return [*OF_THE_MOLECULE, *(field.name for field in fields(Options))]


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
    hints = {**get_type_hints(Options), **OF_THE_MOLECULE}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in other:
            continue
        if name not in known_keys():
            close = difflib.get_close_matches(name, [*known_keys(), *other], n=1)
            advice = f"did you mean {close[0]}?" if close else "expected the long name of an option of dfmp2 run"
            raise InputError(f"{where}: unknown key {key!r}: {advice}")
        if name in values:
            raise InputError(f"{where}: {key!r} is given twice, with _ and with -: keep one")
        values[name] = _checked(name, value, hints[name], f"{where}: {key}")
    return values


def make_settings(values: Mapping[str, Any], where: str) -> Settings:
    """Settings from values that `read_values` returned.

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
    return Settings(options, **own)


def confined(root: Path, given: str, where: str) -> Path:
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


def _checked(name: str, value: Any, hint: Any, where: str) -> Any:
    kinds = [kind for kind in KINDS if hint is kind or str(hint).startswith(f"{kind.__name__} |")]
    allowed = (*kinds, *ALSO.get(name, ()), *((int,) if float in kinds else ()))
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, allowed):
        raise InputError(f"{where} = {value!r}: expected {KINDS[kinds[0]]}")
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
        raise InputError(f"{where}: {KINDS[float]} below 1e308 is expected") from error
