"""Three-centre integrals (mu nu|P) in shell blocks, and their transformation to (ia|P).

The integrals of a block of fitting functions are evaluated with mu >= nu only, transformed
immediately and discarded: (mu nu|P) is never in memory as a whole. Both steps are float64 on the
host. Blocks depend on sizes alone, so the memory budget never changes a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.molecule.pyscf_shield import shielded

BLOCK_BYTES = 64 * 10**6  # of packed AO integrals per block, unless memory is too short for that
EXPONENT_CUT = 33.0  # primitive pairs below e^-33 are skipped: errors of 2e-15 (libcint's own: 60)


def coulomb_metric(auxmole: Any) -> Array:
    """(P|Q), shape (naux, naux) float64, of the fitting functions."""
    with shielded():
        return np.asarray(auxmole.intor("int2c2e", hermi=1))


def smallest_overlap(mole: Any) -> float:
    """Smallest eigenvalue of the overlap of the basis functions; small if they are nearly linearly
    dependent."""
    with shielded():
        return float(np.linalg.eigvalsh(mole.intor("int1e_ovlp", hermi=1))[0])


def transformed_blocks(
    blocks: Iterable[tuple[int, int, Array]], spaces: list[ActiveSpace], threads: int
) -> Iterator[tuple[int, int, list[Array]]]:
    """(ia|P) for blocks of fitting functions.

    Parameters
    ----------
    blocks : iterable of tuple[int, int, array]
        As from `packed_blocks`.
    spaces : list of ActiveSpace
        Active space of each spin; all spins share one evaluation of the integrals.
    threads : int
        Number of workers.

    Yields
    ------
    (p0, p1, [(p1-p0, nocc, nvir) float64 per spin]), valid until the next is requested
    """
    from dfmp2.integrals.transform import Transformation

    transform = Transformation(spaces, threads)
    for p0, p1, packed in blocks:
        yield p0, p1, transform(packed)


def packed_blocks(
    mole: Any, auxmole: Any, out: Array | None = None, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, int, Array]]:
    """Stream (P|mu nu), mu >= nu, in blocks of fitting functions.

    Parameters
    ----------
    out : array, optional
        (naux, nao (nao + 1) / 2) float64, C order, to which the blocks are written; None for work
        space that the next block overwrites.
    block_bytes : int
        Size of a block; it changes no number.

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
        work = np.empty(
            (
                block_functions(auxmole, mole.nao, block_bytes) if out is None else 0,
                mole.nao * (mole.nao + 1) // 2,
            )
        )
        for first, last in shell_blocks(np.diff(ao_loc[mole.nbas :]), mole.nao, block_bytes):
            slices = (0, mole.nbas, 0, mole.nbas, mole.nbas + first, mole.nbas + last)
            p0 = int(ao_loc[slices[4]] - offset)
            p1 = int(ao_loc[slices[5]] - offset)
            packed = moleintor.getints3c(
                "int3c2e_sph",
                atm,
                bas,
                env,
                slices,
                aosym="s2ij",
                ao_loc=ao_loc,
                cintopt=optimiser,
                out=work[: p1 - p0] if out is None else out[p0:p1],
            ).T  # the memory order is (P, mu >= nu) already
            yield p0, p1, packed


def pair_integrals(mole: Any, auxmole: Any, first: int, last: int) -> Array:
    """(P|mu nu) of all fitting functions, mu in the shells first:last, nu <= mu: (naux, npair)
    float64, C order."""
    with shielded():
        from pyscf.gto import moleintor

        atm, bas, env = _joined(mole, auxmole)
        slices = (first, last, 0, mole.nbas, mole.nbas, mole.nbas + auxmole.nbas)
        values = moleintor.getints3c("int3c2e_sph", atm, bas, env, slices, aosym="s2ij")
    return np.asarray(values.T)


def shell_blocks(functions: NDArray[np.int32], nao: int, block_bytes: int) -> list[tuple[int, int]]:
    """Cut fitting shells into blocks of at most `block_bytes` of packed integrals (at least one
    shell).

    Parameters
    ----------
    functions : array
        Number of functions of each shell.
    nao : int
        Number of orbital basis functions.
    """
    most = max(1, block_bytes // (8 * nao * (nao + 1) // 2))
    blocks, first, held = [], 0, 0
    for shell, count in enumerate(functions):
        if held and held + count > most:
            blocks.append((first, shell))
            first, held = shell, 0
        held += int(count)
    blocks.append((first, len(functions)))
    return blocks


def block_functions(auxmole: Any, nao: int, block_bytes: int = BLOCK_BYTES) -> int:
    """Fitting functions in the largest block, for the memory plan; 0 for an empty set."""
    functions = np.diff(auxmole.ao_loc_nr())
    blocks = shell_blocks(functions, nao, block_bytes)
    return max((int(functions[first:last].sum()) for first, last in blocks), default=0)


def _joined(mole: Any, auxmole: Any) -> Any:
    from pyscf import gto

    atm, bas, env = gto.conc_env(
        mole._atm, mole._bas, mole._env, auxmole._atm, auxmole._bas, auxmole._env
    )
    env[gto.mole.PTR_EXPCUTOFF] = EXPONENT_CUT
    return atm, bas, env
