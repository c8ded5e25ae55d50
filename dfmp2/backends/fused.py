"""A Triton kernel for the pair sums of a product in one pass over memory.

A product leaves G[j,b,i,a] = (ia|jb) in device memory; the kernel reads each element once and
writes two numbers per pair and block of virtual orbitals,

    direct_ij = sum_ab G_ab^2 / D_ab        exchange_ij = sum_ab G_ab G_ba / D_ab
    D_ab = e_i + e_j - e_a - e_b            each term optionally times (1 - exp(kappa D_ab))^2

D is symmetric in a and b if both spins are the same, so a block (A, B) of G and its mirror image
(B, A) are read together and used for both sums. Row sums of BLOCK terms are computed in the type of
G, everything beyond them in float64. The plain equivalent is `dfmp2.backends.torch.plain_sums`.

One program instance handles one pair and one block of rows. Registers: three blocks of BLOCK^2
numbers over WARPS * 32 threads.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from typing import Any

BLOCK = 32
WARPS = 4
COMPILERS = ("cc", "gcc", "clang")  # one of which Triton calls for its launcher, if CC is not set


def refusal() -> str | None:
    """Why the kernel cannot be used here, None if it can."""
    try:
        import triton
    except ImportError as error:
        return f"Triton does not import ({error}): install triton alongside PyTorch"
    if triton.knobs.runtime.interpret:
        return None
    named = os.environ.get("CC")
    if named:
        compilers: tuple[str, ...] = (named,)
    else:
        compilers = COMPILERS
    if not any(shutil.which(name) for name in compilers):
        return f"Triton needs a C compiler and finds none of {', '.join(compilers)}"
    return None


def triton_version() -> str:
    """Version of Triton."""
    import triton

    return str(triton.__version__)


def add_pair_sums(
    sums: Any,
    product: Any,
    block: tuple[int, int, int, int],
    energies: tuple[Any, Any, Any, Any],
    kappa: Any,
    *,
    exchange: bool,
    triangle: bool,
) -> None:
    """Write the sums for the pairs of a product to their places.

    Parameters
    ----------
    sums : (1 or 2, ni, nj, blocks of rows) float64, Eh
        Direct sums of a tile, and exchange sums if wanted.
    product : (J, nb, I, na) contiguous, Eh
        (ia|jb) of I occupied orbitals on the left and J on the right.
    block : (i, j, first i, first j)
        Start of the product in the tile, and in the two sets of occupied orbitals.
    energies : (ni,), (na,), (nj,), (nb,) in the type of the product, Eh
        Occupied and virtual orbitals of the left, then of the right.
    kappa : (1,) in the type of the product, regulariser, 1/Eh; None without one
    exchange : whether both sides have the same spin
    triangle : whether pairs i > j are left out
    """
    width, nb, height, na = product.shape
    if kappa is None:
        damping = sums  # not read
    else:
        damping = kappa
    _kernel()[(width * height, sums.shape[3])](
        sums,
        product,
        *energies,
        height,
        na,
        nb,
        sums.shape[1],
        sums.shape[2],
        *block,
        damping,
        exchange=exchange,
        triangle=triangle,
        damped=kappa is not None,
        size=BLOCK,
        num_warps=WARPS,
    )


@cache
def _kernel() -> Any:
    """The kernel; Triton is imported only here."""
    import triton
    import triton.language as tl

    sizes = ["height", "na", "nb", "ni", "nj", "i_in_tile", "j_in_tile", "first_i", "first_j"]

    @triton.jit(do_not_specialize=sizes)  # type: ignore[untyped-decorator]
    def pair_sums(  # type: ignore[no-untyped-def]
        sums,
        product,
        left_occupied,
        left_virtual,
        right_occupied,
        right_virtual,
        height,
        na,
        nb,
        ni,
        nj,
        i_in_tile,
        j_in_tile,
        first_i,
        first_j,
        kappa,
        exchange: tl.constexpr,
        triangle: tl.constexpr,
        damped: tl.constexpr,
        size: tl.constexpr,
    ):
        pair = tl.program_id(0)
        row_block = tl.program_id(1)
        j = pair // height
        i = pair % height
        keep = True
        if triangle:
            keep = first_i + i <= first_j + j
        if keep:
            lanes = tl.arange(0, size)
            rows = row_block * size + lanes  # b
            e_ij = tl.load(left_occupied + first_i + i) + tl.load(right_occupied + first_j + j)
            e_b = tl.load(right_virtual + rows, mask=rows < nb, other=0.0)
            stride = height.to(tl.int64) * na
            base = product + (j.to(tl.int64) * nb) * stride + i.to(tl.int64) * na
            direct = tl.zeros([size], dtype=tl.float64)
            swapped = tl.zeros([size], dtype=tl.float64)
            first = row_block if exchange else 0
            for column_block in range(first, tl.cdiv(na, size)):
                columns = column_block * size + lanes  # a
                e_a = tl.load(left_virtual + columns, mask=columns < na, other=0.0)
                inside = (rows[:, None] < nb) & (columns[None, :] < na)
                places = base + rows[:, None].to(tl.int64) * stride + columns[None, :]
                g = tl.load(places, mask=inside, other=0.0)
                gap = tl.where(inside, e_ij - e_b[:, None] - e_a[None, :], -1.0)
                weight = 1.0 / gap
                if damped:
                    factor = 1.0 - tl.exp(tl.load(kappa) * gap)
                    weight = weight * factor * factor
                weight = weight.to(g.dtype)
                if exchange:
                    mirrored = base + columns[:, None].to(tl.int64) * stride + rows[None, :]
                    there = (columns[:, None] < na) & (rows[None, :] < nb)
                    t = tl.trans(tl.load(mirrored, mask=there, other=0.0))
                    if column_block == row_block:
                        direct += tl.sum(g * g * weight, axis=1).to(tl.float64)
                        swapped += tl.sum(g * t * weight, axis=1).to(tl.float64)
                    else:
                        direct += tl.sum((g * g + t * t) * weight, axis=1).to(tl.float64)
                        swapped += 2.0 * tl.sum(g * t * weight, axis=1).to(tl.float64)
                else:
                    direct += tl.sum(g * g * weight, axis=1).to(tl.float64)
            blocks = tl.num_programs(1)
            place = ((i_in_tile + i) * nj + j_in_tile + j) * blocks + row_block
            tl.store(sums + place, tl.sum(direct, axis=0))
            if exchange:
                tl.store(sums + ni * nj * blocks + place, tl.sum(swapped, axis=0))

    return pair_sums
