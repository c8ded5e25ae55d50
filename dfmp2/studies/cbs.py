"""Energies at the limit of a complete basis set, from runs in two basis sets (`dfmp2.mp2.extrapolation`).

    E(MP2, limit) = E(HF, limit) + E_SS(limit) + E_OS(limit)

By default E(HF) is that of the larger basis and the correlation energy goes as X^-3. A pair of
basis sets is written with brackets: cc-pv[tq]z is cc-pvtz and cc-pvqz, with cardinal numbers 3 and 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dfmp2.errors import InputError
from dfmp2.host.provenance import version
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.extrapolation import Formula, correlation_formula, default_correlation, scf_formula
from dfmp2.mp2.result import SCS, SOS, MP2Result, custom_scaling
from dfmp2.options import Options
from dfmp2.output.study import Column, Study, Value
from dfmp2.progress import Listener
from dfmp2.studies.runs import Failures, Keeper, Results, Step, carry_out, examine, hamiltonian_notes

COLUMNS: dict[str, Callable[[MP2Result], float]] = {
    "scf_total_energy": lambda r: r.scf_total_energy,
    "mp2_same_spin_correlation_energy": lambda r: r.mp2_same_spin_correlation_energy,
    "mp2_opposite_spin_correlation_energy": lambda r: r.mp2_opposite_spin_correlation_energy,
    "mp2_correlation_energy": lambda r: r.mp2_correlation_energy,
    "mp2_total_energy": lambda r: r.mp2_total_energy,
}


@dataclass(frozen=True, slots=True)
class Limit:
    """What is to be computed: a molecule in two basis sets, and the formulas."""

    molecule: Molecule
    options: Options
    bracket: Bracket
    scf: Formula
    correlation: Formula

    def steps(self) -> list[Step]:
        """The run in the smaller basis and that in the larger one."""
        jk = expand(self.options.scf_auxbasis, self.bracket, "--scf-auxbasis")
        ri = expand(self.options.auxbasis, self.bracket, "--auxbasis")
        return [
            Step(
                name,
                f"{self.molecule.name} in {name}",
                self.molecule,
                replace(self.options, basis=name, scf_auxbasis=j, auxbasis=r),
            )
            for name, j, r in zip(self.bracket.names, jk, ri, strict=True)
        ]


def basis_set_limit(
    molecule: Molecule,
    options: Options,
    *,
    scf: str = "largest",
    correlation: str | None = None,
    keeper: Keeper | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.studies.cbs",
) -> Study:
    """Energies at the basis set limit.

    Parameters
    ----------
    molecule : what to compute
    options : how; `basis` is a pair with brackets such as cc-pv[tq]z, fitting sets may be written likewise
    scf, correlation : names of formulas, see `dfmp2.mp2.extrapolation`; None is X^-3, for def2 its own exponent
    keeper : where finished runs go, None for nowhere

    Returns
    -------
    Study; its values are `cbs_scf_total_energy`, `cbs_mp2_correlation_energy`, `cbs_mp2_total_energy`, the spin
    components and the SCS and SOS energies, all in hartree

    Raises
    ------
    Dfmp2Error : before any run what can be known before, then that of a failed run
    """
    listener, keeper = listener or Listener(), keeper or Keeper()
    keeper.require_kind("cbs")
    bracket = parse_bracket(options.basis)
    if options.scf_from is not None:
        raise InputError("--scf-from: the two basis sets have different orbitals: leave it out")
    if options.frozen_virtual:
        raise InputError(
            "--frozen-virtual cuts both basis sets, and nothing is known about their limit then: leave it out"
        )
    task = Limit(
        molecule,
        options,
        bracket,
        scf_formula(scf, bracket.family, *bracket.cardinals),
        correlation_formula(correlation or default_correlation(bracket.family), bracket.family, *bracket.cardinals),
    )
    steps = task.steps()
    for step in steps:
        examine(step)

    def summarise(results: Results, _failures: Failures, complete: bool) -> Study:
        return _summary(task, results, complete, command)

    return carry_out(steps, summarise, keeper, listener, command)


def _summary(task: Limit, results: Results, complete: bool, command: str) -> Study:
    values = _values(task, results) if len(results) == 2 else {}
    rows = [(name, *(energy(result) for energy in COLUMNS.values())) for name, result in results.items()]
    if values:
        rows.append((f"limit {task.bracket.text}", *(values[f"cbs_{name}"].value for name in COLUMNS)))
    columns = list(zip(*rows, strict=True)) if rows else [()] * (1 + len(COLUMNS))
    table = {"basis": Column(tuple(columns[0]), "", "basis set, or the limit")}
    for name, column in zip(COLUMNS, columns[1:], strict=True):
        table[name] = Column(tuple(column), "hartree", name.replace("_", " "))
    lower, upper = task.bracket.cardinals
    notes = hamiltonian_notes(task.molecule, task.options) + [
        f"{what}: {formula.name}, {formula.form}"
        + (f", X = {lower} and {upper}; {formula.source}" if formula.source else "")
        for what, formula in (("Hartree-Fock", task.scf), ("correlation and its spin components", task.correlation))
    ]
    if task.bracket.family == "cc-pvnz-pp" or (
        task.bracket.family == "cc-pcvnz" and task.options.frozen_core != "none"
    ):
        notes.append("the formula was tested on valence sets without core potentials and with their own frozen core")
    return Study(
        kind="cbs",
        title=f"basis set limit of {task.molecule.name} ({task.molecule.formula}), DF-MP2/{task.bracket.text}",
        settings={
            "name": task.molecule.name,
            "basis": task.bracket.text,
            "basis_sets": list(task.bracket.names),
            "cardinal_numbers": [lower, upper],
            "scf_formula": task.scf.name,
            "correlation_formula": task.correlation.name,
            "frozen_core": task.options.frozen_core,
        },
        notes=tuple(notes),
        values=values,
        table=table,
        runs=dict(results),
        complete=complete,
        version=version(),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _values(task: Limit, results: Results) -> dict[str, Value]:
    smaller, larger = (results[name] for name in task.bracket.names)

    def limit(formula: Formula, name: str) -> float:
        return formula.limit(COLUMNS[name](smaller), COLUMNS[name](larger), *task.bracket.cardinals)

    scf = limit(task.scf, "scf_total_energy")
    same = limit(task.correlation, "mp2_same_spin_correlation_energy")
    opposite = limit(task.correlation, "mp2_opposite_spin_correlation_energy")
    own = custom_scaling(task.options.os_scale, task.options.ss_scale)
    energies = {
        "scf_total_energy": (scf, task.scf.name),
        "mp2_same_spin_correlation_energy": (same, task.correlation.name),
        "mp2_opposite_spin_correlation_energy": (opposite, task.correlation.name),
        "mp2_correlation_energy": (same + opposite, task.correlation.name),
        "mp2_total_energy": (scf + same + opposite, f"{task.scf.name} and {task.correlation.name}"),
        "scs_mp2_correlation_energy": (SCS.apply(opposite, same), task.correlation.name),
        "sos_mp2_correlation_energy": (SOS.apply(opposite, same), task.correlation.name),
    }
    if own is not None:
        energies["scaled_mp2_correlation_energy"] = (own.apply(opposite, same), task.correlation.name)
    return {f"cbs_{name}": Value(energy, "hartree", f"limit, {how}") for name, (energy, how) in energies.items()}


CARDINALS = {"d": 2, "t": 3, "q": 4, "5": 5, "6": 6}
_BRACKET = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)")
# Name with n for the letter -> family whose formulas apply. Sets of another series have no published formula here.
FAMILIES = (
    (re.compile(r"cc-pvnz|cc-pv\(n\+d\)z"), "cc-pvnz"),
    (re.compile(r"aug-cc-pvnz|aug-cc-pv\(n\+d\)z"), "aug-cc-pvnz"),
    (re.compile(r"(aug-)?cc-pw?cvnz"), "cc-pcvnz"),
    (re.compile(r"(aug-)?cc-p(wc)?vnz-pp"), "cc-pvnz-pp"),
    (re.compile(r"def2-nzvpp?d?"), "def2"),
)
EXPECTED = "expected two neighbours of d, t, q, 5, 6 in brackets, such as cc-pv[tq]z, aug-cc-pv[dt]z or def2-[tq]zvpp"


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
    InputError : no brackets, other letters than two neighbours, or a family without a published formula
    """
    match = _BRACKET.fullmatch(text.strip())
    if match is None:
        raise InputError(f"--basis {text[:60]!r}: {EXPECTED} (quote it, brackets mean something to the shell)")
    before, letters, after = (part.lower() for part in match.groups())
    numbers = [CARDINALS.get(letter) for letter in letters]
    if len(letters) != 2 or None in numbers:
        raise InputError(f"--basis {text[:60]!r}: [{letters[:20]}] in brackets: {EXPECTED}")
    lower, upper = CARDINALS[letters[0]], CARDINALS[letters[1]]
    if upper != lower + 1:
        raise InputError(f"--basis {text[:60]!r}: [{letters}] are not neighbours in rising order; {EXPECTED}")
    pattern = f"{before}n{after}"
    family = next((name for form, name in FAMILIES if form.fullmatch(pattern)), None)
    if family is None:
        raise InputError(
            f"--basis {text[:60]!r}: no extrapolation formula is published for this series: {EXPECTED} "
            "(also cc-pcv, cc-pwcv, (n+d) and -pp sets)"
        )
    if family == "def2" and (lower, upper) != (3, 4):
        raise InputError(f"--basis {text[:60]!r}: of the def2 sets only [tq] can be extrapolated: use def2-[tq]zvpp")
    return Bracket(
        text, (f"{before}{letters[0]}{after}", f"{before}{letters[1]}{after}"), (lower, upper), family, letters
    )


def expand(name: str | None, bracket: Bracket, option: str) -> tuple[str | None, str | None]:
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
            f"{option} {name[:60]!r}: expected [{bracket.letters}] as in --basis {bracket.text}, or no brackets"
        )
    return f"{match[1]}{bracket.letters[0]}{match[3]}", f"{match[1]}{bracket.letters[1]}{match[3]}"
