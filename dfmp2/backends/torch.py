"""Pair terms with PyTorch, on the CPU ("torch", without fused kernels) or a CUDA device ("cuda").

There is one class with the device as a field. A strip of occupied orbitals i with all j of a tile
is one product,

    G[j,b,i,a] = sum_P B_jbP B_iaP = (ia|jb),

and its sums are computed in one pass by a fused kernel (`dfmp2.backends.fused`), or on the CPU by
plain PyTorch. The sums of a tile stay on the device until all its strips are done, and are then
downloaded in one asynchronous copy. If the device has no room for B, it stays in host memory, and
rows are uploaded while others are processed (`StreamedOperand`).

Float32 means float32: TF32 is disabled, except for the backend "cuda-tf32", where a float32 is the
sum of two numbers that TF32 multiplies exactly,

    x = h + l       x y = h h' + h l' + l h'        (l l' is below the last bit of x y)

Source: Ootomo, Yokota, Int. J. High Perform. Comput. Appl. 36, 475 (2022), Eq. 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from math import isqrt, prod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends import fused
from dfmp2.backends.base import (
    NUMPY_TYPES,
    Backend,
    Batch,
    Device,
    Limits,
    Operand,
    PairTerms,
    Shape,
    Tile,
)
from dfmp2.backends.tensors import TorchTensors
from dfmp2.backends.tiling import edge, strip, visits, widest
from dfmp2.backends.transfers import RESIDENT_EDGES, Card, Transfers, present_card
from dfmp2.backends.untransformed import packed_places
from dfmp2.errors import Option, ResourceError
from dfmp2.host.threads import prefetched

HOST_ELEMENTS = 1 << 22  # of (ia|jb) in one product on the CPU
HOST_EDGE, DEVICE_EDGE = 256, 1024  # rows that fill one core, or the processors of a card
TF32_BITS = 13  # of the fraction of a float32 that TF32 drops
SPLIT = "cuda-tf32"


def refusal(name: str) -> str | None:
    """Why "torch", "cuda" or "cuda-tf32" cannot be used, None if it can."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch does not import ({error}): pip install 'dfmp2[torch]'"
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 9):
        return f"PyTorch {torch.__version__} is too old: 2.9 or newer is needed"
    if name == "torch":
        return None
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA: install a CUDA build of torch"
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device: check nvidia-smi and the driver"
    if name == SPLIT and torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} has no TF32: use --backend cuda"
    return None


def make(name: str, threads: int) -> Backend:
    """The backend for the registry: "torch" is the CPU."""
    import torch

    if name == "torch":
        return TorchBackend(torch, "cpu", threads)
    return TorchBackend(torch, "cuda", threads, present_card(torch), split=name == SPLIT)


@dataclass(frozen=True, slots=True, eq=False)
class TorchOperand(Operand):
    """An operand on the device.

    Attributes
    ----------
    occupied, virtual : (nocc,), (nvir,) energies on the device in the type of B, Eh
    space : the same object for all parts of one spin's B
    low : remainder of B after rounding to TF32, of the same shape; None if products are not split
    """

    occupied: Any = None
    virtual: Any = None
    space: Any = None
    low: Any = None

    def resident(self, start: int, stop: int) -> TorchOperand:
        """The operand itself, since it is entirely on the device."""
        return self


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamedOperand(Operand):
    """An operand whose B stays on the host, because the device has no room for it.

    Attributes
    ----------
    device : the backend it belongs to
    space : as in TorchOperand
    """

    device: TorchBackend
    space: Any

    def resident(self, start: int, stop: int) -> TorchOperand:
        """A copy of orbitals start:stop on the device."""
        return self.device.operand(
            self.device.upload(self.b[start:stop], self.device.type_of(self.precision)),
            self.eps_occ[start:stop],
            self.eps_vir,
            self.precision,
            self.space,
        )

    def batches(self, backend: Backend, right: Any, tiles: list[Tile]) -> Iterator[Batch]:
        """As in `dfmp2.backends.base.TileSource`."""
        yield from self.device.stream(self, right, tiles)


DeviceOperand = TorchOperand | StreamedOperand


