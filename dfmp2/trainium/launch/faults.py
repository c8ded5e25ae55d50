"""Mapping of device errors to our exceptions: hardware faults, numerical errors, kernel failures.

    1200-1205, NRT_TIMEOUT, NRT_HW_ERROR, ...UNRECOVERABLE   DeviceFault, exit 7: the run is discarded, the host named
    1003 completed with numerical errors                     NumericalError, exit 5
    1005, 9 the core belongs to another process              BackendUnavailable, exit 6
    4, 11 a resource is short                                ResourceError, exit 7
    anything else                                            KernelFailed, exit 1

Codes: nrt_status.h of the Neuron Runtime. The bindings raise RuntimeError with "NRT Error
NAME(CODE): ..." (nrtpy error page); torch-xla a RuntimeError that quotes the status. Unverified on
hardware: no error was ever provoked there.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from dfmp2.errors import (
    BackendUnavailable,
    DeviceFault,
    Dfmp2Error,
    KernelFailed,
    Message,
    NumericalError,
    Option,
    ResourceError,
)

HARDWARE = {*range(1200, 1206), 5, 6, 101}
HARDWARE_NAMES = (
    "NRT_TIMEOUT",
    "NRT_HW_ERROR",
    "NRT_EXEC_HW_ERR",
    "NRT_EXEC_SW_NQ_OVERFLOW",
    "UNRECOVERABLE",
)
NAMED = re.compile(r"\b(?P<name>NRT_[A-Z_]+)(?:\s*\(\s*(?P<code>\d+)\s*\))?")
STATUS = re.compile(
    r"\b(?:nrt\w*|status(?:_code| code)?)\s*[=:]\s*(?P<code>\d{1,4})\b", re.IGNORECASE
)
OTHERS: tuple[tuple[type[Dfmp2Error], tuple[str, ...], tuple[int, ...], Message], ...] = (
    (
        NumericalError,
        ("NRT_EXEC_COMPLETED_WITH_NUM_ERR",),
        (1003,),
        Message(
            "the kernel met NaN or infinite numbers; there is no result: use ",
            Option("backend", "cpu"),
        ),
    ),
    (
        BackendUnavailable,
        ("NRT_EXEC_NC_BUSY", "NRT_LOAD_NOT_ENOUGH_NC"),
        (1005, 9),
        Message(
            "the NeuronCore belongs to another process: name a free one in NEURON_RT_VISIBLE_CORES"
        ),
    ),
    (
        ResourceError,
        ("NRT_RESOURCE", "NRT_FAIL_HOST_MEM_ALLOC"),
        (4, 11),
        Message(
            "device or host memory does not suffice: use fewer processes, or ",
            Option("backend", "cpu"),
        ),
    ),
)
# Exceptions raised by kernel code, bindings and frameworks, which have no common class; none is
# swallowed.
FOREIGN = (
    RuntimeError,
    ValueError,
    TypeError,
    AssertionError,
    AttributeError,
    LookupError,
    ArithmeticError,
    OSError,
    ImportError,
)


@contextmanager
def launching(what: str) -> Iterator[None]:
    """Context for calls to the device software: its exceptions are converted to ours and end the
    run.

    Parameters
    ----------
    what : for the message, e.g. "kernel pair_energy_block on lane nki"
    """
    try:
        yield
    except FOREIGN as error:
        raise translate(error, what) from error


def translate(error: BaseException, what: str) -> Dfmp2Error:
    """Our error that corresponds to an exception of the device software."""
    text = " ".join(str(error).split())[:400] or "no message"
    status = NAMED.search(text) or STATUS.search(text)
    found = status.groupdict() if status else {}
    name = found.get("name", "")
    code = int(found.get("code") or 0)
    told = f"{what} on host {socket.gethostname()}: {type(error).__name__}: {text}"
    # Below 1000 the status name decides: loading a program for another chip is reported as
    # NRT_FAILURE(6).
    if any(part in name for part in HARDWARE_NAMES) or (
        code in HARDWARE and (not name or code >= 1000)
    ):
        return DeviceFault(
            f"{told}: the device reported a fault or did not answer, so nothing it computed is "
            "kept; take this host out of use (neuron-ls, dmesg) and run again on another one"
        )
    for kind, names, codes, advice in OTHERS:
        if name in names or code in codes:
            return kind(f"{told}: ", advice)
    return KernelFailed(
        f"{told}: the kernel failed and there is no result: report this, or use ",
        Option("backend", "cpu"),
    )
