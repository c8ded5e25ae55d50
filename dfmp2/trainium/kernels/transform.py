"""K12: a block of B from integrals fitted in float64, with both contractions in one program.

    X[nu, i, P] = sum_mu A_P[mu, nu] C_occ[mu, i]          B[i, a, P] = sum_nu X[nu, i, P] C_vir[nu, a]

X never leaves the core. A_P(mu, nu) = sum_Q L^-1_PQ (mu nu|Q) is computed in float64 on the host
and rounded once. The other order, raw (mu nu|Q) in float32 and the metric afterwards, would amplify
rounding by the metric's condition number and is not offered.

A call takes a piece of n slices of 128 fitting functions and one block of occupied orbitals. Pieces
come last to first: ao_to_mo makes the slices of one, followed by zeros; ao_to_mo_next puts those of
the next in front of the existing ones, pushing slices of padding out at the end.
  a       (n*NT*128, S', 128)      row (k*NT + nu_tile)*128 + mu, slice P*NT + mu_tile, column nu; S' is 128 NT, or one
                                   more if the bytes of a row would be a power of two; at most 2 GiB
  c_occ   (128, NT, edge)          row mu of a tile, slice mu_tile; nao padded to 128 NT
  c_vir   (128, NT, columns)       zero beyond nvir
  before  (edge*128, S, columns)   output of the previous call
  returns (edge*128, S, columns)   a block of B as pair_energy.py reads it, with `stored` = S slices
Limits: NT <= 15; beyond that a slice of A exceeds 2 GiB.
Budget of a slice, medium (NT 4, edge 8): 2,048 + 32 products, 72 copies; 134 MB of A in runs of 8
kB, 0.55 ms (trn1), which hide 0.21 ms of the Tensor Engine: 8 columns of C_occ cost as much as 64.
A is read again for every block.
Documented (pages of the AWS Neuron documentation): products into separate columns of a PSUM tile
(nki/api/generated/nki.isa.nc_matmul), and reads of it with a stride (nki/deep-dives/nki-aps).

    for slice k: for nu_tile: for 512/edge functions P: bank[P, i] = sum_mu_tile A_P^t C_occ;  X[nu_tile][i, P] = bank
                 for columns a <= 512: for i: bank[P, a] = sum_nu_tile X[nu_tile][i]^t C_vir;  store in row i, slice k
Twin: transform_twin in tests/twins.py
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import BANK, STAGE, P
from dfmp2.trainium.kernels.tiles import load, multiply, psum, sbuf, sbuf3

RUN_TILES = 16  # tiles of A in a load: runs of 8 kB


def half_transformed(a: nl.ndarray, k: int, c_tile: nl.ndarray) -> list[nl.ndarray]:
    """X of slice k: a tile (128 nu, edge, 128 P) for each tile of nu."""
    tiles = c_tile.shape[1]
    edge = c_tile.shape[2]
    shared = min(P, BANK // edge)  # fitting functions in one PSUM bank
    depth = max(1, RUN_TILES // tiles)  # of them in a load
    found = []
    for nu in range(tiles):
        x = sbuf3(edge, P)
        row = (k * tiles + nu) * P
        for first in range(0, P, shared):
            width = min(shared, P - first)
            bank = nl.ndarray((P, width, edge), dtype=nl.float32, buffer=nl.psum)
            for start in range(0, width, depth):
                count = min(depth, width - start)
                low = (first + start) * tiles
                a_tile = sbuf3(count * tiles, P)
                load(a_tile, a[row : row + P, low : low + count * tiles, 0:P])
                for member in range(count):
                    own = bank[:, start + member, 0:edge]
                    for mu in range(tiles):
                        multiply(
                            own, a_tile[:, member * tiles + mu, 0:P], c_tile[:, mu, 0:edge], mu > 0
                        )
            for i in range(edge):
                data = bank[:, 0:width, i : i + 1]
                if i % 2 == 0:
                    nisa.activation(dst=x[:, i, first : first + width], op=nl.copy, data=data)
                else:
                    nisa.tensor_copy(dst=x[:, i, first : first + width], src=data)
        found.append(x)
    return found


def make_slices(
    out: nl.ndarray, a: nl.ndarray, c_occ: nl.ndarray, c_vir: nl.ndarray, slices: int
) -> None:
    """Compute slices 0, 1, .. of out, as many as a has."""
    tiles = c_vir.shape[1]
    columns = c_vir.shape[2]
    c_tile = sbuf3(tiles, c_occ.shape[2])
    load(c_tile, c_occ)
    for k in range(slices):
        x = half_transformed(a, k, c_tile)
        for low in range(0, columns, BANK):
            high = min(columns, low + BANK)
            c_part = sbuf3(tiles, high - low)
            load(c_part, c_vir[0:P, 0:tiles, low:high])
            for i in range(c_occ.shape[2]):
                bank = psum(high - low)
                for nu in range(tiles):
                    multiply(bank, x[nu][:, i, 0:P], c_part[:, nu, 0 : high - low], nu > 0)
                b = sbuf(high - low)
                nisa.activation(dst=b, op=nl.copy, data=bank)
                load(out[i * P : (i + 1) * P, k, low:high], b)


@nki.jit
def ao_to_mo(a: nl.ndarray, c_occ: nl.ndarray, c_vir: nl.ndarray, stored: int) -> nl.ndarray:
    """A block of B with the slices of the last piece, followed by zeros; shapes and limits are in
    the module's docstring."""
    edge = c_occ.shape[2]
    columns = c_vir.shape[2]
    out = nl.ndarray((edge * P, stored, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    made = a.shape[0] // (c_vir.shape[1] * P)
    make_slices(out, a, c_occ, c_vir, made)
    if made < stored:
        zero = sbuf(columns)
        nisa.memset(dst=zero, value=0.0)
        for i in range(edge):
            for k in range(made, stored):
                load(out[i * P : (i + 1) * P, k, 0:columns], zero)
    return out


@nki.jit
def ao_to_mo_next(
    a: nl.ndarray, c_occ: nl.ndarray, c_vir: nl.ndarray, before: nl.ndarray
) -> nl.ndarray:
    """A block of B with the slices of another piece in front; shapes and limits are in the module's
    docstring."""
    stored = before.shape[1]
    columns = before.shape[2]
    out = nl.ndarray((before.shape[0], stored, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    made = a.shape[0] // (c_vir.shape[1] * P)
    make_slices(out, a, c_occ, c_vir, made)
    depth = max(1, STAGE // columns)
    for row in range(0, before.shape[0], P):
        for low in range(made, stored, depth):
            high = min(stored, low + depth)
            kept = sbuf3(high - low, columns)
            load(kept, before[row : row + P, low - made : high - made, 0:columns])
            load(out[row : row + P, low:high, 0:columns], kept)
    return out
