"""Interaction energy of fragments, uncorrected and with the counterpoise correction of Boys and Bernardi.

    uncorrected      E(complex) - sum_k E(fragment k in its own basis)
    cp-corrected     E(complex) - sum_k E(fragment k in the basis of the complex, the other atoms as ghosts)

All at the geometry of the complex. Ghosts carry orbital functions and both fitting sets, and no core orbitals.
For more than two fragments every fragment gets the basis of the whole complex (site-site function counterpoise).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from dfmp2.errors import InputError
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.study import Study, Value
from dfmp2.progress import Listener
from dfmp2.studies.fragments import Fragment, alone, in_complex, make_fragments
from dfmp2.studies.runs import Failures, Keeper, Needs, Numbers, Results, Step, Task, carry_out, examine, require_memory
from dfmp2.units import KCAL_PER_MOL_PER_HARTREE, KJ_PER_MOL_PER_HARTREE

PARTS: dict[str, tuple[str, Callable[[MP2Result], float | None]]] = {  # prefix -> (in words, energy of a run)
    "": ("total energy", lambda r: r.total_energy),
    "scf_": ("SCF", lambda r: r.scf_total_energy),
    "correlation_": ("correlation energy", lambda r: r.correlation_energy),
    "mp2_correlation_": ("MP2 correlation", lambda r: r.mp2_correlation_energy),
    "mp2_same_spin_correlation_": ("same-spin correlation", lambda r: r.mp2_same_spin_correlation_energy),
    "mp2_opposite_spin_correlation_": ("opposite-spin correlation", lambda r: r.mp2_opposite_spin_correlation_energy),
    "scs_mp2_correlation_": ("SCS-MP2 correlation", lambda r: r.scs_mp2_correlation_energy),
    "sos_mp2_correlation_": ("SOS-MP2 correlation", lambda r: r.sos_mp2_correlation_energy),
    "scaled_mp2_correlation_": ("scaled MP2 correlation", lambda r: r.scaled_mp2_correlation_energy),
}
SCHEMES = {"cp_corrected": "in-complex", "uncorrected": "alone"}
UNITS = {"_kj_per_mol": ("kJ/mol", KJ_PER_MOL_PER_HARTREE), "_kcal_per_mol": ("kcal/mol", KCAL_PER_MOL_PER_HARTREE)}
COMPLEX = "complex"
CITATION = "counterpoise: Boys and Bernardi, Mol. Phys. 19, 553 (1970)"
MANY = "more than two fragments: each in the basis of all (site-site), Wells and Wilson, Mol. Phys. 50, 787 (1983)"


def interaction_energy(
    molecule: Molecule,
    fragments: str,
    options: Options,
    *,
    charges: str | None = None,
    multiplicities: str | None = None,
    keeper: Keeper | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.studies.interaction",
) -> Study:
    """Interaction energies of the fragments of a complex.

    Parameters
    ----------
    molecule, options : the complex and how every run is made
    fragments, charges, multiplicities : as on the command line, see `dfmp2.studies.fragments`
    keeper : where finished runs go, None for nowhere

    Returns
    -------
    Study; its values are `cp_corrected_interaction_energy` and `uncorrected_interaction_energy`, the same with the
    prefixes of PARTS, in hartree (no plain MP2 with kappa-MP2), and all with `_kj_per_mol` and `_kcal_per_mol`

    Raises
    ------
    Dfmp2Error : before any run what can be known before, then that of a failed run
    """
    _require_comparable(options)
    found = make_fragments(fragments, molecule, charges, multiplicities)
    steps = [Step(COMPLEX, "complex", molecule, options)]
    for number, fragment in enumerate(found, start=1):
        who, name = f"fragment {number} (atoms {fragment.label})", f"fragment-{number}"
        ghosts, own = in_complex(molecule, fragment), alone(molecule, fragment)
        steps.append(Step(f"{name}-in-complex", f"{who} in the basis of the complex", ghosts, options))
        steps.append(Step(f"{name}-alone", f"{who} in its own basis", own, options))
    _require_same_core(steps, len(found))
    unpaired = sum(fragment.multiplicity - 1 for fragment in found)
    if unpaired != molecule.multiplicity - 1:
        (listener or Listener()).warning(
            f"the fragments have {unpaired} unpaired electrons and the complex {molecule.multiplicity - 1}: bonds are "
            "made, and MP2 may be unreliable for what lies between"
        )

    def evaluate(results: Results, _failures: Failures, complete: bool) -> Numbers:
        return Numbers(*_about(molecule, found), _values(results, len(found)) if complete else {})

    what = f"interaction energy of {molecule.name} ({molecule.formula})"
    return carry_out(Task("interaction", what, molecule, options, steps, evaluate), keeper, listener, command)


def _require_comparable(options: Options) -> None:
    if options.scf_from is not None:
        raise InputError("--scf-from: the runs of an interaction energy have different orbitals: leave it out")
    if options.frozen_virtual:
        raise InputError(
            "--frozen-virtual leaves out different functions in every run, so energies do not cancel: leave it out"
        )
    if options.frozen_core not in ("none", "0") and options.frozen_core.lstrip("+-").isdigit():
        raise InputError(
            f"--frozen-core {options.frozen_core}: a number of orbitals cannot hold for the complex and its fragments: "
            "name a dialect (auto, psi4, orca, pyscf) or none"
        )


def _require_same_core(steps: list[Step], count: int) -> None:
    """Examine every run, and refuse cores that do not add up: the complex would freeze other orbitals."""
    needs: dict[str, Needs] = {}
    for step in steps:
        try:
            needs[step.name] = examine(step)
        except InputError as error:
            hint = "" if step.name == COMPLEX else " (for a fragment: --charges, --multiplicities)"
            raise InputError(f"{error}{hint}") from error
    require_memory(steps, list(needs.values()))
    cores = {name: found.core for name, found in needs.items()}
    for basis in SCHEMES.values():
        parts = [cores[f"fragment-{number}-{basis}"] for number in range(1, count + 1)]
        if sum(parts) != cores[COMPLEX]:
            raise InputError(
                f"--frozen-core {steps[0].options.frozen_core} freezes {cores[COMPLEX]} orbitals of the complex, "
                f"but {' + '.join(map(str, parts))} of the fragments: they do not cancel; name another dialect, or none"
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
        f"fragment {n}: atoms {f.label}, {formula}, charge {f.charge}, multiplicity {f.multiplicity}"
        for n, (f, formula) in enumerate(zip(fragments, formulas, strict=True), start=1)
    ]
    notes += ["negative: the complex is bound; fragments keep their geometry in the complex", CITATION]
    return {"fragments": settings}, [*notes, MANY] if len(fragments) > 2 else notes


def _values(results: Results, count: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for scheme, basis in SCHEMES.items():
        runs = [results[f"fragment-{number}-{basis}"] for number in range(1, count + 1)]
        for prefix, (words, energy) in PARTS.items():
            parts = [energy(run) for run in (results[COMPLEX], *runs)]
            if parts[0] is not None and not math.isnan(parts[0]):
                total = math.fsum([parts[0], *(-part for part in parts[1:] if part is not None)])
                name = f"{prefix}{scheme}_interaction_energy"
                values |= _in_units(name, total, f"{words}, {scheme.replace('_', ' ')}")
    for prefix in ("", "scf_", "correlation_", "mp2_correlation_"):
        if f"{prefix}cp_corrected_interaction_energy" not in values:
            continue
        corrected, raw = (values[f"{prefix}{scheme}_interaction_energy"].value for scheme in SCHEMES)
        values |= _in_units(
            f"{prefix}counterpoise_correction", corrected - raw, f"{PARTS[prefix][0]}, corrected - uncorrected"
        )
    errors = [
        run.certificate.correlation_error
        for run in results.values()
        if run.certificate is not None and run.precision != "fp64"
    ]
    values["precision_error"] = Value(
        sum(errors), "hartree", "sum of the 95 % bounds on the precision errors of all runs"
    )
    return values


def _in_units(name: str, energy: float, description: Any) -> dict[str, Value]:
    others = {f"{name}{suffix}": Value(energy * factor, unit, description) for suffix, (unit, factor) in UNITS.items()}
    return {name: Value(energy, "hartree", description), **others}
