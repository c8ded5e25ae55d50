"""The PyTorch backend as it runs on a card, with the CPU in its place: tiles, launches, copies,
precisions, and a B that does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import dfmp2
from dfmp2.backends import fused, tiling, transfers
from dfmp2.backends import torch as torch_backend
from dfmp2.backends.base import Shape, Tile
from dfmp2.backends.cpu import CpuBackend
from dfmp2.backends.torch import (
    StreamedOperand,
    TorchBackend,
    TorchOperand,
    split_tf32,
)
from dfmp2.backends.transfers import Card
from dfmp2.errors import ResourceError
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.pairs import pair_energies
from dfmp2.planning import devices, memory, rates
from dfmp2.planning.sizes import Spin, Workload
from tests import stand_in_triton
from tests.conftest import MOLECULES
from tests.test_backends import fitted, oracle

DOCS = Path(__file__).parent.parent / "docs"
H100 = Card("NVIDIA H100 80GB HBM3", (9, 0), 80 << 30, 68 << 30)
NH2 = Molecule.from_string(MOLECULES["nh2"])


def backend(card=H100, **how):
    return TorchBackend(torch, "cpu", 1, card, **how)


def counted(shape, monkeypatch):
    """Tiles of the pair step of one spin on a card, and (rows, columns, contracted) of its products;
    nothing is computed."""
    nocc, nvir, naux = shape
    card = backend()
    card._fused = True
    card._product = Mock()
    monkeypatch.setattr(fused, "add_pair_sums", Mock())
    b = torch.zeros(1, dtype=torch.float64).expand(shape)
    operand = TorchOperand(b, np.zeros(nocc), np.zeros(nvir), "fp64", space=object())
    tiles = tiling.triangle(nocc, card.limits, nvir * naux)
    for tile in tiles:
        card._sums(operand, operand, tile)
    blocks = [call.args[2:] for call in card._product.call_args_list]
    products = [((stop - j) * nvir, (end - i) * nvir, naux) for (i, end), (j, stop) in blocks]
    return tiles, products


def row_of(shape, tiles, products, operations):
    """The row of a shape on the page: a product and its sums are launched one after the other, and
    each tile sets its sums to 0 and adds up those of blocks."""
    size = "/".join(map(str, shape))
    largest = " x ".join(map(str, max(products, key=np.prod)))
    launches = f"{2 * len(tiles) + 2 * len(products)} | 3 | {len(tiles)} | {len(products)}"
    mean = operations / len(products)
    return f"| {size} | after | {len(tiles)} | {launches} | {largest} | {mean:.1f} |"


# --- tiles, launches, copies ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(21, 171, 570), (50, 190, 840), (64, 448, 1536)])
def test_the_counts_of_the_page_are_those_of_the_code(shape, monkeypatch):
    tiles, products = counted(shape, monkeypatch)
    operations = 2 * sum(map(np.prod, products)) / 1e9
    page = (DOCS / "project" / "performance" / "cuda.md").read_text()
    assert row_of(shape, tiles, products, operations) in page.splitlines()
    nocc, nvir, naux = shape
    needed = nocc * (nocc + 1) * nvir**2 * naux / 1e9
    assert needed <= operations < 1.3 * needed  # strips compute some of it twice


@pytest.mark.parametrize("precision", ["fp64", "mixed"])
def test_a_pair_step_waits_for_no_copy_but_the_last(precision):
    """B and the energies go up once, the sums of each tile come down once, and the next tile is
    begun before the one before is asked for."""
    card, space = backend(), fitted(70, 5, 9)
    order = []
    begin = card.begin

    def watched(left, right, tile):
        order.append("begin")
        finish = begin(left, right, tile)

        def terms():
            order.append("fetch")
            return finish()

        return terms

    card.begin = watched
    pair_energies([card.put(*space, precision)], card)
    tiles = tiling.triangle(70, card.limits, 45)
    assert [tile[:2] for tile in sorted(tiles)] == [(0, 35), (0, 35), (35, 70)]
    assert order == ["begin", "begin", "fetch", "begin", "fetch", "fetch"]
    moved = card.transfers
    assert (moved.uploads, moved.uploaded) == (3, 8 * (70 + 5) + space[0].nbytes)
    assert (moved.downloads, moved.downloaded) == (len(tiles), 16 * 3 * 35**2)


# --- the fused kernel -----------------------------------------------------------------------------


FUSED = (  # spaces, full and partial blocks of 32
    [(1, 1, 3)],
    [(7, 18, 3), (3, 21, 3)],
    [(7, 32, 20)],
    [(5, 33, 20), (4, 40, 20)],
)


def compare_with_host(sizes, total, kappa):
    """Fused and plain, in float64 and in float32, against the host in float64."""
    spaces = [fitted(*size, seed=number) for number, size in enumerate(sizes)]
    host, card = CpuBackend(1), backend(Card("a small card", (9, 0), total, 1 << 30))
    if kappa is not None:
        host, card = host.regularised(kappa), card.regularised(kappa)
    expected = pair_energies([host.put(*space, "fp64") for space in spaces], host)
    for fuse in (False, True):
        card._fused = fuse
        for precision, tolerance in (("fp64", 1e-12), ("mixed", 2e-6)):
            found = pair_energies([card.put(*space, precision) for space in spaces], card)
            for name, matrix in expected.channels().items():
                least = tolerance * abs(matrix).max()
                np.testing.assert_allclose(found.channels()[name], matrix, tolerance, atol=least)


def test_the_fused_kernel_equals_the_definition():
    """In Triton's interpreter, on the CPU, in a process of its own: Triton reads the variable when
    it is imported."""
    pytest.importorskip("triton", reason="triton comes with PyTorch for CUDA only")
    script = (
        "from tests.test_torch import FUSED, compare_with_host\n"
        "for sizes in FUSED:\n    compare_with_host(sizes, 1 << 20, 1.1)"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        cwd=DOCS.parent,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )


@pytest.fixture
def kernel_in_numpy(monkeypatch):
    """Triton's part in the fused kernel by NumPy."""
    triton, language = stand_in_triton.module()
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    fused._kernel.cache_clear()
    yield
    fused._kernel.cache_clear()


