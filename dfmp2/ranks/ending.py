"""What ends a run over ranks before its time, as the ranks tell each other."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

FAILED, STOPPED, LOST, DONE = "failed", "stopped", "lost", "done"


@dataclass(frozen=True, slots=True)
class Ending:
    """The first thing that happened.

    Attributes
    ----------
    kind : "failed" (a rank has said why), "stopped" (it was asked to stop), "lost" (it is gone), "done" (nothing to do)
    rank, host : whose; rank -1 is torchrun itself
    code : exit code
    message : what was said
    """

    kind: str
    rank: int
    host: str
    code: int
    message: str

    def encode(self) -> str:
        """As text for the store."""
        return json.dumps(asdict(self))

    @property
    def told(self) -> str:
        """For the user, where the rank itself cannot speak."""
        who = f"rank {self.rank} on {self.host}" if self.rank >= 0 else f"torchrun on {self.host}"
        return f"{who} is gone (killed, out of memory, or cut off)" if self.kind == LOST else f"{who}: {self.message}"


def decode(content: bytes | str) -> Ending:
    """What a rank has told.

    Raises
    ------
    ValueError : it is none of ours
    """
    try:
        values = json.loads(content)
        return Ending(
            str(values["kind"]), int(values["rank"]), str(values["host"]), int(values["code"]), str(values["message"])
        )
    except (LookupError, TypeError) as error:
        raise ValueError(f"not the end of a rank: {content!r}") from error
