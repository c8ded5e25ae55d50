"""Pair energies: tiles, workers, the order of sums, and a certificate that sees the errors planted here."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dfmp2.backends import contract, registry, tiling
from dfmp2.backends.base import Limits
from dfmp2.backends.cpu import CpuBackend
from dfmp2.backends.torch import TorchBackend
from dfmp2.backends.untransformed import UntransformedOperand
from dfmp2.errors import NumericalError
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.scratch import Space
from dfmp2.integrals.spaces import ActiveSpace, homo_lumo_gap, smallest_denominator
from dfmp2.mp2 import certificate
from dfmp2.mp2.certificate import rounded, summation_order
from dfmp2.mp2.pairs import evaluate, pair_energies
from dfmp2.planning.sizes import SAMPLED
from tests.conftest import Heard
from tests.test_backends import fitted

CPU = CpuBackend(2)
LIMITS = Limits(("fp64",), tile_edge=16, tile_elements=1 << 17, workers=2)


def operands(spaces, kind):
    return [CPU.put(*space, kind) for space in spaces]


def energy(pairs):
    return pairs.same_spin_energy + pairs.opposite_spin_energy


# --- tiles and workers ------------------------------------------------------------------------------


@pytest.mark.parametrize("nocc", [0, 1, 2, 9, 64, 129])
def test_triangle_covers_each_pair_once(nocc):
    seen = {}
    for i0, i1, j0, j1, diagonal in tiling.triangle(nocc, LIMITS):
        for i in range(i0, i1):
            for j in range(i if diagonal else j0, j1):
                seen[i, j] = seen.get((i, j), 0) + 1
    assert seen == {(i, j): 1 for i in range(nocc) for j in range(i, nocc)}
    assert sum(tiling.pairs_in(t) for t in tiling.triangle(nocc, LIMITS)) == nocc * (nocc + 1) // 2


@pytest.mark.parametrize(("left", "right"), [(0, 3), (1, 1), (5, 4), (33, 17)])
def test_rectangle_covers_each_pair_once(left, right):
    pairs = [
        (i, j) for t in tiling.rectangle(left, right, LIMITS) for i in range(t.i0, t.i1) for j in range(t.j0, t.j1)
    ]
    assert sorted(pairs) == [(i, j) for i in range(left) for j in range(right)]


def test_the_edge_of_a_tile_depends_on_sizes_and_device_only():
    one, four = (CpuBackend(threads).limits for threads in (1, 4))
    assert tiling.triangle(81, one) == tiling.triangle(81, four)
    assert tiling.triangle(81, LIMITS) == tiling.triangle(81, replace(LIMITS, memory=10**6))
    assert [tiling.edge(nocc, LIMITS) for nocc in (3, 1000)] == [1, 16]
    assert tiling.edge(1000, replace(LIMITS, tile_edge=8)) == 8


@pytest.mark.parametrize(("row", "edge"), [(0, 16), (2**17, 16), (2**18, 8), (2**20, 2), (2**24, 1)])
def test_rows_along_the_edge_of_a_tile_of_the_host_hold_16_mib(row, edge):
    assert tiling.edge(130, CPU.limits, row) == edge
    assert max(t.i1 - t.i0 for t in tiling.triangle(130, CPU.limits, row)) == edge
    assert max(t.j1 - t.j0 for t in tiling.rectangle(129, 130, CPU.limits, row)) == edge
    assert tiling.edge(130, replace(CPU.limits, memory=10**9), row) == 16  # a device holds B, or refuses it


class Watched(CpuBackend):
    """Counts tiles as they are begun, takes its time, and fails at one of them."""

    def __init__(self, threads, failing=0):
        super().__init__(threads)
        self.begun, self.failing = 0, failing

    def pair_terms(self, left, right, tile):
        self.begun += 1
        if self.begun == self.failing:
            raise MemoryError("planted")
        time.sleep(0.03)
        return super().pair_terms(left, right, tile)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_of_a_worker_ends_the_step(threads):
    backend = Watched(threads, failing=4)
    with pytest.raises(MemoryError, match="planted"):
        pair_energies(operands([fitted(40, 3, 5)], "fp64"), backend)
    assert backend.begun < 36  # all of them


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interrupt_begins_no_more_tiles(threads):
    backend = Watched(threads)

    def interrupted(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair_energies(operands([fitted(40, 3, 5)], "fp64"), backend, interrupted)
    assert backend.begun < 36  # all of them


def test_rows_made_on_demand_have_their_own_energies():
    """Single pairs of B that is not held: as the certificate's sample asks for them."""
    b, *energies = fitted(9, 4, 7)
    (held,) = operands([(b, *energies)], "fp64")
    made = UntransformedOperand(SimpleNamespace(shape=b.shape, rows=lambda orbitals: b[orbitals]), *energies)
    tiles = [tiling.Tile(i, i + 1, j, j + 1, False) for i, j in ((2, 7), (5, 5), (0, 8))]
    for tile, terms in evaluate(CPU, made, made, tiles):
        expected = CPU.pair_terms(held, held, tile)
        np.testing.assert_allclose((terms.direct, terms.exchange), (expected.direct, expected.exchange), rtol=1e-12)


