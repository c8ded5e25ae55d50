"""Levels of theory made of several runs of a molecule: two basis sets, and CCSD(T) in a small one.

    E = E(HF, limit) + E_SS(limit) + E_OS(limit) + [E(CCSD(T)) - E(MP2)] in the small basis

A pair of basis sets is written with brackets: cc-pv[tq]z is cc-pvtz and cc-pvqz, with cardinal
numbers 3 and 4. By default E(HF) is that of the larger basis and the correlation energy is
extrapolated as X^-3 (`dfmp2.mp2.composite`).

Such a level is an Options object whose `parts` are the runs. `runs.carry_out` makes the runs of
every step and passes their combined result (`dfmp2.mp2.composite.CompositeResult`) to the study, so
that studies need not know about composite levels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from dfmp2.errors import InputError, Option
from dfmp2.mp2.composite import (
    CompositeResult,
    Formula,
    Part,
    correlation_formula,
    default_correlation,
    scf_formula,
)
from dfmp2.mp2.coupled_cluster import PROGRAMS, PYSCF, WithCoupledCluster, require_program
from dfmp2.mp2.result import SUMMANDS, MP2Result
from dfmp2.options import Options
from dfmp2.options.basis_parts import parse_parts, title_of
from dfmp2.output.study import Column

CCSD_T = "ccsd(t)"
CITATION = "CCSD(T): Raghavachari et al., Chem. Phys. Lett. 157, 479 (1989)"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a level.

    Attributes
    ----------
    part : Part
        Its name and weights.
    options : Options
        Options of the run.
    compute : WithCoupledCluster, optional
        Function that computes it instead of the study's own.
    """

    part: Part
    options: Options
    compute: WithCoupledCluster | None = None


