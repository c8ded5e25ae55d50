"""The backend `nki-interpreter`: whole molecules against PySCF, tiles that do not follow the blocks, provenance."""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2 import api
from dfmp2.backends import registry
from dfmp2.backends.base import Tile
from dfmp2.backends.nki.backend import NkiBackend
from dfmp2.backends.nki.executor import InterpreterExecutor, source_hash
from dfmp2.backends.nki.interpreter.run import Settings
from dfmp2.errors import NumericalError, UnsupportedByBackend
from dfmp2.progress import Listener
from tests.conftest import MOLECULES
from tests.test_backends import fitted, oracle
from tests.test_out_of_core import both

GEOMETRIES = {
    **{name: MOLECULES[name] for name in ("h2o", "nh2", "o2")},
    "ch4": "5\n\nC 0 0 0\nH 0.6276 0.6276 0.6276\nH -0.6276 -0.6276 0.6276\nH -0.6276 0.6276 -0.6276\n"
    "H 0.6276 -0.6276 -0.6276\n",
    "nh3": "4\n\nN 0 0 0.1173\nH 0 0.9377 -0.2738\nH 0.8121 -0.4689 -0.2738\nH -0.8121 -0.4689 -0.2738\n",
    "glycine": "10\n\nN -1.9616 -0.0426 0.0\nC -0.6765 0.6290 0.0\nC 0.5380 -0.2804 0.0\nO 0.4903 -1.4865 0.0\n"
    "O 1.7197 0.3937 0.0\nH -2.0387 -0.6532 0.8070\nH -2.0387 -0.6532 -0.8070\nH -0.5864 1.2764 0.8768\n"
    "H -0.5864 1.2764 -0.8768\nH 2.4150 -0.2810 0.0\n",
    "benzene": "12\n\n"
    + "".join(
        f"{element} {radius * np.cos(k * np.pi / 3):.8f} {radius * np.sin(k * np.pi / 3):.8f} 0\n"
        for element, radius in (("C", 1.3970), ("H", 2.4810))
        for k in range(6)
    ),
}


class Quiet(Listener):
    """Keeps warnings to itself."""

    def warning(self, text):
        pass


@pytest.mark.parametrize(
    ("name", "basis"),
    [
        ("h2o", "cc-pvdz"),
        ("ch4", "cc-pvdz"),
        ("nh3", "cc-pvdz"),
        ("nh2", "cc-pvdz"),
        ("o2", "cc-pvdz"),
        pytest.param("h2o", "cc-pvtz", marks=pytest.mark.slow),
        pytest.param("glycine", "cc-pvdz", marks=pytest.mark.slow),
        pytest.param("benzene", "aug-cc-pvdz", marks=pytest.mark.slow),
    ],
)
def test_molecule_equals_pyscf(tmp_path, name, basis):
    (tmp_path / "m.xyz").write_text(GEOMETRIES[name])
    given = {"backend": "nki-interpreter", "check": True, "threads": 1, "listener": Quiet()}
    result = api.run(tmp_path / "m.xyz", basis, **given)
    assert abs(result.check.same_spin_difference) < 1e-7
    assert abs(result.check.opposite_spin_difference) < 1e-7
    assert result.precision == "mixed"
    assert result.certificate.sampled > 0
    assert result.certificate.correlation_error > 1e-12  # float32 arithmetic really ran
    launches = dict(detail.split(": ", 1) for detail in result.provenance.backend_details)
    blocks = -(-result.sizes.nocc[0] // 8)
    assert int(launches["kernel launches"]) >= blocks * (blocks + 1) // 2
    assert source_hash().startswith(launches["kernel sources"].split()[1])


def test_b_on_disk(tmp_path, monkeypatch):
    """As little of B in memory as can be; two blocks of alpha orbitals and one of beta ones."""
    (tmp_path / "m.xyz").write_text(GEOMETRIES["o2"])
    given = {"backend": "nki-interpreter", "threads": 1, "listener": Quiet()}
    held, stored = both(monkeypatch, lambda: api.run(tmp_path / "m.xyz", "cc-pvdz", check=True, **given))
    assert (held.storage.fitted_tensor, stored.storage.fitted_tensor) == ("memory", "disk")
    assert abs(stored.check.same_spin_difference) < 1e-7
    assert abs(stored.check.opposite_spin_difference) < 1e-7
    assert stored.mp2_correlation_energy == pytest.approx(held.mp2_correlation_energy, abs=1e-8)
    launches = [dict(d.split(": ", 1) for d in r.provenance.backend_details)["kernel launches"] for r in (held, stored)]
    assert launches[0] == launches[1]


@pytest.mark.parametrize("variant", ["plain", "packed"])
@pytest.mark.parametrize("tile", [Tile(0, 9, 0, 9, True), Tile(3, 9, 1, 10, False), Tile(8, 10, 0, 2, False)])
def test_tiles_that_do_not_follow_the_blocks(variant, tile):
    space = fitted(10, 180, 30)
    backend = NkiBackend("nki-interpreter", InterpreterExecutor(), variant)
    operand = backend.put(*space, "mixed")
    terms = backend.pair_terms(operand, operand, tile)
    for found, whole in zip((terms.direct, terms.exchange), oracle(space, space), strict=True):
        expected = whole[tile.i0 : tile.i1, tile.j0 : tile.j1]
        expected = np.triu(expected) if tile.diagonal else expected
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())


def test_two_spin_spaces_in_float64_storage():
    left, right = fitted(9, 40, 30, 1), fitted(3, 33, 30, 2)
    settings = Settings(pe_model="exact", row_sum="float64", storage="float64")
    backend = NkiBackend("nki-interpreter", InterpreterExecutor(settings))
    a, b = (backend.put(*space, "mixed") for space in (left, right))
    terms = backend.pair_terms(a, b, Tile(0, 9, 0, 3, False))
    assert terms.exchange is None
    np.testing.assert_allclose(terms.direct, oracle(left, right)[0], rtol=1e-12)


def test_there_is_no_float64_on_the_device():
    with pytest.raises(UnsupportedByBackend, match="it offers mixed"):
        registry.select("nki-interpreter", "fp64", 1)
    backend = registry.select("nki-interpreter", "auto", 1)[0]
    with pytest.raises(UnsupportedByBackend, match="fp64"):
        backend.put(*fitted(2, 3, 4), "fp64")
    assert registry.exact(backend).name == "cpu"


def test_an_estimate_above_the_tolerance_is_refused_and_not_repeated_elsewhere(tmp_path):
    (tmp_path / "m.xyz").write_text(GEOMETRIES["h2o"])
    with pytest.raises(NumericalError, match="nki-interpreter has no float64"):
        api.run(tmp_path / "m.xyz", "sto-3g", backend="nki-interpreter", tolerance=1e-15, threads=1, listener=Quiet())
