"""The lanes on stand-ins for AWS's packages: launches and proofs of use. Failures, and what auto
decides, are the session `trainium-lanes`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dfmp2
from dfmp2.backends import registry
from dfmp2.backends.base import Shape, Tile
from dfmp2.backends.tensors import Folding
from dfmp2.cli.main import main
from dfmp2.errors import (
    KernelFailed,
)
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.pairs import pair_energies
from dfmp2.trainium import backend as backend_module
from dfmp2.trainium import calls, entry, layout
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.calls import program_of, programs
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.interpreter.run import Settings
from dfmp2.trainium.launch import compiler, cores, environment, executors, toolchain
from dfmp2.trainium.launch.compiler import NeffCache
from dfmp2.trainium.launch.executors import InterpreterExecutor, source_hash
from tests.conftest import MOLECULES
from tests.stand_in_nki.site import planted
from tests.test_backends import fitted
from tests.test_disk import both
from tests.test_nki_backend import Quiet

LANES = ("nki", "nki-xla", "nki-simulator")


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A host on which packages, tools and a device can be planted."""
    with planted(tmp_path, monkeypatch) as site:
        yield site


@pytest.fixture
def machine(bare):
    """A host with all of them."""
    return bare.sound()


def run(name, lane, basis="sto-3g", **more):
    molecule = Molecule.from_string(MOLECULES[name])
    given = {"backend": lane, "threads": 1, "listener": Quiet(), **more}
    return dfmp2.run(molecule, basis, **given)


def block(lane):
    """One block of pairs on a lane, as a run does it."""
    backend = registry.select_backend(lane, "auto", 1)[0]
    backend.prepare((Shape(3, 8, 12),))
    operand = backend.put(*fitted(3, 8, 12), "mixed")
    return backend.pair_terms(operand, operand, Tile(0, 3, 0, 3, True))


def details(result):
    return dict(line.split(": ", 1) for line in result.provenance.backend_details)


@pytest.mark.parametrize("lane", LANES)
def test_a_lane_gives_the_energy_and_the_proof(machine, lane):
    result = run("h2o", lane, check=True)
    assert abs(result.check.correlation_difference) < 1e-7
    assert result.backend == lane and result.backend_reason == f"asked for with --backend {lane}"
    told = details(result)
    assert told["lane"] == lane and told["target"] == "trn1"
    assert "nki 0.6.0" in told["versions"] and "neuronx-cc 2.27.5334.0" in told["versions"]
    assert told["kernel sources"] == f"sha256 {source_hash()[:16]}"
    assert told["kernel launches"] == "1"  # five occupied orbitals are one block
    assert result.certificate.sampled == 15
    if lane == "nki":
        assert told["programs"] == "1 launched, 1 compiled now, 0 found in the cache"
        assert machine.counter.read_text() == "8"  # of inferences; 7 before
        assert told["compiled through"] == "tracer, neuronx-cc 2.27.5334.0, nki 0.6.0"
    if lane == "nki-xla":
        assert told["programs"].startswith("1 launched, 2 compiled now")


@pytest.mark.parametrize("lane", LANES)
def test_products_stay_on_a_lane_until_they_are_fetched(machine, lane):
    backend = registry.select_backend(lane, "auto", 1)[0]
    device = backend.tensors()
    a, b = (
        np.random.default_rng(seed).standard_normal((100, 30)).astype(np.float32) for seed in (1, 2)
    )
    how = Folding((0, 1), (1, 100, 30))
    made = device.product(device.send(a), device.send(b), (how, how))
    again = device.product(made, made, (Folding((0, 1, 2), (1, 30, 30)),) * 2)
    expected = a.T.astype(np.float64) @ b
    np.testing.assert_allclose(
        device.fetch(made)[0], expected, rtol=0, atol=3e-6 * np.abs(expected).max()
    )
    np.testing.assert_allclose(device.fetch(again)[0], expected.T @ expected, rtol=0, atol=3e-3)
    assert backend.describe()["kernel launches"] == "2"
    if lane != "nki-simulator":
        assert backend.describe()["transfers"].startswith("2 uploads")


