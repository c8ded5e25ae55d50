"""Which kernel calls cover a shape: name, argument shapes, static arguments, how often, and of which compiled program.

A compiled program (NEFF) belongs to padded sizes and static arguments; none of them depends on the number of
occupied orbitals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dfmp2.backends.nki import layout
from dfmp2.backends.nki.interpreter.settings import Shape
from dfmp2.backends.nki.layout import EDGE, P
from dfmp2.errors import InputError

KERNELS = "dfmp2.backends.nki.kernels"
VARIANTS = ("plain", "packed")


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel call.

    Attributes
    ----------
    source : module of the kernel; kernel : function in it
    arguments : by name; `Shape` placeholders for tensors, the rest compile-time constants
    count : how often a calculation makes it
    neff : name of the compiled program; equal names are the same program
    """

    source: str
    kernel: str
    arguments: dict[str, Any]
    count: int
    neff: str


def pair_energy_calls(
    nocc: int, nvir: int, naux: int, target: str = "gen2", variant: str = "plain", edge: int = EDGE
) -> tuple[Call, ...]:
    """Calls of K3 for all pairs i <= j of one spin space: off-diagonal and diagonal blocks.

    Parameters
    ----------
    nocc, nvir, naux : sizes of the molecule, not padded
    target : "gen2" (trn1) or "gen3" (trn2)
    variant : "plain", or "packed" where leftover rows can be packed (see `variants`)

    Raises
    ------
    InputError : the variant does not exist for these sizes
    """
    n, aux, blocks = layout.padded_nvir(nvir), layout.padded_naux(naux), -(-nocc // edge)
    if variant not in variants(nvir, naux, edge):
        raise InputError(f"variant {variant!r}: {nvir} virtual orbitals offer {', '.join(variants(nvir, naux, edge))}")
    calls = []
    for diagonal, count in ((False, blocks * (blocks - 1) // 2), (True, blocks)):
        if count and variant == "packed":
            calls.append(
                _call("pair_energy_packed", "pair_energy_packed", _packed(n, aux, edge, target, diagonal), count)
            )
        elif count:
            calls.append(_call("pair_energy", "pair_energy_block", _plain(n, aux, edge, target, diagonal), count))
    return tuple(calls)


def variants(nvir: int, naux: int, edge: int = EDGE) -> tuple[str, ...]:
    """Variants of K3 for a shape, the best last."""
    return VARIANTS if layout.packing(layout.padded_nvir(nvir), layout.padded_naux(naux), edge) else VARIANTS[:1]


def cross_calls(
    nocc: tuple[int, int], nvir: tuple[int, int], naux: int, target: str = "gen2", edge: int = EDGE
) -> tuple[Call, ...]:
    """Calls of K3's cross mode for all pairs of an alpha and a beta occupied orbital."""
    count = -(-nocc[0] // edge) * -(-nocc[1] // edge)
    if not count:
        return ()
    slices = layout.padded_naux(naux) // P
    left, right = (layout.tile_columns(layout.padded_nvir(n)) for n in nvir)
    n = layout.padded_nvir(nvir[1])
    arguments = {
        "b_i": Shape((edge * P, slices, left)),
        "b_j": Shape((edge * P, slices, right)),
        "eu": Shape((P, left // P * n)),
        "neg": Shape((P, edge * edge)),
        "nvir": n,
        "residents": layout.residents(max(map(layout.padded_nvir, nvir)), layout.padded_naux(naux), edge),
    }
    return (_call("pair_energy_cross", "pair_energy_cross", arguments, count),)


def transform_calls(
    nao: int, nocc: int, nvir: int, naux: int, target: str = "gen2", edge: int = EDGE
) -> tuple[Call, ...]:
    """Calls of K1 (128 fitting functions, 64 occupied orbitals each) and K2 (a block of them each) for one spin."""
    tiles, slices, blocks = -(-nao // P), layout.padded_naux(naux) // P, -(-nocc // edge)
    half = {"a": Shape((tiles * P * P, tiles, P)), "c_occ": Shape((P, tiles, layout.GROUP))}
    columns = layout.tile_columns(layout.padded_nvir(nvir))
    full = {"x": Shape((slices * tiles * P, edge, P)), "c_vir": Shape((P, tiles, columns))}
    return (
        _call("transform", "half_transform", half, slices * -(-nocc // layout.GROUP)),
        _call("transform", "full_transform", full, blocks),
    )


def predecessor_calls(nocc: int, nvir: int, naux: int) -> tuple[Call, ...]:
    """One call of each predecessor at the padded sizes of a shape, where it fits one call (nvir at most 512)."""
    n, slices = layout.padded_nvir(nvir), layout.padded_naux(naux) // P
    columns = layout.tile_columns(n)
    rows = max(size for size in range(1, min(nvir, P) + 1) if nvir % size == 0)
    operand = Shape((P, slices, columns))
    calls = [
        _call("products", "gemm", {"a": Shape((P, columns)), "b": Shape((P, n))}, 1),
        _call("products", "gemm_batch", {"a": Shape((4 * P, columns)), "b": Shape((4 * P, n)), "batches": 4}, 1),
        _call("products", "syrk", {"a": Shape((P, columns)), "identity": Shape((P, P))}, 1),
        _call(
            "products",
            "trsm",
            {"l_t": Shape((4 * P, 4 * P)), "inverse_t": Shape((4 * P, P)), "b": Shape((4 * P, P))},
            1,
        ),
    ]
    if n <= layout.BANK:
        energy: dict[str, Any] = {
            "t": Shape((nocc * nvir, nvir)),
            "eu": Shape((nvir, nvir)),
            "neg": Shape((rows, nocc)),
        }
        energy |= {"identity": Shape((rows, rows)), "ic": 1, "nocc": nocc}
        calls.append(_call("pair_checks", "mp2_energy", energy, nocc))
        fused = {"b_i": operand, "b_j": operand, "eu": Shape((P, columns // P * n)), "neg": Shape((P, 1)), "nvir": n}
        calls.append(_call("pair_checks", "pair_fused", fused, nocc * (nocc + 1) // 2))
    return tuple(calls)


def _plain(nvir: int, naux: int, edge: int, target: str, diagonal: bool) -> dict[str, Any]:
    block = Shape((edge * P, naux // P, layout.tile_columns(nvir)))
    npair = edge * (edge + 1) // 2 if diagonal else edge * edge
    return {
        "b_i": block,
        "b_j": block,
        "eu": Shape((P, layout.upper_columns(nvir))),
        "neg": Shape((P, 2 * npair)),
        "identity": Shape((P, P)),
        "nvir": nvir,
        "residents": layout.residents(nvir, naux, edge),
        "run": layout.RUN,
        "diagonal": diagonal,
        "transpose": target == "gen3",
    }


def _packed(nvir: int, naux: int, edge: int, target: str, diagonal: bool) -> dict[str, Any]:
    full, height = divmod(nvir, P)
    held = layout.packed_residents(nvir, naux, edge)
    items = layout.emission(edge, held, diagonal, P // height)
    groups = sum(len(item.rows) > 1 for item in items)
    table = layout.upper_columns(full * P) + nvir - full * P + full * height
    plain = _plain(nvir, naux, edge, target, diagonal)
    return {
        **plain,
        "eu": Shape((P, table + (layout.upper_columns(nvir) if diagonal else 0))),
        "neg": Shape((P, plain["neg"].shape[1] + groups)),
        "identity": Shape((P, P + height)),
        "residents": held,
    }


def _call(module: str, kernel: str, arguments: dict[str, Any], count: int) -> Call:
    """The program's name is made of everything that it was compiled for."""
    words = ["x".join(map(str, v.shape)) if isinstance(v, Shape) else str(v) for v in arguments.values()]
    return Call(f"{KERNELS}.{module}", kernel, arguments, count, "-".join([kernel, *words]))
