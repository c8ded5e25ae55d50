"""Interaction energy of fragments, uncorrected and with the counterpoise correction of Boys and
Bernardi.

    uncorrected      E(complex) - sum_k E(fragment k in its own basis)
    cp-corrected     E(complex) - sum_k E(fragment k in the basis of the complex, the other atoms as ghosts)

All energies are at the geometry of the complex. Ghosts carry orbital functions and both fitting
sets, but no core orbitals. With more than two fragments, every fragment gets the basis of the whole
complex (site-site function counterpoise).

    1-5,6-10          two fragments: separated by a comma; atoms count from 1, ranges include both ends
    1-3+7-9,4-6       the first has two ranges, joined by a plus sign
    auto              unbonded parts, by covalent radii
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from dfmp2.errors import Command, InputError, Message, Option
from dfmp2.molecule.elements import BOND
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import bonded_parts
from dfmp2.mp2.composite import CompositeResult
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.basis_parts import for_part
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study
from dfmp2.studies.composite import correction
from dfmp2.studies.coordinate import parse_atoms, show_atoms
from dfmp2.studies.runs import CarryOutKeywords, carry_out
from dfmp2.studies.task import Failures, Numbers, Results, Step, Task, certified, examine_steps
from dfmp2.units import KCAL_PER_MOL_PER_HARTREE, KJ_PER_MOL_PER_HARTREE


def _exact_exchange_energy(result: MP2Result) -> float | None:
    """E(EXX) where the correlation energy is added to it, Eh; None elsewhere."""
    if result.mean_field_name != "hf_total_energy":
        return None
    return result.hf_total_energy


PARTS: dict[
    str, tuple[str, Callable[[MP2Result], float | None]]
] = {  # prefix -> (in words, energy of a run)
    "": ("total energy", lambda r: r.total_energy),
    "scf_": ("SCF", lambda r: r.scf_total_energy),
    "functional_": ("functional of the energy", lambda r: r.functional_energy),
    "exx_": ("Hartree-Fock energy of Kohn-Sham orbitals", _exact_exchange_energy),
    "dispersion_": ("dispersion", lambda r: r.dispersion_energy),
    "correlation_": ("correlation energy", lambda r: r.correlation_energy),
    "mp2_correlation_": ("MP2 correlation", lambda r: r.mp2_correlation_energy),
    "mp2_same_spin_correlation_": (
        "same-spin correlation",
        lambda r: r.mp2_same_spin_correlation_energy,
    ),
    "mp2_opposite_spin_correlation_": (
        "opposite-spin correlation",
        lambda r: r.mp2_opposite_spin_correlation_energy,
    ),
    "scs_mp2_correlation_": ("SCS-MP2 correlation", lambda r: r.scs_mp2_correlation_energy),
    "sos_mp2_correlation_": ("SOS-MP2 correlation", lambda r: r.sos_mp2_correlation_energy),
    "scaled_mp2_correlation_": (
        "scaled MP2 correlation",
        lambda r: r.scaled_mp2_correlation_energy,
    ),
    "delta_": ("CCSD(T) - MP2, small basis", correction),
}
# of the columns of each basis set: the total energy, and all that it is a sum of
IN_TABLE = ("", "scf_", "functional_", "exx_", "correlation_", "dispersion_", "delta_")
SCHEMES = {"cp_corrected": "in-complex", "uncorrected": "alone"}
UNITS = {
    "_kj_per_mol": ("kJ/mol", KJ_PER_MOL_PER_HARTREE),
    "_kcal_per_mol": ("kcal/mol", KCAL_PER_MOL_PER_HARTREE),
}
COMPLEX = "complex"
AUTO = "auto"  # fragments determined from bonds
ADVICE = Message(" (for a fragment: ", Option("charges"), ", ", Option("multiplicities"), ")")
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")
CITATION = "counterpoise: Boys and Bernardi, Mol. Phys. 19, 553 (1970)"
MANY = (
    "more than two fragments: each in the basis of all (site-site), Wells and Wilson, Chem. "
    "Phys. Lett. 101, 429 (1983)"
)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Part of a complex; `atoms` count from 0, in increasing order."""

    atoms: tuple[int, ...]
    charge: int
    multiplicity: int

    @property
    def label(self) -> str:
        """Its atoms in words, as in "atoms 1-3+7"."""
        return f"atom{'s' * (len(self.atoms) > 1)} {show_atoms(self.atoms)}"


