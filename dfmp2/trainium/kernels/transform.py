"""K1 and K2: B from integrals that were fitted in float64, in two contractions.

    X[nu, i, P] = sum_mu A_P[mu, nu] C_occ[mu, i]          B[i, a, P] = sum_nu X[nu, i, P] C_vir[nu, a]

A_P(mu, nu) = sum_Q L^-1_PQ (mu nu|Q) is made in float64 on the host and rounded once. The other order, raw (mu nu|Q) in
float32 and the metric afterwards, amplifies rounding by the metric's condition number and is not offered.

K1 half_transform, one call per 128 P and group of occupied orbitals; nao padded to 128 NT, nocc to groups of 64:
  a      (n*128*128, NT, 128)    row (nu_tile*128 + P)*128 + mu, slice mu_tile, column nu; n tiles of nu, at most 2 GiB
  c_occ  (128, NT, nocc)         row mu of a tile, slice mu_tile
  returns (n*128, nocc, 128)     X[nu, i, P]
K2 full_transform, one call per block of occupied orbitals:
  x      (NK*edge*NT*128, 128)   row ((k*edge + i)*NT + nu_tile)*128 + nu: K1's outputs of all NK batches, these i
  c_vir  (128, NT, columns)      zero beyond nvir
  returns (edge*128, S, columns)   a block of B as pair_energy.py reads it, with `stored` = S slices
Budget, medium (nao 512, nocc 64, nvir 448, NK 12): K1 2,048 products and 512 copies per call, K2 384 products and 96
copies per call: 2.3 and 2.0 ms of Tensor Engine in all (trn1). SBUF below 100 kB.

    K1: for nu_tile: for P: bank[P, i] = sum_mu_tile A_P^t C;  X[:, i, P] = bank;  store X
    K2: for i: for k: load X_i (128 P);  B[P, a] = sum_nu_tile X_i^t C;  store as slice k of row i
Twins: tests/twins.py
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.tiles import BANK, P, fetch_slices, load, multiply, psum, sbuf, sbuf3


@nki.jit
def half_transform(a: nl.ndarray, c_occ: nl.ndarray) -> nl.ndarray:
    """X of 128 fitting functions; shapes and limits: see the module."""
    tiles = c_occ.shape[1]
    rows = a.shape[0] // (P * P)
    nocc = c_occ.shape[2]
    shared = BANK // nocc  # fitting functions in one PSUM bank
    assert shared > 0, "at most 512 occupied orbitals"
    out = nl.ndarray((rows * P, nocc, P), dtype=nl.float32, buffer=nl.shared_hbm)
    c_tile = fetch_slices(c_occ)
    for nu in range(rows):
        x = sbuf3(nocc, P)
        for first in range(0, P, shared):
            count = min(shared, P - first)
            bank = psum(count * nocc)
            for member in range(count):
                a_tile = sbuf3(tiles, P)
                row = (nu * P + first + member) * P
                load(a_tile, a[row : row + P, 0:tiles, 0:P])
                for mu in range(tiles):
                    own = bank[:, member * nocc : (member + 1) * nocc]
                    multiply(own, a_tile[:, mu, 0:P], c_tile[:, mu, 0:nocc], mu > 0)
            for member in range(count):
                place = first + member
                data = bank[:, member * nocc : (member + 1) * nocc]
                if place % 2 == 0:
                    nisa.activation(dst=x[:, 0:nocc, place : place + 1], op=nl.copy, data=data)
                else:
                    nisa.tensor_copy(dst=x[:, 0:nocc, place : place + 1], src=data)
        load(out[nu * P : (nu + 1) * P, 0:nocc, 0:P], x)
    return out


@nki.jit
def full_transform(x: nl.ndarray, c_vir: nl.ndarray, edge: int, stored: int) -> nl.ndarray:
    """A block of B; shapes and limits: see the module."""
    tiles = c_vir.shape[1]
    columns = c_vir.shape[2]
    slices = x.shape[0] // (edge * tiles * P)
    out = nl.ndarray((edge * P, stored, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    c_tile = fetch_slices(c_vir)
    if stored > slices:
        zero = sbuf(columns)
        nisa.memset(dst=zero, value=0.0)
        for i in range(edge):
            load(out[i * P : (i + 1) * P, slices, 0:columns], zero)
    for i in range(edge):
        for k in range(slices):
            x_tile = sbuf3(tiles, P)
            for nu in range(tiles):
                row = ((k * edge + i) * tiles + nu) * P
                load(x_tile[:, nu, 0:P], x[row : row + P, 0:P])
            b = sbuf(columns)
            for low in range(0, columns, BANK):
                high = min(columns, low + BANK)
                bank = psum(high - low)
                for nu in range(tiles):
                    multiply(bank, x_tile[:, nu, 0:P], c_tile[:, nu, low:high], nu > 0)
                nisa.activation(dst=b[:, low:high], op=nl.copy, data=bank)
            load(out[i * P : (i + 1) * P, k, 0:columns], b)
    return out
