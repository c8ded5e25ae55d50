"""Tensor products by the Trainium kernels: arrays are folded and stored in the form that they read,
all in float32.

An array is uploaded once in each form that a kernel reads, on first use: folded to (batches
contracted, free); T in strips of one occupied orbital; L with its inverted tiles; B in blocks.
Kernel output stays on the device until fetched, and can only be used in the form it has there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Backend, Operand
from dfmp2.backends.tensors import Energies, Folding, Tensors
from dfmp2.backends.untransformed import UntransformedTensor
from dfmp2.errors import InputError, UnsupportedByBackend
from dfmp2.trainium import calls, layout
from dfmp2.trainium.kernels.sizes import P, equal_parts
from dfmp2.trainium.launch.executors import Executor


@dataclass(slots=True, eq=False)
class Held:
    """An array on the device: the original (None for kernel output), and its forms there, by name.

    stack : for a product, its form and unpadded (batches, rows, columns); operand : B for the pair
        energies
    symmetric : whether it is a product A^t A, of which only the upper triangle counts
    """

    shape: tuple[int, ...]
    host: NDArray[Any] | None = None
    forms: dict[object, Any] = field(default_factory=dict)
    stack: tuple[Any, tuple[int, int, int]] | None = None
    operand: Operand | None = None
    symmetric: bool = False


class NkiTensors(Tensors):
    """Tensor operations by kernels on an executor; pair energies are computed by `backend`."""

    dtypes = ("float32",)

    def __init__(self, backend: Backend, executor: Executor) -> None:
        super().__init__(backend)
        self._executor = executor

    def send(self, array: NDArray[Any]) -> Held:
        """An array whose forms are uploaded on demand."""
        return Held(array.shape, array)

    def fetch(self, value: Held) -> NDArray[Any]:
        """The array on the host, without padding."""
        if value.stack is not None:
            form, (batches, rows, columns) = value.stack
            whole = self._executor.fetch(form).reshape(batches, rows, -1)
            product = np.ascontiguousarray(whole[:, :, :columns])
            if value.symmetric:
                product = self._mirrored(product[0])[None]
            return product.reshape(value.shape)
        if value.operand is not None and value.host is None:
            blocks = value.operand.b.blocks.values()
            if not blocks:
                return np.zeros(value.shape, np.float32)
            return layout.unpack_b(map(self._executor.fetch, blocks), value.shape)
        return self._sent(value)

    def unfold(self, value: Held, shape: tuple[int, ...], axes: tuple[int, ...]) -> Held:
        """The array with another shape."""
        if axes != tuple(range(len(axes))):
            raise self._refusal(
                "what stays on the device keeps the order of its axes: batches, first, second array"
            )
        return replace(value, shape=shape)

    def product(self, a: Held, b: Held, how: tuple[Folding, Folding]) -> Held:
        """The product, by one call of `gemm`."""
        (batches, contracted, rows), columns = how[0].sizes, how[1].sizes[2]
        if 0 in (*how[0].sizes, columns):
            return _zeros(batches, rows, columns)
        call = calls.product_call(batches, contracted, rows, columns)
        return self._made(
            call, (batches, rows, columns), a=self._folded(a, how[0]), b=self._folded(b, how[1])
        )

    def gram(self, a: Held, how: Folding) -> Held:
        """A^t A, by one call of `syrk`, which mirrors tiles; `fetch` mirrors within those on the
        diagonal."""
        _, contracted, size = how.sizes
        if not contracted or not size:
            return _zeros(1, size, size)
        call = calls.syrk_call(contracted, size)
        identity = self._executor.upload(np.eye(P))
        made = self._made(call, (1, size, size), a=self._folded(a, how), identity=identity)
        return replace(made, symmetric=True)

    def solve(self, lower: Held, b: Held) -> Held:
        """The solution, by one call of `trsm`; the host inverts the diagonal tiles of L in float64
        and sends them once with L."""
        size, columns = b.shape
        if not size or not columns:
            return _zeros(1, size, columns)
        call = calls.trsm_call(size, columns)
        sizes = (1, size, columns)
        factor = self._form(
            lower, "L", lambda: layout.pack_triangle(self._sent(lower).astype(np.float64))
        )
        return self._made(call, sizes, factor=factor, b=self._folded(b, Folding((0, 1), sizes)))

    def energies(self, t: Held, eps_occ: Energies, eps_vir: Energies) -> Energies:
        """Pair energies by one call of `mp2_energy` per occupied orbital i, or a single call if T
        was computed on the device."""
        nocc, nvir = len(eps_occ), len(eps_vir)
        if not nocc or not nvir:
            return np.zeros((nocc, nocc))
        call = calls.energy_call(nocc, nvir)
        rows = equal_parts(nvir, P)
        eu = self._executor.upload(eps_vir[:, None] + eps_vir)
        identity = self._executor.upload(np.eye(rows))
        found = np.empty((nocc, nocc))
        at_once = 1 if t.stack is None else nocc
        how = Folding((0, 1, 2), (1, nvir, nocc * nvir))
        for i in range(0, nocc, at_once):
            if t.stack is None:
                held = self._form(t, i, lambda i=i: _stack(self._sent(t)[i], how))  # type: ignore[misc]
            else:
                held = t.stack[0]
            sums = (eps_occ[i : i + at_once, None] + eps_occ).ravel()
            neg = self._executor.upload(np.tile(-sums, (rows, 1)))
            given = {"t": held, "eu": eu, "neg": neg, "identity": identity, "ic": at_once}
            out = self._executor.launch(call.source, call.kernel, call.arguments | given)
            found[i : i + at_once] = -out.sum(axis=0, dtype=np.float64)
        return found

    def transform(self, a: Held, c_occ: Held, c_vir: Held) -> Held:
        """B computed on the device, where it stays; the fitted integrals are uploaded with each
        call."""
        fitted, occupied, virtual = (self._sent(x).astype(np.float64) for x in (a, c_occ, c_vir))
        if not np.allclose(
            fitted, fitted.swapaxes(1, 2), atol=1e-6 * np.abs(fitted).max(initial=0.0)
        ):
            raise InputError(
                "ao_to_mo: a (naux, nao, nao) is not symmetric in its basis functions, and half of "
                "it is sent"
            )
        tensor = UntransformedTensor(fitted[:, *np.tril_indices(len(occupied))], occupied, virtual)
        (operand,) = self.backend.put_untransformed(
            [tensor], [(np.zeros(tensor.shape[0]), np.zeros(tensor.shape[1]))]
        )
        return Held(tensor.shape, operand=operand)

    def operand(self, b: Held, eps_occ: Energies, eps_vir: Energies) -> Operand:
        """B in blocks, uploaded once, with these energies."""
        if b.operand is None:
            b.operand = self.backend.put(
                self._sent(b).astype(np.float64), eps_occ, eps_vir, "mixed"
            )
        resident = replace(b.operand.b, eps_vir=eps_vir, kept={})
        return replace(b.operand, b=resident, eps_occ=eps_occ, eps_vir=eps_vir)

    def _folded(self, value: Held, how: Folding) -> Any:
        if value.stack is not None and (how.axes, how.sizes) == (
            tuple(range(len(how.axes))),
            value.stack[1],
        ):
            return value.stack[0]
        return self._form(value, how, lambda: _stack(self._sent(value), how))

    def _form(self, value: Held, name: object, make: Callable[[], NDArray[Any]]) -> Any:
        if name not in value.forms:
            value.forms[name] = self._executor.upload(make())
        return value.forms[name]

    def _sent(self, value: Held) -> NDArray[Any]:
        if value.host is None:
            raise self._refusal(
                "what the device has made does not lie there as this kernel reads it"
            )
        return value.host.reshape(value.shape)

    def _refusal(self, why: str) -> UnsupportedByBackend:
        return UnsupportedByBackend(
            f"backend {self.backend.name}: {why}: take it to the host first (from_device)"
        )

    def _made(self, call: calls.KernelCall, sizes: tuple[int, int, int], **tensors: Any) -> Held:
        made = self._executor.keep(call.source, call.kernel, {**call.arguments, **tensors})
        return Held(sizes, stack=(made, sizes))


def _zeros(*shape: int) -> Held:
    """The product of empty arrays, which no kernel takes."""
    return Held(shape, np.zeros(shape, np.float32))


def _stack(array: NDArray[Any], how: Folding) -> NDArray[Any]:
    """Matrices stacked vertically, with an extra column if the bytes of rows would be a power of
    two."""
    batches, rows, columns = how.sizes
    stack = np.zeros((batches * rows, layout.stored_columns(columns)), np.float32)
    stack[:, :columns] = array.transpose(how.axes).reshape(-1, columns)
    return stack
