"""Pair energies of one molecule in several processes: bitwise those of one process, whatever dies;
shards of other calculations are refused."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import dfmp2
from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import ResourceError, ResultFileError
from dfmp2.execution import parts
from dfmp2.execution.pool import Died, Pool, WorkerShare
from dfmp2.host import provenance
from dfmp2.mp2.calculation import NOTHING
from dfmp2.mp2.identity import PROCESSOR
from dfmp2.mp2.pairs import tile_keys
from dfmp2.mp2.prepared import open_prepared, options_for, prepared_energy
from dfmp2.output import hdf5, tile_shards
from dfmp2.output.checkpoint import VARIABLE, FileCheckpoint
from dfmp2.output.prepared import opened
from dfmp2.output.state import decode, encode
from tests.conftest import INPUTS, Heard, Runner, listing, run_here, succeed
from tests.faults import Stopping, numbers
from tests.here import HereSlot
from tests.recorded import recorded_error, recorded_failure
from tests.test_prepared import set_disk

B = "x.prepared.h5"
CASES = {  # molecule, options of the first part, of the second
    "rhf, fp64": ("h2o", {"basis": "sto-3g"}, {"precision": "fp64"}),
    "uhf, core, mixed, check": (
        "nh2",
        {"basis": "sto-3g", "frozen_core": "1"},
        {"precision": "mixed", "check": True},
    ),
    "repeated in float64": ("nh2", {"basis": "sto-3g"}, {"tolerance": 1e-12}),
}


def mine(result: Path | bytes) -> dict[str, bytes]:
    """Every number of a result except the memory and thread counts its processes were given."""
    own = ("dfmp2/input/options/", "dfmp2/preparation")
    return {name: value for name, value in numbers(result).items() if not name.startswith(own)}


def flags(options: dict[str, Any]) -> list[str]:
    """Options as command-line arguments."""
    given = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
    return [
        text for name, value in given for text in ((name,) if value is True else (name, str(value)))
    ]


def one_process(options: dict[str, Any]) -> dict[str, bytes]:
    """The numbers of `dfmp2 energy`."""
    return mine(hdf5.to_bytes(dfmp2.energy(B, threads=2, **options, listener=Heard())))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with NH2 in STO-3G, prepared, and both halves of its tiles."""
    folder = tmp_path_factory.mktemp("made")
    dfmp2.prepare(INPUTS / "nh2.xyz", "sto-3g", folder / B, threads=1, listener=Heard())
    for index in (0, 1):
        command = ("energy", "--from", B, "--output", "x.h5", "--shard", f"{index}/2")
        succeed(run_here(*command, cwd=folder))
    return folder