def interaction_energy(
    molecule: Molecule,
    fragments: str,
    options: Options,
    *,
    charges: str | None = None,
    multiplicities: str | None = None,
    **how: Unpack[CarryOutKeywords],
) -> Study:
    """Interaction energies of the fragments of a complex.

    Parameters
    ----------
    molecule, options : the complex, and the options of every run
    fragments, charges, multiplicities : as in `make_fragments`
    how : as in `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study whose values are `cp_corrected_interaction_energy`, `uncorrected_interaction_energy` and
    their difference `counterpoise_correction`, each also with the prefixes of PARTS, in hartree
    (without plain MP2 for kappa-MP2), and all also with the suffixes `_kj_per_mol` and
    `_kcal_per_mol`

    Raises
    ------
    Dfmp2Error : errors that can be detected in advance, before any run; then that of a failed run
    """
    _require_comparable(options)
    found = make_fragments(fragments, molecule, charges, multiplicities)
    steps = [Step(name=COMPLEX, who="complex", molecule=molecule, options=options)]
    for number, fragment in enumerate(found, start=1):
        who = f"fragment {number} ({fragment.label})"
        name = f"fragment-{number}"
        ghosts = in_complex(molecule, fragment)
        own = alone(molecule, fragment)
        by_itself = replace(
            options, basis=for_part(options.basis, molecule.symbols, fragment.atoms)
        )
        steps += [
            Step(
                name=f"{name}-in-complex",
                who=f"{who} in the basis of the complex",
                molecule=ghosts,
                options=options,
                advice=ADVICE,
            ),
            Step(
                name=f"{name}-alone",
                who=f"{who} in its own basis",
                molecule=own,
                options=by_itself,
                advice=ADVICE,
            ),
        ]
    _require_same_core(steps, len(found))
    unpaired = sum(fragment.multiplicity - 1 for fragment in found)
    warnings = []
    if unpaired != molecule.multiplicity - 1:
        warnings.append(
            f"the fragments have {unpaired} unpaired electrons and the complex "
            f"{molecule.multiplicity - 1}: bonds are made, and MP2 may be unreliable for what lies "
            "between"
        )

    steps, note, chosen = certified(steps)

    def evaluate(results: Results, _failures: Failures, complete: bool) -> Numbers:
        settings, notes = _about(molecule, found)
        if fragments.strip().lower() == AUTO:
            by_bonds = f"fragments by bonds: nearer than {BOND:g} times the sum of covalent radii"
            notes = [*notes, by_bonds]
        values: dict[str, Dataset] = {}
        table: dict[str, Column] = {}
        if complete:
            values = _values(results, len(found))
            table = _table(results, len(found))
        return Numbers(settings=settings, notes=[*notes, note], values=values, table=table)

    task = Task(
        kind="interaction",
        what=f"interaction energy of {molecule.described}",
        molecule=molecule,
        options=options,
        steps=steps,
        evaluate=evaluate,
        warnings=tuple(warnings),
        chosen=chosen,
    )
    return carry_out(task, **how)


def _require_comparable(options: Options) -> None:
    if options.solvent is not None:
        raise InputError(
            Option("solvent", options.solvent),
            ": an interaction energy has ghost atoms, around which no cavity is defined: compute "
            "complex and fragments with ",
            Command("run"),
            " in the solvent and subtract, or leave it out",
        )
    require_cancelling(options, "the complex and its fragments")