@pytest.mark.parametrize("entry", ["tracer", "call", "misfit"])
def test_every_known_entry_point_of_the_compiler_is_used_where_it_is_the_one_there(machine, entry):
    machine.patch.setenv("STAND_IN_ENTRY", entry)
    cache, counts = NeffCache(machine.folder / "neff"), compiler.Proof()
    program = programs((Shape(4, 8, 20),), "trn1")[0]
    done = compiler.ensure(program, "trn1", cache, counts)
    taken = "call" if entry == "misfit" else entry  # a tracer with another name
    assert (done.entry, done.compiler) == (taken, "neuronx-cc 2.27.5334.0, nki 0.6.0")
    variables = json.loads(done.path.read_text())["environment"]
    assert (
        variables["NEURON_PLATFORM_TARGET_OVERRIDE"] == "trn1"
        and variables["NEURON_LOGICAL_NC_CONFIG"] == "1"
    )
    assert variables["NEURON_CC_FLAGS"] == "--auto-cast=none"


def test_another_interpreter_compiles_where_nki_and_the_bindings_clash(machine):
    own = Path(sys.executable)
    other = next(own.with_name(name) for name in ("python3", "python") if own.name != name)
    machine.patch.setenv("DFMP2_NKI_PYTHON", str(other))
    assert toolchain.toolchain_versions(("nki", "absent"), environment.HERE, str(other)) == {
        "nki": "0.6.0"
    }
    assert block("nki").direct.shape == (3, 3)
    assert len(list((machine.folder / "neff").glob("*/*.neff"))) == 1


def test_first_launches_of_a_program_are_timed_apart(monkeypatch):
    times = iter([0.0, 1.0, 6.0, 8.0])
    monkeypatch.setattr(compiler.time, "perf_counter", lambda: next(times))
    counts = compiler.Proof()
    for _ in range(2):
        with counts.launch("program"):
            pass
    assert (counts.first_seconds, counts.later_seconds) == (1.0, 2.0)


def test_a_program_is_known_by_everything_that_it_is_compiled_from(monkeypatch):
    """Kernel and file, tensors, constants, chip, and all sources."""
    whole = programs((Shape(4, 8, 20),), "trn1")[0]
    parts = ("source", "kernel", "tensors", "statics")
    others = [replace(whole, **{part: ()}) for part in parts]
    found = {one.fingerprint("trn1") for one in (whole, *others)} | {whole.fingerprint("trn2")}
    monkeypatch.setattr(calls, "source_hash", lambda: "of other sources")
    assert len(found | {whole.fingerprint("trn1")}) == len(parts) + 3


def test_the_program_of_the_own_compiler_is_taken_and_without_one_the_newest(tmp_path):
    cache, program = NeffCache(tmp_path), programs((Shape(4, 8, 20),), "trn1")[0]
    made = tmp_path / "made.neff"
    for age, version in enumerate(("2.1", "2.3", "2.2")):
        made.write_text(version)
        done = cache.add(program, "trn1", {"neuronx-cc": version}, made, "call", 1.0)
        os.utime(done.path, (1e9, 1e9 + age))
    for version in ("2.1", "2.3", "2.2"):
        found = cache.find(program, "trn1", {"neuronx-cc": version})
        assert (found.path.read_text(), found.entry, found.seconds) == (version, "call", 1.0)
    assert cache.find(program, "trn1", {"neuronx-cc": "2.4"}) is None
    assert cache.find(program, "trn1", {}).path.read_text() == "2.2"
    whole = done.path.with_suffix(".json").read_text()
    done.path.write_text("cut")
    for record in (whole, "", "[]", "{}", whole.replace("1.0", "[]")):
        done.path.with_suffix(".json").write_text(record)
        assert cache.find(program, "trn1", {}).path.read_text() == "2.3"
    done.path.unlink()
    assert cache.find(program, "trn1", {}).path.read_text() == "2.3"


@pytest.mark.parametrize(
    "kind",
    [
        *(RuntimeError, ValueError, TypeError, AssertionError, AttributeError, KeyError),
        *(IndexError, ZeroDivisionError, FileNotFoundError, PermissionError, ImportError),
    ],
)
def test_an_exception_of_the_device_software_is_an_error_of_ours(kind):
    with pytest.raises(KernelFailed) as caught, executors.launching("kernel k"):
        raise kind("text")
    assert type(caught.value.__cause__) is kind