@pytest.fixture
def prepared(made: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The prepared file in the working directory."""
    monkeypatch.chdir(folder)
    return Path(shutil.copy(made / B, folder))


# --- a pool in this process -----------------------------------------------------------------------


class MortalSlot(HereSlot):
    """A slot whose tasks die where `fates` says so."""

    def __init__(self, fates: Iterator[bool]) -> None:
        super().__init__(WorkerShare(1, 4 * 10**9), {})
        self.fates = fates

    def result(self) -> Any:
        if next(self.fates, False):
            self.future = None
            raise Died("died", 7, self.share)
        return super().result()


class HerePool(Pool):
    """Slots that finish in the reverse of the order in which they began."""

    def __init__(self, count: int, fates: Iterator[bool] = iter(())) -> None:  # noqa: B008 - empty
        self.slots = [MortalSlot(fates) for _ in range(count)]

    def finished(self) -> list[MortalSlot]:
        return self.busy[::-1]


def pooled(pool: Any, **options: Any) -> dfmp2.MP2Result:
    """The result of `dfmp2 energy` with tiles computed by a pool."""
    try:
        with opened(B) as source:
            chosen = options_for(source.prepared, options)
            elsewhere = partial(parts.by_workers, pool, source.path)
            return prepared_energy(source, chosen, listener=Heard(), elsewhere=elsewhere)
    finally:
        for stack, _ in parts._jobs.values():
            stack.close()
        parts._jobs.clear()


def by_pool(pool: Any, **options: Any) -> dict[str, bytes]:
    """The numbers of `dfmp2 energy` with tiles computed by a pool."""
    return mine(hdf5.to_bytes(pooled(pool, **options)))


# --- shares of the machine ------------------------------------------------------------------------


@pytest.mark.usefixtures("prepared")
def test_the_process_that_adds_up_has_a_share(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the memory that is given for all, beside the workers, who compute the same numbers."""
    workers = HerePool(3)
    workers.share = WorkerShare(2, 2 * 10**9)
    pool, grow = Mock(return_value=workers), Mock()
    monkeypatch.setattr("dfmp2.execution.pool.local_pool", pool)
    monkeypatch.setattr(HerePool, "grow", grow)
    computed = Mock(wraps=prepared_energy)
    monkeypatch.setattr("dfmp2.mp2.prepared.prepared_energy", computed)
    command = ("energy", "--from", B, "--workers", "3", "--threads", "2", "--memory", "9GB")
    succeed(call(*command, "--output", "x.h5"))
    pool.assert_called_once_with("auto", 3, 2, 9 * 10**9, others=1)
    grow.assert_called_once_with(3)
    share = computed.call_args.args[1]
    assert (share.threads, share.memory) == (2, 2 * 10**9)
    assert mine(folder / "x.h5") == one_process({})
    options = dfmp2.read(folder / "x.h5").options
    assert (options.threads, options.memory) == (2, 9 * 10**9)


# --- the same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "disk"),
    [
        pytest.param("rhf, fp64", True, marks=pytest.mark.bits),
        pytest.param("uhf, core, mixed, check", False, marks=pytest.mark.slow),
        pytest.param("repeated in float64", False, marks=pytest.mark.slow),
    ],
)
def test_any_cut_gives_the_bits_of_a_run(
    case: str, disk: bool, folder: Path, call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards in any order, one of them twice, and parts computed by workers some of which die."""
    name, before, after = CASES[case]
    dfmp2.prepare(f"{name}.xyz", output=B, **before, threads=1, listener=Heard())
    expected = mine(
        hdf5.to_bytes(dfmp2.run(f"{name}.xyz", **before, **after, threads=1, listener=Heard()))
    )
    if disk:
        set_disk(monkeypatch)
    command = ("energy", "--from", B, *flags(after), "--output", "x.h5")
    for index in (1, 2, 0, 2):
        done = succeed(call(*command, "--shard", f"{index}/3", "--json"))
        assert done.json["shard"] == [index, 3] and 0 < done.json["pairs"] < done.json["of_pairs"]
    succeed(call(*command, "--collect"))
    assert mine(folder / "x.h5") == expected
    assert [entry for entry in listing(folder) if "shard" in entry] == []
    assert by_pool(HerePool(3), **after) == expected
    assert by_pool(HerePool(2, iter([False, True, True, False, True])), **after) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("workers")
def test_processes_that_are_stopped(
    prepared: Path, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real workers: stopped at the third tile and resumed."""
    monkeypatch.setenv(VARIABLE, "0")
    command = ("energy", "--from", B, "--output", "x.h5", "--threads", "1")
    with Stopping(at_tile=3):
        done = call(*command, "--workers", "1")
    recorded_failure(done, 75)
    assert succeed(call(*command, "--workers", "2", "--resume")).went_on
    assert mine(folder / "x.h5") == one_process({})


def test_workers_that_die_again_and_again(prepared: Path) -> None:
    with pytest.raises(ResourceError, match=r"4\.00 GB"):
        by_pool(HerePool(2, iter([True] * 9)))


def test_parts_are_even_and_of_neighbours() -> None:
    keys = tile_keys(((40, 100, 300), (38, 102, 300)), CpuBackend(1).limits, 0)
    for count in (1, 2, 7, 50):
        parts = tile_shards.cut(keys, count)
        assert sorted(key for part in parts for key in part) == sorted(keys)
        sizes = [tile_shards.pairs_of_shard(part) for part in parts]
        assert max(sizes) - min(sizes) <= 2 * max(tile_shards.pairs_of_shard([key]) for key in keys)
    rows = [{key[:3] + key[3][:2] for key in part} for part in tile_shards.cut(keys, 8)]
    assert max(map(len, rows)) <= 6  # of 24


# --- what is refused ------------------------------------------------------------------------------


def test_the_memory_advised_is_that_of_all_processes(prepared: Path, call: Runner) -> None:
    """Two workers and the adding process each need what one process requires, in whole MB."""
    done = call("energy", "--from", B, "--workers", "2", "--memory", "9MB")
    required, unit = re.findall(r"([\d.]+) ([MG]B) are required", done.message)[0]
    (advised,) = re.findall(r"allow at least --memory (\d+)MB", done.message)
    if unit == "MB":
        assert int(advised) == 3 * math.ceil(float(required))
    else:  # the process is large already; printed in steps of 10 MB
        assert int(advised) / 3 == pytest.approx(1000 * float(required), abs=6)


@pytest.mark.parametrize("more", [(), ("--shard", "0/1")], ids=["energy", "shard"])
def test_b_that_changes_while_it_is_read(
    more: tuple[str, ...],
    prepared: Path,
    call: Runner,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_disk(monkeypatch)
    add = FileCheckpoint.add_tile

    def added(*given: Any) -> None:
        add(*given)
        os.utime(B, ns=(0, time.time_ns()))

    monkeypatch.setattr(FileCheckpoint, "add_tile", added)
    done = call("energy", "--from", B, "--output", "x.h5", *more)
    recorded_failure(done, 3)


def test_what_a_worker_refuses(prepared: Path) -> None:
    """Another file of that name on its host, another version: the command ends with the worker's
    message."""
    dfmp2.prepare("nh2.xyz", "sto-3g", "other.h5", frozen_core="1", threads=1, listener=Heard())
    with opened(B) as source:
        options = options_for(source.prepared, {"threads": 1})
        with open_prepared(source, options, Heard(), "", NOTHING) as calculation:
            identity = tuple(calculation.identity.items())
    for path, known in (
        ("other.h5", identity),
        (B, (*identity, ("PySCF", "99"))),
    ):
        with recorded_error(ResultFileError):
            parts.compute_tiles(parts.Job(path, options, known), [], WorkerShare(1, 4 * 10**9))


def test_shards_and_workers_of_another_kind_of_processor_are_named(
    made: Path, prepared: Path, folder: Path, call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tiles are accepted and the result names their processor; the file of B names its
    own."""
    for path in made.glob("x.h5.shard-*"):
        shutil.copy(path, folder)
    foreign = folder / "x.h5.shard-1-of-2.checkpoint"
    state = decode(foreign.read_bytes())
    here = state.identity[PROCESSOR]
    there = {**state.identity, PROCESSOR: "Zen9 (NumPy)"}
    foreign.write_bytes(encode(replace(state, identity=there)))
    done = succeed(call("energy", "--from", B, "--output", "x.h5", "--collect"))
    said = f"shards 1/2 were made on another kind of processor (Zen9 (NumPy) there, {here} here)"
    assert said in " ".join(done.err.split())
    (warning,) = dfmp2.read("x.h5").diagnostics.warnings
    assert warning.startswith(said)

    monkeypatch.setattr(parts, "kernels", lambda: "Zen9 (NumPy)")
    assert pooled(HerePool(2)).diagnostics.warnings == (
        f"a worker runs on another kind of processor (Zen9 (NumPy) there, {here} here): the last "
        "bits of the result are not those of a run on one of them",
    )


def test_products_other_than_those_of_the_first_part_are_named(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file names the BLAS and the kernels that made it; those of this process may differ."""
    here, there = provenance.blas_and_kernels(), f"{provenance.blas()}; Zen9"
    expected = {
        here: [],
        there: [
            f"{B} was prepared with other products ({here}; here {there}): the last bits of the "
            "result are not those of a run on one of them"
        ],
    }
    for products, said in expected.items():
        monkeypatch.setattr(provenance, "blas_and_kernels", lambda products=products: products)
        heard = Heard()
        with opened(B) as source:
            prepared_energy(source, options_for(source.prepared, {}), listener=heard)
        assert [text for text in heard.stages if "products" in text] == said


def test_neither_run_nor_energy_loads_what_shares_the_work(folder: Path) -> None:
    program = (
        "import sys; from dfmp2.cli.main import main\n"
        "molecule = 'h2.xyz --basis sto-3g'\n"
        "for command in ('run ' + molecule, 'prepare ' + molecule, 'energy --from "
        "h2.prepared.h5'):\n    assert not main([*command.split(), '--quiet', '--overwrite'])\n"
        "assert not [name for name in sys.modules if name.startswith('dfmp2.execution')]"
    )
    subprocess.run(
        [sys.executable, "-c", program], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
