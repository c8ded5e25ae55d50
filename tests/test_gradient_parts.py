"""The parts of a gradient, one by one, against explicit sums: open shells of unequal size, small
blocks, several workers, arrays in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyscf import df, gto, scf
from scipy.linalg import expm

from dfmp2.errors import ConvergenceError, NumericalError
from dfmp2.gradients import amplitudes, certificate, correlation, derivatives
from dfmp2.gradients import response as responses
from dfmp2.gradients.density import properties
from dfmp2.gradients.mean_field import exchanged_densities, mean_field_part
from dfmp2.gradients.response import FockBuilder, Orbitals, Relaxed
from dfmp2.host.arrays_on_disk import ScratchTensor, StoredTensor
from dfmp2.host.scratch import Space
from dfmp2.integrals.metric import InverseMetric
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.properties import Gradient
from dfmp2.options.methods import METHODS, Method
from dfmp2.scf.kohn_sham import ExactExchange
from dfmp2.scf.rotations import free_rotations
from tests.awkward import CHARGES, MOLECULES, mole_of
from tests.conftest import Heard
from tests.recorded import recorded_error

Array = np.ndarray[Any, np.dtype[np.float64]]
SCALED = Method("custom", "custom", 1.3, 0.4, "test")


def space_of(rng: Any, nocc: int, nvir: int, nao: int) -> ActiveSpace:
    """Made-up orbitals with different energies."""
    c = rng.standard_normal((nao, nocc + nvir))
    energies = np.sort(rng.uniform(-3.0, -0.4, nocc)), np.sort(rng.uniform(0.1, 2.5, nvir))
    return ActiveSpace(c[:, :nocc], c[:, nocc:], *energies)


def positive(rng: Any, size: int, least: float = 0.3) -> Array:
    """A metric with these eigenvalues from `least` to 5."""
    turn = np.linalg.qr(rng.standard_normal((size, size)))[0]
    made = (turn * np.geomspace(least, 5.0, size)) @ turn.T
    return (made + made.T) / 2


# --- amplitudes -----------------------------------------------------------------------------------


def expected_densities(
    b: list[Array], spaces: list[ActiveSpace], method: Method
) -> tuple[list[Array], list[Array], list[Array], float]:
    """Y, P_ik and P_ac of each spin, and E_corr, by the sums at the top of `amplitudes`."""

    def t_of(left: int, right: int) -> Array:
        d = spaces[left].eps_occ[:, None] - spaces[left].eps_vir
        e = spaces[right].eps_occ[:, None] - spaces[right].eps_vir
        g = np.einsum("iap,jbp->iajb", b[left], b[right])
        return g / (d[:, :, None, None] + e)

    y = [np.zeros_like(x) for x in b]
    p_occ = [np.zeros((s.nocc, s.nocc)) for s in spaces]
    p_vir = [np.zeros((s.nvir, s.nvir)) for s in spaces]
    energy = 0.0
    for right in range(len(b)):
        for left in range(len(b)):
            t = t_of(left, right)
            if len(b) == 1:
                u = method.same_spin * (t - t.transpose(0, 3, 2, 1)) + method.opposite_spin * t
            elif left == right:
                u = method.same_spin * (t - t.transpose(0, 3, 2, 1))
            else:
                u = method.opposite_spin * t
            g = np.einsum("iap,jbp->iajb", b[left], b[right])
            energy += float((g * u).sum()) * (1.0 if len(b) == 1 else 0.5)
            y[right] += np.einsum("iajb,iap->jbp", u, b[left])
            p_occ[left] -= np.einsum("iajb,kajb->ik", t, u)
            p_vir[left] += np.einsum("iajb,icjb->ac", t, u)
    return y, p_occ, p_vir, energy


@pytest.mark.parametrize(
    ("shapes", "method", "threads", "single", "disk", "tile", "piece"),
    [
        (((5, 4), (3, 6)), SCALED, 1, False, False, 1 << 22, 2_000_000),
        (((5, 4), (3, 6)), SCALED, 3, False, True, 41, 300),
        (((5, 4), (3, 6)), SCALED, 2, True, True, 41, 300),
        (((6, 5),), METHODS["mp2"], 2, False, False, 65, 450),
        (((6, 5),), SCALED, 4, True, False, 1 << 22, 450),
        (((5, 4), (0, 6)), SCALED, 2, False, False, 41, 300),
        (((4, 5), (4, 5)), METHODS["sos-mp2"], 2, False, False, 41, 300),
    ],
)
def test_densities_of_amplitudes_are_their_sums(
    shapes: tuple[tuple[int, int], ...],
    method: Method,
    threads: int,
    single: bool,
    disk: bool,
    tile: int,
    piece: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    naux = 11
    spaces = [space_of(rng, *shape, 10) for shape in shapes]
    b = [rng.standard_normal((*shape, naux)) for shape in shapes]
    monkeypatch.setattr(amplitudes, "TILE_ELEMENTS", tile)
    monkeypatch.setattr(amplitudes, "AMPLITUDE_BYTES", piece)
    monkeypatch.setattr(amplitudes, "STREAM_BYTES", 8 * 7 * naux * 4)
    monkeypatch.setattr(amplitudes, "RUN", 8)
    inverse = InverseMetric(positive(rng, naux), threads)
    z = [ScratchTensor((*shape, naux), [(0, 4), (4, naux)], None, "z") for shape in shapes]
    with Space(tmp_path, 0) as space:
        stored: list[Any] = list(b)
        if disk:
            for k, values in enumerate(b):
                region = space.array(f"b{k}", values.size)
                region.write(0, values)
                stored[k] = StoredTensor(region, values.shape, [(0, len(values))])
        found = amplitudes.amplitude_densities(
            stored, spaces, method, inverse, z, threads, single=single
        )
    y, p_occ, p_vir, energy = expected_densities(b, spaces, method)
    close = {"rtol": 2e-5, "atol": 2e-5} if single else {"rtol": 1e-11, "atol": 1e-11}
    inverse_factor = np.linalg.inv(np.linalg.cholesky(inverse.metric))
    weight = 2.0 if len(b) == 1 else 1.0
    products = weight * sum(np.einsum("jbp,jbq->pq", *pair) for pair in zip(y, b, strict=True))
    np.testing.assert_allclose(found.products, products, **close)
    # Both halves of the energy: sum Y B is E_corr of each spin, twice.
    assert np.trace(found.products) == pytest.approx(2 * energy, rel=1e-4 if single else 1e-11)
    for spin, (nocc, _) in enumerate(shapes):
        np.testing.assert_allclose(found.occupied[spin], p_occ[spin], **close)
        np.testing.assert_allclose(found.virtual[spin], p_vir[spin], **close)
        np.testing.assert_array_equal(found.occupied[spin], found.occupied[spin].T)
        for j in range(nocc):
            np.testing.assert_allclose(found.z[spin].rows(j), y[spin][j] @ inverse_factor, **close)


@pytest.mark.parametrize(
    ("disk", "expected"),
    [(False, [2, 4, 5]), (True, [2, 4, 5]), (None, [2, 3, 5])],
    ids=["memory", "disk", "disk by three"],
)
def test_amplitudes_are_made_in_groups_that_stay_in_cache(
    disk: bool | None, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two orbitals of 3 x 3 amplitudes in float64; those on disk are read in whole numbers of
    groups."""
    monkeypatch.setattr(amplitudes, "AMPLITUDE_BYTES", 2 * 8 * 3 * 3 + 5)
    b = np.random.default_rng(1).standard_normal((5, 3, 4))
    order = np.arange(4)[::-1]
    if disk is False:
        rows = amplitudes._Rows(b, order, 1, single=True)
    else:
        held = 5 if disk else 3
        monkeypatch.setattr(amplitudes, "STREAM_BYTES", held * 8 * 3 * 4 + 7)
        monkeypatch.setattr(amplitudes, "AMPLITUDE_BYTES", (2 if disk else 1) * 8 * 3 * 3 + 5)
        expected = expected if disk else [1, 2, 3, 4, 5]
    with Space(tmp_path, 0) as space:
        if disk is not False:
            region = space.array("b", b.size)
            region.write(0, b)
            rows = amplitudes._Rows(StoredTensor(region, b.shape, [(0, 5)]), order, 1, single=True)
        read = []
        for i0, i1, part in rows.groups():
            read.append(i1)
            np.testing.assert_array_equal(part, b[i0:i1, :, ::-1].astype(np.float32))
            assert part.dtype == np.float32
    assert read == expected


