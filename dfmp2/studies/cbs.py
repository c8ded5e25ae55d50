"""Energies at the complete-basis-set limit, from runs in two basis sets (`dfmp2.mp2.composite`),
optionally with CCSD(T) in a small one (`dfmp2.studies.composite`).

    E(MP2, limit) = E(HF, limit) + E_SS(limit) + E_OS(limit)
    E(composite)  = E(MP2, limit) + [E(CCSD(T)) - E(MP2)] in the small basis
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from dfmp2.errors import InputError, Option
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.composite import CompositeResult, combine
from dfmp2.mp2.result import OF_MP2, OF_SCALED_MP2, MP2Result
from dfmp2.options import Options
from dfmp2.options.methods import CUSTOM
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study
from dfmp2.studies.composite import EXPECTED, CompositeOptions, Run, at_level
from dfmp2.studies.runs import CarryOutKeywords, carry_out
from dfmp2.studies.task import Failures, Numbers, Results, Step, Task

COMPOSITE = "composite_total_energy"


def basis_set_limit(
    molecule: Molecule,
    options: Options,
    **how: Unpack[CarryOutKeywords],
) -> Study:
    """Energies at the basis-set limit.

    Parameters
    ----------
    molecule : what to compute
    options : of every run, or a level made by `dfmp2.studies.composite.at_level`; `basis` is a pair
        with brackets such as cc-pv[tq]z, and fitting sets may be written likewise; with a
        correction it may be a single basis
    how : as in `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study whose values are `cbs_total_energy` and its summands, such as `cbs_scf_total_energy`,
    `cbs_correlation_energy` and `cbs_dispersion_energy`, those of MP2 with spin components and SCS
    and SOS energies (`cbs_mp2_...`; not for kappa-MP2), and with a correction `delta_correction`
    and `composite_total_energy`, all in hartree

    Raises
    ------
    Dfmp2Error : errors that can be detected in advance, before any run; then that of a failed run
    """
    level = options
    if not isinstance(options, CompositeOptions):
        level = at_level(options)
    if not isinstance(level, CompositeOptions):
        raise InputError(Option("basis", options.basis[:60]), f": {EXPECTED}")
    runs = level.runs
    steps = [
        Step(
            name=run.part.name,
            who=f"{molecule.name} in {run.options.basis}",
            molecule=molecule,
            options=run.options,
            compute=run.compute,
        )
        for run in runs
    ]

    def evaluate(results: Results, _failures: Failures, complete: bool) -> Numbers:
        whole = None
        if complete:
            whole = combine([(run.part, results[run.part.name]) for run in runs])
        notes = level.notes([] if whole is None else [whole])
        settings = {**level.settings(), "frozen_core": level.frozen_core}
        values = {}
        if whole is not None:
            values = _values(whole, level)
        return Numbers(
            settings=settings, notes=notes, values=values, table=_table(results, runs, level, whole)
        )

    what = f"energy of {molecule.described}"
    if level.bracket is not None:
        what = f"basis set limit of {molecule.described}"
    return carry_out(
        Task(
            kind="cbs", what=what, molecule=molecule, options=level, steps=steps, evaluate=evaluate
        ),
        **how,
    )


def _table(
    results: Results, runs: Sequence[Run], level: CompositeOptions, whole: CompositeResult | None
) -> dict[str, Column]:
    """The energies of both basis sets, and of the limit when it is known."""
    shown = [run.part.name for run in runs if run.compute is None and run.part.name in results]
    rows = [results[name] for name in shown]
    if not rows:
        return {}
    if whole is not None and len(shown) > 1:
        shown.append(f"limit {level.basis}")
        rows.append(whole)
    table = {"basis": Column(tuple(shown), "", "basis set, or the limit")}
    names = [*rows[0].summands, "total_energy"]
    if all(run.method == "mp2" for run in rows):
        names = [rows[0].mean_field_name, *OF_MP2]
    for name in names:
        energies = [_uncorrected(run, name) for run in rows]
        table[name] = Column(tuple(energies), "hartree", name.replace("_", " "))
    return table


def _uncorrected(result: MP2Result, name: str) -> float:
    """An energy of a result, without the correction, Eh."""
    energy: float = getattr(result, name)
    if name == "total_energy" and isinstance(result, CompositeResult):
        energy -= result.correction or 0.0
    return energy


def _values(whole: CompositeResult, level: CompositeOptions) -> dict[str, Dataset]:
    method = level.correlation
    reference = whole.mean_field_name
    names = [*whole.summands, "total_energy"]
    if method.scaled_mp2:
        names += [*OF_MP2, *OF_SCALED_MP2]
    if method.name == CUSTOM:
        names.append("scaled_mp2_correlation_energy")
    prefix = ""
    how = {}
    others = f"in {level.basis}"
    if level.bracket is not None:
        prefix = "cbs_"
        scf, correlation = level.formulas
        both = f"limit, {scf.name} and {correlation.name}"
        how = {
            reference: f"limit, {scf.name}",
            "total_energy": both,
            "mp2_total_energy": both,
            "dispersion_energy": "without a basis set",
        }
        others = f"limit, {correlation.name}"
    values = {}
    for name in names:
        values[f"{prefix}{name}"] = Dataset(
            _uncorrected(whole, name), "hartree", how.get(name, others)
        )
    if whole.correction is not None:
        values["delta_correction"] = Dataset(
            whole.correction, "hartree", f"CCSD(T) - {method.title}, small basis"
        )
        values[COMPOSITE] = Dataset(whole.total_energy, "hartree", "sum of both")
    return values