def require_cancelling(options: Options, molecules: str) -> None:
    """Raise for options under which errors of several `molecules` do not cancel.

    Raises
    ------
    InputError : start orbitals, omitted virtual orbitals, or a fixed number of frozen orbitals
    """
    if options.scf_from is not None:
        raise InputError(Option("scf_from"), f": {molecules} have different orbitals: leave it out")
    if options.frozen_virtual:
        raise InputError(
            Option("frozen_virtual"),
            f" leaves out different functions in {molecules}, so energies do not cancel: leave it "
            "out",
        )
    if options.frozen_core not in ("none", "0") and options.frozen_core.lstrip("+-").isdigit():
        raise InputError(
            Option("frozen_core", options.frozen_core),
            f": a number of orbitals cannot hold for {molecules}: name a dialect (auto, psi4, "
            "orca, pyscf) or none",
        )


def _require_same_core(steps: list[Step], count: int) -> None:
    """Check every run, and raise if the frozen cores of the fragments do not add up to that of the
    complex."""
    cores = dict(zip((step.name for step in steps), examine_steps(steps), strict=True))
    for basis in SCHEMES.values():
        parts = [cores[f"fragment-{number}-{basis}"] for number in range(1, count + 1)]
        if sum(parts) != cores[COMPLEX]:
            raise InputError(
                Option("frozen_core", steps[0].options.frozen_core),
                (
                    f" freezes {cores[COMPLEX]} orbitals of the complex, but "
                    f"{' + '.join(map(str, parts))} of the fragments: they do not cancel; name "
                    "another dialect, or none"
                ),
            )


def _about(molecule: Molecule, fragments: Sequence[Fragment]) -> tuple[dict[str, Any], list[str]]:
    """Settings and notes."""
    formulas = [alone(molecule, fragment).formula for fragment in fragments]
    settings = [
        {
            "atoms": [atom + 1 for atom in f.atoms],
            "charge": f.charge,
            "multiplicity": f.multiplicity,
            "formula": formula,
        }
        for f, formula in zip(fragments, formulas, strict=True)
    ]
    notes = [
        f"fragment {n}: {f.label}, {formula}, charge {f.charge}, multiplicity {f.multiplicity}"
        for n, (f, formula) in enumerate(zip(fragments, formulas, strict=True), start=1)
    ]
    notes += [
        "negative: the complex is bound; fragments keep their geometry in the complex",
        CITATION,
    ]
    return {"fragments": settings}, [*notes, MANY] if len(fragments) > 2 else notes


def _values(results: Results, count: int) -> dict[str, Dataset]:
    values: dict[str, Dataset] = {}
    for scheme, basis in SCHEMES.items():
        runs = [results[f"fragment-{number}-{basis}"] for number in range(1, count + 1)]
        for prefix, (words, energy) in PARTS.items():
            parts = [energy(run) for run in (results[COMPLEX], *runs)]
            if parts[0] is not None and not math.isnan(parts[0]):
                total = math.fsum([parts[0], *(-part for part in parts[1:] if part is not None)])
                name = f"{prefix}{scheme}_interaction_energy"
                values |= in_units(name, total, f"{words}, {scheme.replace('_', ' ')}")
    for prefix, (words, _) in PARTS.items():
        if f"{prefix}cp_corrected_interaction_energy" not in values:
            continue
        corrected, raw = (
            values[f"{prefix}{scheme}_interaction_energy"].value for scheme in SCHEMES
        )
        name = f"{prefix}counterpoise_correction"
        values |= in_units(name, corrected - raw, f"{words}, corrected - uncorrected")
    return values | precision_error((1.0, run) for run in results.values())


