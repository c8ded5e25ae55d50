"""The pair-energy kernels counted and scheduled: per-pair figures worked out by hand, and what they add up to."""

from __future__ import annotations

import pytest

from dfmp2.backends.nki.costs import catalogue, prediction, pricing, timeline
from dfmp2.backends.nki.costs.chips import CHIPS, Assumptions
from dfmp2.backends.nki.costs.shapes import SHAPES, Shape
from dfmp2.errors import InputError, KernelError

TRN1, TRN2, GIVEN = CHIPS["trn1"], CHIPS["trn2"], Assumptions()
K3 = catalogue.find("K3")
MEMSETS = 2 * (128 + 100)  # Vector Engine cycles of the two zeroed tiles of a call
SUM = 64 + 64  # Scalar Engine cycles of one more row sum: rows are summed 256 terms at a time, not a chunk at a time
STATEMENTS = ("nc_matmul", "nc_matmul (hinted)", "reciprocal", "tensor_tensor", "activation")


@pytest.fixture(scope="module")
def prices():
    return {
        (name, chip.name, variant): catalogue.best(K3, shape, chip, GIVEN, variant)[0]
        for name, shape in SHAPES.items()
        for chip in CHIPS.values()
        for variant in K3.variants(shape)
        if (name, chip.name) != ("large", "trn2")  # slow, and the same kernel
    }


