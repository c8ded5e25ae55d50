"""Kernels of others against NumPy: the public ones we know, and those that a user describes.

A case names a kernel by its file in a checkout, how to make its inputs, and a reference in float64. Nothing of the
repositories is kept here, the references are ours. A rule that arithmetic can go on without is waived and noted, so
that a kernel which breaks it is compared all the same.
"""

from __future__ import annotations

import runpy
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.errors import InputError
from dfmp2.trainium.costs.chips import find_chip
from dfmp2.trainium.interpreter.rules import OWN_RULES, SLOW, WAIVABLE, Settings, Violation
from dfmp2.trainium.interpreter.run import STRAY_ERRORS
from foreign_kernels.dialects import RELEASE, run_foreign

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel and its reference.

    file : path in the checkout; kernel : a kernel in it, or a function that calls kernels
    inputs : makes the arguments, by name, out of a NumPy generator; float64 arrays are handed over as float32
    reference : the output, or a tuple of them, from the same arguments in their order, in float64
    target : chip it was written for; tolerance : on the largest difference over the largest element of an output
    note : which form of the kernel, where it has several
    """

    file: str
    kernel: str
    inputs: Callable[[np.random.Generator], Inputs]
    reference: Callable[..., Any]
    target: str = "trn1"
    tolerance: float = 1e-5
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a case: the rules it broke, then its error, or what it was refused for.

    sbuf, moved : most bytes per partition alive at once, and of those what transfers write
    """

    case: Case
    target: str
    broken: tuple[Violation, ...] = ()
    refusal: Violation | None = None
    error: float = float("nan")
    sbuf: int = 0
    moved: int = 0

    @property
    def verdict(self) -> str:
        """runs, differs, breaks RULE (a documented one, though the numbers agree) or refused: RULE."""
        if self.refusal is not None:
            return f"refused: {self.refusal.rule}"
        if not self.error <= self.case.tolerance:
            return "differs"
        documented = [one.rule for one in self.broken if one.rule not in OWN_RULES | SLOW]
        if documented:
            return f"breaks {', '.join(documented)}"
        return "runs"


def examine(root: Path, case: Case, target: str | None = None) -> Finding:
    """Runs one kernel of the checkout `root` against its reference.

    Raises InputError where the reference has another shape than the output.
    """
    target = target or case.target
    chip: Any = find_chip(target).target
    settings, broken = Settings(target=chip, release=RELEASE), list[Violation]()
    with _theirs(f"inputs of {case.kernel}"):
        made = case.inputs(np.random.default_rng(1))
    inputs = {
        name: value.astype(np.float32) if _double(value) else value for name, value in made.items()
    }
    while True:
        try:
            outputs, trace = run_foreign(root, case.file, case.kernel, inputs, settings)
            break
        except Violation as found:
            if found.rule not in (WAIVABLE | SLOW) - settings.waived:
                return Finding(case, target, tuple(broken), found)
            broken.append(found)
            measured = settings.measured and found.rule not in SLOW
            settings = replace(settings, waived=settings.waived | {found.rule}, measured=measured)
    wide = [
        value.astype(np.float64) if _double(made[name]) else value for name, value in inputs.items()
    ]
    with _theirs(f"reference of {case.kernel}"):
        answer = case.reference(*wide)
    expected = answer if isinstance(answer, tuple) else (answer,)
    shapes = [one.shape for one in outputs], [np.shape(one) for one in expected]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"{case.kernel} returns shapes {shapes[0]}, its reference {shapes[1]}", file=case.file
        )
    error = max(map(_difference, outputs, expected))
    return Finding(
        case, target, tuple(broken), None, error, trace.sbuf_high_water, trace.moved_high_water
    )


@contextmanager
def _theirs(what: str) -> Iterator[None]:
    """Code of a case runs inside: its Python errors name the case."""
    try:
        yield
    except STRAY_ERRORS as error:
        raise InputError(f"{what}: {type(error).__name__}: {error}") from error