def test_nan_names_its_pair():
    space = fitted(3, 4, 5)
    space[0][1, 2, 3] = np.nan
    with pytest.raises(NumericalError, match=r"pair \(1, 2\)"):
        pair_energies(operands([space], "fp64"), CPU)


# --- gap and denominators -----------------------------------------------------------------------------


def amplitudes(left, right, same):
    """e_a + e_b - e_i - e_j of every amplitude that is not zero by symmetry."""
    for i, e_i in enumerate(left.eps_occ):
        for j, e_j in enumerate(right.eps_occ):
            for a, e_a in enumerate(left.eps_vir):
                for b, e_b in enumerate(right.eps_vir):
                    if not (same and (i == j or a == b)):
                        yield e_a + e_b - e_i - e_j


@pytest.mark.parametrize("sizes", [[(4, 3)], [(4, 3), (3, 4)], [(3, 3), (0, 6)], [(1, 4), (0, 5)], [(2, 1), (1, 2)]])
def test_smallest_denominator_and_gap_are_those_of_all_amplitudes(sizes):
    spaces = []
    for number, (nocc, nvir) in enumerate(sizes):
        _, eps_occ, eps_vir = fitted(nocc, nvir, 1, seed=number)
        spaces.append(ActiveSpace(np.zeros((0, nocc)), np.zeros((0, nvir)), eps_occ, eps_vir))
    gaps = [*amplitudes(spaces[0], spaces[-1], same=False)] if len(spaces) == 2 or spaces[0].nocc else []
    gaps += [gap for space in spaces for gap in amplitudes(space, space, same=True)]
    assert smallest_denominator(spaces) == pytest.approx(min(gaps, default=np.inf), rel=1e-14)
    energies = [np.concatenate([s.eps_occ, s.eps_vir]) for s in spaces]
    occupations = [np.arange(len(e)) < s.nocc for s, e in zip(spaces, energies, strict=True)]
    least = min(s.eps_vir[0] - s.eps_occ[-1] for s in spaces if s.nocc and s.nvir)
    if len({len(e) for e in energies}) == 1:
        assert homo_lumo_gap(np.array(energies), np.array(occupations, dtype=float)) == least


# --- sums in float32 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_backends_keep_their_contract(name):
    backend, _ = registry.select(name, "auto", 2)
    found = [contract.examine(backend, case) for case in contract.CASES]
    assert not [finding for finding in found if not finding.passed]


class Off(CpuBackend):
    """Wrong by a factor, and by what one pair takes from another."""

    def __init__(self, factor, shift):
        super().__init__(1)
        self.factor, self.shift = factor, shift

    def pair_terms(self, left, right, tile):
        found = super().pair_terms(left, right, tile)
        for part in (found.direct, found.exchange):
            if part is not None:
                part *= self.factor
                part[0, 1:] += self.shift * part[0, 1] * np.array([1, -1])
        return found


@pytest.mark.parametrize("case", [contract.CASES[4], contract.CASES[7], contract.CASES[11]], ids=str)
def test_the_contract_is_as_tight_as_float32(case):
    assert contract.examine(Off(1.0, 0.0), case).passed
    for factor, shift in ((1 + 1e-6, 0.0), (1 - 1e-6, 0.0), (1.0, 1e-5), (float("nan"), 0.0)):
        assert not contract.examine(Off(factor, shift), case).passed


