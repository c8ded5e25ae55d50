"""`dfmp2.tensor`: products of arrays, and the single steps of DF-MP2, on any backend listed by
`dfmp2 backends`.

    from dfmp2 import tensor as dt
    b = dt.ao_to_mo(dt.to_device(a, backend="torch"), c_occ, c_vir)      # (nocc, nvir, naux), stays on the device
    energy = dt.mp2_energy(b, eps_occ, eps_vir)                          # Eh
    print(dt.plan("ij,jk->ik", (2048, 2048), (2048, 2048), backend="nki"))

Arrays are NumPy arrays or PyTorch tensors of float32 or float64, all of one type; results have the
same kind and type. If one of them is on a device (`to_device`), so is the result, until
`from_device`. For transposes pass a.T, or use `einsum`. Padding is added and removed internally.
The Trainium lanes support only float32. Nothing is computed anywhere but on the requested backend;
if that is impossible, an error is raised: InputError (shapes, types, arrays on different devices),
BackendUnavailable, UnsupportedByBackend, KernelError (a kernel cannot run at that size).
`dfmp2 run` does not use this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends import registry
from dfmp2.backends.base import Prediction
from dfmp2.backends.tensors import PRECISION, Folding, Tensors
from dfmp2.errors import BackendUnavailable, InputError, UnsupportedByBackend, speaking
from dfmp2.errors.messages import PYTHON, in_words
from dfmp2.host import threads
from dfmp2.host.resources import usable_cores
from dfmp2.mp2.pairs import pair_energies
from dfmp2.planning import rates
from dfmp2.units import format_bytes

__all__ = [
    "DeviceArray",
    "Plan",
    "ao_to_mo",
    "einsum",
    "from_device",
    "gemm",
    "gemm_batch",
    "mp2_energy",
    "plan",
    "syrk",
    "to_device",
    "trsm",
]

A = TypeVar("A")
Sizes = tuple[int, ...]
_DEVICES: dict[
    tuple[str | None, ...], Tensors
] = {}  # created once per process, because they hold what was sent to them


@dataclass(frozen=True, slots=True, eq=False)
class DeviceArray:
    """An array with shape and dtype ("float32", "float64") on a device, for many calls, until
    `from_device`."""

    shape: Sizes
    dtype: str
    backend: str
    device: Tensors = field(repr=False)
    value: Any = field(repr=False)
    like: Any = field(repr=False)


@speaking(PYTHON)
def to_device(array: Any, *, backend: str = "auto") -> DeviceArray:
    """Send a copy of an array to a device for many calls; auto is a CUDA device if there is one,
    else the host.

    A Trainium lane sends each layout that a kernel reads only once, at its first use.
    """
    if isinstance(array, np.ndarray):
        array = array.copy(order="K")
    elif _is_torch(array):
        array = array.clone()
    job = _job("to_device", backend, array=array)
    return job.there(job.values[0], _shape("array", array))


@speaking(PYTHON)
def from_device(array: DeviceArray) -> Any:
    """A copy on the host, of the kind of array that was sent."""
    if not isinstance(array, DeviceArray):
        raise InputError(
            f"from_device: a {type(array).__name__} was given: expected what to_device or a call "
            "returned"
        )
    host = np.array(array.device.fetch(array.value))
    return host if array.like is None else array.like.new_tensor(host)


@speaking(PYTHON)
def einsum(expression: str, a: A, b: A, *, backend: str = "auto") -> A:
    """Contraction of two arrays, such as "iap,jbp->iajb", as one matrix product or a stack of them.

    Every letter stands for one axis. Letters in both arrays and the result are batch axes; letters
    in both arrays only are summed over. Without "->" the result has the letters that occur once,
    sorted.
    """
    return _contract("einsum", expression, backend, a, b)  # type: ignore[no-any-return]


@speaking(PYTHON)
def gemm(
    a: A, b: A, *, alpha: float = 1.0, beta: float = 0.0, c: A | None = None, backend: str = "auto"
) -> A:
    """alpha A B + beta C; A (m, k), B (k, n), C (m, n)."""
    return _contract("gemm", "mk,kn->mn", backend, a, b, alpha, beta, c)  # type: ignore[no-any-return]


@speaking(PYTHON)
def gemm_batch(
    a: A, b: A, *, alpha: float = 1.0, beta: float = 0.0, c: A | None = None, backend: str = "auto"
) -> A:
    """alpha A_g B_g + beta C_g for all g; A (g, m, k), B (g, k, n), C (g, m, n)."""
    return _contract("gemm_batch", "gmk,gkn->gmn", backend, a, b, alpha, beta, c)  # type: ignore[no-any-return]


@speaking(PYTHON)
def syrk(
    a: A, *, alpha: float = 1.0, beta: float = 0.0, c: A | None = None, backend: str = "auto"
) -> A:
    """alpha A A^t + beta C; A (n, k), all of C (n, n)."""
    shape = _shape("a", a)
    if len(shape) != 2:
        raise InputError(f"syrk: a has shape {shape}: expected a matrix")
    square = shape[0], shape[0]
    _check_added("syrk", beta, c, square)
    job = _job("syrk", backend, a=a, c=c)
    found = job.device.gram(job.values[0], Folding((1, 0), (1, shape[1], shape[0])))
    return job.give(found, square, (0, 1), alpha, beta)  # type: ignore[no-any-return]


@speaking(PYTHON)
def trsm(triangle: A, b: A, *, alpha: float = 1.0, lower: bool = True, backend: str = "auto") -> A:
    """X of L X = alpha B; L (n, n) lower or upper triangular, whose other half is not read; B (n,
    m)."""
    shape = _shape("triangle", triangle)
    columns = _shape("b", b)
    if len(columns) != 2 or shape != (columns[0], columns[0]):
        raise InputError(f"trsm: triangle {shape} and b {columns}: expected (n, n) and (n, m)")
    if not isinstance(triangle, DeviceArray) and not np.diagonal(_host("triangle", triangle)).all():
        raise InputError("trsm: the triangle has a 0 on its diagonal: there is no solution")
    if not lower:  # an upper triangle in reverse order is a lower one
        found = trsm(_reversed(triangle, 0, 1), _reversed(b, 0), alpha=alpha, backend=backend)
        return _reversed(found, 0)  # type: ignore[no-any-return]
    job = _job("trsm", backend, triangle=triangle, b=b)
    return job.give(job.device.solve(*job.values), columns, (0, 1), alpha)  # type: ignore[no-any-return]


@speaking(PYTHON)
def ao_to_mo(a: A, c_occ: A, c_vir: A, *, backend: str = "auto") -> A:
    """B_iaP = sum_mu nu A_P(mu, nu) C_occ(mu, i) C_vir(nu, a), (nocc, nvir, naux), Eh^1/2.

    Parameters
    ----------
    a : (naux, nao, nao) integrals with the metric's L^-1 applied, symmetric in mu and nu, Eh^1/2
    c_occ, c_vir : (nao, nocc), (nao, nvir)
    """
    shapes = given, occ, vir = _shape("a", a), _shape("c_occ", c_occ), _shape("c_vir", c_vir)
    if tuple(map(len, shapes)) != (3, 2, 2) or len({*given[1:], occ[0], vir[0]}) != 1:
        raise InputError(
            f"ao_to_mo: {shapes}: expected a (naux, nao, nao), c_occ (nao, nocc), c_vir (nao, nvir)"
        )
    job = _job("ao_to_mo", backend, a=a, c_occ=c_occ, c_vir=c_vir)
    made = job.device.transform(*job.values)
    return job.give(made, (occ[1], vir[1], given[0]), (0, 1, 2))  # type: ignore[no-any-return]


@speaking(PYTHON)
def mp2_energy(
    integrals: Any, eps_occ: Any, eps_vir: Any, *, pairs: bool = False, backend: str = "auto"
) -> float | NDArray[np.float64]:
    """MP2 correlation energy of a closed shell, Eh, or with `pairs` the matrix e_ij (nocc, nocc),
    float64, whose sum it is.

    e_ij = sum_ab (ia|jb) (2 (ia|jb) - (ib|ja)) / (e_i + e_j - e_a - e_b)

    Parameters
    ----------
    integrals : B (nocc, nvir, naux), Eh^1/2; or (ia|jb) as (nocc, nvir, nocc, nvir) or (nocc nvir,
        nocc nvir), Eh
    eps_occ, eps_vir : (nocc,), (nvir,) orbital energies on the host, Eh
    """
    occ = np.asarray(_host("eps_occ", eps_occ), np.float64)
    vir = np.asarray(_host("eps_vir", eps_vir), np.float64)
    shape = _shape("integrals", integrals)
    _require_integrals(shape, occ, vir)
    job = _job("mp2_energy", backend, integrals=integrals)
    (value,) = job.values
    if len(shape) == 3:
        operand = job.device.operand(value, occ, vir)
        with threads.limited(usable_cores()):
            found = pair_energies([operand], job.device.backend)
        energies = found.opposite_spin + found.same_spin[0]
    else:
        whole = (occ.size, vir.size, occ.size, vir.size)
        energies = job.device.energies(job.device.unfold(value, whole, (0, 1, 2, 3)), occ, vir)
    if pairs:
        return energies
    return float(energies.sum())


def _require_integrals(shape: Sizes, occ: NDArray[np.float64], vir: NDArray[np.float64]) -> None:
    """Raise unless a shape of integrals fits the orbital energies, whose gap is positive."""
    nocc, nvir = occ.size, vir.size
    from_b = len(shape) == 3 and shape[:2] == (nocc, nvir)
    whole = shape in ((nocc, nvir, nocc, nvir), (nocc * nvir, nocc * nvir))
    if occ.ndim != 1 or vir.ndim != 1 or not (from_b or whole):
        raise InputError(
            f"mp2_energy: integrals {shape}, eps_occ {occ.shape}, eps_vir {vir.shape}: expected B "
            "(nocc, nvir, naux), or (ia|jb) as (nocc, nvir, nocc, nvir) or (nocc nvir, nocc nvir), "
            "with (nocc,) and (nvir,)"
        )
    finite = np.isfinite([*occ, *vir]).all()
    if not finite or not occ.max(initial=-np.inf) < vir.min(initial=np.inf):
        raise InputError(
            "mp2_energy: expected every occupied orbital energy below every virtual one, and all "
            "finite"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What `einsum` would do, where, and its predicted time; `print` shows it.

    It describes the call: kind, sizes (batches, contracted, rows, columns), operations, bytes of
    operands and result. For Trainium: tiles of 128 x 128 that stay in the array, passes of up to
    512 columns through each, and predictions for one core of each chip. `host` : s on this host,
    predicted from `rates`; `reason` : why this backend was chosen, or is not available.
    """

    call: str
    kind: str
    sizes: tuple[int, int, int, int]
    backend: str
    reason: str
    operations: int
    bytes: int
    tiles: tuple[int, int]
    host: float
    rates: str
    devices: tuple[Prediction, ...]

    def __str__(self) -> str:
        """All fields, one per line."""
        sizes = "/".join(map(str, self.sizes))
        lines = [
            f"{self.call}: {self.kind} {sizes}, {self.operations:.3g} operations, "
            f"{format_bytes(self.bytes)}",
            f"backend {self.backend}: {self.reason}",
            f"this host: {self.host:.2e} s, predicted, {self.rates}",
        ]
        tiles = "{} tiles of 128 x 128, {} passes each".format(*self.tiles)
        for one in self.devices:
            times = (
                f"{one.device:.2e} to {one.slowest:.2e} s, launch {one.dispatch:.2e} s, link "
                f"{one.link:.2e} s"
            )
            lines.append(
                f"{one.chip}, one core: "
                f"{one.obstacle or f'{times}, predicted; {one.calls} call, {tiles}'}"
            )
        return "\n".join(lines)