def precision_error(weighted: Iterable[tuple[float, MP2Result]]) -> dict[str, Dataset]:
    """The value `precision_error` of an energy that is a weighted sum of runs; a composite level is
    resolved into its runs."""
    errors = []
    for weight, result in weighted:
        for (_, own), run in result.terms:
            if run.certificate is not None and run.precision != "fp64":
                errors.append(abs(weight * own) * run.certificate.correlation_error)
    about = "sum of the 95 % bounds on the precision errors of all runs"
    return {"precision_error": Dataset(math.fsum(errors), "hartree", about)}


def _table(results: Results, count: int) -> dict[str, Column]:
    """The interaction energies of each basis set and of their combination at a composite level;
    otherwise empty."""
    whole = results[COMPLEX]
    if not isinstance(whole, CompositeResult):
        return {}
    names = [part.name for part, run in whole.parts if run.coupled_cluster is None]
    rows = [
        _values({name: _run_of(result, k) for name, result in results.items()}, count)
        for k in range(len(names))
    ]
    table = {"basis": Column((*names, "together"), "", "basis set, or the composite level")}
    rows.append(_values(results, count))
    for prefix in IN_TABLE:
        for scheme in SCHEMES:
            name = f"{prefix}{scheme}_interaction_energy"
            if name not in rows[-1]:
                continue
            energies = [row[name].value if name in row else math.nan for row in rows]
            table[name] = Column(energies, "hartree", rows[-1][name].description)
    return table


def _run_of(result: MP2Result, which: int) -> MP2Result:
    """One run of a result at a composite level."""
    if isinstance(result, CompositeResult):
        return result.parts[which][1]
    return result


def in_units(name: str, energy: float, description: Any) -> dict[str, Dataset]:
    """An energy in hartree under its name, and in other units under the name with a suffix."""
    others = {
        f"{name}{suffix}": Dataset(energy * factor, unit, description)
        for suffix, (unit, factor) in UNITS.items()
    }
    return {name: Dataset(energy, "hartree", description), **others}


# --- fragments ------------------------------------------------------------------------------------


def make_fragments(
    text: str, molecule: Molecule, charges: str | None, multiplicities: str | None
) -> tuple[Fragment, ...]:
    """Fragments from command-line options.

    Parameters
    ----------
    text : ranges of atoms, see above, or "auto" for the unbonded parts; every real atom belongs to
        exactly one fragment. A ghost may be left out; its functions are then used whenever the
        basis of the whole complex is
    charges, multiplicities : comma-separated integers, one for each fragment; None for 0 and 1,
        which requires a neutral singlet complex

    Raises
    ------
    InputError : fragments overlap, atoms are missing or do not exist, or charge and spin do not add
        up to those of the complex
    """
    if text.strip().lower() == AUTO:
        parts = bonded_parts(molecule)
        if len(parts) < 2:
            raise InputError(
                Option("fragments", AUTO),
                f": all atoms of {molecule.formula} are connected (nearer than {BOND:g} times the "
                "sum of their covalent radii), so there is one fragment: name the fragments, as in "
                "1-5,6-10",
            )
    else:
        parts = [parse_atoms(part, molecule.natom, Option("fragments")) for part in text.split(",")]
    if len(parts) < 2:
        raise InputError(
            Option("fragments", text[:60]),
            " is one fragment: give two or more with a comma between them, as in 1-5,6-10",
        )
    _require_partition(parts, molecule)
    charge = _whole_numbers(
        Option("charges"), charges, len(parts), molecule.charge, "which fragment carries it", 0
    )
    if sum(charge) != molecule.charge:
        raise InputError(
            Option("charges", charges),
            (
                f" add up to {sum(charge)}, but the complex has charge {molecule.charge}: "
                "correct them, or pass "
            ),
            Option("charge"),
        )
    open_shell = "which fragment is open-shell"
    spins = _whole_numbers(
        Option("multiplicities"), multiplicities, len(parts), molecule.multiplicity, open_shell, 1
    )
    _require_coupling(spins, molecule.multiplicity)
    return tuple(Fragment(*fragment) for fragment in zip(parts, charge, spins, strict=True))