@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_float32_loses_no_small_terms_in_long_rows_and_none_of_float64_after_them(name):
    """A term of 1 and 4000 of 1e-8: float32 ends at 1 where it adds one by one."""
    backend, _ = registry.select(name, "auto", 1)
    energies = np.array([-1.0]), np.linspace(0.5, 1.0, 4001)
    b = np.full((1, 4001, 1), 1e-4)
    b[0, 0] = 1.0
    left, right = ((b, *energies), (np.ones((1, 2, 1)), energies[0], energies[1][:2]))
    exact, mixed = (
        backend.pair_terms(backend.put(*left, kind), backend.put(*right, kind), tiling.Tile(0, 1, 0, 1, False)).direct
        for kind in ("fp64", "mixed")
    )
    assert mixed == pytest.approx(exact, rel=3e-7)  # as in the contract
    operand = backend.put(*fitted(4, 9, 30), "mixed")
    terms = backend.pair_terms(operand, operand, tiling.Tile(0, 2, 2, 4, False))
    for part in (terms.direct, terms.exchange):
        assert (part != part.astype(np.float32)).any()


def test_cuda_multiplies_without_tf32():
    """A stand-in for the module: no device is needed to see what is asked of it."""
    matmul = SimpleNamespace(allow_tf32=True)
    cuda = SimpleNamespace(mem_get_info=lambda: (10**10, 10**10))
    torch = SimpleNamespace(device=str, backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)), cuda=cuda)
    assert TorchBackend(torch, "cuda", 1).limits.memory < 10**10
    assert matmul.allow_tf32 is False


SMALL, COUNT = 1e-4, 1000  # 1 + 1000 (1e-4)^2 is 1.00001, of which float32 keeps nothing if it begins with the 1


def large_first(nocc: int) -> np.ndarray:
    b = np.full((nocc, 3, COUNT + 1), SMALL)
    b[:, :, 0] = 1.0
    return b


@pytest.mark.parametrize("nocc", [2, SAMPLED + 5])
def test_small_contributions_are_not_lost(nocc):
    b, cpu = large_first(nocc), CpuBackend(2)
    energies = -np.linspace(1.0, 2.0, nocc), np.linspace(0.5, 1.0, 3)
    order = summation_order([b])
    assert order[-1] == 0

    def error(array):
        mixed, exact = (
            pair_energies([cpu.put(x, *energies, kind)], cpu) for x, kind in ((array, "mixed"), (b, "fp64"))
        )
        return abs(mixed.opposite_spin.sum() / exact.opposite_spin.sum() - 1)

    assert error(rounded(b, order, 2)) < 3e-7
    assert error(b) > 4 * error(rounded(b, order, 2))


def test_both_spins_have_one_order():
    rng = np.random.default_rng(3)
    alpha, beta = rng.standard_normal((2, 4, 5, 6)) * np.geomspace(1, 1e-3, 6)
    beta[..., 5] += 10
    assert summation_order([alpha, beta]).tolist() == [4, 3, 2, 1, 0, 5]
    assert summation_order([alpha, beta[:0]]).tolist() == [5, 4, 3, 2, 1, 0]


def test_the_order_is_the_same_on_disk(tmp_path):
    b = np.random.default_rng(3).standard_normal((SAMPLED + 3, 4, 30))
    with Space(tmp_path, b.nbytes) as space:
        tensor = StoredTensor(space, "b", b.shape, [(0, len(b))])
        tensor.add(0, 30, np.ascontiguousarray(b.transpose(2, 0, 1)))
        tensor.fit(lambda rows: rows, 1, shrinks=False)
        assert summation_order([tensor]).tolist() == summation_order([b]).tolist()


