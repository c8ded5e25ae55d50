"""Print the tables of docs/trainium/costs.md: predicted costs, bytes that transfers write, published figures beside.

python scripts/kernel_costs.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import published_kernels as published
from numpy.typing import NDArray
from pyscf import df, gto, scf

from dfmp2.backends.base import Backend, Shape
from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import Dfmp2Error
from dfmp2.mp2.pairs import pair_energies
from dfmp2.trainium import calls
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.calls import KERNEL_FOLDER, SHAPES, Call, Program, variants
from dfmp2.trainium.costs import catalogue, prediction, schedule
from dfmp2.trainium.costs.catalogue import Price
from dfmp2.trainium.costs.chips import CHIPS, Assumptions, Chip
from dfmp2.trainium.interpreter import arithmetic
from dfmp2.trainium.interpreter.rules import MOVED_BYTES
from dfmp2.trainium.launch.executors import InterpreterExecutor

Array = NDArray[Any]
Space = tuple[Array, Array, Array]  # B (nocc, nvir, naux), occupied and virtual energies / Eh

MS, GB = 1e6, 1e9
NEAR = 0.25  # relative: what counts as agreement out of sample
MOVED = {  # shapes of the second table: those of the first, and some with one large dimension
    **SHAPES,
    "16/448/6144": Shape(16, 448, 6144),
    "16/896/2304": Shape(16, 896, 2304),
    "16/96/12288": Shape(16, 96, 12288),
}
NOWHERE = ["-"] * len(MOVED)
MOLECULES = {  # name -> atoms / Angstrom, charge, unpaired electrons
    "H2O": ("O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692", 0, 0),
    "O2": ("O 0 0 0; O 0 0 1.2075", 0, 2),
}
TIMED = (("medium", "trn1"), ("medium", "trn2"), ("large", "trn1"))
K12 = catalogue.find("K12")
SIZES: tuple[
    tuple[str, Callable[[str], tuple[Call, ...]], int], ...
] = (  # what, calls on a chip, multiplications
    *(
        (f"gemm {n}^3", lambda _, n=n: (calls.product_call(1, n, n, n),), n**3)
        for n in (512, 1024, 2048)
    ),
    *(
        (f"gemm_batch {g} x {n}^3", lambda _, g=g, n=n: (calls.product_call(g, n, n, n),), g * n**3)
        for g, n in ((16, 256), (32, 1024))
    ),
    ("syrk 2048, K 2048", lambda _: (calls.syrk_call(2048, 2048),), 2048**2 * 2049 // 2),
    ("trsm 2304, 4096 columns", lambda _: (calls.trsm_call(2304, 4096),), 2304 * 2305 // 2 * 4096),
    *(
        (f"mp2_energy {n}", lambda _, s=s: (calls.energy_call(s.nocc, s.nvir),), 0)
        for n, s in SHAPES.items()
    ),
    *(
        (f"ao_to_mo {n}", lambda t, s=s: K12.calls(s, t, "plain"), K12.multiplications(s))
        for n, s in SHAPES.items()
    ),
)
HEADER = (
    "| shape, core | variant | calls, programs | TE / ms | VE / ms | ACT / ms | DMA / ms | schedule / ms | at 85 % "
    "/ ms | at 40 % / ms | with launches / ms | floor / ms | HBM / GB | SBUF / B |"
)


def main() -> None:
    """Print all tables."""
    given, row = Assumptions(), catalogue.find("pair_energy")
    print(HEADER)
    print("|" + "---|" * 14)
    for name, shape in SHAPES.items():
        for chip in CHIPS.values():
            for variant in row.variants(shape, chip.target):
                price, _ = catalogue.best(row, shape, chip, given, variant)
                print(_line(f"{name} {chip.name}", price), flush=True)
    print()
    _sizes(given)
    print()
    print(
        f"| written by DMA, bytes per partition of {MOVED_BYTES}, trn1 / trn2 | {' | '.join(MOVED)} |"
    )
    print("|---|" + "---|" * len(MOVED))
    one, two = (_moved(chip) for chip in CHIPS.values())
    for kernel in one | two:
        both = zip(one.get(kernel, NOWHERE), two.get(kernel, NOWHERE), strict=True)
        print(f"| {kernel} | {' | '.join(a if a == b else f'{a} / {b}' for a, b in both)} |")
    print()
    print("| published kernel on trn1 | what | model | published |")
    print("|---|---|---|---|")
    for text in _checks(given):
        print(text)
    print()
    _held(given)
    print()
    _faults(given)


def _line(name: str, price: Price) -> str:
    busy = " | ".join(
        f"{price.busy(engine) / MS:.2f}" for engine in ("tensor", "vector", "scalar", "dma")
    )
    launched = prediction.dispatch("nki", [price], 0, 0, 0)
    best, worst = (
        price.makespan / MS + launched.queued,
        price.at(catalogue.SLOWEST) / MS + launched.calls,
    )
    return (
        f"| {name} | {price.variant} | {price.calls}, {price.neffs} | {busy} | {price.makespan / MS:.2f} "
        f"| {price.at(catalogue.USUAL) / MS:.1f} | {price.at(catalogue.SLOWEST) / MS:.1f} "
        f"| {best:.1f} to {worst:.1f} | {price.floor / MS:.2f} "
        f"| {price.hbm_bytes / GB:.2f} | {price.sbuf} |"
    )


def _sizes(given: Assumptions) -> None:
    """The sizes that others published, and the transformation."""
    print("| kernel, core | calls, programs | TE / ms | VE / ms | ACT / ms | DMA / ms | schedule / ms | at 85 % / ms "
          "| at 40 % / ms | with launches / ms | floor / ms |")  # fmt: skip
    print("|" + "---|" * 11)
    for name, made, multiplications in SIZES:
        for chip in CHIPS.values():
            found = catalogue.price("", made(chip.target), multiplications, chip, given)
            print(
                "|".join(_line(f"{name} {chip.name}", found).split("|")[:-3]).replace("|  |", "|")
                + "|",
                flush=True,
            )


def _moved(chip: Chip) -> dict[str, list[str]]:
    """Most bytes of any call of each kernel, shape after shape; what cannot run there has a dash."""
    found: dict[str, dict[str, int]] = {}
    for place, shape in MOVED.items():
        for row in catalogue.KERNELS:
            for variant in row.variants(shape, chip.target):
                try:
                    made = row.calls(shape, chip.target, variant)
                    traces = [(call.kernel, schedule.trace_of(call, chip)) for call in made]
                except Dfmp2Error:
                    continue
                for kernel, trace in traces:
                    most = found.setdefault(kernel, {})
                    most[place] = max(most.get(place, 0), trace.moved_high_water)
    return {
        kernel: [str(most.get(place, "-")) for place in MOVED] for kernel, most in found.items()
    }


def _held(given: Assumptions) -> None:
    """Figures that nothing was fitted on, and the series of the 96 kB line."""
    found = published.out_of_sample(CHIPS["trn1"], given)
    near = sum(abs(held.error) <= NEAR for held in found)
    print(f"{near} of {len(found)} within {NEAR:.0%}:")
    print()
    print(
        "| published for trn1 | ms | model, schedule | off by | busiest engine | no stride rule | a miss, put down to |"
    )
    print("|---|---|---|---|---|---|---|")
    for held in found:
        figures = (f"{value:.3g}" for value in (held.model, held.bound, held.even))
        model, bound, even = figures
        print(
            f"| {held.published.what} ({held.published.source}) | {held.published.value:.4g} | {model} "
            f"| {held.error:+.0%} | {bound} | {even} | {held.why} |"
        )
    print()
    print(
        "| streamed products beside bytes that transfers wrote | published / that at 64 kB | model | off by | |"
    )
    print("|---|---|---|---|---|")
    for what, ratio, model, fitted in published.cliff(given):
        print(
            f"| {what} | {ratio:.2f} | {model:.2f} | {model / ratio - 1:+.0%} | {'fitted' if fitted else ''} |"
        )


# Planted in the interpreter: what an instruction returns, in units of the last place or relative.
FAULTS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "reciprocal one unit too large": (
        "reciprocal",
        lambda x: np.nextafter(np.reciprocal(x), np.float32(np.inf)),
    ),
    "reciprocal off by one unit at random": ("reciprocal", lambda x: _shaken(np.reciprocal(x))),
    "square one unit too large": (
        "square",
        lambda x: np.nextafter(np.square(x), np.float32(np.inf)),
    ),
    "reciprocal 1e-5 too large": ("reciprocal", lambda x: np.reciprocal(x) * np.float32(1 + 1e-5)),
}


def _shaken(values: Array) -> Array:
    up = np.random.default_rng(0).integers(0, 2, values.shape).astype(bool)
    return np.nextafter(values, np.where(up, np.float32(np.inf), np.float32(-np.inf)))


def _faults(given: Assumptions) -> None:
    """What planted faults of engines do to energies, and slow transfers and launches to times."""
    molecules = {name: _molecule(*facts) for name, facts in MOLECULES.items()}
    with tempfile.TemporaryDirectory() as folder:
        newton = _with_newton(Path(folder))
        print(
            f"| fault | {' | '.join(f'{name}, off by / Eh' for name in molecules)} | the same with the Newton step |"
        )
        print("|---|" + "---|" * (len(molecules) + 1))
        for fault, (name, function) in {"none": ("", np.square), **FAULTS}.items():
            sound = arithmetic.UNARY.get(name)
            if sound is not None:
                arithmetic.UNARY[name] = function
            cells = [f"{_energy(spaces, None) - exact:.1e}" for spaces, exact in molecules.values()]
            better = [
                f"{_energy(spaces, newton) - exact:.1e}" for spaces, exact in molecules.values()
            ]
            if sound is not None:
                arithmetic.UNARY[name] = sound
            print(f"| {fault} | {' | '.join(cells)} | {', '.join(better)} |")
        print()
        print(
            "| pair energies, one core, schedule / ms | "
            + " | ".join(f"{s} {c}" for s, c in TIMED)
            + " |"
        )
        print("|---|" + "---|" * len(TIMED))
        slow = replace(given, dma_factor=2.0)
        rows = (
            ("as predicted", given, None),
            ("transfers at half the rate", slow, None),
            ("Newton step", given, newton),
        )
        for what, model, source in rows:
            found = [_priced(shape, chip, model, source) for shape, chip in TIMED]
            print(f"| {what} | {' | '.join(f'{price.makespan / MS:.1f}' for price in found)} |")
        found = [_priced(shape, chip, given, None) for shape, chip in TIMED]
        waited = [price.makespan / MS + price.calls * prediction.ROUND_TRIP for price in found]
        queued = [
            price.makespan / MS + prediction.dispatch("nki", [price], 0, 0, 0).queued
            for price in found
        ]
        print(
            f"| every launch 1.3 ms, waited for | {' | '.join(f'{time:.1f}' for time in waited)} |"
        )
        print(f"| the same, queued | {' | '.join(f'{time:.1f}' for time in queued)} |")


def _molecule(text: str, charge: int, spin: int) -> tuple[list[Space], float]:
    """B and energies of each spin of a molecule in cc-pVDZ, and its pair energy by the float64 backend, Eh."""
    mol = gto.M(atom=text, basis="cc-pvdz", charge=charge, spin=spin, verbose=0)
    field = (scf.UHF if spin else scf.RHF)(mol).density_fit().run(conv_tol=1e-11)
    aux = df.make_auxmol(mol, "cc-pvdz-ri")
    metric, three = df.incore.fill_2c2e(mol, aux), df.incore.aux_e2(mol, aux)
    fitted = np.linalg.solve(np.linalg.cholesky(metric), three.reshape(-1, aux.nao).T).reshape(
        -1, mol.nao, mol.nao
    )
    spaces = []
    columns = field.mo_coeff if spin else [field.mo_coeff]
    for c, e, n in zip(
        columns, field.mo_energy if spin else [field.mo_energy], mol.nelec, strict=False
    ):
        b = np.einsum("Pmn,mi,na->iaP", fitted, c[:, :n], c[:, n:], optimize=True)
        spaces.append((b, e[:n], e[n:]))
    return spaces, _energy_on(spaces, CpuBackend(1), "fp64")


def _energy(spaces: list[Space], source: Path | None) -> float:
    return _energy_on(spaces, NkiBackend("nki-interpreter", Elsewhere(source)), "mixed")


def _energy_on(spaces: list[Space], backend: Backend, precision: str) -> float:
    pairs = pair_energies([backend.put(*space, precision) for space in spaces], backend)
    return float(pairs.opposite_spin_energy + pairs.same_spin_energy)


class Elsewhere(InterpreterExecutor):
    """The interpreter on kernel files in another folder, None for the package's own."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._folder = folder

    def _run(self, program: Program, arguments: Mapping[str, Any], *, kept: bool = False) -> Array:
        return super()._run(
            replace(program, source=_moved_to(program.source, self._folder)), arguments, kept=kept
        )


