"""The backend on the interpreter, in this process and in one per NeuronCore: molecules, tiles,
bits, errors."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
from dfmp2.progress import Listener
from dfmp2.trainium import calls, layout
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.interpreter.rules import Settings
from dfmp2.trainium.launch import cores
from dfmp2.trainium.launch.cores import CoresBackend
from dfmp2.trainium.launch.executors import InterpreterExecutor, name_type, source_hash
from tests.conftest import MOLECULES, PATIENCE
from tests.recorded import recorded_error
from tests.test_backends import fitted, oracle

GEOMETRIES = {
    **{name: MOLECULES[name] for name in ("h2o", "nh2", "o2")},
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
        ("nh2", "cc-pvdz"),
        ("o2", "cc-pvdz"),
        pytest.param("h2o", "cc-pvtz", marks=pytest.mark.slow),
        pytest.param("benzene", "aug-cc-pvdz", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("target", ["trn1", pytest.param("trn2", marks=pytest.mark.slow)])
def test_molecule_equals_pyscf(monkeypatch, name, basis, target):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    given = {"backend": "nki-interpreter", "check": True, "threads": 1, "listener": Quiet()}
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
    ("variant", "tile"),
    [
        ("plain", Tile(0, 9, 0, 9, True)),
        ("packed", Tile(3, 9, 1, 10, False)),
        ("plain", Tile(8, 10, 0, 2, False)),
    ],
)
def test_tiles_that_do_not_follow_the_blocks(variant, tile):
    space = fitted(10, 180, 30)
    backend = NkiBackend("nki-interpreter", InterpreterExecutor(), variant)
    operand = backend.put(*space, "mixed")
    terms = backend.pair_terms(operand, operand, tile)
    for found, whole in zip((terms.direct, terms.exchange), oracle(space, space), strict=True):
        expected = whole[tile.i0 : tile.i1, tile.j0 : tile.j1]
        expected = np.triu(expected) if tile.diagonal else expected
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())


SINGLE = NkiBackend("nki-interpreter", InterpreterExecutor())


@pytest.fixture
def two_cores():
    backend = CoresBackend("nki-interpreter", (0, 1))
    yield backend
    backend.close()


@pytest.mark.parametrize(("exact", "products"), [(False, "fp32"), (True, "exact")])
def test_the_interpreter_says_how_it_multiplies(exact: bool, products: str) -> None:
    assert InterpreterExecutor(Settings(exact=exact)).describe()["products"] == products


def test_two_processes_give_the_bits_of_one(two_cores):
    spaces = [fitted(19, 20, 30, 1), fitted(3, 13, 30, 2)]
    found = []
    for backend in (SINGLE, two_cores):
        operands = [backend.put(*space, "mixed") for space in spaces]
        found.append(pair_energies(operands, backend))
    one, two = (energies.channels() for energies in found)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert found[0].opposite_spin_energy == found[1].opposite_spin_energy != 0.0
    told = two_cores.describe()
    assert told["cores"] == "0, 1"
    blocks = 3 + 1 + 2
    assert told["kernel launches"].startswith(f"{blocks} (core 0: ")
    by_core = [
        int(part.split(": ")[1])
        for part in told["kernel launches"].split("(")[1].rstrip(")").split(" | ")
    ]
    assert sum(by_core) == blocks and min(by_core) > 0  # both took part


def test_operands_that_nobody_needs_are_dropped_in_the_processes(two_cores):
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


def test_a_process_that_cannot_have_its_core_is_refused_at_the_start():
    with recorded_error(BackendUnavailable):
        CoresBackend("absent", (3,))


def test_a_process_that_dies_ends_the_run():
    backend = CoresBackend("nki-interpreter", (4,))
    operand = backend.put(*fitted(2, 3, 4), "mixed")
    os.kill(backend._all[0]._process.pid, signal.SIGKILL)
    with recorded_error(KernelFailed):
        backend.pair_terms(operand, operand, Tile(0, 2, 0, 2, True))
    backend.close()


def test_all_processes_end_although_one_has_died(monkeypatch):
    monkeypatch.setattr(cores, "PATIENCE", PATIENCE)
    backend = CoresBackend("nki-interpreter", (0, 1))
    first, second = (process._process for process in backend._all)
    first.kill()
    assert exit_code(first) == -signal.SIGKILL
    backend.close()
    assert exit_code(second) == 0


def test_a_process_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(cores, "PATIENCE", 0.1)
    backend = CoresBackend("nki-interpreter", (0,))
    process = backend._all[0]._process
    os.kill(process.pid, signal.SIGSTOP)
    backend.close()
    assert exit_code(process) == -signal.SIGKILL


def test_the_hash_of_the_kernels_is_that_of_their_names_and_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs compiled from other sources must not be found again."""
    monkeypatch.setattr(calls, "KERNEL_FOLDER", tmp_path)
    found = set()
    for name, content in (("a.py", "1"), ("a.py", "2"), ("b.py", "2")):
        (tmp_path / name).write_text(content)
        found.add(source_hash())
    (tmp_path / "notes.txt").write_text("no kernel")
    found.add(source_hash())
    assert len(found) == 3


@pytest.mark.parametrize(
    ("own", "wanted", "given"),
    [
        ("V2", "float16", "float16"),
        ("float16", "V2", "V2"),
        ("float32", "float16", "float32"),
        ("float32", "int32", "float32"),  # numbers are never read as other numbers
        ("V2", "float32", "V2"),
        ("float32", "V2", "float32"),
        ("V4", None, "float32"),
    ],
)
def test_a_tensor_is_renamed_if_one_of_the_two_types_is_void(
    own: str, wanted: str | None, given: str
) -> None:
    """NumPy, which lacks bfloat16, sees it as two bytes without a type."""
    tensor = SimpleNamespace(dtype=np.dtype(own))
    known = SimpleNamespace(dtype=np.dtype(wanted)) if wanted else SimpleNamespace()
    name_type(tensor, known)
    assert tensor.dtype == np.dtype(given)


def test_each_block_takes_the_tables_of_its_own_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are kept for the next block; one without single pairs needs one table less."""
    taken: list[np.ndarray] = []
    backend = NkiBackend.__new__(NkiBackend)
    backend._executor = SimpleNamespace(
        target="gen2",
        upload=lambda values: values,
        launch=lambda module, name, arguments: taken.append(arguments["tables"]),
    )
    backend._variant = "packed"
    monkeypatch.setattr(
        layout, "read_pairs", lambda out, items, shape, nvir: (np.zeros(shape), np.zeros(shape))
    )
    edge, nvir, naux = 4, 160, 128
    form = calls.PairForm(nvir, naux, "packed", rows=edge, columns=edge)
    energies = np.linspace(0.1, 2.9, nvir)
    resident = SimpleNamespace(
        nvir=nvir, naux=naux, blocks=[None, None], kept={}, eps_vir=energies, edge=edge
    )
    operand: Any = SimpleNamespace(b=resident, eps_occ=np.linspace(-9.0, -0.4, 2 * edge))
    blocks = [(0, 0), (0, 1), (1, 1), (0, 1)]
    for row, column in blocks:
        backend._same(operand, row, column)
    expected = [form.tables(energies, diagonal) for diagonal in (False, True)]
    assert expected[0].shape != expected[1].shape
    for (row, column), tables in zip(blocks, taken, strict=True):
        np.testing.assert_array_equal(tables, expected[row == column])
