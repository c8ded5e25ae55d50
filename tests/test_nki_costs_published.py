"""The cost model against figures published for kernels of others on trn1."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfmp2.backends.nki.costs import published
from dfmp2.backends.nki.costs.chips import CHIPS, Assumptions

TRN1 = CHIPS["trn1"]
GIVEN = Assumptions()
BARE = replace(GIVEN, vector_overhead=0)
PEAK = replace(GIVEN, dma_half=0)


def test_elementwise_kernel_takes_203_ms_of_vector_engine_against_206_measured():
    strip, count = published.elementwise_strip(), published.elementwise_strips()
    bare = published.engine_time(strip, count, "vector", TRN1, BARE)
    assert bare == pytest.approx(167.0, abs=0.5)
    overhead = published.ELEMENTWISE_STATEMENTS.value * GIVEN.vector_overhead / TRN1.vector / 1e6
    assert bare + overhead == pytest.approx(203.0, abs=0.5)
    assert bare + overhead == pytest.approx(published.ELEMENTWISE_VECTOR.value, rel=0.02)
    # Of the 24.6 published instructions per strip 24 are found in the source and its transposed load.
    found = sum(one.engine == "vector" for one in strip) * count
    assert found == pytest.approx(published.ELEMENTWISE_STATEMENTS.value, rel=0.03)


def test_elementwise_kernel_reads_what_its_profile_shows():
    # Two (112, 448) float32 tiles for each of 16,384 strips; the profile shows 2.1 MB more, 0.03 %.
    read = published.traffic(published.elementwise_strip(), published.elementwise_strips())
    assert read == 64 * 64 * 4 * 2 * 112 * 448 * 4
    assert read == pytest.approx(published.ELEMENTWISE_READS.value, rel=5e-4)


def test_batched_kernel_is_bound_by_its_transfers():
    block, count = published.batched_block(1536), published.batched_blocks(64, 448)
    assert published.traffic(block, count) == pytest.approx(206.2e9, rel=1e-3)
    assert published.engine_time(block, count, "tensor", TRN1, GIVEN) == pytest.approx(288.0, rel=0.005)
    assert published.engine_time(block, count, "vector", TRN1, GIVEN) == pytest.approx(269.0, rel=0.005)
    assert published.engine_time(block, count, "dma", TRN1, PEAK) == pytest.approx(760.0, rel=0.005)
    moved = published.engine_time(block, count, "dma", TRN1, GIVEN)
    assert moved == pytest.approx(1520.0, rel=0.005)
    assert moved == pytest.approx(published.BATCHED_MEDIUM.value, rel=0.02)


def test_batched_kernel_in_sixteen_calls():
    block, count = published.batched_block(512), published.batched_blocks(16, 384)
    assert published.traffic(block, count) / 16 == pytest.approx(151e6, rel=1e-3)
    calls = published.engine_time(block, count, "dma", TRN1, GIVEN) + 16 * published.ROUND_TRIP
    assert calls == pytest.approx(39.0, abs=0.5)
    assert calls == pytest.approx(published.BATCHED_CHUNKED.value, rel=0.02)
