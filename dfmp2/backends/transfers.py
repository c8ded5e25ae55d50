"""NVIDIA cards and copies to them: the best precision for pair energies by their data sheets, and
counted copies between the host and a PyTorch device.

    A100, A30, H100, H200, GH200    float64 on tensor cores at the rate of float32 without TF32
    every other card                float64 at 1/2 (V100, B200) to 1/64 (L4, RTX) of it

If float64 costs nothing, float32 with its certificate gains nothing. H800 and H20 are of the same
generation as H100, but their float64 rate is cut to 1/50 or less.

Copies go through pinned memory on CUDA:

    up      host -> device: through two pinned buffers, one filled while the other is transferred
    down    device -> host: begun without waiting; completed when the numbers are requested

On the CPU the same calls are counted, without unnecessary copies, so that the counts are those of a
card.

Sources: NVIDIA A100, A30, H100, H200 Tensor Core GPU data sheets, rows "FP64 Tensor Core" and
"FP32"; NVIDIA CUDA C++ programming guide, "Arithmetic instructions" for the other generations.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

STAGE_BYTES = 64 * 10**6  # of each pinned buffer


class Transfers:
    """Copies of one device.

    Parameters
    ----------
    torch : the imported module
    device : torch.device

    Attributes
    ----------
    uploads, uploaded : copies to the device, and their bytes
    downloads, downloaded : copies from it, and their bytes
    resident : bytes of operands on the device
    """

    def __init__(self, torch: ModuleType, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._pinned = device.type == "cuda"
        self._buffers: list[Any] = []
        self._events: list[Any] = []
        self._stream: Any = None
        self._lock = threading.Lock()  # for the buffers, which are also used by a read-ahead thread
        self.uploads = 0
        self.uploaded = 0
        self.downloads = 0
        self.downloaded = 0
        self.resident = 0

    def up(self, array: NDArray[Any], dtype: Any) -> Any:
        """An array on the device in the given type; on the CPU it may share the array's memory."""
        source = self._torch.from_numpy(np.require(array, requirements=["C", "W"]))
        if not self._pinned:
            self._count_upload(source)
            return source.to(dtype)
        there = self._torch.empty(source.shape, dtype=source.dtype, device=self._device)
        self._copy(there, source)
        return there.to(dtype)

    def fill(self, there: Any, array: NDArray[Any]) -> None:
        """Copy an array to the first elements of a device tensor, (n,)."""
        source = self._torch.from_numpy(np.require(array, requirements=["C", "W"]))
        into = there[: source.numel()].view(source.shape)
        if self._pinned and into.dtype == source.dtype:
            self._copy(into, source)
        else:
            self._count_upload(source)
            into.copy_(source)

    def down(self, value: Any) -> Callable[[], NDArray[Any]]:
        """Start copying a tensor to the host; the returned function waits for it."""
        self.downloads += 1
        self.downloaded += value.numel() * value.element_size()
        if not self._pinned:
            return lambda: np.asarray(value.numpy())
        there = self._torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        there.copy_(value, non_blocking=True)
        arrived = self._torch.cuda.Event()
        arrived.record()

        def wait() -> NDArray[Any]:
            arrived.synchronize()
            return np.asarray(there.numpy())

        return wait

    def hold(self, value: Any, size: int) -> None:
        """Count `size` bytes as resident during the lifetime of `value`."""
        self.resident += size
        weakref.finalize(value, self._release, size)

    def _release(self, size: int) -> None:
        self.resident -= size

    def aside(self) -> AbstractContextManager[Any]:
        """Context in which copies do not wait for computations, nor computations for copies."""
        if not self._pinned:
            return nullcontext()
        if self._stream is None:
            self._stream = self._torch.cuda.Stream()
        return self._torch.cuda.stream(self._stream)  # type: ignore[no-any-return]

    def mark(self) -> Any:
        """A marker of the work queued so far by this thread, for `after`."""
        if not self._pinned:
            return None
        reached = self._torch.cuda.Event()
        reached.record()
        return reached

    def after(self, reached: Any) -> None:
        """Make further work wait for a marker returned by `mark`."""
        if reached is not None:
            self._torch.cuda.current_stream().wait_event(reached)

    def _count_upload(self, source: Any) -> None:
        self.uploads += 1
        self.uploaded += source.numel() * source.element_size()

    def _copy(self, there: Any, source: Any) -> None:
        """Copy through pinned memory in pieces, because a copy from other memory waits for the
        device."""
        self._count_upload(source)
        flat = source.reshape(-1).view(self._torch.uint8)
        into = there.view(-1).view(self._torch.uint8)
        with self._lock:
            self._make_buffers()
            for number, start in enumerate(range(0, flat.numel(), STAGE_BYTES)):
                piece = flat[start : start + STAGE_BYTES]
                stop = start + piece.numel()
                copied = self._events[number % 2]
                buffer = self._buffers[number % 2][: piece.numel()]
                copied.synchronize()  # the previous copy from this buffer
                buffer.copy_(piece)
                into[start:stop].copy_(buffer, non_blocking=True)
                copied.record()

    def _make_buffers(self) -> None:
        """Allocate the two pinned buffers when they are first needed."""
        while len(self._buffers) < 2:
            buffer = self._torch.empty(STAGE_BYTES, dtype=self._torch.uint8, pin_memory=True)
            self._buffers.append(buffer)
            self._events.append(self._torch.cuda.Event())