def test_a_kernel_returns_one_float32_tensor_and_nothing_else():
    one = np.zeros((2, 3), np.float32)
    for out in (one, [one], (one,)):
        assert executors.one_output(out, "k") is one
    for out in ((one, one), [], None, one[0], one.astype(np.float64), one.astype(np.float16)):
        with pytest.raises(KernelFailed):
            executors.one_output(out, "k")


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # outputs that nobody computed
def test_warm_up_compiles_exactly_what_runs_launch(machine):

    class Recording(InterpreterExecutor):
        def launch(self, source, kernel, arguments):
            seen.add(program_of(source, kernel, arguments))
            return super().launch(source, kernel, arguments)

    seen = set()
    backend = NkiBackend("k", Recording(Settings(arithmetic=False)))
    alpha, beta = (
        backend.put(*fitted(nocc, nvir, 30, nvir), "mixed") for nocc, nvir in ((9, 180), (8, 40))
    )
    for operand, blocks in ((alpha, 2), (beta, 1)):
        for row, column in ((0, 0), (0, 1))[:blocks]:
            backend.pair_terms(
                operand, operand, Tile(8 * row, 8 + row, 8 * column, 8 + column, row == column)
            )
    backend.pair_terms(alpha, beta, Tile(0, 8, 0, 8, False))
    assert seen == set(programs((Shape(9, 180, 30), Shape(8, 40, 30)), "trn1"))


def test_programs_are_launched_ahead_as_their_kernels_take_them(monkeypatch):
    """Each once, on tensors that the kernels can compute with: no divisor is 0."""
    spins, launched = (Shape(9, 40, 30), Shape(3, 8, 30)), []

    class Recording(InterpreterExecutor):
        def _run(self, program, arguments):
            launched.append(program)
            assert np.isfinite(super()._run(program, arguments)).all()

        def fetch(self, out):
            return out

    monkeypatch.setattr(entry, "XlaExecutor", Recording)
    assert entry.launch_ahead(spins, nao=20).launches == len(launched)
    assert sorted(map(repr, launched)) == sorted(map(repr, programs(spins, "trn1", 20)))


