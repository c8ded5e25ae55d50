"""`dfmp2 kernels`: its output, and the input it rejects."""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2.backends import contract, registry
from dfmp2.backends.cpu import CpuBackend

from .conftest import succeed

FOUND = contract.Finding(contract.CASES[0], 0.0, 0.0, 0.0, True)


def test_check_obeys_the_rules_of_the_chip_that_is_named(call, monkeypatch):
    monkeypatch.setattr(contract, "CASES", contract.CASES[:1])
    seen = []
    monkeypatch.setattr(
        contract,
        "examine_backend",
        lambda backend, case: seen.append(backend.describe()["target"]) or FOUND,
    )
    for target in ("trn1", "trn2"):
        succeed(call("kernels", "check", "--target", target, "--threads", "1"))
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    succeed(call("kernels", "check", "--threads", "1"))
    assert seen == ["gen2", "gen3", "gen3"]
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    assert call("kernels", "check", "--threads", "1").code == 3


SPOILED = {  # one thing wrong in the terms of a block
    "direct sums": lambda t: t._replace(direct=t.direct * (1 + 1e-6)),
    "exchange sums": lambda t: t._replace(exchange=t.exchange * (1 + 1e-6)),
    "direct pairs": lambda t: t._replace(direct=np.roll(t.direct, 1, axis=1)),
    "exchange pairs": lambda t: t._replace(exchange=np.roll(t.exchange, 1, axis=1)),
    "not a number": lambda t: t._replace(direct=t.direct * np.nan),
    "no exchange": lambda t: t._replace(exchange=None),
    "exchange of two spins": lambda t: t._replace(exchange=t.direct),
    "a pair that was not asked for": lambda t: t._replace(direct=t.direct - np.tri(3, k=-1) / 1e30),
}


class Spoiled(CpuBackend):
    """A backend whose terms are changed."""

    def __init__(self, change):
        super().__init__(1)
        self.change, self.asked = change, []

    def pair_terms(self, left, right, tile):
        self.asked.append((left.precision, right.precision, tile.j0))
        return self.change(super().pair_terms(left, right, tile))


@pytest.mark.parametrize("spoiled", [None, *SPOILED])
def test_a_contract_is_kept_in_sums_and_in_pairs(spoiled):
    kind = {"a pair that was not asked for": "diagonal", "exchange of two spins": "cross"}
    case = contract.Case(20, 20, 37, kind.get(spoiled, "rectangle"))
    backend = Spoiled(SPOILED.get(spoiled, lambda t: t))
    assert contract.examine_backend(backend, case).passed == (spoiled is None)
    first = backend.limits.tile_edge if case.kind == "rectangle" else 0  # in the second block
    assert backend.asked == [("mixed", "mixed", first)]


def test_check_ends_with_8_for_a_backend_that_does_not(call, monkeypatch):
    backend = Spoiled(SPOILED["direct pairs"])
    monkeypatch.setattr(
        registry, "select_backend", lambda name, precision, threads: (backend, "test")
    )
    done = call("kernels", "check", "--lane", "cpu", "--threads", "1")
    assert done.code == 8
    assert "FAILED" in done.out
    assert "misses its contract in" in done.message