class TorchBackend(Device[DeviceOperand]):
    """PyTorch on one device.

    Parameters
    ----------
    torch : the imported module (imported late, since it takes seconds)
    device : "cpu" or "cuda"
    threads : CPU threads of the intra-operator pool (only used with "cpu")
    card : description of a CUDA device; on the CPU, a card whose tiles and memory limits to
        emulate, None for the CPU's own
    split : whether float32 products are composed of three TF32 products

    Attributes
    ----------
    elementwise : function that computes the sums of a product
    double, single, index : the module's own types
    """

    def __init__(
        self,
        torch: ModuleType,
        device: str,
        threads: int,
        card: Card | None = None,
        *,
        split: bool = False,
    ) -> None:
        self._torch = torch
        self.kappa: float | None = None
        self.device = torch.device(device)
        self.card = card
        self.split = split
        if device == "cpu":
            self.name = "torch"
            torch.set_num_threads(threads)
        else:
            self.name = device
        if split:
            self.name = SPLIT
        self.transfers = Transfers(torch, self.device)
        self.double = torch.float64
        self.single = torch.float32
        self.index = torch.int64
        self._fused, self.elementwise = _elementwise(device)
        self.limits = _limits(card, split=split)

    def put(
        self,
        b: NDArray[Any],
        eps_occ: NDArray[np.float64],
        eps_vir: NDArray[np.float64],
        precision: str,
    ) -> DeviceOperand:
        """Copy B to the device in the given precision, or keep it on the host if the device has no
        room.

        Raises
        ------
        ResourceError : the device has no room even for the rows of a single tile
        """
        dtype = self.type_of(precision)
        number = self._number_bytes(precision)
        size = b.size * number
        row = b[:1].size
        rows = RESIDENT_EDGES * edge(len(b), self.limits, row)
        least = rows * row * number
        room = self.room()
        # A resident operand must leave room for streaming another one.
        if room is None or size + least <= room:
            return self.operand(self.upload(b, dtype), eps_occ, eps_vir, precision)
        if least > room:
            raise ResourceError(
                f"{self.name}: blocks of the fitted integrals need {least} bytes of device memory "
                f"and {room} are usable: use ",
                Option("backend", "cpu"),
                " or a larger device",
            )
        wanted = np.ascontiguousarray(b, dtype=NUMPY_TYPES[precision])
        return StreamedOperand(wanted, eps_occ, eps_vir, precision, device=self, space=object())

    def operand(
        self,
        resident: Any,
        eps_occ: NDArray[np.float64],
        eps_vir: NDArray[np.float64],
        precision: str,
        space: Any = None,
        *,
        kept: bool = False,
    ) -> TorchOperand:
        """An operand for a B already on the device, in the type of the given precision; `kept` :
        whether the caller goes on to use it, so that it must not be written over."""
        low = None
        if self.split and precision == "mixed":
            if kept or self.device.type == "cpu":  # which may share it with the host
                resident = resident.clone()
            resident, low = split_tf32(self._torch, resident)
        self.transfers.hold(resident, resident.numel() * self._number_bytes(precision))
        return TorchOperand(
            resident,
            eps_occ,
            eps_vir,
            precision,
            occupied=self.transfers.up(eps_occ, resident.dtype),
            virtual=self.transfers.up(eps_vir, resident.dtype),
            space=object() if space is None else space,
            low=low,
        )

    def _number_bytes(self, precision: str) -> int:
        """Bytes of a number of B on the device."""
        if precision == "fp64":
            return 8
        return self.limits.single_bytes

    def room(self) -> int | None:
        """Bytes still available for B on the device, None on the host."""
        room = self.limits.room
        if room is None:
            return None
        return max(0, room - self.transfers.resident)

    def begin(
        self, left: DeviceOperand, right: DeviceOperand, tile: Tile
    ) -> Callable[[], PairTerms]:
        """Queue a tile on the device; the returned function waits for its terms."""
        near = left.resident(tile.i0, tile.i1)
        if left is right and (tile.i0, tile.i1) == (tile.j0, tile.j1):
            far = near
        else:
            far = right.resident(tile.j0, tile.j1)
        # A fully resident side keeps its own numbering.
        rows = 0 if near is left else tile.i0
        columns = 0 if far is right else tile.j0
        fetch = self.transfers.down(self._sums(near, far, tile.shifted(rows, columns)))

        def terms() -> PairTerms:
            values = fetch()
            if len(values) == 1:
                return PairTerms(values[0], None)
            return PairTerms(values[0], values[1])

        return terms

    def pair_terms(self, left: DeviceOperand, right: DeviceOperand, tile: Tile) -> PairTerms:
        """Direct and exchange terms of a tile of occupied pairs, float64, Eh."""
        return self.begin(left, right, tile)()

    def _sums(self, left: TorchOperand, right: TorchOperand, tile: Tile) -> Any:
        """(1 or 2, ni, nj) float64 on the device: direct sums of a tile, and exchange sums."""
        torch = self._torch
        set_float32_products(torch, tf32=self.split)
        exchange = left.space is right.space
        i0, i1, j0, j1, diagonal = tile
        shape = [1 + exchange, i1 - i0, j1 - j0]
        if not left.b.numel() or not right.b.numel():
            return torch.zeros(shape, dtype=torch.float64, device=self.device)
        nvir = left.b.shape[1]
        nvir_right = right.b.shape[1]
        height, width = strip(self.limits, nvir, nvir_right, i1 - i0)
        if self._fused:
            shape.append(-(-nvir_right // fused.BLOCK))
        sums = torch.zeros(shape, dtype=torch.float64, device=self.device)
        energies = left.occupied, left.virtual, right.occupied, right.virtual
        kappa = None
        if self.kappa is not None:
            kappa = torch.full((1,), self.kappa, dtype=left.b.dtype, device=self.device)
        for i in range(i0, i1, height):
            end = min(i + height, i1)
            for j in range(i if diagonal else j0, j1, width):
                stop = min(j + width, j1)
                product = self._product(left, right, (i, end), (j, stop))
                g = product.view(stop - j, nvir_right, end - i, nvir)
                if self._fused:
                    fused.add_pair_sums(
                        sums,
                        g,
                        (i - i0, j - j0, i, j),
                        energies,
                        kappa,
                        exchange=exchange,
                        triangle=diagonal,
                    )
                else:
                    part = sums[:, i - i0 : end - i0, j - j0 : stop - j0]
                    some = energies[0][i:end], energies[1], energies[2][j:stop], energies[3]
                    plain_sums(torch, part, g, some, kappa)
        if self._fused:
            return sums.sum(3)
        if diagonal:
            return sums.triu_()
        return sums

    def _product(
        self,
        left: TorchOperand,
        right: TorchOperand,
        rows: tuple[int, int],
        columns: tuple[int, int],
    ) -> Any:
        """G of some i and j, ((j, b), (i, a))."""
        naux = left.b.shape[2]
        here = left.b[slice(*rows)].reshape(-1, naux).T
        there = right.b[slice(*columns)].reshape(-1, naux)
        if left.low is None:
            return there @ here
        product = right.low[slice(*columns)].reshape(-1, naux) @ here
        product.addmm_(there, left.low[slice(*rows)].reshape(-1, naux).T)
        return product.addmm_(there, here)

    def make_b(
        self,
        blocks: Iterable[tuple[int, int, NDArray[np.float64]]],
        factor: NDArray[np.float64],
        spaces: Sequence[Any],
        fetched: Sequence[Any],
    ) -> list[Any]:
        """As in `Device`."""
        from dfmp2.backends.torch_b import make_resident_b

        return make_resident_b(self, blocks, factor, spaces, fetched)

    def fields(self, b: NDArray[np.float64], of_packed: NDArray[np.intp]) -> Any:
        """As in `Device`."""
        from dfmp2.backends.torch_b import DeviceFields

        nao = (isqrt(8 * len(of_packed) + 1) - 1) // 2
        return DeviceFields(self, b, of_packed[packed_places(nao)])

    def transform_seconds(self, spins: Sequence[Shape], nao: int) -> float:
        """Predicted time of `make_b`: products, and upload of the integrals, s."""
        rate = self.card.float64_rate if self.card is not None else HOST_RATE
        naux = max((spin.naux for spin in spins), default=0)
        seconds = 4.0 * naux * nao * (nao + 1) / LINK_RATE
        for nocc, nvir, functions in spins:
            products = nao * (nao + nvir) + functions * nvir
            seconds += 2.0 * functions * nocc * products / rate
        return seconds

    def stream(
        self, left: DeviceOperand, right: DeviceOperand, tiles: list[Tile]
    ) -> Iterator[Batch]:
        """Yield resident operands for rows and columns of a B on the host, while the next columns
        are uploaded."""
        same = left is right
        row = prod(left.b.shape[1:]) * self._number_bytes(left.precision)
        column = prod(right.b.shape[1:]) * self._number_bytes(right.precision)
        room = self.room() or 0
        # Rows of this visit and the previous one; columns of this batch, the previous and the next
        # one.
        passes = widest(tiles) * column
        held = (room - 3 * passes) // 2 + 2 * passes
        for begin, end, mine, inside, passing in visits(tiles, held, row, column, same=same):
            near = left.resident(begin, end)
            if inside:
                yield near, near, {tile.shifted(begin, begin): tile for tile in inside}

            def load(k: int, passing: list[tuple[int, int]] = passing) -> tuple[TorchOperand, Any]:
                with self.transfers.aside():
                    return right.resident(*passing[k]), self.transfers.mark()

            for cut, (far, arrived) in zip(passing, prefetched(load, len(passing)), strict=True):
                self.transfers.after(arrived)
                batch = [tile for tile in mine if (tile.j0, tile.j1) == cut and tile not in inside]
                # A fully resident side keeps its own numbering.
                rows = 0 if near is left else begin
                columns = 0 if far is right else cut[0]
                yield near, far, {tile.shifted(rows, columns): tile for tile in batch}

    def type_of(self, precision: str) -> Any:
        """PyTorch's type of B in the given precision."""
        if precision == "fp64":
            return self._torch.float64
        return self._torch.float32

    def upload(self, b: NDArray[Any], dtype: Any) -> Any:
        """Rows of B on the device.

        Raises
        ------
        ResourceError : the device has no room for them
        """
        try:
            return self.transfers.up(b, dtype)
        except self._torch.cuda.OutOfMemoryError as error:
            raise ResourceError(
                f"{self.name}: the device has no room for {b.size * dtype.itemsize} bytes of fitted "
                "integrals: use ",
                Option("backend", "cpu"),
                ", or ",
                Option("frozen_core"),
                ", or a larger device",
            ) from error

    def regularised(self, kappa: float) -> TorchBackend:
        """The same with kappa, 1/Eh."""
        made = copy(self)
        made.kappa = kappa
        return made

    def tensors(self) -> TorchTensors:
        """Products with PyTorch on this device."""
        return TorchTensors(self, self._torch, self.device)

    def describe(self) -> dict[str, str]:
        """Device, PyTorch version, and the implementation of the sums."""
        torch = self._torch
        found = {"device": "cpu", "torch": str(torch.__version__)}
        if self.card is not None:
            found["device"] = self.card.name
            found["pair sums"] = self.elementwise
            if self.split:
                found["float32 products"] = "three of TF32"
            elif self.card.full_float64:
                found["precision"] = "auto is float64: the card computes it at float32's rate"
        return found


def _limits(card: Card | None, *, split: bool) -> Limits:
    """Tiles and memory of a card; None for the CPU."""
    if card is None:
        return Limits(
            ("fp64", "mixed"),
            tile_edge=64,
            tile_elements=HOST_ELEMENTS,
            workers=1,
            product_edge=HOST_EDGE,
            fits=True,
        )
    return Limits(
        ("fp64", "mixed"),
        tile_edge=64,
        tile_elements=card.product_elements,
        workers=1,
        memory=card.usable,
        edge_elements=card.edge_elements,
        product_edge=DEVICE_EDGE,
        queued=1,
        auto="mixed" if split else card.precision,
        fits=True,
        single_bytes=8 if split else 4,  # both halves
    )


def set_float32_products(torch: ModuleType, *, tf32: bool) -> None:
    """Enable or disable TF32 for float32 products."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"


def split_tf32(torch: ModuleType, values: Any) -> tuple[Any, Any]:
    """h and l with h + l = values in float32: h has the bits that TF32 keeps; l, the remainder,
    takes the memory of `values`, which would not fit beside both."""
    mask = -(1 << TF32_BITS)
    high = (values.view(torch.int32) & mask).view(torch.float32)
    return high, values.sub_(high)


def plain_sums(torch: ModuleType, sums: Any, g: Any, energies: Any, kappa: Any) -> None:
    """The same sums as the fused kernel, one operation at a time.

    Parameters
    ----------
    sums : (1 or 2, I, J) float64, Eh: direct sums, and exchange sums if wanted
    g : (J, nb, I, na), Eh
    energies : (I,), (na,), (J,), (nb,) in the type of g, Eh
    kappa : (1,), 1/Eh; None without regularisation
    """
    occupied, virtual, right_occupied, right_virtual = energies
    pairs = right_occupied[:, None, None, None] + occupied[:, None]
    weight = pairs - (right_virtual[:, None, None] + virtual)
    if kappa is None:
        torch.div(g, weight, out=weight)
    else:
        factor = torch.expm1(kappa * weight)
        torch.div(g, weight, out=weight)
        weight.mul_(factor.square_())
    # Row sums in the working precision, added up in float64.
    sums[0] = (g * weight).sum(dim=3).sum(dim=1, dtype=torch.float64).T
    if len(sums) == 2:
        sums[1] = (weight * g.transpose(1, 3)).sum(dim=3).sum(dim=1, dtype=torch.float64).T


def _elementwise(device: str) -> tuple[bool, str]:
    """Whether the fused kernel computes the sums of a product, and a description of the
    implementation."""
    if device == "cpu":
        return False, "plain PyTorch, as always on the CPU"
    reason = fused.refusal()
    if reason is None:
        return True, f"one fused kernel, Triton {fused.triton_version()}"
    return False, f"plain PyTorch, an operation at a time: {reason}"


HOST_RATE = 5e10  # approximate float64 operations per second of a core
LINK_RATE = 1.2e10  # bytes per second from pinned memory, about half the rate of PCIe 4.0 x16
