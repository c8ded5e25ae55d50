"""Write the geometry of an all-trans n-alkane, C(n)H(2n+2), built from ideal internal coordinates.

    python scripts/make_alkane.py 20 > inputs/c20h42.xyz

The geometry is that of `dfmp2.bench.alkane`.
"""

from __future__ import annotations

import argparse

from dfmp2.bench.alkane import CC_ANGSTROM, CH_ANGSTROM, alkane, to_xyz


def main() -> None:
    """Command line: one number in, one xyz file on standard output."""
    parser = argparse.ArgumentParser(description="xyz file of an all-trans n-alkane, on standard output")
    parser.add_argument("n_carbon", type=int, help="number of carbon atoms, at least 2")
    n = parser.parse_args().n_carbon
    try:
        atoms = alkane(n)
    except ValueError as error:
        parser.error(str(error))
    source = (
        f"ideal r(C-C)={CC_ANGSTROM}, r(C-H)={CH_ANGSTROM} angstrom, tetrahedral angles; scripts/make_alkane.py {n}"
    )
    print(to_xyz(atoms, f"C{n}H{2 * n + 2}, all-trans n-alkane; {source}"), end="")


if __name__ == "__main__":
    main()
