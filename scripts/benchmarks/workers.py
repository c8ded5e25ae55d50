"""The pair step by workers of one thread that are already up, beside one process with as many threads.

    python scripts/benchmarks/workers.py inputs/water-8.xyz --basis cc-pvtz

Workers read and check B within the pair step, the one process before it. Exit code 1 when the energies are not the same
number, or the workers reach less than --least of the rate.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from programs import private_folder

import dfmp2
from dfmp2.execution.pairs import by_workers
from dfmp2.execution.pool import Pool, Share
from dfmp2.output.prepared import energy, opened, options_for
from dfmp2.progress import Listener

MEMORY = 4 * 10**9  # bytes of each process


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("molecule", type=Path)
    parser.add_argument("--basis", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.85)
    given = parser.parse_args()
    here, elsewhere, energies = [], [], set()
    with private_folder() as name:
        path = Path(name) / "x.prepared.h5"
        dfmp2.prepare(given.molecule, given.basis, path, precision="fp64", listener=Listener())
        for _ in range(given.repeat):
            found = dfmp2.energy(path, threads=given.workers, memory=MEMORY, listener=Listener())
            here.append(found.timings.pair_energies)
            with opened(path) as source, Pool([{}] * given.workers, Share(1, MEMORY)) as pool:
                pool.grow(given.workers)
                while pool.busy:  # imports
                    for slot in pool.finished():
                        slot.release()
                options = options_for(
                    source.prepared, {"threads": 1, "memory": MEMORY, "backend": "cpu"}
                )
                hand_out = partial(by_workers, pool, source.path)
                begun = time.perf_counter()
                result = energy(source, options, listener=Listener(), elsewhere=hand_out)
                whole = time.perf_counter() - begun
            elsewhere.append(result.timings.pair_energies)
            energies |= {found.mp2_correlation_energy, result.mp2_correlation_energy}
            print(
                f"one process {here[-1]:.2f} s, workers {elsewhere[-1]:.2f} s ({whole:.2f} s with all around it)"
            )
    rate = min(here) / min(elsewhere)
    print(
        f"{given.workers} workers of 1 thread: {rate:.2f} of the rate of {given.workers} threads; E(corr) {energies}"
    )
    return int(len(energies) > 1 or rate < given.least)


if __name__ == "__main__":
    sys.exit(main())
