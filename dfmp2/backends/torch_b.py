"""Integrals on a PyTorch device: B made there, and J and K from a B of the host.

B is computed in float64, from integrals sent by the host in blocks:

    (Q|ia) = sum_mu,nu C_mu,i (Q|mu nu) C_nu,a        B_iaP = sum_Q L^-1_PQ (Q|ia)

A block of packed integrals is uploaded once, unpacked to full matrices and multiplied twice for
each spin. The transformed integrals stay on the device if all of them fit; otherwise they are
downloaded block by block, and uploaded again for the fit, a group of orbitals at a time.

Coulomb and exchange matrices are made from fitted integrals computed by the host:

    J_c = sum_P B_Pc sum_d B_Pd D_d        K_mn = sum_Pi X_Pi,m X_Pi,n        X_P = B_P C

c and d are pairs of basis functions. B is uploaded once if the device has room for it, otherwise
for each J and K in blocks of fitting functions. Their sums stay on the device until all blocks are
done. Source: Weigend, Phys. Chem. Chem. Phys. 4, 4285 (2002).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.backends.untransformed import packed_places

if TYPE_CHECKING:
    from dfmp2.backends.torch import TorchBackend

if TYPE_CHECKING:
    from dfmp2.backends.torch import TorchBackend, TorchOperand


class SpinOrbitals(Protocol):
    """Correlated orbitals of a spin."""

    @property
    def c_occ(self) -> Array:
        """(nao, nocc) coefficients."""
        ...

    @property
    def c_vir(self) -> Array:
        """(nao, nvir) coefficients."""
        ...

    @property
    def eps_occ(self) -> Array:
        """(nocc,), Eh."""
        ...

    @property
    def eps_vir(self) -> Array:
        """(nvir,), Eh."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ResidentTensor:
    """B of one spin, resident on the device.

    Attributes
    ----------
    backend : backend of the device
    operand : in float64
    order : order of the fitting functions in float32, (naux,) on the device
    """

    backend: TorchBackend
    operand: TorchOperand
    order: Any

    @property
    def shape(self) -> tuple[int, int, int]:
        """(nocc, nvir, naux)."""
        nocc, nvir, naux = self.operand.b.shape
        return int(nocc), int(nvir), int(naux)

    def at(self, precision: str) -> TorchOperand:
        """The operand in "mixed" or "fp64"."""
        exact = self.operand
        if precision == "fp64":
            return exact
        single = exact.b.new_empty(exact.b.shape, dtype=self.backend.single)
        for i in range(len(exact.b)):
            single[i] = exact.b[i].index_select(1, self.order)
        return self.backend.operand(single, exact.eps_occ, exact.eps_vir, precision)


def make_resident_b(
    backend: TorchBackend,
    blocks: Iterable[tuple[int, int, Array]],
    factor: Array,
    spaces: Sequence[SpinOrbitals],
    fetched: Sequence[SpinOrbitals],
) -> list[Any]:
    """B of each space.

    Parameters
    ----------
    blocks : (p0, p1, (p1-p0, nao (nao + 1) / 2) float64) of (Q|mu nu), Eh, valid until the next one
    factor : (naux, n) float64, Eh^-1/2; B is (Q|ia) times this
    spaces : orbitals whose B stays on the device if all of it fits
    fetched : orbitals whose B is wanted on the host

    Returns
    -------
    A `ResidentTensor` or an array (nocc, nvir, n) float64, Eh^1/2, for each of `spaces`; then
    arrays.
    """
    every = [*spaces, *fetched]
    naux, kept = factor.shape
    sizes = [space.c_occ.shape[1] * space.c_vir.shape[1] for space in every]
    room = backend.room()
    wanted = device_bytes(sum(sizes[: len(spaces)]), naux, kept, len(every[0].c_occ))
    stays = room is None or wanted <= room
    raw = _transformed(backend, blocks, naux, every, len(spaces) if stays else 0)
    inverse = backend.transfers.up(factor, backend.double)
    tensors: list[Any] = []
    for number, target in enumerate(raw):
        tensors.append(_fitted(backend, target, inverse))
        raw[number] = target = None
    if not stays:
        return tensors
    resident = [
        backend.operand(tensor, space.eps_occ, space.eps_vir, "fp64")
        for tensor, space in zip(tensors, spaces, strict=False)
    ]
    weights = sum((operand.b**2).sum(1).sum(0) for operand in resident)
    order = weights.argsort(stable=True)
    return [
        *(ResidentTensor(backend, operand, order) for operand in resident),
        *tensors[len(spaces) :],
    ]


def device_bytes(elements: int, naux: int, kept: int, nao: int) -> int:
    """Bytes of device memory if B is computed there and stays: integrals and B together, the
    inverse metric, and rows of integrals.

    Parameters
    ----------
    elements : nocc nvir over all spins; naux, kept : numbers of fitting functions, before and after
        the fit
    """
    return 8 * (naux + kept) * elements + 8 * naux * (naux + nao)


