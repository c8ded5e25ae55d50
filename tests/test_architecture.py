"""The layout keeps its promises: one direction of imports, foreign libraries in one room each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dfmp2"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A room may import from rooms further up only (and from its own).
ORDER = (
    {"deferred", "errors", "untransformed"},
    {"units", "elements", "extrapolation", "disk"},
    {"point_charges"},
    {"basis", "molecule", "covalent_radii", "options", "progress", "solutions"},
    {"resources", "threads", "blas", "host_cache", "counting"},
    {"scratch"},
    {"frozen_core", "orbitals", "record", "product_rates"},
    {"checkpoint"},
    {"backends"},
    {"ranks"},
    {"fitting", "mp2", "check"},
    {"workload"},
    {"memory"},
    {"traffic"},
    {"forecast"},
    {"route"},
    {"reference"},
    {"summary", "provenance"},
    {"result", "prepared"},
    {"system", "calibration", "external", "derivation"},
    {"planning", "identity"},
    {"resumption"},
    {"agreement"},
    {"case"},
    {"stages"},
    {"pipeline", "parts", "recompute"},
    {"io"},
    {"export"},
    {"api"},
    {"batch"},
    {"submission"},
    {"fleet"},
    {"integrations"},
    {"report"},
    {"studies"},
    {"validation", "doctor"},
    {"bench"},
    {"cli"},
    {"__init__", "__main__"},
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
# Exceptions with their reason: (importing room, imported room).
ALLOWED = {
    ("summary", "result"): "type annotations only",
    ("result", "mp2"): "the scaling factors",
}
FOREIGN = {
    "pyscf": {"reference", "integrations"},
    "basis_set_exchange": {"reference"},
    "h5py": {"io", "scratch"},
    "torch": {"backends", "ranks", "fleet"},
    "nki": {"backends"},
    "click": {"cli"},
    "trexio": {"export"},
    "ase": {"integrations"},
    "qcelemental": {"integrations"},
    "qcengine": {"integrations"},
    "boto3": {"submission"},
    "botocore": {"submission"},
}


def room(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(path: Path) -> set[str]:
    """Absolute names of all imported modules, at any depth."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_room_has_a_level():
    assert {room(path) for path in MODULES} == set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    own = room(path)
    for name in imported(path):
        parts = name.split(".")
        if parts[0] != "dfmp2":
            continue
        other = parts[1] if parts[1] in LEVEL else "__init__"
        if other != own and (own, other) not in ALLOWED:
            assert LEVEL[other] < LEVEL[own], f"{own} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_foreign_libraries_stay_in_their_room(path):
    for name in imported(path):
        library = name.split(".")[0]
        assert room(path) in FOREIGN.get(library, {room(path)}), f"{path} imports {library}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_are_documented(path):
    text = path.read_text()
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


def test_nobody_catches_everything():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "everything"
                assert caught not in ("everything", "Exception", "BaseException"), f"{path}:{node.lineno}"
