"""Source rules for calls of nisa instructions and for names of nl: keywords only, known in every release."""

from __future__ import annotations

import ast

from dfmp2.backends.nki.interpreter.members import ENUMERATIONS
from dfmp2.backends.nki.interpreter.signatures import (
    COMMON_NAMES,
    DEPRECATED_LOOPS,
    INSTRUCTIONS,
    LOOP_NAMES,
    in_all_releases,
    required_somewhere,
)
from dfmp2.backends.nki.interpreter.violations import NotInSubset, Violation

ENUM_PARAMETERS = frozenset(ENUMERATIONS)


def check_call(node: ast.Call, name: str, file: str, *, all_releases: bool) -> None:
    """A call of nisa.<name>: an instruction of the subset, keywords only, parameters that every release has.

    all_releases : False skips the comparison of parameters (files that need newer releases say so).
    """
    place = f"{file}:{node.lineno}"
    if name not in INSTRUCTIONS:
        raise NotInSubset(f"nisa.{name}", place)
    if node.args:
        raise Violation("positional", f"nisa.{name} with {len(node.args)} positional arguments", place)
    given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    if not all_releases or len(given) != len(node.keywords):
        return
    unknown = given - in_all_releases(name)
    missing = required_somewhere(name) - given
    if unknown or missing:
        words = [f"{word} is not in every release" for word in sorted(unknown)]
        words += [f"{word} is required in some release" for word in sorted(missing)]
        raise Violation("signature", f"nisa.{name}: {'; '.join(words)}", place)


def unknown_attribute(name: str) -> str:
    """Why nl.<name> may not be used; "" if it may."""
    if name in DEPRECATED_LOOPS:
        return f"nl.{name} is deprecated; use range"
    return "" if name in COMMON_NAMES or name in LOOP_NAMES else f"nl.{name}"