# --- the certificate ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spaces", [[fitted(6, 9, 40)], [fitted(5, 9, 40, 1), fitted(4, 10, 40, 2)]])
def test_exact_when_every_pair_is_redone(spaces):
    exact, mixed = operands(spaces, "fp64"), pair_energies(operands(spaces, "mixed"), CPU)
    found = certificate.certify(mixed, exact, CPU, 1e-7)
    assert found.sampled == found.pairs
    assert found.correlation_error == pytest.approx(abs(energy(mixed) - energy(pair_energies(exact, CPU))), rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_estimate_covers_the_error_when_sampling(seed):
    spaces = [fitted(40, 20, 90, seed)]
    exact, mixed = operands(spaces, "fp64"), pair_energies(operands(spaces, "mixed"), CPU)
    found = certificate.certify(mixed, exact, CPU, 1e-7)
    error = abs(energy(mixed) - energy(pair_energies(exact, CPU)))
    assert found.sampled < 0.1 * found.pairs
    assert error <= found.correlation_error < 1e-5 * abs(energy(mixed))


@pytest.mark.parametrize("restricted", [True, False])
def test_a_refused_sample_is_enlarged_before_all_is_repeated(restricted):
    spaces = [fitted(40, 20, 90)] if restricted else [fitted(40, 20, 90, 1), fitted(36, 20, 90, 2)]
    exact = operands(spaces, "fp64")
    right = pair_energies(exact, CPU)
    noise = np.random.default_rng(4).normal(1, 1e-4, right.opposite_spin.shape)
    if restricted:
        noise = np.triu(noise) + np.triu(noise, 1).T
    noisy = replace(right, opposite_spin=right.opposite_spin * noise)
    first = certificate.certify(noisy, exact, CPU, 1.0)
    second = certificate.certify(noisy, exact, CPU, 0.9 * first.correlation_error)
    hopeless = certificate.certify(noisy, exact, CPU, 1e-30)
    assert first.sampled == hopeless.sampled < second.sampled <= certificate.EFFORT * first.sampled < second.pairs
    assert abs(energy(noisy) - energy(right)) <= second.correlation_error < first.correlation_error


@pytest.fixture(scope="module")
def skewed():
    """Pair energies over six decades, and what makes them: a few large pairs and many small ones."""
    b, *energies = fitted(40, 20, 90)
    exact = operands([(b * np.geomspace(1, 1e-3, 40)[:, None, None], *energies)], "fp64")
    return exact, pair_energies(exact, CPU)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(slice(None), id="all pairs"),
        pytest.param(slice(1, 6), id="large pairs"),  # not the largest, which any sample has
        pytest.param(slice(410, None), id="small pairs"),
    ],
)
def test_a_wrong_factor_is_seen(skewed, wrong):
    """48 of 820 pairs are redone: nearly all large ones, and small ones from the first to the last."""
    exact, right = skewed
    rows, columns = np.triu_indices(40)
    ranks = np.argsort(right.opposite_spin[rows, columns])[wrong]
    factor = np.ones((40, 40))
    factor[rows[ranks], columns[ranks]] = factor[columns[ranks], rows[ranks]] = 1.01
    changed = replace(right, opposite_spin=right.opposite_spin * factor)
    found = certificate.certify(changed, exact, CPU, 1.0)
    assert found.sampled < 0.1 * found.pairs
    error = abs(energy(changed) - energy(right))
    assert 0.5 * error < found.correlation_error < 3 * error
    assert not certificate.certify(changed, exact, CPU, 0.1 * error).accepted


def test_the_estimate_covers_nine_errors_in_ten(skewed):
    """Two standard deviations of what sampling may miss: noise without bias, one pair of seventeen redone."""
    exact, right = skewed
    covered = 0
    for seed in range(24):
        noise = np.triu(np.random.default_rng(seed).normal(0, 1e-3, (40, 40)))
        changed = replace(right, opposite_spin=right.opposite_spin * (1 + noise + np.triu(noise, 1).T))
        found = certificate.certify(changed, exact, CPU, 1.0)
        error = abs(energy(changed) - energy(right))
        covered += error <= found.correlation_error
    assert covered >= 21


def to_tolerance(kind, tolerance, listener=None):
    b, eps_occ, eps_vir = fitted(6, 9, 40)
    space = ActiveSpace(np.zeros((0, 6)), np.zeros((0, 9)), eps_occ, eps_vir)
    return certificate.pair_energies_to_tolerance([b], [space], CPU, kind, tolerance, listener or Heard())


def test_auto_repeats_in_float64_what_the_certificate_refuses():
    listener = Heard()
    pairs, ran, found = to_tolerance("auto", 1e-30, listener)
    assert ran == "fp64"
    assert found.repeated_in_fp64
    assert "repeated in float64" in listener.warnings[0]
    assert energy(pairs) == energy(to_tolerance("fp64", 1e-30)[0])


def test_mixed_refuses_what_the_certificate_refuses():
    with pytest.raises(NumericalError, match="--precision fp64"):
        to_tolerance("mixed", 1e-30)


def test_fp64_needs_no_certificate():
    assert to_tolerance("fp64", 1e-30)[1:] == ("fp64", None)
