"""What a calculation is, as far as the last bit of its result depends on it."""

from __future__ import annotations

from dfmp2 import provenance
from dfmp2.checkpoint import fingerprint
from dfmp2.errors import InputError
from dfmp2.frozen_core import FrozenCore
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.record import StartOrbitals
from dfmp2.result import MP2Result
from dfmp2.system import Setup, System

DECIDES = (  # options that change numbers, beside what the fingerprint has under other names
    "relativity",
    "scf_conv_tol",
    "scf_max_cycles",
    "guess",
    "scf_starts",
    "stability",
    "frozen_virtual",
    "precision",
    "tolerance",
)
# Options with which a finished result stays the answer to the question.
FREE = ("memory", "threads", "scratch", "scf_max_cycles", "allow_small_gap", "allow_poor_fit", "scf_from", "check")


def identity(system: System, setup: Setup, core: FrozenCore, kind: str, start: StartOrbitals | None) -> dict[str, str]:
    """Everything the bits of a result depend on, by name."""
    options, molecule = setup.options, system.molecule
    return {
        "geometry": fingerprint.geometry(molecule),
        "point charges": fingerprint.point_charges(molecule),
        "charge": str(molecule.charge),
        "multiplicity": str(molecule.multiplicity),
        "orbital basis": fingerprint.basis(system.orbital_basis),
        "SCF fitting set": fingerprint.basis(system.scf_fitting),
        "MP2 fitting set": fingerprint.basis(system.mp2_fitting),
        "reference": kind,
        "SCF": options.scf,
        "start orbitals": fingerprint.start_orbitals(start),
        "frozen core": str(core.orbitals),
        **{f"--{name.replace('_', '-')}": str(getattr(options, name)) for name in DECIDES},
        "--threads": str(setup.threads),
        "--backend": setup.backend.name,
        "--transform": setup.route.place,
        **provenance.versions(),
    }


def require_answer(result: MP2Result, molecule: Molecule, options: Options, path: str) -> None:
    """Refuse a finished result that answers another question.

    Raises
    ------
    InputError : names what differs
    """
    there, here = result.molecule, molecule
    options = options.settled(molecule.multiplicity)
    different = [] if fingerprint.geometry(there) == fingerprint.geometry(here) else ["geometry"]
    if fingerprint.point_charges(there) != fingerprint.point_charges(here):
        different.append("point charges")
    if (there.charge, there.multiplicity) != (here.charge, here.multiplicity):
        different.append("charge or multiplicity")
    different += [
        f"--{name.replace('_', '-')} ({getattr(result.options, name)} there, {getattr(options, name)} here)"
        for name in Options.__slots__
        if name not in FREE and getattr(result.options, name) != getattr(options, name)
    ]
    if different:
        raise InputError(
            f"{path} is the result of another calculation: {', '.join(different)}: name another file with --output, or "
            "replace it with --overwrite instead of --resume"
        )
