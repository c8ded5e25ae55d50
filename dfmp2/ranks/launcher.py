"""`dfmp2 run --ranks N`: torchrun inside this process, and our exit codes in place of its own."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dfmp2.errors import Dfmp2Error, Interrupted, ResourceError
from dfmp2.ranks import status
from dfmp2.ranks.joining import require_torch

CTRL_C = 130


class RankFault(Dfmp2Error):
    """A rank crashed: a fault in dfmp2 or a library it uses."""


def launch(arguments: Sequence[str], ranks: int, restarts: int) -> int:
    """Run `dfmp2 ARGUMENTS` as several ranks of this host.

    Parameters
    ----------
    restarts : how often all ranks are started again when one of them dies

    Returns
    -------
    exit code of the rank that decided the outcome, which has said why

    Raises
    ------
    BackendUnavailable : PyTorch is missing
    ResourceError, RankFault : a rank died without a word
    """
    require_torch()
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    logging.disable(logging.CRITICAL)  # what torchrun would say is said here
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, with a warning; it says nothing to a rank
    with tempfile.TemporaryDirectory(prefix="dfmp2-ranks-") as folder:
        os.environ[status.VARIABLE] = folder
        given = torchrun.parse_args(
            [
                *("--nproc-per-node", str(ranks), "--max-restarts", str(restarts)),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", str(uuid.uuid4())),
                *("--log-dir", folder, "--no-python", sys.executable),
            ]
        )
        config, program, rest = torchrun.config_from_args(given)
        crashed: Mapping[int, Any] = {}
        received = None
        try:
            elastic_launch(config=config, entrypoint=program)(*rest, "-P", "-m", "dfmp2", *arguments)
        except ChildFailedError as error:
            crashed = error.failures
        except SignalException as error:
            received = error.sigval
        finally:
            del os.environ[status.VARIABLE]
            logging.disable(logging.NOTSET)
        code = status.verdict(status.found(Path(folder)))
    if code is None and received is not None:
        return CTRL_C if received == signal.SIGINT else Interrupted.exit_code
    if crashed and not code:
        raise _casualty(crashed)
    return code or 0


def _casualty(crashed: Mapping[int, Any]) -> Dfmp2Error:
    """The error for ranks that died, none of which could say why."""
    rank, failure = min(crashed.items())
    if failure.exitcode == -signal.SIGKILL:
        return ResourceError(
            f"rank {rank} was ended by SIGKILL, as the out-of-memory killer does: use fewer --ranks or less --memory, "
            "or --max-restarts to go on by itself"
        )
    how = signal.Signals(-failure.exitcode).name if failure.exitcode < 0 else f"exit code {failure.exitcode}"
    return RankFault(f"rank {rank} ended with {how} and said nothing: a fault in dfmp2 or a library it uses")
