"""Every number that leaves the program has a unit, a description, and a test:
docs/project/validation/numbers.md names it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from dfmp2.host.provenance import Provenance
from dfmp2.mp2 import result
from dfmp2.planning.memory import Memory, Storage
from dfmp2.planning.sizes import Sizes
from dfmp2.planning.time import Timings
from dfmp2.scf.reference import Reference, Solutions, Stability
from dfmp2.studies.geometric_search import Point
from dfmp2.studies.vibrations import Vibrations

ROOT = Path(__file__).parent.parent
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


def test_the_tests_on_the_page_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)
    assert len(named) > 50
    for file, name in named:
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(), f"{file}::{name}"
