"""The account of one kernel call: busy time per engine, traffic, memory, and two makespans.

    lower bound     max over engines (and the PSUM port on trn1) of their busy time
    in-order        the list schedule of `schedule`

Everything is read from a trace. Predicted, not measured: see `Assumptions` for what is not documented.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dfmp2.backends.nki.costs import schedule
from dfmp2.backends.nki.costs.chips import DMA_QUEUES, Assumptions, Chip
from dfmp2.backends.nki.costs.instructions import charge, queues
from dfmp2.backends.nki.costs.schedule import ENGINES, Schedule
from dfmp2.backends.nki.interpreter.trace import Trace

DESCRIPTOR_BYTES = 2 * 16  # source and destination element of a descriptor ring


@dataclass(frozen=True, slots=True)
class Account:
    """What one call of a kernel costs on one core.

    Attributes
    ----------
    busy : ns per engine; "dma" is the mean over the 16 queues
    documented : the same without the per-instruction overheads
    makespan : ns of the in-order schedule; bound : ns of the busiest engine or port
    port : ns the shared PSUM port is held (0 on trn2)
    bytes_read, bytes_written : HBM traffic
    rows : transfers; descriptors : contiguous runs
    statements : instructions by name, matrix products flagged one/zero or transpose as "nc_matmul (hinted)"
    sbuf : most bytes per partition alive; psum : most banks alive
    """

    busy: dict[str, float]
    documented: dict[str, float]
    makespan: float
    bound: float
    port: float
    bytes_read: int
    bytes_written: int
    rows: int
    descriptors: int
    statements: dict[str, int]
    sbuf: int
    psum: int

    @property
    def ring_bytes(self) -> int:
        """Device memory of the static descriptor rings, about."""
        return self.descriptors * DESCRIPTOR_BYTES

    @property
    def utilisation(self) -> float:
        """Tensor Engine busy time over the in-order makespan."""
        return self.busy["tensor"] / self.makespan if self.makespan else 0.0


def settle(trace: Trace, chip: Chip, given: Assumptions) -> tuple[Account, Schedule]:
    """The account and the schedule of a trace."""
    plan = schedule.build(trace, chip, given)
    taken = (plan.end - plan.start).tolist()
    busy, documented = dict.fromkeys(ENGINES, 0.0), dict.fromkeys(ENGINES, 0.0)
    read = written = rows = descriptors = 0
    statements: Counter[str] = Counter()
    for one, time in zip(trace.instructions, taken, strict=True):
        if one.engine == "dma":
            share = queues(one) / DMA_QUEUES
            busy["dma"] += time * share
            documented["dma"] += time * share
            rows, descriptors = rows + 1, descriptors + one.descriptors
            read += one.bytes if any(access.space == "hbm" for access in one.reads) else 0
            written += one.bytes if any(access.space == "hbm" for access in one.writes) else 0
        else:
            busy[one.engine] += time
            documented[one.engine] += charge(one, chip, given).documented / chip.clock(one.engine)
        flagged = one.name == "nc_matmul" and (one.one_zero or one.transpose)
        statements[f"{one.name} (hinted)" if flagged else one.name] += 1
    port = plan.port if chip.shared_ports else 0.0
    return Account(
        busy=busy,
        documented=documented,
        makespan=plan.makespan,
        bound=max(*busy.values(), port),
        port=port,
        bytes_read=read,
        bytes_written=written,
        rows=rows,
        descriptors=descriptors,
        statements=dict(sorted(statements.items())),
        sbuf=trace.sbuf_high_water,
        psum=trace.psum_high_water,
    ), plan
