"""The species of a reaction, read and checked for balance before anything runs, and the course of
each through its runs.

    reactants = ["ch4.xyz", "2*o2.xyz"]         a file of dfmp2 run, or an .h5 file of a result or of
    products = ["co2.xyz", "2*h2o.xyz"]         frequencies; a number and * in front: coefficient
    charges = { oh = -1 }                       by file name without suffix
    multiplicities = { o2 = 3 }
    symmetry_numbers = { c6h6 = 12 }
    transition_states = ["ts"]                  saddle points: --optimize searches for one

This is the input file of `dfmp2 reaction` (TOML); file names are relative to its folder.
Coefficients are positive integers, decimals or fractions such as 1/2. The same molecule at the same
geometry is one species; if it is on both sides, the net coefficient counts.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from dfmp2.arrays import Array
from dfmp2.errors import Command, InputError, Message, Option
from dfmp2.gradients.gradient import require_gradient
from dfmp2.molecule.files import read_file
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.text import read_text
from dfmp2.mp2.composite import CompositeResult
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.basis_parts import for_elements
from dfmp2.output.run_names import OF_FOUND
from dfmp2.progress import Listener, Relay
from dfmp2.studies.hessian import DISPLACEMENT, displaced, for_differences, hessian
from dfmp2.studies.ideal_gas import require_symmetry_number
from dfmp2.studies.optimize import Course
from dfmp2.studies.rank import Candidate, read_candidate
from dfmp2.studies.task import Results, Step, expanded
from dfmp2.studies.vibrations import require_stationary

if TYPE_CHECKING:
    from dfmp2.studies.reaction import ReactionPlan

MOST_SPECIES = 40
LARGEST_COEFFICIENT = 1000
MAX_BYTES = 10**6
STORED = ".h5"  # suffix of a stored result
SIDES = ("reactants", "products")
NUMBER = re.compile(r"[+-]?[0-9]{1,9}")
EXPECTED_TERM = "expected FILE or COEFFICIENT*FILE, such as 2*h2.xyz, with a number above 0"

Term = tuple[Fraction, Any]  # coefficient, and a file or a molecule


@dataclass(frozen=True, slots=True)
class Reaction:
    """A reaction as the user wrote it.

    Attributes
    ----------
    reactants, products : sequence of Term
        Coefficients with files or molecules.
    charges, multiplicities, symmetry_numbers : mapping of str to int
        By file name without suffix.
    transition_states : sequence of str
        Names of saddle points.
    """

    reactants: Sequence[Term]
    products: Sequence[Term]
    charges: Mapping[str, int] = field(default_factory=dict)
    multiplicities: Mapping[str, int] = field(default_factory=dict)
    symmetry_numbers: Mapping[str, int] = field(default_factory=dict)
    transition_states: Sequence[str] = ()


OF_SPECIES = ("charges", "multiplicities", "symmetry_numbers")


@dataclass(frozen=True, slots=True)
class Species:
    """A molecule of a reaction.

    Attributes
    ----------
    label : str
        Its unique name.
    coefficient : Fraction
        Net number formed; negative for a reactant.
    molecule : Molecule
        The molecule at the given geometry.
    stored : Candidate or None
        Its stored result, if a file was given.
    symmetry : int or None
        Rotational symmetry number, None to count it.
    transition_state : bool
        Whether to search for a first-order saddle point.
    """

    label: str
    coefficient: Fraction
    molecule: Molecule
    stored: Candidate | None = None
    symmetry: int | None = None
    transition_state: bool = False


# --- reading --------------------------------------------------------------------------------------


def parse_terms(text: str, option: Option) -> list[Term]:
    """Coefficients and files of one side, from comma-separated terms."""
    return [parse_term(part, option) for part in text.split(",")]


def parse_term(text: str, option: Option) -> Term:
    """Coefficient and file of a term such as 2*h2.xyz.

    Raises
    ------
    InputError : no file, or a coefficient that is not a positive number
    """
    number, star, file = text.strip().partition("*")
    if not star:
        number, file = "1", number
    coefficient = make_coefficient(number, option.of(text.strip()[:80]))
    if not file.strip():
        raise InputError(option.of(text.strip()[:80]), f": {EXPECTED_TERM}")
    return coefficient, file.strip()


def make_coefficient(given: Any, option: Option) -> Fraction:
    """A positive coefficient.

    Raises
    ------
    InputError : not a positive number
    """
    try:
        if isinstance(given, bool):
            raise ValueError
        coefficient = Fraction(_without_spaces(given)).limit_denominator(10**6)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise InputError(option, f": {EXPECTED_TERM}") from None
    if not 0 < coefficient <= LARGEST_COEFFICIENT:
        raise InputError(
            option,
            f": coefficient {given}: expected a number above 0 and up to {LARGEST_COEFFICIENT}",
        )
    return coefficient


def _without_spaces(given: Any) -> Any:
    return given.strip() if isinstance(given, str) else given


def read_reaction(path: str | Path) -> Reaction:
    """The reaction in a TOML file as above; only that file is read.

    Raises
    ------
    InputError : no such file, not TOML, unknown keys, or values of the wrong type
    """
    file, text = read_text(
        path,
        MAX_BYTES,
        "more than 1 MB: expected a TOML file of a reaction",
        "a TOML file of a reaction",
    )
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not TOML ({error}): correct it", file=file) from error
    known = [one.name for one in fields(Reaction)]
    unknown = [key for key in table if key not in known]
    if unknown:
        raise InputError(
            f"{unknown[0]!r} is no key of a reaction: expected {', '.join(known)}; options of the "
            "calculation belong on the command line",
            file=file,
        )
    sides = {}
    for side in SIDES:
        terms = table.get(side)
        if not _is_list_of_texts(terms):
            raise InputError(f'{side}: expected a list such as ["ch4.xyz", "2*o2.xyz"]', file=file)
        pairs = [parse_term(term, Option(side)) for term in terms]
        folder = Path(path).parent
        sides[side] = [(number, str(folder / name)) for number, name in pairs]
    for name in OF_SPECIES:
        numbers = table.get(name, {})
        whole = isinstance(numbers, dict) and all(type(n) is int for n in numbers.values())
        if not whole:
            raise InputError(f"{name}: expected a table such as {{ oh = 1 }}", file=file)
    names = table.get("transition_states", [])
    if not _is_list_of_texts(names):
        raise InputError('transition_states: expected a list such as ["ts"]', file=file)
    return Reaction(
        reactants=sides["reactants"],
        products=sides["products"],
        charges=table.get("charges", {}),
        multiplicities=table.get("multiplicities", {}),
        symmetry_numbers=table.get("symmetry_numbers", {}),
        transition_states=names,
    )


def _is_list_of_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def parse_numbers(text: str | None, option: Option) -> dict[str, int]:
    """Integers by name from NAME=N,NAME=N; {} for None.

    Raises
    ------
    InputError : a part has another form
    """
    numbers: dict[str, int] = {}
    if text is None:
        return numbers
    for part in text.split(","):
        name, sign, number = part.strip().rpartition("=")
        if not sign or not name or not NUMBER.fullmatch(number):
            raise InputError(option.of(text[:80]), ": expected NAME=N,NAME=N such as oh=-1")
        numbers[name] = int(number)
    return numbers


def read_species(reaction: Reaction, units: str) -> list[Species]:
    """The species of a reaction with net coefficients, balanced; those that cancel are left out.

    Parameters
    ----------
    units : str
        Unit of the coordinates in files, "angstrom" or "bohr".

    Raises
    ------
    InputError : a file that cannot be read, an unknown species name, an empty side, or atoms or
        charges that do not balance
    """
    found: list[Species] = []
    written: list[Species] = []
    names: set[str] = set()
    for side, sign in (("reactants", -1), ("products", 1)):
        terms = getattr(reaction, side)
        if not terms:
            raise InputError(Option(side), ": nothing on this side: name a file, such as h2o.xyz")
        for coefficient, given in terms:
            name, one = _read(given, reaction, units)
            names.add(name)
            written.append(replace(one, coefficient=sign * coefficient))
            _add(found, written[-1])
    for option in (*OF_SPECIES, "transition_states"):
        for name in getattr(reaction, option):
            if name not in names:
                raise InputError(
                    Option(option, name),
                    f": no species has this name: expected one of {', '.join(sorted(names))}",
                )
    if len(found) > MOST_SPECIES:
        raise InputError(f"{len(found)} species: at most {MOST_SPECIES} go into one reaction")
    require_balance(written)
    taking_part = [one for one in found if one.coefficient]
    if not taking_part:
        raise InputError("both sides are the same: nothing reacts, so there is no energy")
    return taking_part


def _read(given: Any, reaction: Reaction, units: str) -> tuple[str, Species]:
    """The name in a term, and its species."""
    if isinstance(given, Molecule):
        name = given.name
        if name == "molecule":  # as texts and arrays are called
            name = given.formula
    else:
        name = Path(given).stem.removesuffix(".dfmp2")
    name = re.sub(r"[^\w.+-]+", "_", name).strip(".") or "molecule"
    charge = reaction.charges.get(name)
    multiplicity = reaction.multiplicities.get(name)
    symmetry = reaction.symmetry_numbers.get(name)
    require_symmetry_number(symmetry, Option("symmetry_numbers", f"{name}={symmetry}"))
    stored = None
    if isinstance(given, Molecule):
        molecule = given.with_state(charge, multiplicity)
    elif os.fspath(given).endswith(STORED):
        stored = read_candidate(given)
        molecule = stored.result.molecule
        _require_state(given, "charge", molecule.charge, charge)
        _require_state(given, "multiplicity", molecule.multiplicity, multiplicity)
        if isinstance(stored.result, CompositeResult):
            raise InputError(
                f"{given} is a result at the limit of two basis sets, which a reaction takes from "
                "its own runs: name the file of its geometry"
            )
    else:
        file = read_file(given, units=units, charge=charge, multiplicity=multiplicity)
        molecule = file.molecule
    if any(molecule.ghost):
        raise InputError(
            f"{name} has ghost atoms, and a reaction takes each species in its own basis: leave them "
            "out, or correct for the bases of fragments with ",
            Command("interaction"),
        )
    if molecule.point_charges is not None:
        raise InputError(f"{name} is among point charges: a reaction is one of free molecules")
    return name, Species(
        label=name,
        coefficient=Fraction(1),
        molecule=molecule,
        stored=stored,
        symmetry=symmetry,
        transition_state=name in reaction.transition_states,
    )


def _require_state(file: Any, name: str, number: int, wanted: int | None) -> None:
    """Raise if the charge or multiplicity of a result is not the one that is wanted."""
    if wanted is not None and wanted != number:
        raise InputError(f"{file} is a result with {name} {number}, not {wanted}")


def _add(found: list[Species], species: Species) -> None:
    """Add the coefficient of a known species, or append a new one."""
    for place, one in enumerate(found):
        same_source = (one.stored is None) == (species.stored is None)
        if same_source and _same(one.molecule, species.molecule):
            found[place] = replace(one, coefficient=one.coefficient + species.coefficient)
            return
    labels = {one.label for one in found}
    label, number = species.label, 1
    while label in labels:
        number += 1
        label = f"{species.label}-{number}"
    found.append(replace(species, label=label))


def _same(one: Molecule, other: Molecule) -> bool:
    """Whether two molecules have the same atoms at the same positions in the same state."""
    alike = one.symbols == other.symbols and one.charge == other.charge
    if not alike or one.multiplicity != other.multiplicity:
        return False
    return bool((one.coordinates == other.coordinates).all())


# --- balance --------------------------------------------------------------------------------------


def require_balance(species: Sequence[Species]) -> None:
    """Raise if atoms or charge do not balance.

    Raises
    ------
    InputError : names each unbalanced element and the difference
    """
    sides: dict[str, list[Fraction]] = {}
    charges = [Fraction(0), Fraction(0)]
    for one in species:
        side = int(one.coefficient > 0)
        for symbol in one.molecule.symbols:
            sides.setdefault(symbol, [Fraction(0), Fraction(0)])[side] += abs(one.coefficient)
        charges[side] += abs(one.coefficient) * one.molecule.charge
    wrong = [
        f"{symbol}: {_shown(left)} among the reactants, {_shown(right)} among the products "
        f"({_off(right - left)})"
        for symbol, (left, right) in sorted(sides.items())
        if left != right
    ]
    if wrong:
        raise InputError(
            f"the reaction is not balanced: {'; '.join(wrong)}: correct species or coefficients"
        )
    if charges[0] != charges[1]:
        raise InputError(
            f"charge is not conserved: {_shown(charges[0])} among the reactants, "
            f"{_shown(charges[1])} among the products: state it in the comment of the file, or "
            "with ",
            Option("charges", "NAME=N"),
        )


def _off(difference: Fraction) -> str:
    if difference > 0:
        return f"{_shown(difference)} too many"
    return f"{_shown(-difference)} too few"


def _shown(number: Fraction) -> str:
    if number.denominator == 1:
        return str(number.numerator)
    return f"{number.numerator}/{number.denominator}"


def equation(species: Sequence[Species]) -> str:
    """The reaction in one line, e.g. 2 h2 + o2 -> 2 h2o."""
    sides = []
    for sign in (-1, 1):
        terms = []
        for one in species:
            if one.coefficient * sign <= 0:
                continue
            number = abs(one.coefficient)
            terms.append(one.label if number == 1 else f"{_shown(number)} {one.label}")
        sides.append(" + ".join(terms))
    return " -> ".join(sides)


ADVICE = Message(
    " (of a species: ",
    Option("charges", "NAME=N"),
    ", ",
    Option("multiplicities", "NAME=N"),
    ")",
)


def _of_species(options: Options, molecule: Molecule) -> Options:
    """The common options reduced for one species, which may lack elements that have basis sets of
    their own."""
    basis = for_elements(options.basis, molecule.elements)
    if basis == options.basis:
        return options
    return replace(options, basis=basis)


class _OfSpecies(Mapping[str, MP2Result]):
    """A view of the results of one species, by name without its label; grows with the results."""

    def __init__(self, label: str, results: Results) -> None:
        self._label = label
        self._results = results

    def __getitem__(self, name: str) -> MP2Result:
        return self._results[f"{self._label}:{name}"]

    def __iter__(self) -> Iterator[str]:
        start = f"{self._label}:"
        return (name.removeprefix(start) for name in self._results if name.startswith(start))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Labelled(Relay):
    """Adds the species to the stages that it reports."""

    def __init__(self, listener: Listener, label: str) -> None:
        super().__init__(listener)
        self._label = label

    def stage(self, text: str) -> None:
        super().stage(f"{self._label}: {text}")

    def note(self, text: str) -> None:
        super().note(f"{self._label}: {text}")


class SpeciesCourse:
    """The course of a species through its runs.

    Attributes
    ----------
    species : Species
    first : Step
        Its first run.
    final : str
        The name of the run whose energy counts, as far as known.
    """

    def __init__(
        self, species: Species, options: Options, plan: ReactionPlan, listener: Listener
    ) -> None:
        self.species = species
        label = species.label
        options = _of_species(options, species.molecule)
        self._plan = plan
        self._hessian_prefix = f"{label}:"
        self._search: Course | None = None
        self.final = label
        tight = for_differences(options)
        self._tight = tight
        if species.stored is not None:
            result = species.stored.result
            self.first = Step(
                name=label, who=label, molecule=result.molecule, options=result.options
            )
            return
        moves = species.molecule.natom > 1
        if plan.optimize is not None and moves:
            search = replace(plan.optimize, transition_state=species.transition_state)
            if search.transition_state:  # which begins with a Hessian of its first geometry
                self._hessian_prefix = f"{label}:{OF_FOUND}"
            first = Step(name="step-000", who="step 0", molecule=species.molecule, options=options)
            self._search = Course(first, search, _Labelled(listener, label))
            self.first = self._labelled(first, "")
            return
        chosen = tight if plan.frequencies else options
        self.first = Step(
            name=label, who=label, molecule=species.molecule, options=chosen, advice=ADVICE
        )

    @property
    def has_hessian(self) -> bool:
        """Whether its Hessian is computed or already stored."""
        stored = self.species.stored
        if stored is not None:
            return stored.hessian is not None
        return self._plan.frequencies and self.species.molecule.natom > 1

    @property
    def least_runs(self) -> int:
        """The minimum number of runs."""
        natom = self.species.molecule.natom
        if self.species.stored is not None:
            return 1
        if natom == 1:
            return len(expanded(self.first))
        runs = 1
        if self._plan.frequencies:
            runs += 6 * natom
        if self._search is not None:
            runs += 1
            if self.species.transition_state:
                runs += 6 * natom
        return runs * len(expanded(self.first))

    def require_gradient(self) -> None:
        """Raise if its runs have no gradient; those of atoms and stored results need none."""
        if self.species.stored is None and self.species.molecule.natom > 1:
            for run in expanded(self.first):
                require_gradient(run.molecule, run.options, separate=run.separate)

    def then(self, results: Results) -> Iterator[Sequence[Step]]:
        """The steps after the first one, as in Task."""
        if self.species.stored is not None or self.species.molecule.natom == 1:
            return
        label = self.species.label
        before = self.first.name
        molecule = self.species.molecule
        if self._search is not None:
            for group in self._search.then(_OfSpecies(label, results)):
                yield [self._labelled(step, before) for step in group]
                passed = [step.name for step in group if not step.passing]
                if passed:
                    before = f"{label}:{passed[-1]}"
            self.final = f"{label}:{self._search.path[-1]}"
            molecule = results[self.final].molecule
            if self._plan.frequencies:
                yield [
                    Step(
                        name=label,
                        who=label,
                        molecule=molecule,
                        options=self._tight,
                        start=self.final,
                    )
                ]
                self.final = label
        if self._plan.frequencies:
            if not self._plan.allow_gradient:
                require_stationary(results[label])
            reference = Step(name=label, who=label, molecule=molecule, options=self._tight)
            yield [
                replace(step, who=f"{label}, {step.who}")
                for step in displaced(reference, DISPLACEMENT, self._hessian_prefix)
            ]

    def _labelled(self, step: Step, before: str) -> Step:
        """A step of an optimisation relabelled for this species; by default it starts from the
        orbitals of the run `before`."""
        label = self.species.label
        start = f"{label}:{step.start}" if step.start else before
        return replace(
            step,
            name=f"{label}:{step.name}",
            who=f"{label}, {step.who}",
            start=start,
            advice=ADVICE,
        )

    def hessian(self, results: Results) -> Array | None:
        """Its Hessian (3 natom, 3 natom), Eh/bohr^2, or None."""
        stored = self.species.stored
        if not self.has_hessian:
            return None
        if stored is not None and stored.hessian is not None:
            return stored.hessian.hessian
        molecule = results[self.final].molecule
        return hessian(molecule, results, DISPLACEMENT, self._hessian_prefix)
