"""One table of all complete results, of one method: energies of different methods do not belong beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dfmp2.errors import InputError, ResultFileError
from dfmp2.execution.manifest import Batch
from dfmp2.execution.state import fingerprint_of, read_input, summary
from dfmp2.output.hdf5 import read_verified
from dfmp2.output.series import METHOD, differences, method


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