# --- the metric -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [False, True])
def test_the_inverse_of_a_metric_and_its_derivative(
    cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With eigenvalues cut: the derivative of E = sum_m x_m V^+ x'_m, by differences."""
    monkeypatch.setattr("dfmp2.integrals.metric.SOLVE_ELEMENTS", 21)
    rng = np.random.default_rng(3)
    metric = positive(rng, 9)
    if cut:
        values, vectors = np.linalg.eigh(metric)
        values[:2] = 5.0 * np.array([0.4e-12, 0.8e-12])
        metric = (vectors * values) @ vectors.T
        metric = (metric + metric.T) / 2
    made = InverseMetric(metric, 2)
    kept = np.linalg.eigh(metric)
    first = 2 if cut else 0
    whole = (kept[1][:, first:] / kept[0][first:]) @ kept[1][:, first:].T
    x, other = rng.standard_normal((2, 5, 9))
    np.testing.assert_allclose(made.apply(x.copy()), x @ whole, rtol=1e-9, atol=1e-11)
    y = rng.standard_normal((5, 9 - first))
    back = made.unfit(y.copy())
    np.testing.assert_allclose(back @ metric @ back.T, y @ y.T, rtol=1e-9, atol=1e-9)
    assert made.dropped.shape == (9, first)
    step = 1e-4 * positive(rng, 9)
    c, d = x @ whole, other @ whole
    factors = -np.einsum("mp,mq->pq", c, d)
    mixed = c.T @ (other @ made.dropped) + d.T @ (x @ made.dropped)
    mixing = made.mixing(mixed)
    if not cut:
        assert not mixing.any() and mixing.shape == (9, 9)
    else:
        factors = factors + mixing

    def energy(sign: float) -> float:
        values, vectors = np.linalg.eigh(metric + sign * step)
        inverse = (vectors[:, first:] / values[first:]) @ vectors[:, first:].T
        return float(np.einsum("mp,pq,mq->", x, inverse, other))

    # Differences of the fourth order: the second one by itself is off by 1e-6.
    slope = (8 * (energy(1) - energy(-1)) - (energy(2) - energy(-2))) / 12
    assert float(np.vdot(factors, step)) == pytest.approx(slope, rel=1e-6)


# --- integrals and their derivatives --------------------------------------------------------------


def methylene(shift: Array | None = None) -> Any:
    """Methylene in STO-3G, moved."""
    mole = mole_of(MOLECULES["methylene"], "sto-3g")
    if shift is not None:
        mole.set_geom_(mole.atom_coords() + shift, unit="bohr")
    return mole


def fitting(mole: Any) -> Any:
    """A few fitting functions: s, p and d on each atom, all different."""
    shells = [[0, [2.1, 1.0]], [0, [0.4, 1.0]], [1, [0.9, 1.0]], [2, [0.7, 1.0]]]
    return df.addons.make_auxmol(mole, {"C": shells, "H": shells[1:3]})


MOVE = np.array([[0.3, -0.5, 0.2], [-0.7, 0.1, 0.4], [0.2, 0.6, -0.9]])


def slope_of(value: Callable[[Any], float], step: float = 2e-3) -> float:
    """The derivative of a number along MOVE, to fourth order in the step."""
    at = {k: value(methylene(k * step * MOVE)) for k in (-2, -1, 1, 2)}
    return (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * step)


def raw_integrals(mole: Any) -> Array:
    """(mn|Q)."""
    return np.asarray(df.incore.aux_e2(mole, fitting(mole)))


def symmetric(rng: Any, *shape: int) -> Array:
    made = rng.standard_normal((*shape, shape[-1]))
    return made + made.swapaxes(-1, -2)


FIELD = np.array(CHARGES)


def test_derivatives_of_integrals_are_those_of_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few shells, charges and functions at a time, so that there are several blocks of each."""
    monkeypatch.setattr(derivatives, "SHELLS_PER_CALL", 3)
    monkeypatch.setattr(derivatives, "CHARGES_PER_CALL", 2)
    rng = np.random.default_rng(7)
    mole = methylene()
    auxmole, nao = fitting(mole), mole.nao
    naux = auxmole.nao
    density, weighted, other = symmetric(rng, 3, nao)
    threes, twos = symmetric(rng, naux, nao), rng.standard_normal((naux, naux))
    blocks = derivatives.blocks(mole, auxmole, 6 * 8 * nao * (nao + 1) // 2)
    assert len(blocks) == 4 and blocks[0][0] == 0 and blocks[-1][1] == naux
    unpacked = list(derivatives.unpacked_blocks(mole, auxmole, 6 * 8 * nao * (nao + 1) // 2))
    assert [(p0, p1) for p0, p1, _ in unpacked] == blocks
    whole = np.concatenate([values for *_, values in unpacked])
    np.testing.assert_allclose(whole, raw_integrals(mole).transpose(2, 0, 1), atol=1e-13)

    def repulsion(there: Any) -> float:
        places, z = there.atom_coords(), there.atom_charges()
        found = sum(
            z[a] * z[b] / np.linalg.norm(places[a] - places[b]) for a in range(3) for b in range(a)
        )
        for x, y, w, q in FIELD:
            found += sum(q * z[a] / np.linalg.norm(places[a] - [x, y, w]) for a in range(3))
        return float(found)

    def field(there: Any, charges: Array = FIELD) -> float:
        grids = there.intor("int1e_grids", grids=charges[:, :3])
        return -float(np.einsum("kmn,mn,k->", grids, density, charges[:, 3]))

    def one_electron(there: Any) -> float:
        core = scf.hf.get_hcore(there)
        return float(np.vdot(core, density) - np.vdot(there.intor("int1e_ovlp"), weighted))

    def relativistic(there: Any) -> float:
        core = scf.UHF(there).x2c().get_hcore()
        return float(np.vdot(core, density) - np.vdot(there.intor("int1e_ovlp"), weighted))

    on_atoms, on_charges = derivatives.nuclear_repulsion_gradient(mole, FIELD)
    assert derivatives.nuclear_repulsion_gradient(mole, None)[1] is None
    in_field, back = derivatives.point_charge_gradient(mole, FIELD, density)
    pieces = ((p0, p1, threes[p0:p1]) for p0, p1 in blocks)
    of_three = derivatives.three_center(mole, auxmole, pieces, 2)
    for found, value, accuracy in (
        (on_atoms, repulsion, 1e-8),
        (in_field, field, 1e-8),
        (derivatives.one_electron(mole, "none", density, weighted), one_electron, 1e-8),
        (derivatives.one_electron(mole, "x2c", density, weighted), relativistic, 1e-7),
        (derivatives.two_center(auxmole, twos), lambda m: metric_sum(m, twos), 1e-8),
        (of_three, lambda m: float(np.einsum("mnq,qmn->", raw_integrals(m), threes)), 1e-8),
    ):
        assert float(np.vdot(found, MOVE)) == pytest.approx(slope_of(value), rel=accuracy)
    # Forces on the charges, by moving each of them.
    assert on_charges is not None
    for k in range(len(FIELD)):
        moved = {}
        for step in (-1, 1):
            charges = FIELD.copy()
            charges[k, :3] += step * 1e-4 * MOVE[0]
            distance = np.linalg.norm(charges[k, :3] - mole.atom_coords(), axis=1)
            nuclei = float((mole.atom_charges() / distance).sum()) * charges[k, 3]
            moved[step] = nuclei, field(mole, charges)
        nuclear, electronic = ((moved[1][n] - moved[-1][n]) / 2e-4 for n in (0, 1))
        assert float(on_charges[k] @ MOVE[0]) == pytest.approx(nuclear, rel=1e-6)
        assert float(back[k] @ MOVE[0]) == pytest.approx(electronic, rel=1e-6)
    del other


def metric_sum(mole: Any, factors: Array) -> float:
    return float(np.vdot(fitting(mole).intor("int2c2e"), factors))


def four_centre_energy(
    mole: Any, density: list[Array], x: list[Array], y: list[Array], weight: float
) -> float:
    integrals = mole.intor("int2e")
    total = 0.0
    if x:
        left, right = weight * sum(x), weight * sum(density)
        total += float(np.einsum("mnls,mn,ls->", integrals, left, right, optimize=True))
    for d, other in zip(density, y, strict=False):
        total -= weight * float(np.einsum("mlns,mn,ls->", integrals, other, d, optimize=True))
    return total


@pytest.mark.parametrize("spins", [1, 2])
@pytest.mark.parametrize(("coulomb", "exchange"), [(True, True), (False, True), (True, False)])
def test_four_centre_fields_have_the_derivative_of_their_energy(
    spins: int, coulomb: bool, exchange: bool
) -> None:
    rng = np.random.default_rng(9)
    mole = methylene()
    density, x, y = (list(symmetric(rng, spins, mole.nao)) for _ in range(3))
    x, y = x if coulomb else [], y if exchange else []
    weight = 2.0 if spins == 1 else 1.0
    found = derivatives.four_center(mole, density, x, y, weight)
    slope = slope_of(lambda there: four_centre_energy(there, density, x, y, weight))
    assert float(np.vdot(found, MOVE)) == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize(
    ("spins", "coulomb", "exchange", "disk", "threads"),
    [
        (2, True, True, True, 3),
        (1, True, True, False, 2),
        (2, False, True, False, 1),
        (2, True, False, True, 1),
    ],
)
def test_fitted_fields_have_the_derivative_of_their_energy(
    spins: int, coulomb: bool, exchange: bool, disk: bool, threads: int, tmp_path: Path
) -> None:
    """E from the fitted integrals V^-1 (Q|mn) of its Coulomb and exchange parts."""
    rng = np.random.default_rng(11)
    mole = methylene()
    nao = mole.nao
    occupied = [rng.standard_normal((nao, n)) for n in (3, 2)[:spins]]
    x, y = (list(symmetric(rng, spins, nao)) for _ in range(2))
    x, y = x if coulomb else [], y if exchange else []
    weight = 2.0 if spins == 1 else 1.0
    density = [c @ c.T for c in occupied]

    def energy(there: Any) -> float:
        raw = raw_integrals(there)
        metric = fitting(there).intor("int2c2e")
        fitted = np.linalg.solve(metric, raw.reshape(-1, raw.shape[2]).T).reshape(-1, nao, nao)
        total = 0.0
        if x:
            left = np.einsum("mnq,mn->q", raw, weight * sum(x))
            total += float(left @ np.einsum("qls,ls->q", fitted, weight * sum(density)))
        for d, other in zip(density, y, strict=False):
            total -= weight * float(
                np.einsum("mlq,qns,mn,ls->", raw, fitted, other, d, optimize=True)
            )
        return total

    with Space(tmp_path, 0) as space:
        found = mean_field_part(
            mole,
            fitting(mole),
            occupied,
            x,
            y,
            7 * 8 * nao * (nao + 1) // 2,
            space if disk else None,
            threads,
        )
        assert bool(space.written) == (disk and exchange)
    assert float(np.vdot(found, MOVE)) == pytest.approx(slope_of(energy), rel=1e-7)


@pytest.mark.parametrize("spins", [1, 2])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_the_correlation_part_drives_the_orbitals_by_its_sums(
    spins: int, with_gradient: bool
) -> None:
    """T, the other two forms of E, and the derivative at fixed Z and S."""
    rng = np.random.default_rng(13)
    mole = methylene()
    auxmole, nao = fitting(mole), mole.nao
    naux = auxmole.nao
    spaces = [space_of(rng, *shape, nao) for shape in ((3, 2), (2, 4))[:spins]]
    packed = 7 * 8 * nao * (nao + 1) // 2
    ranges = derivatives.blocks(mole, auxmole, packed)
    z = [rng.standard_normal((s.nocc, s.nvir, naux)) for s in spaces]
    tensors = [ScratchTensor(values.shape, ranges, None, "z") for values in z]
    for tensor, values in zip(tensors, z, strict=True):
        for i, rows in enumerate(values):
            tensor.put_rows(i, rows)
    products = symmetric(rng, naux)
    inverse = InverseMetric(auxmole.intor("int2c2e"), 2)
    densities = amplitudes.AmplitudeDensities(tensors, products.copy(), [], [])
    found = correlation.correlation_part(
        mole, auxmole, spaces, densities, inverse, packed, 2, with_gradient=with_gradient
    )
    weight = 2.0 if spins == 1 else 1.0
    raw = raw_integrals(mole)
    factor = np.linalg.inv(np.linalg.cholesky(auxmole.intor("int2c2e")))
    g = factor.T @ products @ factor
    assert found.two_center == pytest.approx(float(np.trace(products)) / 2, rel=1e-10)
    three = 0.0
    for s, space in enumerate(spaces):
        over_virtual = np.einsum("pnq,na,iaq->pi", raw, space.c_vir, z[s], optimize=True)
        over_occupied = np.einsum("pmq,mi,iaq->pa", raw, space.c_occ, z[s], optimize=True)
        np.testing.assert_allclose(found.occupied[s], 2 * over_virtual, atol=1e-10)
        np.testing.assert_allclose(found.virtual[s], 2 * over_occupied, atol=1e-10)
        three += weight * 2 * float(np.vdot(space.c_occ, over_virtual)) / 4
    assert found.three_center == pytest.approx(three, rel=1e-10)
    if not with_gradient:
        assert found.gradient is None
        return

    def energy(there: Any) -> float:
        raw = raw_integrals(there)
        total = -float(np.vdot(fitting(there).intor("int2c2e"), g))
        for s, space in enumerate(spaces):
            of_pairs = np.einsum("mnq,mi,na->iaq", raw, space.c_occ, space.c_vir, optimize=True)
            total += weight * 2 * float(np.vdot(of_pairs, z[s]))
        return total

    assert float(np.vdot(found.gradient, MOVE)) == pytest.approx(slope_of(energy), rel=1e-7)


# --- the response of the orbitals -----------------------------------------------------------------


def orbitals_of(mf: Any, cores: tuple[int, ...], virtuals: tuple[int, ...]) -> list[Orbitals]:
    """Orbitals of each spin, some of them frozen."""
    many = zip(
        np.reshape(mf.mo_coeff, (len(cores), *np.shape(mf.mo_coeff)[-2:])),
        np.reshape(mf.mo_energy, (len(cores), -1)),
        np.reshape(mf.mo_occ, (len(cores), -1)),
        cores,
        virtuals,
        strict=True,
    )
    made = []
    for coeff, energy, occ, core, last in many:
        nocc = int((occ > 0).sum())
        nvir = len(occ) - nocc
        made.append(Orbitals(coeff, energy, core, nocc - core, nvir - last, last))
    return made


def both_ranges(mole: Any, exact: ExactExchange) -> tuple[Array, Array]:
    """Four-centre integrals of the full and of the long-range operator."""
    integrals = mole.intor("int2e")
    with mole.with_range_coulomb(exact.omega):
        return integrals, mole.intor("int2e") if exact.separated else 0 * integrals


def fields(
    ranges: tuple[Array, Array],
    densities: list[Array],
    weight: float,
    exact: ExactExchange,
    kernel: Any,
) -> list[Array]:
    """J of the sum less the exact exchange of each, with four-centre integrals, and the kernel."""
    integrals, long_range = ranges
    total = weight * sum(densities)
    coulomb = np.einsum("mnls,ls->mn", integrals, total)
    found = []
    for d in densities:
        k = exact.short_range * np.einsum("mlns,ls->mn", integrals, d)
        k += (exact.long_range - exact.short_range) * np.einsum("mlns,ls->mn", long_range, d)
        found.append(coulomb - k)
    if kernel is not None:
        found = [one + more for one, more in zip(found, kernel(densities), strict=True)]
    return found


@pytest.mark.parametrize("spins", [1, 2])
@pytest.mark.parametrize("with_functional", [False, True])
def test_relaxed_densities_solve_their_equations(spins: int, with_functional: bool) -> None:
    """P and W from a dense linear system over all rotations, with frozen orbitals of both kinds."""
    rng = np.random.default_rng(17)
    mole = (
        methylene()
        if spins == 2
        else gto.M(atom="O 0 0 0.1; H 0.1 0.8 -0.5; F 0 -1.3 -0.6", basis="sto-3g", verbose=0)
    )
    mf = (scf.UHF if spins == 2 else scf.RHF)(mole).run(conv_tol=1e-12)
    weight = 2.0 if spins == 1 else 1.0
    os = orbitals_of(mf, (1, 2)[:spins] if spins == 2 else (2,), (1, 1)[:spins])
    nmo = len(os[0].energy)
    overlap = mole.intor("int1e_ovlp")
    exact, kernel = ExactExchange(1.0, 1.0, 0.0), None
    if with_functional:
        exact = ExactExchange(0.3, 0.8, 0.4)
        weights = 0.05 * symmetric(rng, mole.nao)

        def kernel(changes: Any) -> list[Array]:
            total = sum(changes)
            return [weights @ (total + 0.5 * c) @ weights for c in changes]

    builder = FockBuilder(mf, exact, kernel, kernel)
    ranges = both_ranges(mole, exact)
    unrelaxed = []
    for o in os:
        p = np.zeros((nmo, nmo))
        for cut in (slice(o.core, o.occupied), slice(o.occupied, o.last)):
            p[cut, cut] = 0.02 * symmetric(rng, cut.stop - cut.start)
        unrelaxed.append(p)
    t_occ = [0.1 * rng.standard_normal((nmo, o.nocc)) for o in os]
    t_vir = [0.1 * rng.standard_normal((nmo, o.nvir)) for o in os]
    fock = [0.03 * symmetric(rng, nmo) for _ in os] if with_functional else None
    before = [p.copy() for p in unrelaxed]
    heard = Heard()
    found, residual = responses.relax(builder, os, unrelaxed, t_occ, t_vir, heard, fock)
    assert residual <= 5e-11 and len(heard.stages) == 1

    def g_of(ps: list[Array]) -> list[Array]:
        densities = [o.coeff @ p @ o.coeff.T for o, p in zip(os, ps, strict=True)]
        made = fields(ranges, densities, weight, exact, kernel)
        return [o.coeff.T @ one @ o.coeff for o, one in zip(os, made, strict=True)]

    # The first terms T, and P of frozen with correlated orbitals, element by element.
    ts, ps = [], []
    for s, o in enumerate(os):
        t, p = np.zeros((nmo, nmo)), before[s].copy()
        t[:, o.core : o.occupied], t[:, o.occupied : o.last] = t_occ[s], t_vir[s]
        for c in range(o.core):
            for i in range(o.core, o.occupied):
                p[c, i] = p[i, c] = t[c, i] / (2 * (o.energy[i] - o.energy[c]))
        for v in range(o.last, nmo):
            for a in range(o.occupied, o.last):
                p[v, a] = p[a, v] = t[v, a] / (2 * (o.energy[a] - o.energy[v]))
        if fock is not None:
            t[:, : o.occupied] += 2 * fock[s][:, : o.occupied]
        ts.append(t)
        ps.append(p)
    sizes = [(nmo - o.occupied, o.occupied) for o in os]
    edges = np.cumsum([0, *(n * m for n, m in sizes)])

    def with_rotations(x: Array, base: list[Array]) -> list[Array]:
        made = []
        for s, (o, p) in enumerate(zip(os, base, strict=True)):
            q = p.copy()
            q[o.occupied :, : o.occupied] = x[edges[s] : edges[s + 1]].reshape(sizes[s])
            q[: o.occupied, o.occupied :] = q[o.occupied :, : o.occupied].T
            made.append(q)
        return made

    def left_over(x: Array, base: list[Array], drive: float) -> Array:
        gs = g_of(with_rotations(x, base))
        parts = []
        for s, o in enumerate(os):
            at = slice(edges[s], edges[s + 1])
            gap = o.energy[o.occupied :, None] - o.energy[: o.occupied]
            block = (slice(o.occupied, None), slice(0, o.occupied))
            turned = x[at].reshape(sizes[s])
            parts.append(
                (gap * turned + gs[s][block] + drive * (ts[s] - ts[s].T)[block] / 2).ravel()
            )
        return np.concatenate(parts)

    nothing = [np.zeros((nmo, nmo)) for _ in os]
    count = int(edges[-1])
    matrix = np.stack([left_over(row, nothing, 0.0) for row in np.eye(count)], axis=1)
    x = np.linalg.solve(matrix, -left_over(np.zeros(count), ps, 1.0))
    expected = with_rotations(x, ps)
    gs = g_of(expected)
    for s, o in enumerate(os):
        np.testing.assert_allclose(found[s].relaxed, expected[s], atol=1e-9)
        np.testing.assert_array_equal(found[s].unrelaxed, before[s])
        m = ts[s] + 2 * o.energy[:, None] * expected[s]
        m[:, : o.occupied] += 2 * gs[s][:, : o.occupied]
        np.testing.assert_allclose(found[s].weighted, (m + m.T) / 4, atol=1e-9)
    # F of these orbitals, and its remaining effect on the correlation energy.
    core = scf.hf.get_hcore(mole)
    densities = [o.density for o in os]
    for o, d in zip(os, densities, strict=True):
        np.testing.assert_allclose(d, o.coeff[:, : o.occupied] @ o.coeff[:, : o.occupied].T)
    extra = [0.01 * overlap, 0.02 * overlap][:spins]
    focks = responses.fock_matrices(mf, core, os, exact, extra)
    made = fields(ranges, densities, weight, exact, None)
    for one, own, more in zip(focks, made, extra, strict=True):
        np.testing.assert_allclose(one, core + own + more, atol=1e-9)
    left = -weight * sum(
        float(np.vdot(p.relaxed, o.coeff.T @ f @ o.coeff - np.diag(o.energy)))
        for p, o, f in zip(found, os, focks, strict=True)
    )
    assert responses.convergence_error(focks, os, found) == pytest.approx(left, rel=1e-12)


@pytest.mark.parametrize(
    ("atoms", "charges", "charge", "count"),
    [
        ("O 0.3 0.1 0; H 0.5 0.8 0.6", None, 0, 1),
        ("O 0 0 0; H 0 0 0.97; GHOST-H 0 0 -1.1", [[0.0, 0.0, 5.0, 0.6]], 0, 1),
        ("O 0 0 0; H 0 0 0.97; GHOST-H 0.3 0 -1.1", None, 0, 0),
        ("O 0 0 0; H 0 0 0.97", [[0.0, 2.0, 2.5, 0.6]], 0, 0),
        ("C 0.1 0.2 0", None, 1, 2),
        ("N 0 0 0; N 0.3 0.2 1.1", None, -1, 1),
        ("H 0 0 0; H 0.3 0.2 0.9", None, 1, 0),
    ],
)
def test_rotations_about_an_axis_of_the_nuclei_change_no_energy(
    atoms: str, charges: Any, charge: int, count: int
) -> None:
    """Radicals in degenerate orbitals, also among ghosts and charges on the axis or beside it.

    The energy of PySCF is the same after the orbitals have turned by 0.3 along the rotation, though
    the density is not, and the response to any terms is that of the pseudoinverse of the dense
    equations."""
    rng = np.random.default_rng(23)
    mole = gto.M(atom=atoms, basis="sto-3g", charge=charge, spin=1, verbose=0)
    core = scf.hf.get_hcore(mole)
    for *place, value in charges or []:
        with mole.with_rinv_origin(place):
            core = core - value * mole.intor("int1e_rinv")
    mf = scf.UHF(mole)
    mf.get_hcore = lambda *_: core
    mf.conv_tol = 1e-13
    mf.conv_tol_grad = 1e-7
    mf.kernel()
    os = orbitals_of(mf, (0, 0), (0, 0))
    free = free_rotations(mf.mol, mf.get_hcore, os[0].coeff, [o.rotations for o in os])
    assert len(free) == count
    for k, vector in enumerate(free):
        for m, other in enumerate(free):
            assert vector @ other == pytest.approx(float(k == m), abs=1e-12)

    shapes = [(o.nvir, o.nocc) for o in os]
    first = shapes[0][0] * shapes[0][1]
    densities = [o.density for o in os]
    for vector in free:
        turned = []
        for o, x in zip(os, (vector[:first], vector[first:]), strict=True):
            x = 0.3 * x.reshape(o.nvir, o.nocc)
            generator = np.block([[np.zeros((o.nocc,) * 2), -x.T], [x, np.zeros((o.nvir,) * 2)]])
            c = (o.coeff @ expm(generator))[:, : o.nocc]
            turned.append(c @ c.T)
        assert np.abs(turned[0] + turned[1] - sum(densities)).max() > 0.01
        assert mf.energy_tot(np.array(turned)) == pytest.approx(mf.e_tot, abs=1e-11)

    t_occ = [0.1 * rng.standard_normal((mole.nao, o.nocc)) for o in os]
    t_vir = [0.1 * rng.standard_normal((mole.nao, o.nvir)) for o in os]
    nothing = [np.zeros((mole.nao,) * 2) for _ in os]
    found, residual = responses.relax(
        FockBuilder(mf), os, nothing, t_occ, t_vir, Heard(), None, free
    )
    assert residual <= 5e-11
    ranges = both_ranges(mole, ExactExchange(1.0, 1.0, 0.0))

    def image(vector: Array) -> Array:
        xs = [vector[:first].reshape(shapes[0]), vector[first:].reshape(shapes[1])]
        changes = []
        for o, x in zip(os, xs, strict=True):
            half = o.coeff[:, o.nocc :] @ x @ o.coeff[:, : o.nocc].T
            changes.append(half + half.T)
        gs = fields(ranges, changes, 1.0, ExactExchange(1.0, 1.0, 0.0), None)
        parts = []
        for o, x, g in zip(os, xs, gs, strict=True):
            gap = o.energy[o.nocc :, None] - o.energy[: o.nocc]
            parts.append((gap * x + o.coeff[:, o.nocc :].T @ g @ o.coeff[:, : o.nocc]).ravel())
        return np.concatenate(parts)

    size = sum(nvir * nocc for nvir, nocc in shapes)
    matrix = np.stack([image(row) for row in np.eye(size)], axis=1)
    right = np.concatenate(
        [
            -(t[o.nocc :] - u[: o.nocc].T).ravel() / 2
            for o, t, u in zip(os, t_occ, t_vir, strict=True)
        ]
    )
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    kept = np.abs(values) > 1e-5
    assert np.count_nonzero(~kept) == count
    expected = vectors[:, kept] @ ((vectors[:, kept].T @ right) / values[kept])
    x = np.concatenate(
        [p.relaxed[o.nocc :, : o.nocc].ravel() for o, p in zip(os, found, strict=True)]
    )
    np.testing.assert_allclose(x, expected, atol=1e-8)


def test_degenerate_and_unsolvable_responses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen orbital 1e-4 Eh from a correlated one; more iterations than allowed."""
    mole = methylene()
    mf = scf.UHF(mole).run(conv_tol=1e-12)
    os = orbitals_of(mf, (1, 1), (1, 1))
    for which, pair in (("core", (0, 1)), ("virtual", (5, 6))):
        for apart, refused in ((0.9e-4, True), (1.1e-4, False)):
            energy = os[0].energy.copy()
            energy[pair[1]] = energy[pair[0]] + apart
            o = Orbitals(os[0].coeff, energy, 1, os[0].nocc, os[0].nvir, 1)
            t = np.ones((7, 7))
            frozen = slice(0, 1) if which == "core" else slice(o.last, 7)
            correlated = slice(1, o.occupied)
            if which == "virtual":
                correlated = slice(o.occupied, o.last)
            if refused:
                with recorded_error(NumericalError):
                    responses._mixed(o, np.zeros((7, 7)), t)
            else:
                p = responses._mixed(o, np.zeros((7, 7)), t)
                gap = energy[correlated] - energy[frozen]
                np.testing.assert_allclose(p[frozen, correlated][0], 1 / (2 * gap))
    unrelaxed = [np.zeros((7, 7)) for _ in os]
    drive = [np.ones((7, o.nocc)) for o in os], [np.ones((7, o.nvir)) for o in os]
    for most, works in ((60, True), (3, False)):
        monkeypatch.setattr(responses, "MOST_CYCLES", most)
        if works:
            heard = Heard()
            responses.relax(FockBuilder(mf), os, unrelaxed, *drive, heard)
            count = int(heard.stages[0].split(" after ")[1].split()[0])
            assert 5 < count < 30
        else:
            with recorded_error(ConvergenceError):
                responses.relax(FockBuilder(mf), os, unrelaxed, *drive, Heard())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_response_is_strong_beyond_a_quarter_along_one_rotation(sign: float) -> None:
    """In either direction; two smaller parts of the same norm are none."""
    rng = np.random.default_rng(6)
    hessian = rng.standard_normal((5, 5))
    hessian += hessian.T
    values, modes = np.linalg.eigh(hessian)
    vectors = list(np.linalg.qr(rng.standard_normal((5, 5)))[0])
    images = [hessian @ vector for vector in vectors]
    for size, warned in ((0.249, False), (0.251, True)):
        heard = Heard()
        x = sign * size * modes[:, 2] + 0.2 * modes[:, 0]
        responses._warn_of_strong_response(vectors, images, x, heard)
        assert len(heard.warnings) == warned
        if warned:
            assert f"by 0.25 along a rotation that costs {values[2]:.3f} Eh" in heard.warnings[0]


# --- densities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("spins", [1, 2])
def test_moments_and_charges_are_sums_over_their_densities(spins: int) -> None:
    """A ghost, two elements and a core potential, against loops over atoms and functions."""
    rng = np.random.default_rng(19)
    mole = gto.M(
        atom="Na 0.1 0 -1.9; O 0 0 0; H 0.3 0.8 0.5; GHOST-H 1.5 0.2 0",
        basis={"Na": "lanl2dz", "O": "sto-3g", "H": "sto-3g", "GHOST-H": "sto-3g"},
        ecp={"Na": "lanl2dz"},
        charge=0,
        verbose=0,
    )
    nao = mole.nao
    overlap = mole.intor("int1e_ovlp")
    values, vectors = np.linalg.eigh(overlap)
    root = (vectors * np.sqrt(values)) @ vectors.T
    turned = np.linalg.qr(rng.standard_normal((nao, nao)))[0]
    coeff = np.linalg.solve(root, turned)  # orthonormal
    os = [
        Orbitals(coeff[:, order], np.arange(nao) * 1.0, 1, n - 1, nao - n, 0)
        for n, order in zip((5, 4), (np.arange(nao), np.arange(nao)[::-1]), strict=True)
    ][:spins]
    found = [
        Relaxed(0.1 * symmetric(rng, nao), 0.1 * symmetric(rng, nao), 0.0 * overlap) for _ in os
    ]
    got = properties(mole, os, found)
    weight = 2.0 if spins == 1 else 1.0
    of_kind = []
    for kind in (None, "unrelaxed", "relaxed"):
        of_spin = []
        for o, one in zip(os, found, strict=True):
            matrix = np.diag((np.arange(nao) < o.occupied).astype(float))
            if kind:
                matrix = matrix + getattr(one, kind)
            of_spin.append(o.coeff @ matrix @ o.coeff.T)
        of_kind.append(of_spin)
    z, places = mole.atom_charges(), mole.atom_coords()
    assert list(z) == [1, 8, 1, 0]
    r, rr = mole.intor("int1e_r"), mole.intor("int1e_rr").reshape(3, 3, nao, nao)
    atom_of = [int(label[0]) for label in mole.ao_labels(fmt=None)]
    dipoles = (got.scf_dipole, got.unrelaxed_dipole, got.relaxed_dipole)
    assert got.quadrupole is not None and got.mulliken_charges is not None
    assert got.lowdin_charges is not None
    np.testing.assert_allclose(got.unrelaxed_density, of_kind[1], atol=1e-12)
    np.testing.assert_allclose(got.relaxed_density, of_kind[2], atol=1e-12)
    for k, of_spin in enumerate(of_kind):
        total = weight * sum(of_spin)
        for x in range(3):
            moment = float(z @ places[:, x]) - float(np.vdot(r[x], total))
            assert dipoles[k][x] == pytest.approx(moment, abs=1e-11)
            for y in range(3):
                second = float(z @ (places[:, x] * places[:, y])) - float(np.vdot(rr[x, y], total))
                assert got.quadrupole[k, x, y] == pytest.approx(second, abs=1e-10)
        mulliken, lowdin = z.astype(float), z.astype(float)
        for m in range(nao):
            mulliken[atom_of[m]] -= (total @ overlap)[m, m]
            lowdin[atom_of[m]] -= (root @ total @ root)[m, m]
        np.testing.assert_allclose(got.mulliken_charges[k], mulliken, atol=1e-11)
        np.testing.assert_allclose(got.lowdin_charges[k], lowdin, atol=1e-11)
        if spins == 2:
            spin = of_spin[0] - of_spin[1]
            assert got.mulliken_spin_populations is not None
            assert got.lowdin_spin_populations is not None
            for atom in range(4):
                own = [m for m in range(nao) if atom_of[m] == atom]
                assert got.mulliken_spin_populations[k, atom] == pytest.approx(
                    (spin @ overlap)[own, own].sum(), abs=1e-11
                )
                assert got.lowdin_spin_populations[k, atom] == pytest.approx(
                    (root @ spin @ root)[own, own].sum(), abs=1e-11
                )
    if spins == 1:
        assert got.mulliken_spin_populations is None and got.lowdin_spin_populations is None
    for occupations, of_spin in (
        (got.unrelaxed_occupations, of_kind[1]),
        (got.relaxed_occupations, of_kind[2]),
    ):
        natural = np.linalg.eigvalsh(root @ (weight * sum(of_spin)) @ root)[::-1]
        np.testing.assert_allclose(occupations, natural, atol=1e-10)


# --- sums of a certificate ------------------------------------------------------------------------


@pytest.mark.parametrize("charged", [False, True])
def test_the_certificate_of_a_gradient_by_hand(charged: bool) -> None:
    """Torques about the centre of all positions, over the largest distance from it; grid spheres
    contribute the opposite. Restricted and in mixed precision, unrestricted and in float64."""
    rng = np.random.default_rng(23)
    molecule = MOLECULES["hypochlorous acid in a field" if charged else "chloramine"]
    on_atoms = rng.standard_normal((molecule.natom, 3))
    on_charges = rng.standard_normal((3, 3)) if charged else None
    spheres = np.array([0.3, -0.2, 0.7])
    made = Gradient(
        mp2_total_gradient=on_atoms,
        scaling="mp2",
        opposite_spin_factor=1.0,
        same_spin_factor=1.0,
        seconds=0.0,
        point_charge_gradient=on_charges,
    )
    places, forces = list(molecule.coordinates), list(on_atoms)
    if charged and molecule.point_charges is not None and on_charges is not None:
        places += list(molecule.point_charges[:, :3])
        forces += list(on_charges)
    centre = sum(places) / len(places)
    torque = spheres + sum(
        np.cross(place - centre, force) for place, force in zip(places, forces, strict=True)
    )
    extent = max(1.0, *(float(np.linalg.norm(place - centre)) for place in places))
    mole, energy, spins = mole_of(molecule), -0.4, 1
    allowed = 1e-9 + 1.3 * 2e-7
    if charged:
        energy, spins, allowed = -2.5, 2, 2.5e-9
    density = rng.standard_normal((spins, mole.nao, mole.nao))
    system: Any = SimpleNamespace(mole=mole, molecule=molecule)
    result: Any = SimpleNamespace(
        options=SimpleNamespace(correlation=SCALED, tolerance=2e-7),
        correlation_energy=energy,
        precision="fp64" if charged else "mixed",
    )
    sums: Any = SimpleNamespace(three_center=energy + 3e-3, two_center=energy - 5e-3)
    densities: Any = SimpleNamespace(relaxed_density=density)
    given = (system, result, made, densities, sums, 7e-8, 9e-9, spheres)
    electrons = (3 - spins) * float((density * mole.intor("int1e_ovlp")).sum())
    found = asdict(certificate.certify_gradient(*given))
    assert {name: value for name, value in found.items() if value is not None} == pytest.approx(
        {
            "three_center_difference": 3e-3,
            "two_center_difference": -5e-3,
            "allowed_energy": allowed,
            "electrons_difference": electrons - mole.nelectron,
            "z_vector_residual": 7e-8,
            "allowed_sum": 1e-6,
            "translation": float(np.abs(sum(forces)).max()),
            "rotation": float(np.abs(torque).max()) / extent,
            "scf_convergence_error": 9e-9,
        },
        rel=1e-10,
    )


def test_what_is_exchanged_with_depends_on_both_functionals() -> None:
    """D/2 uses the functional of the energy, P that of the SCF, and each range its own factor."""
    d, p = [np.array([[4.0]]), np.array([[6.0]])], [np.array([[10.0]]), np.array([[20.0]])]

    def of(scf_exact: ExactExchange, energy_exact: ExactExchange) -> dict[float, list[float]]:
        functionals: Any = SimpleNamespace(scf_exact=scf_exact, energy_exact=energy_exact)
        found = exchanged_densities(d, p, functionals)
        return {omega: [float(x[0, 0]) for x in many] for omega, many in found.items()}

    none, half = ExactExchange(0.0, 0.0, 0.0), ExactExchange(0.5, 0.5, 0.0)
    ranged = ExactExchange(0.2, 0.9, 0.3)
    hartree_fock = exchanged_densities(d, p, None)
    assert [float(x[0, 0]) for x in hartree_fock[0.0]] == [12.0, 23.0] and len(hartree_fock) == 1
    assert of(none, none) == {0.0: []}
    assert of(half, none) == {0.0: [5.0, 10.0]}
    assert of(none, half) == {0.0: [1.0, 1.5]}
    assert of(half, ranged)[0.0] == pytest.approx([0.2 * 2 + 5.0, 0.2 * 3 + 10.0])
    assert of(half, ranged)[0.3] == pytest.approx([0.7 * 2, 0.7 * 3])
    both = of(ranged, ranged)
    assert both[0.3] == pytest.approx([0.7 * 12, 0.7 * 23]) and list(both) == [0.0, 0.3]
    two = of(ranged, ExactExchange(0.1, 0.6, 0.4))
    assert two[0.4] == pytest.approx([0.5 * 2, 0.5 * 3])
    assert two[0.3] == pytest.approx([0.7 * 10, 0.7 * 20])
