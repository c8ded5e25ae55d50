"""The interface between chemistry and devices.

A backend knows only arrays, not molecules, spin cases or files. For a tile of occupied pairs it
returns two numbers per pair, with D = e_i + e_j - e_a - e_b:

    direct_ij   = sum_ab (ia|jb)^2 / D              exchange_ij = sum_ab (ia|jb) (ib|ja) / D

and (ia|jb) = sum_P B_iaP B_jbP. A regularised backend has the factor (1 - exp(kappa D))^2 in every
term, where exp(kappa D) = exp(kappa (e_i - e_a)) exp(kappa (e_j - e_b)). RHF, UHF, SCS and frozen
core are built on top of these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import Option, UnsupportedByBackend

if TYPE_CHECKING:
    from dfmp2.backends.tensors import Tensors


class Shape(NamedTuple):
    """Sizes in the pair step of one spin: correlated occupied and virtual orbitals, and fitting
    functions."""

    nocc: int
    nvir: int
    naux: int

    @property
    def pairs(self) -> int:
        """Number of pairs i <= j."""
        return self.nocc * (self.nocc + 1) // 2

    @property
    def nao(self) -> int:
        """Number of orbital basis functions, if nothing is frozen."""
        return self.nocc + self.nvir


@dataclass(frozen=True, slots=True)
class Limits:
    """Capabilities of a device; the tiling depends only on these, not on the kind of backend.

    Attributes
    ----------
    precisions : subset of ("fp64", "mixed")
    tile_edge : most occupied orbitals along one edge of a tile of pairs
    tile_elements : most elements of (ia|jb) that a device should hold for one tile
    workers : number of tiles that may run at the same time
    memory : bytes of device memory for operands and work space, None if it is the host's
    least_edge : number of occupied orbitals to which a device pads a shorter edge of a tile, 1
        without padding
    transforms : whether the device can compute B itself (`put_untransformed`)
    work_elements : additional elements of work space for one tile; None for twice as many
    square : whether a product takes a block of i and j, rather than one i and several j
    compiles : whether programs have to be compiled before they run (`prepare`)
    edge_elements : elements of B along the edge of a tile, for a device that works on one tile at a
        time and prefers the largest that this and `tile_edge` allow; 0 to keep several workers busy
    product_edge : rows that each side of a product needs to fill the device; 0 for one i
    queued : number of tiles begun (`begin`) before the terms of the first are requested
    auto : the precision that `precision="auto"` stands for
    fits : whether the device computes B from raw integrals in float64 (`make_b`), and J and K
    single_bytes : bytes of a number of B that the device holds for products in float32
    """

    precisions: tuple[str, ...]
    tile_edge: int
    tile_elements: int
    workers: int
    memory: int | None = None
    least_edge: int = 1
    transforms: bool = False
    work_elements: int | None = None
    square: bool = False
    compiles: bool = False
    edge_elements: int = 0
    product_edge: int = 0
    queued: int = 0
    auto: str = "mixed"
    fits: bool = False
    single_bytes: int = 4

    @property
    def room(self) -> int | None:
        """Bytes of device memory for operands, excluding products, None if it is the host's."""
        if self.memory is None:
            return None
        return max(0, self.memory - 3 * 8 * self.tile_elements)

    def settled(self, precision: str) -> str:
        """The precision of the pair energies: "mixed" or "fp64" as requested; "auto" becomes "fp64"
        if the device is as fast in it, otherwise it stays "auto", so that a certificate decides."""
        if precision == "auto" and self.auto == "fp64":
            return "fp64"
        return precision


class Tile(NamedTuple):
    """A rectangle of occupied pairs i0 <= i < i1, j0 <= j < j1; `diagonal` keeps only i <= j."""

    i0: int
    i1: int
    j0: int
    j1: int
    diagonal: bool

    def shifted(self, rows: int, columns: int) -> Tile:
        """The same tile with orbitals counted from `rows` and `columns`."""
        return Tile(
            self.i0 - rows, self.i1 - rows, self.j0 - columns, self.j1 - columns, self.diagonal
        )


# Type of B by precision
NUMPY_TYPES: dict[str, type[np.float32] | type[np.float64]] = {
    "fp64": np.float64,
    "mixed": np.float32,
}


