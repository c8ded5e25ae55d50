"""Costs of single instructions, and schedules small enough to be worked out by hand."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from dfmp2.backends.nki.costs import account, schedule, timeline
from dfmp2.backends.nki.costs.chips import CHIPS, Assumptions
from dfmp2.backends.nki.costs.instructions import charge, transfer_time
from dfmp2.backends.nki.interpreter.trace import Access, Allocation, Instruction, Trace
from dfmp2.errors import KernelError

TRN1, TRN2, GIVEN = CHIPS["trn1"], CHIPS["trn2"], Assumptions()
RUN = 24_576  # bytes per partition of a B row at naux 1536, nvir 448 padded to 512


class Writer:
    """Builds a trace instruction by instruction."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._buffers: list[list] = []

    def buffer(self, space: str, size: int) -> Access:
        issued = len(self.trace.instructions)
        self._buffers.append([len(self._buffers), "t", space, size, issued, issued, ""])
        return Access(len(self._buffers) - 1, space, 0, 128, 0, size)

    def add(self, name: str, engine: str, elements: int, reads: list, writes: list, **more) -> int:
        index = len(self.trace.instructions)
        for access in reads + writes:
            self._buffers[access.tensor][5] = index
        more.setdefault("line", f"kernel.py:{index}")
        self.trace.instructions.append(Instruction(name, engine, elements, 128, 4, tuple(reads), tuple(writes), **more))
        return index

    def matmul(self, dst: Access, columns: int, *operands: Access, **more) -> int:
        return self.add("nc_matmul", "tensor", columns, list(operands), [dst], stationary=128, **more)

    def load(self, dst: Access, run: int = RUN) -> int:
        source = self.buffer("hbm", 10**8)
        size = 128 * (dst.byte_stop - dst.byte_start)
        return self.add("dma_copy", "dma", size // 512, [source], [dst], bytes=size, descriptors=128, run_bytes=run)

    def schedule(self, chip=TRN1, given=GIVEN) -> schedule.Schedule:
        self.trace.allocations = [Allocation(*row) for row in self._buffers]
        return schedule.build(self.trace, chip, given)


def instruction(name, engine="vector", elements=512, spaces=("sbuf",), itemsize=4, **more):
    reads = tuple(Access(k, space, 0, 128, 0, elements * itemsize) for k, space in enumerate(spaces))
    return Instruction(name, engine, elements, 128, itemsize, reads, (), **more)


@pytest.mark.parametrize(
    ("chip", "one", "cycles"),
    [
        (TRN1, instruction("nc_matmul", "tensor", 448, stationary=128), 4 * 448),
        (TRN1, instruction("nc_matmul", "tensor", 32, stationary=128), 4 * 64),
        (TRN1, instruction("nc_matmul", "tensor", 32, stationary=16), 4 * 32),
        (TRN1, instruction("nc_matmul", "tensor", 448, itemsize=2, stationary=128), 448),
        (TRN1, instruction("nc_matmul", "tensor", 128, stationary=128, transpose=True), 512),  # a label there
        (TRN2, instruction("nc_matmul", "tensor", 128, stationary=128, transpose=True), 256),
        (TRN1, instruction("activation", "scalar"), 512 + 64),
        (TRN1, instruction("activation", "scalar", reduces=True), 512 + 64 + 64),
        (TRN1, instruction("tensor_tensor", spaces=("sbuf", "psum")), 512 + 100),
        (TRN1, instruction("tensor_tensor", spaces=("sbuf", "sbuf")), 1024 + 100),
        (TRN1, instruction("tensor_tensor", spaces=("sbuf", "sbuf"), itemsize=2), 512 + 100),
        (TRN1, instruction("scalar_tensor_tensor", spaces=("sbuf", "psum")), 1024 + 100),
        (TRN1, instruction("tensor_scalar"), 512 + 100),
        (TRN1, instruction("memset", elements=16, spaces=()), 16 + 100),
        (TRN1, instruction("tensor_scalar_reduce", reduces=True), 512 + 64 + 100),
        (TRN1, instruction("reciprocal"), 8 * 512 + 100),
        (TRN1, instruction("reciprocal", "scalar"), 512 + 64),
        (TRN1, instruction("tensor_copy", strided=True), 1024 + 100),
        (TRN1, instruction("tensor_copy", elements=8, dynamic=True), 600 + 100),
    ],
)
def test_cycles_of_the_instruction_pages(chip, one, cycles):
    assert charge(one, chip, GIVEN).cycles == cycles


def test_one_zero_hint_is_credited_only_when_asked_for():
    one = instruction("nc_matmul", "tensor", 128, stationary=128, one_zero=True)
    assert charge(one, TRN1, GIVEN).cycles == 512
    assert charge(one, TRN1, replace(GIVEN, one_zero_hint=True)).cycles == 256


def test_an_instruction_without_a_documented_cost_is_refused():
    with pytest.raises(KernelError, match=r"no documented cost for nisa\.sort"):
        charge(instruction("sort"), TRN1, GIVEN)


def test_transfers_of_512_byte_rows_reach_the_published_rate():
    # 142 GB/s were derived from a kernel of 206 GB in 1.536 s, 135 GB/s from one of 151 MB per call.
    rows = Access(0, "sbuf", 0, 128, 0, 512)
    one = Instruction("dma_copy", "dma", 128, 128, 4, (), (rows,), bytes=65536, descriptors=128, run_bytes=512)
    assert 65536 / transfer_time(one, TRN1, GIVEN) == pytest.approx(136.0)
    few = one._replace(writes=(rows._replace(partition_stop=16),))
    assert transfer_time(few, TRN1, GIVEN) == pytest.approx(8 * transfer_time(one, TRN1, GIVEN))


def test_an_engine_runs_its_own_instructions_back_to_back():
    w = Writer()
    bank = w.buffer("psum", 2048)
    for _ in range(12):
        w.matmul(bank, 512)
    assert w.schedule().makespan == pytest.approx(12 * 2048 / 2.8)


def test_another_engine_waits_for_the_data_and_64_cycles_more():
    w = Writer()
    bank, copy = w.buffer("psum", 2048), w.buffer("sbuf", 2048)
    w.matmul(bank, 512)
    w.add("activation", "scalar", 512, [bank], [copy])
    done = w.schedule()
    assert done.start[1] == pytest.approx(2048 / 2.8 + 64 / 1.4)
    assert (done.cause[1], done.blocker[1]) == (schedule.INSTRUCTION, 0)


def test_reading_another_part_of_a_buffer_does_not_wait():
    w = Writer()
    bank, copy = w.buffer("psum", 2048), w.buffer("sbuf", 2048)
    w.matmul(bank._replace(byte_stop=1024), 256)
    w.add("activation", "scalar", 256, [bank._replace(byte_start=1024)], [copy])
    assert w.schedule().start[1] == 0.0


def evacuations(banks: int) -> schedule.Schedule:
    """Ten products of 12 steps whose results are read by a slow instruction, through a given number of banks."""
    w = Writer()
    ring = [w.buffer("psum", 2048) for _ in range(banks)]
    for k in range(10):
        for _ in range(12):
            w.matmul(ring[k % banks], 512)
        w.add("reciprocal", "vector", 512, [ring[k % banks]], [w.buffer("sbuf", 2048)])
    return w.schedule()


def test_a_single_bank_stalls_the_tensor_engine_and_two_do_not():
    product, read = 12 * 2048 / 2.8, 4196 / 1.12
    one, two = evacuations(1), evacuations(2)
    there, back = 64 / 1.12, 64 / 2.8
    assert two.makespan == pytest.approx(10 * product + there + read)
    assert one.makespan == pytest.approx(10 * (product + there + read) + 9 * back)


def test_fresh_buffers_take_over_the_oldest_released_bank():
    # Eight banks: the ninth product must wait for the reader of the first, which starts late here.
    w = Writer()
    slow = w.buffer("sbuf", 40_000)
    w.load(slow, 40_000)
    for _ in range(9):
        bank = w.buffer("psum", 2048)
        w.matmul(bank, 512)
        w.add("activation", "scalar", 512, [bank, slow], [w.buffer("sbuf", 2048)])
    done = w.schedule()
    first_reader, ninth = 2, 17
    assert done.start[15] < done.start[first_reader]
    assert done.start[ninth] == pytest.approx(done.end[first_reader] + 64 / 2.8)


def test_sbuf_released_late_delays_the_next_load():
    # Four 50 kB operands do not fit into 180,224 bytes: the fourth load waits for the user of the first.
    w = Writer()
    bank = w.buffer("psum", 2048)
    for _ in range(4):
        tile = w.buffer("sbuf", 50_000)
        w.load(tile, 50_000)
        for _ in range(90):
            w.matmul(bank, 512, tile)
    done = w.schedule()
    loads = [k for k, one in enumerate(w.trace.instructions) if one.engine == "dma"]
    assert done.start[loads[2]] == pytest.approx(done.end[loads[1]])
    assert done.start[loads[3]] == pytest.approx(done.end[loads[0] + 90] + GIVEN.dma_start)


def test_more_than_a_core_has_is_refused():
    w = Writer()
    tiles = [w.buffer("sbuf", 60_000) for _ in range(4)]
    w.add("memset", "vector", 8, [], tiles)
    with pytest.raises(KernelError, match="60000 bytes per partition do not fit"):
        w.schedule()
    w = Writer()
    w.add("memset", "vector", 8, [], [w.buffer("psum", 2048) for _ in range(9)])
    with pytest.raises(KernelError, match="PSUM banks"):
        w.schedule()


def port_trace() -> Writer:
    """A reciprocal into PSUM, and a copy out of another bank that is ready just after it began."""
    w = Writer()
    result, bank, half = w.buffer("psum", 2048), w.buffer("psum", 2048), w.buffer("sbuf", 2048)
    w.add("reciprocal", "vector", 512, [half], [result])
    w.matmul(bank, 128)
    w.add("activation", "scalar", 512, [bank], [w.buffer("sbuf", 2048)])
    return w


def test_trn1_reciprocal_into_psum_delays_an_evacuation_by_its_whole_length():
    w = port_trace()
    done = w.schedule(TRN1)
    assert done.start[2] == pytest.approx(4196 / 1.12)  # 3.7 us
    assert (done.cause[2], done.blocker[2]) == (schedule.PORT, 0)
    assert done.port == pytest.approx(4196 / 1.12 + 576 / 1.4)


def test_trn2_has_no_such_port_but_takes_turns_on_one_bank():
    assert port_trace().schedule(TRN2).start[2] == pytest.approx(512 / 2.4 + 64 / 1.2)
    w = Writer()
    bank = w.buffer("psum", 2048)
    w.add("reciprocal", "vector", 512, [bank], [w.buffer("sbuf", 2048)])
    w.add("activation", "scalar", 512, [bank], [w.buffer("sbuf", 2048)])
    done = w.schedule(TRN2)
    assert done.start[1] == pytest.approx(done.end[0])


def test_transfers_are_issued_in_program_order():
    # A store that waits for a product holds back the load behind it.
    w = Writer()
    bank, result, tile = w.buffer("psum", 2048), w.buffer("sbuf", 2048), w.buffer("sbuf", RUN)
    for _ in range(12):
        w.matmul(bank, 512)
    w.add("activation", "scalar", 512, [bank], [result])
    store = w.add(
        "dma_copy", "dma", 512, [result], [w.buffer("hbm", 10**6)], bytes=262144, descriptors=128, run_bytes=2048
    )
    load = w.load(tile)
    done = w.schedule()
    assert done.start[store] == pytest.approx(done.end[12] + GIVEN.dma_start)
    assert done.start[load] == pytest.approx(done.end[store])
    assert done.end[load] - done.start[load] == pytest.approx(128 * RUN / (272 * RUN / (RUN + 512)))


def test_account_adds_up_and_timeline_names_the_stall():
    w = Writer()
    tile, bank = w.buffer("sbuf", RUN), w.buffer("psum", 2048)
    w.load(tile)
    w.matmul(bank, 512, tile)
    w.add("activation", "scalar", 512, [bank], [w.buffer("sbuf", 2048)], reduces=True)
    w.schedule()
    found, plan = account.settle(w.trace, TRN1, GIVEN)
    assert found.bytes_read == 128 * RUN and found.bytes_written == 0 and found.ring_bytes == 128 * 32
    assert found.busy["scalar"] == pytest.approx(640 / 1.4) and found.documented["scalar"] == pytest.approx(576 / 1.4)
    assert found.utilisation == pytest.approx(2048 / 2.8 / found.makespan)
    assert found.bound == pytest.approx(found.busy["dma"])
    waited = timeline.stalls(w.trace, plan)
    assert waited[0][1] == pytest.approx(1.3 + 128 * RUN / (272 * RUN / (RUN + 512)) / 1e3 + 0.064 / 2.8)
    assert waited[0][2] == "dma_copy on dma at kernel.py:0"
    text = timeline.draw(w.trace, plan, length=20.0)
    rows = {line.split()[0]: line[8:] for line in text.splitlines()[1:-1]}
    assert rows["tensor"].index("M") == int(plan.start[1] / 200 + 0.5)
    assert rows["tensor"].count("M") in (3, 4) and rows["scalar"].strip(".") == "++"


def test_twenty_thousand_instructions_are_scheduled_in_seconds():
    w = Writer()
    for _ in range(1000):
        bank, copy, out = w.buffer("psum", 2048), w.buffer("sbuf", 2048), w.buffer("sbuf", 2048)
        for _ in range(18):
            w.matmul(bank, 512)
        w.add("activation", "scalar", 512, [bank], [copy])
        w.add("tensor_tensor", "vector", 512, [copy, bank], [out])
    begun = time.perf_counter()
    done = w.schedule()
    assert len(done.start) == 20_000
    assert time.perf_counter() - begun < 5.0
