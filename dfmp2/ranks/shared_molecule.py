"""The molecule on every rank: only rank 0 reads it, from a file that others need not see or from standard input."""

from __future__ import annotations

from dfmp2.checkpoint.encoding import Section
from dfmp2.molecule import Molecule
from dfmp2.ranks.team import Team

PLAIN = ("charge", "multiplicity", "name", "source", "text")


def tell(team: Team, molecule: Molecule) -> None:
    """Rank 0 has read it."""
    values = {name: getattr(molecule, name) for name in PLAIN}
    values |= {"symbols": list(molecule.symbols), "ghost": list(molecule.ghost)}
    field = {} if molecule.point_charges is None else {"point_charges": molecule.point_charges}
    team.told(lambda: Section(values, {"coordinates": molecule.coordinates, **field}))


def hear(team: Team) -> Molecule:
    """What rank 0 has read."""
    section = team.told(Section)
    values = section.values
    return Molecule(
        symbols=tuple(values["symbols"]),
        coordinates=section.arrays["coordinates"],
        ghost=tuple(values["ghost"]),
        point_charges=section.arrays.get("point_charges"),
        **{name: values[name] for name in PLAIN},
    )
