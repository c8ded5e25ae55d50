"""The certificate bounds the real error, sees planted faults, and is exact for small molecules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import NumericalError
from dfmp2.mp2 import certificate, precision
from dfmp2.mp2.pairs import pair_energies
from dfmp2.orbitals import ActiveSpace
from dfmp2.progress import Collector, Listener
from tests.test_backends import fitted

CPU = CpuBackend(2)


class Quiet(Listener):
    def warning(self, text):
        pass


def operands(spaces, kind):
    return [CPU.put(*space, kind) for space in spaces]


def energy(pairs):
    return pairs.same_spin_energy + pairs.opposite_spin_energy


@pytest.mark.parametrize("spaces", [[fitted(6, 9, 40)], [fitted(5, 9, 40, 1), fitted(4, 10, 40, 2)]])
def test_exact_when_every_pair_is_redone(spaces):
    exact, mixed = operands(spaces, "fp64"), pair_energies(operands(spaces, "mixed"), CPU)
    found = certificate.certify(mixed, exact, CPU, 1e-7)
    assert found.sampled == found.pairs
    assert found.correlation_error == pytest.approx(abs(energy(mixed) - energy(pair_energies(exact, CPU))), rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_estimate_covers_the_error_when_sampling(seed):
    spaces = [fitted(40, 20, 90, seed)]
    exact, mixed = operands(spaces, "fp64"), pair_energies(operands(spaces, "mixed"), CPU)
    found = certificate.certify(mixed, exact, CPU, 1e-7)
    error = abs(energy(mixed) - energy(pair_energies(exact, CPU)))
    assert found.sampled < 0.1 * found.pairs
    assert error <= found.correlation_error < 1e-5 * abs(energy(mixed))


@pytest.mark.parametrize("restricted", [True, False])
def test_a_refused_sample_is_enlarged_before_all_is_repeated(restricted):
    spaces = [fitted(40, 20, 90)] if restricted else [fitted(40, 20, 90, 1), fitted(36, 20, 90, 2)]
    exact = operands(spaces, "fp64")
    right = pair_energies(exact, CPU)
    noise = np.random.default_rng(4).normal(1, 1e-4, right.opposite_spin.shape)
    if restricted:
        noise = np.triu(noise) + np.triu(noise, 1).T
    noisy = replace(right, opposite_spin=right.opposite_spin * noise)
    first = certificate.certify(noisy, exact, CPU, 1.0)
    second = certificate.certify(noisy, exact, CPU, 0.9 * first.correlation_error)
    hopeless = certificate.certify(noisy, exact, CPU, 1e-30)
    assert first.sampled == hopeless.sampled < second.sampled <= certificate.EFFORT * first.sampled < second.pairs
    assert abs(energy(noisy) - energy(right)) <= second.correlation_error < first.correlation_error


def test_a_wrong_factor_on_all_pairs_is_seen():
    spaces = [fitted(40, 20, 90)]
    exact = operands(spaces, "fp64")
    right = pair_energies(exact, CPU)
    wrong = replace(right, opposite_spin=right.opposite_spin * (1 + 1e-4))
    found = certificate.certify(wrong, exact, CPU, 1e-7)
    assert found.correlation_error > 0.8 * abs(energy(wrong) - energy(right))
    assert not found.accepted


def to_tolerance(kind, tolerance, listener=None):
    b, eps_occ, eps_vir = fitted(6, 9, 40)
    space = ActiveSpace(np.zeros((0, 6)), np.zeros((0, 9)), eps_occ, eps_vir)
    return precision.pair_energies_to_tolerance([b], [space], CPU, kind, tolerance, listener or Quiet())


def test_auto_repeats_in_float64_what_the_certificate_refuses():
    listener = Collector(Quiet())
    pairs, ran, found = to_tolerance("auto", 1e-30, listener)
    assert ran == "fp64"
    assert found.repeated_in_fp64
    assert "repeated in float64" in listener.warnings[0]
    assert energy(pairs) == energy(to_tolerance("fp64", 1e-30)[0])


def test_mixed_refuses_what_the_certificate_refuses():
    with pytest.raises(NumericalError, match="--precision fp64"):
        to_tolerance("mixed", 1e-30)


def test_fp64_needs_no_certificate():
    assert to_tolerance("fp64", 1e-30)[1:] == ("fp64", None)


def test_nan_names_its_pair():
    space = fitted(3, 4, 5)
    space[0][1, 2, 3] = np.nan
    with pytest.raises(NumericalError, match=r"pair \(1, 2\)"):
        pair_energies(operands([space], "fp64"), CPU)
