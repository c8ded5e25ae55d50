"""One process per NeuronCore: the same bits as one process, whoever computed what, and errors that come through."""

from __future__ import annotations

import gc
import os
import signal

import numpy as np
import pytest

from dfmp2.backends.base import Tile
from dfmp2.backends.nki import core_process
from dfmp2.backends.nki.assignment import blocks_by_core, largest_share, owners, pair_channels, work_of
from dfmp2.backends.nki.backend import NkiBackend
from dfmp2.backends.nki.cores import CoresBackend
from dfmp2.backends.nki.executor import InterpreterExecutor
from dfmp2.backends.nki.guard import GuardedBackend
from dfmp2.errors import BackendUnavailable, KernelError, KernelFailed, UnsupportedByBackend
from dfmp2.mp2.pairs import pair_energies
from tests.test_backends import fitted

SINGLE = NkiBackend("nki-interpreter", InterpreterExecutor())


@pytest.fixture(scope="module")
def two_cores():
    backend = CoresBackend("nki-interpreter", "interpreter", (0, 1), SINGLE.limits)
    yield backend
    backend.close()


def test_two_processes_give_the_bits_of_one(two_cores):
    spaces = [fitted(9, 20, 30, 1), fitted(3, 13, 30, 2)]
    found, guarded = [], GuardedBackend(two_cores, every=4)
    for backend in (SINGLE, guarded):
        operands = [backend.put(*space, "mixed") for space in spaces]
        found.append(pair_energies(operands, backend))
    one, two = (energies.channels() for energies in found)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert found[0].opposite_spin_energy == found[1].opposite_spin_energy != 0.0
    told = guarded.describe()
    assert told["cores"] == "0, 1"
    blocks = 3 + 1 + 2
    assert told["kernel launches"].startswith(f"{blocks} (core 0: ")
    by_core = [int(part.split(": ")[1]) for part in told["kernel launches"].split("(")[1].rstrip(")").split(" | ")]
    assert sum(by_core) == blocks and min(by_core) > 0  # both took part
    assert told["pairs redone in float64 meanwhile"].startswith("2, ")


@pytest.mark.parametrize(("cores", "copies"), [(1, 1.0), (2, 1.75), (4, 2.5), (8, 3.75), (16, 5.5), (32, 7.5)])
def test_each_core_needs_few_blocks_and_all_have_the_same_work(cores, copies):
    """Eight blocks of B, 28 + 8 blocks of pairs; all of B on every core would be `cores` copies."""
    channels = pair_channels([64])
    tiles = channels[0, 0]
    given = owners(tiles, cores)
    needed = blocks_by_core(channels, cores)
    assert sum(map(len, needed)) / 8 == copies
    for tile, core in zip(tiles, given, strict=True):
        assert {(0, tile.i0 // 8), (0, tile.j0 // 8)} <= needed[core]
    loads = [sum(work_of(t) for t, c in zip(tiles, given, strict=True) if c == core) for core in range(cores)]
    assert sum(loads) == 2080 and max(loads) <= 2080 / cores + 64
    if cores == 2:  # perfectly even: 14 off-diagonal and 4 diagonal blocks each
        assert loads == [1040, 1040]
    assert largest_share([64], cores) == max(loads) / 2080


def test_operands_that_nobody_needs_are_dropped_in_the_processes(two_cores):
    space = fitted(2, 3, 4)
    first = two_cores.put(*space, "mixed")
    key = first.b.key
    del first
    gc.collect()
    assert all(key in keys for keys in two_cores._dropped.values())
    second = two_cores.put(*space, "mixed")
    assert second.b.key > key and all(key not in keys for keys in two_cores._dropped.values())


def test_an_operand_that_was_dropped_cannot_be_used():
    backend = CoresBackend("nki-interpreter", "interpreter", (5,), SINGLE.limits)
    with pytest.raises(KernelFailed, match="process of NeuronCore 5 ended with 1"):
        backend._all[0].ask("pair", 1, 1, Tile(0, 2, 0, 2, False))
    backend.close()


def test_a_precision_that_the_cores_lack_is_refused(two_cores):
    operand = two_cores.put(*fitted(2, 3, 4), "mixed")
    with pytest.raises(UnsupportedByBackend, match="it offers mixed"):
        two_cores.put(*fitted(2, 3, 4), "fp64")
    assert two_cores.pair_terms(operand, operand, Tile(0, 2, 0, 2, True)).direct.shape == (2, 2)


def test_a_process_that_cannot_have_its_core_is_refused_at_the_start():
    with pytest.raises(BackendUnavailable, match="NeuronCore 3: lane 'absent' is unknown"):
        CoresBackend("nki", "absent", (3,), SINGLE.limits)


def test_a_process_that_dies_ends_the_run():
    backend = CoresBackend("nki-interpreter", "interpreter", (4,), SINGLE.limits)
    operand = backend.put(*fitted(2, 3, 4), "mixed")
    os.kill(backend._all[0]._process.pid, signal.SIGKILL)
    with pytest.raises(KernelFailed, match="process of NeuronCore 4 ended with -9"):
        backend.pair_terms(operand, operand, Tile(0, 2, 0, 2, True))
    backend.close()


def test_answers_name_our_errors_and_let_others_through():
    def refuse():
        raise KernelError("too large")

    assert core_process.answer(lambda: 3) == ("done", 3)
    assert core_process.answer(refuse) == ("KernelError", "too large")
    with pytest.raises(ZeroDivisionError):
        core_process.answer(lambda: 1 // 0)