@dataclass(frozen=True, slots=True)
class CompositeOptions(Options):
    """Options of a level made of several runs; raises InputError for an impossible level.

    Attributes
    ----------
    basis : str
        A pair with brackets such as cc-pv[tq]z, or a single basis if there is a correction.
    scf_formula, correlation_formula : str, str or None
        Names of formulas, see `dfmp2.mp2.composite`; None for X^-3, or for def2 its own exponent.
    delta : str, optional
        The correction, as in ccsd(t)/cc-pvdz.
    delta_program : str
        One of `dfmp2.mp2.coupled_cluster.PROGRAMS`.
    """

    scf_formula: str = "largest"
    correlation_formula: str | None = None
    delta: str | None = None
    delta_program: str = PYSCF

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.scf_from is not None:
            raise InputError(
                Option("scf_from"), ": the two basis sets have different orbitals: leave it out"
            )
        if self.frozen_virtual:
            raise InputError(
                Option("frozen_virtual"),
                " cuts both basis sets, and nothing is known about their limit then: leave it out",
            )
        if parse_parts(self.basis).mixed:
            raise InputError(
                Option("basis", title_of(self.basis)),
                ": a limit or a correction takes the same sets for all atoms: a pair such as "
                "cc-pv[tq]z, with core potentials cc-pv[tq]z-pp, or one set",
            )
        if self.delta is not None:
            self._require_delta(self.delta)
        _ = self.runs

    @property
    def bracket(self) -> Bracket | None:
        """The pair of basis sets; None for a single basis with a correction."""
        if self.delta is not None and "[" not in self.basis:
            return None
        return parse_bracket(self.basis)

    @property
    def formulas(self) -> tuple[Formula, Formula]:
        """The formulas for E(HF) and E(corr).

        Raises
        ------
        InputError : a formula is unknown, or not published for this family
        """
        bracket = self.bracket
        if bracket is None:
            raise InputError(Option("basis", self.basis), f": {EXPECTED}")
        family, cardinals = bracket.family, bracket.cardinals
        named = self.correlation_formula or default_correlation(family)
        return (
            scf_formula(self.scf_formula, family, *cardinals),
            correlation_formula(named, family, *cardinals),
        )

    @property
    def runs(self) -> list[Run]:
        """The runs of a molecule: smaller basis, larger basis, then the correction."""
        runs = []
        bracket = self.bracket
        if bracket is None:
            runs.append(Run(Part(self.basis, 1.0, 1.0), self._plain()))
        else:
            of_scf, of_correlation = (
                formula.weights(*bracket.cardinals) for formula in self.formulas
            )
            jk = expand(self.scf_auxbasis, bracket, Option("scf_auxbasis"))
            ri = expand(self.auxbasis, bracket, Option("auxbasis"))
            for k, name in enumerate(bracket.names):
                options = self._plain(basis=name, scf_auxbasis=jk[k], auxbasis=ri[k])
                runs.append(Run(Part(name, of_scf[k], of_correlation[k]), options))
        if self.delta is not None:
            options = self._plain(
                basis=self.delta.partition("/")[2],
                scf_auxbasis=None,
                auxbasis=None,
                certify_fit=False,
                check=False,
            )
            part = Part(f"delta-{self.delta_program}", 0.0, 0.0)
            runs.append(Run(part, options, WithCoupledCluster(self.delta_program)))
        return runs

    @property
    def level(self) -> str:
        """Readable name of method and basis, with the correction."""
        text = self.level_in(self.basis)
        if self.delta is not None:
            basis = self.delta.partition("/")[2]
            text += f" + [CCSD(T) - {self.correlation.title}]/{basis}"
        return text

    def settings(self) -> dict[str, Any]:
        """The settings that a study stores about the level."""
        settings: dict[str, Any] = {"parts": [run.part.stored() for run in self.runs]}
        bracket = self.bracket
        if bracket is not None:
            scf, correlation = self.formulas
            settings |= {
                "basis_sets": list(bracket.names),
                "cardinal_numbers": list(bracket.cardinals),
                "scf_formula": scf.name,
                "correlation_formula": correlation.name,
            }
        if self.delta is not None:
            settings |= {"delta": self.delta, "delta_program": self.delta_program}
        return settings

    def notes(self, results: Sequence[MP2Result]) -> list[str]:
        """Formulas and programs, for the report.

        Parameters
        ----------
        results : sequence of MP2Result
            Results at the level so far.
        """
        notes = []
        bracket = self.bracket
        if bracket is not None:
            lower, upper = bracket.cardinals
            mean_field = "Kohn-Sham" if self.correlation.double_hybrid else "Hartree-Fock"
            kinds = (mean_field, "correlation and its spin components")
            for kind, formula in zip(kinds, self.formulas, strict=True):
                source = ""
                if formula.source:
                    source = f", X = {lower} and {upper}; {formula.source}"
                notes.append(f"{kind}: {formula.name}, {formula.form}{source}")
            core_sets = bracket.family == "cc-pcvnz" and self.frozen_core != "none"
            if bracket.family == "cc-pvnz-pp" or core_sets:
                notes.append(
                    "the formula was tested on valence sets without core potentials and with their "
                    "own frozen core"
                )
        programs = {}
        for result in results:
            for _, run in getattr(result, "parts", ()):
                if run.coupled_cluster is not None:
                    programs[run.coupled_cluster.program] = run.orbital_basis.name
        for program, basis in programs.items():
            notes.append(f"delta: CCSD(T) - {self.correlation.title} in {basis}, by {program}")
        if programs:
            notes.append(CITATION)
        return notes

    def _plain(self, **changed: Any) -> Options:
        """The options of one run."""
        values = {field.name: getattr(self, field.name) for field in fields(Options)}
        return Options(**{**values, **changed})

    def _require_delta(self, delta: str) -> None:
        """Raise for an impossible correction."""
        method, _, basis = delta.partition("/")
        if method.strip().lower() != CCSD_T or not basis.strip() or "[" in basis:
            raise InputError(
                Option("delta", delta[:60]),
                ": expected ccsd(t) and one basis set, as in ccsd(t)/cc-pvdz (quote it, brackets "
                "mean something to the shell)",
            )
        if self.delta_program not in PROGRAMS:
            raise InputError(
                Option("delta_program", self.delta_program[:30]),
                f": expected one of {', '.join(PROGRAMS)}",
            )
        object.__setattr__(self, "delta", f"{CCSD_T}/{basis.strip()}")
        if not self.correlation.scaled_mp2:
            raise InputError(
                Option("delta", delta),
                " corrects MP2 and its scaled variants, not ",
                Option("method", self.method),
                ": drop one of the two",
            )
        if self.reference == "rohf":
            raise InputError(
                Option("delta", delta),
                " has no CCSD(T) on ",
                Option("reference", "rohf"),
                ": use ",
                Option("reference", "uhf"),
            )
        if self.solvent is not None:
            raise InputError(
                Option("delta", delta),
                " has no reaction field in CCSD(T): leave out ",
                Option("solvent", self.solvent),
                ", or the correction",
            )
        if self.delta_program != PYSCF and self.relativity != "none":
            raise InputError(
                Option("delta_program", self.delta_program),
                " does not get the Hamiltonian of ",
                Option("relativity", self.relativity),
                ": take ",
                Option("delta_program", PYSCF),
            )
        require_program(self.delta_program)


