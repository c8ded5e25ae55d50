"""Workers without processes of their own: what they are given is computed in this one."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from dfmp2.errors import Dfmp2Error
from dfmp2.execution.pool import Call, WorkerShare, fault


class HereSlot:
    """A slot as of `dfmp2.execution.pool`; what goes to a worker and comes back is pickled, as
    there."""

    ready = True
    future: Future[bytes] | None = None
    call: Any = None

    def __init__(self, share: WorkerShare, _variables: Mapping[str, str]) -> None:
        self.share = share

    def submit(self, call: Call) -> None:
        """Keep it until its result is asked for."""
        self.call, self.future = call, Future()
        self.future.set_result(pickle.dumps(call._replace(tag=None)))

    def result(self) -> Any:
        """What the call gives or raises."""
        assert self.future is not None
        call = pickle.loads(self.future.result())
        self.future = None
        try:
            return pickle.loads(pickle.dumps(call.function(*call.given, self.share)))
        except Dfmp2Error:
            raise
        except Exception as error:
            raise fault(error) from error

    def look_at_memory(self) -> None:
        """It is that of this process."""

    def terminate(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """There is no process to end."""
