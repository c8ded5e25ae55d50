"""The error budget of a combination of energies of several runs, above all of a difference.

In a difference of energies, sum_r w_r E_r over runs r, most of the fitting errors cancel as far as
the bonds are the same:

    measured in every run       |sum_r w_r e_r| + uncertainties
    else                        CANCELLING sum_r |w_r| e_r + changed
    changed                     BETWEEN |sum_r w_r E_r| + BOND dN + HYDROGEN dN_H + ELECTRON dn
                                + |sum_A w_A e_A| in E(SCF), over single atoms and ions A

dN are the orders of the bonds that are made, broken, stretched or moved to another pair of
elements, from the geometry (`dfmp2.molecule.elements.bond_orders`), and dN_H those of bonds to
hydrogen; dn is the change of the number of unpaired electrons or, if larger, of all electrons. The
typical error of a reaction energy is that for two molecules like this one, with one bond made and
another one broken.

With a functional BETWEEN, BOND, HYDROGEN and ELECTRON of E(SCF) are those of Hartree-Fock, where the
errors of J and K of a hydrogen atom cancel. With a functional, and in anions, they do not, and so
large an error does not remain in a molecule: e_A is that of the free atom, without what the estimate
for the atom covers unless it is hydrogen. The constants are defined next to those of one run, in
`dfmp2.mp2.error_estimates` and `dfmp2.mp2.fitting_estimates`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dfmp2.mp2.error_budget import (
    ESTIMATED,
    EXACT,
    KINDS,
    MEASURED,
    SOURCES,
    UNKNOWN_BASIS,
    ErrorBudget,
    Share,
    Source,
)
from dfmp2.mp2.error_estimates import (
    CANCELLING,
    CHANGED,
    GRID_LEAST,
    bond_orders_of,
    error_sources,
    grid_changes,
    signed_source,
)
from dfmp2.mp2.fitting_estimates import (
    BONDED,
    bonded_atoms,
    free_atom_error,
    metal_error,
    method_factor,
    open_shell_metals,
)
from dfmp2.options.methods import MP2
from dfmp2.units import KJ_PER_MOL_PER_HARTREE, counted_text

if TYPE_CHECKING:
    from dfmp2.mp2.result import MP2Result

NEGLIGIBLE = 1e-9  # Eh, rounding of what cancels in single atoms
Weights = tuple[float, float]  # weights of a run's E(SCF) and E(corr) in a combination of energies


def combined(
    parts: Sequence[tuple[Weights, MP2Result]],
    energy: str,
    *,
    cancelling: float = CANCELLING,
    exact: str = EXACT,
) -> ErrorBudget:
    """The budget of a combination of energies of several runs, or of limits of two basis sets.

    Errors of precision, convergence and metric are independent: they add. Fitting errors are nearly
    the same on both sides of a difference, except for the bonds that change. If every run has
    measured its own, they are combined with their signs; otherwise part of their sum remains,
    plus a contribution of the changed bonds.

    Parameters
    ----------
    parts : sequence of tuple[Weights, MP2Result]
        Weights and result of each run.
    energy, exact : str
        As in ErrorBudget.
    cancelling : float
        Part of the fitting errors that remains; 1 if the combination is not a difference.
    """
    basis_set = _of_limit(parts)
    parts = [
        ((weights[0] * own[0], weights[1] * own[1]), run)
        for weights, result in parts
        for own, run in result.terms
    ]
    measured = all(
        result.fitting_certificate is not None
        and result.fitting_certificate.correlation_error is not None
        and result.options.correlation is MP2
        for _, result in parts
    )
    if not measured:  # errors measured in some runs say nothing about the others
        parts = [(weights, replace(run, fitting_certificate=None)) for weights, run in parts]
    budgets = [(weights, error_sources(result)) for weights, result in parts]
    by_grid = all(grid_changes(result) is not None for _, result in parts)
    combination = {}
    for key in budgets[0][1]:
        fitting = key.endswith("fitting")
        shares: tuple[Share | None, Share | None]
        if key == "grid" and by_grid:
            combination[key] = _combined_grid(parts)
            continue
        if key == "basis_set":
            shares = basis_set
        elif fitting and (measured or cancelling < 1.0):
            shares = _cancelled(parts, budgets, key, cancelling)
        else:
            shares = _added(budgets, key, 0), _added(budgets, key, 1)
        combination[key] = Source(SOURCES[key], *shares)
    return ErrorBudget(combination, energy, exact)


def _of_limit(parts: Sequence[tuple[Weights, MP2Result]]) -> tuple[Share, Share]:
    """Remaining basis-set errors of E(SCF) and E(corr), from results in two basis sets each."""
    shares = []
    for which, energy in enumerate(("mean_field_energy", "correlation_energy")):
        beyond, between = [], []
        for weights, result in parts:
            runs = [run for _, run in result.terms]
            if len(runs) < 2:
                return UNKNOWN_BASIS, UNKNOWN_BASIS
            smaller, larger = (getattr(run, energy) for run in runs)
            beyond.append(weights[which] * (getattr(result, energy) - larger))
            between.append(weights[which] * (larger - smaller))
        step = math.fsum(beyond)
        how = "the limit minus the larger basis"
        if not any(beyond):  # as for --scf-formula largest
            step = math.fsum(between)
            how = "the larger basis minus the smaller one"
        shares.append(Share(abs(step), ESTIMATED, how))
    return shares[0], shares[1]


def _combined_grid(parts: Sequence[tuple[Weights, MP2Result]]) -> Source:
    """The integration grid if every run has measured its error: changes with their signs, the
    rest by magnitude."""
    scf, correlation, largest, least = [], [], [], []
    for (scf_weight, correlation_weight), result in parts:
        changes = grid_changes(result) or (0.0, 0.0)
        scf.append(scf_weight * changes[0])
        correlation.append(correlation_weight * changes[1])
        largest.append(max(abs(scf[-1]), abs(correlation[-1])))
        atoms = len(result.molecule.real_symbols)
        least.append(max(abs(scf_weight), abs(correlation_weight)) * GRID_LEAST * atoms)
    return signed_source(
        math.fsum(scf),
        math.fsum(correlation),
        largest=math.fsum(largest),
        least=math.fsum(least),
        finer=f"finer grids in {counted_text(len(parts), 'run')}",
    )


Budgets = Sequence[tuple[Weights, Mapping[str, Source]]]


def _added(budgets: Budgets, key: str, which: int) -> Share | None:
    """The sum of the shares of all runs in E(SCF) (`which` 0) or E(corr) (1); None if no run has
    one."""
    weighted = []
    for weights, sources in budgets:
        share = (sources[key].scf, sources[key].correlation)[which]
        if share is not None and weights[which]:
            weighted.append((abs(weights[which]), share))
    if not weighted:
        return None
    unknown = [share for _, share in weighted if share.value is None]
    if unknown:
        return unknown[0]
    value = math.fsum(weight * share.value for weight, share in weighted if share.value is not None)
    kind = max((share.kind for _, share in weighted), key=KINDS.index)  # the least certain
    return Share(value, kind, f"sum over {counted_text(len(weighted), 'run')}")


def _cancelled(
    parts: Sequence[tuple[Weights, MP2Result]], budgets: Budgets, key: str, cancelling: float
) -> tuple[Share | None, Share | None]:
    """Shares of a fitting set in a difference: the part of their sum that does not cancel, and the
    changed bonds."""
    shares = list[Share | None]()
    for which, energy in enumerate(("scf", "correlation")):
        measured = _of_measured(budgets, key, which)
        if measured is not None:
            shares.append(measured)
            continue
        share = _added(budgets, key, which)
        if share is not None and share.value:  # nothing is fitted where it is 0
            how = f"{100 * cancelling:g} % of the {share.how}: the rest cancels"
            value = cancelling * share.value
            if (key, energy) in (("scf_fitting", "scf"), ("mp2_fitting", "correlation")):
                more, words = _changed(parts, which, energy)
                value, how = value + more, f"{how}; {words}"
            share = Share(value, ESTIMATED, how)
        shares.append(share)
    return shares[0], shares[1]


def _of_measured(budgets: Budgets, key: str, which: int) -> Share | None:
    """The measured errors of the runs with their signs, uncertainties added; None if no run, or not
    every run that fits its integrals, has measured its error."""
    errors, uncertainties = [], []
    measured = False
    for weights, sources in budgets:
        share = (sources[key].scf, sources[key].correlation)[which]
        if share is None or share.value is None:
            return None
        error = share.error
        if error is not None:
            measured = True
        elif share.value == 0.0:  # nothing is fitted
            error = 0.0
        else:
            return None
        errors.append(weights[which] * error)
        uncertainties.append(abs(weights[which]) * (share.value - abs(error)))
    if not measured:
        return None
    error, uncertainty = math.fsum(errors), math.fsum(uncertainties)
    runs = counted_text(len(errors), "run")
    how = f"four-centre integrals in {runs}: {error:+.1e} Eh within {uncertainty:.1e} Eh"
    return Share(value=abs(error) + uncertainty, kind=MEASURED, how=how, error=error)


def _changed(
    parts: Sequence[tuple[Weights, MP2Result]], which: int, energy: str
) -> tuple[float, str]:
    """Fitting errors that remain because of changed bonds and spins, Eh, and how they are known."""
    constants = CHANGED[energy]
    between = unpaired = electrons = metal = 0.0
    orders: dict[tuple[str, str], float] = {}
    for weights, result in parts:
        weight = weights[which]
        between += weight * _estimated_between(result)
        unpaired += weight * (result.molecule.multiplicity - 1)
        electrons += weight * result.sizes.nelectron
        metal += weight * metal_error(result.molecule)
        for pair, order in bond_orders_of(result.molecule).items():
            orders[pair] = orders.get(pair, 0.0) + weight * order
    bond = math.fsum(abs(order) for pair, order in orders.items() if "H" not in pair)
    hydrogen = math.fsum(abs(order) for pair, order in orders.items() if "H" in pair)
    if any(open_shell_metals(result.molecule) for _, result in parts):
        each = constants.metal_electron
    else:
        each = constants.electron
    moved = max(abs(unpaired), abs(electrons))
    value = (
        constants.between * abs(between)
        + constants.bond * bond
        + constants.hydrogen * hydrogen
        + each * moved
    )
    if energy == "correlation":
        value += abs(metal)
        value *= max(method_factor(result) for _, result in parts)
    free = 0.0
    if energy == "scf":
        free = abs(math.fsum(weights[0] * free_atom_error(result) for weights, result in parts))
        value += free
    how = (
        f"{value:.1e} Eh for bond orders that change by {bond:.2f}, to hydrogen {hydrogen:.2f}, "
        f"{moved:g} electrons paired, unpaired or lost, and {abs(between):.1e} Eh between atoms"
    )
    if free > NEGLIGIBLE:
        how = f"{how}, and {free:.1e} Eh of single atoms"
    return value, how


def _estimated_between(result: MP2Result) -> float:
    """Possible fitting error between atoms, Eh; from bonds if the SCF has no estimate."""
    estimate = result.reference.interatomic_fitting_error
    if estimate is None:
        return BONDED * bonded_atoms(result.molecule)
    return estimate


def relative_errors(runs: Sequence[MP2Result | None]) -> tuple[float, ...]:
    """Expected errors of the energies relative to the lowest one, kJ/mol; NaN if unknown."""
    finished = [run for run in runs if run is not None]
    if not finished:
        return (math.nan,) * len(runs)
    lowest = min(finished, key=lambda run: run.total_energy)
    errors = []
    for run in runs:
        error: float | None = None
        if run is lowest:
            error = 0.0
        elif run is not None:
            parts = [((1.0, 1.0), run), ((-1.0, -1.0), lowest)]
            error = combined(parts, "the relative energy").total
        if error is None:
            errors.append(math.nan)
        else:
            errors.append(error * KJ_PER_MOL_PER_HARTREE)
    return tuple(errors)
