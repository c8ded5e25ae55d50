"""Float32 exchange early in the SCF: the same converged state, and never a float32 energy in the end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import dfmp2
from dfmp2.reference import density_fitting, exchange_schedule
from dfmp2.reference.exchange_schedule import ExchangeSchedule

FINAL = {"conv_tol": 1e-10, "conv_tol_grad": 1e-6}


def iterations(gradients, changes=None):
    """(was float32, converged) for each iteration of an SCF with these gradients."""
    fitted = SimpleNamespace(single=False)
    schedule = ExchangeSchedule(fitted)
    changes = changes or [0.0] * len(gradients)
    steps = []
    for gradient, change in zip(gradients, changes, strict=True):
        single = fitted.single
        envs = {"norm_gorb": gradient, "e_tot": -1.0 + change, "last_hf_e": -1.0, **FINAL}
        steps.append((single, schedule.converged(envs)))
    return steps


def test_switches_below_the_gradient_and_asks_for_two_float64_energies():
    steps = iterations([1.0, 0.1, 9e-4, 5e-7, 4e-7])
    assert [single for single, _ in steps] == [True, True, True, False, False]
    assert [done for _, done in steps] == [False, False, False, False, True]


def test_a_converged_first_iteration_in_float32_does_not_count():
    """Symmetry may fix the orbitals at once: the gradient is zero, the energy still a float32 one."""
    assert [done for _, done in iterations([0.0, 0.0, 0.0])] == [False, False, True]


def test_noise_ends_float32():
    steps = iterations([1.0, 0.1, 0.02, 0.004, 0.002, 0.0019, 0.0018])
    assert [single for single, _ in steps] == [True] * 6 + [False]


def test_an_energy_that_still_changes_is_not_converged():
    assert not any(done for _, done in iterations([1e-7] * 4, [1e-9] * 4))


@pytest.mark.parametrize("name", ["glycine", "nh2"])
def test_same_state_as_in_float64(name, monkeypatch):
    monkeypatch.setattr(density_fitting, "BLOCK_BYTES", 10**5)
    used = []
    build = density_fitting.coulomb_exchange

    def recorded(*arguments, single):
        used.append(single)
        return build(*arguments, single=single)

    monkeypatch.setattr(density_fitting, "coulomb_exchange", recorded)

    def run(precision, least):
        used.clear()
        monkeypatch.setattr(exchange_schedule, "SINGLE_LEAST", least)
        return dfmp2.run(f"inputs/{name}.xyz", "cc-pvdz", precision=precision, threads=2, stability="off")

    double = run("mixed", 10**6)  # the same float32 pair energies
    assert not any(used)
    run("fp64", 1)
    assert not any(used)
    mixed = run("mixed", 1)
    assert used[0] and not any(used[-2:])
    assert mixed.scf_total_energy == pytest.approx(double.scf_total_energy, abs=1e-9)
    assert mixed.mp2_correlation_energy == pytest.approx(double.mp2_correlation_energy, abs=1e-8)
