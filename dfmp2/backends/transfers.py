"""Counted copies between the host and a PyTorch device, through pinned memory on CUDA.

    up      host -> device: through two pinned buffers, one filled while the other is transferred
    down    device -> host: begun without waiting; completed when the numbers are requested

On the CPU the same calls are counted, without unnecessary copies, so that the counts are those of a
card.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
            while len(self._buffers) < 2:
                self._buffers.append(
                    self._torch.empty(STAGE_BYTES, dtype=self._torch.uint8, pin_memory=True)
                )
                self._events.append(self._torch.cuda.Event())
            for number, start in enumerate(range(0, flat.numel(), STAGE_BYTES)):
                piece = flat[start : start + STAGE_BYTES]
                buffer = self._buffers[number % 2][: piece.numel()]
                self._events[number % 2].synchronize()  # the previous copy from this buffer
                buffer.copy_(piece)
                into[start : start + piece.numel()].copy_(buffer, non_blocking=True)
                self._events[number % 2].record()
