"""What a gradient, or relaxed densities alone, take beside an energy: memory by stages, what goes to disk, time.

    amplitudes            B, Z, amplitudes of one occupied orbital for each worker
    fitted integrals      Z, blocks of integrals and their derivatives
    Z-vector              Coulomb and exchange matrices as in the SCF, vectors of the iteration
    mean field            half-transformed integrals (nocc, nao, naux) of the JK set, blocks as above

Z and the half-transformed integrals go to disk where they do not fit; B does where the energy has put it there. How
many integrals are made at a time follows from what is left, and changes last bits only. Where there is
room the SCF integrals stay until the Z-vector equations, instead of being made again, and integrals of the occupied
orbitals are held in their iterations (`dfmp2.scf.response_matrices`).

Times are operations by the rates of the energy's own routines, and derivatives of integrals by the rate of integrals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from dfmp2.planning.memory import FLOAT32, FLOAT64, LEFT_BEHIND, MemoryPlan
from dfmp2.planning.rates import Rates
from dfmp2.planning.sizes import Workload

TILE_ELEMENTS = 1 << 22  # amplitudes of a block, of one j with all i and a and some b
TILE_ARRAYS = 2  # of that size: amplitudes, and their combination
CACHE_BYTES = 2 * 10**6  # of amplitudes, in float64, between two products
CACHE_ARRAYS = 4  # of that size: denominators, work
PACKED_MOST = 4 * 10**6  # bytes of packed three-centre integrals per block
STREAM_BYTES = 6 * 10**6  # of B read from disk at a time by a worker
MATRICES = 24  # (nao, nao) float64 arrays of a spin: orbitals, densities, fields, Lagrangian
MODULES = 20 * 10**6  # bytes of PySCF's and our modules that only a gradient loads
HEAP_LEAST, HEAP_MOST = 14 * 10**6, 40 * 10**6  # left in the C library's heap by earlier stages
METRICS = 3  # (naux, naux) float64 arrays: metric, factor, two-index densities
TWO_CENTER = 3  # of them while the metric's derivative is contracted, when there are no blocks any more
VECTORS = 40  # of the Z-vector equations, with their images
PASS_MATRICES = 9  # (nao, nao) arrays per fitting function of a block: integrals, densities, derivatives, copies
RESPONSE_WORK = 12 * 10**6  # of a worker of dfmp2.scf.response_matrices
PASS_HALVES = 6  # (nocc, nao) arrays per fitting function of a block


Z_CYCLES = 14  # iterations of the Z-vector equations: 9 to 18 in molecules with a gap
Z_CHECKS = 2  # residuals made anew
DERIVATIVES = {3: 3.4, 4: 7.7}  # cost of derivatives of three- and four-centre integrals, in integrals
ONE_ELECTRON = 1.6e-7  # s per atom and pair of functions: derivatives of the field of the nuclei
POTENTIAL_DERIVATIVES = 200  # times as much where there are core potentials
X2C_DERIVATIVES = 375  # products of matrices over uncontracted functions, for each atom
FIRST = 0.25  # s: modules, small arrays


@dataclass(frozen=True, slots=True)
class GradientMemory:
    """How the arrays of a gradient are held.

    Attributes
    ----------
    z_on_disk, half_on_disk, scf_on_disk : whether these arrays, and the SCF integrals, are in scratch space; those of
        four centres are made anew instead
    scf_kept, response_held : whether the SCF integrals stay from the SCF on, and those of occupied orbitals are held
    pair_bytes, read_bytes : of SCF integrals made and read at a time, as of `dfmp2.host.scratch.Room`
    packed_bytes : of packed three-centre integrals per block
    peak : bytes held at most beside the program
    disk : bytes of scratch space beside what the energy leaves there
    needed : bytes beside the program without which it cannot run with this budget
    least, comfortable : the same with the smallest one, and with one that keeps everything in memory
    """

    z_on_disk: bool
    half_on_disk: bool
    scf_on_disk: bool
    scf_kept: bool
    response_held: bool
    pair_bytes: int
    read_bytes: int
    packed_bytes: int
    peak: int
    disk: int
    needed: int
    least: int
    comfortable: int


@dataclass(frozen=True, slots=True)
class GradientTimes:
    """Predicted wall times, s."""

    amplitudes: float
    fitted_integrals: float
    response: float
    mean_field: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.amplitudes + self.fitted_integrals + self.response + self.mean_field


def memory(work: Workload, energy: MemoryPlan, widest: int, threads: int) -> GradientMemory:
    """What goes where.

    Parameters
    ----------
    work : sizes; energy : the plan of the energy, whose budget it keeps to
    widest : functions in the widest shell of the fitting sets
    threads : workers
    """
    room, nao, naux, naux_scf = energy.room, work.nao, work.naux, work.naux_scf
    whole = work.elements * naux * FLOAT64
    occupied, derivatives = sum(spin.occupied for spin in work.spins), work.task == "gradient"
    half = occupied * nao * naux_scf * FLOAT64 if derivatives else 0
    left, fixed = _always(work, threads)
    metric, jk_metric = METRICS * naux * naux * FLOAT64, METRICS * naux_scf * naux_scf * FLOAT64
    per_function = FLOAT64 * (PASS_MATRICES * nao * nao + PASS_HALVES * nao * occupied)
    packed = nao * (nao + 1) // 2 * FLOAT64
    functions = max(naux, naux_scf)
    least = min(widest, functions)
    least_block = least * per_function
    amplitudes = _amplitudes(work, threads, whole if energy.mp2_fits_in_core else threads * min(STREAM_BYTES, whole))
    vectors = left + VECTORS * sum(spin.occupied * (nao - spin.occupied) for spin in work.spins) * FLOAT64
    fit, read = energy.scf_fit, energy.scf_read
    streamed = max((stage.needed for stage in (fit, read) if stage is not None), default=0)
    scf_on_disk = read is not None and streamed < energy.scf_in_core and energy.scf_in_core + vectors > room
    two_center = fixed + TWO_CENTER * max(naux, naux_scf) ** 2 * FLOAT64 if derivatives else 0
    response = vectors + energy.scf_in_core
    number = FLOAT32 if work.single_exchange else FLOAT64
    of_occupied = number * naux_scf * nao * occupied + threads * RESPONSE_WORK
    response_held = naux_scf > 0 and not scf_on_disk and response + of_occupied <= room
    response += of_occupied if response_held else 0
    pair_bytes = read_bytes = 0
    if read is not None and scf_on_disk:
        read_bytes = read.blocks(room - vectors)
        response = vectors + read.fixed + read_bytes
        if fit is not None:
            pair_bytes = fit.blocks(room - vectors)
            response = max(response, vectors + fit.fixed + pair_bytes)

    z_fits = max(amplitudes + whole, fixed + metric + whole + least_block) <= room
    jk_workers = threads * (naux_scf**2 + 3 * nao * naux_scf) * FLOAT64 if derivatives else 0
    half_fits = fixed + jk_metric + half + max(least_block, jk_workers) <= room
    held_z, held_half = whole if z_fits else 0, half if half_fits else 0
    needed = max(
        amplitudes + held_z,
        fixed + metric + held_z + least_block,
        fixed + jk_metric + held_half + max(least_block, jk_workers),
        response,
        two_center,
    )
    rest = room - max(fixed + metric + held_z, fixed + jk_metric + held_half)
    passing = min(functions, max(least, min(PACKED_MOST // packed, rest // per_function)))
    kept = naux_scf * work.kept_pairs * FLOAT64
    before = max(energy.mp2, amplitudes + held_z, fixed + metric + held_z + passing * per_function)
    scf_kept = naux_scf > 0 and energy.scf_fits_in_core and energy.certificate is None and before + kept <= room
    peak = max(
        before + (kept if scf_kept else 0),
        fixed + jk_metric + held_half + max(passing * per_function, jk_workers),
        response,
        two_center,
    )
    smallest = needed if energy.budget == 0 else memory(work, replace(energy, budget=0), widest, threads).needed
    block = min(functions, max(least, PACKED_MOST // packed)) * per_function
    everything = max(
        energy.mp2_in_core + kept,
        _amplitudes(work, threads, whole) + whole + kept,
        fixed + metric + whole + block + kept,
        fixed + jk_metric + half + max(block, jk_workers),
        vectors + energy.scf_in_core + (of_occupied if naux_scf else 0),
        two_center,
    )
    disk = max(0 if z_fits else whole, 0 if half_fits else half, energy.scf_disk if scf_on_disk else 0)
    return GradientMemory(
        *(not z_fits, not half_fits, scf_on_disk, scf_kept, response_held),
        *(pair_bytes, read_bytes, passing * packed, peak, disk, needed, smallest, everything),
    )


def with_b(work: Workload, threads: int) -> int:
    """Bytes beside the program while amplitudes are made of a B in memory, everything else on disk."""
    return _amplitudes(work, threads, work.elements * work.naux * FLOAT64)


def _always(work: Workload, threads: int) -> tuple[int, int]:
    """Bytes of modules and what earlier stages have left, and these with matrices over basis functions."""
    whole = work.elements * work.naux * FLOAT64
    half = sum(spin.occupied for spin in work.spins) * work.nao * work.naux_scf * FLOAT64
    left = MODULES + max(HEAP_LEAST, min(HEAP_MOST, whole + half))
    return left, left + MATRICES * work.nao**2 * FLOAT64 * len(work.spins) + min(LEFT_BEHIND * threads, whole)


def _amplitudes(work: Workload, threads: int, b: int) -> int:
    """Bytes while amplitudes are made, without Z, `b` bytes of B being held."""
    naux, nvir = work.naux, max(spin.nvir for spin in work.spins)
    columns = max((spin.nocc * spin.nvir for spin in work.spins), default=0)
    number = FLOAT64 if work.precision == "fp64" else FLOAT32
    tiles = TILE_ARRAYS * number * max(columns, min(columns * nvir, TILE_ELEMENTS))
    cached = max(CACHE_BYTES // FLOAT64, nvir * nvir) * number
    tiles += min(CACHE_ARRAYS * cached, 2 * tiles)
    workers = threads * (tiles + (3 * nvir * naux + naux * naux) * FLOAT64)
    single = 0 if work.precision == "fp64" else b // 2  # the same in float32
    return _always(work, threads)[1] + METRICS * naux * naux * FLOAT64 + b + single + workers


def seconds(work: Workload, rates: Rates, held: GradientMemory | None = None) -> GradientTimes:
    """Predicted times; traffic to scratch is not counted.

    Parameters
    ----------
    held : where its arrays are, None for memory
    """
    n, spins, derivatives = work.nao, work.spins, work.task == "gradient"
    single = work.precision != "fp64"
    amplitudes = 0.0
    for left, right in product(spins, repeat=2):
        pairs, virtuals = left.nocc * right.nocc, left.nvir * right.nvir
        amplitudes += 4 * pairs * virtuals * work.naux + 2 * pairs * virtuals * (left.nvir + left.nocc)
    correlated = sum((6 if derivatives else 4) * n * n * s.nocc + 4 * n * s.nocc * s.nvir for s in spins)
    occupied = sum(s.occupied for s in spins)
    squares = work.naux**2 * work.elements
    integrals = (1 + DERIVATIVES[3] * derivatives) / rates.integrals
    one_electron = ONE_ELECTRON * work.atoms * n * n * (1 + POTENTIAL_DERIVATIVES * (work.potentials > 0))
    one_electron += X2C_DERIVATIVES * work.atoms * work.x2c_functions**3 / rates.exchange
    if work.naux_scf:
        halves = work.naux_scf * n * occupied
        mean_field = integrals * work.integrals()["scf"] + 8 * halves * n / rates.transform
        mean_field += 2 * halves * work.naux_scf * (1 / rates.solve + 1 / rates.transform)
    else:
        mean_field = DERIVATIVES[4] * work.integrals()["scf"] / rates.four_centre
    return GradientTimes(
        amplitudes=amplitudes / (rates.pairs_mixed if single else rates.pairs_fp64)
        + squares * (1 / rates.solve + 2 / rates.transform),
        fitted_integrals=integrals * work.integrals()["integrals"] + work.naux * correlated / rates.transform,
        response=_response(work, rates, held),
        mean_field=FIRST + (mean_field + one_electron) * derivatives,
    )


def _response(work: Workload, rates: Rates, held: GradientMemory | None) -> float:
    """Predicted time of the Z-vector equations, s."""
    n, p, occupied = work.nao, work.naux_scf, sum(s.occupied for s in work.spins)
    if not p:
        builds = 2 * len(work.spins) * (1 + Z_CHECKS + Z_CYCLES)
        again = builds / 2 if held is not None and held.scf_on_disk else 1
        made = again * work.integrals()["scf"] / rates.four_centre
        return made + 4 * builds * work.pairs_of_functions**2 / rates.exact_exchange
    kept = work.kept_pairs / work.pairs_of_functions

    def build(orbitals: int, densities: int) -> float:
        return p * n * n * (1 + 2 * kept) * orbitals + 4 * densities * p * work.kept_pairs

    rate = rates.exchange_single if work.single_exchange else rates.exchange
    double = build(n * len(work.spins), 2 * len(work.spins)) + Z_CHECKS * build(2 * occupied, 2 * len(work.spins))
    if held is None or held.response_held:
        rest = sum(2 * s.occupied * s.occupied * (3 * n - s.occupied) for s in work.spins)
        hold = 2 * p * n * n * (1 + kept) * occupied
        quick = hold + Z_CYCLES * p * (2 * n * n * kept * occupied + rest)
    else:
        quick = Z_CYCLES * build(2 * occupied, 2 * len(work.spins))
    made = 0.0
    if held is not None and not held.scf_kept:
        made = work.integrals()["scf"] / rates.integrals + p * p * work.kept_pairs / rates.solve
    return made + double / rates.exchange + quick / rate
