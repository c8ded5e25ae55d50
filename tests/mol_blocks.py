"""Mol blocks by name: statements of molecule files about charge, spin and hydrogens, and their
interpretation.

The page on molecule files lists them; `tests/test_charge_and_spin.py` compares it with the reader.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """A block and its interpretation.

    Attributes
    ----------
    says : its description in the docs
    atoms : symbols, with the rest of an atom line (charge code, ..., valence) where it matters
    bonds : pairs, from 1, with their order
    lines : properties such as M  CHG, and data
    outcome : (charge, multiplicity), or the text of the error
    """

    says: str
    atoms: str
    bonds: str
    outcome: tuple[int, int] | str
    lines: str = ""
    title: str = ""

    def text(self, program: str = "test") -> str:
        """The file; atoms are placed on a helix, which does not affect valences."""
        atoms = [word.split(":") for word in self.atoms.split()]
        bonds = [word.replace("=", "-").split("-") for word in self.bonds.split()]
        rows = [f"{self.title}\n  {program:>8}0101260000 3D\n"]
        rows.append(f"{len(atoms):3d}{len(bonds):3d}  0  0  0  0  0  0  0  0999 V2000")
        for place, (symbol, *codes) in enumerate(atoms):
            charge = codes[0] if codes else "0"
            valence = codes[1] if len(codes) > 1 else "0"
            x, y = 1.3 * (place % 5), 1.3 * (place // 5)
            rows.append(
                f"{x:10.4f}{y:10.4f}{0.1 * place:10.4f} {symbol:<3} 0{charge:>3}"
                f"  0  0  0{valence:>3}  0  0  0  0  0  0"
            )
        rows += [f"{int(a):3d}{int(b):3d}{int(order):3d}  0" for a, b, order in bonds]
        rows += [line for line in self.lines.split("\n") if line and line[0] == "M"]
        rows.append("M  END")
        rows += [line for line in self.lines.split("\n") if line and line[0] != "M"]
        return "\n".join(rows) + "\n"


ETHANOL_H = "1-4-1 1-5-1 1-6-1 2-7-1 2-8-1 3-9-1"
BENZENE = "1-2-4 2-3-4 3-4-4 4-5-4 5-6-4 6-1-4"
BENZENE_H = " ".join(f"{i}-{i + 6}-1" for i in range(1, 7))
NAPHTHALENE = f"{BENZENE} 5-7-4 7-8-4 8-9-4 9-10-4 10-6-4"
BLOCKS = {
    "ethanol": Block("complete", "C C O H H H H H H", f"1-2-1 2-3-1 {ETHANOL_H}", (0, 1)),
    "ethanol without hydrogens": Block(
        "C, C, O alone", "C C O", "1-2-1 2-3-1", "6 hydrogen atoms are missing"
    ),
    "ethanol without one": Block(
        "the H of OH is not there",
        "C C O H H H H H",
        f"1-2-1 2-3-1 {ETHANOL_H.removesuffix(' 3-9-1')}",
        "a hydrogen atom is missing, because the valences of 3 O are not filled",
    ),
    "benzene, aromatic bonds": Block(
        "bonds of type 4", "C C C C C C H H H H H H", f"{BENZENE} {BENZENE_H}", (0, 1)
    ),
    "benzene without hydrogens": Block(
        "bonds of type 4", "C C C C C C", BENZENE, "6 hydrogen atoms are missing"
    ),
    "naphthalene": Block(
        "bonds of type 4, three at the bridge",
        "C C C C C C C C C C H H H H H H H H",
        f"{NAPHTHALENE} 1-11-1 2-12-1 3-13-1 4-14-1 7-15-1 8-16-1 9-17-1 10-18-1",
        (0, 1),
    ),
    "pyrrole, aromatic bonds": Block(
        "N has two of type 4 and H",
        "N C C C C H H H H H",
        "1-2-4 2-3-4 3-4-4 4-5-4 5-1-4 1-6-1 2-7-1 3-8-1 4-9-1 5-10-1",
        (0, 1),
    ),
    "acetate": Block(
        "`M  CHG` of one O",
        "C C O O H H H",
        "1-2-1 2-3-2 2-4-1 1-5-1 1-6-1 1-7-1",
        (-1, 1),
        "M  CHG  1   4  -1",
    ),
    "hydroxide by its charge code": Block("code 5 in the atom line", "O:5 H", "1-2-1", (-1, 1)),
    "glycine, zwitterion": Block(
        "`M  CHG` +1 and -1",
        "N C C O O H H H H H",
        "1-2-1 2-3-1 3-4-2 3-5-1 1-6-1 1-7-1 1-8-1 2-9-1 2-10-1",
        (0, 1),
        "M  CHG  2   1   1   5  -1",
    ),
    "sulfate": Block(
        "two O of charge -1, S with six bonds",
        "S O O O O",
        "1-2-2 1-3-2 1-4-1 1-5-1",
        (-2, 1),
        "M  CHG  2   4  -1   5  -1",
    ),
    "sulfate, charges apart": Block(
        "S of charge +2 with four bonds",
        "S O O O O",
        "1-2-1 1-3-1 1-4-1 1-5-1",
        (-2, 1),
        "M  CHG  5   1   2   2  -1   3  -1   4  -1   5  -1",
    ),
    "phosphorus pentafluoride": Block(
        "P with five bonds", "P F F F F F", "1-2-1 1-3-1 1-4-1 1-5-1 1-6-1", (0, 1)
    ),
    "hexafluorophosphate": Block(
        "P of charge -1 with six",
        "P F F F F F F",
        "1-2-1 1-3-1 1-4-1 1-5-1 1-6-1 1-7-1",
        (-1, 1),
        "M  CHG  1   1  -1",
    ),
    "nitromethane": Block(
        "N with five bonds",
        "C N O O H H H",
        "1-2-1 2-3-2 2-4-2 1-5-1 1-6-1 1-7-1",
        (0, 1),
    ),
    "methyl radical": Block(
        "`M  RAD` 2", "C H H H", "1-2-1 1-3-1 1-4-1", (0, 2), "M  RAD  1   1   2"
    ),
    "methyl without M  RAD": Block(
        "three bonds", "C H H H", "1-2-1 1-3-1 1-4-1", "a hydrogen atom is missing"
    ),
    "methyl by its charge code": Block("code 4", "C:4 H H H", "1-2-1 1-3-1 1-4-1", (0, 2)),
    "methylene, triplet": Block("`M  RAD` 3", "C H H", "1-2-1 1-3-1", (0, 3), "M  RAD  1   1   3"),
    "methylene, singlet": Block("`M  RAD` 1", "C H H", "1-2-1 1-3-1", (0, 1), "M  RAD  1   1   1"),
    "two radical centres": Block(
        "singlet or triplet",
        "C C C H H H H H H",
        "1-2-1 2-3-1 1-4-1 1-5-1 2-6-1 2-7-1 3-8-1 3-9-1",
        "'M  RAD of 2 atoms' couples in several ways",
        "M  RAD  2   1   2   3   2",
    ),
    "superoxide": Block(
        "charge and radical", "O O", "1-2-1", (-1, 2), "M  CHG  1   1  -1\nM  RAD  1   2   2"
    ),
    "ammonia and borane, dative bond": Block(
        "bond of type 9", "N B H H H H H H", "1-2-9 1-3-1 1-4-1 1-5-1 2-6-1 2-7-1 2-8-1", (0, 1)
    ),
    "zinc chloride and water": Block(
        "atoms of and at a metal", "Zn Cl Cl O H H", "1-2-1 1-3-1 1-4-8 4-5-1 4-6-1", (0, 1)
    ),
    "carbene of zinc": Block(
        "CH2 at a metal: its bonds are not counted", "Zn C H H", "1-2-1 2-3-1 2-4-1", (0, 1)
    ),
    "sodium chloride": Block(
        "two ions without a bond",
        "Na Cl",
        "",
        (0, 1),
        "M  CHG  2   1   1   2  -1",
    ),
    "carbon monoxide": Block("C#O without charges", "C O", "1-2-3", (0, 1)),
    "carbon with valence 15": Block("the valence field says 0", "C:0:15", "", (0, 1)),
    "carbon atom": Block("methane without hydrogens?", "C", "", "4 hydrogen atoms are missing"),
    "heavy water": Block(
        "`M  ISO`",
        "O H H",
        "1-2-1 1-3-1",
        "M  ISO: isotopes have the same electronic energy",
        "M  ISO  2   2   2   3   2",
    ),
    "charge in the title": Block(
        "title `ammonium, charge 1`, no `M  CHG`",
        "N H H H H",
        "1-2-1 1-3-1 1-4-1 1-5-1",
        (1, 1),
        title="ammonium, charge 1",
    ),
    "data that contradict": Block(
        "`M  CHG` -1, PUBCHEM_TOTAL_CHARGE 0",
        "O H",
        "1-2-1",
        "total_charge=0, M  CHG, which adds up to -1, contradict each other",
        "M  CHG  1   1  -1\n> <PUBCHEM_TOTAL_CHARGE>\n0\n",
    ),
    "data alone": Block(
        "`> <charge>` 2, `> <multiplicity>` 3",
        "Ca",
        "",
        (2, 3),
        "> <charge>\n2\n\n> <multiplicity>\n3\n",
    ),
    "damaged M  CHG": Block("no value", "O H", "1-2-1", "M  CHG is damaged", "M  CHG  1   1"),
}