FULL_FLOAT64 = ((8, 0), (9, 0))  # compute capabilities: A100 and A30; H100, H200 and GH200
CUT_FLOAT64 = ("H800", "H20")
# Number of (ia|jb) that a product may leave in device memory: 1 GiB in float64, or 1/128 of a
# smaller card.
MOST_PRODUCT = 1 << 27
SHARE_OF_PRODUCT = 128
# Elements of B along the edge of a tile, in units of that: rows of B streamed through the card take
# at least RESIDENT_EDGES edges.
EDGE_PRODUCTS = 2
RESIDENT_EDGES = 5
# Of the free memory; the rest is for the allocator, cuBLAS and products.
USABLE = 0.85


@dataclass(frozen=True, slots=True)
class Card:
    """One device.

    Attributes
    ----------
    name : name given by the driver
    capability : compute capability, (major, minor)
    total : bytes of device memory
    usable : bytes of it that a run may use
    """

    name: str
    capability: tuple[int, int]
    total: int
    usable: int

    @property
    def full_float64(self) -> bool:
        """Whether float64 products run at the rate of float32 without TF32."""
        words = self.name.upper().replace("-", " ").split()
        if any(word in CUT_FLOAT64 for word in words):
            return False
        return self.capability in FULL_FLOAT64

    @property
    def float64_rate(self) -> float:
        """Approximate operations per second of float64 products: half of the slowest data sheet."""
        return 1e13 if self.full_float64 else 2e11

    @property
    def precision(self) -> str:
        """What `precision="auto"` stands for on this card."""
        return "fp64" if self.full_float64 else "mixed"

    @property
    def product_elements(self) -> int:
        """Most elements of (ia|jb) in one product; depends on the card, not on its free memory."""
        return min(MOST_PRODUCT, self.total // (8 * SHARE_OF_PRODUCT))

    @property
    def edge_elements(self) -> int:
        """Most elements of B along the edge of a tile."""
        return EDGE_PRODUCTS * self.product_elements


def present_card(torch: object) -> Card:
    """The device that PyTorch uses now."""
    cuda = torch.cuda  # type: ignore[attr-defined]
    free, total = cuda.mem_get_info()
    return Card(
        name=str(cuda.get_device_name()),
        capability=tuple(cuda.get_device_capability()),
        total=int(total),
        usable=int(free * USABLE),
    )
