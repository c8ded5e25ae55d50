"""Time of the opposite-spin energy by a Laplace transform, relative to the pair step, of one alkane.

    python scripts/benchmarks/laplace.py [--carbon 40] [--threads 2] [--folder DIR]

One SCF and one B (`dfmp2 prepare`, frozen core, cc-pVDZ), from which `sos-mp2` and `sos-laplace` go on; wall times of
their pair step. The SCF is converged to 1e-5 Eh only, which neither time depends on. C40H82 (970 functions) takes about
10 minutes on two cores, 6 GB of memory and 3 GB of disk. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quadratures import alkane

import dfmp2


def measured(carbon: int, threads: int, folder: str | None) -> dict[str, Any]:
    """Times, s, of both pair steps, and what they have in common."""
    first = {
        "frozen_core": "auto",
        "precision": "fp64",
        "stability": "off",
        "scf_conv_tol": 1e-5,
        "threads": threads,
    }
    with tempfile.TemporaryDirectory(dir=folder) as place:
        file = Path(place) / "alkane.prepared.h5"
        prepared = dfmp2.prepare(alkane(carbon), "cc-pvdz", file, **first)
        pairs, laplace = (
            dfmp2.energy(file, method=name, threads=threads) for name in ("sos-mp2", "sos-laplace")
        )
    spent = [run.timings.pair_energies for run in (pairs, laplace)]
    assert laplace.quadrature is not None
    return {
        "molecule": prepared.molecule.formula,
        "functions": prepared.sizes.nao,
        "threads": threads,
        "scf and B / s": round(prepared.timings.total, 1),
        "pairs / s": round(spent[0], 2),
        "laplace / s": round(spent[1], 2),
        "ratio": round(spent[1] / spent[0], 3),
        "exponents": laplace.quadrature.points,
        "difference / Eh": laplace.correlation_energy - pairs.correlation_energy,
        "bound / Eh": laplace.quadrature.error,
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--carbon", type=int, default=40, help="carbon atoms")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="for the file of B; default: that of temporary files")
    given = parser.parse_args()
    print(json.dumps(measured(given.carbon, given.threads, given.folder), indent=1))


if __name__ == "__main__":
    main()
