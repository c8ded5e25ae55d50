"""The options of a calculation from keywords of another program: known names, and values of the right type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

from dfmp2.errors import InputError
from dfmp2.io.point_charges import read_point_charges
from dfmp2.options import Options, make_options

LOOSER: dict[str, Any] = {"frozen_core": str | int, "memory": str | int | None}  # what Options converts itself


def read_keywords(basis: object, keywords: Mapping[str, Any], refused: Mapping[str, str]) -> Options:
    """Options of a basis set and keywords.

    Parameters
    ----------
    keywords : names and values of `dfmp2.Options`
    refused : keyword -> why this program cannot give it

    Raises
    ------
    InputError : unknown or refused keyword, or a value of another type
    """
    if not isinstance(basis, str):
        raise InputError(f"basis {basis!r}: expected the name of a basis set, such as cc-pvdz")
    hints = get_type_hints(Options)
    for name, value in keywords.items():
        if name in refused:
            raise InputError(f"keyword {name} cannot be given: {refused[name]}")
        if name in hints and not _fits(value, LOOSER.get(name, hints[name])):
            expected = str(LOOSER.get(name, getattr(hints[name], "__name__", hints[name])))
            raise InputError(f"keyword {name} {value!r}: expected {expected.replace(' | ', ' or ')}")
    return make_options(basis=basis, **keywords)


def read_field(keywords: dict[str, Any]) -> Any:
    """Point charges (n, 4) in bohr and e, or None, from `point_charges` and `point_charge_units`, which are taken out.

    Raises
    ------
    InputError : not rows of x, y, z and charge, or another unit
    """
    given, units = keywords.pop("point_charges", None), keywords.pop("point_charge_units", "angstrom")
    if isinstance(given, str):
        raise InputError("keyword point_charges names a file: expected rows of x, y, z and charge")
    return read_point_charges(given, units)


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, hint) or (isinstance(value, int) and isinstance(1.0, hint))
