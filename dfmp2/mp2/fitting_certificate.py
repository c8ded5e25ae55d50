"""The fitting error of E(SCF) and E(corr), measured in the molecule with four-centre integrals
(`--certify-fit`).

E(SCF) is compared with the conventional solution closest to the fitted one
(`dfmp2.scf.conventional`); with a functional, E(SCF) is the energy of its SCF. E(corr) is compared
with that of the conventional orbitals, with their energies and exact integrals: unscaled, a sum
over the correlated occupied orbitals of both spins,

    E(corr) = sum_i x_i      x_i = sum_jab (ia|jb) [2 (ia|jb) - (ib|ja)] / D                                   RHF
                             x_i = 1/2 sum_jab (ia|jb) [(ia|jb) - (ib|ja)] / D + 1/2 sum_JaB (ia|JB)^2 / D     UHF

with j of the spin of i and J of the other spin. Up to EXACT_ROWS orbitals, all x_i are computed and
the error is exact. Beyond that, a sample is drawn. The energy is then fitted again, on the orbitals
of the conventional SCF with a dense fitting set, which gives f_i, the sum of the pair energies of
orbital i over j. The small error of this set is estimated from the sample,

    E(corr) = sum_i f_i - sum_h N_h mean_h(f - x)      variance = sum_h N_h^2 (1 - n_h/N_h) s_h^2 / n_h

over strata h of N_h orbitals, neighbours in energy, of which n_h are drawn. The uncertainty is half
the 95 % interval of Student's t with the degrees of freedom of that variance (Cochran, Sampling
Techniques, 3rd ed. (1977), sections 5.3 and 5.4), plus the effect of the remaining coupling of
occupied and virtual orbitals and the rounding of f_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from dfmp2.arrays import Array
from dfmp2.backends.registry import float64_backend
from dfmp2.errors import ConvergenceError, Message
from dfmp2.host import resources
from dfmp2.host.scratch import Room, Space
from dfmp2.integrals.four_center import exact_rows
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.calculation import NOTHING, BuildB, Calculation
from dfmp2.mp2.certificate import pair_energies_to_tolerance
from dfmp2.mp2.pairs import PairEnergies, PairOperands, number_of_pairs
from dfmp2.mp2.result import FittingCertificate
from dfmp2.planning.memory import MemoryPlan
from dfmp2.planning.sizes import exact_row_shares
from dfmp2.planning.system import densely_fitted
from dfmp2.progress import Collector, Relay, Stopwatch
from dfmp2.scf.conventional import conventional_scf
from dfmp2.scf.integrals import ScfIntegrals
from dfmp2.scf.reference import Reference

SEED = 1
CONFIDENCE = 0.95
SCF_ROUNDING = 1e-9  # Eh; neglected integrals in J and K, and rounding
RESPONSE = 0.5  # of E(corr) to the remaining F_ia, Eh per Eh


def certify_fit(
    calculation: Calculation, reference: Reference, pairs: PairEnergies, build_b: BuildB
) -> FittingCertificate | None:
    """The fitting errors of a calculation; None, with a warning, if the conventional SCF is not
    found.

    Parameters
    ----------
    reference, pairs : results with fitted integrals
    build_b : builds B of a reference (`dfmp2.mp2.energy`)
    """
    listener = calculation.listener
    try:
        conventional, scf_error, scf_uncertainty, left = _scf_error(calculation, reference)
    except ConvergenceError as error:
        listener.warning(Message("the fitting error is not certified: ", error.message))
        return None
    resources.return_memory()
    spaces = calculation.spaces(conventional)
    counts = [space.nocc for space in spaces]
    strata = drawn(counts)
    chosen = [np.sort(np.concatenate([pick for _, pick in spin])) for spin in strata]
    rows = _exact_energies(calculation, spaces, chosen)
    fitted = [np.zeros(count) for count in counts]
    rounding = 0.0
    if sum(map(len, chosen)) < sum(counts):
        resources.return_memory()
        again, rounding = _fitted_again(calculation, conventional, build_b)
        fitted = orbital_energies(again)
    energy, spread = estimate(fitted, rows, strata)
    pairs_without = number_of_pairs(
        [count - len(picks) for count, picks in zip(counts, chosen, strict=True)]
    )
    return FittingCertificate(
        correlation_error=pairs.opposite_spin_energy + pairs.same_spin_energy - energy,
        correlation_uncertainty=spread + rounding + RESPONSE * left + SCF_ROUNDING,
        orbitals=sum(counts),
        sampled_orbitals=sum(map(len, chosen)),
        pairs=number_of_pairs(counts),
        sampled_pairs=number_of_pairs(counts) - pairs_without,
        seed=SEED,
        scf_error=scf_error,
        scf_uncertainty=scf_uncertainty,
    )


def _scf_error(
    calculation: Calculation, reference: Reference
) -> tuple[Reference, float | None, float | None, float]:
    """The conventional reference, the error of E(SCF) with its uncertainty, and the remaining
    coupling F_ia, Eh."""
    if reference.scf_type == "conventional":
        return reference, None, None, 0.0
    system, memory = calculation.system, _plan(calculation)
    with Space(calculation.setup.scratch, memory.disk) as space:
        integrals = ScfIntegrals(
            auxmole=system.jk_auxmole,
            place="memory" if memory.scf_fits_in_core else "disk",
            threads=calculation.setup.active,
            room=Room(space, memory.pair_bytes, memory.read_bytes),
            grid_room=memory.grid_room,
        )
        conventional = conventional_scf(
            system.mole,
            reference,
            calculation.options,
            integrals,
            calculation.listener,
            charges=system.molecule.point_charges,
        )
    error = reference.scf_total_energy - conventional.reference.scf_total_energy
    uncertainty = conventional.below + SCF_ROUNDING
    return conventional.reference, error, uncertainty, conventional.coupling


def drawn(
    counts: Sequence[int], seed: int = SEED
) -> list[list[tuple[NDArray[np.intp], NDArray[np.intp]]]]:
    """Strata of the occupied orbitals of each spin, by energy, and the orbitals drawn from each.

    Parameters
    ----------
    counts : sequence of int
        Correlated occupied orbitals of each spin.
    """
    generator = np.random.default_rng(seed)
    return [
        [
            (stratum, np.sort(generator.choice(stratum, share, replace=False)))
            for stratum, share in zip(
                np.array_split(np.arange(count), len(shares)), shares, strict=True
            )
        ]
        for count, shares in zip(counts, exact_row_shares(counts), strict=True)
    ]


def _exact_energies(
    calculation: Calculation, spaces: list[ActiveSpace], chosen: Sequence[NDArray[np.intp]]
) -> list[Array]:
    """x_i of the chosen orbitals of each spin, Eh; NaN for the others."""
    memory = _plan(calculation)
    threads = calculation.setup.active
    total = sum(map(len, chosen))
    calculation.listener.stage(
        f"four-centre integrals of {total} of {sum(space.nocc for space in spaces)} occupied "
        "orbitals"
    )
    mole, of_spins = calculation.system.mole, []
    at_once = max(1, memory.row_bytes // memory.exact_rows.least)
    for spin, (space, picks) in enumerate(zip(spaces, chosen, strict=True)):
        energies = np.full(space.nocc, np.nan)
        for i, integrals in exact_rows(mole, space, picks.tolist(), spaces, threads, at_once):
            energies[i] = orbital_energy(integrals, spaces, spin, i)
        of_spins.append(energies)
    return of_spins


def orbital_energy(
    integrals: Sequence[Array], spaces: Sequence[ActiveSpace], spin: int, i: int
) -> float:
    """x_i of the module's equations, Eh.

    Parameters
    ----------
    integrals : sequence of array
        (ia|jb) of this i with j, b of each spin: (nvir, nocc of j, nvir of j), Eh.
    """
    spin_space, total = spaces[spin], 0.0
    for other, (values, space) in enumerate(zip(integrals, spaces, strict=True)):
        gaps = spin_space.eps_occ[i] - spin_space.eps_vir[:, None] - space.eps_vir
        for j in range(space.nocc):
            v = values[:, j]
            scaled = v / (gaps + space.eps_occ[j])
            direct = float(np.vdot(scaled, v))
            if other != spin:
                total += direct / 2
            else:
                exchange = float(np.vdot(scaled, v.T))
                total += 2 * direct - exchange if len(spaces) == 1 else (direct - exchange) / 2
    return total


def orbital_energies(pairs: PairEnergies) -> list[Array]:
    """f_i of each spin, Eh: the pair energies of an orbital with all others."""
    opposite, same = pairs.opposite_spin, pairs.same_spin
    if len(same) == 1:
        return [opposite.sum(axis=1) + same[0].sum(axis=1)]
    return [
        opposite.sum(axis=1) / 2 + same[0].sum(axis=1),
        opposite.sum(axis=0) / 2 + same[1].sum(axis=1),
    ]


def _fitted_again(
    calculation: Calculation, reference: Reference, build_b: BuildB
) -> tuple[PairEnergies, float]:
    """Pair energies on the orbitals of the conventional SCF with the dense fitting set, and their
    precision, Eh."""
    options = replace(calculation.options, stability="off", transform="host", allow_small_gap=True)
    setup = replace(calculation.setup, options=options)
    memory = _plan(calculation)
    collector = Collector(_Progress(calculation.listener))
    with Space(setup.scratch, memory.disk) as space:
        again = replace(
            calculation,
            system=densely_fitted(calculation.system),
            setup=setup,
            plan=replace(calculation.plan, memory=memory),
            space=space,
            listener=collector,
            clock=Stopwatch(),
            checkpoint=NOTHING,
        )
        fitted = build_b(again, reference)
        collector.stage("pair energies with the dense fitting set")
        # A backend without float64 may have no programs for these sizes
        backend = float64_backend(setup.backend)
        precision = options.precision if backend is setup.backend else "fp64"
        pairs, _, certificate = pair_energies_to_tolerance(
            PairOperands(
                b=fitted.b,
                spaces=again.spaces(reference),
                stream_bytes=memory.tensor_bytes,
                threads=setup.active,
            ),
            backend,
            precision=precision,
            tolerance=options.tolerance,
            listener=collector,
        )
    return pairs, 0.0 if certificate is None else certificate.correlation_error


class _Progress(Relay):
    """Relays stages and pairs only; the run itself has already issued its warnings."""

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        pass

    def warning(self, text: str) -> None:
        pass


def estimate(
    fitted: Sequence[Array],
    rows: Sequence[Array],
    strata: Sequence[Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]]],
) -> tuple[float, float]:
    """E(corr) from the energies f_i of all orbitals and x_i of those drawn, and half its 95 %
    interval, Eh.

    Parameters
    ----------
    fitted, rows : sequence of array
        f_i and x_i, (nocc,) for each spin; x_i only where an orbital was drawn.
    strata : sequence
        As returned by `drawn`.
    """
    energy = math.fsum(value for values in fitted for value in values)
    variances, freedom = [0.0], [0.0]
    for f, x, of_spin in zip(fitted, rows, strata, strict=True):
        for stratum, pick in of_spin:
            if not pick.size:
                continue
            missed = f[pick] - x[pick]
            n = pick.size
            count = stratum.size
            energy -= count * math.fsum(missed) / n
            if n < count:
                variance = count**2 * (1 - n / count) * float(missed.var(ddof=1)) / n
                variances.append(variance)
                freedom.append(variance**2 / (n - 1))
    variance = math.fsum(variances)
    if variance == 0.0:
        return energy, 0.0
    quantile = float(stdtrit(variance**2 / math.fsum(freedom), (1 + CONFIDENCE) / 2))
    return energy, quantile * math.sqrt(variance)


def _plan(calculation: Calculation) -> MemoryPlan:
    """Memory plan of the certificate, with which the calculation was planned."""
    return cast(MemoryPlan, calculation.plan.memory.certificate)
