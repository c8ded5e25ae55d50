"""One table of all complete results, of one method: energies of different methods do not belong beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dfmp2.batch.inputs import fingerprint_of, read_input
from dfmp2.batch.manifest import Batch
from dfmp2.batch.state import summary
from dfmp2.errors import InputError, ResultFileError
from dfmp2.io.verified import read_verified
from dfmp2.result import MP2Result

# Options that make the method. What `auto` chose per molecule (RHF or UHF, frozen orbitals) is one method.
METHOD = (
    "basis",
    "reference",
    "relativity",
    "scf",
    "scf_auxbasis",
    "auxbasis",
    "frozen_core",
    "frozen_virtual",
    "os_scale",
    "ss_scale",
    "precision",
)
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Collection:
    """Rows of complete results, what holds for all of them, and what there is to remark."""

    rows: list[dict[str, Any]]
    notes: dict[str, str]
    remarks: list[str]


def collect_results(batch: Batch, *, allow_mixed: bool) -> Collection:
    """Read every complete result, its hash checked.

    Raises
    ------
    InputError : there is none, or they are of different methods and `allow_mixed` is false
    """
    rows, remarks = [], []
    methods: dict[str, dict[str, str]] = {}
    for item in batch.items:
        path = batch.result(item)
        if not path.exists():
            continue
        try:
            result = read_verified(path)
            current = fingerprint_of(result) == read_input(item).fingerprint
        except (InputError, ResultFileError) as error:
            remarks.append(f"{item.name} is left out: {error}")
            continue
        if not current:
            remarks.append(f"{item.name} is left out: its input has changed since it was computed")
            continue
        methods[item.name] = method(result)
        numbers = summary(result)
        rows.append({"name": item.name, "molecule": item.molecule, **numbers, "seconds": result.timings.total})
    if not rows:
        raise InputError(f"no complete result in {batch.output}: run the batch first (dfmp2 batch run)")
    different = differences(methods)
    if different and not allow_mixed:
        raise InputError(
            f"the results were computed with different methods, {different}: collect them apart, or pass --allow-mixed"
        )
    if different:
        remarks.append(f"different methods in one table: {different}")
    missing = len(batch.items) - len(rows)
    if missing:
        remarks.append(f"{missing} of {len(batch.items)} items are not complete and not in the table")
    notes = {field: ", ".join(dict.fromkeys(found[field] for found in methods.values())) for field in METHOD}
    return Collection(rows, notes, remarks)


def method(result: MP2Result) -> dict[str, str]:
    """What makes two energies comparable: the options of METHOD, and the numbers behind the names of the bases."""
    found = {name: _text(getattr(result.options, name)) for name in METHOD}
    for basis in (result.orbital_basis, result.scf_fitting, result.mp2_fitting):
        if basis is None:
            continue
        for symbol, element in basis.elements.items():
            found[f"{basis.role} functions of {symbol}"] = f"{element.name} ({element.sha256[:8]})"
    return found


def _text(value: Any) -> str:
    return "default" if value is None else str(value)


def differences(methods: Mapping[str, Mapping[str, str]]) -> str:
    """The fields in which the methods of items (by their names) differ, "" for one method.

    The options come first; bases only where no option explains them.
    """
    named: dict[str, dict[str, list[str]]] = {}  # field -> value -> names of items
    for item, found in methods.items():
        for field, value in found.items():
            named.setdefault(field, {}).setdefault(value, []).append(item)
    different = {field: values for field, values in named.items() if len(values) > 1}
    fields = [field for field in different if field in METHOD] or list(different)
    told = []
    for field in fields[:MOST_NAMED]:
        counts = Counter({value: len(names) for value, names in different[field].items()})
        values = ", ".join(
            f"{value} ({count}, e.g. {different[field][value][0]})" for value, count in counts.most_common(3)
        )
        told.append(f"{field.replace('_', '-')}: {values}")
    more = len(fields) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")
