"""K3, cross mode: direct terms of all pairs between a block of alpha and a block of beta occupied
orbitals.

    T_ab = sum_P B_iaP B_jbP     J = sum_ab T_ab^2 / (e_a + e_b - e_i - e_j)     a alpha, b beta

T is rectangular, so nothing is folded or transposed, and there is no exchange.

Dimensions: NT = ceil(nvir_a/128) row tiles; n = nvir_b in parts (pair_energy.py), a unit is one
tile of one part.
  b_i       (ni*128, NK, 128 NT), b_j (nj*128, NK, 128 ceil(n/128)): as in pair_energy.py, same number of slices
  eu        (128, NT*n)             e_a + e_b, row tile after row tile
  neg       (128, ni*nj)            -(e_i + e_j), pairs in the order in which they are emitted
  returns   (128, ni*nj*units)  one column of partial sums per unit
Limits: residents = 1 if B_j comes in parts.
Budget per pair, medium: 48 Tensor, 8 Vector, 4 Scalar Engine statements, 31 us of Tensor Engine
(trn1).

    as pair_energy.py, and per unit:  H = (eu + neg)^(-1/2);  X = B_i[A]^t B_j;  out = row sum of (X H)^2
Twins: tests/twins.py
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import P, parts_of, traversal
from dfmp2.trainium.kernels.tiles import (
    TOGETHER,
    advance,
    contract,
    fetch,
    inverse_root,
    load,
    load_part,
    psum,
    row_sum,
    sbuf,
)


@nki.jit
def pair_energy_cross(
    b_i: nl.ndarray,
    b_j: nl.ndarray,
    eu: nl.ndarray,
    neg: nl.ndarray,
    nvir: int,
    slices: int,
    residents: int,
) -> nl.ndarray:
    """J partial sums of a block of alpha-beta pairs; nvir : of b_j, padded to 32. Shapes and limits
    are in the module's docstring."""
    rows = b_i.shape[0] // P
    across = b_j.shape[0] // P
    tiles = b_i.shape[2] // P
    parts = parts_of(nvir, slices)
    width = (nvir + parts - 1) // parts
    units = tiles * parts

    out = nl.ndarray((P, rows * across * units), dtype=nl.float32, buffer=nl.shared_hbm)
    eu_tile = fetch(eu, eu.shape[1], [], 0)
    neg_tile = sbuf(rows * across)
    load(neg_tile, neg)
    steps = traversal(rows, across, residents, parts, False)
    together = 2
    if parts == 1:
        together = min(tiles, TOGETHER)
    groups = (tiles + together - 1) // together
    coming = load_part(b_j, slices, steps[0], nvir)
    count_held = residents * groups
    arrived = advance(b_i, slices, together, ([], [], 0), 1, count_held, [], 0)
    sums = neg_tile
    for step in range(len(steps)):
        first = steps[step][0]
        j = steps[step][1]
        low = steps[step][2] * width
        high = min(nvir, low + width)
        if step == 0 or steps[step - 1][0] != first:
            sums = sbuf(min(residents, rows - first) * across * units)
        part = coming
        more = step + 1 < len(steps)
        turning = more and steps[step + 1][0] != first
        if more and not turning:
            coming = load_part(b_j, slices, steps[step + 1], nvir)
        present = min(residents, rows - first)
        for member in range(present):
            for row in range(tiles):
                size = high - low
                pair = across * member + j
                h = sbuf(size)
                at = across * first + pair
                inverse_root(
                    h, eu_tile[:, row * nvir + low : row * nvir + high], neg_tile[:, at : at + 1]
                )
                x = psum(size)
                contract(
                    x,
                    arrived[0][(first + member) * groups + row // together],
                    P * (row % together),
                    part,
                    size,
                )
                xh = sbuf(size)
                nisa.tensor_tensor(dst=xh, data1=x, data2=h, op=nl.multiply)
                at = units * pair + steps[step][2] * tiles + row
                row_sum(sums[:, at : at + 1], sbuf(size), xh, True)
                following = (first + member) * groups + (row + 1) // together
                if row == tiles - 1:
                    following = (first + (member + 1) % present) * groups
                if row == tiles - 1 and member + 1 == present and turning:
                    following = (first + residents) * groups
                allowed = (first + residents) * groups
                if turning:
                    done = following - first * groups
                    if parts == 1:
                        done += 1
                    allowed += min(count_held, done)
                arrived = advance(b_i, slices, together, arrived, following + 1, allowed, [], 0)
        if not more or turning:
            load(out[:, units * across * first : units * across * (first + present)], sums)
        if turning:
            coming = part  # every row of blocks begins with the last B_j of the previous one
    return out
