"""Three-centre integrals (mu nu|P) in shell blocks, and their transformation to (ia|P).

The integrals of a block of fitting functions are evaluated with mu >= nu only, transformed at once
and forgotten: (mu nu|P) is never held as a whole. Both steps are float64 on the host. Blocks are
cut by size alone, so the memory budget never changes a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.orbitals import ActiveSpace
from dfmp2.progress import Stopwatch
from dfmp2.reference.shield import shielded

Array = NDArray[np.float64]

BLOCK_BYTES = 64 * 10**6  # of packed AO integrals per block


def coulomb_metric(auxmole: Any) -> Array:
    """(P|Q), shape (naux, naux) float64, of the fitting functions."""
    with shielded():
        return np.asarray(auxmole.intor("int2c2e", hermi=1))


def transformed_blocks(
    mole: Any, auxmole: Any, spaces: list[ActiveSpace], clock: Stopwatch
) -> Iterator[tuple[int, int, list[Array]]]:
    """Stream (ia|P) in blocks of fitting functions.

    Parameters
    ----------
    mole, auxmole : PySCF molecules carrying the orbital and the fitting functions
    spaces : active space of each spin; all spins share one evaluation of the integrals
    clock : charged with "integrals" and "transform"

    Yields
    ------
    (p0, p1, [(p1-p0, nocc, nvir) float64 per spin])
    """
    coefficients = [np.asfortranarray(np.hstack([s.c_occ, s.c_vir])) for s in spaces]
    blocks = packed_blocks(mole, auxmole)
    while True:
        with clock("integrals"):
            p0, p1, packed = next(blocks, (0, 0, None))
        if packed is None:
            return
        with clock("transform"), shielded():
            from pyscf.ao2mo import _ao2mo

            parts = [
                _ao2mo.nr_e2(packed, c, (0, s.nocc, s.nocc, s.nocc + s.nvir), aosym="s2").reshape(
                    p1 - p0, s.nocc, s.nvir
                )
                for s, c in zip(spaces, coefficients, strict=True)
            ]
        yield p0, p1, parts


def packed_blocks(mole: Any, auxmole: Any, out: Array | None = None) -> Iterator[tuple[int, int, Array]]:
    """Stream (P|mu nu), mu >= nu, in blocks of fitting functions.

    Parameters
    ----------
    out : (naux, nao (nao + 1) / 2) float64, C order: the blocks are written into it; None for fresh memory

    Yields
    ------
    (p0, p1, (p1-p0, nao (nao + 1) / 2) float64)
    """
    with shielded():
        from pyscf.gto import moleintor

        atm, bas, env = _joined(mole, auxmole)
        ao_loc = moleintor.make_loc(bas, "int3c2e_sph")
        optimiser = moleintor.make_cintopt(atm, bas[: mole.nbas], env, "int3c2e_sph")
        offset = ao_loc[mole.nbas]
        for first, last in shell_blocks(np.diff(ao_loc[mole.nbas :]), mole.nao):
            slices = (0, mole.nbas, 0, mole.nbas, mole.nbas + first, mole.nbas + last)
            p0, p1 = int(ao_loc[slices[4]] - offset), int(ao_loc[slices[5]] - offset)
            packed = moleintor.getints3c(
                "int3c2e_sph",
                *(atm, bas, env, slices),
                aosym="s2ij",
                ao_loc=ao_loc,
                cintopt=optimiser,
                out=None if out is None else out[p0:p1],
            ).T  # memory order is (P, mu >= nu) already
            yield p0, p1, packed


def shell_blocks(functions: NDArray[np.int32], nao: int) -> list[tuple[int, int]]:
    """Cut fitting shells into blocks of at most BLOCK_BYTES of packed integrals (one shell at least).

    Parameters
    ----------
    functions : number of functions of each shell
    nao : orbital basis functions
    """
    most = max(1, BLOCK_BYTES // (8 * nao * (nao + 1) // 2))
    blocks, first, held = [], 0, 0
    for shell, count in enumerate(functions):
        if held and held + count > most:
            blocks.append((first, shell))
            first, held = shell, 0
        held += int(count)
    blocks.append((first, len(functions)))
    return blocks


def block_functions(auxmole: Any, nao: int) -> int:
    """Fitting functions in the largest block, for the memory plan."""
    functions = np.diff(auxmole.ao_loc_nr())
    return max(int(functions[first:last].sum()) for first, last in shell_blocks(functions, nao))


def _joined(mole: Any, auxmole: Any) -> Any:
    from pyscf import gto

    return gto.conc_env(mole._atm, mole._bas, mole._env, auxmole._atm, auxmole._bas, auxmole._env)