def at_level(
    options: Options,
    *,
    scf_formula: str | None = None,
    correlation_formula: str | None = None,
    delta: str | None = None,
    delta_program: str | None = None,
) -> Options:
    """The options of a composite level, or the given ones if nothing requires several runs.

    Parameters
    ----------
    options : Options
        Options of the calculation; a basis with brackets is a pair of basis sets.
    scf_formula, correlation_formula, delta, delta_program : str, optional
        As in CompositeOptions.

    Raises
    ------
    InputError : a formula without a pair of basis sets, or a program without a correction
    """
    if delta is None and delta_program is not None:
        raise InputError(
            Option("delta_program", delta_program),
            " computes a correction: name it, as in ",
            Option("delta", "ccsd(t)/cc-pvdz"),
        )
    for name, value in (("scf_formula", scf_formula), ("correlation_formula", correlation_formula)):
        if value is not None and "[" not in options.basis:
            raise InputError(
                Option(name, value),
                " belongs to a pair of basis sets, as in ",
                Option("basis", "cc-pv[tq]z"),
                ": leave it out",
            )
    if delta is None and "[" not in options.basis:
        return options
    return CompositeOptions(
        **{field.name: getattr(options, field.name) for field in fields(Options)},
        scf_formula=scf_formula or "largest",
        correlation_formula=correlation_formula,
        delta=delta,
        delta_program=delta_program or PYSCF,
    )


def columns_of_bases(results: Sequence[MP2Result | None]) -> dict[str, Column]:
    """Columns of the energies of every run, for the table of a study; empty for single runs.

    Parameters
    ----------
    results : sequence of MP2Result or None
        Results of the rows; None for a failed row.
    """
    first = next((result for result in results if isinstance(result, CompositeResult)), None)
    if first is None:
        return {}
    table: dict[str, Column] = {}
    for k, (part, _) in enumerate(first.parts):
        if not (part.scf or part.correlation):
            continue
        runs = [
            result.parts[k][1] if isinstance(result, CompositeResult) else None
            for result in results
        ]
        for name, column in energy_columns(runs).items():
            description = f"{column.description}, {part.name}"
            table[f"{name}_{part.name}"] = column._replace(description=description)
    if first.correction is not None:
        table["delta_correction"] = Column(
            [_correction_or_nan(result) for result in results],
            "hartree",
            "CCSD(T) - MP2, small basis",
        )
    return table


def energy_columns(runs: Sequence[MP2Result | None]) -> dict[str, Column]:
    """Columns of the total energy of the method and of its summands.

    Parameters
    ----------
    runs : sequence of MP2Result or None
        Those of the rows; None for a failed row.
    """
    finished = [run for run in runs if run is not None]
    summands = finished[0].summands if finished else ["correlation_energy"]
    table = {}
    for name in (*summands, "total_energy"):
        energies = [math.nan if run is None else getattr(run, name) for run in runs]
        words = SUMMANDS.get(name, "total energy of the method")
        table[name] = Column(energies, "hartree", words)
    return table


def _correction_or_nan(result: MP2Result | None) -> float:
    energy = correction(result)
    return math.nan if energy is None else energy


def correction(result: MP2Result | None) -> float | None:
    """CCSD(T) - MP2 of a result, Eh; None if it has no correction."""
    if isinstance(result, CompositeResult):
        return result.correction
    return None


CARDINALS = {"d": 2, "t": 3, "q": 4, "5": 5, "6": 6}
_BRACKET = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)")
# Name with n in place of the letter -> family whose formulas apply. Other series have no published
# formula here.
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
    text : as the user wrote it
    names : names of the smaller and the larger set
    cardinals : their cardinal numbers
    family : "cc-pvnz", "aug-cc-pvnz", "cc-pcvnz", "cc-pvnz-pp" or "def2"
    letters : the two letters, for expanding fitting sets with the same bracket
    """

    text: str
    names: tuple[str, str]
    cardinals: tuple[int, int]
    family: str
    letters: str


def parse_bracket(text: str) -> Bracket:
    """The pair of basis sets named by `text`.

    Raises
    ------
    InputError : no brackets, letters other than two adjacent ones, or a family without a published
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
    return Bracket(
        text=text,
        names=names,
        cardinals=(CARDINALS[letters[0]], CARDINALS[letters[1]]),
        family=family,
        letters=letters,
    )


def expand(name: str | None, bracket: Bracket, option: Option) -> tuple[str | None, str | None]:
    """A fitting set for each basis, from a name with the same brackets, one name for both, or None.

    Raises
    ------
    InputError : the brackets differ from those of the basis
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
