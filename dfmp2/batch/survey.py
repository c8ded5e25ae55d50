"""A batch before it runs: every molecule is read once, and what is complete is known."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dfmp2.batch.inputs import NOT_COMPARED, Input, read_input
from dfmp2.batch.manifest import Batch
from dfmp2.batch.order import Work
from dfmp2.batch.orders import Observer
from dfmp2.batch.sizes import ElementSize, Key, SizeTable, cost, size_key, workload
from dfmp2.batch.state import Known, Row, look_at
from dfmp2.errors import InputError, Interrupted
from dfmp2.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What is known of every item, by its place in the manifest.

    Attributes
    ----------
    inputs : None for a molecule that cannot be read, whose error is in `errors`
    rows : the state
    """

    batch: Batch
    inputs: tuple[Input | None, ...]
    rows: tuple[Row, ...]
    errors: dict[int, InputError]

    def wanted(self) -> list[tuple[Key, list[str]]]:
        """The elements whose numbers of functions decide the sizes, for every set of bases."""
        found: dict[Key, dict[str, None]] = {}
        for item, given in zip(self.batch.items, self.inputs, strict=True):
            if given is not None:
                found.setdefault(size_key(item.settings.options), {}).update(dict.fromkeys(given.molecule.elements))
        return [(key, list(symbols)) for key, symbols in found.items()]

    def workloads(self, sizes: Sequence[Any]) -> list[Workload | None]:
        """Sizes of all items from what a worker answered to `wanted`; None for one that will be refused."""
        table: SizeTable = {
            (key[0], key[1], key[2], key[3]): {symbol: ElementSize(*values) for symbol, values in found.items()}
            for key, found in sizes
        }
        return [
            None if given is None else workload(given.molecule, item.settings.options, table)
            for item, given in zip(self.batch.items, self.inputs, strict=True)
        ]

    def works(self, sizes: Sequence[Any]) -> list[Work]:
        """All items with their costs."""
        return [self._work(place, found) for place, found in enumerate(self.workloads(sizes))]

    def traceback(self, place: int) -> str:
        """Of the error of a molecule that cannot be read."""
        return "".join(traceback.format_exception(self.errors[place]))

    def _work(self, place: int, found: Workload | None) -> Work:
        given, settings = self.inputs[place], self.batch.items[place].settings
        if given is None or found is None:
            return Work(place, 0.0, "", f"alone {place}")
        molecule = given.molecule
        options = {name: value for name, value in asdict(settings.options).items() if name not in NOT_COMPARED}
        state = (molecule.charge, molecule.multiplicity, sorted(options.items()))
        shape = f"{found.nao} {found.naux} {[(spin.nocc, spin.nvir) for spin in found.spins]}"
        return Work(place, cost(found), shape, repr((molecule.labels, *state)))


def survey(batch: Batch, known: Known, observer: Observer) -> Survey:
    """Read all molecules and look at all results.

    Raises
    ------
    Interrupted : the user asked to stop
    """
    inputs: list[Input | None] = []
    errors: dict[int, InputError] = {}
    rows = []
    for place, item in enumerate(batch.items):
        if observer.stop_asked():
            raise Interrupted("stopped before anything was computed: nothing was changed")
        try:
            given = read_input(item)
        except InputError as error:
            errors[place] = error
            inputs.append(None)
            rows.append(Row(item.name, item.molecule, "pending"))
            continue
        inputs.append(given)
        rows.append(look_at(batch, item, known.get(item.name), given))
    return Survey(batch, tuple(inputs), tuple(rows), errors)
