"""Interaction energy of fragments, uncorrected and with the counterpoise correction of Boys and Bernardi.

    uncorrected      E(complex) - sum_k E(fragment k in its own basis)
    cp-corrected     E(complex) - sum_k E(fragment k in the basis of the complex, the other atoms as ghosts)

All at the geometry of the complex. Ghosts carry orbital functions and both fitting sets, and no core orbitals.
For more than two fragments every fragment gets the basis of the whole complex (site-site function counterpoise).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dfmp2.errors import InputError
from dfmp2.host.provenance import version
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.study import Study, Value
from dfmp2.progress import Listener
from dfmp2.studies.fragments import Fragment, alone, in_complex, make_fragments
from dfmp2.studies.runs import Failures, Keeper, Results, Step, carry_out, examine, hamiltonian_notes
from dfmp2.units import KCAL_PER_MOL_PER_HARTREE, KJ_PER_MOL_PER_HARTREE

PARTS: dict[str, tuple[str, Callable[[MP2Result], float | None]]] = {  # prefix -> (in words, energy of a run)
    "": ("MP2", lambda r: r.mp2_total_energy),
    "scf_": ("Hartree-Fock", lambda r: r.scf_total_energy),
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


@dataclass(frozen=True, slots=True)
class Interaction:
    """What is to be computed: a complex, its fragments, and how."""

    molecule: Molecule
    fragments: tuple[Fragment, ...]
    options: Options

    def steps(self) -> list[Step]:
        """The complex, then every fragment in the basis of the complex and alone."""
        found = [Step(COMPLEX, "complex", self.molecule, self.options)]
        for number, fragment in enumerate(self.fragments, start=1):
            who = f"fragment {number} (atoms {fragment.label})"
            name = f"fragment-{number}"
            ghosts, own = in_complex(self.molecule, fragment), alone(self.molecule, fragment)
            found.append(Step(f"{name}-in-complex", f"{who} in the basis of the complex", ghosts, self.options))
            found.append(Step(f"{name}-alone", f"{who} in its own basis", own, self.options))
        return found


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
    prefixes of PARTS, in hartree, and all of them with `_kj_per_mol` and `_kcal_per_mol`

    Raises
    ------
    Dfmp2Error : before any run what can be known before, then that of a failed run
    """
    listener, keeper = listener or Listener(), keeper or Keeper()
    keeper.require_kind("interaction")
    _require_comparable(options)
    task = Interaction(molecule, make_fragments(fragments, molecule, charges, multiplicities), options)
    steps = task.steps()
    _require_same_core(task, steps)
    unpaired = sum(fragment.multiplicity - 1 for fragment in task.fragments)
    if unpaired != molecule.multiplicity - 1:
        listener.warning(
            f"the fragments have {unpaired} unpaired electrons and the complex {molecule.multiplicity - 1}: bonds are "
            "made, and MP2 may be unreliable for what lies between"
        )

    def summarise(results: Results, _failures: Failures, complete: bool) -> Study:
        return _summary(task, results, complete, command)

    return carry_out(steps, summarise, keeper, listener, command)


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


def _require_same_core(task: Interaction, steps: list[Step]) -> None:
    """Examine every run, and refuse cores that do not add up: the complex would freeze other orbitals."""
    cores = {}
    for step in steps:
        try:
            cores[step.name] = examine(step)
        except InputError as error:
            hint = "" if step.name == COMPLEX else " (for a fragment: --charges, --multiplicities)"
            raise InputError(f"{error}{hint}") from error
    for scheme in SCHEMES.values():
        parts = [cores[f"fragment-{number}-{scheme}"] for number in range(1, len(task.fragments) + 1)]
        if sum(parts) != cores[COMPLEX]:
            raise InputError(
                f"--frozen-core {task.options.frozen_core} freezes {cores[COMPLEX]} orbitals of the complex, "
                f"but {' + '.join(map(str, parts))} of the fragments: they do not cancel; name another dialect, or none"
            )


def _summary(task: Interaction, results: Results, complete: bool, command: str) -> Study:
    fragments = [
        {
            "atoms": [atom + 1 for atom in fragment.atoms],
            "charge": fragment.charge,
            "multiplicity": fragment.multiplicity,
            "formula": alone(task.molecule, fragment).formula,
        }
        for fragment in task.fragments
    ]
    several = [MANY] if len(task.fragments) > 2 else []
    parts = [
        f"fragment {n}: atoms {f.label}, {d['formula']}, charge {f.charge}, multiplicity {f.multiplicity}"
        for n, (f, d) in enumerate(zip(task.fragments, fragments, strict=True), start=1)
    ]
    return Study(
        kind="interaction",
        title=f"interaction energy of {task.molecule.name} ({task.molecule.formula}), DF-MP2/{task.options.basis}",
        settings={"name": task.molecule.name, "basis": task.options.basis, "fragments": fragments},
        notes=(
            *hamiltonian_notes(task.molecule, task.options),
            *parts,
            "negative: the complex is bound; fragments keep their geometry in the complex",
            CITATION,
            *several,
        ),
        values=_values(task, results) if len(results) == len(task.steps()) else {},
        table={},
        runs=dict(results),
        complete=complete,
        version=version(),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _values(task: Interaction, results: Results) -> dict[str, Value]:
    numbers = range(1, len(task.fragments) + 1)
    values: dict[str, Value] = {}
    for scheme, basis in SCHEMES.items():
        runs = [results[f"fragment-{number}-{basis}"] for number in numbers]
        for prefix, (words, energy) in PARTS.items():
            parts = [energy(run) for run in runs]
            whole = energy(results[COMPLEX])
            if whole is not None:
                total = math.fsum([whole, *(-part for part in parts if part is not None)])
                values |= _in_units(
                    f"{prefix}{scheme}_interaction_energy", total, f"{words}, {scheme.replace('_', ' ')}"
                )
    for prefix in ("", "scf_", "mp2_correlation_"):
        corrected, raw = (values[f"{prefix}{scheme}_interaction_energy"].value for scheme in SCHEMES)
        values |= _in_units(
            f"{prefix}counterpoise_correction", corrected - raw, f"{PARTS[prefix][0]}, corrected - uncorrected"
        )
    errors = [
        run.certificate.correlation_error
        for run in results.values()
        if run.certificate is not None and run.precision != "fp64"
    ]
    values["precision_error"] = Value(sum(errors), "hartree", "sum of the estimated precision errors of all runs")
    return values


def _in_units(name: str, energy: float, description: Any) -> dict[str, Value]:
    others = {f"{name}{suffix}": Value(energy * factor, unit, description) for suffix, (unit, factor) in UNITS.items()}
    return {name: Value(energy, "hartree", description), **others}
