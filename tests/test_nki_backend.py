"""The backend on the interpreter, in this process and in one per NeuronCore: molecules, tiles,
bits, errors."""

from __future__ import annotations

import gc
import os
import re
import signal
from unittest.mock import Mock

import numpy as np
import pytest

import dfmp2
from dfmp2.backends.base import Tile
from dfmp2.errors import (
    BackendUnavailable,
    KernelFailed,
)
from dfmp2.host.processes import exit_code
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.pairs import pair_energies
from dfmp2.trainium import layout
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.launch import cores
from dfmp2.trainium.launch.cores import CoresBackend
from dfmp2.trainium.launch.executors import InterpreterExecutor, source_hash
from tests.conftest import MOLECULES, PATIENCE, Heard
from tests.recorded import recorded_error
from tests.test_backends import fitted, oracle
from tests.test_disk import both

GEOMETRIES = {
    **{name: MOLECULES[name] for name in ("h2o", "nh2", "o2")},
    "benzene": "12\n\n"
    + "".join(
        f"{element} {radius * np.cos(k * np.pi / 3):.8f} {radius * np.sin(k * np.pi / 3):.8f} 0\n"
        for element, radius in (("C", 1.3970), ("H", 2.4810))
        for k in range(6)
    ),
}


@pytest.mark.parametrize(
    ("name", "basis"),
    [
        ("h2o", "6-31g"),
        ("nh2", "6-31g"),
        pytest.param("o2", "cc-pvdz", marks=pytest.mark.slow),
        pytest.param("h2o", "cc-pvtz", marks=pytest.mark.slow),
        pytest.param("benzene", "aug-cc-pvdz", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("target", ["trn1", pytest.param("trn2", marks=pytest.mark.slow)])
def test_molecule_equals_pyscf(monkeypatch, name, basis, target):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    given = {"backend": "nki-interpreter", "check": True, "threads": 1, "listener": Heard()}
    result = dfmp2.run(Molecule.from_string(GEOMETRIES[name]), basis, **given)
    assert abs(result.check.same_spin_difference) < 1e-7
    assert abs(result.check.opposite_spin_difference) < 1e-7
    assert result.precision == "mixed"
    assert result.certificate.sampled > 0
    assert result.certificate.correlation_error > 1e-12  # float32 arithmetic really ran
    launches = dict(detail.split(": ", 1) for detail in result.provenance.backend_details)
    assert launches["target"] == {"trn1": "gen2", "trn2": "gen3"}[target]
    blocks = -(-result.sizes.nocc[0] // 16)
    assert int(launches["kernel launches"]) >= blocks * (blocks + 1) // 2
    assert source_hash().startswith(launches["kernel sources"].split()[1])


@pytest.mark.parametrize(
    ("variant", "nvir", "tile"),
    [
        ("plain", 20, Tile(0, 9, 0, 9, True)),
        ("packed", 160, Tile(3, 9, 1, 10, False)),
        ("plain", 20, Tile(8, 10, 0, 2, False)),
        ("packed", 160, Tile(0, 8, 0, 8, True)),  # tables of the block before, and one less
    ],
)
def test_tiles_that_do_not_follow_the_blocks(monkeypatch, variant, nvir, tile):
    """Of four, four and two orbitals."""
    monkeypatch.setattr(layout, "EDGE", 4)
    space = fitted(10, nvir, 30)
    backend = NkiBackend("nki-interpreter", InterpreterExecutor(), variant)
    operand = backend.put(*space, "mixed")
    terms = backend.pair_terms(operand, operand, tile)
    for found, whole in zip((terms.direct, terms.exchange), oracle(space, space), strict=True):
        expected = whole[tile.i0 : tile.i1, tile.j0 : tile.j1]
        expected = np.triu(expected) if tile.diagonal else expected
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(cores, "PATIENCE", PATIENCE)
    backend = CoresBackend("nki-interpreter", (0, 1))
    yield backend
    backend.close()


def test_two_processes_give_the_bits_of_one(two_cores):
    """Each is sent a block once, whatever the number of its tiles."""
    for process in two_cores._all:
        process.ask = Mock(wraps=process.ask)
    spaces = [fitted(19, 20, 30, 1), fitted(3, 13, 30, 2)]
    found = [
        pair_energies([backend.put(*space, "mixed") for space in spaces], backend)
        for backend in (NkiBackend("nki-interpreter", InterpreterExecutor()), two_cores)
    ]
    one, two = (energies.channels() for energies in found)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert found[0].opposite_spin_energy == found[1].opposite_spin_energy != 0.0
    for process in two_cores._all:
        calls = process.ask.call_args_list
        held = [call.args[1::2] for call in calls if call.args[0] == "hold"]
        assert len(held) == len(set(held))
    told = two_cores.describe()
    assert told["cores"] == "0, 1"
    blocks = 3 + 1 + 2
    assert told["kernel launches"].startswith(f"{blocks} (core 0: ")
    by_core = [int(count) for count in re.findall(r"core \d: (\d+)", told["kernel launches"])]
    assert sum(by_core) == blocks and min(by_core) > 0  # both took part


def test_operands_that_nobody_needs_are_dropped_and_a_dead_process_ends_the_run(two_cores):
    space = fitted(2, 3, 4)
    first, tile = two_cores.put(*space, "mixed"), Tile(0, 2, 0, 2, True)
    key = first.b.key
    for _ in two_cores._all:
        two_cores.pair_terms(first, first, tile)
    assert all(key in process.blocks for process in two_cores._all)
    del first
    gc.collect()
    second = two_cores.put(*space, "mixed")
    for _ in two_cores._all:
        two_cores.pair_terms(second, second, tile)
    assert all(list(process.blocks) == [second.b.key] for process in two_cores._all)
    dead, alive = (process._process for process in two_cores._all)
    dead.kill()
    assert exit_code(dead) == -signal.SIGKILL
    with recorded_error(KernelFailed):
        two_cores.pair_terms(second, second, tile)
    two_cores.close()
    assert exit_code(alive) == 0


def test_a_process_that_cannot_have_its_core_is_refused_at_the_start():
    with recorded_error(BackendUnavailable):
        CoresBackend("absent", (3,))


def test_a_process_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(cores, "PATIENCE", 0.1)
    backend = CoresBackend("nki-interpreter", (0,))
    process = backend._all[0]._process
    os.kill(process.pid, signal.SIGSTOP)
    backend.close()
    assert exit_code(process) == -signal.SIGKILL


def test_b_on_disk(monkeypatch):
    given = {"backend": "nki-interpreter", "threads": 1, "stability": "off", "listener": Heard()}
    molecule = Molecule.from_string(MOLECULES["nh2"])
    held, stored = both(monkeypatch, lambda: dfmp2.run(molecule, "sto-3g", check=True, **given))
    assert (held.storage.fitted_tensor, stored.storage.fitted_tensor) == ("memory", "disk")
    assert abs(stored.check.correlation_difference) < 1e-7
    assert stored.mp2_correlation_energy == pytest.approx(held.mp2_correlation_energy, abs=1e-8)
