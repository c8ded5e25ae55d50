"""The error budget of the energies of a study: of its difference of energies, or its limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dfmp2.mp2.composite import Part, combine
from dfmp2.mp2.error_budget import ErrorBudget
from dfmp2.mp2.result import MP2Result

if TYPE_CHECKING:
    from dfmp2.output.study import Study

NO_BUDGET = ("frequencies", "thermochemistry")  # they have no energy difference


def budget_of_study(study: Study) -> ErrorBudget | None:
    """The error budget of the energies of a study; None if there are none, or none yet."""
    runs = list(study.results.values())
    if not study.complete or len(study.runs) < 2 or study.kind in NO_BUDGET:
        return None
    if study.kind == "optimization":
        return list(study.path.values())[-1].error_budget
    if study.kind == "interaction":
        return _of_interaction(study, "CP-corrected", "-in-complex")
    if study.kind == "irc":
        minimum = study.runs[str(study.settings["backward_run"])]
        return of_difference(
            [((1.0, 1.0), study.runs["transition-state"]), ((-1.0, -1.0), minimum)],
            "The barrier forwards",
        )
    if study.kind == "reaction":
        parts = [
            ((one["coefficient"], one["coefficient"]), study.results[one["run"]])
            for one in study.settings["species"]
        ]
        return of_difference(parts, "The reaction energy")
    if study.kind == "scan":
        return _of_scan(list(study.path.values()))
    if "parts" in study.settings:
        return runs[0].error_budget
    return _of_limit(study, runs)


def uncorrected_budget_of_study(study: Study) -> ErrorBudget | None:
    """The error budget of an interaction energy without counterpoise correction; None for other
    studies."""
    if study.kind != "interaction" or not study.complete:
        return None
    return _of_interaction(study, "uncorrected", "-alone")


def of_difference(
    parts: Sequence[tuple[tuple[float, float], MP2Result]], energy: str
) -> ErrorBudget:
    """The budget of a difference, whose errors are relative to the same as those of its energies:
    at a basis-set limit, a complete basis set.

    Parameters
    ----------
    parts : sequence of ((float, float), MP2Result)
        Weights of E(SCF) and E(corr), and result of each energy.
    energy : str
        What the difference is, as in `ErrorBudget`.
    """
    from dfmp2.mp2.error_of_difference import combined

    _, result = parts[0]
    return combined(parts, energy, exact=result.error_budget.exact)


def _of_interaction(study: Study, scheme: str, ending: str) -> ErrorBudget:
    """The budget of the interaction energy that uses the fragment runs with this suffix."""
    results = study.results
    fragments = [((-1.0, -1.0), run) for name, run in results.items() if name.endswith(ending)]
    return of_difference(
        [((1.0, 1.0), results["complex"]), *fragments], f"The {scheme} interaction energy"
    )


def _of_scan(points: Sequence[MP2Result]) -> ErrorBudget:
    """The largest budget of the difference of a point and the lowest or highest one."""
    by_energy = sorted(points, key=lambda run: run.total_energy)
    pairs = [(run, by_energy[0]) for run in by_energy[1:]]
    pairs += [(run, by_energy[-1]) for run in by_energy[:-1]]
    differences = [
        of_difference([((1.0, 1.0), run), ((-1.0, -1.0), end)], "The difference of two points")
        for run, end in pairs
    ]
    return max(differences, key=_largest_last)


def _largest_last(budget: ErrorBudget) -> float:
    """The total of a budget, Eh; infinite if unknown."""
    return math.inf if budget.total is None else budget.total


def _of_limit(study: Study, runs: Sequence[MP2Result]) -> ErrorBudget:
    """The budget of a basis-set limit in a file of an earlier version, which lacks the weights: they
    are derived from the limit."""
    method = "correlation_energy"
    if f"cbs_{method}" not in study.values:
        method = f"mp2_{method}"
    reference = next(
        name
        for name in ("scf_total_energy", "functional_energy", "hf_total_energy")
        if f"cbs_{name}" in study.values
    )
    shares = []
    for name in (reference, method):
        smaller, larger = (getattr(run, name) for run in runs)
        if larger == smaller:
            shares.append(1.0)
        else:
            shares.append((study.values[f"cbs_{name}"].value - smaller) / (larger - smaller))
    names = study.settings["basis_sets"]
    parts = [Part(names[0], *(1.0 - share for share in shares)), Part(names[1], *shares)]
    return combine(list(zip(parts, runs, strict=True))).error_budget
