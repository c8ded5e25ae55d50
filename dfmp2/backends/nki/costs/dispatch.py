"""What the host adds to a list of kernel calls: three ways to launch them.

    neff    compiled once, loaded once, operands stay on the device; calls are queued
    xla     the same through torch-xla
    numpy   every call compiles, uploads its inputs and downloads its outputs

0.67 ms per submission, 1.3 ms per round trip, 4.6 GB/s to and 5.6 GB/s from the device are figures published
for trn1 through torch-xla; for neff the link is assumed to be the same.
"""

from __future__ import annotations

from dataclasses import dataclass

LANES = ("neff", "xla", "numpy")
SUBMIT = 0.67  # ms
ROUND_TRIP = 1.3  # ms
UPLOAD, DOWNLOAD = 4.6e6, 5.6e6  # bytes per ms
RECOMPILE = 10_000.0  # ms for each call of the numpy lane, unless the user knows better


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Host time of a list of calls, ms, if none of it overlaps with the device.

    Attributes
    ----------
    lane : how calls are launched
    calls : submissions and the final round trip; link : uploads and downloads; compile : compilation inside the calls
    flagged : why this lane is not for production, "" if it is
    """

    lane: str
    calls: float
    link: float
    compile: float
    flagged: str

    @property
    def total(self) -> float:
        """All of it, ms."""
        return self.calls + self.link + self.compile


def dispatch(
    lane: str, calls: int, resident: int, per_call: int, output: int, recompile: float = RECOMPILE
) -> Dispatch:
    """Host time of `calls` calls.

    Parameters
    ----------
    lane : one of LANES
    resident : bytes of all inputs together, uploaded once; per_call : the same with the inputs of each call anew
    output : bytes downloaded in all
    recompile : ms per call, numpy lane only
    """
    down = output / DOWNLOAD
    if lane == "numpy":
        flagged = "" if calls <= 1 else f"every one of the {calls} calls compiles and uploads again: for probes only"
        return Dispatch(lane, calls * ROUND_TRIP, per_call / UPLOAD + down, calls * recompile, flagged)
    if lane not in LANES:
        raise ValueError(f"lane {lane!r}: expected one of {', '.join(LANES)}")
    return Dispatch(lane, calls * SUBMIT + ROUND_TRIP, resident / UPLOAD + down, 0.0, "")
