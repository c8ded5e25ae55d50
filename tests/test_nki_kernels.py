"""The kernels against definitions and plain twins, and faults planted in their sources."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from dfmp2.backends.untransformed import UntransformedTensor
from dfmp2.trainium import calls, layout
from dfmp2.trainium.backend import transform
from dfmp2.trainium.calls import PairForm
from dfmp2.trainium.interpreter import arithmetic
from dfmp2.trainium.interpreter.rules import Violation
from dfmp2.trainium.interpreter.run import Settings, run_kernel
from dfmp2.trainium.kernels.sizes import equal_parts, parts_of
from dfmp2.trainium.launch.executors import InterpreterExecutor
from tests.twins import pair_energy_twin, transform_twin

SIZES = (1, 16, 64, 127, 128, 129, 256, 448, 600)
PLAIN = f"{calls.KERNELS}.pair_energy"
ALGEBRA = Settings(exact=True)


@dataclass(frozen=True)
class Space:
    """B in physical proportions (elements fall with both orbital energies), and the energies."""

    b: np.ndarray
    occ: np.ndarray
    vir: np.ndarray


def space(nocc, nvir, naux, seed=0):
    """Densities that overlap, so that exchange is of the size of direct, and shrink with the
    virtual energy."""
    rng = np.random.default_rng([seed, nocc, nvir, naux])
    vir = np.sort(rng.uniform(0.1, 23.0, nvir))
    b = rng.standard_normal((1, nvir, naux)) + 0.7 * rng.standard_normal((nocc, nvir, naux))
    return Space(
        b * 0.2 / np.sqrt(naux) / (1 + vir[:, None]), np.sort(-rng.uniform(0.4, 20.0, nocc)), vir
    )


def arguments(s, edge, held, diagonal, variant, dtype):
    """Return a same-space kernel, its arguments, and the items it emits."""
    form = PairForm(
        layout.padded_nvir(s.vir.size),
        layout.padded_naux(s.b.shape[2]),
        variant,
        rows=edge,
        columns=edge if diagonal else len(s.occ) - edge,
    )
    items = layout.emission(form.rows, form.columns, held, diagonal, form.group)
    blocks = list(layout.pack_b(s.b, edge, dtype))
    eps = s.occ[:edge], s.occ[:edge] if diagonal else s.occ[edge:]
    single = any(len(item.rows) == 1 for item in items)
    tables = {
        "tables": layout.pair_tables(s.vir, single, form.group),
        "neg": layout.neg_table(*eps, items),
    }
    given = {
        "b_i": blocks[0],
        "b_j": blocks[0 if diagonal else 1],
        **{k: t.astype(dtype) for k, t in tables.items()},
    }
    sizes = form.nvir, form.naux // 128, held, form.group
    return form, given | form.constants(diagonal) | {"sizes": sizes}, items


def evaluate(s, edge, held, diagonal, variant="plain", settings=None, source=None, **changed):
    """J and K of the first block with itself or with the second."""
    settings = settings or Settings()
    dtype = np.float64 if settings.exact else np.float32
    form, given, items = arguments(s, edge, held, diagonal, variant, dtype)
    (out,), _ = run_kernel(source or PLAIN, "pair_energy_block", given | changed, settings)
    return layout.read_pairs(out, items, (form.rows, form.columns), form.nvir)


def oracle(s, edge, diagonal, dtype=np.float64):
    """J and K of the pairs of the block."""
    rows, columns = slice(0, edge), slice(0, edge) if diagonal else slice(edge, 2 * edge)
    j, k = pair_energy_twin(
        s.b[rows], s.b[columns], s.occ[rows], s.occ[columns], s.vir, s.vir, dtype
    )
    found = np.array([j, k])
    return np.triu(found) if diagonal else found


def deviations(found, exact):
    """Relative deviation of the block's J and K sums, and that of a typical pair (the median)."""
    found, exact = np.asarray(found), np.asarray(exact)
    pairs = exact != 0
    sums = np.abs(found.sum((1, 2)) / exact.sum((1, 2)) - 1)
    return sums, np.median(np.abs(found[pairs] / exact[pairs] - 1))


CASES = [(nvir, variant, diagonal) for nvir in SIZES for variant in ("plain", "packed") for diagonal in (False, True)
         if variant == "plain" or nvir in (129, 448)]  # fmt: skip
CASES += [(288, "packed", False), (185, "packed", True)]
CASES += [(16, "placed", True), (129, "placed", False)]