class PairTerms(NamedTuple):
    """Pair terms of a tile, float64, Eh.

    direct : (i1-i0, j1-j0); exchange : the same shape, or None if the two spins differ. Entries i >
        j of a diagonal tile are zero.
    """

    direct: NDArray[np.float64]
    exchange: NDArray[np.float64] | None


@dataclass(frozen=True, slots=True)
class Operand:
    """One spin's B and orbital energies in the device's memory, put there once and used for many
    tiles.

    Attributes
    ----------
    b : (nocc, nvir, naux), Eh^1/2, in the device's own array type
    eps_occ : (nocc,) float64, Eh
    eps_vir : (nvir,) float64, Eh
    precision : "fp64" or "mixed" (float32 products and elementwise operations, float64 from the row
        sums on)
    """

    b: Any
    eps_occ: NDArray[np.float64]
    eps_vir: NDArray[np.float64]
    precision: str

    def batches(self, backend: Backend, right: Any, tiles: list[Tile]) -> Iterator[Batch]:
        """As in `TileSource`: all tiles at once."""
        yield self, right, {tile: tile for tile in tiles}


Batch = tuple[Operand, Operand, dict[Tile, Tile]]


class TileSource(Protocol):
    """One spin's B, given to a backend in resident parts: an Operand or a substitute."""

    @property
    def b(self) -> Any:
        """An object of shape (nocc, nvir, naux)."""
        ...

    @property
    def eps_occ(self) -> NDArray[np.float64]:
        """(nocc,) float64, Eh."""
        ...

    def batches(self, backend: Backend, right: Any, tiles: list[Tile]) -> Iterator[Batch]:
        """Yield resident operands of this and of `right`, a source of the same kind, and for each
        tile of the batch, in their numbering, the original tile; valid until the next is taken."""
        ...


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted pair energies on one or more cores of an accelerator, with programs already
    compiled and loaded.

    Attributes
    ----------
    chip, lane : type of core, and how calls are launched
    device : time on the core at full use, s; usual, slowest : at 85 % and 40 % of the peak of its
        products, as reached by AWS's tuned products and others' float32 kernels on trn1; dispatch :
        launches, each waited for; queued : launches, only the last waited for; link : uploads and
        downloads
    calls, neffs : kernel calls and compiled programs
    memory, available : bytes of device memory needed and available, on the fullest core
    cores : number of cores that share the pairs; uploaded : bytes of B sent to all of them
    obstacle : why it cannot run, "" if it can
    """

    chip: str
    lane: str
    device: float = 0.0
    dispatch: float = 0.0
    link: float = 0.0
    calls: int = 0
    neffs: int = 0
    memory: int = 0
    available: int = 0
    obstacle: str = ""
    cores: int = 1
    uploaded: int = 0
    usual: float = 0.0
    slowest: float = 0.0
    queued: float = 0.0


def decays(
    kappa: float, left: Operand, right: Operand, dtype: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """exp(kappa (e_i - e_a)), (nocc, nvir), of each operand; their product is exp(kappa D)."""
    both = [
        np.exp(kappa * (one.eps_occ[:, None] - one.eps_vir)).astype(dtype) for one in (left, right)
    ]
    return both[0], both[1]


OperandT = TypeVar("OperandT", bound=Operand)


class Device(ABC, Generic[OperandT]):
    """A device that evaluates pair terms from its own kind of operands: three methods that every
    backend has, and others with defaults for a host."""

    name: str
    limits: Limits

    @abstractmethod
    def put(
        self,
        b: NDArray[Any],
        eps_occ: NDArray[np.float64],
        eps_vir: NDArray[np.float64],
        precision: str,
    ) -> OperandT:
        """Make (nocc, nvir, naux) B resident in the given precision; for "mixed" it may be float32
        or float64."""

    @abstractmethod
    def pair_terms(self, left: OperandT, right: OperandT, tile: Tile) -> PairTerms:
        """Direct and exchange terms of a tile; exchange only when `left is right`."""

    def begin(self, left: OperandT, right: OperandT, tile: Tile) -> Callable[[], PairTerms]:
        """Begin a tile; the returned function waits for its terms. A host computes them at once."""
        terms = self.pair_terms(left, right, tile)
        return lambda: terms

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Device and library versions, for the result's provenance."""

    def regularised(self, kappa: float) -> Device[OperandT]:
        """The same device with the factor (1 - exp(kappa D))^2 in its pair terms; kappa in 1/Eh."""
        raise UnsupportedByBackend(
            Option("backend", self.name),
            " has no kappa-mp2: use ",
            Option("backend", "cpu"),
            ", torch or cuda",
        )

    def prepare(self, spins: Sequence[Shape], nao: int = 0) -> None:
        """Compile the programs that these shapes need; `nao` basis functions if the device computes
        B, otherwise 0.

        Raises
        ------
        BackendUnavailable : a program is missing and cannot be compiled here
        """

    def put_untransformed(
        self,
        tensors: Sequence[Any],
        energies: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
    ) -> list[OperandT]:
        """Operands of all spins, with B computed on the device; only if `limits.transforms`.

        Parameters
        ----------
        tensors : `dfmp2.backends.untransformed.UntransformedTensor` of each spin, with the same
            fitted integrals
        energies : (eps_occ, eps_vir) of each spin, Eh
        """
        raise UnsupportedByBackend(Option("backend", self.name), " takes B from the host")

    def make_b(
        self,
        blocks: Iterable[tuple[int, int, NDArray[np.float64]]],
        factor: NDArray[np.float64],
        spaces: Sequence[Any],
        fetched: Sequence[Any],
    ) -> list[Any]:
        """B of some spins in float64, computed on the device from raw integrals; only if
        `limits.fits`. As in `dfmp2.backends.torch_b.make_resident_b`."""
        raise UnsupportedByBackend(Option("backend", self.name), " takes B from the host")

    def fields(self, b: NDArray[np.float64], of_packed: NDArray[np.intp]) -> Any:
        """J and K on the device; only if `limits.fits`.

        Parameters
        ----------
        b : (naux, ncolumn) float64, Eh^1/2, for pairs of basis functions, in host memory
        of_packed : (nao (nao + 1) / 2,) column of each packed pair; ncolumn for a negligible one
        """
        raise UnsupportedByBackend(Option("backend", self.name), " makes no J and K")

    def transform_seconds(self, spins: Sequence[Shape], nao: int) -> float:
        """Predicted seconds of `put_untransformed` for these shapes and `nao` basis functions.

        Raises
        ------
        KernelError : the kernels cannot run at these sizes
        """
        raise UnsupportedByBackend(Option("backend", self.name), " takes B from the host")

    def tensors(self) -> Tensors:
        """Tensor products on this device."""
        raise UnsupportedByBackend(
            Option("backend", self.name), " has no products of arrays on several cores: give it one"
        )


