"""Work cut into small blocks, at least three of each kind with a shorter last one: results of small
molecules, which usually are one block of everything, show errors of the second and the last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dfmp2.integrals.three_center import shell_blocks
from dfmp2.planning import memory, plan
from dfmp2.planning.gradient import gradient_memory
from tests.test_disk import set_variant

ON_DISK = {
    "z_on_disk": True,
    "half_on_disk": True,
    "scf_on_disk": True,
    "scf_kept": False,
    "response_held": False,
}


def gradient_on_disk(patch: pytest.MonkeyPatch, **bytes_of: int) -> None:
    """Plan all arrays of a gradient on disk, and blocks of some bytes."""
    patch.setattr(
        plan,
        "gradient_memory",
        lambda *given: replace(gradient_memory(*given), **ON_DISK, **bytes_of),
    )


def cut_small(
    patch: pytest.MonkeyPatch, sizes: Any, *, disk: bool = False, matrices: bool = False
) -> None:
    """Replace all limits of blocks for a molecule of some `Sizes`.

    With `disk`, all that may be on disk is there, and of B ten orbitals in memory, or five
    `matrices` over fitting functions.
    """
    nocc, nvir, occupied = max(sizes.nocc), max(sizes.nvir), sum(sizes.nocc)
    packed = 8 * (sizes.nao * (sizes.nao + 1) // 2)
    row = nvir * sizes.naux
    limits = {
        "backends.cpu.PRODUCT_ELEMENTS": 9 * nvir**2,
        "backends.cpu.QUOTIENT_ELEMENTS": 2 * nvir**2,
        "backends.cpu.RUN": 7,
        "backends.tiling.WANTED_TILES_PER_SIDE": 3,
        "backends.torch.HOST_ELEMENTS": 3 * nvir**2,
        "backends.untransformed.BLOCK_BYTES": 5 * 8 * sizes.nao**2,
        "gradients.amplitudes.AMPLITUDE_BYTES": 3 * 8 * nvir**2,
        "gradients.amplitudes.RUN": 37,
        "gradients.amplitudes.STREAM_BYTES": 6 * 8 * row,
        "gradients.amplitudes.TILE_ELEMENTS": 7 * nocc * nvir,
        "gradients.functional.XC_GRADIENT_BYTES": 2 * 10**5 * sizes.natom,
        "gradients.derivatives.CHARGES_PER_CALL": 2,
        "gradients.derivatives.SHELLS_PER_CALL": 5,
        "host.arrays_on_disk.PIECE_ELEMENTS": 71,
        "integrals.basis_on_grid.BLOCK_POINTS": 560,
        "integrals.four_center.BLOCK_BYTES": 7 * packed,
        "integrals.four_center.WORK_BYTES": 5 * 8 * occupied * 3 * nvir,
        "integrals.metric.SOLVE_ELEMENTS": 3 * row if disk else 7 * sizes.naux,
        "integrals.screening.CLUSTER": 13,
        "integrals.screening.WIDTH": 7,
        "integrals.three_center.HALF_BYTES": 3 * 8 * sizes.nao * occupied,
        "molecule.point_charges.BLOCK": 2 * sizes.natom,
        "mp2.response.STRIP": 13,
        "scf.hamiltonian.CHARGES_PER_CALL": 2,
        "scf.jk.BLOCK_BYTES": 10 * 8 * sizes.nao * occupied,
        "scf.jk.CACHE_BYTES": 3 * packed,
        "scf.jk.COLUMNS": 37,
        "scf.jk_on_disk.PIECE_ROWS": 5,
        "scf.response_matrices.HALF_BYTES": 4 * 8 * sizes.nao * occupied,
        "scf.solvent.BLOCK_BYTES": 50 * packed,
        "scf.solvent.KEPT_BYTES": 0 if disk else 10**9,
        "scf.stability.CHUNK": 7 * (nocc + nvir) ** 2,
    }
    for name, limit in limits.items():
        patch.setattr(f"dfmp2.{name}", limit)
    patch.setattr("dfmp2.mp2.response.group_bytes", lambda naux: 3 * 8 * row)

    def of_eleven(functions: Any, nao: int, block_bytes: int) -> Any:
        return shell_blocks(functions, nao, min(block_bytes, 11 * packed))

    for module in ("integrals.three_center", "gradients.derivatives"):
        patch.setattr(f"dfmp2.{module}.shell_blocks", of_eleven)
    set_variant(patch, disk=disk)
    if not disk:
        return
    bytes_of = {"read_bytes": 2 * 7 * packed, "pair_bytes": 8 * sizes.naux_scf * 31}
    tensor_bytes = 5 * 8 * sizes.naux**2 if matrices else 10 * 8 * row
    for name, limit in {**bytes_of, "tensor_bytes": tensor_bytes}.items():
        patch.setattr(memory.MemoryPlan, name, property(lambda _, limit=limit: limit))
    rows_at_once = property(lambda planned: 2 * planned.exact_rows.least)
    patch.setattr(memory.MemoryPlan, "row_bytes", rows_at_once)
    gradient_on_disk(patch, **bytes_of)
