"""The folded pair kernel on the interpreter against float64 sums, and bugs planted in it that must not pass.

The kernel file is changed by replacing one piece of its text; each change is one that the design warns of.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dfmp2.backends.nki.interpreter.dtypes import drop_bits
from dfmp2.backends.nki.interpreter.run import Settings, run_kernel
from dfmp2.backends.nki.interpreter.settings import RELEASES
from dfmp2.backends.nki.interpreter.violations import Violation

SOURCE = Path(__file__).parent / "data" / "nki_kernels" / "pair_fold.py"
NI, NJ = 2, 2


def operands(
    nvir: int, naux: int, kind: type = np.float32, rounded: int = 0
) -> tuple[dict[str, object], np.ndarray, np.ndarray]:
    """Kernel arguments, and the direct and exchange sums of all pairs from them in float64."""
    generator = np.random.default_rng(nvir)
    slices, padded = -(-naux // 128), -(-nvir // 128) * 128
    b = np.zeros((NI + NJ, slices * 128, padded), kind)
    b[:, :naux, :nvir] = generator.standard_normal((NI + NJ, naux, nvir)).astype(np.float32)
    if rounded:
        b = drop_bits(b, rounded)
    virtual = np.full(padded, 1e3)
    virtual[:nvir] = generator.uniform(0.1, 3.0, nvir)
    occupied = -generator.uniform(0.3, 2.0, (NI, NJ))
    blocks = padded // 128
    pieces = []
    for row, column in [(a, a) for a in range(blocks)] + [(a, c) for a in range(blocks) for c in range(a + 1, blocks)]:
        energies = (
            virtual[128 * row : 128 * row + 128, None] + virtual[None, 128 * column : min(nvir, 128 * column + 128)]
        )
        pieces.append(energies * (2 if row == column else 1))
    pairs = occupied.T.reshape(-1)
    tiles = b.reshape(NI + NJ, slices, 128, padded).transpose(0, 2, 1, 3).reshape((NI + NJ) * 128, slices, padded)
    given = {
        "b_i": tiles[: 128 * NI],
        "b_j": tiles[128 * NI :],
        "eu": np.concatenate(pieces, axis=1).astype(kind),
        "neg": np.tile(np.concatenate([-pairs, -2 * pairs]), (128, 1)).astype(kind),
        "identity": np.eye(128, dtype=kind),
        "n": nvir,
        "ni": NI,
        "nj": NJ,
    }
    direct, exchange = np.zeros(NI * NJ), np.zeros(NI * NJ)
    for q in range(NI * NJ):
        t = (b[q % NI].astype(np.float64).T @ b[NI + q // NI].astype(np.float64))[:nvir, :nvir]
        gap = virtual[:nvir, None] + virtual[None, :nvir] - pairs[q]
        direct[q], exchange[q] = (t * t / gap).sum(), (t * t.T / gap).sum()
    return given, direct, exchange


def sums(given: dict[str, object], source: Path = SOURCE, **settings: object) -> tuple[np.ndarray, np.ndarray]:
    """Direct and exchange sums of all pairs as the host adds them up."""
    (out,), _ = run_kernel(str(source), "pair_fold", given, Settings(**settings))
    columns = out.astype(np.float64).sum(axis=0).reshape(NI * NJ, -1, 2).sum(axis=1)
    return columns[:, 0], 2 * columns[:, 1]


MODELS = [
    ("exact", "float64", 3e-8, 1e-7),
    ("exact", "fp32", 1e-7, 1e-6),
    ("fp32", "fp32", 1e-7, 1e-6),
    ("split4", "fp32", 1e-7, 1e-6),
]


@pytest.mark.parametrize(("nvir", "naux"), [(32, 128), (127, 130), (128, 64), (129, 257), (200, 100), (300, 129)])
@pytest.mark.parametrize(("pe_model", "row_sum", "total", "per_pair"), MODELS)
def test_pair_sums_against_float64(nvir, naux, pe_model, row_sum, total, per_pair):
    given, direct, exchange = operands(nvir, naux)
    found_direct, found_exchange = sums(given, pe_model=pe_model, row_sum=row_sum)
    scale = direct.sum()
    assert abs(found_direct.sum() - scale) <= total * scale
    assert abs(found_exchange.sum() - exchange.sum()) <= total * scale
    np.testing.assert_allclose(found_direct, direct, rtol=per_pair)
    assert (np.abs(found_exchange - exchange) <= per_pair * direct).all()


@pytest.mark.parametrize("nvir", [1, 100, 128, 200, 300])
def test_algebra_is_exact_in_float64(nvir):
    given, direct, exchange = operands(nvir, 140, np.float64)
    found_direct, found_exchange = sums(given, storage="float64")
    np.testing.assert_allclose(found_direct, direct, rtol=1e-12)
    assert (np.abs(found_exchange - exchange) <= 1e-12 * direct).all()


def test_only_rounded_products_cost_accuracy_on_bfloat16_tiles(tmp_path):
    """Operands that bfloat16 holds exactly: full products lose nothing, products rounded to bfloat16 do."""
    text = SOURCE.read_text()
    narrow = text.replace("(TILE, slices, padded), dtype=nl.float32", "(TILE, slices, padded), dtype=nl.bfloat16")
    assert narrow.count("bfloat16") == 2
    path = tmp_path / "narrow.py"
    path.write_text(narrow)
    given, direct, _ = operands(100, 140, rounded=16)
    errors = {
        model: abs(sums(given, path, pe_model=model)[0].sum() / direct.sum() - 1) for model in ("fp32", "bf16prod")
    }
    assert errors["fp32"] < 1e-7
    assert 1e-6 < errors["bf16prod"] < 1e-2


@pytest.mark.parametrize("target", ["gen2", "gen3"])
@pytest.mark.parametrize("release", RELEASES)
def test_one_source_for_all_releases_and_chips(target, release):
    given, direct, _ = operands(32, 64)
    found, _ = sums(given, target=target, release=release)
    np.testing.assert_allclose(found, direct, rtol=1e-6)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_garbage_and_order_do_not_matter_to_a_right_kernel(seed):
    given, direct, exchange = operands(200, 140)
    found_direct, found_exchange = sums(given, fuzz=seed)
    np.testing.assert_allclose(found_direct, direct, rtol=1e-6)
    assert (np.abs(found_exchange - exchange) <= 1e-6 * direct).all()


# what is wrong -> text, its replacement, rule that is broken
REFUSED = {
    "padding of the last block not cleared": ("        nisa.memset(dst=ld, value=0.0)\n", "", "uninitialised-read"),
    "identity not cut with its segment": (
        "identity[0:height, u - at : v - at]",
        "identity[0:height, 0:size]",
        "matmul-dst",
    ),
    "rotation swapped": ("rotating[p % 2], eu_sb", "rotating[(p + 1) % 2], eu_sb", "lost-write"),
    "no rotation": ("rotating[q % 2]\n", "rotating[0]\n", "lost-write"),
    "one buffer for all": ("rotating.append((xu, tl, ld))", "rotating = [(xu, tl, ld), (xu, tl, ld)]", "lost-write"),
    "first product accumulates": ("accumulate=k > 0", "accumulate=True", "matmul-group"),
    "every product overwrites": ("accumulate=k > 0", "accumulate=False", "lost-write"),
    "output columns left out": ("out[:, column : column + 1]", "out[:, chunk : chunk + 1]", "uninitialised-read"),
    "two operands in PSUM": ("data1=w, data2=y", "data1=r, data2=y", "both-psum"),
}
# what is wrong -> text, its replacement: every rule is kept, the sums are wrong
WRONG = {
    "last diagonal block not padded": ("source = ld[0:height, 0:TILE]", "source = xu[0:height, at : at + TILE]"),
    "identity cut at the wrong column": ("identity[0:height, u - at : v - at]", "identity[0:height, 0 : v - u]"),
    "diagonal blocks not halved": ("neg[:, npair + q : npair + q + 1]", "neg[:, q : q + 1]"),
}


def planted(folder: Path, old: str, new: str) -> Path:
    """The kernel file with one piece of text replaced."""
    text = SOURCE.read_text()
    assert text.count(old) == 1
    path = folder / "planted.py"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize("fault", REFUSED)
def test_planted_fault_breaks_a_rule(tmp_path, fault):
    old, new, rule = REFUSED[fault]
    given, _, _ = operands(300, 140)
    with pytest.raises(Violation) as caught:
        sums(given, planted(tmp_path, old, new), fuzz=1)
    assert caught.value.rule == rule


@pytest.mark.parametrize("fault", WRONG)
def test_planted_fault_gives_wrong_sums(tmp_path, fault):
    """The right kernel is within 1e-7; the neighbours that leak in without the padded block are worth 1e-4."""
    given, direct, _ = operands(300, 140)
    found, _ = sums(given, planted(tmp_path, *WRONG[fault]), fuzz=1)
    assert abs(found.sum() / direct.sum() - 1) > 1e-5