@speaking(PYTHON)
def plan(expression: str, *shapes: Sizes, dtype: str = "float32", backend: str = "auto") -> Plan:
    """What `einsum` would do with arrays of two shapes; also for backends that this host does not
    have."""
    (left, right), *_ = _contraction("plan", expression, *shapes)
    count = usable_cores()
    name = registry.known(backend)
    if dtype not in PRECISION:
        raise InputError(f"plan: dtype {dtype!r}: expected {' or '.join(PRECISION)}")
    try:
        chosen, reason = registry.select_backend(name, PRECISION[dtype], count)
        name = chosen.name
    except BackendUnavailable as error:
        reason = f"not on this host: {in_words(error.message, PYTHON)}"
    g, k, m = left.sizes
    n = right.sizes[2]
    measured = rates.load_rates("cpu", count)
    operations = 2 * g * k * m * n
    return Plan(
        call=f"{expression} {' '.join(map(str, shapes))} {dtype}",
        kind="gemm" if g == 1 else "gemm_batch",
        sizes=(g, k, m, n),
        backend=name,
        reason=reason,
        operations=operations,
        bytes=g * (k * m + k * n + m * n) * np.dtype(dtype).itemsize,
        tiles=(g * -(-k // 128) * -(-m // 128), -(-n // 512)),
        host=operations / getattr(measured or rates.Rates(), f"pairs_{PRECISION[dtype]}"),
        rates=f"rates measured {measured.date[:10]}" if measured else "built-in rates",
        devices=registry.accelerator().price((g, k, m, n)),
    )


class _Job(NamedTuple):
    """The operands of a call on their device; `stays` : whether the result stays there; `like` : a
    tensor of the user's kind."""

    device: Tensors
    values: list[Any]
    dtype: str
    stays: bool
    like: Any

    def there(self, value: Any, shape: Sizes) -> DeviceArray:
        """A value that stays on the device."""
        return DeviceArray(
            shape, self.dtype, self.device.backend.name, self.device, value, self.like
        )

    def give(
        self, value: Any, made: Sizes, axes: Sizes, alpha: float = 1.0, beta: float = 0.0
    ) -> Any:
        """The user's result from a value of shape `made`: its axes in this order, scaled, and the
        last operand added."""
        if self.stays:
            if alpha != 1.0 or beta:
                raise UnsupportedByBackend(
                    "alpha and beta are applied on the host, and the result stays on the device"
                )
            value = self.device.unfold(value, made, axes)
            return self.there(value, tuple(made[k] for k in axes))
        array = self.device.fetch(value).reshape(made).transpose(axes)
        if alpha != 1.0 or beta:
            array = alpha * array + (beta * self.device.fetch(self.values[-1]) if beta else 0.0)
        return array if self.like is None else self.like.new_tensor(array)


def _job(function: str, backend: str, **operands: Any) -> _Job:
    """The device of a call with its operands on it; operands that are None are left out."""
    given = {name: x for name, x in operands.items() if x is not None}
    there = {name: x.device for name, x in given.items() if isinstance(x, DeviceArray)}
    device = _device(function, backend, there)
    dtype = _dtype(function, given, device)
    values = [
        x.value if isinstance(x, DeviceArray) else device.send(_host(name, x))
        for name, x in given.items()
    ]
    first = next(iter(given.values()))
    like = None
    if isinstance(first, DeviceArray):
        like = first.like
    elif _is_torch(first):
        like = first[:0]
    return _Job(device, values, dtype, bool(there), like)


def _device(function: str, backend: str, there: Mapping[str, Tensors]) -> Tensors:
    """The device of a call: that of the operands in `there`, else that of the backend."""
    name = registry.known(backend)
    if not there:
        asked = _selection(name)
        if asked not in _DEVICES:
            opened = registry.select_backend(name, "auto", usable_cores())[0].tensors()
            _DEVICES[asked] = opened
            # A lane of Trainium sets these variables: the next call must find the same device
            _DEVICES[_selection(name)] = opened
        return _DEVICES[asked]
    device = next(iter(there.values()))
    if any(one is not device or name not in ("auto", one.backend.name) for one in there.values()):
        where = ", ".join(f"{x} is on {one.backend.name}" for x, one in there.items())
        raise InputError(
            f"{function}: backend {name}, but {where}: bring them together by from_device and "
            "to_device"
        )
    return device


def _selection(name: str) -> tuple[str | None, ...]:
    """A name and the variables that decide which device it opens."""
    variables = (*registry.VARIABLES, "NEURON_PLATFORM_TARGET_OVERRIDE")
    return (name, *map(os.environ.get, variables))


def _dtype(function: str, operands: Mapping[str, Any], device: Tensors) -> str:
    """The type of all operands, which the device computes in."""
    types = {
        name: x.dtype if isinstance(x, DeviceArray) else str(_host(name, x).dtype)
        for name, x in operands.items()
    }
    dtype = next(iter(types.values()))
    told = ", ".join(f"{name} is {one}" for name, one in types.items())
    if set(types.values()) != {dtype} or dtype not in PRECISION:
        raise InputError(f"{function}: {told}: expected float32 or float64, the same for all")
    if dtype not in device.dtypes:
        on = f"{device.backend.name}, which computes in {' and '.join(device.dtypes)}"
        raise UnsupportedByBackend(
            f"{function}: {told} on backend {on}: convert it, or use another backend"
        )
    return dtype


def _contraction(
    function: str, expression: str, *shapes: Sizes
) -> tuple[tuple[Folding, Folding], Sizes, Sizes]:
    """A product of two arrays: how they are folded into matrices, the sizes of its axes, and their
    order in the result."""
    a, b, out, sizes = _letters(function, expression, shapes)
    batches = [x for x in out if x in a and x in b]
    summed = [x for x in a if x in b and x not in out]
    left = [x for x in out if x not in b]
    right = [x for x in out if x not in a]

    def folded(term: str, free: list[str]) -> Folding:
        groups = batches, summed, free
        g, k, m = (prod(sizes[x] for x in group) for group in groups)
        return Folding(tuple(term.index(x) for group in groups for x in group), (g, k, m))

    made = batches + left + right
    return (
        (folded(a, left), folded(b, right)),
        tuple(sizes[x] for x in made),
        tuple(made.index(x) for x in out),
    )


def _letters(
    function: str, expression: str, shapes: Sequence[Sizes]
) -> tuple[str, str, str, dict[str, int]]:
    """The letters of both arrays and of the result, and the size of each."""
    inputs, arrow, out = expression.replace(" ", "").partition("->")
    terms = inputs.split(",")
    call = f"{function}: {expression!r} with {', '.join(map(str, shapes))}"
    if len(terms) != 2 or len(shapes) != 2:
        raise InputError(
            f"{call}: expected two arrays, such as 'ik,kj->ij'; for more, contract two at a time"
        )
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if not term.isalpha() or len(set(term)) != len(term) or len(term) != len(shape):
            raise InputError(
                f"{call}: {term!r} for {shape}: expected one letter for each axis, each once"
            )
        for letter, size in zip(term, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise InputError(f"{call}: {letter} is {sizes[letter]} and {size}")
    a, b = terms
    once = set(a) ^ set(b)
    if not arrow:
        out = "".join(sorted(once))
    if len(set(out)) != len(out) or not once <= set(out) <= set(sizes):
        raise InputError(
            f"{call}: expected letters of the arrays in the result, each once, including all that "
            "occur only once"
        )
    return a, b, out, sizes


def _contract(
    function: str,
    expression: str,
    backend: str,
    a: Any,
    b: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
) -> Any:
    how, made, axes = _contraction(function, expression, _shape("a", a), _shape("b", b))
    _check_added(function, beta, c, tuple(made[axis] for axis in axes))
    job = _job(function, backend, a=a, b=b, c=c)
    return job.give(job.device.product(job.values[0], job.values[1], how), made, axes, alpha, beta)


def _check_added(function: str, beta: float, c: Any, shape: Sizes) -> None:
    if (c is not None or beta) and (c is None or _shape("c", c) != shape):
        raise InputError(
            f"{function}: beta {beta:g} and c {c if c is None else _shape('c', c)}: expected c "
            f"{shape}"
        )


def _is_torch(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch"


def _host(name: str, x: Any) -> NDArray[Any]:
    """A user's array as a NumPy array."""
    if isinstance(x, np.ndarray):
        return x
    if not _is_torch(x):
        what = type(x).__name__
    elif x.requires_grad:
        what = "tensor that requires gradients"
    else:
        return np.asarray(x.cpu().numpy())
    raise InputError(
        f"{name} is a {what}: expected a NumPy array or a PyTorch tensor without gradients"
    )


def _shape(name: str, x: Any) -> Sizes:
    if isinstance(x, DeviceArray):
        return x.shape
    return _host(name, x).shape


def _reversed(x: Any, *axes: int) -> Any:
    if isinstance(x, DeviceArray):
        raise InputError(
            "trsm: on a device expected a lower triangle: reverse both arrays before to_device"
        )
    if _is_torch(x):
        return x.flip(axes)
    return np.flip(x, axes)
