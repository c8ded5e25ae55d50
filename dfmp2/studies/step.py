"""One calculation of a study, and what it would be refused for."""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2 import planning, system
from dfmp2.errors import Dfmp2Error
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.reference.mean_field import reference_kind


@dataclass(frozen=True, slots=True)
class Step:
    """One calculation of a study; `who` describes it to people, and so in errors."""

    name: str
    who: str
    molecule: Molecule
    options: Options


def hamiltonian_notes(molecule: Molecule, options: Options) -> list[str]:
    """What all runs of a study have in common beyond nuclei and electrons, in words."""
    charges = molecule.point_charges
    return [
        *(["relativity in every run: spin-free one-electron X2C"] if options.relativity == "x2c" else []),
        *([] if charges is None else [f"every run in the field of the same {len(charges)} point charges"]),
    ]


class Quiet(Listener):
    """Hears nothing: what is warned about before the runs is warned about again by the run itself."""

    def warning(self, text: str) -> None:
        """Not yet."""


def examine(step: Step) -> int:
    """Find everything a run would be refused for, before any run; returns the number of frozen core orbitals.

    Raises
    ------
    Dfmp2Error : what `dfmp2 run` would say, with the step's name in front
    """
    try:
        options = step.options.settled(step.molecule.multiplicity)
        setup = system.prepare(options, "")
        found = system.resolve(step.molecule, setup, Quiet())
        kind = reference_kind(options, step.molecule.multiplicity)
        core = system.frozen_core(found, options, Quiet())
        planning.make_plan(found, setup, core, kind).memory.require()
    except Dfmp2Error as error:
        raise named(error, step.who) from error
    return core.orbitals


def named(error: Dfmp2Error, who: str) -> Dfmp2Error:
    """The same error with what it happened to in front."""
    return type(error)(f"{who}: {error}")