@pytest.mark.parametrize(
    ("name", "tensor", "vector", "scalar", "port", "statements"),
    [
        ("medium", 86_016 + 4_096, 13_288, 9_664 + 8 * SUM, 2_880, (48, 11, 2, 8, 22 + 8)),
        ("large", 290_304 + 9_344, 27_844, 20_512 + 16 * SUM, 6_176, (216, 23, 5, 20, 49 + 16)),
    ],
)
def test_cycles_per_pair_of_the_plain_kernel(prices, name, tensor, vector, scalar, port, statements):
    # By hand from the layout: row tiles x slices x 4 N columns, U transposed columns, 12 U and 8 U elementwise.
    part = prices[name, "trn1", "plain"].parts[0]
    account, pairs = part.account, 64
    assert account.busy["tensor"] * 2.8 / pairs == pytest.approx(tensor, abs=0.5)
    assert (account.busy["vector"] * 1.12 - MEMSETS) / pairs == pytest.approx(vector, abs=0.5)
    assert account.busy["scalar"] * 1.4 / pairs == pytest.approx(scalar, abs=0.5)
    assert tuple(account.statements[s] // pairs for s in STATEMENTS) == statements
    # The PSUM port: every Vector instruction, and the Scalar Engine's elements that come out of PSUM with at most
    # one overhead of 64 cycles for each of its instructions.
    held = account.port * pairs**-1 - vector / 1.12
    assert port / 1.4 <= held <= (port + 64 * statements[4]) / 1.4


def test_on_chip_memory_of_the_plain_kernel_stays_within_its_design(prices):
    assert prices["medium", "trn1", "plain"].sbuf <= 152_064
    assert prices["large", "trn1", "plain"].sbuf <= 165_504
    for price in prices.values():
        assert price.sbuf <= TRN1.sbuf
        assert price.psum <= 8


def test_predicted_times_on_one_trn1_core(prices):
    plain, packed = prices["medium", "trn1", "plain"], prices["medium", "trn1", "packed"]
    large = prices["large", "trn1", "plain"]
    # Work of the Tensor Engine alone: 2080 pairs of 90,112 cycles, 4656 pairs of 299,648 cycles.
    assert plain.busy("tensor") == pytest.approx(2080 * 90_112 / 2.8)
    assert large.busy("tensor") == pytest.approx(4656 * 299_648 / 2.8)
    assert plain.busy("tensor") < plain.makespan <= 70e6
    assert packed.busy("tensor") < packed.makespan <= 62e6
    assert large.busy("tensor") < large.makespan <= 520e6
    assert min(price.utilisation for price in (plain, packed, large)) >= 0.85
    assert plain.floor == pytest.approx(55.9e6, rel=1e-3)
    assert large.floor == pytest.approx(422e6, rel=1e-3)
    assert all(price.bound <= price.makespan for price in prices.values())


def test_traffic_of_the_medium_shape(prices):
    price = prices["medium", "trn1", "plain"]
    # Off-diagonal block: 8 rows of B_i, 8 columns for each of 4 turns, less 3 that stay where the direction turns.
    rows = 8 + 4 * 8 - 3
    tables = 4 * 128 * (1024 + 128 + 128)
    assert price.parts[0].account.bytes_read == rows * 1536 * 512 * 4 + tables
    assert price.parts[0].account.bytes_written == 64 * 12 * 128 * 4
    assert price.hbm_bytes <= 5e9
    assert price.rings < 1e6


def test_trn2_gains_from_transpose_mode(prices):
    # 86,016 + 2,048 + a cut segment that is no whole transpose, at 2.4 GHz.
    each = prices["medium", "trn2", "plain"].busy("tensor") * 2.4 / 2080
    assert 86_016 + 2_048 <= each < 86_016 + 4_096


def test_best_is_the_packed_variant_where_rows_are_left_over(prices):
    assert catalogue.best(K3, SHAPES["medium"], TRN1, GIVEN)[0].variant == "packed"
    assert prices["large", "trn1", "plain"].calls == 66 + 12
    with pytest.raises(InputError, match="--variant packed: pair_energy offers plain"):
        catalogue.best(K3, SHAPES["large"], TRN1, GIVEN, "packed")


def test_number_of_programs_does_not_depend_on_the_number_of_occupied_orbitals():
    def needed(*spins):
        found = catalogue.programs(spins, TRN1, GIVEN)
        return len(found), {p.neff for p in found if p.kernel.startswith("pair_energy")}

    few, many = needed(Shape(9, 100, 300)), needed(Shape(200, 100, 300))
    assert few == many and few[0] == 4  # off-diagonal and diagonal blocks, two of the transformation
    assert needed(Shape(9, 97, 257)) == few  # the same bucket
    open_shell = needed(Shape(20, 100, 300), Shape(18, 140, 300))
    assert open_shell == needed(Shape(90, 100, 300), Shape(80, 140, 300))
    assert open_shell[0] == 7


def test_what_cannot_fit_is_refused_before_it_is_counted():
    with pytest.raises(KernelError, match=r"needs \d+ bytes per SBUF partition"):
        catalogue.best(K3, Shape(500, 5000, 20_000), TRN1, GIVEN)
    trn1, _ = prediction.predict((Shape(500, 5000, 20_000),))
    assert trn1.obstacle and trn1.device == 0.0


def test_prediction_of_an_open_shell_adds_three_channels():
    alpha, beta = Shape(9, 30, 100), Shape(7, 32, 100)
    trn1, trn2 = prediction.predict((alpha, beta))
    parts = [catalogue.best(K3, shape, TRN1, GIVEN)[0] for shape in (alpha, beta)]
    mixed = pricing.price("plain", catalogue.cross((alpha, beta), TRN1), 1, TRN1, GIVEN)
    assert trn1.device == pytest.approx(sum(p.makespan for p in (*parts, mixed)) / 1e9)
    assert trn1.calls == sum(p.calls for p in (*parts, mixed))
    assert trn1.memory > 4 * 128 * 128 * (16 + 8)  # B of 16 and 8 padded orbitals
    assert (trn1.chip, trn2.chip) == ("trn1", "trn2")
    assert prediction.predict(()) == ()


def test_timeline_of_the_kernel_shows_its_few_stalls(prices):
    call = prices["medium", "trn1", "plain"].parts[0].call
    trace, account, plan = pricing.schedule_call(call, TRN1, GIVEN)
    waited = timeline.stalls(trace, plan)
    assert sum(idle for _, idle, _ in waited) == pytest.approx(
        (account.makespan - account.busy["tensor"]) / 1e3, rel=0.01
    )
    assert waited[0][2].startswith("dma_copy on dma at ")  # the first operands
    text = timeline.draw(trace, plan, begin=100.0, length=50.0)
    assert "." not in next(line for line in text.splitlines() if line.startswith("tensor"))[8:]
