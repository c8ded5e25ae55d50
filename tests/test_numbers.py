"""Every number that leaves the program has a unit, a description, and a test:
docs/project/validation/numbers.md names it."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest

from dfmp2.host.provenance import Memory, Provenance, Storage
from dfmp2.molecule.elements import SYMBOLS
from dfmp2.mp2 import result
from dfmp2.output import dataset
from dfmp2.output.json import UNITS_OF_NUMBERS
from dfmp2.planning.sizes import Sizes
from dfmp2.planning.time import Timings
from dfmp2.scf.reference import GridError, Reference, Solutions, Stability
from dfmp2.studies.geometric_search import Point
from dfmp2.studies.rank import Ranked, Ranking
from dfmp2.studies.vibrations import Vibrations
from dfmp2.validation.tables import COUNTED, NUMBERS
from tests.conftest import ROOT

PAGE = (ROOT / "docs/project/validation/numbers.md").read_text()
UNITS = {
    "",
    "angstrom",
    "bohr",
    "bohr^3",
    "byte",
    "cm^-1",
    "hartree",
    "hartree/bohr",
    "km/mol",
    "s",
    "u",
    "elementary charge",
    "elementary charge * bohr",
    "elementary charge * bohr^2",
    "hartree / (elementary charge * bohr)",
    "mdyn/angstrom",
}
RECORDS = [
    *(one for one in vars(result).values() if dataclasses.is_dataclass(one)),
    Memory,
    Storage,
    Sizes,
    Timings,
    Reference,
    GridError,
    Solutions,
    Stability,
    Point,
    Vibrations,
    Provenance,
]
FIELDS = [
    (f"{record.__name__}.{field.name}", field)
    for record in dict.fromkeys(RECORDS)
    for field in dataclasses.fields(record)
    if "units" in field.metadata
]
# Texts rather than numbers; `allowed` and `seed` belong to other numbers.
WORDS = ("str", "tuple[str, ...]", "bool", "Stability | None", "Solutions | None", "str | None")


@pytest.mark.parametrize("field", [field for _, field in FIELDS], ids=[name for name, _ in FIELDS])
def test_a_number_has_a_unit_a_description_and_a_line_on_the_page(field: Any) -> None:
    assert field.metadata["units"] in UNITS
    assert field.metadata["description"] and field.metadata["description"] not in UNITS
    if str(field.type) not in WORDS:
        assert f"`{field.name}`" in PAGE, (
            f"docs/project/validation/numbers.md does not say what holds {field.name}"
        )


# --- numbers of studies, plans and tables ---------------------------------------------------------

STUDIES = ROOT / "dfmp2" / "studies"
OF_STUDIES = re.compile(
    r"\$ (?:whole )?dfmp2 "
    "(?:cbs|frequencies|interaction|irc|optimize|rank|reaction|run|scan|show|thermo) "
)
SESSIONS = ROOT / "tests" / "data" / "sessions"
PREFIXES = ("functional_", "exx_", "dispersion_", "correlation_", "delta_", "scf_") + tuple(
    f"{of}_correlation_"
    for of in ("mp2", "mp2_same_spin", "mp2_opposite_spin", "scs_mp2", "sos_mp2", "scaled_mp2")
)
ENDINGS = ("_kj_per_mol", "_kcal_per_mol")
MOTIONS = ("_translation", "_rotation", "_vibration", "_electrons")
OTHER_FORMS = (  # of names that contain those of atoms, species or basis sets
    (r"bond(_\d+)+", "bond_I_J"),
    (r"angle(_\d+)+", "angle_I_J_K"),
    (r"dihedral(_\d+)+", "dihedral_I_J_K_L"),
    (r"\w+(_hessian|_wavenumbers|_geometry)", r"NAME\1"),
    (r"cbs_.*", "cbs_scf_total_energy"),
    (r".*_energy_[a-z]+-.*", "total_energy_BASIS"),
)
# Words and places rather than names of numbers: densities, elements, positions of atoms.
WITHOUT_NAME = {"scf", "unrelaxed", "relaxed", "geometry", "code", "frame", "shapes"}


def on_the_page(name: str) -> bool:
    """Whether the page names a number, or its base with the prefixes and endings that it names."""
    for pattern, form in OTHER_FORMS:
        if f"`{name}`" not in PAGE:
            name = re.sub(f"^{pattern}$", form, name)
    names = [name]
    for ending in (*ENDINGS, *MOTIONS):
        if name.endswith(ending) and f"`{ending}`" in PAGE:
            names.append(name.removesuffix(ending))
    for prefix in PREFIXES:
        if f"`{prefix}`" in PAGE:
            names += [one.removeprefix(prefix) for one in names if one.startswith(prefix)]
    return any(f"`{one}`" in PAGE for one in names)


def stored_numbers() -> Iterator[str]:
    """Names of the numbers in the JSON of the commands in tests/data/sessions."""
    for file in SESSIONS.glob("*.txt"):
        command = ""
        for line in file.read_text().splitlines():
            if line.startswith(("$ ", ">>> ")):
                command = line
            path, _, text = line.strip().partition(" ")
            names = [part for part in path.split("/") if part and not part.isdigit()]
            if not names or not OF_STUDIES.match(command) or "--json" not in command:
                continue
            number = re.fullmatch(r"-?[0-9.]+(e[-+][0-9]+)?", text)
            if number and not path.endswith("[]") and names[-1] not in {*WITHOUT_NAME, *SYMBOLS}:
                yield names[-1]


def written_numbers() -> Iterator[str]:
    """Names of the values, arrays and columns in the source of the studies."""
    for file in STUDIES.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            pairs: list[tuple[Any, Any]] = []
            if isinstance(node, ast.Dict):
                pairs = list(zip(node.keys, node.values, strict=True))
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                pairs = [(node.targets[0].slice, node.value)]
            for key, value in pairs:
                made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
                if (
                    made
                    and value.func.id in ("Dataset", "Column")
                    and isinstance(key, ast.Constant)
                ):
                    yield key.value


# Functions that make the JSON of commands without a study, and their keys that hold no numbers.
MAKERS = {
    "output/plan.py": {"plan_dict"},
    "output/json.py": {"prepared_json", "grid_error", "describe_field"},
    "execution/batch.py": {"foresee_shards", "_foreseen"},
    "cli/batch_run.py": {"status_json"},
    "cli/validate.py": {"_show_comparison"},
}
WORDS_IN_JSON = {
    *("backend", "change", "date", "diagnostics", "energies", "error", "finer_grid", "fits"),
    *("fitted_tensor", "folder", "measured", "memory", "molecule", "name", "output", "passed"),
    *("place", "program", "provenance", "rates", "reason", "shapes", "shard", "shards", "sizes"),
    *("scf_integrals", "storage", "timings", "trainium", "transform", "rates_measured"),
}


def made_keys() -> Iterator[str]:
    """Keys of the objects that these functions write out."""
    for file, names in MAKERS.items():
        for node in ast.walk(ast.parse((ROOT / "dfmp2" / file).read_text())):
            if isinstance(node, ast.FunctionDef) and node.name in names:
                for part in ast.walk(node):
                    if isinstance(part, ast.Dict):
                        yield from (key.value for key in part.keys if isinstance(key, ast.Constant))


TEXTS = {"run", "basis", "species", "formula"}  # columns of words
OTHERS = {
    *UNITS_OF_NUMBERS,
    *dataset.UNITS,
    *(
        field.name
        for one in (Ranked, Ranking)
        for field in dataclasses.fields(one)
        if field.type in ("float", "int")
    ),
    *NUMBERS,
    *COUNTED,
}


def test_numbers_of_studies_plans_and_tables_have_a_line_on_the_page() -> None:
    studies = {*stored_numbers(), *written_numbers()} - TEXTS
    assert len(studies) > 150 and {"barrier_forward", "reaction_entropy", "s"} <= studies
    made = set(made_keys()) - WORDS_IN_JSON
    assert {"tiles", "naux", "total", "stored", "bytes"} <= made
    assert sorted(name for name in studies | OTHERS | made if not on_the_page(name)) == []


def require_test(name: str) -> None:
    """Raise if there is no such test, as `test_x.py::test_y`; the test of sessions must be named
    with the session, as `test_sessions.py::test_a_session_is_as_recorded[NAME]`."""
    file, _, rest = name.partition("::")
    test, _, session = rest.partition("[")
    assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text(), name
    if file == "test_sessions.py":
        assert session.endswith("]"), f"{name}: which session?"
        assert (SESSIONS / f"{session.removesuffix(']')}.txt").exists(), name
    else:
        assert not session, f"{name}: only sessions are named in brackets"


def test_the_tests_on_the_page_exist() -> None:
    named = re.findall(r"`(test_\w+\.py[^`]*)`", PAGE)
    assert len(named) > 50
    for name in named:
        require_test(name)
