"""Workers without processes of their own: their calls are computed in this process."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from dfmp2.errors import Dfmp2Error
from dfmp2.execution.pool import Call, WorkerShare, fault


class HereSlot:
    """A slot as in `dfmp2.execution.pool`; calls and results are pickled as for a real worker."""

    ready = True
    future: Future[bytes] | None = None
    call: Any = None

    def __init__(self, share: WorkerShare, _variables: Mapping[str, str]) -> None:
        self.share = share

    def submit(self, call: Call) -> None:
        """Keep the call until its result is requested."""
        self.call, self.future = call, Future()
        self.future.set_result(pickle.dumps(call._replace(tag=None)))

    def result(self) -> Any:
        """The value or exception of the call."""
        call = pickle.loads(self.future.result())
        self.future = None
        try:
            return pickle.loads(pickle.dumps(call.function(*call.given, self.share)))
        except Dfmp2Error:
            raise
        except Exception as error:
            raise fault(error) from error

    def look_at_memory(self) -> None:
        """Does nothing, because the memory is that of this process."""

    def terminate(self) -> None:
        """Does nothing, because no call is running."""

    def close(self) -> None:
        """Does nothing, because there is no process to end."""