def _moved_to(source: str, folder: Path | None) -> str:
    if folder is None:
        return source
    return str(folder / f"{source.rpartition('.')[2]}.py")


def _with_newton(folder: Path) -> Path:
    """A copy of the kernel files with the switch on."""
    for path in KERNEL_FOLDER.glob("*.py"):
        text = path.read_text().replace("from dfmp2.trainium.kernels.", "from ")
        (folder / path.name).write_text(text.replace("NEWTON = False", "NEWTON = True"))
    return folder


def _priced(shape: str, chip: str, given: Assumptions, folder: Path | None) -> Price:
    """The variant that the backend takes."""
    size, core = SHAPES[shape], CHIPS[chip]
    made = catalogue.find("pair_energy").calls(
        size, core.target, variants(size.nvir, size.naux, core.target)[-1]
    )
    made = [replace(call, source=_moved_to(call.source, folder)) for call in made]
    return catalogue.price("", made, 0, core, given)


def _checks(given: Assumptions) -> list[str]:
    chip = CHIPS["trn1"]
    strip, strips = published.elementwise_strip(), published.elementwise_strips()
    medium, blocks = published.batched_block(1536), published.batched_blocks(64, 448)
    chunked, pieces = published.batched_block(512), published.batched_blocks(16, 384)
    vector = published.engine_time(strip, strips, "vector", chip, given)
    moved = published.engine_time(medium, blocks, "dma", chip, given)
    calls = published.engine_time(chunked, pieces, "dma", chip, given) + 16 * published.ROUND_TRIP
    rows = (
        ("elementwise, medium", published.ELEMENTWISE_VECTOR, f"{vector:.0f} ms"),
        (
            "elementwise, medium",
            published.ELEMENTWISE_READS,
            f"{published.traffic(strip, strips):,} bytes",
        ),
        ("batched pairs, medium", published.BATCHED_MEDIUM, f"{moved:.0f} ms of DMA"),
        ("batched pairs, 16/384/512", published.BATCHED_CHUNKED, f"{calls:.1f} ms"),
    )
    return [
        f"| {name} | {p.what.split(', ')[-1]} | {model} | {p.value:,.1f} {p.unit} |"
        for name, p, model in rows
    ]


if __name__ == "__main__":
    main()