def test_warm_up_needs_no_device(bare, capsys):
    bare.install()
    bare.tools()
    assert main(["kernels", "warmup", "--shape", "32,40,30"]) == 0
    assert "2 programs for trn1: 2 compiled now" in capsys.readouterr().out
    assert main(["kernels", "warmup", "--shape", "48,33,30", "--json"]) == 0  # the same buckets
    assert json.loads(capsys.readouterr().out)["cache_hits"] == 2
    assert (
        main(
            ["kernels", "warmup", "--shape", "48,33,30", "--beta", "32,40", "--transform", "--json"]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    # Both spins share a bucket: K12, and the kernel of two spins
    assert (found["programs"], found["cache_hits"]) == (4, 2)


@pytest.mark.parametrize(
    ("shapes", "missing", "packages", "lane"),
    [
        ((Shape(16, 112, 384),), 1, {}, "nki"),
        ((Shape(9, 40, 90), Shape(7, 42, 90)), 3, {"nrtpy": None}, "nki-xla"),
    ],
)
def test_auto_compares_everything_that_a_device_takes(bare, shapes, missing, packages, lane):
    """At 85 % of its peak, with launches, transfers, and 30 s for each missing program."""
    bare.sound(**packages)
    (found,) = catalogue.predict(shapes, chips=("trn1",))
    seconds = found.usual + found.dispatch + found.link + 30 * missing
    assert entry.weigh(shapes, seconds - 1e-5, True)[0] is None
    taken, reason = entry.weigh(shapes, seconds + 1e-5, False)
    assert taken == lane and "(built-in rates)" in reason


@pytest.mark.parametrize(
    ("name", "workers", "device", "cores"),
    [
        ("cpu", 4, False, None),
        ("cpu", 4, True, [1, 1, 2, 8]),
        ("nki-interpreter", 1, False, [1, 1, 2, 8]),
        ("nki-xla", 4, False, [1, 1, 2, 4, 8, 4]),
    ],
)
def test_predictions_are_for_the_cores_of_a_lane_or_where_there_is_a_device(
    bare, name, workers, device, cores
):
    if device:
        bare.device()
    backend = SimpleNamespace(name=name, limits=SimpleNamespace(workers=workers))
    found = registry.predictions(backend, (Shape(5, 20, 60),))
    assert cores == (found and [one.cores for one in found])


class InProcess:
    """A core's process without the process, so that it shares the planted machine."""

    def __init__(self, lane, core):
        self.core = core
        self.blocks = {}
        self._served = cores.Served(lane, core)

    def ask(self, verb, *arguments):
        return getattr(self._served, verb)(*arguments)

    def wait(self):
        return None

    def end(self):
        return None


def blocks_of_four(machine):
    """Let blocks of B hold 4 occupied orbitals instead of 16, since the interpreter takes seconds for
    three full ones."""
    machine.patch.setattr(layout, "EDGE", 4)
    for module in (backend_module, cores):
        limits = replace(module.LIMITS, tile_edge=4, least_edge=4)
        machine.patch.setattr(module, "LIMITS", limits)


@pytest.mark.parametrize(("lane", "workers"), [("nki", 3), ("nki-xla", 3), ("nki-simulator", 1)])
def test_lanes_with_a_device_take_all_visible_cores(machine, lane, workers):
    machine.patch.setenv("NEURON_RT_VISIBLE_CORES", "0,2-3")
    machine.patch.setattr(cores, "CoreProcess", InProcess)
    limits = registry.select_backend(lane, "auto", 1)[0].limits
    assert (limits.workers, limits.compiles) == (workers, lane == "nki")


def by_core(text):
    """Bytes up of each core from the proof."""
    return [int(part.split(" uploads, ")[1].split()[0]) for part in text.split(" | ")]


def test_cores_share_a_run_and_one_compilation_and_are_sent_the_blocks_they_need(machine):
    """Each core is sent a block once, whatever the number of its tiles, and energies have the bits
    of one core."""
    blocks_of_four(machine)
    machine.patch.setenv("NEURON_RT_VISIBLE_CORES", "0-1")
    machine.patch.setattr(cores, "CoreProcess", InProcess)
    shapes = (Shape(9, 8, 12), Shape(3, 8, 12))  # three blocks and one
    backend = registry.select_backend("nki", "auto", 1)[0]
    assert not backend.limits.transforms  # B comes from the host
    backend.prepare(shapes)
    assert len(list((machine.folder / "neff").glob("*/*.neff"))) == 4 + 1 + 2
    operands = [backend.put(*fitted(s.nocc, 8, 12, s.nocc), "mixed") for s in shapes]
    found = pair_energies(operands, backend)
    single = NkiBackend("k", InterpreterExecutor())
    expected = pair_energies(
        [single.put(*fitted(s.nocc, 8, 12, s.nocc), "mixed") for s in shapes], single
    )
    assert found.opposite_spin_energy == expected.opposite_spin_energy
    assert found.same_spin_energy == expected.same_spin_energy
    told = backend.describe()
    assert told["kernel launches"].split()[0] == str(6 + 1 + 3)
    assert (told["lane"], told["cores"]) == ("nki", "0, 1") and "0 compiled now" in told["programs"]
    assert os.environ["NEURON_RT_VISIBLE_CORES"] in ("0", "1")  # each executor owns one
    whole = 4 * 128 * 128 * (9 + 3)  # B of both spins
    # At most: energies of each call, once per operand and kernel
    tables = 10 * 4 * 128 * 2 * 16 + 8 * 4 * 128 * 128
    sent = by_core(told["transfers"])
    assert len(sent) == 2 and 0 < min(sent) < max(sent) <= whole + tables


def test_b_on_disk(machine):
    machine.patch.setenv("NEURON_RT_VISIBLE_CORES", "0-1")
    machine.patch.setattr(cores, "CoreProcess", InProcess)
    held, stored = both(machine.patch, lambda: run("nh2", "nki", check=True, stability="off"))
    assert (held.storage.fitted_tensor, stored.storage.fitted_tensor) == ("memory", "disk")
    assert abs(stored.check.correlation_difference) < 1e-7
    assert stored.mp2_correlation_energy == pytest.approx(held.mp2_correlation_energy, abs=1e-8)
    assert (
        details(stored)["kernel launches"].split()[0] == details(held)["kernel launches"].split()[0]
    )