def shape_of(nvir, variant):
    """Block edge and residents: as many residents as the kernel allows, and a second block of
    rows."""
    if variant == "packed":
        return (4, 4) if layout.padded_nvir(nvir) % 128 == 32 else (4, 2)
    return (3, 1 if nvir > 512 else 2) if nvir > 300 else (4, 2)


# Rounding does not depend on the size; the test below finds wrong addresses at every size.
QUICK = (
    (16, "plain", False),
    (16, "placed", True),
    (256, "plain", False),  # row sums of several runs
    (129, "packed", False),
    (185, "packed", True),
)
ROUNDED = [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize(("nvir", "variant", "diagonal"), ROUNDED)
def test_block_sums_and_the_rounding_of_a_plain_float32_program(nvir, variant, diagonal):
    edge, held = shape_of(nvir, variant)
    errors = []
    for seed in range(6 if nvir < 100 else 3 if nvir < 300 else 1):
        # The second block has one orbital less
        s = space(2 * edge - 1, nvir, 37 if nvir > 300 else 150, seed)
        exact = oracle(s, edge, diagonal)
        sums, pairs = deviations(evaluate(s, edge, held, diagonal, variant), exact)
        _, twin = deviations(oracle(s, edge, diagonal, np.float32), exact)
        assert (sums < 3e-7).all()
        errors.append((pairs, twin))
    pairs, twin = np.mean(errors, axis=0)
    # A BLAS sums small products in several partial sums, depending on the processor, but long
    # columns one after the other, like the kernel's padded operands.
    assert pairs < 1.5 * max(twin, 2.0**-22 if nvir <= 16 else 2.0**-24)


def whole_block(nvir, variant, diagonal):
    """A row of EXACT: a block and a second one with one orbital less."""
    edge, held = shape_of(nvir, variant)
    return variant, nvir, 5 if nvir > 100 else 131, 2 * edge - 1, edge, held, diagonal


# With more fitting functions below.
DEEPER = ((448, "plain", False), (448, "packed", True), (600, "plain", False))
EXACT = [  # variant, nvir, naux, nocc, edge of the block, residents, with itself
    *(whole_block(*case) for case in CASES if case not in DEEPER),
    pytest.param(*whole_block(448, "placed", True), marks=pytest.mark.slow),
    pytest.param(*whole_block(600, "placed", False), marks=pytest.mark.slow),
    # B in pieces, and B_j in two parts at 416 virtual orbitals
    ("plain", 448, 500, 5, 4, 2, False),
    ("packed", 448, 500, 5, 3, 2, True),
    ("plain", 600, 900, 2, 1, 1, False),
    pytest.param("placed", 448, 500, 7, 4, 2, False, marks=pytest.mark.slow),  # two residents
    pytest.param("placed", 416, 1700, 5, 3, 1, True, marks=pytest.mark.slow),
    pytest.param("plain", 416, 1700, 4, 2, 1, True, marks=pytest.mark.slow),
    # Five rows, not a multiple of the residents, with themselves and with two columns
    *(
        (*form, diagonal)
        for diagonal in (False, True)
        for form in (
            ("plain", 160, 70, 7, 5, 2),
            ("packed", 192, 70, 7, 5, 2),
            ("packed", 160, 70, 7, 5, 4),
            ("placed", 160, 70, 7, 5, 2),
        )
    ),
    ("packed", 160, 70, 2, 2, 4, True),  # too few orbitals for a group: single pairs only
]


@pytest.mark.parametrize(("variant", "nvir", "naux", "nocc", "edge", "held", "diagonal"), EXACT)
def test_indexing_and_packing_are_exact_in_float64(variant, nvir, naux, nocc, edge, held, diagonal):
    s = space(nocc, nvir, naux)
    found, exact = evaluate(s, edge, held, diagonal, variant, ALGEBRA), oracle(s, edge, diagonal)
    np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-12 * exact.max())


CROSS = [
    (28, 26, 61),
    (13, 130, 61),
    (130, 13, 61),
    (1, 1, 61),
    (448, 129, 61),
    (129, 600, 61),
    (13, 416, 1700),  # B_j in two parts
]