def _double(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64


def _difference(got: Any, want: Any) -> float:
    """Largest difference over largest element; what is not finite is infinitely wrong."""
    worst = np.abs(np.asarray(got, np.float64) - want).max() / (np.abs(want).max() or 1.0)
    return float(worst) if np.isfinite(worst) else float("inf")


def cases_of(root: Path, file: Path | None) -> Sequence[Case]:
    """The cases of a checkout: those of the user's file, else the known ones that are there."""
    if not root.is_dir():
        raise InputError(f"{root}: no such folder: name a checkout of the kernels' repository")
    if file is None:
        there = [case for case in KNOWN if (root / case.file).is_file()]
        cases = [
            case
            for case in there
            if f"def {case.kernel}(" in (root / case.file).read_text(encoding="utf-8")
        ]
        if not cases:
            raise InputError(
                f"{root} holds no kernel that is known here; describe yours in a file, see --cases"
            )
        return cases
    if not file.is_file():
        raise InputError(f"--cases {file}: no such file")
    with _theirs(
        f"--cases {file}: expected CASES, a list of dicts with file, kernel, inputs and reference"
    ):
        cases = [Case(**row) for row in runpy.run_path(str(file))["CASES"]]
    for case in cases:
        if not (root / case.file).is_file():
            raise InputError(f"kernel {case.kernel}: no file {root / case.file}", file=str(file))
    return cases


def commit_of(root: Path) -> str:
    """The commit a checkout stands at, "" where it is none."""
    command = ["git", "-C", str(root), "log", "-1", "--format=%H"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        return ""


def _normal(**sizes: Any) -> Callable[[np.random.Generator], Inputs]:
    """Inputs: normal numbers where a tuple gives a shape, anything else as it is."""
    return lambda random: {
        n: random.standard_normal(s) if isinstance(s, tuple) else s for n, s in sizes.items()
    }


def _scan_inputs(random: np.random.Generator) -> Inputs:
    made = _normal(delta=(1, 128, 512), u=(1, 128, 512), A=(128, 2), B=(1, 2, 512), C=(1, 2, 512))(
        random
    )
    return made | {"delta": 0.1 * abs(made["delta"]), "A": -abs(made["A"])}


def _scan(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
    """y_t = sum_n C_t h_t with h_t = exp(delta_t A) h_t-1 + delta_t u_t B_t."""
    h, out = np.zeros((*delta.shape[:2], a.shape[1])), np.empty_like(delta)
    for t in range(delta.shape[2]):
        h = np.exp(delta[:, :, t, None] * a) * h + (delta * u)[:, :, t, None] * b[:, None, :, t]
        out[:, :, t] = (h * c[:, None, :, t]).sum(-1)
    return out


def _attention_inputs(length: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda random: {name: 0.3 * random.standard_normal((128, length)) for name in "qkv"}


def _attention(q: Any, k: Any, v: Any) -> Any:
    weights = np.exp(q.T @ k)
    return weights @ v.T / weights.sum(1, keepdims=True)


def _doubled(x: Any, chunk_size: int) -> Any:
    """Twice as many places along all axes but two, linear between centres, the outermost repeated."""
    for axis in range(2, x.ndim):
        size = x.shape[axis]
        at = np.clip(np.arange(2 * size) / 2 - 0.25, 0, size - 1)
        low = np.minimum(at.astype(int), size - 2)
        part = (at - low).reshape([-1 if k == axis else 1 for k in range(x.ndim)])
        x = x.take(low, axis) * (1 - part) + x.take(low + 1, axis) * part
    return x


def _blas_mp2_inputs(random: np.random.Generator) -> Inputs:
    occ, vir = -1 - random.random((1, 3)), 1 + random.random((1, 150))
    numbers = {
        "eps_occ_chunk": occ[:, :2],
        "eps_occ_full": occ,
        "eps_vir_col": vir.T,
        "eps_vir_row": vir,
    }
    return {"T_flat": random.standard_normal((2 * 150, 3 * 150)), **numbers}


def _blas_mp2(flat: Any, some_occ: Any, occ: Any, vir_column: Any, vir: Any) -> Any:
    """sum_b T_ab (2 T_ab - T_ba) / (e_i + e_j - e_a - e_b), the two strips of 75 rows a added."""
    t = flat.reshape(2, 150, 3, 150).swapaxes(1, 2)
    gaps = (some_occ.T + occ)[:, :, None, None] - vir_column - vir
    return (
        (t * (2 * t - t.swapaxes(2, 3)) / gaps)
        .sum(-1)
        .reshape(2, 3, 2, 75)
        .sum(2)
        .transpose(2, 0, 1)
    )


def _tensor_mp2_inputs(random: np.random.Generator) -> Inputs:
    energies = {"eps_occ": -1 - random.random((3, 1)), "eps_vir": 1 + random.random((40, 1))}
    return {"B": random.standard_normal((3, 40, 60)), **energies}


def _tensor_mp2(b: Any, occ: Any, vir: Any) -> Any:
    t = np.einsum("iap,jbp->ijab", b, b)
    gaps = (occ + occ.T)[:, :, None, None] - vir - vir.T
    return (t * (2 * t - t.swapaxes(2, 3)) / gaps).sum((2, 3))


def _dft_inputs(*fields: str) -> Callable[[np.random.Generator], Inputs]:
    angles = 2 * np.pi * np.outer(np.arange(32), np.arange(32)) / 32
    return _normal(
        **dict.fromkeys(fields, (32, 32, 32)),
        C=np.cos(angles),
        S=np.sin(angles),
        nS=-np.sin(angles),
    )


def _parts(z: Any) -> tuple[Any, Any]:
    """Real and imaginary part, with the last two axes exchanged, as those kernels keep a spectrum."""
    return z.swapaxes(1, 2).real, z.swapaxes(1, 2).imag


def _flow_inputs(random: np.random.Generator) -> Inputs:
    """Spectra of a velocity and of its last change, wave numbers, inverse squares and a mask of what is kept."""
    waves = np.stack(np.meshgrid(*3 * [np.fft.fftfreq(32, 1 / 32)], indexing="ij"))
    squares, kept = np.maximum((waves**2).sum(0), 1.0), (abs(waves).max(0) < 32 / 3) * 1.0
    spectra = np.fft.fftn(random.standard_normal((6, 32, 32, 32)), axes=(1, 2, 3)) * kept
    names = [
        f"{name}_{part}" for name in ("uh", "vh", "wh", "du", "dv", "dw") for part in ("re", "im")
    ]
    made = dict(
        zip(names, (part for one in spectra for part in _parts(one)), strict=True)
    ) | _dft_inputs()(random)
    numbers = zip(
        ("KX", "KY", "KZ", "IK2", "DEAL", "DECAY"), (*waves, 1 / squares, kept, kept), strict=True
    )
    return made | {name: _parts(one)[0] for name, one in numbers}


def _flow(*given: Any) -> Any:
    """First stage of a Runge-Kutta step: f = P F(u x curl u), du = 0.05 f, u + du / 3 (Taylor-Green vortex)."""
    numbers = np.array([*given[:12], *given[15:20]]).swapaxes(2, 3)
    u, k, inverse, kept = (
        numbers[:6:2] + 1j * numbers[1:6:2],
        numbers[12:15],
        numbers[15],
        numbers[16],
    )
    speed, curl = (
        np.fft.ifftn(one, axes=(1, 2, 3)).real for one in (u, np.cross(1j * k, u, axis=0))
    )
    force = np.fft.fftn(np.cross(speed, curl, axis=0), axes=(1, 2, 3)) * kept
    change = 0.05 * (force - k * (k * force).sum(0) * inverse)
    return tuple(part for one in (*(u + change / 3), *change) for part in _parts(one))


def _rope(x: Any, cos: Any, sin: Any, halves: bool = True, in_sbuf: bool = False) -> Any:
    """(x, y) -> (x cos - y sin, y cos + x sin) of the two halves, or of neighbours."""
    if halves:
        first, second = (x[:32], x[32:])
    else:
        first, second = (x[::2], x[1::2])
    cos, sin = cos[:, :, None], sin[:, :, None]
    turned = first * cos - second * sin, second * cos + first * sin
    if halves:
        return np.concatenate(turned)
    return np.stack(turned, 1).reshape(x.shape)


def _rope_hf(q: Any, k: Any, q_out: Any, k_out: Any, cos: Any, sin: Any) -> Any:
    return tuple(x * cos + np.concatenate([-x[..., 16:], x[..., :16]], -1) * sin for x in (q, k))


def _windows(x: Any, size: int) -> Any:
    """All windows of `size` neighbours along the last axis, as one axis more."""
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=-1)


def _cases(folder: str, target: str, *rows: Any) -> tuple[Case, ...]:
    """Cases of one repository: file below `folder`, kernel, inputs, reference; then tolerance and note where needed."""
    made = (
        (folder + file, kernel, inputs, reference, target, *more)
        for file, kernel, inputs, reference, *more in rows
    )
    return tuple(Case(*one) for one in made)


ADD, SPMD = (
    f"tensor_addition/{name}_nki_kernels.py"
    for name in ("tensor_addition", "spmd_multiple_nc_tensor_addition")
)
SUMMANDS = _normal(a_input=(256, 1024), b_input=(256, 1024))
PRODUCT = "matrix_multiplication/matrix_multiplication_nki_kernels.py"
PRODUCTS = {
    "basic": (128, 64, 512),
    "tiled": (256, 256, 512),
    "hoist_load": (256, 256, 1024),
    "block_free_dimension": (256, 256, 1024),
    "fully_optimized": (1024, 2048, 1024),
}
ATTENTION = "attention_fwd_performance/attention_kernels.py"
ROPE, CTE = (
    "core/embeddings/rope.py",
    "core/output_projection/output_projection_cte/output_projection_cte.py",
)
ANGLES = {"cos": (32, 1, 64), "sin": (32, 1, 64)}
KNOWN: tuple[Case, ...] = (
    *_cases(  # aws-neuron/nki-samples
        "src/nki_samples/tutorials/",
        "trn1",
        (ADD, "nki_tensor_add", SUMMANDS, lambda a, b: a + b),
        (SPMD, "nki_tensor_add_nc2", SUMMANDS, lambda a, b: a + b),
        (
            "transpose2d/transpose2d_nki_kernels.py",
            "tensor_transpose2D_kernel_",
            lambda random: {"in_tensor": random.standard_normal((5, 12)), "shape2D": (3, 4)},
            lambda rows, _: rows.reshape(5, 3, 4).swapaxes(1, 2).reshape(5, 12),
        ),
        (
            "average_pool2d/average_pool2d_nki_kernels.py",
            "tensor_avgpool_kernel",
            _normal(in_tensor=(7, 12, 9), pool_size=3),
            lambda planes, _: planes.reshape(7, 4, 3, 3, 3).mean((2, 4)),
        ),
        *(
            ("fused_mamba/mamba_nki_kernels.py", f"mamba_v{form}", _scan_inputs, _scan)
            for form in (1, 2, 3)
        ),
        *(
            (
                PRODUCT,
                f"nki_matmul_{form}_",
                _normal(lhsT=(k, m), rhs=(k, n)),
                lambda left, right: left.T @ right,
            )
            for form, (k, m, n) in PRODUCTS.items()
        ),
        *((ATTENTION, f"attn_fwd_v{form}", _attention_inputs(128), _attention) for form in (1, 2)),
        *(
            (ATTENTION, f"attn_fwd_v{form}", _attention_inputs(512), _attention)
            for form in (3, 4, 5, 6)
        ),
        *(
            (ATTENTION, f"attn_fwd_v{form}", _attention_inputs(512), _attention, 1e-2, "bfloat16")
            for form in (7, 8)
        ),
    ),
    *_cases(
        "contributed/",
        "trn1",
        (
            "maxpooling.py",
            "max_pooling_2d_stride_1",
            _normal(in_tensor=(140, 40), pool_size=3),
            lambda plane, size: _windows(_windows(plane, size).max(-1).T, size).max(-1).T,
        ),
        *(
            (
                f"interpolate_{form}_fwd.py",
                f"interpolate_{form}_2x_fwd",
                _normal(src_arr=shape, chunk_size=4),
                _doubled,
            )
            for form, shape in (("bilinear", (2, 40, 10, 12)), ("trilinear", (2, 40, 7, 5, 6)))
        ),
    ),
    *_cases(  # aws-neuron/nki-library
        "src/nkilib_src/nkilib/",
        "trn2",
        ("core/cumsum/cumsum.py", "cumsum", _normal(x=(150, 3000)), lambda x: x.cumsum(1)),
        *(
            (ROPE, "RoPE", _normal(x_in=(64, 1, 2, 64), **ANGLES, **form), _rope, 1e-5, note)
            for note, form in (
                ("halves", {}),
                ("neighbours, by DMA", {"contiguous_layout": False}),
                ("neighbours, in SBUF", {"contiguous_layout": False, "relayout_in_sbuf": True}),
            )
        ),
        (
            "core/embeddings/rope_hf.py",
            "rope_hf",
            _normal(
                **dict.fromkeys(("q", "k", "q_out", "k_out"), (1, 2, 256, 32)),
                cos=(256, 32),
                sin=(256, 32),
            ),
            _rope_hf,
        ),
        (
            CTE,
            "output_projection_cte",
            _normal(attention=(1, 2, 128, 256), weight=(256, 512)),
            lambda heads, weight: np.einsum("bnds,ndh->bsh", heads, weight.reshape(2, 128, 512)),
        ),
        (
            "core/output_projection/output_projection_tkg.py",
            "output_projection_tkg",
            _normal(attention=(128, 1, 2, 4), weight=(256, 512)),
            lambda heads, weight: np.einsum(
                "dns,ndh->sh", heads[:, 0], weight.reshape(2, 128, 512)
            ),
        ),
        (
            "core/qkv/qkv.py",
            "qkv",
            _normal(
                input=(1, 256, 256),
                fused_qkv_weights=(256, 512),
                load_input_with_DMA_transpose=False,
            ),
            lambda x, weights, _: x @ weights,
            *(1e-2, "bfloat16"),
        ),
        (
            "experimental/conv/conv1d.py",
            "conv1d",
            _normal(x_in=(2, 16, 60), filters=(3, 16, 24)),
            lambda x, taps: np.einsum("ncqk,kco->noq", _windows(x, 3), taps),
        ),
        (
            "experimental/conv/depthwise_conv1d.py",
            "depthwise_conv1d_implicit_gemm",
            _normal(img_ref=(1, 4, 1, 300), filter_ref=(4, 1, 1, 140), feature_group_count=4),
            lambda x, taps, _: np.einsum("nchqs,cs->nchq", _windows(x, 140), taps[:, 0, 0]),
        ),
        (
            "experimental/dynamic_shapes/dynamic_elementwise_add.py",
            "dynamic_elementwise_add",
            _normal(
                input_a=(256, 1024), input_b=(256, 1024), num_m_tiles=np.full((1, 1), 2, np.int32)
            ),
            lambda a, b, _: a + b,
        ),
        (
            "core/max/cascaded_max.py",
            "cascaded_max",
            _normal(input_tensor=(4, 2048)),
            lambda x: (x.max(1, keepdims=True), x.argmax(1)[:, None]),
        ),
    ),
    *_cases(  # aws-samples/sample-spectral-dns-on-aws-neuron
        "kernels/",
        "trn1",
        (
            "dft3d_perm_nki.py",
            "dft3d_fwd_real",
            _dft_inputs("f"),
            lambda f, *_: _parts(np.fft.fftn(f)),
        ),
        (
            "dft3d_perm_nki.py",
            "dft3d_fwd_cplx",
            _dft_inputs("f_re", "f_im"),
            lambda re, im, *_: _parts(np.fft.fftn(re + 1j * im)),
        ),
        (
            "dft3d_perm_nki.py",
            "dft3d_inv_cplx",
            _dft_inputs("F_re", "F_im"),
            lambda re, im, *_: _parts(np.fft.ifftn((re + 1j * im).swapaxes(1, 2)).swapaxes(1, 2)),
        ),
        ("tgv_stage_nki.py", "tgv_stage", _flow_inputs, _flow),
    ),
    *_cases(  # trnsci/trnblas
        "trnblas/nki/",
        "trn1",
        ("dispatch.py", "_gemm_kernel", _normal(a=(256, 384), b=(384, 512)), lambda a, b: a @ b),
        ("dispatch.py", "_syrk_kernel", _normal(a=(256, 384)), lambda a: a @ a.T),
        ("dispatch.py", "_mp2_energy_kernel", _blas_mp2_inputs, _blas_mp2),
    ),
    *_cases(  # trnsci/trntensor
        "trntensor/nki/",
        "trn1",
        ("_kernels.py", "matmul_kernel", _normal(a=(256, 384), b=(384, 512)), lambda a, b: a @ b),
        (
            "_kernels.py",
            "batched_matmul_kernel",
            _normal(a=(2, 128, 256), b=(2, 256, 96)),
            lambda a, b: a @ b,
        ),
        ("_kernels.py", "mp2_energy_kernel", _tensor_mp2_inputs, _tensor_mp2),
        (
            "_kernels.py",
            "ao_to_mo_transform_kernel",
            _normal(eri=(256, 256, 3), C_occ=(256, 9), C_vir=(256, 20)),
            lambda eri, occ, vir: np.einsum("mi,na,mnp->iap", occ, vir, eri, optimize=True),
        ),
    ),
)