def _transformed(
    backend: TorchBackend,
    blocks: Iterable[tuple[int, int, Array]],
    naux: int,
    spaces: Sequence[SpinOrbitals],
    resident: int,
) -> list[Any]:
    """(Q|ia) of each space, (nocc, nvir, naux): tensors of the first `resident`, then arrays."""
    transfers = backend.transfers
    nao = len(spaces[0].c_occ)
    places = transfers.up(packed_places(nao).reshape(-1), backend.index)
    occupied = [transfers.up(space.c_occ, backend.double) for space in spaces]
    virtual = [transfers.up(space.c_vir, backend.double).T for space in spaces]
    targets: list[Any] = []
    for number, space in enumerate(spaces):
        shape = (space.c_occ.shape[1], space.c_vir.shape[1], naux)
        if number < resident:
            targets.append(occupied[number].new_empty(shape))
        else:
            targets.append(np.empty(shape))
    step = max(1, backend.limits.tile_elements // nao**2)
    for p0, p1, packed in blocks:
        there = transfers.up(packed, backend.double)
        for start in range(0, p1 - p0, step):
            some = there[start : start + step]
            whole = some.index_select(1, places).view(len(some), nao, nao)
            first = p0 + start
            for number, target in enumerate(targets):
                part = virtual[number] @ (whole @ occupied[number])  # (Q, a, i)
                columns = slice(first, first + len(some))
                if number < resident:
                    target[:, :, columns] = part.permute(2, 1, 0)
                else:
                    target[:, :, columns] = transfers.down(part)().transpose(2, 1, 0)
    return targets


def _fitted(backend: TorchBackend, raw: Any, inverse: Any) -> Any:
    """B in place of (Q|ia), on the device or the host, a group of orbitals at a time."""
    nocc, nvir, naux = raw.shape
    kept = inverse.shape[1]
    on_host = isinstance(raw, np.ndarray)
    if kept == naux:
        fitted = raw
    elif on_host:
        fitted = np.empty((nocc, nvir, kept))
    else:
        fitted = raw.new_empty((nocc, nvir, kept))
    step = max(1, backend.limits.tile_elements // max(1, nvir * naux))
    for i in range(0, nocc, step):
        rows = raw[i : i + step]
        if on_host:
            there = backend.transfers.up(rows, backend.double)
            fitted[i : i + step] = backend.transfers.down(there @ inverse)()
        else:
            fitted[i : i + step] = rows @ inverse
    return fitted


class DeviceFields:
    """J and K for densities, from B in host memory.

    Parameters
    ----------
    backend : backend of the device
    b : (naux, ncolumn) float64, Eh^1/2, pairs of basis functions that are not negligible
    places : (nao, nao) column of each pair; ncolumn for a negligible one
    """

    def __init__(self, backend: TorchBackend, b: Array, places: NDArray[np.intp]) -> None:
        self._backend = backend
        self._b = b
        self._nao = len(places)
        self._places = backend.transfers.up(places.reshape(-1), backend.index)
        self._resident: Any = None
        room = backend.room()
        if room is None or b.nbytes <= room:
            self._resident = backend.transfers.up(b, backend.double)
            backend.transfers.hold(self._resident, b.nbytes)

    def matrices(
        self, folded: Array, occupied: Sequence[Array], *, single: bool, exchange: bool
    ) -> tuple[Array, Array]:
        """J for each density, (nspin, ncolumn), and K, (nspin, nao, nao), float64, Eh.

        Parameters
        ----------
        folded : (nspin, ncolumn) density, with off-diagonal elements doubled
        occupied : (nao, n) orbitals of each spin, scaled with the root of their occupation
        single : whether K uses float32 products, whose blocks are added up in float64
        exchange : whether to compute K; otherwise it is 0
        """
        backend = self._backend
        transfers = backend.transfers
        dtype = backend.single if single else backend.double
        density = transfers.up(folded, backend.double)
        orbitals = [transfers.up(c, dtype) for c in occupied]
        j = density.new_zeros(density.shape)
        k = density.new_zeros((len(occupied), self._nao, self._nao))
        for block in self._blocks():
            j += (density @ block.T) @ block
            if exchange:
                self._add_exchange(block, orbitals, k)
        j_on_host = transfers.down(j)
        k_on_host = transfers.down(k)
        return j_on_host(), k_on_host()

    def _add_exchange(self, block: Any, orbitals: list[Any], k: Any) -> None:
        """Add the share of a block of B, (n, ncolumn), to K of each spin, by products in the type
        of the orbitals."""
        padded = block.new_zeros((len(block), block.shape[1] + 1), dtype=orbitals[0].dtype)
        padded[:, :-1] = block
        whole = padded.index_select(1, self._places).view(-1, self._nao, self._nao)
        for spin, c in enumerate(orbitals):
            half = (whole @ c).transpose(1, 2).reshape(-1, self._nao)  # ((P, i), m)
            k[spin] += half.T @ half

    def _blocks(self) -> Iterator[Any]:
        step = max(1, self._backend.limits.tile_elements // self._nao**2)
        for start in range(0, len(self._b), step):
            if self._resident is None:
                yield self._backend.transfers.up(
                    self._b[start : start + step], self._backend.double
                )
            else:
                yield self._resident[start : start + step]
