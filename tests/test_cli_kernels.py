"""`dfmp2 kernels`: its output, and the input it rejects."""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2.backends import contract, registry
from dfmp2.backends.base import Shape
from dfmp2.backends.cpu import CpuBackend
from dfmp2.cli import kernels
from dfmp2.errors import InputError
from dfmp2.planning import rates
from dfmp2.trainium import calls
from dfmp2.trainium.calls import KernelCall
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.costs.catalogue import Price
from dfmp2.trainium.costs.model import CHIPS, Engines

from .conftest import succeed
from .recorded import recorded_error

FOUND = contract.Finding(contract.CASES[0], 0.0, 0.0, 0.0, True)
KEYS = {
    "makespan_ms",
    "variant",
    "dispatch_ms",
    "engine_ms",
    "te_utilisation",
    "hbm_bytes",
    "neffs",
    "floor_ms",
    "sbuf_high_water_bytes",
    "dma_written_bytes",
    "makespan_usual_ms",
    "makespan_slowest_ms",
    "dispatch_queued_ms",
    "calls",
    "floor_share",
}


def test_cost_prints_one_object_with_the_documented_keys(call):
    facts = succeed(
        call("kernels", "cost", "--kernel", "K3", "--shape", "medium", "--target", "trn1", "--json")
    ).json
    assert set(facts) == KEYS
    assert facts["te_utilisation"] == pytest.approx(
        facts["engine_ms"]["tensor"] / facts["makespan_ms"]
    )
    tensor, best = facts["engine_ms"]["tensor"], facts["makespan_ms"]
    assert facts["makespan_usual_ms"] - best == pytest.approx(tensor * (1 / 0.85 - 1))
    assert facts["makespan_slowest_ms"] - best == pytest.approx(tensor * (1 / 0.40 - 1))
    assert facts["calls"] == 10  # 6 + 4 blocks of 16 x 16 orbitals
    assert facts["dispatch_ms"] == pytest.approx(10 * 1.3)
    # Every call outlasts the submission of the next.
    assert facts["dispatch_queued_ms"] == pytest.approx(1.3)
    assert facts["floor_share"] == pytest.approx(facts["floor_ms"] / best)
    assert facts["floor_ms"] == pytest.approx(2080 * 448**2 * 1536 * 4 / 128**2 / 2.8e6)
    assert facts["neffs"] == 2


def test_cost_table_is_labelled(call):
    short = ("kernels", "cost", "--kernel", "pair_energy", "--shape", "20,30,90")
    text = succeed(call(*short)).out
    assert "predicted, not measured" in text.splitlines()[0]
    assert "nocc 20, nvir 30, naux 90" in text and "one trn1 core" in text
    assert "computed as nvir 32, naux 128; no padded pairs" in text and "PSUM port" in text
    quick = succeed(call(*short, "--target", "trn2")).out
    assert "one trn2 core" in quick and "PSUM port" not in quick


def test_shapes_are_written_with_commas_or_slashes(call):
    one, other = (
        succeed(call("kernels", "cost", "--kernel", "K3", "--shape", shape)).out
        for shape in ("20,30,90", "20/30/90")
    )
    assert one == other
    spins = [calls.spin_shapes("20/30/90", beta) for beta in ("18,32", "18/32")]
    assert spins[0] == spins[1] == (Shape(20, 30, 90), Shape(18, 32, 90))
    assert kernels._shapes(None, None, "20,30,90", "18,33")[1] == 51  # of more basis functions
    with recorded_error(InputError):
        calls.parse_shape(f"{'1' * 5000}/2/3")


def test_queued_calls_cost_what_submitting_takes_longer_than_they_last():
    short = Engines(CHIPS["trn1"], tensor=0.5e6)  # calls that last 0.5 ms, submitted in 0.67
    price = Price("plain", ((KernelCall("", "", {}, 36), short),), 0.0)
    assert catalogue.queued_ms([price]) == pytest.approx(1.3 + 36 * 0.17)
    long = Engines(CHIPS["trn1"], tensor=2e6)
    assert catalogue.queued_ms([Price("plain", ((KernelCall("", "", {}, 36), long),), 0.0)]) == 1.3
    assert catalogue.queued_ms([]) == 0.0


def test_list_names_the_kernels(call):
    names = set(succeed(call("kernels", "list", "--json")).json["kernels"])
    assert names == {row.name for row in catalogue.KERNELS}
    assert "K3" in succeed(call("kernels", "list")).out


def test_check_passes_for_a_backend_that_keeps_its_contract(call):
    done = succeed(call("kernels", "check", "--lane", "cpu", "--threads", "1"))
    assert "FAILED" not in done.out
    # A row tile less, exactly, and more than full; rows that leave a half or a quarter; several parts
    assert {1, 127, 128, 129, 64, 448, 600} <= {case.nvir for case in contract.CASES}
    assert (
        done.out.splitlines()[-1] == f"{len(contract.CASES)} of {len(contract.CASES)} blocks agree"
    )


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


def test_plan_predicts_time_and_memory_with_the_dispatch_apart(call, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(rates, "measure_rates", lambda backend, count: rates.Rates())
    arguments = (
        "plan",
        "nh2.xyz",
        "--basis",
        "cc-pvdz",
        "--threads",
        "1",
        "--backend",
        "nki-interpreter",
    )
    facts = succeed(call(*arguments, "--json")).json["trainium"]
    assert "predicted, not measured" in facts["label"]
    trn1 = facts["trn1"]
    assert trn1["lane"] == "nki" and trn1["obstacle"] == ""
    # Five and four orbitals are blocks of their own
    assert trn1["calls"] == 3 and trn1["neffs"] == 3
    assert trn1["dispatch"] == pytest.approx(3 * 1.3e-3)
    assert trn1["available"] == 16 * 2**30 and facts["trn2"]["available"] == 12 * 2**30
    blocks = (5 + 4) * 128 * 128 * 4  # B of two spins
    assert blocks < trn1["memory"] < 2 * blocks
    assert 0.0 < trn1["device"] <= trn1["slowest"] < trn1["queued"] < trn1["dispatch"]
    assert [
        facts[place]["cores"] for place in ("trn1", "trn1, 2 cores", "trn2", "trn2, 8 cores")
    ] == [1, 2, 1, 8]
    text = succeed(call(*arguments)).out
    assert "pair energies, predicted" in text and "trn2, 8 cores, lane nki" in text
    assert "trn1, lane nki, 3 calls, 3 NEFFs" in text
