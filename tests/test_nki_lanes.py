"""The lanes on stand-ins for AWS's packages: launches and proofs of use. Failures, and what auto
decides, are the session `trainium-lanes`."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from dfmp2.backends import registry
from dfmp2.backends.base import Shape
from dfmp2.mp2.pairs import pair_energies
from dfmp2.trainium import entry, layout
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.calls import program_of, programs
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.interpreter.run import Settings
from dfmp2.trainium.launch import cores
from dfmp2.trainium.launch.executors import InterpreterExecutor
from tests.stand_in_nki.site import planted
from tests.test_backends import fitted


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A host on which packages, tools and a device can be planted."""
    with planted(tmp_path, monkeypatch) as site:
        yield site


@pytest.fixture
def machine(bare):
    """A host with all of them."""
    return bare.sound()


def test_runs_launch_exactly_what_is_compiled_ahead(monkeypatch):
    """Off-diagonal and diagonal blocks of either spin, and a short last block."""
    monkeypatch.setattr(layout, "EDGE", 4)
    seen = set()

    class Recording(InterpreterExecutor):
        def launch(self, source, kernel, arguments):
            seen.add(program_of(source, kernel, arguments))
            return np.zeros_like(super().launch(source, kernel, arguments))

    backend = NkiBackend("k", Recording(Settings(arithmetic=False)))
    spins = Shape(11, 60, 30), Shape(2, 40, 30)
    pair_energies([backend.put(*fitted(*spin), "mixed") for spin in spins], backend)
    assert seen == set(programs(spins, "trn1"))


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


@pytest.mark.parametrize(("lane", "workers"), [("nki", 3), ("nki-xla", 3), ("nki-simulator", 1)])
def test_lanes_with_a_device_take_all_visible_cores(machine, lane, workers):
    """Programs are compiled once, before the cores load them; B comes from the host."""
    machine.patch.setenv("NEURON_RT_VISIBLE_CORES", "0,2-3")
    opened = Mock()
    machine.patch.setattr(cores, "CoreProcess", opened)
    backend = registry.select_backend(lane, "auto", 1)[0]
    assert (backend.limits.workers, backend.limits.compiles) == (workers, lane == "nki")
    assert backend.limits.transforms == (workers == 1)
    if workers > 1:
        assert [call.args for call in opened.call_args_list] == [(lane, n) for n in (0, 2, 3)]
    backend.prepare((Shape(3, 8, 12),))
    assert len(list((machine.folder / "neff").glob("*/*.neff"))) == (lane == "nki")
