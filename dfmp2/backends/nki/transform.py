"""Host side of K1 and K2: fitted integrals in, blocks of B on the device out.

    B_iaP = sum_mu nu A_P(mu, nu) C_occ(mu, i) C_vir(nu, a)        A_P fitted in float64, rounded to float32 here

A batch of 128 A_P goes up once for all spins. Between K1 and K2 the host puts the outputs of all batches below each
other, for 8 occupied orbitals at a time; nothing is permuted. All spins have the columns of the one with most virtual
orbitals, so that they share both programs, and the programs of the pair energies as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.nki import layout
from dfmp2.backends.nki.calls import KERNELS
from dfmp2.backends.nki.executor import Executor
from dfmp2.backends.nki.layout import EDGE, GROUP, Array, P
from dfmp2.untransformed import UntransformedTensor, unpacked

SOURCE = f"{KERNELS}.transform"


def transform(tensors: Sequence[UntransformedTensor], executor: Executor) -> list[tuple[Any, ...]]:
    """Blocks of B as `layout.pack_b` makes them, one per 8 occupied orbitals, resident, for each spin.

    Parameters
    ----------
    tensors : one per spin, of the same fitted integrals
    """
    a, nao = tensors[0].a, len(tensors[0].c_occ)
    tiles, slices = -(-nao // P), layout.padded_naux(len(a)) // P
    columns = layout.tile_columns(layout.padded_nvir(max(t.shape[1] for t in tensors)))
    groups = [[executor.upload(pack_orbitals(part, GROUP)) for part in _parts(t.c_occ, GROUP)] for t in tensors]
    virtual = [executor.upload(pack_orbitals(t.c_vir, columns)) if columns else None for t in tensors]
    halves: list[list[list[NDArray[Any]]]] = [[[] for _ in own] for own in groups]  # spin, group of orbitals, batch
    for k in range(slices):
        batch = executor.upload(pack_fitted(unpacked(a[k * P : (k + 1) * P], nao), tiles))
        for own, found in zip(groups, halves, strict=True):
            for c_occ, half in zip(own, found, strict=True):
                half.append(executor.launch(SOURCE, "half_transform", {"a": batch, "c_occ": c_occ}))

    def full(first: int, found: list[list[NDArray[Any]]], c_vir: Any) -> Any:
        at = first % GROUP
        x = np.concatenate([half[:, at : at + EDGE] for half in found[first // GROUP]])
        return executor.keep(SOURCE, "full_transform", {"x": executor.upload(x), "c_vir": c_vir})

    return [
        tuple(full(first, found, c_vir) for first in range(0, tensor.shape[0], EDGE)) if columns else ()
        for tensor, found, c_vir in zip(tensors, halves, virtual, strict=True)
    ]


def _parts(c: Array, size: int) -> list[Array]:
    return [c[:, first : first + size] for first in range(0, c.shape[1], size)]


def pack_orbitals(c: Array, columns: int) -> Array:
    """C (nao, n) as (128, NT, columns): row mu of a tile, slice mu_tile; zero in the padding."""
    tiles = -(-c.shape[0] // P)
    padded = np.zeros((tiles * P, columns))
    padded[: c.shape[0], : c.shape[1]] = c
    return np.ascontiguousarray(padded.reshape(tiles, P, columns).transpose(1, 0, 2))


def pack_fitted(a: Array, tiles: int) -> Array:
    """Up to 128 A_P (n, nao, nao) as (NT*128*128, NT, 128): row (nu_tile*128 + P)*128 + mu, slice mu_tile, col. nu."""
    packed = np.zeros((tiles, P, P, tiles, P))  # nu_tile, P, mu, mu_tile, nu
    for nu, mu in np.ndindex(tiles, tiles):
        part = a[:, mu * P : (mu + 1) * P, nu * P : (nu + 1) * P]
        packed[nu, : part.shape[0], : part.shape[1], mu, : part.shape[2]] = part
    return packed.reshape(tiles * P * P, tiles, P)
