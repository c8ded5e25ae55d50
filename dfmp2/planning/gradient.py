"""The memory and time of a gradient, or of relaxed densities alone, in addition to an energy, stage
by stage:

    amplitudes            B, Z, amplitudes of one occupied orbital for each worker
    fitted integrals      Z, blocks of integrals and their derivatives
    Z-vector              Coulomb and exchange matrices as in the SCF, vectors of the iteration
    mean field            half-transformed integrals (nocc, nao, naux) of the JK set, blocks as above
    functional            blocks of points, their functions and derivatives

With a functional, its kernel at every point is held during the Z-vector equations.

Z and the half-transformed integrals go to disk if they do not fit; B is on disk if the energy put
it there. The block size of integrals depends on the remaining memory, and affects only the last
bits. If there is room, the SCF integrals are kept until the Z-vector equations instead of being
recomputed, and integrals of the occupied orbitals are held during their iterations
(`dfmp2.scf.response_matrices`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from dfmp2.integrals.basis_on_grid import values_bytes
from dfmp2.planning.memory import (
    LEFT_BEHIND,
    POINT_BYTES,
    GradientMemory,
    MemoryPlan,
    of_occupied_bytes,
)
from dfmp2.planning.rates import Rates
from dfmp2.planning.sizes import FLOAT32, FLOAT64, Workload
from dfmp2.scf.functional_kernel import COARSER

TILE_ELEMENTS = 1 << 22  # amplitudes of a block, of one j with all i and a and some b
TILE_ARRAYS = 2  # arrays of that size: amplitudes, and their combination
AMPLITUDE_BYTES = 2 * 10**6  # of float64 amplitudes between two products
CACHE_ARRAYS = 4  # arrays of that size: denominators, work
PACKED_MOST = 4 * 10**6  # bytes of packed three-centre integrals per block
STREAM_BYTES = 6 * 10**6  # of B read from disk at a time by a worker
MATRICES = 24  # (nao, nao) float64 arrays of a spin: orbitals, densities, fields, Lagrangian
MODULES = 20 * 10**6  # bytes of PySCF's and our modules that only a gradient loads
HEAP_LEAST, HEAP_MOST = 14 * 10**6, 40 * 10**6  # left in the C heap by earlier stages
METRICS = 3  # (naux, naux) float64 arrays: metric, factor, two-index densities
# of these while the metric's derivative is contracted, when there are no more blocks
TWO_CENTER = 3
VECTORS = 40  # of the Z-vector equations, with their images
MORE_VECTORS = 20  # more with a functional, whose kernel is on a coarser grid in the iterations
# (nao, nao) arrays per fitting function of a block: integrals, densities, derivatives, copies
PASS_MATRICES = 9
RESPONSE_WORK = 12 * 10**6  # per worker in dfmp2.scf.response_matrices
PASS_HALVES = 6  # (nocc, nao) arrays per fitting function of a block
# For the functional (dfmp2.gradients.functional): bytes of a worker's block of points, and the
# numbers held per function at a point
XC_GRADIENT_BYTES = 16 * 10**6
XC_GRADIENT_VALUES = 40
# For a gradient, whose operations run at the rates of the energy's routines, and derivatives of
# integrals at the rate of integrals:
Z_CYCLES = 14  # iterations of the Z-vector equations: 9 to 18 in molecules with a gap
Z_CHECKS = 2  # recomputed residuals
# Cost, in evaluations of the functional, of its kernel and the potentials outside the Z-vector
# equations, and of its nuclear derivatives
KERNEL_BUILDS, FUNCTIONAL_DERIVATIVES = 12, 5
# Cost of derivatives of three- and four-centre integrals, relative to integrals
DERIVATIVES = {3: 3.4, 4: 7.7}
ONE_ELECTRON = 1.6e-7  # s per atom and pair of functions: derivatives of the field of the nuclei
POTENTIAL_DERIVATIVES = 200  # times as much with core potentials
X2C_DERIVATIVES = 375  # products of matrices over uncontracted functions, per atom
FIRST = 0.25  # s: modules, small arrays


@dataclass(frozen=True, slots=True)
class _GradientArrays:
    """Bytes of the arrays of a gradient, for the stages in the table at the top of this module.

    Attributes
    ----------
    b : int
        B, and also Z, which has the same size.
    half : int
        Half-transformed integrals of the SCF set; 0 for relaxed densities.
    fixed : int
        Modules, remains of earlier stages, and matrices over basis functions.
    metric, jk_metric : int
        Matrices over the functions of the MP2 set and of the SCF set.
    mean_field_work : int
        Work space of all workers in the mean-field stage.
    two_center : int
        Everything while the metric's derivative is contracted.
    vectors : int
        Everything in the Z-vector equations except J, K and their integrals.
    kernel_values : int
        Values of basis functions there, on the coarser grid of the functional's kernel.
    of_occupied : int
        Integrals of the occupied orbitals there; 0 for a conventional SCF.
    functional : int
        Everything while the functional is differentiated; 0 without one.
    packed : int
        Packed three-centre integrals of one fitting function.
    per_function : int
        All arrays of a block, per fitting function.
    functions, least_functions : int
        Number of fitting functions in the largest block, and in the smallest.
    """

    b: int
    half: int
    fixed: int
    metric: int
    jk_metric: int
    mean_field_work: int
    two_center: int
    vectors: int
    kernel_values: int
    of_occupied: int
    functional: int
    packed: int
    per_function: int
    functions: int
    least_functions: int

    @property
    def least_block(self) -> int:
        """Bytes of the smallest block of integrals."""
        return self.least_functions * self.per_function

    def block(self, functions: int) -> int:
        """Number of fitting functions in a block if `functions` are wanted."""
        return min(self.functions, max(self.least_functions, functions))

    def fitted_integrals(self, z: int, block: int) -> int:
        """Bytes of the fitted-integrals stage, with `z` bytes of Z and a block of integrals."""
        return self.fixed + self.metric + z + block

    def mean_field(self, half: int, block: int) -> int:
        """Bytes of the mean-field stage, with `half` bytes of half-transformed integrals."""
        return self.fixed + self.jk_metric + half + max(block, self.mean_field_work)


def _gradient_arrays(work: Workload, widest: int, threads: int) -> _GradientArrays:
    """Sizes of the arrays of a gradient, or of relaxed densities; parameters as in
    `gradient_memory`."""
    nao, naux, naux_scf = work.nao, work.naux, work.naux_scf
    occupied = sum(spin.occupied for spin in work.spins)
    rotations = sum(spin.occupied * (nao - spin.occupied) for spin in work.spins)
    functions = max(naux, naux_scf)
    left, fixed = _gradient_always(work, threads)
    half = mean_field_work = two_center = of_occupied = of_functional = 0
    if work.task == "gradient":
        half = occupied * nao * naux_scf * FLOAT64
        mean_field_work = threads * (naux_scf**2 + 3 * nao * naux_scf) * FLOAT64
        two_center = fixed + TWO_CENTER * functions**2 * FLOAT64
        if work.grid:
            of_functional = fixed + work.grid * POINT_BYTES + threads * XC_GRADIENT_BYTES
    if naux and naux_scf:
        of_occupied = work.operators * of_occupied_bytes(work) + threads * RESPONSE_WORK
    vectors, kernel, kernel_values = VECTORS, 0, 0
    if work.grid:  # functions at points of a block are counted with the SCF
        kernel = work.grid * (work.kernel * FLOAT64 + POINT_BYTES)
        kernel += kernel // COARSER  # on the coarser grid too
        vectors += MORE_VECTORS
        if work.naux:
            coarse = work.coarse_grid or work.grid // COARSER
            kernel_values = values_bytes(coarse, nao, derivatives=True, single=True)
    return _GradientArrays(
        b=work.b_bytes,
        half=half,
        fixed=fixed,
        metric=METRICS * work.metric_bytes,
        jk_metric=METRICS * naux_scf**2 * FLOAT64,
        mean_field_work=mean_field_work,
        two_center=two_center,
        vectors=left + vectors * rotations * FLOAT64 + kernel,
        kernel_values=kernel_values,
        of_occupied=of_occupied,
        functional=of_functional,
        packed=nao * (nao + 1) // 2 * FLOAT64,
        per_function=FLOAT64 * (PASS_MATRICES * nao * nao + PASS_HALVES * nao * occupied),
        functions=functions,
        least_functions=min(widest, functions),
    )


def gradient_memory(
    work: Workload, energy: MemoryPlan, widest: int, threads: int
) -> GradientMemory:
    """Decide where each array of a gradient, or of relaxed densities, is held: in memory if it
    fits.

    Parameters
    ----------
    work : Workload
        Sizes of the calculation.
    energy : MemoryPlan
        The plan of the energy; the gradient keeps to its budget.
    widest : int
        Number of functions in the widest shell of the fitting sets.
    threads : int
        Workers.
    """
    arrays = _gradient_arrays(work, widest, threads)
    response = _response(work, energy, arrays)
    room, least_block = energy.room, arrays.least_block

    # Amplitudes, with B in memory or streamed from disk.
    amplitudes_streamed = _amplitudes(work, threads, threads * min(STREAM_BYTES, arrays.b))
    amplitudes_in_memory = _amplitudes(work, threads, arrays.b)
    amplitudes = amplitudes_in_memory if energy.mp2_fits_in_core else amplitudes_streamed

    # Z, and the half-transformed integrals of the mean field.
    z_needs = max(amplitudes + arrays.b, arrays.fitted_integrals(arrays.b, least_block))
    z = arrays.b if z_needs <= room else 0
    half_needs = arrays.mean_field(arrays.half, least_block)
    half = arrays.half if half_needs <= room else 0

    # Blocks of integrals take the remaining memory.
    rest = room - max(arrays.fitted_integrals(z, 0), arrays.fixed + arrays.jk_metric + half)
    at_once = arrays.block(min(PACKED_MOST // arrays.packed, rest // arrays.per_function))
    block = at_once * arrays.per_function
    comfortable_block = arrays.block(PACKED_MOST // arrays.packed) * arrays.per_function

    # The SCF integrals are kept if there is room beside everything before the Z-vector equations.
    kept = work.operators * work.naux_scf * work.kept_pairs * FLOAT64
    before_response = max(energy.mp2, amplitudes + z, arrays.fitted_integrals(z, block))
    scf_kept = (
        work.naux_scf > 0
        and work.naux > 0
        and energy.scf_fits_in_core
        and energy.certificate is None
        and before_response + kept <= room
    )
    if scf_kept:
        before_response += kept

    derivatives = max(arrays.two_center, arrays.functional)
    return replace(
        response,
        purpose="gradient" if work.task == "gradient" else "relaxed densities",
        z_on_disk=z_needs > room,
        half_on_disk=half_needs > room,
        scf_kept=scf_kept,
        packed_bytes=at_once * arrays.packed,
        peak=max(before_response, arrays.mean_field(half, block), response.peak, derivatives),
        disk=max(arrays.b - z, arrays.half - half, response.disk),
        needed=max(
            amplitudes + z,
            arrays.fitted_integrals(z, least_block),
            arrays.mean_field(half, least_block),
            response.needed,
            derivatives,
        ),
        least=max(
            amplitudes_streamed,
            arrays.fitted_integrals(0, least_block),
            arrays.mean_field(0, least_block),
            response.least,
            derivatives,
        ),
        comfortable=max(
            energy.mp2_in_core + kept,
            amplitudes_in_memory + arrays.b + kept,
            arrays.fitted_integrals(arrays.b, comfortable_block) + kept,
            arrays.mean_field(arrays.half, comfortable_block),
            response.comfortable,
            derivatives,
        ),
    )


def _response(work: Workload, energy: MemoryPlan, arrays: _GradientArrays) -> GradientMemory:
    """The memory of the Z-vector equations alone, with the integrals of the SCF in memory or on
    disk."""
    room, fit, read = energy.room, energy.scf_fit, energy.scf_read
    in_memory = arrays.vectors + energy.scf_in_core
    on_disk = arrays.vectors + max(fit.needed, read.needed)
    if not work.naux:  # plain Kohn-Sham has no response
        in_memory = on_disk = 0
    least = min(in_memory, on_disk)
    uses_disk = least < in_memory and in_memory > room
    held = False
    pair_bytes = read_bytes = 0
    if uses_disk:
        pair_bytes = fit.blocks(room - arrays.vectors)
        read_bytes = read.blocks(room - arrays.vectors)
        needed = arrays.vectors + max(fit.fixed + pair_bytes, read.fixed + read_bytes)
    else:
        needed = in_memory
        held = 0 < arrays.of_occupied <= room - needed
        if held:
            needed += arrays.of_occupied
    kernel_values = max(0, min(arrays.kernel_values, room - needed))
    return GradientMemory(
        scf_on_disk=uses_disk,
        response_held=held,
        pair_bytes=pair_bytes,
        read_bytes=read_bytes,
        kernel_values=kernel_values,
        peak=needed + kernel_values,
        disk=energy.scf_disk if uses_disk else 0,
        needed=needed,
        least=least,
        comfortable=in_memory + arrays.of_occupied + arrays.kernel_values,
    )


def gradient_with_b(work: Workload, threads: int) -> int:
    """Bytes in addition to the program while amplitudes are made from B in memory, with everything
    else on disk."""
    return _amplitudes(work, threads, work.b_bytes)


def _gradient_always(work: Workload, threads: int) -> tuple[int, int]:
    """Bytes of modules and remains of earlier stages, without and with matrices over basis
    functions."""
    half = sum(spin.occupied for spin in work.spins) * work.nao * work.naux_scf * FLOAT64
    left = MODULES + max(HEAP_LEAST, min(HEAP_MOST, work.b_bytes + half))
    matrices = MATRICES * work.nao**2 * FLOAT64 * len(work.spins)
    return left, left + matrices + min(LEFT_BEHIND * threads, work.b_bytes)


def _amplitudes(work: Workload, threads: int, b: int) -> int:
    """Bytes while amplitudes are made, without Z, while `b` bytes of B are held."""
    nvir = max(spin.nvir for spin in work.spins)
    columns = max((spin.nocc * spin.nvir for spin in work.spins), default=0)
    number = FLOAT64
    single = 0
    if work.precision != "fp64":
        number = FLOAT32
        single = b // 2  # the same in float32
    tiles = TILE_ARRAYS * number * max(columns, min(columns * nvir, TILE_ELEMENTS))
    cached = max(AMPLITUDE_BYTES // FLOAT64, nvir * nvir) * number
    tiles += min(CACHE_ARRAYS * cached, 2 * tiles)
    workers = threads * (tiles + 3 * work.row_bytes + work.metric_bytes)
    always = _gradient_always(work, threads)[1]
    return always + METRICS * work.metric_bytes + b + single + workers


# --- time ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GradientTimes:
    """Predicted wall times, s."""

    amplitudes: float
    fitted_integrals: float
    response: float
    mean_field: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.amplitudes + self.fitted_integrals + self.response + self.mean_field


def gradient_seconds(work: Workload, rates: Rates, held: GradientMemory | None) -> GradientTimes:
    """Predicted times; traffic to scratch is not counted.

    Parameters
    ----------
    held : locations of its arrays, None for memory
    """
    n = work.nao
    spins = work.spins
    derivatives = work.task == "gradient"
    single = work.precision != "fp64"
    amplitudes = 0.0
    for left, right in product(spins, repeat=2):
        pairs = left.nocc * right.nocc
        virtuals = left.nvir * right.nvir
        amplitudes += 4 * pairs * virtuals * work.naux + 2 * pairs * virtuals * (
            left.nvir + left.nocc
        )
    correlated = sum(
        (6 if derivatives else 4) * n * n * s.nocc + 4 * n * s.nocc * s.nvir for s in spins
    )
    occupied = sum(s.occupied for s in spins)
    squares = work.naux**2 * work.elements
    integrals = (1 + DERIVATIVES[3] * derivatives) / rates.integrals
    one_electron = (
        ONE_ELECTRON * work.atoms * n * n * (1 + POTENTIAL_DERIVATIVES * (work.potentials > 0))
    )
    one_electron += X2C_DERIVATIVES * work.atoms * work.x2c_functions**3 / rates.exchange
    if work.naux_scf:
        halves = work.naux_scf * n * occupied
        mean_field = integrals * work.integrals()["scf"] + 8 * halves * n / rates.transform
        mean_field += 2 * halves * work.naux_scf * (1 / rates.solve + 1 / rates.transform)
    else:
        mean_field = DERIVATIVES[4] * work.integrals()["scf"] / rates.four_centre
    mean_field *= work.operators
    mean_field += FUNCTIONAL_DERIVATIVES * functional_seconds(work, rates)
    return GradientTimes(
        amplitudes=amplitudes / (rates.pairs_mixed if single else rates.pairs_fp64)
        + squares * (1 / rates.solve + 2 / rates.transform),
        fitted_integrals=integrals * work.integrals()["integrals"]
        + work.naux * correlated / rates.transform,
        response=_response_seconds(work, rates, held),
        mean_field=FIRST + (mean_field + one_electron) * derivatives,
    )


def functional_seconds(work: Workload, rates: Rates) -> float:
    """Predicted time of one evaluation of the functional on its grid, s; 0 for Hartree-Fock."""
    return work.grid * len(work.spins) * work.nao / rates.functional


def _response_seconds(work: Workload, rates: Rates, held: GradientMemory | None) -> float:
    """Predicted time of the Z-vector equations, s."""
    if not work.naux:  # Kohn-Sham alone
        return 0.0
    if not work.naux_scf:
        return _conventional_response_seconds(work, rates, held)
    functional = KERNEL_BUILDS * functional_seconds(work, rates)
    n, p, nspin = work.nao, work.naux_scf, len(work.spins)
    occupied = sum(s.occupied for s in work.spins)
    kept = work.kept_pairs / work.pairs_of_functions

    def build(orbitals: int) -> float:
        return p * n * n * (1 + 2 * kept) * orbitals + 4 * 2 * nspin * p * work.kept_pairs

    double = build(n * nspin) + Z_CHECKS * build(2 * occupied)
    quick = Z_CYCLES * build(2 * occupied)
    if held is None or held.response_held:
        rest = sum(2 * s.occupied * s.occupied * (3 * n - s.occupied) for s in work.spins)
        hold = 2 * p * n * n * (1 + kept) * occupied
        quick = hold + Z_CYCLES * p * (2 * n * n * kept * occupied + rest)
    made = 0.0
    if held is not None and not held.scf_kept:
        made = work.integrals()["scf"] / rates.integrals + p * p * work.kept_pairs / rates.solve
    rate = rates.exchange_single if work.single_exchange else rates.exchange
    return functional + work.operators * (made + double / rates.exchange + quick / rate)


def _conventional_response_seconds(
    work: Workload, rates: Rates, held: GradientMemory | None
) -> float:
    """Predicted time of the Z-vector equations with four-centre integrals, s."""
    builds = 2 * len(work.spins) * (1 + Z_CHECKS + Z_CYCLES)
    times_made: float = 1
    if held is not None and held.scf_on_disk:
        times_made = builds / 2
    made = times_made * work.operators * work.integrals()["scf"] / rates.four_centre
    products = 4 * builds * work.pairs_of_functions**2 / rates.exact_exchange
    return KERNEL_BUILDS * functional_seconds(work, rates) + made + products