Backend = Device[Any]  # with any kind of operands


class Accelerator(Protocol):
    """Interface of a kind of accelerator before a backend exists: a module named in the
    registry."""

    def refusal(self, name: str) -> str | None:
        """Why a backend cannot be used here, None if it can."""
        ...

    def make(self, name: str, threads: int) -> Backend:
        """The backend with the given name."""
        ...

    def named_lane(self, name: str) -> tuple[str, str]:
        """The backend that a name selects given the environment variables, and a note on the
        reason."""
        ...

    def weigh(
        self, spins: tuple[Shape, ...], host_seconds: float, measured: bool
    ) -> tuple[str | None, str]:
        """The backend that `auto` selects, None for the host, and the reason."""
        ...

    def predict(self, spins: Sequence[Shape], own: int) -> tuple[Prediction, ...]:
        """Predicted pair energies on one core, on all cores of each chip, and on `own` cores if
        that is another number; empty if there is nothing to correlate."""
        ...

    def price(self, sizes: tuple[int, int, int, int]) -> tuple[Prediction, ...]:
        """Prediction for a product of (batches, contracted, rows, columns) on one core of each
        chip."""
        ...

    def bucket(self, spins: Sequence[Shape]) -> tuple[tuple[int, int], ...]:
        """The sizes that compiled programs of these shapes depend on; equal buckets use the same
        programs."""
        ...

    def cache_folder(self) -> Path:
        """Folder of compiled programs."""
        ...