@pytest.mark.parametrize("kappa", [None, 1.1])
@pytest.mark.parametrize("total", [1 << 20, 1 << 23])
@pytest.mark.parametrize("sizes", FUSED)
def test_a_card_computes_what_the_host_does(sizes, total, kappa, kernel_in_numpy):
    """Triton's part in NumPy; in products of a few orbitals and of all."""
    compare_with_host(sizes, total, kappa)


# --- precision ------------------------------------------------------------------------------------


def tf32(values):
    """Round as tensor cores round a float32: to 10 bits of fraction."""
    return ((values.view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32)


def test_both_halves_of_a_float32_are_tf32_to_21_bits():
    numbers = torch.from_numpy(np.random.default_rng(2).standard_normal(500).astype(np.float32))
    high, low = split_tf32(torch, numbers.clone())
    assert torch.equal(high + low, numbers) and torch.equal(tf32(high), high)
    assert ((tf32(low) - low).abs() <= 2.0**-21 * numbers.abs()).all()


def test_a_split_pair_step_has_the_energy():
    space = fitted(9, 30, 60)
    card = backend(split=True)
    operand = card.put(*space, "mixed")
    terms = card.pair_terms(operand, operand, Tile(0, 9, 0, 9, True))
    assert card.describe()["float32 products"] == "three of TF32"
    direct, exchange = oracle(space, space)
    np.testing.assert_allclose(terms.direct, np.triu(direct), rtol=3e-6)
    np.testing.assert_allclose(terms.exchange, np.triu(exchange), rtol=3e-5, atol=1e-12)


# --- a B that does not fit ------------------------------------------------------------------------


def watch_memory(card):
    """Bytes of operands on a card whenever one is added, from now on."""
    resident = []
    hold = card.transfers.hold

    def watched(value, size):
        hold(value, size)
        resident.append(card.transfers.resident)

    card.transfers.hold = watched
    return resident


ROOM, NAUX = 66, 100  # occupied orbitals on the card, of 10 or 6 along the edge of a tile


def small(rows, size, **how):
    """A card with room for `rows` occupied orbitals of B."""
    products = 3 * 8 * backend(Card("a small card", (9, 0), 1 << 20, 0)).limits.tile_elements
    return backend(Card("a small card", (9, 0), 1 << 20, products + rows * size), **how)


@pytest.mark.parametrize(
    ("precision", "split", "number"), [("fp64", False, 8), ("mixed", False, 4), ("mixed", True, 8)]
)
@pytest.mark.parametrize(
    "sizes", [[(90, 2)], [(70, 2), (40, 3)], [(90, 2), (6, 3)], [(6, 2), (90, 3)]]
)
def test_rows_of_b_pass_through_a_small_card(sizes, precision, split, number):
    """The same bits as where B fits; less than all of B is on the card at any time; with three TF32
    products a number has two halves."""
    spaces = [fitted(*size, NAUX, seed=number) for number, size in enumerate(sizes)]
    row = number * sizes[-1][1] * NAUX
    card = small(ROOM, row, split=split)
    whole = backend(Card("a small card", (9, 0), 1 << 20, 1 << 40), split=split)
    streamed = [card.put(*space, precision) for space in spaces]
    assert any(isinstance(operand, StreamedOperand) for operand in streamed)
    most = watch_memory(card)
    found = pair_energies(streamed, card)
    expected = pair_energies([whole.put(*space, precision) for space in spaces], whole)
    np.testing.assert_array_equal(found.opposite_spin, expected.opposite_spin)
    for ours, theirs in zip(found.same_spin, expected.same_spin, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert max(most) <= ROOM * row
    assert card.transfers.uploads > whole.transfers.uploads


@pytest.mark.parametrize(
    ("precision", "split", "number"),
    [("fp64", True, 8), ("fp64", False, 8), ("mixed", True, 8), ("mixed", False, 4)],
)
def test_b_stays_on_a_card_to_the_last_byte_of_its_room(precision, split, number):
    """All of B beside five edges of streamed rows; with three TF32 products a number has two
    halves."""
    space = fitted(20, 5, 6)
    rows = number * 30
    edge = tiling.edge(20, small(99, 8).limits, 30)
    whole = (20 + 5 * edge) * rows
    there = small(whole, 1, split=split)
    resident = there.put(*space, precision)
    assert isinstance(resident, TorchOperand) and there.transfers.resident == 20 * rows
    assert (resident.low is not None) == (split and precision == "mixed")
    assert isinstance(there.put(*space, precision), StreamedOperand)
    del resident
    assert there.transfers.resident == 0
    assert isinstance(small(whole - 1, 1, split=split).put(*space, precision), StreamedOperand)
    assert isinstance(
        small(5 * edge * rows, 1, split=split).put(*space, precision), StreamedOperand
    )
    with pytest.raises(ResourceError, match=f"need {5 * edge * rows} bytes"):
        small(5 * edge * rows - 1, 1, split=split).put(*space, precision)


class Cuda:
    """`torch` with a fake card in host memory whose events are recorded."""

    def __init__(self):
        self.noted = []
        outer = self

        class Event:
            def record(self):
                outer.noted.append(("record", id(self)))

            def synchronize(self):
                outer.noted.append(("wait", id(self)))

        stream = SimpleNamespace(wait_event=lambda event: self.noted.append(("after", id(event))))
        self.cuda = SimpleNamespace(
            Event=Event,
            Stream=lambda: "another stream",
            stream=lambda which: self.noted.append(which) or nullcontext(),
            current_stream=lambda: stream,
        )

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, shape, dtype, device=None, pin_memory=False):
        return torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("stage", [8, 24, 40, 10**6])
def test_copies_go_through_two_buffers_that_have_been_emptied(monkeypatch, stage):
    """Blocks of any size; a buffer is refilled once its last copy is complete."""
    monkeypatch.setattr(transfers, "STAGE_BYTES", stage)
    card = Cuda()
    copies = transfers.Transfers(card, SimpleNamespace(type="cuda"))
    numbers = np.random.default_rng(4).standard_normal((3, 7))
    there = copies.up(numbers[:, ::-1], torch.float32)
    np.testing.assert_array_equal(there.numpy(), numbers[:, ::-1].astype(np.float32))
    pieces = -(-numbers.nbytes // stage)
    assert [what for what, _ in card.noted] == ["wait", "record"] * pieces
    events = [event for what, event in card.noted if what == "record"]
    assert events == [event for what, event in card.noted if what == "wait"]
    assert len(set(events)) == min(pieces, 2)
    assert all(first != second for first, second in pairwise(events))
    assert (copies.uploads, copies.uploaded) == (1, numbers.nbytes)
    into = torch.zeros(30, dtype=torch.float64)
    card.noted.clear()
    copies.fill(into, numbers)
    np.testing.assert_array_equal(into[:21].numpy(), numbers.ravel())
    assert not into[21:].any() and len(card.noted) == 2 * pieces
    single = torch.zeros(30, dtype=torch.float32)
    card.noted.clear()
    copies.fill(single, numbers)  # of another type: not copied byte by byte
    np.testing.assert_array_equal(single[:21].numpy(), numbers.ravel().astype(np.float32))
    assert not card.noted and (copies.uploads, copies.uploaded) == (3, 3 * numbers.nbytes)


def test_what_comes_back_is_waited_for():
    card = Cuda()
    copies = transfers.Transfers(card, SimpleNamespace(type="cuda"))
    value = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    wait = copies.down(value)
    assert [what for what, _ in card.noted] == ["record"]
    np.testing.assert_array_equal(wait(), value.numpy())
    assert [what for what, _ in card.noted] == ["record", "wait"]
    assert (copies.downloads, copies.downloaded) == (1, 48)
    card.noted.clear()
    with copies.aside(), copies.aside():
        mark = copies.mark()
    copies.after(mark)
    assert card.noted[:2] == ["another stream"] * 2
    assert card.noted[2:] == [("record", id(mark)), ("after", id(mark))]
    copies.after(None)
    assert len(card.noted) == 4


# --- B, J and K made on the device ----------------------------------------------------------------


def spaces_of(sizes, nao, rng):
    return [
        SimpleNamespace(
            c_occ=rng.standard_normal((nao, nocc)),
            c_vir=rng.standard_normal((nao, nvir)),
            eps_occ=np.sort(-rng.uniform(0.4, 9, nocc)),
            eps_vir=np.sort(rng.uniform(0.1, 9, nvir)),
        )
        for nocc, nvir in sizes
    ]


@pytest.mark.parametrize("kept", [17, 15], ids=["triangle", "eigenvalues cut"])
@pytest.mark.parametrize("sizes", [[(5, 6)], [(5, 6), (3, 8)]])
def test_b_of_the_device_is_the_formula(kept, sizes):
    rng = np.random.default_rng(5)
    nao, naux = 11, 17
    raw = rng.standard_normal((naux, nao, nao))
    raw += raw.transpose(0, 2, 1)
    rows, columns = np.tril_indices(nao)
    packed = np.ascontiguousarray(raw[:, rows, columns])
    given = rng.standard_normal((naux, kept))
    if kept == naux:
        given = np.triu(given)
    spaces = spaces_of(sizes, nao, rng)
    fetched = spaces_of([(2, 3)], nao, rng)
    blocks = [(0, 7, packed[:7]), (7, 9, packed[7:9]), (9, 17, packed[9:])]
    expected = [
        np.einsum("pmn,mi,na,pq->iaq", raw, one.c_occ, one.c_vir, given, optimize=True)
        for one in (*spaces, *fetched)
    ]
    numbers = (naux + given.shape[1]) * sum(np.prod(size) for size in sizes) + naux * (naux + nao)
    room = 24 * 256 + 8 * int(numbers)  # of products, integrals and B, inverse metric, a row
    for total, usable, stays in (
        (1 << 16, 68 << 30, True),  # an orbital exceeds a product
        (1 << 18, room, True),  # two orbitals to a product
        (1 << 18, room - 1, False),
        (80 << 30, 68 << 30, True),
    ):
        card = backend(Card("a card", (9, 0), total, usable))
        found = card.make_b(blocks, given, spaces, fetched)
        assert {hasattr(tensor, "at") for tensor in found[:-1]} == {stays}
        for tensor, b in zip(found, expected, strict=True):
            values = tensor.at("fp64").b if hasattr(tensor, "at") else tensor
            np.testing.assert_allclose(np.asarray(values), b, rtol=1e-11, atol=1e-11)
    assert card.transfers.uploaded < 1.5 * packed.nbytes + 8 * (given.size + 2000)
    order = np.argsort(sum((b**2).sum((0, 1)) for b in expected[:-1]), kind="stable")
    for tensor, b in zip(found[:-1], expected, strict=False):
        single = tensor.at("mixed").b
        np.testing.assert_array_equal(single, tensor.at("fp64").b.float()[:, :, order])
        assert tensor.shape == b.shape


@pytest.mark.parametrize(
    "molecule",
    [
        Molecule.from_string("H 0 0 30; H 0 0 30.7; O 0 0 0.1; H 0 0.7 -0.5; H 0 -0.7 -0.5"),
        NH2,
    ],
    ids=["h2o", "nh2"],
)
def test_a_run_with_everything_on_the_device(molecule, monkeypatch):
    """A closed shell so far from another that pairs are dropped, and an open shell, against the same
    run on the host and PySCF's own DF-MP2."""
    card = backend()
    monkeypatch.setattr(torch_backend, "make", lambda name, threads: card)
    host = dfmp2.run(molecule, "6-31g", backend="cpu", precision="fp64")
    for precision in ("fp64", "mixed"):
        ours = dfmp2.run(molecule, "6-31g", backend="torch", precision=precision, check=True)
        assert ours.options.transform == "device"  # by auto, on a card
        difference = ours.mp2_correlation_energy - host.mp2_correlation_energy
        assert abs(difference) < {"fp64": 1e-9, "mixed": 1e-7}[precision]
        assert abs(ours.scf_total_energy - host.scf_total_energy) < 1e-9
        assert abs(ours.check.correlation_difference) < {"fp64": 1e-9, "mixed": 1e-7}[precision]
    details = dict(line.split(": ", 1) for line in ours.provenance.backend_details)
    assert details["on the device"] == "J and K, transformation and fit, pair energies"
    assert card.transfers.resident == 0


@pytest.mark.parametrize(
    ("usable", "place"), [(68 << 30, "memory"), (24 * (1 << 18) + 70_000, "disk")]
)
def test_b_that_only_the_card_has_room_for_stays_there(monkeypatch, usable, place):
    """The host may not hold B: the card keeps it if it has room, otherwise the disk."""

    def without_room(*given):
        return sizes(*given) | {"mp2_in_core": 1 << 50}

    card = backend(Card("a card", (9, 0), 1 << 28, usable))
    monkeypatch.setattr(torch_backend, "make", lambda name, threads: card)
    host = dfmp2.run(NH2, "sto-3g", backend="cpu", precision="fp64")
    sizes = memory._mp2
    monkeypatch.setattr(memory, "_mp2", without_room)
    ours = dfmp2.run(NH2, "sto-3g", backend="torch")
    assert ours.precision == "fp64" and ours.certificate is None
    assert ours.storage.fitted_tensor == place
    assert ours.options.transform == {"memory": "device", "disk": "auto"}[place]
    assert abs(ours.mp2_correlation_energy - host.mp2_correlation_energy) < 1e-10
    details = " ".join(ours.provenance.backend_details)
    assert ("transformation and fit" in details) == (place == "memory")


@pytest.mark.parametrize(("short", "stays"), [(0, True), (1, False)])
def test_a_card_keeps_b_to_the_last_byte_of_its_room(short, stays):
    """Integrals and B side by side, the inverse metric, rows of integrals; products beside them."""
    nocc, nvir, naux, nao = 3, 7, 19, 11
    total = 1 << 24
    products = 3 * 8 * Card("a card", (9, 0), total, total).product_elements
    b = 8 * naux * nocc * nvir
    both = 2 * b + 8 * naux * (naux + nao)
    limits = backend(Card("a card", (9, 0), total, products + both - short)).limits
    for functions in (1, 140, 10**6):  # of the SCF, whose J and K are made there before
        work = Workload(nao, functions, naux, (Spin(4, nocc, nvir),), "fp64", 5, scf_columns=9)
        held = max(b, 8 * 9 * functions, both * stays)
        planned = devices.card_bytes(work, limits, made_there=True)
        assert planned == products + min(held, both - short)


@pytest.mark.parametrize(
    ("card", "how", "number"),
    [
        (H100, {"precision": "fp64"}, 8),
        (H100, {"precision": "mixed"}, 8 + 4),
        ("split", {"precision": "mixed"}, 8 + 4 + 4),
        (None, {"precision": "mixed"}, 0),
    ],
    ids=["float64", "mixed", "tf32", "host"],
)
def test_the_planned_memory_of_a_card_is_what_a_run_holds(card, how, number, monkeypatch):
    """B, for the certificate in float64 as well, beside products of three arrays."""
    made = backend(H100, split=True) if card == "split" else backend(card)
    monkeypatch.setattr(torch_backend, "make", lambda name, threads: made)
    monkeypatch.setattr(rates, "measure_rates", lambda backend, count: rates.Rates())
    how |= {"backend": "torch", "transform": "host", "threads": 1, "stability": "off"}
    planned = dfmp2.plan(NH2, "sto-3g", **how).to_dict()["memory_bytes"]["device"]
    held = watch_memory(made)
    result = dfmp2.run(NH2, "sto-3g", **how)
    assert result.options.transform == "host"
    b = (5 * 2 + 4 * 3) * result.sizes.naux
    if card is None:
        assert planned == 0
    else:
        assert planned - 3 * 8 * made.limits.tile_elements == max(held) == number * b


@pytest.mark.parametrize(("usable", "total"), [(68 << 30, 80 << 30), (0, 1 << 18), (0, 1 << 15)])
def test_j_and_k_of_the_device_are_the_formula(usable, total):
    rng = np.random.default_rng(8)
    nao, naux = 9, 14
    rows, columns = np.tril_indices(nao)
    kept = np.sort(rng.permutation(len(rows))[:-6])  # six pairs are negligible
    rows, columns = rows[kept], columns[kept]
    b = rng.standard_normal((naux, len(kept)))
    whole = np.zeros((naux, nao, nao))
    whole[:, rows, columns] = whole[:, columns, rows] = b
    of_packed = np.full(nao * (nao + 1) // 2, len(kept))
    of_packed[kept] = np.arange(len(kept))
    occupied = [rng.standard_normal((nao, nocc)) for nocc in (4, 3)]
    density = np.array([c @ c.T for c in occupied])
    folded = np.where(rows == columns, 1, 2) * density[:, rows, columns]
    card = backend(Card("a card", (9, 0), total, usable))
    fields = card.fields(b, of_packed)
    assert card.transfers.resident == (usable > 0) * b.nbytes
    j, k = fields.matrices(folded, occupied, single=False, exchange=True)
    expected = np.einsum("pmn,pls,xls->xmn", whole, whole, density, optimize=True)
    np.testing.assert_allclose(j, expected[:, rows, columns], rtol=1e-12)
    expected = np.einsum("pml,xls,pns->xmn", whole, density, whole, optimize=True)
    np.testing.assert_allclose(k, expected, rtol=1e-11, atol=1e-11)
    single = fields.matrices(folded, occupied, single=True, exchange=True)[1]
    assert 0 < abs(single - k).max() < 1e-5 * abs(k).max()
    assert not fields.matrices(folded, occupied, single=False, exchange=False)[1].any()


@pytest.mark.parametrize(("card", "rate"), [(H100, 1e13), (None, torch_backend.HOST_RATE)])
def test_the_time_of_a_transformation_is_that_of_its_operations(card, rate):
    """Packed integrals over the link, once for both spins, then two half transformations and the
    fit of each."""
    nao, naux, spins = 300, 900, ((40, 250), (30, 260))
    found = backend(card).transform_seconds([Shape(*spin, naux) for spin in spins], nao)
    products = sum(2 * naux * i * (nao * (nao + a) + naux * a) for i, a in spins)
    upload = 8 * naux * nao * (nao + 1) / 2
    assert found == pytest.approx(products / rate + upload / torch_backend.LINK_RATE, rel=1e-12)