def alone(molecule: Molecule, fragment: Fragment) -> Molecule:
    """The fragment at its position in the complex, with only its own basis functions."""
    atoms = list(fragment.atoms)
    return replace(
        molecule,
        symbols=tuple(molecule.symbols[atom] for atom in atoms),
        coordinates=molecule.coordinates[atoms],
        ghost=tuple(molecule.ghost[atom] for atom in atoms),
        charge=fragment.charge,
        multiplicity=fragment.multiplicity,
    )


def in_complex(molecule: Molecule, fragment: Fragment) -> Molecule:
    """The fragment with the basis functions of the whole complex; all other atoms become ghosts."""
    own = np.zeros(molecule.natom, dtype=bool)
    own[list(fragment.atoms)] = True
    return replace(
        molecule,
        ghost=tuple(bool(flag) for flag in np.array(molecule.ghost) | ~own),
        charge=fragment.charge,
        multiplicity=fragment.multiplicity,
    )


def _require_partition(parts: list[tuple[int, ...]], molecule: Molecule) -> None:
    owner: dict[int, int] = {}
    for number, part in enumerate(parts, start=1):
        for atom in part:
            if atom in owner:
                raise InputError(
                    Option("fragments"),
                    (
                        f": atom {atom + 1} {molecule.labels[atom]} is in fragments {owner[atom]} "
                        f"and {number}: every atom belongs to one"
                    ),
                )
            owner[atom] = number
        if all(molecule.ghost[atom] for atom in part):
            raise InputError(
                Option("fragments"),
                f": fragment {number} ({show_atoms(part)}) has only ghost atoms: nothing interacts",
            )
    missing = [
        atom for atom in range(molecule.natom) if atom not in owner and not molecule.ghost[atom]
    ]
    if missing:
        raise InputError(
            Option("fragments"),
            (
                f": atom{'s' * (len(missing) > 1)} {show_atoms(missing)} of {molecule.natom} "
                f"belong{'s' * (len(missing) == 1)} to no fragment: add them to one"
            ),
        )


def _whole_numbers(
    option: Option, text: str | None, count: int, whole: int, which: str, plain: int
) -> list[int]:
    """One number for each fragment; `plain` if none are given and the complex has the same."""
    if text is None:
        if whole != plain:
            example = ",".join(map(str, [whole, *[plain] * (count - 1)]))
            name = "charge" if plain == 0 else "multiplicity"
            raise InputError(
                f"the complex has {name} {whole}: say {which}, e.g. ", option.of(example)
            )
        return [plain] * count
    words = [word.strip() for word in text.split(",")]
    if len(words) != count or not all(_WHOLE.fullmatch(word) for word in words):
        raise InputError(
            option.of(text[:60]),
            f": expected {count} whole numbers with commas between them, one for each fragment",
        )
    return [int(word) for word in words]


def _require_coupling(multiplicities: list[int], total: int) -> None:
    """Raise if the spins of the fragments cannot couple to the total spin."""
    if min(multiplicities) < 1:
        raise InputError(
            Option("multiplicities", min(multiplicities)),
            ": expected 2S + 1, so 1 (singlet) or more",
        )
    spins = [m - 1 for m in multiplicities]  # unpaired electrons
    most = sum(spins)
    least = max(2 * max(spins) - sum(spins), sum(spins) % 2)
    if not least <= total - 1 <= most or (total - 1 - most) % 2:
        listed = ",".join(map(str, multiplicities))
        possible = ", ".join(str(unpaired + 1) for unpaired in range(least, most + 1, 2))
        raise InputError(
            (
                f"fragments with multiplicities {listed} cannot make a complex of multiplicity "
                f"{total} (possible: {possible}): correct "
            ),
            Option("multiplicities"),
            " or ",
            Option("multiplicity"),
        )
