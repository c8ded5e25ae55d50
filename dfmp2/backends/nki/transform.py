"""Host side of K1 and K2: fitted integrals in, blocks of B on the device out.

    B_iaP = sum_mu nu A_P(mu, nu) C_occ(mu, i) C_vir(nu, a)        A_P fitted in float64, rounded to float32 here

Between K1 and K2 the host puts the outputs of all batches of 128 fitting functions below each other, for 8 occupied
orbitals at a time; nothing is permuted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.nki import layout
from dfmp2.backends.nki.calls import KERNELS
from dfmp2.backends.nki.executor import Executor
from dfmp2.backends.nki.layout import EDGE, Array, P


def transform(a: Array, c_occ: Array, c_vir: Array, executor: Executor) -> Iterator[NDArray[Any]]:
    """Blocks of B as `layout.pack_b` makes them, one per 8 occupied orbitals.

    Parameters
    ----------
    a : (naux, nao, nao) float64, Eh^1/2, symmetric in the last two; multiplied by L^-1 already
    c_occ : (nao, nocc), c_vir : (nao, nvir)
    """
    nao, nocc = c_occ.shape
    tiles, slices = -(-nao // P), layout.padded_naux(a.shape[0]) // P
    occupied = executor.upload(pack_orbitals(c_occ, -(-nocc // EDGE) * EDGE))
    virtual = executor.upload(pack_orbitals(c_vir, layout.tile_columns(layout.padded_nvir(c_vir.shape[1]))))
    halves = [
        executor.launch(
            f"{KERNELS}.transform",
            "half_transform",
            {"a": executor.upload(pack_fitted(a[k * P : (k + 1) * P], tiles)), "c_occ": occupied},
        )
        for k in range(slices)
    ]
    for first in range(0, nocc, EDGE):
        x = np.concatenate([half[:, first : first + EDGE] for half in halves])
        yield executor.launch(f"{KERNELS}.transform", "full_transform", {"x": executor.upload(x), "c_vir": virtual})


def pack_orbitals(c: Array, columns: int) -> Array:
    """C (nao, n) as (128, NT, columns): row mu of a tile, slice mu_tile; zero in the padding."""
    tiles = -(-c.shape[0] // P)
    padded = np.zeros((tiles * P, columns))
    padded[: c.shape[0], : c.shape[1]] = c
    return np.ascontiguousarray(padded.reshape(tiles, P, columns).transpose(1, 0, 2))


def pack_fitted(a: Array, tiles: int) -> Array:
    """Up to 128 A_P (n, nao, nao) as (NT*128*128, NT, 128): row (nu_tile*128 + P)*128 + mu, slice mu_tile, col. nu."""
    padded = np.zeros((P, tiles * P, tiles * P))
    padded[: a.shape[0], : a.shape[1], : a.shape[2]] = a
    cut = padded.reshape(P, tiles, P, tiles, P).transpose(3, 0, 2, 1, 4)  # nu_tile, P, mu, mu_tile, nu
    return np.ascontiguousarray(cut).reshape(tiles * P * P, tiles, P)
