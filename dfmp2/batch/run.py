"""Run a batch: whatever is not complete is computed, each item by itself, and nothing complete is computed again."""

from __future__ import annotations

from dfmp2.batch.crew import Crew
from dfmp2.batch.ledger import read_ledger, remove_leftovers, write_ledger
from dfmp2.batch.manifest import Batch
from dfmp2.batch.orders import Observer, Orders, Outcome
from dfmp2.batch.session import Session
from dfmp2.batch.state import look_at
from dfmp2.batch.survey import survey
from dfmp2.errors import ResourceError
from dfmp2.io.batch import INDEX
from dfmp2.io.files import require_writable
from dfmp2.io.lock import discard


def run_batch(batch: Batch, orders: Orders, observer: Observer) -> Outcome:
    """Compute what is not complete.

    Raises
    ------
    Interrupted : before anything was computed
    Dfmp2Error : nothing could be computed at all; the failure of an item is in its row
    """
    _prepare_folder(batch)
    found = survey(batch, read_ledger(batch), observer)
    session = Session(batch, orders, observer, found)
    if orders.shard is not None or any(row.status != "complete" for row in found.rows):
        with Crew(orders.workers, orders.threads, orders.memory, _backend(batch)) as crew:
            session.work(crew)
        for place in session.unfinished:
            discard(batch.result(batch.items[place]))
    own = set(session.mine)
    for place, item in enumerate(batch.items):
        row = session.rows[place]
        if place not in own or row.status == "running":
            session.rows[place] = look_at(batch, item, row, found.inputs[place])
    write_ledger(batch, session.rows)
    return Outcome(session.rows, session.mine, session.found, observer.stop_asked(), tuple(session.barred))


def _prepare_folder(batch: Batch) -> None:
    """Make the output folder and see that it can be written."""
    try:
        batch.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"cannot make the folder {batch.output}: {error.strerror}: choose another --output"
        ) from error
    require_writable(batch.output / INDEX, overwrite=True, expected_bytes=10**6)
    remove_leftovers(batch.output)


def _backend(batch: Batch) -> str:
    """The backend that decides about accelerators: the first item's that asks for one."""
    names = [item.settings.options.backend for item in batch.items]
    return next((name for name in names if name not in ("cpu", "torch", "nki-interpreter")), "cpu")
