"""What a gradient holds beside its energy, stage by stage, and which of its arrays go to disk.

    amplitudes            B, Z, amplitudes of one occupied orbital for each worker
    fitted integrals      Z, blocks of integrals and their derivatives
    Z-vector              Coulomb and exchange matrices as in the SCF, vectors of the iteration
    mean field            half-transformed integrals (nocc, nao, naux) of the JK set, blocks as above

Z and the half-transformed integrals go to disk where they do not fit; B does where the energy has put it there. How
many amplitudes and integrals are made at a time follows from what is left, and changes last bits only.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.errors import ResourceError
from dfmp2.planning.memory import FLOAT64, LEFT_BEHIND, MemoryPlan
from dfmp2.planning.sizes import Workload
from dfmp2.units import format_bytes

TILE_MOST = 64 * 10**6  # bytes of one array of amplitudes of a worker
TILE_ARRAYS = 5  # of that size: amplitudes, their combination, denominators, work
LEAST_COLUMNS = 8  # virtual orbitals b in the smallest block of amplitudes
PACKED_MOST = 4 * 10**6  # bytes of packed three-centre integrals per block
STREAM_BYTES = 8 * 10**6  # of B read from disk at a time by a worker
MATRICES = 24  # (nao, nao) float64 arrays of a spin: orbitals, densities, fields, Lagrangian
MODULES = 20 * 10**6  # bytes of PySCF's and our modules that only a gradient loads
HEAP_MOST = 40 * 10**6  # left in the C library's heap by earlier stages: 20 to 40 measured
METRICS = 3  # (naux, naux) float64 arrays: metric, factor, two-index densities
TWO_CENTER = 6  # of them while the metric's derivative is contracted, when there are no blocks any more
VECTORS = 40  # of the Z-vector equations, with their images
PASS_MATRICES = 9  # (nao, nao) arrays per fitting function of a block: integrals, densities, derivatives, copies
PASS_HALVES = 6  # (nocc, nao) arrays per fitting function of a block


@dataclass(frozen=True, slots=True)
class GradientMemory:
    """How the arrays of a gradient are held.

    Attributes
    ----------
    z_on_disk, half_on_disk, scf_on_disk : whether these arrays, and the SCF integrals, are in scratch space; those of
        four centres are made anew instead
    pair_bytes, read_bytes : of SCF integrals made and read at a time, as of `dfmp2.host.scratch.Room`
    tile_bytes : of one array of amplitudes of a worker
    packed_bytes : of packed three-centre integrals per block
    peak : bytes held at most beside the program
    disk : bytes of scratch space beside what the energy leaves there
    """

    z_on_disk: bool
    half_on_disk: bool
    scf_on_disk: bool
    pair_bytes: int
    read_bytes: int
    tile_bytes: int
    packed_bytes: int
    peak: int
    disk: int


def plan(
    work: Workload, energy: MemoryPlan, widest: int, threads: int, *, with_gradient: bool = True
) -> GradientMemory:
    """What goes where.

    Parameters
    ----------
    work : sizes; energy : the plan of the energy, whose budget it keeps to
    widest : functions in the widest shell of the fitting sets
    threads : workers
    with_gradient : whether derivatives of integrals are made, or densities alone

    Raises
    ------
    ResourceError : it does not fit even with all large arrays on disk
    """
    room, nao, naux, naux_scf = energy.room, work.nao, work.naux, work.naux_scf
    whole = work.elements * naux * FLOAT64
    occupied = sum(spin.occupied for spin in work.spins)
    half = occupied * nao * naux_scf * FLOAT64 if with_gradient else 0  # also the last two stages
    left = MODULES + min(HEAP_MOST, whole + half)
    fixed = left + MATRICES * nao * nao * FLOAT64 * len(work.spins) + min(LEFT_BEHIND * threads, whole)
    metric, jk_metric = METRICS * naux * naux * FLOAT64, METRICS * naux_scf * naux_scf * FLOAT64
    per_function = FLOAT64 * (PASS_MATRICES * nao * nao + PASS_HALVES * nao * occupied)
    packed = nao * (nao + 1) // 2 * FLOAT64
    functions = max(naux, naux_scf)
    least = min(widest, functions)
    least_block = least * per_function
    nvir = max(spin.nvir for spin in work.spins)
    columns = max((spin.nocc * spin.nvir for spin in work.spins), default=0) * FLOAT64
    row = nvir * naux * FLOAT64
    b = whole if energy.mp2_fits_in_core else threads * STREAM_BYTES
    workers = threads * (3 * row + naux * naux * FLOAT64)
    least_tile, full_tile = columns * min(nvir, LEAST_COLUMNS), min(columns * nvir, TILE_MOST)
    amplitudes = fixed + metric + b + workers
    vectors = left + VECTORS * sum(spin.occupied * (nao - spin.occupied) for spin in work.spins) * FLOAT64
    fit, read = energy.scf_fit, energy.scf_read
    scf_on_disk = read is not None and energy.scf_in_core + vectors > room
    two_center = fixed + TWO_CENTER * max(naux, naux_scf) ** 2 * FLOAT64 if with_gradient else 0
    response = vectors + energy.scf_in_core
    pair_bytes = read_bytes = 0
    if read is not None and scf_on_disk:
        read_bytes = read.blocks(room - vectors)
        response = vectors + read.fixed + read_bytes
        if fit is not None:
            pair_bytes = fit.blocks(room - vectors)
            response = max(response, vectors + fit.fixed + pair_bytes)

    tiles = threads * TILE_ARRAYS
    z_fits = max(amplitudes + whole + tiles * least_tile, fixed + metric + whole + least_block) <= room
    half_fits = fixed + jk_metric + half + least_block <= room
    held_z, held_half = whole if z_fits else 0, half if half_fits else 3 * nao * naux_scf * FLOAT64
    needed = max(
        amplitudes + held_z + tiles * least_tile,
        fixed + metric + held_z + least_block,
        fixed + jk_metric + held_half + least_block,
        response,
        two_center,
    )
    if needed > room:
        lacking, what = needed - room, "gradient" if with_gradient else "relaxed densities"
        raise ResourceError(
            f"not enough memory for the {what}: {format_bytes(energy.budget + lacking)} are required even with all "
            f"large arrays on disk and {format_bytes(energy.budget)} may be used: allow at least --memory "
            f"{-(-(energy.budget + lacking) // 10**6)}MB, or choose a smaller --basis"
        )
    tile = min(full_tile, max(least_tile, (room - amplitudes - held_z) // tiles))
    rest = room - max(fixed + metric + held_z, fixed + jk_metric + held_half)
    passing = min(functions, max(least, min(PACKED_MOST // packed, rest // per_function)))
    peak = max(
        amplitudes + held_z + tiles * tile,
        fixed + metric + held_z + passing * per_function,
        fixed + jk_metric + held_half + passing * per_function,
        response,
        two_center,
    )
    disk = max(0 if z_fits else whole, 0 if half_fits else half, energy.scf_disk if scf_on_disk else 0)
    return GradientMemory(
        *(not z_fits, not half_fits, scf_on_disk, pair_bytes, read_bytes, tile, passing * packed, peak, disk)
    )