@pytest.mark.parametrize(
    ("left", "right", "naux", "settings"),
    [*((*sizes, ALGEBRA) for sizes in CROSS), (448, 129, 61, Settings())],
)
def test_cross_mode(left, right, naux, settings):
    edge, held = (
        4,
        1 if parts_of(layout.padded_nvir(right), layout.padded_naux(naux) // 128) > 1 else 2,
    )
    a, b = space(3, left, naux, 1), space(2, right, naux, 2)
    dtype, tolerance = (np.float64, 1e-12) if settings is ALGEBRA else (np.float32, 3e-7)
    (b_i,), (b_j,) = (tuple(layout.pack_b(s.b, edge, dtype)) for s in (a, b))
    given = {"b_i": b_i, "b_j": b_j, "nvir": layout.padded_nvir(right), "residents": held}
    given["slices"] = layout.padded_naux(naux) // 128
    given |= {
        "eu": layout.cross_table(a.vir, b.vir).astype(dtype),
        "neg": layout.cross_neg(a.occ, b.occ).astype(dtype),
    }
    (out,), _ = run_kernel(
        f"{calls.KERNELS}.pair_energy_cross", "pair_energy_cross", given, settings
    )
    exact, _ = pair_energy_twin(a.b, b.b, a.occ, b.occ, a.vir, b.vir, np.float64)
    found = layout.read_cross(out, (3, 2))  # an odd number of rows, two of which are held at a time
    np.testing.assert_allclose(found, exact, rtol=10 * tolerance, atol=tolerance * exact.max())
    assert found.sum() == pytest.approx(exact.sum(), rel=tolerance)


@pytest.mark.parametrize("variant", ["plain", "packed", "placed"])
@pytest.mark.parametrize("settings", [Settings(), Settings(target="gen3")], ids=["gen2", "gen3"])
def test_arithmetic_of_the_engines(variant, settings):
    s = space(6, 160, 130)
    found = evaluate(s, 4, 4, False, variant, settings, transpose=settings.target == "gen3")
    sums, pairs = deviations(found, oracle(s, 4, False))
    # T D^(-1/2) is rounded before squaring, which doubles the error: 1.2e-7 per element.
    assert (sums < 2e-7).all()
    assert pairs < 1e-6


def planted(tmp_path, old, new):
    """A copy of the kernel files with one change."""
    found = 0
    for path in calls.KERNEL_FOLDER.glob("*.py"):
        text = path.read_text().replace("from dfmp2.trainium.kernels.", "from ")
        found += text.count(old)
        (tmp_path / path.name).write_text(text.replace(old, new))
    assert found == 1
    return str(tmp_path / "pair_energy.py")


CONTRACTION = "moving[:, k, 0:width], "
REFUSED = {  # planted fault -> what replaces what, and the rule that it breaks
    "a lower block never stored": (
        "0, left)\n\n\ndef trans",
        "left, left)\n\n\ndef trans",
        "uninitialised-read",
    ),
    "an identity not cut with its segment": (
        "first - start : last - start]",
        "0:height]",
        "matmul-dst",
    ),
    "padding not cleared": (
        "nisa.memset(dst=last_blocks[turn], value=0.0)",
        "pass",
        "uninitialised-read",
    ),
    "the first product accumulates": (f"{CONTRACTION}k > 0", f"{CONTRACTION}True", "matmul-group"),
    "two operands in PSUM": ("yh, data1=y, data2=h", "yh, data1=y, data2=y", "both-psum"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_planted_faults_that_break_a_rule_are_refused(tmp_path, fault):
    old, new, rule = REFUSED[fault]
    with pytest.raises(Violation) as caught:
        evaluate(
            space(4, 440, 140),
            2,
            1,
            False,
            source=planted(tmp_path, old, new),
        )
    assert caught.value.rule == rule


@pytest.mark.parametrize("nvir", [40, 160])
def test_places_change_no_bit(nvir):
    s = space(7, nvir, 140)
    plain, placed = (evaluate(s, 4, 1, True, variant) for variant in ("plain", "placed"))
    np.testing.assert_array_equal(placed, plain)


def test_runs_take_places_when_they_are_told_to(monkeypatch):
    assert calls.variants(190, 840)[-1] == "packed"
    monkeypatch.setattr(calls, "PLACED", True)
    assert calls.variants(190, 840)[-1] == "placed"
    assert calls.variants(672, 2304) == ("plain",)  # more than 70 %
    (program,) = calls.programs((calls.Shape(3, 190, 840),), "trn1")
    assert dict(program.statics)["placed"] is True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("slot(places, UPPER, pair, 2)", "slot(places, UPPER, 0, 2)"),  # as long as the next pair's
        (
            "slot(places, RIGHT, loads, 2)\n                    coming",
            "slot(places, RIGHT, 0, 2)\n                    coming",
        ),
        ("slot(places, SUMS, first // residents, 2)", "slot(places, SUMS, 0, 2)"),
        ("        bank += 2", "        bank += 0"),
        ("slot(places, LEFT, number // count, count_held)", "slot(places, LEFT, 0, count_held)"),
        ("sbuf(neg.shape[1], P, slot(places, NEG, 0, 1))", "sbuf(neg.shape[1])"),  # no address
    ],
)
def test_tiles_in_one_place_at_a_time_are_refused(tmp_path, one, other):
    s = space(7, 300, 140)
    with pytest.raises(Violation) as caught:
        evaluate(
            s,
            edge=4,
            held=1,
            diagonal=False,
            variant="placed",
            settings=Settings(arithmetic=False),
            source=planted(tmp_path, one, other),
        )
    assert caught.value.rule == "address"


@pytest.mark.parametrize("variant", ["plain", "packed"])
def test_the_newton_step_mends_a_coarse_root(tmp_path, monkeypatch, variant):
    s = space(5, 160, 130)
    exact = oracle(s, 4, False)
    monkeypatch.setitem(
        arithmetic.BINARY, "power", lambda x, y: np.power(x, y) * np.float32(1 + 1e-4)
    )
    assert (deviations(evaluate(s, 4, 4, False, variant), exact)[0] > 5e-5).all()
    planted(tmp_path, "NEWTON = False", "NEWTON = True")
    source = str(tmp_path / "pair_energy.py")
    assert (deviations(evaluate(s, 4, 4, False, variant, source=source), exact)[0] < 3e-7).all()


def energies_of(executor, t, some_occ, occ, vir):
    """e_ij (i of some_occ, j) by `mp2_energy`; t (ic*nvir, nocc*nvir)."""
    rows = equal_parts(vir.size, 128)
    neg = np.broadcast_to(
        -(some_occ[:, None] + occ).ravel(), (rows, some_occ.size * occ.size)
    ).copy()
    given = {"t": t, "eu": vir[:, None] + vir, "neg": neg, "identity": np.eye(rows)}
    out = launch(executor, "products", "mp2_energy", **given, ic=some_occ.size, nocc=occ.size)
    return out.sum(axis=0, dtype=np.float64)


def launch(executor, module, kernel, **arguments):
    given = {
        name: executor.upload(v) if isinstance(v, np.ndarray) else v
        for name, v in arguments.items()
    }
    return executor.launch(f"{calls.KERNELS}.{module}", kernel, given)


def assert_close(found, expected, tolerance):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def untransformed(a, c_occ, c_vir):
    """Symmetric matrices as packed triangles, as in a run."""
    return UntransformedTensor(a[:, *np.tril_indices(a.shape[1])], c_occ, c_vir)


@pytest.mark.parametrize(
    ("nao", "naux", "spins", "most"),
    [
        (130, 20, [(17, 520)], 1),  # two tiles of basis functions, two blocks of orbitals
        (30, 300, [(9, 21), (3, 27)], 1),  # three slices of fitting functions, one to a call
        (30, 300, [(9, 21), (3, 27)], 2),  # two to a call, then one with one of padding
    ],
)
def test_transform_makes_the_blocks_that_the_host_packs(monkeypatch, nao, naux, spins, most):
    """Fitted integrals are sent once for both spins."""
    rng = np.random.default_rng(5)
    raw = rng.standard_normal((naux, nao, nao))
    a = raw + raw.transpose(0, 2, 1)
    monkeypatch.setattr(layout, "slices_at_once", lambda tiles, slices: most)
    sent = []
    executor = InterpreterExecutor(ALGEBRA)
    monkeypatch.setattr(executor, "upload", lambda array: sent.append(array.shape) or array)
    orbitals = [[rng.standard_normal((nao, size)) for size in spin] for spin in spins]
    found = transform([untransformed(a, *spin) for spin in orbitals], executor)
    rows, calls_made = -(-nao // 128) * 128, -(-naux // (128 * most))
    assert sent.count((most * rows, rows + 1, 128)) == calls_made
    for blocks, spin in zip(found, orbitals, strict=True):
        expected = list(layout.pack_b(transform_twin(a, *spin, np.float64), dtype=np.float64))
        for block, host in zip(blocks, expected, strict=True):
            assert_close(block, host, 1e-12)
