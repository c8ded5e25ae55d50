"""`dfmp2 kernels`: what it prints, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2.backends import contract, registry
from dfmp2.backends.base import PairTerms
from dfmp2.backends.cpu import CpuBackend
from dfmp2.cli.kernels import LANES
from dfmp2.planning import rates
from dfmp2.trainium.calls import Call
from dfmp2.trainium.costs import prediction
from dfmp2.trainium.costs.catalogue import Part, Price
from dfmp2.trainium.costs.schedule import Account
from dfmp2.validation import bench

from .conftest import succeed

FOUND = contract.Finding(contract.CASES[0], 0.0, 0.0, 0.0, True)
KEYS = {
    *(
        "makespan_ms",
        "variant",
        "dispatch_ms",
        "engine_ms",
        "te_utilisation",
        "hbm_bytes",
        "neffs",
        "floor_ms",
    ),
    *(
        "sbuf_high_water_bytes",
        "dma_written_bytes",
        "makespan_usual_ms",
        "makespan_slowest_ms",
        "dispatch_queued_ms",
    ),
}


def test_cost_prints_one_object_with_the_documented_keys(call):
    facts = succeed(
        call("kernels", "cost", "--kernel", "K3", "--shape", "medium", "--target", "trn1", "--json")
    ).json
    assert set(facts) == KEYS
    assert facts["te_utilisation"] == pytest.approx(
        facts["engine_ms"]["tensor"] / facts["makespan_ms"]
    )
    tensor = facts["engine_ms"]["tensor"]
    assert facts["makespan_usual_ms"] == pytest.approx(tensor / 0.85)
    assert facts["makespan_slowest_ms"] == pytest.approx(tensor / 0.40)
    assert facts["dispatch_ms"] == pytest.approx(36 * 1.3)  # 28 + 8 blocks of 8 x 8 orbitals
    assert facts["dispatch_queued_ms"] == pytest.approx(
        1.3
    )  # every call outlasts the submission of the next
    assert facts["floor_ms"] == pytest.approx(2080 * 448**2 * 1536 * 4 / 128**2 / 2.8e6)
    assert facts["neffs"] == 2


def test_cost_table_is_labelled_and_names_the_lane(call):
    text = succeed(
        call(
            "kernels",
            "cost",
            "--kernel",
            "pair_energy",
            "--shape",
            "20,30,90",
            "--lane",
            "nki-call",
        )
    ).out
    assert "predicted, not measured" in text.splitlines()[0]
    assert "nocc 20, nvir 30, naux 90" in text and "one trn1 core" in text
    assert "warning: every one of the 6 calls compiles" in text
    quick = succeed(
        call(
            "kernels", "cost", "--kernel", "pair_energy", "--shape", "20,30,90", "--target", "trn2"
        )
    ).out
    assert "one trn2 core" in quick and "PSUM port" not in quick and "warning" not in quick


def test_shapes_are_written_with_commas_or_slashes_and_lanes_as_backends_are_called(call):
    one, other = (
        succeed(call("kernels", "cost", "--kernel", "K3", "--shape", shape, "--lane", lane)).out
        for shape, lane in (("20,30,90", "numpy"), ("20/30/90", "nki-call"))
    )
    assert one == other and "dispatch, nki-call" in one
    listed = [
        succeed(call("kernels", "list", "--shape", "20/30/90", "--beta", beta)).out
        for beta in ("18,32", "18/32")
    ]
    assert listed[0] == listed[1]
    assert bench.problem("15,51,420").kernel == bench.problem("15/51/420").kernel


def test_numpy_lane_pays_for_every_call():
    account = Account(
        {}, {}, 0.5e6, 0.0, 0.0, 0, 0, 0, {}, 0, 0, 0
    )  # calls that last 0.5 ms, submitted in 0.67
    price = Price("plain", (Part(Call("", "", {}, 36, ""), account),), 0.0)
    once = prediction.dispatch("nki", [price], 201 * 10**6, 1_800 * 10**6, 10**6)
    anew = prediction.dispatch(
        "nki-call", [price], 201 * 10**6, 1_800 * 10**6, 10**6, recompile=1500.0
    )
    assert once.calls == pytest.approx(36 * 1.3) and anew.queued == anew.calls
    assert once.queued == pytest.approx(1.3 + 36 * 0.17)
    assert once.link == pytest.approx(201 / 4.6 + 1 / 5.6)
    assert anew.link == pytest.approx(1800 / 4.6 + 1 / 5.6)
    assert anew.compile == 36 * 1500.0 and once.compile == 0.0
    assert LANES == prediction.LANES


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["cost", "--kernel", "K9", "--shape", "small"],
            3,
            "--kernel K9: unknown kernel: expected one of pair_energy",
        ),
        (
            ["cost", "--kernel", "K3", "--shape", "huge"],
            3,
            "--shape huge: not understood: expected small, medium",
        ),
        (["cost", "--kernel", "K3", "--shape", "1,2"], 3, "--shape 1,2: not understood"),
        (["cost", "--kernel", "K3", "--shape", "0,2,3"], 3, "every number must lie between 1 and"),
        (["cost", "--kernel", "K3", "--shape", "16,-112,384"], 3, "not understood"),
        (
            ["cost", "--kernel", "K3", "--shape", "small", "--target", "trn9"],
            3,
            "expected one of trn1, trn2",
        ),
        (
            ["cost", "--kernel", "K3", "--shape", "small", "--variant", "new"],
            3,
            "--variant new: pair_energy offers",
        ),
        (["cost", "--kernel", "K3", "--shape", "10,9000,20000"], 6, "bytes per SBUF partition"),
        (["cost", "--kernel", "K3"], 2, "Missing option '--shape'"),
        (
            ["check", "--lane", "cpu", "--target", "trn2"],
            2,
            "--lane cpu runs on the chip that is here",
        ),
        (
            ["timeline", "--kernel", "K3", "--shape", "small", "--call", "9"],
            3,
            "--call 9: expected 1 to 2",
        ),
        (
            ["timeline", "--kernel", "K3", "--shape", "small", "--length", "0"],
            3,
            "--length 0: expected microseconds",
        ),
        (
            ["timeline", "--kernel", "K3", "--shape", "small", "--begin", "1e9"],
            3,
            "--begin 1e+09: expected microsec",
        ),
        (
            ["timeline", "--kernel", "K3", "--shape", "small", "--begin", "nan"],
            3,
            "--begin nan: expected microsec",
        ),
        (
            ["cost", "--kernel", "K3", "--shape", "small", "--recompile", "-1"],
            2,
            "-1.0 is not in the range",
        ),
        (
            ["check", "--lane", "nki"],
            6,
            "--backend nki (AWS Trainium, compiled NKI kernels) cannot be used",
        ),
        (["check", "--lane", "abacus"], 2, "'abacus' is not one of"),
        (["list", "h2o.xyz"], 2, "--basis is missing"),
        (["list", "h2o.xyz", "--shape", "small"], 2, "not both"),
        (["list", "missing.xyz", "--basis", "cc-pvdz"], 3, "missing.xyz"),
        (["list", "--beta", "3,4"], 2, "--beta needs --shape"),
        (["list", "--shape", "small", "--beta", "3"], 3, "--beta 3: expected two numbers"),
    ],
)
def test_bad_input_is_named_with_a_documented_exit_code(call, arguments, code, message):
    done = call("kernels", *arguments)
    assert done.code == code
    assert message in done.message
    assert done.out == ""


def test_list_counts_the_programs_of_molecules(call):
    closed = succeed(call("kernels", "list", "h2o.xyz", "--basis", "cc-pvdz", "--json")).json
    assert closed["shapes"] == [[5, 19, 84]]
    assert closed["buckets"] == [[32, 128]]
    assert 1 <= closed["neffs"] == len(closed["programs"]) <= 4
    radical = succeed(call("kernels", "list", "nh2.xyz", "--basis", "cc-pvdz", "--json")).json
    assert radical["shapes"] == [[5, 19, 84], [4, 20, 84]]
    assert radical["neffs"] <= 7
    text = succeed(call("kernels", "list", "--shape", "20,30,90", "--beta", "18,32")).out
    assert "alpha-beta pairs" in text and "bucket of nvir 32, naux 128" in text
    assert "K3" in succeed(call("kernels", "list")).out
    many = ("kernels", "list", "--shape", "medium", "--cores", "2")
    assert succeed(call(*many, "--json")).json["b_bytes_by_core"] == [
        8 * 25_165_824,
        6 * 25_165_824,
    ]  # blocks of B
    assert "B on 2 cores: 352.32 MB sent, at most 201.33 MB to one core" in succeed(call(*many)).out


def test_check_passes_for_a_backend_that_keeps_its_contract(call):
    done = succeed(call("kernels", "check", "--lane", "cpu", "--threads", "1"))
    assert "FAILED" not in done.out
    assert (
        done.out.splitlines()[-1] == f"{len(contract.CASES)} of {len(contract.CASES)} blocks agree"
    )


def test_check_obeys_the_rules_of_the_chip_that_is_named(call, monkeypatch):
    monkeypatch.setattr(contract, "CASES", contract.CASES[:1])
    seen = []
    monkeypatch.setattr(
        contract,
        "examine",
        lambda backend, case: seen.append(backend.describe()["target"]) or FOUND,
    )
    for target in ("trn1", "trn2"):
        succeed(call("kernels", "check", "--target", target, "--threads", "1"))
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    succeed(call("kernels", "check", "--threads", "1"))
    assert seen == ["gen2", "gen3", "gen3"]
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    assert call("kernels", "check", "--threads", "1").code == 3


class Swapped(CpuBackend):
    """Puts the terms of a pair where those of the pair before it belong."""

    def pair_terms(self, left, right, tile):
        found = super().pair_terms(left, right, tile)
        exchange = None if found.exchange is None else np.roll(found.exchange, 1, axis=1)
        return PairTerms(np.roll(found.direct, 1, axis=1), exchange)


def test_check_ends_with_8_for_a_backend_that_does_not(call, monkeypatch):
    monkeypatch.setattr(registry, "select", lambda name, precision, threads: (Swapped(1), "test"))
    done = call("kernels", "check", "--lane", "cpu", "--threads", "1")
    assert done.code == 8
    assert "FAILED" in done.out
    assert "misses its contract in" in done.message


def test_plan_predicts_time_and_memory_with_the_dispatch_apart(call, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(rates, "measure", lambda backend, count: rates.Rates())
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
    assert (
        trn1["calls"] == 3 and trn1["neffs"] == 2
    )  # alpha and beta share a program, alpha-beta has its own
    assert trn1["dispatch"] == pytest.approx(3 * 1.3e-3)
    assert trn1["available"] == 16 * 2**30 and facts["trn2"]["available"] == 12 * 2**30
    blocks = 2 * 8 * 128 * 128 * 4  # B of two spins, eight padded orbitals each
    assert blocks < trn1["memory"] < 2 * blocks
    assert 0.0 < trn1["device"] <= trn1["slowest"] < trn1["queued"] < trn1["dispatch"]
    assert [
        facts[place]["cores"] for place in ("trn1", "trn1, 2 cores", "trn2", "trn2, 8 cores")
    ] == [1, 2, 1, 8]
    text = succeed(call(*arguments)).out
    assert "pair energies, predicted" in text and "trn2, 8 cores, lane nki" in text
    assert "trn1, lane nki, 3 calls, 2 NEFFs" in text
