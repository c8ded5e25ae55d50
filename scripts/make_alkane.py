"""Called by inputs/README.md: write the geometry of an all-trans n-alkane, C(n)H(2n+2), built from
ideal internal coordinates.

    python scripts/make_alkane.py 20 > inputs/c20h42.xyz

Every angle at carbon is tetrahedral, arccos(-1/3), every backbone dihedral 180 degrees, every
methyl group staggered. The chain zigzags in the xz plane along z; no optimisation, so a file can be
reproduced to the last digit.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

CC_ANGSTROM = 1.53
CH_ANGSTROM = 1.09
HALF_ANGLE = math.acos(-1.0 / 3.0) / 2.0

Atom = tuple[str, float, float, float]


def alkane(n_carbon: int) -> list[Atom]:
    """Atoms of the all-trans alkane: the carbons from one end to the other, then the hydrogens.

    Parameters
    ----------
    n_carbon : number of carbon atoms, at least 2

    Returns
    -------
    atoms : list of (symbol, x, y, z), angstrom

    Raises
    ------
    ValueError : `n_carbon` is below 2, so that no C-C bond defines the direction of the chain
    """
    if n_carbon < 2:
        raise ValueError(f"n_carbon is {n_carbon}; an alkane chain needs at least 2 carbon atoms")
    # Half of a C-C bond's projection on x (zigzag), and its full projection on the chain axis z.
    half_width = 0.5 * CC_ANGSTROM * math.cos(HALF_ANGLE)
    pitch = CC_ANGSTROM * math.sin(HALF_ANGLE)
    # Hydrogens of a CH2 group: on the outer side of the zigzag (x), above and below its plane (y).
    hx, hy = CH_ANGSTROM * math.cos(HALF_ANGLE), CH_ANGSTROM * math.sin(HALF_ANGLE)
    sides = [1.0 if k % 2 == 0 else -1.0 for k in range(n_carbon)]
    carbons: list[Atom] = [("C", sides[k] * half_width, 0.0, k * pitch) for k in range(n_carbon)]
    hydrogens: list[Atom] = []
    for k, (_, x, _, z) in enumerate(carbons):
        if k == 0:
            # Continues the zigzag at this end
            hydrogens.append(("H", x - sides[k] * hx, 0.0, z - hy))
        hydrogens.extend(("H", x + sides[k] * hx, y, z) for y in (hy, -hy))
        if k == n_carbon - 1:
            hydrogens.append(("H", x - sides[k] * hx, 0.0, z + hy))
    return carbons + hydrogens


def to_xyz(atoms: Sequence[Atom], comment: str) -> str:
    """The atoms as text in the xyz format, angstrom with eight decimals."""
    rows = [f"{symbol:<2}{x:14.8f}{y:14.8f}{z:14.8f}" for symbol, x, y, z in atoms]
    return "\n".join([str(len(atoms)), comment, *rows]) + "\n"


def main() -> None:
    """Command line: one number in, one xyz file on standard output."""
    parser = argparse.ArgumentParser(
        description="xyz file of an all-trans n-alkane, on standard output"
    )
    parser.add_argument("n_carbon", type=int, help="number of carbon atoms, at least 2")
    n = parser.parse_args().n_carbon
    try:
        atoms = alkane(n)
    except ValueError as error:
        parser.error(str(error))
    source = (
        f"ideal r(C-C)={CC_ANGSTROM}, r(C-H)={CH_ANGSTROM} angstrom, tetrahedral angles; "
        f"scripts/make_alkane.py {n}"
    )
    print(to_xyz(atoms, f"C{n}H{2 * n + 2}, all-trans n-alkane; {source}"), end="")


if __name__ == "__main__":
    main()
