"""States that are degenerate in space, whose electronic entropy is more than that of their spin."""

from __future__ import annotations

from dfmp2.molecule.molecule import Molecule
from dfmp2.studies.vibrations import on_a_line

SPHERICAL = {  # multiplicity -> numbers of electrons of atoms in S states: filled, s1, p3, d5, f7
    1: (2, 4, 10, 12, 18, 20, 28, 30, 36, 38, 46, 48, 54, 56, 70, 78, 80, 86),
    2: (1, 3, 11, 19, 29, 37, 47, 55, 79),
    4: (7, 15, 33, 51, 83),
    6: (25, 43, 75),
    7: (24, 42),
    8: (63,),
}
# multiplicity -> numbers of these that ions, from the given charge, have in a d orbital: Sc2+, Fe+
OF_D = {2: (2, (19, 37, 55)), 6: (1, (25, 43, 75))}
DEGENERATE = (
    "the electronic entropy is R ln(2S + 1): if the state is degenerate in space as well (P or D "
    "states of atoms, Pi states of linear molecules), up to R ln of that degeneracy is missing"
)


def may_be_degenerate(molecule: Molecule) -> bool:
    """Whether the state may be degenerate in space: an atom not known to be in an S state, or a
    linear molecule with unpaired electrons."""
    if not on_a_line(molecule):
        return False
    if molecule.natom > 1:
        return molecule.multiplicity > 1
    electrons = molecule.nuclear_charge - molecule.charge
    charge, of_d = OF_D.get(molecule.multiplicity, (0, ()))
    if molecule.charge >= charge and electrons in of_d:
        return True
    return electrons not in SPHERICAL.get(molecule.multiplicity, ())
