"""Reports on a molecule and its surroundings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from textwrap import shorten

from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import Calculated
from dfmp2.output.document import (
    Facts,
    Figure,
    Section,
    Table,
)
from dfmp2.output.drawings.molecule import draw_molecule
from dfmp2.output.json import describe_field
from dfmp2.units import ANGSTROM_PER_BOHR, counted_text

LONGEST_GEOMETRY = 200  # atoms


def point_charge_line(molecule: Molecule, basis: BasisSet) -> str:
    """The point charges around a molecule in one line, "" if there are none."""
    charges = describe_field(molecule, basis)
    if charges is None:
        return ""
    count = counted_text(int(charges["count"]), "point charge")
    return (
        f"{count}, {charges['total_charge']:+.6f} e in all; {charges['nuclear_energy']:.10f} Eh "
        "with the nuclei, contained in their repulsion; their energy among themselves is left out"
    )


def molecule_section(result: Calculated) -> Section:
    molecule = result.molecule
    facts = [
        ("name", molecule.name),
        *([("comment", comment)] if (comment := _comment(molecule.text)) else []),
        ("formula", molecule.formula),
        ("charge", molecule.charge),
        ("multiplicity", molecule.multiplicity),
        ("explicit electrons", result.sizes.nelectron),
        ("read from", Path(molecule.source).name or "python"),
        *_surroundings(result),
    ]
    places = zip(
        molecule.labels[:LONGEST_GEOMETRY], molecule.coordinates * ANGSTROM_PER_BOHR, strict=False
    )
    rows = [
        (f"{k} {label}", *(f"{x:.8f}" for x in place))
        for k, (label, place) in enumerate(places, start=1)
    ]
    more = molecule.natom - len(rows)
    caption = f"Geometry, angstrom{f'; {more} more atoms are in the result file' if more else ''}"
    figure = Figure(
        partial(draw_molecule, molecule),
        "Turned to show the longest axis; sticks join atoms nearer than 1.25 times the sum of "
        "covalent radii, ghost centres (@) have a dashed outline.",
    )
    return Section(
        "molecule",
        "Molecule",
        [figure, Facts(facts), Table(caption, ("atom", "#x", "#y", "#z"), rows)],
    )


def _surroundings(result: Calculated) -> list[tuple[str, str]]:
    """The surroundings of the molecule: point charges or a solvent; empty for an isolated one."""
    reference = result.reference
    field = point_charge_line(result.molecule, result.orbital_basis)
    if field:
        return [("surroundings", field)]
    if reference.dielectric_constant is None:
        return []
    scheme = (
        f"{result.options.solvent_title}, dielectric constant "
        f"{reference.dielectric_constant:g}, {reference.surface_points} points on the cavity; "
        "reaction field of the SCF density alone"
    )
    if result.options.correlation.kind != "none":
        scheme += ", correlation on its orbitals (scheme PTE)"
    return [("surroundings", scheme)]


def _comment(text: str) -> str:
    """The shortened comment of an xyz file; "" if there is none or the molecule has another
    source."""
    lines = text.splitlines()
    if len(lines) > 2 and lines[0].strip().isdigit():
        return shorten(lines[1], 200)
    return ""
