"""Energies at the limit of a complete basis set, from runs in two basis sets
(`dfmp2.mp2.extrapolation`).

    E(MP2, limit) = E(HF, limit) + E_SS(limit) + E_OS(limit)

By default E(HF) is that of the larger basis and the correlation energy goes as X^-3. A pair of
basis sets is written with brackets: cc-pv[tq]z is cc-pvtz and cc-pvqz, with cardinal numbers 3 and
4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option
from dfmp2.molecule.basis_parts import parse_parts, title_of
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.extrapolation import Formula, correlation_formula, default_correlation, scf_formula
from dfmp2.mp2.result import OF_MP2, MP2Result
from dfmp2.options import CUSTOM, SCS, SOS, Options
from dfmp2.output.hdf5 import Dataset
from dfmp2.output.study import Column, Study
from dfmp2.studies.runs import (
    CarryOutKeywords,
    Failures,
    Numbers,
    Results,
    Step,
    Task,
    carry_out,
    examine_steps,
)

METHOD_COLUMNS = ("correlation_energy", "total_energy")  # where it is not plain MP2


def basis_set_limit(
    molecule: Molecule,
    options: Options,
    *,
    scf: str = "largest",
    correlation: str | None = None,
    **how: Unpack[CarryOutKeywords],
) -> Study:
    """Energies at the basis set limit.

    Parameters
    ----------
    molecule : what to compute
    options : how; `basis` is a pair with brackets such as cc-pv[tq]z, fitting sets may be written
        likewise
    scf, correlation : names of formulas, see `dfmp2.mp2.extrapolation`; None is X^-3, for def2 its
        own exponent
    how : as of `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study; its values are `cbs_scf_total_energy`, `cbs_correlation_energy` and `cbs_total_energy` of
    the method, those of MP2 with its spin components and the SCS and SOS energies (`cbs_mp2_...`;
    not of kappa-MP2), all in hartree

    Raises
    ------
    Dfmp2Error : before any run what can be known before, then that of a failed run
    """
    if parse_parts(options.basis).mixed:
        raise InputError(
            Option("basis", title_of(options.basis)),
            ": the limit is that of one pair of basis sets for all atoms, such as cc-pv[tq]z; with "
            "core potentials cc-pv[tq]z-pp",
        )
    bracket = parse_bracket(options.basis)
    if options.scf_from is not None:
        raise InputError(
            Option("scf_from"), ": the two basis sets have different orbitals: leave it out"
        )
    if options.frozen_virtual:
        raise InputError(
            Option("frozen_virtual"),
            " cuts both basis sets, and nothing is known about their limit then: leave it out",
        )
    formulas = (
        scf_formula(scf, bracket.family, *bracket.cardinals),
        correlation_formula(
            correlation or default_correlation(bracket.family), bracket.family, *bracket.cardinals
        ),
    )
    jk = expand(options.scf_auxbasis, bracket, Option("scf_auxbasis"))
    ri = expand(options.auxbasis, bracket, Option("auxbasis"))
    steps = [
        Step(
            name,
            f"{molecule.name} in {name}",
            molecule,
            replace(options, basis=name, scf_auxbasis=j, auxbasis=r),
        )
        for name, j, r in zip(bracket.names, jk, ri, strict=True)
    ]
    examine_steps(steps)

    def evaluate(results: Results, _failures: Failures, complete: bool) -> Numbers:
        if complete:
            values = _values(results, bracket, *formulas, options)
        else:
            values = {}
        return Numbers(
            *_about(bracket, *formulas, options), values, _table(results, bracket, values)
        )

    what = f"basis set limit of {molecule.name} ({molecule.formula})"
    return carry_out(Task("cbs", what, molecule, options, steps, evaluate), **how)


def _about(
    bracket: Bracket, scf: Formula, correlation: Formula, options: Options
) -> tuple[dict[str, Any], list[str]]:
    """Settings and notes."""
    lower, upper = bracket.cardinals
    notes = [
        f"{what}: {formula.name}, {formula.form}"
        + (f", X = {lower} and {upper}; {formula.source}" if formula.source else "")
        for what, formula in (
            ("Hartree-Fock", scf),
            ("correlation and its spin components", correlation),
        )
    ]
    if bracket.family == "cc-pvnz-pp" or (
        bracket.family == "cc-pcvnz" and options.frozen_core != "none"
    ):
        notes.append(
            "the formula was tested on valence sets without core potentials and with their own "
            "frozen core"
        )
    settings = {
        "basis_sets": list(bracket.names),
        "cardinal_numbers": [lower, upper],
        "scf_formula": scf.name,
        "correlation_formula": correlation.name,
        "frozen_core": options.frozen_core,
    }
    return settings, notes


def _table(results: Results, bracket: Bracket, values: Mapping[str, Dataset]) -> dict[str, Column]:
    """The energies of either basis, and of the limit when it is known."""
    if values:
        limit = [f"limit {bracket.text}"]
    else:
        limit = []
    table = {"basis": Column((*results, *limit), "", "basis set, or the limit")}
    if all(run.method == "mp2" for run in results.values()):
        names = OF_MP2
    else:
        names = METHOD_COLUMNS
    reference = next(iter(results.values())).mean_field_name
    for name in (reference, *names):
        energies = [getattr(run, name) for run in results.values()] + [
            values[f"cbs_{name}"].value for _ in limit
        ]
        table[name] = Column(tuple(energies), "hartree", name.replace("_", " "))
    return table


def _values(
    results: Results, bracket: Bracket, scf: Formula, correlation: Formula, options: Options
) -> dict[str, Dataset]:
    def limit(formula: Formula, energy: Callable[[MP2Result], float]) -> float:
        smaller, larger = (energy(results[basis]) for basis in bracket.names)
        return formula.limit(smaller, larger, *bracket.cardinals)

    method = options.correlation
    mean_field = limit(scf, lambda run: run.mean_field_energy)
    dispersion = limit(scf, lambda run: run.dispersion_energy or 0.0)
    same = limit(correlation, lambda run: run.components[0])
    opposite = limit(correlation, lambda run: run.components[1])
    singles = limit(correlation, lambda run: run.mp2_singles_energy)
    found = limit(correlation, lambda run: run.correlation_energy)
    if method.kind == "pairs":
        found = method.apply(opposite, same) + singles
    reference = results[bracket.names[0]].mean_field_name
    energies = {
        reference: mean_field,
        "correlation_energy": found,
        "total_energy": mean_field + found + dispersion,
    }
    plain = {
        "mp2_same_spin_correlation_energy": same,
        "mp2_opposite_spin_correlation_energy": opposite,
        "mp2_correlation_energy": same + opposite + singles,
        "mp2_total_energy": mean_field + same + opposite + singles,
        "scs_mp2_correlation_energy": SCS.apply(opposite, same) + singles,
        "sos_mp2_correlation_energy": SOS.apply(opposite, same) + singles,
    }
    if method.plain and not method.double_hybrid:
        energies |= plain
    if method.name == CUSTOM:
        energies["scaled_mp2_correlation_energy"] = found
    both = f"{scf.name} and {correlation.name}"
    how = {reference: scf.name, "total_energy": both, "mp2_total_energy": both}
    return {
        f"cbs_{name}": Dataset(energy, "hartree", f"limit, {how.get(name, correlation.name)}")
        for name, energy in energies.items()
    }


CARDINALS = {"d": 2, "t": 3, "q": 4, "5": 5, "6": 6}
_BRACKET = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)")
# Name with n for the letter -> family whose formulas apply. Sets of another series have no
# published formula here.
FAMILIES = (
    (re.compile(r"cc-pvnz|cc-pv\(n\+d\)z"), "cc-pvnz"),
    (re.compile(r"aug-cc-pvnz|aug-cc-pv\(n\+d\)z"), "aug-cc-pvnz"),
    (re.compile(r"(aug-)?cc-pw?cvnz"), "cc-pcvnz"),
    (re.compile(r"(aug-)?cc-p(wc)?vnz-pp"), "cc-pvnz-pp"),
    (re.compile(r"def2-nzvpp?d?"), "def2"),
)
EXPECTED = (
    "expected two neighbours of d, t, q, 5, 6 in brackets and in rising order, such as cc-pv[tq]z, "
    "aug-cc-pv[dt]z or def2-[tq]zvpp (quote it, brackets mean something to the shell)"
)


@dataclass(frozen=True, slots=True)
class Bracket:
    """A pair of basis sets of one family.

    Attributes
    ----------
    text : as it was written
    names : of the smaller and the larger set
    cardinals : their cardinal numbers
    family : "cc-pvnz", "aug-cc-pvnz", "cc-pcvnz", "cc-pvnz-pp" or "def2"
    letters : the two letters, for fitting sets written with the same bracket
    """

    text: str
    names: tuple[str, str]
    cardinals: tuple[int, int]
    family: str
    letters: str


def parse_bracket(text: str) -> Bracket:
    """The pair of basis sets that `text` names.

    Raises
    ------
    InputError : no brackets, other letters than two neighbours, or a family without a published
        formula
    """
    match = _BRACKET.fullmatch(text.strip())
    before, letters, after = "", "", ""
    if match is not None:
        before, letters, after = (part.lower() for part in match.groups())
    if letters not in ("dt", "tq", "q5", "56"):
        raise InputError(Option("basis", text[:60]), f": {EXPECTED}")
    family = next((name for form, name in FAMILIES if form.fullmatch(f"{before}n{after}")), None)
    if family is None or (family == "def2" and letters != "tq"):
        raise InputError(
            Option("basis", text[:60]),
            (
                ": no extrapolation formula is published for this series (there are some for "
                "cc-pv, aug-cc-pv, cc-pcv, cc-pwcv, (n+d) and -pp sets; of the def2 sets only "
                "[tq] can be extrapolated)"
            ),
        )
    names = f"{before}{letters[0]}{after}", f"{before}{letters[1]}{after}"
    return Bracket(text, names, (CARDINALS[letters[0]], CARDINALS[letters[1]]), family, letters)


def expand(name: str | None, bracket: Bracket, option: Option) -> tuple[str | None, str | None]:
    """A fitting set for either basis: one with the same brackets, one name for both, or None.

    Raises
    ------
    InputError : other brackets than those of the basis
    """
    if name is None or "[" not in name:
        return name, name
    match = _BRACKET.fullmatch(name.strip())
    if match is None or match[2].lower() != bracket.letters:
        raise InputError(
            option.of(name[:60]),
            f": expected [{bracket.letters}] as in ",
            Option("basis", bracket.text),
            ", or no brackets",
        )
    return f"{match[1]}{bracket.letters[0]}{match[3]}", f"{match[1]}{bracket.letters[1]}{match[3]}"
